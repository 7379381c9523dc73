/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Build a program from a graph and a residency, in five passes. Each pass but the packer is linear in the program's
 * length:
 *
 *   sequence.c  the order of ops: forward and backward of each microbatch, and the forward ops that run
 *               again because a backward op needs a value that was dropped
 *   liveness.c  for each value its live ranges in device memory, and the slots of the list at
 *               which its copies in and out are placed
 *   build.c     instructions, operands and buffers; build_grads.c those of gradients, build_state.c of updates
 *   offsets.c   addresses from the packer, and bytes by owner
 *   waits.c     waits between queues, from the addresses
 *
 * lade_program_build runs them all, and the simulator. Any thread may call these functions if no two use one packer at
 * a time. None blocks.
 */
#ifndef LADE_BUILD_H
#define LADE_BUILD_H

#include "base/base.h"
#include "program/program.h"
#include "program/residency.h"

struct lade_packer;

struct lade_build_params {
  const struct lade_model_graph *graph;
  const struct lade_layout *layout; /* NULL: one rank */
  const struct lade_residency *residency;
  const struct lade_prices *prices;
  int n_microbatches;
  bool is_training;
  bool is_unified;      /* the drive and the host reach device memory: no staging through the host */
  uint64_t chunk_bytes; /* the device's granule */
  const uint64_t *held_bytes; /* by value: lade_held_bytes, for callers that build many programs; may be NULL */
  const struct lade_program *residents; /* resident buffers keep this program's offsets; may be NULL */
  struct lade_packer *packer;           /* borrowed scratch */
  uint64_t pack_work_limit;             /* effort; 0: the fast pass */
  uint64_t device_max_bytes;            /* as in lade_place_params */
};

/* Build a program; not proved. -ENOMEM. The caller owns it. It borrows the graph alone. */
int lade_program_build(const struct lade_build_params *params, struct lade_program **ret_program);

/* Run the first half of lade_program_build: instructions and live peaks, but no offsets, waits or times. */
int lade_program_emit(const struct lade_build_params *params, struct lade_program **ret_program);
/*
 * Emit in place of @program, in its memory, for callers that build many programs of similar length and keep one. A
 * program that is all 0 has no memory yet. After -ENOMEM it is good for lade_program_destroy alone.
 */
int lade_program_emit_over(const struct lade_build_params *params, struct lade_program *program);
/* Run the second half: offsets, peaks, waits, predicted times. -ENOMEM. */
int lade_program_place(const struct lade_build_params *params, struct lade_program *program);
/*
 * Predict the time if no two buffers shared addresses: with the waits of data alone. No packing has fewer waits, so on
 * a device of its own none is faster; on shared cores or links a wait seldom makes a step faster. lade_program_place
 * may follow. -ENOMEM.
 */
int lade_program_place_apart(const struct lade_build_params *params, struct lade_program *program);

/* The parameters of placement alone, as lade_build_params has them. */
struct lade_place_params {
  uint64_t granule_bytes[LADE_N_SPACES]; /* the peak of a space is a multiple of it */
  const struct lade_program *residents;
  struct lade_packer *packer;
  uint64_t pack_work_limit;
  uint64_t device_max_bytes; /* placement ends, without other peaks and times, if the device's is larger; 0: no limit */
  const struct lade_prices *prices;
};
int lade_program_place_within(const struct lade_place_params *params, struct lade_program *program);

/* Derive all waits of a packed program. -ENOMEM. */
int lade_program_order(struct lade_program *program);

/*
 * Predict: run the program's queues over the shared cores and links in a fluid model (simulate.c) and fill predicted_ns
 * and predicted_busy_ns. @ret_spans, if not NULL, has room for a start and an end per instruction. -ENOMEM.
 */
int lade_program_simulate(struct lade_program *program, const struct lade_prices *prices, int64_t (*ret_spans)[2]);

/*
 * Predict all stages of a pipeline together: @programs and @prices by stage, each with its own cores. A send and its
 * receive run together. -EDEADLK, with the first stage boundary that waits for ever, if stages wait for one another in
 * a circle or disagree about a transfer; -ENOMEM. Any thread; never blocks.
 */
struct lade_stages_time {
  int64_t span_ns; /* of the step */
  double bubble;   /* of the stage with the most idle time: its compute queue's idle time over its busy time */
};
int lade_stages_simulate(const struct lade_program *const *programs, const struct lade_prices *const *prices,
                         int n_stages, struct lade_error *error, struct lade_stages_time *ret_time);

/* ---- between the passes ---- */

struct plan_step {
  int32_t op;
  int16_t microbatch;
  bool is_recompute;
  bool is_backward; /* belongs to the backward half of its microbatch; recomputed ops do */
  int32_t reserved_pos; /* RECV: the step before which memory for it is reserved, at most its own; others: its own */
};

/* Make the order of ops of a step. -ENOMEM. Free *ret_steps with free. */
int plan_sequence(const struct lade_build_params *params, struct plan_step **ret_steps, int *ret_n_steps);

/*
 * Return, by parameter, the number of steps that run before its update: all steps, or with optimizer_in_backward those
 * up to the last that adds to its gradient or reads it. A table that both ends of a pipeline hold waits for all steps.
 * NULL: out of memory. Free it.
 */
int32_t *plan_update_ends(const struct lade_build_params *params, const struct plan_step *steps, int n_steps);

/* One live range: an interval of steps in which a value is in device memory. */
struct live_range {
  int32_t value;               /* tensor + microbatch * n_tensors */
  int32_t first_pos, last_pos; /* steps that use it first and last; n_steps: updates after all steps do */
  int32_t held_pos;            /* memory is held from this step on: before first_pos for a value that is received */
  int32_t fetch_slot;          /* copied in before this step; -1: made by the step at first_pos */
  int32_t leave_slot;          /* copied out before this step (n_steps: after the last); -1: not copied out */
  uint8_t source, target;      /* enum lade_space of the copies; source may be PLAN_GATHERED */
};

/*
 * A reduction: one gradient is complete and is summed over ranks. The step at @pos made the last addition of this rank,
 * or of a microbatch where each microbatch is reduced alone. The sum runs before the step at @slot, together with the
 * others of that slot.
 */
struct grad_reduction {
  int32_t slot, pos, param;
  int32_t until; /* the next step that adds to it, of another microbatch; INT32_MAX: none */
  int16_t microbatch;
  uint8_t source, target; /* enum lade_space where this rank's block of the sum waits: until, and after, this
                             addition */
  bool is_ahead;          /* a block outside the device is copied in at @slot; else just before the addition */
};

/* Gradient-reduction batches in flight; each is accumulated this many batches after it was issued. */
#define REDUCTIONS_IN_FLIGHT 2

struct live_ranges {
  struct live_range *ranges; /* those of one value are adjacent, in order */
  int32_t *first_range;         /* by value; n_values + 1 entries */
  int n_ranges, n_values;
  struct grad_reduction *reductions; /* in the order of their slots and positions */
  int n_reductions;
};

/* Find the live ranges and reductions of a sequence of steps; finish frees them. -ENOMEM, with nothing to free. */
int live_ranges_create(const struct lade_build_params *params, const struct plan_step *steps, int n_steps,
                       const int32_t *update_ends, struct live_ranges *ret_live);
void live_ranges_finish(struct live_ranges *live);

/*
 * True if the ranges of each value follow each other in time, and all copies and reductions lie within @n_steps steps.
 * No copy may start before the memory that it moves exists (validity.c). O(ranges); asserted with -Dchecks=full.
 */
bool live_ranges_are_valid(const struct live_ranges *live, int n_steps);

/*
 * True if the lists of @program agree (validity.c). Operands tile the instructions, buffers live where operands name
 * them, and waits point back to their queue. Offsets are aligned and within the peaks, and the owners' bytes sum to the
 * peaks. pre: @program is placed. O(operands); asserted with -Dchecks=full.
 */
bool program_is_valid(const struct lade_program *program);

/* Find, by space, the most bytes that are live at once, and the first instruction at which they are. -ENOMEM. */
int plan_peaks_find(const struct lade_program *program, uint64_t ret_bytes[LADE_N_SPACES],
                    int32_t ret_at[LADE_N_SPACES]);

/* Return a buffer's bytes: whole granules of its space, and at least one. */
static inline uint64_t plan_space_align(enum lade_space space)
{
  return space == LADE_STORE ? LADE_STORE_ALIGN : LADE_BUFFER_ALIGN;
}
static inline uint64_t plan_buffer_bytes(enum lade_space space, uint64_t bytes)
{
  return lade_align_up(LADE_MAX(bytes, 1), plan_space_align(space));
}

/*
 * Return a value's number. Values are numbered by microbatch, then tensor; those that all microbatches share have the
 * numbers of the first.
 */
static inline int plan_value_number(const struct lade_model_graph *graph, int tensor, int microbatch)
{
  if (microbatch == 0)
    return tensor; /* of any kind: most steps have one microbatch */
  const enum lade_tensor_kind kind = graph->tensors[tensor].kind;
  const bool is_shared = kind == LADE_TENSOR_PARAM || kind == LADE_TENSOR_GRAD;
  return tensor + (is_shared ? 0 : microbatch * graph->n_tensors);
}

/* Return the tensor of a value's number. Most values are the first microbatch's, which need no division. */
static inline int plan_value_tensor(const struct lade_model_graph *graph, int value)
{
  return value < graph->n_tensors ? value : value % graph->n_tensors;
}

/* The source of a live range of a parameter with sharded state: gathered from all ranks' blocks. */
#define PLAN_GATHERED LADE_N_SPACES

/* Return the number of the form in which @op runs. Evaluation has no reader of optional values. */
static inline int plan_op_form(const struct lade_build_params *params, int op)
{
  const int lean = params->graph->ops[op].lean;
  return lean >= 0 && (!params->is_training || lade_residency_is_lean(params->graph, params->residency, op)) ? lean
                                                                                                            : op;
}

/* Return lade_held_bytes of value @tensor. */
static inline uint64_t plan_held_bytes(const struct lade_build_params *params, int tensor)
{
  return params->held_bytes ? params->held_bytes[tensor] : lade_held_bytes(params->graph, params->layout, tensor);
}

/* True if working copies are gathered from the ranks' blocks. Otherwise they are whole in the weight tier. */
static inline bool plan_gathers(const struct lade_build_params *params)
{
  return lade_shard_count(params->layout) > 1;
}

/*
 * True if the gathered copy of @param has memory for the whole step. This rank's block is in it. One gather a step,
 * before the first use, is then enough; it overlaps the forward pass.
 */
static inline bool plan_is_gathered_in_place(const struct lade_build_params *params, int param)
{
  return plan_gathers(params) && params->layout->zero < LADE_ZERO_MAX &&
         params->residency->weight_tiers[param] == LADE_TIER_DEVICE;
}

/* True if gradients are reduced after each microbatch, rather than once after all of them. */
static inline bool plan_sums_each(const struct lade_build_params *params)
{
  return lade_shard_count(params->layout) > 1 && params->layout->zero >= 2;
}

static inline enum lade_space plan_tier_space(enum lade_tier tier)
{
  static const enum lade_space spaces[] = {
      [LADE_TIER_DEVICE] = LADE_DEVICE, [LADE_TIER_HOST] = LADE_HOST, [LADE_TIER_STORE] = LADE_STORE};
  return spaces[tier];
}

/* True if the working copy is on the device and the update does not reach it: then a copy on the host is updated. */
static inline bool plan_is_weight_copied(const struct lade_build_params *params, int param)
{
  const struct lade_residency *residency = params->residency;
  return !params->is_unified && residency->weight_tiers[param] == LADE_TIER_DEVICE &&
         residency->state_tiers[param] != LADE_TIER_DEVICE;
}

/* Return the predicted time of the update of the whole of @param, by its state tier and weight tier. */
static inline int64_t plan_update_ns(const struct lade_build_params *params, int param)
{
  const int tier = params->residency->state_tiers[param];
  bool is_near = tier == LADE_TIER_STORE && params->residency->weight_tiers[param] != LADE_TIER_STORE;
  return (is_near ? params->prices->update_near_ns : params->prices->update_ns[tier])[param];
}

/* Predict one collective, or a group of them, over all ranks of @axis; @bytes: of the whole vectors. */
int64_t plan_collective_ns(const struct lade_build_params *params, enum lade_collective_kind kind, enum lade_axis axis,
                           uint64_t bytes);
/*
 * Return the bytes of one group of collectives over @axis (a bucket) that minimise the total time, by the axis's
 * latency and rate. O(n_params).
 */
uint64_t plan_bucket_bytes(const struct lade_build_params *params, enum lade_axis axis);
int64_t plan_transfer_ns(const struct lade_prices *prices, enum lade_space from, enum lade_space to, uint64_t bytes);

#endif
