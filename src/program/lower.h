/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lower the plan of a caller's own step (lade/graph_plan.h) to a program (program.h). The program has the instructions,
 * buffers with lifetimes, and operands with values that the builder of models makes too. So packer, waits, simulation
 * and proof serve both.
 *
 *   op, redo   a compute instruction on the queue that the graph names, with one operand for each storage that the op
 *              uses and one for its scratch
 *   put, get   a copy, or a transfer of the store; through a buffer on the host where the drive does not reach the
 *              device's memory
 *   drop       no instruction: the buffer's lifetime ends with its last operand
 *
 * A storage holds one value at a time: (storage, 0, version), with the versions of the graph (graph/graph.h). A write
 * of a part of a storage consumes its version and makes the next, unless no op has written the storage before.
 */
#ifndef LADE_LOWER_H
#define LADE_LOWER_H

#include "graph/graph.h"
#include "lade/graph_plan.h"
#include "program/program.h"

struct lade_lower_params {
  const struct lade_graph *graph; /* closed */
  const struct lade_graph_instr *instrs; /* a list that lade_graph_replay accepts */
  int n_instrs;
  struct lade_graph_path to_host, from_host, to_store, from_store;
  bool is_unified; /* the drive and the host reach device memory: no staging through the host */
};

/*
 * Make the program of a list; without offsets, waits and times, and not proved. The caller owns it; it borrows the
 * graph. -EINVAL for a list that uses an absent storage, or without an op; -EOVERFLOW: an op of more than 65,535
 * storages, or more operands than a program has; -ENOMEM. O(operands of all instructions). Any thread.
 */
int lade_program_lower(const struct lade_lower_params *params, struct lade_error *error,
                       struct lade_program **ret_program);

#endif
