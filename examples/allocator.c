/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit in bytes and planned replay for a caller that names memory by device number and stream.
 *
 * Each step allocates activations forward, and frees them backward beside short-lived gradients. After two equal steps
 * the allocator packs them: later steps get the planned addresses, without a search. A step of another shape falls back
 * to the cache and is counted. Here device 0 is the host; with a GPU leave out the devices, and pass CUstreams.
 *
 *   cc allocator.c $(pkg-config --cflags --libs lade) && ./a.out
 */
#include <lade/allocator.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_STEPS = 5, N_LAYERS = 8, OTHER_STEP = 4 };

static void die(const struct lade_error *error)
{
  fprintf(stderr, "%s\n", error->text);
  exit(1);
}

static void *take(lade_allocator *allocator, uint64_t bytes, void *stream)
{
  struct lade_error error;
  void *block = NULL;
  if (lade_allocator_alloc(allocator, bytes, 0, stream, &error, &block))
    die(&error);
  return block;
}

static void step_run(lade_allocator *allocator, void *stream, uint64_t bytes)
{
  void *activations[N_LAYERS];
  for (int i = 0; i < N_LAYERS; i++)
    activations[i] = take(allocator, bytes, stream);
  for (int i = N_LAYERS - 1; i >= 0; i--) {
    void *gradient = take(allocator, bytes / 2, stream);
    lade_allocator_free(allocator, activations[i], 0, stream, NULL);
    lade_allocator_free(allocator, gradient, 0, stream, NULL);
  }
}

int main(void)
{
  const struct lade_device_params host = {.struct_size = sizeof(host), .name = "host", .capacity_bytes = 64 << 20};
  struct lade_error error;
  lade_device *device = NULL;
  lade_queue *stream = NULL;
  lade_allocator *allocator = NULL;
  if (lade_device_open(&host, &error, &device))
    die(&error);
  const struct lade_allocator_params params = {
      .struct_size = sizeof(params), .limit_bytes = 32 << 20, .devices = &device, .n_devices = 1};
  if (lade_queue_create(device, LADE_QUEUE_COMPUTE, &stream) || lade_allocator_create(&params, &error, &allocator))
    die(&error);
  lade_allocator_step(allocator, 0, NULL); /* the first step begins */
  for (int step = 0; step < N_STEPS; step++) {
    struct lade_allocator_stats stats = {.struct_size = sizeof(stats)};
    step_run(allocator, stream, step == OTHER_STEP ? 1500000 : 2000000);
    if (lade_allocator_step(allocator, 0, &error) || lade_allocator_get_stats(allocator, 0, &stats, &error))
      die(&error);
    printf("step %d: peak %.1f MiB live, arena %.1f MiB, %d of %d allocations planned so far, %d steps left the plan\n",
           step, (double)stats.peak_bytes / (1 << 20), (double)stats.arena_bytes / (1 << 20), (int)stats.n_served,
           (int)stats.n_allocs, (int)stats.n_mismatches);
  }
  void *block = NULL;
  if (lade_allocator_alloc(allocator, 48 << 20, 0, stream, &error, &block) == 0)
    return 1;
  printf("48 MiB: %s\n", error.text);
  lade_allocator_destroy(allocator);
  lade_queue_destroy(stream);
  lade_device_close(device);
  return 0;
}
