/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One form for all instances that are the same problem.
 *
 * A program may list its buffers in any order, with any times that leave its slots unchanged. The search methods break
 * ties by the items' order and numbers, so one form of a program could pack worse than another by chance. So they get
 * the items sorted, with slots as times.
 *
 * A program read backwards needs as many bytes, and its direction could be normalised the same way. That is rejected. A
 * program's addresses are reused in the order of its time. Packed from its end, a buffer more often begins where
 * another has just ended. Then queues wait for each other (tests/unit/run/test_stages_together.c).
 *
 * The items are sorted by counting over the slot in which they begin. Each slot begins few items, which are sorted by
 * insertion, many of one slot by qsort.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_internal.h"

#define INSERTION_ITEMS 24 /* sorted by insertion at most */

struct seen {
  struct lade_pack_item item;
  int32_t name;
  uint32_t length;
};

/* Order items that begin together by all that affects the packing, then by number. */
static int seen_compare(const void *a, const void *b)
{
  const struct seen *x = a, *y = b;
  if (x->item.upper != y->item.upper)
    return x->item.upper < y->item.upper ? -1 : 1;
  if (x->item.bytes != y->item.bytes)
    return x->item.bytes < y->item.bytes ? -1 : 1;
  if (x->item.align != y->item.align)
    return x->item.align < y->item.align ? -1 : 1;
  if (x->item.fixed != y->item.fixed)
    return x->item.fixed < y->item.fixed ? -1 : 1;
  return x->name < y->name ? -1 : x->name > y->name;
}

/* Sort @n items that begin together. */
static void seen_sort(struct seen *seen, int n)
{
  if (n > INSERTION_ITEMS) {
    qsort(seen, (size_t)n, sizeof(*seen), seen_compare);
    return;
  }
  for (int a = 1; a < n; a++) {
    if (seen_compare(&seen[a - 1], &seen[a]) < 0)
      continue;
    const struct seen one = seen[a];
    int b = a;
    for (; b > 0 && seen_compare(&one, &seen[b - 1]) < 0; b--)
      seen[b] = seen[b - 1];
    seen[b] = one;
  }
}

size_t lade_pack_canonical_bytes(int n)
{
  size_t per_item = sizeof(struct seen) + sizeof(struct lade_pack_item) + 2 * sizeof(int32_t);
  return (size_t)n * per_item + 256;
}

/* Make the problem that of its own items, sorted as @seen. */
static void problem_rename(struct pack_problem *problem, const struct seen *seen, struct lade_pack_item *items,
                           int32_t *names)
{
  for (int k = 0; k < problem->n; k++) {
    items[k] = seen[k].item;
    names[k] = seen[k].name;
    problem->length[k] = seen[k].length;
    problem->lo[k] = items[k].lower;
    problem->hi[k] = items[k].upper;
    problem->align[k] = items[k].align;
    problem->bytes[k] = lade_align_up(items[k].bytes, problem->align_min);
  }
  problem->items = items;
}

int32_t *lade_pack_canonical_make(lade_packer *packer)
{
  struct pack_problem *problem = &packer->problem;
  const size_t n = (size_t)problem->n;
  struct lade_pack_item *items = lade_pack_take(packer, n * sizeof(*items));
  int32_t *names = lade_pack_take(packer, n * sizeof(*names));
  const size_t mark = packer->arena_used;
  int32_t *place = lade_pack_take(packer, (n + 1) * sizeof(*place));
  struct seen *seen = lade_pack_take(packer, n * sizeof(*seen));
  memset(place, 0, (n + 1) * sizeof(*place));
  for (size_t i = 0; i < n; i++)
    place[problem->lo[i] + 1]++;
  for (int s = 0; s < problem->n_slots; s++)
    place[s + 1] += place[s];
  for (int i = 0; i < problem->n; i++) {
    struct seen *one = &seen[place[problem->lo[i]]++];
    *one = (struct seen){problem->items[i], i, problem->length[i]};
    one->item.align = (uint32_t)problem->align[i];
    one->item.lower = problem->lo[i];
    one->item.upper = problem->hi[i];
  }
  for (int s = 0, from = 0; s < problem->n_slots; from = place[s++])
    seen_sort(seen + from, place[s] - from);
  problem_rename(problem, seen, items, names);
  packer->arena_used = mark;
  return names;
}
