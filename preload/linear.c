/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain, pitched and managed allocations. The driver chooses the width of a padded row, which is known only afterwards:
 * an allocation whose padding exceeds the budget is given back.
 *
 * The forms without a number are those of CUDA before 3.2, with addresses and sizes of 32 bits.
 */
#include "account.h"
#include "driver.h"

cuda_result cuMemAlloc_v2(cuda_address *ret_at, size_t bytes)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_LINEAR, bytes);
  if (!result) {
    result = REAL(cuMemAlloc_v2)(ret_at, bytes);
    result = taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
  }
  return result;
}

cuda_result cuMemAlloc(unsigned *ret_at, unsigned bytes)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_LINEAR, bytes);
  if (!result) {
    result = REAL(cuMemAlloc)(ret_at, bytes);
    result = taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
  }
  return result;
}

cuda_result cuMemAllocPitch_v2(cuda_address *ret_at, size_t *ret_pitch, size_t row_bytes, size_t n_rows,
                               unsigned element_bytes)
{
  struct taking taking;
  uint64_t bytes;
  if (__builtin_mul_overflow(row_bytes, n_rows, &bytes))
    return CUDA_OUT_OF_MEMORY;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_PITCHED, bytes);
  if (result)
    return result;
  cuda_result answer = REAL(cuMemAllocPitch_v2)(ret_at, ret_pitch, row_bytes, n_rows, element_bytes);
  result = taking_end(&taking, answer, LADE_LEDGER_ADDRESSES, answer ? 0 : *ret_at, answer ? 0 : *ret_pitch * n_rows);
  if (result != answer)
    REAL(cuMemFree_v2)(*ret_at);
  return result;
}

cuda_result cuMemAllocPitch(unsigned *ret_at, unsigned *ret_pitch, unsigned row_bytes, unsigned n_rows,
                            unsigned element_bytes)
{
  struct taking taking;
  uint64_t bytes = (uint64_t)row_bytes * n_rows;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_PITCHED, bytes);
  if (result)
    return result;
  cuda_result answer = REAL(cuMemAllocPitch)(ret_at, ret_pitch, row_bytes, n_rows, element_bytes);
  bytes = answer ? 0 : (uint64_t)*ret_pitch * n_rows;
  result = taking_end(&taking, answer, LADE_LEDGER_ADDRESSES, answer ? 0 : *ret_at, bytes);
  if (result != answer)
    REAL(cuMemFree)(*ret_at);
  return result;
}

cuda_result cuMemAllocManaged(cuda_address *ret_at, size_t bytes, unsigned flags)
{
  struct taking taking;
  cuda_result result = taking_begin(&taking, place_current(), LADE_LEDGER_MANAGED, bytes);
  if (!result) {
    result = REAL(cuMemAllocManaged)(ret_at, bytes, flags);
    result = taking_end(&taking, result, LADE_LEDGER_ADDRESSES, result ? 0 : *ret_at, bytes);
  }
  return result;
}

cuda_result cuMemFree_v2(cuda_address at)
{
  struct giving giving = giving_begin(LADE_LEDGER_ADDRESSES, at);
  return giving_end(&giving, REAL(cuMemFree_v2)(at));
}

cuda_result cuMemFree(unsigned at)
{
  struct giving giving = giving_begin(LADE_LEDGER_ADDRESSES, at);
  return giving_end(&giving, REAL(cuMemFree)(at));
}
