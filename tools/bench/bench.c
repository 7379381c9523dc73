/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade bench`: measures parts of Lade on this machine, each interleaved with its usual alternatives.
 *
 * The word after the verb names the subject: one file, one line in the table below and one section of options_table.c.
 * The subject gets its own name as argv[0] and the remaining arguments after it, as a verb does.
 */
#include <errno.h>
#include <string.h>

#include "tools/cli/options.h"
#include "tools/cli/verbs.h"

struct bench_verb {
  const char *name;
  lade_verb_fn *main;
};

static const struct bench_verb benches[] = {
    {"adam", bench_adam_main},
    {"alloc", bench_alloc_main},
    {"links", bench_links_main},
    {"store", bench_store_main},
    {0}, /* ends the table */
};

static const struct bench_verb *bench_find(const char *name)
{
  for (const struct bench_verb *bench = benches; name && bench->name; bench++)
    if (strcmp(bench->name, name) == 0)
      return bench;
  return NULL;
}

static int name_refuse(const char *name)
{
  struct lade_error error = {0};
  char names[128] = "";
  for (const struct bench_verb *bench = benches; bench->name; bench++) {
    strncat(names, bench->name, sizeof(names) - strlen(names) - 1);
    if (bench[1].name)
      strncat(names, ", ", sizeof(names) - strlen(names) - 1);
  }
  if (name)
    lade_error_set(&error, -EINVAL, "there is no bench '%.64s'; expected one of: %s", name, names);
  else
    lade_error_set(&error, -EINVAL, "NAME is missing: lade bench NAME, one of: %s", names);
  return exit_fail("bench", -EINVAL, &error);
}

int bench_main(int argc, char **argv)
{
  struct options options;
  const char *name = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
  const struct bench_verb *bench = bench_find(name);
  if (bench)
    return bench->main(argc - 1, argv + 1);
  if (name)
    return name_refuse(name);
  int code = options_read(VERB_BENCH, argc, argv, &options);
  if (code == OPTIONS_GO)
    code = name_refuse(NULL);
  options_finish(&options);
  return code;
}
