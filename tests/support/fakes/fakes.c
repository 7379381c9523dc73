/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the fake driver and of the fake cuBLASLt; see fakes.h. */
#include "tests/support/fakes/fakes.h"

#include "base/base.h"
#include "tests/support/symbols.h"

bool fake_driver_find(struct fake_driver *ret_fake)
{
  const struct symbol wanted[] = {
      {"fake_set", &ret_fake->set},
      {"fake_calls", &ret_fake->calls},
      {"fake_failed", &ret_fake->failed},
      {"fake_live", &ret_fake->live},
      {"fake_interrupts", &ret_fake->interrupts},
      {"fake_put_call", &ret_fake->put_kernel},
      {"cuInit", &ret_fake->init},
      {"cuDevicePrimaryCtxRetain", &ret_fake->primary_retain},
      {"cuDevicePrimaryCtxRelease_v2", &ret_fake->primary_release},
      {"cuCtxCreate_v2", &ret_fake->context_create},
      {"cuCtxDestroy_v2", &ret_fake->context_destroy},
      {"cuCtxGetCurrent", &ret_fake->context_get},
      {"cuCtxPushCurrent_v2", &ret_fake->context_push},
      {"cuCtxPopCurrent_v2", &ret_fake->context_pop},
      {"cuStreamCreate", &ret_fake->stream_create},
      {"cuStreamDestroy_v2", &ret_fake->stream_destroy},
      {"cuStreamSynchronize", &ret_fake->stream_wait},
      {"cuStreamWaitEvent", &ret_fake->stream_wait_event},
      {"cuEventCreate", &ret_fake->event_create},
      {"cuEventDestroy_v2", &ret_fake->event_destroy},
      {"cuEventRecord", &ret_fake->event_record},
      {"cuEventQuery", &ret_fake->event_query},
      {"cuEventSynchronize", &ret_fake->event_wait},
      {"cuLaunchHostFunc", &ret_fake->host_function},
      {"cuMemsetD8Async", &ret_fake->memory_set},
      {"cuMemAddressReserve", &ret_fake->range_reserve},
      {"cuMemAddressFree", &ret_fake->range_free},
      {"cuStreamBeginCapture_v2", &ret_fake->capture_begin},
      {"cuStreamEndCapture", &ret_fake->capture_end},
      {"cuGraphDestroy", &ret_fake->graph_destroy},
  };
  return symbols_find("libcuda.so.1", wanted, LADE_COUNT(wanted));
}

bool fake_cublaslt_find(struct fake_cublaslt *ret_fake)
{
  const struct symbol wanted[] = {
      {"fake_cublaslt_set", &ret_fake->set},
      {"fake_cublaslt_calls", &ret_fake->calls},
      {"fake_cublaslt_failed", &ret_fake->failed},
      {"fake_cublaslt_live", &ret_fake->live},
  };
  return symbols_find("libcublasLt.so.13", wanted, LADE_COUNT(wanted));
}
