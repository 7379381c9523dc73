/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Column sums of a block of rows, for kernels that read a matrix and for those that make one.
 *
 * A block of threads has 32 packs of columns of one block of rows (phases.h). Each warp has every eighth of its rows, a
 * lane a pack of columns: the loads of a warp are 512 neighbouring bytes. A thread adds its rows in their order, and
 * the block then adds the warps in theirs. So blocks are many and short, and none is left to run alone at a grid's end.
 */
#ifndef LADE_CUDA_COLUMNS_H
#define LADE_CUDA_COLUMNS_H

#include "kernels/cuda/kernel.h"

#define COLUMN_WARPS (LADE_CUDA_THREADS / 32)

/* A thread's columns, from @column on, and its rows: @row, @row + COLUMN_WARPS, ... before @end. */
struct columns {
  int64_t column, row, end;
  bool has_columns;
};

template <int N> static __device__ inline struct columns columns_get(int64_t n_rows, int64_t n_columns)
{
  const int64_t rows = lade_cuda_row_block(n_rows), first = blockIdx.y * rows;
  struct columns c;
  c.column = ((int64_t)blockIdx.x * 32 + ptx_thread_get() % 32) * N;
  c.row = first + ptx_thread_get() / 32;
  c.end = first + rows < n_rows ? first + rows : n_rows;
  c.has_columns = c.column < n_columns;
  return c;
}

/* Store the block's column sums to its row of @partials, from the threads' @sums. @room: N floats for each thread. */
template <int N>
static __device__ inline void columns_put(const float (&sums)[N], float *room, float *partials, int64_t n_columns)
{
  constexpr int WIDTH = 32 * N;
#pragma unroll
  for (int j = 0; j < N; j++)
    room[ptx_thread_get() * N + j] = sums[j];
  __syncthreads();
  for (int at = ptx_thread_get(); at < WIDTH; at += LADE_CUDA_THREADS) {
    const int64_t column = (int64_t)blockIdx.x * WIDTH + at;
    float sum = room[at];
#pragma unroll
    for (int warp = 1; warp < COLUMN_WARPS; warp++)
      sum += room[warp * WIDTH + at];
    if (column < n_columns)
      partials[blockIdx.y * n_columns + column] = sum;
  }
}

#endif
