/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The largest size that fits: doubling until one does not fit, then bisection. Fitting is taken to be monotone, which a
 * budget in bytes ensures up to variations of the packer. The reported size has been planned, and the next larger one
 * has been refused, so the answer is exact even if the packer was lucky.
 *
 * The machine is measured once, for the first plan. The trials use that description, because measuring the ops of every
 * shape would take longer than the search. The last two sizes are planned as a run would plan them.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/cli/verbs.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/verbs/plan.h"

#define LAYERS_MAX 512 /* more would take minutes to plan, and no known model has them */

struct max_search {
  struct options *options;
  struct lade_session_params params; /* of the trials */
  int64_t max;                       /* the largest that the model allows, or that is tried */
  struct lade_error error;           /* of the last trial that did not fit */
  uint64_t budget_bytes;
  struct progress progress;
};

static const char *option_of(int max)
{
  return max == MAX_MICRO_BATCH ? "micro-batch" : max == MAX_SEQ ? "seq" : "layers";
}

/* Set the searched size of @params to @n. */
static void size_set(const struct max_search *search, struct lade_session_params *params, int64_t n)
{
  switch (search->options->max) {
  case MAX_MICRO_BATCH:
    params->micro_batch = params->batch = n;
    break;
  case MAX_SEQ:
    params->seq_len = n;
    break;
  default:
    params->layers = n;
    break;
  }
}

/* Plan @params with size @n: 0 fits, 1 does not, negative failed. */
static int trial(struct max_search *search, struct lade_session_params params, int64_t n)
{
  lade_session *session = NULL;
  struct lade_session_info info;
  progress_note(&search->progress, "planning with --%s %lld", option_of(search->options->max), (long long)n);
  size_set(search, &params, n);
  search->error.text[0] = 0;
  int status = lade_session_open(&params, &search->error, &session);
  if (status)
    return status;
  lade_session_get_info(session, &info);
  search->budget_bytes = info.budget_bytes;
  lade_session_close(session);
  return info.plan ? 0 : 1;
}

/* Find the largest of [1, search->most] that fits; 0: none does. */
static int bisect(struct max_search *search, int64_t *ret_n)
{
  int64_t fits = 0, fails = 1;
  int answer;
  while ((answer = trial(search, search->params, fails)) == 0) {
    fits = fails;
    if (fits == search->max)
      break;
    fails = LADE_MIN(fails * 2, search->max);
  }
  while (answer > 0 && fails - fits > 1) {
    int64_t middle = fits + (fails - fits) / 2;
    int found = trial(search, search->params, middle);
    if (found < 0)
      return found;
    if (found == 0)
      fits = middle;
    else
      fails = middle;
  }
  *ret_n = fits;
  return answer < 0 ? answer : 0;
}

/* Change @n in steps of one to the largest number that fits when it is planned as a run plans it. */
static int settle(struct max_search *search, int64_t *n)
{
  int answer = 0;
  while (*n > 0 && (answer = trial(search, search->options->session, *n)) == 1)
    (*n)--;
  if (answer < 0)
    return answer;
  while (*n < search->max && (answer = trial(search, search->options->session, *n + 1)) == 0)
    (*n)++;
  return answer < 0 ? answer : 0;
}

/* Write the measured machine into a file that the trials name. */
static int machine_describe(struct max_search *search, char *path)
{
  struct lade_session_params params = search->options->session;
  lade_session *session = NULL;
  struct lade_session_info info;
  size_set(search, &params, 1);
  int status = lade_session_open(&params, &search->error, &session);
  if (status)
    return status;
  lade_session_get_info(session, &info);
  struct lade_machine machine = info.cost->machine;
  search->max = search->options->max == MAX_SEQ           ? info.model.context
                : search->options->max == MAX_MICRO_BATCH ? INT16_MAX
                                                          : LAYERS_MAX;
  lade_session_close(session);
  if (search->options->session.machine)
    return 0;
  int fd = mkstemp(path);
  if (fd < 0)
    return lade_error_set(&search->error, -errno, "%s: %s", path, strerror(errno));
  close(fd);
  search->params.machine = path;
  return lade_machine_save(&machine, path, &search->error);
}

static int answer_print(const struct max_search *search, int64_t n)
{
  const char *name = option_of(search->options->max);
  char budget[32];
  if (search->options->is_json) {
    json_t *object = json_pack("{s:i, s:s, s:I, s:o, s:b}", "schema_version", REPORT_SCHEMA_VERSION, "max", name,
                               "value", (json_int_t)n, "budget_bytes", json_bytes(search->budget_bytes),
                               "is_bounded_by_budget", n < search->max);
    return json_print(object);
  }
  printf("largest --%s in %s: %lld", name,
         lade_size_format(search->budget_bytes, budget, sizeof(budget)), (long long)n);
  if (search->options->max == MAX_MICRO_BATCH)
    printf(" (as --batch %lld, one pass)", (long long)n);
  puts(n == search->max ? ", the most that is tried" : "; one more does not fit");
  return 0;
}

static int search_run(struct max_search *search, char *path)
{
  int64_t n = 0;
  int status = machine_describe(search, path);
  if (!status)
    status = bisect(search, &n);
  if (!status)
    status = settle(search, &n);
  if (!status && n == 0) {
    trial(search, search->options->session, 1);
    status = -EOVERFLOW;
  }
  progress_clear(&search->progress);
  if (!status)
    status = answer_print(search, n);
  return status ? exit_fail("plan", status, &search->error) : LADE_EXIT_DONE;
}

int plan_max(struct options *options)
{
  enum lade_budget_kind kind = options->session.budget.kind;
  if (kind == LADE_BUDGET_PERCENT || kind == LADE_BUDGET_MIN) {
    struct lade_error error;
    lade_error_set(&error, -EINVAL, "--max needs a --budget that does not depend on the model: a size, or P%%dev");
    return exit_fail("plan", -EINVAL, &error);
  }
  char path[4096];
  snprintf(path, sizeof(path), "%s/lade-machine-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  options->session.is_plan_only = true;
  struct max_search search = {.options = options, .params = options->session};
  progress_init(&search.progress, options->is_quiet, 0, 0);
  int code = search_run(&search, path);
  if (search.params.machine == path)
    unlink(path);
  return code;
}
