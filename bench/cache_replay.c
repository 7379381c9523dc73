/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces one call at a time through the caching allocator, over addresses without memory, and through the
 * models of PyTorch's two.
 *
 *   bench-cache-replay [-r REPEATS] [-n STEPS] [-s SEEDS] [-f FIRST] [-c MIB] [FILE.csv ...]
 *
 * A file holds `id,lower,upper,size` with half-open lifetimes; at one time frees come before allocations. Without
 * files, traces of STEPS steps (200) of the kinds in cache_traces.h are drawn with SEEDS (3) seeds from FIRST (1) on.
 * Chunks have MIB (2).
 *
 * It prints the most bytes live at once, and the excess that each allocator reserved, in per cent of them. For the
 * caching allocator it also prints its calls for memory. For drawn kinds it also prints the least, the median and the
 * most over the seeds, as lines of a table. With -r the trace is replayed again on the same cache. The last round with
 * such a call is named, for the drawn kinds in a table of its own: a repeated step should need none after a few rounds.
 *
 * The device has no effective limit, and queues never have pending work: memory that another queue freed is free.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/torch_model.h"
#include "alloc/trace.h"
#include "base/base.h"
#include "bench/cache_traces.h"
#include "device/device.h"
#include "lade/cache.h"

#define MAX_SEEDS 1000

enum { CACHE, TORCH_NATIVE, TORCH_EXPANDABLE, N_ALLOCATORS };

static const char *const allocator_names[] = {"caching", "torch-native", "torch-expandable"};

struct options {
  int n_rounds, n_seeds, n_steps, first_seed;
  uint64_t chunk_bytes;
};

struct result {
  double waste[N_ALLOCATORS]; /* in per cent of the peak of live bytes */
  double last_round;          /* the last in which the caching allocator made a call for memory */
};

static int file_read(const char *path, struct trace *trace)
{
  struct lade_error fault = {0};
  struct lade_trace read = {0};
  int error = lade_trace_load(path, &fault, &read);
  if (error)
    fprintf(stderr, "bench-cache-replay: %s\n", fault.text);
  for (int i = 0; i < read.blocks.n && !error; i++) {
    const struct lade_trace_block *block = &read.blocks.items[i];
    if (!trace_add(trace, block->bytes, (uint64_t)block->first, (uint64_t)block->last, block->queue % TRACE_QUEUES))
      error = -ENOMEM;
  }
  lade_trace_destroy(&read);
  return error;
}

struct replay {
  lade_device *device;
  lade_queue *queues[TRACE_QUEUES];
  lade_cache *cache;
};

static int replay_open(struct replay *replay, uint64_t chunk_bytes)
{
  const struct lade_dry_device_params device = {
      .struct_size = sizeof(device), .capacity_bytes = (uint64_t)1 << 38, .chunk_bytes = chunk_bytes,
      .to_host = {.bytes_per_s = 1}, .to_device = {.bytes_per_s = 1}}; /* nothing is copied */
  int error = lade_device_open_dry(&device, NULL, &replay->device);
  for (int i = 0; i < TRACE_QUEUES && !error; i++)
    error = lade_queue_create(replay->device, LADE_QUEUE_COMPUTE, &replay->queues[i]);
  struct lade_cache_params cache = {.struct_size = sizeof(cache), .device = replay->device};
  return error ? error : lade_cache_create(&cache, NULL, &replay->cache);
}

static void replay_close(struct replay *replay)
{
  lade_cache_destroy(replay->cache);
  for (int i = 0; i < TRACE_QUEUES; i++)
    lade_queue_destroy(replay->queues[i]);
  lade_device_close(replay->device);
}

static int round_run(struct replay *replay, const struct trace *trace, void **addresses)
{
  for (int i = 0; i < trace->n_calls; i++) {
    const struct trace_call *call = &trace->calls[i];
    const struct trace_item *item = &trace->items.items[call->i_item];
    struct lade_cache_request request = {sizeof(request), item->bytes, replay->queues[item->queue], 0, NULL};
    int error = call->is_free ? lade_cache_free(replay->cache, addresses[call->i_item], NULL, NULL)
                              : lade_cache_alloc(replay->cache, &request, NULL, &addresses[call->i_item]);
    if (error)
      return error;
  }
  return 0;
}

static double waste_of(const struct trace *trace, uint64_t reserved_bytes)
{
  return ((double)reserved_bytes / (double)trace->peak_bytes - 1) * 100;
}

static int model_replay(const struct trace *trace, bool is_expandable, double *ret_waste)
{
  struct torch_model *model = NULL;
  uint64_t *addresses = calloc((size_t)trace->items.n + 1, sizeof(*addresses));
  int error = addresses ? torch_model_create(is_expandable, 0, &model) : -ENOMEM;
  for (int i = 0; i < trace->n_calls && !error; i++) {
    const struct trace_call *call = &trace->calls[i];
    const struct trace_item *item = &trace->items.items[call->i_item];
    error = call->is_free ? torch_model_free(model, addresses[call->i_item])
                          : torch_model_alloc(model, item->bytes, item->queue, &addresses[call->i_item]);
  }
  if (!error)
    *ret_waste = waste_of(trace, torch_model_peak_reserved_bytes(model));
  torch_model_destroy(model);
  free(addresses);
  return error;
}

static uint64_t calls_of(const struct lade_cache_stats *stats)
{
  return stats->n_maps + stats->n_unmaps + stats->n_creates + stats->n_releases;
}

static int cache_replay(const char *name, const struct trace *trace, const struct options *options,
                        struct result *ret_result)
{
  struct replay replay = {0};
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  uint64_t calls = 0;
  int last_round = 0;
  struct lade_error fault = {0};
  void **addresses = calloc((size_t)trace->items.n + 1, sizeof(*addresses));
  int error = addresses ? replay_open(&replay, options->chunk_bytes) : -ENOMEM;
  int64_t start_ns = lade_now_ns();
  for (int round = 0; round < options->n_rounds && !error; round++) {
    error = round_run(&replay, trace, addresses);
    if (!error)
      error = lade_cache_get_stats(replay.cache, &stats);
    if (calls_of(&stats) != calls)
      last_round = round + 1;
    calls = calls_of(&stats);
  }
  int64_t ns = lade_now_ns() - start_ns;
  if (!error)
    error = lade_cache_check(replay.cache, &fault);
  if (!error) {
    ret_result->waste[CACHE] = waste_of(trace, stats.reserved_bytes.peak);
    ret_result->last_round = last_round;
    printf("%-26.26s %6d blocks, live %8.1f MiB, creates %5llu moves %5llu last in round %3d %4.0f ns/call: ", name,
           trace->items.n, (double)trace->peak_bytes / 1048576, (unsigned long long)stats.n_creates,
           (unsigned long long)stats.n_unmaps, last_round, (double)ns / ((double)trace->n_calls * options->n_rounds));
  } else {
    fprintf(stderr, "bench-cache-replay: %s: %s %s\n", name, strerror(-error), fault.text);
  }
  if (replay.cache)
    replay_close(&replay);
  free(addresses);
  return error;
}

static int trace_replay(const char *name, const struct trace *trace, const struct options *options,
                        struct result *ret_result)
{
  int error = cache_replay(name, trace, options, ret_result);
  for (int i = TORCH_NATIVE; i < N_ALLOCATORS && !error; i++)
    error = model_replay(trace, i == TORCH_EXPANDABLE, &ret_result->waste[i]);
  for (int i = 0; i < N_ALLOCATORS && !error; i++)
    printf("%s %.2f %%%s", allocator_names[i], ret_result->waste[i], i < N_ALLOCATORS - 1 ? ", " : "\n");
  return error;
}

static int number_compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void summary_print(enum trace_kind kind, const struct result *results, int n)
{
  double waste[MAX_SEEDS];
  printf("| %s |", trace_kind_name(kind));
  for (int allocator = 0; allocator < N_ALLOCATORS; allocator++) {
    for (int i = 0; i < n; i++)
      waste[i] = results[i].waste[allocator];
    qsort(waste, (size_t)n, sizeof(*waste), number_compare);
    printf(" %.2f / %.2f / %.2f |", waste[0], waste[n / 2], waste[n - 1]);
  }
  printf("\n");
}

/* Print the round of the last call for memory, least, median, mean and most over the seeds; and the waste then. */
static void rest_print(enum trace_kind kind, const struct result *results, int n)
{
  double rounds[MAX_SEEDS], sum = 0, max_waste = 0;
  for (int i = 0; i < n; i++) {
    rounds[i] = results[i].last_round;
    sum += rounds[i];
    max_waste = LADE_MAX(max_waste, results[i].waste[CACHE]);
  }
  qsort(rounds, (size_t)n, sizeof(*rounds), number_compare);
  printf("| %s | %.0f / %.0f / %.0f | %.1f | %.2f %% |\n", trace_kind_name(kind), rounds[0], rounds[n / 2],
         rounds[n - 1], sum / n, max_waste);
}

static int kinds_replay(const struct options *options)
{
  static struct result results[TRACE_N_KINDS][MAX_SEEDS];
  int status = 0, n_seeds = options->n_seeds;
  for (int kind = 0; kind < TRACE_N_KINDS; kind++)
    for (int i = 0; i < n_seeds; i++) {
      int seed = options->first_seed + i;
      struct trace trace = {0};
      char name[32];
      snprintf(name, sizeof(name), "%s seed %d", trace_kind_name((enum trace_kind)kind), seed);
      status |= !trace_draw(&trace, (enum trace_kind)kind, options->n_steps, (uint64_t)seed) ||
                trace_replay(name, &trace, options, &results[kind][i]);
      trace_free(&trace);
    }
  if (status)
    return status;
  printf("\n| %d seeds: least / median / most, %% | caching | torch-native | torch-expandable |\n|---|---|---|---|\n",
         n_seeds);
  for (int kind = 0; kind < TRACE_N_KINDS; kind++)
    summary_print((enum trace_kind)kind, results[kind], n_seeds);
  if (options->n_rounds == 1)
    return 0;
  printf("\n| %d rounds: last call, least / median / most | mean | most waste |\n|---|---|---|---|\n",
         options->n_rounds);
  for (int kind = 0; kind < TRACE_N_KINDS; kind++)
    rest_print((enum trace_kind)kind, results[kind], n_seeds);
  return 0;
}

static int csv_replay(const char *path, const struct options *options)
{
  struct trace trace = {0};
  struct result result;
  const char *name = strrchr(path, '/');
  int error = file_read(path, &trace);
  if (!error)
    error = trace_order(&trace) ? 0 : -ENOMEM;
  if (error)
    fprintf(stderr, "bench-cache-replay: %s: %s\n", path, strerror(-error));
  else
    error = trace_replay(name ? name + 1 : path, &trace, options, &result);
  trace_free(&trace);
  return error;
}

static int *number_of(struct options *options, int option, int *ret_mib)
{
  switch (option) {
  case 'c':
    return ret_mib;
  case 'f':
    return &options->first_seed;
  case 'n':
    return &options->n_steps;
  case 'r':
    return &options->n_rounds;
  case 's':
    return &options->n_seeds;
  default:
    return NULL;
  }
}

int main(int argc, char **argv)
{
  struct options options = {.n_rounds = 1, .n_seeds = 3, .n_steps = 200, .first_seed = 1};
  int option, status = 0, mib = 2;
  while ((option = getopt(argc, argv, "c:f:n:r:s:")) != -1) {
    int *number = number_of(&options, option, &mib), n = number ? atoi(optarg) : 0;
    if (n < 1 || n > MAX_SEEDS)
      return 2;
    *number = n;
  }
  options.chunk_bytes = (uint64_t)mib << 20;
  for (int i = optind; i < argc; i++)
    status |= csv_replay(argv[i], &options) != 0;
  if (optind == argc)
    status = kinds_replay(&options);
  return status != 0;
}
