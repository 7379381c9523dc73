/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a drive likes to be asked, found by trying: how long requests are and how many are under way, for long transfers
 * (the store's pieces) and for streamed updates (a window is one, plan/program.h).
 */
#ifndef LADE_TUNE_H
#define LADE_TUNE_H

#include "base/base.h"
#include "machine/machine.h"

struct tune_drive {
  /* Bytes/s both ways together while @n_requests of @request_bytes are under way. A negative errno ends the tuning. */
  int (*measure)(void *user, uint64_t request_bytes, int n_requests, struct lade_error *error, double *ret_bytes_per_s);
  int64_t (*now_ns)(void *user);
  void *user;
};

/* About the longest that a measurement takes on a drive that has nothing else to do; what a tuning takes at most. */
#define TUNE_MEASURE_NS 30000000
#define TUNE_LIMIT_NS 4000000000
#define TUNE_BYTES_MOST (UINT64_C(64) << 20) /* that any measurement has under way */

/*
 * Set piece_bytes, n_pieces, window_bytes and n_windows of @ret_store, and nothing else: the defaults, or what was
 * time and again at least a tenth faster. Begins nothing that would not end within TUNE_LIMIT_NS, by the rates seen so
 * far, and before them by total_bytes_per_s of @ret_store, 0 being unknown. Errors are measure's, and then @ret_store
 * is as it was. Blocks.
 */
int tune_run(const struct tune_drive *drive, struct lade_error *error, struct lade_machine_store *ret_store);

#endif
