/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lifetimes as CSV: a header line `id,lower,upper,size`, then a buffer on each line, live in [lower, upper).
 *
 * Packers publish their instances in this form. An id is any text, because some packers name their buffers b1, b2. Ids
 * only serve to find two lines for the same buffer: the lines are sorted by id. There is no quoting, and blanks are not
 * skipped. A comma inside an id changes the number of fields, so the line is refused. An id with a letter that cannot
 * be printed is refused too.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/trace/trace_internal.h"

enum { CSV_ID, CSV_LOWER, CSV_UPPER, CSV_SIZE, CSV_FIELDS };
enum { ID_LETTERS_MAX = 64 };

struct csv_id {
  struct lade_trace_field text;
  int line;
};

typedef LADE_ARRAY(struct csv_id) csv_id_array;

static int header_read(struct lade_trace_text *text)
{
  struct lade_trace_field line = {text->at, 0};
  lade_trace_line_next(text, &line);
  if (lade_trace_field_is(line, "id,lower,upper,size"))
    return 0;
  const char *expected = "expected the header id,lower,upper,size, a line lade-trace 1, or a snapshot's pickle";
  if (line.n == 0)
    return lade_error_set(text->error, -EBADMSG, "%s: %s: %s", text->name,
                          *text->at ? "line 1 is empty" : "there is nothing in it", expected);
  return lade_error_set(text->error, -EBADMSG, "%s: line 1: '%s' begins no trace: %s", text->name,
                        lade_trace_echo(line).text, expected);
}

static bool id_is_text(struct lade_trace_field id)
{
  for (size_t i = 0; i < id.n; i++) {
    if ((unsigned char)id.text[i] < ' ' || id.text[i] == 127)
      return false;
  }
  return id.n >= 1 && id.n <= ID_LETTERS_MAX;
}

static int buffer_read(struct lade_trace_text *text, struct lade_trace_field line, struct lade_trace *trace,
                       csv_id_array *ids)
{
  struct lade_trace_field fields[CSV_FIELDS];
  uint64_t lower = 0, upper = 0, bytes = 0;
  int n = lade_trace_fields_cut(line, ',', CSV_FIELDS, fields);
  if (n != CSV_FIELDS)
    return lade_trace_line_refuse(text, "%s than the four fields id,lower,upper,size",
                                  n < CSV_FIELDS ? "fewer" : "more");
  if (!id_is_text(fields[CSV_ID]))
    return lade_trace_line_refuse(text, "id is '%s': expected 1 to %d letters that can be printed",
                                  lade_trace_echo(fields[CSV_ID]).text, ID_LETTERS_MAX);
  int code = lade_trace_number(text, fields[CSV_LOWER], "lower", 0, LADE_TRACE_TIME_MAX, &lower);
  if (!code)
    code = lade_trace_number(text, fields[CSV_UPPER], "upper", 0, LADE_TRACE_TIME_MAX, &upper);
  if (!code)
    code = lade_trace_number(text, fields[CSV_SIZE], "size", 1, LADE_TRACE_BYTES_MAX, &bytes);
  if (code)
    return code;
  if (lower >= upper)
    return lade_trace_line_refuse(text, "the lifetime from %s to %s is empty: upper must be above lower",
                                  lade_trace_echo(fields[CSV_LOWER]).text, lade_trace_echo(fields[CSV_UPPER]).text);
  if (bytes > LADE_TRACE_BYTES_MAX - trace->total_bytes)
    return lade_trace_line_refuse(text, "with size %s all sizes sum past 2^60 bytes",
                                  lade_trace_echo(fields[CSV_SIZE]).text);
  struct csv_id id = {fields[CSV_ID], text->line};
  return LADE_PUSH(ids, id) && lade_trace_add(trace, bytes, 0, lower, upper, text->line) >= 0 ? 0 : -ENOMEM;
}

/* Order ids by text, then by line. */
static int id_compare(const void *a, const void *b)
{
  const struct csv_id *x = a, *y = b;
  if (x->text.n != y->text.n)
    return x->text.n < y->text.n ? -1 : 1;
  int order = memcmp(x->text.text, y->text.text, x->text.n);
  return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* Refuse the first line, in the file's order, that repeats an id. */
static int ids_check(struct lade_trace_text *text, csv_id_array *ids)
{
  const struct csv_id *repeated = NULL;
  if (ids->n)
    qsort(ids->items, (size_t)ids->n, sizeof(*ids->items), id_compare);
  for (int i = 1; i < ids->n; i++) {
    const struct csv_id *before = &ids->items[i - 1], *id = &ids->items[i];
    bool is_same = before->text.n == id->text.n && memcmp(before->text.text, id->text.text, id->text.n) == 0;
    if (is_same && (!repeated || id->line < repeated->line))
      repeated = id;
  }
  if (!repeated)
    return 0;
  text->line = repeated->line;
  return lade_trace_line_refuse(text, "id %s stands on line %d already", lade_trace_echo(repeated->text).text,
                                repeated[-1].line);
}

int lade_trace_read_csv(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                        struct lade_trace *trace)
{
  struct lade_trace_text lines = {name, text, text + n_bytes, error, 0};
  struct lade_trace_field line;
  csv_id_array ids = {0};
  int code = header_read(&lines);
  while (!code && lade_trace_line_next(&lines, &line))
    code = buffer_read(&lines, line, trace, &ids);
  if (!code)
    code = ids_check(&lines, &ids);
  LADE_ARRAY_FREE(&ids);
  return code ? code : lade_trace_order(trace);
}
