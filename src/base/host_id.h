/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of this machine, by which processes find out if they share memory, drives and process numbers. */
#ifndef LADE_HOST_ID_H
#define LADE_HOST_ID_H

#include <stdint.h>

/*
 * Return a number that identifies this boot of this machine. It is equal in all its processes, in any container and
 * under any host name. It differs on every other machine, and after the next boot. Any thread.
 */
uint64_t lade_host_id(void);

#endif
