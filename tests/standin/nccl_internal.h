/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the stand-in for NCCL share. */
#ifndef LADE_TEST_NCCL_INTERNAL_H
#define LADE_TEST_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl_standin.h"
#include "parallel/nccl_library.h"

#define MAX_RANKS 16
#define SLOT_BYTES 65536
#define BOX_BYTES 8192
#define MAX_OPS 512 /* of a group */

enum op_kind { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_BROADCAST, OP_SEND, OP_RECV };

struct op {
  enum op_kind kind;
  const char *src;
  char *dst;
  uint64_t n; /* elements, of a block where there are several */
  int type, peer;
  uint64_t n_done_bytes; /* of a send or receive */
};

/* A message, or a part of one, from one rank to another. */
struct box {
  _Atomic uint32_t is_full;
  uint32_t type;
  uint64_t total_bytes, bytes;
  char data[BOX_BYTES];
};

/* What each rank runs, for comparing; and its answer to a split. */
struct post {
  uint64_t kind, type, peer, n;
  uint64_t is_registered; /* all of its buffers are */
};
struct split_post {
  _Atomic uint32_t round;
  int colour, key;
};

/* In the file that the members of a communicator share; zero at first. */
struct segment {
  atomic_bool wants_send[MAX_RANKS][MAX_RANKS], wants_recv[MAX_RANKS][MAX_RANKS]; /* from, to: has a call come? */
  _Atomic uint32_t joined[MAX_RANKS], n_joined, n_finalized;
  _Atomic uint32_t n_here, n_met; /* a meeting */
  struct post posts[MAX_RANKS];
  struct split_post splits[2][MAX_RANKS]; /* by the parity of their round */
  char slots[MAX_RANKS][SLOT_BYTES];
  struct box boxes[MAX_RANKS][MAX_RANKS]; /* from, to */
};

/* Memory that a communicator knows. */
struct registration {
  uint64_t address, bytes;
  struct registration *next;
};

enum state { STATE_JOINING, STATE_READY, STATE_ISSUING, STATE_SPLITTING, STATE_FINALIZING, STATE_FINAL };

struct launch {
  struct ncclComm *comm;
  void *stream;
  int n_ops;
  struct op ops[MAX_OPS];
  struct launch *next;
};

struct ncclComm {
  int rank, size;
  char path[96];
  struct segment *shared;
  enum state state;
  int n_polls;            /* that found it in progress, in this state */
  struct launch *pending; /* of STATE_ISSUING */
  uint32_t n_splits;
  int colour, key;        /* of STATE_SPLITTING */
  struct ncclComm **ret_part;
  bool has_finalized;
  int device;            /* of which it has memory; -1: none */
  uint64_t memory_bytes;
  atomic_bool is_aborted;
  atomic_int async_error;
  pthread_mutex_t lock; /* guards what follows */
  struct registration *registrations;
  atomic_int n_launches; /* on streams, not over */
  atomic_int n_refs;     /* the handle, and each launch */
};

/* Complain and end the process: what happened is undefined on a GPU, and here a bug that a test shall find. */
void nccl_misuse(const struct ncclComm *comm, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

/* The file by @comm->path; false when it cannot be had. */
bool nccl_segment_open(struct ncclComm *comm);
void nccl_comm_unref(struct ncclComm *comm);

/* Whether one registration of @comm has all of it. Any thread. */
bool nccl_is_registered(struct ncclComm *comm, const void *at, uint64_t bytes);
/* A function of the driver's, which is the stand-in; NULL. */
void *nccl_driver_find(const char *name);
/* Is all of it memory of the device that may be used? */
bool nccl_is_of_device(const void *at, uint64_t bytes);
extern _Atomic uint64_t nccl_n_direct;

uint64_t nccl_type_bytes(int type);
/* Run what was launched; in a host function of a stream. Ends early when the communicator is aborted. */
void nccl_launch_run(struct launch *launch);

#endif
