/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories for the files of one start of mpirun and Open MPI: the session in the temporary directory, the
 * shared-memory segments in /dev/shm. The launcher owns them, so that it can remove all files of a start.
 */
#ifndef LADE_LAUNCH_SCRATCH_H
#define LADE_LAUNCH_SCRATCH_H

#include <limits.h>

enum launch_scratch_place { LAUNCH_SCRATCH_SESSION, LAUNCH_SCRATCH_SEGMENTS, LAUNCH_SCRATCH_N_PLACES };

struct launch_scratch {
  struct launch_scratch_dir {
    char path[PATH_MAX]; /* "": none, and Open MPI uses its default place */
    int fd;              /* holds the lock */
  } dirs[LAUNCH_SCRATCH_N_PLACES];
};

/*
 * Make the directories of a start, mode 0700 and locked, below Open MPI's default places. A directory that cannot be
 * made is left out, because Open MPI then reports the reason better.
 */
void launch_scratch_open(struct launch_scratch *scratch);

/* Return the option of mpirun that names the directory of @place. Static. */
const char *launch_scratch_option(enum launch_scratch_place place);

/* Make the locks survive exec. Called in a new process. A negative errno. Async-signal-safe. */
int launch_scratch_share(const struct launch_scratch *scratch);

/*
 * Remove the directories with their contents; links are removed and not followed. pre: all processes of the start have
 * ended.
 */
void launch_scratch_close(struct launch_scratch *scratch);

/*
 * Remove this user's directories of starts whose launcher and mpirun have both ended without removing them (SIGKILL).
 * Looks in the places that launch_scratch_open would use now.
 */
void launch_scratch_sweep(void);

#endif
