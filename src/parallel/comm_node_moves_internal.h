/* SPDX-License-Identifier: Apache-2.0 */
/* How the bytes of a collective move inside a node, once its members agree. Private to src/parallel/. */
#ifndef LADE_COMM_NODE_MOVES_INTERNAL_H
#define LADE_COMM_NODE_MOVES_INTERNAL_H

#include "parallel/comm_node_internal.h"

struct comm_agreement {
  int parity;                        /* of the intents' places */
  bool is_src_shared, is_dst_shared; /* every member's lies in one window, item by item */
};

/* Everybody has come; when it returns 0, everything that was written before is seen by all. */
int comm_node_meet(struct comm_node *node, struct lade_error *error);

bool comm_move_is_direct(const struct lade_comm_list *list, const struct comm_agreement *agreement);
int comm_move_direct(struct comm_node *node, const struct lade_comm_list *list, const struct comm_agreement *agreement,
                     struct lade_error *error);
int comm_move_staged(struct comm_node *node, const struct lade_comm_list *list, struct lade_error *error);

#endif
