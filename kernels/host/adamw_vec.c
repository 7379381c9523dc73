/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.c in vectors: the same operations in the same order, one instruction each, and the same bits. */
#include "kernels/host/lanes.h"

struct call {
  const struct lade_step *step;
  const struct lade_adamw_args *args;
};

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

/* The split of base/float.h: high = (bits + 0x8000) >> 16; the residual is the low half of bits as they are. */
VEC_INLINE void master_store(const struct lade_adamw_args *a, int64_t i, int n, vf master, enum lade_dtype dtype)
{
  if (dtype != LADE_BF16) {
    vec_store(dtype, a->weight, i, n, master);
    if (dtype == LADE_F16)
      vec_store(LADE_F32, a->residual, i, n, master);
    return;
  }
  uint16_t *high_at = (uint16_t *)a->weight + i, *low_at = (uint16_t *)a->residual + i;
  vu bits = vu_bits(master), high = vu_shift_right(vu_add(bits, vu_set(0x8000)), 16);
  if (n == VEC_LANES) {
    vu_store_u16(high_at, high);
    vu_store_u16(low_at, bits);
  } else {
    vu_store_u16_n(high_at, high, n);
    vu_store_u16_n(low_at, bits, n);
  }
}

/* What is the same for every element. */
struct factors {
  vf factor, beta1, beta2, rest1, rest2, correction1, correction2, eps, decay, lr;
};

VEC_INLINE void adamw_step(int64_t i, int n, const struct lade_adamw_args *a, const struct factors *f,
                           enum lade_dtype grad_dtype, enum lade_dtype dtype)
{
  vf g = vf_mul(vec_load(grad_dtype, a->grad, i, n), f->factor), w = master_load(a, i, n, dtype);
  vf m = vf_fma(f->beta1, vec_load(LADE_F32, a->m, i, n), vf_mul(f->rest1, g));
  vf v = vf_fma(f->beta2, vec_load(LADE_F32, a->v, i, n), vf_mul(f->rest2, vf_mul(g, g)));
  vf u = vf_div(vf_mul(m, f->correction1), vf_add(vf_sqrt(vf_mul(v, f->correction2)), f->eps));
  u = vf_fma(f->decay, w, u);
  vec_store(LADE_F32, a->m, i, n, m);
  vec_store(LADE_F32, a->v, i, n, v);
  master_store(a, i, n, vf_fnma(f->lr, u, w), dtype);
}

VEC_INLINE void adamw_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct call *call = arg;
  VEC_COPY(lade_adamw_args, a, call->args);
  const struct lade_step *s = call->step;
  const struct factors f = {
      vf_set(a->verdict->factor), vf_set(s->beta1),       vf_set(s->beta2),
      vf_set(1 - s->beta1),       vf_set(1 - s->beta2),   vf_set(s->correction1),
      vf_set(s->correction2),     vf_set(s->eps),         vf_set(a->has_decay ? s->weight_decay : 0),
      vf_set(s->lr)};
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  if (a->grad_dtype == LADE_BF16)
    VEC_STEPS(adamw_step, from, end, a, &f, LADE_BF16, dtype);
  else
    VEC_STEPS(adamw_step, from, end, a, &f, LADE_F32, dtype);
}
VEC_TASKS(adamw_span)

static void adamw(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_adamw_args *a = args;
  if (!a->verdict->is_skipped)
    adamw_span_run(ctx->pool, a->dtype, &(struct call){ctx->step, a}, lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void VEC_NAME(lade_adamw_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ADAMW, adamw, VEC_VARIANT);
}
