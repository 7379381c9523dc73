/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of the files of the fake for NCCL. */
#ifndef LADE_TEST_NCCL_INTERNAL_H
#define LADE_TEST_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fake_nccl.h"
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
  uint64_t n; /* elements; of a block if there are several */
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

/* The operation of each rank, for comparison; and its answer to a split. */
struct post {
  uint64_t kind, type, peer, n;
  uint64_t is_registered; /* all of its buffers are registered */
};
struct split_post {
  _Atomic uint32_t round;
  int colour, key;
};

/* The file that the members of a communicator share; zero at first. */
struct segment {
  /* from, to: true once such a call has come */
  atomic_bool wants_send[MAX_RANKS][MAX_RANKS], wants_recv[MAX_RANKS][MAX_RANKS];
  _Atomic uint32_t joined[MAX_RANKS], n_grouped, n_finalized;
  _Atomic uint32_t n_here, n_met; /* members at a meeting, and completed meetings */
  struct post posts[MAX_RANKS];
  struct split_post splits[2][MAX_RANKS]; /* by the parity of their round */
  char slots[MAX_RANKS][SLOT_BYTES];
  struct box boxes[MAX_RANKS][MAX_RANKS]; /* from, to */
};

/* Memory registered with a communicator. */
struct registration {
  uint64_t address, bytes;
  struct registration *next;
};

/* Algorithms, by which kinds connect; peers, to which sends and receives connect, come after them. */
enum algorithm { ALGORITHM_TREE, ALGORITHM_RING, ALGORITHM_SWITCH, ALGORITHM_SWITCH_REGISTERED, N_ALGORITHMS };

/* Communicators whose work ends together. */
struct family {
  atomic_bool is_aborted;
  atomic_int n_members;
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
  int max_ctas; /* NCCL_UNSET: as many as NCCL likes */
  bool is_blocking, shares;
  struct family *family;
  int n_inside;        /* threads in a call that blocks */
  uint64_t connected;  /* bits of algorithms and peers */
  char path[96];
  struct segment *shared;
  enum state state;
  int n_polls;            /* queries that found it in progress, in this state */
  struct launch *pending; /* of STATE_ISSUING */
  pthread_t group;        /* likewise: NCCL's thread */
  bool has_group;
  uint32_t n_splits;
  int colour, key;        /* of STATE_SPLITTING */
  struct ncclComm **ret_part, *part;
  struct nccl_config part_config;
  bool has_finalized;
  int device;            /* whose memory it took; -1: none */
  uint64_t memory_bytes;
  atomic_int async_error;
  pthread_mutex_t lock; /* guards the fields below */
  struct registration *registrations;
  atomic_int n_launches; /* on streams, not completed */
  atomic_int n_refs;     /* the handle, and each launch */
};

/* Print a message and end the process: the call is undefined on a GPU, and here a bug that a test must find. */
void nccl_misuse(const struct ncclComm *comm, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

/* Open the file by @comm->path; false if that fails. */
bool nccl_segment_open(struct ncclComm *comm);
void nccl_comm_unref(struct ncclComm *comm);

/* True if one registration of @comm covers the whole range. Any thread. */
bool nccl_is_registered(struct ncclComm *comm, const void *at, uint64_t bytes);
/* Return a function of the driver, which is the fake; NULL: none. */
void *nccl_driver_find(const char *name);
/* True if the whole range is usable memory of the device. */
bool nccl_is_of_device(const void *at, uint64_t bytes);
extern _Atomic uint64_t nccl_n_direct;

uint64_t nccl_type_bytes(int type);
/* Run launched work, in a host function of a stream. Ends early if the communicator is aborted. */
void nccl_launch_run(struct launch *launch);

#endif
