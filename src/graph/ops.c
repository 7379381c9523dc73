/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The op table: the one place that defines an op.
 *
 * An entry contains the number of operands, the shapes of the outputs, the input whose memory the first output may take
 * over, and the costs. It also contains the function that fills the kernel's arguments and the rule that derives the
 * backward. The rules are in backward.c; they push ops and need nothing from here. Adding an op takes one entry, its
 * functions, and a line in the enum.
 *
 * Operand orders (? marks an optional operand, absent as -1; statistics and parameter gradients are in A):
 *
 *   embed          tokens, token table, position table?, before?  -> x
 *   embed_bwd      tokens, dx                                     -> d token table, d position table?
 *   norm           x, weight, bias?                               -> y, mean?, rstd
 *   norm_bwd       dy, x, weight, mean?, rstd, d_residual?        -> dx, d_weight, d_bias?
 *   residual       x, bias?, residual, weight?, norm bias?        -> sum, y?, mean?, rstd?
 *   residual_bwd   d_sum?, dy, sum, weight, mean?, rstd           -> d_residual, dx?, d_bias?, d_weight, d_norm_bias?
 *   dropout        x                                              -> y
 *   dropout_bwd    dy                                             -> dx
 *   scale, scale_bwd  x                                           -> y
 *   matmul         x, weight, bias?                               -> y
 *   matmul_gelu    x, weight, bias?                               -> y, gelu
 *   matmul_dx      dy, weight                                     -> dx
 *   matmul_gelu_bwd  dy, weight, x of GELU                        -> dx of GELU, d_bias? (of the product that made x)
 *   matmul_dw      dy, x                                          -> d_weight
 *   bias_grad      dy                                             -> d_bias
 *   rope, rope_bwd x                                              -> y
 *   attention      qkv, sinks?, first keys?                       -> out, lse
 *   attention_bwd  qkv, out, lse, d_out, sinks?, first keys?      -> d_qkv, d_sinks?, d_bias?
 *   gelu, swiglu, activation, gated  x                            -> y
 *   their _bwd     x, dy                                          -> dx, d_bias? (gelu: of the product that made x)
 *   qk_sums        qkv                                            -> sums
 *   qk_norm        qkv, q weight, k weight, sums of all ranks?    -> y, rstd
 *   qk_dots        dy, qkv, q weight, k weight, rstd              -> dots
 *   qk_norm_bwd    dy, qkv, q weight, k weight, rstd, dots of all ranks?  -> dx, d_q_weight, d_k_weight
 *   add            dx, dx of another consumer                     -> sum
 *   head_loss      x, weight, targets                             -> losses, lse, loss, logits?
 *   head_loss_bwd  x, weight, targets, lse, before?, logits?      -> dx, d_weight
 *   head_stats     x, weight, targets, before?                    -> stats, logits?
 *   head_join      stats of all ranks, targets                    -> losses, lse, loss
 *   all_reduce, all_gather, reduce_scatter  x                     -> y
 *   send           x                                              ->
 *   recv                                                          -> x
 *
 * If a table is in parts, `before` is the result of the parts before this one: x, the statistics, dx as a sum in A.
 *
 * Costs: flops are those that the kernel executes, so attention's backward counts five products and the head's backward
 * without logits counts them again; causal attention counts T(T+1)/2 pairs, or those in its window. Bytes count every
 * operand once, which a kernel must move if no operand stays in cache. Elementwise ops are bound by bytes; their flops
 * per element are rough counts that only keep a cost model from dividing zero. A collective's bytes are those that a
 * rank sends in a ring. A gather or a scatter sends (n - 1) / n of the whole, and a sum twice that (Thakur,
 * Rabenseifner, Gropp 2005); no algorithm needs fewer.
 *
 * Sizes: lade_model_check and lade_model_graph_create bound every dimension, so every product here fits 63 bits.
 */
#include "graph/ops_internal.h"

#include <math.h>

#include "base/float.h"

#define ARGS_FIT(type) _Static_assert(sizeof(struct type) <= LADE_OP_ARGS_BYTES, "LADE_OP_ARGS_BYTES is too small")
ARGS_FIT(lade_matmul_args);
ARGS_FIT(lade_column_sum_args);
ARGS_FIT(lade_gelu_bwd_args);
ARGS_FIT(lade_matmul_gelu_bwd_args);
ARGS_FIT(lade_embed_bwd_args);
ARGS_FIT(lade_norm_bwd_args);
ARGS_FIT(lade_residual_fwd_args);
ARGS_FIT(lade_residual_bwd_args);
ARGS_FIT(lade_rope_args);
ARGS_FIT(lade_qk_norm_fwd_args);
ARGS_FIT(lade_qk_norm_bwd_args);
ARGS_FIT(lade_qk_dots_args);
ARGS_FIT(lade_attention_bwd_args);
ARGS_FIT(lade_head_loss_fwd_args);
ARGS_FIT(lade_head_loss_bwd_args);
ARGS_FIT(lade_head_stats_args);
ARGS_FIT(lade_head_join_args);

/* ---- shorthands ---- */

/*
 * Return the draw of an op whose masked tensor has @n_elements in one microbatch of the whole model. This rank's
 * elements begin at @first.
 */
static struct lade_drop drop_get(const struct lade_op *op, const struct lade_bind *bind, uint64_t n_elements,
                                 uint64_t first)
{
  double p = op->attr.dropout;
  if (p <= 0 || bind->is_evaluation)
    return (struct lade_drop){.scale = 1.0f};
  double below = fmin(nearbyint(p * 0x1p32), 0x1p32 - 1);
  return (struct lade_drop){.drop_below = (uint32_t)below,
                            .stream = op->attr.stream,
                            .scale = (float)(1 / (1 - p)),
                            .first_element = (uint64_t)bind->microbatch * n_elements + first};
}

/* Return the draw of an op on @x of the residual stream, with the position of this rank's rows among all. */
static struct lade_drop rows_drop_get(const struct lade_model_graph *graph, const struct lade_op *op,
                                      const struct lade_bind *bind, const struct lade_tensor *x)
{
  int64_t first_row = graph->share.is_sequence ? graph->share.tp_rank * x->dims[0] : 0;
  LADE_ASSERT(x->dims[0] == lade_share_rows(graph));
  return drop_get(op, bind, (uint64_t)(rows_get(graph) * x->dims[1]), (uint64_t)(first_row * x->dims[1]));
}

static struct lade_op_output same_as_input(const struct lade_model_graph *graph, const struct lade_op *op)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  return activation_2d(x->dims[0], x->dims[1]);
}

/* ---- embedding ---- */

static void embed_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                          struct lade_op_output *ret_out)
{
  ret_out[0] = activation_2d(rows_get(graph), tensor_in(graph, op, 1)->dims[1]);
}

/* Count one row of each table per token instead of the tables. */
static double embed_bytes(const struct lade_model_graph *graph, const struct lade_op *op)
{
  int n_tables = op->in[2] >= 0 ? 2 : 1;
  return (double)tensor_in(graph, op, 0)->bytes + (1.0 + n_tables) * (double)tensor_out(graph, op, 0)->bytes;
}

/* Return the factor of token rows, rounded to D as a model's own constant would be; 0: 1. */
static float embedding_scale(const struct lade_model_graph *graph)
{
  const float scale = graph->model.embedding_scale;
  if (graph->dtype == LADE_BF16)
    return lade_bf16_to_f32(lade_f32_to_bf16(scale));
  return graph->dtype == LADE_F16 ? lade_f16_to_f32(lade_f32_to_f16(scale)) : scale;
}

/*
 * Bind the embedding. If ranks' rows are added up, only the first rank adds positions; in backward all have the whole
 * gradient.
 */
static void embed_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                       void *args)
{
  const struct lade_tensor *table = tensor_in(graph, op, 1);
  const void *positions = graph->share.tp_rank == 0 ? in_at(bind, 2) : NULL;
  const int64_t first_token = lade_table_first_token(graph, op->in[1]);
  *(struct lade_embed_fwd_args *)args = (struct lade_embed_fwd_args){.dtype = graph->dtype,
                                                                     .batch = graph->batch,
                                                                     .seq_len = graph->seq_len,
                                                                     .d = table->dims[1],
                                                                     .vocabulary = table->dims[0],
                                                                     .first_token = first_token,
                                                                     .scale = embedding_scale(graph),
                                                                     .tokens = in_at(bind, 0),
                                                                     .token_table = in_at(bind, 1),
                                                                     .position_table = positions,
                                                                     .before = in_at(bind, 3),
                                                                     .x = out_at(bind, 0)};
}

static double embed_bwd_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 2.0 * (double)tensor_elements(tensor_in(graph, op, 1));
}

static void embed_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                           void *args)
{
  const struct lade_tensor *table = tensor_out(graph, op, 0);
  const int64_t first_token = lade_table_first_token(graph, graph->params[table->param].tensor);
  *(struct lade_embed_bwd_args *)args =
      (struct lade_embed_bwd_args){.dtype = graph->dtype,
                                   .batch = graph->batch,
                                   .seq_len = graph->seq_len,
                                   .d = table->dims[1],
                                   .vocabulary = table->dims[0],
                                   .first_token = first_token,
                                   .scale = embedding_scale(graph),
                                   .has_pad = graph->model.has_pad_token,
                                   .pad_token = (int32_t)graph->model.pad_token,
                                   .tokens = in_at(bind, 0),
                                   .dx = in_at(bind, 1),
                                   .d_token_table = out_at(bind, 0),
                                   .d_position_table = out_at(bind, 1),
                                   .positions = op->out[1] >= 0 ? tensor_out(graph, op, 1)->dims[0] : 0,
                                   .accumulate_token = bind->accumulate & 1,
                                   .accumulate_position = bind->accumulate >> 1 & 1,
                                   .workspace = (void *)bind->workspace};
}

/* ---- norm ---- */

static void norm_statistics(const struct lade_model_graph *graph, enum lade_norm_kind kind,
                            struct lade_op_output *ret_mean, struct lade_op_output *ret_rstd)
{
  if (kind == LADE_NORM_LAYER)
    *ret_mean = statistic_1d(".mean", lade_share_rows(graph));
  *ret_rstd = statistic_1d(".rstd", lade_share_rows(graph));
}

static void norm_outputs(const struct lade_model_graph *graph, const struct lade_op *op, struct lade_op_output *ret_out)
{
  ret_out[0] = same_as_input(graph, op);
  norm_statistics(graph, op->attr.norm, &ret_out[1], &ret_out[2]);
}

static void norm_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                      void *args)
{
  *(struct lade_norm_fwd_args *)args = (struct lade_norm_fwd_args){.dtype = graph->dtype,
                                                                   .kind = op->attr.norm,
                                                                   .n = tensor_in(graph, op, 0)->dims[0],
                                                                   .d = tensor_in(graph, op, 0)->dims[1],
                                                                   .eps = op->attr.eps,
                                                                   .weight_offset = op->attr.weight_offset,
                                                                   .x = in_at(bind, 0),
                                                                   .weight = in_at(bind, 1),
                                                                   .bias = in_at(bind, 2),
                                                                   .y = out_at(bind, 0),
                                                                   .mean = out_at(bind, 1),
                                                                   .rstd = out_at(bind, 2)};
}

static void norm_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                          void *args)
{
  *(struct lade_norm_bwd_args *)args = (struct lade_norm_bwd_args){.dtype = graph->dtype,
                                                                   .kind = op->attr.norm,
                                                                   .n = tensor_in(graph, op, 1)->dims[0],
                                                                   .d = tensor_in(graph, op, 1)->dims[1],
                                                                   .weight_offset = op->attr.weight_offset,
                                                                   .dy = in_at(bind, 0),
                                                                   .x = in_at(bind, 1),
                                                                   .weight = in_at(bind, 2),
                                                                   .mean = in_at(bind, 3),
                                                                   .rstd = in_at(bind, 4),
                                                                   .d_residual = in_at(bind, 5),
                                                                   .dx = out_at(bind, 0),
                                                                   .d_weight = out_at(bind, 1),
                                                                   .d_bias = out_at(bind, 2),
                                                                   .accumulate = accumulate_get(op, bind, 6),
                                                                   .workspace = (void *)bind->workspace};
}

/* ---- residual ---- */

static void residual_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                             struct lade_op_output *ret_out)
{
  ret_out[0] = same_as_input(graph, op);
  if (op->attr.norm == LADE_NORM_NONE)
    return;
  ret_out[1] = ret_out[0];
  ret_out[1].suffix = ".norm";
  norm_statistics(graph, op->attr.norm, &ret_out[2], &ret_out[3]);
}

static void residual_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                          void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_residual_fwd_args *)args =
      (struct lade_residual_fwd_args){.dtype = graph->dtype,
                                      .kind = op->attr.norm,
                                      .n = x->dims[0],
                                      .d = x->dims[1],
                                      .eps = op->attr.eps,
                                      .weight_offset = op->attr.weight_offset,
                                      .drop = rows_drop_get(graph, op, bind, x),
                                      .x = in_at(bind, 0),
                                      .bias = in_at(bind, 1),
                                      .residual = in_at(bind, 2),
                                      .sum = out_at(bind, 0),
                                      .weight = in_at(bind, 3),
                                      .norm_bias = in_at(bind, 4),
                                      .y = out_at(bind, 1),
                                      .mean = out_at(bind, 2),
                                      .rstd = out_at(bind, 3)};
}

static void residual_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                              const struct lade_bind *bind, void *args)
{
  const struct lade_tensor *sum = tensor_in(graph, op, 2);
  *(struct lade_residual_bwd_args *)args =
      (struct lade_residual_bwd_args){.dtype = graph->dtype,
                                      .kind = op->attr.norm,
                                      .n = sum->dims[0],
                                      .d = sum->dims[1],
                                      .weight_offset = op->attr.weight_offset,
                                      .drop = rows_drop_get(graph, op, bind, sum),
                                      .d_sum = in_at(bind, 0),
                                      .dy = in_at(bind, 1),
                                      .sum = in_at(bind, 2),
                                      .weight = in_at(bind, 3),
                                      .mean = in_at(bind, 4),
                                      .rstd = in_at(bind, 5),
                                      .d_residual = out_at(bind, 0),
                                      .dx = out_at(bind, 1),
                                      .d_x_bias = out_at(bind, 2),
                                      .d_weight = out_at(bind, 3),
                                      .d_norm_bias = out_at(bind, 4),
                                      .d_sum_bias = out_at(bind, 5),
                                      .accumulate = accumulate_get(op, bind, 4 | 8 | 16 | 32),
                                      .workspace = (void *)bind->workspace};
}

/* Bind the sum of two gradients: a residual without bias, dropout and norm. */
static void add_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                     void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_residual_fwd_args *)args = (struct lade_residual_fwd_args){
      .dtype = graph->dtype, .kind = LADE_NORM_NONE, .n = x->dims[0], .d = x->dims[1], .drop = {.scale = 1},
      .x = in_at(bind, 1), .residual = in_at(bind, 0), .sum = out_at(bind, 0)};
}

/* ---- elementwise: dropout ---- */

static void same_outputs(const struct lade_model_graph *graph, const struct lade_op *op, struct lade_op_output *ret_out)
{
  ret_out[0] = same_as_input(graph, op);
}

/* Bind dropout and its backward, which applies the same draw to the gradient. */
static void dropout_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                         void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  *(struct lade_dropout_args *)args = (struct lade_dropout_args){.dtype = graph->dtype,
                                                                 .n_elements = tensor_elements(x),
                                                                 .drop = rows_drop_get(graph, op, bind, x),
                                                                 .x = in_at(bind, 0),
                                                                 .y = out_at(bind, 0)};
}

/* ---- matmul ---- */

static void matmul_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                           struct lade_op_output *ret_out)
{
  ret_out[0] = activation_2d(tensor_in(graph, op, 0)->dims[0], tensor_in(graph, op, 1)->dims[0]);
}

static void matmul_gelu_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                                struct lade_op_output *ret_out)
{
  matmul_outputs(graph, op, &ret_out[0]);
  ret_out[1] = ret_out[0];
  ret_out[1].suffix = ".gelu";
}

/* Return 2 N out in, the flops of each of the three products of a linear layer. */
static double matmul_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  const struct lade_tensor *a = tensor_in(graph, op, 0), *b = tensor_in(graph, op, 1);
  if (op->kind == LADE_OP_MATMUL_DW) /* dy[N,out], x[N,in] */
    return 2.0 * (double)a->dims[1] * (double)tensor_elements(b);
  return 2.0 * (double)a->dims[0] * (double)tensor_elements(b); /* x or dy with N rows, weight[out,in] */
}

/* Return the arguments that the three products share: c[m,n] from operands 0 and 1. */
static struct lade_matmul_args matmul_args(const struct lade_model_graph *graph, const struct lade_bind *bind,
                                           enum lade_matmul_layout layout, int64_t m, int64_t n, int64_t k)
{
  return (struct lade_matmul_args){.layout = layout, .dtype = graph->dtype, .out = graph->dtype, .m = m, .n = n, .k = k,
                                   .a = in_at(bind, 0), .b = in_at(bind, 1), .c = out_at(bind, 0),
                                   .workspace = (void *)bind->workspace};
}

static void matmul_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                        void *args)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0), *weight = tensor_in(graph, op, 1);
  struct lade_matmul_args *a = args;
  *a = matmul_args(graph, bind, LADE_NT, x->dims[0], weight->dims[0], weight->dims[1]);
  a->tree = op->attr.y_tree;
  a->bias = op->attr.is_bias_shared && graph->share.tp_rank > 0 ? NULL : in_at(bind, 2);
}

static void matmul_gelu_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                             const struct lade_bind *bind, void *args)
{
  struct lade_matmul_args *a = args;
  matmul_bind(graph, op, bind, args);
  a->gelu_y = out_at(bind, 1);
}

static void matmul_dx_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                           void *args)
{
  const struct lade_tensor *dy = tensor_in(graph, op, 0), *weight = tensor_in(graph, op, 1);
  struct lade_matmul_args *a = args;
  *a = matmul_args(graph, bind, LADE_NN, dy->dims[0], weight->dims[1], weight->dims[0]);
  a->tree = op->attr.dx_tree;
}

static void matmul_dw_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                           void *args)
{
  const struct lade_tensor *dy = tensor_in(graph, op, 0), *x = tensor_in(graph, op, 1);
  struct lade_matmul_args *a = args;
  *a = matmul_args(graph, bind, LADE_TN, dy->dims[1], x->dims[1], dy->dims[0]);
  a->out = graph->accumulator;
  a->accumulate = accumulate_get(op, bind, 1);
}

static double bias_grad_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return (double)tensor_elements(tensor_in(graph, op, 0));
}

static void bias_grad_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                           void *args)
{
  const struct lade_tensor *dy = tensor_in(graph, op, 0);
  *(struct lade_column_sum_args *)args = (struct lade_column_sum_args){.dtype = graph->dtype,
                                                                       .m = dy->dims[0],
                                                                       .n = dy->dims[1],
                                                                       .x = in_at(bind, 0),
                                                                       .sum = out_at(bind, 0),
                                                                       .accumulate = accumulate_get(op, bind, 1),
                                                                       .workspace = (void *)bind->workspace};
}

/* ---- attention ---- */

static void attention_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                              struct lade_op_output *ret_out)
{
  ret_out[0] = activation_2d(rows_get(graph), op->attr.heads * op->attr.head_dim);
  ret_out[1] = (struct lade_op_output){.suffix = ".lse",
                                       .kind = LADE_TENSOR_ACTIVATION,
                                       .is_accumulator = true,
                                       .n_dims = 3,
                                       .dims = {graph->batch, op->attr.heads, graph->seq_len}};
}

/* Count one product: pairs of query and key under the causal mask and the window, over all heads, times 2 head_dim. */
static double attention_product_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  const double t = (double)graph->seq_len, window = op->attr.window ? (double)op->attr.window : t;
  const double pairs = window * (window + 1) + 2 * (t - window) * window; /* twice: the first rows, the others */
  return (double)(graph->batch * op->attr.heads) * pairs * (double)op->attr.head_dim;
}

/* Count two products: q k^T and p v. */
static double attention_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 2 * attention_product_flops(graph, op);
}

/* Count five products: q k^T again, dp = d_out v^T, dv, dq, dk. */
static double attention_bwd_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 5 * attention_product_flops(graph, op);
}

/*
 * Return the draw of attention. A microbatch has B H T T probabilities, with all heads of the model; this rank's heads
 * have an offset within each sequence. The count wraps past 2^64, which the counter allows.
 */
static struct lade_drop attention_drop_get(const struct lade_model_graph *graph, const struct lade_op *op,
                                           const struct lade_bind *bind)
{
  uint64_t of_head = (uint64_t)graph->seq_len * (uint64_t)graph->seq_len;
  uint64_t n = (uint64_t)graph->batch * (uint64_t)graph->model.heads * of_head;
  return drop_get(op, bind, n, (uint64_t)(graph->share.tp_rank * op->attr.heads) * of_head);
}

/* Return the form of the scores. @sinks and the input after it are the operands that it has in @op. */
static struct lade_score_form score_form_get(const struct lade_model_graph *graph, const struct lade_op *op,
                                             const struct lade_bind *bind, int sinks)
{
  return (struct lade_score_form){.scale = op->attr.attention_scale, .softcap = op->attr.attention_softcap,
                                  .alibi_max = op->attr.alibi_max, .is_alibi_rounded = op->attr.is_alibi_rounded,
                                  .alibi_first_head = graph->share.tp_rank * (int)op->attr.heads,
                                  .window = op->attr.window, .sinks = in_at(bind, sinks),
                                  .first_keys = in_at(bind, sinks + 1)};
}

static void attention_bind(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
                           void *args)
{
  *(struct lade_attention_fwd_args *)args =
      (struct lade_attention_fwd_args){.dtype = graph->dtype,
                                       .batch = graph->batch,
                                       .seq_len = graph->seq_len,
                                       .heads = op->attr.heads,
                                       .n_kv_heads = op->attr.n_kv_heads,
                                       .head_dim = op->attr.head_dim,
                                       .draw_heads = graph->model.heads,
                                       .drop = attention_drop_get(graph, op, bind),
                                       .form = score_form_get(graph, op, bind, 1),
                                       .qkv = in_at(bind, 0),
                                       .out = out_at(bind, 0),
                                       .lse = out_at(bind, 1),
                                       .workspace = (void *)bind->workspace};
}

static void attention_bwd_bind(const struct lade_model_graph *graph, const struct lade_op *op,
                               const struct lade_bind *bind, void *args)
{
  *(struct lade_attention_bwd_args *)args =
      (struct lade_attention_bwd_args){.dtype = graph->dtype,
                                       .batch = graph->batch,
                                       .seq_len = graph->seq_len,
                                       .heads = op->attr.heads,
                                       .n_kv_heads = op->attr.n_kv_heads,
                                       .head_dim = op->attr.head_dim,
                                       .draw_heads = graph->model.heads,
                                       .drop = attention_drop_get(graph, op, bind),
                                       .form = score_form_get(graph, op, bind, 4),
                                       .qkv = in_at(bind, 0),
                                       .out = in_at(bind, 1),
                                       .lse = in_at(bind, 2),
                                       .d_out = in_at(bind, 3),
                                       .d_qkv = out_at(bind, 0),
                                       .d_sinks = out_at(bind, 1),
                                       .d_bias = out_at(bind, 2),
                                       .accumulate_sinks = bind->accumulate >> 1 & 1,
                                       .accumulate_bias = bind->accumulate >> 2 & 1,
                                       .workspace = (void *)bind->workspace};
}

/* ---- collectives: no kernels; instructions of their own run them ---- */

/* Describe the gathered output: x of all ranks on the axis, one after the other, of the same type. */
static void all_gather_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                               struct lade_op_output *ret_out)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  ret_out[0] = activation_2d(x->dims[0] * graph->share.tp, x->dims[1]);
  ret_out[0].is_accumulator = x->dtype == graph->accumulator;
}

/* Describe the sum of all ranks' x, of the same type. */
static void all_reduce_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                               struct lade_op_output *ret_out)
{
  ret_out[0] = same_as_input(graph, op);
  ret_out[0].is_accumulator = tensor_in(graph, op, 0)->dtype == graph->accumulator;
}

static void reduce_scatter_outputs(const struct lade_model_graph *graph, const struct lade_op *op,
                                   struct lade_op_output *ret_out)
{
  const struct lade_tensor *x = tensor_in(graph, op, 0);
  ret_out[0] = activation_2d(x->dims[0] / graph->share.tp, x->dims[1]);
}

/* Return the bytes sent. Blocks have the size of the smaller side, which one rank gives or gets. */
static double collective_bytes(const struct lade_model_graph *graph, const struct lade_op *op)
{
  double n_others = graph->share.tp - 1;
  switch (op->kind) {
  case LADE_OP_ALL_GATHER: return n_others * (double)tensor_in(graph, op, 0)->bytes;
  case LADE_OP_REDUCE_SCATTER: return n_others * (double)tensor_out(graph, op, 0)->bytes;
  default: return 2 * n_others * (double)tensor_in(graph, op, 0)->bytes / graph->share.tp;
  }
}

/* ---- boundaries between stages ---- */

/* Describe the received residual stream, or this rank's part of it. An instruction moves it, no kernel. */
static void recv_outputs(const struct lade_model_graph *graph, const struct lade_op *op, struct lade_op_output *ret_out)
{
  ret_out[0] = activation_2d(lade_share_rows(graph) / lade_share_n_sent_parts(graph), graph->model.width);
}

static double send_bytes(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return (double)tensor_in(graph, op, 0)->bytes / lade_share_n_sent_parts(graph);
}

static void no_outputs(const struct lade_model_graph *graph, const struct lade_op *op, struct lade_op_output *ret_out)
{
}

static double boundary_flops(const struct lade_model_graph *graph, const struct lade_op *op)
{
  return 0;
}

/* ---- public ---- */

const char *lade_op_kind_name(enum lade_op_kind kind)
{
  return (unsigned)kind < LADE_N_OP_KINDS ? lade_op_table[kind].name : "unknown";
}

/* clang-format off: one line per fact reads better here */
const struct lade_op_entry lade_op_table[LADE_N_OP_KINDS] = {
  [LADE_OP_EMBED] = {"embed", LADE_K_EMBED_FWD, 4, 1, 3, embed_outputs, .flops_per_element = 1, .bytes = embed_bytes,
                     .bind = embed_bind, .backward = lade_embed_backward},
  [LADE_OP_EMBED_BWD] = {"embed_bwd", LADE_K_EMBED_BWD, 2, 2, -1, .flops = embed_bwd_flops, .bind = embed_bwd_bind},
  [LADE_OP_NORM] = {"norm", LADE_K_NORM_FWD, 3, 3, -1, norm_outputs, .flops_per_element = 8, .bind = norm_bind,
                    .backward = lade_norm_backward},
  [LADE_OP_NORM_BWD] = {"norm_bwd", LADE_K_NORM_BWD, 6, 3, 5, .flops_per_element = 16, .bind = norm_bwd_bind},
  [LADE_OP_RESIDUAL] = {"residual", LADE_K_RESIDUAL_FWD, 5, 4, 2, residual_outputs, .flops_per_element = 12,
                        .bind = residual_bind, .backward = lade_residual_backward},
  [LADE_OP_RESIDUAL_BWD] = {"residual_bwd", LADE_K_RESIDUAL_BWD, 6, 6, 0, .flops_per_element = 20,
                            .bind = residual_bwd_bind},
  [LADE_OP_DROPOUT] = {"dropout", LADE_K_DROPOUT, 1, 1, 0, same_outputs, .flops_per_element = 12,
                       .bind = dropout_bind, .backward = lade_dropout_backward},
  [LADE_OP_DROPOUT_BWD] = {"dropout_bwd", LADE_K_DROPOUT, 1, 1, 0, .flops_per_element = 12, .bind = dropout_bind},
  [LADE_OP_MATMUL] = {"matmul", LADE_K_MATMUL, 3, 1, -1, matmul_outputs, .flops = matmul_flops, .bind = matmul_bind,
                      .backward = lade_matmul_backward},
  [LADE_OP_MATMUL_GELU] = {"matmul_gelu", LADE_K_MATMUL_GELU_FWD, 3, 2, -1, matmul_gelu_outputs, .flops = matmul_flops,
                           .bind = matmul_gelu_bind, .backward = lade_matmul_gelu_backward},
  [LADE_OP_MATMUL_DX] = {"matmul_dx", LADE_K_MATMUL, 2, 1, -1, .flops = matmul_flops, .bind = matmul_dx_bind},
  [LADE_OP_MATMUL_GELU_BWD] = {"matmul_gelu_bwd", LADE_K_MATMUL_GELU_BWD, 3, 2, -1, .bias_out = 1,
                               .flops = matmul_flops, .bind = lade_op_matmul_gelu_bwd_bind},
  [LADE_OP_MATMUL_DW] = {"matmul_dw", LADE_K_MATMUL, 2, 1, -1, .flops = matmul_flops, .bind = matmul_dw_bind},
  [LADE_OP_BIAS_GRAD] = {"bias_grad", LADE_K_COLUMN_SUM, 1, 1, -1, .flops = bias_grad_flops, .bind = bias_grad_bind},
  [LADE_OP_ROPE] = {"rope", LADE_K_ROPE, 1, 1, 0, same_outputs, .flops_per_element = 3, .bind = lade_op_rope_bind,
                    .backward = lade_rope_backward},
  [LADE_OP_ROPE_BWD] = {"rope_bwd", LADE_K_ROPE, 1, 1, 0, .flops_per_element = 3, .bind = lade_op_rope_bind},
  [LADE_OP_ATTENTION] = {"attention", LADE_K_ATTENTION_FWD, 3, 2, -1, attention_outputs, .flops = attention_flops,
                         .bind = attention_bind, .backward = lade_attention_backward},
  [LADE_OP_ATTENTION_BWD] = {"attention_bwd", LADE_K_ATTENTION_BWD, 6, 3, -1, .bias_out = 2,
                             .flops = attention_bwd_flops, .bind = attention_bwd_bind},
  [LADE_OP_GELU] = {"gelu", LADE_K_GELU_FWD, 1, 1, 0, same_outputs, .flops_per_element = 16, .bind = lade_op_gelu_bind,
                    .backward = lade_gelu_backward},
  [LADE_OP_GELU_BWD] = {"gelu_bwd", LADE_K_GELU_BWD, 2, 2, 1, .bias_out = 1, .flops_per_element = 24,
                        .bind = lade_op_gelu_bwd_bind},
  [LADE_OP_SWIGLU] = {"swiglu", LADE_K_SWIGLU_FWD, 1, 1, -1, lade_op_swiglu_outputs, .flops_per_element = 14,
                      .bind = lade_op_swiglu_bind, .backward = lade_swiglu_backward},
  [LADE_OP_SWIGLU_BWD] = {"swiglu_bwd", LADE_K_SWIGLU_BWD, 2, 1, 0, .flops_per_element = 10,
                          .bind = lade_op_swiglu_bwd_bind},
  [LADE_OP_ACTIVATION] = {"activation", LADE_K_ACTIVATION_FWD, 1, 1, 0, same_outputs, .flops_per_element = 20,
                          .bind = lade_op_activation_bind, .backward = lade_activation_backward},
  [LADE_OP_ACTIVATION_BWD] = {"activation_bwd", LADE_K_ACTIVATION_BWD, 2, 1, 1, .flops_per_element = 28,
                              .bind = lade_op_activation_bwd_bind},
  [LADE_OP_GATED] = {"gated", LADE_K_GATED_FWD, 1, 1, -1, lade_op_swiglu_outputs, .flops_per_element = 20,
                     .bind = lade_op_gated_bind, .backward = lade_gated_backward},
  [LADE_OP_GATED_BWD] = {"gated_bwd", LADE_K_GATED_BWD, 2, 1, 0, .flops_per_element = 14,
                         .bind = lade_op_gated_bwd_bind},
  [LADE_OP_QK_SUMS] = {"qk_sums", LADE_K_QK_SUMS, 1, 1, -1, lade_op_qk_sums_outputs, .flops = lade_op_qk_sums_flops,
                       .bind = lade_op_qk_sums_bind, .backward = lade_qk_sums_backward},
  [LADE_OP_QK_NORM] = {"qk_norm", LADE_K_QK_NORM_FWD, 4, 2, 0, lade_op_qk_norm_outputs, .flops_per_element = 5,
                       .bind = lade_op_qk_norm_bind, .backward = lade_qk_norm_backward},
  [LADE_OP_QK_DOTS] = {"qk_dots", LADE_K_QK_DOTS, 5, 1, -1, .flops = lade_op_qk_sums_flops,
                       .bind = lade_op_qk_dots_bind},
  [LADE_OP_QK_NORM_BWD] = {"qk_norm_bwd", LADE_K_QK_NORM_BWD, 6, 3, 0, .flops_per_element = 12,
                           .bind = lade_op_qk_norm_bwd_bind},
  [LADE_OP_SCALE] = {"scale", LADE_K_ACTIVATION_FWD, 1, 1, 0, same_outputs, .flops_per_element = 1,
                     .bind = lade_op_activation_bind, .backward = lade_scale_backward},
  [LADE_OP_SCALE_BWD] = {"scale_bwd", LADE_K_ACTIVATION_FWD, 1, 1, 0, .flops_per_element = 1,
                         .bind = lade_op_activation_bind},
  [LADE_OP_ADD] = {"add", LADE_K_RESIDUAL_FWD, 2, 1, 0, .flops_per_element = 1, .bind = add_bind},
  [LADE_OP_HEAD_LOSS] = {"head_loss", LADE_K_HEAD_LOSS_FWD, 3, 4, -1, lade_op_head_loss_outputs,
                         .flops = lade_op_head_loss_flops,
                         .bind = lade_op_head_loss_bind, .backward = lade_head_loss_backward},
  [LADE_OP_HEAD_LOSS_BWD] = {"head_loss_bwd", LADE_K_HEAD_LOSS_BWD, 6, 2, 4, .flops = lade_op_head_loss_bwd_flops,
                             .bind = lade_op_head_loss_bwd_bind},
  [LADE_OP_HEAD_STATS] = {"head_stats", LADE_K_HEAD_STATS, 4, 2, 3, lade_op_head_stats_outputs,
                          .flops = lade_op_head_loss_flops,
                          .bind = lade_op_head_stats_bind, .backward = lade_head_stats_backward},
  [LADE_OP_HEAD_JOIN] = {"head_join", LADE_K_HEAD_JOIN, 2, 3, -1, lade_op_head_loss_outputs,
                         .flops = lade_op_head_join_flops,
                         .bind = lade_op_head_join_bind, .backward = lade_head_join_backward},
  [LADE_OP_ALL_REDUCE] = {"all_reduce", LADE_N_KERNELS, 1, 1, 0, all_reduce_outputs, .flops = boundary_flops,
                          .bytes = collective_bytes, .backward = lade_all_reduce_backward},
  [LADE_OP_ALL_GATHER] = {"all_gather", LADE_N_KERNELS, 1, 1, -1, all_gather_outputs, .flops = boundary_flops,
                          .bytes = collective_bytes, .backward = lade_all_gather_backward},
  [LADE_OP_REDUCE_SCATTER] = {"reduce_scatter", LADE_N_KERNELS, 1, 1, -1, reduce_scatter_outputs,
                              .flops = boundary_flops, .bytes = collective_bytes,
                              .backward = lade_reduce_scatter_backward},
  [LADE_OP_SEND] = {"send", LADE_N_KERNELS, 1, 0, -1, no_outputs, .flops = boundary_flops, .bytes = send_bytes,
                    .backward = lade_send_backward},
  [LADE_OP_RECV] = {"recv", LADE_N_KERNELS, 0, 1, -1, recv_outputs, .flops = boundary_flops,
                    .backward = lade_recv_backward},
};
/* clang-format on */
