/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade sweep`: the same training run at several budgets and in several layouts, and the cost of each.
 *
 * Each run is a process of its own: this program as `lade train --json`. If its layout has several ranks, it is a job
 * of `lade launch`. Its memory is therefore measured from a fresh start, and no run warms caches for the next. With
 * --repeat the runs come in rounds, so that a busy minute does not fall on one budget alone. Runs follow one another
 * because they share cores. A budget that does not fit and a layout that is refused are lines of the table, and the
 * others still run; any other failure ends the sweep. The numbers are proved by equal digests: all runs of a layout end
 * with the same two.
 *
 * With --device dry and layouts of several ranks every trial is planned, by `lade plan`: no rank is started, so layouts
 * of any size and of described machines can be compared.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/base.h"
#include "tools/cli/options.h"
#include "tools/cli/signals.h"
#include "tools/cli/terminal.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

#define TRIALS_MAX 512 /* runs of one sweep */
#define SIZES_MAX 8 /* of one list */
#define LABEL_BYTES 64

/* The sizes of a layout, in the order of options' sweep_sizes. */
static const char *const size_names[SWEEP_N_SIZES] = {"tp", "pp", "dp", "zero"};
static const int size_defaults[SWEEP_N_SIZES] = {1, 1, 1, 0};

struct budget_trial {
  const char *budget;
  int sizes[SWEEP_N_SIZES], round;
  char label[LABEL_BYTES]; /* "60%", or "60% dp2 zero1" */
  int code;        /* exit code of its run; -1: it has not run */
  bool is_refused; /* its layout was refused before, in a run or a plan of another budget or round, so it did not run */
  json_t *summary; /* NULL: none */
};

struct budget_sweep {
  struct options options;
  char *list; /* of budgets, cut at its commas */
  struct budget_trial trials[TRIALS_MAX];
  int n, n_distinct; /* trials; those of one round, which are the first */
  bool is_planned;   /* no trial runs */
  struct lade_error error;
};

/* ---- commands ---- */

static int ranks_of(const struct budget_trial *trial)
{
  return trial->sizes[0] * trial->sizes[1] * trial->sizes[2];
}

/* Read the list @text of sizes @name. */
static int sizes_parse(const char *name, const char *text, int sizes[SIZES_MAX], int *ret_n, struct lade_error *error)
{
  char *end;
  int n = 0;
  for (const char *at = text; n < SIZES_MAX; at = end + 1) {
    const long size = strtol(at, &end, 10);
    const bool is_zero = strcmp(name, "zero") == 0;
    if (end == at || (*end && *end != ',') || size < (is_zero ? 0 : 1) || size > (is_zero ? 3 : 4096))
      break;
    sizes[n++] = (int)size;
    if (!*end) {
      *ret_n = n;
      return 0;
    }
  }
  return lade_error_set(error, -EINVAL, "--%s '%.64s': expected at most %d %s, separated by commas", name, text,
                        SIZES_MAX,
                        strcmp(name, "zero") == 0 ? "stages from 0 to 3" : "numbers of ranks from 1 to 4096");
}

static int trial_add(struct budget_sweep *sweep, const char *budget, const int sizes[SWEEP_N_SIZES])
{
  struct budget_trial trial = {.budget = budget, .code = -1};
  if (sweep->n == TRIALS_MAX)
    return lade_error_set(&sweep->error, -EINVAL, "more than %d runs", TRIALS_MAX);
  memcpy(trial.sizes, sizes, sizeof(trial.sizes));
  int used = snprintf(trial.label, sizeof(trial.label), "%s", budget);
  for (int i = 0; i < SWEEP_N_SIZES; i++) {
    if (sizes[i] != size_defaults[i] && used < LABEL_BYTES)
      used += snprintf(trial.label + used, sizeof(trial.label) - (size_t)used, " %s%d", size_names[i], sizes[i]);
  }
  sweep->trials[sweep->n++] = trial;
  return 0;
}

/* Add the runs of all layouts at @budget. */
static int layouts_add(struct budget_sweep *sweep, const char *budget)
{
  int lists[SWEEP_N_SIZES][SIZES_MAX], n[SWEEP_N_SIZES], n_all = 1, status = 0;
  for (int i = 0; i < SWEEP_N_SIZES && !status; i++) {
    const char *text = sweep->options.sweep_sizes[i];
    lists[i][0] = size_defaults[i];
    n[i] = 1;
    status = text ? sizes_parse(size_names[i], text, lists[i], &n[i], &sweep->error) : 0;
    n_all *= n[i];
  }
  for (int k = 0; k < n_all && !status; k++) {
    int sizes[SWEEP_N_SIZES], rest = k;
    for (int i = SWEEP_N_SIZES - 1; i >= 0; i--) {
      sizes[i] = lists[i][rest % n[i]];
      rest /= n[i];
    }
    const bool is_shard = sizes[3] > 0 && sizes[2] == 1; /* nothing is sharded over one replica */
    status = is_shard && n_all > 1 ? 0 : trial_add(sweep, budget, sizes);
  }
  return status;
}

/* List the runs: a round of all budgets and layouts, then the same as often as --repeat says. */
static int trials_list(struct budget_sweep *sweep)
{
  struct lade_budget budget;
  int status = 0;
  sweep->list = strdup(sweep->options.budgets);
  if (!sweep->list)
    return -ENOMEM;
  char *rest = sweep->list;
  for (char *word; (word = strsep(&rest, ",")) && !status;) {
    word += strspn(word, " "); /* as before numbers of the other lists, which strtol skips */
    status = budget_parse(word, &budget, &sweep->error);
    if (!status)
      status = layouts_add(sweep, word);
  }
  sweep->n_distinct = sweep->n;
  for (int round = 1; round < sweep->options.n_repeats && !status; round++) {
    for (int i = 0; i < sweep->n_distinct && !status; i++) {
      status = trial_add(sweep, sweep->trials[i].budget, sweep->trials[i].sizes);
      sweep->trials[sweep->n - 1].round = round;
    }
  }
  for (int i = 0; i < sweep->n; i++)
    sweep->is_planned = sweep->is_planned || (sweep->options.device == DEVICE_DRY && ranks_of(&sweep->trials[i]) > 1);
  if (!status && sweep->is_planned && (sweep->options.log || sweep->n > sweep->n_distinct))
    status = lade_error_set(&sweep->error, -EINVAL, "--%s: --device dry plans layouts of several ranks, and runs none",
                            sweep->options.log ? "log" : "repeat");
  return status;
}

/* Return the number of trials like @trial up to @trial, itself included. */
static int repetition_of(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  int n = 1;
  for (const struct budget_trial *other = sweep->trials; other < trial; other++)
    n += strcmp(other->label, trial->label) == 0;
  return n;
}

/*
 * Append "--log=FILE.60%" and the like: each output gets the label appended, and a number if that one ran before.
 */
static int outputs_push(const struct budget_sweep *sweep, const struct budget_trial *trial,
                        struct option_list *arguments)
{
  const char *const names[] = {"log", "save", "timeline"};
  const char *const values[] = {sweep->options.log, sweep->options.save, sweep->options.timeline};
  const int repetition = repetition_of(sweep, trial);
  char number[16] = "";
  int status = 0;
  char name[LABEL_BYTES];
  snprintf(name, sizeof(name), "%s", trial->label);
  for (char *at = name; *at; at++)
    *at = *at == ' ' ? '-' : *at;
  if (repetition > 1)
    snprintf(number, sizeof(number), ".%d", repetition);
  for (size_t i = 0; i < LADE_COUNT(names) && !status; i++) {
    char *argument = NULL;
    if (!values[i])
      continue;
    if (asprintf(&argument, "--%s=%s.%s%s", names[i], values[i], name, number) < 0)
      return -ENOMEM;
    status = option_list_push(arguments, argument);
    if (status)
      free(argument);
  }
  return status;
}

static int word_push(struct option_list *arguments, const char *format, const char *value)
{
  char *argument = NULL;
  if (asprintf(&argument, format, value) < 0)
    return -ENOMEM;
  int status = option_list_push(arguments, argument);
  if (status)
    free(argument);
  return status;
}

static int launch_push(struct option_list *arguments, int n_ranks)
{
  char number[16];
  snprintf(number, sizeof(number), "%d", n_ranks);
  int status = word_push(arguments, "%s", "launch");
  if (!status)
    status = word_push(arguments, "%s", "-n");
  if (!status)
    status = word_push(arguments, "%s", number);
  return status ? status : word_push(arguments, "%s", "--");
}

static int size_push(struct option_list *arguments, const char *name, int size, int otherwise)
{
  char word[32];
  if (size == otherwise)
    return 0;
  snprintf(word, sizeof(word), "--%s=%d", name, size);
  return word_push(arguments, "%s", word);
}

/* Append the verb of @trial's process. */
static int verb_push(const struct budget_sweep *sweep, const struct budget_trial *trial, struct option_list *arguments)
{
  if (sweep->is_planned)
    return word_push(arguments, "%s", "plan");
  int status = ranks_of(trial) > 1 ? launch_push(arguments, ranks_of(trial)) : 0;
  return status ? status : word_push(arguments, "%s", "train");
}

/* Make argv of a run, with its NULL. */
static int arguments_make(const struct budget_sweep *sweep, const struct budget_trial *trial,
                          struct option_list *ret_arguments)
{
  static const char *const without[] = {"budgets", "repeat", "tp", "pp", "dp", "zero", "json", "quiet", "log", "save",
                                        "timeline", NULL};
  int status = word_push(ret_arguments, "%s", "lade");
  if (!status)
    status = verb_push(sweep, trial, ret_arguments);
  for (int i = 0; i < SWEEP_N_SIZES && !status; i++)
    status = size_push(ret_arguments, size_names[i], trial->sizes[i], size_defaults[i]);
  if (!status)
    status = options_arguments(&sweep->options, VERB_SWEEP, without, ret_arguments);
  if (!status)
    status = outputs_push(sweep, trial, ret_arguments);
  if (!status)
    status = word_push(ret_arguments, "--budget=%s", trial->budget);
  if (!status)
    status = word_push(ret_arguments, "%s", "--json");
  if (!status && !sweep->is_planned && (sweep->options.is_quiet || !terminal_is(stderr)))
    status = word_push(ret_arguments, "%s", "--quiet"); /* progress of each run is useless in a file */
  return status ? status : option_list_push(ret_arguments, NULL);
}

/* ---- runs ---- */

/* Read all of @fd as a text, which the caller frees. NULL without memory. */
static char *output_read(int fd)
{
  char *text = NULL, piece[4096];
  size_t n_bytes = 0;
  FILE *file = open_memstream(&text, &n_bytes);
  for (ssize_t n = 1; file && n;) {
    n = read(fd, piece, sizeof(piece));
    if (n < 0 && errno != EINTR)
      break;
    if (n > 0)
      fwrite(piece, 1, (size_t)n, file);
  }
  if (file && fclose(file)) {
    free(text);
    text = NULL;
  }
  return text;
}

static int child_wait(pid_t child)
{
  int state = 0;
  while (waitpid(child, &state, 0) < 0) {
    if (errno != EINTR)
      return LADE_EXIT_FAILED;
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* Execute @argv in the child, with async-signal-safe calls only. */
static void child_exec(int output, char *const *argv)
{
  if (dup2(output, STDOUT_FILENO) >= 0)
    execv("/proc/self/exe", argv);
  static const char line[] = "lade sweep: this program could not start itself through /proc/self/exe\n";
  ssize_t ignored = write(STDERR_FILENO, line, sizeof(line) - 1);
  (void)ignored; /* the exit code says it as well */
  _exit(LADE_EXIT_MISSING);
}

static int trial_run(struct budget_sweep *sweep, struct budget_trial *trial)
{
  int ends[2];
  struct option_list arguments = {0};
  int status = arguments_make(sweep, trial, &arguments);
  if (!status && pipe2(ends, O_CLOEXEC))
    status = -errno;
  if (status) {
    option_list_free_items(&arguments);
    return status;
  }
  pid_t child = fork();
  const int refusal = errno;
  if (child == 0)
    child_exec(ends[1], (char *const *)(uintptr_t)arguments.items);
  close(ends[1]);
  signals_forward(child);
  char *text = child > 0 ? output_read(ends[0]) : NULL;
  close(ends[0]);
  trial->code = child > 0 ? child_wait(child) : LADE_EXIT_FAILED;
  signals_forward(0);
  trial->summary = trial->code == LADE_EXIT_DONE && text ? json_loads(text, 0, NULL) : NULL;
  free(text);
  option_list_free_items(&arguments);
  if (child < 0)
    return lade_error_set(&sweep->error, -EAGAIN, "cannot start a process for budget %s: %s", trial->label,
                          strerror(refusal));
  return 0;
}

/* ---- results ---- */

static uint64_t bytes_of(const struct budget_trial *trial, const char *name)
{
  return (uint64_t)json_integer_value(json_object_get(trial->summary, name));
}

static double number_of(const struct budget_trial *trial, const char *name)
{
  return json_number_value(json_object_get(trial->summary, name));
}

static const char *text_of(const struct budget_trial *trial, const char *name)
{
  const char *text = json_string_value(json_object_get(trial->summary, name));
  return text ? text : "-";
}

/* Return the first completed run, the reference for the others; NULL: none yet. */
static const struct budget_trial *first_trial(const struct budget_sweep *sweep)
{
  for (int i = 0; i < sweep->n; i++) {
    if (sweep->trials[i].summary)
      return &sweep->trials[i];
  }
  return NULL;
}

/* Return the first completed run of @trial's layout, whose numbers all of that layout have. */
static const struct budget_trial *first_alike(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  for (int i = 0; i < sweep->n; i++) {
    if (sweep->trials[i].summary && memcmp(sweep->trials[i].sizes, trial->sizes, sizeof(trial->sizes)) == 0)
      return &sweep->trials[i];
  }
  return NULL;
}

struct step_spread {
  double median, min, max; /* seconds, over the rounds that have completed; of a plan, as predicted */
};

static int double_compare(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Return the spread of the steps of all runs like @trial, zeroes if none has completed. */
static struct step_spread steps_find(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  const char *name = sweep->is_planned ? "predicted_step_seconds" : "measured_step_seconds";
  double seconds[TRIALS_MAX];
  int n = 0;
  for (int i = 0; i < sweep->n; i++) {
    const struct budget_trial *other = &sweep->trials[i];
    if (other->summary && strcmp(other->label, trial->label) == 0)
      seconds[n++] = LADE_MAX(number_of(other, name), 1e-9);
  }
  if (n == 0)
    return (struct step_spread){0};
  qsort(seconds, (size_t)n, sizeof(*seconds), double_compare);
  return (struct step_spread){(seconds[(n - 1) / 2] + seconds[n / 2]) / 2, seconds[0], seconds[n - 1]};
}

static double tokens_of(const struct budget_trial *trial)
{
  return number_of(trial, "batch") * number_of(trial, "seq");
}

/* Return the speed of @trial, in per cent of the first's. */
static double speed_percent(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  const struct budget_trial *first = first_trial(sweep);
  return 100 * steps_find(sweep, first).median / steps_find(sweep, trial).median;
}

static bool has_same_digests(const struct budget_trial *a, const struct budget_trial *b)
{
  return strcmp(text_of(a, "loss_digest"), text_of(b, "loss_digest")) == 0 &&
         strcmp(text_of(a, "params_digest"), text_of(b, "params_digest")) == 0;
}

/* Return the failure of a run without a summary, in words. */
static const char *failure_of(const struct budget_trial *trial)
{
  if (trial->code == LADE_EXIT_DOES_NOT_FIT)
    return "does not fit";
  if (trial->code == LADE_EXIT_USAGE)
    return "refused";
  return trial->code > 128 ? "stopped" : "failed";
}

/* Print one line when a run has finished. */
static void line_print(const struct budget_sweep *sweep, const struct budget_trial *trial, FILE *file)
{
  char planned[32], measured[32];
  if (!trial->summary) {
    fprintf(file, "budget %-6s %s\n", trial->label, failure_of(trial));
    return;
  }
  if (sweep->is_planned) {
    fprintf(file, "budget %-6s peak %s stated; %.0f tokens/s (%.0f %%)\n", trial->label,
            lade_size_format(bytes_of(trial, "planned_peak_bytes"), planned, sizeof(planned)),
            number_of(trial, "tokens_per_second"), speed_percent(sweep, trial));
    return;
  }
  bool is_same = has_same_digests(trial, first_alike(sweep, trial));
  fprintf(file, "budget %-6s peak %s stated, %s measured; %.0f tokens/s (%.0f %%); losses %s%s%s\n", trial->label,
          lade_size_format(bytes_of(trial, "planned_peak_bytes"), planned, sizeof(planned)),
          lade_size_format(bytes_of(trial, "measured_peak_bytes"), measured, sizeof(measured)),
          number_of(trial, "tokens_per_second"), speed_percent(sweep, trial),
          terminal_color(file, is_same ? COLOR_GOOD : COLOR_BAD), text_of(trial, "loss_digest"),
          terminal_color(file, COLOR_END));
  fflush(file);
}

/* Return the width of the first column: that of the longest label. */
static int label_columns(const struct budget_sweep *sweep)
{
  size_t max = 8;
  for (int i = 0; i < sweep->n_distinct; i++)
    max = LADE_MAX(max, strlen(sweep->trials[i].label));
  return (int)max;
}

static void heading_print(const struct budget_sweep *sweep)
{
  printf("%-*s %10s", label_columns(sweep), "budget", "peak");
  if (!sweep->is_planned)
    printf(" %10s", "measured");
  printf(" %10s %10s", "host", "store");
  if (!sweep->is_planned)
    printf(" %10s", "resident");
  printf(" %11s", "step said");
  if (!sweep->is_planned)
    printf(" %11s", "step took");
  printf(" %9s %6s%s%s\n", "tokens/s", "speed", sweep->options.n_repeats > 1 ? "   spread" : "",
         sweep->is_planned ? "" : " losses");
}

/* Print the field @name of @trial in a column. */
static void bytes_print(const struct budget_trial *trial, const char *name)
{
  char size[32];
  printf(" %10s", lade_size_format(bytes_of(trial, name), size, sizeof(size)));
}

static void row_print(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  char said[32], took[32];
  const struct step_spread steps = steps_find(sweep, trial);
  if (!trial->summary) {
    if (trial->code >= 0)
      printf("%-*s %s\n", label_columns(sweep), trial->label, failure_of(trial));
    return;
  }
  printf("%-*s", label_columns(sweep), trial->label);
  bytes_print(trial, "planned_peak_bytes");
  if (!sweep->is_planned)
    bytes_print(trial, "measured_peak_bytes");
  bytes_print(trial, "host_bytes");
  bytes_print(trial, "store_bytes");
  if (!sweep->is_planned)
    bytes_print(trial, "resident_peak_bytes");
  printf(" %11s", seconds_format(number_of(trial, "predicted_step_seconds"), said, sizeof(said)));
  if (!sweep->is_planned)
    printf(" %11s", seconds_format(steps.median, took, sizeof(took)));
  printf(" %9.0f %4.0f %%", tokens_of(trial) / steps.median, speed_percent(sweep, trial));
  if (sweep->options.n_repeats > 1)
    printf(" %6.1f %%", 100 * (steps.max - steps.min) / steps.median);
  if (!sweep->is_planned)
    printf(" %s", text_of(trial, "loss_digest"));
  putchar('\n');
}

static void table_print(const struct budget_sweep *sweep)
{
  heading_print(sweep);
  for (int i = 0; i < sweep->n_distinct; i++)
    if (!sweep->trials[i].is_refused)
      row_print(sweep, &sweep->trials[i]);
}

/* Print the command to try next: the same run with --budget=min. pre: trials have run. */
static void next_print(const struct budget_sweep *sweep)
{
  static const char *const without[] = {"budgets", "repeat", "tp", "pp", "dp", "zero", "json", "quiet", "log", "save",
                                        "timeline", NULL};
  struct option_list arguments = {0};
  if (options_arguments(&sweep->options, VERB_SWEEP, without, &arguments) == 0) {
    printf("\nNext, at the smallest budget:\n  %s train", program_invocation_name);
    for (int i = 0; i < arguments.n; i++)
      word_print(stdout, arguments.items[i]);
    puts(" --budget=min --save=run");
  }
  option_list_free_items(&arguments);
}

/* Return the median step of each budget and layout, with its spread over the rounds. */
static json_t *medians_json(const struct budget_sweep *sweep)
{
  json_t *medians = json_array();
  for (int i = 0; i < sweep->n_distinct; i++) {
    const struct budget_trial *trial = &sweep->trials[i];
    if (!trial->summary)
      continue;
    const struct step_spread steps = steps_find(sweep, trial);
    json_array_append_new(medians, json_pack("{s:s, s:s, s:o, s:o, s:o}", "budget", trial->budget, "label",
                                             trial->label, "step_seconds", json_number(steps.median),
                                             "min_step_seconds", json_number(steps.min), "max_step_seconds",
                                             json_number(steps.max)));
  }
  return medians;
}

static int results_dump(const struct budget_sweep *sweep)
{
  json_t *runs = json_array();
  for (int i = 0; i < sweep->n; i++) {
    const struct budget_trial *trial = &sweep->trials[i];
    json_t *run = trial->summary ? json_incref(trial->summary) : json_object();
    json_object_set_new(run, "budget", json_string(trial->budget));
    if (sweep->options.n_repeats > 1)
      json_object_set_new(run, "round", json_integer(trial->round));
    json_object_set_new(run, "exit_code", json_integer(trial->code));
    json_array_append_new(runs, run);
  }
  return json_print(json_pack("{s:i, s:o, s:o}", "schema_version", REPORT_SCHEMA_VERSION, "runs", runs, "medians",
                              medians_json(sweep)));
}

/* ---- the verb ---- */

/* True if the layout of @trial was refused in an earlier trial. */
static bool layout_is_refused(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  for (const struct budget_trial *other = sweep->trials; other < trial; other++)
    if (other->code == LADE_EXIT_USAGE && memcmp(other->sizes, trial->sizes, sizeof(trial->sizes)) == 0)
      return true;
  return false;
}

/* Run all trials; *ret_code is the sweep's exit code. */
static int trials_run(struct budget_sweep *sweep, FILE *lines, int *ret_code)
{
  *ret_code = LADE_EXIT_DONE;
  for (int i = 0; i < sweep->n && !signals_get(); i++) {
    struct budget_trial *trial = &sweep->trials[i];
    if (layout_is_refused(sweep, trial)) {
      trial->is_refused = true;
      trial->code = LADE_EXIT_USAGE;
      continue;
    }
    int status = trial_run(sweep, trial);
    if (status)
      return status;
    line_print(sweep, trial, lines);
    if (trial->code && !*ret_code)
      *ret_code = trial->code;
    const bool is_refused_layout = trial->code == LADE_EXIT_USAGE && ranks_of(trial) > 1;
    if (trial->code && trial->code != LADE_EXIT_DOES_NOT_FIT && !is_refused_layout)
      break;
  }
  for (int i = 0; i < sweep->n && !sweep->is_planned; i++) {
    if (sweep->trials[i].summary && !has_same_digests(&sweep->trials[i], first_alike(sweep, &sweep->trials[i])))
      *ret_code = LADE_EXIT_NUMBERS_DIFFER;
  }
  return 0;
}

static int results_print(const struct budget_sweep *sweep, int code)
{
  if (sweep->options.is_json)
    return results_dump(sweep);
  if (!first_trial(sweep))
    return 0;
  if (sweep->is_planned) {
    printf("\nplans of %s, %s\n", text_of(first_trial(sweep), "model"),
           json_is_true(json_object_get(first_trial(sweep)->summary, "is_measured")) ? "at measured rates"
                                                                                       : "data sheet, not measured");
    table_print(sweep);
    return 0;
  }
  printf("\n%lld steps of %s, %s: ", (long long)bytes_of(first_trial(sweep), "steps"),
         text_of(first_trial(sweep), "model"), text_of(first_trial(sweep), "dtype"));
  const bool is_one = memcmp(first_trial(sweep)->sizes, sweep->trials[sweep->n_distinct - 1].sizes,
                             sizeof(first_trial(sweep)->sizes)) == 0;
  puts(code == LADE_EXIT_NUMBERS_DIFFER ? "the digests DIFFER"
       : is_one                         ? "all losses and parameters have the same bits"
                                        : "runs of one layout have the same bits");
  table_print(sweep);
  if (code == LADE_EXIT_DONE)
    next_print(sweep);
  return 0;
}

static int sweep_run(struct budget_sweep *sweep)
{
  /* With --json stdout is one JSON value, and the line of each run goes to stderr. */
  FILE *lines = sweep->options.is_json ? stderr : stdout;
  int code = 0, status = trials_list(sweep);
  if (!status)
    status = trials_run(sweep, lines, &code);
  if (!status)
    status = results_print(sweep, code);
  if (status)
    return exit_fail("sweep", status, &sweep->error);
  if (code == LADE_EXIT_NUMBERS_DIFFER)
    fprintf(stderr, "lade sweep: the runs computed different numbers; the same batch, kernels and seed should not\n");
  return signals_get() ? 128 + signals_get() : code;
}

int sweep_main(int argc, char **argv)
{
  struct budget_sweep sweep = {.n = 0};
  int code = options_read(VERB_SWEEP, argc, argv, &sweep.options);
  if (code == OPTIONS_GO) {
    signals_init();
    code = sweep_run(&sweep);
  }
  for (int i = 0; i < sweep.n; i++)
    json_decref(sweep.trials[i].summary);
  free(sweep.list);
  options_finish(&sweep.options);
  return code;
}
