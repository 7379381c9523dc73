/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mapping between parameters and the tensors of files. A slice is some rows of a parameter. It is a tensor of a
 * file or, in one rank's share of a model, a rectangle of it. GPT-2's weights are stored transposed.
 *
 * A parameter is streamed in chunks, in its own order, which is the only order in which values in a store may be set.
 * The part of a chunk that lies in a slice is a span of the slice's elements. Stored untransposed, the span is one run
 * of the file, or one run per row if the rectangle is narrower than its tensor. Stored transposed, each column's part
 * of the span is a run of the file, of as many elements as the span has rows. A staging buffer joins adjacent runs, so
 * a slice that fits one chunk is one sequential transfer. A larger slice costs a system call for each column of each
 * chunk, of some hundred elements each. That is linear in its size, with memory bounded by chunk and staging.
 *
 * Rejected: holding the largest tensor whole (40 MB for GPT-2 XL, gigabytes beyond); a pass over the values for each
 * band of the file (quadratic in the size); mapping the file, where a full disk is a SIGBUS.
 *
 * A rank moves only a range of a parameter's elements to or from files: its shard, or the part of it that no other rank
 * writes. Chunks still cover the whole parameter, because values are set whole.
 *
 * Each moved element is counted in its tensor's tally (checkpoint_table.c). It counts by its place in the parameter's
 * order, whatever its order in the file. Format version 1 has one XXH3 of a tensor in that order instead; only a rank
 * that reads the whole tensor can verify it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/float.h"
#include "run/checkpoint/checkpoint_internal.h"

/* A chunk of 8 MiB holds a whole transposed weight of models up to 1400 wide, except the MLP's weights. */
#define TRANSPOSE_MAX_BLOCKS 4
#define STAGING_BYTES (1 << 20) /* of one read or write of the file */

/* Elements [first, first + n) of a slice in memory, and the slice's shape. */
struct slice_span {
  const struct lade_param_slice *slice;
  int64_t first, n;
  float *elements;
  int64_t n_rows, n_cols;
};

/* Elements of a span that are contiguous in the file, from file_first of the tensor on; @stride apart in memory. */
struct element_run {
  int64_t file_first;
  float *elements;
  int64_t stride, n;
};

int slices_count(const struct lade_model_graph *graph)
{
  int n = 0;
  for (int param = 0; param < graph->n_params; param++)
    n += graph->params[param].n_slices;
  return n;
}

int slice_shape(const struct lade_model_graph *graph, int param, int i_slice, int64_t ret_dims[2])
{
  const struct lade_param_slice *slice = &graph->params[param].slices[i_slice];
  ret_dims[0] = slice->is_transposed ? slice->file_cols : slice->file_rows;
  ret_dims[1] = slice->is_transposed ? slice->file_rows : slice->file_cols;
  return graph->tensors[graph->params[param].tensor].n_dims;
}

int slices_chunk_blocks(const struct lade_model_graph *graph)
{
  int64_t n_max = 1;
  for (int param = 0; param < graph->n_params; param++) {
    const struct lade_param *the_param = &graph->params[param];
    for (int i = 0; i < the_param->n_slices; i++)
      if (the_param->slices[i].is_transposed)
        n_max = LADE_MAX(n_max, chunk_n_elements(graph, param));
  }
  return (int)LADE_MIN(lade_div_up(n_max, CHUNK_BLOCK_ELEMENTS), TRANSPOSE_MAX_BLOCKS);
}

/* ---- ranges ---- */

struct elements_range range_held(const struct lade_values *values, int param)
{
  const struct lade_state_shard shard = lade_param_shard(values->graph, lade_rank_group_layout(values->group), param);
  return (struct elements_range){shard.first, shard.first + shard.n};
}

/* True if a lower rank has the same shard. */
static bool is_replica(const struct lade_layout *layout)
{
  enum lade_axis axis = lade_shard_count(layout) > 1 ? LADE_AXIS_REPLICATE : LADE_AXIS_DP;
  return lade_layout_position(layout, axis) > 0;
}

struct elements_range range_written(const struct lade_values *values, int param)
{
  const struct lade_param *the_param = &values->graph->params[param];
  struct elements_range range = range_held(values, param);
  if (the_param->is_copy || is_replica(lade_rank_group_layout(values->group)))
    return (struct elements_range){0, 0};
  range.end = LADE_MIN(range.end, the_param->n_owned_rows * chunk_n_cols(values->graph, param));
  return range;
}

struct elements_range range_read(const struct lade_values *values, int param, enum chunk_kind kind)
{
  const struct lade_layout *layout = lade_rank_group_layout(values->group);
  if (kind == CHUNK_MASTER && layout && layout->zero < 3) /* working copies are whole */
    return (struct elements_range){0, chunk_n_elements(values->graph, param)};
  return range_held(values, param);
}

bool slice_is_within(const struct lade_model_graph *graph, int param, int i_slice, struct elements_range range)
{
  const struct lade_param_slice *slice = &graph->params[param].slices[i_slice];
  const int64_t n_cols = chunk_n_cols(graph, param);
  return LADE_MAX(range.first, slice->first_row * n_cols) <
         LADE_MIN(range.end, (slice->first_row + slice->n_rows) * n_cols);
}

uint64_t slice_tally_weight(const struct lade_model_graph *graph, int param, int i_slice)
{
  const struct lade_param *the_param = &graph->params[param];
  const bool is_before_shared = the_param->slices[i_slice].first_row < the_param->first_shared_row;
  return is_before_shared ? (uint64_t)the_param->n_sharers : 1;
}

/* ---- spans ---- */

/* Find the part of slice @i_slice of @param that is in @run and in @range; false: none. */
static bool span_find(const struct lade_model_graph *graph, int param, int i_slice, const struct elements_run *run,
                      struct elements_range range, struct slice_span *ret_span)
{
  const struct lade_param_slice *slice = &graph->params[param].slices[i_slice];
  int64_t n_cols = chunk_n_cols(graph, param);
  int64_t begin = LADE_MAX(LADE_MAX(run->first, range.first), slice->first_row * n_cols);
  int64_t end = LADE_MIN(LADE_MIN(run->first + run->n, range.end), (slice->first_row + slice->n_rows) * n_cols);
  if (begin >= end)
    return false;
  *ret_span = (struct slice_span){.slice = slice, .first = begin - slice->first_row * n_cols, .n = end - begin,
                                  .elements = run->data + (begin - run->first), .n_rows = slice->n_rows,
                                  .n_cols = n_cols};
  return true;
}

/* True if the span is its whole tensor. */
static bool span_is_whole(const struct slice_span *span)
{
  return span->n_rows == span->slice->file_rows && span->n_cols == span->slice->file_cols &&
         span->n == span->n_rows * span->n_cols;
}

static bool span_is_last(const struct slice_span *span)
{
  return span->first + span->n == span->n_rows * span->n_cols;
}

/* Return the end, and set the first, of the rows whose element of column @col is in the span. */
static int64_t span_column(const struct slice_span *span, int64_t col, int64_t *ret_first)
{
  int64_t end = span->first + span->n;
  *ret_first = span->first > col ? lade_div_up(span->first - col, span->n_cols) : 0;
  return end > col ? lade_div_up(end - col, span->n_cols) : 0;
}

/* True if the slice is as wide as its tensor, so that its rows are contiguous in the file. */
static bool rows_are_joined(const struct slice_span *span)
{
  return span->n_cols == span->slice->file_cols;
}

/*
 * Return the rows of a line, which is contiguous in the tensor, rows first: all rows, the rows of a run of the file, or
 * one row.
 */
static int64_t line_rows(const struct slice_span *span)
{
  if (!rows_are_joined(span))
    return 1;
  return span->slice->run_rows ? span->slice->run_rows : span->n_rows;
}

static int64_t span_n_lines(const struct slice_span *span)
{
  return lade_div_up(span->n_rows, line_rows(span));
}

/* Return line @i of a span; .n is 0 if the span has nothing of that row. */
static struct element_run span_line(const struct slice_span *span, int64_t i)
{
  const struct lade_param_slice *slice = span->slice;
  int64_t line = line_rows(span) * span->n_cols;
  int64_t begin = LADE_MAX(span->first, i * line), end = LADE_MIN(span->first + span->n, (i + 1) * line);
  const int64_t row_first = lade_param_slice_file_row(slice, i * line_rows(span)) * slice->file_cols + slice->file_col;
  return (struct element_run){.file_first = row_first + begin - i * line,
                              .elements = span->elements + (begin - span->first), .stride = 1,
                              .n = LADE_MAX(end - begin, 0)};
}

static int64_t span_n_runs(const struct slice_span *span)
{
  return span->slice->is_transposed ? span->n_cols : span_n_lines(span);
}

/*
 * Return run @i of a span in the file: a line, or if transposed a column's part; .n is 0 if the span has nothing of it.
 */
static struct element_run span_run(const struct slice_span *span, int64_t i)
{
  const struct lade_param_slice *slice = span->slice;
  if (!slice->is_transposed)
    return span_line(span, i);
  int64_t row, end = span_column(span, i, &row);
  return (struct element_run){.file_first = (slice->file_col + i) * slice->file_rows + slice->file_row + row,
                              .elements = span->elements + (row * span->n_cols + i - span->first),
                              .stride = span->n_cols, .n = LADE_MAX(end - row, 0)};
}

static void span_tally(const struct slice_span *span, struct tensor_tally *tally, uint64_t weight)
{
  for (int64_t i = 0; i < span_n_lines(span); i++) {
    struct element_run line = span_line(span, i);
    tally_add(tally, line.file_first, line.elements, line.n, weight);
  }
}

/* ---- to a file ---- */

struct gather {
  lade_safetensors_writer *writer;
  float *staging;
  int64_t n, n_max;
  uint64_t offset; /* of staging's first element, in the file's data */
};

static int gather_flush(struct gather *gather, struct lade_error *error)
{
  if (gather->n == 0)
    return 0;
  uint64_t bytes = (uint64_t)gather->n * sizeof(float);
  int rc = lade_safetensors_write_at(gather->writer, gather->offset, gather->staging, bytes, error);
  gather->offset += bytes;
  gather->n = 0;
  return rc;
}

/* Direct the following runs to @writer. */
static int gather_aim(struct gather *gather, lade_safetensors_writer *writer, struct lade_error *error)
{
  int rc = gather->writer == writer ? 0 : gather_flush(gather, error);
  gather->writer = writer;
  return rc;
}

/* Write a run at @offset of the file's data. */
static int gather_run(struct gather *gather, uint64_t offset, const struct element_run *run, struct lade_error *error)
{
  const float *src = run->elements;
  int64_t n = run->n;
  int rc = 0;
  if (offset != gather->offset + (uint64_t)gather->n * sizeof(float)) {
    rc = gather_flush(gather, error);
    gather->offset = offset;
  }
  while (n > 0 && rc == 0) {
    int64_t n_now = LADE_MIN(n, gather->n_max - gather->n);
    for (int64_t i = 0; i < n_now; i++)
      gather->staging[gather->n + i] = src[i * run->stride];
    gather->n += n_now;
    src += n_now * run->stride;
    n -= n_now;
    if (gather->n == gather->n_max)
      rc = gather_flush(gather, error);
  }
  return rc;
}

static int span_write(struct gather *gather, const struct slice_span *span, uint64_t offset, struct lade_error *error)
{
  int rc = 0;
  for (int64_t i = 0; i < span_n_runs(span) && rc == 0; i++) {
    struct element_run run = span_run(span, i);
    if (run.n > 0)
      rc = gather_run(gather, offset + (uint64_t)run.file_first * sizeof(float), &run, error);
  }
  return rc;
}

static int param_save(struct chunk_buffer *chunk, int param, enum chunk_kind kind, const struct slice_target *targets,
                      struct gather *gather, struct lade_error *error)
{
  const struct lade_param *the_param = &chunk->values->graph->params[param];
  const struct elements_range range = range_written(chunk->values, param);
  const int64_t n_elements = chunk_n_elements(chunk->values->graph, param);
  int rc = 0;
  for (int64_t first = range.first / chunk->n_max * chunk->n_max; first < range.end && rc == 0;
       first += chunk->n_max) {
    const struct elements_run run = {first, LADE_MIN(n_elements - first, chunk->n_max), chunk->elements};
    struct slice_span span;
    rc = chunk_get(chunk, param, kind, first, run.n, error);
    for (int i = 0; i < the_param->n_slices && rc == 0; i++) {
      if (!span_find(chunk->values->graph, param, i, &run, range, &span))
        continue;
      span_tally(&span, targets[i].tally, 1);
      rc = gather_aim(gather, targets[i].writer, error);
      rc = rc < 0 ? rc : span_write(gather, &span, targets[i].offset, error);
    }
  }
  return rc;
}

int slices_save(struct chunk_buffer *chunk, enum chunk_kind kind, const struct slice_target *targets,
                struct lade_faults *faults, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  struct gather gather = {.n_max = STAGING_BYTES / sizeof(float)};
  gather.staging = lade_fault_calloc(faults, 1, STAGING_BYTES);
  int rc = gather.staging ? 0 : lade_error_set(error, -ENOMEM, "out of memory for saving a checkpoint");
  for (int param = 0; param < graph->n_params && rc == 0; param++) {
    rc = param_save(chunk, param, kind, targets, &gather, error);
    targets += graph->params[param].n_slices;
  }
  if (rc == 0)
    rc = gather_flush(&gather, error);
  free(gather.staging);
  return rc;
}

/* ---- from a file ---- */

struct scatter {
  const struct slice_source *source;
  char *staging;
  int64_t first, n, n_max; /* elements of the tensor that staging holds */
};

static void elements_convert(float *dst, int64_t stride, const char *src, int dtype, int64_t n)
{
  if (dtype == LADE_F32) {
    for (int64_t i = 0; i < n; i++)
      dst[i * stride] = ((const float *)src)[i];
  } else if (dtype == LADE_BF16) {
    for (int64_t i = 0; i < n; i++)
      dst[i * stride] = lade_bf16_to_f32(((const uint16_t *)src)[i]);
  } else {
    LADE_ASSERT(dtype == LADE_F16);
    for (int64_t i = 0; i < n; i++)
      dst[i * stride] = lade_f16_to_f32(((const uint16_t *)src)[i]);
  }
}

/* Read a run's elements from the file. The staging buffer reads up to @n_ahead elements from the run's first on. */
static int scatter_run(struct scatter *scatter, const struct element_run *run, int64_t n_ahead,
                       struct lade_error *error)
{
  const struct slice_source *source = scatter->source;
  const size_t element_bytes = lade_dtype_bytes((enum lade_dtype)source->tensor->dtype);
  for (int64_t done = 0, n_now; done < run->n; done += n_now) {
    int64_t first = run->file_first + done;
    if (first < scatter->first || first >= scatter->first + scatter->n) {
      int64_t n_read = LADE_MIN(n_ahead - done, scatter->n_max);
      scatter->n = 0;
      int rc = lade_safetensors_read(source->file, source->tensor, (uint64_t)first * element_bytes,
                                     (uint64_t)n_read * element_bytes, scatter->staging, error);
      if (rc < 0)
        return rc;
      scatter->first = first;
      scatter->n = n_read;
    }
    int64_t at = first - scatter->first;
    n_now = LADE_MIN(run->n - done, scatter->n - at);
    elements_convert(run->elements + done * run->stride, run->stride, scatter->staging + (size_t)at * element_bytes,
                     source->tensor->dtype, n_now);
  }
  return 0;
}

static int span_read(struct scatter *scatter, const struct slice_span *span, struct lade_error *error)
{
  int rc = 0;
  for (int64_t i = 0; i < span_n_runs(span) && rc == 0; i++) {
    struct element_run run = span_run(span, i);
    if (run.n > 0)
      rc = scatter_run(scatter, &run, span_is_whole(span) ? span->n - run.file_first : run.n, error);
  }
  return rc;
}

/* Update the XXH3 of a slice by a span, and verify it after the last span. */
static int source_verify(const struct slice_source *source, const struct slice_span *span, XXH3_state_t *hash,
                         struct lade_error *error)
{
  if (!source->has_xxh3)
    return 0;
  if (span->first == 0)
    XXH3_64bits_reset(hash);
  XXH3_64bits_update(hash, span->elements, (size_t)span->n * sizeof(float));
  if (!span_is_last(span) || XXH3_64bits_digest(hash) == source->xxh3)
    return 0;
  return lade_error_set(error, -EBADMSG, "%s: tensor %s is damaged: its checksum differs", source->path,
                        source->tensor->name);
}

static struct elements_range range_wanted(const struct chunk_buffer *chunk, int param, enum chunk_kind kind,
                                          const struct slice_source *source)
{
  return source->has_xxh3 ? (struct elements_range){0, chunk_n_elements(chunk->values->graph, param)}
                          : range_read(chunk->values, param, kind);
}

/* Memory that all parameters of a load share. */
struct load_scratch {
  struct chunk_buffer *chunk;
  struct scatter scatter;
  XXH3_state_t *hash;
};

/* Read the spans of @run of a parameter. Elements in no slice, or outside @range, are 0. */
static int run_read(struct load_scratch *load, int param, const struct elements_run *run, struct elements_range range,
                    const struct slice_source *sources, struct lade_error *error)
{
  const struct lade_model_graph *graph = load->chunk->values->graph;
  struct scatter *scatter = &load->scatter;
  struct slice_span span;
  int rc = 0;
  memset(run->data, 0, (size_t)run->n * sizeof(*run->data));
  for (int i = 0; i < graph->params[param].n_slices && rc == 0; i++) {
    if (!span_find(graph, param, i, run, range, &span))
      continue;
    scatter->source = &sources[i];
    scatter->n = 0;
    rc = span_read(scatter, &span, error);
    if (rc == 0 && sources[i].tally)
      span_tally(&span, sources[i].tally, sources[i].tally_weight);
    if (rc == 0)
      rc = source_verify(&sources[i], &span, load->hash, error);
  }
  return rc;
}

static int param_load(struct load_scratch *load, int param, enum chunk_kind kind, const struct slice_source *sources,
                      struct lade_error *error)
{
  struct chunk_buffer *chunk = load->chunk;
  const struct elements_range range = range_wanted(chunk, param, kind, sources);
  int64_t n_elements = chunk_n_elements(chunk->values->graph, param);
  int rc = 0;
  for (int64_t first = 0; first < n_elements && rc == 0; first += chunk->n_max) {
    const struct elements_run run = {first, LADE_MIN(n_elements - first, chunk->n_max), chunk->elements};
    rc = run_read(load, param, &run, range, sources, error);
    if (rc == 0)
      rc = chunk_set(chunk, param, kind, first, run.n, error);
  }
  return rc;
}

int slices_load(struct chunk_buffer *chunk, enum chunk_kind kind, const struct slice_source *sources,
                struct lade_faults *faults, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  struct load_scratch load = {.chunk = chunk, .scatter.n_max = STAGING_BYTES / sizeof(float),
                              .hash = XXH3_createState()};
  load.scatter.staging = load.hash ? lade_fault_calloc(faults, 1, STAGING_BYTES) : NULL;
  int rc = load.scatter.staging ? 0 : lade_error_set(error, -ENOMEM, "out of memory for loading tensors");
  for (int param = 0; param < graph->n_params && rc == 0; param++) {
    rc = param_load(&load, param, kind, sources, error);
    sources += graph->params[param].n_slices;
  }
  free(load.scatter.staging);
  XXH3_freeState(load.hash);
  return rc;
}

/* ---- sums alone ---- */

static int param_tally(struct chunk_buffer *chunk, int param, struct tensor_tally *const *held,
                       struct tensor_tally *const *written, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  const struct lade_param *the_param = &graph->params[param];
  const struct elements_range all = range_held(chunk->values, param), own = range_written(chunk->values, param);
  const int64_t n_elements = chunk_n_elements(graph, param);
  int rc = 0;
  for (int64_t first = all.first / chunk->n_max * chunk->n_max; first < all.end && rc == 0; first += chunk->n_max) {
    const struct elements_run run = {first, LADE_MIN(n_elements - first, chunk->n_max), chunk->elements};
    struct slice_span span;
    rc = chunk_get(chunk, param, CHUNK_MASTER, first, run.n, error);
    for (int i = 0; i < the_param->n_slices && rc == 0; i++) {
      if (span_find(graph, param, i, &run, all, &span))
        span_tally(&span, held[i], slice_tally_weight(graph, param, i));
      if (span_find(graph, param, i, &run, own, &span))
        span_tally(&span, written[i], 1);
    }
  }
  return rc;
}

int slices_tally(struct chunk_buffer *chunk, struct tensor_tally *const *held, struct tensor_tally *const *written,
                 struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  int rc = 0;
  for (int param = 0; param < graph->n_params && rc == 0; param++) {
    rc = param_tally(chunk, param, held, written, error);
    held += graph->params[param].n_slices;
    written += graph->params[param].n_slices;
  }
  return rc;
}
