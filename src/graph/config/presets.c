/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models by name. `nano` is nanoGPT's character-level CPU configuration and `baby` its GPU one; both take their
 * vocabulary from the data. The gpt2 sizes are OpenAI's. The llama3 sizes are Meta's: 405b is Llama 3.1; 8b and 70b are
 * as first released, with context 8192 and no frequency scaling. Those of gpt3-175b and gpt-1t are from Table 1 of
 * Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021). Tests
 * compare the parameter counts with the published ones.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "graph/config/config.h"
#include "graph/experts.h"

/* A GPT-2 model: hidden is four times the width, and the head is tied. */
#define GPT2(layers_, heads_, width_, context_, vocabulary_) \
  .family = LADE_GPT2, .layers = layers_, .heads = heads_, .n_kv_heads = heads_, .width = width_, \
  .hidden = 4 * (width_), .context = context_, .vocabulary = vocabulary_, .is_tied = true, .norm_eps = 1e-5f
#define LLAMA3(layers_, heads_, width_, hidden_, context_) \
  .family = LADE_LLAMA, .layers = layers_, .heads = heads_, .n_kv_heads = 8, .width = width_, .hidden = hidden_, \
  .context = context_, .vocabulary = 128256, .norm_eps = 1e-5f, .rope_base = 500000
#define LLAMA31_SCALING \
  .rope_scale_factor = 8, .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_context = 8192

static const struct lade_model presets[] = {
    {.name = "nano", GPT2(4, 4, 128, 64, 256), .takes_vocabulary = true},
    {.name = "baby", GPT2(6, 6, 384, 256, 256), .takes_vocabulary = true},
    {.name = "gpt2-124m", GPT2(12, 12, 768, 1024, 50257)},
    {.name = "gpt2-350m", GPT2(24, 16, 1024, 1024, 50257)},
    {.name = "gpt2-774m", GPT2(36, 20, 1280, 1024, 50257)},
    {.name = "gpt2-1.5b", GPT2(48, 25, 1600, 1024, 50257)},
    {.name = "llama3-8b", LLAMA3(32, 32, 4096, 14336, 8192)},
    {.name = "llama3-70b", LLAMA3(80, 64, 8192, 28672, 8192)},
    {.name = "llama3-405b", LLAMA3(126, 128, 16384, 53248, 131072), LLAMA31_SCALING},
    {.name = "llama3.1-8b", LLAMA3(32, 32, 4096, 14336, 131072), LLAMA31_SCALING},
    {.name = "llama3.1-70b", LLAMA3(80, 64, 8192, 28672, 131072), LLAMA31_SCALING},
    {.name = "gpt3-175b", GPT2(96, 96, 12288, 2048, 51200)},
    {.name = "gpt-1t", GPT2(128, 160, 25600, 2048, 51200)},
};

#define CEREBRAS(layers_, heads_, width_) \
  "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu\",\"n_layer\":" #layers_ ",\"n_head\":" #heads_ \
  ",\"n_embd\":" #width_ ",\"n_positions\":2048,\"vocab_size\":50257}"

#define GRANITE3_FORM \
  "\"vocab_size\":49155,\"max_position_embeddings\":131072,\"rope_theta\":5e6,\"rms_norm_eps\":1e-5," \
  "\"tie_word_embeddings\":true,\"embedding_multiplier\":12,\"residual_multiplier\":0.22"
#define GLM4_SIZES "\"hidden_size\":4096,\"intermediate_size\":13696,\"vocab_size\":151552"
#define OLMO3_FORM \
  "\"max_position_embeddings\":65536,\"rms_norm_eps\":1e-6,\"pad_token_id\":100277," \
  "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":8192," \
  "\"beta_fast\":32,\"beta_slow\":1,\"attention_factor\":1.2079441541679836}"
#define EXAONE4_SCALING \
  "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":16,\"low_freq_factor\":1,\"high_freq_factor\":4," \
  "\"original_max_position_embeddings\":8192}"

/* Presets of other families, as the fields of a config.json besides those of the usual sizes. */
static const struct {
  const char *name, *text;
} texts[] = {
    {"llama2-7b", "{\"model_type\":\"llama\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":32,\"hidden_size\":4096,\"intermediate_size\":11008,\"vocab_size\":32000,"
     "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5}"},
    {"llama2-13b", "{\"model_type\":\"llama\",\"num_hidden_layers\":40,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":40,\"hidden_size\":5120,\"intermediate_size\":13824,\"vocab_size\":32000,"
     "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-05}"},
    {"llama2-70b", "{\"model_type\":\"llama\",\"num_hidden_layers\":80,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":8,\"hidden_size\":8192,\"intermediate_size\":28672,\"vocab_size\":32000,"
     "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5}"},
    {"llama3.2-1b", "{\"model_type\":\"llama\",\"num_hidden_layers\":16,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":2048,\"intermediate_size\":8192,\"vocab_size\":128256,"
     "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,"
     "\"tie_word_embeddings\":true,"
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":8192}}"},
    {"llama3.2-3b", "{\"model_type\":\"llama\",\"num_hidden_layers\":28,\"num_attention_heads\":24,"
     "\"num_key_value_heads\":8,\"hidden_size\":3072,\"intermediate_size\":8192,\"vocab_size\":128256,"
     "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,"
     "\"tie_word_embeddings\":true,"
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":8192}}"},
    {"mistral-7b", "{\"model_type\":\"mistral\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":4096,\"intermediate_size\":14336,"
     "\"vocab_size\":32000,\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-5}"},
    {"mistral-nemo-12b", "{\"model_type\":\"mistral\",\"num_hidden_layers\":40,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"hidden_size\":5120,"
     "\"intermediate_size\":14336,\"vocab_size\":131072,\"max_position_embeddings\":131072,"
     "\"head_dim\":128,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5,\"sliding_window\":null}"},
    {"mistral-small-24b", "{\"model_type\":\"mistral\",\"num_hidden_layers\":40,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"hidden_size\":5120,"
     "\"intermediate_size\":32768,\"vocab_size\":131072,\"max_position_embeddings\":32768,"
     "\"head_dim\":128,\"rope_theta\":1e8,\"rms_norm_eps\":1e-5,\"sliding_window\":null}"},
    {"mistral-large-123b", "{\"model_type\":\"mistral\",\"num_hidden_layers\":88,"
     "\"num_attention_heads\":96,\"num_key_value_heads\":8,\"hidden_size\":12288,"
     "\"intermediate_size\":28672,\"vocab_size\":32768,\"max_position_embeddings\":131072,"
     "\"head_dim\":128,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5,\"sliding_window\":null}"},
    {"qwen2.5-0.5b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":24,\"num_attention_heads\":14,"
     "\"num_key_value_heads\":2,\"hidden_size\":896,\"intermediate_size\":4864,"
     "\"vocab_size\":151936,\"max_position_embeddings\":32768,\"rope_theta\":1e6,\"tie_word_embeddings\":true}"},
    {"qwen2.5-1.5b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":28,\"num_attention_heads\":12,"
     "\"num_key_value_heads\":2,\"hidden_size\":1536,\"intermediate_size\":8960,"
     "\"vocab_size\":151936,\"max_position_embeddings\":131072,\"rope_theta\":1e6,\"tie_word_embeddings\":true}"},
    {"qwen2.5-3b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":36,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":2,\"hidden_size\":2048,\"intermediate_size\":11008,\"vocab_size\":151936,"
     "\"max_position_embeddings\":32768,\"rope_theta\":1e6,\"tie_word_embeddings\":true}"},
    {"qwen2.5-7b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":28,\"num_attention_heads\":28,"
     "\"num_key_value_heads\":4,\"hidden_size\":3584,\"intermediate_size\":18944,"
     "\"vocab_size\":152064,\"max_position_embeddings\":131072,\"rope_theta\":1e6}"},
    {"qwen2.5-14b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":48,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":13824,\"vocab_size\":152064,"
     "\"max_position_embeddings\":131072,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}"},
    {"qwen2.5-32b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":64,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":27648,\"vocab_size\":152064,"
     "\"max_position_embeddings\":131072,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}"},
    {"qwen2.5-72b", "{\"model_type\":\"qwen2\",\"num_hidden_layers\":80,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":8,\"hidden_size\":8192,\"intermediate_size\":29568,\"vocab_size\":152064,"
     "\"max_position_embeddings\":131072,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}"},
    {"qwen3-0.6b", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":28,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"hidden_size\":1024,\"intermediate_size\":3072,"
     "\"vocab_size\":151936,\"max_position_embeddings\":40960,\"rope_theta\":1e6,\"tie_word_embeddings\":true}"},
    {"qwen3-1.7b", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":28,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"hidden_size\":2048,\"intermediate_size\":6144,\"vocab_size\":151936,"
     "\"max_position_embeddings\":40960,\"rope_theta\":1000000,\"tie_word_embeddings\":true}"},
    {"qwen3-4b", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":36,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":2560,\"intermediate_size\":9728,\"vocab_size\":151936,"
     "\"max_position_embeddings\":40960,\"rope_theta\":1e6,\"head_dim\":128,\"tie_word_embeddings\":true}"},
    {"qwen3-8b", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":36,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":4096,\"intermediate_size\":12288,"
     "\"vocab_size\":151936,\"max_position_embeddings\":40960,\"rope_theta\":1e6}"},
    {"qwen3-14b", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":40,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":17408,\"vocab_size\":151936,"
     "\"max_position_embeddings\":40960,\"rope_theta\":1e6,\"head_dim\":128}"},
    {"qwen3-32b", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":64,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":25600,\"vocab_size\":151936,"
     "\"max_position_embeddings\":40960,\"rope_theta\":1e6,\"head_dim\":128}"},
    {"gemma-2b", "{\"model_type\":\"gemma\",\"num_hidden_layers\":18,\"num_attention_heads\":8,"
     "\"num_key_value_heads\":1,\"hidden_size\":2048,\"intermediate_size\":16384,\"vocab_size\":256000,"
     "\"max_position_embeddings\":8192}"},
    {"gemma-7b", "{\"model_type\":\"gemma\",\"num_hidden_layers\":28,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":16,\"hidden_size\":3072,\"intermediate_size\":24576,\"vocab_size\":256000,"
     "\"max_position_embeddings\":8192}"},
    {"gemma2-2b", "{\"model_type\":\"gemma2\",\"num_hidden_layers\":26,\"num_attention_heads\":8,"
     "\"num_key_value_heads\":4,\"hidden_size\":2304,\"intermediate_size\":9216,"
     "\"vocab_size\":256000,\"max_position_embeddings\":8192}"},
    {"gemma2-9b", "{\"model_type\":\"gemma2\",\"num_hidden_layers\":42,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":8,\"hidden_size\":3584,\"intermediate_size\":14336,"
     "\"vocab_size\":256000,\"max_position_embeddings\":8192}"},
    {"gemma2-27b", "{\"model_type\":\"gemma2\",\"num_hidden_layers\":46,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":16,\"hidden_size\":4608,\"intermediate_size\":36864,\"vocab_size\":256000,"
     "\"max_position_embeddings\":8192,\"head_dim\":128,\"query_pre_attn_scalar\":144}"},
    {"gemma3-270m", "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":18,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":1,\"hidden_size\":640,\"intermediate_size\":2048,\"vocab_size\":262144,"
     "\"max_position_embeddings\":32768,\"sliding_window\":512}"},
    {"gemma3-1b", "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":26,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":1,\"hidden_size\":1152,\"intermediate_size\":6912,"
     "\"vocab_size\":262144,\"max_position_embeddings\":32768,\"sliding_window\":512}"},
    {"phi3-mini", "{\"model_type\":\"phi3\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":32,\"hidden_size\":3072,\"intermediate_size\":8192,"
     "\"vocab_size\":32064,\"max_position_embeddings\":4096,\"sliding_window\":2047}"},
    {"phi3-medium", "{\"model_type\":\"phi3\",\"num_hidden_layers\":40,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":10,\"hidden_size\":5120,\"intermediate_size\":17920,\"vocab_size\":32064,"
     "\"max_position_embeddings\":4096,\"sliding_window\":2047}"},
    {"phi4", "{\"model_type\":\"phi3\",\"num_hidden_layers\":40,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":10,\"hidden_size\":5120,\"intermediate_size\":17920,"
     "\"vocab_size\":100352,\"max_position_embeddings\":16384,\"rope_theta\":250000,\"pad_token_id\":100349}"},
    {"olmo2-1b", "{\"model_type\":\"olmo2\",\"num_hidden_layers\":16,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":16,\"hidden_size\":2048,\"intermediate_size\":8192,"
     "\"vocab_size\":100352,\"max_position_embeddings\":4096,\"rope_theta\":500000,\"rms_norm_eps\":1e-6,"
     "\"pad_token_id\":100277}"},
    {"olmo2-7b", "{\"model_type\":\"olmo2\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":32,\"hidden_size\":4096,\"intermediate_size\":11008,"
     "\"vocab_size\":100352,\"max_position_embeddings\":4096,\"rope_theta\":500000,\"rms_norm_eps\":1e-6,"
     "\"pad_token_id\":100277}"},
    {"olmo2-13b", "{\"model_type\":\"olmo2\",\"num_hidden_layers\":40,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":40,\"hidden_size\":5120,\"intermediate_size\":13824,\"vocab_size\":100352,"
     "\"max_position_embeddings\":4096,\"rope_theta\":500000,\"rms_norm_eps\":1e-06,"
     "\"pad_token_id\":100277}"},
    {"olmo2-32b", "{\"model_type\":\"olmo2\",\"num_hidden_layers\":64,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":27648,\"vocab_size\":100352,"
     "\"max_position_embeddings\":4096,\"rope_theta\":500000,\"rms_norm_eps\":1e-06,"
     "\"pad_token_id\":100277}"},
    {"smollm3-3b", "{\"model_type\":\"smollm3\",\"num_hidden_layers\":36,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":4,\"hidden_size\":2048,\"intermediate_size\":11008,"
     "\"vocab_size\":128256,\"max_position_embeddings\":65536,\"rope_theta\":5e6}"},
    {"starcoder2-3b", "{\"model_type\":\"starcoder2\",\"num_hidden_layers\":30,\"num_attention_heads\":24,"
     "\"num_key_value_heads\":2,\"hidden_size\":3072,\"intermediate_size\":12288,"
     "\"vocab_size\":49152,\"max_position_embeddings\":16384,\"rope_theta\":999999.4420358813,"
     "\"sliding_window\":4096}"},
    {"starcoder2-7b", "{\"model_type\":\"starcoder2\",\"num_hidden_layers\":32,"
     "\"num_attention_heads\":36,\"num_key_value_heads\":4,\"hidden_size\":4608,"
     "\"intermediate_size\":18432,\"vocab_size\":49152,\"max_position_embeddings\":16384,"
     "\"rope_theta\":1e6,\"sliding_window\":4096}"},
    {"starcoder2-15b", "{\"model_type\":\"starcoder2\",\"num_hidden_layers\":40,"
     "\"num_attention_heads\":48,\"num_key_value_heads\":4,\"hidden_size\":6144,"
     "\"intermediate_size\":24576,\"vocab_size\":49152,\"max_position_embeddings\":16384,"
     "\"rope_theta\":100000,\"sliding_window\":4096,\"tie_word_embeddings\":false}"},
    {"pythia-70m", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":6,\"num_attention_heads\":8,\"hidden_size\":512,"
     "\"intermediate_size\":2048,\"vocab_size\":50304,\"max_position_embeddings\":2048}"},
    {"pythia-160m", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":12,\"num_attention_heads\":12,"
     "\"hidden_size\":768,\"intermediate_size\":3072,"
     "\"vocab_size\":50304,\"max_position_embeddings\":2048}"},
    {"pythia-410m", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":24,\"num_attention_heads\":16,"
     "\"hidden_size\":1024,\"intermediate_size\":4096,\"vocab_size\":50304,"
     "\"max_position_embeddings\":2048}"},
    {"pythia-1b", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":16,\"num_attention_heads\":8,"
     "\"hidden_size\":2048,\"intermediate_size\":8192,\"vocab_size\":50304,"
     "\"max_position_embeddings\":2048}"},
    {"pythia-1.4b", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":24,\"num_attention_heads\":16,"
     "\"hidden_size\":2048,\"intermediate_size\":8192,"
     "\"vocab_size\":50304,\"max_position_embeddings\":2048}"},
    {"pythia-2.8b", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"hidden_size\":2560,\"intermediate_size\":10240,\"vocab_size\":50304,"
     "\"max_position_embeddings\":2048}"},
    {"pythia-6.9b", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"hidden_size\":4096,\"intermediate_size\":16384,"
     "\"vocab_size\":50432,\"max_position_embeddings\":2048}"},
    {"pythia-12b", "{\"model_type\":\"gpt_neox\",\"num_hidden_layers\":36,\"num_attention_heads\":40,"
     "\"hidden_size\":5120,\"intermediate_size\":20480,\"vocab_size\":50688,"
     "\"max_position_embeddings\":2048}"},
    {"falcon-7b", "{\"model_type\":\"falcon\",\"num_hidden_layers\":32,\"num_attention_heads\":71,"
     "\"hidden_size\":4544,\"vocab_size\":65024}"},
    {"falcon-40b", "{\"model_type\":\"falcon\",\"num_hidden_layers\":60,\"num_attention_heads\":128,"
     "\"num_kv_heads\":8,\"hidden_size\":8192,\"vocab_size\":65024,\"new_decoder_architecture\":true}"},
    {"falcon-rw-1b", "{\"model_type\":\"falcon\",\"num_hidden_layers\":24,\"num_attention_heads\":32,"
     "\"hidden_size\":2048,\"vocab_size\":50304,\"alibi\":true,\"bias\":true,\"multi_query\":false,"
     "\"parallel_attn\":false}"},
    {"falcon2-11b", "{\"model_type\":\"falcon\",\"num_hidden_layers\":60,\"num_attention_heads\":32,"
     "\"num_kv_heads\":8,\"hidden_size\":4096,\"ffn_hidden_size\":16384,\"vocab_size\":65024,"
     "\"max_position_embeddings\":8192,\"rope_theta\":500042,\"new_decoder_architecture\":true,"
     "\"num_ln_in_parallel_attn\":1,\"tie_word_embeddings\":false}"},
    {"mpt-7b", "{\"model_type\":\"mpt\",\"n_layers\":32,\"n_heads\":32,\"d_model\":4096,"
     "\"vocab_size\":50432}"},
    {"mpt-30b", "{\"model_type\":\"mpt\",\"n_layers\":48,\"n_heads\":64,\"d_model\":7168,"
     "\"max_seq_len\":8192,\"vocab_size\":50432}"},
    {"bloom-560m", "{\"model_type\":\"bloom\",\"n_layer\":24,\"n_head\":16,\"n_embed\":1024,"
     "\"vocab_size\":250880}"},
    {"bloom-7b1", "{\"model_type\":\"bloom\",\"n_layer\":30,\"n_head\":32,\"n_embed\":4096,"
     "\"vocab_size\":250880}"},
    {"bloom-176b", "{\"model_type\":\"bloom\",\"n_layer\":70,\"n_head\":112,\"n_embed\":14336,"
     "\"vocab_size\":250880}"},
    {"ministral3-3b", "{\"model_type\":\"ministral3\",\"num_hidden_layers\":26,\"num_attention_heads\":32,"
     "\"hidden_size\":3072,\"intermediate_size\":9216,\"vocab_size\":131072,"
     "\"tie_word_embeddings\":true}"},
    {"ministral3-8b", "{\"model_type\":\"ministral3\",\"num_hidden_layers\":34,\"num_attention_heads\":32,"
     "\"hidden_size\":4096,\"intermediate_size\":14336,\"vocab_size\":131072}"},
    {"ministral3-14b", "{\"model_type\":\"ministral3\",\"num_hidden_layers\":40,\"num_attention_heads\":32,"
     "\"hidden_size\":5120,\"intermediate_size\":16384,\"vocab_size\":131072,"
     "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e9,\"factor\":16,"
     "\"original_max_position_embeddings\":16384,\"mscale\":1,\"mscale_all_dim\":1,"
     "\"llama_4_scaling_beta\":0.1}}"},
    {"olmo3-7b", "{\"model_type\":\"olmo3\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":32,\"hidden_size\":4096,\"intermediate_size\":11008,\"vocab_size\":100278,"
     OLMO3_FORM "}"},
    {"olmo3-32b", "{\"model_type\":\"olmo3\",\"num_hidden_layers\":64,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":27648,\"vocab_size\":100278,"
     OLMO3_FORM "}"},
    {"seed-oss-36b", "{\"model_type\":\"seed_oss\",\"num_hidden_layers\":64,\"num_attention_heads\":80,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":27648,\"vocab_size\":155136,"
     "\"rope_theta\":1e7}"},
    {"exaone4-1.2b", "{\"model_type\":\"exaone4\",\"num_hidden_layers\":30,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":2048,\"intermediate_size\":4096,\"vocab_size\":102400,"
     "\"max_position_embeddings\":65536,\"head_dim\":64,\"sliding_window\":null,\"rope_theta\":1e6,"
     "\"tie_word_embeddings\":true," EXAONE4_SCALING "}"},
    {"exaone4-32b", "{\"model_type\":\"exaone4\",\"num_hidden_layers\":64,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":27392,\"vocab_size\":102400,"
     "\"max_position_embeddings\":131072,\"head_dim\":128,\"rope_theta\":1e6," EXAONE4_SCALING "}"},
    {"stablelm-3b", "{\"model_type\":\"stablelm\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":32,\"hidden_size\":2560,\"intermediate_size\":6912,\"vocab_size\":50304,"
     "\"max_position_embeddings\":4096}"},
    {"minitron-4b", "{\"model_type\":\"nemotron\",\"num_hidden_layers\":32,\"num_attention_heads\":24,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"hidden_size\":3072,\"intermediate_size\":9216,"
     "\"vocab_size\":256000,\"max_position_embeddings\":4096}"},
    {"vaultgemma-1b", "{\"model_type\":\"vaultgemma\",\"num_hidden_layers\":26,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":4,\"hidden_size\":1152,\"intermediate_size\":6912,\"vocab_size\":256000,"
     "\"max_position_embeddings\":1024,\"sliding_window\":512}"},
    {"granite3-2b", "{\"model_type\":\"granite\",\"num_hidden_layers\":40,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":2048,\"intermediate_size\":8192,\"attention_multiplier\":0.015625,"
     "\"logits_scaling\":8," GRANITE3_FORM "}"},
    {"granite3-8b", "{\"model_type\":\"granite\",\"num_hidden_layers\":40,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":4096,\"intermediate_size\":12800,"
     "\"attention_multiplier\":0.0078125,\"logits_scaling\":16," GRANITE3_FORM "}"},
    {"ernie4.5-0.3b", "{\"model_type\":\"ernie4_5\",\"num_hidden_layers\":18,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":2,\"hidden_size\":1024,\"intermediate_size\":3072,\"vocab_size\":103424}"},
    {"glm4-9b", "{\"model_type\":\"glm\",\"num_hidden_layers\":40,\"num_attention_heads\":32," GLM4_SIZES "}"},
    {"glm4-9b-0414", "{\"model_type\":\"glm4\",\"num_hidden_layers\":40,\"num_attention_heads\":32," GLM4_SIZES
     ",\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-5}"},
    {"command-r-35b", "{\"model_type\":\"cohere\",\"num_hidden_layers\":40,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":64,\"hidden_size\":8192,\"intermediate_size\":22528,\"vocab_size\":256000,"
     "\"max_position_embeddings\":131072,\"rope_theta\":8e6}"},
    {"command-r7b", "{\"model_type\":\"cohere2\",\"num_hidden_layers\":32,\"num_attention_heads\":32,"
     "\"num_key_value_heads\":8,\"hidden_size\":4096,\"intermediate_size\":14336,\"vocab_size\":256000,"
     "\"max_position_embeddings\":132096,\"rope_theta\":50000,\"logit_scale\":0.25}"},
    {"cerebras-gpt-111m", CEREBRAS(10, 12, 768)},   {"cerebras-gpt-256m", CEREBRAS(14, 17, 1088)},
    {"cerebras-gpt-590m", CEREBRAS(18, 12, 1536)},  {"cerebras-gpt-1.3b", CEREBRAS(24, 16, 2048)},
    {"cerebras-gpt-2.7b", CEREBRAS(32, 32, 2560)},  {"cerebras-gpt-6.7b", CEREBRAS(32, 32, 4096)},
    {"cerebras-gpt-13b", CEREBRAS(40, 40, 5120)},
};

const char *lade_model_preset_name(int i)
{
  const int n_presets = (int)LADE_COUNT(presets), n_texts = (int)LADE_COUNT(texts);
  if (i < 0 || i >= n_presets + n_texts)
    return NULL;
  return i < n_presets ? presets[i].name : texts[i - n_presets].name;
}

/* Return the name of preset @i of all models, those of experts last; NULL past the end. */
static const char *any_name(int i)
{
  const int n = (int)(LADE_COUNT(presets) + LADE_COUNT(texts));
  return i < n ? lade_model_preset_name(i) : lade_experts_preset_name(i - n);
}

/* True if @a and @b are of one family of presets: their names are equal up to the size. */
static bool is_of_family(const char *a, const char *b)
{
  const size_t length = strcspn(a, "-");
  return length == strcspn(b, "-") && strncmp(a, b, length) == 0;
}

/* Set @error to the names of the family that @name begins with, or else to the names of families. -ENOENT. */
static int name_refuse(const char *name, struct lade_error *error)
{
  char names[450] = "";
  bool is_known = false;
  const char *one, *before = "";
  for (int i = 0; (one = any_name(i)) != NULL; i++)
    is_known |= is_of_family(name, one);
  for (int i = 0; (one = any_name(i)) != NULL; before = one, i++) {
    const size_t used = strlen(names), length = strcspn(one, "-");
    if (is_known ? is_of_family(name, one) : !is_of_family(before, one))
      snprintf(names + used, sizeof(names) - used, "%s%.*s%s", used ? ", " : "", (int)(is_known ? strlen(one) : length),
               one, !is_known && one[length] ? "-*" : "");
  }
  return lade_error_set(error, -ENOENT, "no model named '%.64s': expected the path of a config.json, or one of %s",
                        name, names);
}

int lade_model_preset(const char *name, struct lade_model *ret_model, struct lade_error *error)
{
  for (size_t i = 0; i < LADE_COUNT(presets); i++)
    if (strcmp(presets[i].name, name) == 0) {
      *ret_model = presets[i];
      return 0;
    }
  for (size_t i = 0; i < LADE_COUNT(texts); i++) {
    if (strcmp(texts[i].name, name) != 0)
      continue;
    struct lade_model model;
    int rc = config_text_read(name, texts[i].text, strlen(texts[i].text), &model, error);
    if (rc < 0)
      return rc;
    snprintf(model.name, sizeof(model.name), "%s", name);
    *ret_model = model;
    return 0;
  }
  for (int i = 0; lade_experts_preset_name(i); i++) {
    if (strcmp(lade_experts_preset_name(i), name) == 0)
      return lade_experts_refuse(name, error);
  }
  return name_refuse(name, error);
}
