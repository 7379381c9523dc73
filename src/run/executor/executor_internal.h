/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor's parts:
 *
 *   bind.c              gives every instruction its kernel, transfer or collective, with addresses
 *   executor.c          takes the memory, and submits a step's instructions to the queues
 *   executor_gpu.c      submits kernels to a GPU, and captures chains of them as graphs
 *   transfer.c          moves a value between memory and the store
 *   stream.c            updates parameters whose optimizer state streams from the store
 *   executor_values.c   reads and writes parameters and their state between steps
 *   stalls.c            attributes the idle time of the compute queue to the other queues
 *   failure.c           keeps the first failure of an instruction
 *   bound_validity.c    recounts that a bound program is whole
 */
#ifndef LADE_EXECUTOR_INTERNAL_H
#define LADE_EXECUTOR_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/first_error.h"
#include "offload/pinned.h"
#include "run/executor.h"

/* A kernel with its arguments, ready to be called or submitted. */
struct kernel_call {
  _Alignas(64) unsigned char args[LADE_OP_ARGS_BYTES];
  int kernel; /* enum lade_kernel, or CALL_NOTHING */
  lade_executor *executor;
};

/*
 * Kernel of an instruction whose shard is padding alone: it runs nothing. It exists because other ranks' programs have
 * it.
 */
#define CALL_NOTHING (-1)

/* A read or write of one value. */
struct io_call {
  struct lade_transfer transfer;
  lade_executor *executor;
  struct lade_value value;
  uint64_t store_offset; /* in the plan's store */
  const struct bound_program *bound;
  int32_t at;            /* its instruction */
  int32_t next;          /* of the io queue: the transfer after it, if there is one before the next update; or -1 */
  int32_t after;         /* of the io queue: the latest transfer before it with which it conflicts; -1: none near */
  _Atomic uint64_t submitted_run; /* the executor's n_runs once the counts of its waits are known */
  bool is_begun;         /* in flight; used by the io queue's thread */
};

#define STREAM_MAX_PARTS 5 /* residual, m, v; and the weight and the gradient if they are in the store */
#define STREAM_MAX_SCALES 2
#define STREAM_SLOTS 32 /* lots in flight at once */

/*
 * Separate transfers of a lot: grains (program/program.h), scales that do not lie after the grains, weight, gradient.
 */
enum { STREAM_GRAINS, STREAM_SCALES, STREAM_WEIGHT, STREAM_GRAD, STREAM_N_TRANSFERS };

/* One part of a streamed parameter. */
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
  uint64_t state_offset;       /* in the plan's store: start of all state of the parameter */
  int n_parts;
  int64_t n_held;              /* elements in the store: those of the shard, with its padding */
  int64_t n_window;            /* elements of each window but the last */
  struct stream_part parts[STREAM_MAX_PARTS]; /* in the order of LADE_ROLE_WEIGHT.. */
  int part_of_role[LADE_ROLE_V + 1];          /* -1: not streamed */
  int n_scales;
  struct stream_scales scales[STREAM_MAX_SCALES];
  uint64_t scales_bytes;   /* of all scales, in whole pages */
  uint64_t scales_offset;  /* in the scratch: after the grains of the only item, or in the ring of scales */
  int32_t scratch_buffer;
  char *scratch;
  uint64_t scratch_bytes;
  struct stream_run *run;
  int first_item, end_item; /* in the run */
};

/* A window of a streamed parameter: @n elements from @first on, at @offset of the scratch. */
struct stream_item {
  struct stream_call *call;
  int64_t first, n;
  uint64_t offset;
  int lot;
};

/* Consecutive items, of one parameter or of several, whose grains are one range in the store and one in the scratch. */
struct stream_lot {
  int first_item, end_item;
  int after; /* this lot and all before it must be written before this lot is read; -1: none */
  int n_grains;
  atomic_int n_left; /* grains that are not yet computed */
};

/* Transfers of a lot in flight. Bytes 0: the transfer is not in flight. */
struct stream_slot {
  struct lade_transfer reads[STREAM_N_TRANSFERS], writes[STREAM_N_TRANSFERS];
};

/* Consecutive streamed updates on the io queue, over one scratch. */
struct stream_run {
  struct stream_call **calls;
  int n_calls;
  struct stream_item *items;
  int n_items;
  struct stream_lot *lots; /* at most as many as items */
  int n_lots;
  uint64_t lot_bytes; /* most bytes of grains in a lot of more than one item */
  uint64_t reading_max; /* most bytes that are being read at once; a single longer lot may exceed it */
  char *scratch;
  uint64_t scratch_bytes;
  struct stream_slot *slots; /* STREAM_SLOTS, shared by all runs: one run ends before the next begins */
  /* Lots of the running step, in order: each count is a lot's index + 1, and none exceeds the one before it. */
  int n_reads_begun, n_reads_done, n_writes_begun, n_writes_done;
  uint64_t reading_bytes; /* of lots whose reads have begun and are not complete */
};

/* One bound program. Arrays are indexed by instruction; the instruction's kind tells which arrays it uses. */
struct bound_program {
  const struct lade_program *program;
  struct kernel_call *calls;
  struct io_call *ios;
  struct stream_call **streams;
  struct stream_run *runs; /* of streams, in list order */
  int n_runs;
  struct stream_call **stream_calls; /* of all runs, in list order */
  struct stream_slot *stream_slots;
  struct lade_copy *copies;
  struct lade_comm_work *comms;
  struct lade_collective *collectives; /* items of the lists in comms */
  uint64_t *counts; /* of the running step: the event of each instruction */
  struct lade_span *spans; /* when each instruction ran */
  int32_t *before;         /* the previous instruction on the same queue, or -1 */
  lade_cuda_graph **graphs; /* of the chain that begins here, or NULL; the array is NULL without graphs */
};

struct lade_executor {
  struct lade_executor_params params;
  const struct lade_model_graph *graph;
  lade_device *device;
  bool is_dry;
  uint64_t arena, arena_bytes, reserved_bytes;
  lade_chunk *chunk;
  bool has_pinned;                 /* arena and host tier are pinned for the transfers of the io queue */
  bool is_arena_shared;            /* the chunk can be exported to other processes */
  bool is_registered[LADE_N_AXES]; /* the arena is registered with the communicator of the axis */
  struct lade_pinned host; /* the host tier */
  struct lade_extent extent;
  uint64_t spill_offset; /* start of the extent in the plan's store; durable state lies before it */
  void *bounce; /* LADE_EXECUTOR_WINDOW_BYTES, for get and set of values in the store */
  lade_queue *queues[LADE_N_QUEUES]; /* NULL: no instruction uses it */
  struct lade_step step;
  struct lade_kernel_ctx ctx;
  struct bound_program train, eval;
  struct lade_error note; /* reason why there are no graphs */
  int32_t *resident;       /* by value number: its resident buffer, or -1 */
  uint64_t *resident_at;   /* by value number: its offset within that buffer */
  uint64_t *state_places;  /* by parameter with state in the store tier: start of its state in the plan's store */
  int32_t *tokens, *targets, *first_keys, *losses; /* by microbatch: resident host buffers; -1: none */
  int32_t clip_result;
  uint64_t n_steps, n_runs;
  bool has_step; /* durable: a step was run and is not yet published */
  struct lade_first_error failure; /* of an instruction; later contents are undefined */
};

/*
 * Return the address of @offset in @buffer of @program; on a dry device it must not be dereferenced. pre: the buffer is
 * not in the store.
 */
void *executor_address(const lade_executor *executor, const struct lade_program *program, int32_t buffer,
                       uint64_t offset);

/* Record the first failure of an instruction and abort the communicators, so that no other rank waits. Any thread. */
void executor_fail(lade_executor *executor, int code, const struct lade_error *error);

/* Return the first failure of an instruction and its line; 0: none. Any thread. */
int executor_failure(lade_executor *executor, struct lade_error *error);

/*
 * Set the identity and the place of the bytes of @value at @offset of the plan's store in the running step. Spilled
 * values lie in the extent, durable state in the slot of its generation.
 */
void executor_address_stored(const lade_executor *executor, struct lade_value value, uint64_t offset,
                             struct lade_transfer *transfer);

/*
 * Do the same for a piece of a parameter's state. The piece lies at @offset. Its checksums are those of the bytes at
 * @room_offset in the part's own buffer. Both offsets are in the plan's store (program/program.h).
 */
void executor_address_state(const lade_executor *executor, struct lade_value value, uint64_t offset,
                            uint64_t room_offset, struct lade_transfer *transfer);

/* Compute where the states of parameters lie in the store. pre: the table of resident buffers is filled. -ENOMEM. */
int executor_states_place(lade_executor *executor);

/* Return the start in the plan's store of value @tensor. pre: the store is its tier. */
uint64_t executor_place_stored(const lade_executor *executor, int tensor);

/* Begin a transfer that has its address; wait for it. A failed wait names the tensor in @error. */
int executor_transfer_begin(const lade_executor *executor, struct lade_transfer *transfer, struct lade_error *error);
int executor_transfer_wait(const lade_executor *executor, struct lade_transfer *transfer, struct lade_error *error);
/*
 * Verify or seal all bytes of a transfer with LADE_CHECK_CALLER, as lade_store_verify and lade_store_seal. Any thread.
 */
int executor_transfer_verify(const lade_executor *executor, const struct lade_transfer *transfer,
                             struct lade_error *error);
void executor_transfer_seal(const lade_executor *executor, const struct lade_transfer *transfer);

/* Do the same in a work function of the io queue: a failure becomes the step's failure. */
int io_transfer_begin(lade_executor *executor, struct lade_transfer *transfer);
int io_transfer_wait(lade_executor *executor, struct lade_transfer *transfer);
/* Deliver completed transfers. */
void io_poll(const lade_executor *executor);
int io_transfer_verify(lade_executor *executor, const struct lade_transfer *transfer);

/* Return the communicator over which @instr, a COLLECTIVE, is run. */
lade_comm *executor_comm(const lade_executor *executor, const struct lade_instr *instr);

/*
 * Cut the streamed updates of a program into runs and items, and place the items. -ENOMEM. Finish frees the updates
 * too.
 */
int streams_bind(struct bound_program *bound);
void streams_finish(struct bound_program *bound);

/* Bind every instruction of @program (bind.c); finish in any case. -ENOMEM. */
int bound_init(lade_executor *executor, const struct lade_program *program, struct bound_program *ret_bound);
void bound_finish(struct bound_program *bound);

/*
 * True if each instruction of @bound waits backwards and uses memory that the executor has. Each must be bound to the
 * kernel or the transfer of its kind. Runs, items and lots of streamed updates must also tile each other
 * (bound_validity.c). pre: bound_init has succeeded. O(operands + items); asserted with -Dchecks=full.
 */
bool bound_program_is_valid(const lade_executor *executor, const struct bound_program *bound);

/*
 * Compute, by queue (LADE_N_QUEUES entries), how long that queue stalled the compute queue (stalls.c). pre: the run
 * that began at @start_ns has ended.
 */
void executor_stalls_count(const struct bound_program *bound, int64_t start_ns, int64_t *ret_stall_ns);

/* Copy the step block to its place in device memory, before all kernels of the step. pre: a CUDA device. */
void executor_step_block_submit(lade_executor *executor, const struct bound_program *bound);

/* Submit an instruction of the compute queue after its waits. After a failure, submit an event without work instead. */
void executor_kernel_submit(lade_executor *executor, struct bound_program *bound, int at);

/* Make graphs of the chains of both bound programs. If that fails, the executor's note has the reason. */
void executor_graphs_init(lade_executor *executor);
void executor_graphs_finish(struct bound_program *bound);

/* Run a transfer or a streamed update: work functions of the io queue. */
void io_call_run(void *arg);
void stream_call_run(void *arg);

#endif
