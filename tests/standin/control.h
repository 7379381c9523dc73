/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all stand-ins have: settings as text, and calls that are counted and of which some shall fail. Each stand-in has
 * one of these, behind a lock of its own.
 */
#ifndef LADE_TEST_CONTROL_H
#define LADE_TEST_CONTROL_H

#include <stdint.h>

#define MAX_FUNCTIONS 128

/* What a stand-in can be told beside which call fails; all are numbers. */
struct setting {
  const char *key;
  uint64_t *at;
};

struct control {
  const struct setting *settings; /* of the stand-in, the last without a key */
  /* Call number @nth of function @fail answers @code, with @forever all after it, too; "any": number @nth of all. */
  char fail[48];
  uint64_t nth, code, forever;
  struct {
    const char *name; /* by its address: two places that name a function count apart, and are added up when asked */
    uint64_t n;
  } functions[MAX_FUNCTIONS];
  uint64_t n_calls, n_failed;
};

/*
 * Take "key=value,key=value", keys being fail, nth, code, forever and the stand-in's own; those not named keep their
 * values. Counting starts anew. Returns 0, or -1 at the first key that it does not know.
 */
int control_set(struct control *control, const char *text);

/* The environment's @variable to @set, as a library is loaded; a key that it does not know ends the process. */
void control_load(const char *variable, int (*set)(const char *text));

/* Count a call of @function, which is static; the code that it shall answer, or 0. */
int control_enter(struct control *control, const char *function);

/* Calls of @function since counting began, or of all with "any". */
uint64_t control_calls(const struct control *control, const char *function);

#endif
