/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces the CUDA device in a build without it: opening returns an error. Calls that need an open device cannot be
 * reached; this file has only those with callers in every build.
 */
#include <errno.h>

#include "base/base.h"
#include "device/cuda.h"

int lade_device_open_cuda(const struct lade_cuda_device_params *params, struct lade_error *error,
                          lade_device **ret_device)
{
  return lade_error_set(error, -ENODEV, "device cuda:%d: this build has no CUDA; configure with -Dcuda=enabled",
                        params->ordinal);
}

int lade_cuda_list(struct lade_error *error, struct lade_cuda_seen *ret_seen)
{
  return lade_error_set(error, -ENODEV, "this build has no CUDA; configure with -Dcuda=enabled");
}

int lade_cuda_get_memory(lade_device *device, struct lade_cuda_memory *ret_memory)
{
  return -ENODEV;
}

void lade_cuda_mark_memory(lade_device *device, enum lade_cuda_taker taker)
{
}

void lade_cuda_get_refusal(lade_device *device, int status, struct lade_error *error)
{
}

void lade_cuda_get_error(lade_device *device, struct lade_error *error)
{
  lade_error_set(error, -ENODEV, "this build has no CUDA");
}

void lade_cuda_fail(lade_device *device, const struct lade_error *error)
{
}

bool lade_cuda_is(const lade_device *device)
{
  return false;
}

bool lade_cuda_queue_is_stream(const lade_device *device, const lade_queue *queue)
{
  return false;
}

bool lade_cuda_queue_is_capturing(const lade_queue *queue)
{
  return false;
}

int lade_cuda_queue_adopt(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue)
{
  return -ENODEV;
}

int lade_cuda_get_capability(const lade_device *device)
{
  return 0;
}

int lade_cuda_get_version(const lade_device *device)
{
  return 0;
}

int lade_cuda_call(lade_device *device, int (*fn)(void *args), void *args)
{
  return -ENODEV;
}

int lade_cuda_functions_open(lade_device *device, const char *folder, const struct lade_cuda_symbol *wanted, int n,
                             struct lade_error *error, lade_cuda_functions **ret_functions)
{
  return lade_error_set(error, -ENODEV, "this build has no CUDA");
}

void lade_cuda_functions_close(lade_cuda_functions *functions)
{
}

int lade_cuda_n_channels(void)
{
  return 0;
}

int lade_cuda_functions_launch(const lade_cuda_functions *functions, int i, void *stream,
                               const struct lade_cuda_grid *grid, void **params)
{
  return -ENODEV;
}

void lade_cuda_queue_enqueue(lade_queue *queue, lade_cuda_enqueue_fn *fn, void *args, struct lade_span *ret_span,
                             uint64_t *ret_count)
{
}

int lade_cuda_graph_create(lade_device *device, lade_cuda_enqueue_fn *fn, void *args, struct lade_error *error,
                           lade_cuda_graph **ret_graph)
{
  return lade_error_set(error, -ENODEV, "this build has no CUDA");
}

void lade_cuda_graph_destroy(lade_cuda_graph *graph)
{
}

void lade_cuda_graph_launch(lade_cuda_graph *graph, lade_queue *queue, struct lade_span *ret_span, uint64_t *ret_count)
{
}
