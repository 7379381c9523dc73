/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resources of a program's run that do not depend on its instructions' meaning: the roles of its queues, and memory
 * pinned for transfers of a store. The executors of models (run/executor/) and of callers' own steps (run/step/) share
 * them.
 */
#ifndef LADE_PROGRAM_RESOURCES_H
#define LADE_PROGRAM_RESOURCES_H

#include "device/device.h"
#include "lade/plan.h"
#include "offload/store.h"

/* Return the role of the device's queue on which a program's queue @q runs. */
enum lade_queue_role lade_program_queue_role(enum lade_queue_id q);

/* Memory that transfers of a store read and write, in parts; a part of 0 bytes is skipped. */
struct lade_transfer_memory {
  struct {
    void *at;
    uint64_t bytes;
  } arena, host; /* the device's arena, empty if the host does not reach it; the host tier */
};

/*
 * Pin @memory for all transfers of @store, or unpin it; NULL is allowed. A part that the machine refuses to pin stays
 * unpinned: its transfers work, and cost more of the processor's time. pre of unpin: no transfer is in flight.
 */
void lade_transfer_memory_pin(const struct lade_transfer_memory *memory, lade_store *store);
void lade_transfer_memory_unpin(const struct lade_transfer_memory *memory, lade_store *store);

#endif
