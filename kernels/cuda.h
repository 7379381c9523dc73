/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's kernels: their table, and on its streams, where they are submitted to a queue and run. */
#ifndef LADE_CUDA_KERNELS_H
#define LADE_CUDA_KERNELS_H

#include "device/cuda.h"
#include "kernels/kernels.h"

/*
 * The table of a CUDA device with nothing but Lade's own kernels, but for rank_sum and copy, which are NULL:
 * for sizes of scratch and the key. Its functions want a launcher (cuda/launch.h).
 */
void lade_cuda_kernels_init(struct lade_kernels *kernels);

/*
 * Who attends: plain kernels, whatever the shape; or tensor cores by mma.sync, or by wgmma (sm_90), for heads of 64 and
 * 128 in 16 bits, and plain kernels for all else.
 */
enum lade_cuda_attention { LADE_CUDA_BY_PLAIN, LADE_CUDA_BY_MMA, LADE_CUDA_BY_WGMMA, LADE_CUDA_N_ATTENTIONS };

/* In @kernels, a table as above, where mma.sync attends: let @who do so, in @kernel, forward or backward. */
void lade_cuda_attention_choose(struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_cuda_attention who);

typedef struct lade_cuda_kernels lade_cuda_kernels;

/*
 * Load all kernels for @device from the files <op>.fatbin of @folder; NULL: the one that the environment's
 * LADE_CUDA_KERNELS names, or where the build or the installation put them. Matrix products are cuBLASLt's where the
 * machine has one, unless LADE_MATMUL in the environment is "plain". Who attends LADE_ATTENTION says, "plain", "mma" or
 * "wgmma"; unset it is the best that the GPU has, forward and backward each, of those that make what the plain kernels
 * make of a small problem, which runs here. The caller closes, before the device. Errors as of
 * lade_cuda_functions_open; -ENODEV when the GPU lacks the attention that was named. Any thread; blocks while the
 * driver loads and the problem runs, some ten milliseconds.
 */
int lade_cuda_kernels_open(lade_device *device, const char *folder, struct lade_error *error,
                           lade_cuda_kernels **ret_kernels);

/* All that was submitted must have run. NULL is allowed. */
void lade_cuda_kernels_close(lade_cuda_kernels *kernels);

/*
 * Their table, with which graphs are made for them: a product must have been asked for its scratch before it is
 * submitted, as much as lade_kernel_workspace_bytes said. It is of use as long as they are open.
 */
void lade_cuda_kernels_get(const lade_cuda_kernels *kernels, struct lade_kernels *ret_table);

/* One line on what they do without though it was wished for, cuBLASLt, and why; else "". */
const char *lade_cuda_kernels_note(const lade_cuda_kernels *kernels);

/* One line on whose attention is wrong on this GPU, and who takes its place; else "". */
const char *lade_cuda_kernels_attention_note(const lade_cuda_kernels *kernels);

/*
 * Submit @kernel to @queue, which is a stream's. @args have device addresses and are read before this returns; @step
 * is the address of the step block in memory that the device reads when the kernel runs. Its event is (@queue,
 * *ret_count); a launch that the driver refuses is the device's status. Blocks only while the queue is full.
 */
void lade_cuda_kernels_submit(const lade_cuda_kernels *kernels, lade_queue *queue, enum lade_kernel kernel,
                              const void *args, const struct lade_step *step, struct lade_span *ret_span,
                              uint64_t *ret_count);

/*
 * In the enqueue function of a graph: put all launches of @kernel on @stream, as they are submitted otherwise, and add
 * to @n_launches how many. Returns the CUresult of the first that the driver refused; a product that the library
 * refused is in @error alone.
 */
int lade_cuda_kernels_put(const lade_cuda_kernels *kernels, void *stream, enum lade_kernel kernel, const void *args,
                          const struct lade_step *step, int *n_launches, struct lade_error *error);

#endif
