/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of both attentions by tensor cores, on the scores of a warp's rows: masks, dropout, and online softmax
 * over 16 M queries. Scores are c of mma.h's products, by either instruction.
 */
#ifndef LADE_CUDA_ATTENTION_ROWS_H
#define LADE_CUDA_ATTENTION_ROWS_H

#include "kernels/cuda/attention/attention_shape.h"
#include "kernels/cuda/mma.h"

#define LOWEST -1e30f /* times log2 e it is finite, and below every score */

static __device__ inline int warp_get(void)
{
  return (int)threadIdx.x / 32;
}

/* Return the sum over the four lanes that hold a row. */
static __device__ inline float row_sum(float value)
{
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

static __device__ inline float row_max(float value)
{
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/*
 * Set scores of pairs that the diagonal excludes to @value: -inf, or for probabilities 0. Keys are c's columns, or its
 * rows if KEYS_ARE_ROWS; @past is how far its first key is past its first query. The compiler keeps values that it
 * derives from @lane in registers for a whole loop. A caller without registers for them reads the lane at each tile.
 */
template <bool KEYS_ARE_ROWS, int M, int N>
static __device__ inline void scores_mask(float (&c)[M][N][4], int past, float value = -INFINITY,
                                          int lane = lane_get())
{
  if (past + (KEYS_ARE_ROWS ? 16 * M : 8 * N) <= 1)
    return; /* all keys are before all queries */
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int ahead = 8 * n + 2 * (lane % 4) + e % 2 - (16 * m + lane / 4 + 8 * (e / 2)); /* column less row */
        if (past + (KEYS_ARE_ROWS ? -ahead : ahead) > 0)
          c[m][n][e] = value;
      }
}

/*
 * Set scores of keys before the first one that a query sees to @value. The warp's rows begin with @row and c's columns
 * with @column.
 */
template <bool KEYS_ARE_ROWS, int M, int N>
static __device__ inline void scores_hide(const struct block_shape &s, float (&c)[M][N][4], int row, int column)
{
  int last = (KEYS_ARE_ROWS ? column + 8 * N : row + 16 * M) - 1;
  last = last < s.seq_len ? last : (int)s.seq_len - 1;
  if (first_key_at(s, last) <= (KEYS_ARE_ROWS ? row : column))
    return; /* all queries see all keys */
#pragma unroll
  for (int at = 0; at < M * N * 4; at++) {
    const int m = at / 4 / N, n = at / 4 % N, e = at % 4;
    const int r = row + fragment_row(m, e), k = column + fragment_column(n, e);
    const int query = KEYS_ARE_ROWS ? k : r, key = KEYS_ARE_ROWS ? r : k;
    if (query < s.seq_len && key < first_key_at(s, query))
      c[m][n][e] = -INFINITY;
  }
}

/*
 * Turn products into scaled scores with ALiBi's term, if there is ALiBi. The warp's rows begin with @row and c's
 * columns with @column.
 */
template <bool KEYS_ARE_ROWS, int M, int N>
static __device__ inline void alibi_add(float (&c)[M][N][4], float scale, const struct head_alibi &alibi, int row,
                                        int column)
{
  if (alibi.slope == 0)
    return;
#pragma unroll
  for (int at = 0; at < M * N * 4; at++) {
    const int r = row + fragment_row(at / 4 / N, at % 4), k = column + fragment_column(at / 4 % N, at % 4);
    float &score = c[at / 4 / N][at / 4 % N][at % 4];
    score = fmaf(score, scale, KEYS_ARE_ROWS ? alibi_term(alibi, k, r) : alibi_term(alibi, r, k));
  }
}

/* Turn products into capped scores, if there is a cap: c tanh(scale q k^T / c). */
template <int M, int N>
static __device__ inline void scores_cap(float (&c)[M][N][4], float scale, float softcap)
{
  if (softcap == 0)
    return;
  const float factor = 2 * LOG2_E * scale / softcap;
#pragma unroll
  for (int at = 0; at < M * N * 4; at++) {
    float &score = c[at / 4 / N][at / 4 % N][at % 4];
    score = softcap * (1 - 2 * ptx_reciprocal(1 + ptx_exp2(score * factor)));
  }
}

/* A soft cap's slope: 1 - (score / cap)^2 of a capped score. */
struct score_cap {
  float inverse; /* 0: none */
};

static __device__ inline float cap_slope_get(const struct score_cap &cap, float score)
{
  const float t = cap.inverse > 0 ? fmaxf(-1.0f, score * cap.inverse) : 0.0f; /* hidden scores are -inf */
  return fmaf(-t, t, 1.0f);
}

/* Return four bits: the elements from @i on, a multiple of 4, that dropout keeps. */
static __device__ inline uint32_t draw_kept(const struct lade_step *step, const struct lade_drop &drop, int64_t i)
{
  const struct lade_philox draw =
      lade_philox_draw(step->seed, step->step, drop.stream, (drop.first_element + (uint64_t)i) / 4);
  uint32_t kept = 0;
#pragma unroll
  for (int k = 0; k < 4; k++)
    kept |= (uint32_t)(draw.word[k] >= drop.drop_below) << k;
  return kept;
}

/*
 * Return the bits of this lane's four elements of the 16 x 8 part of c from @row and @column on, where its rows of keys
 * begin draws: all words of a draw are used. A draw is four keys of a query. Where keys are columns, two lanes hold
 * them: one makes the upper row's draw, the other the lower row's. Where keys are rows, four lanes hold them, and each
 * makes the draw of one of its elements. Then the lanes exchange bits.
 */
template <bool KEYS_ARE_ROWS>
static __device__ inline uint32_t part_kept(const struct block_shape &s, const struct lade_step *step,
                                            const struct lade_drop &drop, int64_t h, int row, int column)
{
  const int g = lane_get() / 4, t = lane_get() % 4, turn = KEYS_ARE_ROWS ? g % 4 : t % 2;
  if (KEYS_ARE_ROWS) {
    const int64_t i = draw_at(s, h, column + 2 * t + turn % 2, row + turn / 2 * 8 + g / 4 * 4);
    uint32_t all = draw_kept(step, drop, i) << 4 * turn;
    all |= __shfl_xor_sync(0xffffffffu, all, 4);
    all |= __shfl_xor_sync(0xffffffffu, all, 8);
    all = all >> turn & 0x1111;
    return (all | all >> 3 | all >> 6 | all >> 9) & 15;
  }
  const uint32_t own = draw_kept(step, drop, draw_at(s, h, row + g + 8 * turn, column + t / 2 * 4));
  const uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
  return ((turn ? other : own) >> 2 * turn & 3) | ((turn ? own : other) >> 2 * turn & 3) << 2;
}

/*
 * Return the elements of c that dropout keeps: bit (m N + n) 4 + e. Loops, because a draw has many instructions. Rows
 * of keys may not begin draws, because 4 does not divide their length or their first element. Such rows have a draw for
 * each element, and one for two neighbours. A whole warp.
 */
template <bool KEYS_ARE_ROWS, int M, int N>
static __device__ inline uint64_t kept_get(const struct block_shape &s, const struct lade_step *step,
                                           const struct lade_drop &drop, int64_t h, int row, int column)
{
  static_assert(M * N * 4 <= 64, "a bit for each");
  uint64_t kept = 0;
  constexpr int EACH = KEYS_ARE_ROWS ? 1 : 2;
  if (((uint64_t)s.seq_len | drop.first_element) % 4 == 0) {
#pragma unroll 1
    for (int at = 0; at < M * N; at++)
      kept |= (uint64_t)part_kept<KEYS_ARE_ROWS>(s, step, drop, h, row + at / N * 16, column + at % N * 8) << 4 * at;
    return kept;
  }
#pragma unroll 1
  for (int at = 0; at < M * N * 4; at += EACH) {
    const int r = row + fragment_row(at / 4 / N, at % 4), c = column + fragment_column(at / 4 % N, at % 4);
    uint32_t words[EACH];
    drop_words(words, step, drop, KEYS_ARE_ROWS ? draw_at(s, h, c, r) : draw_at(s, h, r, c));
#pragma unroll
    for (int j = 0; j < EACH; j++)
      kept |= (uint64_t)(words[j] >= drop.drop_below) << (at + j);
  }
  return kept;
}

/* Multiply kept values by @z; set the others to zero. */
template <int M, int N> static __device__ inline void drop_apply(float (&c)[M][N][4], uint64_t kept, float z)
{
#pragma unroll
  for (int at = 0; at < M * N * 4; at++) {
    float &value = c[at / 4 / N][at / 4 % N][at % 4];
    value = kept >> at & 1 ? value * z : 0.0f;
  }
}

/*
 * Store a warp's sums unrounded, as rows from @first on of a part of dk and dv in the workspace, @pitch apart. Four
 * lanes fill a sector of 32 bytes.
 */
template <int W, int M>
static __device__ inline void part_put(const float (&sums)[M][W / 8][4], float *to, int pitch, int first,
                                       int64_t n_rows)
{
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    const int row = first + fragment_row(i / 2, i % 2 * 2);
    float *const at = to + (int64_t)row * pitch + fragment_column(0, 0);
    if (row >= (int)n_rows)
      continue;
#pragma unroll
    for (int n = 0; n < W / 8; n++)
      *(pack<float, 2> *)(at + 8 * n) = {{sums[i / 2][n][i % 2 * 2], sums[i / 2][n][i % 2 * 2 + 1]}};
  }
}

static __device__ inline float drop_scale(const struct lade_drop &drop)
{
  return drop.drop_below ? drop.scale : 1.0f;
}

/* ---- queries ---- */

/* A warp's queries in progress: the state of online softmax for each, this lane's share of sums, and values so far. */
template <int D, int M> struct queries {
  float max[M][2], sum[M][2], out[M][D / 8][4];
};

template <int D, int M> static __device__ inline void queries_begin(struct queries<D, M> &q)
{
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    q.max[i / 2][i % 2] = -INFINITY;
    q.sum[i / 2][i % 2] = 0;
  }
#pragma unroll
  for (int at = 0; at < M * D / 2; at++)
    q.out[at / 4 / (D / 8)][at / 4 % (D / 8)][at % 4] = 0;
}

/*
 * Begin with a sink: a key with this logit, in units of scores, and the value zero. Without one, the lowest finite
 * maximum: a query may see none of a tile's keys, and the difference of two infinities is no number.
 */
template <int D, int M> static __device__ inline void queries_sink(struct queries<D, M> &q, bool has_sink, float sink)
{
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    q.max[i / 2][i % 2] = has_sink ? sink : LOWEST;
    q.sum[i / 2][i % 2] = has_sink && lane_get() % 4 == 0 ? 1.0f : 0.0f; /* four lanes share a row's sum */
  }
}

/*
 * Turn scores into probabilities; maxima and sums grow. Earlier sums of values are to be scaled to the new maxima by
 * @corrections. False if all corrections of the warp are 1, so that no scaling is needed.
 */
template <int D, int M, int N>
static __device__ inline bool queries_meet(struct queries<D, M> &q, float (&scores)[M][N][4], float factor,
                                           float (&corrections)[M][2])
{
  bool has_grown = false;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float max = q.max[m][half];
#pragma unroll
      for (int n = 0; n < N; n++)
        max = fmaxf(max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      max = row_max(max);
      corrections[m][half] = ptx_exp2((q.max[m][half] - max) * factor);
      has_grown |= max > q.max[m][half];
      q.max[m][half] = max;
      q.sum[m][half] *= corrections[m][half];
#pragma unroll
      for (int at = 0; at < 2 * N; at++) {
        float &score = scores[m][at / 2][2 * half + at % 2];
        score = ptx_exp2(fmaf(score, factor, -max * factor));
        q.sum[m][half] += score;
      }
    }
  return __ballot_sync(0xffffffffu, has_grown);
}

template <int D, int M>
static __device__ inline void queries_correct(struct queries<D, M> &q, const float (&corrections)[M][2])
{
#pragma unroll
  for (int at = 0; at < M * D / 2; at++)
    q.out[at / 4 / (D / 8)][at / 4 % (D / 8)][at % 4] *= corrections[at / 4 / (D / 8)][at % 4 / 2];
}

/*
 * Finish a warp's queries, those from @first on: write lse and values to the tensors of @a, values through @room, 16 M
 * rows of shared memory that only this warp uses by now.
 */
template <int D, int M, class T>
static __device__ inline void queries_put(const struct queries<D, M> &q, const struct block_shape &s,
                                          const struct lade_attention_fwd_args &a, int first, T *room)
{
  float factors[M][2];
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    int at = first + fragment_row(i / 2, i % 2 * 2);
    float sum = row_sum(q.sum[i / 2][i % 2]);
    factors[i / 2][i % 2] = drop_scale(a.drop) / sum;
    if (lane_get() % 4 == 0 && at < s.seq_len)
      ((float *)a.lse)[query_at(s, s.h, at)] = q.max[i / 2][i % 2] * s.scale + logf(sum);
  }
  sums_put<LADE_CUDA_MMA_PITCH(D), D>(q.out, factors, room, (T *)a.out + out_at(s, s.h, 0), s.heads * D, first,
                                      s.seq_len);
}

/* ---- kernels by size of head and type ---- */

/* THREADS: of a block; BLOCKS: those of them for which a multiprocessor must have registers. */
#define KERNEL_SIZED(name, D, suffix, T, args_type, THREADS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
    name##_##D##_##suffix(const __grid_constant__ struct args_type a, const struct lade_step *step) \
  { \
    name<T, D>(a, step); \
  } \
  LADE_CUDA_EXPORT(name##_##D##_##suffix, args_type)
#define KERNEL(name, D, suffix, T, args_type) KERNEL_SIZED(name, D, suffix, T, args_type, LADE_CUDA_THREADS, 1)
#define KERNELS(name, args_type) \
  KERNEL(name, 64, bf16, bf16, args_type) \
  KERNEL(name, 64, f16, f16, args_type) \
  KERNEL(name, 128, bf16, bf16, args_type) \
  KERNEL(name, 128, f16, f16, args_type)

#endif
