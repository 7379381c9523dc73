/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by tensor cores (attention_mma.h) for heads of 80, 96 and 256, with and without a form of scores. One set
 * of kernels serves both, because these heads are rarer than 64 and 128 and each kernel costs seconds of compilation.
 */
#include "kernels/cuda/attention/attention_mma.h"

template <class T, int D>
static __device__ inline void attention_mma_more_fwd(const struct lade_attention_fwd_args &a,
                                                     const struct lade_step *step)
{
  mma_fwd<T, D, true>(a, step);
}

template <class T, int D>
static __device__ inline void attention_mma_more_dq(const struct lade_attention_bwd_args &a,
                                                    const struct lade_step *step)
{
  mma_dq<T, D, true>(a, step);
}

template <class T, int D>
static __device__ inline void attention_mma_more_dkv(const struct lade_attention_bwd_args &a,
                                                     const struct lade_step *step)
{
  mma_dkv<T, D, true>(a, step);
}

#define MORE(name, args_type) \
  KERNEL(name, 80, bf16, bf16, args_type) \
  KERNEL(name, 80, f16, f16, args_type) \
  KERNEL(name, 96, bf16, bf16, args_type) \
  KERNEL(name, 96, f16, f16, args_type) \
  KERNEL(name, 256, bf16, bf16, args_type) \
  KERNEL(name, 256, f16, f16, args_type)

MORE(attention_mma_more_fwd, lade_attention_fwd_args)
MORE(attention_mma_more_dq, lade_attention_bwd_args)
MORE(attention_mma_more_dkv, lade_attention_bwd_args)
