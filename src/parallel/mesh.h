/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mesh: the position and the group of each rank of a job on every axis of parallelism.
 *
 * Ranks are numbered as in Megatron-LM: tensor parallel fastest, then context, expert, data, and pipeline slowest. So
 * the ranks that communicate most are neighbours. The world is tp * cp * dp * pp. Two axes divide dp and do not
 * multiply the world:
 *
 *   ep     experts are spread over runs of ep neighbours on the data axis; EXPERT_DP is across the runs
 *   shard  state is sharded over runs of shard neighbours on the data axis, REPLICATE is across the runs (hybrid
 *          sharding: HSDP, MiCS); shard == dp is plain ZeRO
 *
 * One axis divides tp: KV is runs of tp / n_kv_heads neighbours, which hold the same KV head. It is used if a model has
 * fewer KV heads than tensor parallel ranks.
 *
 * EMBED joins the first and last stage of each pipeline, which share a tied token table. A rank of another stage is
 * alone in its group, at position 0.
 *
 * Every axis is a size and a stride: the group of a rank on an axis is base + i * stride for i in 0..size-1. A rank's
 * position in it is (rank / stride) % size. A plain value, immutable after init; any thread.
 */
#ifndef LADE_MESH_H
#define LADE_MESH_H

#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_WORLD_MAX (1 << 24) /* in ranks: 65,536 replicas of 256 ranks */

/* 0 selects the default: 1 for tp, cp, ep and pp; for dp the rest of the world; for shard all of dp. */
struct lade_mesh_params {
  size_t struct_size;
  int world; /* number of ranks; 0: the product of the sizes, and then dp defaults to 1 */
  int tp, cp, ep, dp, pp, shard;
  int64_t n_kv_heads; /* KV heads of the model; 0: no ranks share them. The graph refuses sizes that do not divide */
};

struct lade_mesh {
  int world;
  struct {
    int size, stride;
  } axes[LADE_N_AXES];
};

/*
 * Compute a mesh. -EINVAL with one line if a size is negative, past LADE_WORLD_MAX, or does not divide; the line then
 * lists the sizes that do.
 */
int lade_mesh_init(const struct lade_mesh_params *params, struct lade_error *error, struct lade_mesh *ret_mesh);

/* Return the name of @axis, "tp", "cp", ...; static. */
const char *lade_axis_name(enum lade_axis axis);

/* Return the position of @rank in its group on @axis: 0..size-1. */
int lade_mesh_position(const struct lade_mesh *mesh, enum lade_axis axis, int rank);

/* Return the rank at @position of the group of @rank on @axis. */
int lade_mesh_member(const struct lade_mesh *mesh, enum lade_axis axis, int rank, int position);

/*
 * Return the number of the group of @rank on @axis, which is its lowest rank. Callers use it as the colour of a split,
 * with the position as the key.
 */
int lade_mesh_group(const struct lade_mesh *mesh, enum lade_axis axis, int rank);

#endif
