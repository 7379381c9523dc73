/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of this rank: read from the launcher's environment, joined through its communicator, left with one message
 * for all ranks.
 */
#ifndef LADE_JOB_H
#define LADE_JOB_H

#include "parallel/comm.h"
#include "tools/cli/options.h"
#include "tools/job/job_status.h"

struct job {
  enum verb_id verb;           /* of this process, for messages */
  struct lade_launch launch;   /* rank 0 of 1 without a launcher */
  struct lade_kernels kernels; /* of the communicator */
  lade_comm *world;            /* NULL: one rank */
  struct job_status *table;    /* of the launcher; NULL: none */
};

/* Find the rank and the status table of this process, which runs @verb. Opens nothing else. -EINVAL with one line. */
int job_read(struct job *job, enum verb_id verb, struct lade_error *error);

/*
 * Run options_read. The first rank prints help and errors in options that all ranks share. A rank prints an error of
 * its own once the first rank has left without one. If the job cannot go on, this rank has left.
 */
int job_options_read(const struct job *job, int argc, char **argv, struct options *options);

/*
 * Join the other ranks, if any; ranks wait @timeout_s for each other. -ENOSYS without MPI, and as lade_comm_open. Ends
 * the process with one line if MPI's start takes twice the timeout.
 */
int job_join(struct job *job, double timeout_s, struct lade_error *error);

static inline bool job_is_first(const struct job *job)
{
  return job->launch.rank == 0;
}

/*
 * Leave the job after @status: 0, or a failure that every rank has been notified of or meets itself. The message goes
 * on the table, or is printed by one rank of a node. Finishes @job. Return the exit code.
 */
int job_leave(struct job *job, int status, const struct lade_error *error);

#endif
