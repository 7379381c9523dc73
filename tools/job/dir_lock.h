/* SPDX-License-Identifier: Apache-2.0 */
/* A run's lock on the directory that it saves into. */
#ifndef LADE_DIR_LOCK_H
#define LADE_DIR_LOCK_H

#include "lade/types.h"

/*
 * Make @dir if needed, lock it until *ret_fd is closed, and write @config there as lade.conf. -EBUSY: another run has
 * the lock, and nothing was changed. The caller closes *ret_fd.
 */
int dir_lock_take(const char *dir, const char *config, int *ret_fd, struct lade_error *error);

#endif
