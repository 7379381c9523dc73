/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fail the Nth call of memory, threads, files, copies and rings through a whole run, for every N, once and for good. A
 * run binds, steps, saves and steps again. The run ends with an error of one line, or, if the call is repeated or
 * optional, with the right numbers. Nothing leaks: blocks of the heap and descriptors are counted.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/checkpoint.h"
#include "tests/support/heap/heap.h"
#include "tests/support/run_fixture.h"
#include "tests/support/scratch.h"

/* ---- the library's heap ---- */

static _Atomic int64_t n_allocations, fail_at; /* fail_at: the allocation, from 1; 0: none */
static atomic_bool is_for_good;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);

static bool allocation_fails(void)
{
  int64_t number = ++n_allocations, at = fail_at;
  return at && (is_for_good ? number >= at : number == at);
}

void *__wrap_malloc(size_t bytes)
{
  return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
  return allocation_fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *at, size_t bytes)
{
  return allocation_fails() ? NULL : __real_realloc(at, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
  return allocation_fails() ? NULL : __real_aligned_alloc(align, bytes);
}

/* ---- a run ---- */

enum manner { ON_HOST, IN_STORE_THREADS, IN_STORE_RING, DURABLE, N_MANNERS };

static const char *const manner_names[N_MANNERS] = {"host", "store, threads", "store, ring", "durable"};

struct calls_fixture {
  struct run_fixture run_fixture;
  struct lade_plan *plan;
  struct lade_faults faults;
  enum manner manner;
  uint64_t digest; /* of a run without faults */
};

/* Remove the remains of an interrupted save. */
static void saves_remove(const char *dir)
{
  struct dirent *entry;
  char path[2048];
  DIR *all = opendir(dir);
  while (all && (entry = readdir(all))) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
    if (unlink(path) && errno == EISDIR)
      saves_remove(path);
  }
  if (all)
    closedir(all);
  rmdir(dir);
}

static int save(struct calls_fixture *fixture, struct lade_error *error)
{
  struct lade_values values = lade_executor_values(fixture->run_fixture.executor, fixture->run_fixture.graph);
  struct lade_checkpoint_state state = {.step = 2, .seed = 3, .loss_scale = 1, .model = "fixture"};
  const struct lade_checkpoint_place place = {.dir = in_scratch("saves")};
  return lade_checkpoint_save(&values, &state, &place, fixture->run_fixture.faults, error);
}

struct outcome {
  int status, save_status;
  uint64_t digest;
  struct lade_error error, save_error;
};

/* Run to the end or to the first error. A failed save leaves the run as it was; any other error ends it. */
static void program_fixture_run(struct calls_fixture *fixture, struct outcome *ret)
{
  struct lade_step_result result;
  struct run_fixture *run_fixture = &fixture->run_fixture;
  *ret = (struct outcome){0};
  ret->status = run_fixture_open(run_fixture, fixture->plan, &ret->error);
  for (int i = 0; i < 2 && !ret->status; i++)
    ret->status = run_fixture_step(run_fixture, i, &result, &ret->error);
  if (!ret->status)
    ret->save_status = save(fixture, &ret->save_error);
  if (!ret->status)
    ret->status = run_fixture_step(run_fixture, 2, &result, &ret->error);
  if (!ret->status)
    ret->status = run_fixture_digest(run_fixture, &ret->digest, &ret->error);
  run_fixture_close(run_fixture);
  run_fixture_forget(run_fixture);
  saves_remove(in_scratch("saves"));
}

static void line_check(int status, const struct lade_error *error, const char *label)
{
  if (status && (error->code != status || !*error->text || strchr(error->text, '\n')))
    fail_msg("%s: status %d comes with code %d and the line '%s'", label, status, error->code, error->text);
}

static int descriptors_count(void)
{
  int n = 0;
  DIR *all = opendir("/proc/self/fd");
  while (all && readdir(all))
    n++;
  if (all)
    closedir(all);
  return n;
}

static void program_fixture_begin(struct calls_fixture *fixture, enum manner manner)
{
  struct run_fixture_model model = run_fixture_tiny(manner == ON_HOST ? LADE_LLAMA : LADE_GPT2);
  struct lade_residency *residency = NULL;
  struct outcome outcome;
  model.layers = 1; /* fewer calls, of every kind that exists */
  *fixture = (struct calls_fixture){.manner = manner};
  run_fixture_init(&fixture->run_fixture, &model);
  fixture->run_fixture.engine = manner == IN_STORE_RING ? LADE_STORE_URING : LADE_STORE_POSIX;
  assert_int_equal(lade_residency_create(fixture->run_fixture.graph, &residency), 0);
  bool is_stored = manner != ON_HOST;
  fixture->run_fixture.is_durable = manner == DURABLE;
  for (int i = 0; i < residency->n_params; i++)
    lade_residency_set_tiers(residency, i, is_stored ? LADE_TIER_STORE : LADE_TIER_HOST,
                             is_stored ? LADE_TIER_STORE : LADE_TIER_HOST);
  for (int i = 0; i < residency->n_tensors; i++) {
    if (fixture->run_fixture.graph->tensors[i].kind == LADE_TENSOR_ACTIVATION &&
        residency->choices[i].saved == LADE_RESIDENCY_KEEP)
      residency->choices[i].saved = is_stored ? LADE_RESIDENCY_STORE : LADE_RESIDENCY_HOST;
  }
  fixture->plan = run_fixture_plan(&fixture->run_fixture, residency);
  fixture->run_fixture.faults = &fixture->faults;
  lade_faults_init(&fixture->faults);
  program_fixture_run(fixture, &outcome);
  if (outcome.status || outcome.save_status)
    fail_msg("%s%s", outcome.error.text, outcome.save_error.text);
  fixture->digest = outcome.digest;
}

static void program_fixture_end(struct calls_fixture *fixture)
{
  lade_plan_destroy(fixture->plan);
  run_fixture_finish(&fixture->run_fixture);
}

/* Run once with a fault, and check for an error of one line or the right numbers, and for leaks. */
static struct outcome run_checked(struct calls_fixture *fixture, const char *label)
{
  struct outcome outcome;
  int64_t blocks_before = heap_n_blocks();
  int descriptors_before = descriptors_count();
  program_fixture_run(fixture, &outcome);
  line_check(outcome.status, &outcome.error, label);
  line_check(outcome.save_status, &outcome.save_error, label);
  if (!outcome.status && outcome.digest != fixture->digest)
    fail_msg("%s: the numbers are others", label);
  if (heap_n_blocks() != blocks_before)
    fail_msg("%s: %lld blocks leak (%s)", label, (long long)(heap_n_blocks() - blocks_before), outcome.error.text);
  if (descriptors_count() != descriptors_before)
    fail_msg("%s: a descriptor leaks (%s)", label, outcome.error.text);
  return outcome;
}

/* ---- every call ---- */

static bool is_thorough; /* every call up to EVERY_ONE; later ones, which repeat few places, in growing steps */

#define EVERY_ONE 64

static uint64_t nth_next(uint64_t nth, bool for_good)
{
  return nth + 1 + (!is_thorough || for_good ? nth / 3 : nth < EVERY_ONE ? 0 : nth / 24);
}

/* Fail every call of one point with @code. Requires success if @must_pass. Return the last call that was failed. */
static uint64_t point_fails(struct calls_fixture *fixture, enum lade_fault_point point, int code, bool for_good,
                            bool must_pass)
{
  char label[160];
  for (uint64_t nth = 1;; nth = nth_next(nth, for_good)) {
    lade_faults_arm(&fixture->faults, point, nth, for_good, code);
    snprintf(label, sizeof(label), "%s: call %llu of %s fails %s with %s", manner_names[fixture->manner],
             (unsigned long long)nth, lade_fault_name(point), for_good ? "for good" : "once", strerror(-code));
    struct outcome outcome = run_checked(fixture, label);
    if (!lade_faults_injected(&fixture->faults)) {
      assert_int_equal(outcome.status | outcome.save_status, 0);
      return nth - 1;
    }
    if (must_pass && (outcome.status || outcome.save_status))
      fail_msg("%s: %s%s", label, outcome.error.text, outcome.save_error.text);
  }
}

static bool manner_begin(struct calls_fixture *fixture, enum manner manner)
{
  const char *refusal = manner == ON_HOST ? NULL : run_fixture_store_refusal(manner == IN_STORE_RING ? LADE_STORE_URING
                                                                                             : LADE_STORE_POSIX);
  if (refusal) {
    printf("SKIP: %s: %s\n", manner_names[manner], refusal);
    return false;
  }
  program_fixture_begin(fixture, manner);
  return true;
}

static void any_call_may_fail(void **state)
{
  static const int codes[LADE_N_FAULT_POINTS] = {
      [LADE_FAULT_THREAD] = -EAGAIN,        [LADE_FAULT_COPY] = -EIO,       [LADE_FAULT_FILE_OPEN] = -EACCES,
      [LADE_FAULT_FILE_READ] = -EIO,        [LADE_FAULT_FILE_WRITE] = -EIO, [LADE_FAULT_FILE_SYNC] = -EIO,
      [LADE_FAULT_RING_SETUP] = -EPERM,     [LADE_FAULT_RING_SUBMIT] = -EIO, [LADE_FAULT_RING_COMPLETE] = -EIO,
      [LADE_FAULT_RING_WAIT] = -EBADF};
  for (int manner = 0; manner < N_MANNERS; manner++) {
    struct calls_fixture fixture;
    if (!manner_begin(&fixture, (enum manner)manner))
      continue;
    uint64_t n = 0;
    for (int point = 0; point < LADE_N_FAULT_POINTS; point++) {
      int code = codes[point] ? codes[point] : -ENOMEM;
      n += point_fails(&fixture, (enum lade_fault_point)point, code, false, false);
      point_fails(&fixture, (enum lade_fault_point)point, code, true, false);
    }
    assert_true(n > 20);
    program_fixture_end(&fixture);
  }
}

/* Refusals of a busy machine: the call is repeated, and the numbers are unchanged. */
static void a_call_that_is_tried_again_changes_nothing(void **state)
{
  for (int manner = IN_STORE_THREADS; manner < N_MANNERS; manner++) {
    struct calls_fixture fixture;
    if (!manner_begin(&fixture, (enum manner)manner))
      continue;
    point_fails(&fixture, LADE_FAULT_RING_SUBMIT, -EAGAIN, false, true);
    point_fails(&fixture, LADE_FAULT_RING_COMPLETE, -EINTR, false, true);
    point_fails(&fixture, LADE_FAULT_RING_WAIT, -EINTR, false, true);
    program_fixture_end(&fixture);
  }
}

/* ---- the heap, planning included ---- */

static int planned_run(struct calls_fixture *fixture, struct lade_error *error)
{
  struct run_fixture *run_fixture = &fixture->run_fixture;
  lade_planner *planner = NULL;
  struct lade_plan *plan = NULL;
  struct lade_plan_bounds bounds;
  struct lade_step_result result;
  struct lade_plan_params params = {.struct_size = sizeof(params), .graph = run_fixture->graph,
                                    .prices = &run_fixture->prices,
                                    .n_microbatches = 1, .is_unified = true, .chunk_bytes = 1 << 16,
                                    .host_bytes = 1 << 30, .recipe = LADE_RECIPE_FULL};
  int status = lade_planner_create(&params, error, &planner);
  if (!status && (status = lade_planner_get_bounds(planner, &bounds)))
    lade_error_set(error, status, "bounds");
  if (!status)
    status = lade_planner_plan(planner, bounds.min_bytes, error, &plan);
  if (!status)
    status = run_fixture_open(run_fixture, plan, error);
  if (!status)
    status = run_fixture_step(run_fixture, 0, &result, error);
  if (!status)
    status = save(fixture, error);
  run_fixture_close(run_fixture);
  lade_plan_destroy(plan);
  lade_planner_destroy(planner);
  saves_remove(in_scratch("saves"));
  return status;
}

static void any_allocation_may_fail(void **state)
{
  struct calls_fixture fixture;
  program_fixture_begin(&fixture, ON_HOST);
  int64_t n_refused = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    int64_t stride = 1;
    for (int64_t nth = 1;; nth += stride) {
      struct lade_error error = {0};
      char label[80];
      int64_t blocks_before = heap_n_blocks();
      snprintf(label, sizeof(label), "allocation %lld fails %s", (long long)nth, for_good ? "for good" : "once");
      is_for_good = for_good;
      n_allocations = 0;
      fail_at = nth;
      int status = planned_run(&fixture, &error);
      bool is_hit = n_allocations >= nth;
      fail_at = 0;
      line_check(status, &error, label);
      if (heap_n_blocks() != blocks_before)
        fail_msg("%s: %lld blocks leak (%s)", label, (long long)(heap_n_blocks() - blocks_before), error.text);
      if (!is_hit) {
        assert_int_equal(status, 0);
        break;
      }
      n_refused += status != 0;
      stride = is_thorough ? LADE_MAX(1, nth / EVERY_ONE) : LADE_MAX(1, nth / 6); /* descents repeat the same calls */
    }
  }
  assert_true(n_refused > 50);
  program_fixture_end(&fixture);
}

static int directory_enter(void **state)
{
  const char *dir = run_fixture_directory();
  return scratch_setup_in_memory(state) || !dir ? -1 : chdir(dir); /* stores need a drive, saves are many */
}

static int directory_leave(void **state)
{
  return chdir("..") ? -1 : scratch_teardown(state);
}

int main(int argc, char **argv)
{
  is_thorough = argc > 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_call_may_fail),
      cmocka_unit_test(a_call_that_is_tried_again_changes_nothing),
      cmocka_unit_test(any_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, directory_enter, directory_leave);
}
