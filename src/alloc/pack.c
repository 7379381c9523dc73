/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packer's front: checks what it is given, brings it into normal form, asks the rooms behind it in turn.
 *
 * Normal form. Only which items meet in time matters, so time is cut at the maximal sets of items that are
 * live together: going through the ends and starts in order (ends first, lifetimes are half-open), a set is
 * maximal when an end follows a start. There are at most n of them, and they are numbered in order, so an item
 * covers a range of slots and two items meet exactly when their ranges do. Instances lose more than half of
 * their instants this way, and items whose lifetimes differ without a consequence become equal.
 *
 * Lower bound: the most bytes live at once; or, where every offset is a multiple of some granule, the same sum
 * over sizes rounded up to it, less the padding of the one item that may lie on top; or the highest end of a
 * fixed item.
 *
 * Groups: contiguous items become one before anything else sees them (pack_groups.c). Then all are sorted,
 * so that the answer does not depend on how the problem was written down (pack_canonical.c).
 *
 * The rooms: first fit in several orders, repaired by blame (pack_first_fit.c); for small instances an exact search
 * (pack_exact.c) that also proves bounds; for large ones the same for what is hard in them (pack_core.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pack_check.h"
#include "alloc/pack_internal.h"

/* Sums of sizes and offsets below this cannot overflow anywhere in the packer. */
#define BYTES_LIMIT ((uint64_t)1 << 62)

/* Steps between two looks at the clock: well under a millisecond. */
#define WORK_PER_LOOK 300000

/* Of the effort behind the fast pass, for the core and what is around it; of what is left then, for the whole. */
#define CORE_PART 0.5
#define EXACT_PART 0.5

struct endpoint {
  int32_t time;
  int32_t item; /* starts when >= 0; ~item ends */
};

void *lade_pack_take(lade_packer *packer, size_t bytes)
{
  void *p = packer->arena + packer->arena_used;
  packer->arena_used += lade_align_up(bytes, 16);
  LADE_ASSERT(packer->arena_used <= packer->arena_bytes);
  return p;
}

bool lade_pack_spend(struct pack_effort *effort, uint64_t work)
{
  effort->work += work;
  if (effort->work >= effort->work_limit)
    effort->is_spent = true;
  if (effort->deadline_ns && effort->work >= effort->work_at_look) {
    effort->work_at_look = effort->work + WORK_PER_LOOK;
    effort->is_spent |= lade_now_ns() >= effort->deadline_ns;
  }
  return effort->is_spent;
}

bool lade_pack_is_late(const struct pack_effort *effort)
{
  return effort->deadline_ns && lade_now_ns() >= effort->deadline_ns;
}

bool lade_pack_offer(lade_packer *packer)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t peak = 0;
  for (int i = 0; i < problem->n; i++)
    peak = LADE_MAX(peak, packer->offsets[i] + problem->items[i].bytes);
  if (peak < packer->best_bytes) {
    packer->best_bytes = peak;
    memcpy(packer->best, packer->offsets, (size_t)problem->n * sizeof(*packer->best));
  }
  return packer->best_bytes <= packer->target_bytes;
}

static int item_check(const struct lade_pack_item *item, int i, struct lade_error *error)
{
  uint32_t align = item->align ? item->align : 1;
  if (item->lower >= item->upper)
    return lade_error_set(error, -EINVAL, "item %d: lifetime [%" PRId32 ", %" PRId32 ") is empty", i, item->lower,
                          item->upper);
  if (item->bytes == 0)
    return lade_error_set(error, -EINVAL, "item %d: a size of 0 bytes", i);
  if (align & (align - 1))
    return lade_error_set(error, -EINVAL, "item %d: alignment %" PRIu32 " is not a power of two", i, align);
  if (item->fixed < -1)
    return lade_error_set(error, -EINVAL, "item %d: fixed offset %" PRId64 " is negative", i, item->fixed);
  if (item->fixed > 0 && item->fixed & (align - 1))
    return lade_error_set(error, -EINVAL, "item %d: fixed offset %" PRId64 " is not a multiple of %" PRIu32, i,
                          item->fixed, align);
  return 0;
}

static int items_check(const struct lade_pack_item *items, int n, bool *ret_has_groups, struct lade_error *error)
{
  uint64_t sum = 0, highest_fixed = 0;
  bool has_groups = false;
  if (n < 0)
    return lade_error_set(error, -EINVAL, "a negative number of items: %d", n);
  for (int i = 0; i < n; i++) {
    int rc = item_check(&items[i], i, error);
    if (rc)
      return rc;
    if (items[i].bytes >= BYTES_LIMIT || (sum += items[i].bytes + items[i].align) >= BYTES_LIMIT)
      return lade_error_set(error, -EOVERFLOW, "the sizes up to item %d sum past 2^62 bytes", i);
    if (items[i].fixed >= 0)
      highest_fixed = LADE_MAX(highest_fixed, (uint64_t)items[i].fixed);
    has_groups |= items[i].group != 0;
  }
  /* A group's gaps, and its alignment once more; or how far one fixed member can push others up: not above the sum. */
  if ((has_groups ? 2 * sum : sum) + highest_fixed >= BYTES_LIMIT)
    return lade_error_set(error, -EOVERFLOW, "sizes%s and fixed offsets sum past 2^62 bytes",
                          has_groups ? ", twice for groups," : "");
  *ret_has_groups = has_groups;
  return 0;
}

/* The caller's number of the @k-th fixed item. @names: NULL if there are no groups. */
static int fixed_name(const struct lade_pack_item *items, const int32_t *names, int k)
{
  int i = 0;
  while (items[i].fixed < 0 || k-- > 0)
    i++;
  return names ? names[i] : i;
}

/* Fixed items that share bytes and time. Few are expected: they are judged by the checker alone. */
static int fixed_check(const struct lade_pack_item *items, int n, const int32_t *names, struct lade_error *error)
{
  int n_fixed = 0;
  for (int i = 0; i < n; i++)
    n_fixed += items[i].fixed >= 0;
  if (n_fixed < 2)
    return 0;
  struct lade_pack_item *fixed = malloc((size_t)n_fixed * sizeof(*fixed));
  uint64_t *offsets = malloc((size_t)n_fixed * sizeof(*offsets));
  struct lade_pack_overlap overlap = {0};
  int found = fixed && offsets ? 0 : -ENOMEM;
  for (int i = 0, k = 0; i < n && !found; i++)
    if (items[i].fixed >= 0) {
      fixed[k] = items[i];
      offsets[k++] = (uint64_t)items[i].fixed;
    }
  if (!found)
    found = lade_pack_overlap_find(fixed, n_fixed, offsets, &overlap);
  free(offsets);
  free(fixed);
  if (found > 0)
    return lade_error_set(error, -EINVAL,
                          "items %d and %d are fixed where they share bytes while both are live at time %" PRId32,
                          fixed_name(items, names, overlap.first), fixed_name(items, names, overlap.second),
                          overlap.time);
  return found ? lade_error_set(error, found, "no memory to check %d fixed items", n_fixed) : 0;
}

static int endpoint_compare(const void *a, const void *b)
{
  const struct endpoint *x = a, *y = b;
  if (x->time != y->time)
    return x->time < y->time ? -1 : 1;
  bool starts_x = x->item >= 0, starts_y = y->item >= 0;
  return (int)starts_x - (int)starts_y;
}

/*
 * Ends and starts in time's order. Program positions are dense, so they are counted into place; times that are
 * sparse are sorted by comparison.
 */
static void endpoints_sort(lade_packer *packer, struct endpoint *endpoints)
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
    for (int i = 0; i < n; i++) {
      endpoints[2 * i] = (struct endpoint){items[i].lower, i};
      endpoints[2 * i + 1] = (struct endpoint){items[i].upper, ~i};
    }
    qsort(endpoints, 2 * (size_t)n, sizeof(*endpoints), endpoint_compare);
    return;
  }
  size_t mark = packer->arena_used, n_keys = 2 * (size_t)(last - first + 1); /* key: 2 * time + is a start */
  uint32_t *place = lade_pack_take(packer, (n_keys + 1) * sizeof(*place));
  memset(place, 0, (n_keys + 1) * sizeof(*place));
  for (int i = 0; i < n; i++) {
    place[2 * (items[i].lower - first) + 2]++;
    place[2 * (items[i].upper - first) + 1]++;
  }
  for (size_t k = 0; k < n_keys; k++)
    place[k + 1] += place[k];
  for (int i = 0; i < n; i++) {
    endpoints[place[2 * (items[i].lower - first) + 1]++] = (struct endpoint){items[i].lower, i};
    endpoints[place[2 * (items[i].upper - first)]++] = (struct endpoint){items[i].upper, ~i};
  }
  packer->arena_used = mark;
}

/* Slots and their live bytes. Returns the most true (not rounded) bytes live at once. */
static uint64_t slots_cut(struct pack_problem *problem, const struct endpoint *endpoints)
{
  uint64_t live = 0, live_true = 0, peak_true = 0;
  bool is_open = false; /* a start since the last maximal set was closed */
  int n_slots = 0;
  for (int e = 0; e < 2 * problem->n; e++) {
    int32_t i = endpoints[e].item;
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

static void problem_init(lade_packer *packer, const struct lade_pack_item *items, int n)
{
  struct pack_problem *problem = &packer->problem;
  *problem = (struct pack_problem){.n = n, .items = items};
  problem->lo = lade_pack_take(packer, (size_t)n * sizeof(*problem->lo));
  problem->hi = lade_pack_take(packer, (size_t)n * sizeof(*problem->hi));
  problem->bytes = lade_pack_take(packer, (size_t)n * sizeof(*problem->bytes));
  problem->align = lade_pack_take(packer, (size_t)n * sizeof(*problem->align));
  problem->live = lade_pack_take(packer, (size_t)n * sizeof(*problem->live));

  uint64_t align_min = UINT64_MAX, align_max = 1, padding_max = 0, fixed_end = 0;
  for (int i = 0; i < n; i++) {
    problem->align[i] = items[i].align ? items[i].align : 1;
    align_min = LADE_MIN(align_min, problem->align[i]);
    align_max = LADE_MAX(align_max, problem->align[i]);
  }
  problem->has_mixed_align = align_min != align_max;
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
  struct endpoint *endpoints = lade_pack_take(packer, 2 * (size_t)n * sizeof(*endpoints));
  endpoints_sort(packer, endpoints);
  uint64_t bound = slots_cut(problem, endpoints);
  packer->arena_used = mark;
  for (int s = 0; s < problem->n_slots; s++)
    if (problem->live[s] > padding_max)
      bound = LADE_MAX(bound, problem->live[s] - padding_max);
  problem->lower_bound = LADE_MAX(bound, fixed_end);
}

/*
 * The bound of the caller's own problem where what groups keep makes the merged one harder: without the groups, or the
 * longest run. Leaves a problem behind that is to be made anew.
 */
static uint64_t relaxed_bound(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t least_end)
{
  size_t mark = packer->arena_used;
  problem_init(packer, items, n);
  packer->arena_used = mark;
  return LADE_MAX(packer->problem.lower_bound, least_end);
}

/* Room for the problem, the incumbent and the hungriest room's scratch. */
static size_t arena_bytes_needed(int n)
{
  size_t per_item = 2 * (2 * sizeof(int32_t) + 3 * sizeof(uint64_t)) + 2 * sizeof(uint64_t); /* the problem twice */
  size_t sorting = 2 * sizeof(struct endpoint) + 8 * sizeof(uint32_t) + 2 * sizeof(uint32_t);
  return (size_t)n * (per_item + sorting) + lade_pack_canonical_bytes(n) + lade_pack_first_fit_bytes(n) + 1024;
}

static int arena_reserve(lade_packer *packer, size_t bytes)
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

static void effort_init(struct pack_effort *effort, const struct lade_pack_params *params, int n)
{
  *effort = (struct pack_effort){.work_limit = params->work_limit};
  if (params->time_limit_ns > 0)
    effort->deadline_ns = lade_now_ns() + LADE_MIN(params->time_limit_ns, INT64_MAX / 2);
  if (!effort->work_limit && effort->deadline_ns)
    effort->work_limit = UINT64_MAX;
  if (!effort->work_limit)
    effort->work_limit = LADE_PACK_FAST_WORK * (uint64_t)n;
}

void lade_pack_effort_narrow(struct pack_effort *effort, double part, uint64_t work)
{
  uint64_t left = effort->work_limit - effort->work;
  if (effort->work_limit != UINT64_MAX)
    work = LADE_MIN(work, (uint64_t)((double)left * part));
  if (work < left)
    effort->work_limit = effort->work + work;
  if (effort->deadline_ns) {
    int64_t now_ns = lade_now_ns();
    effort->deadline_ns = now_ns + (int64_t)((double)(effort->deadline_ns - now_ns) * part);
  }
}

void lade_pack_effort_widen(struct pack_effort *effort, const struct pack_effort *full)
{
  effort->work_limit = full->work_limit;
  effort->deadline_ns = full->deadline_ns;
  effort->work_at_look = 0;
  effort->is_spent = false;
  lade_pack_spend(effort, 0);
}

/* A first answer, and a queue's. True when the target is met or the effort spent. */
static bool search_fast(lade_packer *packer)
{
  struct pack_effort full = packer->effort;
  const uint64_t fast_work = LADE_PACK_FAST_WORK * (uint64_t)packer->problem.n;
  const bool has_fast_work = !full.deadline_ns && full.work_limit >= fast_work;
  packer->n_orders_least = has_fast_work && lade_pack_first_fit_is_cheap(&packer->problem) ? 2 : 1;
  lade_pack_effort_narrow(&packer->effort, 1, fast_work);
  const bool is_met = lade_pack_first_fit(packer);
  lade_pack_effort_widen(&packer->effort, &full);
  return is_met || packer->effort.is_spent || lade_pack_ring(packer) || packer->effort.is_spent;
}

/* A part of what is left for the exact search; the rest to repair what it left. */
static void search_long(lade_packer *packer)
{
  struct pack_effort full = packer->effort;
  lade_pack_effort_narrow(&packer->effort, EXACT_PART, UINT64_MAX);
  const bool is_met = lade_pack_exact(packer);
  lade_pack_effort_widen(&packer->effort, &full);
  if (!is_met && !packer->effort.is_spent)
    lade_pack_first_fit(packer);
}

static void search(lade_packer *packer)
{
  struct pack_effort full = packer->effort;
  if (search_fast(packer))
    return;
  lade_pack_effort_narrow(&packer->effort, CORE_PART, UINT64_MAX);
  const bool is_met = lade_pack_core(packer);
  lade_pack_effort_widen(&packer->effort, &full);
  if (!is_met && !packer->effort.is_spent)
    search_long(packer);
}

int lade_packer_create(lade_packer **ret_packer)
{
  lade_packer *packer = calloc(1, sizeof(*packer));
  if (!packer)
    return -ENOMEM;
  *ret_packer = packer;
  return 0;
}

void lade_packer_destroy(lade_packer *packer)
{
  if (!packer)
    return;
  free(packer->arena);
  free(packer);
}

/* Where the answer and the passes lie, and no answer yet. */
static void answer_init(lade_packer *packer, uint64_t stop_bytes)
{
  const size_t n = (size_t)packer->problem.n;
  packer->best = lade_pack_take(packer, n * sizeof(*packer->best));
  packer->offsets = lade_pack_take(packer, n * sizeof(*packer->offsets));
  packer->best_bytes = UINT64_MAX;
  packer->n_tried = 0;
  packer->target_bytes = LADE_MAX(packer->problem.lower_bound, stop_bytes);
}

/* Pack @n items into @ret_offsets, as all rooms can. */
static void rooms_ask(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t stop_bytes,
                      uint64_t *ret_offsets)
{
  struct lade_pack_item *seen;
  int32_t *names;
  problem_init(packer, items, n);
  lade_pack_canonical_make(packer, &seen, &names);
  problem_init(packer, seen, n);
  answer_init(packer, stop_bytes);
  search(packer);
  for (int k = 0; k < n; k++)
    ret_offsets[names[k]] = packer->best[k];
}

bool lade_pack_part(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t stop_bytes)
{
  if (arena_reserve(packer, arena_bytes_needed(n)))
    return false;
  problem_init(packer, items, n);
  answer_init(packer, stop_bytes);
  if (!search_fast(packer))
    search_long(packer);
  return true;
}

int lade_packer_pack(lade_packer *packer, const struct lade_pack_item *items, int n_items,
                     const struct lade_pack_params *params, uint64_t *ret_offsets,
                     struct lade_pack_result *ret_result, struct lade_error *error)
{
  struct lade_pack_params own = {.struct_size = sizeof(own)};
  bool has_groups = false;
  int rc = params ? lade_struct_read("lade_pack_params", params, &own, sizeof(own), error) : 0;
  if (!rc)
    rc = items_check(items, n_items, &has_groups, error);
  if (rc)
    return rc;
  if (n_items == 0) {
    *ret_result = (struct lade_pack_result){.is_optimal = true};
    return 0;
  }
  if (arena_reserve(packer, arena_bytes_needed(n_items) + (has_groups ? lade_pack_groups_bytes(n_items) : 0)))
    return lade_error_set(error, -ENOMEM, "no memory to pack %d items", n_items);
  struct pack_groups groups = {.n = n_items, .is_exact = true};
  if (has_groups)
    rc = lade_pack_groups_merge(packer, items, n_items, &groups, error);
  if (rc)
    return rc;

  const struct lade_pack_item *merged = has_groups ? groups.items : items;
  rc = fixed_check(merged, groups.n, groups.names, error);
  if (rc)
    return rc;
  effort_init(&packer->effort, &own, groups.n);
  uint64_t bound = groups.is_exact ? 0 : relaxed_bound(packer, items, n_items, groups.least_end);
  uint64_t *offsets = has_groups ? lade_pack_take(packer, (size_t)groups.n * sizeof(*offsets)) : ret_offsets;
  rooms_ask(packer, merged, groups.n, own.stop_bytes, offsets);
  if (has_groups)
    lade_pack_groups_spread(&groups, n_items, offsets, ret_offsets);
  if (groups.is_exact)
    bound = packer->problem.lower_bound;
  *ret_result = (struct lade_pack_result){
      .peak_bytes = packer->best_bytes,
      .lower_bound_bytes = bound,
      .is_optimal = packer->best_bytes == bound,
  };
  return 0;
}

int lade_pack(const struct lade_pack_item *items, int n_items, const struct lade_pack_params *params,
              uint64_t *ret_offsets, struct lade_pack_result *ret_result, struct lade_error *error)
{
  lade_packer *packer;
  if (lade_packer_create(&packer))
    return lade_error_set(error, -ENOMEM, "no memory for a packer");
  int rc = lade_packer_pack(packer, items, n_items, params, ret_offsets, ret_result, error);
  lade_packer_destroy(packer);
  return rc;
}
