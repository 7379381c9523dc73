/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predict the time of a step. Each queue runs its instructions one after another, each as soon as its waits are met. On
 * a device of its own an instruction takes its predicted time. On a unified device all queues share the machine's
 * cores, in a fluid model. Every running instruction wants a number of cores: kernels and updates all of them, a copy
 * one, a transfer to the drive a fraction for its checksums. If together they want more cores than there are, all slow
 * down in proportion, as under an operating system's time slices in the limit.
 *
 * Links are shared in the same way. A copy, a collective or a send takes its part of each link's rate (cost.h) for the
 * share of its time in which bytes move. If the transfers of several queues together want more of a link than there is,
 * in one direction, those that use it slow down in proportion. So do the channels of collectives and the copy engines
 * of a device, which take turns packet by packet; a queue that served whole transfers in order would instead let a sum
 * of gradients hold up the next layer's collective. SimGrid and ASTRA-sim's network models share rates so too.
 *
 * The io queue keeps several transfers in flight (LADE_IO_AHEAD). When one begins, those after it begin too, as far as
 * their waits are met and they touch other bytes. Their bytes take their time one transfer after another, as on a drive
 * that is busy; their latency passes meanwhile.
 *
 * The simulation goes from one completion to the next; between two the speeds are constant. O(instructions * queues).
 * It ends because a wait always names an earlier instruction of the list.
 *
 * Stages together: the same simulation over the queues of all stages, each with cores and links of its own. A send and
 * its receive begin when both are the next of their queues and their waits are met, advance at the slower one's speed,
 * and end together. The model makes no choice: if two instructions can begin, both do. So if the simulation reaches
 * the end of all lists, every run does, whatever the instructions take; if it stalls, every run would. It proves that
 * stages do not wait for one another in a circle.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/build.h"

#define IO_MEMORY_UNIT UINT64_C(4096) /* the drive reads and writes whole blocks of memory */
#define IO_STORE_UNIT UINT64_C(65536) /* range of one checksum */

#define N_LINK_SIDES (2 * LADE_LINKS_MAX)
enum { LINK_OUT, LINK_IN, N_DIRECTIONS };
_Static_assert(N_LINK_SIDES <= 32, "a set of sides is 32 bits");

#define TRANSFER_CORES 0.25 /* a drive works by itself; XXH3 runs at 10 GB/s and more during 1-3 GB/s of transfer */

struct simulated_queue {
  int32_t *instrs; /* of one queue, in order */
  int n, next;
  int32_t running;  /* -1: none */
  double left_ns, cores, speed;
  double wire;        /* of the running instruction: share of its time in which bytes move; 0: none on links */
  uint32_t sides;     /* of it: bits of the link sides that its bytes use */
  const struct lade_link_shares *shares; /* of these links; NULL: a copy's, the whole link to the host */
  int64_t begun_at_ns;
  bool is_slowed;     /* the running instruction has shared a link */
  struct simulated_queue *other; /* the other side of a running stage boundary, simulated together with it */
  int n_ahead;      /* of the io queue: transfers after the running one that have begun */
  double begun_ns[LADE_IO_AHEAD + 1]; /* when, by index in the queue modulo the array's length */
};

struct fluid {
  const struct lade_program *program;
  const struct lade_prices *prices;
  struct simulated_queue lanes[LADE_N_QUEUES];
  bool *is_done;
  double now_ns, busy_ns[LADE_N_QUEUES];
  /* array of all stages, with this one at its own index; NULL: one stage alone, transfers take their own time only */
  struct fluid *stages;
  struct lade_instr *timed; /* instructions whose hidden time is to be set; NULL: none */
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

/* Return the next instruction of @lane if its own rank's waits are met; else -1. */
static int32_t lane_next(const struct fluid *f, const struct simulated_queue *lane)
{
  if (lane->running >= 0 || lane->next == lane->n || !is_ready(f, &f->program->instrs[lane->instrs[lane->next]]))
    return -1;
  return lane->instrs[lane->next];
}

bool lade_instr_is_transfer(const struct lade_instr *instr)
{
  return instr->kind == LADE_INSTR_READ || instr->kind == LADE_INSTR_WRITE;
}

/* Return the number of the unit after the last one that the operand touches. */
static uint64_t units_end(const struct lade_buffer *buffer, const struct lade_operand *operand, uint64_t unit)
{
  return (buffer->offset + operand->offset + operand->bytes + unit - 1) / unit;
}

/* True if the two operands touch common bytes, each in whole units of its space's transfers. */
static bool operands_overlap(const struct lade_program *program, const struct lade_operand *a,
                             const struct lade_operand *b)
{
  const struct lade_buffer *of_a = &program->buffers[a->buffer], *of_b = &program->buffers[b->buffer];
  const uint64_t unit = of_a->space == LADE_STORE ? IO_STORE_UNIT : IO_MEMORY_UNIT;
  const uint64_t from_a = (of_a->offset + a->offset) / unit, from_b = (of_b->offset + b->offset) / unit;
  return of_a->space == of_b->space && from_a < units_end(of_b, b, unit) &&
         from_b < units_end(of_a, a, unit);
}

bool lade_program_transfers_conflict(const struct lade_program *program, int a, int b)
{
  const struct lade_instr *first = &program->instrs[a], *second = &program->instrs[b];
  for (int i = 0; i < first->n_operands; i++) {
    const struct lade_operand *one = &program->operands[first->first_operand + i];
    for (int j = 0; j < second->n_operands; j++) {
      const struct lade_operand *two = &program->operands[second->first_operand + j];
      const bool both_read = one->access == LADE_READS && two->access == LADE_READS;
      if (!both_read && operands_overlap(program, one, two))
        return true;
    }
  }
  return false;
}

/* Begin transfers after the running one, in order, as the executor does (run/executor/transfer.c). */
static void transfers_begin_ahead(struct fluid *f, struct simulated_queue *lane)
{
  while (lane->n_ahead < LADE_IO_AHEAD && lane->next + lane->n_ahead < lane->n) {
    const int at = lane->next + lane->n_ahead;
    const struct lade_instr *instr = &f->program->instrs[lane->instrs[at]];
    if (!lade_instr_is_transfer(instr) || !is_ready(f, instr))
      return;
    for (int i = lane->next - 1; i < at; i++)
      if (lade_program_transfers_conflict(f->program, lane->instrs[i], lane->instrs[at]))
        return;
    lane->begun_ns[at % (LADE_IO_AHEAD + 1)] = f->now_ns;
    lane->n_ahead++;
  }
}

/* Return the part of the latency of transfer lane->next that has passed since it began; pre: it is the next to run. */
static double hidden_take(const struct fluid *f, struct simulated_queue *lane)
{
  const struct lade_instr *instr = &f->program->instrs[lane->instrs[lane->next]];
  const struct lade_transfer_price *price = instr->kind == LADE_INSTR_READ ? &f->prices->read : &f->prices->write;
  if (!lane->n_ahead)
    return 0;
  lane->n_ahead--;
  const double passed_ns = f->now_ns - lane->begun_ns[lane->next % (LADE_IO_AHEAD + 1)];
  return LADE_MIN(LADE_MIN(passed_ns, (double)price->latency_ns), (double)instr->predicted_ns - 1);
}

/* ---- links ---- */

static int side_of(const struct lade_prices *prices, int link, int direction)
{
  return N_DIRECTIONS * link + (link == LADE_LINK_HOST && prices->has_half_duplex ? LINK_OUT : direction);
}

/* Return the part of the link of @side that the running instruction of @lane takes while its bytes move. */
static double side_share(const struct simulated_queue *lane, int side)
{
  return lane->shares ? lane->shares->of[side / N_DIRECTIONS] : 1;
}

/* Add the sides of all links that the lane's instruction uses in @direction. */
static void sides_add(const struct fluid *f, struct simulated_queue *lane, int direction)
{
  for (int link = 0; link < LADE_LINKS_MAX; link++) {
    if (side_share(lane, N_DIRECTIONS * link) > 0 && (lane->shares || link == LADE_LINK_HOST))
      lane->sides |= 1u << side_of(f->prices, link, direction);
  }
}

/* Return the price of the transfer @instr; NULL: it uses no link. */
static const struct lade_transfer_price *transfer_price(const struct lade_prices *prices,
                                                        const struct lade_instr *instr)
{
  switch (instr->kind) {
  case LADE_INSTR_COPY:
    return instr->queue == LADE_Q_TO_HOST ? &prices->to_host : &prices->to_device;
  case LADE_INSTR_COLLECTIVE:
    return instr->collective == LADE_ALL_REDUCE ? &prices->comm_sum[instr->axis] : &prices->comm[instr->axis];
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV:
    return &prices->boundary;
  default:
    return NULL;
  }
}

/*
 * Set the links that @instr uses as it begins on @lane. Bytes move in all of its time but that of an empty transfer. A
 * collective sends and receives at once. On shared cores copies are work of these, and no link counts.
 */
static void links_take(const struct fluid *f, const struct lade_instr *instr, struct simulated_queue *lane)
{
  const struct lade_transfer_price *price = f->prices->n_cores > 0 ? NULL : transfer_price(f->prices, instr);
  lane->sides = 0;
  lane->wire = price && instr->predicted_ns > 0
                   ? 1 - lade_transfer_ns(price, 1, 0) / (double)instr->predicted_ns
                   : 0;
  if (lane->wire <= 0)
    return;
  lane->shares = instr->kind == LADE_INSTR_COPY         ? NULL
                 : instr->kind == LADE_INSTR_COLLECTIVE ? &f->prices->comm_shares[instr->axis]
                                                        : &f->prices->boundary_shares;
  if (instr->kind != LADE_INSTR_RECV && instr->queue != LADE_Q_TO_DEVICE)
    sides_add(f, lane, LINK_OUT);
  if (instr->kind == LADE_INSTR_COLLECTIVE || instr->kind == LADE_INSTR_RECV || instr->queue == LADE_Q_TO_DEVICE)
    sides_add(f, lane, LINK_IN);
}

/* Return the sides that several running instructions use. */
static uint32_t sides_shared(const struct fluid *f)
{
  uint32_t used = 0, shared = 0;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const uint32_t sides = f->lanes[q].running >= 0 ? f->lanes[q].sides : 0;
    shared |= used & sides;
    used |= sides;
  }
  return shared;
}

/* Return all that running instructions want of the link of @side; 1 is its rate. */
static double side_load(const struct fluid *f, int side)
{
  double load = 0;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const struct simulated_queue *lane = &f->lanes[q];
    if (lane->running >= 0 && lane->sides >> side & 1)
      load += lane->wire * side_share(lane, side);
  }
  return load;
}

/* Slow down the instructions that want more of @shared sides than there is. */
static void links_slow(struct fluid *f, uint32_t shared)
{
  for (int side = 0; side < N_LINK_SIDES; side++) {
    const double load = shared >> side & 1 ? side_load(f, side) : 0;
    for (int q = 0; q < LADE_N_QUEUES && load > 1; q++) {
      struct simulated_queue *lane = &f->lanes[q];
      if (lane->running < 0 || !(lane->sides >> side & 1))
        continue;
      lane->speed = LADE_MIN(lane->speed, 1 / load);
      lane->is_slowed = true;
    }
  }
}

/* ---- instructions begin ---- */

static void lane_begin(struct fluid *f, struct simulated_queue *lane, double ns, int64_t (*spans)[2])
{
  const double hidden_ns = LADE_MAX(hidden_take(f, lane), 0);
  int32_t at = lane->instrs[lane->next++];
  lane->running = at;
  lane->left_ns = ns - hidden_ns;
  if (f->timed)
    f->timed[at].hidden_ns = (int64_t)hidden_ns;
  if (lade_instr_is_transfer(&f->program->instrs[at]) && f->program->graph)
    transfers_begin_ahead(f, lane);
  lane->cores = cores_wanted(f, &f->program->instrs[at]);
  lane->begun_at_ns = (int64_t)f->now_ns;
  lane->is_slowed = false;
  lane->other = NULL;
  links_take(f, &f->program->instrs[at], lane);
  if (spans)
    spans[at][0] = (int64_t)f->now_ns;
}

static bool is_boundary(const struct lade_instr *instr)
{
  return instr->kind == LADE_INSTR_SEND || instr->kind == LADE_INSTR_RECV;
}

/* True if these are two sides of one stage boundary transfer: equal bytes, one microbatch. */
static bool is_one_boundary(const struct fluid *f, const struct lade_instr *instr, const struct fluid *peer,
                            const struct lade_instr *other)
{
  return other->peer == f - f->stages && other->microbatch == instr->microbatch &&
         peer->program->operands[other->first_operand].bytes == f->program->operands[instr->first_operand].bytes;
}

/* Return the peer's queue whose next instruction is the other side of stage boundary @at and can begin; NULL: none. */
static struct simulated_queue *boundary_meet(struct fluid *f, int32_t at)
{
  const struct lade_instr *instr = &f->program->instrs[at];
  struct fluid *peer = &f->stages[instr->peer];
  struct simulated_queue *lane = &peer->lanes[instr->kind == LADE_INSTR_SEND ? LADE_Q_RECV : LADE_Q_SEND];
  int32_t other = lane_next(peer, lane);
  return other >= 0 && is_one_boundary(f, instr, peer, &peer->program->instrs[other]) ? lane : NULL;
}

static void lane_start(struct fluid *f, struct simulated_queue *lane, int64_t (*spans)[2])
{
  int32_t at = lane_next(f, lane);
  if (at < 0)
    return;
  double ns = (double)f->program->instrs[at].predicted_ns;
  if (f->stages && is_boundary(&f->program->instrs[at])) {
    struct simulated_queue *other = boundary_meet(f, at);
    if (!other)
      return;
    struct fluid *peer = &f->stages[f->program->instrs[at].peer];
    ns = LADE_MAX(ns, (double)peer->program->instrs[other->instrs[other->next]].predicted_ns);
    lane_begin(peer, other, ns, NULL);
    lane_begin(f, lane, ns, spans);
    lane->other = other;
    other->other = lane;
    return;
  }
  lane_begin(f, lane, ns, spans);
}

static void lanes_start(struct fluid *f, int64_t (*spans)[2])
{
  for (int q = 0; q < LADE_N_QUEUES; q++)
    lane_start(f, &f->lanes[q], spans);
}

/* Set the fraction of full speed at which each running instruction advances. */
static void speeds_set(struct fluid *f)
{
  double cores = 0;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    cores += f->lanes[q].running >= 0 ? f->lanes[q].cores : 0;
  const double speed = f->prices->n_cores > 0 && cores > f->prices->n_cores ? f->prices->n_cores / cores : 1;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    f->lanes[q].speed = speed;
  const uint32_t shared = sides_shared(f);
  if (shared)
    links_slow(f, shared);
}

/* Return the time to the next completion; negative if no instruction runs. */
static double completion_ns(const struct fluid *f)
{
  double min_ns = -1;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const struct simulated_queue *lane = &f->lanes[q];
    if (lane->running >= 0 && (min_ns < 0 || lane->left_ns / lane->speed < min_ns))
      min_ns = lane->left_ns / lane->speed;
  }
  return min_ns;
}

/* Note the end of the running instruction of @lane. */
static void lane_end(struct fluid *f, struct simulated_queue *lane, int64_t (*spans)[2])
{
  f->is_done[lane->running] = true;
  if (spans)
    spans[lane->running][1] = (int64_t)f->now_ns;
  if (f->timed) {
    struct lade_instr *instr = &f->timed[lane->running];
    const int64_t over_ns = (int64_t)f->now_ns - lane->begun_at_ns - (instr->predicted_ns - instr->hidden_ns);
    instr->shared_ns = lane->is_slowed ? LADE_MAX(over_ns, 0) : 0;
  }
  lane->running = -1;
}

static void time_pass(struct fluid *f, double ns, int64_t (*spans)[2])
{
  f->now_ns += ns;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    struct simulated_queue *lane = &f->lanes[q];
    if (lane->running < 0)
      continue;
    lane->left_ns -= ns * lane->speed;
    f->busy_ns[q] += ns;
    if (lane->left_ns <= 0.5)
      lane_end(f, lane, spans);
  }
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
    struct simulated_queue *lane = &f->lanes[program->instrs[i].queue];
    lane->instrs[lane->n++] = i;
  }
  return 0;
}

static int fluid_init(struct fluid *f)
{
  f->is_done = calloc((size_t)f->program->n_instrs + 1, sizeof(*f->is_done));
  return f->is_done ? lanes_init(f) : -ENOMEM;
}

static void fluid_finish(struct fluid *f)
{
  for (int q = 0; q < LADE_N_QUEUES; q++)
    free(f->lanes[q].instrs);
  free(f->is_done);
}

int lade_program_simulate(struct lade_program *program, const struct lade_prices *prices, int64_t (*ret_spans)[2])
{
  struct fluid f = {.program = program, .prices = prices, .timed = ret_spans ? NULL : program->instrs};
  int status = fluid_init(&f);
  for (bool is_running = !status; is_running;) {
    lanes_start(&f, ret_spans);
    speeds_set(&f);
    double ns = completion_ns(&f);
    is_running = ns >= 0;
    if (is_running)
      time_pass(&f, ns, ret_spans);
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    LADE_ASSERT(status || f.lanes[q].next == f.lanes[q].n);
    program->predicted_busy_ns[q] = (int64_t)f.busy_ns[q];
  }
  program->predicted_ns = (int64_t)f.now_ns;
  fluid_finish(&f);
  return status;
}

/* ---- stages together ---- */

/* Make both sides of each running stage boundary as slow as the slower one. */
static void boundaries_couple(struct fluid *f)
{
  for (int q = LADE_Q_SEND; q <= LADE_Q_RECV; q++) {
    struct simulated_queue *lane = &f->lanes[q];
    if (lane->running >= 0 && lane->other)
      lane->speed = lane->other->speed = LADE_MIN(lane->speed, lane->other->speed);
  }
}

/*
 * Begin every instruction that can begin. Return the time to the next completion in any stage, negative if none runs.
 */
static double stages_start(struct fluid *stages, int n_stages)
{
  double min_ns = -1;
  for (int i = 0; i < n_stages; i++)
    lanes_start(&stages[i], NULL);
  for (int i = 0; i < n_stages; i++)
    speeds_set(&stages[i]);
  for (int i = 0; i < n_stages; i++)
    boundaries_couple(&stages[i]);
  for (int i = 0; i < n_stages; i++) {
    double ns = completion_ns(&stages[i]);
    if (ns >= 0 && (min_ns < 0 || ns < min_ns))
      min_ns = ns;
  }
  return min_ns;
}

/*
 * Return 0 if all lists have ended, else -EDEADLK with the first stage boundary that waits for a peer. pre: no
 * instruction runs.
 */
static int standstill_report(const struct fluid *stages, int n_stages, struct lade_error *error)
{
  for (int i = 0; i < n_stages; i++) {
    for (int q = LADE_Q_SEND; q <= LADE_Q_RECV; q++) {
      const struct simulated_queue *lane = &stages[i].lanes[q];
      if (lane->next == lane->n)
        continue;
      const struct lade_instr *instr = &stages[i].program->instrs[lane->instrs[lane->next]];
      return lade_error_set(error, -EDEADLK,
                            "stage %d: instruction %d, a %s of microbatch %d, waits for stage %d for ever",
                            i, lane->instrs[lane->next], instr->kind == LADE_INSTR_SEND ? "send" : "recv",
                            instr->microbatch, instr->peer);
    }
  }
  return 0;
}

static void stages_time(const struct fluid *stages, int n_stages, struct lade_stages_time *ret_time)
{
  *ret_time = (struct lade_stages_time){.span_ns = (int64_t)stages[0].now_ns};
  for (int i = 0; i < n_stages; i++) {
    double busy_ns = stages[i].busy_ns[LADE_Q_COMPUTE];
    if (busy_ns > 0)
      ret_time->bubble = LADE_MAX(ret_time->bubble, stages[0].now_ns / busy_ns - 1);
  }
}

int lade_stages_simulate(const struct lade_program *const *programs, const struct lade_prices *const *prices,
                         int n_stages, struct lade_error *error, struct lade_stages_time *ret_time)
{
  struct fluid *stages = calloc((size_t)n_stages, sizeof(*stages));
  int status = stages ? 0 : -ENOMEM;
  for (int i = 0; i < n_stages && !status; i++) {
    stages[i] = (struct fluid){.program = programs[i], .prices = prices[i], .stages = stages};
    status = fluid_init(&stages[i]);
  }
  for (double ns = 0; !status && ns >= 0;) {
    ns = stages_start(stages, n_stages);
    for (int i = 0; i < n_stages && ns >= 0; i++)
      time_pass(&stages[i], ns, NULL);
  }
  if (!status)
    status = standstill_report(stages, n_stages, error);
  else
    lade_error_set(error, status, "out of memory simulating %d stages", n_stages);
  if (!status)
    stages_time(stages, n_stages, ret_time);
  for (int i = 0; i < n_stages && stages; i++)
    fluid_finish(&stages[i]);
  free(stages);
  return status;
}
