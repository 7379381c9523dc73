/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make the problem of a graph. O(operands).
 *
 * A storage of which an op writes a part only keeps its other bytes: the op is a maker that needs the version before,
 * as an update does. So does a write of the whole storage that is not its first: a second writer is rare, and one rule
 * for all makers of a storage is simpler than lifetimes within it.
 */
#include "recompute/graph/problem.h"

#include <errno.h>
#include <stdlib.h>

struct problem_maker {
  struct remat_problem *problem;
  const struct lade_graph *graph;
  enum lade_space tier; /* where given storages of the device may wait; LADE_DEVICE: nowhere */
  int32_t *value_of; /* by storage; -1: none */
  int n_edges;
};

static int arrays_allocate(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  const struct lade_graph *graph = maker->graph;
  size_t n_storages = (size_t)graph->storages.n, n_ops = (size_t)graph->ops.n, n_uses = (size_t)graph->n_uses;
  maker->value_of = malloc((n_storages + 1) * sizeof(*maker->value_of));
  problem->ops = calloc(n_ops + n_storages + 1, sizeof(*problem->ops));
  problem->values = calloc(n_storages + 1, sizeof(*problem->values));
  problem->edges = malloc((2 * n_uses + n_storages + 1) * sizeof(*problem->edges));
  problem->makers = malloc((n_uses + 1) * sizeof(*problem->makers));
  problem->lasting = malloc((n_storages + 1) * sizeof(*problem->lasting));
  bool is_whole = maker->value_of && problem->ops && problem->values && problem->edges && problem->makers &&
                  problem->lasting;
  return is_whole ? 0 : -ENOMEM;
}

/* True if @storage is on the device throughout. */
static bool is_fixed(const struct problem_maker *maker, const struct graph_storage *storage)
{
  return storage->is_given && storage->tier == LADE_DEVICE && (maker->tier == LADE_DEVICE || !storage->bytes);
}

/* Number the values, and list the makers of each. */
static void values_make(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  const struct lade_graph *graph = maker->graph;
  int n_makers = 0;
  for (int s = 0; s < graph->storages.n; s++) {
    const struct graph_storage *storage = &graph->storages.items[s];
    const int first = storage->first_use, end = graph_uses_end(graph, s);
    maker->value_of[s] = -1;
    if (is_fixed(maker, storage))
      problem->fixed_bytes += storage->bytes;
    bool is_home_device = storage->is_given && storage->tier == LADE_DEVICE;
    if (is_fixed(maker, storage) || (first == end && !is_home_device))
      continue;
    struct remat_value *value = &problem->values[problem->n_values];
    *value = (struct remat_value){.bytes = storage->bytes, .storage = s, .first_maker = n_makers,
                                  .home = storage->tier, .source = LADE_DEVICE};
    for (int i = first; i < end; i++) {
      if (graph->uses[i].access & GRAPH_WRITES)
        problem->makers[n_makers++] = graph->uses[i].op;
    }
    value->n_makers = n_makers - value->first_maker;
    value->birth = storage->is_given ? -1 : graph->uses[first].op;
    if (storage->is_given)
      value->source = is_home_device ? (uint8_t)maker->tier : storage->tier;
    const bool is_lasting = is_home_device || (storage->is_kept && !storage->is_given);
    value->last_use = is_lasting ? graph->ops.n : graph->uses[end - 1].op;
    if (is_lasting)
      problem->lasting[problem->n_lasting++] = problem->n_values;
    maker->value_of[s] = problem->n_values++;
  }
}

/* Return the last turn in which @op may run again: before the next update of each given storage that it reads. */
static int32_t redo_until_find(const struct lade_graph *graph, int op)
{
  const struct graph_op *o = &graph->ops.items[op];
  int32_t until = o->is_once ? -1 : graph->ops.n;
  for (int i = 0; i < graph_op_n_operands(o) && until >= 0; i++) {
    const struct graph_operand *operand = &graph->operands.items[o->first_operand + i];
    const struct graph_storage *storage = &graph->storages.items[operand->storage];
    if (!storage->is_given || storage->n_versions == 0)
      continue;
    if (operand->access & GRAPH_WRITES)
      return -1;
    for (int use = storage->first_use; use < graph_uses_end(graph, operand->storage); use++) {
      if (graph->uses[use].op > op && (graph->uses[use].access & GRAPH_WRITES)) {
        until = LADE_MIN(until, graph->uses[use].op);
        break;
      }
    }
  }
  return until;
}

/* True if the op of use @use needs the version before: all but the first write of a made storage. */
static bool is_input(const struct graph_storage *storage, bool is_out, int use)
{
  return !is_out || storage->is_given || use > storage->first_use;
}

/* List the edges of all ops: a pass over the uses, storage by storage, counts them, and a second one fills them in. */
static void edges_count(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  for (int v = 0; v < problem->n_values; v++) {
    const struct graph_storage *storage = &maker->graph->storages.items[problem->values[v].storage];
    for (int i = storage->first_use; i < graph_uses_end(maker->graph, problem->values[v].storage); i++) {
      struct remat_op *op = &problem->ops[maker->graph->uses[i].op];
      bool is_out = maker->graph->uses[i].access & GRAPH_WRITES;
      op->n_out += is_out;
      op->n_in += is_input(storage, is_out, i);
    }
  }
  for (int t = 0; t < problem->n_ops; t++) {
    struct remat_op *op = &problem->ops[t];
    op->first_in = maker->n_edges;
    op->first_out = op->first_in + op->n_in;
    maker->n_edges = op->first_out + op->n_out;
    op->n_in = op->n_out = 0;
  }
}

static void edges_fill(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  for (int v = 0; v < problem->n_values; v++) {
    const struct graph_storage *storage = &maker->graph->storages.items[problem->values[v].storage];
    int32_t version = 0;
    for (int i = storage->first_use; i < graph_uses_end(maker->graph, problem->values[v].storage); i++) {
      struct remat_op *op = &problem->ops[maker->graph->uses[i].op];
      bool is_out = maker->graph->uses[i].access & GRAPH_WRITES;
      if (is_input(storage, is_out, i))
        problem->edges[op->first_in + op->n_in++] = (struct remat_edge){v, version};
      if (is_out)
        problem->edges[op->first_out + op->n_out++] = (struct remat_edge){v, ++version};
    }
  }
}

/* Make the op that gets each value back. */
static void gets_make(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  for (int v = 0; v < problem->n_values; v++) {
    problem->edges[maker->n_edges] = (struct remat_edge){v, problem->values[v].n_makers};
    problem->ops[remat_get_op(problem, v)] = (struct remat_op){
        .first_in = maker->n_edges, .first_out = maker->n_edges, .n_out = 1, .redo_until = INT32_MAX,
        .has_versions = true};
    maker->n_edges++;
  }
}

/* Return the bytes that are on the device as the step begins, beside the fixed ones. */
static uint64_t beginning_bytes(const struct remat_problem *problem)
{
  uint64_t bytes = 0;
  for (int v = 0; v < problem->n_values; v++)
    bytes += remat_first_boundary(problem, v) == 0 ? problem->values[v].bytes : 0;
  return bytes;
}

/* Return the bytes that are on the device while @op runs, whatever the schedule, beside the fixed ones. */
static uint64_t op_need(const struct remat_problem *problem, const struct remat_op *op)
{
  uint64_t need = op->scratch_bytes;
  for (int i = 0; i < op->n_in; i++)
    need += problem->values[problem->edges[op->first_in + i].value].bytes;
  for (int i = 0; i < op->n_out; i++) {
    const struct remat_edge *edge = &problem->edges[op->first_out + i];
    bool is_input = edge->version > 1 || remat_is_given(problem, edge->value);
    need += is_input ? 0 : problem->values[edge->value].bytes;
  }
  return need;
}

/* True if @op reads, makes or changes a value with several makers. */
static bool has_versions(const struct remat_problem *problem, const struct remat_op *op)
{
  for (int i = 0; i < op->n_in + op->n_out; i++)
    if (problem->values[problem->edges[op->first_in + i].value].n_makers > 1)
      return true;
  return false;
}

static void ops_make(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  edges_count(maker);
  edges_fill(maker);
  gets_make(maker);
  for (int t = 0; t < problem->n_ops; t++) {
    const struct graph_op *from = &maker->graph->ops.items[t];
    struct remat_op *op = &problem->ops[t];
    op->ns = from->ns;
    op->scratch_bytes = from->scratch_bytes;
    op->redo_until = redo_until_find(maker->graph, t);
    op->has_versions = has_versions(problem, op);
    problem->base_ns += from->ns;
    problem->floor_bytes = LADE_MAX(problem->floor_bytes, op_need(problem, op));
  }
  problem->floor_bytes = LADE_MAX(problem->floor_bytes, beginning_bytes(problem)) + problem->fixed_bytes;
}

int remat_problem_init(struct remat_problem *problem, const struct lade_graph *graph, enum lade_space tier)
{
  *problem = (struct remat_problem){.graph = graph, .n_ops = graph->ops.n};
  struct problem_maker maker = {.problem = problem, .graph = graph, .tier = tier};
  int status = arrays_allocate(&maker);
  if (!status) {
    values_make(&maker);
    ops_make(&maker);
  }
  free(maker.value_of);
  if (status)
    remat_problem_finish(problem);
  return status;
}

void remat_problem_finish(struct remat_problem *problem)
{
  free(problem->ops);
  free(problem->values);
  free(problem->edges);
  free(problem->makers);
  free(problem->lasting);
  *problem = (struct remat_problem){0};
}
