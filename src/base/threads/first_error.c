/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line is written before the code, so a thread that reads a code finds its line behind the mutex.
 */
#include "base/first_error.h"

#include "base/base.h"

void lade_first_error_init(struct lade_first_error *first)
{
  atomic_init(&first->code, 0);
  first->line = (struct lade_error){0};
  pthread_mutex_init(&first->mutex, NULL);
}

void lade_first_error_finish(struct lade_first_error *first)
{
  pthread_mutex_destroy(&first->mutex);
}

bool lade_first_error_set(struct lade_first_error *first, int code, const struct lade_error *line)
{
  LADE_ASSERT(code < 0);
  pthread_mutex_lock(&first->mutex);
  const bool is_first = !lade_first_error_code(first);
  if (is_first) {
    first->line = *line;
    first->line.code = code;
    atomic_store(&first->code, code);
  }
  pthread_mutex_unlock(&first->mutex);
  return is_first;
}

int lade_first_error_get(struct lade_first_error *first, struct lade_error *error)
{
  const int code = lade_first_error_code(first);
  if (!code || !error)
    return code;
  pthread_mutex_lock(&first->mutex);
  *error = first->line;
  pthread_mutex_unlock(&first->mutex);
  return code;
}
