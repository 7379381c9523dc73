/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the page of a training step.
 *
 * Memory is drawn over instructions, not over time, because a peak of a microsecond would be too thin to see. A column
 * stands for a run of instructions and shows the owners' bytes at the fullest one of them, so no peak is lost. Queues
 * are drawn over time, predicted above measured, at one scale. Work that lies closer than half a pixel is one bar, so a
 * program of any length makes a page of bounded size.
 */
#include "tools/page/run_page.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define HOLDERS_MAX 20 /* lines of the table of largest buffers */
enum { COLUMNS = 960, HEIGHT = 360, LEFT = 110, TOP = 10, ROW = 12 };

static const char *const owner_colors[LADE_N_OWNERS] = {"#4e79a7", "#f28e2b", "#59a14f", "#76b7b2", "#edc948",
                                                        "#b07aa1", "#9c755f", "#bab0ac", "#d37295"};

struct run_page {
  const struct lade_session_info *info;
  const struct lade_program *program;
  int n_columns;
  uint64_t (*bytes)[LADE_N_OWNERS]; /* by column, at its fullest instruction */
  uint64_t peak_bytes;              /* the most bytes live at once in buffers of the device */
  int peak;                         /* the instruction at which they are live */
  int64_t (*predicted)[2], (*measured)[2]; /* spans from the step's start; measured: NULL before a step */
  int64_t last_ns;
};

/* ---- numbers of the page ---- */

/* Fill the columns, and the peak, from the lifetimes of the buffers. @change: n_instrs + 1 zeroed entries. */
static void memory_sum(struct run_page *page, int64_t (*change)[LADE_N_OWNERS])
{
  const struct lade_program *program = page->program;
  uint64_t now[LADE_N_OWNERS] = {0}, max = 0;
  int column_before = -1;
  for (int b = 0; b < program->n_buffers; b++) {
    const struct lade_buffer *buffer = &program->buffers[b];
    if (buffer->space != LADE_DEVICE)
      continue;
    change[buffer->first][buffer->owner] += (int64_t)buffer->bytes;
    change[buffer->last + 1][buffer->owner] -= (int64_t)buffer->bytes;
  }
  for (int i = 0; i < program->n_instrs; i++) {
    const int column = (int)((int64_t)i * page->n_columns / program->n_instrs);
    uint64_t sum = 0;
    for (int owner = 0; owner < LADE_N_OWNERS; owner++)
      sum += now[owner] += (uint64_t)change[i][owner];
    if (column != column_before || sum > max) {
      max = sum;
      memcpy(page->bytes[column], now, sizeof(now));
    }
    if (sum > page->peak_bytes) {
      page->peak_bytes = sum;
      page->peak = i;
    }
    column_before = column;
  }
}

static void measured_copy(struct run_page *page, const struct lade_span *spans)
{
  int64_t first_ns = INT64_MAX;
  for (int i = 0; i < page->program->n_instrs; i++)
    if (spans[i].end_ns > 0)
      first_ns = LADE_MIN(first_ns, spans[i].start_ns);
  for (int i = 0; i < page->program->n_instrs; i++) {
    page->measured[i][0] = spans[i].end_ns > 0 ? spans[i].start_ns - first_ns : 0;
    page->measured[i][1] = spans[i].end_ns > 0 ? spans[i].end_ns - first_ns : 0;
    page->last_ns = LADE_MAX(page->last_ns, page->measured[i][1]);
  }
}

static void page_finish(struct run_page *page)
{
  free(page->bytes);
  free(page->predicted);
  free(page->measured);
}

/* Fill @page. On an error the caller finishes it all the same. */
static int page_make(struct run_page *page)
{
  struct lade_program *program = page->info->plan->train;
  const size_t n = (size_t)program->n_instrs + 1;
  const struct lade_span *spans = page->info->executor ? lade_executor_spans(page->info->executor) : NULL;
  page->program = program;
  page->n_columns = LADE_MIN(COLUMNS, program->n_instrs);
  page->bytes = calloc((size_t)page->n_columns + 1, sizeof(*page->bytes));
  page->predicted = calloc(n, sizeof(*page->predicted));
  page->measured = spans ? calloc(n, sizeof(*page->measured)) : NULL;
  int64_t(*change)[LADE_N_OWNERS] = calloc(n, sizeof(*change));
  int status = page->bytes && page->predicted && change && (page->measured || !spans) ? 0 : -ENOMEM;
  if (!status)
    status = lade_program_simulate(program, page->info->prices, page->predicted);
  if (!status) {
    memory_sum(page, change);
    for (int i = 0; i < program->n_instrs; i++)
      page->last_ns = LADE_MAX(page->last_ns, page->predicted[i][1]);
    if (spans)
      measured_copy(page, spans);
  }
  free(change);
  return status;
}

/* ---- memory ---- */

static double y_of(const struct run_page *page, uint64_t bytes)
{
  return TOP + HEIGHT * (1 - (double)bytes / (double)LADE_MAX(page->peak_bytes, 1));
}

/* Write the area of owners [0, @owner]; those above it are drawn first. */
static void area_write(FILE *file, const struct run_page *page, int owner)
{
  fprintf(file, "<polygon fill=\"%s\" points=\"%d,%d ", owner_colors[owner], LEFT, TOP + HEIGHT);
  for (int column = 0; column < page->n_columns; column++) {
    uint64_t sum = 0;
    for (int below = 0; below <= owner; below++)
      sum += page->bytes[column][below];
    for (int side = 0; side < 2; side++)
      fprintf(file, "%.1f,%.1f ", LEFT + (double)COLUMNS * (column + side) / page->n_columns, y_of(page, sum));
  }
  fprintf(file, "%d,%d\"/>\n", LEFT + COLUMNS, TOP + HEIGHT);
}

static void memory_write(FILE *file, const struct run_page *page)
{
  char size[32];
  fprintf(file, "<h2>Device memory over the step's instructions</h2>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
                "viewBox=\"0 0 %d %d\" font-size=\"12\">\n", LEFT + COLUMNS + 10, TOP + HEIGHT + 24);
  for (int owner = LADE_N_OWNERS - 1; owner >= 0; owner--)
    area_write(file, page, owner);
  for (int tick = 0; tick <= 4; tick++) {
    const uint64_t bytes = page->peak_bytes / 4 * (uint64_t)tick;
    fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ccc\"/>"
                  "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            LEFT, LEFT + COLUMNS, y_of(page, bytes), y_of(page, bytes), LEFT - 6, y_of(page, bytes) + 4,
            lade_size_format(bytes, size, sizeof(size)));
  }
  fprintf(file, "<text x=\"%d\" y=\"%d\">instruction 1</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d</text>\n"
                "</svg>\n<table class=\"owners\">\n<tr><th></th><th>owner</th><th>at the peak</th></tr>\n",
          LEFT, TOP + HEIGHT + 18, LEFT + COLUMNS, TOP + HEIGHT + 18, page->program->n_instrs);
  const uint64_t *now = page->bytes[(int64_t)page->peak * page->n_columns / page->program->n_instrs];
  for (int owner = 0; owner < LADE_N_OWNERS; owner++)
    if (now[owner])
      fprintf(file, "<tr><td style=\"color:%s\">&#9632;</td><td>%s</td><td>%s</td></tr>\n", owner_colors[owner],
              lade_owner_name((enum lade_owner)owner), lade_size_format(now[owner], size, sizeof(size)));
  fputs("</table>\n", file);
}

/* ---- holders ---- */

/* Return the first value that an instruction makes in buffer @b; -1: none. */
static int tensor_in(const struct lade_program *program, int b)
{
  for (int k = 0; k < program->n_operands; k++)
    if (program->operands[k].buffer == b && program->operands[k].makes.tensor >= 0 &&
        program->operands[k].access & LADE_MAKES)
      return program->operands[k].makes.tensor;
  return -1;
}

/* List in @held the largest buffers that are live at the peak, largest first. Return their number. */
static int holders_find(const struct run_page *page, int held[HOLDERS_MAX])
{
  const struct lade_buffer *buffers = page->program->buffers;
  int n = 0;
  for (int b = 0; b < page->program->n_buffers; b++) {
    if (buffers[b].space != LADE_DEVICE || buffers[b].first > page->peak || buffers[b].last < page->peak)
      continue;
    if (n == HOLDERS_MAX && buffers[held[n - 1]].bytes >= buffers[b].bytes)
      continue;
    int at = n < HOLDERS_MAX ? n++ : n - 1;
    for (; at > 0 && buffers[held[at - 1]].bytes < buffers[b].bytes; at--)
      held[at] = held[at - 1];
    held[at] = b;
  }
  return n;
}

static void holders_write(FILE *file, const struct run_page *page)
{
  int held[HOLDERS_MAX], n = holders_find(page, held);
  char size[32], name[LADE_NAME_BYTES + 16];
  fprintf(file, "<h2>Largest buffers at the peak, instruction %d</h2>\n<table class=\"holders\">\n"
                "<tr><th>value</th><th>owner</th><th>bytes</th><th></th><th>instructions</th></tr>\n", page->peak + 1);
  for (int k = 0; k < n; k++) {
    const struct lade_buffer *buffer = &page->program->buffers[held[k]];
    const int tensor = tensor_in(page->program, held[k]);
    fprintf(file, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%" PRIu64 "</td><td>%d to %d</td></tr>\n",
            tensor < 0 ? "-" : lade_value_name(page->program->graph, tensor, name), lade_owner_name(buffer->owner),
            lade_size_format(buffer->bytes, size, sizeof(size)), buffer->bytes, buffer->first + 1, buffer->last + 1);
  }
  fputs("</table>\n", file);
}

/* ---- queues ---- */

static bool queue_has_work(const struct run_page *page, int64_t (*spans)[2], int queue)
{
  bool has_work = false;
  for (int i = 0; i < page->program->n_instrs && !has_work; i++)
    has_work = page->program->instrs[i].queue == queue && spans[i][1] > spans[i][0];
  return has_work;
}

/* Draw the work of @queue as bars at height @y. */
static void bars_write(FILE *file, const struct run_page *page, int64_t (*spans)[2], int queue, int y,
                       const char *color)
{
  const double scale = COLUMNS / (double)LADE_MAX(page->last_ns, 1);
  double from = -1, to = -1;
  for (int i = 0; i <= page->program->n_instrs; i++) {
    const bool is_end = i == page->program->n_instrs;
    if (!is_end && (page->program->instrs[i].queue != queue || spans[i][1] <= spans[i][0]))
      continue;
    const double x = is_end ? 0 : (double)spans[i][0] * scale, end = is_end ? 0 : (double)spans[i][1] * scale;
    if (!is_end && from >= 0 && x >= from && x - to < 0.5) {
      to = LADE_MAX(to, end);
      continue;
    }
    if (from >= 0)
      fprintf(file, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", LEFT + from, y,
              LADE_MAX(to - from, 0.3), ROW - 2, color);
    from = x;
    to = end;
  }
}

static void queues_write(FILE *file, const struct run_page *page)
{
  int n_rows = 0;
  for (int queue = 0; queue < LADE_N_QUEUES; queue++)
    n_rows += queue_has_work(page, page->predicted, queue);
  fprintf(file, "<h2>Queues over %.2f ms</h2>\n<p>Blue: predicted%s.</p>\n<svg "
                "xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-size=\"12\">\n",
          (double)page->last_ns / 1e6, page->measured ? "; orange: measured in the last step" : "",
          LEFT + COLUMNS + 10, n_rows * 3 * ROW + 4);
  for (int queue = 0, y = 4; queue < LADE_N_QUEUES; queue++) {
    if (!queue_has_work(page, page->predicted, queue))
      continue;
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 6, y + ROW + 3,
            lade_queue_name((enum lade_queue_id)queue));
    bars_write(file, page, page->predicted, queue, y, "#4e79a7");
    if (page->measured)
      bars_write(file, page, page->measured, queue, y + ROW, "#f28e2b");
    y += 3 * ROW;
  }
  fputs("</svg>\n", file);
}

int run_page_write(const char *path, const struct lade_session_info *info, struct lade_error *error)
{
  struct run_page page = {.info = info};
  char *text = NULL;
  size_t n_bytes = 0;
  FILE *file = open_memstream(&text, &n_bytes);
  int status = file ? page_make(&page) : -ENOMEM;
  if (!status) {
    fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head><meta charset=\"utf-8\"/>"
          "<title>A training step</title>\n<style>body{font-family:sans-serif;max-width:1100px;margin:2em auto}"
          "td,th{padding:0 1em 0 0;text-align:left}</style></head>\n<body>\n<h1>A training step</h1>\n", file);
    memory_write(file, &page);
    holders_write(file, &page);
    queues_write(file, &page);
    fputs("</body>\n</html>\n", file);
  }
  bool is_bad = file && ferror(file);
  is_bad = (file && fclose(file)) || is_bad;
  if (!status && is_bad)
    status = -ENOMEM;
  status = status ? lade_error_set(error, status, "--html %s: it could not be drawn: %s", path, strerror(-status))
                  : lade_file_replace(path, text, n_bytes, error);
  page_finish(&page);
  free(text);
  return status;
}
