/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compact state as FP32 numbers, and back: BF16 and 8-bit moments, 24-bit masters (base/moments.h).
 *
 * A stored value is exact in FP32, and coding rounds to the nearest value, which gives the same bits again. So a run
 * that is saved and loaded in one form continues exactly. State of another form is rounded once.
 *
 * Values are moved in whole windows, but a block of FP32 elements is half a window of bytes. So a window is kept
 * between two blocks. Scales are kept for the whole parameter, a byte for LADE_MOMENT_BLOCK elements, because the last
 * of them is known only with the parameter's last element.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/moments.h"
#include "run/checkpoint/checkpoint_internal.h"

_Static_assert(CHUNK_BLOCK_ELEMENTS % LADE_MOMENT_BLOCK == 0, "blocks of moments are not cut");

int64_t chunk_n_elements(const struct lade_model_graph *graph, int param)
{
  const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
  return (int64_t)(tensor->bytes / lade_dtype_bytes(tensor->dtype));
}

static int64_t max_elements(const struct lade_model_graph *graph)
{
  int64_t max = 0;
  for (int param = 0; param < graph->n_params; param++)
    max = LADE_MAX(max, chunk_n_elements(graph, param));
  return max;
}

int forms_init(struct chunk_buffer *chunk, struct lade_faults *faults)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  const bool has_scales = graph->moments == LADE_MOMENTS_8BIT;
  chunk->codes.tensor = chunk->scales_tensor = -1;
  if (!has_scales && graph->master == LADE_MASTER_EXACT)
    return 0;
  chunk->codes.bytes = lade_fault_calloc(faults, 1, LADE_VALUES_WINDOW_BYTES);
  if (has_scales)
    chunk->scales = lade_fault_calloc(faults, (size_t)max_elements(graph) / LADE_MOMENT_BLOCK + 1, 1);
  return chunk->codes.bytes && (chunk->scales || !has_scales) ? 0 : -ENOMEM;
}

void forms_finish(struct chunk_buffer *chunk)
{
  free(chunk->codes.bytes);
  free(chunk->scales);
}

/* ---- elements of one byte ---- */

/* Return the place in the window of the byte at @first of a value. */
static uint8_t *bytes_at(const struct chunk_buffer *chunk, int64_t first)
{
  return chunk->codes.bytes + first % LADE_VALUES_WINDOW_BYTES;
}

/* Load the window with the bytes of @run of @tensor, which has @total bytes. pre: they lie in one window. */
static int bytes_get(struct chunk_buffer *chunk, int tensor, int64_t total, const struct elements_run *run,
                     struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  struct chunk_bytes *codes = &chunk->codes;
  uint64_t offset = (uint64_t)run->first / LADE_VALUES_WINDOW_BYTES * LADE_VALUES_WINDOW_BYTES;
  LADE_ASSERT((uint64_t)run->first - offset + (uint64_t)run->n <= LADE_VALUES_WINDOW_BYTES);
  if (codes->tensor == tensor && codes->offset == offset)
    return 0;
  codes->tensor = -1;
  int rc = values->get(values->user, tensor, offset, codes->bytes,
                       LADE_MIN((uint64_t)total - offset, LADE_VALUES_WINDOW_BYTES), error);
  if (rc == 0) {
    codes->tensor = tensor;
    codes->offset = offset;
  }
  return rc;
}

/* Return the room in the window for the bytes at @first of the value that is being set. */
static uint8_t *bytes_room(struct chunk_buffer *chunk, int64_t first)
{
  chunk->codes.tensor = -1;
  return bytes_at(chunk, first);
}

/* Set the window of the bytes up to @end of @total, if it is full or the last. */
static int bytes_set(struct chunk_buffer *chunk, int tensor, int64_t total, int64_t end, struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  if (end % LADE_VALUES_WINDOW_BYTES && end < total)
    return 0;
  int64_t offset = (end - 1) / LADE_VALUES_WINDOW_BYTES * LADE_VALUES_WINDOW_BYTES;
  return values->set(values->user, tensor, (uint64_t)offset, chunk->codes.bytes, (uint64_t)(end - offset), error);
}

/* ---- 16-bit elements ---- */

static int words_get(struct chunk_buffer *chunk, int tensor, const struct elements_run *run, struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  return values->get(values->user, tensor, (uint64_t)run->first * sizeof(uint16_t), chunk->weight,
                     (uint64_t)run->n * sizeof(uint16_t), error);
}

static int words_set(struct chunk_buffer *chunk, int tensor, const struct elements_run *run, struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  return values->set(values->user, tensor, (uint64_t)run->first * sizeof(uint16_t), chunk->weight,
                     (uint64_t)run->n * sizeof(uint16_t), error);
}

/* ---- scales ---- */

static int scales_move(struct chunk_buffer *chunk, int tensor, bool is_set, struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  uint64_t total = lade_value_bytes(values->graph, tensor);
  int rc = 0;
  for (uint64_t at = 0; at < total && rc == 0; at += LADE_VALUES_WINDOW_BYTES) {
    uint64_t bytes = LADE_MIN(total - at, LADE_VALUES_WINDOW_BYTES);
    rc = is_set ? values->set(values->user, tensor, at, chunk->scales + at, bytes, error)
                : values->get(values->user, tensor, at, chunk->scales + at, bytes, error);
  }
  return rc;
}

/* Load the scales of @tensor; the first block of a parameter always reads them. */
static int scales_get(struct chunk_buffer *chunk, int tensor, int64_t first, struct lade_error *error)
{
  if (chunk->scales_tensor == tensor && first > 0)
    return 0;
  int rc = scales_move(chunk, tensor, false, error);
  chunk->scales_tensor = rc == 0 ? tensor : -1;
  return rc;
}

/* ---- moments of eight bits ---- */

static void block_decode(const uint8_t *code, uint32_t scale, bool is_v, float *dst, int64_t n)
{
  scale = lade_scale_clamp(scale);
  for (int64_t i = 0; i < n; i++)
    dst[i] = is_v ? lade_v_value(code[i], scale) : lade_m_value(code[i], scale);
}

/* Code a block with one scale. Return the scale. */
static uint8_t block_code(const float *src, bool is_v, uint8_t *code, int64_t n)
{
  uint32_t scale = 0;
  for (int64_t i = 0; i < n; i++)
    scale = LADE_MAX(scale, lade_scale_of(lade_f32_bits(src[i]) & 0x7fffffffu, LADE_ROUND_NEAREST));
  scale = lade_scale_clamp(scale);
  for (int64_t i = 0; i < n; i++)
    code[i] = is_v ? lade_v_code(src[i], scale, LADE_ROUND_NEAREST) : lade_m_code(src[i], scale, LADE_ROUND_NEAREST);
  return (uint8_t)scale;
}

/* ---- moments and masters ---- */

/* The tensor of a parameter's moment, and the form of its values. */
struct moment {
  int tensor, scales;
  int64_t n_elements;
  bool is_v, is_bf16;
};

static struct moment moment_find(const struct chunk_buffer *chunk, int param, enum chunk_kind kind)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  bool is_v = kind == CHUNK_V;
  return (struct moment){.tensor = lade_value_part(graph, param, is_v ? LADE_PART_V : LADE_PART_M),
                         .scales = lade_value_part(graph, param, is_v ? LADE_PART_V_SCALES : LADE_PART_M_SCALES),
                         .n_elements = chunk_n_elements(graph, param), .is_v = is_v,
                         .is_bf16 = graph->moments == LADE_MOMENTS_BF16};
}

/* Decode codes block by block. pre: the scales are in the chunk. */
static int codes_get(struct chunk_buffer *chunk, const struct moment *m, const struct elements_run *run,
                     struct lade_error *error)
{
  int rc = bytes_get(chunk, m->tensor, m->n_elements, run, error);
  const uint8_t *code = bytes_at(chunk, run->first);
  for (int64_t i = 0; i < run->n && rc == 0; i += LADE_MOMENT_BLOCK)
    block_decode(code + i, chunk->scales[(run->first + i) / LADE_MOMENT_BLOCK], m->is_v, run->data + i,
                 LADE_MIN(run->n - i, LADE_MOMENT_BLOCK));
  return rc;
}

/* Encode elements block by block, and set the scales of the blocks in the chunk. */
static int codes_set(struct chunk_buffer *chunk, const struct moment *m, const struct elements_run *run,
                     struct lade_error *error)
{
  uint8_t *code = bytes_room(chunk, run->first);
  for (int64_t i = 0; i < run->n; i += LADE_MOMENT_BLOCK)
    chunk->scales[(run->first + i) / LADE_MOMENT_BLOCK] = block_code(run->data + i, m->is_v, code + i,
                                                                     LADE_MIN(run->n - i, LADE_MOMENT_BLOCK));
  return bytes_set(chunk, m->tensor, m->n_elements, run->first + run->n, error);
}

int moments_get(struct chunk_buffer *chunk, int param, enum chunk_kind kind, const struct elements_run *run,
                struct lade_error *error)
{
  const struct moment m = moment_find(chunk, param, kind);
  int rc = m.is_bf16 ? 0 : scales_get(chunk, m.scales, run->first, error);
  for (int64_t at = 0; at < run->n && rc == 0; at += CHUNK_BLOCK_ELEMENTS) {
    const struct elements_run block = elements_block(run, at);
    if (!m.is_bf16) {
      rc = codes_get(chunk, &m, &block, error);
      continue;
    }
    rc = words_get(chunk, m.tensor, &block, error);
    for (int64_t i = 0; i < block.n && rc == 0; i++)
      block.data[i] = lade_bf16_to_f32(chunk->weight[i]);
  }
  return rc;
}

int moments_set(struct chunk_buffer *chunk, int param, enum chunk_kind kind, const struct elements_run *run,
                struct lade_error *error)
{
  const struct moment m = moment_find(chunk, param, kind);
  int rc = 0;
  chunk->scales_tensor = -1;
  for (int64_t at = 0; at < run->n && rc == 0; at += CHUNK_BLOCK_ELEMENTS) {
    const struct elements_run block = elements_block(run, at);
    if (!m.is_bf16) {
      rc = codes_set(chunk, &m, &block, error);
      continue;
    }
    for (int64_t i = 0; i < block.n; i++)
      chunk->weight[i] = lade_f32_to_bf16(block.data[i]);
    rc = words_set(chunk, m.tensor, &block, error);
  }
  if (rc == 0 && !m.is_bf16 && run->first + run->n == m.n_elements)
    rc = scales_move(chunk, m.scales, true, error);
  return rc;
}

int master24_get(struct chunk_buffer *chunk, int param, const struct elements_run *run, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  int rc = words_get(chunk, graph->params[param].tensor, run, error);
  if (rc == 0)
    rc = bytes_get(chunk, lade_value_part(graph, param, LADE_PART_RESIDUAL), chunk_n_elements(graph, param), run,
                   error);
  const uint8_t *residual = bytes_at(chunk, run->first);
  for (int64_t i = 0; i < run->n && rc == 0; i++)
    run->data[i] = lade_master24_join(chunk->weight[i], (int8_t)residual[i]);
  return rc;
}

int master24_set(struct chunk_buffer *chunk, int param, const struct elements_run *run, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  int8_t *residual = (int8_t *)bytes_room(chunk, run->first);
  for (int64_t i = 0; i < run->n; i++)
    lade_master24_split(run->data[i], 0x80, &chunk->weight[i], &residual[i]);
  int rc = words_set(chunk, graph->params[param].tensor, run, error);
  return rc < 0 ? rc : bytes_set(chunk, lade_value_part(graph, param, LADE_PART_RESIDUAL),
                                 chunk_n_elements(graph, param), run->first + run->n, error);
}
