/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of a caller's own step, built by calls. Versions and uses are those that a plain count of the ops gives. A
 * refusal names the op or the storage, and leaves the graph as it was.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"
#include "tests/support/step_graph.h"

#define N_DRAWN 300

static struct lade_error error;

/* ---- building ---- */

static lade_graph *graph_new(void)
{
  lade_graph *graph = NULL;
  assert_int_equal(lade_graph_create(&graph), 0);
  return graph;
}

static struct lade_storage storage_of(const char *name, uint64_t bytes, bool is_given)
{
  return (struct lade_storage){.struct_size = sizeof(struct lade_storage), .name = name, .bytes = bytes,
                               .is_given = is_given};
}

static int storage_add(lade_graph *graph, const char *name, uint64_t bytes, bool is_given)
{
  const struct lade_storage storage = storage_of(name, bytes, is_given);
  int index = -1;
  if (lade_graph_add_storage(graph, &storage, &error, &index))
    fail_msg("%s", error.text);
  return index;
}

#define RANGES(...) (const struct lade_operand_range[]){__VA_ARGS__}
#define READS(n, ...) .n_reads = (n), .reads = RANGES(__VA_ARGS__)
#define WRITES(n, ...) .n_writes = (n), .writes = RANGES(__VA_ARGS__)
#define UPDATES(n, ...) .n_updates = (n), .updates = RANGES(__VA_ARGS__)
#define OP_NAMED(text, ...) \
  &(struct lade_graph_op){.struct_size = sizeof(struct lade_graph_op), .name = text, __VA_ARGS__}
#define OP(...) OP_NAMED("f", __VA_ARGS__)

static int op_add(lade_graph *graph, const struct lade_graph_op *op)
{
  int index = -1;
  if (lade_graph_add_op(graph, op, &error, &index))
    fail_msg("%s", error.text);
  return index;
}

/* Make a closed or open graph of a given storage "w" (0), made ones "x" (1) and "y" (2), all of 100 bytes, no op. */
static lade_graph *graph_small(void)
{
  lade_graph *graph = graph_new();
  assert_int_equal(storage_add(graph, "w", 100, true), 0);
  assert_int_equal(storage_add(graph, "x", 100, false), 1);
  assert_int_equal(storage_add(graph, "y", 100, false), 2);
  return graph;
}

static void must_close(lade_graph *graph)
{
  if (lade_graph_close(graph, &error))
    fail_msg("%s", error.text);
}

/* Return the accesses of op @op to @storage, or'ed. */
static int access_of(const lade_graph *graph, int op, int storage)
{
  const struct graph_op *at = &graph->ops.items[op];
  int access = 0;
  for (int i = 0; i < graph_op_n_operands(at); i++) {
    const struct graph_operand *operand = &graph->operands.items[at->first_operand + i];
    access |= operand->storage == storage ? operand->access : 0;
  }
  return access;
}

/* Compare versions and uses with a plain count, storage by storage. */
static void counts_check(const lade_graph *graph)
{
  for (int storage = 0; storage < graph->storages.n; storage++) {
    int version = 0, use = graph->storages.items[storage].first_use;
    for (int i = 0; i < graph->ops.n; i++) {
      const struct graph_op *op = &graph->ops.items[i];
      const int access = access_of(graph, i, storage);
      for (int j = 0; j < graph_op_n_operands(op); j++) {
        const struct graph_operand *operand = &graph->operands.items[op->first_operand + j];
        if (operand->storage == storage)
          assert_int_equal(operand->version, version + (operand->access == GRAPH_WRITES));
      }
      if (access) {
        assert_true(graph->uses[use].op == i && graph->uses[use].access == access);
        use++;
      }
      version += (access & GRAPH_WRITES) != 0;
    }
    assert_int_equal(use, graph_uses_end(graph, storage));
    assert_int_equal(version, graph->storages.items[storage].n_versions);
  }
}

/* ---- calls ---- */

static void a_graph_has_its_added_parts(void **state)
{
  lade_graph *graph = graph_small();
  assert_int_equal(op_add(graph, OP(READS(1, {0}), WRITES(1, {1}), .ns = 5)), 0);
  assert_int_equal(op_add(graph, OP(READS(1, {1}), WRITES(1, {2}), .ns = 6, .scratch_bytes = 7)), 1);
  assert_int_equal(lade_graph_keep(graph, 2, &error), 0);
  assert_int_equal(lade_graph_keep(graph, 2, &error), 0);
  assert_int_equal(lade_graph_keep(graph, 0, &error), 0);
  assert_true(lade_graph_has_addresses(graph));
  must_close(graph);
  assert_int_equal(lade_graph_n_storages(graph), 3);
  assert_int_equal(lade_graph_n_ops(graph), 2);
  assert_string_equal(lade_graph_storage_name(graph, 2), "y");
  assert_string_equal(lade_graph_op_name(graph, 1), "f");
  assert_string_equal(lade_graph_storage_name(graph, 3), "");
  assert_string_equal(lade_graph_storage_name(graph, -1), "");
  assert_string_equal(lade_graph_op_name(graph, 2), "");
  assert_int_equal(graph->storages.items[1].align, 64);
  assert_true(graph->total_bytes == 300 && graph->total_ns == 11 && graph->total_scratch_bytes == 7);
  assert_true(graph->kept.n == 2 && graph->kept.items[0] == 2 && graph->kept.items[1] == 0);
  counts_check(graph);
  lade_graph_destroy(graph);
  graph = graph_new(); /* a step without ops is one */
  must_close(graph);
  lade_graph_destroy(graph);
}

static void storage_refused(const struct lade_storage *storage, int code, const char *const *names)
{
  lade_graph *graph = graph_small();
  int index = 77;
  assert_int_equal(lade_graph_add_storage(graph, storage, &error, &index), code);
  assert_int_equal(error.code, code);
  names_verify(error.text, names, __FILE__, __LINE__);
  assert_int_equal(index, 77);
  assert_int_equal(storage_add(graph, "next", 1, false), 3);
  assert_int_equal(graph->total_bytes, 301);
  lade_graph_destroy(graph);
}

static void bad_storages_are_refused(void **state)
{
  static const char *const no_utf8[] = {"\x80", "a\xff", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
                                        "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3", "\xe2\x82",
                                        "\xf0\x9f\x98", "\xc3(", "\xe2\x82("};
  char name[258];
  struct lade_storage storage = storage_of(NULL, 8, false);
  storage_refused(&storage, -EINVAL, NAMES("storages[3]", "name is empty"));
  storage.name = "";
  storage_refused(&storage, -EINVAL, NAMES("storages[3]", "name is empty", "255"));
  memset(name, 'n', 256);
  name[256] = 0;
  storage.name = name;
  storage_refused(&storage, -EINVAL, NAMES("storages[3]", "name", "255"));
  storage = storage_of("bad\nname", 8, false);
  storage.class_name = name;
  storage_refused(&storage, -EINVAL, NAMES("storages[3] \"bad?name\"", "class", "255"));
  storage.class_name = "";
  storage_refused(&storage, -EINVAL, NAMES("class is empty"));
  for (size_t i = 0; i < LADE_COUNT(no_utf8); i++) {
    storage = storage_of(no_utf8[i], 8, false);
    storage_refused(&storage, -EINVAL, NAMES("storages[3]", "name is not UTF-8"));
  }
  const uint64_t aligns[] = {3, 65, 4u << 20, UINT64_MAX, (uint64_t)1 << 63};
  for (size_t i = 0; i < LADE_COUNT(aligns); i++) {
    storage = storage_of("a", 8, false);
    storage.align = aligns[i];
    storage_refused(&storage, -EINVAL, NAMES("storages[3] \"a\"", "align", "power of two", "2097152", "64"));
  }
  const int tiers[] = {-1, LADE_N_SPACES, INT32_MAX};
  for (size_t i = 0; i < LADE_COUNT(tiers); i++) {
    storage = storage_of("a", 8, true);
    storage.tier = (enum lade_space)tiers[i];
    storage_refused(&storage, -EINVAL, NAMES("storages[3] \"a\"", "tier", "device, host or store"));
  }
  storage = storage_of("a", 8, false);
  storage.tier = LADE_HOST;
  storage_refused(&storage, -EINVAL, NAMES("storages[3] \"a\"", "tier is host", "device", "given"));
  storage = storage_of("a", LADE_GRAPH_BYTES_MAX - 299, false);
  storage_refused(&storage, -EOVERFLOW, NAMES("storages[3] \"a\"", "1152921504606846677", "2^60"));
  storage.bytes = UINT64_MAX;
  storage_refused(&storage, -EOVERFLOW, NAMES("storages[3] \"a\"", "2^60"));
  storage.struct_size = 4;
  storage_refused(&storage, -EINVAL, NAMES("lade_storage", "struct_size"));
  storage_refused(NULL, -EINVAL, NAMES("lade_storage", "NULL"));
}

static void names_of_255_bytes_are_taken(void **state)
{
  char name[256];
  lade_graph *graph = graph_new();
  memset(name, 'n', 255);
  name[255] = 0;
  storage_add(graph, name, 0, false);
  assert_string_equal(lade_graph_storage_name(graph, 0), name);
  lade_graph_destroy(graph);
}

/* The graph has one op before, which wrote "x". */
static void op_refused(const struct lade_graph_op *op, int code, const char *const *names)
{
  lade_graph *graph = graph_small();
  int index = 77;
  op_add(graph, OP(WRITES(1, {1})));
  assert_int_equal(lade_graph_add_op(graph, op, &error, &index), code);
  assert_int_equal(error.code, code);
  names_verify(error.text, names, __FILE__, __LINE__);
  assert_int_equal(index, 77);
  assert_int_equal(op_add(graph, OP(READS(1, {1}), WRITES(1, {2}), .ns = 3)), 1);
  must_close(graph);
  counts_check(graph);
  assert_true(graph->total_ns == 3 && graph->operands.n == 3);
  lade_graph_destroy(graph);
}

static void bad_ops_are_refused(void **state)
{
  op_refused(OP_NAMED("", .ns = 1), -EINVAL, NAMES("ops[1]", "name is empty"));
  op_refused(OP_NAMED(NULL, .ns = 1), -EINVAL, NAMES("ops[1]", "name is empty"));
  op_refused(OP_NAMED("\xff", .ns = 1), -EINVAL, NAMES("ops[1]", "UTF-8"));
  op_refused(OP(.ns = -1), -EINVAL, NAMES("ops[1] \"f\"", "ns is -1"));
  op_refused(OP(.ns = INT64_MIN), -EINVAL, NAMES("ops[1] \"f\"", "ns is -9223372036854775808"));
  op_refused(OP(.ns = LADE_GRAPH_NS_MAX + 1), -EOVERFLOW, NAMES("ops[1] \"f\"", "ns", "2^50"));
  op_refused(OP(.scratch_bytes = LADE_GRAPH_BYTES_MAX + 1), -EOVERFLOW, NAMES("ops[1] \"f\"", "scratch_bytes", "2^60"));
  op_refused(OP(.pass = (enum lade_pass)3), -EINVAL, NAMES("ops[1] \"f\"", "pass is 3", "forward, backward or update"));
  op_refused(OP(.queue = (enum lade_op_queue)-1), -EINVAL, NAMES("ops[1] \"f\"", "queue is -1", "device or host"));
  op_refused(OP(.n_reads = -1), -EINVAL, NAMES("ops[1] \"f\"", "-1 reads"));
  op_refused(OP(.n_writes = INT32_MAX), -EINVAL, NAMES("ops[1] \"f\"", "2147483647 writes at NULL"));
  op_refused(OP(.n_updates = 1), -EINVAL, NAMES("ops[1] \"f\"", "1 updates at NULL"));
  op_refused(OP(READS(INT32_MAX, {0}), .n_writes = INT32_MAX, .writes = RANGES({0})), -EOVERFLOW,
             NAMES("ops[1] \"f\"", "20000000 operands"));
  op_refused(OP(READS(2, {0}, {3})), -EINVAL, NAMES("ops[1] \"f\"", "reads[1] is 3", "0 to 2"));
  op_refused(OP(WRITES(1, {-1})), -EINVAL, NAMES("ops[1] \"f\"", "writes[0] is -1", "0 to 2"));
  op_refused(OP(UPDATES(1, {INT32_MIN})), -EINVAL, NAMES("ops[1] \"f\"", "updates[0] is -2147483648"));
  op_refused(OP(READS(1, {1, 101, 0})), -EINVAL, NAMES("reads[0]", "offset 101", "storage 1 \"x\"", "100 bytes"));
  op_refused(OP(READS(1, {1, 1, 100})), -EINVAL, NAMES("reads[0]", "100 bytes", "offset 1", "storage 1 \"x\""));
  op_refused(OP(READS(1, {1, 50, UINT64_MAX})), -EINVAL, NAMES("reads[0]", "18446744073709551615", "\"x\""));
  op_refused(OP(READS(1, {1, UINT64_MAX, 2})), -EINVAL, NAMES("reads[0]", "18446744073709551615", "\"x\""));
  op_refused(&(struct lade_graph_op){.struct_size = 7}, -EINVAL, NAMES("lade_graph_op", "struct_size"));
  op_refused(NULL, -EINVAL, NAMES("lade_graph_op", "NULL"));
}

static void bytes_written_twice_by_one_op_are_refused(void **state)
{
  op_refused(OP(WRITES(2, {1}, {1})), -EINVAL, NAMES("ops[1] \"f\"", "byte 0", "storage 1 \"x\"", "twice"));
  op_refused(OP(WRITES(1, {2}), UPDATES(1, {2, 99, 1})), -EINVAL, NAMES("byte 99", "storage 2 \"y\"", "twice"));
  op_refused(OP(UPDATES(3, {0, 60, 10}, {1}, {0, 50, 11})), -EINVAL, NAMES("byte 60", "storage 0 \"w\"", "twice"));
  lade_graph *graph = graph_small();
  storage_add(graph, "empty", 0, false);
  op_add(graph, OP(WRITES(4, {0, 50, 10}, {1}, {0, 60, 40}, {3}), UPDATES(2, {0, 0, 50}, {0, 100, 0}),
                   READS(3, {0}, {0, 1, 2}, {0})));
  op_add(graph, OP(WRITES(2, {3}, {3}), READS(1, {3})));
  must_close(graph);
  counts_check(graph);
  assert_int_equal(graph->storages.items[0].n_versions, 1);
  assert_int_equal(graph->storages.items[3].n_versions, 2);
  lade_graph_destroy(graph);
}

static void ranges_reach_to_the_end_where_they_have_no_size(void **state)
{
  static const uint64_t expected[][2] = {{0, 100}, {40, 60}, {40, 7}, {100, 0}, {99, 1}};
  lade_graph *graph = graph_small();
  op_add(graph, OP(READS(5, {0}, {0, 40, 0}, {0, 40, 7}, {0, 100, 0}, {0, 99, 1})));
  must_close(graph);
  for (size_t i = 0; i < LADE_COUNT(expected); i++) {
    assert_int_equal(graph->operands.items[i].offset, expected[i][0]);
    assert_int_equal(graph->operands.items[i].bytes, expected[i][1]);
  }
  lade_graph_destroy(graph);
}

static void each_op_makes_one_version_and_reads_the_one_before(void **state)
{
  static const int expected[] = {1, 1, 1, 2, 1, 2, 1, 2};
  lade_graph *graph = graph_small();
  op_add(graph, OP(WRITES(2, {1, 0, 50}, {1, 50, 50})));
  op_add(graph, OP(READS(1, {1}), WRITES(1, {1, 0, 10}), UPDATES(1, {1, 20, 10})));
  op_add(graph, OP(READS(1, {1}), WRITES(1, {2})));
  op_add(graph, OP(WRITES(1, {2})));
  must_close(graph);
  assert_int_equal(graph->operands.n, LADE_COUNT(expected));
  for (size_t i = 0; i < LADE_COUNT(expected); i++)
    assert_int_equal(graph->operands.items[i].version, expected[i]);
  assert_true(graph->n_uses == 5 && graph->uses[1].access == GRAPH_UPDATES && graph->uses[1].op == 1);
  counts_check(graph);
  lade_graph_destroy(graph);
}

static void versions_and_uses_of_drawn_graphs_are_those_of_a_plain_count(void **state)
{
  for (uint32_t i = 0; i < N_DRAWN; i++) {
    lade_graph *graph = step_graph_draw(i);
    counts_check(graph);
    for (int a = 0; a < graph->storages.n; a++) {
      for (int b = 0; b < a; b++) {
        const uint32_t x = graph->storages.items[a].class_name, y = graph->storages.items[b].class_name;
        assert_int_equal(x == y, strcmp(graph_name(graph, x), graph_name(graph, y)) == 0);
      }
    }
    lade_graph_destroy(graph);
  }
}

/* Counts are set to their limits directly, because the arrays of so large a graph would take gigabytes. */
static void limits_are_limits(void **state)
{
  const struct lade_storage storage = storage_of("a", 1, false);
  lade_graph *graph = graph_small();
  graph->storages.n = LADE_GRAPH_STORAGES_MAX;
  assert_int_equal(lade_graph_add_storage(graph, &storage, &error, NULL), -EOVERFLOW);
  assert_names(error.text, "storages[10000000] \"a\"", "10000000");
  graph->storages.n = 3;
  graph->ops.n = LADE_GRAPH_OPS_MAX;
  assert_int_equal(lade_graph_add_op(graph, OP(.ns = 1), &error, NULL), -EOVERFLOW);
  assert_names(error.text, "ops[2000000] \"f\"", "2000000 ops");
  graph->ops.n = 0;
  graph->operands.n = LADE_GRAPH_OPERANDS_MAX - 1;
  assert_int_equal(lade_graph_add_op(graph, OP(READS(1, {0}), WRITES(1, {1})), &error, NULL), -EOVERFLOW);
  assert_names(error.text, "ops[0] \"f\"", "20000000");
  graph->operands.n = 0;
  const int n = graph->names.n;
  graph->names.n = LADE_GRAPH_NAMES_MAX - 1;
  assert_int_equal(lade_graph_add_storage(graph, &storage, &error, NULL), -EOVERFLOW);
  assert_names(error.text, "names", "2000000000");
  assert_int_equal(lade_graph_add_op(graph, OP(.ns = 1), &error, NULL), -EOVERFLOW);
  graph->names.n = n;
  for (int i = 0; i < LADE_GRAPH_VERSIONS_MAX; i++)
    op_add(graph, OP(UPDATES(1, {0})));
  assert_int_equal(lade_graph_add_op(graph, OP(WRITES(2, {1}, {0})), &error, NULL), -EOVERFLOW);
  assert_names(error.text, "ops[32767] \"f\"", "storage 0 \"w\"", "32767");
  op_add(graph, OP(READS(1, {0}), .ns = LADE_GRAPH_NS_MAX, .scratch_bytes = LADE_GRAPH_BYTES_MAX));
  assert_int_equal(lade_graph_add_op(graph, OP(.ns = 1), &error, NULL), -EOVERFLOW);
  assert_int_equal(lade_graph_add_op(graph, OP(.scratch_bytes = 1), &error, NULL), -EOVERFLOW);
  must_close(graph);
  counts_check(graph);
  assert_int_equal(graph->storages.items[0].n_versions, LADE_GRAPH_VERSIONS_MAX);
  lade_graph_destroy(graph);
}

/* ---- closing ---- */

static void close_refused(lade_graph *graph, const char *const *names)
{
  assert_int_equal(lade_graph_close(graph, &error), -EINVAL);
  assert_int_equal(error.code, -EINVAL);
  names_verify(error.text, names, __FILE__, __LINE__);
}

static void storages_that_hold_nothing_are_neither_read_nor_kept(void **state)
{
  lade_graph *graph = graph_small();
  op_add(graph, OP_NAMED("good", READS(1, {0}), WRITES(1, {1})));
  op_add(graph, OP_NAMED("reader", READS(2, {1}, {2})));
  close_refused(graph, NAMES("ops[1] \"reader\"", "reads", "storage 2 \"y\""));
  lade_graph_destroy(graph);
  graph = graph_small();
  op_add(graph, OP_NAMED("updater", UPDATES(1, {2})));
  close_refused(graph, NAMES("ops[0] \"updater\"", "updates", "storage 2 \"y\""));
  lade_graph_destroy(graph);
  graph = graph_small();
  op_add(graph, OP_NAMED("both", READS(1, {2}), WRITES(1, {2}))); /* it reads the version before */
  close_refused(graph, NAMES("ops[0] \"both\"", "reads", "storage 2 \"y\""));
  lade_graph_destroy(graph);
  graph = graph_small();
  op_add(graph, OP(WRITES(1, {2, 0, 10}), UPDATES(1, {2, 10, 10})));
  close_refused(graph, NAMES("ops[0] \"f\"", "updates", "storage 2 \"y\""));
  lade_graph_destroy(graph);
}

static void a_graph_that_cannot_be_closed_is_open_as_before(void **state)
{
  lade_graph *graph = graph_small();
  assert_int_equal(lade_graph_keep(graph, 0, &error), 0);
  assert_int_equal(lade_graph_keep(graph, 2, &error), 0);
  close_refused(graph, NAMES("storages[2] \"y\"", "kept", "writes"));
  const int refused[] = {3, -1, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < LADE_COUNT(refused); i++) {
    assert_int_equal(lade_graph_keep(graph, refused[i], &error), -EINVAL);
    assert_names(error.text, "keep", "0 to 2");
  }
  op_add(graph, OP(WRITES(1, {2})));
  must_close(graph);
  counts_check(graph);
  lade_graph_destroy(graph);
}

static void a_closed_graph_does_not_change(void **state)
{
  const struct lade_storage storage = storage_of("a", 1, false);
  lade_graph *graph = graph_small();
  must_close(graph);
  assert_int_equal(lade_graph_add_storage(graph, &storage, &error, NULL), -EINVAL);
  assert_names(error.text, "closed");
  assert_int_equal(lade_graph_add_op(graph, OP(.ns = 1), &error, NULL), -EINVAL);
  assert_names(error.text, "closed");
  assert_int_equal(lade_graph_keep(graph, 0, &error), -EINVAL);
  assert_int_equal(lade_graph_set_addresses(graph, false), -EINVAL);
  close_refused(graph, NAMES("closed"));
  assert_true(lade_graph_has_addresses(graph) && lade_graph_n_storages(graph) == 3);
  lade_graph_destroy(graph);
}

/* ---- memory ---- */

/* Build a graph of many names and operands with calls. Return the first code that is not 0. */
static int graph_build(lade_graph **ret_graph)
{
  lade_graph *graph = NULL;
  char name[16];
  int rc = lade_graph_create(&graph);
  *ret_graph = graph;
  for (int i = 0; i < 40 && !rc; i++) {
    snprintf(name, sizeof(name), "storage %d", i);
    struct lade_storage storage = storage_of(name, 100, i == 0);
    storage.class_name = "c";
    rc = lade_graph_add_storage(graph, &storage, &error, NULL);
    if (!rc && i)
      rc = lade_graph_add_op(graph, OP(READS(1, {i - 1}), WRITES(2, {i, 50, 50}, {i, 0, 50})), &error, NULL);
    if (!rc)
      rc = lade_graph_keep(graph, i, &error);
  }
  return rc ? rc : lade_graph_close(graph, &error);
}

static void building_without_memory_is_an_error_and_can_go_on(void **state)
{
  int rc = -ENOMEM, n = 1;
  for (; rc; n++) {
    lade_graph *graph = NULL;
    allocations_left = n;
    rc = graph_build(&graph);
    allocations_left = -1;
    assert_true(rc == 0 || (rc == -ENOMEM && (!graph || error.text[0])));
    if (rc && graph) { /* a part of the graph: of the last storage perhaps no op, which wrote it, or it is not kept */
      const int last = graph->storages.n - 1;
      if (last > 0 && graph->ops.n < last)
        op_add(graph, OP(WRITES(1, {last})));
      assert_int_equal(last >= 0 ? lade_graph_keep(graph, last, &error) : 0, 0);
      must_close(graph);
      counts_check(graph);
      assert_int_equal(graph->kept.n, graph->storages.n);
    }
    lade_graph_destroy(graph);
  }
  assert_true(n > 15);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_graph_has_its_added_parts),
      cmocka_unit_test(bad_storages_are_refused),
      cmocka_unit_test(names_of_255_bytes_are_taken),
      cmocka_unit_test(bad_ops_are_refused),
      cmocka_unit_test(bytes_written_twice_by_one_op_are_refused),
      cmocka_unit_test(ranges_reach_to_the_end_where_they_have_no_size),
      cmocka_unit_test(each_op_makes_one_version_and_reads_the_one_before),
      cmocka_unit_test(versions_and_uses_of_drawn_graphs_are_those_of_a_plain_count),
      cmocka_unit_test(limits_are_limits),
      cmocka_unit_test(storages_that_hold_nothing_are_neither_read_nor_kept),
      cmocka_unit_test(a_graph_that_cannot_be_closed_is_open_as_before),
      cmocka_unit_test(a_closed_graph_does_not_change),
      cmocka_unit_test(building_without_memory_is_an_error_and_can_go_on),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
