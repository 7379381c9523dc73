/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of one rank: everything that a step does, as one flat list.
 *
 * The list's order is its meaning: run one after another, its instructions compute the step. Each names a
 * queue; queues run beside each other, so every hazard between two queues (a value not yet made, an address
 * not yet free) is a wait on an earlier instruction, derived by waits.c and reduced by vector clocks to at
 * most one per other queue. Nothing about recompute or offload is left to decide when a program runs: a
 * recomputed value is a second compute instruction that makes the same value, an offloaded one a copy out, a
 * copy in, and addresses that are free in between.
 *
 * A collective may be joined to the one before it: of the same kind, axis and element type, and touching nothing that
 * it writes. Both, and what is joined in turn, are a bundle, one list for the communicator of at most
 * LADE_COMM_LIST_MOST: it begins when the first may, whose waits and predicted time are those of all, and all of it
 * ends together.
 *
 * A compute instruction is chained to the one before it on its queue where it waits for nothing and nobody waits for
 * that one. So a chain may be submitted as one piece of work when its first instruction is, and end as one: what stands
 * between its members in the list has no business with any of them but the first, before it, and the last, behind it.
 *
 * An operand is a range of a buffer and the value it holds. A value is (tensor, microbatch, version):
 * recomputing or moving it keeps its identity, an op that works in place consumes one value and makes another,
 * a gradient's and a parameter's version counts what has been added or updated. A buffer is a range of one
 * space with a lifetime in list positions, which runs to its last use on any queue, and an offset found by
 * the packer.
 *
 * The program is a cycle: what is resident at its end is resident at its start, and all queues are drained
 * between two steps.
 *
 * Immutable once built; any thread.
 */
#ifndef LADE_PROGRAM_H
#define LADE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/graph.h"
#include "lade/plan.h" /* spaces, queues, owners: the part that the public may use */
#include "lade/types.h"
#include "parallel/comm.h"
#include "parallel/layout.h"

enum lade_instr_kind {
  LADE_INSTR_COMPUTE, /* one op of the graph */
  LADE_INSTR_NORM,    /* sums of squares of one parameter's gradient */
  LADE_INSTR_CLIP,    /* all sums to the verdict; or one parameter's to a verdict of its own */
  LADE_INSTR_UPDATE,  /* AdamW on one parameter: on the device, on the host, or streamed from the store */
  LADE_INSTR_COPY,    /* device to host or host to device */
  LADE_INSTR_READ,    /* store to memory */
  LADE_INSTR_WRITE,   /* memory to store */
  LADE_INSTR_COLLECTIVE, /* all ranks of an axis together; each issues those of an axis in one order */
  LADE_INSTR_SEND,    /* to a rank of an axis, synchronous */
  LADE_INSTR_RECV,
  LADE_INSTR_ADD,     /* a block of a gradient to the sum of it */
  LADE_INSTR_ROUND,   /* a complete gradient to the type in which the update takes it */
  LADE_INSTR_CAST,    /* a gradient or its block to BF16, for its way to other ranks, and back */
  LADE_INSTR_SUM,     /* partials to one number */
  LADE_N_INSTR_KINDS
};

/*
 * What a tensor number in a value means. Numbers below graph->n_tensors are the graph's tensors. Above them
 * follow, for parameter p, the parts of its optimizer state, then the step's scalars, then blocks. lade_value_*
 * (below) make and read these numbers, so that nothing else knows their order.
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
  LADE_SCALAR_VERDICT,
  LADE_SCALAR_SUM,  /* of this rank's partials, or of what was gathered over the level below; version: the level */
  LADE_SCALAR_SUMS, /* + a level: of all ranks of its axis, in their order */
  LADE_SCALAR_SUMS_LAST = LADE_SCALAR_SUMS + 2,
  LADE_N_SCALARS
};
#define LADE_SUM_LEVELS (LADE_N_SCALARS - LADE_SCALAR_SUMS)

/*
 * What this rank holds of a parameter whose state is in shards; without shards there are ROUNDED and NARROW_WHOLE
 * alone, of all of it.
 */
enum lade_block {
  LADE_BLOCK_WEIGHT,   /* of the working copy */
  LADE_BLOCK_GRAD,     /* of the gradient's sum over ranks */
  LADE_BLOCK_INCOMING, /* the same of one microbatch, to be added to it */
  LADE_BLOCK_NARROW,   /* GRAD or INCOMING in BF16, as ranks sum it; version 1 and 2: before and after replicas' sum */
  LADE_BLOCK_NARROW_WHOLE, /* a whole gradient in BF16, before and after the sum where nothing is in shards */
  LADE_BLOCK_ROUNDED,  /* the complete gradient, or GRAD complete, in another type for the update */
  LADE_N_BLOCKS
};

/* Versions have 16 bits, and no parameter is added to more than four times in a microbatch. */
#define LADE_MICROBATCHES_MAX 8191

/*
 * Version 0 of the verdict is the step's. Where parameters are updated inside the backward half, version
 * param + 1 is the verdict over that parameter's gradient alone.
 */
#define LADE_EARLY_PARAMS_MAX 32766

struct lade_value {
  int32_t tensor; /* -1: scratch, holds nothing between instructions */
  int16_t microbatch; /* 0 for what is shared by microbatches */
  int16_t version;
};

enum lade_access { LADE_READS = 1, LADE_MAKES = 2, LADE_READS_AND_MAKES = 3 };

struct lade_operand {
  int32_t buffer;
  uint8_t access;
  uint8_t role;   /* what it is to its instruction: see lade_instr */
  uint64_t offset, bytes;    /* within the buffer */
  struct lade_value reads, makes; /* of READS, of MAKES */
};

struct lade_buffer {
  enum lade_space space;
  enum lade_owner owner;
  uint64_t bytes, offset;
  int32_t first, last; /* instructions, inclusive; a resident buffer has 0 and n_instrs-1 */
  bool is_resident;    /* lives across steps: its contents at the end are its contents at the start */
};

/*
 * Operand roles, in the order in which they stand:
 *  COMPUTE  the op's inputs (role = index), its outputs (role = LADE_ROLE_OUT + index), scratch
 *  NORM     gradient, partials range
 *  CLIP     partials, verdict
 *  UPDATE   weight, gradient, the parts that there are, verdict; scratch when it streams
 *  COPY, READ, WRITE   source, destination
 *  COLLECTIVE, SEND, RECV   an op of the graph: its operands; else source, destination; or what is changed in place
 *  ADD      what is added, the sum
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
  LADE_ROLE_VERDICT
};
enum { LADE_ROLE_SRC, LADE_ROLE_DST };

/*
 * A streamed update works through its parameter in windows of at most @window_bytes of all that moves, in whole
 * LADE_STREAM_GRAIN elements, at least one, so that a part of one byte each still fills whole granules. So requests are
 * about as long in every form of the state. Its scratch has room for @n_windows of them: being read, computed, written;
 * or, where that is less, for all that the updates stream. Scales, a byte for a hundred elements, are read and
 * written whole: with the parameter's one window, or with the first and the last one. No number depends on either.
 *
 * Updates after all steps share one scratch, and so what the next ones need can be read while one is computed. Of a
 * row of such updates, with nothing else on the queue in between, the event of each says that its parameter is
 * computed, in memory, and that its gradient is free; what the store is to hold, and the scratch, wait for the last.
 */
struct lade_streaming {
  uint64_t window_bytes;
  int n_windows; /* at least 1 */
};
#define LADE_STREAM_GRAIN (64 * 1024)

/* All offsets and sizes of buffers are multiples of these: pages in memory, checksummed granules in the store. */
#define LADE_BUFFER_ALIGN 4096
#define LADE_STORE_ALIGN 65536

struct lade_instr {
  uint8_t kind, queue;
  uint8_t is_recompute;
  uint8_t is_streamed;   /* UPDATE: state, maybe the weight too, goes from the store to scratch and back */
  uint8_t collective;    /* COLLECTIVE: enum lade_collective_kind */
  uint8_t axis;          /* COLLECTIVE, SEND, RECV: enum lade_axis, whose ranks take part */
  uint8_t is_joined;     /* COLLECTIVE: to the one before it in the list; see above */
  uint8_t is_chained;    /* on the compute queue: to the one before it there; see above */
  int16_t microbatch;
  uint16_t n_operands;
  int32_t first_operand;
  int32_t op;            /* COMPUTE, SEND, RECV, some COLLECTIVEs: the graph's op */
  int32_t param;         /* NORM, UPDATE, ADD, CAST, ROUND, CLIP of one parameter; COLLECTIVE over what is of one */
  int32_t peer;          /* SEND, RECV: its position on the axis */
  uint32_t accumulate;   /* COMPUTE: bit i: output i adds to what the gradient holds */
  int32_t waits[LADE_N_QUEUES]; /* instruction of that queue that must be done first, or -1 */
  int64_t predicted_ns;
};

struct lade_program {
  const struct lade_graph *graph; /* borrowed; outlives the program */
  const struct lade_layout *layout; /* the same; NULL: one rank */
  int n_microbatches;
  bool is_training; /* else forward only: evaluation */
  bool is_unified;  /* the drive and the host reach device memory */
  bool is_early;    /* a parameter is updated as soon as its gradient is complete and nobody reads it any more */
  struct lade_streaming streaming;
  /*
   * Without is_unified kernels read the step block in device memory: both buffers are resident and no instruction names
   * them. Whoever runs the program writes the one on the host and copies it to the other before the first instruction.
   */
  int32_t step_on_host, step_on_device;
  int n_instrs, n_operands, n_buffers;
  struct lade_instr *instrs;
  struct lade_operand *operands;
  struct lade_buffer *buffers;
  int instrs_capacity, operands_capacity, buffers_capacity; /* for lade_program_emit_over alone */
  uint64_t peak_bytes[LADE_N_SPACES]; /* highest used offset; the device's rounded up to whole chunks */
  uint64_t live_peak_bytes[LADE_N_SPACES]; /* most bytes live at once: what the packer had to fit */
  uint64_t owner_bytes[LADE_N_SPACES][LADE_N_OWNERS]; /* at the instant of the live peak; sums to peak_bytes */
  int64_t predicted_ns;               /* of a step, by the simulator */
  int64_t predicted_busy_ns[LADE_N_QUEUES];
  bool is_proved;                     /* set by lade_program_prove alone */
};

/* Bytes that element-for-element hold value @tensor (any microbatch) of the whole graph, as checkpoints have it. */
uint64_t lade_value_bytes(const struct lade_graph *graph, int tensor);
/*
 * Bytes of the store that all parameters take with their state when they are at home there, in whole granules: as a
 * rank of @layout has them, whole or in blocks; NULL: whole. They stand first in it: parameter by parameter, the
 * working copy and then the parts.
 */
uint64_t lade_state_store_bytes(const struct lade_graph *graph, const struct lade_layout *layout);

/* Ranks over which the state of parameters is cut: 1 unless the layout is ZeRO's. */
int lade_shard_count(const struct lade_layout *layout);
/* Elements whose state this rank holds: @first and the @n next of the parameter, padded to @n_padded at every rank. */
struct lade_shard {
  int64_t first, n, n_padded;
};
struct lade_shard lade_param_shard(const struct lade_graph *graph, const struct lade_layout *layout, int param);
/*
 * Where several tensor parallel ranks have parts of the gradient of @param (n_sharers): over which axis these are added
 * up, and which elements they are of what this rank holds, the gradient or its block. n may be 0.
 */
struct lade_parts {
  enum lade_axis axis;
  int64_t first, n;
};
struct lade_parts lade_param_parts(const struct lade_graph *graph, const struct lade_layout *layout, int param);
/* Are parts of gradients what a parameter's collectives over @axis add up? */
static inline bool lade_axis_has_parts(enum lade_axis axis)
{
  return axis == LADE_AXIS_TP || axis == LADE_AXIS_KEY;
}
/*
 * Bytes that a program gives value @tensor: weights and gradients with the padding of all shards, parts and blocks
 * those of one shard, with its padding. Without shards the same as lade_value_bytes.
 */
uint64_t lade_held_bytes(const struct lade_graph *graph, const struct lade_layout *layout, int tensor);
/* Elements of those that count for this rank in norms over all ranks: copies of what another owns do not. */
int64_t lade_norm_elements(const struct lade_graph *graph, const struct lade_layout *layout, int param);
/* Partials of lade_norm_elements of @param, at least one; the first one's index (O(n_params)). */
int64_t lade_held_partials(const struct lade_graph *graph, const struct lade_layout *layout, int param);
int64_t lade_held_first_partial(const struct lade_graph *graph, const struct lade_layout *layout, int param);
/* Ranks whose sums of squares make the norm. */
int lade_sums_count(const struct lade_layout *layout);
/*
 * They are gathered level by level, each over one axis on which ranks hold other gradients: the ranks of a level (1:
 * nothing is gathered there), its axis, and the level of an axis (-1: none).
 */
int lade_sums_size(const struct lade_layout *layout, int level);
enum lade_axis lade_sums_axis(int level);
int lade_sums_level(enum lade_axis axis);
/* Partials that count in this rank's sum: not those of a table's copy, which is the last of the parameters. */
int64_t lade_summed_partials(const struct lade_graph *graph, const struct lade_layout *layout);
/* The element type of what collectives move. */
enum lade_dtype lade_value_dtype(const struct lade_graph *graph, int tensor);
/* Bytes of @n_elements of @part. */
uint64_t lade_part_bytes(const struct lade_graph *graph, enum lade_part part, int64_t n_elements);
/*
 * Where the state of a parameter lies that is at home in the store, from the first of its parts' buffers on, which
 * stand one behind another: grain by grain, of each the residual, m and v, and behind the last grain the scales of m
 * and of v, so that any grains in a row are one range (stored.c has a picture). All are multiples of LADE_BUFFER_ALIGN.
 * A part's checksums are those of its own buffer's granules, as if it lay there. Of parameters whose buffers stand one
 * behind another states lie one behind another, the first at its first buffer; so none is behind its own.
 *
 * Bytes of the grains of the first @n_elements; of all scales of so many; and where @part of @n_held elements has the
 * piece of the grain from @first on, scales being one piece (@first 0).
 */
uint64_t lade_state_bytes(const struct lade_graph *graph, int64_t n_elements);
uint64_t lade_state_scales_bytes(const struct lade_graph *graph, int64_t n_elements);
uint64_t lade_state_offset(const struct lade_graph *graph, int64_t n_held, enum lade_part part, int64_t first);
/* Elements of the longest window when all that moves of an element is @element_bytes. */
int64_t lade_stream_window_elements(const struct lade_streaming *how, size_t element_bytes);
/*
 * What a streamed update of @param needs of its scratch: windows of its parts and, if they stream from the store too,
 * of its weight and of its gradient; and room for all of its scales, unless they are in its one window.
 */
struct lade_stream_params {
  const struct lade_graph *graph;
  const struct lade_layout *layout;
  struct lade_streaming how;
  int param;
  bool has_weight, has_grad;
};
struct lade_stream_need {
  uint64_t windows_bytes, whole_bytes, scales_bytes;
};
struct lade_stream_need lade_stream_need(const struct lade_stream_params *params);
/*
 * Room for scales of updates that have at most @most_bytes of them: of one alone, or of as many one after another as
 * are under way at once.
 */
uint64_t lade_stream_scales_bytes(uint64_t most_bytes, bool is_shared);
/* What updates over one scratch need together: @all, zeros at first, and @one more. */
void lade_stream_need_add(struct lade_stream_need *all, struct lade_stream_need one);
/* The scratch of updates that need @need, of one or of several that share it: windows, then scales. */
uint64_t lade_stream_scratch_bytes(struct lade_stream_need need, bool is_shared);
/* Is @part streamed whole? */
static inline bool lade_part_is_scales(enum lade_part part)
{
  return part == LADE_PART_M_SCALES || part == LADE_PART_V_SCALES;
}
/* Name for people, "h.3.mlp.fc", "h.3.mlp.fc.exp_avg", into @name (LADE_NAME_BYTES + 16); returns it. */
const char *lade_value_name(const struct lade_graph *graph, int tensor, char *name);
/* Tensor numbers of a parameter's optimizer parts (-1 for one that the form of its state lacks) and of scalars. */
int lade_value_part(const struct lade_graph *graph, int param, enum lade_part part);
int lade_value_scalar(const struct lade_graph *graph, enum lade_scalar scalar);
int lade_value_block(const struct lade_graph *graph, int param, enum lade_block block);
int lade_value_count(const struct lade_graph *graph);

/* Bytes that one run of @program reads from the store and writes there, streamed updates included. */
void lade_program_store_traffic(const struct lade_program *program, uint64_t *ret_read_bytes,
                                uint64_t *ret_written_bytes);

/*
 * Bytes that this rank sends in one run of @program, by axis (LADE_N_AXES entries), as ring algorithms do: of a vector
 * of n bytes over N ranks n(N-1)/N in an all_gather or a reduce_scatter, twice that in an all_reduce (traffic.c).
 */
void lade_program_comm_traffic(const struct lade_program *program, uint64_t *ret_sent_bytes);

/* Behind the last instruction of the bundle that begins at @at: @at + 1 unless others are joined to it. */
int lade_program_bundle_end(const struct lade_program *program, int at);

/* Bundles of collectives, and sends, in one run of @program, by axis (LADE_N_AXES entries): each pays a latency. */
void lade_program_comm_bundles(const struct lade_program *program, int *ret_n_bundles);

/* "compute", "norm"; static. */
const char *lade_instr_kind_name(enum lade_instr_kind kind);

/* The queue on which collectives of @axis run. */
enum lade_queue_id lade_axis_queue(enum lade_axis axis);

void lade_program_destroy(struct lade_program *program);

/*
 * Prove @program (proof.c, independent of the builder): every read finds the version that it should in its
 * range, no two live ranges overlap, lifetimes cover all uses, waits order every hazard between queues, the
 * peak of each space is what the program states and within @budget_bytes, the cycle closes, and nobody comes between
 * the members of a chain. Sets is_proved.
 * -EINVAL with the first violation named: instruction, operand, value. O(n log n).
 */
int lade_program_prove(struct lade_program *program, const uint64_t budget_bytes[LADE_N_SPACES],
                       struct lade_error *error);

/*
 * Prove that two proved programs of one graph may run in turns over one arena: their resident buffers are the same
 * ranges, and what one leaves in them is what the other begins with. -EINVAL with the first difference; -ENOMEM.
 */
int lade_program_prove_shared(const struct lade_program *program, const struct lade_program *other,
                              struct lade_error *error);

#endif
