/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs and model descriptions: published parameter counts, the structure that everybody downstream
 * relies on (one producer, definition before use, every gradient written), checkpoint slices that cover
 * every row, and config.json files as hostile as they come. What the ops compute is test_gradients' matter.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "graph/graph.h"

static struct lade_graph *graph_make(const struct lade_model *model, enum lade_dtype dtype, int64_t batch,
                                     int64_t time, float dropout)
{
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_graph_params params = {.struct_size = sizeof(params),
                                     .model = model,
                                     .dtype = dtype,
                                     .batch = batch,
                                     .time = time,
                                     .dropout = dropout,
                                     .kernels = &kernels,
                                     .n_threads = 2};
  struct lade_error error = {0};
  struct lade_graph *graph = NULL;
  int rc = lade_graph_create(&params, &error, &graph);
  if (rc < 0)
    print_message("%s\n", error.text);
  assert_int_equal(rc, 0);
  return graph;
}

static struct lade_model preset_get(const char *name)
{
  struct lade_model model;
  assert_int_equal(lade_model_preset(name, &model, NULL), 0);
  return model;
}

static int64_t params_count(const struct lade_graph *graph)
{
  int64_t n = 0;
  for (int i = 0; i < graph->n_params; i++) {
    const struct lade_tensor *tensor = &graph->tensors[graph->params[i].tensor];
    n += (int64_t)(tensor->bytes / lade_dtype_bytes(tensor->dtype));
  }
  return n;
}

static void parameter_counts_are_the_published_ones(void **state)
{
  const struct {
    const char *name;
    int64_t n_params;
  } published[] = {
      {"gpt2-124m", 124439808},         {"gpt2-350m", 354823168},      {"gpt2-774m", 774030080},
      {"gpt2-1.5b", 1557611200},        {"llama3-8b", 8030261248},     {"llama3-70b", 70553706496},
      {"llama3-405b", 405853388800},    {"gpt3-175b", 174615846912},   {"gpt-1t", 1008038758400},
  };
  for (size_t i = 0; i < LADE_COUNT(published); i++) {
    struct lade_model model = preset_get(published[i].name);
    assert_int_equal(lade_model_n_params(&model), published[i].n_params);
    struct lade_graph *graph = graph_make(&model, LADE_BF16, 1, 128, 0);
    assert_int_equal(params_count(graph), published[i].n_params);
    lade_graph_destroy(graph);
  }
}

static void presets_pass_their_own_check(void **state)
{
  int n = 0;
  for (const char *name; (name = lade_model_preset_name(n)) != NULL; n++) {
    struct lade_model model = preset_get(name);
    assert_string_equal(model.name, name);
    assert_int_equal(lade_model_check(&model, NULL), 0);
    assert_int_equal(model.takes_vocabulary, strcmp(name, "nano") == 0 || strcmp(name, "baby") == 0);
  }
  assert_int_equal(n, 11);
  assert_null(lade_model_preset_name(-1));
  struct lade_model model;
  struct lade_error error = {0};
  assert_int_equal(lade_model_preset("gpt5", &model, &error), -ENOENT);
  assert_non_null(strstr(error.text, "gpt5"));
  assert_non_null(strstr(error.text, "gpt-1t"));
}

/* ---- structure ---- */

static void ops_check(const struct lade_graph *graph)
{
  char *is_made = calloc((size_t)graph->n_tensors, 1);
  for (int i = 0; i < graph->n_tensors; i++) {
    enum lade_tensor_kind kind = graph->tensors[i].kind;
    is_made[i] = kind == LADE_TENSOR_PARAM || kind == LADE_TENSOR_TOKENS || kind == LADE_TENSOR_TARGETS;
  }
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    assert_int_equal(op->is_backward, i >= graph->n_fwd_ops);
    assert_int_equal(op->is_backward, op->forward >= 0);
    assert_true(op->flops > 0 && op->bytes > 0);
    if (op->is_backward)
      assert_int_equal(op->attr.stream, graph->ops[op->forward].attr.stream);
    for (int j = 0; j < op->n_in; j++)
      assert_true(op->in[j] < graph->n_tensors && (op->in[j] < 0 || is_made[op->in[j]]));
    for (int j = 0; j < op->n_out; j++) {
      if (op->out[j] < 0)
        continue;
      const struct lade_tensor *tensor = &graph->tensors[op->out[j]];
      if (tensor->kind == LADE_TENSOR_GRAD) {
        assert_true(op->is_backward);
        assert_true(tensor->producer <= i);
      } else {
        assert_false(is_made[op->out[j]]); /* one producer */
        assert_int_equal(tensor->producer, i);
        assert_int_equal(tensor->unit, op->unit);
      }
      is_made[op->out[j]] = 1;
      if (op->alias[j] < 0)
        continue;
      assert_true(op->alias[j] < op->n_in && op->in[op->alias[j]] >= 0);
      const struct lade_tensor *from = &graph->tensors[op->in[op->alias[j]]];
      assert_int_equal(from->bytes, tensor->bytes);
      assert_int_equal(from->kind, LADE_TENSOR_ACTIVATION);
    }
  }
  for (int i = 0; i < graph->n_tensors; i++)
    assert_true(is_made[i]);
  free(is_made);
}

static void units_check(const struct lade_graph *graph)
{
  int next_fwd = 0, next_bwd = graph->n_ops;
  for (int i = 0; i < graph->n_units; i++) {
    const struct lade_unit *unit = &graph->units[i];
    assert_int_equal(unit->first_fwd, next_fwd);
    assert_int_equal(unit->first_bwd + unit->n_bwd, next_bwd);
    for (int j = 0; j < unit->n_fwd; j++)
      assert_int_equal(graph->ops[unit->first_fwd + j].unit, i);
    for (int j = 0; j < unit->n_bwd; j++)
      assert_int_equal(graph->ops[unit->first_bwd + j].unit, i);
    next_fwd += unit->n_fwd;
    next_bwd -= unit->n_bwd;
  }
  assert_int_equal(next_fwd, graph->n_fwd_ops);
  assert_int_equal(next_bwd, graph->n_fwd_ops);
}

static void names_check(const struct lade_graph *graph)
{
  for (int i = 0; i < graph->n_tensors; i++)
    for (int j = 0; j < i; j++)
      assert_string_not_equal(graph->tensors[i].name, graph->tensors[j].name);
}

static void slices_check(const struct lade_graph *graph)
{
  for (int i = 0; i < graph->n_params; i++) {
    const struct lade_param *param = &graph->params[i];
    const struct lade_tensor *tensor = &graph->tensors[param->tensor], *grad = &graph->tensors[param->grad];
    assert_int_equal(tensor->param, i);
    assert_int_equal(grad->param, i);
    assert_int_equal(param->has_decay, tensor->n_dims == 2);
    assert_memory_equal(tensor->dims, grad->dims, sizeof(grad->dims));
    int64_t n_rows = 0;
    for (int j = 0; j < param->n_slices; j++) {
      assert_int_equal(param->slices[j].first_row, n_rows);
      assert_true(param->slices[j].name[0]);
      n_rows += param->slices[j].n_rows;
    }
    assert_int_equal(n_rows, tensor->dims[0]);
  }
}

static void graph_check(const struct lade_graph *graph)
{
  ops_check(graph);
  units_check(graph);
  names_check(graph);
  slices_check(graph);
  assert_int_equal(graph->tensors[graph->loss].kind, LADE_TENSOR_LOSS);
}

static struct lade_model llama_tiny(void)
{
  return (struct lade_model){.name = "tiny-llama", .family = LADE_LLAMA, .layers = 3, .heads = 6, .key_heads = 2,
                             .width = 36, .hidden = 50, .context = 40, .vocabulary = 61, .norm_eps = 1e-5f,
                             .rope_base = 10000};
}

static void graphs_are_in_ssa_form_with_every_gradient_written(void **state)
{
  struct lade_model models[] = {preset_get("nano"), preset_get("nano"), llama_tiny(), llama_tiny()};
  models[1].is_tied = false;
  models[3].is_tied = true;
  for (size_t i = 0; i < LADE_COUNT(models); i++)
    for (int has_dropout = 0; has_dropout < 2; has_dropout++) {
      struct lade_graph *graph = graph_make(&models[i], i & 1 ? LADE_F32 : LADE_BF16, 3, 17, has_dropout ? 0.1f : 0);
      graph_check(graph);
      assert_int_equal(params_count(graph), lade_model_n_params(&models[i]));
      lade_graph_destroy(graph);
    }
}

static int op_find(const struct lade_graph *graph, enum lade_op_kind kind, int unit)
{
  for (int i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind && graph->ops[i].unit == unit)
      return i;
  return -1;
}

static void without_dropout_the_branch_shares_the_residual_gradient(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_graph *graph = graph_make(&model, LADE_BF16, 2, 16, 0);
  const struct lade_op *residual = &graph->ops[op_find(graph, LADE_OP_RESIDUAL_BWD, 1)];
  assert_int_equal(residual->out[1], -1);
  assert_int_equal(residual->alias[0], 0);
  int n_readers = 0;
  for (int i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == LADE_OP_MATMUL_DW && graph->ops[i].in[0] == residual->out[0])
      n_readers++;
  assert_int_equal(n_readers, 1); /* attn.c_proj takes d_residual itself */
  assert_int_equal(op_find(graph, LADE_OP_DROPOUT_BWD, 1), -1);
  lade_graph_destroy(graph);
}

static void a_tied_table_gets_the_heads_gradient_then_the_embeddings(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_graph *graph = graph_make(&model, LADE_BF16, 2, 16, 0);
  int head = op_find(graph, LADE_OP_HEAD_LOSS_BWD, graph->n_units - 1), embed = op_find(graph, LADE_OP_EMBED_BWD, 0);
  assert_int_equal(graph->ops[head].out[1], graph->ops[embed].out[0]);
  assert_int_equal(graph->tensors[graph->ops[embed].out[0]].producer, head);
  assert_int_equal(head, graph->n_fwd_ops);
  assert_int_equal(embed, graph->n_ops - 1);
  lade_graph_destroy(graph);
}

static void checkpoint_names_are_those_transformers_saves(void **state)
{
  const char *const gpt2[] = {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.3.ln_1.weight",
                              "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
                              "transformer.h.0.attn.c_proj.bias", "transformer.h.1.ln_2.bias",
                              "transformer.h.2.mlp.c_fc.weight", "transformer.h.2.mlp.c_proj.weight",
                              "transformer.ln_f.bias"};
  const char *const llama[] = {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                               "model.layers.2.self_attn.q_proj.weight", "model.layers.2.self_attn.k_proj.weight",
                               "model.layers.2.self_attn.v_proj.weight", "model.layers.2.self_attn.o_proj.weight",
                               "model.layers.1.post_attention_layernorm.weight", "model.layers.1.mlp.gate_proj.weight",
                               "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight",
                               "model.norm.weight", "lm_head.weight"};
  struct lade_model models[] = {preset_get("nano"), llama_tiny()};
  for (int m = 0; m < 2; m++) {
    struct lade_graph *graph = graph_make(&models[m], LADE_F32, 1, 4, 0);
    size_t n_names = m ? LADE_COUNT(llama) : LADE_COUNT(gpt2);
    for (size_t i = 0; i < n_names; i++) {
      const char *name = m ? llama[i] : gpt2[i];
      int n_found = 0;
      for (int p = 0; p < graph->n_params; p++)
        for (int s = 0; s < graph->params[p].n_slices; s++)
          if (strcmp(graph->params[p].slices[s].name, name) == 0) {
            n_found++;
            assert_int_equal(graph->params[p].slices[s].is_transposed, strstr(name, ".c_") && strstr(name, "weight"));
          }
      assert_int_equal(n_found, 1);
    }
    lade_graph_destroy(graph);
  }
}

static void shapes_are_checked_before_anything_is_built(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_graph_params good = {.struct_size = sizeof(good), .model = &model, .dtype = LADE_F32, .batch = 1,
                                   .time = 64, .kernels = &kernels, .n_threads = 1};
  struct lade_graph_params bad[7] = {good, good, good, good, good, good, good};
  bad[0].time = 65;
  bad[1].time = 0;
  bad[2].batch = 0;
  bad[3].batch = INT64_MAX / 8;
  bad[4].dropout = 1;
  bad[5].dtype = LADE_I32;
  bad[6].n_threads = 0;
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    struct lade_graph *graph = NULL;
    struct lade_error error = {0};
    assert_int_equal(lade_graph_create(&bad[i], &error, &graph), -EINVAL);
    assert_null(graph);
    assert_non_null(strstr(error.text, "nano"));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameter_counts_are_the_published_ones),
      cmocka_unit_test(presets_pass_their_own_check),
      cmocka_unit_test(graphs_are_in_ssa_form_with_every_gradient_written),
      cmocka_unit_test(without_dropout_the_branch_shares_the_residual_gradient),
      cmocka_unit_test(a_tied_table_gets_the_heads_gradient_then_the_embeddings),
      cmocka_unit_test(checkpoint_names_are_those_transformers_saves),
      cmocka_unit_test(shapes_are_checked_before_anything_is_built),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
