/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product in three layouts: the twin that runs on every GPU and is easy to verify, for products without
 * cuBLASLt. A block of 256 threads has a tile of 64 x 64 of c. It brings slabs of 32 columns of op(a) and rows of op(b)
 * to shared memory as F32. A thread has 4 x 4 of the tile in registers. Each element sums k in rising order, fused.
 *
 * Moves (m k n/64 + n k m/64) elements out of L2 and m n once. Bound: F32 arithmetic without tensor cores, 2 m n k
 * operations; 8 loads from shared memory for 16 multiply-adds stay below its limit. GELU of a sum takes it before it is
 * rounded.
 */
#include "kernels/cuda/element/gelu.h"

#define TILE LADE_CUDA_TILE
#define SLAB LADE_CUDA_SLAB
#define PART 4                       /* of the tile for one thread, each way */
#define STRIDE LADE_CUDA_SLAB_STRIDE /* of a slab's rows: transposed stores use different banks */
#define SIDE (TILE / PART)           /* threads along an edge of the tile */

/* Return op(a)[row, p] and op(b)[p, column], 0 outside. */
template <class T> static __device__ float a_get(const struct lade_matmul_args &args, int64_t row, int64_t p)
{
  if (row >= args.m || p >= args.k)
    return 0;
  return get(((const T *)args.a)[args.layout == LADE_TN ? p * args.m + row : row * args.k + p]);
}

template <class T> static __device__ float b_get(const struct lade_matmul_args &args, int64_t p, int64_t column)
{
  if (column >= args.n || p >= args.k)
    return 0;
  return get(((const T *)args.b)[args.layout == LADE_NT ? column * args.k + p : p * args.n + column]);
}

/* Neighbouring threads read neighbours in memory: along k if the operand's rows run along k, else across. */
template <class T>
static __device__ void slab_load(const struct lade_matmul_args &args, int64_t row, int64_t column, int64_t k, float *a,
                                 float *b)
{
  for (int i = (int)threadIdx.x; i < TILE * SLAB; i += LADE_CUDA_THREADS) {
    bool is_tn = args.layout == LADE_TN, is_nt = args.layout == LADE_NT;
    int a_row = is_tn ? i % TILE : i / SLAB, a_p = is_tn ? i / TILE : i % SLAB;
    int b_column = is_nt ? i / SLAB : i % TILE, b_p = is_nt ? i % SLAB : i / TILE;
    a[a_p * STRIDE + a_row] = a_get<T>(args, row + a_row, k + a_p);
    b[b_p * STRIDE + b_column] = b_get<T>(args, k + b_p, column + b_column);
  }
}

template <class T>
static __device__ void element_finish(const struct lade_matmul_args &args, int64_t row, int64_t column, float sum)
{
  int64_t i = row * args.n + column;
  if (row >= args.m || column >= args.n)
    return;
  if (args.accumulate)
    sum += ((const float *)args.c)[i];
  else if (args.bias)
    sum += get_any(args.dtype, args.bias, column);
  put_any(args.out, args.c, i, sum);
  if (sizeof(T) == 2 && args.gelu_y) /* in F32 GELU is a kernel of its own, over c */
    put((T *)args.gelu_y + i, gelu<T>(sum));
}

template <class T> static __device__ void matmul_of(const struct lade_matmul_args &args, const struct lade_step *step)
{
  LADE_SHARED(float, a);
  float *b = a + SLAB * STRIDE, sum[PART][PART] = {};
  int64_t n_across = (args.n + TILE - 1) / TILE;
  int64_t row = blockIdx.x / n_across * TILE, column = blockIdx.x % n_across * TILE;
  int i0 = (int)threadIdx.x / SIDE, j0 = (int)threadIdx.x % SIDE; /* this thread's are i0, i0 + SIDE, ... */
  for (int64_t k = 0; k < args.k; k += SLAB) {
    slab_load<T>(args, row, column, k, a, b);
    __syncthreads();
    for (int p = 0; p < SLAB && k + p < args.k; p++)
#pragma unroll
      for (int i = 0; i < PART; i++)
#pragma unroll
        for (int j = 0; j < PART; j++)
          sum[i][j] = fmaf(a[p * STRIDE + i0 + i * SIDE], b[p * STRIDE + j0 + j * SIDE], sum[i][j]);
    __syncthreads();
  }
#pragma unroll /* all of them: sums whose index is known stay in registers */
  for (int i = 0; i < PART; i++)
#pragma unroll
    for (int j = 0; j < PART; j++)
      element_finish<T>(args, row + i0 + i * SIDE, column + j0 + j * SIDE, sum[i][j]);
}
LADE_KERNEL_OF_DTYPES(matmul, lade_matmul_args)
