/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of CUDA devices alone, over the fake driver: every way in which opening is refused, every driver call
 * failing in turn, broken contexts, contexts and streams of the caller's.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda.h"
#include "device/cuda_driver.h"
#include "offload/pinned.h"
#include "tests/support/fakes/fakes.h"

#define CHUNK ((uint64_t)2 << 20)
#define CALM "version=13000,devices=1,sm=90,memory=256,words=1,host_chunks=1,fail=none,nth=1,code=2,forever=0,lose=0"

/* The fake's control calls, and driver calls that the test makes itself. */
static struct fake_driver fake;

static int calm(void **state)
{
  return fake.set(CALM);
}

static int open_with(const struct lade_cuda_device_params *given, struct lade_error *error, lade_device **ret_device)
{
  struct lade_cuda_device_params params = *given;
  params.struct_size = sizeof(params);
  return lade_device_open_cuda(&params, error, ret_device);
}

static lade_device *must_open(void)
{
  lade_device *device = NULL;
  assert_int_equal(open_with(&(struct lade_cuda_device_params){0}, NULL, &device), 0);
  return device;
}

/* ---- opening ---- */

static void missing_features_are_refused_in_one_line(void **state)
{
  const struct {
    const char *settings;
    int code;
    const char *words;
    int ordinal;
    uint64_t capacity_bytes;
  } cases[] = {
      {"devices=0", -ENODEV, "finds no GPU", 0, 0},
      {"version=11040", -ENODEV, "speaks CUDA 11.4 and Lade needs 12.0; install driver R525", 0, 0},
      {"fail=cuInit,code=803", -ENODEV, "restart the machine", 0, 0},
      {"fail=cuInit,code=999", -ENODEV, "cuInit: CUDA_ERROR_UNKNOWN (999): unknown error", 0, 0},
      {"fail=cuInit,code=46", -ENODEV, "an unknown error (46)", 0, 0},
      {"fail=cuGetProcAddress,code=500", -ENODEV, "has no cuInit", 0, 0},
      {"sm=75", -ENODEV, "Fake GPU is of compute capability 7.5 and Lade needs 8.0", 0, 0},
      {"words=0", -ENODEV, "no streams that wait for 64-bit words", 0, 0},
      {"devices=1", -ENODEV, "no GPU number 3", 3, 0},
      {"memory=64", -EOVERFLOW, "67108864 bytes and 134217728 were asked for", 0, 64 * CHUNK},
      {"memory=4", -ENOMEM, "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)", 0, 0},
  };
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_error error = {0};
    lade_device *device = (lade_device *)&error;
    assert_int_equal(fake.set(CALM), 0);
    assert_int_equal(fake.set(cases[i].settings), 0);
    const struct lade_cuda_device_params params = {.ordinal = cases[i].ordinal,
                                                   .capacity_bytes = cases[i].capacity_bytes};
    assert_int_equal(open_with(&params, &error, &device), cases[i].code);
    if (!strstr(error.text, cases[i].words))
      fail_msg("'%s' does not say '%s'", error.text, cases[i].words);
    assert_null(strchr(error.text, '\n'));
    assert_ptr_equal(device, &error);
    assert_int_equal(fake.live(), 0);
  }
}

static void names_of_gpus(void **state)
{
  assert_int_equal(lade_cuda_ordinal("cuda"), 0);
  assert_int_equal(lade_cuda_ordinal("cuda:0"), 0);
  assert_int_equal(lade_cuda_ordinal("cuda:17"), 17);
  const char *const others[] = {"", "cud", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:99999", "cuda0", "host"};
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    assert_int_equal(lade_cuda_ordinal(others[i]), -EINVAL);
}

static void gpus_are_listed_by_their_uuids(void **state)
{
  struct lade_cuda_seen all, slices;
  assert_int_equal(fake.set("devices=3"), 0);
  assert_true(!lade_cuda_list(NULL, &all) && all.n == 3);
  assert_memory_equal(all.names[2].uuid, ((unsigned char[16]){0x57, 0xad, [15] = 2}), 16);
  setenv("CUDA_VISIBLE_DEVICES", "MIG-57ad0000-0000-0000-0000-000000000002,0", 1);
  assert_int_equal(fake.set("slices=2"), 0);
  assert_true(!lade_cuda_list(NULL, &slices) && slices.n == 1);
  assert_memory_equal(&slices.names[0], &all.names[2], sizeof(all.names[2]));
  assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES") + fake.set("slices=1,devices=1"), 0);
}

static void the_public_name_opens_the_gpu(void **state)
{
  struct lade_device_params params = {.struct_size = sizeof(params), .name = "cuda:0", .capacity_bytes = 8 * CHUNK};
  lade_device *device = NULL;
  assert_int_equal(lade_device_open(&params, NULL, &device), 0);
  struct lade_device_info info;
  lade_device_get_info(device, &info);
  assert_string_equal(info.name, "cuda:0: Fake GPU");
  assert_string_equal(info.pci, "0000:c1:01.0");
  assert_int_equal(info.capacity_bytes, 8 * CHUNK);
  assert_false(info.is_unified);
  lade_device_close(device);
}

/* ---- one session of every kind of call ---- */

struct session {
  lade_device *device;
  uint64_t at;
  lade_chunk *chunk;
  lade_chunk *shared, *imported;
  lade_queue *queues[4];
  lade_cuda_graph *graph;
  void *host; /* pinned */
  struct lade_host_chunk host_chunk; /* from the driver */
  uint64_t word_address; /* of a word in it, for streams */
  uint64_t little;       /* memory of lade_cuda_alloc */
};

#define HOST_BYTES 12288 /* two pages for copies, and one with a word that the stream writes */
#define WORD 77

static uint64_t *session_word(const struct session *s)
{
  return (uint64_t *)(void *)((char *)s->host + 8192);
}

static int set_bytes(void *stream, void *arg)
{
  const struct session *s = arg;
  return fake.memory_set(s->at + CHUNK, 0x5a, 4096, stream);
}

static int set_word(void *stream, void *arg)
{
  const struct session *s = arg;
  return lade_cuda_stream_write(s->device, stream, s->word_address, WORD);
}

/* Make a chunk and another process's import of it. */
static int session_share(struct session *s)
{
  int descriptor = -1;
  int status = lade_device_chunk_create_shared(s->device, CHUNK, &s->shared);
  if (!status)
    status = lade_device_chunk_export(s->device, s->shared, &descriptor);
  if (!status)
    status = lade_device_chunk_import(s->device, descriptor, CHUNK, &s->imported);
  if (!status)
    status = lade_device_map(s->device, s->at, s->imported);
  if (descriptor >= 0)
    close(descriptor);
  return status;
}

static int session_memory(struct session *s)
{
  int error = lade_device_reserve(s->device, 4 * CHUNK, &s->at);
  if (!error)
    error = lade_device_chunk_create(s->device, 2 * CHUNK, &s->chunk);
  if (!error)
    error = lade_device_map(s->device, s->at, s->chunk);
  if (!error)
    error = lade_device_unmap(s->device, s->at, 4 * CHUNK);
  if (!error)
    error = lade_device_map(s->device, s->at + CHUNK, s->chunk);
  s->host = error ? NULL : aligned_alloc(4096, HOST_BYTES);
  if (s->host && (error = lade_device_pin(s->device, s->host, HOST_BYTES)) != 0) {
    free(s->host);
    s->host = NULL;
  }
  if (!error)
    error = lade_cuda_get_address(s->device, session_word(s), &s->word_address);
  if (!error)
    error = lade_device_host_create(s->device, 1, CHUNK, 0, &s->host_chunk);
  return error ? error : lade_cuda_alloc(s->device, 64, &s->little);
}

static int session_queues(struct session *s)
{
  const enum lade_queue_role roles[] = {LADE_QUEUE_COMPUTE, LADE_QUEUE_TO_HOST, LADE_QUEUE_HOST,
                                        LADE_QUEUE_SIGNAL};
  int error = 0;
  for (int i = 0; i < 4 && !error; i++)
    error = lade_queue_create(s->device, roles[i], &s->queues[i]);
  return error;
}

static void count_up(void *args)
{
  ++*(int *)args;
}

/*
 * Submit work on every kind of queue, each after the one before; none begins before all are submitted. The first piece
 * is in the graph. Return the device's status.
 */
static int session_work(struct session *s, int *n_runs)
{
  lade_queue *compute = s->queues[0], *to_host = s->queues[1], *host = s->queues[2];
  void *at = (void *)(uintptr_t)(s->at + CHUNK);
  uint64_t count = 0;
  memset(s->host, 0, HOST_BYTES);
  lade_queue_wait(compute, s->queues[3], 1);
  lade_cuda_graph_launch(s->graph, compute, NULL, NULL);
  lade_cuda_queue_enqueue(compute, set_word, s, NULL, &count);
  lade_queue_wait(to_host, compute, count);
  lade_queue_copy(to_host, &(struct lade_copy){s->host, at, 4096, 0, NULL}, &count);
  lade_queue_wait(host, to_host, count);
  lade_queue_copy(host, &(struct lade_copy){(char *)s->host + 4096, s->host, 4096, 0, NULL}, &count);
  lade_queue_wait(compute, host, count);
  lade_queue_launch(compute, &(struct lade_work){count_up, n_runs, 0, NULL}, &count);
  assert_int_equal(count, 3);
  lade_queue_signal(s->queues[3], 1);
  return lade_queue_sync(compute, count);
}

static void session_finish(struct session *s)
{
  for (int i = 0; i < 4; i++)
    lade_queue_destroy(s->queues[i]);
  lade_cuda_graph_destroy(s->graph);
  if (s->host)
    lade_device_unpin(s->device, s->host, HOST_BYTES);
  if (s->host_chunk.bytes)
    lade_device_host_release(s->device, &s->host_chunk);
  if (s->device)
    lade_cuda_free(s->device, s->little);
  lade_device_chunk_release(s->device, s->imported);
  lade_device_chunk_release(s->device, s->shared);
  lade_device_chunk_release(s->device, s->chunk);
  if (s->at)
    lade_device_release(s->device, s->at, 4 * CHUNK);
  lade_device_close(s->device);
  free(s->host);
}

/* Run a session. Return its first error, with the driver's name for it if it came from work. */
static int session_play(struct session *s, struct lade_error *error)
{
  int n_runs = 0;
  int status = lade_cuda_list(error, &(struct lade_cuda_seen){0});
  if (!status)
    status = open_with(&(struct lade_cuda_device_params){0}, error, &s->device);
  if (!status)
    status = session_memory(s);
  if (!status)
    status = session_share(s);
  if (!status)
    status = session_queues(s);
  if (!status)
    status = lade_cuda_graph_create(s->device, set_bytes, s, error, &s->graph);
  if (!status)
    status = session_work(s, &n_runs);
  if (s->device && lade_device_status(s->device))
    lade_cuda_get_error(s->device, error);
  return status;
}

static void work_moves_through_every_kind_of_queue(void **state)
{
  struct session s = {0};
  struct lade_error error = {0};
  assert_int_equal(session_play(&s, &error), 0);
  for (int i = 0; i < 8192; i++)
    assert_int_equal(((unsigned char *)s.host)[i], 0x5a);
  assert_int_equal(*session_word(&s), WORD);
  session_finish(&s);
  assert_int_equal(fake.live(), 0);
}

/* True for calls that the device repeats after a failure: a second unmap, an export's, memory with handles. */
static bool is_made_again(const char *function, uint64_t nth)
{
  return (strcmp(function, "cuMemUnmap") == 0 && nth == 2) || (strcmp(function, "cuMemCreate") == 0 && nth == 1);
}

/*
 * Fail call @nth of @function and run a session. A failing call that releases an object still releases it, and its
 * result only reports an earlier error. Return true if the fault was met.
 */
static bool nth_call_fails(const char *function, uint64_t nth)
{
  char settings[96];
  snprintf(settings, sizeof(settings), "fail=%s,nth=%llu,code=999", function, (unsigned long long)nth);
  assert_int_equal(fake.set(settings), 0);
  struct session s = {0};
  struct lade_error error = {0};
  int status = session_play(&s, &error);
  bool is_in_play = fake.failed() > 0;
  if (is_in_play && !status && !is_made_again(function, nth) && !(s.device && lade_device_status(s.device)))
    fail_msg("call %llu of %s failed and nobody said so", (unsigned long long)nth, function);
  if (s.device && lade_device_status(s.device))
    assert_non_null(strstr(error.text, "CUDA_ERROR_UNKNOWN"));
  assert_true(is_in_play || !status);
  session_finish(&s);
  bool is_met = fake.failed() > 0;
  assert_int_equal(fake.set("fail=none"), 0);
  if (fake.live() != 0)
    fail_msg("call %llu of %s failed and %lld things were left", (unsigned long long)nth, function,
             (long long)fake.live());
  return is_met;
}

#define NAME(name, arguments) #name,
static const char *const functions[] = {LADE_DRIVER_FUNCTIONS(NAME)};
#undef NAME

/* True for functions unused here: of adopted or long contexts and streams, of kernels (test_cuda_launch.c). */
static bool is_elsewhere(const char *function)
{
  return strstr("cuCtxGetDevice cuEventQuery cuLaunchKernel cuStreamIsCapturing", function) ||
         !strncmp(function, "cuModule", 8) || !strncmp(function, "cuFunc", 6);
}

/*
 * Fail each call of each function. A queue makes thousands of equal events: of those, and of their ends, only the first
 * ones and some others.
 */
static void any_driver_call_may_fail_and_nothing_leaks(void **state)
{
  int n_met = 0;
  assert_int_equal(fake.set("fail=none"), 0);
  for (size_t i = 0; i < LADE_COUNT(functions); i++) {
    bool is_text = strncmp(functions[i], "cuGetError", 10) == 0; /* these make the messages */
    uint64_t nth = 1;
    while (!is_text && nth_call_fails(functions[i], nth)) {
      nth += nth < 6 || strncmp(functions[i], "cuEvent", 7) != 0 ? 1 : 997;
      n_met++;
    }
    assert_true(is_text || nth > 1 || is_elsewhere(functions[i]));
  }
  assert_true(n_met > 100);
}

/* ---- the driver's host memory ---- */

/* Take pinned memory, check that it is zero, fill it, release it. True if it was the driver's. */
static bool pinned_is_the_drivers(const struct lade_pinned_params *params)
{
  struct lade_pinned pinned;
  assert_int_equal(lade_pinned_init(&pinned, params), 0);
  assert_true(pinned.bytes >= params->bytes);
  assert_true(pinned.bytes <= LADE_MAX(params->limit_bytes, lade_align_up(params->bytes, 4096)));
  assert_int_equal((uintptr_t)pinned.data % CHUNK, 0);
  for (uint64_t i = 0; i < pinned.bytes; i++)
    assert_int_equal(pinned.data[i], 0);
  memset(pinned.data, 1, pinned.bytes);
  const bool is_drivers = pinned.chunk.bytes > 0;
  lade_pinned_finish(&pinned);
  lade_pinned_finish(&pinned);
  return is_drivers;
}

static void pinned_memory_is_the_drivers_where_it_has_some(void **state)
{
  lade_device *device = must_open();
  const int64_t n_live = fake.live();
  struct lade_pinned_params params = {.device = device, .bytes = CHUNK + 1, .limit_bytes = 2 * CHUNK, .numa_node = -1};
  assert_true(pinned_is_the_drivers(&params));
  params.numa_node = 0;
  assert_true(pinned_is_the_drivers(&params));
  params.numa_node = 77; /* a node that does not exist */
  assert_false(pinned_is_the_drivers(&params));
  params.numa_node = -1;
  params.limit_bytes = 2 * CHUNK - 1; /* a chunk more than allowed */
  assert_false(pinned_is_the_drivers(&params));
  params.limit_bytes = 2 * CHUNK;
  params.is_for_drives = true;
  assert_false(pinned_is_the_drivers(&params));
  params.is_for_drives = false;
  assert_int_equal(setenv("LADE_CUDA_HOST_CHUNKS", "0", 1), 0);
  assert_false(pinned_is_the_drivers(&params));
  unsetenv("LADE_CUDA_HOST_CHUNKS");
  assert_int_equal(fake.live(), n_live);
  params.bytes = 0;
  assert_int_equal(lade_pinned_init(&(struct lade_pinned){0}, &params), -EINVAL);
  lade_device_close(device);
  assert_int_equal(fake.set("host_chunks=0"), 0);
  params = (struct lade_pinned_params){.device = must_open(), .bytes = CHUNK, .limit_bytes = CHUNK, .numa_node = 0};
  assert_false(pinned_is_the_drivers(&params));
  assert_int_equal(lade_device_host_create(params.device, CHUNK, CHUNK, 0, &(struct lade_host_chunk){0}), -ENOTSUP);
  lade_device_close(params.device);
  assert_int_equal(fake.live(), 0);
}

/* Whatever call the driver refuses, the memory is allocated, and the attempt leaves nothing. */
static void pinned_memory_is_our_own_where_the_driver_refuses(void **state)
{
  static const char *const calls[] = {"cuMemGetAllocationGranularity", "cuMemCreate",     "cuMemAddressReserve",
                                      "cuMemMap",                      "cuMemSetAccess", "cuMemsetD8Async"};
  for (size_t i = 0; i < LADE_COUNT(calls); i++) {
    lade_device *device = must_open();
    const int64_t n_live = fake.live();
    const struct lade_pinned_params params = {.device = device, .bytes = CHUNK, .limit_bytes = CHUNK, .numa_node = 0};
    char settings[96];
    snprintf(settings, sizeof(settings), "fail=%s,nth=1,code=2", calls[i]);
    assert_int_equal(fake.set(settings), 0);
    assert_false(pinned_is_the_drivers(&params));
    assert_int_equal(fake.failed(), 1);
    assert_int_equal(fake.live(), n_live);
    assert_int_equal(lade_device_status(device), 0);
    assert_true(pinned_is_the_drivers(&params)); /* it failed once */
    lade_device_close(device);
  }
}

/* ---- graphs ---- */

/* Arguments of a capture, and its results. */
struct captured {
  lade_device *device;
  cuda_event event;
  int n_runs;
  int other_status;
};

static int put_count(void *stream, void *arg)
{
  struct captured *captured = arg;
  return fake.host_function(stream, count_up, &captured->n_runs);
}

static int pinned_try(lade_device *device)
{
  void *at = aligned_alloc(4096, 4096);
  int status = at ? lade_device_pin(device, at, 4096) : -ENOMEM;
  if (!status)
    lade_device_unpin(device, at, 4096);
  free(at);
  return status;
}

static void *other_main(void *arg)
{
  struct captured *captured = arg;
  captured->other_status = pinned_try(captured->device);
  return NULL;
}

/* Another thread takes memory while this one captures. */
static int put_beside_other(void *stream, void *arg)
{
  pthread_t other;
  assert_int_equal(pthread_create(&other, NULL, other_main, arg), 0);
  pthread_join(other, NULL);
  return put_count(stream, arg);
}

static int put_and_wait(void *stream, void *arg)
{
  return fake.stream_wait(stream);
}

/* This thread takes memory while it captures, as a library does at its first product of a kind. */
static int put_and_take(void *stream, void *arg)
{
  assert_int_equal(pinned_try(((struct captured *)arg)->device), 0);
  return put_count(stream, arg);
}

static int put_outside_event(void *stream, void *arg)
{
  struct captured *captured = arg;
  return fake.stream_wait_event(stream, captured->event, 0);
}

static int put_inside_event(void *stream, void *arg)
{
  struct captured *captured = arg;
  return fake.event_record(captured->event, stream);
}

static int event_make(void *arg)
{
  struct captured *captured = arg;
  return fake.event_create(&captured->event, 0);
}

static int event_use(void *arg)
{
  struct captured *captured = arg;
  cuda_result result = fake.event_wait(captured->event);
  fake.event_destroy(captured->event);
  return result;
}

static void a_graph_runs_when_it_is_launched(void **state)
{
  struct captured captured = {.device = must_open(), .other_status = -1};
  lade_queue *queue = NULL;
  lade_cuda_graph *graph = NULL;
  uint64_t count = 0;
  assert_int_equal(lade_queue_create(captured.device, LADE_QUEUE_COMPUTE, &queue), 0);
  assert_int_equal(lade_cuda_graph_create(captured.device, put_beside_other, &captured, NULL, &graph), 0);
  assert_int_equal(captured.other_status, 0); /* the other thread was not refused, and did not invalidate the capture */
  assert_int_equal(captured.n_runs, 0);
  for (int i = 1; i <= 3; i++) {
    lade_cuda_graph_launch(graph, queue, NULL, &count);
    assert_int_equal(lade_queue_sync(queue, count), 0);
    assert_int_equal(captured.n_runs, i);
  }
  lade_queue_destroy(queue);
  lade_cuda_graph_destroy(graph);
  lade_device_close(captured.device);
  assert_int_equal(fake.live(), 0);
}

static void a_capture_that_fails_is_no_failure_of_the_device(void **state)
{
  const struct {
    lade_cuda_enqueue_fn *fn;
    const char *words;
  } cases[] = {{put_and_wait, "(900)"}, {put_outside_event, "(905)"}};
  struct captured captured = {.device = must_open()};
  assert_int_equal(lade_cuda_call(captured.device, event_make, &captured), 0);
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    lade_cuda_graph *graph = NULL;
    struct lade_error error = {0};
    assert_int_equal(lade_cuda_graph_create(captured.device, cases[i].fn, &captured, &error, &graph), -EFAULT);
    assert_non_null(strstr(error.text, cases[i].words));
    assert_null(graph);
    assert_int_equal(lade_device_status(captured.device), 0);
    assert_int_equal(lade_cuda_graph_create(captured.device, put_count, &captured, &error, &graph), 0);
    lade_cuda_graph_destroy(graph);
  }
  lade_cuda_graph *graph = NULL;
  assert_int_equal(lade_cuda_graph_create(captured.device, put_and_take, &captured, NULL, &graph), 0);
  lade_cuda_graph_destroy(graph);
  assert_int_equal(lade_cuda_graph_create(captured.device, put_inside_event, &captured, NULL, &graph), 0);
  lade_cuda_graph_destroy(graph);
  assert_int_equal(lade_cuda_call(captured.device, event_use, &captured), CUDA_CAPTURED_EVENT);
  assert_int_equal(captured.n_runs, 0);
  lade_device_close(captured.device);
  assert_int_equal(fake.live(), 0);
}

/* ---- broken contexts ---- */

static void a_broken_context_ends_waiting_and_keeps_its_first_error(void **state)
{
  const struct {
    const char *settings;
    int status;
    const char *words;
  } cases[] = {
      {"lose=4,lose_code=719", -EFAULT, "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure"},
      {"lose=5,lose_code=214", -EBADMSG, "CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC error"},
      {"lose=4,lose_code=46", -ENODEV, "an unknown error (46)"}, /* the device has gone */
  };
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct session s = {0};
    struct lade_error error = {0};
    assert_int_equal(fake.set(cases[i].settings), 0);
    assert_int_equal(session_play(&s, &error), cases[i].status);
    if (!strstr(error.text, cases[i].words))
      fail_msg("'%s' does not say '%s'", error.text, cases[i].words);
    assert_true(lade_queue_poll(s.queues[0], 3)); /* the counters still advanced */
    assert_int_equal(lade_device_status(s.device), cases[i].status);
    session_finish(&s);
    assert_int_equal(fake.set("lose=0"), 0);
    assert_int_equal(fake.live(), 0);
  }
}

static void an_address_without_memory_is_an_error(void **state)
{
  lade_device *device = must_open();
  lade_queue *queue = NULL;
  uint64_t at = 0, count = 0, word = 7;
  struct lade_error error = {0};
  assert_int_equal(lade_device_reserve(device, CHUNK, &at), 0);
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_TO_DEVICE, &queue), 0);
  lade_queue_copy(queue, &(struct lade_copy){(void *)(uintptr_t)at, &word, sizeof(word), 0, NULL}, &count);
  assert_int_equal(lade_queue_sync(queue, count), -EFAULT);
  lade_cuda_get_error(device, &error);
  assert_non_null(strstr(error.text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
  lade_queue_destroy(queue);
  lade_device_release(device, at, CHUNK);
  lade_device_close(device);
}

/* ---- contexts of the caller ---- */

static void current_contexts_are_restored(void **state)
{
  cuda_context own = NULL, now = NULL;
  assert_int_equal(fake.init(0), 0);
  assert_int_equal(fake.context_create(&own, 0, 0), 0);
  struct session s = {0};
  struct lade_error error = {0};
  assert_int_equal(session_play(&s, &error), 0);
  assert_int_equal(fake.context_get(&now), 0);
  assert_ptr_equal(now, own);
  session_finish(&s);
  assert_int_equal(fake.context_get(&now), 0);
  assert_ptr_equal(now, own);
  assert_int_equal(fake.context_destroy(own), 0);
  assert_int_equal(fake.live(), 0);
}

static void an_adopted_context_and_stream_are_used_and_left(void **state)
{
  cuda_context own = NULL;
  cuda_stream stream = NULL;
  assert_int_equal(fake.init(0), 0);
  assert_int_equal(fake.context_create(&own, 0, 0), 0);
  assert_int_equal(fake.stream_create(&stream, 0), 0);
  assert_int_equal(fake.set("fail=none"), 0);
  const struct lade_cuda_device_params params = {.context = own};
  lade_device *device = NULL;
  lade_queue *queue = NULL, *copies = NULL;
  uint64_t at = 0, count = 0;
  unsigned char result[4096];
  lade_chunk *chunk = NULL;
  assert_int_equal(open_with(&params, NULL, &device), 0);
  assert_int_equal(fake.calls("cuDevicePrimaryCtxRetain"), 0);
  assert_int_equal(lade_cuda_queue_adopt(device, LADE_QUEUE_HOST, stream, &queue), -EINVAL);
  assert_int_equal(lade_cuda_queue_adopt(device, LADE_QUEUE_COMPUTE, NULL, &queue), -EINVAL);
  assert_int_equal(lade_cuda_queue_adopt(device, LADE_QUEUE_COMPUTE, stream, &queue), 0);
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_TO_HOST, &copies), 0);
  assert_int_equal(lade_device_reserve(device, CHUNK, &at), 0);
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &chunk), 0);
  assert_int_equal(lade_device_map(device, at, chunk), 0);
  assert_int_equal(fake.memory_set(at, 0x5a, 4096, stream), 0); /* the caller's own work, outside the queue */
  lade_cuda_queue_enqueue(queue, NULL, NULL, NULL, &count);
  lade_queue_wait(copies, queue, count);
  lade_queue_copy(copies, &(struct lade_copy){result, (void *)(uintptr_t)at, sizeof(result), 0, NULL}, &count);
  assert_int_equal(lade_queue_sync(copies, count), 0);
  for (size_t i = 0; i < sizeof(result); i++)
    assert_int_equal(result[i], 0x5a);
  lade_queue_destroy(copies);
  lade_queue_destroy(queue);
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, CHUNK);
  lade_device_close(device);
  assert_int_equal(fake.live(), 2); /* the caller's context and stream */
  assert_int_equal(fake.stream_destroy(stream), 0);
  assert_int_equal(fake.context_destroy(own), 0);
}

/* ---- measures ---- */

static void memory_of_other_contexts_is_the_difference(void **state)
{
  lade_device *device = must_open();
  struct lade_cuda_memory before = {0}, after = {0};
  struct lade_device_info info;
  lade_chunk *chunk = NULL;
  cuda_context other = NULL;
  lade_device_get_info(device, &info);
  assert_int_equal(lade_cuda_get_memory(device, &before), 0);
  assert_int_equal(before.total_bytes, 256 << 20);
  assert_int_equal(before.opened_bytes, before.outside_bytes);
  assert_int_equal(info.capacity_bytes, before.total_bytes - before.opened_bytes);
  assert_int_equal(lade_device_chunk_create(device, 5 * CHUNK, &chunk), 0);
  assert_int_equal(fake.context_create(&other, 0, 0), 0); /* another library's context */
  assert_int_equal(lade_cuda_get_memory(device, &after), 0);
  assert_int_equal(after.free_bytes, before.free_bytes - 5 * CHUNK - (8 << 20));
  assert_int_equal(after.outside_bytes, before.outside_bytes + (8 << 20));
  assert_int_equal(after.opened_bytes, before.opened_bytes);
  assert_int_equal(fake.context_destroy(other), 0);
  lade_device_chunk_release(device, chunk);
  lade_device_close(device);
}

/* Another context holds memory that the capacity promises: the machine refuses, and nothing is counted. */
static void memory_that_others_hold_is_refused(void **state)
{
  lade_device *device = must_open();
  struct lade_device_info info;
  lade_chunk *chunk = NULL;
  lade_device_get_info(device, &info);
  assert_int_equal(fake.set("memory=64"), 0);
  assert_int_equal(lade_device_chunk_create(device, info.capacity_bytes, &chunk), -ENOMEM);
  lade_device_get_info(device, &info);
  assert_int_equal(info.created_bytes, 0);
  assert_int_equal(info.peak_bytes, 0);
  assert_int_equal(lade_device_status(device), 0);
  lade_device_close(device);
}

/* The pauses between pieces are not counted as work, and times never decrease, also beyond a second. */
static void spans_are_times_on_the_stream(void **state)
{
  lade_device *device = must_open();
  lade_queue *queue = NULL;
  struct lade_span spans[3] = {0};
  int64_t busy_ns = 0, before_ns = lade_now_ns();
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_COMPUTE, &queue), 0);
  for (int i = 0; i < 3; i++) {
    const struct timespec pause = {.tv_nsec = 600000000};
    uint64_t count = 0;
    nanosleep(&pause, NULL);
    lade_cuda_queue_enqueue(queue, NULL, NULL, &spans[i], &count);
    assert_int_equal(lade_queue_sync(queue, count), 0);
    busy_ns += spans[i].end_ns - spans[i].start_ns;
    assert_true(spans[i].end_ns >= spans[i].start_ns);
    assert_true(i == 0 || spans[i].start_ns >= spans[i - 1].end_ns + 500000000);
  }
  assert_true(spans[0].start_ns > before_ns && spans[2].end_ns < lade_now_ns() + 1000 /* of rounding */);
  assert_int_equal(lade_queue_busy_ns(queue), busy_ns);
  lade_queue_destroy(queue);
  lade_device_close(device);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(missing_features_are_refused_in_one_line, calm),
      cmocka_unit_test_setup(names_of_gpus, calm),
      cmocka_unit_test_setup(gpus_are_listed_by_their_uuids, calm),
      cmocka_unit_test_setup(the_public_name_opens_the_gpu, calm),
      cmocka_unit_test_setup(work_moves_through_every_kind_of_queue, calm),
      cmocka_unit_test_setup(any_driver_call_may_fail_and_nothing_leaks, calm),
      cmocka_unit_test_setup(pinned_memory_is_the_drivers_where_it_has_some, calm),
      cmocka_unit_test_setup(pinned_memory_is_our_own_where_the_driver_refuses, calm),
      cmocka_unit_test_setup(a_graph_runs_when_it_is_launched, calm),
      cmocka_unit_test_setup(a_capture_that_fails_is_no_failure_of_the_device, calm),
      cmocka_unit_test_setup(a_broken_context_ends_waiting_and_keeps_its_first_error, calm),
      cmocka_unit_test_setup(an_address_without_memory_is_an_error, calm),
      cmocka_unit_test_setup(current_contexts_are_restored, calm),
      cmocka_unit_test_setup(an_adopted_context_and_stream_are_used_and_left, calm),
      cmocka_unit_test_setup(memory_of_other_contexts_is_the_difference, calm),
      cmocka_unit_test_setup(memory_that_others_hold_is_refused, calm),
      cmocka_unit_test_setup(spans_are_times_on_the_stream, calm),
  };
  if (!fake_driver_find(&fake)) {
    printf("SKIP: libcuda.so.1 is not the fake; run this through meson test\n");
    return 77;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
