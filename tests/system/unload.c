/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library can be unloaded: loaded, used from several threads that end, emptied and unloaded, repeatedly, it leaves
 * no mapping, no thread and no registered call. A thread that used it and ends after its unloading ends without a
 * fault.
 *
 *   unload LIBRARY
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "lade/cache.h"

enum { N_THREADS = 4, N_ROUNDS = 32, MIB = 1 << 20 };

static const char *library_path;

struct calls {
  __typeof__(&lade_device_open) device_open;
  __typeof__(&lade_device_close) device_close;
  __typeof__(&lade_queue_create) queue_create;
  __typeof__(&lade_queue_destroy) queue_destroy;
  __typeof__(&lade_queue_launch) launch;
  __typeof__(&lade_cache_create) create;
  __typeof__(&lade_cache_destroy) destroy;
  __typeof__(&lade_cache_alloc) alloc;
  __typeof__(&lade_cache_free) free;
};

struct user {
  struct calls calls;
  lade_cache *cache;
  sem_t used, may_end;
};

static void *symbol_get(void *library, const char *name)
{
  void *symbol = dlsym(library, name);
  if (!symbol)
    fail_msg("%s: %s", name, dlerror());
  return symbol;
}

/* Half of the threads end before the library is unloaded, half after. */
static void *user_main(void *arg)
{
  struct user *user = arg;
  const struct lade_cache_request request = {sizeof(request), MIB, NULL, 0, "unload.c:1"};
  for (int i = 0; i < 100; i++) {
    void *block = NULL;
    if (user->calls.alloc(user->cache, &request, NULL, &block))
      return user;
    user->calls.free(user->cache, block, NULL, NULL);
  }
  sem_post(&user->used);
  sem_wait(&user->may_end);
  return NULL;
}

static int lines_count(const char *words, int *ret_n_lines)
{
  FILE *file = fopen("/proc/self/maps", "r");
  char line[1024];
  int n_with = 0;
  assert_non_null(file);
  for (*ret_n_lines = 0; fgets(line, sizeof(line), file); ++*ret_n_lines)
    n_with += strstr(line, words) != NULL;
  fclose(file);
  return n_with;
}

static int threads_count(void)
{
  DIR *tasks = opendir("/proc/self/task");
  int n = 0;
  assert_non_null(tasks);
  while (readdir(tasks))
    n++;
  closedir(tasks);
  return n - 2;
}

/* The kernel wakes pthread_join before it takes the ended thread out of /proc: allow it 10 s. */
static void threads_must_be_gone(void)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  for (int i = 0; i < 10000 && threads_count() > 1; i++)
    nanosleep(&pause, NULL);
  assert_int_equal(threads_count(), 1);
}

static void nothing(void *args)
{
}

static void calls_find(struct calls *calls, void *library)
{
  calls->device_open = symbol_get(library, "lade_device_open");
  calls->device_close = symbol_get(library, "lade_device_close");
  calls->queue_create = symbol_get(library, "lade_queue_create");
  calls->queue_destroy = symbol_get(library, "lade_queue_destroy");
  calls->launch = symbol_get(library, "lade_queue_launch");
  calls->create = symbol_get(library, "lade_cache_create");
  calls->destroy = symbol_get(library, "lade_cache_destroy");
  calls->alloc = symbol_get(library, "lade_cache_alloc");
  calls->free = symbol_get(library, "lade_cache_free");
}

static void library_use(void *library, pthread_t *threads, struct user *user)
{
  struct lade_device_params device = {sizeof(device), "host", 64 * MIB};
  struct lade_cache_params params = {.struct_size = sizeof(params), .n_trace_entries = 256};
  lade_queue *queue = NULL;
  void *block = NULL;
  calls_find(&user->calls, library);
  assert_int_equal(user->calls.device_open(&device, NULL, &params.device), 0);
  assert_int_equal(user->calls.queue_create(params.device, LADE_QUEUE_COMPUTE, &queue), 0);
  assert_int_equal(user->calls.create(&params, NULL, &user->cache), 0);
  for (int i = 0; i < N_THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, user_main, user), 0);
  for (int i = 0; i < N_THREADS; i++)
    sem_wait(&user->used);
  for (int i = 0; i < N_THREADS / 2; i++)
    sem_post(&user->may_end);
  const struct lade_cache_request request = {sizeof(request), 3 * MIB, queue, 0, NULL};
  assert_int_equal(user->calls.alloc(user->cache, &request, NULL, &block), 0);
  user->calls.launch(queue, &(struct lade_work){.fn = nothing}, NULL);
  user->calls.destroy(user->cache); /* with a live block */
  user->calls.queue_destroy(queue);
  user->calls.device_close(params.device);
}

/* Load, use and unload. Return the number of mappings of the process. */
static int round_run(void)
{
  pthread_t threads[N_THREADS];
  struct user user = {.cache = NULL};
  int n_lines = 0;
  sem_init(&user.used, 0, 0);
  sem_init(&user.may_end, 0, 0);
  void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail_msg("%s", dlerror());
  assert_true(lines_count("liblade.so", &n_lines) > 0);
  library_use(library, threads, &user);
  assert_int_equal(dlclose(library), 0);
  assert_int_equal(lines_count("liblade.so", &n_lines), 0); /* no reference to it is left */
  for (int i = N_THREADS / 2; i < N_THREADS; i++)
    sem_post(&user.may_end);
  for (int i = 0; i < N_THREADS; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  threads_must_be_gone();
  lines_count("liblade.so", &n_lines);
  return n_lines;
}

/*
 * The C library keeps stacks and heaps of ended threads, more or fewer of them as the threads happened to overlap; a
 * leaked mapping would be there in every later round. The test therefore compares the fewest mappings of the first half
 * of the rounds with the fewest of the second half. By then a leak has grown by one for each round between.
 */
static void the_library_leaves_nothing_behind(void **state)
{
  int n_fewest[2] = {INT_MAX, INT_MAX};
  for (int round = 0; round < N_ROUNDS; round++) {
    int *n = &n_fewest[round >= N_ROUNDS / 2], n_lines = round_run();
    *n = n_lines < *n ? n_lines : *n;
  }
  assert_true(n_fewest[1] - n_fewest[0] < N_ROUNDS / 4);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_library_leaves_nothing_behind)};
  library_path = argc > 1 ? argv[1] : "";
  return cmocka_run_group_tests(tests, NULL, NULL);
}
