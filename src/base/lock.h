/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex for sections shorter than a sleep. Locking costs one atomic exchange, and unlocking one store.
 *
 * A thread that finds the lock held spins for a moment and then sleeps until the unlock. The lock is not fair: any
 * thread may take it while it is free, so that no thread waits for a sleeper to wake up. It is not recursive. In rare
 * cases a sleeper wakes up to a millisecond after the unlock (lock.c).
 */
#ifndef LADE_LOCK_H
#define LADE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

enum { LADE_LOCK_FREE, LADE_LOCK_HELD, LADE_LOCK_AWAITED }; /* awaited: held, and a thread may be asleep */

/* Zeros are a free lock; it needs no finish. */
struct lade_lock {
  _Atomic uint32_t state;
};

/* Wait for a held lock; and wake one sleeper, if one may be asleep. */
void lade_lock_lock_slowly(struct lade_lock *lock);
void lade_lock_wake(struct lade_lock *lock);

/* Unlock @lock, sleep until lade_lock_wake_all on @word, and lock again. May return earlier. pre: the lock is held. */
void lade_lock_sleep(struct lade_lock *lock, _Atomic uint32_t *word);
/* Increment @word and wake all threads that sleep on it. pre: the lock is held. */
void lade_lock_wake_all(_Atomic uint32_t *word);

static inline bool lade_lock_try(struct lade_lock *lock)
{
  uint32_t expected = LADE_LOCK_FREE;
  return atomic_compare_exchange_strong_explicit(&lock->state, &expected, LADE_LOCK_HELD, memory_order_acquire,
                                                 memory_order_relaxed);
}

static inline void lade_lock_lock(struct lade_lock *lock)
{
  if (!lade_lock_try(lock))
    lade_lock_lock_slowly(lock);
}

static inline void lade_lock_unlock(struct lade_lock *lock)
{
  uint32_t before = atomic_load_explicit(&lock->state, memory_order_relaxed);
  LADE_ASSERT(before != LADE_LOCK_FREE);
  atomic_store_explicit(&lock->state, LADE_LOCK_FREE, memory_order_release);
  if (before == LADE_LOCK_AWAITED)
    lade_lock_wake(lock);
}

#endif
