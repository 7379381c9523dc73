/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of steps (lade/graph.h), drawn; and the comparison of two graphs. */
#ifndef LADE_TESTS_STEP_GRAPH_H
#define LADE_TESTS_STEP_GRAPH_H

#include "graph/graph.h"

/*
 * Draw the closed graph @number: up to 19 storages and 39 ops with every kind of operand, hostile names, and no order
 * but that a made storage is written before it is read. The caller destroys it.
 */
lade_graph *step_graph_draw(uint32_t number);

/* Fail the test unless two closed graphs hold the same. */
void step_graphs_compare(const lade_graph *a, const lade_graph *b);

#endif
