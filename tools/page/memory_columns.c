/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns of a plot. Live bytes are summed over the events. So a column's largest value is that of one event, and the
 * plot can show the owners of the bytes at that event.
 */
#include "tools/page/memory_columns.h"

#include <errno.h>
#include <stdlib.h>

int memory_column_of(const struct memory_columns *columns, int event, int n_events)
{
  return (int)((int64_t)event * columns->n / n_events);
}

void memory_columns_finish(struct memory_columns *columns)
{
  free(columns->live_bytes);
  free(columns->fullest);
  free(columns->reserved_bytes);
}

/* Raise the values of the column of event @i, after which @live_bytes are live. */
static void event_add(const struct memory_plot *plot, struct memory_columns *columns, int i, uint64_t live_bytes)
{
  const int n_events = plot->trace->events.n, column = memory_column_of(columns, i, n_events);
  const bool is_first = i == 0 || memory_column_of(columns, i - 1, n_events) != column;
  if (is_first || live_bytes > columns->live_bytes[column]) {
    columns->live_bytes[column] = live_bytes;
    columns->fullest[column] = i;
  }
  columns->max_bytes = LADE_MAX(columns->max_bytes, live_bytes);
  for (int line = 0; line < plot->n_lines; line++) {
    uint64_t *max = &columns->reserved_bytes[line * columns->n + column];
    *max = LADE_MAX(*max, plot->lines[line].reserved_bytes[i]);
    columns->max_bytes = LADE_MAX(columns->max_bytes, *max);
  }
}

int memory_columns_make(const struct memory_plot *plot, int n_max, struct memory_columns *ret_columns)
{
  const struct lade_trace *trace = plot->trace;
  const int n = LADE_MIN(n_max, trace->events.n);
  struct memory_columns columns = {.n = n, .max_bytes = plot->budget_bytes};
  columns.live_bytes = calloc((size_t)n + 1, sizeof(*columns.live_bytes));
  columns.fullest = calloc((size_t)n + 1, sizeof(*columns.fullest));
  columns.reserved_bytes = calloc((size_t)n * (size_t)plot->n_lines + 1, sizeof(*columns.reserved_bytes));
  if (!columns.live_bytes || !columns.fullest || !columns.reserved_bytes) {
    memory_columns_finish(&columns);
    return -ENOMEM;
  }
  uint64_t live_bytes = 0;
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    const uint64_t bytes = trace->blocks.items[event->block].bytes;
    live_bytes = event->is_free ? live_bytes - bytes : live_bytes + bytes;
    event_add(plot, &columns, i, live_bytes);
  }
  *ret_columns = columns;
  return 0;
}
