/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of doubles by one block of threads, with the bits of kernels/host/reduce/tree_sum.c: its tree halves them
 * down to runs of eight. Here each of 256 threads adds the subtree that its number selects, eight levels down, and the
 * levels above are added pair by pair. A run that ends above them belongs to the first thread below it.
 */
#ifndef LADE_CUDA_TREE_H
#define LADE_CUDA_TREE_H

#include "kernels/cuda/kernel.h"

#define RUN 8
#define LEVELS 8 /* of the tree between its root and the threads */
#define DEPTH 64 /* of any tree */

/* Return the sum of a subtree, halves first: a stack of sums that wait for their right half. */
static __device__ double subtree_sum(const double *x, int64_t n)
{
  int64_t right[DEPTH];
  double left[DEPTH];
  int depth = 0;
  for (;;) {
    for (; n > RUN; n /= 2)
      right[depth++] = n - n / 2;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
      sum += *x++;
    for (; depth > 0 && right[depth - 1] == 0; depth--)
      sum = left[depth - 1] + sum;
    if (depth == 0)
      return sum;
    left[depth - 1] = sum;
    n = right[depth - 1];
    right[depth - 1] = 0;
  }
}

/* The end of a thread's path: a span of the doubles, and the levels on which it still was more than a run. */
struct path {
  int64_t first, n;
  unsigned split; /* bit by level */
  bool is_mine;   /* the first of all threads whose paths end here */
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

/* Return the sum of x[n] in the first thread; @sums is room for a double of each thread. */
static __device__ double tree_sum_block(const double *x, int64_t n, double *sums)
{
  int thread = (int)threadIdx.x;
  struct path path = path_get(n, thread);
  sums[thread] = path.is_mine ? subtree_sum(x + path.first, path.n) : 0;
  for (int level = LEVELS - 1; level >= 0; level--) {
    int width = 1 << (LEVELS - 1 - level); /* threads of one half */
    __syncthreads();
    if (thread % (2 * width) == 0 && path.split >> level & 1)
      sums[thread] += sums[thread + width];
  }
  return sums[thread];
}

#endif
