/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine over NCCL on one rank, over the fakes: refused openings, every call of NCCL and of the driver failing in
 * turn, later errors, broken devices. Working calls, and several ranks, are in the conformance suite.
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
#include "base/cpu.h"
#include "base/faults.h"
#include "device/cuda.h"
#include "parallel/comm.h"
#include "parallel/nccl_library.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/fakes/fakes.h"
#include "tests/support/symbols.h"

#define N 1000
#define CALM_NCCL "version=22809,polls=2,fail=none,nth=1,code=3,forever=0,async=0,register=1"
#define CALM_CUDA "fail=none,nth=1,code=2,forever=0,lose=0,lose_code=719"

static struct fake_driver driver;
static struct {
  fake_nccl_set_fn *set;
  fake_nccl_calls_fn *calls;
  fake_nccl_failed_fn *failed;
  fake_nccl_live_fn *live;
  fake_nccl_direct_fn *direct;
} fake;
static struct lade_kernels kernels;

static bool fake_find(void)
{
  const struct symbol nccl[] = {
      {"fake_nccl_set", &fake.set},
      {"fake_nccl_calls", &fake.calls},
      {"fake_nccl_failed", &fake.failed},
      {"fake_nccl_live", &fake.live},
      {"fake_nccl_direct", &fake.direct},
  };
  return fake_driver_find(&driver) && symbols_find("libnccl.so.2", nccl, LADE_COUNT(nccl));
}

static int calm(void **state)
{
  return fake.set(CALM_NCCL) || driver.set(CALM_CUDA);
}

static lade_device *device_open(void)
{
  struct lade_cuda_device_params params = {.struct_size = sizeof(params)};
  struct lade_error error = {0};
  lade_device *device = NULL;
  if (lade_device_open_cuda(&params, &error, &device))
    fail_msg("%s", error.text);
  return device;
}

static int comm_open(lade_device *device, struct lade_faults *faults, struct lade_error *error, lade_comm **ret_comm)
{
  const struct lade_comm_params params = {.struct_size = sizeof(params), .engine = LADE_COMM_NCCL, .kernels = &kernels,
                                          .timeout_ms = 60000, .device = device, .faults = faults};
  return lade_comm_open(&params, error, ret_comm);
}

/* ---- a session ---- */

/* Run every kind on @comm, on the memory at @data; one rank's sum is its own value. */
static int kinds_run(lade_comm *comm, float *data, struct lade_error *error)
{
  int status = 0;
  for (enum lade_collective_kind kind = LADE_ALL_GATHER; kind <= LADE_BARRIER && !status; kind++) {
    const struct lade_collective c = {.kind = kind, .dtype = LADE_F32, .n = N, .src = data, .dst = data + N};
    if (kind == LADE_SEND || kind == LADE_RECV) /* a rank sends to itself in an all_to_all only */
      continue;
    for (int i = 0; i < N; i++)
      data[i] = (float)i;
    memset(data + N, 0, N * sizeof(*data));
    status = lade_comm_run(comm, &c, error);
    for (int i = 0; i < N && !status && kind != LADE_BARRIER; i++)
      assert_true(data[N + i] == (float)i);
  }
  return status;
}

/* Run a sum as work on a queue. A failure is the communicator's status; the queue goes on. */
static int launched_run(lade_device *device, lade_comm *comm, float *data, struct lade_error *error)
{
  struct lade_span span = {0};
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .n = N, .src = data, .dst = data};
  struct lade_comm_work work = {.list = {&sum, 1}, .ret_span = &span};
  lade_queue *queue = NULL;
  uint64_t count = 0;
  int status = lade_queue_create(device, LADE_QUEUE_COMM, &queue);
  if (status)
    return lade_error_set(error, status, "no queue");
  assert_int_equal(lade_comm_launch(comm, queue, &work, &count), 0);
  assert_int_equal(count, 1);
  status = lade_queue_sync(queue, count);
  assert_true(lade_queue_poll(queue, count));
  int failed = lade_comm_status(comm, error);
  if (!failed && status)
    failed = lade_error_set(error, status, "the device has failed");
  if (!failed)
    assert_true(span.end_ns >= span.start_ns && span.end_ns);
  lade_queue_destroy(queue);
  return failed;
}

static int session(lade_device *device, struct lade_faults *faults, struct lade_error *error)
{
  lade_comm *comm = NULL, *part = NULL;
  void *data = NULL;
  int status = comm_open(device, faults, error, &comm);
  if (status)
    return status;
  status = lade_comm_alloc(comm, 2 * N * sizeof(float), error, &data);
  if (!status)
    status = kinds_run(comm, data, error);
  if (!status)
    status = lade_comm_split(comm, 5, 0, error, &part);
  if (!status)
    status = kinds_run(part, data, error);
  if (!status)
    status = launched_run(device, part, data, error);
  if (data)
    lade_comm_free(comm, data);
  lade_comm_close(part);
  lade_comm_close(comm);
  return status;
}

static void session_must_work(lade_device *device)
{
  struct lade_error error = {0};
  if (session(device, NULL, &error))
    fail_msg("%s", error.text);
  assert_int_equal(fake.live(), 0);
}

/* As the environment may ask: NCCL works in its own thread, and each call is polled. */
static void handles_that_are_polled_work(void **state)
{
  lade_device *device = device_open();
  const uint64_t polled = fake.calls("ncclCommGetAsyncError");
  session_must_work(device);
  const uint64_t blocking = fake.calls("ncclCommGetAsyncError") - polled;
  assert_int_equal(setenv("NCCL_COMM_BLOCKING", "0", 1), 0);
  session_must_work(device);
  assert_int_equal(unsetenv("NCCL_COMM_BLOCKING"), 0);
  assert_true(fake.calls("ncclCommGetAsyncError") - polled - blocking > 2 * blocking);
  lade_device_close(device);
  assert_int_equal(driver.live(), 0);
}

/* ---- refusals ---- */

static void refused(lade_device *device, int code, const char *words)
{
  struct lade_error error = {0};
  lade_comm *comm = (lade_comm *)&error;
  assert_int_equal(comm_open(device, NULL, &error, &comm), code);
  if (!strstr(error.text, words))
    fail_msg("'%s' is not in '%s'", words, error.text);
  assert_null(strchr(error.text, '\n'));
  assert_ptr_equal(comm, &error);
}

static void missing_features_are_refused_in_one_line(void **state)
{
  struct lade_host_device_params params = {.struct_size = sizeof(params), .capacity_bytes = 4 << 20};
  lade_device *host = NULL, *device = device_open();
  assert_int_equal(lade_device_open_host(&params, NULL, &host), 0);
  refused(NULL, -EINVAL, "needs a CUDA device");
  refused(host, -EINVAL, "needs a CUDA device");
  fake.set("version=21704");
  refused(device, -ENOSYS, "of version code 21704 and Lade needs 2.18");
  fake.set(CALM_NCCL);
  fake.set("fail=ncclGetVersion");
  refused(device, -ENOSYS, "it is no NCCL");
  lade_device_close(host);
  lade_device_close(device);
  assert_int_equal(driver.live(), 0);
}

/* ---- calls that fail ---- */

/* True for calls that release an object: they always do, and their errors are not reported. */
static bool is_silent(const char *function)
{
  return strcmp(function, "ncclCommDestroy") == 0 || strcmp(function, "ncclCommAbort") == 0
         || strcmp(function, "ncclCommFinalize") == 0 || strcmp(function, "ncclCommDeregister") == 0
         || strcmp(function, "ncclCommRegister") == 0; /* a failure costs speed, and is logged */
}

static void nccl_call_fails(lade_device *device, const char *function, uint64_t n_calls)
{
  for (uint64_t nth = 1; nth <= n_calls; nth += 1 + nth / 8) {
    char settings[96];
    struct lade_error error = {0};
    assert_int_equal(fake.set(CALM_NCCL), 0);
    snprintf(settings, sizeof(settings), "fail=%s,nth=%llu", function, (unsigned long long)nth);
    assert_int_equal(fake.set(settings), 0);
    int status = session(device, NULL, &error);
    if (fake.failed() && status == 0 && !is_silent(function) && strcmp(function, "ncclCommGetAsyncError") != 0)
      fail_msg("%s, call %llu: nobody says that it failed", function, (unsigned long long)nth);
    if (status) {
      assert_true(status == -EIO || status == -ENOSYS);
      assert_non_null(strstr(error.text, "nccl"));
    }
    assert_int_equal(fake.live(), 0);
    assert_int_equal(lade_device_status(device), 0);
  }
}

static void every_call_of_nccl_that_fails_is_named_and_leaves_nothing(void **state)
{
  static const char *const functions[] = {
#define NAME(type, name, arguments) #name,
      LADE_NCCL_FUNCTIONS(NAME)
      LADE_NCCL_LATER_FUNCTIONS(NAME)
#undef NAME
  };
  lade_device *device = device_open();
  for (size_t i = 0; i < LADE_COUNT(functions); i++) {
    assert_int_equal(fake.set(CALM_NCCL), 0);
    session_must_work(device);
    uint64_t n_calls = fake.calls(functions[i]);
    if (strcmp(functions[i], "ncclGetErrorString") != 0 && strcmp(functions[i], "ncclGetLastError") != 0)
      nccl_call_fails(device, functions[i], strcmp(functions[i], "ncclCommAbort") == 0 ? 1 : n_calls);
  }
  assert_int_equal(fake.set(CALM_NCCL), 0);
  session_must_work(device);
  lade_device_close(device);
  assert_int_equal(driver.live(), 0);
}

/* Driver calls that the engine makes besides a device's own. */
static void refusals_of_the_driver_leave_nothing(void **state)
{
  static const char *const functions[] = {"cuMemAlloc", "cuMemCreate", "cuMemHostRegister", "cuMemHostGetDevicePointer",
                                          "cuStreamCreate", "cuStreamWriteValue64", "cuMemAddressReserve", "cuMemMap",
                                          "cuLaunchHostFunc"};
  for (size_t i = 0; i < LADE_COUNT(functions); i++) {
    bool is_over = false;
    for (uint64_t nth = 1; !is_over; nth += 1 + nth / 4) {
      char settings[96];
      struct lade_error error = {0};
      lade_device *device = device_open();
      snprintf(settings, sizeof(settings), "fail=%s,nth=%llu", functions[i], (unsigned long long)nth);
      assert_int_equal(driver.set(settings), 0);
      int status = session(device, NULL, &error);
      is_over = driver.failed() == 0;
      assert_true(is_over ? status == 0 : status < 0 && error.text[0]);
      assert_int_equal(driver.set(CALM_CUDA), 0);
      lade_device_close(device);
      assert_int_equal(fake.live(), 0);
      assert_int_equal(driver.live(), 0);
    }
  }
}

static void allocations_that_fail_leave_nothing(void **state)
{
  lade_device *device = device_open();
  struct lade_faults faults;
  bool is_over = false;
  lade_faults_init(&faults);
  for (uint64_t nth = 1; !is_over; nth++) {
    struct lade_error error = {0};
    lade_faults_arm(&faults, LADE_FAULT_HEAP, nth, false, -ENOMEM);
    int status = session(device, &faults, &error);
    is_over = lade_faults_injected(&faults) == 0;
    assert_int_equal(status, is_over ? 0 : -ENOMEM);
    assert_int_equal(fake.live(), 0);
  }
  lade_device_close(device);
  assert_int_equal(driver.live(), 0);
}

/* ---- registered memory ---- */

static int n_lines;
static char last_line[512];

static void line_note(void *user, const char *line)
{
  n_lines++;
  snprintf(last_line, sizeof(last_line), "%s", line);
}

/* An arena of the device, as in an executor. */
struct arena {
  lade_chunk *chunk;
  struct lade_comm_range range;
};

static void arena_create(lade_device *device, struct arena *arena)
{
  struct lade_device_info info;
  uint64_t address = 0;
  lade_device_get_info(device, &info);
  arena->range = (struct lade_comm_range){.bytes = 2 * info.chunk_bytes, .descriptor = -1};
  assert_int_equal(lade_device_reserve(device, arena->range.bytes, &address), 0);
  assert_int_equal(lade_device_chunk_create(device, arena->range.bytes, &arena->chunk), 0);
  assert_int_equal(lade_device_map(device, address, arena->chunk), 0);
  arena->range.data = (void *)(uintptr_t)address;
}

static void arena_destroy(lade_device *device, struct arena *arena)
{
  lade_device_chunk_release(device, arena->chunk);
  lade_device_release(device, (uint64_t)(uintptr_t)arena->range.data, arena->range.bytes);
}

/* Register an arena, run all kinds in it, and end. Return the number of collectives on registered memory. */
static uint64_t registered_run(lade_device *device, const char *settings, bool *ret_is_registered)
{
  const struct lade_comm_params params = {.struct_size = sizeof(params), .engine = LADE_COMM_NCCL, .kernels = &kernels,
                                          .timeout_ms = 60000, .device = device, .log = line_note};
  struct lade_error error = {0};
  struct lade_comm_info info;
  struct arena arena;
  lade_comm *comm = NULL;
  assert_int_equal(fake.set(CALM_NCCL), 0);
  assert_int_equal(fake.set(settings), 0);
  n_lines = 0;
  assert_int_equal(lade_comm_open(&params, &error, &comm), 0);
  lade_comm_get_info(comm, &info);
  assert_true(info.can_register == (strstr(settings, "version=218") == NULL));
  arena_create(device, &arena);
  assert_int_equal(lade_comm_register(comm, &arena.range, &error, ret_is_registered), 0);
  assert_int_equal(kinds_run(comm, arena.range.data, &error), 0);
  uint64_t n_direct = fake.direct();
  if (*ret_is_registered)
    lade_comm_unregister(comm, arena.range.data);
  assert_int_equal(fake.calls("ncclCommDeregister"), n_direct > 0);
  arena_destroy(device, &arena);
  lade_comm_close(comm);
  assert_int_equal(fake.live(), 0);
  return n_direct;
}

static void an_arena_is_registered_with_nccl_where_it_can_be(void **state)
{
  lade_device *device = device_open();
  bool is_registered = false;
  uint64_t n_direct = registered_run(device, "polls=2", &is_registered);
  assert_true(is_registered && n_direct >= LADE_BROADCAST && n_lines == 0);
  /* disabled by the setting: nothing to report */
  assert_int_equal(registered_run(device, "register=0", &is_registered), 0);
  assert_true(is_registered && n_lines == 0);
  assert_int_equal(registered_run(device, "fail=ncclCommRegister,forever=1", &is_registered), 0);
  assert_true(!is_registered && n_lines == 1 && strstr(last_line, "ncclCommRegister: internal error"));
  assert_int_equal(registered_run(device, "version=21805", &is_registered), 0);
  assert_true(!is_registered && n_lines == 1 && strstr(last_line, "NCCL before 2.19 cannot"));
  lade_device_close(device);
  assert_int_equal(driver.live(), 0);
}

/* ---- later failures ---- */

static void an_asynchronous_error_ends_the_work_and_sticks(void **state)
{
  lade_device *device = device_open();
  struct lade_error error = {0}, again = {0};
  lade_comm *comm = NULL;
  void *data = NULL;
  assert_int_equal(comm_open(device, NULL, &error, &comm), 0);
  assert_int_equal(lade_comm_alloc(comm, 2 * N * sizeof(float), &error, &data), 0);
  assert_int_equal(fake.set("async=1,async_code=6"), 0);
  const struct lade_collective c = {.kind = LADE_ALL_REDUCE, .n = N, .src = data, .dst = data};
  assert_int_equal(lade_comm_run(comm, &c, &error), -EIO);
  assert_non_null(strstr(error.text, "an asynchronous error of NCCL: remote process exited"));
  assert_int_equal(lade_comm_run(comm, &c, &again), -EIO);
  assert_string_equal(again.text, error.text);
  assert_int_equal(launched_run(device, comm, data, &again), -EIO); /* its count is still reached */
  assert_true(lade_comm_is_speaker(comm) && !lade_comm_is_speaker(comm));
  assert_int_equal(lade_device_status(device), 0);
  lade_comm_free(comm, data);
  lade_comm_close(comm);
  assert_int_equal(fake.live(), 0);
  lade_device_close(device);
  assert_int_equal(driver.live(), 0);
}

static void a_device_that_breaks_is_the_communicator_s_error(void **state)
{
  bool is_over = false;
  for (int nth = 1; !is_over; nth += 3) {
    char settings[48];
    struct lade_error error = {0};
    lade_device *device = device_open();
    snprintf(settings, sizeof(settings), "lose=%d", nth);
    assert_int_equal(driver.set(settings), 0);
    int status = session(device, NULL, &error);
    is_over = status == 0;
    assert_true(is_over || error.text[0]);
    assert_int_equal(driver.set(CALM_CUDA), 0);
    lade_device_close(device);
    assert_int_equal(fake.live(), 0);
    assert_int_equal(driver.live(), 0);
  }
}

static void an_abort_ends_hanging_calls(void **state)
{
  lade_device *device = device_open();
  struct lade_error error = {0};
  lade_comm *comm = NULL;
  lade_queue *queue = NULL;
  void *data = NULL;
  uint64_t count = 0;
  assert_int_equal(comm_open(device, NULL, &error, &comm), 0);
  assert_int_equal(lade_comm_alloc(comm, N * sizeof(float), &error, &data), 0);
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_COMM, &queue), 0);
  assert_int_equal(fake.set("async=1,async_code=0"), 0); /* hangs, without an error of NCCL */
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .n = N, .src = data, .dst = data};
  struct lade_comm_work work = {.list = {&sum, 1}};
  assert_int_equal(lade_comm_launch(comm, queue, &work, &count), 0);
  assert_false(lade_queue_poll(queue, count));
  lade_comm_abort(comm, "enough");
  assert_int_equal(lade_queue_sync(queue, count), 0);
  assert_int_equal(lade_comm_status(comm, &error), -ECANCELED);
  assert_non_null(strstr(error.text, "rank 0 gave up: enough"));
  lade_queue_destroy(queue);
  lade_comm_free(comm, data);
  lade_comm_close(comm);
  assert_int_equal(fake.live(), 0);
  lade_device_close(device);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(missing_features_are_refused_in_one_line, calm),
      cmocka_unit_test_setup(handles_that_are_polled_work, calm),
      cmocka_unit_test_setup(every_call_of_nccl_that_fails_is_named_and_leaves_nothing, calm),
      cmocka_unit_test_setup(refusals_of_the_driver_leave_nothing, calm),
      cmocka_unit_test_setup(allocations_that_fail_leave_nothing, calm),
      cmocka_unit_test_setup(an_arena_is_registered_with_nccl_where_it_can_be, calm),
      cmocka_unit_test_setup(an_asynchronous_error_ends_the_work_and_sticks, calm),
      cmocka_unit_test_setup(a_device_that_breaks_is_the_communicator_s_error, calm),
      cmocka_unit_test_setup(an_abort_ends_hanging_calls, calm),
  };
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&kernels, &cpu);
  if (!fake_find()) {
    printf("SKIP: the fakes are not on LD_LIBRARY_PATH\n");
    return 77;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
