/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the hooks and the ledger (preload/ledger.h): this process's settings, its record, and the two brackets around
 * a call of the driver.
 *
 *   struct taking taking;
 *   cuda_result result = taking_begin(&taking, place, kind, bytes);
 *   if (!result) {
 *     result = REAL(...)(...);
 *     result = taking_end(&taking, result, space, result ? 0 : *ret_key, bytes);
 *   }
 *
 * Calls of the driver to itself that pass the shim go through and are not counted a second time. Any thread.
 */
#ifndef LADE_SHIM_ACCOUNT_H
#define LADE_SHIM_ACCOUNT_H

#include <limits.h>

#include "hooks.h"
#include "preload/ledger.h"

/* The settings from `lade run`, read from the environment at the process's start. */
struct settings {
  char driver[PATH_MAX], directory[PATH_MAX], budget[64];
};
const struct settings *settings_get(void);

/* Print one line on stderr: "lade run: SUBJECT: REASON". */
void say(const char *subject, const char *reason);

/* Return the process's ledger; its record is made at the first call. NULL: out of memory. */
lade_ledger *account_ledger(void);

/* The place of memory: an account of the ledger (negative: none), and the owner with which it ends. */
struct account_place {
  int account;
  const void *owner;
};
#define PLACE_HOST ((struct account_place){LADE_LEDGER_HOST, NULL})

struct account_place place_current(void); /* Return the current context and its device. */
struct account_place place_context(cuda_context context); /* Return the place of any context of the process. */
struct account_place place_device(int device);
struct account_place place_location(const struct cuda_location *location);

/* True if the program made this call; false for a call of the driver to itself. */
bool is_outermost(void);

struct taking {
  lade_ledger *ledger;
  struct lade_holding *holding;
};

/* Begin to take memory. CUDA_OUT_OF_MEMORY: refused, so do not call the driver. */
cuda_result taking_begin(struct taking *taking, struct account_place place, enum lade_ledger_kind kind, uint64_t bytes);
/*
 * Settle the driver's @result. Returns it, or CUDA_OUT_OF_MEMORY if the driver took more than was requested and that
 * exceeds the budget: then the caller gives it back.
 */
cuda_result taking_end(struct taking *taking, cuda_result result, enum lade_ledger_space space, uint64_t key,
                       uint64_t bytes);

struct giving {
  lade_ledger *ledger;
  struct lade_holding *holding;
};
struct giving giving_begin(enum lade_ledger_space space, uint64_t key);
cuda_result giving_end(struct giving *giving, cuda_result result); /* returns @result */

/* Return the number of the hook of that name, or -1; and the hook that replaces the driver's lookup result. */
int hook_number(const char *symbol);
void *hook_for(void *found, const char *name, int version, uint64_t flags);

#endif
