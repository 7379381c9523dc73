/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts end, and with them their allocations. A device's primary context ends with its last release, or with a
 * reset; a context that the program made and attached to, with its last detach. Only the driver knows which call is the
 * last.
 */
#include "account.h"
#include "driver.h"

static void owner_forget(const void *owner)
{
  lade_ledger *ledger = account_ledger();
  if (ledger && owner)
    lade_ledger_drop_owner(ledger, owner);
}

static cuda_result context_end(__typeof__(cuCtxDestroy) *real, cuda_context context)
{
  cuda_result result = real(context);
  if (!result)
    owner_forget(context);
  return result;
}

cuda_result cuCtxDestroy(cuda_context context)
{
  return context_end(REAL(cuCtxDestroy), context);
}

cuda_result cuCtxDestroy_v2(cuda_context context)
{
  return context_end(REAL(cuCtxDestroy_v2), context);
}

/* Detach from the current context, which is no longer current if that was the last detach. */
cuda_result cuCtxDetach(cuda_context context)
{
  cuda_context current = NULL;
  cuda_result result = REAL(cuCtxDetach)(context);
  if (!result && (REAL(cuCtxGetCurrent)(&current) || current != context))
    owner_forget(context);
  return result;
}

static bool primary_is_active(cuda_device_id id)
{
  unsigned flags;
  int is_active = 0;
  return REAL(cuDevicePrimaryCtxGetState)(id, &flags, &is_active) == 0 && is_active;
}

/* Return the device's primary context, if it has one; its count stays unchanged. */
static cuda_context primary_find(cuda_device_id id)
{
  cuda_context context = NULL;
  if (!primary_is_active(id) || REAL(cuDevicePrimaryCtxRetain)(&context, id))
    return NULL;
  REAL(cuDevicePrimaryCtxRelease_v2)(id);
  return context;
}

static cuda_result primary_end(__typeof__(cuDevicePrimaryCtxRelease) *real, cuda_device_id id)
{
  cuda_context context = primary_find(id);
  cuda_result result = real(id);
  if (!result && !primary_is_active(id))
    owner_forget(context);
  return result;
}

cuda_result cuDevicePrimaryCtxRelease(cuda_device_id id)
{
  return primary_end(REAL(cuDevicePrimaryCtxRelease), id);
}

cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device_id id)
{
  return primary_end(REAL(cuDevicePrimaryCtxRelease_v2), id);
}

cuda_result cuDevicePrimaryCtxReset(cuda_device_id id)
{
  return primary_end(REAL(cuDevicePrimaryCtxReset), id);
}

cuda_result cuDevicePrimaryCtxReset_v2(cuda_device_id id)
{
  return primary_end(REAL(cuDevicePrimaryCtxReset_v2), id);
}
