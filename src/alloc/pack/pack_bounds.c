/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inference of the exact search: choices that cannot lead to a packing are excluded before they are tried.
 *
 * Each slot is a machine that handles one item at a time. An item is a job that holds several neighbouring machines for
 * as long as it has bytes, and the capacity is the deadline. This view gives the rules of disjunctive scheduling. Every
 * item has a lowest offset. For every slot, over its unplaced items sorted by falling lowest offset:
 *
 *  heads      the items that start at or above some level h must fit between h and the capacity: for each level
 *             h, h + the bytes of all items with lowest >= h is at most the capacity;
 *  floor      no unplaced item lies below the smallest lowest offset, so the floor rises there (and the walls of
 *             valleys get deeper);
 *  not first  an item j with lowest_j + all unplaced bytes > capacity cannot be the bottom one; it lies on another,
 *             so its lowest offset is at least the smallest end that another can have.
 *
 * At the joint of two slots, a crossing item lies at a height that both sides can reach (pack_joints.c).
 *
 * A change of an item makes its slots due again, until no slot is due. The last rule may converge slowly (two items
 * that raise each other a little in turn), so it stops after a number of raises. Inference is then weaker, but still
 * correct.
 *
 * The slots' lists are sorted by insertion, in place. Backtracking does not undo their order, because any order is a
 * valid start and it changes little between nodes. Every other change is recorded on a trail.
 *
 * Left out: edge finding over all subsets. It infers more, but costs up to the square of a slot's items at every visit,
 * and the searches that succeed backtrack little without it.
 */
#include <string.h>

#include "alloc/pack/pack_exact.h"

/* Raises of the not-first rule per item and decision. */
#define RAISES_PER_ITEM 2

static void value_set(struct pack_pile *pile, int64_t *where, int64_t value)
{
  struct pack_change change = {where, *where};
  if (!LADE_PUSH(&pile->trail, change))
    pile->is_out_of_memory = true;
  *where = value;
}

void lade_pack_pile_undo(struct pack_pile *pile, int mark)
{
  while (pile->trail.n > mark) {
    const struct pack_change *change = &pile->trail.items[--pile->trail.n];
    *change->where = change->old;
  }
}

static void slots_due(struct pack_pile *pile, int lo, int hi)
{
  memset(pile->is_due + lo, true, (size_t)(hi - lo));
  pile->due_lo = LADE_MIN(pile->due_lo, lo);
  pile->due_hi = LADE_MAX(pile->due_hi, hi);
}

static void lowest_raise(struct pack_pile *pile, int j, int64_t lowest)
{
  value_set(pile, &pile->lowest[j], lowest);
  slots_due(pile, pile->lo[j], pile->hi[j]);
}

/*
 * Sort a slot's items by falling lowest offset, with these offsets in pile->keys. Return the number of unplaced ones.
 */
static int slot_sort(struct pack_pile *pile, int32_t *items, int n)
{
  int64_t *keys = pile->keys;
  for (int a = 0; a < n; a++) {
    const int32_t j = items[a];
    const int64_t key = pile->lowest[j];
    int b = a;
    for (; b > 0 && keys[b - 1] < key; b--) {
      items[b] = items[b - 1];
      keys[b] = keys[b - 1];
    }
    items[b] = j;
    keys[b] = key;
  }
  while (n > 0 && keys[n - 1] < 0)
    n--;
  return n;
}

/*
 * Apply the rule "not first": items that cannot be the slot's bottom one rise above the smallest end of another item.
 *
 * pre: @items are sorted, with their lowest offsets in pile->keys.
 */
static void slot_not_first(struct pack_pile *pile, const int32_t *items, int n, int64_t rest)
{
  const int64_t *keys = pile->keys;
  int64_t end_first = INT64_MAX, end_second = INT64_MAX;
  int32_t first = -1;
  if (keys[0] + rest <= pile->capacity)
    return; /* any item can be the bottom one */
  for (int a = 0; a < n; a++) {
    const int32_t j = items[a];
    const int64_t end = keys[a] + pile->bytes[j];
    if (end < end_first) {
      end_second = end_first;
      end_first = end;
      first = j;
    } else if (end < end_second) {
      end_second = end;
    }
  }
  for (int a = 0; a < n && keys[a] + rest > pile->capacity; a++) {
    const int32_t j = items[a];
    const int64_t end = j == first ? end_second : end_first;
    if (end > keys[a] && pile->n_raises_left > 0) {
      pile->n_raises_left--;
      lowest_raise(pile, j, end);
    }
  }
}

static bool slot_infer(struct pack_pile *pile, int s)
{
  int32_t *items = pile->slot_items.items + pile->slot_start[s];
  int n = slot_sort(pile, items, pile->slot_start[s + 1] - pile->slot_start[s]);
  pile->work += 4 * (uint64_t)(pile->slot_start[s + 1] - pile->slot_start[s]) + 10;
  int64_t sum = 0, level = LADE_PACK_DONE;
  for (int a = 0; a < n; a++) {
    sum += pile->bytes[items[a]];
    level = pile->keys[a];
    if (sum > pile->capacity - level) {
      pile->lack = sum + level - pile->capacity;
      return false;
    }
  }
  LADE_ASSERT(sum == pile->rest[s]);
  if (level > pile->floor[s])
    value_set(pile, &pile->floor[s], level);
  if (n > 1)
    slot_not_first(pile, items, n, sum);
  return true;
}

/*
 * Raise the items that cross from slot @s - 1 to @s to the least height that both sides can reach. False: no solution.
 */
static bool joint_infer(struct pack_pile *pile, int s)
{
  if (s <= 0 || s >= pile->n_slots || pile->cross[s] == 0)
    return true;
  int64_t height = lade_pack_pile_joint(pile, s);
  if (height == INT64_MAX) {
    pile->lack = 1;
    return false;
  }
  if (height <= LADE_MAX(pile->floor[s - 1], pile->floor[s]))
    return true;
  for (int a = pile->slot_start[s]; a < pile->slot_start[s + 1]; a++) {
    int32_t j = pile->slot_items.items[a];
    if (pile->lo[j] < s && pile->lowest[j] >= 0 && pile->lowest[j] < height)
      lowest_raise(pile, j, height);
  }
  return true;
}

/* Infer on slot @s and at its joints; a joint with a slot that is due is left to that slot. False: no solution. */
static bool slot_and_joints_infer(struct pack_pile *pile, int s)
{
  if (!slot_infer(pile, s) || !joint_infer(pile, s))
    return false;
  return (s + 1 < pile->n_slots && pile->is_due[s + 1]) || joint_infer(pile, s + 1);
}

/* Infer until no slot is due. False: no solution. */
static bool pile_infer(struct pack_pile *pile)
{
  bool is_possible = true;
  pile->n_raises_left = RAISES_PER_ITEM * pile->n;
  while (pile->due_lo < pile->due_hi) {
    int lo = pile->due_lo, hi = pile->due_hi;
    pile->due_lo = INT32_MAX;
    pile->due_hi = 0;
    for (int s = lo; s < hi; s++) {
      if (is_possible && pile->is_due[s]) {
        pile->is_due[s] = false;
        is_possible = slot_and_joints_infer(pile, s);
        pile->weight[s] += !is_possible && !pile->is_soft;
      }
      if (!is_possible)
        pile->is_due[s] = false;
    }
    if (!is_possible && pile->due_lo < pile->due_hi)
      memset(pile->is_due + pile->due_lo, false, (size_t)(pile->due_hi - pile->due_lo));
    if (!is_possible) {
      pile->due_lo = INT32_MAX;
      pile->due_hi = 0;
    }
  }
  return is_possible && !pile->is_out_of_memory;
}

bool lade_pack_pile_start(struct pack_pile *pile)
{
  pile->due_lo = INT32_MAX;
  pile->due_hi = 0;
  slots_due(pile, 0, pile->n_slots);
  return pile_infer(pile);
}

bool lade_pack_pile_place(struct pack_pile *pile, int j)
{
  int64_t end = pile->lowest[j] + pile->bytes[j];
  pile->offset[j] = pile->lowest[j];
  value_set(pile, &pile->lowest[j], -1);
  for (int s = pile->lo[j]; s < pile->hi[j]; s++) {
    LADE_ASSERT(pile->floor[s] <= pile->offset[j]);
    value_set(pile, &pile->floor[s], end);
    value_set(pile, &pile->rest[s], pile->rest[s] - pile->bytes[j]);
    value_set(pile, &pile->top[s], j);
    if (s > pile->lo[j])
      value_set(pile, &pile->cross[s], pile->cross[s] - 1);
  }
  slots_due(pile, pile->lo[j], pile->hi[j]);
  for (int a = pile->near_start[j]; a < pile->near_start[j + 1]; a++) {
    int32_t k = pile->near.items[a];
    if (pile->lowest[k] >= 0 && pile->lowest[k] < end)
      lowest_raise(pile, k, end);
  }
  pile->work += (uint64_t)(pile->near_start[j + 1] - pile->near_start[j]);
  return pile_infer(pile);
}

bool lade_pack_pile_raise(struct pack_pile *pile, int s, int64_t floor)
{
  for (int a = pile->slot_start[s]; a < pile->slot_start[s + 1]; a++) {
    int32_t j = pile->slot_items.items[a];
    if (pile->lowest[j] >= 0 && pile->lowest[j] < floor)
      lowest_raise(pile, j, floor);
  }
  return pile_infer(pile);
}

/*
 * Either the lowest offset of the slot's next item j is above the floor already, or j rests on an unplaced item outside
 * the slot. An unplaced item that covers the slot would itself be the next item.
 */
int64_t lade_pack_pile_next_floor(struct pack_pile *pile, int s)
{
  int64_t next = INT64_MAX, floor = pile->floor[s];
  for (int a = pile->slot_start[s]; a < pile->slot_start[s + 1]; a++) {
    int32_t j = pile->slot_items.items[a];
    if (pile->lowest[j] > floor)
      next = LADE_MIN(next, pile->lowest[j]);
    if (pile->lowest[j] != floor)
      continue;
    for (int b = pile->near_start[j]; b < pile->near_start[j + 1]; b++) {
      int32_t k = pile->near.items[b];
      if (pile->lowest[k] >= 0 && (pile->lo[k] > s || pile->hi[k] <= s))
        next = LADE_MIN(next, pile->lowest[k] + pile->bytes[k]);
    }
    pile->work += (uint64_t)(pile->near_start[j + 1] - pile->near_start[j]);
  }
  return next;
}
