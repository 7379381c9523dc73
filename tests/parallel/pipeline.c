/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stages of a pipeline train as one rank does, under every schedule. Without clipping no sum has another order, so
 * losses, parameters and state are those of one rank bit for bit. Only a tied table over several microbatches has
 * another order; then losses are close, and both stages have the same table. Other residencies give the same bits, and
 * each stage's peak is as planned.
 *
 * Every rank runs the single-rank reference itself. ranks.py starts it; there are as many stages as ranks, or half as
 * many, each of two data parallel ranks that hold shards of its state. Programs whose calls do not match are reported
 * before they run.
 *
 * With two tensor parallel ranks a stage, scattered sends give the bits of whole ones and move half of their bytes.
 *
 * Usage: pipeline [shards|scattered|others]; others: the cases that scattered leaves out
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "run/rank_group.h"
#include "tests/parallel/world.h"
#include "tests/support/program_fixture.h"
#include "tests/support/run_fixture.h"

#define N_STEPS 3
#define LAYERS 9
#define CLOSE_BOUND 1e-5 /* of losses, relative: FP32 */
#define NORM_BOUND 1e-5

static const struct {
  const char *name;
  enum lade_family family;
  enum lade_schedule schedule;
  enum lade_dtype dtype;
  int n_microbatches, n_chunks; /* fewer chunks if there are not enough layers */
  bool optimizer_in_backward, is_tied, is_clipped;
  enum lade_dtype grad_dtype; /* 0: F32 */
  int n_bare; /* pieces that hold no layer; 0: LAYERS layers */
  bool has_parts; /* runs with scattered sends too */
} cases[] = {{"gpt2, 1f1b", LADE_GPT2, LADE_SCHEDULE_1F1B, LADE_F32, 5, 1, false, .has_parts = true},
             {"llama, gpipe", LADE_LLAMA, LADE_SCHEDULE_GPIPE, LADE_F32, 3, 1, false, .has_parts = true},
             {"llama, interleaved", LADE_LLAMA, LADE_SCHEDULE_INTERLEAVED, LADE_F32, 8, 2, false},
             {"gpt2, interleaved in bf16", LADE_GPT2, LADE_SCHEDULE_INTERLEAVED, LADE_BF16, 4, 2, false,
              .has_parts = true},
             {"llama, ends without layers", LADE_LLAMA, LADE_SCHEDULE_INTERLEAVED, LADE_F32, 4, 2, false, .n_bare = 2},
             {"gpt2, a head alone", LADE_GPT2, LADE_SCHEDULE_1F1B, LADE_F32, 4, 1, false, .n_bare = 1},
             {"llama, zbh1", LADE_LLAMA, LADE_SCHEDULE_ZBH1, LADE_F32, 6, 1, false},
             {"llama, zbh2", LADE_LLAMA, LADE_SCHEDULE_ZBH2, LADE_F32, 6, 1, false, .has_parts = true},
             {"gpt2, zbh1 in bf16, early updates", LADE_GPT2, LADE_SCHEDULE_ZBH1, LADE_BF16, 4, 1, true,
              .grad_dtype = LADE_BF16, .has_parts = true},
             {"gpt2, tied", LADE_GPT2, LADE_SCHEDULE_1F1B, LADE_F32, 1, 1, false, true, .grad_dtype = LADE_BF16},
             {"gpt2, tied, early updates", LADE_GPT2, LADE_SCHEDULE_1F1B, LADE_F32, 4, 1, true, true},
             {"gpt2, tied, clipped", LADE_GPT2, LADE_SCHEDULE_GPIPE, LADE_F32, 2, 1, false, true, true}};

struct run {
  struct run_fixture *run_fixture;
  struct lade_plan *plan;
  struct run_fixture_numbers numbers;
};

/* Run @plan from the beginning and leave it open; check that the measured peak is the plan's. */
static void plan_run(struct run *run, struct run_fixture *run_fixture, struct lade_plan *plan)
{
  struct lade_error error = {0};
  struct lade_device_info info;
  *run = (struct run){.run_fixture = run_fixture, .plan = plan};
  demand(!run_fixture_open(run_fixture, run->plan, &error), "%s", error.text);
  demand(!run_fixture_run(run_fixture, N_STEPS, &run->numbers, &error), "%s", error.text);
  lade_device_get_info(run_fixture->device, &info);
  demand(info.peak_bytes == lade_align_up(run->plan->peak_bytes[LADE_DEVICE], info.chunk_bytes),
         "%llu bytes were planned and %llu measured", (unsigned long long)run->plan->peak_bytes[LADE_DEVICE],
         (unsigned long long)info.peak_bytes);
}

static void run_open(struct run *run, struct run_fixture *run_fixture, const struct program_fixture_setting *setting)
{
  struct lade_residency *residency = NULL;
  demand(!lade_residency_create(run_fixture->graph, &residency), "no memory for a residency");
  program_fixture_residency_set(residency, run_fixture->graph, setting);
  plan_run(run, run_fixture, run_fixture_plan(run_fixture, residency));
}

/* Run in the smallest budget that the planner finds for this stage; it differs by stage. */
static void run_smallest(struct run *run, struct run_fixture *run_fixture)
{
  struct lade_error error = {0};
  struct lade_plan_bounds bounds;
  struct lade_plan *plan = NULL;
  lade_planner *planner = run_fixture_planner(run_fixture, UINT64_C(64) << 20, 0, LADE_RECIPE_AUTO);
  demand(!lade_planner_get_bounds(planner, &bounds), "no memory for bounds");
  demand(bounds.lower_bound_bytes <= bounds.min_bytes && bounds.min_bytes < bounds.unconstrained_bytes,
         "bounds %llu, %llu and %llu are out of order", (unsigned long long)bounds.lower_bound_bytes,
         (unsigned long long)bounds.min_bytes, (unsigned long long)bounds.unconstrained_bytes);
  demand(!lade_planner_plan(planner, bounds.min_bytes, &error, &plan), "%s", error.text);
  lade_planner_destroy(planner);
  plan_run(run, run_fixture, plan);
}

static void run_close(struct run *run)
{
  run_fixture_close(run->run_fixture);
  lade_plan_destroy(run->plan);
}

/* ---- comparison with one rank ---- */

/* Compare the norms over all stages' gradients, at each stage. */
static void norms_agree(const struct run *got, const struct run *want, const char *label)
{
  for (int i = 0; i < N_STEPS; i++)
    demand(fabs((double)got->numbers.norm[i] - (double)want->numbers.norm[i]) <=
               NORM_BOUND * (double)want->numbers.norm[i],
           "%s: step %d has norm %.9g, one rank %.9g", label, i, (double)got->numbers.norm[i],
           (double)want->numbers.norm[i]);
}

static void value_agrees(const struct run *got, int got_tensor, const struct run *want, int want_tensor,
                         const char *label)
{
  struct lade_error error = {0};
  uint64_t bytes = lade_value_bytes(got->run_fixture->graph, got_tensor);
  char name[LADE_NAME_BYTES + 16], *ours = malloc(bytes), *theirs = malloc(bytes);
  demand(ours && theirs && bytes == lade_value_bytes(want->run_fixture->graph, want_tensor),
         "a value has another size");
  demand(!lade_executor_get(got->run_fixture->executor, got_tensor, 0, ours, bytes, &error), "%s", error.text);
  demand(!lade_executor_get(want->run_fixture->executor, want_tensor, 0, theirs, bytes, &error), "%s", error.text);
  demand(memcmp(ours, theirs, bytes) == 0, "%s: %s is not what one rank has", label,
         lade_value_name(got->run_fixture->graph, got_tensor, name));
  free(ours);
  free(theirs);
}

static void params_agree(const struct run *got, const struct run *want, const char *label)
{
  const struct lade_model_graph *graph = got->run_fixture->graph, *whole = want->run_fixture->graph;
  for (int param = 0; param < graph->n_params; param++) {
    int number = graph->params[param].number;
    value_agrees(got, graph->params[param].tensor, want, whole->params[number].tensor, label);
    for (int part = 0; part < LADE_N_PARTS; part++) {
      int tensor = lade_value_part(graph, param, (enum lade_part)part);
      if (tensor >= 0)
        value_agrees(got, tensor, want, lade_value_part(whole, number, (enum lade_part)part), label);
    }
  }
}

/* Compare losses within @bound, relative; 0: the same bits. */
static void losses_agree(const struct run *got, const struct run *want, double bound, const char *label)
{
  if (got->run_fixture->graph->loss < 0)
    return;
  for (int i = 0; i < N_STEPS; i++)
    demand(fabs(got->numbers.loss[i] - want->numbers.loss[i]) <= bound * want->numbers.loss[i],
           "%s: step %d has loss %.9g, one rank %.9g", label, i, got->numbers.loss[i], want->numbers.loss[i]);
  for (int i = 0; i < 2; i++)
    demand(fabs(got->numbers.eval[i] - want->numbers.eval[i]) <= bound * want->numbers.eval[i],
           "%s: evaluation %d gives %.9g, one rank %.9g", label, i, got->numbers.eval[i], want->numbers.eval[i]);
}

/* Return a sum of the token table's bytes on this rank, weighted by their places; 0: it has no table. */
static uint64_t table_sum(const struct run *run)
{
  const struct lade_model_graph *graph = run->run_fixture->graph;
  struct lade_error error = {0};
  uint64_t sum = 0;
  for (int param = 0; param < graph->n_params; param++) {
    const uint64_t bytes = lade_value_bytes(graph, graph->params[param].tensor);
    unsigned char *table = graph->params[param].is_at_both_ends ? calloc(bytes, 1) : NULL;
    if (!table)
      continue;
    demand(!lade_executor_get(run->run_fixture->executor, graph->params[param].tensor, 0, table, bytes, &error), "%s",
           error.text);
    for (uint64_t i = 0; i < bytes; i++)
      sum += table[i] * (i * 0x9E3779B97F4A7C15u + 1);
    free(table);
  }
  return sum;
}

/* Check that the ranks of both ends of the pipeline, each of which has a shard, have the same table. Collective. */
static void tables_agree(struct world *world, const struct run *got, const char *label)
{
  const struct lade_layout *layout = got->run_fixture->layout;
  const int stage = lade_layout_position(layout, LADE_AXIS_PP), n_stages = lade_layout_size(layout, LADE_AXIS_PP);
  const uint64_t sum = table_sum(got), own[2] = {stage == 0 ? sum : 0, stage == n_stages - 1 ? sum : 0};
  uint64_t tables[2 * 64], first = 0, last = 0;
  struct lade_error error = {0};
  struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_F64, .n = 2, .src = own, .dst = tables};
  demand(!lade_comm_run(world->comm, &gather, &error), "%s", error.text);
  for (int rank = 0; rank < world->size; rank++) {
    first += tables[2 * rank];
    last += tables[2 * rank + 1];
  }
  demand(first == last, "%s: the first and the last stage have different tables", label);
}

/* ---- one model ---- */

static void same_numbers(const struct run *got, const struct run *again, const char *label, const char *change)
{
  demand(memcmp(&got->numbers, &again->numbers, sizeof(got->numbers)) == 0, "%s: %s gives other numbers", label,
         change);
}

static void rigs_init(struct world *world, const struct lade_layout *layout, size_t i, struct run_fixture *one,
                      struct run_fixture *ours)
{
  const int dp = lade_layout_size(layout, LADE_AXIS_DP);
  struct run_fixture_model model = run_fixture_tiny(cases[i].family);
  model.layers = cases[i].n_bare ? world->size / dp * cases[i].n_chunks - cases[i].n_bare : LAYERS;
  model.batch = 2;
  model.dtype = cases[i].dtype;
  model.grad_dtype = cases[i].grad_dtype;
  model.n_microbatches = dp * cases[i].n_microbatches;
  model.is_untied = !cases[i].is_tied;
  run_fixture_init(one, &model);
  model.n_microbatches = cases[i].n_microbatches;
  model.share = (struct lade_share){.pp = world->size / dp, .pp_rank = lade_layout_position(layout, LADE_AXIS_PP),
                                    .n_chunks = layout->virtual_stages};
  run_fixture_init(ours, &model);
  one->optimizer_in_backward = ours->optimizer_in_backward = cases[i].optimizer_in_backward;
  one->is_unclipped = ours->is_unclipped = !cases[i].is_clipped;
  ours->layout = layout;
  ours->comms = world->axes;
}

/* ---- programs that do not match ---- */

/* Return the last instruction of @kind on @axis; NULL: none. */
static struct lade_instr *instr_find(const struct lade_program *program, int kind, enum lade_axis axis)
{
  struct lade_instr *found = NULL;
  for (int at = 0; at < program->n_instrs; at++) {
    if (program->instrs[at].kind == kind && program->instrs[at].axis == axis)
      found = &program->instrs[at];
  }
  return found;
}

/*
 * Fail each call for memory at the last rank: no rank is left waiting, and the rank's group gets the error, or all
 * ranks. Without a failure this rank's programs must give @wanted. Return the number of calls.
 */
static int memory_lacks(struct lade_rank_group *group, const struct lade_plan *plan, int wanted)
{
  const int last = group->layout.mesh.world - 1;
  int64_t n_failed = 1;
  int nth = 0;
  while (n_failed) {
    struct lade_error error = {.text = ""};
    struct lade_faults faults;
    lade_faults_init(&faults);
    if (group->layout.rank == last)
      lade_faults_arm(&faults, LADE_FAULT_HEAP, (uint64_t)++nth, false, -ENOMEM);
    int status = lade_rank_group_prove(group, plan->train, plan->eval, &faults, &error);
    const int64_t n_own = (int64_t)lade_faults_injected(&faults);
    demand(!lade_rank_group_max(group, n_own, &n_failed, &error), "%s", error.text);
    demand(status == wanted || (n_failed && status == -ENOMEM), "memory lacks: %d: %s", status, error.text);
    demand(!n_own || (status == -ENOMEM && strstr(error.text, "no memory")), "memory lacks: %d", status);
  }
  int64_t n = 0;
  struct lade_error error;
  demand(!lade_rank_group_max(group, nth - 1, &n, &error), "%s", error.text);
  return (int)n;
}

/*
 * Check if programs of @plan match. If not, every rank on the pipeline of the last rank, which changed its own program,
 * must report both instructions, and other ranks nothing.
 */
static void broken_is_reported(struct lade_rank_group *group, const struct lade_plan *plan, const char *at_one,
                           const char *at_other)
{
  const struct lade_mesh *mesh = &group->layout.mesh;
  struct lade_error error = {.text = ""};
  const int rank = group->layout.rank, last = mesh->world - 1;
  const bool is_reported = lade_mesh_group(mesh, LADE_AXIS_PP, rank) == lade_mesh_group(mesh, LADE_AXIS_PP, last);
  int status = lade_rank_group_prove(group, plan->train, plan->eval, NULL, &error);
  demand(status == (is_reported ? -EINVAL : 0), "broken programs: %d: %s", status, error.text);
  demand(!is_reported || (strstr(error.text, at_one) && strstr(error.text, at_other)), "broken programs: %s",
         error.text);
  const int n_fail = memory_lacks(group, plan, is_reported ? -EINVAL : 0);
  demand(n_fail >= 4, "two programs are fetched with %d calls for memory", n_fail);
}

/* Break the last rank's program: a transfer of another size, a collective of another kind, a missing one. */
static void programs_meet(struct world *world, const struct lade_layout *layout, const struct lade_plan *plan)
{
  struct lade_rank_group group = {.layout = *layout, .world = world->comm};
  struct lade_error error = {.text = ""};
  char place[64];
  const bool is_breaker = world->rank == world->size - 1;
  memcpy(group.axes, world->axes, sizeof(group.axes));
  group.words = calloc((size_t)world->size, sizeof(*group.words));
  demand(group.words && memory_lacks(&group, plan, 0) >= 2, "no call for memory fails");
  demand(!lade_rank_group_prove(&group, plan->train, plan->eval, NULL, &error), "sound programs do not meet: %s",
         error.text);

  struct lade_instr *recv = instr_find(plan->eval, LADE_INSTR_RECV, LADE_AXIS_PP);
  struct lade_operand *operand = is_breaker ? &plan->eval->operands[recv->first_operand] : NULL;
  snprintf(place, sizeof(place), "ranks %d and %d", lade_mesh_member(&layout->mesh, LADE_AXIS_PP, world->size - 1,
           lade_layout_size(layout, LADE_AXIS_PP) - 2), world->size - 1);
  if (operand)
    operand->bytes /= 2;
  broken_is_reported(&group, plan, place, "of the evaluation (recv of");
  if (operand)
    operand->bytes *= 2;

  struct lade_instr *sum = instr_find(plan->train, LADE_INSTR_COLLECTIVE, LADE_AXIS_PP);
  const uint8_t kind = sum->collective, axis = sum->axis;
  sum->collective = is_breaker ? LADE_BROADCAST : kind;
  broken_is_reported(&group, plan, "(all_gather of", "(broadcast of");
  sum->collective = kind;
  sum->axis = is_breaker ? LADE_AXIS_CP : axis;
  broken_is_reported(&group, plan, "(all_gather of", "nothing more at the other");
  sum->axis = axis;
  free(group.words);
}

/* Return how case @i runs with everything kept, and with values that are recomputed or wait on the host. */
static struct program_fixture_setting setting_kept(size_t i)
{
  return (struct program_fixture_setting){.manner = FIXTURE_KEEP,
                                          .optimizer_in_backward = cases[i].optimizer_in_backward};
}

static struct program_fixture_setting setting_mixed(size_t i)
{
  return (struct program_fixture_setting){.manner = FIXTURE_MIXED, .state_tiers = LADE_TIER_HOST,
                                          .optimizer_in_backward = cases[i].optimizer_in_backward,
                                          .prefetch_bytes = 100000, .seed = 77};
}

static void case_agrees(struct world *world, size_t i, int dp)
{
  const struct program_fixture_setting keep = setting_kept(i), mixed = setting_mixed(i);
  struct lade_layout layout;
  struct lade_error error = {0};
  struct lade_layout_params params = {.struct_size = sizeof(params), .world = world->size, .rank = world->rank,
                                      .pp = world->size / dp, .dp = dp, .zero = dp > 1, .schedule = cases[i].schedule,
                                      .virtual_stages = cases[i].n_chunks, .grad_reduce = LADE_F32};
  struct run_fixture one, ours;
  struct run want, got, again;
  demand(!lade_layout_init(&params, &error, &layout), "%s", error.text);
  world_split(world, &layout);
  rigs_init(world, &layout, i, &one, &ours);
  run_open(&want, &one, &keep);
  run_open(&got, &ours, &keep);
  programs_meet(world, &layout, got.plan);
  bool is_close = dp > 1 || (cases[i].is_tied && cases[i].n_microbatches > 1); /* sums have another order */
  losses_agree(&got, &want, is_close ? CLOSE_BOUND : 0, cases[i].name);
  norms_agree(&got, &want, cases[i].name);
  if (!is_close)
    params_agree(&got, &want, cases[i].name);
  tables_agree(world, &got, cases[i].name);
  run_close(&want);
  run_close(&got);
  run_open(&again, &ours, &mixed);
  same_numbers(&got, &again, cases[i].name, "another residency");
  run_close(&again);
  run_smallest(&again, &ours);
  same_numbers(&got, &again, cases[i].name, "the smallest budget");
  run_close(&again);
  run_fixture_finish(&one);
  run_fixture_finish(&ours);
  world_unite(world);
}

/* ---- scattered sends ---- */

#define TP 2

static void scattered_fixture_init(struct world *world, const struct lade_layout *layout, size_t i, bool is_scattered,
                                   struct run_fixture *ret_fixture)
{
  struct run_fixture_model model = run_fixture_tiny(cases[i].family);
  const int pp = lade_layout_size(layout, LADE_AXIS_PP);
  model.layers = cases[i].n_bare ? pp * cases[i].n_chunks - cases[i].n_bare : LAYERS;
  model.batch = 2;
  model.dtype = cases[i].dtype;
  model.grad_dtype = cases[i].grad_dtype;
  model.n_microbatches = cases[i].n_microbatches;
  model.is_untied = !cases[i].is_tied;
  model.share = (struct lade_share){.tp = TP, .tp_rank = lade_layout_position(layout, LADE_AXIS_TP), .pp = pp,
                                    .pp_rank = lade_layout_position(layout, LADE_AXIS_PP),
                                    .n_chunks = layout->virtual_stages, .is_scattered = is_scattered};
  run_fixture_init(ret_fixture, &model);
  ret_fixture->optimizer_in_backward = cases[i].optimizer_in_backward;
  ret_fixture->is_unclipped = !cases[i].is_clipped;
  ret_fixture->layout = layout;
  ret_fixture->comms = world->axes;
}

static void scattered_bytes_agree(const struct run *whole, const struct run *parts, const char *label)
{
  uint64_t of_whole[LADE_N_AXES], of_parts[LADE_N_AXES], sent = 0, received = 0;
  const struct lade_model_graph *graph = whole->run_fixture->graph;
  const uint64_t n_microbatches = (uint64_t)whole->run_fixture->model.n_microbatches;
  lade_program_comm_traffic(whole->plan->train, of_whole);
  lade_program_comm_traffic(parts->plan->train, of_parts);
  for (int op = 0; op < graph->n_ops; op++) {
    sent += graph->ops[op].kind == LADE_OP_SEND ? (uint64_t)graph->ops[op].bytes : 0;
    received += graph->ops[op].kind == LADE_OP_RECV ? (uint64_t)graph->ops[op].bytes : 0;
  }
  demand(sent && received && of_whole[LADE_AXIS_PP] - of_parts[LADE_AXIS_PP] == n_microbatches * sent / TP * (TP - 1),
         "%s: %llu bytes go to other stages in parts, %llu whole", label, (unsigned long long)of_parts[LADE_AXIS_PP],
         (unsigned long long)of_whole[LADE_AXIS_PP]);
  demand(of_parts[LADE_AXIS_TP] - of_whole[LADE_AXIS_TP] == n_microbatches * received / TP * (TP - 1),
         "%s: gathers of %llu bytes", label, (unsigned long long)of_parts[LADE_AXIS_TP]);
}

static void parts_give_the_bits_of_wholes(struct world *world, size_t i)
{
  const struct program_fixture_setting keep = setting_kept(i), mixed = setting_mixed(i);
  struct lade_layout layout;
  struct lade_error error = {0};
  struct lade_layout_params layout_params = {
      .struct_size = sizeof(layout_params), .world = world->size, .rank = world->rank, .tp = TP,
      .pp = world->size / TP, .schedule = cases[i].schedule, .virtual_stages = cases[i].n_chunks,
      .grad_reduce = LADE_F32};
  struct run_fixture fixtures[2];
  struct run whole, parts, again;
  demand(!lade_layout_init(&layout_params, &error, &layout), "%s", error.text);
  world_split(world, &layout);
  scattered_fixture_init(world, &layout, i, false, &fixtures[0]);
  scattered_fixture_init(world, &layout, i, true, &fixtures[1]);
  run_open(&whole, &fixtures[0], &keep);
  run_open(&parts, &fixtures[1], &keep);
  same_numbers(&whole, &parts, cases[i].name, "sending in parts");
  scattered_bytes_agree(&whole, &parts, cases[i].name);
  for (int param = 0; param < fixtures[0].graph->n_params; param++)
    value_agrees(&parts, fixtures[1].graph->params[param].tensor, &whole, fixtures[0].graph->params[param].tensor,
                 cases[i].name);
  run_close(&whole);
  run_close(&parts);
  run_open(&again, &fixtures[1], &mixed);
  same_numbers(&whole, &again, cases[i].name, "another residency of parts");
  run_close(&again);
  if (cases[i].schedule == LADE_SCHEDULE_INTERLEAVED) {
    run_smallest(&again, &fixtures[1]);
    same_numbers(&whole, &again, cases[i].name, "the smallest budget of parts");
    run_close(&again);
  }
  run_fixture_finish(&fixtures[0]);
  run_fixture_finish(&fixtures[1]);
  world_unite(world);
}

int main(int argc, char **argv)
{
  struct world world;
  world_open(&world);
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    if (argc == 1)
      case_agrees(&world, i, 1);
    else if (strcmp(argv[1], "scattered") == 0 && cases[i].has_parts)
      parts_give_the_bits_of_wholes(&world, i);
    else if (strcmp(argv[1], "shards") == 0 && cases[i].dtype == LADE_F32)
      case_agrees(&world, i, 2);
    else if (strcmp(argv[1], "others") == 0 && !cases[i].has_parts)
      case_agrees(&world, i, 1);
  }
  printf("DONE\n");
  fflush(stdout);
  world_close(&world);
  return 0;
}
