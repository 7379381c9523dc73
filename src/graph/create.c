/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a graph: room for everything first, then the model's forward half, then its derivation.
 *
 * The arrays are sized before anything is pushed (push.c), so that the only thing that can fail is the allocation at
 * the start. A graph of 130 units takes a few megabytes and about a millisecond. Unused room is released at the end.
 */
#include "graph/build.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "graph/family.h"

/* Rows N = batch * time stay in 31 bits, so with the model's limits every product of sizes fits 63 bits. */
#define MAX_ROWS INT32_MAX

static int stage_check(const struct lade_model_graph_params *params, struct lade_error *error)
{
  const struct lade_share *share = &params->share;
  struct lade_layer_span span;
  int pp = LADE_MAX(share->pp, 1), n_chunks = LADE_MAX(share->n_chunks, 1);
  if (share->pp_rank < 0 || share->pp_rank >= pp || (pp == 1 && n_chunks > 1))
    return lade_error_set(error, -EINVAL, "model %s: stage %d of %d with %d chunks of layers: no such stage",
                          params->model->name, share->pp_rank, pp, n_chunks);
  return lade_piece_layers(params->model, params->seq_len, pp * n_chunks, share->pp_rank, error, &span);
}

/* Check the forms of AdamW's state and gradients. */
static int forms_check(const struct lade_model_graph_params *params, struct lade_error *error)
{
  if ((unsigned)params->moments >= LADE_N_MOMENTS || (unsigned)params->master >= LADE_N_MASTERS)
    return lade_error_set(error, -EINVAL, "optimizer state has no form of moments %d, master %d",
                          (int)params->moments, (int)params->master);
  if (params->master == LADE_MASTER_24BIT && params->dtype != LADE_BF16)
    return lade_error_set(error, -EINVAL, "a 24-bit master is 8 bits beside a bf16 weight; with %s use the exact one",
                          lade_dtype_name(params->dtype));
  if (params->grad_dtype != LADE_F32 && (params->grad_dtype != LADE_BF16 || params->dtype == LADE_F64))
    return lade_error_set(error, -EINVAL, "gradients are given to the update in f32 or in bf16, not in %s",
                          lade_dtype_name(params->grad_dtype));
  return 0;
}

/* Refuse GELU in its product for models without such a product. */
static int gelu_check(const struct lade_model_graph_params *params, struct lade_error *error)
{
  if (!params->fuses_gelu_fwd || lade_model_has_gelu(params->model))
    return 0;
  return lade_error_set(error, -EINVAL, "model %s: --gelu-fusion joins GELU's tanh form with the product before it, "
                        "and this model's MLPs have none: leave the option out", params->model->name);
}

/* Refuse sizes that the device's attention kernels do not support. */
static int attention_check(const struct lade_model_graph_params *params, struct lade_error *error)
{
  const struct lade_attention_max *max = &params->kernels->attention_max;
  const struct {
    const char *label;
    int64_t value, max;
  } sizes[] = {{"heads of", lade_model_head_dim(params->model), max->head_dim},
               {"sequence length", params->seq_len, max->seq_len},
               {"micro-batch", params->batch, max->batch}};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    if (sizes[i].max && sizes[i].value > sizes[i].max)
      return lade_error_set(error, -EINVAL, "model %s: %s %lld: this device attends with at most %lld; the host takes "
                            "any", params->model->name, sizes[i].label, (long long)sizes[i].value,
                            (long long)sizes[i].max);
  }
  return 0;
}

static int params_check(const struct lade_model_graph_params *params, struct lade_error *error)
{
  LADE_ASSERT(params->struct_size == sizeof(*params) && params->model && params->kernels);
  int rc = lade_model_check(params->model, error);
  if (rc < 0)
    return rc;
  const struct lade_model *model = params->model;
  if (params->dtype > LADE_F64)
    return lade_error_set(error, -EINVAL, "model %s: dtype %s: expected f32, bf16 or f16", model->name,
                          lade_dtype_name(params->dtype));
  if (params->seq_len < 1 || params->seq_len > model->context)
    return lade_error_set(error, -EINVAL, "model %s: sequence length %lld: must be from 1 to the context, %lld",
                          model->name, (long long)params->seq_len, (long long)model->context);
  if (params->batch < 1 || params->batch > MAX_ROWS / params->seq_len)
    return lade_error_set(error, -EINVAL,
                          "model %s: micro-batch %lld: must be from 1 to %lld at sequence length %lld", model->name,
                          (long long)params->batch, (long long)(MAX_ROWS / params->seq_len),
                              (long long)params->seq_len);
  if (!(params->dropout >= 0 && params->dropout < 1))
    return lade_error_set(error, -EINVAL, "model %s: dropout %g: must be at least 0 and below 1", model->name,
                          (double)params->dropout);
  rc = attention_check(params, error);
  if (rc < 0)
    return rc;
  rc = gelu_check(params, error);
  if (rc < 0)
    return rc;
  rc = forms_check(params, error);
  if (rc < 0)
    return rc;
  rc = lade_share_check(params, error);
  if (rc < 0)
    return rc;
  rc = stage_check(params, error);
  if (rc < 0)
    return rc;
  if (params->n_threads < 1)
    return lade_error_set(error, -EINVAL, "model %s: %d threads: must be at least 1", model->name,
                          params->n_threads);
  return 0;
}

/* Shrink the arrays to their used sizes. If realloc fails, the larger block stays. */
static void graph_trim(struct lade_model_graph *graph)
{
  void *tensors = realloc(graph->tensors, (size_t)graph->n_tensors * sizeof(*graph->tensors));
  graph->tensors = tensors ? tensors : graph->tensors;
  void *params = realloc(graph->params, (size_t)graph->n_params * sizeof(*graph->params));
  graph->params = params ? params : graph->params;
  void *ops = realloc(graph->ops, (size_t)(graph->n_ops + graph->n_lean_ops) * sizeof(*graph->ops));
  graph->ops = ops ? ops : graph->ops;
}

/* Build all units. Tokens belong to the first unit, targets to the last, first keys to stages that attend. */
static void graph_fill(struct lade_model_graph *graph, struct lade_build *build)
{
  const int64_t dims[] = {graph->batch, graph->seq_len};
  bool is_first = graph->share.pp_rank == 0, is_last = graph->share.pp_rank == graph->share.pp - 1;
  graph->tokens = graph->targets = graph->first_keys = graph->loss = -1;
  if (is_first)
    graph->tokens = lade_build_tensor(build, LADE_TENSOR_TOKENS, LADE_I32, 2, dims, "tokens");
  if (is_last)
    graph->targets = lade_build_tensor(build, LADE_TENSOR_TARGETS, LADE_I32, 2, dims, "targets");
  if (build->has_documents && lade_stage_has_layers(graph))
    graph->first_keys = lade_build_tensor(build, LADE_TENSOR_FIRST_KEYS, LADE_I32, 2, dims, "first_keys");
  lade_build_stage(build);
  graph->n_fwd_ops = graph->n_ops;
  if (is_last)
    graph->tensors[graph->targets].unit = graph->n_units - 1;
  lade_build_backward(build);
  lade_build_lean_ops(build);
}

int lade_model_graph_create(const struct lade_model_graph_params *params, struct lade_error *error,
                            struct lade_model_graph **ret_graph)
{
  int rc = params_check(params, error);
  if (rc < 0)
    return rc;
  struct lade_model_graph *graph = calloc(1, sizeof(*graph));
  struct lade_build build = {.graph = graph, .kernels = params->kernels, .n_threads = params->n_threads,
                             .dropout = params->dropout, .has_documents = params->has_documents,
                             .fuses_gelu = params->fuses_gelu,
                             .fuses_gelu_fwd = params->fuses_gelu_fwd};
  if (!graph)
    return lade_error_set(error, -ENOMEM, "out of memory building the graph of %s", params->model->name);
  graph->model = *params->model;
  graph->share = params->share;
  graph->share.tp = LADE_MAX(params->share.tp, 1);
  graph->share.is_sequence = params->share.is_sequence && graph->share.tp > 1;
  graph->share.pp = LADE_MAX(params->share.pp, 1);
  graph->share.n_chunks = LADE_MAX(params->share.n_chunks, 1);
  graph->share.n_shards = LADE_MAX(params->share.n_shards, 1);
  graph->share.is_scattered = params->share.is_scattered && graph->share.tp > 1 && graph->share.pp > 1 &&
                              !graph->share.is_sequence && params->batch * params->seq_len % graph->share.tp == 0;
  graph->dtype = params->dtype;
  graph->accumulator = params->dtype == LADE_F64 ? LADE_F64 : LADE_F32;
  graph->moments = params->moments;
  graph->master = params->master;
  graph->grad_dtype = params->grad_dtype == LADE_BF16 ? LADE_BF16 : graph->accumulator;
  graph->batch = params->batch;
  graph->seq_len = params->seq_len;
  if (!lade_build_reserve(graph, &build)) {
    free(build.gradient_of);
    lade_model_graph_destroy(graph);
    return lade_error_set(error, -ENOMEM, "out of memory building the graph of %s", params->model->name);
  }
  graph_fill(graph, &build);
  free(build.gradient_of);
  graph_trim(graph);
  *ret_graph = graph;
  return 0;
}

void lade_model_graph_destroy(struct lade_model_graph *graph)
{
  if (!graph)
    return;
  free(graph->tensors);
  free(graph->params);
  free(graph->ops);
  free(graph->units);
  free(graph);
}

bool lade_tensor_is_repeatable(const struct lade_model_graph *graph, int tensor)
{
  const struct lade_tensor *t = &graph->tensors[tensor];
  return t->kind == LADE_TENSOR_ACTIVATION && !graph->ops[t->producer].is_backward &&
         graph->ops[t->producer].kind != LADE_OP_RECV;
}
