/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact search: is there a packing within a capacity?
 *
 * Any packing can be pushed down until every item rests on offset 0 or on another item. So only such packings are
 * searched, and they are built from the bottom. Each slot has a floor, and no unplaced item lies below it. A maximal
 * run of slots of equal floor between higher walls is a valley. An item that touches the floor of a valley at one of
 * its two corner slots lies inside the valley. So a corner has few choices: one of the items that start (or end)
 * exactly there and fit between the walls, or a gap. A gap raises the corner's floor to the lowest offset at which the
 * next item can start. Inference follows each choice (pack_bounds.c, pack_joints.c). Every valley is a valid place to
 * decide next, so the search takes the corner with the fewest choices, or the lowest one; a corner with one choice
 * needs no branching. This corner view, instead of placing any item anywhere, makes instances without slack easy.
 *
 * If no unplaced item crosses from one slot to the next, the two sides are solved one after the other. A failure on one
 * side does not cause a retry of the other. Items with the same lifetime that lie directly on each other are tried in
 * one order only. Of equal items only one is tried at a corner.
 *
 * A bad early choice can cost unbounded time, while another preference finds a solution with hardly a step back. So
 * attempts begin short. Five preferences among items times three among corners are each tried with a small limit of
 * choices taken back, unlike kinds first. They are then tried again with random noise and a growing limit. One corner
 * rule takes the lowest corner and one takes the corner with the fewest choices. The third weighs these against the
 * number of failed inferences at the slot in all attempts of the call. Slots that fail often are better decided early
 * (Boussemart and others' weighted degrees, 2004). An attempt that ends without meeting its limit proves that no
 * packing fits, and the lower bound rises. In one of every two cycles a kind assumes a shape of the free bytes
 * (pack_fillers.c). A failure of such an attempt proves nothing.
 *
 * Half of the effort goes to the search by rising offsets (pack_rising.c), which decides otherwise and costs a tenth
 * for each node. It comes first unless the items fill the capacity in each slot.
 *
 * A quarter of the rest goes to soft attempts, for targets that are out of reach or too hard. They start at the
 * target's capacity too. At a dead end, once their patience with steps back is over, the capacity grows by the bytes
 * that inference lacked. They go on from the current node. Inferences made for less capacity stay as a preference, so
 * the packing stays tight except where that failed. Such an attempt always ends, at a packing or at the incumbent.
 * Rejected: hard attempts at capacities between target and incumbent. Free bytes make a gap a choice at every corner,
 * so they fail as they do at the target.
 *
 * The search handles one alignment, up to ITEMS_MAX items, and fixed items only if they stand on each other from offset
 * 0 up. Recursion takes at most 2 MB of stack (DEPTH_MAX). Related ideas are in MiniMalloc (canonical solutions,
 * sections; Moffitt 2023) and in the bottom-left corner search of perfect rectangle packing.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_exact.h"

#define ITEMS_MAX 2048
#define SLOT_ITEMS_MAX (1 << 21)
#define DEPTH_MAX 8192
#define CAPACITY_MAX (INT64_MAX / 4)
/*
 * Choices per item that one of the first attempts may take back: one descent with little repair. Choices that stand are
 * not limited, because slack makes a choice of each gap. Where solutions are rare, most attempts fail however long they
 * go on, so many kinds are tried before any of them costs much; measured.
 */
#define UNDONE_PER_ITEM 0.4
/* Items for each filler, at least. Free space of more fillers has no simple shape, and such attempts fail; measured. */
#define ITEMS_PER_FILLER 4
/* Effort of hard attempts for each unit of soft ones; measured. */
#define HARD_PER_SOFT 3
/* Most by which the number of an item varies, as a part of it, in attempts that would repeat earlier ones. */
#define NOISE 0.3
/* Steps of a growing capacity from the target to the incumbent. */
#define STEPS 256

/* Where no byte is free, attempts by rising offsets begin after so many hard ones; measured. */
#define HARD_BEFORE_RISING 6

/* Soft attempts begin after so many hard ones, most of which meet the target where it can be met. */
#define HARD_BEFORE_SOFT 10

enum { PREFER_AREA, PREFER_LENGTH, PREFER_BYTES, PREFER_TIGHT_AREA, PREFER_TIGHT_LENGTH, N_PREFERENCES };
enum { CORNER_FEWEST, CORNER_LOWEST, CORNER_WEIGHTED, N_CORNER_RULES };
#define N_KINDS (N_PREFERENCES * N_CORNER_RULES + 1) /* one with and without fillers */

/*
 * Kinds of attempts, in the order in which they are made; measured on drawn jigsaws. In every second cycle fillers take
 * part where they do not in the first.
 */
static const struct attempt_kind {
  int preference, corner_rule;
  bool is_filled;
} attempt_kinds[N_KINDS] = {
    {PREFER_LENGTH, CORNER_LOWEST, false},
    {PREFER_TIGHT_LENGTH, CORNER_FEWEST, true},
    {PREFER_AREA, CORNER_FEWEST, false},
    {PREFER_AREA, CORNER_LOWEST, false},
    {PREFER_LENGTH, CORNER_FEWEST, false},
    {PREFER_TIGHT_AREA, CORNER_WEIGHTED, false},
    {PREFER_BYTES, CORNER_FEWEST, false},
    {PREFER_LENGTH, CORNER_WEIGHTED, false},
    {PREFER_TIGHT_AREA, CORNER_FEWEST, true},
    {PREFER_TIGHT_LENGTH, CORNER_WEIGHTED, false},
    {PREFER_TIGHT_AREA, CORNER_WEIGHTED, true},
    {PREFER_TIGHT_LENGTH, CORNER_LOWEST, false},
    {PREFER_AREA, CORNER_WEIGHTED, true},
    {PREFER_TIGHT_AREA, CORNER_LOWEST, false},
    {PREFER_BYTES, CORNER_LOWEST, false},
    {PREFER_BYTES, CORNER_WEIGHTED, true},
};

struct exact {
  struct pack_pile pile;
  struct pack_effort *effort;
  int32_t *original;    /* by item of the pile: its number among the candidates */
  /* Candidates for the pile: the problem's items, then fillers; sizes in granules. */
  struct pack_candidate *candidates;
  struct keyed *ranks; /* items with their preference, and as much scratch */
  struct pack_numbers choices; /* of all open nodes */
  uint64_t n_nodes, n_undone, undone_limit; /* nodes, and choices taken back, of this attempt */
  uint64_t random_state;
  double noise;
  int preference, corner_rule, depth;
  int64_t capacity_min; /* no packing fits into less */
  /* Soft attempts: nodes of steps back before the capacity grows, its least growth, and its maximum. */
  uint64_t patience, n_nodes_patient;
  int64_t capacity_step, capacity_max;
  bool is_filled;  /* fillers are among the items, so a failure proves nothing */
  bool is_aborted; /* a limit was met, so a failure proves nothing */
};

/* The choices at one slot. */
struct corner {
  int32_t slot, n_choices;
  int64_t slack; /* bytes that the slot may waste */
  bool has_gap;  /* a gap is possible */
};

/* True if the item directly below @j has the same lifetime and a higher number. Then only the other order is tried. */
static bool item_is_out_of_order(const struct pack_pile *pile, int j)
{
  const int below = pile->top[pile->lo[j]];
  return below > j && pile->hi[below] == pile->hi[j] &&
         pile->offset[below] + pile->bytes[below] == pile->lowest[j];
}

/*
 * True if an unplaced equal item with a smaller number can lie as low. Equal items have neighbouring numbers, because
 * their preference is equal.
 */
static bool item_has_twin(const struct pack_pile *pile, int j)
{
  for (int k = j - 1; k >= 0 && pile->lo[k] == pile->lo[j] && pile->hi[k] == pile->hi[j] &&
                      pile->bytes[k] == pile->bytes[j]; k--)
    if (pile->lowest[k] == pile->lowest[j])
      return true;
  return false;
}

static bool item_is_choice(const struct pack_pile *pile, int j, int s)
{
  return pile->lowest[j] == pile->floor[s] && !item_is_out_of_order(pile, j) && !item_has_twin(pile, j);
}

static struct corner corner_get(struct pack_pile *pile, int s)
{
  struct corner corner = {.slot = s};
  corner.slack = pile->capacity - pile->floor[s] - pile->rest[s];
  const int32_t *items = pile->slot_items.items + pile->slot_start[s];
  for (int a = 0; a < pile->n_open[s]; a++)
    corner.n_choices += item_is_choice(pile, items[a], s);
  const int64_t floor_max = pile->capacity - pile->rest[s];
  corner.has_gap = corner.slack > 0 && lade_pack_pile_next_floor(pile, s, floor_max) <= floor_max;
  pile->work += 2 * (uint64_t)pile->n_open[s];
  return corner;
}

/* Return the corner's score; the corner with the smallest score is decided first. */
static double corner_score(const struct exact *exact, const struct corner *corner)
{
  const struct pack_pile *pile = &exact->pile;
  const double n = corner->n_choices + corner->has_gap;
  if (exact->corner_rule == CORNER_LOWEST)
    return (double)pile->floor[corner->slot] + n / (pile->n + 1.0);
  const double score = n + (double)corner->slack / ((double)pile->capacity + 1.0);
  return exact->corner_rule == CORNER_WEIGHTED ? score / (1.0 + pile->weight[corner->slot]) : score;
}

/*
 * True if no corner at slot @s can score below @score, so its choices need no count. Only the rule of the lowest corner
 * knows this before it counts: a score is at least the floor.
 */
static bool corner_is_worse(const struct exact *exact, int s, double score)
{
  return exact->corner_rule == CORNER_LOWEST && (double)exact->pile.floor[s] >= score;
}

/* Return the corner to decide next among the valleys of [a, b). Slot -1: all items are placed. */
static struct corner corner_find(struct exact *exact, int a, int b)
{
  struct pack_pile *pile = &exact->pile;
  const int64_t *floor = pile->floor;
  struct corner best = {.slot = -1};
  double best_score = 0;
  for (int l = a, r; l < b; l = r) {
    for (r = l + 1; r < b && floor[r] == floor[l];)
      r++;
    bool has_walls = (l == a || floor[l - 1] > floor[l]) && (r == b || floor[r] > floor[l]);
    bool is_valley = has_walls && floor[l] < LADE_PACK_DONE;
    for (int s = l; is_valley && s < r; s += LADE_MAX(r - 1 - l, 1)) {
      if (best.slot >= 0 && corner_is_worse(exact, s, best_score))
        continue;
      struct corner corner = corner_get(pile, s);
      if (!pile->is_soft && corner.n_choices + corner.has_gap == 0)
        return corner; /* a dead end; a soft attempt looks for the one that lacks least */
      double score = corner_score(exact, &corner);
      if (best.slot < 0 || score < best_score) {
        best = corner;
        best_score = score;
      }
    }
  }
  return best;
}

/* Push the items to try at the corner, preferred ones first (small numbers, apart from the noise). */
static bool choices_push(struct exact *exact, const struct corner *corner)
{
  const struct pack_pile *pile = &exact->pile;
  int n = 0, s = corner->slot;
  const int32_t *items = pile->slot_items.items + pile->slot_start[s];
  for (int a = 0; a < pile->n_open[s]; a++) {
    const int32_t j = items[a];
    if (!item_is_choice(pile, j, s))
      continue;
    double noise = exact->noise > 0 ? exact->noise * lade_pack_random(&exact->random_state) : 0;
    exact->ranks[n++] = (struct keyed){-j * (1 + noise), j};
  }
  LADE_ASSERT(n == corner->n_choices);
  lade_pack_sort(exact->ranks, n, exact->ranks + n);
  for (int k = 0; k < n; k++)
    if (!LADE_PUSH(&exact->choices, exact->ranks[k].item))
      return false;
  return true;
}

/* Count the node. False, and the attempt is over, if a limit is met. */
static bool node_enter(struct exact *exact)
{
  uint64_t work = exact->pile.work + 100;
  exact->pile.work = 0;
  exact->n_nodes++;
  if (lade_pack_spend(exact->effort, work) || exact->n_undone > exact->undone_limit || exact->depth > DEPTH_MAX ||
      exact->pile.is_out_of_memory)
    exact->is_aborted = true;
  return !exact->is_aborted;
}

static bool range_solve(struct exact *exact, int a, int b);

/*
 * Try the corner's choices, items before the gap. *ret_lack is about the additional capacity at which one of them
 * succeeds.
 */
static bool choices_try(struct exact *exact, int a, int b, const struct corner *corner, int64_t *ret_lack)
{
  struct pack_pile *pile = &exact->pile;
  const int mark = pile->trail.n, first = exact->choices.n, n_choices = corner->n_choices + corner->has_gap;
  bool is_solved = false;
  int64_t next_floor = INT64_MAX; /* above the gap */
  if (pile->is_soft || corner->has_gap)
    next_floor = lade_pack_pile_next_floor(pile, corner->slot, INT64_MIN);
  *ret_lack = corner->has_gap ? INT64_MAX : next_floor - (pile->capacity - pile->rest[corner->slot]);
  if (!choices_push(exact, corner))
    exact->is_aborted = true;
  for (int k = 0; k < n_choices && !is_solved && !exact->is_aborted; k++) {
    const bool is_possible = k < corner->n_choices ? lade_pack_pile_place(pile, exact->choices.items[first + k])
                                                   : lade_pack_pile_raise(pile, corner->slot, next_floor);
    is_solved = is_possible && range_solve(exact, a, b);
    if (!is_solved) {
      *ret_lack = LADE_MIN(*ret_lack, pile->lack);
      exact->n_undone++;
      if (!exact->is_aborted) /* else the attempt is over, and the next one resets the pile */
        lade_pack_pile_undo(pile, mark);
    }
    exact->is_aborted |= pile->is_out_of_memory; /* the trail has holes, so not every change was undone */
  }
  exact->choices.n = first;
  return is_solved;
}

/* Grow the capacity at a dead end of a soft attempt, once the patience is over. True if the search can go on. */
static bool capacity_grow(struct exact *exact, int64_t lack)
{
  struct pack_pile *pile = &exact->pile;
  if (!pile->is_soft || exact->is_aborted || exact->n_nodes < exact->n_nodes_patient)
    return false;
  pile->capacity += LADE_MAX(LADE_MIN(lack, exact->capacity_max), exact->capacity_step);
  exact->is_aborted = pile->capacity > exact->capacity_max;
  exact->n_nodes_patient = exact->n_nodes + exact->patience;
  return !exact->is_aborted;
}

/* Decide at the corner @corner and continue. False: a dead end, all changes undone; or an aborted attempt. */
static bool corner_decide(struct exact *exact, int a, int b, struct corner corner)
{
  int64_t lack;
  bool is_solved = choices_try(exact, a, b, &corner, &lack);
  while (!is_solved && capacity_grow(exact, lack)) {
    corner = corner_get(&exact->pile, corner.slot);
    is_solved = choices_try(exact, a, b, &corner, &lack);
  }
  return is_solved;
}

/*
 * Place all unplaced items of the slots [a, b). False: a dead end, which the caller undoes.
 *
 * pre: no unplaced item lies across an end of the range.
 */
static bool range_solve(struct exact *exact, int a, int b)
{
  const struct pack_pile *pile = &exact->pile;
  bool is_solved = true;
  exact->depth++;
  for (int t = a + 1, from = a; t <= b && is_solved; t++) {
    if (t < b && pile->cross[t] > 0)
      continue;
    if (from == a && t == b) {
      struct corner corner = {.slot = -1};
      is_solved = node_enter(exact);
      if (is_solved)
        corner = corner_find(exact, a, b);
      if (corner.slot >= 0)
        is_solved = corner_decide(exact, a, b, corner);
    } else if (t - from > 1 || pile->rest[from] > 0) {
      is_solved = range_solve(exact, from, t);
    }
    from = t;
  }
  exact->depth--;
  return is_solved;
}

/* Return the item's key under @preference; items with larger keys are tried earlier. */
static double item_preference(const struct pack_problem *problem, const struct pack_candidate *item, int preference)
{
  double length = item->hi - item->lo, bytes = (double)item->bytes;
  uint64_t tight = 0;
  for (int s = item->lo; s < item->hi; s++)
    tight = LADE_MAX(tight, problem->live[s]);
  double share = bytes * (double)problem->granule / (double)problem->lower_bound;
  switch (preference) {
  case PREFER_AREA: return length * bytes;
  case PREFER_LENGTH: return length + share / 2;
  case PREFER_BYTES: return bytes + length / (problem->n_slots + 1);
  case PREFER_TIGHT_AREA: return (double)(tight / problem->granule) * 0x1p24 + length * share;
  default: return (double)(tight / problem->granule) * 0x1p24 + length + share / 2;
  }
}

/* True if fixed items leave no gaps below them, so the pile can begin on top of them. */
static bool fixed_is_ground(const struct exact *exact, const struct pack_problem *problem)
{
  int64_t *end = exact->pile.floor, *sum = exact->pile.rest;
  memset(end, 0, (size_t)problem->n_slots * sizeof(*end));
  memset(sum, 0, (size_t)problem->n_slots * sizeof(*sum));
  for (int i = 0; i < problem->n; i++) {
    const struct pack_candidate *item = &exact->candidates[i];
    for (int s = item->lo; item->fixed >= 0 && s < item->hi; s++) {
      end[s] = LADE_MAX(end[s], item->fixed + item->bytes);
      sum[s] += item->bytes;
    }
  }
  return memcmp(end, sum, (size_t)problem->n_slots * sizeof(*end)) == 0;
}

static void fixed_place(struct pack_pile *pile, int j, int64_t offset)
{
  pile->lowest[j] = -1;
  pile->offset[j] = offset;
  for (int s = pile->lo[j]; s < pile->hi[j]; s++)
    pile->floor[s] = LADE_MAX(pile->floor[s], offset + pile->bytes[j]);
}

/* Number the pile's items by preference and empty it. */
static void pile_reset(struct exact *exact, const struct pack_problem *problem, int preference)
{
  struct pack_pile *pile = &exact->pile;
  int n = pile->n, n_slots = pile->n_slots;
  for (int i = 0; i < n; i++)
    exact->ranks[i] = (struct keyed){item_preference(problem, &exact->candidates[i], preference), i};
  lade_pack_sort(exact->ranks, n, exact->ranks + n);
  memset(pile->rest, 0, (size_t)n_slots * sizeof(*pile->rest));
  memset(pile->cross, 0, (size_t)n_slots * sizeof(*pile->cross));
  memset(pile->floor, 0, (size_t)n_slots * sizeof(*pile->floor));
  memset(pile->lowest, 0, (size_t)n * sizeof(*pile->lowest));
  memset(pile->joints, 0, (size_t)n_slots * sizeof(*pile->joints));
  memset(pile->is_due, 0, (size_t)n_slots * sizeof(*pile->is_due));
  for (int s = 0; s < n_slots; s++)
    pile->top[s] = -1;
  for (int j = 0; j < n; j++) {
    exact->original[j] = exact->ranks[j].item;
    const struct pack_candidate *item = &exact->candidates[exact->original[j]];
    pile->lo[j] = item->lo;
    pile->hi[j] = item->hi;
    pile->bytes[j] = item->bytes;
    if (item->fixed >= 0) {
      fixed_place(pile, j, item->fixed);
      continue;
    }
    for (int s = pile->lo[j]; s < pile->hi[j]; s++) {
      pile->rest[s] += pile->bytes[j];
      pile->cross[s] += s > pile->lo[j];
    }
  }
  for (int j = 0; j < n; j++)
    for (int s = pile->lo[j]; pile->lowest[j] >= 0 && s < pile->hi[j]; s++)
      pile->lowest[j] = LADE_MAX(pile->lowest[j], pile->floor[s]);
  pile->trail.n = 0;
  pile->is_out_of_memory = false;
  pile->work = 0;
}

/*
 * List by counting, for each slot, the items that have it in @slots: their first slots, or the slots after their last.
 */
static void sides_link(const struct pack_pile *pile, const int32_t *slots, int32_t *start, int32_t *items)
{
  const int n_slots = pile->n_slots + 1; /* the last one follows the end */
  memset(start, 0, (size_t)(n_slots + 1) * sizeof(*start));
  for (int j = 0; j < pile->n; j++)
    start[slots[j]]++;
  for (int s = 0; s < n_slots; s++)
    start[s + 1] += start[s];
  for (int j = pile->n - 1; j >= 0; j--) /* from the ends of the lists down, and the ends become starts */
    items[--start[slots[j]]] = j;
}

/* List by counting the items of each slot, the unplaced ones first. False: no memory. */
static bool slots_link(struct pack_pile *pile)
{
  int32_t *place = pile->slot_start, n = 0;
  for (int j = 0; j < pile->n; j++)
    n += pile->hi[j] - pile->lo[j];
  if (!lade_array_reserve((void **)&pile->slot_items.items, &pile->slot_items.capacity, n, sizeof(*place)))
    return false;
  pile->slot_items.n = n;
  memset(place, 0, (size_t)(pile->n_slots + 1) * sizeof(*place));
  memset(pile->n_open, 0, (size_t)pile->n_slots * sizeof(*pile->n_open));
  for (int j = 0; j < pile->n; j++)
    for (int s = pile->lo[j]; s < pile->hi[j]; s++) {
      place[s]++;
      pile->n_open[s] += pile->lowest[j] >= 0;
    }
  for (int s = 0; s < pile->n_slots; s++)
    place[s + 1] += place[s];
  for (int is_open = 0; is_open < 2; is_open++) /* from the ends of the lists down, and the ends become starts */
    for (int j = pile->n - 1; j >= 0; j--)
      for (int s = pile->lo[j]; (pile->lowest[j] >= 0) == is_open && s < pile->hi[j]; s++)
        pile->slot_items.items[--place[s]] = j;
  return true;
}

/* Make the lists for the current numbering. False: no memory. */
static bool pile_link(struct pack_pile *pile)
{
  sides_link(pile, pile->lo, pile->begin_start, pile->begin_items);
  sides_link(pile, pile->hi, pile->end_start, pile->end_items);
  return slots_link(pile);
}

/*
 * Choose the items of attempt @k, counted separately for soft and for hard attempts. Each kind of hard attempt gets
 * fillers for @capacity in every second cycle. Noise makes later cycles differ from earlier ones.
 */
static void attempt_choose(struct exact *exact, const struct pack_problem *problem, int64_t capacity, int k)
{
  const struct attempt_kind *kind = &attempt_kinds[k % N_KINDS];
  const int cycle = k / N_KINDS, round = exact->pile.is_soft ? cycle : cycle / 2;
  int n_fillers = 0;
  exact->random_state = 0x9E3779B97F4A7C15u * (uint64_t)(k + 1);
  if (kind->is_filled == (cycle % 2 == 0) && !exact->pile.is_soft)
    n_fillers = lade_pack_fillers_make(problem, capacity, &exact->random_state, exact->candidates + problem->n);
  exact->is_filled = n_fillers > 0 && n_fillers <= problem->n / ITEMS_PER_FILLER;
  exact->pile.n = problem->n + (exact->is_filled ? n_fillers : 0);
  exact->pile.capacity = capacity;
  exact->preference = kind->preference;
  exact->corner_rule = kind->corner_rule;
  exact->noise = cycle > 0 && !(exact->is_filled && round == 0) ? NOISE : 0;
  exact->n_nodes = exact->n_undone = 0;
  exact->undone_limit = (uint64_t)(1 + UNDONE_PER_ITEM * exact->pile.n) << LADE_MIN(round, 40);
  exact->patience = round == 0 ? 0 : (uint64_t)exact->pile.n << LADE_MIN(round, 40) >> 4;
  exact->n_nodes_patient = exact->patience;
  if (exact->pile.is_soft)
    exact->undone_limit = UINT64_MAX;
}

/*
 * True if an attempt with the current corner rule and order of choices was made without noise. If not, remember it.
 * Items are choices of one corner if they begin together or end together, so only their order among these counts. Where
 * all slots are equally full, for example, the preferences for full slots order the items as others do.
 *
 * pre: the pile's lists are made.
 */
static bool attempt_is_seen(const struct exact *exact, struct pack_attempts *made)
{
  uint64_t hash = (uint64_t)exact->corner_rule + (exact->pile.is_soft ? N_CORNER_RULES : 0);
  for (int j = 0; j < exact->pile.n; j++) {
    hash = (hash ^ (uint64_t)exact->original[exact->pile.begin_items[j]]) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ (uint64_t)exact->original[exact->pile.end_items[j]]) * 0x9E3779B97F4A7C15u;
  }
  for (int k = 0; k < made->n_seen; k++)
    if (made->seen[k] == hash)
      return true;
  if (made->n_seen < LADE_PACK_ATTEMPTS_SEEN)
    made->seen[made->n_seen++] = hash;
  return false;
}

/* Make one attempt of kind @k at @capacity. True: the packer's offsets hold a packing. */
static bool attempt(struct exact *exact, lade_packer *packer, int64_t capacity, int k)
{
  const struct pack_problem *problem = &packer->problem;
  struct pack_pile *pile = &exact->pile;
  attempt_choose(exact, problem, capacity, k);
  pile_reset(exact, problem, exact->preference);
  exact->is_aborted = pile->is_out_of_memory = !pile_link(pile);
  if (exact->is_aborted)
    return false;
  if (exact->noise == 0 && attempt_is_seen(exact, &packer->attempts))
    exact->noise = NOISE;
  lade_pack_spend(exact->effort, (uint64_t)pile->n * (uint64_t)(pile->n + pile->n_slots) / 2);
  exact->depth = 0;
  exact->choices.n = 0;
  if (!lade_pack_pile_start(pile)) {
    exact->is_aborted = pile->is_out_of_memory;
    return false;
  }
  if (!range_solve(exact, 0, pile->n_slots))
    return false;
  for (int j = 0; j < pile->n; j++)
    if (exact->original[j] < problem->n)
      packer->offsets[exact->original[j]] = (uint64_t)pile->offset[j] * problem->granule;
  return true;
}

/*
 * Raise the lower bound: no packing fits into @capacity granules. Without effect if sizes were rounded up, because then
 * the true peak may be smaller.
 */
static void bound_raise(lade_packer *packer, int64_t capacity)
{
  struct pack_problem *problem = &packer->problem;
  if (problem->has_padding)
    return;
  problem->lower_bound = LADE_MAX(problem->lower_bound, ((uint64_t)capacity + 1) * problem->granule);
  packer->target_bytes = LADE_MAX(packer->target_bytes, problem->lower_bound);
}

/*
 * Raise the bound if an attempt without a packing proves that @capacity does not suffice. True if the incumbent meets
 * the target after that.
 */
static bool failure_read(struct exact *exact, lade_packer *packer, int64_t capacity)
{
  if (!exact->is_aborted && !exact->is_filled && exact->pile.capacity == capacity) {
    exact->capacity_min = capacity + 1;
    bound_raise(packer, capacity);
  }
  return packer->best_bytes <= packer->target_bytes;
}

/* True if the items fill each slot to @capacity. Then corners have few choices, and their search is the better one. */
static bool capacity_is_full(const struct pack_problem *problem, int64_t capacity)
{
  bool is_full = true;
  for (int s = 0; s < problem->n_slots && is_full; s++)
    is_full = problem->live[s] / problem->granule >= (uint64_t)capacity;
  return is_full;
}

/* Return the kind of the next attempt at @capacity: each kind gets its share of the effort. */
static enum pack_attempt attempt_pick(const lade_packer *packer, int64_t capacity)
{
  const struct pack_attempts *made = &packer->attempts;
  const uint64_t *spent = made->spent;
  const bool has_rising = packer->problem.n_fixed == 0 && capacity > made->rising_over &&
                          (made->n_made[PACK_ATTEMPT_HARD] >= HARD_BEFORE_RISING ||
                           !capacity_is_full(&packer->problem, capacity));
  if (has_rising && spent[PACK_ATTEMPT_RISING] <= spent[PACK_ATTEMPT_HARD] + spent[PACK_ATTEMPT_SOFT])
    return PACK_ATTEMPT_RISING;
  const bool is_soft = made->n_made[PACK_ATTEMPT_HARD] >= HARD_BEFORE_SOFT &&
                       HARD_PER_SOFT * spent[PACK_ATTEMPT_SOFT] < spent[PACK_ATTEMPT_HARD];
  return is_soft ? PACK_ATTEMPT_SOFT : PACK_ATTEMPT_HARD;
}

/* Give the arrays that grew back to the packer. */
static void exact_finish(const struct exact *exact, lade_packer *packer)
{
  packer->choices = exact->choices;
  packer->trail = exact->pile.trail;
  packer->slot_items = exact->pile.slot_items;
}

/* Make attempt @k by rising offsets. True: the packer's offsets hold a packing. */
static bool attempt_rising(struct exact *exact, lade_packer *packer, int64_t capacity, int k)
{
  exact_finish(exact, packer); /* lends the arrays that grow */
  const enum pack_rising_end end = lade_pack_rising(packer, capacity, k);
  exact->choices = packer->choices;
  exact->pile.trail = packer->trail;
  exact->pile.slot_items = packer->slot_items;
  exact->pile.is_out_of_memory = end == PACK_RISING_NO_MEMORY;
  if (end == PACK_RISING_PROVED) {
    packer->attempts.rising_over = capacity;
    exact->capacity_min = capacity + 1;
    bound_raise(packer, capacity);
  }
  return end == PACK_RISING_PACKED;
}

/* Make the next attempt of @kind at @capacity. True if the incumbent meets the target after that. */
static bool attempt_run(struct exact *exact, lade_packer *packer, enum pack_attempt kind, int64_t capacity)
{
  struct pack_attempts *made = &packer->attempts;
  const int n_seen = made->n_seen, k = made->n_made[kind];
  bool is_packed, is_met;
  exact->pile.is_soft = kind == PACK_ATTEMPT_SOFT;
  if (kind == PACK_ATTEMPT_RISING) {
    is_packed = attempt_rising(exact, packer, capacity, k);
    is_met = is_packed ? lade_pack_offer(packer) : packer->best_bytes <= packer->target_bytes;
  } else {
    is_packed = attempt(exact, packer, capacity, k);
    is_met = is_packed ? lade_pack_offer(packer) : failure_read(exact, packer, capacity);
  }
  if (!is_packed && packer->effort.is_spent)
    made->n_seen = n_seen; /* an attempt that the effort cut short is made again */
  else
    made->n_made[kind]++;
  return is_met;
}

/*
 * Make @n_attempts attempts, or fewer if the target is met or proved out of reach, or effort or memory is spent. True
 * if it is met.
 */
static bool attempts_run(struct exact *exact, lade_packer *packer, int n_attempts)
{
  const uint64_t granule = packer->problem.granule;
  struct pack_effort *effort = &packer->effort;
  bool is_met = false;
  for (; n_attempts > 0 && !effort->is_spent && !exact->pile.is_out_of_memory && !is_met; n_attempts--) {
    const uint64_t work_before = effort->work;
    const int64_t capacity = LADE_MAX((int64_t)(packer->target_bytes / granule), exact->capacity_min);
    exact->capacity_max = (int64_t)((packer->best_bytes - 1) / granule);
    if (capacity > exact->capacity_max)
      break; /* only padding separates the bound from the incumbent */
    exact->capacity_step = LADE_MAX((exact->capacity_max - capacity) / STEPS, 1);
    const enum pack_attempt kind = attempt_pick(packer, capacity);
    is_met = attempt_run(exact, packer, kind, capacity);
    packer->attempts.spent[kind] += effort->work - work_before;
  }
  return is_met;
}

/* Cut @n values of 4 bytes off *@memory. */
static int32_t *cut(int32_t **memory, size_t n)
{
  int32_t *p = *memory;
  *memory += n;
  return p;
}

static int64_t *cut_wide(int64_t **memory, size_t n)
{
  int64_t *p = *memory;
  *memory += n;
  return p;
}

/* Return the bytes of the arrays for @n items and fillers and @n_slots slots. */
static size_t arrays_bytes(size_t n, size_t n_slots)
{
  const size_t item_bytes = 2 * sizeof(struct keyed) + sizeof(struct pack_candidate) + 4 * sizeof(int64_t) +
                            6 * sizeof(int32_t);
  const size_t slot_bytes = sizeof(struct pack_joint) + 2 * sizeof(int64_t) + 7 * sizeof(int32_t) + sizeof(bool);
  return n * item_bytes + n_slots * slot_bytes + 5 * sizeof(int32_t);
}

size_t lade_pack_exact_bytes(int n)
{
  const size_t n_max = (size_t)LADE_MIN(n, ITEMS_MAX); /* groups bring more items down to ITEMS_MAX or fewer */
  return arrays_bytes(3 * n_max, n_max) + 16 + /* at most a slot and two fillers each */
         lade_pack_rising_bytes((int)n_max);
}

/* Cut all arrays of known length from the packer's arena. The others are kept between calls. */
static void exact_init(struct exact *exact, lade_packer *packer)
{
  const struct pack_problem *problem = &packer->problem;
  size_t n_slots = (size_t)problem->n_slots, n = (size_t)problem->n + 2 * n_slots;
  char *memory = lade_pack_take(packer, arrays_bytes(n, n_slots));
  *exact = (struct exact){.effort = &packer->effort, .ranks = (struct keyed *)memory, .choices = packer->choices};
  exact->candidates = (struct pack_candidate *)(exact->ranks + 2 * n);
  int64_t *wide_at = (int64_t *)(exact->candidates + n);
  struct pack_joint *joints = (struct pack_joint *)(wide_at + 4 * n + 2 * n_slots);
  int32_t *at = (int32_t *)(joints + n_slots);
  exact->original = cut(&at, n);
  exact->pile = (struct pack_pile){
      .n_slots = problem->n_slots,
      .bytes = cut_wide(&wide_at, n), .lowest = cut_wide(&wide_at, n), .offset = cut_wide(&wide_at, n),
      .keys = cut_wide(&wide_at, n),
      .floor = cut_wide(&wide_at, n_slots), .rest = cut_wide(&wide_at, n_slots),
      .lo = cut(&at, n), .hi = cut(&at, n), .slot_start = cut(&at, n_slots + 1), .begin_start = cut(&at, n_slots + 2),
      .end_start = cut(&at, n_slots + 2), .begin_items = cut(&at, n), .end_items = cut(&at, n),
      .below = cut(&at, n), .top = cut(&at, n_slots), .cross = cut(&at, n_slots), .n_open = cut(&at, n_slots),
      .weight = cut(&at, n_slots), .joints = joints, .trail = packer->trail, .slot_items = packer->slot_items,
  };
  exact->pile.is_due = (bool *)at;
  memset(exact->pile.weight, 0, n_slots * sizeof(*exact->pile.weight));
  for (int i = 0; i < problem->n; i++) {
    int64_t fixed = problem->items[i].fixed;
    exact->candidates[i] = (struct pack_candidate){
        problem->lo[i], problem->hi[i], (int64_t)(problem->bytes[i] / problem->granule),
        fixed < 0 ? -1 : (int64_t)((uint64_t)fixed / problem->granule)};
  }
}

bool lade_pack_exact_takes(const struct pack_problem *problem)
{
  return problem->n <= ITEMS_MAX && !problem->has_mixed_align;
}

bool lade_pack_exact(lade_packer *packer, int n_attempts)
{
  const struct pack_problem *problem = &packer->problem;
  if (!lade_pack_exact_takes(problem) || packer->best_bytes / problem->granule > CAPACITY_MAX)
    return false;
  size_t n_slot_items = 0;
  for (int i = 0; i < problem->n; i++)
    n_slot_items += (size_t)(problem->hi[i] - problem->lo[i]);
  if (n_slot_items > SLOT_ITEMS_MAX)
    return false;
  const size_t mark = packer->arena_used;
  struct exact exact;
  exact_init(&exact, packer);
  bool is_met = fixed_is_ground(&exact, problem) && attempts_run(&exact, packer, n_attempts);
  exact_finish(&exact, packer);
  packer->arena_used = mark;
  return is_met;
}
