/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packer's checker. It contains the definition of a packing and no part of the search.
 *
 * A sweep over time keeps the live address ranges in an ordered set. A range that enters is compared with the range
 * below it and the range above it. As long as the set holds no overlap, those two are the first ranges that it can
 * meet. At equal times ranges leave before others enter, because lifetimes are half-open. The set is a treap whose
 * priorities are a hash of the item's number, which keeps it balanced without a random state. O(n log n) for n items.
 *
 * Groups are checked before that, each in the order of indices, item by item.
 *
 * Rejected: a pairwise comparison, which is simpler but takes minutes for 60,000 items.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "alloc/pack_check.h"
#include "base/base.h"

struct event {
  int32_t time;
  int32_t item; /* enters when >= 0; ~item leaves */
};

struct checked_member {
  uint32_t group;
  int32_t item;
};

struct node {
  int32_t child[2]; /* item numbers, -1 for none */
  uint32_t priority;
};

struct overlap_sweep {
  const struct lade_pack_item *items;
  const uint64_t *offsets;
  struct node *nodes;
  int32_t root;
};

static int event_compare(const void *a, const void *b)
{
  const struct event *x = a, *y = b;
  if (x->time != y->time)
    return x->time < y->time ? -1 : 1;
  bool enters_x = x->item >= 0, enters_y = y->item >= 0;
  return (int)enters_x - (int)enters_y;
}

/* Return a well-mixed priority for the treap (the finalizer of MurmurHash3). */
static uint32_t hash(uint32_t x)
{
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

/* Make the entering and leaving events, in the order of time. NULL without memory. */
static struct event *events_create(const struct lade_pack_item *items, int n_items)
{
  struct event *events = malloc(2 * (size_t)n_items * sizeof(*events));
  if (!events)
    return NULL;
  for (int i = 0; i < n_items; i++) {
    events[2 * i] = (struct event){items[i].lower, i};
    events[2 * i + 1] = (struct event){items[i].upper, ~i};
  }
  qsort(events, 2 * (size_t)n_items, sizeof(*events), event_compare);
  return events;
}

/* Split tree @t into the ranges that start below @key and the others. */
static void tree_split(struct overlap_sweep *sweep, int32_t t, uint64_t key, int32_t *ret_below, int32_t *ret_above)
{
  while (t >= 0) {
    struct node *node = &sweep->nodes[t];
    if (sweep->offsets[t] < key) {
      *ret_below = t;
      ret_below = &node->child[1];
      t = node->child[1];
    } else {
      *ret_above = t;
      ret_above = &node->child[0];
      t = node->child[0];
    }
  }
  *ret_below = *ret_above = -1;
}

static void tree_insert(struct overlap_sweep *sweep, int32_t i)
{
  int32_t *place = &sweep->root;
  uint64_t key = sweep->offsets[i];
  while (*place >= 0 && sweep->nodes[*place].priority >= sweep->nodes[i].priority)
    place = &sweep->nodes[*place].child[sweep->offsets[*place] < key];
  int32_t below, above;
  tree_split(sweep, *place, key, &below, &above);
  sweep->nodes[i].child[0] = below;
  sweep->nodes[i].child[1] = above;
  *place = i;
}

/*
 * Remove item @i from the tree. The offsets in the tree differ, because live ranges of at least one byte do not
 * overlap.
 */
static void tree_remove(struct overlap_sweep *sweep, int32_t i)
{
  int32_t *place = &sweep->root;
  while (*place != i)
    place = &sweep->nodes[*place].child[sweep->offsets[*place] < sweep->offsets[i]];
  int32_t a = sweep->nodes[i].child[0], b = sweep->nodes[i].child[1];
  while (a >= 0 && b >= 0) {
    if (sweep->nodes[a].priority >= sweep->nodes[b].priority) {
      *place = a;
      place = &sweep->nodes[a].child[1];
      a = *place;
    } else {
      *place = b;
      place = &sweep->nodes[b].child[0];
      b = *place;
    }
  }
  *place = a >= 0 ? a : b;
}

/* Return the live item whose range meets that of @i, or -1. */
static int32_t tree_find_overlap(const struct overlap_sweep *sweep, int32_t i)
{
  uint64_t start = sweep->offsets[i], end = start + sweep->items[i].bytes;
  int32_t below = -1, above = -1;
  for (int32_t t = sweep->root; t >= 0;) {
    bool is_below = sweep->offsets[t] <= start;
    *(is_below ? &below : &above) = t;
    t = sweep->nodes[t].child[is_below];
  }
  if (below >= 0 && sweep->offsets[below] + sweep->items[below].bytes > start)
    return below;
  return above >= 0 && sweep->offsets[above] < end ? above : -1;
}

/* Sweep over all events. Return 1 if two items meet, otherwise 0. */
static int sweep_run(struct overlap_sweep *sweep, const struct event *events, int n_items,
                     struct lade_pack_overlap *ret_overlap)
{
  for (int e = 0; e < 2 * n_items; e++) {
    int32_t i = events[e].item;
    if (i < 0) {
      tree_remove(sweep, ~i);
      continue;
    }
    int32_t other = tree_find_overlap(sweep, i);
    if (other >= 0) {
      *ret_overlap = (struct lade_pack_overlap){other, i, events[e].time};
      return 1;
    }
    tree_insert(sweep, i);
  }
  return 0;
}

int lade_pack_overlap_find(const struct lade_pack_item *items, int n_items, const uint64_t *offsets,
                           struct lade_pack_overlap *ret_overlap)
{
  if (n_items <= 0)
    return 0;
  struct overlap_sweep sweep = {.items = items, .offsets = offsets, .root = -1};
  struct event *events = events_create(items, n_items);
  sweep.nodes = malloc((size_t)n_items * sizeof(*sweep.nodes));
  int rc = -ENOMEM;
  if (events && sweep.nodes) {
    for (int i = 0; i < n_items; i++)
      sweep.nodes[i] = (struct node){{-1, -1}, hash((uint32_t)i)};
    rc = sweep_run(&sweep, events, n_items, ret_overlap);
  }
  free(sweep.nodes);
  free(events);
  return rc;
}

/* Check the conditions that concern one item alone. */
static int item_check(const struct lade_pack_item *item, int i, uint64_t offset, struct lade_error *error)
{
  if (item->lower >= item->upper || item->bytes == 0)
    return lade_error_set(error, -EINVAL, "item %d has an empty lifetime or no bytes", i);
  if (offset + item->bytes < offset)
    return lade_error_set(error, -EBADMSG, "item %d ends past 2^64", i);
  if (item->align && offset % item->align)
    return lade_error_set(error, -EBADMSG, "item %d: offset %" PRIu64 " is not a multiple of %" PRIu32, i, offset,
                          item->align);
  if (item->fixed >= 0 && (uint64_t)item->fixed != offset)
    return lade_error_set(error, -EBADMSG, "item %d was fixed at %" PRId64 " and lies at %" PRIu64, i, item->fixed,
                          offset);
  return 0;
}

static int member_compare(const void *a, const void *b)
{
  const struct checked_member *x = a, *y = b;
  if (x->group != y->group)
    return x->group < y->group ? -1 : 1;
  return x->item < y->item ? -1 : 1;
}

/* Check that item @i follows @before in a group, at the next multiple of its alignment. */
static int neighbour_check(const struct lade_pack_item *items, const uint64_t *offsets, int32_t before, int32_t i,
                           struct lade_error *error)
{
  uint64_t end = offsets[before] + items[before].bytes;
  uint64_t past = items[i].align ? end % items[i].align : 0;
  if (offsets[i] >= end && offsets[i] - end == (past ? items[i].align - past : 0))
    return 0;
  return lade_error_set(error, -EBADMSG,
                        "item %" PRId32 " of group %" PRIu32 " lies at %" PRIu64 ", not behind item %" PRId32
                        ", which ends at %" PRIu64, i, items[i].group, offsets[i], before, end);
}

/*
 * Check all groups.
 *
 * pre: @members are the members of all groups, in order.
 */
static int members_check(const struct lade_pack_item *items, const uint64_t *offsets,
                         const struct checked_member *members, int n, struct lade_error *error)
{
  int32_t first = -1;
  for (int k = 0; k < n; k++) {
    int32_t i = members[k].item;
    bool is_first = k == 0 || members[k - 1].group != members[k].group;
    int rc = is_first ? 0 : neighbour_check(items, offsets, members[k - 1].item, i, error);
    if (rc)
      return rc;
    if (is_first)
      first = i;
    if (items[i].align && offsets[first] % items[i].align)
      return lade_error_set(error, -EBADMSG,
                            "item %" PRId32 ", the first of group %" PRIu32 ", lies at %" PRIu64
                            ", which is not a multiple of %" PRIu32 " as item %" PRId32 " of the group wants",
                            first, members[k].group, offsets[first], items[i].align, i);
  }
  return 0;
}

static int groups_check(const struct lade_pack_item *items, int n_items, const uint64_t *offsets,
                        struct lade_error *error)
{
  int n = 0;
  for (int i = 0; i < n_items; i++)
    n += items[i].group != 0;
  if (n == 0)
    return 0;
  struct checked_member *members = malloc((size_t)n * sizeof(*members));
  if (!members)
    return lade_error_set(error, -ENOMEM, "no memory to check %d items of groups", n);
  n = 0;
  for (int i = 0; i < n_items; i++)
    if (items[i].group)
      members[n++] = (struct checked_member){items[i].group, i};
  qsort(members, (size_t)n, sizeof(*members), member_compare);
  int rc = members_check(items, offsets, members, n, error);
  free(members);
  return rc;
}

int lade_pack_check(const struct lade_pack_item *items, int n_items, const uint64_t *offsets, uint64_t peak_bytes,
                    struct lade_error *error)
{
  uint64_t peak = 0;
  if (n_items < 0 || (n_items && (!items || !offsets)))
    return lade_error_set(error, -EINVAL, "lade_pack_check: %d items, or an array that is NULL", n_items);
  for (int i = 0; i < n_items; i++) {
    int rc = item_check(&items[i], i, offsets[i], error);
    if (rc)
      return rc;
    peak = LADE_MAX(peak, offsets[i] + items[i].bytes);
  }
  if (peak != peak_bytes)
    return lade_error_set(error, -EBADMSG, "the peak is said to be %" PRIu64 " bytes and is %" PRIu64, peak_bytes,
                          peak);
  int rc = groups_check(items, n_items, offsets, error);
  if (rc)
    return rc;
  struct lade_pack_overlap overlap = {0};
  int found = lade_pack_overlap_find(items, n_items, offsets, &overlap);
  if (found < 0)
    return lade_error_set(error, found, "no memory to check %d items", n_items);
  if (found)
    return lade_error_set(error, -EBADMSG,
                          "items %" PRId32 " and %" PRId32 " share bytes while both are live at time %" PRId32,
                          overlap.first, overlap.second, overlap.time);
  return 0;
}

int lade_pack_live_peak(const struct lade_pack_item *items, int n_items, uint64_t *ret_bytes)
{
  if (!ret_bytes)
    return -EINVAL;
  uint64_t live = 0, peak = 0;
  if (n_items < 0 || (n_items && !items))
    return -EINVAL;
  for (int i = 0; i < n_items; i++) {
    if (items[i].lower >= items[i].upper || items[i].bytes == 0)
      return -EINVAL;
    if (__builtin_add_overflow(live, items[i].bytes, &live))
      return -EOVERFLOW;
  }
  if (n_items > 0) {
    struct event *events = events_create(items, n_items);
    if (!events)
      return -ENOMEM;
    live = 0;
    for (int e = 0; e < 2 * n_items; e++) {
      int32_t i = events[e].item;
      live = i >= 0 ? live + items[i].bytes : live - items[~i].bytes;
      peak = LADE_MAX(peak, live);
    }
    free(events);
  }
  *ret_bytes = peak;
  return 0;
}
