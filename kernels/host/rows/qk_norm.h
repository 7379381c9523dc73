/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of heads in a row of qkv, for qk_norm.c and qk_norm_vec.c. */
#ifndef LADE_KERNELS_QK_NORM_H
#define LADE_KERNELS_QK_NORM_H

#include <string.h>

#include "kernels/host/ref.h"

struct qk_shape {
  int64_t heads, n_kv_heads, head_dim;
  bool is_by_head;
};

/* One group of one row: its elements in qkv, and its place among the rows' rstd. */
struct qk_group {
  int64_t at, n, rstd_at;
  bool is_key;
};

REF_INLINE int64_t qk_row(const struct qk_shape *shape)
{
  return (shape->heads + 2 * shape->n_kv_heads) * shape->head_dim;
}

REF_INLINE int64_t qk_n_groups(const struct qk_shape *shape)
{
  return shape->is_by_head ? shape->heads + shape->n_kv_heads : 2;
}

/* Return the length of the weights of queries, or of keys. */
REF_INLINE int64_t qk_width(const struct qk_shape *shape, bool is_key)
{
  return shape->is_by_head ? shape->head_dim : (is_key ? shape->n_kv_heads : shape->heads) * shape->head_dim;
}

REF_INLINE struct qk_group qk_group_get(const struct qk_shape *shape, int64_t row, int64_t i)
{
  bool is_key = shape->is_by_head ? i >= shape->heads : i == 1;
  int64_t first = shape->is_by_head ? i * shape->head_dim : i * shape->heads * shape->head_dim;
  return (struct qk_group){row * qk_row(shape) + first, qk_width(shape, is_key), row * qk_n_groups(shape) + i, is_key};
}

REF_INLINE void qk_values_copy(const struct qk_shape *shape, int64_t row, const void *x, void *y, enum lade_dtype dtype)
{
  size_t element_bytes = lade_dtype_bytes(dtype),
      n_bytes = (size_t)(shape->n_kv_heads * shape->head_dim) * element_bytes;
  size_t at_bytes = (size_t)((row + 1) * qk_row(shape)) * element_bytes - n_bytes;
  if (x != y)
    memcpy((char *)y + at_bytes, (const char *)x + at_bytes, n_bytes);
}

/* Partial sums of the weights' gradients of one block of rows, in A. */
struct qk_partials {
  void *query, *key;
};

/* Return a block's partial sums, set to zero. All blocks of queries come first. */
REF_INLINE struct qk_partials qk_partials_clear(const struct qk_shape *shape, enum lade_dtype dtype, int64_t n_rows,
                                                void *workspace, int64_t block)
{
  const size_t sum_bytes = lade_dtype_bytes(lade_accumulator(dtype));
  const int64_t q_width = qk_width(shape, false), k_width = qk_width(shape, true);
  char *keys = (char *)workspace + lade_row_sums_bytes(dtype, n_rows, q_width, 1);
  struct qk_partials partials = {lade_row_sums_at(dtype, workspace, q_width, 1, block, 0),
                                 lade_row_sums_at(dtype, keys, k_width, 1, block, 0)};
  memset(partials.query, 0, (size_t)q_width * sum_bytes);
  memset(partials.key, 0, (size_t)k_width * sum_bytes);
  return partials;
}

/* Add the blocks' partial sums to the weights' gradients. */
void lade_qk_norm_weights_add(lade_pool *pool, const struct lade_qk_norm_bwd_args *args);

#endif
