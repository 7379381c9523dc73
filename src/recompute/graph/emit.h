/* SPDX-License-Identifier: Apache-2.0 */
/* The list of instructions of a schedule. */
#ifndef LADE_REMAT_EMIT_H
#define LADE_REMAT_EMIT_H

#include "lade/graph_plan.h"
#include "recompute/graph/schedule.h"

struct remat_list {
  LADE_ARRAY(struct lade_graph_instr) instrs;
};

/*
 * Replace @list by the instructions of @schedule: ops, redos, moves, and a drop after the last use of each value.
 * -ENOMEM.
 */
int remat_emit(struct remat_schedule *schedule, struct remat_list *list);

#endif
