/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's only pool of CPU threads. Every kernel, copy, checksum and host update runs on it, so that CPU work
 * never oversubscribes the cores and no thread spins.
 *
 * A pool of n threads keeps n-1 sleeping workers; the thread that calls lade_pool_run takes part. Work is a function
 * called for i_task = 0..n_tasks-1; an atomic counter hands out the numbers. Any thread may run any task, so results
 * must depend on i_task alone. They are then the same for any number of threads. i_thread, in 0..lade_pool_n_threads-1,
 * is unique among the threads inside one call of lade_pool_run and indexes per-thread scratch; the caller's is 0.
 *
 * Several threads may call lade_pool_run at once (the queues of a device); workers serve the calls in turn. It
 * allocates nothing. A task must not call lade_pool_run.
 */
#ifndef LADE_POOL_H
#define LADE_POOL_H

typedef struct lade_pool lade_pool;
typedef void lade_task_fn(void *arg, int i_task, int i_thread);

/* Create a pool of @n_threads (0: lade_cpu_count). -EAGAIN if threads are refused, -ENOMEM. */
int lade_pool_create(int n_threads, lade_pool **ret_pool);

/* Join the workers and destroy @pool. NULL is allowed. pre: no call of lade_pool_run is running. */
void lade_pool_destroy(lade_pool *pool);

int lade_pool_n_threads(const lade_pool *pool);

/*
 * Run @fn for every task and return when all are done. Blocks. If @pool is NULL the calling thread runs them in order.
 */
void lade_pool_run(lade_pool *pool, lade_task_fn *fn, void *arg, int n_tasks);

#endif
