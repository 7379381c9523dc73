/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/graph_plan.h - plan a step of your own (lade/graph.h) inside a byte budget.
 *
 * Between two uses a storage can stay on the device. A made storage can also be dropped: then ops run again to make it
 * for the next use. Any storage can be put to the host or to a store, and got back. A plan is the list of instructions
 * that does so: every op once, in the given order, and between the ops the redos, drops, puts and gets.
 *
 * The peak of a list counts live bytes. While an op runs, its scratch and the storages that it reads, writes or updates
 * are live, beside all other live storages. A made storage is live from the first instruction that writes or gets it to
 * its drop or its put. Every list states all drops. A given storage of the device is live throughout, unless the list
 * moves it. A given storage of another tier is got for its uses, and put back if an op changed it. The functions of
 * lade/step.h find lists whose addresses fit a budget, and run them. Callers whose framework places memory use live
 * bytes.
 *
 * With a budget on another tier, a given storage of the device may wait there while no op uses it. It may do so before
 * its first use and after its last, too. It is back on the device at the end of the step. So the peak is at least the
 * bytes of all given storages of the device.
 *
 * Transfers run beside ops. A put comes after the last use of its bytes: the copy begins there, and the bytes are free
 * when the copy ends. A get is where its copy may begin, often some ops before its use. The predicted time has one path
 * out and one path in for each tier. Ops wait for gets of their operands, and for puts whose bytes they need.
 *
 * The search can stop at any time: it starts from a list that fits and improves it until its iterations or seconds end.
 * Without a time limit the result depends on graph, parameters and seed alone. Before a list is returned, code that
 * shares nothing with the search replays it.
 *
 * The library never prints. A plan borrows its graph and keeps no other argument.
 */
#ifndef LADE_GRAPH_PLAN_H
#define LADE_GRAPH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/graph.h"
#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Budgets other than a number of bytes. */
#define LADE_GRAPH_BUDGET_MIN 0          /* the smallest budget that the search finds */
#define LADE_GRAPH_BUDGET_NONE UINT64_MAX /* no limit */

/* A one-way path between the device and a tier; a transfer takes latency + bytes / rate. Rate 0: no such path. */
struct lade_graph_path {
  double bytes_per_s;
  int64_t latency_ns;
};

struct lade_graph_plan_params {
  size_t struct_size;         /* sizeof(struct lade_graph_plan_params) */
  uint64_t budget_bytes;      /* of the device, or one of the constants above */
  uint64_t host_budget_bytes; /* limit of bytes put there at one time; given storages of that tier do not count */
  uint64_t store_budget_bytes;
  struct lade_graph_path to_host, from_host, to_store, from_store;
  /*
   * Iterations of the search. 0: no limit with a time limit, else LADE_GRAPH_ITERATIONS, with two exceptions. Without
   * other tiers a graph of 23 to 2,000 ops gets 13,500 per op, but at most 1,800,000 and at most 1,275,000,000 / ops.
   * With other tiers a graph of more than 416 ops gets 125,000,000 / ops. Other tiers cost two more searches of this
   * effort, which come first: one by recompute alone and one by transfers alone.
   */
  int64_t iterations;
  int64_t time_limit_ns; /* end the search after this time; 0: no limit */
  uint64_t seed;
};
#define LADE_GRAPH_ITERATIONS 300000

enum lade_graph_instr_kind {
  LADE_GRAPH_INSTR_OP,   /* run op @index for the first time; all ops stand in their order */
  LADE_GRAPH_INSTR_REDO, /* run op @index again */
  LADE_GRAPH_INSTR_DROP, /* free storage @index on the device; its bytes are lost unless a copy waits */
  LADE_GRAPH_INSTR_PUT,  /* copy storage @index to @tier, and free it on the device */
  LADE_GRAPH_INSTR_GET,  /* copy storage @index back; the copy is freed unless the storage lives on @tier */
  LADE_GRAPH_N_INSTR_KINDS
};

struct lade_graph_instr {
  enum lade_graph_instr_kind kind;
  int index;
  enum lade_space tier; /* of PUT: where to; of GET: where from; else LADE_DEVICE */
};

struct lade_graph_plan_info {
  size_t struct_size;          /* the caller's; set it before the call */
  uint64_t planned_peak_bytes; /* of the device */
  uint64_t unconstrained_bytes; /* peak of the list without redos and moves */
  uint64_t min_budget_bytes;   /* the smallest budget that a search found; not a proof that a smaller one fails */
  uint64_t floor_bytes;        /* lower bound on any list's peak: the largest need of one op, or the given storages */
  uint64_t host_bytes, store_bytes; /* most bytes in these tiers at one time */
  int64_t base_ns;             /* sum over all ops, once each */
  int64_t compute_ns;          /* sum over all ops that run, redos included */
  /*
   * No list within the budget has a smaller predicted_step_ns. It is base_ns where a made storage is written whole more
   * than once: lists may drop it before, but the search has none of these. Give each content a storage of its own.
   */
  int64_t bound_ns;
  int64_t predicted_step_ns;   /* by simulation, transfers included */
  int n_redone;                /* redos in the list */
  uint64_t moved_bytes;        /* by puts and gets together */
  double seconds;              /* of planning */
};

typedef struct lade_graph_plan lade_graph_plan;

/*
 * Compute the bounds of @graph that need no search, for lists without other tiers: unconstrained_bytes and floor_bytes
 * of the struct above. Either pointer may be NULL. -EINVAL for an open graph, -ENOMEM. Any thread. Never blocks;
 * O(operands + lifetimes).
 */
LADE_API int lade_graph_bounds(const lade_graph *graph, struct lade_error *error, uint64_t *ret_unconstrained_bytes,
                               uint64_t *ret_floor_bytes);

/*
 * Plan @graph; the caller destroys the plan before the graph. Errors; @error (may be NULL) has one line:
 *   -ENOSPC  no list within the budget was found; @ret_info (may be NULL) is filled nevertheless: planned_peak_bytes is
 *            the peak of the smallest list that was found
 *   -EINVAL  the graph is open, or a parameter is out of range
 *   -ENOMEM
 * Any thread; several may plan one graph at once. Computes for seconds; does not sleep.
 */
LADE_API int lade_graph_plan_find(const lade_graph *graph, const struct lade_graph_plan_params *params,
                                  struct lade_error *error, struct lade_graph_plan_info *ret_info,
                                  lade_graph_plan **ret_plan);
/* Free a plan. NULL is allowed. Any thread. */
LADE_API void lade_graph_plan_destroy(lade_graph_plan *plan);
/* Return the list; it lives as long as the plan. */
LADE_API const struct lade_graph_instr *lade_graph_plan_instrs(const lade_graph_plan *plan, int *ret_n_instrs);

/* Totals of a list, counted by a replay. */
struct lade_graph_totals {
  size_t struct_size; /* the caller's; set it before the call */
  uint64_t peak_bytes, host_peak_bytes, store_peak_bytes;
  int64_t compute_ns;
  int n_redone;
  uint64_t moved_bytes;
};
/*
 * Replay a list, yours or a plan's, with code that shares nothing with the search, and count its totals. The replay
 * checks that every op runs once and in order, with every operand on the device and at its version. It checks that
 * drops and moves name storages that are present, and that results and given storages end in their tiers. -EINVAL with
 * the first wrong instruction in @error; -ENOMEM. Any thread. Never blocks; O(operands).
 */
LADE_API int lade_graph_replay(const lade_graph *graph, const struct lade_graph_instr *instrs, int n_instrs,
                               struct lade_error *error, struct lade_graph_totals *ret_totals);

#ifdef __cplusplus
}
#endif
#endif
