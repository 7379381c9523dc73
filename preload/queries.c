/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's start, and its report of a device's memory: never more than the budget, nor than the rest of it. */
#include "account.h"
#include "base/base.h"
#include "driver.h"

cuda_result cuInit(unsigned flags)
{
  account_ledger(); /* from here on this process uses CUDA */
  return REAL(cuInit)(flags);
}

static void both_bound(struct account_place place, uint64_t *free_bytes, uint64_t *total_bytes)
{
  if (place.account >= 0)
    lade_ledger_bound(account_ledger(), place.account, free_bytes, total_bytes);
}

cuda_result cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
  cuda_result result = REAL(cuMemGetInfo_v2)(ret_free, ret_total);
  if (result)
    return result;
  uint64_t free_bytes = ret_free ? *ret_free : 0, total_bytes = ret_total ? *ret_total : 0;
  both_bound(place_current(), &free_bytes, &total_bytes);
  if (ret_free)
    *ret_free = free_bytes;
  if (ret_total)
    *ret_total = total_bytes;
  return result;
}

cuda_result cuMemGetInfo(unsigned *ret_free, unsigned *ret_total)
{
  cuda_result result = REAL(cuMemGetInfo)(ret_free, ret_total);
  if (result)
    return result;
  uint64_t free_bytes = *ret_free, total_bytes = *ret_total;
  both_bound(place_current(), &free_bytes, &total_bytes);
  *ret_free = (unsigned)free_bytes;
  *ret_total = (unsigned)total_bytes;
  return result;
}

cuda_result cuDeviceTotalMem_v2(size_t *ret_bytes, cuda_device_id id)
{
  cuda_result result = REAL(cuDeviceTotalMem_v2)(ret_bytes, id);
  if (result)
    return result;
  uint64_t free_bytes = 0, total_bytes = *ret_bytes;
  both_bound(place_device(id), &free_bytes, &total_bytes);
  *ret_bytes = total_bytes;
  return result;
}

cuda_result cuDeviceTotalMem(unsigned *ret_bytes, cuda_device_id id)
{
  cuda_result result = REAL(cuDeviceTotalMem)(ret_bytes, id);
  if (result)
    return result;
  uint64_t free_bytes = 0, total_bytes = *ret_bytes;
  both_bound(place_device(id), &free_bytes, &total_bytes);
  *ret_bytes = (unsigned)total_bytes;
  return result;
}
