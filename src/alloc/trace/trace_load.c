/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load a trace: the form of the text chooses its reader.
 *
 * A pickle begins with its protocol's mark, a text of calls with its header line. Any other text is read as lifetimes
 * in CSV. Each reader fills the same arrays (trace.c). This file then checks that the trace allocates any memory.
 */
#include "alloc/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/trace/trace_internal.h"
#include "base/file.h"

int lade_trace_read(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                    struct lade_trace *ret_trace)
{
  struct lade_trace trace = {.place_word = "line"};
  lade_trace_reader_fn *read = lade_trace_read_csv;
  LADE_ASSERT(text[n_bytes] == 0);
  if (n_bytes > LADE_TRACE_FILE_BYTES_MAX)
    return lade_error_set(error, -EBADMSG, "%s: %zu bytes; traces of up to %zu are read", name, n_bytes,
                          LADE_TRACE_FILE_BYTES_MAX);
  const size_t mark_bytes = lade_text_mark_bytes(text, n_bytes);
  text += mark_bytes;
  n_bytes -= mark_bytes;
  if (n_bytes && (unsigned char)text[0] == 0x80) /* first byte of every pickle since protocol 2, and of no text
                                                    format */
    read = lade_trace_read_torch;
  else if (strncmp(text, LADE_TRACE_LINES_MAGIC, strlen(LADE_TRACE_LINES_MAGIC)) == 0)
    read = lade_trace_read_lines;
  int code = read(name, text, n_bytes, error, &trace);
  if (!code && !trace.blocks.n)
    code = lade_error_set(error, -EBADMSG, "%s: there is no allocation in it", name);
  if (code == -ENOMEM)
    lade_error_set(error, code, "%s: no memory for a trace of %zu bytes", name, n_bytes);
  if (code) {
    lade_trace_destroy(&trace);
    return code;
  }
  lade_trace_finish(&trace);
  *ret_trace = trace;
  return 0;
}

int lade_trace_load(const char *path, struct lade_error *error, struct lade_trace *ret_trace)
{
  char *text = NULL;
  size_t n_bytes = 0;
  int code = lade_file_load(path, LADE_TRACE_FILE_BYTES_MAX, error, &text, &n_bytes);
  if (code)
    return code;
  code = lade_trace_read(path, text, n_bytes, error, ret_trace);
  free(text);
  return code;
}
