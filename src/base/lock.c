/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow side of the lock: three states in one word, as Drepper has them in "Futexes Are Tricky", but for one thing.
 *
 * A thread that is about to sleep makes the state "awaited"; whoever gives the lock back in that state wakes one
 * sleeper, which takes it as "awaited" in turn, since others may still be asleep. The kernel lets nobody sleep when the
 * state has changed meanwhile.
 *
 * To give it back is a look and then a store, and not one exchange, which would be a third of what the lock costs when
 * nobody waits. A sleeper that comes between the two is not seen, and its "awaited" is overwritten. Nobody else can
 * take the lock before the store, so no two ever hold it; but nobody wakes that sleeper. So each has an alarm: after a
 * millisecond it looks again. The gap is what the processor has begun of the section and not finished, nanoseconds as a
 * rule, unless the thread is interrupted in it. So alarms go off where the lock is held for long, and there each
 * sleeper takes some microseconds of every millisecond to look.
 *
 * Rejected: a queue of waiters in order of arrival. It is fair, and every hand-over then waits for a thread to wake
 * up, which takes a hundred times as long as what the lock protects: a convoy. The fence that the store lacks on the
 * sleeper's side (membarrier): several times as slow where many wait.
 */
#include "base/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N_SPINS 100 /* a few microseconds: dozens of sections, about what a sleep costs */
#define ALARM_NS 1000000

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
  const struct timespec alarm = {.tv_nsec = ALARM_NS};
  while (atomic_exchange_explicit(&lock->state, LADE_LOCK_AWAITED, memory_order_acquire) != LADE_LOCK_FREE)
    syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, LADE_LOCK_AWAITED, &alarm, NULL, 0);
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
