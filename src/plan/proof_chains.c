/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof's last part: chains (program.h). Whoever runs a program may begin all of a chain where its first
 * instruction stands, and says that any of it is done when the last is. The walk has shown that waits order every
 * hazard; here it is shown that none of them is lost: nothing in a chain waits but the first, and nobody waits for any
 * but the last. Linear.
 */
#include <errno.h>
#include <stdlib.h>

#include "plan/proof.h"

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

/* @before: the instruction before @at on the compute queue, -1. */
static int chained_check(const struct proof *proof, int at, int before, const bool *is_awaited, bool has_waits)
{
  if (proof->program->instrs[at].queue != LADE_Q_COMPUTE || before < 0)
    return proof_fail(proof, at, -1, "is chained, and nothing is before it on the compute queue");
  if (has_waits)
    return proof_fail(proof, at, -1, "is chained, and waits when the others have begun");
  if (is_awaited[before])
    return proof_fail(proof, at, -1, "is chained to instruction %d, whose end others wait for", before);
  return 0;
}

int proof_chains(struct proof *proof)
{
  const struct lade_program *program = proof->program;
  bool *is_awaited = calloc((size_t)program->n_instrs, sizeof(*is_awaited));
  bool *has_waits = calloc((size_t)program->n_instrs, sizeof(*has_waits));
  int before = -1, status = is_awaited && has_waits ? 0 : -ENOMEM;
  for (int at = 0; at < program->n_instrs && !status; at++)
    has_waits[at] = waits_mark(&program->instrs[at], is_awaited);
  for (int at = 0; at < program->n_instrs && !status; at++) {
    if (program->instrs[at].is_chained)
      status = chained_check(proof, at, before, is_awaited, has_waits[at]);
    before = program->instrs[at].queue == LADE_Q_COMPUTE ? at : before;
  }
  free(is_awaited);
  free(has_waits);
  return status;
}
