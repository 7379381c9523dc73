/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per op, dtype, shape and input pattern, the plain reference on one thread gives the right result. Each level's
 * function then runs on 1, 2 and 5 threads. Its outputs must be within the op's tolerance of the reference and have the
 * same bits for all thread counts. Guard bytes around outputs and workspace, and all inputs, must be unchanged. Inputs
 * have no guards but end where their allocation ends, so that AddressSanitizer detects a read past them.
 */
#include "harness.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/float.h"

#define GUARD_BYTES 128
#define GUARD 0xa5
#define WORKSPACE_FILL 0x7e /* 8e37 as a float: a sum that was not cleared shows */

static const int thread_counts[] = {1, 2, 5};
#define N_POOLS LADE_COUNT(thread_counts)

double element_get(enum lade_dtype dtype, const void *data, int64_t i)
{
  switch (dtype) {
  case LADE_F32: return ((const float *)data)[i];
  case LADE_BF16: return lade_bf16_to_f32(((const uint16_t *)data)[i]);
  case LADE_F16: return lade_f16_to_f32(((const uint16_t *)data)[i]);
  case LADE_F64: return ((const double *)data)[i];
  case LADE_I32: return ((const int32_t *)data)[i];
  case LADE_I16: return ((const int16_t *)data)[i];
  default: return ((const uint8_t *)data)[i];
  }
}

void element_set(enum lade_dtype dtype, void *data, int64_t i, double value)
{
  switch (dtype) {
  case LADE_F32: ((float *)data)[i] = (float)value; break;
  case LADE_BF16: ((uint16_t *)data)[i] = lade_f32_to_bf16((float)value); break;
  case LADE_F16: ((uint16_t *)data)[i] = lade_f32_to_f16((float)value); break;
  case LADE_F64: ((double *)data)[i] = value; break;
  case LADE_I32: ((int32_t *)data)[i] = (int32_t)value; break;
  case LADE_I16: ((int16_t *)data)[i] = (int16_t)value; break;
  default: ((uint8_t *)data)[i] = (uint8_t)value; break;
  }
}

enum lade_dtype accumulator_of(enum lade_dtype dtype)
{
  return dtype == LADE_F64 ? LADE_F64 : LADE_F32;
}

double random_next(uint64_t *state)
{
  uint64_t z = *state += 0x9e3779b97f4a7c15; /* splitmix64 (Steele, Lea, Flood 2014) */
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (double)((int64_t)((z ^ (z >> 31)) >> 11) - (1LL << 52)) * 0x1p-52;
}

static struct operand *operand_add(struct call *call, enum role role, const void *field, enum lade_dtype dtype,
                                   int64_t n_elements)
{
  assert_true(call->n_operands < CALL_OPERANDS);
  struct operand *operand = &call->operands[call->n_operands++];
  *operand = (struct operand){.field = {(size_t)((const char *)field - call->args.bytes)}, .n_fields = 1,
                              .role = role, .dtype = dtype, .n_elements = n_elements};
  assert_true(operand->field[0] < sizeof(call->args));
  return operand;
}

struct operand *call_in(struct call *call, const void *field, enum lade_dtype dtype, int64_t n_elements)
{
  return operand_add(call, ROLE_IN, field, dtype, n_elements);
}

struct operand *call_out(struct call *call, const void *field, enum lade_dtype dtype, int64_t n_elements, double ulps,
                         double relative)
{
  struct operand *operand = operand_add(call, ROLE_OUT, field, dtype, n_elements);
  operand->ulps = ulps;
  operand->relative = relative;
  return operand;
}

struct operand *call_inout(struct call *call, const void *field, const void *also, enum lade_dtype dtype,
                           int64_t n_elements, double ulps, double relative)
{
  struct operand *operand = call_out(call, field, dtype, n_elements, ulps, relative);
  operand->role = ROLE_INOUT;
  if (also)
    operand->field[operand->n_fields++] = (size_t)((const char *)also - call->args.bytes);
  return operand;
}

void call_workspace(struct call *call, const void *field)
{
  call->workspace_field = (size_t)((const char *)field - call->args.bytes);
}

static double dtype_max(enum lade_dtype dtype)
{
  switch (dtype) {
  case LADE_BF16: return (double)lade_bf16_to_f32(0x7f7f);
  case LADE_F16: return 65504;
  case LADE_F64: return DBL_MAX;
  default: return FLT_MAX;
  }
}

static double dtype_denormal(enum lade_dtype dtype)
{
  switch (dtype) {
  case LADE_BF16: return 0x1p-133;
  case LADE_F16: return 0x1p-24;
  case LADE_F64: return 0x1p-1074;
  default: return 0x1p-149;
  }
}

static double value_make(const struct operand *operand, enum pattern pattern, uint64_t *random)
{
  double draw = random_next(random);
  double largest = operand->limit > 0 ? fmin(operand->limit, dtype_max(operand->dtype)) : dtype_max(operand->dtype);
  if (operand->fill == FILL_POSITIVE)
    return 1.25 + 0.75 * draw;
  if (operand->fill == FILL_INDEX)
    return fmin(floor((draw + 1) / 2 * operand->limit), operand->limit - 1);
  double value = pattern == PATTERN_RANDOM     ? 3 * draw * draw * draw
                 : pattern == PATTERN_ZERO     ? (draw < 0 ? -0.0 : 0.0)
                 : pattern == PATTERN_MAX      ? largest
                 : pattern == PATTERN_MIN      ? -largest
                 : dtype_denormal(operand->dtype) * floor(40 * draw);
  return operand->fill == FILL_SQUARE ? fabs(value) : value;
}

static size_t operand_bytes(const struct operand *operand)
{
  return (size_t)operand->n_elements * lade_dtype_bytes(operand->dtype);
}

static void *block_alloc(size_t n_bytes)
{
  void *block = level_alloc(n_bytes);
  assert_non_null(block);
  return block;
}

static void operand_init(struct call *call, struct operand *operand, enum pattern pattern, uint64_t *random)
{
  size_t n_bytes = operand_bytes(operand), guard_bytes = operand->role == ROLE_IN ? 0 : GUARD_BYTES;
  operand->block = block_alloc(n_bytes + 2 * guard_bytes);
  operand->data = (char *)operand->block + guard_bytes;
  operand->start = block_alloc(n_bytes);
  memset(operand->block, GUARD, n_bytes + 2 * guard_bytes);
  if (operand->role != ROLE_OUT && operand->fill != FILL_NONE) {
    for (int64_t i = 0; i < operand->n_elements; i++)
      element_set(operand->dtype, operand->data, i, value_make(operand, pattern, random));
  }
  for (int i = 0; i < operand->n_fields; i++)
    memcpy(call->args.bytes + operand->field[i], &operand->data, sizeof(void *));
}

struct lade_step step_make(uint64_t seed)
{
  return (struct lade_step){.seed = seed, .step = 7, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f,
                            .weight_decay = 0.1f, .correction1 = 1.7558f, .correction2 = 12.94f, .clip = 1,
                            .loss_scale = 1};
}

void call_init(struct call *call, enum pattern pattern, uint64_t seed, struct lade_step *step)
{
  uint64_t random = seed;
  *step = step_make(seed);
  for (int i = 0; i < call->n_operands; i++)
    operand_init(call, &call->operands[i], pattern, &random);
  if (call->setup)
    call->setup(call, step);
  for (int i = 0; i < call->n_operands; i++)
    memcpy(call->operands[i].start, call->operands[i].data, operand_bytes(&call->operands[i]));
}

void call_reset(struct call *call)
{
  for (int i = 0; i < call->n_operands; i++)
    memcpy(call->operands[i].data, call->operands[i].start, operand_bytes(&call->operands[i]));
}

void call_finish(struct call *call)
{
  for (int i = 0; i < call->n_operands; i++) {
    free(call->operands[i].block);
    free(call->operands[i].start);
  }
}

static void guard_check(const void *guard)
{
  for (int i = 0; i < GUARD_BYTES; i++)
    assert_int_equal(((const uint8_t *)guard)[i], GUARD);
}

void call_run(struct call *call, const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step)
{
  const struct lade_kernel_ctx ctx = level_ctx(kernels, pool, step);
  char *block = NULL;
  size_t n_bytes = 0;
  if (call->workspace_field) {
    n_bytes = lade_kernel_workspace_bytes(kernels, call->kernel, &call->args, lade_pool_n_threads(pool));
    block = block_alloc(n_bytes + 2 * GUARD_BYTES);
    memset(block, GUARD, n_bytes + 2 * GUARD_BYTES);
    memset(block + GUARD_BYTES, WORKSPACE_FILL, n_bytes);
    void *workspace = block + GUARD_BYTES;
    memcpy(call->args.bytes + call->workspace_field, &workspace, sizeof(workspace));
  }
  kernels->fn[call->kernel](&ctx, &call->args);
  if (block) {
    guard_check(block);
    guard_check(block + GUARD_BYTES + n_bytes);
    free(block);
  }
}

static void inputs_and_guards_check(const struct call *call)
{
  for (int i = 0; i < call->n_operands; i++) {
    const struct operand *operand = &call->operands[i];
    if (operand->role == ROLE_IN) {
      assert_memory_equal(operand->data, operand->start, operand_bytes(operand));
    } else {
      guard_check(operand->block);
      guard_check((const char *)operand->data + operand_bytes(operand));
    }
  }
}

/* Return the distance between neighbours of @dtype at @value. */
static double ulp_get(enum lade_dtype dtype, double value)
{
  static const int digits[] = {[LADE_F32] = 24, [LADE_BF16] = 8, [LADE_F16] = 11, [LADE_F64] = 53};
  int exponent;
  frexp(value, &exponent);
  return fmax(ldexp(1, exponent - digits[dtype]), dtype_denormal(dtype));
}

static bool is_close(const struct operand *operand, double got, double want, double largest)
{
  if (isnan(want) || isnan(got))
    return isnan(want) && isnan(got);
  double top = dtype_max(operand->dtype);
  if (isinf(want) || isinf(got)) /* rounding decides between the largest number and infinity */
    return fmin(fabs(got), fabs(want)) >= top * (1 - ldexp(operand->ulps, -7)) && signbit(got) == signbit(want);
  return fabs(got - want) <= operand->ulps * ulp_get(operand->dtype, want) + operand->relative * largest;
}

static void output_compare(const struct operand *operand, const void *got, const void *want, const char *where)
{
  if (operand->ulps == 0 && operand->relative == 0) {
    size_t element_bytes = lade_dtype_bytes(operand->dtype);
    for (int64_t i = 0; i < operand->n_elements; i++) {
      double a = element_get(operand->dtype, got, i), b = element_get(operand->dtype, want, i);
      if (!(isnan(a) && isnan(b)) && memcmp((const char *)got + (size_t)i * element_bytes,
                                            (const char *)want + (size_t)i * element_bytes, element_bytes) != 0)
        fail_msg("%s: output at argument byte %zu, element %lld of %lld: bits differ: got %.9g, want %.9g", where,
                 operand->field[0], (long long)i, (long long)operand->n_elements, a, b);
    }
    return;
  }
  double largest = operand->scale;
  for (int64_t i = 0; i < operand->n_elements; i++) {
    double value = fabs(element_get(operand->dtype, want, i));
    largest = isfinite(value) ? fmax(largest, value) : largest;
  }
  for (int64_t i = 0; i < operand->n_elements; i++) {
    double a = element_get(operand->dtype, got, i), b = element_get(operand->dtype, want, i);
    if (!is_close(operand, a, b, largest))
      fail_msg("%s: output at argument byte %zu, element %lld of %lld: got %.9g, want %.9g (largest %.3g)", where,
               operand->field[0], (long long)i, (long long)operand->n_elements, a, b, largest);
  }
}

/* Copy every operand's data, in order; the caller frees the copies one by one. */
static void outputs_copy(const struct call *call, void **ret_copies)
{
  for (int i = 0; i < call->n_operands; i++) {
    ret_copies[i] = block_alloc(operand_bytes(&call->operands[i]));
    memcpy(ret_copies[i], call->operands[i].data, operand_bytes(&call->operands[i]));
  }
}

static void outputs_free(const struct call *call, void **copies)
{
  for (int i = 0; i < call->n_operands; i++)
    free(copies[i]);
}

static void outputs_compare(const struct call *call, void **want, bool is_exact, const char *where)
{
  for (int i = 0; i < call->n_operands; i++) {
    struct operand operand = call->operands[i];
    if (operand.role == ROLE_IN)
      continue;
    if (is_exact)
      assert_memory_equal(operand.data, want[i], operand_bytes(&operand));
    else
      output_compare(&operand, operand.data, want[i], where);
  }
}

static void variant_check(struct call *call, const struct lade_kernels *kernels, lade_pool *const *pools,
                          const struct lade_step *step, void **want, const char *where)
{
  void *first[CALL_OPERANDS];
  for (size_t i = 0; i < N_POOLS; i++) {
    call_reset(call);
    call_run(call, kernels, pools[i], step);
    inputs_and_guards_check(call);
    if (i == 0) {
      outputs_compare(call, want, false, where);
      outputs_copy(call, first);
    } else {
      outputs_compare(call, first, true, where);
    }
  }
  outputs_free(call, first);
}

static void case_check(struct call *call, lade_pool *const *pools, enum pattern pattern, uint64_t seed,
                       const char *where)
{
  static const char *const pattern_names[] = {"random", "zero", "max", "min", "denormal"};
  struct lade_kernels plain, kernels;
  struct lade_step step;
  void *want[CALL_OPERANDS];
  lade_kernel_fn *last = NULL;
  level_get("plain", &plain);
  call_init(call, pattern, seed, &step);
  call_run(call, &plain, NULL, &step);
  outputs_copy(call, want);
  for (int i = 0; level_names[i]; i++) {
    char text[160];
    if (!level_get(level_names[i], &kernels) || kernels.fn[call->kernel] == last)
      continue;
    if (!level_takes(&kernels, call->kernel, call->dtype, &call->args))
      continue;
    last = kernels.fn[call->kernel];
    snprintf(text, sizeof(text), "%s, %s inputs, %s, seed %llu", where, pattern_names[pattern], level_names[i],
             (unsigned long long)seed);
    variant_check(call, &kernels, pools, &step, want, text);
  }
  outputs_free(call, want);
  call_finish(call);
}

static bool call_build(const struct op *op, enum lade_dtype dtype, int i_shape, struct call *ret_call)
{
  *ret_call = (struct call){.kernel = op->kernel, .dtype = dtype};
  return op->build(ret_call, i_shape);
}

static int64_t elements_count(const struct call *call)
{
  int64_t n = 0;
  for (int i = 0; i < call->n_operands; i++)
    n += call->operands[i].n_elements;
  return n;
}

void op_check(const struct op *op, uint64_t seed)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16, LADE_F64};
  lade_pool *pools[N_POOLS];
  struct call call;
  for (size_t i = 0; i < N_POOLS; i++)
    assert_int_equal(lade_pool_create(thread_counts[i], &pools[i]), 0);
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    for (int i_shape = 0; call_build(op, dtypes[i], i_shape, &call); i_shape++) {
      if (elements_count(&call) > level_max_elements)
        continue;
      char where[64];
      snprintf(where, sizeof(where), "%s %s shape %d", op->name, lade_dtype_name(dtypes[i]), i_shape);
      for (int pattern = 0; pattern < N_PATTERNS; pattern++) {
        call_build(op, dtypes[i], i_shape, &call);
        case_check(&call, pools, (enum pattern)pattern, seed, where);
      }
    }
  }
  for (size_t i = 0; i < N_POOLS; i++)
    lade_pool_destroy(pools[i]);
}

/* Bench. */

struct copy {
  char *to;
  const char *from;
  size_t n_bytes;
};
#define COPY_TASK_BYTES (64 << 10)

static void copy_task(void *arg, int i_task, int i_thread)
{
  const struct copy *copy = arg;
  size_t from = (size_t)i_task * COPY_TASK_BYTES;
  memcpy(copy->to + from, copy->from + from, LADE_MIN(copy->n_bytes - from, (size_t)COPY_TASK_BYTES));
}

double copy_seconds(lade_pool *pool, double bytes)
{
  struct copy copy = {.n_bytes = (size_t)(bytes / 2)};
  copy.to = block_alloc(copy.n_bytes);
  copy.from = block_alloc(copy.n_bytes);
  memset((void *)copy.from, 1, copy.n_bytes);
  memset(copy.to, 1, copy.n_bytes);
  double best = INFINITY;
  for (int i = 0; i < 7; i++) {
    int64_t begin_ns = lade_now_ns();
    lade_pool_run(pool, copy_task, &copy, (int)lade_div_up((int64_t)copy.n_bytes, COPY_TASK_BYTES));
    best = fmin(best, (double)(lade_now_ns() - begin_ns) * 1e-9);
  }
  free(copy.to);
  free((void *)copy.from);
  return best;
}

static double call_seconds(struct call *call, const struct lade_kernels *kernels, lade_pool *pool,
                           const struct lade_step *step, void *workspace)
{
  const struct lade_kernel_ctx ctx = level_ctx(kernels, pool, step);
  if (call->workspace_field)
    memcpy(call->args.bytes + call->workspace_field, &workspace, sizeof(workspace));
  double best = INFINITY;
  for (int i = 0; i < 7; i++) {
    int64_t begin_ns = lade_now_ns();
    kernels->fn[call->kernel](&ctx, &call->args);
    best = fmin(best, (double)(lade_now_ns() - begin_ns) * 1e-9);
  }
  return best;
}

static void case_bench(struct call *call, const char *name, lade_pool *pool)
{
  struct lade_kernels kernels;
  struct lade_step step;
  lade_kernel_fn *last = NULL;
  level_get("best", &kernels);
  call_init(call, PATTERN_RANDOM, 1, &step);
  size_t n_bytes = lade_kernel_workspace_bytes(&kernels, call->kernel, &call->args, lade_pool_n_threads(pool));
  void *workspace = block_alloc(n_bytes);
  memset(workspace, 0, n_bytes);
  for (int i = 0; level_names[i]; i++) {
    if (!level_get(level_names[i], &kernels) || kernels.fn[call->kernel] == last)
      continue;
    last = kernels.fn[call->kernel];
    double seconds = call_seconds(call, &kernels, pool, &step, workspace);
    double copy = copy_seconds(pool, call->traffic_bytes);
    printf("%-16s %-5s %-12s %9.3f ms %7.1f GB/s  %4.0f%% of copy\n", name, lade_dtype_name(call->dtype),
           kernels.variant[call->kernel], seconds * 1e3, call->traffic_bytes / seconds * 1e-9, copy / seconds * 100);
  }
  free(workspace);
  call_finish(call);
}

void op_bench(const struct op *op)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16};
  lade_pool *pool = NULL;
  assert_int_equal(lade_pool_create(0, &pool), 0);
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    struct call call = {.kernel = op->kernel, .dtype = dtypes[i], .is_bench = true};
    for (int i_shape = 0; op->build(&call, i_shape); i_shape++) {
      case_bench(&call, op->name, pool);
      call = (struct call){.kernel = op->kernel, .dtype = dtypes[i], .is_bench = true};
    }
  }
  lade_pool_destroy(pool);
}
