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
 * The slots' lists hold the unplaced items first. These are sorted by insertion, in place. Backtracking does not undo
 * their order, because any order is a valid start and it changes little between nodes. A placed item goes after them,
 * where undoing the place finds it. Every other change is recorded on a trail.
 *
 * Left out: edge finding over all subsets. It infers more, but costs up to the square of a slot's items at every visit,
 * and the searches that succeed backtrack little without it.
 */
#include <string.h>

#include "alloc/pack/pack_exact.h"

/* Items for each raise of the not-first rule after a decision; measured. */
#define ITEMS_PER_RAISE 4

static void value_set(struct pack_pile *pile, int64_t *where, int64_t value)
{
  struct pack_change change = {where, *where};
  if (!LADE_PUSH(&pile->trail, change))
    pile->is_out_of_memory = true;
  *where = value;
}

/* Take item @j, the last one placed, off its slots. */
static void item_lift(struct pack_pile *pile, int j)
{
  pile->lowest[j] = pile->offset[j];
  pile->top[pile->lo[j]] = pile->below[j];
  for (int s = pile->lo[j]; s < pile->hi[j]; s++) {
    pile->floor[s] = pile->offset[j];
    pile->rest[s] += pile->bytes[j];
    pile->n_open[s]++;
    pile->cross[s] += s > pile->lo[j];
  }
}

void lade_pack_pile_undo(struct pack_pile *pile, int mark)
{
  while (pile->trail.n > mark) {
    const struct pack_change *change = &pile->trail.items[--pile->trail.n];
    if (change->where)
      *change->where = change->old;
    else
      item_lift(pile, (int)change->old);
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

/* Copy the lowest offsets of a slot's @n unplaced items into pile->keys. Return the least; *ret_max is the largest. */
static int64_t keys_get(struct pack_pile *pile, const int32_t *items, int n, int64_t *ret_max)
{
  int64_t min = LADE_PACK_DONE, max = 0;
  for (int a = 0; a < n; a++) {
    const int64_t lowest = pile->lowest[items[a]];
    pile->keys[a] = lowest;
    min = LADE_MIN(min, lowest);
    max = LADE_MAX(max, lowest);
  }
  *ret_max = max;
  return min;
}

/* Sort a slot's @n unplaced items by falling lowest offset, and these offsets in pile->keys with them. */
static void slot_sort(struct pack_pile *pile, int32_t *items, int n)
{
  int64_t *keys = pile->keys;
  for (int a = 1; a < n; a++) {
    const int64_t key = keys[a];
    if (keys[a - 1] >= key)
      continue;
    const int32_t j = items[a];
    int b = a;
    for (; b > 0 && keys[b - 1] < key; b--) {
      items[b] = items[b - 1];
      keys[b] = keys[b - 1];
    }
    items[b] = j;
    keys[b] = key;
  }
}

/* The two smallest ends that an unplaced item of a slot can have, and the item of the first. */
struct slot_ends {
  int64_t first, second;
  int32_t item;
};

/*
 * Apply the rule "not first": items that cannot be the slot's bottom one rise above the smallest end of another item.
 *
 * pre: @items are sorted, with their lowest offsets in pile->keys.
 */
static void slot_not_first(struct pack_pile *pile, const int32_t *items, int n, int64_t rest, struct slot_ends ends)
{
  const int64_t *keys = pile->keys;
  for (int a = 0; a < n && keys[a] + rest > pile->capacity && pile->n_raises_left > 0; a++) {
    const int32_t j = items[a];
    const int64_t end = j == ends.item ? ends.second : ends.first;
    if (end > keys[a]) {
      pile->n_raises_left--;
      lowest_raise(pile, j, end);
    }
  }
}

static bool slot_infer(struct pack_pile *pile, int s)
{
  int32_t *items = pile->slot_items.items + pile->slot_start[s];
  const int n = pile->n_open[s];
  const int64_t *keys = pile->keys;
  struct slot_ends ends = {INT64_MAX, INT64_MAX, -1};
  int64_t sum = 0, max, min = keys_get(pile, items, n, &max);
  if (min > pile->floor[s])
    value_set(pile, &pile->floor[s], min);
  if (max + pile->rest[s] <= pile->capacity) {
    pile->work += (uint64_t)n + 10;
    return true; /* no level and no item can break a rule */
  }
  slot_sort(pile, items, n);
  pile->work += 4 * (uint64_t)n + 10;
  for (int a = 0; a < n; a++) {
    const int64_t bytes = pile->bytes[items[a]], end = keys[a] + bytes;
    sum += bytes;
    if (sum > pile->capacity - keys[a]) {
      pile->lack = sum + keys[a] - pile->capacity;
      return false;
    }
    if (end < ends.first) {
      ends.second = ends.first;
      ends.first = end;
      ends.item = items[a];
    } else if (end < ends.second) {
      ends.second = end;
    }
  }
  LADE_ASSERT(sum == pile->rest[s]);
  if (n > 1)
    slot_not_first(pile, items, n, sum, ends);
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
  const int32_t *items = pile->slot_items.items + pile->slot_start[s];
  for (int a = pile->n_open[s] - 1; a >= 0; a--)
    if (pile->lo[items[a]] < s && pile->lowest[items[a]] < height)
      lowest_raise(pile, items[a], height);
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
  pile->n_raises_left = pile->n / ITEMS_PER_RAISE + 1;
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

/* Move item @j after the unplaced ones of slot @s. */
static void slot_close(struct pack_pile *pile, int s, int32_t j)
{
  int32_t *items = pile->slot_items.items + pile->slot_start[s];
  int at = pile->n_open[s] - 1;
  int32_t carry = items[at];
  items[at] = j; /* among the lowest, so it lies near the end */
  while (carry != j) {
    const int32_t next = items[--at];
    items[at] = carry;
    carry = next;
  }
  pile->n_open[s]--;
}

/* Raise the unplaced ones of @n items to @end at least. */
static void items_raise(struct pack_pile *pile, const int32_t *items, int n, int64_t end)
{
  for (int a = 0; a < n; a++)
    if (pile->lowest[items[a]] >= 0 && pile->lowest[items[a]] < end)
      lowest_raise(pile, items[a], end);
  pile->work += (uint64_t)n;
}

bool lade_pack_pile_place(struct pack_pile *pile, int j)
{
  const int64_t end = pile->lowest[j] + pile->bytes[j];
  const struct pack_change change = {NULL, j};
  if (!LADE_PUSH(&pile->trail, change)) {
    pile->is_out_of_memory = true;
    return false;
  }
  pile->offset[j] = pile->lowest[j];
  pile->lowest[j] = -1;
  pile->below[j] = pile->top[pile->lo[j]];
  pile->top[pile->lo[j]] = j;
  for (int s = pile->lo[j]; s < pile->hi[j]; s++) {
    LADE_ASSERT(pile->floor[s] == pile->offset[j]);
    pile->floor[s] = end;
    pile->rest[s] -= pile->bytes[j];
    pile->cross[s] -= s > pile->lo[j];
    slot_close(pile, s, j);
  }
  slots_due(pile, pile->lo[j], pile->hi[j]);
  const struct pack_meet meet = lade_pack_meet(pile, j);
  items_raise(pile, meet.open, meet.n_open, end);
  items_raise(pile, meet.begin, meet.n_begin, end);
  return pile_infer(pile);
}

bool lade_pack_pile_raise(struct pack_pile *pile, int s, int64_t floor)
{
  items_raise(pile, pile->slot_items.items + pile->slot_start[s], pile->n_open[s], floor);
  return pile_infer(pile);
}

/* Return the least end above slot @s that an unplaced one of @n items can have, without those that cover the slot. */
static int64_t items_end(const struct pack_pile *pile, const int32_t *items, int n, int s)
{
  int64_t min = INT64_MAX;
  for (int a = 0; a < n; a++) {
    const int32_t k = items[a];
    if (pile->lowest[k] >= 0 && (pile->lo[k] > s || pile->hi[k] <= s))
      min = LADE_MIN(min, pile->lowest[k] + pile->bytes[k]);
  }
  return min;
}

/*
 * There are two cases: the lowest offset of the slot's next item j is above the floor already, or j rests on an
 * unplaced item outside the slot. An unplaced item that covers the slot would itself be the next item.
 */
int64_t lade_pack_pile_next_floor(struct pack_pile *pile, int s, int64_t enough)
{
  const int32_t *items = pile->slot_items.items + pile->slot_start[s];
  int64_t next = INT64_MAX, floor = pile->floor[s];
  for (int a = 0; a < pile->n_open[s] && next > enough; a++) {
    const int32_t j = items[a];
    if (pile->lowest[j] > floor)
      next = LADE_MIN(next, pile->lowest[j]);
    if (pile->lowest[j] != floor)
      continue;
    const struct pack_meet meet = lade_pack_meet(pile, j);
    next = LADE_MIN(next, items_end(pile, meet.open, meet.n_open, s));
    next = LADE_MIN(next, items_end(pile, meet.begin, meet.n_begin, s));
    pile->work += (uint64_t)(meet.n_open + meet.n_begin);
  }
  return next;
}
