/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of small integers that answers "which marked number is the next at or after this one" and "the last at or
 * before it": bits, and above each 64 words one word that says which of them are not empty. Every call looks at
 * one word per level, and a million numbers take four levels, so it is as good as constant. A balanced
 * tree would do the same with pointers; here the numbers are positions in a sorted array that never changes.
 */
#ifndef LADE_MARKS_H
#define LADE_MARKS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define MARKS_LEVELS 6 /* 64^6 > 2^31 */

struct marks {
  uint64_t *words[MARKS_LEVELS]; /* [0] has a bit per number; all levels lie in one block, owned by words[0] */
  int32_t n[MARKS_LEVELS];       /* bits of each level */
  int n_levels;
};

/* A set over 0 .. @n-1, empty. -ENOMEM. */
static inline int marks_init(struct marks *marks, int32_t n)
{
  size_t n_words = 0;
  int level = 0;
  *marks = (struct marks){0};
  for (int32_t bits = n > 0 ? n : 1;; level++) {
    marks->n[level] = bits;
    bits = (int32_t)(((int64_t)bits + 63) / 64);
    n_words += (size_t)bits;
    if (bits == 1)
      break;
  }
  marks->n_levels = level + 1;
  uint64_t *at = calloc(n_words, sizeof(*at));
  if (!at)
    return -ENOMEM;
  for (level = 0; level < marks->n_levels; level++) {
    marks->words[level] = at;
    at += ((int64_t)marks->n[level] + 63) / 64;
  }
  return 0;
}

static inline void marks_finish(struct marks *marks)
{
  free(marks->words[0]);
  *marks = (struct marks){0};
}

static inline bool marks_has(const struct marks *marks, int32_t i)
{
  return marks->words[0][i >> 6] >> (i & 63) & 1;
}

static inline void marks_set(struct marks *marks, int32_t i)
{
  for (int level = 0; level < marks->n_levels; level++, i >>= 6)
    marks->words[level][i >> 6] |= UINT64_C(1) << (i & 63);
}

static inline void marks_clear(struct marks *marks, int32_t i)
{
  for (int level = 0; level < marks->n_levels; level++, i >>= 6) {
    marks->words[level][i >> 6] &= ~(UINT64_C(1) << (i & 63));
    if (marks->words[level][i >> 6])
      return;
  }
}

/* The smallest marked number at or above @i, or -1. */
static inline int32_t marks_next(const struct marks *marks, int32_t i)
{
  int level = 0;
  for (;; level++) {
    if (level == marks->n_levels || i >= marks->n[level])
      return -1;
    uint64_t word = marks->words[level][i >> 6] & (~UINT64_C(0) << (i & 63));
    if (word) {
      i = (i & ~63) + __builtin_ctzll(word);
      break;
    }
    i = (i >> 6) + 1;
  }
  while (level-- > 0)
    i = i * 64 + __builtin_ctzll(marks->words[level][i]);
  return i;
}

/* The largest marked number at or below @i, or -1. */
static inline int32_t marks_prev(const struct marks *marks, int32_t i)
{
  int level = 0;
  for (;; level++) {
    if (level == marks->n_levels || i < 0)
      return -1;
    uint64_t word = marks->words[level][i >> 6] & (~UINT64_C(0) >> (63 - (i & 63)));
    if (word) {
      i = (i & ~63) + 63 - __builtin_clzll(word);
      break;
    }
    i = (i >> 6) - 1;
  }
  while (level-- > 0)
    i = i * 64 + 63 - __builtin_clzll(marks->words[level][i]);
  return i;
}

#endif
