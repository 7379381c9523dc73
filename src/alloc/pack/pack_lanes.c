/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: a fast placement, above all others, of items that the deadline left unplaced.
 *
 * First fit is quadratic, and a caller's deadline may come before the end of the first order. The remaining items are
 * then laid in lanes. Items of one size class, which the order sorts by their begin, share lanes. A lane is as high as
 * the largest of them, which is at most twice any. Each item goes to the lane that became free first. This gives the
 * least number of lanes, found with a heap in O(n log n), in some milliseconds for 60,000 items. The large items come
 * first in the order, so the items laid in lanes are usually small.
 */
#include "alloc/pack/pack_internal.h"

struct pack_lane {
  int32_t free_from; /* first free slot */
  int32_t number;
};

/* A binary heap with the lane that becomes free first on top. */
struct lanes {
  struct pack_lane *heap;
  int n;
};

static void lanes_sink(struct lanes *lanes, int at)
{
  const struct pack_lane lane = lanes->heap[at];
  for (int child; (child = 2 * at + 1) < lanes->n; at = child) {
    child += child + 1 < lanes->n && lanes->heap[child + 1].free_from < lanes->heap[child].free_from;
    if (lane.free_from <= lanes->heap[child].free_from)
      break;
    lanes->heap[at] = lanes->heap[child];
  }
  lanes->heap[at] = lane;
}

static void lanes_add(struct lanes *lanes, struct pack_lane lane)
{
  int at = lanes->n++;
  for (int parent; at > 0 && lanes->heap[parent = (at - 1) / 2].free_from > lane.free_from; at = parent)
    lanes->heap[at] = lanes->heap[parent];
  lanes->heap[at] = lane;
}

/*
 * Return the lane of an item that covers the slots [lo, hi).
 *
 * pre: it begins no sooner than the items before it.
 */
static int32_t lane_find(struct lanes *lanes, int32_t lo, int32_t hi)
{
  if (lanes->n && lanes->heap[0].free_from <= lo) {
    const int32_t number = lanes->heap[0].number;
    lanes->heap[0].free_from = hi;
    lanes_sink(lanes, 0);
    return number;
  }
  lanes_add(lanes, (struct pack_lane){hi, lanes->n});
  return lanes->n - 1;
}

/* Lay @n items, sorted by their begin, in lanes above @base. Return the end of the lanes. */
static uint64_t run_lay(lade_packer *packer, struct lanes *lanes, const struct keyed *run, int n, uint64_t base)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t align = 1, height = 0;
  for (int k = 0; k < n; k++) {
    align = LADE_MAX(align, problem->align[run[k].item]);
    height = LADE_MAX(height, problem->bytes[run[k].item]);
  }
  base = lade_align_up(base, align);
  height = lade_align_up(height, align);
  lanes->n = 0;
  for (int k = 0; k < n; k++) {
    const int32_t i = run[k].item;
    packer->offsets[i] = base + height * (uint64_t)lane_find(lanes, problem->lo[i], problem->hi[i]);
  }
  return base + height * (uint64_t)lanes->n;
}

/* True if item @b of the order, which follows @before, may use the lanes of the run that @a begins. */
static bool is_of_run(const struct pack_problem *problem, const struct keyed *a, const struct keyed *before,
                      const struct keyed *b)
{
  const uint64_t x = problem->bytes[a->item], y = problem->bytes[b->item];
  return problem->lo[b->item] >= problem->lo[before->item] && x / 2 <= y && y / 2 <= x;
}

void lade_pack_lanes(lade_packer *packer, const struct keyed *order, int n, uint64_t base)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t mark = packer->arena_used;
  struct lanes lanes = {.heap = lade_pack_take(packer, (size_t)n * sizeof(*lanes.heap))};
  for (int from = 0, to; from < n; from = to) {
    for (to = from + 1; to < n && is_of_run(problem, &order[from], &order[to - 1], &order[to]);)
      to++;
    base = run_lay(packer, &lanes, order + from, to - from, base);
  }
  packer->arena_used = mark;
}
