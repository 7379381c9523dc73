/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a graph and a residency to a program. Five passes, each but the packer linear in the program's length:
 *
 *   sequence.c  the order of ops: forward and backward of each microbatch, and the ops that are
 *               run again because a backward op needs a value that was dropped
 *   lives.c     for each value the intervals in which it is in device memory, and the slots of the list at
 *               which its copies in and out are placed
 *   build.c     instructions, operands and buffers; build_grads.c those of gradients, build_state.c of updates
 *   place.c     addresses from the packer, and the ledger
 *   waits.c     waits between queues, from the addresses
 *
 * lade_program_build runs them all, and the simulator. All functions here are for any thread, as long as no two use
 * one packer at a time; none blocks.
 */
#ifndef LADE_BUILD_H
#define LADE_BUILD_H

#include "base/base.h"
#include "plan/program.h"
#include "recompute/residency.h"

struct lade_packer;

/* Predicted nanoseconds of everything that a program can contain; made once per plan from the cost model. */
struct lade_transfer_price {
  int64_t latency_ns;
  double ns_per_byte;
};
struct lade_prices {
  int64_t *op_ns;                     /* by op of the graph */
  int64_t *norm_ns, *update_ns[3];    /* by parameter; update by home, the store's with its transfers */
  int64_t *update_near_ns;            /* streamed from the store, but for the working copy, which is nearer */
  int64_t *stream_edge_ns;            /* what a row of streamed updates takes besides, by its first parameter */
  int64_t clip_ns;
  struct lade_transfer_price to_host, to_device, read, write;
  struct lade_transfer_price comm[LADE_N_AXES]; /* per byte sent */
  double copy_cores;                  /* that one copy keeps busy, of n_cores */
  double n_cores;                     /* shared by all queues of a unified device; 0: not shared */
  struct lade_streaming streaming;    /* no price: how the drive wants updates from the store to be cut */
};

struct lade_build_params {
  const struct lade_graph *graph;
  const struct lade_layout *layout; /* NULL: one rank */
  const struct lade_residency *residency;
  const struct lade_prices *prices;
  int n_microbatches;
  bool is_training;
  bool is_unified;      /* the drive and the host reach device memory: no staging through the host */
  uint64_t chunk_bytes; /* the device's granule */
  const struct lade_program *residents; /* resident buffers keep this program's offsets; may be NULL */
  struct lade_packer *packer;           /* borrowed scratch */
  uint64_t pack_work_limit;             /* effort; 0: the fast pass */
};

/* -ENOMEM. The program is the caller's; not proved. It borrows the graph alone. */
int lade_program_build(const struct lade_build_params *params, struct lade_program **ret_program);

/* The first half of lade_program_build: instructions and live peaks, but no offsets, waits or times. */
int lade_program_emit(const struct lade_build_params *params, struct lade_program **ret_program);
/*
 * The same in place of @program, in its memory: for many programs of about one length, of which one is looked at at a
 * time. A program that is all 0 has no memory yet. After -ENOMEM it is good for lade_program_destroy alone.
 */
int lade_program_emit_over(const struct lade_build_params *params, struct lade_program *program);
/* The second half: offsets, peaks, waits, predicted times. -ENOMEM. */
int lade_program_place(const struct lade_build_params *params, struct lade_program *program);

/* Derive all waits of a packed program. -ENOMEM. */
int lade_program_order(struct lade_program *program);

/*
 * Predict: run the program's queues over the shared cores in a fluid model (simulate.c) and fill predicted_ns
 * and predicted_busy_ns. @ret_spans, if not NULL, has room for a start and an end per instruction. -ENOMEM.
 */
int lade_program_simulate(struct lade_program *program, const struct lade_prices *prices, int64_t (*ret_spans)[2]);

/*
 * Predict all stages of a pipeline together: @programs and @prices by stage, each with cores of its own; a send and its
 * receive are one meeting. -EDEADLK with the first border that waits for ever, were the stages to wait for one another
 * in a circle or to disagree about what crosses a border; -ENOMEM. Any thread; nothing blocks.
 */
struct lade_stages_time {
  int64_t span_ns; /* of the step */
  double bubble;   /* of the stage that is worst off: its compute queue's idle time over its busy time */
};
int lade_stages_simulate(const struct lade_program *const *programs, const struct lade_prices *const *prices,
                         int n_stages, struct lade_error *error, struct lade_stages_time *ret_time);

/* ---- between the passes ---- */

struct plan_step {
  int32_t op;
  int16_t microbatch;
  bool is_recompute;
  bool is_backward; /* belongs to the backward half of its microbatch; recomputed ops do */
};

/* The order of ops of a step. -ENOMEM. Free *ret_steps with free. */
int plan_sequence(const struct lade_build_params *params, struct plan_step **ret_steps, int *ret_n_steps);

/*
 * By parameter, the steps after which it is updated: all of them, or, early, those to the last that adds to its
 * gradient or reads it; all for a table that both ends of a pipeline hold. NULL when memory is out; free it.
 */
int32_t *plan_update_ends(const struct lade_build_params *params, const struct plan_step *steps, int n_steps);

/* One stay of a value in device memory. */
struct plan_interval {
  int32_t value;               /* tensor + microbatch * n_tensors */
  int32_t first_pos, last_pos; /* steps that use it first and last; n_steps: updates after all steps do */
  int32_t fetch_slot;          /* copied in before this step; -1: made by the step at first_pos */
  int32_t leave_slot;          /* copied out before this step (n_steps: after the last); -1: not copied out */
  uint8_t source, target;      /* enum lade_space of the copies; source may be PLAN_GATHERED */
};

/*
 * All of this rank's, or of a microbatch's where those are summed one by one, has been added to a gradient: by the step
 * at @pos. It is summed over ranks before the step at @slot, together with those of the same slot.
 */
struct plan_handing {
  int32_t slot, pos, param;
  int32_t until; /* the next step that adds to it, of another microbatch; INT32_MAX: none */
  int16_t microbatch;
  uint8_t source, target; /* enum lade_space: where this rank's block of the sum waits until this is added, and then */
  bool is_ahead;          /* from elsewhere the block is copied in at @slot; else just in time for the addition */
};

/* Batches of reductions that may be under way while the backward half goes on: one is added to blocks so many later. */
#define PLAN_LAG 2

struct plan_lives {
  struct plan_interval *intervals; /* of one value together, in order */
  int32_t *first_interval;         /* by value; n_values + 1 entries */
  int n_intervals, n_values;
  struct plan_handing *handings; /* in the order of their slots and positions */
  int n_handings;
};

int plan_lives_create(const struct lade_build_params *params, const struct plan_step *steps, int n_steps,
                      const int32_t *update_ends, struct plan_lives *ret_lives);
void plan_lives_finish(struct plan_lives *lives);

/* The first instruction at which most bytes of @space are live, and how many. -ENOMEM. */
int plan_peak_find(const struct lade_program *program, enum lade_space space, int *ret_at, uint64_t *ret_bytes);

/* A buffer's bytes: whole granules of its space, and at least one. */
static inline uint64_t plan_space_align(enum lade_space space)
{
  return space == LADE_STORE ? LADE_STORE_ALIGN : LADE_BUFFER_ALIGN;
}
static inline uint64_t plan_buffer_bytes(enum lade_space space, uint64_t bytes)
{
  return lade_align_up(LADE_MAX(bytes, 1), plan_space_align(space));
}

/* Values are numbered by microbatch, then tensor; those that all microbatches share count with the first. */
static inline int plan_value_number(const struct lade_graph *graph, int tensor, int microbatch)
{
  enum lade_tensor_kind kind = graph->tensors[tensor].kind;
  bool is_shared = kind == LADE_TENSOR_PARAM || kind == LADE_TENSOR_GRAD;
  return tensor + (is_shared ? 0 : microbatch * graph->n_tensors);
}

/*
 * The space from which an interval of a parameter comes whose state is in shards, unless it is whole on the device: it
 * is gathered from all ranks' blocks.
 */
#define PLAN_GATHERED LADE_N_SPACES

/* Is the working copy put together from shards before each use? Else it is whole on the device, or comes from home. */
static inline bool plan_is_gathered(const struct lade_build_params *params, int param)
{
  bool is_sharded = lade_shard_count(params->layout) > 1;
  return is_sharded &&
         (params->layout->zero == LADE_ZERO_MOST || params->residency->weight_homes[param] != LADE_HOME_DEVICE);
}

/* Are gradients handed on after each microbatch, rather than after all of them? */
static inline bool plan_sums_each(const struct lade_build_params *params)
{
  return lade_shard_count(params->layout) > 1 && params->layout->zero >= 2;
}

static inline enum lade_space plan_home_space(enum lade_home home)
{
  static const enum lade_space spaces[] = {
      [LADE_HOME_DEVICE] = LADE_DEVICE, [LADE_HOME_HOST] = LADE_HOST, [LADE_HOME_STORE] = LADE_STORE};
  return spaces[home];
}

/* Is the working copy on the device, where the update does not reach it? Then a copy on the host is updated. */
static inline bool plan_is_weight_copied(const struct lade_build_params *params, int param)
{
  const struct lade_residency *residency = params->residency;
  return !params->is_unified && residency->weight_homes[param] == LADE_HOME_DEVICE &&
         residency->homes[param] != LADE_HOME_DEVICE;
}

/* Predicted time of the update of all of @param, by where it and its working copy are at home. */
static inline int64_t plan_update_ns(const struct lade_build_params *params, int param)
{
  const int home = params->residency->homes[param];
  bool is_near = home == LADE_HOME_STORE && params->residency->weight_homes[param] != LADE_HOME_STORE;
  return (is_near ? params->prices->update_near_ns : params->prices->update_ns[home])[param];
}

/* One collective over all ranks of @axis; @bytes: of the whole vector. */
int64_t plan_collective_ns(const struct lade_build_params *params, enum lade_collective_kind kind, enum lade_axis axis,
                           uint64_t bytes);
/* The same for one that is joined to another: its bytes alone. */
int64_t plan_joined_ns(const struct lade_build_params *params, enum lade_collective_kind kind, enum lade_axis axis,
                       uint64_t bytes);
/* Bytes of vectors that are best moved as one bundle over @axis, by its latency and its rate: a bucket. O(n_params). */
uint64_t plan_bucket_bytes(const struct lade_build_params *params, enum lade_axis axis);
int64_t plan_transfer_ns(const struct lade_prices *prices, enum lade_space from, enum lade_space to, uint64_t bytes);

#endif
