/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durable state in bad conditions: another process, another layout or version, damage at any place, refusals of every
 * call. Each is an error that names the file; none reads a wrong byte. Power cuts are in test_durable_disk.
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
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "offload/durable.h"
#include "tests/support/scratch.h"

#define SLOT_BYTES (2 * (uint64_t)LADE_STORE_GRANULE_BYTES)
#define LAYOUT 5

static _Alignas(4096) unsigned char bytes[SLOT_BYTES];

static int state_open(struct lade_faults *faults, lade_durable **ret_durable, struct lade_error *error)
{
  const struct lade_durable_params params = {
      .struct_size = sizeof(params), .dir = scratch, .engine = LADE_STORE_POSIX, .allow_tmpfs = true, .faults = faults};
  int status = lade_durable_open(&params, error, ret_durable);
  if (status)
    return status;
  status = lade_durable_prepare(*ret_durable, SLOT_BYTES, LAYOUT, error);
  if (status)
    lade_durable_close(*ret_durable);
  return status;
}

static int slot_move(lade_durable *durable, uint64_t generation, enum lade_store_op op, struct lade_error *error)
{
  struct lade_transfer transfer = {.op = op, .check = LADE_CHECK_STORE, .data = bytes, .bytes = SLOT_BYTES,
                                   .extent = lade_durable_slot(durable, generation),
                                   .identity = {.tensor = 9, .generation = generation}};
  int status = lade_store_submit(lade_durable_store(durable), &transfer);
  return status ? status : lade_store_wait(lade_durable_store(durable), &transfer, error);
}

static int next_publish(lade_durable *durable, struct lade_error *error)
{
  size_t memo_bytes;
  uint64_t next = lade_durable_memo(durable, &memo_bytes) ? lade_durable_generation(durable) + 1 : 0;
  memset(bytes, (int)next + 1, sizeof(bytes));
  int status = slot_move(durable, next, LADE_STORE_WRITE, error);
  return status ? status : lade_durable_publish(durable, next, "memo", 5, error);
}

/* Publish generations 0 to @last, and end the process. */
static void state_make(int last)
{
  lade_durable *durable;
  struct lade_error error = {0};
  if (state_open(NULL, &durable, &error))
    fail_msg("%s", error.text);
  for (int i = 0; i <= last; i++)
    assert_int_equal(next_publish(durable, &error), 0);
  lade_durable_close(durable);
}

static void state_is(uint64_t generation)
{
  lade_durable *durable;
  struct lade_error error = {0};
  size_t memo_bytes = 0;
  if (state_open(NULL, &durable, &error))
    fail_msg("%s", error.text);
  const char *memo = lade_durable_memo(durable, &memo_bytes);
  assert_non_null(memo);
  assert_int_equal(memo_bytes, 5);
  assert_string_equal(memo, "memo");
  assert_int_equal(lade_durable_generation(durable), generation);
  assert_int_equal(slot_move(durable, generation, LADE_STORE_READ, &error), 0);
  assert_int_equal(bytes[0], generation + 1);
  lade_durable_close(durable);
}

static void refused(int code, const char *word)
{
  lade_durable *durable;
  struct lade_error error = {0};
  int status = state_open(NULL, &durable, &error);
  if (status != code || !strstr(error.text, word) || !strstr(error.text, scratch) || strchr(error.text, '\n'))
    fail_msg("%d with '%s', not %d with '%s'", status, error.text, code, word);
}

static void byte_change(const char *name, uint64_t offset, int by)
{
  unsigned char byte = 0;
  int fd = open(in_scratch(name), O_RDWR | O_CLOEXEC);
  assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
  byte = (unsigned char)(byte ^ by);
  assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
  close(fd);
}

/* ---- files that are not this user's alone ---- */

static void file_make(const char *name, mode_t mode)
{
  int fd = open(in_scratch(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0 && fchmod(fd, mode) == 0);
  close(fd);
}

static void a_file_that_others_may_write_to_is_refused(void **state)
{
  file_make(LADE_DURABLE_DATA, 0666);
  refused(-EIO, LADE_DURABLE_DATA);
  assert_int_equal(chmod(in_scratch(LADE_DURABLE_DATA), 0600), 0);
  if (geteuid() == 0) {
    assert_int_equal(chown(in_scratch(LADE_DURABLE_DATA), 65534, 65534), 0);
    refused(-EIO, LADE_DURABLE_DATA);
  }
  assert_int_equal(unlink(in_scratch(LADE_DURABLE_DATA)), 0);
  state_make(0);
  assert_int_equal(chmod(in_scratch("lade-durable.journal"), 0622), 0);
  refused(-EIO, "lade-durable.journal");
  assert_int_equal(chmod(in_scratch("lade-durable.journal"), 0600), 0);
  state_is(0);
}

/* Check that the first publication is refused with the file @name in its way, which may be a link to "target". */
static void first_publish_refused(const char *name)
{
  lade_durable *durable;
  struct lade_error error = {0};
  struct stat st;
  assert_int_equal(state_open(NULL, &durable, &error), 0);
  assert_int_equal(next_publish(durable, &error), -EIO);
  assert_non_null(strstr(error.text, name));
  lade_durable_close(durable);
  assert_int_equal(stat(in_scratch("target"), &st), 0);
  assert_int_equal(st.st_size, 0);
  assert_int_equal(unlink(in_scratch(name)), 0);
}

static void a_link_in_place_of_a_file_is_refused(void **state)
{
  static const char name[] = "lade-durable.journal.new";
  file_make("target", 0600);
  assert_int_equal(link(in_scratch("target"), in_scratch(name)), 0);
  first_publish_refused(name);
  assert_int_equal(symlink("target", in_scratch(name)), 0);
  first_publish_refused(name);
  assert_int_equal(link(in_scratch("target"), in_scratch(LADE_DURABLE_DATA)), 0);
  refused(-EIO, LADE_DURABLE_DATA);
  assert_int_equal(unlink(in_scratch(LADE_DURABLE_DATA)), 0);
  assert_int_equal(symlink("target", in_scratch(LADE_DURABLE_DATA)), 0);
  refused(-EIO, LADE_DURABLE_DATA);
}

/* ---- files after a process's life ---- */

static void generations_are_found_again(void **state)
{
  state_make(0);
  state_is(0);
  state_make(2);
  state_is(3);
  struct stat file;
  assert_int_equal(stat(in_scratch(LADE_DURABLE_DATA), &file), 0);
  assert_int_equal(file.st_mode & 07777, 0600);
  assert_int_equal(stat(in_scratch(LADE_DURABLE_JOURNAL), &file), 0);
  assert_int_equal(file.st_mode & 07777, 0600);
}

static void unpublished_state_leaves_nothing(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  assert_int_equal(state_open(NULL, &durable, &error), 0);
  lade_durable_close(durable);
  assert_int_not_equal(access(in_scratch(LADE_DURABLE_DATA), F_OK), 0);
  assert_int_not_equal(access(in_scratch(LADE_DURABLE_JOURNAL), F_OK), 0);
}

static bool is_stopping(void *user)
{
  return true;
}

static void a_stop_while_slots_are_written_leaves_nothing(void **state)
{
  const struct lade_durable_params params = {.struct_size = sizeof(params), .dir = scratch, .engine = LADE_STORE_POSIX,
                                             .allow_tmpfs = true, .is_stopping = is_stopping};
  lade_durable *durable;
  struct lade_error error = {0};
  assert_int_equal(lade_durable_open(&params, &error, &durable), 0);
  assert_int_equal(lade_durable_prepare(durable, SLOT_BYTES, LAYOUT, &error), -EINTR);
  lade_durable_close(durable);
  assert_int_not_equal(access(in_scratch(LADE_DURABLE_DATA), F_OK), 0);
}

static void the_generation_under_way_is_not_found(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  state_make(2);
  assert_int_equal(state_open(NULL, &durable, &error), 0);
  memset(bytes, 0xee, sizeof(bytes));
  assert_int_equal(slot_move(durable, 3, LADE_STORE_WRITE, &error), 0);
  lade_durable_close(durable);
  state_is(2);
}

/* ---- ranks ---- */

static int rank_open(int rank, struct lade_faults *faults, lade_durable **ret_durable, struct lade_error *error)
{
  const struct lade_durable_params params = {.struct_size = sizeof(params), .dir = scratch, .rank = rank,
                                             .faults = faults, .engine = LADE_STORE_POSIX, .allow_tmpfs = true};
  return lade_durable_open(&params, error, ret_durable);
}

static void ranks_have_files_of_their_own(void **state)
{
  lade_durable *ranks[2];
  struct lade_error error = {0};
  state_make(1);
  for (int rank = 0; rank < 2; rank++)
    assert_int_equal(rank_open(rank, NULL, &ranks[rank], &error), 0);
  size_t memo_bytes;
  assert_non_null(lade_durable_memo(ranks[0], &memo_bytes));
  assert_null(lade_durable_memo(ranks[1], &memo_bytes));
  assert_int_equal(lade_durable_prepare(ranks[1], SLOT_BYTES, LAYOUT, &error), 0);
  assert_int_equal(next_publish(ranks[1], &error), 0);
  assert_int_equal(access(in_scratch("lade-durable-1.data"), F_OK), 0);
  assert_int_equal(access(in_scratch("lade-durable-1.journal"), F_OK), 0);
  for (int rank = 0; rank < 2; rank++)
    lade_durable_close(ranks[rank]);
  state_is(1);
}

/* Withdraw one generation, and check that a second withdrawal fails. Return the status of the first. */
static int last_withdraw(struct lade_faults *faults, struct lade_error *error)
{
  lade_durable *durable;
  int status = rank_open(0, faults, &durable, error);
  if (status)
    return status;
  status = lade_durable_withdraw(durable, error);
  lade_durable_close(durable);
  return status;
}

static void a_generation_is_taken_back_for_good(void **state)
{
  struct lade_error error = {0};
  state_make(3);
  assert_int_equal(last_withdraw(NULL, &error), 0);
  state_is(2);
  assert_int_equal(last_withdraw(NULL, &error), -EBADMSG); /* the slot of generation 1 is overwritten */
  assert_non_null(strstr(error.text, "generation 1"));
  state_is(2);
  state_make(1); /* generations 3 and 4 */
  state_is(4);
  assert_int_equal(last_withdraw(NULL, &error), 0);
  state_is(3);
}

/* The record that ranks compare before one of them withdraws a generation. */
static void the_generation_before_is_known_until_it_counts(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  size_t memo_bytes = 0;
  state_make(0);
  assert_int_equal(rank_open(0, NULL, &durable, &error), 0);
  assert_null(lade_durable_memo_before(durable, &memo_bytes));
  lade_durable_close(durable);
  state_make(0); /* generation 1 */
  assert_int_equal(rank_open(0, NULL, &durable, &error), 0);
  assert_non_null(lade_durable_memo_before(durable, &memo_bytes));
  assert_int_equal(memo_bytes, 5);
  assert_int_equal(lade_durable_withdraw(durable, &error), 0);
  assert_null(lade_durable_memo_before(durable, &memo_bytes));
  lade_durable_close(durable);
}

static void the_first_generation_is_taken_back_to_nothing(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  size_t memo_bytes;
  state_make(0);
  assert_int_equal(rank_open(0, NULL, &durable, &error), 0);
  assert_int_equal(lade_durable_withdraw(durable, &error), 0);
  assert_null(lade_durable_memo(durable, &memo_bytes));
  assert_int_equal(lade_durable_prepare(durable, SLOT_BYTES, LAYOUT, &error), 0);
  assert_int_equal(next_publish(durable, &error), 0);
  lade_durable_close(durable);
  state_is(0);
  assert_int_equal(last_withdraw(NULL, &error), 0);
  assert_int_not_equal(access(in_scratch(LADE_DURABLE_JOURNAL), F_OK), 0);
}

/* The journal may have been moved away, and put back. */
static void data_without_a_journal_is_not_removed(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  state_make(2);
  assert_int_equal(rename(in_scratch(LADE_DURABLE_JOURNAL), in_scratch("away")), 0);
  assert_int_equal(rank_open(0, NULL, &durable, &error), 0);
  lade_durable_close(durable);
  assert_int_equal(rename(in_scratch("away"), in_scratch(LADE_DURABLE_JOURNAL)), 0);
  state_is(2);
}

/* Whichever call is refused, one of both generations is found whole afterwards. */
static void a_refusal_while_going_back_leaves_one_of_both(void **state)
{
  for (uint64_t nth = 1;; nth++) {
    struct lade_faults faults;
    struct lade_error error = {0};
    lade_durable *durable;
    scratch_teardown(state);
    scratch_setup_in_memory(state);
    state_make(3);
    lade_faults_init(&faults);
    lade_faults_arm(&faults, LADE_FAULT_ANY, nth, true, -EIO);
    int status = last_withdraw(&faults, &error);
    if (!lade_faults_injected(&faults)) {
      assert_true(nth > 5);
      break;
    }
    assert_true(status && *error.text && !strchr(error.text, '\n'));
    assert_int_equal(rank_open(0, NULL, &durable, &error), 0);
    const uint64_t generation = lade_durable_generation(durable);
    lade_durable_close(durable);
    assert_true(generation == 2 || generation == 3);
    state_is(generation);
  }
}

/* ---- refused records ---- */

static void a_directory_in_use_is_refused(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  assert_int_equal(state_open(NULL, &durable, &error), 0);
  refused(-EBUSY, "another run");
  lade_durable_close(durable);
}

static void another_layout_is_refused(void **state)
{
  const struct lade_durable_params params = {
      .struct_size = sizeof(params), .dir = scratch, .engine = LADE_STORE_POSIX, .allow_tmpfs = true};
  lade_durable *durable;
  struct lade_error error = {0};
  state_make(1);
  assert_int_equal(lade_durable_open(&params, &error, &durable), 0);
  assert_int_equal(lade_durable_prepare(durable, SLOT_BYTES, LAYOUT + 1, &error), -EINVAL);
  assert_non_null(strstr(error.text, "something else"));
  lade_durable_close(durable);
  assert_int_equal(lade_durable_open(&params, &error, &durable), 0);
  assert_int_equal(lade_durable_prepare(durable, 2 * SLOT_BYTES, LAYOUT, &error), -EINVAL);
  lade_durable_close(durable);
  state_is(1);
}

static void several_directories_are_refused(void **state)
{
  struct lade_durable_params params = {.struct_size = sizeof(params), .dir = ".,.", .allow_tmpfs = true};
  lade_durable *durable;
  struct lade_error error = {0};
  assert_int_equal(lade_durable_open(&params, &error, &durable), -EINVAL);
  assert_non_null(strstr(error.text, "one directory"));
  params.dir = "no,,such";
  assert_int_equal(lade_durable_open(&params, &error, &durable), -ENOENT);
  assert_non_null(strstr(error.text, "no,such"));
}

static void another_version_is_refused(void **state)
{
  state_make(1);
  byte_change(LADE_DURABLE_JOURNAL, 8, 6); /* version 7; the slot may be the newest, whatever generation the other
                                              slot has */
  refused(-EINVAL, "byte 0 is of format version 7");
  byte_change(LADE_DURABLE_JOURNAL, 8, 6);
  byte_change(LADE_DURABLE_JOURNAL, 4096 + 8, 6);
  refused(-EINVAL, "byte 4096 is of format version 7");
}

/* ---- damage ---- */

static void a_torn_record_leaves_the_one_before(void **state)
{
  static const uint64_t places[] = {0, 12, 17, 60, 2000, 4095};
  for (size_t i = 0; i < LADE_COUNT(places); i++) {
    scratch_teardown(state);
    scratch_setup_in_memory(state);
    state_make(2);
    byte_change(LADE_DURABLE_JOURNAL, places[i], 1 << i);
    state_is(1);
  }
}

static void a_journal_without_a_record_is_damaged(void **state)
{
  state_make(1);
  byte_change(LADE_DURABLE_JOURNAL, 100, 1);
  byte_change(LADE_DURABLE_JOURNAL, 4096 + 100, 1);
  refused(-EBADMSG, LADE_DURABLE_JOURNAL);
  assert_int_equal(truncate(in_scratch(LADE_DURABLE_JOURNAL), 5000), 0);
  refused(-EBADMSG, "shorter");
}

static void a_damaged_table_is_found(void **state)
{
  state_make(1);
  byte_change(LADE_DURABLE_DATA, 2 * LADE_STORE_GRANULE_BYTES + 3, 4); /* generation 1's */
  refused(-EBADMSG, "table of checksums");
}

static void a_data_file_that_is_gone_or_cut_is_damage(void **state)
{
  state_make(1);
  assert_int_equal(truncate(in_scratch(LADE_DURABLE_DATA), 100000), 0);
  refused(-EBADMSG, "ends at byte");
  assert_int_equal(unlink(in_scratch(LADE_DURABLE_DATA)), 0);
  refused(-EBADMSG, "ends at byte");
}

/* Change bits anywhere in the newest slot, and replace it by the slot of two generations before. */
static void damaged_bytes_are_found_when_they_are_read(void **state)
{
  lade_durable *durable;
  struct lade_error error = {0};
  state_make(1);
  static unsigned char older[SLOT_BYTES];
  const uint64_t slot = 3 * LADE_STORE_GRANULE_BYTES + SLOT_BYTES;
  int fd = open(in_scratch(LADE_DURABLE_DATA), O_RDWR | O_CLOEXEC);
  assert_true(fd >= 0 && pread(fd, older, SLOT_BYTES, (off_t)slot) == (ssize_t)SLOT_BYTES);
  for (uint64_t at = 0; at < SLOT_BYTES; at += 7777) {
    byte_change(LADE_DURABLE_DATA, slot + at, 0x20);
    assert_int_equal(state_open(NULL, &durable, &error), 0);
    assert_int_equal(slot_move(durable, 1, LADE_STORE_READ, &error), -EBADMSG);
    assert_non_null(strstr(error.text, LADE_DURABLE_DATA));
    assert_non_null(strstr(error.text, "tensor 9"));
    lade_durable_close(durable);
    byte_change(LADE_DURABLE_DATA, slot + at, 0x20);
  }
  state_make(1); /* generations 2 and 3, and 3's slot gets 1's bytes */
  assert_int_equal(pwrite(fd, older, SLOT_BYTES, (off_t)slot), SLOT_BYTES);
  close(fd);
  assert_int_equal(state_open(NULL, &durable, &error), 0);
  assert_int_equal(slot_move(durable, 3, LADE_STORE_READ, &error), -EBADMSG);
  lade_durable_close(durable);
}

/* The file is removed, moved away, or replaced: publishing would reach no reader. */
static void a_file_that_goes_while_it_is_in_use_is_missed(void **state)
{
  static const char *const names[] = {LADE_DURABLE_DATA, LADE_DURABLE_JOURNAL};
  for (int i = 0; i < 4; i++) {
    lade_durable *durable;
    struct lade_error error = {0};
    scratch_teardown(state);
    scratch_setup_in_memory(state);
    state_make(1);
    assert_int_equal(state_open(NULL, &durable, &error), 0);
    assert_int_equal(next_publish(durable, &error), 0);
    assert_int_equal(i < 2 ? unlink(in_scratch(names[i])) : rename(in_scratch(names[i - 2]), in_scratch("away")), 0);
    assert_int_equal(next_publish(durable, &error), -EIO);
    assert_non_null(strstr(error.text, names[i % 2]));
    assert_non_null(strstr(error.text, "removed"));
    lade_durable_close(durable);
  }
}

/* ---- a machine that refuses ---- */

/* Run a life of one generation. Return its first error. */
static int faulty_live(struct lade_faults *faults, struct lade_error *error)
{
  lade_durable *durable;
  int status = state_open(faults, &durable, error);
  if (status)
    return status;
  status = next_publish(durable, error);
  lade_durable_close(durable);
  return status;
}

/*
 * Fail every call of files and of the heap, in a first life and in a second. Each gives an error of one line, and the
 * next life finds every acknowledged generation.
 */
static void every_refusal_keeps_the_current_generation(void **state)
{
  struct lade_faults faults;
  struct lade_error error;
  for (int has_state = 0; has_state < 2; has_state++) {
    int n_failed = 0;
    for (uint64_t nth = 1;; nth++) {
      scratch_teardown(state);
      scratch_setup_in_memory(state);
      if (has_state)
        state_make(0);
      lade_faults_init(&faults);
      lade_faults_arm(&faults, LADE_FAULT_ANY, nth, true, -EIO);
      error = (struct lade_error){0};
      int status = faulty_live(&faults, &error);
      if (!lade_faults_injected(&faults))
        break;
      if (status && (!*error.text || strchr(error.text, '\n')))
        fail_msg("call %d: no line: '%s'", (int)nth, error.text);
      n_failed += status != 0;
      lade_durable *durable;
      if (state_open(NULL, &durable, &error))
        fail_msg("after call %d: %s", (int)nth, error.text);
      size_t memo_bytes;
      bool has_memo = lade_durable_memo(durable, &memo_bytes);
      assert_true(has_memo || (!has_state && status));
      assert_int_equal(has_memo ? slot_move(durable, lade_durable_generation(durable), LADE_STORE_READ, &error) : 0, 0);
      assert_true(status || lade_durable_generation(durable) == (uint64_t)has_state);
      lade_durable_close(durable);
    }
    assert_true(n_failed > 20);
  }
}

/* Reads and writes of the journal and of tables are retried like those of slots, a bounded number of times. */
static void refusals_that_pass_are_tried_again(void **state)
{
  static const enum lade_fault_point points[] = {LADE_FAULT_FILE_READ, LADE_FAULT_FILE_WRITE};
  static const int codes[] = {-EINTR, -EAGAIN, -EBUSY};
  for (size_t i = 0; i < LADE_COUNT(points) * LADE_COUNT(codes); i++) {
    const enum lade_fault_point point = points[i / LADE_COUNT(codes)];
    const int code = codes[i % LADE_COUNT(codes)];
    struct lade_faults faults;
    struct lade_error error;
    uint64_t nth = 0;
    scratch_teardown(state);
    scratch_setup_in_memory(state);
    state_make(0);
    do {
      lade_faults_init(&faults);
      lade_faults_arm(&faults, point, ++nth, false, code);
      if (faulty_live(&faults, &error))
        fail_msg("%s %d fails once: %s", lade_fault_name(point), (int)nth, error.text);
    } while (lade_faults_injected(&faults));
    assert_true(nth > 2);
    state_is(nth); /* one by each life */
    lade_faults_arm(&faults, point, nth - 1, true, code);
    assert_int_equal(faulty_live(&faults, &error), -EIO);
    assert_non_null(strstr(error.text, strerror(-code)));
    assert_true(lade_faults_injected(&faults) < 500);
  }
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, scratch_setup_in_memory, scratch_teardown)
  const struct CMUnitTest tests[] = {
      EACH(generations_are_found_again),
      EACH(unpublished_state_leaves_nothing),
      EACH(a_stop_while_slots_are_written_leaves_nothing),
      EACH(the_generation_under_way_is_not_found),
      EACH(ranks_have_files_of_their_own),
      EACH(a_generation_is_taken_back_for_good),
      EACH(the_generation_before_is_known_until_it_counts),
      EACH(the_first_generation_is_taken_back_to_nothing),
      EACH(data_without_a_journal_is_not_removed),
      EACH(a_refusal_while_going_back_leaves_one_of_both),
      EACH(a_directory_in_use_is_refused),
      EACH(another_layout_is_refused),
      EACH(several_directories_are_refused),
      EACH(another_version_is_refused),
      EACH(a_torn_record_leaves_the_one_before),
      EACH(a_journal_without_a_record_is_damaged),
      EACH(a_damaged_table_is_found),
      EACH(a_data_file_that_is_gone_or_cut_is_damage),
      EACH(a_file_that_goes_while_it_is_in_use_is_missed),
      EACH(damaged_bytes_are_found_when_they_are_read),
      EACH(every_refusal_keeps_the_current_generation),
      EACH(refusals_that_pass_are_tried_again),
      EACH(a_file_that_others_may_write_to_is_refused),
      EACH(a_link_in_place_of_a_file_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
