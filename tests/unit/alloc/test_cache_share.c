/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory shared by two processes. Bytes that one writes the other reads. The memory outlives its giver. No ordinary
 * block ever lies in it. Descriptors of another process are mapped only if they are whole. Refused calls lose nothing.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conform/cache_target.h"

enum { MAX_CHUNKS = 8 };

struct parcel {
  struct lade_cache_share share;
  int descriptors[MAX_CHUNKS];
};

static unsigned char *shared_alloc(struct bed *bed, lade_cache_pool **ret_pool, uint64_t bytes)
{
  assert_int_equal(lade_cache_pool_create_shared(bed->cache, 5 * CHUNK, ret_pool), 0);
  assert_int_equal(lade_cache_route(bed->cache, bed->queues[0], *ret_pool), 0);
  return must_alloc(bed->cache, bed->queues[0], bytes);
}

static void shared_free(struct bed *bed, lade_cache_pool *pool, void *block)
{
  must_free(bed->cache, block);
  assert_int_equal(lade_cache_route(bed->cache, bed->queues[0], NULL), 0);
  assert_int_equal(lade_cache_pool_destroy(bed->cache, pool), 0);
}

static void parcel_close(const struct parcel *parcel)
{
  for (int i = 0; i < parcel->share.n_chunks; i++)
    close(parcel->descriptors[i]);
}

static void fill(unsigned char *at, uint64_t bytes, int seed)
{
  for (uint64_t i = 0; i < bytes; i++)
    at[i] = (unsigned char)((int)(i * 7 / 3) + seed);
}

static bool is_filled(const unsigned char *at, uint64_t bytes, int seed)
{
  for (uint64_t i = 0; i < bytes; i++)
    if (at[i] != (unsigned char)((int)(i * 7 / 3) + seed))
      return false;
  return true;
}

/* ---- two processes ---- */

static bool byte_send(int socket)
{
  return write(socket, "x", 1) == 1;
}

static bool byte_wait(int socket)
{
  char byte;
  return read(socket, &byte, 1) == 1;
}

/* Run the taker in the other process, with a device and a cache of its own. Return the number of the failed check. */
static int taker_run(const struct parcel *parcel, int socket)
{
  struct lade_device_params device = {sizeof(device), "host", CAPACITY};
  struct lade_cache_params params = {.struct_size = sizeof(params)};
  struct lade_device_info info;
  lade_cache *cache = NULL;
  void *at = NULL;
  if (lade_device_open(&device, NULL, &params.device) || lade_cache_create(&params, NULL, &cache))
    return 1;
  if (lade_cache_share_open(cache, &parcel->share, parcel->descriptors, &at))
    return 2;
  parcel_close(parcel);
  uint64_t bytes = parcel->share.bytes;
  if (!is_filled(at, bytes, 1))
    return 3;
  fill(at, bytes, 2);
  if (!byte_send(socket) || !byte_wait(socket))
    return 4;
  if (!is_filled(at, bytes, 3)) /* the giver has ended meanwhile, its memory stays */
    return 5;
  lade_device_get_info(params.device, &info);
  if (info.created_bytes || lade_cache_free(cache, at, NULL, NULL) != -EINVAL)
    return 6;
  if (lade_cache_share_close(cache, at) || lade_cache_share_close(cache, at) != -EINVAL)
    return 7;
  lade_cache_destroy(cache);
  lade_device_close(params.device);
  return 0;
}

static pid_t taker_start(const struct parcel *parcel, int *ret_socket)
{
  int sockets[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0)
    _exit(taker_run(parcel, sockets[1]));
  close(sockets[1]);
  parcel_close(parcel);
  *ret_socket = sockets[0];
  return child;
}

static void taker_end(pid_t child, int socket)
{
  int status = 0;
  assert_true(byte_send(socket));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  close(socket);
}

/* The sanitizer writes its pattern into freed blocks, so with it the taker finishes first. */
static void memory_is_passed(void **state, uint32_t flags)
{
  const struct lade_cache_params params = {.flags = flags};
  const uint64_t bytes = 2 * CHUNK + 12345;
  struct bed bed = bed_open(state, &params, NULL);
  lade_cache_pool *pool = NULL;
  struct parcel parcel = {.share.struct_size = sizeof(parcel.share)};
  int socket = -1;
  unsigned char *block = shared_alloc(&bed, &pool, bytes);
  assert_int_equal(lade_cache_share_get(bed.cache, block, &parcel.share, parcel.descriptors, MAX_CHUNKS), 0);
  assert_int_equal(parcel.share.bytes, bytes);
  fill(block, bytes, 1);
  pid_t child = taker_start(&parcel, &socket);
  assert_true(byte_wait(socket));
  assert_true(is_filled(block, bytes, 2));
  fill(block, bytes, 3);
  if (flags & LADE_CACHE_SANITIZE)
    taker_end(child, socket);
  shared_free(&bed, pool, block);
  bed_close(&bed);
  if (!(flags & LADE_CACHE_SANITIZE))
    taker_end(child, socket);
}

static void another_process_has_the_same_memory(void **state)
{
  memory_is_passed(state, 0);
  memory_is_passed(state, LADE_CACHE_SANITIZE);
}

/* ---- one process ---- */

static void shared_chunks_never_become_common(void **state)
{
  const struct lade_cache_params params = {.limit_bytes = 8 * CHUNK};
  struct bed bed = bed_open(state, &params, NULL);
  lade_cache_pool *pool = NULL;
  struct lade_cache_share share = {.struct_size = sizeof(share)};
  must_free(bed.cache, must_alloc(bed.cache, bed.queues[1], 8 * CHUNK)); /* idle chunks make space */
  void *block = shared_alloc(&bed, &pool, 4 * CHUNK), *refused = NULL;
  assert_int_equal(info_get(bed.device).created_bytes, 8 * CHUNK);
  void *common = must_alloc(bed.cache, bed.queues[1], 3 * CHUNK);
  assert_int_equal(lade_cache_share_get(bed.cache, common, &share, NULL, 0), -EINVAL);
  assert_int_equal(lade_cache_share_get(bed.cache, &bed, &share, NULL, 0), -EINVAL);
  assert_int_equal(try_alloc(bed.cache, bed.queues[1], CHUNK, &refused), -ENOMEM);
  assert_int_equal(try_alloc(bed.cache, bed.queues[0], 2 * CHUNK, &refused), -ENOMEM); /* nor past the limit */
  assert_int_equal(info_get(bed.device).created_bytes, 8 * CHUNK);
  assert_int_equal(lade_cache_pool_destroy(bed.cache, pool), -EBUSY);
  shared_free(&bed, pool, block);
  assert_int_equal(info_get(bed.device).created_bytes, 3 * CHUNK); /* released, not kept for other requests */
  must_free(bed.cache, common);
  bed_close(&bed);
}

static void a_description_that_is_not_whole_is_refused(void **state)
{
  struct bed bed = bed_open(state, NULL, NULL);
  lade_cache_pool *pool = NULL;
  struct parcel parcel = {.share.struct_size = sizeof(parcel.share)};
  void *block = shared_alloc(&bed, &pool, 3 * CHUNK), *at = &bed;
  assert_int_equal(lade_cache_share_get(bed.cache, block, &parcel.share, parcel.descriptors, 1), -ENOSPC);
  assert_int_equal(lade_cache_share_get(bed.cache, block, &parcel.share, parcel.descriptors, MAX_CHUNKS), 0);
  struct lade_cache_share bad[10];
  for (size_t i = 0; i < LADE_COUNT(bad); i++)
    bad[i] = parcel.share;
  bad[0].struct_size = 8;
  bad[1].n_chunks = 0;
  bad[2].n_chunks = 1 << 30;
  bad[3].chunk_bytes = 4096;
  bad[4].chunk_bytes = (uint64_t)1 << 63;
  bad[5].offset = bad[5].chunk_bytes;
  bad[6].bytes = 0;
  bad[7].bytes = UINT64_MAX;
  bad[8].bytes += parcel.share.chunk_bytes;
  bad[9].chunk_bytes *= 2; /* the descriptors' files are shorter */
  for (size_t i = 0; i < LADE_COUNT(bad); i++)
    assert_int_equal(lade_cache_share_open(bed.cache, &bad[i], parcel.descriptors, &at), -EINVAL);
  int loose = memfd_create("loose", MFD_ALLOW_SEALING), good = parcel.descriptors[1];
  assert_true(loose >= 0);
  assert_int_equal(ftruncate(loose, CHUNK), 0); /* right in size, but its owner could shrink it */
  const int wrong[] = {loose, STDIN_FILENO, -1};
  for (size_t i = 0; i < LADE_COUNT(wrong); i++) {
    parcel.descriptors[1] = wrong[i];
    assert_int_equal(lade_cache_share_open(bed.cache, &parcel.share, parcel.descriptors, &at), -EINVAL);
  }
  parcel.descriptors[1] = good;
  assert_ptr_equal(at, &bed);
  assert_int_equal(ftruncate(good, 0), -1);
  assert_int_equal(lade_cache_share_open(bed.cache, &parcel.share, parcel.descriptors, &at), 0);
  memset(at, 5, 3 * CHUNK);
  assert_int_equal(((unsigned char *)block)[3 * CHUNK - 1], 5);
  close(loose);
  parcel_close(&parcel);
  shared_free(&bed, pool, block);
  bed_close(&bed); /* descriptors that are still open are closed */
}

static void a_device_without_shared_memory_is_refused(void **state)
{
  struct lade_device_params device = {sizeof(device), "dry", CAPACITY};
  struct lade_cache_params params = {.struct_size = sizeof(params)};
  lade_cache_pool *pool = NULL;
  lade_cache *cache = NULL;
  assert_int_equal(lade_device_open(&device, NULL, &params.device), 0);
  assert_int_equal(lade_cache_create(&params, NULL, &cache), 0);
  assert_int_equal(lade_cache_pool_create_shared(cache, CHUNK, &pool), -ENOTSUP);
  lade_cache_destroy(cache);
  lade_device_close(params.device);
}

static void refused_calls_lose_nothing(void **state)
{
  static const enum lade_fault_point points[] = {LADE_FAULT_RESERVE, LADE_FAULT_CHUNK_CREATE, LADE_FAULT_MAP,
                                                 LADE_FAULT_UNMAP, LADE_FAULT_HEAP};
  for (size_t p = 0; p < LADE_COUNT(points); p++) {
    bool is_hit = true;
    for (uint64_t nth = 1; is_hit; nth++) {
      struct lade_faults faults;
      lade_faults_init(&faults);
      struct bed bed = bed_open(state, NULL, &faults);
      lade_cache_pool *pool = NULL;
      struct parcel parcel = {.share.struct_size = sizeof(parcel.share)};
      void *block = NULL, *at = NULL;
      lade_faults_arm(&faults, points[p], nth, false, -ENOMEM);
      if (lade_cache_pool_create_shared(bed.cache, 3 * CHUNK, &pool) == 0) {
        assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], pool), 0);
        if (try_alloc(bed.cache, bed.queues[0], 4 * CHUNK, &block) == 0 && /* the file grows */
            lade_cache_share_get(bed.cache, block, &parcel.share, parcel.descriptors, MAX_CHUNKS) == 0) {
          int code = lade_cache_share_open(bed.cache, &parcel.share, parcel.descriptors, &at);
          assert_true(code == 0 || code == -ENOMEM);
          assert_true(code || lade_cache_share_close(bed.cache, at) == 0);
          parcel_close(&parcel);
        }
        must_free(bed.cache, block);
        assert_int_equal(lade_cache_route(bed.cache, bed.queues[0], NULL), 0);
        int code = lade_cache_pool_destroy(bed.cache, pool);
        cache_check(bed.cache);
        lade_faults_arm(&faults, points[p], 0, false, -ENOMEM);
        assert_true(code == 0 || lade_cache_pool_destroy(bed.cache, pool) == 0);
      }
      is_hit = lade_faults_injected(&faults) > 0;
      lade_faults_arm(&faults, points[p], 0, false, -ENOMEM);
      assert_int_equal(info_get(bed.device).created_bytes, 0);
      bed_close(&bed);
    }
  }
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(another_process_has_the_same_memory),
      cmocka_unit_test(shared_chunks_never_become_common),
      cmocka_unit_test(a_description_that_is_not_whole_is_refused),
      cmocka_unit_test(a_device_without_shared_memory_is_refused),
      cmocka_unit_test(refused_calls_lose_nothing),
  };
  return target_run(1, argv, tests, LADE_COUNT(tests));
}
