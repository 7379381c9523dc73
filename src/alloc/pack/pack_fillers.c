/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fillers: items that represent the free space of a packing.
 *
 * If every slot is full to the last byte, the exact search sees a dead end at once. If some bytes are free, it may put
 * the gap anywhere, and each place of the gap is a choice. But free space often has a simple shape, for example the
 * rectangle of a buffer that one program lacks. So some of the search's attempts assume such a shape. The free space at
 * the capacity, slot by slot, is cut into rectangles, which are then packed with the items without any gap. The cut:
 * where the free space grows a filler begins. Where it shrinks fillers end: one of exactly that size if there is one,
 * otherwise arbitrary ones, the last of them in part. The choice of fillers is random, so that attempts differ.
 *
 * A packing with the fillers is also one without them. If there is none with them, that proves nothing.
 */
#include "alloc/pack/pack_exact.h"

#define OPEN INT32_MAX /* not ended yet */

/*
 * Return an open filler of @bytes, or else a random open one, with a preference for late ones.
 *
 * pre: a filler is open.
 */
static int filler_pick(const struct pack_candidate *fillers, int n, int64_t bytes, uint64_t *random_state)
{
  int pick = -1;
  for (int k = 0; k < n; k++) {
    if (fillers[k].hi != OPEN)
      continue;
    if (fillers[k].bytes == bytes)
      return k;
    if (pick < 0 || lade_pack_random(random_state) < 0.5)
      pick = k;
  }
  LADE_ASSERT(pick >= 0);
  return pick;
}

/* End open fillers of @bytes in total at slot @s. Return the new number of fillers. */
static int fillers_end(struct pack_candidate *fillers, int n, int s, int64_t bytes, uint64_t *random_state)
{
  while (bytes > 0) {
    struct pack_candidate *filler = &fillers[filler_pick(fillers, n, bytes, random_state)];
    if (filler->bytes > bytes) {
      fillers[n] = *filler;
      fillers[n++].bytes -= bytes;
      filler->bytes = bytes;
    }
    filler->hi = s;
    bytes -= filler->bytes;
  }
  return n;
}

int lade_pack_fillers_make(const struct pack_problem *problem, int64_t capacity, uint64_t *random_state,
                           struct pack_candidate *ret_fillers)
{
  int64_t before = 0;
  int n = 0;
  for (int s = 0; s <= problem->n_slots; s++) {
    int64_t live = s < problem->n_slots ? (int64_t)(problem->live[s] / problem->granule) : capacity;
    int64_t now = LADE_MAX(capacity - live, 0);
    if (now > before)
      ret_fillers[n++] = (struct pack_candidate){s, OPEN, now - before, -1};
    else
      n = fillers_end(ret_fillers, n, s, before - now, random_state);
    before = now;
  }
  LADE_ASSERT(n <= 2 * problem->n_slots);
  return n;
}
