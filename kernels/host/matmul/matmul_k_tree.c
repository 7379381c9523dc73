/* SPDX-License-Identifier: Apache-2.0 */
/* The iteration of matmul_k_tree.h. It visits the leaves in order and cuts each into pieces, none of them empty. */
#include "kernels/host/matmul/matmul_k_tree.h"

#include "base/base.h"

/* Return the tree of a product without one: k as one leaf. */
static struct lade_k_tree tree_get(const struct lade_matmul_args *args)
{
  if (args->tree.n_leaves)
    return args->tree;
  return (struct lade_k_tree){.n_leaves = 1, .n_spans = 1, .span = {args->k}, .part = {args->k}};
}

/* Return part @leaf of span @i_span. */
static void part_get(const struct lade_k_tree *tree, int leaf, int i_span, int64_t *ret_first, int64_t *ret_end)
{
  int64_t before = 0, part = tree->part[i_span], span = tree->span[i_span];
  LADE_ASSERT(part * (tree->n_leaves - 1) < span && span <= part * tree->n_leaves);
  for (int i = 0; i < i_span; i++)
    before += tree->span[i];
  *ret_first = before + leaf * part;
  *ret_end = before + LADE_MIN((leaf + 1) * part, span);
}

bool lade_k_piece_next(const struct lade_matmul_args *args, int64_t max, int group, struct lade_k_piece *piece)
{
  struct lade_k_tree tree = tree_get(args);
  int64_t first, end;
  part_get(&tree, piece->leaf, piece->span, &first, &end);
  piece->packed_k += lade_div_up(piece->k_end - piece->k, group) * group;
  piece->k = piece->k_end;
  if (piece->k_end == end) { /* false before the first piece, because no part is empty */
    bool is_leaf_over = piece->span == tree.n_spans - 1;
    if (is_leaf_over && piece->leaf == tree.n_leaves - 1)
      return false;
    piece->leaf += is_leaf_over;
    piece->span = is_leaf_over ? 0 : piece->span + 1;
    part_get(&tree, piece->leaf, piece->span, &first, &end);
    piece->k = first;
  }
  piece->k_end = LADE_MIN(piece->k + max, end);
  piece->is_first = piece->span == 0 && piece->k == first;
  piece->is_last = piece->span == tree.n_spans - 1 && piece->k_end == end;
  return true;
}

int64_t lade_k_packed(const struct lade_matmul_args *args, int group)
{
  const struct lade_k_tree tree = tree_get(args);
  int64_t packed_k = 0;
  for (int leaf = 0; leaf < tree.n_leaves; leaf++) {
    for (int span = 0; span < tree.n_spans; span++) {
      int64_t first, end;
      part_get(&tree, leaf, span, &first, &end);
      packed_k += lade_div_up(end - first, group) * group;
    }
  }
  return packed_k;
}

int lade_k_places(const struct lade_matmul_args *args)
{
  LADE_ASSERT(args->tree.n_leaves <= LADE_LEAVES_MAX && !(args->tree.n_leaves & (args->tree.n_leaves - 1)));
  return args->tree.n_leaves ? lade_k_place(args->tree.n_leaves - 1) + 1 : 1;
}
