/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rotary positions of a config.json.
 *
 * Both spellings are read: rope_theta with rope_scaling, and the one object rope_parameters of newer versions, which
 * may have an object for each type of layer (Gemma 3). Forms are those of transformers' modeling_rope_utils, with its
 * defaults. A form's number that would change the computation in another way is refused.
 *
 * Up to the model's context the dynamic form has no effect, and no run is longer.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "graph/config/config.h"

/* Read a list of numbers, a factor for each pair. */
static int factors_read(const struct config *config, const char *name, int64_t n, float *ret_factors)
{
  const json_t *list = field_find(config, name);
  char expected[64];
  snprintf(expected, sizeof(expected), "a list of %lld numbers, at most %d", (long long)n, LADE_ROPE_MAX_FACTORS);
  if (!json_is_array(list) || (int64_t)json_array_size(list) != n || n > LADE_ROPE_MAX_FACTORS)
    return field_refuse(config, name, expected);
  for (int64_t i = 0; i < n; i++) {
    if (!json_is_number(json_array_get(list, (size_t)i)))
      return field_refuse(config, name, expected);
    ret_factors[i] = (float)json_number_value(json_array_get(list, (size_t)i));
  }
  return 0;
}

/* Return 0.1 m ln(factor) + 1, the magnitude that Peng et al. found for YaRN. */
static double yarn_magnitude(double factor, double m)
{
  return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* Read the original context: of the form, or with @outer first of the model (Phi-3). */
static int original_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  const char *name = "original_max_position_embeddings";
  if (model->family == LADE_PHI3)
    return field_integer(outer, name, 4096, &model->rope_original_context);
  return field_integer(config, name, model->context, &model->rope_original_context);
}

/* Read the factor; absent: the context over the original one. */
static int factor_read(const struct config *config, struct lade_model *model)
{
  if (!field_find(config, "factor"))
    model->rope_scale_factor = (float)((double)model->context / (double)LADE_MAX(model->rope_original_context, 1));
  else if (field_number(config, "factor", -1, &model->rope_scale_factor) < 0)
    return -EINVAL;
  return model->rope_scale_factor >= 1 ? 0 : field_refuse(config, "factor", "a number from 1 up");
}

static int yarn_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  float m = 0, m_all = 0;
  bool is_truncated = true;
  int rc = original_read(outer, config, model);
  if (rc == 0)
    rc = factor_read(config, model);
  if (rc == 0)
    rc = field_number(config, "beta_fast", 32, &model->rope_beta_fast);
  if (rc == 0)
    rc = field_number(config, "beta_slow", 1, &model->rope_beta_slow);
  if (rc == 0)
    rc = field_boolean(config, "truncate", true, &is_truncated);
  if (rc == 0)
    rc = field_number(config, "mscale", 0, &m);
  if (rc == 0)
    rc = field_number(config, "mscale_all_dim", 0, &m_all);
  const double factor = (double)model->rope_scale_factor;
  double magnitude = yarn_magnitude(factor, 1);
  if (m != 0 && m_all != 0)
    magnitude = yarn_magnitude(factor, (double)m) / yarn_magnitude(factor, (double)m_all);
  model->rope_is_untruncated = !is_truncated;
  return rc < 0 ? rc : field_number(config, "attention_factor", (float)magnitude, &model->rope_magnitude);
}

static int longrope_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  const int64_t n = lade_model_rotary_dim(model) / 2;
  int rc = factors_read(config, "short_factor", n, model->rope_short_factors);
  if (rc == 0)
    rc = factors_read(config, "long_factor", n, model->rope_long_factors);
  if (rc == 0)
    rc = original_read(outer, config, model);
  if (rc == 0)
    rc = factor_read(config, model);
  if (rc < 0)
    return rc;
  double factor = (double)model->rope_scale_factor, magnitude = 1;
  if (factor > 1 && model->rope_original_context > 1)
    magnitude = sqrt(1 + log(factor) / log((double)model->rope_original_context));
  return field_number(config, "attention_factor", (float)magnitude, &model->rope_magnitude);
}

static int llama3_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  int rc = original_read(outer, config, model);
  if (rc == 0)
    rc = field_number(config, "factor", -1, &model->rope_scale_factor);
  if (rc == 0 && !(model->rope_scale_factor >= 1))
    rc = field_refuse(config, "factor", "a number from 1 up");
  if (rc == 0)
    rc = field_number(config, "low_freq_factor", -1, &model->rope_low_freq_factor);
  if (rc == 0)
    rc = field_number(config, "high_freq_factor", -1, &model->rope_high_freq_factor);
  return rc;
}

static int scaled_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  int rc = field_number(config, "factor", -1, &model->rope_scale_factor);
  if (rc == 0 && !(model->rope_scale_factor >= 1))
    rc = field_refuse(config, "factor", "a number from 1 up");
  return rc;
}

static int default_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  return 0;
}

/* Refuse fields that change the angles in other ways. */
static int others_refuse(const struct config *config, const struct lade_model *model)
{
  static const char *const names[] = {"mrope_section", "rope_interleaved", "llama_4_scaling_beta"};
  const size_t n = LADE_COUNT(names) - (model->family == LADE_MINISTRAL3);
  for (size_t i = 0; i < n; i++) {
    const json_t *value = field_find(config, names[i]);
    if (value && !json_is_false(value) && !(json_is_number(value) && json_number_value(value) == 0))
      return field_refuse(config, names[i], "null");
  }
  return 0;
}

/* Read the form of the angles. */
static int form_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  static const struct {
    const char *type;
    enum lade_rope_kind kind;
    int (*read)(const struct config *outer, const struct config *config, struct lade_model *model);
  } forms[] = {{"default", LADE_ROPE_LLAMA3, default_read},     {"llama3", LADE_ROPE_LLAMA3, llama3_read},
               {"linear", LADE_ROPE_LINEAR, scaled_read},       {"dynamic", LADE_ROPE_DYNAMIC, scaled_read},
               {"yarn", LADE_ROPE_YARN, yarn_read},             {"longrope", LADE_ROPE_LONGROPE, longrope_read},
               {"su", LADE_ROPE_LONGROPE, longrope_read}};
  const char *type_field = field_find(config, "rope_type") || !field_find(config, "type") ? "rope_type" : "type";
  const json_t *value = field_find(config, type_field);
  const char *type = value ? json_string_value(value) : "default";
  for (size_t i = 0; i < LADE_COUNT(forms) && type; i++) {
    if (strcmp(forms[i].type, type) != 0)
      continue;
    model->rope_kind = forms[i].kind;
    return forms[i].read(outer, config, model);
  }
  return field_refuse(config, type_field, "\"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\" or \"longrope\"");
}

/* Read the part of a head that turns: int(head_dim * factor), in double as Python has it. */
static int partial_read(const struct config *config, const char *name, struct lade_model *model)
{
  const json_t *value = field_find(config, name);
  if (!value)
    return 0;
  const double factor = json_number_value(value);
  const int64_t head_dim = lade_model_head_dim(model);
  if (!json_is_number(value) || !(factor > 0 && factor <= 1))
    return field_refuse(config, name, "a number above 0, up to 1");
  if (factor != 1 && config_fields_get(model->family)->partial_rotary == 0)
    return field_refuse(config, name, "1, or null in a model of this type");
  const int64_t rotary_dim = (int64_t)((double)head_dim * factor);
  if (rotary_dim < 2 || rotary_dim % 2)
    return field_refuse(config, name, "a factor that leaves an even part of each head");
  model->rotary_dim = rotary_dim == head_dim ? 0 : rotary_dim;
  return 0;
}

/* Read the temperature of attention. The form may have read its original context, which counts for both. */
static int temperature_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  int rc = 0;
  if (model->family == LADE_MINISTRAL3)
    rc = field_number(config, "llama_4_scaling_beta", 0, &model->attention_temperature_beta);
  if (rc < 0 || model->attention_temperature_beta == 0)
    return rc;
  if (!(model->attention_temperature_beta > 0))
    return field_refuse(config, "llama_4_scaling_beta", "a number above 0, or 0 for none");
  return original_read(outer, config, model);
}

/* Read alpha (Hunyuan), which stretches the base for all lengths: base * alpha^(D / (D - 2)). */
static int stretch_read(const struct config *config, struct lade_model *model)
{
  float alpha = 1;
  const double dim = (double)lade_model_rotary_dim(model);
  int rc = field_number(config, "alpha", 1, &alpha);
  if (rc == 0 && !(alpha > 0 && dim > 2))
    rc = field_refuse(config, "alpha", "a number above 0, or null");
  if (rc == 0)
    model->rope_base = (float)((double)model->rope_base * pow((double)alpha, dim / (dim - 2)));
  return rc;
}

static struct config inner_config(const struct config *outer, json_t *object, const char *prefix)
{
  return (struct config){.path = outer->path, .object = object, .prefix = prefix, .error = outer->error};
}

/* Read one object of the angles of all layers, or of layers with whole attention. */
static int object_read(const struct config *outer, const struct config *config, struct lade_model *model)
{
  int rc = others_refuse(config, model);
  if (rc == 0)
    rc = field_number(config, "rope_theta", model->rope_base, &model->rope_base);
  if (rc == 0)
    rc = partial_read(config, "partial_rotary_factor", model);
  if (rc == 0)
    rc = form_read(outer, config, model);
  if (rc == 0 && model->family == LADE_HUNYUAN && model->rope_kind == LADE_ROPE_DYNAMIC)
    rc = stretch_read(config, model);
  return rc < 0 ? rc : temperature_read(outer, config, model);
}

/* Read the object of windowed layers, whose form is the default one with a base. */
static int local_read(const struct config *outer, const char *name, json_t *object, struct lade_model *model)
{
  char prefix[64];
  snprintf(prefix, sizeof(prefix), "%s.sliding_attention.", name);
  const struct config config = inner_config(outer, object, prefix);
  if (!object || json_is_null(object))
    return 0;
  if (!json_is_object(object))
    return field_refuse(outer, name, "an object for each type of layer");
  int rc = others_refuse(&config, model);
  if (rc == 0)
    rc = field_choice(&config, "rope_type", true, "default", NULL);
  return rc < 0 ? rc : field_number(&config, "rope_theta", model->rope_local_base, &model->rope_local_base);
}

/* Read one of rope_scaling and rope_parameters. */
static int named_read(const struct config *outer, const char *name, struct lade_model *model)
{
  json_t *object = json_object_get(outer->object, name);
  char prefix[64];
  if (!object || json_is_null(object))
    return 0;
  if (!json_is_object(object))
    return field_refuse(outer, name, "an object or null");
  json_t *full = json_object_get(object, "full_attention"), *local = json_object_get(object, "sliding_attention");
  if (!full && !local) {
    snprintf(prefix, sizeof(prefix), "%s.", name);
    const struct config config = inner_config(outer, object, prefix);
    return object_read(outer, &config, model);
  }
  int rc = local_read(outer, name, local, model);
  if (rc < 0 || !full || json_is_null(full))
    return rc;
  if (!json_is_object(full))
    return field_refuse(outer, name, "an object for each type of layer");
  snprintf(prefix, sizeof(prefix), "%s.full_attention.", name);
  const struct config config = inner_config(outer, full, prefix);
  return object_read(outer, &config, model);
}

/* Set the form of a Ministral 3 that states none. */
static void ministral3_set(struct lade_model *model)
{
  model->rope_kind = LADE_ROPE_YARN;
  model->rope_scale_factor = 16;
  model->rope_original_context = 16384;
  model->rope_beta_fast = 32;
  model->rope_beta_slow = 1;
  model->rope_magnitude = 1;
  model->attention_temperature_beta = 0.1f;
}

/* Set the form of a CWM that states none. */
static void cwm_set(struct lade_model *model)
{
  model->rope_scale_factor = 16;
  model->rope_low_freq_factor = 1;
  model->rope_high_freq_factor = 4;
  model->rope_original_context = 8192;
}

int config_rope_read(const struct config *config, struct lade_model *model)
{
  const bool is_neox = model->family == LADE_GPT_NEOX;
  const struct config_fields *fields = config_fields_get(model->family);
  int rc = field_number(config, is_neox ? "rotary_emb_base" : "rope_theta", fields->rope_theta, &model->rope_base);
  model->rope_local_base = fields->local_theta;
  if (model->family == LADE_GEMMA3 && rc == 0)
    rc = field_number(config, "rope_local_base_freq", fields->local_theta, &model->rope_local_base);
  if (model->family == LADE_OLMO3 && rc == 0 && model->rope_base != fields->rope_theta)
    rc = field_refuse(config, "rope_theta", "500000, or rope_parameters with a base for each type of layer");
  const char *partial = is_neox ? "rotary_pct" : "partial_rotary_factor";
  if (fields->partial_rotary > 0 && rc == 0 && !field_find(config, partial))
    model->rotary_dim = (int64_t)((double)lade_model_head_dim(model) * (double)fields->partial_rotary);
  if (rc == 0)
    rc = partial_read(config, partial, model);
  if (rc == 0 && json_is_object(field_find(config, "rope_scaling")) && field_find(config, "rope_parameters"))
    rc = field_refuse(config, "rope_parameters", "null beside rope_scaling");
  const bool has_form = field_find(config, "rope_scaling") || field_find(config, "rope_parameters");
  if (model->family == LADE_MINISTRAL3 && !has_form)
    ministral3_set(model);
  if (model->family == LADE_CWM && !has_form)
    cwm_set(model);
  if (rc == 0)
    rc = named_read(config, "rope_scaling", model);
  if (rc == 0)
    rc = named_read(config, "rope_parameters", model);
  if (model->rotary_dim == lade_model_head_dim(model))
    model->rotary_dim = 0;
  return rc;
}
