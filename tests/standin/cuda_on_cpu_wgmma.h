/* SPDX-License-Identifier: Apache-2.0 */
/* Products by warpgroups: what cuda_on_cpu.c, which runs blocks and copies, tells cuda_on_cpu_wgmma.c. */
#ifndef LADE_TEST_CUDA_ON_CPU_WGMMA_H
#define LADE_TEST_CUDA_ON_CPU_WGMMA_H

#include <stddef.h>

/* A block begins. */
void wgmma_block_begin(int n_threads, size_t shared_bytes);

/* This thread has begun a copy to shared memory at @to, and then waited for it. */
void wgmma_copy_begin(const void *to);
void wgmma_copy_end(const void *to);

/* This thread has ended. Ends the test if a product of its is under way, or others of its warpgroup issued others. */
void wgmma_thread_end(void);

#endif
