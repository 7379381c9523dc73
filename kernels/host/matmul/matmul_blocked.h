/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocked matrix product at any level: matmul_blocked.c cuts c and goes through k, a level packs panels and
 * multiplies two of them. Attention multiplies its small tiles with the same two functions. Private to kernels/host.
 *
 * A panel holds @width lanes (left_width rows of op(a), or nr columns of op(b)) over a range of k: [n_groups] of @width
 * lanes each. A group is the number of consecutive k that one instruction takes from a lane: 32 for BF16 tiles, 2 for
 * BF16 dot products, 1 for FP32. A left panel has [width][group] elements there; a right panel's layout is the level's
 * own. Lanes and k beyond the matrix are zero, as far as a micro-tile reaches.
 *
 * The right operand is always packed. The left one is taken group by group. So it can also be read in place when k is
 * contiguous and its dtype is the level's own: struct lade_left_block decides per panel.
 */
#ifndef LADE_MATMUL_BLOCKED_H
#define LADE_MATMUL_BLOCKED_H

#include "kernels/kernels.h"

/* The constants of a level. */
struct lade_matmul_cut {
  int mr, nr;        /* rows and columns of a micro-tile, as many as fit in registers */
  int left_width;    /* lanes of a packed left panel: whole vectors, a multiple of mr */
  int kc;            /* k of a block: a panel of b of that depth is half of L1; a multiple of 16 and of group */
  int group;
  int element_bytes; /* packed: 2 for BF16, 4 for FP32 */
};

enum { LADE_CUT_AVX2, LADE_CUT_AVX512, LADE_CUT_AVX512_BF16, LADE_CUT_AMX, LADE_N_CUTS };
extern const struct lade_matmul_cut lade_matmul_cuts[LADE_N_CUTS];

/* Pack lanes [0, n_lanes) of @source into panels of @width, one after the other. */
struct lade_pack_args {
  enum lade_dtype dtype;
  const void *source;
  int64_t stride;       /* elements between lanes, or between k where !is_k_inner */
  bool is_k_inner;      /* source[lane, k] with k contiguous; else source[k, lane] */
  bool is_left;
  int n_lanes, n_k, width;
  void *panels;
};

/* mr rows of the left operand from some k on, packed or in place. */
struct lade_left {
  const char *at;
  int64_t row_bytes, group_bytes; /* from row to row, from group to group */
};

/* c[mr,nr] = left panel times right panel, in pieces of k. */
struct lade_micro_args {
  struct lade_left a;
  const void *b;
  int n_groups;
  const float *from; /* partial sums [mr,nr] of the k before, or NULL: zero */
  const float *carry; /* at the end n_carries sums [mr,nr], carry_stride apart, are added one after the other */
  int n_carries;
  int64_t carry_stride;
  float *to;         /* target of partial sums; NULL: finish into c */
  enum lade_dtype out;
  void *c;
  int64_t c_stride;
  int n_rows, n_columns; /* inside c */
  bool accumulate;
  const float *bias; /* [nr] or NULL */
};

struct lade_matmul_level {
  const struct lade_matmul_cut *cut;
  enum lade_dtype direct; /* the dtype that the micro-kernel can read in place */
  void (*pack)(const struct lade_pack_args *args);
  void (*micro)(const struct lade_micro_args *args);
  void (*enter)(void), (*leave)(void); /* run around a task that calls micro, on its thread; NULL: no setup */
};

extern const struct lade_matmul_level lade_matmul_level_avx2, lade_matmul_level_avx512, lade_matmul_level_avx512_bf16,
    lade_matmul_level_amx;

static inline void lade_matmul_enter(const struct lade_matmul_level *level)
{
  if (level->enter)
    level->enter();
}

static inline void lade_matmul_leave(const struct lade_matmul_level *level)
{
  if (level->leave)
    level->leave();
}

/* Rows [n_rows, n_k] of a left operand: whole panels are read in place if possible, the others are packed. */
struct lade_left_block {
  const struct lade_matmul_level *level;
  enum lade_dtype dtype;
  const void *source;
  int64_t stride;   /* elements between rows, or between k where !is_k_inner */
  bool is_k_inner;
  int n_rows, n_k;
  char *panels;     /* room for all panels packed */
  int n_in_place;   /* rows; set by lade_left_prepare */
};

void lade_left_prepare(struct lade_left_block *block);

/* Return the panel of rows from @row on, a multiple of mr, from @k on, a multiple of group. */
static inline struct lade_left lade_left_at(const struct lade_left_block *block, int row, int k)
{
  const struct lade_matmul_cut *cut = block->level->cut;
  int64_t lane_bytes = (int64_t)cut->group * cut->element_bytes;
  if (row < block->n_in_place) {
    int64_t row_bytes = block->stride * cut->element_bytes;
    return (struct lade_left){(const char *)block->source + row * row_bytes + k * cut->element_bytes, row_bytes,
                              lane_bytes};
  }
  int64_t n_groups = (block->n_k + cut->group - 1) / cut->group, packed = row - block->n_in_place;
  int64_t width_bytes = cut->left_width * lane_bytes, panel = packed / cut->left_width;
  return (struct lade_left){block->panels + (panel * n_groups + k / cut->group) * width_bytes +
                                packed % cut->left_width * lane_bytes, lane_bytes, width_bytes};
}

/* Run a product. pre: not F64, which the caller sends to the plain reference. */
void lade_matmul_blocked_run(const struct lade_matmul_level *level, const struct lade_kernel_ctx *ctx,
                             const struct lade_matmul_args *args);

/* Return the largest workspace of any level. */
size_t lade_matmul_blocked_workspace_bytes(const struct lade_matmul_args *args, int n_threads);

#endif
