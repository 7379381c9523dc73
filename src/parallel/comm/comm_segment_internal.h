/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that all members of a group on one node have mapped. Private to src/parallel/.
 *
 * Its pages are allocated before the first access: lack of space is an error, not a signal in mid-step.
 */
#ifndef LADE_COMM_SEGMENT_INTERNAL_H
#define LADE_COMM_SEGMENT_INTERNAL_H

#include "parallel/comm/comm_group_internal.h"

struct comm_segment {
  void *data; /* zeroed; NULL: none */
  uint64_t bytes;
  enum lade_comm_backing backing;
};

/*
 * Create a segment; collective, with equal @bytes and @backing at all members. If no backing works, all members get 0,
 * data NULL and the reasons in @ret_why. Negative only for errors of comm_group_transfer.
 */
int comm_segment_open(struct comm_group *group, uint64_t bytes, enum lade_comm_backing backing,
                      struct lade_error *ret_why, struct lade_error *error, struct comm_segment *ret_segment);
void comm_segment_close(struct comm_segment *segment);

#endif
