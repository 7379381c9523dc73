/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where heads lie, which rows a block of threads has, and what dropout keeps: what all attentions of CUDA share.
 *
 * The mask makes some blocks much longer than others: the last queries see all keys, the first keys are seen by all
 * queries. Blocks start in their order, x before y, so the longest of all heads of a sequence are first (y) and the
 * shortest last, and multiprocessors end together; were a head after the other, its longest block would begin when the
 * rest is nearly done. Where heads are fewer than multiprocessors, blocks that run side by side share tiles in L2.
 *
 * Plain kernels, whose blocks have few rows, have rows along x and heads along y: a grid has 65,535 blocks at most
 * along y, and sequences are longer. To count all along x costs those with tensor cores registers that they lack.
 */
#ifndef LADE_CUDA_ATTENTION_SHAPE_H
#define LADE_CUDA_ATTENTION_SHAPE_H

#include "kernels/cuda/kernel.h"

/* What all kernels share: sizes, and where this block stands. */
struct shape {
  int64_t time, heads, key_heads, head_dim, row_elements;
  int64_t group;      /* query heads of a key head */
  int64_t draw_heads; /* that dropout's draws count by */
  int64_t b, h;  /* the sequence, and the query head (of keys' kernels: the key head) */
  int64_t first; /* of this block's rows */
  float scale;
};

/* For the @i_block-th block of @n_rows rows, queries or keys, of head @h. */
template <class Args>
static __device__ inline struct shape shape_get(const Args &a, int n_rows, unsigned h, unsigned i_block)
{
  struct shape shape;
  shape.time = a.time;
  shape.heads = a.heads;
  shape.key_heads = a.key_heads;
  shape.head_dim = a.head_dim;
  shape.group = a.heads / a.key_heads;
  shape.draw_heads = a.draw_heads ? a.draw_heads : a.heads;
  shape.row_elements = (a.heads + 2 * a.key_heads) * a.head_dim;
  shape.b = blockIdx.z;
  shape.h = h;
  shape.first = (int64_t)i_block * n_rows;
  shape.scale = 1 / sqrtf((float)a.head_dim);
  return shape;
}

/* Elements before head @head (query heads, then keys, then values) of row @i. */
static __device__ inline int64_t qkv_at(const struct shape &s, int64_t head, int64_t i)
{
  return (s.b * s.time + i) * s.row_elements + head * s.head_dim;
}

static __device__ inline int64_t out_at(const struct shape &s, int64_t h, int64_t i)
{
  return ((s.b * s.time + i) * s.heads + h) * s.head_dim;
}

/* Of a value for each query: lse and delta. */
static __device__ inline int64_t query_at(const struct shape &s, int64_t h, int64_t i)
{
  return (s.b * s.heads + h) * s.time + i;
}

/* The number of a probability, that of query @i and key @j, by which dropout draws. */
static __device__ inline int64_t draw_at(const struct shape &s, int64_t h, int64_t i, int64_t j)
{
  return ((s.b * s.draw_heads + h) * s.time + i) * s.time + j;
}

#endif
