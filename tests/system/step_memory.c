/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between entry and exit of a step nothing is allocated and no memory is requested from the system, libraries included.
 * Steps run in a child, which the kernel ends at the first memory system call. Every heap call of the child is counted.
 * The session around the step of one stage of a pipeline uses no heap either.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/session.h"
#include "tests/support/heap/heap.h"
#include "tests/support/run_fixture.h"
#include "tests/support/seccomp.h"

/* ---- steps without memory calls ---- */

enum { DONE = 40, ALLOCATED, NUMBERS_DIFFER, NOT_BEGUN, NO_SECCOMP };

struct setting {
  const char *name;
  enum lade_store_engine engine;
  uint64_t host_bytes, store_bytes;
  double share; /* fraction of the way from the smallest budget to the unconstrained peak */
  bool is_durable;
};

static const struct setting settings[] = {
    {"unconstrained", LADE_STORE_AUTO, 0, 0, 1},
    {"recompute alone, smallest budget", LADE_STORE_AUTO, 0, 0, 0},
    {"host tier", LADE_STORE_AUTO, 1 << 30, 0, 0.4},
    {"host tier, smallest budget", LADE_STORE_AUTO, 1 << 30, 0, 0},
    {"store, threads", LADE_STORE_POSIX, 0, 1 << 30, 0.4},
    {"store, threads, smallest budget", LADE_STORE_POSIX, 0, 1 << 30, 0},
    {"store, ring", LADE_STORE_URING, 0, 1 << 30, 0.4},
    {"store, ring, smallest budget", LADE_STORE_URING, 0, 1 << 30, 0},
    {"both tiers, smallest budget", LADE_STORE_AUTO, 512 << 10, 1 << 30, 0},
    {"durable state, smallest budget", LADE_STORE_AUTO, 0, 1 << 30, 0, true},
};

static const int memory_calls[] = {SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mprotect, SYS_brk};

/* Run in a child, with a fixture of its own. */
static int steps_run(enum lade_family family, const struct setting *given)
{
  struct run_fixture_model model = run_fixture_tiny(family);
  struct lade_error error = {0};
  struct lade_plan_bounds bounds;
  struct lade_plan *plan = NULL;
  struct lade_step_result results[4] = {{0}};
  struct run_fixture run_fixture;
  double eval[2];
  model.n_microbatches = 2;
  run_fixture_init(&run_fixture, &model);
  run_fixture.engine = given->engine;
  run_fixture.is_durable = given->is_durable;
  run_fixture.store_dir = run_fixture.is_durable ? run_fixture_directory() : run_fixture.store_dir;
  lade_planner *planner = run_fixture_planner(&run_fixture, given->host_bytes, given->store_bytes, LADE_RECIPE_AUTO);
  if (lade_planner_get_bounds(planner, &bounds))
    return NOT_BEGUN;
  const uint64_t span_bytes = bounds.unconstrained_bytes - bounds.min_bytes;
  uint64_t budget = bounds.min_bytes + (uint64_t)(given->share * (double)span_bytes);
  if (lade_planner_plan(planner, budget, &error, &plan) || run_fixture_open(&run_fixture, plan, &error)) {
    fprintf(stderr, "%s: %s\n", given->name, error.text);
    return NOT_BEGUN;
  }
  if (!seccomp_refuse(memory_calls, (int)LADE_COUNT(memory_calls), 0))
    return NO_SECCOMP;
  int64_t n_heap_calls = heap_n_calls();
  int status = run_fixture_eval(&run_fixture, &eval[0], &error);
  for (int i = 0; i < (int)LADE_COUNT(results); i++)
    status = status ? status : run_fixture_step(&run_fixture, i, &results[i], &error);
  status = status ? status : run_fixture_eval(&run_fixture, &eval[1], &error);
  n_heap_calls -= heap_n_calls();
  run_fixture_forget(&run_fixture);
  bool is_right = !status && results[3].loss > 1 && results[3].loss < 20 && eval[0] != eval[1];
  return n_heap_calls ? ALLOCATED : is_right ? DONE : NUMBERS_DIFFER;
}

static void outcome_check(const struct setting *given, int status)
{
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
    fail_msg("%s: a step asks the system for memory", given->name);
  if (WIFSIGNALED(status))
    fail_msg("%s: signal %d", given->name, WTERMSIG(status));
  int code = WEXITSTATUS(status);
  if (code == NO_SECCOMP) {
    printf("SKIP: system calls: seccomp is forbidden here\n");
    skip();
  }
  if (code != DONE)
    fail_msg("%s: %s", given->name, code == ALLOCATED ? "a step uses the heap" :
             code == NOT_BEGUN ? "not begun" : "the step went wrong");
}

static int child_wait(pid_t child)
{
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void a_step_asks_for_no_memory(void **state)
{
  assert_non_null(run_fixture_directory()); /* the parent's, which removes it */
  for (int i = 0; i < (int)LADE_COUNT(settings); i++) {
    const char *refusal = settings[i].store_bytes ? run_fixture_store_refusal(settings[i].engine) : NULL;
    if (refusal) {
      printf("SKIP: %s: %s\n", settings[i].name, refusal);
      continue;
    }
    for (int family = LADE_GPT2; family <= LADE_LLAMA; family++) {
      pid_t child = fork();
      assert_true(child >= 0);
      if (child == 0)
        _exit(steps_run((enum lade_family)family, &settings[i]));
      outcome_check(&settings[i], child_wait(child));
    }
  }
}

/* The last stage gives its loss to the others; a dry stage alone takes the same path. */
static void a_step_of_a_stage_uses_no_heap(void **state)
{
  struct lade_session_params params = run_fixture_session_params();
  struct lade_step_report report;
  struct lade_error error = {0};
  lade_session *session = NULL;
  params.is_dry = true;
  params.layout.pp = 2;
  if (lade_session_open(&params, &error, &session) || lade_session_step(session, &report, &error))
    fail_msg("%s", error.text);
  const int64_t n_heap_calls = heap_n_calls();
  if (lade_session_step(session, &report, &error))
    fail_msg("%s", error.text);
  assert_int_equal(heap_n_calls(), n_heap_calls);
  lade_session_close(session);
}

/* Check that both detectors work. */
static void an_allocation_would_be_seen(void **state)
{
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (!seccomp_refuse(memory_calls, (int)LADE_COUNT(memory_calls), 0))
      _exit(NO_SECCOMP);
    int64_t n_heap_calls = heap_n_calls();
    free(strdup("a word")); /* inside the C library */
    if (heap_is_counted() && heap_n_calls() < n_heap_calls + 2)
      _exit(NUMBERS_DIFFER);
    syscall(SYS_munmap, NULL, (size_t)4096);
    _exit(DONE);
  }
  int status = child_wait(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SECCOMP)
    skip();
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGSYS);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_allocation_would_be_seen),
      cmocka_unit_test(a_step_asks_for_no_memory),
      cmocka_unit_test(a_step_of_a_stage_uses_no_heap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
