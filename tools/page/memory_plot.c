/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plot of memory as text. The axis is the number of the call. A clock would stand still for thousands of calls and
 * jump over minutes, and a peak of a microsecond would be too thin to see.
 */
#include "tools/page/memory_plot.h"

#include <errno.h>

#include "tools/cli/terminal.h"
#include "tools/page/memory_columns.h"
#include "tools/report/report.h"

enum { TEXT_COLUMNS = 72, TEXT_ROWS = 10, EIGHTHS = 8 };

/* Return the eighths of the row from @from_bytes to @to_bytes that lie below @bytes. */
static int eighths_get(uint64_t bytes, double from_bytes, double to_bytes)
{
  double part = ((double)bytes - from_bytes) / (to_bytes - from_bytes) * EIGHTHS;
  return part <= 0 ? 0 : part >= EIGHTHS ? EIGHTHS : (int)(part + 0.5);
}

static void row_print(const struct memory_columns *columns, int n_lines, int row, bool has_blocks, FILE *file)
{
  static const char *const blocks[EIGHTHS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double from_bytes = (double)columns->max_bytes * row / TEXT_ROWS;
  double to_bytes = (double)columns->max_bytes * (row + 1) / TEXT_ROWS;
  for (int i = 0; i < columns->n; i++) {
    int live = eighths_get(columns->live_bytes[i], from_bytes, to_bytes);
    int reserved = n_lines ? eighths_get(columns->reserved_bytes[i], from_bytes, to_bytes) : 0;
    if (has_blocks)
      fputs(live ? blocks[live] : reserved >= EIGHTHS / 2 ? "░" : " ", file);
    else
      fputc(live >= EIGHTHS / 2 ? '#' : reserved >= EIGHTHS / 2 ? '.' : ' ', file);
  }
  fputc('\n', file);
}

int memory_plot_print(const struct memory_plot *plot, FILE *file)
{
  struct memory_columns columns;
  char size[32];
  bool has_blocks = terminal_has_color(file);
  struct memory_plot first = *plot; /* values that are not drawn do not affect the scale */
  first.n_lines = LADE_MIN(plot->n_lines, 1);
  int code = memory_columns_make(&first, TEXT_COLUMNS, &columns);
  if (code)
    return code;
  fputc('\n', file);
  for (int row = TEXT_ROWS - 1; row >= 0; row--) {
    bool is_top = row == TEXT_ROWS - 1;
    fprintf(file, "%11s %s", is_top ? lade_size_format(columns.max_bytes, size, sizeof(size)) : row ? "" : "0",
            has_blocks ? "│" : "|");
    row_print(&columns, first.n_lines, row, has_blocks, file);
  }
  fprintf(file, "%12sfrom the first to the last of %d calls; %s live", "", plot->trace->events.n,
          has_blocks ? "█" : "#");
  if (plot->n_lines)
    fprintf(file, ", %s reserved (%s)", has_blocks ? "░" : ".", plot->lines[0].name);
  fputc('\n', file);
  memory_columns_finish(&columns);
  return 0;
}
