/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints on a machine that refuses: every call that can fail does, and kills come at any moment. Afterwards the
 * directory holds the former checkpoint or the new one, and nothing else.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/philox.h"
#include "run/checkpoint.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/scratch.h"
#include "tests/support/values_memory.h"

#define PATH_BYTES 512
#define N_KILLS 100

static struct lade_checkpoint_state state_of(int64_t step)
{
  return (struct lade_checkpoint_state){.step = step, .seed = 1, .loss_scale = 1, .model = "test"};
}

/* Count the entries of the scratch directory; @ret_name: the name if there is only one. */
static int entries_count(char ret_name[PATH_BYTES])
{
  DIR *stream = opendir(scratch);
  assert_non_null(stream);
  int n = 0;
  for (const struct dirent *entry; (entry = readdir(stream));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      snprintf(ret_name, PATH_BYTES, "%s", entry->d_name);
      n++;
    }
  closedir(stream);
  return n;
}

static int descriptors_count(void)
{
  DIR *stream = opendir("/proc/self/fd");
  int n = 0;
  if (!stream)
    return 0;
  while (readdir(stream))
    n++;
  closedir(stream);
  return n;
}

/* Check that the newest checkpoint is of @step and holds @expected. */
static void newest_holds(const struct values_memory *expected, int64_t step)
{
  char found[PATH_BYTES];
  struct values_memory memory;
  struct lade_error error = {0};
  struct lade_checkpoint_state the_state;
  values_memory_init(&memory, expected->graph);
  if (lade_checkpoint_find(scratch, found, sizeof(found), &error) != 0 ||
      lade_checkpoint_load(&memory.values, found, NULL, &the_state, &error) != 0)
    fail_msg("%s", error.text);
  assert_int_equal(the_state.step, step);
  assert_true(values_memory_equal(&memory, expected));
  values_memory_finish(&memory);
}

static int save(const struct values_memory *memory, int64_t step, int keep, struct lade_faults *faults,
                struct lade_error *error)
{
  struct lade_checkpoint_state state = state_of(step);
  const struct lade_checkpoint_place place = {.dir = scratch, .keep = keep};
  return lade_checkpoint_save(&memory->values, &state, &place, faults, error);
}

/* ---- every call fails ---- */

/*
 * Save @step over the existing checkpoint, failing call @i of any point for every @i. Before, the directory holds @old
 * alone as step 1. A failed save leaves exactly that, unless its error says that the new one is saved.
 */
static void save_survives(const struct values_memory *old, const struct values_memory *new, int64_t step, int keep,
                          bool is_for_good)
{
  struct lade_faults faults;
  char name[PATH_BYTES];
  uint64_t n_failed = 0;
  for (uint64_t i = 1;; i++) {
    struct lade_error error = {0};
    assert_int_equal(save(old, 1, 1, NULL, &error), 0);
    lade_faults_init(&faults);
    lade_faults_arm(&faults, LADE_FAULT_ANY, i, is_for_good, -EIO);
    int n_descriptors = descriptors_count(), rc = save(new, step, keep, &faults, &error);
    assert_int_equal(descriptors_count(), n_descriptors);
    if (rc == 0) {
      assert_int_equal(lade_faults_injected(&faults), 0); /* no failure was ignored */
      newest_holds(new, step);
      assert_true(n_failed > 20);
      return;
    }
    n_failed++;
    assert_true(rc == -EIO || rc == -ENOMEM);
    assert_true(error.code == rc && strlen(error.text) > 10 && !strchr(error.text, '\n'));
    if (strstr(error.text, "is saved")) {
      newest_holds(new, step);
    } else {
      newest_holds(old, 1);
      assert_int_equal(entries_count(name), 1);
    }
    scratch_remove(scratch);
    assert_int_equal(mkdir(scratch, 0777), 0);
  }
}

static void a_failed_save_leaves_the_former_checkpoint(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory old, new;
  values_memory_init(&old, graph);
  values_memory_init(&new, graph);
  values_memory_randomize(&old, 1);
  values_memory_randomize(&new, 2);
  for (int is_for_good = 0; is_for_good <= 1; is_for_good++) {
    save_survives(&old, &new, 2, 1, is_for_good); /* rotates the old one out */
    save_survives(&old, &new, 1, 0, is_for_good); /* replaces it */
  }
  values_memory_finish(&old);
  values_memory_finish(&new);
  lade_model_graph_destroy(graph);
}

/* The rename call returns -EINVAL, as on a file system that cannot exchange names. */
static void names_rotate_where_they_cannot_be_exchanged(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct values_memory old, new;
  struct lade_faults faults;
  struct lade_error error = {0};
  char name[PATH_BYTES];
  values_memory_init(&old, graph);
  values_memory_init(&new, graph);
  values_memory_randomize(&old, 1);
  values_memory_randomize(&new, 2);
  assert_int_equal(save(&old, 1, 0, NULL, &error), 0);
  lade_faults_init(&faults);
  assert_int_equal(save(&old, 1, 0, &faults, &error), 0);
  uint64_t n_writes = lade_faults_count(&faults, LADE_FAULT_FILE_WRITE);
  lade_faults_arm(&faults, LADE_FAULT_FILE_WRITE, n_writes, false, -EINVAL);
  assert_int_equal(save(&new, 1, 0, &faults, &error), 0);
  assert_int_equal(lade_faults_injected(&faults), 1);
  newest_holds(&new, 1);
  assert_int_equal(entries_count(name), 1);
  values_memory_finish(&old);
  values_memory_finish(&new);
  lade_model_graph_destroy(graph);
}

static void failing_values_leave_the_former_checkpoint(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_LLAMA, LADE_BF16, SIZE_SMALL);
  struct values_memory old, new;
  struct lade_error error = {0};
  char name[PATH_BYTES];
  values_memory_init(&old, graph);
  values_memory_init(&new, graph);
  values_memory_randomize(&old, 1);
  assert_int_equal(save(&old, 1, 0, NULL, &error), 0);
  for (uint64_t i = 1; i < 60; i += 13) {
    new.n_calls = 0;
    new.fail_at = i;
    assert_int_equal(save(&new, 2, 1, NULL, &error), -EIO);
    assert_non_null(strstr(error.text, "the values' call"));
    newest_holds(&old, 1);
    assert_int_equal(entries_count(name), 1);
  }
  values_memory_finish(&old);
  values_memory_finish(&new);
  lade_model_graph_destroy(graph);
}

/* A directory that the save made is removed again. */
static void a_failing_first_save_leaves_no_directory(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct values_memory memory;
  struct lade_error error = {0};
  char dir[PATH_BYTES], name[PATH_BYTES];
  struct lade_checkpoint_state the_state = state_of(1);
  const struct lade_checkpoint_place place = {.dir = dir};
  values_memory_init(&memory, graph);
  snprintf(dir, sizeof(dir), "%s/new", scratch);
  memory.fail_at = 2;
  assert_int_equal(lade_checkpoint_save(&memory.values, &the_state, &place, NULL, &error), -EIO);
  assert_int_equal(entries_count(name), 0);
  assert_int_equal(lade_checkpoint_save(&memory.values, &the_state, &place, NULL, &error), 0);
  snprintf(dir, sizeof(dir), "%s/no/way", scratch);
  assert_int_equal(lade_checkpoint_save(&memory.values, &the_state, &place, NULL, &error), -ENOENT);
  assert_non_null(strstr(error.text, "no/way"));
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void a_failed_load_returns_its_error(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F16, SIZE_SMALL);
  struct values_memory saved, memory;
  struct lade_faults faults;
  char found[PATH_BYTES];
  values_memory_init(&saved, graph);
  values_memory_randomize(&saved, 1);
  assert_int_equal(save(&saved, 1, 0, NULL, NULL), 0);
  assert_int_equal(lade_checkpoint_find(scratch, found, sizeof(found), NULL), 0);
  for (int is_init = 0; is_init <= 1; is_init++) {
    uint64_t n_failed = 0;
    for (uint64_t i = 1;; i++) {
      struct lade_checkpoint_state the_state = state_of(77);
      struct lade_error error = {0};
      values_memory_init(&memory, graph);
      lade_faults_init(&faults);
      lade_faults_arm(&faults, LADE_FAULT_ANY, i, false, -EIO);
      int n_descriptors = descriptors_count();
      int rc = is_init ? lade_checkpoint_init(&memory.values, found, &faults, &error)
                       : lade_checkpoint_load(&memory.values, found, &faults, &the_state, &error);
      assert_int_equal(descriptors_count(), n_descriptors);
      values_memory_finish(&memory);
      if (rc == 0) {
        assert_int_equal(lade_faults_injected(&faults), 0);
        break;
      }
      n_failed++;
      assert_true(rc == -EIO || rc == -ENOMEM);
      assert_true(error.code == rc && strlen(error.text) > 10);
      assert_int_equal(the_state.step, 77);
    }
    assert_true(n_failed > 10);
  }
  values_memory_finish(&saved);
  lade_model_graph_destroy(graph);
}

/* ---- kills ---- */

/* Make the values of a step: every save of a step holds the same ones, so that a reader knows them. */
static void values_of_step(struct values_memory *memory, int64_t step)
{
  values_memory_randomize(memory, (uint64_t)step);
}

static void child_save_forever(const struct lade_model_graph *graph, int64_t step)
{
  struct values_memory memory;
  values_memory_init(&memory, graph);
  for (;; step++) {
    values_of_step(&memory, step / 2); /* each step is saved twice: first added, then replaced */
    if (save(&memory, step / 2, 2, NULL, NULL) != 0)
      _exit(1);
  }
}

static void a_kill_at_any_moment_leaves_a_loadable_checkpoint(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory expected, memory;
  values_memory_init(&expected, graph);
  values_memory_init(&memory, graph);
  values_of_step(&expected, 1);
  int64_t begin_ns = lade_now_ns(), last = 1;
  for (int i = 0; i < 4; i++)
    assert_int_equal(save(&expected, 1, 0, NULL, NULL), 0);
  uint64_t save_ns = (uint64_t)(lade_now_ns() - begin_ns) / 4; /* kills fall into the first three saves of a child */
  /* On a slow machine kills come later and later, until some save has completed. */
  for (uint64_t i = 0; i < N_KILLS || (last == 1 && i < 20 * N_KILLS); i++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
      child_save_forever(graph, 2 * last + 1);
    uint64_t delay_ns = lade_philox_word(5, 0, 0, i) % LADE_MIN((3 + i / N_KILLS) * save_ns, 900000000);
    nanosleep(&(struct timespec){.tv_nsec = (long)delay_ns}, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status)); /* no save had failed */

    char found[PATH_BYTES];
    struct lade_error error = {0};
    struct lade_checkpoint_state the_state;
    if (lade_checkpoint_find(scratch, found, sizeof(found), &error) != 0 ||
        lade_checkpoint_load(&memory.values, found, NULL, &the_state, &error) != 0)
      fail_msg("kill %llu: %s", (unsigned long long)i, error.text);
    assert_true(the_state.step >= last);
    last = the_state.step;
    values_of_step(&expected, last);
    assert_true(values_memory_equal(&memory, &expected));
  }
  assert_true(last > 1); /* some saves completed */
  values_of_step(&memory, last + 1);
  assert_int_equal(save(&memory, last + 1, 1, NULL, NULL), 0);
  char name[PATH_BYTES];
  assert_int_equal(entries_count(name), 1); /* all leftovers are gone */
  values_memory_finish(&expected);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_failed_save_leaves_the_former_checkpoint,
                                      scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(names_rotate_where_they_cannot_be_exchanged,
                                      scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(failing_values_leave_the_former_checkpoint,
                                      scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_failing_first_save_leaves_no_directory,
                                      scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_failed_load_returns_its_error, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_kill_at_any_moment_leaves_a_loadable_checkpoint,
                                      scratch_setup_in_memory, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
