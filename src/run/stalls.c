/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose fault is it when the compute queue stands still? For each gap between two of its instructions the chain of
 * causes is followed backwards: what an instruction waited for is, of its waits and of what stood before it on its own
 * queue, the one that ended last. The time that it ran inside the gap is its queue's; what came before that is looked
 * for one cause further, until the gap is used up. So a copy that came late because the drive was late counts for the
 * drive. What nobody else caused (launches) is the compute queue's own. The end of a step, when all that is left are
 * other queues, is a gap like any other.
 *
 * The parts add up to the step's time without that of compute instructions. Linear in instructions, but for chains,
 * which are as long as the work that fits into a gap.
 */
#include <errno.h>
#include <stdlib.h>

#include "run/executor_internal.h"

/* Of all that @at waited for, what ended last; -1: nothing. */
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

/* Nothing was computed from @from_ns until @at could begin, at @to_ns. */
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

/* All that came after the last compute instruction, which ended at @from_ns. */
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

/* What stands before each instruction on its queue. */
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
  struct lade_program timed = *program; /* the simulator notes its times in it */
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
