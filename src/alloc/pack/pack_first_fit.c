/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First fit: items in some order, each at the lowest place that is free during its whole lifetime.
 *
 * The placed items are kept sorted by offset. An item walks them upwards, skips those that it never meets, and stops at
 * the first gap that holds it. The placed items lie in blocks of some tens. Each block stores the range of its items'
 * begins and ends. The walk passes a block in one step if the item never meets it. It also passes in one step if the
 * item meets all of it and the block has no gap that is wide enough. A block also stores in which of some hundred
 * stretches of time it has items, so that most blocks are passed among many short lifetimes. A group of blocks stores
 * the same bounds, and is passed in one step if the item meets none of its items. Programs of many equal layers consist
 * of such blocks: items that live throughout lie together, and the items that layers make at one offset lie in the
 * order of the layers. A walk through a block compares all its lifetimes at once, in 16 bits each, and reads only the
 * items that are met. The worst case is O(n^2), at some ten nanoseconds per block of items and a nanosecond or two per
 * item that is met. Fixed items are placed first, so every gap below and between them is used.
 *
 * Effort is counted in items passed, not in steps taken. So a limit gives the same answer at any speed of the walk.
 *
 * The order decides the quality. Large and long-lived first is right for most programs. Which of the two should weigh
 * more differs, so a few orders are tried until one meets the target. Items of one size are packed best in the order in
 * which they begin, which wastes nothing for equal sizes. So one order by size and one by area put nearly equal items
 * into one class. Among tens of thousands of items that live long they waste half as much as the plain orders. They
 * come first, because there may be time for one order only. Among as many items that live for a short time, either
 * order by size may be better by a percent, by chance. A pass then costs much less than it counts, so both are made,
 * unless the first wastes little. Then the plain orders are repaired by blame (Joslin and Clements' "squeaky wheel"
 * idea) until the effort is spent. Repair starts from plain orders, because it gains less from orders with coarse
 * classes.
 *
 * A queue, whose items end in the order in which they began, has no order that is good for first fit. It is a ring.
 * Each item goes after the one before. It goes to the bottom again if it would end above the target by more than the
 * largest item, which is about the waste. This is one pass, tried if the orders have wasted much and items end in about
 * that order.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_internal.h"

#define BLOCK_PLACES 64
#define GROUP_BLOCKS 16
#define N_STRETCHES 512 /* of time: a block of short lifetimes has items in few of them */
#define N_TICKS 32767   /* of time: lifetimes in 16 bits, so that many are compared at once */

/* A placed item. */
struct placed_item {
  uint64_t offset, end;
  int32_t lo, hi, item;
};

/* The items of a block. The walk compares the ticks of all items and reads the places of few. */
struct first_fit_body {
  int16_t tick[BLOCK_PLACES], tick_end[BLOCK_PLACES];
  struct placed_item places[BLOCK_PLACES];
};

/* Some placed items, by offset. Most blocks are passed by their bounds, which lie apart from the items. */
struct first_fit_block {
  int n;
  int32_t lo_min, lo_max, hi_min, hi_max;
  bool has_gap;      /* gap_bytes is known */
  uint64_t stretches[N_STRETCHES / 64]; /* one bit for each stretch in which it has an item */
  uint64_t end_max;
  uint64_t gap_bytes; /* most bytes between an item's offset and the ends of all items before it in the block */
  uint64_t offset_min; /* of its first item */
  struct first_fit_body *body;
};

/* Consecutive blocks of a shelf, with the bounds of all their items. */
struct first_fit_group {
  int n; /* items */
  int32_t lo_min, hi_max;
  uint64_t stretches[N_STRETCHES / 64];
};

/*
 * Placed items by offset, in blocks. All blocks but one are at least half full, because full ones are split in half and
 * a cut fills them up.
 */
struct shelf {
  int n, n_blocks;
  int32_t stretch_slots, tick_slots;
  struct first_fit_block *blocks;
  int32_t *order;  /* of blocks; from n_blocks on the free ones */
  struct first_fit_group *groups; /* of GROUP_BLOCKS places of the order */
  int n_groups;    /* that are up to date, from the first on */
  int32_t *placed; /* all items in the order in which they were placed */
  bool *is_kept;   /* scratch, all false */
};

/* One line of repair, which starts from one of the orders. */
struct climb {
  struct keyed *order, *best_order;
  struct keyed *blamed; /* scratch, shared by all lines */
  uint64_t best_bytes; /* of this line */
  int n_worse;
};

/* Steps between two checks of the effort within a pass. */
#define WORK_PER_SPEND 200000
/* Most that an item that ended too high moves forward, as a part of the order; measured. */
#define REACH 0.1
#define FIXED_KEY 1e300 /* first in every order */
#define PATIENCE 30
#define WASTE_PART 64 /* of the target: with less waste than this part, no ring and no further order is tried */

/* In the order in which they are tried. */
enum {
  ORDER_BYTES_CLASS, ORDER_BYTES, ORDER_AREA_CLASS, ORDER_AREA, ORDER_LENGTH, ORDER_START,
  N_ORDERS, ORDER_QUEUE = N_ORDERS
};
#define N_CLIMBS 3
static const int climb_orders[N_CLIMBS] = {ORDER_AREA, ORDER_LENGTH, ORDER_BYTES};
#define CLASS_ITEMS 1000.0 /* items live together; from here on classes are wide */
#define PASSES_PER_TURN 24

static size_t blocks_max(int n)
{
  return (size_t)n / (BLOCK_PLACES / 2) + 2;
}

static size_t groups_max(int n)
{
  return blocks_max(n) / GROUP_BLOCKS + 1;
}

size_t lade_pack_first_fit_bytes(int n)
{
  const size_t block_bytes = sizeof(struct first_fit_block) + sizeof(struct first_fit_body) + sizeof(int32_t);
  size_t per_item = sizeof(int32_t) + sizeof(bool) + (2 * N_CLIMBS + 2) * sizeof(struct keyed);
  return (size_t)n * per_item + blocks_max(n) * block_bytes +
         groups_max(n) * sizeof(struct first_fit_group) + 512;
}

/* ---- blocks ---- */

/* Return the bits of word @word for the stretches that the slots [lo, hi) touch. */
static uint64_t stretch_bits(int32_t lo, int32_t hi, int32_t stretch_slots, int word)
{
  int first = LADE_MAX(lo / stretch_slots - 64 * word, 0), last = LADE_MIN((hi - 1) / stretch_slots - 64 * word, 63);
  return first > last ? 0 : ~(uint64_t)0 << first & ~(uint64_t)0 >> (63 - last);
}

static void block_note(struct first_fit_block *block, int at, int32_t stretch_slots)
{
  const struct placed_item *place = &block->body->places[at];
  bool is_first = block->n == 1;
  if (is_first)
    memset(block->stretches, 0, sizeof(block->stretches));
  for (int word = place->lo / stretch_slots / 64; word <= (place->hi - 1) / stretch_slots / 64; word++)
    block->stretches[word] |= stretch_bits(place->lo, place->hi, stretch_slots, word);
  block->lo_min = is_first ? place->lo : LADE_MIN(block->lo_min, place->lo);
  block->lo_max = is_first ? place->lo : LADE_MAX(block->lo_max, place->lo);
  block->hi_min = is_first ? place->hi : LADE_MIN(block->hi_min, place->hi);
  block->hi_max = is_first ? place->hi : LADE_MAX(block->hi_max, place->hi);
  block->offset_min = block->body->places[0].offset;
  block->end_max = is_first ? place->end : LADE_MAX(block->end_max, place->end);
  block->has_gap = false;
}

static void place_copy(struct first_fit_block *to, int to_at, const struct first_fit_block *from, int from_at)
{
  to->body->tick[to_at] = from->body->tick[from_at];
  to->body->tick_end[to_at] = from->body->tick_end[from_at];
  to->body->places[to_at] = from->body->places[from_at];
}

/* Append a place of @from to @block. */
static void block_append(struct first_fit_block *block, const struct first_fit_block *from, int from_at,
                         int32_t stretch_slots)
{
  place_copy(block, block->n++, from, from_at);
  block_note(block, block->n - 1, stretch_slots);
}

static uint64_t block_gap(struct first_fit_block *block)
{
  uint64_t end = block->body->places[0].end, max = 0;
  if (block->has_gap)
    return block->gap_bytes;
  for (int k = 1; k < block->n; k++) {
    const struct placed_item *place = &block->body->places[k];
    if (place->offset > end)
      max = LADE_MAX(max, place->offset - end);
    end = LADE_MAX(end, place->end);
  }
  block->has_gap = true;
  block->gap_bytes = max;
  return max;
}

/* ---- the shelf ---- */

static struct first_fit_block *shelf_block(const struct shelf *shelf, int place)
{
  return &shelf->blocks[shelf->order[place]];
}

/* Add an empty block at @place of the order. */
static struct first_fit_block *block_add(struct shelf *shelf, int place)
{
  int32_t fresh = shelf->order[shelf->n_blocks];
  size_t n_after = (size_t)(shelf->n_blocks - place);
  memmove(shelf->order + place + 1, shelf->order + place, n_after * sizeof(*shelf->order));
  shelf->order[place] = fresh;
  shelf->n_groups = LADE_MIN(shelf->n_groups, place / GROUP_BLOCKS);
  shelf->n_blocks++;
  shelf->blocks[fresh].n = 0;
  return &shelf->blocks[fresh];
}

/* Return the last block that begins at or below @offset, or the first block. */
static int shelf_find(const struct shelf *shelf, uint64_t offset)
{
  int low = 0, high = shelf->n_blocks;
  while (low < high) {
    int middle = (low + high) / 2;
    if (shelf_block(shelf, middle)->offset_min <= offset)
      low = middle + 1;
    else
      high = middle;
  }
  return LADE_MAX(low - 1, 0);
}

static void block_split(struct shelf *shelf, int place)
{
  struct first_fit_block *upper = block_add(shelf, place + 1), *lower = shelf_block(shelf, place);
  int n = lower->n;
  shelf->n_groups = LADE_MIN(shelf->n_groups, place / GROUP_BLOCKS); /* the lower block may end another group */
  for (int k = n / 2; k < n; k++)
    block_append(upper, lower, k, shelf->stretch_slots);
  lower->n = 0;
  for (int k = 0; k < n / 2; k++)
    block_append(lower, lower, k, shelf->stretch_slots); /* in place, to compute the block's bounds again */
}

static int16_t tick_of(const struct shelf *shelf, int32_t slot)
{
  return (int16_t)(slot / shelf->tick_slots);
}

/* Add @block, of which @n_new items are new to it, to the bounds of @group. */
static void group_note(struct first_fit_group *group, const struct first_fit_block *block, int n_new)
{
  group->lo_min = group->n ? LADE_MIN(group->lo_min, block->lo_min) : block->lo_min;
  group->hi_max = group->n ? LADE_MAX(group->hi_max, block->hi_max) : block->hi_max;
  for (int word = 0; word < N_STRETCHES / 64; word++)
    group->stretches[word] = (group->n ? group->stretches[word] : 0) | block->stretches[word];
  group->n += n_new;
}

/* Bring all groups up to date. */
static void groups_fill(struct shelf *shelf)
{
  const int n = (shelf->n_blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
  for (; shelf->n_groups < n; shelf->n_groups++) {
    struct first_fit_group *group = &shelf->groups[shelf->n_groups];
    const int first = shelf->n_groups * GROUP_BLOCKS;
    group->n = 0;
    for (int place = first; place < LADE_MIN(first + GROUP_BLOCKS, shelf->n_blocks); place++)
      group_note(group, shelf_block(shelf, place), shelf_block(shelf, place)->n);
  }
}

static void shelf_insert(struct shelf *shelf, const struct pack_problem *problem, int32_t i, uint64_t offset)
{
  int place = shelf_find(shelf, offset), at = 0;
  if (shelf->n_blocks == 0)
    block_add(shelf, 0);
  if (shelf_block(shelf, place)->n == BLOCK_PLACES) {
    block_split(shelf, place);
    place += shelf_block(shelf, place + 1)->offset_min <= offset;
  }
  struct first_fit_block *block = shelf_block(shelf, place);
  while (at < block->n && block->body->places[at].offset <= offset)
    at++;
  for (int k = block->n; k > at; k--)
    place_copy(block, k, block, k - 1);
  block->body->tick[at] = tick_of(shelf, problem->lo[i]);
  block->body->tick_end[at] = (int16_t)(tick_of(shelf, problem->hi[i] - 1) + 1);
  block->body->places[at] = (struct placed_item){offset, offset + problem->bytes[i], problem->lo[i], problem->hi[i], i};
  block->n++;
  shelf->n++;
  block_note(block, at, shelf->stretch_slots);
  if (place / GROUP_BLOCKS < shelf->n_groups)
    group_note(&shelf->groups[place / GROUP_BLOCKS], block, 1);
}

/* An item's lifetime and size, and the state of its walk upwards. */
struct item_walk {
  int32_t lo, hi;
  int16_t tick, tick_end;
  uint64_t bytes, align, free_from;
  uint64_t n_passed;
  int first_word, last_word; /* words of the stretches that the item covers, with the bits of the first and the last
                                one */
  uint64_t first_bits, last_bits;
};

/* True if one of @stretches is the walk's. */
static bool shares_stretch(const uint64_t *stretches, const struct item_walk *walk)
{
  uint64_t shared = (stretches[walk->first_word] & walk->first_bits) | (stretches[walk->last_word] & walk->last_bits);
  for (int word = walk->first_word + 1; word < walk->last_word && !shared; word++)
    shared = stretches[word];
  return shared;
}

/*
 * Return a bit for each place of @block whose item may meet the walk's, because they share a tick. The loop has no
 * branches, so the compiler makes a few vector instructions of it.
 */
static uint64_t block_meets(const struct first_fit_block *block, const struct item_walk *walk)
{
  uint8_t meets[BLOCK_PLACES];
  uint64_t bits = 0, eight;
  for (int k = 0; k < BLOCK_PLACES; k++)
    meets[k] = (block->body->tick[k] < walk->tick_end) & (block->body->tick_end[k] > walk->tick);
  for (int k = 0; k < BLOCK_PLACES; k += 8) {
    memcpy(&eight, meets + k, sizeof(eight));
    bits |= eight * 0x0102040810204080u >> 56 << k; /* gathers the lowest bit of each of eight bytes */
  }
  return bits & ~(uint64_t)0 >> (BLOCK_PLACES - block->n);
}

/* Walk through the items of @block. True if the walk stops at an item above a gap that is wide enough. */
static bool block_walk(const struct first_fit_block *block, struct item_walk *walk)
{
  uint64_t free_from = walk->free_from, bits = block_meets(block, walk);
  int n_passed = block->n;
  for (; bits; bits &= bits - 1) {
    const struct placed_item *place = &block->body->places[__builtin_ctzll(bits)];
    if (place->lo >= walk->hi || place->hi <= walk->lo)
      continue;
    if (place->offset >= free_from + walk->bytes) {
      n_passed = (int)(place - block->body->places);
      break;
    }
    if (place->end > free_from)
      free_from = lade_align_up(place->end, walk->align);
  }
  walk->free_from = free_from;
  walk->n_passed += (uint64_t)n_passed;
  return bits;
}

/* Pass @block in one step, if that gives the same result as a walk through its items. False if it may not. */
static bool block_pass(struct first_fit_block *block, struct item_walk *walk)
{
  if (block->lo_min < walk->hi && block->hi_max > walk->lo && shares_stretch(block->stretches, walk)) {
    bool is_met_whole = block->lo_max < walk->hi && block->hi_min > walk->lo;
    if (!is_met_whole || block->offset_min >= walk->free_from + walk->bytes || block_gap(block) >= walk->bytes)
      return false;
    if (block->end_max > walk->free_from)
      walk->free_from = lade_align_up(block->end_max, walk->align);
  }
  walk->n_passed += (uint64_t)block->n;
  return true;
}

/* Pass all blocks of @group in one step, if the walk's item meets none of theirs. False if it may. */
static bool group_pass(const struct first_fit_group *group, struct item_walk *walk)
{
  if (group->lo_min < walk->hi && group->hi_max > walk->lo && shares_stretch(group->stretches, walk))
    return false;
  walk->n_passed += (uint64_t)group->n;
  return true;
}

/* Walk through the blocks of the group at @place. True if the walk stops. */
static bool group_walk(const struct shelf *shelf, int place, struct item_walk *walk)
{
  bool is_end = false;
  for (int end = LADE_MIN(place + GROUP_BLOCKS, shelf->n_blocks); place < end && !is_end; place++)
    is_end = !block_pass(shelf_block(shelf, place), walk) && block_walk(shelf_block(shelf, place), walk);
  return is_end;
}

/* Return the lowest free offset of item @i at or above @from. Add the items passed to @work. */
static uint64_t shelf_fit(struct shelf *shelf, const struct pack_problem *problem, int i, uint64_t from,
                          uint64_t *work)
{
  struct item_walk walk = {
      .lo = problem->lo[i], .hi = problem->hi[i], .bytes = problem->bytes[i], .align = problem->align[i]};
  walk.free_from = lade_align_up(from, walk.align);
  walk.tick = tick_of(shelf, walk.lo);
  walk.tick_end = (int16_t)(tick_of(shelf, walk.hi - 1) + 1);
  walk.first_word = walk.lo / shelf->stretch_slots / 64;
  walk.last_word = (walk.hi - 1) / shelf->stretch_slots / 64;
  walk.first_bits = stretch_bits(walk.lo, walk.hi, shelf->stretch_slots, walk.first_word);
  walk.last_bits = stretch_bits(walk.lo, walk.hi, shelf->stretch_slots, walk.last_word);
  groups_fill(shelf);
  for (int group = 0; group < shelf->n_groups; group++) {
    if (!group_pass(&shelf->groups[group], &walk) && group_walk(shelf, group * GROUP_BLOCKS, &walk))
      break;
  }
  *work += walk.n_passed + 8;
  return walk.free_from;
}

/* Keep the items of the first @n_kept places of the last pass and drop the others. */
static void shelf_cut(struct shelf *shelf, int n_kept)
{
  int n = 0, n_blocks = shelf->n_blocks;
  for (int k = 0; k < n_kept; k++)
    shelf->is_kept[shelf->placed[k]] = true;
  for (int place = 0; place < n_blocks; place++) { /* blocks are filled up, so writing stays behind reading */
    struct first_fit_block *from = shelf_block(shelf, place);
    int n_from = from->n;
    for (int k = 0; k < n_from; k++) {
      if (!shelf->is_kept[from->body->places[k].item])
        continue;
      struct first_fit_block *to = shelf_block(shelf, n / BLOCK_PLACES);
      if (n % BLOCK_PLACES == 0)
        to->n = 0;
      block_append(to, from, k, shelf->stretch_slots);
      n++;
    }
  }
  LADE_ASSERT(n == n_kept);
  for (int k = 0; k < n_kept; k++)
    shelf->is_kept[shelf->placed[k]] = false;
  shelf->n = n;
  shelf->n_groups = 0;
  shelf->n_blocks = (n + BLOCK_PLACES - 1) / BLOCK_PLACES;
}

/* Return the highest end of the first @n items of @order. */
static uint64_t order_end(const lade_packer *packer, const struct keyed *order, int n)
{
  uint64_t end = 0;
  for (int k = 0; k < n; k++)
    end = LADE_MAX(end, packer->offsets[order[k].item] + packer->problem.bytes[order[k].item]);
  return end;
}

/*
 * Place all items in @order and leave the offsets in the packer. Items of the common start of @order and the last pass
 * keep their places. False if the effort is spent before the end. The first n_orders_min orders continue without
 * effort; once the deadline has passed, their remaining items are placed in lanes.
 */
static bool order_place(lade_packer *packer, struct shelf *shelf, const struct keyed *order)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t work = (uint64_t)problem->n;
  int n_kept = 0;
  bool is_late = false;
  while (n_kept < shelf->n && shelf->placed[n_kept] == order[n_kept].item)
    n_kept++;
  if (n_kept < shelf->n)
    shelf_cut(shelf, n_kept);
  for (int k = n_kept; k < problem->n; k++) {
    if (work >= WORK_PER_SPEND) {
      if (lade_pack_spend(&packer->effort, work) && packer->n_tried >= packer->n_orders_min)
        return false;
      work = 0;
      is_late = lade_pack_is_late(&packer->effort);
    }
    int32_t i = order[k].item;
    bool is_fixed = problem->items[i].fixed >= 0;
    if (is_late && !is_fixed) {
      lade_pack_lanes(packer, order + k, problem->n - k, order_end(packer, order, k));
      break;
    }
    uint64_t offset = is_fixed ? (uint64_t)problem->items[i].fixed : shelf_fit(shelf, problem, i, 0, &work);
    packer->offsets[i] = offset;
    shelf->placed[k] = i;
    shelf_insert(shelf, problem, i, offset);
  }
  lade_pack_spend(&packer->effort, work);
  return true;
}

/*
 * Return the key of @value's class. There are @per_doubling classes per doubling, in even steps, without a logarithm,
 * which could differ between machines. Within a class, items that begin earlier come first.
 */
static double class_key(double value, int per_doubling, int32_t lo)
{
  int power;
  double mantissa = frexp(value, &power);
  return (double)(int64_t)((power + 2 * mantissa) * per_doubling) * 0x1p31 - lo;
}

/* Return the average number of items live together in a slot. */
static double live_together(const struct pack_problem *problem)
{
  double slots = 0;
  for (int i = 0; i < problem->n; i++)
    slots += problem->hi[i] - problem->lo[i];
  return slots / problem->n_slots;
}

/*
 * Return the number of size classes per doubling. The fewer items are live together, the more important it is that
 * larger ones come first, and the less the order within a class gains; measured.
 */
static int classes_get(const struct pack_problem *problem)
{
  return 2 + (int)(CLASS_ITEMS / live_together(problem));
}

bool lade_pack_first_fit_is_cheap(const struct pack_problem *problem)
{
  return problem->n / BLOCK_PLACES + live_together(problem) <= 2 * LADE_PACK_FAST_WORK;
}

/* Sort the items by falling key. Bytes are in granules, so the order is the same in any unit. */
static void order_make(lade_packer *packer, int kind, struct keyed *order)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t mark = packer->arena_used;
  const int n_classes = kind == ORDER_BYTES_CLASS ? classes_get(problem) : 0;
  for (int i = 0; i < problem->n; i++) {
    double length = problem->hi[i] - problem->lo[i], bytes = (double)(problem->bytes[i] / problem->granule);
    double key = 0;
    switch (kind) {
    case ORDER_BYTES_CLASS: key = class_key(bytes, n_classes, problem->lo[i]); break;
    case ORDER_AREA_CLASS: key = class_key(length * bytes, 1, problem->lo[i]); break;
    case ORDER_AREA: key = length * bytes; break;
    case ORDER_LENGTH: key = length + bytes * 0x1p-62; break;
    case ORDER_BYTES: key = bytes + length * 0x1p-31; break;
    case ORDER_START: key = -problem->lo[i] + length * 0x1p-31; break;
    case ORDER_QUEUE: key = -problem->lo[i] - length * 0x1p-31; break;
    }
    order[i] = (struct keyed){problem->items[i].fixed >= 0 ? FIXED_KEY : key, i};
  }
  lade_pack_sort(order, problem->n, lade_pack_take(packer, (size_t)problem->n * sizeof(*order)));
  packer->arena_used = mark;
}

/* Return the peak of the last pass. */
static uint64_t pass_peak(const lade_packer *packer)
{
  uint64_t peak = 0;
  for (int i = 0; i < packer->problem.n; i++)
    peak = LADE_MAX(peak, packer->offsets[i] + packer->problem.items[i].bytes);
  return peak;
}

/*
 * Merge @n_blamed sorted items into the first @n_left items of @order.
 *
 * pre: these are sorted, and @order has space for the blamed items after them.
 */
static void order_merge(struct keyed *order, int n_left, const struct keyed *blamed, int n_blamed)
{
  while (n_blamed) {
    bool is_left_last = n_left && lade_pack_keyed_is_first(&blamed[n_blamed - 1], &order[n_left - 1]);
    const struct keyed last = is_left_last ? order[n_left - 1] : blamed[n_blamed - 1];
    order[n_left + n_blamed - 1] = last;
    n_left -= is_left_last;
    n_blamed -= !is_left_last;
  }
}

/*
 * Move the items that end above @limit forward by a random part of REACH of the order (or of a few places). These are
 * usually few: only they are sorted, and the others keep their order.
 */
static void order_blame(lade_packer *packer, uint64_t limit, const struct climb *climb, uint64_t *random_state)
{
  const struct pack_problem *problem = &packer->problem;
  double reach = LADE_MAX(problem->n * REACH, 4.0);
  int n_left = 0, n_blamed = 0;
  for (int k = 0; k < problem->n; k++) {
    struct keyed keyed = climb->order[k];
    bool is_fixed = problem->items[keyed.item].fixed >= 0;
    if (!is_fixed)
      keyed.key = -k;
    if (is_fixed || packer->offsets[keyed.item] + problem->items[keyed.item].bytes <= limit) {
      climb->order[n_left++] = keyed;
      continue;
    }
    keyed.key += reach * lade_pack_random(random_state);
    climb->blamed[n_blamed++] = keyed;
  }
  const size_t mark = packer->arena_used;
  lade_pack_sort(climb->blamed, n_blamed, lade_pack_take(packer, (size_t)n_blamed * sizeof(*climb->blamed)));
  packer->arena_used = mark;
  order_merge(climb->order, n_left, climb->blamed, n_blamed);
  lade_pack_spend(&packer->effort, 100 * (uint64_t)problem->n);
}

/*
 * Repair by blame: items that ended above a limit come earlier in the next pass. The limit is drawn between the target
 * and the incumbent. Near the target many items are blamed and much changes; near the incumbent only the topmost are.
 * One fixed limit gets stuck sooner. After PATIENCE worse passes the line returns to its best order.
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
  double part = lade_pack_random(random_state);
  uint64_t limit = packer->target_bytes + (uint64_t)((double)(packer->best_bytes - packer->target_bytes) * part);
  order_blame(packer, limit, climb, random_state);
  return false;
}

/*
 * Take turns between the lines until the effort is spent, because programs differ in the line that is good. A line that
 * improved the incumbent continues.
 */
static bool climbs_run(lade_packer *packer, struct shelf *shelf, struct climb *climbs)
{
  uint64_t random_state = 88172645463325252u;
  for (int line = 0;;) {
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
  const size_t n = (size_t)packer->problem.n, n_blocks = blocks_max(packer->problem.n);
  *shelf = (struct shelf){
      .stretch_slots = packer->problem.n_slots / N_STRETCHES + 1,
      .tick_slots = packer->problem.n_slots / N_TICKS + 1,
      .blocks = lade_pack_take(packer, n_blocks * sizeof(*shelf->blocks)),
      .order = lade_pack_take(packer, n_blocks * sizeof(*shelf->order)),
      .groups = lade_pack_take(packer, groups_max(packer->problem.n) * sizeof(*shelf->groups)),
      .placed = lade_pack_take(packer, n * sizeof(*shelf->placed)),
      .is_kept = lade_pack_take(packer, n * sizeof(*shelf->is_kept)),
  };
  struct first_fit_body *bodies = lade_pack_take(packer, n_blocks * sizeof(*bodies));
  for (size_t i = 0; i < n_blocks; i++) {
    shelf->order[i] = (int32_t)i;
    shelf->blocks[i].body = &bodies[i];
  }
  memset(shelf->is_kept, 0, n * sizeof(*shelf->is_kept));
}

/* True if the incumbent wastes enough that another pass over all items may gain. */
static bool packer_wastes_much(const lade_packer *packer)
{
  return packer->best_bytes - packer->target_bytes > packer->target_bytes / WASTE_PART;
}

/*
 * Try the orders that no earlier call placed to the end. The first n_orders_min are always tried, also without effort
 * left. True if the target is met.
 */
static bool orders_try(lade_packer *packer, struct shelf *shelf, struct keyed *order)
{
  bool is_met = false;
  while (packer->n_tried < N_ORDERS && !is_met &&
         (packer->n_tried < packer->n_orders_min || !packer->effort.is_spent)) {
    order_make(packer, packer->n_tried, order);
    if (!order_place(packer, shelf, order))
      return false;
    const uint64_t before_bytes = packer->best_bytes;
    is_met = lade_pack_offer(packer);
    if (packer->best_bytes < before_bytes)
      packer->kind_best = packer->n_tried;
    packer->n_tried++;
    if (!packer_wastes_much(packer))
      packer->n_orders_min = 1;
  }
  return is_met;
}

bool lade_pack_first_fit(lade_packer *packer)
{
  size_t mark = packer->arena_used, order_bytes = (size_t)packer->problem.n * sizeof(struct keyed);
  struct climb climbs[N_CLIMBS];
  struct shelf shelf;
  shelf_init(packer, &shelf);
  struct keyed *scratch = lade_pack_take(packer, order_bytes);
  bool is_met = orders_try(packer, &shelf, scratch);
  for (int line = 0; line < N_CLIMBS && !is_met && !packer->effort.is_spent; line++) {
    climbs[line] = (struct climb){.order = lade_pack_take(packer, order_bytes),
                                  .best_order = lade_pack_take(packer, order_bytes),
                                  .blamed = scratch,
                                  .best_bytes = UINT64_MAX};
    order_make(packer, climb_orders[line], climbs[line].order);
  }
  if (!is_met && !packer->effort.is_spent)
    is_met = climbs_run(packer, &shelf, climbs);
  packer->arena_used = mark;
  return is_met;
}

bool lade_pack_around(lade_packer *packer, const bool *is_placed, const uint64_t *placed)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t mark = packer->arena_used;
  uint64_t work = (uint64_t)problem->n;
  struct shelf shelf;
  shelf_init(packer, &shelf);
  struct keyed *order = lade_pack_take(packer, (size_t)problem->n * sizeof(*order));
  order_make(packer, packer->kind_best, order);
  for (int i = 0; i < problem->n; i++)
    if (is_placed[i]) {
      packer->offsets[i] = placed[i];
      shelf_insert(&shelf, problem, i, placed[i]);
    }
  int k = 0;
  for (; k < problem->n && !packer->effort.is_spent; k++) {
    const int32_t i = order[k].item;
    if (is_placed[i])
      continue;
    packer->offsets[i] = shelf_fit(&shelf, problem, i, 0, &work);
    shelf_insert(&shelf, problem, i, packer->offsets[i]);
    if (work >= WORK_PER_SPEND || k == problem->n - 1) {
      lade_pack_spend(&packer->effort, work);
      work = 0;
    }
  }
  while (k < problem->n && is_placed[order[k].item])
    k++;
  packer->arena_used = mark;
  return k == problem->n; /* complete, also if the effort was spent with the last item */
}

/*
 * True if the items of @order also end in about that order. An item that ends before an earlier one keeps its place on
 * the ring until the earlier one ends.
 *
 * pre: @order sorts the items by their begin.
 */
static bool ring_is_apt(const struct pack_problem *problem, const struct keyed *order)
{
  double slots = 0, slots_held = 0;
  int32_t end = 0;
  for (int k = 0; k < problem->n; k++) {
    const int32_t i = order[k].item;
    end = LADE_MAX(end, problem->hi[i]);
    slots += problem->hi[i] - problem->lo[i];
    slots_held += end - problem->lo[i];
  }
  return slots_held < 1.5 * slots;
}

/*
 * Place all items of @order, each after the one before; the ring closes at @ring_bytes. False if the effort is spent.
 */
static bool ring_place(lade_packer *packer, struct shelf *shelf, const struct keyed *order, uint64_t ring_bytes)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t work = (uint64_t)problem->n, cursor = 0;
  for (int k = 0; k < problem->n; k++) {
    const int32_t i = order[k].item;
    const bool is_fixed = problem->items[i].fixed >= 0;
    if (work >= WORK_PER_SPEND) {
      if (lade_pack_spend(&packer->effort, work))
        return false;
      work = 0;
    }
    uint64_t offset = is_fixed ? (uint64_t)problem->items[i].fixed : shelf_fit(shelf, problem, i, cursor, &work);
    if (!is_fixed && offset + problem->bytes[i] > ring_bytes)
      offset = shelf_fit(shelf, problem, i, 0, &work);
    cursor = is_fixed ? cursor : offset + problem->bytes[i];
    packer->offsets[i] = offset;
    shelf_insert(shelf, problem, i, offset);
  }
  lade_pack_spend(&packer->effort, work);
  return true;
}

bool lade_pack_ring(lade_packer *packer)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t mark = packer->arena_used;
  uint64_t max_bytes = 0;
  struct shelf shelf;
  if (!packer_wastes_much(packer))
    return false;
  shelf_init(packer, &shelf);
  struct keyed *order = lade_pack_take(packer, (size_t)problem->n * sizeof(*order));
  order_make(packer, ORDER_QUEUE, order);
  for (int i = 0; i < problem->n; i++)
    max_bytes = LADE_MAX(max_bytes, problem->bytes[i]);
  bool is_met = ring_is_apt(problem, order) &&
                ring_place(packer, &shelf, order, packer->target_bytes + max_bytes) && lade_pack_offer(packer);
  packer->arena_used = mark;
  return is_met;
}
