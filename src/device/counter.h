/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rising 64-bit number that threads can sleep on. Private to src/device/.
 *
 * The one primitive of the host's queues: it is an event counter, a ring's head and a ring's tail. Raising it
 * costs one atomic exchange and one load unless what somebody sleeps for has come: who waits for the end of a step
 * is not woken by every piece of work before it.
 *
 * A sleeper reads the wake word, raises `urgency` to that of its value, looks at the counter once more and sleeps on
 * the wake word. All operations are sequentially consistent. Either `urgency` was raised before the raiser's look at
 * it, and the raiser changes the wake word, or the new value comes before the second look, and it does not sleep.
 * Who changes the wake word has set `urgency` to 0 first, so a sleeper whose announcement was lost by that has read
 * the wake word before it changed: it wakes, and announces itself anew if its value has not come.
 *
 * There is no spinning: threads of one process share few cores with the kernels' pool, and the time that a
 * spinner takes is taken from the one it waits for.
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
  _Atomic uint64_t urgency; /* UINT64_MAX less the lowest value that somebody sleeps for; 0: nobody sleeps */
  _Atomic uint32_t wake;    /* the futex word: changes with every wake-up */
};

static inline uint64_t counter_get(const struct counter *counter)
{
  return atomic_load_explicit(&counter->value, memory_order_acquire);
}

/* Wake who sleeps for @value or less. */
static inline void counter_wake(struct counter *counter, uint64_t value)
{
  if (atomic_load(&counter->urgency) < UINT64_MAX - value)
    return;
  if (atomic_exchange(&counter->urgency, 0) == 0)
    return;
  atomic_fetch_add(&counter->wake, 1);
  syscall(SYS_futex, &counter->wake, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Raise to @value. One thread raises a counter, or they use counter_raise_max. */
static inline void counter_raise(struct counter *counter, uint64_t value)
{
  atomic_store(&counter->value, value);
  counter_wake(counter, value);
}

/* Raise to @value unless it is there already. Any thread. */
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

/* Sleep until it has reached @value. Returns whether there was anything to wait for. */
static inline bool counter_wait(struct counter *counter, uint64_t value)
{
  value -= value == UINT64_MAX; /* what ends a queue raises to that, and nothing counts so far */
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
