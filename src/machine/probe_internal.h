/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the probe's files: memory to measure in, and the measurements. */
#ifndef LADE_PROBE_INTERNAL_H
#define LADE_PROBE_INTERNAL_H

#include <limits.h>

#include "machine/probe.h"

struct json_t;

/* Return the bytes that a measurement may take now within this machine's memory limits; 0: unknown. */
uint64_t probe_room_bytes(void);

/*
 * Return the bytes of each of the two areas in which memory is measured. All other measurements fit in areas of the
 * largest size.
 */
#define PROBE_AREA_BYTES_MAX ((size_t)64 << 20)
size_t probe_area_bytes(void);

/* Anonymous memory in huge pages where the system provides them, touched. -ENOMEM. Release with probe_area_finish. */
struct probe_area {
  char *at;
  size_t bytes;
};
int probe_area_init(struct probe_area *area, size_t bytes);
void probe_area_finish(struct probe_area *area);

/* Fill @bytes with numbers of @dtype, uniform in [low, high), on the pool. Integers stay zero. */
void probe_fill(lade_pool *pool, void *at, enum lade_dtype dtype, uint64_t bytes, float low, float high);

/* Write the processor's name, after that of the GPU if there is one: the subject of the measurements. */
void probe_machine_name(const struct lade_probe_params *params, char ret_name[LADE_MACHINE_NAME_BYTES]);

/* Sort @n values; return their median or lower quartile, sorting them. */
void probe_sort(int64_t *values, int n);
int64_t probe_median(int64_t *values, int n);
int64_t probe_quartile(int64_t *values, int n);

/*
 * Return bytes/s of @n rounds of equal bytes, each in its ns per byte. With more than two, the slowest is left out,
 * because other programs may have used the drive in it. 0 without a round.
 */
double probe_rounds_rate(const double *ns_per_byte, int n);

/* Measure bytes/s of reads and writes through all threads, of AdamW and of sums of squares. -ENOMEM. */
int probe_memory(const struct lade_probe_params *params, struct lade_cost *cost);

/*
 * Return the link that copies @bytes in @whole_ns, at least 1, and a few bytes in @small_ns. Its latency is at most
 * half of @whole_ns: a small copy that other programs delayed says nothing about the rate.
 */
struct lade_link probe_link_make(uint64_t bytes, int64_t whole_ns, int64_t small_ns);

/* Measure links and launches of a host device's queues. -ENOMEM, -EAGAIN. */
int probe_queues(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine *machine);

/*
 * Measure rates, latency and sizes of a store in params->store->dir; its capacity is not changed. @ret_is_cramped: it
 * was measured in less than full room, and sizes are unknown. Errors of lade_store_open and lade_store_prepare.
 */
int probe_store(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine_store *store,
                bool *ret_is_cramped);

/*
 * Check the rates of @store against the drive, and measure them anew if it has changed (*@ret_is_new). Nothing changes
 * without the room to measure in. Errors of lade_store_open.
 */
int probe_store_again(const struct lade_probe_params *params, struct lade_error *error,
                      struct lade_machine_store *store, bool *ret_is_new);

/* Measure every distinct op of params->graph for which @cost has no entry. -ENOMEM, -EAGAIN. */
int probe_ops(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *cost);

/* Return the bytes that ops which are measured together may have: more on a GPU, whose microbatches are larger. */
uint64_t probe_ops_limit(bool is_gpu, const struct lade_machine *machine);

/*
 * Find the first op of every key that has no entry in @cost, has at most @limit_bytes and is not predicted to take too
 * long. @ops has room for each op of @graph, lean ones too. Return their number, or -ENOMEM.
 */
int probe_ops_find(const struct lade_model_graph *graph, const struct lade_cost *cost, uint64_t limit_bytes,
                   int *ops);

/*
 * A GPU during its measurement: queues and a step block (probe_gpu.c). Call finish after init, also if init failed:
 * -ENOMEM, -EAGAIN, or the device's status.
 */
struct probe_chunk {
  lade_chunk *chunk;
  uint64_t address, bytes;
};
struct probe_gpu {
  const struct lade_probe_gpu *probed;
  struct probe_chunk step;
  lade_queue *compute, *to_host, *to_device;
};
int probe_gpu_init(struct probe_gpu *gpu, const struct lade_probe_gpu *probed);
void probe_gpu_finish(struct probe_gpu *gpu);
/* Map memory of @bytes; unmap accepts a partial map. -ENOMEM. */
int probe_gpu_map(const struct lade_probe_gpu *probed, uint64_t bytes, struct probe_chunk *chunk);
void probe_gpu_unmap(const struct lade_probe_gpu *probed, struct probe_chunk *chunk);
/* Copy to the device and wait. Returns the device's status. */
int probe_gpu_put(struct probe_gpu *gpu, uint64_t address, const void *src, uint64_t bytes);
/* Run a kernel; return its nanoseconds by the device's events. A negative result is the device's status. */
int64_t probe_gpu_kernel_ns(struct probe_gpu *gpu, enum lade_kernel kernel, const void *args);

/* Measure as on the host: the best rate of products; memory and sums of squares; launches and links. */
int probe_gpu_matmul(const struct lade_probe_params *params, enum lade_dtype dtype, double *ret_flops_per_s);
int probe_gpu_memory(const struct lade_probe_params *params, struct lade_cost *cost);
int probe_gpu_queues(const struct lade_probe_params *params, struct lade_machine *machine);

/*
 * Load known values of this machine's cache file into @cost (rates of 0 are unknown), and return whether there were any
 * for this key; or save them. Both functions ignore failures. The store is the entry of params->store; it may be NULL.
 */
bool probe_cache_load(const struct lade_probe_params *params, struct lade_cost *cost);
void probe_cache_save(const struct lade_probe_params *params, const struct lade_cost *cost);

/* Get the directory of kept measurements; made if @is_written. False: there is none, or a foreign link leads to it. */
bool probe_cache_dir(const struct lade_probe_params *params, bool is_written, char ret_dir[PATH_MAX]);
/* Write @root, NULL if there was no memory for it, as the whole file @path. Ignores failures. */
void probe_file_save(const char *path, const struct json_t *root);

#endif
