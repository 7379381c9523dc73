/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole models, end to end through the op table: their gradients are right.
 *
 * The chain of trust: in double precision the derived backward equals central differences of the loss, parameter by
 * parameter, along random directions. The FP32 gradient of every kernel level equals the double one norm-wise: ||g -
 * g64|| <= 1e-4 max(||g64||, 1e-6 ||all g64||). Cutting a batch into microbatches changes nothing but the order of
 * sums, dropout draws included. Sizes are odd to leave ragged ends; dropout is on; Llama has grouped heads and scaled
 * frequencies; models with sinks also have windows, a soft cap and masked documents.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "tests/support/graph_run.h"

#define MAX_TOKENS 256
#define SEQUENCES 4
#define N_THREADS 3 /* of the pool, if used; workspaces are for this many */
#define TINY_STD 0.2 /* about 1/sqrt(width), so that every path carries gradient */
#define WIDE_STD 0.07

static bool is_brief; /* fewer differences, and a model at one level, where code is slow because it is instrumented */

static const struct lade_model tiny_models[] = {
    {.name = "tiny-gpt2", .family = LADE_GPT2, .layers = 2, .heads = 3, .n_kv_heads = 3, .width = 27, .hidden = 108,
     .context = 19, .vocabulary = 37, .is_tied = true, .norm_eps = 1e-5f},
    {.name = "tiny-llama", .family = LADE_LLAMA, .layers = 2, .heads = 6, .n_kv_heads = 2, .width = 36, .hidden = 50,
     .context = 40, .vocabulary = 61, .norm_eps = 1e-5f, .rope_base = 100, .rope_scale_factor = 8,
     .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_context = 16},
    {.name = "tied-llama", .family = LADE_LLAMA, .layers = 1, .heads = 5, .n_kv_heads = 1, .width = 24, .head_dim = 10,
     .hidden = 31, .context = 17, .vocabulary = 23, .is_tied = true, .norm_eps = 1e-6f, .rope_base = 10000},
    {.name = "windowed-llama", .family = LADE_LLAMA, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 32,
     .hidden = 31, .context = 17, .vocabulary = 29, .norm_eps = 1e-6f, .rope_base = 10000, .attention_scale = 0.5f,
     .attention_softcap = 1.5f, .window = 5, .windowed = {.bits = {1}}, .has_sinks = true},
    {.name = "tiny-gemma3", .family = LADE_GEMMA3, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 30, .head_dim = 6,
     .hidden = 37, .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 1000, .rope_local_base = 50,
     .window = 5, .windowed = {.bits = {1}}, .is_tied = true, .embedding_scale = 2.5f, .logit_softcap = 2,
     .biases = LADE_BIAS_QKV | LADE_BIAS_OUT, .has_pad_token = true, .pad_token = 3},
    {.name = "tiny-olmo2", .family = LADE_OLMO2, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 24, .hidden = 37,
     .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .rope_kind = LADE_ROPE_YARN,
     .rope_scale_factor = 4, .rope_magnitude = 1.25f, .rope_beta_fast = 8, .rope_beta_slow = 1,
     .rope_original_context = 8},
    {.name = "tiny-neox", .family = LADE_GPT_NEOX, .layers = 2, .heads = 3, .n_kv_heads = 3, .width = 24, .hidden = 37,
     .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .rotary_dim = 4, .n_parallel_norms = 2,
     .biases = LADE_BIAS_QKV},
    {.name = "tiny-falcon", .family = LADE_FALCON, .layers = 2, .heads = 4, .n_kv_heads = 1, .width = 24,
     .hidden = 96, .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .n_parallel_norms = 1,
     .is_tied = true, .unrotated = {.bits = {2}}},
    {.name = "tiny-mpt", .family = LADE_MPT, .layers = 2, .heads = 3, .n_kv_heads = 3, .width = 24, .hidden = 96,
     .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .is_tied = true, .alibi_max = 8,
     .qkv_clip = 100 /* differences do not see a slope past a kink; test_kernels does */},
    {.name = "tiny-bloom", .family = LADE_BLOOM, .layers = 2, .heads = 6, .n_kv_heads = 6, .width = 24, .hidden = 96,
     .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .is_tied = true, .alibi_max = 8},
    {.name = "tiny-ministral3", .family = LADE_MINISTRAL3, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 24,
     .hidden = 37, .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100,
     .attention_temperature_beta = 0.5f, .rope_original_context = 5},
    {.name = "tiny-granite", .family = LADE_GRANITE, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 24,
     .hidden = 37, .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .embedding_scale = 3,
     .residual_scale = 0.4f, .logit_scale = 0.5f, .attention_scale = 0.7f, .is_tied = true,
     .biases = LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP},
    {.name = "tiny-cohere", .family = LADE_COHERE2, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 32,
     .hidden = 37, .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .n_parallel_norms = 1,
     .is_tied = true, .logit_scale = 2, .window = 5, .windowed = {.bits = {1}}, .unrotated = {.bits = {2}}},
    {.name = "tiny-glm4", .family = LADE_GLM4, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 32, .hidden = 37,
     .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .rotary_dim = 4, .biases = LADE_BIAS_QKV},
    {.name = "tiny-nemotron", .family = LADE_NEMOTRON, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 24,
     .hidden = 37, .context = 17, .vocabulary = 29, .norm_eps = 1e-5f, .rope_base = 100, .rotary_dim = 4,
     .activation = LADE_GELU_TANH /* differences do not see a slope past a kink */},
};

/* Wider than the kernels' blocks, with ragged ends. */
static const struct lade_model wide_models[] = {
    {.name = "wide-gpt2", .family = LADE_GPT2, .layers = 2, .heads = 3, .n_kv_heads = 3, .width = 192, .hidden = 768,
     .context = 64, .vocabulary = 601, .is_tied = true, .norm_eps = 1e-5f},
    {.name = "wide-llama", .family = LADE_LLAMA, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 160, .head_dim = 48,
     .hidden = 300, .context = 64, .vocabulary = 521, .norm_eps = 1e-5f, .rope_base = 10000},
    {.name = "wide-windows", .family = LADE_LLAMA, .layers = 2, .heads = 4, .n_kv_heads = 2, .width = 128,
     .hidden = 200, .context = 64, .vocabulary = 211, .norm_eps = 1e-5f, .rope_base = 10000,
     .attention_softcap = 4, .window = 23, .windowed = {.bits = {2}}, .has_sinks = true},
    {.name = "wide-alibi", .family = LADE_FALCON, .layers = 2, .heads = 6, .n_kv_heads = 6, .width = 96,
     .hidden = 200, .context = 64, .vocabulary = 211, .norm_eps = 1e-5f, .alibi_max = 8, .is_alibi_rounded = true},
};

struct fixture {
  struct lade_kernels kernels;
  struct lade_model_graph *graph;
  struct graph_run run;
  int n_microbatches;
  int32_t tokens[MAX_TOKENS], targets[MAX_TOKENS];
};

/* Return an odd sequence length: 17 for the tiny models, 61 for the wide ones. */
static int64_t time_get(const struct lade_model *model)
{
  return model->width < 64 ? 17 : 61;
}

/* Prepare SEQUENCES sequences for the graph of @params, without its kernels: those for a CPU like @cpu. */
static void fixture_make(struct fixture *f, struct lade_model_graph_params params, struct lade_cpu cpu)
{
  const struct lade_model *model = params.model;
  f->n_microbatches = (int)(SEQUENCES / params.batch);
  lade_kernels_init(&f->kernels, &cpu);
  params.struct_size = sizeof(params);
  params.kernels = &f->kernels;
  params.n_threads = N_THREADS;
  params.has_documents = model->has_sinks;
  assert_int_equal(lade_model_graph_create(&params, NULL, &f->graph), 0);
  graph_run_init(&f->run, f->graph, &f->kernels, NULL);
  graph_run_randomize(&f->run, 7, model->width < 64 ? TINY_STD : WIDE_STD);
  for (int i = 0; i < MAX_TOKENS; i++) {
    f->tokens[i] = (int32_t)(lade_philox_word(1, 0, 0, (uint64_t)i) % (uint32_t)model->vocabulary);
    f->targets[i] = (int32_t)(lade_philox_word(1, 0, 1, (uint64_t)i) % (uint32_t)model->vocabulary);
  }
}

/*
 * Prepare @n_microbatches passes, with the kernels for a CPU like @cpu. One pass has GELU's own backward; several have
 * the products' form of it.
 */
static void fixture_init(struct fixture *f, const struct lade_model *model, enum lade_dtype dtype, int n_microbatches,
                         float dropout, struct lade_cpu cpu)
{
  const struct lade_model_graph_params params = {.model = model, .dtype = dtype, .batch = SEQUENCES / n_microbatches,
                                                 .seq_len = time_get(model), .dropout = dropout,
                                                 .fuses_gelu = n_microbatches > 1};
  fixture_make(f, params, cpu);
}

static void fixture_finish(struct fixture *f)
{
  graph_run_finish(&f->run);
  lade_model_graph_destroy(f->graph);
}

static double fixture_step(struct fixture *f, bool has_backward)
{
  return graph_run_step(&f->run, f->tokens, f->targets, f->n_microbatches, has_backward);
}

/* Return element @j of a gradient, without the loss scale. */
static double gradient_get(struct fixture *f, int tensor, int64_t j)
{
  return graph_run_get(&f->run, tensor, j) / (double)f->run.step.loss_scale;
}

/* Return the norm of @f's gradient of parameter @i, or of its difference from @g's. */
static double gradient_norm(struct fixture *f, struct fixture *g, int i)
{
  int tensor = f->graph->params[i].grad;
  double sum = 0;
  for (int64_t j = 0; j < graph_run_elements(&f->run, tensor); j++) {
    double x = gradient_get(f, tensor, j) - (g ? gradient_get(g, g->graph->params[i].grad, j) : 0);
    sum += x * x;
  }
  return sqrt(sum);
}

static double gradients_norm(struct fixture *f)
{
  double sum = 0;
  for (int i = 0; i < f->graph->n_params; i++)
    sum += pow(gradient_norm(f, NULL, i), 2);
  return sqrt(sum);
}

/* Check that every parameter's gradient in @f is within @tolerance of @reference's. */
static void gradients_compare(struct fixture *f, struct fixture *reference, double tolerance)
{
  double all = gradients_norm(reference);
  assert_true(isfinite(all) && all > 0);
  for (int i = 0; i < f->graph->n_params; i++) {
    double norm = gradient_norm(reference, NULL, i), difference = gradient_norm(f, reference, i);
    double allowed = tolerance * fmax(norm, 1e-6 * all);
    if (!(difference <= allowed))
      fail_msg("%s, %s: gradient of %s differs by %g of %g", f->graph->model.name, lade_dtype_name(f->graph->dtype),
               f->graph->tensors[f->graph->params[i].tensor].name, difference, norm);
  }
}

/* Return the loss with parameter @i moved by @by along its random direction; the parameter is restored. */
static double loss_moved(struct fixture *f, int i, double by)
{
  int tensor = f->graph->params[i].tensor;
  int64_t n = graph_run_elements(&f->run, tensor);
  double *saved = f->run.memory[tensor];
  double *moved = aligned_alloc(64, lade_align_up((uint64_t)n * sizeof(double), 64));
  assert_non_null(moved);
  for (int64_t j = 0; j < n; j++)
    moved[j] = saved[j] + (lade_philox_word(9, 0, (uint32_t)i, (uint64_t)j) & 1 ? by : -by);
  f->run.memory[tensor] = moved;
  double loss = fixture_step(f, false);
  f->run.memory[tensor] = saved;
  free(moved);
  return loss;
}

/* Return the gradient along the same direction. */
static double gradient_along(struct fixture *f, int i)
{
  int tensor = f->graph->params[i].grad;
  double sum = 0;
  for (int64_t j = 0; j < graph_run_elements(&f->run, tensor); j++)
    sum += graph_run_get(&f->run, tensor, j) * (lade_philox_word(9, 0, (uint32_t)i, (uint64_t)j) & 1 ? 1 : -1);
  return sum;
}

/*
 * Fourth-order central differences: the truncation error of the step is about (1e-3)^4 of the fifth derivative's scale,
 * and the rounding of the loss 1e-16 / 1e-3. Both stay far below the bound.
 */
static void double_gradients_are_central_differences_of_the_loss(void **state)
{
  for (size_t m = 0; m < LADE_COUNT(tiny_models); m += is_brief ? 4 : 1) {
    struct fixture f;
    fixture_init(&f, &tiny_models[m], LADE_F64, 2, 0.2f, (struct lade_cpu){0});
    fixture_step(&f, true);
    double all = gradients_norm(&f);
    for (int i = 0; i < f.graph->n_params; i++) {
      double h = 1e-3 / sqrt((double)graph_run_elements(&f.run, f.graph->params[i].tensor));
      double difference = (8 * (loss_moved(&f, i, h) - loss_moved(&f, i, -h)) -
                           (loss_moved(&f, i, 2 * h) - loss_moved(&f, i, -2 * h))) / (12 * h);
      double along = gradient_along(&f, i);
      double allowed = 1e-7 * fmax(gradient_norm(&f, NULL, i), 1e-3 * all);
      if (!(fabs(difference - along) <= allowed))
        fail_msg("%s: gradient of %s along a direction is %.12g, differences say %.12g", f.graph->model.name,
                 f.graph->tensors[f.graph->params[i].tensor].name, along, difference);
    }
    fixture_finish(&f);
  }
}

static void gradients_do_not_depend_on_how_the_batch_is_cut(void **state)
{
  for (size_t m = 0; m < LADE_COUNT(tiny_models); m++) {
    struct fixture whole, cut;
    fixture_init(&whole, &tiny_models[m], LADE_F64, 1, 0.2f, (struct lade_cpu){0});
    double loss = fixture_step(&whole, true);
    for (int n = 2; n <= 4; n *= 2) {
      fixture_init(&cut, &tiny_models[m], LADE_F64, n, 0.2f, (struct lade_cpu){0});
      assert_true(fabs(fixture_step(&cut, true) - loss) <= 1e-13 * loss);
      gradients_compare(&cut, &whole, 1e-11);
      fixture_finish(&cut);
    }
    fixture_finish(&whole);
  }
}

static void gradients_are_the_same_bits_again_and_on_any_number_of_threads(void **state)
{
  lade_pool *pool;
  assert_int_equal(lade_pool_create(N_THREADS, &pool), 0);
  for (size_t m = 0; m < LADE_COUNT(wide_models); m++) {
    struct fixture f, again;
    fixture_init(&f, &wide_models[m], LADE_F32, 2, 0.2f, lade_cpu_get());
    fixture_init(&again, &wide_models[m], LADE_F32, 2, 0.2f, lade_cpu_get());
    again.run.pool = pool;
    fixture_step(&f, true);
    fixture_step(&again, true);
    fixture_step(&again, true);
    for (int i = 0; i < f.graph->n_params; i++) {
      int grad = f.graph->params[i].grad;
      assert_memory_equal(f.run.memory[grad], again.run.memory[grad], f.graph->tensors[grad].bytes);
    }
    fixture_finish(&again);
    fixture_finish(&f);
  }
  lade_pool_destroy(pool);
}

/*
 * A 16-bit model equals the model of its rounded values but for one rounding per stored activation and gradient. A
 * block has some fifteen of these in a row. 16 units of rounding bound their sum.
 */
static const struct {
  enum lade_dtype dtype;
  double tolerance;
  float loss_scale;
} types[] = {{LADE_F32, 1e-4, 1}, {LADE_BF16, 16 * 0x1p-8, 1}, {LADE_F16, 16 * 0x1p-11, 256}};

/* Compare every type at every kernel level of this CPU, or at level @n % 3 alone. */
static void model_compare(const struct lade_model *model, size_t n, float dropout)
{
  struct lade_cpu best = lade_cpu_get();
  const struct lade_cpu levels[] = {{0}, {.has_avx2 = best.has_avx2}, best};
  struct fixture reference, f;
  fixture_init(&reference, model, LADE_F64, 2, dropout, (struct lade_cpu){0});
  fixture_step(&reference, true);
  for (size_t i = 0; i < LADE_COUNT(levels) * LADE_COUNT(types); i++) {
    size_t t = i % LADE_COUNT(types), level = i / LADE_COUNT(types);
    if (is_brief && level != n % LADE_COUNT(levels))
      continue;
    fixture_init(&f, model, types[t].dtype, 2, dropout, levels[level]);
    f.run.step.loss_scale = types[t].loss_scale;
    fixture_step(&f, true);
    gradients_compare(&f, &reference, types[t].tolerance);
    fixture_finish(&f);
  }
  fixture_finish(&reference);
}

static void gradients_of_every_type_and_level_equal_the_double_ones(void **state)
{
  for (size_t m = 0; m < LADE_COUNT(tiny_models); m++) {
    if (!is_brief)
      model_compare(&tiny_models[m], m, 0);
    model_compare(&tiny_models[m], m, 0.2f);
  }
  for (size_t m = 0; m < LADE_COUNT(wide_models); m++)
    model_compare(&wide_models[m], m, 0.1f);
}

/* ---- GELU in the product before it ---- */

/* Prepare two passes of @model with both or none of GELU's forms in products. */
static void fused_init(struct fixture *f, const struct lade_model *model, enum lade_dtype dtype, bool is_fused,
                       struct lade_cpu cpu)
{
  const struct lade_model_graph_params params = {.model = model, .dtype = dtype, .batch = SEQUENCES / 2,
                                                 .seq_len = time_get(model), .dropout = 0.2f, .fuses_gelu = is_fused,
                                                 .fuses_gelu_fwd = is_fused};
  fixture_make(f, params, cpu);
}

/* Where sums are stored as they are, two ops have the same bits; elsewhere both are as near to the double gradients. */
static void gelu_in_its_product_has_the_gradients_of_two_ops(void **state)
{
  static const enum lade_dtype exact_types[] = {LADE_F64, LADE_F32};
  struct fixture fused, apart;
  for (size_t i = 0; i < LADE_COUNT(exact_types); i++) {
    const struct lade_cpu cpu = i ? lade_cpu_get() : (struct lade_cpu){0};
    fused_init(&fused, &tiny_models[0], exact_types[i], true, cpu);
    fused_init(&apart, &tiny_models[0], exact_types[i], false, cpu);
    assert_true(fixture_step(&fused, true) == fixture_step(&apart, true));
    gradients_compare(&fused, &apart, 0);
    fixture_finish(&fused);
    fixture_finish(&apart);
  }
  fused_init(&apart, &tiny_models[0], LADE_F64, false, (struct lade_cpu){0});
  fixture_step(&apart, true);
  for (size_t t = 1; t < LADE_COUNT(types); t++) {
    fused_init(&fused, &tiny_models[0], types[t].dtype, true, lade_cpu_get());
    fused.run.step.loss_scale = types[t].loss_scale;
    fixture_step(&fused, true);
    gradients_compare(&fused, &apart, types[t].tolerance);
    fixture_finish(&fused);
  }
  fixture_finish(&apart);
}

/* ---- masked documents ---- */

#define DOCUMENT_TOKENS 17

/* Make a forward pass of @batch rows of @seq_len tokens by a model without learned positions. */
static void documents_run(struct fixture *f, const struct lade_model *model, int64_t batch, int64_t seq_len,
                          bool has_documents)
{
  const struct lade_cpu plain = {0};
  f->n_microbatches = 1;
  lade_kernels_init(&f->kernels, &plain);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = model, .dtype = LADE_F64,
                                           .batch = batch, .seq_len = seq_len, .kernels = &f->kernels,
                                           .n_threads = N_THREADS, .has_documents = has_documents};
  assert_int_equal(lade_model_graph_create(&params, NULL, &f->graph), 0);
  graph_run_init(&f->run, f->graph, &f->kernels, NULL);
  f->run.separators = 37; /* token 0 alone */
  graph_run_randomize(&f->run, 7, TINY_STD);
  for (int i = 0; i < MAX_TOKENS; i++) {
    const bool is_end = i % DOCUMENT_TOKENS == DOCUMENT_TOKENS - 1;
    f->tokens[i] = is_end ? 0 : 1 + (int32_t)(lade_philox_word(1, 0, 0, (uint64_t)i) % 36);
    f->targets[i] = (int32_t)(lade_philox_word(1, 0, 1, (uint64_t)i) % 37);
  }
}

/* Three documents in a row have the loss and the gradients that they have in rows of their own. */
static void masked_documents_are_trained_as_if_alone(void **state)
{
  struct lade_model model = tiny_models[1];
  model.context = 3 * DOCUMENT_TOKENS;
  for (int with_window = 0; with_window <= 1; with_window++) {
    struct fixture packed, alone, unmasked;
    model.window = with_window ? 6 : 0;
    lade_layer_set_add(&model.windowed, 1);
    documents_run(&packed, &model, 2, 3 * DOCUMENT_TOKENS, true);
    documents_run(&alone, &model, 6, DOCUMENT_TOKENS, false);
    documents_run(&unmasked, &model, 2, 3 * DOCUMENT_TOKENS, false);
    const double loss = fixture_step(&packed, true), expected = fixture_step(&alone, true);
    assert_true(fabs(loss - expected) <= 1e-5 * expected); /* angles of later positions are rounded to FP32 */
    gradients_compare(&packed, &alone, 1e-4);
    assert_true(fabs(fixture_step(&unmasked, false) - expected) > 1e-4 * expected);
    fixture_finish(&packed);
    fixture_finish(&alone);
    fixture_finish(&unmasked);
  }
}

int main(int argc, char **argv)
{
  is_brief = argc > 1 && strcmp(argv[1], "few") == 0;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(double_gradients_are_central_differences_of_the_loss),
      cmocka_unit_test(gradients_do_not_depend_on_how_the_batch_is_cut),
      cmocka_unit_test(gradients_are_the_same_bits_again_and_on_any_number_of_threads),
      cmocka_unit_test(gradients_of_every_type_and_level_equal_the_double_ones),
      cmocka_unit_test(gelu_in_its_product_has_the_gradients_of_two_ops),
      cmocka_unit_test(masked_documents_are_trained_as_if_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
