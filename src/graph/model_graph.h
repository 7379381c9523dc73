/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a model: the computation of one microbatch on one rank's share of the model.
 *
 * A graph is a list of tensors and a list of ops, forward first, then backward in execution order. It is in SSA form:
 * every activation has one producer. The one exception is written on the tensor: a parameter's gradient
 * (LADE_TENSOR_GRAD) is an accumulator that several ops may add to; each op that outputs it makes its next version. One
 * op is one call of one kernel.
 *
 * The op table (ops.c) is the only place that defines an op: its name, the shapes of its outputs, flops and bytes,
 * inputs whose memory an output may take over, the kernel's arguments, and the backward rule. The backward half of a
 * graph is derived by walking the forward ops in reverse (backward.c). The saved values follow from the uses and are
 * not stored.
 *
 * A unit is a span of ops that is sharded, checkpointed and scheduled together: the embedding, one transformer block,
 * the head with the loss. Units of equal shape have the same class.
 *
 * An op may have an optional operand, with which it need not compute something again: the logits, which the head's
 * backward reads. Without it the op has another form with fewer operands, other costs and the same results to the bit
 * (lade_op.lean). A residency says which form runs.
 *
 * A graph is immutable after it is built; any thread may read it.
 */
#ifndef LADE_MODEL_GRAPH_H
#define LADE_MODEL_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "lade/types.h"

#define LADE_NAME_BYTES 64
#define LADE_OP_MAX_IN 10
#define LADE_OP_MAX_OUT 6
#define LADE_OP_ARGS_BYTES 256 /* room for any kernel's argument struct */

/* ---- models ---- */

/* By model_type (family.h); the order is part of checkpoints' and durable state's keys. */
enum lade_family {
  LADE_GPT2,
  LADE_LLAMA,
  LADE_MISTRAL,
  LADE_MINISTRAL,
  LADE_QWEN2,
  LADE_QWEN3,
  LADE_GEMMA,
  LADE_GEMMA2,
  LADE_GEMMA3,
  LADE_PHI3,
  LADE_OLMO2,
  LADE_SMOLLM3,
  LADE_STARCODER2,
  LADE_GPT_NEOX,
  LADE_FALCON,
  LADE_MPT,
  LADE_BLOOM,
  LADE_MINISTRAL3,
  LADE_OLMO3,
  LADE_SEED_OSS,
  LADE_ARCEE,
  LADE_EXAONE4,
  LADE_STABLELM,
  LADE_NEMOTRON,
  LADE_VAULTGEMMA,
  LADE_GRANITE,
  LADE_HELIUM,
  LADE_ERNIE4_5,
  LADE_GLM,
  LADE_GLM4,
  LADE_COHERE,
  LADE_COHERE2,
  LADE_GPT_NEO,
  LADE_GPT_BIGCODE,
  LADE_HUNYUAN,
  LADE_CWM,
  LADE_JAIS2,
  LADE_INTERNLM3,
  LADE_N_FAMILIES
};

/* Parts that may have biases. */
enum lade_bias {
  LADE_BIAS_QKV = 1,
  LADE_BIAS_OUT = 2, /* of attention's last product */
  LADE_BIAS_MLP = 4,
  LADE_BIAS_NORM = 8,
  LADE_BIAS_ALL = 15
};

#define LADE_MODEL_MAX_LAYERS 10000

/* A set of layers; all zero: empty. */
struct lade_layer_set {
  uint64_t bits[(LADE_MODEL_MAX_LAYERS + 63) / 64];
};

static inline bool lade_layer_set_has(const struct lade_layer_set *set, int64_t layer)
{
  return set->bits[layer / 64] >> (layer % 64) & 1;
}

static inline void lade_layer_set_add(struct lade_layer_set *set, int64_t layer)
{
  set->bits[layer / 64] |= UINT64_C(1) << (layer % 64);
}

struct lade_model {
  char name[LADE_NAME_BYTES];
  enum lade_family family;
  int64_t layers, heads, n_kv_heads, width, hidden, context, vocabulary;
  int64_t head_dim;      /* Llama: the width of a head; 0: width / heads (lade_model_head_dim) */
  bool is_tied;          /* the head is the token embedding */
  bool takes_vocabulary; /* from the data: nano and baby */
  float norm_eps;
  float rope_base, rope_scale_factor, rope_low_freq_factor, rope_high_freq_factor;
  int64_t rope_original_context;
  /* Facts that vary within a family; 0 or false: the family's usual form. */
  enum lade_rope_kind rope_kind;
  int64_t rotary_dim;               /* numbers of a head that turn, the first ones; 0: all */
  float rope_magnitude;             /* of cosines and sines; 0: 1 */
  float rope_beta_fast, rope_beta_slow; /* YARN */
  bool rope_is_untruncated;             /* YARN: its ramp's ends are not rounded to whole pairs */
  /* Queries are multiplied by 1 + beta ln(1 + floor(position / rope_original_context)); 0: they are not. */
  float attention_temperature_beta;
  float rope_short_factors[LADE_ROPE_MAX_FACTORS], rope_long_factors[LADE_ROPE_MAX_FACTORS]; /* LONGROPE */
  float rope_local_base;            /* of windowed layers, without scaling; 0: as in other layers */
  struct lade_layer_set unrotated;  /* layers without rotary positions */
  enum lade_activation activation;
  unsigned biases;                  /* bits of enum lade_bias, besides those that all models of the family have */
  int n_parallel_norms;             /* norms of a block whose branches both read its input; 0: one after the other */
  bool is_grouped;                  /* Falcon: new_decoder_architecture */
  float embedding_scale;            /* of token rows, rounded to D; 0: 1 */
  float residual_scale;             /* of branches before they are added to the residual stream; 0: 1 */
  float logit_scale;                /* of logits, or their divisor in Granite; 0: 1 (lade_model_logit_factor) */
  float logit_softcap;              /* c: logits become c tanh(logit / c); 0: none */
  bool has_pad_token;               /* lookups of pad_token give no gradient */
  int64_t pad_token;
  float attention_scale;          /* of q k^T; 0: 1 / sqrt(head_dim) */
  float attention_softcap;        /* c: scaled scores become c tanh(score / c), before the mask; 0: none */
  int64_t window;                 /* keys that a query of a windowed layer sees, its own included; 0: none */
  struct lade_layer_set windowed; /* the layers that have the window */
  float alibi_max;                /* ALiBi in place of rotary positions (struct lade_score_form); 0: none */
  bool is_alibi_rounded;          /* Falcon's form of it */
  float qkv_clip;                 /* queries, keys and values are clamped to +-clip; 0: not */
  bool has_sinks;                 /* one more learned logit for each head, in the softmax's denominator only */
};

static inline int64_t lade_model_head_dim(const struct lade_model *model)
{
  return model->head_dim ? model->head_dim : model->width / model->heads;
}

/* Get a preset by name. -ENOENT with the list of names in @error. */
int lade_model_preset(const char *name, struct lade_model *ret_model, struct lade_error *error);
/* Return the name of preset @i, NULL past the end. */
const char *lade_model_preset_name(int i);
/*
 * Load a HuggingFace config.json of any family (enum lade_family); @path is the file, or the directory that has it.
 * -ENOENT; -EBADMSG if it is not JSON; -EINVAL with field, value and expected value.
 */
int lade_model_load(const char *path, struct lade_model *ret_model, struct lade_error *error);
/* Check that every field is in range and divides as it must. -EINVAL. */
int lade_model_check(const struct lade_model *model, struct lade_error *error);
/* Return the exact number of parameters (tied ones once), or that of one layer. */
int64_t lade_model_n_params(const struct lade_model *model);
int64_t lade_model_layer_n_params(const struct lade_model *model);
/*
 * Return the necessary flops per token of a training step: 6 (matmul parameters, head included) + 6 L d T; d is the
 * width of all heads together, and T is W (2 - W / T) in a layer with window W. A token's embedding lookup is no
 * matmul; a tied head counts.
 */
double lade_model_flops_per_token(const struct lade_model *model, int64_t seq_len);

/* ---- graphs ---- */

/* The part of the model that a graph contains: one rank's. All zero: the whole model. */
struct lade_share {
  int tp, tp_rank;  /* tensor parallel ranks, 0 meaning 1, and this one among them */
  bool is_sequence; /* then norms, residual and dropout work on 1/tp of the rows */
  int pp, pp_rank;  /* pipeline stages, 0 meaning 1, and this one among them */
  int n_chunks;     /* of layers per stage, 0 meaning 1 */
  /*
   * Scattered sends: each tensor parallel rank sends 1/tp of the rows to the next stage, whose ranks gather them. In a
   * graph it is true only if there are stages and tensor parallel ranks, whose number divides the rows, and whole rows
   * to send: sequence parallel ranks hold 1/tp of them already.
   */
  bool is_scattered;
  int n_shards;     /* ranks that gather a parameter for each use and drop it afterwards (ZeRO-3), 0 meaning 1:
                       table.c */
};

/*
 * Return the layers of one piece of a model that is cut into @n_pieces: chunk c of stage s is piece c * pp + s. Each
 * piece has at least one layer. But with one piece more than layers the last piece has none, and with two more the
 * first has none too. The first piece has the embedding too, the last the head with the loss. Pieces are cut by flops,
 * at sequence length @seq_len. The last one gets fewer layers, by the cost of its head. The remainder goes to later
 * pieces, whose stages hold fewer microbatches. -EINVAL with the numbers of pieces that work.
 */
struct lade_layer_span {
  int64_t first, n;
};
static inline int64_t lade_pieces_max(const struct lade_model *model)
{
  return model->layers + 2;
}
int lade_piece_layers(const struct lade_model *model, int64_t seq_len, int n_pieces, int piece,
                      struct lade_error *error,
                      struct lade_layer_span *ret_span);
/* The same for all pieces at once: write the number of layers of each of the @n_pieces. O(layers). */
int lade_pieces_cut(const struct lade_model *model, int64_t seq_len, int n_pieces, struct lade_error *error,
                    int64_t *ret_layers);

enum lade_tensor_kind {
  LADE_TENSOR_TOKENS,     /* i32 [B,T], written from the data before the microbatch */
  LADE_TENSOR_TARGETS,    /* i32 [B,T] */
  LADE_TENSOR_FIRST_KEYS, /* i32 [B,T], likewise: the first key that each row may see (struct lade_score_form) */
  LADE_TENSOR_PARAM,      /* the working copy, dtype D */
  LADE_TENSOR_GRAD,       /* of a parameter, A; accumulates */
  LADE_TENSOR_ACTIVATION, /* D, or A for statistics; forward and backward values alike */
  LADE_TENSOR_LOSS        /* A[1], mean loss of the microbatch */
};

struct lade_tensor {
  char name[LADE_NAME_BYTES]; /* "h.3.mlp.fc", "d.h.3.mlp.fc" */
  enum lade_tensor_kind kind;
  enum lade_dtype dtype;
  int n_dims;
  int64_t dims[4];
  uint64_t bytes;
  int unit;     /* its producer's, or a parameter's own */
  int producer; /* op; -1 for data and parameters; a gradient's first writer */
  int param;    /* of PARAM and GRAD; else -1 */
  bool is_optional; /* the ops that make and read it have lean forms without it */
};

/*
 * Rows [first_row, first_row + n_rows) of a parameter, with all its columns, are a rectangle of this tensor of a
 * HuggingFace checkpoint. In a graph of the whole model it is the whole tensor, in a graph of one rank's share a part.
 * The tensor's rows and columns are counted as parameters have them, before a transposition. Rows of a parameter
 * outside all slices are padding: they stay zero and are in no checkpoint.
 */
struct lade_param_slice {
  char name[96];
  int64_t first_row, n_rows;
  int64_t file_rows, file_cols; /* the whole tensor */
  int64_t file_row, file_col;   /* the rectangle's corner in it */
  int64_t base_row;             /* the tensor's first row in the whole model's parameter; random draws count from it */
  int64_t run_rows, run_stride; /* runs of so many rows begin so many rows apart in the file; 0: one run */
  bool is_transposed;           /* the file has [in, out] (GPT-2's Conv1D) */
};

enum lade_init { LADE_INIT_ZERO, LADE_INIT_ONE, LADE_INIT_NORMAL };

struct lade_param {
  int tensor, grad;
  int n_parts;       /* of the table or head that this is part of, consecutive parameters; 1 if it is not cut */
  int64_t first_row; /* of this part, among this rank's rows */
  bool is_at_both_ends; /* a tied table, on the first stage and on the last: its gradient is the sum of both */
  bool is_copy;         /* of the last stage, owned by the first: not in checkpoints, not in norms */
  int number; /* among the whole model's parameters, the same in every share */
  bool has_decay; /* two or more dimensions */
  /*
   * On tensor parallel ranks. The first n_owned_rows count for this rank in values over all ranks, in norms and
   * checkpoints; the others are copies of a lower rank's rows. If n_sharers is more than 1, the gradient's rows from
   * first_shared_row on are parts. Once a step's gradient is complete, each run of n_sharers neighbours adds its parts.
   */
  int64_t n_owned_rows, first_shared_row;
  int n_sharers;
  enum lade_init init;
  float init_std;
  int n_slices;
  struct lade_param_slice slices[3];
};

enum lade_op_kind {
  LADE_OP_EMBED,
  LADE_OP_EMBED_BWD,
  LADE_OP_NORM,
  LADE_OP_NORM_BWD,
  LADE_OP_RESIDUAL, /* bias, dropout, residual, and norm when it has one */
  LADE_OP_RESIDUAL_BWD, /* with a norm; without one the gradient passes through: DROPOUT_BWD, BIAS_GRAD */
  LADE_OP_DROPOUT,
  LADE_OP_DROPOUT_BWD,
  LADE_OP_MATMUL, /* y = x W^T (+ b) */
  LADE_OP_MATMUL_GELU, /* MATMUL, and GELU of its sums before they are rounded */
  LADE_OP_MATMUL_DX,
  LADE_OP_MATMUL_GELU_BWD, /* MATMUL_DX, and the backward of the GELU that made x */
  LADE_OP_MATMUL_DW,
  LADE_OP_BIAS_GRAD,
  LADE_OP_ROPE,
  LADE_OP_ROPE_BWD,
  LADE_OP_ATTENTION,
  LADE_OP_ATTENTION_BWD,
  LADE_OP_GELU,
  LADE_OP_GELU_BWD,
  LADE_OP_SWIGLU,
  LADE_OP_SWIGLU_BWD,
  LADE_OP_ACTIVATION, /* another one than GELU's tanh form, without a gate; or the clamp of qkv */
  LADE_OP_ACTIVATION_BWD,
  LADE_OP_GATED, /* another one than SiLU, with a gate */
  LADE_OP_GATED_BWD,
  LADE_OP_QK_SUMS, /* on ranks that share the heads of one norm: its sums over this rank's heads */
  LADE_OP_QK_NORM,
  LADE_OP_QK_DOTS, /* such sums of its backward */
  LADE_OP_QK_NORM_BWD,
  LADE_OP_SCALE, /* a product with attr.limit */
  LADE_OP_SCALE_BWD,
  LADE_OP_ADD, /* backward: two gradients of one value */
  LADE_OP_HEAD_LOSS,
  LADE_OP_HEAD_LOSS_BWD, /* also of a part of the vocabulary */
  LADE_OP_HEAD_STATS,    /* head_loss in parts: here, part by part; then gathered over ranks; then joined */
  LADE_OP_HEAD_JOIN,
  LADE_OP_ALL_REDUCE, /* over the ranks of attr.axis */
  LADE_OP_ALL_GATHER,
  LADE_OP_REDUCE_SCATTER,
  LADE_OP_SEND, /* an activation, or backward its gradient, to the stage that has the next piece; whole, or this rank's
                   rows of it (lade_share.is_scattered) */
  LADE_OP_RECV,
  LADE_N_OP_KINDS
};

/* Numbers an op needs beyond its tensors' shapes. (Operand orders are listed at the top of ops.c.) */
struct lade_op_attr {
  enum lade_norm_kind norm;
  float eps, weight_offset;
  enum lade_activation activation;
  bool is_by_head;     /* QK_NORM */
  float rope_base;     /* ROPE: this layer's; 0: the model's form */
  float limit;         /* ACTIVATION: of LADE_CLAMP; SCALE: its factor */
  bool is_bias_shared; /* MATMUL cut by its inputs: the bias is added once, by the first rank */
  float dropout;   /* probability; 0 for none */
  uint32_t stream; /* of random draws: the op's own number, the same in forward, recompute and backward */
  int64_t heads, n_kv_heads, head_dim;
  float attention_scale, attention_softcap; /* as in struct lade_model */
  int64_t window;                           /* of this op's layer; 0: none */
  float alibi_max;
  bool is_alibi_rounded;
  int peer; /* of SEND and RECV: position on the pipeline's axis */
  enum lade_axis axis; /* of collectives, of the collective after is_dx_partial, and of that after a scattered RECV */
  bool is_dx_partial;  /* this rank's gradient of x is a part: the sum over the axis is the whole gradient */
  /*
   * The order of sums that tensor parallel ranks may cut, such that every number of ranks gives the same bits. It is a
   * property of the model; a rank has its leaves of it. If activations are rounded to less than A, so are ranks' parts.
   * Then no order gives equal bits, and there are no trees.
   */
  struct lade_k_tree y_tree, dx_tree; /* of MATMUL: of its sum over inputs; of its gradient of x over outputs */
  int64_t leaf_tokens;                /* of the head's sums over the vocabulary (struct lade_head_loss_fwd_args) */
};

struct lade_op {
  enum lade_op_kind kind;
  enum lade_kernel kernel;
  int unit;
  bool is_backward;
  int forward; /* a backward op's forward op; -1 */
  int n_in, n_out;
  int in[LADE_OP_MAX_IN]; /* tensors; an absent optional operand is -1 */
  int out[LADE_OP_MAX_OUT];
  int8_t alias[LADE_OP_MAX_OUT]; /* out[i] may be in[alias[i]]'s memory if that value's live range ends here; -1 */
  struct lade_op_attr attr;
  double flops; /* executed by the kernel */
  double bytes; /* least bytes read and written; of a collective: sent by this rank in a ring; of SEND: sent */
  uint64_t workspace_bytes;
  int optional; /* tensor: an operand that may be absent; -1 */
  int lean;     /* number of the op without it, after the others in the graph's ops; -1 */
};

struct lade_unit {
  char name[LADE_NAME_BYTES]; /* "embed", "h.0", ..., "head"; between stages "recv.1", "send.2" */
  int class_id;               /* equal for units of equal shape */
  int chunk;                  /* of this stage */
  int first_fwd, n_fwd;       /* ops */
  int first_bwd, n_bwd;
};

struct lade_model_graph {
  struct lade_model model; /* the whole model */
  struct lade_share share; /* sizes filled in */
  enum lade_dtype dtype, accumulator; /* D and A */
  enum lade_moments moments;          /* in which AdamW's state is kept */
  enum lade_master master;
  enum lade_dtype grad_dtype;         /* in which AdamW takes complete gradients: A, or BF16 */
  int64_t batch, seq_len;                /* of one microbatch */
  int n_tensors, n_params, n_ops, n_fwd_ops, n_units;
  int n_lean_ops;
  struct lade_tensor *tensors;
  struct lade_param *params; /* in checkpoint order */
  struct lade_op *ops;       /* forward, then backward, then n_lean_ops lean forms, which have numbers of ops too */
  struct lade_unit *units;   /* in forward order */
  int tokens, targets, loss; /* tensors; -1 on a stage without the embedding, without the head */
  int first_keys;            /* tensor; -1: documents are not masked, or no layer is on this stage */
};

struct lade_model_graph_params {
  size_t struct_size;
  const struct lade_model *model;
  enum lade_dtype dtype; /* F32, BF16, F16; F64 for references */
  int64_t batch, seq_len;
  float dropout;
  const struct lade_kernels *kernels; /* workspaces depend on them */
  int n_threads;
  enum lade_moments moments;
  enum lade_master master; /* other than EXACT for BF16 only */
  enum lade_dtype grad_dtype; /* F32 (that is, A), or BF16: complete gradients are rounded once; not with F64 */
  bool has_documents;         /* attention takes first keys, which the data give */
  bool fuses_gelu;            /* the product behind GELU makes the gradient before it (lade_machine_fuses_gelu) */
  /*
   * The product before GELU makes GELU too, of its sums before they are rounded (LADE_OP_MATMUL_GELU). In 16 bits the
   * numbers differ, so the caller chooses it, never a device or a plan. -EINVAL for models without such a product.
   */
  bool fuses_gelu_fwd;
  struct lade_share share;
};

/* Build forward and backward. The caller owns the graph. -EINVAL (seq_len past the context, ...), -ENOMEM. */
int lade_model_graph_create(const struct lade_model_graph_params *params, struct lade_error *error,
                            struct lade_model_graph **ret_graph);
void lade_model_graph_destroy(struct lade_model_graph *graph);

/* True if complete gradients are rounded for the update. */
static inline bool lade_model_graph_rounds(const struct lade_model_graph *graph)
{
  return graph->grad_dtype != graph->accumulator;
}

/* True for tokens, targets and first keys, which are written before a microbatch and never change in a step. */
static inline bool lade_tensor_is_data(const struct lade_tensor *tensor)
{
  return tensor->kind <= LADE_TENSOR_FIRST_KEYS;
}

/* Inputs of binding an op to memory: one address per operand (0 for an absent one). */
struct lade_bind {
  uintptr_t in[LADE_OP_MAX_IN], out[LADE_OP_MAX_OUT], workspace;
  unsigned accumulate; /* bit i: out[i] is a gradient that already holds a sum */
  int microbatch, n_microbatches;
  bool is_evaluation; /* nothing is dropped out */
};

/* Fill the kernel's arguments for @op into @ret_args (LADE_OP_ARGS_BYTES, 64-byte aligned). Never fails. */
void lade_op_bind(const struct lade_model_graph *graph, int op, const struct lade_bind *bind, void *ret_args);

/* True for the three collectives, whose bytes are those that this rank sends. */
bool lade_op_is_collective(enum lade_op_kind kind);

/* True if the op has no kernel: a transfer between ranks, collectives included, with an instruction of its own. */
bool lade_op_is_stage_boundary(enum lade_op_kind kind);

/*
 * True for forward values that can be recomputed: all outputs of forward kernels, but none received from another stage.
 */
bool lade_tensor_is_repeatable(const struct lade_model_graph *graph, int tensor);

/*
 * Return the number of tensor parallel ranks nearest to @tp that can share @model: it divides the heads and the hidden
 * width, and the KV heads, or is a multiple of these, and no rank is without a token. At equal distance the smaller.
 */
int64_t lade_share_nearest_tp(const struct lade_model *model, int64_t tp);

/* Return the parts in which a value goes to another stage, one from each tensor parallel rank; 1: it goes whole. */
static inline int lade_share_n_sent_parts(const struct lade_model_graph *graph)
{
  return graph->share.is_scattered ? graph->share.tp : 1;
}

/* True if a table is several parameters (lade_param.n_parts). */
bool lade_model_graph_has_parts(const struct lade_model_graph *graph);

/* Return the row of the file's tensor that is row @row of a slice. */
static inline int64_t lade_param_slice_file_row(const struct lade_param_slice *slice, int64_t row)
{
  if (!slice->run_rows)
    return slice->file_row + row;
  return slice->file_row + row / slice->run_rows * slice->run_stride + row % slice->run_rows;
}

/* Return the name, such as "matmul" or "matmul_dw"; static. */
const char *lade_op_kind_name(enum lade_op_kind kind);

#endif
