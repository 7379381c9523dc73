/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the suites over the store: making stores, data and transfers. */
#ifndef LADE_TEST_STORE_FIXTURE_H
#define LADE_TEST_STORE_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "offload/store.h"

#define MIB (1u << 20)
#define PIECE_BYTES (256u << 10)

static enum lade_store_engine engine;
static bool has_two_drives;
static const char *fixture_dirs = "."; /* of the store: one, or two with a comma */

/* Return parameters with small pieces and few slots, so that small data is cut and waits. */
static inline struct lade_store_params params_of(struct lade_faults *faults)
{
  return (struct lade_store_params){
      .struct_size = sizeof(struct lade_store_params),
      .dir = fixture_dirs,
      .capacity_bytes = 64 * MIB,
      .engine = engine,
      .depth = 4,
      .piece_bytes = PIECE_BYTES,
      .faults = faults,
  };
}

/* Make a prepared store with one extent of @bytes. */
static inline lade_store *store_make(struct lade_faults *faults, uint64_t bytes, struct lade_extent *ret_extent)
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

static inline void *data_make(uint64_t bytes)
{
  void *data = NULL;
  assert_int_equal(posix_memalign(&data, LADE_STORE_BLOCK_BYTES, lade_align_up(bytes, LADE_STORE_BLOCK_BYTES)), 0);
  return data;
}

/* Return the next number of a xorshift generator: repeatable, and different at every seed and place. */
static inline uint64_t random_next(uint64_t *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static inline void data_fill(void *data, uint64_t bytes, uint64_t seed)
{
  unsigned char *at = data;
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (uint64_t i = 0; i < bytes; i++)
    at[i] = (unsigned char)(random_next(&state) >> 32);
}

static inline struct lade_transfer transfer_of(enum lade_store_op op, struct lade_extent extent, void *data,
                                               uint64_t generation)
{
  return (struct lade_transfer){
      .op = op,
      .extent = extent,
      .bytes = extent.bytes,
      .data = data,
      .identity = {.tensor = 77, .microbatch = 2, .generation = generation},
  };
}

static inline int transfer_run(lade_store *store, struct lade_transfer *transfer, struct lade_error *error)
{
  int code = lade_store_submit(store, transfer);
  return code ? code : lade_store_wait(store, transfer, error);
}

static char fixture_dir[] = "store-test-XXXXXX";

static inline void fixture_leave(void)
{
  rmdir("first");
  rmdir("second,");
  if (chdir("..") == 0)
    rmdir(fixture_dir);
}

/*
 * Begin with the engine from the command line, in a new directory of the current one, or with "two" in two of them.
 * Return 77, with the reason, if this machine cannot run the suite here.
 */
static inline int suite_begin(int argc, char **argv)
{
  engine = argc > 1 && !strcmp(argv[1], "uring") ? LADE_STORE_URING : LADE_STORE_POSIX;
  if (!mkdtemp(fixture_dir) || chdir(fixture_dir) < 0) {
    printf("SKIP: the current directory cannot be written\n");
    return 77;
  }
  atexit(fixture_leave);
  if (argc > 2 && !strcmp(argv[2], "two") && !mkdir("first", 0700) && !mkdir("second,", 0700))
    fixture_dirs = "first,second,,", has_two_drives = true;
  struct lade_store_params params = params_of(NULL);
  struct lade_error error = {0};
  lade_store *store = NULL;
  int code = lade_store_open(&params, &error, &store);
  lade_store_close(store);
  if (code)
    printf("SKIP: %s\n", error.text);
  return code ? 77 : 0;
}

#endif
