/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instances of the packing problem for benches and tests, drawn from a seed.
 *
 * jigsaw_make cuts a rectangle of time and bytes into pieces: they are known to fill it without a gap, but the packing
 * is not given. MiniMalloc's challenging instances A to E look like it. At two thirds of their times or more as many
 *   bytes end as begin. All pieces are on a grid of 1,024 by 1,024, and some are missing.
 *   even    each cut is in the middle half of the largest of three pieces that were drawn
 *   any     each cut is anywhere in any piece that is not thinner than a 64th of the rectangle
 *   wheels  as even, but half of the cuts leave five pieces, four around a middle one, which no cut through a whole
 *           piece could
 *
 * network_make makes a training step of a network whose layers shrink from stage to stage, as those of convolutions do.
 * Outputs wait for the backward pass. Gradients and workspace live for a few steps. Gradients of weights wait for the
 * end of a stage or of the pass. All sizes, and which layers exist, are drawn. lives_make draws buffers of any times
 * and sizes; boxes_make draws buffers like MiniMalloc's F: short, of like sizes, and tight at few times. The optimal
 * peaks of these are not known.
 *
 * instance_shuffle and instance_scale change an instance's representation but not its problem.
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
  int per_mille_out; /* of the pieces are removed */
  bool has_ground;   /* pieces at the bottom are fixed there */
  uint64_t seed;
};

struct instance_draws {
  uint64_t seed, n;
};

static inline uint32_t instance_draw(struct instance_draws *draws, uint32_t below)
{
  return lade_philox_word(draws->seed, 0, 0, draws->n++) % below;
}

/* Return a place in the middle half of @extent, or anywhere in it. */
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

/* Draw the places of the sides of a wheel's middle. */
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

/* Pick a piece of the @n at @items to be cut. */
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

/* Cut one of the @n pieces. Returns the new number of pieces. */
static inline int jigsaw_step(struct instance_draws *draws, const struct jigsaw *spec, struct lade_pack_item *items,
                              int n)
{
  struct lade_pack_item *from = jigsaw_pick(draws, spec->cuts, items, n);
  const bool is_vertical = instance_draw(draws, 2), is_wheel = spec->cuts == JIGSAW_WHEELS && instance_draw(draws, 2);
  const int length = from->upper - from->lower, bytes = (int)from->bytes, extent = is_vertical ? length : bytes;
  if (is_wheel && n + 4 <= spec->n_pieces && LADE_MIN(length, bytes) >= 8) {
    jigsaw_wheel(draws, from, items + n);
    return n + 4;
  }
  if (extent < (spec->cuts == JIGSAW_ANY ? (is_vertical ? spec->span : spec->height) / 64 : 0) || extent < 2)
    return n;
  jigsaw_cut(from, items + n, is_vertical, jigsaw_at(draws, extent, spec->cuts != JIGSAW_ANY));
  return n + 1;
}

/* Returns how many of the @spec->n_pieces at @items are left. */
static inline int jigsaw_make(const struct jigsaw *spec, struct lade_pack_item *items)
{
  struct instance_draws draws = {spec->seed, 0};
  int n = 1;
  items[0] = (struct lade_pack_item){0, spec->span, (uint64_t)spec->height, 1, 0};
  while (n < spec->n_pieces)
    n = jigsaw_step(&draws, spec, items, n);
  for (int i = n - 1; i > 0; i--)
    instance_swap(&items[i], &items[instance_draw(&draws, (uint32_t)i + 1)]);
  n -= n * spec->per_mille_out / 1000;
  for (int i = 0; i < n; i++) {
    items[i].bytes *= spec->granule;
    items[i].fixed = spec->has_ground && items[i].fixed == 0 ? 0 : -1;
  }
  return n;
}

/* ---- drawn without a known packing ---- */

enum { NETWORK_LAYER_ITEMS = 12 }; /* at most, for each layer of a network */

struct network {
  int n_layers;
  uint64_t seed;
};

/* A network in progress: items are added at a time that only grows. */
struct network_step {
  struct instance_draws draws;
  struct lade_pack_item *items;
  int n, t;
};

static inline int network_add(struct network_step *step, int lower, int upper, uint64_t bytes)
{
  step->items[step->n] = (struct lade_pack_item){lower, upper, LADE_MAX(bytes, 4), 1, -1};
  return step->n++;
}

/* Items that a layer keeps: outputs, statistics, weights as they are used. */
struct network_layer {
  uint64_t output_bytes, weight_bytes;
  int kept[5], n_kept;
};

static inline void network_forward(struct network_step *step, struct network_layer *layer)
{
  struct instance_draws *draws = &step->draws;
  const int t = step->t;
  layer->kept[layer->n_kept++] = network_add(step, t, t + 1, layer->output_bytes);
  layer->kept[layer->n_kept++] = network_add(step, t - 1, t + 1, layer->weight_bytes / 2);
  for (int k = 0; k < 2; k++)
    layer->kept[layer->n_kept++] = network_add(step, t + 1, t + 2, 256u << instance_draw(draws, 4));
  if (instance_draw(draws, 3) == 0)
    layer->kept[layer->n_kept++] = network_add(step, t + 2, t + 3, layer->output_bytes);
  if (instance_draw(draws, 2))
    network_add(step, t, t + 1 + (int)instance_draw(draws, 10), layer->output_bytes >> instance_draw(draws, 4));
  step->t += 2 + (int)instance_draw(draws, 3);
}

/* Add a layer's backward. The end of a weight's gradient that waits to be applied is not known yet: INT32_MAX. */
static inline void network_backward(struct network_step *step, const struct network_layer *layer)
{
  struct instance_draws *draws = &step->draws;
  const int t = step->t;
  network_add(step, t, t + 3 + (int)instance_draw(draws, 9), layer->output_bytes);
  network_add(step, t + 2, t + 4 + (int)instance_draw(draws, 3), layer->weight_bytes / 2);
  network_add(step, t + 3, INT32_MAX, layer->weight_bytes);
  for (int k = 0; k < layer->n_kept; k++)
    step->items[layer->kept[k]].upper = t + 3 + (int)instance_draw(draws, 6);
  step->t += 4 + (int)instance_draw(draws, 8);
}

/* End the waiting gradients one after the other, each with an update of a few steps. */
static inline void network_update(struct network_step *step)
{
  for (int i = 0, n = step->n; i < n; i++)
    if (step->items[i].upper == INT32_MAX) {
      step->items[i].upper = step->t + 2;
      step->t += 1 + (int)instance_draw(&step->draws, 3);
    }
}

/* Returns how many items were made; there is room for NETWORK_LAYER_ITEMS a layer, of at most 1,000 layers. */
static inline int network_make(const struct network *spec, struct lade_pack_item *items)
{
  struct network_layer layers[1000];
  struct network_step step = {.draws = {spec->seed, 0}, .items = items, .t = 2};
  const uint64_t base = 1024 * (uint64_t)(8192 + instance_draw(&step.draws, 65536));
  for (int l = 0; l < spec->n_layers; l++) {
    const int stage = 4 * l / spec->n_layers;
    const bool is_narrow = instance_draw(&step.draws, 3) != 0;
    layers[l] = (struct network_layer){.output_bytes = base >> (stage + 2 * is_narrow),
                                       .weight_bytes = (uint64_t)(4 + instance_draw(&step.draws, 12))
                                                       << (12 + 2 * stage)};
    network_forward(&step, &layers[l]);
  }
  const int n_stages = 1 + (int)instance_draw(&step.draws, 4);
  for (int l = spec->n_layers - 1; l >= 0; l--) {
    network_backward(&step, &layers[l]);
    if (l * n_stages / spec->n_layers != (l - 1) * n_stages / spec->n_layers || l == 0)
      network_update(&step);
  }
  return step.n;
}

/* Make @n buffers that live for 1/@part of the time on average, sizes even over powers of two up to 4 MiB. */
static inline void lives_make(uint64_t seed, int n, int part, struct lade_pack_item *items)
{
  for (int i = 0; i < n; i++) {
    const struct lade_philox draw = lade_philox_draw(seed, 0, 0, (uint64_t)i);
    const int32_t end = 2 * n, lower = (int32_t)(draw.word[0] % (uint32_t)end);
    const int32_t length = 1 + (int32_t)(draw.word[1] % ((uint32_t)(2 * end) / (uint32_t)part + 1));
    const uint64_t power = (uint64_t)512 << draw.word[2] % 13;
    items[i] = (struct lade_pack_item){lower, LADE_MIN(lower + length, end + 1), power + draw.word[3] % power, 512, -1};
  }
}

/* Make @n buffers on a grid of 1,024 steps of time. */
static inline void boxes_make(uint64_t seed, int n, struct lade_pack_item *items)
{
  struct instance_draws draws = {seed, 0};
  for (int i = 0; i < n; i++) {
    const int32_t lower = (int32_t)instance_draw(&draws, 1024 - 56), length = 17 + (int32_t)instance_draw(&draws, 40);
    items[i] = (struct lade_pack_item){lower, lower + length, (uint64_t)(32 + instance_draw(&draws, 77)) << 10, 1, -1};
  }
}

/* ---- the same instance in another form ---- */

static inline void instance_shuffle(uint64_t seed, struct lade_pack_item *items, int n)
{
  struct instance_draws draws = {seed, 0};
  for (int i = n - 1; i > 0; i--)
    instance_swap(&items[i], &items[instance_draw(&draws, (uint32_t)i + 1)]);
}

/* Multiply times and sizes by odd factors, and shift times. */
static inline void instance_scale(struct lade_pack_item *items, int n)
{
  for (int i = 0; i < n; i++) {
    items[i].lower = 3 * items[i].lower + 17;
    items[i].upper = 3 * items[i].upper + 17;
    items[i].bytes *= 7;
  }
}

#endif
