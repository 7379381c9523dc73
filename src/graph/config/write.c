/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writer of a model's config.json, such that lade_model_load reads the same model and transformers computes it. Fields
 * that transformers would give another default are always written, null included.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "graph/config/config.h"
#include "graph/model_json.h"

/* Return the number with the fewest digits that is @value in FP32. */
static json_t *number_json(float value)
{
  char text[32];
  int n_digits = 1;
  do
    snprintf(text, sizeof(text), "%.*g", n_digits, (double)value);
  while (strtof(text, NULL) != value && ++n_digits <= 9);
  return json_real(strtod(text, NULL));
}

/* A root under construction; is_bad once memory ran out. */
struct root {
  json_t *json;
  bool is_bad;
};

/* Put a value, which is consumed. */
static void put(struct root *root, const char *name, json_t *value)
{
  if (!value || json_object_set_new(root->json, name, value))
    root->is_bad = true;
}

static void put_integer(struct root *root, const char *name, int64_t value)
{
  put(root, name, json_integer(value));
}

static json_t *factors_json(const float *factors, int64_t n)
{
  json_t *list = json_array();
  for (int64_t i = 0; i < n && list; i++)
    if (json_array_append_new(list, number_json(factors[i]))) {
      json_decref(list);
      list = NULL;
    }
  return list;
}

static json_t *llama3_json(const struct lade_model *model)
{
  return json_pack("{s:s,s:o,s:o,s:o,s:I}", "rope_type", "llama3", "factor", number_json(model->rope_scale_factor),
                   "low_freq_factor", number_json(model->rope_low_freq_factor), "high_freq_factor",
                   number_json(model->rope_high_freq_factor), "original_max_position_embeddings",
                   (json_int_t)model->rope_original_context);
}

static json_t *rope_json(const struct lade_model *model)
{
  const int64_t n = lade_model_rotary_dim(model) / 2;
  switch (model->rope_kind) {
  case LADE_ROPE_LINEAR:
  case LADE_ROPE_DYNAMIC:
    return json_pack("{s:s,s:o}", "rope_type", model->rope_kind == LADE_ROPE_LINEAR ? "linear" : "dynamic", "factor",
                     number_json(model->rope_scale_factor));
  case LADE_ROPE_YARN:
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:b,s:I}", "rope_type", "yarn", "factor",
                     number_json(model->rope_scale_factor), "attention_factor", number_json(model->rope_magnitude),
                     "beta_fast", number_json(model->rope_beta_fast), "beta_slow", number_json(model->rope_beta_slow),
                     "truncate", (int)!model->rope_is_untruncated, "original_max_position_embeddings",
                     (json_int_t)model->rope_original_context);
  case LADE_ROPE_LONGROPE:
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:I}", "rope_type", "longrope", "factor",
                     number_json(model->rope_scale_factor), "attention_factor", number_json(model->rope_magnitude),
                     "short_factor", factors_json(model->rope_short_factors, n), "long_factor",
                     factors_json(model->rope_long_factors, n), "original_max_position_embeddings",
                     (json_int_t)model->rope_original_context);
  default: return model->rope_scale_factor == 0 ? json_null() : llama3_json(model);
  }
}

/*
 * Put the form of the angles. A Ministral 3 or a CWM that states none has another than the plain one, so theirs is
 * always written; Ministral 3 has the temperature of attention there.
 */
static void rope_form_put(struct root *root, const struct lade_model *model)
{
  json_t *form = rope_json(model);
  if (model->family != LADE_MINISTRAL3 && model->family != LADE_CWM) {
    put(root, "rope_scaling", form);
    return;
  }
  struct root object = {.json = json_is_object(form) ? form : json_pack("{s:s}", "rope_type", "default")};
  if (object.json != form)
    json_decref(form);
  put(&object, "rope_theta", number_json(model->rope_base));
  if (model->family == LADE_MINISTRAL3) {
    put(&object, "llama_4_scaling_beta", number_json(model->attention_temperature_beta));
    put_integer(&object, "original_max_position_embeddings", LADE_MAX(model->rope_original_context, 1));
  }
  root->is_bad |= object.is_bad;
  put(root, "rope_parameters", object.json);
}

/* Put the angles of layers of both types (OLMo 3). */
static void rope_types_put(struct root *root, const struct lade_model *model)
{
  json_t *form = rope_json(model);
  struct root full = {.json = json_is_object(form) ? form : json_pack("{s:s}", "rope_type", "default")};
  if (full.json != form)
    json_decref(form);
  put(&full, "rope_theta", number_json(model->rope_base));
  root->is_bad |= full.is_bad;
  put(root, "rope_parameters",
      json_pack("{s:o,s:{s:s,s:o}}", "full_attention", full.json, "sliding_attention", "rope_type", "default",
                "rope_theta", number_json(model->rope_local_base)));
}

static void rope_put(struct root *root, const struct lade_model *model)
{
  const double factor = (double)lade_model_rotary_dim(model) / (double)lade_model_head_dim(model);
  if (model->family == LADE_OLMO3) {
    rope_types_put(root, model);
    return;
  }
  if (model->family == LADE_GPT_NEOX) {
    put(root, "rotary_emb_base", number_json(model->rope_base));
    put(root, "rotary_pct", json_real(factor));
  } else {
    put(root, "rope_theta", number_json(model->rope_base));
  }
  if (config_fields_get(model->family)->partial_rotary > 0 && model->family != LADE_GPT_NEOX)
    put(root, "partial_rotary_factor", json_real(factor));
  if (model->family == LADE_PHI3) {
    put_integer(root, "original_max_position_embeddings",
                model->rope_original_context ? model->rope_original_context : model->context);
  }
  if (model->family == LADE_GEMMA3)
    put(root, "rope_local_base_freq", number_json(model->rope_local_base));
  rope_form_put(root, model);
}

static void windows_put(struct root *root, const struct lade_model *model)
{
  const struct config_fields *fields = config_fields_get(model->family);
  json_t *types = json_array();
  put(root, "sliding_window", model->window ? json_integer(model->window) : json_null());
  if (fields->has_window_switch)
    put(root, "use_sliding_window", json_boolean(model->window > 0));
  for (int64_t i = 0; i < model->layers && types; i++) {
    const bool is_windowed = model->window && lade_layer_set_has(&model->windowed, i);
    if (json_array_append_new(types, json_string(is_windowed ? "sliding_attention" : "full_attention")))
      root->is_bad = true;
  }
  if (fields->windows == CONFIG_WINDOWS_ALL)
    json_decref(types);
  else
    put(root, "layer_types", types);
}

static void biases_put(struct root *root, const struct lade_model *model)
{
  const bool has_out = lade_model_has_bias(model, LADE_BIAS_OUT), has_mlp = lade_model_has_bias(model, LADE_BIAS_MLP);
  const bool has_qkv = lade_model_has_bias(model, LADE_BIAS_QKV);
  const struct config_fields *fields = config_fields_get(model->family);
  if (fields->attention_biases)
    put(root, "attention_bias", json_boolean(has_qkv));
  if (fields->has_mlp_bias)
    put(root, "mlp_bias", json_boolean(has_mlp));
  switch (model->family) {
  case LADE_STARCODER2:
  case LADE_ERNIE4_5: put(root, "use_bias", json_boolean(has_out)); break;
  case LADE_FALCON: put(root, "bias", json_boolean(has_out)); break;
  case LADE_SEED_OSS: put(root, "attention_out_bias", json_boolean(has_out)); break;
  case LADE_STABLELM: put(root, "use_qkv_bias", json_boolean(has_qkv)); break;
  default: break;
  }
}

static void mpt_put(struct root *root, const struct lade_model *model)
{
  put(root, "attn_config",
      json_pack("{s:b,s:i,s:s,s:o,s:o}", "alibi", 1, "alibi_bias_max", 8, "attn_type", "multihead_attention",
                "clip_qkv", model->qkv_clip > 0 ? number_json(model->qkv_clip) : json_null(), "softmax_scale",
                model->attention_scale > 0 ? number_json(model->attention_scale) : json_null()));
  put_integer(root, "expansion_ratio", 4);
  put(root, "no_bias", json_true());
}

static json_t *cap_json(float cap)
{
  return cap > 0 ? number_json(cap) : json_null();
}

static void gemma_put(struct root *root, const struct lade_model *model)
{
  const double scale = (double)model->attention_scale;
  const int64_t scalar = scale > 0 ? llround(1 / (scale * scale)) : lade_model_head_dim(model);
  put_integer(root, "query_pre_attn_scalar", scalar);
  put(root, "final_logit_softcapping", cap_json(model->logit_softcap));
  put(root, "attn_logit_softcapping", cap_json(model->attention_softcap));
}

static void falcon_put(struct root *root, const struct lade_model *model)
{
  put(root, "new_decoder_architecture", json_boolean(model->is_grouped));
  put(root, "multi_query", json_boolean(!model->is_grouped && model->n_kv_heads == 1));
  put(root, "parallel_attn", json_boolean(model->n_parallel_norms > 0));
  put(root, "num_ln_in_parallel_attn", model->n_parallel_norms ? json_integer(model->n_parallel_norms) : json_null());
  put(root, "alibi", json_boolean(model->alibi_max > 0));
}

/* Return a factor, which the model stores as 0 if it is 1. */
static json_t *factor_json(float factor)
{
  return number_json(factor > 0 ? factor : 1);
}

static void granite_put(struct root *root, const struct lade_model *model)
{
  put(root, "embedding_multiplier", factor_json(model->embedding_scale));
  put(root, "residual_multiplier", factor_json(model->residual_scale));
  put(root, "logits_scaling", factor_json(model->logit_scale));
  put(root, "attention_multiplier", number_json(model->attention_scale));
}

static void unrotated_put(struct root *root, const struct lade_model *model)
{
  json_t *list = json_array();
  for (int64_t i = 0; i < model->layers && list; i++)
    if (json_array_append_new(list, json_integer(lade_layer_set_has(&model->unrotated, i) ? 0 : 1)))
      root->is_bad = true;
  put(root, "no_rope_layers", list);
}

static void sizes_put(struct root *root, const struct lade_model *model, const struct config_fields *fields)
{
  const struct lade_model_labels *names = &fields->sizes;
  put_integer(root, names->vocabulary, model->vocabulary);
  put_integer(root, names->context, model->context);
  put_integer(root, names->width, model->width);
  if (!fields->is_hidden_fixed)
    put_integer(root, names->hidden, model->hidden);
  put_integer(root, names->layers, model->layers);
  put_integer(root, names->heads, model->heads);
  if (strcmp(names->n_kv_heads, names->heads) != 0)
    put_integer(root, names->n_kv_heads, model->n_kv_heads);
  if (fields->has_head_dim)
    put_integer(root, "head_dim", lade_model_head_dim(model));
  put(root, names->norm_eps, number_json(model->norm_eps));
}

static void gpt_neo_put(struct root *root, const struct lade_model *model)
{
  json_t *types = json_array();
  for (int64_t i = 0; i < model->layers && types; i++)
    if (json_array_append_new(types, json_string(lade_layer_set_has(&model->windowed, i) ? "local" : "global")))
      root->is_bad = true;
  put(root, "attention_types", json_pack("[[o,i]]", types, 1));
  put_integer(root, "window_size", model->window);
}

static void family_put(struct root *root, const struct lade_model *model)
{
  if (model->family == LADE_GEMMA2 || model->family == LADE_GEMMA3 || model->family == LADE_VAULTGEMMA)
    gemma_put(root, model);
  if (model->family == LADE_SMOLLM3)
    unrotated_put(root, model);
  if (model->family == LADE_FALCON)
    falcon_put(root, model);
  if (model->family == LADE_GRANITE)
    granite_put(root, model);
  if (model->family == LADE_COHERE || model->family == LADE_COHERE2)
    put(root, "logit_scale", factor_json(model->logit_scale));
  if (model->family == LADE_GPT_NEO)
    gpt_neo_put(root, model);
  if (model->family == LADE_GPT_BIGCODE)
    put(root, "multi_query", json_boolean(model->n_kv_heads == 1));
  if (model->family == LADE_MPT)
    mpt_put(root, model);
  if (model->family == LADE_GPT_NEOX || model->family == LADE_STABLELM)
    put(root, "use_parallel_residual", json_boolean(model->n_parallel_norms > 0));
  if (config_fields_get(model->family)->windows != CONFIG_WINDOWS_NONE)
    windows_put(root, model);
}

static json_t *gpt2_json(const struct lade_model *model)
{
  return json_pack("{s:[s],s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:o,s:b,s:n,s:n,s:s}", "architectures", "GPT2LMHeadModel",
                   "model_type", "gpt2", "vocab_size", (json_int_t)model->vocabulary, "n_positions",
                   (json_int_t)model->context, "n_embd", (json_int_t)model->width, "n_layer",
                   (json_int_t)model->layers, "n_head", (json_int_t)model->heads, "n_inner",
                   (json_int_t)model->hidden, "activation_function",
                   config_activation_name(lade_model_activation(model)), "layer_norm_epsilon",
                   number_json(model->norm_eps), "tie_word_embeddings", (int)model->is_tied, "bos_token_id",
                   "eos_token_id", "torch_dtype", "float32");
}

json_t *lade_model_json(const struct lade_model *model)
{
  const struct lade_family_row *row = lade_family_get(model->family);
  const struct config_fields *fields = config_fields_get(model->family);
  struct root root = {.json = json_object()};
  if (model->family == LADE_GPT2) {
    json_decref(root.json);
    return gpt2_json(model);
  }
  put(&root, "architectures", json_pack("[s]", row->architecture));
  put(&root, "model_type", json_string(row->model_type));
  sizes_put(&root, model, fields);
  if (lade_model_has_rope(model))
    rope_put(&root, model);
  if (fields->activation)
    put(&root, fields->activation, json_string(config_activation_name(lade_model_activation(model))));
  biases_put(&root, model);
  put(&root, "tie_word_embeddings", json_boolean(model->is_tied));
  family_put(&root, model);
  if (row->has_pad && (model->has_pad_token || model->family != LADE_LLAMA))
    put(&root, "pad_token_id", model->has_pad_token ? json_integer(model->pad_token) : json_null());
  if (model->family != LADE_CWM) /* transformers takes no null there */
    put(&root, "bos_token_id", json_null());
  put(&root, "eos_token_id", json_null());
  put(&root, "torch_dtype", json_string("float32"));
  if (!root.is_bad)
    return root.json;
  json_decref(root.json);
  return NULL;
}
