/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first failure of an instruction. A step returns its line, and so does every later call.
 *
 * Any thread of a queue may fail. The first failure also aborts the communicators with its line, so that no other rank
 * waits for this one.
 */
#include "run/executor/executor_internal.h"

static void comms_abort(lade_executor *ex, const char *words)
{
  for (int axis = 0; ex->params.comms && axis < LADE_N_AXES; axis++) {
    lade_comm *comm = ex->params.comms[axis];
    if (comm && !lade_comm_status(comm, NULL))
      lade_comm_abort(comm, words);
  }
}

void executor_fail(lade_executor *ex, int code, const struct lade_error *error)
{
  if (lade_first_error_set(&ex->failure, code, error))
    comms_abort(ex, error->text);
}

int executor_failure(lade_executor *ex, struct lade_error *error)
{
  return lade_first_error_get(&ex->failure, error);
}
