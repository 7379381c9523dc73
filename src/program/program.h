/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of one rank: all work of a step, as one flat list.
 *
 * The list's order is its meaning: run one after another, its instructions compute the step. Each names a queue, and
 * queues run concurrently. So each hazard between two queues is a wait on an earlier instruction: the value is not yet
 * made, or the address not yet free. waits.c derives waits; vector clocks reduce them to at most one per other queue. A
 * program makes no decision about recompute or offload when it runs. A recomputed value is a second compute instruction
 * that makes the same value. An offloaded value is a copy out, a copy in, and addresses that are free in between.
 *
 * A collective may be grouped with the one before it, of the same kind, axis and element type, if their operands do not
 * conflict. A run of grouped collectives is a group: one list for the communicator, of at most LADE_COMM_LIST_MAX. A
 * group begins when its first member may, whose waits and predicted time are those of the group, and ends as one.
 *
 * A compute instruction joins the CUDA graph of its predecessor on the queue if it has no waits, and no instruction
 * waits for the predecessor. A graph may be submitted when its first instruction is, and may end as one. Its first
 * member may wait, and its last may be waited for. No other wait of any queue begins or ends at a member.
 *
 * An operand is a range of a buffer and the value it holds. A value is (tensor, microbatch, version): recomputing or
 * moving it keeps its identity, and an op that works in place consumes one value and makes another. The version of a
 * gradient or a parameter counts additions or updates. A buffer is a range of one space, with a lifetime in list
 * positions and an offset found by the packer. Its lifetime runs to its last use on any queue.
 *
 * The program is a cycle: buffers that are resident at its end are resident at its start, and all queues are drained
 * between two steps.
 *
 * A caller's own step (lade/graph.h) is a program too. Its compute instructions are the ops of @step_graph, with one
 * operand for each storage that an op uses. Its values are (storage, 0, version). lower.h builds it. Queues, buffers,
 * waits, offsets, simulation and proof are the same.
 *
 * Immutable once built; any thread.
 */
#ifndef LADE_PROGRAM_H
#define LADE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/model_graph.h"
#include "lade/plan.h" /* spaces, queues, owners: the part that the public may use */
#include "lade/types.h"
#include "machine/cost.h"
#include "parallel/comm.h"
#include "parallel/layout.h"

struct lade_graph;

enum lade_instr_kind {
  LADE_INSTR_COMPUTE,    /* one op of the graph, or of the caller's step */
  LADE_INSTR_GRAD_SUMSQ, /* sums of squares of one parameter's gradient */
  LADE_INSTR_CLIP,       /* all sums to the clip result; or one parameter's sums to its own clip result */
  LADE_INSTR_UPDATE,     /* AdamW on one parameter: on the device, on the host, or streamed from the store */
  LADE_INSTR_COPY,       /* device to host or host to device */
  LADE_INSTR_READ,       /* store to memory */
  LADE_INSTR_WRITE,      /* memory to store */
  LADE_INSTR_COLLECTIVE, /* all ranks of an axis together; each issues those of an axis in one order */
  LADE_INSTR_SEND,       /* to a rank of an axis, synchronous */
  LADE_INSTR_RECV,
  LADE_INSTR_ADD,        /* add a block of a gradient to its sum */
  LADE_INSTR_ROUND,      /* round a complete gradient to the type in which the update takes it */
  LADE_INSTR_CAST,       /* convert a gradient or its block to BF16, to send it to other ranks, and back */
  LADE_INSTR_SUM,        /* add partials to one number */
  LADE_N_INSTR_KINDS
};

/*
 * The meaning of a tensor number in a value. Numbers below graph->n_tensors are the graph's tensors. Above them follow,
 * for parameter p, the parts of its optimizer state, then the step's scalars, then blocks. lade_value_* (below) make
 * and read these numbers; no other code knows their order.
 */
enum lade_part {
  LADE_PART_RESIDUAL,
  LADE_PART_M,
  LADE_PART_V,
  LADE_PART_M_SCALES, /* of 8-bit moments */
  LADE_PART_V_SCALES,
  LADE_N_PARTS
};
enum lade_scalar {
  LADE_SCALAR_PARTIALS, /* of the gradients that this rank holds */
  LADE_SCALAR_CLIP_RESULT,
  LADE_SCALAR_SUM,  /* sum of this rank's partials, or of those gathered over the level below; version: the level */
  LADE_SCALAR_SUMS, /* + a level: of all ranks of its axis, in their order */
  LADE_SCALAR_SUMS_LAST = LADE_SCALAR_SUMS + 2,
  LADE_N_SCALARS
};
#define LADE_SUM_LEVELS (LADE_N_SCALARS - LADE_SCALAR_SUMS)

/*
 * Blocks that this rank holds of a parameter with sharded state. Without shards only ROUNDED and NARROW_WHOLE exist,
 * whole.
 */
enum lade_block {
  LADE_BLOCK_WEIGHT,   /* of the working copy */
  LADE_BLOCK_GRAD,     /* of the gradient's sum over ranks */
  LADE_BLOCK_INCOMING, /* the gradient of one microbatch, to be added to GRAD */
  LADE_BLOCK_NARROW,   /* GRAD or INCOMING in BF16, as ranks sum it; versions 1 and 2: before and after the sum over
                          replicas */
  LADE_BLOCK_NARROW_WHOLE, /* a whole gradient in BF16, before and after the sum, if state is not in shards */
  LADE_BLOCK_ROUNDED,  /* the complete gradient, or GRAD complete, in another type for the update */
  LADE_N_BLOCKS
};

/* Versions have 16 bits, and a microbatch makes at most four additions to a parameter's gradient. */
#define LADE_MICROBATCHES_MAX 8191
/* Units (layers, embedding, head) of one rank. Planning time grows with their square, to about ten seconds here. */
#define LADE_UNITS_MAX 1024

/*
 * Version 0 of the clip result is the step's. With optimizer_in_backward, version param + 1 is the clip result over
 * that parameter's gradient alone.
 */
#define LADE_IN_BACKWARD_PARAMS_MAX 32766

struct lade_value {
  int32_t tensor; /* -1: scratch, without a value between instructions */
  int16_t microbatch; /* 0 for values that microbatches share */
  int16_t version;
};

enum lade_access { LADE_READS = 1, LADE_MAKES = 2, LADE_READS_AND_MAKES = 3 };

struct lade_operand {
  int32_t buffer;
  uint8_t access;
  uint8_t role;   /* its meaning to its instruction: see lade_instr */
  uint64_t offset, bytes;    /* within the buffer */
  struct lade_value reads, makes; /* of READS, of MAKES */
};

struct lade_buffer {
  enum lade_space space;
  enum lade_owner owner;
  uint64_t bytes, offset;
  int32_t first, last; /* instructions, inclusive; a resident buffer has 0 and n_instrs-1 */
  bool is_resident;    /* lives across steps: its contents at the end are its contents at the start */
  uint32_t align;      /* of its offset: at least the granule of its space */
};

/*
 * Operand roles, in the order of an instruction's operands:
 *  COMPUTE  the op's inputs (role = index), its outputs (role = LADE_ROLE_OUT + index), scratch
 *  GRAD_SUMSQ  gradient, partials range
 *  CLIP     partials, clip result
 *  UPDATE   weight, gradient, the existing parts, clip result; scratch when it streams
 *  COPY, READ, WRITE   source, destination
 *  COLLECTIVE, SEND, RECV   an op of the graph: its operands; else source, destination; or the operand changed in place
 *  ADD      addend, sum
 *  CAST     source, destination
 *  SUM      partials, sum
 *  ROUND    gradient, rounded
 */
enum { LADE_ROLE_OUT = 16, LADE_ROLE_SCRATCH = 32 };
enum {
  LADE_ROLE_WEIGHT,
  LADE_ROLE_GRAD,
  LADE_ROLE_RESIDUAL, /* + a part */
  LADE_ROLE_M,
  LADE_ROLE_V,
  LADE_ROLE_M_SCALES,
  LADE_ROLE_V_SCALES,
  LADE_ROLE_CLIP_RESULT
};
enum { LADE_ROLE_SRC, LADE_ROLE_DST };

/* All offsets and sizes of buffers are multiples of these: pages in memory, checksummed granules in the store. */
#define LADE_BUFFER_ALIGN 4096
#define LADE_STORE_ALIGN 65536

struct lade_instr {
  uint8_t kind, queue;
  uint8_t is_recompute;
  uint8_t is_streamed;   /* UPDATE: state, maybe the weight too, goes from the store to scratch and back */
  uint8_t collective;    /* COLLECTIVE: enum lade_collective_kind */
  uint8_t axis;          /* COLLECTIVE, SEND, RECV: enum lade_axis of the ranks that take part */
  uint8_t is_grouped;    /* COLLECTIVE: grouped with the one before it in the list; see above */
  uint8_t is_graph_member; /* on the compute queue: in one CUDA graph with the one before it there; see above */
  int16_t microbatch;
  uint16_t n_operands;
  int32_t first_operand;
  int32_t op;            /* COMPUTE, SEND, RECV, some COLLECTIVEs: the graph's op */
  int32_t param;         /* GRAD_SUMSQ, UPDATE, ADD, CAST, ROUND, CLIP of one parameter; COLLECTIVE over values of
                            one */
  int32_t peer;          /* SEND, RECV: its position on the axis */
  uint32_t accumulate;   /* COMPUTE: bit i: output i adds to the gradient's contents */
  int32_t waits[LADE_N_QUEUES]; /* instruction of that queue that must be done first, or -1 */
  int64_t predicted_ns;
  int64_t shared_ns; /* time beyond predicted_ns, because transfers of other queues use the same links meanwhile */
  int64_t hidden_ns; /* READ, WRITE: part of predicted_ns during which an earlier transfer of the queue is in flight */
};

struct lade_program {
  const struct lade_model_graph *graph; /* borrowed; outlives the program; NULL: a caller's own step */
  const struct lade_graph *step_graph;  /* the same, of a caller's own step; NULL: a model */
  /*
   * Of a caller's own step, by storage; owned. The buffer that holds a given or kept storage at the end of a step, in
   * its tier; and that of a given storage at the start. These are one buffer, or, of a storage that leaves the device
   * meanwhile, two at one offset. -1: there is none, or it has no bytes.
   */
  int32_t *end_buffers, *start_buffers;
  const struct lade_layout *layout; /* the same; NULL: one rank */
  int n_microbatches;
  bool is_training; /* else forward only: evaluation */
  bool is_unified;  /* the drive and the host reach device memory */
  bool optimizer_in_backward;    /* a parameter is updated once its gradient is complete and no later op reads it */
  struct lade_streaming streaming;
  /*
   * Without is_unified kernels read the step block in device memory: both buffers are resident and no instruction names
   * them. The executor writes the one on the host and copies it to the other before the first instruction.
   */
  int32_t step_on_host, step_on_device;
  int n_instrs, n_operands, n_buffers;
  struct lade_instr *instrs;
  struct lade_operand *operands;
  struct lade_buffer *buffers;
  int instrs_capacity, operands_capacity, buffers_capacity; /* for lade_program_emit_over alone */
  uint64_t peak_bytes[LADE_N_SPACES]; /* highest used offset; the device's rounded up to whole chunks */
  uint64_t live_peak_bytes[LADE_N_SPACES]; /* most bytes live at once: the bound of the packer */
  int32_t live_peak_at[LADE_N_SPACES];     /* the first instruction at which they are live */
  uint64_t owner_bytes[LADE_N_SPACES][LADE_N_OWNERS]; /* at the instant of the live peak; sums to peak_bytes */
  int64_t predicted_ns;               /* of a step, by the simulator */
  int64_t predicted_busy_ns[LADE_N_QUEUES];
  bool is_proved;                     /* set by lade_program_prove alone */
};

/*
 * Transfers that the io queue may begin before the one in front of them has ended: in the list's order, each when its
 * waits are met and it conflicts with none before it. They still end in the list's order.
 */
#define LADE_IO_AHEAD 7
/*
 * Values on their way between device and drives that have host memory of their own: one is copied while others are
 * written or read.
 */
#define LADE_VALUES_PASSING 3
/* True if @instr is a READ or a WRITE. */
bool lade_instr_is_transfer(const struct lade_instr *instr);
/*
 * True if transfers @a and @b of a placed program touch common bytes, in memory or in the store, and one changes them.
 * The later one then begins after the earlier one has ended.
 */
bool lade_program_transfers_conflict(const struct lade_program *program, int a, int b);

/*
 * Return the bytes of value @tensor (any microbatch) of the graph without padding and without shards, the length that
 * checkpoints use.
 */
uint64_t lade_value_bytes(const struct lade_model_graph *graph, int tensor);
/*
 * Return the bytes of all parameters with their state in a store, in whole granules, if the store is their tier. A rank
 * of @layout holds them whole or in blocks; NULL: whole. They are the first bytes of the store, parameter by parameter:
 * the working copy, then the parts of its state.
 */
uint64_t lade_state_store_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout);

/* Return the ranks over which the state of parameters is cut: 1 unless the layout is ZeRO's. */
static inline int lade_shard_count(const struct lade_layout *layout)
{
  return layout && layout->zero > 0 ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
}
/* Elements whose state this rank holds: @first and the @n next of the parameter, padded to @n_padded on every rank. */
struct lade_state_shard {
  int64_t first, n, n_padded;
};
struct lade_state_shard lade_param_shard(const struct lade_model_graph *graph, const struct lade_layout *layout,
                                         int param);
/*
 * Return the axis over which tensor parallel ranks (n_sharers) add up their parts of the gradient of @param. Also
 * return the elements of the parts within the gradient or block of this rank; n may be 0.
 */
struct lade_parts {
  enum lade_axis axis;
  int64_t first, n;
};
struct lade_parts lade_param_parts(const struct lade_model_graph *graph, const struct lade_layout *layout, int param);
/* True if a parameter's collectives over @axis add up parts of gradients. */
static inline bool lade_axis_has_parts(enum lade_axis axis)
{
  return axis == LADE_AXIS_TP || axis == LADE_AXIS_KV;
}
/* As lade_held_bytes, for values that shards cut and for parts, scalars and blocks. */
uint64_t lade_cut_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout, int tensor);
/*
 * Return the bytes that a program gives value @tensor: weights and gradients with the padding of all shards, parts and
 * blocks those of one shard, with its padding. Without shards the same as lade_value_bytes.
 */
static inline uint64_t lade_held_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout,
                                       int tensor)
{
  const bool is_whole = tensor < graph->n_tensors && lade_shard_count(layout) == 1; /* most, and no call */
  return is_whole ? graph->tensors[tensor].bytes : lade_cut_bytes(graph, layout, tensor);
}
/*
 * Return the elements of @param that count for this rank in norms over all ranks: copies of another rank's elements do
 * not.
 */
int64_t lade_norm_elements(const struct lade_model_graph *graph, const struct lade_layout *layout, int param);
/* Return the partials of lade_norm_elements of @param, at least one; the first one's index (O(n_params)). */
int64_t lade_held_partials(const struct lade_model_graph *graph, const struct lade_layout *layout, int param);
int64_t lade_held_first_partial(const struct lade_model_graph *graph, const struct lade_layout *layout, int param);
/* Return the number of ranks whose sums of squares make the norm. */
int lade_sums_count(const struct lade_layout *layout);
/*
 * Sums are gathered level by level, each over one axis on which ranks hold other gradients. Return the ranks of a level
 * (1: no gather), its axis, and the level of an axis (-1: none).
 */
int lade_sums_size(const struct lade_layout *layout, int level);
enum lade_axis lade_sums_axis(int level);
int lade_sums_level(enum lade_axis axis);
/*
 * Return the partials that count in this rank's sum: not those of a table's copy, which is the last of the parameters.
 */
int64_t lade_summed_partials(const struct lade_model_graph *graph, const struct lade_layout *layout);
/* Return the element type that collectives move. */
enum lade_dtype lade_value_dtype(const struct lade_model_graph *graph, int tensor);
/* Return the bytes of @n_elements of @part. */
uint64_t lade_part_bytes(const struct lade_model_graph *graph, enum lade_part part, int64_t n_elements);
/*
 * Layout of the state of a parameter whose state tier is the store. The buffers of its parts are contiguous, and the
 * state begins at the first of them. Each grain has its residual, its m and its v; the scales of m and of v follow the
 * last grain. Consecutive grains are therefore one range (state_layout.c has a diagram). All offsets are multiples of
 * LADE_BUFFER_ALIGN. A part's checksums are stored under the granules of its own buffer, wherever the bytes are. States
 * of parameters with contiguous buffers are contiguous too.
 *
 * Return the bytes of the grains of the first @n_elements; the bytes of all scales of @n_elements; the offset of @part,
 * of @n_held elements, in the grain that begins at element @first. Scales are one piece, at @first 0.
 */
uint64_t lade_state_bytes(const struct lade_model_graph *graph, int64_t n_elements);
uint64_t lade_state_scales_bytes(const struct lade_model_graph *graph, int64_t n_elements);
uint64_t lade_state_offset(const struct lade_model_graph *graph, int64_t n_held, enum lade_part part, int64_t first);
/*
 * Scratch of a streamed update of @param. It holds windows of its parts and, if they stream from the store too, of its
 * weight and of its gradient; and all of its scales, unless they fit in its one window.
 */
struct lade_stream_params {
  const struct lade_model_graph *graph;
  const struct lade_layout *layout;
  struct lade_streaming streaming;
  int param;
  bool has_weight, has_grad;
};
struct lade_stream_need {
  uint64_t windows_bytes, whole_bytes, scales_bytes;
};
struct lade_stream_need lade_stream_need(const struct lade_stream_params *params);
/*
 * Return the bytes for scales of updates that have at most @max_bytes of them: of one update alone, or of all
 * consecutive ones in flight at once.
 */
uint64_t lade_stream_scales_bytes(uint64_t max_bytes, bool is_shared);
/* Add the need of @one more update over the same scratch to @all, zeros at first. */
void lade_stream_need_add(struct lade_stream_need *all, struct lade_stream_need one);
/* Return the scratch of updates that need @need, of one or of several that share it: windows, then scales. */
uint64_t lade_stream_scratch_bytes(struct lade_stream_need need, bool is_shared);
/* True if @part is streamed whole. */
static inline bool lade_part_is_scales(enum lade_part part)
{
  return part == LADE_PART_M_SCALES || part == LADE_PART_V_SCALES;
}
/* Write the readable name, "h.3.mlp.fc", "h.3.mlp.fc.exp_avg", into @name (LADE_NAME_BYTES + 16); return it. */
const char *lade_value_name(const struct lade_model_graph *graph, int tensor, char *name);
/* Return the tensor numbers of a parameter's optimizer parts (-1 if the form of its state lacks one) and of scalars. */
int lade_value_part(const struct lade_model_graph *graph, int param, enum lade_part part);
int lade_value_scalar(const struct lade_model_graph *graph, enum lade_scalar scalar);
int lade_value_block(const struct lade_model_graph *graph, int param, enum lade_block block);
int lade_value_count(const struct lade_model_graph *graph);

/* Count the bytes that one run of @program reads from the store and writes there, streamed updates included. */
void lade_program_store_traffic(const struct lade_program *program, uint64_t *ret_read_bytes,
                                uint64_t *ret_written_bytes);

/*
 * Count the bytes that this rank sends in one run of @program, by axis (LADE_N_AXES entries), as ring algorithms do: of
 * a vector of n bytes over N ranks n(N-1)/N in an all_gather or a reduce_scatter, twice that in an all_reduce
 * (traffic.c).
 */
void lade_program_comm_traffic(const struct lade_program *program, uint64_t *ret_sent_bytes);

/*
 * Count the bytes that this rank sends in one run of @program to gather shards before the first gradient leaves. These
 * gathers run beside the compute of the forward half; under ZeRO 1 and 2 all others follow the updates.
 */
uint64_t lade_program_forward_gathers(const struct lade_program *program);

/*
 * Return the index after the last instruction of the group that begins at @at: @at + 1 unless others are in its group.
 */
int lade_program_group_end(const struct lade_program *program, int at);

/*
 * Count groups of collectives, and sends, in one run of @program, by axis (LADE_N_AXES entries): each pays a latency.
 */
void lade_program_comm_groups(const struct lade_program *program, int *ret_n_groups);

/* Return "compute", "norm", ...; static. */
const char *lade_instr_kind_name(enum lade_instr_kind kind);

/* Return the queue on which collectives of @axis run. */
enum lade_queue_id lade_axis_queue(enum lade_axis axis);

void lade_program_destroy(struct lade_program *program); /* NULL is allowed */

/*
 * Prove @program (proof.c, independent of the builder). Every read finds the right version in its range. No two live
 * buffers overlap, and lifetimes cover all uses. Waits order every hazard between queues. The peak of each space is as
 * stated and within @budget_bytes. The cycle closes, and no wait begins or ends inside a CUDA graph. Sets
 * is_proved. -EINVAL with the first violation named: instruction, operand, value. O(n log n).
 */
int lade_program_prove(struct lade_program *program, const uint64_t budget_bytes[LADE_N_SPACES],
                       struct lade_error *error);

/*
 * Prove that two proved programs of one graph may alternate over one arena: their resident buffers are the same ranges,
 * and each one begins with the contents that the other leaves. -EINVAL with the first difference; -ENOMEM.
 */
int lade_program_prove_shared(const struct lade_program *program, const struct lade_program *other,
                              struct lade_error *error);

#endif
