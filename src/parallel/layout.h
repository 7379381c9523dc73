/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout: how a job's ranks share one training run, as one of them sees it. The mesh says who is with whom; the
 * layout adds what they do about it: whose rows of the batch, how the state of data parallel ranks is sharded, in which
 * order a pipeline's stages take microbatches.
 *
 * A plain value, immutable after init; any thread.
 */
#ifndef LADE_LAYOUT_H
#define LADE_LAYOUT_H

#include <stdbool.h>

#include "parallel/mesh.h"

/* The order in which a stage takes the forward and backward halves of microbatches; docs/pipeline.md. */
enum lade_schedule {
  LADE_SCHEDULE_1F1B, /* the default: one forward, one backward (PipeDream-flush) */
  LADE_SCHEDULE_GPIPE,
  LADE_SCHEDULE_INTERLEAVED, /* 1F1B over several chunks of layers per stage */
  LADE_SCHEDULE_ZBH1,        /* backward in two: input gradients first, weight gradients in the bubble */
  LADE_N_SCHEDULES
};

#define LADE_ZERO_MOST 3

struct lade_layout_params {
  size_t struct_size;
  int world, rank;      /* who we are by the launcher; world 0: as many as the sizes say, and rank is one of them */
  int tp, pp, dp;       /* 0: 1 for tp and pp; for dp what is left of the world, which must then be all of it */
  int shard;            /* ranks that share one copy of the state; 0: dp */
  int64_t key_heads;    /* of the model, which ranks share where tp is more; 0: none are shared */
  int zero;             /* 0: replicas; 1: optimizer state in shards; 2: gradients too; 3: parameters too */
  bool is_sequence;     /* with tp: norms and dropout over 1/tp of the rows */
  enum lade_schedule schedule;
  int virtual_stages;   /* chunks of layers per stage; 0: 1. Several for INTERLEAVED only, which needs them */
  enum lade_dtype grad_reduce; /* LADE_F32 or LADE_BF16: in which gradients are summed over dp */
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
 * Work out a layout. -EINVAL with one line: sizes that do not make the world or do not divide, with those that would;
 * a schedule without the stages or chunks that it is about.
 */
int lade_layout_init(const struct lade_layout_params *params, struct lade_error *error, struct lade_layout *ret_layout);

/*
 * The layout to go on with when @world ranks are left of those that @params is for: tp and pp as they were and the
 * largest dp that has room and shares @n_rows in microbatches of @micro_rows (0: any); where even dp 1 has no room, pp
 * by a divisor of itself, then tp. What then does nothing (shards of one replica, a schedule of one stage) is left out.
 * Sets world, and rank to 0. -EINVAL: there is none.
 */
int lade_layout_shrink(const struct lade_layout_params *params, int world, int64_t n_rows, int64_t micro_rows,
                       struct lade_layout_params *ret_params);

/*
 * Can @n_rows of a step's batch be shared so, in microbatches of @micro_rows per rank (0: one)? -EINVAL with the sizes
 * that can; else *ret_micro_rows and the number of microbatches of a rank, which is in *ret_n_microbatches.
 */
int lade_layout_share_batch(const struct lade_layout *layout, int64_t n_rows, int64_t micro_rows,
                            struct lade_error *error, int64_t *ret_micro_rows, int *ret_n_microbatches);

/* The size of our group on @axis, and our position in it. @layout may be NULL: one rank. */
static inline int lade_layout_size(const struct lade_layout *layout, enum lade_axis axis)
{
  return layout ? layout->mesh.axes[axis].size : 1;
}
static inline int lade_layout_position(const struct lade_layout *layout, enum lade_axis axis)
{
  return layout ? lade_mesh_position(&layout->mesh, axis, layout->rank) : 0;
}

#define LADE_LAYOUT_NAME_BYTES 96
/* "tp2 pp2 dp4, zero 1 over 2, 1f1b" into @name (LADE_LAYOUT_NAME_BYTES), or "one rank"; returns @name. */
const char *lade_layout_name(const struct lade_layout *layout, char *name);

/* "1f1b", "gpipe", ...; static. */
const char *lade_schedule_name(enum lade_schedule schedule);

#endif
