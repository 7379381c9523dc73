/* SPDX-License-Identifier: Apache-2.0 */
/* Running kernels on the CPU: calls for compiled kernels, and calls for the code that launches them. */
#ifndef LADE_TEST_CUDA_ON_CPU_RUN_H
#define LADE_TEST_CUDA_ON_CPU_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct lade_step;

/* A kernel gelu_fwd_f32 is found as the symbol gelu_fwd_f32_on_cpu of this type. */
struct cuda_on_cpu_kernel {
  void (*run)(const void *args, const struct lade_step *step); /* one thread */
  size_t args_bytes;
};

/* Order in which threads take turns between barriers, and blocks of the grid follow each other. */
enum cuda_on_cpu_order { CUDA_FORWARD, CUDA_BACKWARD, CUDA_SHUFFLED, CUDA_N_ORDERS };

struct cuda_on_cpu_launch {
  const struct cuda_on_cpu_kernel *kernel;
  unsigned grid[3], n_threads; /* a multiple of 32, at most 1024 */
  size_t shared_bytes;
  enum cuda_on_cpu_order order;
  const void *args;
  const struct lade_step *step;
};

/*
 * Run a grid to its end. Abort the process, with a line on stderr, if a block cannot go on because its threads wait at
 * different places or some have ended. Abort also if a block writes past its shared memory. Any thread; one grid at a
 * time.
 */
void cuda_on_cpu_run(const struct cuda_on_cpu_launch *launch);

/* ---- for compiled kernels ---- */

struct cuda_on_cpu_index {
  unsigned x, y, z;
};
extern struct cuda_on_cpu_index cuda_on_cpu_thread, cuda_on_cpu_block, cuda_on_cpu_block_size, cuda_on_cpu_grid_size;

/* Wait for all threads of the block. @line: the place in the source. */
void cuda_on_cpu_barrier(int line);

/* Arrive at a named barrier, 1 to 15, of @n_threads and go on, or wait there. */
void cuda_on_cpu_barrier_arrive(int barrier, int n_threads);
void cuda_on_cpu_barrier_wait(int barrier, int n_threads);

/*
 * Leave @bits and wait for all lanes of the warp. Return the bits left, by lane, valid until the next exchange but one.
 */
const uint64_t *cuda_on_cpu_exchange(uint64_t bits, int line);

/*
 * Copy @n_bytes from global to shared memory asynchronously; zeroes if @from is NULL. The bytes arrive when the thread
 * waits for them; until then the target is poison. Both addresses are multiples of @n_bytes.
 */
void cuda_on_cpu_copy(void *to, const void *from, size_t n_bytes);

/* Wait for all copies of this thread. A thread that ends without it ends the test. */
void cuda_on_cpu_copies_wait(void);

/* Make copies that this thread has waited for visible to products of warpgroups. */
void cuda_on_cpu_copies_publish(void);

/* Return the address of shared memory on a GPU. */
unsigned cuda_on_cpu_shared(const void *at);

/* c (+)= a b by a warpgroup: 64 x 16 by 16 x @n. */
struct cuda_on_cpu_product {
  float *c;            /* this thread's sums */
  int n;
  const uint32_t *a;   /* this thread's part in registers, or NULL */
  uint64_t a_at, b_at; /* descriptors */
  bool is_bf16;        /* else F16 */
  bool is_turned;      /* b is transposed */
  bool is_added;
};

/*
 * Order asynchronous products; cuda_on_cpu_wgmma.c lists the errors that end the test. A commit puts the products
 * issued so far into a group. A wait completes all groups but the last @n_pending.
 */
void cuda_on_cpu_products_fence(int line);
void cuda_on_cpu_product_issue(const struct cuda_on_cpu_product *product);
void cuda_on_cpu_products_commit(void);
void cuda_on_cpu_products_wait(int n_pending, int line);

/* Return the checked address of 16 bytes of shared memory from which a warp loads a matrix row. */
uint64_t cuda_on_cpu_row(const void *row);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
