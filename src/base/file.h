/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, whole: read with a bound on their size, replaced so that a reader at any moment (a
 * crash included) finds the old contents or the new, never a part.
 */
#ifndef LADE_FILE_H
#define LADE_FILE_H

#include <stddef.h>

#include "lade/types.h"

/*
 * Read the regular file @path into memory that the caller frees, with a zero byte after its end.
 * -EINVAL for a file past @max_bytes or one that is no file; -ENOENT, -EACCES, ... as the system says;
 * -ENOMEM. Any thread. Blocks.
 */
int lade_file_load(const char *path, size_t max_bytes, struct lade_error *error, char **ret_text, size_t *ret_bytes);

/*
 * Make @path hold exactly @bytes of @data: a temporary file beside it, fsync, rename, fsync of the directory. A
 * link stays, and what it leads to is replaced (-ENOENT where that is nothing); who may use a file stays, too, and
 * a new one is as the process makes new files (umask). -EINVAL for a device or a pipe, -EISDIR. On failure @path
 * is as it was and the temporary file is gone. Any thread. Blocks.
 */
int lade_file_replace(const char *path, const void *data, size_t bytes, struct lade_error *error);

/*
 * Remove temporary files of replacements of @path that never ended, a kill having come between: those that nobody has
 * written to for LADE_FILE_STALE_S seconds, since others may be replacing it now. What cannot be removed stays: it
 * takes a name and no more. Any thread. Blocks.
 */
#define LADE_FILE_STALE_S 600
void lade_file_remove_leftovers(const char *path);

#endif
