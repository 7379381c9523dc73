/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the repeated layers of a step (layers.h).
 *
 * Each op gets a label: a hash of the bytes and classes of its operands. In each of ROUNDS rounds, the label takes in
 * those of the ops that made the operands and of the ops that read the results. This is the colour refinement of
 * Weisfeiler and Leman (1968). Times do not count, because equal layers have unequal times in a profile. Ops with one
 * label are one kind. Near the first and the last layer, neighbours differ, so kinds may lack some ops there.
 *
 * Kinds are related if most ops of one read values of the other, rank by rank, forwards or backwards. Related kinds are
 * joined to stacks by a union-find (Tarjan 1975) whose links say how the layers of one kind number those of the other.
 * An op that reads the layer before is counted to that layer. This only chooses where a layer begins.
 *
 * Rejected: layers given by classes alone. Graphs of frameworks have none, and a class says nothing of the layer's
 * number, which runs backwards in the backward pass.
 */
#include "recompute/graph/search/layers.h"

#include <errno.h>
#include <stdlib.h>

#define ROUNDS 4     /* with two, both halves of a transformer's layer look alike */
#define LAYERS_MIN 3 /* ops of a kind */

/* ---- labels ---- */

struct labelled_op {
  uint64_t label;
  int32_t op;
};

/* Mix the bits of @x (Stafford's variant 13 of MurmurHash3's finalizer). */
static uint64_t mix(uint64_t x)
{
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static uint64_t label_join(uint64_t label, uint64_t other)
{
  return mix(label * 0x9e3779b97f4a7c15u + other);
}

static uint64_t value_label(const struct remat_problem *problem, int value)
{
  const struct remat_value *v = &problem->values[value];
  return label_join(v->bytes, problem->graph->storages.items[v->storage].class_name);
}

/* Label each op by its own operands. */
static void labels_begin(const struct remat_problem *problem, uint64_t *labels)
{
  for (int op = 0; op < problem->n_ops; op++) {
    const struct remat_op *o = &problem->ops[op];
    const struct graph_op *g = &problem->graph->ops.items[op];
    uint64_t label = label_join((uint64_t)o->n_in << 32 | (uint64_t)o->n_out, o->scratch_bytes);
    label = label_join(label, (uint64_t)g->pass << 2 | (uint64_t)g->is_once << 1 | g->queue);
    for (int i = 0; i < o->n_in + o->n_out; i++)
      label = label_join(label, value_label(problem, problem->edges[o->first_in + i].value));
    labels[op] = label;
  }
}

/* Let each label take in the labels of the op's neighbours. */
static void labels_refine(const struct remat_problem *problem, const uint64_t *labels, uint64_t *refined)
{
  for (int op = 0; op < problem->n_ops; op++) {
    const struct remat_op *o = &problem->ops[op];
    refined[op] = labels[op];
    for (int i = 0; i < o->n_in; i++) {
      const int maker = problem->values[problem->edges[o->first_in + i].value].birth;
      refined[op] = label_join(refined[op], maker < 0 ? 0 : labels[maker]);
    }
  }
  for (int op = 0; op < problem->n_ops; op++) { /* readers add up, because their order may differ */
    const struct remat_op *o = &problem->ops[op];
    for (int i = 0; i < o->n_in; i++) {
      const int maker = problem->values[problem->edges[o->first_in + i].value].birth;
      if (maker >= 0)
        refined[maker] += label_join(labels[op], (uint64_t)i);
    }
  }
}

static int label_compare(const void *x, const void *y)
{
  const struct labelled_op *a = x, *b = y;
  return a->label != b->label ? (a->label > b->label) - (a->label < b->label) : a->op - b->op;
}

/* List the ops of @problem by label in @sorted. -ENOMEM. */
static int ops_label(const struct remat_problem *problem, struct labelled_op *sorted)
{
  const size_t n = (size_t)problem->n_ops;
  uint64_t *labels = malloc((n + 1) * sizeof(*labels)), *refined = malloc((n + 1) * sizeof(*refined));
  const int status = labels && refined ? 0 : -ENOMEM;
  if (!status)
    labels_begin(problem, labels);
  for (int round = 0; round < ROUNDS && !status; round++) {
    labels_refine(problem, labels, refined);
    uint64_t *const old = labels;
    labels = refined;
    refined = old;
  }
  for (int op = 0; op < problem->n_ops && !status; op++)
    sorted[op] = (struct labelled_op){labels[op], op};
  if (!status)
    qsort(sorted, n, sizeof(*sorted), label_compare);
  free(labels);
  free(refined);
  return status;
}

/* ---- kinds ---- */

static int kind_compare(const void *x, const void *y, void *data)
{
  const struct remat_kind *a = x, *b = y;
  const int32_t *ops = data;
  return ops[a->first_op] - ops[b->first_op];
}

/* Make the kinds of ops that are @sorted by label, in the order of their first ops. -ENOMEM. */
static int kinds_make(struct remat_layers *layers, const struct labelled_op *sorted)
{
  const int n_ops = layers->problem->n_ops;
  for (int i = 0, end; i < n_ops; i = end) {
    for (end = i; end < n_ops && sorted[end].label == sorted[i].label; end++)
      layers->ops[end] = sorted[end].op;
    const struct remat_kind kind = {.first_op = i, .n_ops = end - i, .stack = -1};
    if (kind.n_ops >= LAYERS_MIN && !LADE_PUSH(&layers->kinds, kind))
      return -ENOMEM;
  }
  if (layers->kinds.n)
    qsort_r(layers->kinds.items, (size_t)layers->kinds.n, sizeof(*layers->kinds.items), kind_compare, layers->ops);
  for (int op = 0; op < n_ops; op++)
    layers->kind_of[op] = -1;
  for (int k = 0; k < layers->kinds.n; k++) {
    const struct remat_kind *kind = &layers->kinds.items[k];
    for (int rank = 0; rank < kind->n_ops; rank++) {
      layers->kind_of[layers->ops[kind->first_op + rank]] = k;
      layers->rank_of[layers->ops[kind->first_op + rank]] = rank;
    }
  }
  return 0;
}

/* ---- stacks ---- */

/* Ops of rank r of one kind read values of the ops of rank first_rank + r * direction of kind @kind. */
struct relation {
  int32_t kind, first_rank, direction;
};

/* Return the maker of input @i of @op, if it is of a kind; else -1. */
static int maker_get(const struct remat_layers *layers, int op, int i)
{
  const struct remat_problem *problem = layers->problem;
  const int maker = problem->values[problem->edges[problem->ops[op].first_in + i].value].birth;
  return maker >= 0 && layers->kind_of[maker] >= 0 ? maker : -1;
}

/*
 * Find the relation of kind @k to the kind that makes its ops' inputs @i. False: there is none, because most of the
 * makers are not of one kind, rank by rank. Near the ends of a stack some may be of no kind.
 */
static bool relation_find(const struct remat_layers *layers, int k, int i, struct relation *relation)
{
  const struct remat_kind *kind = &layers->kinds.items[k];
  const int32_t *ops = layers->ops + kind->first_op;
  const int middle = kind->n_ops / 2, base = maker_get(layers, ops[middle], i);
  const int before = maker_get(layers, ops[middle - 1], i);
  if (base < 0 || before < 0 || layers->kind_of[base] == k)
    return false;
  const int direction = layers->rank_of[base] - layers->rank_of[before];
  int n_known = 0;
  if (direction != 1 && direction != -1)
    return false;
  for (int rank = 0; rank < kind->n_ops; rank++) {
    const int maker = maker_get(layers, ops[rank], i);
    n_known += maker >= 0 && layers->kind_of[maker] == layers->kind_of[base] &&
               layers->rank_of[maker] == layers->rank_of[base] + (rank - middle) * direction;
  }
  *relation = (struct relation){layers->kind_of[base], layers->rank_of[base] - middle * direction, direction};
  return 2 * n_known > kind->n_ops;
}

/* Return the kind whose stack is that of kind @k, and let the layers of @k be in its terms. */
static int root_find(struct remat_layers *layers, int k)
{
  struct remat_kind *kinds = layers->kinds.items, *kind = &kinds[k];
  while (kinds[kind->stack].stack != kind->stack) { /* its stack is that of another kind */
    const struct remat_kind *next = &kinds[kind->stack];
    kind->first_layer = next->first_layer + next->direction * kind->first_layer;
    kind->direction *= next->direction;
    kind->stack = next->stack;
  }
  return kind->stack;
}

/* Let the stacks of two related kinds be one. */
static void stacks_join(struct remat_layers *layers, int k, const struct relation *relation)
{
  const int a = root_find(layers, k), b = root_find(layers, relation->kind);
  const struct remat_kind *reader = &layers->kinds.items[k], *maker = &layers->kinds.items[relation->kind];
  struct remat_kind *one = &layers->kinds.items[a], *other = &layers->kinds.items[b];
  if (a == b)
    return;
  const int direction = maker->direction * relation->direction * reader->direction;
  const int first_layer = maker->first_layer + maker->direction * relation->first_rank -
                          direction * reader->first_layer; /* of the map from layers of @a to those of @b */
  bool is_larger = one->n_joined > other->n_joined; /* the smaller one goes below the larger one */
  struct remat_kind *below = is_larger ? other : one, *root = is_larger ? one : other;
  below->stack = is_larger ? a : b;
  below->direction = direction;
  below->first_layer = is_larger ? -direction * first_layer : first_layer; /* or the inverse of the map */
  root->n_joined += below->n_joined;
}

/* Relate each kind to those that make its inputs. */
static void kinds_relate(struct remat_layers *layers)
{
  struct remat_kind *kinds = layers->kinds.items;
  for (int k = 0; k < layers->kinds.n; k++) {
    kinds[k].stack = k;
    kinds[k].direction = kinds[k].n_joined = 1;
  }
  for (int k = 0; k < layers->kinds.n; k++) {
    const struct remat_op *op = &layers->problem->ops[layers->ops[kinds[k].first_op + kinds[k].n_ops / 2]];
    struct relation relation;
    for (int i = 0; i < op->n_in; i++) {
      if (relation_find(layers, k, i, &relation))
        stacks_join(layers, k, &relation);
    }
  }
}

/* Let the stack of @kind have its layers, and make the stack at its first kind. -ENOMEM. */
static int stack_widen(struct remat_layers *layers, struct remat_kind *kind, int32_t *number)
{
  const int last = kind->first_layer + (kind->n_ops - 1) * kind->direction;
  const struct remat_stack own = {LADE_MIN(kind->first_layer, last), LADE_MAX(kind->first_layer, last)};
  if (*number < 0) {
    *number = layers->stacks.n;
    if (!LADE_PUSH(&layers->stacks, own))
      return -ENOMEM;
  }
  struct remat_stack *stack = &layers->stacks.items[*number];
  stack->first_layer = LADE_MIN(stack->first_layer, own.first_layer);
  stack->last_layer = LADE_MAX(stack->last_layer, own.last_layer);
  kind->stack = *number;
  layers->n_in_stacks += kind->n_ops;
  return 0;
}

/* Join related kinds to stacks. A kind without relations is of none. -ENOMEM. */
static int stacks_make(struct remat_layers *layers)
{
  const size_t n = (size_t)layers->kinds.n;
  int32_t *n_kinds = calloc(n + 1, sizeof(*n_kinds)), *numbers = malloc((n + 1) * sizeof(*numbers)); /* by root */
  int status = n_kinds && numbers ? 0 : -ENOMEM;
  if (!status)
    kinds_relate(layers);
  for (int k = 0; k < layers->kinds.n && !status; k++) {
    n_kinds[root_find(layers, k)]++;
    numbers[k] = -1;
  }
  for (int k = 0; k < layers->kinds.n && !status; k++) {
    struct remat_kind *kind = &layers->kinds.items[k];
    const int root = kind->stack;
    kind->stack = -1;
    if (n_kinds[root] > 1)
      status = stack_widen(layers, kind, &numbers[root]);
  }
  free(n_kinds);
  free(numbers);
  return status;
}

int remat_layers_init(struct remat_layers *layers, const struct remat_problem *problem)
{
  const size_t n = (size_t)problem->n_ops;
  *layers = (struct remat_layers){.problem = problem};
  layers->ops = malloc((n + 1) * sizeof(*layers->ops));
  layers->kind_of = malloc((n + 1) * sizeof(*layers->kind_of));
  layers->rank_of = calloc(n + 1, sizeof(*layers->rank_of));
  struct labelled_op *sorted = malloc((n + 1) * sizeof(*sorted));
  int status = sorted && layers->ops && layers->kind_of && layers->rank_of ? ops_label(problem, sorted) : -ENOMEM;
  if (!status)
    status = kinds_make(layers, sorted);
  free(sorted);
  if (!status)
    status = stacks_make(layers);
  if (status)
    remat_layers_finish(layers);
  return status;
}

void remat_layers_finish(struct remat_layers *layers)
{
  LADE_ARRAY_FREE(&layers->kinds);
  LADE_ARRAY_FREE(&layers->stacks);
  free(layers->ops);
  free(layers->kind_of);
  free(layers->rank_of);
  *layers = (struct remat_layers){0};
}

int remat_layers_stack(const struct remat_layers *layers, int op)
{
  const int kind = layers->kind_of[op];
  return kind < 0 ? -1 : layers->kinds.items[kind].stack;
}

int remat_layers_get(const struct remat_layers *layers, int op)
{
  const struct remat_kind *kind = &layers->kinds.items[layers->kind_of[op]];
  return kind->first_layer + layers->rank_of[op] * kind->direction;
}

int remat_layers_sibling(const struct remat_layers *layers, int op, int shift)
{
  if (remat_layers_stack(layers, op) < 0)
    return -1;
  const struct remat_kind *kind = &layers->kinds.items[layers->kind_of[op]];
  const int rank = layers->rank_of[op] + shift * kind->direction;
  return rank >= 0 && rank < kind->n_ops ? layers->ops[kind->first_op + rank] : -1;
}

int remat_layers_value(const struct remat_layers *layers, int value, int shift)
{
  const struct remat_problem *problem = layers->problem;
  const int maker = problem->values[value].birth, sibling = remat_layers_sibling(layers, maker, shift);
  if (sibling < 0)
    return -1;
  const struct remat_op *op = &problem->ops[maker], *other = &problem->ops[sibling];
  int i = op->first_out;
  while (problem->edges[i].value != value)
    i++;
  const int found = problem->edges[other->first_out + i - op->first_out].value;
  return problem->values[found].birth == sibling ? found : -1;
}
