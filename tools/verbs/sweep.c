/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade sweep`: the same training run at several budgets, and the cost of each.
 *
 * Each budget is a process of its own, this very program as `lade train --json`. Its memory is therefore measured from
 * a fresh start, and no run warms caches for the next. Runs follow one another because they share cores. A budget that
 * does not fit is a line of the table, and the other budgets still run; any other failure ends the sweep. The numbers
 * are proved by equal digests: all runs end with the same two.
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

#define MAX_BUDGETS 64
#define MAX_OUTPUT_BYTES (1 << 20)

struct budget_trial {
  const char *budget;
  int code;        /* exit code of its run; -1: it has not run */
  json_t *summary; /* NULL: none */
};

struct budget_sweep {
  struct options options;
  char *list; /* of budgets, cut at its commas */
  struct budget_trial trials[MAX_BUDGETS];
  int n;
  struct lade_error error;
};

/* ---- commands ---- */

static int budgets_parse(struct budget_sweep *sweep)
{
  struct lade_budget budget;
  sweep->list = strdup(sweep->options.budgets);
  if (!sweep->list)
    return -ENOMEM;
  char *rest = sweep->list;
  for (char *word; (word = strsep(&rest, ","));) {
    int status = budget_parse(word, &budget, &sweep->error);
    if (status)
      return status;
    if (sweep->n == MAX_BUDGETS)
      return lade_error_set(&sweep->error, -EINVAL, "--budgets: more than %d", MAX_BUDGETS);
    sweep->trials[sweep->n++] = (struct budget_trial){.budget = word, .code = -1};
  }
  return 0;
}

/* Return the number of trials of @trial's budget up to @trial, itself included. */
static int repetition_of(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  int n = 1;
  for (const struct budget_trial *other = sweep->trials; other < trial; other++)
    n += strcmp(other->budget, trial->budget) == 0;
  return n;
}

/*
 * Append "--log=FILE.60%" and the like: each output gets the budget appended, and a number if that budget ran before.
 */
static int outputs_push(const struct budget_sweep *sweep, const struct budget_trial *trial,
                        struct option_list *arguments)
{
  const char *const names[] = {"log", "save", "timeline"};
  const char *const values[] = {sweep->options.log, sweep->options.save, sweep->options.timeline};
  const int repetition = repetition_of(sweep, trial);
  char number[16] = "";
  int status = 0;
  if (repetition > 1)
    snprintf(number, sizeof(number), ".%d", repetition);
  for (size_t i = 0; i < LADE_COUNT(names) && !status; i++) {
    char *argument = NULL;
    if (!values[i])
      continue;
    if (asprintf(&argument, "--%s=%s.%s%s", names[i], values[i], trial->budget, number) < 0)
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

/* Make argv of a run, with its NULL. */
static int arguments_make(const struct budget_sweep *sweep, const struct budget_trial *trial,
                          struct option_list *ret_arguments)
{
  static const char *const without[] = {"budgets", "json", "quiet", "log", "save", "timeline", NULL};
  int status = word_push(ret_arguments, "%s", "lade");
  if (!status)
    status = word_push(ret_arguments, "%s", "train");
  if (!status)
    status = options_arguments(&sweep->options, VERB_SWEEP, without, ret_arguments);
  if (!status)
    status = outputs_push(sweep, trial, ret_arguments);
  if (!status)
    status = word_push(ret_arguments, "--budget=%s", trial->budget);
  if (!status)
    status = word_push(ret_arguments, "%s", "--json");
  if (!status && (sweep->options.is_quiet || !terminal_is(stderr)))
    status = word_push(ret_arguments, "%s", "--quiet"); /* progress of each run is useless in a file */
  return status ? status : option_list_push(ret_arguments, NULL);
}

/* ---- runs ---- */

static char *output_read(int fd)
{
  char *text = malloc(MAX_OUTPUT_BYTES);
  size_t used = 0;
  for (ssize_t n = 1; text && n && used < MAX_OUTPUT_BYTES - 1;) {
    n = read(fd, text + used, MAX_OUTPUT_BYTES - 1 - used);
    if (n < 0 && errno != EINTR)
      break;
    used += n > 0 ? (size_t)n : 0;
  }
  if (text)
    text[used] = 0;
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
    return lade_error_set(&sweep->error, -EAGAIN, "cannot start a process for budget %s: %s", trial->budget,
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

/* Return the speed of @trial, in per cent of the first's. */
static double speed_percent(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  const double first = number_of(first_trial(sweep), "tokens_per_second");
  return first > 0 ? 100 * number_of(trial, "tokens_per_second") / first : 0;
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
  return trial->code > 128 ? "stopped" : "failed";
}

/* Print one line when a run has finished. */
static void line_print(const struct budget_sweep *sweep, const struct budget_trial *trial, FILE *file)
{
  char planned[32], measured[32];
  if (!trial->summary) {
    fprintf(file, "budget %-6s %s\n", trial->budget, failure_of(trial));
    return;
  }
  bool is_same = has_same_digests(trial, first_trial(sweep));
  fprintf(file, "budget %-6s peak %s stated, %s measured; %.0f tokens/s (%.0f %%); losses %s%s%s\n", trial->budget,
          lade_size_format(bytes_of(trial, "planned_peak_bytes"), planned, sizeof(planned)),
          lade_size_format(bytes_of(trial, "measured_peak_bytes"), measured, sizeof(measured)),
          number_of(trial, "tokens_per_second"), speed_percent(sweep, trial),
          terminal_color(file, is_same ? COLOR_GOOD : COLOR_BAD), text_of(trial, "loss_digest"),
          terminal_color(file, COLOR_END));
  fflush(file);
}

static void heading_print(void)
{
  printf("%-8s %10s %10s %10s %10s %10s %11s %11s %9s %6s  %s\n", "budget", "peak", "measured", "host", "store",
         "resident", "step said", "step took", "tokens/s", "speed", "losses");
}

static void row_print(const struct budget_sweep *sweep, const struct budget_trial *trial)
{
  char planned[32], measured[32], host[32], store[32], resident[32], said[32], took[32];
  if (!trial->summary) {
    if (trial->code >= 0)
      printf("%-8s %s\n", trial->budget, failure_of(trial));
    return;
  }
  printf("%-8s %10s %10s %10s %10s %10s %11s %11s %9.0f %4.0f %%  %s\n", trial->budget,
         lade_size_format(bytes_of(trial, "planned_peak_bytes"), planned, sizeof(planned)),
         lade_size_format(bytes_of(trial, "measured_peak_bytes"), measured, sizeof(measured)),
         lade_size_format(bytes_of(trial, "host_bytes"), host, sizeof(host)),
         lade_size_format(bytes_of(trial, "store_bytes"), store, sizeof(store)),
         lade_size_format(bytes_of(trial, "resident_peak_bytes"), resident, sizeof(resident)),
         seconds_format(number_of(trial, "predicted_step_seconds"), said, sizeof(said)),
         seconds_format(number_of(trial, "measured_step_seconds"), took, sizeof(took)),
         number_of(trial, "tokens_per_second"), speed_percent(sweep, trial), text_of(trial, "loss_digest"));
}

/* Print the command to try next: the same run with --budget=min. */
static void next_print(const struct budget_sweep *sweep)
{
  static const char *const without[] = {"budgets", "json", "quiet", "log", "save", "timeline", NULL};
  struct option_list arguments = {0};
  if (options_arguments(&sweep->options, VERB_SWEEP, without, &arguments) == 0) {
    printf("\nNext, at the smallest budget:\n  %s train", program_invocation_name);
    for (int i = 0; i < arguments.n; i++)
      word_print(stdout, arguments.items[i]);
    puts(" --budget=min --save=run");
  }
  option_list_free_items(&arguments);
}

static int results_dump(const struct budget_sweep *sweep)
{
  json_t *runs = json_array();
  for (int i = 0; i < sweep->n; i++) {
    const struct budget_trial *trial = &sweep->trials[i];
    json_t *run = trial->summary ? json_incref(trial->summary) : json_object();
    json_object_set_new(run, "budget", json_string(trial->budget));
    json_object_set_new(run, "exit_code", json_integer(trial->code));
    json_array_append_new(runs, run);
  }
  return json_print(json_pack("{s:i, s:o}", "schema_version", REPORT_SCHEMA_VERSION, "runs", runs));
}

/* ---- the verb ---- */

/* Run all trials; *ret_code is the sweep's exit code. */
static int trials_run(struct budget_sweep *sweep, FILE *lines, int *ret_code)
{
  *ret_code = LADE_EXIT_DONE;
  for (int i = 0; i < sweep->n && !signals_get(); i++) {
    struct budget_trial *trial = &sweep->trials[i];
    int status = trial_run(sweep, trial);
    if (status)
      return status;
    line_print(sweep, trial, lines);
    if (trial->code && !*ret_code)
      *ret_code = trial->code;
    if (trial->code && trial->code != LADE_EXIT_DOES_NOT_FIT)
      break;
  }
  for (int i = 0; i < sweep->n; i++) {
    if (sweep->trials[i].summary && !has_same_digests(&sweep->trials[i], first_trial(sweep)))
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
  printf("\n%lld steps of %s, %s: ", (long long)bytes_of(first_trial(sweep), "steps"),
         text_of(first_trial(sweep), "model"), text_of(first_trial(sweep), "dtype"));
  puts(code == LADE_EXIT_NUMBERS_DIFFER ? "the digests DIFFER" : "all losses and parameters have the same bits");
  heading_print();
  for (int i = 0; i < sweep->n; i++)
    row_print(sweep, &sweep->trials[i]);
  if (code == LADE_EXIT_DONE)
    next_print(sweep);
  return 0;
}

static int sweep_run(struct budget_sweep *sweep)
{
  /* With --json stdout is one JSON value, and the line of each run goes to stderr. */
  FILE *lines = sweep->options.is_json ? stderr : stdout;
  int code = 0, status = budgets_parse(sweep);
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
