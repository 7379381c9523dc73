/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a run: the medians of its steps, and its summary as JSON and as a table.
 */
#ifndef LADE_REPORT_H
#define LADE_REPORT_H

#include <stdio.h>

#include "run/session.h"

#define REPORT_SCHEMA_VERSION 1 /* of --json; rises when a field changes its meaning */

/* Times of the newest steps of a run. Columns: the whole step, the busy time of each queue, the stall by each queue. */
#define HISTORY_STALLS (1 + LADE_N_QUEUES) /* the first column of stalls, after the step and busy times by queue */
#define HISTORY_COLUMNS (HISTORY_STALLS + LADE_N_QUEUES)
struct history {
  int64_t *ns[HISTORY_COLUMNS];
  int64_t n, capacity; /* n counts all steps; the newest @capacity of them are kept */
};

/* Allocate space for @n_steps, at most some tens of thousands. -ENOMEM. Finish it in every case. */
int history_init(struct history *history, int64_t n_steps);
void history_finish(struct history *history);
void history_add(struct history *history, const struct lade_step_report *report);

/*
 * Return medians in seconds over the kept steps. The run's first step is left out if there are others, because its
 * caches are cold. Zeros without any step.
 */
void history_medians(const struct history *history, double ret_seconds[HISTORY_COLUMNS]);

/* Return the time that computing waits for other stages, over the rest of the step; both from medians. */
double history_bubble(const double seconds[HISTORY_COLUMNS]);

struct summary {
  struct lade_session_info info; /* at the end of the run */
  enum lade_dtype dtype;
  bool is_dry;
  double train_loss, val_loss; /* of the last step, of the last evaluation; NAN: none */
  uint64_t params_digest;
  double seconds[HISTORY_COLUMNS]; /* measured, or simulated when dry */
  double bubble; /* several ranks: history_bubble of the worst stage; NAN: one rank */
  const uint64_t *planned_peaks, *measured_peaks; /* of each rank; NULL: not gathered */
  uint64_t resident_peak_bytes; /* since step 0, of the process with the most of any rank; 0: unknown, or dry */
  uint64_t resident_open_bytes; /* before step 0, while the first rank measured the machine and planned */
  bool is_described; /* times were predicted for the machine of --machine */
};

struct json_t;

/* Return the summary as JSON; the caller unrefs it. NULL: out of memory. */
struct json_t *summary_json(const struct summary *summary);
void summary_print(const struct summary *summary, FILE *file);

/* Return a number, or null for a value that JSON cannot express. */
struct json_t *json_number(double value);
struct json_t *json_bytes(uint64_t bytes);
/* Return a string; invalid UTF-8, as in paths, becomes U+FFFD. */
struct json_t *json_text(const char *text);
/* Return 16 hexadecimal digits. */
struct json_t *json_digest(uint64_t digest);
/* Write the rate of the drive at the step's mix of reads and writes, and its kind, to @text; return @text. */
const char *drive_rate_format(const struct lade_session_info *info, char *text, size_t text_bytes);
/*
 * Print a step's traffic to and from the drive, its effect on the drive's life, and the run's share of the drive's
 * space and rate. Two lines; nothing without a store. @step_seconds is measured or predicted.
 */
void store_traffic_print(const struct lade_session_info *info, double step_seconds, FILE *file);

/* Print the memory in use on the GPU outside the arena, and its takers; nothing without a GPU. */
void outside_print(const struct lade_session_info *info, FILE *file);
/*
 * Set "outside_bytes", "outside" with the same by "context", "kernels", "nccl" and "others", and "outside_grown_bytes",
 * which came into use later.
 */
void outside_set(struct json_t *object, const struct lade_session_info *info);

/*
 * Print the layout of several ranks, the rank of these figures, and the bytes that it sends in a step. Nothing for one
 * rank.
 */
void layout_print(const struct lade_session_info *info, FILE *file);
/* Set "comm_bytes" and "comm_calls" of a step, by axis. */
void comm_set(struct json_t *object, const struct lade_session_info *info);

/* Set "ranks" and "layout"; with several ranks also "rank" and comm_set's. */
void layout_set(struct json_t *object, const struct lade_session_info *info);

/* Return {"compute": seconds, ...} by queue; queues between ranks only with several ranks. */
struct json_t *json_queue_seconds(const double seconds[LADE_N_QUEUES], const struct lade_layout *layout);

/* Print @object (NULL: out of memory) on stdout and unref it. -ENOMEM; main checks stdout for write errors. */
int json_print(struct json_t *object);

/* Write "12.3 ms" or "4.56 s" into @text. Return @text. */
char *seconds_format(double seconds, char *text, size_t text_bytes);

#endif
