/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instances of the packing problem for benches and tests, drawn from a seed.
 *
 * jigsaw_make cuts a rectangle of time and bytes into pieces: that they fill it again without a gap is known, how
 * is not said. MiniMalloc's challenging instances A to E look like it: at two thirds of their times or more as
 * many bytes end as begin, all is on a grid of 1,024 by 1,024, and some pieces are missing.
 *   even    each cut is in the middle half of the largest of three pieces that were drawn
 *   any     each cut is anywhere in any piece that is not thinner than a 64th of the rectangle
 *   wheels  as even, but half of the cuts leave five pieces, four around a middle one, which no cut through a whole
 *           piece could
 */
#ifndef LADE_BENCH_PACK_INSTANCES_H
#define LADE_BENCH_PACK_INSTANCES_H

#include "base/base.h"
#include "base/philox.h"
#include "lade/pack.h"

enum jigsaw_cuts { JIGSAW_EVEN, JIGSAW_ANY, JIGSAW_WHEELS, JIGSAW_N_CUTS };

struct jigsaw {
  enum jigsaw_cuts cuts;
  int n_pieces;
  int span, height;  /* of the rectangle, in steps of time and in granules */
  uint64_t granule;  /* in bytes */
  int per_mille_out; /* of the pieces are taken out again */
  bool has_ground;   /* those at the bottom are fixed there */
  uint64_t seed;
};

struct instance_draws {
  uint64_t seed, n;
};

static inline uint32_t instance_draw(struct instance_draws *draws, uint32_t below)
{
  return lade_philox_word(draws->seed, 0, 0, draws->n++) % below;
}

/* In the middle half of @extent, or anywhere in it. */
static inline int jigsaw_at(struct instance_draws *draws, int extent, bool is_middle)
{
  int at = is_middle ? extent / 4 + (int)instance_draw(draws, (uint32_t)LADE_MAX(extent / 2, 1))
                     : (int)instance_draw(draws, (uint32_t)extent);
  return LADE_MAX(at, 1);
}

/* Cut @from in two along one direction; the second part is @to. */
static inline void jigsaw_cut(struct lade_pack_item *from, struct lade_pack_item *to, bool is_vertical, int at)
{
  *to = *from;
  if (is_vertical) {
    from->upper = from->lower + at;
    to->lower = from->upper;
  } else {
    from->bytes = (uint64_t)at;
    to->bytes -= (uint64_t)at;
    to->fixed += at;
  }
}

/* Where the sides of a wheel's middle are. */
static inline void jigsaw_middle(struct instance_draws *draws, int extent, int ret_at[2])
{
  ret_at[0] = extent / 8 + (int)instance_draw(draws, (uint32_t)extent / 3);
  ret_at[1] = extent - extent / 8 - 1 - (int)instance_draw(draws, (uint32_t)extent / 4);
}

/* Cut @from into four around a middle one; @to has room for the others. */
static inline void jigsaw_wheel(struct instance_draws *draws, struct lade_pack_item *from, struct lade_pack_item *to)
{
  int time[2], byte[2];
  jigsaw_middle(draws, from->upper - from->lower, time);
  jigsaw_middle(draws, (int)from->bytes, byte);
  const int32_t t0 = from->lower, t1 = t0 + time[0], t2 = t0 + time[1], t3 = from->upper;
  const int64_t b0 = from->fixed, b1 = b0 + byte[0], b2 = b0 + byte[1], b3 = b0 + (int64_t)from->bytes;
  *from = (struct lade_pack_item){t0, t2, (uint64_t)(b1 - b0), 1, b0};
  to[0] = (struct lade_pack_item){t2, t3, (uint64_t)(b2 - b0), 1, b0};
  to[1] = (struct lade_pack_item){t1, t3, (uint64_t)(b3 - b2), 1, b2};
  to[2] = (struct lade_pack_item){t0, t1, (uint64_t)(b3 - b1), 1, b1};
  to[3] = (struct lade_pack_item){t1, t2, (uint64_t)(b2 - b1), 1, b1};
}

/* A piece of the @n at @items to be cut. */
static inline struct lade_pack_item *jigsaw_pick(struct instance_draws *draws, enum jigsaw_cuts cuts,
                                                 struct lade_pack_item *items, int n)
{
  struct lade_pack_item *from = &items[instance_draw(draws, (uint32_t)n)];
  for (int k = 0; k < 2 && cuts != JIGSAW_ANY; k++) {
    struct lade_pack_item *other = &items[instance_draw(draws, (uint32_t)n)];
    if ((uint64_t)(other->upper - other->lower) * other->bytes > (uint64_t)(from->upper - from->lower) * from->bytes)
      from = other;
  }
  return from;
}

static inline void instance_swap(struct lade_pack_item *a, struct lade_pack_item *b)
{
  struct lade_pack_item swap = *a;
  *a = *b;
  *b = swap;
}

/* Cut one of the @n pieces. Returns how many there are then. */
static inline int jigsaw_step(struct instance_draws *draws, const struct jigsaw *how, struct lade_pack_item *items,
                              int n)
{
  struct lade_pack_item *from = jigsaw_pick(draws, how->cuts, items, n);
  const bool is_vertical = instance_draw(draws, 2), is_wheel = how->cuts == JIGSAW_WHEELS && instance_draw(draws, 2);
  const int length = from->upper - from->lower, bytes = (int)from->bytes, extent = is_vertical ? length : bytes;
  if (is_wheel && n + 4 <= how->n_pieces && LADE_MIN(length, bytes) >= 8) {
    jigsaw_wheel(draws, from, items + n);
    return n + 4;
  }
  if (extent < (how->cuts == JIGSAW_ANY ? (is_vertical ? how->span : how->height) / 64 : 0) || extent < 2)
    return n;
  jigsaw_cut(from, items + n, is_vertical, jigsaw_at(draws, extent, how->cuts != JIGSAW_ANY));
  return n + 1;
}

/* Returns how many of the @how->n_pieces at @items are left. */
static inline int jigsaw_make(const struct jigsaw *how, struct lade_pack_item *items)
{
  struct instance_draws draws = {how->seed, 0};
  int n = 1;
  items[0] = (struct lade_pack_item){0, how->span, (uint64_t)how->height, 1, 0};
  while (n < how->n_pieces)
    n = jigsaw_step(&draws, how, items, n);
  for (int i = n - 1; i > 0; i--)
    instance_swap(&items[i], &items[instance_draw(&draws, (uint32_t)i + 1)]);
  n -= n * how->per_mille_out / 1000;
  for (int i = 0; i < n; i++) {
    items[i].bytes *= how->granule;
    items[i].fixed = how->has_ground && items[i].fixed == 0 ? 0 : -1;
  }
  return n;
}

#endif
