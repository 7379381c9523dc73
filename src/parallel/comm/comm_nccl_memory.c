/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of the engine for GPUs, and their registration with NCCL.
 *
 * NCCL may move memory that is registered with a communicator in place: over NVLink and the network without a copy
 * through its own buffers, and with fewer blocks of its kernels. It accepts memory like that of its own allocator:
 * chunks of the driver's virtual memory, exportable, accessible by the network if the device supports it, of the
 * driver's recommended granularity. The device's chunks have all these properties (device/cuda.c). So Lade registers
 * its own memory and uses none of NCCL's, and the device counts its bytes.
 *
 * NCCL requires that all members of a communicator pass registered buffers to a collective, or none. So all members
 * agree on each registration. If one was refused, none is registered: collectives work as before, and the first rank
 * reports it once. Memory of lade_comm_alloc is registered with its communicator. An arena is registered whole, before
 * the first step, so that every buffer in it is registered. NCCL before 2.19 cannot register memory. NCCL with
 * NCCL_LOCAL_REGISTER=0 returns no handle. This counts as success, but is not deregistered: NCCL may treat that as
 * invalid usage, and the communicator would fail.
 */
#include <errno.h>

#include "device/cuda.h"
#include "parallel/comm/comm_nccl_internal.h"

static void *memory_at(uint64_t address)
{
  return (void *)(uintptr_t)address;
}

/* ---- agreement on local results ---- */

int comm_nccl_outcomes_meet(lade_comm *control, int status, struct lade_error *error)
{
  float code = (float)-status, sums[3] = {status ? 1 : 0, code, code * code};
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = 3, .src = sums, .dst = sums};
  struct lade_error why = {0};
  int failed = lade_comm_run(control, &sum, &why);
  if (status)
    return status;
  if (failed) {
    *error = why;
    return failed;
  }
  if (sums[0] == 0)
    return 0;
  bool is_one_code = sums[0] * sums[2] == sums[1] * sums[1];
  return lade_error_set(error, is_one_code ? -(int)(sums[1] / sums[0]) : -EIO, "%d of the other ranks could not; their "
                        "lines say why", (int)sums[0]);
}

/* ---- registering ---- */

struct registering {
  struct nccl_comm *comm;
  const struct lade_comm_range *range;
  struct nccl_registration made;
  struct lade_error *error;
};

/* Register a range. pre: calls is held, and the device's context is current. */
static int range_register(void *arg)
{
  struct registering *r = arg;
  struct nccl_comm *comm = r->comm;
  comm_nccl_enter(comm);
  nccl_result result = comm->job->nccl.ncclCommRegister(comm->handle, r->range->data, r->range->bytes, &r->made.handle);
  int status = comm_nccl_leave(comm, "ncclCommRegister", result, r->error);
  r->made.data = r->range->data;
  return status;
}

static int range_deregister(void *arg)
{
  struct registering *r = arg;
  struct nccl_comm *comm = r->comm;
  comm_nccl_enter(comm);
  nccl_result result = comm->job->nccl.ncclCommDeregister(comm->handle, r->made.handle);
  return comm_nccl_leave(comm, "ncclCommDeregister", result, r->error);
}

/* Register this member's range. */
static int own_register(struct nccl_comm *comm, const struct lade_comm_range *range, struct lade_error *error)
{
  struct registering registering = {.comm = comm, .range = range, .error = error};
  if (!comm->job->nccl.ncclCommRegister)
    return lade_error_set(error, -ENOSYS, "NCCL before 2.19 cannot");
  pthread_mutex_lock(&comm->calls);
  int status = lade_comm_status(&comm->base, error);
  if (!status && !LADE_PUSH(&comm->registrations, registering.made))
    status = lade_error_set(error, -ENOMEM, "no memory to remember it");
  if (!status) {
    struct nccl_registration *kept = &comm->registrations.items[comm->registrations.n - 1];
    status = lade_cuda_call(comm->job->device, range_register, &registering);
    *kept = registering.made;
    comm->registrations.n -= status != 0;
  }
  pthread_mutex_unlock(&comm->calls);
  if (status && !error->text[0])
    lade_error_set(error, status, "the device's context cannot be entered");
  return status;
}

/* Remove the registration of @data from the list. False if there is none. */
static bool registration_take(struct nccl_comm *comm, const void *data, struct nccl_registration *ret_taken)
{
  bool is_found = false;
  for (int i = 0; i < comm->registrations.n && !is_found; i++) {
    is_found = comm->registrations.items[i].data == data;
    if (is_found) {
      *ret_taken = comm->registrations.items[i];
      comm->registrations.items[i] = comm->registrations.items[--comm->registrations.n];
    }
  }
  return is_found;
}

/*
 * Deregister @data; true if it was registered. If NCCL fails to deregister, it may still use the memory. Then the
 * communicator is ended, which releases all that it holds.
 */
static bool range_end(struct nccl_comm *comm, const void *data)
{
  struct lade_error error = {0};
  struct registering registering = {.comm = comm, .error = &error};
  pthread_mutex_lock(&comm->calls);
  bool is_found = registration_take(comm, data, &registering.made);
  bool is_known = registering.made.handle && comm->handle;
  int status = is_known ? lade_cuda_call(comm->job->device, range_deregister, &registering) : 0;
  if (status)
    comm_nccl_fail(comm, status, &error);
  pthread_mutex_unlock(&comm->calls);
  return is_found;
}

void comm_nccl_unregister(lade_comm *base, const void *data)
{
  bool is_found = range_end((struct nccl_comm *)base, data);
  LADE_ASSERT(is_found);
}

/* Report once per job, at its first rank, why collectives use NCCL's own buffers; @own is this rank's result. */
static void refusal_report(struct nccl_comm *comm, int own, const struct lade_error *why)
{
  const struct lade_comm_params *params = &comm->base.params;
  struct lade_error line;
  if (comm->job->has_reported || !params->log || comm->ranks[comm->base.rank] != 0)
    return;
  comm->job->has_reported = true;
  lade_error_set(&line, why->code, "NCCL moves through buffers of its own what it could have moved from ours: %.300s",
                 own ? why->text : "it was refused at another rank");
  params->log(params->log_user, line.text);
}

int comm_nccl_register(lade_comm *base, const struct lade_comm_range *range, struct lade_error *error,
                       bool *ret_is_registered)
{
  struct nccl_comm *comm = (struct nccl_comm *)base;
  struct lade_error why = {0};
  int own = own_register(comm, range, &why), met = comm_nccl_outcomes_meet(comm->control, own, &why);
  if (met && !own)
    comm_nccl_unregister(base, range->data);
  int status = lade_comm_status(base, error);
  if (!status)
    status = lade_comm_status(comm->control, error);
  if (!status && met)
    refusal_report(comm, own, &why);
  *ret_is_registered = !met;
  return status;
}

/* ---- windows ---- */

void comm_nccl_window_release(lade_device *device, const struct nccl_window *window)
{
  lade_device_chunk_release(device, window->chunk);
  if (window->address)
    lade_device_release(device, window->address, window->bytes);
}

int comm_nccl_window_create(lade_device *device, uint64_t bytes, struct nccl_window *ret_window,
                            struct lade_error *error)
{
  struct lade_device_info info;
  lade_device_get_info(device, &info);
  struct nccl_window window = {.bytes = lade_align_up(bytes, info.chunk_bytes)};
  int status = lade_device_chunk_create(device, window.bytes, &window.chunk);
  if (!status)
    status = lade_device_reserve(device, window.bytes, &window.address);
  if (!status)
    status = lade_device_map(device, window.address, window.chunk);
  if (status) {
    comm_nccl_window_release(device, &window);
    return lade_error_set(error, -ENOMEM, "no memory of the device for %llu bytes", (unsigned long long)bytes);
  }
  *ret_window = window;
  return 0;
}

static int window_keep(struct nccl_job *job, const struct nccl_window *window, struct lade_error *error)
{
  pthread_mutex_lock(&job->mutex);
  bool is_kept = LADE_PUSH(&job->windows, *window);
  pthread_mutex_unlock(&job->mutex);
  return is_kept ? 0 : lade_error_set(error, -ENOMEM, "no memory for %llu bytes", (unsigned long long)window->bytes);
}

int comm_nccl_alloc(lade_comm *base, uint64_t bytes, struct lade_error *error, void **ret_data)
{
  struct nccl_comm *comm = (struct nccl_comm *)base;
  struct nccl_job *job = comm->job;
  struct nccl_window window = {0};
  int status = comm_nccl_window_create(job->device, bytes, &window, error);
  if (!status) {
    status = window_keep(job, &window, error);
    if (status)
      comm_nccl_window_release(job->device, &window);
  }
  void *data = memory_at(window.address);
  int met = comm_nccl_outcomes_meet(comm->control, status, error);
  if (met && !status)
    comm_nccl_free(base, data);
  if (met)
    return met;
  const struct lade_comm_range range = {.data = data, .bytes = window.bytes, .descriptor = -1};
  bool is_registered = false;
  status = comm_nccl_register(base, &range, error, &is_registered);
  if (status)
    comm_nccl_free(base, data);
  else
    *ret_data = data;
  return status;
}

void comm_nccl_free(lade_comm *base, void *data)
{
  struct nccl_comm *comm = (struct nccl_comm *)base;
  struct nccl_job *job = comm->job;
  struct nccl_window found = {0};
  pthread_mutex_lock(&job->mutex);
  for (int i = 0; i < job->windows.n && !found.chunk; i++) {
    if (memory_at(job->windows.items[i].address) == data) {
      found = job->windows.items[i];
      job->windows.items[i] = job->windows.items[--job->windows.n];
    }
  }
  pthread_mutex_unlock(&job->mutex);
  LADE_ASSERT(found.chunk);
  range_end(comm, data);
  comm_nccl_window_release(job->device, &found);
}
