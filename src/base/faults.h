/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on demand: the error paths of everything that a machine can refuse, run by tests.
 *
 * Code that is about to ask the machine for something (memory, a thread, a file, a ring) first asks
 * lade_fault whether this call shall fail. Each kind of call is a point with a counter; one
 * fault can be armed: the Nth call of a point, or the Nth call of any point, fails with a stated errno,
 * once or from then on. A test runs its scenario once to count the calls, then once for every N.
 * Without faults (NULL) a point costs one branch. A test may also be told of every call while it waits, which makes a
 * machine as slow as it likes.
 */
#ifndef LADE_FAULTS_H
#define LADE_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lade_fault_point {
  LADE_FAULT_HEAP,
  LADE_FAULT_RESERVE,      /* addresses */
  LADE_FAULT_CHUNK_CREATE, /* physical memory */
  LADE_FAULT_MAP,
  LADE_FAULT_UNMAP,
  LADE_FAULT_MOVE, /* moving pages by page table; -EINVAL makes the host copy them, as old kernels do */
  LADE_FAULT_THREAD,
  LADE_FAULT_QUEUE,
  LADE_FAULT_COPY, /* when it runs */
  LADE_FAULT_FILE_OPEN,
  LADE_FAULT_FILE_READ,
  LADE_FAULT_FILE_WRITE,
  LADE_FAULT_FILE_SYNC,
  LADE_FAULT_RING_SETUP,
  LADE_FAULT_RING_SUBMIT,
  LADE_FAULT_RING_COMPLETE,
  LADE_FAULT_PLAN, /* the memory of a search, or of the programs that are made of what another rank found */
  LADE_N_FAULT_POINTS,
  LADE_FAULT_ANY = LADE_N_FAULT_POINTS /* for arming and counting: all points together */
};

struct lade_faults {
  _Atomic uint64_t n_calls[LADE_N_FAULT_POINTS + 1]; /* last: of any point */
  _Atomic uint64_t n_injected;
  enum lade_fault_point point;
  uint64_t nth; /* counted from 1; 0: nothing fails */
  bool is_for_good;
  int code;
  void (*visit)(void *user, enum lade_fault_point point); /* called by every call before it goes on; may wait. NULL */
  void *visit_user;
};

/* Count calls; nothing fails. The caller owns @faults, which needs no finish. No lade_fault under way. */
void lade_faults_init(struct lade_faults *faults);

/*
 * Start counting anew, and make call number @nth (from 1) of @point fail with @code, a negative errno,
 * once or @is_for_good from then on. Nobody is told of calls any more. No lade_fault may be under way.
 */
void lade_faults_arm(struct lade_faults *faults, enum lade_fault_point point, uint64_t nth, bool is_for_good,
                     int code);

/* Calls of @point, or of all together (LADE_FAULT_ANY), since init or arm. Any thread. */
uint64_t lade_faults_count(const struct lade_faults *faults, enum lade_fault_point point);

/* Calls that were made to fail since init or arm. Any thread. */
uint64_t lade_faults_injected(const struct lade_faults *faults);

/* Lower-case name of a point, "chunk_create"; static. */
const char *lade_fault_name(enum lade_fault_point point);

int lade_fault_count(struct lade_faults *faults, enum lade_fault_point point);

/* 0, or the negative errno with which this call shall fail. Any thread. Never blocks. */
static inline int lade_fault(struct lade_faults *faults, enum lade_fault_point point)
{
  return faults ? lade_fault_count(faults, point) : 0;
}

/* calloc behind LADE_FAULT_HEAP; free with free. */
void *lade_fault_calloc(struct lade_faults *faults, size_t n, size_t item_bytes);

#endif
