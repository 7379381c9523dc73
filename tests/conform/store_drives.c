/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store over several directories. Both are used, by their speeds. A drive that fails or is slow is set aside with a
 * notice, and later writes go elsewhere. Values lost with it are errors that name the tensor.
 */
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "store_fixture.h"

#define N_TENSORS 24
#define TENSOR_BYTES (3 * PIECE_BYTES + PIECE_BYTES / 2) /* stripes whole and in part */

struct drives_fixture {
  struct lade_faults faults;
  lade_store *store;
  struct lade_extent extents[N_TENSORS];
  char *data, *back;
};

static void program_fixture_begin(struct drives_fixture *fixture, int faulty_drive)
{
  struct lade_store_params params = params_of(&fixture->faults);
  struct lade_error error = {0};
  lade_faults_init(&fixture->faults);
  params.faulty_drive = faulty_drive;
  if (lade_store_open(&params, &error, &fixture->store))
    fail_msg("%s", error.text);
  for (int i = 0; i < N_TENSORS; i++)
    assert_int_equal(lade_store_reserve(fixture->store, TENSOR_BYTES, &fixture->extents[i]), 0);
  if (lade_store_prepare(fixture->store, &error))
    fail_msg("%s", error.text);
  fixture->data = data_make(TENSOR_BYTES);
  fixture->back = data_make(TENSOR_BYTES);
}

static void program_fixture_end(struct drives_fixture *fixture)
{
  lade_store_close(fixture->store);
  free(fixture->data);
  free(fixture->back);
}

/* Write tensor @i at @generation, or read it and compare. */
static int tensor_run(struct drives_fixture *fixture, enum lade_store_op op, int i, uint64_t generation,
                      struct lade_error *error)
{
  bool is_write = op == LADE_STORE_WRITE;
  struct lade_transfer transfer =
      transfer_of(op, fixture->extents[i], is_write ? fixture->data : fixture->back, generation);
  transfer.identity.tensor = (uint32_t)i;
  data_fill(fixture->data, TENSOR_BYTES, generation * N_TENSORS + (uint64_t)i);
  int code = transfer_run(fixture->store, &transfer, error);
  if (!code && !is_write)
    assert_memory_equal(fixture->data, fixture->back, TENSOR_BYTES);
  return code;
}

static void all_run(struct drives_fixture *fixture, enum lade_store_op op, uint64_t generation)
{
  struct lade_error error = {0};
  for (int i = 0; i < N_TENSORS; i++) {
    if (tensor_run(fixture, op, i, generation, &error))
      fail_msg("tensor %d: %s", i, error.text);
  }
}

/* The file of a store in @dir has no name, so its blocks cannot be counted; its reads and writes can. */
static void both_directories_hold_written_bytes(void **state)
{
  struct drives_fixture fixture;
  struct lade_store_info info;
  lade_faults_init(&fixture.faults);
  program_fixture_begin(&fixture, 2);
  lade_store_get_info(fixture.store, &info);
  assert_int_equal(info.n_drives, 2);
  assert_int_equal(info.n_aside, 0);
  lade_faults_init(&fixture.faults);
  all_run(&fixture, LADE_STORE_WRITE, 1);
  uint64_t n_second = lade_faults_count(&fixture.faults, LADE_FAULT_FILE_WRITE), n_all = 4 * N_TENSORS;
  assert_in_range(n_second, n_all / 4, n_all * 3 / 4 + N_TENSORS);
  lade_faults_init(&fixture.faults);
  for (uint64_t generation = 2; generation < 6; generation++) {
    all_run(&fixture, LADE_STORE_WRITE, generation);
    all_run(&fixture, LADE_STORE_READ, generation);
  }
  assert_true(lade_faults_count(&fixture.faults, LADE_FAULT_FILE_READ) > 0);
  program_fixture_end(&fixture);
}

static void expect_aside(struct drives_fixture *fixture, const char *dir, const char *why)
{
  char text[512];
  struct lade_store_info info;
  assert_true(lade_store_take_notice(fixture->store, text, sizeof(text)));
  if (!strstr(text, dir) || !strstr(text, why) || !strstr(text, "set aside") || strchr(text, '\n'))
    fail_msg("not one line about %s and '%s': %s", dir, why, text);
  assert_false(lade_store_take_notice(fixture->store, text, sizeof(text)));
  lade_store_get_info(fixture->store, &info);
  assert_int_equal(info.n_aside, 1);
}

/* The Nth write to one drive and all after it fail: no value that was stored before is lost. */
static void writes_that_a_failing_drive_refuses_go_elsewhere(void **state)
{
  const int codes[] = {-EIO, -ENOSPC, -EROFS, -EAGAIN};
  for (size_t k = 0; k < LADE_COUNT(codes); k++) {
    for (int drive = 1; drive <= 2; drive++) {
      struct drives_fixture fixture;
      program_fixture_begin(&fixture, drive);
      lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_WRITE, 1, true, codes[k]);
      all_run(&fixture, LADE_STORE_WRITE, 1);
      expect_aside(&fixture, drive == 1 ? "first" : "second,", strerror(-codes[k]));
      all_run(&fixture, LADE_STORE_READ, 1);
      all_run(&fixture, LADE_STORE_WRITE, 2);
      all_run(&fixture, LADE_STORE_READ, 2);
      lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_READ, 1, true, -EIO); /* no more reads from it */
      all_run(&fixture, LADE_STORE_READ, 2);
      assert_int_equal(lade_faults_injected(&fixture.faults), 0);
      program_fixture_end(&fixture);
    }
  }
}

/* A ring for which the kernel starts no thread serves all drives, so no drive is set aside. */
static void no_drive_is_set_aside_for_want_of_a_thread(void **state)
{
  struct drives_fixture fixture;
  struct lade_error error = {0};
  struct lade_store_info info;
  program_fixture_begin(&fixture, 0);
  lade_faults_arm(&fixture.faults, LADE_FAULT_RING_COMPLETE, 1, true, -ECANCELED);
  lade_store_get_info(fixture.store, &info);
  const bool is_ring = strcmp(info.engine, "io_uring") == 0;
  for (int op = LADE_STORE_READ; op <= LADE_STORE_WRITE && is_ring; op++) {
    assert_int_equal(tensor_run(&fixture, (enum lade_store_op)op, 0, 1, &error), -EIO);
    assert_non_null(strstr(error.text, strerror(EAGAIN)));
  }
  lade_store_get_info(fixture.store, &info);
  assert_int_equal(info.n_aside, 0);
  lade_faults_arm(&fixture.faults, LADE_FAULT_ANY, 0, false, -EIO);
  all_run(&fixture, LADE_STORE_WRITE, 2);
  all_run(&fixture, LADE_STORE_READ, 2);
  program_fixture_end(&fixture);
}

static void data_of_a_failed_drive_is_an_error_and_can_be_rewritten(void **state)
{
  struct drives_fixture fixture;
  int n_lost = 0;
  program_fixture_begin(&fixture, 2);
  all_run(&fixture, LADE_STORE_WRITE, 1);
  lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_READ, 1, true, -EIO);
  for (int i = 0; i < N_TENSORS; i++) {
    struct lade_error error = {0};
    char name[32];
    int code = tensor_run(&fixture, LADE_STORE_READ, i, 1, &error);
    snprintf(name, sizeof(name), "reading tensor %d ", i);
    if (code && (code != -EIO || !strstr(error.text, name) || !strstr(error.text, "second,")))
      fail_msg("%d: %s", code, error.text);
    n_lost += code != 0;
  }
  assert_true(n_lost > N_TENSORS / 2);
  expect_aside(&fixture, "second,", "Input/output error");
  lade_faults_arm(&fixture.faults, LADE_FAULT_ANY, 0, false, -EIO);
  all_run(&fixture, LADE_STORE_WRITE, 2);
  all_run(&fixture, LADE_STORE_READ, 2);
  program_fixture_end(&fixture);
}

/* Overwriting half a stripe fails: the half is moved, and the other half is reported lost, not invented. */
static void the_rest_of_a_stripe_that_moved_is_lost(void **state)
{
  struct drives_fixture fixture;
  struct lade_error error = {0};
  int n_lost = 0, n_right = 0;
  program_fixture_begin(&fixture, 2);
  all_run(&fixture, LADE_STORE_WRITE, 1);
  lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  const uint64_t granule = LADE_STORE_GRANULE_BYTES, n = TENSOR_BYTES / granule;
  for (uint64_t at = 0; at < n; at += 2) {
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, fixture.extents[0], fixture.data, 2);
    write.offset = at * granule;
    write.bytes = granule;
    data_fill(fixture.data, granule, 1000 + at);
    assert_int_equal(transfer_run(fixture.store, &write, &error), 0);
  }
  lade_faults_arm(&fixture.faults, LADE_FAULT_ANY, 0, false, -EIO);
  for (uint64_t at = 0; at < n; at++) {
    struct lade_transfer read = transfer_of(LADE_STORE_READ, fixture.extents[0], fixture.back, at % 2 ? 1 : 2);
    read.identity.tensor = at % 2 ? 0 : read.identity.tensor;
    read.offset = at * granule;
    read.bytes = granule;
    int code = transfer_run(fixture.store, &read, &error);
    if (at % 2 && code) {
      assert_int_equal(code, -EIO);
      assert_non_null(strstr(error.text, "lost"));
      n_lost++;
      continue;
    }
    assert_int_equal(code, 0);
    data_fill(fixture.data, at % 2 ? TENSOR_BYTES : granule, at % 2 ? N_TENSORS : 1000 + at);
    assert_memory_equal(fixture.back, fixture.data + (at % 2 ? at * granule : 0), granule);
    n_right++;
  }
  assert_true(n_lost > 0 && n_right > n_lost);
  program_fixture_end(&fixture);
}

/*
 * Values share a granule, each with checksums of its own elsewhere, as states of short parameters do. Overwriting one
 * of them fails and is repeated on the other drive: its neighbours' bytes are lost, and reported lost, to the block.
 */
static void a_neighbour_in_the_granule_of_a_stripe_that_moved_is_lost(void **state)
{
  struct drives_fixture fixture;
  struct lade_error error = {0};
  int n_lost = 0;
  program_fixture_begin(&fixture, 2);
  all_run(&fixture, LADE_STORE_WRITE, 1);
  lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  for (int i = 0; i < N_TENSORS; i++) {
    struct lade_transfer own = transfer_of(LADE_STORE_WRITE, fixture.extents[i], fixture.data, 2);
    own.check = LADE_CHECK_CALLER;
    own.offset = 3 * LADE_STORE_BLOCK_BYTES;
    own.bytes = 2 * LADE_STORE_BLOCK_BYTES;
    data_fill(fixture.data, own.bytes, 1000 + (uint64_t)i);
    assert_int_equal(transfer_run(fixture.store, &own, &error), 0);
    own.op = LADE_STORE_READ;
    own.data = fixture.back;
    assert_int_equal(transfer_run(fixture.store, &own, &error), 0);
    assert_memory_equal(fixture.data, fixture.back, own.bytes);
    for (uint64_t block = 2; block <= 5; block += 3) {
      struct lade_transfer other = own;
      other.offset = block * LADE_STORE_BLOCK_BYTES;
      other.bytes = LADE_STORE_BLOCK_BYTES;
      int code = transfer_run(fixture.store, &other, &error);
      data_fill(fixture.data, TENSOR_BYTES, N_TENSORS + (uint64_t)i);
      if (code && (code != -EIO || !strstr(error.text, "lost")))
        fail_msg("tensor %d, block %d: %d, %s", i, (int)block, code, error.text);
      if (!code)
        assert_memory_equal(fixture.data + other.offset, fixture.back, other.bytes);
      n_lost += code != 0;
    }
  }
  assert_true(n_lost > 0 && n_lost < 2 * N_TENSORS);
  program_fixture_end(&fixture);
}

/* Write, or read and compare, every second granule of tensor @i from @first on, at @generation. */
static void granules_run(struct drives_fixture *fixture, enum lade_store_op op, int i, uint64_t first,
                         uint64_t generation)
{
  const uint64_t granule = LADE_STORE_GRANULE_BYTES;
  struct lade_error error = {0};
  data_fill(fixture->data, TENSOR_BYTES, generation * N_TENSORS + (uint64_t)i);
  for (uint64_t at = first * granule; at < TENSOR_BYTES; at += 2 * granule) {
    char *data = (op == LADE_STORE_WRITE ? fixture->data : fixture->back) + at;
    struct lade_transfer part = transfer_of(op, fixture->extents[i], data, generation);
    part.identity.tensor = (uint32_t)i;
    part.offset = at;
    part.bytes = LADE_MIN(granule, TENSOR_BYTES - at);
    if (transfer_run(fixture->store, &part, &error))
      fail_msg("tensor %d at %llu: %s", i, (unsigned long long)at, error.text);
    if (op == LADE_STORE_READ)
      assert_memory_equal(fixture->data + at, data, part.bytes);
  }
}

/*
 * Requests end anywhere, so that most stripes are written in parts. Written parts leave a drive that was set aside,
 * unwritten ones are still read there, and in the end the drive has no more work.
 */
static void parts_of_stripes_leave_a_drive_that_is_set_aside(void **state)
{
  struct drives_fixture fixture;
  struct lade_error error = {0};
  program_fixture_begin(&fixture, 2);
  all_run(&fixture, LADE_STORE_WRITE, 1);
  lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_READ, 1, false, -EIO);
  for (int i = 0; i < N_TENSORS; i++)
    tensor_run(&fixture, LADE_STORE_READ, i, 1, &error);
  expect_aside(&fixture, "second,", "Input/output error");
  for (int turn = 0; turn < 2; turn++) {
    const uint64_t first = (uint64_t)turn;
    lade_faults_init(&fixture.faults);
    for (int i = 0; i < N_TENSORS; i++)
      granules_run(&fixture, LADE_STORE_WRITE, i, first, 2);
    assert_int_equal(lade_faults_count(&fixture.faults, LADE_FAULT_FILE_WRITE), 0);
    for (int i = 0; i < N_TENSORS; i++) {
      granules_run(&fixture, LADE_STORE_READ, i, first, 2);
      granules_run(&fixture, LADE_STORE_READ, i, 1 - first, turn ? 2 : 1);
    }
    assert_int_equal(lade_faults_count(&fixture.faults, LADE_FAULT_FILE_READ) > 0, turn == 0);
  }
  all_run(&fixture, LADE_STORE_READ, 2);
  assert_int_equal(lade_faults_count(&fixture.faults, LADE_FAULT_FILE_READ), 0);
  program_fixture_end(&fixture);
}

static void a_slow_drive_is_set_aside_and_its_data_can_be_read(void **state)
{
  struct drives_fixture fixture;
  char text[512];
  if (engine == LADE_STORE_URING) {
    print_message("SKIP: only threads can be slowed down\n");
    skip();
  }
  program_fixture_begin(&fixture, 2);
  all_run(&fixture, LADE_STORE_WRITE, 1);
  assert_false(lade_store_take_notice(fixture.store, text, sizeof(text)));
  lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_WRITE, 1, true, LADE_STORE_FAULT_SLOW);
  uint64_t generation = 1;
  struct lade_store_info info = {0};
  while (!info.n_aside && generation < 60) {
    all_run(&fixture, LADE_STORE_WRITE, ++generation);
    lade_store_get_info(fixture.store, &info);
  }
  expect_aside(&fixture, "second,", "holds the others up");
  all_run(&fixture, LADE_STORE_READ, generation);
  all_run(&fixture, LADE_STORE_WRITE, ++generation);
  all_run(&fixture, LADE_STORE_READ, generation);
  program_fixture_end(&fixture);
}

/* If the last drive fails, its errors are the store's, and the store stays usable. */
static void the_last_drive_is_never_set_aside(void **state)
{
  struct drives_fixture fixture;
  struct lade_error error = {0};
  struct lade_store_info info;
  program_fixture_begin(&fixture, 0);
  lade_faults_arm(&fixture.faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  for (int i = 0; i < N_TENSORS; i++)
    assert_int_equal(tensor_run(&fixture, LADE_STORE_WRITE, i, 1, &error), -EIO);
  lade_store_get_info(fixture.store, &info);
  assert_int_equal(info.n_aside, 1);
  lade_faults_arm(&fixture.faults, LADE_FAULT_ANY, 0, false, -EIO);
  all_run(&fixture, LADE_STORE_WRITE, 2);
  all_run(&fixture, LADE_STORE_READ, 2);
  program_fixture_end(&fixture);
}

static void a_list_of_directories_is_checked_name_by_name(void **state)
{
  const struct {
    const char *dirs, *text;
    int code;
  } bad[] = {{"first,", "empty", -EINVAL}, {",first", "empty", -EINVAL}, {"first,nowhere", "nowhere", -ENOENT},
             {"first,second", "second", -ENOENT}};
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    struct lade_store_params params = params_of(NULL);
    struct lade_error error = {0};
    lade_store *store = NULL;
    params.dir = bad[i].dirs;
    assert_int_equal(lade_store_open(&params, &error, &store), bad[i].code);
    assert_non_null(strstr(error.text, bad[i].text));
    assert_null(store);
  }
  uint64_t two = 0, one = 0, drives[2];
  struct lade_error error;
  assert_int_equal(lade_store_room("first,second,,", &two, &drives[0], &error), 0);
  assert_int_equal(lade_store_room("first", &one, &drives[1], &error), 0);
  assert_int_equal(drives[0], drives[1]);
  assert_in_range(two, one / 10 * 9, one / 10 * 11); /* one drive, counted once; other processes write to it
                                                        meanwhile */
}

static void two_directories_on_one_drive_are_remarked_on(void **state)
{
  struct lade_store_params params = params_of(NULL);
  struct lade_error error = {0};
  lade_store *store = NULL;
  assert_int_equal(lade_store_open(&params, &error, &store), 0);
  assert_non_null(strstr(lade_store_note(store), "second, is on the same drive"));
  lade_store_close(store);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_directories_hold_written_bytes),
      cmocka_unit_test(writes_that_a_failing_drive_refuses_go_elsewhere),
      cmocka_unit_test(no_drive_is_set_aside_for_want_of_a_thread),
      cmocka_unit_test(data_of_a_failed_drive_is_an_error_and_can_be_rewritten),
      cmocka_unit_test(the_rest_of_a_stripe_that_moved_is_lost),
      cmocka_unit_test(a_neighbour_in_the_granule_of_a_stripe_that_moved_is_lost),
      cmocka_unit_test(parts_of_stripes_leave_a_drive_that_is_set_aside),
      cmocka_unit_test(a_slow_drive_is_set_aside_and_its_data_can_be_read),
      cmocka_unit_test(the_last_drive_is_never_set_aside),
      cmocka_unit_test(a_list_of_directories_is_checked_name_by_name),
      cmocka_unit_test(two_directories_on_one_drive_are_remarked_on),
  };
  char *args[] = {argv[0], argc > 1 ? argv[1] : "posix", "two", NULL};
  int skip = suite_begin(3, args);
  return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
