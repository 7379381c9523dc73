/* SPDX-License-Identifier: Apache-2.0 */
/* Do several ranks read the same files? */
#ifndef LADE_FILE_KEY_H
#define LADE_FILE_KEY_H

#include <stdint.h>

/*
 * A number that tells @path from others: a file by its size and its contents, a directory by names, sizes and contents
 * of the *.safetensors and *.json in it; not by times or owners. Up to 256 KiB of a file are read whole, of longer ones
 * 64 places, the first and the last among them. -ENOENT and what else opening and reading say. Any thread; blocks on
 * reads.
 */
int lade_file_key(const char *path, uint64_t *ret_key);

#endif
