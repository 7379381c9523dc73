/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repeated layers decided once: one layer is improved, and its siblings take its decisions (layers.h).
 *
 * A long graph has more values than moves. But its layers are alike, so a good way to keep and recompute the values of
 * one is good for all. A pattern is found by annealing the values of one layer without a limit, with bytes at the
 * prices of the lower bound (relax.c). A price says how much time a byte of a turn is worth to the whole step. Most
 * patterns pay less than the bound's prices. They then hold more than fits, and the descent that follows releases the
 * cheapest values of all layers. A pattern that pays more holds too little.
 *
 * Then some or all layers take the pattern, in place of their decisions in the best schedule. A span of boundaries of
 * the pattern's layer becomes the span between the sibling turns. A value whose spans have no siblings keeps its own.
 * The child descends to the limit (descent.c), which saves it if it is the best. A child that is slower than the best
 * before its descent is given up: a layer may save by letting its input go, but if all do, each is made from the first.
 *
 * Each child costs O(n_ops * operands), and so counts as many moves. The search ends after half of the moves and of the
 * time that are left, because windows refine its schedules. Graphs that temper (temper.c) do without: patterns
 * of their few and unequal layers gained nothing for ResNet-50, HRNet and a decoder of 20 layers.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "recompute/graph/search/layers.h"
#include "recompute/graph/search/search_state.h"

#define PATTERN_VALUES 512 /* of one layer; further ones keep their decisions in the pattern */
#define PATTERN_MOVES 1000
#define CLOCK_MOVES 64   /* between two looks at the clock */
#define PATTERN_COOLING 0.005 /* the last temperature of a pattern's annealing, of its first one */
#define PATIENCE 40      /* patterns without a gain that end the search */
#define LEFT_SHARE 2     /* the search may take one part in so many of the moves and of the time that are left */
#define CHILD_OPS 4      /* a child takes as long as one move for so many ops */
#define REDO_SHARE 1.25  /* of the best schedule's redos: a child with more is broken off */
#define CHILD_EFFORT 0.1 /* of a descent: a child that makes long chains again would take most of the time */
#define PRICES_MIN 0.5   /* least and most of the bound's prices that a pattern pays */
#define PRICES_MAX 1.1

struct repetition {
  struct remat_state *search;
  struct remat_layers layers;
  int32_t *window;              /* PATTERN_VALUES */
  struct remat_schedule pattern; /* in which one layer was improved */
  int stack, layer;             /* of the pattern */
  int from, to;                 /* layers that take it */
};

/* ---- a pattern ---- */

static void window_make(struct repetition *repetition)
{
  struct remat_state *search = repetition->search;
  const struct remat_layers *layers = &repetition->layers;
  search->n_window = 0;
  for (int v = 0; v < search->problem->n_values && search->n_window < PATTERN_VALUES; v++) {
    const int maker = search->problem->values[v].birth;
    if (maker >= 0 && remat_layers_stack(layers, maker) == repetition->stack &&
        remat_layers_get(layers, maker) == repetition->layer)
      repetition->window[search->n_window++] = v;
  }
  search->window = repetition->window;
}

/* Anneal the values of the window at the prices of the bound, without a limit. */
static int pattern_anneal(struct remat_state *search)
{
  const double price = search->price, cooling = pow(PATTERN_COOLING, 1.0 / PATTERN_MOVES);
  const int64_t work = search->schedule.work;
  int status = 0;
  search->price = 0;
  search->guidance = PRICES_MIN + (PRICES_MAX - PRICES_MIN) * remat_random_unit(search);
  search->temperature = search->typical_ns * pow(10, -remat_random_unit(search));
  for (int i = 0; i < PATTERN_MOVES && search->n_window && !status && !search->is_over; i++) {
    if (i % CLOCK_MOVES == 0)
      remat_clock_look(search);
    status = remat_move_try(search);
    remat_commit(&search->schedule);
    search->temperature *= cooling;
  }
  remat_moves_count(search, PATTERN_MOVES, work);
  search->guidance = 0;
  search->price = price;
  return status;
}

/* Draw a layer, and improve it in the best schedule. pre: there is a stack. */
static int pattern_make(struct repetition *repetition)
{
  struct remat_state *search = repetition->search;
  int op = remat_random_below(search, search->problem->n_ops);
  while (remat_layers_stack(&repetition->layers, op) < 0)
    op = (op + 1) % search->problem->n_ops;
  repetition->stack = remat_layers_stack(&repetition->layers, op);
  repetition->layer = remat_layers_get(&repetition->layers, op);
  int status = remat_search_restart(search, search->best);
  if (status)
    return status;
  window_make(repetition);
  status = pattern_anneal(search);
  search->window = NULL;
  repetition->pattern = search->schedule;
  search->schedule = (struct remat_schedule){0};
  return status;
}

/* ---- its siblings ---- */

/* Return the turn that is to @turn as the layer @shift further is to the pattern's; -1: there is none. */
static int turn_sibling(const struct repetition *repetition, int turn, int shift)
{
  const struct remat_layers *layers = &repetition->layers;
  if (turn == layers->problem->n_ops) /* the end of the step, for all */
    return turn;
  return remat_layers_stack(layers, turn) == repetition->stack ? remat_layers_sibling(layers, turn, shift) : -1;
}

/* Append to @child the pattern's spans of the sibling of @value. Return their number; -1: it has none. -ENOMEM. */
static int spans_copy(const struct repetition *repetition, int value, struct remat_choices *child)
{
  const struct remat_layers *layers = &repetition->layers;
  const struct remat_value *v = &layers->problem->values[value];
  if (v->birth < 0 || remat_layers_stack(layers, v->birth) != repetition->stack)
    return -1;
  const int layer = remat_layers_get(layers, v->birth), shift = layer - repetition->layer, n_before = child->list.n;
  const int sibling = layer < repetition->from || layer > repetition->to ? -1
                                                                          : remat_layers_value(layers, value, -shift);
  if (sibling < 0)
    return -1;
  const struct remat_holding *holding = &repetition->pattern.holdings[sibling];
  int last = v->birth;
  for (int i = 0; i < holding->spans.n; i++) {
    const int touch = turn_sibling(repetition, holding->spans.items[i].from - 1, shift);
    const int to = turn_sibling(repetition, holding->spans.items[i].to, shift);
    const struct remat_choice choice = {value, {touch + 1, to}};
    if (touch < last || to <= touch || to > v->last_use) {
      child->list.n = n_before;
      return -1;
    }
    if (!LADE_PUSH(&child->list, choice))
      return -ENOMEM;
    last = to + 1;
  }
  return holding->spans.n;
}

/* Make the decisions of the child: those of the best schedule, but the pattern's in the layers from .. to. -ENOMEM. */
static int child_make(const struct repetition *repetition, struct remat_choices *child)
{
  const struct remat_choices *best = repetition->search->best;
  int at = 0;
  child->is_saved = true;
  for (int v = 0; v < repetition->layers.problem->n_values; v++) {
    const int n_copied = spans_copy(repetition, v, child);
    if (n_copied == -ENOMEM)
      return n_copied;
    for (; at < best->list.n && best->list.items[at].value == v; at++) {
      if (n_copied < 0 && !LADE_PUSH(&child->list, best->list.items[at]))
        return -ENOMEM;
    }
  }
  return 0;
}

/* Let the layers from .. to take the pattern, and bring the child within the limit. */
static int child_try(struct repetition *repetition)
{
  struct remat_state *search = repetition->search;
  struct remat_choices child = {0};
  const double max_ns = REDO_SHARE * (double)search->best_ns + search->largest_ns;
  int status = child_make(repetition, &child);
  if (!status)
    status = remat_search_load(search, &child, (int64_t)max_ns);
  remat_choices_free(&child);
  if (!status && !search->schedule.is_broken)
    remat_waste_release(&search->schedule);
  status = status ? status : search->schedule.status;
  if (status || search->schedule.is_broken)
    return status;
  remat_commit(&search->schedule);
  const bool is_hopeless = remat_over(&search->schedule) > 0 && search->schedule.redo_ns >= search->best_ns;
  status = is_hopeless ? 0 : remat_search_fit(search, CHILD_EFFORT);
  remat_moves_count(search, search->problem->n_ops / CHILD_OPS, 0);
  return status;
}

/* Let all layers take a new pattern; then those of a drawn range. */
static int pattern_try(struct repetition *repetition)
{
  struct remat_state *search = repetition->search;
  int status = pattern_make(repetition);
  const struct remat_stack *stack = &repetition->layers.stacks.items[repetition->stack];
  repetition->from = stack->first_layer;
  repetition->to = stack->last_layer;
  if (!status && !search->is_over)
    status = child_try(repetition);
  repetition->from += remat_random_below(search, stack->last_layer - stack->first_layer + 1);
  repetition->to -= remat_random_below(search, stack->last_layer - repetition->from + 1);
  if (!status && !search->is_over)
    status = child_try(repetition);
  remat_schedule_finish(&repetition->pattern);
  remat_clock_look(search);
  return status;
}

static int patterns_try(struct repetition *repetition)
{
  struct remat_state *search = repetition->search;
  const int64_t last_moves = search->n_moves + (search->params->n_moves - search->n_moves) / LEFT_SHARE;
  const int64_t begin_ns = lade_now_ns(), left_ns = search->params->deadline_ns - begin_ns;
  double *prices = NULL;
  int64_t bound_ns;
  repetition->window = malloc(PATTERN_VALUES * sizeof(*repetition->window));
  int status = repetition->window ? remat_prices_find(search, &prices, &bound_ns) : -ENOMEM;
  search->prices = prices;
  for (int idle = 0; idle < PATIENCE && !status && !search->is_over && search->n_moves < last_moves &&
                     lade_now_ns() - begin_ns < left_ns / LEFT_SHARE;) {
    const int64_t before_ns = search->best_ns;
    status = pattern_try(repetition);
    idle = search->best_ns < before_ns ? 0 : idle + 1;
  }
  search->prices = NULL;
  free(repetition->window);
  free(prices);
  return status ? status : remat_search_restart(search, search->best);
}

int remat_repeat(struct remat_state *search)
{
  struct repetition repetition = {.search = search};
  if ((search->params->n_moves - search->n_moves) / LEFT_SHARE < search->problem->n_ops)
    return 0; /* too few for some children */
  int status = remat_layers_init(&repetition.layers, search->problem);
  if (!status && repetition.layers.n_in_stacks)
    status = patterns_try(&repetition);
  remat_layers_finish(&repetition.layers);
  return status;
}
