/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h: a durable store opens again with the tensors of its last publish, whatever was put, put in part or
 * dropped since. Published bytes are never written over. Damage is found and named, and refused stores stay unchanged.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/store.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/scratch.h"
#include "tests/support/store/tensor_fixture.h"

#define GRANULE 65536u
#define N_NAMES 12
#define BYTES_MAX (5 * GRANULE)
#define BUDGET (40 * (uint64_t)GRANULE)

static struct lade_tensor_store_params params_of(const char *dirs, uint64_t budget_bytes)
{
  return (struct lade_tensor_store_params){.struct_size = sizeof(struct lade_tensor_store_params), .dirs = dirs,
                                           .budget_bytes = budget_bytes, .allow_tmpfs = true, .allow_buffered = true,
                                           .is_durable = true};
}

static int store_try(const char *dirs, uint64_t budget_bytes, struct lade_error *error, lade_tensor_store **ret_store)
{
  const struct lade_tensor_store_params params = params_of(dirs, budget_bytes);
  *ret_store = NULL;
  return lade_tensor_store_open(&params, error, ret_store);
}

static lade_tensor_store *store_open(uint64_t budget_bytes)
{
  return tensor_fixture_open(params_of(scratch, budget_bytes));
}

static void expect_refused(int code, uint64_t budget_bytes, const char *word)
{
  struct lade_error error = {0};
  lade_tensor_store *store;
  assert_int_equal(store_try(scratch, budget_bytes, &error, &store), code);
  assert_null(store);
  if (!strstr(error.text, word))
    fail_msg("does not say '%s': %s", word, error.text);
}

static void publish(lade_tensor_store *store)
{
  struct lade_error error = {0};
  if (lade_tensor_store_publish(store, &error))
    fail_msg("%s", error.text);
}

static unsigned char byte_of(uint64_t seed, uint64_t granule, uint64_t i)
{
  return (unsigned char)(seed * 31 + granule * 7 + i * 13 + (i >> 8));
}

/* A model of the store: bytes of each name, and a seed for each granule. */
struct model {
  uint64_t bytes[N_NAMES], seeds[N_NAMES][BYTES_MAX / GRANULE];
};

static void granules_fill(struct model *m, int name, uint64_t from, uint64_t bytes, uint64_t seed, unsigned char *data)
{
  for (uint64_t g = from / GRANULE; g * GRANULE < from + bytes; g++) {
    m->seeds[name][g] = seed;
    for (uint64_t i = 0; i < GRANULE && g * GRANULE + i < from + bytes; i++)
      data[g * GRANULE + i - from] = byte_of(seed, g, i);
  }
}

/* Check that @store has exactly the tensors of @m. */
static void model_check(lade_tensor_store *store, const struct model *m)
{
  static unsigned char data[BYTES_MAX];
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  struct lade_error error;
  char name[16], next[16] = "";
  uint64_t n = 0, bytes;
  for (int k = 0; k < N_NAMES; k++) {
    snprintf(name, sizeof(name), "t%02d", k);
    assert_int_equal(lade_tensor_store_find(store, name, &bytes), m->bytes[k] ? 0 : -ENOENT);
    if (!m->bytes[k])
      continue;
    assert_int_equal(bytes, m->bytes[k]);
    assert_int_equal(lade_tensor_store_find_next(store, n++ ? next : NULL, next, sizeof(next), &bytes), 0);
    assert_string_equal(next, name);
    if (lade_tensor_store_get(store, name, data, m->bytes[k], &error))
      fail_msg("%s", error.text);
    for (uint64_t i = 0; i < m->bytes[k]; i++)
      if (data[i] != byte_of(m->seeds[k][i / GRANULE], i / GRANULE, i % GRANULE))
        fail_msg("%s has wrong bytes at %llu", name, (unsigned long long)i);
  }
  assert_int_equal(lade_tensor_store_find_next(store, n ? next : NULL, next, sizeof(next), &bytes), -ENOENT);
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.n_tensors, n);
}

/* Put, put a part of, or drop a name, in the store and in the model. True if the budget had room. */
static bool model_step(lade_tensor_store *store, struct model *m, uint32_t draw, uint64_t seed)
{
  static unsigned char data[BYTES_MAX];
  const struct model before = *m;
  const int k = (int)(draw >> 8) % N_NAMES;
  char name[16];
  int code = 0;
  struct lade_error error;
  snprintf(name, sizeof(name), "t%02d", k);
  if (draw >> 30 == 0) {
    assert_int_equal(lade_tensor_store_drop(store, name), m->bytes[k] ? 0 : -ENOENT);
    m->bytes[k] = 0;
  } else if (draw >> 30 == 1 && m->bytes[k] > GRANULE) {
    const uint64_t from = m->bytes[k] / 2 / GRANULE * GRANULE, bytes = LADE_MIN(m->bytes[k] - from, GRANULE);
    lade_tensor_ticket *ticket;
    struct lade_tensor_request request = {.struct_size = sizeof(request), .name = name, .data = data, .bytes = bytes,
                                          .tensor_bytes = m->bytes[k], .offset = from};
    granules_fill(m, k, from, bytes, seed, data);
    code = lade_tensor_store_submit(store, &request, &error, &ticket);
    if (!code)
      assert_int_equal(lade_tensor_store_wait(store, ticket, &error), 0);
  } else {
    m->bytes[k] = 1 + (draw >> 3) % BYTES_MAX;
    granules_fill(m, k, 0, m->bytes[k], seed, data);
    code = lade_tensor_store_put(store, name, data, m->bytes[k], &error);
  }
  if (code) {
    assert_int_equal(code, -EOVERFLOW);
    assert_non_null(strstr(error.text, "free"));
    *m = before;
  }
  return !code;
}

/* Random puts, parts, drops and publishes; the store is closed or its process killed at any of them. */
static void the_last_publish_is_found(void **state)
{
  struct model now = {0}, published = {0};
  uint32_t draw = 7;
  uint64_t seed = 0;
  int n_full = 0;
  lade_tensor_store *store = store_open(BUDGET);
  publish(store);
  for (int life = 0; life < 12; life++) {
    for (int i = 0; i < 40; i++) {
      draw = draw * 1664525u + 1013904223u;
      n_full += !model_step(store, &now, draw, ++seed);
      if (draw % 11 == 0) {
        publish(store);
        published = now;
      }
    }
    model_check(store, &now);
    lade_tensor_store_close(store);
    store = store_open(life % 2 ? 0 : BUDGET);
    now = published;
    model_check(store, &now);
  }
  assert_true(n_full > 5);
  lade_tensor_store_close(store);
}

/* Replaced and dropped bytes keep their room until a publish, and only until then. */
static void published_room_is_free_after_the_next(void **state)
{
  static unsigned char data[16 * GRANULE];
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  struct lade_error error;
  lade_tensor_store *store = store_open(BUDGET);
  assert_int_equal(lade_tensor_store_put(store, "a", data, sizeof(data), &error), 0);
  assert_int_equal(lade_tensor_store_put(store, "a", data, sizeof(data), &error), 0); /* in place: not published */
  publish(store);
  assert_int_equal(lade_tensor_store_put(store, "a", data, sizeof(data), &error), 0);
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.held_bytes, sizeof(data));
  assert_int_equal(info.used_bytes, 2 * sizeof(data));
  assert_int_equal(info.n_published, 1);
  assert_true(info.is_durable);
  assert_int_equal(lade_tensor_store_put(store, "b", data, sizeof(data), &error), -EOVERFLOW);
  assert_non_null(strstr(error.text, "next publish"));
  publish(store);
  assert_int_equal(lade_tensor_store_put(store, "b", data, sizeof(data), &error), 0);
  assert_int_equal(lade_tensor_store_drop(store, "a"), 0);
  publish(store);
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.used_bytes, sizeof(data));
  assert_int_equal(info.n_published, 3);
  lade_tensor_store_close(store);
}

static void nothing_published_is_nothing_found(void **state)
{
  char data[8] = "seven77";
  struct lade_error error;
  lade_tensor_store *store = store_open(BUDGET);
  assert_int_equal(lade_tensor_store_put(store, "a", data, sizeof(data), &error), 0);
  lade_tensor_store_close(store);
  expect_refused(-EINVAL, 0, "state a budget");
  store = store_open(2 * BUDGET); /* its budget was never published */
  assert_int_equal(lade_tensor_store_find(store, "a", &(uint64_t){0}), -ENOENT);
  lade_tensor_store_close(store);
}

static void stores_that_do_not_fit_are_refused(void **state)
{
  struct lade_error error = {0};
  lade_tensor_store *store = store_open(BUDGET), *second;
  publish(store);
  expect_refused(-EBUSY, BUDGET, "another run");
  lade_tensor_store_close(store);
  expect_refused(-EINVAL, 2 * BUDGET, "budget of 2621440");
  assert_int_equal(store_try("a,b", BUDGET, &error, &second), -EINVAL);
  assert_non_null(strstr(error.text, "one directory"));
  store = store_open(0);
  char name[20000];
  memset(name, 'n', sizeof(name));
  name[sizeof(name) - 1] = 0;
  for (int i = 0; i < 2; i++) { /* names longer than the catalog has room for */
    name[0] = (char)('a' + i);
    assert_int_equal(lade_tensor_store_put(store, name, "x", 1, &error), 0);
  }
  for (int i = 2; i < 6; i++) {
    name[0] = (char)('a' + i);
    assert_int_equal(lade_tensor_store_put(store, name, "x", 1, &error), 0);
  }
  assert_int_equal(lade_tensor_store_publish(store, &error), -EOVERFLOW);
  assert_non_null(strstr(error.text, "shorter names"));
  for (int i = 2; i < 6; i++) {
    name[0] = (char)('a' + i);
    assert_int_equal(lade_tensor_store_drop(store, name), 0);
  }
  publish(store);
  lade_tensor_store_close(store);
}

/* Flip a bit of the file @name at @offset. */
static void flip(const char *name, uint64_t offset)
{
  unsigned char byte;
  int fd = open(in_scratch(name), O_RDWR);
  assert_true(fd >= 0);
  assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
  byte ^= 4;
  assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
  fsync(fd);
  close(fd);
}

/* Flip one bit in each granule of the data file in turn: open or get finds it, or no byte of the state is in it. */
static void every_damaged_granule_is_found(void **state)
{
  static unsigned char data[3 * GRANULE];
  struct stat of_file;
  struct lade_error error;
  int n_open = 0, n_get = 0;
  lade_tensor_store *store = store_open(8 * GRANULE);
  memset(data, 5, sizeof(data));
  assert_int_equal(lade_tensor_store_put(store, "moments", data, sizeof(data), &error), 0);
  publish(store);
  lade_tensor_store_close(store);
  assert_int_equal(stat(in_scratch("lade-tensors.data"), &of_file), 0);
  for (uint64_t at = 0; at < (uint64_t)of_file.st_size; at += GRANULE) {
    flip("lade-tensors.data", at + 3);
    int code = store_try(scratch, 0, &error, &store);
    if (code) {
      assert_int_equal(code, -EBADMSG);
      assert_true(strstr(error.text, "lade-tensors") || strstr(error.text, "store in"));
      n_open++;
    } else {
      code = lade_tensor_store_get(store, "moments", data, sizeof(data), &error);
      assert_true(!code || code == -EBADMSG);
      n_get += code != 0;
      lade_tensor_store_close(store);
    }
    flip("lade-tensors.data", at + 3);
  }
  assert_int_equal(n_open, 2); /* the table and the catalog */
  assert_int_equal(n_get, 3);
  assert_int_equal(truncate(in_scratch("lade-tensors.data"), of_file.st_size / 2), 0);
  expect_refused(-EBADMSG, 0, "its file is damaged");
  for (int i = 0; i < 2; i++)
    flip("lade-tensors.journal", (uint64_t)i * 4096 + 100);
  expect_refused(-EBADMSG, 0, "damaged");
}

static void children_leave_the_store_alone(void **state)
{
  struct lade_error error = {0};
  lade_tensor_store *store = store_open(BUDGET);
  int status = 1;
  publish(store);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    alarm(20);
    char name[8];
    struct lade_tensor_request request = {.struct_size = sizeof(request), .name = "a", .data = name, .bytes = 1};
    lade_tensor_ticket *ticket;
    bool is_right = lade_tensor_store_publish(store, &error) == -EPERM &&
                    lade_tensor_store_submit(store, &request, &error, &ticket) == -EPERM &&
                    lade_tensor_store_find_next(store, NULL, name, 8, &(uint64_t){0}) == -EPERM;
    lade_tensor_store_close(store);
    _exit(is_right ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  publish(store);
  lade_tensor_store_close(store);
}

/* A failed publish whose record may count or not: the store publishes no more, and either state opens whole. */
static void a_removed_file_fails_the_publish(void **state)
{
  struct lade_error error = {0};
  char data[8] = "seven77";
  lade_tensor_store *store = store_open(BUDGET);
  assert_int_equal(lade_tensor_store_put(store, "a", data, sizeof(data), &error), 0);
  publish(store);
  assert_int_equal(unlink(in_scratch("lade-tensors.data")), 0);
  assert_int_equal(lade_tensor_store_publish(store, &error), -EIO);
  assert_non_null(strstr(error.text, "removed or replaced"));
  assert_int_equal(lade_tensor_store_publish(store, &error), -EIO);
  assert_non_null(strstr(error.text, "earlier publish failed"));
  assert_int_equal(lade_tensor_store_get(store, "a", data, sizeof(data), &error), 0);
  lade_tensor_store_close(store);
}

/* Memory that runs out while a store opens is -ENOMEM wherever it does, and never reported as damage. */
static void a_store_without_memory_is_not_damaged(void **state)
{
  char data[8] = "seven77", name[16];
  struct lade_error error = {0};
  lade_tensor_store *store = store_open(BUDGET);
  for (int i = 0; i < 20; i++) { /* more than the first capacity of the list of runs */
    snprintf(name, sizeof(name), "t%02d", i);
    assert_int_equal(lade_tensor_store_put(store, name, data, sizeof(data), &error), 0);
  }
  publish(store);
  lade_tensor_store_close(store);
  int status = -ENOMEM, n = 0;
  while (status) {
    allocations_left = ++n;
    status = store_try(scratch, 0, &error, &store);
    allocations_left = -1;
    if (status && status != -ENOMEM)
      fail_msg("allocation %d: %d, %s", n, status, error.text);
  }
  assert_true(n > 40); /* each tensor allocates */
  assert_int_equal(lade_tensor_store_get(store, "t19", data, sizeof(data), &error), 0);
  lade_tensor_store_close(store);
}

/* Memory that runs out while a part of a published tensor is admitted is -ENOMEM, and all old bytes stay. */
static void a_part_without_memory_leaves_its_tensor(void **state)
{
  static unsigned char data[BYTES_MAX];
  struct model m = {.bytes = {BYTES_MAX}};
  struct lade_error error = {0};
  const struct lade_tensor_request request = {.struct_size = sizeof(request), .name = "t00", .data = data,
                                              .offset = GRANULE, .bytes = 2 * GRANULE, .tensor_bytes = BYTES_MAX};
  lade_tensor_ticket *ticket = NULL;
  lade_tensor_store *store = store_open(BUDGET);
  granules_fill(&m, 0, 0, BYTES_MAX, 1, data);
  assert_int_equal(lade_tensor_store_put(store, "t00", data, BYTES_MAX, &error), 0);
  publish(store);
  int status = -ENOMEM, n = 0;
  while (status) {
    allocations_left = ++n;
    status = lade_tensor_store_submit(store, &request, &error, &ticket);
    allocations_left = -1;
    if (!status)
      break;
    assert_int_equal(status, -ENOMEM);
    model_check(store, &m);
  }
  assert_true(n > 3); /* the ticket, the list of fresh runs, the runs of the request */
  status = lade_tensor_store_wait(store, ticket, &error);
  assert_true(!status || status == -ENOMEM); /* a thread of the store may have met the failing allocation */
  lade_tensor_store_close(store);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(the_last_publish_is_found, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(published_room_is_free_after_the_next, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(nothing_published_is_nothing_found, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(stores_that_do_not_fit_are_refused, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(every_damaged_granule_is_found, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(children_leave_the_store_alone, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_removed_file_fails_the_publish, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_store_without_memory_is_not_damaged, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_part_without_memory_leaves_its_tensor, scratch_setup_in_memory,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
