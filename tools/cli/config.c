/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration files: one `name = value` per line, with the names of the options. The output of --print-config is such
 * a file, and reads back as the same run.
 *
 * A value is the rest of the line without blanks at its ends. A value in double quotes may contain \" \\ \n and \NNN, a
 * byte in octal. Outside quotes a # after a blank begins a comment. Options that take several files have several lines.
 * Options of other verbs are checked and put aside, so that one file serves train, sweep and plan. Lines were preferred
 * to JSON because they carry comments and a mistake has a line number.
 */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

#define CONFIG_MAX_BYTES (16 << 20) /* more than the longest usual command line with every byte escaped */

/* ---- reading ---- */

/* Return the byte of the escape whose backslash is before @from; *ret_n: the characters after the backslash. */
static char escape_read(const char *from, int *ret_n)
{
  const bool is_octal = strspn(from, "01234567") >= 3 && from[0] < '4' && memcmp(from, "000", 3) != 0;
  *ret_n = is_octal ? 3 : 1;
  if (is_octal)
    return (char)((from[0] - '0') << 6 | (from[1] - '0') << 3 | (from[2] - '0'));
  return *from == 'n' ? '\n' : *from;
}

/* Unquote in place. Return NULL if the quotes do not close or text follows them. */
static char *quoted_read(char *text)
{
  char *to = text, *from = text + 1;
  while (*from && *from != '"') {
    int n = 1;
    if (*from == '\\' && from[1])
      *to++ = escape_read(++from, &n);
    else
      *to++ = *from;
    from += n;
  }
  if (*from != '"')
    return NULL;
  from += 1 + strspn(from + 1, " \t\r");
  if (*from && *from != '#')
    return NULL;
  *to = 0;
  return text;
}

/* Return the begin of a comment in @text, or the end of @text. */
static char *comment_find(char *text)
{
  char *at = text;
  while (*at && !(*at == '#' && (at == text || isblank((unsigned char)at[-1]))))
    at++;
  return at;
}

static char *value_read(char *text)
{
  text += strspn(text, " \t");
  if (*text == '"')
    return quoted_read(text);
  char *end = comment_find(text);
  while (end > text && isspace((unsigned char)end[-1]))
    end--;
  *end = 0;
  return text;
}

static int line_parse(struct options *options, const char *path, int number, char *line, struct lade_error *error)
{
  line += strspn(line, " \t\r");
  if (!*line || *line == '#')
    return 0;
  size_t name_bytes = strcspn(line, " \t=\r");
  char *equals = line + name_bytes + strspn(line + name_bytes, " \t");
  if (*equals != '=')
    return lade_error_set(error, -EINVAL, "%.200s line %d: expected `name = value`", path, number);
  const struct option *option = option_find(options->verb, line, name_bytes);
  const struct option *successor = option_successor(options->verb, line, name_bytes);
  if (successor)
    return lade_error_set(error, -EINVAL, "%.200s line %d: there is no option %.*s any more; %s replaces it", path,
                          number, (int)LADE_MIN(name_bytes, 64), line, successor->name);
  bool is_command_only = option && (strcmp(option->name, "config") == 0 || strcmp(option->name, "help") == 0 ||
                                    strcmp(option->name, "print-config") == 0);
  if (!option || is_command_only)
    return lade_error_set(error, -EINVAL, "%.200s line %d: '%.*s' is not the name of an option", path, number,
                          (int)LADE_MIN(name_bytes, 64), line);
  char *value = value_read(equals + 1);
  if (!value)
    return lade_error_set(error, -EINVAL, "%.200s line %d: the quotes do not close, or something follows them", path,
                          number);
  if (!*value && strcmp(option->name, "prompt") != 0)
    return lade_error_set(error, -EINVAL, "%.200s line %d: --%s has no value", path, number, option->name);
  const int earlier = options->states[option_index(option)].line;
  if (earlier && option->type != OPTION_FILES)
    return lade_error_set(error, -EINVAL, "%.200s line %d: %s is already set in line %d", path, number, option->name,
                          earlier);
  struct lade_error why = {0};
  int status = option_set(options, option, value, ORIGIN_CONFIG, number, &why);
  return status ? lade_error_set(error, status, "%.200s line %d: %s", path, number, why.text) : 0;
}

int config_load(struct options *options, const char *path, struct lade_error *error)
{
  size_t n_bytes = 0;
  struct lade_error why = {0};
  int status = lade_file_load(path, CONFIG_MAX_BYTES, &why, &options->config_text, &n_bytes);
  if (status)
    return lade_error_set(error, status, "--config %s", why.text);
  if (strlen(options->config_text) != n_bytes)
    return lade_error_set(error, -EINVAL, "--config %.200s: not a text file", path);
  int number = 0;
  char *rest = options->config_text + lade_text_mark_bytes(options->config_text, n_bytes);
  for (char *line; !status && (line = strsep(&rest, "\n"));)
    status = line_parse(options, path, ++number, line, error);
  return status;
}

/* ---- writing ---- */

static bool is_plain(const char *value)
{
  return *value && !strpbrk(value, "\"\\#") && !text_has_control(value) && !isspace((unsigned char)value[0]) &&
         !isspace((unsigned char)value[strlen(value) - 1]);
}

static void value_write(FILE *file, const char *value)
{
  if (is_plain(value)) {
    fputs(value, file);
    return;
  }
  fputc('"', file);
  text_put(file, value, '"');
  fputc('"', file);
}

static void origin_write(char *text, size_t text_bytes, const struct options *options, const struct option_state *state)
{
  char path[200];
  if (state->origin == ORIGIN_CONFIG)
    snprintf(text, text_bytes, "%s line %d", text_escape(options->config, path, sizeof(path)), state->line);
  else
    snprintf(text, text_bytes, "%s", state->origin == ORIGIN_COMMAND ? "command line" : "default");
}

/* True for options that describe a run of @verb; false for options of this call of the command alone. */
static bool is_written(const struct option *option, enum verb_id verb)
{
  return option->type != OPTION_SECTION && (option->verbs & verb) && strcmp(option->name, "config") != 0 &&
         strcmp(option->name, "help") != 0 && strcmp(option->name, "print-config") != 0;
}

static void line_write(FILE *file, const struct option *option, const char *value, const char *origin)
{
  int before = (int)ftell(file);
  fprintf(file, "%s = ", option->name);
  value_write(file, value);
  int width = (int)ftell(file) - before;
  fprintf(file, "%*s # %s\n", LADE_MAX(1, 36 - width), "", origin);
}

char *config_write(const struct options *options, enum verb_id verb)
{
  char *text = NULL, origin[256];
  size_t n_bytes = 0;
  FILE *file = open_memstream(&text, &n_bytes);
  if (!file)
    return NULL;
  for (const struct option *option = option_table; option->help; option++) {
    const struct option_state *state = &options->states[option_index(option)];
    if (!is_written(option, verb))
      continue;
    origin_write(origin, sizeof(origin), options, state);
    for (int i = 0; i < state->texts.n; i++)
      line_write(file, option, state->texts.items[i], origin);
    if (option->type == OPTION_FLAG)
      line_write(file, option, state->text ? state->text : "false", origin);
    else if (!state->text)
      fprintf(file, "# %s is not set: %s\n", option->name, option->unset);
    else if (option->type != OPTION_FILES)
      line_write(file, option, state->text, origin);
  }
  if (fclose(file)) {
    free(text);
    return NULL;
  }
  return text;
}

static json_t *value_json(const struct option *option, const struct option_state *state)
{
  if (option->type == OPTION_FLAG)
    return json_boolean(state->text && state->text[0] == 't');
  if (!state->text)
    return json_null();
  if (option->type != OPTION_FILES)
    return json_text(state->text);
  json_t *array = json_array();
  for (int i = 0; i < state->texts.n; i++)
    json_array_append_new(array, json_text(state->texts.items[i]));
  return array;
}

json_t *config_json(const struct options *options, enum verb_id verb)
{
  json_t *object = json_object();
  char origin[256];
  for (const struct option *option = option_table; option->help; option++) {
    const struct option_state *state = &options->states[option_index(option)];
    if (!is_written(option, verb))
      continue;
    origin_write(origin, sizeof(origin), options, state);
    json_object_set_new(object, option->name,
                        json_pack("{s:o, s:o}", "value", value_json(option, state), "from", json_text(origin)));
  }
  return object;
}

/* ---- back into a command line ---- */

static int argument_push(struct option_list *list, const struct option *option, const char *value)
{
  char *argument = NULL;
  if (asprintf(&argument, option->type == OPTION_FLAG ? "--%s" : "--%s=%s", option->name, value) < 0)
    return -ENOMEM;
  int status = option_list_push(list, argument);
  if (status)
    free(argument);
  return status;
}

static bool is_among(const char *name, const char *const *names)
{
  for (; *names; names++) {
    if (strcmp(*names, name) == 0)
      return true;
  }
  return false;
}

int options_arguments(const struct options *options, enum verb_id verb, const char *const *without,
                      struct option_list *ret_list)
{
  int status = 0;
  for (const struct option *option = option_table; option->help && !status; option++) {
    const struct option_state *state = &options->states[option_index(option)];
    if (!is_written(option, verb) || !option_is_given(options, option) || is_among(option->name, without))
      continue;
    for (int i = 0; i < state->texts.n && !status; i++)
      status = argument_push(ret_list, option, state->texts.items[i]);
    if (option->type != OPTION_FILES)
      status = argument_push(ret_list, option, state->text);
  }
  return status;
}

void word_print(FILE *file, const char *word)
{
  if (*word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+%")]) {
    fprintf(file, " %s", word);
    return;
  }
  if (text_has_control(word)) {
    fputs(" $'", file);
    text_put(file, word, '\'');
    fputc('\'', file);
    return;
  }
  fputs(" '", file);
  for (; *word; word++)
    fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, file);
  fputc('\'', file);
}
