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
