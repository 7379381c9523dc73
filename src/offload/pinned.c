/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned host memory for a device. It comes from the driver if the driver provides it and only the device uses it.
 * Otherwise it is a slab from staging.h, pinned as a whole. Users of struct lade_pinned see no difference.
 *
 * The driver's memory is not used for drives. It is mapped page by page, while a slab has pages of 2 MiB, into which a
 * drive reads faster (docs/store.md). Also, no document states that the kernel lets a drive write into a driver's
 * pages. It is not used on a machine of several nodes that does not report the device's node either: a chunk is of one
 * node, and a slab can use any node with free memory. A node without memory is not requested, because drivers before
 * R595 can crash then.
 *
 * If the driver refuses memory for any reason, a slab is tried, and the slab's error is returned.
 * LADE_CUDA_HOST_CHUNKS=0 in the environment disables the driver's memory.
 */
#include "offload/pinned.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offload/numa.h"

/* Return the node for a chunk, or -1 if no chunk should be used. */
static int chunk_node(const struct lade_pinned_params *params)
{
  const char *wish = getenv("LADE_CUDA_HOST_CHUNKS");
  int node = params->numa_node;
  if (params->is_for_drives || !lade_device_gives_host(params->device) || (wish && strcmp(wish, "0") == 0))
    return -1;
  if (node < 0 && lade_numa_count() == 1)
    node = 0;
  return node >= 0 && lade_numa_has_memory(node, "/sys") ? node : -1;
}

static bool chunk_init(struct lade_pinned *pinned, const struct lade_pinned_params *params)
{
  const int node = chunk_node(params);
  const uint64_t limit_bytes = LADE_MAX(params->limit_bytes, params->bytes);
  if (node < 0 || lade_device_host_create(params->device, params->bytes, limit_bytes, node, &pinned->chunk))
    return false;
  pinned->data = pinned->chunk.data;
  pinned->bytes = pinned->chunk.bytes;
  return true;
}

static int slab_init(struct lade_pinned *pinned, const struct lade_pinned_params *params)
{
  struct lade_staging *staging = &pinned->staging;
  int status = lade_staging_init(staging, params->bytes, params->numa_node, params->faults);
  if (status)
    return status;
  pinned->data = staging->data;
  pinned->bytes = staging->bytes;
  status = lade_device_pin(params->device, staging->data, staging->bytes);
  if (status)
    lade_staging_finish(staging);
  return status;
}

int lade_pinned_init(struct lade_pinned *ret_pinned, const struct lade_pinned_params *params)
{
  struct lade_pinned pinned = {.device = params->device};
  int status = params->bytes ? 0 : -EINVAL;
  if (!status && !chunk_init(&pinned, params))
    status = slab_init(&pinned, params);
  if (!status)
    *ret_pinned = pinned;
  return status;
}

void lade_pinned_finish(struct lade_pinned *pinned)
{
  if (pinned->chunk.bytes)
    lade_device_host_release(pinned->device, &pinned->chunk);
  else if (pinned->staging.bytes)
    lade_device_unpin(pinned->device, pinned->staging.data, pinned->staging.bytes);
  lade_staging_finish(&pinned->staging);
  *pinned = (struct lade_pinned){0};
}
