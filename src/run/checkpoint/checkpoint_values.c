/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's state as FP32 numbers, whatever its stored form: reading, writing, drawing and hashing it.
 *
 * A chunk is a range of elements of one parameter. It begins at a multiple of CHUNK_BLOCK_ELEMENTS, so it is whole
 * windows in every form. The master of an element depends on the graph's dtype:
 *
 *   F32   the working copy itself
 *   BF16  working copy and residual, joined; writing splits it again, exactly (base/float.h)
 *   F16   the separate FP32 master; writing rounds the working copy from it, as the optimizer does
 *
 * So values that are written and read back have the same bits, and a resumed run continues exactly. Compact forms of
 * the state are in checkpoint_forms.c. Memory is the chunk and two windows; only callers that transpose ask for a chunk
 * of several blocks.
 *
 * Initial values are drawn with the transform of Box and Muller (1958) on Philox words: one draw gives four words,
 * which make four normals, and the threads of the pool share the draws. Stream INIT_STREAM + parameter at step 0 is no
 * op's. Values are computed in double by libm and rounded once to FP32. C libraries may differ in the last bit of a
 * double, which the rounding hides in all but about one of 2^28 elements. So equal seeds give equal models always on
 * one machine, and nearly always across C libraries. A logarithm and cosine in Lade would remove that difference.
 * Nothing needs that, because a checkpoint carries the values.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <xxhash.h>

#include "base/float.h"
#include "base/philox.h"
#include "run/checkpoint/checkpoint_internal.h"

#define INIT_STREAM 0x40000000u /* the parameter's number is added; no op uses these streams */
#define INIT_TASK_ELEMENTS 8192 /* of one task of the pool */
#define TWO_PI 6.283185307179586476925

int64_t chunk_n_cols(const struct lade_model_graph *graph, int param)
{
  const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
  return tensor->n_dims > 1 ? tensor->dims[1] : 1;
}

int chunk_init(struct chunk_buffer *chunk, const struct lade_values *values, int n_blocks, struct lade_faults *faults,
               struct lade_error *error)
{
  enum lade_dtype dtype = values->graph->dtype;
  if (dtype != LADE_F32 && dtype != LADE_BF16 && dtype != LADE_F16)
    return lade_error_set(error, -EINVAL, "model %s: %s has no optimizer state to read or write",
                          values->graph->model.name, lade_dtype_name(dtype));
  LADE_ASSERT(n_blocks > 0);
  *chunk = (struct chunk_buffer){.values = values, .n_max = (int64_t)n_blocks * CHUNK_BLOCK_ELEMENTS};
  chunk->elements = lade_fault_calloc(faults, (size_t)chunk->n_max, sizeof(*chunk->elements));
  chunk->weight = lade_fault_calloc(faults, CHUNK_BLOCK_ELEMENTS, sizeof(*chunk->weight));
  chunk->residual = lade_fault_calloc(faults, CHUNK_BLOCK_ELEMENTS, sizeof(*chunk->residual));
  if (chunk->elements && chunk->weight && chunk->residual && !forms_init(chunk, faults))
    return 0;
  chunk_finish(chunk);
  return lade_error_set(error, -ENOMEM, "model %s: out of memory for a window of its values",
                        values->graph->model.name);
}

void chunk_finish(struct chunk_buffer *chunk)
{
  free(chunk->elements);
  free(chunk->weight);
  free(chunk->residual);
  forms_finish(chunk);
  *chunk = (struct chunk_buffer){0};
}

/* ---- moving FP32 and 16-bit elements by windows ---- */

static int f32_get(const struct lade_values *values, int tensor, const struct elements_run *run,
                   struct lade_error *error)
{
  const int64_t window = LADE_VALUES_WINDOW_BYTES / (int64_t)sizeof(float);
  int rc = 0;
  for (int64_t at = 0; at < run->n && rc == 0; at += window)
    rc = values->get(values->user, tensor, (uint64_t)(run->first + at) * sizeof(float), run->data + at,
                     (uint64_t)LADE_MIN(run->n - at, window) * sizeof(float), error);
  return rc;
}

static int f32_set(const struct lade_values *values, int tensor, const struct elements_run *run,
                   struct lade_error *error)
{
  const int64_t window = LADE_VALUES_WINDOW_BYTES / (int64_t)sizeof(float);
  int rc = 0;
  for (int64_t at = 0; at < run->n && rc == 0; at += window)
    rc = values->set(values->user, tensor, (uint64_t)(run->first + at) * sizeof(float), run->data + at,
                     (uint64_t)LADE_MIN(run->n - at, window) * sizeof(float), error);
  return rc;
}

static int bf16_get(struct chunk_buffer *chunk, int weight, int residual, const struct elements_run *run,
                    struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  uint64_t offset = (uint64_t)run->first * sizeof(uint16_t), bytes = (uint64_t)run->n * sizeof(uint16_t);
  int rc = values->get(values->user, weight, offset, chunk->weight, bytes, error);
  if (rc == 0)
    rc = values->get(values->user, residual, offset, chunk->residual, bytes, error);
  for (int64_t i = 0; i < run->n && rc == 0; i++)
    run->data[i] = lade_master_join(chunk->weight[i], chunk->residual[i]);
  return rc;
}

static int bf16_set(struct chunk_buffer *chunk, int weight, int residual, const struct elements_run *run,
                    struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  uint64_t offset = (uint64_t)run->first * sizeof(uint16_t), bytes = (uint64_t)run->n * sizeof(uint16_t);
  for (int64_t i = 0; i < run->n; i++)
    lade_master_split(run->data[i], &chunk->weight[i], &chunk->residual[i]);
  int rc = values->set(values->user, weight, offset, chunk->weight, bytes, error);
  return rc < 0 ? rc : values->set(values->user, residual, offset, chunk->residual, bytes, error);
}

static int f16_set(struct chunk_buffer *chunk, int weight, int master, const struct elements_run *run,
                   struct lade_error *error)
{
  const struct lade_values *values = chunk->values;
  for (int64_t i = 0; i < run->n; i++)
    chunk->weight[i] = lade_f32_to_f16(run->data[i]);
  int rc = values->set(values->user, weight, (uint64_t)run->first * sizeof(uint16_t), chunk->weight,
                       (uint64_t)run->n * sizeof(uint16_t), error);
  return rc < 0 ? rc : f32_set(values, master, run, error);
}

/* ---- chunks ---- */

static int master_get(struct chunk_buffer *chunk, int param, const struct elements_run *run, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  int weight = graph->params[param].tensor, part = lade_value_part(graph, param, LADE_PART_RESIDUAL);
  if (graph->master == LADE_MASTER_24BIT)
    return master24_get(chunk, param, run, error);
  if (graph->dtype == LADE_BF16)
    return bf16_get(chunk, weight, part, run, error);
  return f32_get(chunk->values, graph->dtype == LADE_F16 ? part : weight, run, error);
}

static int master_set(struct chunk_buffer *chunk, int param, const struct elements_run *run, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  int weight = graph->params[param].tensor, part = lade_value_part(graph, param, LADE_PART_RESIDUAL);
  if (graph->master == LADE_MASTER_24BIT)
    return master24_set(chunk, param, run, error);
  if (graph->dtype == LADE_BF16)
    return bf16_set(chunk, weight, part, run, error);
  if (graph->dtype == LADE_F16)
    return f16_set(chunk, weight, part, run, error);
  return f32_set(chunk->values, weight, run, error);
}

static int moment_of(const struct lade_model_graph *graph, int param, enum chunk_kind kind)
{
  return lade_value_part(graph, param, kind == CHUNK_M ? LADE_PART_M : LADE_PART_V);
}

int chunk_get(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error)
{
  LADE_ASSERT(first % CHUNK_BLOCK_ELEMENTS == 0 && n <= chunk->n_max);
  const struct lade_values *values = chunk->values;
  const struct elements_run run = {first, n, chunk->elements};
  if (kind != CHUNK_MASTER && values->graph->moments != LADE_MOMENTS_F32)
    return moments_get(chunk, param, kind, &run, error);
  if (kind != CHUNK_MASTER)
    return f32_get(values, moment_of(values->graph, param, kind), &run, error);
  int rc = 0;
  for (int64_t at = 0; at < n && rc == 0; at += CHUNK_BLOCK_ELEMENTS) {
    const struct elements_run block = elements_block(&run, at);
    rc = master_get(chunk, param, &block, error);
  }
  return rc;
}

int chunk_set(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error)
{
  LADE_ASSERT(first % CHUNK_BLOCK_ELEMENTS == 0 && n <= chunk->n_max);
  const struct lade_values *values = chunk->values;
  const struct elements_run run = {first, n, chunk->elements};
  if (kind != CHUNK_MASTER && values->graph->moments != LADE_MOMENTS_F32)
    return moments_set(chunk, param, kind, &run, error);
  if (kind != CHUNK_MASTER)
    return f32_set(values, moment_of(values->graph, param, kind), &run, error);
  int rc = 0;
  for (int64_t at = 0; at < n && rc == 0; at += CHUNK_BLOCK_ELEMENTS) {
    const struct elements_run block = elements_block(&run, at);
    rc = master_set(chunk, param, &block, error);
  }
  return rc;
}

int chunk_zero_moments(struct chunk_buffer *chunk, int param, struct lade_error *error)
{
  int64_t n_elements = chunk_n_elements(chunk->values->graph, param);
  for (int64_t i = 0; i < LADE_MIN(n_elements, chunk->n_max); i++)
    chunk->elements[i] = 0;
  int rc = 0;
  for (int kind = CHUNK_M; kind <= CHUNK_V; kind++)
    for (int64_t first = 0; first < n_elements && rc == 0; first += chunk->n_max)
      rc = chunk_set(chunk, param, (enum chunk_kind)kind, first, LADE_MIN(n_elements - first, chunk->n_max), error);
  return rc;
}

/* ---- initial values ---- */

/* Convert two words of a draw to two independent standard normals. */
static void normal_pair(uint32_t word_0, uint32_t word_1, double *ret_normals)
{
  double radius = sqrt(-2 * log(((double)word_0 + 0.5) * 0x1p-32));
  double angle = TWO_PI * (((double)word_1 + 0.5) * 0x1p-32);
  ret_normals[0] = radius * cos(angle);
  ret_normals[1] = radius * sin(angle);
}

/* Draw elements [first, first + n) of a parameter of the whole model. */
static void normal_fill(float *elements, int64_t first, int64_t n, uint64_t seed, uint32_t stream, double std)
{
  for (int64_t i = 0; i < n;) {
    struct lade_philox draw = lade_philox_draw(seed, 0, stream, (uint64_t)(first + i) / 4);
    double normals[4];
    normal_pair(draw.word[0], draw.word[1], normals);
    normal_pair(draw.word[2], draw.word[3], normals + 2);
    for (int64_t j = (first + i) % 4; j < 4 && i < n; i++, j++)
      elements[i] = (float)(std * normals[j]);
  }
}

/* Draw the elements of @run of the parameter that lie in @slice, row by row, each as in the whole model. */
static void slice_draw(const struct lade_param *param, const struct lade_param_slice *slice, int64_t n_cols,
                       const struct elements_run *run, uint64_t seed)
{
  int64_t begin = LADE_MAX(run->first, slice->first_row * n_cols);
  int64_t end = LADE_MIN(run->first + run->n, (slice->first_row + slice->n_rows) * n_cols);
  for (int64_t at = begin, n_now; at < end; at += n_now) {
    int64_t row = at / n_cols, col = at % n_cols;
    int64_t whole_row = slice->base_row + lade_param_slice_file_row(slice, row - slice->first_row);
    n_now = LADE_MIN(end - at, n_cols - col);
    normal_fill(run->data + (at - run->first), whole_row * slice->file_cols + slice->file_col + col, n_now, seed,
                INIT_STREAM + (uint32_t)param->number, param->init_std);
  }
}

/* The draw of the initial values of @run of a parameter, in tasks of INIT_TASK_ELEMENTS. */
struct init_call {
  const struct lade_model_graph *graph;
  int param;
  struct elements_run run;
  uint64_t seed;
};

static void init_task(void *arg, int i_task, int i_thread)
{
  const struct init_call *call = arg;
  const struct lade_param *param = &call->graph->params[call->param];
  const int64_t at = (int64_t)i_task * INIT_TASK_ELEMENTS;
  const struct elements_run run = {call->run.first + at, LADE_MIN(call->run.n - at, INIT_TASK_ELEMENTS),
                                   call->run.data + at};
  for (int64_t i = 0; i < run.n; i++)
    run.data[i] = param->init == LADE_INIT_ONE ? 1.0f : 0.0f;
  for (int i = 0; i < param->n_slices && param->init == LADE_INIT_NORMAL; i++)
    slice_draw(param, &param->slices[i], chunk_n_cols(call->graph, call->param), &run, call->seed);
}

static int param_randomize(struct chunk_buffer *chunk, int param, uint64_t seed, struct lade_error *error)
{
  const struct lade_model_graph *graph = chunk->values->graph;
  int64_t n_elements = chunk_n_elements(graph, param);
  int rc = 0;
  for (int64_t first = 0; first < n_elements && rc == 0; first += chunk->n_max) {
    int64_t n = LADE_MIN(n_elements - first, chunk->n_max);
    struct init_call call = {graph, param, {first, n, chunk->elements}, seed};
    lade_pool_run(chunk->values->pool, init_task, &call, (int)lade_div_up(n, INIT_TASK_ELEMENTS));
    rc = chunk_set(chunk, param, CHUNK_MASTER, first, n, error);
  }
  return rc < 0 ? rc : chunk_zero_moments(chunk, param, error);
}

int lade_checkpoint_random(const struct lade_values *values, uint64_t seed, struct lade_error *error)
{
  struct chunk_buffer chunk;
  int rc = chunk_init(&chunk, values, 1, NULL, error);
  if (rc < 0)
    return rc;
  for (int param = 0; param < values->graph->n_params && rc == 0; param++)
    rc = param_randomize(&chunk, param, seed, error);
  chunk_finish(&chunk);
  return rc;
}

/* ---- reading ---- */

static int param_stream(struct chunk_buffer *chunk, int param, lade_elements_fn *use, void *user,
                        struct lade_error *error)
{
  int64_t n_elements = chunk_n_elements(chunk->values->graph, param);
  int rc = 0;
  for (int64_t first = 0; first < n_elements && rc == 0; first += chunk->n_max) {
    int64_t n = LADE_MIN(n_elements - first, chunk->n_max);
    rc = chunk_get(chunk, param, CHUNK_MASTER, first, n, error);
    if (rc == 0)
      rc = use(user, first, chunk->elements, n);
  }
  return rc;
}

int lade_checkpoint_master(const struct lade_values *values, int param, lade_elements_fn *use, void *user,
                           struct lade_error *error)
{
  LADE_ASSERT(param >= 0 && param < values->graph->n_params);
  struct chunk_buffer chunk;
  int rc = chunk_init(&chunk, values, 1, NULL, error);
  if (rc < 0)
    return rc;
  rc = param_stream(&chunk, param, use, user, error);
  chunk_finish(&chunk);
  return rc;
}
