/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search over layouts: all of them, with bounds.
 *
 * A candidate is (tp, sequence, pp, schedule, virtual stages, microbatch); dp follows from the ranks. Its variants are
 * the ZeRO stages, shard groups, and tiers and precisions of optimizer state, which share its pipeline. Its residencies
 * are those of a layer, the fastest first, each with less memory than the one before (layer_residency.c). A recipe that
 * is given is the only one. Shares with their residencies are made once for each (tp, sequence, microbatch) and
 * software. A candidate has one software, and the ZeRO stages that this runs (software.c).
 *
 * The time of each candidate's pipeline under the fastest residency is bounded from below in O(stages), for any batch
 * and ranks. Candidates are taken in order of their bounds. Each variant then takes the fastest residency whose memory
 * fits, because no slower one can be better. That gives a higher bound for each residency that a variant took. Its
 * schedule is run, once for all these variants, when that bound is the lowest of all that is left; and the time by the
 * schedule is taken when it is the lowest in turn. So layouts come in order of their times, and no schedule is run
 * whose bound is above the time of the last layout that is wanted, or of its kind.
 *
 * Optimizer state goes to the host only if no recipe is given, because a recipe moves nothing to the host.
 *
 * Ranks of a stage are alike, so ranks only add divisors. Of each (tp, pp, dp) and schedule the fastest layout is
 * kept. If the proof of one finds that it does not fit, the caller searches its kind again with its estimate corrected.
 *
 * With those proofs, lade_layout_search_undecided lists all layouts that may still be faster: each variant under each
 * residency, held against the budgets by lower bounds of its proved bytes (bound_bytes in layout_cost.c). Estimates
 * and corrections have no part in that, so a layout that is not listed is decided.
 */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "recompute/layout_cost.h"

#define MICRO_BATCH_MAX 64    /* a larger one only fills more memory: products are at their full rate long before */
#define SLACK 0.94            /* part of an estimated peak that must fit: a proof, which decides, may find 6 % less */
#define N_SCHEDULES_SEARCHED 3
#define SHARD_FEW 64
#define N_SHARD_GROUPS 3
#define N_VARIANTS_MAX ((LADE_ZERO_MAX + 1) * N_SHARD_GROUPS)

struct share_entry {
  struct lade_share_key key;
  struct lade_share_residencies *residencies; /* NULL: not possible */
};

struct layout_candidate {
  double bound_ns;
  struct lade_layout_params layout; /* of no ZeRO stage */
  int64_t micro_batch;
  const struct lade_share_residencies *residencies;
  enum lade_software software;
};

/* A candidate's pipelines under its residencies, made as they are needed. */
struct candidate_cores {
  const struct layout_candidate *candidate;
  struct lade_layout layout;
  struct lade_layout_core cores[LADE_SHARE_RESIDENCIES_MAX];
  uint8_t made[LADE_SHARE_RESIDENCIES_MAX];    /* enum core_kind */
  double bound_ns[LADE_SHARE_RESIDENCIES_MAX]; /* of steps of variants that take the residency; INFINITY: none does */
  int residency;                               /* whose variants are costed, by its schedule */
  struct lade_layout_found best;               /* of these; its time is 0 before the first */
};

/* Layouts of a candidate that are not yet found: one residency's. A heap, the lowest time first. */
struct pending_layouts {
  double step_ns;  /* of the fastest: a lower bound, or its time by its schedule */
  int i_candidate;
  int residency;
  int i_costed;    /* place of the fastest in costed; -1: the schedule has not run */
};

enum core_kind { CORE_NONE, CORE_BOUND, CORE_RUN };

#define N_PRECISIONS_MAX (LADE_N_MOMENTS * LADE_N_MASTERS)

struct layout_searcher {
  struct lade_layout_job jobs[N_PRECISIONS_MAX]; /* the caller's, with cuts; one for each precision of states */
  int n_jobs;
  const struct lade_layout_job *job; /* the first: pipelines and shares do not depend on the precision */
  int64_t **cuts;
  const struct lade_layout_search_params *params;
  struct lade_layout_search *search;
  LADE_ARRAY(struct share_entry) shares;
  struct lade_share_key last_key; /* of the share that was made last, with its graph; NULL: none was */
  struct lade_model_graph *last_graph;
  LADE_ARRAY(struct layout_candidate) candidates;
  LADE_ARRAY(struct pending_layouts) pending;
  LADE_ARRAY(struct lade_layout_found) costed;
  struct lade_layout_found smallest; /* of memory, among those that do not fit */
  LADE_ARRAY(struct lade_layout_found) undecided; /* at most 2 n_max; cut to the fastest n_max when full */
  double listed_ns; /* a listed layout's time is below this one */
  int status;
};

/* Make room for a cut of the model into each number of pieces. Each is made at first use. */
static int cuts_init(struct layout_searcher *s, const struct lade_layout_job *job)
{
  s->cuts = calloc((size_t)lade_pieces_max(job->model) + 1, sizeof(*s->cuts));
  s->job = &s->jobs[0];
  return s->cuts ? 0 : -ENOMEM;
}

/* Make a job for each precision of states: the caller's own first. */
static void jobs_fill(struct layout_searcher *s, const struct lade_layout_job *job)
{
  const struct lade_layout_search_params *params = s->params;
  s->jobs[s->n_jobs++] = *job;
  for (int i = 0; i < params->n_moments * params->n_masters; i++) {
    struct lade_layout_job other = *job;
    other.moments = params->moments[i / params->n_masters];
    other.master = params->masters[i % params->n_masters];
    const bool is_own = other.moments == job->moments && other.master == job->master;
    if (!is_own && (other.master == LADE_MASTER_EXACT || job->dtype == LADE_BF16))
      s->jobs[s->n_jobs++] = other;
  }
  for (int i = 0; i < s->n_jobs; i++)
    s->jobs[i].cuts = (const int64_t *const *)s->cuts;
}

static void cuts_free(struct layout_searcher *s, int n)
{
  for (int n_pieces = 1; s->cuts && n_pieces <= n; n_pieces++)
    free(s->cuts[n_pieces]);
  free(s->cuts);
}

/* ---- candidates ---- */

/* True if shares of these keys have one graph. */
static bool is_of_graph(const struct lade_share_key *a, const struct lade_share_key *b)
{
  return a->tp == b->tp && a->is_sequence == b->is_sequence && a->micro_batch == b->micro_batch;
}

/* Make the residencies of @key. Its graph is that of the share before if they differ in software alone. */
static int share_make(struct layout_searcher *s, const struct lade_share_key *key,
                      struct lade_share_residencies *ret_residencies)
{
  struct lade_share_key with_graph = *key;
  int status = 0;
  if (!s->last_graph || !is_of_graph(&s->last_key, key)) {
    lade_model_graph_destroy(s->last_graph);
    s->last_graph = NULL;
    s->last_key = *key;
    status = lade_share_graph_make(s->job, key, NULL, &s->last_graph);
  }
  with_graph.graph = s->last_graph;
  return status ? status : lade_share_residencies_make(s->job, &with_graph, NULL, ret_residencies);
}

/* Return the residencies of the share with @key, made at first use; NULL: it is not possible, or there is no memory. */
static const struct lade_share_residencies *share_find(struct layout_searcher *s, const struct lade_share_key *key)
{
  for (int i = s->shares.n - 1; i >= 0; i--) {
    const struct lade_share_key *other = &s->shares.items[i].key;
    if (is_of_graph(other, key) && other->software == key->software)
      return s->shares.items[i].residencies;
  }
  struct share_entry entry = {.key = *key, .residencies = calloc(1, sizeof(*entry.residencies))};
  int status = entry.residencies ? share_make(s, key, entry.residencies) : -ENOMEM;
  if (status) {
    free(entry.residencies);
    entry.residencies = NULL;
  }
  if (status == -ENOMEM || !LADE_PUSH(&s->shares, entry)) {
    free(entry.residencies);
    s->status = -ENOMEM;
    return NULL;
  }
  return entry.residencies;
}

static void shares_free(struct layout_searcher *s)
{
  for (int i = 0; i < s->shares.n; i++)
    free(s->shares.items[i].residencies);
  LADE_ARRAY_FREE(&s->shares);
  lade_model_graph_destroy(s->last_graph);
}

/*
 * List the ZeRO stages and shard groups of @layout that @software runs. A group is all replicas, those of one node, or
 * SHARD_FEW: blocks of very many shards are mostly padding. Return their number.
 */
static int variants_list(const struct layout_searcher *s, struct lade_layout_params layout,
                         enum lade_software software, struct lade_layout_params *ret_variants)
{
  const struct lade_layout_search_params *given = s->params;
  const int64_t groups[N_SHARD_GROUPS] = {0, s->job->cluster->levels[0].n_devices / layout.tp, SHARD_FEW};
  int n = 0;
  for (int zero = 0; zero <= (layout.dp > 1 ? LADE_ZERO_MAX : 0); zero++) {
    if ((given->zero >= 0 && given->zero != zero) || lade_software_of(s->job, zero, given->recipe) != software)
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

/* List the tiers of optimizer state that are tried. Return their number. */
static int tiers_list(const struct layout_searcher *s, enum lade_tier ret_tiers[3])
{
  const struct lade_layout_search_params *params = s->params;
  const bool is_free = params->recipe == LADE_RECIPE_AUTO && !s->job->cluster->device.is_unified;
  int n = 0;
  ret_tiers[n++] = LADE_TIER_DEVICE;
  if (is_free && params->host_bytes)
    ret_tiers[n++] = LADE_TIER_HOST;
  if (is_free && params->store_bytes)
    ret_tiers[n++] = LADE_TIER_STORE;
  return n;
}

/* Bound the pipeline of @layout_params, and keep it as a candidate. */
static void candidate_bound(struct layout_searcher *s, const struct lade_layout_params *layout_params,
                            int64_t micro_batch, const struct lade_share_residencies *residencies)
{
  const enum lade_software software = residencies->items[0].software;
  struct lade_layout_params variants[N_VARIANTS_MAX];
  enum lade_tier tiers[3];
  struct lade_layout layout;
  double span_ns;
  const int n_pieces = layout_params->pp * layout_params->virtual_stages;
  if (lade_layout_init(layout_params, NULL, &layout))
    return;
  int status = s->cuts[n_pieces]
                   ? 0
                   : lade_layers_cut(s->job->model, s->job->seq_len, n_pieces, NULL, &s->cuts[n_pieces]);
  if (!status)
    status = lade_layout_span_bound(&(struct lade_layout_cost_params){s->job, &layout, micro_batch,
                                                                      &residencies->items[0]}, &span_ns);
  if (status) {
    s->status = status == -ENOMEM ? status : s->status;
    return;
  }
  s->search->n_evaluated += (int64_t)variants_list(s, *layout_params, software, variants) * tiers_list(s, tiers) *
                            s->n_jobs * residencies->n;
  const struct layout_candidate candidate = {span_ns, *layout_params, micro_batch, residencies, software};
  if (!LADE_PUSH(&s->candidates, candidate))
    s->status = -ENOMEM;
}

/* Bound all schedules of @layout's stages. GPipe takes more memory than 1F1B for the same time, so it is asked for. */
static void schedules_bound(struct layout_searcher *s, struct lade_layout_params layout, int64_t micro_batch,
                            const struct lade_share_residencies *residencies)
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
    candidate_bound(s, &layout, micro_batch, residencies);
  }
  if (layout.pp == 1 || m % layout.pp || (given->schedule >= 0 && given->schedule != LADE_SCHEDULE_INTERLEAVED))
    return;
  layout.schedule = LADE_SCHEDULE_INTERLEAVED;
  for (int v = 2; v * layout.pp <= lade_pieces_max(s->job->model); v++) {
    if (given->virtual_stages > 1 && given->virtual_stages != v)
      continue;
    layout.virtual_stages = v;
    candidate_bound(s, &layout, micro_batch, residencies);
  }
}

/* True if a ZeRO stage that @layout may have is priced as @software. */
static bool is_run_by(const struct layout_searcher *s, const struct lade_layout_params *layout,
                      enum lade_software software)
{
  struct lade_layout_params variants[N_VARIANTS_MAX];
  return variants_list(s, *layout, software, variants) > 0;
}

/* Bound all microbatches of @layout's sizes, as each software runs them. */
static void sizes_bound(struct layout_searcher *s, const struct lade_layout_params *layout)
{
  const struct lade_layout_search_params *given = s->params;
  const int64_t rows = s->job->batch / layout->dp;
  bool is_run[LADE_N_SOFTWARE] = {false};
  for (int software = LADE_SOFTWARE_LADE; software < LADE_N_SOFTWARE; software++)
    is_run[software] = is_run_by(s, layout, (enum lade_software)software);
  for (int64_t micro_batch = 1; micro_batch <= LADE_MIN(rows, MICRO_BATCH_MAX) && !s->status; micro_batch++) {
    if (rows % micro_batch || (given->micro_batch && given->micro_batch != micro_batch))
      continue;
    for (int software = LADE_SOFTWARE_LADE; software < LADE_N_SOFTWARE && !s->status; software++) {
      const struct lade_share_key key = {layout->tp, layout->is_sequence, micro_batch, given->recipe,
                                         (enum lade_software)software, NULL};
      const struct lade_share_residencies *residencies = is_run[software] ? share_find(s, &key) : NULL;
      if (residencies)
        schedules_bound(s, *layout, micro_batch, residencies);
    }
  }
}

static void pipelines_bound(struct layout_searcher *s, int tp)
{
  const struct lade_layout_search_params *given = s->params;
  const int rest = given->n_ranks / tp, n_context = LADE_MAX(s->job->n_context, 1);
  for (int pp = 1; pp <= LADE_MIN(rest, lade_pieces_max(s->job->model)) && !s->status; pp++) {
    const int dp = rest / pp;
    if (rest % pp || (given->pp && given->pp != pp) || (given->dp && given->dp * n_context != dp) ||
        s->job->batch % dp || dp % n_context || dp % LADE_MAX(s->job->n_expert_ranks, 1))
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

/* True if the fastest layout with the sizes and schedule of @candidate is found. */
static bool is_kind_found(const struct layout_searcher *s, const struct layout_candidate *candidate)
{
  for (int i = 0; i < s->search->n_found; i++) {
    if (lade_layout_is_same_kind(&s->search->found[i].layout, &candidate->layout))
      return true;
  }
  return false;
}

/* Make the core of residency @i: its bound, or its whole schedule. */
static int core_make(struct layout_searcher *s, struct candidate_cores *cores, int i, enum core_kind wanted)
{
  const struct layout_candidate *candidate = cores->candidate;
  if (cores->made[i] >= wanted)
    return 0;
  cores->made[i] = (uint8_t)wanted;
  const struct lade_layout_cost_params params = {s->job, &cores->layout, candidate->micro_batch,
                                                 &candidate->residencies->items[i]};
  return lade_layout_core_make(&params, wanted == CORE_BOUND, NULL, &cores->cores[i]);
}

/* True if layouts of @job are built and proved, so that estimates need not decide. */
static bool is_provable(const struct lade_layout_job *job)
{
  return job->n_context <= 1 && !job->experts;
}

/* Remember the layout that needs the least device memory, of those that fit the host and the drives. */
static void smallest_note(struct layout_searcher *s, const struct lade_layout_found *found)
{
  if (!s->smallest.cost.peak_bytes || found->cost.peak_bytes < s->smallest.cost.peak_bytes)
    s->smallest = *found;
}

/* Return the largest factor of the corrections that apply to @found; 1: none does. */
static double more_find(const struct lade_layout_search_params *params, const struct lade_layout_found *found)
{
  double more = 1;
  for (int i = 0; i < params->n_corrections; i++) {
    const struct lade_layout_correction *one = &params->corrections[i];
    const struct lade_layout_params *a = &one->layout, *b = &found->layout;
    const bool is_same = one->micro_batch == found->micro_batch && a->virtual_stages == b->virtual_stages &&
                         a->zero == b->zero && a->shard == b->shard && a->is_sequence == b->is_sequence &&
                         one->state_tier == found->state_tier && one->moments == found->moments &&
                         one->master == found->master;
    if (lade_layout_is_same_kind(a, b) && (is_same || one->is_of_kind))
      more = fmax(more, one->more);
  }
  return more;
}

/*
 * Find the fastest residency of @layout that fits, and fill @found with its bound. -EOVERFLOW: none does.
 */
static int residency_find(struct layout_searcher *s, struct candidate_cores *cores, const struct lade_layout *layout,
                          const struct lade_layout_job *job, struct lade_layout_found *found, int *ret_chosen)
{
  const struct lade_share_residencies *residencies = cores->candidate->residencies;
  const double more = more_find(s->params, found);
  for (int i = 0; i < residencies->n; i++) {
    int status = core_make(s, cores, i, CORE_BOUND);
    if (status)
      return status;
    lade_layout_core_memory(job, &cores->cores[i], layout, found->state_tier, &found->cost);
    *ret_chosen = i;
    if (found->cost.host_bytes > s->params->host_bytes || found->cost.store_bytes > s->params->store_bytes)
      continue;
    found->residency = residencies->items[i].residency;
    found->fitted_bytes = (double)found->cost.peak_bytes * (is_provable(job) ? SLACK : 1);
    if (found->fitted_bytes * more <= (double)s->params->device_bytes) {
      lade_layout_core_cost(job, &cores->cores[i], layout, found->state_tier, &found->cost);
      return 0;
    }
    smallest_note(s, found);
  }
  return -EOVERFLOW;
}

/* Find the residency that @variant takes. -EOVERFLOW: none fits, or the variant cannot be. */
static int variant_fit(struct layout_searcher *s, struct candidate_cores *cores, const struct lade_layout_job *job,
                       const struct lade_layout_params *variant, enum lade_tier state_tier,
                       struct lade_layout_found *ret_found, int *ret_residency)
{
  struct lade_layout layout;
  *ret_found = (struct lade_layout_found){.layout = *variant, .micro_batch = cores->candidate->micro_batch,
                                          .state_tier = state_tier, .moments = job->moments, .master = job->master};
  if (lade_layout_init(variant, NULL, &layout))
    return -EOVERFLOW;
  return residency_find(s, cores, &layout, job, ret_found, ret_residency);
}

/* Bound one variant under the residency that it takes. */
static int variant_bound(struct layout_searcher *s, struct candidate_cores *cores, const struct lade_layout_job *job,
                         const struct lade_layout_params *variant, enum lade_tier state_tier)
{
  struct lade_layout_found found;
  int i = 0;
  const int status = variant_fit(s, cores, job, variant, state_tier, &found, &i);
  if (!status)
    cores->bound_ns[i] = fmin(cores->bound_ns[i], found.cost.step_ns);
  return status == -EOVERFLOW ? 0 : status;
}

/* Cost one variant if it takes the residency whose schedule was run. */
static int variant_cost(struct layout_searcher *s, struct candidate_cores *cores, const struct lade_layout_job *job,
                        const struct lade_layout_params *variant, enum lade_tier state_tier)
{
  struct lade_layout_found found;
  int i = 0;
  const int status = variant_fit(s, cores, job, variant, state_tier, &found, &i);
  if (status || i != cores->residency)
    return status == -EOVERFLOW ? 0 : status;
  s->search->n_costed++;
  if (cores->best.cost.step_ns <= 0 || found.cost.step_ns < cores->best.cost.step_ns)
    cores->best = found;
  return 0;
}

/* ---- layouts that may be faster ---- */

/* Return the time below which a layout of these sizes is faster than the rivals. */
static double rival_ns(const struct lade_layout_search_params *params, const struct lade_layout_params *layout)
{
  for (int i = 0; i < params->n_rivals; i++) {
    const struct lade_layout_rival *rival = &params->rivals[i];
    if (rival->tp == layout->tp && rival->pp == layout->pp && rival->dp == layout->dp)
      return fmin(rival->step_ns, params->limit_ns);
  }
  return params->limit_ns;
}

/* True if the bounds of @cost are within the budgets, or, for a job without proofs, its estimates. */
static bool may_fit(const struct layout_searcher *s, const struct lade_layout_cost *cost)
{
  const struct lade_layout_search_params *params = s->params;
  if (!is_provable(s->job))
    return cost->peak_bytes <= params->device_bytes && cost->host_bytes <= params->host_bytes &&
           cost->store_bytes <= params->store_bytes;
  return cost->bound_bytes <= params->device_bytes && cost->bound_host_bytes <= params->host_bytes &&
         cost->bound_store_bytes <= params->store_bytes &&
         cost->bound_sum_bytes <= params->device_bytes + params->host_bytes;
}

static int found_compare(const void *a, const void *b)
{
  const struct lade_layout_found *x = a, *y = b;
  return (x->cost.step_ns > y->cost.step_ns) - (x->cost.step_ns < y->cost.step_ns);
}

/* Sort the list and keep its fastest n_max. */
static void undecided_cut(struct layout_searcher *s)
{
  const int n_max = s->params->n_max;
  if (s->undecided.n)
    qsort(s->undecided.items, (size_t)s->undecided.n, sizeof(*s->undecided.items), found_compare);
  if (s->undecided.n <= n_max)
    return;
  s->listed_ns = s->undecided.items[n_max].cost.step_ns;
  s->undecided.n = n_max;
}

static int undecided_push(struct layout_searcher *s, const struct lade_layout_found *found)
{
  if (!LADE_PUSH(&s->undecided, *found))
    return -ENOMEM;
  if (s->undecided.n == 2 * s->params->n_max)
    undecided_cut(s);
  return 0;
}

/* Add @variant with each residency by which it may be faster than its rivals. */
static int variant_list(struct layout_searcher *s, struct candidate_cores *cores, const struct lade_layout_job *job,
                        const struct lade_layout_params *variant, enum lade_tier state_tier)
{
  struct lade_layout_found found = {.layout = *variant, .micro_batch = cores->candidate->micro_batch,
                                    .state_tier = state_tier, .moments = job->moments, .master = job->master};
  const double limit_ns = rival_ns(s->params, variant);
  struct lade_layout layout;
  int status = 0;
  if (lade_layout_init(variant, NULL, &layout))
    return 0;
  for (int i = 0; i < cores->candidate->residencies->n && !status; i++) {
    status = core_make(s, cores, i, CORE_BOUND);
    if (!status)
      lade_layout_core_cost(job, &cores->cores[i], &layout, state_tier, &found.cost);
    if (status || found.cost.step_ns >= limit_ns || !may_fit(s, &found.cost))
      continue;
    if (found.cost.step_ns < s->listed_ns)
      status = core_make(s, cores, i, CORE_RUN);
    if (status)
      continue;
    lade_layout_core_cost(job, &cores->cores[i], &layout, state_tier, &found.cost);
    found.residency = cores->candidate->residencies->items[i].residency;
    s->search->n_undecided += found.cost.step_ns < limit_ns;
    if (found.cost.step_ns < fmin(limit_ns, s->listed_ns))
      status = undecided_push(s, &found);
  }
  return status;
}

/* ---- in order of time ---- */

typedef int variant_visit(struct layout_searcher *s, struct candidate_cores *cores, const struct lade_layout_job *job,
                          const struct lade_layout_params *variant, enum lade_tier state_tier);

/* Start the pipelines of @candidate: none is made. */
static int cores_init(const struct layout_candidate *candidate, struct candidate_cores *ret_cores)
{
  ret_cores->candidate = candidate;
  ret_cores->best.cost.step_ns = 0;
  memset(ret_cores->made, CORE_NONE, sizeof(ret_cores->made));
  for (int i = 0; i < candidate->residencies->n; i++)
    ret_cores->bound_ns[i] = INFINITY;
  return lade_layout_init(&candidate->layout, NULL, &ret_cores->layout);
}

/* Call @visit for all variants of the candidate. */
static int variants_visit(struct layout_searcher *s, struct candidate_cores *cores, variant_visit *visit)
{
  struct lade_layout_params variants[N_VARIANTS_MAX];
  const struct layout_candidate *candidate = cores->candidate;
  const int n = variants_list(s, candidate->layout, candidate->software, variants);
  enum lade_tier tiers[3];
  const int n_tiers = tiers_list(s, tiers);
  int status = 0;
  for (int i = 0; i < n * n_tiers * s->n_jobs && !status; i++) {
    status = visit(s, cores, &s->jobs[i % s->n_jobs], &variants[i / s->n_jobs / n_tiers],
                   tiers[i / s->n_jobs % n_tiers]);
  }
  return status;
}

static int pending_push(struct layout_searcher *s, struct pending_layouts pending)
{
  if (!LADE_PUSH(&s->pending, pending))
    return -ENOMEM;
  int at = s->pending.n - 1;
  for (int above = (at - 1) / 2; at > 0 && s->pending.items[above].step_ns > pending.step_ns; above = (at - 1) / 2) {
    s->pending.items[at] = s->pending.items[above];
    at = above;
  }
  s->pending.items[at] = pending;
  return 0;
}

static struct pending_layouts pending_pop(struct layout_searcher *s)
{
  struct pending_layouts *items = s->pending.items;
  const struct pending_layouts first = items[0], last = items[--s->pending.n];
  int at = 0;
  for (int below = 1; below < s->pending.n; below = 2 * at + 1) {
    below += below + 1 < s->pending.n && items[below + 1].step_ns < items[below].step_ns;
    if (items[below].step_ns >= last.step_ns)
      break;
    items[at] = items[below];
    at = below;
  }
  items[at] = last;
  return first;
}

/* Bound the variants of candidate @i, and make those of each residency pending. */
static int candidate_bound_variants(struct layout_searcher *s, int i)
{
  struct candidate_cores cores;
  int status = cores_init(&s->candidates.items[i], &cores);
  if (!status)
    status = variants_visit(s, &cores, variant_bound);
  for (int residency = 0; residency < cores.candidate->residencies->n && !status; residency++) {
    if (cores.bound_ns[residency] < INFINITY)
      status = pending_push(s, (struct pending_layouts){cores.bound_ns[residency], i, residency, -1});
  }
  return status == -ENOMEM ? status : 0;
}

/* Run the schedule of @pending's residency, and make the fastest of its variants pending with its time. */
static int pending_cost(struct layout_searcher *s, struct pending_layouts pending)
{
  struct candidate_cores cores;
  int status = cores_init(&s->candidates.items[pending.i_candidate], &cores);
  cores.residency = pending.residency;
  if (!status)
    status = core_make(s, &cores, pending.residency, CORE_RUN);
  if (!status)
    status = variants_visit(s, &cores, variant_cost);
  if (status || cores.best.cost.step_ns <= 0) /* no variant takes the residency */
    return status == -ENOMEM ? status : 0;
  pending.step_ns = cores.best.cost.step_ns;
  pending.i_costed = s->costed.n;
  return LADE_PUSH(&s->costed, cores.best) ? pending_push(s, pending) : -ENOMEM;
}

/* Find layouts in order of their times, the fastest of each kind. */
static int best_find(struct layout_searcher *s)
{
  struct lade_layout_search *search = s->search;
  int at = 0, status = 0;
  if (s->candidates.n)
    qsort(s->candidates.items, (size_t)s->candidates.n, sizeof(*s->candidates.items), candidate_compare);
  while (search->n_found < s->params->n_max && (at < s->candidates.n || s->pending.n) && !status) {
    if (!s->pending.n || (at < s->candidates.n && s->candidates.items[at].bound_ns < s->pending.items[0].step_ns)) {
      const int i = at++;
      status = is_kind_found(s, &s->candidates.items[i]) ? 0 : candidate_bound_variants(s, i);
      continue;
    }
    const struct pending_layouts next = pending_pop(s);
    if (is_kind_found(s, &s->candidates.items[next.i_candidate]))
      continue;
    if (next.i_costed >= 0)
      search->found[search->n_found++] = s->costed.items[next.i_costed];
    else
      status = pending_cost(s, next);
  }
  LADE_ARRAY_FREE(&s->pending);
  LADE_ARRAY_FREE(&s->costed);
  return status;
}

/* List the variants of @candidate that may be faster than their rivals. */
static int candidate_list(struct layout_searcher *s, const struct layout_candidate *candidate)
{
  struct candidate_cores cores;
  int status = cores_init(candidate, &cores);
  if (!status)
    status = variants_visit(s, &cores, variant_list);
  return status == -ENOMEM ? status : 0;
}

/* Return the number of ranks nearest below those asked for that a layout without tensor parallel ranks has. */
static int64_t plain_ranks(const struct layout_searcher *s)
{
  int64_t ranks = s->params->n_ranks;
  while (ranks > 1 && s->job->batch % ranks && s->job->model->heads % ranks)
    ranks--;
  return ranks;
}

/* Return the multiple of @size nearest to the ranks asked for that the cluster has; at equal distance the smaller. */
static int64_t nearest_multiple(const struct layout_searcher *s, int64_t size)
{
  const struct lade_cluster *cluster = s->job->cluster;
  const int64_t asked = s->params->n_ranks, below = asked / size * size, above = below + size;
  if (below > 0 && (asked - below <= above - asked || above > cluster->n_nodes * cluster->n_node_devices))
    return below;
  return above;
}

/* Explain that no layout is possible, with the size to change. */
static int nothing_tell(const struct layout_searcher *s, struct lade_error *error)
{
  const struct lade_layout_search_params *given = s->params;
  const struct lade_model *model = s->job->model;
  const int64_t tp = LADE_MAX(given->tp, 1), nearest = lade_share_nearest_tp(model, tp), ranks = plain_ranks(s);
  const int64_t sizes = tp * LADE_MAX(given->pp, 1) * LADE_MAX(given->dp, 1);
  if (nearest != tp)
    return lade_error_set(error, -EINVAL, "no layout: %lld tensor parallel ranks do not divide model %s (%lld heads, "
                          "%lld KV heads): the nearest number is %lld", (long long)tp, model->name,
                          (long long)model->heads, (long long)model->n_kv_heads, (long long)nearest);
  if (given->pp > lade_pieces_max(model))
    return lade_error_set(error, -EINVAL, "no layout: model %s has %lld layers, which make %lld stages at most",
                          model->name, (long long)model->layers, (long long)lade_pieces_max(model));
  if (given->n_ranks % sizes)
    return lade_error_set(error, -EINVAL, "no layout: %d ranks are no multiple of the %lld of the sizes given: the "
                          "nearest number is %lld", given->n_ranks, (long long)sizes,
                          (long long)nearest_multiple(s, sizes));
  if (ranks != given->n_ranks)
    return lade_error_set(error, -EINVAL, "no layout of %d ranks divides model %s (%lld layers, %lld heads) and "
                          "--batch %lld; the nearest number of ranks that a plain layout has is %lld", given->n_ranks,
                          model->name, (long long)model->layers, (long long)model->heads, (long long)s->job->batch,
                          (long long)ranks);
  return lade_error_set(error, -EINVAL, "no layout of %d ranks divides model %s (%lld layers, %lld heads) and "
                        "--batch %lld under the options given: change --pp, --dp, --micro-batch, --schedule, "
                        "--virtual-stages, --zero or --shard", given->n_ranks, model->name, (long long)model->layers,
                        (long long)model->heads, (long long)s->job->batch);
}

static int search_finish(struct layout_searcher *s, struct lade_error *error)
{
  char needs[LADE_SIZE_TEXT], has[LADE_SIZE_TEXT];
  if (s->status)
    return lade_error_set(error, s->status, "no memory for the search");
  if (s->search->n_found)
    return 0;
  if (!s->smallest.cost.peak_bytes)
    return nothing_tell(s, error);
  s->search->found[s->search->n_found++] = s->smallest;
  return lade_error_set(error, -EOVERFLOW, "no layout of %d ranks fits in %s of device memory; "
                        "the one that needs least, %s, is tp %d pp %d dp %d zero %d", s->params->n_ranks,
                        lade_size_exact(s->params->device_bytes, has),
                        lade_size_exact(s->smallest.cost.peak_bytes, needs), s->smallest.layout.tp,
                        s->smallest.layout.pp, s->smallest.layout.dp, s->smallest.layout.zero);
}

/* Bound all candidates. */
static void candidates_bound(struct layout_searcher *s, const struct lade_layout_job *job)
{
  if (!s->status)
    s->status = cuts_init(s, job);
  if (!s->status)
    jobs_fill(s, job);
  for (int tp = 1; tp <= LADE_MIN(s->params->n_ranks, job->model->heads) && !s->status; tp++) {
    if (s->params->n_ranks % tp == 0 && (!s->params->tp || s->params->tp == tp))
      pipelines_bound(s, tp);
  }
}

int lade_layout_search_undecided(const struct lade_layout_job *job, const struct lade_layout_search_params *params,
                                 struct lade_error *error, struct lade_layout_search *ret_search)
{
  struct lade_layout_search search = {0};
  struct layout_searcher s = {.job = job, .params = params, .search = &search, .listed_ns = INFINITY};
  candidates_bound(&s, job);
  for (int i = 0; i < s.candidates.n && !s.status; i++) {
    const struct layout_candidate *candidate = &s.candidates.items[i];
    const bool is_split = candidate->layout.schedule == LADE_SCHEDULE_ZBH1 ||
                          candidate->layout.schedule == LADE_SCHEDULE_ZBH2;
    /* With split weights a slower residency may hide more collectives, so the first one's time bounds no other. */
    if (is_split || candidate->bound_ns < rival_ns(params, &candidate->layout))
      s.status = candidate_list(&s, candidate);
  }
  const int status = s.status;
  cuts_free(&s, (int)lade_pieces_max(job->model));
  shares_free(&s);
  LADE_ARRAY_FREE(&s.candidates);
  if (status) {
    LADE_ARRAY_FREE(&s.undecided);
    return lade_error_set(error, status, "no memory for the search");
  }
  undecided_cut(&s);
  search.n_found = s.undecided.n;
  search.found = s.undecided.items;
  *ret_search = search;
  return 0;
}

int lade_layout_search_run(const struct lade_layout_job *job, const struct lade_layout_search_params *params,
                           struct lade_error *error, struct lade_layout_search *ret_search)
{
  struct lade_layout_search search = {.found = calloc((size_t)params->n_max + 1, sizeof(*search.found))};
  struct layout_searcher s = {.job = job, .params = params, .search = &search, .status = search.found ? 0 : -ENOMEM};
  candidates_bound(&s, job);
  if (!s.status)
    s.status = best_find(&s);
  const int status = search_finish(&s, error);
  cuts_free(&s, (int)lade_pieces_max(job->model));
  shares_free(&s);
  LADE_ARRAY_FREE(&s.candidates);
  if (status && status != -EOVERFLOW) {
    free(search.found);
    return status;
  }
  *ret_search = search;
  return status;
}
