/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the driver pins: separate in the ledger, and in no device's budget. */
#include "account.h"
#include "driver.h"

static struct account_place place_host(void)
{
  return (struct account_place){LADE_LEDGER_HOST, place_current().owner};
}

cuda_result cuMemHostAlloc(void **ret_at, size_t bytes, unsigned flags)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_host(), LADE_LEDGER_PINNED, bytes);
  if (!result) {
    result = REAL(cuMemHostAlloc)(ret_at, bytes, flags);
    result = taking_end(&taking, result, LADE_LEDGER_HOST_ADDRESSES, result ? 0 : (uintptr_t)*ret_at, bytes);
  }
  return result;
}

cuda_result cuMemAllocHost_v2(void **ret_at, size_t bytes)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_host(), LADE_LEDGER_PINNED, bytes);
  if (!result) {
    result = REAL(cuMemAllocHost_v2)(ret_at, bytes);
    result = taking_end(&taking, result, LADE_LEDGER_HOST_ADDRESSES, result ? 0 : (uintptr_t)*ret_at, bytes);
  }
  return result;
}

cuda_result cuMemAllocHost(void **ret_at, unsigned bytes)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_host(), LADE_LEDGER_PINNED, bytes);
  if (!result) {
    result = REAL(cuMemAllocHost)(ret_at, bytes);
    result = taking_end(&taking, result, LADE_LEDGER_HOST_ADDRESSES, result ? 0 : (uintptr_t)*ret_at, bytes);
  }
  return result;
}

cuda_result cuMemFreeHost(void *at)
{
  struct giving giving = giving_begin(LADE_LEDGER_HOST_ADDRESSES, (uintptr_t)at);
  return giving_end(&giving, REAL(cuMemFreeHost)(at));
}

static cuda_result host_register(__typeof__(cuMemHostRegister) *real, void *at, size_t bytes, unsigned flags)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_host(), LADE_LEDGER_REGISTERED, bytes);
  if (!result) {
    result = real(at, bytes, flags);
    result = taking_end(&taking, result, LADE_LEDGER_HOST_ADDRESSES, (uintptr_t)at, bytes);
  }
  return result;
}

cuda_result cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
  return host_register(REAL(cuMemHostRegister), at, bytes, flags);
}

cuda_result cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
  return host_register(REAL(cuMemHostRegister_v2), at, bytes, flags);
}

cuda_result cuMemHostUnregister(void *at)
{
  struct giving giving = giving_begin(LADE_LEDGER_HOST_ADDRESSES, (uintptr_t)at);
  return giving_end(&giving, REAL(cuMemHostUnregister)(at));
}
