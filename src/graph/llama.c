/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama (Touvron et al. 2023; Llama 3, 2024) as a graph: RMSNorm, rotary positions on queries and keys, grouped-query
 * attention, SwiGLU, no biases, and an untied head unless the model is tied. Optional dropout acts where GPT-2's does.
 *
 * Query, key and value projections are one parameter and one product, and so are gate and up: wider products read the
 * input less often. Their slices map rows to the tensors of a checkpoint; names are LlamaForCausalLM's. Rope is an op
 * of its own after the product, in place if the planner allows it. Its backward needs no saved value, so attention
 * keeps only the rotated qkv. Heads together may be wider or narrower than the model: the projections into and out of
 * them have their width.
 *
 * Initial values: normal 0.02, the branches' last products scaled by 1/sqrt(2 layers) as in GPT-2.
 */
#include "graph/build.h"

#include <math.h>
#include <stdio.h>

#define INIT_STD 0.02f

static struct lade_op_attr attr_norm(const struct lade_build *build)
{
  return (struct lade_op_attr){.norm = LADE_NORM_RMS, .eps = build->graph->model.norm_eps};
}

/* Add a norm's weight, whole on every rank; @i_layer -1: it belongs to no layer. */
static int param_norm(struct lade_build *build, const char *name, int64_t i_layer)
{
  int64_t d = build->graph->model.width;
  struct lade_param_slice slice = lade_slice_whole(d, 1);
  int param = lade_build_param(build, name, d, 0, LADE_INIT_ONE, 0);
  if (i_layer < 0)
    lade_build_slice(build, param, &slice, "model.%s", name);
  else
    lade_build_slice(build, param, &slice, "model.layers.%lld.%s", (long long)i_layer, name);
  lade_build_replica(build, param, false);
  return param;
}

/* Add the weight of a branch's last product, which is cut by its inputs. */
static int param_cols(struct lade_build *build, const char *name, int64_t i_layer, int64_t n_in, float std)
{
  int64_t d = build->graph->model.width;
  struct lade_param_slice slice = lade_slice_cols(build->graph, d, n_in);
  int param = lade_build_param(build, name, d, n_in / build->graph->share.tp, LADE_INIT_NORMAL, std);
  lade_build_slice(build, param, &slice, "model.layers.%lld.%s", (long long)i_layer, name);
  return param;
}

/* Build the embedding unit: the first block's x in *ret_x. Return the token table. */
static int embed_build(struct lade_build *build, int *ret_x)
{
  lade_build_unit(build, LADE_CLASS_EMBED, "embed");
  int table = lade_build_table(build, "tokens.weight", "model.embed_tokens.weight", INIT_STD);
  int x = lade_build_leave(build, "x.reduce", lade_build_embed(build, table, -1));
  if (build->dropout > 0) {
    struct lade_op_attr attr = {.dropout = build->dropout};
    x = lade_build_out(build, lade_build_op(build, LADE_OP_DROPOUT, "dropout", &attr, &x), 0);
  }
  *ret_x = x;
  return table;
}

static int qkv_param(struct lade_build *build, int64_t i_layer)
{
  const struct lade_model_graph *graph = build->graph;
  int64_t d = graph->model.width;
  struct lade_param_slice query = lade_slice_rows(graph, graph->model.heads * lade_model_head_dim(&graph->model), d);
  struct lade_param_slice key = lade_slice_key_rows(graph, d), value = key;
  key.base_row = query.file_rows;
  value.base_row = query.file_rows + key.file_rows;
  int param = lade_build_param(build, "self_attn.qkv_proj.weight", query.n_rows + 2 * key.n_rows, d, LADE_INIT_NORMAL,
                               INIT_STD);
  long long layer = i_layer;
  lade_build_slice(build, param, &query, "model.layers.%lld.self_attn.q_proj.weight", layer);
  lade_build_slice(build, param, &key, "model.layers.%lld.self_attn.k_proj.weight", layer);
  lade_build_slice(build, param, &value, "model.layers.%lld.self_attn.v_proj.weight", layer);
  lade_build_key_replica(build, param, query.n_rows);
  return param;
}

static int gate_up_param(struct lade_build *build, int64_t i_layer)
{
  const struct lade_model *model = &build->graph->model;
  struct lade_param_slice gate = lade_slice_rows(build->graph, model->hidden, model->width), up = gate;
  up.base_row = model->hidden;
  int param = lade_build_param(build, "mlp.gate_up_proj.weight", 2 * gate.n_rows, model->width, LADE_INIT_NORMAL,
                               INIT_STD);
  lade_build_slice(build, param, &gate, "model.layers.%lld.mlp.gate_proj.weight", (long long)i_layer);
  lade_build_slice(build, param, &up, "model.layers.%lld.mlp.up_proj.weight", (long long)i_layer);
  return param;
}

static int sinks_param(struct lade_build *build, int64_t i_layer)
{
  char file_name[LADE_NAME_BYTES];
  snprintf(file_name, sizeof(file_name), "model.layers.%lld.self_attn.sinks", (long long)i_layer);
  return lade_build_sinks(build, "self_attn.sinks", file_name, INIT_STD);
}

static struct lade_op_attr qkv_attr(const struct lade_build *build)
{
  const struct lade_model_graph *graph = build->graph;
  int64_t head_dim = lade_model_head_dim(&graph->model);
  struct lade_sharded_width query = {graph->model.heads * head_dim, lade_share_heads(graph) * head_dim};
  struct lade_sharded_width key = {graph->model.n_kv_heads * head_dim, lade_share_kv_heads(graph) * head_dim};
  return lade_attr_column(build, 3, (struct lade_sharded_width[]){query, key, key});
}

/* Build the attention branch of x. */
static int attention_build(struct lade_build *build, int64_t i_layer, int x, float branch_std)
{
  const struct lade_model *model = &build->graph->model;
  const int64_t head_dim = lade_model_head_dim(model);
  struct lade_op_attr norm = attr_norm(build), column = qkv_attr(build);
  struct lade_op_attr row = lade_attr_row(build, model->heads * head_dim);
  int norm_weight = param_norm(build, "input_layernorm.weight", i_layer);
  int qkv_weight = qkv_param(build, i_layer);
  int out_weight = param_cols(build, "self_attn.o_proj.weight", i_layer, model->heads * head_dim, branch_std);
  int sinks = sinks_param(build, i_layer);

  int h = lade_build_out(build, lade_build_op(build, LADE_OP_NORM, "input_norm", &norm, (int[]){x, norm_weight, -1}),
                         0);
  h = lade_build_enter(build, "attn.gather", h);
  int qkv = lade_build_op(build, LADE_OP_MATMUL, "attn.qkv", &column, (int[]){h, qkv_weight, -1});
  struct lade_op_attr attr = {.heads = lade_share_heads(build->graph),
                              .n_kv_heads = lade_share_kv_heads(build->graph), .head_dim = head_dim};
  int rope = lade_build_op(build, LADE_OP_ROPE, "attn.rope", &attr, (int[]){lade_build_out(build, qkv, 0)});
  int out = lade_build_attention(build, "attn.out", i_layer, lade_build_out(build, rope, 0), sinks);
  int proj = lade_build_op(build, LADE_OP_MATMUL, "attn.proj", &row, (int[]){out, out_weight, -1});
  return lade_build_leave(build, "attn.reduce", lade_build_out(build, proj, 0));
}

/* Build the MLP branch of h (after the second norm). */
static int mlp_build(struct lade_build *build, int64_t i_layer, int h, float branch_std)
{
  int64_t hidden = build->graph->model.hidden;
  struct lade_sharded_width half = {hidden, hidden / build->graph->share.tp};
  struct lade_op_attr column = lade_attr_column(build, 2, (struct lade_sharded_width[]){half, half});
  struct lade_op_attr row = lade_attr_row(build, hidden);
  int gate_up = gate_up_param(build, i_layer);
  int down = param_cols(build, "mlp.down_proj.weight", i_layer, hidden, branch_std);

  h = lade_build_enter(build, "mlp.gather", h);
  int wide = lade_build_op(build, LADE_OP_MATMUL, "mlp.gate_up", &column, (int[]){h, gate_up, -1});
  int swiglu = lade_build_op(build, LADE_OP_SWIGLU, "mlp.swiglu", NULL, (int[]){lade_build_out(build, wide, 0)});
  int proj = lade_build_op(build, LADE_OP_MATMUL, "mlp.down", &row,
                           (int[]){lade_build_out(build, swiglu, 0), down, -1});
  return lade_build_leave(build, "mlp.reduce", lade_build_out(build, proj, 0));
}

static int block_build(struct lade_build *build, int64_t i_layer, int x)
{
  float branch_std = INIT_STD / sqrtf(2.0f * (float)build->graph->model.layers);
  lade_build_unit(build, lade_layer_class(build->graph, i_layer), "h.%lld", (long long)i_layer);
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

/* Return the head's weight: the table, a copy of it, or a table of its own. */
static int head_weight(struct lade_build *build, int table)
{
  if (!build->graph->model.is_tied)
    return lade_build_table(build, "lm_head.weight", "lm_head.weight", INIT_STD);
  if (table >= 0)
    return table;
  int copy = lade_build_table(build, "tokens.weight", "model.embed_tokens.weight", INIT_STD);
  lade_build_table_tie(build, copy, true);
  return copy;
}

static void head_build(struct lade_build *build, int x, int table)
{
  lade_build_unit(build, LADE_CLASS_HEAD, "head");
  int norm_weight = param_norm(build, "norm.weight", -1);
  int weight = head_weight(build, table);
  struct lade_op_attr norm = attr_norm(build);
  int h = lade_build_op(build, LADE_OP_NORM, "norm", &norm, (int[]){x, norm_weight, -1});
  build->graph->loss = lade_build_head_loss(build, lade_build_out(build, h, 0), weight);
}

const struct lade_family_entry lade_llama_entry = {.embed = embed_build,
                                                  .block = block_build,
                                                  .head = head_build,
                                                  .n_embed_params = 1,
                                                  .n_embed_ops = 1,
                                                  .n_block_params = 6,
                                                  .n_block_ops = 10};
