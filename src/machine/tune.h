/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find a drive's best requests by trying: their length and their number in flight, for long transfers (the store's
 * pieces) and for streamed updates (a window is one, program/program.h).
 */
#ifndef LADE_TUNE_H
#define LADE_TUNE_H

#include "base/base.h"
#include "machine/machine.h"

struct tune_drive {
  /*
   * Measure bytes/s both ways together with @n_requests of @request_bytes in flight. A negative errno ends the tuning.
   */
  int (*measure)(void *user, uint64_t request_bytes, int n_requests, struct lade_error *error, double *ret_bytes_per_s);
  int64_t (*now_ns)(void *user);
  void *user;
};

/* About the longest measurement on an idle drive. */
#define TUNE_MEASURE_NS 30000000
#define TUNE_LIMIT_NS 4000000000 /* of a tuning */
#define TUNE_BYTES_MAX (UINT64_C(64) << 20) /* the most bytes that a measurement has in flight */

/*
 * Set piece_bytes, n_pieces, window_bytes and n_windows of @ret_store, and no other field: the defaults, or settings
 * that were repeatedly at least a tenth faster. Begin no measurement that would end past TUNE_LIMIT_NS by the rates
 * seen so far; before the first, by total_bytes_per_s of @ret_store, where 0 is unknown. On an error of measure
 * @ret_store is unchanged. Blocks.
 */
int tune_run(const struct tune_drive *drive, struct lade_error *error, struct lade_machine_store *ret_store);

#endif
