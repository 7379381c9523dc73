/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inference of the exact search at the joint of two slots: where can what crosses it lie?
 *
 * What crosses from one slot to the next has the same offset in both. Below the lowest such item that is not placed
 * yet lie, on the left, only items that end at the joint, and on the right only such as begin there, each side from
 * its floor up with no more waste than its slot has left. So the lowest crossing item rests at a height that both
 * sides can reach: a sum of sizes of ending items above the left floor, and a sum of sizes of beginning items above
 * the right one, which may differ by what either slot may waste. The least such height is a lowest offset of
 * everything that crosses.
 *
 * Where little is wasted this says much: of one item that ends and two that begin, of which one was just placed, the
 * other must come next to it before anything that crosses, and both must lie beside the one that ends. Cuts of a
 * rectangle are put together again from their ends, as it were, instead of being met by chance. Where slots have slack
 * both floors are near enough at once, and the rule costs a comparison.
 *
 * The sums of all subsets of up to JOINT_ITEMS items a side are merged in order, 2^JOINT_ITEMS at most; a side with
 * more of them infers nothing. Subset sums as reachable heights are known from packing (normal patterns; Herz 1972,
 * Christofides and Whitlock 1977), there for a whole container; here both sides of one instant have to agree.
 */
#include <string.h>

#include "alloc/pack_exact.h"

#define JOINT_ITEMS 8

struct sums {
  int n;
  int64_t at[1 << JOINT_ITEMS]; /* rising, each once */
};

/* All sums with and without @bytes. */
static void sums_double(struct sums *sums, int64_t bytes)
{
  int64_t before[1 << JOINT_ITEMS];
  const int n_before = sums->n;
  int n = 0;
  memcpy(before, sums->at, (size_t)n_before * sizeof(*before));
  for (int without = 0, with = 0; with < n_before; n++) {
    const int64_t plain = without < n_before ? before[without] : INT64_MAX, more = before[with] + bytes;
    sums->at[n] = LADE_MIN(plain, more);
    without += plain <= more;
    with += more <= plain;
  }
  sums->n = n;
}

/* Sums of the unplaced among @n items of a side. False: too many. */
static bool sums_make(struct pack_pile *pile, const int32_t *items, int n, struct sums *sums)
{
  int n_items = 0;
  sums->n = 1;
  sums->at[0] = 0;
  for (int a = 0; a < n; a++) {
    if (pile->lowest[items[a]] < 0)
      continue;
    if (n_items++ == JOINT_ITEMS)
      return false;
    sums_double(sums, pile->bytes[items[a]]);
    pile->work += 2 * (uint64_t)sums->n;
  }
  return true;
}

int64_t lade_pack_pile_joint(struct pack_pile *pile, int s)
{
  const int64_t left = pile->floor[s - 1], right = pile->floor[s];
  const int64_t left_slack = pile->capacity - left - pile->rest[s - 1];
  const int64_t right_slack = pile->capacity - right - pile->rest[s];
  const int32_t *start = pile->joint_start + 2 * s;
  struct sums left_sums, right_sums;
  if (left + left_slack >= right && right + right_slack >= left)
    return LADE_MAX(left, right);
  if (!sums_make(pile, pile->joint_items + start[0], start[1] - start[0], &left_sums) ||
      !sums_make(pile, pile->joint_items + start[1], start[2] - start[1], &right_sums))
    return LADE_MAX(left, right);
  for (int a = 0, b = 0; a < left_sums.n && b < right_sums.n;) {
    const int64_t x = left + left_sums.at[a], y = right + right_sums.at[b];
    if (x + left_slack < y)
      a++;
    else if (y + right_slack < x)
      b++;
    else
      return LADE_MAX(x, y);
  }
  return INT64_MAX;
}
