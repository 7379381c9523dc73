/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allocation and a free cost once the caching allocator is warm, beside a plain best fit and beside malloc.
 *
 *   bench-alloc [ROUNDS]
 *
 * The same seeded calls for all: 1,024 live blocks, each step frees a random one and allocates a random size between
 * 512 bytes and 4 MiB, spread evenly over powers of two. The caching allocator runs on the host device with statistics
 * and trace on; nobody touches the blocks. The plain best fit is what one writes first: free blocks in a balanced tree
 * by (size, address), neighbours joined, a hash of live addresses, a mutex, no statistics. Rounds of all are
 * interleaved and the best of each is kept. Threads: each has its own blocks and one of four queues; the figure is
 * nanoseconds of wall clock per pair over all threads.
 *
 * Prints one line of JSON.
 */
#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "device/device.h"
#include "lade/cache.h"

#define N_LIVE 1024
#define N_SIZES 65536
#define N_PAIRS 200000
#define N_QUEUES 4
#define MAX_THREADS 8

struct calls {
  uint32_t which[N_SIZES];
  uint64_t bytes[N_SIZES];
};

static void calls_draw(struct calls *calls, uint64_t seed)
{
  for (uint32_t i = 0; i < N_SIZES; i++) {
    struct lade_philox draw = lade_philox_draw(seed, 0, 0, i);
    uint64_t power = (uint64_t)512 << draw.word[1] % 13;
    calls->which[i] = draw.word[0] % N_LIVE;
    calls->bytes[i] = LADE_MIN(power + draw.word[2] % power, (uint64_t)4 << 20);
  }
}

/* ---- the plain best fit ---- */

struct plain_block {
  uint64_t bytes, address; /* key of the tree */
  struct plain_block *before, *after, *next;
  bool is_free;
};

struct plain {
  pthread_mutex_t mutex;
  void *tree;
  struct plain_block *live[4096]; /* by hash of address */
};

static int plain_compare(const void *a, const void *b)
{
  const struct plain_block *x = a, *y = b;
  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? -1 : 1;
  return (x->address > y->address) - (x->address < y->address);
}

/* tsearch has no lower bound: remember the smallest that compared as not less. */
static _Thread_local const struct plain_block *plain_bound;

static int plain_compare_bound(const void *a, const void *b)
{
  int order = plain_compare(a, b);
  if (order <= 0 && (!plain_bound || plain_compare(b, plain_bound) < 0))
    plain_bound = b;
  return order;
}

static struct plain_block **plain_slot(struct plain *plain, uint64_t address)
{
  return &plain->live[(address / 512 * 0x9e3779b97f4a7c15u) >> 52];
}

static uint64_t plain_alloc(struct plain *plain, uint64_t bytes)
{
  pthread_mutex_lock(&plain->mutex);
  bytes = lade_align_up(bytes, 512);
  plain_bound = NULL;
  tfind(&(struct plain_block){.bytes = bytes}, &plain->tree, plain_compare_bound);
  struct plain_block *block = (struct plain_block *)plain_bound;
  tdelete(block, &plain->tree, plain_compare);
  if (block->bytes > bytes) {
    struct plain_block *rest = malloc(sizeof(*rest));
    *rest = (struct plain_block){block->bytes - bytes, block->address + bytes, block, block->after, NULL, true};
    if (rest->after)
      rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
    tsearch(rest, &plain->tree, plain_compare);
  }
  block->is_free = false;
  struct plain_block **slot = plain_slot(plain, block->address);
  block->next = *slot;
  *slot = block;
  pthread_mutex_unlock(&plain->mutex);
  return block->address;
}

static struct plain_block *plain_join(struct plain_block *block, struct plain_block *after)
{
  block->bytes += after->bytes;
  block->after = after->after;
  if (block->after)
    block->after->before = block;
  free(after);
  return block;
}

static void plain_free(struct plain *plain, uint64_t address)
{
  pthread_mutex_lock(&plain->mutex);
  struct plain_block **slot = plain_slot(plain, address);
  while ((*slot)->address != address)
    slot = &(*slot)->next;
  struct plain_block *block = *slot;
  *slot = block->next;
  if (block->after && block->after->is_free) {
    tdelete(block->after, &plain->tree, plain_compare);
    plain_join(block, block->after);
  }
  if (block->before && block->before->is_free) {
    tdelete(block->before, &plain->tree, plain_compare);
    block = plain_join(block->before, block);
  }
  block->is_free = true;
  tsearch(block, &plain->tree, plain_compare);
  pthread_mutex_unlock(&plain->mutex);
}

/* ---- runs ---- */

struct bench {
  struct calls *calls;
  lade_device *device;
  lade_queue *queues[N_QUEUES];
  lade_cache *cache;
  struct plain plain;
  uint64_t plain_live[N_LIVE];
  void *malloc_live[N_LIVE];
};

struct worker {
  struct bench *bench;
  lade_queue *queue;
  void *live[N_LIVE];
  int n_live, n_pairs;
  uint32_t at;
};

static void *cache_run(void *arg)
{
  struct worker *worker = arg;
  lade_cache *cache = worker->bench->cache;
  const struct calls *calls = worker->bench->calls;
  for (int i = 0; i < worker->n_pairs; i++) {
    uint32_t at = worker->at++ % N_SIZES;
    void **block = &worker->live[calls->which[at] % (uint32_t)worker->n_live];
    struct lade_cache_request request = {sizeof(request), calls->bytes[at], worker->queue, 0, "bench/alloc.c:1"};
    lade_cache_free(cache, *block, "bench/alloc.c:2", NULL);
    if (lade_cache_alloc(cache, &request, NULL, block))
      *block = NULL;
  }
  return NULL;
}

static double plain_run(struct bench *bench)
{
  int64_t start_ns = lade_now_ns();
  for (uint32_t i = 0; i < N_PAIRS; i++) {
    uint64_t *block = &bench->plain_live[bench->calls->which[i % N_SIZES]];
    if (*block)
      plain_free(&bench->plain, *block);
    *block = plain_alloc(&bench->plain, bench->calls->bytes[i % N_SIZES]);
  }
  return (double)(lade_now_ns() - start_ns) / N_PAIRS;
}

static double malloc_run(struct bench *bench)
{
  int64_t start_ns = lade_now_ns();
  for (uint32_t i = 0; i < N_PAIRS; i++) {
    void **block = &bench->malloc_live[bench->calls->which[i % N_SIZES]];
    free(*block);
    *block = malloc(bench->calls->bytes[i % N_SIZES]);
  }
  return (double)(lade_now_ns() - start_ns) / N_PAIRS;
}

/* Nanoseconds of wall clock per pair with @n threads, together N_LIVE live blocks. */
static double threads_run(struct worker *workers, int n)
{
  pthread_t threads[MAX_THREADS];
  int64_t start_ns = lade_now_ns();
  for (int i = 0; i < n; i++) {
    workers[i].n_pairs = N_PAIRS / n;
    pthread_create(&threads[i], NULL, cache_run, &workers[i]);
  }
  for (int i = 0; i < n; i++)
    pthread_join(threads[i], NULL);
  return (double)(lade_now_ns() - start_ns) / (N_PAIRS / n * n);
}

static void workers_init(struct bench *bench, struct worker *workers, int n)
{
  for (int i = 0; i < n; i++)
    workers[i] = (struct worker){
        .bench = bench, .queue = bench->queues[i % N_QUEUES], .n_live = N_LIVE / n, .at = (uint32_t)i * 8192};
}

static void workers_drop(struct worker *workers, int n)
{
  for (int i = 0; i < n; i++)
    for (int k = 0; k < workers[i].n_live; k++) {
      lade_cache_free(workers[i].bench->cache, workers[i].live[k], NULL, NULL);
      workers[i].live[k] = NULL;
    }
}

static int bench_open(struct bench *bench)
{
  struct lade_device_params device = {sizeof(device), "host", (uint64_t)2 << 30};
  int error = lade_device_open(&device, NULL, &bench->device);
  for (int i = 0; i < N_QUEUES && !error; i++)
    error = lade_queue_create(bench->device, LADE_QUEUE_COMPUTE, &bench->queues[i]);
  struct lade_cache_params cache = {
      .struct_size = sizeof(cache), .device = bench->device, .n_trace_entries = 65536};
  bench->calls = calloc(1, sizeof(*bench->calls));
  if (!error && bench->calls)
    error = lade_cache_create(&cache, NULL, &bench->cache);
  return bench->calls ? error : -ENOMEM;
}

int main(int argc, char **argv)
{
  static struct bench bench;
  static struct worker workers[MAX_THREADS];
  double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
  int n_rounds = argc > 1 ? atoi(argv[1]) : 5, error = bench_open(&bench);
  struct plain_block *all = calloc(1, sizeof(*all));
  if (error || !all) {
    fprintf(stderr, "bench-alloc: %s\n", strerror(error ? -error : ENOMEM));
    return 1;
  }
  calls_draw(bench.calls, 1);
  *all = (struct plain_block){.bytes = (uint64_t)64 << 30, .address = 512, .is_free = true};
  tsearch(all, &bench.plain.tree, plain_compare);
  pthread_mutex_init(&bench.plain.mutex, NULL);
  for (int round = 0; round < n_rounds + 1; round++) {
    double ns[5];
    workers_init(&bench, workers, 1);
    threads_run(workers, 1); /* brings the live blocks; what follows is steady */
    ns[0] = threads_run(workers, 1);
    workers_drop(workers, 1);
    ns[1] = plain_run(&bench);
    ns[2] = malloc_run(&bench);
    workers_init(&bench, workers, MAX_THREADS);
    threads_run(workers, MAX_THREADS);
    ns[3] = threads_run(workers, MAX_THREADS);
    workers_drop(workers, MAX_THREADS);
    for (int i = 0; i < 4 && round; i++)
      best[i] = LADE_MIN(best[i], ns[i]);
  }
  printf("{\"schema_version\":1,\"pair_ns\":%.1f,\"best_fit_pair_ns\":%.1f,\"malloc_pair_ns\":%.1f,"
         "\"threads\":{\"1\":%.1f,\"8\":%.1f}}\n", best[0], best[1], best[2], best[0], best[3]);
  for (int i = 0; i < N_LIVE; i++)
    free(bench.malloc_live[i]);
  lade_cache_destroy(bench.cache);
  for (int i = 0; i < N_QUEUES; i++)
    lade_queue_destroy(bench.queues[i]);
  lade_device_close(bench.device);
  return 0;
}
