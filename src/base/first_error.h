/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first error of work that several threads share, with its line. Later errors are mostly consequences of the first,
 * and are dropped. It is final: no call removes it.
 *
 * Reading the code is one load, so threads check it before each piece of work.
 */
#ifndef LADE_FIRST_ERROR_H
#define LADE_FIRST_ERROR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lade/types.h"

struct lade_first_error {
  atomic_int code;         /* negative errno, 0: no error; changes once, with the mutex held */
  pthread_mutex_t mutex;   /* guards line */
  struct lade_error line;
};

void lade_first_error_init(struct lade_first_error *first);
void lade_first_error_finish(struct lade_first_error *first);

/* Keep @code, below 0, with @line, unless an error is kept already. Return true if it was kept. Any thread. */
bool lade_first_error_set(struct lade_first_error *first, int code, const struct lade_error *line);

/* Return the kept code and copy its line to @error (may be NULL); 0, with @error unchanged: no error. Any thread. */
int lade_first_error_get(struct lade_first_error *first, struct lade_error *error);

/* Return the kept code; 0: no error. Any thread. */
static inline int lade_first_error_code(const struct lade_first_error *first)
{
  return atomic_load(&first->code);
}

#endif
