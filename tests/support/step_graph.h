/* SPDX-License-Identifier: Apache-2.0 */
/* Draw random graphs of steps (lade/graph.h), and compare two graphs. */
#ifndef LADE_TESTS_STEP_GRAPH_H
#define LADE_TESTS_STEP_GRAPH_H

#include "graph/graph.h"

/*
 * Draw the closed graph @number: up to 19 storages and 39 ops with every kind of operand and hostile names. Their order
 * is random, except that a made storage is written before it is read. The caller destroys it.
 */
lade_graph *step_graph_draw(uint32_t number);

/* Fail the test unless two closed graphs hold the same. */
void step_graphs_compare(const lade_graph *a, const lade_graph *b);

#endif
