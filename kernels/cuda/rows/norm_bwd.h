/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward of rows of LayerNorm or RMSNorm by one block of threads, for norm.cu and residual.cu. A block of threads has
 * a block of rows (phases.h), and also makes the block's sums of the gradients of weight and biases.
 *
 * Whole rows: a turn has two rows of one pack a thread, or one row of two packs. So a thread has the same columns of
 * every row, and keeps their sums and weights in registers. Asynchronous copies bring the next turn into shared memory.
 * A thread reads only its own copies. It waits for other threads once a turn, in the sums over rows.
 *
 * Long rows, and rows that are not whole packs, go span after span (norm_row.h). Their partial sums are in shared
 * memory if they fit, else in their place in the workspace.
 */
#ifndef LADE_CUDA_NORM_BWD_H
#define LADE_CUDA_NORM_BWD_H

#include "kernels/cuda/rows/norm_row.h"

/*
 * Backward of a norm; with the column sums of d_residual, a bias's gradient; with those of d_sum too, only for rows of
 * one pack a thread, whose sums the registers hold; with dx, dropped, and dx's column sums.
 */
enum rows_form { ROWS_NORM, ROWS_BIAS, ROWS_SUMS, ROWS_DROP };

/* Statistics of 32 rows, a row in each lane: one latency of memory for as many rows. */
struct lanes_statistics {
  float mean, rstd;
};

/* Load the statistics of the rows from @first on into lanes; those past @end have the first's. */
static __device__ inline struct lanes_statistics statistics_load(const struct lade_residual_bwd_args &a, int64_t first,
                                                                 int64_t end)
{
  const int lane = ptx_thread_get() % 32;
  const int64_t row = first + lane < end ? first + lane : first;
  return (struct lanes_statistics){a.kind == LADE_NORM_LAYER ? ((const float *)a.mean)[row] : 0.0f,
                                   a.kind != LADE_NORM_NONE ? ((const float *)a.rstd)[row] : 0.0f};
}

/* A row's mean and rstd; and, of the complete row, avg(g), 0 for RMS, and rstd avg(g h). */
struct row_statistics {
  float mean, rstd, g, gh;
};

/* Return the statistics of the row in lane @lane. Whole warps. */
static __device__ inline struct row_statistics statistics_get(const struct lanes_statistics &lanes, int lane)
{
  return (struct row_statistics){__shfl_sync(0xffffffffu, lanes.mean, lane), __shfl_sync(0xffffffffu, lanes.rstd, lane),
                                 0, 0};
}

static __device__ inline void averages_set(struct row_statistics &row, const struct lade_residual_bwd_args &a,
                                           float g_sum, float gh_sum)
{
  const float part = 1 / (float)a.d;
  row.g = a.kind == LADE_NORM_LAYER ? g_sum * part : 0.0f;
  row.gh = gh_sum * part * row.rstd;
}

/* Load partial sums of this thread's columns. */
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

/* Store them. */
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

/* Partial sums of a pack's columns: of dy h, dy, dx and d_sum. */
template <int N> struct column_sums {
  float weight[N], bias[N], x_bias[N], sum_bias[N];
};

/* Add a pack to the sums. h = (x - mean) rstd, g = dy weight; @row_sums are of g and of g h. */
template <class T, int N>
static __device__ inline void gradients_add(const pack<T, N> &x, const pack<T, N> &dy, const float (&weight)[N],
                                            const struct row_statistics &row, float *row_sums,
                                            struct column_sums<N> &sums)
{
#pragma unroll
  for (int j = 0; j < N; j++) {
    const float h = (get(x.x[j]) - row.mean) * row.rstd, g = get(dy.x[j]) * weight[j];
    row_sums[0] += g;
    row_sums[1] = fmaf(g, h, row_sums[1]);
    sums.weight[j] = fmaf(get(dy.x[j]), h, sums.weight[j]);
    sums.bias[j] += get(dy.x[j]);
  }
}

/* Add rstd (g - avg(g) - h avg(g h)), without avg(g) for RMS, of a pack to @dx. */
template <class T, int N>
static __device__ inline void norm_add(float (&dx)[N], const pack<T, N> &x, const pack<T, N> &dy,
                                       const float (&weight)[N], const struct row_statistics &row)
{
#pragma unroll
  for (int j = 0; j < N; j++) {
    const float from_mean = get(x.x[j]) - row.mean, g = get(dy.x[j]) * weight[j];
    dx[j] = fmaf(row.rstd, fmaf(-from_mean, row.gh, g - row.g), dx[j]);
  }
}

/*
 * Store d_residual of a pack at element @i, if @is_there; with ROWS_DROP also dx, after dropout. Add the stored values
 * of dx, which are rounded, to @x_bias.
 */
template <enum rows_form FORM, class T, int N>
static __device__ inline void results_put(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                          int64_t i, bool is_there, float (&dx)[N], float (&x_bias)[N])
{
  pack<T, N> p;
  pack_put(p, dx);
  if (is_there)
    pack_store((T *)a.d_residual + i, p);
  if (FORM == ROWS_DROP) {
#pragma unroll
    for (int j = 0; j < N; j++)
      dx[j] = get(p.x[j]);
    drop_numbers(dx, step, a.drop, i);
    pack_put(p, dx);
    if (is_there)
      pack_store((T *)a.dx + i, p);
  }
#pragma unroll
  for (int j = 0; j < N && FORM != ROWS_NORM; j++)
    x_bias[j] += get(p.x[j]);
}

/* Add a pack's weights of the norm to their offset. */
template <class T, int N>
static __device__ inline void weights_get(float (&weight)[N], const struct lade_residual_bwd_args &a, int column)
{
  const pack<T, N> p = pack_load<T, N>((const T *)a.weight + column);
#pragma unroll
  for (int j = 0; j < N; j++)
    weight[j] = get(p.x[j]) + a.weight_offset;
}

/* Store this thread's partial sums of the columns from @column on to the block's row of the workspace. */
template <enum rows_form FORM, int N>
static __device__ inline void sums_put(const struct lade_residual_bwd_args &a, int column,
                                       const struct column_sums<N> &sums)
{
  const int n_sums = FORM == ROWS_NORM ? 2 : FORM == ROWS_SUMS ? 4 : 3;
  float *to = (float *)a.workspace + blockIdx.x * n_sums * a.d + column;
  partials_store(to, sums.weight);
  partials_store(to + a.d, sums.bias);
  if (FORM != ROWS_NORM)
    partials_store(to + 2 * a.d, sums.x_bias);
  if (FORM == ROWS_SUMS)
    partials_store(to + 3 * a.d, sums.sum_bias);
}

/* ---- whole rows ---- */

/* Rows at a time, of P packs a thread. */
#define ROWS(P) (LADE_CUDA_NORM_BWD_PACKS / (P))
static_assert(2 * 2 * ROWS(1) * LADE_CUDA_THREADS / 32 <= LADE_CUDA_ROOM_FLOATS, "the sums of two turns");
static_assert(2 * 2 * ROWS(2) * LADE_CUDA_NORM_BWD_THREADS / 32 <= LADE_CUDA_ROOM_FLOATS, "in the largest block");

/*
 * The packs of a turn, in shared memory: of each tensor, row by row; a thread's are THREADS places apart, the most
 * threads of the block.
 */
template <int THREADS> struct turn_packs {
  typedef pack<uint32_t, 4> thread_packs[THREADS];
  thread_packs x[LADE_CUDA_NORM_BWD_PACKS], dy[LADE_CUDA_NORM_BWD_PACKS], d_sum[LADE_CUDA_NORM_BWD_PACKS];
};
static_assert(2 * sizeof(struct turn_packs<LADE_CUDA_THREADS>) ==
                  LADE_CUDA_NORM_BWD_FLOATS(LADE_CUDA_THREADS) * sizeof(float),
              "the launch has two turns");
static_assert(2 * sizeof(struct turn_packs<LADE_CUDA_NORM_BWD_THREADS>) ==
                  LADE_CUDA_NORM_BWD_FLOATS(LADE_CUDA_NORM_BWD_THREADS) * sizeof(float),
              "and so has that of the largest block");

/* This thread's place: its number, the element of its first pack in a turn's first row, and the rows from there. */
struct turn_place {
  int thread;
  int64_t i;
  int n;
};

/* Return the element of pack @q of the turn. */
template <int P, int N>
static __device__ inline int64_t element_get(const struct turn_place &place, const struct lade_residual_bwd_args &a,
                                             int q)
{
  return place.i + (q / P) * a.d + (q % P) * (int)blockDim.x * N;
}

template <int P, int N>
static __device__ inline bool is_there(const struct turn_place &place, const struct lade_residual_bwd_args &a, int q)
{
  return q / P < place.n && (q % P * (int)blockDim.x + place.thread) * N < (int)a.d;
}

template <class T, int THREADS>
static __device__ inline pack<T, LADE_PACK(T)> turn_get(const pack<uint32_t, 4> (&packs)[THREADS],
                                                        const struct turn_place &place)
{
  pack<T, LADE_PACK(T)> p;
  const pack<uint32_t, 4> words = packs[place.thread];
  memcpy(&p, &words, sizeof(p));
  return p;
}

/* Begin to copy this thread's packs of the turn at @place. Those that do not exist become zeros. */
template <class T, int P, int THREADS>
static __device__ inline void turn_copy(struct turn_packs<THREADS> &turn, const struct lade_residual_bwd_args &a,
                                        const struct turn_place &place)
{
#pragma unroll
  for (int q = 0; q < LADE_CUDA_NORM_BWD_PACKS; q++) {
    const int64_t i = element_get<P, LADE_PACK(T)>(place, a, q);
    const bool is_here = is_there<P, LADE_PACK(T)>(place, a, q);
    if (a.kind != LADE_NORM_NONE) {
      ptx_copy_16(&turn.x[q][place.thread], (const T *)a.sum + i, is_here);
      ptx_copy_16(&turn.dy[q][place.thread], (const T *)a.dy + i, is_here);
    }
    if (a.d_sum)
      ptx_copy_16(&turn.d_sum[q][place.thread], (const T *)a.d_sum + i, is_here);
  }
}

/* Work on the turn at @place. Packs that do not exist are zeros, and add zeros. */
template <enum rows_form FORM, class T, int P, int THREADS, int N>
static __device__ inline void turn_run(const struct turn_packs<THREADS> &turn, const struct lade_residual_bwd_args &a,
                                       const struct lade_step *step, const struct turn_place &place,
                                       struct row_statistics (&rows)[ROWS(P)], const float (&weight)[P][N],
                                       struct column_sums<N> (&columns)[P], float *room)
{
  float sums[2 * ROWS(P)] = {};
  if (a.kind != LADE_NORM_NONE) {
#pragma unroll
    for (int q = 0; q < LADE_CUDA_NORM_BWD_PACKS; q++)
      gradients_add(turn_get<T>(turn.x[q], place), turn_get<T>(turn.dy[q], place), weight[q % P], rows[q / P],
                    sums + 2 * (q / P), columns[q % P]);
    block_few_sums<THREADS / 32>(sums, room);
#pragma unroll
    for (int r = 0; r < ROWS(P); r++)
      averages_set(rows[r], a, sums[2 * r], sums[2 * r + 1]);
  }
#pragma unroll
  for (int q = 0; q < LADE_CUDA_NORM_BWD_PACKS; q++) {
    float dx[N] = {};
    if (a.d_sum) {
      const pack<T, N> d_sum = turn_get<T>(turn.d_sum[q], place);
#pragma unroll
      for (int j = 0; j < N; j++) {
        dx[j] = get(d_sum.x[j]);
        if (FORM == ROWS_SUMS)
          columns[q % P].sum_bias[j] += dx[j];
      }
    }
    if (a.kind != LADE_NORM_NONE)
      norm_add(dx, turn_get<T>(turn.x[q], place), turn_get<T>(turn.dy[q], place), weight[q % P], rows[q / P]);
    results_put<FORM, T>(a, step, element_get<P, N>(place, a, q), is_there<P, N>(place, a, q), dx,
                         columns[q % P].x_bias);
  }
}

/* Process this block of threads' block of rows, each at most P packs a thread of at most THREADS. */
template <enum rows_form FORM, class T, int P, int THREADS = LADE_CUDA_THREADS>
static __device__ inline void whole_rows_bwd(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                             float *shared)
{
  constexpr int N = LADE_PACK(T);
  const int64_t n_rows = lade_cuda_row_block(a.n), first = blockIdx.x * n_rows;
  const int n = (int)(first + n_rows < a.n ? n_rows : a.n - first);
  struct turn_packs<THREADS> *turns = (struct turn_packs<THREADS> *)(shared + LADE_CUDA_ROOM_FLOATS);
  struct turn_place place = {(int)threadIdx.x, first * a.d + (int)threadIdx.x * N, n};
  struct column_sums<N> columns[P] = {};
  struct lanes_statistics lanes = {};
  float weight[P][N] = {};
  turn_copy<T, P>(turns[0], a, place);
#pragma unroll
  for (int p = 0; p < P; p++)
    if (a.kind != LADE_NORM_NONE && column_get<N>(0, p) < (int)a.d)
      weights_get<T>(weight[p], a, column_get<N>(0, p));
#pragma unroll 1
  for (int turn = 0; place.n > 0; turn ^= 1) {
    const int at = n - place.n;
    const struct turn_place then = {place.thread, place.i + ROWS(P) * a.d, place.n - ROWS(P)};
    struct row_statistics rows[ROWS(P)];
    if (at % 32 == 0)
      lanes = statistics_load(a, first + at, first + n);
#pragma unroll
    for (int r = 0; r < ROWS(P); r++)
      rows[r] = statistics_get(lanes, at % 32 + r);
    ptx_copies_wait();
    if (then.n > 0)
      turn_copy<T, P>(turns[turn ^ 1], a, then);
    turn_run<FORM, T, P>(turns[turn], a, step, place, rows, weight, columns,
                         shared + turn * (LADE_CUDA_ROOM_FLOATS / 2));
    place = then;
  }
#pragma unroll
  for (int p = 0; p < P; p++)
    if (column_get<N>(0, p) < (int)a.d)
      sums_put<FORM>(a, column_get<N>(0, p), columns[p]);
}

/* ---- long rows, and rows that are not whole packs ---- */

/* Packs of a span of a row: of a norm's input and gradient, and of the addend of the gradient of the input. */
template <class T, int N> struct span_packs {
  pack<T, N> x[PACKS], dy[PACKS], d_sum[PACKS];
};

template <class T, int N>
static __device__ inline void span_packs_load(struct span_packs<T, N> &span, const struct lade_residual_bwd_args &a,
                                              int64_t row, int at)
{
  if (a.kind != LADE_NORM_NONE) {
    span_load(span.x, (const T *)a.sum + row * a.d, at, (int)a.d);
    span_load(span.dy, (const T *)a.dy + row * a.d, at, (int)a.d);
  }
  if (a.d_sum)
    span_load(span.d_sum, (const T *)a.d_sum + row * a.d, at, (int)a.d);
}

/* Add the loaded span to the row's sums, of g and g h, and to @partials, the block's sums of dy h and dy. */
template <class T, int N>
static __device__ inline void span_add(const struct span_packs<T, N> &span, const struct lade_residual_bwd_args &a,
                                       const struct row_statistics &row, int at, float (&sums)[2], float *partials)
{
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int column = column_get<N>(at, p);
    struct column_sums<N> columns;
    float weight[N];
    if (column >= (int)a.d)
      continue;
    partials_load(columns.weight, partials + column);
    partials_load(columns.bias, partials + a.d + column);
    weights_get<T>(weight, a, column);
    gradients_add(span.x[p], span.dy[p], weight, row, sums, columns);
    partials_store(partials + column, columns.weight);
    partials_store(partials + a.d + column, columns.bias);
  }
}

/* A span of a row: the row's first element, and the span's first column. */
struct span_place {
  int64_t i;
  int at;
};

/* Store the results for the loaded span at @place. */
template <enum rows_form FORM, class T, int N>
static __device__ inline void span_put(const struct span_packs<T, N> &span, const struct lade_residual_bwd_args &a,
                                       const struct lade_step *step, const struct row_statistics &row,
                                       const struct span_place &place, float *partials)
{
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int column = column_get<N>(place.at, p);
    float dx[N] = {}, weight[N], x_bias[N] = {};
    if (column >= (int)a.d)
      continue;
#pragma unroll
    for (int j = 0; j < N && a.d_sum; j++)
      dx[j] = get(span.d_sum[p].x[j]);
    if (a.kind != LADE_NORM_NONE) {
      weights_get<T>(weight, a, column);
      norm_add(dx, span.x[p], span.dy[p], weight, row);
    }
    if (FORM != ROWS_NORM)
      partials_load(x_bias, partials + 2 * a.d + column);
    results_put<FORM, T>(a, step, place.i + column, true, dx, x_bias);
    if (FORM != ROWS_NORM)
      partials_store(partials + 2 * a.d + column, x_bias);
  }
}

template <enum rows_form FORM, class T, int N>
static __device__ inline void long_row_bwd(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                           int64_t at_row, struct row_statistics row, float *partials, float *room)
{
  const int span = span_get<N, PACKS>();
  struct span_packs<T, N> packs;
  float sums[2] = {};
#pragma unroll 1
  for (int at = 0; at < (int)a.d && a.kind != LADE_NORM_NONE; at += span) {
    span_packs_load(packs, a, at_row, at);
    span_add(packs, a, row, at, sums, partials);
  }
  if (a.kind != LADE_NORM_NONE)
    block_sums(sums, room);
  averages_set(row, a, sums[0], sums[1]);
#pragma unroll 1
  for (int at = 0; at < (int)a.d; at += span) {
    span_packs_load(packs, a, at_row, at);
    span_put<FORM, T>(packs, a, step, row, {at_row * a.d, at}, partials);
  }
}

/* Process this block of threads' block of rows. Partial sums wait in @shared if they fit. */
template <enum rows_form FORM, class T, int N>
static __device__ inline void long_rows_bwd(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                            float *shared)
{
  const int n_sums = FORM == ROWS_NORM ? 2 : 3;
  const int64_t n_partials = n_sums * a.d, n_rows = lade_cuda_row_block(a.n), first = blockIdx.x * n_rows;
  const int64_t end = first + n_rows < a.n ? first + n_rows : a.n;
  float *to = (float *)a.workspace + blockIdx.x * n_partials;
  float *partials = lade_cuda_row_shared(a.d, n_sums) ? shared + LADE_CUDA_ROOM_FLOATS : to;
  struct lanes_statistics lanes = {};
  for (int64_t j = threadIdx.x; j < n_partials; j += blockDim.x)
    partials[j] = 0;
  __syncthreads();
#pragma unroll 1
  for (int64_t row = first; row < end; row++) {
    const int lane = (int)(row - first) % 32;
    if (lane == 0)
      lanes = statistics_load(a, row, end);
    long_row_bwd<FORM, T, N>(a, step, row, statistics_get(lanes, lane), partials, shared);
  }
  __syncthreads();
  for (int64_t j = threadIdx.x; j < n_partials && partials != to; j += blockDim.x)
    to[j] = partials[j];
}

/* Run the backward of a block of rows. @shared: as lade_cuda_norm_bwd_floats counts it. */
template <enum rows_form FORM, class T>
static __device__ inline void rows_bwd(const struct lade_residual_bwd_args &a, const struct lade_step *step,
                                       float *shared)
{
  const int n_packs = lade_cuda_norm_bwd_packs(a.d, LADE_PACK(T));
  if (n_packs == 1)
    whole_rows_bwd<FORM, T, 1>(a, step, shared);
  else if (n_packs == 2 && lade_cuda_norm_bwd_threads(a.d, LADE_PACK(T)) == LADE_CUDA_THREADS)
    whole_rows_bwd<FORM, T, 2>(a, step, shared);
  else if (n_packs == 2)
    whole_rows_bwd<FORM, T, 2, LADE_CUDA_NORM_BWD_THREADS>(a, step, shared);
  else if (a.d % LADE_PACK(T) == 0)
    long_rows_bwd<FORM, T, LADE_PACK(T)>(a, step, shared);
  else
    long_rows_bwd<FORM, T, 1>(a, step, shared);
}

/* Define a kernel of the backward. Two blocks of LADE_CUDA_THREADS have the registers of one of the largest. */
#define ROWS_BWD_KERNEL(name, args_type) LADE_KERNEL_OF_DTYPES_SIZED(name, args_type, LADE_CUDA_NORM_BWD_THREADS, 1)

#endif
