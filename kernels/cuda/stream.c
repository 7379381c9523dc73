/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the table to the driver: a kernel's launches go to the stream one after the other, in the call that submits it.
 * The first that fails is what the queue hears; the ones after it are left out, since they would work on what it did
 * not make. Matrix products are calls of cuBLASLt where it is there.
 */
#include "kernels/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/launch_internal.h"

struct lade_cuda_kernels {
  struct lade_kernels table;
  lade_device *device;
  lade_cuda_functions *functions;
  struct lade_error note;           /* why the table has no cuBLASLt */
  struct lade_error attention_note; /* whose attention is wrong here */
};

/* All functions that a GPU has code for: wgmma is of sm_90 alone. */
static void symbols_get(int capability, struct lade_cuda_symbol ret_wanted[LADE_CUDA_N_PLACES])
{
  for (int i = 0; i < LADE_CUDA_N_PLACES; i++) {
    const char *file = lade_cuda_function_file(i);
    bool has_code = capability == 90 || !strstr(file, "wgmma");
    ret_wanted[i] = (struct lade_cuda_symbol){file, has_code ? lade_cuda_function_name(i) : NULL};
  }
}

/* Products go to cuBLASLt where it is there, unless the plain ones are asked for. */
static int products_open(lade_cuda_kernels *kernels, lade_device *device, struct lade_error *error)
{
  struct lade_kernels *table = &kernels->table;
  struct lade_error why = {0};
  const char *wish = getenv("LADE_MATMUL");
  if (wish && strcmp(wish, "plain") == 0)
    return 0;
  int status = lade_cublaslt_open(device, &why, &table->cublaslt);
  if (status == -ENOENT || status == -ENOSYS) {
    lade_error_set(&kernels->note, status, "%s; matrix products are plain kernels, without tensor cores", why.text);
    return 0;
  }
  if (status)
    return lade_error_set(error, status, "%s", why.text);
  table->library = lade_cublaslt_name(table->cublaslt);
  table->variant[LADE_K_MATMUL] = "cublaslt";
  return 0;
}

int lade_cuda_kernels_open(lade_device *device, const char *folder, struct lade_error *error,
                           lade_cuda_kernels **ret_kernels)
{
  struct lade_cuda_symbol wanted[LADE_CUDA_N_PLACES];
  symbols_get(lade_cuda_get_capability(device), wanted);
  lade_cuda_kernels *kernels = calloc(1, sizeof(*kernels));
  if (!kernels)
    return lade_error_set(error, -ENOMEM, "no memory for the GPU's kernels");
  kernels->device = device;
  char found[PATH_MAX];
  lade_cuda_kernels_init(&kernels->table);
  if (!folder) {
    lade_cuda_folder_find(found);
    folder = found;
  }
  int status = lade_cuda_functions_open(device, folder, wanted, LADE_CUDA_N_PLACES, error, &kernels->functions);
  if (!status)
    status = products_open(kernels, device, error);
  if (!status)
    status = lade_cuda_attention_open(kernels, device, &kernels->table, &kernels->attention_note, error);
  if (status) {
    lade_cuda_kernels_close(kernels);
    return status;
  }
  lade_cuda_mark_memory(device, LADE_CUDA_KERNELS);
  *ret_kernels = kernels;
  return 0;
}

void lade_cuda_kernels_close(lade_cuda_kernels *kernels)
{
  if (!kernels)
    return;
  lade_cublaslt_close(kernels->table.cublaslt);
  lade_cuda_functions_close(kernels->functions);
  free(kernels);
}

void lade_cuda_kernels_get(const lade_cuda_kernels *kernels, struct lade_kernels *ret_table)
{
  *ret_table = kernels->table;
}

const char *lade_cuda_kernels_note(const lade_cuda_kernels *kernels)
{
  return kernels->note.text;
}

const char *lade_cuda_kernels_attention_note(const lade_cuda_kernels *kernels)
{
  return kernels->attention_note.text;
}

/* One kernel on its way to a stream. */
struct submission {
  struct lade_cuda_launcher base;
  const lade_cuda_kernels *kernels;
  lade_kernel_fn *fn;
  const void *args;
  const struct lade_step *step;
  void *stream;
  int n_launches; /* products' too */
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

/* What goes wrong in the library is the device's status. */
static int submission_enqueue(void *stream, void *args)
{
  struct submission *submission = args;
  submission_put(submission, stream);
  if (submission->error.code)
    lade_cuda_fail(submission->kernels->device, &submission->error);
  return submission->result;
}

void lade_cuda_kernels_submit(const lade_cuda_kernels *kernels, lade_queue *queue, enum lade_kernel kernel,
                              const void *args, const struct lade_step *step, struct lade_span *ret_span,
                              uint64_t *ret_count)
{
  struct submission submission = submission_make(kernels, kernels->table.fn[kernel], args, step);
  lade_cuda_queue_enqueue(queue, submission_enqueue, &submission, ret_span, ret_count);
}

int lade_cuda_kernels_put(const lade_cuda_kernels *kernels, void *stream, enum lade_kernel kernel, const void *args,
                          const struct lade_step *step, int *n_launches, struct lade_error *error)
{
  struct submission submission = submission_make(kernels, kernels->table.fn[kernel], args, step);
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
