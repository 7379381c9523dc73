/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy in host memory of the values that this rank saves, so that steps can run during the save. It gives the values
 * at the moment of the copy, through the same functions.
 */
#ifndef LADE_SNAPSHOT_H
#define LADE_SNAPSHOT_H

#include "base/faults.h"
#include "run/values.h"

/* Return the bytes of a snapshot of @values. Values that a lower rank writes take none. */
uint64_t lade_snapshot_bytes(const struct lade_values *values);

typedef struct lade_snapshot lade_snapshot;

/*
 * Allocate and touch memory for a snapshot of @values, so that taking one allocates nothing. The values are borrowed
 * until destroy. -ENOMEM with a line.
 */
int lade_snapshot_create(const struct lade_values *values, struct lade_faults *faults, struct lade_error *error,
                         lade_snapshot **ret_snapshot);
void lade_snapshot_destroy(lade_snapshot *snapshot);

/* Copy the current values. No thread may be reading the snapshot. Errors of the values. Blocks. */
int lade_snapshot_take(lade_snapshot *snapshot, struct lade_error *error);

/*
 * Return the copied values, for lade_checkpoint_save with @group, whose communicator that save uses alone: any thread,
 * while steps change the values. Setting is -EINVAL.
 */
struct lade_values lade_snapshot_values(lade_snapshot *snapshot, struct lade_rank_group *group);

#endif
