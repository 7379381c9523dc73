/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fail the Nth call of memory, threads, files, copies and rings through a whole run (bind, steps, save, another
 * step) for every N, once and for good: the run ends with an error of one line, or, where the call is made again or
 * done without, with the right numbers. Nothing leaks: blocks of the heap and descriptors are counted.
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
#include "tests/support/heap.h"
#include "tests/support/rig.h"

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

struct scene {
  struct rig rig;
  struct lade_plan *plan;
  struct lade_faults faults;
  enum manner manner;
  uint64_t digest; /* of a run without faults */
};

/* Whatever an interrupted save has left. */
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

static int save(struct scene *scene, struct lade_error *error)
{
  struct lade_values values = lade_executor_values(scene->rig.executor, scene->rig.graph);
  struct lade_checkpoint_state state = {.step = 2, .seed = 3, .loss_scale = 1, .model = "rig"};
  const struct lade_checkpoint_place place = {.dir = "saves"};
  return lade_checkpoint_save(&values, &state, &place, scene->rig.faults, error);
}

struct outcome {
  int status, save_status;
  uint64_t digest;
  struct lade_error error, save_error;
};

/* A save that fails leaves the run as it was; anything else ends it. */
static void scene_run(struct scene *scene, struct outcome *ret)
{
  struct lade_step_result result;
  struct rig *rig = &scene->rig;
  *ret = (struct outcome){0};
  ret->status = rig_open(rig, scene->plan, &ret->error);
  for (int i = 0; i < 2 && !ret->status; i++)
    ret->status = rig_step(rig, i, &result, &ret->error);
  if (!ret->status)
    ret->save_status = save(scene, &ret->save_error);
  if (!ret->status)
    ret->status = rig_step(rig, 2, &result, &ret->error);
  if (!ret->status)
    ret->status = rig_digest(rig, &ret->digest, &ret->error);
  rig_close(rig);
  rig_forget(rig);
  saves_remove("saves");
}

static void line_check(int status, const struct lade_error *error, const char *what)
{
  if (status && (error->code != status || !*error->text || strchr(error->text, '\n')))
    fail_msg("%s: status %d comes with code %d and the line '%s'", what, status, error->code, error->text);
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

static void scene_begin(struct scene *scene, enum manner manner)
{
  struct rig_model model = rig_tiny(manner == ON_HOST ? LADE_LLAMA : LADE_GPT2);
  struct lade_residency *residency = NULL;
  struct outcome outcome;
  model.layers = 1; /* fewer calls of every kind there is */
  *scene = (struct scene){.manner = manner};
  rig_init(&scene->rig, &model);
  scene->rig.engine = manner == IN_STORE_RING ? LADE_STORE_URING : LADE_STORE_POSIX;
  assert_int_equal(lade_residency_create(scene->rig.graph, &residency), 0);
  bool is_stored = manner != ON_HOST;
  scene->rig.is_durable = manner == DURABLE;
  for (int i = 0; i < residency->n_params; i++)
    lade_residency_set_homes(residency, i, is_stored ? LADE_HOME_STORE : LADE_HOME_HOST,
                             is_stored ? LADE_HOME_STORE : LADE_HOME_HOST);
  for (int i = 0; i < residency->n_tensors; i++) {
    if (scene->rig.graph->tensors[i].kind == LADE_TENSOR_ACTIVATION && residency->choices[i].saved == LADE_WAIT_KEEP)
      residency->choices[i].saved = is_stored ? LADE_WAIT_STORE : LADE_WAIT_HOST;
  }
  scene->plan = rig_plan(&scene->rig, residency);
  scene->rig.faults = &scene->faults;
  lade_faults_init(&scene->faults);
  scene_run(scene, &outcome);
  if (outcome.status || outcome.save_status)
    fail_msg("%s%s", outcome.error.text, outcome.save_error.text);
  scene->digest = outcome.digest;
}

static void scene_end(struct scene *scene)
{
  lade_plan_destroy(scene->plan);
  rig_finish(&scene->rig);
}

/* One run with a fault; what it gave is an error of one line or the right numbers, and nothing is left over. */
static struct outcome run_checked(struct scene *scene, const char *what)
{
  struct outcome outcome;
  int64_t blocks_before = heap_n_blocks();
  int descriptors_before = descriptors_count();
  scene_run(scene, &outcome);
  line_check(outcome.status, &outcome.error, what);
  line_check(outcome.save_status, &outcome.save_error, what);
  if (!outcome.status && outcome.digest != scene->digest)
    fail_msg("%s: the numbers are others", what);
  if (heap_n_blocks() != blocks_before)
    fail_msg("%s: %lld blocks leak (%s)", what, (long long)(heap_n_blocks() - blocks_before), outcome.error.text);
  if (descriptors_count() != descriptors_before)
    fail_msg("%s: a descriptor leaks (%s)", what, outcome.error.text);
  return outcome;
}

/* ---- every call ---- */

static bool is_thorough; /* else the calls further on are passed over in growing steps */

static uint64_t nth_next(uint64_t nth, bool for_good)
{
  return nth + 1 + (is_thorough && !for_good ? 0 : nth / 6);
}

/* Every call of one point, with @code. Demands success if @must_pass. Returns the last call that was failed. */
static uint64_t point_fails(struct scene *scene, enum lade_fault_point point, int code, bool for_good, bool must_pass)
{
  char what[160];
  for (uint64_t nth = 1;; nth = nth_next(nth, for_good)) {
    lade_faults_arm(&scene->faults, point, nth, for_good, code);
    snprintf(what, sizeof(what), "%s: call %llu of %s fails %s with %s", manner_names[scene->manner],
             (unsigned long long)nth, lade_fault_name(point), for_good ? "for good" : "once", strerror(-code));
    struct outcome outcome = run_checked(scene, what);
    if (!lade_faults_injected(&scene->faults)) {
      assert_int_equal(outcome.status | outcome.save_status, 0);
      return nth - 1;
    }
    if (must_pass && (outcome.status || outcome.save_status))
      fail_msg("%s: %s%s", what, outcome.error.text, outcome.save_error.text);
  }
}

static bool manner_begin(struct scene *scene, enum manner manner)
{
  const char *refusal = manner == ON_HOST ? NULL : rig_store_refusal(manner == IN_STORE_RING ? LADE_STORE_URING
                                                                                             : LADE_STORE_POSIX);
  if (refusal) {
    printf("SKIP: %s: %s\n", manner_names[manner], refusal);
    return false;
  }
  scene_begin(scene, manner);
  return true;
}

static void any_call_may_fail(void **state)
{
  static const int codes[LADE_N_FAULT_POINTS] = {
      [LADE_FAULT_THREAD] = -EAGAIN,        [LADE_FAULT_COPY] = -EIO,       [LADE_FAULT_FILE_OPEN] = -EACCES,
      [LADE_FAULT_FILE_READ] = -EIO,        [LADE_FAULT_FILE_WRITE] = -EIO, [LADE_FAULT_FILE_SYNC] = -EIO,
      [LADE_FAULT_RING_SETUP] = -EPERM,     [LADE_FAULT_RING_SUBMIT] = -EIO, [LADE_FAULT_RING_COMPLETE] = -EIO};
  for (int manner = 0; manner < N_MANNERS; manner++) {
    struct scene scene;
    if (!manner_begin(&scene, (enum manner)manner))
      continue;
    uint64_t n = 0;
    for (int point = 0; point < LADE_N_FAULT_POINTS; point++) {
      int code = codes[point] ? codes[point] : -ENOMEM;
      n += point_fails(&scene, (enum lade_fault_point)point, code, false, false);
      point_fails(&scene, (enum lade_fault_point)point, code, true, false);
    }
    assert_true(n > 20);
    scene_end(&scene);
  }
}

/* What a machine does when it is busy: it is tried again, and nobody notices. */
static void a_call_that_is_tried_again_changes_nothing(void **state)
{
  for (int manner = IN_STORE_THREADS; manner < N_MANNERS; manner++) {
    struct scene scene;
    if (!manner_begin(&scene, (enum manner)manner))
      continue;
    point_fails(&scene, LADE_FAULT_RING_SUBMIT, -EAGAIN, false, true);
    point_fails(&scene, LADE_FAULT_RING_COMPLETE, -EINTR, false, true);
    scene_end(&scene);
  }
}

/* ---- the heap, planning included ---- */

static int planned_run(struct scene *scene, struct lade_error *error)
{
  struct rig *rig = &scene->rig;
  lade_planner *planner = NULL;
  struct lade_plan *plan = NULL;
  struct lade_plan_bounds bounds;
  struct lade_step_result result;
  struct lade_plan_params how = {.struct_size = sizeof(how), .graph = rig->graph, .prices = &rig->prices,
                                 .n_microbatches = 1, .is_unified = true, .chunk_bytes = 1 << 16,
                                 .host_bytes = 1 << 30, .recipe = LADE_RECIPE_FULL};
  int status = lade_planner_create(&how, error, &planner);
  if (!status && (status = lade_planner_get_bounds(planner, &bounds)))
    lade_error_set(error, status, "bounds");
  if (!status)
    status = lade_planner_plan(planner, bounds.min_bytes, error, &plan);
  if (!status)
    status = rig_open(rig, plan, error);
  if (!status)
    status = rig_step(rig, 0, &result, error);
  if (!status)
    status = save(scene, error);
  rig_close(rig);
  lade_plan_destroy(plan);
  lade_planner_destroy(planner);
  saves_remove("saves");
  return status;
}

static void any_allocation_may_fail(void **state)
{
  struct scene scene;
  scene_begin(&scene, ON_HOST);
  int64_t n_refused = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    int64_t stride = 1;
    for (int64_t nth = 1;; nth += stride) {
      struct lade_error error = {0};
      char what[80];
      int64_t blocks_before = heap_n_blocks();
      snprintf(what, sizeof(what), "allocation %lld fails %s", (long long)nth, for_good ? "for good" : "once");
      is_for_good = for_good;
      n_allocations = 0;
      fail_at = nth;
      int status = planned_run(&scene, &error);
      bool is_hit = n_allocations >= nth;
      fail_at = 0;
      line_check(status, &error, what);
      if (heap_n_blocks() != blocks_before)
        fail_msg("%s: %lld blocks leak (%s)", what, (long long)(heap_n_blocks() - blocks_before), error.text);
      if (!is_hit) {
        assert_int_equal(status, 0);
        break;
      }
      n_refused += status != 0;
      stride = is_thorough ? LADE_MAX(1, nth / 200) : LADE_MAX(1, nth / 16); /* walks repeat themselves */
    }
  }
  assert_true(n_refused > 50);
  scene_end(&scene);
}

static int directory_enter(void **state)
{
  const char *dir = rig_directory();
  return dir ? chdir(dir) : -1;
}

static int directory_leave(void **state)
{
  return chdir("..");
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
