/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job is on the stack of the thread that called lade_pool_run, and in the pool's list until that thread finds no more
 * tasks. Workers join a job at most once: they take tasks from its atomic counter until none is left, then leave. The
 * caller does the same, unlinks the job and sleeps until the last worker has left, because the job ends with its stack
 * frame.
 *
 * Joining and leaving take the pool's mutex, once per thread and job; taking a task is one atomic addition. A parallel
 * call costs a wake-up of the workers, some microseconds. Kernels therefore give small work to the calling thread alone
 * (n_tasks == 1 never takes the mutex).
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
#include "base/pool.h"
#include "base/thread.h"

struct pool_job {
  lade_task_fn *fn;
  void *arg;
  int n_tasks;
  atomic_int next; /* the first task not yet taken */
  int n_joined;    /* threads that have joined so far, the caller included; the next one's i_thread */
  int n_inside;    /* workers that joined and have not left */
  struct pool_job *next_job;
};

struct lade_pool {
  pthread_mutex_t mutex;
  pthread_cond_t work;   /* a job was linked, or the pool ends */
  pthread_cond_t left;   /* a worker left a job */
  struct pool_job *jobs; /* oldest first */
  bool is_ending;
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

static void *worker_main(void *arg)
{
  struct lade_pool *pool = arg;
  pthread_mutex_lock(&pool->mutex);
  while (!pool->is_ending) {
    struct pool_job *job = job_find(pool);
    if (!job) {
      pthread_cond_wait(&pool->work, &pool->mutex);
      continue;
    }
    int i_thread = job->n_joined++;
    job->n_inside++;
    LADE_ASSERT(i_thread < pool->n_threads);
    pthread_mutex_unlock(&pool->mutex);
    job_work(job, i_thread);
    pthread_mutex_lock(&pool->mutex);
    if (--job->n_inside == 0)
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
  for (int i = 0; i < n_helpers; i++)
    pthread_cond_signal(&pool->work);
  pthread_mutex_unlock(&pool->mutex);

  job_work(&job, 0);

  pthread_mutex_lock(&pool->mutex);
  job_unlink(pool, &job);
  while (job.n_inside)
    pthread_cond_wait(&pool->left, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
}
