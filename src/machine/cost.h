/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost model: predicted nanoseconds of all parts of a step, on one machine.
 *
 * A cost is a machine and, if measured (probe.h), a table of the nanoseconds of distinct ops. Ops with equal kinds,
 * shapes and types share one entry, so that all layers of a model have a handful of them. An op without an entry is
 * predicted by its roofline. Every answer is for work that has the device, or the link, to itself; the simulator
 * handles queues that share cores.
 *
 * Reading is any thread; setting is one thread alone.
 */
#ifndef LADE_COST_H
#define LADE_COST_H

#include "base/base.h"
#include "graph/model_graph.h"
#include "machine/machine.h"
#include "parallel/mesh.h"

/*
 * A streamed update works through its parameter in windows of at most @window_bytes of all moved bytes. A window is
 * whole LADE_STREAM_GRAIN elements, at least one grain, so that a part of one byte each still fills whole granules.
 * Requests are therefore about as long in every form of the state. Its scratch has room for @n_windows of them (being
 * read, computed, written), or for all streamed bytes if these are fewer. Scales, a byte for a hundred elements, are
 * read and written whole: with the parameter's one window, or with the first and the last one. No number of the
 * training depends on either field.
 *
 * Updates after all steps share one scratch, so that the next ones can be read while one is computed. In a run of such
 * updates, with no other instruction on the queue in between, the event of each means: its parameter is computed, in
 * memory, and its gradient is free. The bytes in the store, and the scratch, wait for the last event of the run.
 */
struct lade_streaming {
  uint64_t window_bytes;
  int n_windows; /* at least 1 */
};
#define LADE_STREAM_GRAIN (64 * 1024) /* elements: as many as a granule of the store has bytes */

/* Tier of a parameter or its state between steps. */
enum lade_tier { LADE_TIER_DEVICE, LADE_TIER_HOST, LADE_TIER_STORE };

#define LADE_SHORT_LINES 5 /* protocols and algorithms of short messages, at most */

/*
 * Price of a transfer: a latency and a time per byte. Short messages may go another way, with less latency and more
 * time per byte: lade_transfer_ns takes the fastest.
 */
struct lade_transfer_price {
  int64_t latency_ns;
  double ns_per_byte;
  int n_short;
  struct {
    int64_t latency_ns;
    double ns_per_byte;
  } shorts[LADE_SHORT_LINES];
};

/* Return the time of @n transfers that move @bytes together, each in its fastest way. */
static inline double lade_transfer_ns(const struct lade_transfer_price *price, double n, double bytes)
{
  double ns = n * (double)price->latency_ns + bytes * price->ns_per_byte;
  for (int i = 0; i < price->n_short; i++)
    ns = LADE_MIN(ns, n * (double)price->shorts[i].latency_ns + bytes * price->shorts[i].ns_per_byte);
  return ns;
}

/*
 * The physical links of a device, each with two directions: that to the host, then one of each level of a cluster. A
 * transfer takes a part of a link's rate while its bytes move: 1 of the link that bounds it, less of others.
 */
#define LADE_LINKS_MAX 7
enum { LADE_LINK_HOST, LADE_LINK_LEVELS };
struct lade_link_shares {
  double of[LADE_LINKS_MAX];
};

/*
 * Return the slowdown of two transfers that use links at once: the largest sum of their parts of one link, at least 1.
 */
static inline double lade_links_slowdown(const struct lade_link_shares *a, const struct lade_link_shares *b)
{
  double most = 1;
  for (int i = 0; i < LADE_LINKS_MAX; i++)
    most = a->of[i] > 0 && b->of[i] > 0 ? LADE_MAX(most, a->of[i] + b->of[i]) : most;
  return most;
}

/* Predicted nanoseconds of everything that a program can contain; made once per plan from the cost model. */
struct lade_prices {
  int64_t *op_ns;                     /* by op of the graph, lean forms too */
  int64_t *grad_sumsq_ns, *update_ns[3]; /* by parameter; updates by state tier, the store's with its transfers */
  int64_t *update_near_ns;            /* updates with state streamed from the store and a working copy in memory */
  int64_t *stream_edge_ns;            /* extra time of a run of streamed updates, by its first parameter */
  int64_t clip_ns;
  struct lade_transfer_price to_host, to_device, read, write;
  struct lade_transfer_price comm[LADE_N_AXES]; /* per byte sent */
  struct lade_transfer_price comm_sum[LADE_N_AXES]; /* the same of an all-reduce, which may go along trees */
  struct lade_transfer_price boundary; /* of a send between stages, per byte */
  struct lade_link_shares comm_shares[LADE_N_AXES], boundary_shares; /* of collectives, and of sends between stages */
  bool has_half_duplex; /* copies to the host and to the device share one rate */
  double copy_cores;                  /* cores that one copy occupies, of n_cores */
  double n_cores;                     /* shared by all queues of a unified device; 0: not shared */
  struct lade_streaming streaming;    /* not a price: the drive's preferred cut of updates from the store */
};

struct lade_cost_op {
  uint64_t key;
  int64_t ns; /* without the launch */
};

struct lade_cluster_links; /* cluster.h */
struct lade_cost {
  struct lade_machine machine;
  const struct lade_cluster_links *links; /* borrowed: between the ranks of a mesh; NULL: as copies to the host */
  double attention_slower; /* factor on the time of fused attention in a graph; 0: 1 */
  bool is_eager; /* price elementwise ops by shape as PyTorch runs them without a compiler: each op is a kernel */
  bool has_fused_norms; /* if eager: an RMS norm is one kernel, as a layer norm is */
  bool sums_products_apart; /* of eager ops: products of one input sum its gradient over ranks each */
  bool has_plain_products; /* price software whose products add a bias at most; false: Lade's kernels */
  double sum_squares_bytes_per_s; /* of gradients read; 0: predicted by the device's bandwidth */
  int n_ops, capacity;
  struct lade_cost_op *ops;       /* ascending by key */
};

/* Make a cost without measured ops. Nothing to finish until the first lade_cost_set. */
void lade_cost_init(struct lade_cost *cost, const struct lade_machine *machine);
void lade_cost_finish(struct lade_cost *cost);

/* Return the identity of op @op of @graph for the table: kind, types, shapes, heads; not its layer, unit or stream. */
uint64_t lade_cost_op_key(const struct lade_model_graph *graph, int op);

/* Record measured nanoseconds, replacing an older entry. -ENOMEM. */
int lade_cost_set(struct lade_cost *cost, uint64_t key, int64_t ns);

/* Find the measured entry of @key. False if there is none. */
bool lade_cost_find(const struct lade_cost *cost, uint64_t key, int64_t *ret_ns);

/* Predict one op, with its launch: measured, or max(flops / rate, bytes / bandwidth) with the factors of cost.c. */
int64_t lade_cost_op_ns(const struct lade_cost *cost, const struct lade_model_graph *graph, int op);

/*
 * Return the kernels that a host launches for one op of @graph: one, or the kernels of PyTorch's ops without a compiler
 * if @cost is eager. A weight's gradient is also added to a sum over microbatches there.
 */
double lade_cost_launches(const struct lade_cost *cost, const struct lade_model_graph *graph, int op);

/* Work that is no op of a model's graph: a step that is planned as a graph of opaque ops. */
struct lade_cost_work {
  enum lade_op_kind kind; /* whose share of the machine's rates it reaches; of products MATMUL, of other work NORM */
  double flops, bytes;    /* bytes read and written */
  double m, n, k;         /* of a product [m, k] by [k, n]; m 0: none */
  double n_products;      /* of that shape */
  double seq_len;         /* of attention: tokens of a sequence; 0: very many */
};
/*
 * Predict @work in @dtype, with its launch, as lade_cost_op_ns predicts an op without a measurement. Opaque ops have no
 * software: is_eager and attention_slower do not count.
 */
int64_t lade_cost_work_ns(const struct lade_cost *cost, enum lade_dtype dtype, const struct lade_cost_work *work);

/* Predict @n_times products of [m, k] by [k, n] in a 16-bit type. pre: the machine has a kernel model. */
double lade_cost_product_ns(const struct lade_machine *machine, double m, double n, double k, double n_times);

/* Return the part of its rate that causal fused attention reaches over sequences of @seq_len tokens; 0: very many. */
double lade_cost_attention_fill(const struct lade_machine *machine, double seq_len);

/* Predict copies over the links, and transfers to and from the store. pre: the machine has a store. */
int64_t lade_cost_to_host_ns(const struct lade_cost *cost, uint64_t bytes);
int64_t lade_cost_read_ns(const struct lade_cost *cost, uint64_t bytes);
int64_t lade_cost_write_ns(const struct lade_cost *cost, uint64_t bytes);

/* Predict concurrent reads and writes of the drive, until both are done. */
int64_t lade_cost_read_write_ns(const struct lade_cost *cost, uint64_t read_bytes, uint64_t write_bytes);

/*
 * Of an update's arguments the following read n_elements and the form alone: dtype, grad_dtype, moments, master.
 *
 * Count the bytes that AdamW reads and writes per element of a parameter. Scales of 8-bit moments, a hundredth of a
 * byte, are left out.
 */
void lade_cost_adamw_bytes(const struct lade_adamw_args *form, int *ret_read, int *ret_written);

/* Predict AdamW in its state's memory: in device memory by the device, or in host memory by the CPU. */
int64_t lade_cost_adamw_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool is_on_host);

/*
 * Return the time of AdamW through the store, in a run of such updates: state, and the working copy if @has_weight,
 * read, updated and written back in windows. Where updates do not reach the device's memory the gradient is read as
 * well. The extra time of the run's ends is separate: the first window's read and the last one's write overlap with
 * nothing.
 */
int64_t lade_cost_adamw_store_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight);
int64_t lade_cost_stream_edge_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight);

/* Return the elements of the longest window if @element_bytes move per element. */
int64_t lade_stream_window_elements(const struct lade_streaming *streaming, size_t element_bytes);

/* Return the cut of such updates: the drive's preferred one or, if unknown, six windows of 1.5 MiB. */
struct lade_streaming lade_cost_streaming(const struct lade_cost *cost);
/* Return a cut with at most the default one's memory: for budgets without memory for speed. */
struct lade_streaming lade_cost_streaming_small(const struct lade_cost *cost);

/* Predict the sums of squares of one gradient, and the fixed tree over all partials. */
int64_t lade_cost_sum_squares_ns(const struct lade_cost *cost, int64_t n_elements, enum lade_dtype grad_dtype);
int64_t lade_cost_clip_ns(const struct lade_cost *cost, int64_t n_partials);

/* Compute the prices of everything in @graph, for the program builder. -ENOMEM. Free them with lade_prices_finish. */
int lade_cost_prices(const struct lade_cost *cost, const struct lade_model_graph *graph,
                     struct lade_prices *ret_prices);
void lade_prices_finish(struct lade_prices *prices);

#endif
