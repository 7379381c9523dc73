/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rematerialization problem of a graph, as the search reads it.
 *
 * A value is the content of a made storage. Turn t of a step is the ops that run again just before op t, in ascending
 * order, and then op t itself; turn n_ops, without an op, ends the step. A boundary t lies before turn t.
 *
 * A storage that several ops write or update is one value, too. Its makers run again together, in their order, so that
 * each reads the version that it read the first time. An op must not run again after an update of a given storage that
 * it reads, because the old version is gone. The field redo_until is the last turn in which it may run again.
 *
 * A value can wait on another tier instead of being made again. To get it back is an op of its own, numbered after the
 * graph's, which reads nothing and makes the value; it takes no time of the device. The copy on the tier has the
 * version of its last put. So no op that reads or makes an older version of such a value may run again.
 *
 * Given storages that may be moved are values, too, whose makers are the ops that change them, and which are never made
 * again: they wait on a tier where they are not held. Their birth is -1. Those that live on the device are there at
 * boundary 0 and in the last turn. Those that live on another tier are got from there and put back, if they changed.
 * Given storages that may not be moved are no values: their bytes are in fixed_bytes.
 */
#ifndef LADE_REMAT_PROBLEM_H
#define LADE_REMAT_PROBLEM_H

#include "graph/graph.h"

struct remat_op {
  int32_t first_in, n_in;   /* edges: values that it reads, or changes in part */
  int32_t first_out, n_out; /* edges: values that it makes or changes */
  int32_t redo_until;       /* -1: never */
  bool has_versions;        /* it uses a value with several makers, or gets one back */
  uint64_t scratch_bytes;
  int64_t ns;
};

struct remat_value {
  uint64_t bytes;
  int32_t storage;
  int32_t birth;    /* its first maker; -1: given */
  int32_t last_use; /* the last op that uses it; n_ops if it is on the device after the step */
  int32_t first_maker, n_makers;
  uint8_t home;     /* tier of a given value between steps */
  uint8_t source;   /* tier where it waits, unless a schedule decides otherwise; LADE_DEVICE: it is made again */
};

/* An op's use of a value. @version is the number of makers of the value that ran before the op does. */
struct remat_edge {
  int32_t value, version;
};

struct remat_problem {
  const struct lade_graph *graph; /* borrowed */
  int n_ops, n_values;
  struct remat_op *ops; /* of the graph; then for each value the one that gets it back */
  struct remat_value *values;
  struct remat_edge *edges;
  int32_t *makers;      /* ops, ascending, value by value */
  int32_t *lasting;     /* values that are on the device after the step */
  int n_lasting;
  uint64_t fixed_bytes; /* of storages that are no values */
  uint64_t floor_bytes; /* no schedule has a smaller peak: the largest need of one op, or of the step's beginning */
  int64_t base_ns;      /* of all ops, once each */
};

/*
 * Make the problem of a closed graph, which it borrows. Given storages of the device may be moved to @tier, if that is
 * not LADE_DEVICE. -ENOMEM.
 */
int remat_problem_init(struct remat_problem *problem, const struct lade_graph *graph, enum lade_space tier);
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

static inline bool remat_is_given(const struct remat_problem *problem, int value)
{
  return problem->values[value].birth < 0;
}

/* Return the first boundary at which @value can be held. A value of another tier is got in turn 0 at the earliest. */
static inline int remat_first_boundary(const struct remat_problem *problem, int value)
{
  const struct remat_value *v = &problem->values[value];
  return v->birth < 0 && v->home != LADE_DEVICE ? 1 : v->birth + 1;
}

/* True if the bytes of @value count against the budget of the tier where it waits: it does not live there. */
static inline bool remat_is_guest(const struct remat_problem *problem, int value)
{
  return !remat_is_given(problem, value) || problem->values[value].home == LADE_DEVICE;
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
