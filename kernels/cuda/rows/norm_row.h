/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of LayerNorm or RMSNorm, and their backward, by one block of threads, for norm.cu and residual.cu.
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

/* Compute y of the span from @at on, whose x is loaded. */
template <class T, int N>
static __device__ inline void norm_span(const struct lade_norm_fwd_args &a, int64_t row, int at, float mean,
                                        float rstd, const pack<T, N> (&x)[PACKS])
{
  pack<T, N> weight[PACKS], bias[PACKS] = {};
  span_load(weight, a.weight, at, (int)a.d);
  if (a.bias)
    span_load(bias, a.bias, at, (int)a.d);
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      y[j] = (get(x[p].x[j]) - mean) * rstd * (get(weight[p].x[j]) + a.weight_offset) + get(bias[p].x[j]);
    if (column_get<N>(at, p) < (int)a.d)
      numbers_put((T *)a.y + row * a.d + column_get<N>(at, p), y);
  }
}

/*
 * Process a row, whose packs are in @x if @is_held. The variance is summed about the mean in a second pass, as in all
 * variants.
 */
template <class T, int N>
static __device__ inline void norm_row(const struct lade_norm_fwd_args &a, int64_t row, float *room,
                                       pack<T, N> (&x)[PACKS], bool is_held)
{
  const int span = span_get<N, PACKS>();
  const T *from = (const T *)a.x + row * a.d;
  float sum = 0, mean = 0, squares = 0;
#pragma unroll 1
  for (int at = 0; at < (int)a.d && a.kind == LADE_NORM_LAYER; at += span) {
    if (!is_held)
      span_load(x, from, at, (int)a.d);
    sum += powers_sum<1>(x, 0, at, (int)a.d);
    span_keep(x);
  }
  if (a.kind == LADE_NORM_LAYER) {
    is_held = a.d <= span;
    mean = block_sum(sum, room) / (float)a.d;
  }
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span) {
    if (!is_held)
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
    if (a.d > span)
      span_load(x, from, at, (int)a.d);
    norm_span(a, row, at, mean, rstd, x);
  }
}

/* ---- backward ---- */

/* Backward of a norm; with the column sums of d_residual, a bias's gradient; with dx, dropped, and dx's column sums. */
enum rows_form { ROWS_NORM, ROWS_BIAS, ROWS_DROP };

/*
 * A block has ROWS(P) rows at a time: as many as make half of PACKS packs a thread, because the next rows' packs are
 * loaded while the current ones are worked on (AHEAD). Dropout's words take the registers of that. With one pack a
 * thread, its columns' partial sums are in registers too.
 */
#define ROWS(P) ((P) < PACKS ? PACKS / 2 / (P) : 1)
#define IS_HELD(P) ((P) == 1)
/* Fewer than PACKS packs a thread are a whole row: no loop over its spans. */
#define IS_WHOLE(P) ((P) < PACKS)
#define FOR_SPANS(P, at, d, span) \
  for (int at = 0; at == 0 || (!IS_WHOLE(P) && at < (int)(d)); at += IS_WHOLE(P) ? 1 : (span))

/* Rows of a norm's input and gradient, and of the addend of the gradient of the input. */
template <class T, int N, int P> struct rows {
  pack<T, N> x[ROWS(P)][P], dy[ROWS(P)][P], d_sum[ROWS(P)][P];
};

/* Their statistics. */
template <int P> struct rows_statistics {
  float mean[ROWS(P)], rstd[ROWS(P)];
};

/* Statistics of 32 rows, a row in each lane: one latency of memory for as many rows. */
struct lanes_statistics {
  float mean, rstd;
};

/*
 * Partial sums of a thread's columns, over the block's rows: of dy h and dy. Those of dx would take too many registers.
 */
template <int N> struct held_sums {
  float d_weight[N], d_bias[N];
};

/* Load the span from @at on of the rows from @first on; rows past @end read the first again. */
template <class T, int N, int P>
static __device__ inline void rows_load(struct rows<T, N, P> &rows, const struct lade_residual_bwd_args &a,
                                        int64_t first, int64_t end, int at)
{
#pragma unroll
  for (int r = 0; r < ROWS(P); r++) {
    const int64_t i = (first + r < end ? first + r : first) * a.d;
    if (a.kind != LADE_NORM_NONE) {
      span_load(rows.x[r], (const T *)a.sum + i, at, (int)a.d);
      span_load(rows.dy[r], (const T *)a.dy + i, at, (int)a.d);
    }
    if (a.d_sum)
      span_load(rows.d_sum[r], (const T *)a.d_sum + i, at, (int)a.d);
  }
}

/* Load the statistics of the rows from @first on into lanes; those past @end have the first's. */
static __device__ inline struct lanes_statistics statistics_load(const struct lade_residual_bwd_args &a, int64_t first,
                                                                 int64_t end)
{
  const int lane = ptx_thread_get() % 32;
  const int64_t row = first + lane < end ? first + lane : first;
  return (struct lanes_statistics){a.kind == LADE_NORM_LAYER ? ((const float *)a.mean)[row] : 0.0f,
                                   a.kind != LADE_NORM_NONE ? ((const float *)a.rstd)[row] : 0.0f};
}

/* Return those of the rows from lane @lane on. Whole warps. */
template <int P>
static __device__ inline struct rows_statistics<P> statistics_get(const struct lanes_statistics &lanes, int lane)
{
  struct rows_statistics<P> statistics;
#pragma unroll
  for (int r = 0; r < ROWS(P); r++) {
    statistics.mean[r] = __shfl_sync(0xffffffffu, lanes.mean, lane + r);
    statistics.rstd[r] = __shfl_sync(0xffffffffu, lanes.rstd, lane + r);
  }
  return statistics;
}

template <class T, int N, int P> static __device__ inline void rows_keep(struct rows<T, N, P> &rows)
{
#pragma unroll
  for (int r = 0; r < ROWS(P); r++) {
    span_keep(rows.x[r]);
    span_keep(rows.dy[r]);
    span_keep(rows.d_sum[r]);
  }
}

/* Load partial sums of this thread's columns, or store them. */
template <int N> static __device__ inline void partials_load(float (&x)[N], const float *from)
{
  constexpr int WIDTH = N < 4 ? N : 4;
#pragma unroll
  for (int j = 0; j < N; j += WIDTH) {
    const pack<float, WIDTH> p = *(const pack<float, WIDTH> *)(from + j);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      x[j + k] = p.x[k];
  }
}

template <int N> static __device__ inline void partials_store(float *to, const float (&x)[N])
{
  constexpr int WIDTH = N < 4 ? N : 4;
#pragma unroll
  for (int j = 0; j < N; j += WIDTH) {
    pack<float, WIDTH> p;
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      p.x[k] = x[j + k];
    *(pack<float, WIDTH> *)(to + j) = p;
  }
}

/*
 * With h = (x-mean) rstd and g = dy weight: add the loaded span of @n rows to @sums, of g and g h of each row, and to
 * the partial sums of dy h and dy.
 */
template <class T, int N, int P>
static __device__ inline void gradients_add(const struct rows<T, N, P> &rows,
                                            const struct rows_statistics<P> &statistics, int n,
                                            const struct lade_residual_bwd_args &a, const T *weights, int at,
                                            float (&sums)[2 * ROWS(P)], struct held_sums<N> &held, float *partials)
{
#pragma unroll
  for (int p = 0; p < P; p++) {
    float d_weight[N], d_bias[N];
    const int column = column_get<N>(at, p);
    if (column >= (int)a.d)
      continue;
    if (!IS_HELD(P)) {
      partials_load(d_weight, partials + column);
      partials_load(d_bias, partials + a.d + column);
    }
    const pack<T, N> weight = *(const pack<T, N> *)(weights + column);
#pragma unroll
    for (int at_r = 0; at_r < ROWS(P) * N; at_r++) {
      const int r = at_r / N, j = at_r % N;
      const float dy = ROWS(P) == 1 || r < n ? get(rows.dy[r][p].x[j]) : 0.0f;
      const float h = (get(rows.x[r][p].x[j]) - statistics.mean[r]) * statistics.rstd[r];
      const float g = dy * (get(weight.x[j]) + a.weight_offset);
      sums[2 * r] += g;
      sums[2 * r + 1] = fmaf(g, h, sums[2 * r + 1]);
      (IS_HELD(P) ? held.d_weight[j] : d_weight[j]) = fmaf(dy, h, IS_HELD(P) ? held.d_weight[j] : d_weight[j]);
      (IS_HELD(P) ? held.d_bias[j] : d_bias[j]) += dy;
    }
    if (IS_HELD(P))
      continue;
    partials_store(partials + column, d_weight);
    partials_store(partials + a.d + column, d_bias);
  }
}

/* Of each current row: avg(g), 0 for RMS, and rstd avg(g h). */
template <int P> struct rows_averages {
  float g[ROWS(P)], gh[ROWS(P)];
};

/* Return them from @sums, of g and g h of each row. */
template <int P>
static __device__ inline struct rows_averages<P> averages_get(const struct lade_residual_bwd_args &a,
                                                              const struct rows_statistics<P> &statistics,
                                                              const float (&sums)[2 * ROWS(P)])
{
  struct rows_averages<P> averages;
#pragma unroll
  for (int r = 0; r < ROWS(P); r++) {
    averages.g[r] = a.kind == LADE_NORM_LAYER ? sums[2 * r] / (float)a.d : 0.0f;
    averages.gh[r] = sums[2 * r + 1] / (float)a.d * statistics.rstd[r];
  }
  return averages;
}

/*
 * Compute d_residual = rstd (g - avg(g) - h avg(g h)) + d_sum, without avg(g) for RMS, of a pack; d_sum without a norm.
 */
template <class T, int N, int P>
static __device__ inline void residual_put(const struct rows<T, N, P> &rows,
                                           const struct rows_statistics<P> &statistics,
                                           const struct rows_averages<P> &averages,
                                           const struct lade_residual_bwd_args &a,
                                           int r, int p, const pack<T, N> &weight, T *to, pack<T, N> &d_residual)
{
  float dx[N];
#pragma unroll
  for (int j = 0; j < N; j++) {
    dx[j] = a.d_sum ? get(rows.d_sum[r][p].x[j]) : 0.0f;
    if (a.kind != LADE_NORM_NONE) {
      const float from_mean = get(rows.x[r][p].x[j]) - statistics.mean[r];
      const float g = get(rows.dy[r][p].x[j]) * (get(weight.x[j]) + a.weight_offset);
      dx[j] = fmaf(statistics.rstd[r], fmaf(-from_mean, averages.gh[r], g - averages.g[r]), dx[j]);
    }
  }
  pack_put(d_residual, dx);
  pack_store(to, d_residual);
}

/* Compute dx of a pack of d_residual, with ROWS_DROP dropped and rounded; add it to @sums, of the bias's gradient. */
template <enum rows_form FORM, class T, int N>
static __device__ inline void dx_put(const struct lade_residual_bwd_args &a, const struct lade_step *step, int64_t i,
                                     pack<T, N> d_residual, float (&sums)[N])
{
  if (FORM == ROWS_DROP) {
    float dx[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      dx[j] = get(d_residual.x[j]);
    drop_numbers(dx, step, a.drop, i);
    pack_put(d_residual, dx);
    pack_store((T *)a.dx + i, d_residual);
  }
#pragma unroll
  for (int j = 0; j < N; j++)
    sums[j] += get(d_residual.x[j]);
}

/*
 * Store the results for the loaded span of the rows from @first on. ROWS_BIAS, ROWS_DROP: also the column sums of dx,
 * the third of the partial sums. @sums: of the whole rows.
 */
template <enum rows_form FORM, class T, int N, int P>
static __device__ inline void span_put(const struct rows<T, N, P> &rows,
                                       const struct rows_statistics<P> &statistics, int n,
                                       const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                       const T *weights, int64_t first, int at, const float (&sums)[2 * ROWS(P)],
                                       float *partials)
{
  const struct rows_averages<P> averages = averages_get<P>(a, statistics, sums);
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int column = column_get<N>(at, p);
    float d_x_bias[N];
    pack<T, N> weight = {};
    if (column >= (int)a.d)
      continue;
    if (FORM != ROWS_NORM)
      partials_load(d_x_bias, partials + 2 * a.d + column);
    if (a.kind != LADE_NORM_NONE)
      weight = *(const pack<T, N> *)(weights + column);
#pragma unroll
    for (int r = 0; r < ROWS(P); r++) {
      const int64_t i = (first + r) * a.d + column;
      pack<T, N> d_residual;
      if (ROWS(P) > 1 && r >= n)
        continue;
      residual_put(rows, statistics, averages, a, r, p, weight, (T *)a.d_residual + i, d_residual);
      if (FORM != ROWS_NORM)
        dx_put<FORM>(a, step, i, d_residual, d_x_bias);
    }
    if (FORM != ROWS_NORM)
      partials_store(partials + 2 * a.d + column, d_x_bias);
  }
}

/* Shared memory of a block; partial sums may lie in the workspace instead, and weights where the norm's are. */
template <class T> struct rows_room {
  float *partials, *room;
  const T *weights;
};

/* Process the rows from @first on, whose first span is loaded; the block's are before @end. */
template <enum rows_form FORM, class T, int N, int P>
static __device__ inline void rows_run(struct rows<T, N, P> &rows, const struct lade_residual_bwd_args &a,
                                       const struct lade_step *step, int64_t first, int64_t end,
                                       const struct rows_statistics<P> &statistics, struct held_sums<N> &held,
                                       const struct rows_room<T> &room)
{
  const int span = span_get<N, P>(), n = end - first < ROWS(P) ? (int)(end - first) : ROWS(P);
  float sums[2 * ROWS(P)] = {};
  if (a.kind != LADE_NORM_NONE) {
#pragma unroll 1
    FOR_SPANS(P, at, a.d, span) {
      if (at > 0)
        rows_load(rows, a, first, end, at);
      gradients_add(rows, statistics, n, a, room.weights, at, sums, held, room.partials);
      rows_keep(rows);
    }
    block_sums(sums, room.room);
  }
#pragma unroll 1
  FOR_SPANS(P, at, a.d, span) {
    if (!IS_WHOLE(P) && a.d > span)
      rows_load(rows, a, first, end, at);
    span_put<FORM>(rows, statistics, n, a, step, room.weights, first, at, sums, room.partials);
  }
}

/*
 * Process this block of threads' block of rows. The next rows' packs are loaded before the current ones are used, so
 * that memory works during reductions.
 */
template <enum rows_form FORM, bool AHEAD, class T, int N, int P>
static __device__ inline void rows_walk(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                        const struct rows_room<T> &room)
{
  const int64_t n_rows = lade_cuda_row_block(a.n), first = blockIdx.x * n_rows;
  const int64_t end = first + n_rows < a.n ? first + n_rows : a.n;
  struct held_sums<N> held = {};
  struct rows<T, N, P> current;
  struct lanes_statistics lanes = {};
  rows_load(current, a, first, end, 0);
#pragma unroll 1
  for (int64_t at = first; at < end; at += ROWS(P)) {
    struct rows<T, N, P> next;
    const int64_t then = at + ROWS(P) < end ? at + ROWS(P) : at;
    const int lane = (int)(at - first) % 32;
    if (lane == 0)
      lanes = statistics_load(a, at, end);
    if (AHEAD)
      rows_load(next, a, then, end, 0);
    rows_run<FORM>(current, a, step, at, end, statistics_get<P>(lanes, lane), held, room);
    if (AHEAD)
      current = next;
    else
      rows_load(current, a, then, end, 0);
  }
  const int column = column_get<N>(0, 0);
  if (!IS_HELD(P) || column >= (int)a.d)
    return;
  partials_store(room.partials + column, held.d_weight); /* they began as zeros */
  partials_store(room.partials + a.d + column, held.d_bias);
}

/* Process it with as few packs a thread as make a row. */
template <enum rows_form FORM, class T, int N>
static __device__ inline void rows_walk_sized(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                              const struct rows_room<T> &room)
{
  constexpr bool AHEAD = FORM != ROWS_DROP;
  if (a.d <= span_get<N, 1>())
    rows_walk<FORM, AHEAD, T, N, 1>(a, step, room);
  else if (a.d <= span_get<N, 2>())
    rows_walk<FORM, AHEAD, T, N, 2>(a, step, room);
  else
    rows_walk<FORM, false, T, N, PACKS>(a, step, room);
}

/*
 * Run the backward of a block of rows. Partial sums of d_weight, d_bias and, except for ROWS_NORM, d_x_bias lie in
 * @shared, if they fit, until they go to the workspace; the norm's weight lies behind them.
 */
template <enum rows_form FORM, class T>
static __device__ inline void rows_bwd(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                       float *shared)
{
  const int n_sums = FORM == ROWS_NORM ? 2 : 3;
  const int64_t n_partials = n_sums * a.d;
  float *to = (float *)a.workspace + blockIdx.x * n_partials;
  float *partials = lade_cuda_row_shared(a.d, n_sums) ? shared + LADE_CUDA_ROOM_FLOATS : to;
  const bool has_weights = a.kind != LADE_NORM_NONE && lade_cuda_row_weight_floats(a.d, n_sums, sizeof(T));
  T *weights = (T *)(partials + n_partials);
  for (int64_t j = threadIdx.x; j < n_partials; j += blockDim.x)
    partials[j] = 0;
  for (int64_t j = threadIdx.x; j < a.d && has_weights; j += blockDim.x)
    weights[j] = ((const T *)a.weight)[j];
  __syncthreads();
  const struct rows_room<T> room = {partials, shared, has_weights ? weights : (const T *)a.weight};
  if (a.d % LADE_PACK(T) == 0)
    rows_walk_sized<FORM, T, LADE_PACK(T)>(a, step, room);
  else
    rows_walk_sized<FORM, T, 1>(a, step, room);
  __syncthreads();
  for (int64_t j = threadIdx.x; j < n_partials && partials != to; j += blockDim.x)
    to[j] = partials[j];
}

#endif
