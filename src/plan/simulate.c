/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long will a step take? Each queue runs its instructions one after another, each as soon as its waits
 * are met. On a device of its own an instruction takes its predicted time. On a unified device all queues
 * share the machine's cores: then every running instruction wants a number of cores (kernels and updates
 * all of them, a copy one, a transfer to the drive a fraction for its checksums), and when
 * together they want more than there are, all slow down in proportion: a fluid model, like the
 * time slices of the operating system in the limit.
 *
 * The walk goes from one completion to the next; between two the speeds are constant. O(instructions *
 * queues). It ends because a wait always names an earlier instruction of the list.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/build.h"

#define TRANSFER_CORES 0.25 /* a drive works by itself; XXH3 at 10 GB/s and up beside 1-3 GB/s of transfer */

struct lane {
  int32_t *instrs; /* of one queue, in order */
  int n, next;
  int32_t running;  /* -1: none */
  double left_ns, cores;
};

struct fluid {
  const struct lade_program *program;
  const struct lade_prices *prices;
  struct lane lanes[LADE_N_QUEUES];
  bool *is_done;
  double now_ns;
};

static double cores_wanted(const struct fluid *f, const struct lade_instr *instr)
{
  switch (instr->kind) {
  case LADE_INSTR_COPY:
  case LADE_INSTR_COLLECTIVE:
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV:
    return f->prices->copy_cores;
  case LADE_INSTR_READ:
  case LADE_INSTR_WRITE:
    return TRANSFER_CORES;
  case LADE_INSTR_UPDATE:
    return instr->is_streamed ? 1 : f->prices->n_cores;
  default:
    return f->prices->n_cores;
  }
}

static bool is_ready(const struct fluid *f, const struct lade_instr *instr)
{
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] >= 0 && !f->is_done[instr->waits[q]])
      return false;
  }
  return true;
}

static void lane_start(struct fluid *f, struct lane *lane, int64_t (*spans)[2])
{
  if (lane->running >= 0 || lane->next == lane->n)
    return;
  int32_t at = lane->instrs[lane->next];
  const struct lade_instr *instr = &f->program->instrs[at];
  if (!is_ready(f, instr))
    return;
  lane->next++;
  lane->running = at;
  lane->left_ns = (double)instr->predicted_ns;
  lane->cores = cores_wanted(f, instr);
  if (spans)
    spans[at][0] = (int64_t)f->now_ns;
}

/* Run until the next completion. False when nothing runs. */
static bool fluid_advance(struct fluid *f, struct lade_program *program, int64_t (*spans)[2])
{
  double cores = 0, least_ns = -1;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    lane_start(f, &f->lanes[q], spans);
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const struct lane *lane = &f->lanes[q];
    if (lane->running < 0)
      continue;
    cores += lane->cores;
    if (least_ns < 0 || lane->left_ns < least_ns)
      least_ns = lane->left_ns;
  }
  if (least_ns < 0)
    return false;
  double speed = f->prices->n_cores > 0 && cores > f->prices->n_cores ? f->prices->n_cores / cores : 1;
  f->now_ns += least_ns / speed;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    struct lane *lane = &f->lanes[q];
    if (lane->running < 0)
      continue;
    lane->left_ns -= least_ns;
    program->predicted_busy_ns[q] += (int64_t)(least_ns / speed);
    if (lane->left_ns > 0.5)
      continue;
    f->is_done[lane->running] = true;
    if (spans)
      spans[lane->running][1] = (int64_t)f->now_ns;
    lane->running = -1;
  }
  return true;
}

static int lanes_init(struct fluid *f)
{
  const struct lade_program *program = f->program;
  for (int i = 0; i < program->n_instrs; i++)
    f->lanes[program->instrs[i].queue].n++;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    f->lanes[q].running = -1;
    f->lanes[q].instrs = malloc(((size_t)f->lanes[q].n + 1) * sizeof(int32_t));
    if (!f->lanes[q].instrs)
      return -ENOMEM;
    f->lanes[q].n = 0;
  }
  for (int i = 0; i < program->n_instrs; i++) {
    struct lane *lane = &f->lanes[program->instrs[i].queue];
    lane->instrs[lane->n++] = i;
  }
  return 0;
}

int lade_program_simulate(struct lade_program *program, const struct lade_prices *prices, int64_t (*ret_spans)[2])
{
  struct fluid f = {.program = program, .prices = prices};
  f.is_done = calloc((size_t)program->n_instrs + 1, sizeof(*f.is_done));
  int status = f.is_done ? lanes_init(&f) : -ENOMEM;
  memset(program->predicted_busy_ns, 0, sizeof(program->predicted_busy_ns));
  while (!status && fluid_advance(&f, program, ret_spans))
    ;
  for (int q = 0; q < LADE_N_QUEUES && !status; q++)
    LADE_ASSERT(f.lanes[q].next == f.lanes[q].n);
  program->predicted_ns = (int64_t)f.now_ns;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    free(f.lanes[q].instrs);
  free(f.is_done);
  return status;
}
