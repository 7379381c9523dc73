/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fillers: what would be free in a packing, made items of.
 *
 * Where every slot is full to the last byte the exact search sees a dead end at once; where a little is free it may put
 * the gap anywhere, and each place of the gap is a choice. But what is free often has a simple shape: a rectangle that
 * was left where one program's buffer is missing, say. So some of the search's attempts take for granted that it has:
 * what is free at the capacity, slot by slot, is cut into rectangles, which are then packed with the rest, without any
 * gap. The cut: where more gets free a filler begins; where less does fillers end, one of just that size if there is
 * one, else any ones, the last of them in part. Which ones is drawn, so that attempts differ.
 *
 * A packing with the fillers is one without them. That there is none with them says nothing.
 */
#include "alloc/pack_exact.h"

#define OPEN INT32_MAX /* no end yet */

/* An open filler of @bytes, or else any open one, rather a late one. There is one. */
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

/* End open fillers of together @bytes at slot @s. Returns how many there are of all kinds. */
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
