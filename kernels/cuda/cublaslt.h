/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLASLt: which of them it computes, with which algorithm and how much scratch, and putting them
 * on a stream. Those it does not compute are the plain kernel's (kernels/cuda/matmul.cu).
 *
 * Which it is, and the algorithm, follow from shape, layout and dtypes, from the version of the library and the model
 * of the GPU: never from a budget, an address or a time. So the same product has the same bits wherever a plan puts it.
 */
#ifndef LADE_CUBLASLT_H
#define LADE_CUBLASLT_H

#include "device/device.h"
#include "kernels/kernels.h"

typedef struct lade_cublaslt lade_cublaslt;

/*
 * Open the library for @device, a CUDA device, which outlives it. With what to do about it: -ENOENT when there is none,
 * -ENOSYS when there is none that the driver runs; -ENOMEM; the device's status when it has failed. Any thread; blocks
 * while the library is read and takes what it wants of the device's memory.
 */
int lade_cublaslt_open(lade_device *device, struct lade_error *error, lade_cublaslt **ret_cublaslt);

/* Nothing that was put on a stream may still be under way. NULL is allowed. */
void lade_cublaslt_close(lade_cublaslt *cublaslt);

/*
 * Choose how the product of @args (pointers unused but for bias being NULL or not) is computed, and keep it; its
 * scratch in bytes, which @args->workspace must have when it runs. 0 for those that are the plain kernel's, and
 * where choosing failed: then running it fails, too. Any thread; blocks for milliseconds at the first of its kind.
 */
size_t lade_cublaslt_workspace_bytes(lade_cublaslt *cublaslt, const struct lade_matmul_args *args);

/*
 * In a lade_cuda_enqueue_fn, put the product on @stream. False if it is the plain kernel's. What the library refuses
 * is in @error, in the library's words; on a device that has failed nothing is put. Any thread. Allocates nothing for
 * kinds that were asked for before.
 */
bool lade_cublaslt_run(lade_cublaslt *cublaslt, void *stream, const struct lade_matmul_args *args,
                       struct lade_error *error);

/*
 * For measuring: from here on the products of @args' kind are computed by number @i of what the heuristic offers;
 * number 0 is what they are computed by otherwise. False, and nothing changes, when it does not offer so many.
 * Any thread.
 */
bool lade_cublaslt_choose(lade_cublaslt *cublaslt, const struct lade_matmul_args *args, int i);

/*
 * What bits depend on beside the arguments, "cuBLASLt 130100, NVIDIA H200": the library's version and the GPU's model.
 * It lives as long as @cublaslt.
 */
const char *lade_cublaslt_name(const lade_cublaslt *cublaslt);

#endif
