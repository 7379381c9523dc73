/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the table to the driver: a kernel's launches go to the stream one after the other, in the call that submits it.
 * The queue gets the result of the first that fails; later launches are skipped, because they would read missing
 * results. Matrix products are calls of cuBLASLt if it is loaded.
 */
#include "kernels/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cuda/launch_internal.h"
#include "kernels/cuda/matmul/matmul_cublaslt.h"

/* One kernel in submission to a stream. */
struct submission {
  struct lade_cuda_launcher base;
  const lade_cuda_kernels *kernels;
  lade_kernel_fn *fn;
  const void *args;
  const struct lade_step *step;
  void *stream;
  int n_launches; /* of products too */
  int result; /* of the first launch that failed */
  struct lade_error error; /* of the first product that the library refused */
};

static void launch_put(const struct lade_cuda_launcher *base, const struct lade_cuda_launch *launch,
                       const struct lade_step *step)
{
  struct submission *submission = (struct submission *)(uintptr_t)base;
  void *params[] = {(void *)(uintptr_t)launch->args, &step};
  const struct lade_cuda_grid grid = {.blocks = {launch->grid[0], launch->grid[1], launch->grid[2]},
                                      .n_threads = launch->n_threads, .shared_bytes = launch->shared_bytes};
  submission->n_launches++;
  if (!submission->result && !submission->error.code)
    submission->result = lade_cuda_functions_launch(submission->kernels->functions, launch->place, submission->stream,
                                                    &grid, params);
}

static bool product_put(const struct lade_cuda_launcher *base, const struct lade_matmul_args *args)
{
  struct submission *submission = (struct submission *)(uintptr_t)base;
  submission->n_launches++;
  return submission->result || submission->error.code ||
         lade_cublaslt_run(submission->kernels->table.cublaslt, submission->stream, args, &submission->error);
}

static struct submission submission_make(const lade_cuda_kernels *kernels, lade_kernel_fn *fn, const void *args,
                                         const struct lade_step *step)
{
  LADE_ASSERT(fn);
  return (struct submission){.base = {launch_put, kernels->table.cublaslt ? product_put : NULL}, .kernels = kernels,
                             .fn = fn, .args = args, .step = step};
}

static void submission_put(struct submission *submission, void *stream)
{
  const struct lade_kernel_ctx ctx = {.step = submission->step, .launcher = &submission->base};
  submission->stream = stream;
  submission->fn(&ctx, submission->args);
}

/* Run the launches. An error of the library becomes the device's status. */
static int submission_enqueue(void *stream, void *args)
{
  struct submission *submission = args;
  submission_put(submission, stream);
  if (submission->error.code)
    lade_cuda_fail(submission->kernels->device, &submission->error);
  return submission->result;
}

void lade_cuda_kernels_submit(const lade_cuda_kernels *kernels, lade_queue *queue, const struct lade_cuda_work *work,
                              struct lade_span *ret_span, uint64_t *ret_count)
{
  struct submission submission = submission_make(kernels, kernels->table.fn[work->kernel], work->args, work->step);
  lade_cuda_queue_enqueue(queue, submission_enqueue, &submission, ret_span, ret_count);
}

int lade_cuda_kernels_put(const lade_cuda_kernels *kernels, void *stream, const struct lade_cuda_work *work,
                          int *n_launches, struct lade_error *error)
{
  struct submission submission = submission_make(kernels, kernels->table.fn[work->kernel], work->args, work->step);
  submission_put(&submission, stream);
  *n_launches += submission.n_launches;
  if (submission.error.code)
    *error = submission.error;
  return submission.result;
}

int lade_cuda_kernels_call(const lade_cuda_kernels *kernels, void *stream, lade_kernel_fn *fn, const void *args,
                           const struct lade_step *step)
{
  struct submission submission = submission_make(kernels, fn, args, step);
  submission_put(&submission, stream);
  return submission.result;
}
