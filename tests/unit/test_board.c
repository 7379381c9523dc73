/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoints in --save are the job's, whoever wrote others there and whenever its ranks were killed. */
#include <setjmp.h>
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
#include "tools/board.h"

static struct board *board_make(void)
{
  struct board *board = NULL;
  assert_int_equal(board_create(2, &board), 0);
  assert_non_null(realpath(scratch, board->places[BOARD_SAVE]));
  return board;
}

/* As a save publishes: a directory of its own takes the name, and the one that had it is exchanged and removed. */
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
  struct board *board = board_make();
  checkpoint_publish(4);
  checkpoint_publish(100);
  assert_int_equal(board_find_save(board), -1);
  board_save_begin(board, 6);
  checkpoint_publish(6);
  board_save_end(board, 6, 1);
  assert_int_equal(board_find_save(board), 6);
  board_save_begin(board, 100); /* killed in it */
  assert_int_equal(board_find_save(board), 6);
  board_destroy(board);
}

static void a_save_that_was_published_counts_though_nobody_saw_it(void **state)
{
  struct board *board = board_make();
  board_save_begin(board, 4);
  assert_int_equal(board_find_save(board), -1);
  checkpoint_publish(4);
  assert_int_equal(board_find_save(board), 4);
  board_save_end(board, 4, 1);
  board_save_begin(board, 6);
  assert_int_equal(board_find_save(board), 4);
  checkpoint_publish(6);
  checkpoint_drop(4); /* --keep 1 */
  assert_int_equal(board_find_save(board), 6);
  board_clear(board, 2); /* the next start goes on from there, */
  board_save_begin(board, 6); /* has no step left, and is killed in its save of the same step */
  assert_int_equal(board_find_save(board), 6);
  board_destroy(board);
}

static void a_save_in_anothers_place_counts_once_it_took_it(void **state)
{
  struct board *board = board_make();
  checkpoint_publish(4);
  board_save_begin(board, 4);
  assert_int_equal(board_find_save(board), -1);
  checkpoint_publish(4);
  assert_int_equal(board_find_save(board), 4);
  board_destroy(board);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(checkpoints_of_other_runs_are_not_the_jobs, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_save_that_was_published_counts_though_nobody_saw_it, scratch_setup,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(a_save_in_anothers_place_counts_once_it_took_it, scratch_setup,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
