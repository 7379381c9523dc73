/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of the probe, and the rates that belong to the machine alone.
 *
 * The probe measures the code that a step runs: products, AdamW and sums of squares through the kernel table, copies
 * and launches through the queues of a host device (probe_queues.c), ops in the memory of one (probe_ops.c). A rate of
 * memory is a lower quartile of a few runs after a warm-up, because other programs only lengthen times. The matrix rate
 * is the best of its runs, because it is a limit with which others are compared.
 *
 * Where less memory is left than the areas take (probe_area.c), measuring takes less, and its figures are not kept for
 * other runs.
 *
 * The matrix rate runs sizes upwards and stops when a quarter of a second is spent. So plain C on a slow machine costs
 * a second and not a minute. FP16, which few CPUs compute, is measured only for a graph in it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/philox.h"
#include "base/float.h"
#include "device/cuda.h"
#include "machine/probe_internal.h"

#define ROOM_BYTES_MIN (UINT64_C(24) << 20) /* free memory below which the probe refuses to measure */
#define RATE_LIMIT_NS 250000000 /* of products of one type */
#define RATE_AGAIN_NS 30000000  /* the same, if a rate of these cores is known */
#define PRODUCT_MIN 512       /* rows of the smallest square matrix */
#define PRODUCT_MAX 2048       /* and of the largest one */
#define N_REPEATS 3             /* products of one size, of which the fastest counts */
#define N_PASSES 5              /* over memory, of which the lower quartile counts */

/* ---- matrix rate ---- */

static int64_t matmul_ns(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_matmul_args *args)
{
  struct lade_kernel_ctx ctx = {.pool = pool};
  int64_t start_ns = lade_now_ns();
  kernels->fn[LADE_K_MATMUL](&ctx, args);
  return lade_now_ns() - start_ns;
}

/* Return the workspace bytes of the products up to @largest, which @args describe. */
static size_t products_workspace(const struct lade_kernels *kernels, int n_threads, int64_t largest,
                                 struct lade_matmul_args *args)
{
  size_t workspace_bytes = 0;
  for (int64_t size = PRODUCT_MIN; size <= largest; size *= 2) {
    args->m = args->n = args->k = size;
    size_t bytes = lade_kernel_workspace_bytes(kernels, LADE_K_MATMUL, args, n_threads);
    workspace_bytes = LADE_MAX(workspace_bytes, bytes);
  }
  return workspace_bytes;
}

/* Return the size of the largest product whose matrices fit in the free memory. */
static int64_t products_largest(enum lade_dtype dtype)
{
  const uint64_t room_bytes = probe_room_bytes();
  int64_t largest = PRODUCT_MAX;
  while (largest > PRODUCT_MIN && 4 * (uint64_t)(largest * largest) * lade_dtype_bytes(dtype) > room_bytes)
    largest /= 2;
  return largest;
}

/* Return the time that @size cubed takes at @flops_per_s; 0 if that is not known. */
static int64_t product_ns(int64_t size, double flops_per_s)
{
  const double flops = 2.0 * (double)size * (double)size * (double)size;
  return flops_per_s > 0 ? (int64_t)(flops / flops_per_s * 1e9) : 0;
}

int lade_probe_matmul_rate(const struct lade_kernels *kernels, lade_pool *pool, enum lade_dtype dtype,
                           double known_flops_per_s, double *ret_flops_per_s)
{
  const int64_t limit_ns = known_flops_per_s > 0 ? RATE_AGAIN_NS : RATE_LIMIT_NS;
  int64_t largest = products_largest(dtype);
  while (largest > PRODUCT_MIN && product_ns(largest, known_flops_per_s) > limit_ns / 2)
    largest /= 2;
  struct lade_matmul_args args = {.layout = LADE_NT, .dtype = dtype, .out = dtype};
  const size_t workspace_bytes = products_workspace(kernels, lade_pool_n_threads(pool), largest, &args);
  size_t matrix_bytes = (size_t)(largest * largest) * lade_dtype_bytes(dtype);
  struct probe_area area;
  int rc = probe_area_init(&area, 3 * matrix_bytes + workspace_bytes);
  if (rc)
    return rc;
  args.a = area.at;
  args.b = area.at + matrix_bytes;
  args.c = area.at + 2 * matrix_bytes;
  args.workspace = area.at + 3 * matrix_bytes;
  probe_fill(pool, area.at, dtype, 2 * matrix_bytes, -1, 1);
  double best = 0;
  int64_t start_ns = lade_now_ns();
  for (int64_t size = PRODUCT_MIN; size <= largest; size *= 2) {
    args.m = args.n = args.k = size;
    double flops = 2.0 * (double)size * (double)size * (double)size;
    for (int i = 0; i < N_REPEATS + (size == PRODUCT_MIN); i++) { /* one more of the first size, as a warm-up */
      if (best > 0 && lade_now_ns() - start_ns + product_ns(size, best) > limit_ns)
        break;
      int64_t ns = LADE_MAX(matmul_ns(kernels, pool, &args), 1);
      best = LADE_MAX(best, flops / (double)ns * 1e9);
    }
  }
  probe_area_finish(&area);
  *ret_flops_per_s = best;
  return 0;
}

/* ---- streaming ---- */

struct stream {
  char *to;
  const char *from;
  size_t bytes, piece_bytes;
};

static void stream_task(void *arg, int i_task, int i_thread)
{
  const struct stream *stream = arg;
  size_t at = (size_t)i_task * stream->piece_bytes;
  memcpy(stream->to + at, stream->from + at, LADE_MIN(stream->piece_bytes, stream->bytes - at));
}

/* Return the bytes of one of the two halves of @area, of whole MiB. */
static size_t half_of(const struct probe_area *area)
{
  return area->bytes / 2 >> 20 << 20;
}

/* Return bytes read plus bytes written per second. */
static double stream_rate(lade_pool *pool, const struct probe_area *area)
{
  const size_t half_bytes = half_of(area);
  struct stream stream = {area->at, area->at + half_bytes, half_bytes, (size_t)1 << 20};
  int64_t ns[N_PASSES];
  for (int i = -1; i < N_PASSES; i++) {
    int64_t start_ns = lade_now_ns();
    lade_pool_run(pool, stream_task, &stream, (int)(stream.bytes / stream.piece_bytes));
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return 2.0 * (double)stream.bytes / (double)LADE_MAX(probe_quartile(ns, N_PASSES), 1) * 1e9;
}

/* Return the rate of AdamW with BF16 weights over state that fills both areas, cut like the parameters of a model. */
static double adamw_rate(const struct lade_probe_params *params, const struct probe_area *area)
{
  int read, written;
  lade_cost_adamw_bytes(&(struct lade_adamw_args){.dtype = LADE_BF16, .grad_dtype = LADE_F32}, &read, &written);
  const int64_t n = LADE_MIN(1 << 20, (int64_t)(2 * half_of(area)) / read / 1024 * 1024);
  const int n_params = (int)(2 * half_of(area) / ((size_t)n * (size_t)read));
  struct lade_step step = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f,
                           .correction1 = 10, .correction2 = 100};
  struct lade_clip_result clip_result = {.factor = 1};
  struct lade_kernel_ctx ctx = {.pool = params->pool, .step = &step};
  int64_t ns[N_PASSES];
  memset(area->at, 0, 2 * half_of(area));
  for (int i = -1; i < N_PASSES; i++) {
    int64_t start_ns = lade_now_ns();
    for (int p = 0; p < n_params; p++) {
      char *at = area->at + (size_t)p * (size_t)n * (size_t)read;
      struct lade_adamw_args args = {.dtype = LADE_BF16, .grad_dtype = LADE_F32, .n_elements = n, .has_decay = true,
                                     .clip_result = &clip_result, .grad = at, .m = (float *)(at + 4 * n),
                                     .v = (float *)(at + 8 * n), .weight = at + 12 * n, .residual = at + 14 * n};
      params->kernels->fn[LADE_K_ADAMW](&ctx, &args);
    }
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return (double)n_params * (double)n * (read + written) / (double)LADE_MAX(probe_quartile(ns, N_PASSES), 1) * 1e9;
}

static double sum_squares_rate(const struct lade_probe_params *params, const struct probe_area *area)
{
  struct lade_kernel_ctx ctx = {.pool = params->pool};
  struct lade_sum_squares_args args = {.dtype = LADE_F32, .n_elements = (int64_t)half_of(area) / 4, .grad = area->at,
                                       .partial = (double *)(area->at + half_of(area))};
  int64_t ns[N_PASSES];
  for (int i = -1; i < N_PASSES; i++) {
    int64_t start_ns = lade_now_ns();
    params->kernels->fn[LADE_K_SUM_SQUARES](&ctx, &args);
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return (double)half_of(area) / (double)LADE_MAX(probe_quartile(ns, N_PASSES), 1) * 1e9;
}

int probe_memory(const struct lade_probe_params *params, struct lade_cost *cost)
{
  struct probe_area area;
  int rc = probe_area_init(&area, 2 * probe_area_bytes());
  if (rc)
    return rc;
  cost->machine.device_bytes_per_s = stream_rate(params->pool, &area);
  cost->machine.host_bytes_per_s = adamw_rate(params, &area);
  cost->sum_squares_bytes_per_s = sum_squares_rate(params, &area);
  probe_area_finish(&area);
  return 0;
}

/* ---- the probe ---- */

static int rates_measure(const struct lade_probe_params *params, struct lade_machine *machine, bool *ret_is_new)
{
  const enum lade_dtype own = params->graph ? params->graph->dtype : LADE_BF16;
  const enum lade_dtype dtypes[] = {LADE_F32, own == LADE_F16 ? LADE_F16 : LADE_BF16};
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    double *rate = &machine->matmul_flops_per_s[dtypes[i]];
    if (*rate > 0)
      continue;
    *ret_is_new = true;
    int rc = params->gpu ? probe_gpu_matmul(params, dtypes[i], rate)
                         : lade_probe_matmul_rate(params->kernels, params->pool, dtypes[i], 0, rate);
    if (rc)
      return rc;
  }
  return 0;
}

/* Get the values that hold only at this moment and are never cached. */
static int capacities_get(const struct lade_probe_params *params, struct lade_machine *machine,
                          struct lade_error *error)
{
  struct lade_memory memory;
  int status = lade_memory_get("", error, &memory);
  if (status)
    return status;
  if (memory.bytes < ROOM_BYTES_MIN)
    return lade_error_set(error, -EOVERFLOW, "probe: measuring takes %d MiB, and %s leaves %llu of its %llu bytes; "
                          "raise that limit, or state the machine with --machine", (int)(ROOM_BYTES_MIN >> 20),
                          memory.source, (unsigned long long)memory.bytes, (unsigned long long)memory.limit_bytes);
  probe_machine_name(params, machine->name);
  machine->n_cores = lade_pool_n_threads(params->pool);
  machine->is_duplex = true;
  machine->is_unified = !params->gpu;
  machine->device_bytes = machine->host_bytes = memory.bytes;
  if (params->gpu) {
    struct lade_device_info info;
    lade_device_get_info(params->gpu->device, &info);
    machine->device_bytes = info.capacity_bytes;
  }
  if (!params->store)
    return 0;
  machine->store.bytes = params->store->capacity_bytes;
  if (!machine->store.bytes) /* a missing directory is reported when its drive is measured */
    lade_store_room(params->store->dir, &machine->store.bytes, NULL, NULL);
  return 0;
}

static int measure_fail(const struct lade_probe_params *params, struct lade_error *error, int status)
{
  struct lade_error why = {0};
  if (!status)
    return 0;
  if (params->gpu && lade_device_status(params->gpu->device))
    lade_cuda_get_error(params->gpu->device, &why);
  if (*why.text)
    return lade_error_set(error, status, "probe: the device reports a failure (%s)", why.text);
  return lade_error_set(error, status, "probe: no memory to measure in; state the machine with --machine");
}

/* Measure what @cost lacks. *ret_is_cramped: the drive had little room, so its rates hold only at this moment. */
static int measure(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *cost,
                   bool *ret_is_new, bool *ret_is_cramped)
{
  struct lade_machine *machine = &cost->machine;
  int rc = rates_measure(params, machine, ret_is_new);
  if (!rc && cost->sum_squares_bytes_per_s == 0) {
    *ret_is_new = true;
    rc = probe_memory(params, cost);
    if (!rc && params->gpu)
      rc = probe_gpu_memory(params, cost);
  }
  if (rc)
    return measure_fail(params, error, rc);
  if (!machine->to_host.bytes_per_s) {
    *ret_is_new = true;
    rc = params->gpu ? measure_fail(params, error, probe_gpu_queues(params, machine))
                     : probe_queues(params, error, machine);
  }
  if (!rc && params->store && machine->store.read_bytes_per_s == 0) {
    *ret_is_new = true;
    rc = probe_store(params, error, &machine->store, ret_is_cramped);
  } else if (!rc && params->store && params->has_fresh_ops) {
    bool has_changed;
    rc = probe_store_again(params, error, &machine->store, &has_changed);
    *ret_is_new |= has_changed;
  }
  int n_ops = cost->n_ops;
  if (!rc && params->graph)
    rc = probe_ops(params, error, cost);
  *ret_is_new |= cost->n_ops != n_ops;
  return rc;
}

bool lade_probe_recall(const struct lade_probe_params *params, struct lade_cost *ret_cost)
{
  struct lade_cost cost = {0};
  if (!probe_cache_load(params, &cost))
    return false;
  *ret_cost = cost;
  return true;
}

int lade_probe(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *ret_cost)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  struct lade_probe_params kept = *params;
  struct lade_cost cost = {0};
  bool is_new = false, is_cramped = false;
  if (!params->skip_cache && !params->is_renewed)
    probe_cache_load(params, &cost);
  if (params->has_fresh_ops)
    cost.n_ops = 0;
  int rc = capacities_get(params, &cost.machine, error);
  const bool has_room = probe_area_bytes() == PROBE_AREA_BYTES_MAX;
  if (!rc)
    rc = measure(params, error, &cost, &is_new, &is_cramped);
  if (rc) {
    lade_cost_finish(&cost);
    return rc;
  }
  kept.store = is_cramped ? NULL : params->store;
  if (is_new && has_room && !params->skip_cache)
    probe_cache_save(&kept, &cost);
  *ret_cost = cost;
  return 0;
}
