/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the step of a mixture of experts: forward ops are pushed layer by layer onto a tape, and the backward half
 * walks the tape in reverse.
 *
 * A tape's node is a product with a weight, another op, or a sum into the residual stream. A product's backward is two
 * ops: the gradient of its input, and that of its weight. Another op's backward is one op, which reads the values that
 * the node declares as saved. The gradients of both inputs of a sum are the gradient of its output: one storage, to
 * which the branch's first op adds at the end, when all other readers have run.
 *
 * Each microbatch has its own activations and the same weights. The first one makes the gradients, the others add.
 *
 * Products of experts are grouped, one call for all experts of a layer: the tiles of each expert's rows begin anew, so
 * the rows of an expert count in whole tiles of 64.
 */
#include "machine/experts_step.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/moments.h"

#define NAME_BYTES 64    /* of an op or a value */
#define NODE_IN 5        /* most inputs of a node */
#define NODE_OUT 3       /* most outputs of a node */
#define OPERANDS_MAX 24  /* of one list of an op */
#define TILE_ROWS 64     /* rows of a tile of a grouped product */
#define LOSS_ROWS 1024 /* of logits at once, in FP32 */
#define INDEX_BYTES 8  /* of a token's expert: its number and its weight */
#define OPS_PER_LAYER 80  /* more than any layer has in one microbatch */
#define BYTES_MAX 0x1p59  /* half of the bytes that a graph may have */

struct step_value {
  int storage, grad; /* grad -1: none yet */
  double bytes;
};

struct step_weight {
  int weight, state, grad; /* storages; grad -1: not made yet */
  int64_t n_elements;
};

enum step_node_kind { NODE_PRODUCT, NODE_OP, NODE_SUM };

/* Inputs and outputs are tensors; a mask has bit i of input i, and bit NODE_IN + i of output i. */
struct step_node {
  const char *name;
  enum step_node_kind kind;
  int n_in, n_out;
  int in[NODE_IN], out[NODE_OUT];
  unsigned saved; /* that the backward op reads */
  unsigned grads; /* inputs that get a gradient */
  int weight;     /* -1: none */
  enum lade_op_kind price, backward_price;
  double flops, backward_flops;
  double rows, n_in_cols, n_out_cols; /* of a product */
  double weight_bytes; /* that an op touches; 0: all */
  uint64_t scratch_bytes;
  int layer; /* -1: outside of layers */
};

struct tape {
  const struct lade_experts_step_params *params;
  const struct lade_experts *model;
  lade_graph *graph;
  struct lade_error *error;
  int rc; /* the first failure; later calls do nothing */
  double element_bytes, tokens, expert_rows, expert_tiles; /* rows of all experts of a layer, and rows in whole tiles */
  int i_microbatch, layer;
  int i_weight; /* the next one */
  int tokens_input; /* tensor */
  LADE_ARRAY(struct step_value) tensors;
  LADE_ARRAY(struct step_weight) weights;
  LADE_ARRAY(struct step_node) nodes;
};

#define IN(i) (1u << (i))
#define OUT(i) (1u << (NODE_IN + (i)))

/* ---- storages ---- */

static void fail(struct tape *b, int rc)
{
  b->rc = b->rc ? b->rc : rc;
}

static void memory_fail(struct tape *b)
{
  fail(b, lade_error_set(b->error, -ENOMEM, "no memory for the step of %s", b->model->name));
}

__attribute__((format(printf, 4, 5))) static int storage_add(struct tape *b, double bytes, bool is_given,
                                                             const char *format, ...)
{
  char name[NAME_BYTES * 2];
  va_list list;
  int storage = -1;
  if (b->rc)
    return -1;
  va_start(list, format);
  vsnprintf(name, sizeof(name), format, list);
  va_end(list);
  const struct lade_storage new_storage = {.struct_size = sizeof(new_storage), .name = name, .bytes = (uint64_t)bytes,
                                           .is_given = is_given};
  fail(b, lade_graph_add_storage(b->graph, &new_storage, b->error, &storage));
  return storage;
}

/* Write the place of a value: its microbatch, if there are several, and its layer. */
static const char *prefix(const struct tape *b, int layer, char text[NAME_BYTES])
{
  int n = b->params->n_microbatches > 1 ? snprintf(text, NAME_BYTES, "m%d.", b->i_microbatch) : 0;
  text[n] = 0;
  if (layer >= 0)
    snprintf(text + n, NAME_BYTES - (size_t)n, "h.%d.", layer);
  return text;
}

static int tensor_push(struct tape *b, int storage, double bytes)
{
  const struct step_value tensor = {storage, -1, bytes};
  if (!LADE_PUSH(&b->tensors, tensor))
    memory_fail(b);
  return b->tensors.n - 1;
}

/* Add an activation of @columns elements a row of this microbatch's tokens. */
static int value(struct tape *b, const char *name, double rows, double columns, double element_bytes)
{
  char place[NAME_BYTES];
  const double bytes = rows * columns * element_bytes;
  return tensor_push(b, storage_add(b, bytes, false, "%s%s", prefix(b, b->layer, place), name), bytes);
}

static double state_bytes(const struct lade_experts_step_params *params, int64_t n)
{
  static const double moments[LADE_N_MOMENTS] = {
      [LADE_MOMENTS_F32] = 8, [LADE_MOMENTS_BF16] = 4, [LADE_MOMENTS_8BIT] = 2};
  const double residual = params->dtype == LADE_F32 ? 0
                          : params->dtype == LADE_F16 ? 4
                          : params->master == LADE_MASTER_24BIT ? 1
                                                                : 2;
  const double scales = params->moments == LADE_MOMENTS_8BIT ? 2 * (double)lade_div_up(n, LADE_MOMENT_BLOCK) : 0;
  return (double)n * (moments[params->moments] + residual) + scales;
}

/* Return the next weight, of @n elements: made in the first microbatch, found in the others. */
static int weight_next(struct tape *b, const char *name, int64_t n)
{
  char place[NAME_BYTES] = "";
  const int at = b->i_weight++;
  if (b->i_microbatch > 0 || b->rc)
    return at;
  if (b->layer >= 0)
    snprintf(place, sizeof(place), "h.%d.", b->layer);
  const struct step_weight weight = {
      .weight = storage_add(b, (double)n * b->element_bytes, true, "%s%s.weight", place, name),
      .state = storage_add(b, state_bytes(b->params, n), true, "%s%s.state", place, name), .grad = -1, .n_elements = n};
  if (!LADE_PUSH(&b->weights, weight))
    memory_fail(b);
  return at;
}

/* ---- ops ---- */

struct operands {
  struct lade_operand_range items[OPERANDS_MAX];
  int n;
  double bytes;
};

static void operand_add(struct operands *list, int storage, double bytes)
{
  LADE_ASSERT(list->n < OPERANDS_MAX);
  list->items[list->n++] = (struct lade_operand_range){.storage = storage};
  list->bytes += bytes;
}

struct step_op {
  struct operands reads, writes, updates;
  uint64_t scratch_bytes;
  enum lade_pass pass;
};

static void op_emit(struct tape *b, const struct step_op *op, int64_t ns, int layer, const char *name,
                    const char *suffix)
{
  char place[NAME_BYTES], text[2 * NAME_BYTES];
  if (b->rc)
    return;
  snprintf(text, sizeof(text), "%s%s%s", prefix(b, layer, place), name, suffix);
  const struct lade_graph_op new_op = {
      .struct_size = sizeof(new_op), .name = text, .reads = op->reads.items, .writes = op->writes.items,
      .updates = op->updates.items, .n_reads = op->reads.n, .n_writes = op->writes.n, .n_updates = op->updates.n,
      .scratch_bytes = op->scratch_bytes, .ns = ns, .pass = op->pass};
  fail(b, lade_graph_add_op(b->graph, &new_op, b->error, NULL));
}

static double op_bytes(const struct step_op *op)
{
  return op->reads.bytes + op->writes.bytes + 2 * op->updates.bytes;
}

static int64_t work_price(const struct tape *b, enum lade_op_kind kind, double flops, const struct step_op *op)
{
  const struct lade_cost_work work = {.kind = kind, .flops = flops, .bytes = op_bytes(op),
                                      .seq_len = (double)b->params->seq_len};
  return lade_cost_work_ns(b->params->cost, b->params->dtype, &work);
}

/* Price a product of @m by @n by @k, of which all products of the node are one call. */
static int64_t product_price(const struct tape *b, double m, double n, double k, const struct step_op *op)
{
  const struct lade_cost_work work = {.kind = LADE_OP_MATMUL, .flops = 2 * m * n * k, .bytes = op_bytes(op), .m = m,
                                      .n = n, .k = k, .n_products = 1};
  return lade_cost_work_ns(b->params->cost, b->params->dtype, &work);
}

static void tensor_read(const struct tape *b, struct step_op *op, int tensor)
{
  operand_add(&op->reads, b->tensors.items[tensor].storage, b->tensors.items[tensor].bytes);
}

/* Let @op read the weight of @node. */
static void weight_read(const struct tape *b, struct step_op *op, const struct step_node *node)
{
  const struct step_weight *w = &b->weights.items[node->weight];
  const double bytes = (double)w->n_elements * b->element_bytes;
  operand_add(&op->reads, w->weight, node->weight_bytes > 0 ? fmin(bytes, node->weight_bytes) : bytes);
}

/* Let @op make the gradient of @tensor, or add to it. */
static void grad_write(struct tape *b, struct step_op *op, int tensor, const char *name)
{
  struct step_value *t = &b->tensors.items[tensor];
  const bool is_made = t->grad >= 0;
  char place[NAME_BYTES];
  if (!is_made)
    t->grad = storage_add(b, t->bytes, false, "%sd.%s.%d", prefix(b, b->layer, place), name, tensor);
  operand_add(is_made ? &op->updates : &op->writes, t->grad, t->bytes);
}

/* Let @op make the gradient of the weight of @node, or add to it. A new one is zeroed whole. */
static void weight_grad_write(struct tape *b, struct step_op *op, const struct step_node *node)
{
  struct step_weight *w = &b->weights.items[node->weight];
  const bool is_made = w->grad >= 0;
  const double bytes = (double)w->n_elements * sizeof(float);
  if (!is_made)
    w->grad = storage_add(b, bytes, false, "d.%s.weight.%d", node->name, node->weight);
  operand_add(is_made ? &op->updates : &op->writes, w->grad,
              is_made && node->weight_bytes > 0 ? fmin(bytes, node->weight_bytes) : bytes);
}

/* ---- the tape ---- */

/* Emit the forward op of @node, and push it. */
static void node_push(struct tape *b, const struct step_node *node)
{
  struct step_op op = {.scratch_bytes = node->scratch_bytes, .pass = LADE_PASS_FORWARD};
  struct step_node own = *node;
  own.layer = b->layer;
  if (!b->rc && !LADE_PUSH(&b->nodes, own))
    memory_fail(b);
  if (b->rc)
    return;
  for (int i = 0; i < node->n_in; i++)
    tensor_read(b, &op, node->in[i]);
  if (node->weight >= 0)
    weight_read(b, &op, node);
  for (int i = 0; i < node->n_out; i++)
    operand_add(&op.writes, b->tensors.items[node->out[i]].storage, b->tensors.items[node->out[i]].bytes);
  const int64_t ns = node->kind == NODE_PRODUCT
                         ? product_price(b, node->rows, node->n_out_cols, node->n_in_cols, &op)
                         : work_price(b, node->price, node->flops, &op);
  op_emit(b, &op, ns, b->layer, node->name, "");
}

static void product_backward(struct tape *b, const struct step_node *node)
{
  const int x = node->in[0], y = node->out[0];
  const double n = node->n_out_cols;
  struct step_op dx = {.pass = LADE_PASS_BACKWARD}, dw = {.pass = LADE_PASS_BACKWARD};
  const struct step_value *out = &b->tensors.items[y];
  operand_add(&dx.reads, out->grad, out->bytes);
  weight_read(b, &dx, node);
  operand_add(&dw.reads, out->grad, out->bytes);
  tensor_read(b, &dw, x);
  grad_write(b, &dx, x, node->name);
  op_emit(b, &dx, product_price(b, node->rows, node->n_in_cols, n, &dx), node->layer, node->name, ".dx");
  weight_grad_write(b, &dw, node);
  op_emit(b, &dw, product_price(b, n, node->n_in_cols, node->rows, &dw), node->layer, node->name, ".dw");
}

static void op_backward(struct tape *b, const struct step_node *node)
{
  struct step_op op = {.scratch_bytes = node->scratch_bytes, .pass = LADE_PASS_BACKWARD};
  for (int i = 0; i < node->n_out; i++) {
    const struct step_value *out = &b->tensors.items[node->out[i]];
    if (out->grad >= 0)
      operand_add(&op.reads, out->grad, out->bytes);
    if (node->saved & OUT(i))
      tensor_read(b, &op, node->out[i]);
  }
  for (int i = 0; i < node->n_in; i++) {
    if (node->saved & IN(i))
      tensor_read(b, &op, node->in[i]);
    if (node->grads & IN(i))
      grad_write(b, &op, node->in[i], node->name);
  }
  if (node->weight >= 0 && !node->weight_bytes) /* a lookup needs no weight */
    weight_read(b, &op, node);
  if (node->weight >= 0)
    weight_grad_write(b, &op, node);
  op_emit(b, &op, work_price(b, node->backward_price, node->backward_flops, &op), node->layer, node->name, ".bwd");
}

static void sum_backward(struct tape *b, const struct step_node *node)
{
  for (int i = 0; i < node->n_in; i++) {
    LADE_ASSERT(b->rc || b->tensors.items[node->in[i]].grad < 0);
    b->tensors.items[node->in[i]].grad = b->tensors.items[node->out[0]].grad;
  }
}

static void backward(struct tape *b)
{
  static void (*const rules[])(struct tape *, const struct step_node *) = {
      [NODE_PRODUCT] = product_backward, [NODE_OP] = op_backward, [NODE_SUM] = sum_backward};
  for (int i = b->nodes.n - 1; i >= 0 && !b->rc; i--) {
    b->layer = b->nodes.items[i].layer;
    rules[b->nodes.items[i].kind](b, &b->nodes.items[i]);
  }
}

/* ---- kinds of ops ---- */

/* Push y = x W^T, with a bias if @has_bias. */
static int product(struct tape *b, const char *name, int x, double rows, int64_t n_in, int64_t n_out, bool has_bias)
{
  const int y = value(b, name, rows, (double)n_out, b->element_bytes);
  node_push(b, &(struct step_node){.name = name, .kind = NODE_PRODUCT, .n_in = 1, .n_out = 1, .in = {x}, .out = {y},
                                   .weight = weight_next(b, name, n_in * n_out + (has_bias ? n_out : 0)), .rows = rows,
                                   .n_in_cols = (double)n_in, .n_out_cols = (double)n_out});
  return y;
}

/* Push a product of each expert with its own rows. */
static int experts_product(struct tape *b, const char *name, int x, int64_t n_in, int64_t n_out)
{
  const int y = value(b, name, b->expert_rows, (double)n_out, b->element_bytes);
  node_push(b, &(struct step_node){.name = name, .kind = NODE_PRODUCT, .n_in = 1, .n_out = 1, .in = {x}, .out = {y},
                                   .weight = weight_next(b, name, b->model->n_experts * n_in * n_out),
                                   .rows = b->expert_tiles, .n_in_cols = (double)n_in, .n_out_cols = (double)n_out});
  return y;
}

static int norm(struct tape *b, const char *name, int x, double rows, int64_t width, int64_t n_elements)
{
  char rstd[NAME_BYTES];
  snprintf(rstd, sizeof(rstd), "%s.rstd", name);
  const int y = value(b, name, rows, (double)width, b->element_bytes);
  const int statistics = value(b, rstd, rows, (double)width / (double)n_elements, sizeof(float));
  node_push(b, &(struct step_node){.name = name, .kind = NODE_OP, .n_in = 1, .n_out = 2, .in = {x},
                                   .out = {y, statistics}, .saved = IN(0) | OUT(1), .grads = IN(0),
                                   .weight = weight_next(b, name, n_elements), .price = LADE_OP_NORM,
                                   .backward_price = LADE_OP_NORM});
  return y;
}

static int sum(struct tape *b, const char *name, int x, int y)
{
  const int z = value(b, name, b->tokens, (double)b->model->width, b->element_bytes);
  node_push(b, &(struct step_node){.name = name, .kind = NODE_SUM, .n_in = 2, .n_out = 1, .in = {x, y}, .out = {z},
                                   .weight = -1, .price = LADE_OP_NORM});
  return z;
}

/* Push h = silu(gate) * up of @x, which has both side by side. */
static int swiglu(struct tape *b, const char *name, int x, double rows, int64_t n_hidden)
{
  const int y = value(b, name, rows, (double)n_hidden, b->element_bytes);
  node_push(b, &(struct step_node){.name = name, .kind = NODE_OP, .n_in = 1, .n_out = 1, .in = {x}, .out = {y},
                                   .saved = IN(0), .grads = IN(0), .weight = -1, .price = LADE_OP_NORM,
                                   .backward_price = LADE_OP_NORM});
  return y;
}

/* Push attention of @n_in tensors, which have queries, keys and values of @qk and @v numbers a head. */
static int attention(struct tape *b, const int *in, int n_in, int64_t qk, int64_t v)
{
  const struct lade_experts *model = b->model;
  const double heads = (double)model->heads, pairs = b->tokens * ((double)b->params->seq_len + 1) * heads / 2;
  const int y = value(b, "attn", b->tokens, heads * (double)v, b->element_bytes);
  const int lse = value(b, "attn.lse", b->tokens, heads, sizeof(float));
  struct step_node node = {.name = "attn", .kind = NODE_OP, .n_in = n_in, .n_out = 2, .out = {y, lse},
                      .saved = OUT(0) | OUT(1), .weight = -1, .price = LADE_OP_ATTENTION,
                      .backward_price = LADE_OP_ATTENTION_BWD, .flops = pairs * 2 * (double)(qk + v),
                      .backward_flops = pairs * 2 * (double)(3 * qk + 2 * v)}; /* scores again, dq, dk; dp, dv */
  for (int i = 0; i < n_in; i++) {
    node.in[i] = in[i];
    node.saved |= IN(i);
    node.grads |= IN(i);
  }
  node_push(b, &node);
  return y;
}

/* ---- a block ---- */

/* Push attention with grouped queries; return the branch's output. */
static int grouped_attention(struct tape *b, int x)
{
  const struct lade_experts *model = b->model;
  const int64_t q = model->heads * model->head_dim, kv = model->n_kv_heads * model->head_dim, d = model->width;
  int qkv = product(b, "attn.qkv", x, b->tokens, d, q + 2 * kv, model->has_qkv_bias);
  if (model->q_norm) /* queries and keys in one pass; values pass through */
    qkv = norm(b, "attn.qk_norm", qkv, b->tokens, q + 2 * kv, model->q_norm + model->k_norm);
  const int turned = value(b, "attn.rope", b->tokens, (double)(q + 2 * kv), b->element_bytes);
  node_push(b, &(struct step_node){.name = "attn.rope", .kind = NODE_OP, .n_in = 1, .n_out = 1, .in = {qkv},
                                   .out = {turned}, .grads = IN(0), .weight = -1, .price = LADE_OP_NORM,
                                   .backward_price = LADE_OP_NORM});
  const int y = attention(b, &turned, 1, model->head_dim, model->head_dim);
  return product(b, "attn.proj", y, b->tokens, q, d, model->has_out_bias);
}

/* Push DeepSeek's attention: queries and keys through products of a low rank, as a training step computes them. */
static int latent_attention(struct tape *b, int x)
{
  const struct lade_experts *model = b->model;
  const struct lade_latent_attention *latent = &model->latent;
  const int64_t d = model->width, qk = latent->nope_dim + latent->rope_dim, heads = model->heads;
  int q = x, n_q = (int)d;
  if (latent->q_rank) {
    q = product(b, "attn.q_a", x, b->tokens, d, latent->q_rank, model->has_qkv_bias);
    q = norm(b, "attn.q_norm", q, b->tokens, latent->q_rank, latent->q_rank);
    n_q = (int)latent->q_rank;
  }
  q = product(b, "attn.q", q, b->tokens, n_q, heads * qk, false);
  const int kv_a = product(b, "attn.kv_a", x, b->tokens, d, latent->kv_rank + latent->rope_dim, model->has_qkv_bias);
  const int kv_n = norm(b, "attn.kv_norm", kv_a, b->tokens, latent->kv_rank, latent->kv_rank);
  const int kv = product(b, "attn.kv", kv_n, b->tokens, latent->kv_rank, heads * (latent->nope_dim + latent->v_dim),
                         false);
  const int turned = value(b, "attn.q_rope", b->tokens, (double)(heads * qk), b->element_bytes);
  const int keys = value(b, "attn.k_rope", b->tokens, (double)(heads * qk), b->element_bytes);
  node_push(b, &(struct step_node){.name = "attn.rope", .kind = NODE_OP, .n_in = 3, .n_out = 2, .in = {q, kv_a, kv},
                                   .out = {turned, keys}, .grads = IN(0) | IN(1) | IN(2), .weight = -1,
                                   .price = LADE_OP_NORM, .backward_price = LADE_OP_NORM});
  const int y = attention(b, (const int[]){turned, keys, kv}, 3, qk, latent->v_dim);
  return product(b, "attn.proj", y, b->tokens, heads * latent->v_dim, d, model->has_out_bias);
}

static int dense_mlp(struct tape *b, int x)
{
  const int64_t d = b->model->width, n = b->model->hidden;
  const int up = product(b, "mlp.up", x, b->tokens, d, 2 * n, false);
  return product(b, "mlp.down", swiglu(b, "mlp.act", up, b->tokens, n), b->tokens, n, d, false);
}

/* Push the experts that each token passes; return their output, and that of their gate (-1: none). */
static int shared_experts(struct tape *b, int x, int *ret_gate)
{
  const int64_t d = b->model->width, n = b->model->shared_hidden;
  const int up = product(b, "mlp.shared.up", x, b->tokens, d, 2 * n, false);
  const int y = product(b, "mlp.shared.down", swiglu(b, "mlp.shared.act", up, b->tokens, n), b->tokens, n, d, false);
  *ret_gate = b->model->has_shared_gate ? product(b, "mlp.shared.gate", x, b->tokens, d, 1, false) : -1;
  return y;
}

static int experts_mlp(struct tape *b, int x)
{
  const struct lade_experts *model = b->model;
  const int64_t d = model->width, n = model->expert_hidden;
  const int scores = product(b, "mlp.router", x, b->tokens, d, model->n_experts, false);
  const int picks = value(b, "mlp.picks", b->tokens, (double)model->n_active, INDEX_BYTES);
  node_push(b, &(struct step_node){.name = "mlp.pick", .kind = NODE_OP, .n_in = 1, .n_out = 1, .in = {scores},
                                   .out = {picks}, .saved = IN(0) | OUT(0), .grads = IN(0), .weight = -1,
                                   .price = LADE_OP_NORM, .backward_price = LADE_OP_NORM});
  const int rows = value(b, "mlp.rows", b->expert_rows, (double)d, b->element_bytes);
  node_push(b, &(struct step_node){.name = "mlp.dispatch", .kind = NODE_OP, .n_in = 2, .n_out = 1, .in = {x, picks},
                                   .out = {rows}, .saved = IN(1), .grads = IN(0), .weight = -1, .price = LADE_OP_NORM,
                                   .backward_price = LADE_OP_NORM});
  const int up = experts_product(b, "mlp.experts.up", rows, d, 2 * n);
  const int down = experts_product(b, "mlp.experts.down", swiglu(b, "mlp.experts.act", up, b->expert_rows, n), n, d);
  const int y = value(b, "mlp", b->tokens, (double)d, b->element_bytes);
  struct step_node combine = {.name = "mlp.combine", .kind = NODE_OP, .n_in = 2, .n_out = 1, .in = {down, picks},
                         .out = {y}, .saved = IN(0) | IN(1), .grads = IN(0) | IN(1), .weight = -1,
                         .price = LADE_OP_NORM, .backward_price = LADE_OP_NORM};
  if (model->shared_hidden) {
    int gate = -1;
    combine.in[combine.n_in++] = shared_experts(b, x, &gate);
    combine.grads |= IN(2);
    if (gate >= 0) {
      combine.in[combine.n_in++] = gate;
      combine.grads |= IN(3);
      combine.saved |= IN(2) | IN(3);
    }
  }
  node_push(b, &combine);
  return y;
}

static int block(struct tape *b, int x)
{
  const struct lade_experts *model = b->model;
  const int in = norm(b, "ln_1", x, b->tokens, model->width, model->width);
  const int middle = sum(b, "attn.sum", x, model->latent.kv_rank ? latent_attention(b, in) : grouped_attention(b, in));
  const int mid = norm(b, "ln_2", middle, b->tokens, model->width, model->width);
  return sum(b, "mlp.sum", middle,
             lade_experts_is_dense(model, b->layer) ? dense_mlp(b, mid) : experts_mlp(b, mid));
}

/* ---- the step ---- */

/* Push the embedding; return x, and its table in *ret_table. */
static int embedding(struct tape *b, int *ret_table)
{
  const struct lade_experts *model = b->model;
  const int x = value(b, "embed", b->tokens, (double)model->width, b->element_bytes);
  *ret_table = weight_next(b, "wte", model->vocabulary * model->width);
  node_push(b, &(struct step_node){.name = "embed", .kind = NODE_OP, .n_in = 1, .n_out = 1, .in = {b->tokens_input},
                                   .out = {x}, .saved = IN(0), .weight = *ret_table, .price = LADE_OP_NORM,
                                   .weight_bytes = b->tokens * (double)model->width * b->element_bytes,
                                   .backward_price = LADE_OP_NORM});
  return x;
}

static void head(struct tape *b, int x, int table)
{
  const struct lade_experts *model = b->model;
  const double flops = 2 * b->tokens * (double)model->vocabulary * (double)model->width;
  x = norm(b, "ln_f", x, b->tokens, model->width, model->width);
  const int loss = value(b, "loss", b->tokens, 2, sizeof(float)); /* each token's loss, and its log of the sum */
  node_push(b, &(struct step_node){
      .name = "head", .kind = NODE_OP, .n_in = 2, .n_out = 1, .in = {x, b->tokens_input}, .out = {loss},
      .saved = IN(0) | IN(1) | OUT(0), .grads = IN(0),
      .weight = model->is_tied ? table : weight_next(b, "head", model->vocabulary * model->width),
      .price = LADE_OP_HEAD_LOSS, .backward_price = LADE_OP_HEAD_LOSS_BWD, .flops = flops, .backward_flops = 3 * flops,
      .scratch_bytes = (uint64_t)(fmin(b->tokens, LOSS_ROWS) * (double)model->vocabulary * sizeof(float))});
}

static void microbatch(struct tape *b, int i)
{
  char place[NAME_BYTES];
  int table = -1;
  b->i_microbatch = i;
  b->i_weight = 0;
  b->tensors.n = b->nodes.n = 0;
  b->layer = -1;
  const double bytes = 2 * b->tokens * sizeof(int32_t); /* tokens and targets */
  b->tokens_input = tensor_push(b, storage_add(b, bytes, true, "%stokens", prefix(b, -1, place)), bytes);
  int x = embedding(b, &table);
  for (b->layer = 0; b->layer < b->model->layers && !b->rc; b->layer++)
    x = block(b, x);
  b->layer = -1;
  head(b, x, table);
  backward(b);
}

/* Push the norm of all gradients, and an update of each weight. */
static void updates(struct tape *b)
{
  const struct lade_experts_step_params *params = b->params;
  struct lade_operand_range *grads = calloc((size_t)b->weights.n + 1, sizeof(*grads));
  if (!grads)
    memory_fail(b);
  const int clip = storage_add(b, 16, false, "clip");
  int64_t ns = 0;
  for (int i = 0; i < b->weights.n && !b->rc; i++) {
    grads[i] = (struct lade_operand_range){.storage = b->weights.items[i].grad};
    ns += lade_cost_sum_squares_ns(params->cost, b->weights.items[i].n_elements, LADE_F32);
  }
  const struct lade_operand_range clip_range = {.storage = clip};
  const struct lade_graph_op norm_op = {.struct_size = sizeof(norm_op), .name = "norm", .reads = grads,
                                        .n_reads = b->weights.n, .writes = &clip_range, .n_writes = 1, .ns = ns,
                                        .pass = LADE_PASS_UPDATE};
  if (!b->rc)
    fail(b, lade_graph_add_op(b->graph, &norm_op, b->error, NULL));
  for (int i = 0; i < b->weights.n && !b->rc; i++) {
    const struct step_weight *w = &b->weights.items[i];
    const struct lade_adamw_args form = {.dtype = params->dtype, .grad_dtype = LADE_F32, .moments = params->moments,
                                         .master = params->master, .n_elements = w->n_elements};
    const struct lade_operand_range reads[] = {{.storage = w->grad}, clip_range};
    const struct lade_operand_range changed[] = {{.storage = w->weight}, {.storage = w->state}};
    const struct lade_graph_op op = {.struct_size = sizeof(op), .name = "update", .reads = reads, .n_reads = 2,
                                     .updates = changed, .n_updates = 2, .is_once = true, .pass = LADE_PASS_UPDATE,
                                     .ns = lade_cost_adamw_ns(params->cost, &form, false)};
    fail(b, lade_graph_add_op(b->graph, &op, b->error, NULL));
  }
  free(grads);
}

int64_t lade_experts_rows(const struct lade_experts_step_params *params, int64_t *ret_all_rows)
{
  const struct lade_experts *model = params->model;
  const double tokens = (double)(params->micro_batch * params->seq_len);
  const double share = tokens * (double)model->n_active / (double)model->n_experts;
  const int64_t rows = (int64_t)ceil(fmin(share * params->capacity, tokens));
  *ret_all_rows = rows * model->n_experts;
  return rows;
}

/* Return the most bytes that one activation can have. */
static double max_bytes(const struct lade_experts_step_params *params)
{
  const struct lade_experts *m = params->model;
  const double tokens = (double)params->micro_batch * (double)params->seq_len;
  const double rows = tokens * (double)m->n_active * params->capacity + (double)m->n_experts;
  const double heads = (double)m->heads * (double)(3 * m->head_dim + m->latent.v_dim);
  const double widest = fmax(heads, (double)(2 * (m->hidden + m->shared_hidden) + m->width + m->n_experts));
  return fmax(tokens * widest, rows * (double)(2 * m->expert_hidden + m->width)) * sizeof(double);
}

static int params_check(const struct lade_experts_step_params *params, struct lade_error *error)
{
  const struct lade_experts *model = params->model;
  LADE_ASSERT(params->struct_size == sizeof(*params));
  if (params->micro_batch < 1 || params->n_microbatches < 1 || params->seq_len < 1 || !(params->capacity >= 1))
    return lade_error_set(error, -EINVAL, "model %s: batch, microbatches, sequence and capacity begin at 1",
                          model->name);
  if (params->seq_len > model->context)
    return lade_error_set(error, -EINVAL, "model %s: a sequence of %lld tokens is longer than the context of %lld",
                          model->name, (long long)params->seq_len, (long long)model->context);
  if (params->master != LADE_MASTER_EXACT && params->dtype != LADE_BF16)
    return lade_error_set(error, -EINVAL, "model %s: --master 24bit is for bf16", model->name);
  const double n_layers = (double)model->layers * (double)params->n_microbatches;
  if ((n_layers + 1) * OPS_PER_LAYER > LADE_GRAPH_OPS_MAX || n_layers * max_bytes(params) > BYTES_MAX)
    return lade_error_set(error, -EINVAL, "model %s: a step of %lld microbatches of %lld x %lld tokens is too large to "
                          "plan: fewer or smaller ones would work", model->name, (long long)params->n_microbatches,
                          (long long)params->micro_batch, (long long)params->seq_len);
  return 0;
}

/* True if the weights have the model's parameters: two counts that share nothing. */
static bool weights_are_whole(const struct tape *b)
{
  int64_t n = 0;
  for (int i = 0; i < b->weights.n; i++)
    n += b->weights.items[i].n_elements;
  return n == lade_experts_n_params(b->model);
}

int lade_experts_step_graph(const struct lade_experts_step_params *params, struct lade_error *error,
                            lade_graph **ret_graph)
{
  int64_t all_rows = 0;
  struct tape b = {.params = params, .model = params->model, .error = error, .layer = -1};
  int rc = params_check(params, error);
  if (rc)
    return rc;
  const int64_t rows = lade_experts_rows(params, &all_rows);
  b.element_bytes = (double)lade_dtype_bytes(params->dtype);
  b.tokens = (double)(params->micro_batch * params->seq_len);
  b.expert_rows = (double)all_rows;
  b.expert_tiles = (double)(lade_div_up(rows, TILE_ROWS) * TILE_ROWS * params->model->n_experts);
  b.rc = lade_graph_create(&b.graph);
  for (int i = 0; i < params->n_microbatches && !b.rc; i++)
    microbatch(&b, i);
  if (!b.rc) {
    LADE_ASSERT(weights_are_whole(&b));
    updates(&b);
  }
  if (!b.rc)
    b.rc = lade_graph_close(b.graph, error);
  LADE_ARRAY_FREE(&b.tensors);
  LADE_ARRAY_FREE(&b.weights);
  LADE_ARRAY_FREE(&b.nodes);
  if (b.rc)
    lade_graph_destroy(b.graph);
  else
    *ret_graph = b.graph;
  return b.rc;
}
