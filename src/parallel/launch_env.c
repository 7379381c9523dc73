/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read the launcher's environment. One table lists the variables of each launcher; reading, checking and comparing
 * follow it.
 *
 * A launcher is present if its rank or its world is set; then both must be set. Optional variables are read if they are
 * set. Values that two sources state must be equal. A rank with a wrong number would overwrite another rank's shard, so
 * no value is guessed.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "parallel/launch_env.h"

struct launcher_source {
  enum lade_launcher launcher;
  const char *name, *rank, *world, *local_rank, *local_world;
};

/* In order of precedence. */
static const struct launcher_source sources[] = {
    {LADE_LAUNCHER_MPIRUN, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {LADE_LAUNCHER_TORCHRUN, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LADE_LAUNCHER_SRUN, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};

/* Return the value of a variable, or NULL if it is unset or empty. */
static const char *variable_find(char *const *environment, const char *name)
{
  size_t n = name ? strlen(name) : 0;
  for (; name && *environment; environment++) {
    if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
      return (*environment)[n + 1] ? *environment + n + 1 : NULL;
  }
  return NULL;
}

/* Read a whole number from 0 to @max; @unset if the variable is not set. */
static int number_read(char *const *environment, const char *name, int max, int unset, struct lade_error *error,
                       int *ret_number)
{
  const char *text = variable_find(environment, name);
  char *end;
  if (!text) {
    *ret_number = unset;
    return 0;
  }
  errno = 0;
  long number = strtol(text, &end, 10);
  if (*end || end == text || errno || number < 0 || number > max)
    return lade_error_set(error, -EINVAL, "%s is '%.64s' in the environment: expected a whole number from 0 to %d",
                          name, text, max);
  *ret_number = (int)number;
  return 0;
}

#define RANKS_MAX (1 << 24)

/* Read the variables of one source; rank is -1 if none is set. */
static int source_read(const struct launcher_source *source, char *const *environment, struct lade_error *error,
                       struct lade_launch *ret)
{
  *ret = (struct lade_launch){.launcher = source->launcher};
  int status = number_read(environment, source->rank, RANKS_MAX, -1, error, &ret->rank);
  if (!status)
    status = number_read(environment, source->world, RANKS_MAX, -1, error, &ret->world);
  if (!status)
    status = number_read(environment, source->local_rank, RANKS_MAX, -1, error, &ret->local_rank);
  if (!status)
    status = number_read(environment, source->local_world, RANKS_MAX, -1, error, &ret->local_world);
  if (status)
    return status;
  if ((ret->rank < 0) != (ret->world < 0))
    return lade_error_set(error, -EINVAL, "%s is set in the environment and %s is not; a rank needs both",
                          ret->rank < 0 ? source->world : source->rank, ret->rank < 0 ? source->rank : source->world);
  if (ret->rank >= 0 && ret->rank >= ret->world)
    return lade_error_set(error, -EINVAL, "%s is %d and %s is %d: ranks count from 0 to the size less one",
                          source->rank, ret->rank, source->world, ret->world);
  if (ret->rank >= 0 && ret->local_world >= 0 && ret->local_rank >= ret->local_world)
    return lade_error_set(error, -EINVAL, "%s is %d and %s is %d: ranks count from 0 to the size less one",
                          source->local_rank, ret->local_rank, source->local_world, ret->local_world);
  return 0;
}

/* True if a source is present. A batch script has SLURM_PROCID alone, which is no launcher. */
static bool source_is_present(const struct launcher_source *source, char *const *environment)
{
  if (source->launcher == LADE_LAUNCHER_SRUN)
    return variable_find(environment, source->world);
  return variable_find(environment, source->rank) || variable_find(environment, source->world);
}

/* Check that a second source states the same rank and world. */
static int agreement_check(const struct launcher_source *source, const struct lade_launch *launch,
                           const struct launcher_source *other, const struct lade_launch *second,
                           struct lade_error *error)
{
  if (launch->rank == second->rank && launch->world == second->world)
    return 0;
  return lade_error_set(error, -EINVAL, "%s and %s disagree: rank %d of %d by %s, rank %d of %d by %s; unset the "
                        "variables of one of them", source->name, other->name, launch->rank, launch->world,
                        source->rank, second->rank, second->world, other->rank);
}

static int pmix_check(char *const *environment, const struct launcher_source *source, const struct lade_launch *launch,
                      struct lade_error *error)
{
  int rank;
  int status = number_read(environment, "PMIX_RANK", RANKS_MAX, -1, error, &rank);
  if (status || rank < 0)
    return status;
  if (!source)
    return lade_error_set(error, -EINVAL, "PMIX_RANK is %d in the environment and nothing says of how many; start with "
                          "mpirun, srun or torchrun", rank);
  if (source->launcher != LADE_LAUNCHER_TORCHRUN && rank != launch->rank)
    return lade_error_set(error, -EINVAL, "PMIX_RANK is %d and %s is %d; unset one of them", rank, source->rank,
                          launch->rank);
  return 0;
}

static int master_read(char *const *environment, struct lade_error *error, struct lade_launch *launch)
{
  const char *master = variable_find(environment, "MASTER_ADDR");
  if (master && strlen(master) >= sizeof(launch->master))
    return lade_error_set(error, -EINVAL, "MASTER_ADDR is longer than a host's name may be");
  if (master)
    memcpy(launch->master, master, strlen(master) + 1);
  return number_read(environment, "MASTER_PORT", 65535, 0, error, &launch->master_port);
}

int lade_launch_read(char *const *environment, struct lade_error *error, struct lade_launch *ret_launch)
{
  struct lade_launch launch = {.launcher = LADE_LAUNCHER_NONE, .world = 1, .local_world = 1};
  const struct launcher_source *believed = NULL;
  for (const struct launcher_source *source = sources; source < sources + LADE_COUNT(sources); source++) {
    struct lade_launch found;
    if (!source_is_present(source, environment) || (believed && source->launcher == LADE_LAUNCHER_SRUN))
      continue;
    int status = source_read(source, environment, error, &found);
    if (!status && believed)
      status = agreement_check(believed, &launch, source, &found, error);
    if (status)
      return status;
    launch = believed ? launch : found;
    believed = believed ? believed : source;
  }
  int status = pmix_check(environment, believed, &launch, error);
  if (!status)
    status = master_read(environment, error, &launch);
  if (status)
    return status;
  LADE_ASSERT(launch.rank >= 0 && launch.rank < launch.world);
  *ret_launch = launch;
  return 0;
}

const char *lade_launcher_name(enum lade_launcher launcher)
{
  for (size_t i = 0; i < LADE_COUNT(sources); i++)
    if (sources[i].launcher == launcher)
      return sources[i].name;
  return "none";
}
