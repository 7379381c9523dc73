/* SPDX-License-Identifier: Apache-2.0 */
/* A run's claim on the directory that it saves into. */
#ifndef LADE_CLAIM_H
#define LADE_CLAIM_H

#include "lade/types.h"

/*
 * Make @dir if need be, claim it for as long as @ret_fd stays open, and write @config there as lade.conf. -EBUSY:
 * another run has it, and nothing was changed. The caller closes @ret_fd.
 */
int claim_take(const char *dir, const char *config, int *ret_fd, struct lade_error *error);

#endif
