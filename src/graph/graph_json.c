/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read and write graphs as JSON. Files may come from other programs. docs/graph.md has the fields.
 *
 * The reader checks types and names of fields. The functions of graph.c check the range of every number. Their messages
 * begin with the place in the file, because lists and fields have the same names in both. An unknown field is refused,
 * because it may be misspelt. The version is checked first, so that a file of a later format is refused for that.
 *
 * Writing makes the text in memory, with one line for each storage and each op. So two versions of a file can be
 * compared line by line. It does not go through jansson, whose tree would take ten times the text.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/echo.h"
#include "base/file.h"
#include "graph/graph.h"

#define SCHEMA_VERSION 1 /* of the file's fields */
#define REAL_EXACT 9007199254740992.0 /* 2^53: reals up to here are whole numbers without a gap */
#define REASON_BYTES 384

static const char *const tier_names[] = {"device", "host", "store", NULL};
static const char *const pass_names[] = {"forward", "backward", "update", NULL};
static const char *const queue_names[] = {"device", "host", NULL};

static const char *const graph_fields[] = {"schema_version", "addresses", "storages", "ops", "keep", NULL};
static const char *const storage_fields[] = {"name", "bytes", "given", "tier", "align", "class", NULL};
static const char *const op_fields[] = {"name", "reads", "writes", "updates", "ns", "scratch_bytes", "repeatable",
                                        "draws", "pass", "queue", NULL};

/* ---- reading: one field ---- */

struct graph_reader {
  const char *file; /* for messages */
  struct lade_error *error;
  lade_graph *graph;
  LADE_ARRAY(struct lade_operand_range) ranges; /* of one op */
  /* The object that is read: an element of @list, or the whole file (NULL). */
  const char *list;
  size_t index;
  const json_t *object;
};

__attribute__((format(printf, 2, 3)))
static int reader_refuse(const struct graph_reader *reader, const char *format, ...)
{
  const char *name = json_string_value(json_object_get(reader->object, "name"));
  char reason[REASON_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof(reason), format, args);
  va_end(args);
  if (!reader->list)
    return lade_error_set(reader->error, -EINVAL, "%s: %s", reader->file, reason);
  if (!name)
    return lade_error_set(reader->error, -EINVAL, "%s: %s[%zu]: %s", reader->file, reader->list, reader->index, reason);
  return lade_error_set(reader->error, -EINVAL, "%s: %s[%zu] \"%s\": %s", reader->file, reader->list, reader->index,
                        lade_echo(name).text, reason);
}

static int reader_no_memory(const struct graph_reader *reader)
{
  return lade_error_set(reader->error, -ENOMEM, "%s: out of memory reading it", reader->file);
}

/* Return @code of a call of graph.c, whose message is @problem, as a refusal of the file. */
static int call_end(const struct graph_reader *reader, int code, const struct lade_error *problem)
{
  return code ? lade_error_set(reader->error, code == -ENOMEM ? code : -EINVAL, "%s: %s", reader->file, problem->text)
              : 0;
}

static int field_refuse(const struct graph_reader *reader, const char *field, const char *expected)
{
  return reader_refuse(reader, "%s is %s: expected %s", field,
                       lade_json_echo(json_object_get(reader->object, field)).text, expected);
}

/* Check that the object has no fields but @fields. */
static int fields_check(const struct graph_reader *reader, const char *const *fields)
{
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)reader->object, key, value)
  {
    int i = 0;
    while (fields[i] && strcmp(fields[i], key) != 0)
      i++;
    if (fields[i])
      continue;
    char expected[160] = "";
    for (i = 0; fields[i]; i++)
      snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "%s%s", i ? ", " : "", fields[i]);
    return reader_refuse(reader, "unknown field \"%s\": expected %s", lade_echo(key).text, expected);
  }
  return 0;
}

/* Read a whole number. False if @value is not one, or is a real too large to be exact. */
static bool whole_read(const json_t *value, int64_t *ret_value)
{
  const double real = json_real_value(value);
  if (json_is_integer(value))
    *ret_value = json_integer_value(value);
  else if (json_is_real(value) && real >= -REAL_EXACT && real <= REAL_EXACT && real == (double)(int64_t)real)
    *ret_value = (int64_t)real;
  else
    return false;
  return true;
}

/* The functions below leave the result unchanged if the field is absent and not required. */

static int field_bytes(const struct graph_reader *reader, const char *field, bool is_required, uint64_t *ret_value)
{
  const json_t *value = json_object_get(reader->object, field);
  int64_t number;
  if (!value && !is_required)
    return 0;
  if (!whole_read(value, &number) || number < 0)
    return field_refuse(reader, field, "a whole number from 0 up");
  *ret_value = (uint64_t)number;
  return 0;
}

static int field_flag(const struct graph_reader *reader, const char *field, bool *ret_value)
{
  const json_t *value = json_object_get(reader->object, field);
  if (value && !json_is_boolean(value))
    return field_refuse(reader, field, "true or false");
  *ret_value = value ? json_is_true(value) : *ret_value;
  return 0;
}

static int field_text(const struct graph_reader *reader, const char *field, bool is_required, const char **ret_value)
{
  const json_t *value = json_object_get(reader->object, field);
  if (!value && !is_required)
    return 0;
  if (!json_is_string(value))
    return field_refuse(reader, field, "a string");
  *ret_value = json_string_value(value);
  return 0;
}

/* Read one of @names as its index. */
static int field_choice(const struct graph_reader *reader, const char *field, const char *const *names, int *ret_value)
{
  const json_t *value = json_object_get(reader->object, field);
  const char *text = json_string_value(value);
  if (!value)
    return 0;
  char expected[64] = "";
  for (int i = 0; names[i]; i++) {
    if (text && strcmp(text, names[i]) == 0) {
      *ret_value = i;
      return 0;
    }
    snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "%s\"%s\"", i ? " or " : "", names[i]);
  }
  return field_refuse(reader, field, expected);
}

/* ---- reading: lists ---- */

typedef int element_read_fn(struct graph_reader *reader);

/* Read all objects of the list @field with @read. */
static int objects_read(struct graph_reader *reader, const char *field, const char *const *fields,
                        element_read_fn *read)
{
  const json_t *list = json_object_get(reader->object, field);
  if (!json_is_array(list))
    return field_refuse(reader, field, "a list of objects");
  const struct graph_reader whole = *reader;
  int rc = 0;
  for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
    reader->list = field;
    reader->index = i;
    reader->object = json_array_get(list, i);
    if (json_is_object(reader->object))
      rc = fields_check(reader, fields);
    else
      rc = lade_error_set(reader->error, -EINVAL, "%s: %s[%zu] is %s: expected an object", reader->file, field, i,
                          lade_json_echo(reader->object).text);
    if (!rc)
      rc = read(reader);
  }
  reader->list = whole.list;
  reader->object = whole.object;
  return rc;
}

static int storage_read(struct graph_reader *reader)
{
  struct lade_storage storage = {.struct_size = sizeof(storage)};
  struct lade_error problem;
  int tier = LADE_DEVICE;
  int rc = field_text(reader, "name", true, &storage.name);
  if (!rc)
    rc = field_bytes(reader, "bytes", true, &storage.bytes);
  if (!rc)
    rc = field_flag(reader, "given", &storage.is_given);
  if (!rc)
    rc = field_choice(reader, "tier", tier_names, &tier);
  if (!rc)
    rc = field_bytes(reader, "align", false, &storage.align);
  if (!rc)
    rc = field_text(reader, "class", false, &storage.class_name);
  if (rc)
    return rc;
  storage.tier = (enum lade_space)tier;
  return call_end(reader, lade_graph_add_storage(reader->graph, &storage, &problem, NULL), &problem);
}

/* Read an index of a storage. False if @value is not a whole number that fits an int; graph.c checks its range. */
static bool index_read(const json_t *value, int *ret_index)
{
  const json_int_t index = json_integer_value(value);
  if (!json_is_integer(value) || index < INT32_MIN || index > INT32_MAX)
    return false;
  *ret_index = (int)index;
  return true;
}

/* Read an operand: a storage, or [storage, offset, bytes]. */
static bool operand_read(const json_t *value, struct lade_operand_range *ret_range)
{
  int64_t offset = 0, bytes = 0;
  bool is_range = json_array_size(value) == 3 && index_read(json_array_get(value, 0), &ret_range->storage) &&
                  whole_read(json_array_get(value, 1), &offset) && offset >= 0 &&
                  whole_read(json_array_get(value, 2), &bytes) && bytes >= 0;
  ret_range->offset = (uint64_t)offset;
  ret_range->bytes = (uint64_t)bytes;
  return is_range || index_read(value, &ret_range->storage);
}

/* Append the operands of the list @field to the reader's. */
static int operands_read(struct graph_reader *reader, const char *field, bool is_required, int *ret_n)
{
  const json_t *list = json_object_get(reader->object, field);
  const int n_before = reader->ranges.n;
  if (!json_is_array(list) && (list || is_required))
    return field_refuse(reader, field, "a list of storages");
  for (size_t i = 0; i < json_array_size(list); i++) {
    struct lade_operand_range range;
    if (!operand_read(json_array_get(list, i), &range))
      return reader_refuse(reader, "%s[%zu] is %s: expected a storage's index or [storage, offset, bytes]", field, i,
                           lade_json_echo(json_array_get(list, i)).text);
    if (!LADE_PUSH(&reader->ranges, range))
      return reader_no_memory(reader);
  }
  *ret_n = reader->ranges.n - n_before;
  return 0;
}

static int op_read(struct graph_reader *reader)
{
  struct lade_graph_op op = {.struct_size = sizeof(op)};
  struct lade_error problem;
  uint64_t ns = 0;
  bool is_repeatable = true;
  int pass = LADE_PASS_FORWARD, queue = LADE_OP_ON_DEVICE;
  reader->ranges.n = 0;
  int rc = field_text(reader, "name", true, &op.name);
  if (!rc)
    rc = operands_read(reader, "reads", true, &op.n_reads);
  if (!rc)
    rc = operands_read(reader, "writes", true, &op.n_writes);
  if (!rc)
    rc = operands_read(reader, "updates", false, &op.n_updates);
  if (!rc)
    rc = field_bytes(reader, "ns", true, &ns);
  if (!rc)
    rc = field_bytes(reader, "scratch_bytes", false, &op.scratch_bytes);
  if (!rc)
    rc = field_flag(reader, "repeatable", &is_repeatable);
  if (!rc)
    rc = field_flag(reader, "draws", &op.draws);
  if (!rc)
    rc = field_choice(reader, "pass", pass_names, &pass);
  if (!rc)
    rc = field_choice(reader, "queue", queue_names, &queue);
  if (rc)
    return rc;
  op.reads = reader->ranges.items;
  op.writes = op.n_writes ? op.reads + op.n_reads : NULL;
  op.updates = op.n_updates ? op.reads + op.n_reads + op.n_writes : NULL;
  op.ns = (int64_t)ns;
  op.is_once = !is_repeatable;
  op.pass = (enum lade_pass)pass;
  op.queue = (enum lade_op_queue)queue;
  return call_end(reader, lade_graph_add_op(reader->graph, &op, &problem, NULL), &problem);
}

static int keep_read(struct graph_reader *reader)
{
  const json_t *list = json_object_get(reader->object, "keep");
  if (list && !json_is_array(list))
    return field_refuse(reader, "keep", "a list of storages");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *value = json_array_get(list, i);
    const int n = lade_graph_n_storages(reader->graph);
    struct lade_error problem;
    int index, rc;
    if (!index_read(value, &index) || index < 0 || index >= n)
      return reader_refuse(reader, "keep[%zu] is %s: expected a storage's index, below %d", i,
                           lade_json_echo(value).text, n);
    rc = call_end(reader, lade_graph_keep(reader->graph, index, &problem), &problem);
    if (rc)
      return rc;
  }
  return 0;
}

/* ---- reading: the file ---- */

static int file_read(struct graph_reader *reader)
{
  const json_t *version = json_object_get(reader->object, "schema_version");
  struct lade_error problem;
  bool has_addresses = true;
  if (!json_is_integer(version) || json_integer_value(version) != SCHEMA_VERSION)
    return field_refuse(reader, "schema_version", "1, the version that this library reads");
  int rc = fields_check(reader, graph_fields);
  if (!rc)
    rc = field_flag(reader, "addresses", &has_addresses);
  if (!rc)
    rc = lade_graph_set_addresses(reader->graph, has_addresses);
  if (!rc)
    rc = objects_read(reader, "storages", storage_fields, storage_read);
  if (!rc)
    rc = objects_read(reader, "ops", op_fields, op_read);
  if (!rc)
    rc = keep_read(reader);
  return rc ? rc : call_end(reader, lade_graph_close(reader->graph, &problem), &problem);
}

/* Read a graph from @root; NULL: refuse the file with jansson's @problem. */
static int root_read(struct graph_reader *reader, const json_t *root, const json_error_t *problem)
{
  if (!root && (!problem->text[0] || json_error_code(problem) == json_error_out_of_memory))
    return reader_no_memory(reader); /* a syntax error always has a text */
  if (!root)
    return lade_error_set(reader->error, -EBADMSG, "%s: line %d, column %d: not JSON: %s", reader->file, problem->line,
                          problem->column, lade_echo(problem->text).text);
  if (!json_is_object(root))
    return lade_error_set(reader->error, -EBADMSG,
                          "%s: it is %s: expected an object with schema_version, storages and ops", reader->file,
                          lade_json_echo(root).text);
  reader->object = root;
  if (lade_graph_create(&reader->graph))
    return reader_no_memory(reader);
  return file_read(reader);
}

static int text_read(const char *file, const char *text, size_t n_bytes, struct lade_error *error,
                     lade_graph **ret_graph)
{
  struct graph_reader reader = {.file = file, .error = error};
  json_error_t problem = {0};
  if (n_bytes > GRAPH_TEXT_BYTES_MAX)
    return reader_refuse(&reader, "%zu bytes: expected at most %d", n_bytes, GRAPH_TEXT_BYTES_MAX);
  const size_t mark_bytes = lade_text_mark_bytes(text, n_bytes);
  json_t *root = json_loadb(text + mark_bytes, n_bytes - mark_bytes, JSON_REJECT_DUPLICATES, &problem);
  const int rc = root_read(&reader, root, &problem);
  json_decref(root);
  LADE_ARRAY_FREE(&reader.ranges);
  if (rc)
    lade_graph_destroy(reader.graph);
  else
    *ret_graph = reader.graph;
  return rc;
}

int lade_graph_load(const char *path, struct lade_error *error, lade_graph **ret_graph)
{
  char *text;
  size_t n_bytes;
  int rc;
  if (!path || !ret_graph)
    return lade_error_set(error, -EINVAL, "lade_graph_load: a pointer is NULL");
  const bool is_input = strcmp(path, "-") == 0;
  if (is_input)
    rc = lade_stream_load(STDIN_FILENO, "standard input", GRAPH_TEXT_BYTES_MAX, error, &text, &n_bytes);
  else
    rc = lade_file_load(path, GRAPH_TEXT_BYTES_MAX, error, &text, &n_bytes);
  if (rc)
    return rc;
  rc = text_read(is_input ? "standard input" : path, text, n_bytes, error, ret_graph);
  free(text);
  return rc;
}

int lade_graph_parse(const char *text, size_t n_bytes, struct lade_error *error, lade_graph **ret_graph)
{
  if (!text || !ret_graph)
    return lade_error_set(error, -EINVAL, "lade_graph_parse: a pointer is NULL");
  return text_read("graph", text, n_bytes, error, ret_graph);
}

/* ---- writing ---- */

/* A text that grows; after an error it stays as it is. */
struct graph_text {
  LADE_ARRAY(char) letters;
  int code;
};

static void text_append(struct graph_text *text, const char *bytes, size_t n)
{
  if (!text->code && n > (size_t)(GRAPH_TEXT_BYTES_MAX - text->letters.n))
    text->code = -EFBIG;
  if (!text->code && !lade_array_reserve((void **)&text->letters.items, &text->letters.capacity,
                                         text->letters.n + (int)n, 1))
    text->code = -ENOMEM;
  if (text->code)
    return;
  memcpy(text->letters.items + text->letters.n, bytes, n);
  text->letters.n += (int)n;
}

/* Append at most 127 bytes. */
__attribute__((format(printf, 2, 3)))
static void text_print(struct graph_text *text, const char *format, ...)
{
  char bytes[128];
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(bytes, sizeof(bytes), format, args);
  va_end(args);
  LADE_ASSERT(n >= 0 && (size_t)n < sizeof(bytes));
  text_append(text, bytes, (size_t)n);
}

/* Append a name, which is UTF-8, as a JSON string. */
static void text_quote(struct graph_text *text, const char *name)
{
  text_append(text, "\"", 1);
  while (*name) {
    const size_t n = strcspn(name, "\"\\\x01\x02\x03\x04\x05\x06\x07\b\t\n\x0b\f\r\x0e\x0f"
                             "\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f");
    text_append(text, name, n);
    name += n;
    if (*name && (unsigned char)*name < ' ')
      text_print(text, "\\u%04x", (unsigned)*name++);
    else if (*name)
      text_print(text, "\\%c", *name++);
  }
  text_append(text, "\"", 1);
}

static void storage_write(struct graph_text *text, const lade_graph *graph, const struct graph_storage *storage)
{
  text_print(text, "{\"name\":");
  text_quote(text, graph_name(graph, storage->name));
  text_print(text, ",\"bytes\":%" PRIu64, storage->bytes);
  if (storage->is_given)
    text_print(text, ",\"given\":true");
  if (storage->tier != LADE_DEVICE)
    text_print(text, ",\"tier\":\"%s\"", tier_names[storage->tier]);
  if (storage->align != GRAPH_ALIGN_DEFAULT)
    text_print(text, ",\"align\":%" PRIu32, storage->align);
  if (storage->class_name) {
    text_print(text, ",\"class\":");
    text_quote(text, graph_name(graph, storage->class_name));
  }
  text_print(text, "}");
}

static void operands_write(struct graph_text *text, const lade_graph *graph, const char *field,
                           const struct graph_operand *operands, int n)
{
  text_print(text, ",\"%s\":[", field);
  for (int i = 0; i < n; i++) {
    const struct graph_operand *operand = &operands[i];
    const bool is_whole = !operand->offset && operand->bytes == graph->storages.items[operand->storage].bytes;
    text_print(text, "%s", i ? "," : "");
    if (is_whole)
      text_print(text, "%d", operand->storage);
    else
      text_print(text, "[%d,%" PRIu64 ",%" PRIu64 "]", operand->storage, operand->offset, operand->bytes);
  }
  text_print(text, "]");
}

static void op_write(struct graph_text *text, const lade_graph *graph, const struct graph_op *op)
{
  const struct graph_operand *operands = graph->operands.items + op->first_operand;
  text_print(text, "{\"name\":");
  text_quote(text, graph_name(graph, op->name));
  operands_write(text, graph, "reads", operands, op->n_reads);
  operands_write(text, graph, "writes", operands + op->n_reads, op->n_writes);
  if (op->n_updates)
    operands_write(text, graph, "updates", operands + op->n_reads + op->n_writes, op->n_updates);
  text_print(text, ",\"ns\":%" PRId64, op->ns);
  if (op->scratch_bytes)
    text_print(text, ",\"scratch_bytes\":%" PRIu64, op->scratch_bytes);
  if (op->is_once)
    text_print(text, ",\"repeatable\":false");
  if (op->draws)
    text_print(text, ",\"draws\":true");
  if (op->pass != LADE_PASS_FORWARD)
    text_print(text, ",\"pass\":\"%s\"", pass_names[op->pass]);
  if (op->queue != LADE_OP_ON_DEVICE)
    text_print(text, ",\"queue\":\"%s\"", queue_names[op->queue]);
  text_print(text, "}");
}

int lade_graph_write(const lade_graph *graph, struct lade_error *error, char **ret_text, size_t *ret_bytes)
{
  struct graph_text text = {0};
  text_print(&text, "{\"schema_version\":%d%s,\n\"storages\":[", SCHEMA_VERSION,
             graph->has_addresses ? "" : ",\"addresses\":false");
  for (int i = 0; i < graph->storages.n; i++) {
    text_print(&text, i ? ",\n" : "\n");
    storage_write(&text, graph, &graph->storages.items[i]);
  }
  text_print(&text, "\n],\n\"ops\":[");
  for (int i = 0; i < graph->ops.n; i++) {
    text_print(&text, i ? ",\n" : "\n");
    op_write(&text, graph, &graph->ops.items[i]);
  }
  text_print(&text, "\n]");
  for (int i = 0; i < graph->kept.n; i++)
    text_print(&text, "%s%d", i ? "," : ",\n\"keep\":[", graph->kept.items[i]);
  text_print(&text, "%s}\n", graph->kept.n ? "]" : "");
  if (text.code) {
    LADE_ARRAY_FREE(&text.letters);
    return lade_error_set(error, text.code, text.code == -ENOMEM ? "graph: out of memory" :
                          "graph: its JSON has more than 2 GiB");
  }
  *ret_text = text.letters.items;
  *ret_bytes = (size_t)text.letters.n;
  return 0;
}

int lade_graph_save(const lade_graph *graph, const char *path, struct lade_error *error)
{
  char *text;
  size_t n_bytes;
  if (!graph || !path)
    return lade_error_set(error, -EINVAL, "lade_graph_save: a pointer is NULL");
  if (!graph->is_closed)
    return lade_error_set(error, -EINVAL, "%s: the graph is open: call lade_graph_close first", path);
  int rc = lade_graph_write(graph, error, &text, &n_bytes);
  if (rc)
    return rc;
  rc = lade_file_replace(path, text, n_bytes, error);
  free(text);
  return rc;
}
