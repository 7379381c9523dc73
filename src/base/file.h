/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, whole. Reads are bounded in size. After a replacement a reader at any moment, a crash included, finds
 * the old contents or the new, and never a part of them.
 */
#ifndef LADE_FILE_H
#define LADE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "lade/types.h"

/*
 * Read the regular file @path into memory that the caller frees, with a zero byte after its end. -EINVAL if the file is
 * larger than @max_bytes or not a regular file; -ENOENT, -EACCES and others from the system; -ENOMEM. Any thread.
 * Blocks.
 */
int lade_file_load(const char *path, size_t max_bytes, struct lade_error *error, char **ret_text, size_t *ret_bytes);

/*
 * Read the open file @fd, of any kind, to its end; else like lade_file_load. Messages call it @name. Waits for bytes of
 * a pipe or a terminal.
 */
int lade_stream_load(int fd, const char *name, size_t max_bytes, struct lade_error *error, char **ret_text,
                     size_t *ret_bytes);

/* Return the bytes of a byte order mark at the start of @text, which some editors write before UTF-8: 0 or 3. */
static inline size_t lade_text_mark_bytes(const char *text, size_t n_bytes)
{
  return n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/*
 * Make @path hold exactly @bytes of @data: write a temporary file beside it, fsync it, rename it, fsync the directory.
 * A link stays, and its target is replaced (-ENOENT if the target does not exist). The file keeps its permissions; a
 * new file gets the process's default ones (umask). -EINVAL for a device or a pipe, -EISDIR. -EPERM for a file of
 * another user, and for a link that belongs neither to this user nor to root. On failure the temporary file is removed
 * and @path is unchanged, unless the line says that the sync of the directory failed. @path then has the new contents,
 * and a power cut may bring the old ones back. Any thread. Blocks.
 */
int lade_file_replace(const char *path, const void *data, size_t bytes, struct lade_error *error);

/*
 * Remove temporary files of replacements of @path that a kill interrupted. Removes only files not written to for
 * LADE_FILE_STALE_S seconds, because another process may be replacing @path now. A file that cannot be removed stays
 * and does no harm beyond its space. Any thread. Blocks.
 */
#define LADE_FILE_STALE_S 600
void lade_file_remove_leftovers(const char *path);

/*
 * True if @status belongs to a file of this process's user, as the file system of the directory @dir_fd reports users.
 * A file system that maps all users to one (NFS with root squash, CIFS) also maps this process's user. Any thread.
 * Blocks.
 */
bool lade_file_is_own(int dir_fd, const struct stat *status);

/*
 * Check the open file @fd in the directory @dir_fd before it is trusted or written to. -EINVAL: not a regular file.
 * -EPERM: it belongs to another user, or other users may write to it. -EMLINK: it has a second name. Any thread.
 * Blocks.
 */
int lade_file_check_own(int dir_fd, int fd);

/*
 * Return the reason for @code of lade_file_check_own or of the two directory functions below, as text for a message.
 * For other codes it is strerror's text.
 */
const char *lade_file_refusal(int code);

/*
 * Open the directory @name in the directory @dir_fd to change its entries. Follows no link: -ENOTDIR or -ELOOP for a
 * link and for a file. -EPERM: it belongs to another user. Any thread. Blocks.
 */
int lade_directory_open_own(int dir_fd, const char *name);

/*
 * Remove the directory @name in the directory @dir_fd with the files in it; 0 if it does not exist. If @name is a link,
 * only the link is removed. -EPERM: it belongs to another user; -ENOTDIR: a file; -ENOTEMPTY: it holds a directory. Any
 * thread. Blocks.
 */
int lade_directory_remove(int dir_fd, const char *name);

#endif
