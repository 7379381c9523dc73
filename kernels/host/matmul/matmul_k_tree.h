/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Iteration over k in the order of struct lade_k_tree: leaf by leaf, in pieces that a product packs at once. Private to
 * kernels/host.
 *
 * While leaf i is added up, one sum waits for each set bit of i: of 2^b leaves for bit b. The sum of leaf i takes the
 * lowest free place, like the carry of a binary counter. First the sums in lower places are added to it. If there are
 * 2^l leaves, the last one's place is l, the root.
 */
#ifndef LADE_K_TREE_H
#define LADE_K_TREE_H

#include "kernels/kernels.h"

#define LADE_TREE_PLACES_MAX 4 /* for LADE_LEAVES_MAX leaves */

/* A run of k in one part of a leaf. All zero: before the first one. */
struct lade_k_piece {
  int64_t k, k_end;
  int64_t packed_k; /* k of the pieces before it, each rounded up to a multiple of the group */
  int leaf, span;
  bool is_first, is_last; /* of its leaf */
};

/*
 * Advance to the next piece: at most @max of the product's k, with @group k packed together. False after the last one;
 * packed_k is then that of all pieces.
 */
bool lade_k_piece_next(const struct lade_matmul_args *args, int64_t max, int group, struct lade_k_piece *piece);

/* Return packed_k of all pieces. pre: pieces are of whole groups, so that only the last one of a part is rounded up. */
int64_t lade_k_packed(const struct lade_matmul_args *args, int group);

/* Return the number of places for sums of the product: 1 for a k that is one leaf. */
int lade_k_places(const struct lade_matmul_args *args);

/* Return the place of the sum that ends with @leaf; that many lower sums are added to it. */
static inline int lade_k_place(int leaf)
{
  return __builtin_ctz(~(unsigned)leaf);
}

#endif
