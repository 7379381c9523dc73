/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packer's entry: check the problem, bring it into normal form (pack_problem.c), run the search methods in turn.
 *
 * Groups: the items of a group become one item first (pack_groups.c). Then all items are sorted, so that the answer
 * does not depend on the order in which the problem lists them (pack_canonical.c).
 *
 * Search methods: first fit in several orders, repaired by blame (pack_first_fit.c). For small instances an exact
 * search (pack_exact.c) that also proves bounds. For large ones the exact search of their fullest part (pack_core.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_internal.h"
#include "alloc/pack_check.h"

/* The sum of all sizes and offsets stays below this, so no sum in the packer overflows. */
#define BYTES_LIMIT ((uint64_t)1 << 62)

/* Share of the effort after the fast pass that the core and the items around it get. */
#define CORE_PART 0.5

/* Shares of the effort after the core that the exact search gets in a round, before its result is repaired. */
#define EXACT_SHARE_SHORT 0.8
#define EXACT_SHARE 0.5

/*
 * Steps, for each item, of a first round of all methods if SHORT_TIMES as many are left. Each method takes a share of
 * the limit, so without this round an answer that needs little would come later where more is allowed. The exact search
 * of a whole instance gets enough for a few attempts; a later round goes on with the next ones.
 */
#define SHORT_WORK 20000
#define SHORT_WORK_WHOLE 100000
#define SHORT_TIMES 8

/*
 * Instances of more items, or with more slack as a part of the bound, begin with an order of first fit. It takes a
 * hundredth of an attempt of the exact search among many items, and packs most instances that have slack. The others
 * begin with FIRST_ATTEMPTS attempts, each of another kind; measured.
 */
#define FIRST_ATTEMPT_ITEMS 512
#define FIRST_ATTEMPT_SLACK 0.125
#define FIRST_ATTEMPTS 3

/* Steps of the fast pass, for each item, if a round of all methods follows: one order, always placed. */
#define FIRST_WORK 1

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
  if (n && !items)
    return lade_error_set(error, -EINVAL, "%d items, and the array is NULL", n);
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
  /*
   * Groups can add gaps and one alignment each, at most the sum of sizes once more. A fixed member can push the others
   * of its group up by at most the sum.
   */
  if ((has_groups ? 2 * sum : sum) + highest_fixed >= BYTES_LIMIT)
    return lade_error_set(error, -EOVERFLOW, "sizes%s and fixed offsets sum past 2^62 bytes",
                          has_groups ? ", twice for groups," : "");
  *ret_has_groups = has_groups;
  return 0;
}

/* Return the caller's number of the @k-th fixed item. @names: NULL if there are no groups. */
static int fixed_name(const struct lade_pack_item *items, const int32_t *names, int k)
{
  int i = 0;
  while (items[i].fixed < 0 || k-- > 0)
    i++;
  return names ? names[i] : i;
}

/*
 * Refuse fixed items that share bytes while both are live. The checker runs over the fixed items alone, because few are
 * expected.
 */
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

/*
 * Return a lower bound of the caller's own problem, for groups that make the merged problem harder: the bound without
 * groups, or @min_end, the end of the longest run. Overwrites packer->problem, so the caller must make it again.
 */
static uint64_t relaxed_bound(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t min_end)
{
  size_t mark = packer->arena_used;
  lade_pack_problem_init(packer, items, n);
  packer->arena_used = mark;
  return LADE_MAX(packer->problem.lower_bound, min_end);
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

/* True if the effort left is @work steps or more; a step takes about a nanosecond. */
static bool has_effort(const struct pack_effort *effort, uint64_t work)
{
  return effort->work_limit - effort->work >= work &&
         (!effort->deadline_ns || effort->deadline_ns - lade_now_ns() >= (int64_t)LADE_MIN(work, INT64_MAX));
}

/* Search by all methods after the fast pass, with at most @work steps. True if the target is met. */
static bool round_run(lade_packer *packer, uint64_t work, double exact_part)
{
  const struct pack_effort full = packer->effort;
  lade_pack_effort_narrow(&packer->effort, 1, work);
  const struct pack_effort round = packer->effort;
  lade_pack_effort_narrow(&packer->effort, CORE_PART, UINT64_MAX);
  bool is_met = lade_pack_core(packer);
  lade_pack_effort_widen(&packer->effort, &round);
  if (!is_met && !packer->effort.is_spent)
    is_met = lade_pack_search_long(packer, exact_part);
  lade_pack_effort_widen(&packer->effort, &full);
  return is_met;
}

/* Put all items on each other: the first incumbent, for a search that needs no better one. */
static void items_stack(lade_packer *packer)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t end = 0;
  for (int i = 0; i < problem->n; i++) {
    packer->offsets[i] = end;
    end += problem->bytes[i];
  }
  lade_pack_offer(packer);
}

/*
 * Make the first attempts of the exact search before anything else, because they pack most small instances that fit at
 * all. True if the target is met.
 */
static bool attempts_first(lade_packer *packer)
{
  const struct pack_problem *problem = &packer->problem;
  const bool is_loose = (double)packer->target_bytes > (1 + FIRST_ATTEMPT_SLACK) * (double)problem->lower_bound;
  if (problem->n > FIRST_ATTEMPT_ITEMS || problem->n_fixed || is_loose)
    return false;
  items_stack(packer);
  return packer->best_bytes <= packer->target_bytes || lade_pack_exact(packer, FIRST_ATTEMPTS);
}

static void search(lade_packer *packer)
{
  const bool is_whole = lade_pack_exact_takes(&packer->problem);
  const uint64_t short_work = (is_whole ? SHORT_WORK_WHOLE : SHORT_WORK) * (uint64_t)packer->problem.n;
  const bool has_short_round = has_effort(&packer->effort, SHORT_TIMES * short_work);
  const bool has_first_attempt = has_short_round && is_whole;
  if (has_first_attempt && attempts_first(packer))
    return;
  if (lade_pack_search_fast(packer, has_first_attempt ? FIRST_WORK : LADE_PACK_FAST_WORK))
    return;
  if (has_short_round && round_run(packer, short_work, EXACT_SHARE_SHORT))
    return;
  round_run(packer, UINT64_MAX, EXACT_SHARE);
}

int lade_packer_create(lade_packer **ret_packer)
{
  if (!ret_packer)
    return -EINVAL;
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
  lade_pack_memory_free(packer);
  free(packer);
}

/* Pack @n items into @ret_offsets with all search methods. */
static void rooms_ask(lade_packer *packer, const struct lade_pack_item *items, int n, uint64_t stop_bytes,
                      uint64_t *ret_offsets)
{
  lade_pack_problem_init(packer, items, n);
  const int32_t *names = lade_pack_canonical_make(packer);
  lade_pack_answer_init(packer, stop_bytes);
  search(packer);
  for (int k = 0; k < n; k++)
    ret_offsets[names[k]] = packer->best[k];
}

int lade_packer_pack(lade_packer *packer, const struct lade_pack_item *items, int n_items,
                     const struct lade_pack_params *params, uint64_t *ret_offsets,
                     struct lade_pack_result *ret_result, struct lade_error *error)
{
  if (!packer || !ret_result)
    return lade_error_set(error, -EINVAL, "lade_packer_pack: packer or ret_result is NULL");
  struct lade_pack_params own = {.struct_size = sizeof(own)};
  bool has_groups = false;
  int rc = params ? lade_struct_read("lade_pack_params", params, &own, sizeof(own), error) : 0;
  if (!rc)
    rc = items_check(items, n_items, &has_groups, error);
  if (!rc && n_items && !ret_offsets)
    rc = lade_error_set(error, -EINVAL, "lade_packer_pack: ret_offsets is NULL");
  if (rc)
    return rc;
  if (n_items == 0) {
    *ret_result = (struct lade_pack_result){.is_optimal = true};
    return 0;
  }
  if (lade_pack_arena_reserve(packer,
                              lade_pack_arena_bytes(n_items) + (has_groups ? lade_pack_groups_bytes(n_items) : 0)))
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
  uint64_t bound = groups.is_exact ? 0 : relaxed_bound(packer, items, n_items, groups.min_end);
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
  if (!ret_result)
    return lade_error_set(error, -EINVAL, "lade_pack: ret_result is NULL");
  lade_packer *packer;
  if (lade_packer_create(&packer))
    return lade_error_set(error, -ENOMEM, "no memory for a packer");
  int rc = lade_packer_pack(packer, items, n_items, params, ret_offsets, ret_result, error);
  lade_packer_destroy(packer);
  return rc;
}
