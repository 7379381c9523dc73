/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write the list of instructions of a schedule: turn by turn the gets, the redos and the op. Each is followed by the
 * drops of values that the turn does not use any more and does not hold. A value that waits on a tier and is used later
 * is put there instead. So is a given value of another tier that an op changed. O(uses of all ops that run).
 */
#include "recompute/graph/emit.h"

#include <errno.h>
#include <stdlib.h>

static int instr_add(struct remat_list *list, enum lade_graph_instr_kind kind, int index, int tier)
{
  const struct lade_graph_instr instr = {.kind = kind, .index = index, .tier = (enum lade_space)tier};
  return LADE_PUSH(&list->instrs, instr) ? 0 : -ENOMEM;
}

static int turn_op(const struct remat_schedule *schedule, int turn, int place)
{
  const struct remat_turn *t = &schedule->turns[turn];
  return place < t->redos.n ? t->redos.items[place] : turn;
}

static bool is_held_after(const struct remat_schedule *schedule, int value, int turn)
{
  const struct remat_problem *problem = schedule->problem;
  return turn == problem->n_ops ? problem->values[value].last_use == turn : remat_is_held(schedule, value, turn + 1);
}

/* Add the drops that follow the op at @place. pre: the last places of values in this turn are noted. */
static int drops_add(const struct remat_schedule *schedule, int turn, int place, struct remat_list *list)
{
  const struct remat_problem *problem = schedule->problem;
  const struct remat_op *op = &problem->ops[turn_op(schedule, turn, place)];
  int status = 0;
  for (int i = 0; i < op->n_in + op->n_out && !status; i++) {
    int value = problem->edges[op->first_in + i].value;
    if (schedule->in_turn[value].last_place != place || is_held_after(schedule, value, turn))
      continue;
    schedule->in_turn[value].last_place = -1; /* once, though the op may both read and change it */
    bool waits = schedule->sources[value] != LADE_DEVICE && remat_put_turn(schedule, value, turn) == turn;
    status = instr_add(list, waits ? LADE_GRAPH_INSTR_PUT : LADE_GRAPH_INSTR_DROP, problem->values[value].storage,
                       waits ? schedule->sources[value] : LADE_DEVICE);
  }
  return status;
}

/* Add the op at @place: a redo, or the turn's own. */
static int op_emit(const struct remat_schedule *schedule, int turn, int place, struct remat_list *list)
{
  const int op = turn_op(schedule, turn, place);
  bool is_redo = place < schedule->turns[turn].redos.n;
  return instr_add(list, is_redo ? LADE_GRAPH_INSTR_REDO : LADE_GRAPH_INSTR_OP, op, LADE_DEVICE);
}

/* Add the puts of given storages that leave the device as the step begins. */
static int beginning_emit(const struct remat_schedule *schedule, struct remat_list *list)
{
  const struct remat_problem *problem = schedule->problem;
  int status = 0;
  for (int v = 0; v < problem->n_values && !status; v++) {
    if (remat_is_given(problem, v) && remat_put_turn(schedule, v, -1) < 0)
      status = instr_add(list, LADE_GRAPH_INSTR_PUT, problem->values[v].storage, schedule->sources[v]);
  }
  return status;
}

static int turn_emit(const struct remat_schedule *schedule, int turn, struct remat_get *gets, struct remat_list *list)
{
  const struct remat_problem *problem = schedule->problem;
  const int n_redos = schedule->turns[turn].redos.n, n = n_redos + (turn < problem->n_ops);
  for (int place = 0; place < n; place++) {
    const struct remat_op *op = &problem->ops[turn_op(schedule, turn, place)];
    for (int i = 0; i < op->n_in + op->n_out; i++)
      schedule->in_turn[problem->edges[op->first_in + i].value].last_place = place;
  }
  const int n_gets = remat_gets_list(schedule, turn, gets);
  int status = 0;
  for (int i = 0; i < n_gets && !status; i++)
    status = instr_add(list, LADE_GRAPH_INSTR_GET, problem->values[gets[i].value].storage,
                       schedule->sources[gets[i].value]);
  for (int place = n_gets; place < n && !status; place++) {
    status = op_emit(schedule, turn, place, list);
    if (!status)
      status = drops_add(schedule, turn, place, list);
  }
  return status;
}

int remat_emit(struct remat_schedule *schedule, struct remat_list *list)
{
  list->instrs.n = 0;
  struct remat_get *gets = malloc(((size_t)schedule->problem->n_values + 1) * sizeof(*gets));
  int status = gets ? beginning_emit(schedule, list) : -ENOMEM;
  for (int turn = 0; turn <= schedule->problem->n_ops && !status; turn++)
    status = turn_emit(schedule, turn, gets, list);
  free(gets);
  return status;
}
