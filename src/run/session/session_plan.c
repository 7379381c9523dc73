/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session's plan: budgets first, then the plan leaders, then the decision and the programs that each rank builds of
 * it.
 *
 * A device in host memory shares it with the host tier. The host tier may then take a share of the bytes that the
 * budget leaves: four fifths unless stated. session_memory.c computes the amount that they share. If a smallest or
 * automatic budget does not fit with a host tier, it is searched again without one.
 *
 * A decision costs one CPU second or many, and ranks of a stage with equal inputs (lade_plan_params_key) reach the same
 * decision. So the first of them, the plan leader, searches, and the others wait, which leaves it the cores. Its
 * decision goes to the followers as bytes; each follower builds, places and proves its own programs from it, within its
 * own budget. A rank with an input of its own (--host-budget may differ by rank) searches for itself;
 * lade_rank_group_prove later checks that its programs meet the others'.
 *
 * This takes two rounds. A budget may be a share of the bytes that keep everything. The host tier is a share of the
 * bytes that the budget leaves. First the bounds are agreed on, then the budget of each stage, the smallest of its
 * ranks', then the plan. All ranks vote on the result of each search and of each follower's programs, and all return
 * it. A waiting rank has no timeout while the working process lives (lade_rank_group_work).
 *
 * lade_session_params.template_session does the same in one process: it takes the other session's decision, without a
 * communicator.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/decision.h"
#include "run/session/session_internal.h"

#define HOST_SHARE 0.8            /* the host tier's part of the bytes left */
/* Bytes of a GPU left free if no budget is stated, for its driver's first use of kernels and streams. */
#define GPU_RESERVE_BYTES (UINT64_C(512) << 20)
#define GPU_RESERVE_SHARE 32      /* of a small GPU, this part */
#define STORE_SHARE 0.95          /* part of the file system's free bytes */

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
  status = lade_rank_group_vote(&s->group, status, error);
  if (status)
    return status;
  free_bytes = (uint64_t)((double)free_bytes * STORE_SHARE);
  s->store_bytes = s->params.store_budget_bytes ? s->params.store_budget_bytes : free_bytes;
  s->store_bytes /= (uint64_t)s->params.n_node_ranks;
  if (!s->params.store_budget_bytes)
    s->store_bytes += session_durable_held(s); /* each rank adds its own */
  return session_agree_min(s, &s->store_bytes, error);
}

static struct lade_plan_params plan_params(const lade_session *s)
{
  const uint64_t extra = session_durable_extra(s); /* the plan counts one of the two slots */
  return (struct lade_plan_params){
      .struct_size = sizeof(struct lade_plan_params), .graph = s->graph, .prices = &s->prices,
      .layout = lade_rank_group_layout(&s->group), .n_microbatches = s->n_microbatches, .is_unified = s->is_unified,
      .optimizer_in_backward = s->params.optimizer_in_backward, .chunk_bytes = s->chunk_bytes,
      .host_bytes = s->host_bytes, .store_bytes = s->store_bytes > extra ? s->store_bytes - extra : 0,
      .recipe = s->params.recipe, .overrides = s->overrides,
      .n_overrides = s->n_overrides};
}

/* Search as far as the bounds, replacing an earlier search. */
static int search_begin(lade_session *s, struct lade_error *error)
{
  const struct lade_plan_params params = plan_params(s);
  lade_planner_destroy(s->planner);
  s->planner = NULL;
  int status = lade_fault(s->params.faults, LADE_FAULT_PLAN);
  if (!status) {
    status = lade_planner_create(&params, error, &s->planner);
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

/* Make a planner at plan leaders, and give their bounds to all ranks; collective. */
static int planner_make(lade_session *s, struct lade_error *error)
{
  const struct lade_plan_params params = plan_params(s);
  int status = session_agree_leader(s, lade_plan_params_key(&params), error);
  if (status)
    return status;
  status = lade_rank_group_work(&s->group, session_is_plan_leader(s) ? bounds_work : NULL, s, error);
  return status ? status : session_agree_bounds(s, error);
}

/*
 * Replace the drive's preferred windows by the usual ones, which may take less room. False: the windows are the same.
 */
static bool streaming_shrink(lade_session *s)
{
  const struct lade_streaming before = s->prices.streaming;
  s->prices.streaming = lade_cost_streaming_small(&s->cost);
  return s->prices.streaming.window_bytes != before.window_bytes || s->prices.streaming.n_windows != before.n_windows;
}

/* Return @bytes times @of, at most UINT64_MAX. */
static uint64_t share(uint64_t bytes, double of)
{
  const double part = (double)bytes * of;
  return part >= 0x1p64 ? UINT64_MAX : (uint64_t)part;
}

/* Return the budget that the parameters and the bounds of this host tier give. */
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
  /* Memory is shared. If there is room to keep everything, the device gets HOST_SHARE of it, else half. */
  bool is_roomy = s->bounds.unconstrained_bytes <= share(s->left_bytes, HOST_SHARE);
  return is_roomy ? share(s->left_bytes, HOST_SHARE) : s->left_bytes / 2;
}

/* True if the device's memory is this machine's, shared with the host tier. */
static bool is_one_memory(const lade_session *s)
{
  return s->is_unified && !session_is_described(s);
}

/* Set the host tier to its share of the bytes that the budget leaves, or limit a stated one to these bytes. */
static void host_leave(lade_session *s)
{
  const uint64_t left = s->left_bytes - LADE_MIN(s->left_bytes, s->budget_bytes);
  if (!s->params.has_host_budget)
    s->host_bytes = share(left, HOST_SHARE);
  else if (is_one_memory(s))
    s->host_bytes = LADE_MIN(s->host_bytes, left);
}

/* Compute bounds for the current host tier, and the budget from them; collective. */
static int budget_make(lade_session *s, struct lade_error *error)
{
  int status = planner_make(s, error);
  if (status)
    return status;
  s->budget_bytes = budget_resolve(s);
  return session_agree_stage_min(s, &s->budget_bytes, error);
}

/*
 * Shrink device and host tier if they do not fit this machine together. A byte less of one tier costs the other a byte
 * at most, so they take the least together without a host tier: if any budget fits, this least one does. The host tier
 * then gets the bytes left, and the smallest budget with it is no larger. A stated budget stays. Collective.
 */
static int tiers_shrink(lade_session *s, struct lade_error *error)
{
  const uint64_t asked_bytes = s->host_bytes;
  s->host_bytes = 0;
  int status = planner_make(s, error);
  if (status)
    return status;
  s->budget_bytes = s->params.budget.kind == LADE_BUDGET_AUTO ? s->left_bytes : budget_resolve(s);
  status = session_agree_stage_min(s, &s->budget_bytes, error);
  if (status || s->params.budget.kind != LADE_BUDGET_MIN)
    return status;
  s->host_bytes = LADE_MIN(asked_bytes, s->left_bytes - LADE_MIN(s->left_bytes, s->budget_bytes));
  return budget_make(s, error);
}

/*
 * Set @ret_is_excessive if, at any rank, automatic tiers exceed the memory that they share, or leave no plan. A budget
 * in bytes or as a share stays, and is refused later. Collective.
 */
static int excess_find(lade_session *s, bool *ret_is_excessive, struct lade_error *error)
{
  const bool is_over = s->budget_bytes > s->left_bytes || s->host_bytes > s->left_bytes - s->budget_bytes;
  const bool is_short = s->bounds.min_bytes > s->budget_bytes && !s->params.has_host_budget;
  const enum lade_budget_kind kind = s->params.budget.kind;
  int64_t any = 0;
  int status = lade_rank_group_max(&s->group, is_one_memory(s) && ((kind == LADE_BUDGET_MIN && is_over) ||
                                                              (kind == LADE_BUDGET_AUTO && is_short)), &any, error);
  *ret_is_excessive = any != 0;
  return status;
}

static int tiers_resolve(lade_session *s, struct lade_error *error)
{
  const uint64_t n_sharing = (uint64_t)s->params.n_node_ranks; /* a described machine's memory is one rank's already */
  bool is_excessive = false;
  int status = store_room(s, error);
  if (!status)
    status = session_memory_share(s, error);
  if (!status)
    status = session_memory_store(s, session_durable_held(s), error);
  if (!status)
    status = session_agree_min(s, &s->left_bytes, error);
  if (status)
    return status;
  if (!s->params.is_gpu)
    s->capacity_bytes = session_is_described(s) ? s->cost.machine.device_bytes : s->left_bytes;
  s->host_bytes = s->params.has_host_budget ? s->params.host_budget_bytes / n_sharing
                                            : share(s->left_bytes, HOST_SHARE);
  if (!session_is_described(s))
    s->host_bytes = LADE_MIN(s->host_bytes, s->left_bytes);
  if (s->params.budget.kind == LADE_BUDGET_MIN)
    streaming_shrink(s);
  status = budget_make(s, error);
  if (status)
    return status;
  const uint64_t before_bytes = s->host_bytes;
  if (s->is_unified && s->params.budget.kind != LADE_BUDGET_MIN)
    host_leave(s);
  int64_t is_changed = 0;
  status = lade_rank_group_max(&s->group, s->host_bytes != before_bytes, &is_changed, error);
  if (!status && is_changed)
    status = planner_make(s, error);
  if (!status)
    status = excess_find(s, &is_excessive, error);
  return !status && is_excessive ? tiers_shrink(s, error) : status;
}

/* ---- the plan ---- */

/* Put the percentage that the user stated before the line of a refusal, which has bytes alone. */
static void refusal_add_budget(const struct lade_budget *budget, struct lade_error *error)
{
  if (!error || (budget->kind != LADE_BUDGET_PERCENT && budget->kind != LADE_BUDGET_PERCENT_DEVICE))
    return;
  const struct lade_error line = *error;
  lade_error_set(error, line.code, "--budget %g%%%s: %s", budget->percent,
                 budget->kind == LADE_BUDGET_PERCENT ? "" : "dev", line.text);
}

/*
 * Replace the line of a refusal if --host-budget took the bytes that the device lacks: where both share memory, a
 * larger one would not help.
 */
static void refusal_name_host_budget(const lade_session *s, struct lade_error *error)
{
  char host[LADE_SIZE_TEXT], left[LADE_SIZE_TEXT], min[LADE_SIZE_TEXT];
  const uint64_t min_bytes = s->bounds.min_bytes;
  if (s->params.budget.kind != LADE_BUDGET_AUTO || !s->params.has_host_budget || !s->is_unified ||
      min_bytes > s->left_bytes)
    return;
  lade_error_set(error, -EOVERFLOW, "--host-budget takes %s of the %s that this machine has left, and the smallest "
                 "budget found is %s: state --budget as well, or a smaller --host-budget",
                 lade_size_exact(s->params.host_budget_bytes / (uint64_t)s->params.n_node_ranks, host),
                 lade_size_exact(s->left_bytes, left),
                 lade_size_exact(min_bytes, min));
}

/* Check that the budget is within the capacity of this rank's device. */
static int capacity_check(const lade_session *s, struct lade_error *error)
{
  char asked[LADE_SIZE_TEXT], has[LADE_SIZE_TEXT], words[200];
  const bool has_any = s->bounds.min_bytes != UINT64_MAX; /* else the planner names the tier that is short */
  if (!has_any || s->budget_bytes <= s->capacity_bytes || session_is_described(s) ||
      (s->params.is_gpu && s->params.is_plan_only))
    return 0;
  snprintf(words, sizeof(words), "the budget of %s is more than this %s has left, %s",
           lade_size_exact(s->budget_bytes, asked), s->params.is_gpu ? "GPU" : "machine",
           lade_size_exact(s->capacity_bytes, has));
  return s->params.is_gpu ? lade_error_set(error, -EOVERFLOW, "%s", words)
                          : session_memory_refuse(s, words, s->budget_bytes, error);
}

/* Replace the line of a refusal if the smallest budget is more than this machine's memory: no budget would fit. */
static void refusal_name_memory(const lade_session *s, struct lade_error *error)
{
  char words[200], min[LADE_SIZE_TEXT];
  if (!error || !is_one_memory(s) || s->bounds.min_bytes == UINT64_MAX || s->bounds.min_bytes <= s->left_bytes)
    return;
  snprintf(words, sizeof(words), "does not fit in this machine: the smallest budget found is %s, less with a "
           "--store or a smaller --micro-batch,", lade_size_exact(s->bounds.min_bytes, min));
  session_memory_refuse(s, words, s->bounds.min_bytes, error);
}

/*
 * Search two plans and keep the faster: one with the drive's preferred windows for streamed updates, and one with the
 * usual windows, if these take less room. So the smallest budget is the smaller one of both, and a larger budget is
 * never slower, as with one planner.
 */
static int plan_search(lade_session *s, struct lade_error *error)
{
  const struct lade_streaming liked = s->prices.streaming;
  const uint64_t liked_min_bytes = s->bounds.min_bytes;
  struct lade_plan *usual = NULL;
  struct lade_error why = {0}; /* of the second search, whose failure is ignored if the first plan holds */
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
  s->prices.streaming = liked; /* the plan's own, for its followers */
  if (!status || (status == -EOVERFLOW && s->plan))
    return 0;
  return lade_error_set(error, status, "%s", why.text);
}

/* Return the decision of @s, which borrows the plan's residency. */
static struct lade_decision decision_of(const lade_session *s)
{
  struct lade_decision decision = {.residency = s->plan->residency, .bounds = s->bounds,
                                   .streaming = s->prices.streaming};
  memcpy(decision.peak_bytes, s->plan->peak_bytes, sizeof(decision.peak_bytes));
  return decision;
}

/* Build this rank's programs from the decision in @data. */
static int decision_follow(lade_session *s, const void *data, uint64_t bytes, struct lade_error *error)
{
  struct lade_decision decision;
  int status = lade_fault(s->params.faults, LADE_FAULT_PLAN);
  if (status)
    return lade_error_set(error, status, "what rank %d decided: no memory for its programs", s->leader);
  status = lade_decision_read(data, bytes, s->graph, error, &decision);
  if (status)
    return status;
  s->bounds = decision.bounds;
  s->prices.streaming = decision.streaming;
  const struct lade_plan_params params = plan_params(s);
  status = lade_plan_follow(&params, &decision, s->budget_bytes, error, &s->plan);
  lade_decision_finish(&decision);
  return status;
}

struct follower {
  lade_session *session;
  const void *data;
  uint64_t bytes;
};

static int follower_work(void *user, struct lade_error *error)
{
  const struct follower *follower = user;
  return decision_follow(follower->session, follower->data, follower->bytes, error);
}

/* Give the leaders' decisions to their followers, which build their plans from them; collective. */
static int decision_pass(lade_session *s, struct lade_error *error)
{
  void *own = NULL, *taken = NULL;
  uint64_t own_bytes = 0, taken_bytes = 0;
  int status = 0;
  if (session_is_plan_leader(s) && s->n_followers) {
    const struct lade_decision decision = decision_of(s);
    status = lade_decision_write(&decision, error, &own, &own_bytes);
  }
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = session_agree_decision(s, own, own_bytes, &taken, &taken_bytes, error);
  free(own);
  if (status)
    return status;
  struct follower follower = {s, taken, taken_bytes};
  status = lade_rank_group_work(&s->group, taken ? follower_work : NULL, &follower, error);
  free(taken);
  return status;
}

/* Check the budget at every rank, and search the plan at plan leaders. */
static int plan_work(void *user, struct lade_error *error)
{
  lade_session *s = user;
  int status = session_durable_check_room(s, error); /* after the bounds are known, because a refusal reports them */
  if (!status)
    status = capacity_check(s, error);
  if (!status && session_is_plan_leader(s)) {
    status = plan_search(s, error);
    if (!status) /* a plan within the budget is one without it, too */
      s->bounds.unconstrained_ns = LADE_MIN(s->bounds.unconstrained_ns, s->plan->predicted_ns);
    if (status == -EOVERFLOW) {
      refusal_name_host_budget(s, error);
      refusal_name_memory(s, error);
    }
  }
  if (status == -EOVERFLOW)
    refusal_add_budget(&s->params.budget, error);
  return status;
}

static int plan_make(lade_session *s, struct lade_error *error)
{
  int status = tiers_resolve(s, error);
  if (!status)
    status = lade_rank_group_work(&s->group, plan_work, s, error);
  return status ? status : decision_pass(s, error);
}

/* Build this rank's plan from the decision of @params.template_session. */
static int plan_follow(lade_session *s, struct lade_error *error)
{
  const lade_session *template_session = s->params.template_session;
  void *data;
  uint64_t bytes;
  LADE_ASSERT(template_session->plan);
  s->capacity_bytes = template_session->capacity_bytes;
  s->left_bytes = template_session->left_bytes;
  s->own_bytes = template_session->own_bytes;
  s->is_store_memory = template_session->is_store_memory;
  s->store_memory_bytes = template_session->store_memory_bytes;
  s->budget_bytes = template_session->budget_bytes;
  s->host_bytes = template_session->host_bytes;
  s->store_bytes = template_session->store_bytes;
  s->leader = template_session->leader;
  s->n_plan_leaders = template_session->n_plan_leaders;
  const struct lade_decision decision = decision_of(template_session);
  int status = lade_decision_write(&decision, error, &data, &bytes);
  if (status)
    return status;
  status = decision_follow(s, data, bytes, error);
  free(data);
  return status;
}

int session_plan(lade_session *s, struct lade_error *error)
{
  int status = s->params.template_session ? plan_follow(s, error) : plan_make(s, error);
  lade_planner_destroy(s->planner); /* frees its memory before tiers are taken; the plan does not need it */
  s->planner = NULL;
  if (status)
    return status;
  status = session_memory_check(s, error);
  if (status) {
    lade_plan_destroy(s->plan);
    s->plan = NULL;
  }
  return status;
}
