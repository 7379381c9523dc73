/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of config.json: published models, hostile files, and fields that are refused by name. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/base.h"
#include "base/file.h"
#include "base/philox.h"
#include "graph/model_graph.h"
#include "tests/support/heap/allocations.h"

#define GPT2_FIELDS \
  "\"model_type\":\"gpt2\",\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"vocab_size\":50257"
#define LLAMA_FIELDS \
  "\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32," \
  "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"vocab_size\":128256," \
  "\"rms_norm_eps\":1e-05"
#define ROPE3(factor) \
  "{\"factor\":" factor ",\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_type\":\"llama3\"," \
  "\"original_max_position_embeddings\":8192}"

/* Load a file of @bytes bytes of @text by lade_model_load. */
static int config_load(const void *text, size_t bytes, struct lade_model *ret_model, struct lade_error *error)
{
  char path[] = "/tmp/lade-config-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, bytes), bytes);
  close(fd);
  int rc = lade_model_load(path, ret_model, error);
  unlink(path);
  return rc;
}

static void config_accept(const char *text, struct lade_model *ret_model)
{
  struct lade_error error = {0};
  if (config_load(text, strlen(text), ret_model, &error) < 0)
    fail_msg("%s", error.text);
}

/* Check that @text is refused with one line that contains @a, @b and @c (NULL: none), and the model is untouched. */
static void config_refuse(const char *text, const char *a, const char *b, const char *c)
{
  struct lade_error error = {0};
  struct lade_model model, before;
  memset(&model, 0x5a, sizeof(model));
  before = model;
  /* text that is no JSON object is damage, a field that cannot be computed is not */
  const int expected = strstr(a, "JSON") ? -EBADMSG : -EINVAL;
  assert_int_equal(config_load(text, strlen(text), &model, &error), expected);
  assert_int_equal(error.code, expected);
  assert_memory_equal(&model, &before, sizeof(model));
  assert_null(strchr(error.text, '\n'));
  assert_non_null(strstr(error.text, "lade-config-"));
  const char *const words[] = {a, b, c};
  for (int i = 0; i < 3; i++)
    if (words[i] && !strstr(error.text, words[i]))
      fail_msg("no '%s' in: %s", words[i], error.text);
}

static void configs_of_both_families_give_the_published_models(void **state)
{
  struct lade_model model;
  config_accept("{" GPT2_FIELDS ",\"n_inner\":null,\"activation_function\":\"gelu_new\","
                "\"layer_norm_epsilon\":1e-05,\"task_specific_params\":{\"x\":[1,2]}}", &model);
  assert_int_equal(model.family, LADE_GPT2);
  assert_true(model.is_tied);
  assert_int_equal(model.hidden, 3072);
  assert_int_equal(lade_model_n_params(&model), 124439808);
  config_accept("{" LLAMA_FIELDS ",\"rope_theta\":500000.0,\"rope_scaling\":null,\"head_dim\":128}", &model);
  assert_int_equal(lade_model_n_params(&model), 8030261248);
  assert_true(model.rope_base == 500000 && model.rope_scale_factor == 0);
  config_accept("{" LLAMA_FIELDS ",\"head_dim\":64}", &model); /* q, k, v and o are half as wide */
  assert_int_equal(lade_model_n_params(&model), 8030261248 - 32 * 4096ll * 64 * 2 * (32 + 8));
  config_accept("{" LLAMA_FIELDS ",\"rope_theta\":500000.0,\"rope_scaling\":" ROPE3("8.0") "}", &model);
  assert_true(model.rope_scale_factor == 8 && model.rope_low_freq_factor == 1 && model.rope_high_freq_factor == 4);
  assert_int_equal(model.rope_original_context, 8192);
  config_accept("{" LLAMA_FIELDS ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6},"
                "\"tie_word_embeddings\":true}", &model);
  assert_true(model.rope_base == 1e6f && model.is_tied);
  assert_int_equal(lade_model_n_params(&model), 8030261248 - 128256 * 4096ll);
}

static void configs_of_images_and_text_give_the_model_of_the_text(void **state)
{
  struct lade_model model;
  config_accept("{\"model_type\":\"gemma3\",\"vision_config\":{\"hidden_size\":1152},\"text_config\":{"
                "\"model_type\":\"gemma3_text\",\"hidden_size\":5376,\"intermediate_size\":21504,"
                "\"num_hidden_layers\":62,\"head_dim\":128,\"num_attention_heads\":32,"
                "\"num_key_value_heads\":16,\"query_pre_attn_scalar\":168,"
                "\"sliding_window\":1024,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}}", &model);
  assert_int_equal(model.family, LADE_GEMMA3);
  assert_int_equal(lade_model_n_params(&model), 27009346304);
  config_accept("{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"
                "\"intermediate_size\":10240,\"num_hidden_layers\":34}}", &model); /* as published */
  assert_int_equal(model.heads, 8);
  assert_int_equal(model.vocabulary, 262208);
  config_accept("{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"text_config\":{" LLAMA_FIELDS
                ",\"tie_word_embeddings\":false}}", &model);
  assert_true(model.is_tied);
  config_refuse("{\"model_type\":\"gemma3\",\"hidden_size\":8}", "text_config is missing", "an object", NULL);
  config_accept("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\",\"hidden_size\":3072,"
                "\"intermediate_size\":9216,\"num_hidden_layers\":26,\"num_attention_heads\":32,"
                "\"vocab_size\":131072,\"rope_parameters\":{\"type\":\"yarn\",\"rope_theta\":1e6,\"factor\":16,"
                "\"mscale\":1,\"mscale_all_dim\":1,\"original_max_position_embeddings\":16384,"
                "\"llama_4_scaling_beta\":0.1}}}", &model);
  assert_true(model.family == LADE_MINISTRAL3 && model.attention_temperature_beta == 0.1f);
  assert_true(model.rope_original_context == 16384);
  assert_true(model.rope_kind == LADE_ROPE_YARN && model.rope_magnitude == 1 && model.context == 262144);
  config_refuse("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral4\"}}",
                "text_config.model_type is \"mistral4\"", "one of gpt2", NULL);
  config_refuse("{\"model_type\":\"mistral3\",\"text_config\":{" LLAMA_FIELDS ",\"hidden_act\":\"tanh\"}}",
                "text_config.hidden_act is \"tanh\"", "\"silu\"", NULL);
}

#define MPT_FIELDS "\"model_type\":\"mpt\",\"d_model\":48,\"n_heads\":6,\"n_layers\":2,\"vocab_size\":160"
#define BLOOM_FIELDS "\"model_type\":\"bloom\",\"num_attention_heads\":6,\"n_layer\":2,\"vocab_size\":160"

static void models_with_alibi_are_read_and_their_other_forms_refused(void **state)
{
  struct lade_model model;
  config_accept("{" MPT_FIELDS ",\"max_seq_len\":64,\"no_bias\":true,\"learned_pos_emb\":true,\"attn_config\":{"
                "\"alibi\":true,\"alibi_bias_max\":8,\"attn_impl\":\"triton\",\"clip_qkv\":6,\"qk_ln\":false,"
                "\"softmax_scale\":null}}", &model);
  assert_true(model.alibi_max == 8 && !model.is_alibi_rounded && model.qkv_clip == 6 && model.attention_scale == 0);
  assert_true(model.hidden == 192 && model.context == 64 && model.n_kv_heads == 6 && model.is_tied);
  config_accept("{" MPT_FIELDS ",\"hidden_size\":48}", &model);
  assert_true(model.alibi_max == 8 && model.qkv_clip == 0);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"alibi\":false}}", "attn_config.alibi is false", "true", NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"alibi_bias_max\":4}}", "attn_config.alibi_bias_max is 4", "8",
                NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"prefix_lm\":true}}", "attn_config.prefix_lm is true", NULL, NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"qk_ln\":true}}", "attn_config.qk_ln is true", NULL, NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"attn_type\":\"multiquery_attention\"}}", "attn_config.attn_type",
                "multihead", NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"clip_qkv\":-1}}", "attn_config.clip_qkv is -1", "above 0", NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":{\"softmax_scale\":0}}", "attn_config.softmax_scale is 0", NULL, NULL);
  config_refuse("{" MPT_FIELDS ",\"attn_config\":7}", "attn_config is 7", "object", NULL);
  config_refuse("{" MPT_FIELDS ",\"expansion_ratio\":2}", "expansion_ratio is 2", "4", NULL);
  config_refuse("{" MPT_FIELDS ",\"no_bias\":false}", "no_bias is false", "true", NULL);
  config_refuse("{" MPT_FIELDS ",\"embedding_fraction\":0.1}", "embedding_fraction is 0.1", "1", NULL);
  config_refuse("{" MPT_FIELDS ",\"norm_type\":\"rmsnorm\"}", "norm_type is \"rmsnorm\"", NULL, NULL);
  config_refuse("{" MPT_FIELDS ",\"logit_scale\":\"inv_sqrt_d_model\"}", "logit_scale", NULL, NULL);
  config_refuse("{" MPT_FIELDS ",\"hidden_size\":64}", "hidden_size is 64", "other name", NULL);
  config_accept("{" BLOOM_FIELDS ",\"n_embed\":48,\"seq_length\":128,\"n_inner\":null}", &model);
  assert_true(model.alibi_max == 8 && model.width == 48 && model.hidden == 192 && model.context == 128);
  config_refuse("{" BLOOM_FIELDS ",\"n_embed\":48,\"apply_residual_connection_post_layernorm\":true}",
                "apply_residual_connection_post_layernorm is true", "false", NULL);
  config_refuse("{" BLOOM_FIELDS "}", "hidden_size is missing", NULL, NULL);
  config_accept("{\"model_type\":\"falcon\",\"hidden_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":6,"
                "\"vocab_size\":160,\"alibi\":true,\"rope_theta\":0.5}", &model);
  assert_true(model.alibi_max == 8 && model.is_alibi_rounded);
  config_refuse("{\"model_type\":\"falcon\",\"hidden_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":6,"
                "\"vocab_size\":160,\"alibi\":1}", "alibi is 1", "true or false", NULL);
}

#define SMALL_FIELDS(type) \
  "\"model_type\":\"" type "\",\"hidden_size\":48,\"intermediate_size\":80,\"num_hidden_layers\":4," \
  "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"vocab_size\":160"

/* Each family takes the values of fields that transformers takes, also absent ones, and refuses others by name. */
static void families_of_known_ops_are_read_and_their_other_forms_refused(void **state)
{
  struct lade_model model;
  config_accept("{" SMALL_FIELDS("olmo3") ",\"pad_token_id\":1,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}",
                &model);
  assert_true(model.windowed.bits[0] == 7 && model.window == 4096); /* each layer but every fourth */
  assert_true(model.rope_kind == LADE_ROPE_YARN && model.rope_base == 500000 && model.rope_local_base == 500000);
  config_accept("{" SMALL_FIELDS("olmo3") ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":100},"
                "\"sliding_attention\":{\"rope_theta\":50}}}", &model);
  assert_true(model.rope_base == 100 && model.rope_local_base == 50);
  config_refuse("{" SMALL_FIELDS("olmo3") ",\"rope_theta\":10000}", "rope_theta is 10000", "rope_parameters", NULL);
  config_accept("{" SMALL_FIELDS("seed_oss") ",\"attention_out_bias\":true}", &model);
  assert_true(model.biases == (LADE_BIAS_QKV | LADE_BIAS_OUT) && model.head_dim == 128 && model.pad_token == 1);
  config_refuse("{" SMALL_FIELDS("seed_oss") ",\"attention_out_bias\":1}", "attention_out_bias is 1", "true or false",
                NULL);
  config_accept("{" SMALL_FIELDS("exaone4") ",\"sliding_window_pattern\":2}", &model);
  assert_true(model.windowed.bits[0] == 5 && model.unrotated.bits[0] == 10); /* whole attention does not turn */
  config_accept("{" SMALL_FIELDS("exaone4") ",\"sliding_window\":null,\"sliding_window_pattern\":\"LLLG\"}", &model);
  assert_true(model.window == 0 && model.unrotated.bits[0] == 0);
  config_refuse("{" SMALL_FIELDS("exaone4") ",\"sliding_window_pattern\":\"LLLG\"}",
                "sliding_window_pattern is \"LLLG\"", "whole number", NULL);
  config_refuse("{" SMALL_FIELDS("exaone4") ",\"sliding_window_pattern\":0}", "sliding_window_pattern is 0",
                "layer_types", NULL);
  config_accept("{" SMALL_FIELDS("stablelm") ",\"use_parallel_residual\":true,\"partial_rotary_factor\":0.5}", &model);
  assert_true(model.n_parallel_norms == 1 && model.rotary_dim == 6 && model.biases == 0);
  config_refuse("{" SMALL_FIELDS("stablelm") "}", "3 numbers of a head of 12 turn", "even", NULL);
  config_refuse("{" SMALL_FIELDS("stablelm") ",\"head_dim\":16,\"partial_rotary_factor\":0.5}", "head_dim is 16", NULL,
                NULL);
  config_refuse("{" SMALL_FIELDS("stablelm") ",\"partial_rotary_factor\":0.5,\"qk_layernorm\":true}",
                "qk_layernorm is true", NULL, NULL);
  config_accept("{" SMALL_FIELDS("nemotron") ",\"attention_bias\":true}", &model);
  assert_true(model.rotary_dim == 6 && model.biases == (LADE_BIAS_QKV | LADE_BIAS_OUT));
  config_accept("{" SMALL_FIELDS("arcee") ",\"mlp_bias\":true}", &model);
  assert_true(model.biases == LADE_BIAS_MLP && model.activation == LADE_ACTIVATION_USUAL);
  config_accept("{" SMALL_FIELDS("granite") ",\"embedding_multiplier\":12,\"residual_multiplier\":0.5,"
                "\"logits_scaling\":8}", &model);
  assert_true(model.embedding_scale == 12 && model.residual_scale == 0.5f && model.logit_scale == 8);
  assert_true(model.attention_scale == 1); /* transformers' default, not 1 / sqrt(head_dim) */
  config_refuse("{" SMALL_FIELDS("granite") ",\"logits_scaling\":0}", "logits_scaling is 0", "above 0", NULL);
  config_refuse("{" SMALL_FIELDS("granite") ",\"residual_multiplier\":-1}", "residual_multiplier is -1", "above 0",
                NULL);
  config_refuse("{" SMALL_FIELDS("helium") "}", "head_dim is missing", "hidden_size / num_attention_heads", NULL);
  config_accept("{" SMALL_FIELDS("ernie4_5") ",\"use_bias\":true}", &model);
  assert_true(model.biases == (LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP) && model.is_tied && model.pad_token == 0);
  config_accept("{" SMALL_FIELDS("glm4") ",\"head_dim\":20,\"partial_rotary_factor\":0.4,\"pad_token_id\":null}",
                &model);
  assert_true(model.rotary_dim == 8 && model.biases == LADE_BIAS_QKV && !model.has_pad_token);
  config_accept("{" SMALL_FIELDS("cohere") "}", &model);
  assert_true(model.n_parallel_norms == 1 && model.logit_scale == 0.0625f && model.is_tied);
  config_refuse("{" SMALL_FIELDS("cohere") ",\"use_qk_norm\":true}", "use_qk_norm is true", NULL, NULL);
  config_accept("{" SMALL_FIELDS("cohere2") ",\"sliding_window_pattern\":2,\"logit_scale\":1}", &model);
  assert_true(model.windowed.bits[0] == 5 && model.unrotated.bits[0] == 10 && model.logit_scale == 0);
  config_accept("{" SMALL_FIELDS("cohere2") ",\"sliding_window\":null}", &model);
  assert_true(model.window == 0 && model.windowed.bits[0] == 0 && model.unrotated.bits[0] == 15); /* none turns */
  config_refuse("{" SMALL_FIELDS("cohere2") ",\"head_dim\":16}", "head_dim is 16", "hidden_size", NULL);
  config_accept("{" SMALL_FIELDS("vaultgemma") "}", &model);
  assert_true(model.windowed.bits[0] == 5 && model.attention_softcap == 50 && model.logit_softcap == 30);
  config_refuse("{" SMALL_FIELDS("vaultgemma") ",\"use_bidirectional_attention\":true}", "use_bidirectional_attention",
                "false", NULL);
}

/* Families that are Llama's but for the order of norm and rotation, the windowed layers, the norm, or the biases. */
static void variants_of_llama_are_read(void **state)
{
  struct lade_model model;
  config_accept("{" SMALL_FIELDS("hunyuan_v1_dense") ",\"head_dim\":20,\"num_experts\":1,\"use_qk_norm\":true,"
                "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1.0,\"alpha\":1000.0}}", &model);
  assert_float_equal(model.rope_base, 21544346.900, 1); /* 10000 * 1000^(20 / 18) */
  config_refuse("{" SMALL_FIELDS("hunyuan_v1_dense") ",\"use_cla\":true}", "use_cla is true", "false", NULL);
  config_refuse("{" SMALL_FIELDS("hunyuan_v1_dense") ",\"num_experts\":8}", "num_experts is 8", "1", NULL);
  config_refuse("{" SMALL_FIELDS("hunyuan_v1_dense") ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1.0,"
                "\"alpha\":-1}}", "alpha is -1", "above 0", NULL);
  config_accept("{" SMALL_FIELDS("cwm") "}", &model);
  assert_true(model.windowed.bits[0] == 14 && model.window == 8192); /* the first layer of four is whole */
  assert_true(model.rope_scale_factor == 16 && model.rope_original_context == 8192 && model.rope_base == 1e6f);
  config_accept("{" SMALL_FIELDS("jais2") "}", &model);
  assert_true(model.biases == (LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP) && model.norm_eps == 1e-5f);
  config_accept("{" SMALL_FIELDS("internlm3") ",\"qkv_bias\":true,\"bias\":true}", &model);
  assert_true(model.biases == (LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP) && model.head_dim == 128);
  config_refuse("{" SMALL_FIELDS("internlm3") ",\"qkv_bias\":true,\"bias\":false}", "attention_bias is true",
                "mlp_bias", NULL);
}

#define NEO_FIELDS \
  "\"model_type\":\"gpt_neo\",\"hidden_size\":48,\"num_layers\":3,\"num_heads\":4,\"vocab_size\":160"

/* GPT-Neo states the types of its layers as repetitions; StarCoder 1 has one head of keys and values, or all. */
static void families_with_learned_positions_are_read(void **state)
{
  struct lade_model model;
  config_accept("{" NEO_FIELDS "}", &model);
  assert_true(model.window == 256 && model.windowed.bits[0] == 2 && model.attention_scale == 1 && model.hidden == 192);
  config_accept("{" NEO_FIELDS ",\"window_size\":5,\"attention_types\":[[[\"local\",\"global\"],1],[[\"local\"],1]]}",
                &model);
  assert_true(model.window == 5 && model.windowed.bits[0] == 5);
  config_refuse("{" NEO_FIELDS ",\"attention_types\":[[[\"global\",\"local\"],12]]}", "attention_types", "each layer",
                NULL);
  config_refuse("{" NEO_FIELDS ",\"attention_types\":[[[\"global\"],2]]}", "attention_types", "num_layers", NULL);
  config_refuse("{" NEO_FIELDS ",\"attention_types\":[[[\"sparse\"],3]]}", "attention_types", "\"local\"", NULL);
  config_refuse("{" NEO_FIELDS ",\"attention_types\":[7]}", "attention_types", "repetitions", NULL);
  config_refuse("{" NEO_FIELDS ",\"window_size\":0}", "window_size is 0", "from 1", NULL);
  const char *const code = "\"model_type\":\"gpt_bigcode\",\"n_positions\":64,\"n_embd\":48,\"n_layer\":2,"
                           "\"n_head\":4,\"vocab_size\":160";
  char text[512];
  snprintf(text, sizeof(text), "{%s}", code);
  config_accept(text, &model);
  assert_true(model.n_kv_heads == 1 && model.hidden == 192 && model.is_tied);
  snprintf(text, sizeof(text), "{%s,\"multi_query\":false,\"n_inner\":80}", code);
  config_accept(text, &model);
  assert_true(model.n_kv_heads == 4 && model.hidden == 80);
  snprintf(text, sizeof(text), "{%s,\"scale_attn_weights\":false}", code);
  config_refuse(text, "scale_attn_weights is false", "true", NULL);
}

static void absurd_configs_are_refused_naming_the_field(void **state)
{
  config_refuse("{\"model_type\":\"gpt2\"}", "vocab_size is missing", "whole number", NULL);
  config_refuse("{}", "model_type is missing", "one of gpt2, llama, mistral", NULL);
  config_refuse("{\"model_type\":\"mamba\"}", "model_type is \"mamba\"", "internlm3; to plan alone, mixtral, ",
                "deepseek_v3");
  config_refuse("{\"model_type\":7}", "model_type is 7", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_head\":7}", "not JSON", "duplicate", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":-4}", "n_inner is -4", "from 1", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":1e18}", "n_inner is 1", "whole number", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":1000000000000000000}", "n_inner is 1000000000000000000", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":99999999999999999999}", "not JSON", "line 1", NULL);
  config_refuse("{" GPT2_FIELDS ",\"n_inner\":\"3072\"}", "n_inner is \"3072\"", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"activation_function\":\"tanh\"}", "activation_function is \"tanh\"",
                "gelu_new", NULL);
  config_refuse("{" GPT2_FIELDS ",\"layer_norm_epsilon\":-1}", "layer_norm_epsilon is -1", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"layer_norm_epsilon\":[]}", "layer_norm_epsilon is []", "number", NULL);
  config_refuse("{" GPT2_FIELDS ",\"scale_attn_weights\":false}", "scale_attn_weights is false", NULL, NULL);
  config_refuse("{" GPT2_FIELDS ",\"tie_word_embeddings\":1}", "tie_word_embeddings is 1", "true or false", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":0}", "head_dim is 0", "from 1", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":-128}", "head_dim is -128", "from 1", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":63}", "head_dim is 63", "even", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"head_dim\":1048576}", "head_dim is 1048576", "1 to 32768", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"hidden_act\":\"mish\"}", "hidden_act is \"mish\"", "silu", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"attention_bias\":1}", "attention_bias is 1", "true or false", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_theta\":0.5}", "rope_theta is 0.5", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_theta\":1e300}", "rope_theta", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":3}", "rope_scaling is 3", "object", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"mrope\",\"factor\":2}}",
                "rope_scaling.type is \"mrope\"", "llama3", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}",
                "rope_scaling.factor is 0.5",
                "from 1 up", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":1}}",
                "beta_fast is 1",
                "slow < fast", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}",
                "short_factor is [1]",
                "a list of", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"pad_token_id\":1000000}", "pad_token_id is 1000000", "below", NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}", "rope_scaling.factor is missing",
                NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("0") "}", "rope_scaling.factor is 0", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("-3") "}", "rope_scaling.factor is -3", NULL, NULL);
  config_refuse("[1,2]", "not a JSON object", NULL, NULL);
  config_refuse("{\"model_type\":\"a\\nb\\u001b[31m\"}", "model_type is \"a\\nb", NULL, NULL);
  config_refuse("", "not JSON", NULL, NULL);
}

/* Computation of other families is never silently left out; its neutral value, and null, request nothing. */
static void features_of_other_families_are_refused_unless_off(void **state)
{
  static const struct {
    const char *name, *off, *on;
  } fields[] = {
      {"sliding_window", "null", "4096"},          {"partial_rotary_factor", "1.0", "0.5"},
      {"rope_interleaved", "false", "true"},       {"query_pre_attn_scalar", "null", "256"},
      {"attention_multiplier", "null", "0.0078"},  {"embedding_multiplier", "1.0", "12"},
      {"residual_multiplier", "1", "0.22"},        {"logits_scaling", "1.0", "8.0"},
      {"logit_scale", "1", "0.0625"},              {"attn_logit_softcapping", "null", "50.0"},
      {"final_logit_softcapping", "null", "30.0"}, {"clip_qkv", "null", "8.0"},
      {"use_qk_norm", "false", "true"},            {"qk_layernorm", "false", "true"},
      {"qkv_bias", "false", "true"},               {"parallel_attn", "false", "true"},
      {"use_parallel_residual", "false", "true"},  {"multi_query", "false", "true"},
      {"num_experts", "0", "64"},                  {"num_local_experts", "null", "8"},
      {"n_routed_experts", "null", "160"},         {"quantization_config", "null", "{\"bits\":4}"},
      {"no_rope_layers", "[]", "[1,1,1,0]"},       {"is_encoder_decoder", "false", "true"},
      {"alibi", "false", "true"},
  };
  const char *const families[] = {GPT2_FIELDS, LLAMA_FIELDS};
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    for (size_t k = 0; k < LADE_COUNT(families); k++) {
      struct lade_model model;
      char text[512], words[64];
      snprintf(text, sizeof(text), "{%s,\"%s\":%s}", families[k], fields[i].name, fields[i].off);
      config_accept(text, &model);
      snprintf(text, sizeof(text), "{%s,\"%s\":%s}", families[k], fields[i].name, fields[i].on);
      snprintf(words, sizeof(words), "%s is ", fields[i].name);
      config_refuse(text, words, "null in a model of this type", NULL);
    }
  }
  struct lade_model model;
  config_accept("{" LLAMA_FIELDS ",\"sliding_window\":4096,\"use_sliding_window\":false}", &model);
  config_refuse("{" LLAMA_FIELDS ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}",
                "rope_parameters.partial_rotary_factor is 0.25", NULL, NULL);
  config_refuse("{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("8.0") ",\"rope_parameters\":{\"rope_type\":\"default\"}}",
                "rope_parameters is {", "null beside rope_scaling", NULL);
}

/* Try every bad size in @format, which has one %s. */
static void sizes_refuse(const char *format, const char *field)
{
  const char *const values[] = {"0", "-1", "-9223372036854775808", "9223372036854775807", "1e18", "0.5", "null",
                                "true", "\"12\"", "{}"};
  for (size_t i = 0; i < LADE_COUNT(values); i++) {
    char text[512];
    snprintf(text, sizeof(text), format, values[i]);
    config_refuse(text, field, "expected", NULL);
  }
}

static void every_size_field_is_checked(void **state)
{
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":%s,\"n_embd\":8,\"n_layer\":1,\"n_head\":1,\"vocab_size\":9}",
               "n_positions");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":%s,\"n_layer\":1,\"n_head\":1,\"vocab_size\":9}",
               "n_embd");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":%s,\"n_head\":1,\"vocab_size\":9}",
               "n_layer");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":1,\"n_head\":%s,\"vocab_size\":9}",
               "n_head");
  sizes_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":1,\"n_head\":1,\"vocab_size\":%s}",
               "vocab_size");
  config_refuse("{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":768,\"n_layer\":1,\"n_head\":7,"
                "\"vocab_size\":9}",
                "n_head is 7", "divisor of n_embd, 768", NULL);
  config_refuse("{\"model_type\":\"llama\",\"max_position_embeddings\":8,\"hidden_size\":12,\"num_hidden_layers\":1,"
                "\"intermediate_size\":9,\"num_attention_heads\":4,\"num_key_value_heads\":1,\"vocab_size\":9}",
                "hidden_size / num_attention_heads is 3", "even", NULL);
  config_refuse("{\"model_type\":\"llama\",\"max_position_embeddings\":8,\"hidden_size\":16,\"num_hidden_layers\":1,"
                "\"intermediate_size\":9,\"num_attention_heads\":4,\"num_key_value_heads\":3,\"vocab_size\":9}",
                "num_key_value_heads is 3", "divisor of num_attention_heads, 4", NULL);
}

static void files_that_are_no_configs_are_refused(void **state)
{
  struct lade_model model;
  struct lade_error error = {0};
  assert_int_equal(lade_model_load("/nonexistent/config.json", &model, &error), -ENOENT);
  assert_non_null(strstr(error.text, "/nonexistent/config.json"));
  char pipe[] = "/tmp/lade-config-XXXXXX"; /* without a writer: a reader that waits for one hangs */
  assert_non_null(mkdtemp(pipe));
  char path[64];
  snprintf(path, sizeof(path), "%s/config.json", pipe);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(lade_model_load(path, &model, &error), -EINVAL);
  assert_non_null(strstr(error.text, "not a regular file"));
  assert_int_equal(lade_model_load(pipe, &model, &error), -EINVAL); /* a directory's config.json is meant */
  assert_non_null(strstr(error.text, "/config.json: not a regular file"));
  unlink(path);
  assert_int_equal(lade_model_load(pipe, &model, &error), -ENOENT);
  const char good[] = "{" LLAMA_FIELDS "}";
  assert_int_equal(lade_file_replace(path, good, strlen(good), NULL), 0);
  assert_int_equal(lade_model_load(pipe, &model, &error), 0);
  unlink(path);
  rmdir(pipe);
  for (size_t n = 0; n + 2 < sizeof(good); n++) /* every truncation */
    assert_int_equal(config_load(good, n, &model, &error), -EBADMSG);
  char *deep = malloc(1 << 20);
  assert_non_null(deep);
  memset(deep, '[', 1 << 20);
  assert_int_equal(config_load(deep, 1 << 20, &model, &error), -EBADMSG);
  for (int i = 0; i < 1 << 20; i++)
    deep[i] = (char)(i * 2654435761u >> 24);
  assert_int_equal(config_load(deep, 1 << 20, &model, &error), -EBADMSG);
  free(deep);
}

/* Random damage to a good file is refused, or gives a model that passes its own check. */
static void damaged_configs_never_give_a_bad_model(void **state)
{
  const char good[] = "{" LLAMA_FIELDS ",\"rope_theta\":500000.0,\"rope_scaling\":" ROPE3("8.0") "}";
  int n_accepted = 0;
  for (uint32_t i = 0; i < 2000; i++) {
    char text[sizeof(good)];
    memcpy(text, good, sizeof(good));
    for (uint32_t j = 0; j <= i % 3; j++) {
      uint32_t word = lade_philox_word(5, i, j, 0);
      text[word % (sizeof(good) - 1)] = "0123456789-+.eE,:\"{}[]nul "[(word >> 16) % 27];
    }
    struct lade_model model;
    struct lade_error error = {0};
    int rc = config_load(text, strlen(text), &model, &error);
    assert_true(rc == 0 || ((rc == -EINVAL || rc == -EBADMSG) && error.text[0]));
    if (rc == 0) {
      assert_int_equal(lade_model_check(&model, NULL), 0);
      assert_true(lade_model_n_params(&model) > 0);
      n_accepted++;
    }
  }
  assert_true(n_accepted > 0 && n_accepted < 2000);
}

static void reading_out_of_memory_is_an_error_without_a_leak(void **state)
{
  char path[] = "/tmp/lade-config-XXXXXX";
  const char text[] = "{" LLAMA_FIELDS ",\"rope_scaling\":" ROPE3("8.0") "}";
  int fd = mkstemp(path), rc = -ENOMEM, n;
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
  json_set_alloc_funcs(__wrap_malloc, free);
  for (n = 1; rc < 0; n++) {
    struct lade_model model;
    struct lade_error error = {0};
    allocations_left = n;
    rc = lade_model_load(path, &model, &error);
    allocations_left = -1;
    /* jansson's lexer reports a failed allocation as an invalid token */
    assert_true(rc == 0 || rc == -ENOMEM || rc == -EBADMSG);
    assert_true(rc == 0 || error.text[0]);
  }
  json_set_alloc_funcs(malloc, free);
  unlink(path);
  assert_true(n > 10);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(configs_of_both_families_give_the_published_models),
      cmocka_unit_test(configs_of_images_and_text_give_the_model_of_the_text),
      cmocka_unit_test(models_with_alibi_are_read_and_their_other_forms_refused),
      cmocka_unit_test(families_of_known_ops_are_read_and_their_other_forms_refused),
      cmocka_unit_test(variants_of_llama_are_read),
      cmocka_unit_test(families_with_learned_positions_are_read),
      cmocka_unit_test(absurd_configs_are_refused_naming_the_field),
      cmocka_unit_test(every_size_field_is_checked),
      cmocka_unit_test(features_of_other_families_are_refused_unless_off),
      cmocka_unit_test(files_that_are_no_configs_are_refused),
      cmocka_unit_test(damaged_configs_never_give_a_bad_model),
      cmocka_unit_test(reading_out_of_memory_is_an_error_without_a_leak),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
