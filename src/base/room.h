/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes this process can still have of a file system. statvfs's f_bavail is what a process without rights
 * can; ext4 keeps a twentieth from those, and a process that it is kept for is not to be refused within it.
 */
#ifndef LADE_ROOM_H
#define LADE_ROOM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/vfs.h>

#define LADE_ROOM_UNKNOWN INT64_MAX /* some file systems do not say; so large that a request within it is tried */

/* Of the file system that @path, or the open @fd, is on, into @ret_bytes. What statfs says of it. Any thread. */
int lade_room_get(const char *path, uint64_t *ret_bytes);
int lade_room_get_fd(int fd, uint64_t *ret_bytes);

/*
 * Up to where this process may write a file (ulimit -f), or LADE_ROOM_UNKNOWN. Whoever writes or allocates past it gets
 * SIGXFSZ, which ends a process, so it is asked for before. Any thread.
 */
uint64_t lade_room_file_limit(void);

/* What @fs leaves to a process that may have what it reserves, or may not. */
uint64_t lade_room_of(const struct statfs *fs, bool has_reserve);

#endif
