/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core first.
 *
 * Most of a program is far from its peak, and any order packs it. What decides lies in few places: where what ended
 * above the limit meets slots that are nearly full. The items of these slots are the core. Apart from the rest it falls
 * into parts that share no time, each of a few hundred items as a rule, and each is a problem that all rooms can be
 * asked about, the exact search too, where the whole would be far too large. Then the others are placed around the core
 * by first fit. What ends too high now joins the core, with the slots around it that are nearly full, and it is packed
 * again. What counts as nearly full is found out: at first so much that the core is of a size that the exact search has
 * in hand; more of it where the others do not fit around, and less where the core itself is too hard.
 *
 * Items that together are never more than a 4,000th of the bound stay out until they themselves end too high: they fill
 * what is left, and the core has half as many items without them.
 *
 * A bound that is proved for a part of the items is one for all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack_internal.h"

#define ITEMS_LEAST 400   /* up to here the other rooms have the whole in hand */
#define CORE_PART 0.6     /* of the items: a core that is larger is none */
#define DUST_PART 0x1p-12 /* of the bound, at any time */
#define ITEMS_GOOD 400    /* of a core, at first */
/* Of the bound: so much less than it is nearly full. */
#define NEAR_FULL_MOST 0x1p-3
#define NEAR_FULL_LEAST 0x1p-12
#define ROUND_PART 0.3    /* of the effort left is for one round */

struct core {
  bool *is_member;   /* by item */
  uint64_t *offsets; /* of members */
  int32_t *names;    /* members as they begin; the part under way is a stretch of them */
  struct lade_pack_item *items; /* of the part */
  int32_t *hot;      /* by slot: how many slots before it are hot */
  int n;
  uint64_t dust_bytes;  /* what is smaller is left out */
  uint64_t limit_bytes; /* what the core is to stay below */
  double near_full;
  struct lade_packer part; /* packs the part, with an arena of its own */
};

/* The most doubled granule such that smaller items never sum to DUST_PART of the bound. Scratch: @change, by slot. */
static uint64_t dust_find(const struct pack_problem *problem, int64_t *change)
{
  const int64_t most = (int64_t)((double)problem->lower_bound * DUST_PART);
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
      is_less &= (sum += change[s]) <= most;
    if (!is_less)
      break;
  }
  return dust;
}

/* Mark the slots that are hot after a pass that left @offsets: nearly full, and of an item that ended too high. */
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

/* How many items are hot, or ended too high after a pass that left @offsets, and are no members yet. */
static int news_count(struct core *core, const struct pack_problem *problem, const uint64_t *offsets)
{
  int n = 0;
  slots_heat(core, problem, offsets);
  for (int i = 0; i < problem->n; i++)
    n += item_is_new(core, problem, offsets, i);
  return n;
}

/* Take them in. */
static void core_grow(struct core *core, const struct pack_problem *problem, const uint64_t *offsets)
{
  core->n += news_count(core, problem, offsets);
  for (int i = 0; i < problem->n; i++)
    if (item_is_new(core, problem, offsets, i))
      core->is_member[i] = true;
}

/* Members by the slot in which they begin, counted into place; of one slot by number. Scratch: core->hot. */
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

/* Pack the members [from, to), which share no time with others, into core->offsets. False when memory is out. */
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

/* All parts of the core. False: no memory, or it is no better than the incumbent. */
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
  free(core->part.arena);
  free(core->hot);
  free(core->items);
  free(core->names);
  free(core->offsets);
  free(core->is_member);
}

/* No members but fixed items, which what is placed beside them has to know. */
static void core_clear(struct core *core, const struct pack_problem *problem)
{
  core->n = 0;
  for (int i = 0; i < problem->n; i++) {
    core->is_member[i] = problem->items[i].fixed >= 0;
    core->n += core->is_member[i];
  }
}

/* A core of a good size from the incumbent, with no more than @near_full called nearly full. False: there is none. */
static bool core_begin(struct core *core, const lade_packer *packer, double near_full)
{
  const struct pack_problem *problem = &packer->problem;
  core_clear(core, problem);
  core->near_full = near_full;
  core->limit_bytes = packer->target_bytes;
  while (core->near_full > NEAR_FULL_LEAST && news_count(core, problem, packer->best) > ITEMS_GOOD)
    core->near_full /= 2;
  core_grow(core, problem, packer->best);
  return near_full > NEAR_FULL_LEAST;
}

/*
 * Rounds of the core and what is around it. A core that is no better than the incumbent is made anew, smaller; one that
 * others do not fit around grows.
 */
static bool rounds_run(struct core *core, lade_packer *packer)
{
  const int n_most = (int)(packer->problem.n * CORE_PART);
  bool is_core = core_begin(core, packer, NEAR_FULL_MOST);
  while (is_core && !packer->effort.is_spent && core->n <= n_most) {
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
  if (packer->problem.n <= ITEMS_LEAST || packer->best_bytes <= packer->target_bytes)
    return false;
  const bool is_met = core_init(&core, &packer->problem) && rounds_run(&core, packer);
  core_finish(&core);
  return is_met;
}
