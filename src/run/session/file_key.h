/* SPDX-License-Identifier: Apache-2.0 */
/* A comparison of the files that several ranks read. */
#ifndef LADE_FILE_KEY_H
#define LADE_FILE_KEY_H

#include <stdint.h>

/*
 * Return a number that identifies the contents of @path: of a file its size and contents; of a directory the names,
 * sizes and contents of the *.safetensors and *.json in it; not times or owners. Files of up to 256 KiB are read whole,
 * of longer ones 64 places, the first and the last among them. -ENOENT, and errors of opening and reading. Any thread;
 * blocks on reads.
 */
int lade_file_key(const char *path, uint64_t *ret_key);

#endif
