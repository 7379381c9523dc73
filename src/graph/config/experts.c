/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of config.json for mixtures of experts, their presets, and their parameter counts.
 *
 * Only fields that decide a size are read: the order of experts, their scores and the rotary positions change numbers,
 * not memory or time, and these models are only planned. Fields with a default in transformers have the same default
 * here. A field that would change a size in a way that is not known here is refused.
 *
 * Counts are those of transformers' classes for causal language models, to the unit. The bias that DeepSeek-V3 adds to
 * scores is a buffer there, and the layer for predicting a second token is not loaded; neither is counted.
 */
#include "graph/experts.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/file.h"
#include "graph/config/config.h"

/* Limits of sizes, such that the parameters of a layer are below 2^53. */
#define MAX_WIDTH (1 << 17)
#define MAX_HIDDEN (1 << 19)
#define MAX_RANK (1 << 16)
#define MAX_HEADS (1 << 12)
#define MAX_HEAD_DIM (1 << 12)
#define MAX_EXPERTS (1 << 14)
#define MAX_CONTEXT (1 << 24)
#define MAX_VOCABULARY (1 << 24)
#define MAX_PARAMS 1e15

struct reader {
  struct config config;
  struct lade_experts *model;
  int rc; /* the first failure */
};

/* ---- fields ---- */

static void refuse(struct reader *r, const char *name, const char *expected)
{
  if (!r->rc)
    r->rc = field_refuse(&r->config, name, expected);
}

static const json_t *find(const struct reader *r, const char *name)
{
  return field_find(&r->config, name);
}

/* Read a whole number from @min to @max. @fallback below 0: the field is required. */
static int64_t number(struct reader *r, const char *name, int64_t fallback, int64_t min, int64_t max)
{
  char expected[64];
  const json_t *value = find(r, name);
  if (!value && fallback >= 0)
    return fallback;
  if (json_is_integer(value) && json_integer_value(value) >= min && json_integer_value(value) <= max)
    return json_integer_value(value);
  snprintf(expected, sizeof(expected), "a whole number from %lld to %lld", (long long)min, (long long)max);
  refuse(r, name, expected);
  return min;
}

static int64_t hidden(struct reader *r, const char *name)
{
  return number(r, name, -1, 1, MAX_HIDDEN);
}

static bool flag(struct reader *r, const char *name, bool fallback)
{
  bool value = fallback;
  const int rc = r->rc ? 0 : field_boolean(&r->config, name, fallback, &value);
  r->rc = r->rc ? r->rc : rc;
  return value;
}

/* Read the number of experts, which newer files name otherwise. */
static int64_t experts_number(struct reader *r, const char *name)
{
  const bool is_local = !find(r, name) && find(r, "num_local_experts");
  return number(r, is_local ? "num_local_experts" : name, -1, 1, MAX_EXPERTS);
}

/* ---- parts of a model ---- */

static void common_read(struct reader *r)
{
  struct lade_experts *model = r->model;
  model->layers = number(r, "num_hidden_layers", -1, 1, LADE_EXPERTS_MAX_LAYERS);
  model->width = number(r, "hidden_size", -1, 1, MAX_WIDTH);
  model->heads = number(r, "num_attention_heads", -1, 1, MAX_HEADS);
  model->n_kv_heads = number(r, "num_key_value_heads", model->heads, 1, MAX_HEADS);
  model->vocabulary = number(r, "vocab_size", -1, 1, MAX_VOCABULARY);
  model->context = number(r, "max_position_embeddings", -1, 1, MAX_CONTEXT);
  model->n_active = number(r, "num_experts_per_tok", -1, 1, MAX_EXPERTS);
  model->is_tied = flag(r, "tie_word_embeddings", false);
  const char *activation = json_string_value(find(r, "hidden_act"));
  if (activation && strcmp(activation, "silu") && strcmp(activation, "swish"))
    refuse(r, "hidden_act", "\"silu\"");
}

/* Read the width of a head and the KV heads. Files that do not state the latter have other defaults in each family. */
static void head_read(struct reader *r, int64_t fallback, bool has_kv_default)
{
  struct lade_experts *model = r->model;
  if (!has_kv_default && !find(r, "num_key_value_heads"))
    refuse(r, "num_key_value_heads", "a whole number");
  if (!find(r, "head_dim") && !fallback && model->width % model->heads)
    refuse(r, "num_attention_heads", "a divisor of hidden_size");
  model->head_dim = number(r, "head_dim", fallback ? fallback : model->width / model->heads, 1,
                           MAX_HEAD_DIM);
  if (model->heads % model->n_kv_heads)
    refuse(r, "num_key_value_heads", "a divisor of num_attention_heads");
}

static void dense_add(struct lade_experts *model, int64_t layer)
{
  model->dense[layer / 64] |= UINT64_C(1) << (layer % 64);
}

/* Read the layers without experts of Qwen's models: all but every decoder_sparse_step-th, and mlp_only_layers. */
static void qwen_layers_read(struct reader *r)
{
  struct lade_experts *model = r->model;
  const int64_t step = number(r, "decoder_sparse_step", 1, 1, LADE_EXPERTS_MAX_LAYERS);
  const json_t *listed = find(r, "mlp_only_layers");
  for (int64_t layer = 0; layer < model->layers; layer++) {
    if ((layer + 1) % step)
      dense_add(model, layer);
  }
  for (size_t i = 0; i < json_array_size(listed); i++) {
    const int64_t layer = json_integer_value(json_array_get(listed, i));
    if (!json_is_integer(json_array_get(listed, i)) || layer < 0 || layer >= model->layers)
      refuse(r, "mlp_only_layers", "layers of the model");
    else
      dense_add(model, layer);
  }
}

/* Read the layers without experts of DeepSeek's: the first ones, or as the list mlp_layer_types says. */
static void deepseek_layers_read(struct reader *r, int64_t fallback)
{
  struct lade_experts *model = r->model;
  const json_t *types = find(r, "mlp_layer_types");
  const int64_t n_first = number(r, "first_k_dense_replace", fallback, 0, LADE_EXPERTS_MAX_LAYERS);
  if (number(r, "moe_layer_freq", 1, 1, LADE_EXPERTS_MAX_LAYERS) != 1)
    refuse(r, "moe_layer_freq", "1");
  if (types && json_array_size(types) != (size_t)model->layers)
    refuse(r, "mlp_layer_types", "one entry for each layer");
  for (int64_t layer = 0; layer < model->layers; layer++) {
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    if (types ? type && !strcmp(type, "dense") : layer < n_first)
      dense_add(model, layer);
  }
}

/* ---- families ---- */

static void mixtral_read(struct reader *r)
{
  head_read(r, 0, false);
  r->model->n_experts = experts_number(r, "num_local_experts");
  r->model->hidden = r->model->expert_hidden = hidden(r, "intermediate_size");
}

static void qwen2_read(struct reader *r)
{
  struct lade_experts *model = r->model;
  head_read(r, 0, false);
  model->n_experts = experts_number(r, "num_experts");
  model->hidden = hidden(r, "intermediate_size");
  model->expert_hidden = hidden(r, "moe_intermediate_size");
  model->shared_hidden = hidden(r, "shared_expert_intermediate_size");
  model->has_shared_gate = true;
  model->has_qkv_bias = flag(r, "qkv_bias", true);
  qwen_layers_read(r);
}

static void qwen3_read(struct reader *r)
{
  struct lade_experts *model = r->model;
  head_read(r, 128, false);
  model->n_experts = experts_number(r, "num_experts");
  model->hidden = hidden(r, "intermediate_size");
  model->expert_hidden = hidden(r, "moe_intermediate_size");
  model->has_qkv_bias = model->has_out_bias = flag(r, "attention_bias", false);
  model->q_norm = model->k_norm = model->head_dim;
  qwen_layers_read(r);
}

static void olmoe_read(struct reader *r)
{
  struct lade_experts *model = r->model;
  head_read(r, 0, true);
  model->n_experts = experts_number(r, "num_experts");
  model->hidden = model->expert_hidden = hidden(r, "intermediate_size");
  model->has_qkv_bias = model->has_out_bias = flag(r, "attention_bias", false);
  model->q_norm = model->heads * model->head_dim;
  model->k_norm = model->n_kv_heads * model->head_dim;
}

/* Read latent attention and shared experts. Keys have as many heads as queries. */
static void deepseek_read(struct reader *r, int64_t n_first_dense)
{
  struct lade_experts *model = r->model;
  model->n_kv_heads = model->heads;
  model->n_experts = experts_number(r, "n_routed_experts");
  model->hidden = hidden(r, "intermediate_size");
  model->expert_hidden = hidden(r, "moe_intermediate_size");
  model->shared_hidden = number(r, "n_shared_experts", 0, 0, 64) * model->expert_hidden;
  model->latent = (struct lade_latent_attention){
      .q_rank = number(r, "q_lora_rank", 0, 1, MAX_RANK), .kv_rank = number(r, "kv_lora_rank", -1, 1, MAX_RANK),
      .nope_dim = number(r, "qk_nope_head_dim", -1, 1, MAX_HEAD_DIM),
      .rope_dim = number(r, "qk_rope_head_dim", -1, 1, MAX_HEAD_DIM),
      .v_dim = number(r, "v_head_dim", -1, 1, MAX_HEAD_DIM)};
  model->head_dim = model->latent.nope_dim + model->latent.rope_dim;
  model->has_qkv_bias = model->has_out_bias = flag(r, "attention_bias", false);
  if (flag(r, "mlp_bias", false))
    refuse(r, "mlp_bias", "false");
  deepseek_layers_read(r, n_first_dense);
}

static void deepseek_v2_read(struct reader *r)
{
  deepseek_read(r, 0);
}

static void deepseek_v3_read(struct reader *r)
{
  deepseek_read(r, 3);
}

static const struct {
  const char *type;
  void (*read)(struct reader *r);
} families[] = {{"mixtral", mixtral_read}, {"qwen2_moe", qwen2_read},         {"qwen3_moe", qwen3_read},
                {"olmoe", olmoe_read},     {"deepseek_v2", deepseek_v2_read}, {"deepseek_v3", deepseek_v3_read}};

bool lade_experts_has_type(const char *model_type)
{
  for (size_t i = 0; i < LADE_COUNT(families) && model_type; i++) {
    if (strcmp(families[i].type, model_type) == 0)
      return true;
  }
  return false;
}

const char *lade_experts_type(int i)
{
  return i >= 0 && i < (int)LADE_COUNT(families) ? families[i].type : NULL;
}

int lade_experts_refuse(const char *name, struct lade_error *error)
{
  return lade_error_set(error, -EINVAL, "%.200s is a mixture of experts, which is planned on one rank and not trained: "
                        "lade plan --model %.200s", name, name);
}

/* ---- presets ---- */

#define LAYERS_DENSE_1 {1}
#define LAYERS_DENSE_3 {7}
#define LATENT(q_rank_) {.q_rank = q_rank_, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128}
#define QWEN3(layers_, width_, heads_, hidden_, expert_hidden_) \
  .layers = layers_, .width = width_, .heads = heads_, .n_kv_heads = 4, .head_dim = 128, .context = 40960, \
  .vocabulary = 151936, .hidden = hidden_, .expert_hidden = expert_hidden_, .n_experts = 128, .n_active = 8, \
  .q_norm = 128, .k_norm = 128

static const struct lade_experts presets[] = {
    {.name = "mixtral-8x7b", .layers = 32, .width = 4096, .heads = 32, .n_kv_heads = 8, .head_dim = 128,
     .context = 32768, .vocabulary = 32000, .hidden = 14336, .expert_hidden = 14336, .n_experts = 8, .n_active = 2},
    {.name = "mixtral-8x22b", .layers = 56, .width = 6144, .heads = 48, .n_kv_heads = 8, .head_dim = 128,
     .context = 65536, .vocabulary = 32768, .hidden = 16384, .expert_hidden = 16384, .n_experts = 8, .n_active = 2},
    {.name = "qwen1.5-moe-a2.7b", .layers = 24, .width = 2048, .heads = 16, .n_kv_heads = 16, .head_dim = 128,
     .context = 8192, .vocabulary = 151936, .hidden = 5632, .expert_hidden = 1408, .shared_hidden = 5632,
     .n_experts = 60, .n_active = 4, .has_shared_gate = true, .has_qkv_bias = true},
    {.name = "qwen2-57b-a14b", .layers = 28, .width = 3584, .heads = 28, .n_kv_heads = 4, .head_dim = 128,
     .context = 32768, .vocabulary = 151936, .hidden = 18944, .expert_hidden = 2560, .shared_hidden = 20480,
     .n_experts = 64, .n_active = 8, .has_shared_gate = true, .has_qkv_bias = true},
    {.name = "qwen3-30b-a3b", QWEN3(48, 2048, 32, 6144, 768)},
    {.name = "qwen3-235b-a22b", QWEN3(94, 4096, 64, 12288, 1536)},
    {.name = "olmoe-1b-7b", .layers = 16, .width = 2048, .heads = 16, .n_kv_heads = 16, .head_dim = 128,
     .context = 4096, .vocabulary = 50304, .hidden = 1024, .expert_hidden = 1024, .n_experts = 64, .n_active = 8,
     .q_norm = 2048, .k_norm = 2048},
    {.name = "deepseek-v2-lite", .layers = 27, .width = 2048, .heads = 16, .n_kv_heads = 16, .head_dim = 192,
     .context = 163840, .vocabulary = 102400, .hidden = 10944, .expert_hidden = 1408, .shared_hidden = 2816,
     .n_experts = 64, .n_active = 6, .latent = LATENT(0), .dense = LAYERS_DENSE_1},
    {.name = "deepseek-v2", .layers = 60, .width = 5120, .heads = 128, .n_kv_heads = 128, .head_dim = 192,
     .context = 163840, .vocabulary = 102400, .hidden = 12288, .expert_hidden = 1536, .shared_hidden = 3072,
     .n_experts = 160, .n_active = 6, .latent = LATENT(1536), .dense = LAYERS_DENSE_1},
    {.name = "deepseek-v3", .layers = 61, .width = 7168, .heads = 128, .n_kv_heads = 128, .head_dim = 192,
     .context = 163840, .vocabulary = 129280, .hidden = 18432, .expert_hidden = 2048, .shared_hidden = 2048,
     .n_experts = 256, .n_active = 8, .latent = LATENT(1536), .dense = LAYERS_DENSE_3},
};

const char *lade_experts_preset_name(int i)
{
  return i >= 0 && i < (int)LADE_COUNT(presets) ? presets[i].name : NULL;
}

/* ---- counts ---- */

static int64_t latent_n_params(const struct lade_experts *model)
{
  const struct lade_latent_attention *latent = &model->latent;
  const int64_t d = model->width, q = model->heads * (latent->nope_dim + latent->rope_dim);
  const int64_t of_q = latent->q_rank ? latent->q_rank * (d + q + 1) : d * q; /* and the norm between two products */
  const int64_t of_kv = d * (latent->kv_rank + latent->rope_dim) + latent->kv_rank +
                        latent->kv_rank * model->heads * (latent->nope_dim + latent->v_dim);
  const int64_t biases = (latent->q_rank ? latent->q_rank : 0) + latent->kv_rank + latent->rope_dim + d;
  return of_q + of_kv + model->heads * latent->v_dim * d + (model->has_qkv_bias ? biases : 0);
}

static int64_t attention_n_params(const struct lade_experts *model)
{
  const int64_t d = model->width, q = model->heads * model->head_dim, kv = model->n_kv_heads * model->head_dim;
  if (model->latent.kv_rank)
    return latent_n_params(model);
  return 2 * d * (q + kv) + (model->has_qkv_bias ? q + 2 * kv : 0) + (model->has_out_bias ? d : 0) + model->q_norm +
         model->k_norm;
}

/* Count the parameters of a layer's MLP with @n_experts of its experts. */
static int64_t mlp_n_params(const struct lade_experts *model, int64_t layer, int64_t n_experts)
{
  const int64_t d = model->width;
  if (lade_experts_is_dense(model, layer))
    return 3 * d * model->hidden;
  return model->n_experts * d /* the router */ + 3 * d * (n_experts * model->expert_hidden + model->shared_hidden) +
         (model->has_shared_gate ? d : 0);
}

/* Return a bound on the parameters of a layer. */
static int64_t layer_max_params(const struct lade_experts *model)
{
  const int64_t d = model->width;
  return attention_n_params(model) + 2 * d + model->n_experts * d +
         3 * d * (model->n_experts * model->expert_hidden + model->shared_hidden + model->hidden) + d;
}

static int64_t n_params_of(const struct lade_experts *model, int64_t n_experts)
{
  const int64_t d = model->width;
  int64_t n = model->vocabulary * d * (model->is_tied ? 1 : 2) + d;
  for (int64_t layer = 0; layer < model->layers; layer++)
    n += attention_n_params(model) + 2 * d + mlp_n_params(model, layer, n_experts);
  return n;
}

/* ---- files ---- */

/* Read a whole model. pre: its type is one of the families'. */
static int model_read(struct reader *r, const char *type)
{
  common_read(r);
  snprintf(r->model->name, sizeof(r->model->name), "%s", type);
  for (size_t i = 0; i < LADE_COUNT(families) && !r->rc; i++) {
    if (strcmp(families[i].type, type) == 0)
      families[i].read(r);
  }
  if (r->model->n_active > r->model->n_experts)
    refuse(r, "num_experts_per_tok", "at most the number of experts");
  if (!r->rc && (double)r->model->layers * (double)layer_max_params(r->model) > MAX_PARAMS)
    refuse(r, "num_hidden_layers", "a model of at most 10^15 parameters");
  return r->rc;
}

static int file_load(const char *path, struct lade_experts *ret_model, struct lade_error *error)
{
  char *text = NULL;
  size_t bytes = 0;
  if (lade_file_load(path, CONFIG_MAX_BYTES, NULL, &text, &bytes))
    return -ENOENT; /* the reader of other models says why */
  const size_t mark_bytes = lade_text_mark_bytes(text, bytes);
  json_t *root = json_loadb(text + mark_bytes, bytes - mark_bytes, JSON_REJECT_DUPLICATES, NULL);
  struct lade_experts model = {.name = ""};
  struct reader r = {.config = {.path = path, .object = root, .prefix = "", .error = error}, .model = &model};
  const char *type = json_string_value(json_object_get(root, "model_type"));
  int rc = lade_experts_has_type(type) ? model_read(&r, type) : -ENOENT;
  json_decref(root);
  free(text);
  if (!rc)
    *ret_model = model;
  return rc;
}

int lade_experts_find(const char *name, struct lade_experts *ret_model, struct lade_error *error)
{
  char config[PATH_MAX];
  struct stat st;
  for (size_t i = 0; i < LADE_COUNT(presets); i++) {
    if (strcmp(presets[i].name, name) == 0) {
      *ret_model = presets[i];
      return 0;
    }
  }
  if (stat(name, &st))
    return -ENOENT;
  if (snprintf(config, sizeof(config), "%s%s", name, S_ISDIR(st.st_mode) ? "/config.json" : "") >= PATH_MAX)
    return -ENOENT;
  return file_load(config, ret_model, error);
}

int64_t lade_experts_n_params(const struct lade_experts *model)
{
  return n_params_of(model, model->n_experts);
}

int64_t lade_experts_n_active_params(const struct lade_experts *model)
{
  return n_params_of(model, model->n_active);
}
