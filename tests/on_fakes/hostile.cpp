/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are wrong, each in one way, and right ones: a run on the CPU must tell them apart. */
#include "hostile.h"
#include "kernels/cuda/wgmma.h"

#define HOSTILE(name) \
  LADE_KERNEL(name, hostile_args); \
  LADE_CUDA_EXPORT(name, hostile_args) \
  LADE_KERNEL(name, hostile_args)

/* Right: reverse the block's values. */
HOSTILE(reverse)
{
  LADE_SHARED(float, room);
  room[threadIdx.x] = (float)threadIdx.x;
  __syncthreads();
  a.to[thread_get()] = room[blockDim.x - 1 - threadIdx.x];
}

/* The same without its barrier. */
HOSTILE(reverse_raced)
{
  LADE_SHARED(float, room);
  room[threadIdx.x] = (float)threadIdx.x;
  a.to[thread_get()] = room[blockDim.x - 1 - threadIdx.x];
}

HOSTILE(barrier_of_some)
{
  if (threadIdx.x < (unsigned)a.n)
    __syncthreads();
}

HOSTILE(barrier_in_two_places)
{
  if (threadIdx.x < (unsigned)a.n)
    __syncthreads();
  else
    __syncthreads();
}

/*
 * Right (n is 0): the second warp writes in its turn and the first reads in its own. Else the second gives no turn (1),
 * one more (2), two at once (3), or one of another size (4).
 */
HOSTILE(turns)
{
  LADE_SHARED(float, room);
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    ptx_barrier_wait(1, 64);
    a.to[thread_get()] = room[31 - lane];
    return;
  }
  room[lane] = (float)lane;
  if (a.n != 1)
    ptx_barrier_arrive(a.n == 3 ? 2 : 1, a.n == 4 ? 32 : 64);
  if (a.n == 2)
    ptx_barrier_arrive(1, 64);
  if (a.n == 3)
    ptx_barrier_arrive(2, 64);
}

HOSTILE(shuffle_of_some)
{
  float value = 1;
  if (threadIdx.x < (unsigned)a.n)
    value = __shfl_xor_sync(0xffffffffu, value, 1);
  a.to[thread_get()] = value;
}

HOSTILE(shared_unwritten)
{
  LADE_SHARED(float, room);
  a.to[thread_get()] = room[threadIdx.x];
  room[threadIdx.x] = 1;
}

HOSTILE(shared_overrun)
{
  LADE_SHARED(float, room);
  room[threadIdx.x + 1] = 1;
}

/* Read the copy after waiting (n is 1), before waiting (0), or without ever waiting. */
HOSTILE(copy)
{
  LADE_SHARED(float, room);
  float *mine = room + 4 * threadIdx.x, *from = a.to + 4 * thread_get();
  ptx_copy_16(mine, from, true);
  if (a.n == 1)
    ptx_copies_wait();
  float value = mine[threadIdx.x % 4];
  if (a.n == 0)
    ptx_copies_wait();
  from[0] = value;
}

/* Load a matrix whose rows begin at odd places. */
HOSTILE(matrix_askew)
{
  LADE_SHARED(uint16_t, room);
  uint32_t x[4];
  ptx_matrices_load(x, room + threadIdx.x % 8 * 8 + a.n);
  a.to[thread_get()] = (float)x[0];
}

/*
 * Right: a[i][k] = 16 i + k, 16 x 16, times b[k][j] = k - j, 16 x 8, both brought by loads, b transposed by the load or
 * in memory, by n; c row by row.
 */
HOSTILE(product)
{
  LADE_SHARED(uint16_t, room);
  uint16_t *b = room + 256;
  const int lane = (int)threadIdx.x % 32;
  for (int at = (int)threadIdx.x; at < 256; at += (int)blockDim.x)
    room[at] = lade_f32_to_bf16((float)at);
  for (int at = (int)threadIdx.x; at < 128; at += (int)blockDim.x)
    b[at] = lade_f32_to_bf16(a.n ? (float)(at / 8 - at % 8) : (float)(at % 16 - at / 16));
  __syncthreads();
  uint32_t x[4], y[4];
  float c[4] = {};
  ptx_matrices_load(x, room + lane % 16 * 16 + lane / 16 * 8);
  if (a.n)
    ptx_matrices_load_turned(y, b + lane % 16 * 8);
  else
    ptx_matrices_load(y, b + lane % 8 * 16 + lane / 8 % 2 * 8);
  ptx_mma_bf16(c, x, y[0], y[1]);
  for (int i = 0; i < 4; i++)
    a.to[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

/*
 * A warpgroup's product of 64 rows with 128, of 64 columns, stored contiguously in BF16 at a.to; c follows them, row by
 * row. a.n selects the error.
 */
HOSTILE(warpgroup)
{
  LADE_SHARED(bf16, room);
  bf16 *const x = tiles_begin(room), *const y = x + 64 * 64, *const from = (bf16 *)a.to;
  float *const to = a.to + (64 + 128) * 64 / 2;
  float c[16][4] = {}, sums[8][4] = {};
  uint32_t left[4] = {};
  tile_copy<64, 64 + 128, 128>(x, from, 64, 0, 64 + 128);
  ptx_copies_wait();
  if (a.n != UNPUBLISHED)
    ptx_copies_publish();
  __syncthreads();
  if (a.n != UNFENCED)
    ptx_products_fence();
  for (int k = 0; k < 64; k += 16)
    ptx_multiply_128_bf16(c, panels_describe<64>(x + k + (a.n == ASKEW ? 64 : 0)), panels_describe<128>(y + k), k > 0);
  if (a.n == OTHERS_ISSUE && threadIdx.x < 32)
    ptx_multiply_128_bf16(c, panels_describe<64>(x), panels_describe<128>(y), true);
  if (a.n != UNCOMMITTED)
    ptx_products_commit();
  if (a.n == SUMS_WRITTEN)
    c[3][2] = 1;
  if (a.n == SUMS_READ)
    to[threadIdx.x] = c[3][2];
  if (a.n == TILE_WRITTEN) {
    ptx_copy_16(y + threadIdx.x * 64, from, true);
    ptx_copies_wait();
  }
  if (a.n != UNWAITED)
    ptx_products_wait<0>(c);
  for (int i = 0; a.n == NOTHING && i < 64; i++)
    to[((int)threadIdx.x / 32 * 16 + fragment_row(0, i % 4)) * 128 + fragment_column(i / 4, i % 4)] = c[i / 4][i % 4];
  for (int turn = 0; (a.n == LEFT_WRITTEN || a.n == LEFT_FENCED_TOO_EARLY) && turn < 2; turn++) {
    ptx_products_fence();
    if (a.n == LEFT_FENCED_TOO_EARLY)
      left[2] = (uint32_t)turn;
    ptx_weigh_64_bf16(sums, left, panels_describe<128>(y));
    ptx_products_commit();
    if (a.n == LEFT_WRITTEN)
      left[2] = 1;
    ptx_products_wait<0>(sums);
  }
  if (a.n == FENCED_TOO_EARLY) {
    ptx_products_fence();
    c[3][2] = 1;
    ptx_multiply_128_bf16(c, panels_describe<64>(x), panels_describe<128>(y), true);
    ptx_products_commit();
    ptx_products_wait<0>(c);
  }
}
