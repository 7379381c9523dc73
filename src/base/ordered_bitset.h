/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of small integers that finds the next member at or after a number, and the last at or before it. Level 0 has
 * one bit per number. A bit of each higher level is set if a 64-bit word of the level below is not 0. Every call reads
 * at most two words per level. A million numbers take four levels, so the cost is nearly constant. Rejected: a balanced
 * tree, which needs pointers. Here the numbers are positions in a sorted array that never changes.
 */
#ifndef LADE_ORDERED_BITSET_H
#define LADE_ORDERED_BITSET_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define ORDERED_BITSET_LEVELS 6 /* 64^6 > 2^31 */

struct ordered_bitset {
  uint64_t *words[ORDERED_BITSET_LEVELS]; /* [0] has a bit per number; all levels lie in one block, owned by words[0] */
  int32_t n[ORDERED_BITSET_LEVELS];       /* bits of each level */
  int n_levels;
};

/* Make an empty set over 0 .. @n-1. -ENOMEM. */
static inline int ordered_bitset_init(struct ordered_bitset *set, int32_t n)
{
  size_t n_words = 0;
  int level = 0;
  *set = (struct ordered_bitset){0};
  for (int32_t bits = n > 0 ? n : 1;; level++) {
    set->n[level] = bits;
    bits = (int32_t)(((int64_t)bits + 63) / 64);
    n_words += (size_t)bits;
    if (bits == 1)
      break;
  }
  set->n_levels = level + 1;
  uint64_t *at = calloc(n_words, sizeof(*at));
  if (!at)
    return -ENOMEM;
  for (level = 0; level < set->n_levels; level++) {
    set->words[level] = at;
    at += ((int64_t)set->n[level] + 63) / 64;
  }
  return 0;
}

static inline void ordered_bitset_finish(struct ordered_bitset *set)
{
  free(set->words[0]);
  *set = (struct ordered_bitset){0};
}

static inline bool ordered_bitset_has(const struct ordered_bitset *set, int32_t i)
{
  return set->words[0][i >> 6] >> (i & 63) & 1;
}

static inline void ordered_bitset_set(struct ordered_bitset *set, int32_t i)
{
  for (int level = 0; level < set->n_levels; level++, i >>= 6)
    set->words[level][i >> 6] |= UINT64_C(1) << (i & 63);
}

static inline void ordered_bitset_clear(struct ordered_bitset *set, int32_t i)
{
  for (int level = 0; level < set->n_levels; level++, i >>= 6) {
    set->words[level][i >> 6] &= ~(UINT64_C(1) << (i & 63));
    if (set->words[level][i >> 6])
      return;
  }
}

/* Return the smallest member at or above @i, or -1. */
static inline int32_t ordered_bitset_next(const struct ordered_bitset *set, int32_t i)
{
  int level = 0;
  for (;; level++) {
    if (level == set->n_levels || i >= set->n[level])
      return -1;
    uint64_t word = set->words[level][i >> 6] & (~UINT64_C(0) << (i & 63));
    if (word) {
      i = (i & ~63) + __builtin_ctzll(word);
      break;
    }
    i = (i >> 6) + 1;
  }
  while (level-- > 0)
    i = i * 64 + __builtin_ctzll(set->words[level][i]);
  return i;
}

/* Return the largest member at or below @i, or -1. */
static inline int32_t ordered_bitset_prev(const struct ordered_bitset *set, int32_t i)
{
  int level = 0;
  for (;; level++) {
    if (level == set->n_levels || i < 0)
      return -1;
    uint64_t word = set->words[level][i >> 6] & (~UINT64_C(0) >> (63 - (i & 63)));
    if (word) {
      i = (i & ~63) + 63 - __builtin_clzll(word);
      break;
    }
    i = (i >> 6) - 1;
  }
  while (level-- > 0)
    i = i * 64 + 63 - __builtin_clzll(set->words[level][i]);
  return i;
}

#endif
