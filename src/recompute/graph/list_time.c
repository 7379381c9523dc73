/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a schedule with transfers: ops on the device, and for each tier a link out and a link in.
 *
 * Ops run in the order of the list. A get begins when its turn does and the link is free; those of one turn begin in
 * the order of the turns that use their values. An op waits until the last get of each of its operands has ended. A
 * put begins after the turn that uses its value last; its bytes are free when it has ended. A turn whose bytes,
 * with those of puts under way, are above the limit waits for the earliest puts. All links run beside the device and
 * beside each other. Given values that leave at boundary 0 are put as the step begins. The step ends when all transfers
 * have ended, because the next step finds given values in their tiers.
 */
#include "recompute/graph/list_time.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Puts under way, in the order in which they began. */
struct put_ring {
  struct list_time_put *items; /* of the list_time, with room for one put of each value */
  int max, first, n;
  uint64_t total_bytes;
};

struct time_walk {
  struct list_time *time;
  const struct remat_schedule *schedule;
  double now_ns, out_ns[LADE_N_SPACES], in_ns[LADE_N_SPACES]; /* when the device and each link are free */
  struct put_ring puts;
};

int list_time_init(struct list_time *time, const struct remat_problem *problem,
                   const struct lade_graph_plan_params *params)
{
  *time = (struct list_time){.problem = problem};
  time->out[LADE_HOST] = params->to_host;
  time->in[LADE_HOST] = params->from_host;
  time->out[LADE_STORE] = params->to_store;
  time->in[LADE_STORE] = params->from_store;
  time->arrival_ns = calloc((size_t)problem->n_values + 1, sizeof(*time->arrival_ns));
  time->first_put = calloc((size_t)problem->n_ops + 1, sizeof(*time->first_put));
  time->next_put = calloc((size_t)problem->n_values + 1, sizeof(*time->next_put));
  time->puts = malloc(((size_t)problem->n_values + 1) * sizeof(*time->puts));
  time->gets = malloc(((size_t)problem->n_values + 1) * sizeof(*time->gets));
  time->begin_ns = calloc((size_t)problem->n_ops + 1, sizeof(*time->begin_ns));
  if (time->arrival_ns && time->first_put && time->next_put && time->puts && time->gets && time->begin_ns)
    return 0;
  list_time_finish(time);
  return -ENOMEM;
}

void list_time_finish(struct list_time *time)
{
  free(time->arrival_ns);
  free(time->first_put);
  free(time->next_put);
  free(time->puts);
  free(time->gets);
  free(time->begin_ns);
  *time = (struct list_time){0};
}

/* ---- puts ---- */

static void put_end(struct time_walk *walk, bool is_awaited)
{
  struct put_ring *puts = &walk->puts;
  if (is_awaited)
    walk->now_ns = LADE_MAX(walk->now_ns, puts->items[puts->first].end_ns);
  puts->total_bytes -= puts->items[puts->first].bytes;
  puts->first = puts->first + 1 < puts->max ? puts->first + 1 : 0;
  puts->n--;
}

static void put_begin(struct time_walk *walk, enum lade_space tier, uint64_t bytes)
{
  struct put_ring *puts = &walk->puts;
  if (puts->n == puts->max)
    put_end(walk, true);
  walk->out_ns[tier] = LADE_MAX(walk->out_ns[tier], walk->now_ns) + list_time_move(&walk->time->out[tier], bytes);
  const int at = puts->first + puts->n++;
  puts->items[at < puts->max ? at : at - puts->max] = (struct list_time_put){walk->out_ns[tier], bytes};
  puts->total_bytes += bytes;
}

/* Wait for puts until the turn has room. */
static void room_await(struct time_walk *walk, int turn)
{
  struct put_ring *puts = &walk->puts;
  const int64_t bytes = turn_bytes_get(&walk->schedule->bytes, turn);
  while (puts->n && puts->items[puts->first].end_ns <= walk->now_ns)
    put_end(walk, false);
  while (puts->n && bytes + (int64_t)puts->total_bytes > walk->schedule->bytes.limit_bytes)
    put_end(walk, true);
}

/* List @value with those that are put after the same turn: the first one from @turn on after which it is. */
static void put_list(struct time_walk *walk, int value, int turn)
{
  const int next = remat_put_turn(walk->schedule, value, turn);
  if (next == INT32_MAX)
    return;
  walk->time->next_put[value] = walk->time->first_put[next];
  walk->time->first_put[next] = value;
}

/* List the values that are put after each turn: those that wait, are there in it, and are got back later. */
static void puts_list(struct time_walk *walk)
{
  const struct remat_problem *problem = walk->time->problem;
  memset(walk->time->first_put, -1, ((size_t)problem->n_ops + 1) * sizeof(*walk->time->first_put));
  for (int v = 0; v < problem->n_values; v++) {
    if (walk->schedule->sources[v] == LADE_DEVICE)
      continue;
    walk->time->arrival_ns[v] = 0;
    put_list(walk, v, LADE_MAX(problem->values[v].birth, 0));
  }
}

/* ---- turns ---- */

static void get_begin(struct time_walk *walk, int value)
{
  const enum lade_space tier = (enum lade_space)walk->schedule->sources[value];
  const uint64_t bytes = walk->time->problem->values[value].bytes;
  walk->in_ns[tier] = LADE_MAX(walk->in_ns[tier], walk->now_ns) + list_time_move(&walk->time->in[tier], bytes);
  walk->time->arrival_ns[value] = walk->in_ns[tier];
}

/* Wait for the operands of @op that are under way. */
static void operands_await(struct time_walk *walk, int op)
{
  const struct remat_problem *problem = walk->time->problem;
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_in; i++) {
    int value = problem->edges[o->first_in + i].value;
    if (walk->schedule->sources[value] != LADE_DEVICE)
      walk->now_ns = LADE_MAX(walk->now_ns, walk->time->arrival_ns[value]);
  }
}

static void turn_run(struct time_walk *walk, int turn)
{
  const struct remat_problem *problem = walk->time->problem;
  const struct remat_turn *t = &walk->schedule->turns[turn];
  room_await(walk, turn);
  const int n_gets = remat_gets_list(walk->schedule, turn, walk->time->gets);
  for (int i = 0; i < n_gets; i++)
    get_begin(walk, walk->time->gets[i].value);
  for (int i = n_gets; i < t->redos.n; i++) {
    operands_await(walk, t->redos.items[i]);
    walk->now_ns += (double)problem->ops[t->redos.items[i]].ns;
  }
  if (turn < problem->n_ops) {
    operands_await(walk, turn);
    walk->now_ns += (double)problem->ops[turn].ns;
  }
  for (int v = walk->time->first_put[turn]; v >= 0;) {
    const int following = walk->time->next_put[v];
    put_begin(walk, (enum lade_space)walk->schedule->sources[v], problem->values[v].bytes);
    put_list(walk, v, turn + 1);
    v = following;
  }
}

/* Put the values that leave the device before turn 0. */
static void beginning_run(struct time_walk *walk)
{
  const struct remat_problem *problem = walk->time->problem;
  for (int v = 0; v < problem->n_values; v++) {
    if (remat_is_given(problem, v) && remat_put_turn(walk->schedule, v, -1) < 0)
      put_begin(walk, (enum lade_space)walk->schedule->sources[v], problem->values[v].bytes);
  }
}

double list_time_get(struct list_time *time, const struct remat_schedule *schedule)
{
  struct time_walk walk = {.time = time, .schedule = schedule,
                           .puts = {.items = time->puts, .max = time->problem->n_values + 1}};
  puts_list(&walk);
  beginning_run(&walk);
  for (int turn = 0; turn <= time->problem->n_ops; turn++) {
    time->begin_ns[turn] = walk.now_ns;
    turn_run(&walk, turn);
  }
  for (int tier = LADE_HOST; tier <= LADE_STORE; tier++)
    walk.now_ns = LADE_MAX(walk.now_ns, LADE_MAX(walk.in_ns[tier], walk.out_ns[tier]));
  return walk.now_ns;
}
