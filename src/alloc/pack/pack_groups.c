/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: items of one group lie one after another. The search methods do not handle groups. So a group becomes one
 * item or several fixed ones before the search, and its members get their offsets from it afterwards.
 *
 * A run is a group laid out. It starts at a multiple of the largest alignment in it. So the layout of its members is
 * the same at any start, and the search only chooses the start. A group with a fixed member is therefore fixed
 * throughout: each member becomes a fixed item with its own lifetime. Any other group becomes one item, as long as the
 * run and live from the first beginning to the last end.
 *
 * The cost: while a member is not live no other item may use its bytes, and no item may ever use the gaps between
 * members. So a bound of the merged problem is one of the caller's problem only if there is no such space. That needs
 * two conditions. The members of each merged group have one lifetime. No gap holds a multiple of the smallest alignment
 * of all items, where another item could begin. An item that begins before the gap would meet the member there.
 * Otherwise the bound is that of the items without their groups, or the end of the highest run at its lowest start.
 *
 * O(n log n), in the packer's own memory. Rejected: groups that the search methods move as such, with members that have
 * their own lifetimes. Every trial of an offset would then try one for each member, for a case that few programs have.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "alloc/pack/pack_internal.h"

struct group_member {
  uint32_t group;
  int32_t item;
};

/* One group laid out. */
struct group_layout {
  const struct group_member *members;
  int n;
  struct lade_pack_item whole; /* fixed: the start that a fixed member demands, or -1 */
  bool is_exact;
};

static uint64_t item_align(const struct lade_pack_item *item)
{
  return item->align ? item->align : 1;
}

static int member_compare(const void *a, const void *b)
{
  const struct group_member *x = a, *y = b;
  if (x->group != y->group)
    return x->group < y->group ? -1 : 1;
  return (x->item > y->item) - (x->item < y->item);
}

/* Place the members within the run. @align_min is the smallest alignment of all items. */
static void run_lay(struct group_layout *run, const struct lade_pack_item *items, uint64_t align_min, uint64_t *within)
{
  const struct lade_pack_item *first = &items[run->members[0].item];
  uint64_t end = 0;
  run->whole = (struct lade_pack_item){.lower = first->lower, .upper = first->upper, .align = 1, .fixed = -1};
  run->is_exact = true;
  for (int k = 0; k < run->n; k++) {
    const struct lade_pack_item *item = &items[run->members[k].item];
    uint64_t start = lade_align_up(end, item_align(item));
    run->is_exact &= item->lower == first->lower && item->upper == first->upper;
    run->is_exact &= start == lade_align_up(end, align_min);
    run->whole.lower = LADE_MIN(run->whole.lower, item->lower);
    run->whole.upper = LADE_MAX(run->whole.upper, item->upper);
    run->whole.align = LADE_MAX(run->whole.align, item->align);
    within[run->members[k].item] = start;
    end = start + item->bytes;
  }
  run->whole.bytes = end;
}

/* Fix the run's start as its fixed members demand. -EINVAL if they contradict each other. */
static int run_fix(struct group_layout *run, const struct lade_pack_item *items, const uint64_t *within,
                   struct lade_error *error)
{
  int by = -1;
  for (int k = 0; k < run->n; k++) {
    int i = run->members[k].item;
    if (items[i].fixed < 0)
      continue;
    int64_t start = items[i].fixed - (int64_t)within[i];
    if (by >= 0 && start != run->whole.fixed)
      return lade_error_set(error, -EINVAL,
                            "item %d: fixed offset %" PRId64 ", but item %d of its group is fixed where it puts this "
                            "one at %" PRId64, i, items[i].fixed, by, run->whole.fixed + (int64_t)within[i]);
    if (start < 0 || start & (run->whole.align - 1))
      return lade_error_set(error, -EINVAL,
                            "item %d: fixed offset %" PRId64 " puts the start of its group at %" PRId64
                            "; it may start at multiples of its largest alignment, %" PRIu32 ", from 0 up",
                            i, items[i].fixed, start, run->whole.align);
    run->whole.fixed = start;
    by = i;
  }
  return 0;
}

static int32_t item_hand_on(struct pack_groups *groups, struct lade_pack_item item, int32_t name)
{
  item.group = 0;
  groups->items[groups->n] = item;
  groups->names[groups->n] = name;
  return groups->n++;
}

static void run_hand_on(const struct group_layout *run, const struct lade_pack_item *items, struct pack_groups *groups)
{
  bool is_fixed = run->whole.fixed >= 0;
  uint64_t start = is_fixed ? (uint64_t)run->whole.fixed : 0;
  int32_t merged = is_fixed ? -1 : item_hand_on(groups, run->whole, run->members[0].item);
  for (int k = 0; k < run->n; k++) {
    int32_t i = run->members[k].item;
    groups->targets[i] = merged;
    if (!is_fixed)
      continue;
    struct lade_pack_item item = items[i];
    item.fixed = (int64_t)(start + groups->within[i]);
    groups->targets[i] = item_hand_on(groups, item, i);
    groups->within[i] = 0;
  }
  groups->min_end = LADE_MAX(groups->min_end, start + run->whole.bytes);
  groups->is_exact &= is_fixed || run->is_exact;
}

size_t lade_pack_groups_bytes(int n)
{
  size_t per_item = sizeof(struct lade_pack_item) + 2 * sizeof(int32_t) + 2 * sizeof(uint64_t) +
                    sizeof(struct group_member);
  return (size_t)n * per_item + 128;
}

int lade_pack_groups_merge(lade_packer *packer, const struct lade_pack_item *items, int n,
                           struct pack_groups *ret_groups, struct lade_error *error)
{
  struct pack_groups groups = {.is_exact = true};
  struct group_member *members = lade_pack_take(packer, (size_t)n * sizeof(*members));
  uint64_t align_min = UINT64_MAX;
  int n_members = 0;
  groups.items = lade_pack_take(packer, (size_t)n * sizeof(*groups.items));
  groups.names = lade_pack_take(packer, (size_t)n * sizeof(*groups.names));
  groups.targets = lade_pack_take(packer, (size_t)n * sizeof(*groups.targets));
  groups.within = lade_pack_take(packer, (size_t)n * sizeof(*groups.within));
  for (int i = 0; i < n; i++) {
    align_min = LADE_MIN(align_min, item_align(&items[i]));
    groups.within[i] = 0;
    if (items[i].group)
      members[n_members++] = (struct group_member){items[i].group, i};
    else
      groups.targets[i] = item_hand_on(&groups, items[i], i);
  }
  qsort(members, (size_t)n_members, sizeof(*members), member_compare);
  for (int k = 0; k < n_members;) {
    struct group_layout run = {.members = members + k};
    while (k < n_members && members[k].group == run.members[0].group)
      k++;
    run.n = (int)(members + k - run.members);
    run_lay(&run, items, align_min, groups.within);
    int rc = run_fix(&run, items, groups.within, error);
    if (rc)
      return rc;
    run_hand_on(&run, items, &groups);
  }
  LADE_ASSERT(groups.n <= n);
  *ret_groups = groups;
  return 0;
}

void lade_pack_groups_spread(const struct pack_groups *groups, int n, const uint64_t *offsets, uint64_t *ret_offsets)
{
  for (int i = 0; i < n; i++)
    ret_offsets[i] = offsets[groups->targets[i]] + groups->within[i];
}
