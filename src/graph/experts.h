/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts: models that are planned on one rank, and not trained. A description has every size that a step's
 * storages and products follow from (machine/experts_step.h). The families are model_type mixtral, qwen2_moe,
 * qwen3_moe, olmoe, deepseek_v2 and deepseek_v3 of HuggingFace.
 */
#ifndef LADE_EXPERTS_H
#define LADE_EXPERTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "graph/model_graph.h"

#define LADE_EXPERTS_MAX_LAYERS 10000

/* Sizes of DeepSeek's latent attention (DeepSeek-V2, 2024, section 2.1). */
struct lade_latent_attention {
  int64_t q_rank;  /* 0: queries are one product */
  int64_t kv_rank; /* 0: attention is not latent */
  int64_t nope_dim, rope_dim, v_dim; /* of a head: without rotary positions, with them; values */
};

struct lade_experts {
  char name[LADE_NAME_BYTES];
  int64_t layers, width, heads, n_kv_heads, head_dim, context, vocabulary;
  int64_t hidden;        /* of a dense layer */
  int64_t expert_hidden; /* of one expert */
  int64_t shared_hidden; /* of the experts that each token passes, together; 0: none */
  int64_t n_experts, n_active; /* of a layer; and of those the ones of a token */
  struct lade_latent_attention latent;
  bool has_shared_gate;  /* a sigmoid of one product scales the shared experts (Qwen2) */
  bool has_qkv_bias, has_out_bias;
  int64_t q_norm, k_norm; /* sizes of norms of queries and keys; 0: none */
  bool is_tied;
  uint64_t dense[(LADE_EXPERTS_MAX_LAYERS + 63) / 64]; /* bit of a layer without experts */
};

static inline bool lade_experts_is_dense(const struct lade_experts *model, int64_t layer)
{
  return model->dense[layer / 64] >> (layer % 64) & 1;
}

/* True if @model_type of a config.json is a mixture of experts that can be planned. */
bool lade_experts_has_type(const char *model_type);

/* Return the model_type @i of those mixtures, NULL past the end. */
const char *lade_experts_type(int i);

/* Refuse to train @name, with one line that says how to plan it: -EINVAL. */
int lade_experts_refuse(const char *name, struct lade_error *error);

/*
 * Get a preset, or load a config.json or the directory that has it. -ENOENT without a line: @name is no mixture of
 * experts, and the caller reads it otherwise. -EINVAL with field, value and expected value; -ENOMEM. Blocks for a file.
 */
int lade_experts_find(const char *name, struct lade_experts *ret_model, struct lade_error *error);

/* Return the name of preset @i, NULL past the end. */
const char *lade_experts_preset_name(int i);

/*
 * Count the parameters, tied ones once: all of them, or those that one token passes, which has n_active of the experts
 * of a layer and everything else.
 */
int64_t lade_experts_n_params(const struct lade_experts *model);
int64_t lade_experts_n_active_params(const struct lade_experts *model);

#endif
