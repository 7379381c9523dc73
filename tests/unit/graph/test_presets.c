/* SPDX-License-Identifier: Apache-2.0 */
/* Presets of models: published parameter counts, the reader's own checks, and names that are close to one. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "graph/model_graph.h"
#include "tests/support/model_presets.h"

static struct lade_model_graph *graph_make(const struct lade_model *model)
{
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  struct lade_model_graph *graph = NULL;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = model, .dtype = LADE_BF16,
                                           .batch = 1, .seq_len = 128, .kernels = &kernels, .n_threads = 1};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  return graph;
}

static void parameter_counts_are_the_published_ones(void **state)
{
  const struct {
    const char *name;
    int64_t n_params;
  } published[] = {
      {"gpt2-124m", 124439808}, {"gpt2-350m", 354823168}, {"gpt2-774m", 774030080}, {"gpt2-1.5b", 1557611200},
      {"llama3-8b", 8030261248}, {"llama3-70b", 70553706496}, {"llama3-405b", 405853388800},
      {"gpt3-175b", 174615846912}, {"gpt-1t", 1008038758400}, {"mistral-7b", 7241732096}, {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-7b", 7615616512}, {"qwen3-0.6b", 596049920}, {"qwen3-8b", 8190735360},
      {"gemma2-2b", 2614341888}, {"gemma2-9b", 9241705984}, {"gemma3-1b", 999885952}, {"phi3-mini", 3821079552},
      {"phi4", 14659507200}, {"olmo2-1b", 1484916736}, {"olmo2-7b", 7298617344}, {"smollm3-3b", 3075098624},
      {"starcoder2-3b", 3030371328}, {"pythia-160m", 162322944}, {"pythia-1.4b", 1414647808},
      {"pythia-6.9b", 6857302016}, {"falcon-7b", 6921720704}, {"llama2-7b", 6738415616}, {"llama2-70b", 68976648192},
      {"llama3.2-1b", 1235814400}, {"llama3.2-3b", 3212749824}, {"mistral-nemo-12b", 12247782400},
      {"mistral-small-24b", 23572403200}, {"mistral-large-123b", 122610069504}, {"qwen2.5-3b", 3085938688},
      {"qwen2.5-14b", 14770033664}, {"qwen2.5-32b", 32763876352}, {"qwen2.5-72b", 72706203648},
      {"qwen3-4b", 4022468096}, {"qwen3-14b", 14768307200}, {"qwen3-32b", 32762123264}, {"gemma2-27b", 27227128320},
      {"phi3-medium", 13960238080}, {"olmo2-13b", 13716198400}, {"olmo2-32b", 32234279936},
      {"starcoder2-7b", 7173923840}, {"starcoder2-15b", 15957889024}, {"pythia-2.8b", 2775208960},
      {"pythia-12b", 11846072320}, {"falcon-40b", 41303293952}, {"falcon2-11b", 11102822400},
      {"falcon-rw-1b", 1311625216}, {"mpt-7b", 6649286656}, {"mpt-30b", 29957200896}, {"bloom-560m", 559214592},
      {"bloom-7b1", 7069016064}, {"bloom-176b", 176247271424}, {"ministral3-3b", 3429006336},
      {"ministral3-8b", 8489553920}, {"ministral3-14b", 13506073600}, {"cerebras-gpt-111m", 111050496},
      {"cerebras-gpt-256m", 255977024}, {"cerebras-gpt-590m", 590310912}, {"cerebras-gpt-1.3b", 1315723264},
      {"cerebras-gpt-2.7b", 2651553280}, {"cerebras-gpt-6.7b", 6658404352}, {"cerebras-gpt-13b", 12853386240},
      {"olmo3-7b", 7298011136}, {"olmo3-32b", 32233522176}, {"seed-oss-36b", 36151104512},
      {"exaone4-1.2b", 1279391488}, {"exaone4-32b", 32003216384}, {"stablelm-3b", 2795443200},
      {"minitron-4b", 4190509056}, {"vaultgemma-1b", 1038741120}, {"granite3-2b", 2533531648},
      {"granite3-8b", 8170848256}, {"ernie4.5-0.3b", 360748032}, {"glm4-9b", 9399951360},
      {"glm4-9b-0414", 9400279040}, {"command-r-35b", 34980831232}, {"command-r7b", 8028033024},
      {"llama3.1-8b", 8030261248}, {"llama3.1-70b", 70553706496}, {"llama2-13b", 13015864320},
      {"qwen3-1.7b", 1720574976}, {"gemma-2b", 2506172416}, {"gemma-7b", 8537680896}, {"gemma3-270m", 268098176},
      {"pythia-70m", 70426624}, {"pythia-410m", 405334016}, {"pythia-1b", 1011781632},
  };
  for (size_t i = 0; i < LADE_COUNT(published); i++) {
    struct lade_model model = preset_get(published[i].name);
    assert_int_equal(lade_model_n_params(&model), published[i].n_params);
    struct lade_model_graph *graph = graph_make(&model);
    assert_int_equal(params_count(graph), published[i].n_params);
    lade_model_graph_destroy(graph);
  }
}

/* Facts of published configurations that no parameter count shows. */
static void contexts_norms_and_angles_are_the_published_ones(void **state)
{
  const struct {
    const char *name;
    int64_t context;
    float norm_eps, rope_base;
  } published[] = {
      {"llama2-13b", 4096, 1e-5f, 1e4f},         {"llama3.1-8b", 131072, 1e-5f, 5e5f},
      {"llama3.2-3b", 131072, 1e-5f, 5e5f},      {"mistral-7b", 32768, 1e-5f, 1e4f},
      {"mistral-small-24b", 32768, 1e-5f, 1e8f}, {"qwen2.5-0.5b", 32768, 1e-6f, 1e6f},
      {"qwen2.5-1.5b", 131072, 1e-6f, 1e6f},     {"qwen2.5-3b", 32768, 1e-6f, 1e6f},
      {"qwen2.5-7b", 131072, 1e-6f, 1e6f},       {"qwen2.5-14b", 131072, 1e-5f, 1e6f},
      {"qwen2.5-32b", 131072, 1e-5f, 1e6f},      {"qwen2.5-72b", 131072, 1e-5f, 1e6f},
      {"qwen3-0.6b", 40960, 1e-6f, 1e6f},        {"qwen3-1.7b", 40960, 1e-6f, 1e6f},
      {"qwen3-8b", 40960, 1e-6f, 1e6f},          {"qwen3-32b", 40960, 1e-6f, 1e6f},
      {"gemma-2b", 8192, 1e-6f, 1e4f},           {"gemma2-27b", 8192, 1e-6f, 1e4f},
      {"gemma3-1b", 32768, 1e-6f, 1e6f},         {"phi3-mini", 4096, 1e-5f, 1e4f},
      {"phi4", 16384, 1e-5f, 250000},            {"olmo2-7b", 4096, 1e-6f, 5e5f},
      {"pythia-1b", 2048, 1e-5f, 1e4f},          {"glm4-9b-0414", 32768, 1e-5f, 1e4f},
  };
  for (size_t i = 0; i < LADE_COUNT(published); i++) {
    const struct lade_model model = preset_get(published[i].name);
    assert_int_equal(model.context, published[i].context);
    assert_float_equal(model.norm_eps, published[i].norm_eps, 0);
    assert_float_equal(model.rope_base, published[i].rope_base, 0);
  }
}

static void presets_pass_their_own_check(void **state)
{
  int n = 0;
  for (const char *name; (name = lade_model_preset_name(n)) != NULL; n++) {
    struct lade_model model = preset_get(name);
    assert_string_equal(model.name, name);
    assert_int_equal(lade_model_check(&model, NULL), 0);
    assert_int_equal(model.takes_vocabulary, strcmp(name, "nano") == 0 || strcmp(name, "baby") == 0);
  }
  assert_int_equal(n, 95);
  assert_null(lade_model_preset_name(-1));
  struct lade_model model;
  struct lade_error error = {0};
  assert_int_equal(lade_model_preset("gpt5", &model, &error), -ENOENT);
  assert_non_null(strstr(error.text, "gpt5"));
  assert_non_null(strstr(error.text, "gpt2-*, llama3-*, llama3.1-*, gpt3-*")); /* families, to the last one */
  assert_string_equal(error.text + strlen(error.text) - strlen(", deepseek-*"), ", deepseek-*");
  assert_int_equal(lade_model_preset("qwen3-9b", &model, &error), -ENOENT);
  assert_non_null(strstr(error.text, "qwen3-4b, qwen3-8b")); /* sizes of the one that is meant */
  assert_null(strstr(error.text, "gpt"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameter_counts_are_the_published_ones),
      cmocka_unit_test(contexts_norms_and_angles_are_the_published_ones),
      cmocka_unit_test(presets_pass_their_own_check),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
