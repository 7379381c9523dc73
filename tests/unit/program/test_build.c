/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building programs if memory is refused, with many microbatches, and with groups of collectives. Further the layout of
 * state in the store, and blocks of gradients that leave the device between microbatches. A program's contents are
 * tested in test_proof, its choice in test_plan.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "program/proof/proof.h"
#include "recompute/plan.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/program_fixture.h"

#define CHUNK 65536
#define MANY_ALLOCATIONS 100000 /* more than any build of these fixtures makes */
#define MANY_MICROBATCHES 200

static struct lade_build_params params_of(const struct program_fixture *fixture,
                                          const struct program_fixture_setting *setting)
{
  return (struct lade_build_params){.graph = fixture->graph, .layout = program_fixture_layout(fixture, setting),
                                    .residency = fixture->residency, .prices = &fixture->prices,
                                    .n_microbatches = setting->n_microbatches, .is_training = !setting->is_evaluation,
                                    .is_unified = setting->is_unified, .chunk_bytes = CHUNK, .packer = fixture->packer};
}

static void programs_are_equal(const struct lade_program *a, const struct lade_program *b)
{
  assert_int_equal(a->n_instrs, b->n_instrs);
  assert_int_equal(a->n_operands, b->n_operands);
  assert_int_equal(a->n_buffers, b->n_buffers);
  for (int i = 0; i < a->n_buffers; i++)
    assert_true(a->buffers[i].offset == b->buffers[i].offset && a->buffers[i].bytes == b->buffers[i].bytes);
  assert_memory_equal(a->peak_bytes, b->peak_bytes, sizeof(a->peak_bytes));
  assert_true(a->predicted_ns == b->predicted_ns);
}

/* Refuse the Nth allocation of a build and all after it, for every N. */
static void builds_fail_whole(const struct program_fixture_setting *setting)
{
  struct program_fixture fixture;
  program_fixture_init(&fixture, setting);
  const struct lade_build_params params = params_of(&fixture, setting);
  int status = -ENOMEM, n_refused = 0;
  for (int n = 1; status && n < MANY_ALLOCATIONS; n++) {
    struct lade_program *program = NULL;
    const int n_before = allocations_live;
    allocations_left = n;
    status = lade_program_build(&params, &program);
    bool has_failed = allocations_left == 0;
    allocations_left = -1;
    if (status) {
      assert_int_equal(status, -ENOMEM);
      assert_true(has_failed && program == NULL);
      assert_int_equal(allocations_live, n_before);
      n_refused++;
      continue;
    }
    assert_false(has_failed);
    programs_are_equal(program, fixture.program);
    lade_program_destroy(program);
    assert_int_equal(allocations_live, n_before);
  }
  assert_int_equal(status, 0);
  assert_true(n_refused > 20);
  program_fixture_finish(&fixture);
}

static void every_refused_allocation_fails_a_build_whole(void **state)
{
  for (int i = 0; i < FIXTURE_N_SETTINGS; i++)
    builds_fail_whole(&program_fixture_settings[i]);
}

static void many_microbatches_are_one_program(void **state)
{
  struct program_fixture_setting few = {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 2}, many = few;
  struct program_fixture small, large;
  struct lade_error error = {0};
  many.n_microbatches = MANY_MICROBATCHES;
  program_fixture_init(&small, &few);
  program_fixture_init(&large, &many);
  const uint64_t budgets[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
  assert_int_equal(lade_program_prove(large.program, budgets, &error), 0);
  assert_int_equal(large.program->live_peak_bytes[LADE_DEVICE], small.program->live_peak_bytes[LADE_DEVICE]);
  program_fixture_finish(&large);
  program_fixture_finish(&small);
}

static void the_number_of_microbatches_has_limits(void **state)
{
  struct lade_model_graph *graph = program_fixture_graph(LADE_GPT2, LADE_BF16, 0);
  struct lade_prices prices = program_fixture_prices(graph);
  struct lade_plan_params params = {.struct_size = sizeof(params), .graph = graph, .prices = &prices,
                                    .is_unified = true, .chunk_bytes = CHUNK};
  static const int refused[] = {-1, 0, LADE_MICROBATCHES_MAX + 1};
  for (size_t i = 0; i < LADE_COUNT(refused); i++) {
    struct lade_error error = {0};
    lade_planner *planner = NULL;
    char stated[64];
    params.n_microbatches = refused[i];
    snprintf(stated, sizeof(stated), "%d microbatches in a step: there may be 1 to %d", refused[i],
             LADE_MICROBATCHES_MAX);
    assert_int_equal(lade_planner_create(&params, &error, &planner), -EINVAL);
    assert_null(planner);
    assert_non_null(strstr(error.text, stated));
    assert_non_null(strstr(error.text, "--micro-batch"));
  }
  program_fixture_prices_finish(&prices);
  lade_model_graph_destroy(graph);
}

static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};

static void assert_refused(struct lade_program *program, const char *words)
{
  struct lade_error error = {0};
  assert_int_equal(lade_program_prove(program, no_limit, &error), -EINVAL);
  assert_non_null(strstr(error.text, words));
}

/* Return the first instruction that is grouped with the one before it. */
static int grouped_find(const struct lade_program *program)
{
  int at = 0;
  while (at < program->n_instrs && !program->instrs[at].is_grouped)
    at++;
  assert_in_range(at, 1, program->n_instrs - 1);
  return at;
}

/*
 * Check groups in @program: only collectives of one kind without conflicts are grouped, and only the first one waits.
 */
static void groups_are_of_like_and_disjoint_collectives(void **state)
{
  static const int settings[] = {7, 10, 13};
  for (size_t i = 0; i < LADE_COUNT(settings); i++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[settings[i]]);
    struct lade_instr *instrs = s.program->instrs;
    const int at = grouped_find(s.program);
    assert_true(lade_program_group_end(s.program, at - 1) > at);
    assert_int_not_equal(instrs[0].queue, instrs[at].queue);
    instrs[at].waits[instrs[0].queue] = 0;
    assert_refused(s.program, "is grouped, and waits");
    instrs[at].waits[instrs[0].queue] = -1;
    instrs[at - 1].is_grouped = true;
    assert_refused(s.program, "is grouped");
    instrs[at - 1].is_grouped = instrs[at].is_grouped = false;
    assert_int_equal(lade_program_prove(s.program, no_limit, NULL), 0);
    program_fixture_finish(&s);
  }
}

/* A graph of launches is as long as possible: it ends only where an instruction waits or is waited for. */
static void captures_end_only_at_a_wait(void **state)
{
  int n_members = 0;
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i += 3) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[i]);
    for (int at = 0; at < s.program->n_instrs; at++) {
      struct lade_instr *instr = &s.program->instrs[at];
      n_members += instr->is_graph_member;
      if (instr->is_graph_member)
        continue;
      instr->is_graph_member = true;
      assert_refused(s.program, "CUDA graph");
      instr->is_graph_member = false;
    }
    assert_int_equal(lade_program_prove(s.program, no_limit, NULL), 0);
    program_fixture_finish(&s);
  }
  assert_true(n_members > 30);
}

/* The planner does not pack a program that is too slow by this bound. */
static void no_packing_is_faster_than_buffers_apart(void **state)
{
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[i]);
    const struct lade_build_params params = params_of(&s, &program_fixture_settings[i]);
    const int64_t packed_ns = s.program->predicted_ns;
    assert_int_equal(lade_program_place_apart(&params, s.program), 0);
    assert_true(s.program->predicted_ns > 0 && s.program->predicted_ns <= packed_ns);
    assert_int_equal(lade_program_place(&params, s.program), 0);
    assert_int_equal(s.program->predicted_ns, packed_ns);
    program_fixture_finish(&s);
  }
}

/* A program is the same with the bytes of all values given, and within a limit. Above the limit it has no times. */
static void given_bytes_and_limits_change_no_program(void **state)
{
  for (size_t i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture s;
    struct lade_program *program = NULL;
    program_fixture_init(&s, &program_fixture_settings[i]);
    struct lade_build_params params = params_of(&s, &program_fixture_settings[i]);
    uint64_t *held_bytes = malloc((size_t)lade_value_count(s.graph) * sizeof(*held_bytes));
    assert_non_null(held_bytes);
    for (int value = 0; value < lade_value_count(s.graph); value++)
      held_bytes[value] = lade_held_bytes(s.graph, params.layout, value);
    params.held_bytes = held_bytes;
    params.device_max_bytes = s.program->peak_bytes[LADE_DEVICE];
    assert_int_equal(lade_program_build(&params, &program), 0);
    programs_are_equal(program, s.program);
    lade_program_destroy(program);
    params.device_max_bytes--;
    assert_int_equal(lade_program_emit(&params, &program), 0);
    assert_int_equal(lade_program_place(&params, program), 0);
    assert_true(program->peak_bytes[LADE_DEVICE] == s.program->peak_bytes[LADE_DEVICE] && !program->predicted_ns);
    lade_program_destroy(program);
    free(held_bytes);
    program_fixture_finish(&s);
  }
}

/* A group moves the same bytes as its collectives apart, and waits once. */
static void groups_move_the_same_bytes(void **state)
{
  struct program_fixture s;
  uint64_t sent[LADE_N_AXES], apart[LADE_N_AXES];
  int n_groups[LADE_N_AXES], n_apart[LADE_N_AXES];
  program_fixture_init(&s, &program_fixture_settings[7]);
  lade_program_comm_traffic(s.program, sent);
  lade_program_comm_groups(s.program, n_groups);
  for (int at = 0; at < s.program->n_instrs; at++)
    s.program->instrs[at].is_grouped = false;
  lade_program_comm_traffic(s.program, apart);
  lade_program_comm_groups(s.program, n_apart);
  assert_memory_equal(sent, apart, sizeof(sent));
  assert_int_equal(n_apart[LADE_AXIS_DP], s.graph->n_params + program_fixture_settings[7].n_microbatches);
  assert_in_range(n_groups[LADE_AXIS_DP], 2, n_apart[LADE_AXIS_DP] - 1);
  program_fixture_finish(&s);
}

/* A group pays one latency, and its bytes once: its first member's time is the group's, and that of the others is 0. */
static void a_group_has_the_price_of_one_call(void **state)
{
  struct program_fixture s;
  uint64_t sent[LADE_N_AXES];
  int n_groups[LADE_N_AXES], n_members = 0;
  program_fixture_init(&s, &program_fixture_settings[7]);
  lade_program_comm_traffic(s.program, sent);
  lade_program_comm_groups(s.program, n_groups);
  double all_ns = 0;
  for (int at = 0; at < s.program->n_instrs; at++) {
    const struct lade_instr *instr = &s.program->instrs[at];
    if (instr->kind != LADE_INSTR_COLLECTIVE || instr->axis != LADE_AXIS_DP)
      continue;
    assert_true(instr->is_grouped ? instr->predicted_ns == 0 : instr->predicted_ns > 0);
    n_members += instr->is_grouped;
    all_ns += (double)instr->predicted_ns;
  }
  const struct lade_transfer_price *price = &s.prices.comm_sum[LADE_AXIS_DP];
  const double expected = lade_transfer_ns(price, n_groups[LADE_AXIS_DP], (double)sent[LADE_AXIS_DP]);
  assert_true(n_members > 0 && fabs(all_ns - expected) <= n_groups[LADE_AXIS_DP]); /* each price is cut to whole ns */
  program_fixture_finish(&s);
}

/* The first of three stages sends its output of each microbatch, and waits for each send. */
static void sends_are_calls_of_their_axis(void **state)
{
  const struct program_fixture_setting *setting = &program_fixture_settings[8];
  struct program_fixture s;
  int n_calls[LADE_N_AXES], n_collectives = 0;
  program_fixture_init(&s, setting);
  lade_program_comm_groups(s.program, n_calls);
  for (int at = 0; at < s.program->n_instrs; at++)
    n_collectives += s.program->instrs[at].kind == LADE_INSTR_COLLECTIVE && s.program->instrs[at].axis == LADE_AXIS_PP;
  assert_int_equal(n_calls[LADE_AXIS_PP], n_collectives + setting->n_microbatches);
  program_fixture_finish(&s);
}

static struct lade_operand *first_sent(const struct lade_program *program)
{
  int at = 0;
  while (at < program->n_instrs && program->instrs[at].kind != LADE_INSTR_SEND)
    at++;
  assert_in_range(at, 0, program->n_instrs - 1);
  return &program->operands[program->instrs[at].first_operand];
}

/* A rank sends the rows at its own position, no others and not all. */
static void scattered_sends_send_the_ranks_own_rows(void **state)
{
  for (int k = FIXTURE_N_SETTINGS - 2; k < FIXTURE_N_SETTINGS; k++) {
    struct program_fixture s;
    program_fixture_init(&s, &program_fixture_settings[k]);
    struct lade_operand *operand = first_sent(s.program), right = *operand;
    assert_true(s.graph->share.is_scattered);
    assert_int_equal(operand->offset, operand->bytes); /* the second rank's of two */
    assert_int_equal(2 * operand->bytes, s.graph->tensors[operand->reads.tensor].bytes);
    operand->offset = 0;
    assert_refused(s.program, "begins elsewhere");
    operand->bytes *= 2;
    assert_refused(s.program, "bytes: expected");
    *operand = right;
    assert_int_equal(lade_program_prove(s.program, no_limit, NULL), 0);
    program_fixture_finish(&s);
  }
}

/* Check that pieces of a parameter's state are contiguous, in whole pages, within the granules of its parts. */
static void state_is_laid_out(const struct lade_model_graph *graph, int64_t n)
{
  uint64_t next = 0, room = 0;
  for (int64_t first = 0; first < n; first += LADE_STREAM_GRAIN) {
    assert_int_equal(lade_state_bytes(graph, first), next);
    for (int part = LADE_PART_RESIDUAL; part <= LADE_PART_V; part++) {
      if (lade_value_part(graph, 0, (enum lade_part)part) < 0)
        continue;
      const int64_t n_here = LADE_MIN(n - first, LADE_STREAM_GRAIN);
      assert_int_equal(lade_state_offset(graph, n, (enum lade_part)part, first), next);
      next += lade_align_up(lade_part_bytes(graph, (enum lade_part)part, n_here), LADE_BUFFER_ALIGN);
    }
  }
  assert_int_equal(lade_state_bytes(graph, n), next);
  for (int part = 0; part < LADE_N_PARTS; part++) {
    if (lade_value_part(graph, 0, (enum lade_part)part) < 0)
      continue;
    const uint64_t bytes = lade_part_bytes(graph, (enum lade_part)part, n);
    room += lade_align_up(bytes, LADE_STORE_ALIGN);
    if (!lade_part_is_scales((enum lade_part)part))
      continue;
    assert_int_equal(lade_state_offset(graph, n, (enum lade_part)part, 0), next);
    next += lade_align_up(bytes, LADE_BUFFER_ALIGN);
  }
  assert_int_equal(lade_state_bytes(graph, n) + lade_state_scales_bytes(graph, n), next);
  assert_true(next <= room);
}

static void state_lies_side_by_side_in_its_parts_room(void **state)
{
  static const int64_t lengths[] = {1, 127, 128, 1025, 65535, 65536, 65537, 131072, 8 << 20, (8 << 20) + 1};
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_F16, LADE_BF16};
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    for (int moments = 0; moments < LADE_N_MOMENTS; moments++) {
      for (int is_short = 0; is_short <= (dtypes[i] == LADE_BF16); is_short++) {
        const struct lade_model_graph graph = {.n_params = 1, .dtype = dtypes[i], .moments = (enum lade_moments)moments,
                                         .master = is_short ? LADE_MASTER_24BIT : LADE_MASTER_EXACT};
        for (size_t n = 0; n < LADE_COUNT(lengths); n++)
          state_is_laid_out(&graph, lengths[n]);
      }
    }
  }
}

/* ---- blocks of gradients between microbatches ---- */

/* Return the parameter whose block of an incomplete gradient instruction @at moves; -1: it moves none. */
static int block_moved(const struct lade_program *program, int at)
{
  const struct lade_instr *instr = &program->instrs[at];
  if (instr->kind != LADE_INSTR_COPY && instr->kind != LADE_INSTR_READ && instr->kind != LADE_INSTR_WRITE)
    return -1;
  const struct lade_value value = program->operands[instr->first_operand].reads;
  const int from_blocks = value.tensor - lade_value_block(program->graph, 0, LADE_BLOCK_GRAD);
  bool is_block = from_blocks >= 0 && from_blocks % LADE_N_BLOCKS == 0;
  return is_block && value.version < program->n_microbatches ? from_blocks / LADE_N_BLOCKS : -1;
}

static const struct lade_buffer *operand_buffer_of(const struct lade_program *program, int at, int i)
{
  return &program->buffers[program->operands[program->instrs[at].first_operand + i].buffer];
}

/* Check that each block makes a round trip between any two microbatches, and is away while nothing is added to it. */
static void blocks_make_round_trips(const struct program_fixture_setting *setting, enum lade_space space)
{
  struct program_fixture s;
  program_fixture_init(&s, setting);
  const int n_trips = s.graph->n_params * (setting->n_microbatches - 1);
  int n_left = 0, n_back = 0;
  for (int at = 0; at < s.program->n_instrs; at++) {
    if (block_moved(s.program, at) < 0)
      continue;
    n_left += operand_buffer_of(s.program, at, 1)->space == space;
    n_back += operand_buffer_of(s.program, at, 0)->space == space;
    const struct lade_value *value = &s.program->operands[s.program->instrs[at].first_operand].reads;
    assert_in_range(value->version, 1, setting->n_microbatches - 1);
  }
  assert_int_equal(n_left, n_trips);
  assert_int_equal(n_back, n_trips);
  assert_int_equal(lade_program_prove(s.program, no_limit, NULL), 0);
  program_fixture_finish(&s);
}

static void blocks_wait_elsewhere_between_microbatches(void **state)
{
  for (int i = 0; i < 16; i++) {
    struct program_fixture_setting setting = {.family = i & 1 ? LADE_GPT2 : LADE_LLAMA, .dtype = LADE_BF16,
                                              .n_microbatches = 3,
                                .manner = i & 2 ? FIXTURE_STORE : FIXTURE_HOST, .dp = 4, .zero = i & 4 ? 3 : 2,
                                .prefetch_bytes = i & 8 ? UINT64_MAX / 2 : 0};
    setting.shard = setting.zero == 3 ? 2 : 0;
    blocks_make_round_trips(&setting, i & 2 ? LADE_STORE : LADE_HOST);
    setting.is_narrow = true;
    blocks_make_round_trips(&setting, i & 2 ? LADE_STORE : LADE_HOST);
  }
}

/*
 * Under ZeRO 1 and 2 a weight with memory on the device is gathered once a step, around this rank's block and before
 * its first reader. The gathers of later layers follow the first computation, so the forward pass hides them.
 */
static void weights_are_gathered_beside_the_forward_pass(void **state)
{
  for (int i = 0; i < 4; i++) {
    const struct program_fixture_setting setting = {
        .family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1 + i / 2 * 2, .dp = 2, .zero = 1 + i % 2,
        .manner = FIXTURE_KEEP, .prefetch_bytes = i % 2 ? UINT64_MAX / 2 : 0};
    struct program_fixture s;
    program_fixture_init(&s, &setting);
    struct lade_program *p = s.program;
    bool *is_whole = calloc((size_t)s.graph->n_params, sizeof(*is_whole)), is_computing = false, is_hidden = false;
    int n_gathers = 0;
    assert_non_null(is_whole);
    for (int at = 0; at < p->n_instrs; at++) {
      const struct lade_instr *instr = &p->instrs[at];
      const struct lade_operand *operands = &p->operands[instr->first_operand];
      is_computing |= instr->kind == LADE_INSTR_COMPUTE;
      if (instr->kind == LADE_INSTR_COLLECTIVE && instr->collective == LADE_ALL_GATHER && instr->param >= 0) {
        assert_int_equal(operands[0].buffer, operands[1].buffer);
        assert_true(p->buffers[operands[0].buffer].is_resident);
        assert_false(is_whole[instr->param]);
        is_whole[instr->param] = true;
        is_hidden |= is_computing;
        n_gathers++;
      }
      for (int j = 0; j < instr->n_operands && instr->kind == LADE_INSTR_COMPUTE; j++) {
        const int tensor = operands[j].access & LADE_READS ? operands[j].reads.tensor : -1;
        if (tensor >= 0 && tensor < s.graph->n_tensors && s.graph->tensors[tensor].kind == LADE_TENSOR_PARAM)
          assert_true(is_whole[s.graph->tensors[tensor].param]);
      }
    }
    assert_int_equal(n_gathers, s.graph->n_params);
    assert_true(is_hidden);
    free(is_whole);
    assert_int_equal(lade_program_prove(p, no_limit, NULL), 0);
    program_fixture_finish(&s);
  }
}

/* Check that @program is proved, and refused once any gather reads its block from another place of the copy. */
static void blocks_at_other_places_are_caught(struct lade_program *program)
{
  int n_gathers = 0;
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    if (instr->kind != LADE_INSTR_COLLECTIVE || instr->collective != LADE_ALL_GATHER || instr->param < 0)
      continue;
    struct lade_operand *block = &program->operands[instr->first_operand];
    const struct lade_operand right = *block;
    block->offset = right.offset ? 0 : right.bytes;
    assert_int_equal(lade_program_prove(program, no_limit, NULL), -EINVAL);
    *block = right;
    n_gathers++;
  }
  assert_int_equal(n_gathers, program->graph->n_params);
  assert_int_equal(lade_program_prove(program, no_limit, NULL), 0);
}

/* An evaluation updates nothing and ends with the gathered copy over the block, so its proof differs from a step's. */
static void a_gathered_copy_lies_around_the_block(void **state)
{
  struct program_fixture s;
  struct program_fixture_setting setting = program_fixture_settings[10];
  program_fixture_init(&s, &setting);
  blocks_at_other_places_are_caught(s.program);
  setting.is_evaluation = true;
  struct lade_program *evaluation = program_fixture_build(&s, &setting, s.program);
  blocks_at_other_places_are_caught(evaluation);
  lade_program_destroy(evaluation);
  program_fixture_finish(&s);
}

/* With free space a block is on the device while its addend is on its way; without, only for the addition. */
static void blocks_come_back_ahead_where_there_is_room(void **state)
{
  int n_between[2] = {0};
  for (int i = 0; i < 2; i++) {
    const struct program_fixture_setting setting = {
        .family = LADE_LLAMA, .dtype = LADE_BF16, .n_microbatches = 2, .dp = 2, .manner = FIXTURE_HOST, .zero = 2,
        .prefetch_bytes = i ? UINT64_MAX / 2 : 0};
    struct program_fixture s;
    program_fixture_init(&s, &setting);
    for (int at = 0; at < s.program->n_instrs; at++) {
      if (block_moved(s.program, at) < 0 || operand_buffer_of(s.program, at, 1)->space != LADE_DEVICE)
        continue;
      int added = at;
      while (s.program->instrs[added].kind != LADE_INSTR_ADD ||
             s.program->instrs[added].param != block_moved(s.program, at))
        added++;
      n_between[i] += added - at - 1;
    }
    program_fixture_finish(&s);
  }
  assert_int_equal(n_between[0], 0);
  assert_true(n_between[1] > 0);
}

/* A copy of the block from before the latest addition, whose memory still exists, must not be read by the next one. */
static void an_older_copy_of_a_block_is_caught(void **state)
{
  const struct program_fixture_setting setting = {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 3, .dp = 2,
                                    .manner = FIXTURE_HOST, .zero = 3};
  struct program_fixture s;
  program_fixture_init(&s, &setting);
  int *order = malloc((size_t)s.program->n_instrs * sizeof(*order)), n_broken = 0;
  assert_non_null(order);
  for (int at = 0; at < s.program->n_instrs; at++)
    order[at] = at;
  for (int param = 0; param < s.graph->n_params; param++) {
    struct lade_program *stale = program_copy(s.program);
    struct lade_operand *older = NULL;
    for (int at = 0; at < stale->n_instrs; at++) {
      struct lade_operand *operands = &stale->operands[stale->instrs[at].first_operand];
      if (block_moved(stale, at) != param || operand_buffer_of(stale, at, 1)->space != LADE_DEVICE)
        continue;
      if (operands[0].reads.version == 1) {
        older = &operands[0];
      } else {
        assert_non_null(older);
        operands[0] = *older;
        operands[1].makes = older->reads;
        n_broken++;
      }
    }
    struct lade_program *broken = program_reorder(stale, order, stale->n_instrs);
    assert_refused(broken, "version 2): is not there: found ");
    lade_program_destroy(broken);
    lade_program_destroy(stale);
  }
  assert_int_equal(n_broken, s.graph->n_params);
  free(order);
  program_fixture_finish(&s);
}

/* One field of a program made wrong, seen by the recount, and put right again. */
#define IS_SEEN(is_valid, field, wrong) \
  do { \
    const __typeof__(field) kept = field; \
    field = (__typeof__(field))(wrong); \
    assert_false(is_valid); \
    field = kept; \
    assert_true(is_valid); \
  } while (0)

static void a_broken_program_is_seen_by_the_recount(void **state)
{
  struct program_fixture s;
  program_fixture_init(&s, &program_fixture_settings[7]);
  struct lade_program *p = s.program;
  assert_true(program_is_valid(p));
  int waiting = 0, queue = 0;
  for (int at = 0; at < p->n_instrs && !waiting; at++) {
    for (int q = 0; q < LADE_N_QUEUES && !waiting; q++) {
      waiting = p->instrs[at].waits[q] >= 0 ? at : 0;
      queue = q;
    }
  }
  struct lade_instr *instr = &p->instrs[waiting], *last = &p->instrs[p->n_instrs - 1];
  struct lade_operand *operand = &p->operands[instr->first_operand];
  struct lade_buffer *buffer = &p->buffers[operand->buffer];
  assert_true(waiting > 0 && instr->n_operands > 0);
  IS_SEEN(program_is_valid(p), instr->waits[queue], waiting);
  IS_SEEN(program_is_valid(p), p->instrs[instr->waits[queue]].queue, (queue + 1) % LADE_N_QUEUES);
  IS_SEEN(program_is_valid(p), instr->queue, LADE_N_QUEUES);
  IS_SEEN(program_is_valid(p), last->first_operand, last->first_operand - 1);
  IS_SEEN(program_is_valid(p), p->n_operands, p->n_operands + 1);
  IS_SEEN(program_is_valid(p), operand->buffer, p->n_buffers);
  IS_SEEN(program_is_valid(p), operand->access, 0);
  IS_SEEN(program_is_valid(p), operand->offset, buffer->bytes + 1);
  IS_SEEN(program_is_valid(p), operand->bytes, buffer->bytes + 1);
  IS_SEEN(program_is_valid(p), buffer->first, waiting + 1);
  IS_SEEN(program_is_valid(p), buffer->last, waiting - 1);
  IS_SEEN(program_is_valid(p), buffer->offset, buffer->offset + 1);
  IS_SEEN(program_is_valid(p), buffer->offset, lade_align_up(p->peak_bytes[buffer->space], LADE_STORE_ALIGN));
  IS_SEEN(program_is_valid(p), p->peak_bytes[LADE_DEVICE], p->peak_bytes[LADE_DEVICE] + CHUNK);
  IS_SEEN(program_is_valid(p), p->live_peak_bytes[LADE_DEVICE], p->peak_bytes[LADE_DEVICE] + 1);
  IS_SEEN(program_is_valid(p), p->owner_bytes[LADE_DEVICE][0], UINT64_MAX);
  program_fixture_finish(&s);
}

/* Two values: one that is copied out and in again between its steps, and one that no step uses. */
static void broken_live_ranges_are_seen_by_the_recount(void **state)
{
  enum { N_STEPS = 10 };
  struct live_range r[] = {
      {.value = 0, .first_pos = 1, .last_pos = 2, .fetch_slot = -1, .leave_slot = 3, LADE_DEVICE, LADE_HOST},
      {.value = 0, .first_pos = 6, .last_pos = 7, .fetch_slot = 5, .leave_slot = -1, LADE_HOST, LADE_DEVICE}};
  int32_t first[] = {0, 2, 2};
  struct grad_reduction g[] = {{.slot = 4, .pos = 2, .until = INT32_MAX}, {.slot = 4, .pos = 3, .until = 8}};
  const struct live_ranges live = {r, first, 2, 2, g, 2};
#define LIVE_IS_VALID live_ranges_are_valid(&live, N_STEPS)
  assert_true(LIVE_IS_VALID);
  IS_SEEN(LIVE_IS_VALID, first[0], 1);
  IS_SEEN(LIVE_IS_VALID, first[1], 1); /* the second range is of another value then */
  IS_SEEN(LIVE_IS_VALID, first[2], 1);
  IS_SEEN(LIVE_IS_VALID, r[0].value, 1);
  IS_SEEN(LIVE_IS_VALID, r[0].first_pos, -1);
  IS_SEEN(LIVE_IS_VALID, r[0].held_pos, 2);  /* after its first step */
  IS_SEEN(LIVE_IS_VALID, r[0].held_pos, -1);
  IS_SEEN(LIVE_IS_VALID, r[0].last_pos, 0);
  IS_SEEN(LIVE_IS_VALID, r[0].leave_slot, 2);  /* while a step uses it */
  IS_SEEN(LIVE_IS_VALID, r[0].leave_slot, 6);  /* after the copy in of the same value */
  IS_SEEN(LIVE_IS_VALID, r[0].leave_slot, -1); /* it goes to the host and is not copied there */
  IS_SEEN(LIVE_IS_VALID, r[0].target, LADE_DEVICE);
  IS_SEEN(LIVE_IS_VALID, r[1].source, PLAN_GATHERED + 1);
  IS_SEEN(LIVE_IS_VALID, r[1].fetch_slot, 7);
  IS_SEEN(LIVE_IS_VALID, r[1].fetch_slot, 2);
  IS_SEEN(LIVE_IS_VALID, r[1].last_pos, N_STEPS + 1);
  IS_SEEN(LIVE_IS_VALID, g[0].slot, 2);
  IS_SEEN(LIVE_IS_VALID, g[0].slot, 5); /* out of order */
  IS_SEEN(LIVE_IS_VALID, g[0].pos, -1);
  IS_SEEN(LIVE_IS_VALID, g[1].slot, N_STEPS + 1);
  IS_SEEN(LIVE_IS_VALID, g[1].until, 3);
}

/* Check the transfers of one placed program; return how many had a part of their latency hidden. */
static int hidden_check(const struct lade_program *program, const struct lade_prices *prices)
{
  int n_hidden = 0, before = -1;
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    const bool is_read = instr->kind == LADE_INSTR_READ;
    const int64_t latency_ns = is_read ? prices->read.latency_ns : prices->write.latency_ns;
    if (instr->queue != LADE_Q_IO)
      continue;
    assert_in_range(instr->hidden_ns, 0, lade_instr_is_transfer(instr) ? latency_ns : 0);
    if (instr->hidden_ns) { /* it was in flight beside the one before it */
      assert_true(before >= 0 && lade_instr_is_transfer(&program->instrs[before]));
      assert_false(lade_program_transfers_conflict(program, before, at));
    }
    n_hidden += instr->hidden_ns > 0;
    before = at;
  }
  return n_hidden;
}

/*
 * The latency of a transfer is hidden after the bytes of the transfers before it, unless they touch the same bytes. No
 * step is then longer than with every latency in full.
 */
static void latencies_of_transfers_in_a_row_are_hidden(void **state)
{
  int n_hidden = 0;
  for (int i = 0; i < FIXTURE_N_SETTINGS; i++) {
    struct program_fixture fixture;
    program_fixture_init(&fixture, &program_fixture_settings[i]);
    struct lade_program *program = fixture.program;
    const int n = hidden_check(program, &fixture.prices);
    const int64_t predicted_ns = program->predicted_ns;
    struct lade_prices whole = fixture.prices;
    whole.read.latency_ns = whole.write.latency_ns = 0; /* no part of a transfer's time is latency: none is hidden */
    assert_int_equal(lade_program_simulate(program, &whole, NULL), 0);
    assert_int_equal(hidden_check(program, &whole), 0);
    assert_true(n ? predicted_ns <= program->predicted_ns : predicted_ns == program->predicted_ns);
    n_hidden += n;
    program_fixture_finish(&fixture);
  }
  assert_true(n_hidden > 20);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_refused_allocation_fails_a_build_whole),
      cmocka_unit_test(many_microbatches_are_one_program),
      cmocka_unit_test(the_number_of_microbatches_has_limits),
      cmocka_unit_test(groups_are_of_like_and_disjoint_collectives),
      cmocka_unit_test(state_lies_side_by_side_in_its_parts_room),
      cmocka_unit_test(groups_move_the_same_bytes),
      cmocka_unit_test(a_group_has_the_price_of_one_call),
      cmocka_unit_test(no_packing_is_faster_than_buffers_apart),
      cmocka_unit_test(given_bytes_and_limits_change_no_program),
      cmocka_unit_test(sends_are_calls_of_their_axis),
      cmocka_unit_test(scattered_sends_send_the_ranks_own_rows),
      cmocka_unit_test(captures_end_only_at_a_wait),
      cmocka_unit_test(blocks_wait_elsewhere_between_microbatches),
      cmocka_unit_test(weights_are_gathered_beside_the_forward_pass),
      cmocka_unit_test(a_gathered_copy_lies_around_the_block),
      cmocka_unit_test(blocks_come_back_ahead_where_there_is_room),
      cmocka_unit_test(an_older_copy_of_a_block_is_caught),
      cmocka_unit_test(a_broken_program_is_seen_by_the_recount),
      cmocka_unit_test(broken_live_ranges_are_seen_by_the_recount),
      cmocka_unit_test(latencies_of_transfers_in_a_row_are_hidden),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
