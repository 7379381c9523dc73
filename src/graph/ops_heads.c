/* SPDX-License-Identifier: Apache-2.0 */
/* The op table's functions for queries and keys before attention: their norms and their rotation. Operands: ops.c. */
#include "graph/ops_internal.h"

#include <math.h>

#include "graph/family.h"

#define TWO_PI 6.28318530717958647693

/* ---- norms ---- */

static struct lade_op_output sums_2d(const struct lade_model_graph *graph)
{
  struct lade_op_output output = activation_2d(2, rows_get(graph));
  output.is_accumulator = true;
  return output;
}

void lade_op_qk_sums_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                            struct lade_op_output *ret_out)
{
  ret_out[0] = sums_2d(graph);
}

double lade_op_qk_sums_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 4.0 * (double)tensor_elements(tensor_in(graph, op, 0));
}

void lade_op_qk_sums_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                         void *args)
{
  *(struct lade_qk_sums_args *)args = (struct lade_qk_sums_args){
      .dtype = graph->dtype, .n = rows_get(graph), .heads = op->attr.heads, .n_kv_heads = op->attr.n_kv_heads,
      .head_dim = op->attr.head_dim, .n_copies = lade_share_key_ranks(graph), .x = in_at(bind, 0),
      .sums = out_at(bind, 0)};
}

void lade_op_qk_norm_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                            struct lade_op_output *ret_out)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  ret_out[0] = activation_2d(x->dims[0], x->dims[1]);
  ret_out[1] = activation_2d(x->dims[0], op->attr.is_by_head ? op->attr.heads + op->attr.n_kv_heads : 2);
  ret_out[1].suffix = ".rstd";
  ret_out[1].is_accumulator = true;
}

void lade_op_qk_norm_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                         void *args)
{
  const struct lade_model *model = &graph->model;
  *(struct lade_qk_norm_fwd_args *)args = (struct lade_qk_norm_fwd_args){
      .dtype = graph->dtype, .n = rows_get(graph), .heads = op->attr.heads, .n_kv_heads = op->attr.n_kv_heads,
      .head_dim = op->attr.head_dim, .is_by_head = op->attr.is_by_head, .eps = op->attr.eps,
      .weight_offset = op->attr.weight_offset, .q_total = model->heads * op->attr.head_dim,
      .k_total = model->n_kv_heads * op->attr.head_dim, .x = in_at(bind, 0), .q_weight = in_at(bind, 1),
      .k_weight = in_at(bind, 2), .sums = in_at(bind, 3), .y = out_at(bind, 0), .rstd = out_at(bind, 1)};
}

void lade_op_qk_dots_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                         void *args)
{
  *(struct lade_qk_dots_args *)args = (struct lade_qk_dots_args){
      .dtype = graph->dtype, .n = rows_get(graph), .heads = op->attr.heads, .n_kv_heads = op->attr.n_kv_heads,
      .head_dim = op->attr.head_dim, .weight_offset = op->attr.weight_offset, .dy = in_at(bind, 0),
      .x = in_at(bind, 1), .q_weight = in_at(bind, 2), .k_weight = in_at(bind, 3), .rstd = in_at(bind, 4),
      .dots = out_at(bind, 0)};
}

/* Count a key head that several ranks have once for each of them, because each subtracts a share. */
void lade_op_qk_norm_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                             const struct lade_bind *bind, void *args)
{
  const struct lade_model *model = &graph->model;
  *(struct lade_qk_norm_bwd_args *)args = (struct lade_qk_norm_bwd_args){
      .dtype = graph->dtype, .n = rows_get(graph), .heads = op->attr.heads, .n_kv_heads = op->attr.n_kv_heads,
      .head_dim = op->attr.head_dim, .is_by_head = op->attr.is_by_head, .weight_offset = op->attr.weight_offset,
      .q_total = model->heads * op->attr.head_dim,
      .k_total = model->n_kv_heads * lade_share_key_ranks(graph) * op->attr.head_dim, .dy = in_at(bind, 0),
      .x = in_at(bind, 1), .q_weight = in_at(bind, 2), .k_weight = in_at(bind, 3), .rstd = in_at(bind, 4),
      .dots = in_at(bind, 5), .dx = out_at(bind, 0), .d_q_weight = out_at(bind, 1), .d_k_weight = out_at(bind, 2),
      .accumulate = accumulate_get(op, bind, 6), .workspace = (void *)bind->workspace};
}

/* ---- rotation ---- */

/*
 * Return the pair of dimensions whose angle makes @n_turns over the original context (YARN's find_correction_dim):
 * context * base^(-2j/D) = 2 pi n_turns.
 */
static double yarn_pair(const struct lade_model *model, double n_turns)
{
  const double dim = (double)lade_model_rotary_dim(model), context = (double)model->rope_original_context;
  return dim * log(context / (n_turns * TWO_PI)) / (2 * log((double)model->rope_base));
}

/* Set the ends of YARN's ramp, as transformers rounds and clamps them. */
static void yarn_ends(const struct lade_model *model, struct lade_rope_args *args)
{
  double low = yarn_pair(model, (double)model->rope_beta_fast), high = yarn_pair(model, (double)model->rope_beta_slow);
  if (!model->rope_is_untruncated) {
    low = floor(low);
    high = ceil(high);
  }
  low = fmax(low, 0);
  high = fmin(high, (double)lade_model_rotary_dim(model) - 1);
  args->low = (float)low;
  args->high = (float)(low == high ? high + 0.001 : high);
}

void lade_op_rope_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                      void *args)
{
  const struct lade_model *model = &graph->model;
  struct lade_rope_args *a = args;
  *a = (struct lade_rope_args){.dtype = graph->dtype,
                               .batch = graph->batch,
                               .seq_len = graph->seq_len,
                               .heads = op->attr.heads,
                               .n_kv_heads = op->attr.n_kv_heads,
                               .head_dim = op->attr.head_dim,
                               .rotary_dim = model->rotary_dim,
                               .base = op->attr.rope_base != 0 ? op->attr.rope_base : model->rope_base,
                               .is_inverse = op->kind == LADE_OP_ROPE_BWD,
                               .is_interleaved = lade_family_get(graph->model.family)->is_rope_interleaved,
                               .x = in_at(bind, 0),
                               .y = out_at(bind, 0),
                               .workspace = (void *)bind->workspace};
  if (op->attr.rope_base != 0) /* a form without scaling */
    return;
  a->kind = model->rope_kind;
  a->scale_factor = model->rope_scale_factor;
  a->magnitude = model->rope_magnitude;
  a->low = model->rope_low_freq_factor;
  a->high = model->rope_high_freq_factor;
  a->original_context = model->rope_original_context;
  a->temperature_beta = model->attention_temperature_beta;
  if (model->rope_kind == LADE_ROPE_YARN)
    yarn_ends(model, a);
  if (model->rope_kind == LADE_ROPE_LONGROPE)
    a->factors = graph->seq_len > model->rope_original_context ? model->rope_long_factors : model->rope_short_factors;
}
