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
 * comparison.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/pack/pack_internal.h"

struct seen {
  struct lade_pack_item item;
  int32_t name;
};

/* Order items by all that affects the packing, then by number. */
static int seen_compare(const void *a, const void *b)
{
  const struct seen *x = a, *y = b;
  if (x->item.lower != y->item.lower)
    return x->item.lower < y->item.lower ? -1 : 1;
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

/* Sort @seen into @sorted. @place is scratch for @n_slots + 1 entries. */
static void seen_sort(const struct seen *seen, int n, int n_slots, int32_t *place, struct seen *sorted)
{
  memset(place, 0, ((size_t)n_slots + 1) * sizeof(*place));
  for (int i = 0; i < n; i++)
    place[seen[i].item.lower + 1]++;
  for (int s = 0; s < n_slots; s++)
    place[s + 1] += place[s];
  for (int i = 0; i < n; i++)
    sorted[place[seen[i].item.lower]++] = seen[i];
  for (int s = 0, from = 0; s < n_slots; from = place[s++])
    if (place[s] > from + 1)
      qsort(sorted + from, (size_t)(place[s] - from), sizeof(*sorted), seen_compare);
}

size_t lade_pack_canonical_bytes(int n)
{
  size_t per_item = 2 * sizeof(struct seen) + sizeof(struct lade_pack_item) + 2 * sizeof(int32_t);
  return (size_t)n * per_item + 256;
}

void lade_pack_canonical_make(lade_packer *packer, struct lade_pack_item **ret_items, int32_t **ret_names)
{
  const struct pack_problem *problem = &packer->problem;
  const size_t n = (size_t)problem->n;
  struct lade_pack_item *items = lade_pack_take(packer, n * sizeof(*items));
  int32_t *names = lade_pack_take(packer, n * sizeof(*names));
  const size_t mark = packer->arena_used;
  int32_t *place = lade_pack_take(packer, (n + 1) * sizeof(*place));
  struct seen *seen = lade_pack_take(packer, n * sizeof(*seen)), *sorted = lade_pack_take(packer, n * sizeof(*sorted));
  for (int i = 0; i < problem->n; i++) {
    seen[i] = (struct seen){problem->items[i], i};
    seen[i].item.align = (uint32_t)problem->align[i];
    seen[i].item.lower = problem->lo[i];
    seen[i].item.upper = problem->hi[i];
  }
  seen_sort(seen, problem->n, problem->n_slots, place, sorted);
  for (int k = 0; k < problem->n; k++) {
    items[k] = sorted[k].item;
    names[k] = sorted[k].name;
  }
  packer->arena_used = mark;
  *ret_items = items;
  *ret_names = names;
}
