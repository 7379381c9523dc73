/* SPDX-License-Identifier: Apache-2.0 */
/* Orphans: descendants of this process whose parent has ended. */
#ifndef LADE_REAPER_H
#define LADE_REAPER_H

#include <stdbool.h>
#include <sys/types.h>

/* Become the parent of orphaned descendants (Linux 3.4). Without that, init is their parent. */
void reaper_adopt(void);

/* True if process @pid has not ended. Without /proc always false. */
bool process_lives(pid_t pid);

/*
 * True if a child of @parent or of this process is outside the process groups of both, and @is_through is false for it.
 * pre: @parent leads a group. Sets *has_any if such a child exists, even as a zombie. Without /proc true.
 */
bool children_live(pid_t parent, bool (*is_through)(const void *user, pid_t pid), const void *user, bool *has_any);

/* Kill every child of this process, and every descendant that becomes a child by that. Waits until they have ended. */
void reaper_end(void);

#endif
