/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's memory. A range is an inaccessible reservation of the process's own addresses; physical memory is a memfd,
 * filled with poison. Mapping puts it over the reservation without access, and opening it gives access. An access by
 * the processor thus faults as one by the GPU would. The calls know from their own lists which memory a copy may
 * access.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "fake_driver_internal.h"

#define GRANULE ((uint64_t)2 << 20)
#define PAGE_BYTES ((uint64_t)4096)
#define POISON 0xa5
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* by which a descriptor is recognised as memory */

EXPORT cuda_result cuMemGetAllocationGranularity(size_t *ret_bytes, const struct cuda_memory_properties *properties,
                                                 int which);
EXPORT cuda_result cuMemAddressReserve(cuda_address *ret_address, size_t bytes, size_t alignment, cuda_address hint,
                                       unsigned long long flags);
EXPORT cuda_result cuMemAddressFree(cuda_address address, size_t bytes);
EXPORT cuda_result cuMemCreate(cuda_memory *ret_memory, size_t bytes,
                               const struct cuda_memory_properties *properties, unsigned long long flags);
EXPORT cuda_result cuMemRelease(cuda_memory memory);
EXPORT cuda_result cuMemRetainAllocationHandle(cuda_memory *ret_memory, void *at);
EXPORT cuda_result cuMemExportToShareableHandle(void *ret_handle, cuda_memory memory, int type,
                                                unsigned long long flags);
EXPORT cuda_result cuMemImportFromShareableHandle(cuda_memory *ret_memory, void *os_handle, int type);
EXPORT cuda_result cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_memory memory,
                            unsigned long long flags);
EXPORT cuda_result cuMemUnmap(cuda_address address, size_t bytes);
EXPORT cuda_result cuMemSetAccess(cuda_address address, size_t bytes, const struct cuda_access *access, size_t n);
EXPORT cuda_result cuMemHostAlloc(void **ret_at, size_t bytes, unsigned flags);
EXPORT cuda_result cuMemAllocHost_v2(void **ret_at, size_t bytes);
EXPORT cuda_result cuMemFreeHost(void *at);
EXPORT cuda_result cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
EXPORT cuda_result cuMemHostUnregister(void *at);
EXPORT cuda_result cuMemHostGetDevicePointer_v2(cuda_address *ret_address, void *at, unsigned flags);

#define SEEN_ELSEWHERE ((uint64_t)1 << 60) /* devices see registered memory at its address plus this */

enum span_kind { SPAN_RANGE, SPAN_MAPPING, SPAN_PINNED, SPAN_REGISTERED };

struct memory {
  int fd, device; /* device: negative for memory of the host, or memory counted at its owner */
  uint64_t bytes;
  bool is_on_host;
  int n_refs; /* each handle and each mapping */
  bool can_export;
};

struct span {
  enum span_kind kind;
  uint64_t address, bytes;
  bool is_open;          /* of a mapping: devices have access; of registered memory: devices see it */
  bool is_host_open;     /* of a mapping of the host's memory: the processor has access, too */
  struct memory *memory; /* of a mapping */
  struct span *next;
};

static struct span *spans; /* guarded by fake.lock */

static void *pointer(uint64_t address)
{
  return (void *)(uintptr_t)address;
}

/* ---- the list ---- */

static void span_add(enum span_kind kind, uint64_t address, uint64_t bytes, struct memory *memory)
{
  struct span *span = calloc(1, sizeof(*span));
  LADE_ASSERT(span);
  *span = (struct span){.kind = kind, .address = address, .bytes = bytes, .memory = memory};
  pthread_mutex_lock(&fake.lock);
  span->next = spans;
  spans = span;
  fake.n_live++;
  pthread_mutex_unlock(&fake.lock);
}

/* Return the span of @kind that contains @address. Lock held. */
static struct span *span_find(enum span_kind kind, uint64_t address)
{
  for (struct span *span = spans; span; span = span->next)
    if (span->kind == kind && address >= span->address && address - span->address < span->bytes)
      return span;
  return NULL;
}

/* True if a span of @kind shares a byte with this range. */
static bool has_overlap(enum span_kind kind, uint64_t address, uint64_t bytes)
{
  bool is_found = false;
  pthread_mutex_lock(&fake.lock);
  for (const struct span *span = spans; span && !is_found; span = span->next)
    is_found = span->kind == kind && span->address < address + bytes && address < span->address + span->bytes;
  pthread_mutex_unlock(&fake.lock);
  return is_found;
}

/* Remove the span of @kind that starts at @address from the list. With @bytes it must have exactly that size. */
static bool span_remove(enum span_kind kind, uint64_t address, uint64_t bytes, struct span *ret_span)
{
  bool is_found = false;
  pthread_mutex_lock(&fake.lock);
  for (struct span **at = &spans; *at && !is_found; at = is_found ? at : &(*at)->next) {
    struct span *span = *at;
    is_found = span->kind == kind && span->address == address && (!bytes || span->bytes == bytes);
    if (is_found) {
      *ret_span = *span;
      *at = span->next;
      free(span);
      fake.n_live--;
    }
  }
  pthread_mutex_unlock(&fake.lock);
  return is_found;
}

/* True if open mappings cover the whole range. Lock held. */
static bool is_open(uint64_t address, uint64_t bytes)
{
  uint64_t end = address + bytes;
  while (address < end) {
    const struct span *span = span_find(SPAN_MAPPING, address);
    if (!span || !span->is_open || (span->memory->is_on_host && !span->is_host_open))
      return false;
    address = span->address + span->bytes;
  }
  return true;
}

enum fake_place fake_place(uint64_t address, uint64_t bytes)
{
  enum fake_place place = PLACE_PAGEABLE;
  const struct span *span;
  pthread_mutex_lock(&fake.lock);
  if (span_find(SPAN_RANGE, address))
    place = !is_open(address, bytes)                                    ? PLACE_BAD
            : span_find(SPAN_MAPPING, address)->memory->is_on_host ? PLACE_PINNED
                                                                    : PLACE_DEVICE;
  else if (fake_is_block(address, bytes))
    place = PLACE_DEVICE;
  else if ((span = span_find(SPAN_PINNED, address)) || (span = span_find(SPAN_REGISTERED, address)))
    place = address + bytes <= span->address + span->bytes ? PLACE_PINNED : PLACE_TORN;
  pthread_mutex_unlock(&fake.lock);
  return place;
}

/* ---- addresses ---- */

cuda_result cuMemGetAllocationGranularity(size_t *ret_bytes, const struct cuda_memory_properties *properties, int which)
{
  *ret_bytes = GRANULE;
  return fake_enter("cuMemGetAllocationGranularity", true);
}

cuda_result cuMemAddressReserve(cuda_address *ret_address, size_t bytes, size_t alignment, cuda_address hint,
                                unsigned long long flags)
{
  cuda_result result = fake_enter("cuMemAddressReserve", true);
  if (result || !bytes || bytes % GRANULE || alignment > GRANULE || alignment & (alignment - 1) || flags)
    return result ? result : CUDA_INVALID_VALUE;
  char *at = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return CUDA_OUT_OF_MEMORY;
  uint64_t start = (uint64_t)(uintptr_t)at, address = lade_align_up(start, GRANULE);
  if (address > start)
    munmap(at, address - start);
  munmap(pointer(address + bytes), start + GRANULE - address);
  span_add(SPAN_RANGE, address, bytes, NULL);
  *ret_address = address;
  return 0;
}

cuda_result cuMemAddressFree(cuda_address address, size_t bytes)
{
  struct span span;
  if (has_overlap(SPAN_MAPPING, address, bytes) || !span_remove(SPAN_RANGE, address, bytes, &span))
    return CUDA_INVALID_VALUE;
  munmap(pointer(address), bytes);
  return fake_leave("cuMemAddressFree");
}

/* ---- physical memory ---- */

static void memory_unref(struct memory *memory)
{
  pthread_mutex_lock(&fake.lock);
  bool is_last = --memory->n_refs == 0;
  pthread_mutex_unlock(&fake.lock);
  if (!is_last)
    return;
  close(memory->fd);
  if (memory->device >= 0)
    fake_give_back(memory->device, memory->bytes);
  fake_alive(-1);
  free(memory);
}

static bool poison_fill(int fd, uint64_t bytes)
{
  if (ftruncate(fd, (off_t)bytes))
    return false;
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    return false;
  memset(at, POISON, bytes);
  munmap(at, bytes);
  return fcntl(fd, F_ADD_SEALS, SEALS) == 0;
}

cuda_result cuMemCreate(cuda_memory *ret_memory, size_t bytes, const struct cuda_memory_properties *properties,
                        unsigned long long flags)
{
  cuda_result result = fake_enter("cuMemCreate", true);
  if (result || !bytes || bytes % GRANULE || properties->type != CUDA_MEMORY_PINNED || flags ||
      properties->handle_types & ~CUDA_HANDLE_POSIX)
    return result ? result : CUDA_INVALID_VALUE;
  if (properties->handle_types && !fake.handles)
    return CUDA_UNKNOWN;
  bool is_on_host = properties->location.type == CUDA_LOCATION_HOST_NUMA;
  if (is_on_host ? !fake.host_chunks || properties->location.id != 0
                 : properties->location.type != CUDA_LOCATION_DEVICE)
    return CUDA_INVALID_VALUE;
  int device = is_on_host ? -1 : properties->location.id;
  if (device >= 0 && !fake_take(device, bytes))
    return CUDA_OUT_OF_MEMORY;
  struct memory *memory = calloc(1, sizeof(*memory));
  LADE_ASSERT(memory);
  int fd = memfd_create("fake-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  *memory = (struct memory){.fd = fd, .device = device, .bytes = bytes, .is_on_host = is_on_host, .n_refs = 1,
                            .can_export = properties->handle_types != 0};
  fake_alive(1);
  if (memory->fd < 0 || !poison_fill(memory->fd, bytes)) {
    memory_unref(memory);
    return CUDA_OUT_OF_MEMORY;
  }
  *ret_memory = (uint64_t)(uintptr_t)memory;
  return 0;
}

cuda_result cuMemRelease(cuda_memory handle)
{
  memory_unref(pointer(handle));
  return fake_leave("cuMemRelease");
}

cuda_result cuMemRetainAllocationHandle(cuda_memory *ret_memory, void *at)
{
  cuda_result result = fake_enter("cuMemRetainAllocationHandle", false);
  if (result)
    return result;
  pthread_mutex_lock(&fake.lock);
  const struct span *span = span_find(SPAN_MAPPING, (uint64_t)(uintptr_t)at);
  if (span) {
    span->memory->n_refs++;
    *ret_memory = (uint64_t)(uintptr_t)span->memory;
  }
  pthread_mutex_unlock(&fake.lock);
  return span ? 0 : CUDA_INVALID_VALUE;
}

cuda_result cuMemExportToShareableHandle(void *ret_handle, cuda_memory handle, int type, unsigned long long flags)
{
  const struct memory *memory = pointer(handle);
  cuda_result result = fake_enter("cuMemExportToShareableHandle", true);
  if (result || type != CUDA_HANDLE_POSIX || flags || !memory->can_export)
    return result ? result : CUDA_INVALID_VALUE;
  *(int *)ret_handle = dup(memory->fd);
  return 0;
}

cuda_result cuMemImportFromShareableHandle(cuda_memory *ret_memory, void *os_handle, int type)
{
  cuda_result result = fake_enter("cuMemImportFromShareableHandle", true);
  int seals = fcntl((int)(intptr_t)os_handle, F_GET_SEALS);
  if (result || seals < 0 || (seals & SEALS) != SEALS)
    return result ? result : CUDA_INVALID_VALUE;
  struct memory *memory = calloc(1, sizeof(*memory));
  LADE_ASSERT(memory);
  int fd = dup((int)(intptr_t)os_handle);
  *memory = (struct memory){.fd = fd, .device = -1, .bytes = (uint64_t)lseek(fd, 0, SEEK_END), .n_refs = 1,
                            .can_export = true};
  fake_alive(1);
  *ret_memory = (uint64_t)(uintptr_t)memory;
  return 0;
}

cuda_result cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_memory handle, unsigned long long flags)
{
  struct memory *memory = pointer(handle);
  cuda_result result = fake_enter("cuMemMap", true);
  if (result)
    return result;
  pthread_mutex_lock(&fake.lock);
  const struct span *range = span_find(SPAN_RANGE, address);
  bool is_free = range && address + bytes <= range->address + range->bytes && offset == 0 && bytes == memory->bytes;
  for (const struct span *span = spans; span && is_free; span = span->next)
    is_free = span->kind != SPAN_MAPPING || span->address + span->bytes <= address || address + bytes <= span->address;
  memory->n_refs += is_free;
  pthread_mutex_unlock(&fake.lock);
  if (!is_free)
    return CUDA_INVALID_VALUE;
  void *at = mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0);
  if (at == MAP_FAILED) {
    memory_unref(memory);
    return CUDA_OUT_OF_MEMORY;
  }
  span_add(SPAN_MAPPING, address, bytes, memory);
  return 0;
}

cuda_result cuMemUnmap(cuda_address address, size_t bytes)
{
  struct span span;
  cuda_result result = fake_enter("cuMemUnmap", false);
  if (result || !span_remove(SPAN_MAPPING, address, bytes, &span))
    return result ? result : CUDA_INVALID_VALUE;
  void *at = mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  LADE_ASSERT(at != MAP_FAILED);
  (void)at;
  memory_unref(span.memory);
  return 0;
}

/* Give a device or the host access to a mapping. The host cannot access a device's memory. Lock held. */
static bool span_let(struct span *span, const struct cuda_access *access)
{
  bool is_host = access->location.type == CUDA_LOCATION_HOST_NUMA;
  span->is_host_open |= is_host;
  span->is_open |= !is_host;
  return access->flags == CUDA_ACCESS_READ_WRITE && (!is_host || span->memory->is_on_host);
}

/* Set access. The host's memory needs both permissions before any access, because the device is the processor here. */
cuda_result cuMemSetAccess(cuda_address address, size_t bytes, const struct cuda_access *access, size_t n)
{
  cuda_result result = fake_enter("cuMemSetAccess", true);
  if (result || n == 0)
    return result ? result : CUDA_INVALID_VALUE;
  pthread_mutex_lock(&fake.lock);
  struct span *span = span_find(SPAN_MAPPING, address);
  bool is_valid = span && span->address == address && span->bytes == bytes;
  for (size_t i = 0; i < n && is_valid; i++)
    is_valid = span_let(span, &access[i]);
  bool is_reached = is_valid && is_open(address, bytes);
  pthread_mutex_unlock(&fake.lock);
  if (!is_valid || (is_reached && mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE)))
    return CUDA_INVALID_VALUE;
  return 0;
}

/* ---- pinned memory ---- */

cuda_result cuMemHostAlloc(void **ret_at, size_t bytes, unsigned flags)
{
  cuda_result result = fake_enter("cuMemHostAlloc", true);
  if (result)
    return result;
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return CUDA_OUT_OF_MEMORY;
  span_add(SPAN_PINNED, (uint64_t)(uintptr_t)at, bytes, NULL);
  *ret_at = at;
  return 0;
}

cuda_result cuMemAllocHost_v2(void **ret_at, size_t bytes)
{
  return cuMemHostAlloc(ret_at, bytes, 0);
}

cuda_result cuMemFreeHost(void *at)
{
  struct span span;
  if (!span_remove(SPAN_PINNED, (uint64_t)(uintptr_t)at, 0, &span))
    return CUDA_INVALID_VALUE;
  munmap(at, span.bytes);
  return fake_leave("cuMemFreeHost");
}

cuda_result cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
  cuda_result result = fake_enter("cuMemHostRegister", true);
  uint64_t first = (uint64_t)(uintptr_t)at / PAGE_BYTES * PAGE_BYTES; /* whole pages are registered */
  uint64_t end = lade_align_up((uint64_t)(uintptr_t)at + bytes, PAGE_BYTES);
  if (result || !bytes)
    return result ? result : CUDA_INVALID_VALUE;
  if (has_overlap(SPAN_REGISTERED, first, end - first) || has_overlap(SPAN_PINNED, first, end - first))
    return CUDA_ALREADY_REGISTERED;
  span_add(SPAN_REGISTERED, (uint64_t)(uintptr_t)at, bytes, NULL);
  pthread_mutex_lock(&fake.lock);
  span_find(SPAN_REGISTERED, (uint64_t)(uintptr_t)at)->is_open = flags & CUDA_HOST_DEVICE_MAP;
  pthread_mutex_unlock(&fake.lock);
  return 0;
}

/*
 * Return the device's address: of memory allocated as pinned its own, of registered memory another one, if requested at
 * registration.
 */
cuda_result cuMemHostGetDevicePointer_v2(cuda_address *ret_address, void *at, unsigned flags)
{
  cuda_result result = fake_enter("cuMemHostGetDevicePointer", true);
  uint64_t address = (uint64_t)(uintptr_t)at;
  if (result)
    return result;
  pthread_mutex_lock(&fake.lock);
  const struct span *registered = span_find(SPAN_REGISTERED, address);
  bool is_seen = registered ? registered->is_open : span_find(SPAN_PINNED, address) != NULL;
  pthread_mutex_unlock(&fake.lock);
  if (flags || !is_seen)
    return CUDA_INVALID_VALUE;
  *ret_address = registered ? address | SEEN_ELSEWHERE : address;
  return 0;
}

uint64_t fake_word(uint64_t address)
{
  uint64_t at = address & ~SEEN_ELSEWHERE;
  pthread_mutex_lock(&fake.lock);
  const struct span *span = span_find(at == address ? SPAN_PINNED : SPAN_REGISTERED, at);
  bool is_seen = span && (at == address || span->is_open) && at % 8 == 0;
  pthread_mutex_unlock(&fake.lock);
  return is_seen ? at : 0;
}

cuda_result cuMemHostUnregister(void *at)
{
  struct span span;
  if (!span_remove(SPAN_REGISTERED, (uint64_t)(uintptr_t)at, 0, &span))
    return CUDA_NOT_REGISTERED;
  return fake_leave("cuMemHostUnregister");
}
