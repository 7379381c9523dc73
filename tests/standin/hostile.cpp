/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are wrong, each in one way, and one that is right: what running them on the CPU must tell apart. */
#include "kernels/cuda/kernel.h"

struct hostile_args {
  float *to;
  int n;
};

#define HOSTILE(name) \
  LADE_KERNEL(name, hostile_args); \
  LADE_CUDA_EXPORT(name, hostile_args) \
  LADE_KERNEL(name, hostile_args)

/* Right: the block's values turned round. */
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

/* Reads its copy having waited (n is 1), before it waits (0), or without ever waiting. */
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

/* A matrix whose rows begin at odd places. */
HOSTILE(matrix_askew)
{
  LADE_SHARED(uint16_t, room);
  uint32_t x[4];
  ptx_matrices_load(x, room + threadIdx.x % 8 * 8 + a.n);
  a.to[thread_get()] = (float)x[0];
}

/*
 * Right: a[i][k] = 16 i + k, 16 x 16, times b[k][j] = k - j, 16 x 8, both brought by loads, b turned over or stored so, as
 * n says; a row of c after the other.
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
