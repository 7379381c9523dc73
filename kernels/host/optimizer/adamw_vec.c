/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adamw.c in vectors: the same operations in the same order, one instruction each, and the same bits. The exact form is
 * here, the compact ones are in adamw_compact_vec.c.
 *
 * It is bound by memory: five streams are read and four written, once each. Prefetching lines (vec_prefetch) brings the
 * speed where a weight has 16 bits. Stores past the cache were measured and lose a third, because the lines are in the
 * cache already.
 */
#include "kernels/host/optimizer/adamw_vec.h"

VEC_INLINE vf master_load(const struct lade_adamw_args *a, int64_t i, int n, enum lade_dtype dtype)
{
  if (dtype == LADE_F32)
    return vec_load(LADE_F32, a->weight, i, n);
  if (dtype == LADE_F16)
    return vec_load(LADE_F32, a->residual, i, n);
  const uint16_t *high_at = (const uint16_t *)a->weight + i, *low_at = (const uint16_t *)a->residual + i;
  vu high = n == VEC_LANES ? vu_load_u16(high_at) : vu_load_u16_n(high_at, n);
  vu low = n == VEC_LANES ? vu_load_u16(low_at) : vu_load_u16_n(low_at, n);
  return vf_from_bits(vu_add(vu_shift_left(high, 16), vu_sign_extend(low)));
}

/*
 * Store by the split of base/float.h: high = (bits + 0x8000) >> 16; the residual is the low half of the unrounded bits.
 */
VEC_INLINE void master_store(const struct lade_adamw_args *a, int64_t i, int n, vf master, enum lade_dtype dtype)
{
  if (dtype != LADE_BF16) {
    vec_store(dtype, a->weight, i, n, master);
    if (dtype == LADE_F16)
      vec_store(LADE_F32, a->residual, i, n, master);
    return;
  }
  uint16_t *high_at = (uint16_t *)a->weight + i, *low_at = (uint16_t *)a->residual + i;
  vu bits = vu_bits_quiet(master), high = vu_shift_right(vu_add(bits, vu_set(0x8000)), 16);
  if (n == VEC_LANES) {
    vu_store_u16(high_at, high);
    vu_store_u16(low_at, bits);
  } else {
    vu_store_u16_n(high_at, high, n);
    vu_store_u16_n(low_at, bits, n);
  }
}

VEC_INLINE void adamw_step(int64_t i, int n, const struct lade_adamw_args *a, const struct factors *f,
                           enum lade_dtype grad_dtype, enum lade_dtype dtype)
{
  vf m = vec_load(LADE_F32, a->m, i, n), v = vec_load(LADE_F32, a->v, i, n), w = master_load(a, i, n, dtype);
  factors_apply(f, vec_load(grad_dtype, a->grad, i, n), &m, &v, &w);
  vec_store(LADE_F32, a->m, i, n, m);
  vec_store(LADE_F32, a->v, i, n, v);
  master_store(a, i, n, w, dtype);
}

/* Process two vectors: a line of each 16-bit stream. */
VEC_INLINE void adamw_steps(int64_t from, int64_t end, const struct lade_adamw_args *a, const struct factors *f,
                            enum lade_dtype grad_dtype, enum lade_dtype dtype)
{
  const int n = 2 * VEC_LANES;
  for (; from + n <= end; from += n) {
    if (dtype != LADE_F32) { /* FP32 weights lose a tenth by it: their page of 1024 elements ends too soon */
      vec_prefetch(a->grad, from, grad_dtype == LADE_BF16 ? 2 : 4, n);
      vec_prefetch(a->weight, from, 2, n);
      vec_prefetch(a->residual, from, dtype == LADE_F16 ? 4 : 2, n);
      vec_prefetch(a->m, from, 4, n);
      vec_prefetch(a->v, from, 4, n);
    }
    adamw_step(from, VEC_LANES, a, f, grad_dtype, dtype);
    adamw_step(from + VEC_LANES, VEC_LANES, a, f, grad_dtype, dtype);
  }
  VEC_STEPS(adamw_step, from, end, a, f, grad_dtype, dtype);
}

VEC_INLINE void adamw_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct adamw_call *call = arg;
  VEC_COPY(lade_adamw_args, a, call->args);
  const struct factors f = factors_make(call);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  if (a->grad_dtype == LADE_BF16)
    adamw_steps(from, end, a, &f, LADE_BF16, dtype);
  else
    adamw_steps(from, end, a, &f, LADE_F32, dtype);
}
VEC_TASKS(adamw_span)

static void adamw(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_adamw_args *a = args;
  if (a->clip_result->is_skipped)
    return;
  const struct adamw_call call = {ctx->step, a};
  int64_t n_tasks = lade_div_up(a->n_elements, LADE_TASK_ELEMENTS);
  if (a->moments == LADE_MOMENTS_F32 && a->master == LADE_MASTER_EXACT)
    adamw_span_run(ctx->pool, a->dtype, &call, n_tasks);
  else
    lade_pool_run(ctx->pool, VEC_NAME(adamw_compact_task)(a), (void *)&call, (int)n_tasks);
}

void VEC_NAME(lade_adamw_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ADAMW, adamw, VEC_VARIANT);
}
