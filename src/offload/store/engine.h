/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of an engine of the store: submit one piece of I/O, reap completed ones. store.c does everything else once
 * for all engines: cutting, checksums, short transfers, retries, errors and waiting threads.
 */
#ifndef LADE_OFFLOAD_ENGINE_H
#define LADE_OFFLOAD_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/faults.h"

struct store_io {
  int slot; /* identifies the piece in its completion, 0..depth-1 */
  int file; /* index into open's fds */
  bool is_write;
  uint32_t bytes;
  uint64_t offset; /* in the file */
  void *data;
  int64_t delay_ns; /* an injected fault: delay before the transfer; an engine without threads may ignore it */
};

struct store_completion {
  int slot;
  int result; /* bytes moved, or a negative errno */
};

struct store_engine_ops {
  const char *name;
  /*
   * Open the engine for @n_fds files, with at most @depth pieces in flight in total. A negative errno if the machine
   * refuses.
   */
  int (*open)(const int *fds, int n_fds, int depth, struct lade_faults *faults, void **ret_engine);
  /* Close the engine. NULL is allowed. pre: no piece is in flight. */
  void (*close)(void *engine);
  /* Begin @io. A negative errno if it has not begun. The caller serialises the calls. */
  int (*submit)(void *engine, const struct store_io *io);
  /*
   * Return up to @n completions; with @may_block at least one, or a negative errno if the engine can deliver none any
   * more. pre of @may_block: a piece is in flight. One thread at a time, concurrently with one that submits.
   */
  int (*reap)(void *engine, struct store_completion *completions, int n, bool may_block);
  /*
   * Pin memory once for all pieces in it. The memory stays mapped unchanged until unpin with the same arguments. Both
   * return the bytes that are pinned now. Pieces in memory that could not be pinned work as in other memory. Serialised
   * with submit. Both are NULL if the engine gains nothing by pinning.
   */
  uint64_t (*pin)(void *engine, void *data, uint64_t bytes);
  uint64_t (*unpin)(void *engine, void *data, uint64_t bytes);
};

extern const struct store_engine_ops store_engine_posix;
extern const struct store_engine_ops *const store_engine_uring; /* NULL in a build without liburing */

#endif
