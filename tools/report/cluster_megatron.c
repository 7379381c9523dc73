/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model as Megatron-LM's options. Names and defaults are those of megatron/training/arguments.py: without options a
 * model has LayerNorm, learned positions, an MLP with GELU and without a gate, and biases everywhere. A part of the
 * model that no option expresses is named in a comment, because a run with the options alone trains another model.
 *
 * The description of a mixture of experts has no rotary base and no epsilon, so its options lack both.
 */
#include <math.h>

#include "base/base.h"
#include "graph/family.h"
#include "tools/report/cluster_report.h"

struct megatron {
  const struct lade_model *model;
  const struct lade_experts *experts; /* NULL: none */
  const struct lade_family_row *row;
  bool has_head_norms, has_width_norms; /* of queries and keys: within a head, over all heads */
  bool has_qkv_bias, has_out_bias, has_mlp_bias;
};

static struct megatron megatron_get(const struct lade_layout_job *job)
{
  const struct lade_model *model = job->model;
  const struct lade_experts *experts = job->experts;
  const struct lade_family_row *row = lade_family_get(model->family);
  if (experts)
    return (struct megatron){.model = model, .experts = experts, .row = row,
                             .has_head_norms = experts->q_norm && experts->q_norm == experts->head_dim,
                             .has_width_norms = experts->q_norm && experts->q_norm != experts->head_dim,
                             .has_qkv_bias = experts->has_qkv_bias, .has_out_bias = experts->has_out_bias};
  return (struct megatron){.model = model, .row = row, .has_head_norms = row->qk_norm == LADE_QK_NORM_HEAD,
                           .has_width_norms = row->qk_norm == LADE_QK_NORM_WIDTH,
                           .has_qkv_bias = lade_model_has_bias(model, LADE_BIAS_QKV),
                           .has_out_bias = lade_model_has_bias(model, LADE_BIAS_OUT),
                           .has_mlp_bias = lade_model_has_bias(model, LADE_BIAS_MLP)};
}

static bool has_all_biases(const struct megatron *megatron)
{
  return megatron->has_qkv_bias && megatron->has_out_bias && megatron->has_mlp_bias;
}

/* ---- options ---- */

static void sizes_print(const struct megatron *megatron, FILE *file)
{
  const struct lade_model *model = megatron->model;
  const int64_t hidden = megatron->experts && megatron->experts->hidden ? megatron->experts->hidden : model->hidden;
  fprintf(file, "--num-layers %lld --hidden-size %lld --ffn-hidden-size %lld --num-attention-heads %lld\n",
          (long long)model->layers, (long long)model->width, (long long)hidden, (long long)model->heads);
  if (model->n_kv_heads != model->heads)
    fprintf(file, "--group-query-attention --num-query-groups %lld\n", (long long)model->n_kv_heads);
  if (lade_model_head_dim(model) * model->heads != model->width)
    fprintf(file, "--kv-channels %lld\n", (long long)lade_model_head_dim(model));
}

static void norms_print(const struct megatron *megatron, FILE *file)
{
  fprintf(file, "--normalization %s", megatron->row->norm == LADE_NORM_RMS ? "RMSNorm" : "LayerNorm");
  if (!megatron->experts)
    fprintf(file, " --norm-epsilon %g", (double)megatron->model->norm_eps);
  fprintf(file, "%s%s\n", megatron->row->norm_offset == 1 ? " --apply-layernorm-1p" : "",
          megatron->has_head_norms ? " --qk-layernorm" : "");
}

/* Print " OPTION '[0,1,...]'", a number for each layer, if @set has a layer that is not like all others. */
static void layers_print(const char *option, const struct lade_model *model, const struct lade_layer_set *set,
                         FILE *file)
{
  int64_t n = 0;
  for (int64_t i = 0; i < model->layers; i++)
    n += lade_layer_set_has(set, i);
  if (n == 0 || n == model->layers)
    return;
  fprintf(file, " %s '[", option);
  for (int64_t i = 0; i < model->layers; i++)
    fprintf(file, "%s%d", i ? "," : "", lade_layer_set_has(set, i));
  fprintf(file, "]'");
}

static bool is_llama3_scaling(const struct lade_model *model)
{
  return model->rope_kind == LADE_ROPE_LLAMA3 && model->rope_low_freq_factor == 1 &&
         model->rope_high_freq_factor == 4 && model->rope_original_context == 8192;
}

static bool is_linear_scaling(const struct lade_model *model)
{
  return model->rope_kind == LADE_ROPE_LINEAR && model->rope_scale_factor == floorf(model->rope_scale_factor);
}

static void rope_print(const struct megatron *megatron, FILE *file)
{
  const struct lade_model *model = megatron->model;
  const int64_t head_dim = lade_model_head_dim(model), rotary_dim = lade_model_rotary_dim(model);
  fprintf(file, "--position-embedding-type rope");
  if (!megatron->experts)
    fprintf(file, " --rotary-base %.0f", (double)model->rope_base);
  if (rotary_dim != head_dim)
    fprintf(file, " --rotary-percent %g", (double)rotary_dim / (double)head_dim);
  if (megatron->row->is_rope_interleaved)
    fprintf(file, " --rotary-interleaved --no-rope-fusion"); /* the fused form has halves in older versions */
  if (model->rope_scale_factor > 0 && is_llama3_scaling(model))
    fprintf(file, " --use-rope-scaling --rope-scaling-factor %g", (double)model->rope_scale_factor);
  if (is_linear_scaling(model))
    fprintf(file, " --rotary-seq-len-interpolation-factor %.0f", (double)model->rope_scale_factor);
  layers_print("--no-rope-freq", model, &model->unrotated, file);
  fprintf(file, "\n");
}

static void attention_print(const struct megatron *megatron, FILE *file)
{
  const struct lade_model *model = megatron->model;
  if (lade_model_has_rope(model))
    rope_print(megatron, file);
  else
    fprintf(file, "--position-embedding-type %s\n", megatron->row->has_positions ? "learned_absolute" : "none");
  if (model->window) {
    fprintf(file, "--window-size %lld,0", (long long)model->window - 1); /* keys before the query's own */
    layers_print("--window-attn-skip-freq", model, &model->windowed, file);
    fprintf(file, "\n");
  }
  if (model->has_sinks)
    fprintf(file, "--softmax-type learnable\n");
}

/* Return the options of the MLP's activation; NULL: there are none. */
static const char *activation_options(const struct megatron *megatron)
{
  const bool is_gated = megatron->row->is_gated;
  switch (lade_model_activation(megatron->model)) {
  case LADE_SILU:
    return is_gated ? "--swiglu" : NULL;
  case LADE_GELU_QUICK:
    return is_gated ? "--quick-geglu" : NULL;
  case LADE_GELU_ERF:
    return is_gated ? NULL : "--no-bias-gelu-fusion";
  case LADE_GELU_TANH: /* only the fusion has it, and it asks for biases */
    return is_gated || !has_all_biases(megatron) ? NULL : "";
  case LADE_RELU_SQUARED:
    return is_gated ? NULL : "--squared-relu";
  default:
    return NULL;
  }
}

static void mlp_print(const struct megatron *megatron, FILE *file)
{
  const char *activation = activation_options(megatron);
  if (activation && *activation)
    fprintf(file, "%s\n", activation);
  if (!has_all_biases(megatron))
    fprintf(file, "--disable-bias-linear%s\n", megatron->has_qkv_bias ? " --add-qkv-bias" : "");
}

static void experts_print(const struct megatron *megatron, int n_expert_ranks, FILE *file)
{
  const struct lade_experts *experts = megatron->experts;
  fprintf(file, "--num-experts %lld --moe-router-topk %lld --moe-ffn-hidden-size %lld --moe-grouped-gemm "
          "--expert-model-parallel-size %d\n", (long long)experts->n_experts, (long long)experts->n_active,
          (long long)experts->expert_hidden, n_expert_ranks);
  if (experts->shared_hidden)
    fprintf(file, "--moe-shared-expert-intermediate-size %lld\n", (long long)experts->shared_hidden);
  fprintf(file, "# --rotary-base and --norm-epsilon: as the model's config.json has them\n");
}

/* ---- parts without an option ---- */

static bool has_scaling_without_option(const struct lade_model *model)
{
  switch (model->rope_kind) {
  case LADE_ROPE_LLAMA3:
    return model->rope_scale_factor > 0 && !is_llama3_scaling(model);
  case LADE_ROPE_LINEAR:
    return !is_linear_scaling(model);
  default: /* DYNAMIC angles are those without scaling, up to the model's context */
    return model->rope_kind != LADE_ROPE_DYNAMIC;
  }
}

static bool has_dense_layer(const struct lade_experts *experts)
{
  for (int64_t i = 0; i < experts->layers; i++) {
    if (lade_experts_is_dense(experts, i))
      return true;
  }
  return false;
}

static void lacks_print(const struct megatron *megatron, FILE *file)
{
  const struct lade_model *model = megatron->model;
  const struct lade_family_row *row = megatron->row;
  const struct {
    bool has;
    const char *name;
  } parts[] = {
      {model->alibi_max > 0, "ALiBi"},
      {lade_model_has_rope(model) && has_scaling_without_option(model), "the scaling of rotary positions"},
      {model->attention_temperature_beta != 0, "an attention temperature"},
      {model->rope_local_base != 0 && model->rope_local_base != model->rope_base, "a rotary base of windowed layers"},
      {megatron->has_width_norms, "norms of queries and keys over all heads"},
      {row->norm == LADE_NORM_LAYER && !lade_model_has_bias(model, LADE_BIAS_NORM), "LayerNorm without biases"},
      {row->place != LADE_NORMS_BEFORE, "norms behind attention and MLP"},
      {row->table_norm, "the norm of embedded tokens"},
      {model->n_parallel_norms > 0, "attention and MLP that read the same input"},
      {!has_all_biases(megatron) && megatron->has_out_bias, "biases of attention's last product alone"},
      {!has_all_biases(megatron) && megatron->has_mlp_bias, "biases of the MLP alone"},
      {!activation_options(megatron), "the MLP's activation"},
      {model->attention_scale != 0, "the scale of scores"},
      {model->attention_softcap != 0, "capped scores"},
      {model->logit_softcap != 0, "capped logits"},
      {model->embedding_scale != 0, "scaled embeddings"},
      {model->residual_scale != 0, "scaled branches"},
      {lade_model_logit_factor(model) != 1, "scaled logits"},
      {model->qkv_clip != 0, "clamped queries, keys and values"},
      {model->has_pad_token, "a padding token without gradient"},
      {megatron->experts && megatron->experts->has_shared_gate, "the gate of shared experts"},
      {megatron->experts && has_dense_layer(megatron->experts), "layers without experts"},
  };
  const char *before = "# Megatron-LM has no option for: ";
  for (size_t i = 0; i < LADE_COUNT(parts); i++) {
    if (parts[i].has) {
      fprintf(file, "%s%s", before, parts[i].name);
      before = "; ";
    }
  }
  if (*before == ';')
    fprintf(file, "\n");
}

void cluster_megatron_model(const struct cluster_plan *plan, FILE *file)
{
  const struct megatron megatron = megatron_get(plan->job);
  sizes_print(&megatron, file);
  norms_print(&megatron, file);
  attention_print(&megatron, file);
  mlp_print(&megatron, file);
  if (megatron.experts)
    experts_print(&megatron, plan->job->n_expert_ranks, file);
  if (!megatron.model->is_tied)
    fprintf(file, "--untie-embeddings-and-output-weights\n");
  fprintf(file, "--seq-length %lld --max-position-embeddings %lld\n", (long long)plan->seq_len,
          (long long)LADE_MAX(megatron.model->context, plan->seq_len));
  lacks_print(&megatron, file);
}
