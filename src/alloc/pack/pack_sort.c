/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorting by falling key, for the packer's orders.
 *
 * A call of some ten microseconds sorts some hundred entries. The calls of qsort through a pointer and its allocation
 * would be a tenth of that time. Short runs are sorted by insertion, then merged in pairs, between the array and the
 * scratch. O(n log n), without recursion.
 */
#include <string.h>

#include "alloc/pack/pack_internal.h"

#define RUN_ENTRIES 8

static void run_sort(struct keyed *run, int n)
{
  for (int a = 1; a < n; a++) {
    const struct keyed entry = run[a];
    int b = a;
    for (; b > 0 && lade_pack_keyed_is_first(&entry, &run[b - 1]); b--)
      run[b] = run[b - 1];
    run[b] = entry;
  }
}

/* Merge the sorted entries [0, middle) and [middle, n) of @from. */
static void runs_merge(const struct keyed *from, int middle, int n, struct keyed *to)
{
  int a = 0, b = middle;
  for (int k = 0; k < n; k++)
    to[k] = b >= n || (a < middle && !lade_pack_keyed_is_first(&from[b], &from[a])) ? from[a++] : from[b++];
}

void lade_pack_sort(struct keyed *sorted, int n, struct keyed *scratch)
{
  struct keyed *from = sorted, *to = scratch;
  for (int a = 0; a < n; a += RUN_ENTRIES)
    run_sort(sorted + a, LADE_MIN(RUN_ENTRIES, n - a));
  for (int64_t run = RUN_ENTRIES; run < n; run *= 2) {
    for (int64_t a = 0; a < n; a += 2 * run)
      runs_merge(from + a, (int)LADE_MIN(run, n - a), (int)LADE_MIN(2 * run, n - a), to + a);
    struct keyed *swap = from;
    from = to;
    to = swap;
  }
  if (from != sorted)
    memcpy(sorted, from, (size_t)n * sizeof(*sorted));
}
