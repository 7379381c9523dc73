/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contended path of the lock: three states in one word, as in Drepper's "Futexes Are Tricky", with one difference.
 *
 * A thread that is about to sleep sets the state to "awaited". The thread that unlocks in that state wakes one sleeper.
 * The woken thread takes the lock as "awaited" again, because other threads may still be asleep. The kernel puts a
 * thread to sleep only if the state is still "awaited".
 *
 * An unlock is a load and then a store, not one exchange, because the exchange is a third of the lock's cost without
 * contention. A thread that sets "awaited" between the two is missed, and the store overwrites its mark. No other
 * thread can take the lock before the store, so two threads never hold it; but no thread wakes that sleeper. Therefore
 * each sleeper has a timeout: after a millisecond it tries again. The gap between load and store includes instructions
 * of the section that the processor has not finished. It is nanoseconds long unless the thread is interrupted in it.
 * Timeouts therefore expire mainly if the lock is held for long, and then each sleeper spends some microseconds of
 * every millisecond on them.
 *
 * Rejected: a queue of waiters in order of arrival. It is fair, but every hand-over then waits for a thread to wake up,
 * which takes a hundred times as long as the protected section: a convoy. Rejected: a fence on the sleeper's side
 * (membarrier) in place of the missing one in the store. It is several times as slow if many threads wait.
 */
#include "base/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N_SPINS 100 /* a few microseconds: dozens of sections, about the cost of a sleep */
#define ALARM_NS 1000000

static void pause_briefly(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

void lade_lock_lock_slowly(struct lade_lock *lock)
{
  for (int i = 0; i < N_SPINS; i++) {
    if (atomic_load_explicit(&lock->state, memory_order_relaxed) == LADE_LOCK_FREE && lade_lock_try(lock))
      return;
    pause_briefly();
  }
  const struct timespec alarm = {.tv_nsec = ALARM_NS};
  while (atomic_exchange_explicit(&lock->state, LADE_LOCK_AWAITED, memory_order_acquire) != LADE_LOCK_FREE)
    syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, LADE_LOCK_AWAITED, &alarm, NULL, 0);
}

void lade_lock_wake(struct lade_lock *lock)
{
  syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Read the word while the lock is held, so that no wake-up falls between the read and the unlock. */
void lade_lock_sleep(struct lade_lock *lock, _Atomic uint32_t *word)
{
  uint32_t before = atomic_load(word);
  lade_lock_unlock(lock);
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, before, NULL, NULL, 0);
  lade_lock_lock(lock);
}

void lade_lock_wake_all(_Atomic uint32_t *word)
{
  atomic_fetch_add(word, 1);
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
