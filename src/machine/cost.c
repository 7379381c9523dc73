/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predict one piece of work: from a table if it was measured, else by a roofline.
 *
 * The roofline (Williams, Waterman, Patterson 2009) is max(flops / rate, bytes / bandwidth): an op is bound by one of
 * them. The machine's rates are those of large products and streaming kernels, so each class of ops has a factor for
 * its usual share of them:
 *
 *   products         0.90  shapes of a model are rarely the best one
 *   attention        0.50  forward: two small products and an exponential per pair
 *                    0.40  backward: five products, twice the exponentials
 *   output head      0.75  products in chunks with a softmax between them
 *   everything else  0.85  of the memory bandwidth; its flops do not bind
 *
 * On a host the matrix rate of 16-bit types comes from dot-product instructions that attention cannot use everywhere.
 * Measuring corrects that; the factors only have to be plausible.
 *
 * The key of an op hashes only the properties that its time depends on. A model's layers then share entries, and a
 * cached measurement serves another model with the same shapes. Values of operands do not matter, because no kernel's
 * time depends on them.
 *
 * A machine with a kernel model (struct lade_kernel_model) has prices by shape for 16-bit types. A product of m by n by
 * k runs in tiles, in waves of as many tiles as there are multiprocessors; the last wave may be partly empty. A tile's
 * sum of length k reaches k / (k + depth) of the rate, because its start and end do not compute. The library's choice
 * among four tile shapes is the best one. Causal attention over T tokens reaches T / (T + depth) of its rate, because
 * tiles on the diagonal are computed whole and half used, and each row of tiles has a start and an end. All other ops
 * move their bytes at the memory's sustained rate. A device whose power limit is below the rated one computes at a
 * lower clock.
 *
 * Updates and norms stream memory: bytes over bandwidth. On a unified machine the device and the host tier of an update
 * are the same memory and the same cores. There host_bytes_per_s is the measured rate of AdamW itself.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/base.h"
#include "graph/family.h"
#include "machine/cluster.h"
#include "machine/cost.h"

#define STREAM_FACTOR 0.85      /* of the memory bandwidth: "everything else" above */

#define WINDOW_BYTES (3u << 19) /* one request each way */
#define N_WINDOWS 6             /* one computed, the others in flight to or from the drive */

/*
 * Rate of compact moments on a CPU, as a share of the exact update's bytes per second: instructions bind them
 * (docs/store.md).
 */
static const double compact_factors[LADE_N_MOMENTS] = {
    [LADE_MOMENTS_F32] = 1, [LADE_MOMENTS_BF16] = 0.85, [LADE_MOMENTS_8BIT] = 0.35};

/* Share of the matrix rate that an op reaches; 0: it is bound by bytes alone. */
static const double product_factors[LADE_N_OP_KINDS] = {
    [LADE_OP_MATMUL] = 0.90,    [LADE_OP_MATMUL_DX] = 0.90, [LADE_OP_MATMUL_DW] = 0.90,
    [LADE_OP_MATMUL_GELU] = 0.90, [LADE_OP_MATMUL_GELU_BWD] = 0.90,
    [LADE_OP_ATTENTION] = 0.50, [LADE_OP_ATTENTION_BWD] = 0.40,
    [LADE_OP_HEAD_LOSS] = 0.75, [LADE_OP_HEAD_LOSS_BWD] = 0.75, [LADE_OP_HEAD_STATS] = 0.75,
};

void lade_cost_init(struct lade_cost *cost, const struct lade_machine *machine)
{
  *cost = (struct lade_cost){.machine = *machine};
}

void lade_cost_finish(struct lade_cost *cost)
{
  free(cost->ops);
  cost->ops = NULL;
  cost->n_ops = cost->capacity = 0;
}

/* ---- the table ---- */

uint64_t lade_cost_op_key(const struct lade_model_graph *graph, int op_index)
{
  const struct lade_op *op = &graph->ops[op_index];
  int64_t words[20 + (LADE_OP_MAX_IN + LADE_OP_MAX_OUT) * 6];
  int n = 0;
  words[n++] = op->kind;
  words[n++] = op->kernel;
  words[n++] = graph->dtype;
  words[n++] = graph->batch;
  words[n++] = graph->seq_len;
  words[n++] = op->attr.norm;
  words[n++] = op->attr.dropout > 0;
  words[n++] = op->attr.heads;
  words[n++] = op->attr.n_kv_heads;
  words[n++] = op->attr.head_dim;
  words[n++] = op->attr.y_tree.n_leaves;
  words[n++] = op->attr.dx_tree.n_leaves;
  words[n++] = op->attr.leaf_tokens;
  for (int i = 0; i < op->n_in + op->n_out; i++) {
    int at = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
    words[n++] = at < 0 ? -1 : (int64_t)graph->tensors[at].dtype;
    for (int dim = 0; at >= 0 && dim < graph->tensors[at].n_dims; dim++)
      words[n++] = graph->tensors[at].dims[dim];
  }
  if (op->attr.window || op->attr.attention_softcap > 0) {
    words[n++] = op->attr.window;
    words[n++] = op->attr.attention_softcap > 0;
  }
  if (op->attr.alibi_max > 0)
    words[n++] = 1 + op->attr.is_alibi_rounded;
  LADE_ASSERT(n <= (int)LADE_COUNT(words));
  return XXH3_64bits(words, (size_t)n * sizeof(words[0]));
}

/* Return the first entry whose key is not below @key. */
static int entry_at(const struct lade_cost *cost, uint64_t key)
{
  int low = 0, high = cost->n_ops;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (cost->ops[middle].key < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool lade_cost_find(const struct lade_cost *cost, uint64_t key, int64_t *ret_ns)
{
  int at = entry_at(cost, key);
  if (at == cost->n_ops || cost->ops[at].key != key)
    return false;
  *ret_ns = cost->ops[at].ns;
  return true;
}

int lade_cost_set(struct lade_cost *cost, uint64_t key, int64_t ns)
{
  LADE_ASSERT(ns >= 0);
  int at = entry_at(cost, key);
  if (at == cost->n_ops || cost->ops[at].key != key) {
    if (!lade_array_reserve((void **)&cost->ops, &cost->capacity, cost->n_ops + 1, sizeof(*cost->ops)))
      return -ENOMEM;
    memmove(&cost->ops[at + 1], &cost->ops[at], (size_t)(cost->n_ops - at) * sizeof(*cost->ops));
    cost->n_ops++;
  }
  cost->ops[at] = (struct lade_cost_op){key, ns};
  return 0;
}

/* ---- ops ---- */

/* Return the matrix rate for @dtype; an unknown type has the rate of FP32, doubles half of it. */
static double matmul_rate(const struct lade_machine *machine, enum lade_dtype dtype)
{
  if (dtype == LADE_F64)
    return machine->matmul_flops_per_s[LADE_F32] / 2;
  double rate = machine->matmul_flops_per_s[dtype];
  return rate > 0 ? rate : machine->matmul_flops_per_s[LADE_F32];
}

static int64_t whole_ns(double ns)
{
  return ns < 1 ? 1 : ns < 0x1p62 ? (int64_t)ceil(ns) : INT64_C(1) << 62;
}

static int64_t roofline_ns(const struct lade_cost *cost, enum lade_dtype dtype, enum lade_op_kind kind, double flops,
                           double bytes)
{
  double ns = bytes / (STREAM_FACTOR * cost->machine.device_bytes_per_s) * 1e9;
  double factor = product_factors[kind];
  if (factor > 0)
    ns = fmax(ns, flops / (factor * matmul_rate(&cost->machine, dtype)) * 1e9);
  return whole_ns(ns);
}

/* ---- kernels by shape ---- */

#define SCORES_SEQ_MAX 2048 /* keys that the softmax kernels of unfused attention take */

/* Tiles that libraries choose from, and the share of the rate that each reaches in full waves. */
static const struct {
  int rows, columns;
  double share;
} product_tiles[] = {{256, 128, 1}, {128, 128, 0.96}, {128, 64, 0.80}, {64, 64, 0.60}};

/* Return the share of the waves' room that a product of @m by @n fills with the best tile. */
static double waves_share(double m, double n, int n_sms)
{
  double best = 0;
  for (size_t i = 0; i < LADE_COUNT(product_tiles); i++) {
    const double tiles = ceil(m / product_tiles[i].rows) * ceil(n / product_tiles[i].columns);
    const double useful = m * n / ((double)product_tiles[i].rows * product_tiles[i].columns);
    best = fmax(best, product_tiles[i].share * useful / (ceil(tiles / n_sms) * n_sms));
  }
  return best;
}

/* Part of the rated power that does not follow the clock: memory, links and leakage. Assumed. */
#define STEADY_POWER 0.25

/*
 * Return the rate of products under the device's power limit. Power beyond the steady part grows with the clock and the
 * square of the voltage, which grows with the clock: the rate grows with its cube root.
 */
static double product_rate(const struct lade_kernel_model *model)
{
  if (model->power_watts == 0)
    return model->product_flops_per_s;
  const double share = model->power_watts / model->rated_watts;
  return model->product_flops_per_s * cbrt(fmax((share - STEADY_POWER) / (1 - STEADY_POWER), 1e-3));
}

double lade_cost_product_ns(const struct lade_machine *machine, double m, double n, double k, double n_times)
{
  const struct lade_kernel_model *model = &machine->kernels;
  const double rate = product_rate(model) * waves_share(m, n, model->n_sms) * k / (k + model->product_depth);
  return n_times * 2 * m * n * k / rate * 1e9;
}

/* Return the two-dimensional parameter, or its gradient, that a product reads or makes; NULL: none. */
static const struct lade_tensor *weight_find(const struct lade_model_graph *graph, const struct lade_op *op)
{
  for (int i = 0; i < op->n_in + op->n_out; i++) {
    const int at = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
    if (at >= 0 && graph->tensors[at].param >= 0 && graph->tensors[at].n_dims == 2)
      return &graph->tensors[at];
  }
  return NULL;
}

/* Price a product, or the head's, by the shape of its weight [out, in]. */
static double shaped_product_ns(const struct lade_cost *cost, const struct lade_model_graph *graph,
                                const struct lade_op *op)
{
  const struct lade_tensor *weight = weight_find(graph, op);
  if (!weight)
    return 0;
  const double out = (double)weight->dims[0], in = (double)weight->dims[1];
  const double rows = (double)(graph->batch * graph->seq_len), times = op->flops / (2 * rows * out * in);
  if (op->kind == LADE_OP_MATMUL_DX || op->kind == LADE_OP_MATMUL_GELU_BWD)
    return lade_cost_product_ns(&cost->machine, rows, in, out, times);
  if (op->kind == LADE_OP_MATMUL_DW)
    return lade_cost_product_ns(&cost->machine, out, in, rows, times);
  return lade_cost_product_ns(&cost->machine, rows, out, in, times);
}

double lade_cost_attention_fill(const struct lade_machine *machine, double seq_len)
{
  return seq_len > 0 ? seq_len / (seq_len + machine->kernels.attention_depth) : 1;
}

/* Return the share of the products' rate that fused attention over sequences of @seq_len reaches. */
static double attention_share(const struct lade_cost *cost, bool is_backward, double seq_len)
{
  const struct lade_kernel_model *model = &cost->machine.kernels;
  const double fill = lade_cost_attention_fill(&cost->machine, seq_len) / fmax(cost->attention_slower, 1);
  if (cost->is_eager && model->eager_attention_forward > 0)
    return fill * (is_backward ? model->eager_attention_backward : model->eager_attention_forward);
  return fill * (is_backward ? model->attention_backward : model->attention_forward);
}

/*
 * Price attention. Fused attention takes a share of the products' rate over the pairs that causality leaves. Unfused
 * attention takes products over all pairs, and the passes of mask, softmax and dropout over the scores in memory.
 * Published runs of 2021 and 2022 have unfused attention, up to the 2,048 keys that their softmax kernels take. Models
 * without learned positions (Llama, 2023, and later families) came after FlashAttention and are always fused.
 */
static double attention_ns(const struct lade_cost *cost, const struct lade_model_graph *graph,
                           const struct lade_op *op)
{
  const struct lade_kernel_model *model = &cost->machine.kernels;
  const bool is_backward = op->kind == LADE_OP_ATTENTION_BWD;
  const bool has_scores = model->score_forward_bytes > 0 && graph->seq_len <= SCORES_SEQ_MAX &&
                          lade_family_get(graph->model.family)->has_positions;
  const double T = (double)graph->seq_len;
  if (!has_scores)
    return op->flops / (product_rate(model) * attention_share(cost, is_backward, T)) * 1e9;
  const double scores = (double)graph->batch * (double)op->attr.heads * T * T;
  const double head_dim = (double)op->attr.head_dim;
  const double products_ns = lade_cost_product_ns(&cost->machine, T * (double)graph->batch * (double)op->attr.heads, T,
                                                  head_dim, is_backward ? 4 : 2);
  const double bytes = scores * (is_backward ? model->score_backward_bytes : model->score_forward_bytes);
  return products_ns + bytes / cost->machine.device_bytes_per_s * 1e9;
}

/*
 * Bytes that PyTorch's ops move without a compiler, over those of the one kernel here: each op reads and writes memory.
 * Per value of 16 bits, and 32 where a norm computes, by the formulas of transformers and of Llama's own code:
 *
 *   RMS norm          cast, square, mean, product with the root, cast, weight: 36, of 4 fused; backward, as dispatch
 *                     counts its 16 ops, 92 of 6
 *   layer norm        one kernel: 4 of 4; backward with a pass for the weights 10 of 6. Fused RMS norms are alike
 *   residual, norm    a sum, 6, and the norm: 42 or 10 of 8; backward, with the sum of both gradients, 98 or 16 of 8
 *   rotation          cast, complex product, cast: 20 of 4
 *   SwiGLU            SiLU, product: 10 of 6; backward 18 of 10
 *
 * GELU is one kernel. A factor of 0 is 1.
 */
static const double eager_factors[LADE_N_OP_KINDS][2] = { /* of layer norms, of RMS norms */
    [LADE_OP_NORM] = {1, 9},
    [LADE_OP_NORM_BWD] = {10.0 / 6, 92.0 / 6},
    [LADE_OP_RESIDUAL] = {10.0 / 8, 42.0 / 8},
    [LADE_OP_RESIDUAL_BWD] = {16.0 / 8, 98.0 / 8},
    [LADE_OP_ROPE] = {5, 5},
    [LADE_OP_ROPE_BWD] = {5, 5},
    [LADE_OP_SWIGLU] = {10.0 / 6, 10.0 / 6},
    [LADE_OP_SWIGLU_BWD] = {18.0 / 10, 18.0 / 10},
};
/*
 * Bytes of a logit beside the head's products: written, cast and normalised (2, 6, 8); backward, gradients in 32 bits
 * and in 16, which two products read (8, 6, 4).
 */
#define EAGER_LOGIT_BYTES 16
#define EAGER_LOGIT_BYTES_BACKWARD 18

/*
 * Kernels that PyTorch launches without a compiler for one op here, in models with layer norms and with RMS norms. They
 * are counted by dispatch (torch 2.15) on a layer of GPT, 10 forward and 32 backward, and of Llama, 40 and 79. Models
 * with RMS norms have separate weights for queries, keys, values and both halves of a gated MLP: 7 products of a layer
 * for 4 here, and as many sums of gradients. Attention is FlashAttention's one kernel, and three backward. 0: 1.
 */
static const double eager_launches[LADE_N_OP_KINDS][2] = {
    [LADE_OP_EMBED_BWD] = {2, 2},
    [LADE_OP_NORM] = {1, 8},
    [LADE_OP_NORM_BWD] = {3, 17},
    [LADE_OP_RESIDUAL] = {2, 9},
    [LADE_OP_RESIDUAL_BWD] = {6, 18}, /* with a bias's gradient and its sum, as attention's */
    [LADE_OP_MATMUL] = {1, 7.0 / 4},
    [LADE_OP_MATMUL_DX] = {1, 10.0 / 4},
    [LADE_OP_MATMUL_GELU] = {2, 2},
    [LADE_OP_MATMUL_GELU_BWD] = {2, 2},
    [LADE_OP_MATMUL_DW] = {2, 2 * 7.0 / 4},
    [LADE_OP_BIAS_GRAD] = {2, 2},
    [LADE_OP_ROPE] = {10, 10},
    [LADE_OP_ROPE_BWD] = {10, 10},
    [LADE_OP_ATTENTION_BWD] = {5, 3},
    [LADE_OP_SWIGLU] = {2, 2},
    [LADE_OP_SWIGLU_BWD] = {3, 3},
    [LADE_OP_GATED] = {2, 2},
    [LADE_OP_GATED_BWD] = {3, 3},
    [LADE_OP_QK_NORM] = {2, 16},
    [LADE_OP_QK_NORM_BWD] = {6, 34},
    [LADE_OP_HEAD_LOSS] = {4, 4}, /* product, cast, logarithms, loss */
    [LADE_OP_HEAD_LOSS_BWD] = {6, 6},
};

/* True if @kind takes the column of RMS norms in the tables above: fused RMS norms take that of layer norms. */
static bool has_rms_ops(const struct lade_cost *cost, const struct lade_model_graph *graph, enum lade_op_kind kind)
{
  const bool is_norm = kind == LADE_OP_NORM || kind == LADE_OP_NORM_BWD || kind == LADE_OP_RESIDUAL ||
                       kind == LADE_OP_RESIDUAL_BWD || kind == LADE_OP_QK_NORM || kind == LADE_OP_QK_NORM_BWD;
  return lade_family_get(graph->model.family)->norm == LADE_NORM_RMS && !(is_norm && cost->has_fused_norms);
}

/* True if @op makes the gradient of the next residual's bias too: PyTorch sums those columns by kernels apart. */
static bool has_sum_bias(const struct lade_op *op)
{
  return op->kind == LADE_OP_RESIDUAL_BWD && op->out[5] >= 0;
}

double lade_cost_launches(const struct lade_cost *cost, const struct lade_model_graph *graph, int op)
{
  const bool is_rms = has_rms_ops(cost, graph, graph->ops[op].kind);
  const double n = cost->is_eager ? eager_launches[graph->ops[op].kind][is_rms] : 0;
  if (n > 0 && has_sum_bias(&graph->ops[op]))
    return n + eager_launches[LADE_OP_BIAS_GRAD][is_rms];
  return n > 0 ? n : 1;
}

/* Return the bytes of @op, as PyTorch moves them without a compiler if @cost says so. */
static double op_bytes(const struct lade_cost *cost, const struct lade_model_graph *graph, const struct lade_op *op)
{
  const bool is_rms = has_rms_ops(cost, graph, op->kind);
  const double factor = cost->is_eager ? eager_factors[op->kind][is_rms] : 0;
  const double sum_bytes = cost->is_eager && has_sum_bias(op) ? (double)graph->tensors[op->in[0]].bytes : 0;
  return op->bytes * (factor > 0 ? factor : 1) + sum_bytes;
}

/* Return the time that logits in memory add to the head: none if the loss is fused with its product. */
static double logits_ns(const struct lade_cost *cost, const struct lade_model_graph *graph, const struct lade_op *op)
{
  const bool is_backward = op->kind == LADE_OP_HEAD_LOSS_BWD;
  const struct lade_tensor *weight = weight_find(graph, op);
  if (!weight || (op->kind != LADE_OP_HEAD_LOSS && !is_backward))
    return 0;
  const double logits = (double)(graph->batch * graph->seq_len) * (double)weight->dims[0];
  const double each = cost->machine.kernels.logit_bytes > 0 ? cost->machine.kernels.logit_bytes / 2
                      : !cost->is_eager                     ? 0
                      : is_backward                         ? EAGER_LOGIT_BYTES_BACKWARD
                                                            : EAGER_LOGIT_BYTES;
  return logits * each / cost->machine.device_bytes_per_s * 1e9;
}

/*
 * Return the products that PyTorch without a compiler runs for @op, a product here: one for each tensor that
 * checkpoints store of its weight (queries, keys and values; gate and up).
 */
static int products_count(const struct lade_cost *cost, const struct lade_model_graph *graph, const struct lade_op *op)
{
  const struct lade_tensor *weight = weight_find(graph, op);
  int n = 1;
  if (!weight || !cost->is_eager)
    return n;
  const struct lade_param *param = &graph->params[weight->param];
  for (int i = 1; i < param->n_slices; i++)
    n += strcmp(param->slices[i].name, param->slices[i - 1].name) != 0;
  return n;
}

/* Return the time in which PyTorch without a compiler adds input gradients: each product but the first adds its own. */
static double input_sums_ns(const struct lade_cost *cost, const struct lade_model_graph *graph,
                            const struct lade_op *op)
{
  const int n_sums = op->kind == LADE_OP_MATMUL_DX ? products_count(cost, graph, op) - 1 : 0;
  const double bytes = 3 * (double)graph->tensors[op->out[0]].bytes; /* of a sum: two are read, one is written */
  return n_sums * bytes / cost->machine.device_bytes_per_s * 1e9;
}

/* Price an op by its shape. pre: the machine has a kernel model. */
static int64_t shaped_ns(const struct lade_cost *cost, const struct lade_model_graph *graph, const struct lade_op *op)
{
  double ns = op_bytes(cost, graph, op) / cost->machine.device_bytes_per_s * 1e9;
  if (op->kind == LADE_OP_ATTENTION || op->kind == LADE_OP_ATTENTION_BWD)
    ns = fmax(ns, attention_ns(cost, graph, op));
  else if (product_factors[op->kind] > 0)
    ns = fmax(ns, shaped_product_ns(cost, graph, op));
  return whole_ns(ns + logits_ns(cost, graph, op) + input_sums_ns(cost, graph, op));
}

/* True if prices by shape hold for @dtype: the kernel model is of 16-bit types. */
static bool is_shaped(const struct lade_cost *cost, enum lade_dtype dtype)
{
  return cost->machine.kernels.n_sms > 0 && lade_dtype_bytes(dtype) == 2;
}

/*
 * Return the bytes that a pass for GELU after a product moves, in units of the product's, beside those of op->bytes; 0:
 * there is no pass. Backward reads x and dx and writes dx. Forward reads the sums again; in 16 bits the host first
 * writes them in FP32, and a GPU's plain product has GELU itself.
 */
static double gelu_pass_get(const struct lade_cost *cost, enum lade_dtype dtype, enum lade_op_kind kind)
{
  const bool is_narrow = lade_dtype_bytes(dtype) == 2;
  const double sums = !is_narrow ? 1 : cost->machine.is_unified ? 4 : cost->has_plain_products ? 0 : 1;
  return kind == LADE_OP_MATMUL_GELU ? sums : kind == LADE_OP_MATMUL_GELU_BWD ? 3 : 0;
}

/*
 * Price GELU or its backward after a product as a kernel of its own, as other software and Lade's host run it. On some
 * devices it is an epilogue of Lade's products.
 */
static int64_t gelu_pass_ns(const struct lade_cost *cost, const struct lade_model_graph *graph,
                            const struct lade_op *op)
{
  const bool is_epilogue = lade_machine_fuses_gelu(&cost->machine, graph->dtype) && !cost->has_plain_products;
  const double pass = gelu_pass_get(cost, graph->dtype, op->kind);
  if (pass == 0 || is_epilogue)
    return 0;
  const double bytes = pass * (double)graph->tensors[op->out[0]].bytes;
  const double rate = cost->machine.device_bytes_per_s * (is_shaped(cost, graph->dtype) ? 1 : STREAM_FACTOR);
  return whole_ns(bytes / rate * 1e9) + (int64_t)cost->machine.launch_ns;
}

int64_t lade_cost_op_ns(const struct lade_cost *cost, const struct lade_model_graph *graph, int op)
{
  int64_t ns;
  if (cost->n_ops && lade_cost_find(cost, lade_cost_op_key(graph, op), &ns))
    return ns + (int64_t)cost->machine.launch_ns;
  ns = is_shaped(cost, graph->dtype) ? shaped_ns(cost, graph, &graph->ops[op])
                                     : roofline_ns(cost, graph->dtype, graph->ops[op].kind, graph->ops[op].flops,
                                                   graph->ops[op].bytes);
  return ns + gelu_pass_ns(cost, graph, &graph->ops[op]) + (int64_t)cost->machine.launch_ns;
}

/* Price work by its shape; attention is fused. pre: the machine has a kernel model. */
static int64_t shaped_work_ns(const struct lade_cost *cost, const struct lade_cost_work *work)
{
  const struct lade_kernel_model *model = &cost->machine.kernels;
  double share = work->kind == LADE_OP_ATTENTION       ? model->attention_forward
                 : work->kind == LADE_OP_ATTENTION_BWD ? model->attention_backward
                                                       : 0;
  share *= lade_cost_attention_fill(&cost->machine, work->seq_len);
  double ns = work->bytes / cost->machine.device_bytes_per_s * 1e9;
  if (share > 0)
    ns = fmax(ns, work->flops / (product_rate(model) * share) * 1e9);
  if (work->m > 0)
    ns = fmax(ns, lade_cost_product_ns(&cost->machine, work->m, work->n, work->k, work->n_products));
  return whole_ns(ns);
}

int64_t lade_cost_work_ns(const struct lade_cost *cost, enum lade_dtype dtype, const struct lade_cost_work *work)
{
  const int64_t ns = is_shaped(cost, dtype) ? shaped_work_ns(cost, work)
                                            : roofline_ns(cost, dtype, work->kind, work->flops, work->bytes);
  return ns + (int64_t)cost->machine.launch_ns;
}

/* ---- copies and transfers ---- */

static int64_t copy_ns(const struct lade_link *link, uint64_t bytes)
{
  return whole_ns((double)link->latency_ns + (double)bytes / (double)link->bytes_per_s * 1e9);
}

int64_t lade_cost_to_host_ns(const struct lade_cost *cost, uint64_t bytes)
{
  return copy_ns(&cost->machine.to_host, bytes);
}

/* Return the time of these bytes at the drive's rate for their mix, without the latency of a transfer. */
static double mixed_ns(const struct lade_cost *cost, uint64_t read_bytes, uint64_t write_bytes)
{
  const struct lade_machine_store *store = &cost->machine.store;
  const double bytes = (double)read_bytes + (double)write_bytes;
  LADE_ASSERT(store->bytes > 0);
  return bytes > 0 ? bytes / lade_drive_bytes_per_s(store, (double)read_bytes / bytes) * 1e9 : 0;
}

int64_t lade_cost_read_write_ns(const struct lade_cost *cost, uint64_t read_bytes, uint64_t write_bytes)
{
  return whole_ns(lade_drive_latency_ns(&cost->machine.store) + mixed_ns(cost, read_bytes, write_bytes));
}

int64_t lade_cost_read_ns(const struct lade_cost *cost, uint64_t bytes)
{
  return lade_cost_read_write_ns(cost, bytes, 0);
}

int64_t lade_cost_write_ns(const struct lade_cost *cost, uint64_t bytes)
{
  return lade_cost_read_write_ns(cost, 0, bytes);
}

/* ---- the end of a step ---- */

void lade_cost_adamw_bytes(const struct lade_adamw_args *form, int *ret_read, int *ret_written)
{
  static const int moments[LADE_N_MOMENTS] = {
      [LADE_MOMENTS_F32] = 8, [LADE_MOMENTS_BF16] = 4, [LADE_MOMENTS_8BIT] = 2};
  int residual = form->dtype == LADE_BF16 ? (form->master == LADE_MASTER_24BIT ? 1 : 2)
                 : form->dtype == LADE_F16 ? 4 : 0;
  int state = (int)lade_dtype_bytes(form->dtype) + residual + moments[form->moments];
  *ret_read = state + (int)lade_dtype_bytes(form->grad_dtype);
  *ret_written = state;
}

int64_t lade_cost_adamw_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool is_on_host)
{
  const struct lade_machine *machine = &cost->machine;
  int read, written;
  lade_cost_adamw_bytes(form, &read, &written);
  double rate = is_on_host || machine->is_unified ? machine->host_bytes_per_s * compact_factors[form->moments]
                                                  : STREAM_FACTOR * machine->device_bytes_per_s;
  return whole_ns(machine->launch_ns + (double)form->n_elements * (read + written) / rate * 1e9);
}

/* Count the bytes that an update through the store moves per element. */
static void streamed_bytes(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight,
                           int *ret_read, int *ret_written)
{
  int read, written;
  lade_cost_adamw_bytes(form, &read, &written);
  if (!has_weight) {
    read -= (int)lade_dtype_bytes(form->dtype);
    written -= (int)lade_dtype_bytes(form->dtype);
  }
  if (cost->machine.is_unified)
    read -= (int)lade_dtype_bytes(form->grad_dtype);
  *ret_read = read;
  *ret_written = written;
}

int64_t lade_stream_window_elements(const struct lade_streaming *streaming, size_t element_bytes)
{
  const int64_t n = (int64_t)(streaming->window_bytes / LADE_MAX(element_bytes, 1));
  return LADE_MAX(n / LADE_STREAM_GRAIN * LADE_STREAM_GRAIN, LADE_STREAM_GRAIN);
}

int64_t lade_cost_adamw_store_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight)
{
  int read, written;
  streamed_bytes(cost, form, has_weight, &read, &written);
  /* The windows of a run follow each other without a gap, so only its ends have a latency (the stream's edges). */
  int64_t transfer_ns = whole_ns(mixed_ns(cost, (uint64_t)form->n_elements * (uint64_t)read,
                                          (uint64_t)form->n_elements * (uint64_t)written));
  return LADE_MAX(transfer_ns, lade_cost_adamw_ns(cost, form, true));
}

int64_t lade_cost_stream_edge_ns(const struct lade_cost *cost, const struct lade_adamw_args *form, bool has_weight)
{
  int read, written;
  streamed_bytes(cost, form, has_weight, &read, &written);
  const struct lade_streaming streaming = lade_cost_streaming(cost);
  uint64_t window = (uint64_t)LADE_MIN(form->n_elements, lade_stream_window_elements(&streaming, (size_t)written));
  return lade_cost_read_ns(cost, window * (uint64_t)read) + lade_cost_write_ns(cost, window * (uint64_t)written);
}

struct lade_streaming lade_cost_streaming(const struct lade_cost *cost)
{
  const struct lade_machine_store *store = &cost->machine.store;
  return (struct lade_streaming){store->window_bytes ? store->window_bytes : WINDOW_BYTES,
                                 store->n_windows ? store->n_windows : N_WINDOWS};
}

struct lade_streaming lade_cost_streaming_small(const struct lade_cost *cost)
{
  const struct lade_streaming streaming = lade_cost_streaming(cost), usual = {WINDOW_BYTES, N_WINDOWS};
  bool is_small = streaming.window_bytes * (uint64_t)streaming.n_windows <=
                  usual.window_bytes * (uint64_t)usual.n_windows;
  return is_small ? streaming : usual;
}

int64_t lade_cost_sum_squares_ns(const struct lade_cost *cost, int64_t n_elements, enum lade_dtype grad_dtype)
{
  double rate = cost->sum_squares_bytes_per_s;
  if (rate == 0)
    rate = STREAM_FACTOR * cost->machine.device_bytes_per_s;
  return whole_ns(cost->machine.launch_ns + (double)n_elements * (double)lade_dtype_bytes(grad_dtype) / rate * 1e9);
}

int64_t lade_cost_clip_ns(const struct lade_cost *cost, int64_t n_partials)
{
  /* One thread adds doubles in a tree: about a nanosecond each, on any device. */
  return whole_ns(cost->machine.launch_ns + (double)n_partials);
}

/* ---- prices for the builder ---- */

static struct lade_transfer_price link_price(const struct lade_link *link)
{
  return (struct lade_transfer_price){.latency_ns = (int64_t)link->latency_ns,
                                      .ns_per_byte = 1e9 / (double)link->bytes_per_s};
}

/*
 * Fill the parts of links that collectives and sends take. Without a cluster all bytes between ranks go over the link
 * to the host, at whose rate they are priced. On a unified machine copies are work of the shared cores: no link counts.
 */
static void shares_fill(const struct lade_cost *cost, struct lade_prices *prices)
{
  const bool is_through_host = !cost->links && !cost->machine.is_unified;
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    if (cost->links)
      prices->comm_shares[axis] = cost->links->shares[axis];
    prices->comm_shares[axis].of[LADE_LINK_HOST] += is_through_host;
  }
  if (cost->links)
    prices->boundary_shares = cost->links->boundary_shares;
  prices->boundary_shares.of[LADE_LINK_HOST] += is_through_host;
  prices->has_half_duplex = !cost->machine.is_duplex;
}

/* Return the price of a store's transfers, @share of them reads; without a store one that no plan chooses. */
static struct lade_transfer_price store_price(const struct lade_machine_store *store, double share)
{
  if (!store->bytes)
    return (struct lade_transfer_price){.latency_ns = INT64_C(1) << 40, .ns_per_byte = 1e9};
  return (struct lade_transfer_price){.latency_ns = (int64_t)lade_drive_latency_ns(store),
                                      .ns_per_byte = 1e9 / lade_drive_bytes_per_s(store, share)};
}

/*
 * Return the all-reduces that PyTorch runs for @op: where products of one input are column-parallel layers of their
 * own, each sums its input gradient over ranks (copy_to_tensor_model_parallel_region of Megatron's layers).
 */
static int sums_count(const struct lade_cost *cost, const struct lade_model_graph *graph, const struct lade_op *op)
{
  const int maker = op->kind == LADE_OP_ALL_REDUCE && op->is_backward ? graph->tensors[op->in[0]].producer : -1;
  const bool is_dx = maker >= 0 && graph->ops[maker].kind == LADE_OP_MATMUL_DX && cost->sums_products_apart;
  return is_dx ? products_count(cost, graph, &graph->ops[maker]) : 1;
}

/* Price a collective, a send or a receive of the graph; op->bytes are those that this rank sends. */
static int64_t transfer_op_ns(const struct lade_cost *cost, const struct lade_prices *prices,
                              const struct lade_model_graph *graph, const struct lade_op *op)
{
  const struct lade_transfer_price *price = op->kind == LADE_OP_ALL_REDUCE ? &prices->comm_sum[op->attr.axis]
                                                                           : &prices->comm[op->attr.axis];
  if (!cost->links)
    return lade_cost_to_host_ns(cost, (uint64_t)op->bytes);
  if (op->kind == LADE_OP_SEND || op->kind == LADE_OP_RECV)
    price = &prices->boundary;
  return sums_count(cost, graph, op) * whole_ns(lade_transfer_ns(price, 1, op->bytes));
}

int lade_cost_prices(const struct lade_cost *cost, const struct lade_model_graph *graph, struct lade_prices *ret_prices)
{
  const struct lade_machine *machine = &cost->machine;
  const enum lade_dtype grad_dtype = graph->grad_dtype;
  size_t n_params = (size_t)graph->n_params;
  const int n_ops = graph->n_ops + graph->n_lean_ops;
  int64_t *ns = calloc((size_t)n_ops + 6 * n_params + 1, sizeof(*ns));
  if (!ns)
    return -ENOMEM;
  struct lade_prices prices = {.op_ns = ns, .grad_sumsq_ns = ns + n_ops};
  for (size_t tier = 0; tier < 3; tier++)
    prices.update_ns[tier] = prices.grad_sumsq_ns + (tier + 1) * n_params;
  prices.update_near_ns = prices.grad_sumsq_ns + 4 * n_params;
  prices.stream_edge_ns = prices.grad_sumsq_ns + 5 * n_params;
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    prices.comm[axis] = cost->links ? cost->links->gather[axis] : link_price(&machine->to_host);
    prices.comm_sum[axis] = cost->links ? cost->links->sum[axis] : link_price(&machine->to_host);
  }
  prices.boundary = cost->links ? cost->links->boundary : link_price(&machine->to_host);
  shares_fill(cost, &prices);
  for (int op = 0; op < n_ops; op++)
    prices.op_ns[op] = lade_op_is_stage_boundary(graph->ops[op].kind)
                           ? transfer_op_ns(cost, &prices, graph, &graph->ops[op])
                           : lade_cost_op_ns(cost, graph, op);
  int64_t n_partials = 0;
  for (int p = 0; p < graph->n_params; p++) {
    const struct lade_tensor *weight = &graph->tensors[graph->params[p].tensor];
    int64_t n = (int64_t)(weight->bytes / lade_dtype_bytes(weight->dtype));
    n_partials += lade_div_up(n, LADE_SUM_BLOCK);
    prices.grad_sumsq_ns[p] = lade_cost_sum_squares_ns(cost, n, grad_dtype);
    const struct lade_adamw_args form = {.dtype = graph->dtype, .grad_dtype = grad_dtype, .moments = graph->moments,
                                         .master = graph->master, .n_elements = n};
    prices.update_ns[LADE_TIER_DEVICE][p] = lade_cost_adamw_ns(cost, &form, false);
    prices.update_ns[LADE_TIER_HOST][p] = lade_cost_adamw_ns(cost, &form, true);
    bool has_store = machine->store.bytes > 0;
    prices.update_ns[LADE_TIER_STORE][p] = has_store ? lade_cost_adamw_store_ns(cost, &form, true) : INT64_C(1) << 40;
    prices.stream_edge_ns[p] = has_store ? lade_cost_stream_edge_ns(cost, &form, true) : 0;
    prices.update_near_ns[p] = has_store ? lade_cost_adamw_store_ns(cost, &form, false) : INT64_C(1) << 40;
  }
  prices.clip_ns = lade_cost_clip_ns(cost, n_partials);
  prices.to_host = link_price(&machine->to_host);
  prices.to_device = link_price(&machine->to_device);
  prices.read = store_price(&machine->store, 1);
  prices.write = store_price(&machine->store, 0);
  prices.copy_cores = 1;
  prices.n_cores = machine->is_unified ? machine->n_cores : 0;
  prices.streaming = lade_cost_streaming(cost);
  *ret_prices = prices;
  return 0;
}

void lade_prices_finish(struct lade_prices *prices)
{
  free(prices->op_ns); /* one allocation holds all arrays */
  *prices = (struct lade_prices){0};
}
