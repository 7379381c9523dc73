/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that lose the one that started them while this one stands above both. */
#ifndef LADE_ORPHANS_H
#define LADE_ORPHANS_H

/* From now on this process is the parent of descendants whose own has ended (Linux 3.4); without that, init is. */
void orphans_adopt(void);

/* Kill every child of this process and every descendant that becomes one by that, and wait for their ends. */
void orphans_end(void);

#endif
