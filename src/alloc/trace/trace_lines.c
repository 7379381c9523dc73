/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace format of this project: plain lines. A program can log its allocator with one printf, and a person can read
 * and cut the file.
 *
 *   lade-trace 1
 *   alloc TIME ID BYTES QUEUE
 *   free TIME ID
 *
 * Fields are separated by one blank; a line that begins with # is a comment. All fields are whole numbers. TIME never
 * falls; the writer chooses its unit. An ID names a block while it is live and may be used again afterwards. The lines
 * are in the order of the calls. A block without a free is live to the end.
 */
#include <errno.h>
#include <inttypes.h>

#include "alloc/trace/trace_internal.h"

#define FORMAT "lade-trace 1"
#define FIELDS_MAX 5

static int version_read(struct lade_trace_text *text)
{
  struct lade_trace_field line = {text->at, 0};
  lade_trace_line_next(text, &line);
  if (!lade_trace_field_is(line, FORMAT))
    return lade_trace_line_refuse(text, "'%s': expected " FORMAT, lade_trace_echo(line).text);
  return 0;
}

/* Return the number of fields of a line that begins with @verb, or 0 if the verb is unknown. */
static int fields_of(struct lade_trace_field verb)
{
  return lade_trace_field_is(verb, "alloc") ? 5 : lade_trace_field_is(verb, "free") ? 3 : 0;
}

static int call_read(struct lade_trace_text *text, struct lade_trace_field line, uint64_t *total_bytes,
                     lade_trace_call_array *calls)
{
  struct lade_trace_field fields[FIELDS_MAX];
  int n = lade_trace_fields_cut(line, ' ', FIELDS_MAX, fields), expected = fields_of(fields[0]);
  if (!expected)
    return lade_trace_line_refuse(text, "'%s': expected alloc or free", lade_trace_echo(fields[0]).text);
  if (n != expected)
    return lade_trace_line_refuse(text, "%s fields than %s", n < expected ? "fewer" : "more",
                                  expected == 5 ? "alloc TIME ID BYTES QUEUE" : "free TIME ID");
  struct lade_trace_call call = {.place = text->line, .is_free = expected == 3};
  uint64_t before = calls->n ? calls->items[calls->n - 1].time : 0, queue = 0;
  int code = lade_trace_number(text, fields[1], "time", 0, LADE_TRACE_TIME_MAX, &call.time);
  if (!code && call.time < before)
    return lade_trace_line_refuse(text, "time falls from %" PRIu64 " to %" PRIu64, before, call.time);
  if (!code)
    code = lade_trace_number(text, fields[2], "id", 0, INT64_MAX, &call.id);
  if (!code && !call.is_free)
    code = lade_trace_number(text, fields[3], "size", 1, LADE_TRACE_BYTES_MAX, &call.bytes);
  if (!code && !call.is_free)
    code = lade_trace_number(text, fields[4], "queue", 0, LADE_TRACE_QUEUES - 1, &queue);
  if (code)
    return code;
  if (!lade_trace_bytes_add(total_bytes, call.bytes))
    return lade_trace_line_refuse(text, "with size %" PRIu64 " all sizes sum past 2^60 bytes", call.bytes);
  call.queue = (int)queue;
  return LADE_PUSH(calls, call) ? 0 : -ENOMEM;
}

static int calls_pair(struct lade_trace_text *text, lade_trace_call_array *calls)
{
  int bad = -1, with = -1, code = lade_trace_calls_pair(calls->items, calls->n, false, &bad, &with);
  if (code || bad < 0)
    return code;
  const struct lade_trace_call *call = &calls->items[bad];
  text->line = call->place;
  if (!call->is_free)
    return lade_trace_line_refuse(text, "id %" PRIu64 " is live since line %d", call->id, calls->items[with].place);
  if (with < 0)
    return lade_trace_line_refuse(text, "id %" PRIu64 " was never allocated", call->id);
  return lade_trace_line_refuse(text, "id %" PRIu64 " was freed on line %d already", call->id,
                                calls->items[with].place);
}

int lade_trace_read_lines(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                          struct lade_trace *trace)
{
  struct lade_trace_text lines = {name, text, text + n_bytes, error, 0};
  struct lade_trace_field line;
  lade_trace_call_array calls = {0};
  uint64_t total_bytes = 0;
  int code = version_read(&lines);
  while (!code && lade_trace_line_next(&lines, &line)) {
    if (!line.n || line.text[0] != '#')
      code = call_read(&lines, line, &total_bytes, &calls);
  }
  if (!code)
    code = calls_pair(&lines, &calls);
  if (!code)
    code = lade_trace_calls_apply(trace, calls.items, calls.n);
  LADE_ARRAY_FREE(&calls);
  return code;
}
