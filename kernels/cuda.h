/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's kernels: their table, and on its streams, where they are submitted to a queue and run. */
#ifndef LADE_CUDA_KERNELS_H
#define LADE_CUDA_KERNELS_H

#include "device/cuda.h"
#include "kernels/kernels.h"

/*
 * The table of a CUDA device with nothing but Lade's own kernels, but for rank_sum, copy and tree_sum, which are NULL:
 * for sizes of scratch and the key. Its functions want a launcher (cuda/launch.h).
 */
void lade_cuda_kernels_init(struct lade_kernels *kernels);

/* Attention of @kernels, a table as above, becomes the plain twin for every shape and type. */
void lade_cuda_attention_init_plain(struct lade_kernels *kernels);

typedef struct lade_cuda_kernels lade_cuda_kernels;

/*
 * Load all kernels for @device from the files <op>.fatbin of @folder; NULL: the one that the environment's
 * LADE_CUDA_KERNELS names, or where the build or the installation put them. Matrix products are cuBLASLt's where the
 * machine has one, unless LADE_MATMUL in the environment is "plain". Attention is by tensor cores for the shapes and
 * types that they have kernels for, unless LADE_ATTENTION is "plain". The caller closes, before the device.
 * Errors as of lade_cuda_functions_open. Any thread; blocks while the driver loads.
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

/*
 * Submit @kernel to @queue, which is a stream's. @args have device addresses and are read before this returns; @step
 * is the address of the step block in memory that the device reads when the kernel runs. Its event is (@queue,
 * *ret_count); a launch that the driver refuses is the device's status. Blocks only while the queue is full.
 */
void lade_cuda_kernels_submit(const lade_cuda_kernels *kernels, lade_queue *queue, enum lade_kernel kernel,
                              const void *args, const struct lade_step *step, struct lade_span *ret_span,
                              uint64_t *ret_count);

/*
 * In the enqueue function of a graph: put all launches of @kernel on @stream, as they are submitted otherwise. Returns
 * the CUresult of the first that the driver refused; a product that the library refused is in @error alone.
 */
int lade_cuda_kernels_put(const lade_cuda_kernels *kernels, void *stream, enum lade_kernel kernel, const void *args,
                          const struct lade_step *step, struct lade_error *error);

#endif
