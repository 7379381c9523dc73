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
 * possible at once, and the rule costs a comparison. Most visits of a joint find it as the last one did, so each joint
 * keeps its last state and height.
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

/*
 * Return the unplaced ones of a side's @n items, one bit each. All bits: they are more than JOINT_ITEMS, or too far
 * down the list.
 */
static uint64_t side_open(const struct pack_pile *pile, const int32_t *items, int n)
{
  uint64_t open = 0;
  int n_open = 0;
  for (int a = 0; a < n; a++)
    if (pile->lowest[items[a]] >= 0) {
      if (a >= 63 || n_open++ == JOINT_ITEMS)
        return UINT64_MAX;
      open |= (uint64_t)1 << a;
    }
  return open;
}

/* Make the sums over the items of a side that are @open. */
static void sums_make(struct pack_pile *pile, const int32_t *items, uint64_t open, struct joint_sums *sums)
{
  sums->n = 1;
  sums->at[0] = 0;
  for (; open; open &= open - 1) {
    sums_double(sums, pile->bytes[items[__builtin_ctzll(open)]]);
    pile->work += 2 * (uint64_t)sums->n;
  }
}

/* Return the least height of joint @s for @state, from its sums. */
static int64_t height_find(struct pack_pile *pile, int s, const struct pack_joint *state)
{
  struct joint_sums left_sums, right_sums;
  sums_make(pile, pile->end_items + pile->end_start[s], state->ends, &left_sums);
  sums_make(pile, pile->begin_items + pile->begin_start[s], state->begins, &right_sums);
  for (int a = 0, b = 0; a < left_sums.n && b < right_sums.n;) {
    const int64_t x = state->left + left_sums.at[a], y = state->right + right_sums.at[b];
    if (x + state->left_slack < y)
      a++;
    else if (y + state->right_slack < x)
      b++;
    else
      return LADE_MAX(x, y);
  }
  return INT64_MAX;
}

int64_t lade_pack_pile_joint(struct pack_pile *pile, int s)
{
  const int32_t *begin = pile->begin_start + s, *end = pile->end_start + s;
  struct pack_joint *seen = &pile->joints[s];
  struct pack_joint now = {.left = pile->floor[s - 1], .right = pile->floor[s]};
  now.left_slack = pile->capacity - now.left - pile->rest[s - 1];
  now.right_slack = pile->capacity - now.right - pile->rest[s];
  if (now.left + now.left_slack >= now.right && now.right + now.right_slack >= now.left)
    return LADE_MAX(now.left, now.right);
  now.ends = side_open(pile, pile->end_items + end[0], end[1] - end[0]);
  now.begins = side_open(pile, pile->begin_items + begin[0], begin[1] - begin[0]);
  if (now.ends == UINT64_MAX || now.begins == UINT64_MAX)
    return LADE_MAX(now.left, now.right);
  now.height = seen->height;
  if (memcmp(&now, seen, sizeof(now)) != 0) {
    now.height = height_find(pile, s, &now);
    *seen = now;
  }
  return now.height;
}
