/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations in the order of a stream. They count from the call that asks to the call that gives back, whatever the
 * stream does; what a pool keeps for later is the driver's. On a stream that is being captured nothing is allocated:
 * the call becomes a node of a graph, whose memory the driver takes when the graph is launched, and is not counted.
 */
#include "account.h"
#include "driver.h"

typedef cuda_result capturing_fn(cuda_stream stream, int *ret_status);

static struct place place_stream(struct place place, cuda_stream stream, capturing_fn *is_capturing)
{
  int status = 0;
  return is_capturing(stream, &status) == 0 && status != 0 ? (struct place){.account = -1} : place;
}

/* A pool that the program made is where it was made; others belong to the current device. */
static struct place place_pool(cuda_pool pool)
{
  struct place place = place_current();
  lade_ledger *ledger = account_ledger();
  if (ledger)
    place.account = lade_ledger_account_of(ledger, LADE_LEDGER_POOLS, (uintptr_t)pool, place.account);
  return place;
}

static cuda_result async_take(__typeof__(cuMemAllocAsync) *real, capturing_fn *is_capturing, cuda_address *ret_at,
                              size_t bytes, cuda_stream stream)
{
  struct taking taking;
  struct place place = place_stream(place_current(), stream, is_capturing);
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
  struct place place = place_stream(place_pool(pool), stream, is_capturing);
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

cuda_result cuMemFreeAsync(cuda_address at, cuda_stream stream)
{
  struct giving giving = giving_begin(LADE_LEDGER_ADDRESSES, at);
  return giving_end(&giving, REAL(cuMemFreeAsync)(at, stream));
}

cuda_result cuMemFreeAsync_ptsz(cuda_address at, cuda_stream stream)
{
  struct giving giving = giving_begin(LADE_LEDGER_ADDRESSES, at);
  return giving_end(&giving, REAL(cuMemFreeAsync_ptsz)(at, stream));
}

cuda_result cuMemPoolCreate(cuda_pool *ret_pool, const struct cuda_pool_properties *properties)
{
  struct taking taking;
  struct place place = properties ? place_location(&properties->location) : place_current();
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_NOTHING, 0);
  if (!result) {
    result = REAL(cuMemPoolCreate)(ret_pool, properties);
    result = taking_end(&taking, result, LADE_LEDGER_POOLS, result ? 0 : (uintptr_t)*ret_pool, 0);
  }
  return result;
}

cuda_result cuMemPoolDestroy(cuda_pool pool)
{
  struct giving giving = giving_begin(LADE_LEDGER_POOLS, (uintptr_t)pool);
  return giving_end(&giving, REAL(cuMemPoolDestroy)(pool));
}

cuda_result cuMemPoolImportPointer(cuda_address *ret_at, cuda_pool pool, void *data)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_pool(pool), LADE_LEDGER_IMPORTED, 0);
  if (result)
    return result;
  size_t bytes = 0;
  result = REAL(cuMemPoolImportPointer)(ret_at, pool, data);
  if (!result && REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *ret_at))
    bytes = 0;
  return taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
}
