/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's own struct, shared by its rooms: store.c (transfers), store_open.c (life), drives.c and
 * drives_prepare.c (several of them), store_validity.c (the recount).
 */
#ifndef LADE_STORE_INTERNAL_H
#define LADE_STORE_INTERNAL_H

#include <pthread.h>

#include "base/base.h"
#include "offload/file.h"
#include "offload/store.h"
#include "offload/store/checksums.h"
#include "offload/store/engine.h"
#include "offload/store/stripes.h"

#define STORE_DEPTH_MAX 1024 /* slots per drive */
#define STORE_SLOTS_MAX (STORE_DEPTH_MAX * LADE_STORE_DRIVES_MAX)

/* One directory. */
struct store_drive {
  char *dir;
  struct store_file file;
  bool is_aside; /* takes no new stripes */
  int n_pending; /* pieces with the engine */
  int64_t busy_since_ns; /* start of the current time with pieces pending */
  /* Since the last comparison of speeds: bytes moved, time with pieces pending, pieces, and the sum of their times. */
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
  int refusal; /* error of a piece that cannot begin */
  bool is_in_engine;
  int64_t begun_ns;
};

struct lade_store {
  struct store_drive drives[LADE_STORE_DRIVES_MAX];
  int n_drives;
  const char *name; /* of the one file; NULL: unnamed; borrowed */
  const struct store_engine_ops *ops;
  void *engine;
  struct lade_faults *faults;
  int faulty_drive; /* the drive whose transfers meet faults; -1: all */
  bool (*is_stopping)(void *user); /* as in lade_store_params */
  void *user;
  uint64_t capacity_bytes, reserved_bytes;
  uint32_t piece_bytes;
  int depth; /* slots, all drives together */
  int numa_node; /* as in lade_store_info */
  bool is_prepared;
  struct store_sums sums;
  char note[512];

  pthread_mutex_t mutex; /* guards all fields below */
  pthread_cond_t progress;
  struct store_stripes stripes;      /* empty with one drive, and a place is an offset */
  char notice[512];                  /* not yet taken */
  struct lade_transfer *head, *tail; /* queue of those with unassigned bytes */
  int n_open;      /* transfers not yet delivered */
  int n_in_engine; /* pieces */
  int engine_code; /* error of an engine that delivers no completion any more; 0: it works */
  bool is_reaping;
  uint64_t read_bytes, written_bytes, pinned_bytes;
  struct store_piece *pieces; /* by slot */
  int *free_slots;
  int n_free;

  /* Used by the reaper alone. */
  struct store_completion *completions;
  struct store_piece *to_verify;
  int *again;
  int n_to_verify, n_again;
};

/* ---- store.c ---- */

/* Run a transfer that is not checked against any extent; return its result. */
int store_transfer_run(struct lade_store *store, struct lade_transfer *transfer);
void store_transfer_begin(struct lade_store *store, struct lade_transfer *transfer);
int store_transfer_await(struct lade_store *store, const struct lade_transfer *transfer);
/*
 * Return the error code for the caller if a transfer fails with @code. It is always a failure of I/O, also if the same
 * code from open would be a user's mistake. Examples are a file system that became read-only and a removed drive.
 */
int store_code_of_transfer(int code);
/* Start no new transfer; wait for those that have begun. */
void store_drain(struct lade_store *store);

/* ---- store_validity.c ---- */

/*
 * True if @store's parts agree. Each slot is free or has a piece of an open transfer. The queue and the counts of
 * pieces fit the slots. On each drive the stripes and the free slots tile the file. Mutex held, or no other thread.
 * pre: the engine is open. O(slots squared + stripes); asserted with -Dchecks=full.
 */
bool store_is_valid(const struct lade_store *store);

/* ---- drives.c; mutex held ---- */

/*
 * Set the drive and place of @piece, whose transfer goes by the map, to the present or future place of its bytes. Cut
 * it at its stripe's end.
 */
void drives_place(struct lade_store *store, struct store_piece *piece);

/*
 * Handle a transfer of @piece that failed, retries included, with @code: set its drive aside and, for a write, put the
 * piece on another drive. False if there is no space, or if the drive is not the cause; then the transfer has failed.
 */
bool drives_replace(struct lade_store *store, struct store_piece *piece, int code);
/*
 * True if the stripe of a written @piece has moved meanwhile, because another part of it failed. Then the piece is
 * written again, at its new place. This ends, because each move needs another drive set aside.
 */
bool drives_follow(struct lade_store *store, struct store_piece *piece);

/*
 * Record that @piece is in the engine; record that it has come back with @moved bytes. drives_end may set a slow drive
 * aside.
 */
void drives_begin(struct lade_store *store, struct store_piece *piece);
void drives_end(struct lade_store *store, const struct store_piece *piece, uint32_t moved);

/* Return the directory of byte @offset of the store. */
const char *drives_dir_of(struct lade_store *store, uint64_t offset);

/*
 * Allocate each drive's file by its speed (measured with @data, one piece) and its free space, and make the map. For
 * several drives; without the mutex.
 */
int drives_prepare(struct lade_store *store, const void *data, uint64_t *ret_file_bytes, struct lade_error *error);

#endif
