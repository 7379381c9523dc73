/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h: put tensors are read back unchanged, at every size and alignment, in any order of puts and drops, up to
 * the budget's last granule. Damage is found. Refused calls change nothing. Threads do not interfere.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
#include "tests/support/scratch.h"
#include "tests/support/store/tensor_fixture.h"

#define GRANULE 65536u
#define MIB (1u << 20)

static const char *dirs;
static const char *refusal; /* reason why no store can be opened here */

static lade_tensor_store *store_make(uint64_t budget_bytes, bool use_threads)
{
  if (refusal) {
    print_message("SKIP: %s\n", refusal);
    skip();
  }
  return tensor_fixture_open((struct lade_tensor_store_params){.dirs = dirs, .budget_bytes = budget_bytes,
                                                               .use_threads = use_threads});
}

static void put_and_get(lade_tensor_store *store, uint64_t bytes, unsigned put_shift, unsigned get_shift)
{
  struct lade_error error = {0};
  unsigned char *data = aligned_alloc(4096, lade_align_up(bytes + 2 * 4096, 4096));
  unsigned char *back = aligned_alloc(4096, lade_align_up(bytes + 2 * 4096, 4096));
  assert_true(data && back);
  tensor_fixture_fill(data + put_shift, bytes, bytes + put_shift);
  memset(back, 0x77, bytes + 4096 + get_shift);
  if (lade_tensor_store_put(store, "t", data + put_shift, bytes, &error) ||
      lade_tensor_store_get(store, "t", back + get_shift, bytes, &error))
    fail_msg("%llu bytes: %s", (unsigned long long)bytes, error.text);
  assert_memory_equal(data + put_shift, back + get_shift, bytes);
  for (unsigned i = 0; i < 4096; i++) /* no byte past the end */
    assert_int_equal(back[get_shift + bytes + i], 0x77);
  free(data);
  free(back);
}

static void put_bytes_are_got_back(void **state)
{
  const uint64_t sizes[] = {1, 4095, 4096, 4097, GRANULE - 1, GRANULE, GRANULE + 1, 100000, 4 * MIB, 4 * MIB + 4096,
                            9 * MIB + 12345, 40 * MIB};
  const unsigned shifts[] = {0, 1, 64};
  for (int threads = 0; threads < 2; threads++) {
    lade_tensor_store *store = store_make(48 * MIB, threads);
    for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
      for (size_t k = 0; k < LADE_COUNT(shifts); k++)
        put_and_get(store, sizes[i], shifts[k], shifts[(k + i) % LADE_COUNT(shifts)]);
    }
    lade_tensor_store_close(store);
  }
}

/* Compare with a model: names that come, change their size and go, in a budget that is nearly always full. */
static void tensors_come_and_go_up_to_the_last_granule(void **state)
{
  enum { N_NAMES = 40, N_GRANULES = 64, BYTES_MAX = 9 * GRANULE };
  lade_tensor_store *store = store_make(N_GRANULES * GRANULE, false);
  static unsigned char data[BYTES_MAX], back[BYTES_MAX];
  uint64_t bytes[N_NAMES] = {0}, seeds[N_NAMES] = {0}, used = 0;
  uint32_t draw = 1;
  int n_full = 0, n_refused = 0;
  for (int i = 0; i < 3000; i++) {
    struct lade_error error = {0};
    struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
    char name[16];
    draw = draw * 1664525u + 1013904223u;
    int k = (int)(draw >> 8) % N_NAMES;
    snprintf(name, sizeof(name), "t%d", k);
    uint64_t was = lade_align_up(bytes[k], GRANULE), wanted = 1 + (draw >> 3) % BYTES_MAX;
    if (draw >> 30 == 0) {
      assert_int_equal(lade_tensor_store_drop(store, name), bytes[k] ? 0 : -ENOENT);
      used -= was;
      bytes[k] = 0;
    } else if (draw >> 30 == 1 && bytes[k]) {
      if (lade_tensor_store_get(store, name, back, bytes[k], &error))
        fail_msg("%s", error.text);
      tensor_fixture_fill(data, bytes[k], seeds[k]);
      assert_memory_equal(data, back, bytes[k]);
    } else {
      bool fits = used - was + lade_align_up(wanted, GRANULE) <= N_GRANULES * GRANULE;
      tensor_fixture_fill(data, wanted, (uint64_t)i + 1);
      assert_int_equal(lade_tensor_store_put(store, name, data, wanted, &error), fits ? 0 : -EOVERFLOW);
      n_refused += !fits;
      if (fits) {
        used += lade_align_up(wanted, GRANULE) - was;
        bytes[k] = wanted;
        seeds[k] = (uint64_t)i + 1;
      }
    }
    assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
    assert_int_equal(info.used_bytes, used);
    n_full += used == N_GRANULES * GRANULE;
  }
  assert_true(n_full > 20 && n_refused > 100);
  lade_tensor_store_close(store);
}

/* A budget ends at a whole granule, and the last granule is usable like any other. */
static void a_budget_that_is_no_whole_granule_is_used_to_its_end(void **state)
{
  struct lade_error error = {0};
  lade_tensor_store *store = store_make(GRANULE + 1000, false);
  unsigned char one = 7;
  assert_int_equal(lade_tensor_store_put(store, "one", &one, 1, &error), 0);
  put_and_get(store, GRANULE, 0, 0);
  lade_tensor_store_close(store);
}

static void refused_calls_change_nothing(void **state)
{
  lade_tensor_store *store = store_make(4 * GRANULE, false);
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  struct lade_error error = {0};
  char data[8] = "seven77", back[8] = "";
  uint64_t bytes = 42;
  assert_int_equal(lade_tensor_store_put(store, "a", data, 8, &error), 0);
  assert_int_equal(lade_tensor_store_put(store, NULL, data, 8, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_put(store, "", data, 8, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_put(store, "b", NULL, 8, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_put(store, "b", data, 0, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_put(store, "a", data, 5 * GRANULE, &error), -EOVERFLOW);
  assert_non_null(strstr(error.text, "'a'"));
  for (int bit = 0; bit < 3; bit++) { /* also sizes that are no multiple of a granule */
    assert_int_equal(lade_tensor_store_put(store, bit ? "b" : "a", data, UINT64_MAX >> bit, &error), -EOVERFLOW);
    assert_non_null(strstr(error.text, "of its"));
  }
  assert_int_equal(lade_tensor_store_get(store, "b", back, 8, &error), -ENOENT);
  assert_non_null(strstr(error.text, "'b'"));
  assert_int_equal(lade_tensor_store_get(store, "a", back, 7, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_get(store, "a", NULL, 8, &error), -EINVAL);
  assert_int_equal(lade_tensor_store_find(store, "b", &bytes), -ENOENT);
  assert_int_equal(bytes, 42);
  assert_int_equal(lade_tensor_store_drop(store, "b"), -ENOENT);
  assert_int_equal(lade_tensor_store_find(store, "a", &bytes), 0);
  assert_int_equal(bytes, 8);
  assert_int_equal(lade_tensor_store_get(store, "a", back, 8, &error), 0);
  assert_string_equal(back, data);
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.n_tensors, 1);
  assert_int_equal(info.used_bytes, GRANULE);
  info.struct_size = 3;
  assert_int_equal(lade_tensor_store_get_info(store, &info), -EINVAL);
  lade_tensor_store_close(store);
  lade_tensor_store_close(NULL);
}

static void expect_refused(const struct lade_tensor_store_params *params, int code, const char *text)
{
  struct lade_error error = {0};
  lade_tensor_store *store = NULL;
  assert_int_equal(lade_tensor_store_open(params, &error, &store), code);
  if (!strstr(error.text, text))
    fail_msg("does not say '%s': %s", text, error.text);
  assert_null(store);
}

static void stores_that_cannot_be_are_refused(void **state)
{
  struct {
    struct lade_tensor_store_params known;
    uint64_t unknown;
  } newer = {{.struct_size = sizeof(newer), .dirs = dirs, .budget_bytes = GRANULE}, 1};
  struct lade_tensor_store_params params = {.struct_size = sizeof(params), .dirs = dirs, .budget_bytes = GRANULE};
  expect_refused(&newer.known, -EINVAL, "newer headers");
  params.dirs = NULL;
  expect_refused(&params, -EINVAL, "directories");
  params.dirs = "no-such";
  expect_refused(&params, -ENOENT, "no-such");
  params.dirs = dirs;
  params.budget_bytes = 0;
  expect_refused(&params, -EINVAL, "budget");
  params.struct_size = 0;
  expect_refused(&params, -EINVAL, "struct_size");
  params.struct_size = sizeof(params);
  params.budget_bytes = (uint64_t)1 << 60;
  if (!refusal)
    expect_refused(&params, -ENOSPC, "are free");
}

/* Return the descriptor of the store's unnamed file. */
static int file_find(void)
{
  char path[64];
  for (int fd = 3; fd < 256; fd++) {
    struct stat of_file;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (!fstat(fd, &of_file) && S_ISREG(of_file.st_mode) && !of_file.st_nlink)
      return open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
  }
  return -1;
}

static void a_flipped_bit_is_found(void **state)
{
  lade_tensor_store *store = store_make(2 * GRANULE, false);
  static _Alignas(4096) unsigned char data[2 * GRANULE], block[4096];
  struct lade_error error = {0};
  int fd = file_find();
  assert_true(fd >= 0);
  tensor_fixture_fill(data, sizeof(data), 1);
  assert_int_equal(lade_tensor_store_put(store, "moments", data, sizeof(data), &error), 0);
  assert_int_equal(pread(fd, block, sizeof(block), GRANULE), sizeof(block));
  block[17] ^= 8;
  assert_int_equal(pwrite(fd, block, sizeof(block), GRANULE), sizeof(block));
  assert_int_equal(lade_tensor_store_get(store, "moments", data, sizeof(data), &error), -EBADMSG);
  assert_non_null(strstr(error.text, "'moments'"));
  block[17] ^= 8;
  assert_int_equal(pwrite(fd, block, sizeof(block), GRANULE), sizeof(block));
  assert_int_equal(lade_tensor_store_get(store, "moments", data, sizeof(data), &error), 0);
  close(fd);
  lade_tensor_store_close(store);
}

/*
 * Check that a child is refused. The child shares the parent's ring and has none of its threads: its calls would act on
 * the parent's store, or never end.
 */
static bool child_is_refused(lade_tensor_store *store)
{
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  char data[8] = "other", text[512];
  uint64_t bytes = 0;
  const int codes[] = {
      lade_tensor_store_put(store, "a", data, 8, NULL), lade_tensor_store_get(store, "a", data, 8, NULL),
      lade_tensor_store_find(store, "a", &bytes),       lade_tensor_store_drop(store, "a"),
      lade_tensor_store_get_info(store, &info),         lade_tensor_store_take_notice(store, text, sizeof(text))};
  bool is_right = true;
  for (size_t i = 0; i < LADE_COUNT(codes); i++)
    is_right &= codes[i] == -EPERM;
  lade_tensor_store_close(store);
  return is_right;
}

static void children_leave_the_store_alone(void **state)
{
  for (int use_threads = 0; use_threads < 2; use_threads++) {
    lade_tensor_store *store = store_make(2 * GRANULE, use_threads);
    char data[8] = "seven77", back[8] = "";
    int status = 1;
    assert_int_equal(lade_tensor_store_put(store, "a", data, 8, NULL), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      alarm(20);
      _exit(child_is_refused(store) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(lade_tensor_store_get(store, "a", back, 8, NULL), 0);
    assert_string_equal(back, data);
    lade_tensor_store_close(store);
  }
}

struct worker {
  lade_tensor_store *store;
  int number, n_wrong;
};

static void *worker_run(void *arg)
{
  struct worker *worker = arg;
  const uint64_t bytes = 3 * GRANULE + 1000u * (unsigned)worker->number;
  unsigned char *data = malloc(bytes), *back = malloc(bytes); /* through the bounce windows */
  char name[16];
  struct lade_error error;
  snprintf(name, sizeof(name), "w%d", worker->number);
  for (uint64_t i = 0; i < 40 && data && back; i++) {
    tensor_fixture_fill(data, bytes, i * 100 + (uint64_t)worker->number);
    worker->n_wrong += lade_tensor_store_put(worker->store, name, data, bytes, &error) != 0;
    worker->n_wrong += lade_tensor_store_get(worker->store, name, back, bytes, &error) != 0;
    worker->n_wrong += memcmp(data, back, bytes) != 0;
    worker->n_wrong += i % 3 == 0 && lade_tensor_store_drop(worker->store, name) != 0;
  }
  worker->n_wrong += !data || !back;
  free(data);
  free(back);
  return NULL;
}

static void threads_move_their_own_tensors(void **state)
{
  enum { N_WORKERS = 6 };
  lade_tensor_store *store = store_make(N_WORKERS * 5 * GRANULE, false);
  struct worker workers[N_WORKERS];
  pthread_t threads[N_WORKERS];
  for (int i = 0; i < N_WORKERS; i++) {
    workers[i] = (struct worker){.store = store, .number = i};
    assert_int_equal(pthread_create(&threads[i], NULL, worker_run, &workers[i]), 0);
  }
  for (int i = 0; i < N_WORKERS; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(workers[i].n_wrong, 0);
  }
  lade_tensor_store_close(store);
}

static void several_directories_are_one_store(void **state)
{
  const char *one = dirs;
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  char text[512];
  assert_int_equal(mkdir("x", 0700) | mkdir("y", 0700), 0);
  dirs = "x,y";
  lade_tensor_store *store = store_make(48 * MIB, false);
  dirs = one;
  rmdir("x"); /* the directory has no named files */
  rmdir("y");
  put_and_get(store, 40 * MIB, 0, 0);
  put_and_get(store, 5 * MIB + 77, 1, 0);
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  assert_int_equal(info.n_dirs, 2);
  assert_int_equal(info.n_aside, 0);
  assert_int_equal(lade_tensor_store_take_notice(store, text, sizeof(text)), 0);
  lade_tensor_store_close(store);
}

static int names_compare(const void *a, const void *b)
{
  return strcmp(a, b);
}

/* Names come in the order of bytes, whatever the order of puts and drops, and while later names are dropped. */
static void names_come_in_order(void **state)
{
  enum { N = 600 };
  static char names[N][16];
  char name[16] = "", byte = 1;
  uint64_t bytes = 0;
  int at = 0;
  lade_tensor_store *store = store_make(40 * MIB, false);
  for (int i = 0; i < N; i++) {
    snprintf(names[i], sizeof(names[i]), "%x", i < N / 2 ? (unsigned)i : (unsigned)i * 2654435761u);
    assert_int_equal(lade_tensor_store_put(store, names[i], &byte, 1, NULL), 0);
    if (i % 3 == 0)
      assert_int_equal(lade_tensor_store_drop(store, names[i]), 0);
    if (i % 6 == 0)
      assert_int_equal(lade_tensor_store_put(store, names[i], &byte, 1, NULL), 0);
    else if (i % 3 == 0)
      names[i][0] = '~'; /* after all others */
  }
  qsort(names, N, sizeof(names[0]), names_compare);
  while (!lade_tensor_store_find_next(store, at ? name : NULL, name, sizeof(name), &bytes)) {
    assert_string_equal(name, names[at]);
    at++;
    if (at % 2)
      assert_int_equal(lade_tensor_store_drop(store, name), 0);
  }
  assert_int_equal(at, N - N / 6);
  for (int i = 0; i < at; i++)
    assert_int_equal(lade_tensor_store_find(store, names[i], &bytes), i % 2 ? 0 : -ENOENT);
  lade_tensor_store_close(store);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(put_bytes_are_got_back),
      cmocka_unit_test(tensors_come_and_go_up_to_the_last_granule),
      cmocka_unit_test(a_budget_that_is_no_whole_granule_is_used_to_its_end),
      cmocka_unit_test(refused_calls_change_nothing),
      cmocka_unit_test(stores_that_cannot_be_are_refused),
      cmocka_unit_test(a_flipped_bit_is_found),
      cmocka_unit_test(children_leave_the_store_alone),
      cmocka_unit_test(threads_move_their_own_tensors),
      cmocka_unit_test(several_directories_are_one_store),
      cmocka_unit_test(names_come_in_order),
  };
  static struct lade_error error;
  struct lade_tensor_store_params trial = {.struct_size = sizeof(trial), .dirs = ".", .budget_bytes = GRANULE};
  lade_tensor_store *store = NULL;
  char path[SCRATCH_BYTES];
  scratch_make(path, false);
  if (chdir(path))
    return 1;
  dirs = ".";
  if (lade_tensor_store_open(&trial, &error, &store))
    refusal = error.text;
  lade_tensor_store_close(store);
  int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (chdir(".."))
    return 1;
  scratch_remove(path);
  return n_failed;
}
