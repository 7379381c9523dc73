/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that all members of a group on one node have mapped. Private to src/parallel/.
 *
 * Its pages are allocated before anybody touches them: too little room is an answer, not a signal in mid-step.
 */
#ifndef LADE_COMM_SEGMENT_INTERNAL_H
#define LADE_COMM_SEGMENT_INTERNAL_H

#include "parallel/comm_group_internal.h"

struct comm_segment {
  void *data; /* zeroed; NULL: none */
  uint64_t bytes;
  enum lade_comm_backing backing;
};

/*
 * Make one; collective, @bytes and @backing equal everywhere. When no backing works, all members get 0, data NULL
 * and the reasons in @ret_why. Negative only for what comm_group_transfer says.
 */
int comm_segment_open(struct comm_group *group, uint64_t bytes, enum lade_comm_backing backing,
                      struct lade_error *ret_why, struct lade_error *error, struct comm_segment *ret_segment);
void comm_segment_close(struct comm_segment *segment);

#endif
