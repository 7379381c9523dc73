/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions of PTX without plain forms in CUDA C++: asynchronous copies into shared memory (cp.async), matrices out
 * of shared memory into a warp's registers (ldmatrix), and products of them (mma.sync). Every GPU from sm_80 on has all
 * of them. The file tests/fakes/cuda_on_cpu/ptx_on_cpu.h implements them on the CPU, as the PTX ISA defines each
 * (sections 9.7.9 and 9.7.14 of version 8.5).
 *
 * Whole warps call the functions on matrices, in one place. With lane = 4 g + t, a 32-bit register holds two neighbours
 * of 16 bits, the first in its low half:
 *
 *   8 x 8 matrix   row g, columns 2t and 2t + 1
 *   a, 16 x 16     [0] row g, columns 2t, 2t + 1; [1] row g + 8, the same; [2] and [3] both rows, columns 8 further on
 *   b, 16 x 8      [0] rows 2t, 2t + 1 of column g; [1] rows 2t + 8, 2t + 9 of it
 *   c, 16 x 8 F32  [0] and [1] row g, columns 2t and 2t + 1; [2] and [3] row g + 8, the same
 */
#ifndef LADE_CUDA_PTX_H
#define LADE_CUDA_PTX_H

#include <stdint.h>

static __device__ inline unsigned ptx_shared(const void *at)
{
  return (unsigned)__cvta_generic_to_shared(at);
}

/* Return threadIdx.x, read here: the compiler does not keep it in a register from an earlier place. */
static __device__ inline int ptx_thread_get(void)
{
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/* Load 16 bytes, at a multiple of 16, in one instruction: at this place, and not split by the compiler. */
static __device__ inline void ptx_load_16(uint32_t (&x)[4], const void *from)
{
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(__cvta_generic_to_global(from)) : "memory");
}

static __device__ inline void ptx_store_16(void *to, const uint32_t (&x)[4])
{
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(__cvta_generic_to_global(to)), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3]) : "memory");
}

/* Begin to bring the 32 bytes around @at, in global memory, into L2, for a later load. No register waits for them. */
static __device__ inline void ptx_prefetch(const void *at)
{
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
}

/* Treat words from here on as just loaded: values derived from them before are derived again. */
static __device__ inline void ptx_words_forget(uint32_t (&x)[4])
{
  asm volatile("" : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]));
}

/*
 * Copy 16 bytes from global to shared memory, both at multiples of 16. Unless @is_there, write zeros and read nothing.
 */
static __device__ inline void ptx_copy_16(void *to, const void *from, bool is_there)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ptx_shared(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0) : "memory");
}

/* Copy 4 bytes in the same way. */
static __device__ inline void ptx_copy_4(void *to, const void *from, bool is_there)
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(ptx_shared(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_there ? 4 : 0) : "memory");
}

/*
 * Wait for all of this thread's copies. Other threads' copies are visible after a barrier that those threads reach
 * after their own wait.
 */
static __device__ inline void ptx_copies_wait(void)
{
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/*
 * Arrive at a named barrier (1 to 15) of @n_threads, in whole warps, and go on; or wait at it. Waiting threads go on
 * once @n_threads have arrived or wait, and see these threads' earlier writes. Then the barrier can be used again.
 */
static __device__ inline void ptx_barrier_arrive(int barrier, int n_threads)
{
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

static __device__ inline void ptx_barrier_wait(int barrier, int n_threads)
{
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

/*
 * Load four 8 x 8 matrices of 16 bits; lane 8 i + r has the address of row r of matrix i, 16 bytes at a multiple of 16.
 */
static __device__ inline void ptx_matrices_load(uint32_t (&x)[4], const void *row)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(ptx_shared(row)) : "memory");
}

/* Load as ptx_matrices_load, each matrix transposed: a row in shared memory becomes a column. */
static __device__ inline void ptx_matrices_load_turned(uint32_t (&x)[4], const void *row)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(ptx_shared(row)) : "memory");
}

/* Compute c += a b; products are exact, the order of their sum in FP32 is the hardware's. */
static __device__ inline void ptx_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline void ptx_mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/*
 * Return 2^x within 2^-22 of it. Zero if x or 2^x is below the least normal number, a case that costs exp2f half its
 * work.
 */
static __device__ inline float ptx_exp2(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Return 1/x within 2^-23 of it; zero if that is below the least normal number. */
static __device__ inline float ptx_reciprocal(float x)
{
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Return 1/sqrt(x) within two steps of FP32; infinite if x is below the least normal number. */
static __device__ inline float ptx_root_reciprocal(float x)
{
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Return x + y rounded toward zero. */
static __device__ inline float ptx_add_cut(float x, float y)
{
  float sum;
  asm("add.rz.f32 %0, %1, %2;" : "=f"(sum) : "f"(x), "f"(y));
  return sum;
}

/*
 * Return four of the eight bytes of @low and @high, one for each 4-bit digit of @which, lowest first; no digit exceeds
 * 7.
 */
static __device__ inline uint32_t ptx_bytes(uint32_t low, uint32_t high, uint32_t which)
{
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(which));
  return bytes;
}

/* Convert exactly. */
static __device__ inline float ptx_f32_of_f16(uint16_t x)
{
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

/* Convert both halves of a word, exactly. */
static __device__ inline void ptx_f32_of_f16_pair(uint32_t pair, float &low, float &high)
{
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(low), "=f"(high) : "r"(pair));
}

/* Convert in a form opaque to the compiler, so that it keeps the packed words in registers and not their numbers. */
static __device__ inline float ptx_f32_of_bf16(uint16_t x)
{
  float y;
  asm("mov.b32 %0, {%1, %2};" : "=f"(y) : "h"((uint16_t)0), "h"(x));
  return y;
}

/* Round both to nearest, ties to even; @low goes to the low half. */
static __device__ inline uint32_t ptx_pair_bf16(float low, float high)
{
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

static __device__ inline uint32_t ptx_pair_f16(float low, float high)
{
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

#endif
