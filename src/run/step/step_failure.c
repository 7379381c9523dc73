/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first failure of a stepper: a run returns it, and so does every later call. Any thread of a queue may fail. Later
 * failures of the same run are mostly consequences of the first, and are dropped.
 */
#include "run/step/step_internal.h"

void step_fail(lade_stepper *stepper, int code, const struct lade_error *error)
{
  pthread_mutex_lock(&stepper->failure_mutex);
  if (!atomic_load(&stepper->failure)) {
    stepper->failure_text = *error;
    atomic_store(&stepper->failure, code);
  }
  pthread_mutex_unlock(&stepper->failure_mutex);
}

int step_failure(lade_stepper *stepper, struct lade_error *error)
{
  const int code = atomic_load(&stepper->failure);
  if (!code)
    return 0;
  pthread_mutex_lock(&stepper->failure_mutex);
  if (error)
    *error = stepper->failure_text;
  pthread_mutex_unlock(&stepper->failure_mutex);
  return code;
}
