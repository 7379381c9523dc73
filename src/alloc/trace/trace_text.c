/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of fields, shared by both text formats. Every refusal gives the line and the text found there. A field is
 * copied only into messages. A number is read digit by digit, because strtoull accepts signs and blanks.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc/trace/trace_internal.h"

bool lade_trace_line_next(struct lade_trace_text *text, struct lade_trace_field *ret_line)
{
  if (text->at == text->end)
    return false;
  const char *end = memchr(text->at, '\n', (size_t)(text->end - text->at));
  const char *next = end ? end + 1 : text->end;
  end = end ? end : text->end;
  if (end > text->at && end[-1] == '\r')
    end--;
  *ret_line = (struct lade_trace_field){text->at, (size_t)(end - text->at)};
  text->at = next;
  text->line++;
  return true;
}

int lade_trace_fields_cut(struct lade_trace_field line, char separator, int max, struct lade_trace_field *ret_fields)
{
  const char *at = line.text, *end = line.text + line.n;
  for (int n = 0; n < max; n++) {
    const char *cut = at < end ? memchr(at, separator, (size_t)(end - at)) : NULL;
    ret_fields[n] = (struct lade_trace_field){at, (size_t)((cut ? cut : end) - at)};
    if (!cut)
      return n + 1;
    at = cut + 1;
  }
  return max + 1;
}

struct lade_trace_echo lade_trace_echo(struct lade_trace_field field)
{
  struct lade_trace_echo echo = {{0}};
  size_t n = LADE_MIN(field.n, 24);
  for (size_t i = 0; i < n; i++)
    echo.text[i] = field.text[i] >= ' ' && field.text[i] < 127 ? field.text[i] : '?';
  if (field.n > n)
    memcpy(echo.text + n, "...", 4);
  return echo;
}

int lade_trace_line_refuse(struct lade_trace_text *text, const char *format, ...)
{
  char reason[256];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof(reason), format, args);
  va_end(args);
  return lade_error_set(text->error, -EBADMSG, "%s: line %d: %s", text->name, text->line, reason);
}

int lade_trace_number(struct lade_trace_text *text, struct lade_trace_field field, const char *name, uint64_t min,
                      uint64_t max, uint64_t *ret_number)
{
  uint64_t number = 0;
  bool is_number = field.n > 0, is_huge = false;
  for (size_t i = 0; i < field.n; i++) {
    unsigned digit = (unsigned)(unsigned char)field.text[i] - '0';
    is_number = is_number && digit <= 9;
    is_huge = is_huge || number > (max - LADE_MIN(digit, max)) / 10;
    number = is_number && !is_huge ? number * 10 + digit : number;
  }
  if (!is_number)
    return lade_trace_line_refuse(text, "%s is '%s': expected a whole number from %" PRIu64 " to %" PRIu64, name,
                                  lade_trace_echo(field).text, min, max);
  if (is_huge || number < min)
    return lade_trace_line_refuse(text, "%s is %s: it must be from %" PRIu64 " to %" PRIu64, name,
                                  lade_trace_echo(field).text, min, max);
  *ret_number = number;
  return 0;
}
