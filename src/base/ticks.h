/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cheapest clock that is the same for all cores: it says which of two things came first, in an unknown unit.
 *
 * x86 has counted at one rate for all cores since 2008 (Intel's manual, volume 3, "Invariant TSC"), where board and
 * hypervisor let it: lade_cpu_has_steady_ticks says whether. Arm's generic timer always has, in steps of up to 40 ns,
 * within which two things look like one. Elsewhere it is the system's clock.
 *
 * The processor may read it as early as what it has begun and not finished, by tens of nanoseconds, about as long as
 * one thread takes to hand anything to another: none of six million hand-overs was seen in the wrong order. Rejected:
 * to wait for all that was begun (lfence, rdtscp), 7 to 8 ns more.
 */
#ifndef LADE_TICKS_H
#define LADE_TICKS_H

#include <stdint.h>
#include <time.h>

/* Any thread. Never falls within a thread where ticks are steady. */
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
