/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection: tests run the error path of each request that a machine can refuse.
 *
 * Before code requests a resource (memory, a thread, a file, a ring), it calls lade_fault, which returns the error to
 * fail with, or 0. Each kind of request is a point with a counter. One fault can be armed: the Nth call of a point, or
 * the Nth call of any point, fails with a stated errno, once or from then on. A test runs its scenario once to count
 * the calls, then once for every N. Without faults (NULL) a point costs one branch.
 *
 * A test may also set a callback that each call runs first. The callback may sleep, which makes the machine look
 * arbitrarily slow.
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
  LADE_FAULT_MOVE, /* moving pages by page table; -EINVAL makes the host device copy them, as on old kernels */
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
  LADE_FAULT_RING_WAIT,    /* for a completion */
  LADE_FAULT_PLAN, /* memory of a search, or of programs built from another rank's decision */
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
  void (*visit)(void *user, enum lade_fault_point point); /* each call runs it first; it may sleep; NULL: none */
  void *visit_user;
};

/*
 * Start counting calls; no call fails. The caller owns @faults, which needs no finish. pre: no lade_fault is running.
 */
void lade_faults_init(struct lade_faults *faults);

/*
 * Reset the counters, remove the callback, and make call number @nth (from 1) of @point fail with @code, a negative
 * errno: once, or @is_for_good from then on. pre: no lade_fault is running.
 */
void lade_faults_arm(struct lade_faults *faults, enum lade_fault_point point, uint64_t nth, bool is_for_good,
                     int code);

/* Return the calls of @point, or of all points together (LADE_FAULT_ANY), since init or arm. Any thread. */
uint64_t lade_faults_count(const struct lade_faults *faults, enum lade_fault_point point);

/* Return the calls that failed by injection since init or arm. Any thread. */
uint64_t lade_faults_injected(const struct lade_faults *faults);

/* Return the lower-case name of a point, "chunk_create"; static. */
const char *lade_fault_name(enum lade_fault_point point);

int lade_fault_count(struct lade_faults *faults, enum lade_fault_point point);

/*
 * Count a call of @point. Return 0, or the negative errno with which this call must fail. Any thread. Blocks only in a
 * test's callback.
 */
static inline int lade_fault(struct lade_faults *faults, enum lade_fault_point point)
{
  return faults ? lade_fault_count(faults, point) : 0;
}

/* calloc behind LADE_FAULT_HEAP; free with free. */
void *lade_fault_calloc(struct lade_faults *faults, size_t n, size_t item_bytes);

#endif
