/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the hooks and the ledger (alloc/ledger.h): what this process was told to do, its record, and the two brackets
 * around a call of the driver.
 *
 *   struct taking taking;
 *   cuda_result result = taking_begin(&taking, place, kind, bytes);
 *   if (!result) {
 *     result = REAL(...)(...);
 *     result = taking_end(&taking, result, space, result ? 0 : *ret_key, bytes);
 *   }
 *
 * Calls of the driver to itself that come by the shim are let through and not counted a second time. Any thread.
 */
#ifndef LADE_SHIM_ACCOUNT_H
#define LADE_SHIM_ACCOUNT_H

#include <limits.h>

#include "alloc/ledger.h"
#include "hooks.h"

/* What `lade run` says, by the environment as it was when the process began. */
struct settings {
  char driver[PATH_MAX], directory[PATH_MAX], budget[64];
};
const struct settings *settings_get(void);

/* One line on stderr: "lade run: WHAT: WHY". */
void say(const char *what, const char *why);

/* The process's ledger, with its record made at the first call; NULL where there is no memory for it. */
lade_ledger *account_ledger(void);

/* Where memory is taken: an account of the ledger, negative for nowhere, and what it ends with. */
struct place {
  int account;
  const void *owner;
};
#define PLACE_HOST ((struct place){LADE_LEDGER_HOST, NULL})

struct place place_current(void); /* the current context and its device */
struct place place_context(cuda_context context); /* any of the process's */
struct place place_device(int device);
struct place place_location(const struct cuda_location *location);

/* Whether this call is the program's, and not one of the driver's to itself. */
bool is_outermost(void);

struct taking {
  lade_ledger *ledger;
  struct lade_holding *holding;
};

/* CUDA_OUT_OF_MEMORY: refused, and the driver is not to be asked. */
cuda_result taking_begin(struct taking *taking, struct place place, enum lade_ledger_kind kind, uint64_t bytes);
/*
 * The driver answered @result. Returns it, or CUDA_OUT_OF_MEMORY where the driver took more than was asked for and that
 * passes the budget: then the caller gives it back.
 */
cuda_result taking_end(struct taking *taking, cuda_result result, enum lade_ledger_space space, uint64_t key,
                       uint64_t bytes);

struct giving {
  lade_ledger *ledger;
  struct lade_holding *holding;
};
struct giving giving_begin(enum lade_ledger_space space, uint64_t key);
cuda_result giving_end(struct giving *giving, cuda_result result); /* returns @result */

/* The number of the hook that is called so, or -1; and the hook in the place of what the driver's lookup found. */
int hook_number(const char *symbol);
void *hook_for(void *found, const char *name, int version, uint64_t flags);

#endif
