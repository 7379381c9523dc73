/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of ranks over MPI with waits that sleep, notice the dead and give up in time. Private to src/parallel/.
 *
 * The job is what all groups of a process share: the plug-in, who runs where, and a descriptor per process of this node
 * that says when it has ended.
 */
#ifndef LADE_COMM_GROUP_INTERNAL_H
#define LADE_COMM_GROUP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "parallel/comm_internal.h"
#include "parallel/comm_mpi_internal.h"

#define COMM_LOOK_MS 50 /* between two looks at the peers of a wait: a tenth of LADE_COMM_NOTICE_MS */

struct comm_window;
struct comm_node;

#define COMM_FIRST_VOTES 65536 /* ranks that can vote before any has memory for all */

struct comm_job {
  const struct lade_mpi *mpi;
  bool is_serial;
  pthread_mutex_t mpi_mutex; /* around every call of MPI when it is serial */
  int world, n_here;         /* ranks; of them on this node */
  struct comm_process {
    uint64_t node; /* where its number means this process */
    pid_t pid;
    int watch; /* readable when it has ended; -1: by its number alone */
    _Atomic int64_t looked_ns, stopped_ns; /* when it was last looked at, and how long it has been seen stopped */
  } *processes;
  struct comm_control *control; /* of the world, where its ranks share memory: who is busy; else NULL */
  atomic_bool has_failed;
  atomic_bool is_aborted; /* by this rank, whose end is how ranks that share no memory learn of it */
  atomic_int exit_code;   /* of the job, then */
  pthread_mutex_t windows_mutex;
  LADE_ARRAY(struct comm_window *) windows;
  uint64_t n_windows_made;
  atomic_int n_refs;
  char first_votes[COMM_FIRST_VOTES];
};

struct comm_group {
  struct comm_job *job;
  void *group; /* MPI's */
  int rank, size;
  int *members;  /* ranks of the world */
  int *outcomes; /* scratch, one per member; the same block of memory */
  bool is_one_node;
  atomic_bool is_aborted; /* by this rank, whose waits end; where members share memory it is told there */
  const struct lade_comm_params *params; /* the communicator's, which has our patience */
  struct comm_node *node; /* once its members share memory, where failures are told; else NULL */
};

/* Open the plug-in and MPI, and find out who is where. */
int comm_job_open(const struct lade_comm_params *params, struct lade_error *error, struct comm_group *ret_world);
/* A part of it; *ret_part has no group for a negative colour. */
int comm_group_split(struct comm_group *group, int colour, int key, struct lade_error *error,
                     struct comm_group *ret_part);
/* The last one ends MPI. */
void comm_group_close(struct comm_group *group);

/* Is the process of a member of this node gone? Never blocks. */
bool comm_member_is_dead(const struct comm_group *group, int member);

/* Has the process of a member of this node been stopped for LADE_COMM_STOPPED_MS of looking? Never blocks. */
bool comm_member_is_stopped(const struct comm_group *group, int member);

/* Does a member say that it is busy? */
bool comm_member_is_busy(const struct comm_group *group, int member);

/*
 * How long one has waited for members who could have come. Looks that are far apart count little: it is then the one
 * who waits that did not run.
 */
struct comm_patience {
  int64_t look_ns, waited_ns;
};
static inline void comm_patience_begin(struct comm_patience *patience)
{
  *patience = (struct comm_patience){.look_ns = lade_now_ns()};
}
/* Is it time for a look? Then count what passed since the last one, unless @is_excused. */
bool comm_patience_is_due(const struct comm_patience *patience);
void comm_patience_count(struct comm_patience *patience, bool is_excused);

/* -ETIMEDOUT with the line about @member, which is stopped or late. */
int comm_member_tell_stopped(const struct comm_group *group, int member, struct lade_error *error);
int comm_member_tell_late(const struct comm_group *group, int member, struct lade_error *error);

/* -EPIPE with the line about @member. */
int comm_member_tell_dead(const struct comm_group *group, int member, struct lade_error *error);

/* Transfer and wait. Bytes at most LADE_MPI_TRANSFER_MOST; to or from each member. */
int comm_group_transfer(struct comm_group *group, struct lade_mpi_transfer *transfer, struct lade_error *error);
int comm_group_gather(struct comm_group *group, const void *src, void *dst, int bytes, struct lade_error *error);

/* Tell each other @own: *ret_member is the first whose is not 0, which is then in outcomes; -1: nobody's. */
int comm_group_vote(struct comm_group *group, int own, int *ret_member, struct lade_error *error);

/* -ENOMEM at all members if one of them lacks memory for @what: nobody goes on without it. */
int comm_group_agree(struct comm_group *group, bool has_memory, const char *what, struct lade_error *error);

#endif
