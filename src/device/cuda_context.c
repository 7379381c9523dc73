/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's context, errors and clock, on which memory, queues and graphs of the device rely.
 *
 * Each call that needs the context pushes it and pops it again, so that the calling thread keeps its current context.
 *
 * Errors. After a kernel faults or the hardware fails, every later call in the context fails with the same result. The
 * device keeps the first result with the name of its call, because later ones carry less information. Its errno is the
 * device's status.
 *
 * The clock. Events are timed against an anchor, an event with a known monotonic time. The driver returns a difference
 * of events as a float of milliseconds, which is exact to 60 ns over a second and useless over hours. So a new anchor
 * is taken every second. It is taken by the device's clock and not by the host's, so that times of one device never run
 * backwards.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_internal.h"

#define ANCHOR_NS 1000000000 /* age at which a new anchor is taken */

int lade_cuda_check(struct cuda_device *cuda, const char *call, cuda_result result)
{
  if (!result)
    return 0;
  pthread_mutex_lock(&cuda->lock);
  if (!cuda->first_result) {
    cuda->first_result = result;
    cuda->first_call = call;
  }
  pthread_mutex_unlock(&cuda->lock);
  atomic_store(&cuda->has_failed_call, true);
  lade_device_fail(&cuda->base, lade_cuda_errno(result));
  return lade_cuda_errno(result);
}

bool lade_cuda_enter(struct cuda_device *cuda)
{
  return !lade_cuda_check(cuda, "cuCtxPushCurrent", cuda->driver.cuCtxPushCurrent(cuda->context));
}

void lade_cuda_leave(struct cuda_device *cuda, bool is_entered)
{
  cuda_context context = NULL;
  if (!is_entered)
    return;
  cuda_result result = cuda->driver.cuCtxPopCurrent(&context);
  LADE_ASSERT(result || context == cuda->context);
  lade_cuda_check(cuda, "cuCtxPopCurrent", result);
}

void lade_cuda_get_error(lade_device *device, struct lade_error *error)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  pthread_mutex_lock(&cuda->lock);
  if (cuda->first_result)
    lade_cuda_error_set(&cuda->driver, error, cuda->first_call, cuda->first_result);
  else if (cuda->library_error.code)
    *error = cuda->library_error;
  pthread_mutex_unlock(&cuda->lock);
}

void lade_cuda_get_refusal(lade_device *device, int status, struct lade_error *error)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  if (lade_device_status(device)) {
    lade_cuda_get_error(device, error);
    return;
  }
  pthread_mutex_lock(&cuda->lock);
  if (cuda->refused_result && lade_cuda_errno(cuda->refused_result) == status)
    lade_cuda_error_set(&cuda->driver, error, cuda->refused_call, cuda->refused_result);
  pthread_mutex_unlock(&cuda->lock);
}

cuda_result lade_cuda_refuse(struct cuda_device *cuda, const char *call, cuda_result result)
{
  if (!result)
    return result;
  pthread_mutex_lock(&cuda->lock);
  cuda->refused_result = result;
  cuda->refused_call = call;
  pthread_mutex_unlock(&cuda->lock);
  return result;
}

/*
 * Record the next anchor on the stream; or, once it has happened, make it the current one, timed by the device's clock.
 * No thread waits for it, because of a possible deadlock: the stream may share a hardware channel with one that waits
 * for the host. The host may in turn wait for the event that is being timed. Lock held.
 */
static cuda_result anchor_move(struct cuda_device *cuda)
{
  cuda_event old = cuda->anchors[cuda->i_anchor], new = cuda->anchors[!cuda->i_anchor];
  float ms = 0;
  if (!cuda->has_next_anchor) {
    cuda_result result = cuda->driver.cuEventRecord(new, cuda->stream);
    cuda->has_next_anchor = !result;
    return result;
  }
  cuda_result result = cuda->driver.cuEventQuery(new);
  if (result == CUDA_NOT_READY)
    return 0;
  cuda->has_next_anchor = false;
  if (!result)
    result = cuda->driver.cuEventElapsedTime(&ms, old, new);
  if (!result) {
    cuda->i_anchor = !cuda->i_anchor;
    cuda->anchor_ns += (int64_t)((double)ms * 1e6);
  }
  return result;
}

int lade_cuda_time(struct cuda_device *cuda, cuda_event event, int64_t *ret_ns)
{
  pthread_mutex_lock(&cuda->lock);
  float ms = 0;
  cuda_result result = 0;
  if (lade_now_ns() - cuda->anchor_ns > ANCHOR_NS)
    result = anchor_move(cuda);
  if (!result)
    result = cuda->driver.cuEventElapsedTime(&ms, cuda->anchors[cuda->i_anchor], event);
  int64_t ns = cuda->anchor_ns + (int64_t)((double)ms * 1e6);
  pthread_mutex_unlock(&cuda->lock);
  if (!result)
    *ret_ns = ns;
  return lade_cuda_check(cuda, "cuEventElapsedTime", result);
}

void lade_cuda_unmap(struct cuda_device *cuda, uint64_t address, uint64_t bytes)
{
  if (cuda->driver.cuMemUnmap(address, bytes))
    lade_cuda_check(cuda, "cuMemUnmap", cuda->driver.cuMemUnmap(address, bytes));
}

bool lade_cuda_is(const lade_device *device)
{
  return device->ops == &lade_cuda_ops;
}

int lade_cuda_get_capability(const lade_device *device)
{
  return ((const struct cuda_device *)device)->capability;
}

int lade_cuda_get_version(const lade_device *device)
{
  return ((const struct cuda_device *)device)->driver.version;
}

int lade_cuda_call(lade_device *device, int (*fn)(void *args), void *args)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  if (!lade_cuda_enter(cuda))
    return lade_device_status(device);
  int status = fn(args);
  lade_cuda_leave(cuda, true);
  return status;
}
