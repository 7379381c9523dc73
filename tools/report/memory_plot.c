/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plot of memory over time. The axis is the number of the call, because the clock stands still for thousands of calls
 * and jumps over minutes, and a peak of a microsecond would be too thin to see. A column stands for a run of calls and
 * shows the largest value in it, so that no peak is lost between two columns.
 *
 * The page is HTML that is also valid XML, with the drawing as inline SVG and no script, so that it can be mailed,
 * archived, and opened offline.
 */
#include "tools/report/memory_plot.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/cli/terminal.h"
#include "tools/report/report.h"
#include "tools/report/xml_text.h"

#define HOLDERS_MOST 20 /* largest blocks in the table of a page */

enum { TEXT_COLUMNS = 72, TEXT_ROWS = 10, EIGHTHS = 8 };
enum { PAGE_COLUMNS = 960, PAGE_HEIGHT = 400, PAGE_LEFT = 90, PAGE_TOP = 20, PAGE_FOOT = 40, PAGE_TICKS = 5 };

struct columns {
  int n;
  uint64_t *live_bytes;      /* the largest value in each column */
  uint64_t *reserved_bytes;  /* by reserved line, then by column */
  uint64_t most_bytes;       /* largest value drawn */
};

/* ---- columns ---- */

static int column_of(const struct columns *columns, int event, int n_events)
{
  return (int)((int64_t)event * columns->n / n_events);
}

static void columns_finish(struct columns *columns)
{
  free(columns->live_bytes);
  free(columns->reserved_bytes);
}

static int columns_make(const struct memory_plot *plot, int n_most, struct columns *columns)
{
  const struct lade_trace *trace = plot->trace;
  int n_events = trace->events.n;
  *columns = (struct columns){.n = LADE_MIN(n_most, n_events), .most_bytes = plot->budget_bytes};
  columns->live_bytes = calloc((size_t)columns->n + 1, sizeof(uint64_t));
  columns->reserved_bytes = calloc((size_t)columns->n * (size_t)plot->n_lines + 1, sizeof(uint64_t));
  if (!columns->live_bytes || !columns->reserved_bytes) {
    columns_finish(columns);
    return -ENOMEM;
  }
  uint64_t live_bytes = 0;
  for (int i = 0; i < n_events; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    uint64_t bytes = trace->blocks.items[event->block].bytes;
    uint64_t *most = &columns->live_bytes[column_of(columns, i, n_events)];
    live_bytes = event->is_free ? live_bytes - bytes : live_bytes + bytes;
    *most = LADE_MAX(*most, live_bytes);
    for (int line = 0; line < plot->n_lines; line++) {
      most = &columns->reserved_bytes[line * columns->n + column_of(columns, i, n_events)];
      *most = LADE_MAX(*most, plot->lines[line].reserved_bytes[i]);
      columns->most_bytes = LADE_MAX(columns->most_bytes, *most);
    }
    columns->most_bytes = LADE_MAX(columns->most_bytes, live_bytes);
  }
  return 0;
}

/* ---- text ---- */

/* Return the eighths of the row from @from_bytes to @to_bytes that lie below @bytes. */
static int eighths_get(uint64_t bytes, double from_bytes, double to_bytes)
{
  double part = ((double)bytes - from_bytes) / (to_bytes - from_bytes) * EIGHTHS;
  return part <= 0 ? 0 : part >= EIGHTHS ? EIGHTHS : (int)(part + 0.5);
}

static void row_print(const struct columns *columns, int n_lines, int row, bool has_blocks, FILE *file)
{
  static const char *const blocks[EIGHTHS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double from_bytes = (double)columns->most_bytes * row / TEXT_ROWS;
  double to_bytes = (double)columns->most_bytes * (row + 1) / TEXT_ROWS;
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
  struct columns columns;
  char size[32];
  bool has_blocks = terminal_has_color(file);
  struct memory_plot first = *plot; /* values that are not drawn do not affect the scale */
  first.n_lines = LADE_MIN(plot->n_lines, 1);
  int code = columns_make(&first, TEXT_COLUMNS, &columns);
  if (code)
    return code;
  fputc('\n', file);
  for (int row = TEXT_ROWS - 1; row >= 0; row--) {
    bool is_top = row == TEXT_ROWS - 1;
    fprintf(file, "%11s %s", is_top ? lade_size_format(columns.most_bytes, size, sizeof(size)) : row ? "" : "0",
            has_blocks ? "│" : "|");
    row_print(&columns, first.n_lines, row, has_blocks, file);
  }
  fprintf(file, "%12sfrom the first to the last of %d calls; %s live", "", plot->trace->events.n,
          has_blocks ? "█" : "#");
  if (plot->n_lines)
    fprintf(file, ", %s reserved (%s)", has_blocks ? "░" : ".", plot->lines[0].name);
  fputc('\n', file);
  columns_finish(&columns);
  return 0;
}

/* ---- the page ---- */

static const char *const line_colors[] = {"#c0392b", "#2471a3", "#b9770e", "#7d3c98", "#1e8449", "#5d6d7e"};

static double y_of(const struct columns *columns, uint64_t bytes)
{
  return PAGE_TOP + PAGE_HEIGHT * (1 - (double)bytes / (double)columns->most_bytes);
}

static double x_of(const struct columns *columns, int column)
{
  return PAGE_LEFT + (double)PAGE_COLUMNS * column / columns->n;
}

/* Write the corners of a staircase over all columns. */
static void stair_write(FILE *page, const struct columns *columns, const uint64_t *bytes)
{
  for (int i = 0; i < columns->n; i++) {
    if (i && bytes[i] == bytes[i - 1] && i + 1 < columns->n)
      continue; /* within one step of the staircase */
    double y = y_of(columns, bytes[i]);
    if (i)
      fprintf(page, "%.1f,%.1f ", x_of(columns, i), y_of(columns, bytes[i - 1]));
    fprintf(page, "%.1f,%.1f ", x_of(columns, i), y);
    if (i + 1 == columns->n)
      fprintf(page, "%.1f,%.1f", x_of(columns, i + 1), y);
  }
}

static void axes_write(FILE *page, const struct memory_plot *plot, const struct columns *columns)
{
  char size[32];
  for (int i = 0; i <= PAGE_TICKS; i++) {
    uint64_t bytes = (uint64_t)((double)columns->most_bytes * i / PAGE_TICKS);
    double y = y_of(columns, bytes);
    fprintf(page, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", PAGE_LEFT,
            PAGE_LEFT + PAGE_COLUMNS, y, y);
    fprintf(page, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", PAGE_LEFT - 6, y + 4,
            lade_size_format(bytes, size, sizeof(size)));
  }
  fprintf(page, "<text x=\"%d\" y=\"%d\">call 1</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">call %d</text>\n",
          PAGE_LEFT, PAGE_TOP + PAGE_HEIGHT + 20, PAGE_LEFT + PAGE_COLUMNS, PAGE_TOP + PAGE_HEIGHT + 20,
          plot->trace->events.n);
}

static void drawing_write(FILE *page, const struct memory_plot *plot, const struct columns *columns)
{
  int width = PAGE_LEFT + PAGE_COLUMNS + 10, height = PAGE_TOP + PAGE_HEIGHT + PAGE_FOOT;
  fprintf(page, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-size=\"12\">\n", width, height);
  axes_write(page, plot, columns);
  fprintf(page, "<polygon fill=\"#a9cce3\" points=\"%d,%d ", PAGE_LEFT, PAGE_TOP + PAGE_HEIGHT);
  stair_write(page, columns, columns->live_bytes);
  fprintf(page, " %d,%d\"/>\n", PAGE_LEFT + PAGE_COLUMNS, PAGE_TOP + PAGE_HEIGHT);
  for (int line = 0; line < plot->n_lines; line++) {
    fprintf(page, "<polyline fill=\"none\" stroke=\"%s\" points=\"", line_colors[line % (int)LADE_COUNT(line_colors)]);
    stair_write(page, columns, columns->reserved_bytes + line * columns->n);
    fputs("\"/>\n", page);
  }
  if (plot->budget_bytes) {
    double y = y_of(columns, plot->budget_bytes);
    fprintf(page, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"black\" stroke-dasharray=\"6 4\"/>\n",
            PAGE_LEFT, PAGE_LEFT + PAGE_COLUMNS, y, y);
  }
  fputs("</svg>\n", page);
}

static void row_write(FILE *page, const char *color, const char *name, uint64_t bytes, uint64_t live_bytes)
{
  char size[32];
  fprintf(page, "<tr><td style=\"color:%s\">&#9632;</td><td>%s</td><td>%s</td><td>%llu bytes</td>", color, name,
          lade_size_format(bytes, size, sizeof(size)), (unsigned long long)bytes);
  fprintf(page, "<td>%.2f %%</td></tr>\n", 100 * ((double)bytes / (double)live_bytes - 1));
}

static void table_write(FILE *page, const struct memory_plot *plot)
{
  uint64_t live_bytes = plot->trace->peak_live_bytes;
  fputs("<table>\n<tr><th></th><th></th><th>at the peak</th><th></th><th>waste</th></tr>\n", page);
  row_write(page, "#a9cce3", "live", live_bytes, live_bytes);
  for (int line = 0; line < plot->n_lines; line++)
    row_write(page, line_colors[line % (int)LADE_COUNT(line_colors)], plot->lines[line].name,
              plot->lines[line].peak_bytes, live_bytes);
  if (plot->trace->has_recorded)
    row_write(page, "white", "as recorded", plot->trace->recorded_reserved_bytes, live_bytes);
  if (plot->budget_bytes)
    row_write(page, "black", "budget", plot->budget_bytes, live_bytes);
  fputs("</table>\n", page);
}

/* Insert block @i into the @n largest ones of @held, largest first. Return their new number. */
static int holder_insert(const struct lade_trace *trace, int held[HOLDERS_MOST], int n, int i)
{
  const uint64_t bytes = trace->blocks.items[i].bytes;
  if (n == HOLDERS_MOST && trace->blocks.items[held[n - 1]].bytes >= bytes)
    return n;
  int at = n < HOLDERS_MOST ? n++ : n - 1;
  for (; at > 0 && trace->blocks.items[held[at - 1]].bytes < bytes; at--)
    held[at] = held[at - 1];
  held[at] = i;
  return n;
}

/* Write the largest blocks that are live at the peak: where they begin, and their part of it. */
static void holders_write(FILE *page, const struct lade_trace *trace)
{
  int held[HOLDERS_MOST], n = 0, n_live = 0;
  char size[32];
  for (int i = 0; i < trace->blocks.n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    if (block->first > trace->peak_event || block->last <= trace->peak_event)
      continue;
    n = holder_insert(trace, held, n, i);
    n_live++;
  }
  fprintf(page, "<h2>Live at the peak, after call %d</h2>\n<p>%d of %d blocks, the largest first.</p>\n<table>\n"
                "<tr><th>block</th><th>begins at</th><th></th><th></th><th>of the peak</th></tr>\n",
          trace->peak_event + 1, n, n_live);
  for (int i = 0; i < n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[held[i]];
    fprintf(page, "<tr><td>%d</td>", held[i] + 1);
    if (block->place)
      fprintf(page, "<td>%s %d</td>", trace->place_word, block->place);
    else
      fputs("<td>before the trace</td>", page);
    fprintf(page, "<td>%s</td><td>%llu bytes</td><td>%.1f %%</td></tr>\n",
            lade_size_format(block->bytes, size, sizeof(size)), (unsigned long long)block->bytes,
            100 * (double)block->bytes / (double)trace->peak_live_bytes);
  }
  fputs("</table>\n", page);
}

static void page_write(FILE *page, const struct memory_plot *plot, const char *title, const struct columns *columns)
{
  fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head><meta charset=\"utf-8\"/>"
        "<title>Memory of ", page);
  xml_text_write(page, title);
  fputs("</title>\n<style>body{font-family:sans-serif;max-width:1080px;margin:2em auto}td,th{padding:0 1em 0 0;"
        "text-align:right}</style></head>\n<body>\n<h1>", page);
  xml_text_write(page, title);
  fprintf(page, "</h1>\n<p>%d allocations, %d calls. Live memory is filled; the lines are what each policy has "
          "reserved%s.</p>\n", plot->trace->blocks.n, plot->trace->events.n,
          plot->budget_bytes ? "; dashed is the budget" : "");
  drawing_write(page, plot, columns);
  table_write(page, plot);
  holders_write(page, plot->trace);
  fputs("</body>\n</html>\n", page);
}

int memory_plot_write(const struct memory_plot *plot, const char *path, struct lade_error *error)
{
  struct columns columns = {0};
  char *text = NULL;
  size_t n_bytes = 0;
  json_t *title = json_text(plot->title); /* valid UTF-8, whatever the title's bytes */
  FILE *page = title ? open_memstream(&text, &n_bytes) : NULL;
  int code = page ? columns_make(plot, PAGE_COLUMNS, &columns) : -ENOMEM;
  if (!code) {
    page_write(page, plot, json_string_value(title), &columns);
    columns_finish(&columns);
  }
  bool is_bad = page && ferror(page);
  is_bad = (page && fclose(page)) || is_bad;
  if (!code && is_bad)
    code = -ENOMEM;
  code = code ? lade_error_set(error, code, "--html %s: no memory to draw it", path)
              : lade_file_replace(path, text, n_bytes, error);
  json_decref(title);
  free(text);
  return code;
}
