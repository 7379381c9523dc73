/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver, from inside the shim. It is opened by its absolute path (LADE_RUN_DRIVER) when somebody first wants
 * a function of it, and stays. Any thread may call all of this; opening blocks as dlopen does.
 */
#ifndef LADE_SHIM_DRIVER_H
#define LADE_SHIM_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "functions.h"

/* The real functions by number; NULL until they are wanted. Read by the entries too (entry.S). */
extern _Atomic(void *) lade_shim_slots[N_FUNCTIONS];

/* The real function. Where the driver has none of that name, or is not there, a function that answers so. */
void *lade_shim_function(unsigned number);

/* Whether the driver has it. */
bool driver_has(unsigned number);

/* The real function of a declared name: REAL(cuInit)(0). */
#define REAL(name) ((__typeof__(name) *)function_get(FUNCTION_##name))
static inline void *function_get(unsigned number)
{
  void *function = atomic_load_explicit(&lade_shim_slots[number], memory_order_acquire);
  return function ? function : lade_shim_function(number);
}

#endif
