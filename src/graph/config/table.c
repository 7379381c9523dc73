/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of each family's fields in config.json, the values that transformers' configuration classes give absent
 * ones, and the names of activations.
 */
#include <stddef.h>
#include <string.h>

#include "base/base.h"
#include "graph/config/config.h"

#define USUAL_LABELS(eps) \
  .sizes = {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", \
            "intermediate_size", "max_position_embeddings", "vocab_size", eps}
#define WHOLE_SIZES(eps) USUAL_LABELS(eps), .activation = "hidden_act" /* heads share the width */
#define SIZES(eps) WHOLE_SIZES(eps), .has_head_dim = true
#define ATTENTION_BIAS .attention_biases = LADE_BIAS_QKV | LADE_BIAS_OUT
#define GLM \
  SIZES("rms_norm_eps"), .attention_biases = LADE_BIAS_QKV, .has_attention_bias = true, .norm_eps = 1.5625e-7f, \
  .rope_theta = 10000, .pad_token = 151329, .n_kv_heads = 2, .head_dim = 128, .context = 131072, .partial_rotary = 0.5f
#define GEMMA2 \
  USUAL_LABELS("rms_norm_eps"), .activation = "hidden_activation", .has_head_dim = true, ATTENTION_BIAS, \
  .norm_eps = 1e-6f, .is_tied = true, .n_kv_heads = 4, .head_dim = 256, .window = 4096, \
  .windows = CONFIG_WINDOWS_BY_TYPE

static const struct config_fields families[LADE_N_FAMILIES] = {
    [LADE_GPT2] = {.sizes = {"n_layer", "n_head", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size",
                             "layer_norm_epsilon"}, .activation = "activation_function", .hidden_of_width = 4,
                   .norm_eps = 1e-5f, .is_tied = true, .pad_token = -1},
    [LADE_LLAMA] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .has_mlp_bias = true, .norm_eps = 1e-6f,
                    .rope_theta = 10000, .pad_token = -1},
    [LADE_MISTRAL] = {SIZES("rms_norm_eps"), .norm_eps = 1e-6f, .rope_theta = 10000, .pad_token = -1, .n_kv_heads = 8,
                      .window = 4096, .windows = CONFIG_WINDOWS_ALL},
    [LADE_MINISTRAL] = {SIZES("rms_norm_eps"), .norm_eps = 1e-6f, .rope_theta = 10000, .pad_token = -1,
                        .n_kv_heads = 8, .window = 4096, .windows = CONFIG_WINDOWS_BY_TYPE},
    [LADE_QWEN2] = {SIZES("rms_norm_eps"), .norm_eps = 1e-6f, .rope_theta = 10000, .pad_token = -1, .n_kv_heads = 32,
                    .window = 4096, .windows = CONFIG_WINDOWS_BY_TYPE, .has_window_switch = true},
    [LADE_QWEN3] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-6f, .rope_theta = 10000, .pad_token = -1,
                    .n_kv_heads = 32, .head_dim = 128, .window = 4096, .windows = CONFIG_WINDOWS_BY_TYPE,
                    .has_window_switch = true},
    [LADE_GEMMA] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-6f, .rope_theta = 10000, .is_tied = true,
                    .n_kv_heads = 16, .head_dim = 256},
    [LADE_GEMMA2] = {GEMMA2, .rope_theta = 10000, .window_period = 2},
    [LADE_GEMMA3] = {GEMMA2, .rope_theta = 1000000, .local_theta = 10000, .context = 131072, .window_period = 6,
                     .has_window_pattern = true},
    [LADE_PHI3] = {SIZES("rms_norm_eps"), .norm_eps = 1e-5f, .rope_theta = 10000, .pad_token = 32000,
                   .windows = CONFIG_WINDOWS_ALL, .partial_rotary = 1},
    [LADE_OLMO2] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-5f, .rope_theta = 10000, .pad_token = 1},
    [LADE_SMOLLM3] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .has_mlp_bias = true, .norm_eps = 1e-6f,
                      .rope_theta = 2000000, .is_tied = true, .pad_token = 128004, .n_kv_heads = 4,
                      .windows = CONFIG_WINDOWS_BY_TYPE, .has_window_switch = true},
    [LADE_STARCODER2] = {SIZES("norm_epsilon"), .norm_eps = 1e-5f, .rope_theta = 10000, .is_tied = true,
                         .pad_token = -1, .n_kv_heads = 2, .windows = CONFIG_WINDOWS_ALL},
    [LADE_GPT_NEOX] = {.sizes = {"num_hidden_layers", "num_attention_heads", "num_attention_heads", "hidden_size",
                                 "intermediate_size", "max_position_embeddings", "vocab_size", "layer_norm_eps"},
                       .activation = "hidden_act", ATTENTION_BIAS, .has_attention_bias = true, .norm_eps = 1e-5f,
                       .rope_theta = 10000, .pad_token = -1, .partial_rotary = 0.25f},
    [LADE_FALCON] = {.sizes = {"num_hidden_layers", "num_attention_heads", "num_kv_heads", "hidden_size",
                               "ffn_hidden_size", "max_position_embeddings", "vocab_size", "layer_norm_epsilon"},
                     .activation = "activation", .norm_eps = 1e-5f, .rope_theta = 10000, .is_tied = true,
                     .pad_token = -1, .hidden_of_width = 4, .context = 2048},
    [LADE_MPT] = {.sizes = {"n_layers", "n_heads", "n_heads", "d_model", "hidden width", "max_seq_len", "vocab_size",
                            "layer_norm_epsilon"}, .norm_eps = 1e-5f, .is_tied = true, .pad_token = -1,
                  .hidden_of_width = 4, .is_hidden_fixed = true, .context = 2048},
    [LADE_BLOOM] = {.sizes = {"n_layer", "n_head", "n_head", "hidden_size", "hidden width", "seq_length", "vocab_size",
                              "layer_norm_epsilon"}, .norm_eps = 1e-5f, .is_tied = true, .pad_token = -1,
                    .hidden_of_width = 4, .is_hidden_fixed = true, .context = 2048},
    [LADE_MINISTRAL3] = {SIZES("rms_norm_eps"), .norm_eps = 1e-5f, .rope_theta = 1000000, .pad_token = 11,
                         .n_kv_heads = 8, .head_dim = 128, .context = 262144, .windows = CONFIG_WINDOWS_ALL},
    [LADE_OLMO3] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-5f, .rope_theta = 500000,
                    .local_theta = 500000, .pad_token = 1,
                    .window = 4096, .windows = CONFIG_WINDOWS_BY_TYPE, .window_period = 4},
    [LADE_SEED_OSS] = {SIZES("rms_norm_eps"), .attention_biases = LADE_BIAS_QKV, .has_attention_bias = true,
                       .has_mlp_bias = true, .norm_eps = 1e-6f, .rope_theta = 10000, .pad_token = 1, .n_kv_heads = 8,
                       .head_dim = 128, .context = 524288},
    [LADE_ARCEE] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .has_mlp_bias = true, .norm_eps = 1e-5f,
                    .rope_theta = 10000, .pad_token = -1},
    [LADE_EXAONE4] = {SIZES("rms_norm_eps"), .norm_eps = 1e-5f, .rope_theta = 10000, .pad_token = -1, .n_kv_heads = 32,
                      .window = 4096, .windows = CONFIG_WINDOWS_BY_TYPE, .window_period = 4, .has_window_pattern = true,
                      .turns_windowed = true, .turns_unwindowed = true},
    [LADE_STABLELM] = {WHOLE_SIZES("layer_norm_eps"), .norm_eps = 1e-5f, .rope_theta = 10000, .pad_token = -1,
                       .n_kv_heads = 32, .partial_rotary = 0.25f},
    [LADE_NEMOTRON] = {SIZES("norm_eps"), ATTENTION_BIAS, .has_mlp_bias = true, .norm_eps = 1e-5f, .rope_theta = 10000,
                       .pad_token = -1, .partial_rotary = 0.5f},
    [LADE_VAULTGEMMA] = {GEMMA2, .rope_theta = 10000, .window_period = 2},
    [LADE_GRANITE] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .has_mlp_bias = true, .norm_eps = 1e-6f,
                      .rope_theta = 10000, .pad_token = -1},
    [LADE_HELIUM] = {SIZES("rms_norm_eps"), .attention_biases = LADE_BIAS_QKV, .has_mlp_bias = true, .norm_eps = 1e-8f,
                     .rope_theta = 100000, .pad_token = 3, .n_kv_heads = 20, .head_dim = 128},
    [LADE_ERNIE4_5] = {SIZES("rms_norm_eps"), .norm_eps = 1e-5f, .rope_theta = 500000, .is_tied = true,
                       .n_kv_heads = 2, .head_dim = 128, .context = 131072},
    [LADE_GLM] = {GLM},
    [LADE_GLM4] = {GLM},
    [LADE_COHERE] = {SIZES("layer_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-5f, .rope_theta = 500000, .is_tied = true},
    [LADE_COHERE2] = {SIZES("layer_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-5f, .rope_theta = 10000,
                      .is_tied = true, .window = 4096, .windows = CONFIG_WINDOWS_BY_TYPE, .window_period = 4,
                      .has_window_pattern = true, .turns_windowed = true},
    [LADE_GPT_NEO] = {.sizes = {"num_layers", "num_heads", "num_heads", "hidden_size", "intermediate_size",
                                "max_position_embeddings", "vocab_size", "layer_norm_epsilon"},
                      .activation = "activation_function", .hidden_of_width = 4, .norm_eps = 1e-5f, .is_tied = true,
                      .pad_token = -1, .context = 2048},
    [LADE_GPT_BIGCODE] = {.sizes = {"n_layer", "n_head", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size",
                                    "layer_norm_epsilon"}, .activation = "activation_function", .hidden_of_width = 4,
                          .norm_eps = 1e-5f, .is_tied = true, .pad_token = -1},
    [LADE_HUNYUAN] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .norm_eps = 1e-6f, .rope_theta = 10000, .context = 2048},
    [LADE_CWM] = {SIZES("rms_norm_eps"), .has_mlp_bias = true, .norm_eps = 1e-5f, .rope_theta = 1000000,
                  .pad_token = -1, .n_kv_heads = 8, .head_dim = 128, .context = 131072, .window = 8192,
                  .windows = CONFIG_WINDOWS_BY_TYPE, .window_period = 4, .is_unwindowed_first = true},
    [LADE_JAIS2] = {SIZES("layer_norm_eps"), ATTENTION_BIAS, .has_attention_bias = true, .has_mlp_bias = true,
                    .is_mlp_biased = true, .norm_eps = 1e-5f, .rope_theta = 10000, .pad_token = -1, .context = 8192},
    [LADE_INTERNLM3] = {SIZES("rms_norm_eps"), ATTENTION_BIAS, .has_mlp_bias = true, .norm_eps = 1e-5f,
                        .rope_theta = 10000, .pad_token = 2, .n_kv_heads = 2, .head_dim = 128, .context = 32768},
};

const struct config_fields *config_fields_get(enum lade_family family)
{
  return &families[family];
}

/* ---- activations ---- */

static const struct {
  const char *name;
  enum lade_activation activation;
} activations[] = {{"silu", LADE_SILU},       {"gelu_new", LADE_GELU_TANH}, {"gelu_pytorch_tanh", LADE_GELU_TANH},
                   {"gelu", LADE_GELU_ERF},   {"quick_gelu", LADE_GELU_QUICK}, {"relu", LADE_RELU},
                   {"relu2", LADE_RELU_SQUARED}, {"swish", LADE_SILU}, {"gelu_fast", LADE_GELU_TANH}};

const char *config_activation_name(enum lade_activation activation)
{
  for (size_t i = 0; i < LADE_COUNT(activations); i++)
    if (activations[i].activation == activation)
      return activations[i].name;
  return "silu";
}

enum lade_activation config_activation_find(const char *name)
{
  for (size_t i = 0; i < LADE_COUNT(activations); i++)
    if (strcmp(activations[i].name, name) == 0)
      return activations[i].activation;
  return LADE_ACTIVATION_USUAL;
}
