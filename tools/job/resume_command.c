/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line that resumes a run repeats the options as they were written, because defaults may differ in the next
 * version. --resume and --init are left out: the caller knows the step that the run has reached and adds them.
 */
#include "tools/job/resume_command.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/base.h"
#include "run/checkpoint.h"

void resume_command_words_print(const struct options *options, FILE *file)
{
  static const char *const without[] = {"resume", "init", NULL};
  struct option_list arguments = {0};
  if (options_arguments(options, VERB_TRAIN, without, &arguments) == 0) {
    for (int i = 0; i < arguments.n; i++)
      word_print(file, arguments.items[i]);
  }
  option_list_free_items(&arguments);
}

const char *resume_command_place(const char *dir, int64_t step, char path[PATH_MAX])
{
  char newest[PATH_MAX];
  if (lade_checkpoint_path(dir, step, path, NULL))
    return dir;
  return !lade_checkpoint_find(dir, newest, sizeof(newest), NULL) && strcmp(newest, path) == 0 ? dir : path;
}

const char *resume_command_newest(const char *const *places, size_t n, struct lade_error *error)
{
  const struct lade_error why = *error;
  char path[PATH_MAX];
  bool is_any = false;
  for (size_t i = 0; i < n; i++) {
    struct lade_error found = {0};
    if (!places[i])
      continue;
    is_any = true;
    int status = !*places[i] ? -ENOENT : lade_checkpoint_find(places[i], path, sizeof(path), &found);
    if (status == -ENOENT)
      continue;
    if (status)
      lade_error_set(error, why.code, "%.200s; the newest checkpoint cannot be loaded: %s", why.text, found.text);
    else
      lade_error_set(error, why.code, "%.300s; the newest complete checkpoint is %s", why.text, path);
    return status ? NULL : places[i];
  }
  if (is_any)
    lade_error_set(error, why.code, "%.300s; there is no checkpoint yet", why.text);
  return NULL;
}
