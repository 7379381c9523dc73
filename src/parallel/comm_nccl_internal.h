/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comm_nccl.c (collectives, making, ending), comm_nccl_memory.c (buffers) and comm_nccl_watch.c (who watches over
 * them) share. Private to src/parallel/.
 */
#ifndef LADE_COMM_NCCL_INTERNAL_H
#define LADE_COMM_NCCL_INTERNAL_H

#include "parallel/comm_internal.h"
#include "parallel/nccl_library.h"

#define NCCL_LOOK_MS (LADE_COMM_NOTICE_MS / 10)
#define NCCL_INTENTS 256 /* of each rank that the others can look back at */

struct nccl_comm;

/* What all communicators of one opening share. */
struct nccl_job {
  struct nccl_library nccl;
  lade_device *device;
  uint64_t scratch; /* device memory, a part for each communicator in turn */
  atomic_int n_refs;
  atomic_uint n_made; /* communicators, ever */
  pthread_t watcher;
  bool is_watched; /* the watcher runs */
  bool has_told;   /* that NCCL registers nothing; of who registers, one thread at a time */
  pthread_mutex_t mutex; /* guards what follows */
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

/* Memory that NCCL knows. The handle may be NULL: it had no use for it. */
struct nccl_registration {
  const void *data;
  void *handle;
};

/* What a rank has launched, for the others to compare: in memory that they all see. */
struct nccl_intent {
  _Atomic uint64_t what; /* sequence, peer, kind and dtype; written last */
  _Atomic uint64_t n;    /* elements of all items */
  _Atomic uint64_t cut;  /* how many items there are, and a hash of how many elements each has */
};

struct nccl_board {
  _Alignas(64) _Atomic uint32_t n_launched; /* collectives that all members take part in */
  struct nccl_intent intents[NCCL_INTENTS]; /* by their sequence */
};

/*
 * Pinned memory that a stream writes: how many pieces have begun and ended on the device. One of receives and one of
 * everything else, as these may be on two streams.
 */
#define NCCL_LANES 2
struct nccl_progress {
  _Alignas(64) _Atomic uint64_t n_begun;
  _Alignas(64) _Atomic uint64_t n_ended;
};

struct nccl_comm {
  lade_comm base;
  struct nccl_job *job;
  lade_comm *control; /* of the same members: tells them things, and sees them end */
  lade_queue *queue;  /* of lade_comm_run */
  struct nccl_progress *progress; /* by lane: 1 of receives, 0 of the rest */
  uint64_t progress_address;      /* where streams see it */
  uint64_t scratch;          /* device memory */
  struct nccl_board **boards; /* every member's, the own one too; NULL where they share no memory */
  int *ranks;                /* of the world */
  pthread_mutex_t calls;     /* around NCCL's calls and what follows; who holds it watches for himself */
  nccl_handle handle;        /* NULL once aborted */
  LADE_ARRAY(struct nccl_registration) registrations; /* behind calls */
  /* By lane: */
  _Atomic uint64_t n_pieces[NCCL_LANES]; /* put on streams so far */
  uint64_t seen_begun[NCCL_LANES];       /* the piece that was under way at the last look */
  int64_t since_ns[NCCL_LANES];          /* since when */
};

/*
 * Did all members' parts go well? Own @status with its line in @error, else what the others say: their code if it is
 * one. Collective over the control; what fails there leaves the communicator as it was.
 */
int comm_nccl_outcomes_meet(lade_comm *control, int status, struct lade_error *error);

/* Device memory, zeroed, in chunks of its own; release takes what is half made. -ENOMEM. */
int comm_nccl_window_create(lade_device *device, uint64_t bytes, struct nccl_window *ret_window,
                            struct lade_error *error);
void comm_nccl_window_release(lade_device *device, const struct nccl_window *window);

/* The contract's operations on memory. */
int comm_nccl_alloc(lade_comm *base, uint64_t bytes, struct lade_error *error, void **ret_data);
void comm_nccl_free(lade_comm *base, void *data);
int comm_nccl_register(lade_comm *base, const struct lade_comm_range *range, struct lade_error *error,
                       bool *ret_is_registered);
void comm_nccl_unregister(lade_comm *base, const void *data);

/* The watcher of a job. start: -EAGAIN. It ends by itself when the job ends, which stop waits for. */
int comm_nccl_watch_start(struct nccl_job *job);
void comm_nccl_watch_stop(struct nccl_job *job);
/* From here on a communicator is watched, and no longer. add: -ENOMEM. */
int comm_nccl_watch_add(struct nccl_comm *comm);
void comm_nccl_watch_remove(struct nccl_comm *comm);

/* ---- with calls held ---- */

/* Write on the own board what is launched now, and compare it with what others have. */
int comm_nccl_intent_publish(struct nccl_comm *comm, const struct lade_comm_list *list, struct lade_error *error);

/* Is there a reason to wait no longer? Members that differ, end, give up or do not come; a device that failed. */
int comm_nccl_look(struct nccl_comm *comm, struct lade_error *error);

/*
 * What @call answered on @handle: waits while it is in progress, with a look now and then, for timeout_ms.
 */
int comm_nccl_settle(struct nccl_comm *comm, nccl_handle handle, const char *call, nccl_result result,
                     struct lade_error *error);

/*
 * The communicator has failed with @status: keep that, end its kernels, and tell the others what they cannot find out
 * themselves.
 */
void comm_nccl_fail(struct nccl_comm *comm, int status, const struct lade_error *error);

#endif
