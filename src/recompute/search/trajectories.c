/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make the trajectories of a planner.
 *
 * A trajectory is a greedy sequence of changes, from everything kept to the smallest memory (descent.c). No greedy
 * order always gives the best mix of changes, so the planner makes several (trajectory_kinds). They differ in the
 * changes that they may make: recompute alone, offload alone, both, optimizer state before its working copy. They also
 * differ in the share of a copy's time that they assume to be exposed. A value may be a lump: one change of it frees a
 * large part of the peak, such as the logits, and the trajectory has no state between. Another one keeps the lump, and
 * makes other changes as far as the lump leads. Where state is in shards, one more prices blocks and gathers as they
 * are. The others price state as if each rank had it whole: the gathers that they ignore leave the links some slack.
 * Each way finds plans that the other misses. If optimizer_in_backward is allowed, all kinds are made with it as well:
 * it keeps fewer gradients, but the scratch of its updates overlaps activations.
 *
 * As many trajectories again use the prices of one fixed machine (plan.c); they give the smallest budget. Measured
 * prices vary from probe to probe. They decide which plan is fastest in a budget, but not the smallest budget. By
 * these prices a coarse trajectory is made first: it moves whole groups, in few rounds. If it reaches the lower bound
 * of every budget, nothing is smaller, and the others are not made.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "lade/pack.h"
#include "recompute/search/plan_internal.h"

#define TIGHT_BYTES 48 /* of the tiers, per parameter: with less, a value may have to be recomputed several times */

/* Price parameters and state as shared by @n_shards ranks; 1: as if each rank had them whole. */
static void unit_costs_share(const struct lade_plan_params *params, int n_shards, struct lade_unit_costs *unit_costs)
{
  const struct lade_transfer_price *link = &params->prices->comm[LADE_AXIS_SHARD];
  unit_costs->n_shards = n_shards;
  unit_costs->n_grad_shards = n_shards > 1 && params->layout->zero >= 2 ? n_shards : 1;
  unit_costs->gather_latency_ns = (double)link->latency_ns;
  unit_costs->gather_ns = link->ns_per_byte * (n_shards - 1) / n_shards;
}

#define LUMP_PART 12 /* a value is a lump if its change alone frees such a part of the unconstrained peak */

/* A kind of trajectory: the changes it may make, and the prices it makes them by. */
struct trajectory_kind {
  int allowed;
  double exposed_fraction; /* of each transfer and host update, charged to the compute queue */
  bool is_of_shards;       /* state is priced as shared by ranks */
  bool is_serial;          /* updates off the device overlap no op: they wait for the clip result */
  bool is_alone;           /* no tier is used, though there is one */
  bool is_for_large;       /* made for large programs too, where a trajectory takes long */
  bool is_for_contention;  /* by stated prices made only where copies contend with gathers, or with ops for cores */
};

/*
 * Programs whose state is far larger than the device need the first kind. Where all state fits, the second and the one
 * without tiers are faster by up to a third: the first moves state whose updates on the host are exposed. Small budgets
 * leave little room for prefetch, so all copies are exposed: there the last two are faster by up to a half. The third
 * was the fastest nowhere in 130 plans of one rank with a device of its own, and by up to 7 % with shards.
 */
static const struct trajectory_kind trajectory_kinds[N_TRAJECTORY_KINDS] = {
    {DESCENT_RECOMPUTE | DESCENT_OFFLOAD, 0.05, .is_for_large = true},
    {DESCENT_RECOMPUTE | DESCENT_OFFLOAD, 0.5, .is_for_large = true},
    {DESCENT_RECOMPUTE, 0.05, .is_for_contention = true},
    {DESCENT_OFFLOAD, 0.05},
    {DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_APART, 0.05},
    {DESCENT_RECOMPUTE | DESCENT_OFFLOAD, 0.5, .is_of_shards = true},
    {DESCENT_RECOMPUTE, 0.05, .is_alone = true, .is_for_large = true},
    {DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_REPLACE | DESCENT_LEVEL, 0.5},
    {DESCENT_RECOMPUTE | DESCENT_OFFLOAD | DESCENT_LEVEL, 1.0, .is_serial = true},
};

/* True if a trajectory of @kind may differ from that of the first kind, and is worth its time. */
static bool kind_is_useful(const lade_planner *planner, const struct pricing *pricing,
                           const struct trajectory_kind *kind)
{
  const struct lade_plan_params *params = &planner->params;
  const bool is_plain = pricing == &planner->plain; /* leads to the smallest budget, not to fast steps */
  if (kind == &trajectory_kinds[0])
    return true;
  if (descent_is_large(params) && (is_plain || !kind->is_for_large))
    return false;
  if (kind->is_of_shards)
    return lade_shard_count(params->layout) > 1;
  if (is_plain && (kind->is_alone || (kind->allowed & DESCENT_LEVEL)))
    return false;
  if (!is_plain && kind->is_for_contention && lade_shard_count(params->layout) == 1 && !params->is_unified)
    return false;
  return params->host_bytes || params->store_bytes;
}

/* The trajectories by one pricing, while they are made: on a thread of its own. */
struct descents {
  const lade_planner *planner;
  struct pricing *pricing;
  bool may_be_coarse; /* the coarse trajectory is enough if it reaches the lower bound */
  struct lade_residency *start;
  bool *is_pinned; /* the planner's, and a lump that a trajectory keeps */
  struct trajectory made[N_TRAJECTORIES / 2];
  int n_made, status;
  bool is_coarse; /* the coarse trajectory is the only one made */
};

/* A value whose change alone frees a large part of the peak, and the bytes that are live then. */
struct lump {
  int32_t tensor; /* -1: none */
  uint64_t end_bytes;
};

static const struct lump no_lump = {.tensor = -1};

/* Make the next trajectory of @d, of @kind; with a @lump it keeps that value, and ends where the lump led to. */
static int descent_of_kind_make(struct descents *d, const struct trajectory_kind *kind, bool is_coarse,
                                const struct lump *lump)
{
  const lade_planner *planner = d->planner;
  struct pricing *pricing = d->pricing;
  const int n_shards = lade_shard_count(planner->params.layout);
  uint64_t state = (uint64_t)lade_model_n_params(&planner->params.graph->model) * TIGHT_BYTES;
  bool is_tight = planner->params.host_bytes < state && planner->params.store_bytes < state;
  struct lade_plan_params params = pricing->params;
  if (kind->is_alone)
    params.host_bytes = params.store_bytes = 0;
  pricing->unit_costs.has_serial_updates = kind->is_serial && !d->start->optimizer_in_backward;
  pricing->unit_costs.exposed_fraction = kind->exposed_fraction;
  unit_costs_share(&pricing->params, kind->is_of_shards ? n_shards : 1, &pricing->unit_costs);
  int allowed = kind->allowed | (is_tight && !descent_is_large(&planner->params) ? DESCENT_REPEAT : 0);
  const struct descent_params descent = {.plan = &params, .start = d->start, .is_pinned = d->is_pinned,
                                         .pricer = pricing->pricer, .analysis = &pricing->analysis, .allowed = allowed,
                                         .end_bytes = lump->end_bytes, .is_coarse = is_coarse};
  LADE_ASSERT(d->n_made < (int)LADE_COUNT(d->made));
  int status = descent_make(&descent, &d->made[d->n_made]);
  d->n_made += status == 0;
  return status;
}

/* Find the first lump of @trajectory. */
static struct lump lump_find(const struct trajectory *trajectory)
{
  const struct descent_state *states = trajectory->states.items;
  for (int i = 1; i < trajectory->states.n; i++) {
    const struct lade_change *change = &trajectory->changes.items[states[i].n_changes - 1];
    const uint64_t before = states[i - 1].live_bytes[LADE_DEVICE], after = states[i].live_bytes[LADE_DEVICE];
    if (change->kind == LADE_CHANGE_SAVED && states[i].n_changes == states[i - 1].n_changes + 1 && before > after &&
        before - after > states[0].live_bytes[LADE_DEVICE] / LUMP_PART)
      return (struct lump){change->id, after};
  }
  return no_lump;
}

/* True if the trajectory of @kind is worth a second one that keeps its lump: one kind with tiers, and one without. */
static bool may_keep_lump(const struct descents *d, const struct trajectory_kind *kind)
{
  const struct lade_plan_params *params = &d->planner->params;
  const bool has_tiers = params->host_bytes || params->store_bytes;
  return kind == &trajectory_kinds[has_tiers ? 1 : 0] && d->pricing == &d->planner->stated && !descent_is_large(params);
}

/* Make a trajectory like the last one, of @kind, that keeps the last one's lump. */
static int descent_past_lump_make(struct descents *d, const struct trajectory_kind *kind)
{
  const struct lump lump = lump_find(&d->made[d->n_made - 1]);
  if (lump.tensor < 0 || d->is_pinned[lump.tensor])
    return 0;
  d->is_pinned[lump.tensor] = true;
  const int status = descent_of_kind_make(d, kind, false, &lump);
  d->is_pinned[lump.tensor] = false;
  return status;
}

/* Make the trajectories with optimizer_in_backward or without. */
static int descents_of_kind_make(struct descents *d, bool optimizer_in_backward)
{
  int status = 0;
  d->start->optimizer_in_backward = optimizer_in_backward;
  for (int i = 0; i < N_TRAJECTORY_KINDS && !status; i++) {
    const struct trajectory_kind *kind = &trajectory_kinds[i];
    if (!kind_is_useful(d->planner, d->pricing, kind))
      continue;
    status = descent_of_kind_make(d, kind, false, &no_lump);
    if (!status && may_keep_lump(d, kind))
      status = descent_past_lump_make(d, kind);
  }
  return status;
}

/* Make the coarse trajectory, and keep it if some state of it is live in no more than the lower bound. */
static int descent_coarse_make(struct descents *d)
{
  const struct lade_plan_params *params = &d->planner->params;
  const uint64_t bound_bytes = plan_lower_bound(params);
  d->start->optimizer_in_backward = params->optimizer_in_backward;
  int status = descent_of_kind_make(d, &trajectory_kinds[0], true, &no_lump);
  if (status)
    return status;
  for (int i = 0; i < d->made[0].states.n && !d->is_coarse; i++)
    d->is_coarse = d->made[0].states.items[i].live_bytes[LADE_DEVICE] <= bound_bytes;
  if (!d->is_coarse)
    descent_finish(&d->made[--d->n_made]);
  return 0;
}

static void *descents_make(void *descents)
{
  struct descents *d = descents;
  struct pricing *pricing = d->pricing;
  const bool optimizer_in_backward = d->planner->params.optimizer_in_backward;
  const size_t n_changes = (size_t)lade_change_count(d->planner->params.graph) + 1;
  d->is_pinned = malloc(n_changes * sizeof(*d->is_pinned));
  d->status = d->is_pinned ? lade_residency_copy(d->planner->start, &d->start) : -ENOMEM;
  if (d->is_pinned)
    memcpy(d->is_pinned, d->planner->is_pinned, n_changes * sizeof(*d->is_pinned));
  if (!d->status)
    d->status = peak_analysis_init(&pricing->analysis, &pricing->params, pricing->pricer);
  if (!d->status && d->may_be_coarse)
    d->status = descent_coarse_make(d);
  if (!d->status && !d->is_coarse && optimizer_in_backward)
    d->status = descents_of_kind_make(d, true);
  if (!d->status && !d->is_coarse && !(optimizer_in_backward && descent_is_large(&d->planner->params)))
    d->status = descents_of_kind_make(d, false);
  pricing->n_peaks = pricing->analysis.items.n;
  peak_analysis_finish(&pricing->analysis);
  lade_residency_destroy(d->start);
  free(d->is_pinned);
  return NULL;
}

/* Append the trajectories of @d to the planner's. */
static void descents_take(lade_planner *planner, const struct descents *d)
{
  memcpy(&planner->trajectories[planner->n_trajectories], d->made, (size_t)d->n_made * sizeof(*d->made));
  planner->n_trajectories += d->n_made;
}

/*
 * Make all trajectories. Those by plain prices share no data with the others, so they are made meanwhile, on a thread
 * of their own: afterwards, if the machine refuses one.
 */
int planner_make_trajectories(lade_planner *planner)
{
  struct descents all[] = {{.planner = planner, .pricing = &planner->stated},
                           {.planner = planner, .pricing = &planner->plain, .may_be_coarse = true}};
  pthread_t thread;
  const bool has_thread = !lade_thread_start(&thread, "lade-plan", descents_make, &all[1]);
  descents_make(&all[0]);
  if (has_thread)
    pthread_join(thread, NULL);
  else
    descents_make(&all[1]);
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    descents_take(planner, &all[i]);
  planner->n_stated = all[0].n_made;
  planner->is_plain_coarse = all[1].is_coarse;
  return all[0].status ? all[0].status : all[1].status;
}

int planner_refine_plain(lade_planner *planner)
{
  struct descents d = {.planner = planner, .pricing = &planner->plain};
  while (planner->n_trajectories > planner->n_stated)
    descent_finish(&planner->trajectories[--planner->n_trajectories]);
  descents_make(&d);
  descents_take(planner, &d);
  planner->is_plain_coarse = d.status != 0; /* after a failure the next call makes them all again */
  return d.status;
}
