/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First fit: items in some order, each at the lowest place that is free through its whole lifetime.
 *
 * The placed items are kept sorted by offset; an item walks them upwards, skips those that it never meets, and
 * stops at the first gap that holds it. O(n^2) in the worst case, a nanosecond or so per step, and most walks
 * stop early. Fixed items are there from the start, so every gap below and between them is used.
 *
 * What the order is decides the quality. Large and long-lived first is right for most programs; which of the
 * two should weigh more differs, so a few are tried, and the first that meets the target ends it.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack_internal.h"

/* Placed items by offset, as parallel arrays: the walk reads lifetimes of all and offsets of few. */
struct shelf {
  int n;
  int32_t *lo, *hi;
  uint64_t *offset, *end;
};

struct keyed {
  double key;
  int32_t item;
};

enum { ORDER_AREA, ORDER_LENGTH, ORDER_BYTES, ORDER_START, N_ORDERS };

size_t lade_pack_first_fit_bytes(int n)
{
  return (size_t)n * (2 * sizeof(int32_t) + 2 * sizeof(uint64_t) + sizeof(struct keyed)) + 256;
}

static void shelf_insert(struct shelf *shelf, int at, int32_t lo, int32_t hi, uint64_t offset, uint64_t end)
{
  size_t n_after = (size_t)(shelf->n - at);
  memmove(shelf->lo + at + 1, shelf->lo + at, n_after * sizeof(*shelf->lo));
  memmove(shelf->hi + at + 1, shelf->hi + at, n_after * sizeof(*shelf->hi));
  memmove(shelf->offset + at + 1, shelf->offset + at, n_after * sizeof(*shelf->offset));
  memmove(shelf->end + at + 1, shelf->end + at, n_after * sizeof(*shelf->end));
  shelf->lo[at] = lo;
  shelf->hi[at] = hi;
  shelf->offset[at] = offset;
  shelf->end[at] = end;
  shelf->n++;
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

/* Place all items in @order and leave the offsets in the packer. */
static void order_place(lade_packer *packer, struct shelf *shelf, const struct keyed *order)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t work = 0;
  shelf->n = 0;
  for (int pass = problem->n_fixed > 0 ? 0 : 1; pass < 2; pass++)
    for (int k = 0; k < problem->n; k++) {
      int32_t i = order[k].item;
      bool is_fixed = problem->items[i].fixed >= 0;
      if (is_fixed != (pass == 0))
        continue;
      uint64_t offset = is_fixed ? (uint64_t)problem->items[i].fixed : shelf_fit(shelf, problem, i, &work);
      packer->offsets[i] = offset;
      shelf_insert(shelf, shelf_find(shelf, offset), problem->lo[i], problem->hi[i], offset,
                   offset + problem->bytes[i]);
    }
  lade_pack_spend(&packer->effort, work);
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
    order[i] = (struct keyed){key, i};
  }
  qsort(order, (size_t)problem->n, sizeof(*order), keyed_compare);
}

bool lade_pack_first_fit(lade_packer *packer)
{
  size_t mark = packer->arena_used, n = (size_t)packer->problem.n;
  struct shelf shelf = {
      .lo = lade_pack_take(packer, n * sizeof(*shelf.lo)),
      .hi = lade_pack_take(packer, n * sizeof(*shelf.hi)),
      .offset = lade_pack_take(packer, n * sizeof(*shelf.offset)),
      .end = lade_pack_take(packer, n * sizeof(*shelf.end)),
  };
  struct keyed *order = lade_pack_take(packer, n * sizeof(*order));
  bool is_met = false;
  for (int kind = 0; kind < N_ORDERS && !is_met; kind++) {
    order_make(&packer->problem, kind, order);
    order_place(packer, &shelf, order);
    is_met = lade_pack_offer(packer);
  }
  packer->arena_used = mark;
  return is_met;
}
