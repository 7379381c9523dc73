/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary embedding, half-split or of neighbours, over a table of cosines and sines [T, D/2] that a first kernel makes
 * in double, as kernels/host/rows/rope.c does; the formula of Llama 3.1's frequencies stands there.
 *
 * A thread makes a run of the table's rows: it starts at the run's first angle and turns on by the frequency, in
 * double. A sine and a cosine per row would cost some hundred operations, as long as the rest of the kernel.
 *
 * Moves 2 n rows of qkv (in place: of q and k alone), and the table once, T D F32 numbers. Bound: memory.
 */
#include "kernels/cuda/kernel.h"

#define TWO_PI 6.28318530717958647693

static __device__ inline int64_t half_get(const struct lade_rope_args &a)
{
  return (a.rotary_dim ? a.rotary_dim : a.head_dim) / 2;
}

static __device__ inline double frequency_get(const struct lade_rope_args &a, const float *factors, int64_t j)
{
  double frequency = pow((double)a.base, -(double)j / (double)half_get(a));
  double low = (double)a.low, high = (double)a.high;
  if (a.kind == LADE_ROPE_YARN) {
    double ramp = ((double)j - low) / (high - low), slowed = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return frequency / (double)a.scale_factor * slowed + frequency * (1 - slowed);
  }
  if (a.kind == LADE_ROPE_LINEAR)
    return frequency / (double)a.scale_factor;
  if (a.kind == LADE_ROPE_LONGROPE)
    return frequency / (double)factors[j];
  if (a.kind == LADE_ROPE_DYNAMIC || !(a.scale_factor > 0))
    return frequency;
  double turns = (double)a.original_context * frequency / TWO_PI;
  if (turns < low)
    return frequency / (double)a.scale_factor;
  if (turns > high)
    return frequency;
  double smooth = (turns - low) / (high - low);
  return (1 - smooth) * frequency / (double)a.scale_factor + smooth * frequency;
}

LADE_KERNEL(rope_table, lade_cuda_rope_table)
{
  const struct lade_rope_args &r = a.rope;
  const int64_t half = half_get(r), run = thread_get() / half, j = thread_get() % half;
  float *cosines = (float *)r.workspace, *sines = cosines + r.seq_len * half;
  const int64_t first = run * LADE_CUDA_ROPE_RUN;
  if (first >= r.seq_len)
    return;
  const double turn = frequency_get(r, a.factors, j) * (r.is_inverse ? -1 : 1);
  const double magnitude = r.magnitude != 0 ? (double)r.magnitude : 1;
  const double turn_cosine = cos(turn), turn_sine = sin(turn);
  double cosine = cos((double)first * turn), sine = sin((double)first * turn);
  for (int64_t t = first; t < first + LADE_CUDA_ROPE_RUN && t < r.seq_len; t++) {
    const double before = cosine;
    cosines[t * half + j] = (float)(magnitude * cosine);
    sines[t * half + j] = (float)(magnitude * sine);
    cosine = before * turn_cosine - sine * turn_sine;
    sine = sine * turn_cosine + before * turn_sine;
  }
}
LADE_CUDA_EXPORT(rope_table, lade_cuda_rope_table)

/* N consecutive pairs of a head. Half-split: the first numbers are at @x, the second ones half a head after it. */
template <class T, int N> struct rope_pairs {
  pack<T, N> x0, x1;
  float c[N], s[N];
};

template <class T, int N, bool IS_INTERLEAVED>
static __device__ inline void pairs_load(struct rope_pairs<T, N> &p, const T *x, const float *cosines,
                                         const float *sines, int half)
{
  constexpr int WIDTH = N < 4 ? N : 4;
  p.x0 = pack_load<T, N>(x);
  p.x1 = pack_load<T, N>(x + (IS_INTERLEAVED ? N : half));
  if (IS_INTERLEAVED) {
    const pack<T, N> low = p.x0, high = p.x1;
#pragma unroll
    for (int j = 0; j < N; j++) {
      p.x0.x[j] = 2 * j < N ? low.x[2 * j % N] : high.x[2 * j % N];
      p.x1.x[j] = 2 * j + 1 < N ? low.x[(2 * j + 1) % N] : high.x[(2 * j + 1) % N];
    }
  }
#pragma unroll
  for (int j = 0; j < N; j++) {
    p.c[j] = pack_load<float, WIDTH>(cosines + j / WIDTH * WIDTH).x[j % WIDTH];
    p.s[j] = pack_load<float, WIDTH>(sines + j / WIDTH * WIDTH).x[j % WIDTH];
  }
}

template <class T, int N, bool IS_INTERLEAVED>
static __device__ inline void pairs_turn(const struct rope_pairs<T, N> &p, T *y, int half, float factor)
{
  float y0[N], y1[N];
#pragma unroll
  for (int j = 0; j < N; j++) {
    const float x0 = get(p.x0.x[j]), x1 = get(p.x1.x[j]);
    y0[j] = factor * (x0 * p.c[j] - x1 * p.s[j]);
    y1[j] = factor * (x1 * p.c[j] + x0 * p.s[j]);
  }
  if (IS_INTERLEAVED) {
    float low[N], high[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
      low[j] = j % 2 ? y1[j / 2] : y0[j / 2];
      high[j] = (N + j) % 2 ? y1[(N + j) / 2] : y0[(N + j) / 2];
    }
    numbers_put(y, low);
    numbers_put(y + N, high);
    return;
  }
  numbers_put(y, y0);
  numbers_put(y + half, y1);
}

/* Return the attention temperature of position @t: the factor of its queries. */
static __device__ inline float temperature_get(const struct lade_rope_args &a, int64_t t)
{
  return a.temperature_beta == 0 ? 1.0f : 1.0f + a.temperature_beta * log1pf((float)(t / a.original_context));
}

/* A block has a row; its pairs are numbered over the query and key heads, and values are copied unless in place. */
template <class T, int N, bool IS_INTERLEAVED> static __device__ inline void row_turn(const struct lade_rope_args &a)
{
  const int half = (int)half_get(a), n_each = half / N, n_packs = (int)(a.heads + a.n_kv_heads) * n_each;
  const int64_t row_elements = (a.heads + 2 * a.n_kv_heads) * a.head_dim, row = blockIdx.x;
  const float *cosines = (const float *)a.workspace + row % a.seq_len * half, *sines = cosines + a.seq_len * half;
  const T *x = (const T *)a.x + row * row_elements;
  T *y = (T *)a.y + row * row_elements;
  const float factor = temperature_get(a, row % a.seq_len);
#pragma unroll 1
  for (int i = (int)threadIdx.x; i < n_packs; i += LADE_CUDA_ROPE_TURNS * (int)blockDim.x) {
    struct rope_pairs<T, N> p[LADE_CUDA_ROPE_TURNS];
    int at[LADE_CUDA_ROPE_TURNS];
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_ROPE_TURNS; turn++) {
      const int own = i + turn * (int)blockDim.x < n_packs ? i + turn * (int)blockDim.x : i, j = own % n_each * N;
      at[turn] = own / n_each * (int)a.head_dim + (IS_INTERLEAVED ? 2 * j : j);
      pairs_load<T, N, IS_INTERLEAVED>(p[turn], x + at[turn], cosines + j, sines + j, half);
    }
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_ROPE_TURNS; turn++)
      if (i + turn * (int)blockDim.x < n_packs)
        pairs_turn<T, N, IS_INTERLEAVED>(p[turn], y + at[turn], half, at[turn] < a.heads * a.head_dim ? factor : 1.0f);
  }
  const int rest = (int)a.head_dim - 2 * half, n_heads = (int)(a.heads + a.n_kv_heads);
  for (int i = (int)threadIdx.x; i < n_heads * rest && x != y; i += (int)blockDim.x) {
    const int at = i / rest * (int)a.head_dim + 2 * half + i % rest;
    y[at] = x[at];
  }
  for (int64_t i = (int64_t)n_heads * a.head_dim + threadIdx.x * N; i < row_elements && x != y; i += blockDim.x * N)
    pack_store(y + i, pack_load<T, N>(x + i));
}

template <class T> static __device__ void rope_of(const struct lade_rope_args &a, const struct lade_step *step)
{
  const bool is_whole = half_get(a) % LADE_PACK(T) == 0 && a.head_dim % LADE_PACK(T) == 0;
  if (is_whole && a.is_interleaved)
    row_turn<T, LADE_PACK(T), true>(a);
  else if (is_whole)
    row_turn<T, LADE_PACK(T), false>(a);
  else if (a.is_interleaved)
    row_turn<T, 1, true>(a);
  else
    row_turn<T, 1, false>(a);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(rope, lade_rope_args, 3)
