/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rising 64-bit number that threads can sleep on. Private to src/device/.
 *
 * The one primitive of the host's queues: it is an event counter, a ring's head and a ring's tail. Raising it
 * costs one atomic exchange and one load when nobody sleeps. A sleeper announces itself in n_sleepers,
 * reads the wake word, looks at the value once more and sleeps on the wake word. Either its announcement
 * comes before the raiser's look at n_sleepers in the one total order of these operations (all are sequentially
 * consistent), and it is woken, or the new value comes before its second look, and it does not sleep.
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
  _Atomic uint32_t n_sleepers;
  _Atomic uint32_t wake; /* the futex word: changes with every wake-up */
};

static inline uint64_t counter_get(const struct counter *counter)
{
  return atomic_load_explicit(&counter->value, memory_order_acquire);
}

static inline void counter_wake(struct counter *counter)
{
  if (atomic_load(&counter->n_sleepers) == 0)
    return;
  atomic_fetch_add(&counter->wake, 1);
  syscall(SYS_futex, &counter->wake, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Raise to @value. One thread raises a counter, or they use counter_raise_max. */
static inline void counter_raise(struct counter *counter, uint64_t value)
{
  atomic_store(&counter->value, value);
  counter_wake(counter);
}

/* Raise to @value unless it is there already. Any thread. */
static inline void counter_raise_max(struct counter *counter, uint64_t value)
{
  uint64_t now = atomic_load(&counter->value);
  while (now < value) {
    if (atomic_compare_exchange_weak(&counter->value, &now, value)) {
      counter_wake(counter);
      return;
    }
  }
}

/* Sleep until it has reached @value. Returns whether there was anything to wait for. */
static inline bool counter_wait(struct counter *counter, uint64_t value)
{
  if (counter_get(counter) >= value)
    return false;
  atomic_fetch_add(&counter->n_sleepers, 1);
  for (;;) {
    uint32_t wake = atomic_load(&counter->wake);
    if (atomic_load(&counter->value) >= value)
      break;
    syscall(SYS_futex, &counter->wake, FUTEX_WAIT_PRIVATE, wake, NULL, NULL, 0);
  }
  atomic_fetch_sub(&counter->n_sleepers, 1);
  return true;
}

#endif
