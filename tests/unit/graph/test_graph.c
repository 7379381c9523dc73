/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs and model descriptions: the structure that all later passes rely on (one producer, definition before use,
 * every gradient written); checkpoint slices that cover every row; and hostile config.json files. The values that ops
 * compute are tested in test_gradients, the presets in test_presets.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/base.h"
#include "base/file.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "graph/model_graph.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/model_presets.h"
#include "tests/support/names.h"

static struct lade_model_graph *share_make(const struct lade_model *model, enum lade_dtype dtype, int64_t batch,
                                     int64_t seq_len, float dropout, struct lade_share share)
{
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params),
                                     .model = model,
                                     .dtype = dtype,
                                     .batch = batch,
                                     .seq_len = seq_len,
                                     .dropout = dropout,
                                     .kernels = &kernels,
                                     .n_threads = 2,
                                     .share = share};
  struct lade_error error = {0};
  struct lade_model_graph *graph = NULL;
  int rc = lade_model_graph_create(&params, &error, &graph);
  if (rc < 0)
    print_message("%s\n", error.text);
  assert_int_equal(rc, 0);
  return graph;
}

static struct lade_model_graph *graph_make(const struct lade_model *model, enum lade_dtype dtype, int64_t batch,
                                     int64_t seq_len, float dropout)
{
  return share_make(model, dtype, batch, seq_len, dropout, (struct lade_share){0});
}

/* ---- structure ---- */

static void ops_check(const struct lade_model_graph *graph)
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
    assert_true(op->bytes > 0 && (op->flops > 0) == !lade_op_is_stage_boundary(op->kind));
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

static void units_check(const struct lade_model_graph *graph)
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

/* Note the producing unit of an activation that crosses into another unit. */
static void crossing_check(const struct lade_model_graph *graph, const struct lade_op *op,
                           const struct lade_tensor *tensor)
{
  bool is_gradient = tensor->producer >= graph->n_fwd_ops;
  assert_int_equal(tensor->unit, is_gradient ? op->unit + 1 : op->unit - 1);
  assert_int_equal(tensor->dims[0], graph->batch * graph->seq_len / (graph->share.is_sequence ? graph->share.tp : 1));
  assert_int_equal(tensor->dims[1], graph->model.width);
}

static void only_the_residual_stream_crosses(const struct lade_model_graph *graph)
{
  int *crossing = calloc((size_t)graph->n_units, 2 * sizeof(*crossing)); /* the tensor, per unit and direction */
  assert_non_null(crossing);
  for (int i = 0; i < graph->n_ops; i++)
    for (int j = 0; j < graph->ops[i].n_in; j++) {
      int in = graph->ops[i].in[j];
      if (in < 0 || graph->tensors[in].kind != LADE_TENSOR_ACTIVATION || graph->tensors[in].unit == graph->ops[i].unit)
        continue;
      crossing_check(graph, &graph->ops[i], &graph->tensors[in]);
      int *seen = &crossing[2 * graph->ops[i].unit + (graph->tensors[in].producer >= graph->n_fwd_ops)];
      assert_true(*seen == 0 || *seen == in);
      *seen = in;
    }
  free(crossing);
}

static void classes_check(const struct lade_model_graph *graph)
{
  for (int i = 2; i + 1 < graph->n_units; i++) {
    const struct lade_unit *first = &graph->units[1], *unit = &graph->units[i];
    assert_int_equal(unit->class_id, first->class_id);
    assert_int_equal(unit->n_fwd, first->n_fwd);
    assert_int_equal(unit->n_bwd, first->n_bwd);
    for (int j = 0; j < unit->n_bwd; j++) {
      const struct lade_op *a = &graph->ops[first->first_bwd + j], *b = &graph->ops[unit->first_bwd + j];
      assert_int_equal(a->kind, b->kind);
      assert_true(a->flops == b->flops && a->bytes == b->bytes && a->workspace_bytes == b->workspace_bytes);
    }
  }
}

/*
 * Check that a layer's input is dead before its gradient, of the same size, is made; but parts of a sum are made first.
 */
static void order_check(const struct lade_model_graph *graph)
{
  int last_dw = -1;
  for (int i = graph->n_fwd_ops; i < graph->n_ops; i++) {
    if (graph->ops[i].kind == LADE_OP_MATMUL_DW)
      last_dw = graph->ops[i].forward;
    if (graph->ops[i].kind == LADE_OP_MATMUL_DX && !graph->ops[i].attr.is_dx_partial)
      assert_int_equal(graph->ops[i].forward, last_dw);
  }
}

static void names_check(const struct lade_model_graph *graph)
{
  for (int i = 0; i < graph->n_tensors; i++)
    for (int j = 0; j < i; j++)
      assert_string_not_equal(graph->tensors[i].name, graph->tensors[j].name);
}

static void slices_check(const struct lade_model_graph *graph)
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
    if (graph->share.tp == 1)
      assert_int_equal(n_rows, tensor->dims[0]);
    assert_true(n_rows <= tensor->dims[0] && param->n_owned_rows <= tensor->dims[0]);
  }
}

static void graph_check(const struct lade_model_graph *graph)
{
  ops_check(graph);
  units_check(graph);
  only_the_residual_stream_crosses(graph);
  classes_check(graph);
  order_check(graph);
  names_check(graph);
  slices_check(graph);
  assert_int_equal(graph->tensors[graph->loss].kind, LADE_TENSOR_LOSS);
}

static struct lade_model llama_tiny(void)
{
  return (struct lade_model){.name = "tiny-llama", .family = LADE_LLAMA, .layers = 3, .heads = 6, .n_kv_heads = 2,
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
      struct lade_model_graph *graph = graph_make(&models[i], i & 1 ? LADE_F32 : LADE_BF16, 3, 17,
                                                  has_dropout ? 0.1f : 0);
      graph_check(graph);
      assert_int_equal(params_count(graph), lade_model_n_params(&models[i]));
      lade_model_graph_destroy(graph);
    }
}

/* One rank of several has the same structure, and as many parameters less the sharded part. */
static void shares_are_in_ssa_form_too(void **state)
{
  struct lade_model models[] = {preset_get("nano"), llama_tiny()};
  for (int i = 0; i < 16; i++) {
    struct lade_share share = {.tp = 2, .tp_rank = i & 1, .is_sequence = i & 2};
    struct lade_model_graph *graph = share_make(&models[i / 8], LADE_BF16, 2, 17, i & 4 ? 0.1f : 0, share);
    graph_check(graph);
    assert_true(params_count(graph) < lade_model_n_params(&models[i / 8]));
    lade_model_graph_destroy(graph);
  }
}

static int op_find(const struct lade_model_graph *graph, enum lade_op_kind kind, int unit)
{
  for (int i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind && graph->ops[i].unit == unit)
      return i;
  return -1;
}

static void without_dropout_the_branch_shares_the_residual_gradient(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 2, 16, 0);
  const struct lade_op *residual = &graph->ops[op_find(graph, LADE_OP_RESIDUAL_BWD, 1)];
  assert_int_equal(residual->out[1], -1);
  assert_int_equal(residual->alias[0], 0);
  int n_readers = 0;
  for (int i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == LADE_OP_MATMUL_DW && graph->ops[i].in[0] == residual->out[0])
      n_readers++;
  assert_int_equal(n_readers, 1); /* attn.c_proj takes d_residual itself */
  assert_int_equal(op_find(graph, LADE_OP_DROPOUT_BWD, 1), -1);
  lade_model_graph_destroy(graph);
}

static void a_tied_table_gets_the_heads_gradient_then_the_embeddings(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 2, 16, 0);
  int head = op_find(graph, LADE_OP_HEAD_LOSS_BWD, graph->n_units - 1), embed = op_find(graph, LADE_OP_EMBED_BWD, 0);
  assert_int_equal(graph->ops[head].out[1], graph->ops[embed].out[0]);
  assert_int_equal(graph->tensors[graph->ops[embed].out[0]].producer, head);
  assert_int_equal(head, graph->n_fwd_ops);
  assert_int_equal(embed, graph->n_ops - 1);
  lade_model_graph_destroy(graph);
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
    struct lade_model_graph *graph = graph_make(&models[m], LADE_F32, 1, 4, 0);
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
    lade_model_graph_destroy(graph);
  }
}

static void shapes_are_checked_before_anything_is_built(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params good = {.struct_size = sizeof(good), .model = &model, .dtype = LADE_F32, .batch = 1,
                                   .seq_len = 64, .kernels = &kernels, .n_threads = 1};
  struct lade_model_graph_params bad[7] = {good, good, good, good, good, good, good};
  bad[0].seq_len = 65;
  bad[1].seq_len = 0;
  bad[2].batch = 0;
  bad[3].batch = INT64_MAX / 8;
  bad[4].dropout = 1;
  bad[5].dtype = LADE_I32;
  bad[6].n_threads = 0;
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    struct lade_model_graph *graph = NULL;
    struct lade_error error = {0};
    assert_int_equal(lade_model_graph_create(&bad[i], &error, &graph), -EINVAL);
    assert_null(graph);
    assert_non_null(strstr(error.text, "nano"));
  }
}

/* Kernels of a device may support shorter attention than the host's: such a model is refused before memory is taken. */
static void what_a_device_does_not_attend_over_is_refused(void **state)
{
  const struct lade_model model = preset_get("nano");
  const int64_t head_dim = lade_model_head_dim(&model);
  const struct {
    struct lade_attention_most most;
    const char *names[3];
  } cases[] = {{{.head_dim = head_dim - 1}, {"heads"}}, {{.seq_len = 63}, {"sequence length 64", "63"}},
               {{.batch = 2}, {"micro-batch 3", "2"}}, {{head_dim, 64, 3}, {NULL}}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_cpu cpu = {0};
    struct lade_kernels kernels;
    struct lade_model_graph *graph = NULL;
    struct lade_error error = {0};
    lade_kernels_init(&kernels, &cpu);
    kernels.attention_most = cases[i].most;
    const struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_F32,
                                             .batch = 3, .seq_len = 64, .kernels = &kernels, .n_threads = 1};
    int rc = lade_model_graph_create(&params, &error, &graph);
    assert_int_equal(rc, cases[i].names[0] ? -EINVAL : 0);
    names_verify(error.text, cases[i].names, __FILE__, __LINE__);
    lade_model_graph_destroy(graph);
  }
}

/* ---- config.json ---- */

#define GPT2_FIELDS \
  "\"model_type\":\"gpt2\",\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"vocab_size\":50257"
#define LLAMA_FIELDS \
  "\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32," \
  "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"vocab_size\":128256," \
  "\"rms_norm_eps\":1e-05"
#define ROPE3(factor) \
  "{\"factor\":" factor ",\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\"," \
  "\"original_max_position_embeddings\":8192}"

/* Load a file of @bytes bytes of @text by lade_model_load. */
static int config_load(const void *text, size_t bytes, struct lade_model *ret_model, struct lade_error *error)
{
  char path[] = "/tmp/lade-config-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, bytes), bytes);
  close(fd);
  int rc = lade_model_load(path, ret_model, error);
  unlink(path);
  return rc;
}

static void config_accept(const char *text, struct lade_model *ret_model)
{
  struct lade_error error = {0};
  if (config_load(text, strlen(text), ret_model, &error) < 0)
    fail_msg("%s", error.text);
}

/* Check that @text is refused with one line that contains @a, @b and @c (NULL: none), and the model is untouched. */
static void config_refuse(const char *text, const char *a, const char *b, const char *c)
{
  struct lade_error error = {0};
  struct lade_model model, before;
  memset(&model, 0x5a, sizeof(model));
  before = model;
  /* text that is no JSON object is damage, a field that cannot be computed is not */
  const int expected = strstr(a, "JSON") ? -EBADMSG : -EINVAL;
  assert_int_equal(config_load(text, strlen(text), &model, &error), expected);
  assert_int_equal(error.code, expected);
  assert_memory_equal(&model, &before, sizeof(model));
  assert_null(strchr(error.text, '\n'));
  assert_non_null(strstr(error.text, "lade-config-"));
  const char *const words[] = {a, b, c};
  for (int i = 0; i < 3; i++)
    if (words[i] && !strstr(error.text, words[i]))
      fail_msg("no '%s' in: %s", words[i], error.text);
}

static void configs_of_both_families_give_the_published_models(void **state)
{
  struct lade_model model;
  config_accept("{" GPT2_FIELDS ",\"n_inner\":null,\"activation_function\":\"gelu_new\","
                "\"layer_norm_epsilon\":1e-05,\"task_specific_params\":{\"x\":[1,2]}}", &model);
  assert_int_equal(model.family, LADE_GPT2);
  assert_true(model.is_tied);
  assert_int_equal(model.hidden, 3072);
  assert_int_equal(lade_model_n_params(&model), 124439808);
  config_accept("{" LLAMA_FIELDS ",\"rope_theta\":500000.0,\"rope_scaling\":null,\"head_dim\":128}", &model);
  assert_int_equal(lade_model_n_params(&model), 8030261248);
  assert_true(model.rope_base == 500000 && model.rope_scale_factor == 0);
  config_accept("{" LLAMA_FIELDS ",\"head_dim\":64}", &model); /* q, k, v and o are half as wide */
  assert_int_equal(lade_model_n_params(&model), 8030261248 - 32 * 4096ll * 64 * 2 * (32 + 8));
  config_accept("{" LLAMA_FIELDS ",\"rope_theta\":500000.0,\"rope_scaling\":" ROPE3("8.0") "}", &model);
  assert_true(model.rope_scale_factor == 8 && model.rope_low_freq_factor == 1 && model.rope_high_freq_factor == 4);
  assert_int_equal(model.rope_original_context, 8192);
  config_accept("{" LLAMA_FIELDS ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6},"
                "\"tie_word_embeddings\":true}", &model);
  assert_true(model.rope_base == 1e6f && model.is_tied);
  assert_int_equal(lade_model_n_params(&model), 8030261248 - 128256 * 4096ll);
}

static void configs_of_images_and_text_give_the_model_of_the_text(void **state)
{
  struct lade_model model;
  config_accept("{\"model_type\":\"gemma3\",\"vision_config\":{\"hidden_size\":1152},\"text_config\":{"
                "\"model_type\":\"gemma3_text\",\"hidden_size\":5376,\"intermediate_size\":21504,"
                "\"num_hidden_layers\":62,\"head_dim\":128,\"num_attention_heads\":32,"
                "\"num_key_value_heads\":16,\"query_pre_attn_scalar\":168,"
                "\"sliding_window\":1024,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}}", &model);
  assert_int_equal(model.family, LADE_GEMMA3);
  assert_int_equal(lade_model_n_params(&model), 27009346304);
  config_accept("{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"
                "\"intermediate_size\":10240,\"num_hidden_layers\":34}}", &model); /* as published */
  assert_int_equal(model.heads, 8);
  assert_int_equal(model.vocabulary, 262208);
  config_accept("{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"text_config\":{" LLAMA_FIELDS
                ",\"tie_word_embeddings\":false}}", &model);
  assert_true(model.is_tied);
  config_refuse("{\"model_type\":\"gemma3\",\"hidden_size\":8}", "text_config is missing", "an object", NULL);
  config_refuse("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"}}",
                "text_config.model_type is \"ministral3\"", "one of gpt2", NULL);
  config_refuse("{\"model_type\":\"mistral3\",\"text_config\":{" LLAMA_FIELDS ",\"hidden_act\":\"tanh\"}}",
                "text_config.hidden_act is \"tanh\"", "\"silu\"", NULL);
}

static void absurd_configs_are_refused_naming_the_field(void **state)
{
  config_refuse("{\"model_type\":\"gpt2\"}", "vocab_size is missing", "whole number", NULL);
  config_refuse("{}", "model_type is missing", "one of gpt2, llama, mistral", NULL);
  config_refuse("{\"model_type\":\"mamba\"}", "model_type is \"mamba\"", NULL, NULL);
  config_refuse("{\"model_type\":7}", "model_type is 7", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_head\":7}", "not JSON", "duplicate", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":-4}", "n_inner is -4", "from 1", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":1e18}", "n_inner is 1", "whole number", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":1000000000000000000}", "n_inner is 1000000000000000000", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":99999999999999999999}", "not JSON", "line 1", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":\"3072\"}", "n_inner is \"3072\"", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"activation_function\":\"tanh\"}", "activation_function is \"tanh\"",
                "gelu_new", NULL);
  config_refuse("{" GPT2_FIELDS ",\"layer_norm_epsilon\":-1}", "layer_norm_epsilon is -1", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"layer_norm_epsilon\":[]}", "layer_norm_epsilon is []", "number", NULL);
  config_refuse("{" GPT2_FIELDS ",\"scale_attn_weights\":false}", "scale_attn_weights is false", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"tie_word_embeddings\":1}", "tie_word_embeddings is 1", "true or false", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":0}", "head_dim is 0", "from 1", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":-128}", "head_dim is -128", "from 1", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":63}", "head_dim is 63", "even", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":1048576}", "head_dim is 1048576", "1 to 32768", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"hidden_act\":\"mish\"}", "hidden_act is \"mish\"", "silu", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"attention_bias\":1}", "attention_bias is 1", "true or false", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_theta\":0.5}", "rope_theta is 0.5", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_theta\":1e300}", "rope_theta", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":3}", "rope_scaling is 3", "object", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"mrope\",\"factor\":2}}",
                "rope_scaling.type is \"mrope\"", "llama3", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}",
                "rope_scaling.factor is 0.5",
                "from 1 up", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":1}}",
                "beta_fast is 1",
                "slow < fast", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}",
                "short_factor is [1]",
                "a list of", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"pad_token_id\":1000000}", "pad_token_id is 1000000", "below", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}", "rope_scaling.factor is missing",
                NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("0") "}", "rope_scaling.factor is 0", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("-3") "}", "rope_scaling.factor is -3", NULL, NULL);
  config_refuse("[1,2]", "not a JSON object", NULL, NULL);
  config_refuse("{\"model_type\":\"a\\nb\\u001b[31m\"}", "model_type is \"a\\nb", NULL, NULL);
  config_refuse("", "not JSON", NULL, NULL);
}

/* Computation of other families is never silently left out; its neutral value, and null, request nothing. */
static void what_other_families_compute_is_refused_unless_it_is_off(void **state)
{
  static const struct {
    const char *name, *off, *on;
  } fields[] = {
      {"sliding_window", "null", "4096"},          {"partial_rotary_factor", "1.0", "0.5"},
      {"rope_interleaved", "false", "true"},       {"query_pre_attn_scalar", "null", "256"},
      {"attention_multiplier", "null", "0.0078"},  {"embedding_multiplier", "1.0", "12"},
      {"residual_multiplier", "1", "0.22"},        {"logits_scaling", "1.0", "8.0"},
      {"logit_scale", "1", "0.0625"},              {"attn_logit_softcapping", "null", "50.0"},
      {"final_logit_softcapping", "null", "30.0"}, {"clip_qkv", "null", "8.0"},
      {"use_qk_norm", "false", "true"},            {"qk_layernorm", "false", "true"},
      {"qkv_bias", "false", "true"},               {"parallel_attn", "false", "true"},
      {"use_parallel_residual", "false", "true"},  {"multi_query", "false", "true"},
      {"num_experts", "0", "64"},                  {"num_local_experts", "null", "8"},
      {"n_routed_experts", "null", "160"},         {"quantization_config", "null", "{\"bits\":4}"},
      {"no_rope_layers", "[]", "[1,1,1,0]"},       {"is_encoder_decoder", "false", "true"},
  };
  const char *const families[] = {GPT2_FIELDS, LLAMA_FIELDS};
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    for (size_t k = 0; k < LADE_COUNT(families); k++) {
      struct lade_model model;
      char text[512], words[64];
      snprintf(text, sizeof(text), "{%s,\"%s\":%s}", families[k], fields[i].name, fields[i].off);
      config_accept(text, &model);
      snprintf(text, sizeof(text), "{%s,\"%s\":%s}", families[k], fields[i].name, fields[i].on);
      snprintf(words, sizeof(words), "%s is ", fields[i].name);
      config_refuse(text, words, "null in a model of this type", NULL);
    }
  }
  struct lade_model model;
  config_accept("{" LLAMA_FIELDS ",\"sliding_window\":4096,\"use_sliding_window\":false}", &model);
  config_refuse("{" LLAMA_FIELDS ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}",
                "rope_parameters.partial_rotary_factor is 0.25", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("8.0") ",\"rope_parameters\":{\"rope_type\":\"default\"}}",
                "rope_parameters is {", "null beside rope_scaling", NULL);
}

/* Try every bad size in @format, which has one %s. */
static void sizes_refuse(const char *format, const char *field)
{
  const char *const values[] = {"0", "-1", "-9223372036854775808", "9223372036854775807", "1e18", "0.5", "null",
                                "true", "\"12\"", "{}"};
  for (size_t i = 0; i < LADE_COUNT(values); i++) {
    char text[512];
    snprintf(text, sizeof(text), format, values[i]);
    config_refuse(text, field, "expected", NULL);
  }
}

static void every_size_field_is_checked(void **state)
{
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":%s,\"n_embd\":8,\"n_layer\":1,\"n_head\":1,\"vocab_size\":9}",
               "n_positions");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":%s,\"n_layer\":1,\"n_head\":1,\"vocab_size\":9}",
               "n_embd");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":%s,\"n_head\":1,\"vocab_size\":9}",
               "n_layer");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":1,\"n_head\":%s,\"vocab_size\":9}",
               "n_head");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":1,\"n_head\":1,\"vocab_size\":%s}",
               "vocab_size");
  config_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":768,\"n_layer\":1,\"n_head\":7,"
                "\"vocab_size\":9}",
                "n_head is 7", "divisor of n_embd, 768", NULL);
  config_refuse("{\"model_type\":\"llama\",\"max_position_embeddings\":8,\"hidden_size\":12,\"num_hidden_layers\":1,"
                "\"intermediate_size\":9,\"num_attention_heads\":4,\"num_key_value_heads\":1,\"vocab_size\":9}",
                "hidden_size / num_attention_heads is 3", "even", NULL);
  config_refuse("{\"model_type\":\"llama\",\"max_position_embeddings\":8,\"hidden_size\":16,\"num_hidden_layers\":1,"
                "\"intermediate_size\":9,\"num_attention_heads\":4,\"num_key_value_heads\":3,\"vocab_size\":9}",
                "num_key_value_heads is 3", "divisor of num_attention_heads, 4", NULL);
}

static void files_that_are_no_configs_are_refused(void **state)
{
  struct lade_model model;
  struct lade_error error = {0};
  assert_int_equal(lade_model_load("/nonexistent/config.json", &model, &error), -ENOENT);
  assert_non_null(strstr(error.text, "/nonexistent/config.json"));
  char pipe[] = "/tmp/lade-config-XXXXXX"; /* without a writer: a reader that waits for one hangs */
  assert_non_null(mkdtemp(pipe));
  char path[64];
  snprintf(path, sizeof(path), "%s/config.json", pipe);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(lade_model_load(path, &model, &error), -EINVAL);
  assert_non_null(strstr(error.text, "not a regular file"));
  assert_int_equal(lade_model_load(pipe, &model, &error), -EINVAL); /* a directory's config.json is meant */
  assert_non_null(strstr(error.text, "/config.json: not a regular file"));
  unlink(path);
  assert_int_equal(lade_model_load(pipe, &model, &error), -ENOENT);
  const char good[] = "{" LLAMA_FIELDS "}";
  assert_int_equal(lade_file_replace(path, good, strlen(good), NULL), 0);
  assert_int_equal(lade_model_load(pipe, &model, &error), 0);
  unlink(path);
  rmdir(pipe);
  for (size_t n = 0; n + 2 < sizeof(good); n++) /* every truncation */
    assert_int_equal(config_load(good, n, &model, &error), -EBADMSG);
  char *deep = malloc(1 << 20);
  assert_non_null(deep);
  memset(deep, '[', 1 << 20);
  assert_int_equal(config_load(deep, 1 << 20, &model, &error), -EBADMSG);
  for (int i = 0; i < 1 << 20; i++)
    deep[i] = (char)(i * 2654435761u >> 24);
  assert_int_equal(config_load(deep, 1 << 20, &model, &error), -EBADMSG);
  free(deep);
}

/* Random damage to a good file is refused, or gives a model that passes its own check. */
static void damaged_configs_never_give_a_bad_model(void **state)
{
  const char good[] = "{" LLAMA_FIELDS ",\"rope_theta\":500000.0,\"rope_scaling\":" ROPE3("8.0") "}";
  int n_accepted = 0;
  for (uint32_t i = 0; i < 2000; i++) {
    char text[sizeof(good)];
    memcpy(text, good, sizeof(good));
    for (uint32_t j = 0; j <= i % 3; j++) {
      uint32_t word = lade_philox_word(5, i, j, 0);
      text[word % (sizeof(good) - 1)] = "0123456789-+.eE,:\"{}[]nul "[(word >> 16) % 27];
    }
    struct lade_model model;
    struct lade_error error = {0};
    int rc = config_load(text, strlen(text), &model, &error);
    assert_true(rc == 0 || ((rc == -EINVAL || rc == -EBADMSG) && error.text[0]));
    if (rc == 0) {
      assert_int_equal(lade_model_check(&model, NULL), 0);
      assert_true(lade_model_n_params(&model) > 0);
      n_accepted++;
    }
  }
  assert_true(n_accepted > 0 && n_accepted < 2000);
}

/* ---- memory runs out ---- */

static void every_failed_allocation_is_an_error_without_a_leak(void **state)
{
  char path[] = "/tmp/lade-config-XXXXXX";
  const char text[] = "{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("8.0") "}";
  int fd = mkstemp(path), rc = -ENOMEM, n;
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
  json_set_alloc_funcs(__wrap_malloc, free);
  for (n = 1; rc < 0; n++) {
    struct lade_model model;
    struct lade_error error = {0};
    allocations_left = n;
    rc = lade_model_load(path, &model, &error);
    allocations_left = -1;
    /* jansson's lexer reports a failed allocation as an invalid token */
    assert_true(rc == 0 || rc == -ENOMEM || rc == -EBADMSG);
    assert_true(rc == 0 || error.text[0]);
  }
  json_set_alloc_funcs(malloc, free);
  unlink(path);
  assert_true(n > 10);

  struct lade_model model = preset_get("nano");
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_BF16,
                                           .batch = 1,
                                     .seq_len = 8, .kernels = &kernels, .n_threads = 1};
  struct lade_model_graph *graph = NULL;
  for (n = 1, rc = -ENOMEM; rc < 0; n++) {
    allocations_left = n;
    rc = lade_model_graph_create(&params, NULL, &graph);
    allocations_left = -1;
    assert_true(rc == 0 || (rc == -ENOMEM && !graph));
  }
  graph_check(graph); /* the last failures were refusals to shrink, which the caller does not see */
  lade_model_graph_destroy(graph);
}

/* ---- costs ---- */

static void executed_matmul_flops_are_the_formulas(void **state)
{
  struct lade_model model = preset_get("gpt2-124m");
  int64_t batch = 2, seq_len = 256;
  struct lade_model_graph *graph = graph_make(&model, LADE_BF16, batch, seq_len, 0);
  double products = 0, attention = 0, head = 0;
  for (int i = 0; i < graph->n_ops; i++) {
    enum lade_op_kind kind = graph->ops[i].kind;
    double flops = graph->ops[i].flops;
    products += kind == LADE_OP_MATMUL || kind == LADE_OP_MATMUL_DX || kind == LADE_OP_MATMUL_DW ? flops : 0;
    attention += kind == LADE_OP_ATTENTION || kind == LADE_OP_ATTENTION_BWD ? flops : 0;
    head += kind == LADE_OP_HEAD_LOSS || kind == LADE_OP_HEAD_LOSS_BWD ? flops : 0;
  }
  double n = (double)(batch * seq_len), d = 768;
  assert_true(products == 6 * n * 12 * 12 * d * d);
  assert_true(head == 6 * n * 50257 * d); /* forward, dx, d_weight */
  assert_int_equal(graph->n_lean_ops, 2); /* without the logits: they are made again */
  const struct lade_op *lean = &graph->ops[graph->n_ops];
  assert_true(lean[0].flops + lean[1].flops == 8 * n * 50257 * d);
  assert_true(lean[0].out[3] < 0 && lean[1].in[5] < 0);
  assert_true(attention == 12 * 7 * n * (double)(seq_len + 1) * d);
  double necessary = 6 * (12 * 12 * d * d + 50257 * d) + 6 * 12 * d * (double)seq_len;
  assert_true(lade_model_flops_per_token(&model, seq_len) == necessary);
  lade_model_graph_destroy(graph);
}

/* Count the bytes that a block of `baby` keeps for its backward when everything is kept, in units of [N, d] values. */
static void saved_values_of_a_block_are_the_expected_ones(void **state)
{
  struct lade_model model = preset_get("baby");
  struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 16, 256, 0);
  uint64_t unit_bytes = 16 * 256 * 384 * 2, saved = 0;
  for (int i = 0; i < graph->n_tensors; i++) {
    const struct lade_tensor *tensor = &graph->tensors[i];
    if (tensor->kind != LADE_TENSOR_ACTIVATION || tensor->unit != 2 || tensor->dtype != LADE_BF16 ||
        tensor->producer >= graph->n_fwd_ops)
      continue;
    bool is_read = false;
    for (int j = graph->n_fwd_ops; j < graph->n_ops; j++)
      for (int k = 0; k < graph->ops[j].n_in; k++)
        is_read |= graph->ops[j].in[k] == i;
    saved += is_read ? tensor->bytes : 0;
  }
  assert_int_equal(saved, 16 * unit_bytes); /* h, qkv (3), out, x1, h2, fc (4), gelu (4), and the next block's x */
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shares_are_in_ssa_form_too),
      cmocka_unit_test(graphs_are_in_ssa_form_with_every_gradient_written),
      cmocka_unit_test(without_dropout_the_branch_shares_the_residual_gradient),
      cmocka_unit_test(a_tied_table_gets_the_heads_gradient_then_the_embeddings),
      cmocka_unit_test(checkpoint_names_are_those_transformers_saves),
      cmocka_unit_test(shapes_are_checked_before_anything_is_built),
      cmocka_unit_test(what_a_device_does_not_attend_over_is_refused),
      cmocka_unit_test(configs_of_both_families_give_the_published_models),
                                     cmocka_unit_test(configs_of_images_and_text_give_the_model_of_the_text),
      cmocka_unit_test(absurd_configs_are_refused_naming_the_field),
      cmocka_unit_test(every_size_field_is_checked),
      cmocka_unit_test(what_other_families_compute_is_refused_unless_it_is_off),
      cmocka_unit_test(files_that_are_no_configs_are_refused),
      cmocka_unit_test(damaged_configs_never_give_a_bad_model),
      cmocka_unit_test(every_failed_allocation_is_an_error_without_a_leak),
      cmocka_unit_test(executed_matmul_flops_are_the_formulas),
      cmocka_unit_test(saved_values_of_a_block_are_the_expected_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
