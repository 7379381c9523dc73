/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading options: one word to a value, checked by its entry in the table.
 *
 * The words of a command line are in options_read.c.
 */
#include "tools/cli/options.h"
#include "tools/job/save_interval.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "tools/cli/verbs.h"

/* ---- one value ---- */

void *option_field(struct options *options, const struct option *option)
{
  return (char *)options + option->offset;
}

int option_list_push(struct option_list *list, const char *item)
{
  return LADE_PUSH(list, item) ? 0 : -ENOMEM;
}

void option_list_free_items(struct option_list *list)
{
  for (int i = 0; i < list->n; i++)
    free((void *)(uintptr_t)list->items[i]);
  LADE_ARRAY_FREE(list);
}

static int number_check(const struct option *option, const char *text, double value, struct lade_error *error)
{
  if (option->min == 0 && option->max == 0)
    return 0;
  if (value >= option->min && value <= option->max)
    return 0;
  return lade_error_set(error, -EINVAL, "--%s %.64s: it must be from %.15g to %.15g", option->name, text,
                        option->min, option->max);
}

static int integer_parse(const struct option *option, const char *text, struct lade_error *error, uint64_t *ret_value)
{
  const bool is_bounded = option->min != 0 || option->max != 0;
  const uint64_t max = option->type == OPTION_COUNT ? INT64_MAX : UINT64_MAX;
  const char *digits = text + (text[0] == '-');
  errno = 0;
  const unsigned long long value = strtoull(digits, NULL, 10);
  if (!*digits || digits[strspn(digits, "0123456789")])
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected a whole number", option->name, text);
  if ((errno || value > max || text[0] == '-') && !is_bounded)
    return lade_error_set(error, -EINVAL, "--%s %.64s: it must be from 0 to %llu", option->name, text,
                          (unsigned long long)max);
  *ret_value = errno || value > max ? max : value;
  return number_check(option, text, text[0] == '-' ? -(double)value : (double)*ret_value, error);
}

static int pace_parse(const struct option *option, const char *text, struct lade_error *error, int64_t *ret_steps)
{
  uint64_t steps = 0;
  if (strcmp(text, "auto") == 0) {
    *ret_steps = SAVE_INTERVAL_AUTO;
    return 0;
  }
  int status = integer_parse(option, text, error, &steps);
  if (!status)
    *ret_steps = (int64_t)steps;
  return status;
}

static int real_parse(const struct option *option, const char *text, struct lade_error *error, double *ret_value)
{
  char *end = NULL;
  double value = lade_number_read(text, &end);
  if (end == text || *end || !isfinite(value))
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected a number", option->name, text);
  *ret_value = value;
  return number_check(option, text, value, error);
}

static int size_parse(const struct option *option, const char *text, struct lade_error *error, uint64_t *ret_bytes)
{
  uint64_t bytes = 0;
  char min[16];
  const int status = lade_size_parse(text, &bytes);
  if (status == -ERANGE)
    return lade_error_set(error, -EINVAL, "--%s %.64s: it must be less than 8 EiB", option->name, text);
  if (status)
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected a size such as 512MiB, 24GiB or bytes",
                          option->name, text);
  if (bytes < option->min)
    return lade_error_set(error, -EINVAL, "--%s '%.64s': it must be at least %s", option->name, text,
                          lade_size_format((uint64_t)option->min, min, sizeof(min)));
  *ret_bytes = bytes;
  return 0;
}

static int choice_parse(const struct option *option, const char *text, struct lade_error *error, int *ret_value)
{
  for (const struct option_choice *choice = option->choices; choice->text; choice++) {
    if (strcmp(choice->text, text) == 0) {
      *ret_value = choice->value;
      return 0;
    }
  }
  return lade_error_set(error, -EINVAL, "--%s '%.64s': expected %s", option->name, text, option->metavar);
}

static int device_parse(const struct option *option, const char *text, struct lade_error *error, int *ret_device)
{
  static const char *const names[] = {[DEVICE_HOST] = "host", [DEVICE_DRY] = "dry", [DEVICE_AUTO] = "auto"};
  int ordinal = lade_cuda_ordinal(text), i = 0;
  while (i < DEVICE_CUDA && strcmp(text, names[i]) != 0)
    i++;
  if (ordinal < 0 && i == DEVICE_CUDA)
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected %s", option->name, text, option->metavar);
  *ret_device = i + LADE_MAX(ordinal, 0);
  return 0;
}

int budget_parse(const char *text, struct lade_budget *ret_budget, struct lade_error *error)
{
  struct lade_budget budget = {0};
  char *end = NULL;
  double percent = lade_number_read(text, &end);
  if (strcmp(text, "min") == 0)
    budget.kind = LADE_BUDGET_MIN;
  else if (strcmp(text, "auto") == 0)
    budget.kind = LADE_BUDGET_AUTO;
  else if (*end == '%' && end > text) {
    bool is_device = strcmp(end, "%dev") == 0;
    const double max = is_device ? 100 : 1e6;
    if ((!is_device && end[1]) || !(percent > 0) || percent > max)
      return lade_error_set(error, -EINVAL, "budget '%.64s': a percentage is above 0 and at most %.0f: 60%% of the "
                            "unconstrained peak or 80%%dev of the device", text, max);
    budget.kind = is_device ? LADE_BUDGET_PERCENT_DEVICE : LADE_BUDGET_PERCENT;
    budget.percent = percent;
  } else {
    budget.kind = LADE_BUDGET_BYTES;
    const int status = lade_size_parse(text, &budget.bytes);
    if (status == -ERANGE)
      return lade_error_set(error, -EINVAL, "budget %.64s: it must be less than 8 EiB", text);
    if (status)
      return lade_error_set(error, -EINVAL, "budget '%.64s': expected a size (24MiB), 60%%, 80%%dev, min or auto",
                            text);
  }
  *ret_budget = budget;
  return 0;
}

static int text_parse(const struct option *option, const char *text, struct lade_error *error, const char **ret_text)
{
  if (!text[0] && strcmp(option->name, "prompt") != 0)
    return lade_error_set(error, -EINVAL, "--%s: it is empty; expected %s", option->name, option->metavar);
  const struct option_choice *recipe = recompute_choices;
  while (recipe->text && strcmp(recipe->text, text) != 0)
    recipe++;
  if (recipe->text && strcmp(option->name, "residency") == 0)
    return lade_error_set(error, -EINVAL, "--residency %s: expected a file; a recipe is --recompute %s, and a file of "
                          "that name ./%s", text, text, text);
  *ret_text = text;
  return 0;
}

/* Write the parsed value of @text into the option's field. FILES add a word; the caller empties the list. */
static int field_set(struct options *options, const struct option *option, const char *text, struct lade_error *error)
{
  void *field = option_field(options, option);
  switch (option->type) {
  case OPTION_FLAG:
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
      return lade_error_set(error, -EINVAL, "--%s '%.64s': expected true or false", option->name, text);
    *(bool *)field = text[0] == 't';
    return 0;
  case OPTION_TEXT:
    return text_parse(option, text, error, field);
  case OPTION_FILES:
    if (!text[0])
      return lade_error_set(error, -EINVAL, "--%s: it is empty; expected %s", option->name, option->metavar);
    return option_list_push(field, text);
  case OPTION_COUNT:
  case OPTION_SEED:
    return integer_parse(option, text, error, field);
  case OPTION_INTERVAL:
    return pace_parse(option, text, error, field);
  case OPTION_REAL:
    return real_parse(option, text, error, field);
  case OPTION_SIZE:
    return size_parse(option, text, error, field);
  case OPTION_BUDGET:
    return budget_parse(text, field, error);
  case OPTION_CHOICE:
    return choice_parse(option, text, error, field);
  case OPTION_DEVICE:
    return device_parse(option, text, error, field);
  case OPTION_SECTION:
    break;
  }
  return 0;
}

int option_set(struct options *options, const struct option *option, const char *text, enum option_origin origin,
               int line, struct lade_error *error)
{
  struct option_state *state = &options->states[option_index(option)];
  if (state->origin > origin) { /* the command line takes precedence; a wrong value is still refused */
    struct options unheard = *options;
    state->line = line;
    return option->type == OPTION_FILES ? 0 : field_set(&unheard, option, text, error);
  }
  int status = field_set(options, option, text, error);
  if (!status && option->type == OPTION_FILES)
    status = option_list_push(&state->texts, text);
  if (status)
    return status;
  state->origin = origin;
  state->line = line;
  state->text = text;
  return 0;
}

bool option_is_given(const struct options *options, const struct option *option)
{
  const struct option_state *state = &options->states[option_index(option)];
  if (state->origin == ORIGIN_DEFAULT)
    return false;
  if (option->type == OPTION_FLAG)
    return state->text[0] == 't';
  return state->origin == ORIGIN_COMMAND || !option->preset || strcmp(state->text, option->preset) != 0;
}

bool option_is_set(const struct options *options, const char *name)
{
  return option_is_given(options, option_find(options->verb, name, strlen(name)));
}

/* ---- the line ---- */

int word_distance(const char *a, const char *b)
{
  int row[33], n_a = (int)LADE_MIN(strlen(a), 32), n_b = (int)LADE_MIN(strlen(b), 32);
  for (int j = 0; j <= n_b; j++)
    row[j] = j;
  for (int i = 1; i <= n_a; i++) {
    int corner = row[0];
    row[0] = i;
    for (int j = 1; j <= n_b; j++) {
      int change = corner + (a[i - 1] != b[j - 1]);
      corner = row[j];
      row[j] = LADE_MIN(change, LADE_MIN(row[j], row[j - 1]) + 1);
    }
  }
  return row[n_b];
}

void options_finish(struct options *options)
{
  for (const struct option *option = option_table; option->help; option++) {
    if (option->type != OPTION_FILES)
      continue;
    struct option_list *list = option_field(options, option);
    LADE_ARRAY_FREE(list);
    LADE_ARRAY_FREE(&options->states[option_index(option)].texts);
  }
  free(options->config_text);
}
