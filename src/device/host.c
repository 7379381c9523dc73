/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's memory: real address ranges, real chunks, the machine's own page tables.
 *
 * A chunk is private anonymous memory, 2 MiB aligned, with MADV_HUGEPAGE, and populated when it is created. It starts
 * at its own parking address. Mapping moves its pages to the requested address with mremap. mremap copies no byte. It
 * rewrites page-table entries: whole upper-level ones, because both sides are aligned. Unmapping moves them to a new
 * parking address and leaves a fence, PROT_NONE, behind. An empty range is a fence from end to end.
 *
 * A reserved range never has a hole in which another thread's mmap could be placed. Mapping replaces the fence under
 * the kernel's one lock. Unmapping uses MREMAP_DONTUNMAP, which keeps the emptied mapping in place until the fence
 * covers it. Kernels before 5.7 (and some sandboxes) lack that flag. There the bytes are copied out 2 MiB at a time,
 * and each piece is freed as soon as it is copied. So the peak is exceeded by one piece at most.
 *
 * Rejected: chunks as ranges of one memfd. It is simpler, but kernels with default settings use no huge pages when a
 * memfd is populated (shmem_enabled is "never" or "advise"; collapsing them afterwards needs 6.1 and as much time
 * again). Populating 4 KiB pages takes ten times as long; docs/memory.md has the figures. The cost of this choice: a
 * chunk has one address at a time, and cannot be shared with another process. A shared chunk therefore has a separate
 * implementation: a memfd of its size, mapped at the requested address and never moved. It is sealed, so that no
 * process can truncate it while others use it.
 *
 * Children of fork do not inherit chunks (MADV_DONTFORK), so that no page is copied on write during a step or a drive's
 * transfer.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "device/host.h"

#define CHUNK_BYTES ((uint64_t)2 << 20) /* a huge page */
#define POPULATE_BYTES (4 * CHUNK_BYTES) /* one task of populating */
#define PAGE_BYTES 4096                  /* no supported machine has smaller pages */

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* of shared memory, which keeps its size */

/* Names that older C libraries lack. The values are the kernel's ABI. */
enum { ADVICE_POPULATE_WRITE = 23, MOVE_KEEPING_SOURCE = 4, MAP_KEEPING_OTHERS = 0x100000 };

static void *pointer(uint64_t address)
{
  return (void *)(uintptr_t)address;
}

/* Cover @bytes at @address with a fence, replacing what is there. */
static int fence_set(uint64_t address, uint64_t bytes)
{
  void *at = mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? -ENOMEM : 0;
}

/* Create a fence of @bytes at any address aligned to a chunk. */
static int fence_create(uint64_t bytes, uint64_t *ret_address)
{
  if (bytes > SIZE_MAX - CHUNK_BYTES)
    return -ENOMEM;
  uint64_t whole = bytes + CHUNK_BYTES;
  void *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return -ENOMEM;
  uint64_t start = (uint64_t)(uintptr_t)at, address = lade_align_up(start, CHUNK_BYTES);
  if (address > start)
    munmap(at, address - start);
  if (address - start < CHUNK_BYTES)
    munmap(pointer(address + bytes), CHUNK_BYTES - (address - start));
  *ret_address = address;
  return 0;
}

/* Turn the fence of @bytes at @address into a chunk's memory: writable, on huge pages if possible, not inherited. */
static int fence_open(uint64_t address, uint64_t bytes)
{
  if (mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE))
    return -ENOMEM;
  madvise(pointer(address), bytes, MADV_HUGEPAGE); /* best effort: a kernel may be built without huge pages */
  if (madvise(pointer(address), bytes, MADV_DONTFORK))
    return -ENOMEM;
  return 0;
}

struct populate {
  uint64_t address, bytes;
  atomic_int error;
};

static void populate_task(void *arg, int i_task, int i_thread)
{
  struct populate *job = arg;
  uint64_t offset = (uint64_t)i_task * POPULATE_BYTES;
  uint64_t bytes = LADE_MIN(POPULATE_BYTES, job->bytes - offset);
  volatile char *at = pointer(job->address + offset);
  if (!madvise((void *)at, bytes, ADVICE_POPULATE_WRITE))
    return;
  if (errno != EINVAL) {
    atomic_store(&job->error, -ENOMEM);
    return;
  }
  for (uint64_t i = 0; i < bytes; i += PAGE_BYTES) /* before Linux 5.14 */
    at[i] = 0;
}

/* Allocate and zero every page now, on all cores, so that a step takes no page fault. */
static int chunk_populate(struct host_device *host, const struct lade_chunk *chunk)
{
  struct populate job = {.address = chunk->backing, .bytes = chunk->bytes};
  lade_pool_run(host->pool, populate_task, &job, (int)lade_div_up((int64_t)chunk->bytes, POPULATE_BYTES));
  return atomic_load(&job.error);
}

/* Move pages by copying, for kernels without MREMAP_DONTUNMAP. @to is a fence, @from is left empty. */
static int pages_copy_out(uint64_t to, uint64_t from, uint64_t bytes)
{
  int error = fence_open(to, bytes);
  if (error)
    return error;
  for (uint64_t i = 0; i < bytes; i += CHUNK_BYTES) {
    memcpy(pointer(to + i), pointer(from + i), CHUNK_BYTES);
    madvise(pointer(from + i), CHUNK_BYTES, MADV_DONTNEED);
  }
  return 0;
}

/*
 * Move the pages at @from to the fence at @to; @from stays mapped and is empty. On failure the fence is unmapped.
 * Exception: the failed call may have removed the fence, and another mapping may be there by now. Then the addresses
 * are leaked, but no memory.
 */
static int pages_move_out(struct host_device *host, uint64_t to, uint64_t from, uint64_t bytes)
{
  int error = lade_fault(host->base.faults, LADE_FAULT_MOVE);
  if (!error) {
    void *at = mremap(pointer(from), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MOVE_KEEPING_SOURCE, pointer(to));
    if (at != MAP_FAILED)
      return 0;
    if (errno != EINVAL)
      return -ENOMEM;
    error = -EINVAL;
  }
  if (error == -EINVAL)
    error = pages_copy_out(to, from, bytes);
  if (error)
    munmap(pointer(to), bytes);
  return error ? -ENOMEM : 0;
}

/* Move the pages at @from onto the fence at @to; nothing is left at @from. */
static int pages_move_in(uint64_t to, uint64_t from, uint64_t bytes)
{
  if (mremap(pointer(from), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pointer(to)) != MAP_FAILED)
    return 0;
  /* A failed mremap may have removed the fence. This restores it, and changes nothing if it is still there. */
  mmap(pointer(to), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED | MAP_KEEPING_OTHERS, -1,
       0);
  return -ENOMEM;
}

/* ---- shared chunks ---- */

static int shared_create(struct lade_chunk *chunk)
{
  int descriptor = memfd_create("lade", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0)
    return -ENOMEM;
  if (fallocate(descriptor, 0, 0, (off_t)chunk->bytes) || fcntl(descriptor, F_ADD_SEALS, SEALS)) {
    close(descriptor);
    return -ENOMEM;
  }
  chunk->descriptor = descriptor;
  return 0;
}

/* Replace a shared mapping by a fence. If there is no memory for a fence, the mapping itself becomes one. */
static void shared_fence(uint64_t address, uint64_t bytes)
{
  if (fence_set(address, bytes))
    mprotect(pointer(address), bytes, PROT_NONE);
}

/*
 * Map a shared chunk at @address: the mapping replaces the fence in one call. If the call fails after the fence was
 * removed, the fence is restored.
 */
static int shared_map(const struct lade_chunk *chunk, uint64_t address)
{
  int error = 0;
  void *at = mmap(pointer(address), chunk->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, chunk->descriptor, 0);
  if (at == MAP_FAILED || madvise(at, chunk->bytes, MADV_DONTFORK))
    error = -ENOMEM;
  else if (madvise(at, chunk->bytes, ADVICE_POPULATE_WRITE) && errno != EINVAL) /* before Linux 5.14: page by page */
    error = -ENOMEM;
  if (error)
    shared_fence(address, chunk->bytes);
  return error;
}

static void shared_release(const struct lade_chunk *chunk)
{
  if (chunk->address)
    shared_fence(chunk->address, chunk->bytes);
  close(chunk->descriptor);
}

static int host_chunk_export(lade_device *device, const struct lade_chunk *chunk, int *ret_descriptor)
{
  int descriptor = fcntl(chunk->descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0)
    return -EMFILE;
  *ret_descriptor = descriptor;
  return 0;
}

/*
 * Import a shared chunk. Accept only memory that no process can truncate: a read past the end of a file is a signal,
 * not an error.
 */
static int host_chunk_import(lade_device *device, struct lade_chunk *chunk, int descriptor)
{
  struct stat status;
  int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(descriptor, &status) || (uint64_t)status.st_size != chunk->bytes)
    return -EINVAL;
  chunk->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return chunk->descriptor < 0 ? -EMFILE : 0;
}

/* ---- memory ---- */

static int host_reserve(lade_device *device, uint64_t bytes, uint64_t *ret_address)
{
  return fence_create(bytes, ret_address);
}

static void host_release(lade_device *device, uint64_t address, uint64_t bytes)
{
  munmap(pointer(address), bytes);
}

static int host_chunk_create(lade_device *device, struct lade_chunk *chunk)
{
  if (chunk->is_shared)
    return shared_create(chunk);
  int error = fence_create(chunk->bytes, &chunk->backing);
  if (error)
    return error;
  error = fence_open(chunk->backing, chunk->bytes);
  if (!error)
    error = chunk_populate((struct host_device *)device, chunk);
  if (error)
    munmap(pointer(chunk->backing), chunk->bytes);
  return error;
}

/*
 * Release a chunk. A fence replaces a mapped chunk; if there is no memory for a fence, the chunk's own mapping becomes
 * one.
 */
static void host_chunk_release(lade_device *device, struct lade_chunk *chunk)
{
  if (chunk->is_shared) {
    shared_release(chunk);
  } else if (!chunk->address) {
    munmap(pointer(chunk->backing), chunk->bytes);
  } else if (fence_set(chunk->backing, chunk->bytes)) {
    madvise(pointer(chunk->backing), chunk->bytes, MADV_DONTNEED);
    mprotect(pointer(chunk->backing), chunk->bytes, PROT_NONE);
  }
}

static int host_map(lade_device *device, uint64_t address, struct lade_chunk *chunk)
{
  if (chunk->is_shared)
    return shared_map(chunk, address);
  int error = pages_move_in(address, chunk->backing, chunk->bytes);
  if (!error)
    chunk->backing = address;
  return error;
}

static int host_unmap(lade_device *device, struct lade_chunk *chunk)
{
  uint64_t parking = 0;
  if (chunk->is_shared)
    return fence_set(chunk->address, chunk->bytes);
  int error = fence_create(chunk->bytes, &parking);
  if (error)
    return error;
  error = pages_move_out((struct host_device *)device, parking, chunk->backing, chunk->bytes);
  if (error)
    return error;
  error = fence_set(chunk->backing, chunk->bytes);
  if (error) { /* the emptied mapping is still there and must not stay accessible: move the pages back */
    int lost = pages_move_in(chunk->backing, parking, chunk->bytes);
    LADE_ASSERT(!lost);
    (void)lost;
    return error;
  }
  chunk->backing = parking;
  return 0;
}

static void host_close(lade_device *device)
{
  lade_device_finish(device);
  free(device);
}

static const struct lade_device_ops host_ops = {
    .reserve = host_reserve,
    .release = host_release,
    .chunk_create = host_chunk_create,
    .chunk_release = host_chunk_release,
    .chunk_export = host_chunk_export,
    .chunk_import = host_chunk_import,
    .map = host_map,
    .unmap = host_unmap,
    .close = host_close,
    .queue_create = lade_host_queue_create,
    .queue_destroy = lade_host_queue_destroy,
    .launch = lade_host_queue_launch,
    .copy = lade_host_queue_copy,
    .wait = lade_host_queue_wait,
    .signal = lade_host_queue_signal,
    .poll = lade_host_queue_poll,
    .sync = lade_host_queue_sync,
    .busy_ns = lade_host_queue_busy_ns,
    .now_ns = lade_host_queue_now_ns,
};

static void host_name(struct host_device *host)
{
  char cpu[80];
  lade_cpu_name(cpu, sizeof(cpu));
  snprintf(host->base.name, sizeof(host->base.name), "host: %s", cpu);
}

int lade_device_open_host(const struct lade_host_device_params *params, struct lade_error *error,
                          lade_device **ret_device)
{
  if (params->struct_size != sizeof(*params))
    return lade_error_set(error, -EINVAL, "host device: struct_size is %zu and must be %zu; compile against this "
                          "library's headers", params->struct_size, sizeof(*params));
  struct lade_memory memory = {.bytes = params->capacity_bytes};
  int status = params->capacity_bytes ? 0 : lade_memory_get("", error, &memory);
  if (status)
    return status;
  struct host_device *host = lade_fault_calloc(params->faults, 1, sizeof(*host));
  if (!host)
    return lade_error_set(error, -ENOMEM, "host device: out of memory");
  lade_device_init(&host->base, &host_ops, params->faults);
  host_name(host);
  host->base.chunk_bytes = CHUNK_BYTES;
  host->base.capacity_bytes = memory.bytes / CHUNK_BYTES * CHUNK_BYTES;
  host->base.is_unified = true;
  host->pool = params->pool;
  host->to_host = params->to_host;
  host->to_device = params->to_device;
  *ret_device = &host->base;
  return 0;
}
