/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store over several directories: both are used, by their speeds; one that fails or is slow is set aside with a
 * notice, what is written goes elsewhere, and what it took with it is an error that names the tensor.
 */
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "store_fixture.h"

#define N_TENSORS 24
#define TENSOR_BYTES (3 * PIECE_BYTES + PIECE_BYTES / 2) /* stripes whole and in part */

struct scene {
  struct lade_faults faults;
  lade_store *store;
  struct lade_extent extents[N_TENSORS];
  char *data, *back;
};

static void scene_begin(struct scene *scene, int faulty_drive)
{
  struct lade_store_params params = params_of(&scene->faults);
  struct lade_error error = {0};
  lade_faults_init(&scene->faults);
  params.faulty_drive = faulty_drive;
  if (lade_store_open(&params, &error, &scene->store))
    fail_msg("%s", error.text);
  for (int i = 0; i < N_TENSORS; i++)
    assert_int_equal(lade_store_reserve(scene->store, TENSOR_BYTES, &scene->extents[i]), 0);
  if (lade_store_prepare(scene->store, &error))
    fail_msg("%s", error.text);
  scene->data = data_make(TENSOR_BYTES);
  scene->back = data_make(TENSOR_BYTES);
}

static void scene_end(struct scene *scene)
{
  lade_store_close(scene->store);
  free(scene->data);
  free(scene->back);
}

/* Write tensor @i as it is at @generation, or read it and compare. */
static int tensor_run(struct scene *scene, enum lade_store_op op, int i, uint64_t generation, struct lade_error *error)
{
  bool is_write = op == LADE_STORE_WRITE;
  struct lade_transfer transfer =
      transfer_of(op, scene->extents[i], is_write ? scene->data : scene->back, generation);
  transfer.identity.tensor = (uint32_t)i;
  data_fill(scene->data, TENSOR_BYTES, generation * N_TENSORS + (uint64_t)i);
  int code = transfer_run(scene->store, &transfer, error);
  if (!code && !is_write)
    assert_memory_equal(scene->data, scene->back, TENSOR_BYTES);
  return code;
}

static void all_run(struct scene *scene, enum lade_store_op op, uint64_t generation)
{
  struct lade_error error = {0};
  for (int i = 0; i < N_TENSORS; i++) {
    if (tensor_run(scene, op, i, generation, &error))
      fail_msg("tensor %d: %s", i, error.text);
  }
}

/* Blocks that a store's file in @dir takes of its file system cannot be seen by name; its reads and writes can. */
static void both_directories_carry_what_is_written(void **state)
{
  struct scene scene;
  struct lade_store_info info;
  lade_faults_init(&scene.faults);
  scene_begin(&scene, 2);
  lade_store_get_info(scene.store, &info);
  assert_int_equal(info.n_drives, 2);
  assert_int_equal(info.n_aside, 0);
  lade_faults_init(&scene.faults);
  all_run(&scene, LADE_STORE_WRITE, 1);
  uint64_t n_second = lade_faults_count(&scene.faults, LADE_FAULT_FILE_WRITE), n_all = 4 * N_TENSORS;
  assert_in_range(n_second, n_all / 4, n_all * 3 / 4 + N_TENSORS);
  lade_faults_init(&scene.faults);
  for (uint64_t generation = 2; generation < 6; generation++) {
    all_run(&scene, LADE_STORE_WRITE, generation);
    all_run(&scene, LADE_STORE_READ, generation);
  }
  assert_true(lade_faults_count(&scene.faults, LADE_FAULT_FILE_READ) > 0);
  scene_end(&scene);
}

static void expect_aside(struct scene *scene, const char *dir, const char *why)
{
  char text[512];
  struct lade_store_info info;
  assert_true(lade_store_take_notice(scene->store, text, sizeof(text)));
  if (!strstr(text, dir) || !strstr(text, why) || !strstr(text, "set aside") || strchr(text, '\n'))
    fail_msg("not one line about %s and '%s': %s", dir, why, text);
  assert_false(lade_store_take_notice(scene->store, text, sizeof(text)));
  lade_store_get_info(scene->store, &info);
  assert_int_equal(info.n_aside, 1);
}

/* The Nth write to one drive and all after it fail: nothing is lost that was not there before. */
static void what_a_failing_drive_refuses_is_written_elsewhere(void **state)
{
  const int codes[] = {-EIO, -ENOSPC, -EROFS, -EAGAIN};
  for (size_t k = 0; k < LADE_COUNT(codes); k++) {
    for (int drive = 1; drive <= 2; drive++) {
      struct scene scene;
      scene_begin(&scene, drive);
      lade_faults_arm(&scene.faults, LADE_FAULT_FILE_WRITE, 1, true, codes[k]);
      all_run(&scene, LADE_STORE_WRITE, 1);
      expect_aside(&scene, drive == 1 ? "first" : "second,", strerror(-codes[k]));
      all_run(&scene, LADE_STORE_READ, 1);
      all_run(&scene, LADE_STORE_WRITE, 2);
      all_run(&scene, LADE_STORE_READ, 2);
      lade_faults_arm(&scene.faults, LADE_FAULT_FILE_READ, 1, true, -EIO); /* nothing is read from it any more */
      all_run(&scene, LADE_STORE_READ, 2);
      assert_int_equal(lade_faults_injected(&scene.faults), 0);
      scene_end(&scene);
    }
  }
}

/* A ring that the kernel gives no thread is in front of all drives, and none of them is to blame. */
static void no_drive_is_set_aside_for_want_of_a_thread(void **state)
{
  struct scene scene;
  struct lade_error error = {0};
  struct lade_store_info info;
  scene_begin(&scene, 0);
  lade_faults_arm(&scene.faults, LADE_FAULT_RING_COMPLETE, 1, true, -ECANCELED);
  lade_store_get_info(scene.store, &info);
  const bool is_ring = strcmp(info.engine, "io_uring") == 0;
  for (int op = LADE_STORE_READ; op <= LADE_STORE_WRITE && is_ring; op++) {
    assert_int_equal(tensor_run(&scene, (enum lade_store_op)op, 0, 1, &error), -EIO);
    assert_non_null(strstr(error.text, strerror(EAGAIN)));
  }
  lade_store_get_info(scene.store, &info);
  assert_int_equal(info.n_aside, 0);
  lade_faults_arm(&scene.faults, LADE_FAULT_ANY, 0, false, -EIO);
  all_run(&scene, LADE_STORE_WRITE, 2);
  all_run(&scene, LADE_STORE_READ, 2);
  scene_end(&scene);
}

static void what_a_failed_drive_had_is_an_error_and_can_be_written_anew(void **state)
{
  struct scene scene;
  int n_lost = 0;
  scene_begin(&scene, 2);
  all_run(&scene, LADE_STORE_WRITE, 1);
  lade_faults_arm(&scene.faults, LADE_FAULT_FILE_READ, 1, true, -EIO);
  for (int i = 0; i < N_TENSORS; i++) {
    struct lade_error error = {0};
    char name[32];
    int code = tensor_run(&scene, LADE_STORE_READ, i, 1, &error);
    snprintf(name, sizeof(name), "reading tensor %d ", i);
    if (code && (code != -EIO || !strstr(error.text, name) || !strstr(error.text, "second,")))
      fail_msg("%d: %s", code, error.text);
    n_lost += code != 0;
  }
  assert_true(n_lost > N_TENSORS / 2);
  expect_aside(&scene, "second,", "Input/output error");
  lade_faults_arm(&scene.faults, LADE_FAULT_ANY, 0, false, -EIO);
  all_run(&scene, LADE_STORE_WRITE, 2);
  all_run(&scene, LADE_STORE_READ, 2);
  scene_end(&scene);
}

/* Half a stripe fails to be written over: it is moved, and its other half is lost, not made up. */
static void the_rest_of_a_stripe_that_moved_is_lost(void **state)
{
  struct scene scene;
  struct lade_error error = {0};
  int n_lost = 0, n_right = 0;
  scene_begin(&scene, 2);
  all_run(&scene, LADE_STORE_WRITE, 1);
  lade_faults_arm(&scene.faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  const uint64_t granule = LADE_STORE_GRANULE_BYTES, n = TENSOR_BYTES / granule;
  for (uint64_t at = 0; at < n; at += 2) {
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, scene.extents[0], scene.data, 2);
    write.offset = at * granule;
    write.bytes = granule;
    data_fill(scene.data, granule, 1000 + at);
    assert_int_equal(transfer_run(scene.store, &write, &error), 0);
  }
  lade_faults_arm(&scene.faults, LADE_FAULT_ANY, 0, false, -EIO);
  for (uint64_t at = 0; at < n; at++) {
    struct lade_transfer read = transfer_of(LADE_STORE_READ, scene.extents[0], scene.back, at % 2 ? 1 : 2);
    read.identity.tensor = at % 2 ? 0 : read.identity.tensor;
    read.offset = at * granule;
    read.bytes = granule;
    int code = transfer_run(scene.store, &read, &error);
    if (at % 2 && code) {
      assert_int_equal(code, -EIO);
      assert_non_null(strstr(error.text, "lost"));
      n_lost++;
      continue;
    }
    assert_int_equal(code, 0);
    data_fill(scene.data, at % 2 ? TENSOR_BYTES : granule, at % 2 ? N_TENSORS : 1000 + at);
    assert_memory_equal(scene.back, scene.data + (at % 2 ? at * granule : 0), granule);
    n_right++;
  }
  assert_true(n_lost > 0 && n_right > n_lost);
  scene_end(&scene);
}

/*
 * Values share a granule, each with checksums of its own elsewhere, as states of short parameters do. Writing over one
 * of them fails and is done again on the other drive: what its neighbours had is lost, and is told to be, to the block.
 */
static void a_neighbour_in_the_granule_of_a_stripe_that_moved_is_lost(void **state)
{
  struct scene scene;
  struct lade_error error = {0};
  int n_lost = 0;
  scene_begin(&scene, 2);
  all_run(&scene, LADE_STORE_WRITE, 1);
  lade_faults_arm(&scene.faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  for (int i = 0; i < N_TENSORS; i++) {
    struct lade_transfer own = transfer_of(LADE_STORE_WRITE, scene.extents[i], scene.data, 2);
    own.check = LADE_CHECK_CALLER;
    own.offset = 3 * LADE_STORE_BLOCK_BYTES;
    own.bytes = 2 * LADE_STORE_BLOCK_BYTES;
    data_fill(scene.data, own.bytes, 1000 + (uint64_t)i);
    assert_int_equal(transfer_run(scene.store, &own, &error), 0);
    own.op = LADE_STORE_READ;
    own.data = scene.back;
    assert_int_equal(transfer_run(scene.store, &own, &error), 0);
    assert_memory_equal(scene.data, scene.back, own.bytes);
    for (uint64_t block = 2; block <= 5; block += 3) {
      struct lade_transfer other = own;
      other.offset = block * LADE_STORE_BLOCK_BYTES;
      other.bytes = LADE_STORE_BLOCK_BYTES;
      int code = transfer_run(scene.store, &other, &error);
      data_fill(scene.data, TENSOR_BYTES, N_TENSORS + (uint64_t)i);
      if (code && (code != -EIO || !strstr(error.text, "lost")))
        fail_msg("tensor %d, block %d: %d, %s", i, (int)block, code, error.text);
      if (!code)
        assert_memory_equal(scene.data + other.offset, scene.back, other.bytes);
      n_lost += code != 0;
    }
  }
  assert_true(n_lost > 0 && n_lost < 2 * N_TENSORS);
  scene_end(&scene);
}

/* Of tensor @i every second granule from @first on, as it is at @generation, is written or read and compared. */
static void granules_run(struct scene *scene, enum lade_store_op op, int i, uint64_t first, uint64_t generation)
{
  const uint64_t granule = LADE_STORE_GRANULE_BYTES;
  struct lade_error error = {0};
  data_fill(scene->data, TENSOR_BYTES, generation * N_TENSORS + (uint64_t)i);
  for (uint64_t at = first * granule; at < TENSOR_BYTES; at += 2 * granule) {
    char *data = (op == LADE_STORE_WRITE ? scene->data : scene->back) + at;
    struct lade_transfer part = transfer_of(op, scene->extents[i], data, generation);
    part.identity.tensor = (uint32_t)i;
    part.offset = at;
    part.bytes = LADE_MIN(granule, TENSOR_BYTES - at);
    if (transfer_run(scene->store, &part, &error))
      fail_msg("tensor %d at %llu: %s", i, (unsigned long long)at, error.text);
    if (op == LADE_STORE_READ)
      assert_memory_equal(scene->data + at, data, part.bytes);
  }
}

/*
 * Requests end anywhere, so that most stripes are written in parts: these leave a drive that was set aside, what is not
 * written is still read there, and in the end it has nothing more to do.
 */
static void parts_of_stripes_leave_a_drive_that_is_set_aside(void **state)
{
  struct scene scene;
  struct lade_error error = {0};
  scene_begin(&scene, 2);
  all_run(&scene, LADE_STORE_WRITE, 1);
  lade_faults_arm(&scene.faults, LADE_FAULT_FILE_READ, 1, false, -EIO);
  for (int i = 0; i < N_TENSORS; i++)
    tensor_run(&scene, LADE_STORE_READ, i, 1, &error);
  expect_aside(&scene, "second,", "Input/output error");
  for (int turn = 0; turn < 2; turn++) {
    const uint64_t first = (uint64_t)turn;
    lade_faults_init(&scene.faults);
    for (int i = 0; i < N_TENSORS; i++)
      granules_run(&scene, LADE_STORE_WRITE, i, first, 2);
    assert_int_equal(lade_faults_count(&scene.faults, LADE_FAULT_FILE_WRITE), 0);
    for (int i = 0; i < N_TENSORS; i++) {
      granules_run(&scene, LADE_STORE_READ, i, first, 2);
      granules_run(&scene, LADE_STORE_READ, i, 1 - first, turn ? 2 : 1);
    }
    assert_int_equal(lade_faults_count(&scene.faults, LADE_FAULT_FILE_READ) > 0, turn == 0);
  }
  all_run(&scene, LADE_STORE_READ, 2);
  assert_int_equal(lade_faults_count(&scene.faults, LADE_FAULT_FILE_READ), 0);
  scene_end(&scene);
}

static void a_slow_drive_is_set_aside_and_its_data_stays_readable(void **state)
{
  struct scene scene;
  char text[512];
  if (engine == LADE_STORE_URING) {
    print_message("SKIP: only threads can be slowed down\n");
    skip();
  }
  scene_begin(&scene, 2);
  all_run(&scene, LADE_STORE_WRITE, 1);
  assert_false(lade_store_take_notice(scene.store, text, sizeof(text)));
  lade_faults_arm(&scene.faults, LADE_FAULT_FILE_WRITE, 1, true, LADE_STORE_FAULT_SLOW);
  uint64_t generation = 1;
  struct lade_store_info info = {0};
  while (!info.n_aside && generation < 60) {
    all_run(&scene, LADE_STORE_WRITE, ++generation);
    lade_store_get_info(scene.store, &info);
  }
  expect_aside(&scene, "second,", "holds the others up");
  all_run(&scene, LADE_STORE_READ, generation);
  all_run(&scene, LADE_STORE_WRITE, ++generation);
  all_run(&scene, LADE_STORE_READ, generation);
  scene_end(&scene);
}

/* When the last drive fails, its errors are the store's, and it stays usable. */
static void the_last_drive_is_never_set_aside(void **state)
{
  struct scene scene;
  struct lade_error error = {0};
  struct lade_store_info info;
  scene_begin(&scene, 0);
  lade_faults_arm(&scene.faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  for (int i = 0; i < N_TENSORS; i++)
    assert_int_equal(tensor_run(&scene, LADE_STORE_WRITE, i, 1, &error), -EIO);
  lade_store_get_info(scene.store, &info);
  assert_int_equal(info.n_aside, 1);
  lade_faults_arm(&scene.faults, LADE_FAULT_ANY, 0, false, -EIO);
  all_run(&scene, LADE_STORE_WRITE, 2);
  all_run(&scene, LADE_STORE_READ, 2);
  scene_end(&scene);
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
  assert_in_range(two, one / 10 * 9, one / 10 * 11); /* one drive, counted once; others write to it meanwhile */
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
      cmocka_unit_test(both_directories_carry_what_is_written),
      cmocka_unit_test(what_a_failing_drive_refuses_is_written_elsewhere),
      cmocka_unit_test(no_drive_is_set_aside_for_want_of_a_thread),
      cmocka_unit_test(what_a_failed_drive_had_is_an_error_and_can_be_written_anew),
      cmocka_unit_test(the_rest_of_a_stripe_that_moved_is_lost),
      cmocka_unit_test(a_neighbour_in_the_granule_of_a_stripe_that_moved_is_lost),
      cmocka_unit_test(parts_of_stripes_leave_a_drive_that_is_set_aside),
      cmocka_unit_test(a_slow_drive_is_set_aside_and_its_data_stays_readable),
      cmocka_unit_test(the_last_drive_is_never_set_aside),
      cmocka_unit_test(a_list_of_directories_is_checked_name_by_name),
      cmocka_unit_test(two_directories_on_one_drive_are_remarked_on),
  };
  char *args[] = {argv[0], argc > 1 ? argv[1] : "posix", "two", NULL};
  int skip = suite_begin(3, args);
  return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
