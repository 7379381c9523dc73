/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions of sm_90a alone (Hopper): asynchronous products of matrices by a warpgroup, four warps whose first is a
 * multiple of four (wgmma). The file tests/fakes/cuda_on_cpu/ptx_90a_on_cpu.h implements them on the CPU. Sources are
 * the PTX ISA (version 9.0, section 9.7.15) and, for the descriptors, CUTLASS 4.2 (cute/arch/mma_sm90_desc.hpp).
 *
 * A product is issued, committed with those before it as a group, and done once its group has been waited for. Until
 * then no thread may read or write its sums, or write its operands in shared memory. ptx_products_fence comes before
 * the first product of a group: it orders earlier accesses to registers. A product may read bytes that a copy brought
 * into shared memory once the copying thread has published them and a barrier has been passed.
 *
 * c has 64 rows: those of warp w are 16 w.., and of these a lane has its elements of the 16 x 8 matrix c of ptx.h, for
 * each eight columns. a from registers is likewise the 16 x 16 matrix a of ptx.h. Descriptors state b, and a from
 * shared memory: tiles that are swizzled by 128 bytes:
 *
 *   bits 0..13 the address, 16..29 the leading and 32..45 the stride offset, all in units of 16 bytes; 62..63: 1
 *
 * A row of such a tile is 128 bytes, eight rows 1024, at a multiple of that; the 16-byte chunk i of row r of them lies
 * where chunk i ^ r is. Upright, a row is a row of a, or a column of b, with 64 elements of k, of which a product takes
 * the 16 at its address; the next eight rows are the stride further on. Turned, a row is one element of k with 64
 * columns of b; the next eight of k are the stride further on, the next 64 columns the leading offset.
 */
#ifndef LADE_CUDA_PTX_90A_H
#define LADE_CUDA_PTX_90A_H

#include "kernels/cuda/ptx.h"

/* Publish the bytes of this thread's copies, for which it has waited, to products after the next barrier. */
static __device__ inline void ptx_copies_publish(void)
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- registers: accesses that the compiler must neither delay nor bring forward past a fence or a wait ---- */

template <int N> static __device__ inline void ptx_registers_settle(float (&c)[N][4])
{
#pragma unroll
  for (int i = 0; i < 4 * N; i++)
    asm volatile("" : "+f"(c[i / 4][i % 4]) : : "memory");
}

template <int N> static __device__ inline void ptx_registers_settle(uint32_t (&a)[N][4])
{
#pragma unroll
  for (int i = 0; i < 4 * N; i++)
    asm volatile("" : "+r"(a[i / 4][i % 4]) : : "memory");
}

static __device__ inline void ptx_products_fence(void)
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ inline void ptx_products_commit(void)
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait for all groups but the last PENDING. @c are sums of the groups waited for. */
template <int PENDING, int N> static __device__ inline void ptx_products_wait(float (&c)[N][4])
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
  ptx_registers_settle(c);
}

/* ---- products: exact, their sum's order in FP32 is the hardware's ---- */

#define PTX_C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define PTX_C32(n) PTX_C4(n), PTX_C4(n + 1), PTX_C4(n + 2), PTX_C4(n + 3), PTX_C4(n + 4), PTX_C4(n + 5), \
                   PTX_C4(n + 6), PTX_C4(n + 7)
#define PTX_LIST_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PTX_LIST_64 PTX_LIST_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/*
 * ptx_multiply_64_<type> and ptx_multiply_128_<type>: c = a b, or c += a b, both upright in shared memory; the number
 * is c's columns. ptx_weigh_64_<type> and ptx_weigh_128_<type>: c += a b, a from registers and b turned.
 */
#define PTX_PRODUCTS(type) \
  static __device__ inline void ptx_multiply_64_##type(float (&c)[8][4], uint64_t a, uint64_t b, bool is_added) \
  { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type \
                 " {" PTX_LIST_32 "}, %32, %33, p, 1, 1, 0, 0; }" \
                 : PTX_C32(0) : "l"(a), "l"(b), "r"((int)is_added)); \
  } \
  static __device__ inline void ptx_multiply_128_##type(float (&c)[16][4], uint64_t a, uint64_t b, bool is_added) \
  { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type \
                 " {" PTX_LIST_64 "}, %64, %65, p, 1, 1, 0, 0; }" \
                 : PTX_C32(0), PTX_C32(8) : "l"(a), "l"(b), "r"((int)is_added)); \
  } \
  static __device__ inline void ptx_weigh_64_##type(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) \
  { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type \
                 " {" PTX_LIST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }" \
                 : PTX_C32(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  } \
  static __device__ inline void ptx_weigh_128_##type(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b) \
  { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type \
                 " {" PTX_LIST_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }" \
                 : PTX_C32(0), PTX_C32(8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }
PTX_PRODUCTS(bf16)
PTX_PRODUCTS(f16)

#endif
