/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's memory, on the driver's virtual memory calls. The contract is shaped after them, so that this file
 * mostly forwards: device.c has checked all arguments before.
 *
 * Chunks have the granularity that the driver recommends, and file descriptors as handles. RDMA can reach them if the
 * device allows it. The driver does not promise that memory is zero, and memory can only be cleared where it has an
 * address. So a fresh chunk is cleared when it is first mapped.
 *
 * Memory of others. No call of the driver reports the bytes of a context. The bytes in use before the first chunk are
 * the context's, the driver's and other processes' together. If no capacity is stated, it is the bytes then left.
 * The bytes that libraries take later are the growth of the bytes in use, less our own chunks. The code that opens a
 * library counts the growth until then as that library's; it includes bytes that other processes took meanwhile.
 *
 * The context is the device's primary one, which the libraries of the runtime API share, or one that the caller brings
 * (cuda_context.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_internal.h"

#define MIN_CAPABILITY 80        /* sm_80: the lowest capability that the kernels are compiled for */
#define WORDS_BYTES 4096         /* 64 words, a cache line each; one for each bit of words_taken */

struct cuda_chunk {
  cuda_memory memory;
  bool is_fresh; /* never mapped, not yet cleared */
};

static struct cuda_chunk *chunk_get(const struct lade_chunk *chunk)
{
  return (struct cuda_chunk *)(uintptr_t)chunk->backing;
}

void lade_cuda_fail(lade_device *device, const struct lade_error *error)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  struct lade_cuda_memory memory;
  if (lade_cuda_get_memory(device, &memory)) /* the context is lost, and the driver has recorded the cause */
    return;
  pthread_mutex_lock(&cuda->lock);
  if (!cuda->library_error.code)
    cuda->library_error = *error;
  pthread_mutex_unlock(&cuda->lock);
  lade_device_fail(device, error->code);
}

/* ---- memory ---- */

static int cuda_reserve(lade_device *device, uint64_t bytes, uint64_t *ret_address)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemAddressReserve(ret_address, bytes, device->chunk_bytes, 0, 0);
  lade_cuda_leave(cuda, is_entered);
  return lade_cuda_errno(lade_cuda_refuse(cuda, "cuMemAddressReserve", result));
}

static void cuda_release(lade_device *device, uint64_t address, uint64_t bytes)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_check(cuda, "cuMemAddressFree", cuda->driver.cuMemAddressFree(address, bytes));
  lade_cuda_leave(cuda, is_entered);
}

/*
 * Create a chunk's memory, with a handle if possible. A device may report exportable memory, and yet a container may
 * refuse to create it. Such sandboxes forward only a part of the kernel module's calls. Memory without handles serves
 * all uses except sharing.
 */
static cuda_result memory_create(struct cuda_device *cuda, const struct lade_chunk *chunk, cuda_memory *ret_memory)
{
  struct cuda_memory_properties properties = cuda->properties;
  cuda_result result = CUDA_NOT_SUPPORTED;
  if (properties.handle_types && !atomic_load(&cuda->is_private))
    result = cuda->driver.cuMemCreate(ret_memory, chunk->bytes, &properties, 0);
  if (!result || result == CUDA_OUT_OF_MEMORY || chunk->is_shared)
    return result;
  properties.handle_types = 0;
  properties.flags.is_rdma_capable = 0;
  cuda_result private_result = cuda->driver.cuMemCreate(ret_memory, chunk->bytes, &properties, 0);
  if (!private_result)
    atomic_store(&cuda->is_private, true);
  return private_result;
}

static int cuda_chunk_create(lade_device *device, struct lade_chunk *chunk)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  struct cuda_chunk *own = lade_fault_calloc(device->faults, 1, sizeof(*own));
  if (!own)
    return -ENOMEM;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = memory_create(cuda, chunk, &own->memory);
  lade_cuda_leave(cuda, is_entered);
  if (lade_cuda_refuse(cuda, "cuMemCreate", result)) {
    free(own);
    return result == CUDA_NOT_SUPPORTED ? -ENOTSUP : lade_cuda_errno(result);
  }
  own->is_fresh = true;
  chunk->backing = (uint64_t)(uintptr_t)own;
  return 0;
}

static void cuda_chunk_release(lade_device *device, struct lade_chunk *chunk)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  struct cuda_chunk *own = chunk_get(chunk);
  bool is_entered = lade_cuda_enter(cuda);
  if (chunk->address)
    lade_cuda_unmap(cuda, chunk->address, chunk->bytes);
  lade_cuda_check(cuda, "cuMemRelease", cuda->driver.cuMemRelease(own->memory));
  lade_cuda_leave(cuda, is_entered);
  free(own);
}

/* Give the device access to the chunk mapped at @address, and clear the chunk if it is fresh. Context current. */
static cuda_result place_open(struct cuda_device *cuda, uint64_t address, const struct lade_chunk *chunk)
{
  struct cuda_chunk *own = chunk_get(chunk);
  const struct cuda_access access = {.location = cuda->properties.location, .flags = CUDA_ACCESS_READ_WRITE};
  cuda_result result = lade_cuda_refuse(cuda, "cuMemSetAccess",
                                        cuda->driver.cuMemSetAccess(address, chunk->bytes, &access, 1));
  if (result || !own->is_fresh)
    return result;
  result = lade_cuda_refuse(cuda, "cuMemsetD8Async",
                            cuda->driver.cuMemsetD8Async(address, 0, chunk->bytes, cuda->stream));
  if (!result)
    result = lade_cuda_refuse(cuda, "cuStreamSynchronize", cuda->driver.cuStreamSynchronize(cuda->stream));
  own->is_fresh = result != 0;
  return result;
}

/* Clear a fresh chunk at a temporary address, before other processes write to it. Context current. */
static cuda_result chunk_clear(struct cuda_device *cuda, const struct lade_chunk *chunk)
{
  cuda_address at = 0;
  cuda_result result = cuda->driver.cuMemAddressReserve(&at, chunk->bytes, cuda->base.chunk_bytes, 0, 0);
  if (result)
    return result;
  result = cuda->driver.cuMemMap(at, chunk->bytes, 0, chunk_get(chunk)->memory, 0);
  if (!result) {
    result = place_open(cuda, at, chunk);
    lade_cuda_unmap(cuda, at, chunk->bytes);
  }
  lade_cuda_check(cuda, "cuMemAddressFree", cuda->driver.cuMemAddressFree(at, chunk->bytes));
  return result;
}

static int cuda_chunk_export(lade_device *device, const struct lade_chunk *chunk, int *ret_descriptor)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  int descriptor = -1;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = chunk_get(chunk)->is_fresh ? chunk_clear(cuda, chunk) : 0;
  if (!result)
    result = cuda->driver.cuMemExportToShareableHandle(&descriptor, chunk_get(chunk)->memory, CUDA_HANDLE_POSIX, 0);
  lade_cuda_leave(cuda, is_entered);
  if (!result)
    *ret_descriptor = descriptor;
  return lade_cuda_errno(result);
}

/*
 * Import a chunk. No driver call returns the size of the memory; mapping more than there is fails. The driver does not
 * document its result for an unsuitable descriptor, so every result without a specific errno becomes -EINVAL.
 */
static int cuda_chunk_import(lade_device *device, struct lade_chunk *chunk, int descriptor)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  if (!cuda->properties.handle_types)
    return -ENOTSUP;
  struct cuda_chunk *own = lade_fault_calloc(device->faults, 1, sizeof(*own));
  if (!own)
    return -ENOMEM;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemImportFromShareableHandle(&own->memory, (void *)(intptr_t)descriptor,
                                                                   CUDA_HANDLE_POSIX);
  lade_cuda_leave(cuda, is_entered);
  if (result) {
    int error = lade_cuda_errno(result);
    free(own);
    return error == -EFAULT ? -EINVAL : error;
  }
  chunk->backing = (uint64_t)(uintptr_t)own;
  return 0;
}

static int cuda_map(lade_device *device, uint64_t address, struct lade_chunk *chunk)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = lade_cuda_refuse(cuda, "cuMemMap", cuda->driver.cuMemMap(address, chunk->bytes, 0,
                                                                                chunk_get(chunk)->memory, 0));
  if (!result) {
    result = place_open(cuda, address, chunk);
    if (result)
      lade_cuda_unmap(cuda, address, chunk->bytes);
  }
  lade_cuda_leave(cuda, is_entered);
  return lade_cuda_errno(result);
}

static int cuda_unmap(lade_device *device, struct lade_chunk *chunk)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemUnmap(chunk->address, chunk->bytes);
  lade_cuda_leave(cuda, is_entered);
  return lade_cuda_errno(result);
}

static int cuda_pin(lade_device *device, void *at, uint64_t bytes)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemHostRegister(at, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
  lade_cuda_leave(cuda, is_entered);
  return result == CUDA_ALREADY_REGISTERED ? -EBUSY : lade_cuda_errno(result);
}

static void cuda_unpin(lade_device *device, void *at, uint64_t bytes)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_check(cuda, "cuMemHostUnregister", cuda->driver.cuMemHostUnregister(at));
  lade_cuda_leave(cuda, is_entered);
}

int lade_cuda_alloc(lade_device *device, uint64_t bytes, uint64_t *ret_address)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemAlloc(ret_address, bytes);
  lade_cuda_leave(cuda, is_entered);
  return lade_cuda_errno(result);
}

void lade_cuda_free(lade_device *device, uint64_t address)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  if (!address)
    return;
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_check(cuda, "cuMemFree", cuda->driver.cuMemFree(address));
  lade_cuda_leave(cuda, is_entered);
}

int lade_cuda_get_address(lade_device *device, void *at, uint64_t *ret_address)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemHostGetDevicePointer(ret_address, at, 0);
  lade_cuda_leave(cuda, is_entered);
  return lade_cuda_errno(result);
}

static cuda_result memory_look(struct cuda_device *cuda, struct lade_cuda_memory *ret_memory)
{
  size_t free_bytes = 0, total_bytes = 0;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuMemGetInfo(&free_bytes, &total_bytes);
  lade_cuda_leave(cuda, is_entered);
  uint64_t created_bytes = atomic_load(&cuda->base.created_bytes), used_bytes = total_bytes - free_bytes;
  if (result)
    return result;
  *ret_memory = (struct lade_cuda_memory){
      .total_bytes = total_bytes,
      .free_bytes = free_bytes,
      .opened_bytes = cuda->opened_bytes,
      .outside_bytes = used_bytes - LADE_MIN(used_bytes, created_bytes),
  };
  memcpy(ret_memory->taken_bytes, cuda->taken_bytes, sizeof(cuda->taken_bytes));
  return 0;
}

int lade_cuda_get_memory(lade_device *device, struct lade_cuda_memory *ret_memory)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  return lade_cuda_check(cuda, "cuMemGetInfo", memory_look(cuda, ret_memory));
}

void lade_cuda_mark_memory(lade_device *device, enum lade_cuda_taker taker)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  struct lade_cuda_memory now;
  if (memory_look(cuda, &now)) /* the report lacks a number; not a failure */
    return;
  if (now.outside_bytes > cuda->marked_bytes)
    cuda->taken_bytes[taker] += now.outside_bytes - cuda->marked_bytes;
  cuda->marked_bytes = now.outside_bytes;
}

/* ---- opening ---- */

/* Close the device and free all parts that exist. Failures here are ignored, because no caller can receive them. */
static void cuda_close(lade_device *device)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  const struct cuda_driver *driver = &cuda->driver;
  if (cuda->context) {
    bool is_entered = lade_cuda_enter(cuda);
    for (int i = 0; i < 2; i++)
      if (cuda->anchors[i])
        driver->cuEventDestroy(cuda->anchors[i]);
    if (cuda->stream)
      driver->cuStreamDestroy(cuda->stream);
    if (cuda->words)
      driver->cuMemFreeHost(cuda->words);
    lade_cuda_leave(cuda, is_entered);
  }
  if (cuda->is_primary)
    driver->cuDevicePrimaryCtxRelease(cuda->id);
  if (driver->library)
    lade_cuda_driver_close(&cuda->driver);
  pthread_mutex_destroy(&cuda->lock);
  lade_device_finish(device);
  free(cuda);
}

const struct lade_device_ops lade_cuda_ops = {
    .reserve = cuda_reserve,
    .release = cuda_release,
    .chunk_create = cuda_chunk_create,
    .chunk_export = cuda_chunk_export,
    .chunk_import = cuda_chunk_import,
    .chunk_release = cuda_chunk_release,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .host_create = lade_cuda_host_create,
    .host_release = lade_cuda_host_release,
    .close = cuda_close,
    .queue_create = lade_cuda_queue_create,
    .queue_destroy = lade_cuda_queue_destroy,
    .launch = lade_cuda_queue_launch,
    .copy = lade_cuda_queue_copy,
    .wait = lade_cuda_queue_wait,
    .signal = lade_host_queue_signal,
    .poll = lade_host_queue_poll,
    .sync = lade_host_queue_sync,
    .busy_ns = lade_host_queue_busy_ns,
    .now_ns = lade_host_queue_now_ns,
};

/* Report the result of @call as the reason why the device cannot be opened. */
static int open_fail(const struct cuda_device *cuda, struct lade_error *error, const char *call, cuda_result result)
{
  return result ? lade_cuda_error_set(&cuda->driver, error, call, result) : 0;
}

/* Find the device: that of the caller's context, or by its ordinal. */
static int ordinal_find(struct cuda_device *cuda, const struct lade_cuda_device_params *params,
                        struct lade_error *error)
{
  if (!params->context) {
    cuda_result result = cuda->driver.cuDeviceGet(&cuda->id, params->ordinal);
    if (result == CUDA_INVALID_DEVICE || result == CUDA_INVALID_VALUE)
      return lade_error_set(error, -ENODEV, "there is no GPU number %d; nvidia-smi -L lists them from 0",
                            params->ordinal);
    return open_fail(cuda, error, "cuDeviceGet", result);
  }
  cuda_result result = cuda->driver.cuCtxPushCurrent(params->context);
  if (result)
    return open_fail(cuda, error, "cuCtxPushCurrent", result);
  result = cuda->driver.cuCtxGetDevice(&cuda->id);
  cuda_context context = NULL;
  cuda->driver.cuCtxPopCurrent(&context);
  return open_fail(cuda, error, "cuCtxGetDevice", result);
}

/* The device's abilities and its PCI address, in the order of the attributes below. */
enum ability {
  CAPABILITY_MAJOR, CAPABILITY_MINOR, UNIFIED, VIRTUAL_MEMORY, STREAM_WORDS, EXPORTS, RDMA,
  PCI_DOMAIN, PCI_BUS, PCI_DEVICE, HOST_CHUNKS, N_ABILITIES
};

/*
 * Read the abilities. A driver that does not know an attribute returns CUDA_INVALID_VALUE: then the device lacks that
 * ability.
 */
static int abilities_get(const struct cuda_device *cuda, struct lade_error *error, int abilities[N_ABILITIES])
{
  static const int attributes[N_ABILITIES] = {
      CUDA_ATTRIBUTE_CAPABILITY_MAJOR, CUDA_ATTRIBUTE_CAPABILITY_MINOR, CUDA_ATTRIBUTE_UNIFIED_ADDRESSING,
      CUDA_ATTRIBUTE_VIRTUAL_MEMORY,   CUDA_ATTRIBUTE_STREAM_WORDS,     CUDA_ATTRIBUTE_POSIX_HANDLES,
      CUDA_ATTRIBUTE_RDMA,             CUDA_ATTRIBUTE_PCI_DOMAIN,       CUDA_ATTRIBUTE_PCI_BUS,
      CUDA_ATTRIBUTE_PCI_DEVICE,       CUDA_ATTRIBUTE_HOST_CHUNKS,
  };
  for (int i = 0; i < N_ABILITIES; i++) {
    cuda_result result = cuda->driver.cuDeviceGetAttribute(&abilities[i], attributes[i], cuda->id);
    if (result && result != CUDA_INVALID_VALUE)
      return open_fail(cuda, error, "cuDeviceGetAttribute", result);
    abilities[i] = result ? 0 : abilities[i];
  }
  return 0;
}

static int abilities_check(const char *name, const int abilities[N_ABILITIES], struct lade_error *error)
{
  static const struct {
    enum ability ability;
    const char *name;
  } wanted[] = {
      {UNIFIED, "addresses shared with the host"},
      {VIRTUAL_MEMORY, "virtual memory management"},
      {STREAM_WORDS, "streams that wait for 64-bit words"},
  };
  int major = abilities[CAPABILITY_MAJOR], minor = abilities[CAPABILITY_MINOR];
  if (major * 10 + minor < MIN_CAPABILITY)
    return lade_error_set(error, -ENODEV, "%s is of compute capability %d.%d and Lade needs %d.%d (A100 and later)",
                          name, major, minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
  for (size_t i = 0; i < LADE_COUNT(wanted); i++)
    if (!abilities[wanted[i].ability])
      return lade_error_set(error, -ENODEV, "%s has no %s here, which Lade needs; a virtual GPU may lack it", name,
                            wanted[i].name);
  return 0;
}

/*
 * Write the PCI name of function 0 of the device's slot. Leave it empty if all numbers are 0, because the driver does
 * not know them: no GPU is the first device of the first bus.
 */
static void pci_name(struct cuda_device *cuda, const int abilities[N_ABILITIES])
{
  const unsigned domain = (unsigned)abilities[PCI_DOMAIN], bus = (unsigned)abilities[PCI_BUS];
  const unsigned slot = (unsigned)abilities[PCI_DEVICE];
  if (domain || bus || slot)
    snprintf(cuda->base.pci, sizeof(cuda->base.pci), "%04x:%02x:%02x.0", domain, bus, slot);
}

/* Check that Lade supports the device, and fill in its name and the properties of its chunks. */
static int device_describe(struct cuda_device *cuda, struct lade_error *error)
{
  char name[72] = "";
  int abilities[N_ABILITIES] = {0};
  cuda_result result = cuda->driver.cuDeviceGetName(name, sizeof(name), cuda->id);
  if (result)
    return open_fail(cuda, error, "cuDeviceGetName", result);
  snprintf(cuda->base.name, sizeof(cuda->base.name), "cuda:%d: %.71s", cuda->id, name);
  int status = abilities_get(cuda, error, abilities);
  if (!status)
    status = abilities_check(name, abilities, error);
  cuda->capability = 10 * abilities[CAPABILITY_MAJOR] + abilities[CAPABILITY_MINOR];
  cuda->has_host_chunks = abilities[HOST_CHUNKS] != 0;
  pci_name(cuda, abilities);
  cuda->properties = (struct cuda_memory_properties){
      .type = CUDA_MEMORY_PINNED,
      .handle_types = abilities[EXPORTS] ? CUDA_HANDLE_POSIX : 0,
      .location = {CUDA_LOCATION_DEVICE, cuda->id},
      .flags.is_rdma_capable = abilities[RDMA] != 0,
  };
  return status;
}

static int context_open(struct cuda_device *cuda, void *context, struct lade_error *error)
{
  if (context) {
    cuda->context = context;
    return 0;
  }
  cuda_result result = cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, cuda->id);
  cuda->is_primary = !result;
  if (result)
    cuda->context = NULL;
  return open_fail(cuda, error, "cuDevicePrimaryCtxRetain", result);
}

/* Set chunk_bytes to the driver's recommended granularity. Context current. */
static int granularity_get(struct cuda_device *cuda, struct lade_error *error)
{
  size_t bytes = 0;
  cuda_result result = cuda->driver.cuMemGetAllocationGranularity(&bytes, &cuda->properties,
                                                                  CUDA_GRANULARITY_RECOMMENDED);
  cuda->base.chunk_bytes = bytes;
  return open_fail(cuda, error, "cuMemGetAllocationGranularity", result);
}

/* Create the device's own stream, the words and the clock. Context current. */
static int parts_open(struct cuda_device *cuda, struct lade_error *error)
{
  const struct cuda_driver *driver = &cuda->driver;
  void *words = NULL;
  cuda_result result = driver->cuStreamCreate(&cuda->stream, CUDA_STREAM_NON_BLOCKING);
  if (result)
    return open_fail(cuda, error, "cuStreamCreate", result);
  result = driver->cuMemHostAlloc(&words, WORDS_BYTES, CUDA_HOST_PORTABLE);
  if (result)
    return open_fail(cuda, error, "cuMemHostAlloc", result);
  cuda->words = words;
  for (int i = 0; i < 2 && !result; i++)
    result = driver->cuEventCreate(&cuda->anchors[i], CUDA_EVENT_BLOCKING_SYNC);
  if (result)
    return open_fail(cuda, error, "cuEventCreate", result);
  cuda->anchor_ns = lade_now_ns(); /* not after the event happens, so that no event's time is in the future */
  result = driver->cuEventRecord(cuda->anchors[0], cuda->stream);
  if (result)
    return open_fail(cuda, error, "cuEventRecord", result);
  result = driver->cuEventSynchronize(cuda->anchors[0]);
  return open_fail(cuda, error, "cuEventSynchronize", result);
}

/* Set the capacity. Memory in use by now is not available to chunks. Context current. */
static int capacity_set(struct cuda_device *cuda, uint64_t stated_bytes, struct lade_error *error)
{
  size_t free_bytes = 0, total_bytes = 0;
  cuda_result result = cuda->driver.cuMemGetInfo(&free_bytes, &total_bytes);
  if (result)
    return open_fail(cuda, error, "cuMemGetInfo", result);
  if (stated_bytes > total_bytes)
    return lade_error_set(error, -EOVERFLOW, "%s has %zu bytes and %llu were asked for", cuda->base.name, total_bytes,
                          (unsigned long long)stated_bytes);
  cuda->opened_bytes = cuda->marked_bytes = cuda->taken_bytes[LADE_CUDA_CONTEXT] = total_bytes - free_bytes;
  uint64_t bytes = stated_bytes ? stated_bytes : free_bytes;
  cuda->base.capacity_bytes = bytes / cuda->base.chunk_bytes * cuda->base.chunk_bytes;
  return 0;
}

static int cuda_open(struct cuda_device *cuda, const struct lade_cuda_device_params *params, struct lade_error *error)
{
  int status = lade_cuda_driver_open(&cuda->driver, error);
  if (!status)
    status = ordinal_find(cuda, params, error);
  if (!status)
    status = device_describe(cuda, error);
  if (!status)
    status = context_open(cuda, params->context, error);
  if (status)
    return status;
  bool is_entered = lade_cuda_enter(cuda);
  status = granularity_get(cuda, error);
  if (!status)
    status = parts_open(cuda, error);
  if (!status)
    status = capacity_set(cuda, params->capacity_bytes, error);
  lade_cuda_leave(cuda, is_entered);
  if (!status && lade_device_status(&cuda->base))
    status = open_fail(cuda, error, cuda->first_call, cuda->first_result);
  return status;
}

int lade_device_open_cuda(const struct lade_cuda_device_params *params, struct lade_error *error,
                          lade_device **ret_device)
{
  if (params->struct_size != sizeof(*params))
    return lade_error_set(error, -EINVAL, "cuda device: struct_size is %zu and must be %zu; compile against this "
                          "library's headers", params->struct_size, sizeof(*params));
  struct cuda_device *cuda = lade_fault_calloc(params->faults, 1, sizeof(*cuda));
  if (!cuda)
    return lade_error_set(error, -ENOMEM, "cuda device: out of memory");
  lade_device_init(&cuda->base, &lade_cuda_ops, params->faults);
  pthread_mutex_init(&cuda->lock, NULL);
  struct lade_error why = {0};
  int status = cuda_open(cuda, params, &why);
  if (status) {
    cuda_close(&cuda->base);
    return lade_error_set(error, status, "device cuda:%d: %s", params->ordinal, why.text);
  }
  *ret_device = &cuda->base;
  return 0;
}

static int names_get(const struct cuda_driver *driver, struct lade_error *error, struct lade_cuda_seen *seen)
{
  const char *call = "cuDeviceGetCount";
  struct cuda_uuid uuid;
  cuda_device_id id;
  int n = 0;
  cuda_result result = driver->cuDeviceGetCount(&n);
  while (!result && seen->n < LADE_MIN(n, LADE_CUDA_SEEN_MAX)) {
    call = "cuDeviceGetUuid";
    result = driver->cuDeviceGet(&id, seen->n);
    if (!result)
      result = driver->cuDeviceGetUuid(&uuid, id);
    if (!result)
      memcpy(seen->names[seen->n++].uuid, uuid.bytes, sizeof(uuid.bytes));
  }
  return result ? lade_cuda_error_set(driver, error, call, result) : 0;
}

int lade_cuda_list(struct lade_error *error, struct lade_cuda_seen *ret_seen)
{
  struct cuda_driver driver;
  struct lade_cuda_seen seen = {0};
  int status = lade_cuda_driver_open(&driver, error);
  if (status)
    return status;
  status = names_get(&driver, error, &seen);
  lade_cuda_driver_close(&driver);
  if (!status)
    *ret_seen = seen;
  return status;
}
