/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the members of a group on one node read where it is. Private to src/parallel/. */
#ifndef LADE_COMM_WINDOW_INTERNAL_H
#define LADE_COMM_WINDOW_INTERNAL_H

#include "parallel/comm_segment_internal.h"

/* lade_comm_alloc of a group; private memory where it shares none. Collective. */
int comm_window_alloc(struct comm_group *group, const struct lade_comm_params *params, uint64_t bytes,
                      struct lade_error *error, void **ret_data);

/* lade_comm_register of a group that shares memory. Collective. */
int comm_window_register(struct comm_group *group, const struct lade_comm_params *params,
                         const struct lade_comm_range *range, struct lade_error *error, bool *ret_is_registered);

/* End an allocation (@group NULL), or what @group registered. */
void comm_window_release(struct comm_job *job, const struct comm_group *group, const void *data);

/* Where @bytes at @data lie in a window of @group's: its id and the offset in this rank's part; 0: in none. */
uint64_t comm_window_find(const struct comm_group *group, const void *data, uint64_t bytes, uint64_t *ret_offset);
/* The address here of @offset in @rank's part, or NULL. */
const void *comm_window_at(struct comm_job *job, uint64_t id, int rank, uint64_t offset);

#endif
