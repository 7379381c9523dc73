/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mesh: where each rank of a job stands on every axis of parallelism, and with whom.
 *
 * Ranks are numbered as Megatron-LM numbers them, tensor parallel fastest, then context, expert, data, and pipeline
 * slowest: ranks that talk most are neighbours. The world is tp * cp * dp * pp. Two axes are cut out of dp and
 * do not multiply the world:
 *
 *   ep     experts are spread over runs of ep neighbours on the data axis; EXPERT_DP is across the runs
 *   shard  state is sharded over runs of shard neighbours on the data axis, REPLICATE is across the runs (hybrid
 *          sharding: HSDP, MiCS); shard == dp is plain ZeRO
 *
 * One more is cut out of tp: KEY is runs of tp / key_heads neighbours, which hold the same key head of a model that has
 * fewer of them than there are tensor parallel ranks.
 *
 * EMBED joins the ends of each pipeline, which share a tied token table; ranks of stages between have a group of
 * themselves alone, in which they are at position 0.
 *
 * Every axis is a size and a stride: the group of a rank on an axis is base + i * stride for i in 0..size-1, and a
 * rank's position in it is (rank / stride) % size. A plain value, immutable after init; any thread.
 */
#ifndef LADE_MESH_H
#define LADE_MESH_H

#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_WORLD_MOST 1000000 /* ranks: ten times the largest job that is planned for */

/* 0 means: 1 for tp, cp, ep and pp; for dp what is left of the world; for shard all of dp. */
struct lade_mesh_params {
  size_t struct_size;
  int world; /* ranks that there are; 0: as many as the sizes say, and then dp defaults to 1 */
  int tp, cp, ep, dp, pp, shard;
  int64_t key_heads; /* of the model; 0: no ranks share them. What does not divide is the graph's to refuse */
};

struct lade_mesh {
  int world;
  struct {
    int size, stride;
  } axes[LADE_N_AXES];
};

/*
 * Work out a mesh. -EINVAL with one line when a size is negative, past LADE_WORLD_MOST, or does not divide; the line
 * then lists the sizes that do.
 */
int lade_mesh_init(const struct lade_mesh_params *params, struct lade_error *error, struct lade_mesh *ret_mesh);

/* "tp", "cp", ...; static. */
const char *lade_axis_name(enum lade_axis axis);

/* The position of @rank in its group on @axis: 0..size-1. */
int lade_mesh_position(const struct lade_mesh *mesh, enum lade_axis axis, int rank);

/* The rank at @position of the group that @rank belongs to on @axis. */
int lade_mesh_member(const struct lade_mesh *mesh, enum lade_axis axis, int rank, int position);

/* The number of the group of @rank on @axis, its lowest rank: the colour of a split, with the position as the key. */
int lade_mesh_group(const struct lade_mesh *mesh, enum lade_axis axis, int rank);

#endif
