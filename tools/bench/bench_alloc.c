/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade bench alloc`: the cost of an allocation and a free in the warm caching allocator, compared with a plain best
 * fit and with malloc.
 *
 * All get the same seeded calls: 1,024 live blocks; each step frees a random one and allocates a random size between
 * 512 bytes and 4 MiB, spread evenly over powers of two. The caching allocator runs on the host device with statistics
 * and trace on; the blocks are never touched. The plain best fit is the simplest good allocator: free blocks in a
 * balanced tree by (size, address), neighbours merged, a hash of live addresses, a mutex, no statistics. Rounds of all
 * are interleaved. Pieces of some thousand calls are timed, and the best piece of each counts, because load on a shared
 * machine only ever adds time. Threads: each has its own blocks and one of four queues; the figure is nanoseconds of
 * wall clock per pair over all threads.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <search.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/philox.h"
#include "base/thread.h"
#include "device/device.h"
#include "lade/cache.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

#define N_LIVE 1024   /* blocks live at once */
#define N_SIZES 65536 /* drawn calls, used in a circle */
#define N_PIECE 8192  /* pairs timed together: shorter than a time slice of the scheduler */
#define N_PIECES 32   /* in turn; the first pieces of a round make the live blocks */
#define N_THREAD_PAIRS 25000
#define N_THREAD_RUNS 2 /* the first one makes the live blocks */
#define N_ROUNDS 6      /* interleaved, so that each candidate meets the same load */
#define N_QUEUES 4
#define MAX_THREADS 8   /* two on each queue */
#define DEVICE_BYTES ((uint64_t)2 << 30) /* more than the live blocks need, so no call meets the limit */
#define PLAIN_BYTES ((uint64_t)64 << 30) /* of address space, without memory */
#define PLAIN_BUCKETS 4096 /* of the hash of live addresses: four for each block */

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
  struct plain_block *first;
  struct plain_block *live[PLAIN_BUCKETS];
};

static int plain_compare(const void *a, const void *b)
{
  const struct plain_block *x = a, *y = b;
  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? -1 : 1;
  return (x->address > y->address) - (x->address < y->address);
}

/* tsearch has no search for the next larger key: remember the smallest one that compared as not less. */
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
  return &plain->live[(address / 512 * 0x9e3779b97f4a7c15u >> 32) % PLAIN_BUCKETS];
}

static int plain_init(struct plain *plain)
{
  pthread_mutex_init(&plain->mutex, NULL);
  plain->first = calloc(1, sizeof(*plain->first));
  if (!plain->first)
    return -ENOMEM;
  *plain->first = (struct plain_block){.bytes = PLAIN_BYTES, .address = 512, .is_free = true};
  return tsearch(plain->first, &plain->tree, plain_compare) ? 0 : -ENOMEM;
}

static void nothing(void *block)
{
}

static void plain_finish(struct plain *plain)
{
  tdestroy(plain->tree, nothing);
  for (struct plain_block *block = plain->first, *after; block; block = after) {
    after = block->after;
    free(block);
  }
  pthread_mutex_destroy(&plain->mutex);
}

/* Cut off the bytes past @bytes. False if the tree is full. */
static bool plain_cut(struct plain *plain, struct plain_block *block, uint64_t bytes)
{
  struct plain_block *rest = malloc(sizeof(*rest));
  if (!rest)
    return false;
  *rest = (struct plain_block){block->bytes - bytes, block->address + bytes, block, block->after, NULL, true};
  if (rest->after)
    rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  return tsearch(rest, &plain->tree, plain_compare) != NULL;
}

/* Return the address of a block; 0: the heap is full. */
static uint64_t plain_alloc(struct plain *plain, uint64_t bytes)
{
  pthread_mutex_lock(&plain->mutex);
  bytes = lade_align_up(bytes, 512);
  plain_bound = NULL;
  tfind(&(struct plain_block){.bytes = bytes}, &plain->tree, plain_compare_bound);
  struct plain_block *block = (struct plain_block *)plain_bound;
  LADE_ASSERT(block);
  tdelete(block, &plain->tree, plain_compare);
  bool is_cut = block->bytes == bytes || plain_cut(plain, block, bytes);
  block->is_free = false;
  struct plain_block **slot = plain_slot(plain, block->address);
  block->next = *slot;
  *slot = block;
  pthread_mutex_unlock(&plain->mutex);
  return is_cut ? block->address : 0;
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

/* Free the block at @address. False if the tree is full. */
static bool plain_free(struct plain *plain, uint64_t address)
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
  bool is_kept = tsearch(block, &plain->tree, plain_compare) != NULL;
  pthread_mutex_unlock(&plain->mutex);
  return is_kept;
}

/* ---- runs ---- */

struct worker {
  struct alloc_bench *bench;
  lade_queue *queue;
  void *live[N_LIVE];
  int n_live, n_pairs, error;
  uint32_t at; /* position in the calls */
};

struct alloc_bench {
  struct calls calls;
  lade_device *device;
  lade_queue *queues[N_QUEUES];
  lade_cache *cache;
  struct worker workers[MAX_THREADS];
  struct plain plain;
  uint64_t plain_live[N_LIVE];
  void *malloc_live[N_LIVE];
};

static void *worker_run(void *arg)
{
  struct worker *worker = arg;
  lade_cache *cache = worker->bench->cache;
  const struct calls *calls = &worker->bench->calls;
  for (int i = 0; i < worker->n_pairs && !worker->error; i++) {
    uint32_t at = worker->at++ % N_SIZES;
    void **block = &worker->live[calls->which[at] % (uint32_t)worker->n_live];
    struct lade_cache_request request = {sizeof(request), calls->bytes[at], worker->queue, 0, "bench alloc"};
    worker->error = lade_cache_free(cache, *block, "bench free", NULL);
    *block = NULL;
    if (!worker->error)
      worker->error = lade_cache_alloc(cache, &request, NULL, block);
  }
  return NULL;
}

/* Run the piece of the calls that starts at number @at. Return 0 or a negative errno. */
typedef int piece_fn(struct alloc_bench *bench, uint32_t at);

static int cache_piece(struct alloc_bench *bench, uint32_t at)
{
  struct worker *worker = &bench->workers[0];
  worker->n_pairs = N_PIECE;
  worker->at = at;
  worker_run(worker);
  return worker->error;
}

static int plain_piece(struct alloc_bench *bench, uint32_t at)
{
  for (uint32_t i = at; i < at + N_PIECE; i++) {
    uint64_t *block = &bench->plain_live[bench->calls.which[i % N_SIZES]];
    if (*block && !plain_free(&bench->plain, *block))
      return -ENOMEM;
    *block = plain_alloc(&bench->plain, bench->calls.bytes[i % N_SIZES]);
    if (!*block)
      return -ENOMEM;
  }
  return 0;
}

static int malloc_piece(struct alloc_bench *bench, uint32_t at)
{
  for (uint32_t i = at; i < at + N_PIECE; i++) {
    void **block = &bench->malloc_live[bench->calls.which[i % N_SIZES]];
    free(*block);
    *block = malloc(bench->calls.bytes[i % N_SIZES]);
    if (!*block)
      return -ENOMEM;
  }
  return 0;
}

static int pieces_run(struct alloc_bench *bench, piece_fn *run, double *best_ns)
{
  int error = 0;
  for (int piece = 0; piece < N_PIECES && !error; piece++) {
    int64_t start_ns = lade_now_ns();
    error = run(bench, (uint32_t)piece * N_PIECE);
    double ns = (double)(lade_now_ns() - start_ns) / N_PIECE;
    *best_ns = LADE_MIN(*best_ns, ns);
  }
  return error;
}

static void workers_init(struct alloc_bench *bench, int n)
{
  for (int i = 0; i < n; i++)
    bench->workers[i] = (struct worker){
        .bench = bench, .queue = bench->queues[i % N_QUEUES], .n_live = N_LIVE / n, .at = (uint32_t)i * 8192};
}

static void workers_drop(struct alloc_bench *bench, int n)
{
  for (int i = 0; i < n; i++)
    for (int k = 0; k < bench->workers[i].n_live; k++)
      lade_cache_free(bench->cache, bench->workers[i].live[k], NULL, NULL);
}

static int threads_run(struct alloc_bench *bench, double *best_ns)
{
  pthread_t threads[MAX_THREADS];
  int n_started = 0, error = 0;
  int64_t start_ns = lade_now_ns();
  for (; n_started < MAX_THREADS && !error; n_started += !error) {
    bench->workers[n_started].n_pairs = N_THREAD_PAIRS;
    error = lade_thread_start(&threads[n_started], "lade-bench", worker_run, &bench->workers[n_started]);
  }
  for (int i = 0; i < n_started; i++) {
    pthread_join(threads[i], NULL);
    error = error ? error : bench->workers[i].error;
  }
  double ns = (double)(lade_now_ns() - start_ns) / (N_THREAD_PAIRS * MAX_THREADS);
  *best_ns = LADE_MIN(*best_ns, ns);
  return error;
}

/* ---- the verb ---- */

struct result {
  double pair_ns, best_fit_ns, malloc_ns, threads_ns;
};

static int round_run(struct alloc_bench *bench, struct result *best)
{
  workers_init(bench, 1);
  int error = pieces_run(bench, cache_piece, &best->pair_ns);
  workers_drop(bench, 1);
  if (!error)
    error = pieces_run(bench, plain_piece, &best->best_fit_ns);
  if (!error)
    error = pieces_run(bench, malloc_piece, &best->malloc_ns);
  workers_init(bench, MAX_THREADS);
  for (int i = 0; i < N_THREAD_RUNS && !error; i++) /* the first makes the live blocks */
    error = threads_run(bench, &best->threads_ns);
  workers_drop(bench, MAX_THREADS);
  return error;
}

static int alloc_bench_open(struct alloc_bench *bench, struct lade_error *error)
{
  struct lade_device_params device = {sizeof(device), "host", DEVICE_BYTES};
  int status = lade_device_open(&device, error, &bench->device);
  for (int i = 0; i < N_QUEUES && !status; i++)
    status = lade_queue_create(bench->device, LADE_QUEUE_COMPUTE, &bench->queues[i]);
  struct lade_cache_params cache = {
      .struct_size = sizeof(cache), .device = bench->device, .n_trace_entries = 65536};
  if (!status)
    status = lade_cache_create(&cache, error, &bench->cache);
  calls_draw(&bench->calls, 1);
  int plain_status = plain_init(&bench->plain);
  return status ? status : plain_status;
}

static void alloc_bench_close(struct alloc_bench *bench)
{
  for (int i = 0; i < N_LIVE; i++)
    free(bench->malloc_live[i]);
  plain_finish(&bench->plain);
  lade_cache_destroy(bench->cache);
  for (int i = 0; i < N_QUEUES; i++)
    lade_queue_destroy(bench->queues[i]);
  lade_device_close(bench->device);
}

static int result_print(const struct result *result, bool is_json)
{
  if (is_json)
    return json_print(json_pack("{s:i, s:f, s:f, s:f, s:{s:f, s:f}}", "schema_version", REPORT_SCHEMA_VERSION,
                                "pair_ns", result->pair_ns, "best_fit_pair_ns", result->best_fit_ns,
                                "malloc_pair_ns", result->malloc_ns, "threads", "1", result->pair_ns,
                                "8", result->threads_ns));
  printf("an allocation and a free, ns\n"
         "  caching allocator  %7.1f\n"
         "  with 8 threads     %7.1f   of wall clock, on %d queues\n"
         "  plain best fit     %7.1f\n"
         "  malloc             %7.1f\n",
         result->pair_ns, result->threads_ns, N_QUEUES, result->best_fit_ns, result->malloc_ns);
  return 0;
}

static int bench_run(struct result *ret_best, struct lade_error *error)
{
  struct result best = {INFINITY, INFINITY, INFINITY, INFINITY};
  struct alloc_bench *bench = calloc(1, sizeof(*bench));
  int status = bench ? alloc_bench_open(bench, error) : -ENOMEM;
  for (int round = 0; round < N_ROUNDS && !status; round++)
    status = round_run(bench, &best);
  if (bench)
    alloc_bench_close(bench);
  free(bench);
  *ret_best = best;
  return status;
}

int bench_alloc_main(int argc, char **argv)
{
  struct options options;
  struct lade_error error = {0};
  struct result best;
  int code = options_read(VERB_BENCH, argc, argv, &options);
  if (code == OPTIONS_GO) {
    int status = bench_run(&best, &error);
    if (!status)
      status = result_print(&best, options.is_json);
    code = status ? exit_fail("bench alloc", status, &error) : LADE_EXIT_DONE;
  }
  options_finish(&options);
  return code;
}
