/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a parameter's optimizer state lies in the store, and what an update that streams it needs of memory.
 *
 * The parts (residual, m, v, scales) are buffers that follow one another, so that the store knows nothing but values in
 * room of their own; their bytes lie side by side in the room of all of them:
 *
 *   residual m v | residual m v | ... | residual m v | m's scales | v's scales
 *     a grain        a grain            what is left
 *
 * So a window of an update, which is whole grains, is one range, read by one request and written by one; and a norm or
 * a bias with its scales is one as well. Whole grains are whole granules of checksums in every part, and fill the room
 * without a gap. Behind them pieces begin at multiples of LADE_BUFFER_ALIGN, and a part's room, which is in granules,
 * has at least as much behind its own whole grains: so all of it fits.
 *
 * States of parameters whose rooms are neighbours are neighbours, too (run/executor_values.c): most parameters of a
 * model are norms and biases of a few kilobytes, and for such a request a drive takes about as long as for a tenth of a
 * megabyte.
 *
 * Updates after all steps share a ring of a few windows, or of all that they stream if that is less. What bounds it is
 * not the longest parameter: while that is computed the next ones are read and the last ones written.
 *
 * Rejected: windows side by side instead of grains. Their length is found by a tuner, and state that outlives its
 * process would lie where the next one does not look. Scales in each grain: they would be a block of the drive in place
 * of 512 bytes.
 */
#include "base/base.h"
#include "plan/program.h"

_Static_assert(LADE_STREAM_GRAIN % LADE_STORE_ALIGN == 0, "a grain fills whole granules of any part");

#define SHORT_SCALES_BYTES (16 * 2 * LADE_BUFFER_ALIGN) /* of as many updates as have two windows each under way */

/* Bytes of @n elements of @part, in whole pages; 0 for one that the form of the state lacks. */
static uint64_t piece_bytes(const struct lade_graph *graph, enum lade_part part, int64_t n)
{
  return lade_value_part(graph, 0, part) < 0 ? 0 : lade_align_up(lade_part_bytes(graph, part, n), LADE_BUFFER_ALIGN);
}

/* Of a grain of @n elements, where @part begins; LADE_PART_M_SCALES: its end. */
static uint64_t grain_offset(const struct lade_graph *graph, enum lade_part part, int64_t n)
{
  uint64_t offset = 0;
  for (int before = LADE_PART_RESIDUAL; before < (int)part; before++)
    offset += piece_bytes(graph, (enum lade_part)before, n);
  return offset;
}

uint64_t lade_state_bytes(const struct lade_graph *graph, int64_t n_elements)
{
  return (uint64_t)(n_elements / LADE_STREAM_GRAIN) * grain_offset(graph, LADE_PART_M_SCALES, LADE_STREAM_GRAIN) +
         grain_offset(graph, LADE_PART_M_SCALES, n_elements % LADE_STREAM_GRAIN);
}

uint64_t lade_state_scales_bytes(const struct lade_graph *graph, int64_t n_elements)
{
  return piece_bytes(graph, LADE_PART_M_SCALES, n_elements) + piece_bytes(graph, LADE_PART_V_SCALES, n_elements);
}

uint64_t lade_state_offset(const struct lade_graph *graph, int64_t n_held, enum lade_part part, int64_t first)
{
  LADE_ASSERT(first % LADE_STREAM_GRAIN == 0 && first < n_held);
  if (lade_part_is_scales(part))
    return lade_state_bytes(graph, n_held) +
           (part == LADE_PART_V_SCALES ? piece_bytes(graph, LADE_PART_M_SCALES, n_held) : 0);
  return lade_state_bytes(graph, first) + grain_offset(graph, part, LADE_MIN(n_held - first, LADE_STREAM_GRAIN));
}

/* ---- streamed updates ---- */

int64_t lade_stream_window_elements(const struct lade_streaming *how, size_t element_bytes)
{
  const int64_t n = (int64_t)(how->window_bytes / LADE_MAX(element_bytes, 1));
  return LADE_MAX(n / LADE_STREAM_GRAIN * LADE_STREAM_GRAIN, LADE_STREAM_GRAIN);
}

/* What moves of an element. */
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

/* Memory for the first @n elements, without scales. */
static uint64_t window_bytes(const struct lade_stream_params *params, int64_t n)
{
  const struct lade_graph *graph = params->graph;
  const size_t weight = params->has_weight ? lade_dtype_bytes(graph->dtype) : 0;
  const size_t grad = params->has_grad ? lade_dtype_bytes(graph->grad_dtype) : 0;
  return lade_state_bytes(graph, n) + lade_align_up((uint64_t)n * weight, LADE_BUFFER_ALIGN) +
         lade_align_up((uint64_t)n * grad, LADE_BUFFER_ALIGN);
}

struct lade_stream_need lade_stream_need(const struct lade_stream_params *params)
{
  const int64_t n_held = lade_param_shard(params->graph, params->layout, params->param).n_padded;
  const int64_t n = LADE_MIN(n_held, lade_stream_window_elements(&params->how, streamed_bytes(params)));
  const uint64_t scales_bytes = lade_state_scales_bytes(params->graph, n_held);
  const uint64_t within = n == n_held ? scales_bytes : 0;
  return (struct lade_stream_need){
      .windows_bytes = (uint64_t)params->how.n_windows * (window_bytes(params, n) + within),
      .whole_bytes = window_bytes(params, n_held) + within,
      .scales_bytes = scales_bytes - within};
}

void lade_stream_need_add(struct lade_stream_need *all, struct lade_stream_need one)
{
  all->windows_bytes = LADE_MAX(all->windows_bytes, one.windows_bytes);
  all->whole_bytes += one.whole_bytes;
  all->scales_bytes = LADE_MAX(all->scales_bytes, one.scales_bytes);
}

/* Two of the longest are there at once, and behind short ones some more short ones. */
uint64_t lade_stream_scales_bytes(uint64_t most_bytes, bool is_shared)
{
  return is_shared && most_bytes ? 2 * most_bytes + SHORT_SCALES_BYTES : most_bytes;
}

uint64_t lade_stream_scratch_bytes(struct lade_stream_need need, bool is_shared)
{
  return LADE_MIN(need.windows_bytes, need.whole_bytes) + lade_stream_scales_bytes(need.scales_bytes, is_shared);
}
