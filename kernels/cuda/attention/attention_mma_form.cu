/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tensor cores (attention_mma.h) with windows, first keys, soft caps, ALiBi and sinks. */
#include "kernels/cuda/attention/attention_mma.h"

template <class T, int D>
static __device__ inline void attention_mma_form_fwd(const struct lade_attention_fwd_args &a,
                                                     const struct lade_step *step)
{
  mma_fwd<T, D, true>(a, step);
}

template <class T, int D>
static __device__ inline void attention_mma_form_dq(const struct lade_attention_bwd_args &a,
                                                    const struct lade_step *step)
{
  mma_dq<T, D, true>(a, step);
}

template <class T, int D>
static __device__ inline void attention_mma_form_dkv(const struct lade_attention_bwd_args &a,
                                                     const struct lade_step *step)
{
  mma_dkv<T, D, true>(a, step);
}

KERNELS(attention_mma_form_fwd, lade_attention_fwd_args)
KERNELS(attention_mma_form_dq, lade_attention_bwd_args)
KERNELS(attention_mma_form_dkv, lade_attention_bwd_args)
