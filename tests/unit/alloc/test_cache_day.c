/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A day of training through one cache, ending with every byte accounted for.
 *
 *   test-cache-day [host|dry] [HOURS]
 *
 * The model is a trainer of eight layers on four queues. It gathers weights two layers ahead on a communication queue.
 * It copies out every other saved activation and frees it early, and reduces gradients on the way back. The load has
 * phases. The sequence length is drawn anew every 50 steps. Every 200 steps there are 20 of evaluation. Every 500 steps
 * a checkpoint stages all weights. Every 2,000 steps a bucket of the optimizer is freed and allocated anew. The longest
 * sequences fit only if the owner gives up prefetched blocks. The clock is the sum of the steps' simulated times;
 * nothing sleeps.
 *
 * On the host device the work runs. Each block is stamped at both ends when it is made, and the stamps are read at its
 * last use, on the device's queues. So memory given out twice is detected. The test requires: each step ends with the
 * live bytes that it began with, tag by tag; each hour ends with a recount; the limit is never exceeded; the end of the
 * day leaves nothing on the device and nothing on the heap.
 */
#include "base/philox.h"
#include "tests/conform/cache_target.h"
#include "tests/support/heap/heap.h"

enum { N_LAYERS = 8, N_SAVED = 6, N_PREFETCHED = 8, N_SLOTS = 16384 };
enum { COMPUTE, COMM, COPY, N_STREAMS };
enum { WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, PREFETCH, N_TAGS };
enum { SHORT_HOURS = 1, STEP_MS = 1200, EVAL_MS = 300, CHECKPOINT_MS = 4000 };

static const uint64_t limit_bytes = 240 * MIB;
static const uint64_t weight_bytes = 4400 * 1024; /* of a layer */

struct stamp {
  uint64_t *first, *last, value;
  _Atomic int *n_wrong;
};

struct block {
  unsigned char *at;
  uint64_t bytes, value;
};

struct day {
  bool is_touched; /* work on the queues really runs */
  lade_device *device;
  lade_cache *cache;
  lade_queue *queues[N_STREAMS];
  int tags[N_TAGS];
  struct block weights[N_LAYERS], gradients[N_LAYERS], moments[N_LAYERS], prefetched[N_PREFETCHED];
  struct block saved[N_LAYERS][N_SAVED], gathered[N_LAYERS];
  struct stamp *slots[N_STREAMS]; /* of the work submitted last; a queue's ring is shorter */
  uint64_t n_submitted[N_STREAMS], n_drawn, n_values, n_calls, n_steps;
  uint64_t row_bytes; /* of one activation at this sequence length */
  int64_t now_ms;
  _Atomic int n_wrong;
};

/* ---- work ---- */

static void stamp_write(void *args)
{
  const struct stamp *stamp = args;
  *stamp->first = stamp->value;
  *stamp->last = ~stamp->value;
}

static void stamp_read(void *args)
{
  const struct stamp *stamp = args;
  if (*stamp->first != stamp->value || *stamp->last != ~stamp->value)
    atomic_fetch_add(stamp->n_wrong, 1);
}

static void submit(struct day *day, int stream, lade_work_fn *fn, const struct block *block)
{
  struct stamp *stamp = &day->slots[stream][day->n_submitted[stream]++ % N_SLOTS];
  *stamp = (struct stamp){.value = block->value, .n_wrong = &day->n_wrong};
  stamp->first = (uint64_t *)(void *)block->at;
  stamp->last = (uint64_t *)(void *)(block->at + block->bytes - sizeof(uint64_t));
  lade_queue_launch(day->queues[stream], &(struct lade_work){.fn = fn, .args = stamp, .predicted_ns = 1000}, NULL);
}

/* Order later work of @stream after all work submitted to @other so far. */
static void order(struct day *day, int stream, int other)
{
  lade_queue_wait(day->queues[stream], day->queues[other], lade_queue_submitted(day->queues[other]));
}

static struct block make(struct day *day, int stream, int tag, uint64_t bytes)
{
  struct lade_cache_request request = {sizeof(request), bytes, day->queues[stream], day->tags[tag], "day.c:1"};
  struct lade_error error = {0};
  void *at = NULL;
  if (lade_cache_alloc(day->cache, &request, &error, &at))
    fail_msg("step %llu: %s", (unsigned long long)day->n_steps, error.text);
  struct block block = {at, bytes, ++day->n_values};
  day->n_calls++;
  submit(day, stream, stamp_write, &block);
  return block;
}

/* Use the block for the last time, on @stream, and free it. */
static void drop(struct day *day, int stream, struct block *block)
{
  if (!block->at)
    return;
  submit(day, stream, stamp_read, block);
  must_free(day->cache, block->at);
  day->n_calls++;
  block->at = NULL;
}

static void touch(struct day *day, int stream, uint64_t bytes)
{
  struct block block = make(day, stream, ACTIVATIONS, bytes);
  drop(day, stream, &block);
}

static uint64_t draw(struct day *day, uint64_t below)
{
  return lade_philox_word(7, 0, 0, day->n_drawn++) % below;
}

/* Give up prefetched blocks, as the owner's spill function: they can be fetched again. */
static uint64_t give(void *arg, uint64_t bytes)
{
  struct day *day = arg;
  for (int i = 0; i < N_PREFETCHED; i++)
    if (day->prefetched[i].at) {
      uint64_t given_bytes = day->prefetched[i].bytes;
      drop(day, COPY, &day->prefetched[i]);
      return given_bytes;
    }
  return 0;
}

/* ---- steps ---- */

static void gather(struct day *day, int layer)
{
  if (layer >= 0 && layer < N_LAYERS && !day->gathered[layer].at)
    day->gathered[layer] = make(day, COMM, WEIGHTS, weight_bytes);
}

/* Compute reads blocks that communication has gathered, so their memory waits for both queues. */
static void gathered_use(struct day *day, int layer)
{
  order(day, COMPUTE, COMM);
  submit(day, COMPUTE, stamp_read, &day->gathered[layer]);
  assert_int_equal(lade_cache_record(day->cache, day->gathered[layer].at, day->queues[COMPUTE]), 0);
  drop(day, COMM, &day->gathered[layer]);
}

static void layer_forward(struct day *day, int layer, bool is_training)
{
  gather(day, layer + 1);
  gather(day, layer + 2);
  gathered_use(day, layer);
  for (int i = 0; i < N_SAVED; i++) {
    day->saved[layer][i] = make(day, COMPUTE, ACTIVATIONS, day->row_bytes * (uint64_t)(1 + i % 3) / 2);
    touch(day, COMPUTE, day->row_bytes + 512 * draw(day, 64));
    if (!is_training)
      drop(day, COMPUTE, &day->saved[layer][i]);
  }
  if (!is_training || layer % 2)
    return;
  order(day, COPY, COMPUTE);
  submit(day, COPY, stamp_read, &day->saved[layer][1]);
  assert_int_equal(lade_cache_record(day->cache, day->saved[layer][1].at, day->queues[COPY]), 0);
  drop(day, COMPUTE, &day->saved[layer][1]);
}

static void layer_backward(struct day *day, int layer)
{
  gather(day, layer);
  gather(day, layer - 1);
  gathered_use(day, layer);
  if (!day->saved[layer][1].at) /* it was copied out and is copied back */
    day->saved[layer][1] = make(day, COPY, ACTIVATIONS, day->row_bytes);
  order(day, COMPUTE, COPY);
  assert_int_equal(lade_cache_record(day->cache, day->saved[layer][1].at, day->queues[COMPUTE]), 0);
  for (int i = N_SAVED - 1; i >= 0; i--) {
    touch(day, COMPUTE, day->row_bytes);
    drop(day, COMPUTE, &day->saved[layer][i]);
  }
  struct block reduced = make(day, COMPUTE, GRADIENTS, weight_bytes);
  order(day, COMM, COMPUTE);
  submit(day, COMM, stamp_read, &reduced);
  assert_int_equal(lade_cache_record(day->cache, reduced.at, day->queues[COMM]), 0);
  touch(day, COMM, weight_bytes / 4);
  drop(day, COMPUTE, &reduced);
}

static void prefetch(struct day *day)
{
  for (int i = 0; i < N_PREFETCHED; i++)
    if (!day->prefetched[i].at)
      day->prefetched[i] = make(day, COPY, PREFETCH, 4 * MIB + 4096);
}

static void prefetched_drop(struct day *day)
{
  for (int i = 0; i < N_PREFETCHED; i++)
    drop(day, COPY, &day->prefetched[i]);
}

static void step_train(struct day *day)
{
  prefetch(day);
  for (int layer = 0; layer < 2; layer++)
    gather(day, layer);
  for (int layer = 0; layer < N_LAYERS; layer++)
    layer_forward(day, layer, true);
  touch(day, COMPUTE, day->row_bytes * 3);
  for (int layer = N_LAYERS - 1; layer >= 0; layer--)
    layer_backward(day, layer);
  prefetched_drop(day);
  day->now_ms += STEP_MS;
}

static void step_evaluate(struct day *day)
{
  for (int layer = 0; layer < 2; layer++)
    gather(day, layer);
  for (int layer = 0; layer < N_LAYERS; layer++)
    layer_forward(day, layer, false);
  day->now_ms += EVAL_MS;
}

static void checkpoint(struct day *day)
{
  for (int layer = 0; layer < N_LAYERS; layer++) {
    struct block staged = make(day, COPY, OPTIMIZER, weight_bytes + day->n_steps % 7 * 512);
    assert_int_equal(lade_cache_record(day->cache, staged.at, day->queues[COMM]), 0);
    drop(day, COPY, &staged);
  }
  day->now_ms += CHECKPOINT_MS;
}

static void moments_renew(struct day *day)
{
  for (int layer = 0; layer < N_LAYERS; layer++)
    drop(day, COMPUTE, &day->moments[layer]);
  for (int layer = 0; layer < N_LAYERS; layer++)
    day->moments[layer] = make(day, COMPUTE, OPTIMIZER, weight_bytes + 1024 * draw(day, 8));
}

/* ---- the day ---- */

static void tags_read(struct day *day, uint64_t *bytes)
{
  struct lade_cache_tag tag;
  for (int i = 0; i < N_TAGS; i++) {
    assert_int_equal(lade_cache_get_tag(day->cache, day->tags[i], &tag), 0);
    bytes[i] = tag.bytes.current;
  }
}

static void phase_run(struct day *day)
{
  uint64_t before[N_TAGS], after[N_TAGS];
  if (day->n_steps % 2000 == 1999)
    moments_renew(day);
  if (day->n_steps % 50 == 0)
    day->row_bytes = 256 * 1024 * (1 + draw(day, 11)) + 512 * draw(day, 100);
  tags_read(day, before);
  if (day->n_steps % 200 < 180)
    step_train(day);
  else
    step_evaluate(day);
  if (day->n_steps % 500 == 499)
    checkpoint(day);
  tags_read(day, after);
  assert_memory_equal(before, after, sizeof(before));
  day->n_steps++;
}

static void hour_end(struct day *day)
{
  for (int i = 0; i < N_STREAMS; i++)
    assert_int_equal(lade_queue_sync(day->queues[i], lade_queue_submitted(day->queues[i])), 0);
  cache_check(day->cache);
  assert_int_equal(atomic_load(&day->n_wrong), 0);
  assert_true(info_get(day->device).peak_bytes <= limit_bytes);
}

static void day_begin(struct day *day, void **state)
{
  static const char *const names[] = {"weights", "gradients", "optimizer", "activations", "prefetch"};
  const struct target *target = *state;
  struct lade_device_params device = {sizeof(device), target->is_dry ? "dry" : "host", limit_bytes};
  assert_int_equal(lade_device_open(&device, NULL, &day->device), 0);
  day->is_touched = !info_get(day->device).is_dry;
  struct lade_cache_params params = {.struct_size = sizeof(params), .device = day->device, .limit_bytes = limit_bytes};
  params.n_trace_entries = 1024;
  params.spill = give;
  params.spill_arg = day;
  assert_int_equal(lade_cache_create(&params, NULL, &day->cache), 0);
  for (int i = 0; i < N_TAGS; i++)
    assert_int_equal(lade_cache_tag_add(day->cache, names[i], &day->tags[i]), 0);
  for (int i = 0; i < N_STREAMS; i++) {
    day->queues[i] = queue_open(day->device, LADE_QUEUE_COMPUTE);
    day->slots[i] = calloc(N_SLOTS, sizeof(*day->slots[i]));
    assert_non_null(day->slots[i]);
  }
  for (int layer = 0; layer < N_LAYERS; layer++) {
    day->weights[layer] = make(day, COMPUTE, WEIGHTS, weight_bytes / 4);
    day->gradients[layer] = make(day, COMPUTE, GRADIENTS, weight_bytes / 4);
    day->moments[layer] = make(day, COMPUTE, OPTIMIZER, weight_bytes);
  }
}

static void nothing_is_left(struct day *day)
{
  assert_int_equal(lade_cache_trim(day->cache, 0), 0);
  struct lade_cache_stats stats = stats_get(day->cache);
  const struct lade_cache_stat *all[] = {&stats.allocation,     &stats.active,       &stats.segment,
                                         &stats.requested_bytes, &stats.active_bytes, &stats.allocated_bytes,
                                         &stats.reserved_bytes, &stats.inactive_split_bytes};
  for (size_t i = 0; i < LADE_COUNT(all); i++) {
    assert_int_equal(all[i]->current, 0);
    assert_int_equal(all[i]->allocated, all[i]->freed);
  }
  assert_int_equal(stats.n_creates, stats.n_releases);
  assert_int_equal(stats.n_maps, stats.n_unmaps);
  assert_int_equal(stats.num_ooms, 0);
  assert_true(stats.allocation.allocated * 2 == day->n_calls);
  if (day->is_touched && day->n_steps > 1000) /* the longest sequences fitted only after spills */
    assert_true(stats.n_spills > 0 && stats.n_event_waits > 0);
  assert_int_equal(info_get(day->device).created_bytes, 0);
  print_message("%llu steps, %llu calls; %llu spills, %llu event waits, %llu moves\n",
                (unsigned long long)day->n_steps, (unsigned long long)day->n_calls, (unsigned long long)stats.n_spills,
                (unsigned long long)stats.n_event_waits, (unsigned long long)stats.n_unmaps);
}

static void day_end(struct day *day)
{
  for (int layer = 0; layer < N_LAYERS; layer++) {
    drop(day, COMPUTE, &day->weights[layer]);
    drop(day, COMPUTE, &day->gradients[layer]);
    drop(day, COMPUTE, &day->moments[layer]);
  }
  hour_end(day);
  nothing_is_left(day);
  lade_cache_destroy(day->cache);
  for (int i = 0; i < N_STREAMS; i++) {
    lade_queue_destroy(day->queues[i]);
    free(day->slots[i]);
  }
  lade_device_close(day->device);
}

static void day_run(void **state, int64_t minutes)
{
  struct day day = {.row_bytes = 64 * 1024};
  day_begin(&day, state);
  for (int64_t minute = 1; minute <= minutes; minute++) {
    while (day.now_ms < minute * 60000)
      phase_run(&day);
    if (minute % 60 == 0)
      hour_end(&day);
  }
  day_end(&day);
}

static int n_hours = SHORT_HOURS;

/* The first minute is not counted, because libraries keep memory from their first use. */
static void a_day_of_training_ends_with_every_byte_accounted_for(void **state)
{
  day_run(state, 1);
  int64_t n_heap_blocks = heap_n_blocks();
  day_run(state, n_hours * (int64_t)60);
  assert_int_equal(heap_n_blocks(), n_heap_blocks);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {cmocka_unit_test(a_day_of_training_ends_with_every_byte_accounted_for)};
  if (argc > 2)
    n_hours = atoi(argv[2]);
  return target_run(argc, argv, tests, LADE_COUNT(tests));
}
