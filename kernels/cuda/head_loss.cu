/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row phases of the head's loss; launch_head_loss.c has the walk over chunks of the vocabulary and blocks of rows,
 * and matmul.cu the products.
 *
 * Forward, head_reduce brings a row's running maximum, sum of exponentials and target logit up to date with one chunk
 * (Milakov, Gimelshein 2018); head_finish makes losses and their mean. Backward, head_scale finds what a row's gradient
 * is multiplied with, and head_gradient makes (p - onehot) of one chunk, rounded.
 *
 * Moves, for each logit, 4 bytes twice forward (the second time from L2) and 4 and 2 backward. Bound: memory; beside
 * the products that make the logits, d times as many operations, it is small.
 */
#include "kernels/cuda/kernel.h"

/* A block has a row of the block of rows in hand. */
LADE_KERNEL(head_reduce, lade_cuda_head)
{
  LADE_SHARED(float, room);
  int64_t row = a.first_row + blockIdx.x, target = a.targets[row] - a.first_token - a.first_column;
  const float *logits = a.logits + blockIdx.x * a.n_columns;
  const float *before = a.first_column == 0 ? a.before : a.max;
  float max_before = before ? before[row] : -INFINITY, max = max_before, added = 0;
  for (int64_t j = threadIdx.x; j < a.n_columns; j += blockDim.x)
    max = fmaxf(max, logits[j]);
  max = block_max(max, room);
  for (int64_t j = threadIdx.x; j < a.n_columns; j += blockDim.x)
    added += expf(logits[j] - max);
  added = block_sum(added, room);
  if (threadIdx.x > 0)
    return;
  a.sum[row] = before ? before[a.n + row] * expf(max_before - max) + added : added;
  a.max[row] = max;
  if (a.targets[row] >= 0 && target >= 0 && target < a.n_columns)
    a.target_logit[row] = logits[target];
  else
    a.target_logit[row] = before ? before[2 * a.n + row] : 0.0f;
}
LADE_CUDA_EXPORT(head_reduce, lade_cuda_head)

/* The sum of each thread's @value, in the order of threads, known to the first. @room: a double for each thread. */
static __device__ inline double threads_sum(double value, double *room)
{
  room[threadIdx.x] = value;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      room[threadIdx.x] += room[threadIdx.x + half];
  }
  __syncthreads();
  double sum = room[0];
  __syncthreads();
  return sum;
}

template <class Args> static __device__ inline double targets_count(const Args &a, double *room)
{
  double n = 0;
  for (int64_t row = threadIdx.x; row < a.n; row += blockDim.x)
    n += a.targets[row] >= 0;
  return threads_sum(n, room);
}

/* One block, all rows. */
LADE_KERNEL(head_finish, lade_cuda_head)
{
  LADE_SHARED(double, room);
  double sum = 0, n = targets_count(a, room);
  for (int64_t row = threadIdx.x; row < a.n; row += blockDim.x) {
    float lse = a.max[row] + logf(a.sum[row]), loss = a.targets[row] >= 0 ? lse - a.target_logit[row] : 0.0f;
    a.lse[row] = lse;
    a.losses[row] = loss;
    sum += (double)loss;
  }
  sum = threads_sum(sum, room);
  if (threadIdx.x == 0)
    *a.loss = n > 0 ? (float)(sum / n) : 0.0f;
}
LADE_CUDA_EXPORT(head_finish, lade_cuda_head)

/* One block, all rows: ranks' statistics joined in their order. */
LADE_KERNEL(head_join, lade_head_join_args)
{
  LADE_SHARED(double, room);
  double sum = 0, n = targets_count(a, room);
  for (int64_t row = threadIdx.x; row < a.n; row += blockDim.x) {
    const float *stats = (const float *)a.stats + row;
    float max = -INFINITY, added = 0, target_logit = 0;
    for (int64_t rank = 0; rank < a.n_ranks; rank++)
      max = fmaxf(max, stats[rank * 3 * a.n]);
    for (int64_t rank = 0; rank < a.n_ranks; rank++) {
      added += stats[(rank * 3 + 1) * a.n] * expf(stats[rank * 3 * a.n] - max);
      target_logit += stats[(rank * 3 + 2) * a.n];
    }
    float lse = max + logf(added), loss = a.targets[row] >= 0 ? lse - target_logit : 0.0f;
    ((float *)a.lse)[row] = lse;
    ((float *)a.losses)[row] = loss;
    sum += (double)loss;
  }
  sum = threads_sum(sum, room);
  if (threadIdx.x == 0)
    *(float *)a.loss = n > 0 ? (float)(sum / n) : 0.0f;
}
LADE_CUDA_EXPORT(head_join, lade_head_join_args)

/* One block. */
LADE_KERNEL(head_scale, lade_cuda_head)
{
  LADE_SHARED(double, room);
  double n = targets_count(a, room);
  if (threadIdx.x == 0)
    *a.row_scale = n > 0 ? (float)((double)a.scale * (double)step->loss_scale / n) : 0.0f;
}
LADE_CUDA_EXPORT(head_scale, lade_cuda_head)

/* A block has a row of the block of rows in hand; all rows of the chunk stay, for the products. */
template <class T> static __device__ void head_gradient_of(const struct lade_cuda_head &a, const struct lade_step *step)
{
  int64_t row = a.first_row + blockIdx.x, target = a.targets[row] - a.first_token - a.first_column;
  const float *logits = a.logits + blockIdx.x * a.n_columns;
  T *d_logits = (T *)a.d_logits + row * a.n_columns;
  float scale = a.targets[row] < 0 ? 0.0f : *a.row_scale, lse = a.lse[row];
  for (int64_t j = threadIdx.x; j < a.n_columns; j += blockDim.x)
    put(d_logits + j, (expf(logits[j] - lse) - (j == target ? 1.0f : 0.0f)) * scale);
}
LADE_KERNEL_OF_DTYPES(head_gradient, lade_cuda_head)
