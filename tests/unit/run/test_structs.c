/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise of lade/types.h about struct_size, for the public calls that take one. A program may be compiled against
 * other headers than its library's. Its struct is then shorter, with any bytes after it, or longer, with zeros or
 * fields unknown to the library. A struct that the library fills may not be written past its end. Calls that need a
 * trainer are tested in test_train.c.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/adam.h"
#include "lade/cache.h"
#include "lade/device.h"
#include "lade/pack.h"
#include "lade/plan.h"
#include "lade/shard.h"
#include "lade/store.h"
#include "lade/train.h"
#include "tests/support/scratch.h"

#define TAIL_BYTES 64
#define MAX_BYTES 1024
#define CHUNK ((uint64_t)2 << 20)

/* Objects that calls need in addition to the struct. */
struct bench {
  lade_device *device;
  lade_queue *queue;
  lade_cache *cache;
  lade_cache_pool *pool;
  void *shared; /* a block that can be shared */
  int descriptor;
  lade_tensor_store *store;
  lade_ranks *ranks;
  lade_shard *shard;
};

/* Call with the struct at @given, undo the effects, and return the code. */
typedef int call_fn(struct bench *bench, void *given);

/* ---- structs that are read ---- */

static void size_set(void *given, size_t bytes)
{
  memcpy(given, &bytes, sizeof(bytes));
}

/* Check a struct that is read: @valid has only zeros from @known_bytes on. */
static void read_as_promised(struct bench *bench, call_fn *call, const void *valid, size_t bytes, size_t known_bytes)
{
  _Alignas(16) char given[MAX_BYTES] = {0};
  assert_true(bytes + TAIL_BYTES <= sizeof(given));
  memcpy(given, valid, bytes);
  size_set(given, bytes);
  assert_int_equal(call(bench, given), 0);
  size_set(given, bytes + TAIL_BYTES); /* newer headers, whose new fields are zero */
  assert_int_equal(call(bench, given), 0);
  given[bytes + TAIL_BYTES - 1] = 1;
  assert_int_equal(call(bench, given), -EINVAL);
  memset(given + known_bytes, 0x7f, sizeof(given) - known_bytes); /* older headers: other data is after the struct */
  size_set(given, known_bytes);
  assert_int_equal(call(bench, given), 0);
  size_set(given, 0);
  assert_int_equal(call(bench, given), -EINVAL);
  size_set(given, SIZE_MAX);
  assert_int_equal(call(bench, given), -EINVAL);
}

#define READ_AS_PROMISED(bench, call, valid, last_member)                                                           \
  read_as_promised(bench, call, &(valid), sizeof(valid),                                                            \
                   (size_t)((char *)&(valid).last_member - (char *)&(valid)) + sizeof((valid).last_member))

/* ---- structs that are filled ---- */

/* Check a struct that is filled. @data_bytes: without the padding at its end, which may hold any bytes. */
static void filled_as_promised(struct bench *bench, call_fn *call, size_t bytes, size_t data_bytes)
{
  _Alignas(16) char whole[MAX_BYTES], given[MAX_BYTES];
  const size_t older_bytes = bytes - sizeof(uint64_t); /* padding at a struct's end is no longer than that */
  assert_true(bytes + TAIL_BYTES <= sizeof(given));
  memset(whole, 0xa5, sizeof(whole));
  size_set(whole, bytes);
  assert_int_equal(call(bench, whole), 0);
  memset(given, 0xa5, sizeof(given));
  size_set(given, older_bytes);
  assert_int_equal(call(bench, given), 0);
  assert_memory_equal(given + sizeof(size_t), whole + sizeof(size_t), older_bytes - sizeof(size_t));
  for (size_t i = older_bytes; i < sizeof(given); i++)
    assert_int_equal((unsigned char)given[i], 0xa5);
  memset(given, 0xa5, sizeof(given));
  size_set(given, bytes + TAIL_BYTES);
  assert_int_equal(call(bench, given), 0);
  assert_memory_equal(given + sizeof(size_t), whole + sizeof(size_t), data_bytes - sizeof(size_t));
  for (size_t i = bytes; i < bytes + TAIL_BYTES; i++)
    assert_int_equal(given[i], 0);
  assert_int_equal((unsigned char)given[bytes + TAIL_BYTES], 0xa5);
  size_set(given, 0);
  assert_int_equal(call(bench, given), -EINVAL);
}

/* ---- the calls ---- */

static int call_device_open(struct bench *bench, void *given)
{
  lade_device *device = NULL;
  int status = lade_device_open(given, NULL, &device);
  lade_device_close(device);
  return status;
}

static int call_cache_create(struct bench *bench, void *given)
{
  lade_cache *cache = NULL;
  int status = lade_cache_create(given, NULL, &cache);
  lade_cache_destroy(cache);
  return status;
}

static int call_cache_alloc(struct bench *bench, void *given)
{
  void *block = NULL;
  int status = lade_cache_alloc(bench->cache, given, NULL, &block);
  lade_cache_free(bench->cache, block, NULL, NULL);
  return status;
}

static int call_cache_stats(struct bench *bench, void *given)
{
  return lade_cache_get_stats(bench->cache, given);
}

static int call_share_get(struct bench *bench, void *given)
{
  return lade_cache_share_get(bench->cache, bench->shared, given, NULL, 0);
}

static int call_share_open(struct bench *bench, void *given)
{
  void *address = NULL;
  int status = lade_cache_share_open(bench->cache, given, &bench->descriptor, &address);
  if (!status)
    assert_int_equal(lade_cache_share_close(bench->cache, address), 0);
  return status;
}

static int call_pack(struct bench *bench, void *given)
{
  const struct lade_pack_item item = {.lower = 0, .upper = 1, .bytes = 1, .fixed = -1};
  struct lade_pack_result result;
  uint64_t offset = 0;
  return lade_pack(&item, 1, given, &offset, &result, NULL);
}

static int call_adam_shard(struct bench *bench, void *given)
{
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  return lade_adam_get_bytes(given, &bytes, NULL);
}

static int call_adam_bytes(struct bench *bench, void *given)
{
  const struct lade_adam_shard shard = {.struct_size = sizeof(shard), .n_elements = 1};
  return lade_adam_get_bytes(&shard, given, NULL);
}

static int call_adam_step(struct bench *bench, void *given)
{
  float grad = 1, weight = 1, m = 0, v = 0;
  const struct lade_adam_shard shard = {.struct_size = sizeof(shard), .n_elements = 1, .grad = &grad, .weight = &weight,
                                        .m = &m, .v = &v};
  lade_adam *adam = NULL;
  assert_int_equal(lade_adam_create(1, NULL, &adam), 0);
  int status = lade_adam_update(adam, &shard, given, NULL);
  lade_adam_destroy(adam);
  return status;
}

static int call_store_open(struct bench *bench, void *given)
{
  lade_tensor_store *store = NULL;
  int status = lade_tensor_store_open(given, NULL, &store);
  lade_tensor_store_close(store);
  return status;
}

static int call_store_info(struct bench *bench, void *given)
{
  return lade_tensor_store_get_info(bench->store, given);
}

static int call_ranks_open(struct bench *bench, void *given)
{
  lade_ranks *ranks = NULL;
  int status = lade_ranks_open(given, NULL, &ranks);
  lade_ranks_close(ranks);
  return status;
}

static int call_ranks_info(struct bench *bench, void *given)
{
  return lade_ranks_get_info(bench->ranks, given, NULL);
}

static int call_shard_info(struct bench *bench, void *given)
{
  return lade_shard_get_info(bench->shard, given, NULL);
}

static int call_shard_block(struct bench *bench, void *given)
{
  return lade_shard_get_block(bench->shard, 0, given, NULL);
}

static int call_run_init(struct bench *bench, void *given)
{
  size_t bytes;
  memcpy(&bytes, given, sizeof(bytes));
  if (bytes)
    lade_run_params_init(given, bytes);
  return bytes ? 0 : -EINVAL;
}

static int call_trainer_init(struct bench *bench, void *given)
{
  size_t bytes;
  memcpy(&bytes, given, sizeof(bytes));
  if (bytes)
    lade_trainer_params_init(given, bytes);
  return bytes ? 0 : -EINVAL;
}

/* ---- tests ---- */

static void bench_open(struct bench *bench)
{
  struct lade_device_params device = {sizeof(device), "host", 16 * CHUNK};
  struct lade_cache_params params = {.struct_size = sizeof(params)};
  *bench = (struct bench){.descriptor = -1};
  assert_int_equal(lade_device_open(&device, NULL, &bench->device), 0);
  assert_int_equal(lade_queue_create(bench->device, LADE_QUEUE_COMPUTE, &bench->queue), 0);
  params.device = bench->device;
  assert_int_equal(lade_cache_create(&params, NULL, &bench->cache), 0);
  assert_int_equal(lade_cache_pool_create_shared(bench->cache, CHUNK, &bench->pool), 0);
  assert_int_equal(lade_cache_route(bench->cache, bench->queue, bench->pool), 0);
  const struct lade_cache_request request = {.struct_size = sizeof(request), .bytes = 4096, .queue = bench->queue};
  assert_int_equal(lade_cache_alloc(bench->cache, &request, NULL, &bench->shared), 0);
}

static void bench_close(struct bench *bench)
{
  assert_int_equal(lade_cache_free(bench->cache, bench->shared, NULL, NULL), 0);
  assert_int_equal(lade_cache_route(bench->cache, bench->queue, NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(bench->cache, bench->pool), 0);
  lade_cache_destroy(bench->cache);
  lade_queue_destroy(bench->queue);
  lade_device_close(bench->device);
}

static void the_allocators_structs(void **state)
{
  struct bench bench;
  bench_open(&bench);
  struct lade_device_params device = {.name = "host"};
  struct lade_cache_params cache = {.device = bench.device};
  struct lade_cache_request request = {.bytes = 512};
  struct lade_pack_params pack = {.work_limit = 1000};
  READ_AS_PROMISED(&bench, call_device_open, device, name);
  READ_AS_PROMISED(&bench, call_cache_create, cache, device);
  READ_AS_PROMISED(&bench, call_cache_alloc, request, bytes);
  READ_AS_PROMISED(&bench, call_pack, pack, work_limit);
  filled_as_promised(&bench, call_cache_stats, sizeof(struct lade_cache_stats), sizeof(struct lade_cache_stats));
  filled_as_promised(&bench, call_share_get, sizeof(struct lade_cache_share),
                     offsetof(struct lade_cache_share, n_chunks) + sizeof(int));
  struct lade_cache_share share = {.struct_size = sizeof(share)};
  assert_int_equal(lade_cache_share_get(bench.cache, bench.shared, &share, &bench.descriptor, 1), 0);
  READ_AS_PROMISED(&bench, call_share_open, share, n_chunks);
  close(bench.descriptor);
  bench_close(&bench);
}

static void the_optimizers_structs(void **state)
{
  struct lade_adam_shard shard = {.dtype = LADE_F32, .n_elements = 1};
  struct lade_adam_step step = {.lr = 0.1, .eps = 1e-8};
  READ_AS_PROMISED(NULL, call_adam_shard, shard, n_elements);
  READ_AS_PROMISED(NULL, call_adam_step, step, eps);
  filled_as_promised(NULL, call_adam_bytes, sizeof(struct lade_adam_bytes), sizeof(struct lade_adam_bytes));
}

static void the_stores_structs(void **state)
{
  struct bench bench = {0};
  struct lade_tensor_store_params store = {
      .struct_size = sizeof(store), .dirs = scratch, .budget_bytes = 65536, .allow_tmpfs = true,
      .allow_buffered = true};
  READ_AS_PROMISED(&bench, call_store_open, store, allow_buffered);
  assert_int_equal(lade_tensor_store_open(&store, NULL, &bench.store), 0);
  filled_as_promised(&bench, call_store_info, sizeof(struct lade_tensor_store_info),
                     sizeof(struct lade_tensor_store_info));
  lade_tensor_store_close(bench.store);
}

static void the_shards_structs(void **state)
{
  struct bench bench = {0};
  struct lade_ranks_params ranks = {.struct_size = sizeof(ranks), .n_threads = 1};
  READ_AS_PROMISED(&bench, call_ranks_open, ranks, n_threads);
  assert_int_equal(lade_ranks_open(&ranks, NULL, &bench.ranks), 0);
  assert_int_equal(lade_shard_create(bench.ranks, 1000, NULL, &bench.shard), 0);
  filled_as_promised(&bench, call_ranks_info, sizeof(struct lade_ranks_info),
                     offsetof(struct lade_ranks_info, local_rank) + sizeof(int));
  filled_as_promised(&bench, call_shard_info, sizeof(struct lade_shard_info), sizeof(struct lade_shard_info));
  filled_as_promised(&bench, call_shard_block, sizeof(struct lade_shard_block), sizeof(struct lade_shard_block));
  lade_shard_destroy(bench.shard);
  lade_ranks_close(bench.ranks);
}

static void the_trainers_defaults(void **state)
{
  filled_as_promised(NULL, call_run_init, sizeof(struct lade_run_params), sizeof(struct lade_run_params));
  filled_as_promised(NULL, call_trainer_init, sizeof(struct lade_trainer_params), sizeof(struct lade_trainer_params));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_allocators_structs),
      cmocka_unit_test(the_optimizers_structs),
      cmocka_unit_test_setup_teardown(the_stores_structs, scratch_setup, scratch_teardown),
      cmocka_unit_test(the_shards_structs),
      cmocka_unit_test(the_trainers_defaults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
