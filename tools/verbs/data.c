/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade data`: texts to token files, by the Python package lade and HuggingFace's tokenizers (python/lade/data).
 *
 * This file checks the options, hashes the tokenizer's file, and executes Python in its place. Python prints the
 * results, answers signals and ends with the command's exit codes. Paths are words of its command line, because they
 * may have any bytes; all else is one JSON object.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/base.h"
#include "base/file.h"
#include "run/data.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/job/python.h"

/* Names of the choices, by value. */
static const char *const format_names[] = {"auto", "text", "jsonl", "parquet"};
static const char *const document_names[] = {"file", "line", "paragraph"};

struct data_run {
  struct options options;
  char tokenizer[PATH_MAX];
  char hash[2 * LADE_TOKENIZER_HASH_BYTES + 1];
  struct python_command command;
  struct lade_error error;
};

static int tokenizer_find(struct data_run *run)
{
  const char *named = run->options.tokenizer;
  struct stat st;
  const bool is_directory = stat(named, &st) == 0 && S_ISDIR(st.st_mode);
  if (snprintf(run->tokenizer, PATH_MAX, "%s%s", named, is_directory ? "/tokenizer.json" : "") >= PATH_MAX)
    return lade_error_set(&run->error, -ENAMETOOLONG, "--tokenizer %.64s...: path too long", named);
  return 0;
}

static int tokenizer_hash(struct data_run *run)
{
  struct lade_tokenizer_hash hash;
  int status = lade_tokenizer_hash_file(run->tokenizer, &hash, &run->error);
  for (int i = 0; i < LADE_TOKENIZER_HASH_BYTES && !status; i++)
    snprintf(run->hash + 2 * i, 3, "%02x", hash.bytes[i]);
  return status;
}

static int options_check(struct data_run *run)
{
  const struct options *options = &run->options;
  if (!options->texts.n)
    return lade_error_set(&run->error, -EINVAL, "the texts are missing: lade data FILE... --tokenizer tokenizer.json "
                          "-o DIR");
  if (!options->tokenizer)
    return lade_error_set(&run->error, -EINVAL, "--tokenizer FILE is missing: a tokenizer.json of HuggingFace's "
                          "tokenizers");
  if (!options->output)
    return lade_error_set(&run->error, -EINVAL, "-o DIR is missing: a new directory for the token files");
  int status = tokenizer_find(run);
  return status ? status : tokenizer_hash(run);
}

/* Return the options as the package takes them. The caller frees the text. NULL: out of memory. */
static char *options_json(const struct data_run *run)
{
  const struct options *options = &run->options;
  json_t *object = json_pack("{s:s, s:s, s:s, s:s?, s:b, s:f, s:I, s:b, s:b, s:s}", "format",
                             format_names[options->text_format], "documents", document_names[options->documents],
                             "field", options->field, "separator", options->separator, "special_tokens",
                             options->has_special_tokens, "valid_fraction", options->data_valid_fraction, "processes",
                             (json_int_t)options->n_processes, "quiet", options->is_quiet, "json", options->is_json,
                             "tokenizer_hash", run->hash);
  char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
  json_decref(object);
  return text;
}

/* Become the Python. Return only after a failure. */
static int python_become(struct data_run *run)
{
  const struct option_list *texts = &run->options.texts;
  const char **words = calloc(PYTHON_WORDS + 4 + (size_t)texts->n, sizeof(*words));
  char *json = options_json(run);
  int status = words && json ? 0 : lade_error_set(&run->error, -ENOMEM, "out of memory, or an option is not UTF-8");
  if (!status)
    status = python_command_make("lade.data", "data", &run->error, &run->command, words);
  if (!status) {
    const char **next = words + PYTHON_WORDS - 1;
    *next++ = json;
    *next++ = run->tokenizer;
    *next++ = run->options.output;
    memcpy(next, texts->items, (size_t)texts->n * sizeof(*words));
    execvp(words[0], (char *const *)(uintptr_t)words);
    status = lade_error_set(&run->error, -ENOSYS, "%.200s cannot be run: %s", words[0], strerror(errno));
  }
  free(json);
  free(words);
  return status;
}

int data_main(int argc, char **argv)
{
  struct data_run run = {.hash = ""};
  int code = options_read(VERB_DATA, argc, argv, &run.options);
  if (code == OPTIONS_GO) {
    int status = options_check(&run);
    code = exit_fail("data", status ? status : python_become(&run), &run.error);
  }
  options_finish(&run.options);
  return code;
}
