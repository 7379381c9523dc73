/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's memory in one call: linear, pitched and managed allocations, pools, arrays, and memory of other processes
 * and interfaces. A block is filled with poison, counts against its device, and ends with its context, as with the real
 * driver; pools end with the device. Arrays have no bytes, only a size.
 *
 * This file also has the forms from before CUDA 3.2 with addresses of 32 bits, and the private tables. One function is
 * in none of the driver's lists, and another has a new form, as of a future CUDA.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "fake_driver_internal.h"
#include "preload/hooks.h"

#define POISON 0xa5
#define PITCH_BYTES 512
#define ARRAY_SPARSE 0x40

EXPORT cuda_result cuMemGetAddressRange_v2(cuda_address *ret_base, size_t *ret_bytes, cuda_address at);
EXPORT cuda_result cuIpcGetMemHandle(struct cuda_ipc_handle *ret_handle, cuda_address at);
EXPORT cuda_result cuGetExportTable(const void **ret_table, const void *id);
EXPORT cuda_result cuFakeNovelty(int *ret_value);
EXPORT cuda_result cuMemAlloc_v3(void *params, cuda_address *ret_at, size_t bytes);

enum block_kind { BLOCK_MEMORY, BLOCK_IMPORT, BLOCK_ARRAY, BLOCK_POOL, BLOCK_EXTERNAL };

struct block {
  enum block_kind kind;
  uint64_t key, bytes;
  int device;
  cuda_context context; /* NULL: it outlives contexts */
  bool is_mapped;       /* the key is an address mapped here */
  uint64_t origin;      /* of an import: the memory's address at its owner */
  int n_more;           /* and how often it was opened again */
  struct block *next;
};

static struct block *blocks; /* guarded by fake.lock */

/* ---- the list ---- */

static void block_end(struct block *block)
{
  if (block->is_mapped)
    munmap((void *)(uintptr_t)block->key, block->bytes);
  if (block->kind == BLOCK_MEMORY || block->kind == BLOCK_ARRAY)
    fake_give_back(block->device, block->bytes);
  fake_alive(-1);
  free(block);
}

static void block_add(const struct block *block)
{
  struct block *copy = malloc(sizeof(*copy));
  LADE_ASSERT(copy);
  *copy = *block;
  pthread_mutex_lock(&fake.lock);
  copy->next = blocks;
  blocks = copy;
  fake.n_live++;
  pthread_mutex_unlock(&fake.lock);
}

/* Remove and return the first block in the list that is of @kind and has @key, or that belongs to @context. */
static struct block *block_take(enum block_kind kind, uint64_t key, cuda_context context)
{
  pthread_mutex_lock(&fake.lock);
  struct block **at = &blocks;
  while (*at && (context ? (*at)->context != context : (*at)->kind != kind || (*at)->key != key))
    at = &(*at)->next;
  struct block *block = *at;
  if (block)
    *at = block->next;
  pthread_mutex_unlock(&fake.lock);
  return block;
}

/* Return the import of @origin in @context; NULL: none. */
static struct block *import_find(uint64_t origin, cuda_context context)
{
  struct block *block = blocks;
  while (block && (block->kind != BLOCK_IMPORT || block->origin != origin || block->context != context))
    block = block->next;
  return block;
}

static cuda_result block_free(const char *function, enum block_kind kind, uint64_t key)
{
  struct block *block = block_take(kind, key, NULL);
  if (!block)
    return CUDA_INVALID_VALUE;
  block_end(block);
  return fake_leave(function);
}

void fake_blocks_end(cuda_context context)
{
  fake_legacy_end(context);
  struct block *block;
  while ((block = block_take(BLOCK_MEMORY, 0, context)))
    block_end(block);
}

bool fake_is_block(uint64_t address, uint64_t bytes)
{
  const struct block *block = blocks;
  while (block && (!block->is_mapped || address < block->key || address + bytes > block->key + block->bytes))
    block = block->next;
  return block != NULL;
}

/* ---- memory ---- */

/* Allocate memory of the current device, near @hint, under its own address. */
static cuda_result memory_take(const char *function, enum block_kind kind, int device, uint64_t hint, uint64_t bytes,
                               uint64_t *ret_at)
{
  cuda_result result = fake_enter(function, true);
  if (result || !bytes)
    return result ? result : CUDA_INVALID_VALUE;
  device = device < 0 ? fake_context()->device : device;
  if (kind == BLOCK_MEMORY && !fake_take(device, bytes))
    return CUDA_OUT_OF_MEMORY;
  void *at = mmap((void *)(uintptr_t)hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(at != MAP_FAILED && (!hint || (uintptr_t)at <= UINT32_MAX));
  memset(at, POISON, bytes);
  *ret_at = (uintptr_t)at;
  block_add(&(struct block){.kind = kind, .key = *ret_at, .bytes = bytes, .device = device, .is_mapped = true,
                            .context = fake_context()});
  return 0;
}

cuda_result cuMemAlloc_v2(cuda_address *ret_at, size_t bytes)
{
  return memory_take("cuMemAlloc", BLOCK_MEMORY, -1, 0, bytes, ret_at);
}

cuda_result cuMemAlloc(unsigned *ret_at, unsigned bytes)
{
  uint64_t at = 0;
  cuda_result result = memory_take("cuMemAlloc", BLOCK_MEMORY, -1, 1 << 28, bytes, &at);
  *ret_at = result ? *ret_at : (unsigned)at;
  return result;
}

cuda_result cuMemAllocPitch_v2(cuda_address *ret_at, size_t *ret_pitch, size_t row_bytes, size_t n_rows,
                               unsigned element_bytes)
{
  *ret_pitch = lade_align_up(row_bytes, PITCH_BYTES);
  return memory_take("cuMemAllocPitch", BLOCK_MEMORY, -1, 0, *ret_pitch * n_rows, ret_at);
}

cuda_result cuMemAllocManaged(cuda_address *ret_at, size_t bytes, unsigned flags)
{
  return memory_take("cuMemAllocManaged", BLOCK_MEMORY, -1, 0, bytes, ret_at);
}

cuda_result cuMemFree_v2(cuda_address at)
{
  return block_free("cuMemFree", BLOCK_MEMORY, at);
}

cuda_result cuMemFree(unsigned at)
{
  return block_free("cuMemFree", BLOCK_MEMORY, at);
}

cuda_result cuMemGetAddressRange_v2(cuda_address *ret_base, size_t *ret_bytes, cuda_address at)
{
  cuda_result result = CUDA_INVALID_VALUE;
  pthread_mutex_lock(&fake.lock);
  for (const struct block *block = blocks; block && result; block = block->next) {
    if (block->is_mapped && at >= block->key && at - block->key < block->bytes) {
      if (ret_base)
        *ret_base = block->key;
      if (ret_bytes)
        *ret_bytes = block->bytes;
      result = 0;
    }
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/* ---- stream-ordered memory ---- */

/* Allocate in stream order. On a captured stream this gives an address without memory, which the graph owns. */
static cuda_result async_take(const char *function, int device, cuda_address *ret_at, size_t bytes,
                              cuda_stream stream)
{
  if (!fake_is_capturing(stream))
    return memory_take(function, BLOCK_MEMORY, device, 0, bytes, ret_at);
  *ret_at = fake_capture_take(stream, device, bytes);
  return fake_enter(function, true);
}

cuda_result cuMemAllocAsync(cuda_address *ret_at, size_t bytes, cuda_stream stream)
{
  return async_take("cuMemAllocAsync", fake_stream_context(stream)->device, ret_at, bytes, stream);
}

cuda_result cuMemAllocAsync_ptsz(cuda_address *ret_at, size_t bytes, cuda_stream stream)
{
  return async_take("cuMemAllocAsync_ptsz", fake_stream_context(stream)->device, ret_at, bytes, stream);
}

cuda_result cuMemAllocFromPoolAsync(cuda_address *ret_at, size_t bytes, cuda_pool pool, cuda_stream stream)
{
  return async_take("cuMemAllocFromPoolAsync", ((struct block *)pool)->device, ret_at, bytes, stream);
}

static cuda_result async_give(const char *function, cuda_address at, cuda_stream stream)
{
  if (!fake_is_capturing(stream))
    return block_free(function, BLOCK_MEMORY, at);
  fake_capture_give(stream, at);
  return fake_enter(function, true);
}

cuda_result cuMemFreeAsync(cuda_address at, cuda_stream stream)
{
  return async_give("cuMemFreeAsync", at, stream);
}

cuda_result cuMemFreeAsync_ptsz(cuda_address at, cuda_stream stream)
{
  return async_give("cuMemFreeAsync_ptsz", at, stream);
}

cuda_result cuMemPoolCreate(cuda_pool *ret_pool, const struct cuda_pool_properties *properties)
{
  cuda_result result = fake_enter("cuMemPoolCreate", false);
  if (result)
    return result;
  struct block *pool = calloc(1, sizeof(*pool));
  LADE_ASSERT(pool);
  pool->device = properties->location.id;
  block_add(&(struct block){.kind = BLOCK_POOL, .key = (uintptr_t)pool, .device = pool->device});
  *ret_pool = (cuda_pool)pool;
  return 0;
}

cuda_result cuDeviceGetDefaultMemPool(cuda_pool *ret_pool, cuda_device_id id)
{
  static struct block pools[MAX_DEVICES]; /* never destroyed */
  cuda_result result = fake_enter("cuDeviceGetDefaultMemPool", false);
  if (result || id < 0 || id >= MAX_DEVICES)
    return result ? result : CUDA_INVALID_DEVICE;
  __atomic_store_n(&pools[id].device, id, __ATOMIC_RELAXED);
  *ret_pool = (cuda_pool)&pools[id];
  return 0;
}

cuda_result cuMemPoolDestroy(cuda_pool pool)
{
  cuda_result result = block_free("cuMemPoolDestroy", BLOCK_POOL, (uintptr_t)pool);
  if (!result)
    free(pool);
  return result;
}

/* ---- arrays ---- */

static cuda_result array_take(const char *function, uint64_t bytes, void *ret_array)
{
  static uint64_t n_arrays;
  cuda_result result = fake_enter(function, true);
  if (result)
    return result;
  int device = fake_context()->device;
  if (!fake_take(device, bytes))
    return CUDA_OUT_OF_MEMORY;
  uint64_t key = 16 * __atomic_add_fetch(&n_arrays, 1, __ATOMIC_RELAXED);
  block_add(&(struct block){.kind = BLOCK_ARRAY, .key = key, .bytes = bytes, .device = device,
                            .context = fake_context()});
  *(uint64_t *)ret_array = key;
  return 0;
}

cuda_result cuArrayCreate_v2(cuda_array *ret_array, const struct cuda_array_shape *shape)
{
  return array_take("cuArrayCreate", shape->width * LADE_MAX(shape->height, 1) * shape->n_channels, ret_array);
}

static uint64_t shape_bytes(const struct cuda_array_shape_3d *shape)
{
  uint64_t n = shape->width * LADE_MAX(shape->height, 1) * LADE_MAX(shape->depth, 1) * shape->n_channels;
  return shape->flags & ARRAY_SPARSE ? 0 : n;
}

cuda_result cuArray3DCreate_v2(cuda_array *ret_array, const struct cuda_array_shape_3d *shape)
{
  return array_take("cuArray3DCreate", shape_bytes(shape), ret_array);
}

cuda_result cuArrayDestroy(cuda_array array)
{
  return block_free("cuArrayDestroy", BLOCK_ARRAY, (uintptr_t)array);
}

cuda_result cuMipmappedArrayCreate(cuda_mipmapped *ret_array, const struct cuda_array_shape_3d *shape,
                                   unsigned n_levels)
{
  return array_take("cuMipmappedArrayCreate", 2 * shape_bytes(shape), ret_array);
}

cuda_result cuMipmappedArrayDestroy(cuda_mipmapped array)
{
  return block_free("cuMipmappedArrayDestroy", BLOCK_ARRAY, (uintptr_t)array);
}

/* ---- memory of other processes and interfaces ---- */

cuda_result cuIpcGetMemHandle(struct cuda_ipc_handle *ret_handle, cuda_address at)
{
  size_t bytes = 0;
  cuda_result result = cuMemGetAddressRange_v2(NULL, &bytes, at);
  memcpy(ret_handle->bytes, &bytes, sizeof(bytes));
  memcpy(ret_handle->bytes + sizeof(bytes), &at, sizeof(at));
  return result ? result : fake_enter("cuIpcGetMemHandle", true);
}

/*
 * Make another mapping of the same size, one for each context, which counts how often it was opened. The bytes
 * themselves are not shared.
 */
cuda_result cuIpcOpenMemHandle_v2(cuda_address *ret_at, struct cuda_ipc_handle handle, unsigned flags)
{
  size_t bytes;
  cuda_address origin;
  memcpy(&bytes, handle.bytes, sizeof(bytes));
  memcpy(&origin, handle.bytes + sizeof(bytes), sizeof(origin));
  pthread_mutex_lock(&fake.lock);
  struct block *open = import_find(origin, fake_context());
  if (open) {
    open->n_more++;
    *ret_at = open->key;
  }
  pthread_mutex_unlock(&fake.lock);
  if (open)
    return fake_enter("cuIpcOpenMemHandle", true);
  cuda_result result = memory_take("cuIpcOpenMemHandle", BLOCK_IMPORT, -1, 0, bytes, ret_at);
  if (!result)
    blocks->origin = origin; /* the newest */
  return result;
}

cuda_result cuIpcCloseMemHandle(cuda_address at)
{
  struct block *block = blocks;
  while (block && (block->kind != BLOCK_IMPORT || block->key != at || block->n_more == 0))
    block = block->next;
  if (!block)
    return block_free("cuIpcCloseMemHandle", BLOCK_IMPORT, at);
  block->n_more--;
  return fake_leave("cuIpcCloseMemHandle");
}

cuda_result cuImportExternalMemory(cuda_external *ret_memory, const struct cuda_external_properties *properties)
{
  static char keys[64];
  static unsigned n_keys;
  cuda_result result = fake_enter("cuImportExternalMemory", true);
  if (result)
    return result;
  *ret_memory = (cuda_external)&keys[__atomic_fetch_add(&n_keys, 1, __ATOMIC_RELAXED) % sizeof(keys)];
  block_add(&(struct block){.kind = BLOCK_EXTERNAL, .key = (uintptr_t)*ret_memory, .bytes = properties->bytes});
  return 0;
}

cuda_result cuDestroyExternalMemory(cuda_external memory)
{
  return block_free("cuDestroyExternalMemory", BLOCK_EXTERNAL, (uintptr_t)memory);
}

/* ---- calls beyond the public lists ---- */

/* Return the one table. Its first entry is its own address, which identifies it to the test. */
cuda_result cuGetExportTable(const void **ret_table, const void *id)
{
  static const void *const table[] = {table};
  cuda_result result = fake_enter("cuGetExportTable", false);
  if (result || memcmp(id, FAKE_TABLE, strlen(FAKE_TABLE)) != 0)
    return result ? result : CUDA_NOT_FOUND;
  *ret_table = table;
  return 0;
}

cuda_result cuMemAlloc_v3(void *params, cuda_address *ret_at, size_t bytes)
{
  return params ? CUDA_INVALID_VALUE : memory_take("cuMemAlloc", BLOCK_MEMORY, -1, 0, bytes, ret_at);
}

cuda_result cuFakeNovelty(int *ret_value)
{
  *ret_value = 42;
  return fake_enter("cuFakeNovelty", false);
}
