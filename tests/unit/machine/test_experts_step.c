/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts: published parameter counts, hostile config.json, and steps as graphs whose bytes and times
 * follow the load.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/graph_plan.h"
#include "machine/experts_step.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/scratch.h"

/* By transformers 5.24, on the meta device (tests/torch/experts.py); active ones by the same tensors. */
static const struct {
  const char *name;
  int64_t n_params, n_active;
} published[] = {
    {"mixtral-8x7b", 46702792704, 12879925248},     {"mixtral-8x22b", 140630071296, 39161468928},
    {"qwen1.5-moe-a2.7b", 14315784192, 2689173504}, {"qwen2-57b-a14b", 57408658944, 14249270784},
    {"qwen3-30b-a3b", 30532122624, 3353032704},     {"qwen3-235b-a22b", 235093634560, 22190763520},
    {"olmoe-1b-7b", 6919161856, 1282017280},        {"deepseek-v2-lite", 15706484224, 2661150208},
    {"deepseek-v2", 235741434880, 21375800320},     {"deepseek-v3", 671026404352, 37552282624},
};

static struct lade_experts experts_get(const char *name)
{
  struct lade_experts model;
  struct lade_error error = {0};
  if (lade_experts_find(name, &model, &error))
    fail_msg("%s: %s", name, error.text);
  return model;
}

static void counts_are_the_published_ones(void **state)
{
  for (size_t i = 0; i < LADE_COUNT(published); i++) {
    struct lade_model trained;
    struct lade_error error = {0};
    const struct lade_experts model = experts_get(published[i].name);
    assert_string_equal(lade_experts_preset_name((int)i), published[i].name);
    assert_int_equal(lade_experts_n_params(&model), published[i].n_params);
    assert_int_equal(lade_experts_n_active_params(&model), published[i].n_active);
    assert_int_equal(lade_model_preset(published[i].name, &trained, &error), -EINVAL);
    assert_non_null(strstr(error.text, "planned on one rank and not trained: lade plan"));
  }
  assert_null(lade_experts_preset_name((int)LADE_COUNT(published)));
  assert_null(lade_experts_preset_name(-1));
}

/* ---- config.json ---- */

#define SIZES "\"vocab_size\":1000,\"max_position_embeddings\":64,\"hidden_size\":64,\"num_hidden_layers\":4," \
  "\"num_attention_heads\":4,\"num_experts_per_tok\":2,\"intermediate_size\":96"
#define QWEN3 "\"model_type\":\"qwen3_moe\"," SIZES ",\"moe_intermediate_size\":32,\"num_key_value_heads\":2," \
  "\"head_dim\":32"
#define V3 "\"model_type\":\"deepseek_v3\"," SIZES ",\"moe_intermediate_size\":32,\"n_routed_experts\":8," \
  "\"n_shared_experts\":2,\"kv_lora_rank\":16,\"q_lora_rank\":24,\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4," \
  "\"v_head_dim\":12"

static const char *config_make(const char *text)
{
  const char *path = in_scratch("config.json");
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  return path;
}

static void config_refuse(const char *text, const char *field, const char *expected)
{
  struct lade_experts model;
  struct lade_error error = {0};
  const char *path = config_make(text);
  assert_int_equal(lade_experts_find(path, &model, &error), -EINVAL);
  if (!strstr(error.text, field) || !strstr(error.text, expected) || strchr(error.text, '\n'))
    fail_msg("\"%s\" does not say \"%s\" and \"%s\"", error.text, field, expected);
}

static void configs_are_read(void **state)
{
  struct lade_experts model = experts_get(config_make("{" QWEN3 ",\"num_local_experts\":8,\"decoder_sparse_step\":2,"
                                                      "\"mlp_only_layers\":[1]}"));
  assert_true(lade_experts_is_dense(&model, 0) && lade_experts_is_dense(&model, 1));
  assert_true(lade_experts_is_dense(&model, 2) && !lade_experts_is_dense(&model, 3));
  assert_int_equal(model.n_experts, 8);
  assert_int_equal(model.q_norm, 32);
  model = experts_get(config_make("{" V3 ",\"first_k_dense_replace\":2}"));
  assert_true(lade_experts_is_dense(&model, 1) && !lade_experts_is_dense(&model, 2));
  assert_int_equal(model.shared_hidden, 64);
  model = experts_get(config_make("{" V3 "}")); /* transformers' default */
  assert_true(lade_experts_is_dense(&model, 2) && !lade_experts_is_dense(&model, 3));
  model = experts_get(config_make("{" V3 ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"sparse\"]}"));
  assert_true(!lade_experts_is_dense(&model, 0) && lade_experts_is_dense(&model, 1));
  struct lade_model trained;
  struct lade_error error = {0};
  assert_int_equal(lade_model_load(in_scratch("config.json"), &trained, &error), -EINVAL);
  assert_non_null(strstr(error.text, "planned on one rank and not trained"));
  assert_int_equal(lade_experts_find(config_make("{\"model_type\":\"llama\"}"), &model, &error), -ENOENT);
  assert_int_equal(lade_experts_find(config_make("no JSON"), &model, &error), -ENOENT);
  assert_int_equal(lade_experts_find("gpt2-124m", &model, &error), -ENOENT);
  assert_int_equal(lade_experts_find("absent/config.json", &model, &error), -ENOENT);
}

static void absurd_configs_are_refused_naming_the_field(void **state)
{
  config_refuse("{" QWEN3 "}", "num_experts is missing", "whole number");
  config_refuse("{" QWEN3 ",\"num_experts\":0}", "num_experts is 0", "from 1 to");
  config_refuse("{" QWEN3 ",\"num_experts\":1}", "num_experts_per_tok is 2", "at most the number of experts");
  config_refuse("{" QWEN3 ",\"num_experts\":1e9}", "num_experts is 1", "whole number");
  config_refuse("{" QWEN3 ",\"num_experts\":8,\"mlp_only_layers\":[4]}", "mlp_only_layers", "layers of the model");
  config_refuse("{" QWEN3 ",\"num_experts\":8,\"mlp_only_layers\":[\"a\"]}", "mlp_only_layers", "layers of the model");
  config_refuse("{" QWEN3 ",\"num_experts\":8,\"hidden_act\":\"gelu\"}", "hidden_act is \"gelu\"", "silu");
  config_refuse("{" QWEN3 ",\"num_experts\":8,\"attention_bias\":1}", "attention_bias is 1", "true or false");
  config_refuse("{\"model_type\":\"mixtral\"," SIZES ",\"num_local_experts\":8}", "num_key_value_heads", "whole");
  config_refuse("{\"model_type\":\"mixtral\"," SIZES ",\"num_local_experts\":8,\"num_key_value_heads\":3}",
                "num_key_value_heads is 3", "a divisor");
  config_refuse("{" V3 ",\"mlp_layer_types\":[\"dense\"]}", "mlp_layer_types", "one entry for each layer");
  config_refuse("{" V3 ",\"moe_layer_freq\":2}", "moe_layer_freq is 2", "expected 1");
  config_refuse("{" V3 ",\"mlp_bias\":true}", "mlp_bias is true", "false");
  config_refuse("{\"model_type\":\"olmoe\",\"vocab_size\":1000,\"max_position_embeddings\":64,\"hidden_size\":131072,"
                "\"num_hidden_layers\":10000,\"num_attention_heads\":4,\"num_experts_per_tok\":2,"
                "\"intermediate_size\":524288,\"num_experts\":16384}", "num_hidden_layers is 10000", "10^15");
}

/* ---- steps ---- */

static struct lade_machine machine_get(const char *name)
{
  struct lade_machine machine;
  struct lade_error error = {0};
  assert_int_equal(lade_machine_get(name, &error, &machine), 0);
  return machine;
}

static struct lade_experts_step_params params_make(const struct lade_experts *model, const struct lade_cost *cost)
{
  return (struct lade_experts_step_params){.struct_size = sizeof(struct lade_experts_step_params), .model = model,
                                           .cost = cost, .dtype = LADE_BF16, .micro_batch = 2, .n_microbatches = 1,
                                           .seq_len = 64, .capacity = 1};
}

struct answer {
  uint64_t unconstrained_bytes, floor_bytes;
  int64_t ns;
  int n_ops;
};

static struct answer step_answer(const struct lade_experts_step_params *params)
{
  const struct lade_graph_plan_params graph_plan_params = {.struct_size = sizeof(graph_plan_params),
                                                           .budget_bytes = LADE_GRAPH_BUDGET_NONE};
  struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
  struct lade_error error = {0};
  lade_graph *graph = NULL;
  lade_graph_plan *plan = NULL;
  if (lade_experts_step_graph(params, &error, &graph))
    fail_msg("%s: %s", params->model->name, error.text);
  assert_int_equal(lade_graph_plan_find(graph, &graph_plan_params, &error, &info, &plan), 0);
  const struct answer answer = {info.unconstrained_bytes, info.floor_bytes, info.predicted_step_ns,
                                lade_graph_n_ops(graph)};
  lade_graph_plan_destroy(plan);
  lade_graph_destroy(graph);
  return answer;
}

/* The builder asserts that its weights are the model's parameters. State and gradients follow from their number. */
static void a_step_holds_state_and_gradients_of_all_parameters(void **state)
{
  const struct lade_machine machine = machine_get("h100-80g");
  struct lade_cost cost;
  lade_cost_init(&cost, &machine);
  for (size_t i = 0; i < LADE_COUNT(published); i++) {
    struct lade_experts model = experts_get(published[i].name);
    model.layers = LADE_MIN(model.layers, 6);
    struct lade_experts_step_params params = params_make(&model, &cost);
    const uint64_t n = (uint64_t)lade_experts_n_params(&model);
    assert_in_range(step_answer(&params).floor_bytes, 16 * n, 16 * n + n / 8); /* 2 + 2 + 8, and 4 of gradients */
    params.moments = LADE_MOMENTS_8BIT;
    params.master = LADE_MASTER_24BIT;
    assert_in_range(step_answer(&params).floor_bytes, 9 * n, 9 * n + n / 8);
  }
  lade_cost_finish(&cost);
}

static void memory_and_time_follow_the_load(void **state)
{
  const struct lade_machine machine = machine_get("h100-80g");
  struct lade_experts model = experts_get("qwen3-30b-a3b");
  struct lade_cost cost;
  int64_t all_rows = 0;
  lade_cost_init(&cost, &machine);
  model.layers = 4;
  model.n_experts = 16; /* so that activations exceed gradients */
  model.vocabulary = 1000;
  struct lade_experts_step_params params = params_make(&model, &cost);
  params.micro_batch = 16;
  params.seq_len = 1024;
  const struct answer balanced = step_answer(&params);
  assert_int_equal(lade_experts_rows(&params, &all_rows), 16384 * 8 / 16);
  assert_int_equal(all_rows, 16384 * 8);
  params.capacity = 2;
  const struct answer doubled = step_answer(&params);
  assert_int_equal(lade_experts_rows(&params, &all_rows), 2 * 16384 * 8 / 16);
  /* a row more has its input, both halves of the hidden width, its activation and its output, in each layer */
  const uint64_t more = 4ull * 16384 * 8 * (2048 + 2 * 768 + 768 + 2048) * 2;
  assert_in_range(doubled.unconstrained_bytes - balanced.unconstrained_bytes, more, more + more / 2);
  assert_true(doubled.ns > balanced.ns);
  params.capacity = 1000; /* each expert has room for all tokens, and no more */
  assert_int_equal(lade_experts_rows(&params, &all_rows), 16384);
  params.capacity = 1;
  params.micro_batch = 8;
  params.n_microbatches = 2;
  const struct answer halves = step_answer(&params);
  assert_true(halves.unconstrained_bytes < balanced.unconstrained_bytes && halves.n_ops > balanced.n_ops);
  assert_true(halves.ns > balanced.ns * 9 / 10 && halves.ns < balanced.ns * 3 / 2);
  lade_cost_finish(&cost);
}

static void impossible_steps_are_refused(void **state)
{
  const struct lade_machine machine = machine_get("a100-40g");
  struct lade_experts model = experts_get("olmoe-1b-7b");
  struct lade_cost cost;
  lade_cost_init(&cost, &machine);
  const struct lade_experts_step_params good = params_make(&model, &cost);
  struct lade_experts_step_params bad[5] = {good, good, good, good, good};
  static const char *const words[] = {"longer than the context", "too large to plan", "too large to plan", "for bf16",
                                      "begin at 1"};
  bad[0].seq_len = 4097;
  bad[1].n_microbatches = 1000000;
  bad[2].micro_batch = INT64_C(1) << 40;
  bad[3].dtype = LADE_F32;
  bad[3].master = LADE_MASTER_24BIT;
  bad[4].capacity = 0.5;
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    struct lade_error error = {0};
    lade_graph *graph = NULL;
    assert_int_equal(lade_experts_step_graph(&bad[i], &error, &graph), -EINVAL);
    assert_null(graph);
    if (!strstr(error.text, words[i]))
      fail_msg("\"%s\" does not say \"%s\"", error.text, words[i]);
  }
  lade_cost_finish(&cost);
}

static void a_lack_of_memory_is_an_error(void **state)
{
  const struct lade_machine machine = machine_get("a100-40g");
  struct lade_experts model = experts_get("deepseek-v2-lite");
  struct lade_cost cost;
  int status = -ENOMEM;
  lade_cost_init(&cost, &machine);
  model.layers = 2;
  const struct lade_experts_step_params params = params_make(&model, &cost);
  for (int n = 0; status; n++) {
    struct lade_error error = {0};
    lade_graph *graph = NULL;
    allocations_left = n;
    status = lade_experts_step_graph(&params, &error, &graph);
    allocations_left = -1;
    assert_true(!status || status == -ENOMEM);
    assert_true(!status == !!graph);
    lade_graph_destroy(graph);
  }
  lade_cost_finish(&cost);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_are_the_published_ones),
      cmocka_unit_test(configs_are_read),
      cmocka_unit_test(absurd_configs_are_refused_naming_the_field),
      cmocka_unit_test(a_step_holds_state_and_gradients_of_all_parameters),
      cmocka_unit_test(memory_and_time_follow_the_load),
      cmocka_unit_test(impossible_steps_are_refused),
      cmocka_unit_test(a_lack_of_memory_is_an_error),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
