/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GELU in its tanh form, as kernels/host/element/gelu.c derives it: y = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715
 * x^3), from e = exp(-2|u|), which neither overflows nor cancels.
 *
 * Where a bias was added to x, backward also makes its gradient, the column sums of dx, with the bits of column_sum.cu.
 * Reading dx again would take a third of the time as much.
 *
 * Moves 2 n elements forward, 3 n backward. Bound: memory; with 16 bits on fast memory only if an element takes at most
 * some twenty instructions, hence exp_for and reciprocal_for.
 */
#include "kernels/cuda/element/gelu.h"
#include "kernels/cuda/reduce/columns.h"

#define ROWS 4 /* at a time, of x and of dy */
#define SLOPE_END 100.0f /* past it the slope's second term is 0 in F32, and x^3 may not be finite */

template <class T> static __device__ inline float gelu_slope(float x)
{
  x = x > SLOPE_END ? SLOPE_END : x < -SLOPE_END ? -SLOPE_END : x; /* NaN stays */
  float u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x), slope_u = SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
  float e = exp_for(T(), -2 * fabsf(u)), r = reciprocal_for(T(), 1 + e), s = u < 0 ? e * r : r;
  return s + 2 * x * slope_u * (e * r * r);
}

template <class T, int N> static __device__ void gelu_packs(const T *x, T *y, int64_t first, int64_t end)
{
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<T, N> p[LADE_CUDA_TURNS];
    packs_load(p, x, i, end);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = gelu<T>(get(p[turn].x[j]));
      pack_put(p[turn], numbers);
    }
    packs_store(y, p, i, end);
  }
}

template <class T> static __device__ void gelu_fwd_of(const struct lade_gelu_fwd_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  gelu_packs<T, LADE_PACK(T)>((const T *)a.x, (T *)a.y, 0, whole);
  gelu_packs<T, 1>((const T *)a.x, (T *)a.y, whole, a.n_elements);
}
/* With a sixth block FP32 spills on sm_80, and FP16 on sm_90. */
LADE_KERNEL_OF(gelu_fwd, lade_gelu_fwd_args, f32, float, 5)
LADE_KERNEL_OF(gelu_fwd, lade_gelu_fwd_args, bf16, bf16, 6)
LADE_KERNEL_OF(gelu_fwd, lade_gelu_fwd_args, f16, f16, 5)

template <class T, int N>
static __device__ void gelu_bwd_packs(const T *x, const T *dy, T *dx, int64_t first, int64_t end)
{
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<T, N> p[LADE_CUDA_TURNS], d[LADE_CUDA_TURNS];
    packs_load(p, x, i, end);
    packs_load(d, dy, i, end);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = get(d[turn].x[j]) * gelu_slope<T>(get(p[turn].x[j]));
      pack_put(d[turn], numbers);
    }
    packs_store(dx, d, i, end);
  }
}

template <class T> static __device__ void gelu_bwd_of(const struct lade_gelu_bwd_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  gelu_bwd_packs<T, LADE_PACK(T)>((const T *)a.x, (const T *)a.dy, (T *)a.dx, 0, whole);
  gelu_bwd_packs<T, 1>((const T *)a.x, (const T *)a.dy, (T *)a.dx, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(gelu_bwd, lade_gelu_bwd_args, 3)

/* Compute dx of ROWS rows of a thread, from @row on, and add it as it is stored to @sums. */
template <class T, int N>
static __device__ inline void gelu_bwd_rows(const struct lade_gelu_bwd_args &a, const struct columns &c, int64_t row,
                                            float (&sums)[N])
{
  pack<T, N> p[ROWS], d[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int64_t at = row + r * COLUMN_WARPS, i = (at < c.end ? at : row) * a.f + c.column;
    p[r] = pack_load<T, N>((const T *)a.x + i);
    d[r] = pack_load<T, N>((const T *)a.dy + i);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int64_t at = row + r * COLUMN_WARPS;
    float numbers[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      numbers[j] = get(d[r].x[j]) * gelu_slope<T>(get(p[r].x[j]));
    pack_put(d[r], numbers);
    if (at < c.end)
      pack_store((T *)a.dx + at * a.f + c.column, d[r]);
#pragma unroll
    for (int j = 0; j < N; j++)
      sums[j] += at < c.end ? get(d[r].x[j]) : 0.0f;
  }
}

template <class T, int N>
static __device__ inline void gelu_bwd_columns_by(const struct lade_gelu_bwd_args &a, float *room)
{
  const struct columns c = columns_get<N>(a.n_elements / a.f, a.f);
  float sums[N] = {};
#pragma unroll 1
  for (int64_t row = c.row; row < c.end && c.has_columns; row += ROWS * COLUMN_WARPS)
    gelu_bwd_rows<T, N>(a, c, row, sums);
  columns_put(sums, room, (float *)a.workspace, a.f);
}

/* Run a backward with a bias's gradient. */
template <class T>
static __device__ void gelu_bwd_columns_of(const struct lade_gelu_bwd_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  if (a.f % LADE_PACK(T) == 0)
    gelu_bwd_columns_by<T, LADE_PACK(T)>(a, room);
  else
    gelu_bwd_columns_by<T, 1>(a, room);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(gelu_bwd_columns, lade_gelu_bwd_args, 3)
