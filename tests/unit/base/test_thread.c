/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lade's threads take none of the program's signals, and have names: the threads of a pool, of a device's queues, of a
 * store.
 */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/pool.h"
#include "base/thread.h"
#include "device/device.h"
#include "offload/store.h"
#include "tests/support/scratch.h"

#define N_SIGNALS 100
#define MIB (UINT64_C(1) << 20)

/* All objects that have threads. */
struct lades {
  lade_pool *pool;
  lade_device *device;
  lade_queue *queues[LADE_N_QUEUE_ROLES];
  lade_store *store;
};

static void lades_open(struct lades *lades)
{
  struct lade_error error = {0};
  assert_int_equal(lade_pool_create(3, &lades->pool), 0);
  const struct lade_host_device_params device = {
      .struct_size = sizeof(device), .capacity_bytes = 2 * MIB, .pool = lades->pool};
  assert_int_equal(lade_device_open_host(&device, &error, &lades->device), 0);
  for (int role = 0; role < LADE_N_QUEUE_ROLES; role++)
    assert_int_equal(lade_queue_create(lades->device, (enum lade_queue_role)role, &lades->queues[role]), 0);
  const struct lade_store_params store = {.struct_size = sizeof(store), .dir = scratch, .capacity_bytes = MIB,
                                          .engine = LADE_STORE_POSIX, .allow_tmpfs = true};
  if (lade_store_open(&store, &error, &lades->store))
    fail_msg("%s", error.text);
}

static void lades_close(struct lades *lades)
{
  lade_store_close(lades->store);
  for (int role = 0; role < LADE_N_QUEUE_ROLES; role++)
    lade_queue_destroy(lades->queues[role]);
  lade_device_close(lades->device);
  lade_pool_destroy(lades->pool);
}

static atomic_int n_taken, n_taken_elsewhere;
static pthread_t program;

static void signal_take(int number)
{
  (void)number;
  atomic_fetch_add(&n_taken, 1);
  atomic_fetch_add(&n_taken_elsewhere, !pthread_equal(pthread_self(), program));
}

/* While the program's own threads block a signal, the kernel gives it to any other thread that does not. */
static void signals_are_the_programs(void **state)
{
  struct lades lades = {0};
  sigset_t one;
  program = pthread_self();
  assert_true(signal(SIGUSR1, signal_take) != SIG_ERR);
  lades_open(&lades);
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &one, NULL);
  for (int i = 0; i < N_SIGNALS; i++)
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
  assert_int_equal(n_taken, 0);
  pthread_sigmask(SIG_UNBLOCK, &one, NULL);
  lades_close(&lades);
  assert_true(n_taken > 0);
  assert_int_equal(n_taken_elsewhere, 0);
  signal(SIGUSR1, SIG_DFL);
}

/* The signal mask of the starting thread is unchanged. */
static void a_start_keeps_the_mask(void **state)
{
  struct lades lades = {0};
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  lades_open(&lades);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  lades_close(&lades);
  for (int number = 1; number < SIGRTMAX; number++)
    assert_int_equal(sigismember(&before, number), sigismember(&after, number));
}

/* Return the number of this process's threads named @name; *ret_n: those whose names begin with "lade-". */
static int named_count(const char *name, int *ret_n)
{
  char path[300], text[32];
  int n = 0;
  DIR *tasks = opendir("/proc/self/task");
  assert_non_null(tasks);
  for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
    snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
    FILE *file = fopen(path, "r");
    if (!file) /* "." */
      continue;
    if (!fgets(text, sizeof(text), file))
      *text = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    n += strcmp(text, name) == 0;
    *ret_n += strncmp(text, "lade-", 5) == 0;
  }
  closedir(tasks);
  return n;
}

static void threads_have_names(void **state)
{
  static const char *const names[] = {"lade-pool", "lade-compute", "lade-to-host", "lade-to-device", "lade-io",
                                      "lade-host", "lade-comm", "lade-store"};
  struct lades lades = {0};
  int n_all = 0, n_known = 0, n;
  lades_open(&lades);
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    n_all = 0;
    n = named_count(names[i], &n_all);
    if (!n)
      fail_msg("no thread is called %s", names[i]);
    n_known += n;
  }
  assert_int_equal(n_known, n_all);
  n_all = 0;
  assert_int_equal(named_count("lade-pool", &n_all), 2);
  lades_close(&lades);
}

/* The kernel's struct sched_attr in its first version. */
struct sched_answer {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

static void slice_read(void *arg)
{
  struct sched_answer answer = {.size = sizeof(answer)};
  if (!syscall(SYS_sched_getattr, 0, &answer, sizeof(answer), 0))
    *(uint64_t *)arg = answer.runtime_ns;
}

/* Return the time slice of @queue's thread; 0 where the kernel does not know slices. */
static uint64_t slice_get(lade_queue *queue)
{
  uint64_t slice_ns = 0, count = 0;
  struct lade_work work = {.fn = slice_read, .args = &slice_ns};
  lade_queue_launch(queue, &work, &count);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  return slice_ns;
}

/* The threads that feed drives and links wake up in the middle of a kernel's slice (lade_thread_be_prompt). */
static void feeding_threads_have_a_short_slice(void **state)
{
  struct lades lades = {0};
  lades_open(&lades);
  const uint64_t usual_ns = slice_get(lades.queues[LADE_QUEUE_COMPUTE]);
  assert_true(slice_get(lades.queues[LADE_QUEUE_HOST]) == usual_ns);
  for (int role = 0; usual_ns && role < LADE_N_QUEUE_ROLES; role++) {
    if (role == LADE_QUEUE_COMPUTE || role == LADE_QUEUE_HOST || role == LADE_QUEUE_SIGNAL)
      continue;
    assert_int_equal(slice_get(lades.queues[role]), 100000);
  }
  lades_close(&lades);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(signals_are_the_programs),
      cmocka_unit_test(a_start_keeps_the_mask),
      cmocka_unit_test(threads_have_names),
      cmocka_unit_test(feeding_threads_have_a_short_slice),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
