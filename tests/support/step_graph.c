/* SPDX-License-Identifier: Apache-2.0 */
/* Draw random graphs of steps, and compare two graphs. */
#include "tests/support/step_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"

#define STORAGES_MAX 20

static uint32_t draw_graph, draw_n;
static struct lade_error error;

static uint32_t draw(uint32_t below)
{
  return lade_philox_word(17, draw_graph, 0, draw_n++) % below;
}

static const char *name_draw(char text[64])
{
  static const char *const letters[] = {"a", "7", ".", "\"", "\\", "\n", "\x1f", "\x7f", "/", "\xc3\xa9", "%s", " ",
                                        "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbf", "\xed\x9f\xbf"};
  text[0] = 0;
  for (uint32_t n = 1 + draw(12); n; n--)
    strcat(text, letters[draw(LADE_COUNT(letters))]);
  return text;
}

/* Draw the accesses of one op to each storage: none, a read, a write, an update, or several of them. */
static void op_draw(lade_graph *graph, bool *is_written)
{
  struct lade_operand_range lists[3][2 * STORAGES_MAX];
  int n[3] = {0};
  char name[64];
  for (int i = 0; i < graph->storages.n; i++) {
    const uint64_t bytes = graph->storages.items[i].bytes, half = bytes / 2;
    const bool is_readable = graph->storages.items[i].is_given || is_written[i];
    const uint32_t kind = draw(12);
    if (is_readable && kind < 4)
      lists[0][n[0]++] = (struct lade_operand_range){i, draw(2) ? 0 : half, draw(2) ? 0 : bytes / 3};
    if (is_readable && kind == 3)
      lists[0][n[0]++] = (struct lade_operand_range){i, bytes, 0};
    if (kind == 3 || kind == 4)
      lists[1][n[1]++] = (struct lade_operand_range){i, 0, 0};
    else if (kind == 5 && half) {
      lists[1][n[1]++] = (struct lade_operand_range){i, half, bytes - half};
      lists[is_readable ? 2 : 1][n[is_readable ? 2 : 1]++] = (struct lade_operand_range){i, 0, half};
    }
    else if (kind == 6 && is_readable)
      lists[2][n[2]++] = (struct lade_operand_range){i, 0, 0};
    is_written[i] |= (kind >= 3 && kind <= 4) || (kind == 5 && half);
  }
  struct lade_graph_op op = {.struct_size = sizeof(op), .name = name_draw(name), .reads = lists[0], .n_reads = n[0],
                             .writes = lists[1], .n_writes = n[1], .updates = lists[2], .n_updates = n[2],
                             .scratch_bytes = draw(3) ? 0 : draw(100000), .ns = draw(1u << 30), .is_once = !draw(4),
                             .draws = !draw(4), .pass = (enum lade_pass)draw(LADE_N_PASSES),
                             .queue = (enum lade_op_queue)draw(LADE_N_OP_QUEUES)};
  if (lade_graph_add_op(graph, &op, &error, NULL))
    fail_msg("%s", error.text);
}

lade_graph *step_graph_draw(uint32_t number)
{
  lade_graph *graph = NULL;
  bool is_written[STORAGES_MAX] = {false};
  char name[64], class_name[64];
  assert_int_equal(lade_graph_create(&graph), 0);
  draw_graph = number;
  draw_n = 0;
  for (uint32_t i = draw(STORAGES_MAX); i; i--) {
    struct lade_storage storage = {.struct_size = sizeof(storage), .name = name_draw(name), .is_given = draw(2),
                                   .bytes = draw(4) ? draw(1 << 20) : draw(3), .align = draw(2) ? 0 : 1u << draw(22)};
    storage.tier = storage.is_given ? (enum lade_space)draw(LADE_N_SPACES) : LADE_DEVICE;
    snprintf(class_name, sizeof(class_name), "class %u", draw(4));
    storage.class_name = draw(2) ? class_name : NULL;
    assert_int_equal(lade_graph_add_storage(graph, &storage, &error, NULL), 0);
  }
  for (uint32_t i = draw(40); i; i--)
    op_draw(graph, is_written);
  for (int i = 0; i < graph->storages.n; i++) {
    const int storage = graph->storages.n - 1 - i;
    if ((is_written[storage] || graph->storages.items[storage].is_given) && !draw(4))
      assert_int_equal(lade_graph_keep(graph, storage, &error), 0);
  }
  assert_int_equal(lade_graph_set_addresses(graph, draw(2)), 0);
  if (lade_graph_close(graph, &error))
    fail_msg("%s", error.text);
  return graph;
}

void step_graphs_compare(const lade_graph *a, const lade_graph *b)
{
  assert_int_equal(a->has_addresses, b->has_addresses);
  assert_int_equal(a->total_bytes, b->total_bytes);
  assert_int_equal(a->total_scratch_bytes, b->total_scratch_bytes);
  assert_int_equal(a->total_ns, b->total_ns);
  assert_true(a->storages.n == b->storages.n && a->ops.n == b->ops.n && a->operands.n == b->operands.n);
  assert_true(a->kept.n == b->kept.n && a->n_uses == b->n_uses);
  for (int i = 0; i < a->storages.n; i++) {
    const struct graph_storage *x = &a->storages.items[i], *y = &b->storages.items[i];
    assert_string_equal(graph_name(a, x->name), graph_name(b, y->name));
    assert_string_equal(graph_name(a, x->class_name), graph_name(b, y->class_name));
    assert_int_equal(x->class_name == 0, y->class_name == 0);
    assert_true(x->bytes == y->bytes && x->align == y->align && x->is_given == y->is_given && x->tier == y->tier);
    assert_true(x->is_kept == y->is_kept && x->first_use == y->first_use && x->n_versions == y->n_versions);
  }
  for (int i = 0; i < a->ops.n; i++) {
    const struct graph_op *x = &a->ops.items[i], *y = &b->ops.items[i];
    assert_string_equal(graph_name(a, x->name), graph_name(b, y->name));
    assert_true(x->n_reads == y->n_reads && x->n_writes == y->n_writes && x->n_updates == y->n_updates);
    assert_true(x->first_operand == y->first_operand && x->scratch_bytes == y->scratch_bytes && x->ns == y->ns);
    assert_true(x->is_once == y->is_once && x->draws == y->draws && x->pass == y->pass && x->queue == y->queue);
  }
  for (int i = 0; i < a->operands.n; i++) {
    const struct graph_operand *x = &a->operands.items[i], *y = &b->operands.items[i];
    assert_true(x->storage == y->storage && x->access == y->access && x->version == y->version);
    assert_true(x->offset == y->offset && x->bytes == y->bytes);
  }
  for (int i = 0; i < a->kept.n; i++)
    assert_int_equal(a->kept.items[i], b->kept.items[i]);
  for (int i = 0; i < a->n_uses; i++)
    assert_true(a->uses[i].op == b->uses[i].op && a->uses[i].access == b->uses[i].access);
}
