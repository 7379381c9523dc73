/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comm contract: collectives among ranks, called directly or as work on a device's queue; on host memory, or with
 * the engine NCCL on memory of a GPU.
 *
 * Communicators. lade_comm_open opens the communicator of all ranks of the job. lade_comm_split divides it, for example
 * by the axes of a mesh. Opening, splitting, allocating and closing are collective: every member calls them, in the
 * same order. A communicator has one collective in flight, and all members issue its collectives in the same order.
 * Different communicators are independent and may be driven by different threads. One send and one recv of a
 * communicator may be in flight at once, on two threads or queues. If a rank issues another collective than the others
 * (send and recv excepted), it is detected and named before any memory is written. This holds if the ranks share memory
 * or params->is_checked.
 *
 * Meaning. n counts elements, and blocks are in the order of ranks:
 *
 *   all_gather      src[n] of every rank -> dst[size * n]; in place when src is dst's own block
 *   reduce_scatter  the sum of src[size * n] of all ranks, block rank of it -> dst[n]; in place when dst is src's block
 *   all_reduce      the sum of src[n] of all ranks -> dst[n] on each; in place when dst is src
 *   all_to_all      block i of src[size * n] -> block rank of rank i's dst[size * n]; never in place
 *   broadcast       src[n] of rank peer -> dst[n] on each; on peer dst may be src; elsewhere src is unused
 *   send, recv      src[n] -> dst[n] of rank peer. A send is synchronous: it ends when the receive has begun
 *   barrier         no member leaves before all have arrived
 *
 * A list is several collectives run as one. They have one kind (except the last three kinds above), one dtype and one
 * peer, and each has its own n and buffers. The result has the same bits as running them one after another, for the
 * latency of one, because a training step has many small tensors. No buffer of one may overlap a dst of another.
 *
 * Buffers of two ranks do not overlap, nor do src and dst except in place. n may be 0, which moves nothing but still
 * synchronises. The caller owns the memory. It must not change, and dst must not be read, until the collective has
 * ended.
 *
 * Sums of F32, BF16 and F16 are made in FP32 and rounded once when stored. Their order is the tree of neighbouring
 * ranks in struct lade_rank_sum_args: (x0 + x1) + (x2 + x3) for four ranks. The bits are a function of the ranks' data,
 * never of timing, path, chunking or the number of threads. Other operations move bytes of any dtype.
 *
 * Failure. An error of a communicator is final: every later call on it gives the same error. The other members' calls
 * end with:
 *
 *   -EPIPE      a member died; with its rank, within LADE_COMM_NOTICE_MS on one node; on several the launcher ends
 *               the job
 *   -ECANCELED  a member called lade_comm_abort; with its reason
 *   -ETIMEDOUT  a member of this node is stopped (SIGSTOP) for LADE_COMM_STOPPED_MS, or does not arrive within
 *               timeout_ms; with its rank if ranks share memory
 *   -EPROTO     members disagree about the collective
 *
 * Time in which a rank has declared itself busy, or in which this process was stopped, does not count. Buffers of a
 * failed call may still be written to until the process ends.
 *
 * Waiting threads sleep. No rank spins if ranks outnumber cores.
 *
 * NCCL differs where its own behaviour forces it:
 *
 *   sums      in NCCL's own order, a function of ranks, machine and every n of a list; BF16 and F16 are rounded at
 *             each addition. Equal at every rank and in every run on one machine. See is_ordered of lade_comm_info
 *   lists     one group of NCCL calls
 *   order     communicators of one device are launched in one order by all ranks, not independently: their kernels
 *             wait for each other on the same GPU
 *   send      may end before the receive has begun, once NCCL has buffered it
 *   disorder  if ranks share memory, the last to arrive detects a disagreement before it starts; dst of the others
 *             may have been written to. A send and a recv that do not match are not detected
 *   waits     while collectives are in flight, a check every tenth of LADE_COMM_NOTICE_MS finds ranks that died,
 *             aborted or disagree; timeout_ms counts from the start of one on its queue
 */
#ifndef LADE_COMM_H
#define LADE_COMM_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"
#include "kernels/kernels.h"
#include "parallel/launch_env.h"

typedef struct lade_comm lade_comm;

#define LADE_COMM_NOTICE_MS 500 /* most time until a rank's end is noticed on its node */
#define LADE_COMM_STOPPED_MS 5000 /* a rank stopped for longer is an error */
#define LADE_COMM_TIMEOUT_MS 300000          /* the default: a slower rank declares itself busy */
#define LADE_COMM_STAGING_BYTES (1ull << 20) /* the default */
#define LADE_COMM_LIST_MAX 64                /* items of a list; bounds its space in shared memory */

enum lade_comm_engine {
  LADE_COMM_AUTO, /* self in a world of one, else MPI */
  LADE_COMM_SELF, /* a world of one */
  LADE_COMM_MPI,  /* Open MPI, through the plug-in liblade-mpi.so; LADE_MPI_PLUGIN names another file */
  LADE_COMM_NCCL  /* libnccl.so.2 on params->device; AUTO's engine starts it and watches the ranks */
};

/* How ranks of one node exchange bytes. */
enum lade_comm_backing {
  LADE_COMM_BACKING_AUTO,  /* the first of the following that works */
  LADE_COMM_BACKING_MEMFD, /* anonymous shared memory, outside every file system and its limits */
  LADE_COMM_BACKING_FILE,  /* an unlinked file in /dev/shm, if that has space */
  LADE_COMM_BACKING_NONE   /* MPI's own collectives; also used by ranks on several nodes */
};

struct lade_comm_params {
  size_t struct_size;
  enum lade_comm_engine engine;
  enum lade_comm_backing backing;
  const struct lade_launch *launch;   /* rank and size from the environment; must agree with the engine. NULL: one
                                         rank */
  const struct lade_kernels *kernels; /* borrowed: sums */
  lade_pool *pool;                    /* borrowed, may be NULL: sums and copies run on it */
  uint64_t staging_bytes; /* per rank and communicator: bytes exchanged at once; 0: LADE_COMM_STAGING_BYTES */
  int timeout_ms;         /* 0: LADE_COMM_TIMEOUT_MS */
  bool is_checked;        /* compare the ranks' collectives on every path; always so with -Dchecks=full */
  void (*log)(void *user, const char *line); /* called once, at rank 0, if the best path is unavailable; may be NULL */
  void *log_user;
  struct lade_faults *faults; /* borrowed, may be NULL */
  lade_device *device;        /* NCCL only: a CUDA device in its primary context, borrowed; buffers are in its memory */
  lade_comm *control;         /* NCCL only: the same members on hosts, borrowed, split and not closed; NULL: opened
                                 anew */
  bool has_neighbours;        /* NCCL only: ranks will send to the next and the previous rank of the ring, in any
                                 order, also in parts of this communicator. Open and split connect them */
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
  int n; /* 1 .. LADE_COMM_LIST_MAX */
};

struct lade_comm_info {
  const char *engine, *path; /* "mpi", "shared memory (memfd)"; static */
  uint64_t staging_bytes;    /* all buffers of this rank; without NCCL's own */
  bool is_ordered;           /* sums have the bits defined above */
  bool can_register;         /* lade_comm_register may have an effect: ranks share memory, or NCCL registers it */
  int timeout_ms;            /* longest wait for a member */
  int version;               /* of the library: NCCL's number; 0: another engine */
  uint64_t n_direct;         /* collectives and lists that moved each byte once, without staging; 0 with NCCL */
};

/*
 * Open the communicator of all ranks; collective. The caller closes it. -ENOSYS if the plug-in, MPI or NCCL is absent;
 * -EINVAL if launcher and engine disagree about rank or size, or NCCL has no CUDA device; -ENOMEM; -EIO. One thread;
 * blocks until all ranks have called.
 */
int lade_comm_open(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm);

/*
 * Close; collective unless it has failed. After a failure it waits a fifth of a second, so that the other ranks learn
 * the first cause before this process ends. NULL is allowed. pre: communicators split from it are closed, and no queue
 * has work of it.
 */
void lade_comm_close(lade_comm *comm);

/*
 * Split: members with the same @colour form a new communicator, ordered by @key, then by rank; collective. A member
 * with a negative colour gets NULL. -ENOMEM, and as lade_comm_run.
 */
int lade_comm_split(lade_comm *comm, int colour, int key, struct lade_error *error, lade_comm **ret_comm);

int lade_comm_rank(const lade_comm *comm);
int lade_comm_size(const lade_comm *comm);
void lade_comm_get_info(const lade_comm *comm, struct lade_comm_info *ret_info);

/*
 * Allocate memory that the other members can read in place. A collective with all buffers in such memory moves each
 * byte once, without staging, on this communicator and on its parts. Zeroed, page-aligned; collective, and @bytes may
 * differ. The caller frees it before it closes the communicator. If ranks share no memory it is ordinary memory. With
 * NCCL it is memory of the device. One thread of a process at a time. -ENOMEM, at every rank; -EINVAL; else as
 * lade_comm_run.
 */
int lade_comm_alloc(lade_comm *comm, uint64_t bytes, struct lade_error *error, void **ret_data);
/* Free this rank's part. pre: no collective is using it. Any thread. */
void lade_comm_free(lade_comm *comm, void *data);

/* Existing memory of a rank. */
struct lade_comm_range {
  void *data;
  uint64_t bytes;
  int descriptor; /* its backing, from offset 0: of lade_device_chunk_export; negative: none */
};

/*
 * Let the other members read @range in place. A collective moves each byte once, as in memory of lade_comm_alloc, if
 * all its buffers are in registered memory of its members, at any offset. This holds for @comm itself, not for its
 * parts. Collective; bytes may differ. The caller keeps the memory and the descriptor, and may close the descriptor
 * after the call.
 *
 * *@ret_is_registered is false at all members if a member has no descriptor, if another cannot map its memory, or if
 * ranks share no memory. Collectives then work as before; the bits never differ.
 *
 * With NCCL @range is a chunk of the device, which NCCL may then move without its own buffers. A descriptor is not
 * needed, and the result is false if NCCL registers no memory. One thread of a process at a time. -EINVAL; as
 * lade_comm_run.
 */
int lade_comm_register(lade_comm *comm, const struct lade_comm_range *range, struct lade_error *error,
                       bool *ret_is_registered);
/*
 * End a registration. The caller does so before it frees the memory and closes @comm. Other members keep their mappings
 * of it until they call this too. Any thread. pre: no collective is using it.
 */
void lade_comm_unregister(lade_comm *comm, const void *data);

/*
 * Run a collective on the calling thread; return when this rank's part has ended. -EINVAL for invalid arguments, with
 * nothing done. Any other error is one of those above, and the communicator has failed. Never allocates.
 */
int lade_comm_run(lade_comm *comm, const struct lade_collective *collective, struct lade_error *error);

/* Run a list, as lade_comm_run. */
int lade_comm_run_list(lade_comm *comm, const struct lade_comm_list *list, struct lade_error *error);

/* A list as work on a queue. The caller owns it and its items, and keeps them unchanged until its event. */
struct lade_comm_work {
  struct lade_comm_list list;
  int64_t predicted_ns;       /* for a dry device */
  struct lade_span *ret_span; /* or NULL */
  lade_comm *comm;            /* set by lade_comm_launch */
  atomic_int status;          /* result of this work, if the engine knows it per piece: hosts' engines do, NCCL does
                                 not */
};

/* Return -EINVAL, with the fault in @error, if lade_comm_run would refuse the arguments. Any thread. Never blocks. */
int lade_comm_check(const lade_comm *comm, const struct lade_collective *collective, struct lade_error *error);

/*
 * Submit @work to @queue. A communicator belongs to one queue at a time, or to one for sends and one for receives.
 * Errors of the collective itself stick to the communicator. -EINVAL as above, with nothing submitted. Allocates
 * nothing.
 */
int lade_comm_launch(lade_comm *comm, lade_queue *queue, struct lade_comm_work *work, uint64_t *ret_count);

/* Return 0, or the first error of any collective of @comm, with its line. Any thread. */
int lade_comm_status(lade_comm *comm, struct lade_error *error);

/*
 * Begin or end long work of this rank alone, for example a save. Meanwhile the other ranks wait for it as long as its
 * process lives and is not stopped. Calls nest. Has an effect only if the world shares memory; otherwise timeout_ms
 * must cover the work. Any thread.
 */
void lade_comm_set_busy(lade_comm *comm, bool is_busy);

/*
 * End all members' present and future waits, with -ECANCELED, the reason @words and this rank. The first reason of a
 * rank counts. This requires that ranks share memory. Otherwise it ends only this rank's waits, and MPI ends the job
 * when this rank closes the last of its communicators; the rank must have reported the reason by then. Any thread, also
 * while a collective runs.
 */
void lade_comm_abort(lade_comm *comm, const char *words);

/* True if @status is an error that all members of a communicator get. */
static inline bool lade_comm_has_failed(int status)
{
  return status == -EPIPE || status == -ECANCELED || status == -ETIMEDOUT || status == -EPROTO;
}

/* Set the exit code with which MPI ends the job after an abort, if ranks share no memory: 1 by default. Any thread. */
void lade_comm_set_exit_code(lade_comm *comm, int code);

/*
 * Return true, after a failure, at exactly one of the ranks of a node that ask. That rank prints the one message. Any
 * thread.
 */
bool lade_comm_is_speaker(lade_comm *comm);

/* Return the name of @kind, "all_gather", ...; static. */
const char *lade_collective_name(enum lade_collective_kind kind);

/* Return the hosts' communicator of lade/shard.h's @ranks, which keep it. */
struct lade_ranks;
lade_comm *lade_ranks_comm(struct lade_ranks *ranks);

#endif
