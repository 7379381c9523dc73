/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP16's loss scale over a session's steps: an overflow is skipped, changes no parameter and halves the scale; many
 * steps without one double it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "run/session_internal.h"

static int batch_fill(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  for (int64_t i = 0; i < batch->n_rows * batch->seq; i++) {
    batch->tokens[i] = (int32_t)((batch->number * 7 + batch->first_row * 5 + i) % 40);
    batch->targets[i] = (int32_t)((batch->number * 7 + batch->first_row * 5 + i + 1) % 40);
  }
  return 0;
}

static lade_session *fp16_open(enum lade_dtype grad_dtype)
{
  struct lade_session_params how;
  struct lade_error error = {0};
  lade_session *session = NULL;
  lade_session_defaults(&how);
  how.layers = 2;
  how.vocabulary = 64;
  how.batch = 4;
  how.micro_batch = 2;
  how.time = 16;
  how.dtype = LADE_F16;
  how.grad_dtype = grad_dtype;
  how.machine = "laptop-8c"; /* described: nothing is measured */
  how.n_threads = 1;
  how.batch_fn = batch_fill;
  if (lade_session_open(&how, &error, &session))
    fail_msg("%s", error.text);
  return session;
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
      assert_int_equal(session->state.step, i + 1); /* it counts: its batch is not seen again */
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

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_overflow_is_skipped_and_halves_the_scale),
      cmocka_unit_test(many_good_steps_double_the_scale),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
