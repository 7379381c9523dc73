/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the exact and the compact forms of AdamW in vectors: the sequence of adamw.c, on sixteen elements. */
#ifndef LADE_KERNELS_ADAMW_VEC_H
#define LADE_KERNELS_ADAMW_VEC_H

#include "kernels/host/lanes.h"

struct adamw_call {
  const struct lade_step *step;
  const struct lade_adamw_args *args;
};

/* Values that are equal for every element. */
struct factors {
  vf factor, beta1, beta2, rest1, rest2, correction1, correction2, eps, decay, lr;
};

VEC_INLINE struct factors factors_make(const struct adamw_call *call)
{
  const struct lade_step *s = call->step;
  const struct lade_adamw_args *a = call->args;
  return (struct factors){
      vf_set(a->clip_result->factor), vf_set(s->beta1),       vf_set(s->beta2),
      vf_set(1 - s->beta1),       vf_set(1 - s->beta2),   vf_set(s->correction1),
      vf_set(s->correction2),     vf_set(s->eps),         vf_set(a->has_decay ? s->weight_decay : 0),
      vf_set(s->lr)};
}

VEC_INLINE void factors_apply(const struct factors *f, vf grad, vf *m, vf *v, vf *w)
{
  vf g = vf_mul(grad, f->factor);
  *m = vf_fma(f->beta1, *m, vf_mul(f->rest1, g));
  *v = vf_fma(f->beta2, *v, vf_mul(f->rest2, vf_mul(g, g)));
  vf u = vf_div(vf_mul(*m, f->correction1), vf_add(vf_sqrt(vf_mul(*v, f->correction2)), f->eps));
  u = vf_fma(f->decay, *w, u);
  *w = vf_fnma(f->lr, u, *w);
}

/* Return the pool's function for a compact form; its argument is a struct adamw_call. */
lade_task_fn *VEC_NAME(adamw_compact_task)(const struct lade_adamw_args *args);

#endif
