/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout: the division of one training run among a job's ranks, as seen by one rank. The mesh defines the groups. The
 * layout adds their use: each rank's rows of the batch, the sharding of data parallel state, and the order in which a
 * pipeline's stages take microbatches.
 *
 * A plain value, immutable after init; any thread.
 */
#ifndef LADE_LAYOUT_H
#define LADE_LAYOUT_H

#include <stdbool.h>

#include "parallel/mesh.h"

/* The order in which a stage takes the forward and backward halves of microbatches; docs/ranks.md. */
enum lade_schedule {
  LADE_SCHEDULE_1F1B, /* the default: one forward, one backward (PipeDream-flush) */
  LADE_SCHEDULE_GPIPE,
  LADE_SCHEDULE_INTERLEAVED, /* 1F1B over several chunks of layers per stage */
  LADE_SCHEDULE_ZBH1,        /* backward in two: input gradients first, weight gradients in the bubble */
  LADE_SCHEDULE_ZBH2,        /* the same with nearly twice the microbatches in flight, and no bubble on a stage */
  LADE_N_SCHEDULES
};

#define LADE_ZERO_MAX 3

struct lade_layout_params {
  size_t struct_size;
  int world, rank;      /* from the launcher; world 0: the product of the sizes, and rank is one of them */
  int tp, pp, dp;       /* 0: 1 for tp and pp; for dp the rest of the world */
  int shard;            /* ranks that share one copy of the state; 0: dp */
  int64_t n_kv_heads;   /* of the model; ranks share KV heads if tp is larger; 0: none are shared */
  int zero;             /* ZeRO stage: 0 replicates all; 1 shards optimizer state; 2 also gradients; 3 also
                           parameters */
  bool is_sequence;     /* with tp: norms and dropout on 1/tp of the rows */
  enum lade_schedule schedule;
  int virtual_stages;   /* chunks of layers per stage; 0: 1. INTERLEAVED requires several, and the others allow 1
                           only */
  enum lade_dtype grad_reduce; /* LADE_F32 or LADE_BF16: element type in which gradients are summed over dp */
};

struct lade_layout {
  struct lade_mesh mesh;
  int rank;
  int zero;
  bool is_sequence;
  enum lade_schedule schedule;
  int virtual_stages;
  enum lade_dtype grad_reduce;
};

/*
 * Compute a layout. -EINVAL with one line: sizes that do not multiply to the world or do not divide, with valid ones;
 * or a schedule without the stages or chunks that it needs.
 */
int lade_layout_init(const struct lade_layout_params *params, struct lade_error *error, struct lade_layout *ret_layout);

/*
 * Write the layout to continue with if only @world ranks of those of @params are left. The degrees tp and pp stay. The
 * degree dp is the largest that fits and divides @n_rows into microbatches of @micro_rows (0: any). If even dp 1 does
 * not fit, pp becomes a divisor of itself, then tp. Settings without effect (shards of one replica, a schedule of one
 * stage) are dropped. Sets world, and rank to 0. -EINVAL: no layout fits.
 */
int lade_layout_shrink(const struct lade_layout_params *params, int world, int64_t n_rows, int64_t micro_rows,
                       struct lade_layout_params *ret_params);

/*
 * Divide @n_rows of a step's batch into microbatches of @micro_rows per rank (0: one microbatch). Write the rows of a
 * microbatch into *ret_micro_rows, and the microbatches of a rank into *ret_n_microbatches. -EINVAL with the valid
 * sizes.
 */
int lade_layout_share_batch(const struct lade_layout *layout, int64_t n_rows, int64_t micro_rows,
                            struct lade_error *error, int64_t *ret_micro_rows, int *ret_n_microbatches);

/* Return the size of this rank's group on @axis, and its position in the group. @layout may be NULL: one rank. */
static inline int lade_layout_size(const struct lade_layout *layout, enum lade_axis axis)
{
  return layout ? layout->mesh.axes[axis].size : 1;
}
static inline int lade_layout_position(const struct lade_layout *layout, enum lade_axis axis)
{
  return layout ? lade_mesh_position(&layout->mesh, axis, layout->rank) : 0;
}

#define LADE_LAYOUT_NAME_BYTES 96
/* Write "tp2 pp2 dp4, zero 1 over 2, 1f1b", or "one rank", into @name (LADE_LAYOUT_NAME_BYTES); return @name. */
const char *lade_layout_name(const struct lade_layout *layout, char *name);

/* Return the name of @schedule, "1f1b", "gpipe", ...; static. */
const char *lade_schedule_name(enum lade_schedule schedule);

#endif
