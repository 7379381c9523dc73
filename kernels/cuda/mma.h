/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of 16-bit rows in shared memory, and products of them by tensor cores, over the instructions of ptx.h.
 *
 * A tile has rows of D elements, 64, 128 or 256, of which the first USED are in use. Its 16-byte chunks are permuted
 * within a row, by the row's number. So the eight rows of a matrix, which one load takes, lie in different banks; so do
 * the rows of a written fragment. A warp holds c of some products as c[m][n][4]: rows 16 m.. and columns 8 n.. of its
 * own (ptx.h defines each lane's elements). M blocks of 16 rows use the same b, which is therefore loaded once for
 * them.
 */
#ifndef LADE_CUDA_MMA_H
#define LADE_CUDA_MMA_H

#include "kernels/cuda/kernel.h"

#define LADE_CUDA_CHUNK 8 /* elements, 16 bytes */

static __device__ inline void mma(bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  ptx_mma_bf16(c, a, b0, b1);
}

static __device__ inline void mma(f16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  ptx_mma_f16(c, a, b0, b1);
}

static __device__ inline int lane_get(void)
{
  return (int)threadIdx.x % 32;
}

/* Return the row, or column, of element @e of this lane's c[m][n], in c. */
static __device__ inline int fragment_row(int m, int e)
{
  return 16 * m + lane_get() / 4 + 8 * (e / 2);
}

static __device__ inline int fragment_column(int n, int e)
{
  return 8 * n + 2 * (lane_get() % 4) + e % 2;
}

/* ---- tiles ---- */

template <int D, class T> static __device__ inline T *chunk_at(T *tile, int row, int chunk)
{
  return tile + row * D + (chunk ^ (row & 7)) * LADE_CUDA_CHUNK;
}

/*
 * Return the first element that this thread copies of a tile, of the rows from @first on of a tensor whose rows are
 * @pitch elements apart. Callers of tile_copy_from move it on by rows, which needs no multiplication.
 */
template <int D, class T> static __device__ inline const T *tile_from(const T *from, int64_t pitch, int first)
{
  constexpr int CHUNKS = D / LADE_CUDA_CHUNK;
  return from + (first + (int)threadIdx.x / CHUNKS) * pitch + (int)threadIdx.x % CHUNKS * LADE_CUDA_CHUNK;
}

/*
 * Begin to copy USED elements each of ROWS rows from @first on of a tensor whose rows are @pitch elements apart; zeros
 * past its @n_rows. @from: of tile_from. All THREADS threads of the block. Rows begin at multiples of 16 bytes.
 */
template <int D, int ROWS, int THREADS, int USED = D, class T>
static __device__ inline void tile_copy_from(T *tile, const T *from, int64_t pitch, int first, int64_t n_rows)
{
  constexpr int CHUNKS = D / LADE_CUDA_CHUNK, TURN_ROWS = THREADS / CHUNKS;
  static_assert(ROWS % TURN_ROWS == 0, "whole turns");
  const int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
  T *const to = chunk_at<D>(tile, row, chunk);
  if (USED < D && chunk >= USED / LADE_CUDA_CHUNK)
    return;
#pragma unroll
  for (int turn = 0; turn < ROWS; turn += TURN_ROWS)
    ptx_copy_16(TURN_ROWS % 8 == 0 ? to + turn * D : chunk_at<D>(tile, row + turn, chunk), from + turn * pitch,
                first + row + turn < (int)n_rows);
}

/* Do the same for rows of @from, the tensor. */
template <int D, int ROWS, int THREADS, int USED = D, class T>
static __device__ inline void tile_copy(T *tile, const T *from, int64_t pitch, int first, int64_t n_rows)
{
  tile_copy_from<D, ROWS, THREADS, USED>(tile, tile_from<D>(from, pitch, first), pitch, first, n_rows);
}

/*
 * Store a warp's sums, each row times its factor, to rows from @first on of a tensor that has @n_rows. They pass
 * through 16 M rows of a tile at @room, which only this warp uses by now, so that whole rows are written.
 */
template <int D, int USED = D, int M, class T>
static __device__ inline void sums_put(const float (&sums)[M][USED / 8][4], const float (&factors)[M][2], T *room,
                                       T *to, int64_t pitch, int first, int64_t n_rows)
{
  constexpr int CHUNKS = D / LADE_CUDA_CHUNK;
  __syncwarp(); /* earlier contents have been read */
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < USED / 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint32_t bits = pair_make(T(), sums[m][n][2 * half] * factors[m][half],
                                  sums[m][n][2 * half + 1] * factors[m][half]);
        pack<T, 2> pair;
        memcpy(&pair, &bits, sizeof(pair));
        *(pack<T, 2> *)(chunk_at<D>(room, fragment_row(m, 2 * half), n) + fragment_column(0, 0)) = pair;
      }
  __syncwarp();
#pragma unroll
  for (int turn = 0; turn < 16 * M * CHUNKS / 32; turn++) {
    int n = turn * 32 + lane_get(), row = n / CHUNKS, chunk = n % CHUNKS;
    if (first + row < (int)n_rows && chunk < USED / LADE_CUDA_CHUNK)
      *(pack<T, LADE_CUDA_CHUNK> *)(to + (first + row) * pitch + chunk * LADE_CUDA_CHUNK) =
          *(const pack<T, LADE_CUDA_CHUNK> *)chunk_at<D>(room, row, chunk);
  }
}

/* ---- products ---- */

/* Compute c = X Y^T: the 16 M rows of a tile from @first on with the 8 N of the tile @y, by the columns of both. */
template <int D, int USED = D, int M, int N, class T>
static __device__ inline void rows_multiply(float (&c)[M][N][4], T *x, int first, T *y)
{
  const int lane = lane_get();
#pragma unroll
  for (int i = 0; i < M * N * 4; i++)
    c[i / 4 / N][i / 4 % N][i % 4] = 0;
#pragma unroll
  for (int k = 0; k < USED / 16; k++) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
      ptx_matrices_load(a[m], chunk_at<D>(x, first + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4]; /* both halves of k for eight columns, then for the next eight */
      ptx_matrices_load(b, chunk_at<D>(y, 8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma(T(), c[m][n], a[m], b[0], b[1]);
        mma(T(), c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/* Make one operand a from c of two products side by side, rounded to T. */
template <class T>
static __device__ inline void left_make(T, uint32_t (&a)[4], const float (&c0)[4], const float (&c1)[4])
{
#pragma unroll
  for (int i = 0; i < 2; i++) {
    a[i] = pair_make(T(), c0[2 * i], c0[2 * i + 1]);
    a[2 + i] = pair_make(T(), c1[2 * i], c1[2 * i + 1]);
  }
}

/*
 * Compute sums += W Y: weights that the warp holds as a product's c, rounded to T, with the 8 N rows of the tile @y.
 * Only the USED columns of @y from chunk @chunk on are taken.
 */
template <int D, int USED = D, int M, int N, class T>
static __device__ inline void rows_weigh(float (&sums)[M][USED / 8][4], const float (&weights)[M][N][4], T *y,
                                         int chunk = 0)
{
  const int lane = lane_get();
#pragma unroll
  for (int k = 0; k < N / 2; k++) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
      left_make(T(), a[m], weights[m][2 * k], weights[m][2 * k + 1]);
#pragma unroll
    for (int n = 0; n < USED / 8; n += 2) {
      uint32_t b[4];
      ptx_matrices_load_turned(b, chunk_at<D>(y, 16 * k + lane % 16, chunk + n + lane / 16));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma(T(), sums[m][n], a[m], b[0], b[1]);
        mma(T(), sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

#endif
