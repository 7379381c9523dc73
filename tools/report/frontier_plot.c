/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draw a frontier: the predicted step over the unconstrained one, against the device budget. The curve joins the plans
 * that were found; a plan of one budget is a plan of every larger one, so between two points the curve is a staircase.
 * The lower bound is dashed: no step lies below it.
 *
 * The axis of time begins at the unconstrained step, and the axis of budgets at the smallest one. The part of a
 * frontier that a user chooses from is often a tenth of the whole range.
 */
#include "tools/report/frontier_plot.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/file.h"
#include "tools/report/report.h"
#include "tools/report/xml_text.h"

enum { AREA_WIDTH = 720, AREA_HEIGHT = 400, AREA_LEFT = 80, AREA_TOP = 50, AREA_FOOT = 60, AREA_RIGHT = 40, TICKS = 5 };

#define CURVE_COLOR "#2471a3"
#define BOUND_COLOR "#c0392b"
#define RATIO_MIN 0.01 /* of the axis of time, so that a frontier without any slowdown has one */

struct plot_axes {
  uint64_t min_bytes, max_bytes;
  double max_ratio; /* the axis begins at 1 */
  double base_ns;
};

static double ratio_of(const struct plot_axes *axes, int64_t ns)
{
  return axes->base_ns > 0 ? (double)ns / axes->base_ns : 1;
}

static struct plot_axes axes_make(const struct frontier_plot *plot)
{
  struct plot_axes axes = {.min_bytes = plot->points[0].budget_bytes,
                           .max_bytes = plot->points[plot->n_points - 1].budget_bytes,
                           .max_ratio = 1 + RATIO_MIN, .base_ns = (double)plot->base_ns};
  for (int i = 0; i < plot->n_points; i++)
    axes.max_ratio = LADE_MAX(axes.max_ratio, ratio_of(&axes, plot->points[i].predicted_step_ns));
  return axes;
}

static double x_of(const struct plot_axes *axes, uint64_t bytes)
{
  const double range = (double)(axes->max_bytes - axes->min_bytes);
  return AREA_LEFT + (range > 0 ? AREA_WIDTH * (double)(bytes - axes->min_bytes) / range : AREA_WIDTH / 2.0);
}

static double y_of(const struct plot_axes *axes, double ratio)
{
  return AREA_TOP + AREA_HEIGHT * (1 - (ratio - 1) / (axes->max_ratio - 1));
}

static void axes_write(FILE *file, const struct plot_axes *axes)
{
  const int bottom = AREA_TOP + AREA_HEIGHT, right = AREA_LEFT + AREA_WIDTH;
  char size[32];
  for (int i = 0; i <= TICKS; i++) {
    const double ratio = 1 + (axes->max_ratio - 1) * i / TICKS, y = y_of(axes, ratio);
    fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", AREA_LEFT, right, y, y);
    fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3f</text>\n", AREA_LEFT - 8, y + 4, ratio);
  }
  const uint64_t range = axes->max_bytes - axes->min_bytes;
  for (int i = 0; i <= (range ? TICKS : 0); i++) {
    const uint64_t bytes = axes->min_bytes + (uint64_t)((double)range * i / TICKS);
    const double x = x_of(axes, LADE_MIN(bytes, axes->max_bytes));
    fprintf(file, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#ddd\"/>\n", x, x, AREA_TOP, bottom);
    fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, bottom + 20,
            lade_size_format(bytes, size, sizeof(size)));
  }
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">device budget</text>\n", AREA_LEFT + AREA_WIDTH / 2,
          bottom + 44);
  fprintf(file, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">step / unconstrained step"
                "</text>\n", AREA_TOP + AREA_HEIGHT / 2);
}

/* Draw the plans, and the staircase between them. */
static void curve_write(FILE *file, const struct frontier_plot *plot, const struct plot_axes *axes)
{
  fputs("<polyline fill=\"none\" stroke=\"" CURVE_COLOR "\" stroke-width=\"2\" points=\"", file);
  for (int i = 0; i < plot->n_points; i++) {
    const double x = x_of(axes, plot->points[i].budget_bytes);
    if (i)
      fprintf(file, " %.1f,%.1f ", x, y_of(axes, ratio_of(axes, plot->points[i - 1].predicted_step_ns)));
    fprintf(file, "%.1f,%.1f", x, y_of(axes, ratio_of(axes, plot->points[i].predicted_step_ns)));
  }
  fputs("\"/>\n", file);
  for (int i = 0; i < plot->n_points; i++)
    fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"" CURVE_COLOR "\"/>\n",
            x_of(axes, plot->points[i].budget_bytes),
            y_of(axes, ratio_of(axes, plot->points[i].predicted_step_ns)));
}

static void bound_write(FILE *file, const struct frontier_plot *plot, const struct plot_axes *axes)
{
  fputs("<polyline fill=\"none\" stroke=\"" BOUND_COLOR "\" stroke-dasharray=\"6 4\" points=\"", file);
  for (int i = 0; i < plot->n_points; i++) {
    if (plot->points[i].bound_ns < INT64_MAX)
      fprintf(file, "%s%.1f,%.1f", i ? " " : "", x_of(axes, plot->points[i].budget_bytes),
              y_of(axes, ratio_of(axes, plot->points[i].bound_ns)));
  }
  fputs("\"/>\n", file);
}

static void plot_draw(FILE *file, const struct frontier_plot *plot, const char *title)
{
  const struct plot_axes axes = axes_make(plot);
  const int legend = AREA_LEFT + AREA_WIDTH;
  fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
                "font-size=\"12\">\n", AREA_LEFT + AREA_WIDTH + AREA_RIGHT, AREA_TOP + AREA_HEIGHT + AREA_FOOT);
  fprintf(file, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"24\" font-size=\"16\">",
          AREA_LEFT);
  xml_text_write(file, title);
  fputs("</text>\n", file);
  axes_write(file, &axes);
  bound_write(file, plot, &axes);
  curve_write(file, plot, &axes);
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"" CURVE_COLOR "\">plans, predicted</text>\n",
          legend, AREA_TOP + 16);
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"" BOUND_COLOR "\">lower bound</text>\n</svg>\n",
          legend, AREA_TOP + 32);
}

int frontier_plot_write(const struct frontier_plot *plot, const char *path, struct lade_error *error)
{
  char *text = NULL;
  size_t n_bytes = 0;
  json_t *title = json_text(plot->title); /* valid UTF-8, whatever the title's bytes */
  FILE *file = title ? open_memstream(&text, &n_bytes) : NULL;
  if (file)
    plot_draw(file, plot, json_string_value(title));
  bool is_bad = !file || ferror(file);
  is_bad = (file && fclose(file)) || is_bad;
  const int status = is_bad ? lade_error_set(error, -ENOMEM, "--svg %s: no memory to draw it", path)
                            : lade_file_replace(path, text, n_bytes, error);
  json_decref(title);
  free(text);
  return status;
}
