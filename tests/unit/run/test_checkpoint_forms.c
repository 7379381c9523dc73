/* SPDX-License-Identifier: Apache-2.0 */
/* Compact state through FP32 numbers: the same form is restored byte for byte, another form is rounded once. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/moments.h"
#include "run/checkpoint/checkpoint_internal.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/values_memory.h"

static const struct {
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  double relative; /* maximum change by one rounding of a moment that is not small in its block */
} forms[] = {
    {LADE_BF16, LADE_MOMENTS_BF16, LADE_MASTER_EXACT, 0x1p-8},
    {LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT, 0x1p-5},
    {LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT, 0x1p-5},
    {LADE_F32, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT, 0x1p-5},
    {LADE_BF16, LADE_MOMENTS_F32, LADE_MASTER_24BIT, 0},
    {LADE_F16, LADE_MOMENTS_BF16, LADE_MASTER_EXACT, 0x1p-8},
};

static struct lade_model_graph *graph_make(size_t form, enum checkpoint_size size)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, forms[form].dtype, size);
  graph->moments = forms[form].moments;
  graph->master = forms[form].master;
  return graph;
}

/* Return a number with all bits of the mantissa in use, and a magnitude within three octaves. */
static float number_at(int param, enum chunk_kind kind, int64_t i)
{
  uint32_t word = lade_philox_word(9, 1, (uint32_t)(param * CHUNK_N_KINDS + (int)kind), (uint64_t)i);
  uint32_t sign = kind == CHUNK_V ? 0 : word & 0x80000000u;
  return lade_f32_from_bits(sign | (120 + (word >> 23) % 3) << 23 | (word & 0x7fffff));
}

typedef int chunk_fn(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
                     struct lade_error *error);

/* Call @fn for every chunk of @values, in the order of a checkpoint. */
static int all_move(const struct lade_values *values, chunk_fn *fn)
{
  struct chunk_buffer chunk;
  int rc = chunk_init(&chunk, values, 2, NULL, NULL);
  assert_int_equal(rc, 0);
  for (int kind = CHUNK_MASTER; kind < CHUNK_N_KINDS && !rc; kind++) {
    for (int param = 0; param < values->graph->n_params && !rc; param++) {
      int64_t n_elements = chunk_n_elements(values->graph, param);
      for (int64_t first = 0; first < n_elements && !rc; first += chunk.n_max)
        rc = fn(&chunk, param, (enum chunk_kind)kind, first, LADE_MIN(n_elements - first, chunk.n_max), NULL);
    }
  }
  chunk_finish(&chunk);
  return rc;
}

static int numbers_set(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
                       struct lade_error *error)
{
  for (int64_t i = 0; i < n; i++)
    chunk->elements[i] = number_at(param, kind, first + i);
  return chunk_set(chunk, param, kind, first, n, error);
}

static struct chunk_buffer other_chunk; /* destination of copy_set */

static int copy_set(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
                    struct lade_error *error)
{
  int rc = chunk_get(chunk, param, kind, first, n, error);
  for (int64_t i = 0; i < n && !rc; i++)
    other_chunk.elements[i] = chunk->elements[i];
  return rc ? rc : chunk_set(&other_chunk, param, kind, first, n, error);
}

static double tolerance; /* of a moment */

static int numbers_compare(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
                           struct lade_error *error)
{
  int rc = chunk_get(chunk, param, kind, first, n, error);
  double relative = kind != CHUNK_MASTER ? tolerance : chunk->values->graph->master == LADE_MASTER_24BIT ? 0x1p-16 : 0;
  for (int64_t i = 0; i < n && !rc; i++) {
    double want = (double)number_at(param, kind, first + i), got = (double)chunk->elements[i];
    if (fabs(got - want) > relative * fabs(want))
      fail_msg("parameter %d, kind %d, element %lld: %a, not %a", param, (int)kind, (long long)(first + i), got, want);
  }
  return rc;
}

static void a_saved_form_loads_byte_for_byte(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(forms); i++) {
    struct lade_model_graph *graph = graph_make(i, SIZE_CHUNKS);
    struct values_memory memory, copy;
    values_memory_init(&memory, graph);
    values_memory_init(&copy, graph);
    assert_int_equal(chunk_init(&other_chunk, &copy.values, 2, NULL, NULL), 0);
    assert_int_equal(all_move(&memory.values, numbers_set), 0);
    assert_int_equal(all_move(&memory.values, copy_set), 0);
    assert_true(values_memory_is_set(&copy) && values_memory_equal(&memory, &copy));
    chunk_finish(&other_chunk);
    values_memory_finish(&copy);
    values_memory_finish(&memory);
    lade_model_graph_destroy(graph);
  }
}

static void another_form_is_rounded_once(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(forms); i++) {
    struct lade_model_graph *graph = graph_make(i, SIZE_WINDOWS);
    struct values_memory memory;
    values_memory_init(&memory, graph);
    tolerance = forms[i].relative;
    assert_int_equal(all_move(&memory.values, numbers_set), 0);
    assert_int_equal(all_move(&memory.values, numbers_compare), 0);
    values_memory_finish(&memory);
    lade_model_graph_destroy(graph);
  }
}

static void every_failed_call_is_an_error(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(forms); i++) {
    struct lade_model_graph *graph = graph_make(i, SIZE_SMALL);
    struct values_memory memory;
    values_memory_init(&memory, graph);
    assert_int_equal(all_move(&memory.values, numbers_set), 0);
    uint64_t n_calls = memory.n_calls;
    for (uint64_t call = 1; call <= n_calls; call++) {
      memory.n_calls = 0;
      memory.fail_at = call;
      assert_int_equal(all_move(&memory.values, numbers_set), -EIO);
    }
    memory.n_calls = 0;
    memory.fail_at = 1;
    assert_int_equal(all_move(&memory.values, numbers_compare), -EIO);
    values_memory_finish(&memory);
    lade_model_graph_destroy(graph);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_saved_form_loads_byte_for_byte),
      cmocka_unit_test(another_form_is_rounded_once),
      cmocka_unit_test(every_failed_call_is_an_error),
  };
  return cmocka_run_group_tests_name("compact state in checkpoints", tests, NULL, NULL);
}
