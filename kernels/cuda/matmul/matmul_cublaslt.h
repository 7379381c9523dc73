/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLASLt: the choice of products that it computes, their algorithms and scratch, and putting them
 * on a stream. The plain kernel computes the others (kernels/cuda/matmul/matmul.cu).
 *
 * The choice and the algorithm follow from shape, layout and dtypes, the version of the library and the model of the
 * GPU. If LADE_MATMUL_CHOICES names a file, they follow from the file too. They never depend on a budget, an address or
 * a time. So the same product has the same bits at any place of a plan.
 */
#ifndef LADE_CUBLASLT_H
#define LADE_CUBLASLT_H

#include <stdio.h>

#include "device/device.h"
#include "kernels/kernels.h"

typedef struct lade_cublaslt lade_cublaslt;

/*
 * Open the library for @device, a CUDA device, which outlives it. Errors name the fix: -ENOENT if there is none,
 * -ENOSYS if the driver runs none of those found; -EINVAL for a file of choices that cannot be read; -ENOMEM; the
 * device's status if it has failed. Any thread; blocks while the library is read and takes its memory of the device.
 */
int lade_cublaslt_open(lade_device *device, struct lade_error *error, lade_cublaslt **ret_cublaslt);

/* Close the library. pre: no product is in flight. NULL is allowed. */
void lade_cublaslt_close(lade_cublaslt *cublaslt);

/*
 * Choose the algorithm of the product of @args, and keep it. Of the pointers only whether bias, gelu_x and gelu_y are
 * NULL counts. Return its scratch in bytes, which @args->workspace must have when it runs. 0 for products of the plain
 * kernel, and if choosing failed: then running it fails, too. Any thread; blocks for milliseconds at the first of its
 * kind.
 */
size_t lade_cublaslt_workspace_bytes(lade_cublaslt *cublaslt, const struct lade_matmul_args *args);

/*
 * True if the plain kernel computes the product of @args, as above, because the library has none. A choice that failed
 * is the library's: running it says why. Any thread; blocks likewise.
 */
bool lade_cublaslt_lacks(lade_cublaslt *cublaslt, const struct lade_matmul_args *args);

/*
 * Put the product on @stream, in a lade_cuda_enqueue_fn. False if the plain kernel must compute it. A refusal of the
 * library is in @error, in its words; on a failed device the product is skipped. Any thread. Allocates no memory for
 * kinds that were requested before.
 */
bool lade_cublaslt_run(lade_cublaslt *cublaslt, void *stream, const struct lade_matmul_args *args,
                       struct lade_error *error);

/*
 * Compute products of @args' kind from now on by number @i of the heuristic's choices, for measuring; below 0: by the
 * run's own, which is number 0 unless the file of choices names another. False, without a change, if there are fewer.
 * Any thread.
 */
bool lade_cublaslt_choose(lade_cublaslt *cublaslt, const struct lade_matmul_args *args, int i);

/* Append number @i for products of @args' kind to @file, a file of choices (matmul_choices.c). 0, or -EIO. */
int lade_cublaslt_choice_write(const lade_cublaslt *cublaslt, const struct lade_matmul_args *args, int i, FILE *file);

/*
 * Return the input of bits besides the arguments, "cuBLASLt 130100, NVIDIA H200, choices 1a2b3c4d (3)": the library's
 * version, the GPU's model, and the file's choices with their hash, if any. It lives as long as @cublaslt.
 */
const char *lade_cublaslt_name(const lade_cublaslt *cublaslt);

#endif
