/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces through the caching allocator, one call at a time, over addresses without memory.
 *
 *   bench-cache-replay [-r REPEATS] [FILE.csv ...]
 *
 * A file holds `id,lower,upper,size` with half-open lifetimes; at one time frees come before allocations. Without files
 * the built-in kinds are drawn: several queues, mixtures of experts with random token counts, and sequence
 * lengths that change from step to step. Printed: the most bytes live at once, the most bytes reserved,
 * what that is too much, and the calls for memory that it took. With -r the trace is replayed again on the
 * same cache, and the calls of the last round are counted apart: a step that repeats should need none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "bench/cache_traces.h"
#include "device/device.h"
#include "lade/cache.h"

static int file_read(const char *path, struct trace *trace)
{
  FILE *file = fopen(path, "r");
  char line[256];
  if (!file)
    return -errno;
  for (int number = 1; fgets(line, sizeof(line), file); number++) {
    unsigned long long id, lower, upper, size;
    if (sscanf(line, "%llu,%llu,%llu,%llu", &id, &lower, &upper, &size) != 4) {
      if (number == 1)
        continue; /* names of columns */
      fclose(file);
      return -EINVAL;
    }
    if (lower >= upper || !size || !trace_add(trace, size, lower, upper, 0)) {
      fclose(file);
      return -EINVAL;
    }
  }
  fclose(file);
  return 0;
}

struct replay {
  lade_device *device;
  lade_queue *queues[TRACE_QUEUES];
  lade_cache *cache;
};

static int replay_open(struct replay *replay)
{
  struct lade_device_params device = {sizeof(device), "dry", (uint64_t)1 << 38};
  int error = lade_device_open(&device, NULL, &replay->device);
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

static int trace_replay(const char *name, const struct trace *trace, int n_rounds)
{
  struct replay replay = {0};
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)}, before = stats;
  struct lade_error fault = {0};
  void **addresses = calloc((size_t)trace->items.n + 1, sizeof(*addresses));
  int error = addresses ? replay_open(&replay) : -ENOMEM;
  int64_t start_ns = lade_now_ns();
  for (int round = 0; round < n_rounds && !error; round++) {
    lade_cache_get_stats(replay.cache, &before);
    error = round_run(&replay, trace, addresses);
  }
  int64_t ns = lade_now_ns() - start_ns;
  if (!error)
    error = lade_cache_check(replay.cache, &fault);
  if (!error) {
    lade_cache_get_stats(replay.cache, &stats);
    double live = (double)trace->peak_bytes, reserved = (double)stats.reserved_bytes.peak;
    uint64_t calls = stats.n_maps + stats.n_unmaps + stats.n_creates + stats.n_releases;
    uint64_t calls_before = before.n_maps + before.n_unmaps + before.n_creates + before.n_releases;
    printf("%-28.28s %7d live %9.1f MiB reserved %9.1f MiB waste %6.2f %% creates %6llu moves %6llu last round %5llu "
           "%6.0f ns/call\n", name, trace->items.n, live / 1048576, reserved / 1048576, (reserved / live - 1) * 100,
           (unsigned long long)stats.n_creates, (unsigned long long)stats.n_unmaps,
           (unsigned long long)(calls - calls_before), (double)ns / ((double)trace->n_calls * n_rounds));
  } else {
    fprintf(stderr, "bench-cache-replay: %s: %s %s\n", name, strerror(-error), fault.text);
  }
  if (replay.cache)
    replay_close(&replay);
  free(addresses);
  return error;
}

int main(int argc, char **argv)
{
  int n_rounds = 1, option, status = 0;
  while ((option = getopt(argc, argv, "r:")) != -1) {
    if (option != 'r' || (n_rounds = atoi(optarg)) < 1)
      return 2;
  }
  for (int i = optind; i < argc; i++) {
    struct trace trace = {0};
    const char *name = strrchr(argv[i], '/');
    int error = file_read(argv[i], &trace);
    if (!error)
      error = trace_order(&trace) ? 0 : -ENOMEM;
    if (error)
      fprintf(stderr, "bench-cache-replay: %s: %s\n", argv[i], strerror(-error));
    else
      error = trace_replay(name ? name + 1 : argv[i], &trace, n_rounds);
    status |= error != 0;
    trace_free(&trace);
  }
  for (int kind = 0; optind == argc && kind < TRACE_N_KINDS; kind++)
    for (uint64_t seed = 1; seed <= 3; seed++) {
      struct trace trace = {0};
      char name[32];
      snprintf(name, sizeof(name), "%s seed %d", trace_kind_name((enum trace_kind)kind), (int)seed);
      status |= !trace_draw(&trace, (enum trace_kind)kind, seed) || trace_replay(name, &trace, n_rounds);
      trace_free(&trace);
    }
  return status;
}
