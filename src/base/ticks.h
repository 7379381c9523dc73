/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cheapest clock that is common to all cores: it orders two events, in an unknown unit.
 *
 * x86 has counted at one rate for all cores since 2008 (Intel's manual, volume 3, "Invariant TSC"), if board and
 * hypervisor allow it: see lade_cpu_has_steady_ticks. Arm's generic timer always does, in steps of up to 40 ns; two
 * events within a step look simultaneous. Other processors use the system's clock.
 *
 * The processor may read the clock before earlier instructions have finished, by tens of nanoseconds. A hand-over
 * between threads takes about as long: none of six million measured hand-overs was in the wrong order. Rejected:
 * waiting for all earlier instructions (lfence, rdtscp), which costs 7 to 8 ns more.
 */
#ifndef LADE_TICKS_H
#define LADE_TICKS_H

#include <stdint.h>
#include <time.h>

/* Return the ticks. In one thread they never decrease if ticks are steady. Any thread. */
static inline uint64_t lade_ticks_now(void)
{
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

#endif
