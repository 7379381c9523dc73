/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward, derived: one rule per forward op, applied while walking the forward ops in reverse.
 *
 * build->gradient_of maps a tensor to the tensor that holds the gradient which has reached it so far. A
 * rule reads the gradients of its op's outputs, pushes the backward ops, and records the gradients of its
 * inputs. When a value has two consumers (the residual stream: one branch goes through a norm, the other
 * straight on), the norm's rule finds the straight gradient already there, feeds it to norm_bwd, whose
 * result is the sum and the value's new gradient. So no op of its own ever adds two gradients, and every
 * gradient of an activation still has one producer. Parameters have one gradient tensor each, an
 * accumulator; a tied table is simply written twice.
 *
 * What a gradient passes through unchanged costs nothing: without a norm the backward of
 * sum = residual + drop(x + bias) is the same tensor for the residual, and without dropout the same
 * tensor for x. Only the bias's column sum and the dropout's draw are ops then.
 *
 * Order inside of a layer y = x W^T + b: weight gradient, bias gradient, then dx. At the MLP's second
 * product x is the 4d wide gelu output, whose last use is the weight gradient: with that first, x is dead
 * before dx (4d wide too) is born, and the peak of the block is one wide value lower than in the other
 * order. At the first product both orders hold the same wide values. So the one order serves everywhere.
 *
 * Where dx is one rank's part of a sum the order is dx first: the ranks add their parts up while the weight's
 * gradient is computed, which by the above costs no memory, for these are first products.
 *
 * Rejected: stating per op what it saves. Saved is what a backward op reads and a forward op makes; the
 * graph's edges say it already, and a second statement could disagree.
 */
#include "graph/build.h"

#include <stdio.h>

#include "base/base.h"

/* ---- gradients of tensors ---- */

static int gradient_find(const struct lade_build *build, int tensor)
{
  return tensor < 0 ? -1 : build->gradient_of[tensor];
}

/* An op's gradient exists before its rule runs: every forward value here leads to the loss. */
static int gradient_get(const struct lade_build *build, int tensor)
{
  int gradient = gradient_find(build, tensor);
  LADE_ASSERT(gradient >= 0);
  return gradient;
}

/* A new activation "d.<name>" shaped like @tensor, now its gradient. */
static int gradient_make(struct lade_build *build, int tensor)
{
  const struct lade_tensor like = build->graph->tensors[tensor];
  char name[LADE_NAME_BYTES + 2];
  snprintf(name, sizeof(name), "d.%s", like.name);
  int gradient = lade_build_tensor(build, LADE_TENSOR_ACTIVATION, like.dtype, like.n_dims, like.dims, name);
  build->gradient_of[tensor] = gradient;
  return gradient;
}

/* What @op's backward makes as the gradient of its first input: that, or this rank's part "d.<name>.part" of it. */
static int partial_make(struct lade_build *build, const struct lade_op *op)
{
  if (!op->attr.is_dx_partial)
    return gradient_make(build, op->in[0]);
  const struct lade_tensor like = build->graph->tensors[op->in[0]];
  char name[LADE_NAME_BYTES + 7];
  snprintf(name, sizeof(name), "d.%s.part", like.name);
  return lade_build_tensor(build, LADE_TENSOR_ACTIVATION, like.dtype, like.n_dims, like.dims, name);
}

/* Add up the ranks' parts @dx of @forward's gradient, if parts they are. */
static void partial_complete(struct lade_build *build, int forward, int dx)
{
  if (!build->graph->ops[forward].attr.is_dx_partial)
    return;
  int sum = gradient_make(build, build->graph->ops[forward].in[0]);
  lade_build_backward_op(build, LADE_OP_ALL_REDUCE, forward, &dx, &sum);
}

/* A parameter's accumulator; -1 for an absent parameter. */
static int accumulator_get(const struct lade_build *build, int tensor)
{
  return tensor < 0 ? -1 : build->graph->params[build->graph->tensors[tensor].param].grad;
}

/* A copy: pushing moves nothing, but a rule should not look at an op while it pushes another. */
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
  if (before >= 0) /* the rows that other parts have passed unchanged, and no part looks at others' */
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

/* Without a norm: the gradient goes on as it is; dropout and bias take what they need. */
static void residual_plain_backward(struct lade_build *build, int forward, const struct lade_op *op)
{
  int d_sum = gradient_get(build, op->out[0]), dx = d_sum;
  build->gradient_of[op->in[2]] = d_sum;
  if (op->attr.dropout > 0) {
    dx = gradient_make(build, op->in[0]);
    lade_build_backward_op(build, LADE_OP_DROPOUT_BWD, forward, &d_sum, &dx);
  }
  build->gradient_of[op->in[0]] = dx;
  if (op->in[1] >= 0) {
    int d_bias = accumulator_get(build, op->in[1]);
    lade_build_backward_op(build, LADE_OP_BIAS_GRAD, forward, &dx, &d_bias);
  }
}

void lade_residual_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  LADE_ASSERT(gradient_find(build, op.in[2]) < 0); /* a later reader of residual would need an add */
  if (op.attr.norm == LADE_NORM_NONE) {
    residual_plain_backward(build, forward, &op);
    return;
  }
  int in[] = {gradient_find(build, op.out[0]), gradient_get(build, op.out[1]), op.out[0], op.in[3], op.out[2],
              op.out[3]};
  int d_residual = gradient_make(build, op.out[0]); /* the whole gradient at the sum */
  int dx = op.attr.dropout > 0 ? gradient_make(build, op.in[0]) : -1;
  int out[] = {d_residual, dx, accumulator_get(build, op.in[1]), accumulator_get(build, op.in[3]),
               accumulator_get(build, op.in[4])};
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

/* Gradients of weight and bias. */
static void matmul_params_backward(struct lade_build *build, int forward, const struct lade_op *op, int dy)
{
  int d_weight = accumulator_get(build, op->in[1]);
  lade_build_backward_op(build, LADE_OP_MATMUL_DW, forward, (int[]){dy, op->in[0]}, &d_weight);
  if (op->in[2] < 0)
    return;
  int d_bias = accumulator_get(build, op->in[2]);
  lade_build_backward_op(build, LADE_OP_BIAS_GRAD, forward, &dy, &d_bias);
}

void lade_matmul_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]);
  if (!op.attr.is_dx_partial)
    matmul_params_backward(build, forward, &op, dy);
  int dx = partial_make(build, &op);
  lade_build_backward_op(build, LADE_OP_MATMUL_DX, forward, (int[]){dy, op.in[1]}, &dx);
  partial_complete(build, forward, dx);
  if (op.attr.is_dx_partial)
    matmul_params_backward(build, forward, &op, dy);
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
  int in[] = {op.in[0], op.out[0], op.out[1], gradient_get(build, op.out[0])};
  int d_qkv = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_ATTENTION_BWD, forward, in, &d_qkv);
}

/* gelu and swiglu: x, dy -> dx. */
static void activation_backward(struct lade_build *build, int forward, enum lade_op_kind kind)
{
  struct lade_op op = forward_get(build, forward);
  int in[] = {op.in[0], gradient_get(build, op.out[0])};
  int dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, kind, forward, in, &dx);
}

void lade_gelu_backward(struct lade_build *build, int forward)
{
  activation_backward(build, forward, LADE_OP_GELU_BWD);
}

void lade_swiglu_backward(struct lade_build *build, int forward)
{
  activation_backward(build, forward, LADE_OP_SWIGLU_BWD);
}

void lade_head_loss_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int in[] = {op.in[0], op.in[1], op.in[2], op.out[1], -1};
  int out[] = {gradient_make(build, op.in[0]), accumulator_get(build, op.in[1])};
  lade_build_backward_op(build, LADE_OP_HEAD_LOSS_BWD, forward, in, out);
}

/*
 * Backward, a row's log-sum-exp takes the statistics' place: it is all that the gradient of one rank's logits needs of
 * the others, so the gather between the halves passes it on.
 */
void lade_head_join_backward(struct lade_build *build, int forward)
{
  const struct lade_op *op = &build->graph->ops[forward];
  build->gradient_of[op->in[0]] = op->out[1];
}

/* What the parts of a table up to that of @op have of dx, in A. */
static int dx_sum_make(struct lade_build *build, const struct lade_op *op)
{
  const struct lade_tensor like = build->graph->tensors[op->in[0]], stats = build->graph->tensors[op->out[0]];
  char name[2 * LADE_NAME_BYTES];
  snprintf(name, sizeof(name), "d.%s", stats.name);
  return lade_build_tensor(build, LADE_TENSOR_ACTIVATION, build->graph->accumulator, like.n_dims, like.dims, name);
}

/* Parts are met in their order backward, too: the rule of the first, which the walk comes to last, pushes all. */
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
    int in[] = {op.in[0], op.in[1], op.in[2], lse, before};
    int out[] = {dx, accumulator_get(build, op.in[1])};
    lade_build_backward_op(build, LADE_OP_HEAD_LOSS_BWD, part, in, out);
  }
  partial_complete(build, last, dx);
}

/* Each rank's part has the sum's gradient. */
void lade_all_reduce_backward(struct lade_build *build, int forward)
{
  const struct lade_op *op = &build->graph->ops[forward];
  build->gradient_of[op->in[0]] = gradient_get(build, op->out[0]);
}

/* Ranks that compute the same of what was gathered have the same gradient; else each has a part of it. */
void lade_all_gather_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]);
  if (!op.attr.is_dx_partial) {
    build->gradient_of[op.in[0]] = dy;
    return;
  }
  int dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_REDUCE_SCATTER, forward, &dy, &dx);
}

void lade_reduce_scatter_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dy = gradient_get(build, op.out[0]), dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_ALL_GATHER, forward, &dy, &dx);
}

/* What went to the next piece comes back as its gradient, and what came goes. */
void lade_send_backward(struct lade_build *build, int forward)
{
  struct lade_op op = forward_get(build, forward);
  int dx = gradient_make(build, op.in[0]);
  lade_build_backward_op(build, LADE_OP_RECV, forward, NULL, &dx);
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
  struct lade_graph *graph = build->graph;
  for (int i_unit = graph->n_units - 1; i_unit >= 0; i_unit--) {
    struct lade_unit *unit = &graph->units[i_unit];
    build->unit = i_unit;
    unit->first_bwd = graph->n_ops;
    for (int i_op = unit->first_fwd + unit->n_fwd - 1; i_op >= unit->first_fwd; i_op--)
      lade_op_table[graph->ops[i_op].kind].backward(build, i_op);
    unit->n_bwd = graph->n_ops - unit->first_bwd;
  }
}
