/* SPDX-License-Identifier: Apache-2.0 */
/* The store's own struct, shared by its rooms: store.c (transfers), store_open.c (life), drives.c (several of them). */
#ifndef LADE_STORE_INTERNAL_H
#define LADE_STORE_INTERNAL_H

#include <pthread.h>

#include "base/base.h"
#include "offload/engine.h"
#include "offload/file.h"
#include "offload/store.h"
#include "offload/stripes.h"
#include "offload/sums.h"

/* One directory. */
struct store_drive {
  char *dir;
  struct store_file file;
  bool is_aside; /* takes no new stripes */
  int n_pending; /* pieces with the engine */
  int64_t busy_since_ns; /* with pieces pending */
  /* Since the last look at speeds: bytes moved, time with pieces pending, pieces, and the sum of their times. */
  uint64_t window_bytes;
  int64_t window_busy_ns, window_ns;
  int window_pieces, n_slow_windows;
};

struct store_piece {
  struct lade_transfer *transfer;
  uint64_t from;               /* in the transfer */
  uint64_t place;              /* of its first byte, in the drive's file */
  uint32_t bytes, moved_bytes; /* whole blocks */
  int drive;
  int n_retries;
  int fault;   /* reported instead of the engine's result */
  int refusal; /* it cannot begin */
  int64_t begun_ns;
};

struct lade_store {
  struct store_drive drives[LADE_STORE_DRIVES_MAX];
  int n_drives;
  const char *name; /* of the one file, NULL: it has none; borrowed */
  const struct store_engine_ops *ops;
  void *engine;
  struct lade_faults *faults;
  int faulty_drive; /* whose transfers meet faults; -1: all */
  uint64_t capacity_bytes, reserved_bytes;
  uint32_t piece_bytes;
  int depth; /* slots, all drives together */
  int numa_node; /* as in lade_store_info */
  bool is_prepared;
  struct store_sums sums;
  char note[512];

  pthread_mutex_t mutex; /* of all that follows */
  pthread_cond_t progress;
  struct store_stripes stripes;      /* with one drive: none, and a place is an offset */
  char notice[512];                  /* not yet taken */
  struct lade_transfer *head, *tail; /* that have bytes left to give */
  int n_open;      /* transfers that are not delivered */
  int n_in_engine; /* pieces */
  bool is_reaping;
  uint64_t read_bytes, written_bytes, pinned_bytes;
  struct store_piece *pieces; /* by slot */
  int *free_slots;
  int n_free;

  /* The reaper's own. */
  struct store_completion *completions;
  struct store_piece *to_verify;
  int *again;
  int n_to_verify, n_again;
};

/* ---- store.c ---- */

/* Run a transfer that is not checked against any extent. Its result. */
int store_transfer_run(struct lade_store *store, struct lade_transfer *transfer);
void store_transfer_begin(struct lade_store *store, struct lade_transfer *transfer);
int store_transfer_await(struct lade_store *store, const struct lade_transfer *transfer);
/*
 * What a caller is told by number: whatever a drive answers to a transfer is a failure of I/O, also where the same
 * number from open would be a person's mistake (a file system that has become read-only, a drive that went away).
 */
int store_code_of_transfer(int code);
/* Nothing new begins; what has begun ends. */
void store_drain(struct lade_store *store);

/* ---- drives.c; mutex held ---- */

/* Put @piece, whose transfer goes by the map, where its bytes are or will be, cutting it at its stripe's end. */
void drives_place(struct lade_store *store, struct store_piece *piece);

/*
 * A transfer of @piece failed for good with @code: set its drive aside and, if it was a write, put the piece
 * elsewhere. False if there is nowhere, or if the drive is not to blame; then the transfer has failed.
 */
bool drives_replace(struct lade_store *store, struct store_piece *piece, int code);
/*
 * Has the stripe of a @piece that was written moved meanwhile, because another part of it failed? Then the piece is to
 * be written again, at its new place. This ends, as every move needs another drive set aside.
 */
bool drives_follow(struct lade_store *store, struct store_piece *piece);

/* @piece is with the engine; it has come back with @moved bytes: then a drive that is slow may be set aside. */
void drives_begin(struct lade_store *store, struct store_piece *piece);
void drives_end(struct lade_store *store, const struct store_piece *piece, uint32_t moved);

/* The directory of byte @offset of the store. */
const char *drives_dir_of(struct lade_store *store, uint64_t offset);

/*
 * Allocate each drive's file, by its speed (tried with @data, one piece) and its room, and make the map. Several
 * drives; without the mutex.
 */
int drives_prepare(struct lade_store *store, const void *data, uint64_t *ret_file_bytes, struct lade_error *error);

#endif
