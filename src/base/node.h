/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LADE_NODE_H
#define LADE_NODE_H

#include <stdint.h>

/*
 * A number of the machine that this process runs on: the same in all its processes, whatever container they are in and
 * whatever it is called there, and another one on every other machine, and after its next start. Any thread.
 */
uint64_t lade_node_key(void);

#endif
