/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations in the order of a stream. They count from the allocating call to the freeing call, independently of the
 * stream's progress; the driver owns the bytes that a pool caches. On a captured stream no memory is allocated: the
 * call becomes a node of a graph, and counts with it (graphs.c). A freeing call there becomes a node too. It frees at a
 * launch, which the ledger learns when the address is returned again.
 *
 * Memory is on its pool's device. Without a named pool that is the stream's device, not the current one. A pool does
 * not report its place, so each is noted when the driver returns it.
 */
#include "account.h"
#include "driver.h"

#define STREAM_PER_THREAD 2 /* CU_STREAM_PER_THREAD; it, CU_STREAM_LEGACY and NULL are of the current context */

typedef cuda_result capturing_fn(cuda_stream stream, int *ret_status);

/* Return the place of memory in a stream's order; none while the stream is captured. */
static struct account_place place_stream(cuda_stream stream, capturing_fn *is_capturing)
{
  cuda_context context = NULL;
  int status = 0;
  if (is_capturing(stream, &status) == 0 && status != 0)
    return (struct account_place){.account = -1};
  if ((uintptr_t)stream <= STREAM_PER_THREAD || REAL(cuStreamGetCtx)(stream, &context))
    return place_current();
  return place_context(context);
}

/* Return the place of @pool, or @place if the pool is unknown; memory without a place stays so. */
static struct account_place place_pool(cuda_pool pool, struct account_place place)
{
  lade_ledger *ledger = account_ledger();
  if (ledger && place.account >= 0)
    place.account = lade_ledger_account_of(ledger, LADE_LEDGER_POOLS, (uintptr_t)pool, place.account);
  return place;
}

static cuda_result async_take(__typeof__(cuMemAllocAsync) *real, capturing_fn *is_capturing, cuda_address *ret_at,
                              size_t bytes, cuda_stream stream)
{
  struct taking taking;
  struct account_place place = place_stream(stream, is_capturing);
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_POOL, bytes);
  if (!result) {
    result = real(ret_at, bytes, stream);
    result = taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
  }
  return result;
}

cuda_result cuMemAllocAsync(cuda_address *ret_at, size_t bytes, cuda_stream stream)
{
  return async_take(REAL(cuMemAllocAsync), REAL(cuStreamIsCapturing), ret_at, bytes, stream);
}

cuda_result cuMemAllocAsync_ptsz(cuda_address *ret_at, size_t bytes, cuda_stream stream)
{
  return async_take(REAL(cuMemAllocAsync_ptsz), REAL(cuStreamIsCapturing_ptsz), ret_at, bytes, stream);
}

static cuda_result pool_take(__typeof__(cuMemAllocFromPoolAsync) *real, capturing_fn *is_capturing,
                             cuda_address *ret_at, size_t bytes, cuda_pool pool, cuda_stream stream)
{
  struct taking taking;
  struct account_place place = place_pool(pool, place_stream(stream, is_capturing));
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_POOL, bytes);
  if (!result) {
    result = real(ret_at, bytes, pool, stream);
    result = taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
  }
  return result;
}

cuda_result cuMemAllocFromPoolAsync(cuda_address *ret_at, size_t bytes, cuda_pool pool, cuda_stream stream)
{
  return pool_take(REAL(cuMemAllocFromPoolAsync), REAL(cuStreamIsCapturing), ret_at, bytes, pool, stream);
}

cuda_result cuMemAllocFromPoolAsync_ptsz(cuda_address *ret_at, size_t bytes, cuda_pool pool, cuda_stream stream)
{
  return pool_take(REAL(cuMemAllocFromPoolAsync_ptsz), REAL(cuStreamIsCapturing_ptsz), ret_at, bytes, pool, stream);
}

static cuda_result async_give(__typeof__(cuMemFreeAsync) *real, capturing_fn *is_capturing, cuda_address at,
                              cuda_stream stream)
{
  int status = 0;
  if (is_capturing(stream, &status) == 0 && status != 0)
    return real(at, stream);
  struct giving giving = giving_begin(LADE_LEDGER_ADDRESSES, at);
  return giving_end(&giving, real(at, stream));
}

cuda_result cuMemFreeAsync(cuda_address at, cuda_stream stream)
{
  return async_give(REAL(cuMemFreeAsync), REAL(cuStreamIsCapturing), at, stream);
}

cuda_result cuMemFreeAsync_ptsz(cuda_address at, cuda_stream stream)
{
  return async_give(REAL(cuMemFreeAsync_ptsz), REAL(cuStreamIsCapturing_ptsz), at, stream);
}

/*
 * Return the place of a new pool. Managed memory without a device of its own counts on the current one, as
 * cuMemAllocManaged's does.
 */
static struct account_place place_of_pool(int type, const struct cuda_location *location)
{
  bool is_anywhere = type == CUDA_MEMORY_MANAGED && location && location->type != CUDA_LOCATION_DEVICE;
  return location && !is_anywhere ? place_location(location) : place_current();
}

cuda_result cuMemPoolCreate(cuda_pool *ret_pool, const struct cuda_pool_properties *properties)
{
  struct taking taking;
  struct account_place place = place_of_pool(properties ? properties->type : 0,
                                             properties ? &properties->location : NULL);
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_NOTHING, 0);
  if (!result) {
    result = REAL(cuMemPoolCreate)(ret_pool, properties);
    result = taking_end(&taking, result, LADE_LEDGER_POOLS, result ? 0 : (uintptr_t)*ret_pool, 0);
  }
  return result;
}

static cuda_result device_pool_get(__typeof__(cuDeviceGetMemPool) *real, cuda_pool *ret_pool, cuda_device_id id)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_device(id), LADE_LEDGER_NOTHING, 0);
  if (!result) {
    result = real(ret_pool, id);
    result = taking_end(&taking, result, LADE_LEDGER_POOLS, result ? 0 : (uintptr_t)*ret_pool, 0);
  }
  return result;
}

cuda_result cuDeviceGetDefaultMemPool(cuda_pool *ret_pool, cuda_device_id id)
{
  return device_pool_get(REAL(cuDeviceGetDefaultMemPool), ret_pool, id);
}

cuda_result cuDeviceGetMemPool(cuda_pool *ret_pool, cuda_device_id id)
{
  return device_pool_get(REAL(cuDeviceGetMemPool), ret_pool, id);
}

static cuda_result place_pool_get(__typeof__(cuMemGetMemPool) *real, cuda_pool *ret_pool,
                                  struct cuda_location *location, int type)
{
  struct taking taking;
  struct account_place place = place_of_pool(type, location);
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_NOTHING, 0);
  if (!result) {
    result = real(ret_pool, location, type);
    result = taking_end(&taking, result, LADE_LEDGER_POOLS, result ? 0 : (uintptr_t)*ret_pool, 0);
  }
  return result;
}

cuda_result cuMemGetDefaultMemPool(cuda_pool *ret_pool, struct cuda_location *location, int type)
{
  return place_pool_get(REAL(cuMemGetDefaultMemPool), ret_pool, location, type);
}

cuda_result cuMemGetMemPool(cuda_pool *ret_pool, struct cuda_location *location, int type)
{
  return place_pool_get(REAL(cuMemGetMemPool), ret_pool, location, type);
}

cuda_result cuMemPoolDestroy(cuda_pool pool)
{
  struct giving giving = giving_begin(LADE_LEDGER_POOLS, (uintptr_t)pool);
  return giving_end(&giving, REAL(cuMemPoolDestroy)(pool));
}

cuda_result cuMemPoolImportPointer(cuda_address *ret_at, cuda_pool pool, void *data)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_pool(pool, place_current()), LADE_LEDGER_IMPORTED, 0);
  if (result)
    return result;
  size_t bytes = 0;
  result = REAL(cuMemPoolImportPointer)(ret_at, pool, data);
  if (!result && REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *ret_at))
    bytes = 0;
  return taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
}
