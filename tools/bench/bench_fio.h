/* SPDX-License-Identifier: Apache-2.0 */
/* fio on a file of its own, the reference for a drive's bandwidth. */
#ifndef LADE_BENCH_FIO_H
#define LADE_BENCH_FIO_H

#include <stdbool.h>
#include <stdint.h>

#include "lade/types.h"

struct fio_file {
  int fd; /* unnamed, of @bytes, all written */
  uint64_t bytes;
};

struct fio_result {
  double bytes_per_s, cpu_s_per_gb;
};

/*
 * Make the file in @dir and write all of it, from @data of @data_bytes (a divisor of @bytes, aligned to a block). The
 * file has no name, so that it disappears however this process ends. A negative errno with one line.
 */
int fio_file_open(struct fio_file *ret_file, const char *dir, uint64_t bytes, const void *data, uint64_t data_bytes,
                  struct lade_error *error);
void fio_file_close(struct fio_file *file);

/*
 * Make one pass over the file: io_uring, O_DIRECT, requests of 8 MiB, 32 in flight, buffers on huge pages or fio's own.
 * -ENOENT if fio is not installed, -EIO if it fails; its messages go to stderr. Blocks.
 */
int fio_run(const struct fio_file *file, bool is_write, bool has_huge_pages, struct fio_result *ret_result,
            struct lade_error *error);

#endif
