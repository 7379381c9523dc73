/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rematerialization problem of a graph, as the search reads it.
 *
 * A value is the content of a made storage. Turn t of a step is the ops that run again just before op t, in ascending
 * order, and then op t itself; turn n_ops, without an op, ends the step. A boundary t lies before turn t.
 *
 * A storage that several ops write or update is one value, too. Its makers run again together, in their order, so that
 * each reads the version that it read the first time. An op must not run again after an update of a given storage that
 * it reads, because the old version is gone. redo_until is the last turn in which it may run again.
 *
 * A value with a single maker can wait on another tier instead of being made again. Fetching it back is modelled as an
 * extra op, a get, with an index after the graph's ops. A get reads nothing, makes the value, and takes no device time.
 *
 * Given storages are not values. Those of the device count in fixed_bytes. Those that live on another tier between
 * steps are on the device from their first use to their last: these are the rests.
 */
#ifndef LADE_REMAT_PROBLEM_H
#define LADE_REMAT_PROBLEM_H

#include "graph/graph.h"

struct remat_op {
  int32_t first_in, n_in;   /* edges: values that it reads, or changes in part */
  int32_t first_out, n_out; /* edges: values that it makes or changes */
  int32_t redo_until;       /* -1: never */
  uint64_t scratch_bytes;
  int64_t ns;
};

struct remat_value {
  uint64_t bytes;
  int32_t storage;
  int32_t birth;    /* its first maker */
  int32_t last_use; /* the last op that uses it; n_ops if the caller keeps it */
  int32_t first_maker, n_makers;
};

/* An op's use of a value. @version is the number of makers of the value that ran before the op does. */
struct remat_edge {
  int32_t value, version;
};

/* A given storage of another tier, on the device in turns first .. last. */
struct remat_rest {
  int32_t storage, first, last;
};

struct remat_problem {
  const struct lade_graph *graph; /* borrowed */
  int n_ops, n_values, n_rests;
  struct remat_op *ops; /* the graph's ops; then for each value its get */
  struct remat_value *values;
  struct remat_edge *edges;
  int32_t *makers;      /* ops, ascending, value by value */
  struct remat_rest *rests;
  uint64_t fixed_bytes; /* of storages that are not values */
  uint64_t floor_bytes; /* no schedule has a smaller peak: the largest need of one op */
  int64_t base_ns;      /* of all ops, once each */
};

/* Make the problem of a closed graph. It borrows @graph. -ENOMEM. */
int remat_problem_init(struct remat_problem *problem, const struct lade_graph *graph);
void remat_problem_finish(struct remat_problem *problem);

/* Return the index of the get of @value. */
static inline int remat_get_op(const struct remat_problem *problem, int value)
{
  return problem->n_ops + value;
}

/* Return the sort key of @op within a turn: gets come first. */
static inline int remat_order(const struct remat_problem *problem, int op)
{
  return op < problem->n_ops ? op : op - problem->n_ops - problem->n_values;
}

/* True if @value can wait on another tier. */
static inline bool remat_can_wait(const struct remat_problem *problem, int value)
{
  return problem->values[value].n_makers == 1 && problem->values[value].bytes > 0;
}

/* Return the makers of @value that run before turn @turn. */
static inline int remat_makers_before(const struct remat_problem *problem, int value, int turn)
{
  const struct remat_value *v = &problem->values[value];
  int n = v->n_makers;
  while (n > 0 && problem->makers[v->first_maker + n - 1] >= turn)
    n--;
  return n;
}

#endif
