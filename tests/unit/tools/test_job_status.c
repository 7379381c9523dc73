/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which checkpoints in --save are the job's, whatever other runs saved there and whenever its ranks were killed; and
 * which of the ended ranks were lost.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/checkpoint.h"
#include "tests/support/scratch.h"
#include "tools/job/job_status.h"

static struct job_status *job_status_make(void)
{
  struct job_status *table = NULL;
  assert_int_equal(job_status_create(2, &table), 0);
  assert_non_null(realpath(scratch, table->places[JOB_STATUS_SAVE]));
  return table;
}

/* Publish a checkpoint as a save does: a new directory takes the name; the old one is exchanged and removed. */
static void checkpoint_publish(int64_t step)
{
  char path[PATH_MAX];
  assert_int_equal(lade_checkpoint_path(scratch, step, path, NULL), 0);
  assert_int_equal(mkdir(in_scratch("new"), 0777), 0);
  assert_int_equal(rename(in_scratch("new"), path), 0);
}

static void checkpoint_drop(int64_t step)
{
  char path[PATH_MAX];
  assert_int_equal(lade_checkpoint_path(scratch, step, path, NULL), 0);
  assert_int_equal(rmdir(path), 0);
}

static void checkpoints_of_other_runs_are_not_the_jobs(void **state)
{
  struct job_status *table = job_status_make();
  checkpoint_publish(4);
  checkpoint_publish(100);
  assert_int_equal(job_status_find_save(table), -1);
  job_status_save_begin(table, 6);
  checkpoint_publish(6);
  job_status_save_end(table, 6, 1);
  assert_int_equal(job_status_find_save(table), 6);
  job_status_save_begin(table, 100); /* killed in this save */
  assert_int_equal(job_status_find_save(table), 6);
  job_status_destroy(table);
}

static void a_published_save_counts_without_a_note(void **state)
{
  struct job_status *table = job_status_make();
  job_status_save_begin(table, 4);
  assert_int_equal(job_status_find_save(table), -1);
  checkpoint_publish(4);
  assert_int_equal(job_status_find_save(table), 4);
  job_status_save_end(table, 4, 1);
  job_status_save_begin(table, 6);
  assert_int_equal(job_status_find_save(table), 4);
  checkpoint_publish(6);
  checkpoint_drop(4); /* --keep 1 */
  assert_int_equal(job_status_find_save(table), 6);
  job_status_clear(table, 2); /* the next start resumes from there, */
  job_status_save_begin(table, 6); /* has no step left, and is killed in its save of the same step */
  assert_int_equal(job_status_find_save(table), 6);
  job_status_destroy(table);
}

static void a_save_in_anothers_place_counts_once_it_took_it(void **state)
{
  struct job_status *table = job_status_make();
  checkpoint_publish(4);
  job_status_save_begin(table, 4);
  assert_int_equal(job_status_find_save(table), -1);
  checkpoint_publish(4);
  assert_int_equal(job_status_find_save(table), 4);
  job_status_destroy(table);
}

/* Five ranks: one was killed, the others ended as a consequence. */
static void ranks_that_others_ended_are_not_lost(void **state)
{
  struct job_status *table = NULL;
  struct job_verdict verdict;
  assert_int_equal(job_status_create(5, &table), 0);
  job_status_clear(table, 5);
  for (int rank = 1; rank < 5; rank++)
    job_status_begin(table, rank, "train"); /* the first has not begun */
  table->ranks[1].signal_number = SIGTERM;
  table->ranks[2].is_survivor = true;
  job_status_leave(table, 4, -EPIPE, "rank 3 has ended");
  job_status_judge(table, &verdict);
  assert_int_equal(verdict.n_begun, 4);
  assert_int_equal(verdict.n_unbegun, 1);
  assert_int_equal(verdict.n_lost, 1);
  assert_int_equal(verdict.first_lost, 3);
  assert_int_equal(verdict.error.code, -EPIPE);
  assert_false(verdict.is_own);
  assert_false(verdict.has_results);
  atomic_store(&table->has_results, 1);
  job_status_leave(table, 3, 0, NULL);
  job_status_judge(table, &verdict);
  assert_true(verdict.has_results);
  assert_int_equal(verdict.n_lost, 0);
  assert_int_equal(verdict.first_lost, 0); /* then a rank that had not begun was lost */
  job_status_clear(table, 5);
  job_status_judge(table, &verdict);
  assert_false(verdict.has_results); /* of the start before */
  job_status_destroy(table);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(checkpoints_of_other_runs_are_not_the_jobs, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_published_save_counts_without_a_note, scratch_setup,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(a_save_in_anothers_place_counts_once_it_took_it, scratch_setup,
                                      scratch_teardown),
      cmocka_unit_test(ranks_that_others_ended_are_not_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
