/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Column sums of x[m,n], a bias's gradient: partial sums per block of rows here, row_sums.cu adds the blocks.
 *
 * Moves m n elements. Bound: memory. A thread loads a pack of each of eight rows before it adds them.
 */
#include "kernels/cuda/reduce/columns.h"

#define ROWS 8 /* at a time */

template <class T, int N> static __device__ inline void columns_sum(const struct lade_column_sum_args &a, float *room)
{
  const struct columns c = columns_get<N>(a.m, a.n);
  float sums[N] = {};
#pragma unroll 1
  for (int64_t row = c.row; row < c.end && c.has_columns; row += ROWS * COLUMN_WARPS) {
    pack<T, N> x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t at = row + r * COLUMN_WARPS;
      x[r] = pack_load<T, N>((const T *)a.x + (at < c.end ? at : row) * a.n + c.column);
    }
#pragma unroll
    for (int at = 0; at < ROWS * N; at++)
      sums[at % N] += row + at / N * COLUMN_WARPS < c.end ? get(x[at / N].x[at % N]) : 0.0f;
  }
  columns_put(sums, room, (float *)a.workspace, a.n);
}

template <class T>
static __device__ void column_sum_of(const struct lade_column_sum_args &a, const struct lade_step *step)
{
  LADE_SHARED(float, room);
  if (a.n % LADE_PACK(T) == 0)
    columns_sum<T, LADE_PACK(T)>(a, room);
  else
    columns_sum<T, 1>(a, room);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(column_sum, lade_column_sum_args, 3)
