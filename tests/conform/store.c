/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store contract, over the engine named on the command line. Runs in the current directory's file
 * system, which must have O_DIRECT; else, or where the engine is refused, it skips.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "offload/store.h"

#define MIB (1u << 20)

static enum lade_store_engine engine = LADE_STORE_POSIX;

static struct lade_store_params params_of(struct lade_faults *faults)
{
  return (struct lade_store_params){
      .struct_size = sizeof(struct lade_store_params),
      .dir = ".",
      .capacity_bytes = 64 * MIB,
      .engine = engine,
      .depth = 4,
      .piece_bytes = 256 << 10,
      .faults = faults,
  };
}

/* A prepared store with one extent of @bytes. */
static lade_store *store_make(struct lade_faults *faults, uint64_t bytes, struct lade_extent *ret_extent)
{
  struct lade_store_params params = params_of(faults);
  struct lade_error error = {0};
  lade_store *store = NULL;
  if (lade_store_open(&params, &error, &store))
    fail_msg("%s", error.text);
  assert_int_equal(lade_store_reserve(store, bytes, ret_extent), 0);
  if (lade_store_prepare(store, &error))
    fail_msg("%s", error.text);
  return store;
}

static void *data_make(uint64_t bytes)
{
  void *data = NULL;
  assert_int_equal(posix_memalign(&data, LADE_STORE_BLOCK_BYTES, lade_align_up(bytes, LADE_STORE_BLOCK_BYTES)), 0);
  return data;
}

/* Different for every seed and place, and repeatable. */
static void data_fill(void *data, uint64_t bytes, uint64_t seed)
{
  unsigned char *at = data;
  uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
  for (uint64_t i = 0; i < bytes; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    at[i] = (unsigned char)(x >> 32);
  }
}

static struct lade_transfer transfer_of(enum lade_store_op op, struct lade_extent extent, void *data, uint64_t generation)
{
  return (struct lade_transfer){
      .op = op,
      .extent = extent,
      .bytes = extent.bytes,
      .data = data,
      .identity = {.tensor = 7, .microbatch = 2, .generation = generation},
  };
}

static int transfer_run(lade_store *store, struct lade_transfer *transfer, struct lade_error *error)
{
  int code = lade_store_submit(store, transfer);
  return code ? code : lade_store_wait(store, transfer, error);
}

static void what_is_written_is_read_back(void **state)
{
  const uint64_t sizes[] = {1, 4095, 4096, 65536, 65537, 262144, 262145, 3 * MIB + 12345};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    struct lade_extent extent;
    struct lade_error error = {0};
    lade_store *store = store_make(NULL, sizes[i], &extent);
    char *data = data_make(sizes[i]), *back = data_make(sizes[i]);
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 1);
    data_fill(data, sizes[i], i);
    assert_int_equal(transfer_run(store, &write, &error), 0);
    assert_int_equal(transfer_run(store, &read, &error), 0);
    assert_memory_equal(data, back, sizes[i]);
    lade_store_close(store);
    free(data);
    free(back);
  }
}

/* 77 with the reason when this machine cannot run the suite. */
static int suite_skip(void)
{
  struct lade_store_params params = params_of(NULL);
  struct lade_error error = {0};
  lade_store *store = NULL;
  int code = lade_store_open(&params, &error, &store);
  lade_store_close(store);
  if (!code)
    return 0;
  printf("skipped: %s\n", error.text);
  return 77;
}

int main(int argc, char **argv)
{
  engine = argc > 1 && !strcmp(argv[1], "uring") ? LADE_STORE_URING : LADE_STORE_POSIX;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_written_is_read_back),
  };
  int skip = suite_skip();
  return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
