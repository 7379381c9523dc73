/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job is on the stack of the thread that called lade_pool_run, and in the pool's list until that thread finds no more
 * tasks. Workers join a job at most once: they take tasks from its atomic counter until none is left, then leave. The
 * caller does the same, unlinks the job and sleeps until the last worker has left, because the job ends with its stack
 * frame.
 *
 * Joining and leaving take the pool's mutex, once per thread and job; taking a task is one atomic addition. Kernels
 * give small work to the calling thread alone (n_tasks == 1 never takes the mutex).
 *
 * A step is hundreds of jobs with a few microseconds between them. A thread that sleeps in each of these gaps costs
 * a wake-up per job: 17 to 40 us where the core is a virtual one that halts (EPYC Zen 4, jobs of 40 and 130 us).
 * Therefore a worker without a job, and a caller whose last tasks run in workers, look for WATCH_NS before they sleep.
 * They do not look for longer, because a thread that looks may hold the core that another one needs: at 50 us a step of
 * `nano` took 5 to 15 % more processor time beside other work, and no less wall time. A pool of more threads than cores
 * sleeps at once.
 *
 * Rejected: OpenMP teams. Each calling thread gets its own team, and idle teams spin. With several queues, or ranks, on
 * the same cores a step takes ten times as long.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/lock.h"
#include "base/pool.h"
#include "base/thread.h"

#define WATCH_NS 20000 /* about one wake-up of a halted virtual core, and more than the gap between two jobs */
#define WATCH_TURNS 16 /* between two looks at the clock: about a microsecond */

struct pool_job {
  lade_task_fn *fn;
  void *arg;
  int n_tasks;
  atomic_int next; /* the first task not yet taken */
  int n_joined;    /* threads that have joined so far, the caller included; the next one's i_thread */
  atomic_uint n_inside; /* workers that joined and have not left; changed with the mutex held */
  struct pool_job *next_job;
};

struct lade_pool {
  pthread_mutex_t mutex;
  pthread_cond_t work;   /* a job was linked, or the pool ends */
  pthread_cond_t left;   /* a worker left a job */
  struct pool_job *jobs; /* oldest first */
  atomic_uint n_linked;  /* jobs so far, modulo 2^32; changed with the mutex held */
  bool is_ending, is_watching;
  int n_threads;
  int n_workers;         /* workers started so far, so that a partly built pool can be destroyed */
  pthread_t workers[];
};

static void job_work(struct pool_job *job, int i_thread)
{
  for (;;) {
    int i_task = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (i_task >= job->n_tasks)
      return;
    job->fn(job->arg, i_task, i_thread);
  }
}

/* Return the oldest job with tasks left, or NULL. pre: the mutex is held. */
static struct pool_job *job_find(struct lade_pool *pool)
{
  for (struct pool_job *job = pool->jobs; job; job = job->next_job) {
    if (atomic_load_explicit(&job->next, memory_order_relaxed) < job->n_tasks)
      return job;
  }
  return NULL;
}

static void job_link(struct lade_pool *pool, struct pool_job *job)
{
  struct pool_job **end = &pool->jobs;
  while (*end)
    end = &(*end)->next_job;
  *end = job;
}

static void job_unlink(struct lade_pool *pool, struct pool_job *job)
{
  struct pool_job **at = &pool->jobs;
  while (*at != job)
    at = &(*at)->next_job;
  *at = job->next_job;
}

/*
 * Wait until *@word is @value, or is not (@is_equal false), for at most WATCH_NS. pre: the mutex is not held.
 */
static void word_watch(const atomic_uint *word, unsigned value, bool is_equal)
{
  const int64_t end_ns = lade_now_ns() + WATCH_NS;
  do {
    for (int i = 0; i < WATCH_TURNS; i++) {
      if ((atomic_load_explicit(word, memory_order_relaxed) == value) == is_equal)
        return;
      lade_pause();
    }
  } while (lade_now_ns() < end_ns);
}

/* Look for a new job for a moment, and sleep if there is none. May return without one. pre: the mutex is held. */
static void job_await(struct lade_pool *pool)
{
  const unsigned n_linked = pool->n_linked;
  if (pool->is_watching) {
    pthread_mutex_unlock(&pool->mutex);
    word_watch(&pool->n_linked, n_linked, false);
    pthread_mutex_lock(&pool->mutex);
  }
  if (pool->n_linked == n_linked && !pool->is_ending)
    pthread_cond_wait(&pool->work, &pool->mutex);
}

static void *worker_main(void *arg)
{
  struct lade_pool *pool = arg;
  pthread_mutex_lock(&pool->mutex);
  while (!pool->is_ending) {
    struct pool_job *job = job_find(pool);
    if (!job) {
      job_await(pool);
      continue;
    }
    int i_thread = job->n_joined++;
    job->n_inside++;
    LADE_ASSERT(i_thread < pool->n_threads);
    pthread_mutex_unlock(&pool->mutex);
    job_work(job, i_thread);
    pthread_mutex_lock(&pool->mutex);
    if (--job->n_inside == 0) /* the caller may see the zero, but it needs the mutex to end the job */
      pthread_cond_broadcast(&pool->left);
  }
  pthread_mutex_unlock(&pool->mutex);
  return NULL;
}

int lade_pool_create(int n_threads, lade_pool **ret_pool)
{
  if (n_threads <= 0)
    n_threads = lade_cpu_count();
  struct lade_pool *pool = calloc(1, sizeof(*pool) + (size_t)(n_threads - 1) * sizeof(pthread_t));
  if (!pool)
    return -ENOMEM;
  pool->n_threads = n_threads;
  pool->is_watching = n_threads <= lade_cpu_count();
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->work, NULL);
  pthread_cond_init(&pool->left, NULL);
  for (; pool->n_workers < n_threads - 1; pool->n_workers++) {
    int status = lade_thread_start(&pool->workers[pool->n_workers], "lade-pool", worker_main, pool);
    if (status) {
      lade_pool_destroy(pool);
      return status;
    }
  }
  *ret_pool = pool;
  return 0;
}

void lade_pool_destroy(lade_pool *pool)
{
  if (!pool)
    return;
  pthread_mutex_lock(&pool->mutex);
  LADE_ASSERT(!pool->jobs);
  pool->is_ending = true;
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->mutex);
  for (int i = 0; i < pool->n_workers; i++)
    pthread_join(pool->workers[i], NULL);
  pthread_cond_destroy(&pool->left);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

int lade_pool_n_threads(const lade_pool *pool)
{
  return pool ? pool->n_threads : 1;
}

void lade_pool_run(lade_pool *pool, lade_task_fn *fn, void *arg, int n_tasks)
{
  if (n_tasks <= 1 || !pool || pool->n_threads == 1) {
    for (int i = 0; i < n_tasks; i++)
      fn(arg, i, 0);
    return;
  }
  struct pool_job job = {.fn = fn, .arg = arg, .n_tasks = n_tasks, .n_joined = 1};
  int n_helpers = LADE_MIN(n_tasks, pool->n_threads) - 1;
  pthread_mutex_lock(&pool->mutex);
  job_link(pool, &job);
  pool->n_linked++;
  for (int i = 0; i < n_helpers; i++)
    pthread_cond_signal(&pool->work);
  pthread_mutex_unlock(&pool->mutex);

  job_work(&job, 0);

  if (pool->is_watching)
    word_watch(&job.n_inside, 0, true);
  pthread_mutex_lock(&pool->mutex);
  job_unlink(pool, &job);
  while (job.n_inside)
    pthread_cond_wait(&pool->left, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
}
