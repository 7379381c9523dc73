/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of the probe, and the rates that belong to the machine alone.
 *
 * What is measured is what will run: products through the kernel table, AdamW and sums of squares through
 * theirs, copies and launches through the queues of a host device (probe_queues.c), ops in the memory of one
 * (probe_ops.c). Every figure is a median of a few runs after a warm-up, because a step sees typical times;
 * only the matrix rate is a best, because it is a limit that others are compared with.
 *
 * Areas are larger than the last-level cache of common machines is likely to keep between two passes (64 MiB
 * each), but small enough that their pages cost milliseconds. On a server with a larger cache the bandwidth
 * comes out as what a step with buffers of this size would see there, too.
 *
 * The matrix rate runs sizes upwards and stops when a quarter of a second is spent, so that plain C on a slow
 * machine costs a second and not a minute. FP16, which few CPUs compute, is measured only for a graph in it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "base/float.h"
#include "device/cuda.h"
#include "plan/probe_internal.h"

#define HUGE_PAGE_BYTES (2u << 20)
#define AREA_BYTES ((size_t)64 << 20)
#define RATE_LIMIT_NS 250000000
#define N_REPEATS 3
#define FILL_ELEMENTS 65536

/* ---- memory ---- */

int probe_area_init(struct probe_area *area, size_t bytes)
{
  bytes = lade_align_up(bytes, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES; /* so that a whole huge page begins inside */
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return -ENOMEM;
  madvise(at, bytes, MADV_HUGEPAGE);
  memset(at, 0, bytes);
  *area = (struct probe_area){at, bytes};
  return 0;
}

void probe_area_finish(struct probe_area *area)
{
  if (area->at)
    munmap(area->at, area->bytes);
  *area = (struct probe_area){0};
}

struct fill {
  char *at;
  enum lade_dtype dtype;
  uint64_t n_elements;
  float low, high;
};

static void fill_task(void *arg, int i_task, int i_thread)
{
  const struct fill *fill = arg;
  uint64_t first = (uint64_t)i_task * FILL_ELEMENTS, end = LADE_MIN(first + FILL_ELEMENTS, fill->n_elements);
  uint64_t state = first * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (uint64_t i = first; i < end; i++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth's LCG: any will do */
    float value = fill->low + (fill->high - fill->low) * ((float)(state >> 40) * 0x1p-24f);
    if (fill->dtype == LADE_BF16)
      ((uint16_t *)fill->at)[i] = lade_f32_to_bf16(value);
    else if (fill->dtype == LADE_F16)
      ((uint16_t *)fill->at)[i] = lade_f32_to_f16(value);
    else if (fill->dtype == LADE_F64)
      ((double *)fill->at)[i] = (double)value;
    else
      ((float *)fill->at)[i] = value;
  }
}

void probe_fill(lade_pool *pool, void *at, enum lade_dtype dtype, uint64_t bytes, float low, float high)
{
  if (dtype == LADE_I32 || dtype == LADE_I16 || dtype == LADE_U8) {
    memset(at, 0, bytes);
    return;
  }
  struct fill fill = {at, dtype, bytes / lade_dtype_bytes(dtype), low, high};
  lade_pool_run(pool, fill_task, &fill, (int)lade_div_up((int64_t)fill.n_elements, FILL_ELEMENTS));
}

static int ns_compare(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int64_t probe_median(int64_t *values, int n)
{
  qsort(values, (size_t)n, sizeof(*values), ns_compare);
  return values[n / 2];
}

/* ---- matrix rate ---- */

static int64_t matmul_ns(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_matmul_args *args)
{
  struct lade_kernel_ctx ctx = {.pool = pool};
  int64_t start_ns = lade_now_ns();
  kernels->fn[LADE_K_MATMUL](&ctx, args);
  return lade_now_ns() - start_ns;
}

int lade_probe_matmul_rate(const struct lade_kernels *kernels, lade_pool *pool, enum lade_dtype dtype,
                           double *ret_flops_per_s)
{
  const int64_t largest = 2048;
  const int n_threads = lade_pool_n_threads(pool);
  struct lade_matmul_args args = {.layout = LADE_NT, .dtype = dtype, .out = dtype, .m = largest, .n = largest,
                                  .k = largest};
  size_t workspace_bytes = 0;
  for (int64_t size = 512; size <= largest; size *= 2) {
    args.m = args.n = args.k = size;
    size_t bytes = lade_kernel_workspace_bytes(kernels, LADE_K_MATMUL, &args, n_threads);
    workspace_bytes = LADE_MAX(workspace_bytes, bytes);
  }
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
  for (int64_t size = 512; size <= largest; size *= 2) {
    args.m = args.n = args.k = size;
    double flops = 2.0 * (double)size * (double)size * (double)size;
    for (int i = 0; i < N_REPEATS + (size == 512); i++) { /* the first run of all warms up */
      if (best > 0 && lade_now_ns() - start_ns + (int64_t)(flops / best * 1e9) > RATE_LIMIT_NS)
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

/* Bytes read plus bytes written per second. */
static double stream_rate(lade_pool *pool, const struct probe_area *area)
{
  struct stream stream = {area->at, area->at + AREA_BYTES, AREA_BYTES, (size_t)1 << 20};
  int64_t ns[N_REPEATS];
  for (int i = -1; i < N_REPEATS; i++) {
    int64_t start_ns = lade_now_ns();
    lade_pool_run(pool, stream_task, &stream, (int)(stream.bytes / stream.piece_bytes));
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return 2.0 * (double)stream.bytes / (double)LADE_MAX(probe_median(ns, N_REPEATS), 1) * 1e9;
}

/* AdamW with BF16 weights over state that fills both areas, cut like the parameters of a model. */
static double adamw_rate(const struct lade_probe_params *params, const struct probe_area *area)
{
  const int64_t n = 1 << 20;
  int read, written;
  lade_cost_adamw_bytes(&(struct lade_adamw_args){.dtype = LADE_BF16, .grad_dtype = LADE_F32}, &read, &written);
  const int n_params = (int)(2 * AREA_BYTES / ((size_t)n * (size_t)read));
  struct lade_step step = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f,
                           .correction1 = 10, .correction2 = 100};
  struct lade_verdict verdict = {.factor = 1};
  struct lade_kernel_ctx ctx = {.pool = params->pool, .step = &step};
  int64_t ns[N_REPEATS];
  memset(area->at, 0, 2 * AREA_BYTES);
  for (int i = -1; i < N_REPEATS; i++) {
    int64_t start_ns = lade_now_ns();
    for (int p = 0; p < n_params; p++) {
      char *at = area->at + (size_t)p * (size_t)n * (size_t)read;
      struct lade_adamw_args args = {.dtype = LADE_BF16, .grad_dtype = LADE_F32, .n_elements = n, .has_decay = true,
                                     .verdict = &verdict, .grad = at, .m = (float *)(at + 4 * n),
                                     .v = (float *)(at + 8 * n), .weight = at + 12 * n, .residual = at + 14 * n};
      params->kernels->fn[LADE_K_ADAMW](&ctx, &args);
    }
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return (double)n_params * (double)n * (read + written) / (double)LADE_MAX(probe_median(ns, N_REPEATS), 1) * 1e9;
}

static double sum_squares_rate(const struct lade_probe_params *params, const struct probe_area *area)
{
  struct lade_kernel_ctx ctx = {.pool = params->pool};
  struct lade_sum_squares_args args = {.dtype = LADE_F32, .n_elements = (int64_t)AREA_BYTES / 4, .grad = area->at,
                                       .partial = (double *)(area->at + AREA_BYTES)};
  int64_t ns[N_REPEATS];
  for (int i = -1; i < N_REPEATS; i++) {
    int64_t start_ns = lade_now_ns();
    params->kernels->fn[LADE_K_SUM_SQUARES](&ctx, &args);
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return (double)AREA_BYTES / (double)LADE_MAX(probe_median(ns, N_REPEATS), 1) * 1e9;
}

int probe_memory(const struct lade_probe_params *params, struct lade_cost *cost)
{
  struct probe_area area;
  int rc = probe_area_init(&area, 2 * AREA_BYTES);
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
                         : lade_probe_matmul_rate(params->kernels, params->pool, dtypes[i], rate);
    if (rc)
      return rc;
  }
  return 0;
}

void probe_machine_name(const struct lade_probe_params *params, char ret_name[LADE_MACHINE_NAME_BYTES])
{
  struct lade_device_info info = {.name = ""};
  char cpu[LADE_MACHINE_NAME_BYTES];
  lade_cpu_name(cpu, sizeof(cpu));
  if (params->gpu)
    lade_device_get_info(params->gpu->device, &info);
  snprintf(ret_name, LADE_MACHINE_NAME_BYTES, "%.48s%s%s", info.name, params->gpu ? ", " : "", cpu);
}

/* What is true of this moment and never cached. */
static void capacities_get(const struct lade_probe_params *params, struct lade_machine *machine)
{
  probe_machine_name(params, machine->name);
  machine->n_cores = lade_pool_n_threads(params->pool);
  machine->is_duplex = true;
  machine->is_unified = !params->gpu;
  machine->device_bytes = machine->host_bytes = (uint64_t)lade_cpu_memory_bytes();
  if (params->gpu) {
    struct lade_device_info info;
    lade_device_get_info(params->gpu->device, &info);
    machine->device_bytes = info.capacity_bytes;
  }
  if (!params->store)
    return;
  machine->store.bytes = params->store->capacity_bytes;
  if (!machine->store.bytes) /* a directory that is not there will be told when its drive is measured */
    lade_store_room(params->store->dir, &machine->store.bytes, NULL, NULL);
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

/* @ret_is_cramped: of the drive, so that its rates are those of this moment. */
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
  }
  int n_ops = cost->n_ops;
  if (!rc && params->graph)
    rc = probe_ops(params, error, cost);
  *ret_is_new |= cost->n_ops != n_ops;
  return rc;
}

int lade_probe(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *ret_cost)
{
  LADE_ASSERT(params->struct_size == sizeof(*params));
  struct lade_probe_params kept = *params;
  struct lade_cost cost = {0};
  bool is_new = false, is_cramped = false;
  if (!params->skip_cache)
    probe_cache_load(params, &cost);
  if (params->has_fresh_ops)
    cost.n_ops = 0;
  capacities_get(params, &cost.machine);
  int rc = measure(params, error, &cost, &is_new, &is_cramped);
  if (rc) {
    lade_cost_finish(&cost);
    return rc;
  }
  kept.store = is_cramped ? NULL : params->store;
  if (is_new && !params->skip_cache)
    probe_cache_save(&kept, &cost);
  *ret_cost = cost;
  return 0;
}
