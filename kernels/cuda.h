/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's kernels: their table, and on its streams, where they are submitted to a queue and run. */
#ifndef LADE_CUDA_KERNELS_H
#define LADE_CUDA_KERNELS_H

#include "device/cuda.h"
#include "kernels/kernels.h"

/*
 * Make the table of a CUDA device with Lade's own kernels alone, for sizes of scratch and the key. rank_sum and copy
 * are NULL. Its functions need a launcher (cuda/launch.h).
 */
void lade_cuda_kernels_init(struct lade_kernels *kernels);

/*
 * Kernels of attention: plain ones, for any shape; or tensor cores by mma.sync, or by wgmma (sm_90), for heads of 64
 * and 128 in 16 bits, with plain kernels for all others.
 */
enum lade_cuda_attention {
  LADE_CUDA_BY_PLAIN,
  LADE_CUDA_BY_MMA,
  LADE_CUDA_BY_WGMMA,
  LADE_CUDA_N_ATTENTIONS
};

/* Choose the attention of @kernel, forward or backward, in @kernels, a table as above with attention by mma.sync. */
void lade_cuda_attention_choose(struct lade_kernels *kernels, enum lade_kernel kernel,
                                enum lade_cuda_attention attention);

/*
 * Return one line, with the cost, if @kernels computes heads of this size or scores of this form by a slower attention
 * than the one it chose; else "". Static.
 */
const char *lade_cuda_attention_form_note(const struct lade_kernels *kernels, enum lade_dtype dtype, int64_t head_dim,
                                          const struct lade_score_form *form);

/*
 * True if the product of @args, with GELU, would be a plain kernel's, without tensor cores, though @kernels have
 * cuBLASLt's: the library lacks it. Of its pointers only whether they are NULL counts. Any thread; may block for
 * milliseconds.
 */
bool lade_cuda_lacks_gelu(const struct lade_kernels *kernels, const struct lade_matmul_args *args);

typedef struct lade_cuda_kernels lade_cuda_kernels;

/*
 * Load all kernels for @device from the files <op>.fatbin of @folder. NULL: the folder of the environment's
 * LADE_CUDA_KERNELS, or that of the build or the installation. Matrix products are cuBLASLt's if the machine has one,
 * unless LADE_MATMUL in the environment is "plain", by the algorithms that the file of LADE_MATMUL_CHOICES names.
 * LADE_ATTENTION chooses attention: "plain", "mma" or "wgmma". If unset, it is the first of wgmma, mma.sync and plain
 * that the GPU has. It must also agree with the plain kernels on a small problem. The problem runs here; forward and
 * backward are chosen separately. The caller closes, before the device. Errors of lade_cuda_functions_open; -ENODEV
 * when the GPU lacks the named attention. Any thread; blocks while the driver loads and the problem runs, some ten
 * milliseconds.
 */
int lade_cuda_kernels_open(lade_device *device, const char *folder, struct lade_error *error,
                           lade_cuda_kernels **ret_kernels);

/* Close the kernels. pre: all submitted work has run. NULL is allowed. */
void lade_cuda_kernels_close(lade_cuda_kernels *kernels);

/*
 * Get their table, with which graphs are made for them. The scratch of a product must be requested before the product
 * is submitted, as lade_kernel_workspace_bytes returns it. The table is valid while the kernels are open.
 */
void lade_cuda_kernels_get(const lade_cuda_kernels *kernels, struct lade_kernels *ret_table);

/* Return one line on a desired library, cuBLASLt, that is missing, or has no choices in the named file; else "". */
const char *lade_cuda_kernels_note(const lade_cuda_kernels *kernels);

/* Return one line on the attention that is wrong on this GPU, and its replacement; else "". */
const char *lade_cuda_kernels_attention_note(const lade_cuda_kernels *kernels);

/* A kernel to launch. */
struct lade_cuda_work {
  enum lade_kernel kernel;
  const void *args;             /* they have device addresses, and are read before the call returns */
  const struct lade_step *step; /* address of the step block in memory that the device reads when the kernel runs */
};

/*
 * Submit @work to @queue, which is a stream's. Its event is (@queue, *ret_count); if the driver refuses a launch, the
 * device's status is set. Blocks only while the queue is full.
 */
void lade_cuda_kernels_submit(const lade_cuda_kernels *kernels, lade_queue *queue, const struct lade_cuda_work *work,
                              struct lade_span *ret_span, uint64_t *ret_count);

/*
 * Put all launches of @work on @stream, as a submission does, and add their number to @n_launches. pre: called in the
 * enqueue function of a graph. Returns the CUresult of the first that the driver refused; a product that the library
 * refused is in @error alone.
 */
int lade_cuda_kernels_put(const lade_cuda_kernels *kernels, void *stream, const struct lade_cuda_work *work,
                          int *n_launches, struct lade_error *error);

#endif
