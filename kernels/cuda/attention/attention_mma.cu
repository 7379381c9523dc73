/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tensor cores (attention_mma.h) over whole causal sequences. */
#include "kernels/cuda/attention/attention_mma.h"

template <class T, int D>
static __device__ inline void attention_mma_fwd(const struct lade_attention_fwd_args &a, const struct lade_step *step)
{
  mma_fwd<T, D, false>(a, step);
}

template <class T, int D>
static __device__ inline void attention_mma_dq(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  mma_dq<T, D, false>(a, step);
}

template <class T, int D>
static __device__ inline void attention_mma_dkv(const struct lade_attention_bwd_args &a, const struct lade_step *step)
{
  mma_dkv<T, D, false>(a, step);
}

KERNELS(attention_mma_fwd, lade_attention_fwd_args)
KERNELS(attention_mma_dq, lade_attention_bwd_args)
KERNELS(attention_mma_dkv, lade_attention_bwd_args)
