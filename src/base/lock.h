/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex for sections that take less than a sleep, at the price of one atomic exchange: it is given back by a store.
 *
 * Who finds it taken spins for a moment and then sleeps until it is given back. It is not fair: whoever comes when it
 * is free takes it, so that nobody waits for a sleeper to wake up. It is not recursive. A sleeper may, seldom, sleep
 * for a millisecond after it was given back (lock.c).
 */
#ifndef LADE_LOCK_H
#define LADE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

enum { LADE_LOCK_FREE, LADE_LOCK_TAKEN, LADE_LOCK_AWAITED }; /* awaited: taken, and somebody may be asleep */

/* Zeros are a lock that is free; nothing is to be given back at its end. */
struct lade_lock {
  _Atomic uint32_t state;
};

/* What a thread does that found it taken, and what must be done when somebody may be asleep. */
void lade_lock_take_slowly(struct lade_lock *lock);
void lade_lock_wake(struct lade_lock *lock);

/* Give the taken lock back, sleep until @word is roused, and take it again. May return earlier. */
void lade_lock_sleep(struct lade_lock *lock, _Atomic uint32_t *word);
/* Count @word up and wake all that sleep on it. Called with the lock. */
void lade_lock_rouse(_Atomic uint32_t *word);

static inline bool lade_lock_try(struct lade_lock *lock)
{
  uint32_t expected = LADE_LOCK_FREE;
  return atomic_compare_exchange_strong_explicit(&lock->state, &expected, LADE_LOCK_TAKEN, memory_order_acquire,
                                                 memory_order_relaxed);
}

static inline void lade_lock_take(struct lade_lock *lock)
{
  if (!lade_lock_try(lock))
    lade_lock_take_slowly(lock);
}

static inline void lade_lock_give(struct lade_lock *lock)
{
  uint32_t before = atomic_load_explicit(&lock->state, memory_order_relaxed);
  LADE_ASSERT(before != LADE_LOCK_FREE);
  atomic_store_explicit(&lock->state, LADE_LOCK_FREE, memory_order_release);
  if (before == LADE_LOCK_AWAITED)
    lade_lock_wake(lock);
}

#endif
