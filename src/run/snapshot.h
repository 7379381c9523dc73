/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy in host memory of what this rank writes in a save, so that the run may go on while it is written: the same
 * values at the moment of the copy, seen through the same functions.
 */
#ifndef LADE_SNAPSHOT_H
#define LADE_SNAPSHOT_H

#include "base/faults.h"
#include "run/values.h"

/* Bytes that a snapshot of @values takes. What a lower rank writes takes none. */
uint64_t lade_snapshot_bytes(const struct lade_values *values);

typedef struct lade_snapshot lade_snapshot;

/*
 * Memory for a snapshot of @values, touched, so that taking one allocates nothing. The values are borrowed until
 * destroy. -ENOMEM with a line.
 */
int lade_snapshot_create(const struct lade_values *values, struct lade_faults *faults, struct lade_error *error,
                         lade_snapshot **ret_snapshot);
void lade_snapshot_destroy(lade_snapshot *snapshot);

/* Copy the values as they are now. Nobody may be reading the snapshot. Errors of the values. Blocks. */
int lade_snapshot_take(lade_snapshot *snapshot, struct lade_error *error);

/*
 * What was copied, for lade_checkpoint_save with @peers, whose communicator that save has for itself: any thread, while
 * steps change the values. Setting is -EINVAL.
 */
struct lade_values lade_snapshot_values(lade_snapshot *snapshot, struct lade_peers *peers);

#endif
