/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of all fakes: settings as text, and calls that are counted, of which some are made to fail. Each fake
 * has one of these, guarded by a lock of its own.
 */
#ifndef LADE_TEST_CONTROL_H
#define LADE_TEST_CONTROL_H

#include <stdint.h>

#define MAX_FUNCTIONS 128

/* A setting of a fake besides the failing call; all are numbers. */
struct setting {
  const char *key;
  uint64_t *at;
};

struct control {
  const struct setting *settings; /* of the fake; the last one has no key */
  /* Call number @nth of function @fail returns @code, with @forever all after it, too; "any": number @nth of all. */
  char fail[48];
  uint64_t nth, code, forever;
  struct {
    const char *name; /* by its address: two places that name a function count apart, and a query adds them up */
    uint64_t n;
  } functions[MAX_FUNCTIONS];
  uint64_t n_calls, n_failed;
};

/*
 * Apply "key=value,key=value". Keys are fail, nth, code, forever and the fake's own; other settings keep their values.
 * Resets the counts. Return 0, or -1 at the first unknown key.
 */
int control_set(struct control *control, const char *text);

/* Pass the environment's @variable to @set when a library is loaded; an unknown key ends the process. */
void control_load(const char *variable, int (*set)(const char *text));

/* Count a call of @function, a static string. Return the code that the call must return, or 0. */
int control_enter(struct control *control, const char *function);

/* Return the calls of @function since the counts were reset, or of all with "any". */
uint64_t control_calls(const struct control *control, const char *function);

#endif
