/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on a machine that refuses: every kind of call failing at every position, transfers cut short, temporary and
 * permanent refusals, no free space, no permission, no io_uring. Each ends in the right bytes or in an error with a
 * name, never in a wrong byte. The sanitizer finds leaks.
 */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conform/store_fixture.h"
#include "tests/support/scratch.h"

#define BYTES (3 * PIECE_BYTES + 5000)

/* ---- faults injected at the store's own points ---- */

/*
 * Run the life of a store. Return 0 if all calls succeeded and the bytes read are right; else the first error, which
 * must have a line of text.
 */
static int life_run(struct lade_faults *faults, enum lade_store_engine wanted, struct lade_error *error)
{
  struct lade_store_params params = params_of(faults);
  struct lade_extent extent;
  lade_store *store = NULL;
  char *data = data_make(BYTES), *back = data_make(BYTES);
  data_fill(data, BYTES, 1);
  params.engine = wanted;
  *error = (struct lade_error){0};
  int code = lade_store_open(&params, error, &store);
  if (!code)
    code = lade_store_reserve(store, BYTES, &extent);
  if (!code)
    code = lade_store_prepare(store, error);
  if (!code) {
    lade_store_pin(store, data, BYTES); /* if refused, the store works without */
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
    code = transfer_run(store, &write, error);
  }
  if (!code) {
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 1);
    code = transfer_run(store, &read, error);
    if (!code && memcmp(data, back, BYTES))
      fail_msg("wrong bytes without an error");
  }
  lade_store_close(store);
  free(data);
  free(back);
  if (code && (!*error->text || error->code != code))
    fail_msg("error %d without its text (%s)", code, error->text);
  return code;
}

/* Arm the Nth call of @point for every N. Return how many lives ended in @code. */
static int every_nth(enum lade_fault_point point, bool is_for_good, int code)
{
  struct lade_faults faults;
  struct lade_error error;
  int n_failed = 0;
  lade_faults_init(&faults);
  assert_int_equal(life_run(&faults, engine, &error), 0);
  uint64_t n_calls = lade_faults_count(&faults, point);
  for (uint64_t nth = 1; nth <= n_calls; nth++) {
    lade_faults_arm(&faults, point, nth, is_for_good, code);
    int result = life_run(&faults, engine, &error);
    if (result && result != code && result != -EIO && result != -ENOMEM && result != -EINVAL)
      fail_msg("%s %llu: %d, %s", lade_fault_name(point), (unsigned long long)nth, result, error.text);
    n_failed += result == code;
  }
  return n_failed;
}

static void any_call_may_fail(void **state)
{
  for (int point = 0; point < LADE_N_FAULT_POINTS; point++) {
    every_nth(point, false, -EIO);
    every_nth(point, true, -EIO);
  }
}

static void a_failed_transfer_is_an_error(void **state)
{
  struct lade_faults faults;
  struct lade_error error;
  lade_faults_init(&faults);
  assert_int_equal(life_run(&faults, engine, &error), 0);
  uint64_t n_reads = lade_faults_count(&faults, LADE_FAULT_FILE_READ);
  uint64_t n_writes = lade_faults_count(&faults, LADE_FAULT_FILE_WRITE);
  assert_true(n_reads >= 4 && n_writes >= 8);
  if (has_two_drives)
    return; /* failed writes are repeated elsewhere: store_drives.c */
  assert_int_equal(every_nth(LADE_FAULT_FILE_READ, false, -EIO), n_reads);
  assert_int_equal(every_nth(LADE_FAULT_FILE_WRITE, false, -EIO), n_writes);
  assert_int_equal(every_nth(LADE_FAULT_FILE_WRITE, false, -ENOSPC), n_writes);
}

static void short_transfers_are_continued(void **state)
{
  assert_int_equal(every_nth(LADE_FAULT_FILE_READ, false, LADE_STORE_FAULT_SHORT), 0);
  assert_int_equal(every_nth(LADE_FAULT_FILE_READ, true, LADE_STORE_FAULT_SHORT), 0);
  assert_int_equal(every_nth(LADE_FAULT_FILE_WRITE, false, LADE_STORE_FAULT_SHORT), 0);
  assert_int_equal(every_nth(LADE_FAULT_FILE_WRITE, true, LADE_STORE_FAULT_SHORT), 0);
}

static void refusals_that_pass_are_tried_again(void **state)
{
  const int codes[] = {-EINTR, -EAGAIN, -EBUSY};
  const enum lade_fault_point points[] = {LADE_FAULT_FILE_READ, LADE_FAULT_FILE_WRITE, LADE_FAULT_RING_SUBMIT,
                                          LADE_FAULT_RING_COMPLETE, LADE_FAULT_RING_WAIT};
  for (size_t i = 0; i < LADE_COUNT(codes); i++) {
    for (size_t j = 0; j < LADE_COUNT(points); j++)
      assert_int_equal(every_nth(points[j], false, codes[i]), 0);
  }
  /* Status of a ring's transfer for which the kernel may start no thread. */
  assert_int_equal(every_nth(LADE_FAULT_RING_COMPLETE, false, -ECANCELED), 0);
}

static void permanent_refusals_become_an_error(void **state)
{
  struct lade_faults faults;
  struct lade_error error;
  const int codes[] = {-EINTR, -EAGAIN, -EBUSY};
  for (size_t i = 0; i < LADE_COUNT(codes); i++) {
    lade_faults_arm(&faults, LADE_FAULT_FILE_READ, 3, true, codes[i]);
    assert_int_equal(life_run(&faults, engine, &error), -EIO);
    assert_non_null(strstr(error.text, "tensor 77"));
    assert_non_null(strstr(error.text, strerror(-codes[i])));
    assert_true(lade_faults_injected(&faults) < 500);
  }
}

/* Armed once a store is prepared: the failed transfer is named, and the next one is not affected. */
static void a_failed_transfer_names_its_tensor_and_leaves_the_store_usable(void **state)
{
  struct lade_faults faults;
  struct lade_error error = {0};
  struct lade_extent extent;
  if (has_two_drives)
    return; /* its drive is set aside: store_drives.c */
  lade_faults_init(&faults);
  lade_store *store = store_make(&faults, BYTES, &extent);
  char *data = data_make(BYTES), *back = data_make(BYTES);
  data_fill(data, BYTES, 1);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 1);
  lade_faults_arm(&faults, LADE_FAULT_FILE_WRITE, 2, false, -EIO);
  assert_int_equal(transfer_run(store, &write, &error), -EIO);
  assert_non_null(strstr(error.text, "store in ."));
  assert_non_null(strstr(error.text, "writing tensor 77"));
  assert_int_equal(transfer_run(store, &write, &error), 0);
  lade_faults_arm(&faults, LADE_FAULT_FILE_READ, 3, false, -EIO);
  assert_int_equal(transfer_run(store, &read, &error), -EIO);
  assert_non_null(strstr(error.text, "reading tensor 77"));
  assert_int_equal(read.failed_offset, 2 * PIECE_BYTES);
  assert_non_null(strstr(error.text, "offset 524288"));
  assert_int_equal(transfer_run(store, &read, &error), 0);
  assert_memory_equal(data, back, BYTES);
  lade_store_close(store);
  free(data);
  free(back);
}

/* The ring's tail holds an entry that the kernel has not taken; later calls must not submit it twice. */
static void a_refused_submission_concerns_one_transfer(void **state)
{
  struct lade_faults faults;
  struct lade_extent extent;
  struct lade_error error;
  if (engine != LADE_STORE_URING)
    return;
  lade_faults_init(&faults);
  lade_store *store = store_make(&faults, BYTES, &extent);
  char *data = data_make(BYTES), *back = data_make(BYTES);
  data_fill(data, BYTES, 1);
  for (uint64_t nth = 1; nth <= 4; nth++) {
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, nth);
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, nth);
    lade_faults_arm(&faults, LADE_FAULT_RING_SUBMIT, nth, false, -EIO);
    assert_int_equal(transfer_run(store, &write, &error), -EIO);
    assert_int_equal(transfer_run(store, &write, &error), 0);
    assert_int_equal(transfer_run(store, &read, &error), 0);
    assert_memory_equal(data, back, BYTES);
  }
  lade_store_close(store);
  free(data);
  free(back);
}

/* A ring that delivers no completion ends every transfer in it and every later one, and the store can be closed. */
static void a_ring_that_breaks_is_an_error(void **state)
{
  struct lade_faults faults;
  struct lade_extent extent;
  struct lade_error error = {0};
  if (engine != LADE_STORE_URING)
    return;
  lade_faults_init(&faults);
  lade_store *store = store_make(&faults, BYTES, &extent);
  char *data = data_make(BYTES);
  data_fill(data, BYTES, 1);
  struct lade_transfer first = transfer_of(LADE_STORE_WRITE, extent, data, 1), second = first;
  lade_faults_arm(&faults, LADE_FAULT_RING_WAIT, 1, true, -EBADF);
  assert_int_equal(lade_store_submit(store, &first), 0);
  assert_int_equal(lade_store_submit(store, &second), 0);
  assert_int_equal(lade_store_wait(store, &first, &error), -EIO);
  assert_non_null(strstr(error.text, strerror(EBADF)));
  assert_int_equal(lade_store_wait(store, &second, &error), -EIO);
  assert_int_equal(transfer_run(store, &first, &error), -EIO);
  lade_store_close(store);
  free(data);
}

static void a_refused_ring_falls_back_with_a_note(void **state)
{
  const int codes[] = {-EPERM, -ENOSYS, -ENOMEM};
  struct lade_faults faults;
  struct lade_error error = {0};
  struct lade_store_info info;
  struct lade_store_params params = params_of(&faults);
  for (size_t i = 0; i < LADE_COUNT(codes) && engine == LADE_STORE_URING; i++) {
    lade_store *store = NULL;
    lade_faults_arm(&faults, LADE_FAULT_RING_SETUP, 1, true, codes[i]);
    params.engine = LADE_STORE_AUTO;
    assert_int_equal(lade_store_open(&params, &error, &store), 0);
    lade_store_get_info(store, &info);
    assert_string_equal(info.engine, "posix");
    assert_non_null(strstr(lade_store_note(store), "io_uring refused"));
    lade_store_close(store);
    params.engine = LADE_STORE_URING;
    store = NULL;
    assert_int_equal(lade_store_open(&params, &error, &store), codes[i]);
    assert_null(store);
  }
}

/* ---- a machine that refuses ---- */

/* Run @fn in a child. cmocka's asserts do not work there, so @fn returns 0, or a number that names the failed check. */
static int child_run(int (*fn)(void))
{
  int status = 0;
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (!pid)
    _exit(fn());
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

enum { CHILD_SKIPS = 77 };

/* Check that child_run returned 0; CHILD_SKIPS skips the test, for the reason @why. */
static void child_verify(int code, const char *why)
{
  if (code == CHILD_SKIPS) {
    print_message("SKIP: %s\n", why);
    skip();
  }
  assert_int_equal(code, 0);
}

/* Make system call @number fail with @code from now on if its argument @i_arg has any of @bits (0: always). */
static bool syscall_refuse(unsigned number, int i_arg, unsigned bits, int code)
{
  const unsigned arg_at = (unsigned)offsetof(struct seccomp_data, args) + (unsigned)i_arg * 8;
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, arg_at),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, bits ? 1 : 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)code),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = LADE_COUNT(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int child_without_uring(void)
{
  struct lade_error error;
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (!syscall_refuse(SYS_io_uring_setup, 0, 0, EPERM))
    return CHILD_SKIPS;
  if (life_run(NULL, LADE_STORE_AUTO, &error))
    return 1;
  if (life_run(NULL, LADE_STORE_URING, &error) == 0)
    return 2;
  params.engine = LADE_STORE_AUTO;
  if (lade_store_open(&params, &error, &store) || !strstr(lade_store_note(store), "io_uring refused"))
    return 3;
  lade_store_close(store);
  return 0;
}

static void a_sandbox_without_io_uring_is_served_by_threads(void **state)
{
  child_verify(child_run(child_without_uring), "seccomp filters are refused here");
}

static int child_without_direct(void)
{
  struct lade_error error = {0};
  struct lade_store_info info;
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (!syscall_refuse(SYS_openat, 2, O_DIRECT, EINVAL))
    return CHILD_SKIPS;
  if (lade_store_open(&params, &error, &store) != -EIO || !strstr(error.text, "O_DIRECT"))
    return 1;
  params.allow_buffered = true;
  if (lade_store_open(&params, &error, &store))
    return 2;
  lade_store_get_info(store, &info);
  if (info.is_direct || !strstr(lade_store_note(store), "page cache"))
    return 3;
  lade_store_close(store);
  return 0;
}

static void a_file_system_without_o_direct_is_refused_unless_allowed(void **state)
{
  child_verify(child_run(child_without_direct), "seccomp filters are refused here");
}

static void without_o_tmpfile_the_file_is_unlinked_at_once(void **state)
{
  struct lade_faults faults;
  struct lade_error error;
  char path[] = "names-XXXXXX";
  assert_non_null(mkdtemp(path));
  struct lade_store_params params = params_of(&faults);
  lade_store *store = NULL;
  params.dir = path;
  lade_faults_arm(&faults, LADE_FAULT_FILE_OPEN, 1, false, -EOPNOTSUPP);
  assert_int_equal(lade_store_open(&params, &error, &store), 0);
  assert_int_equal(lade_faults_injected(&faults), 1);
  assert_int_equal(rmdir(path), 0); /* an entry in it would forbid that */
  lade_store_close(store);
}

static void expect_open_error(const char *dir, int code, const char *text)
{
  struct lade_store_params params = params_of(NULL);
  struct lade_error error = {0};
  lade_store *store = NULL;
  params.dir = dir;
  assert_int_equal(lade_store_open(&params, &error, &store), code);
  assert_int_equal(error.code, code);
  assert_non_null(strstr(error.text, text));
  assert_null(store);
}

static void a_directory_that_cannot_be_used_is_named(void **state)
{
  int fd = open("plain-file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  close(fd);
  expect_open_error("no/such/directory", -ENOENT, "no/such/directory");
  expect_open_error("plain-file", -ENOTDIR, "plain-file");
  expect_open_error("", -EINVAL, "directory");
  unlink("plain-file");
}

static int child_without_rights(void)
{
  struct lade_error error = {0};
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (geteuid() == 0 && setuid(65534))
    return CHILD_SKIPS;
  params.dir = "closed";
  int code = lade_store_open(&params, &error, &store);
  return code == -EACCES && strstr(error.text, "closed") ? 0 : 1;
}

static void a_directory_without_rights_is_named(void **state)
{
  assert_int_equal(mkdir("closed", 0500), 0);
  int code = child_run(child_without_rights);
  rmdir("closed");
  child_verify(code, "cannot give up root's rights here");
}

static void a_store_in_memory_is_refused_unless_asked_for(void **state)
{
  struct statfs fs;
  struct lade_error error;
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (statfs("/dev/shm", &fs) < 0 || fs.f_type != TMPFS_MAGIC || access("/dev/shm", W_OK) < 0) {
    print_message("SKIP: /dev/shm is no tmpfs that can be written\n");
    skip();
  }
  expect_open_error("/dev/shm", -EIO, "tmpfs");
  params.dir = "/dev/shm";
  params.allow_tmpfs = true;
  if (lade_store_open(&params, &error, &store))
    fail_msg("%s", error.text);
  lade_store_close(store);
}

static void a_store_without_room_is_refused_with_both_numbers(void **state)
{
  struct lade_store_params params = params_of(NULL);
  struct lade_error error = {0};
  struct lade_extent extent;
  lade_store *store = NULL;
  params.capacity_bytes = 0;
  assert_int_equal(lade_store_open(&params, &error, &store), 0);
  assert_int_equal(lade_store_reserve(store, 1ull << 60, &extent), 0);
  assert_int_equal(lade_store_prepare(store, &error), -ENOSPC);
  assert_non_null(strstr(error.text, "1152921504606846976 bytes"));
  assert_non_null(strstr(error.text, "are free"));
  lade_store_close(store);
}

static int call_refusal; /* errno of a refused call in a child */

static int child_without_fallocate(void)
{
  struct lade_error error;
  if (!syscall_refuse(SYS_fallocate, 0, 0, (unsigned)call_refusal))
    return CHILD_SKIPS;
  return life_run(NULL, engine, &error) != 0;
}

/* A file system may not support it, and a sandbox may forbid it. */
static void without_fallocate_the_first_writing_allocates(void **state)
{
  const int codes[] = {EOPNOTSUPP, ENOSYS, EINVAL, EPERM};
  for (size_t i = 0; i < LADE_COUNT(codes); i++) {
    call_refusal = codes[i];
    child_verify(child_run(child_without_fallocate), "seccomp filters are refused here");
  }
}

/* Return 0 if an unexpected error of fallocate is reported as an I/O error with its own cause. */
static int child_with_odd_fallocate(void)
{
  struct lade_error error = {0};
  if (!syscall_refuse(SYS_fallocate, 0, 0, (unsigned)call_refusal))
    return CHILD_SKIPS;
  return life_run(NULL, engine, &error) != -EIO || !strstr(error.text, strerror(call_refusal));
}

static int child_with_odd_open(void)
{
  struct lade_error error = {0};
  if (!syscall_refuse(SYS_openat, 2, O_DIRECT, (unsigned)call_refusal))
    return CHILD_SKIPS;
  return life_run(NULL, engine, &error) != -EIO || !strstr(error.text, strerror(call_refusal));
}

static void refusals_before_the_first_transfer_are_io_errors(void **state)
{
  const int codes[] = {EINTR, EAGAIN, EBUSY, ENODEV, ETIMEDOUT};
  for (size_t i = 0; i < LADE_COUNT(codes); i++) {
    call_refusal = codes[i];
    child_verify(child_run(child_with_odd_fallocate), "seccomp filters are refused here");
    child_verify(child_run(child_with_odd_open), "seccomp filters are refused here");
  }
}

static uint64_t memlock_bytes;

/* True if memory within the limit is pinned with a ring, and memory beyond it is not. */
static bool pins_are_limited(lade_store *store, bool is_ring)
{
  char *max = data_make(16 * MIB);
  struct lade_store_info info;
  bool is_limited = !lade_store_pin(store, max, 16 * MIB);
  bool is_pinned = lade_store_pin(store, max, MIB);
  lade_store_get_info(store, &info);
  lade_store_unpin(store, max, MIB);
  free(max);
  return is_limited && is_pinned == (is_ring && memlock_bytes) && info.pinned_bytes == (is_pinned ? MIB : 0);
}

/* True if pins end with the store, so that the next one may pin as much. */
static bool close_gives_pins_back(const struct lade_store_params *params)
{
  char *data = data_make(6 * MIB);
  bool is_pinned = true;
  for (int i = 0; i < 16 && is_pinned; i++) {
    struct lade_error error;
    lade_store *store;
    if (lade_store_open(params, &error, &store))
      break;
    is_pinned = lade_store_pin(store, data, 6 * MIB);
    lade_store_close(store);
  }
  free(data);
  return is_pinned;
}

/*
 * As an ordinary user, return 0 if the store works, 1 if not, 2 if it does not report the missing feature. Return 3 if
 * it pins other memory than allowed, 4 if pins stay after it.
 */
static int child_with_memlock(void)
{
  struct rlimit limit = {.rlim_cur = memlock_bytes, .rlim_max = memlock_bytes};
  struct lade_error error = {0};
  struct lade_store_info info;
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || (geteuid() == 0 && setuid(65534)))
    return CHILD_SKIPS;
  params.engine = engine == LADE_STORE_URING ? LADE_STORE_AUTO : engine;
  if (life_run(NULL, params.engine, &error) || lade_store_open(&params, &error, &store))
    return 1;
  lade_store_get_info(store, &info);
  bool is_lesser = engine == LADE_STORE_URING && strcmp(info.engine, "io_uring");
  bool is_said = strstr(lade_store_note(store), "memlock") != NULL;
  bool is_limited = pins_are_limited(store, !strcmp(info.engine, "io_uring"));
  lade_store_close(store);
  if (!is_limited)
    return 3;
  if (memlock_bytes && !strcmp(info.engine, "io_uring") && !close_gives_pins_back(&params))
    return 4;
  return is_lesser && (!is_said || memlock_bytes) ? 2 : 0;
}

static void a_limit_of_locked_memory_is_enough_or_done_without(void **state)
{
  const uint64_t limits[] = {0, 8 * MIB};
  chmod(".", 0777);
  chmod("first", 0777);
  chmod("second,", 0777);
  for (size_t i = 0; i < LADE_COUNT(limits); i++) {
    memlock_bytes = limits[i];
    child_verify(child_run(child_with_memlock), "cannot be an ordinary user here");
  }
}

/* The directory of an unnamed file may be removed; the store does not notice. */
static void a_directory_that_is_removed_is_not_missed(void **state)
{
  struct lade_store_params params = params_of(NULL);
  struct lade_extent extent;
  struct lade_error error = {0};
  lade_store *store = NULL;
  char *data = data_make(BYTES), *back = data_make(BYTES);
  assert_int_equal(mkdir("fleeting", 0700), 0);
  params.dir = "fleeting";
  assert_int_equal(lade_store_open(&params, &error, &store), 0);
  assert_int_equal(lade_store_reserve(store, BYTES, &extent), 0);
  assert_int_equal(rmdir("fleeting"), 0);
  assert_int_equal(lade_store_prepare(store, &error), 0);
  data_fill(data, BYTES, 1);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 1);
  assert_int_equal(transfer_run(store, &write, &error), 0);
  assert_int_equal(transfer_run(store, &read, &error), 0);
  assert_memory_equal(data, back, BYTES);
  lade_store_close(store);
  free(data);
  free(back);
}

/* A file system cannot become read-only under an open store; a read-only one is refused by name. */
static int child_read_only(void)
{
  struct lade_error error = {0};
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (!scratch_disk_mount("remounted", "8m"))
    return CHILD_SKIPS;
  params.dir = "remounted";
  params.allow_tmpfs = true;
  if (lade_store_open(&params, &error, &store))
    return 1;
  if (mount("none", "remounted", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0 || errno != EBUSY)
    return 2;
  lade_store_close(store);
  if (mount("none", "remounted", NULL, MS_REMOUNT | MS_RDONLY, NULL))
    return CHILD_SKIPS;
  struct lade_faults faults;
  params.faults = &faults;
  for (int n = 0; n < 3; n++) { /* unchanged, without O_TMPFILE, without O_DIRECT as well */
    lade_faults_init(&faults);
    if (n)
      lade_faults_arm(&faults, LADE_FAULT_FILE_OPEN, 1, n == 2, -EOPNOTSUPP);
    store = NULL;
    int code = lade_store_open(&params, &error, &store);
    if (code != (n == 2 ? -EIO : -EROFS) || !strstr(error.text, "remounted"))
      return 3 + n;
  }
  return 0;
}

/* A container's file system may lack direct transfers, which is then reported, or support them. */
static int child_on_overlay(void)
{
  static const char *const names[] = {"layers/lower", "layers/upper", "layers/work", "layers/merged"};
  struct lade_error error = {0};
  if (!scratch_disk_mount("layers", "32m"))
    return CHILD_SKIPS;
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    if (mkdir(names[i], 0700))
      return 1;
  }
  if (mount("overlay", "layers/merged", "overlay", 0,
            "lowerdir=layers/lower,upperdir=layers/upper,workdir=layers/work"))
    return CHILD_SKIPS;
  fixture_dirs = "layers/merged";
  int code = life_run(NULL, engine, &error);
  return code && (code != -EIO || !strstr(error.text, "O_DIRECT") || !strstr(error.text, "layers/merged"));
}

static void an_overlay_is_a_store_or_refused_by_name(void **state)
{
  assert_int_equal(mkdir("layers", 0777), 0);
  int code = child_run(child_on_overlay);
  rmdir("layers");
  child_verify(code, "overlays cannot be mounted here");
}

#define N_CROWDED 24
#define CROWDED_BYTES PIECE_BYTES /* one stripe each; the second drive has space for half of them */

/* Write each of N_CROWDED tensors at @generation, or read and compare it. Return the successful ones, as bits. */
static uint32_t crowd_run(lade_store *store, const struct lade_extent *extents, enum lade_store_op op,
                          uint64_t generation, bool *ret_is_named)
{
  char *data = data_make(CROWDED_BYTES), *back = data_make(CROWDED_BYTES);
  uint32_t done = 0;
  *ret_is_named = true;
  for (uint32_t i = 0; i < N_CROWDED; i++) {
    struct lade_error error = {0};
    struct lade_transfer transfer = transfer_of(op, extents[i], op == LADE_STORE_WRITE ? data : back, generation);
    transfer.identity.tensor = i;
    data_fill(data, CROWDED_BYTES, generation * N_CROWDED + i);
    char name[32];
    snprintf(name, sizeof(name), "ing tensor %u ", i);
    int code = transfer_run(store, &transfer, &error);
    bool is_right = op == LADE_STORE_WRITE || !memcmp(data, back, CROWDED_BYTES);
    done |= !code && is_right ? 1u << i : 0;
    *ret_is_named &= code ? strstr(error.text, name) != NULL : is_right;
  }
  free(data);
  free(back);
  return done;
}

/*
 * The first drive fails, and the second fills up while it takes over: values that fit are right, the others give errors
 * with a name.
 */
static int child_takes_over_until_full(void)
{
  const uint32_t all = (1u << N_CROWDED) - 1;
  struct lade_faults faults;
  struct lade_error error = {0};
  struct lade_extent extents[N_CROWDED];
  struct lade_store_params params = params_of(&faults);
  lade_store *store = NULL;
  char notice[512] = "";
  bool is_named;
  if (!scratch_disk_mount("second,", "3m"))
    return CHILD_SKIPS;
  params.allow_tmpfs = true;
  params.faulty_drive = 1;
  lade_faults_init(&faults);
  if (lade_store_open(&params, &error, &store))
    return 1;
  for (int i = 0; i < N_CROWDED; i++)
    lade_store_reserve(store, CROWDED_BYTES, &extents[i]);
  if (lade_store_prepare(store, &error) || crowd_run(store, extents, LADE_STORE_WRITE, 1, &is_named) != all)
    return 2;
  lade_faults_arm(&faults, LADE_FAULT_FILE_WRITE, 1, true, -EIO);
  uint32_t written = crowd_run(store, extents, LADE_STORE_WRITE, 2, &is_named);
  if (!written || written == all || !is_named)
    return 3;
  if (!lade_store_take_notice(store, notice, sizeof(notice)) || !strstr(notice, "may not have room"))
    return 4;
  lade_faults_arm(&faults, LADE_FAULT_ANY, 0, false, -EIO);
  uint32_t read = crowd_run(store, extents, LADE_STORE_READ, 2, &is_named);
  lade_store_close(store);
  return (read & written) == written && is_named ? 0 : 5; /* an EIO may concern bytes that were written */
}

static void a_drive_that_fills_up_while_it_takes_over_loses_nothing_silently(void **state)
{
  if (has_two_drives)
    child_verify(child_run(child_takes_over_until_full), "mount namespaces are forbidden here");
}

static void a_read_only_remount_is_refused_by_name(void **state)
{
  assert_int_equal(mkdir("remounted", 0777), 0);
  int code = child_run(child_read_only);
  rmdir("remounted");
  child_verify(code, "mount namespaces are forbidden here");
}

static int child_with_size_limit(void)
{
  struct rlimit limit = {.rlim_cur = MIB, .rlim_max = MIB};
  struct lade_error error = {0};
  struct lade_extent extent;
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
    return CHILD_SKIPS;
  if (lade_store_open(&params, &error, &store) || lade_store_reserve(store, 2 * MIB, &extent))
    return 1;
  if (lade_store_prepare(store, &error) != -EFBIG || !strstr(error.text, "ulimit"))
    return 2;
  lade_store_close(store);
  return 0;
}

static void a_file_size_limit_is_an_error_and_not_a_signal(void **state)
{
  child_verify(child_run(child_with_size_limit), "the file size limit cannot be set here");
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_call_may_fail),
      cmocka_unit_test(a_failed_transfer_is_an_error),
      cmocka_unit_test(short_transfers_are_continued),
      cmocka_unit_test(refusals_that_pass_are_tried_again),
      cmocka_unit_test(permanent_refusals_become_an_error),
      cmocka_unit_test(a_failed_transfer_names_its_tensor_and_leaves_the_store_usable),
      cmocka_unit_test(a_refused_submission_concerns_one_transfer),
      cmocka_unit_test(a_ring_that_breaks_is_an_error),
      cmocka_unit_test(a_refused_ring_falls_back_with_a_note),
      cmocka_unit_test(a_sandbox_without_io_uring_is_served_by_threads),
      cmocka_unit_test(a_file_system_without_o_direct_is_refused_unless_allowed),
      cmocka_unit_test(without_o_tmpfile_the_file_is_unlinked_at_once),
      cmocka_unit_test(a_directory_that_cannot_be_used_is_named),
      cmocka_unit_test(a_directory_without_rights_is_named),
      cmocka_unit_test(a_store_in_memory_is_refused_unless_asked_for),
      cmocka_unit_test(a_store_without_room_is_refused_with_both_numbers),
      cmocka_unit_test(a_file_size_limit_is_an_error_and_not_a_signal),
      cmocka_unit_test(without_fallocate_the_first_writing_allocates),
      cmocka_unit_test(refusals_before_the_first_transfer_are_io_errors),
      cmocka_unit_test(a_limit_of_locked_memory_is_enough_or_done_without),
      cmocka_unit_test(a_directory_that_is_removed_is_not_missed),
      cmocka_unit_test(an_overlay_is_a_store_or_refused_by_name),
      cmocka_unit_test(a_drive_that_fills_up_while_it_takes_over_loses_nothing_silently),
      cmocka_unit_test(a_read_only_remount_is_refused_by_name),
  };
  int skip = suite_begin(argc, argv);
  return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
