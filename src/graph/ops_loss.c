/* SPDX-License-Identifier: Apache-2.0 */
/* The op table's functions for the output head and the loss. Operands and costs: ops.c. */
#include "graph/ops_internal.h"

/* Return the logits of this op's rows of the weight, which backward may do without. */
static struct lade_op_output logits_output(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return (struct lade_op_output){
      .suffix = ".logits", .kind = LADE_TENSOR_ACTIVATION, .is_accumulator = true, .is_optional = true, .n_dims = 2,
      .dims = {rows_get(graph), tensor_in(graph, op, 1)->dims[0]}};
}

void lade_op_head_loss_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                              struct lade_op_output *ret_out)
{
  ret_out[0] = statistic_1d(".losses", rows_get(graph));
  ret_out[1] = statistic_1d(".lse", rows_get(graph));
  ret_out[2] = statistic_1d("", 1);
  ret_out[2].kind = LADE_TENSOR_LOSS;
  if (op->kind == LADE_OP_HEAD_LOSS) /* before a join, head_stats makes them */
    ret_out[3] = logits_output(graph, op);
}

double lade_op_head_loss_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 2.0 * (double)rows_get(graph) * (double)tensor_elements(tensor_in(graph, op, 1));
}

/* Count the products: dx, d_weight, and the logits again unless they are kept. */
double lade_op_head_loss_bwd_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return (op->in[5] >= 0 ? 2 : 3) * lade_op_head_loss_flops(graph, op);
}

void lade_op_head_loss_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind,
                           void *args)
{
  const struct lade_tensor *weight = tensor_in(graph, op, 1);
  *(struct lade_head_loss_fwd_args *)args = (struct lade_head_loss_fwd_args){.dtype = graph->dtype,
                                                                             .n = rows_get(graph),
                                                                             .d = weight->dims[1],
                                                                             .vocabulary = weight->dims[0],
                                                                             .leaf = op->attr.leaf_tokens,
                                                                             .softcap = graph->model.logit_softcap,
                                                                             .x = in_at(bind, 0),
                                                                             .weight = in_at(bind, 1),
                                                                             .targets = in_at(bind, 2),
                                                                             .losses = out_at(bind, 0),
                                                                             .lse = out_at(bind, 1),
                                                                             .loss = out_at(bind, 2),
                                                                             .logits = out_at(bind, 3),
                                                                             .workspace = (void *)bind->workspace};
}

void lade_op_head_stats_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                               struct lade_op_output *ret_out)
{
  ret_out[0] = (struct lade_op_output){
      .suffix = "", .kind = LADE_TENSOR_ACTIVATION, .is_accumulator = true, .n_dims = 2, .dims = {3, rows_get(graph)}};
  ret_out[1] = logits_output(graph, op);
}

void lade_op_head_stats_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind, void *args)
{
  const struct lade_tensor *weight = tensor_in(graph, op, 1);
  *(struct lade_head_stats_args *)args = (struct lade_head_stats_args){
      .dtype = graph->dtype, .n = rows_get(graph), .d = weight->dims[1], .vocabulary = weight->dims[0],
      .first_token = lade_table_first_token(graph, op->in[1]), .padding = lade_table_padding(graph, op->in[1]),
      .leaf = op->attr.leaf_tokens, .softcap = graph->model.logit_softcap, .x = in_at(bind, 0),
      .weight = in_at(bind, 1), .targets = in_at(bind, 2),
      .before = in_at(bind, 3), .stats = out_at(bind, 0), .logits = out_at(bind, 1),
      .workspace = (void *)bind->workspace};
}

double lade_op_head_join_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 8.0 * (double)tensor_elements(tensor_in(graph, op, 0));
}

void lade_op_head_join_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind,
                           void *args)
{
  *(struct lade_head_join_args *)args = (struct lade_head_join_args){
      .dtype = graph->dtype, .n = rows_get(graph), .n_ranks = graph->share.tp, .stats = in_at(bind, 0),
      .targets = in_at(bind, 1), .losses = out_at(bind, 0), .lse = out_at(bind, 1), .loss = out_at(bind, 2)};
}

void lade_op_head_loss_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                               const struct lade_bind *bind, void *args)
{
  const struct lade_tensor *weight = tensor_in(graph, op, 1);
  *(struct lade_head_loss_bwd_args *)args =
      (struct lade_head_loss_bwd_args){.dtype = graph->dtype,
                                       .n = rows_get(graph),
                                       .d = weight->dims[1],
                                       .vocabulary = weight->dims[0],
                                       .first_token = lade_table_first_token(graph, op->in[1]),
                                       .padding = lade_table_padding(graph, op->in[1]),
                                       .leaf = op->attr.leaf_tokens,
                                       .scale = 1.0f / (float)bind->n_microbatches,
                                       .softcap = graph->model.logit_softcap,
                                       .x = in_at(bind, 0),
                                       .weight = in_at(bind, 1),
                                       .targets = in_at(bind, 2),
                                       .lse = in_at(bind, 3),
                                       .before = in_at(bind, 4),
                                       .logits = in_at(bind, 5),
                                       .dx = out_at(bind, 0),
                                       .d_weight = out_at(bind, 1),
                                       .accumulate = accumulate_get(op, bind, 2),
                                       .has_before = op->in[4] >= 0,
                                       .is_sum = tensor_out(graph, op, 0)->dtype != graph->dtype,
                                       .workspace = (void *)bind->workspace};
}
