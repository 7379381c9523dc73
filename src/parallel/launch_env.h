/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's rank and world size, read from the variables that launchers set.
 *
 *   mpirun    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
 *
 * mpirun and srun also set PMIX_RANK, which must agree. mpirun's and torchrun's variables may both be set if they
 * agree. Slurm's are read only without either, because a launcher that srun started passes its own SLURM_PROCID on to
 * all of its ranks. Only srun sets SLURM_STEP_NUM_TASKS; a batch script is one process.
 */
#ifndef LADE_LAUNCH_ENV_H
#define LADE_LAUNCH_ENV_H

#include "lade/types.h"

enum lade_launcher { LADE_LAUNCHER_NONE, LADE_LAUNCHER_MPIRUN, LADE_LAUNCHER_TORCHRUN, LADE_LAUNCHER_SRUN };

struct lade_launch {
  enum lade_launcher launcher;
  int rank, world;             /* 0 of 1 without a launcher */
  int local_rank, local_world; /* among the ranks of this node; -1 if the launcher does not set it */
  char master[256]; /* torchrun's MASTER_ADDR, or "" */
  int master_port;  /* or 0 */
};

/*
 * Read @environment ("NAME=value" strings, NULL at its end: environ). -EINVAL with one line: a variable is not a
 * number, one of a pair is missing, a rank is not below its world, or two launchers disagree. Any thread. pre: no
 * thread changes the environment meanwhile.
 */
int lade_launch_read(char *const *environment, struct lade_error *error, struct lade_launch *ret_launch);

/* Return "mpirun", "torchrun", "srun" or "none"; static. */
const char *lade_launcher_name(enum lade_launcher launcher);

#endif
