/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices by name, for programs that link the library, and the operations that differ for a GPU alone.
 *
 * The public parameters are few. Other parameters of devices (a shared pool of threads, throttled links, faults) belong
 * to this library's own runtime. A host device opened here populates its chunks on the calling thread. A dry one gets
 * links so fast that their time is negligible, because the caller did not ask for simulated time.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"

#define DRY_LINK_BYTES_PER_S ((uint64_t)1 << 40) /* copies take next to no time */

int lade_device_open(const struct lade_device_params *params, struct lade_error *error, lade_device **ret_device)
{
  if (!ret_device)
    return lade_error_set(error, -EINVAL, "lade_device_open: ret_device is NULL");
  struct lade_device_params own;
  int status = lade_struct_read("lade_device_params", params, &own, sizeof(own), error);
  if (status)
    return status;
  const struct lade_host_device_params host = {
      .struct_size = sizeof(host),
      .capacity_bytes = own.capacity_bytes,
  };
  const struct lade_dry_device_params dry = {
      .struct_size = sizeof(dry),
      .capacity_bytes = own.capacity_bytes,
      .to_host = {.bytes_per_s = DRY_LINK_BYTES_PER_S},
      .to_device = {.bytes_per_s = DRY_LINK_BYTES_PER_S},
  };
  const char *name = own.name ? own.name : own.context ? "cuda" : "host";
  if (own.context && lade_cuda_ordinal(name) < 0)
    return lade_error_set(error, -EINVAL, "device '%.40s' works in no CUcontext: expected cuda", name);
  if (strcmp(name, "host") == 0)
    return lade_device_open_host(&host, error, ret_device);
  if (strcmp(name, "dry") == 0)
    return lade_device_open_dry(&dry, error, ret_device);
  const struct lade_cuda_device_params cuda = {
      .struct_size = sizeof(cuda),
      .ordinal = lade_cuda_ordinal(name),
      .capacity_bytes = own.capacity_bytes,
      .context = own.context,
  };
  if (cuda.ordinal >= 0)
    return lade_device_open_cuda(&cuda, error, ret_device);
  return lade_error_set(error, -EINVAL, "device: there is none called '%.40s'; host, dry and cuda:0 are known", name);
}

const char *lade_device_reason(lade_device *device, int status, struct lade_error *why)
{
  *why = (struct lade_error){0};
  if (lade_cuda_is(device))
    lade_cuda_get_refusal(device, status, why);
  return *why->text ? why->text : strerror(-status);
}

int lade_queue_adopt(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue)
{
  return device && ret_queue && lade_cuda_is(device) ? lade_cuda_queue_adopt(device, role, stream, ret_queue) : -EINVAL;
}

int lade_queue_record(lade_queue *queue, uint64_t *ret_count)
{
  if (!queue || !ret_count)
    return -EINVAL;
  if (lade_cuda_is(lade_queue_get_device(queue)) && lade_cuda_queue_is_stream(lade_queue_get_device(queue), queue))
    lade_cuda_queue_enqueue(queue, NULL, NULL, NULL, ret_count);
  else
    *ret_count = lade_queue_submitted(queue);
  return 0;
}
