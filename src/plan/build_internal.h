/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of emission: build.c writes the list, build_grads.c the instructions that complete gradients, build_state.c
 * those that update parameters. Errors of memory stick in the builder.
 */
#ifndef LADE_BUILD_INTERNAL_H
#define LADE_BUILD_INTERNAL_H

#include "plan/build.h"

/* Where a value begins. */
struct place {
  int32_t buffer;
  uint64_t offset;
};

struct transfer {
  int32_t slot, interval;
  int32_t need; /* step that uses the value next, or used it last */
  bool is_in;
  struct place block; /* of one in that is gathered: where this rank's block is */
};

struct early {
  int32_t slot, param;
};

/* A value, and where it is. */
struct held {
  struct place at;
  struct lade_value value;
};

/* What has come of a microbatch's gradient from other ranks, not yet in the block; in BF16 if sums are. */
struct incoming {
  struct held what;
  int32_t param;
  int16_t microbatch;
  bool is_last;
  bool is_block;  /* it is the block, the first of them */
  uint8_t target; /* enum lade_space: where the block waits for the next microbatch's */
  int32_t batch; /* that it was handed on in */
};

/* A parameter whose last reduction was put under way in a batch. */
struct due {
  int32_t param, batch;
};

struct builder {
  const struct lade_build_params *params;
  const struct lade_graph *graph;
  const struct plan_step *steps;
  int n_steps;
  const int32_t *update_ends; /* by parameter: steps that come before its update */
  const struct plan_lives *lives;
  int status;
  struct lade_instr spare; /* where fields go once memory is out; never read */
  LADE_ARRAY(struct lade_instr) instrs;
  LADE_ARRAY(struct lade_operand) operands;
  LADE_ARRAY(struct lade_buffer) buffers;
  LADE_ARRAY(struct transfer) transfers;
  struct early *early; /* parameters in the order of their updates; NULL: after all steps */
  int32_t *on_device;    /* by interval: its buffer */
  int32_t *now;          /* by value: its current interval */
  int32_t *elsewhere;    /* by value: buffer of its copy at home or away, -1 */
  int32_t *part_buffers; /* by parameter and part: buffer at home, -1 */
  int64_t *first_partials; /* by parameter, n_params + 1 */
  int32_t *n_adds;        /* by parameter: additions of one microbatch to its gradient */
  int16_t *grad_versions; /* by parameter: what has been added so far */
  bool *is_norm_due;      /* by parameter: complete, but sums of squares are still to come */
  bool *is_rounded;       /* by parameter: its gradient is, and is a block, with shards or without */
  int16_t *block_versions; /* by parameter: of the block of its gradient */
  int32_t *block_buffers;  /* by parameter: where the block of its gradient is, -1 */
  int32_t *away;           /* by parameter: where its sum is in BF16 while it is over replicas, -1 */
  struct due *due;         /* in order; n_settled are done with */
  int n_due, n_settled, n_batches;
  uint64_t bucket_bytes[LADE_N_AXES];
  struct {
    int32_t first, last; /* instructions */
    uint64_t bytes;      /* of their vectors */
  } bundle; /* of collectives, the latest; last -1: none */
  LADE_ARRAY(struct incoming) incoming; /* blocks under way; the first n_added have been added */
  int n_added;
  int32_t partials, verdict, verdict_host, step_host, step_device; /* buffers */
  int32_t stream;         /* the scratch that streamed updates after all steps share, -1 before the first of them */
};

/* A new buffer; its lifetime grows with every operand in it. */
int32_t buffer_make(struct builder *b, enum lade_space space, enum lade_owner owner, uint64_t bytes, bool is_resident);

/* Begin the next instruction; its operands follow. Never NULL. */
struct lade_instr *instr_begin(struct builder *b, enum lade_instr_kind kind, enum lade_queue_id queue);
void operand_add(struct builder *b, int role, int32_t buffer, enum lade_access access, struct lade_value reads,
                 struct lade_value makes, uint64_t offset, uint64_t bytes);
void operand_read(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes);
void operand_make(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes);
/*
 * Begin a collective; @bytes: of the whole vector; @param -1: of no parameter. What follows another one of its kind
 * over an axis, of parameters too, is joined to it: all that is moved for parameters over one axis is of one type.
 */
void collective_begin(struct builder *b, enum lade_collective_kind kind, enum lade_axis axis, int param,
                      int microbatch, uint64_t bytes);
/* Consumes @value and makes its next version, in place. */
void operand_change(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes);

/* This rank's gradient of @param as it is now: all, its block, or either rounded; and where it is on the device. */
struct lade_value grad_now(const struct builder *b, int param);
struct place grad_place(const struct builder *b, int param);

/* Bytes that this rank gives value @tensor. */
uint64_t value_bytes(const struct builder *b, int tensor);
/* The value as it is now: gradients have had so many additions. */
struct lade_value value_now(const struct builder *b, int value);
/* One copy, read or write: @makes is @reads, or this rank's block of it. */
void move_emit(struct builder *b, struct place src, struct lade_value reads, struct place dst, struct lade_value makes);
/* Move @value, through the host where the drive does not reach the device. */
void transfer_emit(struct builder *b, struct place src, struct place dst, struct lade_value value);

/* Is the state of parameters in shards? */
static inline bool is_sharded(const struct builder *b)
{
  return lade_shard_count(b->params->layout) > 1;
}

/* Where this rank's block begins in a vector of all blocks of @block_bytes. */
static inline uint64_t own_offset(const struct builder *b, uint64_t block_bytes)
{
  return block_bytes * (uint64_t)lade_layout_position(b->params->layout, LADE_AXIS_SHARD);
}

/* Of what takes @ns for all of a parameter, this rank's part. */
static inline int64_t share_ns(const struct builder *b, int64_t ns)
{
  return ns / lade_shard_count(b->params->layout);
}

/* ---- build_grads.c ---- */

/* Gradients to which all of a microbatch, or of this rank, has been added: sum them over ranks, bundled. */
void grads_emit(struct builder *b, const struct plan_handing *handings, int n);
/* Let the compute queue have all that is under way; @is_end: what is summed behind all steps, too. */
void grads_settle(struct builder *b, bool is_end);
/* Sums of squares of @param's gradient, unless they have been taken: it is about to leave the device. */
void norm_settle(struct builder *b, int param);
/* The mean over ranks of a microbatch's loss in @buffer; returns the value to hand on. */
struct lade_value loss_reduce_emit(struct builder *b, int32_t buffer, struct lade_value loss);

/* ---- build_state.c ---- */

/* The working copy of @param from all ranks' blocks in @buffer: first this rank's block, whose place it returns. */
struct place weight_block_emit(struct builder *b, int param, int32_t buffer);
void weight_gather_emit(struct builder *b, int param, struct place block, int32_t buffer);
/* Early updates: their order, -ENOMEM; and one of them. */
int early_order(struct builder *b);
void early_emit(struct builder *b, int param);
/* After all steps: the verdict, and updates that are not early. */
void end_emit(struct builder *b);

#endif
