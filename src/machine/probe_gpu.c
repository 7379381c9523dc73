/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure a GPU by its own events: products, streaming, launches, links.
 *
 * All work goes the way of a step's work: kernels through the launcher onto a stream, copies between mapped chunks and
 * pinned memory on copy queues. A kernel's time is that between the two events around it, so it includes neither the
 * host nor the link. The cost of a launch is the time from one empty kernel to the next.
 *
 * Sizes grow until a quarter of a second is spent. So a GPU reaches sizes past its caches, and a fake device does not
 * delay a test. Matrices hold random numbers, because a GPU's clock depends on how many bits change. An idle GPU raises
 * its clock only after some milliseconds of work: an H200 gave 520 and 722 TFLOP/s in two starts. So the largest
 * product runs for WARM_NS, and its best rate counts.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "machine/probe_internal.h"

#define LIMIT_NS 250000000            /* after which no larger size is measured */
#define WARM_NS 50000000              /* in which an idle GPU has raised its clock */
#define N_REPEATS 3                   /* of which the median counts */
#define N_LAUNCHES 200                /* whose mean counts */
#define COPY_BYTES ((size_t)16 << 20) /* of a copy whose time is mostly that of its bytes */
#define SMALL_BYTES ((size_t)4096)    /* of a copy whose time is the latency */
#define MIN_STREAM_BYTES ((uint64_t)1 << 20)
#define MAX_STREAM_BYTES ((uint64_t)256 << 20) /* past the caches of today's GPUs */
#define MIN_MATRIX 256              /* rows of the smallest square matrix */
#define MAX_MATRIX 4096              /* and of the largest one */

/* ---- memory and queues ---- */

int probe_gpu_map(const struct lade_probe_gpu *probed, uint64_t bytes, struct probe_chunk *chunk)
{
  struct lade_device_info info;
  lade_device_get_info(probed->device, &info);
  chunk->bytes = lade_align_up(bytes, info.chunk_bytes);
  int rc = lade_device_reserve(probed->device, chunk->bytes, &chunk->address);
  if (!rc)
    rc = lade_device_chunk_create(probed->device, chunk->bytes, &chunk->chunk);
  return rc ? rc : lade_device_map(probed->device, chunk->address, chunk->chunk);
}

void probe_gpu_unmap(const struct lade_probe_gpu *probed, struct probe_chunk *chunk)
{
  lade_device_chunk_release(probed->device, chunk->chunk);
  if (chunk->address)
    lade_device_release(probed->device, chunk->address, chunk->bytes);
  *chunk = (struct probe_chunk){0};
}

int probe_gpu_init(struct probe_gpu *gpu, const struct lade_probe_gpu *probed)
{
  const struct lade_step step = {.seed = 1, .lr = 1e-4f, .loss_scale = 1};
  *gpu = (struct probe_gpu){.probed = probed};
  int rc = probe_gpu_map(probed, sizeof(step), &gpu->step);
  if (!rc)
    rc = lade_queue_create(probed->device, LADE_QUEUE_COMPUTE, &gpu->compute);
  if (!rc)
    rc = lade_queue_create(probed->device, LADE_QUEUE_TO_DEVICE, &gpu->to_device);
  if (!rc)
    rc = lade_queue_create(probed->device, LADE_QUEUE_TO_HOST, &gpu->to_host);
  return rc ? rc : probe_gpu_put(gpu, gpu->step.address, &step, sizeof(step));
}

void probe_gpu_finish(struct probe_gpu *gpu)
{
  lade_queue_destroy(gpu->compute);
  lade_queue_destroy(gpu->to_device);
  lade_queue_destroy(gpu->to_host);
  probe_gpu_unmap(gpu->probed, &gpu->step);
}

int probe_gpu_put(struct probe_gpu *gpu, uint64_t address, const void *src, uint64_t bytes)
{
  const struct lade_copy copy = {.dst = (void *)(uintptr_t)address, .src = src, .bytes = bytes};
  uint64_t count;
  lade_queue_copy(gpu->to_device, &copy, &count);
  return lade_queue_sync(gpu->to_device, count);
}

static int64_t kernels_ns(struct probe_gpu *gpu, enum lade_kernel kernel, const void *args, int n)
{
  struct lade_span first = {0}, last = {0};
  const struct lade_cuda_work work = {kernel, args, (const struct lade_step *)(uintptr_t)gpu->step.address};
  uint64_t count = 0;
  for (int i = 0; i < n; i++)
    lade_cuda_kernels_submit(gpu->probed->kernels, gpu->compute, &work, i ? &last : &first, &count);
  if (lade_queue_sync(gpu->compute, count))
    return 1;
  return LADE_MAX((n > 1 ? last.end_ns : first.end_ns) - first.start_ns, 1);
}

int64_t probe_gpu_kernel_ns(struct probe_gpu *gpu, enum lade_kernel kernel, const void *args)
{
  return kernels_ns(gpu, kernel, args, 1);
}

/* Return the median of a few runs. */
static int64_t typical_ns(struct probe_gpu *gpu, enum lade_kernel kernel, const void *args)
{
  int64_t ns[N_REPEATS];
  for (int i = 0; i < N_REPEATS; i++)
    ns[i] = probe_gpu_kernel_ns(gpu, kernel, args);
  return probe_median(ns, N_REPEATS);
}

/* Return the bytes that each of @n arrays may have: @max_bytes, halved until all take at most half of the device. */
static uint64_t room_find(const struct lade_probe_gpu *probed, uint64_t max_bytes, unsigned n)
{
  struct lade_device_info info;
  lade_device_get_info(probed->device, &info);
  while (n * max_bytes > info.capacity_bytes / 2 && max_bytes > MIN_STREAM_BYTES)
    max_bytes /= 2;
  return max_bytes;
}

/* ---- products ---- */

/* Return the rate of a product that runs for WARM_NS: the best of its medians. */
static double matmul_warm_rate(struct probe_gpu *gpu, const struct lade_matmul_args *args, double flops)
{
  double best = 0;
  const int64_t start_ns = lade_now_ns();
  do
    best = LADE_MAX(best, flops / (double)typical_ns(gpu, LADE_K_MATMUL, args) * 1e9);
  while (lade_now_ns() - start_ns < WARM_NS);
  return best;
}

/* Return the rate of products whose scratch fits. */
static double matmul_rate(struct probe_gpu *gpu, struct lade_matmul_args args, int64_t max, uint64_t scratch_bytes)
{
  double best = 0, largest_flops = 0;
  struct lade_matmul_args largest = args;
  struct lade_kernels kernels;
  lade_cuda_kernels_get(gpu->probed->kernels, &kernels);
  const int64_t start_ns = lade_now_ns();
  for (int64_t n = MIN_MATRIX; n <= max; n *= 2) {
    const double flops = 2.0 * (double)n * (double)n * (double)n;
    if (best > 0 && (double)(lade_now_ns() - start_ns) + N_REPEATS * flops / best * 1e9 > LIMIT_NS)
      break;
    args.m = args.n = args.k = n;
    if (lade_kernel_workspace_bytes(&kernels, LADE_K_MATMUL, &args, 1) > scratch_bytes)
      break;
    best = LADE_MAX(best, flops / (double)typical_ns(gpu, LADE_K_MATMUL, &args) * 1e9);
    largest = args;
    largest_flops = flops;
  }
  return largest_flops > 0 ? LADE_MAX(best, matmul_warm_rate(gpu, &largest, largest_flops)) : best;
}

int probe_gpu_matmul(const struct lade_probe_params *params, enum lade_dtype dtype, double *ret_flops_per_s)
{
  const uint64_t bytes = room_find(params->gpu, (uint64_t)MAX_MATRIX * MAX_MATRIX * sizeof(float), 4);
  struct probe_gpu gpu;
  struct probe_chunk chunk = {0};
  struct probe_area random = {0};
  int64_t max = MIN_MATRIX;
  while (4 * (uint64_t)(max * max) * lade_dtype_bytes(dtype) <= bytes && max < MAX_MATRIX)
    max *= 2;
  int rc = probe_gpu_init(&gpu, params->gpu);
  if (!rc)
    rc = probe_gpu_map(params->gpu, 4 * bytes, &chunk);
  if (!rc)
    rc = probe_area_init(&random, 2 * bytes);
  if (!rc) {
    probe_fill(params->pool, random.at, dtype, 2 * bytes, -1, 1);
    rc = probe_gpu_put(&gpu, chunk.address, random.at, 2 * bytes);
  }
  if (!rc) {
    char *at = (char *)(uintptr_t)chunk.address;
    *ret_flops_per_s = matmul_rate(&gpu, (struct lade_matmul_args){.layout = LADE_NT, .dtype = dtype, .out = dtype,
                                                                   .a = at, .b = at + bytes, .c = at + 2 * bytes,
                                                                   .workspace = at + 3 * bytes},
                                   max, bytes);
    rc = lade_device_status(params->gpu->device);
  }
  probe_area_finish(&random);
  probe_gpu_unmap(params->gpu, &chunk);
  probe_gpu_finish(&gpu);
  return rc;
}

/* ---- memory ---- */

/*
 * Measure bytes per second of a kernel that reads two vectors and writes one, and of sums of squares, at the largest
 * size.
 */
static void streams_measure(struct probe_gpu *gpu, char *at, uint64_t max_bytes, struct lade_cost *cost)
{
  const int64_t start_ns = lade_now_ns();
  for (uint64_t bytes = MIN_STREAM_BYTES; bytes <= max_bytes; bytes *= 4) {
    if (4 * (lade_now_ns() - start_ns) > LIMIT_NS) /* the next size takes four times as long */
      break;
    const int64_t n = (int64_t)(bytes / sizeof(float));
    const struct lade_add_args add = {.n_elements = n, .x = (float *)(void *)at,
                                      .y = (float *)(void *)(at + max_bytes)};
    const struct lade_sum_squares_args squares = {.dtype = LADE_F32, .n_elements = n, .grad = at,
                                                  .partial = (double *)(void *)(at + max_bytes)};
    cost->machine.device_bytes_per_s = 3.0 * (double)bytes / (double)typical_ns(gpu, LADE_K_ADD, &add) * 1e9;
    cost->sum_squares_bytes_per_s = (double)bytes / (double)typical_ns(gpu, LADE_K_SUM_SQUARES, &squares) * 1e9;
  }
}

int probe_gpu_memory(const struct lade_probe_params *params, struct lade_cost *cost)
{
  const uint64_t bytes = room_find(params->gpu, MAX_STREAM_BYTES, 2);
  struct probe_gpu gpu;
  struct probe_chunk chunk = {0};
  int rc = probe_gpu_init(&gpu, params->gpu);
  if (!rc)
    rc = probe_gpu_map(params->gpu, 2 * bytes, &chunk);
  if (!rc) {
    streams_measure(&gpu, (char *)(uintptr_t)chunk.address, bytes, cost);
    rc = lade_device_status(params->gpu->device);
  }
  probe_gpu_unmap(params->gpu, &chunk);
  probe_gpu_finish(&gpu);
  return rc;
}

/* ---- launches and links ---- */

static int64_t copy_ns(lade_queue *queue, void *dst, const void *src, uint64_t bytes)
{
  int64_t ns[N_REPEATS];
  for (int i = 0; i < N_REPEATS; i++) {
    struct lade_span span = {0};
    uint64_t count;
    lade_queue_copy(queue, &(struct lade_copy){.dst = dst, .src = src, .bytes = bytes, .ret_span = &span}, &count);
    lade_queue_sync(queue, count);
    ns[i] = span.end_ns - span.start_ns;
  }
  return LADE_MAX(probe_median(ns, N_REPEATS), 1);
}

static struct lade_link link_measure(lade_queue *queue, void *dst, const void *src)
{
  const int64_t whole_ns = copy_ns(queue, dst, src, COPY_BYTES), small_ns = copy_ns(queue, dst, src, SMALL_BYTES);
  return (struct lade_link){
      .bytes_per_s = (uint64_t)((double)COPY_BYTES / (double)LADE_MAX(whole_ns - small_ns, 1) * 1e9),
      .latency_ns = (uint64_t)small_ns};
}

static void queues_measure(struct probe_gpu *gpu, void *device, void *host, struct lade_machine *machine)
{
  const struct lade_add_args nothing = {.n_elements = 1, .x = device, .y = device};
  machine->launch_ns = (double)kernels_ns(gpu, LADE_K_ADD, &nothing, N_LAUNCHES) / N_LAUNCHES;
  machine->to_device = link_measure(gpu->to_device, device, host);
  machine->to_host = link_measure(gpu->to_host, host, device);
}

int probe_gpu_queues(const struct lade_probe_params *params, struct lade_machine *machine)
{
  struct probe_gpu gpu;
  struct probe_chunk chunk = {0};
  struct probe_area host = {0};
  bool is_pinned = false;
  int rc = probe_gpu_init(&gpu, params->gpu);
  if (!rc)
    rc = probe_gpu_map(params->gpu, COPY_BYTES, &chunk);
  if (!rc)
    rc = probe_area_init(&host, COPY_BYTES);
  if (!rc) {
    rc = lade_device_pin(params->gpu->device, host.at, host.bytes);
    is_pinned = !rc;
  }
  if (!rc) {
    queues_measure(&gpu, (void *)(uintptr_t)chunk.address, host.at, machine);
    rc = lade_device_status(params->gpu->device);
  }
  if (is_pinned)
    lade_device_unpin(params->gpu->device, host.at, host.bytes);
  probe_area_finish(&host);
  probe_gpu_unmap(params->gpu, &chunk);
  probe_gpu_finish(&gpu);
  return rc;
}
