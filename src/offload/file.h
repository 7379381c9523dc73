/* SPDX-License-Identifier: Apache-2.0 */
/* The store's file: its creation, and early detection of operations that the file system refuses. */
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
 * Return the error code for the caller if an operation before the first transfer fails with @code. User mistakes and
 * lack of space or memory keep their code, all others become -EIO.
 */
int store_code_of_open(int code);

/* Open the file of one drive. Errors of lade_store_open. */
int store_file_open(const struct lade_store_params *params, const char *dir, struct lade_error *error,
                    struct store_file *ret_file);

/* Allocate @bytes. -ENOSPC, -EFBIG, -EIO with one line in @error. 0 also if the file system cannot allocate ahead. */
int store_file_allocate(const struct store_file *file, const char *dir, uint64_t bytes, struct lade_faults *faults,
                        struct lade_error *error);

/* Return -EFBIG, with one line in @error, if @bytes exceed the file size limit: SIGXFSZ would end the process. */
int store_file_check_limit(const char *dir, uint64_t bytes, struct lade_error *error);

/* True if both files are on one file system. */
bool store_file_shares_device(const struct store_file *a, const struct store_file *b);

/* Allocate @bytes more, from byte @from on. A negative errno; 0 also if the file system cannot allocate ahead. */
int store_file_extend(const struct store_file *file, uint64_t from, uint64_t bytes, struct lade_faults *faults);

#endif
