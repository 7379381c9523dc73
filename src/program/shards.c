/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards: the elements of each parameter whose state this rank holds (ZeRO; Rajbhandari et al. 2020).
 *
 * Each parameter is cut by itself into as many equal blocks as there are ranks on the shard axis, padded at the end. A
 * block is a multiple of SHARD_ELEMENTS, which keeps random draws and the exponents of 8-bit moments whole. Rejected:
 * cutting one flat vector per unit. It pads once per unit instead of once per tensor, but cuts checkpoints, norms and
 * updates inside tensors. The padding here is under 512 elements per rank and tensor.
 *
 * All sizes that a program gives a value are here: with padding for values that collectives cut, without for the
 * others.
 */
#include "base/base.h"
#include "program/program.h"

#define SHARD_ELEMENTS 512 /* of lade_adamw_args.first_element; a multiple of LADE_MOMENT_BLOCK */
_Static_assert(SHARD_ELEMENTS % LADE_MOMENT_BLOCK == 0, "a shard cuts a block of moments");

static int64_t param_elements(const struct lade_model_graph *graph, int param)
{
  const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
  return (int64_t)(tensor->bytes >> __builtin_ctzll(lade_dtype_bytes(tensor->dtype))); /* sizes are powers of two */
}

/* Return the elements of a block with its padding: the same at all ranks. */
static int64_t shard_elements(const struct lade_model_graph *graph, const struct lade_layout *layout, int param)
{
  const int64_t n = param_elements(graph, param), n_shards = lade_shard_count(layout);
  return n_shards == 1 ? n : lade_div_up(lade_div_up(n, n_shards), SHARD_ELEMENTS) * SHARD_ELEMENTS;
}

struct lade_state_shard lade_param_shard(const struct lade_model_graph *graph, const struct lade_layout *layout,
                                         int param)
{
  const int64_t n = param_elements(graph, param), n_padded = shard_elements(graph, layout, param);
  if (lade_shard_count(layout) == 1)
    return (struct lade_state_shard){0, n, n};
  const int64_t first = LADE_MIN(n, n_padded * lade_layout_position(layout, LADE_AXIS_SHARD));
  return (struct lade_state_shard){first, LADE_MIN(n_padded, n - first), n_padded};
}

struct lade_parts lade_param_parts(const struct lade_model_graph *graph, const struct lade_layout *layout, int param)
{
  const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
  const struct lade_state_shard shard = lade_param_shard(graph, layout, param);
  const int64_t first_row = graph->params[param].first_shared_row;
  const int64_t first = first_row * (tensor->n_dims > 1 ? tensor->dims[1] : 1);
  struct lade_parts parts = {.axis = first_row > 0 ? LADE_AXIS_KV : LADE_AXIS_TP}; /* rows of keys follow those of
                                                                                      queries */
  parts.first = LADE_MIN(LADE_MAX(first - shard.first, 0), shard.n);
  parts.n = shard.n - parts.first;
  return parts;
}

int64_t lade_norm_elements(const struct lade_model_graph *graph, const struct lade_layout *layout, int param)
{
  const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
  const struct lade_state_shard shard = lade_param_shard(graph, layout, param);
  int64_t n_owned = graph->params[param].n_owned_rows * (tensor->n_dims > 1 ? tensor->dims[1] : 1);
  return LADE_MIN(LADE_MAX(n_owned - shard.first, 0), shard.n);
}

int64_t lade_held_partials(const struct lade_model_graph *graph, const struct lade_layout *layout, int param)
{
  return LADE_MAX(1, lade_div_up(lade_norm_elements(graph, layout, param), LADE_SUM_BLOCK));
}

int64_t lade_held_first_partial(const struct lade_model_graph *graph, const struct lade_layout *layout, int param)
{
  int64_t n = 0;
  for (int i = 0; i < param; i++)
    n += lade_held_partials(graph, layout, i);
  return n;
}

enum lade_dtype lade_value_dtype(const struct lade_model_graph *graph, int tensor)
{
  if (tensor < graph->n_tensors)
    return graph->tensors[tensor].dtype;
  int block = tensor - lade_value_block(graph, 0, LADE_BLOCK_WEIGHT);
  if (block < 0)
    return LADE_F64; /* sums of squares; this function is not called for parts and clip results, which stay on their
                        rank */
  switch (block % LADE_N_BLOCKS) {
  case LADE_BLOCK_WEIGHT: return graph->dtype;
  case LADE_BLOCK_ROUNDED: return graph->grad_dtype;
  case LADE_BLOCK_NARROW:
  case LADE_BLOCK_NARROW_WHOLE: return LADE_BF16;
  default: return graph->accumulator;
  }
}

/* The axes of the levels: shards first, then tensor parallel parts, then stages. */
static const enum lade_axis sum_axes[LADE_SUM_LEVELS] = {LADE_AXIS_SHARD, LADE_AXIS_TP, LADE_AXIS_PP};

int lade_sums_size(const struct lade_layout *layout, int level)
{
  enum lade_axis axis = lade_sums_axis(level);
  return axis == LADE_AXIS_SHARD ? lade_shard_count(layout) : lade_layout_size(layout, axis);
}

enum lade_axis lade_sums_axis(int level)
{
  LADE_ASSERT(level >= 0 && level < LADE_SUM_LEVELS);
  return sum_axes[level];
}

int lade_sums_level(enum lade_axis axis)
{
  int level = LADE_SUM_LEVELS - 1;
  while (level >= 0 && sum_axes[level] != axis)
    level--;
  return level;
}

int lade_sums_count(const struct lade_layout *layout)
{
  int n = 1;
  for (int level = 0; level < LADE_SUM_LEVELS; level++)
    n *= lade_sums_size(layout, level);
  return n;
}

int64_t lade_summed_partials(const struct lade_model_graph *graph, const struct lade_layout *layout)
{
  int n = graph->n_params;
  while (n > 0 && graph->params[n - 1].is_copy)
    n--;
  return lade_held_first_partial(graph, layout, n);
}

/* Return the bytes of a tensor of the graph: weights and gradients are as long as all shards together. */
static uint64_t tensor_held_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout, int tensor)
{
  const struct lade_tensor *t = &graph->tensors[tensor];
  const bool is_cut = t->kind == LADE_TENSOR_PARAM || t->kind == LADE_TENSOR_GRAD;
  if (!is_cut || lade_shard_count(layout) == 1)
    return t->bytes;
  int64_t n_padded = shard_elements(graph, layout, t->param) * lade_shard_count(layout);
  return (uint64_t)n_padded * lade_dtype_bytes(t->dtype);
}

static uint64_t scalar_held_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout, int tensor)
{
  if (tensor == lade_value_scalar(graph, LADE_SCALAR_CLIP_RESULT))
    return sizeof(struct lade_clip_result);
  if (tensor == lade_value_scalar(graph, LADE_SCALAR_SUM))
    return sizeof(double);
  int level = tensor - lade_value_scalar(graph, LADE_SCALAR_SUMS);
  if (level >= 0)
    return (uint64_t)lade_sums_size(layout, level) * sizeof(double);
  return (uint64_t)lade_held_first_partial(graph, layout, graph->n_params) * sizeof(double);
}

uint64_t lade_cut_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout, int tensor)
{
  if (tensor < graph->n_tensors)
    return tensor_held_bytes(graph, layout, tensor);
  const int first_part = graph->n_tensors, first_scalar = lade_value_scalar(graph, (enum lade_scalar)0);
  const int first_block = lade_value_block(graph, 0, LADE_BLOCK_WEIGHT);
  if (tensor >= first_block) {
    int64_t n_padded = shard_elements(graph, layout, (tensor - first_block) / LADE_N_BLOCKS);
    bool is_whole = (tensor - first_block) % LADE_N_BLOCKS == LADE_BLOCK_NARROW_WHOLE;
    uint64_t n = (uint64_t)n_padded * (is_whole ? (uint64_t)lade_shard_count(layout) : 1);
    return n * lade_dtype_bytes(lade_value_dtype(graph, tensor));
  }
  if (tensor >= first_scalar)
    return scalar_held_bytes(graph, layout, tensor);
  int64_t n_padded = shard_elements(graph, layout, (tensor - first_part) / LADE_N_PARTS);
  return lade_part_bytes(graph, (enum lade_part)((tensor - first_part) % LADE_N_PARTS), n_padded);
}

static uint64_t store_granules(uint64_t bytes)
{
  return lade_align_up(LADE_MAX(bytes, 1), LADE_STORE_ALIGN);
}

uint64_t lade_state_store_bytes(const struct lade_model_graph *graph, const struct lade_layout *layout)
{
  const bool is_sharded = lade_shard_count(layout) > 1;
  uint64_t bytes = 0;
  for (int param = 0; param < graph->n_params; param++) {
    const int weight = is_sharded ? lade_value_block(graph, param, LADE_BLOCK_WEIGHT) : graph->params[param].tensor;
    bytes += store_granules(lade_held_bytes(graph, layout, weight));
    for (int part = 0; part < LADE_N_PARTS; part++) {
      int tensor = lade_value_part(graph, param, (enum lade_part)part);
      bytes += tensor < 0 ? 0 : store_granules(lade_held_bytes(graph, layout, tensor));
    }
  }
  return bytes;
}

uint64_t lade_value_bytes(const struct lade_model_graph *graph, int tensor)
{
  return lade_held_bytes(graph, NULL, tensor);
}
