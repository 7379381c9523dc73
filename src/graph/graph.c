/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a caller's own step: building it by calls, and closing it.
 *
 * Each call checks its storage or op completely, reserves room in every array that it extends, and only then changes
 * the graph. So every error, -ENOMEM included, leaves the graph unchanged. Ops are added in their order, so an op's
 * operands get their versions at once: a storage counts its writes and updates so far. An op that writes several ranges
 * of one storage must not write a byte twice. Its written ranges are sorted by storage and offset, in the spare room
 * after the operands. Ranges that overlap are then neighbours, and each storage is counted once.
 *
 * Closing checks the conditions that later calls could still have met: a made storage is written before it is read, and
 * a kept one is written at all. Then one pass over the operands counts the uses of each storage, and another fills them
 * in, storage after storage. Equal names of classes get one offset. Everything is O(n), except sorting the names and
 * the ranges of one op.
 */
#include "graph/graph.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/echo.h"

#define ALIGN_MAX (UINT64_C(2) << 20)
#define REASON_BYTES 384

/* ---- messages ---- */

/* An op or a storage, as messages name it. */
struct element {
  const char *list; /* "ops" or "storages" */
  int index;
  const char *name; /* NULL: it has none that can be shown */
};

static int element_refuse(struct lade_error *error, int code, struct element element, const char *format, va_list args)
{
  char reason[REASON_BYTES];
  vsnprintf(reason, sizeof(reason), format, args);
  if (element.name)
    return lade_error_set(error, code, "%s[%d] \"%s\": %s", element.list, element.index,
                          lade_echo(element.name).text, reason);
  return lade_error_set(error, code, "%s[%d]: %s", element.list, element.index, reason);
}

/* Refuse the op @index, which has @name. */
__attribute__((format(printf, 5, 6)))
static int op_refuse(struct lade_error *error, int code, int index, const char *name, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  code = element_refuse(error, code, (struct element){"ops", index, name}, format, args);
  va_end(args);
  return code;
}

__attribute__((format(printf, 5, 6)))
static int storage_refuse(struct lade_error *error, int code, int index, const char *name, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  code = element_refuse(error, code, (struct element){"storages", index, name}, format, args);
  va_end(args);
  return code;
}

/* Write the indices that a storage may have into @text; return it. */
#define EXPECTED_BYTES 48
static const char *storages_expected(const lade_graph *graph, char text[EXPECTED_BYTES])
{
  if (graph->storages.n)
    snprintf(text, EXPECTED_BYTES, "a storage, 0 to %d", graph->storages.n - 1);
  else
    snprintf(text, EXPECTED_BYTES, "a storage, but the graph has none");
  return text;
}

/* Check that @graph exists and is open. */
static int open_check(const lade_graph *graph, struct lade_error *error)
{
  if (!graph)
    return lade_error_set(error, -EINVAL, "graph: the pointer is NULL");
  if (graph->is_closed)
    return lade_error_set(error, -EINVAL, "graph: it is closed: expected changes before lade_graph_close");
  return 0;
}

/* ---- names ---- */

/* Return the bytes of the UTF-8 letter at @text; 0: none, or one that is too long, a surrogate or past U+10FFFF. */
static size_t letter_bytes(const char *text)
{
  const unsigned char *at = (const unsigned char *)text;
  const size_t n = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < n; i++) {
    if ((at[i] & 0xc0) != 0x80)
      return 0;
  }
  const bool is_long = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
  const bool is_outside = (at[0] == 0xed && at[1] >= 0xa0) || (at[0] == 0xf4 && at[1] >= 0x90);
  return is_long || is_outside ? 0 : n;
}

/* Return the fault of a name, NULL if there is none. */
static const char *name_fault(const char *name)
{
  if (!name || !name[0])
    return "is empty: expected 1 to 255 bytes";
  const size_t n = strnlen(name, LADE_GRAPH_NAME_MAX + 1);
  if (n > LADE_GRAPH_NAME_MAX)
    return "has more than 255 bytes";
  for (size_t i = 0, step; i < n; i += step) {
    step = letter_bytes(name + i);
    if (!step)
      return "is not UTF-8";
  }
  return NULL;
}

/* Reserve room for the names @a and @b, which may be NULL. */
static int names_reserve(lade_graph *graph, const char *a, const char *b, struct lade_error *error)
{
  const size_t n = (size_t)graph->names.n + strlen(a) + 1 + (b ? strlen(b) + 1 : 0);
  if (n > LADE_GRAPH_NAMES_MAX)
    return lade_error_set(error, -EOVERFLOW, "graph: its names have more than %d bytes together", LADE_GRAPH_NAMES_MAX);
  if (!lade_array_reserve((void **)&graph->names.items, &graph->names.capacity, (int)n, 1))
    return lade_error_set(error, -ENOMEM, "graph: out of memory");
  return 0;
}

/* Append a name, and return its offset. pre: it has room. */
static uint32_t name_append(lade_graph *graph, const char *name)
{
  const size_t n = strlen(name) + 1;
  const uint32_t offset = (uint32_t)graph->names.n;
  LADE_ASSERT(n <= (size_t)(graph->names.capacity - graph->names.n));
  memcpy(graph->names.items + offset, name, n);
  graph->names.n += (int)n;
  return offset;
}

/* ---- storages ---- */

static int storage_check(const lade_graph *graph, const struct lade_storage *storage, struct lade_error *error)
{
  const int index = graph->storages.n;
  const char *const name = storage->name, *fault = name_fault(name);
  if (fault)
    return storage_refuse(error, -EINVAL, index, NULL, "name %s", fault);
  fault = storage->class_name ? name_fault(storage->class_name) : NULL;
  if (fault)
    return storage_refuse(error, -EINVAL, index, name, "class %s", fault);
  if (storage->align > ALIGN_MAX || (storage->align & (storage->align - 1)))
    return storage_refuse(error, -EINVAL, index, name, "align is %" PRIu64 ": expected a power of two up to %" PRIu64
                          ", or 0 for %d", storage->align, ALIGN_MAX, GRAPH_ALIGN_DEFAULT);
  if ((unsigned)storage->tier >= LADE_N_SPACES)
    return storage_refuse(error, -EINVAL, index, name, "tier is %d: expected device, host or store",
                          (int)storage->tier);
  if (!storage->is_given && storage->tier != LADE_DEVICE)
    return storage_refuse(error, -EINVAL, index, name, "tier is %s: expected device, because it is not given",
                          storage->tier == LADE_HOST ? "host" : "store");
  if (index >= LADE_GRAPH_STORAGES_MAX)
    return storage_refuse(error, -EOVERFLOW, index, name, "a graph has at most %d storages", LADE_GRAPH_STORAGES_MAX);
  if (storage->bytes > LADE_GRAPH_BYTES_MAX - graph->total_bytes)
    return storage_refuse(error, -EOVERFLOW, index, name, "bytes is %" PRIu64 ": all storages together have more than "
                          "2^60 bytes", storage->bytes);
  return 0;
}

int lade_graph_add_storage(lade_graph *graph, const struct lade_storage *storage, struct lade_error *error,
                           int *ret_storage)
{
  struct lade_storage own;
  int rc = open_check(graph, error);
  if (!rc)
    rc = lade_struct_read("lade_storage", storage, &own, sizeof(own), error);
  if (!rc)
    rc = storage_check(graph, &own, error);
  if (!rc)
    rc = names_reserve(graph, own.name, own.class_name, error);
  if (rc)
    return rc;
  struct graph_storage added = {.bytes = own.bytes, .align = own.align ? (uint32_t)own.align : GRAPH_ALIGN_DEFAULT,
                                .is_given = own.is_given, .tier = (uint8_t)own.tier};
  if (!LADE_PUSH(&graph->storages, added))
    return lade_error_set(error, -ENOMEM, "graph: out of memory");
  const int index = graph->storages.n - 1;
  graph->storages.items[index].name = name_append(graph, own.name);
  graph->storages.items[index].class_name = own.class_name ? name_append(graph, own.class_name) : 0;
  graph->total_bytes += own.bytes;
  if (ret_storage)
    *ret_storage = index;
  return 0;
}

int lade_graph_keep(lade_graph *graph, int storage, struct lade_error *error)
{
  char expected[EXPECTED_BYTES];
  const int rc = open_check(graph, error);
  if (rc)
    return rc;
  if (storage < 0 || storage >= graph->storages.n)
    return lade_error_set(error, -EINVAL, "keep: %d is no storage: expected %s", storage,
                          storages_expected(graph, expected));
  if (graph->storages.items[storage].is_kept)
    return 0;
  if (!LADE_PUSH(&graph->kept, storage))
    return lade_error_set(error, -ENOMEM, "graph: out of memory");
  graph->storages.items[storage].is_kept = true;
  return 0;
}

/* ---- ops ---- */

/* One of the three lists of an op's operands. */
struct operand_list {
  const char *field;
  enum graph_access access;
  const struct lade_operand_range *ranges;
  int n;
};
#define N_LISTS 3

static void lists_get(const struct lade_graph_op *op, struct operand_list ret_lists[N_LISTS])
{
  ret_lists[0] = (struct operand_list){"reads", GRAPH_READS, op->reads, op->n_reads};
  ret_lists[1] = (struct operand_list){"writes", GRAPH_WRITES, op->writes, op->n_writes};
  ret_lists[2] = (struct operand_list){"updates", GRAPH_UPDATES, op->updates, op->n_updates};
}

static int lists_check(const lade_graph *graph, const struct lade_graph_op *op, struct lade_error *error)
{
  struct operand_list lists[N_LISTS];
  int64_t n_operands = graph->operands.n;
  lists_get(op, lists);
  for (int i = 0; i < N_LISTS; i++) {
    if (lists[i].n < 0 || (lists[i].n && !lists[i].ranges))
      return op_refuse(error, -EINVAL, graph->ops.n, op->name, "%d %s%s: expected 0 or more, and their array",
                       lists[i].n, lists[i].field, lists[i].ranges ? "" : " at NULL");
    n_operands += lists[i].n;
  }
  if (n_operands > LADE_GRAPH_OPERANDS_MAX)
    return op_refuse(error, -EOVERFLOW, graph->ops.n, op->name, "all ops together have more than %d operands",
                     LADE_GRAPH_OPERANDS_MAX);
  return 0;
}

static int op_check(const lade_graph *graph, const struct lade_graph_op *op, struct lade_error *error)
{
  const int index = graph->ops.n;
  const char *const name = op->name, *const fault = name_fault(name);
  if (fault)
    return op_refuse(error, -EINVAL, index, NULL, "name %s", fault);
  if (op->ns < 0)
    return op_refuse(error, -EINVAL, index, name, "ns is %" PRId64 ": expected nanoseconds from 0 up", op->ns);
  if ((unsigned)op->pass >= LADE_N_PASSES)
    return op_refuse(error, -EINVAL, index, name, "pass is %d: expected forward, backward or update", (int)op->pass);
  if ((unsigned)op->queue >= LADE_N_OP_QUEUES)
    return op_refuse(error, -EINVAL, index, name, "queue is %d: expected device or host", (int)op->queue);
  if (index >= LADE_GRAPH_OPS_MAX)
    return op_refuse(error, -EOVERFLOW, index, name, "a graph has at most %d ops", LADE_GRAPH_OPS_MAX);
  if (op->ns > LADE_GRAPH_NS_MAX - graph->total_ns)
    return op_refuse(error, -EOVERFLOW, index, name, "ns is %" PRId64 ": all ops together take more than 2^50 ns",
                     op->ns);
  if (op->scratch_bytes > LADE_GRAPH_BYTES_MAX - graph->total_scratch_bytes)
    return op_refuse(error, -EOVERFLOW, index, name, "scratch_bytes is %" PRIu64 ": all ops together have more than "
                     "2^60 bytes of scratch", op->scratch_bytes);
  return lists_check(graph, op, error);
}

/*
 * Reserve room for @op: its operands, and after them a copy of those that it writes, to be sorted. One more, so that
 * the array exists where no op has operands.
 */
static int op_reserve(lade_graph *graph, const struct lade_graph_op *op, struct lade_error *error)
{
  const int n_written = op->n_writes + op->n_updates, n_operands = graph->operands.n + op->n_reads + 2 * n_written + 1;
  int rc = names_reserve(graph, op->name, NULL, error);
  if (!rc && (!lade_array_reserve((void **)&graph->operands.items, &graph->operands.capacity, n_operands,
                                  sizeof(*graph->operands.items)) ||
              !lade_array_reserve((void **)&graph->ops.items, &graph->ops.capacity, graph->ops.n + 1,
                                  sizeof(*graph->ops.items))))
    rc = lade_error_set(error, -ENOMEM, "graph: out of memory");
  return rc;
}

/* Make the operand @i of @list. */
static int operand_make(const lade_graph *graph, const struct lade_graph_op *op, const struct operand_list *list, int i,
                        struct lade_error *error, struct graph_operand *ret_operand)
{
  const struct lade_operand_range *range = &list->ranges[i];
  char expected[EXPECTED_BYTES];
  if (range->storage < 0 || range->storage >= graph->storages.n)
    return op_refuse(error, -EINVAL, graph->ops.n, op->name, "%s[%d] is %d: expected %s", list->field, i,
                     range->storage, storages_expected(graph, expected));
  const struct graph_storage *storage = &graph->storages.items[range->storage];
  if (range->offset > storage->bytes || range->bytes > storage->bytes - range->offset)
    return op_refuse(error, -EINVAL, graph->ops.n, op->name, "%s[%d] is %" PRIu64 " bytes from offset %" PRIu64
                     " of storage %d \"%s\": expected a range of its %" PRIu64 " bytes", list->field, i, range->bytes,
                     range->offset, range->storage, lade_echo(graph_name(graph, storage->name)).text, storage->bytes);
  *ret_operand = (struct graph_operand){
      .storage = range->storage, .access = (uint8_t)list->access, .offset = range->offset,
      .version = storage->n_versions + (list->access == GRAPH_WRITES),
      .bytes = range->bytes ? range->bytes : storage->bytes - range->offset};
  return 0;
}

static int operand_compare(const void *a, const void *b)
{
  const struct graph_operand *x = a, *y = b;
  if (x->storage != y->storage)
    return x->storage < y->storage ? -1 : 1;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Check the ranges that @op writes, sorted: no byte is written twice, and each storage has a version left. */
static int written_check(const lade_graph *graph, const struct lade_graph_op *op, const struct graph_operand *written,
                         int n, struct lade_error *error)
{
  for (int i = 0; i < n; i++) {
    const struct graph_storage *storage = &graph->storages.items[written[i].storage];
    const char *name = graph_name(graph, storage->name);
    if (storage->n_versions >= LADE_GRAPH_VERSIONS_MAX)
      return op_refuse(error, -EOVERFLOW, graph->ops.n, op->name, "storage %d \"%s\" is written and updated more than "
                       "%d times", written[i].storage, lade_echo(name).text, LADE_GRAPH_VERSIONS_MAX);
    if (i > 0 && written[i].storage == written[i - 1].storage &&
        written[i].offset < written[i - 1].offset + written[i - 1].bytes)
      return op_refuse(error, -EINVAL, graph->ops.n, op->name, "byte %" PRIu64 " of storage %d \"%s\" is written "
                       "twice: expected writes and updates that do not overlap", written[i].offset, written[i].storage,
                       lade_echo(name).text);
  }
  return 0;
}

/* Append the operands of @op, and after them a sorted copy of those that it writes. Neither is counted yet. */
static int operands_fill(lade_graph *graph, const struct lade_graph_op *op, struct lade_error *error,
                         struct graph_operand **ret_written)
{
  struct graph_operand *operand = graph->operands.items + graph->operands.n;
  struct operand_list lists[N_LISTS];
  lists_get(op, lists);
  for (int i = 0; i < N_LISTS; i++) {
    for (int j = 0; j < lists[i].n; j++) {
      const int rc = operand_make(graph, op, &lists[i], j, error, operand++);
      if (rc)
        return rc;
    }
  }
  const int n_written = op->n_writes + op->n_updates;
  if (n_written) {
    memcpy(operand, operand - n_written, (size_t)n_written * sizeof(*operand));
    qsort(operand, (size_t)n_written, sizeof(*operand), operand_compare);
  }
  *ret_written = operand;
  return written_check(graph, op, operand, n_written, error);
}

int lade_graph_add_op(lade_graph *graph, const struct lade_graph_op *op, struct lade_error *error, int *ret_op)
{
  struct lade_graph_op own;
  struct graph_operand *written;
  int rc = open_check(graph, error);
  if (!rc)
    rc = lade_struct_read("lade_graph_op", op, &own, sizeof(own), error);
  if (!rc)
    rc = op_check(graph, &own, error);
  if (!rc)
    rc = op_reserve(graph, &own, error);
  if (!rc)
    rc = operands_fill(graph, &own, error, &written);
  if (rc)
    return rc;
  for (int i = 0; i < own.n_writes + own.n_updates; i++) {
    if (i == 0 || written[i].storage != written[i - 1].storage)
      graph->storages.items[written[i].storage].n_versions++;
  }
  graph->ops.items[graph->ops.n] = (struct graph_op){
      .name = name_append(graph, own.name), .first_operand = graph->operands.n, .n_reads = own.n_reads,
      .n_writes = own.n_writes, .n_updates = own.n_updates, .scratch_bytes = own.scratch_bytes, .ns = own.ns,
      .is_once = own.is_once, .draws = own.draws, .pass = (uint8_t)own.pass, .queue = (uint8_t)own.queue};
  graph->operands.n += own.n_reads + own.n_writes + own.n_updates;
  graph->total_scratch_bytes += own.scratch_bytes;
  graph->total_ns += own.ns;
  if (ret_op)
    *ret_op = graph->ops.n;
  graph->ops.n++;
  return 0;
}

/* ---- closing ---- */

/* Check that no made storage is read before its first write, nor kept without one. */
static int order_check(const lade_graph *graph, struct lade_error *error)
{
  for (int i = 0; i < graph->ops.n; i++) {
    const struct graph_op *op = &graph->ops.items[i];
    for (int j = 0; j < graph_op_n_operands(op); j++) {
      const struct graph_operand *operand = &graph->operands.items[op->first_operand + j];
      const struct graph_storage *storage = &graph->storages.items[operand->storage];
      if ((operand->access & GRAPH_READS) && !operand->version && !storage->is_given)
        return op_refuse(error, -EINVAL, i, graph_name(graph, op->name), "%s storage %d \"%s\" before an op wrote it: "
                         "expected an op before this one that writes it, or a given storage",
                         operand->access == GRAPH_READS ? "reads" : "updates", operand->storage,
                         lade_echo(graph_name(graph, storage->name)).text);
    }
  }
  for (int i = 0; i < graph->kept.n; i++) {
    const struct graph_storage *storage = &graph->storages.items[graph->kept.items[i]];
    if (!storage->is_given && !storage->n_versions)
      return storage_refuse(error, -EINVAL, graph->kept.items[i], graph_name(graph, storage->name),
                            "is kept, but no op writes it: expected an op that writes it, or a given storage");
  }
  return 0;
}

static int class_compare(const void *a, const void *b, void *data)
{
  const lade_graph *graph = data;
  const int32_t *x = a, *y = b;
  return strcmp(graph_name(graph, graph->storages.items[*x].class_name),
                graph_name(graph, graph->storages.items[*y].class_name));
}

/* Give equal names of classes one offset. @room has one number per storage. */
static void classes_share(lade_graph *graph, int32_t *room)
{
  struct graph_storage *storages = graph->storages.items;
  int n = 0;
  for (int i = 0; i < graph->storages.n; i++) {
    if (storages[i].class_name)
      room[n++] = i;
  }
  qsort_r(room, (size_t)n, sizeof(*room), class_compare, graph);
  for (int i = 1; i < n; i++) {
    if (class_compare(&room[i - 1], &room[i], graph) == 0)
      storages[room[i]].class_name = storages[room[i - 1]].class_name;
  }
}

/* Set first_use of each storage, and return the number of all uses. @room has one number per storage. */
static int uses_count(lade_graph *graph, int32_t *room)
{
  struct graph_storage *storages = graph->storages.items;
  int n_uses = 0;
  for (int i = 0; i < graph->storages.n; i++) {
    storages[i].first_use = 0;
    room[i] = -1; /* the last op that uses it */
  }
  for (int i = 0; i < graph->ops.n; i++) {
    const struct graph_op *op = &graph->ops.items[i];
    for (int j = 0; j < graph_op_n_operands(op); j++) {
      const int storage = graph->operands.items[op->first_operand + j].storage;
      storages[storage].first_use += room[storage] != i;
      room[storage] = i;
    }
  }
  for (int i = 0; i < graph->storages.n; i++) {
    const int n = storages[i].first_use;
    storages[i].first_use = n_uses;
    n_uses += n;
  }
  return n_uses;
}

/* Fill in the uses of all storages. @room has one number per storage. */
static void uses_fill(lade_graph *graph, int32_t *room)
{
  for (int i = 0; i < graph->storages.n; i++)
    room[i] = graph->storages.items[i].first_use; /* where its next use goes */
  for (int i = 0; i < graph->ops.n; i++) {
    const struct graph_op *op = &graph->ops.items[i];
    for (int j = 0; j < graph_op_n_operands(op); j++) {
      const struct graph_operand *operand = &graph->operands.items[op->first_operand + j];
      int32_t *next = &room[operand->storage];
      if (*next == graph->storages.items[operand->storage].first_use || graph->uses[*next - 1].op != i)
        graph->uses[(*next)++] = (struct graph_use){.op = i};
      graph->uses[*next - 1].access |= operand->access;
    }
  }
}

int lade_graph_close(lade_graph *graph, struct lade_error *error)
{
  int rc = open_check(graph, error);
  if (!rc)
    rc = order_check(graph, error);
  if (rc)
    return rc;
  int32_t *room = malloc(((size_t)graph->storages.n + 1) * sizeof(*room));
  if (room) {
    classes_share(graph, room);
    graph->n_uses = uses_count(graph, room);
    graph->uses = malloc(((size_t)graph->n_uses + 1) * sizeof(*graph->uses));
  }
  if (graph->uses) {
    uses_fill(graph, room);
    graph->is_closed = true;
  }
  else
    rc = lade_error_set(error, -ENOMEM, "graph: out of memory");
  free(room);
  return rc;
}

/* ---- the object ---- */

int lade_graph_create(lade_graph **ret_graph)
{
  if (!ret_graph)
    return -EINVAL;
  lade_graph *graph = calloc(1, sizeof(*graph));
  if (!graph || !LADE_PUSH(&graph->names, '\0')) {
    lade_graph_destroy(graph);
    return -ENOMEM;
  }
  graph->has_addresses = true;
  *ret_graph = graph;
  return 0;
}

void lade_graph_destroy(lade_graph *graph)
{
  if (!graph)
    return;
  LADE_ARRAY_FREE(&graph->names);
  LADE_ARRAY_FREE(&graph->storages);
  LADE_ARRAY_FREE(&graph->operands);
  LADE_ARRAY_FREE(&graph->ops);
  LADE_ARRAY_FREE(&graph->kept);
  free(graph->uses);
  free(graph);
}

int lade_graph_n_storages(const lade_graph *graph)
{
  return graph ? graph->storages.n : 0;
}

int lade_graph_n_ops(const lade_graph *graph)
{
  return graph ? graph->ops.n : 0;
}

const char *lade_graph_storage_name(const lade_graph *graph, int storage)
{
  return storage >= 0 && storage < lade_graph_n_storages(graph) ? graph_name(graph, graph->storages.items[storage].name)
                                                                 : "";
}

const char *lade_graph_op_name(const lade_graph *graph, int op)
{
  return op >= 0 && op < lade_graph_n_ops(graph) ? graph_name(graph, graph->ops.items[op].name) : "";
}

bool lade_graph_has_addresses(const lade_graph *graph)
{
  return !graph || graph->has_addresses;
}

int lade_graph_set_addresses(lade_graph *graph, bool has_addresses)
{
  const int rc = open_check(graph, NULL);
  if (!rc)
    graph->has_addresses = has_addresses;
  return rc;
}
