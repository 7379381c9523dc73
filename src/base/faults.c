/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection. Counters are atomic and independent, so that points hit from several threads each get their own
 * number: exactly one call is the Nth. The thread schedule decides which call that is. A test that needs the same call
 * each time arms a point that only one thread hits.
 *
 * The armed fault is plain data, written before the calls start. Rejected: random faults with a probability. A loop
 * over every N is exhaustive and repeatable, and a failure names its N.
 */
#include <stdlib.h>

#include "base/base.h"
#include "base/faults.h"

static const char *const fault_names[] = {
    [LADE_FAULT_HEAP] = "heap",
    [LADE_FAULT_RESERVE] = "reserve",
    [LADE_FAULT_CHUNK_CREATE] = "chunk_create",
    [LADE_FAULT_MAP] = "map",
    [LADE_FAULT_UNMAP] = "unmap",
    [LADE_FAULT_MOVE] = "move",
    [LADE_FAULT_THREAD] = "thread",
    [LADE_FAULT_QUEUE] = "queue",
    [LADE_FAULT_COPY] = "copy",
    [LADE_FAULT_FILE_OPEN] = "file_open",
    [LADE_FAULT_FILE_READ] = "file_read",
    [LADE_FAULT_FILE_WRITE] = "file_write",
    [LADE_FAULT_FILE_SYNC] = "file_sync",
    [LADE_FAULT_RING_SETUP] = "ring_setup",
    [LADE_FAULT_RING_SUBMIT] = "ring_submit",
    [LADE_FAULT_RING_COMPLETE] = "ring_complete",
    [LADE_FAULT_RING_WAIT] = "ring_wait",
    [LADE_FAULT_PLAN] = "plan",
    [LADE_FAULT_ANY] = "any",
};

void lade_faults_init(struct lade_faults *faults)
{
  lade_faults_arm(faults, LADE_FAULT_ANY, 0, false, -1);
}

void lade_faults_arm(struct lade_faults *faults, enum lade_fault_point point, uint64_t nth, bool is_for_good,
                     int code)
{
  LADE_ASSERT(point <= LADE_FAULT_ANY && code < 0);
  for (int i = 0; i <= LADE_N_FAULT_POINTS; i++)
    atomic_store(&faults->n_calls[i], 0);
  atomic_store(&faults->n_injected, 0);
  faults->visit = NULL;
  faults->point = point;
  faults->nth = nth;
  faults->is_for_good = is_for_good;
  faults->code = code;
}

uint64_t lade_faults_count(const struct lade_faults *faults, enum lade_fault_point point)
{
  LADE_ASSERT(point <= LADE_FAULT_ANY);
  return atomic_load(&faults->n_calls[point]);
}

uint64_t lade_faults_injected(const struct lade_faults *faults)
{
  return atomic_load(&faults->n_injected);
}

const char *lade_fault_name(enum lade_fault_point point)
{
  LADE_ASSERT(point <= LADE_FAULT_ANY);
  return fault_names[point];
}

int lade_fault_count(struct lade_faults *faults, enum lade_fault_point point)
{
  if (faults->visit)
    faults->visit(faults->visit_user, point);
  LADE_ASSERT(point < LADE_N_FAULT_POINTS);
  uint64_t of_point = atomic_fetch_add(&faults->n_calls[point], 1) + 1;
  uint64_t of_any = atomic_fetch_add(&faults->n_calls[LADE_FAULT_ANY], 1) + 1;
  if (!faults->nth || (faults->point != point && faults->point != LADE_FAULT_ANY))
    return 0;
  uint64_t number = faults->point == LADE_FAULT_ANY ? of_any : of_point;
  if (faults->is_for_good ? number < faults->nth : number != faults->nth)
    return 0;
  atomic_fetch_add(&faults->n_injected, 1);
  return faults->code;
}

void *lade_fault_calloc(struct lade_faults *faults, size_t n, size_t item_bytes)
{
  return lade_fault(faults, LADE_FAULT_HEAP) ? NULL : calloc(n, item_bytes);
}
