/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-2 (Radford et al. 2019) as a graph: learned positions, pre-norm blocks with LayerNorm, fused qkv, GELU MLP,
 * biases everywhere, dropout after the embedding, on the attention probabilities and on both branches. The output head
 * is the token table if the model is tied.
 *
 * A branch's last product has no bias op of its own. The fused residual op adds the bias, draws the dropout, adds the
 * residual and makes the next norm in one pass over the row. A block takes and returns only the residual stream (its
 * first norm is its own), so only one tensor crosses between units.
 *
 * Checkpoint names are those that GPT2LMHeadModel saves; its Conv1D weights are stored [in, out]. Initial values are
 * GPT-2's: normal 0.02, the branches' last products scaled by 1/sqrt(2 layers).
 */
#include "graph/build.h"

#include <math.h>
#include <stdio.h>

#include "base/base.h"

#define INIT_STD 0.02f

static struct lade_op_attr attr_norm(const struct lade_build *build)
{
  return (struct lade_op_attr){.norm = LADE_NORM_LAYER, .eps = build->graph->model.norm_eps};
}

static const char *unit_name(const struct lade_build *build)
{
  return build->graph->units[build->unit].name;
}

/* Add a vector over the width of the model, whole on every rank, stored as "transformer.", @unit, @name. */
static int param_width(struct lade_build *build, const char *unit, const char *name, enum lade_init init)
{
  int64_t d = build->graph->model.width;
  struct lade_param_slice slice = lade_slice_whole(d, 1);
  int param = lade_build_param(build, name, d, 0, init, 0);
  lade_build_slice(build, param, &slice, "transformer.%s%s", unit, name);
  lade_build_replica(build, param, false);
  return param;
}

/* Add the weight, or with @n_in 0 the bias, of a product that is cut by its outputs. */
static int param_rows(struct lade_build *build, const char *name, int64_t n_out, int64_t n_in)
{
  struct lade_param_slice slice = lade_slice_rows(build->graph, n_out, LADE_MAX(n_in, 1));
  slice.is_transposed = n_in > 0;
  int param = lade_build_param(build, name, slice.n_rows, n_in, n_in ? LADE_INIT_NORMAL : LADE_INIT_ZERO, INIT_STD);
  lade_build_slice(build, param, &slice, "transformer.%s.%s", unit_name(build), name);
  return param;
}

/* Add the weight of a product that is cut by its inputs. */
static int param_cols(struct lade_build *build, const char *name, int64_t n_out, int64_t n_in, float std)
{
  struct lade_param_slice slice = lade_slice_cols(build->graph, n_out, n_in);
  slice.is_transposed = true;
  int param = lade_build_param(build, name, n_out, n_in / build->graph->share.tp, LADE_INIT_NORMAL, std);
  lade_build_slice(build, param, &slice, "transformer.%s.%s", unit_name(build), name);
  return param;
}

/*
 * Add the weight or bias of qkv. Rows of queries, keys and values lie in one tensor, one kind after the other, so the
 * heads of one of several ranks are three slices of it.
 */
static int param_qkv(struct lade_build *build, const char *name, int64_t n_in)
{
  const struct lade_share *share = &build->graph->share;
  int64_t d = build->graph->model.width, n_rows = 3 * d / share->tp;
  int n_slices = share->tp == 1 ? 1 : 3;
  int param = lade_build_param(build, name, n_rows, n_in, n_in ? LADE_INIT_NORMAL : LADE_INIT_ZERO, INIT_STD);
  struct lade_param_slice slice = lade_slice_whole(3 * d, LADE_MAX(n_in, 1));
  slice.is_transposed = n_in > 0;
  slice.n_rows = n_rows / n_slices;
  for (int i = 0; i < n_slices; i++) {
    slice.file_row = i * d + share->tp_rank * slice.n_rows;
    lade_build_slice(build, param, &slice, "transformer.%s.%s", unit_name(build), name);
  }
  return param;
}

/* Build the embedding unit: the first block's x in *ret_x. Return the token table. */
static int embed_build(struct lade_build *build, int *ret_x)
{
  const struct lade_model *model = &build->graph->model;
  lade_build_unit(build, LADE_CLASS_EMBED, "embed");
  int wte = lade_build_table(build, "wte.weight", "transformer.wte.weight", INIT_STD);
  struct lade_param_slice slice = lade_slice_whole(model->context, model->width);
  int wpe = lade_build_param(build, "wpe.weight", model->context, model->width, LADE_INIT_NORMAL, INIT_STD);
  lade_build_slice(build, wpe, &slice, "transformer.wpe.weight");
  lade_build_replica(build, wpe, true);
  int x = lade_build_leave(build, "x.reduce", lade_build_embed(build, wte, wpe));
  if (build->dropout > 0) {
    struct lade_op_attr attr = {.dropout = build->dropout};
    x = lade_build_out(build, lade_build_op(build, LADE_OP_DROPOUT, "dropout", &attr, &x), 0);
  }
  *ret_x = x;
  return wte;
}

/* Build the attention branch of x, before its bias. */
static int attention_build(struct lade_build *build, const char *unit, int64_t i_layer, int x, float branch_std)
{
  int64_t d = build->graph->model.width;
  struct lade_sharded_width kind = {d, d / build->graph->share.tp};
  struct lade_op_attr column = lade_attr_column(build, 3, (struct lade_sharded_width[]){kind, kind, kind});
  struct lade_op_attr norm = attr_norm(build), row = lade_attr_row(build, d);
  int ln_weight = param_width(build, unit, "ln_1.weight", LADE_INIT_ONE);
  int ln_bias = param_width(build, unit, "ln_1.bias", LADE_INIT_ZERO);
  int qkv_weight = param_qkv(build, "attn.c_attn.weight", d);
  int qkv_bias = param_qkv(build, "attn.c_attn.bias", 0);
  int proj_weight = param_cols(build, "attn.c_proj.weight", d, d, branch_std);

  int h = lade_build_out(build, lade_build_op(build, LADE_OP_NORM, "ln_1", &norm, (int[]){x, ln_weight, ln_bias}), 0);
  h = lade_build_enter(build, "attn.gather", h);
  int qkv = lade_build_op(build, LADE_OP_MATMUL, "attn.qkv", &column, (int[]){h, qkv_weight, qkv_bias});
  int out = lade_build_attention(build, "attn.out", i_layer, lade_build_out(build, qkv, 0), -1);
  int proj = lade_build_op(build, LADE_OP_MATMUL, "attn.proj", &row, (int[]){out, proj_weight, -1});
  return lade_build_leave(build, "attn.reduce", lade_build_out(build, proj, 0));
}

/* Build the MLP branch of h (after ln_2), before its bias. */
static int mlp_build(struct lade_build *build, int h, float branch_std)
{
  const struct lade_model *model = &build->graph->model;
  struct lade_sharded_width hidden = {model->hidden, model->hidden / build->graph->share.tp};
  struct lade_op_attr column = lade_attr_column(build, 1, &hidden), row = lade_attr_row(build, model->hidden);
  int fc_weight = param_rows(build, "mlp.c_fc.weight", model->hidden, model->width);
  int fc_bias = param_rows(build, "mlp.c_fc.bias", model->hidden, 0);
  int proj_weight = param_cols(build, "mlp.c_proj.weight", model->width, model->hidden, branch_std);

  h = lade_build_enter(build, "mlp.gather", h);
  int fc = lade_build_op(build, LADE_OP_MATMUL, "mlp.fc", &column, (int[]){h, fc_weight, fc_bias});
  int gelu = lade_build_op(build, LADE_OP_GELU, "mlp.gelu", NULL, (int[]){lade_build_out(build, fc, 0)});
  int proj = lade_build_op(build, LADE_OP_MATMUL, "mlp.proj", &row,
                           (int[]){lade_build_out(build, gelu, 0), proj_weight, -1});
  return lade_build_leave(build, "mlp.reduce", lade_build_out(build, proj, 0));
}

static int block_build(struct lade_build *build, int64_t i_layer, int x)
{
  float branch_std = INIT_STD / sqrtf(2.0f * (float)build->graph->model.layers);
  char unit[LADE_NAME_BYTES];
  snprintf(unit, sizeof(unit), "h.%lld.", (long long)i_layer);
  lade_build_unit(build, lade_layer_class(build->graph, i_layer), "h.%lld", (long long)i_layer);
  int branch = attention_build(build, unit, i_layer, x, branch_std);
  int attn_bias = param_width(build, unit, "attn.c_proj.bias", LADE_INIT_ZERO);
  int ln_weight = param_width(build, unit, "ln_2.weight", LADE_INIT_ONE);
  int ln_bias = param_width(build, unit, "ln_2.bias", LADE_INIT_ZERO);
  struct lade_op_attr attr = attr_norm(build);
  attr.dropout = build->dropout;
  int x1 = lade_build_op(build, LADE_OP_RESIDUAL, "x1", &attr, (int[]){branch, attn_bias, x, ln_weight, ln_bias});

  branch = mlp_build(build, lade_build_out(build, x1, 1), branch_std);
  int mlp_bias = param_width(build, unit, "mlp.c_proj.bias", LADE_INIT_ZERO);
  attr = (struct lade_op_attr){.norm = LADE_NORM_NONE, .dropout = build->dropout};
  int x2 = lade_build_op(build, LADE_OP_RESIDUAL, "x2", &attr,
                         (int[]){branch, mlp_bias, lade_build_out(build, x1, 0), -1, -1});
  return lade_build_out(build, x2, 0);
}

/* Return the head's weight: the table, a copy of it, or a table of its own. */
static int head_weight(struct lade_build *build, int wte)
{
  if (!build->graph->model.is_tied)
    return lade_build_table(build, "lm_head.weight", "lm_head.weight", INIT_STD);
  if (wte >= 0)
    return wte;
  int copy = lade_build_table(build, "wte.weight", "transformer.wte.weight", INIT_STD);
  lade_build_table_tie(build, copy, true);
  return copy;
}

static void head_build(struct lade_build *build, int x, int wte)
{
  lade_build_unit(build, LADE_CLASS_HEAD, "head");
  int ln_weight = param_width(build, "", "ln_f.weight", LADE_INIT_ONE);
  int ln_bias = param_width(build, "", "ln_f.bias", LADE_INIT_ZERO);
  int weight = head_weight(build, wte);
  struct lade_op_attr norm = attr_norm(build);
  int h = lade_build_op(build, LADE_OP_NORM, "ln_f", &norm, (int[]){x, ln_weight, ln_bias});
  build->graph->loss = lade_build_head_loss(build, lade_build_out(build, h, 0), weight);
}

const struct lade_family_entry lade_gpt2_entry = {.embed = embed_build,
                                                 .block = block_build,
                                                 .head = head_build,
                                                 .n_embed_params = 2,
                                                 .n_embed_ops = 1,
                                                 .n_block_params = 12,
                                                 .n_block_ops = 9};
