/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session on a GPU: its device and its kernels.
 *
 * The device is opened before anything is planned, because what it has free is the capacity that a plan may have, and
 * its kernels before the graph is made, because they say how much scratch each op takes. Both are then as they are
 * when the run begins: context and machine code are loaded, and what they took is not counted as free. Once there is a
 * budget the device is limited to it.
 */
#include <errno.h>

#include "device/cuda.h"
#include "kernels/cuda.h"
#include "run/session_internal.h"

int session_gpu_open(lade_session *s, struct lade_error *error)
{
  const struct lade_cuda_device_params how = {.struct_size = sizeof(how), .ordinal = s->params.gpu,
                                              .faults = s->params.faults};
  struct lade_device_info info;
  struct lade_cuda_memory memory;
  struct lade_error why = {0};
  if (s->peers.layout.mesh.world > 1)
    return lade_error_set(error, -EINVAL, "several ranks compute on hosts so far, and --device cuda:%d is one GPU",
                          s->params.gpu);
  if (s->params.throttle.bytes_per_s || s->params.throttle.latency_ns)
    return lade_error_set(error, -EINVAL, "--link-rate throttles copies of the host device; a GPU has a link of its "
                          "own");
  int status = lade_device_open_cuda(&how, error, &s->device);
  if (status)
    return status;
  status = lade_cuda_kernels_open(s->device, NULL, &why, &s->cuda_kernels);
  if (status) /* machine code that is not there is something missing, not a mistake */
    return lade_error_set(error, status == -ENOENT ? -ENODEV : status, "device cuda:%d: %s", s->params.gpu, why.text);
  status = lade_cuda_get_memory(s->device, &memory);
  if (status) {
    lade_cuda_get_error(s->device, error);
    return status;
  }
  lade_device_limit(s->device, memory.free_bytes);
  lade_cuda_kernels_get(s->cuda_kernels, &s->kernels);
  if (*lade_cuda_kernels_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_note(s->cuda_kernels));
  if (*lade_cuda_kernels_attention_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_attention_note(s->cuda_kernels));
  lade_device_get_info(s->device, &info);
  s->capacity_bytes = info.capacity_bytes;
  s->chunk_bytes = info.chunk_bytes;
  return 0;
}

uint64_t session_gpu_outside(const lade_session *s)
{
  struct lade_cuda_memory memory = {0};
  if (!s->cuda_kernels || lade_cuda_get_memory(s->device, &memory))
    return 0;
  return memory.outside_bytes;
}
