/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof against random damage: programs changed at random, bits flipped anywhere, and memory that runs out. A
 * program that the proof accepts runs right on a machine that interleaves its queues in random orders. A refusal names
 * the broken instruction.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/heap/allocations.h"
#include "tests/support/interleave.h"
#include "tests/support/program_fixture.h"

#define N_CHANGES 250 /* of each fixture */

static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};

/*
 * Change one field in a way that may be harmless: offsets, larger sizes, longer lifetimes, other waits, buffers of
 * outputs, microbatches of values that have none.
 */
static void something_change(struct lade_program *p, uint32_t *seed)
{
  struct lade_buffer *buffer = &p->buffers[program_fixture_draw(seed, (uint32_t)p->n_buffers)];
  struct lade_instr *instr = &p->instrs[program_fixture_draw(seed, (uint32_t)p->n_instrs)];
  struct lade_operand *operand = &p->operands[program_fixture_draw(seed, (uint32_t)p->n_operands)];
  uint64_t align = buffer->space == LADE_STORE ? LADE_STORE_ALIGN : LADE_BUFFER_ALIGN;
  switch (program_fixture_draw(seed, 8)) {
  case 0:
    buffer->offset = program_fixture_draw(seed, (uint32_t)(p->peak_bytes[buffer->space] / align)) * align;
    break;
  case 1:
    buffer->bytes += align * (1 + program_fixture_draw(seed, 4));
    break;
  case 2:
    buffer->first -= (int32_t)program_fixture_draw(seed, 8);
    break;
  case 3:
    buffer->last += (int32_t)program_fixture_draw(seed, 8);
    break;
  case 4:
    instr->waits[program_fixture_draw(seed, LADE_N_QUEUES)] =
        (int32_t)program_fixture_draw(seed, (uint32_t)p->n_instrs);
    break;
  case 5:
    operand->buffer = (int32_t)program_fixture_draw(seed, (uint32_t)p->n_buffers);
    break;
  case 6:
    operand->offset += program_fixture_draw(seed, 64) * 8;
    break;
  case 7:
    buffer->is_resident = !buffer->is_resident;
    break;
  }
}

static void programs_that_pass_after_random_changes_run_right(void **state)
{
  int n_passed = 0, n_caught = 0;
  uint32_t seed = 99;
  for (size_t k = 0; k < FIXTURE_N_SETTINGS; k++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[k]);
    for (int i = 0; i < N_CHANGES; i++) {
      struct lade_program *changed = program_copy(s.program);
      for (uint32_t n = 1 + program_fixture_draw(&seed, 2); n > 0; n--)
        something_change(changed, &seed);
      if (lade_program_prove(changed, no_limit, NULL) == -EINVAL) {
        n_caught++;
      } else {
        n_passed++;
        assert_true(changed->is_proved);
        if (n_passed % 4 == 0)
          assert_true(interleave_runs(changed, seed));
      }
      lade_program_destroy(changed);
    }
    program_fixture_finish(&s);
  }
  print_message("%d caught, %d harmless\n", n_caught, n_passed);
  assert_in_range(n_caught, FIXTURE_N_SETTINGS * N_CHANGES / 4, FIXTURE_N_SETTINGS * N_CHANGES);
  assert_in_range(n_passed, FIXTURE_N_SETTINGS * N_CHANGES / 100, FIXTURE_N_SETTINGS * N_CHANGES);
}

/* Flip any bit of the list: the proof answers, and a program that it accepts runs right. */
static void any_bit_may_be_wrong(void **state)
{
  uint32_t seed = 4242;
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[4]);
  for (int i = 0; i < 4000; i++) {
    struct lade_program *changed = program_copy(s.program);
    uint8_t *const arrays[] = {(uint8_t *)changed->instrs, (uint8_t *)changed->operands, (uint8_t *)changed->buffers};
    const size_t bytes[] = {(size_t)changed->n_instrs * sizeof(struct lade_instr),
                            (size_t)changed->n_operands * sizeof(struct lade_operand),
                            (size_t)changed->n_buffers * sizeof(struct lade_buffer)};
    int which = (int)program_fixture_draw(&seed, 3);
    size_t at = program_fixture_draw(&seed, (uint32_t)bytes[which]);
    if (which == 2 && at % sizeof(struct lade_buffer) == offsetof(struct lade_buffer, is_resident))
      at++; /* a bool is one bit */
    arrays[which][at] ^= (uint8_t)(1u << program_fixture_draw(&seed, 8));
    if (!lade_program_prove(changed, no_limit, NULL) && i % 16 == 0)
      assert_true(interleave_runs(changed, seed));
    lade_program_destroy(changed);
  }
  program_fixture_finish(&s);
}

/* Fail the Nth allocation and all after it, for every N. */
static void memory_that_runs_out_is_said(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[4]);
  struct lade_program *evaluation = program_copy(s.program);
  assert_int_equal(lade_program_prove(evaluation, no_limit, NULL), 0);
  int n = 1;
  for (int status = -ENOMEM; status; n++) {
    struct lade_error error = {0};
    allocations_left = n;
    status = lade_program_prove(s.program, no_limit, &error);
    if (!status)
      status = lade_program_prove_shared(s.program, evaluation, &error);
    allocations_left = -1;
    if (status) {
      assert_int_equal(status, -ENOMEM);
      assert_int_equal(error.code, -ENOMEM);
      assert_non_null(strstr(error.text, "out of memory"));
    }
  }
  assert_in_range(n, 20, 200);
  assert_true(s.program->is_proved);
  lade_program_destroy(evaluation);
  program_fixture_finish(&s);
}

/* A refusal names the kind of the instruction; every kind is in one of the fixtures. */
static void every_kind_is_called_by_its_name(void **state)
{
  static const char *const names[LADE_N_INSTR_KINDS] = {
      [LADE_INSTR_COMPUTE] = "(compute", [LADE_INSTR_GRAD_SUMSQ] = "(norm", [LADE_INSTR_CLIP] = "(clip",
      [LADE_INSTR_UPDATE] = "(update",   [LADE_INSTR_COPY] = "(copy", [LADE_INSTR_READ] = "(read",
      [LADE_INSTR_WRITE] = "(write",     [LADE_INSTR_SEND] = "(send", [LADE_INSTR_COLLECTIVE] = "(collective",
      [LADE_INSTR_RECV] = "(recv",       [LADE_INSTR_ADD] = "(add",   [LADE_INSTR_ROUND] = "(round",
      [LADE_INSTR_CAST] = "(cast",       [LADE_INSTR_SUM] = "(sum"};
  bool is_seen[LADE_N_INSTR_KINDS] = {false};
  for (int setting = 0; setting < FIXTURE_N_SETTINGS; setting++) {
    struct lade_error error;
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[setting]);
    for (int kind = 0; kind < LADE_N_INSTR_KINDS; kind++) {
      int at = 0;
      while (at < s.program->n_instrs && s.program->instrs[at].kind != kind)
        at++;
      if (at == s.program->n_instrs)
        continue;
      struct lade_operand *operand = &s.program->operands[s.program->instrs[at].first_operand];
      is_seen[kind] = true;
      operand->role ^= 1;
      assert_int_equal(lade_program_prove(s.program, no_limit, &error), -EINVAL);
      operand->role ^= 1;
      assert_non_null(strstr(error.text, names[kind]));
    }
    program_fixture_finish(&s);
  }
  for (int kind = 0; kind < LADE_N_INSTR_KINDS; kind++)
    assert_true(is_seen[kind]);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(programs_that_pass_after_random_changes_run_right),
      cmocka_unit_test(any_bit_may_be_wrong),
      cmocka_unit_test(memory_that_runs_out_is_said),
      cmocka_unit_test(every_kind_is_called_by_its_name),
  };
  return cmocka_run_group_tests_name("proof_random", tests, NULL, NULL);
}
