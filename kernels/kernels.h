/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel's signature, once; and the one table through which they are called.
 *
 * A kernel is a function of a context (the thread pool and the step block) and of one struct of arguments. The struct
 * is declared below beside the kernel's definition. The function lade_kernels_init fills the table with the plain C
 * reference. Each CPU level (AVX2, AVX-512, AVX-512 with BF16) then overwrites the entries that it improves, so call
 * sites never test features.
 * Rules for every kernel:
 *
 *  - Tensors are dense, row-major, 64-byte aligned; sizes may be anything from 1 up.
 *  - Activations and parameters have the model's dtype D (F32, BF16, F16, or F64). Statistics,
 *    losses and parameter gradients have its accumulator type A: F32, or F64 when D is F64. Only the
 *    references know F64; gradients are checked against them.
 *  - Arithmetic is in A (the references: in double); a result is rounded to D once, when it is
 *    stored, and later arithmetic uses the stored value.
 *  - The bits of the result are a function of the arguments alone, never of the number of threads:
 *    work is cut into pieces by shape, and pieces are summed in a fixed order.
 *  - It allocates nothing: scratch is the caller's @workspace of lade_kernel_workspace_bytes.
 *  - Inputs are read only, unless a line says that an output may be the same memory.
 *  - Parameter gradients are "accumulate ? grad + g : g", where g is complete in A before it is added.
 *  - N is rows (tokens: batch B times sequence T), d the model width, V the vocabulary.
 *
 * Random draws are Philox words of (seed, step, stream, element): element is the index in the unsharded global batch,
 * first_element + the index in this call's tensor; keep where word >= drop_below, with drop_below = round(p * 2^32) and
 * kept values multiplied by 1/(1-p).
 */
#ifndef LADE_KERNELS_H
#define LADE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "lade/types.h"

/* Values that change from step to step, in a buffer that the executor writes before each step. */
struct lade_step {
  uint64_t seed;
  uint32_t step; /* counted from 0 */
  float lr;
  float beta1, beta2, eps, weight_decay;
  float correction1, correction2; /* 1/(1-beta1^t), 1/(1-beta2^t), t = step+1, rounded once from double */
  float clip;                     /* largest global gradient norm; 0: no clipping */
  float loss_scale;               /* 1 except under FP16 */
};

/* Decisions from one step's gradients; written by LADE_K_CLIP, read by LADE_K_ADAMW. */
struct lade_clip_result {
  float norm;       /* of all gradients, after the loss scale is taken out */
  float factor;     /* gradients are multiplied by it: min(1, clip/norm)/loss_scale */
  uint32_t is_skipped; /* not finite: the update writes its old values back */
  uint32_t first_bad;  /* then the first partial that is not finite */
};

struct lade_cuda_launcher;

struct lade_kernel_ctx {
  lade_pool *pool;
  const struct lade_step *step;
  const struct lade_cuda_launcher *launcher; /* of a CUDA device's kernels (cuda/launch.h); NULL on the host */
  const struct lade_kernels *kernels;        /* on the host: the table, for the products with GELU */
};

typedef void lade_kernel_fn(const struct lade_kernel_ctx *ctx, const void *args);

enum lade_kernel {
  LADE_K_MATMUL,
  LADE_K_COLUMN_SUM,
  LADE_K_EMBED_FWD,
  LADE_K_EMBED_BWD,
  LADE_K_NORM_FWD,
  LADE_K_NORM_BWD,
  LADE_K_RESIDUAL_FWD,
  LADE_K_RESIDUAL_BWD,
  LADE_K_DROPOUT,
  LADE_K_ROPE,
  LADE_K_ATTENTION_FWD,
  LADE_K_ATTENTION_BWD,
  LADE_K_GELU_FWD,
  LADE_K_GELU_BWD,
  LADE_K_MATMUL_GELU_FWD,
  LADE_K_MATMUL_GELU_BWD,
  LADE_K_SWIGLU_FWD,
  LADE_K_SWIGLU_BWD,
  LADE_K_ACTIVATION_FWD,
  LADE_K_ACTIVATION_BWD,
  LADE_K_GATED_FWD,
  LADE_K_GATED_BWD,
  LADE_K_QK_SUMS,
  LADE_K_QK_NORM_FWD,
  LADE_K_QK_DOTS,
  LADE_K_QK_NORM_BWD,
  LADE_K_HEAD_LOSS_FWD,
  LADE_K_HEAD_LOSS_BWD,
  LADE_K_HEAD_STATS,
  LADE_K_HEAD_JOIN,
  LADE_K_SUM_SQUARES,
  LADE_K_CLIP,
  LADE_K_ADAMW,
  LADE_K_ADD,
  LADE_K_CAST,
  LADE_K_RANK_SUM,
  LADE_K_COPY,
  LADE_K_TREE_SUM,
  LADE_N_KERNELS
};

enum lade_matmul_layout {
  LADE_NT, /* a[m,k] b[n,k]: y = x W^T */
  LADE_NN, /* a[m,k] b[k,n]: dx = dy W */
  LADE_TN, /* a[k,m] b[k,n]: dW = dy^T x */
};

/*
 * The order in which a product adds up a k that tensor parallel ranks may cut. Any number of ranks that divides
 * n_leaves gives the same bits. The index k is consecutive spans (rows of queries, of keys, of values), each cut into
 * n_leaves parts; the last part may be shorter. Leaf i is the sum over part i of every span, in rising order from zero;
 * leaves are added over the tree of lade_rank_sum_args. A rank has a run of n_leaves / ranks leaves, as its own
 * product, whose sum is a node of the tree; rank_sum adds the rest of the tree. A CUDA device sums k in rising order
 * instead.
 */
#define LADE_LEAVES_MAX 8
#define LADE_SPANS_MAX 3
struct lade_k_tree {
  int n_leaves; /* a power of two up to LADE_LEAVES_MAX; 0: k is one leaf, and the other fields are ignored */
  int n_spans;
  int64_t span[LADE_SPANS_MAX];  /* their lengths; k in all */
  int64_t part[LADE_SPANS_MAX];  /* part[s] * n_leaves >= span[s] > part[s] * (n_leaves - 1) */
};

/* c[m,n] = op(a) op(b) (+ bias[n], not with accumulate). a, b, bias: D. c: out. */
struct lade_matmul_args {
  enum lade_matmul_layout layout;
  enum lade_dtype dtype, out; /* out: D or A */
  int64_t m, n, k;
  struct lade_k_tree tree; /* sums are FP32 (F64 for F64) up to the root, which is rounded to out once */
  const void *a, *b, *bias; /* bias may be NULL */
  void *c;
  bool accumulate; /* only with out == A */
  const void *gelu_x; /* [m,n], D; only of LADE_K_MATMUL_GELU_BWD's product, else NULL */
  void *gelu_y;       /* [m,n], D; only of LADE_K_MATMUL_GELU_FWD, else NULL */
  void *workspace;
};

/* sum[n] (+)= the column sums of x[m,n], D to A: a bias's gradient. Fixed blocks of rows. */
struct lade_column_sum_args {
  enum lade_dtype dtype;
  int64_t m, n;
  const void *x;
  void *sum;
  bool accumulate;
  void *workspace;
};

/*
 * x[B*T, d] = scale * tokens_embedding[token] + position_embedding[t]; the latter may be NULL. The table has the rows
 * of tokens [first_token, first_token + V), as one of several ranks has. Any other token's row is 0, or the row of
 * @before, which may be x: so a table in parts is looked up part by part.
 */
struct lade_embed_fwd_args {
  enum lade_dtype dtype;
  int64_t batch, seq_len, d, vocabulary;
  int64_t first_token;
  float scale; /* of token rows; 0: 1 */
  const int32_t *tokens; /* [B*T], each 0 or more (checked when data is read) */
  const void *token_table, *position_table;
  const void *before; /* x[B*T, d] of parts before this one; may be NULL */
  void *x;
};

/*
 * Gradients of both tables, A; rows of tokens that do not occur become 0 unless accumulating. Padding, a token whose
 * lookups give no gradient, counts as a token that does not occur.
 */
struct lade_embed_bwd_args {
  enum lade_dtype dtype;
  int64_t batch, seq_len, d, vocabulary;
  int64_t first_token;
  float scale; /* of token rows; 0: 1 */
  bool has_pad;
  int32_t pad_token;
  const int32_t *tokens;
  const void *dx;
  void *d_token_table;    /* [V,d] */
  void *d_position_table; /* [positions,d], may be NULL; rows past T as above */
  int64_t positions;
  bool accumulate_token, accumulate_position;
  void *workspace;
};

enum lade_norm_kind { LADE_NORM_NONE, LADE_NORM_LAYER, LADE_NORM_RMS };

/*
 * y = norm(x) * (weight + weight_offset) (+ bias). mean (LAYER only) and rstd are [N] in A, for the backward. The
 * offset is 1 where a model stores weights less one (Gemma), else 0.
 * LayerNorm: Ba, Kiros, Hinton 2016 (biased variance). RMSNorm: Zhang, Sennrich 2019.
 */
struct lade_norm_fwd_args {
  enum lade_dtype dtype;
  enum lade_norm_kind kind;
  int64_t n, d;
  float eps, weight_offset;
  const void *x, *weight, *bias; /* bias NULL for RMS */
  void *y, *mean, *rstd;
};

/* dx = d_residual + the gradient through the norm; dx may be d_residual's memory, which may be NULL (0). */
struct lade_norm_bwd_args {
  enum lade_dtype dtype;
  enum lade_norm_kind kind;
  int64_t n, d;
  float weight_offset;
  const void *dy, *x, *weight, *mean, *rstd;
  const void *d_residual;
  void *dx;
  void *d_weight, *d_bias; /* [d] in A; d_bias NULL for RMS */
  bool accumulate;
  void *workspace;
};

struct lade_drop {
  uint32_t drop_below; /* 0: no dropout, no draw */
  uint32_t stream;
  float scale; /* 1/(1-p) */
  uint64_t first_element;
};

/*
 * Fused bias, dropout, residual and norm: sum = residual + drop(x + bias); y = norm(sum).
 * With kind NONE only sum is made. sum may be residual's memory.
 */
struct lade_residual_fwd_args {
  enum lade_dtype dtype;
  enum lade_norm_kind kind;
  int64_t n, d;
  float eps, weight_offset;
  struct lade_drop drop;
  const void *x, *bias, *residual; /* bias may be NULL */
  void *sum;
  const void *weight, *norm_bias;
  void *y, *mean, *rstd;
};

/*
 * Its backward: d_residual = d_sum + (gradient of the norm at dy); dx = drop(d_residual);
 * d_x_bias = column sums of dx. d_sum may be NULL (0); d_residual may be d_sum's memory; without
 * dropout dx is NULL because it equals d_residual. d_sum_bias = column sums of d_sum: the gradient of the bias of a
 * next residual without norm and dropout, which passes d_sum on.
 */
struct lade_residual_bwd_args {
  enum lade_dtype dtype;
  enum lade_norm_kind kind;
  int64_t n, d;
  float weight_offset;
  struct lade_drop drop;
  const void *d_sum, *dy, *sum, *weight, *mean, *rstd; /* dy, weight, mean, rstd unused with kind NONE */
  void *d_residual, *dx;
  void *d_x_bias, *d_sum_bias;  /* [d] in A, may be NULL; d_sum_bias only with d_sum */
  void *d_weight, *d_norm_bias; /* [d] in A */
  bool accumulate;
  void *workspace;
};

/* y = drop(x), elementwise; also its own backward. y may be x's memory. */
struct lade_dropout_args {
  enum lade_dtype dtype;
  int64_t n_elements;
  struct lade_drop drop;
  const void *x;
  void *y;
};

/* Most pairs of dimensions with a factor of their own. */
#define LADE_ROPE_MAX_FACTORS 128

/* Forms of the frequencies of rotary embedding (kernels/host/rows/rope.c). */
enum lade_rope_kind {
  LADE_ROPE_LLAMA3,   /* as they are, or with scale_factor > 0 Llama 3.1's */
  LADE_ROPE_LINEAR,   /* divided by scale_factor */
  LADE_ROPE_YARN,     /* Peng et al. 2023, between dimensions low and high */
  LADE_ROPE_LONGROPE, /* Ding et al. 2024: each divided by its own factor */
  LADE_ROPE_DYNAMIC   /* as they are, up to the model's context */
};

/*
 * Rotary embedding (Su et al. 2021), HuggingFace's half-split form, on the query and key heads of
 * qkv[B*T, (H + 2 Hk) * D], in place allowed; is_inverse is the backward, the transpose. Value heads are copied
 * when y is not x. Of each head the first rotary_dim numbers turn, and the others are copied. With is_interleaved,
 * pairs are neighbours: numbers 2 j and 2 j + 1 of a head in place of j and j + rotary_dim / 2.
 */
struct lade_rope_args {
  enum lade_dtype dtype;
  enum lade_rope_kind kind;
  int64_t batch, seq_len, heads, n_kv_heads, head_dim;
  int64_t rotary_dim; /* even; 0: head_dim */
  float base, scale_factor;
  float low, high; /* LLAMA3: frequency factors. YARN: the ramp's ends, in pairs of dimensions */
  float magnitude; /* of cosines and sines; 0: 1 */
  /* A query at position t is multiplied by 1 + beta ln(1 + floor(t / original_context)); whole heads; 0: none */
  float temperature_beta;
  int64_t original_context;
  const float *factors; /* [rotary_dim / 2] of LONGROPE, in host memory on every device; read before the call returns */
  bool is_inverse, is_interleaved;
  const void *x;
  void *y;
  void *workspace;
};

/*
 * The form of attention's scores beyond the causal mask; all zero: plain causal attention. Row i sees the keys from the
 * largest of 0, i + 1 - window and first_keys[b,i] on, up to itself. The softmax's denominator has one more term for
 * each head, exp(sink), if there are sinks; lse includes it. (Beltagy et al. 2020; Gemma 2, 2024; Xiao et al. 2023.)
 *
 * ALiBi (Press et al. 2022) adds m (j - i) to the scaled score of query i and key j, before the cap. With N the
 * largest power of two up to the heads of the whole model, head h has m = 2^-(alibi_max (h + 1) / N), and from head
 * N on m = 2^-(alibi_max (2 (h - N) + 1) / 2N). Falcon's form rounds to BF16, with r: it adds
 * scale (r(r(m) r(j)) - r(r(m) r(i))).
 */
struct lade_score_form {
  float scale;    /* of q k^T; 0: 1 / sqrt(D) */
  float softcap;  /* c: c tanh(scaled score / c); 0: none */
  float alibi_max;        /* 0: no ALiBi */
  bool is_alibi_rounded;  /* Falcon's form */
  int alibi_first_head;   /* the first of these heads among those of the whole model */
  int64_t window; /* keys; 0: no window */
  const void *sinks;         /* [H] in the dtype; NULL: none */
  const int32_t *first_keys; /* [B,T], from 0 to i in row i, not falling along i; NULL: 0 */
};

/*
 * Causal attention in the flash manner (Dao et al. 2022, 2023): out = softmax(q k^T / sqrt(D)) v per head with online
 * softmax over blocks of keys; no T*T matrix exists. qkv rows are [q heads | k heads | v heads]; query head h reads key
 * head h / (H / Hk). lse[B,H,T] in A. Dropout acts on the probabilities; element = ((b*H + h)*T + i)*T + j. H is
 * draw_heads if that is not 0: the heads of the whole model, if these are a part of them; the first one is in
 * drop.first_element. ALiBi counts the heads of the whole model likewise.
 */
struct lade_attention_fwd_args {
  enum lade_dtype dtype;
  int64_t batch, seq_len, heads, n_kv_heads, head_dim;
  int64_t draw_heads;
  struct lade_drop drop;
  struct lade_score_form form;
  const void *qkv;
  void *out, *lse; /* out[B*T, H*D] */
  void *workspace;
};

struct lade_attention_bwd_args {
  enum lade_dtype dtype;
  int64_t batch, seq_len, heads, n_kv_heads, head_dim;
  int64_t draw_heads;
  struct lade_drop drop;
  struct lade_score_form form;
  const void *qkv, *out, *lse, *d_out;
  void *d_qkv, *d_sinks; /* d_sinks[H] in A; NULL without sinks */
  void *d_bias;          /* [(H + 2 n_kv_heads) D] in A: (+)= the column sums of d_qkv; NULL without */
  bool accumulate_sinks, accumulate_bias;
  void *workspace;
};

/*
 * y = gelu(x), the tanh form (GPT-2's gelu_new). y may be x's memory; dx may be dy's. d_bias[f] (+)= the column sums of
 * dx[n_elements / f, f] in A, as LADE_K_COLUMN_SUM makes them; NULL without.
 */
struct lade_gelu_fwd_args {
  enum lade_dtype dtype;
  int64_t n_elements;
  const void *x;
  void *y;
};
struct lade_gelu_bwd_args {
  enum lade_dtype dtype;
  int64_t n_elements, f; /* f: with d_bias */
  const void *x, *dy;
  void *dx, *d_bias;
  bool accumulate;
  void *workspace; /* with d_bias */
};

/*
 * LADE_K_MATMUL_GELU_FWD has struct lade_matmul_args with out == D and gelu_y, without accumulate and tree: c is the
 * product with its bias, as LADE_K_MATMUL makes it, and gelu_y[m,n] is GELU of the sum in A before it is rounded to c.
 * Both are rounded once. In F32 gelu_y is GELU of c; in 16 bits its bits differ from those of LADE_K_GELU_FWD over c.
 */

/*
 * c[m,n] = the product, times the slope of GELU at gelu_x: a product's input gradient with GELU's backward. d_bias is
 * the column sums of c, as in lade_gelu_bwd_args. Most variants round the product to D before they multiply and so
 * have the bits of the two kernels; cuBLASLt's rounds once.
 */
struct lade_matmul_gelu_bwd_args {
  struct lade_matmul_args product; /* without bias and accumulate; its workspace is that of the whole */
  void *d_bias;                    /* [n] in A, may be NULL */
  bool accumulate_bias;
};

/* y[n,f] = silu(gate) * up with x[n,2f] = [gate | up] (Shazeer 2020); dx has x's shape and may be x's memory. */
struct lade_swiglu_fwd_args {
  enum lade_dtype dtype;
  int64_t n, f;
  const void *x;
  void *y;
};
struct lade_swiglu_bwd_args {
  enum lade_dtype dtype;
  int64_t n, f;
  const void *x, *dy;
  void *dx;
};

/*
 * Activations of an MLP besides the two above, the clamp of queries, keys and values, and products with a constant.
 * Slopes are those of autograd: 0 at 0 for the RELUs, 1 at the clamp's limits.
 */
enum lade_activation {
  LADE_ACTIVATION_USUAL, /* of models: their family's; no kernel's */
  LADE_SILU,
  LADE_GELU_TANH,
  LADE_GELU_ERF,  /* x Phi(x) */
  LADE_GELU_QUICK, /* x sigmoid(1.702 x) */
  LADE_RELU,
  LADE_RELU_SQUARED,
  LADE_CLAMP, /* to +-limit; never with a gate */
  LADE_SCALE, /* the product with limit; never with a gate */
  LADE_N_ACTIVATIONS
};

/* y = f(x). y may be x's memory; dx may be dy's. */
struct lade_activation_fwd_args {
  enum lade_dtype dtype;
  enum lade_activation activation;
  float limit; /* of CLAMP, above 0; SCALE's factor */
  int64_t n_elements;
  const void *x;
  void *y;
};
struct lade_activation_bwd_args {
  enum lade_dtype dtype;
  enum lade_activation activation;
  float limit;
  int64_t n_elements;
  const void *x, *dy;
  void *dx;
};

/* y[n,f] = f(gate) * up with x[n,2f] = [gate | up] (GeGLU: Shazeer 2020); dx has x's shape and may be x's memory. */
struct lade_gated_fwd_args {
  enum lade_dtype dtype;
  enum lade_activation activation;
  int64_t n, f;
  const void *x;
  void *y;
};
struct lade_gated_bwd_args {
  enum lade_dtype dtype;
  enum lade_activation activation;
  int64_t n, f;
  const void *x, *dy;
  void *dx;
};

/*
 * RMSNorm of the queries and of the keys of qkv[N, (H + 2 Hk) * D]; values are copied when y is not x. By heads: each
 * head is a group of its own, with weights [D] for all query heads and [D] for all key heads. Otherwise all query heads
 * are one group, with weights [H * D], and all key heads another, with weights [Hk * D].
 *
 * rstd in A: [N, groups], query groups first. Ranks that share the heads of a group add up its sums: with @sums, the
 * [2, N] sums of squares over all heads, these are used instead of this rank's. Then q_total and k_total are the
 * lengths of the whole groups.
 */
struct lade_qk_norm_fwd_args {
  enum lade_dtype dtype;
  int64_t n, heads, n_kv_heads, head_dim;
  bool is_by_head;
  float eps, weight_offset;
  int64_t q_total, k_total; /* with sums */
  const void *x, *q_weight, *k_weight;
  const void *sums; /* A, may be NULL */
  void *y, *rstd;
};

/*
 * The backward. Sums over rows of the weights' gradients are like a norm's. With @dots, the [2, N] sums of dy * weight
 * * normalised x over all heads of each group, these are used, and totals are as above.
 */
struct lade_qk_norm_bwd_args {
  enum lade_dtype dtype;
  int64_t n, heads, n_kv_heads, head_dim;
  bool is_by_head;
  float weight_offset;
  int64_t q_total, k_total; /* with dots */
  const void *dy, *x, *q_weight, *k_weight, *rstd;
  const void *dots; /* A, may be NULL */
  void *dx;         /* may be dy's memory */
  void *d_q_weight, *d_k_weight; /* A */
  bool accumulate;
  void *workspace;
};

/*
 * sums[2, N] in A: the squares of this rank's queries, and those of its keys divided by @n_copies ranks that have them.
 */
struct lade_qk_sums_args {
  enum lade_dtype dtype;
  int64_t n, heads, n_kv_heads, head_dim;
  int64_t n_copies;
  const void *x;
  void *sums;
};

/* dots[2, N] in A, of this rank's heads: of queries, and of keys. */
struct lade_qk_dots_args {
  enum lade_dtype dtype;
  int64_t n, heads, n_kv_heads, head_dim;
  float weight_offset;
  const void *dy, *x, *q_weight, *k_weight, *rstd;
  void *dots;
};

/*
 * Output head and softmax cross-entropy, over chunks of the vocabulary: logits = x W^T exist one [N, chunk] at a time,
 * in the workspace. losses[N] = lse - logit[target], lse[N], both A; loss[1] = their mean over N (fixed tree). A target
 * below 0 is ignored (loss 0, not counted). With @softcap c the logits are c tanh(x W^T / c) (Gemma 2).
 *
 * With @leaf, sums over the vocabulary, those of exponentials and dx, are a tree like struct lade_k_tree's. Its leaves
 * are @leaf tokens, a power of two of leaves up to LADE_LEAVES_MAX; the last may have fewer tokens. Ranks that share
 * the leaves therefore give the bits of one rank, except for the rounding of dx to D. A CUDA device has its own order.
 *
 * With @logits[N * V] in A, all logits stay there, capped, chunk after chunk. The backward of the same device then
 * makes two products instead of three, from the same bits.
 */
struct lade_head_loss_fwd_args {
  enum lade_dtype dtype;
  int64_t n, d, vocabulary;
  int64_t leaf; /* 0: all tokens */
  float softcap; /* 0: none */
  const void *x, *weight; /* [N,d], [V,d] */
  const int32_t *targets;
  void *losses, *lse, *loss;
  void *logits; /* may be NULL */
  void *workspace;
};

/*
 * The same where the vocabulary is cut over ranks: the weight has the rows of tokens [first_token, first_token + V), of
 * which the last @padding are no tokens. stats[3,N] in A: each row's largest logit, its sum of exp(logit - that), and
 * the target's logit, 0 where the target is another rank's.
 *
 * A rank may have its rows in parts, of consecutive tokens: with @before, the statistics of the parts before this one,
 * which may be @stats, the result covers all of them. There are no leaves then.
 */
struct lade_head_stats_args {
  enum lade_dtype dtype;
  int64_t n, d, vocabulary;
  int64_t first_token, padding; /* padding is less than vocabulary, and than leaf */
  int64_t leaf;
  float softcap;
  const void *x, *weight; /* [N,d], [V,d] */
  const int32_t *targets;
  const void *before; /* may be NULL */
  void *stats;
  void *logits; /* as head_loss_fwd's, for backward with the same first_token, padding and leaf; may be NULL */
  void *workspace;
};

/* losses, lse and loss as head_loss has them, of the stats[R,3,N] of R ranks, joined over rank_sum's tree. All A. */
struct lade_head_join_args {
  enum lade_dtype dtype;
  int64_t n, n_ranks;
  const void *stats;
  const int32_t *targets;
  void *losses, *lse, *loss;
};

#define LADE_HEAD_CHUNK 1024 /* columns of the vocabulary at a time; sums depend on it */

/*
 * dx[N,d] in D, d_weight[V,d] in A, of scale * loss_scale * mean loss (scale: 1/microbatches). With a part of the
 * vocabulary, as in head_stats, dx is that part's share; rows of d_weight that are padding are 0.
 *
 * Where a rank has its rows in parts, all but the last make a sum: dx in A, not yet rounded. @before is that of the
 * parts before this one, which may be dx; it is added to. On hosts, parts that begin at multiples of LADE_HEAD_CHUNK
 * tokens leave the bits of one part in dx and d_weight, for the same lse. There are no leaves then.
 */
struct lade_head_loss_bwd_args {
  enum lade_dtype dtype;
  int64_t n, d, vocabulary;
  int64_t first_token, padding;
  int64_t leaf;
  float scale, softcap;
  const void *x, *weight;
  const int32_t *targets;
  const void *lse;
  const void *logits; /* of head_loss_fwd or head_stats over the same rows of weight; NULL: they are made again */
  const void *before; /* read only with has_before, so that workspaces are sized before addresses are known */
  void *dx, *d_weight;
  bool accumulate; /* to d_weight */
  bool has_before;
  bool is_sum; /* dx is a sum in A */
  void *workspace;
};

/*
 * partial[i] = the sum of squares of block i (LADE_SUM_BLOCK elements) of a gradient, F64, for every
 * block of the tensor: a fixed cut, so that it does not matter where blocks live.
 */
#define LADE_SUM_BLOCK 16384
struct lade_sum_squares_args {
  enum lade_dtype dtype; /* of the gradient: F32 or BF16 */
  int64_t n_elements;
  const void *grad;
  double *partial;
};

/* The sum of doubles in one fixed tree: a rank's part of the norm. */
struct lade_tree_sum_args {
  int64_t n;
  const double *x;
  double *sum;
};

/* Add all partials in one fixed tree and decide: norm, clip factor, skip. */
struct lade_clip_args {
  int64_t n_partials;
  const double *partial;
  struct lade_clip_result *clip_result;
};

/*
 * AdamW (Loshchilov, Hutter 2019), one written sequence of IEEE operations per element (adamw.c on the host states it),
 * bit-equal in every variant:
 *   g = grad * factor; m = fma(b1, m, (1-b1)*g); v = fma(b2, v, (1-b2)*(g*g));
 *   w = w - lr * (m*c1 / (sqrt(v*c2) + eps) + decay*w)
 * The master w is weight + residual for BF16 (exact split), a separate F32 master for F16, and the weight itself for
 * F32. When the clip result's is_skipped is set every value is written back unchanged.
 *
 * In a compact form (base/moments.h) the sequence works on the FP32 values of the stored ones; w is made from m and v
 * before these are rounded. Random bits are lade_draw_word's of (seed, step, stream, first_element + i).
 */
struct lade_adamw_args {
  enum lade_dtype dtype, grad_dtype;
  enum lade_moments moments;
  enum lade_master master; /* other than EXACT for BF16 only */
  int64_t n_elements;
  bool has_decay;
  uint32_t stream;        /* of random words: the parameter's own */
  uint64_t first_element; /* of this call, in the parameter; a multiple of 512 */
  const struct lade_clip_result *clip_result;
  const void *grad;
  void *weight;    /* dtype; updated in place */
  void *residual;  /* for BF16 I16, or I8 of a 24-bit master; F32 master for F16, NULL for F32 */
  void *m, *v;     /* F32, BF16, or one byte each */
  uint8_t *m_scales, *v_scales; /* 8 bits: an exponent for each LADE_MOMENT_BLOCK, at multiples of 4; else NULL */
};

/* y = x + y, elementwise, both A (F32): add a gradient that was copied in. */
struct lade_add_args {
  int64_t n_elements;
  const float *x;
  float *y;
};

/* y = x in another type (round to nearest even). */
struct lade_cast_args {
  enum lade_dtype from, to;
  int64_t n_elements;
  const void *x;
  void *y;
};

/*
 * y = x[0] + x[1] + ... + x[n_terms-1], elementwise in F32, rounded to dtype once: the sum over ranks, whose order is
 * part of the result. It is a tree over neighbours: the sum of the first p of n terms is added to that of the others,
 * where p is the largest power of two below n. So four are (x0 + x1) + (x2 + x3), five that + x4. Sums of 2^k
 * neighbours from a multiple of 2^k on are therefore nodes of the tree, on any rank (struct lade_k_tree). F32, BF16,
 * F16. y may be one of the x.
 */
struct lade_rank_sum_args {
  enum lade_dtype dtype;
  int n_terms; /* at least 1 */
  int64_t n_elements;
  const void *const *x; /* n_terms pointers; each aligned to its element's size */
  void *y;
};

/* y = x, bytes, of any alignment, without overlap; y is written to memory, past the caches. */
struct lade_copy_args {
  int64_t n_bytes;
  const void *x;
  void *y;
};

struct lade_cublaslt;

/* The largest shapes that a table attends over; 0: any. */
struct lade_attention_max {
  int64_t head_dim, seq_len, batch;
};

struct lade_kernels {
  lade_kernel_fn *fn[LADE_N_KERNELS];
  /* "plain", "avx2", "avx512", "avx512_bf16", "amx", "onednn", "cuda", "cublaslt", ... */
  const char *variant[LADE_N_KERNELS];
  /* NULL: the host's */
  size_t (*workspace_bytes)(const struct lade_kernels *kernels, enum lade_kernel kernel, const void *args);
  struct lade_attention_max attention_max;
  struct lade_cublaslt *cublaslt; /* borrowed: a CUDA device's products (matmul_cublaslt.h); NULL: its plain kernel's */
  const char *library;            /* other inputs of the bits besides variants: the products' library; may be NULL */
  const int32_t *cuts;            /* and the cuts of a device's sums, @n_cuts numbers; static */
  int n_cuts;
};

struct lade_cpu;

/*
 * Choose the best variants for @cpu. Environment LADE_MATMUL=onednn chooses oneDNN's products if its plug-in opens;
 * those allocate while they run. Any thread; never fails.
 */
void lade_kernels_init(struct lade_kernels *kernels, const struct lade_cpu *cpu);

/* Return the lower-case name of a kernel, "matmul"; static. */
const char *lade_kernel_name(enum lade_kernel kernel);

/*
 * Return the scratch bytes for these arguments (pointers unused except for being NULL or not) with a pool of
 * @n_threads; 0 for most kernels. The answer covers every variant of @kernels, so that a plan does not depend on the
 * variant that runs.
 */
size_t lade_kernel_workspace_bytes(const struct lade_kernels *kernels, enum lade_kernel kernel, const void *args,
                                   int n_threads);

/*
 * Return the hash of every variant's name, the library's, and the cuts of sums, for all kernels and for these: the
 * kernels' part of numerics_key.
 */
uint64_t lade_kernels_key(const struct lade_kernels *kernels);

#endif
