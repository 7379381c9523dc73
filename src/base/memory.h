/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that this process may still take before the kernel refuses it or kills the process, and the limit that is the
 * tightest. Everything in this machine's memory counts against this one amount: a host device's arena, the host tier, a
 * store on a tmpfs, staging, and the process itself.
 */
#ifndef LADE_MEMORY_H
#define LADE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#define LADE_MEMORY_SOURCE_BYTES 160

struct lade_memory {
  uint64_t bytes;       /* that this process may still take */
  uint64_t limit_bytes; /* size of the tightest limit; for the machine, all its memory */
  char source[LADE_MEMORY_SOURCE_BYTES]; /* file or name of that limit, cut at its front if it is long */
};

/*
 * Return the bytes that the tightest of these limits leaves:
 *   MemAvailable of /proc/meminfo;
 *   of this process's control group and every group above it, version 2's memory.max and memory.high, version 1's
 *     memory.limit_in_bytes and memory.memsw.limit_in_bytes, minus the group's usage. Page cache that no process has
 *     mapped does not count as used, because the kernel drops it first;
 *   RLIMIT_AS and RLIMIT_DATA, minus the address space and the data of this process.
 * Swap does not count: pinned memory cannot be swapped, and swapped memory is slower than the plan predicts.
 *
 * Files are read below @root: "" is this machine. With another @root the limits of the process itself are left out.
 * -ENODEV with a line in @error if /proc/meminfo has no MemAvailable, or if a limit's file holds no number. No amount
 * would be sound then. Any thread; reads small files.
 */
int lade_memory_get(const char *root, struct lade_error *error, struct lade_memory *ret_memory);

/*
 * Return this process's peak of resident bytes (VmHWM) since the start or the last reset. Its code and libraries count.
 * 0: /proc does not state it. Any thread; reads a small file.
 */
uint64_t lade_memory_resident_peak(void);

/* Begin a new peak at the bytes that are resident now. Without Linux's clear_refs the old peak stays. Any thread. */
void lade_memory_resident_reset(void);

/* Return freed memory that the heap still holds to the system, if the C library can. Any thread. */
void lade_memory_trim(void);

#endif
