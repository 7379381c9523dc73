/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of models with windows and sinks: costs, classes of units, parameters, and refused numbers. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "graph/model_graph.h"
#include "tests/support/model_presets.h"

/* Make the graph of two sequences. */
static struct lade_model_graph *graph_make(const struct lade_model *model, int64_t seq_len)
{
  struct lade_kernels kernels;
  const struct lade_cpu cpu = {0};
  struct lade_model_graph *graph;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = model, .dtype = LADE_BF16,
                                           .batch = 2, .seq_len = seq_len, .kernels = &kernels, .n_threads = 1};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  return graph;
}

/* A windowed layer counts the pairs in its window, has a class of its own, and sinks are a parameter of each layer. */
static void windows_and_sinks_are_counted(void **state)
{
  struct lade_model model = preset_get("llama3-8b");
  const int64_t seq_len = 256, window = 100;
  model.layers = 4;
  const int64_t n_params = lade_model_n_params(&model);
  const double whole_flops = lade_model_flops_per_token(&model, seq_len);
  model.window = window;
  lade_layer_set_add(&model.windowed, 1);
  lade_layer_set_add(&model.windowed, 3);
  model.has_sinks = true;
  struct lade_model_graph *graph = graph_make(&model, seq_len);
  const double pairs[] = {(double)(seq_len * (seq_len + 1) / 2),
                          (double)(window * (window + 1) / 2 + (seq_len - window) * window)};
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    const int n_products = op->kind == LADE_OP_ATTENTION ? 2 : op->kind == LADE_OP_ATTENTION_BWD ? 5 : 0;
    const int is_windowed = (op->unit - 1) % 2;
    if (!n_products)
      continue;
    assert_true(op->flops == 2.0 * n_products * 2 * 32 * 128 * pairs[is_windowed]);
    assert_true(graph->units[op->unit].class_id == graph->units[1 + is_windowed].class_id);
  }
  assert_true(graph->units[1].class_id != graph->units[2].class_id);
  assert_int_equal(params_count(graph), n_params + 4 * 32);
  assert_int_equal(lade_model_n_params(&model), n_params + 4 * 32);
  const double t = (double)seq_len, w = (double)window, left_out = 6 * 2 * 32 * 128 * (t - w * (2 - w / t));
  assert_true(fabs(whole_flops - lade_model_flops_per_token(&model, seq_len) - left_out) < 1e-9 * whole_flops);
  lade_model_graph_destroy(graph);
}

static void forms_of_scores_that_cannot_be_are_refused(void **state)
{
  const struct lade_model good = preset_get("llama3-8b");
  struct lade_error error = {0};
  struct lade_model bad[8];
  const char *const words[] = {"attention_scale is -1", "attention_softcap is nan", "window is -5", "sinks",
                               "alibi_max is -8", "expected none in a GPT-2 model", "qkv_clip is inf",
                               "attention_temperature_beta is 0.1"};
  for (int i = 0; i < 8; i++)
    bad[i] = good;
  bad[4].alibi_max = -8;
  bad[5] = preset_get("gpt2-124m");
  bad[5].alibi_max = 8;
  bad[6].qkv_clip = INFINITY;
  bad[7].attention_temperature_beta = 0.1f;
  bad[7].rope_original_context = 10;
  bad[7].rotary_dim = 64;
  bad[0].attention_scale = -1;
  bad[1].attention_softcap = NAN;
  bad[2].window = -5;
  bad[3] = preset_get("gpt2-124m");
  bad[3].has_sinks = true;
  for (int i = 0; i < 8; i++) {
    assert_int_equal(lade_model_check(&bad[i], &error), -EINVAL);
    assert_non_null(strstr(error.text, words[i]));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(windows_and_sinks_are_counted),
      cmocka_unit_test(forms_of_scores_that_cannot_be_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
