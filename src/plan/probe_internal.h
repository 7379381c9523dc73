/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the probe share: memory to measure in, and the measurements. */
#ifndef LADE_PROBE_INTERNAL_H
#define LADE_PROBE_INTERNAL_H

#include "plan/probe.h"

/* Anonymous memory in huge pages where the system gives them, touched. -ENOMEM. Give back with probe_area_finish. */
struct probe_area {
  char *at;
  size_t bytes;
};
int probe_area_init(struct probe_area *area, size_t bytes);
void probe_area_finish(struct probe_area *area);

/* Fill @bytes with numbers of @dtype, uniform in [low, high), on the pool. Integers are left zero. */
void probe_fill(lade_pool *pool, void *at, enum lade_dtype dtype, uint64_t bytes, float low, float high);

/* The processor's name, behind that of the GPU if there is one: what measurements are of. */
void probe_machine_name(const struct lade_probe_params *params, char ret_name[LADE_MACHINE_NAME_BYTES]);

/* The median of @n values, which it sorts. */
int64_t probe_median(int64_t *values, int n);

/* Bytes/s of reads and writes through all threads; bytes/s of AdamW and of sums of squares. -ENOMEM. */
int probe_memory(const struct lade_probe_params *params, struct lade_cost *cost);

/* Links and launches of a host device's queues. -ENOMEM, -EAGAIN. */
int probe_queues(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine *machine);

/*
 * Rates, latency and sizes of a store in params->store->dir; its capacity is not touched. @ret_is_cramped: it was
 * measured in less room than that takes, and sizes are not known. As lade_store_open and lade_store_prepare.
 */
int probe_store(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine_store *store,
                bool *ret_is_cramped);

/* Every distinct op of params->graph that @cost has no entry for. -ENOMEM, -EAGAIN. */
int probe_ops(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *cost);

/*
 * A GPU while it is measured: queues and a step block (probe_gpu.c). Init and finish go together, whatever init
 * returns: -ENOMEM, -EAGAIN, or the device's status.
 */
struct probe_chunk {
  lade_chunk *chunk;
  uint64_t address, bytes;
};
struct probe_gpu {
  const struct lade_probe_gpu *what;
  struct probe_chunk step;
  lade_queue *compute, *to_host, *to_device;
};
int probe_gpu_init(struct probe_gpu *gpu, const struct lade_probe_gpu *what);
void probe_gpu_finish(struct probe_gpu *gpu);
/* Memory of @bytes, mapped; unmap takes what a map that failed left. -ENOMEM. */
int probe_gpu_map(const struct lade_probe_gpu *what, uint64_t bytes, struct probe_chunk *chunk);
void probe_gpu_unmap(const struct lade_probe_gpu *what, struct probe_chunk *chunk);
/* Copy to the device and wait. Returns the device's status. */
int probe_gpu_put(struct probe_gpu *gpu, uint64_t address, const void *src, uint64_t bytes);
/* Run a kernel; its nanoseconds by the device's events. What goes wrong is the device's status. */
int64_t probe_gpu_kernel_ns(struct probe_gpu *gpu, enum lade_kernel kernel, const void *args);

/* As the host's: the best rate of products; memory and sums of squares; launches and links. */
int probe_gpu_matmul(const struct lade_probe_params *params, enum lade_dtype dtype, double *ret_flops_per_s);
int probe_gpu_memory(const struct lade_probe_params *params, struct lade_cost *cost);
int probe_gpu_queues(const struct lade_probe_params *params, struct lade_machine *machine);

/*
 * The cache file of this machine. Loading fills what it knows of @cost (rates of 0 are unknown) and says whether
 * it had anything for this key; both are silent about trouble. The store is the entry of params->store, may be NULL.
 */
bool probe_cache_load(const struct lade_probe_params *params, struct lade_cost *cost);
void probe_cache_save(const struct lade_probe_params *params, const struct lade_cost *cost);

#endif
