/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The struct of a tensor store, shared by its rooms: tensor_store.c (life), tensor_names.c, tensor_request.c (requests
 * and their threads), tensor_move.c (bytes of a request), tensor_catalog.c (the published tensors of a durable store).
 *
 * One mutex guards names, room and requests. A request has a copy of the runs that it moves. So bytes move without the
 * mutex while other requests change the tensor's list of runs.
 */
#ifndef LADE_TENSOR_INTERNAL_H
#define LADE_TENSOR_INTERNAL_H

#include <pthread.h>

#include "base/base.h"
#include "lade/store.h"
#include "offload/durable.h"
#include "offload/staging.h"
#include "offload/store.h"
#include "offload/store/free_extents.h"

#define TENSOR_WINDOW_BYTES (4u << 20) /* of one transfer */
#define TENSOR_N_WINDOWS 8    /* of one request in flight, and of bounced ones in all; 32 MiB keep a drive busy */
#define TENSOR_N_MOVERS 4     /* requests that move at once; short ones leave the drive idle between them */
#define TENSOR_NAME_SHOWN 200 /* of a name in messages */

struct byte_range {
  uint64_t from, end; /* of a tensor */
};

typedef LADE_ARRAY(struct byte_range) byte_ranges;

struct tensor {
  char *name;
  uint32_t number;
  uint64_t bytes, generation;
  store_runs runs;
  lade_tensor_ticket *requests; /* in flight */
  bool is_lost;                 /* a put of all of it failed: no new request finds it, its last request removes it */
  byte_ranges unwritten;          /* parts whose puts failed and that were not put since: no get may have them */
  uint32_t rank;                  /* in the tree; the tensor above has a rank as high at least */
  struct tensor *sides[2];        /* the trees of the names before and after */
  struct tensor *previous, *next; /* of all tensors, in no order */
};

/* An admitted request. The mutex guards is_done, result and the links. */
struct lade_tensor_ticket {
  struct tensor *tensor; /* NULL once it is finished */
  enum lade_tensor_op op;
  char *data;
  uint64_t offset, bytes; /* of the tensor */
  store_runs runs;        /* that hold this range */
  bool is_async;          /* a thread of the store moves it */
  bool is_done;           /* result and why are set */
  int result;
  struct lade_error why;
  lade_tensor_ticket *next_of_tensor, *next;       /* next: in the queue of requests that have not begun */
  lade_tensor_ticket *previous_open, *next_open;   /* tickets not yet ended */
};

struct lade_tensor_store {
  _Atomic int *is_alive; /* 0 in a child of fork, which must not use the ring that it shares with its parent */
  lade_durable *durable; /* NULL: the files are deleted when the process ends */
  lade_store *store;     /* the durable's, or its own */
  struct lade_extent extent;
  uint64_t budget_bytes;
  uint64_t in_flight_limit_bytes;
  struct lade_staging bounce; /* TENSOR_N_WINDOWS windows */
  pthread_t movers[TENSOR_N_MOVERS];
  int n_movers;

  pthread_mutex_t mutex; /* guards the fields below */
  pthread_cond_t changed; /* a request was queued or has finished, or a window of the slab is free */
  struct tensor *tree;
  struct tensor *tensors;
  struct store_room room;
  uint64_t n_tensors, n_puts;
  uint32_t n_numbers;
  uint32_t bounce_used; /* bit i: window i of the slab */
  lade_tensor_ticket *head, *tail, *open;
  uint64_t in_flight_bytes, in_flight_peak_bytes;
  bool is_closing;
  int publish_code; /* error of a publish that may or may not count; 0: no publish failed so */
};

/* ---- tensor_names.c; mutex held ---- */

/* Return the tensor @name, or NULL. O(log tensors). */
struct tensor *tensor_find(struct lade_tensor_store *s, const char *name);

/* Return the tensor whose name follows @after in the order of bytes; @after NULL: the first. O(log tensors). */
struct tensor *tensor_find_next(struct lade_tensor_store *s, const char *after);

/* Create a tensor called @name, without room. NULL if memory is out. */
struct tensor *tensor_make(struct lade_tensor_store *s, const char *name);
void tensor_remove(struct lade_tensor_store *s, struct tensor *tensor);

/* Free all tensors, without giving their room back. pre: no request is in flight. */
void tensors_free(struct lade_tensor_store *s);

/* ---- tensor_move.c; mutex not held ---- */

/* Move the bytes of @request. The first failure ends it, after the transfers in flight have come back. Blocks. */
int tensor_move(struct lade_tensor_store *s, const lade_tensor_ticket *request, struct lade_error *error);

/* ---- tensor_request.c ---- */

/* Run one whole request in the caller's thread. */
int tensor_request_run(struct lade_tensor_store *s, enum lade_tensor_op op, const char *name, void *data,
                       uint64_t bytes, struct lade_error *error);

/* Start the threads that move submitted requests. -EAGAIN. */
int tensor_movers_start(struct lade_tensor_store *s, struct lade_error *error);

/* End requests that have not begun with -ECANCELED, finish the others, join the threads and free all tickets. */
void tensor_movers_stop(struct lade_tensor_store *s);

/* ---- tensor_catalog.c ---- */

/* Open the durable files and, if there was a publish, its tensors. pre: @s is empty. */
int tensor_catalog_open(struct lade_tensor_store *s, const struct lade_tensor_store_params *params,
                        struct lade_error *error);

#endif
