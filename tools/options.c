/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading options: words to values, each checked by its entry in the table, then all together.
 *
 * getopt and argp are not used: they know neither options that take several words (--data a b c) nor
 * how to name the option that was probably meant, and abbreviations make scripts break when a longer option
 * comes. What they would do is option_read below.
 *
 * A word is applied twice at most: the command line is read first into its own states, then the
 * configuration file fills what it left alone, so that the order of --config among the options is of no account.
 */
#include "tools/options.h"
#include "tools/pace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "tools/verbs.h"

/* ---- one value ---- */

static void *field_of(struct options *options, const struct option *option)
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
  if (option->least == 0 && option->most == 0)
    return 0;
  if (value >= option->least && value <= option->most)
    return 0;
  return lade_error_set(error, -EINVAL, "--%s %.64s: it must be from %.15g to %.15g", option->name, text,
                        option->least, option->most);
}

static int integer_parse(const struct option *option, const char *text, struct lade_error *error, uint64_t *ret_value)
{
  char *end = NULL;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end || errno || (option->type == OPTION_COUNT && value > INT64_MAX))
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected a whole number", option->name, text);
  *ret_value = value;
  return number_check(option, text, (double)value, error);
}

static int pace_parse(const struct option *option, const char *text, struct lade_error *error, int64_t *ret_steps)
{
  uint64_t steps = 0;
  if (strcmp(text, "auto") == 0) {
    *ret_steps = PACE_AUTO;
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
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value))
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected a number", option->name, text);
  *ret_value = value;
  return number_check(option, text, value, error);
}

static int size_parse(const struct option *option, const char *text, struct lade_error *error, uint64_t *ret_bytes)
{
  uint64_t bytes = 0;
  char least[16];
  if (lade_size_parse(text, &bytes))
    return lade_error_set(error, -EINVAL, "--%s '%.64s': expected a size such as 512MiB, 24GiB or bytes",
                          option->name, text);
  if (bytes < option->least)
    return lade_error_set(error, -EINVAL, "--%s '%.64s': it must be at least %s", option->name, text,
                          lade_size_format((uint64_t)option->least, least, sizeof(least)));
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
  double percent = strtod(text, &end);
  if (strcmp(text, "min") == 0)
    budget.kind = LADE_BUDGET_MIN;
  else if (strcmp(text, "auto") == 0)
    budget.kind = LADE_BUDGET_AUTO;
  else if (end > text && *end == '%') {
    bool is_device = strcmp(end, "%dev") == 0;
    if ((!is_device && end[1]) || !(percent > 0) || percent > (is_device ? 100 : 1e6))
      return lade_error_set(error, -EINVAL, "budget '%.64s': a percentage is 60%% of the unconstrained peak or "
                            "80%%dev of the device", text);
    budget.kind = is_device ? LADE_BUDGET_PERCENT_DEVICE : LADE_BUDGET_PERCENT;
    budget.percent = percent;
  } else {
    budget.kind = LADE_BUDGET_BYTES;
    if (lade_size_parse(text, &budget.bytes))
      return lade_error_set(error, -EINVAL, "budget '%.64s': expected a size (24MiB), 60%%, 80%%dev, min or auto",
                            text);
  }
  *ret_budget = budget;
  return 0;
}

/* Write the parsed value of @text into the option's field. FILES add a word; the caller empties the list. */
static int field_set(struct options *options, const struct option *option, const char *text, struct lade_error *error)
{
  void *field = field_of(options, option);
  switch (option->type) {
  case OPTION_FLAG:
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
      return lade_error_set(error, -EINVAL, "--%s '%.64s': expected true or false", option->name, text);
    *(bool *)field = text[0] == 't';
    return 0;
  case OPTION_TEXT:
    if (!text[0] && strcmp(option->name, "prompt") != 0)
      return lade_error_set(error, -EINVAL, "--%s: it is empty; expected %s", option->name, option->metavar);
    *(const char **)field = text;
    return 0;
  case OPTION_FILES:
    if (!text[0])
      return lade_error_set(error, -EINVAL, "--%s: it is empty; expected %s", option->name, option->metavar);
    return option_list_push(field, text);
  case OPTION_COUNT:
  case OPTION_SEED:
    return integer_parse(option, text, error, field);
  case OPTION_PACE:
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
  if (state->origin > origin) { /* the command line has spoken; what is wrong is wrong all the same */
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

bool option_is_set(const struct options *options, const char *name)
{
  return options->states[option_index(option_find(options->verb, name, strlen(name)))].origin != ORIGIN_DEFAULT;
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

/* The option of @verb that @name was most probably to be: few letters away, or the beginning of it; NULL: none. */
static const struct option *option_near(enum verb_id verb, const char *name)
{
  const struct option *near = NULL;
  int least = 4;
  for (const struct option *option = option_table; option->help; option++) {
    if (!option->name || !(option->verbs & verb))
      continue;
    const int length = (int)strlen(option->name);
    const bool begins = length > 2 && strncmp(name, option->name, (size_t)length) == 0; /* --batch-size */
    const int distance = begins ? 3 : word_distance(name, option->name);
    if (distance < least && (begins || 2 * distance <= length)) {
      least = distance;
      near = option;
    }
  }
  return near;
}

/* @word as it was written, with its dashes. */
static int unknown_option(enum verb_id verb, const char *word, struct lade_error *error)
{
  const char *name = word + strspn(word, "-");
  const struct option *near = option_near(verb, name), *other = option_find(verb, name, strlen(name));
  if (other && !near)
    return lade_error_set(error, -EINVAL, "%.64s is no option of this verb; see `lade %s --help`", word,
                          verb_name(verb));
  if (near)
    return lade_error_set(error, -EINVAL, "there is no option %.64s; did you mean --%s?", word, near->name);
  return lade_error_set(error, -EINVAL, "there is no option %.64s; `lade %s --help` lists all", word,
                        verb_name(verb));
}

/* A word alone: the checkpoint of `lade sample DIR`, the trace of `lade replay FILE`. */
static int word_read(struct options *options, const char *word, struct lade_error *error)
{
  const char *name = options->verb == VERB_REPLAY ? "trace" : "checkpoint";
  const struct option *option = option_find(options->verb, name, strlen(name));
  if (options->verb == VERB_RUN)
    return lade_error_set(error, -EINVAL, "'%.64s' stands before --, behind which the command does: lade run -- %.64s",
                          word, word);
  if (!(option->verbs & options->verb) || option_is_set(options, name))
    return lade_error_set(error, -EINVAL, "'%.64s' belongs to no option; `lade %s --help` lists them", word,
                          verb_name(options->verb));
  return option_set(options, option, word, ORIGIN_COMMAND, 0, error);
}

/* Read the option at argv[*i] with its words and move *i past them. */
static int option_read(struct options *options, int argc, char **argv, int *i, struct lade_error *error)
{
  const char *word = strcmp(argv[*i], "-h") == 0 ? "--help" : argv[*i], *name = word + 2;
  const char *equals = strchr(word, '='), *value = equals ? equals + 1 : NULL;
  const size_t word_bytes = equals ? (size_t)(equals - word) : strlen(word);
  const struct option *option = option_find(options->verb, name, word_bytes - 2);
  (*i)++;
  if (!option || !((option->verbs | option->silent) & options->verb)) {
    char bare[80];
    snprintf(bare, sizeof(bare), "%.*s", (int)LADE_MIN(word_bytes, sizeof(bare) - 1), word);
    return unknown_option(options->verb, bare, error);
  }
  if (option->type == OPTION_FLAG)
    return option_set(options, option, value ? value : "true", ORIGIN_COMMAND, 0, error);
  if (!value && (*i >= argc || strncmp(argv[*i], "--", 2) == 0))
    return lade_error_set(error, -EINVAL, "--%s: expected %s after it", option->name, option->metavar);
  int status = option_set(options, option, value ? value : argv[(*i)++], ORIGIN_COMMAND, 0, error);
  while (!status && !value && option->type == OPTION_FILES && *i < argc && strncmp(argv[*i], "--", 2) != 0)
    status = option_set(options, option, argv[(*i)++], ORIGIN_COMMAND, 0, error);
  return status;
}

static int line_read(struct options *options, int argc, char **argv, struct lade_error *error)
{
  int status = 0;
  for (int i = 1; i < argc && !status;) {
    if (strncmp(argv[i], "--", 2) == 0 || strcmp(argv[i], "-h") == 0)
      status = option_read(options, argc, argv, &i, error);
    else if (argv[i][0] == '-' && argv[i][1])
      status = unknown_option(options->verb, argv[i], error);
    else
      status = word_read(options, argv[i++], error);
  }
  return status;
}

/* ---- all together ---- */

static int defaults_set(struct options *options, struct lade_error *error)
{
  int status = 0;
  for (const struct option *option = option_table; option->help && !status; option++) {
    if (option->preset)
      status = option_set(options, option, option->preset, ORIGIN_DEFAULT, 0, error);
  }
  return status;
}

/* "1, 2, 3, 4, 6, 12": the largest dozen divisors of @n in ascending order. */
static void divisors_write(int64_t n, char *text, size_t text_bytes)
{
  int64_t found[12];
  int n_found = 0;
  for (int64_t i = 1; i * i <= n && n_found < (int)LADE_COUNT(found); i++) {
    if (n % i == 0)
      found[n_found++] = n / i; /* the large ones first */
  }
  for (int64_t i = n_found ? n / found[n_found - 1] : 1; i >= 1 && n_found < (int)LADE_COUNT(found); i--) {
    if (n % i == 0 && i < found[n_found - 1])
      found[n_found++] = i;
  }
  size_t used = 0;
  text[0] = 0;
  for (int i = n_found - 1; i >= 0 && used < text_bytes; i--)
    used += (size_t)snprintf(text + used, text_bytes - used, "%lld%s", (long long)found[i], i ? ", " : "");
}

static int batch_check(const struct options *options, struct lade_error *error)
{
  int64_t batch = options->session.batch, micro_batch = options->session.micro_batch;
  char divisors[256];
  if (!micro_batch || batch % micro_batch == 0)
    return 0;
  divisors_write(batch, divisors, sizeof(divisors));
  return lade_error_set(error, -EINVAL, "--micro-batch %lld does not divide --batch %lld; these do: %s",
                        (long long)micro_batch, (long long)batch, divisors);
}

/* Two options of which the first means nothing without the second. */
static const char *const needs[][2] = {
    {"store-budget", "store"}, {"durable", "store"}, {"save-every", "save"}, {"keep", "save"},
    {"save-file", "save"}, {"mtbf", "save"}};

/* Two options that cannot both be given. */
static const char *const excludes[][3] = {
    {"resume", "init", "a checkpoint has parameters of its own"},
    {"valid", "valid-fraction", "the one is files, the other a part of --data"},
    {"max", "timeline", "a search has no one step to draw"},
    {"rank", "every-rank", "the one is for one rank, the other for all"},
    {"max", "every-rank", "a search looks at one program of each stage"}};

static int pairs_check(const struct options *options, struct lade_error *error)
{
  for (size_t i = 0; i < LADE_COUNT(needs); i++) {
    if (option_is_set(options, needs[i][0]) && !option_is_set(options, needs[i][1]))
      return lade_error_set(error, -EINVAL, "--%s means nothing without --%s", needs[i][0], needs[i][1]);
  }
  for (size_t i = 0; i < LADE_COUNT(excludes); i++) {
    if (option_is_set(options, excludes[i][0]) && option_is_set(options, excludes[i][1]))
      return lade_error_set(error, -EINVAL, "--%s and --%s exclude each other: %s", excludes[i][0], excludes[i][1],
                            excludes[i][2]);
  }
  return 0;
}

static int dry_check(const struct options *options, struct lade_error *error)
{
  static const char *const real[] = {"save", "resume", "init"};
  for (size_t i = 0; i < LADE_COUNT(real) && options->device == DEVICE_DRY; i++) {
    if (option_is_set(options, real[i]))
      return lade_error_set(error, -EINVAL, "--%s: a dry device holds no parameters; use --device host", real[i]);
  }
  return 0;
}

static int together_check(const struct options *options, struct lade_error *error)
{
  const struct lade_session_params *session = &options->session;
  bool needs_data = options->verb == VERB_TRAIN || options->verb == VERB_SWEEP;
  if (needs_data && options->data.n == 0 && options->device != DEVICE_DRY)
    return lade_error_set(error, -EINVAL, "--data FILE is missing: the text or tokens to train on");
  if (options->verb == VERB_SAMPLE && !options->checkpoint)
    return lade_error_set(error, -EINVAL, "which checkpoint? lade sample DIR, a directory that --save wrote");
  if (options->verb == VERB_REPLAY && !options->trace)
    return lade_error_set(error, -EINVAL, "which trace? lade replay FILE, a snapshot, a CSV or a lade-trace");
  if (option_is_set(options, "min-lr") && session->min_lr > session->lr)
    return lade_error_set(error, -EINVAL, "--min-lr %g is above --lr %g", session->min_lr, session->lr);
  if (options->save_every == PACE_AUTO && !option_is_set(options, "mtbf"))
    return lade_error_set(error, -EINVAL, "--save-every auto needs --mtbf: how often the job fails says how often to "
                          "save");
  int status = batch_check(options, error);
  if (!status)
    status = pairs_check(options, error);
  return status ? status : dry_check(options, error);
}

/* Hand what was read to the session's parameters. */
static void session_fill(struct options *options)
{
  struct lade_session_params *session = &options->session;
  session->struct_size = sizeof(*session);
  session->data = options->data.items;
  session->n_data = options->data.n;
  session->valid = options->valid.items;
  session->n_valid = options->valid.n;
  if (!option_is_set(options, "min-lr"))
    session->min_lr = session->lr / 10;
  session->is_dry = options->device == DEVICE_DRY;
  session->or_host = options->device == DEVICE_AUTO;
  session->is_gpu = session->or_host || options->device >= DEVICE_CUDA;
  session->gpu = LADE_MAX(options->device - DEVICE_CUDA, 0);
  session->updates_early = options->update == UPDATE_EARLY;
  session->has_host_budget = option_is_set(options, "host-budget");
  session->n_threads = (int)options->n_threads;
  session->n_node_ranks = (int)options->n_node_ranks;
  session->layout = (struct lade_layout_params){
      .tp = (int)options->tp, .pp = (int)options->pp, .dp = (int)options->dp, .shard = (int)options->shard,
      .rank = (int)options->rank, .zero = (int)options->zero, .is_sequence = options->is_sequence,
      .schedule = (enum lade_schedule)options->schedule, .virtual_stages = (int)options->virtual_stages,
      .grad_reduce = (enum lade_dtype)options->grad_reduce};
  session->residency_file = options->residency;
  for (const struct option_choice *recipe = residency_choices; recipe->text; recipe++) {
    if (strcmp(recipe->text, options->residency) == 0) {
      session->recipe = (enum lade_recipe)recipe->value;
      session->residency_file = NULL;
    }
  }
}

static void lists_reset(struct options *options)
{
  for (const struct option *option = option_table; option->help; option++) {
    if (option->type == OPTION_FILES)
      *(struct option_list *)field_of(options, option) = (struct option_list){0};
  }
}

int options_parse(enum verb_id verb, int argc, char **argv, struct options *options, struct lade_error *error)
{
  memset(options, 0, sizeof(*options));
  options->verb = verb;
  lists_reset(options);
  int status = defaults_set(options, error);
  if (!status)
    status = line_read(options, argc, argv, error);
  if (!status && options->has_help) {
    options_help(verb, stdout);
    return OPTIONS_ANSWERED;
  }
  if (!status && options->config)
    status = config_load(options, options->config, error);
  if (!status && options->has_print_config) {
    char *text = config_write(options, verb);
    fputs(text ? text : "", stdout);
    free(text);
    return text ? OPTIONS_ANSWERED : lade_error_set(error, -ENOMEM, "--print-config: out of memory");
  }
  if (!status)
    status = together_check(options, error);
  if (!status)
    session_fill(options);
  return status;
}

int options_read(enum verb_id verb, int argc, char **argv, struct options *options)
{
  struct lade_error error = {0};
  const int status = options_parse(verb, argc, argv, options, &error);
  if (status < 0)
    return exit_fail(verb_name(verb), status, &error);
  return status == OPTIONS_ANSWERED ? LADE_EXIT_DONE : OPTIONS_GO;
}

void options_finish(struct options *options)
{
  for (const struct option *option = option_table; option->help; option++) {
    if (option->type != OPTION_FILES)
      continue;
    struct option_list *list = field_of(options, option);
    LADE_ARRAY_FREE(list);
    LADE_ARRAY_FREE(&options->states[option_index(option)].texts);
  }
  free(options->config_text);
}
