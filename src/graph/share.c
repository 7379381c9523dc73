/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor parallel rank's share of a layer: its rows and columns of the parameters, and the collectives.
 *
 * The cut is Megatron-LM's (Shoeybi et al. 2019). A pair of products is cut so that no data passes between ranks inside
 * of it. The first is cut by its outputs (rows of the weight: heads, hidden values) and the second by its inputs
 * (columns), so each rank has a part of the sum that is the result. Ranks add the parts up after the second product,
 * and in backward they add the parts of dx before the first. The token table and the head are cut by tokens.
 *
 * With sequence parallelism (Korthikanti et al. 2022) the ops between the pairs (norms, dropout and residuals) are cut
 * by rows. The sum after a pair leaves each rank only its rows (a reduce-scatter), and rows are gathered before a pair.
 * The two move as many bytes as the one sum. Rows are those of the batch laid flat, [B*T]: rank r has the r-th part of
 * them, regardless of sequences.
 *
 * Values that are not cut are on every rank, and stay equal bit for bit because all ranks compute them from equal
 * values. A rank that sees only its rows or its heads has a part of such a gradient; the parts are added up once a
 * step's gradient is complete (struct lade_param says which ones). If there are fewer KV heads than ranks, several
 * neighbours hold each.
 *
 * The vocabulary is padded so that every rank has the same number of tokens. The padding is the end of the last rank's
 * table: it belongs to no token, gives no logit, stays zero and is in no checkpoint.
 *
 * Sums that ranks divide are made in one order for all numbers of ranks: over a tree, of which each rank has a run of
 * leaves (struct lade_k_tree). The number of leaves is the largest power of two up to LADE_LEAVES_MAX that divides the
 * heads, as every number of ranks must; 8 serves the ranks of a node. Three ranks, or six, make their sums in one
 * piece, with other bits.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "graph/build.h"
#include "graph/family.h"

/* ---- sizes ---- */

/* Return the number of leaves of the whole model's sums over @n values, which the leaves divide evenly. */
static int leaves_count(const struct lade_model *model, int64_t n)
{
  int leaves = LADE_LEAVES_MAX;
  while (model->heads % leaves || n % leaves)
    leaves /= 2;
  return leaves;
}

/* Return the tokens of a leaf, for as many leaves as possible without an empty one. */
static int64_t leaf_tokens(const struct lade_model *model)
{
  int leaves = leaves_count(model, 0);
  while ((leaves - 1) * lade_div_up(model->vocabulary, leaves) >= model->vocabulary)
    leaves /= 2;
  return lade_div_up(model->vocabulary, leaves);
}

/* Return the tokens per rank, padding included: whole leaves if the ranks divide them evenly. */
static int64_t vocabulary_rows(const struct lade_model *model, int tp)
{
  int64_t leaf = leaf_tokens(model), leaves = lade_div_up(model->vocabulary, leaf);
  if (tp == 1)
    return model->vocabulary;
  return leaves % tp ? lade_div_up(model->vocabulary, tp) : leaves / tp * leaf;
}

int64_t lade_share_vocabulary(const struct lade_model_graph *graph)
{
  return vocabulary_rows(&graph->model, graph->share.tp);
}

int64_t lade_share_padding(const struct lade_model_graph *graph)
{
  int64_t rows = lade_share_vocabulary(graph);
  return LADE_MAX((graph->share.tp_rank + 1) * rows - graph->model.vocabulary, 0);
}

int64_t lade_share_heads(const struct lade_model_graph *graph)
{
  return graph->model.heads / graph->share.tp;
}

int64_t lade_share_kv_heads(const struct lade_model_graph *graph)
{
  return LADE_MAX(graph->model.n_kv_heads / graph->share.tp, 1);
}

int lade_share_key_ranks(const struct lade_model_graph *graph)
{
  return (int)LADE_MAX(graph->share.tp / graph->model.n_kv_heads, 1);
}

int64_t lade_share_rows(const struct lade_model_graph *graph)
{
  return graph->batch * graph->seq_len / (graph->share.is_sequence ? graph->share.tp : 1);
}

static bool divides_model(const struct lade_model *model, int64_t tp)
{
  return model->heads % tp == 0 && model->hidden % tp == 0 &&
         (model->n_kv_heads % tp == 0 || tp % model->n_kv_heads == 0);
}

static bool leaves_tokens(const struct lade_model *model, int64_t tp)
{
  return (tp - 1) * vocabulary_rows(model, (int)tp) < model->vocabulary;
}

int64_t lade_share_nearest_tp(const struct lade_model *model, int64_t tp)
{
  int64_t best = 1; /* always possible */
  for (int64_t size = 2; size <= model->heads; size++) {
    if (divides_model(model, size) && leaves_tokens(model, size) && llabs(size - tp) < llabs(best - tp))
      best = size;
  }
  return best;
}

int lade_share_check(const struct lade_model_graph_params *params, struct lade_error *error)
{
  const struct lade_model *model = params->model;
  const struct lade_share *share = &params->share;
  int64_t tp = LADE_MAX(share->tp, 1);
  if (share->tp_rank < 0 || share->tp_rank >= tp)
    return lade_error_set(error, -EINVAL, "model %s: tensor parallel rank %d: must be from 0 to %lld", model->name,
                          share->tp_rank, (long long)tp - 1);
  if (!divides_model(model, tp))
    return lade_error_set(error, -EINVAL,
                          "model %s: %lld tensor parallel ranks must divide %lld heads and hidden width %lld, and "
                          "divide %lld KV heads or be a multiple of them: the nearest number is %lld",
                          model->name, (long long)tp, (long long)model->heads, (long long)model->hidden,
                          (long long)model->n_kv_heads, (long long)lade_share_nearest_tp(model, tp));
  if (!leaves_tokens(model, tp))
    return lade_error_set(error, -EINVAL, "model %s: a vocabulary of %lld leaves one of %lld tensor parallel ranks "
                          "without a token: the nearest number is %lld",
                          model->name, (long long)model->vocabulary, (long long)tp,
                          (long long)lade_share_nearest_tp(model, tp));
  if (share->is_sequence && params->batch * params->seq_len % tp)
    return lade_error_set(error, -EINVAL, "model %s: %lld tokens of a microbatch are no multiple of the %lld ranks "
                          "of sequence parallelism",
                          model->name, (long long)(params->batch * params->seq_len), (long long)tp);
  return 0;
}

/* ---- slices ---- */

struct lade_param_slice lade_slice_whole(int64_t n_rows, int64_t n_cols)
{
  return (struct lade_param_slice){.n_rows = n_rows, .file_rows = n_rows, .file_cols = n_cols};
}

struct lade_param_slice lade_slice_rows(const struct lade_model_graph *graph, int64_t n_rows, int64_t n_cols)
{
  struct lade_param_slice slice = lade_slice_whole(n_rows, n_cols);
  slice.n_rows = n_rows / graph->share.tp;
  slice.file_row = graph->share.tp_rank * slice.n_rows;
  return slice;
}

struct lade_param_slice lade_slice_cols(const struct lade_model_graph *graph, int64_t n_rows, int64_t n_cols)
{
  struct lade_param_slice slice = lade_slice_whole(n_rows, n_cols);
  slice.file_col = n_cols / graph->share.tp * graph->share.tp_rank;
  return slice;
}

struct lade_param_slice lade_slice_key_rows(const struct lade_model_graph *graph, int64_t n_cols)
{
  int64_t head_dim = lade_model_head_dim(&graph->model), n_heads = lade_share_kv_heads(graph);
  struct lade_param_slice slice = lade_slice_whole(graph->model.n_kv_heads * head_dim, n_cols);
  slice.n_rows = n_heads * head_dim;
  slice.file_row = graph->share.tp_rank / lade_share_key_ranks(graph) * slice.n_rows;
  return slice;
}

struct lade_param_slice lade_slice_vocabulary(const struct lade_model_graph *graph)
{
  int64_t rows = lade_share_vocabulary(graph);
  struct lade_param_slice slice = lade_slice_whole(graph->model.vocabulary, graph->model.width);
  slice.n_rows = rows - lade_share_padding(graph);
  slice.file_row = graph->share.tp_rank * rows;
  return slice;
}

void lade_build_slice(struct lade_build *build, int param, const struct lade_param_slice *slice, const char *format,
                      ...)
{
  const struct lade_tensor *tensor = &build->graph->tensors[param];
  struct lade_param *the_param = &build->graph->params[tensor->param];
  LADE_ASSERT(the_param->n_slices < (int)LADE_COUNT(the_param->slices));
  struct lade_param_slice *to = &the_param->slices[the_param->n_slices];
  *to = *slice;
  to->first_row = the_param->n_slices > 0 ? to[-1].first_row + to[-1].n_rows : 0;
  LADE_ASSERT(to->first_row + to->n_rows <= tensor->dims[0]);
  LADE_ASSERT(to->file_col + (tensor->n_dims > 1 ? tensor->dims[1] : 1) <= to->file_cols);
  va_list args;
  va_start(args, format);
  vsnprintf(to->name, sizeof(to->name), format, args);
  va_end(args);
  the_param->n_slices++;
}

/* ---- copies ---- */

void lade_build_replica(struct lade_build *build, int param, bool has_all_rows)
{
  const struct lade_share *share = &build->graph->share;
  struct lade_param *the_param = &build->graph->params[build->graph->tensors[param].param];
  if (share->tp_rank > 0)
    the_param->n_owned_rows = 0;
  if (share->is_sequence && !has_all_rows)
    the_param->n_sharers = share->tp;
}

void lade_build_head_replica(struct lade_build *build, int param)
{
  lade_build_replica(build, param, true);
  build->graph->params[build->graph->tensors[param].param].n_sharers = build->graph->share.tp;
}

void lade_build_key_replica(struct lade_build *build, int param, int64_t first_row)
{
  struct lade_param *the_param = &build->graph->params[build->graph->tensors[param].param];
  the_param->n_sharers = lade_share_key_ranks(build->graph);
  if (the_param->n_sharers == 1)
    return;
  the_param->first_shared_row = first_row;
  if (build->graph->share.tp_rank % the_param->n_sharers)
    the_param->n_owned_rows = first_row;
}

/* ---- collectives ---- */

static int collective_build(struct lade_build *build, enum lade_op_kind kind, const char *name, int x, bool is_partial)
{
  struct lade_op_attr attr = {.axis = LADE_AXIS_TP, .is_dx_partial = is_partial};
  return lade_build_out(build, lade_build_op(build, kind, name, &attr, &x), 0);
}

int lade_build_enter(struct lade_build *build, const char *name, int x)
{
  if (!build->graph->share.is_sequence)
    return x;
  return collective_build(build, LADE_OP_ALL_GATHER, name, x, true);
}

int lade_build_leave(struct lade_build *build, const char *name, int x)
{
  const struct lade_share *share = &build->graph->share;
  if (share->tp == 1)
    return x;
  return collective_build(build, share->is_sequence ? LADE_OP_REDUCE_SCATTER : LADE_OP_ALL_REDUCE, name, x, false);
}

/* True if parts of sums, which have dtype D, are as exact as sums, which have dtype A. */
static bool has_exact_parts(const struct lade_model_graph *graph)
{
  return graph->dtype == graph->accumulator;
}

/* Return this rank's number of the whole model's @leaves; 0 if it sums in one piece. */
static int own_leaves(const struct lade_model_graph *graph, int leaves)
{
  bool is_shared_out = leaves % graph->share.tp == 0 && leaves > graph->share.tp;
  return has_exact_parts(graph) && is_shared_out ? leaves / graph->share.tp : 0;
}

static struct lade_k_tree tree_make(const struct lade_model_graph *graph, int n_spans,
                                    const struct lade_sharded_width *spans)
{
  int leaves = LADE_LEAVES_MAX;
  for (int i = 0; i < n_spans; i++)
    leaves = LADE_MIN(leaves, leaves_count(&graph->model, spans[i].n_all));
  struct lade_k_tree tree = {.n_leaves = own_leaves(graph, leaves)};
  for (int i = 0; i < n_spans && tree.n_leaves; i++) {
    tree.span[tree.n_spans] = spans[i].n_own;
    tree.part[tree.n_spans++] = spans[i].n_own / tree.n_leaves;
  }
  return tree;
}

static struct lade_op_attr partial_attr(const struct lade_build *build)
{
  const struct lade_share *share = &build->graph->share;
  return (struct lade_op_attr){.axis = LADE_AXIS_TP, .is_dx_partial = share->tp > 1 && !share->is_sequence};
}

struct lade_op_attr lade_attr_column(const struct lade_build *build, int n_spans,
                                     const struct lade_sharded_width *spans)
{
  struct lade_op_attr attr = partial_attr(build);
  attr.dx_tree = tree_make(build->graph, n_spans, spans);
  return attr;
}

struct lade_op_attr lade_attr_row(const struct lade_build *build, int64_t n_all)
{
  struct lade_sharded_width span = {n_all, n_all / build->graph->share.tp};
  return (struct lade_op_attr){.y_tree = tree_make(build->graph, 1, &span)};
}

int lade_table_n_parts(const struct lade_model_graph *graph, int table)
{
  return graph->params[graph->tensors[table].param].n_parts;
}

int lade_table_part(const struct lade_model_graph *graph, int table, int i)
{
  LADE_ASSERT(i < lade_table_n_parts(graph, table));
  return graph->params[graph->tensors[table].param + i].tensor;
}

/* Build the statistics over this rank's part of the vocabulary, one part of the table after the other. */
static int stats_build(struct lade_build *build, const struct lade_op_attr *attr, int x, int table)
{
  const int n_parts = lade_table_n_parts(build->graph, table);
  int stats = -1;
  for (int i = 0; i < n_parts; i++) {
    char name[24] = "stats";
    if (i + 1 < n_parts)
      snprintf(name, sizeof(name), "stats.%d", i);
    int in[] = {x, lade_table_part(build->graph, table, i), build->graph->targets, stats};
    stats = lade_build_out(build, lade_build_op(build, LADE_OP_HEAD_STATS, name, attr, in), 0);
  }
  return stats;
}

int lade_build_head_loss(struct lade_build *build, int x, int table)
{
  const struct lade_model_graph *graph = build->graph;
  struct lade_op_attr attr = partial_attr(build);
  int64_t leaf = leaf_tokens(&graph->model);
  attr.leaf_tokens = own_leaves(graph, (int)lade_div_up(graph->model.vocabulary, leaf)) ? leaf : 0;
  if (graph->share.tp == 1 && lade_table_n_parts(graph, table) == 1)
    return lade_build_out(build, lade_build_op(build, LADE_OP_HEAD_LOSS, "loss", &attr,
                                               (int[]){x, table, graph->targets}), 2);
  x = lade_build_enter(build, "gather", x);
  int stats = stats_build(build, &attr, x, table);
  if (graph->share.tp > 1)
    stats = collective_build(build, LADE_OP_ALL_GATHER, "stats.gather", stats, false);
  int join = lade_build_op(build, LADE_OP_HEAD_JOIN, "loss", NULL, (int[]){stats, graph->targets});
  return lade_build_out(build, join, 2);
}
