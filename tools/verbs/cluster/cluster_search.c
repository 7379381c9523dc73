/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A search among layouts on a cluster, in two parts.
 *
 * First the fastest layouts by their estimates are built, proved and executed dry. If a proof finds more than the
 * budget, the kind of its layout is searched again with the estimate corrected. So a good plan is found after few
 * proofs.
 *
 * Then bounds make the search exact. A layout is left out if its time is not below that of the plans, because a proof
 * changes no time; or if a lower bound of its bytes is above the budget (lade_layout_search_undecided). The programs of
 * all others are built, in order of time. Beyond TRIED_INSTRS none is, and the report says how many are left, and
 * the time of the fastest of them.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"
#include "tools/verbs/cluster/cluster_planning.h"

/* A search for K layouts finds FOUND_EACH K + FOUND_MORE: some differ in the schedule alone, or fail the proof. */
#define FOUND_EACH 3
#define FOUND_MORE 20
#define KIND_ALONE 8   /* failed proofs of a kind after which a correction holds for all layouts of the kind */
#define KINDS_AGAIN 64 /* most searches of kinds whose proof failed: each takes milliseconds and one proof */
#define BUDGET_PARTS 16 /* steps in which the budget of a search shrinks until a proof fits */
#define TRIED_EACH_PART 8
#define UNDECIDED_LISTED 4096 /* the fastest of them that are listed */
#define TRIED_INSTRS 5000000 /* of programs built for a smaller budget, or that no bound leaves out: about 10 s each */
#define MORE_ROUNDED (1 + 1e-9) /* so that rounding does not bring the same layout again */

/* Return @option's number if the user gave it, else @free. */
static int confined(const struct options *options, const char *option, int64_t value, int free_value)
{
  return option_is_set(options, option) ? (int)value : free_value;
}

static struct lade_layout_search_params search_params(const struct cluster_planning *planning)
{
  const struct options *o = planning->options;
  struct lade_layout_search_params params = {
      .n_ranks = (int)o->n_ranks, .device_bytes = planning->budget_bytes,
      .host_bytes = cluster_host_budget(&planning->cluster), .store_bytes = planning->store_budget_bytes,
      .tp = confined(o, "tp", o->tp, 0), .pp = confined(o, "pp", o->pp, 0),
      .dp = confined(o, "dp", o->dp, 0), .zero = confined(o, "zero", o->zero, -1),
      .virtual_stages = confined(o, "virtual-stages", o->virtual_stages, 0), .shard = (int)o->shard,
      .schedule = confined(o, "schedule", o->schedule, -1),
      .is_sequence = confined(o, "sequence-parallel", o->is_sequence, -1), .micro_batch = o->session.micro_batch,
      .recipe = o->session.recipe, .grad_reduce = (enum lade_dtype)o->grad_reduce,
      .n_max = (int)o->n_top * FOUND_EACH + FOUND_MORE};
  for (int i = 0; i < LADE_N_MOMENTS && o->is_any_precision; i++)
    if (!option_is_set(o, "moments") || i == (int)o->session.moments)
      params.moments[params.n_moments++] = (enum lade_moments)i;
  for (int i = 0; i < LADE_N_MASTERS && o->is_any_precision; i++)
    if (!option_is_set(o, "master") || i == (int)o->session.master)
      params.masters[params.n_masters++] = (enum lade_master)i;
  return params;
}

/* Make the job of each precision, for the plans of found layouts. */
static void jobs_fill(struct cluster_planning *planning)
{
  for (int i = 0; i < LADE_N_MOMENTS * LADE_N_MASTERS; i++) {
    struct lade_layout_job *job = &planning->jobs[i / LADE_N_MASTERS][i % LADE_N_MASTERS];
    *job = planning->job;
    job->moments = (enum lade_moments)(i / LADE_N_MASTERS);
    job->master = (enum lade_master)(i % LADE_N_MASTERS);
  }
}

/* Cost @found, with its residency, which is one of its share's. */
static int found_cost(struct cluster_planning *planning, const struct lade_layout_found *found,
                      struct cluster_plan *plan)
{
  struct lade_share_residencies *residencies = calloc(1, sizeof(*residencies));
  struct lade_error *error = &planning->error;
  int i = 0;
  plan->params = found->layout;
  plan->params.n_kv_heads = planning->model.n_kv_heads;
  plan->micro_batch = found->micro_batch;
  plan->state_tier = found->state_tier;
  plan->job = &planning->jobs[found->moments][found->master];
  int status = residencies ? lade_layout_init(&plan->params, error, &plan->layout)
                           : lade_error_set(error, -ENOMEM, "no memory for the residencies of a layer");
  if (!status)
    status = cluster_residencies_make(plan, planning->options->session.recipe, error, residencies);
  while (!status && i + 1 < residencies->n &&
         memcmp(&residencies->items[i].residency, &found->residency, sizeof(found->residency)) != 0)
    i++;
  if (!status) {
    LADE_ASSERT(memcmp(&residencies->items[i].residency, &found->residency, sizeof(found->residency)) == 0);
    plan->share = residencies->items[i];
    status = cluster_layout_cost(plan, error);
  }
  free(residencies);
  return status;
}

static int found_plan(struct cluster_planning *planning, const struct lade_layout_found *found,
                      struct cluster_plan *plan)
{
  int status = found_cost(planning, found, plan);
  return status || !cluster_is_provable(plan) ? status : cluster_plan_prove(plan, &planning->error);
}

struct search_result {
  struct lade_layout_search search;
  struct lade_layout_correction corrections[KINDS_AGAIN]; /* of layouts whose proofs found more than the budget */
  int n_corrections;
  struct cluster_plan *plans;    /* [0] without any that fits: the misfit that needs least */
  int n_plans;
  LADE_ARRAY(struct lade_layout_found) misfits; /* whose proofs found more than the budgets */
  uint64_t min_bytes;            /* of the device, among misfits that were built; UINT64_MAX: none was */
  int i_min;                     /* the misfit that needs them */
  int64_t n_instrs;              /* of the programs that were built, in the part that runs */
  int64_t n_unproved;            /* layouts that may be faster than the plans: their proofs may find that they fit */
  double unproved_ns;            /* none of these takes less time */
  double seconds, proof_seconds; /* of the search; of building and proving its best layouts */
};

static double seconds_now(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Return the place of the plan with the sizes of @found; n_plans: none has them. */
static int sizes_find(const struct search_result *result, const struct lade_layout_found *found)
{
  int at = 0;
  while (at < result->n_plans && (result->plans[at].params.tp != found->layout.tp ||
                                  result->plans[at].params.pp != found->layout.pp ||
                                  result->plans[at].params.dp != found->layout.dp))
    at++;
  return at;
}

/* Take @plan among the @n_top fastest ones, each of other sizes: @at is the place of the one with its sizes. */
static void plan_take(struct search_result *result, int at, int n_top, const struct cluster_plan *plan)
{
  const bool is_new = at == result->n_plans;
  if (!is_new && result->plans[at].cost.step_ns <= plan->cost.step_ns)
    return;
  result->plans[at] = *plan;
  result->n_plans += is_new;
  qsort(result->plans, (size_t)result->n_plans, sizeof(*result->plans), cluster_step_compare);
  result->n_plans = LADE_MIN(result->n_plans, n_top);
}

/*
 * Search the kind of found layout @i again, with its estimate corrected by the bytes that its proof found: another
 * residency, tier, ZeRO stage, microbatch or number of chunks may be the fastest one then. It takes the place of @i, or
 * a later one in order of time. -EOVERFLOW, -EINVAL: there is none.
 */
static int kind_search(struct cluster_planning *planning, struct search_result *result, int i, uint64_t proved_bytes)
{
  struct lade_layout_search again, *search = &result->search;
  struct lade_layout_found *found = search->found;
  struct lade_layout_search_params params = search_params(planning);
  struct lade_layout_correction one = {.layout = found[i].layout, .micro_batch = found[i].micro_batch,
                                       .state_tier = found[i].state_tier, .moments = found[i].moments,
                                       .master = found[i].master,
                                       .more = (double)proved_bytes / found[i].fitted_bytes * MORE_ROUNDED};
  int n_of_kind = 0;
  for (int c = 0; c < result->n_corrections; c++)
    n_of_kind += lade_layout_is_same_kind(&result->corrections[c].layout, &one.layout);
  one.is_of_kind = n_of_kind >= KIND_ALONE;
  result->corrections[result->n_corrections++] = one;
  params.tp = found[i].layout.tp;
  params.pp = found[i].layout.pp;
  params.dp = found[i].layout.dp / LADE_MAX(planning->job.n_context, 1);
  params.schedule = (int)found[i].layout.schedule;
  params.corrections = result->corrections;
  params.n_corrections = result->n_corrections;
  params.n_max = 1;
  const int status = lade_layout_search_run(&planning->job, &params, NULL, &again);
  if (!status) {
    int at = i;
    for (; at + 1 < search->n_found && found[at + 1].cost.step_ns < again.found[0].cost.step_ns; at++)
      found[at] = found[at + 1];
    found[at] = again.found[0];
  }
  if (!status || status == -EOVERFLOW)
    free(again.found);
  return status == -ENOMEM ? lade_error_set(&planning->error, status, "no memory for the search") : status;
}

/*
 * Plan @found, and take it if it fits. If it does not, note it, with the device bytes of its programs, which are 0 if
 * these are within the budget. Add the instructions of the programs that were built to @n_instrs.
 */
static int found_try(struct cluster_planning *planning, const struct cluster_plan *empty, struct search_result *result,
                     const struct lade_layout_found *found, uint64_t *ret_misfit_bytes)
{
  struct cluster_plan plan = *empty;
  int status = found_cost(planning, found, &plan);
  if (!status)
    status = cluster_plan_prove_fitting(&plan, &planning->error);
  result->n_instrs += plan.n_instrs_measured;
  *ret_misfit_bytes = plan.measured_bytes > plan.budget_bytes ? plan.measured_bytes : 0;
  if (!status && plan.fits)
    plan_take(result, sizes_find(result, found), (int)planning->options->n_top, &plan);
  else if (!status && !LADE_PUSH(&result->misfits, *found))
    status = lade_error_set(&planning->error, -ENOMEM, "no memory for the layouts");
  if (!status && !plan.fits && plan.measured_bytes && plan.measured_bytes < result->min_bytes) {
    result->min_bytes = plan.measured_bytes;
    result->i_min = result->misfits.n - 1;
  }
  return status;
}

/*
 * Prove the found layouts in order of their times. Skip a layout if its time is not below that of the plan with its
 * sizes, or that of the last of the wanted plans. The kind of a layout whose proof failed is searched again, so that a
 * near one takes its place.
 */
static int found_prove(struct cluster_planning *planning, const struct cluster_plan *empty,
                       struct search_result *result)
{
  const int n_top = (int)planning->options->n_top;
  int status = 0;
  for (int i = 0; i < result->search.n_found && !status; i++) {
    const struct lade_layout_found *found = &result->search.found[i];
    const int at = sizes_find(result, found);
    uint64_t misfit_bytes;
    if (result->n_plans == n_top && found->cost.step_ns >= result->plans[n_top - 1].cost.step_ns)
      break;
    if (at < result->n_plans && found->cost.step_ns >= result->plans[at].cost.step_ns)
      continue;
    status = found_try(planning, empty, result, found, &misfit_bytes);
    if (status || !misfit_bytes || result->n_corrections == KINDS_AGAIN)
      continue;
    status = kind_search(planning, result, i, misfit_bytes);
    i -= !status; /* another layout is in its place */
    status = status == -EOVERFLOW || status == -EINVAL ? 0 : status;
  }
  return status;
}

/*
 * Find a layout that fits where the proofs of too many found ones failed: search again for ever smaller parts of the
 * budget, whose estimates leave the proofs more room, until one fits.
 */
static int smaller_find(struct cluster_planning *planning, const struct cluster_plan *empty,
                        struct search_result *result)
{
  struct lade_layout_search_params params = search_params(planning);
  bool is_found = false;
  int status = 0;
  params.n_max = TRIED_EACH_PART;
  for (int part = BUDGET_PARTS - 1; part > 0 && !is_found && !status && result->n_instrs < TRIED_INSTRS; part--) {
    struct lade_layout_search search = {0};
    params.device_bytes = planning->budget_bytes / BUDGET_PARTS * (uint64_t)part;
    status = lade_layout_search_run(&planning->job, &params, &planning->error, &search);
    if (status == -EOVERFLOW) { /* no layout has an estimate so small */
      planning->error.code = 0;
      return 0;
    }
    for (int i = 0; i < search.n_found && !is_found && !status; i++) {
      const int n_misfits = result->misfits.n;
      uint64_t misfit_bytes;
      status = found_try(planning, empty, result, &search.found[i], &misfit_bytes);
      is_found = result->misfits.n == n_misfits;
    }
    free(search.found);
  }
  return status;
}

/* ---- layouts that neither bounds nor proofs have decided ---- */

static bool is_misfit(const struct search_result *result, const struct lade_layout_found *found)
{
  for (int i = 0; i < result->misfits.n; i++) {
    const struct lade_layout_found *other = &result->misfits.items[i];
    if (lade_layout_is_same_kind(&other->layout, &found->layout) && other->layout.zero == found->layout.zero &&
        other->layout.shard == found->layout.shard && other->layout.is_sequence == found->layout.is_sequence &&
        other->layout.virtual_stages == found->layout.virtual_stages && other->micro_batch == found->micro_batch &&
        other->state_tier == found->state_tier && other->moments == found->moments &&
        other->master == found->master &&
        memcmp(&other->residency, &found->residency, sizeof(found->residency)) == 0)
      return true;
  }
  return false;
}

/* Return the time below which a layout with the sizes of @found is faster than the plans. */
static double wanted_ns(const struct cluster_planning *planning, const struct search_result *result,
                        const struct lade_layout_found *found)
{
  const int n_top = (int)planning->options->n_top, at = sizes_find(result, found);
  const double last_ns = result->n_plans == n_top ? result->plans[n_top - 1].cost.step_ns : INFINITY;
  return at < result->n_plans ? fmin(result->plans[at].cost.step_ns, last_ns) : last_ns;
}

/* List the layouts that are left out by no bound. */
static int undecided_list(struct cluster_planning *planning, const struct search_result *result,
                          struct lade_layout_search *ret_list)
{
  struct lade_layout_search_params params = search_params(planning);
  struct lade_layout_rival *rivals = calloc((size_t)result->n_plans + 1, sizeof(*rivals));
  const int n_top = (int)planning->options->n_top;
  if (!rivals)
    return lade_error_set(&planning->error, -ENOMEM, "no memory for the layouts");
  for (int i = 0; i < result->n_plans; i++) {
    const struct cluster_plan *plan = &result->plans[i];
    rivals[i] = (struct lade_layout_rival){plan->params.tp, plan->params.pp, plan->params.dp, plan->cost.step_ns};
  }
  params.rivals = rivals;
  params.n_rivals = result->n_plans;
  params.limit_ns = result->n_plans == n_top ? result->plans[n_top - 1].cost.step_ns : INFINITY;
  params.n_max = UNDECIDED_LISTED;
  int status = lade_layout_search_undecided(&planning->job, &params, &planning->error, ret_list);
  free(rivals);
  return status;
}

/*
 * Prove the layouts that no bound leaves out, in order of their times. Those beyond TRIED_INSTRS are counted, with
 * the time of the fastest: no layout that the search leaves out is faster than that and fits.
 */
static int undecided_prove(struct cluster_planning *planning, const struct cluster_plan *empty,
                           struct search_result *result)
{
  struct lade_layout_search list = {0};
  const int n_top = (int)planning->options->n_top;
  int n_decided = 0, status = undecided_list(planning, result, &list);
  result->n_instrs = 0;
  result->unproved_ns = INFINITY;
  for (int i = 0; i < list.n_found && !status; i++) {
    const struct lade_layout_found *found = &list.found[i];
    const bool is_decided = is_misfit(result, found) || found->cost.step_ns >= wanted_ns(planning, result, found);
    uint64_t misfit_bytes;
    n_decided += is_decided || result->n_instrs < TRIED_INSTRS;
    if (is_decided)
      continue;
    if (result->n_instrs >= TRIED_INSTRS) {
      result->unproved_ns = fmin(result->unproved_ns, found->cost.step_ns);
      continue;
    }
    status = found_try(planning, empty, result, found, &misfit_bytes);
  }
  const int64_t n_unlisted = list.n_undecided - list.n_found;
  result->n_unproved = list.n_found - n_decided;
  if (!status && list.n_found && n_unlisted) { /* they take at least the time of the last that is listed */
    const double ns = list.found[list.n_found - 1].cost.step_ns;
    if (result->n_plans < n_top || ns < result->plans[n_top - 1].cost.step_ns) {
      result->n_unproved += n_unlisted;
      result->unproved_ns = fmin(result->unproved_ns, ns);
    }
  }
  free(list.found);
  return status;
}

/* Say how far the search is exact, and by how much the fastest layout may be faster than the first that is printed. */
static void unproved_print(const struct search_result *result)
{
  char step[32];
  if (!result->n_unproved) {
    if (result->plans[0].is_proved)
      printf("not proved    none: bounds or proofs show of every other layout that it is no faster or does not fit\n");
    return;
  }
  printf("not proved    %lld layouts that may fit; none can be faster than %s\n", (long long)result->n_unproved,
         seconds_format(result->unproved_ns / 1e9, step, sizeof(step)));
  const bool is_proved = result->n_plans && result->plans[0].is_proved;
  const double more = is_proved ? 100 * (result->plans[0].cost.step_ns / result->unproved_ns - 1) : 0;
  if (more > 0)
    printf("              the first layout takes at most %.*f %% longer than the fastest that fits\n", more < 10, more);
  else if (is_proved)
    printf("              the first layout is the fastest that fits\n");
}

static int search_tell(struct cluster_planning *planning, const struct search_result *result)
{
  const struct options *options = planning->options;
  const int n = LADE_MAX(result->n_plans, 1);
  if (options->export_format) {
    cluster_export(&result->plans[0], stdout);
  } else if (options->is_json) {
    json_t *layouts = json_array();
    for (int i = 0; i < n; i++)
      json_array_append_new(layouts, cluster_layout_json(&result->plans[i]));
    if (json_print(json_pack("{s:i, s:I, s:f, s:f, s:I, s:o, s:o}", "schema_version", REPORT_SCHEMA_VERSION,
                             "evaluated", (json_int_t)result->search.n_evaluated, "seconds", result->seconds,
                             "proof_seconds", result->proof_seconds, "unproved", (json_int_t)result->n_unproved,
                             "unproved_step_seconds",
                             result->n_unproved ? json_real(result->unproved_ns / 1e9) : json_null(), "layouts",
                             layouts)))
      return exit_fail("plan", -ENOMEM, NULL);
  } else {
    printf("%lld layouts of %lld ranks of %s in %.2f s; the fastest of each (tp, pp, dp),\n",
           (long long)result->search.n_evaluated, (long long)options->n_ranks, planning->cluster.name, result->seconds);
    if (result->plans[0].is_proved)
      printf("built, proved and executed dry in %.2f s:\n", result->proof_seconds);
    else
      printf("with context and expert parallel ranks by formula, not proved:\n");
    for (int i = 0; i < n; i++)
      cluster_layout_print(&result->plans[i], stdout);
    cluster_residency_print(&result->plans[0], stdout);
    unproved_print(result);
    if (options->has_explain)
      cluster_explain(&result->plans[0], stdout);
  }
  if (result->n_plans)
    return LADE_EXIT_DONE;
  if (!planning->error.code) {
    char more[96] = "no layout that was built needs less";
    if (result->n_unproved)
      snprintf(more, sizeof(more), "no layout that was built needs less, and %lld more may fit",
               (long long)result->n_unproved);
    return cluster_refusal_tell(planning, &result->plans[0], more);
  }
  fflush(stdout);
  return exit_fail("plan", -EOVERFLOW, &planning->error);
}

int cluster_search_plan(struct cluster_planning *planning, const struct cluster_plan *empty)
{
  const struct lade_layout_search_params params = search_params(planning);
  struct search_result result = {.plans = calloc((size_t)planning->options->n_top + 1, sizeof(*result.plans)),
                                 .min_bytes = UINT64_MAX};
  const double begin = seconds_now();
  jobs_fill(planning);
  int status = cluster_ranks_check(planning, params.n_ranks);
  if (!status)
    status = result.plans ? 0 : lade_error_set(&planning->error, -ENOMEM, "no memory for the layouts");
  if (!status)
    status = lade_layout_search_run(&planning->job, &params, &planning->error, &result.search);
  const bool has_found = !status || status == -EOVERFLOW;
  result.seconds = seconds_now() - begin;
  if (has_found)
    status = found_prove(planning, empty, &result);
  const bool is_tight = !result.n_plans || result.n_corrections == KINDS_AGAIN;
  if (has_found && !status && is_tight && !planning->error.code)
    status = smaller_find(planning, empty, &result);
  if (has_found && !status)
    status = undecided_prove(planning, empty, &result);
  if (has_found && !status && !result.n_plans) { /* to say how much it lacks */
    result.plans[0] = *empty;
    status = found_plan(planning, &result.misfits.items[result.i_min], &result.plans[0]);
  }
  result.proof_seconds = seconds_now() - begin - result.seconds;
  const int code = status ? exit_fail("plan", status, &planning->error) : search_tell(planning, &result);
  if (has_found)
    free(result.search.found);
  LADE_ARRAY_FREE(&result.misfits);
  free(result.plans);
  return code;
}
