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
  problem->rests = calloc(n_storages + 1, sizeof(*problem->rests));
  problem->values = calloc(n_storages + 1, sizeof(*problem->values));
  problem->edges = malloc((2 * n_uses + n_storages + 1) * sizeof(*problem->edges));
  problem->makers = malloc((n_uses + 1) * sizeof(*problem->makers));
  bool is_whole = maker->value_of && problem->ops && problem->values && problem->edges && problem->makers &&
                  problem->rests;
  return is_whole ? 0 : -ENOMEM;
}

/* Number the values, and list the makers of each. */
static void values_make(struct problem_maker *maker)
{
  struct remat_problem *problem = maker->problem;
  const struct lade_graph *graph = maker->graph;
  int n_makers = 0;
  for (int s = 0; s < graph->storages.n; s++) {
    const struct graph_storage *storage = &graph->storages.items[s];
    int first = storage->first_use, end = graph_uses_end(graph, s);
    maker->value_of[s] = -1;
    if (storage->is_given && storage->tier == LADE_DEVICE)
      problem->fixed_bytes += storage->bytes;
    else if (storage->is_given && first < end)
      problem->rests[problem->n_rests++] =
          (struct remat_rest){s, graph->uses[first].op, graph->uses[end - 1].op};
    if (storage->is_given || first == end)
      continue;
    struct remat_value *value = &problem->values[problem->n_values];
    *value = (struct remat_value){.bytes = storage->bytes, .storage = s, .first_maker = n_makers};
    for (int i = first; i < end; i++) {
      if (graph->uses[i].access & GRAPH_WRITES)
        problem->makers[n_makers++] = graph->uses[i].op;
    }
    value->n_makers = n_makers - value->first_maker;
    value->birth = graph->uses[first].op;
    value->last_use = storage->is_kept ? graph->ops.n : graph->uses[end - 1].op;
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
      op->n_in += !is_out || i > storage->first_use;
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
      if (!is_out || i > storage->first_use)
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
        .first_in = maker->n_edges, .first_out = maker->n_edges, .n_out = 1, .redo_until = INT32_MAX};
    maker->n_edges++;
  }
}

/* Return the bytes of rests that are on the device in @turn. */
static uint64_t rests_bytes(const struct remat_problem *problem, int turn)
{
  uint64_t bytes = 0;
  for (int i = 0; i < problem->n_rests; i++) {
    const struct remat_rest *rest = &problem->rests[i];
    bytes += rest->first <= turn && turn <= rest->last ? problem->graph->storages.items[rest->storage].bytes : 0;
  }
  return bytes;
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
    problem->base_ns += from->ns;
    uint64_t need = op->scratch_bytes + rests_bytes(problem, t);
    for (int i = 0; i < op->n_in; i++)
      need += problem->values[problem->edges[op->first_in + i].value].bytes;
    for (int i = 0; i < op->n_out; i++) {
      const struct remat_edge *edge = &problem->edges[op->first_out + i];
      need += edge->version == 1 ? problem->values[edge->value].bytes : 0; /* later versions are among the inputs */
    }
    problem->floor_bytes = LADE_MAX(problem->floor_bytes, need);
  }
  problem->floor_bytes += problem->fixed_bytes;
}

int remat_problem_init(struct remat_problem *problem, const struct lade_graph *graph)
{
  *problem = (struct remat_problem){.graph = graph, .n_ops = graph->ops.n};
  struct problem_maker maker = {.problem = problem, .graph = graph};
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
  free(problem->rests);
  *problem = (struct remat_problem){0};
}
