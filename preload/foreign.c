/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that another process or another interface owns: it is in the ledger, but counts against no budget a second
 * time.
 */
#include "account.h"
#include "driver.h"

static cuda_result ipc_open(__typeof__(cuIpcOpenMemHandle) *real, cuda_address *ret_at, struct cuda_ipc_handle handle,
                            unsigned flags)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_IMPORTED, 0);
  if (result)
    return result;
  size_t bytes = 0;
  result = real(ret_at, handle, flags);
  if (!result && REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *ret_at))
    bytes = 0;
  return taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
}

cuda_result cuIpcOpenMemHandle(cuda_address *ret_at, struct cuda_ipc_handle handle, unsigned flags)
{
  return ipc_open(REAL(cuIpcOpenMemHandle), ret_at, handle, flags);
}

cuda_result cuIpcOpenMemHandle_v2(cuda_address *ret_at, struct cuda_ipc_handle handle, unsigned flags)
{
  return ipc_open(REAL(cuIpcOpenMemHandle_v2), ret_at, handle, flags);
}

cuda_result cuIpcCloseMemHandle(cuda_address at)
{
  struct giving giving = giving_begin(LADE_LEDGER_ADDRESSES, at);
  return giving_end(&giving, REAL(cuIpcCloseMemHandle)(at));
}

cuda_result cuImportExternalMemory(cuda_external *ret_memory, const struct cuda_external_properties *properties)
{
  struct taking taking;
  uint64_t bytes = properties ? properties->bytes : 0;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_IMPORTED, bytes);
  if (!result) {
    result = REAL(cuImportExternalMemory)(ret_memory, properties);
    result = taking_end(&taking, result, LADE_LEDGER_FOREIGN, result ? 0 : (uintptr_t)*ret_memory, bytes);
  }
  return result;
}

cuda_result cuDestroyExternalMemory(cuda_external memory)
{
  struct giving giving = giving_begin(LADE_LEDGER_FOREIGN, (uintptr_t)memory);
  return giving_end(&giving, REAL(cuDestroyExternalMemory)(memory));
}
