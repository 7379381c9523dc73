/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a run: the medians of its steps, and its summary as JSON and as a table.
 */
#ifndef LADE_REPORT_H
#define LADE_REPORT_H

#include <stdio.h>

#include "run/session.h"

#define REPORT_SCHEMA_VERSION 1

/* Times of the newest steps of a run: of the whole step, then of each queue. */
#define HISTORY_STALLS (1 + LADE_N_QUEUES) /* the first column of stalls, after the step and busy times by queue */
#define HISTORY_COLUMNS (HISTORY_STALLS + LADE_N_QUEUES)
struct history {
  int64_t *ns[HISTORY_COLUMNS];
  int64_t n, capacity; /* n counts all steps; the newest @capacity of them are kept */
};

/* Room for @n_steps, at most some tens of thousands. -ENOMEM. Finish it either way. */
int history_init(struct history *history, int64_t n_steps);
void history_finish(struct history *history);
void history_add(struct history *history, const struct lade_step_report *report);

/*
 * Medians in seconds over what is kept, the first step of the run left out (it finds everything cold) if there are
 * others; zeros without any step.
 */
void history_medians(const struct history *history, double ret_seconds[HISTORY_COLUMNS]);

/* What computing waited for other stages, over the rest of the step; of medians. */
double history_bubble(const double seconds[HISTORY_COLUMNS]);

struct summary {
  struct lade_session_info info; /* at the end */
  enum lade_dtype dtype;
  bool is_dry;
  double train_loss, val_loss; /* of the last step, of the last evaluation; NAN: none */
  uint64_t params_digest;
  double seconds[HISTORY_COLUMNS]; /* measured, or simulated when dry */
  double bubble; /* of several ranks: history_bubble of the stage that is worst off; NAN: one rank */
  const uint64_t *planned_peaks, *measured_peaks; /* of each rank; NULL: not asked for */
};

struct json_t;

/* NULL when memory is out; the caller gives its reference back. */
struct json_t *summary_json(const struct summary *summary);
void summary_print(const struct summary *summary, FILE *file);

/* A number, or null for one that JSON cannot say. */
struct json_t *json_number(double value);
struct json_t *json_bytes(uint64_t bytes);
/* A string; paths need not be UTF-8, and what is not becomes U+FFFD. */
struct json_t *json_text(const char *text);
/* 16 hexadecimal digits. */
struct json_t *json_digest(uint64_t digest);
/* Bytes that the drive moves in a second, read and written at once where that is known. */
double drive_rate(const struct lade_session_info *info);
/*
 * What a step moves to and from the drive, what that means for the drive's life, and what the run takes of the drive's
 * room and rate: two lines, nothing without a store. @step_seconds is measured or predicted.
 */
void store_traffic_print(const struct lade_session_info *info, double step_seconds, FILE *file);

/* Of a GPU: what of it is in use beside the arena, and by whom; nothing elsewhere. */
void outside_print(const struct lade_session_info *info, FILE *file);
/* "outside_bytes" and "outside", the same by "context", "kernels", "nccl" and "others". */
void outside_set(struct json_t *object, const struct lade_session_info *info);

/* Of several ranks: their layout, whose figures these are, and what this one sends in a step. Nothing for one rank. */
void layout_print(const struct lade_session_info *info, FILE *file);
/* "comm_bytes" and "comm_calls" of a step, by axis. */
void comm_set(struct json_t *object, const struct lade_session_info *info);

/* "ranks" and "layout"; with several ranks also "rank" and the above. */
void layout_set(struct json_t *object, const struct lade_session_info *info);

/* {"compute": seconds, ...} by queue; queues between ranks only where there are several. */
struct json_t *json_queue_seconds(const double seconds[LADE_N_QUEUES], const struct lade_layout *layout);

/*
 * Print @object (NULL: memory was out) on stdout and give its reference back. -ENOMEM; whether stdout took it is for
 * main to see.
 */
int json_print(struct json_t *object);

/* "12.3 ms", "4.56 s" into @text. */
char *seconds_format(double seconds, char *text, size_t text_bytes);

#endif
