/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training session on a CUDA device, over the fake. If a driver call fails, or the device breaks in the middle of a
 * step, the error has a name. No object of the driver or cuBLASLt is left, and the next session has the numbers of an
 * undisturbed one. A steady step allocates nothing and waits for the driver only at its end.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "machine/probe_internal.h"
#include "run/session.h"
#include "tests/support/fakes/fakes.h"

#define CALM "cold=0,host_chunks=1,modules=0,functions=0,fail=none,nth=1,code=2,forever=0,lose=0"

static struct fake_driver fake;
static struct fake_cublaslt lt;

static char model[] = "/tmp/lade-cuda-session-XXXXXX.json", residency[] = "/tmp/lade-cuda-session-XXXXXX.txt";

static int batch_fill(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  for (int64_t i = 0; i < batch->n_rows * batch->seq; i++) {
    batch->tokens[i] = (int32_t)((batch->number * 7 + batch->first_row * 5 + i) % 64);
    batch->targets[i] = (int32_t)((batch->number * 7 + batch->first_row * 5 + i + 1) % 64);
  }
  return 0;
}

static char notices[1024]; /* of the last session */

static void notice_keep(void *user, const char *line)
{
  const size_t n = strlen(notices);
  snprintf(notices + n, sizeof(notices) - n, "%s\n", line);
}

/* Open a session with the residency file's tiers, so that kernels, copies and updates of the host all have work. */
static int session_open(struct lade_error *error, lade_session **ret_session)
{
  struct lade_session_params params;
  lade_session_defaults(&params);
  params.model = model;
  params.batch = 2;
  params.micro_batch = 1;
  params.seq_len = 8;
  params.dtype = LADE_F32;
  params.is_gpu = true;
  params.machine = "h200-141g"; /* described: nothing is measured */
  params.residency_file = residency;
  params.n_threads = 1;
  params.batch_fn = batch_fill;
  params.n_valid_batches = 1;
  params.notice = notice_keep;
  *notices = 0;
  return lade_session_open(&params, error, ret_session);
}

/* Run a whole session: two steps, an evaluation, a digest. */
static int session_run(struct lade_error *error, uint64_t *ret_digest)
{
  lade_session *session = NULL;
  struct lade_step_report report;
  double loss;
  int status = session_open(error, &session);
  for (int i = 0; i < 2 && !status; i++)
    status = lade_session_step(session, &report, error);
  if (!status)
    status = lade_session_eval(session, &loss, error);
  if (!status)
    status = lade_session_params_digest(session, ret_digest, error);
  lade_session_close(session);
  return status;
}

static void nothing_is_left(void)
{
  assert_int_equal(fake.live(), 0);
  assert_int_equal(lt.live(), 0);
}

static uint64_t digest_calm(void)
{
  struct lade_error error = {0};
  uint64_t digest = 0;
  assert_int_equal(fake.set(CALM), 0);
  if (session_run(&error, &digest))
    fail_msg("%s", error.text);
  nothing_is_left();
  return digest;
}

static void a_call_that_fails_has_a_name(void **state)
{
  static const char *const calls[] = {
      "cuDevicePrimaryCtxRetain", "cuMemAddressReserve", "cuMemCreate",   "cuMemMap",          "cuMemSetAccess",
      "cuStreamCreate",           "cuEventCreate",       "cuModuleLoad",  "cuLaunchKernel",
      "cuMemcpyAsync",            "cuEventRecord",       "cuMemGetInfo",  "cuStreamWaitEvent", "cuEventSynchronize",
      "cuCtxPushCurrent",         "cuGraphLaunch"};
  const uint64_t want = digest_calm();
  int n_failed = 0;
  for (size_t i = 0; i < LADE_COUNT(calls); i++) {
    for (int nth = 1; nth < 50; nth = nth * 5 + 2) {
      struct lade_error error = {0};
      uint64_t digest = 0;
      char settings[96];
      snprintf(settings, sizeof(settings), "fail=%s,nth=%d,code=%d", calls[i], nth, nth % 2 ? 2 : 999);
      assert_int_equal(fake.set(settings), 0);
      int status = session_run(&error, &digest);
      bool is_reached = fake.failed() > 0;
      assert_int_equal(fake.set(CALM), 0);
      n_failed += status != 0;
      if (status ? !is_reached || !*error.text || strchr(error.text, '\n') : digest != want)
        fail_msg("%s: status %d, digest %llx: %s", settings, status, (unsigned long long)digest, error.text);
      nothing_is_left();
    }
  }
  assert_true(n_failed >= (int)LADE_COUNT(calls));
  assert_true(digest_calm() == want);
}

/* The same numbers with the driver's host memory, with Lade's own, and with Lade's own after the driver refused. */
static void the_host_tier_is_the_drivers_memory_or_pinned(void **state)
{
  static const struct {
    const char *settings;
    int n_pinned;
  } cases[] = {{"host_chunks=1", 0}, {"host_chunks=0", 1}, {"fail=cuMemCreate,nth=2", 1}};
  const uint64_t want = digest_calm();
  struct lade_error error = {0};
  uint64_t digest = 0;
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    assert_int_equal(fake.set(cases[i].settings), 0);
    if (session_run(&error, &digest))
      fail_msg("%s: %s", cases[i].settings, error.text);
    assert_true(digest == want);
    assert_int_equal(fake.calls("cuMemHostRegister"), cases[i].n_pinned);
    assert_int_equal(fake.set(CALM), 0);
    nothing_is_left();
  }
  assert_int_equal(fake.set("host_chunks=0,fail=cuMemHostRegister"), 0);
  assert_int_equal(session_run(&error, &digest), -ENOMEM);
  assert_non_null(strstr(error.text, "for the host tier; lower --host-budget"));
  assert_int_equal(fake.set(CALM), 0);
  nothing_is_left();
}

static void a_device_that_breaks_in_a_step_ends_it_by_name(void **state)
{
  static const struct {
    int code, status;
    const char *words;
  } breaks[] = {{214, -EBADMSG, "ECC_UNCORRECTABLE"}, {719, -EFAULT, "LAUNCH_FAILED"}, {46, -ENODEV, "(46)"},
                {999, -EFAULT, "CUDA_ERROR_UNKNOWN (999): unknown error"}};
  const uint64_t want = digest_calm();
  for (int nth = 1; nth < 150; nth = nth * 3 + 1) {
    for (size_t i = 0; i < LADE_COUNT(breaks); i++) {
      struct lade_error error = {0}, again = {0};
      struct lade_step_report report;
      lade_session *session = NULL;
      char settings[64];
      if (session_open(&error, &session))
        fail_msg("%s", error.text);
      snprintf(settings, sizeof(settings), "lose=%d,lose_code=%d", nth, breaks[i].code);
      assert_int_equal(fake.set(settings), 0);
      int status = lade_session_step(session, &report, &error);
      if (status != breaks[i].status || !strstr(error.text, breaks[i].words))
        fail_msg("%s: status %d, %s", settings, status, error.text);
      assert_int_equal(lade_session_step(session, &report, &again), status);
      assert_string_equal(again.text, error.text);
      lade_session_close(session);
      assert_int_equal(fake.set(CALM), 0);
      nothing_is_left();
    }
  }
  assert_true(digest_calm() == want);
}

/* Memory that was free when the device was opened is gone when the arena is allocated. */
static void memory_that_another_process_took_is_one_line(void **state)
{
  struct lade_error error = {0};
  uint64_t digest = 0;
  assert_int_equal(fake.set("fail=cuMemCreate,nth=1,code=2,forever=1"), 0);
  assert_int_equal(session_run(&error, &digest), -ENOMEM);
  assert_non_null(strstr(error.text, "bytes of memory"));
  assert_int_equal(fake.set(CALM), 0);
  nothing_is_left();
}

/* Kernels are then launched one by one, and one line says so. */
static void a_graph_that_cannot_be_made_changes_no_number(void **state)
{
  static const struct {
    const char *call;
    int nth;
  } cases[] = {{"cuStreamBeginCapture", 2}, {"cuStreamEndCapture", 1}, {"cuGraphInstantiateWithFlags", 3},
               {"cuGraphUpload", 1},        {"cuGraphDestroy", 2},     {"cuLaunchKernel", 5}};
  const uint64_t want = digest_calm();
  assert_string_equal(notices, "");
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_error error = {0};
    uint64_t digest = 0;
    char settings[96];
    snprintf(settings, sizeof(settings), "fail=%s,nth=%d,code=2", cases[i].call, cases[i].nth);
    assert_int_equal(fake.set(settings), 0);
    if (session_run(&error, &digest))
      fail_msg("%s: %s", settings, error.text);
    assert_int_equal(fake.calls("cuGraphLaunch"), 0);
    assert_true(digest == want);
    if (!strstr(notices, "one by one") || strchr(notices, '\n') != notices + strlen(notices) - 1)
      fail_msg("%s: %s", settings, notices);
    assert_int_equal(fake.set(CALM), 0);
    nothing_is_left();
  }
}

/* Train while the @nth product is refused. *ret_is_refused: there was one. Return the session's status. */
static int refused_run(int nth, uint64_t want, bool *ret_is_refused, struct lade_error *error)
{
  uint64_t digest = 0;
  char settings[64];
  snprintf(settings, sizeof(settings), "fail=cublasLtMatmul,nth=%d,code=14", nth);
  assert_int_equal(lt.set(settings), 0);
  const int status = session_run(error, &digest);
  *ret_is_refused = lt.failed() > 0;
  if (status ? !strstr(error->text, "CUBLAS_STATUS_INTERNAL_ERROR") : digest != want)
    fail_msg("%s: status %d, digest %llx: %s", settings, status, (unsigned long long)digest, error->text);
  assert_int_equal(lt.set("fail=none"), 0);
  nothing_is_left();
  return status;
}

/*
 * The library may refuse a product because its stream is captured. The step launches kernels one by one and has the
 * same digest. A product that is refused in a step, here of a session without graphs, ends the session with the
 * library's name for the error.
 */
static void a_product_refused_in_a_capture_is_not_refused_for_ever(void **state)
{
  const uint64_t want = digest_calm();
  struct lade_error error = {0};
  bool is_refused = true;
  for (int nth = 1; nth <= 23; nth += nth < 3 ? 1 : 5) {
    assert_int_equal(refused_run(nth, want, &is_refused, &error), 0);
    assert_true(is_refused && strstr(notices, "one by one"));
  }
  assert_int_equal(setenv("LADE_CUDA_GRAPHS", "0", 1), 0);
  int status = 0;
  for (int nth = 33; !status; nth += 16) { /* the first ones are in captures, which load the library's kernels */
    status = refused_run(nth, want, &is_refused, &error);
    assert_true(is_refused);
  }
  assert_int_equal(unsetenv("LADE_CUDA_GRAPHS"), 0);
  assert_true(digest_calm() == want);
}

/* The context, and kernels when they are loaded and first launched; a step takes no more. */
static void memory_outside_the_arena_is_reported_by_taker(void **state)
{
  struct lade_error error = {0};
  struct lade_session_info info;
  struct lade_step_report report;
  lade_session *session = NULL;
  assert_int_equal(fake.set(CALM), 0);
  assert_int_equal(fake.set("modules=64,functions=1"), 0);
  assert_int_equal(session_open(&error, &session), 0);
  const uint64_t modules_bytes = fake.calls("cuModuleLoad") << 16;
  for (int i = 0; i < 2; i++) {
    lade_session_get_info(session, &info);
    const uint64_t *taken = info.taken_bytes, kernels_bytes = taken[LADE_CUDA_KERNELS];
    assert_int_equal(taken[LADE_CUDA_CONTEXT], 8 << 20);
    assert_int_equal(taken[LADE_CUDA_NCCL], 0);
    assert_true(modules_bytes && kernels_bytes > modules_bytes && kernels_bytes < modules_bytes + (1 << 16));
    assert_int_equal(info.outside_bytes, (8 << 20) + kernels_bytes);
    assert_int_equal(lade_session_step(session, &report, &error), 0);
  }
  lade_session_close(session);
  assert_int_equal(fake.set(CALM), 0);
  nothing_is_left();
}

/* Calls in a steady step that a step should rarely make. */
struct steady {
  uint64_t n_kernels, n_products, n_graphs;
};

/* Count the calls of the third step of a session, which must neither allocate, create nor wait. */
static struct steady steady_step(void)
{
  static const char *const calls[] = {
      "cuMemCreate",    "cuMemMap",      "cuMemHostRegister", "cuMemHostAlloc", "cuStreamCreate",
      "cuEventCreate",  "cuModuleLoad",  "cuStreamSynchronize", "cuMemcpy",     "cuStreamBeginCapture",
      "cuGraphInstantiateWithFlags",     "cuGraphUpload"};
  static const char *const making[] = {"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescCreate",
                                       "cublasLtMatrixLayoutCreate"};
  struct lade_error error = {0};
  struct lade_step_report report;
  lade_session *session = NULL;
  uint64_t n_made = 0;
  assert_int_equal(fake.set(CALM), 0);
  assert_int_equal(session_open(&error, &session), 0);
  for (int i = 0; i < 2; i++)
    assert_int_equal(lade_session_step(session, &report, &error), 0);
  for (size_t i = 0; i < LADE_COUNT(making); i++)
    n_made += lt.calls(making[i]);
  const uint64_t n_products = lt.calls("cublasLtMatmul");
  assert_int_equal(fake.set(CALM), 0);
  assert_int_equal(lade_session_step(session, &report, &error), 0);
  for (size_t i = 0; i < LADE_COUNT(calls); i++) {
    if (fake.calls(calls[i]))
      fail_msg("%s was called %d times", calls[i], (int)fake.calls(calls[i]));
  }
  const struct steady steady = {fake.calls("cuLaunchKernel"), lt.calls("cublasLtMatmul") - n_products,
                                fake.calls("cuGraphLaunch")};
  for (size_t i = 0; i < LADE_COUNT(making); i++)
    n_made -= lt.calls(making[i]);
  assert_int_equal(n_made, 0);
  lade_session_close(session);
  return steady;
}

static void a_steady_step_takes_nothing_from_the_driver(void **state)
{
  const uint64_t want = digest_calm();
  const struct steady graphs = steady_step();
  assert_int_equal(setenv("LADE_CUDA_GRAPHS", "0", 1), 0);
  const uint64_t digest = digest_calm();
  const struct steady single = steady_step();
  unsetenv("LADE_CUDA_GRAPHS");
  print_message("launches of a step: %d kernels and %d products one by one; with graphs %d, %d and %d graphs\n",
                (int)single.n_kernels, (int)single.n_products, (int)graphs.n_kernels, (int)graphs.n_products,
                (int)graphs.n_graphs);
  assert_true(digest == want);
  assert_int_equal(single.n_graphs, 0);
  assert_true(single.n_kernels > 0 && single.n_products > 0 && graphs.n_graphs > 0);
  /* Single ops of several launches are graphs, too: without those the bound would be a third. */
  assert_true(4 * (graphs.n_kernels + graphs.n_products + graphs.n_graphs) <= single.n_kernels + single.n_products);
}

static bool file_write(char *path, int n_suffix, const char *text)
{
  int file = mkstemps(path, n_suffix);
  bool is_written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
  if (file >= 0)
    close(file);
  if (!is_written)
    perror(path);
  return is_written;
}

/* Measure the rate of products on a device with these @settings. */
static double product_rate_get(const char *settings)
{
  const struct lade_cuda_device_params cuda_device_params = {.struct_size = sizeof(cuda_device_params)};
  struct lade_error error = {0};
  struct lade_probe_gpu gpu = {0};
  lade_cuda_kernels *kernels = NULL;
  double rate = 0;
  assert_int_equal(fake.set(CALM), 0);
  assert_int_equal(lade_device_open_cuda(&cuda_device_params, &error, &gpu.device), 0);
  assert_int_equal(lade_cuda_kernels_open(gpu.device, "kernels", &error, &kernels), 0);
  gpu.kernels = kernels;
  assert_int_equal(fake.set(settings), 0);
  const struct lade_probe_params params = {.struct_size = sizeof(params), .gpu = &gpu};
  assert_int_equal(probe_gpu_matmul(&params, LADE_F32, &rate), 0);
  assert_int_equal(fake.set(CALM), 0);
  lade_cuda_kernels_close(kernels);
  lade_device_close(gpu.device);
  nothing_is_left();
  return rate;
}

/* A device that was idle has a low clock. The first products are slow then, and their rate is not the device's. */
static void a_rate_is_of_a_warm_clock(void **state)
{
  const double cold = product_rate_get("cold=1000000000"), warm = product_rate_get("cold=3");
  assert_true(cold > 0 && warm > 30 * cold);
}

int main(void)
{
  if (!fake_driver_find(&fake) || !fake_cublaslt_find(&lt)) {
    printf("SKIP: the driver here is not the fake\n");
    return 77;
  }
  if (!file_write(model, 5, "{\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_layer\": 1, \"n_head\": 2, "
                            "\"n_positions\": 1024, \"vocab_size\": 64}\n") ||
      !file_write(residency, 4, "optimizer * device\noptimizer *wpe* host\noptimizer *mlp* host\nh.0 host\n"))
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_call_that_fails_has_a_name),
      cmocka_unit_test(the_host_tier_is_the_drivers_memory_or_pinned),
      cmocka_unit_test(a_device_that_breaks_in_a_step_ends_it_by_name),
      cmocka_unit_test(a_graph_that_cannot_be_made_changes_no_number),
      cmocka_unit_test(a_product_refused_in_a_capture_is_not_refused_for_ever),
      cmocka_unit_test(memory_that_another_process_took_is_one_line),
      cmocka_unit_test(memory_outside_the_arena_is_reported_by_taker),
      cmocka_unit_test(a_steady_step_takes_nothing_from_the_driver),
      cmocka_unit_test(a_rate_is_of_a_warm_clock),
  };
  int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(model);
  unlink(residency);
  return n_failed;
}
