/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow side of the lock: three states in one word, as Drepper has them in "Futexes Are Tricky".
 *
 * A thread that is about to sleep makes the state "awaited"; whoever gives the lock back in that state wakes one
 * sleeper, which takes it as "awaited" in turn, since others may still be asleep. The kernel lets nobody sleep when the
 * state has changed meanwhile, so nobody is forgotten.
 *
 * Rejected: a queue of waiters in order of arrival. It is fair, and every hand-over then waits for a thread to wake
 * up, which takes a hundred times as long as what the lock protects: a convoy. Giving back by a plain store, with the
 * fence on the sleeper's side (membarrier): 6 ns less when nobody waits, and several times as much when many do.
 */
#include "base/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define N_SPINS 100 /* a few microseconds: dozens of sections, about what a sleep costs */

static void pause_briefly(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

void lade_lock_take_slowly(struct lade_lock *lock)
{
  for (int i = 0; i < N_SPINS; i++) {
    if (atomic_load_explicit(&lock->state, memory_order_relaxed) == LADE_LOCK_FREE && lade_lock_try(lock))
      return;
    pause_briefly();
  }
  while (atomic_exchange_explicit(&lock->state, LADE_LOCK_AWAITED, memory_order_acquire) != LADE_LOCK_FREE)
    syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, LADE_LOCK_AWAITED, NULL, NULL, 0);
}

void lade_lock_wake(struct lade_lock *lock)
{
  syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The word is read with the lock, so that nobody can rouse before it is known what to sleep on. */
void lade_lock_sleep(struct lade_lock *lock, _Atomic uint32_t *word)
{
  uint32_t before = atomic_load(word);
  lade_lock_give(lock);
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, before, NULL, NULL, 0);
  lade_lock_take(lock);
}

void lade_lock_rouse(_Atomic uint32_t *word)
{
  atomic_fetch_add(word, 1);
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
