/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof's last part: CUDA graphs (program.h). An executor may begin a whole graph at its first instruction, and
 * reports each member done when the last is. The walk has shown that waits order every hazard. This part shows that no
 * wait is lost: within a graph only the first instruction waits, and other instructions wait only for the last. Linear.
 */
#include <errno.h>
#include <stdlib.h>

#include "program/proof/proof.h"

static bool waits_mark(const struct lade_instr *instr, bool *is_awaited)
{
  bool has_waits = false;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] < 0)
      continue;
    is_awaited[instr->waits[q]] = true;
    has_waits = true;
  }
  return has_waits;
}

/* Check a member; @before: the instruction before @at on the compute queue, -1: none. */
static int member_check(const struct proof *proof, int at, int before, const bool *is_awaited, bool has_waits)
{
  if (proof->program->instrs[at].queue != LADE_Q_COMPUTE || before < 0)
    return proof_fail(proof, at, -1, "is in a CUDA graph, and nothing is before it on the compute queue");
  if (has_waits)
    return proof_fail(proof, at, -1, "is in a CUDA graph, and waits when the others have begun");
  if (is_awaited[before])
    return proof_fail(proof, at, -1, "is in the CUDA graph of instruction %d, whose end others wait for", before);
  return 0;
}

int proof_captures(struct proof *proof)
{
  const struct lade_program *program = proof->program;
  bool *is_awaited = calloc((size_t)program->n_instrs, sizeof(*is_awaited));
  bool *has_waits = calloc((size_t)program->n_instrs, sizeof(*has_waits));
  int before = -1, status = is_awaited && has_waits ? 0 : -ENOMEM;
  for (int at = 0; at < program->n_instrs && !status; at++)
    has_waits[at] = waits_mark(&program->instrs[at], is_awaited);
  for (int at = 0; at < program->n_instrs && !status; at++) {
    if (program->instrs[at].is_graph_member)
      status = member_check(proof, at, before, is_awaited, has_waits[at]);
    before = program->instrs[at].queue == LADE_Q_COMPUTE ? at : before;
  }
  free(is_awaited);
  free(has_waits);
  return status;
}
