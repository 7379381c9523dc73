/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --graph FILE`: plan a step that is described as a graph of opaque ops (lade/graph_plan.h).
 */
#ifndef LADE_TOOLS_PLAN_GRAPH_H
#define LADE_TOOLS_PLAN_GRAPH_H

#include "lade/graph_plan.h"
#include "tools/cli/options.h"

/* A graph, and the parameters of a plan of it as the options give them. */
struct graph_request {
  const struct options *options;
  lade_graph *graph;
  const char *heading; /* lines before the figures; NULL: none */
  struct json_t *fields; /* borrowed; added to the JSON's; NULL: none */
  uint64_t unconstrained_bytes, floor_bytes;
  uint64_t device_bytes; /* of --machine; 0: none is named */
  struct lade_graph_plan_params params;
};

/* Plan as the options say, print, and return the exit code. */
int plan_graph(const struct options *options);

/*
 * Plan the graph of @request, which the caller made and destroys, as the options say; print, and return the exit code.
 */
int plan_graph_made(struct graph_request *request);

/* Plan at several budgets, draw --svg, and print. 0 or a negative errno with its line. */
int plan_graph_frontier(const struct graph_request *request, struct lade_error *error);

#endif
