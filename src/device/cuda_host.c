/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory from the driver: a chunk on one of the host's NUMA nodes, created and mapped by the same calls as the
 * device's own chunks.
 *
 * The device, its copies and the processor access it at one address. It is on the requested node, or the request fails.
 * Its pages are not found and pinned one by one, as those of the process's own memory are.
 *
 * Drivers have provided such memory since CUDA 12.2, and have reported since 12.9 if a device has it. Drivers that do
 * not report it get no request, because some of them crash if the node has no memory. A failed request is undone, and
 * the caller then uses other memory. So a failure does not become the device's status, unless the undo fails.
 *
 * The driver does not promise zeroed memory. The device clears it, because the device writes over its link faster than
 * one thread does here.
 */
#include <errno.h>

#include "device/cuda_internal.h"

static cuda_result chunk_open(struct cuda_device *cuda, cuda_address at, uint64_t bytes,
                              const struct cuda_location *location)
{
  const struct cuda_access access[] = {{.location = cuda->properties.location, .flags = CUDA_ACCESS_READ_WRITE},
                                       {.location = *location, .flags = CUDA_ACCESS_READ_WRITE}};
  cuda_result result = cuda->driver.cuMemSetAccess(at, bytes, access, LADE_COUNT(access));
  if (!result)
    result = cuda->driver.cuMemsetD8Async(at, 0, bytes, cuda->stream);
  return result ? result : cuda->driver.cuStreamSynchronize(cuda->stream);
}

static cuda_result chunk_map(struct cuda_device *cuda, cuda_address at, uint64_t bytes, cuda_memory memory,
                             const struct cuda_location *location)
{
  cuda_result result = cuda->driver.cuMemMap(at, bytes, 0, memory, 0);
  if (result)
    return result;
  result = chunk_open(cuda, at, bytes, location);
  if (result)
    lade_cuda_unmap(cuda, at, bytes);
  return result;
}

/*
 * Round @bytes up to whole granules; -EOVERFLOW if that is more than @limit_bytes. Context current. 0, or a negative
 * errno.
 */
static int chunk_size(struct cuda_device *cuda, const struct cuda_memory_properties *properties, uint64_t bytes,
                      uint64_t limit_bytes, uint64_t *ret_bytes)
{
  size_t granule = 0;
  cuda_result result = cuda->driver.cuMemGetAllocationGranularity(&granule, properties, CUDA_GRANULARITY_MINIMUM);
  if (result)
    return lade_cuda_errno(result);
  *ret_bytes = lade_align_up(bytes, granule);
  return *ret_bytes < bytes || *ret_bytes > limit_bytes ? -EOVERFLOW : 0;
}

/* Create, map and clear the chunk; on failure undo all of it. Context current. */
static cuda_result chunk_make(struct cuda_device *cuda, const struct cuda_memory_properties *properties, uint64_t bytes,
                              cuda_address *ret_at, cuda_memory *ret_memory)
{
  const struct cuda_driver *driver = &cuda->driver;
  cuda_result result = driver->cuMemCreate(ret_memory, bytes, properties, 0);
  if (result)
    return result;
  result = driver->cuMemAddressReserve(ret_at, bytes, 0, 0, 0);
  if (!result) {
    result = chunk_map(cuda, *ret_at, bytes, *ret_memory, &properties->location);
    if (result)
      lade_cuda_check(cuda, "cuMemAddressFree", driver->cuMemAddressFree(*ret_at, bytes));
  }
  if (result)
    lade_cuda_check(cuda, "cuMemRelease", driver->cuMemRelease(*ret_memory));
  return result;
}

int lade_cuda_host_create(lade_device *device, struct lade_host_chunk *chunk, uint64_t limit_bytes, int numa_node)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  const struct cuda_memory_properties properties = {.type = CUDA_MEMORY_PINNED,
                                                    .location = {CUDA_LOCATION_HOST_NUMA, numa_node}};
  cuda_address at = 0;
  cuda_memory memory = 0;
  uint64_t bytes = 0;
  if (!cuda->has_host_chunks)
    return -ENOTSUP;
  bool is_entered = lade_cuda_enter(cuda);
  int status = chunk_size(cuda, &properties, chunk->bytes, limit_bytes, &bytes);
  if (!status)
    status = lade_cuda_errno(chunk_make(cuda, &properties, bytes, &at, &memory));
  lade_cuda_leave(cuda, is_entered);
  if (!status)
    *chunk = (struct lade_host_chunk){.data = (char *)(uintptr_t)at, .bytes = bytes, .backing = memory};
  return status;
}

void lade_cuda_host_release(lade_device *device, struct lade_host_chunk *chunk)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  const cuda_address at = (cuda_address)(uintptr_t)chunk->data;
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_unmap(cuda, at, chunk->bytes);
  lade_cuda_check(cuda, "cuMemAddressFree", cuda->driver.cuMemAddressFree(at, chunk->bytes));
  lade_cuda_check(cuda, "cuMemRelease", cuda->driver.cuMemRelease(chunk->backing));
  lade_cuda_leave(cuda, is_entered);
}
