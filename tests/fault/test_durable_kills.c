/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A life over durable state is killed, somewhere from opening existing state to publishing a step. The next life finds
 * the whole state of the last published step, or of the step in progress. It ends on the digest of an uninterrupted
 * run. Lives are killed at calls to the files in threads; at entries to and exits from the kernel in any thread, with
 * transfers by the ring; and at random moments.
 *
 * Each life is a child; the parent has no threads. With the argument "every", at each of the first calls, at many later
 * ones, and many times at random; else at some.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/philox.h"
#include "run/executor/executor_internal.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 3

/* ---- wrapped calls of the library ---- */

static _Atomic int64_t calls_left; /* counts down to the call at which the life is killed; 0: none */

static void call_count(void)
{
  if (atomic_fetch_sub(&calls_left, 1) == 1)
    kill(getpid(), SIGKILL);
}

#define WRAP(type, name, params, args)                                                                                 \
  type __real_##name params;                                                                                           \
  type __wrap_##name params;                                                                                           \
  type __wrap_##name params                                                                                            \
  {                                                                                                                    \
    call_count();                                                                                                      \
    return __real_##name args;                                                                                         \
  }

WRAP(ssize_t, pread, (int fd, void *data, size_t bytes, off_t offset), (fd, data, bytes, offset))
WRAP(ssize_t, pread64, (int fd, void *data, size_t bytes, off_t offset), (fd, data, bytes, offset))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t offset), (fd, data, bytes, offset))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off_t offset), (fd, data, bytes, offset))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, renameat, (int from_fd, const char *from, int to_fd, const char *to), (from_fd, from, to_fd, to))
WRAP(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
WRAP(int, ftruncate64, (int fd, off_t bytes), (fd, bytes))
WRAP(int, fallocate, (int fd, int mode, off_t from, off_t bytes), (fd, mode, from, bytes))
WRAP(int, fallocate64, (int fd, int mode, off_t from, off_t bytes), (fd, mode, from, bytes))

/* ---- lives ---- */

/* Results of lives, in memory shared with the parent. */
static struct {
  int n_found;                 /* steps published before the life began */
  uint64_t digests[N_STEPS + 1]; /* by number of steps */
} *said;

static const char *dir;
static enum lade_store_engine engine;

/*
 * Run steps to @end, killed at call @kill_at unless it is 0. Record the digests before, between and after steps if
 * @has_digests.
 */
static int life_run(bool is_durable, int end, int64_t kill_at, bool has_digests)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct lade_residency *residency = NULL;
  struct lade_step_result result;
  struct run_fixture run_fixture;
  run_fixture_init(&run_fixture, &model);
  run_fixture.engine = engine;
  run_fixture.is_durable = is_durable;
  run_fixture.store_dir = dir;
  if (lade_residency_create(run_fixture.graph, &residency))
    return 2;
  const enum lade_tier tier = is_durable ? LADE_TIER_STORE : LADE_TIER_DEVICE;
  for (int i = 0; i < run_fixture.graph->n_params; i++)
    lade_residency_set_tiers(residency, i, tier, tier);
  struct lade_plan *plan = run_fixture_plan(&run_fixture, residency);
  calls_left = kill_at;
  int status = run_fixture_open(&run_fixture, plan, &error);
  said->n_found = status ? -1 : (int)lade_executor_n_steps(run_fixture.executor);
  for (int i = said->n_found; !status; i++) {
    status = has_digests ? run_fixture_digest(&run_fixture, &said->digests[i], &error) : 0;
    if (status || i >= end)
      break;
    status = run_fixture_step(&run_fixture, i, &result, &error);
  }
  if (status)
    fprintf(stderr, "%s\n", error.text);
  return status ? 1 : 0;
}

/* True if a life with this @status ended by itself. */
static bool has_ended(int status)
{
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    return false;
  if (!WIFEXITED(status) || WEXITSTATUS(status))
    fail_msg("a life ended with status %d", status);
  return true;
}

/* Run a life. True if it ended by itself. */
static bool life(bool is_durable, int end, int64_t kill_at, bool has_digests)
{
  int status = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child)
    _exit(life_run(is_durable, end, kill_at, has_digests));
  assert_int_equal(waitpid(child, &status, 0), child);
  return has_ended(status);
}

#define TRACE_OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)
#define CALL_STOP (SIGTRAP | 0x80)

/* Return the signal that stopped a thread and must be delivered to it; 0: the stop was for the tracer. */
static int signal_of(int status)
{
  const bool is_tracers = status >> 16 || WSTOPSIG(status) == CALL_STOP || WSTOPSIG(status) == SIGSTOP;
  return is_tracers ? 0 : WSTOPSIG(status);
}

/* Run to the second step, killed the @kill_at-th time that any of its threads enters or leaves the kernel. */
static bool life_traced(int64_t kill_at)
{
  int status = 0;
  pid_t child = fork(), thread;
  assert_true(child >= 0);
  if (!child) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    _exit(life_run(true, 2, 0, false));
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  ptrace(PTRACE_SETOPTIONS, child, NULL, TRACE_OPTIONS); /* as in can_trace */
  for (thread = child; thread != child || WIFSTOPPED(status); thread = waitpid(-1, &status, __WALL)) {
    assert_true(thread > 0);
    if (!WIFSTOPPED(status))
      continue; /* a thread has ended */
    if (WSTOPSIG(status) == CALL_STOP && --kill_at == 0)
      kill(child, SIGKILL);
    ptrace(PTRACE_SYSCALL, thread, NULL, signal_of(status));
  }
  return has_ended(status);
}

/* Run to the second step, killed after @ns. */
static bool life_timed(int64_t ns)
{
  const struct timespec pause = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  int status = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child)
    _exit(life_run(true, 2, 0, false));
  nanosleep(&pause, NULL);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  return has_ended(status);
}

static uint64_t wanted[N_STEPS + 1];

/*
 * Check that the state found is that after one step or after two, and run on to @end if that is further. Return which.
 */
static int state_check(int end, int64_t kill_at)
{
  assert_true(life(true, end, 0, true));
  if (said->n_found != 1 && said->n_found != 2)
    fail_msg("killed at %lld: the state after %d steps is found", (long long)kill_at, said->n_found);
  for (int i = said->n_found; i <= LADE_MAX(end, said->n_found); i++) {
    if (said->digests[i] != wanted[i])
      fail_msg("killed at %lld: after step %d the state is another", (long long)kill_at, i);
  }
  return said->n_found;
}

/* ---- the test ---- */

static bool is_thorough;

#define EVERY_ONE 128 /* calls at which lives are killed one by one; later ones in growing steps */
static uint32_t seed;

static int state_forget(void **state)
{
  const struct run_fixture where = {.store_dir = dir};
  if (dir)
    run_fixture_forget(&where);
  return 0;
}

/* Begin anew, and run one step. */
static void state_make(void)
{
  state_forget(NULL);
  assert_true(life(true, 1, 0, false));
}

/* Make a directory of the test's own, with a state of one step; false: skip. */
static void program_fixture_begin(enum lade_store_engine with)
{
  const char *refusal = run_fixture_store_refusal(with);
  if (refusal) {
    printf("SKIP: %s\n", refusal);
    skip();
  }
  engine = with;
  dir = run_fixture_directory();
  assert_non_null(dir);
  assert_true(life(false, N_STEPS, 0, true));
  memcpy(wanted, said->digests, sizeof(wanted));
  state_make();
}

/* After a life was killed at @at, check the state found, and restore the state of one step. */
static void killed_check(int64_t at)
{
  if (state_check(0, at) == 2)
    state_make();
}

static void a_kill_at_any_call_loses_no_step(void **state)
{
  int64_t n_killed = 0, kill_at = 1;
  program_fixture_begin(LADE_STORE_POSIX);
  for (; !life(true, 2, kill_at, false); kill_at += 1 + kill_at / (is_thorough ? EVERY_ONE : 12)) {
    n_killed++;
    killed_check(kill_at);
  }
  assert_true(n_killed > 20);
  assert_int_equal(state_check(N_STEPS, kill_at), 2); /* of the last life, which was not killed */
  printf("killed at %lld of %lld calls\n", (long long)n_killed, (long long)kill_at);
}

static bool can_trace(void)
{
  int status = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child)
    _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP));
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFSTOPPED(status))
    return false;
  const bool can = !ptrace(PTRACE_SETOPTIONS, child, NULL, TRACE_OPTIONS);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  return can;
}

static void a_kill_at_any_way_into_the_kernel_loses_no_step(void **state)
{
  int64_t n_killed = 0, kill_at = 1;
  if (!can_trace()) {
    printf("SKIP: tracing is forbidden here\n");
    skip();
  }
  program_fixture_begin(LADE_STORE_AUTO);
  for (; !life_traced(kill_at); kill_at += 1 + kill_at / (is_thorough ? EVERY_ONE : 12)) {
    n_killed++;
    killed_check(kill_at);
  }
  assert_true(n_killed > 20);
  assert_int_equal(state_check(N_STEPS, kill_at), 2);
  printf("killed at %lld of %lld ways into and out of the kernel\n", (long long)n_killed, (long long)kill_at);
}

static void a_kill_at_a_random_moment_loses_no_step(void **state)
{
  const int n_kills = is_thorough ? 250 : 20;
  int n_killed = 0, n_lived = 0;
  program_fixture_begin(LADE_STORE_AUTO);
  int64_t whole_ns = -lade_now_ns();
  assert_true(life(true, 2, 0, false));
  whole_ns += lade_now_ns();
  state_make();
  for (uint32_t i = 0; n_killed < n_kills; i++) {
    const double part = lade_philox_draw(seed, i, 0, 0).word[0] / 4294967296.0;
    const int64_t ns = (int64_t)(part * (double)whole_ns);
    const bool has_lived = life_timed(ns);
    n_lived += has_lived;
    n_killed += !has_lived;
    killed_check(ns);
  }
  state_check(N_STEPS, 0);
  printf("seed %u: killed %d times, ended %d times before that\n", seed, n_killed, n_lived);
}

int main(int argc, char **argv)
{
  is_thorough = argc > 1 && strcmp(argv[1], "every") == 0;
  seed = (uint32_t)lade_now_ns();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_kill_at_any_call_loses_no_step),
      cmocka_unit_test(a_kill_at_any_way_into_the_kernel_loses_no_step),
      cmocka_unit_test(a_kill_at_a_random_moment_loses_no_step),
  };
  said = mmap(NULL, sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return said == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, state_forget);
}
