/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the table to the driver: a kernel's launches go to the stream one after the other, in the call that submits it.
 * The first that fails is what the queue hears; the ones after it are left out, since they would work on what it did
 * not make.
 */
#include "kernels/cuda.h"

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"
#include "kernels/cuda/launch.h"

struct lade_cuda_kernels {
  struct lade_kernels table;
  lade_cuda_functions *functions;
};

int lade_cuda_kernels_open(lade_device *device, const char *folder, struct lade_error *error,
                           lade_cuda_kernels **ret_kernels)
{
  struct lade_cuda_symbol wanted[LADE_CUDA_N_PLACES];
  for (int i = 0; i < LADE_CUDA_N_PLACES; i++)
    wanted[i] = (struct lade_cuda_symbol){lade_cuda_function_file(i), lade_cuda_function_name(i)};
  lade_cuda_kernels *kernels = malloc(sizeof(*kernels));
  if (!kernels)
    return lade_error_set(error, -ENOMEM, "no memory for the GPU's kernels");
  char found[PATH_MAX];
  lade_cuda_kernels_init(&kernels->table);
  if (!folder) {
    lade_cuda_folder_find(found);
    folder = found;
  }
  int status = lade_cuda_functions_open(device, folder, wanted, LADE_CUDA_N_PLACES, error, &kernels->functions);
  if (status) {
    free(kernels);
    return status;
  }
  *ret_kernels = kernels;
  return 0;
}

void lade_cuda_kernels_close(lade_cuda_kernels *kernels)
{
  if (!kernels)
    return;
  lade_cuda_functions_close(kernels->functions);
  free(kernels);
}

/* One kernel on its way to a stream. */
struct submission {
  struct lade_cuda_launcher base;
  const lade_cuda_kernels *kernels;
  enum lade_kernel kernel;
  const void *args;
  const struct lade_step *step;
  void *stream;
  int result; /* of the first launch that failed */
};

static void launch_put(const struct lade_cuda_launcher *base, const struct lade_cuda_launch *launch,
                       const struct lade_step *step)
{
  struct submission *submission = (struct submission *)(uintptr_t)base;
  void *params[] = {(void *)(uintptr_t)launch->args, &step};
  const struct lade_cuda_grid grid = {.blocks = {launch->grid[0], launch->grid[1], launch->grid[2]},
                                      .n_threads = launch->n_threads, .shared_bytes = launch->shared_bytes};
  if (!submission->result)
    submission->result = lade_cuda_functions_launch(submission->kernels->functions, launch->place, submission->stream,
                                                    &grid, params);
}

static int submission_put(void *stream, void *args)
{
  struct submission *submission = args;
  const struct lade_kernel_ctx ctx = {.step = submission->step, .launcher = &submission->base};
  submission->stream = stream;
  submission->kernels->table.fn[submission->kernel](&ctx, submission->args);
  return submission->result;
}

void lade_cuda_kernels_submit(const lade_cuda_kernels *kernels, lade_queue *queue, enum lade_kernel kernel,
                              const void *args, const struct lade_step *step, struct lade_span *ret_span,
                              uint64_t *ret_count)
{
  struct submission submission = {.base = {launch_put}, .kernels = kernels, .kernel = kernel, .args = args,
                                  .step = step};
  LADE_ASSERT(kernels->table.fn[kernel]);
  lade_cuda_queue_enqueue(queue, submission_put, &submission, ret_span, ret_count);
}
