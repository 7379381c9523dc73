/* SPDX-License-Identifier: Apache-2.0 */
/* The links of this node to others and between its GPUs, as the kernel lists them. */
#ifndef LADE_TOOLS_NODE_LINKS_H
#define LADE_TOOLS_NODE_LINKS_H

#include <stdbool.h>

struct node_links {
  int n_infiniband, n_efa;  /* network devices with verbs, of InfiniBand or RoCE, and of EFA */
  char first[64], rate[64]; /* the first one's name and rate, "" without one */
  int n_nvswitches;         /* that join this node's GPUs */
  bool has_gpudirect;       /* the kernel lets network devices reach GPU memory */
};

/* Find the links below @root, "" for this machine. A file that is missing or unreadable counts as no link. Blocks. */
void node_links_find(const char *root, struct node_links *ret_links);

#endif
