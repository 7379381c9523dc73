/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver, from inside the shim. It is opened by its absolute path (LADE_RUN_DRIVER) on the first request for
 * one of its functions, and stays open. Any thread may call these functions; opening blocks as dlopen does.
 */
#ifndef LADE_SHIM_DRIVER_H
#define LADE_SHIM_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "functions.h"

/* The real functions by number; NULL until first use. The entries read them too (entry.S). */
extern _Atomic(void *) lade_shim_slots[N_FUNCTIONS];

/* Return the real function. If the driver lacks it, or there is no driver, return a function with that error. */
void *lade_shim_function(unsigned number);

/* True if the driver has the function. */
bool driver_has(unsigned number);

/* Return the real function of a declared name: REAL(cuInit)(0). */
#define REAL(name) ((__typeof__(name) *)function_get(FUNCTION_##name))
static inline void *function_get(unsigned number)
{
  void *function = atomic_load_explicit(&lade_shim_slots[number], memory_order_acquire);
  return function ? function : lade_shim_function(number);
}

#endif
