/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small programs: see program_fixture.h. The models are as small as possible while a table still spans several blocks
 * of sums of squares. Prices are made up so that copies take the time of a few ops.
 */
#include "tests/support/program_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/philox.h"

const struct program_fixture_setting program_fixture_settings[FIXTURE_N_SETTINGS] = {
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_KEEP, .dropout = 0.1f},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 3, .manner = FIXTURE_RECOMPUTE},
    {.family = LADE_GPT2, .dtype = LADE_F16, .n_microbatches = 3, .manner = FIXTURE_SPILL_HOST,
     .state_tiers = LADE_TIER_HOST,
     .prefetch_bytes = UINT64_MAX / 2},
    {.family = LADE_LLAMA, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_STORE,
     .state_tiers = LADE_TIER_STORE,
     .is_unified = true, .prefetch_bytes = UINT64_MAX / 2},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 3, .manner = FIXTURE_MIXED,
     .state_tiers = FIXTURE_MIXED_TIERS,
     .prefetch_bytes = UINT64_MAX / 2, .seed = 5},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_MIXED,
     .state_tiers = FIXTURE_MIXED_TIERS,
     .optimizer_in_backward = true, .prefetch_bytes = UINT64_MAX / 2, .seed = 9, .grad_dtype = LADE_BF16},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 3, .manner = FIXTURE_RECOMPUTE,
     .state_tiers = LADE_TIER_STORE,
     .optimizer_in_backward = true, .is_unified = true},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 2, .manner = FIXTURE_KEEP,
     .state_tiers = FIXTURE_MIXED_TIERS,
     .prefetch_bytes = UINT64_MAX / 2, .seed = 5, .dp = 2, .grad_dtype = LADE_BF16},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 3, .manner = FIXTURE_MIXED,
     .state_tiers = FIXTURE_MIXED_TIERS,
     .prefetch_bytes = UINT64_MAX / 2, .seed = 6, .pp = 3, .stage = 0, .schedule = LADE_SCHEDULE_ZBH1,
     .grad_dtype = LADE_BF16},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 4, .manner = FIXTURE_RECOMPUTE, .seed = 4,
     .dropout = 0.1f, .pp = 2, .stage = 1, .n_chunks = 2, .schedule = LADE_SCHEDULE_INTERLEAVED},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_MIXED,
     .state_tiers = LADE_TIER_DEVICE,
     .prefetch_bytes = UINT64_MAX / 2, .seed = 5, .dp = 2, .zero = 1, .grad_dtype = LADE_BF16},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 2, .manner = FIXTURE_KEEP, .dp = 4, .zero = 2,
     .shard = 2},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_SPILL_HOST,
     .state_tiers = LADE_TIER_HOST,
     .optimizer_in_backward = true, .prefetch_bytes = UINT64_MAX / 2, .dp = 4, .zero = 3, .grad_dtype = LADE_BF16},
    {.family = LADE_GPT2, .dtype = LADE_F32, .n_microbatches = 2, .manner = FIXTURE_KEEP, .state_tiers = LADE_TIER_HOST,
     .dp = 4, .zero = 3, .shard = 2, .is_narrow = true},
    {.family = LADE_LLAMA, .dtype = LADE_BF16, .n_microbatches = 2, .manner = FIXTURE_KEEP,
     .state_tiers = LADE_TIER_STORE,
     .has_resident_weights = true},
    {.family = LADE_GPT2, .dtype = LADE_BF16, .n_microbatches = 1, .manner = FIXTURE_KEEP,
     .state_tiers = LADE_TIER_HOST,
     .has_resident_weights = true, .dp = 2, .zero = 1},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 1, .manner = FIXTURE_KEEP,
     .state_tiers = LADE_TIER_HOST,
     .has_resident_weights = true, .optimizer_in_backward = true, .dp = 2, .zero = 3},
    {.family = LADE_LLAMA, .dtype = LADE_F32, .n_microbatches = 3, .manner = FIXTURE_STORE,
     .prefetch_bytes = UINT64_MAX / 2, .dp = 2, .zero = 2},
    {.family = LADE_LLAMA, .dtype = LADE_BF16, .n_microbatches = 4, .manner = FIXTURE_RECOMPUTE, .seed = 3, .tp = 2,
     .pp = 2, .stage = 1, .n_chunks = 2, .schedule = LADE_SCHEDULE_INTERLEAVED},
    {.family = LADE_GPT2, .dtype = LADE_F32, .n_microbatches = 3, .manner = FIXTURE_MIXED,
     .prefetch_bytes = UINT64_MAX / 2, .seed = 8, .tp = 2, .pp = 3, .stage = 1, .schedule = LADE_SCHEDULE_ZBH1},
};

uint32_t program_fixture_draw(uint32_t *seed, uint32_t below)
{
  return lade_philox_word(7, 0, 0, (*seed)++) % below;
}

static struct lade_model_graph *share_graph(const struct program_fixture_setting *setting,
                                            const struct lade_share *share)
{
  int64_t layers = LADE_MAX(2, share->pp * LADE_MAX(share->n_chunks, 1));
  struct lade_model model = {.name = "tiny", .family = setting->family, .layers = layers, .heads = 4, .n_kv_heads = 4,
                             .width = 32, .hidden = 128, .context = 16, .vocabulary = 4096, .is_tied = true,
                             .norm_eps = 1e-5f};
  if (setting->family == LADE_LLAMA) {
    model.n_kv_heads = 2;
    model.is_tied = false;
  }
  model.rope_base = setting->family == LADE_GPT2 ? 0 : 10000;
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  const struct lade_model_graph_params params = {
      .struct_size = sizeof(params), .model = &model, .dtype = setting->dtype, .grad_dtype = setting->grad_dtype,
      .batch = 2, .seq_len = 16, .dropout = setting->dropout, .kernels = &kernels, .n_threads = 2, .share = *share};
  struct lade_model_graph *graph = NULL;
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  return graph;
}

struct lade_model_graph *program_fixture_graph(enum lade_family family, enum lade_dtype dtype, float dropout)
{
  const struct program_fixture_setting setting = {.family = family, .dtype = dtype, .dropout = dropout};
  return share_graph(&setting, &(struct lade_share){0});
}

/* Return prices: a nanosecond for sixteen bytes of an op, twice that for a lean form; links a few times slower. */
struct lade_prices program_fixture_prices(const struct lade_model_graph *graph)
{
  struct lade_prices prices = {.clip_ns = 100, .to_host = {50, 0.2}, .to_device = {50, 0.2}, .read = {200, 0.5},
                               .write = {200, 0.5}, .streaming = {1 << 20, 3}};
  prices.op_ns = calloc((size_t)(graph->n_ops + graph->n_lean_ops), sizeof(int64_t));
  prices.grad_sumsq_ns = calloc((size_t)graph->n_params, sizeof(int64_t));
  for (int op = 0; op < graph->n_ops; op++)
    prices.op_ns[op] = 10 + (int64_t)(graph->ops[op].bytes / 16);
  for (int op = 0; op < graph->n_ops; op++) {
    if (graph->ops[op].lean >= 0)
      prices.op_ns[graph->ops[op].lean] = 2 * prices.op_ns[op];
  }
  for (int param = 0; param < graph->n_params; param++)
    prices.grad_sumsq_ns[param] = 10 + (int64_t)(graph->tensors[graph->params[param].tensor].bytes / 16);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    prices.comm[axis] = prices.comm_sum[axis] = (struct lade_transfer_price){100, 0.1};
  for (int tier = 0; tier < 3; tier++) {
    prices.update_ns[tier] = calloc((size_t)graph->n_params, sizeof(int64_t));
    for (int param = 0; param < graph->n_params; param++)
      prices.update_ns[tier][param] = prices.grad_sumsq_ns[param] * 4 * (tier + 1);
  }
  prices.update_near_ns = prices.update_ns[LADE_TIER_STORE];
  prices.stream_edge_ns = prices.update_ns[LADE_TIER_DEVICE];
  return prices;
}

void program_fixture_residency_set(struct lade_residency *residency, const struct lade_model_graph *graph,
                                   const struct program_fixture_setting *setting)
{
  static const struct lade_choice choices[] = {[FIXTURE_KEEP] = {LADE_RESIDENCY_KEEP, LADE_RESIDENCY_KEEP},
                                               [FIXTURE_RECOMPUTE] = {LADE_RESIDENCY_RECOMPUTE, LADE_RESIDENCY_KEEP},
                                               [FIXTURE_HOST] = {LADE_RESIDENCY_HOST, LADE_RESIDENCY_KEEP},
                                               [FIXTURE_STORE] = {LADE_RESIDENCY_STORE, LADE_RESIDENCY_KEEP},
                                               [FIXTURE_SPILL_HOST] = {LADE_RESIDENCY_HOST, LADE_RESIDENCY_HOST},
                                               [FIXTURE_SPILL_STORE] = {LADE_RESIDENCY_STORE, LADE_RESIDENCY_STORE}};
  uint32_t seed = setting->seed;
  for (int i = 0; i < graph->n_tensors; i++) {
    int manner = setting->manner == FIXTURE_MIXED ? (int)program_fixture_draw(&seed, FIXTURE_N_MANNERS - 1) :
        (int)setting->manner;
    if (manner == FIXTURE_KEEP || (manner == FIXTURE_RECOMPUTE && !lade_tensor_is_repeatable(graph, i)))
      continue;
    if (manner == FIXTURE_RECOMPUTE && setting->manner == FIXTURE_RECOMPUTE && program_fixture_draw(&seed, 2))
      continue; /* some */
    residency->choices[i] = choices[manner];
  }
  for (int i = 0; i < graph->n_params; i++) {
    bool is_mixed = setting->state_tiers >= FIXTURE_MIXED_TIERS;
    int state = is_mixed ? (int)program_fixture_draw(&seed, 3) : setting->state_tiers;
    int weight = is_mixed ? (int)program_fixture_draw(&seed, (uint32_t)state + 1) : setting->has_resident_weights ? 0 :
        state;
    lade_residency_set_tiers(residency, i, (enum lade_tier)weight, (enum lade_tier)state);
  }
  residency->prefetch_bytes = setting->prefetch_bytes;
  residency->optimizer_in_backward = setting->optimizer_in_backward;
}

void program_fixture_prices_finish(struct lade_prices *prices)
{
  free(prices->op_ns);
  free(prices->grad_sumsq_ns);
  for (int tier = 0; tier < 3; tier++)
    free(prices->update_ns[tier]);
}

struct lade_program *program_fixture_build(const struct program_fixture *fixture,
                                           const struct program_fixture_setting *setting,
                                           const struct lade_program *residents)
{
  struct lade_program *program = NULL;
  struct lade_build_params params = {.graph = fixture->graph, .layout = program_fixture_layout(fixture, setting),
                                     .residency = fixture->residency, .prices = &fixture->prices,
                                     .n_microbatches = setting->n_microbatches, .is_training = !setting->is_evaluation,
                                     .is_unified = setting->is_unified, .chunk_bytes = 65536, .residents = residents,
                                     .packer = fixture->packer};
  assert_int_equal(lade_program_build(&params, &program), 0);
  return program;
}

void program_fixture_init(struct program_fixture *fixture, const struct program_fixture_setting *setting)
{
  const int tp = LADE_MAX(setting->tp, 1), tp_rank = tp > 1;
  const struct lade_share share = {.tp = tp, .tp_rank = tp_rank, .pp = setting->pp, .pp_rank = setting->stage,
                                   .n_chunks = setting->n_chunks, .is_scattered = true};
  *fixture = (struct program_fixture){.graph = share_graph(setting, &share)};
  struct lade_layout_params layout = {.struct_size = sizeof(layout), .dp = LADE_MAX(setting->dp, 1),
                                      .tp = tp, .pp = LADE_MAX(setting->pp, 1),
                                      .rank = setting->pp ? setting->stage * tp + tp_rank : setting->dp > 1,
                                      .schedule = setting->schedule, .virtual_stages = setting->n_chunks,
                                      .grad_reduce = setting->is_narrow ? LADE_BF16 : LADE_F32, .zero = setting->zero,
                                      .shard = setting->shard};
  assert_int_equal(lade_layout_init(&layout, NULL, &fixture->layout), 0);
  fixture->prices = program_fixture_prices(fixture->graph);
  assert_int_equal(lade_residency_create(fixture->graph, &fixture->residency), 0);
  program_fixture_residency_set(fixture->residency, fixture->graph, setting);
  assert_int_equal(lade_packer_create(&fixture->packer), 0);
  fixture->program = program_fixture_build(fixture, setting, NULL);
}

void program_fixture_finish(struct program_fixture *fixture)
{
  lade_program_destroy(fixture->program);
  lade_packer_destroy(fixture->packer);
  lade_residency_destroy(fixture->residency);
  program_fixture_prices_finish(&fixture->prices);
  lade_model_graph_destroy(fixture->graph);
}

/* ---- changing programs ---- */

static void *copy_of(const void *items, size_t n, size_t bytes)
{
  void *copy = malloc(n * bytes + 1);
  assert_non_null(copy);
  memcpy(copy, items, n * bytes);
  return copy;
}

struct lade_program *program_copy(const struct lade_program *program)
{
  struct lade_program *copy = copy_of(program, 1, sizeof(*copy));
  copy->instrs = copy_of(program->instrs, (size_t)program->n_instrs, sizeof(*copy->instrs));
  copy->operands = copy_of(program->operands, (size_t)program->n_operands, sizeof(*copy->operands));
  copy->buffers = copy_of(program->buffers, (size_t)program->n_buffers, sizeof(*copy->buffers));
  copy->is_proved = false;
  return copy;
}

void program_restate(struct lade_program *program)
{
  for (int space = 0; space < LADE_N_SPACES; space++) {
    uint64_t max = 0, live = 0, *change = calloc((size_t)program->n_instrs + 1, sizeof(*change));
    assert_non_null(change);
    for (int i = 0; i < program->n_buffers; i++) {
      if ((int)program->buffers[i].space != space)
        continue;
      change[program->buffers[i].first] += program->buffers[i].bytes;
      change[program->buffers[i].last + 1] -= program->buffers[i].bytes; /* wraps below zero, and back */
    }
    for (int at = 0; at < program->n_instrs; at++) {
      live += change[at];
      max = LADE_MAX(max, live);
    }
    free(change);
    program->live_peak_bytes[space] = max;
    memset(program->owner_bytes[space], 0, sizeof(program->owner_bytes[space]));
    program->owner_bytes[space][LADE_OWNER_FRAGMENTATION] = program->peak_bytes[space];
  }
}

static void lifetimes_renew(struct lade_program *program)
{
  for (int i = 0; i < program->n_buffers; i++) {
    program->buffers[i].first = program->buffers[i].is_resident ? 0 : program->n_instrs - 1;
    program->buffers[i].last = program->buffers[i].is_resident ? program->n_instrs - 1 : 0;
  }
  for (int at = 0; at < program->n_instrs; at++) {
    for (int i = 0; i < program->instrs[at].n_operands; i++) {
      struct lade_buffer *buffer = &program->buffers[program->operands[program->instrs[at].first_operand + i].buffer];
      buffer->first = LADE_MIN(buffer->first, at);
      buffer->last = LADE_MAX(buffer->last, at);
    }
  }
  for (int i = 0; i < program->n_buffers; i++) {
    if (program->buffers[i].first > program->buffers[i].last)
      program->buffers[i].first = program->buffers[i].last; /* no instruction uses it any more */
  }
}

struct lade_program *program_reorder(const struct lade_program *program, const int *order, int n)
{
  struct lade_program *copy = program_copy(program);
  int n_operands = 0;
  for (int i = 0; i < n; i++)
    n_operands += program->instrs[order[i]].n_operands;
  free(copy->instrs);
  free(copy->operands);
  copy->instrs = calloc((size_t)n + 1, sizeof(*copy->instrs));
  copy->operands = calloc((size_t)n_operands + 1, sizeof(*copy->operands));
  assert_non_null(copy->instrs);
  assert_non_null(copy->operands);
  copy->n_instrs = n;
  copy->n_operands = 0;
  for (int i = 0; i < n; i++) {
    const struct lade_instr *from = &program->instrs[order[i]];
    copy->instrs[i] = *from;
    /* grouped only with the same predecessor */
    copy->instrs[i].is_grouped = from->is_grouped && i > 0 && order[i - 1] == order[i] - 1;
    copy->instrs[i].first_operand = copy->n_operands;
    memcpy(copy->operands + copy->n_operands, program->operands + from->first_operand,
           from->n_operands * sizeof(*copy->operands));
    copy->n_operands += from->n_operands;
  }
  memset(copy->peak_bytes, 0, sizeof(copy->peak_bytes));
  for (int i = 0; i < copy->n_buffers; i++) {
    copy->buffers[i].offset = copy->peak_bytes[copy->buffers[i].space];
    copy->peak_bytes[copy->buffers[i].space] += copy->buffers[i].bytes;
  }
  lifetimes_renew(copy);
  program_restate(copy);
  assert_int_equal(lade_program_order(copy), 0);
  return copy;
}

static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};

void assert_proved(struct lade_program *program)
{
  struct lade_error error = {0};
  if (lade_program_prove(program, no_limit, &error))
    fail_msg("%s", error.text);
  assert_true(program->is_proved);
}

void assert_caught(struct lade_program *program, const char *fragment)
{
  struct lade_error error = {0};
  assert_int_equal(lade_program_prove(program, no_limit, &error), -EINVAL);
  assert_false(program->is_proved);
  if (!strstr(error.text, fragment))
    fail_msg("expected \"%s\" in: %s", fragment, error.text);
  assert_null(strchr(error.text, '\n'));
}
