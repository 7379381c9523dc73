/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recount of bound programs finds each wrong field of instructions, kernels, copies, transfers and streamed
 * updates.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/executor/executor_internal.h"
#include "tests/support/run_fixture.h"

#define GIB (1ull << 30)

static const char *store_refusal; /* reason why no store can be opened here */

/* One field made wrong, seen by the recount of @bound, and put right again. */
#define IS_SEEN(field, wrong) \
  do { \
    const __typeof__(field) kept = field; \
    field = (__typeof__(field))(wrong); \
    assert_false(bound_program_is_valid(ex, bound)); \
    field = kept; \
    assert_true(bound_program_is_valid(ex, bound)); \
  } while (0)

/* Return the first instruction of @kind. */
static int instr_of(const struct lade_program *program, enum lade_instr_kind kind)
{
  int at = 0;
  while (at < program->n_instrs && program->instrs[at].kind != kind)
    at++;
  assert_true(at < program->n_instrs);
  return at;
}

static void broken_links_are_seen(lade_executor *ex, struct bound_program *bound, struct lade_program *program)
{
  const int last = program->n_instrs - 1, compute = instr_of(program, LADE_INSTR_COMPUTE);
  const struct lade_operand *operand = &program->operands[program->instrs[compute].first_operand];
  struct lade_buffer *buffer = &program->buffers[operand->buffer];
  IS_SEEN(program->instrs[0].waits[LADE_Q_COMPUTE], 0);
  IS_SEEN(program->instrs[last].waits[LADE_Q_COMPUTE], last);
  IS_SEEN(program->instrs[last].queue, LADE_N_QUEUES);
  IS_SEEN(program->instrs[last].kind, LADE_N_INSTR_KINDS);
  IS_SEEN(bound->before[last], last);
  IS_SEEN(bound->before[0], 0);
  IS_SEEN(bound->copies[0].ret_span, NULL);
  IS_SEEN(bound->comms[0].ret_span, NULL);
  IS_SEEN(bound->comms[last].list.items, bound->collectives);
  IS_SEEN(bound->comms[0].list.n, 2);
  IS_SEEN(ex->queues[LADE_Q_COMPUTE], NULL);
  IS_SEEN(ex->arena_bytes, LADE_BUFFER_ALIGN);
  IS_SEEN(buffer->offset, ex->arena_bytes);
  IS_SEEN(buffer->bytes, operand->offset);
}

static void broken_kernels_are_seen(lade_executor *ex, struct bound_program *bound, struct lade_program *program,
                                    struct lade_kernels *kernels)
{
  struct kernel_call *compute = &bound->calls[instr_of(program, LADE_INSTR_COMPUTE)];
  struct kernel_call *clip = &bound->calls[instr_of(program, LADE_INSTR_CLIP)];
  IS_SEEN(compute->executor, NULL);
  IS_SEEN(compute->kernel, LADE_N_KERNELS);
  IS_SEEN(compute->kernel, CALL_NOTHING);
  IS_SEEN(clip->kernel, LADE_K_ADD);
  IS_SEEN(bound->calls[instr_of(program, LADE_INSTR_GRAD_SUMSQ)].kernel, CALL_NOTHING);
  IS_SEEN(bound->calls[instr_of(program, LADE_INSTR_UPDATE)].kernel, LADE_K_ADD);
  IS_SEEN(kernels->fn[LADE_K_CLIP], NULL);
  IS_SEEN(bound->streams[instr_of(program, LADE_INSTR_CLIP)], (void *)bound);
}

static void broken_copies_are_seen(lade_executor *ex, struct bound_program *bound, const struct lade_program *program)
{
  struct lade_copy *copy = &bound->copies[instr_of(program, LADE_INSTR_COPY)];
  IS_SEEN(copy->bytes, 0);
  IS_SEEN(copy->bytes, ex->arena_bytes + ex->host.bytes);
  IS_SEEN(copy->src, NULL);
  IS_SEEN(copy->dst, (char *)copy->dst + ex->arena_bytes + ex->host.bytes);
  IS_SEEN(ex->host.bytes, LADE_BUFFER_ALIGN);
}

static void broken_transfers_are_seen(lade_executor *ex, struct bound_program *bound,
                                      const struct lade_program *program)
{
  struct io_call *read = &bound->ios[instr_of(program, LADE_INSTR_READ)];
  IS_SEEN(read->executor, NULL);
  IS_SEEN(read->bound, NULL);
  IS_SEEN(read->at, read->at + 1);
  IS_SEEN(read->next, read->at);
  IS_SEEN(read->after, read->at);
  IS_SEEN(read->is_begun, true);
  IS_SEEN(read->transfer.op, LADE_STORE_WRITE);
  IS_SEEN(read->transfer.bytes, 0);
  IS_SEEN(read->transfer.data, NULL);
  IS_SEEN(read->store_offset, ex->extent.bytes);
  IS_SEEN(ex->extent.bytes, LADE_STORE_ALIGN);
}

static void broken_streams_are_seen(lade_executor *ex, struct bound_program *bound)
{
  struct stream_run *run = &bound->runs[0];
  struct stream_call *call = run->calls[0];
  struct stream_item *item = &run->items[call->first_item];
  assert_true(run->n_calls > 1 && run->n_lots > 1);
  IS_SEEN(bound->n_runs, 0);
  IS_SEEN(bound->stream_calls[0], bound->stream_calls[1]);
  IS_SEEN(call->executor, NULL);
  IS_SEEN(call->run, NULL);
  IS_SEEN(call->n_held, call->n_held + 1);
  IS_SEEN(call->n_window, 1);
  IS_SEEN(call->part_of_role[LADE_ROLE_M], -1);
  IS_SEEN(call->parts[0].role, LADE_ROLE_V + 1);
  IS_SEEN(call->parts[0].store_offset, ex->extent.bytes);
  IS_SEEN(call->scratch, NULL);
  IS_SEEN(call->scratch_bytes, call->scratch_bytes + 1);
  IS_SEEN(call->scales_offset, call->scratch_bytes + 1);
  IS_SEEN(call->end_item, call->first_item);
  IS_SEEN(run->n_calls, 1);
  IS_SEEN(run->n_items, run->n_items + 1);
  IS_SEEN(run->n_lots, run->n_lots - 1);
  IS_SEEN(run->slots, NULL);
  IS_SEEN(item->call, run->calls[1]);
  IS_SEEN(item->n, item->n + 1);
  IS_SEEN(item->offset, run->scratch_bytes);
  IS_SEEN(item->lot, 1);
  IS_SEEN(run->lots[0].after, 0);
  IS_SEEN(run->lots[0].n_grains, 0);
  IS_SEEN(run->lots[1].first_item, 0);
}

/* Bind the plan of the smallest budget. */
static struct lade_plan *smallest_open(struct run_fixture *run_fixture, uint64_t host_bytes, uint64_t store_bytes)
{
  struct lade_plan_bounds bounds;
  struct lade_plan *plan = NULL;
  struct lade_error error = {0};
  lade_planner *planner = run_fixture_planner(run_fixture, host_bytes, store_bytes, LADE_RECIPE_AUTO);
  assert_int_equal(lade_planner_get_bounds(planner, &bounds), 0);
  if (lade_planner_plan(planner, bounds.min_bytes, &error, &plan) || run_fixture_open(run_fixture, plan, &error))
    fail_msg("%s", error.text);
  lade_planner_destroy(planner);
  return plan;
}

static void a_broken_bound_program_is_seen_by_the_recount(void **state)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct run_fixture run_fixture;
  model.width = 128;
  run_fixture_init(&run_fixture, &model);
  run_fixture.prices.streaming = (struct lade_streaming){3 << 19, 6};
  for (int tier = LADE_TIER_DEVICE; tier <= LADE_TIER_STORE && (tier != LADE_TIER_STORE || !store_refusal); tier++) {
    const bool is_stored = tier == LADE_TIER_STORE;
    struct lade_plan *plan = tier == LADE_TIER_DEVICE ? smallest_open(&run_fixture, 0, 0)
                             : is_stored              ? run_fixture_open_stored(&run_fixture)
                                                      : smallest_open(&run_fixture, GIB, 0);
    lade_executor *ex = run_fixture.executor;
    struct bound_program *bound = &ex->train;
    assert_true(bound_program_is_valid(ex, bound) && bound_program_is_valid(ex, &ex->eval));
    broken_links_are_seen(ex, bound, plan->train);
    if (tier == LADE_TIER_DEVICE)
      broken_kernels_are_seen(ex, bound, plan->train, &run_fixture.kernels);
    else if (is_stored)
      broken_streams_are_seen(ex, bound);
    else
      broken_copies_are_seen(ex, bound, plan->train);
    run_fixture_close(&run_fixture);
    lade_plan_destroy(plan);
  }
  run_fixture_finish(&run_fixture);
}

static void a_broken_transfer_is_seen_by_the_recount(void **state)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct run_fixture run_fixture;
  if (store_refusal)
    skip();
  run_fixture_init(&run_fixture, &model);
  struct lade_plan *plan = smallest_open(&run_fixture, 0, GIB);
  broken_transfers_are_seen(run_fixture.executor, &run_fixture.executor->train, plan->train);
  run_fixture_close(&run_fixture);
  lade_plan_destroy(plan);
  run_fixture_finish(&run_fixture);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_broken_bound_program_is_seen_by_the_recount),
      cmocka_unit_test(a_broken_transfer_is_seen_by_the_recount),
  };
  store_refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  if (store_refusal)
    printf("SKIP: runs with a store: %s\n", store_refusal);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
