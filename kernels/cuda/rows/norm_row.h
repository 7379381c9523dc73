/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of LayerNorm or RMSNorm by one block of threads, for norm.cu, residual.cu and norm_bwd.h.
 *
 * Thread t has the packs t, t + threads, ... of a row, some of them at a time: with the other threads' packs, a span of
 * the row. It loads all its packs of a span before it waits for one. A row of one span, of up to 16 KiB, stays in
 * registers for later passes; a longer one is read again. Only this thread reads and writes its packs, so it may read
 * back its own stores.
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

/* A row of a norm's forward: its number and statistics. */
struct norm_place {
  int64_t row;
  float mean, rstd;
};

/* Compute y of the span from @at on, whose x is loaded. */
template <class T, int N>
static __device__ inline void norm_span(const struct lade_norm_fwd_args &a, const struct norm_place &place, int at,
                                        const pack<T, N> (&x)[PACKS], const struct norm_weights<T, N> &w)
{
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      y[j] = (get(x[p].x[j]) - place.mean) * place.rstd * (get(w.weight[p].x[j]) + a.weight_offset) +
             get(w.bias[p].x[j]);
    if (column_get<N>(at, p) < (int)a.d)
      numbers_put((T *)a.y + place.row * a.d + column_get<N>(at, p), y);
  }
}

/* Return the room of a row's sum, of the mean or the squares: no sum uses that of the one before it. */
static __device__ inline float *room_get(float *room, int64_t row, bool is_mean)
{
  return room + (row % 2 * 2 + is_mean) * (LADE_CUDA_THREADS / 32);
}

static __device__ inline void statistics_put(const struct lade_norm_fwd_args &a, int64_t row, float mean, float rstd)
{
  if (threadIdx.x > 0)
    return;
  ((float *)a.rstd)[row] = rstd;
  if (a.kind == LADE_NORM_LAYER)
    ((float *)a.mean)[row] = mean;
}

/*
 * Process a row of one span, whose packs are loaded. The variance is summed about the mean in a second pass, as in all
 * variants. The numbers stay in registers as F32, so that each is converted once.
 */
template <class T, int N>
static __device__ inline void norm_row(const struct lade_norm_fwd_args &a, int64_t row, float *room,
                                       const pack<T, N> (&packs)[PACKS], const struct norm_weights<T, N> &w)
{
  float x[PACKS][N], sum[1] = {}, squares[1] = {}, mean = 0;
#pragma unroll
  for (int p = 0; p < PACKS; p++)
#pragma unroll
    for (int j = 0; j < N; j++)
      x[p][j] = get(packs[p].x[j]);
  if (a.kind == LADE_NORM_LAYER) {
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
      for (int j = 0; j < N && column_get<N>(0, p) < (int)a.d; j++)
        sum[0] += x[p][j];
    block_few_sums(sum, room_get(room, row, true));
    mean = sum[0] / (float)a.d;
  }
#pragma unroll
  for (int p = 0; p < PACKS; p++)
#pragma unroll
    for (int j = 0; j < N && column_get<N>(0, p) < (int)a.d; j++) {
      x[p][j] -= mean;
      squares[0] = fmaf(x[p][j], x[p][j], squares[0]);
    }
  block_few_sums(squares, room_get(room, row, false));
  const float rstd = 1 / sqrtf(squares[0] / (float)a.d + a.eps);
  statistics_put(a, row, mean, rstd);
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
#pragma unroll
    for (int j = 0; j < N; j++)
      x[p][j] = fmaf(x[p][j] * rstd, get(w.weight[p].x[j]) + a.weight_offset, get(w.bias[p].x[j]));
    if (column_get<N>(0, p) < (int)a.d)
      numbers_put((T *)a.y + row * a.d + column_get<N>(0, p), x[p]);
  }
}

/* Process a longer row, which is read three times. */
template <class T, int N>
static __device__ inline void norm_long_row(const struct lade_norm_fwd_args &a, int64_t row, float *room)
{
  const int span = span_get<N, PACKS>();
  const T *from = (const T *)a.x + row * a.d;
  pack<T, N> x[PACKS];
  float sum[1] = {}, squares[1] = {}, mean = 0;
#pragma unroll 1
  for (int at = 0; at < (int)a.d && a.kind == LADE_NORM_LAYER; at += span) {
    span_load(x, from, at, (int)a.d);
    sum[0] += powers_sum<1>(x, 0, at, (int)a.d);
  }
  if (a.kind == LADE_NORM_LAYER) {
    block_few_sums(sum, room_get(room, row, true));
    mean = sum[0] / (float)a.d;
  }
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span) {
    span_load(x, from, at, (int)a.d);
    squares[0] += powers_sum<2>(x, mean, at, (int)a.d);
  }
  block_few_sums(squares, room_get(room, row, false));
  const float rstd = 1 / sqrtf(squares[0] / (float)a.d + a.eps);
  statistics_put(a, row, mean, rstd);
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span) {
    struct norm_weights<T, N> weights = {};
    span_load(x, from, at, (int)a.d);
    norm_weights_load(weights, a, at);
    norm_span(a, {row, mean, rstd}, at, x, weights);
  }
}

#endif
