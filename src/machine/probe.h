/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe: the real rates of this machine, measured in about a second and kept for the next run.
 *
 * It fills a cost (cost.h) for this host: matrix rates, memory bandwidth, the rate of copy queues, of AdamW on host
 * memory and of the launches of a queue; with a store directory the drive's rates; with a graph the time of each of its
 * distinct ops. Results are kept in one JSON file per machine, thread count and set of kernels under
 * $XDG_CACHE_HOME/lade or ~/.cache/lade; a later probe measures only missing ones. Predictions may depend on
 * measurements, and a plan on predictions; numbers never do.
 */
#ifndef LADE_PROBE_H
#define LADE_PROBE_H

#include "kernels/cuda.h"
#include "machine/cost.h"
#include "offload/store.h"

/*
 * A GPU to be measured in place of the host: its products, memory, queues and ops. No other work may use it meanwhile.
 */
struct lade_probe_gpu {
  lade_device *device;              /* borrowed */
  const lade_cuda_kernels *kernels; /* borrowed */
};

struct lade_probe_params {
  size_t struct_size;
  const struct lade_kernels *kernels; /* borrowed; the host's */
  const struct lade_probe_gpu *gpu;   /* NULL: the host computes */
  lade_pool *pool;                    /* borrowed; the run's own; NULL: one thread */
  const struct lade_model_graph *graph;     /* borrowed; NULL: no ops, and rates of FP32 and BF16 */
  const struct lade_store_params *store; /* the run's own parameters of its store; NULL: no drive */
  bool skip_cache;                    /* neither read nor write the cache */
  bool is_renewed;                    /* measure everything, the drive for up to 20 s, and replace the cache's values */
  bool has_fresh_ops;                 /* measure the graph's ops even if the cache has them, and check its rates of the
                                         drive: a run that is about to begin needs the machine's current times */
  const char *cache_dir;              /* NULL: as above; for tests */
  bool (*is_stopping)(void *user);    /* true: lade_probe_measure_sustained ends after its pass; NULL: it does not */
  void *user;
};

/*
 * Measure the values that the cache lacks; each GPU has its own file. The machine's capacities are those that this
 * process may use now; those of the store are the free bytes of its file system, or store->capacity_bytes. The caller
 * finishes the cost. A damaged cache is ignored and replaced, and an unwritable one is no error. -ENOMEM, -EAGAIN
 * (threads refused), -EOVERFLOW if no memory is left to measure in, -ENODEV if the free memory is unknown; for a store
 * the errors of lade_store_open; for a GPU its device's status. One probe at a time. Blocks; computes on the pool.
 */
int lade_probe(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *ret_cost);

/*
 * Get the rates that the cache has of this machine into @ret_cost, without measuring. False: there are none. The caller
 * finishes the cost. Blocks for a small file.
 */
bool lade_probe_recall(const struct lade_probe_params *params, struct lade_cost *ret_cost);

/*
 * Return the best matmul rate in @dtype that the cache has of this machine, and first raise it to @flops_per_s if that
 * is higher: a limit is the best ever seen, and a busy moment does not lower it. @flops_per_s 0: read only. Return 0
 * if the cache has none. Blocks for a small file.
 */
double lade_probe_best_rate(const struct lade_probe_params *params, enum lade_dtype dtype, double flops_per_s);

/* Rates of a drive in a long run, its burst and its known bytes, as in struct lade_machine_store; 0: not seen. */
struct lade_drive_lasting {
  double read_bytes_per_s, write_bytes_per_s, total_bytes_per_s, latency_ns;
  uint64_t burst_bytes, known_bytes;
};

/*
 * Measure the lasting rates of the drive of params->store into @store, which has the whole drive's rates so far, and
 * keep them for later predictions. Take at most @limit_ns and LADE_DRIVE_SUSTAINED_NS, and one pass more if the drive
 * is slower than its known rates. *@ret_is_new false: the drive is too slow for @limit_ns, params->is_stopping tells to
 * end, or the drive or the memory has no room to measure in; nothing changes. Errors of lade_store_open and of its
 * transfers. Blocks.
 */
#define LADE_DRIVE_SUSTAINED_NS INT64_C(20000000000)
int lade_probe_measure_sustained(const struct lade_probe_params *params, int64_t limit_ns, struct lade_error *error,
                                 struct lade_machine_store *store, bool *ret_is_new);

/*
 * Sums for a least-squares fit of the drive's work in a long run. A transfer takes the time of its bytes, and the share
 * of a latency that is not predicted to be hidden (LADE_IO_AHEAD); streamed updates take the time of their bytes alone.
 * x: the time of the bytes as predicted; y: the time taken. Begin with zeros.
 */
enum lade_drive_work { LADE_DRIVE_WRITES, LADE_DRIVE_READS, LADE_DRIVE_UPDATES, LADE_DRIVE_N_WORKS };
struct lade_drive_points {
  struct {
    double ll, lx, ly, xx, xy; /* sums of products of the shares of a latency, x and y */
  } works[LADE_DRIVE_N_WORKS];
};
void lade_drive_point_add(struct lade_drive_points *points, enum lade_drive_work work, double x_ns, double y_ns,
                          double latency_share);

/* Multiply the weight of all points so far by @factor, because the latest bytes predict the next ones best. */
void lade_drive_points_fade(struct lade_drive_points *points, double factor);

/*
 * Get the latency, at least 0, and for each kind of work the ratio of the bytes' time to the predicted one; 0 for a
 * kind without points. False if there are no points.
 */
bool lade_drive_points_fit(const struct lade_drive_points *points, double *ret_latency_ns,
                           double ret_ratios[LADE_DRIVE_N_WORKS]);

/*
 * Keep the rates of a long run on the drives of params->store for later predictions: the latest long run decides,
 * because drives are shared and wear. With @lower_only a rate that is known already is not raised: a drive that rests
 * most of a run serves it from its credit. Rates that were not seen stay. Nothing changes without a cache, or if it
 * does not have these drives. Blocks for a small file.
 */
void lade_probe_keep_lasting(const struct lade_probe_params *params, const struct lade_drive_lasting *lasting,
                             bool lower_only);

/*
 * Return the best rate of c = a b^T for 512^3, 1024^3 and 2048^3 in @dtype on @pool, in flop/s: the denominator of
 * "speed of light". Larger sizes are skipped after a quarter of a second, or, if a rate of these cores is known
 * already (@known_flops_per_s above 0), after 30 ms: this moment may be a better one. -ENOMEM. Blocks.
 */
int lade_probe_matmul_rate(const struct lade_kernels *kernels, lade_pool *pool, enum lade_dtype dtype,
                           double known_flops_per_s, double *ret_flops_per_s);

#endif
