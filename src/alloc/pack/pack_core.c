/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core: the hard items are packed first.
 *
 * Most of a program is far from its peak, and any order packs it. The result is decided in few places: where items that
 * ended above the limit meet slots that are nearly full. The items of these slots are the core. Without the other items
 * it falls into parts that share no time. A part usually has a few hundred items, so all search methods can handle it,
 * even the exact search. The whole problem would be far too large. Then first fit places the other items around the
 * core. Items that now end too high join the core, with the slots around them that are nearly full, and the core is
 * packed again. The threshold of "nearly full" is adapted. At first it gives a core of a size that the exact search can
 * handle. It includes more slots if the others do not fit around the core, and fewer if the core itself is too hard.
 *
 * Items that together are never more than a 4,000th of the bound stay out until they themselves end too high. They fill
 * the free space, and the core has half as many items without them.
 *
 * A bound that is proved for a part of the items holds for all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_internal.h"

#define ITEMS_MIN 400     /* smaller problems need no core: the other methods handle the whole */
#define CORE_PART 0.6     /* of all items: a larger core is given up */
#define DUST_PART 0x1p-12 /* of the bound: most bytes live at once of the items left out */
#define ITEMS_GOOD 400    /* of a core, at first */
/* A slot is nearly full if its free bytes are at most this part of the bound. */
#define NEAR_FULL_MAX 0x1p-3
#define NEAR_FULL_MIN 0x1p-12
#define ROUND_PART 0.3    /* of the effort left: the limit of one round */

struct core {
  bool *is_member;   /* by item */
  uint64_t *offsets; /* of members */
  int32_t *names;    /* members in the order in which they begin; the current part is a range of them */
  struct lade_pack_item *items; /* of the current part */
  int32_t *hot;      /* by slot: number of hot slots before it */
  int n;
  uint64_t dust_bytes;  /* items of at most this size are left out */
  uint64_t limit_bytes; /* limit for the core's peak */
  double near_full;
  struct lade_packer part; /* packs the current part, with its own arena */
};

/*
 * Return the largest granule times a power of two such that smaller items never sum to DUST_PART of the bound. @change
 * is scratch, by slot.
 */
static uint64_t dust_find(const struct pack_problem *problem, int64_t *change)
{
  const int64_t max = (int64_t)((double)problem->lower_bound * DUST_PART);
  uint64_t dust = problem->granule;
  for (bool is_less = true; is_less && dust < problem->lower_bound; dust *= 2) {
    int64_t sum = 0;
    memset(change, 0, ((size_t)problem->n_slots + 1) * sizeof(*change));
    for (int i = 0; i < problem->n; i++)
      if (problem->bytes[i] < 2 * dust) {
        change[problem->lo[i]] += (int64_t)problem->bytes[i];
        change[problem->hi[i]] -= (int64_t)problem->bytes[i];
      }
    for (int s = 0; s < problem->n_slots; s++)
      is_less &= (sum += change[s]) <= max;
    if (!is_less)
      break;
  }
  return dust;
}

/* Mark the slots that are hot after a pass with @offsets: nearly full, and covered by an item that ended too high. */
static void slots_heat(struct core *core, const struct pack_problem *problem, const uint64_t *offsets)
{
  const double full = (double)problem->lower_bound * (1 - core->near_full);
  int32_t high = 0, hot = 0;
  memset(core->hot, 0, ((size_t)problem->n_slots + 1) * sizeof(*core->hot));
  for (int i = 0; i < problem->n; i++)
    if (offsets[i] + problem->items[i].bytes > core->limit_bytes) {
      core->hot[problem->lo[i]]++;
      core->hot[problem->hi[i]]--;
    }
  for (int s = 0; s <= problem->n_slots; s++) {
    high += core->hot[s];
    core->hot[s] = hot;
    hot += s < problem->n_slots && high > 0 && (double)problem->live[s] >= full;
  }
}

static bool item_is_new(const struct core *core, const struct pack_problem *problem, const uint64_t *offsets, int i)
{
  const bool is_hot = core->hot[problem->hi[i]] > core->hot[problem->lo[i]] && problem->bytes[i] > core->dust_bytes;
  return !core->is_member[i] && (is_hot || offsets[i] + problem->items[i].bytes > core->limit_bytes);
}

/* Count the items that are hot or ended too high after a pass with @offsets, and are not members yet. */
static int news_count(struct core *core, const struct pack_problem *problem, const uint64_t *offsets)
{
  int n = 0;
  slots_heat(core, problem, offsets);
  for (int i = 0; i < problem->n; i++)
    n += item_is_new(core, problem, offsets, i);
  return n;
}

/* Add the items that news_count counts. */
static void core_grow(struct core *core, const struct pack_problem *problem, const uint64_t *offsets)
{
  core->n += news_count(core, problem, offsets);
  for (int i = 0; i < problem->n; i++)
    if (item_is_new(core, problem, offsets, i))
      core->is_member[i] = true;
}

/* Sort the members by the slot in which they begin, then by number, by counting. Scratch: core->hot. */
static void members_sort(struct core *core, const struct pack_problem *problem)
{
  int32_t *place = core->hot;
  memset(place, 0, ((size_t)problem->n_slots + 1) * sizeof(*place));
  for (int i = 0; i < problem->n; i++)
    if (core->is_member[i])
      place[problem->lo[i] + 1]++;
  for (int s = 0; s < problem->n_slots; s++)
    place[s + 1] += place[s];
  for (int32_t i = 0; i < problem->n; i++)
    if (core->is_member[i])
      core->names[place[problem->lo[i]]++] = i;
}

/*
 * Pack the members [from, to) into core->offsets. False without memory.
 *
 * pre: they share no time with other members.
 */
static bool part_pack(struct core *core, lade_packer *packer, int from, int to)
{
  const struct pack_problem *problem = &packer->problem;
  struct lade_packer *part = &core->part;
  const struct pack_effort full = packer->effort;
  for (int k = from; k < to; k++) {
    const int32_t i = core->names[k];
    core->items[k - from] = problem->items[i];
    core->items[k - from].lower = problem->lo[i];
    core->items[k - from].upper = problem->hi[i];
  }
  lade_pack_effort_narrow(&packer->effort, ROUND_PART * (to - from) / core->n, UINT64_MAX);
  part->effort = packer->effort;
  const bool is_packed = lade_pack_part(part, core->items, to - from, core->limit_bytes);
  packer->effort = part->effort;
  lade_pack_effort_widen(&packer->effort, &full);
  for (int k = from; k < to && is_packed; k++)
    core->offsets[core->names[k]] = part->best[k - from];
  return is_packed;
}

/* Pack all parts of the core. False without memory, or if the core is no better than the incumbent. */
static bool core_pack(struct core *core, lade_packer *packer)
{
  struct pack_problem *problem = &packer->problem;
  bool is_better = true;
  members_sort(core, problem);
  for (int from = 0, to; from < core->n && is_better && !packer->effort.is_spent; from = to) {
    int32_t end = problem->hi[core->names[from]];
    for (to = from + 1; to < core->n && problem->lo[core->names[to]] < end; to++)
      end = LADE_MAX(end, problem->hi[core->names[to]]);
    is_better = part_pack(core, packer, from, to) && core->part.best_bytes < packer->best_bytes;
    if (is_better)
      core->limit_bytes = LADE_MAX(core->limit_bytes, core->part.best_bytes);
    problem->lower_bound = LADE_MAX(problem->lower_bound, core->part.problem.lower_bound);
  }
  packer->target_bytes = LADE_MAX(packer->target_bytes, problem->lower_bound);
  return is_better;
}

static bool core_init(struct core *core, const struct pack_problem *problem)
{
  const size_t n = (size_t)problem->n, n_slots = (size_t)problem->n_slots + 1;
  *core = (struct core){
      .is_member = calloc(n, sizeof(*core->is_member)),
      .offsets = calloc(n, sizeof(*core->offsets)),
      .names = malloc(n * sizeof(*core->names)),
      .items = malloc(n * sizeof(*core->items)),
      .hot = malloc(n_slots * sizeof(*core->hot)),
  };
  int64_t *change = malloc(n_slots * sizeof(*change));
  const bool is_made = core->is_member && core->offsets && core->names && core->items && core->hot && change;
  if (is_made)
    core->dust_bytes = dust_find(problem, change);
  free(change);
  return is_made;
}

static void core_finish(struct core *core)
{
  lade_pack_memory_free(&core->part);
  free(core->hot);
  free(core->items);
  free(core->names);
  free(core->offsets);
  free(core->is_member);
}

/* Remove all members except fixed items, which must stay because other items are placed around them. */
static void core_clear(struct core *core, const struct pack_problem *problem)
{
  core->n = 0;
  for (int i = 0; i < problem->n; i++) {
    core->is_member[i] = problem->items[i].fixed >= 0;
    core->n += core->is_member[i];
  }
}

/*
 * Make a core of about ITEMS_GOOD items from the incumbent, with a threshold of at most @near_full. False if @near_full
 * is too small.
 */
static bool core_begin(struct core *core, const lade_packer *packer, double near_full)
{
  const struct pack_problem *problem = &packer->problem;
  core_clear(core, problem);
  core->near_full = near_full;
  core->limit_bytes = packer->target_bytes;
  while (core->near_full > NEAR_FULL_MIN && news_count(core, problem, packer->best) > ITEMS_GOOD)
    core->near_full /= 2;
  core_grow(core, problem, packer->best);
  return near_full > NEAR_FULL_MIN;
}

/*
 * Run rounds of packing the core and the items around it. A core that is no better than the incumbent is replaced by a
 * smaller one. A core that the others do not fit around grows.
 */
static bool rounds_run(struct core *core, lade_packer *packer)
{
  const int n_max = (int)(packer->problem.n * CORE_PART);
  bool is_core = core_begin(core, packer, NEAR_FULL_MAX);
  while (is_core && !packer->effort.is_spent && core->n <= n_max) {
    const uint64_t before_bytes = packer->best_bytes;
    core->limit_bytes = packer->target_bytes;
    if (!core_pack(core, packer)) {
      is_core = core_begin(core, packer, core->near_full / 4);
      continue;
    }
    if (!lade_pack_around(packer, core->is_member, core->offsets))
      return false;
    if (lade_pack_offer(packer))
      return true;
    if (packer->best_bytes == before_bytes)
      core->near_full *= 2;
    core_grow(core, &packer->problem, packer->offsets);
  }
  return false;
}

bool lade_pack_core(lade_packer *packer)
{
  struct core core;
  if (packer->problem.n <= ITEMS_MIN || packer->best_bytes <= packer->target_bytes)
    return false;
  const bool is_met = core_init(&core, &packer->problem) && rounds_run(&core, packer);
  core_finish(&core);
  return is_met;
}
