/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The families of models: a row for each model_type of HuggingFace's transformers. A row has the facts that all models
 * of the family share, and the names of its tensors in checkpoints; struct lade_model has the facts that vary. block.c
 * builds every family from the two.
 */
#ifndef LADE_GRAPH_FAMILY_H
#define LADE_GRAPH_FAMILY_H

#include "graph/model_graph.h"

/* The norms of a branch: before it (of its input), after it (of its output), or both. */
enum lade_norm_place { LADE_NORMS_BEFORE, LADE_NORMS_AFTER, LADE_NORMS_AROUND };

/* Norms of queries and keys: none, of each head, or over the heads of all ranks together. */
enum lade_qk_norm { LADE_QK_NORM_NONE, LADE_QK_NORM_HEAD, LADE_QK_NORM_WIDTH };

/*
 * A family. Names of a layer's tensors are those of its modules; ".weight" and ".bias" follow. A name that a family
 * does not use is NULL.
 */
struct lade_family_row {
  const char *model_type, *architecture;
  enum lade_norm_kind norm;
  float norm_offset; /* of the norms' weights: 1 if they are stored less one */
  enum lade_norm_place place;
  enum lade_qk_norm qk_norm;
  bool is_gated;      /* the MLP is f(gate) * up */
  bool has_positions; /* a learned table of positions, no rotation */
  unsigned biases;    /* bits of enum lade_bias that all its models have */
  enum lade_activation activation; /* the usual one */
  bool is_transposed;     /* products are stored [in, out] (GPT-2's Conv1D) */
  bool is_rope_interleaved; /* rotations pair neighbours of a head */
  bool is_rope_first;       /* queries and keys turn before their norms */
  bool is_qkv_by_group;   /* the file has the rows of qkv by KV head: its queries, its key, its value */
  bool has_pad;           /* lookups of the token pad_token_id give no gradient */
  const char *prefix, *layers; /* of all names but the head's, and of layers: "model.", "layers." */
  const char *table, *positions, *table_norm, *final_norm, *head; /* table_norm: of the embedded tokens */
  const char *norm_1, *norm_2, *post_1, *post_2;
  const char *qkv, *query, *key, *value; /* query NULL: the file has qkv as one tensor */
  const char *query_norm, *key_norm, *out;
  const char *wide, *gate, *up, *down; /* wide: gate and up as one, or the first product of an MLP without a gate */
  const char *table_name, *norm_op, *final_op; /* in graphs */
};

/* Return the row of @family; static. */
const struct lade_family_row *lade_family_get(enum lade_family family);

/* Find the family with this model_type; -1: none. */
int lade_family_find(const char *model_type);

/* True if all of @model's parts named by @bias have biases. */
bool lade_model_has_bias(const struct lade_model *model, enum lade_bias bias);

/* Return the activation of @model's MLP; never LADE_ACTIVATION_USUAL. */
enum lade_activation lade_model_activation(const struct lade_model *model);

/* True if @model has rotary positions. */
bool lade_model_has_rope(const struct lade_model *model);

/* True if layer @i_layer turns its queries and keys. */
bool lade_model_layer_has_rope(const struct lade_model *model, int64_t i_layer);

/* Return the numbers of a head that turn. */
int64_t lade_model_rotary_dim(const struct lade_model *model);

/* Return the factor of the logits; 1: none. */
float lade_model_logit_factor(const struct lade_model *model);

/* True if the MLP is a product, GELU's tanh form and a product, without a gate. */
bool lade_model_has_gelu(const struct lade_model *model);

/* Return the number of norms of a layer, without those of queries and keys. */
int lade_model_layer_n_norms(const struct lade_model *model);

/* Return the parameters and forward ops of layer @i_layer in a graph of the whole model. */
int lade_model_layer_n_tensors(const struct lade_model *model);
int lade_model_layer_n_ops(const struct lade_model *model, int64_t i_layer);

#endif
