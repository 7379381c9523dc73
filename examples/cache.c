/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Take device memory for a small training loop from the caching allocator.
 *
 * One queue computes, and one copies the next batch. A block is freed when the work that uses it is submitted; the
 * allocator reuses it when the work is done. After the first step the allocator makes no call to the device. The ledger
 * names the owner of every byte.
 *
 *   cc cache.c $(pkg-config --cflags --libs lade) && ./a.out
 */
#include <lade/cache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACE2(file, line) file ":" #line
#define PLACE1(file, line) PLACE2(file, line)
#define PLACE PLACE1(__FILE__, __LINE__)

enum { N_STEPS = 5, N_LAYERS = 6 };
static const uint64_t layer_bytes = 3000000;

static void die(const struct lade_error *error)
{
  fprintf(stderr, "%s\n", error->text);
  exit(1);
}

static void *block_get(lade_cache *cache, lade_queue *queue, uint64_t bytes, int tag, const char *place)
{
  struct lade_cache_request request = {sizeof(request), bytes, queue, tag, place};
  struct lade_error error;
  void *block = NULL;
  if (lade_cache_alloc(cache, &request, &error, &block))
    die(&error);
  return block;
}

/* A layer reads its input and writes its output. */
struct layer {
  const float *input;
  float *output;
};

static void layer_run(void *args)
{
  const struct layer *layer = args;
  for (uint64_t i = 0; i < layer_bytes / sizeof(float); i++)
    layer->output[i] = layer->input[i] + 1;
}

/* Run a step. The forward pass keeps every output; the backward pass of this example only frees them in reverse. */
static void step_run(lade_cache *cache, lade_queue *compute, lade_queue *copies, int tag, const float *data)
{
  static struct layer layers[N_LAYERS];
  float *batch = block_get(cache, copies, layer_bytes, tag, PLACE);
  struct lade_copy copy = {.dst = batch, .src = data, .bytes = layer_bytes};
  uint64_t copied = 0, computed = 0;
  lade_queue_copy(copies, &copy, &copied);
  lade_queue_wait(compute, copies, copied);
  lade_cache_record(cache, batch, compute); /* its request named the copy queue, and compute uses it too */
  for (int i = 0; i < N_LAYERS; i++) {
    layers[i].input = i ? layers[i - 1].output : batch;
    layers[i].output = block_get(cache, compute, layer_bytes, tag, PLACE);
    lade_queue_launch(compute, &(struct lade_work){.fn = layer_run, .args = &layers[i]}, &computed);
  }
  lade_cache_free(cache, batch, PLACE, NULL);
  for (int i = N_LAYERS - 1; i >= 0; i--)
    lade_cache_free(cache, layers[i].output, PLACE, NULL);
  lade_queue_sync(compute, computed); /* the next step reuses layers[] */
}

int main(void)
{
  struct lade_device_params device_params = {
      .struct_size = sizeof(device_params), .name = "host", .capacity_bytes = 64 << 20};
  struct lade_cache_params params = {.struct_size = sizeof(params), .limit_bytes = 48 << 20, .n_trace_entries = 1024};
  struct lade_error error;
  lade_device *device = NULL;
  lade_queue *compute = NULL, *copies = NULL;
  lade_cache *cache = NULL;
  int activations = 0;
  if (lade_device_open(&device_params, &error, &device))
    die(&error);
  params.device = device;
  if (lade_queue_create(device, LADE_QUEUE_COMPUTE, &compute) ||
      lade_queue_create(device, LADE_QUEUE_TO_DEVICE, &copies) || lade_cache_create(&params, &error, &cache) ||
      lade_cache_tag_add(cache, "activations", &activations))
    return 1;

  float *data = calloc(1, layer_bytes);
  if (!data)
    return 1;
  for (int step = 0; step < N_STEPS; step++) {
    step_run(cache, compute, copies, activations, data);
    struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
    lade_cache_get_stats(cache, &stats);
    printf("step %d: peak %.1f MiB live, %.1f MiB reserved, %llu chunks mapped so far\n", step,
           (double)stats.allocated_bytes.peak / 1048576, (double)stats.reserved_bytes.peak / 1048576,
           (unsigned long long)stats.n_maps);
  }
  char report[4096];
  lade_cache_report(cache, report, sizeof(report));
  printf("%s", report);
  free(data);
  lade_cache_destroy(cache);
  lade_queue_destroy(copies);
  lade_queue_destroy(compute);
  lade_device_close(device);
  return 0;
}
