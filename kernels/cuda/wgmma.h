/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of 16-bit rows in shared memory for products by warpgroups, over the instructions of ptx_90a.h.
 *
 * A tile of rows of D elements, 64 or 128, is D / 64 panels, one after the other: all its rows, 64 elements of each. A
 * panel's rows are 128 bytes, swizzled as the instructions require, which is the layout of mma.h's tile_copy for D =
 * 64. A tile begins at a multiple of 1024 bytes. So it is upright for products over D, and turned for those over its
 * rows.
 */
#ifndef LADE_CUDA_WGMMA_H
#define LADE_CUDA_WGMMA_H

#include "kernels/cuda/mma.h"

#define LADE_CUDA_PANEL 64 /* columns: 128 bytes */

/*
 * Return this thread's warpgroup in the block. A whole warp. The shuffle makes the number one that the compiler knows
 * to be equal in a warp. So descriptors that depend on it are in uniform registers, and not in two registers of each
 * thread.
 */
static __device__ inline int warpgroup_get(void)
{
  return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}

/* Return the first aligned place for a tile from @room on, less than LADE_CUDA_WGMMA_ALIGN bytes after it. */
template <class T> static __device__ inline T *tiles_begin(T *room)
{
  return room + (-ptx_shared(room) & (LADE_CUDA_WGMMA_ALIGN - 1)) / sizeof(T);
}

/* Copy as mma.h's tile_copy_from, into panels; @from is of panels_from. */
template <int D, int ROWS, int THREADS, class T>
static __device__ inline void panels_copy_from(T *tile, const T *from, int64_t pitch, int first, int64_t n_rows)
{
#pragma unroll
  for (int c = 0; c < D; c += LADE_CUDA_PANEL)
    tile_copy_from<LADE_CUDA_PANEL, ROWS, THREADS>(tile + c * ROWS, from + c, pitch, first, n_rows);
}

template <class T> static __device__ inline const T *panels_from(const T *from, int64_t pitch, int first)
{
  return tile_from<LADE_CUDA_PANEL>(from, pitch, first);
}

/* Copy as mma.h's tile_copy, into panels. */
template <int D, int ROWS, int THREADS, class T>
static __device__ inline void panels_copy(T *tile, const T *from, int64_t pitch, int first, int64_t n_rows)
{
  panels_copy_from<D, ROWS, THREADS>(tile, panels_from(from, pitch, first), pitch, first, n_rows);
}

/*
 * Wait for all copies of the block into its tiles. After it, products may read them, and no thread uses the former
 * contents.
 */
static __device__ inline void panels_wait(void)
{
  ptx_copies_wait();
  ptx_copies_publish();
  __syncthreads();
}

/*
 * Return the descriptor of the rows from @at on of a tile that has ROWS of them; its panels follow as columns when
 * turned.
 */
template <int ROWS, class T> static __device__ inline uint64_t panels_describe(const T *at)
{
  constexpr uint64_t LEADING = ROWS * LADE_CUDA_PANEL * sizeof(T) / 16, STRIDE = LADE_CUDA_WGMMA_ALIGN / 16;
  return (uint64_t)1 << 62 | STRIDE << 32 | LEADING << 16 | ptx_shared(at) >> 4;
}

static __device__ inline void multiply(bf16, float (&c)[8][4], uint64_t a, uint64_t b, bool is_added)
{
  ptx_multiply_64_bf16(c, a, b, is_added);
}

static __device__ inline void multiply(f16, float (&c)[8][4], uint64_t a, uint64_t b, bool is_added)
{
  ptx_multiply_64_f16(c, a, b, is_added);
}

static __device__ inline void multiply(bf16, float (&c)[16][4], uint64_t a, uint64_t b, bool is_added)
{
  ptx_multiply_128_bf16(c, a, b, is_added);
}

static __device__ inline void multiply(f16, float (&c)[16][4], uint64_t a, uint64_t b, bool is_added)
{
  ptx_multiply_128_f16(c, a, b, is_added);
}

static __device__ inline void weigh(bf16, float (&c)[8][4], const uint32_t (&a)[4], uint64_t b)
{
  ptx_weigh_64_bf16(c, a, b);
}

static __device__ inline void weigh(bf16, float (&c)[16][4], const uint32_t (&a)[4], uint64_t b)
{
  ptx_weigh_128_bf16(c, a, b);
}

static __device__ inline void weigh(f16, float (&c)[8][4], const uint32_t (&a)[4], uint64_t b)
{
  ptx_weigh_64_f16(c, a, b);
}

static __device__ inline void weigh(f16, float (&c)[16][4], const uint32_t (&a)[4], uint64_t b)
{
  ptx_weigh_128_f16(c, a, b);
}

/*
 * Return @descriptor moved on by @elements of T, whole chunks within the tile. Only its low word changes: products wait
 * for a chain of instructions that derives a descriptor anew, and are shorter than it. The sum never carries past the
 * 14 bits of the address: they count 256 KiB, and shared memory ends before 228 KiB.
 */
template <class T> static __device__ inline uint64_t panels_move(uint64_t descriptor, int elements)
{
  return (descriptor >> 32 << 32) | (uint32_t)((uint32_t)descriptor + elements * (int)sizeof(T) / 16);
}

/*
 * Begin c = X Y^T as a group: 64 rows from @first on of the tile @x of X_ROWS with the 8 N of the tile @y, by the
 * columns of both. pre: a fence.
 */
template <int D, int X_ROWS, int N, class T>
static __device__ inline void rows_multiply_begin(float (&c)[N][4], const T *x, int first, const T *y)
{
  const uint64_t a = panels_describe<X_ROWS>(x + first * LADE_CUDA_PANEL), b = panels_describe<8 * N>(y);
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    const int panel = k / LADE_CUDA_PANEL * LADE_CUDA_PANEL, column = k % LADE_CUDA_PANEL;
    multiply(T(), c, panels_move<T>(a, panel * X_ROWS + column), panels_move<T>(b, panel * 8 * N + column), k > 0);
  }
  ptx_products_commit();
}

/* Make operand a from a product's c, rounded to T: one a per sixteen columns of c. */
template <class T, int K>
static __device__ inline void weights_make(uint32_t (&weights)[K][4], const float (&c)[2 * K][4])
{
#pragma unroll
  for (int k = 0; k < K; k++)
    left_make(T(), weights[k], c[2 * k], c[2 * k + 1]);
}

/* Begin sums += W Y as a group: weights, of weights_make, with the 16 K rows of the tile @y. pre: a fence. */
template <int D, int K, class T>
static __device__ inline void rows_weigh_begin(float (&sums)[D / 8][4], const uint32_t (&weights)[K][4], const T *y)
{
  const uint64_t b = panels_describe<16 * K>(y);
#pragma unroll
  for (int k = 0; k < K; k++)
    weigh(T(), sums, weights[k], panels_move<T>(b, 16 * k * LADE_CUDA_PANEL));
  ptx_products_commit();
}

/* Define a kernel of one size of heads in both types. BLOCKS is a macro of the size. */
#define WARPGROUP_KERNEL(name, D, args_type, THREADS, BLOCKS) \
  KERNEL_SIZED(name, D, bf16, bf16, args_type, THREADS, BLOCKS(D)) \
  KERNEL_SIZED(name, D, f16, f16, args_type, THREADS, BLOCKS(D))

#endif
