/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that lose the one that started them while this one stands above both. */
#ifndef LADE_ORPHANS_H
#define LADE_ORPHANS_H

#include <stdbool.h>
#include <sys/types.h>

/* From now on this process is the parent of descendants whose own has ended (Linux 3.4); without that, init is. */
void orphans_adopt(void);

/* Whether process @pid has not ended. Without /proc nobody is seen to live. */
bool process_lives(pid_t pid);

/*
 * Whether a child of @parent, which leads a process group, or of this process lives outside of the groups of both, but
 * for those that @is_through. *has_any is set where there is one, if only one that has ended. Without /proc somebody
 * may.
 */
bool children_live(pid_t parent, bool (*is_through)(const void *user, pid_t pid), const void *user, bool *has_any);

/* Kill every child of this process and every descendant that becomes one by that, and wait for their ends. */
void orphans_end(void);

#endif
