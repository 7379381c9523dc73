/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stages of a model, run in lockstep: the graphs of all stages, op by op in the order of one rank. The test copies
 * values across stage boundaries. Losses and gradients have the bits of the whole model's graph.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "tests/support/graph_run.h"

#define BATCH 2
#define SEQ_LEN 12
#define VOCABULARY 61
#define STAGES_MAX 4
#define MICROBATCHES_MAX 3

struct shape {
  struct lade_model model;
  float dropout;
  int n_stages, n_chunks, n_microbatches;
};

static const struct lade_model gpt2 = {.name = "small gpt2", .family = LADE_GPT2, .layers = 9, .heads = 2,
                                       .n_kv_heads = 2, .width = 16, .hidden = 40, .context = 16,
                                       .vocabulary = VOCABULARY, .is_tied = true, .norm_eps = 1e-5f};
static const struct lade_model llama = {.name = "small llama", .family = LADE_LLAMA, .layers = 9, .heads = 4,
                                        .n_kv_heads = 2, .width = 16, .hidden = 24, .context = 16,
                                        .vocabulary = VOCABULARY, .norm_eps = 1e-5f, .rope_base = 10000};

static struct lade_kernels kernels;

static struct lade_model_graph *graph_make(const struct shape *shape, int n_stages, int stage)
{
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &shape->model, .dtype = LADE_F32,
                                     .batch = BATCH, .seq_len = SEQ_LEN, .dropout = shape->dropout, .kernels = &kernels,
                                     .n_threads = 1};
  params.share.pp = n_stages;
  params.share.pp_rank = stage;
  params.share.n_chunks = n_stages > 1 ? shape->n_chunks : 1;
  struct lade_error error = {0};
  struct lade_model_graph *graph = NULL;
  if (lade_model_graph_create(&params, &error, &graph))
    print_error("%s\n", error.text);
  assert_non_null(graph);
  return graph;
}

/* ---- lockstep ---- */

struct pipeline {
  const struct shape *shape;
  struct lade_model_graph *whole, *stages[STAGES_MAX];
  struct graph_run whole_run, runs[STAGES_MAX];
  float *boundary;
  int32_t tokens[MICROBATCHES_MAX * BATCH * SEQ_LEN], targets[MICROBATCHES_MAX * BATCH * SEQ_LEN];
};

static void pipeline_init(struct pipeline *pipeline, const struct shape *shape)
{
  *pipeline = (struct pipeline){.shape = shape, .whole = graph_make(shape, 1, 0)};
  pipeline->boundary = calloc((size_t)(BATCH * SEQ_LEN * shape->model.width), sizeof(float));
  assert_non_null(pipeline->boundary);
  graph_run_init(&pipeline->whole_run, pipeline->whole, &kernels, NULL);
  graph_run_randomize(&pipeline->whole_run, 5, 0.1);
  for (int stage = 0; stage < shape->n_stages; stage++) {
    pipeline->stages[stage] = graph_make(shape, shape->n_stages, stage);
    graph_run_init(&pipeline->runs[stage], pipeline->stages[stage], &kernels, NULL);
    graph_run_randomize(&pipeline->runs[stage], 5, 0.1);
    pipeline->runs[stage].boundary = pipeline->boundary;
  }
  for (size_t i = 0; i < LADE_COUNT(pipeline->tokens); i++) {
    pipeline->tokens[i] = (int32_t)((i * 7 + i / 5) % VOCABULARY);
    pipeline->targets[i] = (int32_t)((i * 11 + 3) % VOCABULARY);
  }
}

static void pipeline_finish(struct pipeline *pipeline)
{
  for (int stage = 0; stage < pipeline->shape->n_stages; stage++) {
    graph_run_finish(&pipeline->runs[stage]);
    lade_model_graph_destroy(pipeline->stages[stage]);
  }
  graph_run_finish(&pipeline->whole_run);
  lade_model_graph_destroy(pipeline->whole);
  free(pipeline->boundary);
}

/* Run one half of one microbatch in one chunk: the ops of its units. */
static void chunk_run(struct graph_run *run, int chunk, bool is_backward, int microbatch, int n_microbatches)
{
  for (int i = 0; i < run->graph->n_ops; i++) {
    const struct lade_op *op = &run->graph->ops[i];
    if (op->is_backward == is_backward && run->graph->units[op->unit].chunk == chunk)
      graph_run_op(run, i, microbatch, n_microbatches);
  }
}

static double pipeline_run(struct pipeline *pipeline)
{
  int p = pipeline->shape->n_stages, m = pipeline->shape->n_microbatches;
  int n_pieces = p * pipeline->shape->n_chunks;
  struct graph_run *last = &pipeline->runs[p - 1];
  double loss = 0;
  for (int i = 0; i < m; i++) {
    graph_run_feed(&pipeline->runs[0], pipeline->tokens, pipeline->targets, i);
    graph_run_feed(last, pipeline->tokens, pipeline->targets, i);
    for (int piece = 0; piece < n_pieces; piece++)
      chunk_run(&pipeline->runs[piece % p], piece / p, false, i, m);
    for (int piece = n_pieces - 1; piece >= 0; piece--)
      chunk_run(&pipeline->runs[piece % p], piece / p, true, i, m);
    loss += graph_run_get(last, last->graph->loss, 0) / m;
  }
  return loss;
}

/* ---- comparison ---- */

static int param_find(const struct lade_model_graph *graph, int number, bool is_copy)
{
  for (int i = 0; i < graph->n_params; i++) {
    if (graph->params[i].number == number && graph->params[i].is_copy == is_copy)
      return i;
  }
  return -1;
}

/* Compare the gradient of the whole model's parameter @number with the stages': its owner's, and its copy's if any. */
static void grad_verify(const struct pipeline *pipeline, int number)
{
  int grad = pipeline->whole->params[number].grad, n_owners = 0;
  const float *owned = NULL, *copied = NULL, *expected = pipeline->whole_run.memory[grad];
  for (int stage = 0; stage < pipeline->shape->n_stages; stage++) {
    const struct lade_model_graph *graph = pipeline->stages[stage];
    int owner = param_find(graph, number, false), copy = param_find(graph, number, true);
    n_owners += owner >= 0;
    owned = owner >= 0 ? pipeline->runs[stage].memory[graph->params[owner].grad] : owned;
    copied = copy >= 0 ? pipeline->runs[stage].memory[graph->params[copy].grad] : copied;
  }
  assert_int_equal(n_owners, 1);
  assert_int_equal(copied != NULL, number == 0 && pipeline->shape->model.is_tied);
  for (int64_t i = 0; i < graph_run_elements(&pipeline->whole_run, grad); i++) {
    float found = copied ? owned[i] + copied[i] : owned[i];
    assert_memory_equal(&found, &expected[i], sizeof(found));
  }
}

static void shape_verify(const struct shape *shape)
{
  struct pipeline pipeline;
  pipeline_init(&pipeline, shape);
  double expected =
      graph_run_step(&pipeline.whole_run, pipeline.tokens, pipeline.targets, shape->n_microbatches, true);
  double found = pipeline_run(&pipeline);
  assert_memory_equal(&found, &expected, sizeof(found));
  for (int number = 0; number < pipeline.whole->n_params; number++)
    grad_verify(&pipeline, number);
  pipeline_finish(&pipeline);
}

/* A tied table's sum over several microbatches has another order: each stage adds up its own first. */
static void model_verify(const struct lade_model *model, bool is_tied)
{
  for (int p = 2; p <= STAGES_MAX; p++)
    for (int v = 1; v <= 2; v++)
      for (int with_dropout = 0; with_dropout < 2; with_dropout++) {
        struct shape shape = {*model, with_dropout ? 0.1f : 0, p, v, is_tied ? 1 : MICROBATCHES_MAX};
        shape.model.is_tied = is_tied;
        shape_verify(&shape);
      }
}

static void stages_of_gpt2_have_the_whole_models_bits(void **state)
{
  model_verify(&gpt2, true);
  model_verify(&gpt2, false);
}

static void stages_of_llama_have_the_whole_models_bits(void **state)
{
  model_verify(&llama, true);
  model_verify(&llama, false);
}

/* ---- structure ---- */

static void names_verify(const struct lade_model_graph *graph, const struct lade_model_graph *whole)
{
  for (int i = 0; i < graph->n_params; i++) {
    const struct lade_param *param = &graph->params[i], *same = &whole->params[param->number];
    assert_int_equal(param->n_slices, same->n_slices);
    assert_string_equal(param->slices[0].name, same->slices[0].name);
  }
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    int stage = graph->share.pp_rank, p = graph->share.pp;
    if (!lade_op_is_stage_boundary(op->kind))
      continue;
    bool is_next = (op->kind == LADE_OP_SEND) != op->is_backward;
    assert_int_equal(op->attr.peer, (stage + (is_next ? 1 : p - 1)) % p);
  }
}

static void stages_know_their_neighbours_and_their_parameters_names(void **state)
{
  struct shape shape = {gpt2, 0.1f, 3, 2, 1};
  struct lade_model_graph *whole = graph_make(&shape, 1, 0);
  for (int stage = 0; stage < 3; stage++) {
    struct lade_model_graph *graph = graph_make(&shape, 3, stage);
    names_verify(graph, whole);
    for (int i = 0; i < graph->n_params; i++) {
      bool is_table = graph->params[i].number == 0;
      assert_int_equal(graph->params[i].is_at_both_ends, is_table);
      assert_int_equal(graph->params[i].is_copy, is_table && stage == 2);
      assert_true(!graph->params[i].is_copy || i + 1 == graph->n_params);
    }
    assert_int_equal(graph->tokens >= 0, stage == 0);
    assert_int_equal(graph->targets >= 0, stage == 2);
    assert_int_equal(graph->loss >= 0, stage == 2);
    lade_model_graph_destroy(graph);
  }
  lade_model_graph_destroy(whole);
}

/* Return the flops of a piece per token, in the units of the model's own formula. */
static double piece_cost(const struct lade_model *model, int64_t n_layers, bool has_head)
{
  double head = 6.0 * (double)model->vocabulary * (double)model->width;
  double block = (lade_model_flops_per_token(model, model->context) - head) / (double)model->layers;
  return (double)n_layers * block + (has_head ? head : 0);
}

/* Return the least time of the slowest piece, over all numbers of layers in the last one. */
static double min_slowest(const struct lade_model *model, int n_pieces)
{
  double min = -1;
  for (int64_t n = 1; n <= model->layers - (n_pieces - 1); n++) {
    int64_t longest = lade_div_up(model->layers - n, n_pieces - 1);
    double slowest = LADE_MAX(piece_cost(model, n, true), piece_cost(model, longest, false));
    min = min < 0 ? slowest : LADE_MIN(min, slowest);
  }
  return min;
}

/*
 * Check that every layer is in one piece, in order, longer pieces later, and that the slowest piece is as fast as
 * possible.
 */
static void cut_verify(const struct lade_model *model, int n_pieces)
{
  struct lade_layer_span span;
  int64_t next = 0, longest = 1;
  for (int piece = 0; piece < n_pieces; piece++) {
    assert_int_equal(lade_piece_layers(model, model->context, n_pieces, piece, NULL, &span), 0);
    assert_true(span.first == next && span.n >= 1);
    next += span.n;
    if (piece + 1 == n_pieces)
      continue;
    assert_true(span.n >= longest);
    longest = span.n;
  }
  assert_int_equal(next, model->layers);
  if (n_pieces > 1) {
    double slowest = LADE_MAX(piece_cost(model, longest, false), piece_cost(model, span.n, true));
    assert_true(slowest <= min_slowest(model, n_pieces) * (1 + 1e-12));
  }
}

static void layers_are_cut_by_cost(void **state)
{
  const char *name;
  for (int i = 0; (name = lade_model_preset_name(i)); i++) {
    struct lade_model model;
    assert_int_equal(lade_model_preset(name, &model, NULL), 0);
    if (model.takes_vocabulary)
      model.vocabulary = 256;
    for (int n_pieces = 1; n_pieces <= model.layers; n_pieces++)
      cut_verify(&model, n_pieces);
  }
}

static void too_many_stages_are_refused(void **state)
{
  struct lade_error error;
  struct lade_layer_span span;
  const int max = (int)gpt2.layers + 2; /* an embedding and a head may be pieces of their own */
  assert_int_equal(lade_piece_layers(&gpt2, SEQ_LEN, max, 0, &error, &span), 0);
  assert_int_equal(lade_piece_layers(&gpt2, SEQ_LEN, max + 1, 0, &error, &span), -EINVAL);
  assert_non_null(strstr(error.text, "give at most 11"));
}

static int kernels_make(void **state)
{
  struct lade_cpu cpu = {0};
  lade_kernels_init(&kernels, &cpu);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stages_of_gpt2_have_the_whole_models_bits),
      cmocka_unit_test(stages_of_llama_have_the_whole_models_bits),
      cmocka_unit_test(stages_know_their_neighbours_and_their_parameters_names),
      cmocka_unit_test(layers_are_cut_by_cost),
      cmocka_unit_test(too_many_stages_are_refused),
  };
  return cmocka_run_group_tests(tests, kernels_make, NULL);
}
