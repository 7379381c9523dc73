/* SPDX-License-Identifier: Apache-2.0 */
/* Move the bytes of a collective inside a node, after its members agree. Private to src/parallel/. */
#ifndef LADE_COMM_NODE_MOVES_INTERNAL_H
#define LADE_COMM_NODE_MOVES_INTERNAL_H

#include "parallel/comm/comm_node_internal.h"

struct comm_agreement {
  int parity;                        /* index of the intents of this collective */
  bool is_src_shared, is_dst_shared; /* for each item, the buffers of all members are in one window */
};

/* True if a rank can read or write the members' own buffers, as this kind of collective needs it. */
bool comm_move_is_direct(const struct lade_comm_list *list, const struct comm_agreement *agreement);
/* Run @list over the members' own buffers, or through the node's staging memory. Errors of a meeting. Blocks. */
int comm_move_direct(struct comm_node *node, const struct lade_comm_list *list, const struct comm_agreement *agreement,
                     struct lade_error *error);
int comm_move_staged(struct comm_node *node, const struct lade_comm_list *list, struct lade_error *error);

#endif
