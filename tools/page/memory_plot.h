/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory over time: a trace's live bytes, and the bytes that policies reserved for them, plotted in a terminal.
 */
#ifndef LADE_MEMORY_PLOT_H
#define LADE_MEMORY_PLOT_H

#include <stdio.h>

#include "alloc/trace.h"

struct memory_plot_line {
  const char *name;
  const uint64_t *reserved_bytes; /* after each event */
  uint64_t peak_bytes;
};

struct memory_plot {
  const char *title;
  const struct lade_trace *trace;
  const struct memory_plot_line *lines;
  int n_lines;
  uint64_t budget_bytes; /* 0: none */
};

/*
 * Print a dozen lines of text: live bytes filled, the first reserved line's bytes above them. Uses block characters on
 * a terminal with colours, plain letters elsewhere. -ENOMEM.
 */
int memory_plot_print(const struct memory_plot *plot, FILE *file);

#endif
