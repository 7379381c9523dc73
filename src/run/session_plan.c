/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session's plan: budgets first, then who decides, then the decision and what each rank makes of it.
 *
 * Where memory is shared by device and host tier (a device that is host memory), what the budget leaves of the machine
 * is what the host tier may have, four fifths of it unless stated.
 *
 * Deciding is a search of a CPU second or many, and ranks of a stage whose numbers are equal (lade_plan_params_key)
 * come to the same. So the first of them searches, and the others wait, which leaves it the cores; what it has come
 * to goes to them as bytes, and each builds, places and proves its own programs from that, in its own budget. A rank
 * that has a number of its own (--host-budget may be one's own) searches for itself: whether its programs meet the
 * others' is compared later (lade_peers_prove). That takes two rounds, since a budget may be a part of what
 * everything kept takes, and the host tier a part of what the budget leaves: bounds are agreed on first, then the
 * budget of a stage, the smallest of its ranks', then the plan. Whatever the search of one rank ends with, or the
 * programs of one that follows, all vote on and return. Meanwhile who waits has no patience that could end but with a
 * rank that is gone (lade_peers_work).
 *
 * lade_session_params.alike is the same in one process: the other session's decision, without a communicator.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/decision.h"
#include "run/session_internal.h"

#define HOST_SHARE 0.8            /* of what is left, for the host tier */
/* Of a GPU left free without a budget, for what its driver takes when kernels and streams are first used. */
#define GPU_RESERVE_BYTES (UINT64_C(512) << 20)
#define GPU_RESERVE_SHARE 32      /* of a small one this part */
#define STORE_SHARE 0.95          /* of what the file system has free */

/* ---- budgets ---- */

static int store_room(lade_session *s, struct lade_error *error)
{
  uint64_t free_bytes;
  if (!s->params.store)
    return 0;
  if (session_is_described(s)) {
    const uint64_t budget_bytes = s->params.store_budget_bytes / (uint64_t)s->params.n_node_ranks;
    s->store_bytes = s->params.store_budget_bytes ? budget_bytes : s->cost.machine.store.bytes;
    return 0;
  }
  int status = lade_store_room(s->params.store, &free_bytes, NULL, error);
  status = lade_peers_vote(&s->peers, status, error);
  if (status)
    return status;
  free_bytes = (uint64_t)((double)free_bytes * STORE_SHARE);
  s->store_bytes = s->params.store_budget_bytes ? s->params.store_budget_bytes : free_bytes;
  s->store_bytes /= (uint64_t)s->params.n_node_ranks;
  if (!s->params.store_budget_bytes)
    s->store_bytes += session_durable_held(s); /* each rank its own */
  return session_agree_least(s, &s->store_bytes, error);
}

static struct lade_plan_params plan_params(const lade_session *s)
{
  const uint64_t extra = session_durable_extra(s); /* the plan sees one slot of two */
  return (struct lade_plan_params){
      .struct_size = sizeof(struct lade_plan_params), .graph = s->graph, .prices = &s->prices,
      .layout = lade_peers_layout(&s->peers), .n_microbatches = s->n_microbatches, .is_unified = s->is_unified,
      .is_early = s->params.updates_early, .chunk_bytes = s->chunk_bytes,
      .host_bytes = s->host_bytes, .store_bytes = s->store_bytes > extra ? s->store_bytes - extra : 0,
      .recipe = s->params.recipe, .pins = s->pins,
      .n_pins = s->n_pins};
}

/* Search as far as bounds, in place of what was searched before. */
static int search_begin(lade_session *s, struct lade_error *error)
{
  const struct lade_plan_params how = plan_params(s);
  lade_planner_destroy(s->planner);
  s->planner = NULL;
  int status = lade_fault(s->params.faults, LADE_FAULT_PLAN);
  if (!status) {
    status = lade_planner_create(&how, error, &s->planner);
    if (status)
      return status;
    status = lade_planner_get_bounds(s->planner, &s->bounds);
  }
  return status ? lade_error_set(error, status, "planning ran out of memory") : 0;
}

static int bounds_work(void *user, struct lade_error *error)
{
  return search_begin(user, error);
}

/* A planner at the ranks that decide, and their bounds at all; collective. */
static int planner_make(lade_session *s, struct lade_error *error)
{
  const struct lade_plan_params how = plan_params(s);
  int status = session_agree_decider(s, lade_plan_params_key(&how), error);
  if (status)
    return status;
  status = lade_peers_work(&s->peers, session_is_decider(s) ? bounds_work : NULL, s, error);
  return status ? status : session_agree_bounds(s, error);
}

/* Windows as a drive likes them best may take more room than others: give that up. False: they take none. */
static bool streaming_shrink(lade_session *s)
{
  const struct lade_streaming before = s->prices.streaming;
  s->prices.streaming = lade_cost_streaming_small(&s->cost);
  return s->prices.streaming.window_bytes != before.window_bytes || s->prices.streaming.n_windows != before.n_windows;
}

static uint64_t share(uint64_t bytes, double of)
{
  return (uint64_t)((double)bytes * of);
}

/* What the budget will be, as far as it is known before the smallest one is. */
static uint64_t budget_resolve(const lade_session *s)
{
  const struct lade_budget *b = &s->params.budget;
  switch (b->kind) {
  case LADE_BUDGET_BYTES:
    return b->bytes;
  case LADE_BUDGET_PERCENT:
    return share(s->bounds.unconstrained_bytes, b->percent / 100);
  case LADE_BUDGET_PERCENT_DEVICE:
    return share(s->capacity_bytes, b->percent / 100);
  case LADE_BUDGET_MIN:
    return s->bounds.min_bytes;
  default:
    break;
  }
  if (s->params.is_gpu)
    return s->capacity_bytes - LADE_MIN(GPU_RESERVE_BYTES, s->capacity_bytes / GPU_RESERVE_SHARE);
  if (!s->is_unified)
    return s->capacity_bytes;
  if (s->params.has_host_budget)
    return s->left_bytes > s->host_bytes ? s->left_bytes - s->host_bytes : 0;
  /* Memory is one: the device gets what keeping everything needs if there is room for it, else half. */
  bool is_roomy = s->bounds.unconstrained_bytes <= share(s->left_bytes, HOST_SHARE);
  return is_roomy ? share(s->left_bytes, HOST_SHARE) : s->left_bytes / 2;
}

static int tiers_resolve(lade_session *s, struct lade_error *error)
{
  const struct lade_machine *machine = &s->cost.machine;
  const bool is_described = session_is_described(s);
  const uint64_t n_sharing = (uint64_t)s->params.n_node_ranks; /* what is described is one rank's own already */
  s->left_bytes = is_described ? machine->host_bytes : (uint64_t)lade_cpu_memory_bytes() / n_sharing;
  int status = session_agree_least(s, &s->left_bytes, error);
  if (!status)
    status = store_room(s, error);
  if (!s->params.is_gpu)
    s->capacity_bytes = is_described ? machine->device_bytes : s->left_bytes;
  if (status)
    return status;
  s->host_bytes = s->params.has_host_budget ? s->params.host_budget_bytes / n_sharing
                                            : share(s->left_bytes, HOST_SHARE);
  if (s->params.budget.kind == LADE_BUDGET_MIN)
    streaming_shrink(s);
  status = planner_make(s, error);
  if (!status) {
    s->budget_bytes = budget_resolve(s);
    status = session_agree_stage_least(s, &s->budget_bytes, error);
  }
  if (status)
    return status;
  if (s->params.has_host_budget || !s->is_unified || s->params.budget.kind == LADE_BUDGET_MIN)
    return 0;
  uint64_t left = s->left_bytes > s->budget_bytes ? s->left_bytes - s->budget_bytes : 0;
  s->host_bytes = share(left, HOST_SHARE);
  return planner_make(s, error);
}

/* ---- the plan ---- */

/* The budget in a person's words, where those are not bytes. */
static void refusal_word(const struct lade_budget *budget, struct lade_error *error)
{
  if (!error || (budget->kind != LADE_BUDGET_PERCENT && budget->kind != LADE_BUDGET_PERCENT_DEVICE))
    return;
  const struct lade_error line = *error;
  lade_error_set(error, line.code, "--budget %g%%%s: %s", budget->percent,
                 budget->kind == LADE_BUDGET_PERCENT ? "" : "dev", line.text);
}

/* Where memory is one and --host-budget took what the device lacks, more of it is no way out: less is. */
static void host_budget_word(const lade_session *s, struct lade_error *error)
{
  char host[LADE_SIZE_TEXT], left[LADE_SIZE_TEXT], least[LADE_SIZE_TEXT];
  const uint64_t min_bytes = s->bounds.min_bytes;
  if (s->params.budget.kind != LADE_BUDGET_AUTO || !s->params.has_host_budget || !s->is_unified ||
      min_bytes > s->left_bytes)
    return;
  lade_error_set(error, -EOVERFLOW, "--host-budget takes %s of the %s that this machine has left, and the smallest "
                 "budget found is %s: state --budget as well, or a smaller --host-budget",
                 lade_size_exact(s->host_bytes, host), lade_size_exact(s->left_bytes, left),
                 lade_size_exact(min_bytes, least));
}

/* Within what this rank's device has? */
static int capacity_check(const lade_session *s, struct lade_error *error)
{
  char asked[LADE_SIZE_TEXT], has[LADE_SIZE_TEXT];
  const bool has_any = s->bounds.min_bytes != UINT64_MAX; /* else the planner says what is short */
  if (!has_any || s->budget_bytes <= s->capacity_bytes || s->params.is_dry || s->params.is_plan_only)
    return 0;
  return lade_error_set(error, -EOVERFLOW, "the budget of %s is more than this %s has left, %s",
                        lade_size_exact(s->budget_bytes, asked), s->params.is_gpu ? "GPU" : "machine",
                        lade_size_exact(s->capacity_bytes, has));
}

/*
 * The faster of two plans: with windows of streamed updates as the drive likes them best, and with the usual ones where
 * those take less room. So the smallest budget is that of both, and a larger one is never slower, as with one planner.
 */
static int plan_search(lade_session *s, struct lade_error *error)
{
  const struct lade_streaming liked = s->prices.streaming;
  const uint64_t liked_min_bytes = s->bounds.min_bytes;
  struct lade_plan *usual = NULL;
  struct lade_error why = {0}; /* of the second search, which may fail for nothing */
  int status = lade_planner_plan(s->planner, s->budget_bytes, error, &s->plan);
  if ((status && status != -EOVERFLOW) || !streaming_shrink(s))
    return status;
  status = search_begin(s, &why);
  if (!status)
    status = lade_planner_plan(s->planner, s->budget_bytes, &why, &usual);
  s->bounds.min_bytes = LADE_MIN(s->bounds.min_bytes, liked_min_bytes);
  if (usual && (!s->plan || usual->predicted_ns < s->plan->predicted_ns)) {
    lade_plan_destroy(s->plan);
    s->plan = usual;
    return 0;
  }
  lade_plan_destroy(usual);
  s->prices.streaming = liked; /* the plan's own, for ranks that follow it */
  if (!status || (status == -EOVERFLOW && s->plan))
    return 0;
  return lade_error_set(error, status, "%s", why.text);
}

/* What @s has decided; its residency stays the plan's. */
static struct lade_decision decision_of(const lade_session *s)
{
  struct lade_decision decision = {.residency = s->plan->residency, .bounds = s->bounds,
                                   .streaming = s->prices.streaming};
  memcpy(decision.peak_bytes, s->plan->peak_bytes, sizeof(decision.peak_bytes));
  return decision;
}

/* This rank's programs by the decision in @data. */
static int decision_follow(lade_session *s, const void *data, uint64_t bytes, struct lade_error *error)
{
  struct lade_decision decision;
  int status = lade_fault(s->params.faults, LADE_FAULT_PLAN);
  if (status)
    return lade_error_set(error, status, "what rank %d decided: no memory for its programs", s->decider);
  status = lade_decision_read(data, bytes, s->graph, error, &decision);
  if (status)
    return status;
  s->bounds = decision.bounds;
  s->prices.streaming = decision.streaming;
  const struct lade_plan_params how = plan_params(s);
  status = lade_plan_follow(&how, &decision, s->budget_bytes, error, &s->plan);
  lade_decision_finish(&decision);
  return status;
}

struct following {
  lade_session *session;
  const void *data;
  uint64_t bytes;
};

static int following_work(void *user, struct lade_error *error)
{
  const struct following *following = user;
  return decision_follow(following->session, following->data, following->bytes, error);
}

/* From the ranks that decide to those that follow, which make their plans of it; collective. */
static int decision_pass(lade_session *s, struct lade_error *error)
{
  void *own = NULL, *taken = NULL;
  uint64_t own_bytes = 0, taken_bytes = 0;
  int status = 0;
  if (session_is_decider(s) && s->n_following) {
    const struct lade_decision decision = decision_of(s);
    status = lade_decision_write(&decision, error, &own, &own_bytes);
  }
  status = lade_peers_vote(&s->peers, status, error);
  if (!status)
    status = session_agree_decision(s, own, own_bytes, &taken, &taken_bytes, error);
  free(own);
  if (status)
    return status;
  struct following following = {s, taken, taken_bytes};
  status = lade_peers_work(&s->peers, taken ? following_work : NULL, &following, error);
  free(taken);
  return status;
}

/* At every rank; those that decide have the plan then. */
static int plan_work(void *user, struct lade_error *error)
{
  lade_session *s = user;
  int status = session_durable_check_room(s, error); /* once bounds are known: a plan that is refused has them, too */
  if (!status)
    status = capacity_check(s, error);
  if (!status && session_is_decider(s)) {
    status = plan_search(s, error);
    if (status == -EOVERFLOW)
      host_budget_word(s, error);
  }
  if (status == -EOVERFLOW)
    refusal_word(&s->params.budget, error);
  return status;
}

static int plan_make(lade_session *s, struct lade_error *error)
{
  int status = tiers_resolve(s, error);
  if (!status)
    status = lade_peers_work(&s->peers, plan_work, s, error);
  return status ? status : decision_pass(s, error);
}

/* The plan of @params.alike, for this rank. */
static int plan_follow(lade_session *s, struct lade_error *error)
{
  const lade_session *alike = s->params.alike;
  void *data;
  uint64_t bytes;
  LADE_ASSERT(alike->plan);
  s->capacity_bytes = alike->capacity_bytes;
  s->left_bytes = alike->left_bytes;
  s->budget_bytes = alike->budget_bytes;
  s->host_bytes = alike->host_bytes;
  s->store_bytes = alike->store_bytes;
  s->decider = alike->decider;
  s->n_deciders = alike->n_deciders;
  const struct lade_decision decision = decision_of(alike);
  int status = lade_decision_write(&decision, error, &data, &bytes);
  if (status)
    return status;
  status = decision_follow(s, data, bytes, error);
  free(data);
  return status;
}

int session_plan(lade_session *s, struct lade_error *error)
{
  return s->params.alike ? plan_follow(s, error) : plan_make(s, error);
}
