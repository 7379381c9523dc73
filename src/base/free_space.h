/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that this process can still allocate in a file system. statvfs's f_bavail is the figure for a process without
 * privileges. By default, ext4 reserves a twentieth of its blocks, and a process that may use the reserve can allocate
 * more than f_bavail.
 */
#ifndef LADE_FREE_SPACE_H
#define LADE_FREE_SPACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/vfs.h>

#define LADE_FREE_SPACE_UNKNOWN INT64_MAX /* the file system reports no size; large enough that every request is
                                             tried */

/*
 * Write the free bytes of the file system of @path, or of the open @fd, into @ret_bytes. Errors of statfs. Any thread.
 */
int lade_free_space_get(const char *path, uint64_t *ret_bytes);
int lade_free_space_get_fd(int fd, uint64_t *ret_bytes);

/*
 * Return the largest file that this process may write (ulimit -f), or LADE_FREE_SPACE_UNKNOWN. A write or an allocation
 * past it raises SIGXFSZ, which ends a process, so callers check the limit first. Any thread.
 */
uint64_t lade_file_size_limit(void);

/* Return the free bytes of @fs. With @has_reserve they include the reserve of a privileged process. */
uint64_t lade_free_space_of(const struct statfs *fs, bool has_reserve);

#endif
