/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's language on a CPU: the header that the C++ compiler includes first when it compiles a .cu file for tests.
 *
 * A grid runs block by block, a block's threads as fibers of one thread; cuda_on_cpu.c lists the errors that it
 * catches. The language is limited to the features that kernels/cuda/kernel.h allows: indices, barriers, shuffles and
 * ballots of whole warps, dynamic shared memory, which is one array here, and the instructions of kernels/cuda/ptx.h
 * and ptx_90a.h.
 */
#ifndef LADE_TEST_CUDA_ON_CPU_H
#define LADE_TEST_CUDA_ON_CPU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cuda_on_cpu_run.h"
#include "ptx_90a_on_cpu.h"

#define __global__
#define __device__
#define __host__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define LADE_CUDA_EXPORT(name, args_type) \
  static void name##_run(const void *args, const struct lade_step *step) \
  { \
    name(*(const struct args_type *)args, step); \
  } \
  extern "C" { \
  extern const struct cuda_on_cpu_kernel name##_on_cpu; \
  const struct cuda_on_cpu_kernel name##_on_cpu = {name##_run, sizeof(struct args_type)}; \
  }

#define threadIdx cuda_on_cpu_thread
#define blockIdx cuda_on_cpu_block
#define blockDim cuda_on_cpu_block_size
#define gridDim cuda_on_cpu_grid_size

#define __syncthreads() cuda_on_cpu_barrier(__LINE__)

/*
 * Exchange values: each lane leaves its value and takes that of lane @source; a source outside the warp's part gives
 * its own.
 */
template <class T> static inline T cuda_on_cpu_shuffle(T value, int source, int line)
{
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  const uint64_t *all = cuda_on_cpu_exchange(bits, line);
  memcpy(&value, &all[source], sizeof(value));
  return value;
}

static inline int cuda_on_cpu_lane(void)
{
  return (int)(threadIdx.x % 32);
}

static inline int cuda_on_cpu_down(int delta, int width)
{
  int lane = cuda_on_cpu_lane();
  return lane % width + delta < width ? lane + delta : lane;
}

#define __shfl_sync(mask, value, source) cuda_on_cpu_shuffle(value, source, __LINE__)
#define __shfl_xor_sync(mask, value, bits) cuda_on_cpu_shuffle(value, cuda_on_cpu_lane() ^ (bits), __LINE__)
#define __shfl_down_sync(mask, value, delta, width) cuda_on_cpu_shuffle(value, cuda_on_cpu_down(delta, width), __LINE__)

static inline unsigned cuda_on_cpu_ballot(bool is_set, int line)
{
  const uint64_t *all = cuda_on_cpu_exchange(is_set, line);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; lane++)
    ballot |= (unsigned)all[lane] << lane;
  return ballot;
}
#define __ballot_sync(mask, is_set) cuda_on_cpu_ballot(is_set, __LINE__)

static inline unsigned cuda_on_cpu_max(unsigned value, int line)
{
  const uint64_t *all = cuda_on_cpu_exchange(value, line);
  for (int lane = 0; lane < 32; lane++)
    value = all[lane] > value ? (unsigned)all[lane] : value;
  return value;
}
#define __reduce_max_sync(mask, value) cuda_on_cpu_max(value, __LINE__)

/* Distinct from the block's barrier, and by its line from shuffles. */
#define __syncwarp() ((void)cuda_on_cpu_exchange(0, __LINE__))

static inline int __popc(unsigned bits)
{
  return __builtin_popcount(bits);
}

#endif
