/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of HuggingFace's config.json for the two families. The files are untrusted. A directory stands for the
 * config.json in it.
 *
 * Every field that changes the computation is either understood or refused. A config with another activation, a bias,
 * another rope scaling or a scaled attention is an error, and is never loaded as a different model. Fields that only
 * affect generation or Python are not read. Sizes are required, because any default would be a guess. Fields with a
 * default in transformers have the same default here. Fields of other families (a sliding window, scaled embeddings,
 * softcapped logits, ...) are refused as well, although transformers ignores them in these two families: a config with
 * such a field was trained with it. Dropout is an option of the run (--dropout), not of the config.
 *
 * A message is one line: the file, the field, its value, the expected value. Values are echoed through jansson's own
 * encoder, cut short, so a hostile string cannot break the line.
 *
 * Both spellings of rope's parameters are read: rope_theta with rope_scaling, and the one object rope_parameters of
 * newer versions.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/base.h"
#include "base/echo.h"
#include "base/file.h"
#include "graph/build.h"
#include "graph/experts.h"

/* The largest real config.json is some hundred kilobytes; larger files are refused. */
#define MAX_FILE_BYTES (4 << 20)

struct config {
  const char *path;
  json_t *object; /* that contains the fields */
  const char *prefix; /* prefix of field names in messages: "", "rope_scaling." */
  struct lade_error *error;
};

/* ---- one field ---- */

static int field_refuse(const struct config *config, const char *name, const char *expected)
{
  return lade_error_set(config->error, -EINVAL, "%s: %s%s is %s: expected %s", config->path, config->prefix, name,
                        lade_json_echo(json_object_get(config->object, name)).text, expected);
}

/* Find a field. An absent field and null are the same, as in transformers. */
static const json_t *field_find(const struct config *config, const char *name)
{
  const json_t *value = json_object_get(config->object, name);
  return json_is_null(value) ? NULL : value;
}

/* Read a whole number; lade_model_check checks its range. @fallback below 0: required. */
static int field_integer(const struct config *config, const char *name, int64_t fallback, int64_t *ret_value)
{
  const json_t *value = field_find(config, name);
  if (!value && fallback >= 0) {
    *ret_value = fallback;
    return 0;
  }
  if (!json_is_integer(value))
    return field_refuse(config, name, "a whole number");
  *ret_value = json_integer_value(value);
  return 0;
}

/* Read a number. @fallback below 0: required. */
static int field_number(const struct config *config, const char *name, float fallback, float *ret_value)
{
  const json_t *value = field_find(config, name);
  if (!value && fallback >= 0) {
    *ret_value = fallback;
    return 0;
  }
  if (!json_is_number(value))
    return field_refuse(config, name, "a number");
  *ret_value = (float)json_number_value(value);
  return 0;
}

static int field_boolean(const struct config *config, const char *name, bool fallback, bool *ret_value)
{
  const json_t *value = field_find(config, name);
  if (value && !json_is_boolean(value))
    return field_refuse(config, name, "true or false");
  *ret_value = value ? json_is_true(value) : fallback;
  return 0;
}

/* Check a switch that must be @expected, which is also its default. */
static int field_fixed(const struct config *config, const char *name, bool expected)
{
  bool value = expected;
  int rc = field_boolean(config, name, expected, &value);
  if (rc == 0 && value != expected)
    rc = field_refuse(config, name, expected ? "true" : "false");
  return rc;
}

/* Check a string that must be @a or @b (@b may be NULL). It may be absent if @is_optional. */
static int field_choice(const struct config *config, const char *name, bool is_optional, const char *a, const char *b)
{
  const json_t *value = field_find(config, name);
  const char *text = json_string_value(value);
  if ((!value && is_optional) || (text && (strcmp(text, a) == 0 || (b && strcmp(text, b) == 0))))
    return 0;
  char expected[64];
  snprintf(expected, sizeof(expected), b ? "\"%s\" or \"%s\"" : "\"%s\"", a, b);
  return field_refuse(config, name, expected);
}

struct integer_field {
  const char *name;
  int64_t fallback, *ret_value;
};

static int fields_integer(const struct config *config, const struct integer_field *fields, size_t n_fields)
{
  int rc = 0;
  for (size_t i = 0; i < n_fields && rc == 0; i++)
    rc = field_integer(config, fields[i].name, fields[i].fallback, fields[i].ret_value);
  return rc;
}

/*
 * Refuse fields that neither family has. Allowed values are absent, null, false, empty, or the number without effect.
 */
static int foreign_refuse(const struct config *config)
{
  static const struct {
    const char *name;
    double neutral;
    const char *off; /* the field has no effect if this switch is false */
  } fields[] = {
      {"sliding_window", 0, "use_sliding_window"}, {"no_rope_layers", 0},          {"partial_rotary_factor", 1},
      {"rope_interleaved", 0},     {"query_pre_attn_scalar", 0},   {"attention_multiplier", 0},
      {"embedding_multiplier", 1}, {"residual_multiplier", 1},     {"logits_scaling", 1},
      {"logit_scale", 1},          {"attn_logit_softcapping", 0},  {"final_logit_softcapping", 0},
      {"clip_qkv", 0},             {"use_qk_norm", 0},             {"qk_layernorm", 0},
      {"qkv_bias", 0},             {"parallel_attn", 0},           {"use_parallel_residual", 0},
      {"multi_query", 0},          {"num_experts", 0},             {"num_local_experts", 0},
      {"n_routed_experts", 0},     {"quantization_config", 0},     {"is_encoder_decoder", 0},
  };
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    const json_t *value = field_find(config, fields[i].name);
    bool is_off = fields[i].off && json_is_false(field_find(config, fields[i].off));
    bool is_neutral = !value || is_off || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
                      (json_is_number(value) && json_number_value(value) == fields[i].neutral);
    bool is_factor = fields[i].neutral == 1;
    if (!is_neutral)
      return field_refuse(config, fields[i].name, is_factor ? "1, or null in a model of this type" :
                                                              "null in a model of this type");
  }
  return 0;
}

/* ---- GPT-2 ---- */

static int gpt2_switches(const struct config *config)
{
  int rc = field_choice(config, "activation_function", true, "gelu_new", "gelu_pytorch_tanh");
  if (rc == 0)
    rc = field_fixed(config, "scale_attn_weights", true);
  if (rc == 0)
    rc = field_fixed(config, "scale_attn_by_inverse_layer_idx", false);
  if (rc == 0)
    rc = field_fixed(config, "add_cross_attention", false);
  return rc;
}

static int gpt2_read(const struct config *config, struct lade_model *model)
{
  static const struct lade_model_labels labels = {"n_layer", "n_head",      "n_head",     "n_embd",
                                                  "n_inner", "n_positions", "vocab_size", "layer_norm_epsilon"};
  const struct integer_field fields[] = {
      {"vocab_size", -1, &model->vocabulary}, {"n_positions", -1, &model->context}, {"n_embd", -1, &model->width},
      {"n_layer", -1, &model->layers},        {"n_head", -1, &model->heads},        {"n_inner", 0, &model->hidden},
  };
  model->family = LADE_GPT2;
  int rc = fields_integer(config, fields, LADE_COUNT(fields));
  if (rc == 0)
    rc = field_number(config, "layer_norm_epsilon", 1e-5f, &model->norm_eps);
  if (rc == 0)
    rc = field_boolean(config, "tie_word_embeddings", true, &model->is_tied);
  if (rc == 0)
    rc = gpt2_switches(config);
  if (rc < 0)
    return rc;
  model->n_kv_heads = model->heads;
  if (!field_find(config, "n_inner")) /* a width out of range is refused below, with any hidden */
    model->hidden = model->width >= 1 && model->width <= 1 << 20 ? 4 * model->width : 1;
  return lade_model_check_as(model, config->path, &labels, config->error);
}

/* ---- Llama ---- */

/* Read one of rope_scaling and rope_parameters: {"rope_type": "llama3", "factor": ...}. */
static int rope_read(const struct config *outer, const char *name, struct lade_model *model)
{
  json_t *object = json_object_get(outer->object, name);
  if (!object || json_is_null(object))
    return 0;
  if (!json_is_object(object))
    return field_refuse(outer, name, "an object or null");
  char prefix[32];
  snprintf(prefix, sizeof(prefix), "%s.", name);
  struct config config = {.path = outer->path, .object = object, .prefix = prefix, .error = outer->error};
  const char *type_field = field_find(&config, "rope_type") ? "rope_type" : "type";
  int rc = foreign_refuse(&config);
  if (rc == 0)
    rc = field_number(&config, "rope_theta", model->rope_base, &model->rope_base);
  if (rc == 0)
    rc = field_choice(&config, type_field, false, "llama3", "default");
  if (rc < 0 || strcmp(json_string_value(field_find(&config, type_field)), "default") == 0)
    return rc;
  rc = field_number(&config, "factor", -1, &model->rope_scale_factor);
  if (rc == 0 && !(model->rope_scale_factor >= 1))
    rc = field_refuse(&config, "factor", "a number from 1 up");
  if (rc == 0)
    rc = field_number(&config, "low_freq_factor", -1, &model->rope_low_freq_factor);
  if (rc == 0)
    rc = field_number(&config, "high_freq_factor", -1, &model->rope_high_freq_factor);
  if (rc == 0)
    rc = field_integer(&config, "original_max_position_embeddings", -1, &model->rope_original_context);
  return rc;
}

static int llama_switches(const struct config *config)
{
  int rc = field_choice(config, "hidden_act", true, "silu", "swish");
  if (rc == 0)
    rc = field_fixed(config, "attention_bias", false);
  if (rc == 0)
    rc = field_fixed(config, "mlp_bias", false);
  return rc;
}

static int llama_read(const struct config *config, struct lade_model *model)
{
  static const struct lade_model_labels labels = {
      "num_hidden_layers", "num_attention_heads",     "num_key_value_heads", "hidden_size",
      "intermediate_size", "max_position_embeddings", "vocab_size",          "rms_norm_eps"};
  const struct integer_field fields[] = {
      {"vocab_size", -1, &model->vocabulary},      {"max_position_embeddings", -1, &model->context},
      {"hidden_size", -1, &model->width},          {"intermediate_size", -1, &model->hidden},
      {"num_hidden_layers", -1, &model->layers},   {"num_attention_heads", -1, &model->heads},
      {"num_key_value_heads", 0, &model->n_kv_heads}, {"head_dim", 0, &model->head_dim},
  };
  model->family = LADE_LLAMA;
  int rc = fields_integer(config, fields, LADE_COUNT(fields));
  if (rc == 0)
    rc = field_number(config, "rms_norm_eps", 1e-6f, &model->norm_eps);
  if (rc == 0)
    rc = field_boolean(config, "tie_word_embeddings", false, &model->is_tied);
  if (rc == 0)
    rc = field_number(config, "rope_theta", 10000, &model->rope_base);
  if (rc == 0)
    rc = rope_read(config, "rope_scaling", model);
  if (rc == 0 && json_is_object(field_find(config, "rope_scaling")) && field_find(config, "rope_parameters"))
    rc = field_refuse(config, "rope_parameters", "null beside rope_scaling");
  if (rc == 0)
    rc = rope_read(config, "rope_parameters", model);
  if (rc < 0)
    return rc;
  if (!field_find(config, "num_key_value_heads"))
    model->n_kv_heads = model->heads;
  if (field_find(config, "head_dim") && model->head_dim == 0)
    return field_refuse(config, "head_dim", "a whole number from 1");
  rc = lade_model_check_as(model, config->path, &labels, config->error);
  return rc < 0 ? rc : llama_switches(config);
}

/* ---- the file ---- */

static int config_read(const struct config *config, struct lade_model *model)
{
  if (lade_experts_has_type(json_string_value(field_find(config, "model_type"))))
    return lade_experts_refuse(config->path, config->error);
  int rc = field_choice(config, "model_type", false, "gpt2", "llama");
  if (rc < 0)
    return rc;
  const char *type = json_string_value(field_find(config, "model_type"));
  snprintf(model->name, sizeof(model->name), "%s", type);
  rc = strcmp(type, "gpt2") == 0 ? gpt2_read(config, model) : llama_read(config, model);
  return rc < 0 ? rc : foreign_refuse(config);
}

/* Load the config.json at @path, a file. */
static int file_load(const char *path, struct lade_model *ret_model, struct lade_error *error)
{
  char *text = NULL;
  size_t bytes = 0;
  int rc = lade_file_load(path, MAX_FILE_BYTES, error, &text, &bytes);
  if (rc < 0)
    return rc;
  json_error_t json_error;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
  free(text);
  if (!root && (json_error.text[0] == 0 || json_error_code(&json_error) == json_error_out_of_memory))
    return lade_error_set(error, -ENOMEM, "%s: out of memory reading it", path); /* a syntax error always has a text */
  if (!root)
    return lade_error_set(error, -EBADMSG, "%s: line %d: not JSON: %s", path, json_error.line, json_error.text);
  struct lade_model model = {0};
  struct config config = {.path = path, .object = root, .prefix = "", .error = error};
  if (json_is_object(root))
    rc = config_read(&config, &model);
  else
    rc = lade_error_set(error, -EBADMSG, "%s: not a JSON object: expected a model's config.json", path);
  json_decref(root);
  if (rc == 0)
    *ret_model = model;
  return rc;
}

int lade_model_load(const char *path, struct lade_model *ret_model, struct lade_error *error)
{
  char config[PATH_MAX];
  struct stat st;
  if (stat(path, &st) || !S_ISDIR(st.st_mode))
    return file_load(path, ret_model, error);
  if (snprintf(config, sizeof(config), "%s/config.json", path) >= (int)sizeof(config))
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  return file_load(config, ret_model, error);
}
