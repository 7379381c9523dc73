/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's residency for people: for each unit what waits where, its bytes, its price in time, and why.
 */
#ifndef LADE_PLACES_H
#define LADE_PLACES_H

#include <stdio.h>

#include "run/session.h"

#define PLACE_REASON_BYTES 160

struct place {
  int unit;
  char what[LADE_NAME_BYTES]; /* the tensor's name within its unit, "parameters" or "optimizer state" */
  const char *where;          /* "keep", "recompute", "host", "store"; of parameters "device", "host", "store" */
  bool is_spilled;            /* leaves the device between its other uses too */
  uint64_t bytes;             /* of one microbatch; of parameters and optimizer state what this rank holds */
  double seconds;             /* that its recomputing, copies or updates keep queues busy in a step */
  char reason[PLACE_REASON_BYTES];
};

struct places {
  struct place *items; /* by unit, in the order of the graph */
  int n, capacity;
};

/*
 * All places of the plan in @info. @recipe and @pins_path are as the session had them: what a person fixed says so.
 * -ENOMEM and those of lade_pins_load. Finish @ret_places either way.
 */
int places_make(const struct lade_session_info *info, enum lade_recipe recipe, const char *pins_path,
                struct lade_error *error, struct places *ret_places);
void places_finish(struct places *places);

/* Print units that are alike as one. */
void places_print(const struct places *places, const struct lade_graph *graph, FILE *file);

struct json_t;
/* [{"unit": "h.0", "choices": [{"what", "where", "bytes", "seconds", "reason"}, ...]}, ...] */
struct json_t *places_json(const struct places *places, const struct lade_graph *graph);

#endif
