/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of a model description, and the numbers that follow from it by formula.
 *
 * The limits allow models a thousand times larger in any one dimension than 10^12 parameters need. Every product of
 * them that the library forms (parameters of a model, bytes of a tensor) stays below 2^63: 10^4 layers of at most 3 *
 * 2^22 * 2^20 + 4 * 2^40 elements are 1.7 * 10^17. After the check no code tests a product of sizes again.
 *
 * The same check serves a caller's struct and a config.json. Only the names of the fields differ, so a message always
 * uses the names that the user wrote.
 */
#include <errno.h>
#include <math.h>

#include "base/base.h"
#include "graph/build.h"
#include "graph/family.h"

#define MAX_HEADS (1 << 14)
#define MAX_WIDTH (1 << 20)
#define MAX_HIDDEN (1 << 22)
#define MAX_CONTEXT (1 << 24)
#define MAX_VOCABULARY (1 << 24)

static int range_check(const char *where, const char *label, int64_t value, int64_t max, struct lade_error *error)
{
  if (value >= 1 && value <= max)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: %s is %lld: expected a whole number from 1 to %lld", where, label,
                        (long long)value, (long long)max);
}

static int divides_check(const char *where, const char *part_label, int64_t part, const char *whole_label,
                         int64_t whole, struct lade_error *error)
{
  if (whole % part == 0)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: %s is %lld: expected a divisor of %s, %lld", where, part_label,
                        (long long)part, whole_label, (long long)whole);
}

static int ranges_check(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                        struct lade_error *error)
{
  const struct {
    const char *label;
    int64_t value, max;
  } fields[] = {
      {labels->layers, model->layers, LADE_MODEL_MAX_LAYERS}, {labels->heads, model->heads, MAX_HEADS},
      {labels->n_kv_heads, model->n_kv_heads, MAX_HEADS},  {labels->width, model->width, MAX_WIDTH},
      {labels->hidden, model->hidden, MAX_HIDDEN},       {labels->context, model->context, MAX_CONTEXT},
      {labels->vocabulary, model->vocabulary, MAX_VOCABULARY},
  };
  int rc = 0;
  for (size_t i = 0; i < LADE_COUNT(fields) && rc == 0; i++)
    rc = range_check(where, fields[i].label, fields[i].value, fields[i].max, error);
  return rc;
}

/* Check the width of a head: given, or a part of the model's width. All heads together have a limit of their own. */
static int head_check(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                      struct lade_error *error)
{
  if (!model->head_dim)
    return divides_check(where, labels->heads, model->heads, labels->width, model->width, error);
  if (model->family == LADE_GPT2)
    return lade_error_set(error, -EINVAL, "%s: head_dim is %lld: expected none in a GPT-2 model", where,
                          (long long)model->head_dim);
  return range_check(where, "head_dim", model->head_dim, MAX_WIDTH / model->heads, error);
}

static bool is_number_above(float value, float min)
{
  return isfinite(value) && value > min;
}

/* Check the numbers of a form of the rotary frequencies. */
static int rope_form_check(const struct lade_model *model, const char *where, struct lade_error *error)
{
  if (!(isfinite(model->rope_magnitude) && model->rope_magnitude >= 0))
    return lade_error_set(error, -EINVAL, "%s: rope_scaling.attention_factor is %g: expected a number above 0", where,
                          (double)model->rope_magnitude);
  if (!(isfinite(model->attention_temperature_beta) && model->attention_temperature_beta >= 0) ||
      (model->attention_temperature_beta > 0 && model->rotary_dim))
    return lade_error_set(error, -EINVAL, "%s: attention_temperature_beta is %g: expected a number above 0 for whole "
                          "heads, or 0 for none", where, (double)model->attention_temperature_beta);
  if (model->rope_kind == LADE_ROPE_LONGROPE && lade_model_rotary_dim(model) / 2 > LADE_ROPE_MAX_FACTORS)
    return lade_error_set(error, -EINVAL, "%s: rope_scaling.type is longrope with %lld factors: expected at most %d",
                          where, (long long)(lade_model_rotary_dim(model) / 2), LADE_ROPE_MAX_FACTORS);
  for (int64_t j = 0; model->rope_kind == LADE_ROPE_LONGROPE && j < lade_model_rotary_dim(model) / 2; j++)
    if (!is_number_above(model->rope_short_factors[j], 0) || !is_number_above(model->rope_long_factors[j], 0))
      return lade_error_set(error, -EINVAL, "%s: rope_scaling has short factor %g and long factor %g of pair %lld: "
                            "expected numbers above 0", where, (double)model->rope_short_factors[j],
                            (double)model->rope_long_factors[j], (long long)j);
  if (model->rope_kind == LADE_ROPE_YARN && !(is_number_above(model->rope_beta_slow, 0) &&
                                              is_number_above(model->rope_beta_fast, model->rope_beta_slow)))
    return lade_error_set(error, -EINVAL,
                          "%s: rope_scaling.beta_slow is %g and beta_fast is %g: expected 0 < slow < fast",
                          where, (double)model->rope_beta_slow, (double)model->rope_beta_fast);
  if (model->rope_kind != LADE_ROPE_LLAMA3 || model->rope_scale_factor == 0)
    return 0;
  if (!(isfinite(model->rope_high_freq_factor) && model->rope_low_freq_factor > 0 &&
        model->rope_high_freq_factor > model->rope_low_freq_factor))
    return lade_error_set(error, -EINVAL,
                          "%s: rope_scaling.low_freq_factor is %g and high_freq_factor is %g: expected 0 < low < high",
                          where, (double)model->rope_low_freq_factor, (double)model->rope_high_freq_factor);
  return 0;
}

/* Check the rotary positions: pairs within a head, bases, and the form of the frequencies. */
static int rope_check(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                      struct lade_error *error)
{
  const int64_t rotary_dim = lade_model_rotary_dim(model), head_dim = lade_model_head_dim(model);
  const bool has_original = model->rope_kind == LADE_ROPE_YARN || model->rope_kind == LADE_ROPE_LONGROPE ||
                            model->attention_temperature_beta > 0 ||
                            (model->rope_kind == LADE_ROPE_LLAMA3 && model->rope_scale_factor != 0);
  if (model->rotary_dim && (rotary_dim % 2 || rotary_dim < 2 || rotary_dim > head_dim))
    return lade_error_set(error, -EINVAL, "%s: %lld numbers of a head of %lld turn: expected an even number of them "
                          "for rotary positions", where, (long long)rotary_dim, (long long)head_dim);
  if (rotary_dim % 2 && model->head_dim)
    return lade_error_set(error, -EINVAL, "%s: head_dim is %lld: expected an even number for rotary positions", where,
                          (long long)head_dim);
  if (rotary_dim % 2)
    return lade_error_set(error, -EINVAL, "%s: %s / %s is %lld: expected an even number for rotary positions", where,
                          labels->width, labels->heads, (long long)head_dim);
  if (!is_number_above(model->rope_base, 1))
    return lade_error_set(error, -EINVAL, "%s: rope_theta is %g: expected a number above 1", where,
                          (double)model->rope_base);
  if (model->rope_local_base != 0 && !is_number_above(model->rope_local_base, 1))
    return lade_error_set(error, -EINVAL, "%s: rope_local_base_freq is %g: expected a number above 1", where,
                          (double)model->rope_local_base);
  if ((unsigned)model->rope_kind > LADE_ROPE_DYNAMIC)
    return lade_error_set(error, -EINVAL, "%s: rope_kind is %d: expected one of enum lade_rope_kind", where,
                          (int)model->rope_kind);
  const bool has_factor = model->rope_scale_factor != 0 || (model->rope_kind != LADE_ROPE_LLAMA3 &&
                                                            model->rope_kind != LADE_ROPE_LONGROPE);
  if (has_factor && !(isfinite(model->rope_scale_factor) && model->rope_scale_factor >= 1))
    return lade_error_set(error, -EINVAL, "%s: rope_scaling.factor is %g: expected a number from 1 up", where,
                          (double)model->rope_scale_factor);
  int rc = rope_form_check(model, where, error);
  if (rc == 0 && has_original)
    rc = range_check(where, "rope_scaling.original_max_position_embeddings", model->rope_original_context,
                     MAX_CONTEXT, error);
  return rc;
}

/* Check the form of attention's scores. */
static int attention_check(const struct lade_model *model, const char *where, struct lade_error *error)
{
  if (!(isfinite(model->attention_scale) && model->attention_scale >= 0))
    return lade_error_set(error, -EINVAL, "%s: attention_scale is %g: expected a number above 0, or 0 for the default",
                          where, (double)model->attention_scale);
  if (!(isfinite(model->attention_softcap) && model->attention_softcap >= 0))
    return lade_error_set(error, -EINVAL, "%s: attention_softcap is %g: expected a number above 0, or 0 for none",
                          where, (double)model->attention_softcap);
  if (!(isfinite(model->alibi_max) && model->alibi_max >= 0))
    return lade_error_set(error, -EINVAL, "%s: alibi_max is %g: expected a number above 0, or 0 for none", where,
                          (double)model->alibi_max);
  if (model->alibi_max > 0 && lade_family_get(model->family)->has_positions)
    return lade_error_set(error, -EINVAL, "%s: alibi_max is %g: expected none in a GPT-2 model", where,
                          (double)model->alibi_max);
  if (!(isfinite(model->qkv_clip) && model->qkv_clip >= 0))
    return lade_error_set(error, -EINVAL, "%s: qkv_clip is %g: expected a number above 0, or 0 for none", where,
                          (double)model->qkv_clip);
  if (model->window < 0)
    return lade_error_set(error, -EINVAL, "%s: window is %lld: expected a number of tokens, or 0 for none", where,
                          (long long)model->window);
  return 0;
}

/* Check the facts that vary within families. */
static int form_check(const struct lade_model *model, const char *where, struct lade_error *error)
{
  const struct lade_family_row *row = lade_family_get(model->family);
  if ((unsigned)model->activation >= LADE_CLAMP || model->biases & ~(unsigned)LADE_BIAS_ALL)
    return lade_error_set(error, -EINVAL, "%s: activation is %d and biases are %#x: expected those of the enums", where,
                          (int)model->activation, model->biases);
  if (model->n_parallel_norms < 0 || model->n_parallel_norms > 2 ||
      (model->n_parallel_norms && row->place != LADE_NORMS_BEFORE))
    return lade_error_set(error, -EINVAL, "%s: n_parallel_norms is %d: expected 0%s", where, model->n_parallel_norms,
                          row->place == LADE_NORMS_BEFORE ? ", 1 or 2" : " in this family");
  if (!(isfinite(model->embedding_scale) && model->embedding_scale >= 0))
    return lade_error_set(error, -EINVAL, "%s: embedding_scale is %g: expected a number above 0, or 0 for none", where,
                          (double)model->embedding_scale);
  if (!(isfinite(model->residual_scale) && model->residual_scale >= 0))
    return lade_error_set(error, -EINVAL, "%s: residual_scale is %g: expected a number above 0, or 0 for none", where,
                          (double)model->residual_scale);
  if (!(isfinite(model->logit_scale) && model->logit_scale >= 0))
    return lade_error_set(error, -EINVAL, "%s: logit_scale is %g: expected a number above 0, or 0 for none", where,
                          (double)model->logit_scale);
  if (!(isfinite(model->logit_softcap) && model->logit_softcap >= 0))
    return lade_error_set(error, -EINVAL, "%s: logit_softcap is %g: expected a number above 0, or 0 for none", where,
                          (double)model->logit_softcap);
  if (model->has_pad_token && (model->pad_token < 0 || model->pad_token >= model->vocabulary))
    return lade_error_set(error, -EINVAL, "%s: pad_token_id is %lld: expected a token of the vocabulary, below %lld",
                          where, (long long)model->pad_token, (long long)model->vocabulary);
  return 0;
}

int lade_model_check_as(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                        struct lade_error *error)
{
  if ((unsigned)model->family >= LADE_N_FAMILIES)
    return lade_error_set(error, -EINVAL, "%s: family is %d: expected one of enum lade_family", where,
                          (int)model->family);
  int rc = ranges_check(model, where, labels, error);
  if (rc == 0)
    rc = head_check(model, where, labels, error);
  if (rc == 0)
    rc = attention_check(model, where, error);
  if (rc == 0)
    rc = divides_check(where, labels->n_kv_heads, model->n_kv_heads, labels->heads, model->heads, error);
  if (rc == 0)
    rc = form_check(model, where, error);
  if (rc < 0)
    return rc;
  if (!(model->norm_eps > 0 && model->norm_eps < 1))
    return lade_error_set(error, -EINVAL, "%s: %s is %g: expected a number between 0 and 1", where,
                          labels->norm_eps, (double)model->norm_eps);
  if (lade_model_has_rope(model))
    return rope_check(model, where, labels, error);
  if (model->family != LADE_GPT2)
    return 0;
  if (model->has_sinks)
    return lade_error_set(error, -EINVAL, "%s: the model has sinks: expected none in a GPT-2 model", where);
  if (model->n_kv_heads != model->heads)
    return lade_error_set(error, -EINVAL, "%s: %s is %lld: expected %s, %lld, in a GPT-2 model", where,
                          labels->n_kv_heads, (long long)model->n_kv_heads, labels->heads, (long long)model->heads);
  return 0;
}

int lade_model_check(const struct lade_model *model, struct lade_error *error)
{
  static const struct lade_model_labels labels = {"layers", "heads",   "n_kv_heads", "width",
                                                  "hidden", "context", "vocabulary", "norm_eps"};
  char where[LADE_NAME_BYTES + 8] = "model ";
  for (size_t i = 0; i < LADE_NAME_BYTES && model->name[i]; i++)
    where[6 + i] = model->name[i];
  return lade_model_check_as(model, where, &labels, error);
}

/* Return the matmul weights of one block. */
static int64_t block_weights(const struct lade_model *model)
{
  int64_t d = model->width, head_dim = lade_model_head_dim(model);
  int64_t attention = d * head_dim * 2 * (model->heads + model->n_kv_heads); /* queries and output, keys and values */
  int64_t n_mlp = lade_family_get(model->family)->is_gated ? 3 : 2;
  return attention + n_mlp * d * model->hidden;
}

/* Return the elements of one norm. */
static int64_t norm_elements(const struct lade_model *model)
{
  return model->width * (1 + lade_model_has_bias(model, LADE_BIAS_NORM));
}

int64_t lade_model_layer_n_params(const struct lade_model *model)
{
  const struct lade_family_row *row = lade_family_get(model->family);
  const int64_t head_dim = lade_model_head_dim(model), queries = model->heads * head_dim;
  const int64_t keys = model->n_kv_heads * head_dim;
  int64_t n = block_weights(model) + lade_model_layer_n_norms(model) * norm_elements(model);
  n += lade_model_has_bias(model, LADE_BIAS_QKV) ? queries + 2 * keys : 0;
  n += lade_model_has_bias(model, LADE_BIAS_OUT) ? model->width : 0;
  n += lade_model_has_bias(model, LADE_BIAS_MLP) ? model->hidden * (row->is_gated ? 2 : 1) + model->width : 0;
  n += row->qk_norm == LADE_QK_NORM_HEAD ? 2 * head_dim : 0;
  n += row->qk_norm == LADE_QK_NORM_WIDTH ? queries + keys : 0;
  return n + (model->has_sinks ? model->heads : 0);
}

int64_t lade_model_n_params(const struct lade_model *model)
{
  int64_t d = model->width, n = model->vocabulary * d * (model->is_tied ? 1 : 2) + norm_elements(model);
  if (lade_family_get(model->family)->table_norm)
    n += norm_elements(model);
  if (lade_family_get(model->family)->has_positions)
    n += model->context * d;
  return n + model->layers * lade_model_layer_n_params(model);
}

/* Return twice the mean number of keys that a query sees, over all layers; causal attention counts half of @seq_len. */
static double keys_count(const struct lade_model *model, int64_t seq_len)
{
  double t = (double)seq_len, window = (double)LADE_MIN(model->window, seq_len), n_windowed = 0;
  for (int64_t i = 0; model->window > 0 && i < model->layers; i++)
    n_windowed += lade_layer_set_has(&model->windowed, i);
  return ((double)model->layers - n_windowed) * t + n_windowed * window * (2 - window / t);
}

double lade_model_flops_per_token(const struct lade_model *model, int64_t seq_len)
{
  double heads = (double)(model->heads * lade_model_head_dim(model)), layers = (double)model->layers;
  double weights = layers * (double)block_weights(model) + (double)model->vocabulary * (double)model->width;
  return 6 * weights + 6 * heads * keys_count(model, seq_len);
}
