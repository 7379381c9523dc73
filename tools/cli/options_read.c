/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read a command line: words to options, then check all options together.
 *
 * getopt and argp are not used. They support neither options that take several words (--data a b c) nor a hint at the
 * closest option name. Their abbreviations break scripts when a longer option is added. option_read below takes their
 * place.
 *
 * A word is applied twice at most. The command line is read first into its own states. Then the configuration file
 * fills the options that the command line did not set, so that the position of --config does not matter. A file that
 * --print-config or --save wrote names every default. A value there that equals the default counts as not given. An
 * option of the file gives way to an option of the command line that excludes it.
 */
#include "tools/cli/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "graph/experts.h"
#include "tools/cli/verbs.h"
#include "tools/job/save_interval.h"

#define UNIT_BYTES (64 << 10) /* a smaller budget needs a unit; the chunks of a device are larger */

/* Pairs of options: the first has no meaning without the second. The third text, if any, is the reason. */
static const char *const needs[][3] = {
    {"store-budget", "store"}, {"durable", "store"}, {"save-every", "save"}, {"keep", "save"},
    {"save-file", "save"}, {"mtbf", "save"}, {"svg", "frontier"}, {"search", "cluster"}, {"ranks", "cluster"},
    {"search", "ranks"}, {"top", "search"},
    {"any-precision", "search"}, {"explain", "cluster"}, {"export", "cluster"}, {"noise-scale", "explain"},
    {"cp", "cluster", ", which prices context parallel ranks by formula"},
    {"ep", "cluster", ", which prices expert parallel ranks by formula"}, {"fused-attention", "cluster"},
    {"eager", "cluster"}, {"fused-norms", "cluster"}, {"overlap-tensor", "cluster"},
    {"late-gathers", "cluster"}, {"software", "cluster"}};

/* Pairs of options that exclude each other. */
static const char *const excludes[][3] = {
    {"resume", "init", "a checkpoint has its own parameters"},
    {"valid", "valid-fraction", "--valid names files, --valid-fraction takes a part of --data"},
    {"max", "timeline", "a search has no single step to draw"},
    {"max", "graph-out", "a search plans several steps"},
    {"frontier", "graph-out", "a frontier plans several steps"},
    {"cluster", "graph-out", "a graph is of one rank"},
    {"rank", "every-rank", "--rank plans one rank, --every-rank all"},
    {"max", "every-rank", "a search plans one program of each stage"},
    {"frontier", "budget", "a frontier plans at budgets of its own"},
    {"frontier", "instructions", "a frontier is many plans"},
    {"frontier", "timeline", "a frontier has no single step to draw"},
    {"max", "frontier", "a search plans other sizes, a frontier other budgets"},
    {"rank", "frontier", "a frontier is of all ranks"},
    {"cluster", "machine", "a cluster describes its devices"},
    {"cluster", "max", "--search chooses among layouts"},
    {"cluster", "timeline", "a cluster's plan has no single program to draw"},
    {"cluster", "residency", "a cluster's plan keeps values by --recompute"},
    {"export", "json", "an export has its project's form"},
    {"explain", "json", "an explanation is text"},
    {"cluster", "rank", "a cluster's plan is of all ranks"},
    {"cluster", "every-rank", "a cluster's plan proves the stages that need most"},
    {"cluster", "store", "a cluster states its drives: store_per_node; --store-budget uses them"},
    {"cluster", "host-budget", "a cluster states its host memory: host_bytes_per_node"},
    {"cluster", "device", "a cluster's plan is proved and simulated, not run; --machine runs dry"},
    {"cluster", "frontier", "a cluster's plan has one budget"},
    {"cluster", "detail", "a cluster's plan has its own report; --explain adds reasons"},
    {"cluster", "optimizer-in-backward", "a cluster's plan updates after all gradients"}};

/* Return the option of @verb closest to @name: a few edits away, or one that starts with it; NULL: none. */
static const struct option *option_near(enum verb_id verb, const char *name)
{
  const struct option *near = NULL;
  int min = 4;
  for (const struct option *option = option_table; option->help; option++) {
    if (!option->name || !(option->verbs & verb))
      continue;
    const int length = (int)strlen(option->name), shorter = LADE_MIN(length, (int)strlen(name));
    const bool begins = length > 2 && strncmp(name, option->name, (size_t)length) == 0; /* --batch-size */
    const int distance = begins ? 3 : word_distance(name, option->name);
    if (distance < min && (begins || 2 * distance <= shorter)) {
      min = distance;
      near = option;
    }
  }
  return near;
}

/* Report that @verb has no option @word, which is quoted as written, with its dashes. */
static int unknown_option(enum verb_id verb, const char *word, struct lade_error *error)
{
  const char *name = word + strspn(word, "-");
  const struct option *near = option_near(verb, name), *other = option_find(verb, name, strlen(name));
  const struct option *successor = option_successor(verb, name, strlen(name));
  const char *absent = option_absence(verb, name);
  if (successor)
    return lade_error_set(error, -EINVAL, "there is no option %.64s any more; --%s replaces it", word, successor->name);
  if (absent)
    return lade_error_set(error, -EINVAL, "there is no option %.64s: %s", word, absent);
  if (other && (!near || strncmp(near->name, name, strlen(near->name)) != 0)) /* budgets is near budget */
    return lade_error_set(error, -EINVAL, "%.64s is not an option of this verb; `lade %s --help` lists those that are",
                          word, verb_name(verb));
  if (near)
    return lade_error_set(error, -EINVAL, "there is no option %.64s; did you mean --%s?", word, near->name);
  return lade_error_set(error, -EINVAL, "there is no option %.64s; `lade %s --help` lists all", word,
                        verb_name(verb));
}

/*
 * Read a word without dashes: the checkpoint of `lade sample DIR`, the trace of `lade replay FILE`, a text of
 * `lade data FILE...`.
 */
static int word_read(struct options *options, const char *word, struct lade_error *error)
{
  const char *name = options->verb == VERB_REPLAY ? "trace" : options->verb == VERB_DATA ? "texts" : "checkpoint";
  const struct option *option = option_find(options->verb, name, strlen(name));
  if (options->verb == VERB_RUN)
    return lade_error_set(error, -EINVAL, "'%.64s' is before --; the command follows after it: lade run -- %.64s",
                          word, word);
  if (!(option->verbs & options->verb) || (option->type != OPTION_FILES && option_is_set(options, name)))
    return lade_error_set(error, -EINVAL, "unexpected argument '%.64s'; `lade %s --help` lists the options", word,
                          verb_name(options->verb));
  return option_set(options, option, word, ORIGIN_COMMAND, 0, error);
}

/* Return the long name of a short option of @verb; else @word. */
static const char *word_expand(enum verb_id verb, const char *word)
{
  if (strcmp(word, "-h") == 0)
    return "--help";
  return verb == VERB_DATA && strcmp(word, "-o") == 0 ? "--output" : word;
}

/* Read the option at argv[*i] with its words and move *i past them. */
static int option_read(struct options *options, int argc, char **argv, int *i, struct lade_error *error)
{
  const char *word = word_expand(options->verb, argv[*i]), *name = word + 2;
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
  while (!status && !value && option->type == OPTION_FILES && *i < argc &&
         strncmp(word_expand(options->verb, argv[*i]), "--", 2) != 0)
    status = option_set(options, option, argv[(*i)++], ORIGIN_COMMAND, 0, error);
  return status;
}

static int line_read(struct options *options, int argc, char **argv, struct lade_error *error)
{
  int status = 0;
  for (int i = 1; i < argc && !status;) {
    if (strncmp(word_expand(options->verb, argv[i]), "--", 2) == 0)
      status = option_read(options, argc, argv, &i, error);
    else if (argv[i][0] == '-' && argv[i][1])
      status = unknown_option(options->verb, argv[i], error);
    else
      status = word_read(options, argv[i++], error);
  }
  return status;
}

static int defaults_set(struct options *options, struct lade_error *error)
{
  int status = 0;
  for (const struct option *option = option_table; option->help && !status; option++) {
    if (option->preset)
      status = option_set(options, option, option->preset, ORIGIN_DEFAULT, 0, error);
  }
  return status;
}

/* Write the twelve largest divisors of @n in ascending order: "1, 2, 3, 4, 6, 12". */
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

/*
 * Ask for a unit if @text is a number of bytes that no run fits in: "40" is more likely 40 GiB, or 40 % of @whole.
 * @whole is NULL for sizes without percentages.
 */
static int unit_check(const char *name, const char *text, const char *whole, struct lade_error *error)
{
  uint64_t bytes;
  if (!text || text[strspn(text, "0123456789.")] || lade_size_parse(text, &bytes) || !bytes || bytes >= UNIT_BYTES)
    return 0;
  if (!whole)
    return lade_error_set(error, -EINVAL, "--%s %s: a unit is missing: %sMiB or %sGiB; %sB for bytes", name, text, text,
                          text, text);
  return lade_error_set(error, -EINVAL, "--%s %s: a unit is missing: %sMiB, %sGiB, or %s%% of the %s; %sB for bytes",
                        name, text, text, text, text, whole, text);
}

/* Check the unit of option @name, if the verb has it. */
static int option_unit_check(const struct options *options, const char *name, const char *whole,
                             struct lade_error *error)
{
  const struct option *option = option_find(options->verb, name, strlen(name));
  return option ? unit_check(name, options->states[option_index(option)].text, whole, error) : 0;
}

/*
 * Check the units of --budget, of each of --budgets, and of the budgets of host and store. Sizes of graphs and of
 * traces may be small. A store of 0 bytes is none for a graph, and an error for a model, which leaves out --store.
 */
static int units_check(const struct options *options, struct lade_error *error)
{
  char word[24];
  int status = 0;
  if (options->graph || !(options->verb & (VERB_TRAIN | VERB_PLAN | VERB_RUN | VERB_SWEEP)))
    return 0;
  status = option_unit_check(options, "host-budget", NULL, error);
  if (!status)
    status = option_unit_check(options, "store-budget", NULL, error);
  if (!status && option_is_set(options, "store-budget") && !options->session.store_budget_bytes)
    status = lade_error_set(error, -EINVAL, "--store-budget 0: it must be at least 1 B; leave out --store for none");
  if (!status && options->verb != VERB_SWEEP)
    status = option_unit_check(options, "budget", options->verb == VERB_RUN ? "device" : "unconstrained peak", error);
  if (options->verb != VERB_SWEEP)
    return status;
  for (const char *at = options->budgets; *at && !status; at += *at == ',') {
    const int n = (int)strcspn(at, ",");
    snprintf(word, sizeof(word), "%.*s", n, at);
    status = n < (int)sizeof(word) ? unit_check("budgets", word, "unconstrained peak", error) : 0;
    at += n;
  }
  return status;
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

static size_t field_bytes(enum option_type type)
{
  static const size_t bytes[] = {
      [OPTION_FLAG] = sizeof(bool), [OPTION_TEXT] = sizeof(const char *), [OPTION_FILES] = sizeof(struct option_list),
      [OPTION_COUNT] = sizeof(int64_t), [OPTION_INTERVAL] = sizeof(int64_t), [OPTION_SEED] = sizeof(uint64_t),
      [OPTION_REAL] = sizeof(double), [OPTION_SIZE] = sizeof(uint64_t), [OPTION_BUDGET] = sizeof(struct lade_budget),
      [OPTION_DEVICE] = sizeof(int), [OPTION_CHOICE] = sizeof(int)};
  return bytes[type];
}

/* Reset @option to its default. */
static int option_reset(struct options *options, const struct option *option, struct lade_error *error)
{
  struct option_state *state = &options->states[option_index(option)];
  if (option->type == OPTION_FILES)
    LADE_ARRAY_FREE((struct option_list *)option_field(options, option));
  LADE_ARRAY_FREE(&state->texts);
  *state = (struct option_state){0};
  memset(option_field(options, option), 0, field_bytes(option->type));
  return option->preset ? option_set(options, option, option->preset, ORIGIN_DEFAULT, 0, error) : 0;
}

/* Reset @other to its default if the configuration file set it, and @given excludes it on the command line. */
static int option_overrule(struct options *options, const char *given, const char *other, struct lade_error *error)
{
  const struct option *option = option_find(options->verb, given, strlen(given));
  const struct option *loser = option_find(options->verb, other, strlen(other));
  const bool is_overruled = options->states[option_index(option)].origin == ORIGIN_COMMAND &&
                            option_is_given(options, option) &&
                            options->states[option_index(loser)].origin == ORIGIN_CONFIG;
  return is_overruled ? option_reset(options, loser, error) : 0;
}

/* Let the options of models, and --graph, give way to each other. */
static int graph_overrule(struct options *options, struct lade_error *error)
{
  int status = 0;
  for (const struct option *option = option_table; option->help && !status; option++) {
    if (!option->name || option->subject != OF_MODEL || !((option->verbs | option->silent) & options->verb))
      continue;
    status = option_overrule(options, "graph", option->name, error);
    if (!status)
      status = option_overrule(options, option->name, "graph", error);
  }
  return status;
}

static int config_overrule(struct options *options, struct lade_error *error)
{
  int status = options->verb == VERB_PLAN ? graph_overrule(options, error) : 0;
  for (size_t i = 0; i < LADE_COUNT(excludes) && !status; i++) {
    status = option_overrule(options, excludes[i][0], excludes[i][1], error);
    if (!status)
      status = option_overrule(options, excludes[i][1], excludes[i][0], error);
  }
  return status;
}

/* True if --model is a mixture of experts, which is planned as a graph. */
static bool is_experts(const struct options *options)
{
  struct lade_experts model;
  const int status = lade_experts_find(options->session.model, &model, NULL);
  return status != -ENOENT; /* an error is reported by the verb */
}

/* Check that no option of models is given with --graph, and none of graphs without a graph. */
static int subjects_check(const struct options *options, struct lade_error *error)
{
  for (const struct option *option = option_table; option->help && options->verb == VERB_PLAN; option++) {
    const bool is_given = option->name && ((option->verbs | option->silent) & VERB_PLAN) &&
                          option_is_given(options, option);
    if (is_given && options->graph && option->subject == OF_MODEL)
      return lade_error_set(error, -EINVAL, "--graph and --%s exclude each other: a graph comes with ops, sizes and "
                            "times of its own", option->name);
    if (is_given && !options->graph && option->subject == OF_GRAPH && !is_experts(options))
      return lade_error_set(error, -EINVAL, "--%s needs --graph", option->name);
  }
  return 0;
}

static int pairs_check(const struct options *options, struct lade_error *error)
{
  for (size_t i = 0; i < LADE_COUNT(needs); i++) {
    if ((options->graph || options->cluster) && strcmp(needs[i][0], "store-budget") == 0)
      continue; /* a plan of a graph or on a cluster takes no directory */
    if (option_is_set(options, needs[i][0]) && !option_is_set(options, needs[i][1]))
      return lade_error_set(error, -EINVAL, "--%s needs --%s%s", needs[i][0], needs[i][1],
                            needs[i][2] ? needs[i][2] : "");
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
    return lade_error_set(error, -EINVAL, "--data FILE is missing: text or tokens to train on");
  if (options->verb == VERB_SAMPLE && !options->checkpoint)
    return lade_error_set(error, -EINVAL, "the checkpoint is missing: lade sample DIR, a directory that --save wrote");
  if (options->verb == VERB_REPLAY && !options->trace)
    return lade_error_set(error, -EINVAL, "the trace is missing: lade replay FILE, a snapshot, a CSV or a lade-trace");
  if (option_is_set(options, "min-lr") && session->min_lr > session->lr)
    return lade_error_set(error, -EINVAL, "--min-lr %g is above --lr %g", session->min_lr, session->lr);
  if (needs_data && option_is_set(options, "separator") && !session->mask_documents)
    return lade_error_set(error, -EINVAL, "--separator needs --mask-documents");
  if (options->save_every == SAVE_INTERVAL_AUTO && !option_is_set(options, "mtbf"))
    return lade_error_set(error, -EINVAL, "--save-every auto needs --mtbf, which gives the interval");
  int status = subjects_check(options, error);
  if (!status)
    status = units_check(options, error);
  if (!status)
    status = batch_check(options, error);
  if (!status)
    status = pairs_check(options, error);
  return status ? status : dry_check(options, error);
}

/* Copy the parsed options into the session's parameters. */
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
  if (!option_is_set(options, "separator"))
    session->separator = -1;
  session->is_dry = options->device == DEVICE_DRY;
  session->or_host = options->device == DEVICE_AUTO;
  session->is_gpu = session->or_host || options->device >= DEVICE_CUDA;
  session->gpu = LADE_MAX(options->device - DEVICE_CUDA, 0);
  session->has_host_budget = option_is_set(options, "host-budget");
  session->n_threads = (int)options->n_threads;
  session->n_node_ranks = (int)options->n_node_ranks;
  session->layout = (struct lade_layout_params){
      .tp = (int)options->tp, .pp = (int)options->pp, .dp = (int)options->dp, .shard = (int)options->shard,
      .rank = (int)options->rank, .zero = (int)options->zero, .is_sequence = options->is_sequence,
      .schedule = (enum lade_schedule)options->schedule, .virtual_stages = (int)options->virtual_stages,
      .grad_reduce = (enum lade_dtype)options->grad_reduce};
}

static void lists_reset(struct options *options)
{
  for (const struct option *option = option_table; option->help; option++) {
    if (option->type == OPTION_FILES)
      *(struct option_list *)option_field(options, option) = (struct option_list){0};
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
  if (!status && options->config)
    status = config_overrule(options, error);
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
