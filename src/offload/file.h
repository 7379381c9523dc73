/* SPDX-License-Identifier: Apache-2.0 */
/* The store's file: making it, and finding out early what the file system will not do. */
#ifndef LADE_OFFLOAD_FILE_H
#define LADE_OFFLOAD_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/faults.h"
#include "offload/store.h"

struct store_file {
  int fd;
  bool is_direct;
};

/*
 * What a caller is told by number when something refuses before the first transfer: a person's mistake, and want of
 * room or of memory, by their own numbers, and all else as the failure of I/O that it is.
 */
int store_code_of_open(int code);

/* Errors as lade_store_open. */
int store_file_open(const struct lade_store_params *params, const char *dir, struct lade_error *error,
                    struct store_file *ret_file);

/* Allocate @bytes. -ENOSPC, -EFBIG, -EIO with one line. A file system that cannot is no error. */
int store_file_allocate(const struct store_file *file, const char *dir, uint64_t bytes, struct lade_faults *faults,
                        struct lade_error *error);

/* -EFBIG, with one line, if a file may not have @bytes: the signal would end the process. */
int store_file_check_limit(const char *dir, uint64_t bytes, struct lade_error *error);

/* Are they on one file system? */
bool store_file_shares_device(const struct store_file *a, const struct store_file *b);

/* Allocate @bytes more, from byte @from on. A negative errno; a file system that cannot is no error. */
int store_file_extend(const struct store_file *file, uint64_t from, uint64_t bytes, struct lade_faults *faults);

#endif
