/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places of heads, the rows of a block of threads, and the draws of dropout: shared by all attentions of CUDA.
 *
 * The mask makes some blocks much longer than others: the last queries see all keys, and all queries see the first
 * keys. Blocks start in their order, x before y. So the longest of all heads of a sequence are first (y) and the
 * shortest last, and multiprocessors end together. With one head after the other, the last head's longest block would
 * begin when the rest is nearly done. Where heads are fewer than multiprocessors, concurrent blocks share tiles in L2.
 *
 * Plain kernels, whose blocks have few rows, have rows along x and heads along y: a grid has 65,535 blocks at most
 * along y, and sequences are longer. Counting all along x would cost kernels with tensor cores registers that they
 * lack.
 */
#ifndef LADE_CUDA_ATTENTION_SHAPE_H
#define LADE_CUDA_ATTENTION_SHAPE_H

#include "kernels/cuda/kernel.h"

/* Shared by all kernels: sizes, and the place of this block. */
struct block_shape {
  int64_t seq_len, heads, n_kv_heads, head_dim, row_elements;
  int64_t group;      /* query heads of a key head */
  int64_t draw_heads; /* heads of the whole model, by which dropout's draws count */
  int64_t b, h;  /* the sequence, and the query head (of keys' kernels: the key head) */
  int64_t first; /* of this block's rows */
  float scale;
  int64_t window;            /* struct lade_score_form's */
  const int32_t *first_keys; /* of this sequence; NULL: none */
};

template <class Args> static __device__ inline float scale_get(const Args &a, int64_t head_dim)
{
  return a.form.scale > 0 ? a.form.scale : 1 / sqrtf((float)head_dim);
}

/*
 * Make the shape for block @i_block of @n_rows rows, queries or keys, of head @h. @head_dim is that of @a, a constant
 * where the kernel has one. Divisions are of 32 bits: those of 64 take a hundred instructions before the first copy.
 */
template <class Args>
static __device__ inline struct block_shape shape_get(const Args &a, int n_rows, unsigned h, unsigned i_block,
                                                      int64_t head_dim)
{
  struct block_shape shape;
  shape.seq_len = a.seq_len;
  shape.heads = a.heads;
  shape.n_kv_heads = a.n_kv_heads;
  shape.head_dim = head_dim;
  shape.group = (uint32_t)a.heads / (uint32_t)a.n_kv_heads;
  shape.draw_heads = a.draw_heads ? a.draw_heads : a.heads;
  shape.row_elements = (a.heads + 2 * a.n_kv_heads) * head_dim;
  shape.b = blockIdx.z;
  shape.h = h;
  shape.first = (int64_t)i_block * n_rows;
  shape.scale = scale_get(a, head_dim);
  shape.window = a.form.window;
  shape.first_keys = a.form.first_keys ? a.form.first_keys + shape.b * shape.seq_len : NULL;
  return shape;
}

/* Return the first key that query @i, of this sequence, sees. It does not fall along i. */
static __device__ inline int64_t first_key_at(const struct block_shape &s, int64_t i)
{
  int64_t first = s.window && i >= s.window ? i + 1 - s.window : 0;
  return s.first_keys && s.first_keys[i] > first ? s.first_keys[i] : first;
}

/* ALiBi of one head, as in kernels/host/attention/attention_form.h. */
struct head_alibi {
  float slope;      /* 0: no ALiBi */
  float bf16_slope; /* not 0: positions are rounded products with it, and slope is the scale of q k^T */
};

static __device__ inline float bf16_round(float value)
{
  bf16 rounded;
  put(&rounded, value);
  return get(rounded);
}

/* Return ALiBi of query head @h of @a; @scale: of q k^T. */
template <class Args> static __device__ inline struct head_alibi alibi_get(const Args &a, int64_t h, float scale)
{
  struct head_alibi alibi = {0, 0};
  if (a.form.alibi_max == 0)
    return alibi;
  int n = 1;
  const int n_heads = (int)(a.draw_heads ? a.draw_heads : a.heads), head = a.form.alibi_first_head + (int)h;
  while (2 * n <= n_heads)
    n *= 2;
  alibi.slope = exp2f(-a.form.alibi_max / (float)n * (head < n ? (float)(head + 1) : (float)(head - n) + 0.5f));
  if (a.form.is_alibi_rounded) {
    alibi.bf16_slope = bf16_round(alibi.slope);
    alibi.slope = scale;
  }
  return alibi;
}

/* Return ALiBi's term of query @i and key @j. */
static __device__ inline float alibi_term(const struct head_alibi &alibi, int i, int j)
{
  if (alibi.bf16_slope == 0)
    return alibi.slope * (float)(j - i);
  return alibi.slope * (bf16_round(alibi.bf16_slope * bf16_round((float)j)) -
                        bf16_round(alibi.bf16_slope * bf16_round((float)i)));
}

/* Return the key head of this block's query head. */
static __device__ inline int64_t kv_head_get(const struct block_shape &s)
{
  return (uint32_t)s.h / (uint32_t)s.group;
}

/* The query heads of a block of keys: a part of those of its key head, or all of them. */
struct heads_part {
  int first, end, n_parts;
  int64_t at; /* the part's first element in the workspace, of this sequence and key head; only if there are parts */
};

/* Return the part of a key head's query heads that block @i_part of the grid has, in the order of key heads. */
static __device__ inline struct heads_part heads_part_get(const struct lade_attention_bwd_args &a, unsigned i_part,
                                                          unsigned n_all, int head_dim)
{
  const unsigned n_kv_heads = (unsigned)a.n_kv_heads, n_parts = n_all / n_kv_heads;
  const unsigned h = i_part / n_parts, part = i_part % n_parts, group = (unsigned)a.heads / n_kv_heads;
  const int64_t row = (((int64_t)part * a.batch + blockIdx.z) * n_kv_heads + h) * a.seq_len;
  return (struct heads_part){(int)(h * group + part * group / n_parts), (int)(h * group + (part + 1) * group / n_parts),
                             (int)n_parts, lade_cuda_dkv_parts_begin(&a) + row * 2 * head_dim};
}

/* Return the elements before head @head (query heads, then keys, then values) of row @i. */
static __device__ inline int64_t qkv_at(const struct block_shape &s, int64_t head, int64_t i)
{
  return (s.b * s.seq_len + i) * s.row_elements + head * s.head_dim;
}

static __device__ inline int64_t out_at(const struct block_shape &s, int64_t h, int64_t i)
{
  return ((s.b * s.seq_len + i) * s.heads + h) * s.head_dim;
}

/* Return the index of a value for each query: lse and delta. */
static __device__ inline int64_t query_at(const struct block_shape &s, int64_t h, int64_t i)
{
  return (s.b * s.heads + h) * s.seq_len + i;
}

/* Return the number of the probability of query @i and key @j, by which dropout draws. */
static __device__ inline int64_t draw_at(const struct block_shape &s, int64_t h, int64_t i, int64_t j)
{
  return ((s.b * s.draw_heads + h) * s.seq_len + i) * s.seq_len + j;
}

#endif
