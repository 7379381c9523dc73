/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain run of a graph. Memory is poisoned with NaN before the first step. So a read of unwritten memory, or a
 * gradient added to garbage, shows in every later number.
 */
#include "tests/support/graph_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/float.h"
#include "base/philox.h"

#define SEPARATORS 6

/* Allocate memory with the alignment of kernels, poisoned. */
static void *memory_make(uint64_t bytes)
{
  bytes = lade_align_up(LADE_MAX(bytes, 1), 64);
  void *memory = aligned_alloc(64, bytes);
  if (!memory)
    abort();
  return memset(memory, 0xff, bytes);
}

void graph_run_init(struct graph_run *run, const struct lade_model_graph *graph, const struct lade_kernels *kernels,
                    lade_pool *pool)
{
  *run = (struct graph_run){.graph = graph, .kernels = kernels, .pool = pool, .separators = SEPARATORS};
  run->step = (struct lade_step){.seed = 42, .step = 3, .loss_scale = 1};
  run->memory = calloc((size_t)graph->n_tensors, sizeof(*run->memory));
  run->is_written = calloc((size_t)graph->n_tensors, sizeof(*run->is_written));
  if (!run->memory || !run->is_written)
    abort();
  for (int i = 0; i < graph->n_tensors; i++)
    run->memory[i] = memory_make(graph->tensors[i].bytes);
  uint64_t workspace_bytes = 0;
  for (int i = 0; i < graph->n_ops; i++)
    workspace_bytes = LADE_MAX(workspace_bytes, graph->ops[i].workspace_bytes);
  run->workspace = memory_make(workspace_bytes);
}

void graph_run_finish(struct graph_run *run)
{
  for (int i = 0; i < run->graph->n_tensors; i++)
    free(run->memory[i]);
  free(run->memory);
  free(run->is_written);
  free(run->workspace);
  *run = (struct graph_run){0};
}

int64_t graph_run_elements(const struct graph_run *run, int tensor)
{
  const struct lade_tensor *the_tensor = &run->graph->tensors[tensor];
  return (int64_t)(the_tensor->bytes / lade_dtype_bytes(the_tensor->dtype));
}

double graph_run_get(const struct graph_run *run, int tensor, int64_t i)
{
  const void *memory = run->memory[tensor];
  switch (run->graph->tensors[tensor].dtype) {
  case LADE_F64: return ((const double *)memory)[i];
  case LADE_F32: return ((const float *)memory)[i];
  case LADE_BF16: return lade_bf16_to_f32(((const uint16_t *)memory)[i]);
  case LADE_F16: return lade_f16_to_f32(((const uint16_t *)memory)[i]);
  default: return NAN;
  }
}

void graph_run_set(struct graph_run *run, int tensor, int64_t i, double value)
{
  void *memory = run->memory[tensor];
  switch (run->graph->tensors[tensor].dtype) {
  case LADE_F64: ((double *)memory)[i] = value; break;
  case LADE_F32: ((float *)memory)[i] = (float)value; break;
  case LADE_BF16: ((uint16_t *)memory)[i] = lade_f32_to_bf16((float)value); break;
  case LADE_F16: ((uint16_t *)memory)[i] = lade_f32_to_f16((float)value); break;
  default: abort();
  }
}

/* Return a normal number by the transform of Box and Muller from two words of one draw. */
static double normal_draw(uint64_t seed, uint32_t stream, int64_t i)
{
  struct lade_philox draw = lade_philox_draw(seed, 0, stream, (uint64_t)i);
  double u = (draw.word[0] + 0.5) * 0x1p-32, v = (draw.word[1] + 0.5) * 0x1p-32;
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

void graph_run_randomize(struct graph_run *run, uint64_t seed, double std)
{
  for (int i = 0; i < run->graph->n_params; i++) {
    const struct lade_param *param = &run->graph->params[i];
    bool is_one = param->init == LADE_INIT_ONE;
    for (int64_t j = 0; j < graph_run_elements(run, param->tensor); j++) {
      double value = (is_one ? 1 : 0) + (is_one ? 0.1 : std) * normal_draw(seed, (uint32_t)param->number, j);
      graph_run_set(run, param->tensor, j, lade_bf16_to_f32(lade_f32_to_bf16((float)value)));
    }
  }
}

void graph_run_op(struct graph_run *run, int i_op, int microbatch, int n_microbatches)
{
  const struct lade_op *op = &run->graph->ops[i_op];
  if (op->kind == LADE_OP_SEND)
    memcpy(run->boundary, run->memory[op->in[0]], run->graph->tensors[op->in[0]].bytes);
  if (op->kind == LADE_OP_RECV)
    memcpy(run->memory[op->out[0]], run->boundary, run->graph->tensors[op->out[0]].bytes);
  if (lade_op_is_stage_boundary(op->kind))
    return;
  struct lade_bind bind = {
      .workspace = (uintptr_t)run->workspace, .microbatch = microbatch, .n_microbatches = n_microbatches};
  for (int i = 0; i < op->n_in; i++)
    bind.in[i] = op->in[i] >= 0 ? (uintptr_t)run->memory[op->in[i]] : 0;
  for (int i = 0; i < op->n_out; i++) {
    int tensor = op->out[i];
    bind.out[i] = tensor >= 0 ? (uintptr_t)run->memory[tensor] : 0;
    if (tensor < 0 || run->graph->tensors[tensor].kind != LADE_TENSOR_GRAD)
      continue;
    bind.accumulate |= run->is_written[tensor] ? 1u << i : 0;
    run->is_written[tensor] = true;
  }
  _Alignas(64) char args[LADE_OP_ARGS_BYTES];
  lade_op_bind(run->graph, i_op, &bind, args);
  run->kernels->fn[op->kernel](
      &(struct lade_kernel_ctx){.pool = run->pool, .step = &run->step, .kernels = run->kernels}, args);
}

void graph_run_feed(struct graph_run *run, const int32_t *tokens, const int32_t *targets, int microbatch)
{
  const struct lade_model_graph *graph = run->graph;
  int64_t first = microbatch * graph->batch * graph->seq_len;
  if (graph->tokens >= 0)
    memcpy(run->memory[graph->tokens], tokens + first, graph->tensors[graph->tokens].bytes);
  if (graph->targets >= 0)
    memcpy(run->memory[graph->targets], targets + first, graph->tensors[graph->targets].bytes);
  for (int64_t i = 0, key = 0; graph->first_keys >= 0 && i < graph->batch * graph->seq_len; i++) {
    key = i % graph->seq_len == 0 ? 0 : key;
    ((int32_t *)run->memory[graph->first_keys])[i] = (int32_t)key;
    key = tokens[first + i] % run->separators == 0 ? i % graph->seq_len + 1 : key;
  }
}

double graph_run_step(struct graph_run *run, const int32_t *tokens, const int32_t *targets, int n_microbatches,
                      bool has_backward)
{
  const struct lade_model_graph *graph = run->graph;
  memset(run->is_written, 0, (size_t)graph->n_tensors * sizeof(*run->is_written));
  double loss = 0;
  for (int i = 0; i < n_microbatches; i++) {
    graph_run_feed(run, tokens, targets, i);
    for (int j = 0; j < (has_backward ? graph->n_ops : graph->n_fwd_ops); j++)
      graph_run_op(run, j, i, n_microbatches);
    loss += graph_run_get(run, graph->loss, 0) / n_microbatches;
  }
  return loss;
}
