/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of families, and the facts that follow from a row and a model.
 *
 * Sources: the configuration and modeling files of HuggingFace's transformers 4 and 5, which define the names and the
 * arithmetic. A new family whose ops exist is a row here, a row of fields in config/table.c, and its test.
 */
#include "graph/family.h"

#include <string.h>

#include "base/base.h"

#define LLAMA_NAMES_BUT_WIDE \
  .prefix = "model.", .layers = "layers.", .table = "embed_tokens", .final_norm = "norm", .head = "lm_head", \
  .qkv = "self_attn.qkv_proj", .query = "self_attn.q_proj", .key = "self_attn.k_proj", .value = "self_attn.v_proj", \
  .out = "self_attn.o_proj", .down = "mlp.down_proj", .table_name = "tokens", .norm_op = "input_norm", \
  .final_op = "norm", .has_pad = true
#define LLAMA_NAMES \
  LLAMA_NAMES_BUT_WIDE, .wide = "mlp.gate_up_proj", .gate = "mlp.gate_proj", .up = "mlp.up_proj"
#define UNGATED_NAMES LLAMA_NAMES_BUT_WIDE, .wide = "mlp.up_proj"
#define LLAMA_NORMS .norm_1 = "input_layernorm", .norm_2 = "post_attention_layernorm"
#define FUSED_NAMES LLAMA_NAMES_BUT_WIDE, .wide = "mlp.gate_up_proj"
#define COHERE \
  .norm = LADE_NORM_LAYER, .is_gated = true, .activation = LADE_SILU, .is_rope_interleaved = true, LLAMA_NAMES, \
  .norm_1 = "input_layernorm"
#define POST_NORMS .post_1 = "post_attention_layernorm", .post_2 = "post_feedforward_layernorm"
#define QK_NORMS .query_norm = "self_attn.q_norm", .key_norm = "self_attn.k_norm"
#define GEMMA_NORMS \
  .norm_1 = "input_layernorm", .post_1 = "post_attention_layernorm", .norm_2 = "pre_feedforward_layernorm", \
  .post_2 = "post_feedforward_layernorm"
#define GPT2_NAMES \
  .norm = LADE_NORM_LAYER, .has_positions = true, .activation = LADE_GELU_TANH, .prefix = "transformer.", \
  .layers = "h.", .table = "wte", .positions = "wpe", .final_norm = "ln_f", .head = "lm_head", .norm_1 = "ln_1", \
  .norm_2 = "ln_2", .wide = "mlp.c_fc", .down = "mlp.c_proj", .table_name = "wte", .norm_op = "ln_1", \
  .final_op = "ln_f"
#define SWIGLU .norm = LADE_NORM_RMS, .is_gated = true, .activation = LADE_SILU

static const struct lade_family_row rows[LADE_N_FAMILIES] = {
    [LADE_GPT2] = {.model_type = "gpt2", .architecture = "GPT2LMHeadModel", GPT2_NAMES, .biases = LADE_BIAS_ALL,
                   .is_transposed = true, .qkv = "attn.c_attn", .out = "attn.c_proj"},
    [LADE_LLAMA] = {.model_type = "llama", .architecture = "LlamaForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS},
    [LADE_MISTRAL] = {.model_type = "mistral", .architecture = "MistralForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS},
    [LADE_MINISTRAL] = {.model_type = "ministral", .architecture = "MinistralForCausalLM", SWIGLU, LLAMA_NAMES,
                        LLAMA_NORMS},
    [LADE_QWEN2] = {.model_type = "qwen2", .architecture = "Qwen2ForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS,
                    .biases = LADE_BIAS_QKV},
    [LADE_QWEN3] = {.model_type = "qwen3", .architecture = "Qwen3ForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS,
                    QK_NORMS, .qk_norm = LADE_QK_NORM_HEAD},
    [LADE_GEMMA] = {.model_type = "gemma", .architecture = "GemmaForCausalLM", .norm = LADE_NORM_RMS,
                    .is_gated = true, .activation = LADE_GELU_TANH, .norm_offset = 1, LLAMA_NAMES, LLAMA_NORMS},
    [LADE_GEMMA2] = {.model_type = "gemma2", .architecture = "Gemma2ForCausalLM", .norm = LADE_NORM_RMS,
                     .is_gated = true, .activation = LADE_GELU_TANH, .norm_offset = 1, .place = LADE_NORMS_AROUND,
                     LLAMA_NAMES, GEMMA_NORMS},
    [LADE_GEMMA3] = {.model_type = "gemma3_text", .architecture = "Gemma3ForCausalLM", .norm = LADE_NORM_RMS,
                     .is_gated = true, .activation = LADE_GELU_TANH, .norm_offset = 1, .place = LADE_NORMS_AROUND,
                     .qk_norm = LADE_QK_NORM_HEAD, LLAMA_NAMES, GEMMA_NORMS, QK_NORMS},
    [LADE_PHI3] = {.model_type = "phi3", .architecture = "Phi3ForCausalLM", SWIGLU, LLAMA_NORMS, .has_pad = true,
                   .prefix = "model.", .layers = "layers.", .table = "embed_tokens", .final_norm = "norm",
                   .head = "lm_head", .qkv = "self_attn.qkv_proj", .out = "self_attn.o_proj",
                   .wide = "mlp.gate_up_proj", .down = "mlp.down_proj", .table_name = "tokens",
                   .norm_op = "input_norm", .final_op = "norm"},
    [LADE_OLMO2] = {.model_type = "olmo2", .architecture = "Olmo2ForCausalLM", SWIGLU, LLAMA_NAMES, QK_NORMS,
                    .place = LADE_NORMS_AFTER, .qk_norm = LADE_QK_NORM_WIDTH, POST_NORMS},
    [LADE_SMOLLM3] = {.model_type = "smollm3", .architecture = "SmolLM3ForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS},
    [LADE_STARCODER2] = {.model_type = "starcoder2", .architecture = "Starcoder2ForCausalLM", .norm = LADE_NORM_LAYER,
                         .biases = LADE_BIAS_NORM, .activation = LADE_GELU_TANH, LLAMA_NORMS, .has_pad = true,
                         .prefix = "model.", .layers = "layers.", .table = "embed_tokens", .final_norm = "norm",
                         .head = "lm_head", .qkv = "self_attn.qkv_proj", .query = "self_attn.q_proj",
                         .key = "self_attn.k_proj", .value = "self_attn.v_proj", .out = "self_attn.o_proj",
                         .wide = "mlp.c_fc", .down = "mlp.c_proj", .table_name = "tokens", .norm_op = "input_norm",
                         .final_op = "norm"},
    [LADE_GPT_NEOX] = {.model_type = "gpt_neox", .architecture = "GPTNeoXForCausalLM", .norm = LADE_NORM_LAYER,
                       .biases = LADE_BIAS_NORM | LADE_BIAS_MLP, .activation = LADE_GELU_ERF, LLAMA_NORMS,
                       .is_qkv_by_group = true, .prefix = "gpt_neox.", .layers = "layers.", .table = "embed_in",
                       .final_norm = "final_layer_norm", .head = "embed_out", .qkv = "attention.query_key_value",
                       .out = "attention.dense", .wide = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h",
                       .table_name = "tokens", .norm_op = "input_norm", .final_op = "norm"},
    [LADE_FALCON] = {.model_type = "falcon", .architecture = "FalconForCausalLM", .norm = LADE_NORM_LAYER,
                     .biases = LADE_BIAS_NORM, .activation = LADE_GELU_ERF, LLAMA_NORMS, .is_qkv_by_group = true,
                     .prefix = "transformer.", .layers = "h.", .table = "word_embeddings", .final_norm = "ln_f",
                     .head = "lm_head", .qkv = "self_attention.query_key_value", .out = "self_attention.dense",
                     .wide = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h", .table_name = "tokens",
                     .norm_op = "input_norm", .final_op = "norm"},
    [LADE_MPT] = {.model_type = "mpt", .architecture = "MptForCausalLM", .norm = LADE_NORM_LAYER,
                  .activation = LADE_GELU_ERF, .prefix = "transformer.", .layers = "blocks.", .table = "wte",
                  .final_norm = "norm_f", .head = "lm_head", .norm_1 = "norm_1", .norm_2 = "norm_2",
                  .qkv = "attn.Wqkv", .out = "attn.out_proj", .wide = "ffn.up_proj", .down = "ffn.down_proj",
                  .table_name = "tokens", .norm_op = "input_norm", .final_op = "norm"},
    [LADE_BLOOM] = {.model_type = "bloom", .architecture = "BloomForCausalLM", .norm = LADE_NORM_LAYER,
                    .biases = LADE_BIAS_ALL, .activation = LADE_GELU_TANH, LLAMA_NORMS, .is_qkv_by_group = true,
                    .prefix = "transformer.", .layers = "h.", .table = "word_embeddings",
                    .table_norm = "word_embeddings_layernorm", .final_norm = "ln_f", .head = "lm_head",
                    .qkv = "self_attention.query_key_value", .out = "self_attention.dense",
                    .wide = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h", .table_name = "tokens",
                    .norm_op = "input_norm", .final_op = "norm"},
    [LADE_MINISTRAL3] = {.model_type = "ministral3", .architecture = "Ministral3ForCausalLM", SWIGLU, LLAMA_NAMES,
                         LLAMA_NORMS},
    [LADE_OLMO3] = {.model_type = "olmo3", .architecture = "Olmo3ForCausalLM", SWIGLU, LLAMA_NAMES, QK_NORMS,
                    .place = LADE_NORMS_AFTER, .qk_norm = LADE_QK_NORM_WIDTH, POST_NORMS},
    [LADE_SEED_OSS] = {.model_type = "seed_oss", .architecture = "SeedOssForCausalLM", SWIGLU, LLAMA_NAMES,
                       LLAMA_NORMS},
    [LADE_ARCEE] = {.model_type = "arcee", .architecture = "ArceeForCausalLM", .norm = LADE_NORM_RMS,
                    .activation = LADE_RELU_SQUARED, UNGATED_NAMES, LLAMA_NORMS},
    [LADE_EXAONE4] = {.model_type = "exaone4", .architecture = "Exaone4ForCausalLM", SWIGLU, LLAMA_NAMES, QK_NORMS,
                      .place = LADE_NORMS_AFTER, .qk_norm = LADE_QK_NORM_HEAD, POST_NORMS},
    [LADE_STABLELM] = {.model_type = "stablelm", .architecture = "StableLmForCausalLM", .norm = LADE_NORM_LAYER,
                       .is_gated = true, .activation = LADE_SILU, .biases = LADE_BIAS_NORM, LLAMA_NAMES, LLAMA_NORMS},
    [LADE_NEMOTRON] = {.model_type = "nemotron", .architecture = "NemotronForCausalLM", .norm = LADE_NORM_LAYER,
                       .norm_offset = 1, .activation = LADE_RELU_SQUARED, .biases = LADE_BIAS_NORM, UNGATED_NAMES,
                       LLAMA_NORMS},
    [LADE_VAULTGEMMA] = {.model_type = "vaultgemma", .architecture = "VaultGemmaForCausalLM", .norm = LADE_NORM_RMS,
                         .is_gated = true, .activation = LADE_GELU_TANH, .norm_offset = 1, LLAMA_NAMES,
                         .norm_1 = "input_layernorm", .norm_2 = "pre_feedforward_layernorm"},
    [LADE_GRANITE] = {.model_type = "granite", .architecture = "GraniteForCausalLM", SWIGLU, LLAMA_NAMES,
                      LLAMA_NORMS},
    [LADE_HELIUM] = {.model_type = "helium", .architecture = "HeliumForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS,
                     .is_rope_interleaved = true},
    [LADE_ERNIE4_5] = {.model_type = "ernie4_5", .architecture = "Ernie4_5ForCausalLM", SWIGLU, LLAMA_NAMES,
                       LLAMA_NORMS, .is_rope_interleaved = true},
    [LADE_GLM] = {.model_type = "glm", .architecture = "GlmForCausalLM", SWIGLU, FUSED_NAMES, LLAMA_NORMS,
                  .is_rope_interleaved = true},
    [LADE_GLM4] = {.model_type = "glm4", .architecture = "Glm4ForCausalLM", SWIGLU, FUSED_NAMES, LLAMA_NORMS,
                   .is_rope_interleaved = true, .place = LADE_NORMS_AROUND, .post_1 = "post_self_attn_layernorm",
                   .post_2 = "post_mlp_layernorm"},
    [LADE_COHERE] = {.model_type = "cohere", .architecture = "CohereForCausalLM", COHERE},
    [LADE_COHERE2] = {.model_type = "cohere2", .architecture = "Cohere2ForCausalLM", COHERE},
    [LADE_GPT_NEO] = {.model_type = "gpt_neo", .architecture = "GPTNeoForCausalLM", GPT2_NAMES,
                      .biases = LADE_BIAS_OUT | LADE_BIAS_MLP | LADE_BIAS_NORM, .qkv = "attn.attention.qkv_proj",
                      .query = "attn.attention.q_proj", .key = "attn.attention.k_proj",
                      .value = "attn.attention.v_proj", .out = "attn.attention.out_proj"},
    [LADE_GPT_BIGCODE] = {.model_type = "gpt_bigcode", .architecture = "GPTBigCodeForCausalLM", GPT2_NAMES,
                          .biases = LADE_BIAS_ALL, .is_qkv_by_group = true, .qkv = "attn.c_attn",
                          .out = "attn.c_proj"},
    [LADE_HUNYUAN] = {.model_type = "hunyuan_v1_dense", .architecture = "HunYuanDenseV1ForCausalLM", SWIGLU,
                      LLAMA_NAMES, LLAMA_NORMS, .qk_norm = LADE_QK_NORM_HEAD, .is_rope_first = true,
                      .query_norm = "self_attn.query_layernorm", .key_norm = "self_attn.key_layernorm"},
    [LADE_CWM] = {.model_type = "cwm", .architecture = "CwmForCausalLM", SWIGLU, LLAMA_NAMES, LLAMA_NORMS},
    [LADE_JAIS2] = {.model_type = "jais2", .architecture = "Jais2ForCausalLM", .norm = LADE_NORM_LAYER,
                    .activation = LADE_RELU_SQUARED, .biases = LADE_BIAS_NORM, UNGATED_NAMES, LLAMA_NORMS},
    [LADE_INTERNLM3] = {.model_type = "internlm3", .architecture = "InternLM3ForCausalLM", SWIGLU, LLAMA_NAMES,
                        LLAMA_NORMS},
};

const struct lade_family_row *lade_family_get(enum lade_family family)
{
  LADE_ASSERT((unsigned)family < LADE_N_FAMILIES);
  return &rows[family];
}

int lade_family_find(const char *model_type)
{
  for (int i = 0; i < LADE_N_FAMILIES; i++)
    if (strcmp(rows[i].model_type, model_type) == 0)
      return i;
  return -1;
}

bool lade_model_has_bias(const struct lade_model *model, enum lade_bias bias)
{
  return ((lade_family_get(model->family)->biases | model->biases) & bias) == bias;
}

enum lade_activation lade_model_activation(const struct lade_model *model)
{
  return model->activation ? model->activation : lade_family_get(model->family)->activation;
}

bool lade_model_has_rope(const struct lade_model *model)
{
  return !lade_family_get(model->family)->has_positions && model->alibi_max == 0;
}

bool lade_model_layer_has_rope(const struct lade_model *model, int64_t i_layer)
{
  return lade_model_has_rope(model) && !lade_layer_set_has(&model->unrotated, i_layer);
}

int64_t lade_model_rotary_dim(const struct lade_model *model)
{
  return model->rotary_dim ? model->rotary_dim : lade_model_head_dim(model);
}

float lade_model_logit_factor(const struct lade_model *model)
{
  if (!(model->logit_scale > 0))
    return 1;
  return model->family == LADE_GRANITE ? 1 / model->logit_scale : model->logit_scale;
}

bool lade_model_has_gelu(const struct lade_model *model)
{
  return !lade_family_get(model->family)->is_gated && lade_model_activation(model) == LADE_GELU_TANH;
}

int lade_model_layer_n_norms(const struct lade_model *model)
{
  if (model->n_parallel_norms)
    return model->n_parallel_norms;
  return lade_family_get(model->family)->place == LADE_NORMS_AROUND ? 4 : 2;
}

int lade_model_layer_n_tensors(const struct lade_model *model)
{
  const struct lade_family_row *row = lade_family_get(model->family);
  int n = lade_model_layer_n_norms(model) * (1 + lade_model_has_bias(model, LADE_BIAS_NORM));
  n += 1 + lade_model_has_bias(model, LADE_BIAS_QKV) + 1 + lade_model_has_bias(model, LADE_BIAS_OUT);
  n += 2 * (1 + lade_model_has_bias(model, LADE_BIAS_MLP));
  return n + (row->qk_norm ? 2 : 0) + model->has_sinks;
}

/* qkv, attention, out; wide, activation, down; two residuals, one of them possibly with a norm. */
#define BRANCH_OPS 8

int lade_model_layer_n_ops(const struct lade_model *model, int64_t i_layer)
{
  const struct lade_family_row *row = lade_family_get(model->family);
  bool is_fused = !model->n_parallel_norms && row->place != LADE_NORMS_AFTER;
  return BRANCH_OPS + lade_model_layer_n_norms(model) - is_fused + (row->qk_norm != LADE_QK_NORM_NONE) +
         lade_model_layer_has_rope(model, i_layer) + (model->qkv_clip > 0) + (model->residual_scale > 0 ? 2 : 0);
}
