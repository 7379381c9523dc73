/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor's parts: executor.c walks, bind.c prepares, executor_gpu.c has a GPU's kernels, transfer.c talks to the
 * store, stream.c updates from it.
 */
#ifndef LADE_EXECUTOR_INTERNAL_H
#define LADE_EXECUTOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "offload/pinned.h"
#include "run/executor.h"

/* A kernel with its arguments, ready to be called or submitted. */
struct call {
  _Alignas(64) unsigned char args[LADE_OP_ARGS_BYTES];
  int kernel; /* enum lade_kernel, or CALL_NOTHING */
  lade_executor *executor;
};

/* A shard of padding alone has nothing to do; its instructions are there because other ranks' are. */
#define CALL_NOTHING (-1)

/* A read or write of one value. */
struct io_call {
  struct lade_transfer transfer;
  lade_executor *executor;
  struct lade_value value;
  uint64_t store_offset; /* in the plan's store */
};

#define STREAM_MAX_PARTS 5 /* residual, m, v, and from the store the weight and the gradient too */
#define STREAM_MAX_SCALES 2
#define STREAM_SLOTS 32 /* lots under way at once */

/* What of a lot moves by itself: its grains (program.h), scales that are not among them, weight and gradient. */
enum { STREAM_GRAINS, STREAM_SCALES, STREAM_WEIGHT, STREAM_GRAD, STREAM_N_TRANSFERS };

/* One part of a streamed parameter: where its own room is and how wide its elements are. */
struct stream_part {
  struct lade_value value;
  uint64_t store_offset; /* of its buffer, in the plan's store */
  size_t element_bytes;
  int role; /* LADE_ROLE_WEIGHT.. */
};

/* Scales of a streamed parameter's 8-bit moments: read with its first item, written with its last. */
struct stream_scales {
  struct lade_value value;
  uint64_t store_offset, bytes;
  enum lade_part part;
};

/* A streamed update. */
struct stream_call {
  lade_executor *executor;
  struct lade_adamw_args args; /* of the whole tensor; each window is a piece of it */
  uint64_t state_offset;       /* in the plan's store, where all its state begins */
  int n_parts;
  int64_t n_held;              /* elements in the store: the shard's, with its padding */
  int64_t n_window;            /* of a window, but for the last one */
  struct stream_part parts[STREAM_MAX_PARTS]; /* in the order of LADE_ROLE_WEIGHT.. */
  int part_of_role[LADE_ROLE_V + 1];          /* -1: not streamed */
  int n_scales;
  struct stream_scales scales[STREAM_MAX_SCALES];
  uint64_t scales_bytes;   /* of all, in whole pages */
  uint64_t scales_offset;  /* in the scratch: behind the grains of the one item, or in a ring of their own */
  int32_t scratch_buffer;
  char *scratch;
  uint64_t scratch_bytes;
  struct stream_run *run;
  int first_item, end_item; /* of the run */
};

/* A window of a streamed parameter: @n elements from @first on, at @offset of the scratch. */
struct stream_item {
  struct stream_call *call;
  int64_t first, n;
  uint64_t offset;
  int lot;
};

/* Items in a row, of one parameter or of several, whose grains are one range in the store and one in the scratch. */
struct stream_lot {
  int first_item, end_item;
  int after; /* the lot, and all before it, that must have been written before this one is read; -1 */
  int n_grains;
  atomic_int n_left; /* of them, not yet computed */
};

/* Transfers of a lot that is under way. Bytes 0: nothing is under way. */
struct stream_slot {
  struct lade_transfer reads[STREAM_N_TRANSFERS], writes[STREAM_N_TRANSFERS];
};

/* Streamed updates that follow one another on the io queue, over one scratch. */
struct stream_run {
  struct stream_call **calls;
  int n_calls;
  struct stream_item *items;
  int n_items;
  struct stream_lot *lots; /* at most as many as items */
  int n_lots;
  uint64_t lot_bytes; /* of grains, at most, in one with more than one item */
  uint64_t reading_most; /* bytes that are being read at once, but for one lot that is longer */
  char *scratch;
  uint64_t scratch_bytes;
  struct stream_slot *slots; /* STREAM_SLOTS, which all runs share: one ends before the next begins */
  /* Of the running step, lots: whose reading has begun, that are there, whose writing has begun, that are written. */
  int n_begun, n_come, n_computed, n_settled;
  uint64_t reading_bytes; /* that have begun and are not there */
};

/* One program, bound. Arrays are by instruction; an instruction uses the one that its kind says. */
struct bound_program {
  const struct lade_program *program;
  struct call *calls;
  struct io_call *ios;
  struct stream_call **streams;
  struct stream_run *runs; /* of streams, in order */
  int n_runs;
  struct stream_call **stream_calls; /* of all runs, in order */
  struct stream_slot *stream_slots;
  struct lade_copy *copies;
  struct lade_comm_work *comms;
  struct lade_collective *collectives; /* what comms' lists are of */
  uint64_t *counts; /* of the running step: the event of each instruction */
  struct lade_span *spans; /* when each instruction ran */
  int32_t *before;         /* the one before it on its queue, -1 */
  lade_cuda_graph **graphs; /* of the chain that begins with it, or NULL; NULL altogether: none are launched */
};

struct lade_executor {
  struct lade_executor_params params;
  const struct lade_graph *graph;
  lade_device *device;
  bool is_dry;
  uint64_t arena, arena_bytes, reserved_bytes;
  lade_chunk *chunk;
  bool has_pinned;                 /* arena and host tier, with what they transfer to and from */
  bool is_arena_shared;            /* the chunk is of the kind that other processes can have */
  bool is_registered[LADE_N_AXES]; /* the arena, with the communicator of the axis */
  struct lade_pinned host; /* the host tier */
  struct lade_extent extent;
  uint64_t spill_offset; /* in the plan's store, where the extent begins: what is before it is durable */
  void *bounce; /* LADE_EXECUTOR_WINDOW_BYTES, for get and set of values in the store */
  lade_queue *queues[LADE_N_QUEUES]; /* NULL: no instruction is on it */
  struct lade_step step;
  struct lade_kernel_ctx ctx;
  struct bound_program train, eval;
  struct lade_error note; /* why there are no graphs */
  int32_t *resident;       /* by value number: its resident buffer, -1 */
  uint64_t *state_places;  /* by parameter whose state is at home in the store: where that begins in the plan's store */
  int32_t *tokens, *targets, *losses; /* by microbatch: resident host buffers */
  int32_t verdict;
  uint64_t n_steps, n_runs;
  bool has_step; /* durable: one that was run and not published */
  atomic_int failure; /* the first error of an instruction; nothing is trusted after it */
  pthread_mutex_t failure_mutex;
  struct lade_error failure_text;
};

/* Address of @offset in @buffer of @program; on a dry device it leads nowhere. Not for buffers in the store. */
void *executor_address(const lade_executor *executor, const struct lade_program *program, int32_t buffer,
                       uint64_t offset);

/* Remember the first failure of an instruction, and let no other rank wait for us. Any thread. */
void executor_fail(lade_executor *executor, int code, const struct lade_error *error);

/* The first failure of an instruction, and what was said of it; 0: none. Any thread. */
int executor_failure(lade_executor *executor, struct lade_error *error);

/*
 * What value bytes at @offset of the plan's store must be in the running step, and where they are: in the extent for
 * what is spilled, in the slot of their generation for durable state.
 */
void executor_address_stored(const lade_executor *executor, struct lade_value value, uint64_t offset,
                             struct lade_transfer *transfer);

/*
 * The same of a piece of a parameter's state, which lies at @offset and whose checksums are those of its own room's
 * bytes at @room_offset, both in the plan's store (program.h).
 */
void executor_address_state(const lade_executor *executor, struct lade_value value, uint64_t offset,
                            uint64_t room_offset, struct lade_transfer *transfer);

/* Find where the states of parameters lie in the store, once it is known which buffer holds which value. -ENOMEM. */
int executor_states_place(lade_executor *executor);

/* In the plan's store, where value @tensor begins, which is at home there. */
uint64_t executor_place_stored(const lade_executor *executor, int tensor);

/* Begin a transfer that has its address. Wait for one, and say which tensor it was about if it failed. */
int executor_transfer_begin(const lade_executor *executor, struct lade_transfer *transfer, struct lade_error *error);
int executor_transfer_wait(const lade_executor *executor, struct lade_transfer *transfer, struct lade_error *error);
/* Checksums of all of a transfer with LADE_CHECK_CALLER, as lade_store_verify and lade_store_seal. Any thread. */
int executor_transfer_verify(const lade_executor *executor, const struct lade_transfer *transfer,
                             struct lade_error *error);
void executor_transfer_seal(const lade_executor *executor, const struct lade_transfer *transfer);

/* The same in a work function of the io queue: what goes wrong there is the step's failure. */
int io_transfer_begin(lade_executor *executor, struct lade_transfer *transfer);
int io_transfer_wait(lade_executor *executor, struct lade_transfer *transfer);
/* Take note of what is complete. */
void io_poll(const lade_executor *executor);
int io_transfer_verify(lade_executor *executor, const struct lade_transfer *transfer);

/* The communicator over which @instr, a COLLECTIVE, is run. */
lade_comm *executor_comm(const lade_executor *executor, const struct lade_instr *instr);

/* Cut the streamed updates of a program into runs and items, and place these. Finish frees the updates too. -ENOMEM. */
int streams_bind(struct bound_program *bound);
void streams_finish(struct bound_program *bound);

int bound_init(lade_executor *executor, const struct lade_program *program, struct bound_program *ret_bound);
void bound_finish(struct bound_program *bound);

/*
 * By queue, how long the compute queue stood still because of it in the run that began at @start_ns and is over.
 * LADE_N_QUEUES entries; stalls.c.
 */
void executor_stalls_count(const struct bound_program *bound, int64_t start_ns, int64_t *ret_stall_ns);

/* Why the device came to @status: the driver's words where it has said some, which @why then holds. */
const char *executor_device_words(const lade_executor *executor, int status, struct lade_error *why);

/* On a CUDA device: the step block to where kernels read it, before all of them. */
void executor_step_block_submit(lade_executor *executor, const struct bound_program *bound);

/* An instruction of the compute queue, its waits being there. After a failure it is an event without work. */
void executor_kernel_submit(lade_executor *executor, struct bound_program *bound, int at);

/* Graphs of both programs' chains, once these are bound; where none can be made, a note says why. */
void executor_graphs_init(lade_executor *executor);
void executor_graphs_finish(struct bound_program *bound);

/* Work functions of the io queue. */
void io_call_run(void *arg);
void stream_call_run(void *arg);

#endif
