/* SPDX-License-Identifier: Apache-2.0 */
/* Draw random graphs. */
#include "tests/support/graph/random_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/base.h"

enum { OPERANDS_MAX = 8, STORAGES_MAX = 512 };

struct graph_drawer {
  const struct random_graph_params *params;
  lade_graph *graph;
  struct random_draw draw;
  uint64_t bytes[STORAGES_MAX];  /* by storage */
  int n_given;                   /* given storages, which come first */
  int forward[STORAGES_MAX], n_forward; /* storages that the forward pass made */
};

/* Operands of the op under way. */
struct drawn_op {
  struct lade_operand_range reads[OPERANDS_MAX], writes[OPERANDS_MAX], updates[OPERANDS_MAX];
  int n_reads, n_writes, n_updates;
  bool is_once;
};

uint64_t random_draw_next(struct random_draw *draw)
{
  uint64_t z = draw->state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int random_draw_below(struct random_draw *draw, int n)
{
  return (int)(random_draw_next(draw) % (uint64_t)n);
}

static int below(struct graph_drawer *drawer, int n)
{
  return random_draw_below(&drawer->draw, n);
}

static int storage_add(struct graph_drawer *drawer, bool is_given)
{
  char name[32];
  const int index = lade_graph_n_storages(drawer->graph);
  const uint64_t bytes = below(drawer, 12) ? 64 * (1 + (uint64_t)below(drawer, 32)) : 0;
  const bool is_elsewhere = is_given && drawer->params->has_tiers && below(drawer, 2);
  const enum lade_space tier = !is_elsewhere ? LADE_DEVICE : below(drawer, 2) ? LADE_HOST : LADE_STORE;
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = name, .bytes = bytes,
                                       .is_given = is_given, .tier = tier};
  snprintf(name, sizeof(name), "%s%d", is_given ? "given" : "made", index);
  assert_true(index < STORAGES_MAX);
  assert_int_equal(lade_graph_add_storage(drawer->graph, &storage, NULL, NULL), 0);
  drawer->bytes[index] = bytes;
  return index;
}

static bool op_uses(const struct drawn_op *op, int storage)
{
  for (int i = 0; i < op->n_writes; i++) {
    if (op->writes[i].storage == storage)
      return true;
  }
  for (int i = 0; i < op->n_updates; i++) {
    if (op->updates[i].storage == storage)
      return true;
  }
  return false;
}

static void op_read(struct drawn_op *op, int storage)
{
  if (op->n_reads < OPERANDS_MAX && !op_uses(op, storage))
    op->reads[op->n_reads++] = (struct lade_operand_range){.storage = storage};
}

/* Write or update @storage, or its first or second half. */
static void op_change(struct graph_drawer *drawer, struct drawn_op *op, int storage, bool is_update, int half)
{
  const uint64_t part = drawer->bytes[storage] / 2;
  const struct lade_operand_range range = {storage, half == 2 ? part : 0, half && part ? part : 0};
  if (op_uses(op, storage))
    return;
  if (is_update && op->n_updates < OPERANDS_MAX)
    op->updates[op->n_updates++] = range;
  else if (!is_update && op->n_writes < OPERANDS_MAX)
    op->writes[op->n_writes++] = range;
}

static void op_add(struct graph_drawer *drawer, const struct drawn_op *drawn, enum lade_pass pass)
{
  static const char letters[LADE_N_PASSES] = {'f', 'b', 'u'};
  char name[32];
  snprintf(name, sizeof(name), "%c%d", letters[pass], lade_graph_n_ops(drawer->graph));
  const struct lade_graph_op op = {
      .struct_size = sizeof(op), .name = name, .reads = drawn->reads, .writes = drawn->writes,
      .updates = drawn->updates, .n_reads = drawn->n_reads, .n_writes = drawn->n_writes,
      .n_updates = drawn->n_updates, .scratch_bytes = below(drawer, 3) ? 0 : 64 * (uint64_t)below(drawer, 16),
      .ns = below(drawer, 10) ? 1 + below(drawer, 1000) : 0, .is_once = drawn->is_once || below(drawer, 15) == 0,
      .draws = below(drawer, 10) == 0, .pass = pass};
  struct lade_error error = {0};
  int status = lade_graph_add_op(drawer->graph, &op, &error, NULL);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
}

/* Add a maker to a storage of the forward pass, if its graph may have them. */
static void op_change_another(struct graph_drawer *drawer, struct drawn_op *op)
{
  if (drawer->params->is_written_once || !drawer->n_forward || below(drawer, 4))
    return;
  const int storage = drawer->forward[below(drawer, drawer->n_forward)], kind = below(drawer, 6);
  op_change(drawer, op, storage, kind < 3, kind < 4 ? 0 : kind - 3);
}

static void op_make(struct graph_drawer *drawer, struct drawn_op *op, int half)
{
  const int storage = storage_add(drawer, false);
  op_change(drawer, op, storage, false, half);
  drawer->forward[drawer->n_forward++] = storage;
}

static void forward_add(struct graph_drawer *drawer)
{
  struct drawn_op op = {.n_reads = 0};
  if (drawer->n_forward)
    op_read(&op, drawer->forward[drawer->n_forward - 1]);
  if (drawer->n_forward && below(drawer, 3) == 0)
    op_read(&op, drawer->forward[below(drawer, drawer->n_forward)]);
  if (drawer->n_given)
    op_read(&op, below(drawer, drawer->n_given));
  if (drawer->n_given && below(drawer, 10) == 0)
    op_change(drawer, &op, below(drawer, drawer->n_given), true, 0);
  op_change_another(drawer, &op);
  for (int n = below(drawer, 4) ? 1 : 2 + below(drawer, 2); n > 0; n--)
    op_make(drawer, &op, drawer->params->is_written_once || below(drawer, 6) ? 0 : 1);
  op_add(drawer, &op, LADE_PASS_FORWARD);
}

/* Go back over all storages of the forward pass, with a gradient that each op makes anew. */
static void backward_add(struct graph_drawer *drawer)
{
  int gradient = -1;
  for (int i = drawer->n_forward - 1; i >= 0; i--) {
    struct drawn_op op = {.n_reads = 0};
    if (below(drawer, 5))
      op_read(&op, drawer->forward[i]);
    if (gradient >= 0)
      op_read(&op, gradient);
    if (drawer->n_given)
      op_read(&op, below(drawer, drawer->n_given));
    gradient = storage_add(drawer, false);
    op_change(drawer, &op, gradient, false, 0);
    op_add(drawer, &op, LADE_PASS_BACKWARD);
  }
  for (int i = 0; i < drawer->n_given && gradient >= 0; i++) {
    struct drawn_op op = {.is_once = below(drawer, 2)};
    op_read(&op, gradient);
    op_change(drawer, &op, i, true, 0);
    op_add(drawer, &op, LADE_PASS_UPDATE);
  }
}

static void soup_add(struct graph_drawer *drawer)
{
  struct drawn_op op = {.n_reads = 0};
  for (int n = below(drawer, 4); n > 0 && drawer->n_forward; n--)
    op_read(&op, drawer->forward[below(drawer, drawer->n_forward)]);
  if (drawer->n_given && below(drawer, 3))
    op_read(&op, below(drawer, drawer->n_given));
  if (drawer->n_given && below(drawer, 12) == 0)
    op_change(drawer, &op, below(drawer, drawer->n_given), below(drawer, 2), 0);
  op_change_another(drawer, &op);
  op_change_another(drawer, &op);
  for (int n = below(drawer, 3); n > 0; n--)
    op_make(drawer, &op, drawer->params->is_written_once || below(drawer, 4) ? 0 : 1);
  op_add(drawer, &op, (enum lade_pass)below(drawer, LADE_N_PASSES));
}

lade_graph *random_graph_make(const struct random_graph_params *params)
{
  struct graph_drawer drawer = {.params = params, .draw = {params->seed}};
  struct lade_error error = {0};
  assert_int_equal(lade_graph_create(&drawer.graph), 0);
  drawer.n_given = below(&drawer, 4);
  for (int i = 0; i < drawer.n_given; i++)
    storage_add(&drawer, true);
  for (int i = 0; i < params->n_layers; i++) {
    if (params->is_soup)
      soup_add(&drawer);
    else
      forward_add(&drawer);
  }
  if (!params->is_soup)
    backward_add(&drawer);
  for (int i = below(&drawer, 3); i > 0 && drawer.n_forward; i--)
    assert_int_equal(lade_graph_keep(drawer.graph, drawer.forward[below(&drawer, drawer.n_forward)], NULL), 0);
  int status = lade_graph_close(drawer.graph, &error);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
  return drawer.graph;
}
