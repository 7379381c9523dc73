/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forward pass: the graph's forward ops in order, each value in memory of its own, up to the head. There the logits
 * of one position are the product of one row with the head's weight, instead of a loss over all rows.
 *
 * The whole sequence is computed for every token. A cache of keys and values would make the cost linear. It would need
 * a second attention kernel, proved equal to the first, for a command that only samples text. Rows after the last token
 * are padding: attention is causal, so they change nothing before them.
 */
#include "run/forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/kernels.h"

struct lade_forward {
  struct lade_model_graph *graph;
  const struct lade_kernels *kernels;
  lade_pool *pool;
  struct lade_step step;
  void **memory; /* by tensor; NULL for tensors of the backward half */
  void *workspace;
  int head;      /* the op that is not run: its inputs are the last values and the head's weight */
};

static void *memory_make(uint64_t bytes)
{
  return aligned_alloc(64, lade_align_up(LADE_MAX(bytes, 1), 64));
}

static bool is_needed(const struct lade_model_graph *graph, int tensor)
{
  const struct lade_tensor *t = &graph->tensors[tensor];
  if (t->kind == LADE_TENSOR_GRAD || t->is_optional)
    return false;
  return t->producer < 0 || t->producer < graph->n_fwd_ops;
}

static struct lade_matmul_args head_args(const struct lade_forward *forward)
{
  const struct lade_op *head = &forward->graph->ops[forward->head];
  const struct lade_tensor *weight = &forward->graph->tensors[head->in[1]];
  return (struct lade_matmul_args){.layout = LADE_NT, .dtype = LADE_F32, .out = LADE_F32, .m = 1,
                                   .n = weight->dims[0], .k = weight->dims[1], .b = forward->memory[head->in[1]],
                                   .workspace = forward->workspace};
}

static int memory_take(lade_forward *forward, int n_threads)
{
  const struct lade_model_graph *graph = forward->graph;
  uint64_t workspace_bytes = 0;
  forward->memory = calloc((size_t)graph->n_tensors, sizeof(*forward->memory));
  if (!forward->memory)
    return -ENOMEM;
  for (int i = 0; i < graph->n_tensors; i++) {
    if (!is_needed(graph, i))
      continue;
    forward->memory[i] = memory_make(graph->tensors[i].bytes);
    if (!forward->memory[i])
      return -ENOMEM;
  }
  struct lade_matmul_args head = head_args(forward);
  workspace_bytes = lade_kernel_workspace_bytes(forward->kernels, LADE_K_MATMUL, &head, n_threads);
  for (int i = 0; i < graph->n_fwd_ops; i++)
    workspace_bytes = LADE_MAX(workspace_bytes, graph->ops[i].workspace_bytes);
  forward->workspace = memory_make(workspace_bytes);
  return forward->workspace ? 0 : -ENOMEM;
}

static int head_find(const struct lade_model_graph *graph)
{
  int op = graph->n_fwd_ops - 1;
  while (graph->ops[op].kind != LADE_OP_HEAD_LOSS)
    op--;
  return op;
}

int lade_forward_create(const struct lade_forward_params *params, struct lade_error *error, lade_forward **ret_forward)
{
  lade_forward *forward = calloc(1, sizeof(*forward));
  if (!forward)
    return lade_error_set(error, -ENOMEM, "no memory for a model");
  int n_threads = params->pool ? lade_pool_n_threads(params->pool) : 1;
  const struct lade_model_graph_params graph_params = {
      .struct_size = sizeof(graph_params), .model = params->model, .dtype = LADE_F32, .batch = 1,
      .seq_len = params->seq_len, .kernels = params->kernels, .n_threads = n_threads};
  forward->kernels = params->kernels;
  forward->pool = params->pool;
  forward->step.loss_scale = 1;
  int status = lade_model_graph_create(&graph_params, error, &forward->graph);
  if (!status) {
    forward->head = head_find(forward->graph);
    status = memory_take(forward, n_threads);
    if (status)
      lade_error_set(error, status, "no memory for %s", params->model->name);
  }
  if (status) {
    lade_forward_destroy(forward);
    return status;
  }
  *ret_forward = forward;
  return 0;
}

void lade_forward_destroy(lade_forward *forward)
{
  if (!forward)
    return;
  for (int i = 0; forward->memory && i < forward->graph->n_tensors; i++)
    free(forward->memory[i]);
  free(forward->memory);
  free(forward->workspace);
  lade_model_graph_destroy(forward->graph);
  free(forward);
}

/* ---- parameters ---- */

static int values_get(void *user, int tensor, uint64_t offset, void *dst, uint64_t bytes, struct lade_error *error)
{
  const lade_forward *forward = user;
  if (tensor >= forward->graph->n_tensors)
    return lade_error_set(error, -EINVAL, "a model that is only run forward has no optimizer state");
  memcpy(dst, (const char *)forward->memory[tensor] + offset, bytes);
  return 0;
}

static int values_set(void *user, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error)
{
  lade_forward *forward = user;
  (void)error;
  if (tensor < forward->graph->n_tensors)
    memcpy((char *)forward->memory[tensor] + offset, src, bytes);
  return 0;
}

struct lade_values lade_forward_values(lade_forward *forward)
{
  return (struct lade_values){.graph = forward->graph, .get = values_get, .set = values_set, .user = forward};
}

/* ---- running ---- */

static int tokens_fill(lade_forward *forward, const int32_t *tokens, int64_t n_tokens)
{
  const struct lade_model_graph *graph = forward->graph;
  int32_t *to = forward->memory[graph->tokens];
  if (n_tokens < 1 || n_tokens > graph->seq_len)
    return -EINVAL;
  for (int64_t i = 0; i < n_tokens; i++) {
    if (tokens[i] < 0 || tokens[i] >= graph->model.vocabulary)
      return -EINVAL;
  }
  memset(to, 0, graph->tensors[graph->tokens].bytes);
  memcpy(to, tokens, (size_t)n_tokens * sizeof(*to));
  return 0;
}

static void op_run(lade_forward *forward, int i_op)
{
  const struct lade_op *op = &forward->graph->ops[i_op];
  const struct lade_kernel_ctx ctx = {.pool = forward->pool, .step = &forward->step};
  struct lade_bind bind = {.workspace = (uintptr_t)forward->workspace, .n_microbatches = 1};
  _Alignas(64) char args[LADE_OP_ARGS_BYTES];
  for (int i = 0; i < op->n_in; i++)
    bind.in[i] = op->in[i] >= 0 ? (uintptr_t)forward->memory[op->in[i]] : 0;
  for (int i = 0; i < op->n_out; i++)
    bind.out[i] = op->out[i] >= 0 ? (uintptr_t)forward->memory[op->out[i]] : 0;
  lade_op_bind(forward->graph, i_op, &bind, args);
  forward->kernels->fn[op->kernel](&ctx, args);
}

int lade_forward_logits(lade_forward *forward, const int32_t *tokens, int64_t n_tokens, float *ret_logits)
{
  int status = tokens_fill(forward, tokens, n_tokens);
  if (status)
    return status;
  for (int op = 0; op < forward->head; op++)
    op_run(forward, op);
  const struct lade_kernel_ctx ctx = {.pool = forward->pool, .step = &forward->step};
  struct lade_matmul_args args = head_args(forward);
  const float *rows = forward->memory[forward->graph->ops[forward->head].in[0]];
  args.a = rows + (n_tokens - 1) * args.k;
  args.c = ret_logits;
  forward->kernels->fn[LADE_K_MATMUL](&ctx, &args);
  return 0;
}
