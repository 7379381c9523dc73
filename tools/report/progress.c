/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the progress of a run. The rate shown is smoothed over the last dozen steps. The time left follows from the
 * mean since the start, evaluations included, because they come again. "stall" is the part of the step in which the
 * compute queue had nothing to run, with the queue that caused most of it. "speed of light" is the time of the step's
 * necessary matmuls at the measured matmul rate, over the time of the step.
 */
#include "tools/report/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "base/base.h"
#include "tools/cli/terminal.h"

#define TERMINAL_PERIOD_NS 100000000   /* ten updates a second are as many as a user can read */
#define FILE_PERIOD_NS 10000000000
#define NOTE_AFTER_NS 2000000000       /* work that ends sooner needs no line in a file */
#define BLAME_MIN 0.01 /* share of the step; a smaller stall names no queue */

void progress_init(struct progress *progress, bool is_quiet, int64_t first_step, int64_t n_steps)
{
  *progress = (struct progress){.is_quiet = is_quiet, .is_terminal = terminal_is(stderr), .start_ns = lade_now_ns(),
                                .first_step = first_step, .n_steps = n_steps};
}

static int terminal_columns(void)
{
  struct winsize size = {0};
  return ioctl(fileno(stderr), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

static void line_show(struct progress *progress, const char *line)
{
  if (progress->is_terminal)
    fprintf(stderr, "\r\033[K%.*s", terminal_columns() - 1, line);
  else
    fprintf(stderr, "%s\n", line);
  progress->has_line = progress->is_terminal;
  fflush(stderr);
}

static void duration_format(double seconds, char *text, size_t text_bytes)
{
  long s = (long)(seconds + 0.5);
  if (s >= 3600)
    snprintf(text, text_bytes, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else
    snprintf(text, text_bytes, "%ld:%02ld", s / 60, s % 60);
}

static void line_format(const struct progress *progress, const struct lade_session_info *info,
                        const struct lade_step_report *report, int64_t now_ns, char *line, size_t line_bytes)
{
  char left[32], peak[32], budget[32], speed_of_light[32] = "", loss[64] = "", stall[32] = "";
  int64_t n_done = report->step + 1 - progress->first_step;
  double wall_ns = (double)LADE_MAX(report->wall_ns, 1), tokens = (double)(info->batch * info->seq_len);
  double mean_ns = (double)(now_ns - progress->start_ns) / (double)n_done;
  double left_ns = mean_ns * (double)(progress->n_steps - report->step - 1);
  duration_format(left_ns / 1e9, left, sizeof(left));
  lade_size_format(info->measured_peak_bytes, peak, sizeof(peak));
  lade_size_format(info->budget_bytes, budget, sizeof(budget));
  if (info->roofline_step_ns > 0)
    snprintf(speed_of_light, sizeof(speed_of_light), "  speed of light %.0f %%",
             100 * info->roofline_step_ns / wall_ns);
  if (isfinite(report->loss)) /* a dry run has none */
    snprintf(loss, sizeof(loss), "  loss %.4f%s", report->loss, report->is_skipped ? " (skipped)" : "");
  int blamed = LADE_Q_COMPUTE;
  for (int queue = 0; queue < LADE_N_QUEUES; queue++)
    blamed = report->stall_ns[queue] > report->stall_ns[blamed] ? queue : blamed;
  if (blamed != LADE_Q_COMPUTE && (double)report->stall_ns[blamed] > BLAME_MIN * wall_ns)
    snprintf(stall, sizeof(stall), " (%s)", lade_queue_name((enum lade_queue_id)blamed));
  snprintf(line, line_bytes, "step %lld/%lld%s  %.0f tokens/s  ETA %s  peak %s of %s  stall %.0f %%%s%s",
           (long long)report->step + 1, (long long)progress->n_steps, loss,
           tokens * 1e9 / progress->smooth_ns, left, peak, budget,
           100 * LADE_MAX(0, 1 - (double)report->busy_ns[LADE_Q_COMPUTE] / wall_ns), stall, speed_of_light);
}

void progress_step(struct progress *progress, const struct lade_session_info *info,
                   const struct lade_step_report *report)
{
  int64_t now_ns = lade_now_ns(), period_ns = progress->is_terminal ? TERMINAL_PERIOD_NS : FILE_PERIOD_NS;
  double wall_ns = (double)LADE_MAX(report->wall_ns, 1);
  progress->smooth_ns = progress->smooth_ns > 0 ? 0.9 * progress->smooth_ns + 0.1 * wall_ns : wall_ns;
  bool is_last = report->step + 1 == progress->n_steps;
  if (progress->is_quiet || (now_ns - progress->shown_ns < period_ns && !is_last))
    return;
  char line[256];
  line_format(progress, info, report, now_ns, line, sizeof(line));
  line_show(progress, line);
  progress->shown_ns = now_ns;
}

void progress_say(struct progress *progress, const char *format, ...)
{
  va_list args;
  if (progress->is_quiet)
    return;
  progress_finish(progress);
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

void progress_note(struct progress *progress, const char *format, ...)
{
  const int64_t now_ns = lade_now_ns();
  const bool is_early = now_ns - progress->start_ns < NOTE_AFTER_NS || now_ns - progress->shown_ns < FILE_PERIOD_NS;
  char line[256];
  va_list args;
  if (progress->is_quiet || (!progress->is_terminal && is_early))
    return;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  line_show(progress, line);
  progress->shown_ns = now_ns;
}

void progress_clear(struct progress *progress)
{
  if (progress->has_line)
    fputs("\r\033[K", stderr);
  progress->has_line = false;
}

void progress_finish(struct progress *progress)
{
  if (progress->has_line)
    fputc('\n', stderr);
  progress->has_line = false;
}
