/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process and its two pipes. Each request is one line and has one line as its answer, so neither side waits for the
 * other while both write. The other ends of the pipes are closed in the process by exec.
 */
#include "tools/job/token_text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/job/python.h"
#include "tools/job/subprocess.h"

struct token_text {
  FILE *to, *from; /* NULL: not open */
  int ends[2];     /* the process's standard input and output */
  char *line;
  size_t line_bytes;
  pid_t child; /* 0: none */
};

/* ---- lines ---- */

static int child_lost(struct lade_error *error)
{
  return lade_error_set(error, -ECHILD, "the tokenizer's process has ended");
}

/* Read the next answer; the caller releases it. */
static int answer_read(struct token_text *text, struct lade_error *error, json_t **ret_value)
{
  ssize_t n;
  do {
    clearerr(text->from);
    n = getline(&text->line, &text->line_bytes, text->from);
  } while (n < 0 && errno == EINTR);
  if (n < 0)
    return child_lost(error);
  *ret_value = json_loadb(text->line, (size_t)n, JSON_DECODE_ANY, NULL);
  return *ret_value ? 0 : lade_error_set(error, -ENOMEM, "no memory for the tokenizer's answer");
}

static int line_send(struct token_text *text, const char *line, struct lade_error *error)
{
  return fprintf(text->to, "%s\n", line) < 0 || fflush(text->to) ? child_lost(error) : 0;
}

static void answer_print(const json_t *value)
{
  const char *part = json_string_value(value);
  fwrite(part ? part : "", 1, json_string_length(value), stdout);
  fflush(stdout);
}

/* ---- the process ---- */

static int streams_set(void *user)
{
  const struct token_text *text = user;
  return dup2(text->ends[0], STDIN_FILENO) < 0 || dup2(text->ends[1], STDOUT_FILENO) < 0 ? -errno : 0;
}

static int pipes_open(struct token_text *text, struct lade_error *error)
{
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC))
    return lade_error_set(error, -errno, "no pipe: %s", strerror(errno));
  text->ends[0] = in[0];
  text->to = fdopen(in[1], "w");
  if (!text->to)
    close(in[1]);
  if (!text->to || pipe2(out, O_CLOEXEC))
    return lade_error_set(error, -errno, "no pipe: %s", strerror(errno));
  text->ends[1] = out[1];
  text->from = fdopen(out[0], "r");
  if (text->from)
    return 0;
  close(out[0]);
  return lade_error_set(error, -ENOMEM, "no memory for a pipe");
}

static void ends_close(struct token_text *text)
{
  for (int i = 0; i < 2; i++) {
    if (text->ends[i] >= 0)
      close(text->ends[i]);
    text->ends[i] = -1;
  }
}

static int process_start(struct token_text *text, const char *path, struct lade_error *error)
{
  struct python_command *command = calloc(1, sizeof(*command));
  const char *words[PYTHON_WORDS + 1] = {NULL};
  if (!command)
    return lade_error_set(error, -ENOMEM, "no memory for a process");
  int status = python_command_make("lade.data.prompt", "sample", error, command, words);
  words[PYTHON_WORDS - 1] = path;
  if (!status) {
    const struct subprocess_params params = {.command = (char *const *)(uintptr_t)words, .end_signal = SIGKILL,
                                             .prepare = streams_set, .user = text};
    pid_t child = 0;
    status = subprocess_start(&params, error, &child);
    text->child = status ? 0 : child;
  }
  free(command);
  return status;
}

int token_text_open(const char *path, struct lade_error *error, struct token_text **ret_text)
{
  struct token_text *text = calloc(1, sizeof(*text));
  if (!text)
    return lade_error_set(error, -ENOMEM, "no memory for a process");
  text->ends[0] = text->ends[1] = -1;
  int status = pipes_open(text, error);
  if (!status)
    status = process_start(text, path, error);
  ends_close(text);
  if (status) {
    token_text_close(text, false, NULL);
    return status;
  }
  *ret_text = text;
  return 0;
}

void token_text_close(struct token_text *text, bool has_rest, int *ret_code)
{
  json_t *rest = NULL;
  int state = 0;
  if (!text)
    return;
  if (text->to)
    fclose(text->to);
  if (has_rest && !answer_read(text, NULL, &rest))
    answer_print(rest);
  json_decref(rest);
  if (text->from)
    fclose(text->from);
  if (text->child && !subprocess_wait(text->child, NULL, &state) && ret_code)
    *ret_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  free(text->line);
  free(text);
}

/* ---- text ---- */

static int tokens_take(const json_t *array, struct lade_error *error, int32_t **ret_tokens, int64_t *ret_n_tokens)
{
  const size_t n = json_array_size(array);
  int32_t *tokens = calloc(n + 1, sizeof(*tokens));
  if (!tokens)
    return lade_error_set(error, -ENOMEM, "no memory for %zu tokens", n);
  for (size_t i = 0; i < n; i++)
    tokens[i] = (int32_t)json_integer_value(json_array_get(array, i));
  *ret_tokens = tokens;
  *ret_n_tokens = (int64_t)n;
  return 0;
}

int token_text_encode(struct token_text *text, const char *prompt, struct lade_error *error, int32_t **ret_tokens,
                      int64_t *ret_n_tokens)
{
  json_t *string = json_string(prompt), *answer = NULL;
  char *line = string ? json_dumps(string, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
  int status = line ? line_send(text, line, error)
                    : lade_error_set(error, -EINVAL, "--prompt is not UTF-8, as the tokenizer needs it");
  free(line);
  json_decref(string);
  if (!status)
    status = answer_read(text, error, &answer);
  if (!status)
    status = tokens_take(answer, error, ret_tokens, ret_n_tokens);
  json_decref(answer);
  return status;
}

int token_text_print(struct token_text *text, int32_t token, struct lade_error *error)
{
  char line[16];
  json_t *answer = NULL;
  snprintf(line, sizeof(line), "%d", (int)token);
  int status = line_send(text, line, error);
  if (!status)
    status = answer_read(text, error, &answer);
  if (!status)
    answer_print(answer);
  json_decref(answer);
  return status;
}
