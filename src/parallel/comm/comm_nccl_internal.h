/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of comm_nccl.c (collectives, creation, end), comm_nccl_memory.c (buffers) and comm_nccl_watch.c (the
 * thread that monitors them). Private to src/parallel/.
 */
#ifndef LADE_COMM_NCCL_INTERNAL_H
#define LADE_COMM_NCCL_INTERNAL_H

#include "parallel/comm/comm_internal.h"
#include "parallel/nccl_library.h"

#define NCCL_LOOK_MS (LADE_COMM_NOTICE_MS / 10)
#define NCCL_INTENTS 256 /* launches of each rank that the other ranks can still compare */

struct nccl_comm;

/* State that all communicators of one opening share. */
struct nccl_job {
  struct nccl_library nccl;
  lade_device *device;
  uint64_t scratch; /* device memory, divided among communicators in turn */
  atomic_int n_refs;
  atomic_uint n_made; /* communicators created so far */
  pthread_t watcher;
  bool is_watched; /* the watcher runs */
  bool has_reported; /* it has reported that NCCL registers nothing; used by the one registering thread */
  pthread_mutex_t mutex; /* guards the following fields */
  pthread_cond_t changed;
  bool is_ending;
  LADE_ARRAY(struct nccl_comm *) comms;
  LADE_ARRAY(struct nccl_window) windows;
};

/* Memory of lade_comm_alloc. */
struct nccl_window {
  uint64_t address, bytes;
  lade_chunk *chunk;
};

/* Memory registered with NCCL. The handle is NULL if NCCL does not use the registration. */
struct nccl_registration {
  const void *data;
  void *handle;
};

/* A rank's launch, in memory that all ranks see, for comparison. */
struct nccl_intent {
  _Atomic uint64_t head; /* sequence, peer, kind and dtype; written last */
  _Atomic uint64_t n;    /* elements of all items */
  _Atomic uint64_t cut;  /* number of items, and a hash of the number of elements of each */
};

struct nccl_board {
  _Alignas(64) _Atomic uint32_t n_launched; /* collectives that all members take part in */
  struct nccl_intent intents[NCCL_INTENTS]; /* indexed by sequence */
};

/*
 * Pinned memory that a stream writes: the number of pieces that have begun and ended on the device. There is one lane
 * for receives and one for all other work, because these may be on two streams.
 */
#define NCCL_LANES 2
struct nccl_progress {
  _Alignas(64) _Atomic uint64_t n_begun;
  _Alignas(64) _Atomic uint64_t n_ended;
};

struct nccl_comm {
  lade_comm base;
  struct nccl_job *job;
  lade_comm *control; /* of the same members on hosts: carries messages, and detects that they end */
  lade_queue *queue;  /* of lade_comm_run */
  struct nccl_progress *progress; /* by lane: 1 for receives, 0 for the rest */
  uint64_t progress_address;      /* its address for streams */
  uint64_t scratch;          /* device memory */
  struct nccl_board **boards; /* of every member, this one included; NULL if they share no memory */
  int *ranks;                /* of the world */
  pthread_mutex_t calls;     /* held around NCCL's calls and for the fields below; its holder checks for failures
                                itself */
  nccl_handle handle;        /* blocks; NULL once aborted */
  pthread_mutex_t root_lock; /* held around the end of root */
  nccl_handle root;          /* polled: it created the handle, and aborting it ends a call on the handle; NULL once
                                aborted */
  _Atomic int64_t inside_ns; /* time since which a call on the handle blocks; 0: there is none */
  int64_t excused_ns;        /* watcher: last time that another member was busy during such a call */
  LADE_ARRAY(struct nccl_registration) registrations; /* guarded by calls */
  /* By lane: */
  _Atomic uint64_t n_pieces[NCCL_LANES]; /* put on streams so far */
  uint64_t seen_begun[NCCL_LANES];       /* the piece in flight at the last check */
  int64_t since_ns[NCCL_LANES];          /* time since which it is in flight */
};

/*
 * Return 0 if the parts of all members succeeded. Otherwise return own @status with its line in @error, or another
 * member's code and text. Collective over @control; a failure there does not change the communicator.
 */
int comm_nccl_outcomes_meet(lade_comm *control, int status, struct lade_error *error);

/* Create zeroed device memory in its own chunks. release accepts a partly created window. -ENOMEM. */
int comm_nccl_window_create(lade_device *device, uint64_t bytes, struct nccl_window *ret_window,
                            struct lade_error *error);
void comm_nccl_window_release(lade_device *device, const struct nccl_window *window);

/* Implement the contract's operations on memory. */
int comm_nccl_alloc(lade_comm *base, uint64_t bytes, struct lade_error *error, void **ret_data);
void comm_nccl_free(lade_comm *base, void *data);
int comm_nccl_register(lade_comm *base, const struct lade_comm_range *range, struct lade_error *error,
                       bool *ret_is_registered);
void comm_nccl_unregister(lade_comm *base, const void *data);

/*
 * Start and stop the watcher of a job. start: -EAGAIN. The watcher ends by itself when the job ends, and stop waits for
 * that.
 */
int comm_nccl_watch_start(struct nccl_job *job);
void comm_nccl_watch_stop(struct nccl_job *job);
/* Begin and end monitoring a communicator. add: -ENOMEM. */
int comm_nccl_watch_add(struct nccl_comm *comm);
void comm_nccl_watch_remove(struct nccl_comm *comm);

/* ---- with calls held ---- */

/* Write the launched collective to this rank's board, and compare it with the others'. */
int comm_nccl_intent_publish(struct nccl_comm *comm, const struct lade_comm_list *list, struct lade_error *error);

/* Return an error if a wait cannot succeed: members differ, have ended or aborted or are late, or a device failed. */
int comm_nccl_look(struct nccl_comm *comm, struct lade_error *error);

/* Return the result of @call on @handle: wait while it is in progress, with regular checks, for at most timeout_ms. */
int comm_nccl_settle(struct nccl_comm *comm, nccl_handle handle, const char *call, nccl_result result,
                     struct lade_error *error);

/* Begin a call on the handle, which may block: until comm_nccl_leave the watcher checks for failures and ends it. */
void comm_nccl_enter(struct nccl_comm *comm);
/* End it. As comm_nccl_settle; the watcher's reason if that has ended it. */
int comm_nccl_leave(struct nccl_comm *comm, const char *call, nccl_result result, struct lade_error *error);

/* Take the root from the communicator, for its end; NULL if the watcher has aborted it. Any thread. */
nccl_handle comm_nccl_root_take(struct nccl_comm *comm);

/*
 * Fail the communicator with @status: record it, end its kernels, and report failures to the other ranks that they
 * cannot detect.
 */
void comm_nccl_fail(struct nccl_comm *comm, int status, const struct lade_error *error);

#endif
