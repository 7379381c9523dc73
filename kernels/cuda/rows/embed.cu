/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token and position embedding, and the gradients of both tables.
 *
 * The token table's gradient is a scatter with collisions. Rows are first put in the order of their tokens, rows of one
 * token in their own order (embed_sort). A row's place is the number of rows before it, which a warp counts over all
 * tokens, 32 at a time. That is n^2/32 steps of a warp and no atomics; for the 16,384 rows of a large microbatch as
 * much work as reading the table once. Then a run of rows is a token's complete sum (embed_tokens).
 *
 * Moves 2 n d elements forward; backward n d elements twice for both tables, and V d F32 numbers where rows of absent
 * tokens must become 0. Bound: memory; a token with many rows bounds it by their additions in order. A thread has a
 * pack of 16 bytes of a row, or one element if packs would not be aligned.
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

/* Write order[place] = row in the workspace. A warp has a row. */
LADE_KERNEL(embed_sort, lade_embed_bwd_args)
{
  int64_t n = a.batch * a.seq_len, row = thread_get() / 32, place = 0;
  int lane = (int)threadIdx.x % 32;
  if (row >= n)
    return;
  int32_t token = a.tokens[row];
  for (int64_t first = 0; first < n; first += 32) {
    int64_t other = first + lane;
    int32_t its = other < n ? a.tokens[other] : INT32_MAX;
    bool is_before = its < token || (its == token && other < row);
    place += __popc(__ballot_sync(0xffffffffu, other < n && is_before));
  }
  if (lane == 0)
    ((int32_t *)a.workspace)[place] = (int32_t)row;
}
LADE_CUDA_EXPORT(embed_sort, lade_embed_bwd_args)

/* Write zeros where a token may be absent: the token table unless it accumulates. */
LADE_KERNEL(embed_clear, lade_embed_bwd_args)
{
  for (int64_t i = thread_get(); i < a.vocabulary * a.d; i += n_threads_get())
    ((float *)a.d_token_table)[i] = 0;
}
LADE_CUDA_EXPORT(embed_clear, lade_embed_bwd_args)

/* A block has some columns of the token whose run begins at its place; there are as many places as rows. */
template <class T, int N>
static __device__ void embed_run(const struct lade_embed_bwd_args &a)
{
  const int32_t *order = (const int32_t *)a.workspace;
  int64_t n = a.batch * a.seq_len, first = blockIdx.x, j = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
  int32_t token = a.tokens[order[first]];
  int64_t table_row = token - a.first_token;
  if ((a.has_pad && token == a.pad_token) || (first > 0 && a.tokens[order[first - 1]] == token) || j >= a.d ||
      table_row < 0 || table_row >= a.vocabulary)
    return;
  float sums[N] = {};
  for (int64_t place = first; place < n && a.tokens[order[place]] == token; place++) {
    const pack<T, N> p = pack_load<T, N>((const T *)a.dx + order[place] * a.d + j);
#pragma unroll
    for (int i = 0; i < N; i++)
      sums[i] += get(p.x[i]);
  }
  const float scale = a.scale != 0 ? a.scale : 1.0f;
  constexpr int M = N % 4 ? 1 : 4; /* numbers of the table's in 16 bytes */
  float *to = (float *)a.d_token_table + table_row * a.d + j;
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

template <class T>
static __device__ void embed_tokens_of(const struct lade_embed_bwd_args &a, const struct lade_step *step)
{
  if (a.d % LADE_PACK(T) == 0)
    embed_run<T, LADE_PACK(T)>(a);
  else
    embed_run<T, 1>(a);
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
