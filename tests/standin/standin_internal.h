/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the stand-in driver share. */
#ifndef LADE_TEST_STANDIN_INTERNAL_H
#define LADE_TEST_STANDIN_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "control.h"
#include "device/cuda_driver.h"
#include "standin.h"

#define MAX_DEVICES 4

struct CUctx_st {
  int device;
  int n_refs; /* of the primary context; of others, how often somebody attached */
  cuda_result broken; /* every later call answers this */
};

/* Everything is behind one lock; whoever waits for anything waits on one condition. */
struct standin {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct control control;
  uint64_t version, devices, sm, memory, words, handles, channels, slices, host_chunks, lose, lose_code; /* settings */
  uint64_t modules, functions;          /* and these */
  struct CUctx_st primary[MAX_DEVICES];
  uint64_t used_bytes[MAX_DEVICES];
  uint64_t n_put, n_run; /* pieces of work of all streams that share a channel */
  uint64_t n_async; /* pieces of asynchronous work that ran */
  cuda_stream streams; /* all of them */
  bool is_held;        /* a call keeps the others of other threads out (standin_hold) */
  pthread_t holder;
  int64_t n_live;
};

extern struct standin standin;

/*
 * Begin the call of @function: counts it, and answers what it shall fail with. With @wants_context, also what a
 * broken or missing context answers.
 */
cuda_result standin_enter(const char *function, bool wants_context);
/* For calls that give something back: they always do, and then answer this. */
cuda_result standin_leave(const char *function);

/*
 * As the driver does when it loads a kernel at its first launch, or gives memory back: wait for all work of the context
 * that is current, and keep every other thread's call out until then.
 */
EXPORT void standin_drain(void);
/* The calls of other threads wait between these, as with turn_wait. Lock held; recursive it is not. */
void standin_hold(void);
void standin_let_go(void);
void standin_turn_wait(void);

cuda_context standin_context(void); /* current in this thread; NULL */
/* What calls that want a context answer in this thread. The stand-in for cuBLASLt asks, too. */
EXPORT cuda_result standin_status(void);
void standin_in_host_function(bool is_inside);
void standin_alive(int n);
void standin_break(cuda_context context, cuda_result code); /* lock held */
/* Take bytes of a device's memory. False when they are not there. */
bool standin_take(int device, uint64_t bytes);
void standin_give_back(int device, uint64_t bytes);
/* The same of the current context's device, for a library; which device that is, or -1. */
EXPORT int standin_library_take(uint64_t bytes);
EXPORT void standin_library_give_back(int device, uint64_t bytes);

/* All blocks of a context (blocks.c) end with it. */
void standin_blocks_end(cuda_context context);
bool standin_is_block(uint64_t address, uint64_t bytes); /* lock held */
bool standin_is_capturing(cuda_stream stream);
/*
 * In a capture: a node that takes @bytes of @device's, at an address that it shares with none that lives with it; and
 * one that gives back what is at @address.
 */
uint64_t standin_capture_take(cuda_stream stream, int device, uint64_t bytes);
void standin_capture_give(cuda_stream stream, uint64_t address);
/* Whether this thread captures. The stand-in for cuBLASLt asks. */
EXPORT bool standin_is_captured(void);
/* What @function answers because this thread captures, and it may not be called then. Lock held. */
cuda_result standin_capture_refuses(const char *function);
cuda_context standin_stream_context(cuda_stream stream); /* of the default stream: the current one */

/*
 * Run @fn on the stream's behalf, as the device would; @args are freed, whether it ran or not. While the stream is
 * captured it is for the graph, which runs it with the same @args each time. The stand-in for cuBLASLt calls it, too.
 */
EXPORT void standin_put_call(cuda_stream stream, cuda_host_fn *fn, void *args);

/* Where the host sees the 64-bit word that streams see at @address; 0: they see none there. */
uint64_t standin_word(uint64_t address);

enum standin_place { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_BAD, PLACE_TORN };
/*
 * TORN: pinned where it begins, and not to its end in one piece. What all of @bytes at @address are. Any
 * thread. The stand-in for NCCL asks, too.
 */
EXPORT enum standin_place standin_place(uint64_t address, uint64_t bytes);

#endif
