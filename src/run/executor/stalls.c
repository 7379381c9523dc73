/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compute how long the compute queue was stalled in a step, and which queue caused each part of that time.
 *
 * Each gap between two compute instructions is attributed by following its causes backwards. The cause of an
 * instruction is the one that ended last of two sets: the instructions in its waits, and the instruction before it on
 * its own queue. The time that the cause ran inside the gap is charged to the cause's queue. Any earlier part of the
 * gap is charged in the same way, one cause further back, until the gap is used up. So a copy that is late because the
 * drive was late counts for the drive. Time without such a cause (launches) is charged to the last queue reached: the
 * compute queue when there is no cause at all. The time after the last compute instruction, when only other queues run,
 * is a gap too.
 *
 * The parts add up to the step's time minus the time of compute instructions. The cost is linear in instructions, plus
 * the lengths of the cause chains; a chain is as long as the work that fits into its gap.
 */
#include <errno.h>
#include <stdlib.h>

#include "run/executor/executor_internal.h"

/* Return the instruction that ended last of those that @at waited for; -1: it waited for none. */
static int cause_find(const struct bound_program *bound, int at)
{
  const struct lade_instr *instr = &bound->program->instrs[at];
  int cause = bound->before[at];
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    int wait = instr->waits[q];
    if (wait >= 0 && (cause < 0 || bound->spans[wait].end_ns > bound->spans[cause].end_ns))
      cause = wait;
  }
  return cause;
}

/* Charge the gap from @from_ns to @to_ns, where @at began, to queues. No compute instruction ran in it. */
static void gap_blame(const struct bound_program *bound, int at, int64_t from_ns, int64_t to_ns, int64_t *stall_ns)
{
  int queue = LADE_Q_COMPUTE;
  for (int cause = cause_find(bound, at); to_ns > from_ns && cause >= 0; cause = cause_find(bound, cause)) {
    const struct lade_span *span = &bound->spans[cause];
    if (span->end_ns <= from_ns)
      break;
    int64_t begin_ns = LADE_MIN(LADE_MAX(span->start_ns, from_ns), to_ns);
    queue = bound->program->instrs[cause].queue;
    stall_ns[queue] += to_ns - begin_ns;
    to_ns = begin_ns;
  }
  stall_ns[queue] += LADE_MAX(to_ns - from_ns, 0);
}

/* Charge the time after @from_ns, where the last compute instruction ended. */
static void end_blame(const struct bound_program *bound, const int32_t *last, int64_t from_ns, int64_t *stall_ns)
{
  int at = -1;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (last[q] >= 0 && (at < 0 || bound->spans[last[q]].end_ns > bound->spans[at].end_ns))
      at = last[q];
  }
  if (at < 0 || bound->spans[at].end_ns <= from_ns)
    return;
  int64_t begin_ns = LADE_MAX(bound->spans[at].start_ns, from_ns);
  stall_ns[bound->program->instrs[at].queue] += bound->spans[at].end_ns - begin_ns;
  gap_blame(bound, at, from_ns, begin_ns, stall_ns);
}

void executor_stalls_count(const struct bound_program *bound, int64_t start_ns, int64_t *ret_stall_ns)
{
  const struct lade_program *program = bound->program;
  int32_t last[LADE_N_QUEUES];
  int64_t end_ns = start_ns;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    last[q] = -1;
    ret_stall_ns[q] = 0;
  }
  for (int at = 0; at < program->n_instrs; at++) {
    const int queue = program->instrs[at].queue;
    last[queue] = at;
    if (queue != LADE_Q_COMPUTE)
      continue;
    gap_blame(bound, at, end_ns, bound->spans[at].start_ns, ret_stall_ns);
    end_ns = bound->spans[at].end_ns;
  }
  end_blame(bound, last, end_ns, ret_stall_ns);
}

/* Fill @before: for each instruction, the previous one on its queue, or -1. */
static void before_fill(const struct lade_program *program, int32_t *before)
{
  int32_t last[LADE_N_QUEUES];
  for (int q = 0; q < LADE_N_QUEUES; q++)
    last[q] = -1;
  for (int at = 0; at < program->n_instrs; at++) {
    before[at] = last[program->instrs[at].queue];
    last[program->instrs[at].queue] = at;
  }
}

int lade_program_stalls(const struct lade_program *program, const struct lade_prices *prices, int64_t *ret_stall_ns)
{
  const size_t n = (size_t)program->n_instrs + 1;
  struct lade_program timed = *program; /* the simulator writes its times into it */
  int64_t (*spans)[2] = calloc(n, sizeof(*spans));
  struct bound_program bound = {.program = program, .spans = calloc(n, sizeof(*bound.spans)),
                                .before = calloc(n, sizeof(*bound.before))};
  int status = spans && bound.spans && bound.before ? lade_program_simulate(&timed, prices, spans) : -ENOMEM;
  if (!status) {
    for (int at = 0; at < program->n_instrs; at++)
      bound.spans[at] = (struct lade_span){spans[at][0], spans[at][1]};
    before_fill(program, bound.before);
    executor_stalls_count(&bound, 0, ret_stall_ns);
  }
  free(spans);
  free(bound.spans);
  free(bound.before);
  return status;
}
