/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the fake driver and of the fake cuBLASLt, for tests that call them beside Lade. */
#ifndef LADE_TESTS_FAKES_H
#define LADE_TESTS_FAKES_H

#include <stdbool.h>

#include "device/cuda_driver.h"
#include "tests/fakes/cublaslt/fake_cublaslt.h"
#include "tests/fakes/cuda_driver/fake_driver.h"

struct fake_driver {
  fake_set_fn *set;
  fake_calls_fn *calls;
  fake_failed_fn *failed;
  fake_live_fn *live;
  fake_interrupts_fn *interrupts;
  void (*put_kernel)(cuda_stream stream, cuda_host_fn *fn, void *args);
  cuda_result (*init)(unsigned flags);
  cuda_result (*primary_retain)(cuda_context *ret_context, cuda_device_id id);
  cuda_result (*primary_release)(cuda_device_id id);
  cuda_result (*context_create)(cuda_context *ret_context, unsigned flags, cuda_device_id id);
  cuda_result (*context_destroy)(cuda_context context);
  cuda_result (*context_get)(cuda_context *ret_context);
  cuda_result (*context_push)(cuda_context context);
  cuda_result (*context_pop)(cuda_context *ret_context);
  cuda_result (*stream_create)(cuda_stream *ret_stream, unsigned flags);
  cuda_result (*stream_destroy)(cuda_stream stream);
  cuda_result (*stream_wait)(cuda_stream stream);
  cuda_result (*stream_wait_event)(cuda_stream stream, cuda_event event, unsigned flags);
  cuda_result (*event_create)(cuda_event *ret_event, unsigned flags);
  cuda_result (*event_destroy)(cuda_event event);
  cuda_result (*event_record)(cuda_event event, cuda_stream stream);
  cuda_result (*event_query)(cuda_event event);
  cuda_result (*event_wait)(cuda_event event);
  cuda_result (*host_function)(cuda_stream stream, cuda_host_fn *fn, void *args);
  cuda_result (*memory_set)(cuda_address at, unsigned char value, size_t n, cuda_stream stream);
  cuda_result (*range_reserve)(cuda_address *ret_at, size_t bytes, size_t alignment, cuda_address hint,
                               unsigned long long flags);
  cuda_result (*range_free)(cuda_address at, size_t bytes);
  cuda_result (*capture_begin)(cuda_stream stream, int mode);
  cuda_result (*capture_end)(cuda_stream stream, cuda_graph *ret_graph);
  cuda_result (*graph_destroy)(cuda_graph graph);
};

struct fake_cublaslt {
  fake_cublaslt_set_fn *set;
  fake_cublaslt_calls_fn *calls;
  fake_cublaslt_failed_fn *failed;
  fake_cublaslt_live_fn *live;
};

/* Find the fake driver. False: the libcuda.so.1 of this process is another, or absent. */
bool fake_driver_find(struct fake_driver *ret_fake);

/* Find the fake cuBLASLt. False: the libcublasLt.so.13 of this process is another, or absent. */
bool fake_cublaslt_find(struct fake_cublaslt *ret_fake);

#endif
