/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verdict over one step's gradients, with the bits of kernels/host/clip.c: its tree halves the partials down to
 * runs of eight. Here each of 256 threads adds the subtree that its number leads to, eight levels down, and the
 * levels above are added pair by pair; a run that ends above them belongs to the first thread below it.
 *
 * Moves 8 bytes for each 65,536 parameters. Bound: latency, some hundred additions for 10^9 parameters.
 */
#include "kernels/cuda/kernel.h"

#define RUN 8
#define LEVELS 8 /* of the tree between its root and the threads */
#define DEPTH 64 /* of any tree */

/* The sum of a subtree, halves first: a stack of what waits for its right half. */
static __device__ double tree_sum(const double *partial, int64_t n)
{
  int64_t right[DEPTH];
  double left[DEPTH];
  int depth = 0;
  for (;;) {
    for (; n > RUN; n /= 2)
      right[depth++] = n - n / 2;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
      sum += *partial++;
    for (; depth > 0 && right[depth - 1] == 0; depth--)
      sum = left[depth - 1] + sum;
    if (depth == 0)
      return sum;
    left[depth - 1] = sum;
    n = right[depth - 1];
    right[depth - 1] = 0;
  }
}

/* Where the path of a thread leads: a span of partials, and on which levels it still was more than a run. */
struct path {
  int64_t first, n;
  unsigned split; /* bit by level */
  bool is_mine;   /* of all threads whose paths end here, this is the first */
};

static __device__ struct path path_get(int64_t n, int thread)
{
  struct path path = {0, n, 0, true};
  for (int level = 0; level < LEVELS; level++) {
    bool goes_right = thread >> (LEVELS - 1 - level) & 1;
    if (path.n <= RUN) {
      path.is_mine = path.is_mine && !goes_right;
      continue;
    }
    path.split |= 1u << level;
    path.first += goes_right ? path.n / 2 : 0;
    path.n = goes_right ? path.n - path.n / 2 : path.n / 2;
  }
  return path;
}

/* The first partial that is not finite, or n: the sum overflowed though each part is finite. One thread. */
static __device__ uint32_t bad_find(const double *partial, int64_t n)
{
  int64_t i = 0;
  while (i < n && fabs(partial[i]) <= 1.7976931348623157e308)
    i++;
  return (uint32_t)i;
}

static __device__ void verdict_write(const struct lade_clip_args &a, const struct lade_step *step, double sum)
{
  float norm = (float)(sqrt(sum) / (double)step->loss_scale);
  bool is_skipped = !(fabsf(norm) <= 3.402823466e38f);
  float factor = step->clip > 0 && norm > step->clip ? step->clip / norm : 1.0f;
  struct lade_verdict verdict = {norm, is_skipped ? 0.0f : factor / step->loss_scale, is_skipped,
                                 is_skipped ? bad_find(a.partial, a.n_partials) : 0};
  *a.verdict = verdict;
}

LADE_KERNEL(clip, lade_clip_args)
{
  LADE_SHARED(double, sums);
  int thread = (int)threadIdx.x;
  struct path path = path_get(a.n_partials, thread);
  sums[thread] = path.is_mine ? tree_sum(a.partial + path.first, path.n) : 0;
  for (int level = LEVELS - 1; level >= 0; level--) {
    int width = 1 << (LEVELS - 1 - level); /* threads of one half */
    __syncthreads();
    if (thread % (2 * width) == 0 && path.split >> level & 1)
      sums[thread] += sums[thread + width];
  }
  if (thread == 0)
    verdict_write(a, step, sums[0]);
}
LADE_CUDA_EXPORT(clip, lade_clip_args)
