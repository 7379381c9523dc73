/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job that this process is a rank of: read from what a launcher left in the environment, joined through its
 * communicator, left with one message for all.
 */
#ifndef LADE_JOB_H
#define LADE_JOB_H

#include "parallel/comm.h"
#include "tools/board.h"
#include "tools/options.h"

struct job {
  struct lade_launch launch;   /* 0 of 1 without a launcher */
  struct lade_kernels kernels; /* of the communicator */
  lade_comm *world;            /* NULL: one rank */
  struct board *board;         /* of the launcher; NULL: it has none */
};

/* Who are we, and is there a board? Nothing else is opened. -EINVAL with one line. */
int job_read(struct job *job, struct lade_error *error);

/*
 * options_read; what is wrong with options that all ranks were given, and their help, is said by the first, and what is
 * wrong at another one alone is said once it is known to be. If there is nothing to go on with, this rank has left.
 */
int job_options_read(const struct job *job, enum verb_id verb, int argc, char **argv, struct options *options);

/*
 * Join the other ranks, if any, which wait @timeout_s for each other. -ENOSYS without MPI, and as lade_comm_open. Ends
 * the process, with one line, where MPI's start takes twice that.
 */
int job_join(struct job *job, double timeout_s, struct lade_error *error);

static inline bool job_is_first(const struct job *job)
{
  return job->launch.rank == 0;
}

/*
 * Leave, after @status: 0, or a failure that every rank has been told of or sees itself. Its line goes on the board, or
 * is printed at one rank of a node. Returns the exit code. Finishes @job.
 */
int job_leave(struct job *job, const char *verb, int status, const struct lade_error *error);

#endif
