/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repeated layers. Siblings are the same op of other layers, in the backward pass too; stacks of unequal layers stay
 * apart, and a network without repetition has none. A long decoder whose layers are decided together takes less time
 * than one whose classes tell its layers apart.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lade/graph_plan.h"
#include "recompute/graph/search/layers.h"
#include "tests/support/heap/allocations.h"

/* An op of a layer: it makes @out of @in. Values are letters; 'x' is the layer's input and 'y' its output. */
struct layer_op {
  char out;
  const char *in;
  int bytes, ns;
};

static const struct layer_op decoder[] = {
    {'n', "x", 10, 1}, {'q', "n", 10, 8},  {'k', "n", 10, 8}, {'v', "n", 10, 8}, {'a', "qkv", 10, 6}, {'o', "a", 10, 8},
    {'m', "xo", 10, 1}, {'g', "m", 10, 1}, {'u', "g", 40, 24}, {'s', "u", 40, 2}, {'d', "s", 10, 24},
    {'y', "md", 10, 1}};
static const struct layer_op block[] = {
    {'a', "x", 24, 12}, {'b', "a", 24, 2}, {'c', "b", 12, 9}, {'y', "xc", 12, 1}};

enum { LETTERS = 128, SHORT = 10, LONG = 90 };

struct step {
  lade_graph *graph;
  const char *class_name;
  bool grows; /* each layer has larger values than the one before */
  bool is_apart; /* each layer has a class of its own */
};

static int storage_add(const struct step *step, const char *prefix, int layer, char letter, int bytes)
{
  char name[32], own[32];
  int index;
  snprintf(name, sizeof(name), "%s%d.%c", prefix, layer, letter);
  snprintf(own, sizeof(own), "%d", layer);
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = name,
                                       .class_name = step->is_apart ? own : step->class_name,
                                       .bytes = 1000 * (uint64_t)(bytes + (step->grows ? layer : 0))};
  assert_int_equal(lade_graph_add_storage(step->graph, &storage, NULL, &index), 0);
  return index;
}

/* Add an op named after layer and letter. @reads has @n_reads storages; it writes or updates @out. */
static void op_add(const struct step *step, const char *prefix, int layer, char letter, const int *reads, int n_reads,
                   int out, bool is_update, int ns)
{
  struct lade_operand_range ranges[8] = {{0}}, result = {.storage = out};
  char name[32];
  snprintf(name, sizeof(name), "%s%d.%c", prefix, layer, letter);
  for (int i = 0; i < n_reads; i++)
    ranges[i].storage = reads[i];
  const struct lade_graph_op op = {.struct_size = sizeof(op), .name = name, .reads = ranges, .n_reads = n_reads,
                                   .writes = &result, .n_writes = !is_update, .updates = &result,
                                   .n_updates = is_update, .ns = 1000 * ns + layer % 3}; /* times are measured ones */
  assert_int_equal(lade_graph_add_op(step->graph, &op, NULL, NULL), 0);
}

/* The values of a layer and their gradients, by letter; -1: none yet. */
struct layer {
  int values[LETTERS], grads[LETTERS];
};

static void forward_add(const struct step *step, const char *prefix, int number, const struct layer_op *ops, int n_ops,
                        struct layer *layer)
{
  for (int i = 0; i < n_ops; i++) {
    int reads[8], n = 0;
    for (const char *in = ops[i].in; *in; in++)
      reads[n++] = layer->values[(int)*in];
    layer->values[(int)ops[i].out] = storage_add(step, prefix, number, ops[i].out, ops[i].bytes);
    op_add(step, prefix, number, ops[i].out, reads, n, layer->values[(int)ops[i].out], false, ops[i].ns);
  }
}

/* Add the backward ops of a layer: for each input of each op, one that makes its gradient or adds to it. */
static void backward_add(const struct step *step, const char *prefix, int number, const struct layer_op *ops, int n_ops,
                         struct layer *layer)
{
  for (int i = n_ops - 1; i >= 0; i--) {
    for (const char *in = ops[i].in; *in; in++) {
      int *grad = &layer->grads[(int)*in];
      const int reads[] = {layer->grads[(int)ops[i].out], layer->values[(int)*in]};
      bool is_first = *grad < 0;
      if (is_first)
        *grad = storage_add(step, prefix, number, *in, ops[i].bytes);
      op_add(step, prefix, number, (char)(*in - 'a' + 'A'), reads, 2, *grad, !is_first, ops[i].ns);
    }
  }
}

/* Add @n layers on top of storage @input, forward and backward around @inside. Return the gradient of the input. */
static int stack_add(struct step *step, const char *prefix, const struct layer_op *ops, int n_ops, int n, int input,
                     int (*inside)(struct step *step, int output))
{
  struct layer *layers = malloc((size_t)n * sizeof(*layers));
  assert_non_null(layers);
  for (int k = 0; k < n; k++) {
    memset(&layers[k], -1, sizeof(layers[k]));
    layers[k].values['x'] = k ? layers[k - 1].values['y'] : input;
    forward_add(step, prefix, k, ops, n_ops, &layers[k]);
  }
  int grad = inside(step, layers[n - 1].values['y']);
  for (int k = n - 1; k >= 0; k--) {
    layers[k].grads['y'] = grad;
    backward_add(step, prefix, k, ops, n_ops, &layers[k]);
    grad = layers[k].grads['x'];
  }
  free(layers);
  return grad;
}

static int loss_add(struct step *step, int output)
{
  const int grad = storage_add(step, "l", 0, 'y', 10);
  op_add(step, "l", 0, 'y', &output, 1, grad, false, 1);
  return grad;
}

static int blocks_add(struct step *step, int output)
{
  return stack_add(step, "b", block, LADE_COUNT(block), SHORT, output, loss_add);
}

/* Make a step whose layers of @ops are around @inside. */
static lade_graph *step_make(struct step step, const struct layer_op *ops, int n_ops, int n,
                             int (*inside)(struct step *step, int output))
{
  assert_int_equal(lade_graph_create(&step.graph), 0);
  const int input = storage_add(&step, "i", 0, 'x', 10);
  op_add(&step, "i", 0, 'x', NULL, 0, input, false, 1);
  const int grad = stack_add(&step, "d", ops, n_ops, n, input, inside);
  assert_int_equal(lade_graph_keep(step.graph, grad, NULL), 0);
  assert_int_equal(lade_graph_close(step.graph, NULL), 0);
  return step.graph;
}

static lade_graph *decoder_make(int n)
{
  return step_make((struct step){0}, decoder, LADE_COUNT(decoder), n, loss_add);
}

/* ---- siblings ---- */

static int number_get(const char *name, char *ret_prefix, char *ret_letter)
{
  int layer;
  assert_int_equal(sscanf(name, "%c%d.%c", ret_prefix, &layer, ret_letter), 3);
  return layer;
}

/* Check that @op's siblings are the same ops of other layers. Return their number. */
static int siblings_check(const lade_graph *graph, const struct remat_layers *layers, int op)
{
  char prefix, letter, other_prefix, other_letter;
  const int layer = number_get(lade_graph_op_name(graph, op), &prefix, &letter);
  const int next = remat_layers_sibling(layers, op, 1);
  const int step = next < 0 ? 0 : number_get(lade_graph_op_name(graph, next), &other_prefix, &other_letter) - layer;
  int n = 0;
  for (int shift = -LONG; shift <= LONG; shift++) {
    const int sibling = remat_layers_sibling(layers, op, shift);
    if (sibling < 0)
      continue;
    const int found = number_get(lade_graph_op_name(graph, sibling), &other_prefix, &other_letter);
    assert_true(prefix == other_prefix && letter == other_letter);
    assert_true(!step || found == layer + shift * step);
    assert_int_equal(remat_layers_stack(layers, sibling), remat_layers_stack(layers, op));
    assert_int_equal(remat_layers_get(layers, sibling), remat_layers_get(layers, op) + shift);
    assert_int_equal(remat_layers_sibling(layers, sibling, -shift), op);
    n += shift != 0;
  }
  return n;
}

static void layers_open(const lade_graph *graph, struct remat_problem *problem, struct remat_layers *layers)
{
  assert_int_equal(remat_problem_init(problem, graph, LADE_DEVICE), 0);
  assert_int_equal(remat_layers_init(layers, problem), 0);
}

static void layers_close(lade_graph *graph, struct remat_problem *problem, struct remat_layers *layers)
{
  remat_layers_finish(layers);
  remat_problem_finish(problem);
  lade_graph_destroy(graph);
}

static void siblings_are_the_same_op_of_other_layers(void **state)
{
  lade_graph *graph = decoder_make(LONG);
  struct remat_problem problem;
  struct remat_layers layers;
  layers_open(graph, &problem, &layers);
  int n_siblings = 0;
  for (int op = 0; op < problem.n_ops; op++)
    n_siblings += siblings_check(graph, &layers, op);
  assert_int_equal(layers.stacks.n, 1);
  assert_true(n_siblings > problem.n_ops * (LONG - 10)); /* the first and the last layers may lack some */
  for (int v = 0; v < problem.n_values; v++) {
    const int other = remat_layers_value(&layers, v, 2);
    assert_true(other < 0 || problem.values[other].bytes == problem.values[v].bytes);
    assert_true(other < 0 || remat_layers_value(&layers, other, -2) == v);
  }
  layers_close(graph, &problem, &layers);
}

/* A stack of blocks within one of decoder layers, as an encoder beside a decoder. */
static void stacks_of_unequal_layers_stay_apart(void **state)
{
  lade_graph *graph = step_make((struct step){0}, decoder, LADE_COUNT(decoder), SHORT, blocks_add);
  struct remat_problem problem;
  struct remat_layers layers;
  int of_prefix[LETTERS];
  memset(of_prefix, -1, sizeof(of_prefix));
  layers_open(graph, &problem, &layers);
  for (int op = 0; op < problem.n_ops; op++) {
    char prefix, letter;
    const int stack = remat_layers_stack(&layers, op);
    siblings_check(graph, &layers, op);
    if (stack < 0)
      continue;
    number_get(lade_graph_op_name(graph, op), &prefix, &letter);
    assert_true(of_prefix[(int)prefix] < 0 || of_prefix[(int)prefix] == stack);
    of_prefix[(int)prefix] = stack;
  }
  assert_int_equal(layers.stacks.n, 2);
  assert_true(of_prefix['d'] >= 0 && of_prefix['b'] >= 0 && of_prefix['d'] != of_prefix['b']);
  layers_close(graph, &problem, &layers);
}

static void layers_whose_values_grow_are_none(void **state)
{
  lade_graph *graph = step_make((struct step){.grows = true}, decoder, LADE_COUNT(decoder), SHORT, loss_add);
  struct remat_problem problem;
  struct remat_layers layers;
  layers_open(graph, &problem, &layers);
  assert_int_equal(layers.n_in_stacks, 0);
  assert_int_equal(layers.stacks.n, 0);
  layers_close(graph, &problem, &layers);
}

/* Equal blocks of two classes: the caller says that they are unequal. */
static int classed_add(struct step *step, int output)
{
  step->class_name = "inner";
  const int grad = stack_add(step, "b", block, LADE_COUNT(block), SHORT, output, loss_add);
  step->class_name = "outer";
  return grad;
}

static void classes_part_equal_layers(void **state)
{
  lade_graph *graph = step_make((struct step){.class_name = "outer"}, block, LADE_COUNT(block), SHORT, classed_add);
  struct remat_problem problem;
  struct remat_layers layers;
  layers_open(graph, &problem, &layers);
  assert_int_equal(layers.stacks.n, 2);
  for (int op = 0; op < problem.n_ops; op++)
    siblings_check(graph, &layers, op);
  layers_close(graph, &problem, &layers);
}

/* ---- plans ---- */

/* Plan @graph within @percent of its peak, and destroy it. Return the time of the redos over that of the step. */
static double overhead_get(lade_graph *graph, int percent)
{
  struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
  struct lade_graph_plan_params params = {.struct_size = sizeof(params), .iterations = 300000, .seed = 1};
  lade_graph_plan *plan;
  assert_int_equal(lade_graph_bounds(graph, NULL, &params.budget_bytes, NULL), 0);
  params.budget_bytes = params.budget_bytes * (uint64_t)percent / 100;
  assert_int_equal(lade_graph_plan_find(graph, &params, NULL, &info, &plan), 0);
  lade_graph_plan_destroy(plan);
  lade_graph_destroy(graph);
  return (double)(info.compute_ns - info.base_ns) / (double)info.base_ns;
}

/* Classes of their own hide that layers are equal. At 25 % of the peak that costs 0.8 % of the step. */
static void layers_that_are_decided_together_take_less_time(void **state)
{
  const double equal = overhead_get(decoder_make(LONG), 25);
  lade_graph *apart = step_make((struct step){.is_apart = true}, decoder, LADE_COUNT(decoder), LONG, loss_add);
  assert_true(equal + 0.003 < overhead_get(apart, 25));
}

static void layers_without_memory_leave_none(void **state)
{
  lade_graph *graph = decoder_make(SHORT);
  struct remat_problem problem;
  struct remat_layers layers;
  int status = -ENOMEM, n = 0;
  assert_int_equal(remat_problem_init(&problem, graph, LADE_DEVICE), 0);
  for (; status; n++) {
    allocations_left = n;
    status = remat_layers_init(&layers, &problem);
    allocations_left = -1;
    assert_true(!status || status == -ENOMEM);
    assert_true(!status || (!layers.ops && !layers.kinds.items && !layers.stacks.items));
  }
  assert_true(n > 6 && layers.n_in_stacks > 0);
  layers_close(graph, &problem, &layers);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(siblings_are_the_same_op_of_other_layers),
      cmocka_unit_test(stacks_of_unequal_layers_stay_apart),
      cmocka_unit_test(layers_whose_values_grow_are_none),
      cmocka_unit_test(classes_part_equal_layers),
      cmocka_unit_test(layers_that_are_decided_together_take_less_time),
      cmocka_unit_test(layers_without_memory_leave_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
