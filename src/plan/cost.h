/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost model: predicted nanoseconds of everything that a step consists of, on one machine.
 *
 * A cost is a machine and, where it was measured (plan/probe.h), a table of the nanoseconds of distinct ops.
 * Ops with equal kinds, shapes and types share one entry, so that all layers of a model have a handful of
 * them. An op without an entry is predicted by its roofline. Every answer is for work that has the
 * device, or the link, to itself; what happens when queues share cores is the simulator's affair.
 *
 * Reading is any thread; setting is one thread alone.
 */
#ifndef LADE_COST_H
#define LADE_COST_H

#include "graph/graph.h"
#include "machine/machine.h"
#include "plan/build.h"

struct lade_cost_op {
  uint64_t key;
  int64_t ns; /* without the launch */
};

struct lade_cost {
  struct lade_machine machine;
  double sum_squares_bytes_per_s; /* of gradients read; 0: by the device's bandwidth */
  int n_ops, capacity;
  struct lade_cost_op *ops;       /* ascending by key */
};

/* A cost without measured ops. Nothing to finish until the first lade_cost_set. */
void lade_cost_init(struct lade_cost *cost, const struct lade_machine *machine);
void lade_cost_finish(struct lade_cost *cost);

/* What identifies op @op of @graph for the table: kind, types, shapes, heads; not its layer, its unit, its stream. */
uint64_t lade_cost_op_key(const struct lade_graph *graph, int op);

/* Record measured nanoseconds, replacing an older entry. -ENOMEM. */
int lade_cost_set(struct lade_cost *cost, uint64_t key, int64_t ns);

/* The measured entry of @key. False when there is none. */
bool lade_cost_find(const struct lade_cost *cost, uint64_t key, int64_t *ret_ns);

/* One op, with its launch: measured, or max(flops / rate, bytes / bandwidth) with the factors of cost.c. */
int64_t lade_cost_op_ns(const struct lade_cost *cost, const struct lade_graph *graph, int op);

/* Copies over the links, and transfers to and from the store (an error to ask for without one). */
int64_t lade_cost_to_host_ns(const struct lade_cost *cost, uint64_t bytes);
int64_t lade_cost_read_ns(const struct lade_cost *cost, uint64_t bytes);
int64_t lade_cost_write_ns(const struct lade_cost *cost, uint64_t bytes);

/* Reads and writes that the drive does side by side, until both are done. */
int64_t lade_cost_read_write_ns(const struct lade_cost *cost, uint64_t read_bytes, uint64_t write_bytes);

/*
 * Of an update's arguments the following read n_elements and the form alone: dtype, grad_dtype, moments, master.
 *
 * Bytes that AdamW reads and writes per element of a parameter; scales of 8-bit moments, a hundredth of one, are left
 * out.
 */
void lade_cost_adamw_bytes(const struct lade_adamw_args *form, int *ret_read, int *ret_written);

/* AdamW where the state lies: in device memory by the device, or in host memory by the CPU. */
int64_t lade_cost_adamw_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool is_on_host);

/*
 * AdamW through the store, in a row of such updates: state, and the working copy if @has_weight, read, updated and
 * written back in windows; where updates do not reach the device's memory the gradient is read as well. And what the
 * ends of the row take besides: the first window comes, and the last one goes, with nothing beside it.
 */
int64_t lade_cost_adamw_store_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight);
int64_t lade_cost_stream_edge_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight);

/* How such updates are cut: as the machine's drive likes it, or where that is not known in six windows of 1.5 MiB. */
struct lade_streaming lade_cost_streaming(const struct lade_cost *cost);
/* The same, but with no more room than where the drive is not known: for budgets that have none for speed. */
struct lade_streaming lade_cost_streaming_small(const struct lade_cost *cost);

/* Sums of squares of one gradient, and the fixed tree over all partials. */
int64_t lade_cost_sum_squares_ns(const struct lade_cost *cost, int64_t n_elements, enum lade_dtype grad_dtype);
int64_t lade_cost_clip_ns(const struct lade_cost *cost, int64_t n_partials);

/* Prices of everything in @graph, for the program builder. -ENOMEM. Give them back with lade_prices_finish. */
int lade_cost_prices(const struct lade_cost *cost, const struct lade_graph *graph, struct lade_prices *ret_prices);
void lade_prices_finish(struct lade_prices *prices);

#endif
