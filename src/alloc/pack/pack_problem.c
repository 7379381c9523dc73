/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The problem in normal form, and the searches that every part of a problem gets.
 *
 * Normal form. Only which items meet in time matters, so time is cut at the maximal sets of items that are
 * live together: going through the ends and starts in order (ends first, lifetimes are half-open), a set is
 * maximal when an end follows a start. There are at most n of them, numbered in order. So an item covers a range of
 * slots, and two items meet exactly when their ranges do. Instances lose more than half of their instants this way, and
 * items whose lifetimes differ without a consequence become equal.
 *
 * Lower bound: the most bytes live at once; or, where every offset is a multiple of some granule, the same sum
 * over sizes rounded up to it, less the padding of the one item that may lie on top; or the highest end of a
 * fixed item.
 *
 * A part of a problem gets first fit and the exact search, but never the core (pack_core.c), which is itself made of
 * such parts.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_internal.h"

/* Share of a part's effort that the exact search gets, before its result is repaired. */
#define PART_EXACT_SHARE 0.5

/*
 * Sort the ends and starts by time, an end of an item as ~item. Program positions are dense, so they are sorted by
 * counting; sparse times are sorted by comparison.
 */
static void endpoints_sort(lade_packer *packer, int32_t *endpoints)
{
  const struct pack_problem *problem = &packer->problem;
  const struct lade_pack_item *items = problem->items;
  int n = problem->n;
  int64_t first = INT32_MAX, last = INT32_MIN;
  for (int i = 0; i < n; i++) {
    first = LADE_MIN(first, items[i].lower);
    last = LADE_MAX(last, items[i].upper);
  }
  if (last <= first || last - first >= 4 * (int64_t)n) {
    const size_t mark = packer->arena_used;
    struct keyed *keyed = lade_pack_take(packer, 2 * (size_t)n * sizeof(*keyed));
    for (int i = 0; i < n; i++) {
      keyed[2 * i] = (struct keyed){-2.0 * items[i].lower - 1, i};
      keyed[2 * i + 1] = (struct keyed){-2.0 * items[i].upper, ~i};
    }
    lade_pack_sort(keyed, 2 * n, lade_pack_take(packer, 2 * (size_t)n * sizeof(*keyed)));
    for (int e = 0; e < 2 * n; e++)
      endpoints[e] = keyed[e].item;
    packer->arena_used = mark;
    return;
  }
  size_t mark = packer->arena_used, n_keys = 2 * (size_t)(last - first + 1); /* key: 2 * time, + 1 for a start */
  uint32_t *place = lade_pack_take(packer, (n_keys + 1) * sizeof(*place));
  memset(place, 0, (n_keys + 1) * sizeof(*place));
  for (int i = 0; i < n; i++) {
    place[2 * (items[i].lower - first) + 2]++;
    place[2 * (items[i].upper - first) + 1]++;
  }
  for (size_t k = 0; k < n_keys; k++)
    place[k + 1] += place[k];
  for (int i = 0; i < n; i++) {
    endpoints[place[2 * (items[i].lower - first) + 1]++] = i;
    endpoints[place[2 * (items[i].upper - first)]++] = ~i;
  }
  packer->arena_used = mark;
}

/* Number the slots and sum their live bytes. Return the most true (not rounded) bytes live at once. */
static uint64_t slots_cut(struct pack_problem *problem, const int32_t *endpoints)
{
  uint64_t live = 0, live_true = 0, peak_true = 0;
  bool is_open = false; /* a start came since the last maximal set was closed */
  int n_slots = 0;
  for (int e = 0; e < 2 * problem->n; e++) {
    const int32_t i = endpoints[e];
    if (i >= 0) {
      problem->lo[i] = n_slots;
      live += problem->bytes[i];
      live_true += problem->items[i].bytes;
      peak_true = LADE_MAX(peak_true, live_true);
      is_open = true;
      continue;
    }
    if (is_open)
      problem->live[n_slots++] = live;
    is_open = false;
    problem->hi[~i] = n_slots;
    live -= problem->bytes[~i];
    live_true -= problem->items[~i].bytes;
  }
  problem->n_slots = n_slots;
  return peak_true;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
  while (b) {
    uint64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

void lade_pack_problem_init(lade_packer *packer, const struct lade_pack_item *items, int n)
{
  struct pack_problem *problem = &packer->problem;
  *problem = (struct pack_problem){.n = n, .items = items};
  problem->lo = lade_pack_take(packer, (size_t)n * sizeof(*problem->lo));
  problem->hi = lade_pack_take(packer, (size_t)n * sizeof(*problem->hi));
  problem->bytes = lade_pack_take(packer, (size_t)n * sizeof(*problem->bytes));
  problem->align = lade_pack_take(packer, (size_t)n * sizeof(*problem->align));
  problem->live = lade_pack_take(packer, (size_t)n * sizeof(*problem->live));
  problem->length = lade_pack_take(packer, (size_t)n * sizeof(*problem->length));

  uint64_t align_min = UINT64_MAX, align_max = 1, padding_max = 0, fixed_end = 0;
  for (int i = 0; i < n; i++) {
    problem->align[i] = items[i].align ? items[i].align : 1;
    problem->length[i] = (uint32_t)((int64_t)items[i].upper - items[i].lower);
    align_min = LADE_MIN(align_min, problem->align[i]);
    align_max = LADE_MAX(align_max, problem->align[i]);
  }
  problem->has_mixed_align = align_min != align_max;
  problem->align_min = align_min;
  for (int i = 0; i < n; i++) {
    problem->bytes[i] = lade_align_up(items[i].bytes, align_min);
    padding_max = LADE_MAX(padding_max, problem->bytes[i] - items[i].bytes);
    problem->granule = gcd(problem->granule, problem->bytes[i]);
    if (items[i].fixed >= 0) {
      problem->n_fixed++;
      problem->granule = gcd(problem->granule, (uint64_t)items[i].fixed);
      fixed_end = LADE_MAX(fixed_end, (uint64_t)items[i].fixed + items[i].bytes);
    }
  }
  problem->has_padding = padding_max > 0;
  size_t mark = packer->arena_used;
  int32_t *endpoints = lade_pack_take(packer, 2 * (size_t)n * sizeof(*endpoints));
  endpoints_sort(packer, endpoints);
  uint64_t bound = slots_cut(problem, endpoints);
  packer->arena_used = mark;
  for (int s = 0; s < problem->n_slots; s++)
    if (problem->live[s] > padding_max)
      bound = LADE_MAX(bound, problem->live[s] - padding_max);
  problem->lower_bound = LADE_MAX(bound, fixed_end);
}

/* Return the arena bytes for the problem, the incumbent and the largest scratch of a search method. */
size_t lade_pack_arena_bytes(int n)
{
  size_t per_item = 3 * sizeof(int32_t) + 3 * sizeof(uint64_t) + 2 * sizeof(uint64_t);
  size_t sorting = 2 * sizeof(int32_t) + 4 * sizeof(struct keyed);
  return (size_t)n * (per_item + sorting) + lade_pack_canonical_bytes(n) +
         LADE_MAX(lade_pack_first_fit_bytes(n), lade_pack_exact_bytes(n)) + 1024;
}

void lade_pack_memory_free(lade_packer *packer)
{
  LADE_ARRAY_FREE(&packer->trail);
  LADE_ARRAY_FREE(&packer->slot_items);
  LADE_ARRAY_FREE(&packer->choices);
  free(packer->arena);
}

int lade_pack_arena_reserve(lade_packer *packer, size_t bytes)
{
  packer->arena_used = 0;
  if (bytes <= packer->arena_bytes)
    return 0;
  free(packer->arena);
  packer->arena_bytes = 0;
  packer->arena = malloc(bytes + bytes / 2);
  if (!packer->arena)
    return -ENOMEM;
  packer->arena_bytes = bytes + bytes / 2;
  return 0;
}

bool lade_pack_search_fast(lade_packer *packer, uint64_t item_work)
{
  struct pack_effort full = packer->effort;
  const uint64_t fast_work = item_work * (uint64_t)packer->problem.n;
  const bool has_fast_work = !full.deadline_ns && full.work_limit >= fast_work;
  packer->n_orders_min = has_fast_work && lade_pack_first_fit_is_cheap(&packer->problem) ? 2 : 1;
  lade_pack_effort_narrow(&packer->effort, 1, fast_work);
  const bool is_met = lade_pack_first_fit(packer);
  lade_pack_effort_widen(&packer->effort, &full);
  return is_met || packer->effort.is_spent || lade_pack_ring(packer) || packer->effort.is_spent;
}

bool lade_pack_search_long(lade_packer *packer, double exact_part)
{
  struct pack_effort full = packer->effort;
  lade_pack_effort_narrow(&packer->effort, exact_part, UINT64_MAX);
  bool is_met = lade_pack_exact(packer, INT_MAX);
  lade_pack_effort_widen(&packer->effort, &full);
  if (!is_met && !packer->effort.is_spent)
    is_met = lade_pack_first_fit(packer);
  return is_met;
}

/* Allocate the offsets of the incumbent and of the passes; there is no incumbent yet. */
void lade_pack_answer_init(lade_packer *packer, uint64_t stop_bytes)
{
  const size_t n = (size_t)packer->problem.n;
  packer->best = lade_pack_take(packer, n * sizeof(*packer->best));
  packer->offsets = lade_pack_take(packer, n * sizeof(*packer->offsets));
  packer->best_bytes = UINT64_MAX;
  packer->n_tried = 0;
  packer->attempts = (struct pack_attempts){.n_seen = 0};
  packer->target_bytes = LADE_MAX(packer->problem.lower_bound, stop_bytes);
}

bool lade_pack_part(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t stop_bytes)
{
  if (lade_pack_arena_reserve(packer, lade_pack_arena_bytes(n)))
    return false;
  lade_pack_problem_init(packer, items, n);
  lade_pack_answer_init(packer, stop_bytes);
  if (!lade_pack_search_fast(packer, LADE_PACK_FAST_WORK))
    lade_pack_search_long(packer, PART_EXACT_SHARE);
  return true;
}
