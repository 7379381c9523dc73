/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe: what this machine really does, measured in about a second and kept for the next run.
 *
 * It fills a cost (plan/cost.h) for this host: matrix rates, memory bandwidth, the rate of copy queues, of AdamW
 * on host memory and of the launches of a queue; with a store directory the drive's rates; with a graph
 * the time of each of its distinct ops. Results are kept in one JSON file per machine, thread count and
 * set of kernels under $XDG_CACHE_HOME/lade or ~/.cache/lade; a later probe measures only what is not in
 * it. Predictions may depend on what was measured, and a plan on predictions; numbers never do.
 */
#ifndef LADE_PROBE_H
#define LADE_PROBE_H

#include "kernels/cuda.h"
#include "offload/store.h"
#include "plan/cost.h"

/* A GPU to be measured in the host's place: its products, memory, queues and ops. Nothing else may use it meanwhile. */
struct lade_probe_gpu {
  lade_device *device;              /* borrowed */
  const lade_cuda_kernels *kernels; /* borrowed */
};

struct lade_probe_params {
  size_t struct_size;
  const struct lade_kernels *kernels; /* borrowed; the host's */
  const struct lade_probe_gpu *gpu;   /* NULL: the host computes */
  lade_pool *pool;                    /* borrowed; what the run will compute with; NULL: one thread */
  const struct lade_graph *graph;     /* borrowed; NULL: no ops, and rates of FP32 and BF16 */
  const struct lade_store_params *store; /* how the run will open its store; NULL: no drive */
  bool skip_cache;                    /* neither read nor write it */
  bool has_fresh_ops;                 /* measure the graph's ops even if the cache knows them: a run that is about to
                                         begin wants the machine as it is now, not as it once was */
  const char *cache_dir;              /* NULL: as above; for tests */
};

/*
 * Measure what the cache does not know; each GPU has a file of its own. The machine's capacities are what this process
 * may use now; those of the store what its file system has free, or store->capacity_bytes. The cost is the caller's to
 * finish. A cache that is damaged is ignored and replaced, one that cannot be written is no error. -ENOMEM, -EAGAIN
 * (threads refused), for a store as lade_store_open, for a GPU its device's status. One probe at a time. Blocks;
 * computes on the pool.
 */
int lade_probe(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *ret_cost);

/*
 * The best rate of c = a b^T for 512^3, 1024^3 and 2048^3 in @dtype on @pool, in flop/s: the denominator of "speed of
 * light". Larger sizes are left out once a quarter of a second has gone. -ENOMEM. Blocks.
 */
int lade_probe_matmul_rate(const struct lade_kernels *kernels, lade_pool *pool, enum lade_dtype dtype,
                           double *ret_flops_per_s);

#endif
