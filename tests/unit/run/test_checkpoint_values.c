/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values, masters and digests: the same numbers in every form of storage. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/float.h"
#include "run/checkpoint.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/values_memory.h"

static struct lade_model_graph *graph_make(enum lade_family family, enum lade_dtype dtype)
{
  return checkpoint_graph(family, dtype, SIZE_WINDOWS);
}

static uint64_t digest_of(const struct values_memory *memory)
{
  uint64_t digest = 0;
  assert_int_equal(lade_checkpoint_digest(&memory->values, &digest, NULL), 0);
  return digest;
}

static void random_values_do_not_depend_on_the_dtype(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  uint64_t digests[LADE_COUNT(dtypes)], other = 0;
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    struct lade_model_graph *graph = graph_make(LADE_GPT2, dtypes[i]);
    struct values_memory memory;
    values_memory_init(&memory, graph);
    assert_int_equal(lade_checkpoint_random(&memory.values, 1337, NULL), 0);
    assert_true(values_memory_is_set(&memory));
    digests[i] = digest_of(&memory);
    assert_int_equal(digests[i], digests[0]);
    assert_int_equal(lade_checkpoint_random(&memory.values, 1338, NULL), 0);
    other = digest_of(&memory);
    assert_int_not_equal(other, digests[i]);
    values_memory_finish(&memory);
    lade_model_graph_destroy(graph);
  }
}

static void random_values_do_not_depend_on_the_threads(void **state)
{
  lade_pool *pool;
  struct values_memory alone, shared;
  struct lade_model_graph *graph = graph_make(LADE_LLAMA, LADE_BF16);
  assert_int_equal(lade_pool_create(3, &pool), 0);
  values_memory_init(&alone, graph);
  values_memory_init(&shared, graph);
  shared.values.pool = pool;
  assert_int_equal(lade_checkpoint_random(&alone.values, 5, NULL), 0);
  assert_int_equal(lade_checkpoint_random(&shared.values, 5, NULL), 0);
  assert_true(values_memory_is_set(&shared) && values_memory_equal(&alone, &shared));
  values_memory_finish(&shared);
  values_memory_finish(&alone);
  lade_pool_destroy(pool);
  lade_model_graph_destroy(graph);
}

static void random_values_follow_their_rule(void **state)
{
  struct lade_model_graph *graph = graph_make(LADE_GPT2, LADE_F32);
  struct values_memory memory;
  values_memory_init(&memory, graph);
  assert_int_equal(lade_checkpoint_random(&memory.values, 3, NULL), 0);
  for (int p = 0; p < graph->n_params; p++) {
    const struct lade_param *param = &graph->params[p];
    const float *weight = memory.memory[param->tensor], *m = memory.memory[lade_value_part(graph, p, LADE_PART_M)];
    const float *v = memory.memory[lade_value_part(graph, p, LADE_PART_V)];
    int64_t n = (int64_t)(graph->tensors[param->tensor].bytes / sizeof(float));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
      sum += (double)weight[i];
      squares += (double)weight[i] * (double)weight[i];
      assert_true(m[i] == 0 && v[i] == 0);
      if (param->init != LADE_INIT_NORMAL)
        assert_true(weight[i] == (param->init == LADE_INIT_ONE ? 1.0f : 0.0f));
    }
    if (param->init != LADE_INIT_NORMAL)
      continue;
    double std = (double)param->init_std, error = 5 / sqrt((double)n); /* five standard errors */
    assert_true(fabs(sum / (double)n) < error * std);
    assert_true(fabs(sqrt(squares / (double)n) / std - 1) < error);
  }
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* Make a graph of the last quarter of every weight's rows and columns. */
static struct lade_model_graph *graph_make_quarter(void)
{
  struct lade_model_graph *graph = graph_make(LADE_LLAMA, LADE_F32);
  for (int p = 0; p < graph->n_params; p++) {
    struct lade_param *param = &graph->params[p];
    struct lade_tensor *tensor = &graph->tensors[param->tensor];
    if (tensor->n_dims < 2)
      continue;
    tensor->dims[0] = 0;
    tensor->dims[1] -= tensor->dims[1] / 2;
    for (int i = 0; i < param->n_slices; i++) {
      struct lade_param_slice *slice = &param->slices[i];
      slice->n_rows -= slice->file_row = slice->file_rows / 2;
      slice->file_col = slice->file_cols / 2;
      slice->first_row = tensor->dims[0];
      tensor->dims[0] += slice->n_rows;
    }
    tensor->bytes = (uint64_t)(tensor->dims[0] * tensor->dims[1]) * sizeof(float);
  }
  return graph;
}

static void slice_compare(const struct values_memory *quarter, const struct values_memory *whole, int tensor,
                          const struct lade_param_slice *slice)
{
  const float *part = quarter->memory[tensor], *all = whole->memory[tensor];
  int64_t n_cols = slice->file_cols - slice->file_col;
  for (int64_t row = 0; row < slice->n_rows; row++)
    assert_memory_equal(part + (slice->first_row + row) * n_cols,
                        all + (slice->base_row + slice->file_row + row) * slice->file_cols + slice->file_col,
                        (size_t)n_cols * sizeof(float));
}

static void a_share_of_a_model_draws_the_whole_models_values(void **state)
{
  struct lade_model_graph *graph = graph_make_quarter(), *whole = graph_make(LADE_LLAMA, LADE_F32);
  struct values_memory part, all;
  values_memory_init(&part, graph);
  values_memory_init(&all, whole);
  assert_int_equal(lade_checkpoint_random(&part.values, 7, NULL), 0);
  assert_int_equal(lade_checkpoint_random(&all.values, 7, NULL), 0);
  for (int p = 0; p < graph->n_params; p++)
    for (int i = 0; i < graph->params[p].n_slices; i++)
      if (graph->params[p].init == LADE_INIT_NORMAL)
        slice_compare(&part, &all, graph->params[p].tensor, &graph->params[p].slices[i]);
  values_memory_finish(&part);
  values_memory_finish(&all);
  lade_model_graph_destroy(graph);
  lade_model_graph_destroy(whole);
}

static void random_parameters_are_not_copies_of_each_other(void **state)
{
  struct lade_model_graph *graph = graph_make(LADE_LLAMA, LADE_F32);
  struct values_memory memory;
  values_memory_init(&memory, graph);
  assert_int_equal(lade_checkpoint_random(&memory.values, 0, NULL), 0);
  float last = 0;
  for (int p = 0; p < graph->n_params; p++) {
    if (graph->params[p].init != LADE_INIT_NORMAL)
      continue;
    float first = ((const float *)memory.memory[graph->params[p].tensor])[0] / graph->params[p].init_std;
    assert_true(first != last);
    last = first;
  }
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

struct collect {
  float *elements;
  int64_t next;
};

static int collect_use(void *user, int64_t first, const float *elements, int64_t n)
{
  struct collect *collect = user;
  assert_int_equal(first, collect->next);
  memcpy(collect->elements + first, elements, (size_t)n * sizeof(float));
  collect->next += n;
  return 0;
}

static void the_master_is_joined_from_its_parts(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (size_t d = 0; d < LADE_COUNT(dtypes); d++) {
    struct lade_model_graph *graph = graph_make(LADE_GPT2, dtypes[d]);
    struct values_memory memory;
    values_memory_init(&memory, graph);
    values_memory_randomize(&memory, 9);
    int weight = graph->params[0].tensor, part = lade_value_part(graph, 0, LADE_PART_RESIDUAL);
    int64_t n = (int64_t)(graph->tensors[weight].bytes / lade_dtype_bytes(dtypes[d]));
    struct collect collect = {.elements = malloc((size_t)n * sizeof(float))};
    assert_non_null(collect.elements);
    assert_int_equal(lade_checkpoint_master(&memory.values, 0, collect_use, &collect, NULL), 0);
    assert_int_equal(collect.next, n);
    for (int64_t i = 0; i < n; i++) {
      float master = dtypes[d] == LADE_F32   ? ((const float *)memory.memory[weight])[i]
                     : dtypes[d] == LADE_F16 ? ((const float *)memory.memory[part])[i]
                                             : lade_master_join(((const uint16_t *)memory.memory[weight])[i],
                                                                ((const int16_t *)memory.memory[part])[i]);
      assert_int_equal(lade_f32_bits(master), lade_f32_bits(collect.elements[i]));
    }
    free(collect.elements);
    values_memory_finish(&memory);
    lade_model_graph_destroy(graph);
  }
}

static int stop_use(void *user, int64_t first, const float *elements, int64_t n)
{
  return 42;
}

static void a_stream_stops_when_asked(void **state)
{
  struct lade_model_graph *graph = graph_make(LADE_GPT2, LADE_F32);
  struct values_memory memory;
  values_memory_init(&memory, graph);
  assert_int_equal(lade_checkpoint_master(&memory.values, 0, stop_use, NULL, NULL), 42);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void digest_sees_every_bit_of_the_master(void **state)
{
  struct lade_model_graph *graph = graph_make(LADE_LLAMA, LADE_BF16);
  struct values_memory memory;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 5);
  uint64_t digest = digest_of(&memory);
  for (int p = 0; p < graph->n_params; p++) {
    int part = lade_value_part(graph, p, LADE_PART_RESIDUAL);
    char *last = (char *)memory.memory[part] + lade_value_bytes(graph, part) - 2;
    *last ^= 1;
    assert_int_not_equal(digest_of(&memory), digest);
    *last ^= 1;
    *(char *)memory.memory[lade_value_part(graph, p, LADE_PART_M)] ^= 1; /* the digest does not cover moments */
  }
  assert_int_equal(digest_of(&memory), digest);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void every_failure_of_the_values_is_reported(void **state)
{
  struct lade_model_graph *graph = graph_make(LADE_GPT2, LADE_BF16);
  struct values_memory memory;
  values_memory_init(&memory, graph);
  assert_int_equal(lade_checkpoint_random(&memory.values, 1, NULL), 0);
  uint64_t n_calls = memory.n_calls;
  for (uint64_t i = 1; i <= n_calls; i += 7) {
    memory.n_calls = 0;
    memory.fail_at = i;
    struct lade_error error = {0};
    assert_int_equal(lade_checkpoint_random(&memory.values, 1, &error), -EIO);
    assert_non_null(strstr(error.text, "fails"));
  }
  memory.n_calls = 0;
  memory.fail_at = 3;
  uint64_t digest = 77;
  assert_int_equal(lade_checkpoint_digest(&memory.values, &digest, NULL), -EIO);
  assert_int_equal(digest, 77);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void a_reference_graph_is_refused(void **state)
{
  struct lade_model_graph *graph = graph_make(LADE_GPT2, LADE_F64);
  struct lade_values values = {.graph = graph};
  struct lade_error error = {0};
  assert_int_equal(lade_checkpoint_random(&values, 1, &error), -EINVAL);
  assert_non_null(strstr(error.text, "f64"));
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_values_do_not_depend_on_the_dtype),
      cmocka_unit_test(random_values_do_not_depend_on_the_threads),
      cmocka_unit_test(random_values_follow_their_rule),
      cmocka_unit_test(a_share_of_a_model_draws_the_whole_models_values),
      cmocka_unit_test(random_parameters_are_not_copies_of_each_other),
      cmocka_unit_test(the_master_is_joined_from_its_parts),
      cmocka_unit_test(a_stream_stops_when_asked),
      cmocka_unit_test(digest_sees_every_bit_of_the_master),
      cmocka_unit_test(every_failure_of_the_values_is_reported),
      cmocka_unit_test(a_reference_graph_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
