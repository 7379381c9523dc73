/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row phases of the head's loss; head_loss_launch.c goes over chunks of the vocabulary and blocks of rows, and
 * matmul.cu has the products.
 *
 * Forward, head_reduce updates a row's running maximum, sum of exponentials and target logit with one chunk (Milakov,
 * Gimelshein 2018); head_finish makes losses and their mean. Backward, head_scale finds the factor of a row's gradient,
 * and head_gradient makes (p - onehot) of one chunk, rounded.
 *
 * Moves, for each logit, 4 bytes forward, which stay in registers, and 4 and 2 backward. Bound: memory. It is small in
 * comparison with the products that make the logits, which have d times as many operations.
 */
#include "kernels/cuda/kernel.h"

/* Packs of N logits of a row that a thread holds at once: a chunk has no more. */
#define PACKS (LADE_CUDA_HEAD_CHUNK / LADE_CUDA_THREADS / 4)

static __device__ inline int column_get(int p, int n)
{
  return (p * (int)blockDim.x + (int)threadIdx.x) * n;
}

/* Load a chunk's row; columns past its end read the first. */
template <int N>
static __device__ inline void logits_load(pack<float, N> (&x)[PACKS], const struct lade_cuda_head &a)
{
  const float *logits = a.logits + blockIdx.x * a.n_columns;
#pragma unroll
  for (int p = 0; p < PACKS; p++)
    x[p] = pack_load<float, N>(logits + (column_get(p, N) < (int)a.n_columns ? column_get(p, N) : 0));
}

/* Make the logits past the chunk's end those of tokens that never occur. */
template <int N>
static __device__ inline void logits_end(pack<float, N> (&x)[PACKS], const struct lade_cuda_head &a)
{
#pragma unroll
  for (int at = 0; at < PACKS * N; at++)
    x[at / N].x[at % N] = column_get(at / N, N) < (int)a.n_columns ? x[at / N].x[at % N] : -INFINITY;
}

/* Return the row's maximum with @before, and the sum of exponentials less it. */
template <int N>
static __device__ inline void logits_meet(const struct lade_cuda_head &a, float *room, float &max, float &added)
{
  pack<float, N> x[PACKS];
  logits_load(x, a);
  logits_end(x, a);
#pragma unroll
  for (int at = 0; at < PACKS * N; at++)
    max = fmaxf(max, x[at / N].x[at % N]);
  max = block_max(max, room);
#pragma unroll
  for (int at = 0; at < PACKS * N; at++)
    added += expf(x[at / N].x[at % N] - max);
  added = block_sum(added, room);
}

/* Replace logits by softcap tanh(logit / softcap): a block has one row of the current block of rows. */
LADE_KERNEL(head_cap, lade_cuda_head)
{
  float *logits = (float *)a.logits + blockIdx.x * a.n_columns;
  for (int64_t j = threadIdx.x; j < a.n_columns; j += blockDim.x)
    logits[j] = a.softcap * tanhf(logits[j] / a.softcap);
}
LADE_CUDA_EXPORT(head_cap, lade_cuda_head)

/* Reduce: a block has one row of the current block of rows. Blocks are many: one's memory rests in reductions. */
LADE_KERNEL_BLOCKS(head_reduce, lade_cuda_head, 6)
{
  LADE_SHARED(float, room);
  int64_t row = a.first_row + blockIdx.x, target = a.targets[row] - a.first_token - a.first_column;
  const float *before = a.first_column == 0 ? a.before : a.max;
  float max_before = before ? before[row] : -INFINITY, max = max_before, added = 0;
  if (a.n_columns % 4 == 0)
    logits_meet<4>(a, room, max, added);
  else
    logits_meet<1>(a, room, max, added);
  if (threadIdx.x > 0)
    return;
  a.sum[row] = before ? before[a.n + row] * expf(max_before - max) + added : added;
  a.max[row] = max;
  if (a.targets[row] >= 0 && target >= 0 && target < a.n_columns)
    a.target_logit[row] = a.logits[blockIdx.x * a.n_columns + target];
  else
    a.target_logit[row] = before ? before[2 * a.n + row] : 0.0f;
}
LADE_CUDA_EXPORT(head_reduce, lade_cuda_head)

/*
 * Return, in the first thread, the sum of each thread's @value, in the order of threads. @room: a double for each
 * thread.
 */
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

/* Make losses and their mean: one block, all rows. */
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

/* Join the ranks' statistics in their order: one block, all rows. */
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

/* Find the factor of each row's gradient: one block. */
LADE_KERNEL(head_scale, lade_cuda_head)
{
  LADE_SHARED(double, room);
  double n = targets_count(a, room);
  if (threadIdx.x == 0)
    *a.row_scale = n > 0 ? (float)((double)a.scale * (double)step->loss_scale / n) : 0.0f;
}
LADE_CUDA_EXPORT(head_scale, lade_cuda_head)

template <class T, int N> static __device__ inline void gradients_put(const struct lade_cuda_head &a)
{
  const int64_t row = a.first_row + blockIdx.x, target = a.targets[row] - a.first_token - a.first_column;
  const float scale = a.targets[row] < 0 ? 0.0f : *a.row_scale, lse = a.lse[row];
  pack<float, N> x[PACKS];
  logits_load(x, a);
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    float d[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      d[j] = (exp_for(T(), x[p].x[j] - lse) - (column_get(p, N) + j == target ? 1.0f : 0.0f)) * scale;
    if (a.softcap > 0) { /* the cap's slope */
#pragma unroll
      for (int j = 0; j < N; j++)
        d[j] *= 1 - (x[p].x[j] / a.softcap) * (x[p].x[j] / a.softcap);
    }
    if (column_get(p, N) < (int)a.n_columns)
      numbers_put((T *)a.d_logits + row * a.n_columns + column_get(p, N), d);
  }
}

/* Make gradients: a block has one row of the current block of rows; all rows of the chunk stay, for the products. */
template <class T> static __device__ void head_gradient_of(const struct lade_cuda_head &a, const struct lade_step *step)
{
  if (a.n_columns % 4 == 0)
    gradients_put<T, 4>(a);
  else
    gradients_put<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES(head_gradient, lade_cuda_head)
