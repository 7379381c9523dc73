/* SPDX-License-Identifier: Apache-2.0 */
/* The kind of an output stream: a terminal or a file. */
#ifndef LADE_TERMINAL_H
#define LADE_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline bool terminal_is(FILE *file)
{
  return isatty(fileno(file)) == 1;
}

/* True if @file is a terminal that supports colours, and NO_COLOR (no-color.org) is unset. */
static inline bool terminal_has_color(FILE *file)
{
  const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
  return terminal_is(file) && !(no_color && no_color[0]) && term && strcmp(term, "dumb") != 0;
}

#define COLOR_GOOD "\033[32m"
#define COLOR_WARN "\033[33m"
#define COLOR_BAD "\033[31m"
#define COLOR_END "\033[0m"

/* Return @color if @file shows colours, else "". */
static inline const char *terminal_color(FILE *file, const char *color)
{
  return terminal_has_color(file) ? color : "";
}

#endif
