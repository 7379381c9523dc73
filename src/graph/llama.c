/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama (Touvron et al. 2023; Llama 3, 2024) as a graph: RMSNorm, rotary positions on queries and keys,
 * grouped-query attention, SwiGLU, no biases, an untied head unless the model says otherwise. Dropout,
 * when asked for, acts where GPT-2's does.
 *
 * Query, key and value projections are one parameter and one product, so are gate and up: wider products,
 * fewer reads of the input. Their slices say which rows are which tensor of a checkpoint; names are
 * LlamaForCausalLM's. Rope is an op of its own after the product, in place where the planner lets it be:
 * its backward needs no saved value, so the rotated qkv is all that attention keeps. Heads together may be wider or
 * narrower than the model: the projections into and out of them have their width.
 *
 * Initial values: normal 0.02, the branches' last products scaled by 1/sqrt(2 layers) as in GPT-2.
 */
#include "graph/build.h"

#include <math.h>

#define INIT_STD 0.02f

static struct lade_op_attr attr_norm(const struct lade_build *build)
{
  return (struct lade_op_attr){.norm = LADE_NORM_RMS, .eps = build->graph->model.norm_eps};
}

static int param_norm(struct lade_build *build, const char *name, int64_t i_layer)
{
  int64_t d = build->graph->model.width;
  int param = lade_build_param(build, name, d, 0, LADE_INIT_ONE, 0);
  lade_build_slice(build, param, d, false, "model.layers.%lld.%s", (long long)i_layer, name);
  return param;
}

/* The token table; the first block's x comes out of ret_x. */
static int embed_build(struct lade_build *build, int *ret_x)
{
  const struct lade_model *model = &build->graph->model;
  lade_build_unit(build, LADE_CLASS_EMBED, "embed");
  int table = lade_build_param(build, "tokens.weight", model->vocabulary, model->width, LADE_INIT_NORMAL, INIT_STD);
  lade_build_slice(build, table, model->vocabulary, false, "model.embed_tokens.weight");
  int in[] = {build->graph->tokens, table, -1};
  *ret_x = lade_build_out(build, lade_build_op(build, LADE_OP_EMBED, "x", NULL, in), 0);
  if (build->dropout > 0) {
    struct lade_op_attr attr = {.dropout = build->dropout};
    *ret_x = lade_build_out(build, lade_build_op(build, LADE_OP_DROPOUT, "dropout", &attr, ret_x), 0);
  }
  return table;
}

static int qkv_param(struct lade_build *build, int64_t i_layer)
{
  const struct lade_model *model = &build->graph->model;
  int64_t rows = model->heads * lade_model_head_dim(model), key_rows = model->key_heads * lade_model_head_dim(model);
  int param = lade_build_param(build, "self_attn.qkv_proj.weight", rows + 2 * key_rows, model->width,
                               LADE_INIT_NORMAL, INIT_STD);
  long long layer = i_layer;
  lade_build_slice(build, param, rows, false, "model.layers.%lld.self_attn.q_proj.weight", layer);
  lade_build_slice(build, param, key_rows, false, "model.layers.%lld.self_attn.k_proj.weight", layer);
  lade_build_slice(build, param, key_rows, false, "model.layers.%lld.self_attn.v_proj.weight", layer);
  return param;
}

/* x -> the attention branch. */
static int attention_build(struct lade_build *build, int64_t i_layer, int x, float branch_std)
{
  const struct lade_model *model = &build->graph->model;
  struct lade_op_attr norm = attr_norm(build);
  int norm_weight = param_norm(build, "input_layernorm.weight", i_layer);
  int qkv_weight = qkv_param(build, i_layer);
  const int64_t head_dim = lade_model_head_dim(model);
  int out_weight = lade_build_param(build, "self_attn.o_proj.weight", model->width, model->heads * head_dim,
                                    LADE_INIT_NORMAL, branch_std);
  lade_build_slice(build, out_weight, model->width, false, "model.layers.%lld.self_attn.o_proj.weight",
                   (long long)i_layer);

  int h = lade_build_op(build, LADE_OP_NORM, "input_norm", &norm, (int[]){x, norm_weight, -1});
  int qkv = lade_build_op(build, LADE_OP_MATMUL, "attn.qkv", NULL,
                          (int[]){lade_build_out(build, h, 0), qkv_weight, -1});
  struct lade_op_attr attr = {.heads = model->heads, .key_heads = model->key_heads, .head_dim = head_dim};
  int rope = lade_build_op(build, LADE_OP_ROPE, "attn.rope", &attr, (int[]){lade_build_out(build, qkv, 0)});
  attr.dropout = build->dropout;
  int out = lade_build_op(build, LADE_OP_ATTENTION, "attn.out", &attr, (int[]){lade_build_out(build, rope, 0)});
  int proj = lade_build_op(build, LADE_OP_MATMUL, "attn.proj", NULL,
                           (int[]){lade_build_out(build, out, 0), out_weight, -1});
  return lade_build_out(build, proj, 0);
}

/* h (after the second norm) -> the MLP branch. */
static int mlp_build(struct lade_build *build, int64_t i_layer, int h, float branch_std)
{
  const struct lade_model *model = &build->graph->model;
  long long layer = i_layer;
  int gate_up = lade_build_param(build, "mlp.gate_up_proj.weight", 2 * model->hidden, model->width, LADE_INIT_NORMAL,
                                 INIT_STD);
  lade_build_slice(build, gate_up, model->hidden, false, "model.layers.%lld.mlp.gate_proj.weight", layer);
  lade_build_slice(build, gate_up, model->hidden, false, "model.layers.%lld.mlp.up_proj.weight", layer);
  int down = lade_build_param(build, "mlp.down_proj.weight", model->width, model->hidden, LADE_INIT_NORMAL,
                              branch_std);
  lade_build_slice(build, down, model->width, false, "model.layers.%lld.mlp.down_proj.weight", layer);

  int wide = lade_build_op(build, LADE_OP_MATMUL, "mlp.gate_up", NULL, (int[]){h, gate_up, -1});
  int swiglu = lade_build_op(build, LADE_OP_SWIGLU, "mlp.swiglu", NULL, (int[]){lade_build_out(build, wide, 0)});
  int proj = lade_build_op(build, LADE_OP_MATMUL, "mlp.down", NULL,
                           (int[]){lade_build_out(build, swiglu, 0), down, -1});
  return lade_build_out(build, proj, 0);
}

static int block_build(struct lade_build *build, int64_t i_layer, int x)
{
  float branch_std = INIT_STD / sqrtf(2.0f * (float)build->graph->model.layers);
  lade_build_unit(build, LADE_CLASS_BLOCK, "h.%lld", (long long)i_layer);
  int branch = attention_build(build, i_layer, x, branch_std);
  int norm_weight = param_norm(build, "post_attention_layernorm.weight", i_layer);
  struct lade_op_attr attr = attr_norm(build);
  attr.dropout = build->dropout;
  int x1 = lade_build_op(build, LADE_OP_RESIDUAL, "x1", &attr, (int[]){branch, -1, x, norm_weight, -1});

  branch = mlp_build(build, i_layer, lade_build_out(build, x1, 1), branch_std);
  attr = (struct lade_op_attr){.norm = LADE_NORM_NONE, .dropout = build->dropout};
  int x2 = lade_build_op(build, LADE_OP_RESIDUAL, "x2", &attr,
                         (int[]){branch, -1, lade_build_out(build, x1, 0), -1, -1});
  return lade_build_out(build, x2, 0);
}

static void head_build(struct lade_build *build, int x, int table)
{
  const struct lade_model *model = &build->graph->model;
  lade_build_unit(build, LADE_CLASS_HEAD, "head");
  int norm_weight = lade_build_param(build, "norm.weight", model->width, 0, LADE_INIT_ONE, 0);
  lade_build_slice(build, norm_weight, model->width, false, "model.norm.weight");
  int weight = table;
  if (model->is_tied && table < 0) {
    weight = lade_build_copy(build, "tokens.weight", INIT_STD);
    lade_build_slice(build, weight, model->vocabulary, false, "model.embed_tokens.weight");
  } else if (!model->is_tied) {
    weight = lade_build_param(build, "lm_head.weight", model->vocabulary, model->width, LADE_INIT_NORMAL, INIT_STD);
    lade_build_slice(build, weight, model->vocabulary, false, "lm_head.weight");
  }
  struct lade_op_attr norm = attr_norm(build);
  int h = lade_build_op(build, LADE_OP_NORM, "norm", &norm, (int[]){x, norm_weight, -1});
  int loss = lade_build_op(build, LADE_OP_HEAD_LOSS, "loss", NULL,
                           (int[]){lade_build_out(build, h, 0), weight, build->graph->targets});
  build->graph->loss = lade_build_out(build, loss, 2);
}

const struct lade_family_entry lade_llama_entry = {.embed = embed_build,
                                                  .block = block_build,
                                                  .head = head_build,
                                                  .n_embed_params = 1,
                                                  .n_embed_ops = 1,
                                                  .n_block_params = 6,
                                                  .n_block_ops = 10};
