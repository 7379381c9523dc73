/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's values between steps, in any tier, as checkpoints read and write them.
 *
 * Parameters' working copies and the parts of their optimizer state are numbered by lade_value_part
 * (program/program.h). An executor provides them from its arena, its host slab and its store (lade_executor_values); a
 * test from plain memory.
 */
#ifndef LADE_VALUES_H
#define LADE_VALUES_H

#include "base/pool.h"
#include "program/program.h"
#include "run/rank_group.h"

/* Offsets are multiples of this; no call moves more than this many bytes. */
#define LADE_VALUES_WINDOW_BYTES (1 << 20)

struct lade_values {
  const struct lade_model_graph *graph; /* of the values; borrowed, as are all fields */
  const struct lade_model_graph *whole; /* the whole model, of which @graph is one share; NULL: @graph */
  struct lade_rank_group *group; /* ranks that hold the other shards, by its layout; NULL: there are none */
  /*
   * Copy @bytes at @offset of value @tensor to or from host memory. Windows of one tensor are got in any order
   * and set in ascending order, all of them; windows of different tensors may interleave. Both block.
   * 0 or a negative errno with one line in @error.
   */
  int (*get)(void *user, int tensor, uint64_t offset, void *dst, uint64_t bytes, struct lade_error *error);
  int (*set)(void *user, int tensor, uint64_t offset, const void *src, uint64_t bytes, struct lade_error *error);
  void *user;
  lade_pool *pool; /* for initial values; NULL: the caller's thread alone */
};

#endif
