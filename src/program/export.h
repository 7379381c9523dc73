/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Describe a model's step as a caller's graph (lade/graph.h). The planner of such graphs, and planners of other
 * projects, can then plan the step, and their plans can be compared with those of the planner of models.
 *
 * The graph has the ops, bytes and times of the program. An op is an instruction that computes, in the program's order.
 * A storage is a buffer. Resident buffers (parameters, optimizer state, gradients' sums, the batch) are given. An op
 * that works in place updates its storage. An op's workspace is its scratch. Ops with dropout draw. A copy of the batch
 * to the device is an op without reads that writes the batch. Results that the step copies to the host, such as the
 * loss, are kept storages.
 */
#ifndef LADE_EXPORT_H
#define LADE_EXPORT_H

#include "lade/graph.h"
#include "program/program.h"

/*
 * Make the closed graph of @program, which keeps all values on the device; the caller destroys it. -EINVAL for a
 * program of several ranks, or one that moves or recomputes values, with the first such instruction in @error; codes of
 * lade_graph_add_op; -ENOMEM. O(operands).
 */
int lade_program_export(const struct lade_program *program, struct lade_error *error, lade_graph **ret_graph);

#endif
