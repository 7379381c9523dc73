/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward, derived: one rule per forward op, applied while walking the forward ops in reverse.
 *
 * build->gradient_of maps a tensor to the tensor that holds the gradient which has reached it so far. A rule reads the
 * gradients of its op's outputs, pushes the backward ops, and records the gradients of its inputs. Some values have two
 * consumers: one branch of the residual stream goes through a norm, the other goes straight on. The norm's rule finds
 * the straight gradient already there and feeds it to norm_bwd; the result is the sum, which is the value's new
 * gradient. So no separate op adds two gradients, and every gradient of an activation still has one producer.
 * Parameters have one gradient tensor each, an accumulator; a tied table is written twice.
 *
 * A gradient that passes through an op unchanged costs nothing. Take sum = residual + drop(x + bias) without a norm:
 * its backward gives the residual the same tensor, and without dropout x too. Only the bias's column sum and the
 * dropout's draw are ops then. The backward of the residual before it, if that has a norm, reads the same gradient as
 * d_sum, and makes the column sum on the way.
 *
 * The gradient of a bias is the column sums of dy. The op that makes dy makes them too, if it can (the table's
 * bias_out): dy is then not read again for them.
 *
 * Order inside of a layer y = x W^T + b: weight gradient, bias gradient, then dx. At the MLP's second product x is the
 * 4d wide gelu output, whose last use is the weight gradient. With that first, x ends before dx (4d wide too) begins.
 * The peak of the block is then one wide value lower than in the other order. At the first product both orders hold the
 * same wide values. So one order serves everywhere.
 *
 * If dx is one rank's part of a sum, dx comes first: the ranks add their parts up while the weight's gradient is
 * computed. As shown above this costs no memory, because these are first products.
 *
 * The MLP's second product reads GELU's output. With fuses_gelu the product that makes the gradient of that output
 * multiplies it by GELU's slope at once, so that the wide gradient is not written and read in between
 * (matmul_gelu_bwd). That op has the GELU's input and its gradient at one time, while GELU's own backward works in
 * place. So a device whose products cannot do it in one kernel would only lose memory by it.
 *
 * Rejected: stating per op the values that it saves. Saved values are those that a forward op makes and a backward op
 * reads. The graph's edges contain this already, and a second statement could disagree.
 */
#include "graph/build.h"

#include <stdio.h>

#include "base/base.h"

/* ---- gradients of tensors ---- */

static int gradient_find(const struct lade_build *build, int tensor)
{
  return tensor < 0 ? -1 : build->gradient_of[tensor];
}

/*
 * Return the gradient of @tensor.
 *
 * pre: it exists, because every forward value of a rule leads to the loss.
 */
static int gradient_get(const struct lade_build *build, int tensor)
{
  int gradient = gradient_find(build, tensor);
  LADE_ASSERT(gradient >= 0);
  return gradient;
}

/* Make a new activation "d.<name>" shaped like @tensor, and record it as @tensor's gradient. */
static int gradient_make(struct lade_build *build, int tensor)
{
  const struct lade_tensor like = build->graph->tensors[tensor];
  char name[LADE_NAME_BYTES + 2];
  snprintf(name, sizeof(name), "d.%s", like.name);
  int gradient = lade_build_tensor(build, LADE_TENSOR_ACTIVATION, like.dtype, like.n_dims, like.dims, name);
  build->gradient_of[tensor] = gradient;
  return gradient;
}

/*
 * Make the tensor for the gradient of @op's first input that its backward computes: the whole gradient, or this rank's
 * part "d.<name>.part" of it.
 */
static int partial_make(struct lade_build *build, const struct lade_op *op)
{
  if (!op->attr.is_dx_partial)
    return gradient_make(build, op->in[0]);
  const struct lade_tensor like = build->graph->tensors[op->in[0]];
  char name[LADE_NAME_BYTES + 7];
  snprintf(name, sizeof(name), "d.%s.part", like.name);
  return lade_build_tensor(build, LADE_TENSOR_ACTIVATION, like.dtype, like.n_dims, like.dims, name);
}

/* Add up the parts of all ranks if @dx is this rank's part of the gradient of @forward's input. */
static void partial_complete(struct lade_build *build, int forward, int dx)
{
  if (!build->graph->ops[forward].attr.is_dx_partial)
    return;
  int sum = gradient_make(build, build->graph->ops[forward].in[0]);
  lade_build_backward_op(build, LADE_OP_ALL_REDUCE, forward, &dx, &sum);
}

/* Return a parameter's accumulator; -1 for an absent parameter. */
static int accumulator_get(const struct lade_build *build, int tensor)
{
  return tensor < 0 ? -1 : build->graph->params[build->graph->tensors[tensor].param].grad;
}

/*
 * Add the gradient @before (-1: none) of @tensor, an input of @forward, to the one made since. Each is of one consumer,
 * and the tensor's gradient is their sum.
 */
static void gradient_join(struct lade_build *build, int forward, int tensor, int before)
{
  if (before < 0)
    return;
  int in[] = {gradient_get(build, tensor), before}, sum = gradient_make(build, tensor);
  lade_build_backward_op(build, LADE_OP_ADD, forward, in, &sum);
}

/* Return a copy of a forward op, so a rule does not read an op in the array while it pushes another. */
static struct lade_op forward_get(const struct lade_build *build, int forward)
{
  return build->graph->ops[forward];
}

/* ---- rules ---- */

void lade_embed_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  const int dx = gradient_get(build, op.out[0]), before = op.in[3];
  int in[] = {op.in[0], dx};
  int out[] = {accumulator_get(build, op.in[1]), before < 0 ? accumulator_get(build, op.in[2]) : -1};
  lade_build_backward_op(build, LADE_OP_EMBED_BWD, forward, in, out);
  if (before >= 0) /* the part's rows pass through unchanged, and no part reads those of others */
    build->gradient_of[before] = dx;
}

void lade_norm_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int d_residual = gradient_find(build, op.in[0]);
  int in[] = {gradient_get(build, op.out[0]), op.in[0], op.in[1], op.out[1], op.out[2], d_residual};
  int out[] = {gradient_make(build, op.in[0]), accumulator_get(build, op.in[1]), accumulator_get(build, op.in[2])};
  lade_build_backward_op(build, LADE_OP_NORM_BWD, forward, in, out);
}

/* True if a forward op between @producer and @reader reads @tensor. */
static bool is_read_between(const struct lade_model_graph *graph, int tensor, int producer, int reader)
{
  for (int op = producer + 1; op < reader; op++)
    for (int i = 0; i < graph->ops[op].n_in; i++)
      if (graph->ops[op].in[i] == tensor)
        return true;
  return false;
}

/*
 * Return the residual with a norm whose backward reads the gradient at the sum of @forward, a residual without a norm,
 * as it is: that which makes @forward's residual in its unit, if no dropout and no other reader is between. Else -1.
 */
static int residual_before(const struct lade_build *build, int forward)
{
  const struct lade_model_graph *graph = build->graph;
  const struct lade_op *op = &graph->ops[forward];
  const int before = graph->tensors[op->in[2]].producer;
  if (op->attr.norm != LADE_NORM_NONE || op->attr.dropout > 0 || before < graph->units[op->unit].first_fwd ||
      graph->ops[before].kind != LADE_OP_RESIDUAL || graph->ops[before].attr.norm == LADE_NORM_NONE ||
      graph->ops[before].out[0] != op->in[2])
    return -1;
  return is_read_between(graph, op->in[2], before, forward) ? -1 : before;
}

/* Return the accumulator of the bias whose gradient is the column sums of d_sum at @forward, a residual with a norm. */
static int sum_bias_get(const struct lade_build *build, int forward)
{
  const struct lade_model_graph *graph = build->graph;
  const struct lade_unit *unit = &graph->units[graph->ops[forward].unit];
  for (int next = forward + 1; next < unit->first_fwd + unit->n_fwd; next++)
    if (graph->ops[next].kind == LADE_OP_RESIDUAL && residual_before(build, next) == forward)
      return accumulator_get(build, graph->ops[next].in[1]);
  return -1;
}

/* Pass the gradient on unchanged, for a residual without a norm; push the ops of dropout and bias. */
static void residual_plain_backward(struct lade_build *build, int forward, const struct lade_op *op)
{
  int d_sum = gradient_get(build, op->out[0]), dx = d_sum;
  build->gradient_of[op->in[2]] = d_sum;
  if (op->attr.dropout > 0) {
    dx = gradient_make(build, op->in[0]);
    lade_build_backward_op(build, LADE_OP_DROPOUT_BWD, forward, &d_sum, &dx);
  }
  build->gradient_of[op->in[0]] = dx;
  if (op->in[1] >= 0 && residual_before(build, forward) < 0) {
    int d_bias = accumulator_get(build, op->in[1]);
    lade_build_backward_op(build, LADE_OP_BIAS_GRAD, forward, &dx, &d_bias);
  }
}

void lade_residual_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  LADE_ASSERT(gradient_find(build, op.in[2]) < 0); /* a second consumer of the residual would need an add */
  if (op.attr.norm == LADE_NORM_NONE) {
    residual_plain_backward(build, forward, &op);
    return;
  }
  int in[] = {gradient_find(build, op.out[0]), gradient_get(build, op.out[1]), op.out[0], op.in[3], op.out[2],
              op.out[3]};
  int d_residual = gradient_make(build, op.out[0]); /* the whole gradient at the sum */
  int dx = op.attr.dropout > 0 ? gradient_make(build, op.in[0]) : -1;
  int out[] = {d_residual, dx, accumulator_get(build, op.in[1]), accumulator_get(build, op.in[3]),
               accumulator_get(build, op.in[4]), sum_bias_get(build, forward)};
  LADE_ASSERT(out[5] < 0 || in[0] >= 0);
  lade_build_backward_op(build, LADE_OP_RESIDUAL_BWD, forward, in, out);
  build->gradient_of[op.in[2]] = d_residual;
  build->gradient_of[op.in[0]] = dx >= 0 ? dx : d_residual;
}

void lade_dropout_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_DROPOUT_BWD, forward, &dy, &dx);
}

/* Push the gradients of weight and bias. */
static void matmul_params_backward(struct lade_build *build, int forward, const struct lade_op *op, int dy)
{
  int d_weight = accumulator_get(build, op->in[1]);
  lade_build_backward_op(build, LADE_OP_MATMUL_DW, forward, (int[]){dy, op->in[0]}, &d_weight);
  if (op->in[2] < 0)
    return;
  lade_build_bias_grad(build, forward, dy, accumulator_get(build, op->in[2]));
}

/* Return the op with the GELU that makes the product's x, if nothing else reads it and the graph fuses it; else -1. */
static int gelu_find(const struct lade_build *build, int forward)
{
  const struct lade_model_graph *graph = build->graph;
  const struct lade_op *op = &graph->ops[forward];
  const int producer = graph->tensors[op->in[0]].producer;
  const bool has_gelu = producer >= 0 && (graph->ops[producer].kind == LADE_OP_GELU ||
                                          graph->ops[producer].kind == LADE_OP_MATMUL_GELU);
  if (!build->fuses_gelu || op->attr.is_dx_partial || gradient_find(build, op->in[0]) >= 0 ||
      !has_gelu || producer < graph->units[op->unit].first_fwd)
    return -1;
  return is_read_between(graph, op->in[0], producer, forward) ? -1 : producer;
}

/* Return the input of the GELU in op @gelu: the op's own, or the sums that it stores. */
static int gelu_input(const struct lade_build *build, int gelu)
{
  const struct lade_op *op = &build->graph->ops[gelu];
  return op->kind == LADE_OP_MATMUL_GELU ? op->out[0] : op->in[0];
}

/* Push the gradient of the input of the GELU in op @gelu, whose output the product @op reads. */
static void matmul_gelu_backward(struct lade_build *build, int forward, const struct lade_op *op, int gelu, int dy)
{
  const int x = gelu_input(build, gelu);
  int in[] = {dy, op->in[1], x}, out[] = {gradient_make(build, x), -1};
  lade_build_backward_op(build, LADE_OP_MATMUL_GELU_BWD, forward, in, out);
}

void lade_matmul_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  const int gelu = gelu_find(build, forward);
  int dy = gradient_get(build, op.out[0]), before = gradient_find(build, op.in[0]);
  if (!op.attr.is_dx_partial)
    matmul_params_backward(build, forward, &op, dy);
  if (gelu >= 0) {
    matmul_gelu_backward(build, forward, &op, gelu, dy);
    return;
  }
  int dx = partial_make(build, &op);
  lade_build_backward_op(build, LADE_OP_MATMUL_DX, forward, (int[]){dy, op.in[1]}, &dx);
  partial_complete(build, forward, dx);
  gradient_join(build, forward, op.in[0], before);
  if (op.attr.is_dx_partial)
    matmul_params_backward(build, forward, &op, dy);
}

/* Push GELU's backward, unless the product that reads GELU has made it, and then that of the product. */
void lade_matmul_gelu_backward(struct lade_build *build, int forward)
{
  const struct lade_op op = forward_get(build, forward);
  if (gradient_find(build, op.out[1]) >= 0) {
    int in[] = {op.out[0], gradient_get(build, op.out[1])}, out[] = {gradient_make(build, op.out[0]), -1};
    lade_build_backward_op(build, LADE_OP_GELU_BWD, forward, in, out);
  }
  lade_matmul_backward(build, forward);
}

void lade_rope_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_ROPE_BWD, forward, &dy, &dx);
}

void lade_attention_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int in[] = {op.in[0], op.out[0], op.out[1], gradient_get(build, op.out[0]), op.in[1], op.in[2]};
  int out[] = {gradient_make(build, op.in[0]), accumulator_get(build, op.in[1]), -1};
  lade_build_backward_op(build, LADE_OP_ATTENTION_BWD, forward, in, out);
}

/* Push the backward op of an activation: x, dy -> dx, and for some kinds a bias's gradient, which joins later. */
static void activation_backward(struct lade_build *build, int forward, enum lade_op_kind kind)
{
  struct lade_op op = forward_get(build, forward);
  int in[] = {op.in[0], gradient_get(build, op.out[0])};
  int out[] = {gradient_make(build, op.in[0]), -1};
  lade_build_backward_op(build, kind, forward, in, out);
}

void lade_gelu_backward(struct lade_build *build, int forward)
{
  const struct lade_op op = forward_get(build, forward);
  if (gradient_find(build, op.out[0]) >= 0)
    activation_backward(build, forward, LADE_OP_GELU_BWD);
  else
    LADE_ASSERT(gradient_find(build, op.in[0]) >= 0); /* the product that read y has made dx */
}

void lade_swiglu_backward(struct lade_build *build, int forward)
{
  activation_backward(build, forward, LADE_OP_SWIGLU_BWD);
}

void lade_activation_backward(struct lade_build *build, int forward)
{
  activation_backward(build, forward, LADE_OP_ACTIVATION_BWD);
}

void lade_gated_backward(struct lade_build *build, int forward)
{
  activation_backward(build, forward, LADE_OP_GATED_BWD);
}

void lade_scale_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_SCALE_BWD, forward, &dy, &dx);
}

/* Push the sums that the backward of a norm needs over the heads of all ranks. Return them. */
static int qk_dots_make(struct lade_build *build, int forward, const struct lade_op *op, int dy)
{
  const struct lade_tensor like = build->graph->tensors[op->in[3]];
  char name[LADE_NAME_BYTES + 12];
  int dots[2];
  for (int i = 0; i < 2; i++) {
    snprintf(name, sizeof(name), "d.%s%s", like.name, i ? "" : ".part");
    dots[i] = lade_build_tensor(build, LADE_TENSOR_ACTIVATION, like.dtype, like.n_dims, like.dims, name);
  }
  int in[] = {dy, op->in[0], op->in[1], op->in[2], op->out[1]};
  lade_build_backward_op(build, LADE_OP_QK_DOTS, forward, in, &dots[0]);
  lade_build_backward_op(build, LADE_OP_ALL_REDUCE, forward, &dots[0], &dots[1]);
  return dots[1];
}

void lade_qk_norm_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), dots = op.in[3] < 0 ? -1 : qk_dots_make(build, forward, &op, dy);
  int in[] = {dy, op.in[0], op.in[1], op.in[2], op.out[1], dots};
  int out[] = {gradient_make(build, op.in[0]), accumulator_get(build, op.in[1]), accumulator_get(build, op.in[2])};
  lade_build_backward_op(build, LADE_OP_QK_NORM_BWD, forward, in, out);
  if (op.in[3] >= 0)
    build->gradient_of[op.in[3]] = dots; /* so that the walk passes it to the sums, which need no more */
}

/* Add no op: the gradient through the sums is part of qk_norm's own backward. */
void lade_qk_sums_backward(struct lade_build *build, int forward)
{
}

void lade_head_loss_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int in[] = {op.in[0], op.in[1], op.in[2], op.out[1], -1, op.out[3]};
  int out[] = {gradient_make(build, op.in[0]), accumulator_get(build, op.in[1])};
  lade_build_backward_op(build, LADE_OP_HEAD_LOSS_BWD, forward, in, out);
}

/*
 * Pass a row's log-sum-exp on as the gradient of the statistics. The gradient of one rank's logits needs no other value
 * of other ranks. So the backward of the gather between the two halves passes it on.
 */
void lade_head_join_backward(struct lade_build *build, int forward)
{
  const struct lade_op *op = &build->graph->ops[forward];
  build->gradient_of[op->in[0]] = op->out[1];
}

/* Make the sum in A of dx over the parts of a table up to that of @op. */
static int dx_sum_make(struct lade_build *build, const struct lade_op *op)
{
  const struct lade_tensor like = build->graph->tensors[op->in[0]], stats = build->graph->tensors[op->out[0]];
  char name[2 * LADE_NAME_BYTES];
  snprintf(name, sizeof(name), "d.%s", stats.name);
  return lade_build_tensor(build, LADE_TENSOR_ACTIVATION, build->graph->accumulator, like.n_dims, like.dims, name);
}

/*
 * Push the backward ops of all parts at the first part, which the walk reaches last. The backward of parts runs in the
 * forward order too.
 */
void lade_head_stats_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  const int lse = gradient_get(build, op.out[0]);
  if (op.in[3] >= 0) {
    build->gradient_of[op.in[3]] = lse;
    return;
  }
  int dx = -1, before, last = forward + build->graph->params[build->graph->tensors[op.in[1]].param].n_parts - 1;
  for (int part = forward; part <= last; part++) {
    op = forward_get(build, part);
    before = dx;
    dx = part < last ? dx_sum_make(build, &op) : partial_make(build, &op);
    int in[] = {op.in[0], op.in[1], op.in[2], lse, before, op.out[1]};
    int out[] = {dx, accumulator_get(build, op.in[1])};
    lade_build_backward_op(build, LADE_OP_HEAD_LOSS_BWD, part, in, out);
  }
  partial_complete(build, last, dx);
}

/* Give each rank's part the gradient of the sum. */
void lade_all_reduce_backward(struct lade_build *build, int forward)
{
  const struct lade_op *op = &build->graph->ops[forward];
  build->gradient_of[op->in[0]] = gradient_get(build, op->out[0]);
}

/*
 * Pass the gradient on. If all ranks compute the same from the gathered value, they have the same gradient. Otherwise
 * each has a part, and a reduce-scatter adds the parts.
 */
void lade_all_gather_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), before = gradient_find(build, op.in[0]);
  if (!op.attr.is_dx_partial) {
    build->gradient_of[op.in[0]] = dy;
    return;
  }
  int dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_REDUCE_SCATTER, forward, &dy, &dx);
  gradient_join(build, forward, op.in[0], before);
}

void lade_reduce_scatter_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_ALL_GATHER, forward, &dy, &dx);
}

/* Make the tensor for the rows of the gradient of @x that this rank receives in the scattered form. */
static int gradient_rows_make(struct lade_build *build, int x)
{
  const struct lade_tensor like = build->graph->tensors[x];
  const int64_t dims[] = {like.dims[0] / lade_share_n_sent_parts(build->graph), like.dims[1]};
  char name[LADE_NAME_BYTES + 7];
  snprintf(name, sizeof(name), "d.%s.rows", like.name);
  return lade_build_tensor(build, LADE_TENSOR_ACTIVATION, like.dtype, 2, dims, name);
}

/* Receive the gradient of the activation that was sent to the next piece; recv's rule sends it. */
void lade_send_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dx = gradient_make(build, op.in[0]);
  if (lade_share_n_sent_parts(build->graph) == 1) {
    lade_build_backward_op(build, LADE_OP_RECV, forward, NULL, &dx);
    return;
  }
  const int rows = gradient_rows_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_RECV, forward, NULL, &rows);
  lade_build_backward_op(build, LADE_OP_ALL_GATHER, forward, &rows, &dx);
}

void lade_recv_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dx = gradient_get(build, op.out[0]);
  lade_build_backward_op(build, LADE_OP_SEND, forward, &dx, NULL);
}

/* ---- the walk ---- */

void lade_build_backward(struct lade_build *build)
{
  struct lade_model_graph *graph = build->graph;
  for (int i_unit = graph->n_units - 1; i_unit >= 0; i_unit--) {
    struct lade_unit *unit = &graph->units[i_unit];
    build->unit = i_unit;
    unit->first_bwd = graph->n_ops;
    for (int i_op = unit->first_fwd + unit->n_fwd - 1; i_op >= unit->first_fwd; i_op--)
      lade_op_table[graph->ops[i_op].kind].backward(build, i_op);
    unit->n_bwd = graph->n_ops - unit->first_bwd;
  }
}
