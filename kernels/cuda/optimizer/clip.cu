/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clip result of one step's gradients, with the bits of kernels/host/optimizer/clip.c: one block adds the partials
 * (tree.h).
 *
 * Moves 8 bytes for each 16,384 parameters. Bound: latency, some 250 additions for 10^9 parameters.
 */
#include "kernels/cuda/reduce/tree.h"

/* Find the first partial that is not finite; n if each part is finite but the sum overflowed. One thread. */
static __device__ uint32_t bad_find(const double *partial, int64_t n)
{
  int64_t i = 0;
  while (i < n && fabs(partial[i]) <= 1.7976931348623157e308)
    i++;
  return (uint32_t)i;
}

static __device__ void clip_result_write(const struct lade_clip_args &a, const struct lade_step *step, double sum)
{
  float norm = (float)(sqrt(sum) / (double)step->loss_scale);
  bool is_skipped = !(fabsf(norm) <= 3.402823466e38f);
  float factor = step->clip > 0 && norm > step->clip ? step->clip / norm : 1.0f;
  struct lade_clip_result clip_result = {norm, is_skipped ? 0.0f : factor / step->loss_scale, is_skipped,
                                 is_skipped ? bad_find(a.partial, a.n_partials) : 0};
  *a.clip_result = clip_result;
}

LADE_KERNEL(clip, lade_clip_args)
{
  LADE_SHARED(double, sums);
  double sum = tree_sum_block(a.partial, a.n_partials, sums);
  if (threadIdx.x == 0)
    clip_result_write(a, step, sum);
}
LADE_CUDA_EXPORT(clip, lade_clip_args)
