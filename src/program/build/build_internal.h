/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of emission: build_instr.c appends buffers, instructions and copies; build.c writes the list,
 * build_grads.c the instructions that complete gradients, build_state.c those that update parameters. The builder keeps
 * a failure of memory, and its user checks for it once.
 */
#ifndef LADE_BUILD_INTERNAL_H
#define LADE_BUILD_INTERNAL_H

#include <errno.h>

#include "program/build.h"

/* The absence of a value, for the side of an operand that has none. */
static const struct lade_value nothing = {-1, 0, 0};

/* The place where a value begins. */
struct value_place {
  int32_t buffer;
  uint64_t offset;
};

struct transfer {
  int32_t slot, range;
  int32_t need; /* step that uses the value next, or that used it last */
  bool is_in;
  struct value_place block; /* of a gathered copy in: this rank's block */
};

/* With optimizer_in_backward: a parameter, and the slot at which it is updated. */
struct backward_update {
  int32_t slot, param;
};

/* A value and its place. */
struct held {
  struct value_place at;
  struct lade_value value;
};

/* A microbatch's gradient as received from other ranks, not yet added to the block; in BF16 if sums are. */
struct incoming {
  struct held part;
  int32_t param;
  int16_t microbatch;
  bool is_last;
  bool is_block;  /* it becomes the block, as the first of them */
  uint8_t target; /* enum lade_space: where the block waits for the next microbatch's */
  int32_t batch; /* number of the batch that reduced it */
};

/* A parameter whose last reduction was issued in a batch. */
struct due {
  int32_t param, batch;
};

/* The current live range of a value, and the step before which that holds; 0: it is to be looked up. */
struct value_range {
  int32_t at, until;
};

struct builder {
  const struct lade_build_params *params;
  const struct lade_model_graph *graph;
  const struct plan_step *steps;
  int n_steps;
  const int32_t *update_ends; /* by parameter: steps that come before its update */
  const struct live_ranges *live;
  int status;
  struct lade_instr spare; /* receives the fields of instructions once memory is out; never read */
  LADE_ARRAY(struct lade_instr) instrs;
  LADE_ARRAY(struct lade_operand) operands;
  LADE_ARRAY(struct lade_buffer) buffers;
  LADE_ARRAY(struct transfer) transfers;
  struct backward_update *backward_updates; /* parameters in the order of their updates; NULL: after all steps */
  int32_t *on_device;    /* by live range: its buffer */
  int32_t *step_instrs;  /* by step: its first instruction */
  struct value_range *now; /* by value: its current live range */
  int32_t *elsewhere;    /* by value: buffer of its copy in its tier between steps, or in another; -1: none */
  int32_t *part_buffers; /* by parameter and part: buffer in the state tier, -1 */
  int64_t *first_partials; /* by parameter, n_params + 1 */
  int32_t *n_adds;        /* by parameter: additions of one microbatch to its gradient */
  int16_t *grad_versions; /* by parameter: additions so far */
  bool *is_sumsq_due;     /* by parameter: complete, but sums of squares are not emitted yet */
  bool *is_rounded;       /* by parameter: its gradient is rounded, which makes it a block, with shards or without */
  int16_t *block_versions; /* by parameter: version of its gradient's block */
  int32_t *block_buffers;  /* by parameter: buffer of its gradient's block, -1 */
  int32_t *away;           /* by parameter: buffer of its sum in BF16 during the sum over replicas, -1 */
  struct due *due;         /* in order; the first n_settled are settled */
  int n_due, n_settled, n_batches;
  uint64_t bucket_bytes[LADE_N_AXES];
  struct {
    int32_t first, last; /* first and last instruction */
    uint64_t bytes;      /* of their vectors */
  } group; /* the latest group of collectives; last -1: none */
  LADE_ARRAY(struct incoming) incoming; /* blocks in flight; the first n_added have been added */
  int32_t in_flight[REDUCTIONS_IN_FLIGHT][LADE_COMM_LIST_MAX]; /* gradients' buffers of the latest batches, by batch */
  int n_in_flight[REDUCTIONS_IN_FLIGHT];
  int n_added;
  int32_t stagings[LADE_VALUES_PASSING]; /* ring of host buffers of the latest values between device and drives */
  int n_stagings;
  int32_t partials, clip_result, clip_result_host, step_host, step_device; /* indices of buffers */
  int32_t stream;         /* the scratch that streamed updates after all steps share, -1 before the first of them */
};

/* Make a buffer; its lifetime grows with every operand in it. */
int32_t buffer_make(struct builder *b, enum lade_space space, enum lade_owner owner, uint64_t bytes, bool is_resident);

/* Begin the next instruction; its operands follow. Never NULL. */
struct lade_instr *instr_begin(struct builder *b, enum lade_instr_kind kind, enum lade_queue_id queue);

/*
 * Return the memory of the latest instruction's next operand, in @buffer, which lives through the instruction. Callers
 * fill it in place, because a copy of a structure that was just written waits for these writes. NULL: no memory. These
 * functions are inline, because a program has thousands of operands and a planner emits a thousand programs.
 */
static inline struct lade_operand *operand_next(struct builder *b, int32_t buffer)
{
  if (b->status || !LADE_RESERVE(&b->operands)) {
    b->status = -ENOMEM;
    return NULL;
  }
  const int32_t at = b->instrs.n - 1;
  struct lade_buffer *held = &b->buffers.items[buffer];
  held->first = LADE_MIN(held->first, at);
  held->last = LADE_MAX(held->last, at);
  b->instrs.items[at].n_operands++;
  return &b->operands.items[b->operands.n++];
}

/* Give the instruction its next operand. */
static inline void operand_add(struct builder *b, const struct lade_operand *operand)
{
  struct lade_operand *next = operand_next(b, operand->buffer);
  if (next)
    *next = *operand;
}

/* Add an operand that reads, or makes, @bytes of @value: at @at, or at the beginning of @buffer. */
static inline void operand_read_at(struct builder *b, int role, struct value_place at, struct lade_value value,
                                   uint64_t bytes)
{
  struct lade_operand *next = operand_next(b, at.buffer);
  if (next)
    *next = (struct lade_operand){at.buffer, LADE_READS, (uint8_t)role, at.offset, bytes, value, nothing};
}

static inline void operand_make_at(struct builder *b, int role, struct value_place at, struct lade_value value,
                                   uint64_t bytes)
{
  struct lade_operand *next = operand_next(b, at.buffer);
  if (next)
    *next = (struct lade_operand){at.buffer, LADE_MAKES, (uint8_t)role, at.offset, bytes, nothing, value};
}

static inline void operand_read(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  operand_read_at(b, role, (struct value_place){buffer, 0}, value, bytes);
}

static inline void operand_make(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  operand_make_at(b, role, (struct value_place){buffer, 0}, value, bytes);
}

/* Add an operand that consumes @value and makes its next version, in place. */
static inline void operand_change(struct builder *b, int role, int32_t buffer, struct lade_value value, uint64_t bytes)
{
  const struct lade_value makes = {value.tensor, value.microbatch, (int16_t)(value.version + 1)};
  struct lade_operand *next = operand_next(b, buffer);
  if (next)
    *next = (struct lade_operand){buffer, LADE_READS_AND_MAKES, (uint8_t)role, 0, bytes, value, makes};
}

/*
 * Begin a collective; @bytes: of the whole vector; @param -1: of no parameter. A collective of a parameter joins the
 * one before it if that has its kind and axis and is of a parameter too: all those of one axis have one type.
 */
void collective_begin(struct builder *b, enum lade_collective_kind kind, enum lade_axis axis, int param,
                      int microbatch, uint64_t bytes);

/* Return this rank's current gradient of @param: all, its block, or either rounded; and its place on the device. */
struct lade_value grad_now(const struct builder *b, int param);
struct value_place grad_place(const struct builder *b, int param);

/* Return the bytes that this rank gives value @tensor. */
static inline uint64_t value_bytes(const struct builder *b, int tensor)
{
  return plan_held_bytes(b->params, tensor);
}

/* Return the value at this point of the list: the version of a gradient is the number of its additions. */
static inline struct lade_value value_now(const struct builder *b, int value)
{
  const int tensor = plan_value_tensor(b->graph, value);
  const struct lade_tensor *t = &b->graph->tensors[tensor];
  return (struct lade_value){tensor, (int16_t)(value == tensor ? 0 : value / b->graph->n_tensors),
                             t->kind == LADE_TENSOR_GRAD ? b->grad_versions[t->param] : (int16_t)0};
}

/* Emit one copy, read or write: @makes is @reads, or this rank's block of it. */
void move_emit(struct builder *b, struct value_place src, struct lade_value reads, struct value_place dst,
               struct lade_value makes);
/* Move @value, through the host where the drive does not reach the device. */
void transfer_emit(struct builder *b, struct value_place src, struct value_place dst, struct lade_value value);

/* True if the state of parameters is in shards. */
static inline bool is_sharded(const struct builder *b)
{
  return lade_shard_count(b->params->layout) > 1;
}

/* Return where this rank's block begins in a vector of all blocks of @block_bytes. */
static inline uint64_t own_offset(const struct builder *b, uint64_t block_bytes)
{
  return block_bytes * (uint64_t)lade_layout_position(b->params->layout, LADE_AXIS_SHARD);
}

/* Return this rank's share of the time @ns that all of a parameter takes. */
static inline int64_t share_ns(const struct builder *b, int64_t ns)
{
  return ns / lade_shard_count(b->params->layout);
}

/* ---- build_grads.c ---- */

/* Sum over ranks, in groups, the gradients to which all of a microbatch, or of this rank, has been added. */
void grads_emit(struct builder *b, const struct grad_reduction *reductions, int n);
/* Let the compute queue take all reductions in flight; @is_end: also those after all steps. */
void grads_settle(struct builder *b, bool is_end);
/* Emit the sums of squares of @param's gradient, unless done; call it before the gradient leaves the device. */
void sumsq_settle(struct builder *b, int param);
/* Sum a microbatch's loss in @buffer over ranks; return the value for the caller. */
struct lade_value loss_reduce_emit(struct builder *b, int32_t buffer, struct lade_value loss);

/* ---- build_state.c ---- */

/*
 * Gather the working copy of @param from all ranks' blocks into @buffer, this rank's block first; return the block's
 * place.
 */
struct value_place weight_block_emit(struct builder *b, int param, int32_t buffer);
void weight_gather_emit(struct builder *b, int param, struct value_place block, int32_t buffer);
/* Find the order of updates within the backward half, or -ENOMEM; and emit one of them. */
int backward_updates_order(struct builder *b);
void backward_update_emit(struct builder *b, int param);
/* Emit, after all steps, the clip result and the updates that do not run in the backward half. */
void end_emit(struct builder *b);

#endif
