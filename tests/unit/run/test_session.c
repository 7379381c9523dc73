/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session's steps. FP16's loss scale: an overflow is skipped, changes no parameter and halves the scale; many steps
 * without one double it. Async saves hold the values of the step that requested them, however slow files are. The next
 * call returns the error of a save, and so does a query between steps. A stop ends the opening within the first values.
 * Stages on several nodes send in the scattered form.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/session/session_internal.h"
#include "tests/support/run_fixture.h"
#include "tests/support/scratch.h"

static int batch_fill(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  for (int64_t i = 0; i < batch->n_rows * batch->seq; i++) {
    batch->tokens[i] = (int32_t)((batch->number * 7 + batch->first_row * 5 + i) % 40);
    batch->targets[i] = (int32_t)((batch->number * 7 + batch->first_row * 5 + i + 1) % 40);
  }
  return 0;
}

static struct lade_session_params params_make(void)
{
  struct lade_session_params params = run_fixture_session_params();
  params.batch_fn = batch_fill;
  return params;
}

static lade_session *fp16_open(enum lade_dtype grad_dtype)
{
  struct lade_session_params params = params_make();
  params.dtype = LADE_F16;
  params.grad_dtype = grad_dtype;
  return run_fixture_session_open(&params);
}

static uint64_t digest_of(lade_session *session)
{
  struct lade_error error = {0};
  uint64_t digest = 0;
  if (lade_session_params_digest(session, &digest, &error))
    fail_msg("%s", error.text);
  return digest;
}

static struct lade_step_report step_make(lade_session *session)
{
  struct lade_error error = {0};
  struct lade_step_report report = {0};
  if (lade_session_step(session, &report, &error))
    fail_msg("%s", error.text);
  return report;
}

static void an_overflow_is_skipped_and_halves_the_scale(void **state)
{
  for (int rounds = 0; rounds < 2; rounds++) {
    lade_session *session = fp16_open(rounds ? LADE_BF16 : LADE_F32);
    assert_true(session->state.loss_scale == 65536);
    uint64_t before = digest_of(session);
    session->state.loss_scale = 0x1p100;
    session->state.good_steps = 17;
    for (int i = 0; i < 2; i++) {
      struct lade_step_report report = step_make(session);
      assert_true(report.is_skipped && report.loss_scale == ldexp(1, 100 - i) && isfinite(report.loss));
      assert_true(session->state.loss_scale == ldexp(1, 99 - i));
      assert_int_equal(session->state.good_steps, 0);
      assert_int_equal(session->state.step, i + 1); /* the step counts: its batch does not come again */
      assert_true(digest_of(session) == before);
    }
    session->state.loss_scale = 1024;
    struct lade_step_report report = step_make(session);
    assert_true(!report.is_skipped && report.grad_norm > 0 && isfinite(report.grad_norm));
    assert_int_equal(session->state.good_steps, 1);
    assert_true(digest_of(session) != before);
    lade_session_close(session);
  }
}

static void many_good_steps_double_the_scale(void **state)
{
  lade_session *session = fp16_open(LADE_F32);
  session->state.loss_scale = 1024;
  session->state.good_steps = 1998;
  step_make(session);
  assert_true(session->state.loss_scale == 1024 && session->state.good_steps == 1999);
  step_make(session);
  assert_true(session->state.loss_scale == 2048 && session->state.good_steps == 0);
  lade_session_close(session);
}

/* ---- a stop ---- */

static int n_questions, n_granted; /* of is_stopping, and how many of them it answers with "go on" */

static bool is_stopping(void *user)
{
  return ++n_questions > n_granted;
}

static void save(lade_session *session)
{
  struct lade_error error = {0};
  if (lade_session_save(session, scratch, 0, &error))
    fail_msg("%s", error.text);
}

/*
 * Open a session several times, each stopped at another of the questions that the setting of first values asks. None
 * opens, and none asks again.
 */
static void first_values_are_stopped(struct lade_session_params params)
{
  struct lade_error error = {0};
  lade_session *session = NULL;
  params.is_stopping = is_stopping;
  n_questions = 0;
  n_granted = INT_MAX;
  if (lade_session_open(&params, &error, &session))
    fail_msg("%s", error.text);
  const int n_all = n_questions, n_values = session->graph->n_params * 3; /* a master and two moments */
  lade_session_close(session);
  assert_true(n_all > n_values);
  const int grants[] = {n_all - n_values, n_all - 1};
  for (size_t i = 0; i < LADE_COUNT(grants); i++) {
    n_questions = 0;
    n_granted = grants[i];
    session = NULL;
    assert_int_equal(lade_session_open(&params, &error, &session), -EINTR);
    assert_null(session);
    assert_non_null(strstr(error.text, "stopped by its caller"));
    assert_int_equal(n_questions, n_granted + 1);
  }
}

/* Each window of first values asks, as a large model's take minutes: random values, a checkpoint's, weights. */
static void a_stop_ends_the_setting_of_first_values(void **state)
{
  struct lade_session_params params = params_make();
  first_values_are_stopped(params);
  lade_session *session = run_fixture_session_open(&params);
  save(session);
  lade_session_close(session);
  params.resume = in_scratch("step-00000000");
  first_values_are_stopped(params);
  params.init = params.resume;
  params.resume = NULL;
  first_values_are_stopped(params);
}

/* ---- async saves ---- */

static bool is_saved(const char *name)
{
  return access(in_scratch(name), F_OK) == 0;
}

/* Check that the checkpoint @name has parameters of @digest, and can be resumed. */
static void saved_is(const struct lade_session_params *params, const char *name, uint64_t digest)
{
  struct lade_session_params again = *params;
  again.resume = in_scratch(name);
  again.faults = NULL;
  lade_session *session = run_fixture_session_open(&again);
  assert_true(digest_of(session) == digest);
  step_make(session);
  lade_session_close(session);
}

/* Block the drive's sync until the test releases it. */
static void sync_wait(void *user, enum lade_fault_point point)
{
  if (point == LADE_FAULT_FILE_SYNC) {
    sem_wait(user);
    sem_post(user);
  }
}

static void steps_go_on_while_a_save_is_written(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    struct lade_session_params params = params_make();
    struct lade_faults faults;
    struct lade_error error = {0};
    sem_t gate;
    lade_faults_init(&faults);
    sem_init(&gate, 0, 0);
    faults.visit = sync_wait;
    faults.visit_user = &gate;
    params.dtype = dtypes[i];
    params.async_save = true;
    params.faults = &faults;
    lade_session *session = run_fixture_session_open(&params);
    struct lade_session_info info;
    lade_session_get_info(session, &info);
    assert_true(info.is_async_saving && info.host_bytes >= session_saver_bytes(session));
    step_make(session);
    uint64_t first = digest_of(session);
    save(session);
    step_make(session);
    step_make(session);
    assert_false(lade_session_has_saved(session));
    assert_false(is_saved("step-00000001")); /* the drive has not synced a byte yet */
    uint64_t third = digest_of(session);
    sem_post(&gate);
    save(session); /* waits for the first one */
    assert_true(is_saved("step-00000001"));
    assert_int_equal(lade_session_finish_saves(session, &error), 0);
    assert_true(is_saved("step-00000003"));
    assert_int_equal(lade_session_finish_saves(session, &error), 0);
    lade_session_close(session);
    saved_is(&params, "step-00000001", first);
    saved_is(&params, "step-00000003", third);
    sem_destroy(&gate);
    scratch_teardown(NULL);
    scratch_setup_in_memory(NULL);
  }
}

static void a_failed_async_save_is_returned_by_the_next_call(void **state)
{
  struct lade_session_params params = params_make();
  struct lade_error error = {0};
  params.async_save = true;
  for (int is_end = 0; is_end <= 1; is_end++) {
    lade_session *session = run_fixture_session_open(&params);
    int fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* as if another process saved there */
    save(session);
    step_make(session);
    int status = is_end ? lade_session_finish_saves(session, &error)
                        : lade_session_save(session, scratch, 0, &error);
    assert_int_equal(status, -EBUSY);
    assert_non_null(strstr(error.text, scratch));
    close(fd);
    lade_session_close(session);
    assert_false(is_saved("step-00000000") || is_saved("step-00000001"));
  }
}

/* The result of a save is available without waiting, and another save is possible after a failed one. */
static void a_failed_save_is_seen_between_steps_and_another_is_made(void **state)
{
  struct lade_session_params params = params_make();
  struct lade_error error = {0};
  params.async_save = true;
  lade_session *session = run_fixture_session_open(&params);
  assert_false(lade_session_has_saved(session));
  int fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  save(session);
  while (!lade_session_has_saved(session))
    step_make(session);
  assert_int_equal(lade_session_finish_saves(session, &error), -EBUSY);
  assert_false(lade_session_has_saved(session));
  close(fd);
  uint64_t digest = digest_of(session);
  char name[32];
  snprintf(name, sizeof(name), "step-%08lld", (long long)session->state.step);
  save(session);
  assert_int_equal(lade_session_finish_saves(session, &error), 0);
  lade_session_close(session);
  saved_is(&params, name, digest);
}

static void a_session_that_closes_waits_for_its_save(void **state)
{
  struct lade_session_params params = params_make();
  params.async_save = true;
  lade_session *session = run_fixture_session_open(&params);
  uint64_t digest = digest_of(session);
  save(session);
  lade_session_close(session);
  saved_is(&params, "step-00000000", digest);
}

static void without_room_for_a_copy_saves_hold_up_steps(void **state)
{
  struct lade_session_params params = params_make();
  struct lade_session_info info;
  params.async_save = true;
  params.has_host_budget = true;
  lade_session *session = run_fixture_session_open(&params);
  lade_session_get_info(session, &info);
  assert_false(info.is_async_saving);
  save(session);
  assert_true(is_saved("step-00000000"));
  lade_session_close(session);
}

/* A rate that was measured in a busy moment gives way to a step that needed a higher one. */
static void no_step_is_faster_than_light(void **state)
{
  const struct lade_session_params session_params = params_make();
  struct lade_session_info info;
  lade_session *session = run_fixture_session_open(&session_params);
  assert_true(session->matmul_flops_per_s > 0 && !session->is_rate_raised);
  session->params.skip_cache = true;
  session->matmul_flops_per_s = 1;
  int64_t min_ns = INT64_MAX;
  for (int step = 0; step < 3; step++) {
    min_ns = LADE_MIN(min_ns, step_make(session).wall_ns);
    lade_session_get_info(session, &info);
    assert_true(session->is_rate_raised && info.roofline_step_ns <= (double)min_ns * 1.000001);
  }
  lade_session_close(session);
}

/* ---- nodes ---- */

/*
 * Stages send in the scattered form where a boundary lies between two nodes and no tensor parallel group does. Ranks
 * 0 and 1 are the first stage, 2 and 3 the second.
 */
static void stages_on_several_nodes_send_scattered(void **state)
{
  static const struct {
    int n_node_ranks;
    bool is_scattered;
  } cases[] = {{1, false}, {2, true}, {3, false}, {4, false}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    uint64_t sent_bytes[2]; /* without scattered sends, and with them if the nodes allow it */
    for (int is_divided = 0; is_divided <= 1; is_divided++) {
      struct lade_session_params params = run_fixture_session_params();
      struct lade_session_info info;
      params.is_plan_only = true;
      params.layout = (struct lade_layout_params){.struct_size = sizeof(params.layout), .tp = 2, .pp = 2, .dp = 1};
      params.n_node_ranks = is_divided ? cases[i].n_node_ranks : 4;
      lade_session *session = run_fixture_session_open(&params);
      lade_session_get_info(session, &info);
      assert_true(session->is_scattered == (is_divided && cases[i].is_scattered));
      sent_bytes[is_divided] = info.comm_bytes[LADE_AXIS_PP];
      lade_session_close(session);
    }
    const uint64_t sum_bytes = sizeof(double); /* of squares, for the norm over stages */
    assert_true(sent_bytes[0] > sum_bytes);
    assert_int_equal(sent_bytes[1] - sum_bytes, (sent_bytes[0] - sum_bytes) / (cases[i].is_scattered ? 2 : 1));
  }
}

/* A device that holds more than the run may take is refused with both numbers, and never planned for. */
static void a_device_that_holds_too_much_is_refused(void **state)
{
  const struct lade_device_params params = {.struct_size = sizeof(params), .capacity_bytes = UINT64_C(8) << 20};
  struct lade_session session = {0};
  struct lade_error error = {0};
  lade_chunk *chunk;
  (void)state;
  assert_int_equal(lade_device_open(&params, &error, &session.device), 0);
  assert_int_equal(lade_device_chunk_create(session.device, UINT64_C(4) << 20, &chunk), 0);
  assert_int_equal(session_gpu_limit(&session, UINT64_C(2) << 20, &error), -EBUSY);
  assert_non_null(strstr(error.text, "holds 4194304 bytes before step 0, and is to hold 2097152 at most: raise "));
  assert_int_equal(session_gpu_limit(&session, UINT64_C(4) << 20, &error), 0);
  lade_device_chunk_release(session.device, chunk);
  lade_device_close(session.device);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_step_is_faster_than_light),
      cmocka_unit_test(an_overflow_is_skipped_and_halves_the_scale),
      cmocka_unit_test(many_good_steps_double_the_scale),
      cmocka_unit_test_setup_teardown(a_stop_ends_the_setting_of_first_values, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test(stages_on_several_nodes_send_scattered),
      cmocka_unit_test(a_device_that_holds_too_much_is_refused),
      cmocka_unit_test_setup_teardown(steps_go_on_while_a_save_is_written, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_failed_async_save_is_returned_by_the_next_call, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(a_failed_save_is_seen_between_steps_and_another_is_made, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(a_session_that_closes_waits_for_its_save, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(without_room_for_a_copy_saves_hold_up_steps, scratch_setup_in_memory,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
