/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (Loshchilov, Hutter 2019), the one op whose bits are the same in every variant: what an
 * optimizer state becomes may not depend on where it lives. Per element, in F32, each line one
 * IEEE operation (round to nearest even, denormals kept, nothing contracted):
 *
 *   g = grad * factor
 *   m = fma(beta1, m, (1-beta1) * g)                   1-beta1 is rounded to F32 once
 *   v = fma(beta2, v, (1-beta2) * (g * g))
 *   u = (m * c1) / (sqrt(v * c2) + eps)                c1, c2: the bias corrections
 *   u = fma(decay, w, u)                               decay is 0 for tensors without decay
 *   w = fma(-lr, u, w)
 *
 * The master w is weight + residual for BF16 (the exact split of base/float.h), a separate F32
 * master for F16, the weight itself for F32. A skipped step returns at once: every value keeps its
 * bits, also where a gradient is not finite.
 *
 * fmaf is a library call where the compiler may not assume the instruction: this variant is right
 * anywhere, and slow on old CPUs.
 */
#include <math.h>

#include "base/float.h"
#include "kernels/host/host.h"

struct call {
  const struct lade_step *step;
  const struct lade_adamw_args *args;
};

static float master_get(const struct lade_adamw_args *a, int64_t i)
{
  if (a->dtype == LADE_BF16)
    return lade_master_join(((uint16_t *)a->weight)[i], ((int16_t *)a->residual)[i]);
  return a->dtype == LADE_F16 ? ((float *)a->residual)[i] : ((float *)a->weight)[i];
}

static void master_put(const struct lade_adamw_args *a, int64_t i, float master)
{
  if (a->dtype == LADE_BF16) {
    lade_master_split(master, &((uint16_t *)a->weight)[i], &((int16_t *)a->residual)[i]);
  } else if (a->dtype == LADE_F16) {
    ((float *)a->residual)[i] = master;
    ((uint16_t *)a->weight)[i] = lade_f32_to_f16(master);
  } else {
    ((float *)a->weight)[i] = master;
  }
}

static void adamw_span(void *arg, int i_task, int i_thread)
{
  const struct call *call = arg;
  const struct lade_adamw_args *a = call->args;
  const struct lade_step s = *call->step;
  float factor = a->verdict->factor, decay = a->has_decay ? s.weight_decay : 0.0f;
  float rest1 = 1.0f - s.beta1, rest2 = 1.0f - s.beta2;
  int64_t from = (int64_t)i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  for (int64_t i = from; i < end; i++) {
    float grad = a->grad_dtype == LADE_BF16 ? lade_bf16_to_f32(((uint16_t *)a->grad)[i]) : ((float *)a->grad)[i];
    float g = grad * factor, w = master_get(a, i);
    float m = fmaf(s.beta1, a->m[i], rest1 * g);
    float v = fmaf(s.beta2, a->v[i], rest2 * (g * g));
    float u = m * s.correction1 / (sqrtf(v * s.correction2) + s.eps);
    u = fmaf(decay, w, u);
    w = fmaf(-s.lr, u, w);
    a->m[i] = m;
    a->v[i] = v;
    master_put(a, i, w);
  }
}

static void adamw_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_adamw_args *a = args;
  if (a->verdict->is_skipped)
    return;
  lade_pool_run(ctx->pool, adamw_span, &(struct call){ctx->step, a},
                (int)lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_adamw_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ADAMW, adamw_plain, "plain");
}
