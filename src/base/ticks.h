/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cheapest clock that is the same for all cores: it says which of two things came first, in an unknown unit.
 *
 * x86 has counted at one rate for all cores since 2008 (Intel's manual, volume 3, "Invariant TSC"), Arm's generic timer
 * always has. Elsewhere it is the system's clock.
 */
#ifndef LADE_TICKS_H
#define LADE_TICKS_H

#include <stdint.h>
#include <time.h>

/* Any thread. Never falls within a thread where the machine keeps its promise. */
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
