/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-2 (Radford et al. 2019) as a graph: learned positions, pre-norm blocks with LayerNorm, fused qkv,
 * GELU MLP, biases everywhere, dropout after the embedding, on the attention probabilities and on both
 * branches. The output head is the token table when the model is tied.
 *
 * A branch's last product has no bias of its own: the fused residual op adds it, draws the dropout, adds
 * the residual and makes the next norm in one pass over the row. A block takes and gives the residual
 * stream alone (its first norm is its own), so that one tensor is all that crosses between units.
 *
 * Checkpoint names are those that GPT2LMHeadModel saves; its Conv1D weights are stored [in, out].
 * Initial values are GPT-2's: normal 0.02, the branches' last products scaled by 1/sqrt(2 layers).
 */
#include "graph/build.h"

#include <math.h>

#define INIT_STD 0.02f

static struct lade_op_attr attr_norm(const struct lade_build *build)
{
  return (struct lade_op_attr){.norm = LADE_NORM_LAYER, .eps = build->graph->model.norm_eps};
}

static int param_vector(struct lade_build *build, const char *name, int64_t n, enum lade_init init)
{
  int param = lade_build_param(build, name, n, 0, init, 0);
  lade_build_slice(build, param, n, false, "transformer.%s.%s", build->graph->units[build->unit].name, name);
  return param;
}

static int param_weight(struct lade_build *build, const char *name, int64_t n_out, int64_t n_in, float std)
{
  int param = lade_build_param(build, name, n_out, n_in, LADE_INIT_NORMAL, std);
  lade_build_slice(build, param, n_out, true, "transformer.%s.%s", build->graph->units[build->unit].name, name);
  return param;
}

/* The token table; every other unit's x comes out of ret_x. */
static int embed_build(struct lade_build *build, int *ret_x)
{
  const struct lade_model *model = &build->graph->model;
  lade_build_unit(build, LADE_CLASS_EMBED, "embed");
  int wte = lade_build_param(build, "wte.weight", model->vocabulary, model->width, LADE_INIT_NORMAL, INIT_STD);
  lade_build_slice(build, wte, model->vocabulary, false, "transformer.wte.weight");
  int wpe = lade_build_param(build, "wpe.weight", model->context, model->width, LADE_INIT_NORMAL, INIT_STD);
  lade_build_slice(build, wpe, model->context, false, "transformer.wpe.weight");
  int in[] = {build->graph->tokens, wte, wpe};
  *ret_x = lade_build_out(build, lade_build_op(build, LADE_OP_EMBED, "x", NULL, in), 0);
  if (build->dropout > 0) {
    struct lade_op_attr attr = {.dropout = build->dropout};
    *ret_x = lade_build_out(build, lade_build_op(build, LADE_OP_DROPOUT, "dropout", &attr, ret_x), 0);
  }
  return wte;
}

/* x -> the attention branch before its bias. */
static int attention_build(struct lade_build *build, int x, float branch_std)
{
  const struct lade_model *model = &build->graph->model;
  int64_t d = model->width;
  struct lade_op_attr norm = attr_norm(build);
  int ln_weight = param_vector(build, "ln_1.weight", d, LADE_INIT_ONE);
  int ln_bias = param_vector(build, "ln_1.bias", d, LADE_INIT_ZERO);
  int qkv_weight = param_weight(build, "attn.c_attn.weight", 3 * d, d, INIT_STD);
  int qkv_bias = param_vector(build, "attn.c_attn.bias", 3 * d, LADE_INIT_ZERO);
  int proj_weight = param_weight(build, "attn.c_proj.weight", d, d, branch_std);

  int h = lade_build_op(build, LADE_OP_NORM, "ln_1", &norm, (int[]){x, ln_weight, ln_bias});
  int qkv = lade_build_op(build, LADE_OP_MATMUL, "attn.qkv", NULL,
                          (int[]){lade_build_out(build, h, 0), qkv_weight, qkv_bias});
  struct lade_op_attr attr = {
      .dropout = build->dropout, .heads = model->heads, .key_heads = model->key_heads, .head_dim = d / model->heads};
  int out = lade_build_op(build, LADE_OP_ATTENTION, "attn.out", &attr, (int[]){lade_build_out(build, qkv, 0)});
  int proj = lade_build_op(build, LADE_OP_MATMUL, "attn.proj", NULL,
                           (int[]){lade_build_out(build, out, 0), proj_weight, -1});
  return lade_build_out(build, proj, 0);
}

/* h (after ln_2) -> the MLP branch before its bias. */
static int mlp_build(struct lade_build *build, int h, float branch_std)
{
  const struct lade_model *model = &build->graph->model;
  int fc_weight = param_weight(build, "mlp.c_fc.weight", model->hidden, model->width, INIT_STD);
  int fc_bias = param_vector(build, "mlp.c_fc.bias", model->hidden, LADE_INIT_ZERO);
  int proj_weight = param_weight(build, "mlp.c_proj.weight", model->width, model->hidden, branch_std);

  int fc = lade_build_op(build, LADE_OP_MATMUL, "mlp.fc", NULL, (int[]){h, fc_weight, fc_bias});
  int gelu = lade_build_op(build, LADE_OP_GELU, "mlp.gelu", NULL, (int[]){lade_build_out(build, fc, 0)});
  int proj = lade_build_op(build, LADE_OP_MATMUL, "mlp.proj", NULL,
                           (int[]){lade_build_out(build, gelu, 0), proj_weight, -1});
  return lade_build_out(build, proj, 0);
}

static int block_build(struct lade_build *build, int64_t i_layer, int x)
{
  const struct lade_model *model = &build->graph->model;
  float branch_std = INIT_STD / sqrtf(2.0f * (float)model->layers);
  lade_build_unit(build, LADE_CLASS_BLOCK, "h.%lld", (long long)i_layer);
  int branch = attention_build(build, x, branch_std);
  int attn_bias = param_vector(build, "attn.c_proj.bias", model->width, LADE_INIT_ZERO);
  int ln_weight = param_vector(build, "ln_2.weight", model->width, LADE_INIT_ONE);
  int ln_bias = param_vector(build, "ln_2.bias", model->width, LADE_INIT_ZERO);
  struct lade_op_attr attr = attr_norm(build);
  attr.dropout = build->dropout;
  int x1 = lade_build_op(build, LADE_OP_RESIDUAL, "x1", &attr, (int[]){branch, attn_bias, x, ln_weight, ln_bias});

  branch = mlp_build(build, lade_build_out(build, x1, 1), branch_std);
  int mlp_bias = param_vector(build, "mlp.c_proj.bias", model->width, LADE_INIT_ZERO);
  attr = (struct lade_op_attr){.norm = LADE_NORM_NONE, .dropout = build->dropout};
  int x2 = lade_build_op(build, LADE_OP_RESIDUAL, "x2", &attr,
                         (int[]){branch, mlp_bias, lade_build_out(build, x1, 0), -1, -1});
  return lade_build_out(build, x2, 0);
}

static void head_build(struct lade_build *build, int x, int wte)
{
  const struct lade_model *model = &build->graph->model;
  lade_build_unit(build, LADE_CLASS_HEAD, "head");
  int ln_weight = lade_build_param(build, "ln_f.weight", model->width, 0, LADE_INIT_ONE, 0);
  lade_build_slice(build, ln_weight, model->width, false, "transformer.ln_f.weight");
  int ln_bias = lade_build_param(build, "ln_f.bias", model->width, 0, LADE_INIT_ZERO, 0);
  lade_build_slice(build, ln_bias, model->width, false, "transformer.ln_f.bias");
  int weight = wte;
  if (model->is_tied && wte < 0) {
    weight = lade_build_copy(build, "wte.weight", INIT_STD);
    lade_build_slice(build, weight, model->vocabulary, false, "transformer.wte.weight");
  } else if (!model->is_tied) {
    weight = lade_build_param(build, "lm_head.weight", model->vocabulary, model->width, LADE_INIT_NORMAL, INIT_STD);
    lade_build_slice(build, weight, model->vocabulary, false, "lm_head.weight");
  }
  struct lade_op_attr norm = attr_norm(build);
  int h = lade_build_op(build, LADE_OP_NORM, "ln_f", &norm, (int[]){x, ln_weight, ln_bias});
  int loss = lade_build_op(build, LADE_OP_HEAD_LOSS, "loss", NULL,
                           (int[]){lade_build_out(build, h, 0), weight, build->graph->targets});
  build->graph->loss = lade_build_out(build, loss, 2);
}

const struct lade_family_entry lade_gpt2_entry = {.embed = embed_build,
                                                 .block = block_build,
                                                 .head = head_build,
                                                 .n_embed_params = 2,
                                                 .n_embed_ops = 1,
                                                 .n_block_params = 12,
                                                 .n_block_ops = 9};
