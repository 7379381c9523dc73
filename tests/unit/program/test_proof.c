/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof. Programs of the builder over small models and all kinds of residencies are proved, and run right with
 * their queues interleaved. Then proved programs are broken, each in one way, and every break is caught and named.
 * Random breaks are in test_proof_random.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/interleave.h"
#include "tests/support/program_fixture.h"

static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};

/* Return the @nth instruction of @kind; -1 past the last. */
static int instr_find(const struct lade_program *program, enum lade_instr_kind kind, int nth)
{
  for (int at = 0; at < program->n_instrs; at++) {
    if (program->instrs[at].kind == kind && nth-- == 0)
      return at;
  }
  return -1;
}

static struct lade_operand *operand_get(const struct lade_program *program, int at, int i)
{
  return &program->operands[program->instrs[at].first_operand + i];
}

/* ---- right programs are proved ---- */

static void built_programs_are_proved(void **state)
{
  static const uint64_t prefetch_bytes[] = {0, 1 << 21, UINT64_MAX / 2};
  for (uint32_t i = 0; i < FIXTURE_N_MANNERS * 32; i++) {
    struct program_fixture_setting setting = {.family = i & 1 ? LADE_LLAMA : LADE_GPT2, .n_microbatches = i & 2 ? 3 : 1,
                                .is_unified = i & 4, .state_tiers = (int)(i / 8 % 4),
                                .manner = (enum program_fixture_manner)(i / 32),
                                .prefetch_bytes = prefetch_bytes[i % 3], .dropout = i % 5 ? 0 : 0.1f, .seed = i * 1000,
                                .dtype = i % 7 == 0 ? LADE_F16 : i % 2 ? LADE_F32 : LADE_BF16};
    struct program_fixture s;
    program_fixture_init(&s, &setting);
    assert_proved(s.program);
    setting.is_evaluation = true;
    struct lade_program *evaluation = program_fixture_build(&s, &setting, s.program);
    assert_proved(evaluation);
    assert_int_equal(lade_program_prove_shared(s.program, evaluation, NULL), 0);
    lade_program_destroy(evaluation);
    program_fixture_finish(&s);
  }
}

static void proved_programs_run_right_in_any_order(void **state)
{
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[i]);
    assert_proved(s.program);
    for (uint32_t seed = 0; seed < 3; seed++)
      assert_true(interleave_runs(s.program, seed * 1000003));
    program_fixture_finish(&s);
  }
}

/* ---- order ---- */

/* Waits are minimal: without any one of them, or with one that ends an instruction earlier, two accesses race. */
static void every_wait_is_needed(void **state)
{
  int n_waits = 0;
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[i]);
    for (int at = 0; at < s.program->n_instrs; at++) {
      for (int q = 0; q < LADE_N_QUEUES; q++) {
        int32_t *wait = &s.program->instrs[at].waits[q], right = *wait;
        if (right < 0)
          continue;
        n_waits++;
        *wait = -1;
        assert_caught(s.program, "no wait puts it after");
        for (*wait = right - 1; *wait >= 0 && s.program->instrs[*wait].queue != q; *wait -= 1)
          ;
        assert_caught(s.program, "no wait puts it after");
        *wait = right;
      }
    }
    assert_proved(s.program);
    program_fixture_finish(&s);
  }
  assert_in_range(n_waits, 500, 100000);
}

static void wrong_waits_are_caught(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[2]);
  int at = instr_find(s.program, LADE_INSTR_COPY, 3);
  int32_t *waits = s.program->instrs[at].waits;
  waits[LADE_Q_COMPUTE] = at;
  assert_caught(s.program, "not an earlier one");
  waits[LADE_Q_COMPUTE] = s.program->n_instrs;
  assert_caught(s.program, "not an earlier one");
  waits[LADE_Q_COMPUTE] = -7;
  assert_caught(s.program, "not an earlier one");
  waits[LADE_Q_COMPUTE] = -1;
  waits[LADE_Q_IO] = 0;
  assert_caught(s.program, "as one of queue io");
  program_fixture_finish(&s);
}

/* ---- the list: every instruction is needed, once, in its place ---- */

static struct lade_program *without(const struct lade_program *program, int at)
{
  int *order = malloc((size_t)program->n_instrs * sizeof(*order)), n = 0;
  for (int i = 0; i < program->n_instrs; i++) {
    if (i != at)
      order[n++] = i;
  }
  struct lade_program *changed = program_reorder(program, order, n);
  free(order);
  return changed;
}

/* Copy @program with instruction @at repeated at position @to of the new list. */
static struct lade_program *repeated(const struct lade_program *program, int at, int to)
{
  int *order = malloc(((size_t)program->n_instrs + 1) * sizeof(*order)), n = 0;
  for (int i = 0; i <= program->n_instrs; i++) {
    if (i == to)
      order[n++] = at;
    if (i < program->n_instrs)
      order[n++] = i;
  }
  struct lade_program *changed = program_reorder(program, order, n);
  free(order);
  return changed;
}

static void reordering_nothing_keeps_a_program_right(void **state)
{
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[i]);
    struct lade_program *same = without(s.program, -1);
    assert_proved(same);
    lade_program_destroy(same);
    program_fixture_finish(&s);
  }
}

static void every_instruction_is_needed(void **state)
{
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    struct lade_error error;
    program_fixture_init(&s, &program_fixture_settings[i]);
    for (int at = 0; at < s.program->n_instrs; at++) {
      struct lade_program *less = without(s.program, at);
      assert_int_equal(lade_program_prove(less, no_limit, &error), -EINVAL);
      lade_program_destroy(less);
    }
    program_fixture_finish(&s);
  }
}

static void missing_parts_are_named(void **state)
{
  const struct {
    enum lade_instr_kind kind;
    const char *fragment;
  } cases[] = {{LADE_INSTR_UPDATE, "is never updated"}, {LADE_INSTR_GRAD_SUMSQ, "is missing in the norm"},
               {LADE_INSTR_CLIP, "never clipped"},      {LADE_INSTR_COMPUTE, "never runs for microbatch"}};
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[2]);
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_program *less = without(s.program, instr_find(s.program, cases[i].kind, 0));
    assert_caught(less, cases[i].fragment);
    lade_program_destroy(less);
  }
  struct lade_program *less = without(s.program, instr_find(s.program, LADE_INSTR_COPY, 0));
  assert_caught(less, "holds nothing");
  lade_program_destroy(less);
  program_fixture_finish(&s);
}

static void repeated_instructions_are_caught(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[4]);
  const int n = s.program->n_instrs;
  for (int at = 0; at < n; at++) {
    const struct lade_instr *instr = &s.program->instrs[at];
    bool is_compute = instr->kind == LADE_INSTR_COMPUTE, is_forward = is_compute && instr->op < s.graph->n_fwd_ops;
    if (instr->kind >= LADE_INSTR_COPY || (is_forward && instr->is_recompute))
      continue; /* may be useless, but is not wrong */
    struct lade_program *more = repeated(s.program, at, at + 1);
    assert_caught(more, is_forward ? "not marked as recomputed" : is_compute ? "runs again, which" : "happens twice");
    lade_program_destroy(more);
  }
  program_fixture_finish(&s);
}

/* True if the instruction at @at is followed by one that uses its result. */
static bool is_consumer(const struct lade_program *program, int at)
{
  for (int i = 0; i < program->instrs[at].n_operands; i++) {
    for (int j = 0; j < program->instrs[at - 1].n_operands; j++) {
      const struct lade_operand *one = operand_get(program, at - 1, j), *two = operand_get(program, at, i);
      bool do_meet = one->offset < two->offset + two->bytes && two->offset < one->offset + one->bytes;
      if (one->buffer == two->buffer && do_meet && (one->access & LADE_MAKES) && (two->access & LADE_READS))
        return true;
    }
  }
  return false;
}

static void swapped_neighbours_are_caught(void **state)
{
  int n_swaps = 0;
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    struct lade_error error;
    program_fixture_init(&s, &program_fixture_settings[i]);
    int *order = malloc((size_t)s.program->n_instrs * sizeof(*order));
    for (int at = 0; at < s.program->n_instrs; at++)
      order[at] = at;
    for (int at = 1; at < s.program->n_instrs; at++) {
      if (!is_consumer(s.program, at))
        continue;
      order[at] = at - 1;
      order[at - 1] = at;
      struct lade_program *changed = program_reorder(s.program, order, s.program->n_instrs);
      assert_int_equal(lade_program_prove(changed, no_limit, &error), -EINVAL);
      assert_non_null(strstr(error.text, "is not there"));
      lade_program_destroy(changed);
      order[at] = at;
      order[at - 1] = at - 1;
      n_swaps++;
    }
    free(order);
    program_fixture_finish(&s);
  }
  assert_in_range(n_swaps, 200, 100000);
}

/* A copy of the weight fetched before the update is valid for this step; one fetched after it is not. */
static void weights_are_not_read_after_their_update(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[2]);
  int fetch = 0;
  while (s.program->instrs[fetch].kind != LADE_INSTR_COPY ||
         operand_get(s.program, fetch, 0)->reads.tensor != s.graph->params[0].tensor)
    fetch++;
  struct lade_program *more = repeated(s.program, fetch, s.program->n_instrs);
  assert_caught(more, "out of date");
  lade_program_destroy(more);
  program_fixture_finish(&s);
}

/* ---- operands ---- */

/* Change each field of each operand. */
static void every_field_of_an_operand_matters(void **state)
{
  struct program_fixture s;
  struct lade_error error;
  program_fixture_init(&s, &program_fixture_settings[4]);
  struct lade_program *p = s.program;
  for (int i = 0; i < p->n_operands; i++) {
    struct lade_operand *operand = &p->operands[i], right = *operand;
#define BREAK(field, value) \
  operand->field = value; \
  assert_int_equal(lade_program_prove(p, no_limit, &error), -EINVAL); \
  *operand = right
    BREAK(buffer, p->n_buffers);
    BREAK(buffer, -1);
    BREAK(access, (uint8_t)(right.access ^ LADE_READS));
    BREAK(access, (uint8_t)(right.access ^ LADE_MAKES));
    BREAK(role, (uint8_t)(right.role + 1));
    BREAK(bytes, right.bytes + 8);
    BREAK(bytes, right.bytes - 1);
    BREAK(bytes, UINT64_MAX);
    BREAK(offset, UINT64_MAX);
    BREAK(reads.tensor, right.reads.tensor + 1);
    BREAK(reads.microbatch, (int16_t)(right.reads.microbatch + 1));
    BREAK(reads.version, (int16_t)(right.reads.version + 1));
    BREAK(makes.tensor, right.makes.tensor + 1);
    BREAK(makes.microbatch, (int16_t)(right.makes.microbatch + 1));
    BREAK(makes.version, (int16_t)(right.makes.version + 1));
#undef BREAK
  }
  assert_proved(p);
  program_fixture_finish(&s);
}

/* A read through any other buffer, even of the same size, finds another value or none. */
static void reads_from_a_wrong_buffer_are_caught(void **state)
{
  struct program_fixture s;
  struct lade_error error;
  program_fixture_init(&s, &program_fixture_settings[4]);
  uint32_t seed = 1;
  for (int i = 0; i < s.program->n_operands; i++) {
    struct lade_operand *operand = &s.program->operands[i];
    int32_t right = operand->buffer;
    if (!(operand->access & LADE_READS))
      continue;
    while (operand->buffer == right)
      operand->buffer = (int32_t)program_fixture_draw(&seed, (uint32_t)s.program->n_buffers);
    assert_int_equal(lade_program_prove(s.program, no_limit, &error), -EINVAL);
    operand->buffer = right;
  }
  program_fixture_finish(&s);
}

/* Change both operands of a transfer to another value: only the contents of the source are wrong then. */
static void transfers_of_another_value_are_caught(void **state)
{
  for (size_t k = 2; k < FIXTURE_N_SETTINGS; k++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[k]);
    for (int at = 0; at < s.program->n_instrs; at++) {
      struct lade_instr *instr = &s.program->instrs[at];
      struct lade_operand *from = operand_get(s.program, at, 0), *to = operand_get(s.program, at, 1);
      const struct lade_value right = from->reads, made = to->makes;
      if (instr->kind < LADE_INSTR_COPY || instr->kind > LADE_INSTR_WRITE || right.tensor >= s.graph->n_tensors)
        continue;
      const struct lade_tensor *value = &s.graph->tensors[right.tensor];
      if (value->kind == LADE_TENSOR_GRAD)
        from->reads.version = (int16_t)(right.version + (right.version > 1 ? -1 : 1));
      else if (value->kind == LADE_TENSOR_PARAM)
        from->reads.version = !right.version;
      else if (program_fixture_settings[k].n_microbatches > 1)
        from->reads.microbatch = instr->microbatch =
            (int16_t)((right.microbatch + 1) % program_fixture_settings[k].n_microbatches);
      else
        continue;
      to->makes = from->reads;
      struct lade_error error;
      assert_int_equal(lade_program_prove(s.program, no_limit, &error), -EINVAL);
      from->reads = right;
      to->makes = made;
      instr->microbatch = right.microbatch;
    }
    assert_proved(s.program);
    program_fixture_finish(&s);
  }
}

static void exchanged_inputs_are_caught(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[0]);
  int n = 0;
  for (int at = 0; at < s.program->n_instrs; at++) {
    if (s.program->instrs[at].kind != LADE_INSTR_COMPUTE || s.program->instrs[at].n_operands < 3)
      continue;
    struct lade_operand *x = operand_get(s.program, at, 0), *y = operand_get(s.program, at, 1);
    if (y->role >= LADE_ROLE_OUT || x->bytes != y->bytes)
      continue;
    int32_t buffer = x->buffer;
    x->buffer = y->buffer;
    y->buffer = buffer;
    struct lade_error error;
    assert_int_equal(lade_program_prove(s.program, no_limit, &error), -EINVAL);
    assert_true(strstr(error.text, "is not there") || strstr(error.text, "lies on operand"));
    y->buffer = x->buffer;
    x->buffer = buffer;
    n++;
  }
  assert_in_range(n, 2, 1000);
  program_fixture_finish(&s);
}

/* An output may overlap the input that the op table names, if no later instruction reads that input, and no other. */
static void outputs_do_not_lie_on_inputs(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[0]);
  int n = 0;
  for (int at = 0; at < s.program->n_instrs; at++) {
    const struct lade_instr *instr = &s.program->instrs[at];
    for (int i = 1; instr->kind == LADE_INSTR_COMPUTE && i < instr->n_operands; i++) {
      struct lade_operand *x = operand_get(s.program, at, 0), *y = operand_get(s.program, at, i);
      int32_t right = y->buffer;
      if (y->role < LADE_ROLE_OUT || x->buffer == right || y->bytes > s.program->buffers[x->buffer].bytes)
        continue;
      const int8_t *alias = s.graph->ops[instr->op].alias;
      bool is_aliased = y->role < LADE_ROLE_SCRATCH && alias[y->role - LADE_ROLE_OUT] == x->role;
      y->buffer = x->buffer;
      assert_caught(s.program, is_aliased ? "is not there" : "lies on operand 0");
      y->buffer = right;
      n++;
    }
  }
  assert_in_range(n, 20, 1000);
  program_fixture_finish(&s);
}

static void partial_sums_cover_every_gradient(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[0]);
  int one = instr_find(s.program, LADE_INSTR_GRAD_SUMSQ, 0), two = instr_find(s.program, LADE_INSTR_GRAD_SUMSQ, 1);
  struct lade_operand *x = operand_get(s.program, one, 1), *y = operand_get(s.program, two, 1);
  assert_int_equal(x->bytes, y->bytes);
  uint64_t right = x->offset;
  x->offset = y->offset;
  assert_caught(s.program, "sums of squares");
  x->offset = right + 8;
  assert_caught(s.program, "sums of squares");
  x->offset = y->offset;
  y->offset = right;
  assert_caught(s.program, "begins elsewhere");
  program_fixture_finish(&s);
}

/* Collect the scratch operands of streamed updates, by number; at most @max. */
static int scratches_find(const struct lade_program *program, int *operands, int max)
{
  int n = 0;
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    if (!instr->is_streamed)
      continue;
    assert_in_range(n, 0, max - 1);
    operands[n++] = instr->first_operand + instr->n_operands - 1;
  }
  return n;
}

/*
 * Streamed updates read ahead into one shared scratch as large as the largest needs. One update's parts are adjacent.
 */
static void streamed_updates_share_their_scratch(void **state)
{
  struct program_fixture s;
  int operands[256];
  program_fixture_init(&s, &program_fixture_settings[3]);
  const int n = scratches_find(s.program, operands, (int)LADE_COUNT(operands));
  assert_int_equal(n, s.graph->n_params);
  for (int i = 0; i < n; i++) {
    struct lade_operand *operand = &s.program->operands[operands[i]];
    operand->bytes -= LADE_BUFFER_ALIGN;
    assert_caught(s.program, "is not the scratch");
    operand->bytes += LADE_BUFFER_ALIGN;
    uint64_t *offset = &s.program->buffers[operand[-2].buffer].offset; /* of the last part: the clip result is
                                                                          between */
    *offset += LADE_STORE_ALIGN;
    assert_caught(s.program, "does not stand behind");
    *offset -= LADE_STORE_ALIGN;
  }
  for (int i = 0; i < n; i++)
    s.program->operands[operands[i]].bytes -= LADE_BUFFER_ALIGN;
  assert_caught(s.program, "bytes of scratch: expected");
  s.program->streaming.n_windows = 0;
  assert_caught(s.program, "stream through 0 windows");
  program_fixture_finish(&s);
}

/* ---- instructions ---- */

static void fields_of_instructions_matter(const struct program_fixture_setting *setting)
{
  struct program_fixture s;
  struct lade_error error;
  program_fixture_init(&s, setting);
  struct lade_program *p = s.program;
  for (int at = 0; at < p->n_instrs; at++) {
    struct lade_instr *instr = &p->instrs[at], right = *instr;
    bool is_transfer = instr->kind >= LADE_INSTR_COPY && instr->param < 0;
    bool is_compute = instr->kind == LADE_INSTR_COMPUTE;
#define BREAK(field, value) \
  instr->field = value; \
  assert_int_equal(lade_program_prove(p, no_limit, &error), -EINVAL); \
  *instr = right
    for (uint8_t kind = 0; kind <= LADE_N_INSTR_KINDS; kind++) {
      if (kind != right.kind) {
        BREAK(kind, kind);
      }
    }
    for (uint8_t queue = 0; queue <= LADE_N_QUEUES; queue++) {
      if (queue != right.queue) {
        BREAK(queue, queue);
      }
    }
    BREAK(is_recompute, !right.is_recompute);
    BREAK(is_streamed, !right.is_streamed);
    BREAK(collective, (uint8_t)(right.collective + 1));
    BREAK(collective, LADE_N_COLLECTIVES);
    BREAK(axis, (uint8_t)(right.axis + 1));
    BREAK(axis, LADE_N_AXES);
    BREAK(peer, right.peer + 1);
    BREAK(accumulate, right.accumulate ^ 1);
    BREAK(accumulate, right.accumulate ^ 4);
    BREAK(n_operands, (uint16_t)(right.n_operands - 1));
    BREAK(n_operands, (uint16_t)(right.n_operands + 1));
    BREAK(first_operand, right.first_operand + 1);
    BREAK(op, right.op + 1);
    BREAK(op, -2);
    BREAK(op, s.graph->n_ops);
    BREAK(param, right.param + 1);
    BREAK(param, -2);
    BREAK(param, s.graph->n_params);
    BREAK(microbatch, -1);
    BREAK(microbatch, 3);
    if (is_transfer || is_compute) {
      BREAK(microbatch, (int16_t)((right.microbatch + 1) % 3));
    }
#undef BREAK
  }
  assert_proved(p);
  program_fixture_finish(&s);
}

static void every_field_of_an_instruction_matters(void **state)
{
  fields_of_instructions_matter(&program_fixture_settings[4]);
  fields_of_instructions_matter(&program_fixture_settings[7]); /* with other ranks */
  fields_of_instructions_matter(&program_fixture_settings[8]); /* with other stages */
  fields_of_instructions_matter(&program_fixture_settings[11]); /* with state in shards */
}

/* A sum over ranks of a value that only this rank has, or a sum too early, is refused; and an update needs the sum. */
static void sums_over_ranks_are_needed_and_whole(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[7]);
  int n_sums = 0;
  for (int at = 0; at < s.program->n_instrs; at++) {
    if (s.program->instrs[at].kind != LADE_INSTR_COLLECTIVE)
      continue;
    struct lade_program *less = without(s.program, at), *more = repeated(s.program, at, at + 1);
    assert_caught(less, s.program->instrs[at].param < 0 ? "loss" : "is not there: found");
    assert_caught(more, "is not there: found");
    lade_program_destroy(less);
    lade_program_destroy(more);
    n_sums++;
  }
  assert_int_equal(n_sums, s.graph->n_params + program_fixture_settings[7].n_microbatches);
  s.program->layout = NULL;
  assert_caught(s.program, "is a collective of one rank");
  program_fixture_finish(&s);
}

/* ---- buffers and totals ---- */

static void live_buffers_on_one_address_are_caught(void **state)
{
  struct program_fixture s;
  struct lade_error error;
  program_fixture_init(&s, &program_fixture_settings[4]);
  int n = 0;
  for (int i = 1; i < s.program->n_buffers; i++) {
    for (int j = 0; j < i; j++) {
      struct lade_buffer *x = &s.program->buffers[i], *y = &s.program->buffers[j];
      if (x->space != y->space || x->first > y->last || y->first > x->last || x->bytes > y->bytes ||
          (i * 31 + j) % 17)
        continue; /* some of the pairs */
      uint64_t right = x->offset;
      x->offset = y->offset + y->bytes - x->bytes;
      assert_int_equal(lade_program_prove(s.program, no_limit, &error), -EINVAL);
      assert_true(strstr(error.text, "overlap in") || strstr(error.text, "lies on operand") ||
                  strstr(error.text, "does not stand behind"));
      x->offset = right;
      n++;
    }
  }
  assert_in_range(n, 100, 100000);
  assert_proved(s.program);
  program_fixture_finish(&s);
}

/* Return the last instruction with an operand in @buffer. */
static int last_use(const struct lade_program *program, int buffer)
{
  int last = -1;
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    for (int i = 0; i < instr->n_operands; i++)
      last = program->operands[instr->first_operand + i].buffer == buffer ? at : last;
  }
  return last;
}

static void every_field_of_a_buffer_matters(void **state)
{
  struct program_fixture s;
  struct lade_error error;
  program_fixture_init(&s, &program_fixture_settings[4]);
  struct lade_program *p = s.program;
  for (int i = 0; i < p->n_buffers; i++) {
    struct lade_buffer *buffer = &p->buffers[i], right = *buffer;
#define BREAK(field, value, fragment) \
  buffer->field = value; \
  assert_int_equal(lade_program_prove(p, no_limit, &error), -EINVAL); \
  if (!strstr(error.text, fragment)) \
    print_message("%s\n", error.text); \
  assert_non_null(strstr(error.text, fragment)); \
  *buffer = right
    BREAK(first, right.first + 1, "li");
    if (right.last == last_use(p, i)) { /* else it is held so that others take other addresses */
      BREAK(last, right.last - 1, "li");
    }
    BREAK(first, -1, "lifetime");
    BREAK(last, p->n_instrs, "lifetime");
    BREAK(offset, right.offset + 512, "multiples");
    BREAK(bytes, right.bytes - 512, "multiples");
    BREAK(bytes, right.bytes - (right.space == LADE_STORE ? LADE_STORE_ALIGN : LADE_BUFFER_ALIGN), "");
    BREAK(bytes, 0, "multiples");
    BREAK(bytes, UINT64_C(1) << 63, "past the stated peak");
    BREAK(offset, UINT64_MAX - 65535, "past the stated peak");
    BREAK(space, LADE_N_SPACES, "no such");
    BREAK(owner, LADE_N_OWNERS, "no such");
    for (int space = 0; space < LADE_N_SPACES; space++) {
      if (space != (int)right.space) {
        BREAK(space, (enum lade_space)space, "");
      }
    }
    if (right.is_resident) {
      BREAK(is_resident, false, "");
      BREAK(owner, LADE_OWNER_OPTIMIZER - (right.owner == LADE_OWNER_OPTIMIZER), "");
    }
#undef BREAK
  }
  assert_proved(p);
  program_fixture_finish(&s);
}

/* If kernels cannot read the host's memory, the step block has two resident buffers without other contents. */
static void the_step_block_has_places_of_its_own(void **state)
{
  struct program_fixture_setting setting = program_fixture_settings[4];
  struct program_fixture s;
  setting.is_unified = false;
  program_fixture_init(&s, &setting);
  struct lade_program *p = s.program;
  const int32_t on_host = p->step_on_host, on_device = p->step_on_device;
  p->step_on_host = on_device;
  assert_caught(p, "no place for the step block in host");
  p->step_on_host = p->n_buffers;
  assert_caught(p, "no place for the step block in host");
  p->step_on_host = on_host - 1; /* the clip result's */
  assert_caught(p, "is for the step block, but operand");
  p->step_on_host = on_host;
  p->step_on_device = -1;
  assert_caught(p, "no place for the step block in device");
  p->step_on_device = on_device;
  assert_proved(p);
  program_fixture_finish(&s);
}

static void understated_totals_are_caught(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[4]);
  struct lade_program *p = s.program;
  for (int space = 0; space < LADE_N_SPACES; space++) {
    uint64_t *owner = &p->owner_bytes[space][LADE_OWNER_FRAGMENTATION], right = *owner, peak = p->peak_bytes[space];
    uint64_t limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct lade_error error = {0};
    *owner = right + 1;
    assert_caught(p, "owners hold");
    *owner = right - 1;
    assert_caught(p, "owners hold");
    *owner = right;
    p->peak_bytes[space] = peak - 65536;
    assert_caught(p, "past the stated peak");
    p->peak_bytes[space] = peak;
    p->live_peak_bytes[space] -= LADE_BUFFER_ALIGN;
    assert_caught(p, "live at once");
    p->live_peak_bytes[space] += LADE_BUFFER_ALIGN;
    limit[space] = peak - 1;
    assert_int_equal(lade_program_prove(p, limit, &error), -EINVAL);
    assert_non_null(strstr(error.text, "past the budget"));
    limit[space] = peak;
    assert_int_equal(lade_program_prove(p, limit, &error), 0);
  }
  p->n_microbatches++;
  assert_caught(p, "must read");
  p->n_microbatches = 20000;
  assert_caught(p, "too many");
  program_fixture_finish(&s);
}

/* ---- training and evaluation ---- */

static void an_evaluation_changes_nothing(void **state)
{
  struct program_fixture s;
  struct program_fixture_setting setting = program_fixture_settings[2];
  program_fixture_init(&s, &setting);
  setting.is_evaluation = true;
  struct lade_program *evaluation = program_fixture_build(&s, &setting, s.program);
  assert_proved(evaluation);
  evaluation->is_training = true;
  assert_caught(evaluation, "never runs");
  s.program->is_training = false;
  assert_caught(s.program, "does not belong here");
  s.program->is_training = evaluation->is_training = true;
  evaluation->is_training = false;

  /* The loss, copied to the space of optimizer state and tokens. */
  int at = evaluation->n_instrs - 1;
  assert_int_equal(operand_get(evaluation, at, 0)->reads.tensor, s.graph->loss);
  for (int i = 0; i < evaluation->n_buffers; i++) {
    const struct lade_buffer *buffer = &evaluation->buffers[i];
    if (!buffer->is_resident || buffer->space != LADE_HOST)
      continue;
    struct lade_program *more = repeated(evaluation, at, at);
    operand_get(more, at, 1)->buffer = i;
    assert_int_equal(lade_program_order(more), 0);
    if (buffer->owner == LADE_OWNER_OPTIMIZER)
      assert_caught(more, "an evaluation writes it");
    else if (buffer->owner == LADE_OWNER_PARAMETERS)
      assert_caught(more, "with which the next one begins");
    lade_program_destroy(more);
  }
  lade_program_destroy(evaluation);
  program_fixture_finish(&s);
}

static void programs_over_one_arena_agree_on_residents(void **state)
{
  struct program_fixture s;
  struct program_fixture_setting setting = program_fixture_settings[4];
  struct lade_error error = {0};
  program_fixture_init(&s, &setting);
  setting.is_evaluation = true;
  struct lade_program *evaluation = program_fixture_build(&s, &setting, s.program);
  assert_int_equal(lade_program_prove_shared(s.program, evaluation, &error), -EINVAL);
  assert_non_null(strstr(error.text, "must be proved"));
  assert_proved(s.program);
  assert_proved(evaluation);
  assert_int_equal(lade_program_prove_shared(s.program, evaluation, &error), 0);
  for (int i = 0; i < s.program->n_buffers && s.program->buffers[i].is_resident; i++) {
    evaluation->buffers[i].offset += LADE_STORE_ALIGN;
    assert_int_equal(lade_program_prove_shared(s.program, evaluation, &error), -EINVAL);
    assert_non_null(strstr(error.text, "are not one range"));
    evaluation->buffers[i].offset -= LADE_STORE_ALIGN;
  }
  for (int i = 0; i < evaluation->n_operands; i++) {
    struct lade_operand *operand = &evaluation->operands[i];
    if (operand->reads.tensor == s.graph->params[1].tensor)
      operand->reads.tensor = s.graph->params[2].tensor;
  }
  assert_int_equal(lade_program_prove_shared(s.program, evaluation, &error), -EINVAL);
  assert_non_null(strstr(error.text, "for one program"));
  lade_program_destroy(evaluation);
  program_fixture_finish(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(built_programs_are_proved),
      cmocka_unit_test(proved_programs_run_right_in_any_order),
      cmocka_unit_test(every_wait_is_needed),
      cmocka_unit_test(wrong_waits_are_caught),
      cmocka_unit_test(reordering_nothing_keeps_a_program_right),
      cmocka_unit_test(every_instruction_is_needed),
      cmocka_unit_test(missing_parts_are_named),
      cmocka_unit_test(repeated_instructions_are_caught),
      cmocka_unit_test(swapped_neighbours_are_caught),
      cmocka_unit_test(weights_are_not_read_after_their_update),
      cmocka_unit_test(every_field_of_an_operand_matters),
      cmocka_unit_test(reads_from_a_wrong_buffer_are_caught),
      cmocka_unit_test(transfers_of_another_value_are_caught),
      cmocka_unit_test(exchanged_inputs_are_caught),
      cmocka_unit_test(outputs_do_not_lie_on_inputs),
      cmocka_unit_test(partial_sums_cover_every_gradient),
      cmocka_unit_test(streamed_updates_share_their_scratch),
      cmocka_unit_test(every_field_of_an_instruction_matters),
      cmocka_unit_test(sums_over_ranks_are_needed_and_whole),
      cmocka_unit_test(live_buffers_on_one_address_are_caught),
      cmocka_unit_test(every_field_of_a_buffer_matters),
      cmocka_unit_test(the_step_block_has_places_of_its_own),
      cmocka_unit_test(understated_totals_are_caught),
      cmocka_unit_test(an_evaluation_changes_nothing),
      cmocka_unit_test(programs_over_one_arena_agree_on_residents),
  };
  return cmocka_run_group_tests_name("proof", tests, NULL, NULL);
}
