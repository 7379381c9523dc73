/* SPDX-License-Identifier: Apache-2.0 */
/* Products by warpgroups: notifications from cuda_on_cpu.c, which runs blocks and copies, to cuda_on_cpu_wgmma.c. */
#ifndef LADE_TEST_CUDA_ON_CPU_WGMMA_H
#define LADE_TEST_CUDA_ON_CPU_WGMMA_H

#include <stddef.h>

/* Begin a block. */
void wgmma_block_begin(int n_threads, size_t shared_bytes);

/* Note that this thread has begun a copy to shared memory at @to, and that it has waited for it. */
void wgmma_copy_begin(const void *to);
void wgmma_copy_end(const void *to);

/* End this thread. Ends the test if one of its products is in flight, or its warpgroup issued different products. */
void wgmma_thread_end(void);

#endif
