/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inference of the exact search at the joint of two slots: the possible offsets of the items that cross it.
 *
 * An item that crosses from one slot to the next has the same offset in both. Consider the lowest unplaced one. Below
 * it lie, on the left, only items that end at the joint, and on the right, only items that begin there. Each side is
 * filled from its floor up with at most the waste that its slot has left. So the lowest crossing item rests at a height
 * that both sides can reach: a sum of sizes of ending items above the left floor, and a sum of sizes of beginning items
 * above the right floor. The two sums may differ by the waste that either slot has left. The least such height is a
 * lowest offset of every crossing item.
 *
 * The rule is strong if little may be wasted. Take one item that ends and two that begin, one of which was just placed.
 * The other one must come next to it, before any crossing item, and both must lie beside the item that ends. Cuts of a
 * rectangle are thus rejoined from their ends instead of by chance. If slots have slack, a height near both floors is
 * possible at once, and the rule costs a comparison.
 *
 * The sums of all subsets of up to JOINT_ITEMS items per side are merged in order, 2^JOINT_ITEMS at most; a side with
 * more items infers nothing. Subset sums as reachable heights are known from packing (normal patterns; Herz 1972,
 * Christofides and Whitlock 1977). There they hold for a whole container; here both sides of one instant must agree.
 */
#include <string.h>

#include "alloc/pack/pack_exact.h"

#define JOINT_ITEMS 8

struct joint_sums {
  int n;
  int64_t at[1 << JOINT_ITEMS]; /* rising, without duplicates */
};

/* Replace @sums with all sums with and without @bytes. */
static void sums_double(struct joint_sums *sums, int64_t bytes)
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

/* Make the sums over the unplaced ones of a side's @n items. False if they are too many. */
static bool sums_make(struct pack_pile *pile, const int32_t *items, int n, struct joint_sums *sums)
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
  struct joint_sums left_sums, right_sums;
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
