/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor's first failure: kept until the end of the step, and told to the other ranks.
 *
 * Any thread of a queue may fail. The first one counts: its words are what the step returns, and the communicators are
 * aborted with them, so that no rank waits for this one. Later ones are mostly its consequences and are dropped.
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
  pthread_mutex_lock(&ex->failure_mutex);
  bool is_first = !atomic_load(&ex->failure);
  if (is_first) {
    ex->failure_text = *error;
    atomic_store(&ex->failure, code);
  }
  pthread_mutex_unlock(&ex->failure_mutex);
  if (is_first)
    comms_abort(ex, error->text);
}

int executor_failure(lade_executor *ex, struct lade_error *error)
{
  int code = atomic_load(&ex->failure);
  if (!code)
    return 0;
  pthread_mutex_lock(&ex->failure_mutex);
  if (error)
    *error = ex->failure_text;
  pthread_mutex_unlock(&ex->failure_mutex);
  return code;
}
