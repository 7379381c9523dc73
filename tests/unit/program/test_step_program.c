/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of callers' own steps. Lists of plans are lowered and proved, with addresses at the storages' alignments.
 * Lists that are written by hand show each instruction. Then proved programs are broken, each in one way, and every
 * break is caught and named.
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
#include "base/philox.h"
#include "graph/graph.h"
#include "lade/pack.h"
#include "program/build.h"
#include "program/lower.h"
#include "tests/support/graph/random_graph.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/program_fixture.h"

#define GRAPHS 120
#define FIRST_GRAPH 200

#define OP(i) {LADE_GRAPH_INSTR_OP, i, LADE_DEVICE}
#define REDO(i) {LADE_GRAPH_INSTR_REDO, i, LADE_DEVICE}
#define DROP(i) {LADE_GRAPH_INSTR_DROP, i, LADE_DEVICE}
#define PUT(i, tier) {LADE_GRAPH_INSTR_PUT, i, tier}
#define GET(i, tier) {LADE_GRAPH_INSTR_GET, i, tier}

static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
static const struct lade_graph_path path = {1e9, 1000};

/* Place @program as a stepper does, with pages for chunks. */
static int place(struct lade_program *program)
{
  const struct lade_prices prices = {0};
  struct lade_place_params params = {.granule_bytes = {4096, 4096, LADE_STORE_ALIGN}, .prices = &prices};
  int status = lade_packer_create(&params.packer);
  if (!status)
    status = lade_program_place_within(&params, program);
  lade_packer_destroy(params.packer);
  return status;
}

/* Lower and place a list; NULL and a line in @error if it is refused. */
static struct lade_program *list_lower(const lade_graph *graph, const struct lade_graph_instr *instrs, int n,
                                       bool is_unified, struct lade_error *error)
{
  const struct lade_lower_params params = {.graph = graph, .instrs = instrs, .n_instrs = n, .to_host = path,
                                           .from_host = path, .to_store = path, .from_store = path,
                                           .is_unified = is_unified};
  struct lade_program *program = NULL;
  if (lade_program_lower(&params, error, &program))
    return NULL;
  assert_int_equal(place(program), 0);
  assert_true(program_is_valid(program));
  return program;
}

/* ---- plans ---- */

/* Plan drawn graph @seed at a budget between the smallest and the unconstrained one; NULL: no plan. */
static lade_graph_plan *drawn_plan(uint64_t seed, lade_graph **ret_graph)
{
  const struct random_graph_params given = {.seed = seed, .n_layers = 2 + (int)(seed % 17), .is_soup = seed % 3 == 2,
                                            .is_written_once = seed % 2, .has_tiers = seed % 4 == 3};
  struct lade_graph_plan_params params = {.struct_size = sizeof(params), .iterations = 2000, .to_host = path,
                                          .from_host = path, .to_store = path, .from_store = path,
                                          .host_budget_bytes = seed % 5 ? 4096 : 0, .store_budget_bytes = 4096};
  uint64_t unconstrained_bytes, floor_bytes;
  lade_graph_plan *plan = NULL;
  *ret_graph = random_graph_make(&given);
  assert_int_equal(lade_graph_bounds(*ret_graph, NULL, &unconstrained_bytes, &floor_bytes), 0);
  params.budget_bytes = seed % 2 ? LADE_GRAPH_BUDGET_MIN : (unconstrained_bytes + floor_bytes) / 2 + 1;
  const int status = lade_graph_plan_find(*ret_graph, &params, NULL, NULL, &plan);
  assert_true(status == 0 || status == -ENOSPC);
  return plan;
}

/* Insert a put of a given storage of the device, and its get, into a gap between its uses; false: there is none. */
static bool move_insert(const lade_graph *graph, struct random_draw *draw, struct lade_graph_instr *instrs, int *n)
{
  const int storage = random_draw_below(draw, lade_graph_n_storages(graph)), from = random_draw_below(draw, *n + 1);
  const int to = from + random_draw_below(draw, *n + 1 - from);
  const struct lade_graph_instr put = PUT(storage, draw->state % 2 ? LADE_HOST : LADE_STORE);
  const struct lade_graph_instr get = GET(storage, put.tier);
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  memmove(&instrs[to + 2], &instrs[to], (size_t)(*n - to) * sizeof(*instrs));
  memmove(&instrs[from + 1], &instrs[from], (size_t)(to - from) * sizeof(*instrs));
  instrs[from] = put;
  instrs[to + 1] = get;
  if (graph->storages.items[storage].is_given && graph->storages.items[storage].tier == LADE_DEVICE &&
      !lade_graph_replay(graph, instrs, *n + 2, NULL, &totals)) {
    *n += 2;
    return true;
  }
  memmove(&instrs[from], &instrs[from + 1], (size_t)(to - from) * sizeof(*instrs));
  memmove(&instrs[to], &instrs[to + 2], (size_t)(*n - to) * sizeof(*instrs));
  return false;
}

/* A plan's program is the plan: its redos, its moves, and its peak, with whole pages for each storage. */
static void totals_compare(const lade_graph *graph, const struct lade_graph_instr *instrs, int n,
                           const struct lade_program *program)
{
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  int n_redone = 0;
  uint64_t moved_bytes = 0;
  assert_int_equal(lade_graph_replay(graph, instrs, n, NULL, &totals), 0);
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    const struct lade_operand *operands = &program->operands[instr->first_operand];
    n_redone += instr->is_recompute;
    if (instr->kind != LADE_INSTR_COMPUTE && (program->buffers[operands[0].buffer].space == LADE_DEVICE ||
                                              program->buffers[operands[1].buffer].space == LADE_DEVICE))
      moved_bytes += operands[0].bytes;
  }
  assert_int_equal(n_redone, totals.n_redone);
  assert_int_equal(moved_bytes, totals.moved_bytes);
  assert_true(program->live_peak_bytes[LADE_DEVICE] >= totals.peak_bytes);
}

/* Lower, prove and compare a list, on a device that the drive reaches and on another. */
static void list_check(const lade_graph *graph, const struct lade_graph_instr *instrs, int n)
{
  for (int is_unified = 0; is_unified < 2; is_unified++) {
    struct lade_error error = {0};
    struct lade_program *program = list_lower(graph, instrs, n, is_unified, &error);
    if (!program)
      fail_msg("%s", error.text);
    assert_proved(program);
    totals_compare(graph, instrs, n, program);
    lade_program_destroy(program);
  }
}

static void plans_of_drawn_graphs_are_lowered_and_proved(void **state)
{
  int n_plans = 0, n_moved = 0;
  for (uint64_t seed = FIRST_GRAPH; seed < FIRST_GRAPH + GRAPHS; seed++) {
    lade_graph *graph;
    lade_graph_plan *plan = drawn_plan(seed, &graph);
    int n;
    const struct lade_graph_instr *instrs = lade_graph_plan_instrs(plan, &n);
    const int n_first = n;
    if (plan) {
      struct random_draw draw = {seed};
      struct lade_graph_instr *moved = calloc((size_t)n + 8, sizeof(*moved));
      assert_non_null(moved);
      list_check(graph, instrs, n);
      memcpy(moved, instrs, (size_t)n * sizeof(*moved));
      for (int i = 0; i < 300 && n < n_first + 6; i++)
        n_moved += move_insert(graph, &draw, moved, &n);
      list_check(graph, moved, n);
      free(moved);
      n_plans++;
    }
    lade_graph_plan_destroy(plan);
    lade_graph_destroy(graph);
  }
  assert_true(n_plans > GRAPHS / 2 && n_moved > GRAPHS / 2);
}

/* ---- a small step, in lists by hand ---- */

enum { W, X, H, Y, Z, NONE }; /* storages: given, batch, two made, a kept result; one without bytes */
enum { F, G, B, U };

/* An op that writes a storage on the device, or updates one on the host. */
struct small_op {
  const char *name;
  int reads[2], n_reads, written, updated; /* -1: none */
};

static void op_add(lade_graph *graph, const struct small_op *small)
{
  struct lade_operand_range reads[2], written = {.storage = small->written}, updated = {.storage = small->updated};
  for (int i = 0; i < small->n_reads; i++)
    reads[i] = (struct lade_operand_range){.storage = small->reads[i]};
  const struct lade_graph_op op = {.struct_size = sizeof(op), .name = small->name, .reads = reads,
                                   .n_reads = small->n_reads, .writes = &written, .n_writes = small->written >= 0,
                                   .updates = &updated, .n_updates = small->updated >= 0, .scratch_bytes = 100,
                                   .ns = 1000, .queue = small->updated >= 0 ? LADE_OP_ON_HOST : LADE_OP_ON_DEVICE};
  assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
}

/* h = f(w, x); y = g(h, none); z = b(h, y); u(z, w) on the host. */
static lade_graph *step_make(void)
{
  static const struct lade_storage storages[] = {
      [W] = {.name = "w", .bytes = 5000, .is_given = true, .tier = LADE_HOST}, [X] = {.name = "x", .bytes = 100,
      .is_given = true}, [H] = {.name = "h", .bytes = 9000, .align = 1 << 16}, [Y] = {.name = "y", .bytes = 8000},
      [Z] = {.name = "z", .bytes = 4096}, [NONE] = {.name = "none", .is_given = true}};
  lade_graph *graph;
  assert_int_equal(lade_graph_create(&graph), 0);
  for (size_t i = 0; i < LADE_COUNT(storages); i++) {
    struct lade_storage storage = storages[i];
    storage.struct_size = sizeof(storage);
    assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, NULL), 0);
  }
  static const struct small_op ops[] = {
      {"f", {W, X}, 2, H, -1}, {"g", {H, NONE}, 2, Y, -1}, {"b", {H, Y}, 2, Z, -1}, {"u", {Z}, 1, -1, W}};
  for (size_t i = 0; i < LADE_COUNT(ops); i++)
    op_add(graph, &ops[i]);
  assert_int_equal(lade_graph_keep(graph, Z, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  return graph;
}

/* With every kind of instruction: h is redone, y is in the store for a while. */
static const struct lade_graph_instr all_kinds[] = {GET(W, LADE_HOST), OP(F), OP(G), DROP(H), PUT(Y, LADE_STORE),
                                                    REDO(F), GET(Y, LADE_STORE), OP(B), DROP(Y), DROP(H), OP(U),
                                                    PUT(W, LADE_HOST)};

static struct lade_program *all_kinds_lower(const lade_graph *graph, bool is_unified)
{
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  struct lade_error error = {0};
  if (lade_graph_replay(graph, all_kinds, LADE_COUNT(all_kinds), &error, &totals))
    fail_msg("%s", error.text);
  struct lade_program *program = list_lower(graph, all_kinds, LADE_COUNT(all_kinds), is_unified, &error);
  if (!program)
    fail_msg("%s", error.text);
  assert_proved(program);
  return program;
}

static void every_instruction_has_its_queue_and_operands(void **state)
{
  static const struct {
    uint8_t kind, queue, n_operands;
  } unified[] = {{LADE_INSTR_COPY, LADE_Q_TO_DEVICE, 2}, {LADE_INSTR_COMPUTE, LADE_Q_COMPUTE, 4},
                 {LADE_INSTR_COMPUTE, LADE_Q_COMPUTE, 3}, {LADE_INSTR_WRITE, LADE_Q_IO, 2},
                 {LADE_INSTR_COMPUTE, LADE_Q_COMPUTE, 4}, {LADE_INSTR_READ, LADE_Q_IO, 2},
                 {LADE_INSTR_COMPUTE, LADE_Q_COMPUTE, 4}, {LADE_INSTR_COMPUTE, LADE_Q_HOST, 3},
                 {LADE_INSTR_COPY, LADE_Q_TO_HOST, 2}};
  lade_graph *graph = step_make();
  struct lade_program *program = all_kinds_lower(graph, true);
  assert_int_equal(program->n_instrs, LADE_COUNT(unified));
  for (int at = 0; at < program->n_instrs; at++) {
    assert_int_equal(program->instrs[at].kind, unified[at].kind);
    assert_int_equal(program->instrs[at].queue, unified[at].queue);
    assert_int_equal(program->instrs[at].n_operands, unified[at].n_operands);
  }
  assert_true(program->end_buffers[W] >= 0 && program->end_buffers[X] >= 0 && program->end_buffers[Z] >= 0);
  assert_true(program->end_buffers[H] == -1 && program->end_buffers[Y] == -1 && program->end_buffers[NONE] == -1);
  assert_int_equal(program->owner_bytes[LADE_HOST][LADE_OWNER_PARAMETERS], 8192);
  lade_program_destroy(program);
  program = all_kinds_lower(graph, false); /* through the host: two more instructions */
  assert_int_equal(program->n_instrs, LADE_COUNT(unified) + 2);
  lade_program_destroy(program);
  lade_graph_destroy(graph);
}

/* The lowering refuses lists that it cannot follow, in a line with the storage's name. */
static void lists_that_use_absent_storages_are_refused(void **state)
{
  static const struct {
    struct lade_graph_instr instrs[3];
    int n;
    const char *fragment;
  } wrong[] = {{{OP(F)}, 1, "uses \"w\""},
               {{GET(W, LADE_HOST), GET(W, LADE_HOST)}, 2, "gets \"w\""},
               {{PUT(H, LADE_HOST)}, 1, "puts \"h\""},
               {{GET(W, LADE_HOST), OP(F)}, 2, "keeps \"z\""},
               {{DROP(H)}, 1, "without an op"}};
  lade_graph *graph = step_make();
  for (size_t i = 0; i < LADE_COUNT(wrong); i++) {
    struct lade_error error = {0};
    assert_null(list_lower(graph, wrong[i].instrs, wrong[i].n, true, &error));
    assert_int_equal(error.code, -EINVAL);
    assert_non_null(strstr(error.text, wrong[i].fragment));
  }
  lade_graph_destroy(graph);
}

/* A given storage that leaves the device for a while ends the list where it began it. */
static void given_storages_come_back_to_their_place(void **state)
{
  static const struct lade_graph_instr instrs[] = {GET(W, LADE_HOST), OP(F), PUT(X, LADE_HOST), OP(G),
                                                   PUT(W, LADE_HOST), OP(B), DROP(Y), DROP(H), GET(W, LADE_HOST), OP(U),
                                                   GET(X, LADE_HOST), PUT(W, LADE_HOST)};
  lade_graph *graph = step_make();
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  struct lade_error error = {0};
  assert_int_equal(lade_graph_replay(graph, instrs, LADE_COUNT(instrs), &error, &totals), 0);
  struct lade_program *program = list_lower(graph, instrs, LADE_COUNT(instrs), true, &error);
  assert_non_null(program);
  assert_proved(program);
  const int32_t start = program->start_buffers[X], end = program->end_buffers[X];
  assert_true(start >= 0 && end >= 0 && start != end);
  assert_int_equal(program->buffers[start].offset, program->buffers[end].offset);
  assert_true(program->buffers[start].last < program->buffers[end].first);
  program->buffers[end].offset += 4096;
  assert_caught(program, "");
  program->buffers[end].offset -= 4096;
  program->start_buffers[X] = end;
  assert_caught(program, "no start of its own");
  program->start_buffers[X] = start;
  program->buffers[start].first = 1;
  assert_caught(program, "is no start for storage 1");
  program->buffers[start].first = 0;
  program->start_buffers[Z] = 0;
  assert_caught(program, "has a start, and is not given");
  program->start_buffers[Z] = -1;
  assert_proved(program);
  lade_program_destroy(program);
  lade_graph_destroy(graph);
}

/* ---- breaks ---- */

static int instr_find(const struct lade_program *program, int kind, int op, bool is_redo)
{
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    if (instr->kind == kind && instr->op == op && instr->is_recompute == is_redo)
      return at;
  }
  fail_msg("no instruction of kind %d and op %d", kind, op);
  return -1;
}

#define BREAK(place, value, fragment) \
  do { \
    __typeof__(place) right = (place); \
    (place) = (value); \
    assert_caught(program, fragment); \
    (place) = right; \
  } while (0)

static void broken_instructions_are_named(void **state)
{
  lade_graph *graph = step_make();
  struct lade_program *program = all_kinds_lower(graph, true);
  const int f = instr_find(program, LADE_INSTR_COMPUTE, F, false);
  const int g = instr_find(program, LADE_INSTR_COMPUTE, G, false);
  const int redo = instr_find(program, LADE_INSTR_COMPUTE, F, true);
  const int u = instr_find(program, LADE_INSTR_COMPUTE, U, false);
  const int put = instr_find(program, LADE_INSTR_WRITE, -1, false);
  struct lade_operand *of_f = &program->operands[program->instrs[f].first_operand];
  struct lade_operand *of_put = &program->operands[program->instrs[put].first_operand];
  BREAK(program->instrs[g].op, B, "op 2 \"b\"): runs where op 1 is next");
  BREAK(program->instrs[g].op, 99, "has op 99 of 4");
  BREAK(program->instrs[redo].is_recompute, 0, "runs where op 2 is next");
  BREAK(program->instrs[f].is_recompute, 1, "has not run before");
  BREAK(graph->ops.items[F].is_once, true, "runs again, which its graph rules out");
  BREAK(program->instrs[u].queue, LADE_Q_COMPUTE, "");
  BREAK(program->instrs[f].param, 0, "fields of a model");
  BREAK(program->instrs[f].microbatch, 1, "fields of a model");
  BREAK(program->instrs[f].n_operands, 3, "operands");
  BREAK(of_f[0].reads.version, 1, "is another value");
  BREAK(of_f[0].reads.tensor, X, "is another value");
  BREAK(of_f[0].access, LADE_READS_AND_MAKES, "has role");
  BREAK(of_f[2].makes.version, 2, "is another value");
  BREAK(of_f[0].bytes, 4999, "expected all 5000");
  BREAK(of_f[3].bytes, 99, "expected all 100");
  BREAK(of_f[2].buffer, of_f[0].buffer, "");
  BREAK(of_f[0].buffer, program->end_buffers[W], "");
  BREAK(of_put[0].reads.tensor, H, "is not the value");
  BREAK(of_put[1].bytes, 7999, "is not all of the storage");
  BREAK(program->instrs[put].queue, LADE_Q_HOST, "");
  BREAK(program->instrs[put].kind, LADE_INSTR_UPDATE, "goes from");
  assert_proved(program);
  lade_program_destroy(program);
  lade_graph_destroy(graph);
}

static void broken_places_are_named(void **state)
{
  lade_graph *graph = step_make();
  struct lade_program *program = all_kinds_lower(graph, true);
  const int32_t of_h = program->operands[program->instrs[instr_find(program, LADE_INSTR_COMPUTE, F, false)]
                                             .first_operand + 2].buffer;
  const uint64_t tight[] = {program->peak_bytes[LADE_DEVICE] - 1, UINT64_MAX, UINT64_MAX};
  struct lade_error error = {0};
  BREAK(program->end_buffers[W], -1, "storage 0 \"w\" has no end");
  BREAK(program->end_buffers[W], program->end_buffers[X], "no end");
  BREAK(program->end_buffers[H], of_h, "has an end, and is not kept");
  BREAK(program->end_buffers[Z], of_h, "is no end");
  BREAK(program->buffers[program->end_buffers[W]].is_resident, false, "no start of its own");
  BREAK(program->buffers[of_h].offset, program->buffers[of_h].offset + 4096, "");
  BREAK(program->buffers[of_h].offset, program->buffers[program->end_buffers[X]].offset, "overlap");
  BREAK(program->buffers[program->end_buffers[Z]].last, program->n_instrs - 2, "");
  BREAK(program->buffers[of_h].last, program->buffers[of_h].last - 1, "lives from");
  BREAK(program->peak_bytes[LADE_DEVICE], program->peak_bytes[LADE_DEVICE] + 4096, "owners");
  BREAK(program->live_peak_bytes[LADE_DEVICE], 4096, "live at once");
  assert_int_equal(lade_program_prove(program, tight, &error), -EINVAL);
  assert_non_null(strstr(error.text, "past the budget"));
  lade_program_destroy(program);
  lade_graph_destroy(graph);
}

/* Waits are minimal: without any one of them two accesses race. */
static void every_wait_is_needed(void **state)
{
  int n_waits = 0;
  for (uint64_t seed = 203; seed < 203 + GRAPHS; seed += 4) { /* with tiers */
    lade_graph *graph;
    struct lade_error error = {0};
    lade_graph_plan *plan = drawn_plan(seed, &graph);
    int n;
    const struct lade_graph_instr *instrs = lade_graph_plan_instrs(plan, &n);
    struct lade_program *program = plan ? list_lower(graph, instrs, n, seed % 8 == 3, &error) : NULL;
    for (int at = 0; program && at < program->n_instrs; at++) {
      for (int q = 0; q < LADE_N_QUEUES; q++) {
        if (program->instrs[at].waits[q] < 0)
          continue;
        BREAK(program->instrs[at].waits[q], -1, "no wait puts it after");
        n_waits++;
      }
    }
    lade_program_destroy(program);
    lade_graph_plan_destroy(plan);
    lade_graph_destroy(graph);
  }
  assert_true(n_waits > 100);
}

/* A redo after an update of a storage that it reads computes other bytes: the walk finds it. */
static void a_redo_behind_an_update_of_its_input_is_caught(void **state)
{
  lade_graph *graph = step_make();
  static const struct lade_graph_instr instrs[] = {GET(W, LADE_HOST), OP(F), OP(G), DROP(H), REDO(F), OP(B), DROP(Y),
                                                   DROP(H), OP(U), REDO(F), DROP(H), PUT(W, LADE_HOST)};
  struct lade_error error = {0};
  struct lade_program *program = list_lower(graph, instrs, LADE_COUNT(instrs), true, &error);
  assert_non_null(program);
  assert_caught(program, "is not there: found storage 0 \"w\" version 1");
  lade_program_destroy(program);
  lade_graph_destroy(graph);
}

/* Flip single bits of programs: the proof ends, in bounds, with an answer. */
static void flipped_bits_do_not_lead_the_proof_astray(void **state)
{
  lade_graph *graph = step_make();
  struct lade_program *program = all_kinds_lower(graph, true);
  uint8_t *const arrays[] = {(uint8_t *)program->instrs, (uint8_t *)program->operands, (uint8_t *)program->buffers,
                             (uint8_t *)program->end_buffers};
  const size_t bytes[] = {(size_t)program->n_instrs * sizeof(struct lade_instr),
                          (size_t)program->n_operands * sizeof(struct lade_operand),
                          (size_t)program->n_buffers * sizeof(struct lade_buffer),
                          (size_t)graph->storages.n * sizeof(int32_t)};
  int n_caught = 0;
  for (uint32_t i = 0; i < 8000; i++) {
    const int which = (int)(i % 4);
    const size_t at = lade_philox_word(3, i, 0, 0) % bytes[which];
    const uint8_t bit = (uint8_t)(1u << lade_philox_word(3, i, 0, 1) % 8);
    if (which == 2 && at % sizeof(struct lade_buffer) == offsetof(struct lade_buffer, is_resident))
      continue; /* a bool is one bit */
    arrays[which][at] ^= bit;
    n_caught += lade_program_prove(program, no_limit, NULL) != 0;
    arrays[which][at] ^= bit;
  }
  assert_true(n_caught > 4000);
  assert_proved(program);
  lade_program_destroy(program);
  lade_graph_destroy(graph);
}

static void memory_that_runs_out_is_said(void **state)
{
  lade_graph *graph = step_make();
  int status = -ENOMEM;
  for (int n = 0; status; n++) {
    const struct lade_lower_params params = {.graph = graph, .instrs = all_kinds, .n_instrs = LADE_COUNT(all_kinds),
                                             .is_unified = true};
    struct lade_program *program = NULL;
    struct lade_error error = {0};
    allocations_left = n;
    status = lade_program_lower(&params, &error, &program);
    if (!status)
      status = place(program);
    if (!status)
      status = lade_program_prove(program, no_limit, &error);
    allocations_left = -1;
    lade_program_destroy(program);
    if (status)
      assert_int_equal(status, -ENOMEM);
  }
  lade_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_of_drawn_graphs_are_lowered_and_proved),
      cmocka_unit_test(every_instruction_has_its_queue_and_operands),
      cmocka_unit_test(lists_that_use_absent_storages_are_refused),
      cmocka_unit_test(given_storages_come_back_to_their_place),
      cmocka_unit_test(broken_instructions_are_named),
      cmocka_unit_test(broken_places_are_named),
      cmocka_unit_test(every_wait_is_needed),
      cmocka_unit_test(a_redo_behind_an_update_of_its_input_is_caught),
      cmocka_unit_test(flipped_bits_do_not_lead_the_proof_astray),
      cmocka_unit_test(memory_that_runs_out_is_said),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
