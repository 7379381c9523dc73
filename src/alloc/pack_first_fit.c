/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First fit: items in some order, each at the lowest place that is free through its whole lifetime.
 *
 * The placed items are kept sorted by offset; an item walks them upwards, skips those that it never meets, and
 * stops at the first gap that holds it. O(n^2) in the worst case, a nanosecond or so per step, and most walks
 * stop early. Fixed items are there from the start, so every gap below and between them is used.
 *
 * What the order is decides the quality. Large and long-lived first is right for most programs; which of the
 * two should weigh more differs, so a few are tried, and the first that meets the target ends it. Then the best
 * order is repaired by blame (Joslin and Clements' "squeaky wheel" idea) until the effort is spent.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack_internal.h"

/* Placed items by offset, as parallel arrays: the walk reads lifetimes of all and offsets of few. */
struct shelf {
  int n;
  int32_t *lo, *hi;
  uint64_t *offset, *end;
  int32_t *item;
  int32_t *placed; /* all items in the order in which they were placed */
  bool *is_kept;   /* scratch, all false */
};

/* One line of repair: it starts from one of the orders. */
struct climb {
  struct keyed *order, *best_order;
  uint64_t best_bytes; /* of this line */
  int n_worse;
};

struct keyed {
  double key;
  int32_t item;
};

/* Steps between two looks at the effort within a pass. */
#define WORK_PER_SPEND 200000
/* How far an item that ended too high moves forward at most, as a part of the order; measured. */
#define REACH 0.1
#define FIXED_KEY 1e300 /* first in every order */
#define PATIENCE 30

enum { ORDER_BYTES, ORDER_AREA, ORDER_LENGTH, ORDER_START, N_ORDERS };
#define N_CLIMBS 3
#define PASSES_PER_TURN 24

size_t lade_pack_first_fit_bytes(int n)
{
  size_t per_shelf = 4 * sizeof(int32_t) + 2 * sizeof(uint64_t) + sizeof(bool);
  return (size_t)n * (per_shelf + 2 * N_ORDERS * sizeof(struct keyed)) + 512;
}

/* First place in the shelf whose offset is above @offset. */
static int shelf_find(const struct shelf *shelf, uint64_t offset)
{
  int low = 0, high = shelf->n;
  while (low < high) {
    int middle = (low + high) / 2;
    if (shelf->offset[middle] <= offset)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void shelf_insert(struct shelf *shelf, const struct pack_problem *problem, int32_t i, uint64_t offset)
{
  int at = shelf_find(shelf, offset);
  size_t n_after = (size_t)(shelf->n - at);
  memmove(shelf->lo + at + 1, shelf->lo + at, n_after * sizeof(*shelf->lo));
  memmove(shelf->hi + at + 1, shelf->hi + at, n_after * sizeof(*shelf->hi));
  memmove(shelf->offset + at + 1, shelf->offset + at, n_after * sizeof(*shelf->offset));
  memmove(shelf->end + at + 1, shelf->end + at, n_after * sizeof(*shelf->end));
  memmove(shelf->item + at + 1, shelf->item + at, n_after * sizeof(*shelf->item));
  shelf->lo[at] = problem->lo[i];
  shelf->hi[at] = problem->hi[i];
  shelf->offset[at] = offset;
  shelf->end[at] = offset + problem->bytes[i];
  shelf->item[at] = i;
  shelf->n++;
}

/* Lowest free offset for @i. @work counts steps. */
static uint64_t shelf_fit(const struct shelf *shelf, const struct pack_problem *problem, int i, uint64_t *work)
{
  int32_t lo = problem->lo[i], hi = problem->hi[i];
  uint64_t bytes = problem->bytes[i], align = problem->align[i], free_from = 0;
  int k = 0;
  for (; k < shelf->n; k++) {
    if (shelf->lo[k] >= hi || shelf->hi[k] <= lo)
      continue;
    if (shelf->offset[k] >= free_from + bytes)
      break;
    if (shelf->end[k] > free_from)
      free_from = lade_align_up(shelf->end[k], align);
  }
  *work += (uint64_t)k + 8;
  return free_from;
}

/* Keep the items of the first @n_kept places of the last pass and drop the others. */
static void shelf_cut(struct shelf *shelf, int n_kept)
{
  int n = 0;
  for (int k = 0; k < n_kept; k++)
    shelf->is_kept[shelf->placed[k]] = true;
  for (int k = 0; k < shelf->n; k++) {
    if (!shelf->is_kept[shelf->item[k]])
      continue;
    shelf->lo[n] = shelf->lo[k];
    shelf->hi[n] = shelf->hi[k];
    shelf->offset[n] = shelf->offset[k];
    shelf->end[n] = shelf->end[k];
    shelf->item[n] = shelf->item[k];
    n++;
  }
  LADE_ASSERT(n == n_kept);
  for (int k = 0; k < n_kept; k++)
    shelf->is_kept[shelf->placed[k]] = false;
  shelf->n = n;
}

/*
 * Place all items in @order and leave the offsets in the packer. What the order has in common with the last
 * pass, from its start, is still in place. False when the effort is spent before the end; the first pass goes on.
 */
static bool order_place(lade_packer *packer, struct shelf *shelf, const struct keyed *order)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t work = (uint64_t)problem->n;
  int n_kept = 0;
  while (n_kept < shelf->n && shelf->placed[n_kept] == order[n_kept].item)
    n_kept++;
  if (n_kept < shelf->n)
    shelf_cut(shelf, n_kept);
  for (int k = n_kept; k < problem->n; k++) {
    if (work >= WORK_PER_SPEND) {
      if (lade_pack_spend(&packer->effort, work) && packer->best_bytes < UINT64_MAX)
        return false;
      work = 0;
    }
    int32_t i = order[k].item;
    bool is_fixed = problem->items[i].fixed >= 0;
    uint64_t offset = is_fixed ? (uint64_t)problem->items[i].fixed : shelf_fit(shelf, problem, i, &work);
    packer->offsets[i] = offset;
    shelf->placed[k] = i;
    shelf_insert(shelf, problem, i, offset);
  }
  lade_pack_spend(&packer->effort, work);
  return true;
}

static int keyed_compare(const void *a, const void *b)
{
  const struct keyed *x = a, *y = b;
  if (x->key != y->key)
    return x->key > y->key ? -1 : 1;
  return x->item < y->item ? -1 : 1;
}

/* Items by falling key. */
static void order_make(const struct pack_problem *problem, int kind, struct keyed *order)
{
  for (int i = 0; i < problem->n; i++) {
    double length = problem->hi[i] - problem->lo[i], bytes = (double)problem->bytes[i];
    double key = 0;
    switch (kind) {
    case ORDER_AREA: key = length * bytes; break;
    case ORDER_LENGTH: key = length + bytes * 0x1p-62; break;
    case ORDER_BYTES: key = bytes + length * 0x1p-31; break;
    case ORDER_START: key = -problem->lo[i] + length * 0x1p-31; break;
    }
    order[i] = (struct keyed){problem->items[i].fixed >= 0 ? FIXED_KEY : key, i};
  }
  qsort(order, (size_t)problem->n, sizeof(*order), keyed_compare);
}

/* xorshift64*: the same draws on every run. */
static uint64_t random_next(uint64_t *state)
{
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545F4914F6CDD1Du;
}

/* The peak of the pass that was just made. */
static uint64_t pass_peak(const lade_packer *packer)
{
  uint64_t peak = 0;
  for (int i = 0; i < packer->problem.n; i++)
    peak = LADE_MAX(peak, packer->offsets[i] + packer->problem.items[i].bytes);
  return peak;
}

/* Move the items that end above @limit forward by a random part of REACH of the order (or of a few places). */
static void order_blame(lade_packer *packer, uint64_t limit, struct keyed *order, uint64_t *random_state)
{
  const struct pack_problem *problem = &packer->problem;
  double reach = LADE_MAX(problem->n * REACH, 4.0);
  for (int k = 0; k < problem->n; k++) {
    int32_t i = order[k].item;
    if (problem->items[i].fixed >= 0)
      continue;
    order[k].key = -k;
    if (packer->offsets[i] + problem->items[i].bytes > limit)
      order[k].key += reach * (double)(random_next(random_state) >> 11) * 0x1p-53;
  }
  qsort(order, (size_t)problem->n, sizeof(*order), keyed_compare);
  lade_pack_spend(&packer->effort, 100 * (uint64_t)problem->n);
}

/*
 * Repair by blame: what ended above a limit comes earlier in the next pass. The limit is drawn between the target and
 * the incumbent: near the target many are blamed and much changes, near the incumbent only the topmost are. One
 * fixed limit gets stuck sooner. After PATIENCE passes that were worse, back to the best.
 */
static bool climb_step(lade_packer *packer, struct shelf *shelf, struct climb *climb, uint64_t *random_state)
{
  size_t order_bytes = (size_t)packer->problem.n * sizeof(*climb->order);
  if (!order_place(packer, shelf, climb->order))
    return false;
  if (lade_pack_offer(packer))
    return true;
  uint64_t peak = pass_peak(packer);
  if (peak <= climb->best_bytes) {
    climb->n_worse = 0;
    climb->best_bytes = peak;
    memcpy(climb->best_order, climb->order, order_bytes);
  } else if (++climb->n_worse > PATIENCE) {
    climb->n_worse = 0;
    memcpy(climb->order, climb->best_order, order_bytes);
    return false;
  }
  double part = (double)(random_next(random_state) >> 11) * 0x1p-53;
  uint64_t limit = packer->target_bytes + (uint64_t)((double)(packer->best_bytes - packer->target_bytes) * part);
  order_blame(packer, limit, climb->order, random_state);
  return false;
}

/*
 * Take turns between the lines until the effort is spent: which one is good differs between programs. A line that
 * improved the incumbent goes on. The second order goes first:
 * it starts worse than the first, and gets further.
 */
static bool climbs_run(lade_packer *packer, struct shelf *shelf, struct climb *climbs)
{
  uint64_t random_state = 88172645463325252u;
  for (int line = 1;;) {
    uint64_t before_bytes = packer->best_bytes;
    for (int pass = 0; pass < PASSES_PER_TURN; pass++) {
      if (packer->effort.is_spent)
        return false;
      if (climb_step(packer, shelf, &climbs[line], &random_state))
        return true;
    }
    if (packer->best_bytes == before_bytes)
      line = (line + 1) % N_CLIMBS;
  }
}

static void shelf_init(lade_packer *packer, struct shelf *shelf)
{
  size_t n = (size_t)packer->problem.n;
  *shelf = (struct shelf){
      .lo = lade_pack_take(packer, n * sizeof(*shelf->lo)),
      .hi = lade_pack_take(packer, n * sizeof(*shelf->hi)),
      .offset = lade_pack_take(packer, n * sizeof(*shelf->offset)),
      .end = lade_pack_take(packer, n * sizeof(*shelf->end)),
      .item = lade_pack_take(packer, n * sizeof(*shelf->item)),
      .placed = lade_pack_take(packer, n * sizeof(*shelf->placed)),
      .is_kept = lade_pack_take(packer, n * sizeof(*shelf->is_kept)),
  };
  memset(shelf->is_kept, 0, n * sizeof(*shelf->is_kept));
}

bool lade_pack_first_fit(lade_packer *packer)
{
  size_t mark = packer->arena_used, order_bytes = (size_t)packer->problem.n * sizeof(struct keyed);
  struct climb climbs[N_ORDERS];
  struct shelf shelf;
  bool is_met = false;
  shelf_init(packer, &shelf);
  for (int kind = 0; kind < N_ORDERS && !is_met && (kind == 0 || !packer->effort.is_spent); kind++) {
    climbs[kind] = (struct climb){.order = lade_pack_take(packer, order_bytes),
                                  .best_order = lade_pack_take(packer, order_bytes),
                                  .best_bytes = UINT64_MAX};
    order_make(&packer->problem, kind, climbs[kind].order);
    is_met = order_place(packer, &shelf, climbs[kind].order) && lade_pack_offer(packer);
  }
  if (!is_met && !packer->effort.is_spent)
    is_met = climbs_run(packer, &shelf, climbs);
  packer->arena_used = mark;
  return is_met;
}
