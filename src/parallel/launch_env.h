/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank of how many is this process? Read from the variables that launchers set.
 *
 *   mpirun    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
 *
 * PMIX_RANK, which mpirun and srun set beside theirs, has to agree. mpirun and torchrun may both be there if they say
 * the same. Slurm's are looked at only without either: a launcher that was itself started by srun passes
 * its own SLURM_PROCID on to all of its ranks. Only srun sets SLURM_STEP_NUM_TASKS; a batch script is one process.
 */
#ifndef LADE_LAUNCH_ENV_H
#define LADE_LAUNCH_ENV_H

#include "lade/types.h"

enum lade_launcher { LADE_LAUNCHER_NONE, LADE_LAUNCHER_MPIRUN, LADE_LAUNCHER_TORCHRUN, LADE_LAUNCHER_SRUN };

struct lade_launch {
  enum lade_launcher launcher;
  int rank, world;             /* 0 of 1 without a launcher */
  int local_rank, local_world; /* among the ranks of this node; -1 where the launcher does not say */
  char master[256]; /* torchrun's meeting point, or "" */
  int master_port;  /* or 0 */
};

/*
 * Read @environment ("NAME=value" strings, NULL at its end: environ). -EINVAL with one line when a variable is no
 * number, one of a pair is missing, a rank is not below its world, or two launchers disagree. Any thread, as long as
 * no one changes the environment.
 */
int lade_launch_read(char *const *environment, struct lade_error *error, struct lade_launch *ret_launch);

/* "mpirun", "torchrun", "srun", "none"; static. */
const char *lade_launcher_name(enum lade_launcher launcher);

#endif
