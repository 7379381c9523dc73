/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store asks of an engine: take one piece of I/O, give back what is complete. Everything else
 * (cutting, checksums, short transfers, retries, errors, threads that wait) is in store.c, once.
 */
#ifndef LADE_OFFLOAD_ENGINE_H
#define LADE_OFFLOAD_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/faults.h"

struct store_io {
  int slot; /* names the piece in its completion, 0..depth-1 */
  int file; /* index into open's fds */
  bool is_write;
  uint32_t bytes;
  uint64_t offset; /* in the file */
  void *data;
  int64_t delay_ns; /* a fault: wait so long before; an engine without threads may ignore it */
};

struct store_completion {
  int slot;
  int result; /* bytes moved, or a negative errno */
};

struct store_engine_ops {
  const char *name;
  /* For @n_fds files, with at most @depth pieces at once on all of them. A negative errno if the machine refuses. */
  int (*open)(const int *fds, int n_fds, int depth, struct lade_faults *faults, void **ret_engine);
  /* Nothing is under way. NULL is allowed. */
  void (*close)(void *engine);
  /* Begin @io. A negative errno if it has not begun. Calls are serialised by the caller. */
  int (*submit)(void *engine, const struct store_io *io);
  /*
   * Give back up to @n completions; with @may_block at least one, which the caller knows to be under way. One
   * thread at a time, beside one that submits.
   */
  int (*reap)(void *engine, struct store_completion *completions, int n, bool may_block);
  /*
   * Pieces will be in this memory, which can be pinned once for all of them; until unpin, which has the same arguments,
   * it stays mapped as it is. Both return how many bytes are pinned now: pieces in memory that could not be go as from
   * anywhere. Serialised with submit. Both are NULL where nothing is gained.
   */
  uint64_t (*pin)(void *engine, void *data, uint64_t bytes);
  uint64_t (*unpin)(void *engine, void *data, uint64_t bytes);
};

extern const struct store_engine_ops store_engine_posix;
extern const struct store_engine_ops *const store_engine_uring; /* NULL when built without liburing */

#endif
