/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine for machines that refuse io_uring: threads that each do one pread or pwrite at a time.
 *
 * Work per file and completions are in rings of fixed size, under one mutex. A thread sleeps while there is no work, so
 * that idle threads cost nothing. One piece is one system call, and store.c handles a short one. A drive needs several
 * requests in flight to be busy; more than N_THREADS_MAX threads only add context switches. Each file has its own
 * threads, because shared ones would all end up waiting for the slowest drive.
 *
 * These threads block in the kernel and compute nothing, so they are not part of the process's pool of CPU threads.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/thread.h"
#include "offload/store/engine.h"

#define N_THREADS_MAX 8 /* per file */

struct posix_engine;

/* The threads and the queue of one file. */
struct posix_team {
  struct posix_engine *engine;
  int fd;
  pthread_cond_t work;
  struct store_io *ios; /* ring of the engine's depth */
  int first_io, n_ios;
  int n_threads;
  pthread_t threads[N_THREADS_MAX];
};

struct posix_engine {
  int depth;
  pthread_mutex_t mutex;
  pthread_cond_t done;
  struct store_completion *completions; /* ring of depth */
  int first_completion, n_completions;
  bool is_ending;
  int n_teams;
  struct posix_team teams[];
};

static int io_run(int fd, const struct store_io *io)
{
  if (io->delay_ns) {
    struct timespec pause = {.tv_nsec = (long)io->delay_ns};
    nanosleep(&pause, NULL);
  }
  ssize_t n = io->is_write ? pwrite(fd, io->data, io->bytes, (off_t)io->offset)
                           : pread(fd, io->data, io->bytes, (off_t)io->offset);
  return n < 0 ? -errno : (int)n;
}

/* Take the first request. pre: the mutex is held, and the queue is not empty. */
static struct store_io io_take(struct posix_team *team)
{
  struct store_io io = team->ios[team->first_io];
  team->first_io = (team->first_io + 1) % team->engine->depth;
  team->n_ios--;
  return io;
}

static void completion_put(struct posix_engine *engine, int slot, int result)
{
  LADE_ASSERT(engine->n_completions < engine->depth);
  int at = (engine->first_completion + engine->n_completions++) % engine->depth;
  engine->completions[at] = (struct store_completion){.slot = slot, .result = result};
}

static void *thread_main(void *arg)
{
  struct posix_team *team = arg;
  struct posix_engine *engine = team->engine;
  pthread_mutex_lock(&engine->mutex);
  for (;;) {
    while (!team->n_ios && !engine->is_ending)
      pthread_cond_wait(&team->work, &engine->mutex);
    if (!team->n_ios)
      break;
    struct store_io io = io_take(team);
    pthread_mutex_unlock(&engine->mutex);
    int result = io_run(team->fd, &io);
    pthread_mutex_lock(&engine->mutex);
    completion_put(engine, io.slot, result);
    pthread_cond_signal(&engine->done);
  }
  pthread_mutex_unlock(&engine->mutex);
  return NULL;
}

static void posix_close(void *arg)
{
  struct posix_engine *engine = arg;
  if (!engine)
    return;
  pthread_mutex_lock(&engine->mutex);
  engine->is_ending = true;
  for (int i = 0; i < engine->n_teams; i++)
    pthread_cond_broadcast(&engine->teams[i].work);
  pthread_mutex_unlock(&engine->mutex);
  for (int i = 0; i < engine->n_teams; i++) {
    struct posix_team *team = &engine->teams[i];
    for (int k = 0; k < team->n_threads; k++)
      pthread_join(team->threads[k], NULL);
    pthread_cond_destroy(&team->work);
    free(team->ios);
  }
  pthread_cond_destroy(&engine->done);
  pthread_mutex_destroy(&engine->mutex);
  free(engine->completions);
  free(engine);
}

static int team_start(struct posix_team *team, struct lade_faults *faults)
{
  int code = 0, n = LADE_MIN(team->engine->depth, N_THREADS_MAX);
  while (!code && team->n_threads < n) {
    code = lade_fault(faults, LADE_FAULT_THREAD);
    if (!code)
      code = lade_thread_start(&team->threads[team->n_threads], "lade-store", thread_main, team);
    team->n_threads += !code;
  }
  return code;
}

static int posix_open(const int *fds, int n_fds, int depth, struct lade_faults *faults, void **ret_engine)
{
  struct posix_engine *engine =
      lade_fault_calloc(faults, 1, sizeof(*engine) + (size_t)n_fds * sizeof(engine->teams[0]));
  if (!engine)
    return -ENOMEM;
  engine->depth = depth;
  pthread_mutex_init(&engine->mutex, NULL);
  pthread_cond_init(&engine->done, NULL);
  engine->completions = lade_fault_calloc(faults, (size_t)depth, sizeof(*engine->completions));
  int code = engine->completions ? 0 : -ENOMEM;
  for (int i = 0; i < n_fds && !code; i++) {
    struct posix_team *team = &engine->teams[engine->n_teams++];
    *team = (struct posix_team){.engine = engine, .fd = fds[i]};
    pthread_cond_init(&team->work, NULL);
    team->ios = lade_fault_calloc(faults, (size_t)depth, sizeof(*team->ios));
    code = team->ios ? team_start(team, faults) : -ENOMEM;
  }
  if (code) {
    posix_close(engine);
    return code;
  }
  *ret_engine = engine;
  return 0;
}

static int posix_submit(void *arg, const struct store_io *io)
{
  struct posix_engine *engine = arg;
  pthread_mutex_lock(&engine->mutex);
  struct posix_team *team = &engine->teams[io->file];
  LADE_ASSERT(io->file < engine->n_teams && team->n_ios < engine->depth);
  team->ios[(team->first_io + team->n_ios++) % engine->depth] = *io;
  pthread_cond_signal(&team->work);
  pthread_mutex_unlock(&engine->mutex);
  return 0;
}

static int posix_reap(void *arg, struct store_completion *completions, int n, bool may_block)
{
  struct posix_engine *engine = arg;
  int n_reaped = 0;
  pthread_mutex_lock(&engine->mutex);
  while (may_block && !engine->n_completions)
    pthread_cond_wait(&engine->done, &engine->mutex);
  while (n_reaped < n && engine->n_completions) {
    completions[n_reaped++] = engine->completions[engine->first_completion];
    engine->first_completion = (engine->first_completion + 1) % engine->depth;
    engine->n_completions--;
  }
  pthread_mutex_unlock(&engine->mutex);
  return n_reaped;
}

const struct store_engine_ops store_engine_posix = {
    .name = "posix",
    .open = posix_open,
    .close = posix_close,
    .submit = posix_submit,
    .reap = posix_reap,
};
