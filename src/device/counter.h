/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-bit number that only rises, and on which threads can sleep. Private to src/device/.
 *
 * It is the one primitive of the host's queues: an event counter, a ring's head and a ring's tail. Raising it costs one
 * atomic exchange and one load, unless it reaches a sleeper's value. So a thread that waits for the end of a step is
 * not woken by every piece of work before it.
 *
 * A sleeper reads the wake word, raises `urgency` to that of its value, reads the counter again and sleeps on the wake
 * word. All operations are sequentially consistent, so one of two orders holds. If `urgency` was raised before the
 * raising thread reads it, that thread changes the wake word. Otherwise the new value came before the sleeper's second
 * read, and the sleeper does not sleep. The raising thread sets `urgency` to 0 before it changes the wake word. This
 * may erase the urgency of another sleeper. That sleeper has read the wake word before the change, so it wakes, and
 * raises `urgency` again if its value is not reached.
 *
 * No thread spins: threads of one process share few cores with the kernels' pool, and a spinner takes processor time
 * from the thread that it waits for.
 */
#ifndef LADE_COUNTER_H
#define LADE_COUNTER_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

struct counter {
  _Alignas(64) _Atomic uint64_t value;
  _Atomic uint64_t urgency; /* UINT64_MAX minus the lowest value that a thread sleeps for; 0: no thread sleeps */
  _Atomic uint32_t wake;    /* the futex word: changes with every wake-up */
};

static inline uint64_t counter_get(const struct counter *counter)
{
  return atomic_load_explicit(&counter->value, memory_order_acquire);
}

/* Wake sleepers for @value or less. */
static inline void counter_wake(struct counter *counter, uint64_t value)
{
  if (atomic_load(&counter->urgency) < UINT64_MAX - value)
    return;
  if (atomic_exchange(&counter->urgency, 0) == 0)
    return;
  atomic_fetch_add(&counter->wake, 1);
  syscall(SYS_futex, &counter->wake, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Raise to @value. Only one thread may raise a counter by this function. */
static inline void counter_raise(struct counter *counter, uint64_t value)
{
  atomic_store(&counter->value, value);
  counter_wake(counter, value);
}

/* Raise to @value unless the counter has reached it. Any thread. */
static inline void counter_raise_max(struct counter *counter, uint64_t value)
{
  uint64_t now = atomic_load(&counter->value);
  while (now < value) {
    if (atomic_compare_exchange_weak(&counter->value, &now, value)) {
      counter_wake(counter, value);
      return;
    }
  }
}

/* Sleep until the counter has reached @value. Return true if it had not reached @value at the call. */
static inline bool counter_wait(struct counter *counter, uint64_t value)
{
  value -= value == UINT64_MAX; /* the end of a queue raises the counter to UINT64_MAX; real counts stay below */
  if (counter_get(counter) >= value)
    return false;
  uint64_t mine = UINT64_MAX - value;
  for (;;) {
    uint32_t wake = atomic_load(&counter->wake);
    uint64_t urgency = atomic_load(&counter->urgency);
    while (urgency < mine && !atomic_compare_exchange_weak(&counter->urgency, &urgency, mine))
      ;
    if (atomic_load(&counter->value) >= value)
      break;
    syscall(SYS_futex, &counter->wake, FUTEX_WAIT_PRIVATE, wake, NULL, NULL, 0);
  }
  return true;
}

#endif
