/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of each family's config.json.
 *
 * Every field that changes the computation is either understood or refused. Fields of other families (scaled
 * embeddings, capped logits, ...) are refused as well, although transformers ignores them: a config with such a field
 * was trained with it. Sizes are required, because any default would be a guess; the exceptions are those that old
 * files leave out. Dropout is an option of the run (--dropout), not of the config.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "graph/config/config.h"

static int activation_read(const struct config *config, struct lade_model *model)
{
  const char *name = config_fields_get(model->family)->activation;
  if (!name)
    return 0;
  const json_t *value = field_find(config, name);
  const char *text = json_string_value(value);
  if (!value)
    return 0;
  if (model->family == LADE_GEMMA && text && strcmp(text, "gelu") == 0)
    text = "gelu_pytorch_tanh"; /* an old name of it in this family */
  const enum lade_activation activation = text ? config_activation_find(text) : LADE_ACTIVATION_USUAL;
  if (activation != LADE_ACTIVATION_USUAL) {
    model->activation = activation == lade_model_activation(model) ? LADE_ACTIVATION_USUAL : activation;
    return 0;
  }
  return field_refuse(config, name, "\"silu\", \"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\", \"quick_gelu\", \"relu\" "
                                    "or \"relu2\"");
}

/* ---- sizes ---- */

/* Read a size: absent @fallback if that is above 0, else required. */
static int size_read(const struct config *config, const char *name, int64_t fallback, int64_t *ret_value)
{
  return field_integer(config, name, fallback > 0 ? fallback : -1, ret_value);
}

static int n_kv_heads_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  const char *name = fields->sizes.n_kv_heads;
  int64_t fallback = fields->n_kv_heads && field_is_absent(config, name) ? fields->n_kv_heads : model->heads;
  if (fallback < 1) /* the number of heads is out of range, and refused later */
    fallback = 1;
  return field_integer(config, name, fallback, &model->n_kv_heads);
}

static int hidden_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  const bool is_valid = model->width >= 1 && model->width <= 1 << 20; /* else refused later, with any hidden */
  int64_t fallback = fields->hidden_of_width ? fields->hidden_of_width * (is_valid ? model->width : 1) : 0;
  if (fields->is_hidden_fixed) {
    model->hidden = fallback;
    return 0;
  }
  return size_read(config, fields->sizes.hidden, fallback, &model->hidden);
}

static int sizes_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  const struct {
    const char *name;
    int64_t fallback, *ret_value;
  } sizes[] = {{fields->sizes.vocabulary, 0, &model->vocabulary}, {fields->sizes.context, fields->context,
                                                                   &model->context},
               {fields->sizes.width, 0, &model->width},           {fields->sizes.layers, 0, &model->layers},
               {fields->sizes.heads, 0, &model->heads}};
  int rc = 0;
  for (size_t i = 0; i < LADE_COUNT(sizes) && rc == 0; i++)
    rc = size_read(config, sizes[i].name, sizes[i].fallback, sizes[i].ret_value);
  if (rc == 0)
    rc = hidden_read(config, fields, model);
  if (rc == 0)
    rc = n_kv_heads_read(config, fields, model);
  if (rc == 0 && fields->has_head_dim)
    rc = field_integer(config, "head_dim", fields->head_dim, &model->head_dim);
  if (rc == 0 && field_find(config, "head_dim") && model->head_dim == 0 && model->family != LADE_GPT2)
    rc = field_refuse(config, "head_dim", "a whole number from 1");
  if (rc == 0)
    rc = field_number(config, fields->sizes.norm_eps, fields->norm_eps, &model->norm_eps);
  if (rc == 0)
    rc = field_boolean(config, "tie_word_embeddings", fields->is_tied, &model->is_tied);
  return rc;
}

/* Read pad_token_id; negative ones count from the vocabulary's end. */
static int pad_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  int64_t token = fields->pad_token;
  if (!lade_family_get(model->family)->has_pad)
    return 0;
  const json_t *value = field_find(config, "pad_token_id");
  if (!value && (!field_is_absent(config, "pad_token_id") || token < 0))
    return 0;
  if (value && !json_is_integer(value))
    return field_refuse(config, "pad_token_id", "a whole number or null");
  if (value)
    token = json_integer_value(value) < 0 ? json_integer_value(value) + model->vocabulary : json_integer_value(value);
  model->has_pad_token = true;
  model->pad_token = token;
  return 0;
}

/* ---- windows ---- */

static int layer_types_read(const struct config *config, struct lade_model *model)
{
  const json_t *types = field_find(config, "layer_types");
  if (!json_is_array(types) || (int64_t)json_array_size(types) != model->layers)
    return field_refuse(config, "layer_types", "a list with the type of each layer");
  for (int64_t i = 0; i < model->layers; i++) {
    const char *type = json_string_value(json_array_get(types, (size_t)i));
    if (type && strcmp(type, "sliding_attention") == 0)
      lade_layer_set_add(&model->windowed, i);
    else if (!type || strcmp(type, "full_attention") != 0)
      return field_refuse(config, "layer_types", "\"full_attention\" and \"sliding_attention\"");
  }
  return 0;
}

/* Return true if layer @i_layer has the window where the config has no layer_types. */
static bool is_windowed(const struct lade_model *model, int64_t i_layer, int64_t period, int64_t first)
{
  const bool is_unwindowed_first = config_fields_get(model->family)->is_unwindowed_first;
  if (model->family == LADE_SMOLLM3)
    return lade_layer_set_has(&model->unrotated, i_layer);
  return i_layer >= first && (period == 0 || (i_layer + !is_unwindowed_first) % period != 0);
}

/* Read the layers that have the window: from layer_types, or by the family's pattern. */
static int windowed_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  int64_t period = fields->window_period, first = fields->has_window_switch ? 28 : 0;
  int rc = 0;
  if (fields->windows == CONFIG_WINDOWS_BY_TYPE && field_find(config, "layer_types"))
    return layer_types_read(config, model);
  if (fields->has_window_switch)
    rc = field_integer(config, "max_window_layers", first, &first);
  if (rc == 0 && fields->has_window_pattern)
    rc = field_integer(config, "sliding_window_pattern", period, &period);
  if (rc == 0 && fields->has_window_pattern && period < 1)
    rc = field_refuse(config, "sliding_window_pattern", "a whole number from 1, or the list layer_types");
  for (int64_t i = 0; i < model->layers && rc == 0; i++)
    if (is_windowed(model, i, period, first))
      lade_layer_set_add(&model->windowed, i);
  return rc;
}

/* True if only layers with the window of @window keys have rotary positions; without a window (0) none has. */
static bool turns_by_window(const struct config_fields *fields, int64_t window)
{
  return fields->turns_windowed && (window > 0 || !fields->turns_unwindowed);
}

/* Read the window and its layers. pre: layers without rotary positions are known, except by their lack of a window. */
static int window_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  bool is_used = !fields->has_window_switch;
  int64_t window = 0;
  if (fields->windows == CONFIG_WINDOWS_NONE)
    return 0;
  int rc = fields->has_window_switch ? field_boolean(config, "use_sliding_window", false, &is_used) : 0;
  if (rc == 0)
    rc = field_integer(config, "sliding_window", field_is_absent(config, "sliding_window") ? fields->window : 0,
                       &window);
  if (rc < 0)
    return rc;
  if (field_find(config, "sliding_window") && window < 1)
    return field_refuse(config, "sliding_window", "a whole number from 1, or null");
  if (!is_used || model->layers > LADE_MODEL_MAX_LAYERS || (window == 0 && !turns_by_window(fields, window)))
    return 0;
  model->window = window;
  rc = window ? windowed_read(config, fields, model) : 0;
  for (int64_t i = 0; i < model->layers && turns_by_window(fields, window) && rc == 0; i++)
    if (!lade_layer_set_has(&model->windowed, i))
      lade_layer_set_add(&model->unrotated, i);
  return rc;
}

/* ---- facts of single families ---- */

static int bias_read(const struct config *config, const char *name, bool fallback, unsigned bits,
                     struct lade_model *model)
{
  bool has = fallback;
  int rc = field_boolean(config, name, fallback, &has);
  if (rc == 0 && has)
    model->biases |= bits & ~lade_family_get(model->family)->biases;
  return rc;
}

static int gpt2_read(const struct config *config, struct lade_model *model)
{
  int rc = field_fixed(config, "scale_attn_weights", true);
  if (rc == 0)
    rc = field_fixed(config, "scale_attn_by_inverse_layer_idx", false);
  return rc < 0 ? rc : field_fixed(config, "add_cross_attention", false);
}

/* Read the switches of biases that many families share. */
static int biases_read(const struct config *config, const struct config_fields *fields, struct lade_model *model)
{
  int rc = 0;
  if (fields->attention_biases)
    rc = bias_read(config, "attention_bias", fields->has_attention_bias, fields->attention_biases, model);
  if (rc == 0 && fields->has_mlp_bias)
    rc = bias_read(config, "mlp_bias", fields->is_mlp_biased, LADE_BIAS_MLP, model);
  return rc;
}

static int seed_oss_read(const struct config *config, struct lade_model *model)
{
  return bias_read(config, "attention_out_bias", false, LADE_BIAS_OUT, model);
}

static int stablelm_read(const struct config *config, struct lade_model *model)
{
  bool is_parallel = false;
  int rc = bias_read(config, "use_qkv_bias", false, LADE_BIAS_QKV, model);
  if (rc == 0)
    rc = field_boolean(config, "use_parallel_residual", false, &is_parallel);
  model->n_parallel_norms = is_parallel ? 1 : 0;
  return rc;
}

/* Read a cap: null or 0 is none. */
static int cap_read(const struct config *config, const char *name, float fallback, float *ret_cap)
{
  return field_number(config, name, field_is_absent(config, name) ? fallback : 0, ret_cap);
}

static int gemma_read(const struct config *config, struct lade_model *model)
{
  int64_t scalar = 256;
  int rc = field_fixed(config, "use_bidirectional_attention", false);
  model->embedding_scale = (float)sqrt((double)LADE_MAX(model->width, 1));
  if (rc < 0 || model->family == LADE_GEMMA)
    return rc;
  rc = field_integer(config, "query_pre_attn_scalar", 256, &scalar);
  if (rc == 0 && scalar < 1)
    rc = field_refuse(config, "query_pre_attn_scalar", "a whole number from 1");
  model->attention_scale = scalar == lade_model_head_dim(model) ? 0 : (float)(1 / sqrt((double)LADE_MAX(scalar, 1)));
  if (rc == 0)
    rc = cap_read(config, "final_logit_softcapping", model->family == LADE_GEMMA3 ? 0 : 30, &model->logit_softcap);
  if (rc == 0 && model->family != LADE_GEMMA3)
    rc = cap_read(config, "attn_logit_softcapping", 50, &model->attention_softcap);
  return rc;
}

/* Read the layers without rotary positions: 0 in no_rope_layers, or each no_rope_layer_interval-th layer. */
static int smollm3_read(const struct config *config, struct lade_model *model)
{
  const json_t *list = field_find(config, "no_rope_layers");
  int64_t interval = 4;
  int rc = 0;
  if (list && (!json_is_array(list) || (int64_t)json_array_size(list) != model->layers))
    rc = field_refuse(config, "no_rope_layers", "a list with 0 or 1 for each layer");
  if (rc == 0)
    rc = field_integer(config, "no_rope_layer_interval", 4, &interval);
  if (rc == 0 && interval < 1)
    rc = field_refuse(config, "no_rope_layer_interval", "a whole number from 1");
  for (int64_t i = 0; i < model->layers && i < LADE_MODEL_MAX_LAYERS && rc == 0; i++) {
    const json_t *one = list ? json_array_get(list, (size_t)i) : NULL;
    if (list ? json_integer_value(one) == 0 : (i + 1) % interval == 0)
      lade_layer_set_add(&model->unrotated, i);
  }
  return rc;
}

static int starcoder2_read(const struct config *config, struct lade_model *model)
{
  return bias_read(config, "use_bias", true, LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP, model);
}

static int gpt_neox_read(const struct config *config, struct lade_model *model)
{
  bool is_parallel = true;
  int rc = field_boolean(config, "use_parallel_residual", true, &is_parallel);
  model->n_parallel_norms = is_parallel ? 2 : 0;
  model->n_kv_heads = model->heads;
  return rc;
}

/* The largest exponent of ALiBi's slopes, base 2, in all families. */
#define ALIBI_MAX 8

static int falcon_read(const struct config *config, struct lade_model *model)
{
  bool is_new = false, is_multi_query = true, is_parallel = true;
  bool has_alibi = false;
  int64_t n_norms = 1;
  int rc = field_boolean(config, "alibi", false, &has_alibi);
  model->alibi_max = has_alibi ? ALIBI_MAX : 0;
  model->is_alibi_rounded = has_alibi;
  if (rc == 0)
    rc = bias_read(config, "bias", false, LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP, model);
  if (rc == 0)
    rc = field_boolean(config, "new_decoder_architecture", false, &is_new);
  if (rc == 0)
    rc = field_boolean(config, "multi_query", true, &is_multi_query);
  if (rc == 0)
    rc = field_boolean(config, "parallel_attn", true, &is_parallel);
  if (rc == 0)
    rc = field_integer(config, "num_ln_in_parallel_attn", is_new ? 2 : 1, &n_norms);
  if (rc == 0 && (n_norms < 1 || n_norms > (is_new ? 2 : 1)))
    rc = field_refuse(config, "num_ln_in_parallel_attn",
                      is_new ? "1 or 2" : "1 or null without new_decoder_architecture");
  if (rc == 0 && is_new && !is_parallel)
    rc = field_refuse(config, "parallel_attn", "true with new_decoder_architecture");
  model->is_grouped = is_new;
  model->n_parallel_norms = is_parallel ? (int)n_norms : 0;
  if (!is_new)
    model->n_kv_heads = is_multi_query ? 1 : model->heads;
  return rc;
}

/*
 * Read MPT's object attn_config. The library transformers always computes ALiBi with 8, ignores unusual biases and
 * hidden widths, and clamps unless clip_qkv is 0 or null.
 */
static int mpt_attention_read(const struct config *config, struct lade_model *model)
{
  int64_t alibi_max = ALIBI_MAX;
  int rc = field_fixed(config, "alibi", true);
  if (rc == 0)
    rc = field_integer(config, "alibi_bias_max", ALIBI_MAX, &alibi_max);
  if (rc == 0 && alibi_max != ALIBI_MAX)
    rc = field_refuse(config, "alibi_bias_max", "8");
  if (rc == 0)
    rc = field_choice(config, "attn_type", true, "multihead_attention", NULL);
  const char *const switches[] = {"prefix_lm", "qk_ln", "attn_uses_sequence_id", "rope"};
  for (size_t i = 0; i < LADE_COUNT(switches) && rc == 0; i++)
    rc = field_fixed(config, switches[i], false);
  if (rc == 0)
    rc = field_number(config, "clip_qkv", 0, &model->qkv_clip);
  if (rc == 0 && model->qkv_clip < 0)
    rc = field_refuse(config, "clip_qkv", "a number above 0, or null");
  if (rc == 0)
    rc = field_number(config, "softmax_scale", 0, &model->attention_scale);
  if (rc == 0 && field_find(config, "softmax_scale") && !(model->attention_scale > 0))
    rc = field_refuse(config, "softmax_scale", "a number above 0, or null");
  return rc;
}

static int mpt_read(const struct config *config, struct lade_model *model)
{
  const struct config attention = field_object(config, "attn_config", "attn_config.");
  int64_t expansion = 4;
  float fraction = 1;
  model->alibi_max = ALIBI_MAX;
  int rc = field_fixed(config, "no_bias", true);
  if (rc == 0)
    rc = field_integer(config, "expansion_ratio", 4, &expansion);
  if (rc == 0 && expansion != 4)
    rc = field_refuse(config, "expansion_ratio", "4");
  if (rc == 0)
    rc = field_number(config, "embedding_fraction", 1, &fraction);
  if (rc == 0 && fraction != 1)
    rc = field_refuse(config, "embedding_fraction", "1");
  if (rc == 0)
    rc = field_choice(config, "norm_type", true, "low_precision_layernorm", "layernorm");
  if (rc < 0 || !attention.object || json_is_null(attention.object))
    return rc;
  return json_is_object(attention.object) ? mpt_attention_read(&attention, model) :
                                            field_refuse(config, "attn_config", "an object or null");
}

static int bloom_read(const struct config *config, struct lade_model *model)
{
  model->alibi_max = ALIBI_MAX;
  int rc = field_fixed(config, "apply_residual_connection_post_layernorm", false);
  return rc < 0 ? rc : field_fixed(config, "slow_but_exact", false);
}

/* Add the layers of one element of attention_types, [["global", "local"], 12]: its types in turn, so many times. */
static int neo_types_add(const struct config *config, const json_t *element, struct lade_model *model,
                         int64_t *n_layers)
{
  const char *expected = "a list of [types, repetitions], with \"global\" or \"local\" for each layer";
  const json_t *types = json_array_get(element, 0), *n_times = json_array_get(element, 1);
  if (json_array_size(element) != 2 || !json_array_size(types) || !json_is_integer(n_times))
    return field_refuse(config, "attention_types", expected);
  for (json_int_t i = 0; i < json_integer_value(n_times); i++)
    for (size_t j = 0; j < json_array_size(types); j++) {
      const char *type = json_string_value(json_array_get(types, j));
      const bool is_local = type && strcmp(type, "local") == 0;
      if (*n_layers == model->layers || (!is_local && (!type || strcmp(type, "global") != 0)))
        return field_refuse(config, "attention_types", expected);
      if (is_local)
        lade_layer_set_add(&model->windowed, *n_layers);
      (*n_layers)++;
    }
  return 0;
}

/* Read GPT-Neo's layers: every second one has a window unless a field states otherwise; scores are not scaled. */
static int gpt_neo_read(const struct config *config, struct lade_model *model)
{
  const json_t *types = field_find(config, "attention_types");
  int64_t n_layers = 0;
  model->attention_scale = 1;
  int rc = field_integer(config, "window_size", 256, &model->window);
  if (rc == 0 && model->window < 1)
    rc = field_refuse(config, "window_size", "a whole number from 1");
  for (int64_t i = 1; i < model->layers && !types; i += 2)
    lade_layer_set_add(&model->windowed, i);
  for (size_t i = 0; i < json_array_size(types) && rc == 0; i++)
    rc = neo_types_add(config, json_array_get(types, i), model, &n_layers);
  if (rc == 0 && types && n_layers != model->layers)
    rc = field_refuse(config, "attention_types", "as many types as num_layers");
  return rc;
}

static int gpt_bigcode_read(const struct config *config, struct lade_model *model)
{
  bool is_multi_query = true;
  int rc = field_boolean(config, "multi_query", true, &is_multi_query);
  if (is_multi_query)
    model->n_kv_heads = 1;
  if (rc == 0)
    rc = field_fixed(config, "scale_attn_weights", true);
  return rc < 0 ? rc : field_fixed(config, "add_cross_attention", false);
}

static int hunyuan_read(const struct config *config, struct lade_model *model)
{
  int64_t n_experts = 1;
  int rc = field_fixed(config, "use_cla", false);
  if (rc == 0)
    rc = field_fixed(config, "use_qk_norm", true);
  if (rc == 0)
    rc = field_integer(config, "num_experts", 1, &n_experts);
  return rc == 0 && n_experts > 1 ? field_refuse(config, "num_experts", "1, or null in a model of this type") : rc;
}

/* Refuse different switches for InternLM 3: its own code has two, which transformers reads as one. */
static int internlm3_read(const struct config *config, struct lade_model *model)
{
  if (lade_model_has_bias(model, LADE_BIAS_OUT) != lade_model_has_bias(model, LADE_BIAS_MLP))
    return field_refuse(config, "attention_bias", "the value of mlp_bias");
  return 0;
}

/* Read a factor, 1 if absent; the model stores 1 as 0. */
static int factor_read(const struct config *config, const char *name, float fallback, float *ret_factor)
{
  int rc = field_number(config, name, fallback, ret_factor);
  if (rc == 0 && !(*ret_factor > 0))
    rc = field_refuse(config, name, "a number above 0");
  if (rc == 0 && *ret_factor == 1)
    *ret_factor = 0;
  return rc;
}

static int granite_read(const struct config *config, struct lade_model *model)
{
  int rc = factor_read(config, "embedding_multiplier", 1, &model->embedding_scale);
  if (rc == 0)
    rc = factor_read(config, "residual_multiplier", 1, &model->residual_scale);
  if (rc == 0)
    rc = factor_read(config, "logits_scaling", 1, &model->logit_scale);
  if (rc == 0)
    rc = factor_read(config, "attention_multiplier", 1, &model->attention_scale);
  if (rc == 0 && model->attention_scale == 0) /* 1 is not the scale of the model's 0 */
    model->attention_scale = 1;
  return rc;
}

static int ernie4_5_read(const struct config *config, struct lade_model *model)
{
  return bias_read(config, "use_bias", false, LADE_BIAS_QKV | LADE_BIAS_OUT | LADE_BIAS_MLP, model);
}

/* Check that all heads together are as wide as the model: transformers computes these families in no other way. */
static int whole_heads_read(const struct config *config, struct lade_model *model)
{
  if (model->heads * lade_model_head_dim(model) != model->width)
    return field_refuse(config, "head_dim", "hidden_size / num_attention_heads");
  return 0;
}

/* Read Cohere's blocks, whose branches are parallel with one norm, and the factor of the logits. */
static int cohere_read(const struct config *config, struct lade_model *model)
{
  model->n_parallel_norms = 1;
  int rc = factor_read(config, "logit_scale", 0.0625f, &model->logit_scale);
  return rc < 0 || model->family == LADE_COHERE ? rc : whole_heads_read(config, model);
}

/* ---- fields of other families ---- */

struct foreign_field {
  const char *name;
  double neutral;
};

/* True if the family's readers above understand the field. */
static bool is_known(const struct lade_model *model, const char *name)
{
  static const struct {
    enum lade_family family;
    const char *name;
  } known[] = {{LADE_GPT_NEOX, "use_parallel_residual"}, {LADE_FALCON, "parallel_attn"}, {LADE_FALCON, "multi_query"},
               {LADE_SMOLLM3, "no_rope_layers"}, {LADE_GEMMA2, "query_pre_attn_scalar"},
               {LADE_GEMMA3, "query_pre_attn_scalar"}, {LADE_GEMMA2, "attn_logit_softcapping"},
               {LADE_GEMMA2, "final_logit_softcapping"}, {LADE_GEMMA3, "final_logit_softcapping"},
               {LADE_QWEN2, "qkv_bias"}, {LADE_FALCON, "bias"}, {LADE_FALCON, "alibi"}, {LADE_QWEN3, "use_qk_norm"},
               {LADE_GRANITE, "embedding_multiplier"}, {LADE_GRANITE, "residual_multiplier"},
               {LADE_GRANITE, "logits_scaling"}, {LADE_GRANITE, "attention_multiplier"}, {LADE_COHERE, "logit_scale"},
               {LADE_COHERE2, "logit_scale"},
               {LADE_GPT_BIGCODE, "multi_query"}, {LADE_HUNYUAN, "use_qk_norm"}, {LADE_HUNYUAN, "num_experts"},
               {LADE_INTERNLM3, "qkv_bias"}, {LADE_INTERNLM3, "bias"},
               {LADE_STABLELM, "use_parallel_residual"}, {LADE_VAULTGEMMA, "query_pre_attn_scalar"},
               {LADE_VAULTGEMMA, "attn_logit_softcapping"}, {LADE_VAULTGEMMA, "final_logit_softcapping"}};
  const struct config_fields *fields = config_fields_get(model->family);
  if (strcmp(name, "sliding_window") == 0)
    return fields->windows != CONFIG_WINDOWS_NONE;
  if (strcmp(name, "attention_bias") == 0)
    return fields->attention_biases != 0;
  if (strcmp(name, "mlp_bias") == 0)
    return fields->has_mlp_bias;
  if (strcmp(name, "partial_rotary_factor") == 0)
    return lade_model_has_rope(model); /* rope.c checks it */
  for (size_t i = 0; i < LADE_COUNT(known); i++)
    if (known[i].family == model->family && strcmp(known[i].name, name) == 0)
      return true;
  return false;
}

/*
 * Refuse fields that the family does not have. Allowed are absent, null, false, empty, and the number without effect.
 */
static int foreign_refuse(const struct config *config, const struct lade_model *model)
{
  static const struct foreign_field fields[] = {
      {"sliding_window", 0},       {"no_rope_layers", 0},          {"partial_rotary_factor", 1},
      {"rope_interleaved", 0},     {"query_pre_attn_scalar", 0},   {"attention_multiplier", 0},
      {"embedding_multiplier", 1}, {"residual_multiplier", 1},     {"logits_scaling", 1},
      {"logit_scale", 1},          {"attn_logit_softcapping", 0},  {"final_logit_softcapping", 0},
      {"clip_qkv", 0},             {"use_qk_norm", 0},             {"qk_layernorm", 0},
      {"qkv_bias", 0},             {"parallel_attn", 0},           {"use_parallel_residual", 0},
      {"multi_query", 0},          {"num_experts", 0},             {"num_local_experts", 0},
      {"n_routed_experts", 0},     {"quantization_config", 0},     {"is_encoder_decoder", 0},
      {"attention_bias", 0},       {"mlp_bias", 0},                {"bias", 0},
      {"alibi", 0},
  };
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    const json_t *value = field_find(config, fields[i].name);
    const json_t *use = field_find(config, "use_sliding_window");
    bool is_off = strcmp(fields[i].name, "sliding_window") == 0 && json_is_false(use);
    bool is_neutral = !value || is_off || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
                      (json_is_number(value) && json_number_value(value) == fields[i].neutral);
    if (is_neutral || is_known(model, fields[i].name))
      continue;
    return field_refuse(config, fields[i].name, fields[i].neutral == 1 ? "1, or null in a model of this type" :
                                                                        "null in a model of this type");
  }
  return 0;
}

/* ---- other names of fields ---- */

/* Copy fields from the other names that transformers reads them by to their usual names. */
static int names_unite(const struct config *config, enum lade_family family)
{
  static const struct {
    enum lade_family family;
    const char *other, *usual;
  } names[] = {{LADE_MPT, "hidden_size", "d_model"}, {LADE_MPT, "num_attention_heads", "n_heads"},
               {LADE_MPT, "num_hidden_layers", "n_layers"}, {LADE_BLOOM, "n_embed", "hidden_size"},
               {LADE_BLOOM, "num_attention_heads", "n_head"}, {LADE_BLOOM, "num_hidden_layers", "n_layer"},
               {LADE_FALCON, "n_embed", "hidden_size"}, {LADE_GPT_NEO, "num_attention_heads", "num_heads"},
               {LADE_GPT_NEO, "num_hidden_layers", "num_layers"}, {LADE_GPT_BIGCODE, "hidden_size", "n_embd"},
               {LADE_GPT_BIGCODE, "num_attention_heads", "n_head"}, {LADE_GPT_BIGCODE, "num_hidden_layers", "n_layer"},
               {LADE_GPT_BIGCODE, "max_position_embeddings", "n_positions"},
               {LADE_INTERNLM3, "qkv_bias", "attention_bias"}, {LADE_INTERNLM3, "bias", "mlp_bias"}};
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    json_t *value = json_object_get(config->object, names[i].other);
    const json_t *usual = field_find(config, names[i].usual);
    if (names[i].family != family || !value || json_is_null(value))
      continue;
    if (usual && !json_equal(usual, value))
      return field_refuse(config, names[i].other, "the value of its other name, or null");
    if (json_object_set(config->object, names[i].usual, value))
      return lade_error_set(config->error, -ENOMEM, "%s: out of memory reading it", config->path);
  }
  return 0;
}

/* ---- a model ---- */

int config_family_read(const struct config *config, enum lade_family family, struct lade_model *model)
{
  /* Facts of single families; NULL: the fields say all. */
  static int (*const readers[LADE_N_FAMILIES])(const struct config *config, struct lade_model *model) = {
      [LADE_GPT2] = gpt2_read,         [LADE_GEMMA] = gemma_read,           [LADE_GEMMA2] = gemma_read,
      [LADE_GEMMA3] = gemma_read,      [LADE_SMOLLM3] = smollm3_read,       [LADE_STARCODER2] = starcoder2_read,
      [LADE_GPT_NEOX] = gpt_neox_read, [LADE_FALCON] = falcon_read,         [LADE_MPT] = mpt_read,
      [LADE_BLOOM] = bloom_read,       [LADE_SEED_OSS] = seed_oss_read,     [LADE_STABLELM] = stablelm_read,
      [LADE_VAULTGEMMA] = gemma_read,  [LADE_GRANITE] = granite_read,       [LADE_HELIUM] = whole_heads_read,
      [LADE_ERNIE4_5] = ernie4_5_read, [LADE_COHERE] = cohere_read,         [LADE_COHERE2] = cohere_read,
      [LADE_GPT_NEO] = gpt_neo_read,   [LADE_GPT_BIGCODE] = gpt_bigcode_read,
      [LADE_HUNYUAN] = hunyuan_read,   [LADE_INTERNLM3] = internlm3_read};
  const struct config_fields *fields = config_fields_get(family);
  model->family = family;
  int rc = names_unite(config, family);
  if (rc == 0)
    rc = sizes_read(config, fields, model);
  struct lade_model sizes = *model;
  sizes.rope_base = 10000;
  sizes.alibi_max = family == LADE_MPT || family == LADE_BLOOM ? ALIBI_MAX : 0;
  if (fields->partial_rotary > 0) /* partial rotary: its share is read later */
    sizes.rotary_dim = 2;
  if (rc == 0 && family == LADE_FALCON) /* old files state a number that the family's switches overrule */
    sizes.n_kv_heads = sizes.heads;
  if (rc == 0)
    rc = lade_model_check_as(&sizes, config->path, &fields->sizes, config->error);
  if (rc == 0)
    rc = biases_read(config, fields, model);
  if (rc == 0 && readers[family])
    rc = readers[family](config, model);
  if (rc == 0)
    rc = activation_read(config, model);
  if (rc == 0)
    rc = window_read(config, fields, model);
  if (rc == 0)
    rc = pad_read(config, fields, model);
  if (rc == 0 && lade_model_has_rope(model))
    rc = config_rope_read(config, model);
  if (rc == 0)
    rc = lade_model_check_as(model, config->path, &fields->sizes, config->error);
  return rc < 0 ? rc : foreign_refuse(config, model);
}
