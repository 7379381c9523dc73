/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory over the calls of a trace, in columns. A column stands for a run of calls and shows the largest value in it,
 * so no peak is lost between two columns.
 */
#ifndef LADE_MEMORY_COLUMNS_H
#define LADE_MEMORY_COLUMNS_H

#include "tools/page/memory_plot.h"

struct memory_columns {
  int n;
  uint64_t *live_bytes;     /* the largest value in each column */
  int *fullest;             /* the first event after which that many are live */
  uint64_t *reserved_bytes; /* by reserved line, then by column */
  uint64_t max_bytes;       /* largest value drawn */
};

/* Fill at most @n_max columns with @plot's lines. The caller finishes them. -ENOMEM. */
int memory_columns_make(const struct memory_plot *plot, int n_max, struct memory_columns *ret_columns);

/* Free the columns; zeroed ones are allowed. */
void memory_columns_finish(struct memory_columns *columns);

/* Return the column of event @event of @n_events. */
int memory_column_of(const struct memory_columns *columns, int event, int n_events);

#endif
