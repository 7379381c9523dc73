/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs and model descriptions: the structure that all later passes rely on (one producer, definition before use,
 * every gradient written), and checkpoint slices that cover every row. The values that ops compute are tested in
 * test_gradients, the presets in test_presets, and the reader of config.json in test_configs.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
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
                                     .fuses_gelu = true,
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
    if ((graph->ops[i].kind == LADE_OP_MATMUL_DX && !graph->ops[i].attr.is_dx_partial) ||
        graph->ops[i].kind == LADE_OP_MATMUL_GELU_BWD)
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

/* With more stages than layers the last stage has the head alone: no first keys are given to it. */
static void stages_without_layers_take_no_first_keys(void **state)
{
  static const struct {
    int pp, pp_rank;
    bool has_layers;
  } cases[] = {{2, 0, true}, {2, 1, true}, {3, 0, true}, {3, 1, true}, {3, 2, false}};
  struct lade_model model = preset_get("nano");
  struct lade_error error = {0};
  model.layers = 2;
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_kernels kernels;
    lade_kernels_init(&kernels, &(struct lade_cpu){0});
    const struct lade_model_graph_params params = {
        .struct_size = sizeof(params), .model = &model, .dtype = LADE_F32, .batch = 2, .seq_len = 8,
        .kernels = &kernels, .n_threads = 1, .has_documents = true,
        .share = {.pp = cases[i].pp, .pp_rank = cases[i].pp_rank}};
    struct lade_model_graph *graph;
    assert_int_equal(lade_model_graph_create(&params, &error, &graph), 0);
    int n_attends = 0;
    for (int op = 0; op < graph->n_fwd_ops; op++)
      n_attends += graph->ops[op].kind == LADE_OP_ATTENTION;
    assert_int_equal(n_attends > 0, cases[i].has_layers);
    assert_int_equal(graph->first_keys >= 0, cases[i].has_layers);
    lade_model_graph_destroy(graph);
  }
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

static void the_op_that_makes_dy_makes_the_gradient_of_its_bias(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 2, 16, 0);
  const struct lade_op *gelu = &graph->ops[op_find(graph, LADE_OP_MATMUL_GELU_BWD, 1)];
  int n_readers = 0;
  assert_true(gelu->out[1] >= 0 && gelu->workspace_bytes > 0);
  assert_int_equal(graph->tensors[gelu->out[1]].kind, LADE_TENSOR_GRAD);
  assert_int_equal(graph->tensors[gelu->out[1]].dims[0], model.hidden);
  for (int i = 0; i < graph->n_ops; i++)
    n_readers += graph->ops[i].kind == LADE_OP_BIAS_GRAD && graph->ops[i].in[0] == gelu->out[0];
  const struct lade_op *attention = &graph->ops[op_find(graph, LADE_OP_ATTENTION_BWD, 1)];
  assert_true(attention->out[2] >= 0);
  assert_int_equal(graph->tensors[attention->out[2]].dims[0], 3 * model.width);
  for (int i = 0; i < graph->n_ops; i++)
    n_readers += graph->ops[i].kind == LADE_OP_BIAS_GRAD && graph->ops[i].in[0] == attention->out[0];
  assert_int_equal(n_readers, 0);
  lade_model_graph_destroy(graph);
}

/*
 * The MLP's second bias: the backward of the residual before the MLP reads the gradient, and makes its column sums.
 * With dropout between, they are sums of another tensor, and an op of their own.
 */
static void the_residual_before_makes_the_gradient_of_the_next_bias(void **state)
{
  struct lade_model model = preset_get("nano");
  for (int has_dropout = 0; has_dropout < 2; has_dropout++) {
    struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 2, 16, has_dropout ? 0.1f : 0);
    const struct lade_op *residual = &graph->ops[op_find(graph, LADE_OP_RESIDUAL_BWD, 1)];
    const int last = op_find(graph, LADE_OP_MATMUL_GELU_BWD, 1); /* of the product whose bias it is */
    int n_sums = 0;
    for (int i = 0; i < graph->n_ops; i++)
      n_sums += graph->ops[i].kind == LADE_OP_BIAS_GRAD && graph->ops[i].unit == residual->unit;
    assert_int_equal(n_sums, has_dropout);
    assert_int_equal(residual->out[5] >= 0, !has_dropout);
    if (!has_dropout) {
      assert_int_equal(graph->tensors[residual->out[5]].kind, LADE_TENSOR_GRAD);
      assert_non_null(strstr(graph->tensors[residual->out[5]].name, "mlp.c_proj.bias"));
      assert_int_equal(residual->in[0], graph->ops[last].in[0]);
    }
    lade_model_graph_destroy(graph);
  }
}

/* The gradient of GELU's output is not a value: no op writes it, and none reads it. */
static void the_product_behind_gelu_makes_the_gradient_before_it(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 2, 16, 0);
  const struct lade_op *gelu = &graph->ops[op_find(graph, LADE_OP_GELU, 1)];
  const struct lade_op *fused = &graph->ops[op_find(graph, LADE_OP_MATMUL_GELU_BWD, 1)];
  assert_int_equal(op_find(graph, LADE_OP_GELU_BWD, 1), -1);
  assert_int_equal(fused->in[2], gelu->in[0]);
  assert_int_equal(graph->ops[fused->forward].in[0], gelu->out[0]);
  for (int i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == LADE_OP_MATMUL_DX)
      assert_int_not_equal(graph->ops[i].forward, fused->forward);
  lade_model_graph_destroy(graph);
}

/* Return the graph of @model with GELU in its product, on stage @stage of two, or whole (-1). */
static struct lade_model_graph *fused_make(const struct lade_model *model, bool is_fused, bool fuses_gelu, int stage)
{
  struct lade_kernels kernels;
  struct lade_model_graph *graph;
  lade_kernels_init(&kernels, &(struct lade_cpu){0});
  const struct lade_model_graph_params params = {
      .struct_size = sizeof(params), .model = model, .dtype = LADE_BF16, .batch = 2, .seq_len = 16, .dropout = 0.1f,
      .kernels = &kernels, .n_threads = 2, .fuses_gelu = fuses_gelu, .fuses_gelu_fwd = is_fused,
      .share = {.pp = stage < 0 ? 1 : 2, .pp_rank = LADE_MAX(stage, 0)}};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  return graph;
}

/*
 * GELU in its product is one op with two outputs, and no op makes one of them alone. Backward reads both, and is that
 * of GELU of the first, by the product behind it or in place.
 */
static void gelu_in_its_product_is_one_op(void **state)
{
  struct lade_model model = preset_get("nano");
  for (int fuses_gelu = 0; fuses_gelu < 2; fuses_gelu++) {
    struct lade_model_graph *graph = fused_make(&model, true, fuses_gelu, -1);
    const struct lade_op *fused = &graph->ops[op_find(graph, LADE_OP_MATMUL_GELU, 1)];
    const enum lade_op_kind kind = fuses_gelu ? LADE_OP_MATMUL_GELU_BWD : LADE_OP_GELU_BWD;
    const struct lade_op *backward = &graph->ops[op_find(graph, kind, 1)];
    int n_sums = 0;
    assert_int_equal(op_find(graph, LADE_OP_GELU, 1), -1);
    assert_int_equal(graph->tensors[fused->out[0]].bytes, graph->tensors[fused->out[1]].bytes);
    assert_true(fused->alias[0] < 0 && fused->alias[1] < 0 && fused->workspace_bytes > 0);
    assert_true(fused->flops == 2.0 * 2 * 16 * (double)(model.width * model.hidden));
    assert_int_equal(backward->in[fuses_gelu ? 2 : 0], fused->out[0]);
    assert_true(backward->out[1] >= 0); /* the bias's gradient */
    for (int i = graph->n_fwd_ops; i < graph->n_ops; i++)
      n_sums += graph->ops[i].kind == LADE_OP_MATMUL_DW && graph->ops[i].in[1] == fused->out[1] &&
                graph->ops[i].unit == fused->unit;
    assert_int_equal(n_sums, 1);
    order_check(graph);
    names_check(graph);
    lade_model_graph_destroy(graph);
  }
}

/* Collect the streams of @graph's forward ops that draw, from place @n on. Return the new number. */
static int streams_collect(const struct lade_model_graph *graph, uint32_t streams[64], int n)
{
  for (int i = 0; i < graph->n_fwd_ops; i++)
    if (graph->ops[i].attr.dropout > 0) {
      assert_true(n < 64);
      streams[n++] = graph->ops[i].attr.stream;
    }
  return n;
}

/* Dropout draws the same numbers with and without the fusion, in any stage, so that nothing but GELU's bits differ. */
static void gelu_in_its_product_leaves_every_draw(void **state)
{
  struct lade_model model = preset_get("nano");
  uint32_t streams[3][64] = {0};
  int n[3] = {0};
  for (int form = 0; form < 3; form++)
    for (int stage = 0; stage < (form == 2 ? 2 : 1); stage++) {
      struct lade_model_graph *graph = fused_make(&model, form > 0, true, form == 2 ? stage : -1);
      n[form] = streams_collect(graph, streams[form], n[form]);
      lade_model_graph_destroy(graph);
    }
  assert_true(n[0] > 0 && n[1] == n[0] && n[2] == n[0]);
  assert_memory_equal(streams[1], streams[0], sizeof(streams[0]));
  assert_memory_equal(streams[2], streams[0], sizeof(streams[0]));
}

/* Neither SwiGLU, nor GELU with a gate, nor GELU by the error function is a product with GELU's tanh form behind it. */
static void models_without_gelu_have_no_fusion(void **state)
{
  struct lade_model models[] = {preset_get("llama2-7b"), preset_get("gemma-2b"), preset_get("nano")};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &(struct lade_cpu){0});
  models[2].activation = LADE_GELU_ERF;
  for (size_t i = 0; i < LADE_COUNT(models); i++) {
    const struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &models[i],
                                                   .dtype = LADE_BF16, .batch = 1, .seq_len = 16, .kernels = &kernels,
                                                   .n_threads = 1, .fuses_gelu_fwd = true};
    struct lade_model_graph *graph = NULL;
    struct lade_error error = {0};
    assert_int_equal(lade_model_graph_create(&params, &error, &graph), -EINVAL);
    assert_null(graph);
    assert_non_null(strstr(error.text, "--gelu-fusion"));
  }
}

/* Elsewhere GELU's backward works in place on the gradient, and makes its bias's too. */
static void without_an_epilogue_the_backward_of_gelu_is_in_place(void **state)
{
  struct lade_model model = preset_get("nano");
  struct lade_kernels kernels;
  struct lade_model_graph *graph;
  lade_kernels_init(&kernels, &(struct lade_cpu){0});
  const struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_BF16,
                                                 .batch = 2, .seq_len = 16, .kernels = &kernels, .n_threads = 2};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  assert_int_equal(op_find(graph, LADE_OP_MATMUL_GELU_BWD, 1), -1);
  const struct lade_op *gelu = &graph->ops[op_find(graph, LADE_OP_GELU_BWD, 1)];
  const struct lade_op *product = &graph->ops[graph->tensors[gelu->in[1]].producer];
  assert_int_equal(product->kind, LADE_OP_MATMUL_DX);
  assert_int_equal(graph->tensors[gelu->in[1]].bytes, graph->tensors[gelu->out[0]].bytes);
  assert_true(gelu->alias[0] >= 0 && gelu->out[1] >= 0);
  order_check(graph);
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
static void shapes_past_a_devices_attention_are_refused(void **state)
{
  const struct lade_model model = preset_get("nano");
  const int64_t head_dim = lade_model_head_dim(&model);
  const struct {
    struct lade_attention_max max;
    const char *names[3];
  } cases[] = {{{.head_dim = head_dim - 1}, {"heads"}}, {{.seq_len = 63}, {"sequence length 64", "63"}},
               {{.batch = 2}, {"micro-batch 3", "2"}}, {{head_dim, 64, 3}, {NULL}}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_cpu cpu = {0};
    struct lade_kernels kernels;
    struct lade_model_graph *graph = NULL;
    struct lade_error error = {0};
    lade_kernels_init(&kernels, &cpu);
    kernels.attention_max = cases[i].max;
    const struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_F32,
                                             .batch = 3, .seq_len = 64, .kernels = &kernels, .n_threads = 1};
    int rc = lade_model_graph_create(&params, &error, &graph);
    assert_int_equal(rc, cases[i].names[0] ? -EINVAL : 0);
    names_verify(error.text, cases[i].names, __FILE__, __LINE__);
    lade_model_graph_destroy(graph);
  }
}

/* ---- memory runs out ---- */

static void every_failed_allocation_is_an_error_without_a_leak(void **state)
{
  int rc, n;
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
    const bool is_dx = kind == LADE_OP_MATMUL_DX || kind == LADE_OP_MATMUL_GELU_BWD;
    products += kind == LADE_OP_MATMUL || is_dx || kind == LADE_OP_MATMUL_DW ? flops : 0;
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

/* Residency files and reports name values, so a value after a branch is named for the branch. */
static void values_after_a_branch_are_named_for_it(void **state)
{
  static const struct {
    const char *preset, *names[2];
  } cases[] = {{"gemma2-2b", {"h.0.attn.post_norm", "h.0.mlp.post_norm"}},
               {"granite3-2b", {"h.0.attn.scale", "h.0.mlp.scale"}}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_model model;
    assert_int_equal(lade_model_preset(cases[i].preset, &model, NULL), 0);
    model.layers = 1;
    struct lade_model_graph *graph = graph_make(&model, LADE_BF16, 1, 16, 0);
    for (size_t k = 0; k < LADE_COUNT(cases[i].names); k++) {
      int n_found = 0;
      for (int t = 0; t < graph->n_tensors; t++)
        n_found += strcmp(graph->tensors[t].name, cases[i].names[k]) == 0;
      assert_int_equal(n_found, 1);
    }
    lade_model_graph_destroy(graph);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shares_are_in_ssa_form_too),
      cmocka_unit_test(graphs_are_in_ssa_form_with_every_gradient_written),
      cmocka_unit_test(stages_without_layers_take_no_first_keys),
      cmocka_unit_test(without_dropout_the_branch_shares_the_residual_gradient),
      cmocka_unit_test(the_op_that_makes_dy_makes_the_gradient_of_its_bias),
      cmocka_unit_test(the_residual_before_makes_the_gradient_of_the_next_bias),
      cmocka_unit_test(the_product_behind_gelu_makes_the_gradient_before_it),
      cmocka_unit_test(without_an_epilogue_the_backward_of_gelu_is_in_place),
      cmocka_unit_test(gelu_in_its_product_is_one_op),
      cmocka_unit_test(gelu_in_its_product_leaves_every_draw),
      cmocka_unit_test(models_without_gelu_have_no_fusion),
      cmocka_unit_test(a_tied_table_gets_the_heads_gradient_then_the_embeddings),
      cmocka_unit_test(checkpoint_names_are_those_transformers_saves),
      cmocka_unit_test(values_after_a_branch_are_named_for_it),
      cmocka_unit_test(shapes_are_checked_before_anything_is_built),
      cmocka_unit_test(shapes_past_a_devices_attention_are_refused),
      cmocka_unit_test(every_failed_allocation_is_an_error_without_a_leak),
      cmocka_unit_test(executed_matmul_flops_are_the_formulas),
      cmocka_unit_test(saved_values_of_a_block_are_the_expected_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
