/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search over layouts: all of them, with bounds.
 *
 * A candidate is (tp, sequence, pp, schedule, virtual stages, microbatch, recompute); dp follows from the ranks. Its
 * variants are the ZeRO stages and shard groups, which share its pipeline. The units of a share are made once for each
 * (tp, sequence, microbatch, recompute). The time of each candidate's pipeline is bounded from below in O(stages),
 * for any batch and ranks. Candidates then come in order of their bounds.
 *
 * A candidate is left out with all its variants if its bound is above the time of the n-th best found, or above that of
 * the one found of its sizes and schedule: neither it nor any variant can be among the best. Otherwise the memory of
 * each variant is computed, O(1); if one fits and its bound is low enough too, the schedule is run once for all.
 *
 * Ranks of a stage are alike, so ranks only add divisors. Of each (tp, pp, dp) and schedule the fastest layout is kept:
 * if the proof of one finds that it does not fit, the caller has others.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/layout_cost.h"

#define MICRO_BATCH_MOST 64   /* a larger one only fills more memory: products are at their full rate long before */
#define SLACK 0.97            /* memory of a layout is an estimate within 3 %; proofs decide (stage_program.c) */
#define N_SCHEDULES_SEARCHED 3
#define SHARD_FEW 64
#define N_SHARD_GROUPS 3
#define N_VARIANTS_MOST ((LADE_ZERO_MOST + 1) * N_SHARD_GROUPS)

struct share_entry {
  struct lade_share_key key;
  struct lade_share_cost cost;
  bool is_possible;
};

struct layout_candidate {
  double bound_ns;
  struct lade_layout_params layout; /* of no ZeRO stage */
  int64_t micro_batch;
  int32_t share;
  uint8_t recipe;
};

struct layout_searcher {
  struct lade_layout_job own_job; /* the caller's, with cuts */
  const struct lade_layout_job *job;
  int64_t **cuts;
  const struct lade_layout_search_params *params;
  struct lade_layout_search *search;
  LADE_ARRAY(struct share_entry) shares;
  LADE_ARRAY(struct layout_candidate) candidates;
  struct lade_layout_found least; /* of memory, among those that do not fit */
  int status;
};

/* Make room for a cut of the model into each number of pieces. Each is made at first use. */
static int cuts_init(struct layout_searcher *s, const struct lade_layout_job *job)
{
  s->cuts = calloc((size_t)job->model->layers + 1, sizeof(*s->cuts));
  s->own_job = *job;
  s->own_job.cuts = (const int64_t *const *)s->cuts;
  s->job = &s->own_job;
  return s->cuts ? 0 : -ENOMEM;
}

static void cuts_free(struct layout_searcher *s, int n)
{
  for (int n_pieces = 1; s->cuts && n_pieces <= n; n_pieces++)
    free(s->cuts[n_pieces]);
  free(s->cuts);
}

/* ---- candidates ---- */

/* Return the number of the share with @key, made at first use; -1: it is not possible, or there is no memory. */
static int share_find(struct layout_searcher *s, const struct lade_share_key *key)
{
  for (int i = s->shares.n - 1; i >= 0; i--) {
    const struct lade_share_key *other = &s->shares.items[i].key;
    if (other->tp == key->tp && other->is_sequence == key->is_sequence && other->micro_batch == key->micro_batch &&
        other->recipe == key->recipe)
      return s->shares.items[i].is_possible ? i : -1;
  }
  struct share_entry entry = {.key = *key};
  const int status = lade_share_cost_make(s->job, key, NULL, &entry.cost);
  entry.is_possible = !status;
  if (status == -ENOMEM || !LADE_PUSH(&s->shares, entry))
    s->status = -ENOMEM;
  return entry.is_possible && !s->status ? s->shares.n - 1 : -1;
}

/*
 * List the ZeRO stages and shard groups of @layout. A group is all replicas, those of one node, or SHARD_FEW: blocks of
 * very many shards are mostly padding. Return their number.
 */
static int variants_list(const struct layout_searcher *s, struct lade_layout_params layout,
                         struct lade_layout_params *ret_variants)
{
  const struct lade_layout_search_params *given = s->params;
  const int64_t groups[N_SHARD_GROUPS] = {0, s->job->cluster->levels[0].n_devices / layout.tp, SHARD_FEW};
  int n = 0;
  for (int zero = 0; zero <= (layout.dp > 1 ? LADE_ZERO_MOST : 0); zero++) {
    if (given->zero >= 0 && given->zero != zero)
      continue;
    layout.zero = zero;
    for (int i = 0; i < N_SHARD_GROUPS; i++) {
      const bool is_group = groups[i] == 0 || (zero && !given->shard && groups[i] > 1 && groups[i] < layout.dp &&
                                               layout.dp % groups[i] == 0);
      layout.shard = groups[i] ? (int)groups[i] : zero ? given->shard : 0;
      if (is_group)
        ret_variants[n++] = layout;
    }
  }
  return n;
}

/* Bound the pipeline of @layout_params, and keep it as a candidate. */
static void candidate_bound(struct layout_searcher *s, const struct lade_layout_params *layout_params,
                            int64_t micro_batch, enum lade_recipe recipe, int share)
{
  struct lade_layout_params variants[N_VARIANTS_MOST];
  struct lade_layout layout;
  struct lade_layout_core core;
  const int n_pieces = layout_params->pp * layout_params->virtual_stages;
  if (lade_layout_init(layout_params, NULL, &layout))
    return;
  int status = s->cuts[n_pieces]
                   ? 0
                   : lade_layers_cut(s->job->model, s->job->seq_len, n_pieces, NULL, &s->cuts[n_pieces]);
  if (!status)
    status = lade_layout_core_make(s->job, &layout, micro_batch, &s->shares.items[share].cost, true, NULL, &core);
  if (status) {
    s->status = status == -ENOMEM ? status : s->status;
    return;
  }
  s->search->n_evaluated += variants_list(s, *layout_params, variants);
  const struct layout_candidate candidate = {core.span_ns, *layout_params, micro_batch, share, (uint8_t)recipe};
  if (!LADE_PUSH(&s->candidates, candidate))
    s->status = -ENOMEM;
}

/* Bound all schedules of @layout's stages. GPipe takes more memory than 1F1B for the same time, so it is asked for. */
static void schedules_bound(struct layout_searcher *s, struct lade_layout_params layout, int64_t micro_batch,
                            enum lade_recipe recipe, int share)
{
  static const enum lade_schedule plain[] = {LADE_SCHEDULE_1F1B, LADE_SCHEDULE_ZBH1, LADE_SCHEDULE_ZBH2,
                                             LADE_SCHEDULE_GPIPE};
  const struct lade_layout_search_params *given = s->params;
  const int64_t m = s->job->batch / layout.dp / micro_batch;
  for (size_t i = 0; i < LADE_COUNT(plain) && given->virtual_stages <= 1; i++) {
    const bool is_searched = given->schedule < 0 ? i < N_SCHEDULES_SEARCHED : given->schedule == (int)plain[i];
    if (!is_searched || (layout.pp == 1 && plain[i] != LADE_SCHEDULE_1F1B))
      continue;
    layout.schedule = plain[i];
    layout.virtual_stages = 1;
    candidate_bound(s, &layout, micro_batch, recipe, share);
  }
  if (layout.pp == 1 || m % layout.pp || (given->schedule >= 0 && given->schedule != LADE_SCHEDULE_INTERLEAVED))
    return;
  layout.schedule = LADE_SCHEDULE_INTERLEAVED;
  for (int v = 2; v * layout.pp <= s->job->model->layers; v++) {
    if (given->virtual_stages > 1 && given->virtual_stages != v)
      continue;
    layout.virtual_stages = v;
    candidate_bound(s, &layout, micro_batch, recipe, share);
  }
}

/* Bound all microbatches and recipes of @layout's sizes. */
static void sizes_bound(struct layout_searcher *s, const struct lade_layout_params *layout)
{
  static const enum lade_recipe recipes[] = {LADE_RECIPE_NONE, LADE_RECIPE_SELECTIVE, LADE_RECIPE_FULL};
  const struct lade_layout_search_params *given = s->params;
  const int64_t rows = s->job->batch / layout->dp;
  for (int64_t micro_batch = 1; micro_batch <= LADE_MIN(rows, MICRO_BATCH_MOST) && !s->status; micro_batch++) {
    if (rows % micro_batch || (given->micro_batch && given->micro_batch != micro_batch))
      continue;
    for (size_t i = 0; i < LADE_COUNT(recipes); i++) {
      if (given->recipe != LADE_RECIPE_AUTO && given->recipe != recipes[i])
        continue;
      const struct lade_share_key key = {layout->tp, layout->is_sequence, micro_batch, recipes[i]};
      const int share = share_find(s, &key);
      if (share >= 0)
        schedules_bound(s, *layout, micro_batch, recipes[i], share);
    }
  }
}

static void pipelines_bound(struct layout_searcher *s, int tp)
{
  const struct lade_layout_search_params *given = s->params;
  const int rest = given->n_ranks / tp;
  for (int pp = 1; pp <= LADE_MIN(rest, s->job->model->layers) && !s->status; pp++) {
    const int dp = rest / pp;
    if (rest % pp || (given->pp && given->pp != pp) || (given->dp && given->dp != dp) || s->job->batch % dp)
      continue;
    for (int is_sequence = 0; is_sequence <= (tp > 1); is_sequence++) {
      if (given->is_sequence >= 0 && given->is_sequence != is_sequence && tp > 1)
        continue;
      const struct lade_layout_params layout = {.struct_size = sizeof(layout), .tp = tp, .pp = pp, .dp = dp,
                                                .is_sequence = is_sequence,
                                                .grad_reduce = dp > 1 ? given->grad_reduce : LADE_F32};
      sizes_bound(s, &layout);
    }
  }
}

/* ---- the best ---- */

static int candidate_compare(const void *a, const void *b)
{
  const double x = ((const struct layout_candidate *)a)->bound_ns, y = ((const struct layout_candidate *)b)->bound_ns;
  return (x > y) - (x < y);
}

static bool is_same_kind(const struct lade_layout_params *a, const struct lade_layout_params *b)
{
  return a->tp == b->tp && a->pp == b->pp && a->dp == b->dp && a->schedule == b->schedule;
}

/* Put @found in its place among the best ones, in which each (tp, pp, dp, schedule) is once. */
static void found_insert(struct layout_searcher *s, const struct lade_layout_found *found)
{
  struct lade_layout_search *search = s->search;
  int at = 0, gone = search->n_found;
  while (at < search->n_found && search->found[at].cost.step_ns <= found->cost.step_ns) {
    if (is_same_kind(&search->found[at++].layout, &found->layout))
      return; /* a faster one is there */
  }
  for (int i = at; i < search->n_found; i++) {
    if (is_same_kind(&search->found[i].layout, &found->layout))
      gone = i;
  }
  if (gone == s->params->n_most) /* all are better than the last, which leaves */
    gone--;
  else if (gone == search->n_found)
    search->n_found++;
  if (at > gone)
    return;
  memmove(&search->found[at + 1], &search->found[at], (size_t)(gone - at) * sizeof(*found));
  search->found[at] = *found;
}

/* Return the time above which no layout with the sizes and schedule of @layout can be among the best. */
static double limit_get(const struct layout_searcher *s, const struct lade_layout_params *layout)
{
  const struct lade_layout_search *search = s->search;
  for (int i = 0; i < search->n_found; i++) {
    if (is_same_kind(&search->found[i].layout, layout))
      return search->found[i].cost.step_ns;
  }
  return search->n_found == s->params->n_most ? search->found[search->n_found - 1].cost.step_ns : INFINITY;
}

/*
 * Cost all variants of @candidate that fit and may be among the best. The first of them runs the schedule. Of those
 * that do not fit, the one that needs least is remembered.
 */
static int candidate_cost(struct layout_searcher *s, const struct layout_candidate *candidate)
{
  struct lade_layout_params variants[N_VARIANTS_MOST];
  struct lade_layout layout;
  struct lade_layout_core core;
  const struct lade_share_cost *share = &s->shares.items[candidate->share].cost;
  bool is_run = false;
  int n = variants_list(s, candidate->layout, variants), status = lade_layout_init(&candidate->layout, NULL, &layout);
  if (!status)
    status = lade_layout_core_make(s->job, &layout, candidate->micro_batch, share, true, NULL, &core);
  for (int i = 0; i < n && !status; i++) {
    struct lade_layout_found found = {.layout = variants[i], .micro_batch = candidate->micro_batch,
                                      .recipe = (enum lade_recipe)candidate->recipe};
    if (lade_layout_init(&variants[i], NULL, &layout))
      continue;
    lade_layout_core_cost(s->job, &core, &layout, &found.cost);
    if ((double)found.cost.peak_bytes * SLACK > (double)s->params->device_bytes) {
      if (!s->least.cost.peak_bytes || found.cost.peak_bytes < s->least.cost.peak_bytes)
        s->least = found;
      continue;
    }
    if (found.cost.step_ns > limit_get(s, &found.layout))
      continue;
    if (!is_run)
      status = lade_layout_core_make(s->job, &layout, candidate->micro_batch, share, false, NULL, &core);
    is_run = true;
    if (!status) {
      lade_layout_core_cost(s->job, &core, &layout, &found.cost);
      found_insert(s, &found);
      s->search->n_costed++;
    }
  }
  return status == -ENOMEM ? status : 0;
}

/* Cost candidates in order of their bounds until no later one can be among the best. */
static int best_find(struct layout_searcher *s)
{
  struct lade_layout_search *search = s->search;
  int status = 0;
  if (s->candidates.n)
    qsort(s->candidates.items, (size_t)s->candidates.n, sizeof(*s->candidates.items), candidate_compare);
  for (int i = 0; i < s->candidates.n && !status; i++) {
    const struct layout_candidate *candidate = &s->candidates.items[i];
    if (search->n_found == s->params->n_most &&
        candidate->bound_ns > search->found[search->n_found - 1].cost.step_ns)
      break;
    if (candidate->bound_ns <= limit_get(s, &candidate->layout))
      status = candidate_cost(s, candidate);
  }
  return status;
}

/* Explain that no layout is possible, with the sizes to change. */
static int nothing_tell(const struct layout_searcher *s, struct lade_error *error)
{
  const struct lade_layout_search_params *given = s->params;
  int64_t ranks = given->n_ranks;
  while (ranks > 1 && s->job->batch % ranks && s->job->model->heads % ranks)
    ranks--;
  return lade_error_set(error, -EINVAL, "no layout of %d ranks divides model %s (%lld layers, %lld heads) and --batch "
                        "%lld under the sizes given; the nearest number of ranks that a plain layout has is %lld",
                        given->n_ranks, s->job->model->name, (long long)s->job->model->layers,
                        (long long)s->job->model->heads, (long long)s->job->batch, (long long)ranks);
}

static int search_finish(struct layout_searcher *s, struct lade_error *error)
{
  char needs[LADE_SIZE_TEXT], has[LADE_SIZE_TEXT];
  if (s->status)
    return lade_error_set(error, s->status, "no memory for the search");
  if (s->search->n_found)
    return 0;
  if (!s->least.cost.peak_bytes)
    return nothing_tell(s, error);
  found_insert(s, &s->least);
  return lade_error_set(error, -EOVERFLOW, "no layout of %d ranks fits in %s of device memory; "
                        "the one that needs least, %s, is tp %d pp %d dp %d zero %d", s->params->n_ranks,
                        lade_size_exact(s->params->device_bytes, has),
                        lade_size_exact(s->least.cost.peak_bytes, needs), s->least.layout.tp, s->least.layout.pp,
                        s->least.layout.dp, s->least.layout.zero);
}

int lade_layout_search_run(const struct lade_layout_job *job, const struct lade_layout_search_params *params,
                           struct lade_error *error, struct lade_layout_search *ret_search)
{
  struct lade_layout_search search = {.found = calloc((size_t)params->n_most + 1, sizeof(*search.found))};
  struct layout_searcher s = {.job = job, .params = params, .search = &search, .status = search.found ? 0 : -ENOMEM};
  if (!s.status)
    s.status = cuts_init(&s, job);
  for (int tp = 1; tp <= LADE_MIN(params->n_ranks, job->model->heads) && !s.status; tp++) {
    if (params->n_ranks % tp == 0 && (!params->tp || params->tp == tp))
      pipelines_bound(&s, tp);
  }
  if (!s.status)
    s.status = best_find(&s);
  const int status = search_finish(&s, error);
  cuts_free(&s, (int)job->model->layers);
  LADE_ARRAY_FREE(&s.shares);
  LADE_ARRAY_FREE(&s.candidates);
  if (status && status != -EOVERFLOW) {
    free(search.found);
    return status;
  }
  *ret_search = search;
  return status;
}
