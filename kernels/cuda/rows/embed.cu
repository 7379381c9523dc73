/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token and position embedding, and the gradients of both tables.
 *
 * The token table's gradient is a scatter with collisions. Rows are first put in the order of their tokens, rows of
 * one token in their own order (embed_sort). A row's place is the number of rows before it, which a warp counts over
 * all tokens, 32 at a time. That is n^2/32 steps of a warp and no atomics; for the 16,384 rows of a large microbatch
 * as much work as reading the table once. Then a run of rows is a token's complete sum. embed_tokens sums pieces of at
 * most PIECE rows of it; embed_join adds the pieces of longer runs in their order. So the token of all n rows takes
 * PIECE additions in turn, in n / PIECE blocks, and then n / PIECE additions in one block. One block alone would make
 * n in turn. The cut into pieces depends on the counts of rows alone.
 *
 * Moves 2 n d elements forward; backward n d elements twice for both tables, 2 / PIECE of n d in F32 for pieces, and V
 * d F32 numbers where rows of absent tokens must become 0. Bound: memory. A thread has a pack of 16 bytes of a row, or
 * one element if packs would not be aligned.
 */
#include "kernels/cuda/kernel.h"

/* Compute x = scale * from + position, each of which may be NULL for zeros. */
template <class T, int N>
static __device__ void embed_row(T *x, const T *from, const T *position, float scale, int64_t d)
{
  for (int64_t j = (int64_t)threadIdx.x * N; j < d; j += (int64_t)blockDim.x * N) {
    pack<T, N> p = {}, q = {};
    float numbers[N];
    if (from)
      p = pack_load<T, N>(from + j);
    if (position)
      q = pack_load<T, N>(position + j);
#pragma unroll
    for (int i = 0; i < N; i++)
      numbers[i] = position ? scale * get(p.x[i]) + get(q.x[i]) : scale * get(p.x[i]);
    pack_put(p, numbers);
    pack_store(x + j, p);
  }
}

template <class T>
static __device__ void embed_fwd_of(const struct lade_embed_fwd_args &a, const struct lade_step *step)
{
  int64_t row = blockIdx.x;
  int64_t token = a.tokens[row] - a.first_token;
  const T *from = token >= 0 && token < a.vocabulary ? (const T *)a.token_table + token * a.d : NULL;
  const T *before = from || !a.before ? NULL : (const T *)a.before + row * a.d;
  const T *position = a.position_table && !before ? (const T *)a.position_table + row % a.seq_len * a.d : NULL;
  const float scale = a.scale != 0 && !before ? a.scale : 1.0f;
  from = before ? before : from;
  if (a.d % LADE_PACK(T) == 0)
    embed_row<T, LADE_PACK(T)>((T *)a.x + row * a.d, from, position, scale, a.d);
  else
    embed_row<T, 1>((T *)a.x + row * a.d, from, position, scale, a.d);
}
LADE_KERNEL_OF_DTYPES(embed_fwd, lade_embed_fwd_args)

/* The workspace: a place for each row in the order of tokens, and after them the sums of pieces, d numbers each. */
struct embed_order {
  int32_t *rows;   /* the row that is at a place */
  int32_t *ranks;  /* its number within the run of its token */
  int32_t *counts; /* the rows of that run */
  float *pieces;
};

static __device__ inline struct embed_order order_get(const struct lade_embed_bwd_args &a)
{
  const int64_t n = a.batch * a.seq_len;
  int32_t *const rows = (int32_t *)a.workspace;
  return (struct embed_order){rows, rows + n, rows + 2 * n, (float *)rows + (3 * n + 3) / 4 * 4};
}

/* Write the order. A warp has a row. */
LADE_KERNEL(embed_sort, lade_embed_bwd_args)
{
  const struct embed_order order = order_get(a);
  int64_t n = a.batch * a.seq_len, row = thread_get() / 32, n_less = 0, rank = 0, count = 0;
  int lane = (int)threadIdx.x % 32;
  if (row >= n)
    return;
  int32_t token = a.tokens[row];
  for (int64_t first = 0; first < n; first += 32) {
    int64_t other = first + lane;
    int32_t its = other < n ? a.tokens[other] : INT32_MAX;
    const unsigned equal = __ballot_sync(0xffffffffu, other < n && its == token);
    n_less += __popc(__ballot_sync(0xffffffffu, other < n && its < token));
    count += __popc(equal);
    rank += first + 32 <= row ? __popc(equal) : first <= row ? __popc(equal & ((1u << (row - first)) - 1)) : 0;
  }
  if (lane == 0) {
    order.rows[n_less + rank] = (int32_t)row;
    order.ranks[n_less + rank] = (int32_t)rank;
    order.counts[n_less + rank] = (int32_t)count;
  }
}
LADE_CUDA_EXPORT(embed_sort, lade_embed_bwd_args)

/* Write zeros where a token may be absent: the token table unless it accumulates. */
LADE_KERNEL(embed_clear, lade_embed_bwd_args)
{
  for (int64_t i = thread_get(); i < a.vocabulary * a.d; i += n_threads_get())
    ((float *)a.d_token_table)[i] = 0;
}
LADE_CUDA_EXPORT(embed_clear, lade_embed_bwd_args)

/* Return the row of this token's sum in the table, or -1: it belongs to padding or to another part of the table. */
static __device__ inline int64_t table_row_get(const struct lade_embed_bwd_args &a, int32_t token)
{
  const int64_t row = token - a.first_token;
  return (a.has_pad && token == a.pad_token) || row < 0 || row >= a.vocabulary ? -1 : row;
}

/* Set the table's elements at @to (+)= the token's complete sums. */
template <int N>
static __device__ inline void token_put(const struct lade_embed_bwd_args &a, const float (&sums)[N], float *to)
{
  const float scale = a.scale != 0 ? a.scale : 1.0f;
  constexpr int M = N % 4 ? 1 : 4; /* numbers of the table's in 16 bytes */
#pragma unroll
  for (int i = 0; i < N; i += M) {
    pack<float, M> p = {};
    if (a.accumulate_token)
      p = pack_load<float, M>(to + i);
#pragma unroll
    for (int k = 0; k < M; k++)
      p.x[k] = a.accumulate_token ? p.x[k] + scale * sums[i + k] : scale * sums[i + k];
    pack_store(to + i, p);
  }
}

/*
 * Return the number of the piece that begins at @place, in a run of several pieces. Numbers are distinct, because a
 * run's pieces are PIECE places apart and a first piece is followed by PIECE places of its own run.
 */
static __device__ inline int64_t piece_at(int64_t place, bool is_first)
{
  return 2 * (place / LADE_CUDA_EMBED_PIECE) + is_first;
}

#define ROWS_AT_ONCE 4 /* loads that a thread has in flight */

/* A block has some columns of the piece that begins at its place, if one does; there are as many places as rows. */
template <class T, int N>
static __device__ void embed_piece(const struct lade_embed_bwd_args &a)
{
  const struct embed_order order = order_get(a);
  const int64_t first = blockIdx.x, j = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
  const int rank = order.ranks[first], count = order.counts[first];
  if (rank % LADE_CUDA_EMBED_PIECE != 0 || j >= a.d)
    return;
  const int64_t table_row = table_row_get(a, a.tokens[order.rows[first]]);
  if (table_row < 0)
    return;
  const int n = count - rank < LADE_CUDA_EMBED_PIECE ? count - rank : LADE_CUDA_EMBED_PIECE;
  float sums[N] = {};
  for (int i = 0; i < n; i += ROWS_AT_ONCE) {
    pack<T, N> p[ROWS_AT_ONCE];
    int64_t rows[ROWS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++)
      rows[k] = order.rows[first + (i + k < n ? i + k : i)];
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++)
      p[k] = pack_load<T, N>((const T *)a.dx + rows[k] * a.d + j);
#pragma unroll
    for (int k = 0; k < ROWS_AT_ONCE; k++)
#pragma unroll
      for (int e = 0; e < N; e++)
        sums[e] += i + k < n ? get(p[k].x[e]) : 0.0f;
  }
  if (count <= LADE_CUDA_EMBED_PIECE)
    token_put(a, sums, (float *)a.d_token_table + table_row * a.d + j);
  else
    numbers_put(order.pieces + piece_at(first, rank == 0) * a.d + j, sums);
}

/*
 * Add the pieces of a run in their order. A block has some columns of the run at its place, a multiple of PIECE: every
 * run of several pieces has such a place, and its first one joins them.
 */
template <int N>
static __device__ void embed_join_of(const struct lade_embed_bwd_args &a)
{
  const struct embed_order order = order_get(a);
  const int64_t place = (int64_t)blockIdx.x * LADE_CUDA_EMBED_PIECE;
  const int64_t j = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
  const int rank = order.ranks[place], count = order.counts[place];
  if (rank >= LADE_CUDA_EMBED_PIECE || count <= LADE_CUDA_EMBED_PIECE || j >= a.d)
    return;
  const int64_t table_row = table_row_get(a, a.tokens[order.rows[place]]), first = place - rank;
  if (table_row < 0)
    return;
  float sums[N] = {};
#pragma unroll 4
  for (int at = 0; at < count; at += LADE_CUDA_EMBED_PIECE) {
    const pack<float, N> p = pack_load<float, N>(order.pieces + piece_at(first + at, at == 0) * a.d + j);
#pragma unroll
    for (int e = 0; e < N; e++)
      sums[e] += p.x[e];
  }
  token_put(a, sums, (float *)a.d_token_table + table_row * a.d + j);
}

LADE_KERNEL(embed_join, lade_embed_bwd_args)
{
  if (a.d % 4 == 0)
    embed_join_of<4>(a);
  else
    embed_join_of<1>(a);
}
LADE_CUDA_EXPORT(embed_join, lade_embed_bwd_args)

template <class T>
static __device__ void embed_tokens_of(const struct lade_embed_bwd_args &a, const struct lade_step *step)
{
  if (a.d % LADE_PACK(T) == 0)
    embed_piece<T, LADE_PACK(T)>(a);
  else
    embed_piece<T, 1>(a);
}
LADE_KERNEL_OF_DTYPES(embed_tokens, lade_embed_bwd_args)

/* A block has some columns of a position: the sum over the sequences of the batch in their order. */
template <class T>
static __device__ void embed_positions_of(const struct lade_embed_bwd_args &a, const struct lade_step *step)
{
  int64_t t = blockIdx.x, j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
  if (j >= a.d || (t >= a.seq_len && a.accumulate_position))
    return;
  float sum = 0;
  for (int64_t b = 0; b < a.batch && t < a.seq_len; b++)
    sum += get(((const T *)a.dx)[(b * a.seq_len + t) * a.d + j]);
  float *to = (float *)a.d_position_table + t * a.d + j;
  *to = a.accumulate_position ? *to + sum : sum;
}
LADE_KERNEL_OF_DTYPES(embed_positions, lade_embed_bwd_args)
