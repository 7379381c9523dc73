/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caching allocator over every device: an allocation is the caller's alone, stays within the limit, is reused after
 * it is freed, and is released whole. Each test ends with a recount of everything.
 */
#include <time.h>
#include <unistd.h>

#include "cache_target.h"

static void blocks_are_aligned_and_apart(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  const uint64_t sizes[] = {1, 511, 512, 513, 4096, 300000, CHUNK / 4, CHUNK / 4 + 1, CHUNK - 1, CHUNK, 3 * CHUNK + 5};
  uintptr_t starts[LADE_COUNT(sizes)];
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    starts[i] = (uintptr_t)must_alloc(bed.cache, bed.queues[i % 3], sizes[i]);
    assert_int_equal(starts[i] % 512, 0);
    for (size_t k = 0; k < i; k++)
      assert_true(starts[k] + sizes[k] <= starts[i] || starts[i] + sizes[i] <= starts[k]);
    cache_check(bed.cache);
  }
  for (size_t i = 0; i < LADE_COUNT(sizes); i++)
    must_free(bed.cache, (void *)starts[i]);
  assert_int_equal(stats_get(bed.cache).allocated_bytes.current, 0);
  bed_close(&bed);
}

static void written_bytes_are_read_back(void **state)
{
  const struct target *target = *state;
  if (target->is_dry)
    skip();
  struct bed bed = bed_open(state, NULL, NULL);
  void *blocks[40];
  uint64_t bytes[40];
  unsigned char *own = malloc(11 * 70000);
  for (int i = 0; i < 40; i++) {
    bytes[i] = (uint64_t)(i * 37 % 11 + 1) * 70000;
    blocks[i] = must_alloc(bed.cache, bed.queues[0], bytes[i]);
    memset(own, i + 1, bytes[i]);
    memory_write(bed.device, (uint64_t)(uintptr_t)blocks[i], own, bytes[i]);
  }
  for (int i = 0; i < 40; i++) {
    memory_read(bed.device, own, (uint64_t)(uintptr_t)blocks[i], bytes[i]);
    for (uint64_t k = 0; k < bytes[i]; k++)
      assert_int_equal(own[k], i + 1);
  }
  free(own);
  for (int i = 0; i < 40; i++)
    must_free(bed.cache, blocks[i]);
  bed_close(&bed);
}

static void a_freed_block_is_at_once_free_for_its_queue(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  void *first = must_alloc(bed.cache, bed.queues[0], 3 * MIB);
  must_free(bed.cache, first);
  uint64_t n_maps = stats_get(bed.cache).n_maps;
  assert_ptr_equal(must_alloc(bed.cache, bed.queues[0], 3 * MIB), first);
  assert_int_equal(stats_get(bed.cache).n_maps, n_maps);
  bed_close(&bed);
}

/* Every other of many blocks is freed, then one is requested that fits no gap. */
static void free_memory_is_not_stranded_by_size(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  void *blocks[16];
  for (int i = 0; i < 16; i++)
    blocks[i] = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK);
  assert_int_equal(stats_get(bed.cache).reserved_bytes.current, CAPACITY);
  for (int i = 0; i < 16; i += 2)
    must_free(bed.cache, blocks[i]);
  void *large = must_alloc(bed.cache, bed.queues[1], 16 * CHUNK);
  assert_int_equal(stats_get(bed.cache).reserved_bytes.current, CAPACITY);
  cache_check(bed.cache);
  must_free(bed.cache, large);
  for (int i = 1; i < 16; i += 2)
    must_free(bed.cache, blocks[i]);
  void *small = must_alloc(bed.cache, bed.queues[2], 512);
  void *odd = must_alloc(bed.cache, bed.queues[2], 31 * CHUNK - 12345);
  cache_check(bed.cache);
  must_free(bed.cache, small);
  must_free(bed.cache, odd);
  bed_close(&bed);
}

static void the_limit_is_hard_and_the_refusal_says_why(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 8 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  int tag = 0;
  assert_int_equal(lade_cache_tag_add(bed.cache, "activations", &tag), 0);
  struct lade_cache_request request = {sizeof(request), 6 * CHUNK, bed.queues[0], tag, "model.c:7"};
  struct lade_error error = {0};
  void *kept = NULL, *refused = &error;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &kept), 0);
  request.bytes = 3 * CHUNK;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, &error, &refused), -ENOMEM);
  assert_ptr_equal(refused, &error);
  assert_non_null(strstr(error.text, "activations"));
  assert_non_null(strstr(error.text, "model.c:7"));
  assert_non_null(strstr(error.text, "12.0 MiB live"));
  request.bytes = (uint64_t)1 << 45;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, &error, &refused), -ENOMEM);
  assert_int_equal(stats_get(bed.cache).num_ooms, 2);
  char report[4096];
  size_t n = lade_cache_report(bed.cache, report, sizeof(report));
  assert_true(n > 200 && n < sizeof(report) && strlen(report) == n);
  assert_non_null(strstr(report, "live bytes by tag\n  activations                                    12.0 MiB\n"));
  assert_non_null(strstr(report, "live bytes by place\n  model.c:7                                      12.0 MiB\n"));
  assert_non_null(strstr(report, "the last refusal\n  model.c:7"));
  char cut[10];
  assert_int_equal(lade_cache_report(bed.cache, cut, sizeof(cut)), n);
  assert_int_equal(strlen(cut), 9);
  request.bytes = 2 * CHUNK;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &refused), 0);
  assert_true(stats_get(bed.cache).reserved_bytes.peak <= 8 * CHUNK);
  bed_close(&bed);
}

/* With free blocks of many sizes, one of which a search past the last list might find. */
static void no_request_is_too_large_to_be_refused(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 8 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  void *blocks[14], *refused = NULL;
  uint64_t n_refused = 0;
  for (int i = 0; i < 14; i++)
    blocks[i] = must_alloc(bed.cache, bed.queues[0], (uint64_t)512 << i);
  for (int i = 0; i < 14; i += 2)
    must_free(bed.cache, blocks[i]);
  for (int power = 30; power < 62; power++) {
    for (uint64_t eighths = 8; eighths < 16; eighths++, n_refused++)
      assert_int_equal(try_alloc(bed.cache, bed.queues[0], ((uint64_t)1 << power) / 8 * eighths, &refused), -ENOMEM);
  }
  assert_int_equal(stats_get(bed.cache).num_ooms, n_refused);
  bed_close(&bed);
}

static void requests_that_make_no_sense_are_refused(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  struct lade_cache_request request = {sizeof(request), 0, bed.queues[0], 0, NULL};
  void *address = NULL;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &address), -EINVAL);
  request.bytes = UINT64_MAX;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &address), -EINVAL);
  request.bytes = 1;
  request.tag = 3;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &address), -EINVAL);
  request.tag = 0;
  request.struct_size = 8;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &address), -EINVAL);
  void *block = must_alloc(bed.cache, bed.queues[0], 5000);
  assert_int_equal(lade_cache_free(bed.cache, (char *)block + 512, NULL, NULL), -EINVAL);
  assert_int_equal(lade_cache_free(bed.cache, &bed, NULL, NULL), -EINVAL);
  assert_int_equal(lade_cache_record(bed.cache, &bed, bed.queues[1]), -EINVAL);
  must_free(bed.cache, block);
  assert_int_equal(lade_cache_free(bed.cache, block, NULL, NULL), -EINVAL);
  assert_int_equal(lade_cache_free(bed.cache, NULL, NULL, NULL), 0);
  struct lade_cache_params params = {.struct_size = sizeof(params), .device = bed.device, .flags = 64};
  lade_cache *cache = NULL;
  assert_int_equal(lade_cache_create(&params, NULL, &cache), -EINVAL);
  params.flags = 0;
  params.device = NULL;
  assert_int_equal(lade_cache_create(&params, NULL, &cache), -EINVAL);
  bed_close(&bed);
}

static void the_ledger_sums_to_the_allocated_bytes(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  int tags[3], again = 0;
  const char *const names[] = {"parameters", "gradients", "optimizer state"};
  for (int i = 0; i < 3; i++)
    assert_int_equal(lade_cache_tag_add(bed.cache, names[i], &tags[i]), 0);
  assert_int_equal(lade_cache_tag_add(bed.cache, "gradients", &again), 0);
  assert_int_equal(again, tags[1]);
  void *blocks[9];
  for (int i = 0; i < 9; i++) {
    struct lade_cache_request request = {sizeof(request), (uint64_t)(i + 1) * 1000, bed.queues[0], i % 4, NULL};
    assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &blocks[i]), 0);
  }
  must_free(bed.cache, blocks[4]);
  uint64_t sum = 0;
  struct lade_cache_tag tag;
  for (int i = 0; lade_cache_get_tag(bed.cache, i, &tag) == 0; i++)
    sum += tag.bytes.current;
  assert_int_equal(sum, stats_get(bed.cache).allocated_bytes.current);
  assert_int_equal(lade_cache_tag_add(bed.cache, "", &again), -EINVAL);
  for (int i = 0; i < LADE_CACHE_MAX_TAGS - 4; i++) {
    char name[16];
    snprintf(name, sizeof(name), "tag %d", i);
    assert_int_equal(lade_cache_tag_add(bed.cache, name, &again), 0);
  }
  assert_int_equal(lade_cache_tag_add(bed.cache, "one too many", &again), -ENOSPC);
  bed_close(&bed);
}

static void trim_gives_idle_memory_back(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  void *kept = must_alloc(bed.cache, bed.queues[0], CHUNK);
  void *blocks[8];
  for (int i = 0; i < 8; i++)
    blocks[i] = must_alloc(bed.cache, bed.queues[0], CHUNK);
  for (int i = 0; i < 8; i++)
    must_free(bed.cache, blocks[i]);
  assert_int_equal(lade_cache_trim(bed.cache, 5 * CHUNK), 0);
  assert_int_equal(info_get(bed.device).created_bytes, 5 * CHUNK);
  cache_check(bed.cache);
  assert_int_equal(lade_cache_trim(bed.cache, 0), 0);
  assert_int_equal(info_get(bed.device).created_bytes, CHUNK);
  must_free(bed.cache, kept);
  bed_close(&bed);
}

static uint64_t spill_one(void *arg, uint64_t bytes)
{
  void **held = arg;
  struct bed *bed = held[0];
  if (!held[1])
    return 0;
  struct lade_error error = {0};
  struct lade_cache_request request = {sizeof(request), 512, NULL, 0, NULL};
  void *address = NULL;
  assert_int_equal(lade_cache_alloc(bed->cache, &request, &error, &address), -EDEADLK);
  must_free(bed->cache, held[1]);
  held[1] = NULL;
  return 1;
}

static void the_owner_is_asked_before_memory_is_out(void **state)
{
  void *held[2] = {NULL};
  const struct lade_cache_params params = {.limit_bytes = 4 * CHUNK, .spill = spill_one, .spill_arg = held};
  struct bed bed = bed_open(state, &params, NULL);
  held[0] = &bed;
  held[1] = must_alloc(bed.cache, bed.queues[0], 3 * CHUNK);
  void *block = must_alloc(bed.cache, bed.queues[1], 4 * CHUNK);
  assert_null(held[1]);
  void *refused = NULL;
  assert_int_equal(try_alloc(bed.cache, bed.queues[1], CHUNK, &refused), -ENOMEM);
  assert_int_equal(stats_get(bed.cache).n_spills, 2);
  must_free(bed.cache, block);
  bed_close(&bed);
}

static void a_private_pool_under_capture_makes_no_memory_call(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  lade_cache_pool *pool = NULL;
  assert_int_equal(lade_cache_pool_create(bed.cache, UINT64_MAX, &pool), -ENOMEM);
  assert_int_equal(lade_cache_pool_create(bed.cache, 4 * CHUNK, &pool), 0);
  assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], pool), 0);
  assert_int_equal(lade_cache_capture_end(bed.cache, pool), -EINVAL);
  assert_int_equal(lade_cache_capture_begin(bed.cache, pool), 0);
  assert_int_equal(lade_cache_capture_begin(bed.cache, pool), -EALREADY);
  struct lade_cache_stats before = stats_get(bed.cache);
  void *small = must_alloc(bed.cache, bed.queues[0], 700);
  void *large = must_alloc(bed.cache, bed.queues[0], 3 * CHUNK);
  void *refused = NULL;
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], 2 * CHUNK, &refused), -ENOMEM);
  assert_int_equal(lade_cache_record(bed.cache, small, bed.queues[1]), 0);
  must_free(bed.cache, small);
  must_free(bed.cache, large);
  assert_ptr_equal(must_alloc(bed.cache, bed.queues[0], 3 * CHUNK), large);
  struct lade_cache_stats after = stats_get(bed.cache);
  assert_int_equal(before.n_maps + before.n_unmaps + before.n_creates, after.n_maps + after.n_unmaps + after.n_creates);
  assert_int_equal(after.n_event_waits + after.n_host_waits, before.n_event_waits + before.n_host_waits);
  assert_int_equal(lade_cache_capture_end(bed.cache, pool), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), -EBUSY);
  assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), -EBUSY);
  must_free(bed.cache, large);
  /* An idle private pool's chunks are never taken by other queues. */
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], CAPACITY - 2 * CHUNK, &refused), -ENOMEM);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], CAPACITY - 2 * CHUNK, &refused), 0);
  bed_close(&bed);
}

/* The progress of a queue is not queried, though all queues are idle: a capture would record the query. */
static void a_capture_looks_at_no_queue(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 12 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_cache_pool *pool = NULL;
  void *refused = NULL;
  assert_int_equal(lade_cache_pool_create(bed.cache, 6 * CHUNK, &pool), 0);
  for (int i = 0; i < 2; i++)
    assert_int_equal(lade_cache_route(bed.cache, bed.queues[i], pool), 0);
  void *recorded = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK);
  void *first = must_alloc(bed.cache, bed.queues[0], 2 * CHUNK);
  void *second = must_alloc(bed.cache, bed.queues[1], 2 * CHUNK);
  assert_int_equal(lade_cache_record(bed.cache, recorded, bed.queues[2]), 0);
  assert_int_equal(lade_cache_capture_begin(bed.cache, pool), 0);
  must_free(bed.cache, recorded);
  must_free(bed.cache, first);
  must_free(bed.cache, second);
  for (int i = 0; i < 2; i++) /* the free blocks are of two queues */
    assert_int_equal(try_alloc(bed.cache, bed.queues[i], 4 * CHUNK, &refused), -ENOMEM);
  assert_int_equal(stats_get(bed.cache).active_bytes.current, 2 * CHUNK);
  /* Other queues climb the ladder to its end, and leave the pool alone. */
  assert_int_equal(try_alloc(bed.cache, bed.queues[2], 8 * CHUNK, &refused), -ENOMEM);
  assert_int_equal(stats_get(bed.cache).active_bytes.current, 2 * CHUNK);
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], 4 * CHUNK, &refused), -ENOMEM);
  assert_int_equal(lade_cache_capture_end(bed.cache, pool), 0);
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 6 * CHUNK));
  assert_int_equal(stats_get(bed.cache).active_bytes.current, 0);
  for (int i = 0; i < 2; i++)
    assert_int_equal(lade_cache_route(bed.cache, bed.queues[i], NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  bed_close(&bed);
}

static void a_trace_ring_keeps_the_newest(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  for (int i = 0; i < 300; i++)
    must_free(bed.cache, must_alloc(bed.cache, bed.queues[0], 512 * (uint64_t)(i + 1)));
  struct lade_cache_event events[300];
  assert_int_equal(lade_cache_get_trace(bed.cache, events, 300), 256);
  assert_int_equal(events[255].action, LADE_CACHE_FREE);
  assert_int_equal(events[254].action, LADE_CACHE_ALLOC);
  assert_int_equal(events[255].bytes, 512 * 300);
  assert_int_equal(events[0].bytes, 512 * 173);
  assert_int_equal(lade_cache_get_trace(bed.cache, events, 2), 2);
  assert_int_equal(events[1].bytes, 512 * 300);
  bed_close(&bed);
}

/* An entry is packed: the highest tag, the highest queue and the present time must be read back. */
static void a_trace_entry_holds_all_that_happened(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  lade_queue *queues[LADE_CACHE_MAX_QUEUES];
  int tag = 0, n = 0; /* queues: a device may have fewer */
  for (int i = 1; i < LADE_CACHE_MAX_TAGS; i++) {
    char name[8];
    snprintf(name, sizeof(name), "tag%d", i);
    assert_int_equal(lade_cache_tag_add(bed.cache, name, &tag), 0);
  }
  for (; n < LADE_CACHE_MAX_QUEUES && lade_queue_create(bed.device, LADE_QUEUE_SIGNAL, &queues[n]) == 0; n++)
    assert_int_equal(lade_cache_route(bed.cache, queues[n], NULL), 0);
  assert_true(n > 32);
  struct lade_cache_request request = {sizeof(request), 700, queues[n - 1], tag, "place"};
  int64_t from_us = (int64_t)time(NULL) * 1000000 - 1000000;
  void *block = NULL;
  assert_int_equal(lade_cache_alloc(bed.cache, &request, NULL, &block), 0);
  must_free(bed.cache, block);
  struct lade_cache_event events[2];
  assert_int_equal(lade_cache_get_trace(bed.cache, events, 2), 2);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(events[i].tag, LADE_CACHE_MAX_TAGS - 1);
    assert_int_equal(events[i].queue, n);
    assert_int_equal(events[i].bytes, 1024);
    assert_true(events[i].time_us >= from_us && events[i].time_us <= (int64_t)time(NULL) * 1000000 + 2000000);
  }
  assert_int_equal(events[0].action, LADE_CACHE_ALLOC);
  assert_string_equal(events[0].place, "place");
  for (int i = 0; i < n; i++) {
    lade_cache_forget(bed.cache, queues[i]);
    lade_queue_destroy(queues[i]);
  }
  bed_close(&bed);
}

/* Through descriptors, as in another process (tests/unit/alloc/test_cache_share.c has a real one). */
static void shared_blocks_are_the_same_memory(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  const struct lade_cache_params params = {.struct_size = sizeof(params), .device = bed.device};
  const uint64_t bytes = 2 * CHUNK + 12345;
  struct lade_cache_share share = {.struct_size = sizeof(share)};
  unsigned char *own = malloc(bytes);
  lade_cache_pool *pool = NULL;
  lade_cache *taker = NULL;
  void *at = NULL;
  int descriptors[3];
  int code = lade_cache_pool_create_shared(bed.cache, 3 * CHUNK, &pool);
  if (code == -ENOTSUP) {
    free(own);
    bed_close(&bed);
    skip();
  }
  assert_int_equal(code, 0);
  assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], pool), 0);
  void *block = must_alloc(bed.cache, bed.queues[0], bytes);
  memset(own, 3, bytes);
  memory_write(bed.device, (uint64_t)(uintptr_t)block, own, bytes);
  assert_int_equal(lade_cache_share_get(bed.cache, block, &share, descriptors, 3), 0);
  assert_int_equal(share.n_chunks, 3);
  assert_int_equal(lade_cache_create(&params, NULL, &taker), 0);
  const int stranger[] = {descriptors[0], STDIN_FILENO, descriptors[2]};
  assert_int_equal(lade_cache_share_open(taker, &share, stranger, &at), -EINVAL);
  assert_int_equal(lade_cache_share_open(taker, &share, descriptors, &at), 0);
  for (int i = 0; i < 3; i++)
    close(descriptors[i]);
  memset(own, 0, bytes);
  memory_read(bed.device, own, (uint64_t)(uintptr_t)at, bytes);
  for (uint64_t i = 0; i < bytes; i++)
    assert_int_equal(own[i], 3);
  memset(own, 4, bytes);
  memory_write(bed.device, (uint64_t)(uintptr_t)at, own, bytes);
  assert_int_equal(lade_cache_share_close(taker, at), 0);
  lade_cache_destroy(taker);
  memory_read(bed.device, own, (uint64_t)(uintptr_t)block, bytes);
  assert_int_equal(own[bytes - 1], 4);
  must_free(bed.cache, block);
  assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), 0);
  free(own);
  bed_close(&bed);
}

static void forgotten_queues_make_room_for_new_ones(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  void *kept = must_alloc(bed.cache, bed.queues[0], 3 * CHUNK);
  for (int i = 0; i < 2 * LADE_CACHE_MAX_QUEUES; i++) {
    lade_queue *queue = queue_open(bed.device, LADE_QUEUE_SIGNAL);
    assert_int_equal(lade_cache_record(bed.cache, kept, queue), 0);
    must_free(bed.cache, must_alloc(bed.cache, queue, 9000));
    lade_cache_forget(bed.cache, queue);
    lade_queue_destroy(queue);
  }
  lade_cache_forget(bed.cache, bed.queues[0]);
  must_free(bed.cache, kept);
  assert_int_equal(stats_get(bed.cache).active_bytes.current, 0);
  bed_close(&bed);
}

/* Random calls over all queues, with a recount after each hundred. */
static void random_calls_leave_everything_accounted_for(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 40 * MIB};
  struct bed bed = bed_open(state, &params, NULL);
  void *blocks[200] = {NULL};
  uint32_t random = 1;
  for (int i = 0; i < 20000; i++) {
    random = random * 1664525 + 1013904223;
    int k = (int)(random >> 8) % 200;
    lade_queue *queue = (random >> 16) % 4 ? bed.queues[(random >> 16) % 4 - 1] : NULL;
    uint64_t bytes = (uint64_t)1 << ((random >> 20) % 12 + 9);
    bytes += random % bytes;
    if (blocks[k]) {
      if (queue && random % 3 == 0)
        assert_int_equal(lade_cache_record(bed.cache, blocks[k], queue), 0);
      must_free(bed.cache, blocks[k]);
      blocks[k] = NULL;
    } else if (try_alloc(bed.cache, queue, bytes, &blocks[k])) {
      blocks[k] = NULL;
    }
    if (i % 100 == 0)
      cache_check(bed.cache);
  }
  for (int k = 0; k < 200; k++)
    must_free(bed.cache, blocks[k]);
  assert_int_equal(stats_get(bed.cache).allocated_bytes.current, 0);
  bed_close(&bed);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_are_aligned_and_apart),
      cmocka_unit_test(written_bytes_are_read_back),
      cmocka_unit_test(a_freed_block_is_at_once_free_for_its_queue),
      cmocka_unit_test(free_memory_is_not_stranded_by_size),
      cmocka_unit_test(the_limit_is_hard_and_the_refusal_says_why),
      cmocka_unit_test(no_request_is_too_large_to_be_refused),
      cmocka_unit_test(requests_that_make_no_sense_are_refused),
      cmocka_unit_test(the_ledger_sums_to_the_allocated_bytes),
      cmocka_unit_test(trim_gives_idle_memory_back),
      cmocka_unit_test(the_owner_is_asked_before_memory_is_out),
      cmocka_unit_test(a_private_pool_under_capture_makes_no_memory_call),
      cmocka_unit_test(a_capture_looks_at_no_queue),
      cmocka_unit_test(a_trace_ring_keeps_the_newest),
      cmocka_unit_test(a_trace_entry_holds_all_that_happened),
      cmocka_unit_test(shared_blocks_are_the_same_memory),
      cmocka_unit_test(forgotten_queues_make_room_for_new_ones),
      cmocka_unit_test(random_calls_leave_everything_accounted_for),
  };
  return target_run(argc, argv, tests, LADE_COUNT(tests));
}
