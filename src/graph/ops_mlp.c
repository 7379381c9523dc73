/* SPDX-License-Identifier: Apache-2.0 */
/* The op table's functions for the activations of an MLP. Operands and costs: ops.c. */
#include "graph/ops_internal.h"

void lade_op_gelu_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                      void *args)
{
  *(struct lade_gelu_fwd_args *)args =
      (struct lade_gelu_fwd_args){.dtype = graph->dtype,
                                  .n_elements = tensor_elements(tensor_in(graph, op, 0)),
                                  .x = in_at(bind, 0),
                                  .y = out_at(bind, 0)};
}

void lade_op_gelu_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                          void *args)
{
  *(struct lade_gelu_bwd_args *)args =
      (struct lade_gelu_bwd_args){.dtype = graph->dtype,
                                  .n_elements = tensor_elements(tensor_in(graph, op, 0)),
                                  .f = tensor_in(graph, op, 0)->dims[1],
                                  .x = in_at(bind, 0),
                                  .dy = in_at(bind, 1),
                                  .dx = out_at(bind, 0),
                                  .d_bias = out_at(bind, 1),
                                  .accumulate = accumulate_get(op, bind, 2),
                                  .workspace = (void *)bind->workspace};
}

void lade_op_matmul_gelu_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                                  const struct lade_bind *bind, void *args)
{
  const struct lade_tensor *dy = tensor_in(graph, op, 0), *weight = tensor_in(graph, op, 1);
  *(struct lade_matmul_gelu_bwd_args *)args =
      (struct lade_matmul_gelu_bwd_args){.product = {.layout = LADE_NN, .dtype = graph->dtype, .out = graph->dtype,
                                                     .m = dy->dims[0], .n = weight->dims[1], .k = weight->dims[0],
                                                     .tree = op->attr.dx_tree, .a = in_at(bind, 0), .b = in_at(bind, 1),
                                                     .c = out_at(bind, 0), .gelu_x = in_at(bind, 2),
                                                     .workspace = (void *)bind->workspace},
                                         .d_bias = out_at(bind, 1),
                                         .accumulate_bias = accumulate_get(op, bind, 2)};
}

void lade_op_swiglu_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                           struct lade_op_output *ret_out)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  ret_out[0] = activation_2d(x->dims[0], x->dims[1] / 2);
}

void lade_op_swiglu_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                        void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_swiglu_fwd_args *)args = (struct lade_swiglu_fwd_args){.dtype = graph->dtype,
                                                                       .n = x->dims[0],
                                                                       .f = x->dims[1] / 2,
                                                                       .x = in_at(bind, 0),
                                                                       .y = out_at(bind, 0)};
}

void lade_op_swiglu_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind, void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_swiglu_bwd_args *)args = (struct lade_swiglu_bwd_args){.dtype = graph->dtype,
                                                                       .n = x->dims[0],
                                                                       .f = x->dims[1] / 2,
                                                                       .x = in_at(bind, 0),
                                                                       .dy = in_at(bind, 1),
                                                                       .dx = out_at(bind, 0)};
}

/* ---- other activations ---- */

void lade_op_activation_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                             const struct lade_bind *bind,
                      void *args)
{
  *(struct lade_activation_fwd_args *)args = (struct lade_activation_fwd_args){
      .dtype = graph->dtype, .activation = op->attr.activation, .limit = op->attr.limit,
      .n_elements = tensor_elements(tensor_in(graph, op, 0)),
      .x = in_at(bind, 0), .y = out_at(bind, 0)};
}

void lade_op_activation_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                                const struct lade_bind *bind, void *args)
{
  *(struct lade_activation_bwd_args *)args = (struct lade_activation_bwd_args){
      .dtype = graph->dtype, .activation = op->attr.activation, .limit = op->attr.limit,
      .n_elements = tensor_elements(tensor_in(graph, op, 0)),
      .x = in_at(bind, 0), .dy = in_at(bind, 1), .dx = out_at(bind, 0)};
}

void lade_op_gated_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                       void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_gated_fwd_args *)args = (struct lade_gated_fwd_args){
      .dtype = graph->dtype, .activation = op->attr.activation, .n = x->dims[0], .f = x->dims[1] / 2,
      .x = in_at(bind, 0), .y = out_at(bind, 0)};
}

void lade_op_gated_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                           const struct lade_bind *bind, void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_gated_bwd_args *)args = (struct lade_gated_bwd_args){
      .dtype = graph->dtype, .activation = op->attr.activation, .n = x->dims[0], .f = x->dims[1] / 2,
      .x = in_at(bind, 0), .dy = in_at(bind, 1), .dx = out_at(bind, 0)};
}
