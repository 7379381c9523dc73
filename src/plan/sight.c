/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a residency to what is live and idle at its peak, and to the load of its queues.
 *
 * Emitting the program is most of what planning costs, and walks that differ in a rule or two have many residencies in
 * common: two of five on average. So what was seen is kept, by a digest of the residency, for all walks by the same
 * prices. By other prices the same residency may have another program, since they say what is sent in one bundle.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "plan/sight.h"
#include "plan/walk.h"

#define TABLE_LEAST 256

/* A buffer at the peak, with its last use before and its first after. */
struct resident_view {
  int32_t before, after; /* instructions; -1, INT32_MAX */
  int32_t tensor;
  bool is_used_now;
};

/* ---- the peak ---- */

static void views_fill(const struct lade_program *p, int peak_at, struct resident_view *views)
{
  for (int i = 0; i < p->n_buffers; i++)
    views[i] = (struct resident_view){-1, INT32_MAX, -1, false};
  for (int at = 0; at < p->n_instrs; at++) {
    for (int k = 0; k < p->instrs[at].n_operands; k++) {
      const struct lade_operand *operand = &p->operands[p->instrs[at].first_operand + k];
      struct resident_view *view = &views[operand->buffer];
      int32_t tensor = operand->access & LADE_MAKES ? operand->makes.tensor : operand->reads.tensor;
      if (at <= peak_at || view->tensor < 0)
        view->tensor = tensor; /* who is in the buffer at the peak: it may have changed hands in place */
      if (at < peak_at)
        view->before = at;
      else if (at == peak_at)
        view->is_used_now = true;
      else if (view->after == INT32_MAX)
        view->after = at;
    }
  }
}

static int instr_phase(const struct lade_program *p, int at)
{
  const struct lade_instr *instr = &p->instrs[at];
  if (instr->kind == LADE_INSTR_COMPUTE || (instr->kind == LADE_INSTR_COLLECTIVE && instr->op >= 0))
    return 2 * instr->microbatch + (instr->is_recompute || p->graph->ops[instr->op].is_backward);
  switch (instr->kind) {
  case LADE_INSTR_NORM:
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
 * Who is in the buffer at the peak, as changes know it; -1: nobody. Rounded, a gradient is what it was. A block of it
 * waits where its gradient would between microbatches, and for a streamed update; else it goes where its parameter is,
 * and no choice of its own has a say.
 */
static int32_t view_tensor(const struct sights *s, const struct lade_residency *residency, const struct lade_program *p,
                           const struct resident_view *view)
{
  const struct lade_graph *graph = s->params->graph;
  const int from_blocks = view->tensor - lade_value_block(graph, 0, (enum lade_block)0);
  const int param = from_blocks / LADE_N_BLOCKS, kind = from_blocks % LADE_N_BLOCKS;
  if (from_blocks < 0 || (kind != LADE_BLOCK_ROUNDED && kind != LADE_BLOCK_GRAD))
    return view->tensor;
  const bool is_added_to = view->after < p->n_instrs && p->instrs[view->after].kind == LADE_INSTR_ADD;
  if (lade_shard_count(s->params->layout) > 1 && residency->homes[param] != LADE_HOME_STORE && !is_added_to)
    return view->tensor;
  return graph->params[param].grad;
}

/* Note what buffer @i of @p, which is live at the peak, adds to what is idle there. */
static void buffer_note(struct sights *s, const struct lade_program *p, int i, int32_t tensor)
{
  const struct resident_view *view = &s->views[i];
  const struct lade_graph *graph = p->graph;
  struct idle_value *idle = &s->idle[tensor];
  if (p->buffers[i].is_resident) {
    idle->bytes += p->buffers[i].bytes;
    return;
  }
  if (view->is_used_now || view->before < 0 || view->after == INT32_MAX)
    return;
  if (is_copy(p, view->before) || is_copy(p, view->after))
    return; /* just in time already */
  idle->bytes += p->buffers[i].bytes;
  bool is_grad = tensor < graph->n_tensors && graph->tensors[tensor].kind == LADE_TENSOR_GRAD;
  if (tensor < graph->n_tensors)
    idle->is_in_saved_gap = instr_phase(p, view->before) != instr_phase(p, view->after) ||
                            (is_grad && p->instrs[view->after].kind == LADE_INSTR_UPDATE);
}

/* What is live and idle at the peak, by value. */
static int idle_collect(struct sights *s, const struct lade_residency *residency, const struct lade_program *p,
                        struct sight *sight)
{
  const int n_values = lade_value_count(p->graph);
  int peak_at;
  uint64_t peak_bytes;
  struct resident_view *views = realloc(s->views, ((size_t)p->n_buffers + 1) * sizeof(*views));
  if (!views)
    return -ENOMEM;
  s->views = views;
  int status = plan_peak_find(p, LADE_DEVICE, &peak_at, &peak_bytes);
  if (status)
    return status;
  views_fill(p, peak_at, views);
  memset(s->idle, 0, (size_t)n_values * sizeof(*s->idle));
  for (int i = 0; i < p->n_buffers; i++) {
    const int32_t tensor = view_tensor(s, residency, p, &views[i]);
    bool is_live = p->buffers[i].first <= peak_at && p->buffers[i].last >= peak_at;
    if (p->buffers[i].space == LADE_DEVICE && is_live && tensor >= 0)
      buffer_note(s, p, i, tensor);
  }
  sight->idle = malloc(((size_t)n_values + 1) * sizeof(*sight->idle));
  return sight->idle ? 0 : -ENOMEM;
}

/* ---- load ---- */

/* Busy time per queue of the program as it is. */
static struct lade_load load_count(const struct lade_program *program)
{
  double ns[LADE_N_QUEUES] = {0};
  for (int i = 0; i < program->n_instrs; i++)
    ns[program->instrs[i].queue] += (double)program->instrs[i].predicted_ns;
  return (struct lade_load){ns[LADE_Q_COMPUTE], ns[LADE_Q_TO_HOST], ns[LADE_Q_TO_DEVICE], ns[LADE_Q_IO],
                            ns[LADE_Q_HOST], ns[LADE_Q_COMM_DP]};
}

/* Just in time a collective may be alone that is bundled with others in a schedule that has room: its bytes alone. */
static int64_t collective_least_ns(const struct sights *s, const struct lade_instr *instr)
{
  const int64_t latency_ns = s->params->prices->comm[instr->axis].latency_ns;
  return instr->op >= 0 ? instr->predicted_ns : LADE_MAX(instr->predicted_ns - latency_ns, 0);
}

/*
 * No schedule is faster than its busiest queue; nor than all ops one after another and then the longest queue of
 * updates, because every update waits for the verdict and the verdict for every gradient. Early updates wait for less.
 */
static int64_t least_ns(const struct sights *s, const struct lade_program *program, const struct lade_load *load)
{
  double ops_ns = 0, updates_ns[LADE_N_QUEUES] = {0}, comm_ns[LADE_N_QUEUES] = {0}, longest_ns = 0, busiest_ns;
  for (int i = 0; i < program->n_instrs; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    if (instr->kind == LADE_INSTR_UPDATE)
      updates_ns[instr->queue] += (double)instr->predicted_ns;
    else if (instr->queue == LADE_Q_COMPUTE)
      ops_ns += (double)instr->predicted_ns;
    else if (instr->kind == LADE_INSTR_COLLECTIVE)
      comm_ns[instr->queue] += (double)collective_least_ns(s, instr);
  }
  busiest_ns = lade_load_least_ns(s->solver, load); /* which knows no collectives */
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    longest_ns = LADE_MAX(longest_ns, updates_ns[q]);
    busiest_ns = LADE_MAX(busiest_ns, comm_ns[q]);
  }
  if (program->is_early)
    longest_ns = 0;
  return (int64_t)LADE_MAX(busiest_ns, ops_ns + longest_ns);
}

/* ---- what was seen ---- */

/* All of idle values that is worth keeping, out of the scratch. */
static void idle_keep(const struct sights *s, struct sight *sight)
{
  for (int i = 0; i < lade_value_count(s->params->graph); i++) {
    if (s->idle[i].bytes) {
      sight->idle[sight->n_idle] = s->idle[i];
      sight->idle[sight->n_idle++].tensor = i;
    }
  }
  struct idle_value *fitted = realloc(sight->idle, ((size_t)sight->n_idle + 1) * sizeof(*fitted));
  if (fitted)
    sight->idle = fitted;
}

/* Emit the program of @residency and look at it. */
static int sight_take(struct sights *s, const struct lade_residency *residency, struct sight *sight)
{
  const struct lade_program *program = s->program;
  struct lade_build_params how = walk_build_params(s->params, residency);
  int status = lade_program_emit_over(&how, s->program);
  if (!status)
    status = idle_collect(s, residency, program, sight);
  if (!status) {
    idle_keep(s, sight);
    sight->load = load_count(program);
    sight->least_ns = least_ns(s, program, &sight->load);
    memcpy(sight->live_bytes, program->live_peak_bytes, sizeof(sight->live_bytes));
  }
  return status;
}

static void residency_digest(const struct lade_residency *residency, uint64_t *ret_key)
{
  const XXH128_hash_t parts[] = {
      XXH3_128bits(residency->choices, (size_t)residency->n_tensors * sizeof(*residency->choices)),
      XXH3_128bits(residency->homes, (size_t)residency->n_params),
      XXH3_128bits(residency->weight_homes, (size_t)residency->n_params)};
  const XXH128_hash_t hash = XXH3_128bits_withSeed(parts, sizeof(parts), residency->is_early);
  ret_key[0] = hash.low64;
  ret_key[1] = hash.high64;
}

/* The place of @key in the table: its own, or the free one where it belongs. */
static int32_t *place_find(const struct sights *s, const uint64_t *key)
{
  const int mask = s->n_table - 1;
  int at = (int)(key[0] & (uint64_t)mask);
  while (s->table[at] >= 0 && memcmp(s->items.items[s->table[at]].key, key, sizeof(s->items.items->key)) != 0)
    at = (at + 1) & mask;
  return &s->table[at];
}

/* Room for one more. */
static int table_reserve(struct sights *s)
{
  if (2 * (s->items.n + 1) <= s->n_table)
    return 0;
  const int n_table = LADE_MAX(2 * s->n_table, TABLE_LEAST);
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

int sights_get(struct sights *s, const struct lade_residency *residency, const struct sight **ret_sight,
               int32_t *ret_number)
{
  struct sight sight = {0};
  LADE_ASSERT(residency->prefetch_bytes == 0);
  int status = table_reserve(s);
  if (status)
    return status;
  residency_digest(residency, sight.key);
  int32_t *place = place_find(s, sight.key);
  if (*place < 0) {
    status = sight_take(s, residency, &sight);
    if (!status && !LADE_PUSH(&s->items, sight))
      status = -ENOMEM;
    if (status) {
      free(sight.idle);
      return status;
    }
    *place = s->items.n - 1;
  }
  *ret_sight = &s->items.items[*place];
  *ret_number = *place;
  return 0;
}

int sights_init(struct sights *s, const struct lade_plan_params *params, const lade_solver *solver)
{
  *s = (struct sights){.params = params, .solver = solver};
  s->idle = calloc((size_t)lade_value_count(params->graph) + 1, sizeof(*s->idle));
  s->program = calloc(1, sizeof(*s->program));
  return s->idle && s->program ? 0 : -ENOMEM;
}

void sights_finish(struct sights *s)
{
  for (int i = 0; i < s->items.n; i++)
    free(s->items.items[i].idle);
  LADE_ARRAY_FREE(&s->items);
  lade_program_destroy(s->program);
  free(s->table);
  free(s->views);
  free(s->idle);
}
