/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comm contract: collectives among ranks, called directly or as work on a device's queue; on host memory, or with
 * the engine NCCL on memory of a GPU.
 *
 * Communicators. lade_comm_open gives the one of all ranks of the job; lade_comm_split cuts it up, by the axes of
 * a mesh for instance. Opening, splitting, allocating and closing are collective: every member calls, in one order.
 * A communicator has one collective under way at a time, and all members issue its collectives in the same order;
 * different communicators are independent and may be driven by different threads. One send and one recv of a
 * communicator may be under way beside each other, on two threads or queues. A rank that issues another
 * collective than the others (send and recv excepted) is found out and named before any memory is written, whenever the
 * ranks share memory, and elsewhere when params->is_checked.
 *
 * Meaning. n counts elements, and blocks are in the order of ranks:
 *
 *   all_gather      src[n] of every rank -> dst[size * n]; in place when src is dst's own block
 *   reduce_scatter  the sum of src[size * n] of all ranks, block rank of it -> dst[n]; in place when dst is src's block
 *   all_reduce      the sum of src[n] of all ranks -> dst[n] everywhere; in place when dst is src
 *   all_to_all      block i of src[size * n] -> block rank of rank i's dst[size * n]; apart
 *   broadcast       src[n] of rank peer -> dst[n] everywhere; there dst may be src; elsewhere src is unused
 *   send, recv      src[n] -> dst[n] of rank peer. A send is synchronous: it ends when the receive has begun
 *   barrier         nobody leaves before everybody has come
 *
 * A list is several collectives run as one: of one kind, but for the last three, of one dtype and peer, each with an n
 * and buffers of its own. It does what they would do one after another, with the same bits, for the latency of one: a
 * step of training has many small tensors. No buffer of one may meet a dst of another.
 *
 * Buffers of two ranks, and src and dst otherwise, do not overlap. n may be 0, which moves nothing and still meets.
 * Memory is the caller's; it must not change, and dst not be read, until the collective has ended.
 *
 * Sums (F32, BF16) are over the tree of neighbouring ranks that struct lade_rank_sum_args states ((x0 + x1) + (x2 + x3)
 * of four), in FP32, rounded once when stored. So the bits are a function of what the ranks hold, never of timing,
 * path, chunking or the number of threads. Other operations move bytes of any dtype.
 *
 * Failure. An error of a communicator is final: every later call on it gives the same error. When a member dies,
 * the others' calls end within LADE_COMM_NOTICE_MS (ranks on one node; elsewhere the launcher ends the job) with
 * -EPIPE and its rank; when one calls lade_comm_abort, with -ECANCELED and its words; when one is stopped (SIGSTOP) for
 * LADE_COMM_STOPPED_MS on this node, or does not come for timeout_ms, with -ETIMEDOUT, and its rank where ranks share
 * memory; when they disagree about what to do, with -EPROTO. Time in which a rank is busy by its own word, or in which
 * we were stopped ourselves, does not count. Buffers of a call that failed may still be written to until the process
 * ends.
 *
 * Waiting sleeps; where there are more ranks than cores nobody spins.
 *
 * NCCL differs where the GPU's side of it cannot be had otherwise:
 *   sums      in an order of NCCL's own, a function of ranks, machine and n, of all n of a list; BF16 is rounded at
 *             each addition. The same at every rank and every time on one machine. is_ordered of lade_comm_info tells
 *   lists     one group of NCCL's calls
 *   order     communicators of one device are launched in one order by all ranks, not independently: their kernels
 *             wait for each other on the same GPU
 *   send      may end before the receive has begun, once NCCL has buffered it
 *   astray    ranks that disagree are found out, and named, where they share memory, whoever comes last before he
 *             starts; dst of the others may have been written to. A send and a recv that do not fit are not found out
 *   waits     a rank that has died, given up or gone astray is looked for every tenth of LADE_COMM_NOTICE_MS while
 *             collectives are under way; timeout_ms counts from where one has begun on its queue
 */
#ifndef LADE_COMM_H
#define LADE_COMM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"
#include "kernels/kernels.h"
#include "parallel/launch_env.h"

typedef struct lade_comm lade_comm;

#define LADE_COMM_NOTICE_MS 500
#define LADE_COMM_STOPPED_MS 5000
#define LADE_COMM_TIMEOUT_MS 300000          /* the default: what is slower than that says that it is busy */
#define LADE_COMM_STAGING_BYTES (1ull << 20) /* the default */
#define LADE_COMM_LIST_MOST 64               /* of a list: what each says of itself has room in shared memory */

enum lade_comm_engine {
  LADE_COMM_AUTO, /* self in a world of one, else MPI */
  LADE_COMM_SELF, /* a world of one */
  LADE_COMM_MPI,  /* Open MPI, through the plug-in liblade-mpi.so; LADE_MPI_PLUGIN names another file */
  LADE_COMM_NCCL  /* libnccl.so.2 on params->device; AUTO's engine beside it starts it and watches over the ranks */
};

/* How ranks of one node exchange bytes. */
enum lade_comm_backing {
  LADE_COMM_BACKING_AUTO,  /* the first of the following that works */
  LADE_COMM_BACKING_MEMFD, /* anonymous shared memory, of no file system and bounded by none */
  LADE_COMM_BACKING_FILE,  /* a file in /dev/shm that is already unlinked, if it has room */
  LADE_COMM_BACKING_NONE   /* MPI's own collectives; also what ranks on several nodes use */
};

struct lade_comm_params {
  size_t struct_size;
  enum lade_comm_engine engine;
  enum lade_comm_backing backing;
  const struct lade_launch *launch;   /* who we are by the environment; must agree with the engine. NULL: one of one */
  const struct lade_kernels *kernels; /* borrowed: sums */
  lade_pool *pool;                    /* borrowed, may be NULL: sums and copies run on it */
  uint64_t staging_bytes; /* per rank and communicator: what is exchanged at once; 0: LADE_COMM_STAGING_BYTES */
  int timeout_ms;         /* 0: LADE_COMM_TIMEOUT_MS */
  bool is_checked;        /* compare what ranks issue on every path; always so with -Dchecks=full */
  void (*log)(void *user, const char *line); /* once, at rank 0, when the best way is not to be had; may be NULL */
  void *log_user;
  struct lade_faults *faults; /* borrowed, may be NULL */
  lade_device *device;        /* of NCCL: a CUDA device in its primary context, borrowed; buffers are its memory */
  lade_comm *control;         /* of NCCL: the same members on hosts, borrowed, split and left; NULL: opened anew */
  bool has_neighbours;        /* of NCCL: ranks will send to the next and the one before, round the ring, in no agreed
                                 order; parts of it too. They are connected while it is made */
};

enum lade_collective_kind {
  LADE_ALL_GATHER,
  LADE_REDUCE_SCATTER,
  LADE_ALL_REDUCE,
  LADE_ALL_TO_ALL,
  LADE_BROADCAST,
  LADE_SEND,
  LADE_RECV,
  LADE_BARRIER,
  LADE_N_COLLECTIVES
};

struct lade_collective {
  enum lade_collective_kind kind;
  enum lade_dtype dtype;
  int peer; /* of broadcast, send and recv */
  uint64_t n;
  const void *src;
  void *dst;
};

struct lade_comm_list {
  const struct lade_collective *items;
  int n; /* 1 .. LADE_COMM_LIST_MOST */
};

struct lade_comm_info {
  const char *engine, *path; /* "mpi", "shared memory (memfd)"; static */
  uint64_t staging_bytes;    /* of this rank, all buffers together; what NCCL takes for itself is not known here */
  bool is_ordered;           /* sums have the bits that are written above */
  bool can_register;         /* lade_comm_register may have an effect: ranks share memory, or NCCL registers it */
  int timeout_ms;            /* for how long a member is waited for */
  uint64_t n_direct;         /* collectives and lists that moved each byte once, without staging; NCCL tells none */
};

/*
 * Open the communicator of all ranks; collective. The caller closes it. -ENOSYS when the plug-in, MPI or NCCL is not
 * here, -EINVAL when launcher and engine disagree about rank or size, or NCCL has no CUDA device, -ENOMEM, -EIO. One
 * thread; blocks until all came.
 */
int lade_comm_open(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);

/*
 * Close; collective unless it has failed: then it lets the others find out about the first cause, a fifth of a second,
 * before this process becomes the next one. What was split from it is closed before. NULL is
 * allowed. No queue may have work of it.
 */
void lade_comm_close(lade_comm *comm);

/*
 * Members that give the same @colour form a new communicator, ordered by @key, then by rank; collective.
 * A negative colour takes no part and gets NULL. -ENOMEM, and as lade_comm_run.
 */
int lade_comm_split(lade_comm *comm, int colour, int key, struct lade_error *error, lade_comm **ret_comm);

int lade_comm_rank(const lade_comm *comm);
int lade_comm_size(const lade_comm *comm);
void lade_comm_get_info(const lade_comm *comm, struct lade_comm_info *ret_info);

/*
 * Memory that the other members can read where it is: a collective whose buffers all lie in such memory moves each
 * byte once, without staging, on this communicator and on what is split from it. Zeroed, page-aligned; collective, and
 * @bytes may differ. Freed before the communicator is closed. Where ranks share no memory it is ordinary memory.
 * With NCCL it is memory of the device. One thread of a process at a time. -ENOMEM, at every rank; -EINVAL; else as
 * lade_comm_run.
 */
int lade_comm_alloc(lade_comm *comm, uint64_t bytes, struct lade_error *error, void **ret_data);
/* This rank's part; no collective may be using it. Any thread. */
void lade_comm_free(lade_comm *comm, void *data);

/* Memory that a rank has already. */
struct lade_comm_range {
  void *data;
  uint64_t bytes;
  int descriptor; /* what it is mapped from, from its beginning: of lade_device_chunk_export; negative: none */
};

/*
 * Let the other members read @range where it is: a collective of @comm itself, not of its parts, whose buffers all lie
 * in what its members registered, wherever in it, moves each byte once, as in memory of lade_comm_alloc. Collective;
 * bytes may differ. The memory and the descriptor stay the caller's; the descriptor may be closed after the call. Where
 * a member has no descriptor, or another cannot map its memory, or ranks share none, *@ret_is_registered is false at
 * all of them and collectives work as before; the bits never differ. With NCCL it is a chunk of the device, which NCCL
 * may then move without buffers of its own; a descriptor is not needed, and it is false where NCCL registers no memory.
 * One thread of a process at a time. -EINVAL; as lade_comm_run.
 */
int lade_comm_register(lade_comm *comm, const struct lade_comm_range *range, struct lade_error *error,
                       bool *ret_is_registered);
/*
 * The end of it, before the memory is given back and @comm closed; no collective may be using it. What others have
 * mapped of it lives until they call this, too. Any thread.
 */
void lade_comm_unregister(lade_comm *comm, const void *data);

/*
 * Run a collective on the calling thread; returns when this rank's part has ended. -EINVAL for arguments that make
 * no sense, with nothing done; otherwise as above, and the communicator has failed. Never allocates.
 */
int lade_comm_run(lade_comm *comm, const struct lade_collective *collective, struct lade_error *error);

/* The same for a list. */
int lade_comm_run_list(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error);

/* A list as work on a queue: the caller's, its items too, unchanged until its event. */
struct lade_comm_work {
  struct lade_comm_list list;
  int64_t predicted_ns;       /* for a dry device */
  struct lade_span *ret_span; /* or NULL */
  lade_comm *comm;            /* set by lade_comm_launch */
  atomic_int status;          /* how it ended, where the engine knows that of each piece: hosts' do, NCCL does not */
};

/*
 * Submit it to @queue. A communicator belongs to one queue at a time, or to one for sends and one for receives. Errors
 * of the collective itself stick to the communicator. -EINVAL as above, with nothing submitted. Allocates nothing.
 */
int lade_comm_launch(lade_comm *comm, lade_queue *queue, struct lade_comm_work *work, uint64_t *ret_count);

/* 0, or the first error of any collective of it, with its line. Any thread. */
int lade_comm_status(lade_comm *comm, struct lade_error *error);

/*
 * This rank does something long by itself from now on, a save for instance, or has done with it: until then the others
 * wait for it as long as its process lives and is not stopped. Calls nest. Where the world shares memory; elsewhere
 * it has no effect, and timeout_ms must cover what is long. Any thread.
 */
void lade_comm_set_busy(lade_comm *comm, bool is_busy);

/*
 * End all members' waits, present and to come, with -ECANCELED, @words and this rank. Where ranks share memory;
 * elsewhere this rank's end so, and MPI ends the job when it closes the last of its communicators, and has said why.
 * Any thread, also while a collective runs.
 */
void lade_comm_abort(lade_comm *comm, const char *words);

/* What MPI ends the job with where a rank's end is how others learn of its abort: 1 unless it is set. Any thread. */
void lade_comm_set_exit_code(lade_comm *comm, int code);

/*
 * After a failure, true at exactly one of the ranks of a node that ask: who prints the one message. Any thread.
 */
bool lade_comm_is_speaker(lade_comm *comm);

/* "all_gather", ...; static. */
const char *lade_collective_name(enum lade_collective_kind kind);

#endif
