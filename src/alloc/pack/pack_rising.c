/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Search by rising offsets: items are placed one after another, none lower than the one before.
 *
 * The exact search (pack_exact.c) decides corners and infers much at each. This one decides little and infers little,
 * at a tenth of the cost for each node, and finds other packings. Instances with some slack often need hardly a step
 * back here. It is Moffitt's search (MiniMalloc, 2023), for items of one alignment without fixed offsets.
 *
 * Each unplaced item has a lowest offset: the largest end of the placed items that it meets in time. A node places the
 * item with the least one. Items of equal lowest offset are tried in the order of the attempt. Four rules keep the tree
 * small:
 *
 *  rising     an item lies at a higher offset than the one placed before, or at the same one and later in the order;
 *  no hole    no item lies at or above the least end that an unplaced item can have: a hole, which that item fills;
 *  rest       in each slot the unplaced bytes fit above the floor, which is at least the offset of the last item;
 *  no hat     if no unplaced item meets the placed one, nothing can lie on it, so another choice cannot help the rest.
 *
 * Where no unplaced item crosses from one slot to the next, the sides are solved one after the other. Each begins
 * without a last item. A failure on one side does not cause a retry of the other.
 *
 * Three orders are tried: by length and area, by the bytes of the fullest slot and area, and by these bytes and length.
 * Each gets as many nodes as two passes over the items in the first turn, four times as many in the second (measured),
 * and twice as many in each later turn. Lengths are the caller's times, because slots differ in length.
 *
 * A node tries one placement or more. Each costs a pass over the items of its part, and one over the slots that its
 * items share. The tries of an attempt are limited too, because most of a node's may fail at once. Recursion is at most
 * as deep as there are items, some 230 bytes of stack each.
 */
#include <string.h>

#include "alloc/pack/pack_exact.h"

/* Nodes for each item in the first attempts, and placements that may be tried for each node; measured. */
#define NODES_PER_ITEM 2
#define TRIES_PER_NODE 8

enum { ORDER_LENGTH, ORDER_FULL_AREA, ORDER_FULL_LENGTH, N_ORDERS };

struct rising {
  const struct pack_problem *problem;
  struct pack_effort *effort;
  struct pack_trail trail;     /* `lowest` and `floor` before their changes */
  struct pack_numbers parts;   /* lists of items in the attempt's order: the open parts, innermost last */
  struct keyed *ranks;         /* scratch of sorting, twice the items */
  int64_t capacity;            /* in granules, as all sizes here */
  int64_t *bytes, *lowest;     /* by item; `lowest` is PLACED if it is placed */
  int64_t *offset;             /* of placed items */
  int32_t *rank;               /* by item: its number in the attempt's order, without the key of the fullest slot */
  int64_t *floor, *rest;       /* by slot: the least offset of an unplaced item, and unplaced bytes */
  int32_t *cross;              /* by slot: unplaced items that cover both this slot and the one before */
  struct pack_numbers slot_items; /* of each slot, and where they start */
  int32_t *slot_start, *begin_start, *begin_items; /* the latter: items by the slot in which they begin */
  bool *is_due;                /* by slot of [due_lo, due_hi): the floor may rise */
  int due_lo, due_hi;
  uint64_t n_nodes_left, n_tries_left, work; /* the latter: steps that are not spent yet */
  bool is_by_fullest;          /* the fullest slot comes first in the order */
  bool is_aborted;             /* a limit was met or memory refused, so a failure proves nothing */
  bool is_out_of_memory;
};

#define PLACED INT64_MAX

/* A part of the problem: the items at [first, first + n) of the lists, in the slots [lo, hi). */
struct rising_part {
  int first, n, lo, hi;
};

/* The last item placed in a part: the next one has a higher offset, or the same and a later place in the list. */
struct rising_last {
  int64_t offset;
  int place;
};

/* End the attempt if @has_memory is false. */
static void memory_check(struct rising *rising, bool has_memory)
{
  rising->is_out_of_memory |= !has_memory;
  rising->is_aborted |= !has_memory;
}

static void value_set(struct rising *rising, int64_t *where, int64_t value)
{
  const struct pack_change change = {where, *where};
  *where = value;
  memory_check(rising, LADE_PUSH(&rising->trail, change));
}

/* Add @sign times item @j to the unplaced bytes and crossings of its slots. */
static void rest_add(struct rising *rising, int j, int sign)
{
  const int lo = rising->problem->lo[j], hi = rising->problem->hi[j];
  for (int s = lo; s < hi; s++)
    rising->rest[s] += sign * rising->bytes[j];
  for (int s = lo + 1; s < hi; s++)
    rising->cross[s] += sign;
}

/* Undo all changes since the trail had @mark entries, places included. */
static void changes_undo(struct rising *rising, int mark)
{
  while (rising->trail.n > mark) {
    const struct pack_change *change = &rising->trail.items[--rising->trail.n];
    if (change->where) {
      *change->where = change->old;
      continue;
    }
    rising->lowest[change->old] = rising->offset[change->old];
    rest_add(rising, (int)change->old, 1);
  }
}

/* Return the unplaced bytes of the fullest slot of item @j. */
static int64_t item_fullest(struct rising *rising, int j)
{
  int64_t max = 0;
  for (int s = rising->problem->lo[j]; s < rising->problem->hi[j]; s++)
    max = LADE_MAX(max, rising->rest[s]);
  rising->work += (uint64_t)(rising->problem->hi[j] - rising->problem->lo[j]) / 2;
  return max;
}

/* Sort a part's list by the fullest slot now, if the attempt's order begins with it. */
static void part_sort(struct rising *rising, const struct rising_part *part)
{
  int32_t *list = rising->parts.items + part->first;
  if (!rising->is_by_fullest || part->n < 2)
    return;
  int32_t *by_rank = rising->rank + rising->problem->n;
  for (int p = 0; p < part->n; p++)
    rising->ranks[p] = (struct keyed){(double)item_fullest(rising, list[p]), rising->rank[list[p]]};
  lade_pack_sort(rising->ranks, part->n, rising->ranks + part->n);
  for (int p = 0; p < part->n; p++)
    list[p] = by_rank[rising->ranks[p].item];
}

/*
 * Return the place in the list of the next item to try after @last, at an offset of @max or less; or -1. *ret_hole is
 * the least possible end of an unplaced item, INT64_MAX if all are placed.
 */
static int next_find(const struct rising *rising, const struct rising_part *part, struct rising_last last, int64_t max,
                     int64_t *ret_hole)
{
  const int32_t *list = rising->parts.items + part->first;
  int64_t hole = INT64_MAX, best = INT64_MAX;
  int place = -1;
  for (int p = 0; p < part->n; p++) {
    const int64_t lowest = rising->lowest[list[p]];
    if (lowest == PLACED)
      continue;
    hole = LADE_MIN(hole, lowest + rising->bytes[list[p]]);
    if (lowest < best && (lowest > last.offset || (lowest == last.offset && p > last.place))) {
      best = lowest;
      place = p;
    }
  }
  *ret_hole = hole;
  return best < hole && best <= max ? place : -1;
}

/*
 * Raise the floor of slot @s to the least lowest offset of its unplaced items. False: these do not fit above it.
 */
static bool floor_raise(struct rising *rising, int s)
{
  const int32_t *items = rising->slot_items.items;
  int64_t min = PLACED;
  for (int a = rising->slot_start[s]; a < rising->slot_start[s + 1]; a++)
    min = LADE_MIN(min, rising->lowest[items[a]]);
  rising->work += (uint64_t)(rising->slot_start[s + 1] - rising->slot_start[s]);
  if (min == PLACED || min <= rising->floor[s])
    return true;
  value_set(rising, &rising->floor[s], min);
  return min + rising->rest[s] <= rising->capacity;
}

/*
 * Raise the unplaced ones of @n items to @end at least. Slots whose floor was the old lowest offset of one become due.
 * True if one of the items is unplaced.
 */
static bool items_raise(struct rising *rising, const int32_t *items, int n, int64_t end)
{
  const struct pack_problem *problem = rising->problem;
  bool has_unplaced = false;
  for (int a = 0; a < n; a++) {
    const int k = items[a];
    const int64_t lowest = rising->lowest[k];
    has_unplaced |= lowest != PLACED;
    if (lowest >= end)
      continue;
    value_set(rising, &rising->lowest[k], end);
    for (int s = problem->lo[k]; s < problem->hi[k]; s++)
      rising->is_due[s] |= rising->floor[s] == lowest;
    rising->due_lo = LADE_MIN(rising->due_lo, problem->lo[k]);
    rising->due_hi = LADE_MAX(rising->due_hi, problem->hi[k]);
    rising->work += (uint64_t)(problem->hi[k] - problem->lo[k]) / 2;
  }
  rising->work += (uint64_t)n;
  return has_unplaced;
}

/*
 * Raise the unplaced items that meet item @j to @end at least. They are those of its first slot and those that begin in
 * a later one. True if there are such items.
 */
static bool meeting_raise(struct rising *rising, int j, int64_t end)
{
  const int lo = rising->problem->lo[j], hi = rising->problem->hi[j];
  const int32_t *first = rising->slot_start + lo, *begin = rising->begin_start;
  const bool has_first = items_raise(rising, rising->slot_items.items + first[0], first[1] - first[0], end);
  const bool has_later = items_raise(rising, rising->begin_items + begin[lo + 1], begin[hi] - begin[lo + 1], end);
  return has_first || has_later;
}

/* Raise the floors that are due. False: the unplaced items of a slot do not fit above its floor. */
static bool floors_raise(struct rising *rising)
{
  bool is_possible = true;
  for (int s = rising->due_lo; s < rising->due_hi; s++) {
    is_possible = is_possible && (!rising->is_due[s] || floor_raise(rising, s));
    rising->is_due[s] = false;
  }
  return is_possible;
}

/* Return the highest offset of the next item of @part at which the unplaced bytes of each slot fit above it. */
static int64_t offset_max(const struct rising *rising, const struct rising_part *part)
{
  int64_t rest = 0;
  for (int s = part->lo; s < part->hi; s++)
    rest = LADE_MAX(rest, rising->rest[s]);
  return rising->capacity - rest;
}

static bool part_solve(struct rising *rising, const struct rising_part *part, struct rising_last last);

/* Solve the unplaced items of the slots [@lo, @hi) of the part. */
static bool side_solve(struct rising *rising, const struct rising_part *part, int lo, int hi)
{
  const struct pack_problem *problem = rising->problem;
  struct rising_part side = {.first = rising->parts.n, .lo = lo, .hi = hi};
  for (int p = 0; p < part->n; p++) {
    const int32_t k = rising->parts.items[part->first + p];
    if (rising->lowest[k] == PLACED || problem->lo[k] < lo || problem->lo[k] >= hi)
      continue;
    memory_check(rising, LADE_PUSH(&rising->parts, k));
    if (rising->is_aborted)
      return false;
    side.n++;
  }
  rising->work += (uint64_t)part->n;
  part_sort(rising, &side);
  const bool is_solved = side.n == 0 || part_solve(rising, &side, (struct rising_last){0, -1});
  rising->parts.n = side.first;
  return is_solved;
}

/* Go on after item @j, which was just placed: at each slot that no unplaced item crosses any more, the part is cut. */
static bool sides_solve(struct rising *rising, const struct rising_part *part, int j, struct rising_last last)
{
  const int end = rising->problem->hi[j];
  bool is_cut = false, is_solved = true;
  int from = part->lo;
  for (int s = rising->problem->lo[j] + 1; s < end && is_solved; s++) {
    if (rising->cross[s] > 0)
      continue;
    is_solved = side_solve(rising, part, from, s);
    is_cut = true;
    from = s;
  }
  if (!is_cut)
    return part_solve(rising, part, last);
  return is_solved && side_solve(rising, part, from, part->hi);
}

/* Place item @j at its lowest offset. *ret_has_hat: an unplaced item meets it. False: it cannot lie there. */
static bool item_place(struct rising *rising, int j, bool *ret_has_hat)
{
  const struct pack_change change = {NULL, j};
  const int64_t offset = rising->lowest[j], end = offset + rising->bytes[j];
  memory_check(rising, LADE_PUSH(&rising->trail, change));
  rising->offset[j] = offset;
  rising->lowest[j] = PLACED;
  rest_add(rising, j, -1);
  for (int s = rising->problem->lo[j]; s < rising->problem->hi[j]; s++) {
    value_set(rising, &rising->floor[s], end);
    rising->is_due[s] = true;
  }
  rising->due_lo = rising->problem->lo[j];
  rising->due_hi = rising->problem->hi[j];
  *ret_has_hat = meeting_raise(rising, j, end);
  return floors_raise(rising) && !rising->is_aborted;
}

/* Count a placement that is tried. False, and the attempt is over, if a limit is met. */
static bool try_enter(struct rising *rising, const struct rising_part *part)
{
  const uint64_t work = rising->work + 50 + (uint64_t)part->n + (uint64_t)(part->hi - part->lo) / 2;
  rising->work = 0;
  rising->is_aborted |= rising->n_tries_left == 0 || lade_pack_spend(rising->effort, work);
  if (!rising->is_aborted)
    rising->n_tries_left--;
  return !rising->is_aborted;
}

/* Place the unplaced items of @part after @last. False: a dead end, with all changes undone; or an aborted attempt. */
static bool part_solve(struct rising *rising, const struct rising_part *part, struct rising_last last)
{
  const int64_t max = offset_max(rising, part);
  int64_t hole;
  int place = next_find(rising, part, last, max, &hole);
  if (hole == INT64_MAX)
    return true; /* all items are placed */
  rising->is_aborted |= rising->n_nodes_left == 0;
  rising->n_nodes_left -= !rising->is_aborted;
  bool has_hat = true;
  while (place >= 0 && has_hat && !rising->is_aborted && try_enter(rising, part)) {
    const int j = rising->parts.items[part->first + place], mark = rising->trail.n;
    last = (struct rising_last){rising->lowest[j], place};
    if (item_place(rising, j, &has_hat) && sides_solve(rising, part, j, last))
      return true;
    if (!rising->is_aborted) /* else the attempt is over, and the next one resets all */
      changes_undo(rising, mark);
    place = next_find(rising, part, last, max, &hole);
  }
  return false;
}

/* Number the items in the order of @order, without the key of the fullest slot, which part_sort adds. */
static void items_rank(struct rising *rising, int order)
{
  const struct pack_problem *problem = rising->problem;
  int32_t *by_rank = rising->rank + problem->n;
  for (int j = 0; j < problem->n; j++)
    by_rank[j] = j;
  for (int key = 0; key < 2; key++) { /* the less important key first: each sort keeps the order of equal items */
    const bool is_by_length = (key == 1) == (order != ORDER_FULL_AREA);
    for (int r = 0; r < problem->n; r++) {
      const int j = by_rank[r];
      const double length = (double)problem->length[j], area = length * (double)rising->bytes[j];
      rising->ranks[r] = (struct keyed){is_by_length ? length : area, r};
    }
    lade_pack_sort(rising->ranks, problem->n, rising->ranks + problem->n);
    for (int r = 0; r < problem->n; r++)
      rising->rank[r] = by_rank[rising->ranks[r].item]; /* scratch, until the end */
    memcpy(by_rank, rising->rank, (size_t)problem->n * sizeof(*by_rank));
  }
  for (int r = 0; r < problem->n; r++)
    rising->rank[by_rank[r]] = r;
  rising->is_by_fullest = order != ORDER_LENGTH;
}

/* List the items of each slot, and those that begin in each, by counting. False: no memory. */
static bool slots_link(struct rising *rising)
{
  const struct pack_problem *problem = rising->problem;
  const int n_slots = problem->n_slots;
  int32_t *start = rising->slot_start, *begin = rising->begin_start, n = 0;
  for (int j = 0; j < problem->n; j++)
    n += problem->hi[j] - problem->lo[j];
  if (!lade_array_reserve((void **)&rising->slot_items.items, &rising->slot_items.capacity, n, sizeof(*start)))
    return false;
  memset(start, 0, (size_t)(n_slots + 1) * sizeof(*start));
  memset(begin, 0, (size_t)(n_slots + 1) * sizeof(*begin));
  for (int j = 0; j < problem->n; j++) {
    begin[problem->lo[j]]++;
    for (int s = problem->lo[j]; s < problem->hi[j]; s++)
      start[s]++;
  }
  for (int s = 0; s < n_slots; s++) {
    start[s + 1] += start[s];
    begin[s + 1] += begin[s];
  }
  for (int j = problem->n - 1; j >= 0; j--) { /* from the ends of the lists down, and the ends become starts */
    rising->begin_items[--begin[problem->lo[j]]] = j;
    for (int s = problem->lo[j]; s < problem->hi[j]; s++)
      rising->slot_items.items[--start[s]] = j;
  }
  return true;
}

/* Empty the packing and list all items as one part. False: no memory. */
static bool rising_reset(struct rising *rising, struct rising_part *ret_part)
{
  const struct pack_problem *problem = rising->problem;
  const size_t n_slots = (size_t)problem->n_slots;
  memset(rising->floor, 0, n_slots * sizeof(*rising->floor));
  memset(rising->rest, 0, n_slots * sizeof(*rising->rest));
  memset(rising->cross, 0, n_slots * sizeof(*rising->cross));
  memset(rising->is_due, 0, n_slots * sizeof(*rising->is_due));
  memset(rising->lowest, 0, (size_t)problem->n * sizeof(*rising->lowest));
  rising->trail.n = rising->parts.n = 0;
  rising->is_aborted = false;
  memory_check(rising, slots_link(rising));
  for (int j = 0; j < problem->n; j++)
    rest_add(rising, j, 1);
  for (int r = 0; r < problem->n && !rising->is_aborted; r++)
    memory_check(rising, LADE_PUSH(&rising->parts, rising->rank[problem->n + r]));
  *ret_part = (struct rising_part){0, problem->n, 0, problem->n_slots};
  return !rising->is_aborted;
}

/* Solve each run of slots that no item leaves. True: all items are placed. */
static bool runs_solve(struct rising *rising, const struct rising_part *whole)
{
  bool is_solved = true;
  for (int s = 1, from = 0; s <= whole->hi && is_solved; s++)
    if (s == whole->hi || rising->cross[s] == 0) {
      is_solved = side_solve(rising, whole, from, s);
      from = s;
    }
  return is_solved;
}

size_t lade_pack_rising_bytes(int n)
{
  const size_t item_bytes = 2 * sizeof(struct keyed) + 3 * sizeof(int64_t) + 3 * sizeof(int32_t);
  const size_t slot_bytes = 2 * sizeof(int64_t) + 3 * sizeof(int32_t) + sizeof(bool);
  return (size_t)n * (item_bytes + slot_bytes) + 16 * 16; /* at most a slot for each item */
}

/* Take the arrays from the packer's arena; those that grow are the packer's. */
static void rising_init(struct rising *rising, lade_packer *packer, int64_t capacity)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t n = (size_t)problem->n, n_slots = (size_t)problem->n_slots;
  *rising = (struct rising){
      .problem = problem, .effort = &packer->effort, .trail = packer->trail, .parts = packer->choices,
      .capacity = capacity,
      .ranks = lade_pack_take(packer, 2 * n * sizeof(*rising->ranks)),
      .bytes = lade_pack_take(packer, n * sizeof(*rising->bytes)),
      .lowest = lade_pack_take(packer, n * sizeof(*rising->lowest)),
      .offset = lade_pack_take(packer, n * sizeof(*rising->offset)),
      .rank = lade_pack_take(packer, 2 * n * sizeof(*rising->rank)),
      .floor = lade_pack_take(packer, n_slots * sizeof(*rising->floor)),
      .rest = lade_pack_take(packer, n_slots * sizeof(*rising->rest)),
      .slot_start = lade_pack_take(packer, (n_slots + 1) * sizeof(*rising->slot_start)),
      .begin_start = lade_pack_take(packer, (n_slots + 1) * sizeof(*rising->begin_start)),
      .begin_items = lade_pack_take(packer, n * sizeof(*rising->begin_items)),
      .is_due = lade_pack_take(packer, n_slots * sizeof(*rising->is_due)), .slot_items = packer->slot_items,
      .cross = lade_pack_take(packer, n_slots * sizeof(*rising->cross)),
  };
  for (size_t j = 0; j < n; j++)
    rising->bytes[j] = (int64_t)(problem->bytes[j] / problem->granule);
}

enum pack_rising_end lade_pack_rising(lade_packer *packer, int64_t capacity, int k)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t mark = packer->arena_used;
  struct rising rising;
  struct rising_part whole;
  rising_init(&rising, packer, capacity);
  const int turn = k / N_ORDERS;
  rising.n_nodes_left = (uint64_t)NODES_PER_ITEM * (uint64_t)problem->n << (turn ? LADE_MIN(turn + 1, 40) : 0);
  rising.n_tries_left = TRIES_PER_NODE * rising.n_nodes_left;
  items_rank(&rising, k % N_ORDERS);
  lade_pack_spend(rising.effort, (uint64_t)problem->n * (uint64_t)(problem->n + problem->n_slots) / 2);
  const bool is_solved = rising_reset(&rising, &whole) && runs_solve(&rising, &whole);
  for (int j = 0; j < problem->n && is_solved; j++)
    packer->offsets[j] = (uint64_t)rising.offset[j] * problem->granule;
  packer->trail = rising.trail;
  packer->choices = rising.parts;
  packer->slot_items = rising.slot_items;
  packer->arena_used = mark;
  if (is_solved)
    return PACK_RISING_PACKED;
  if (rising.is_out_of_memory)
    return PACK_RISING_NO_MEMORY;
  return rising.is_aborted ? PACK_RISING_CUT_SHORT : PACK_RISING_PROVED;
}
