/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of a caller's own step, drawn by chance, for tests of plans. */
#ifndef LADE_TEST_RANDOM_GRAPH_H
#define LADE_TEST_RANDOM_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "lade/graph.h"

/* splitmix64 */
struct random_draw {
  uint64_t state;
};

uint64_t random_draw_next(struct random_draw *draw);

/* Return a number below @n, which is at least 1. */
int random_draw_below(struct random_draw *draw, int n);

struct random_graph_params {
  uint64_t seed;
  int n_layers;    /* ops of the forward pass; the backward pass has about as many */
  bool is_soup;    /* ops use any storages; else layers with skips, a backward pass and updates */
  bool is_written_once; /* every made storage has one maker */
  bool has_tiers;       /* some given storages live on the host or in the store */
};

/*
 * Make a closed graph: chains with skips, ops of several outputs, ops that may not run again, random draws. Storages
 * have several makers, by updates and by writes of parts; some are given and updated, some have no bytes, some are
 * kept. The caller destroys it. Fails the test if a call fails.
 */
lade_graph *random_graph_make(const struct random_graph_params *params);

#endif
