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

#define MAX_HEADS (1 << 14)
#define MAX_WIDTH (1 << 20)
#define MAX_HIDDEN (1 << 22)
#define MAX_CONTEXT (1 << 24)
#define MAX_VOCABULARY (1 << 24)

static int range_check(const char *where, const char *label, int64_t value, int64_t most, struct lade_error *error)
{
  if (value >= 1 && value <= most)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: %s is %lld: expected a whole number from 1 to %lld", where, label,
                        (long long)value, (long long)most);
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
    int64_t value, most;
  } fields[] = {
      {labels->layers, model->layers, LADE_MODEL_MOST_LAYERS}, {labels->heads, model->heads, MAX_HEADS},
      {labels->n_kv_heads, model->n_kv_heads, MAX_HEADS},  {labels->width, model->width, MAX_WIDTH},
      {labels->hidden, model->hidden, MAX_HIDDEN},       {labels->context, model->context, MAX_CONTEXT},
      {labels->vocabulary, model->vocabulary, MAX_VOCABULARY},
  };
  int rc = 0;
  for (size_t i = 0; i < LADE_COUNT(fields) && rc == 0; i++)
    rc = range_check(where, fields[i].label, fields[i].value, fields[i].most, error);
  return rc;
}

/* Check the width of a head: given, or a part of the model's width. All heads together have a limit of their own. */
static int head_check(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                      struct lade_error *error)
{
  if (!model->head_dim)
    return divides_check(where, labels->heads, model->heads, labels->width, model->width, error);
  if (model->family != LADE_LLAMA)
    return lade_error_set(error, -EINVAL, "%s: head_dim is %lld: expected none in a GPT-2 model", where,
                          (long long)model->head_dim);
  return range_check(where, "head_dim", model->head_dim, MAX_WIDTH / model->heads, error);
}

/* Check the rotary positions: pairs within a head, a base, and Llama 3.1's bands in order. */
static int rope_check(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                      struct lade_error *error)
{
  if (model->head_dim % 2 != 0)
    return lade_error_set(error, -EINVAL, "%s: head_dim is %lld: expected an even number for rotary positions", where,
                          (long long)model->head_dim);
  if (lade_model_head_dim(model) % 2 != 0)
    return lade_error_set(error, -EINVAL, "%s: %s / %s is %lld: expected an even number for rotary positions", where,
                          labels->width, labels->heads, (long long)(model->width / model->heads));
  if (!(isfinite(model->rope_base) && model->rope_base > 1))
    return lade_error_set(error, -EINVAL, "%s: rope_theta is %g: expected a number above 1", where,
                          (double)model->rope_base);
  if (model->rope_scale_factor == 0)
    return 0;
  if (!(isfinite(model->rope_scale_factor) && model->rope_scale_factor >= 1))
    return lade_error_set(error, -EINVAL, "%s: rope_scaling.factor is %g: expected a number from 1 up", where,
                          (double)model->rope_scale_factor);
  if (!(isfinite(model->rope_high_freq_factor) && model->rope_low_freq_factor > 0 &&
        model->rope_high_freq_factor > model->rope_low_freq_factor))
    return lade_error_set(error, -EINVAL,
                          "%s: rope_scaling.low_freq_factor is %g and high_freq_factor is %g: expected 0 < low < high",
                          where, (double)model->rope_low_freq_factor, (double)model->rope_high_freq_factor);
  return range_check(where, "rope_scaling.original_max_position_embeddings", model->rope_original_context,
                     MAX_CONTEXT, error);
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
  if (model->window < 0)
    return lade_error_set(error, -EINVAL, "%s: window is %lld: expected a number of tokens, or 0 for none", where,
                          (long long)model->window);
  return 0;
}

int lade_model_check_as(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                        struct lade_error *error)
{
  int rc = ranges_check(model, where, labels, error);
  if (rc == 0)
    rc = head_check(model, where, labels, error);
  if (rc == 0)
    rc = attention_check(model, where, error);
  if (rc == 0)
    rc = divides_check(where, labels->n_kv_heads, model->n_kv_heads, labels->heads, model->heads, error);
  if (rc < 0)
    return rc;
  if (!(model->norm_eps > 0 && model->norm_eps < 1))
    return lade_error_set(error, -EINVAL, "%s: %s is %g: expected a number between 0 and 1", where,
                          labels->norm_eps, (double)model->norm_eps);
  if (model->family == LADE_LLAMA)
    return rope_check(model, where, labels, error);
  if (model->family != LADE_GPT2)
    return lade_error_set(error, -EINVAL, "%s: family is %d: expected gpt2 or llama", where, (int)model->family);
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
  int64_t n_mlp = model->family == LADE_GPT2 ? 2 : 3;
  return attention + n_mlp * d * model->hidden;
}

int64_t lade_model_layer_n_params(const struct lade_model *model)
{
  int64_t d = model->width;
  if (model->family == LADE_LLAMA)
    return block_weights(model) + 2 * d + (model->has_sinks ? model->heads : 0);
  int64_t vectors = 4 * d + 3 * d + d + model->hidden + d; /* two norms; biases of qkv, proj, fc, proj */
  return block_weights(model) + vectors;
}

int64_t lade_model_n_params(const struct lade_model *model)
{
  int64_t d = model->width, n = model->vocabulary * d * (model->is_tied ? 1 : 2);
  int64_t others = model->family == LADE_LLAMA ? d : model->context * d + 2 * d; /* last norm; positions */
  return n + others + model->layers * lade_model_layer_n_params(model);
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
