/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the files of the op table (ops.c): shorthands for operands, and the functions of ops whose descriptions are
 * in files of their own: the MLP's activations, rotation and norms of heads, the head with the loss.
 */
#ifndef LADE_GRAPH_OPS_INTERNAL_H
#define LADE_GRAPH_OPS_INTERNAL_H

#include "base/base.h"
#include "graph/build.h"

static inline const struct lade_tensor *tensor_in(const struct lade_model_graph *graph, const struct lade_op *op, int i)
{
  LADE_ASSERT(i < op->n_in && op->in[i] >= 0);
  return &graph->tensors[op->in[i]];
}

static inline const struct lade_tensor *tensor_out(const struct lade_model_graph *graph, const struct lade_op *op,
                                                   int i)
{
  LADE_ASSERT(i < op->n_out && op->out[i] >= 0);
  return &graph->tensors[op->out[i]];
}

static inline int64_t tensor_elements(const struct lade_tensor *tensor)
{
  int64_t n = 1;
  for (int i = 0; i < tensor->n_dims; i++)
    n *= tensor->dims[i];
  return n;
}

static inline int64_t rows_get(const struct lade_model_graph *graph)
{
  return graph->batch * graph->seq_len;
}

static inline const void *in_at(const struct lade_bind *bind, int i)
{
  return (const void *)bind->in[i];
}

static inline void *out_at(const struct lade_bind *bind, int i)
{
  return (void *)bind->out[i];
}

/* Return a kernel's one accumulate flag. Asserts that the present outputs in @mask agree on it. */
static inline bool accumulate_get(const struct lade_op *op, const struct lade_bind *bind, unsigned mask)
{
  unsigned present = 0;
  for (int i = 0; i < op->n_out; i++)
    if (op->out[i] >= 0)
      present |= 1u << i;
  present &= mask;
  LADE_ASSERT((bind->accumulate & present) == 0 || (bind->accumulate & present) == present);
  return (bind->accumulate & present) != 0;
}

static inline struct lade_op_output activation_2d(int64_t rows, int64_t cols)
{
  return (struct lade_op_output){.suffix = "", .kind = LADE_TENSOR_ACTIVATION, .n_dims = 2, .dims = {rows, cols}};
}

static inline struct lade_op_output statistic_1d(const char *suffix, int64_t n)
{
  return (struct lade_op_output){
      .suffix = suffix, .kind = LADE_TENSOR_ACTIVATION, .is_accumulator = true, .n_dims = 1, .dims = {n}};
}

/* ---- entries in other files ---- */

void lade_op_head_loss_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                               struct lade_op_output *ret_out);
double lade_op_head_loss_flops(const struct lade_model_graph *graph, const struct lade_op *op);
double lade_op_head_loss_bwd_flops(const struct lade_model_graph *graph, const struct lade_op *op);
void lade_op_head_loss_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind, void *args);
void lade_op_head_stats_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                                struct lade_op_output *ret_out);
void lade_op_head_stats_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                             const struct lade_bind *bind, void *args);
double lade_op_head_join_flops(const struct lade_model_graph *graph, const struct lade_op *op);
void lade_op_head_join_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind, void *args);
void lade_op_head_loss_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                                const struct lade_bind *bind, void *args);
void lade_op_gelu_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                       void *args);
void lade_op_gelu_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                           const struct lade_bind *bind, void *args);
void lade_op_matmul_gelu_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                                  const struct lade_bind *bind, void *args);
void lade_op_swiglu_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                            struct lade_op_output *ret_out);
void lade_op_swiglu_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                         const struct lade_bind *bind, void *args);
void lade_op_swiglu_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                             const struct lade_bind *bind, void *args);
void lade_op_activation_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                             const struct lade_bind *bind, void *args);
void lade_op_activation_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                                 const struct lade_bind *bind, void *args);
void lade_op_gated_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                        void *args);
void lade_op_gated_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                            const struct lade_bind *bind, void *args);
void lade_op_qk_sums_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                             struct lade_op_output *ret_out);
double lade_op_qk_sums_flops(const struct lade_model_graph *graph, const struct lade_op *op);
void lade_op_qk_sums_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                          const struct lade_bind *bind, void *args);
void lade_op_qk_norm_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                             struct lade_op_output *ret_out);
void lade_op_qk_norm_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                          const struct lade_bind *bind, void *args);
void lade_op_qk_dots_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                          const struct lade_bind *bind, void *args);
void lade_op_qk_norm_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                              const struct lade_bind *bind, void *args);
void lade_op_rope_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                       void *args);

#endif
