/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's residency as a report: for each unit the place of each value, its bytes, its price in time, and the reason.
 */
#ifndef LADE_PLACEMENT_REPORT_H
#define LADE_PLACEMENT_REPORT_H

#include <stdio.h>

#include "run/session.h"

#define PLACEMENT_REASON_BYTES 160 /* one line of text */

struct placement {
  int unit;
  char name[LADE_NAME_BYTES]; /* the tensor's name within its unit, "parameters" or "optimizer state" */
  const char *where;          /* "keep", "recompute", "host", "store"; of parameters "device", "host", "store" */
  bool is_spilled;            /* also leaves the device between its other uses */
  uint64_t bytes;             /* of one microbatch; of parameters and optimizer state this rank's */
  double seconds;             /* busy time of queues in a step for its recompute, copies or updates */
  char reason[PLACEMENT_REASON_BYTES];
};

struct placement_report {
  struct placement *items; /* by unit, in graph order */
  int n, capacity;
};

/*
 * Return all places of the plan in @info. @recipe and @overrides_path are the session's; they mark the choices that the
 * user fixed. -ENOMEM and errors of lade_residency_overrides_load. Finish @ret_places in every case.
 */
int placement_report_make(const struct lade_session_info *info, enum lade_recipe recipe, const char *overrides_path,
                          struct lade_error *error, struct placement_report *ret_places);
void placement_report_finish(struct placement_report *places);

/* Print the report; units with equal choices share their lines. */
void placement_report_print(const struct placement_report *places, const struct lade_model_graph *graph, FILE *file);

struct json_t;
/* Return [{"unit": "h.0", "choices": [{"what", "where", "bytes", "seconds", "reason"}, ...]}, ...] */
struct json_t *placement_report_json(const struct placement_report *places, const struct lade_model_graph *graph);

#endif
