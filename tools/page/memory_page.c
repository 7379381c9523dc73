/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the page of a trace of allocations.
 *
 * Memory is drawn over calls first. Over time, thousands of calls may share one moment, and a peak of a microsecond
 * would be too thin to see. A trace with call sites is stacked: the GROUPS_MAX sites with the largest maxima have an
 * area each, the other sites and the blocks without a site share two. A column shows the bytes of all areas at its
 * fullest call. The second drawing has a row for each queue over the source's clock.
 *
 * The page is HTML that is also valid XML, with the drawings as inline SVG and no script. So it can be mailed,
 * archived, and opened offline.
 */
#include "tools/page/memory_page.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/page/memory_columns.h"
#include "tools/report/report.h"
#include "tools/report/xml_text.h"

#define HOLDERS_MAX 20  /* lines of a table of holders */
#define GROUPS_MAX 9    /* call sites with an area of their own */

enum { COLUMNS = 960, HEIGHT = 400, ROW_HEIGHT = 40, LEFT = 90, TOP = 20, FOOT = 40, TICKS = 5 };

static const char *const line_colors[] = {"#c0392b", "#2471a3", "#b9770e", "#7d3c98", "#1e8449", "#5d6d7e"};
static const char *const group_colors[GROUPS_MAX + 2] = {"#4e79a7", "#f28e2b", "#59a14f", "#76b7b2",
                                                         "#edc948", "#b07aa1", "#9c755f", "#d37295",
                                                         "#e15759", "#bab0ac", "#a9cce3"};
enum { GROUP_OTHERS = GROUPS_MAX, GROUP_UNKNOWN = GROUPS_MAX + 1, N_GROUPS };

struct trace_page {
  FILE *file;
  const struct memory_plot *plot;
  const struct lade_trace *trace;
  const char *title; /* valid UTF-8 */
  struct memory_columns columns;
  /* Areas: by site, from 0 for unknown. */
  int *group_of;
  const char *names[N_GROUPS];              /* NULL: the group has no block */
  uint64_t (*group_bytes)[N_GROUPS];        /* by column, at its fullest call */
  struct lade_trace_holder *holders;        /* of the peak; none without call sites */
  int n_holders;
};

/* A rectangle of a drawing and the bytes at its upper edge. */
struct plane {
  int top, height;
  uint64_t max_bytes;
};

/* ---- groups of call sites ---- */

/* Set @max_bytes to the largest bytes live at once of each site; 0 is the site of blocks without one. -ENOMEM. */
static int sites_measure(const struct lade_trace *trace, uint64_t *max_bytes)
{
  uint64_t *now = calloc((size_t)trace->sites.n + 1, sizeof(*now));
  for (int i = 0; i < trace->events.n && now; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    const struct lade_trace_block *block = &trace->blocks.items[event->block];
    now[block->site] += event->is_free ? -block->bytes : block->bytes;
    max_bytes[block->site] = LADE_MAX(max_bytes[block->site], now[block->site]);
  }
  free(now);
  return now ? 0 : -ENOMEM;
}

/* Give each of the largest sites a group, and name the groups that have blocks. @max_bytes is used up. */
static void groups_choose(struct trace_page *page, uint64_t *max_bytes)
{
  const int n_sites = page->trace->sites.n;
  if (max_bytes[0])
    page->names[GROUP_UNKNOWN] = n_sites ? "unknown: before the history, or without frames" : "live";
  page->group_of[0] = GROUP_UNKNOWN;
  for (int i = 1; i <= n_sites; i++)
    page->group_of[i] = GROUP_OTHERS;
  for (int group = 0; group < LADE_MIN(GROUPS_MAX, n_sites); group++) {
    int largest = 1;
    for (int i = 2; i <= n_sites; i++)
      if (max_bytes[i] > max_bytes[largest])
        largest = i;
    page->group_of[largest] = group;
    page->names[group] = page->trace->sites.items[largest - 1];
    max_bytes[largest] = 0;
  }
  if (n_sites > GROUPS_MAX)
    page->names[GROUP_OTHERS] = "other call sites";
}

static void groups_sum(struct trace_page *page)
{
  const struct lade_trace *trace = page->trace;
  uint64_t now[N_GROUPS] = {0};
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    const struct lade_trace_block *block = &trace->blocks.items[event->block];
    const int column = memory_column_of(&page->columns, i, trace->events.n);
    now[page->group_of[block->site]] += event->is_free ? -block->bytes : block->bytes;
    if (page->columns.fullest[column] == i)
      memcpy(page->group_bytes[column], now, sizeof(now));
  }
}

static int page_make(struct trace_page *page)
{
  int status = memory_columns_make(page->plot, COLUMNS, &page->columns);
  uint64_t *max_bytes = calloc((size_t)page->trace->sites.n + 1, sizeof(*max_bytes));
  page->group_of = calloc((size_t)page->trace->sites.n + 1, sizeof(*page->group_of));
  page->group_bytes = calloc((size_t)page->columns.n + 1, sizeof(*page->group_bytes));
  if (!status && (!max_bytes || !page->group_of || !page->group_bytes))
    status = -ENOMEM;
  if (!status)
    status = sites_measure(page->trace, max_bytes);
  if (!status) {
    groups_choose(page, max_bytes);
    groups_sum(page);
    status = lade_trace_holders(page->trace, &page->holders);
    page->n_holders = LADE_MAX(status, 0);
  }
  free(max_bytes);
  return LADE_MIN(status, 0);
}

static void page_finish(struct trace_page *page)
{
  memory_columns_finish(&page->columns);
  free(page->group_of);
  free(page->group_bytes);
  free(page->holders);
}

/* ---- drawings ---- */

static double y_of(const struct plane *plane, uint64_t bytes)
{
  return plane->top + plane->height * (1 - (double)bytes / (double)LADE_MAX(plane->max_bytes, 1));
}

/* Write the corners of a staircase of @n steps over the width of a drawing. */
static void stair_write(FILE *file, const struct plane *plane, const uint64_t *bytes, int n)
{
  for (int i = 0; i < n; i++) {
    if (i && bytes[i] == bytes[i - 1] && i + 1 < n)
      continue; /* within one step of the staircase */
    const double x = LEFT + (double)COLUMNS * i / n;
    if (i)
      fprintf(file, "%.1f,%.1f ", x, y_of(plane, bytes[i - 1]));
    fprintf(file, "%.1f,%.1f ", x, y_of(plane, bytes[i]));
    if (i + 1 == n)
      fprintf(file, "%.1f,%.1f ", (double)(LEFT + COLUMNS), y_of(plane, bytes[i]));
  }
}

/* Fill the staircase @bytes, with @name as the text under a pointer. */
static void area_write(FILE *file, const struct plane *plane, const uint64_t *bytes, int n, const char *color,
                       const char *name)
{
  fprintf(file, "<polygon fill=\"%s\" points=\"%d,%d ", color, LEFT, plane->top + plane->height);
  stair_write(file, plane, bytes, n);
  fprintf(file, "%d,%d\"><title>", LEFT + COLUMNS, plane->top + plane->height);
  xml_text_write(file, name);
  fputs("</title></polygon>\n", file);
}

static void svg_begin(FILE *file, int height)
{
  fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-size=\"12\">\n",
          LEFT + COLUMNS + 10, height);
}

static void axes_write(const struct trace_page *page, const struct plane *plane)
{
  char size[32];
  for (int i = 0; i <= TICKS; i++) {
    const uint64_t bytes = (uint64_t)((double)plane->max_bytes * i / TICKS);
    const double y = y_of(plane, bytes);
    fprintf(page->file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, LEFT + COLUMNS,
            y, y);
    fprintf(page->file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, y + 4,
            lade_size_format(bytes, size, sizeof(size)));
  }
  fprintf(page->file, "<text x=\"%d\" y=\"%d\">call 1</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">call %d"
                      "</text>\n", LEFT, TOP + HEIGHT + 20, LEFT + COLUMNS, TOP + HEIGHT + 20, page->trace->events.n);
}

/* Draw the areas of all groups, each upon those with lower numbers: the highest first, so that each covers the last. */
static void groups_draw(const struct trace_page *page, const struct plane *plane)
{
  uint64_t sums[COLUMNS];
  memcpy(sums, page->columns.live_bytes, (size_t)page->columns.n * sizeof(*sums));
  for (int group = N_GROUPS - 1; group >= 0; group--) {
    if (!page->names[group])
      continue;
    area_write(page->file, plane, sums, page->columns.n, group_colors[group], page->names[group]);
    for (int column = 0; column < page->columns.n; column++)
      sums[column] -= page->group_bytes[column][group];
  }
}

static void calls_draw(const struct trace_page *page)
{
  const struct memory_columns *columns = &page->columns;
  const struct plane plane = {TOP, HEIGHT, columns->max_bytes};
  svg_begin(page->file, TOP + HEIGHT + FOOT);
  axes_write(page, &plane);
  groups_draw(page, &plane);
  for (int line = 0; line < page->plot->n_lines; line++) {
    fprintf(page->file, "<polyline fill=\"none\" stroke=\"%s\" points=\"",
            line_colors[line % (int)LADE_COUNT(line_colors)]);
    stair_write(page->file, &plane, columns->reserved_bytes + line * columns->n, columns->n);
    fputs("\"/>\n", page->file);
  }
  if (page->plot->budget_bytes)
    fprintf(page->file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"black\" "
                        "stroke-dasharray=\"6 4\"/>\n", LEFT, LEFT + COLUMNS,
            y_of(&plane, page->plot->budget_bytes), y_of(&plane, page->plot->budget_bytes));
  fputs("</svg>\n", page->file);
}

/* ---- queues over time ---- */

/* The live bytes of one queue over time. */
struct queue_row {
  uint64_t max_bytes[COLUMNS];
  uint64_t now_bytes;
  int column; /* the last that is filled */
};

static void row_advance(struct queue_row *row, int column)
{
  while (row->column < column)
    row->max_bytes[++row->column] = row->now_bytes;
}

/* Fill a row for each queue from @first_time to @last_time. Return the largest value. */
static uint64_t rows_fill(const struct lade_trace *trace, uint64_t first_time, uint64_t last_time,
                          struct queue_row *rows)
{
  uint64_t max_bytes = 0;
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    const struct lade_trace_block *block = &trace->blocks.items[event->block];
    const double part = (double)(event->time - first_time) / (double)(last_time - first_time);
    struct queue_row *row = &rows[block->queue];
    row_advance(row, LADE_MIN((int)(part * COLUMNS), COLUMNS - 1));
    row->now_bytes += event->is_free ? -block->bytes : block->bytes;
    row->max_bytes[row->column] = LADE_MAX(row->max_bytes[row->column], row->now_bytes);
    max_bytes = LADE_MAX(max_bytes, row->now_bytes);
  }
  for (int queue = 0; queue < trace->n_queues; queue++)
    row_advance(&rows[queue], COLUMNS - 1);
  return max_bytes;
}

static void rows_draw(const struct trace_page *page, const struct queue_row *rows, uint64_t max_bytes)
{
  char size[32], name[32];
  svg_begin(page->file, page->trace->n_queues * (ROW_HEIGHT + 8) + 8);
  for (int queue = 0; queue < page->trace->n_queues; queue++) {
    const struct plane plane = {8 + queue * (ROW_HEIGHT + 8), ROW_HEIGHT, max_bytes};
    uint64_t row_bytes = 0;
    for (int column = 0; column < COLUMNS; column++)
      row_bytes = LADE_MAX(row_bytes, rows[queue].max_bytes[column]);
    snprintf(name, sizeof(name), "queue %d", queue);
    fprintf(page->file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n<text x=\"%d\" y=\"%d\" "
                        "text-anchor=\"end\">%s</text>\n", LEFT - 6, plane.top + 16, name, LEFT - 6, plane.top + 32,
            lade_size_format(row_bytes, size, sizeof(size)));
    area_write(page->file, &plane, rows[queue].max_bytes, COLUMNS, "#4e79a7", name);
  }
  fputs("</svg>\n", page->file);
}

/* Draw the queues over time, unless the clock stands still. -ENOMEM. */
static int queues_draw(const struct trace_page *page)
{
  const struct lade_trace *trace = page->trace;
  const uint64_t first_time = trace->events.items[0].time, last_time = trace->events.items[trace->events.n - 1].time;
  if (first_time >= last_time)
    return 0;
  struct queue_row *rows = calloc((size_t)trace->n_queues, sizeof(*rows));
  if (!rows)
    return -ENOMEM;
  for (int queue = 0; queue < trace->n_queues; queue++)
    rows[queue].column = -1;
  fprintf(page->file, "<h2>Queues over time</h2>\n<p>Live bytes of the blocks of each queue, from time %" PRIu64
                      " to %" PRIu64 ", and the most of them.</p>\n", first_time, last_time);
  rows_draw(page, rows, rows_fill(trace, first_time, last_time, rows));
  free(rows);
  return 0;
}

/* ---- tables ---- */

static void line_write(FILE *file, const char *color, const char *name, uint64_t bytes, uint64_t live_bytes)
{
  char size[32];
  fprintf(file, "<tr><td style=\"color:%s\">&#9632;</td><td>%s</td><td>%s</td><td>%" PRIu64 " bytes</td>", color, name,
          lade_size_format(bytes, size, sizeof(size)), bytes);
  fprintf(file, "<td>%.2f %%</td></tr>\n", 100 * ((double)bytes / (double)live_bytes - 1));
}

static void lines_write(const struct trace_page *page)
{
  const struct memory_plot *plot = page->plot;
  const uint64_t live_bytes = page->trace->peak_live_bytes;
  fputs("<table>\n<tr><th></th><th></th><th>at the peak</th><th></th><th>waste</th></tr>\n", page->file);
  line_write(page->file, page->n_holders ? "white" : group_colors[GROUP_UNKNOWN], "live", live_bytes, live_bytes);
  for (int line = 0; line < plot->n_lines; line++)
    line_write(page->file, line_colors[line % (int)LADE_COUNT(line_colors)], plot->lines[line].name,
               plot->lines[line].peak_bytes, live_bytes);
  if (page->trace->has_recorded)
    line_write(page->file, "white", "as recorded", page->trace->recorded_reserved_bytes, live_bytes);
  if (plot->budget_bytes)
    line_write(page->file, "black", "budget", plot->budget_bytes, live_bytes);
  fputs("</table>\n", page->file);
}

/* Return the group of the site with the text @site, which the trace owns; NULL: unknown. */
static int group_find(const struct trace_page *page, const char *site)
{
  for (int i = 0; i < page->trace->sites.n && site; i++)
    if (page->trace->sites.items[i] == site)
      return page->group_of[i + 1];
  return GROUP_UNKNOWN;
}

/* Write the cells of @bytes: rounded, exact, and the part of the peak. */
static void bytes_write(const struct trace_page *page, uint64_t bytes)
{
  char size[32];
  fprintf(page->file, "<td>%s</td><td>%" PRIu64 " bytes</td><td>%.1f %%</td></tr>\n",
          lade_size_format(bytes, size, sizeof(size)), bytes,
          100 * (double)bytes / (double)page->trace->peak_live_bytes);
}

/* Write the call sites that hold the most bytes at the peak, and the sum of the others, with the colours of areas. */
static void sites_write(const struct trace_page *page)
{
  struct lade_trace_holder others = {0};
  fputs("<h2>Holders at the peak</h2>\n<table>\n<tr><th></th><th>call site</th><th>blocks</th><th></th><th></th>"
        "<th>of the peak</th></tr>\n", page->file);
  for (int i = 0; i < page->n_holders; i++) {
    const struct lade_trace_holder *holder = &page->holders[i];
    if (i >= HOLDERS_MAX) {
      others.n_blocks += holder->n_blocks;
      others.bytes += holder->bytes;
      continue;
    }
    fprintf(page->file, "<tr><td style=\"color:%s\">&#9632;</td><td>", group_colors[group_find(page, holder->site)]);
    xml_text_write(page->file, holder->site ? holder->site : page->names[GROUP_UNKNOWN]);
    fprintf(page->file, "</td><td>%d</td>", holder->n_blocks);
    bytes_write(page, holder->bytes);
  }
  if (others.n_blocks) {
    fprintf(page->file, "<tr><td></td><td>others</td><td>%d</td>", others.n_blocks);
    bytes_write(page, others.bytes);
  }
  fputs("</table>\n", page->file);
}

/* Insert block @i into the @n largest ones of @held, largest first. Return their new number. */
static int block_insert(const struct lade_trace *trace, int held[HOLDERS_MAX], int n, int i)
{
  const uint64_t bytes = trace->blocks.items[i].bytes;
  if (n == HOLDERS_MAX && trace->blocks.items[held[n - 1]].bytes >= bytes)
    return n;
  int at = n < HOLDERS_MAX ? n++ : n - 1;
  for (; at > 0 && trace->blocks.items[held[at - 1]].bytes < bytes; at--)
    held[at] = held[at - 1];
  held[at] = i;
  return n;
}

static void block_write(const struct trace_page *page, int i)
{
  const struct lade_trace_block *block = &page->trace->blocks.items[i];
  fprintf(page->file, "<tr><td>%d</td>", i + 1);
  if (block->place)
    fprintf(page->file, "<td>%s %d</td>", page->trace->place_word, block->place);
  else
    fputs("<td>before the trace</td>", page->file);
  if (page->n_holders) {
    fputs("<td>", page->file);
    xml_text_write(page->file, block->site ? page->trace->sites.items[block->site - 1] : "unknown");
    fputs("</td>", page->file);
  }
  bytes_write(page, block->bytes);
}

/* Write the largest blocks that are live at the peak: where they begin, and their part of it. */
static void blocks_write(const struct trace_page *page)
{
  const struct lade_trace *trace = page->trace;
  int held[HOLDERS_MAX], n = 0, n_live = 0;
  for (int i = 0; i < trace->blocks.n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    if (block->first > trace->peak_event || block->last <= trace->peak_event)
      continue;
    n = block_insert(trace, held, n, i);
    n_live++;
  }
  fprintf(page->file, "<h2>Live at the peak, after call %d</h2>\n<p>%d of %d blocks, the largest first.</p>\n<table>\n"
                      "<tr><th>block</th><th>begins at</th>%s<th></th><th></th><th>of the peak</th></tr>\n",
          trace->peak_event + 1, n, n_live, page->n_holders ? "<th>call site</th>" : "");
  for (int i = 0; i < n; i++)
    block_write(page, held[i]);
  fputs("</table>\n", page->file);
}

/* ---- the page ---- */

/* Write the page. -ENOMEM. */
static int page_write(const struct trace_page *page)
{
  FILE *file = page->file;
  fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head><meta charset=\"utf-8\"/>"
        "<title>Memory of ", file);
  xml_text_write(file, page->title);
  fputs("</title>\n<style>body{font-family:sans-serif;max-width:1080px;margin:2em auto}td,th{padding:0 1em 0 0;"
        "text-align:right}td:nth-child(2),th:nth-child(2){text-align:left}</style></head>\n<body>\n<h1>", file);
  xml_text_write(file, page->title);
  fprintf(file, "</h1>\n<p>%d allocations, %d calls. Live memory is filled%s; the lines are the bytes that each policy "
          "reserved%s.</p>\n", page->trace->blocks.n, page->trace->events.n,
          page->n_holders ? ", stacked by call site" : "", page->plot->budget_bytes ? "; dashed is the budget" : "");
  calls_draw(page);
  lines_write(page);
  if (page->n_holders)
    sites_write(page);
  int status = queues_draw(page);
  blocks_write(page);
  fputs("</body>\n</html>\n", file);
  return status;
}

int memory_page_write(const struct memory_plot *plot, const char *path, struct lade_error *error)
{
  char *text = NULL;
  size_t n_bytes = 0;
  json_t *title = json_text(plot->title); /* valid UTF-8, whatever the title's bytes */
  struct trace_page page = {.plot = plot, .trace = plot->trace, .title = title ? json_string_value(title) : NULL};
  page.file = title ? open_memstream(&text, &n_bytes) : NULL;
  int code = page.file ? page_make(&page) : -ENOMEM;
  if (!code)
    code = page_write(&page);
  bool is_bad = page.file && ferror(page.file);
  is_bad = (page.file && fclose(page.file)) || is_bad;
  if (!code && is_bad)
    code = -ENOMEM;
  code = code ? lade_error_set(error, code, "--html %s: no memory to draw it", path)
              : lade_file_replace(path, text, n_bytes, error);
  page_finish(&page);
  json_decref(title);
  free(text);
  return code;
}
