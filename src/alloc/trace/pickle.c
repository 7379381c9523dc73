/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stack machine that reads pickles and executes only the opcodes that build data.
 *
 * The opcodes are in one table, with a function each. Opcodes that import, call or refer to objects outside of the file
 * are in the table too, so that the refusal gives their name. A byte that is not in the table is damage. Opcodes of
 * protocols 0 and 1 that write numbers and texts as lines are refused, because Python 3 writes them only on request.
 *
 * All values lie in one array of 16 bytes each. The contents of containers lie in a second array, as chains of cells of
 * 8 bytes: a list can grow later without a move, and four frees destroy everything. Each opcode has at least one byte.
 * It makes at most one value, one entry of the stack and of the memo, and one cell for each value pushed before. So
 * memory is at most some 100 bytes per byte of the file, half-empty arrays included. A memo number past the file's
 * length is refused, because no writer can have used it.
 *
 * Neither this file nor its callers recurse, so nesting costs no stack; MARKS_MAX still bounds the open marks. Reading
 * shared values is cheap, because a reference is a number. A walk over shared values can take unbounded time, so the
 * steps of walks are counted. The limit is STEPS_PER_BYTE times the file's size. A valid snapshot needs about one step
 * per byte, and a file of hundreds of megabytes reaches the limit within seconds.
 *
 * Rejected: building a tree, because a file of a kilobyte can make one larger than any memory. Searching the bytes for
 * a snapshot's keys, because the search finds data that Python would not.
 */
#include "alloc/pickle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { MARKS_MAX = 1000, STEPS_PER_BYTE = 16, STEPS_FREE = 4096 };
enum { VALUE_NONE, VALUE_FALSE, VALUE_TRUE }; /* numbers of the constants, the first values of every reader */
enum { PROTOCOL_MIN = 2, PROTOCOL_MAX = 5 };
#define OP_STOP '.'
#define OP_PROTO 0x80

struct value {
  uint8_t kind;
  bool is_negative; /* sign of an integer; @as.integer is its magnitude */
  uint32_t n;       /* length in bytes of a text or of bytes; cells of a container, two per entry of a dict */
  union {
    uint64_t integer;
    double real;
    uint64_t offset; /* position of a text or of bytes in the file */
    struct {
      int first, last; /* cells; -1: none */
    } cells;
  } as;
};

struct cell {
  int value, next; /* next: -1 at the end */
};

struct lade_pickle {
  const char *name;
  const uint8_t *bytes;
  size_t n_bytes, at, op_at;
  LADE_ARRAY(struct value) values;
  LADE_ARRAY(struct cell) cells;
  LADE_ARRAY(int) stack;
  LADE_ARRAY(int) memo;  /* -1: no value under this number */
  LADE_ARRAY(int) marks; /* heights of the stack */
  uint64_t n_steps;
  bool is_done;
  struct lade_error *error;
};

typedef int op_fn(lade_pickle *pickle, int arg);

struct op {
  uint8_t code;
  const char *name;
  op_fn *run;
  int arg;
};

static const struct op *op_find(uint8_t code);

/* ---- helpers of the opcodes ---- */

static int damage(lade_pickle *pickle, const char *fault)
{
  const struct op *op = op_find(pickle->bytes[pickle->op_at]);
  return lade_error_set(pickle->error, -EBADMSG, "%s: byte %zu: %s (%s); damaged, or no pickle of data", pickle->name,
                        pickle->op_at, fault, op ? op->name : "no opcode");
}

static int memory_out(lade_pickle *pickle)
{
  return lade_error_set(pickle->error, -ENOMEM, "%s: no memory to read a pickle of %zu bytes", pickle->name,
                        pickle->n_bytes);
}

/* Return the next @n bytes of the file and move past them. NULL past the file's end. */
static const uint8_t *bytes_take(lade_pickle *pickle, uint64_t n)
{
  if (n > pickle->n_bytes - pickle->at)
    return NULL;
  const uint8_t *bytes = pickle->bytes + pickle->at;
  pickle->at += n;
  return bytes;
}

static uint64_t little_endian(const uint8_t *bytes, int n)
{
  uint64_t number = 0;
  for (int i = 0; i < n; i++)
    number |= (uint64_t)bytes[i] << (8 * i);
  return number;
}

/* Read a little-endian number of @width bytes. */
static int number_take(lade_pickle *pickle, int width, uint64_t *ret_number)
{
  const uint8_t *bytes = bytes_take(pickle, (uint64_t)width);
  if (!bytes)
    return damage(pickle, "the file ends in it");
  *ret_number = little_endian(bytes, width);
  return 0;
}

static int push(lade_pickle *pickle, int value)
{
  return LADE_PUSH(&pickle->stack, value) ? 0 : memory_out(pickle);
}

static int value_push(lade_pickle *pickle, struct value value)
{
  if (!LADE_PUSH(&pickle->values, value))
    return memory_out(pickle);
  return push(pickle, pickle->values.n - 1);
}

/* Return the number of stack entries above the last mark. */
static int room_get(const lade_pickle *pickle)
{
  return pickle->stack.n - (pickle->marks.n ? pickle->marks.items[pickle->marks.n - 1] : 0);
}

static int top_get(const lade_pickle *pickle)
{
  return pickle->stack.items[pickle->stack.n - 1];
}

/* Remove the last mark. The entries above it stay on the stack, from *ret_first on. */
static int mark_take(lade_pickle *pickle, int *ret_first)
{
  if (!pickle->marks.n)
    return damage(pickle, "there is no mark for it");
  *ret_first = pickle->marks.items[--pickle->marks.n];
  LADE_ASSERT(*ret_first <= pickle->stack.n);
  return 0;
}

/* Move the stack's entries from @first on to the end of @container. */
static int items_move(lade_pickle *pickle, int container, int first)
{
  for (int i = first; i < pickle->stack.n; i++) {
    struct cell cell = {pickle->stack.items[i], -1};
    if (!LADE_PUSH(&pickle->cells, cell))
      return memory_out(pickle);
    struct value *value = &pickle->values.items[container];
    if (value->n++)
      pickle->cells.items[value->as.cells.last].next = pickle->cells.n - 1;
    else
      value->as.cells.first = pickle->cells.n - 1;
    value->as.cells.last = pickle->cells.n - 1;
  }
  pickle->stack.n = first;
  return 0;
}

/* ---- opcodes ---- */

static int op_proto(lade_pickle *pickle, int arg)
{
  uint64_t version = 0;
  int code = number_take(pickle, 1, &version);
  if (!code && (version < PROTOCOL_MIN || version > PROTOCOL_MAX))
    return damage(pickle, "a protocol other than 2 to 5");
  return code;
}

/* Skip a frame's length, which only helps to read ahead; the whole file is in memory already. */
static int op_frame(lade_pickle *pickle, int arg)
{
  uint64_t n_bytes = 0;
  int code = number_take(pickle, 8, &n_bytes);
  if (!code && n_bytes > pickle->n_bytes - pickle->at)
    return damage(pickle, "it is longer than the file");
  return code;
}

static int op_stop(lade_pickle *pickle, int arg)
{
  if (pickle->stack.n != 1 || pickle->marks.n)
    return damage(pickle, "it leaves other than one value");
  if (pickle->at != pickle->n_bytes)
    return damage(pickle, "more bytes come after its end");
  pickle->is_done = true;
  return 0;
}

static int op_mark(lade_pickle *pickle, int arg)
{
  if (pickle->marks.n == MARKS_MAX)
    return damage(pickle, "nested deeper than 1000");
  return LADE_PUSH(&pickle->marks, pickle->stack.n) ? 0 : memory_out(pickle);
}

static int op_pop(lade_pickle *pickle, int arg)
{
  if (room_get(pickle))
    pickle->stack.n--;
  else if (pickle->marks.n)
    pickle->marks.n--;
  else
    return damage(pickle, "the stack is empty");
  return 0;
}

static int op_pop_mark(lade_pickle *pickle, int arg)
{
  return mark_take(pickle, &pickle->stack.n);
}

static int op_dup(lade_pickle *pickle, int arg)
{
  return room_get(pickle) ? push(pickle, top_get(pickle)) : damage(pickle, "the stack is empty");
}

static int op_constant(lade_pickle *pickle, int value)
{
  return push(pickle, value);
}

/* Push an integer of @width bytes; one of four bytes has a sign. */
static int op_integer(lade_pickle *pickle, int width)
{
  uint64_t number = 0;
  int code = number_take(pickle, width, &number);
  bool is_negative = width == 4 && number >> 31;
  struct value value = {LADE_PICKLE_INTEGER, is_negative, 0, {is_negative ? ((uint64_t)1 << 32) - number : number}};
  return code ? code : value_push(pickle, value);
}

/* Decode a little-endian two's complement integer of @n bytes. */
static struct value long_make(const uint8_t *bytes, uint64_t n)
{
  bool is_negative = n && bytes[n - 1] >> 7;
  uint8_t fill = is_negative ? 0xff : 0;
  struct value value = {LADE_PICKLE_INTEGER, is_negative, 0, {little_endian(bytes, (int)LADE_MIN(n, 8))}};
  for (uint64_t i = n; i < 8; i++)
    value.as.integer |= (uint64_t)fill << (8 * i);
  for (uint64_t i = 8; i < n; i++) {
    if (bytes[i] != fill)
      value.kind = LADE_PICKLE_LONG;
  }
  if (is_negative && !(value.as.integer >> 63))
    value.kind = LADE_PICKLE_LONG;
  if (is_negative)
    value.as.integer = 0 - value.as.integer;
  return value;
}

/* Push an integer whose length is a number of @width bytes. */
static int op_long(lade_pickle *pickle, int width)
{
  uint64_t n = 0;
  int code = number_take(pickle, width, &n);
  if (code)
    return code;
  const uint8_t *bytes = bytes_take(pickle, n);
  return bytes ? value_push(pickle, long_make(bytes, n)) : damage(pickle, "the file ends in it");
}

/* Push a big-endian IEEE 754 double. */
static int op_real(lade_pickle *pickle, int arg)
{
  const uint8_t *bytes = bytes_take(pickle, 8);
  if (!bytes)
    return damage(pickle, "the file ends in it");
  uint64_t bits = 0;
  for (int i = 0; i < 8; i++)
    bits = bits << 8 | bytes[i];
  struct value value = {.kind = LADE_PICKLE_REAL};
  memcpy(&value.as.real, &bits, sizeof(bits));
  return value_push(pickle, value);
}

/* Push a text or bytes, which follow their length of @width bytes and are not copied. */
static int stretch_push(lade_pickle *pickle, int width, enum lade_pickle_kind kind)
{
  uint64_t n = 0;
  int code = number_take(pickle, width, &n);
  if (code)
    return code;
  struct value value = {.kind = (uint8_t)kind, .n = (uint32_t)n, .as.offset = pickle->at};
  return bytes_take(pickle, n) ? value_push(pickle, value) : damage(pickle, "the file ends in it");
}

static int op_text(lade_pickle *pickle, int width)
{
  return stretch_push(pickle, width, LADE_PICKLE_TEXT);
}

static int op_bytes(lade_pickle *pickle, int width)
{
  return stretch_push(pickle, width, LADE_PICKLE_BYTES);
}

static int op_empty(lade_pickle *pickle, int kind)
{
  return value_push(pickle, (struct value){.kind = (uint8_t)kind, .as.cells = {-1, -1}});
}

/* Replace the stack's entries from @first on with a container of them. */
static int container_make(lade_pickle *pickle, int kind, int first)
{
  struct value value = {.kind = (uint8_t)kind, .as.cells = {-1, -1}};
  if (!LADE_PUSH(&pickle->values, value))
    return memory_out(pickle);
  int code = items_move(pickle, pickle->values.n - 1, first);
  return code ? code : push(pickle, pickle->values.n - 1);
}

static int op_tuple_of(lade_pickle *pickle, int n)
{
  if (room_get(pickle) < n)
    return damage(pickle, "the stack has fewer values");
  return container_make(pickle, LADE_PICKLE_TUPLE, pickle->stack.n - n);
}

static int op_container(lade_pickle *pickle, int kind)
{
  int first = 0, code = mark_take(pickle, &first);
  if (!code && kind == LADE_PICKLE_DICT && (pickle->stack.n - first) % 2)
    return damage(pickle, "a key without a value");
  return code ? code : container_make(pickle, kind, first);
}

/* Append the stack's entries from @first on to the container of @kind below them. */
static int container_extend(lade_pickle *pickle, int kind, int first)
{
  int floor = pickle->stack.n - room_get(pickle);
  if (first <= floor)
    return damage(pickle, "the stack has fewer values");
  int container = pickle->stack.items[first - 1];
  if (pickle->values.items[container].kind != kind)
    return damage(pickle, "it adds to what is no such container");
  if (kind == LADE_PICKLE_DICT && (pickle->stack.n - first) % 2)
    return damage(pickle, "a key without a value");
  return items_move(pickle, container, first);
}

static int op_append(lade_pickle *pickle, int kind)
{
  return container_extend(pickle, kind, pickle->stack.n - (kind == LADE_PICKLE_DICT ? 2 : 1));
}

static int op_extend(lade_pickle *pickle, int kind)
{
  int first = 0, code = mark_take(pickle, &first);
  return code ? code : container_extend(pickle, kind, first);
}

static int memo_set(lade_pickle *pickle, uint64_t number)
{
  if (!room_get(pickle))
    return damage(pickle, "the stack is empty");
  if (number >= pickle->n_bytes)
    return damage(pickle, "a number of the memo past what the file could have used");
  while ((uint64_t)pickle->memo.n <= number) {
    if (!LADE_PUSH(&pickle->memo, -1))
      return memory_out(pickle);
  }
  pickle->memo.items[number] = top_get(pickle);
  return 0;
}

static int op_memoize(lade_pickle *pickle, int arg)
{
  return memo_set(pickle, (uint64_t)pickle->memo.n);
}

static int op_put(lade_pickle *pickle, int width)
{
  uint64_t number = 0;
  int code = number_take(pickle, width, &number);
  return code ? code : memo_set(pickle, number);
}

static int op_get(lade_pickle *pickle, int width)
{
  uint64_t number = 0;
  int code = number_take(pickle, width, &number);
  if (code)
    return code;
  if (number >= (uint64_t)pickle->memo.n || pickle->memo.items[number] < 0)
    return damage(pickle, "the memo has nothing under its number");
  return push(pickle, pickle->memo.items[number]);
}

static int op_call(lade_pickle *pickle, int arg)
{
  return lade_error_set(pickle->error, -EBADMSG, "%s: byte %zu: refused: calls code (%s); a snapshot is plain data",
                        pickle->name, pickle->op_at, op_find(pickle->bytes[pickle->op_at])->name);
}

static int op_outside(lade_pickle *pickle, int arg)
{
  return lade_error_set(pickle->error, -EBADMSG, "%s: byte %zu: refused: refers to what is not in the file (%s)",
                        pickle->name, pickle->op_at, op_find(pickle->bytes[pickle->op_at])->name);
}

static int op_old(lade_pickle *pickle, int arg)
{
  return damage(pickle, "refused: an opcode of protocol 0; write the snapshot with protocol 2 to 5");
}

/* ---- the table ---- */

static const struct op ops[] = {
    {OP_PROTO, "PROTO", op_proto, 0},
    {0x95, "FRAME", op_frame, 0},
    {OP_STOP, "STOP", op_stop, 0},
    {'(', "MARK", op_mark, 0},
    {'0', "POP", op_pop, 0},
    {'1', "POP_MARK", op_pop_mark, 0},
    {'2', "DUP", op_dup, 0},
    {'N', "NONE", op_constant, VALUE_NONE},
    {0x88, "NEWTRUE", op_constant, VALUE_TRUE},
    {0x89, "NEWFALSE", op_constant, VALUE_FALSE},
    {'K', "BININT1", op_integer, 1},
    {'M', "BININT2", op_integer, 2},
    {'J', "BININT", op_integer, 4},
    {0x8a, "LONG1", op_long, 1},
    {0x8b, "LONG4", op_long, 4},
    {'G', "BINFLOAT", op_real, 0},
    {0x8c, "SHORT_BINUNICODE", op_text, 1},
    {'X', "BINUNICODE", op_text, 4},
    {0x8d, "BINUNICODE8", op_text, 8},
    {'U', "SHORT_BINSTRING", op_text, 1},
    {'T', "BINSTRING", op_text, 4},
    {'C', "SHORT_BINBYTES", op_bytes, 1},
    {'B', "BINBYTES", op_bytes, 4},
    {0x8e, "BINBYTES8", op_bytes, 8},
    {0x96, "BYTEARRAY8", op_bytes, 8},
    {')', "EMPTY_TUPLE", op_empty, LADE_PICKLE_TUPLE},
    {']', "EMPTY_LIST", op_empty, LADE_PICKLE_LIST},
    {'}', "EMPTY_DICT", op_empty, LADE_PICKLE_DICT},
    {0x8f, "EMPTY_SET", op_empty, LADE_PICKLE_SET},
    {0x85, "TUPLE1", op_tuple_of, 1},
    {0x86, "TUPLE2", op_tuple_of, 2},
    {0x87, "TUPLE3", op_tuple_of, 3},
    {'t', "TUPLE", op_container, LADE_PICKLE_TUPLE},
    {'l', "LIST", op_container, LADE_PICKLE_LIST},
    {'d', "DICT", op_container, LADE_PICKLE_DICT},
    {0x91, "FROZENSET", op_container, LADE_PICKLE_SET},
    {'a', "APPEND", op_append, LADE_PICKLE_LIST},
    {'s', "SETITEM", op_append, LADE_PICKLE_DICT},
    {'e', "APPENDS", op_extend, LADE_PICKLE_LIST},
    {'u', "SETITEMS", op_extend, LADE_PICKLE_DICT},
    {0x90, "ADDITEMS", op_extend, LADE_PICKLE_SET},
    {'q', "BINPUT", op_put, 1},
    {'r', "LONG_BINPUT", op_put, 4},
    {0x94, "MEMOIZE", op_memoize, 0},
    {'h', "BINGET", op_get, 1},
    {'j', "LONG_BINGET", op_get, 4},
    {'c', "GLOBAL", op_call, 0},
    {0x93, "STACK_GLOBAL", op_call, 0},
    {'R', "REDUCE", op_call, 0},
    {'b', "BUILD", op_call, 0},
    {'i', "INST", op_call, 0},
    {'o', "OBJ", op_call, 0},
    {0x81, "NEWOBJ", op_call, 0},
    {0x92, "NEWOBJ_EX", op_call, 0},
    {0x82, "EXT1", op_call, 0},
    {0x83, "EXT2", op_call, 0},
    {0x84, "EXT4", op_call, 0},
    {'P', "PERSID", op_call, 0},
    {'Q', "BINPERSID", op_call, 0},
    {0x97, "NEXT_BUFFER", op_outside, 0},
    {0x98, "READONLY_BUFFER", op_outside, 0},
    {'I', "INT", op_old, 0},
    {'L', "LONG", op_old, 0},
    {'F', "FLOAT", op_old, 0},
    {'S', "STRING", op_old, 0},
    {'V', "UNICODE", op_old, 0},
    {'p', "PUT", op_old, 0},
    {'g', "GET", op_old, 0},
};

static const struct op *op_find(uint8_t code)
{
  for (size_t i = 0; i < LADE_COUNT(ops); i++) {
    if (ops[i].code == code)
      return &ops[i];
  }
  return NULL;
}

/* ---- reading ---- */

static int machine_run(lade_pickle *pickle, const struct op *const table[256])
{
  int code = 0;
  while (!code && !pickle->is_done) {
    pickle->op_at = pickle->at;
    if (pickle->at == pickle->n_bytes)
      return lade_error_set(pickle->error, -EBADMSG, "%s: byte %zu: the pickle has no end: cut short?", pickle->name,
                            pickle->at);
    const struct op *op = table[pickle->bytes[pickle->at++]];
    code = op ? op->run(pickle, op->arg) : damage(pickle, "not an opcode of any protocol");
  }
  return code;
}

/* Make the constants, in the order of their enum. */
static int constants_make(lade_pickle *pickle)
{
  const struct value none = {.kind = LADE_PICKLE_NONE}, boolean = {.kind = LADE_PICKLE_BOOL};
  bool ok = LADE_PUSH(&pickle->values, none) && LADE_PUSH(&pickle->values, boolean) &&
            LADE_PUSH(&pickle->values, boolean);
  return ok ? 0 : memory_out(pickle);
}

int lade_pickle_read(const char *name, const void *bytes, size_t n_bytes, struct lade_error *error,
                     lade_pickle **ret_pickle)
{
  const struct op *table[256] = {NULL};
  for (size_t i = 0; i < LADE_COUNT(ops); i++)
    table[ops[i].code] = &ops[i];
  if (n_bytes > LADE_PICKLE_BYTES_MAX)
    return lade_error_set(error, -EBADMSG, "%s: %zu bytes; pickles of up to %zu are read", name, n_bytes,
                          LADE_PICKLE_BYTES_MAX);
  if (n_bytes < 2 || *(const uint8_t *)bytes != OP_PROTO)
    return lade_error_set(error, -EBADMSG, "%s: byte 0: no pickle of protocol 2 to 5", name);
  lade_pickle *pickle = calloc(1, sizeof(*pickle));
  if (!pickle)
    return lade_error_set(error, -ENOMEM, "%s: no memory to read it", name);
  *pickle = (lade_pickle){.name = name, .bytes = bytes, .n_bytes = n_bytes, .error = error};
  int code = constants_make(pickle);
  if (!code)
    code = machine_run(pickle, table);
  pickle->error = NULL; /* the caller lends @error for this call only */
  if (code) {
    lade_pickle_destroy(pickle);
    return code;
  }
  *ret_pickle = pickle;
  return 0;
}

void lade_pickle_destroy(lade_pickle *pickle)
{
  if (!pickle)
    return;
  LADE_ARRAY_FREE(&pickle->values);
  LADE_ARRAY_FREE(&pickle->cells);
  LADE_ARRAY_FREE(&pickle->stack);
  LADE_ARRAY_FREE(&pickle->memo);
  LADE_ARRAY_FREE(&pickle->marks);
  free(pickle);
}

/* ---- access to values ---- */

int lade_pickle_root(const lade_pickle *pickle)
{
  return pickle->stack.items[0];
}

static const struct value *value_get(const lade_pickle *pickle, int value)
{
  LADE_ASSERT(value >= 0 && value < pickle->values.n);
  return &pickle->values.items[value];
}

enum lade_pickle_kind lade_pickle_kind(const lade_pickle *pickle, int value)
{
  return (enum lade_pickle_kind)value_get(pickle, value)->kind;
}

int lade_pickle_get_integer(const lade_pickle *pickle, int value, uint64_t *ret_integer)
{
  const struct value *integer = value_get(pickle, value);
  if (integer->kind != LADE_PICKLE_INTEGER || integer->is_negative)
    return -EINVAL;
  *ret_integer = integer->as.integer;
  return 0;
}

bool lade_pickle_is_text(const lade_pickle *pickle, int value, const char *text)
{
  const struct value *is = value_get(pickle, value);
  return is->kind == LADE_PICKLE_TEXT && is->n == strlen(text) &&
         memcmp(pickle->bytes + is->as.offset, text, is->n) == 0;
}

int lade_pickle_get_text(const lade_pickle *pickle, int value, char *text, size_t text_bytes)
{
  const struct value *is = value_get(pickle, value);
  if (is->kind != LADE_PICKLE_TEXT || !text_bytes)
    return -EINVAL;
  size_t n = LADE_MIN((size_t)is->n, text_bytes - 1);
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)pickle->bytes[is->as.offset + i];
    text[i] = c >= ' ' && c < 0x7f ? (char)c : '?';
  }
  text[n] = 0;
  return 0;
}

/* Count @n steps of a walk. -ELOOP past the limit. */
static int steps_count(lade_pickle *pickle, uint32_t n)
{
  pickle->n_steps += n;
  return pickle->n_steps > STEPS_PER_BYTE * (uint64_t)pickle->n_bytes + STEPS_FREE ? -ELOOP : 0;
}

int lade_pickle_find(lade_pickle *pickle, int value, const char *key, int *ret_value)
{
  const struct value *dict = value_get(pickle, value);
  int found = -1;
  if (dict->kind != LADE_PICKLE_DICT)
    return -EINVAL;
  if (steps_count(pickle, dict->n / 2 + 1))
    return -ELOOP;
  for (int i = dict->as.cells.first; i >= 0;) {
    const struct cell *key_cell = &pickle->cells.items[i], *value_cell = &pickle->cells.items[key_cell->next];
    if (lade_pickle_is_text(pickle, key_cell->value, key)) {
      if (found >= 0)
        return -EINVAL;
      found = value_cell->value;
    }
    i = value_cell->next;
  }
  if (found < 0)
    return -ENOENT;
  *ret_value = found;
  return 0;
}

int lade_pickle_next(lade_pickle *pickle, int value, int *cursor, int *ret_value)
{
  const struct value *list = value_get(pickle, value);
  if (list->kind != LADE_PICKLE_LIST && list->kind != LADE_PICKLE_TUPLE && list->kind != LADE_PICKLE_SET)
    return -EINVAL;
  if (steps_count(pickle, 1))
    return -ELOOP;
  int cell = *cursor == LADE_PICKLE_START ? list->as.cells.first : pickle->cells.items[*cursor].next;
  if (cell < 0)
    return -ENOENT;
  *cursor = cell;
  *ret_value = pickle->cells.items[cell].value;
  return 0;
}
