/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every launcher's variables are understood; contradictions within one launcher's or between two are refused in one
 * line.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/launch_env.h"
#include "tests/support/names.h"

#define ENVIRONMENT(...) ((char *const[]){"PATH=/bin", __VA_ARGS__, NULL})
#define MPIRUN(rank, size) "OMPI_COMM_WORLD_RANK=" rank, "OMPI_COMM_WORLD_SIZE=" size
#define TORCHRUN(rank, size) "RANK=" rank, "WORLD_SIZE=" size
#define SRUN(rank, size) "SLURM_PROCID=" rank, "SLURM_STEP_NUM_TASKS=" size

static struct lade_launch launch_read(char *const *environment)
{
  struct lade_launch launch = {.rank = -9};
  struct lade_error error = {0};
  assert_int_equal(lade_launch_read(environment, &error, &launch), 0);
  assert_string_equal(error.text, "");
  return launch;
}

static void launch_verify(char *const *environment, const char *launcher, int rank, int world, int local_rank)
{
  struct lade_launch launch = launch_read(environment);
  assert_string_equal(lade_launcher_name(launch.launcher), launcher);
  assert_int_equal(launch.rank, rank);
  assert_int_equal(launch.world, world);
  assert_int_equal(launch.local_rank, local_rank);
}

static void each_launcher_is_understood(void **state)
{
  launch_verify(ENVIRONMENT("HOME=/"), "none", 0, 1, 0);
  launch_verify(ENVIRONMENT(MPIRUN("3", "8"), "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                            "PMIX_RANK=3"), "mpirun", 3, 8, 1);
  launch_verify(ENVIRONMENT(TORCHRUN("7", "8"), "LOCAL_RANK=7"), "torchrun", 7, 8, 7);
  launch_verify(ENVIRONMENT(SRUN("2", "4"), "SLURM_LOCALID=0", "SLURM_NTASKS=4"), "srun", 2, 4, 0);
  launch_verify(ENVIRONMENT(SRUN("2", "4")), "srun", 2, 4, -1);
}

static void torchruns_meeting_point_is_kept(void **state)
{
  struct lade_launch launch = launch_read(ENVIRONMENT(TORCHRUN("0", "2"), "MASTER_ADDR=node7", "MASTER_PORT=29500"));
  assert_string_equal(launch.master, "node7");
  assert_int_equal(launch.master_port, 29500);
}

static void a_batch_script_is_one_process(void **state)
{
  launch_verify(ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0"), "none", 0, 1, 0);
}

static void launchers_started_by_srun_are_believed(void **state)
{
  launch_verify(ENVIRONMENT(SRUN("0", "2"), MPIRUN("5", "8")), "mpirun", 5, 8, -1);
  launch_verify(ENVIRONMENT(SRUN("1", "2"), TORCHRUN("5", "8"), "PMIX_RANK=1"), "torchrun", 5, 8, -1);
}

static void launchers_that_agree_are_both_fine(void **state)
{
  launch_verify(ENVIRONMENT(TORCHRUN("5", "8"), MPIRUN("5", "8")), "mpirun", 5, 8, -1);
}

/* Check that the environment is refused with a line that has all @names, which end with NULL. */
static void refusal_verify(char *const *environment, const char *const *names)
{
  struct lade_launch launch = {.rank = -9};
  struct lade_error error = {0};
  assert_int_equal(lade_launch_read(environment, &error, &launch), -EINVAL);
  names_verify(error.text, names, __FILE__, __LINE__);
  assert_int_equal(launch.rank, -9);
}

static void contradictions_are_refused_in_one_line(void **state)
{
  refusal_verify(ENVIRONMENT(MPIRUN("1", "4"), TORCHRUN("2", "4")),
                 NAMES("mpirun", "torchrun", "rank 1 of 4", "OMPI_COMM_WORLD_RANK", "rank 2 of 4", "RANK"));
  refusal_verify(ENVIRONMENT(MPIRUN("4", "4")), NAMES("OMPI_COMM_WORLD_RANK is 4", "OMPI_COMM_WORLD_SIZE is 4"));
  refusal_verify(ENVIRONMENT(TORCHRUN("1", "4"), "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"),
                 NAMES("LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"));
  refusal_verify(ENVIRONMENT(MPIRUN("1", "4"), "PMIX_RANK=2"),
                 NAMES("PMIX_RANK is 2", "OMPI_COMM_WORLD_RANK is 1"));
  refusal_verify(ENVIRONMENT("RANK=1"), NAMES("RANK", "WORLD_SIZE is not"));
  refusal_verify(ENVIRONMENT("WORLD_SIZE=2", "RANK="),
                 NAMES("WORLD_SIZE", "RANK is not"));
  refusal_verify(ENVIRONMENT("PMIX_RANK=1"), NAMES("PMIX_RANK is 1", "mpirun", "srun", "torchrun"));
}

static void values_that_are_no_numbers_are_refused(void **state)
{
  refusal_verify(ENVIRONMENT(TORCHRUN("one", "4")),
                 NAMES("RANK", "'one'", "0 to 16777216"));
  refusal_verify(ENVIRONMENT(SRUN("-1", "4")),
                 NAMES("SLURM_PROCID", "'-1'", "0 to 16777216"));
  refusal_verify(ENVIRONMENT(TORCHRUN("0", "4"), "MASTER_PORT=70000"),
                 NAMES("MASTER_PORT", "'70000'", "0 to 65535"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_launcher_is_understood),
      cmocka_unit_test(torchruns_meeting_point_is_kept),
      cmocka_unit_test(a_batch_script_is_one_process),
      cmocka_unit_test(launchers_started_by_srun_are_believed),
      cmocka_unit_test(launchers_that_agree_are_both_fine),
      cmocka_unit_test(contradictions_are_refused_in_one_line),
      cmocka_unit_test(values_that_are_no_numbers_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
