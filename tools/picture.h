/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory over time: a trace's live bytes, and what policies reserved for them. In a terminal, and as a page.
 */
#ifndef LADE_PICTURE_H
#define LADE_PICTURE_H

#include <stdio.h>

#include "alloc/trace.h"

struct picture_line {
  const char *name;
  const uint64_t *reserved_bytes; /* after each event */
  uint64_t peak_bytes;
};

struct picture {
  const char *title;
  const struct lade_trace *trace;
  const struct picture_line *lines;
  int n_lines;
  uint64_t budget_bytes; /* 0: none */
};

/*
 * A dozen lines of text: live bytes filled, what the first line reserves above them. Blocks where @file is a
 * terminal that shows colours, plain letters elsewhere. -ENOMEM.
 */
int picture_print(const struct picture *picture, FILE *file);

/*
 * One page of HTML with a drawing inside, which refers to nothing outside of itself, put in the place of @path.
 * -ENOMEM, or what writing answers.
 */
int picture_write(const struct picture *picture, const char *path, struct lade_error *error);

#endif
