/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number the values beyond the graph's tensors: for each parameter its optimizer parts, then the step's scalars, then
 * blocks. This file alone knows their order. Also the names of instruction kinds, queues, owners and spaces.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "program/program.h"

int lade_value_part(const struct lade_model_graph *graph, int param, enum lade_part part)
{
  if (part == LADE_PART_RESIDUAL && graph->dtype == LADE_F32)
    return -1; /* the working copy is the master */
  if (lade_part_is_scales(part) && graph->moments != LADE_MOMENTS_8BIT)
    return -1;
  return graph->n_tensors + param * LADE_N_PARTS + (int)part;
}

int lade_value_scalar(const struct lade_model_graph *graph, enum lade_scalar scalar)
{
  return graph->n_tensors + graph->n_params * LADE_N_PARTS + (int)scalar;
}

int lade_value_block(const struct lade_model_graph *graph, int param, enum lade_block block)
{
  return lade_value_scalar(graph, LADE_N_SCALARS) + param * LADE_N_BLOCKS + (int)block;
}

int lade_value_count(const struct lade_model_graph *graph)
{
  return lade_value_block(graph, graph->n_params, LADE_BLOCK_WEIGHT);
}

static size_t part_element_bytes(const struct lade_model_graph *graph, enum lade_part part)
{
  static const size_t moments[LADE_N_MOMENTS] = {
      [LADE_MOMENTS_F32] = 4, [LADE_MOMENTS_BF16] = 2, [LADE_MOMENTS_8BIT] = 1};
  if (part != LADE_PART_RESIDUAL)
    return moments[graph->moments];
  if (graph->dtype != LADE_BF16)
    return sizeof(float);
  return graph->master == LADE_MASTER_24BIT ? sizeof(int8_t) : sizeof(int16_t);
}

uint64_t lade_part_bytes(const struct lade_model_graph *graph, enum lade_part part, int64_t n_elements)
{
  if (lade_part_is_scales(part))
    return (uint64_t)lade_div_up(n_elements, LADE_MOMENT_BLOCK);
  return (uint64_t)n_elements * part_element_bytes(graph, part);
}

const char *lade_value_name(const struct lade_model_graph *graph, int tensor, char *name)
{
  static const char *const parts[LADE_N_PARTS] = {"residual", "exp_avg", "exp_avg_sq", "m_scales", "v_scales"};
  static const char *const blocks[LADE_N_BLOCKS] = {"shard", "grad_shard", "new_grad_shard", "grad_shard_bf16",
                                                    "grad_bf16", "grad_rounded"};
  const size_t name_bytes = LADE_NAME_BYTES + 16;
  const int first_block = lade_value_block(graph, 0, (enum lade_block)0);
  if (tensor < 0)
    snprintf(name, name_bytes, "scratch");
  else if (tensor < graph->n_tensors)
    snprintf(name, name_bytes, "%s", graph->tensors[tensor].name);
  else if (tensor == lade_value_scalar(graph, LADE_SCALAR_PARTIALS))
    snprintf(name, name_bytes, "sums of squares");
  else if (tensor == lade_value_scalar(graph, LADE_SCALAR_CLIP_RESULT))
    snprintf(name, name_bytes, "clip result");
  else if (tensor >= lade_value_scalar(graph, LADE_SCALAR_SUM) && tensor < first_block)
    snprintf(name, name_bytes, "sums of ranks");
  else if (tensor >= first_block) {
    int at = tensor - first_block;
    snprintf(name, name_bytes, "%s.%s", graph->tensors[graph->params[at / LADE_N_BLOCKS].tensor].name,
             blocks[at % LADE_N_BLOCKS]);
  } else {
    int param = (tensor - graph->n_tensors) / LADE_N_PARTS, part = (tensor - graph->n_tensors) % LADE_N_PARTS;
    snprintf(name, name_bytes, "%s.%s", graph->tensors[graph->params[param].tensor].name, parts[part]);
  }
  return name;
}

void lade_program_destroy(struct lade_program *program)
{
  if (!program)
    return;
  free(program->instrs);
  free(program->operands);
  free(program->buffers);
  free(program->end_buffers);
  free(program->start_buffers);
  free(program);
}

const char *lade_instr_kind_name(enum lade_instr_kind kind)
{
  static const char *const names[] = {
      [LADE_INSTR_COMPUTE] = "compute", [LADE_INSTR_GRAD_SUMSQ] = "norm",   [LADE_INSTR_CLIP] = "clip",
      [LADE_INSTR_UPDATE] = "update",   [LADE_INSTR_COPY] = "copy",   [LADE_INSTR_READ] = "read",
      [LADE_INSTR_WRITE] = "write",     [LADE_INSTR_SEND] = "send",   [LADE_INSTR_COLLECTIVE] = "collective",
      [LADE_INSTR_RECV] = "recv",       [LADE_INSTR_ADD] = "add",     [LADE_INSTR_ROUND] = "round",
      [LADE_INSTR_CAST] = "cast",       [LADE_INSTR_SUM] = "sum"};
  _Static_assert(LADE_COUNT(names) == LADE_N_INSTR_KINDS, "every kind has a name");
  LADE_ASSERT((unsigned)kind < LADE_N_INSTR_KINDS);
  return names[kind];
}

const char *lade_queue_name(enum lade_queue_id queue)
{
  static const char *const names[LADE_N_QUEUES] = {"compute", "to_host", "to_device", "io",  "host",
                                                   "comm_tp", "comm_dp", "send",      "recv"};
  return (unsigned)queue < LADE_N_QUEUES ? names[queue] : "?";
}

const char *lade_owner_name(enum lade_owner owner)
{
  static const char *const names[LADE_N_OWNERS] = {
      "parameters", "gradients", "optimizer_state", "saved_activations", "transient_activations",
      "communication", "workspace", "fragmentation", "context"};
  return (unsigned)owner < LADE_N_OWNERS ? names[owner] : "?";
}

const char *lade_space_name(enum lade_space space)
{
  static const char *const names[LADE_N_SPACES] = {"device", "host", "store"};
  return (unsigned)space < LADE_N_SPACES ? names[space] : "?";
}
