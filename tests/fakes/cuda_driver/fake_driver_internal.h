/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of the fake driver's files. */
#ifndef LADE_TEST_FAKE_DRIVER_INTERNAL_H
#define LADE_TEST_FAKE_DRIVER_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "control.h"
#include "device/cuda_driver.h"
#include "fake_driver.h"

#define MAX_DEVICES 4

struct CUctx_st {
  int device;
  int n_refs; /* of the primary context; of other contexts, the number of attachments */
  cuda_result broken; /* every later call returns this */
  int n_working;      /* copies, sets and kernels that run now */
  cuda_stream legacy; /* the default stream, made at its first use */
};

#define MAX_CHANNELS 32

/* A hardware channel: the pieces of work of its streams run in the order of submission. */
struct channel {
  int n_streams;
  uint64_t n_put, n_run;
};

/* State of the fake. One lock guards all of it; every wait is on one condition. */
struct fake {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct control control;
  uint64_t version, devices, sm, memory, words, handles, channels, slices, host_chunks, lose, lose_code; /* settings */
  uint64_t modules, functions;          /* further settings, in KiB */
  uint64_t cold;                        /* kernels that are still to be slow: the device's clock has not risen */
  int64_t cold_ns;                      /* the time that such kernels took more, by the clock of events */
  struct CUctx_st primary[MAX_DEVICES];
  uint64_t used_bytes[MAX_DEVICES];
  struct channel channels_used[MAX_CHANNELS];
  uint64_t n_async; /* pieces of asynchronous work that ran */
  cuda_stream streams; /* all of them */
  bool is_held;        /* a call blocks the calls of other threads (fake_hold) */
  pthread_t holder;
  int64_t n_live;
  uint64_t n_interrupts;
};

extern struct fake fake;

/*
 * Begin the call of @function: count it, and return the code that it must fail with. With @wants_context also the error
 * of a broken or missing context.
 */
cuda_result fake_enter(const char *function, bool wants_context);
/* Begin a call that releases an object: the release always happens; then the call returns this code. */
cuda_result fake_leave(const char *function);

/*
 * Wait for all work of the current context and block every other thread's call until then. The driver does this when it
 * loads a kernel at its first launch, or releases memory.
 */
EXPORT void fake_drain(void);
/* Block and unblock calls of other threads, which wait as in fake_turn_wait. Lock held; not recursive. */
void fake_hold(void);
void fake_let_go(void);
void fake_turn_wait(void);

cuda_context fake_context(void); /* current in this thread; NULL: none */
/* Return the code that calls which need a context return in this thread. The fake for cuBLASLt uses it, too. */
EXPORT cuda_result fake_status(void);
void fake_in_host_function(bool is_inside);
void fake_alive(int n);
void fake_break(cuda_context context, cuda_result code); /* lock held */
/* Take bytes of a device's memory. False if there are not enough. */
bool fake_take(int device, uint64_t bytes);
void fake_give_back(int device, uint64_t bytes);
/* Take bytes of the current context's device, for a library. Return the device, or -1. */
EXPORT int fake_library_take(uint64_t bytes);
EXPORT void fake_library_give_back(int device, uint64_t bytes);

/* End all blocks of a context (blocks.c), at the context's end. */
void fake_blocks_end(cuda_context context);
bool fake_is_block(uint64_t address, uint64_t bytes); /* lock held */
bool fake_is_capturing(cuda_stream stream);
/*
 * In a capture add a node. The first takes @bytes of @device, at an address that no live memory shares. The second
 * releases the memory at @address.
 */
uint64_t fake_capture_take(cuda_stream stream, int device, uint64_t bytes);
void fake_capture_give(cuda_stream stream, uint64_t address);
/* True if this thread captures. The fake for cuBLASLt uses it. */
EXPORT bool fake_is_captured(void);
/* Return the error of @function if this thread captures and the function is forbidden then. Lock held. */
cuda_result fake_capture_refuses(const char *function);
cuda_context fake_stream_context(cuda_stream stream); /* for the default stream the current context */
/* Return the stream of a handle: for NULL and CU_STREAM_LEGACY the current context's default stream. */
cuda_stream fake_stream(cuda_stream stream);
/* End a context's default stream, if it was used. */
void fake_legacy_end(cuda_context context);

/*
 * Run @fn on the stream, as the device does. @args are freed, also if it does not run. On a captured stream it becomes
 * part of the graph, which runs it with the same @args each time. The fake for cuBLASLt calls it, too.
 */
EXPORT void fake_put_call(cuda_stream stream, cuda_host_fn *fn, void *args);

/* Return the host address of the 64-bit word that streams access at @address; 0: they have no access there. */
uint64_t fake_word(uint64_t address);

enum fake_place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_BAD, PLACE_TORN };
/*
 * Return the kind of memory of all @bytes at @address. TORN: its begin is pinned, but not the whole range in one piece.
 * Any thread. The fake for NCCL uses it, too.
 */
EXPORT enum fake_place fake_place(uint64_t address, uint64_t bytes);

#endif
