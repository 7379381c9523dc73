/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the members of a group on one node read in place. Private to src/parallel/. */
#ifndef LADE_COMM_WINDOW_INTERNAL_H
#define LADE_COMM_WINDOW_INTERNAL_H

#include "parallel/comm/comm_segment_internal.h"

/* Implement lade_comm_alloc for a group; private memory if it shares none. Collective. */
int comm_window_alloc(struct comm_group *group, const struct lade_comm_params *params, uint64_t bytes,
                      struct lade_error *error, void **ret_data);

/* Implement lade_comm_register for a group that shares memory. Collective. */
int comm_window_register(struct comm_group *group, const struct lade_comm_params *params,
                         const struct lade_comm_range *range, struct lade_error *error, bool *ret_is_registered);

/* End an allocation (@group is NULL), or a registration by @group. */
void comm_window_release(struct comm_job *job, const struct comm_group *group, const void *data);

/*
 * Return the id of the window of @group that contains @bytes at @data, and the offset in this rank's part; 0: no
 * window.
 */
uint64_t comm_window_find(const struct comm_group *group, const void *data, uint64_t bytes, uint64_t *ret_offset);
/* Return the local address of @offset in @rank's part, or NULL. */
const void *comm_window_at(struct comm_job *job, uint64_t id, int rank, uint64_t offset);

#endif
