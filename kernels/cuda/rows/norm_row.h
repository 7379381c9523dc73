/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of LayerNorm or RMSNorm by one block of threads, for norm.cu, residual.cu and norm_bwd.h.
 *
 * Thread t has the packs t, t + threads, ... of a row, some of them at a time: with the other threads' packs, a span of
 * the row. It loads all its packs of a span before it waits for one. If one span is the row, up to 16 KiB of it, it
 * keeps them in registers for later passes; else they are read again. Only this thread reads and writes its packs, so
 * it may read back its own stores.
 */
#ifndef LADE_CUDA_NORM_ROW_H
#define LADE_CUDA_NORM_ROW_H

#include "kernels/cuda/kernel.h"

#define PACKS LADE_CUDA_ROW_PACKS

/* Return the columns of the row that the block has at a time, P packs a thread. */
template <int N, int P> static __device__ inline int span_get(void)
{
  return P * (int)blockDim.x * N;
}

/* Return the first column of this thread's pack @p of the span from @at on. */
template <int N> static __device__ inline int column_get(int at, int p)
{
  return at + (p * (int)blockDim.x + (int)threadIdx.x) * N;
}

/* Load this thread's packs of a span of a row; packs past its end read the first. */
template <class T, int N, int P>
static __device__ inline void span_load(pack<T, N> (&to)[P], const void *row, int at, int d)
{
#pragma unroll
  for (int p = 0; p < P; p++) {
    int column = column_get<N>(at, p);
    to[p] = pack_load<T, N>((const T *)row + (column < d ? column : 0));
  }
}

/*
 * Keep packs for another pass as they were loaded: four registers for eight numbers. The compiler would keep the
 * numbers, a register each, and spill, because threads are as many as registers allow.
 */
template <class T, int N, int P> static __device__ inline void span_keep(pack<T, N> (&packs)[P])
{
#pragma unroll
  for (int p = 0; p < P && sizeof(packs[0]) == 16; p++) {
    uint32_t words[4] = {};
    memcpy(words, &packs[p], sizeof(packs[p]) < sizeof(words) ? sizeof(packs[p]) : sizeof(words));
    ptx_words_forget(words);
    memcpy(&packs[p], words, sizeof(packs[p]) < sizeof(words) ? sizeof(packs[p]) : sizeof(words));
  }
}

/* ---- forward ---- */

/* Return the sum of (x - mean)^POWER over this thread's packs. */
template <int POWER, class T, int N>
static __device__ inline float powers_sum(const pack<T, N> (&x)[PACKS], float mean, int at, int d)
{
  float sum = 0;
#pragma unroll
  for (int p = 0; p < PACKS; p++)
#pragma unroll
    for (int j = 0; j < N; j++) {
      float from_mean = get(x[p].x[j]) - mean;
      sum += column_get<N>(at, p) < d ? POWER == 1 ? from_mean : from_mean * from_mean : 0.0f;
    }
  return sum;
}

/* Weights and biases of a span. */
template <class T, int N> struct norm_weights {
  pack<T, N> weight[PACKS], bias[PACKS];
};

template <class T, int N>
static __device__ inline void norm_weights_load(struct norm_weights<T, N> &to, const struct lade_norm_fwd_args &a,
                                                int at)
{
  span_load(to.weight, a.weight, at, (int)a.d);
  if (a.bias)
    span_load(to.bias, a.bias, at, (int)a.d);
}

/* Compute y of the span from @at on, whose x is loaded. */
template <class T, int N>
static __device__ inline void norm_span(const struct lade_norm_fwd_args &a, int64_t row, int at, float mean,
                                        float rstd, const pack<T, N> (&x)[PACKS], const struct norm_weights<T, N> &w)
{
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      y[j] = (get(x[p].x[j]) - mean) * rstd * (get(w.weight[p].x[j]) + a.weight_offset) + get(w.bias[p].x[j]);
    if (column_get<N>(at, p) < (int)a.d)
      numbers_put((T *)a.y + row * a.d + column_get<N>(at, p), y);
  }
}

/*
 * Process a row, whose packs are in @x if @is_held. The variance is summed about the mean in a second pass, as in all
 * variants. The weights of a row of one span are loaded before its reductions, in which memory answers.
 */
template <class T, int N>
static __device__ inline void norm_row(const struct lade_norm_fwd_args &a, int64_t row, float *room,
                                       pack<T, N> (&x)[PACKS], bool is_held)
{
  const int span = span_get<N, PACKS>();
  const T *from = (const T *)a.x + row * a.d;
  float sum = 0, mean = 0, squares = 0;
  struct norm_weights<T, N> weights = {};
  if (!is_held)
    span_load(x, from, 0, (int)a.d);
  norm_weights_load(weights, a, 0);
#pragma unroll 1
  for (int at = 0; at < (int)a.d && a.kind == LADE_NORM_LAYER; at += span) {
    if (at > 0)
      span_load(x, from, at, (int)a.d);
    sum += powers_sum<1>(x, 0, at, (int)a.d);
    span_keep(x);
  }
  if (a.kind == LADE_NORM_LAYER)
    mean = block_sum(sum, room) / (float)a.d;
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span) {
    if (a.d > span)
      span_load(x, from, at, (int)a.d);
    squares += powers_sum<2>(x, mean, at, (int)a.d);
    span_keep(x);
  }
  float rstd = 1 / sqrtf(block_sum(squares, room) / (float)a.d + a.eps);
  if (threadIdx.x == 0) {
    ((float *)a.rstd)[row] = rstd;
    if (a.kind == LADE_NORM_LAYER)
      ((float *)a.mean)[row] = mean;
  }
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span) {
    if (a.d > span) {
      span_load(x, from, at, (int)a.d);
      norm_weights_load(weights, a, at);
    }
    norm_span(a, row, at, mean, rstd, x, weights);
  }
}

#endif
