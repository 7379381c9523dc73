/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Analyse a residency: the values live and idle at its peak, and its queue times.
 *
 * Most of the planning time is emitting programs. Trajectories that differ in a rule or two share many residencies: on
 * average two of five. So results are kept, by a digest of the residency, for all trajectories with the same prices.
 * With other prices the same residency may have another program, because prices decide the size of groups of
 * collectives.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "recompute/search/descent.h"
#include "recompute/search/peak_analysis.h"

#define TABLE_MIN 256 /* places of the first hash table */

/* A buffer at the peak, with its last use before and its first after. */
struct resident_view {
  int32_t before, after; /* instructions; none: -1, INT32_MAX */
  int32_t latest, next;  /* operands: its last up to the peak, its first after; -1: none */
};

/* ---- the peak ---- */

/*
 * Note the uses of each buffer around the peak. All loops store without a condition: the last store of a buffer is that
 * of its use nearest to the peak.
 */
static void views_fill(const struct lade_program *p, int peak_at, struct resident_view *views)
{
  for (int i = 0; i < p->n_buffers; i++)
    views[i] = (struct resident_view){-1, INT32_MAX, -1, -1};
  for (int at = p->n_instrs - 1; at > peak_at; at--) {
    const int32_t first = p->instrs[at].first_operand;
    for (int32_t i = first + p->instrs[at].n_operands - 1; i >= first; i--) {
      views[p->operands[i].buffer].after = at;
      views[p->operands[i].buffer].next = i;
    }
  }
  for (int at = 0; at < peak_at; at++) {
    const int32_t end = p->instrs[at].first_operand + p->instrs[at].n_operands;
    for (int32_t i = p->instrs[at].first_operand; i < end; i++) {
      views[p->operands[i].buffer].before = at;
      views[p->operands[i].buffer].latest = i;
    }
  }
  const struct lade_instr *peak = &p->instrs[peak_at];
  for (int32_t i = peak->first_operand; i < peak->first_operand + peak->n_operands; i++)
    views[p->operands[i].buffer].latest = i;
}

/* True if the instruction at the peak uses the buffer. */
static bool is_used_now(const struct lade_program *p, const struct resident_view *view)
{
  return view->latest >= p->instrs[p->live_peak_at[LADE_DEVICE]].first_operand;
}

/*
 * Return the tensor in the buffer at the peak: that of the latest operand, because an op in place may have replaced the
 * first. -1: none.
 */
static int32_t tensor_held(const struct lade_program *p, const struct resident_view *view)
{
  const int32_t at = view->latest >= 0 ? view->latest : view->next;
  if (at < 0)
    return -1;
  return p->operands[at].access & LADE_MAKES ? p->operands[at].makes.tensor : p->operands[at].reads.tensor;
}

static int instr_phase(const struct lade_program *p, int at)
{
  const struct lade_instr *instr = &p->instrs[at];
  if (instr->kind == LADE_INSTR_COMPUTE || (instr->kind == LADE_INSTR_COLLECTIVE && instr->op >= 0))
    return 2 * instr->microbatch + (instr->is_recompute || p->graph->ops[instr->op].is_backward);
  switch (instr->kind) {
  case LADE_INSTR_GRAD_SUMSQ:
  case LADE_INSTR_ROUND:
  case LADE_INSTR_ADD:
  case LADE_INSTR_CAST:
    return 2 * instr->microbatch + 1;
  case LADE_INSTR_COLLECTIVE:
    return instr->collective == LADE_REDUCE_SCATTER ? 2 * instr->microbatch + 1 : INT32_MAX;
  default:
    return INT32_MAX;
  }
}

static bool is_copy(const struct lade_program *p, int at)
{
  int kind = p->instrs[at].kind;
  return kind == LADE_INSTR_COPY || kind == LADE_INSTR_READ || kind == LADE_INSTR_WRITE;
}

/*
 * Return the tensor in the buffer at the peak, under the number that changes use; -1: none. A rounded gradient counts
 * as the gradient. A block of it counts as the gradient between microbatches and before a streamed update. Otherwise
 * the block is on its parameter's tier, and has no choice of its own.
 */
static int32_t view_tensor(const struct peak_analysis *s, const struct lade_residency *residency,
                           const struct lade_program *p,
                           const struct resident_view *view)
{
  const struct lade_model_graph *graph = s->params->graph;
  const int32_t tensor = tensor_held(p, view);
  const int from_blocks = tensor - lade_value_block(graph, 0, (enum lade_block)0);
  const int param = from_blocks / LADE_N_BLOCKS, kind = from_blocks % LADE_N_BLOCKS;
  if (from_blocks < 0 || (kind != LADE_BLOCK_ROUNDED && kind != LADE_BLOCK_GRAD))
    return tensor;
  const bool is_added_to = view->after < p->n_instrs && p->instrs[view->after].kind == LADE_INSTR_ADD;
  if (lade_shard_count(s->params->layout) > 1 && residency->state_tiers[param] != LADE_TIER_STORE && !is_added_to)
    return tensor;
  return graph->params[param].grad;
}

/* Add @bytes to the idle bytes of value @tensor, and return the entry. */
static struct idle_value *idle_add(struct peak_analysis *s, int32_t tensor, uint64_t bytes)
{
  struct idle_value *idle = &s->idle[tensor];
  if (!idle->bytes && bytes)
    s->noted[s->n_noted++] = tensor;
  idle->bytes += bytes;
  return idle;
}

/* Note the idle bytes that buffer @i of @p, which is live at the peak, adds. */
static void buffer_note(struct peak_analysis *s, const struct lade_program *p, int i, int32_t tensor)
{
  const struct resident_view *view = &s->views[i];
  const struct lade_model_graph *graph = p->graph;
  const bool is_optional = tensor < graph->n_tensors && graph->tensors[tensor].is_optional;
  if (p->buffers[i].is_resident || is_optional) {
    idle_add(s, tensor, p->buffers[i].bytes)->is_in_saved_gap = is_optional;
    return;
  }
  if (is_used_now(p, view) || view->before < 0 || view->after == INT32_MAX)
    return;
  if (is_copy(p, view->before) || is_copy(p, view->after))
    return; /* already just in time */
  struct idle_value *idle = idle_add(s, tensor, p->buffers[i].bytes);
  bool is_grad = tensor < graph->n_tensors && graph->tensors[tensor].kind == LADE_TENSOR_GRAD;
  if (tensor < graph->n_tensors)
    idle->is_in_saved_gap = instr_phase(p, view->before) != instr_phase(p, view->after) ||
                            (is_grad && p->instrs[view->after].kind == LADE_INSTR_UPDATE);
}

/* Collect the values that are live and idle at the peak. */
static int idle_collect(struct peak_analysis *s, const struct lade_residency *residency, const struct lade_program *p)
{
  const int peak_at = p->live_peak_at[LADE_DEVICE];
  struct resident_view *views = realloc(s->views, ((size_t)p->n_buffers + 1) * sizeof(*views));
  if (!views)
    return -ENOMEM;
  s->views = views;
  views_fill(p, peak_at, views);
  for (int i = 0; i < p->n_buffers; i++) {
    const struct lade_buffer *buffer = &p->buffers[i];
    if (buffer->space != LADE_DEVICE || buffer->first > peak_at || buffer->last < peak_at)
      continue;
    const int32_t tensor = view_tensor(s, residency, p, &views[i]);
    if (tensor >= 0)
      buffer_note(s, p, i, tensor);
  }
  return 0;
}

/* ---- queue times ---- */

/* Busy times of a program as emitted. Nanoseconds are whole, so these sums are exact in any order. */
struct busy_times {
  double ns[LADE_N_QUEUES], updates_ns[LADE_N_QUEUES];
  double comm_ns[LADE_N_QUEUES]; /* least times of collectives */
  double hidden_ns;              /* of the io queue */
};

/*
 * Return the least time of a collective. Just in time it may be alone, while a schedule with room groups it with
 * others: the time of its bytes alone.
 */
static int64_t collective_bound_ns(const struct peak_analysis *s, const struct lade_instr *instr)
{
  const int64_t latency_ns = s->params->prices->comm[instr->axis].latency_ns;
  return instr->op >= 0 ? instr->predicted_ns : LADE_MAX(instr->predicted_ns - latency_ns, 0);
}

/*
 * Return the part of a transfer's predicted time that may be hidden: its latency, which passes while transfers before
 * it are in flight (LADE_IO_AHEAD).
 */
static int64_t transfer_hidden_ns(const struct peak_analysis *s, const struct lade_instr *instr)
{
  const struct lade_prices *prices = s->params->prices;
  const int64_t latency_ns = instr->kind == LADE_INSTR_READ ? prices->read.latency_ns : prices->write.latency_ns;
  return LADE_MIN(latency_ns, instr->predicted_ns);
}

static struct busy_times busy_times_count(const struct peak_analysis *s, const struct lade_program *program)
{
  struct busy_times busy = {{0}};
  for (int i = 0; i < program->n_instrs; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    busy.ns[instr->queue] += (double)instr->predicted_ns;
    if (instr->kind == LADE_INSTR_UPDATE)
      busy.updates_ns[instr->queue] += (double)instr->predicted_ns;
    else if (instr->kind == LADE_INSTR_COLLECTIVE && instr->queue != LADE_Q_COMPUTE)
      busy.comm_ns[instr->queue] += (double)collective_bound_ns(s, instr);
    else if (instr->kind == LADE_INSTR_READ || instr->kind == LADE_INSTR_WRITE)
      busy.hidden_ns += (double)transfer_hidden_ns(s, instr);
  }
  return busy;
}

/* Return the busy time per queue. */
static struct lade_queue_times queue_times_get(const struct busy_times *busy)
{
  const double *ns = busy->ns, *updates_ns = busy->updates_ns;
  return (struct lade_queue_times){ns[LADE_Q_COMPUTE], ns[LADE_Q_TO_HOST], ns[LADE_Q_TO_DEVICE], ns[LADE_Q_IO],
                            ns[LADE_Q_HOST], ns[LADE_Q_COMM_DP],
                            {updates_ns[LADE_Q_COMPUTE], updates_ns[LADE_Q_HOST], updates_ns[LADE_Q_IO]}};
}

/*
 * Return a lower bound of every schedule: the busiest queue. With updates after all steps, also the sum of all ops and
 * the longest queue of updates: every update waits for the clip result, and that for every gradient. Updates within the
 * backward half wait for less.
 */
static int64_t program_bound_ns(const struct peak_analysis *s, const struct lade_program *program,
                                const struct busy_times *busy)
{
  const double ops_ns = busy->ns[LADE_Q_COMPUTE] - busy->updates_ns[LADE_Q_COMPUTE];
  struct lade_queue_times min = queue_times_get(busy);
  min.io_ns -= busy->hidden_ns;
  double longest_ns = 0, busiest_ns = lade_queue_times_bound_ns(s->pricer, &min); /* it ignores collectives */
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    longest_ns = LADE_MAX(longest_ns, busy->updates_ns[q]);
    busiest_ns = LADE_MAX(busiest_ns, busy->comm_ns[q]);
  }
  if (program->optimizer_in_backward)
    longest_ns = 0;
  return (int64_t)LADE_MAX(busiest_ns, ops_ns + longest_ns);
}

/* ---- memoised results ---- */

/* Move the values with idle bytes from the scratch to @peak. -ENOMEM. */
static int idle_keep(struct peak_analysis *s, struct peak *peak)
{
  peak->idle = malloc(((size_t)s->n_noted + 1) * sizeof(*peak->idle));
  for (int i = 0; i < s->n_noted; i++) {
    const int32_t tensor = s->noted[i];
    s->idle[tensor].tensor = tensor;
    if (peak->idle)
      peak->idle[peak->n_idle++] = s->idle[tensor];
    s->idle[tensor] = (struct idle_value){.bytes = 0};
  }
  s->n_noted = 0;
  return peak->idle ? 0 : -ENOMEM;
}

/* Emit the program of @residency and analyse it. */
static int peak_take(struct peak_analysis *s, const struct lade_residency *residency, struct peak *peak)
{
  const struct lade_program *program = s->program;
  struct lade_build_params build_params = descent_build_params(s->params, residency);
  build_params.held_bytes = s->held_bytes;
  int status = lade_program_emit_over(&build_params, s->program);
  if (!status)
    status = idle_collect(s, residency, program);
  if (!status)
    status = idle_keep(s, peak);
  if (!status) {
    const struct busy_times busy = busy_times_count(s, program);
    peak->queue_times = queue_times_get(&busy);
    peak->bound_ns = program_bound_ns(s, program, &busy);
    memcpy(peak->live_bytes, program->live_peak_bytes, sizeof(peak->live_bytes));
  }
  return status;
}

static void residency_digest(const struct lade_residency *residency, uint64_t *ret_key)
{
  const XXH128_hash_t parts[] = {
      XXH3_128bits(residency->choices, (size_t)residency->n_tensors * sizeof(*residency->choices)),
      XXH3_128bits(residency->state_tiers, (size_t)residency->n_params),
      XXH3_128bits(residency->weight_tiers, (size_t)residency->n_params)};
  const XXH128_hash_t hash = XXH3_128bits_withSeed(parts, sizeof(parts), residency->optimizer_in_backward);
  ret_key[0] = hash.low64;
  ret_key[1] = hash.high64;
}

/* Return the place of @key in the table: its own, or the free one where it belongs. */
static int32_t *place_find(const struct peak_analysis *s, const uint64_t *key)
{
  const int mask = s->n_table - 1;
  int at = (int)(key[0] & (uint64_t)mask);
  while (s->table[at] >= 0 && memcmp(s->items.items[s->table[at]].key, key, sizeof(s->items.items->key)) != 0)
    at = (at + 1) & mask;
  return &s->table[at];
}

/* Make room for one more. */
static int table_reserve(struct peak_analysis *s)
{
  if (2 * (s->items.n + 1) <= s->n_table)
    return 0;
  const int n_table = LADE_MAX(2 * s->n_table, TABLE_MIN);
  int32_t *table = malloc((size_t)n_table * sizeof(*table));
  if (!table)
    return -ENOMEM;
  free(s->table);
  memset(table, -1, (size_t)n_table * sizeof(*table));
  s->table = table;
  s->n_table = n_table;
  for (int i = 0; i < s->items.n; i++)
    *place_find(s, s->items.items[i].key) = i;
  return 0;
}

int peak_analysis_get(struct peak_analysis *s, const struct lade_residency *residency, const struct peak **ret_peak,
                      int32_t *ret_number)
{
  struct peak peak = {0};
  LADE_ASSERT(residency->prefetch_bytes == 0);
  int status = table_reserve(s);
  if (status)
    return status;
  residency_digest(residency, peak.key);
  int32_t *place = place_find(s, peak.key);
  if (*place < 0) {
    status = peak_take(s, residency, &peak);
    if (!status && !LADE_PUSH(&s->items, peak))
      status = -ENOMEM;
    if (status) {
      free(peak.idle);
      return status;
    }
    *place = s->items.n - 1;
  }
  *ret_peak = &s->items.items[*place];
  *ret_number = *place;
  return 0;
}

int peak_analysis_init(struct peak_analysis *s, const struct lade_plan_params *params, const lade_pricer *pricer)
{
  const int n_values = lade_value_count(params->graph);
  *s = (struct peak_analysis){.params = params, .pricer = pricer};
  s->idle = calloc((size_t)n_values + 1, sizeof(*s->idle));
  s->noted = calloc((size_t)n_values + 1, sizeof(*s->noted));
  s->held_bytes = calloc((size_t)n_values + 1, sizeof(*s->held_bytes));
  s->program = calloc(1, sizeof(*s->program));
  if (!s->idle || !s->noted || !s->held_bytes || !s->program)
    return -ENOMEM;
  for (int value = 0; value < n_values; value++)
    s->held_bytes[value] = lade_held_bytes(params->graph, params->layout, value);
  return 0;
}

void peak_analysis_finish(struct peak_analysis *s)
{
  for (int i = 0; i < s->items.n; i++)
    free(s->items.items[i].idle);
  LADE_ARRAY_FREE(&s->items);
  lade_program_destroy(s->program);
  free(s->table);
  free(s->views);
  free(s->noted);
  free(s->held_bytes);
  free(s->idle);
}

struct lade_build_params descent_build_params(const struct lade_plan_params *params,
                                              const struct lade_residency *residency)
{
  return (struct lade_build_params){
      .graph = params->graph, .layout = params->layout, .residency = residency, .prices = params->prices,
      .n_microbatches = params->n_microbatches, .is_training = true, .is_unified = params->is_unified,
      .chunk_bytes = params->chunk_bytes};
}
