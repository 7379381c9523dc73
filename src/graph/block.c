/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoder-only transformers as graphs: the embedding, blocks of attention and an MLP, the head with the loss. One
 * builder for all families: the family's row (family.c) and the model select the ops of a block.
 *
 * Query, key and value projections are one parameter and one product, and so are gate and up: wider products read the
 * input less often. Slices map their rows to the tensors of a checkpoint. Rope is an op of its own after the product,
 * in place if the planner allows it; its backward needs no saved value, so attention keeps only the rotated qkv.
 *
 * A branch's last product has no bias op of its own if a residual follows: the fused residual op adds the bias, draws
 * the dropout, adds the residual and makes the next norm in one pass over the row. If a norm follows (OLMo 2), or a
 * product with a constant (Granite), the product adds the bias. A block takes and returns only the residual stream (its
 * first norm is its own), so only one tensor crosses between units.
 *
 * Positions are a learned table, rotations of queries and keys, or ALiBi in the scores. Queries, keys and values may be
 * clamped after their product (MPT). The table may have a norm of its own (BLOOM).
 *
 * Parallel blocks (GPT-NeoX, Falcon) compute both branches from the block's input and add them afterwards, attention's
 * first. Each branch has a norm, or both read one.
 *
 * Optional dropout acts after the embedding, on the attention probabilities and on both branches, in every family.
 * Initial values: normal 0.02, the branches' last products scaled by 1/sqrt(2 layers), as in GPT-2; norms' weights 1,
 * or 0 where they are stored less one.
 */
#include "graph/build.h"

#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "graph/family.h"

#define INIT_STD 0.02f /* standard deviation of first weights, as in GPT-2 */

static const struct lade_family_row *row_get(const struct lade_build *build)
{
  return lade_family_get(build->graph->model.family);
}

static bool has_bias(const struct lade_build *build, enum lade_bias bias)
{
  return lade_model_has_bias(&build->graph->model, bias);
}

/* A tensor of a layer, or with i_layer -1 of none: its name in files. */
struct file_name {
  char text[96];
};

static struct file_name file_name(const struct lade_build *build, int64_t i_layer, const char *name, const char *end)
{
  const struct lade_family_row *row = row_get(build);
  struct file_name full;
  if (i_layer < 0)
    snprintf(full.text, sizeof(full.text), "%s%s%s", row->prefix, name, end);
  else
    snprintf(full.text, sizeof(full.text), "%s%s%lld.%s%s", row->prefix, row->layers, (long long)i_layer, name, end);
  return full;
}

static const char *end_get(bool is_bias)
{
  return is_bias ? ".bias" : ".weight";
}

/* Add a parameter "@name.weight", or "@name.bias", of a product, of this share's sizes; @n_in 0: one dimension. */
static int param_add(struct lade_build *build, const char *name, bool is_bias, int64_t n_out, int64_t n_in, float std)
{
  char full[LADE_NAME_BYTES];
  snprintf(full, sizeof(full), "%s%s", name, end_get(is_bias));
  return lade_build_param(build, full, n_out, n_in, is_bias ? LADE_INIT_ZERO : LADE_INIT_NORMAL, std);
}

static void slice_add(struct lade_build *build, int param, int64_t i_layer, const char *name, bool is_bias,
                      struct lade_param_slice slice)
{
  const struct file_name full = file_name(build, i_layer, name, end_get(is_bias));
  slice.is_transposed = row_get(build)->is_transposed && build->graph->tensors[param].n_dims == 2;
  lade_build_slice(build, param, &slice, "%s", full.text);
}

/* ---- parameters ---- */

struct norm {
  int weight, bias; /* -1: none */
};

/* Add the norm "@name" over the width of the model, whole on every rank. */
static struct norm norm_param(struct lade_build *build, int64_t i_layer, const char *name)
{
  const int64_t d = build->graph->model.width;
  const enum lade_init init = row_get(build)->norm_offset != 0 ? LADE_INIT_ZERO : LADE_INIT_ONE;
  struct norm norm = {-1, -1};
  char full[LADE_NAME_BYTES];
  snprintf(full, sizeof(full), "%s.weight", name);
  norm.weight = lade_build_param(build, full, d, 0, init, 0);
  slice_add(build, norm.weight, i_layer, name, false, lade_slice_whole(d, 1));
  lade_build_replica(build, norm.weight, false);
  if (!has_bias(build, LADE_BIAS_NORM))
    return norm;
  norm.bias = param_add(build, name, true, d, 0, 0);
  slice_add(build, norm.bias, i_layer, name, true, lade_slice_whole(d, 1));
  lade_build_replica(build, norm.bias, false);
  return norm;
}

/* Add the bias of a branch's last product, whole on every rank; -1 if the model has none. */
static int out_bias_param(struct lade_build *build, int64_t i_layer, const char *name, enum lade_bias bias,
                          bool is_in_product)
{
  const int64_t d = build->graph->model.width;
  if (!has_bias(build, bias))
    return -1;
  int param = param_add(build, name, true, d, 0, 0);
  slice_add(build, param, i_layer, name, true, lade_slice_whole(d, 1));
  lade_build_replica(build, param, is_in_product);
  return param;
}

/* Add the weight of a branch's last product, which is cut by its inputs. */
static int out_param(struct lade_build *build, int64_t i_layer, const char *name, int64_t n_in, float std)
{
  const int64_t d = build->graph->model.width;
  int param = param_add(build, name, false, d, n_in / build->graph->share.tp, std);
  slice_add(build, param, i_layer, name, false, lade_slice_cols(build->graph, d, n_in));
  return param;
}

/* The rows of queries, keys and values on this rank, of @n_in columns (1: of a bias). */
struct qkv_slices {
  struct lade_param_slice query, key, value;
};

static struct qkv_slices qkv_slices(const struct lade_build *build, int64_t n_in)
{
  const struct lade_model_graph *graph = build->graph;
  struct qkv_slices slices = {.query = lade_slice_rows(graph, graph->model.heads * lade_model_head_dim(&graph->model),
                                                       n_in)};
  slices.key = slices.value = lade_slice_key_rows(graph, n_in);
  slices.key.base_row = slices.query.file_rows;
  slices.value.base_row = slices.query.file_rows + slices.key.file_rows;
  return slices;
}

/* Make the slices those of one tensor of a file, which has queries, keys and values one kind after the other. */
static void slices_join(struct qkv_slices *slices)
{
  const int64_t n_rows = slices->query.file_rows + 2 * slices->key.file_rows;
  struct lade_param_slice *all[] = {&slices->query, &slices->key, &slices->value};
  for (size_t i = 0; i < LADE_COUNT(all); i++) {
    all[i]->file_row += all[i]->base_row;
    all[i]->base_row = 0;
  }
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    all[i]->file_rows = n_rows;
}

/* Make the slices those of one tensor of a file, which has the rows by KV head: its queries, its key, its value. */
static void slices_group(const struct lade_model *model, struct qkv_slices *slices)
{
  const int64_t head_dim = lade_model_head_dim(model), n_queries = model->heads / model->n_kv_heads * head_dim;
  const int64_t stride = n_queries + 2 * head_dim, first_group = slices->key.file_row / head_dim;
  const int64_t n_rows = stride * model->n_kv_heads;
  const int64_t firsts[] = {0, n_queries, n_queries + head_dim};
  struct lade_param_slice *all[] = {&slices->query, &slices->key, &slices->value};
  for (size_t i = 0; i < LADE_COUNT(all); i++) {
    const int64_t first = i == 0 ? slices->query.file_row % n_queries : 0; /* within the group */
    LADE_ASSERT(first == 0 || slices->query.n_rows <= n_queries - first);
    all[i]->run_rows = i == 0 ? LADE_MIN(n_queries, slices->query.n_rows) : head_dim;
    all[i]->run_stride = stride;
    all[i]->file_row = (i == 0 ? slices->query.file_row / n_queries : first_group) * stride + firsts[i] + first;
    all[i]->file_rows = n_rows;
    all[i]->base_row = 0;
  }
}

/* Add the weight, or with @n_in 0 the bias, of the product that makes queries, keys and values. */
static int qkv_param(struct lade_build *build, int64_t i_layer, int64_t n_in)
{
  const struct lade_family_row *row = row_get(build);
  const struct lade_model *model = &build->graph->model;
  const bool is_bias = n_in == 0;
  struct qkv_slices slices = qkv_slices(build, LADE_MAX(n_in, 1));
  const int64_t n_query_rows = slices.query.n_rows, n_rows = n_query_rows + 2 * slices.key.n_rows;
  int param = param_add(build, row->qkv, is_bias, n_rows, n_in, INIT_STD);
  if (row->query) {
    slice_add(build, param, i_layer, row->query, is_bias, slices.query);
    slice_add(build, param, i_layer, row->key, is_bias, slices.key);
    slice_add(build, param, i_layer, row->value, is_bias, slices.value);
  } else if (build->graph->share.tp == 1 && !row->is_qkv_by_group) {
    slice_add(build, param, i_layer, row->qkv, is_bias, lade_slice_whole(n_rows, LADE_MAX(n_in, 1)));
  } else {
    if (row->is_qkv_by_group)
      slices_group(model, &slices);
    else
      slices_join(&slices);
    slice_add(build, param, i_layer, row->qkv, is_bias, slices.query);
    slice_add(build, param, i_layer, row->qkv, is_bias, slices.key);
    slice_add(build, param, i_layer, row->qkv, is_bias, slices.value);
  }
  lade_build_key_replica(build, param, n_query_rows);
  return param;
}

/* Add the weight, or with @n_in 0 the bias, of the MLP's first product: gate and up, or one matrix. */
static int wide_param(struct lade_build *build, int64_t i_layer, int64_t n_in)
{
  const struct lade_family_row *row = row_get(build);
  const bool is_bias = n_in == 0;
  struct lade_param_slice gate = lade_slice_rows(build->graph, build->graph->model.hidden, LADE_MAX(n_in, 1));
  struct lade_param_slice up = gate;
  int param = param_add(build, row->wide, is_bias, gate.n_rows * (row->is_gated ? 2 : 1), n_in, INIT_STD);
  up.base_row = build->graph->model.hidden;
  if (row->is_gated && !row->gate) { /* one tensor of the file, gate first */
    gate.file_rows *= 2;
    up = gate;
    up.base_row = 0;
    up.file_row += build->graph->model.hidden;
  }
  slice_add(build, param, i_layer, row->gate ? row->gate : row->wide, is_bias, gate);
  if (row->is_gated)
    slice_add(build, param, i_layer, row->up ? row->up : row->wide, is_bias, up);
  return param;
}

/* Add the weights of a norm of queries or keys. */
static int qk_norm_param(struct lade_build *build, int64_t i_layer, const char *name, bool is_key)
{
  const struct lade_family_row *row = row_get(build);
  const struct lade_model_graph *graph = build->graph;
  const int64_t head_dim = lade_model_head_dim(&graph->model);
  struct lade_param_slice slice = lade_slice_whole(head_dim, 1);
  char full[LADE_NAME_BYTES];
  if (row->qk_norm == LADE_QK_NORM_WIDTH)
    slice = is_key ? lade_slice_key_rows(graph, 1) : lade_slice_rows(graph, graph->model.heads * head_dim, 1);
  snprintf(full, sizeof(full), "%s.weight", name);
  int param = lade_build_param(build, full, slice.n_rows, 0,
                               row->norm_offset != 0 ? LADE_INIT_ZERO : LADE_INIT_ONE, 0);
  slice_add(build, param, i_layer, name, false, slice);
  if (row->qk_norm == LADE_QK_NORM_HEAD)
    lade_build_head_replica(build, param);
  else if (is_key)
    lade_build_key_replica(build, param, 0);
  return param;
}

/* ---- ops ---- */

static struct lade_op_attr attr_norm(const struct lade_build *build)
{
  return (struct lade_op_attr){.norm = row_get(build)->norm, .eps = build->graph->model.norm_eps,
                               .weight_offset = row_get(build)->norm_offset};
}

static int norm_build(struct lade_build *build, const char *name, int x, struct norm norm)
{
  const struct lade_op_attr attr = attr_norm(build);
  return lade_build_out(build, lade_build_op(build, LADE_OP_NORM, name, &attr, (int[]){x, norm.weight, norm.bias}), 0);
}

static struct lade_op_attr qkv_attr(const struct lade_build *build)
{
  const struct lade_model_graph *graph = build->graph;
  int64_t head_dim = lade_model_head_dim(&graph->model);
  struct lade_sharded_width query = {graph->model.heads * head_dim, lade_share_heads(graph) * head_dim};
  struct lade_sharded_width key = {graph->model.n_kv_heads * head_dim, lade_share_kv_heads(graph) * head_dim};
  return lade_attr_column(build, 3, (struct lade_sharded_width[]){query, key, key});
}

static struct lade_op_attr heads_attr(const struct lade_build *build)
{
  return (struct lade_op_attr){.heads = lade_share_heads(build->graph),
                               .n_kv_heads = lade_share_kv_heads(build->graph),
                               .head_dim = lade_model_head_dim(&build->graph->model)};
}

/* Build the norms of queries and keys. Ranks that share a norm's heads add up its sums first. */
static int qk_norm_build(struct lade_build *build, int64_t i_layer, int qkv)
{
  const struct lade_family_row *row = row_get(build);
  struct lade_op_attr attr = heads_attr(build);
  if (!row->qk_norm)
    return qkv;
  attr.eps = build->graph->model.norm_eps;
  attr.weight_offset = row->norm_offset;
  attr.is_by_head = row->qk_norm == LADE_QK_NORM_HEAD;
  attr.axis = LADE_AXIS_TP;
  int query = qk_norm_param(build, i_layer, row->query_norm, false);
  int key = qk_norm_param(build, i_layer, row->key_norm, true), sums = -1;
  if (!attr.is_by_head && build->graph->share.tp > 1) {
    int op = lade_build_op(build, LADE_OP_QK_SUMS, "attn.qk_sums", &attr, &qkv);
    build->n_boundary_ops++; /* only shares have it */
    sums = lade_build_out(build, op, 0);
    sums = lade_build_out(build, lade_build_op(build, LADE_OP_ALL_REDUCE, "attn.qk_sums.reduce", &attr, &sums), 0);
  }
  int op = lade_build_op(build, LADE_OP_QK_NORM, "attn.qk_norm", &attr, (int[]){qkv, query, key, sums});
  return lade_build_out(build, op, 0);
}

/* Build attention over the heads that qkv has, up to its last product. */
static int heads_build(struct lade_build *build, int64_t i_layer, int qkv, int sinks)
{
  const struct lade_model *model = &build->graph->model;
  struct lade_op_attr attr = heads_attr(build);
  if (model->window > 0 && lade_layer_set_has(&model->windowed, i_layer))
    attr.rope_base = model->rope_local_base;
  if (model->qkv_clip > 0) {
    const struct lade_op_attr clip = {.activation = LADE_CLAMP, .limit = model->qkv_clip};
    qkv = lade_build_out(build, lade_build_op(build, LADE_OP_ACTIVATION, "attn.clip", &clip, &qkv), 0);
  }
  const bool is_rope_first = row_get(build)->is_rope_first;
  if (!is_rope_first)
    qkv = qk_norm_build(build, i_layer, qkv);
  if (lade_model_layer_has_rope(model, i_layer))
    qkv = lade_build_out(build, lade_build_op(build, LADE_OP_ROPE, "attn.rope", &attr, &qkv), 0);
  if (is_rope_first)
    qkv = qk_norm_build(build, i_layer, qkv);
  return lade_build_attention(build, "attn.out", i_layer, qkv, sinks);
}

static float branch_std(const struct lade_build *build)
{
  return INIT_STD / sqrtf(2.0f * (float)build->graph->model.layers);
}

/* True if a norm follows the branches' last products. */
static bool has_post_norms(const struct lade_build *build)
{
  return row_get(build)->place != LADE_NORMS_BEFORE;
}

/* A branch before its residual, and the bias that the residual adds; -1: none. */
struct branch {
  int x, bias;
};

/* Build the product of @x with a constant. */
static int scale_build(struct lade_build *build, const char *name, int x, float factor)
{
  const struct lade_op_attr attr = {.activation = LADE_SCALE, .limit = factor};
  return lade_build_out(build, lade_build_op(build, LADE_OP_SCALE, name, &attr, &x), 0);
}

/* The last product of a branch, and the names of the ops after it. */
struct branch_end {
  const char *prefix;       /* of the names of its ops: "attn", "mlp" */
  const char *product_name; /* "attn.proj", "mlp.down" */
  int x, weight;
  int64_t n_in;             /* columns of the weight */
  const char *param_name;   /* of the weight, for the bias's name */
  enum lade_bias bias_part;
  const char *post_norm;    /* name of the parameters of the norm after it, if the family has such norms */
};

/* Build a branch's last product, its sum over ranks, the norm after it, and the product with the residual's scale. */
static struct branch branch_finish(struct lade_build *build, int64_t i_layer, const struct branch_end *end)
{
  const float scale = build->graph->model.residual_scale;
  const bool is_in_product = has_post_norms(build) || scale > 0;
  struct lade_op_attr row = lade_attr_row(build, end->n_in);
  struct branch branch = {-1, -1};
  char name[LADE_NAME_BYTES];
  int bias = is_in_product ? out_bias_param(build, i_layer, end->param_name, end->bias_part, true) : -1;
  row.is_bias_shared = is_in_product;
  int product = lade_build_op(build, LADE_OP_MATMUL, end->product_name, &row, (int[]){end->x, end->weight, bias});
  snprintf(name, sizeof(name), "%s.reduce", end->prefix);
  branch.x = lade_build_leave(build, name, lade_build_out(build, product, 0));
  if (!is_in_product) {
    branch.bias = out_bias_param(build, i_layer, end->param_name, end->bias_part, false);
    return branch;
  }
  snprintf(name, sizeof(name), "%s.post_norm", end->prefix);
  if (has_post_norms(build))
    branch.x = norm_build(build, name, branch.x, norm_param(build, i_layer, end->post_norm));
  snprintf(name, sizeof(name), "%s.scale", end->prefix);
  if (scale > 0)
    branch.x = scale_build(build, name, branch.x, scale);
  return branch;
}

/*
 * Build the attention branch of @x, with the norm @norm_name before it (NULL: none). *ret_h: the gathered rows that the
 * branch reads.
 */
static struct branch attention_build(struct lade_build *build, int64_t i_layer, int x, const char *norm_name,
                                     int *ret_h)
{
  const struct lade_model *model = &build->graph->model;
  const struct lade_family_row *row = row_get(build);
  const int64_t n_in = model->heads * lade_model_head_dim(model);
  struct lade_op_attr column = qkv_attr(build);
  struct norm norm = {-1, -1};
  if (norm_name)
    norm = norm_param(build, i_layer, norm_name);
  int qkv_weight = qkv_param(build, i_layer, model->width);
  int qkv_bias = has_bias(build, LADE_BIAS_QKV) ? qkv_param(build, i_layer, 0) : -1;
  int out_weight = out_param(build, i_layer, row->out, n_in, branch_std(build));
  const struct file_name sinks_name = file_name(build, i_layer, "self_attn.sinks", "");
  int sinks = lade_build_sinks(build, "self_attn.sinks", sinks_name.text, INIT_STD);
  if (norm_name)
    x = norm_build(build, row->norm_op, x, norm);
  *ret_h = x = lade_build_enter(build, "attn.gather", x);
  int qkv = lade_build_op(build, LADE_OP_MATMUL, "attn.qkv", &column, (int[]){x, qkv_weight, qkv_bias});
  int out = heads_build(build, i_layer, lade_build_out(build, qkv, 0), sinks);
  const struct branch_end end = {.prefix = "attn", .product_name = "attn.proj", .x = out, .weight = out_weight,
                                 .n_in = n_in, .param_name = row->out, .bias_part = LADE_BIAS_OUT,
                                 .post_norm = row->post_1};
  return branch_finish(build, i_layer, &end);
}

/* Return the op of the MLP's activation, with its name. */
static enum lade_op_kind activation_kind(const struct lade_build *build, const char **ret_name)
{
  const enum lade_activation activation = lade_model_activation(&build->graph->model);
  if (row_get(build)->is_gated) {
    *ret_name = activation == LADE_SILU ? "mlp.swiglu" : "mlp.gated";
    return activation == LADE_SILU ? LADE_OP_SWIGLU : LADE_OP_GATED;
  }
  *ret_name = activation == LADE_GELU_TANH ? "mlp.gelu" : "mlp.activation";
  return activation == LADE_GELU_TANH ? LADE_OP_GELU : LADE_OP_ACTIVATION;
}

/* Build product and activation of an MLP's wide half over @h. Return the result. */
static int wide_build(struct lade_build *build, int h, int weight, int bias)
{
  const struct lade_model *model = &build->graph->model;
  const bool is_gated = row_get(build)->is_gated;
  const struct lade_sharded_width half = {model->hidden, model->hidden / build->graph->share.tp};
  const struct lade_sharded_width halves[] = {half, half};
  const struct lade_op_attr column = lade_attr_column(build, is_gated ? 2 : 1, halves);
  const struct lade_op_attr attr = {.activation = lade_model_activation(model)};
  const char *product = is_gated ? "mlp.gate_up" : "mlp.fc", *name;
  const enum lade_op_kind kind = activation_kind(build, &name);
  const int in[] = {h, weight, bias};
  if (build->fuses_gelu_fwd)
    return lade_build_out(build, lade_build_op(build, LADE_OP_MATMUL_GELU, product, &column, in), 1);
  int wide = lade_build_op(build, LADE_OP_MATMUL, product, &column, in);
  return lade_build_out(build, lade_build_op(build, kind, name, &attr, (int[]){lade_build_out(build, wide, 0)}), 0);
}

/* Build the MLP branch of h, after its norm; @is_gathered: h has all rows. */
static struct branch mlp_build(struct lade_build *build, int64_t i_layer, int h, bool is_gathered)
{
  const struct lade_model *model = &build->graph->model;
  const struct lade_family_row *row = row_get(build);
  int weight = wide_param(build, i_layer, model->width);
  int bias = has_bias(build, LADE_BIAS_MLP) ? wide_param(build, i_layer, 0) : -1;
  int down = out_param(build, i_layer, row->down, model->hidden, branch_std(build));
  if (!is_gathered)
    h = lade_build_enter(build, "mlp.gather", h);
  int act = wide_build(build, h, weight, bias);
  const struct branch_end end = {.prefix = "mlp", .product_name = row->is_gated ? "mlp.down" : "mlp.proj",
                                 .x = act, .weight = down, .n_in = model->hidden,
                                 .param_name = row->down, .bias_part = LADE_BIAS_MLP, .post_norm = row->post_2};
  return branch_finish(build, i_layer, &end);
}

/* Build the sum of @residual and a branch, and with @norm the next norm. Return the op. */
static int residual_build(struct lade_build *build, const char *name, struct branch branch, int residual,
                          const struct norm *norm)
{
  struct lade_op_attr attr = norm ? attr_norm(build) : (struct lade_op_attr){.norm = LADE_NORM_NONE};
  attr.dropout = build->dropout;
  int in[] = {branch.x, branch.bias, residual, norm ? norm->weight : -1, norm ? norm->bias : -1};
  return lade_build_op(build, LADE_OP_RESIDUAL, name, &attr, in);
}

/* Return the names of a parallel block's norms. */
static const char *parallel_norm_name(const struct lade_build *build, int i)
{
  const bool has_own = build->graph->model.family == LADE_FALCON && build->graph->model.n_parallel_norms == 2;
  if (has_own)
    return i == 0 ? "ln_attn" : "ln_mlp";
  return i == 0 ? row_get(build)->norm_1 : row_get(build)->norm_2;
}

/* Build a block whose branches both read @x. */
static int parallel_build(struct lade_build *build, int64_t i_layer, int x)
{
  const bool has_two = build->graph->model.n_parallel_norms == 2;
  int h;
  struct branch attention = attention_build(build, i_layer, x, parallel_norm_name(build, 0), &h);
  if (has_two)
    h = norm_build(build, "mlp_norm", x, norm_param(build, i_layer, parallel_norm_name(build, 1)));
  struct branch mlp = mlp_build(build, i_layer, h, !has_two);
  int x1 = lade_build_out(build, residual_build(build, "x1", attention, x, NULL), 0);
  return lade_build_out(build, residual_build(build, "x2", mlp, x1, NULL), 0);
}

/* Build a block whose MLP reads the sum of @x and attention. */
static int sequential_build(struct lade_build *build, int64_t i_layer, int x)
{
  const struct lade_family_row *row = row_get(build);
  const bool has_norms = row->place != LADE_NORMS_AFTER;
  int h;
  struct branch branch = attention_build(build, i_layer, x, has_norms ? row->norm_1 : NULL, &h);
  struct norm norm = {-1, -1};
  if (has_norms)
    norm = norm_param(build, i_layer, row->norm_2);
  int x1 = residual_build(build, "x1", branch, x, has_norms ? &norm : NULL);
  h = lade_build_out(build, x1, has_norms ? 1 : 0);
  branch = mlp_build(build, i_layer, h, false);
  return lade_build_out(build, residual_build(build, "x2", branch, lade_build_out(build, x1, 0), NULL), 0);
}

/* Return the class of a layer's unit: those of one class have equal ops. */
static int class_get(const struct lade_model_graph *graph, int64_t i_layer)
{
  const bool is_windowed = lade_layer_class(graph, i_layer) == LADE_CLASS_WINDOWED_BLOCK;
  if (!lade_layer_set_has(&graph->model.unrotated, i_layer))
    return lade_layer_class(graph, i_layer);
  return is_windowed ? LADE_CLASS_UNROTATED_WINDOWED_BLOCK : LADE_CLASS_UNROTATED_BLOCK;
}

/* Count the forward ops so far as they are in a graph of the whole model without fused ops. */
static int forward_ops_count(const struct lade_build *build)
{
  return build->graph->n_ops + build->n_joined_ops - build->n_boundary_ops;
}

int lade_build_block(struct lade_build *build, int64_t i_layer, int x)
{
  const struct lade_model_graph *graph = build->graph;
  int first_param = graph->n_params, first_op = forward_ops_count(build);
  lade_build_unit(build, class_get(graph, i_layer), "h.%lld", (long long)i_layer);
  if (graph->model.n_parallel_norms)
    x = parallel_build(build, i_layer, x);
  else
    x = sequential_build(build, i_layer, x);
  LADE_ASSERT(graph->n_params - first_param == lade_model_layer_n_tensors(&graph->model));
  LADE_ASSERT(forward_ops_count(build) - first_op == lade_model_layer_n_ops(&graph->model, i_layer));
  return x;
}

/* ---- both ends ---- */

static int table_param(struct lade_build *build)
{
  const struct lade_family_row *row = row_get(build);
  char name[LADE_NAME_BYTES];
  snprintf(name, sizeof(name), "%s.weight", row->table_name);
  return lade_build_table(build, name, file_name(build, -1, row->table, ".weight").text, INIT_STD);
}

static int positions_param(struct lade_build *build)
{
  const struct lade_model *model = &build->graph->model;
  const struct lade_family_row *row = row_get(build);
  if (!row->has_positions)
    return -1;
  struct lade_param_slice slice = lade_slice_whole(model->context, model->width);
  char name[LADE_NAME_BYTES];
  snprintf(name, sizeof(name), "%s.weight", row->positions);
  int param = lade_build_param(build, name, model->context, model->width, LADE_INIT_NORMAL, INIT_STD);
  lade_build_slice(build, param, &slice, "%s", file_name(build, -1, row->positions, ".weight").text);
  lade_build_replica(build, param, true);
  return param;
}

int lade_build_embedding(struct lade_build *build, int *ret_x)
{
  lade_build_unit(build, LADE_CLASS_EMBED, "embed");
  int table = table_param(build), positions = positions_param(build);
  struct norm norm = {-1, -1};
  if (row_get(build)->table_norm)
    norm = norm_param(build, -1, row_get(build)->table_norm);
  int x = lade_build_leave(build, "x.reduce", lade_build_embed(build, table, positions));
  if (norm.weight >= 0)
    x = norm_build(build, "x.norm", x, norm);
  if (build->dropout > 0) {
    struct lade_op_attr attr = {.dropout = build->dropout};
    x = lade_build_out(build, lade_build_op(build, LADE_OP_DROPOUT, "dropout", &attr, &x), 0);
  }
  *ret_x = x;
  return table;
}

/* Return the head's weight: the table, a copy of it, or a table of its own. */
static int head_weight(struct lade_build *build, int table)
{
  const struct lade_family_row *row = row_get(build);
  char name[LADE_NAME_BYTES];
  snprintf(name, sizeof(name), "%s.weight", row->head);
  if (!build->graph->model.is_tied)
    return lade_build_table(build, name, name, INIT_STD);
  if (table >= 0)
    return table;
  int copy = table_param(build);
  lade_build_table_tie(build, copy, true);
  return copy;
}

void lade_build_head(struct lade_build *build, int x, int table)
{
  const struct lade_family_row *row = row_get(build);
  lade_build_unit(build, LADE_CLASS_HEAD, "head");
  struct norm norm = norm_param(build, -1, row->final_norm);
  int weight = head_weight(build, table);
  int h = norm_build(build, row->final_op, x, norm);
  if (lade_model_logit_factor(&build->graph->model) != 1) /* logits are linear in it */
    h = scale_build(build, "logit_scale", h, lade_model_logit_factor(&build->graph->model));
  build->graph->loss = lade_build_head_loss(build, h, weight);
}
