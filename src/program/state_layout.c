/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of a parameter's optimizer state in the store, and the memory of an update that streams it.
 *
 * The parts (residual, m, v, scales) are consecutive buffers, so the store sees only values with a range of their own.
 * Their bytes are interleaved in the range of all of them:
 *
 *   residual m v | residual m v | ... | residual m v | m's scales | v's scales
 *     a grain        a grain            the remainder
 *
 * So a window of an update, which is whole grains, is one range: one request reads it and one writes it. A norm or a
 * bias with its scales is one range as well. Whole grains are whole checksum granules in every part, and leave no gap.
 * Pieces after them begin at multiples of LADE_BUFFER_ALIGN. A part's range is in granules and has at least as many
 * bytes behind its own whole grains, so all pieces fit.
 *
 * States of parameters with adjacent ranges are adjacent too (run/executor/executor_values.c). Most parameters of a
 * model are norms and biases of a few kilobytes. A drive takes about as long for such a request as for a tenth of a
 * megabyte.
 *
 * Updates after all steps share a ring of a few windows, or of all bytes that they stream if that is less. The longest
 * parameter does not bound it, because the next updates are read and the last ones written while one is computed.
 *
 * Rejected: windows side by side instead of grains. A tuner chooses their length, so a later process would look for the
 * state at other offsets. Rejected: scales in each grain. They would take a block of the drive instead of 512 bytes.
 */
#include "base/base.h"
#include "program/program.h"

_Static_assert(LADE_STREAM_GRAIN % LADE_STORE_ALIGN == 0, "a grain fills whole granules of any part");

#define SHORT_SCALES_BYTES (16 * 2 * LADE_BUFFER_ALIGN) /* of all updates in flight that have two windows each */

/* Return the bytes of @n elements of @part, in whole pages; 0 for a part that the form of the state lacks. */
static uint64_t piece_bytes(const struct lade_model_graph *graph, enum lade_part part, int64_t n)
{
  return lade_value_part(graph, 0, part) < 0 ? 0 : lade_align_up(lade_part_bytes(graph, part, n), LADE_BUFFER_ALIGN);
}

/* Return the offset of @part in a grain of @n elements; LADE_PART_M_SCALES: the grain's end. */
static uint64_t grain_offset(const struct lade_model_graph *graph, enum lade_part part, int64_t n)
{
  uint64_t offset = 0;
  for (int before = LADE_PART_RESIDUAL; before < (int)part; before++)
    offset += piece_bytes(graph, (enum lade_part)before, n);
  return offset;
}

uint64_t lade_state_bytes(const struct lade_model_graph *graph, int64_t n_elements)
{
  return (uint64_t)(n_elements / LADE_STREAM_GRAIN) * grain_offset(graph, LADE_PART_M_SCALES, LADE_STREAM_GRAIN) +
         grain_offset(graph, LADE_PART_M_SCALES, n_elements % LADE_STREAM_GRAIN);
}

uint64_t lade_state_scales_bytes(const struct lade_model_graph *graph, int64_t n_elements)
{
  return piece_bytes(graph, LADE_PART_M_SCALES, n_elements) + piece_bytes(graph, LADE_PART_V_SCALES, n_elements);
}

uint64_t lade_state_offset(const struct lade_model_graph *graph, int64_t n_held, enum lade_part part, int64_t first)
{
  LADE_ASSERT(first % LADE_STREAM_GRAIN == 0 && first < n_held);
  if (lade_part_is_scales(part))
    return lade_state_bytes(graph, n_held) +
           (part == LADE_PART_V_SCALES ? piece_bytes(graph, LADE_PART_M_SCALES, n_held) : 0);
  return lade_state_bytes(graph, first) + grain_offset(graph, part, LADE_MIN(n_held - first, LADE_STREAM_GRAIN));
}

/* ---- streamed updates ---- */

/* Return the bytes that an update streams per element. */
static size_t streamed_bytes(const struct lade_stream_params *params)
{
  size_t bytes = 0;
  for (int part = LADE_PART_RESIDUAL; part <= LADE_PART_V; part++) {
    if (lade_value_part(params->graph, 0, (enum lade_part)part) >= 0)
      bytes += lade_part_bytes(params->graph, (enum lade_part)part, 1);
  }
  return bytes + (params->has_weight ? lade_dtype_bytes(params->graph->dtype) : 0) +
         (params->has_grad ? lade_dtype_bytes(params->graph->grad_dtype) : 0);
}

/* Return the memory for the first @n elements, without scales. */
static uint64_t window_bytes(const struct lade_stream_params *params, int64_t n)
{
  const struct lade_model_graph *graph = params->graph;
  const size_t weight = params->has_weight ? lade_dtype_bytes(graph->dtype) : 0;
  const size_t grad = params->has_grad ? lade_dtype_bytes(graph->grad_dtype) : 0;
  return lade_state_bytes(graph, n) + lade_align_up((uint64_t)n * weight, LADE_BUFFER_ALIGN) +
         lade_align_up((uint64_t)n * grad, LADE_BUFFER_ALIGN);
}

struct lade_stream_need lade_stream_need(const struct lade_stream_params *params)
{
  const int64_t n_held = lade_param_shard(params->graph, params->layout, params->param).n_padded;
  const int64_t n = LADE_MIN(n_held, lade_stream_window_elements(&params->streaming, streamed_bytes(params)));
  const uint64_t scales_bytes = lade_state_scales_bytes(params->graph, n_held);
  const uint64_t within = n == n_held ? scales_bytes : 0;
  return (struct lade_stream_need){
      .windows_bytes = (uint64_t)params->streaming.n_windows * (window_bytes(params, n) + within),
      .whole_bytes = window_bytes(params, n_held) + within,
      .scales_bytes = scales_bytes - within};
}

void lade_stream_need_add(struct lade_stream_need *all, struct lade_stream_need one)
{
  all->windows_bytes = LADE_MAX(all->windows_bytes, one.windows_bytes);
  all->whole_bytes += one.whole_bytes;
  all->scales_bytes = LADE_MAX(all->scales_bytes, one.scales_bytes);
}

/* Return the bytes of scales: two of the longest are in flight at once, followed by several short ones. */
uint64_t lade_stream_scales_bytes(uint64_t max_bytes, bool is_shared)
{
  return is_shared && max_bytes ? 2 * max_bytes + SHORT_SCALES_BYTES : max_bytes;
}

uint64_t lade_stream_scratch_bytes(struct lade_stream_need need, bool is_shared)
{
  return LADE_MIN(need.windows_bytes, need.whole_bytes) + lade_stream_scales_bytes(need.scales_bytes, is_shared);
}
