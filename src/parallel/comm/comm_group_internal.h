/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of ranks over MPI. Its waits sleep, detect dead members and time out. Private to src/parallel/.
 *
 * All groups of a process share the job: the plug-in, the node of each rank, and for each process of this node a
 * descriptor that reports its end.
 */
#ifndef LADE_COMM_GROUP_INTERNAL_H
#define LADE_COMM_GROUP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "parallel/comm/comm_internal.h"
#include "parallel/comm/comm_mpi_internal.h"

#define COMM_LOOK_MS 50 /* between two checks of the peers of a wait: a tenth of LADE_COMM_NOTICE_MS */

struct comm_window;
struct comm_node;

#define COMM_FIRST_VOTES 65536 /* ranks that can vote before memory for all ranks is allocated */

struct comm_job {
  const struct lade_mpi *mpi;
  bool is_serial;
  pthread_mutex_t mpi_mutex; /* held around every MPI call if is_serial */
  int world, n_here;         /* ranks; ranks on this node */
  struct comm_process {
    uint64_t node; /* identifies the space of process numbers in which pid is valid */
    pid_t pid;
    int watch; /* readable after it has ended; -1: it is checked by its number */
    _Atomic int64_t looked_ns, stopped_ns; /* time of the last check, and time for which it has been seen stopped */
  } *processes;
  struct comm_control *control; /* of the world, if its ranks share memory: busy ranks; else NULL */
  atomic_bool has_failed;
  atomic_bool is_aborted; /* by this rank, whose exit informs ranks that share no memory */
  atomic_int exit_code;   /* exit code of the job after such an abort */
  pthread_mutex_t windows_mutex;
  LADE_ARRAY(struct comm_window *) windows;
  uint64_t n_windows_made;
  atomic_int n_refs;
  char first_votes[COMM_FIRST_VOTES];
};

struct comm_group {
  struct comm_job *job;
  void *group; /* MPI's group */
  int rank, size;
  int *members;  /* ranks of the world */
  int *outcomes; /* scratch, one per member; the same block of memory */
  bool is_one_node;
  atomic_bool is_aborted; /* by this rank, whose waits end; shared memory informs the other ranks */
  const struct lade_comm_params *params; /* parameters of the communicator, with timeout_ms */
  struct comm_node *node; /* set once its members share memory, which records failures; else NULL */
};

/* Open the plug-in and MPI, and find the node of each rank. */
int comm_job_open(const struct lade_comm_params *params, struct lade_error *error, struct comm_group *ret_world);
/* Split off a part; *ret_part has no group if the colour is negative. */
int comm_group_split(struct comm_group *group, int colour, int key, struct lade_error *error,
                     struct comm_group *ret_part);
/*
 * True if the members of @group are different ranks of the job. The job's table of processes must agree with the counts
 * and nodes that were derived from it. Asserted with -Dchecks=full.
 */
bool comm_group_is_valid(const struct comm_group *group);
/* Close the group. Closing the last one ends MPI. */
void comm_group_close(struct comm_group *group);

/* True if @member is on this node and its process has ended. Never blocks. */
bool comm_member_is_dead(const struct comm_group *group, int member);

/* True if @member is on this node and checks have seen its process stopped for LADE_COMM_STOPPED_MS. Never blocks. */
bool comm_member_is_stopped(const struct comm_group *group, int member);

/* True if a member has declared itself busy. */
bool comm_member_is_busy(const struct comm_group *group, int member);

/*
 * Time waited for members that could have arrived. A long interval between two checks counts little, because then the
 * waiting process itself did not run.
 */
struct comm_patience {
  int64_t look_ns, waited_ns;
};
static inline void comm_patience_begin(struct comm_patience *patience)
{
  *patience = (struct comm_patience){.look_ns = lade_now_ns()};
}
/* True if a check is due. After it, comm_patience_count adds the time since the last one, unless @is_excused. */
bool comm_patience_is_due(const struct comm_patience *patience);
void comm_patience_count(struct comm_patience *patience, bool is_excused);

/* Return -ETIMEDOUT with the line about @member, which is stopped or late. */
int comm_member_report_stopped(const struct comm_group *group, int member, struct lade_error *error);
int comm_member_report_late(const struct comm_group *group, int member, struct lade_error *error);

/* Return -EPIPE with the line about @member. */
int comm_member_report_dead(const struct comm_group *group, int member, struct lade_error *error);

/* Transfer and wait. At most LADE_MPI_TRANSFER_MAX bytes to or from each member. */
int comm_group_transfer(struct comm_group *group, struct lade_mpi_transfer *transfer, struct lade_error *error);
int comm_group_gather(struct comm_group *group, const void *src, void *dst, int bytes, struct lade_error *error);

/* Exchange @own. *ret_member is the first member with a value other than 0, or -1. outcomes[] holds all values. */
int comm_group_vote(struct comm_group *group, int own, int *ret_member, struct lade_error *error);

/* Return -ENOMEM at all members if one of them lacks memory for @purpose, so that all of them stop. */
int comm_group_agree(struct comm_group *group, bool has_memory, const char *purpose, struct lade_error *error);

#endif
