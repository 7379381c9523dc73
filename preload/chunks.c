/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory that the program maps itself: handles and mappings both hold it, until all of them are gone. */
#include <errno.h>

#include "account.h"
#include "driver.h"

cuda_result cuMemCreate(cuda_memory *ret_memory, size_t bytes, const struct cuda_memory_properties *properties,
                        unsigned long long flags)
{
  struct taking taking;
  struct account_place place = properties ? place_location(&properties->location) : place_current();
  place.owner = NULL; /* it outlives contexts */
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_CHUNK, bytes);
  if (!result) {
    result = REAL(cuMemCreate)(ret_memory, bytes, properties, flags);
    result = taking_end(&taking, result, LADE_LEDGER_CHUNKS, result ? 0 : *ret_memory, bytes);
  }
  return result;
}

cuda_result cuMemRelease(cuda_memory memory)
{
  struct giving giving = giving_begin(LADE_LEDGER_CHUNKS, memory);
  return giving_end(&giving, REAL(cuMemRelease)(memory));
}

cuda_result cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_memory memory, unsigned long long flags)
{
  lade_ledger *ledger = account_ledger();
  struct lade_holding *mapping = NULL;
  if (ledger && lade_ledger_map(ledger, memory, bytes, &mapping) == -ENOMEM)
    return CUDA_OUT_OF_MEMORY;
  cuda_result result = REAL(cuMemMap)(address, bytes, offset, memory, flags);
  if (mapping && result)
    lade_ledger_drop(ledger, mapping);
  else if (mapping)
    lade_ledger_settle(ledger, mapping, LADE_LEDGER_MAPPINGS, address, bytes); /* whose size the caller stated */
  return result;
}

cuda_result cuMemUnmap(cuda_address address, size_t bytes)
{
  lade_ledger *ledger = account_ledger();
  struct lade_holding *mappings = ledger ? lade_ledger_unmap(ledger, address, bytes) : NULL;
  cuda_result result = REAL(cuMemUnmap)(address, bytes);
  if (mappings && result)
    lade_ledger_keep_list(ledger, mappings);
  else if (mappings)
    lade_ledger_drop_list(ledger, mappings);
  return result;
}

cuda_result cuMemRetainAllocationHandle(cuda_memory *ret_memory, void *at)
{
  cuda_result result = REAL(cuMemRetainAllocationHandle)(ret_memory, at);
  lade_ledger *ledger = account_ledger();
  if (!result && ledger)
    lade_ledger_retain(ledger, (uintptr_t)at, *ret_memory);
  return result;
}

cuda_result cuMemImportFromShareableHandle(cuda_memory *ret_memory, void *os_handle, int type)
{
  struct taking taking;
  struct account_place place = place_current();
  place.owner = NULL;
  cuda_result result = taking_begin(&taking, place, LADE_LEDGER_IMPORTED, 0);
  if (!result) {
    result = REAL(cuMemImportFromShareableHandle)(ret_memory, os_handle, type);
    result = taking_end(&taking, result, LADE_LEDGER_CHUNKS, result ? 0 : *ret_memory, 0);
  }
  return result;
}
