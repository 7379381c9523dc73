/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the graph module: the op table's entries, and the builder that model files and backward rules push
 * tensors and ops into. A builder is sized for the whole graph before the first push, so nothing fails in the middle.
 * All other modules use graph.h alone.
 */
#ifndef LADE_GRAPH_BUILD_H
#define LADE_GRAPH_BUILD_H

#include "graph/model_graph.h"

struct lade_build {
  struct lade_model_graph *graph;
  const struct lade_kernels *kernels;
  int n_threads;
  float dropout;
  bool has_documents, fuses_gelu, fuses_gelu_fwd;
  int unit;         /* that new objects belong to */
  int chunk;        /* that new units belong to */
  int n_skipped_params, n_skipped_ops; /* of the whole model's forward half, before this point, on other stages */
  /* forward ops that only shares have: stage boundaries, collectives, a table's later parts */
  int n_boundary_ops;
  int n_joined_ops; /* forward ops that are part of another one, and count for streams */
  int *gradient_of; /* by tensor: the tensor that holds its gradient so far; -1 */
};

/* Classes of units: equal for units of equal shape. */
enum {
  LADE_CLASS_EMBED,
  LADE_CLASS_BLOCK,
  LADE_CLASS_HEAD,
  LADE_CLASS_RECV,
  LADE_CLASS_SEND,
  LADE_CLASS_WINDOWED_BLOCK,
  LADE_CLASS_UNROTATED_BLOCK, /* without rotary positions in a family with them */
  LADE_CLASS_UNROTATED_WINDOWED_BLOCK
};

/* The outputs of a forward op, one entry each; n_dims is 0 for an absent one. */
struct lade_op_output {
  const char *suffix; /* after the op's name: "", ".rstd" */
  enum lade_tensor_kind kind;
  bool is_accumulator; /* dtype A instead of D */
  bool is_optional;    /* as in struct lade_tensor */
  int n_dims;
  int64_t dims[4];
};

struct lade_op_entry {
  const char *name;
  enum lade_kernel kernel;
  int n_in, n_out;
  int8_t alias; /* the input whose memory out[0] may take over; -1 */
  /* Forward ops: describe every output from inputs and attr. */
  void (*outputs)(const struct lade_model_graph *graph, const struct lade_op *op, struct lade_op_output *ret_out);
  double flops_per_element; /* of out[0], if flops is NULL */
  double (*flops)(const struct lade_model_graph *graph, const struct lade_op *op);
  double (*bytes)(const struct lade_model_graph *graph, const struct lade_op *op); /* NULL: every operand once */
  void (*bind)(const struct lade_model_graph *graph, const struct lade_op *op, const struct lade_bind *bind,
               void *args);
  /* Forward ops: push the ops that compute the inputs' gradients from the outputs' gradients. */
  void (*backward)(struct lade_build *build, int forward);
  int bias_out; /* backward ops: the optional output that is out[0]'s column sums, a bias's gradient; 0: none */
};

/* By enum lade_op_kind. */
extern const struct lade_op_entry lade_op_table[LADE_N_OP_KINDS];

/* ---- pushing (push.c) ---- */

/* Begin a unit; units with the same @class_id have equal shapes. */
void lade_build_unit(struct lade_build *build, int class_id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Add a parameter of the current unit, named unit + @name, with its gradient; sizes are this share's. @n_cols 0: one
 * dimension. Return its tensor.
 */
int lade_build_param(struct lade_build *build, const char *name, int64_t n_rows, int64_t n_cols, enum lade_init init,
                     float init_std);

/* Declare the next rows of @param (a tensor) as @slice. Its name, a printf format, and its first_row are set here. */
void lade_build_slice(struct lade_build *build, int param, const struct lade_param_slice *slice, const char *format,
                      ...) __attribute__((format(printf, 4, 5)));

/* Add an activation of the current unit. */
int lade_build_tensor(struct lade_build *build, enum lade_tensor_kind kind, enum lade_dtype dtype, int n_dims,
                      const int64_t *dims, const char *name);

/*
 * Add a forward op in the current unit; its outputs are named unit + @name + suffix. @in has the table entry's n_in
 * tensors, -1 for an absent one. Return the op; its first output is the usual result.
 */
int lade_build_op(struct lade_build *build, enum lade_op_kind kind, const char *name, const struct lade_op_attr *attr,
                  const int *in);

/* Add a backward op of @forward with the given operands. */
int lade_build_backward_op(struct lade_build *build, enum lade_op_kind kind, int forward, const int *in,
                           const int *out);

/*
 * Make @d_bias the column sums of @dy: by the op that makes @dy, if it can and is of the same unit as @forward, because
 * then @dy is not read again; else by an op of its own.
 */
void lade_build_bias_grad(struct lade_build *build, int forward, int dy, int d_bias);

/* Add the lean forms of all ops with an optional operand, once both halves are there. */
void lade_build_lean_ops(struct lade_build *build);

/* Return out[@i] of op @op. */
int lade_build_out(const struct lade_build *build, int op, int i);

/* Allocate zeroed arrays for all units. False: out of memory; the caller destroys the partial graph. */
bool lade_build_reserve(struct lade_model_graph *graph, struct lade_build *build);

/* ---- a tensor parallel rank's share (share.c) ---- */

/* Check that the share divides the model and the batch. -EINVAL. */
int lade_share_check(const struct lade_model_graph_params *params, struct lade_error *error);

/* Return this rank's rows of the token table, the padding rows at its end, its heads, and its KV heads. */
int64_t lade_share_vocabulary(const struct lade_model_graph *graph);
int64_t lade_share_padding(const struct lade_model_graph *graph);
int64_t lade_share_heads(const struct lade_model_graph *graph);
int64_t lade_share_kv_heads(const struct lade_model_graph *graph);
/* Return the number of neighbours that hold the same KV heads: 1 unless there are more ranks than KV heads. */
int lade_share_key_ranks(const struct lade_model_graph *graph);
/* Return the rows of the residual stream on this rank. */
int64_t lade_share_rows(const struct lade_model_graph *graph);

/* Return a slice of a checkpoint's tensor of @n_rows and @n_cols (1: a vector): all of it, or this rank's part. */
struct lade_param_slice lade_slice_whole(int64_t n_rows, int64_t n_cols);
struct lade_param_slice lade_slice_rows(const struct lade_model_graph *graph, int64_t n_rows, int64_t n_cols);
struct lade_param_slice lade_slice_cols(const struct lade_model_graph *graph, int64_t n_rows, int64_t n_cols);
/* Return this rank's rows among those of all KV heads, or this rank's tokens in the token table. */
struct lade_param_slice lade_slice_key_rows(const struct lade_model_graph *graph, int64_t n_cols);
struct lade_param_slice lade_slice_vocabulary(const struct lade_model_graph *graph);

/*
 * Declare that all ranks hold @param. @has_all_rows: each rank computes its whole gradient, even if the residual stream
 * is cut by rows.
 */
void lade_build_replica(struct lade_build *build, int param, bool has_all_rows);
/* Declare that all ranks hold @param, and that each has the part of its gradient that is of its heads. */
void lade_build_head_replica(struct lade_build *build, int param);
/* Declare that the rows of @param from @first_row on are of KV heads, which several ranks may hold. */
void lade_build_key_replica(struct lade_build *build, int param, int64_t first_row);

/*
 * Gather all rows of @x, of the residual stream, for products that are cut (enter); sum the ranks' parts @x into its
 * rows (leave).
 */
int lade_build_enter(struct lade_build *build, const char *name, int x);
int lade_build_leave(struct lade_build *build, const char *name, int x);

/* Heads or hidden values: rows or columns of a product in the whole model, and on this rank. */
struct lade_sharded_width {
  int64_t n_all, n_own;
};
/*
 * Return the attributes of a product that is cut by its outputs, which are @n_spans kinds of rows, one after the other.
 */
struct lade_op_attr lade_attr_column(const struct lade_build *build, int n_spans,
                                     const struct lade_sharded_width *spans);
/* Return the attributes of a product that is cut by its inputs; the whole model has @n_all inputs. */
struct lade_op_attr lade_attr_row(const struct lade_build *build, int64_t n_all);
/* Build the loss of x over the tokens of all ranks. @table is the head's matrix: its first part. */
int lade_build_head_loss(struct lade_build *build, int x, int table);

/* ---- tables: a row for each token, the embedding's and the head's (table.c) ---- */

/* Maximum number of parameters into which a table is cut. */
#define LADE_TABLE_PARTS_MAX 16

/*
 * Add the table @name of the current unit, "@file_name" in checkpoints: one parameter, or several consecutive ones.
 * Return the first one's tensor, which identifies the table below.
 */
int lade_build_table(struct lade_build *build, const char *name, const char *file_name, float init_std);
/*
 * Declare that the table is at both ends of the pipeline. It is the owner's table, the model's first parameter, or with
 * @is_copy the last stage's copy.
 */
void lade_build_table_tie(struct lade_build *build, int table, bool is_copy);

/* Return a table's number of parts, the tensor of part @i, or the padding rows at the end of a part. */
int lade_table_n_parts(const struct lade_model_graph *graph, int table);
int lade_table_part(const struct lade_model_graph *graph, int table, int i);
int64_t lade_table_padding(const struct lade_model_graph *graph, int part);
/* Return the token, in the whole vocabulary, of part @part's first row. */
int64_t lade_table_first_token(const struct lade_model_graph *graph, int part);

/* Build the embedding of the tokens, with @positions added (-1: none). Return x. */
int lade_build_embed(struct lade_build *build, int table, int positions);

/* ---- attention (attention.c) ---- */

/* Return the class of layer @i_layer's unit. */
int lade_layer_class(const struct lade_model_graph *graph, int64_t i_layer);

/*
 * Add the sinks of the current unit's heads, "@file_name" in checkpoints. Return their tensor; -1 if the model has
 * none.
 */
int lade_build_sinks(struct lade_build *build, const char *name, const char *file_name, float init_std);

/* Build the attention of layer @i_layer over @qkv, with @sinks (-1: none). Return its output. */
int lade_build_attention(struct lade_build *build, const char *name, int64_t i_layer, int qkv, int sinks);

/* ---- rules and the walk (backward.c) ---- */

/* Push the backward ops of forward op @forward, and set the gradients of its inputs. */
void lade_embed_backward(struct lade_build *build, int forward);
void lade_norm_backward(struct lade_build *build, int forward);
void lade_residual_backward(struct lade_build *build, int forward);
void lade_dropout_backward(struct lade_build *build, int forward);
void lade_matmul_backward(struct lade_build *build, int forward);
void lade_matmul_gelu_backward(struct lade_build *build, int forward);
void lade_rope_backward(struct lade_build *build, int forward);
void lade_attention_backward(struct lade_build *build, int forward);
void lade_gelu_backward(struct lade_build *build, int forward);
void lade_swiglu_backward(struct lade_build *build, int forward);
void lade_activation_backward(struct lade_build *build, int forward);
void lade_gated_backward(struct lade_build *build, int forward);
void lade_scale_backward(struct lade_build *build, int forward);
void lade_qk_sums_backward(struct lade_build *build, int forward);
void lade_qk_norm_backward(struct lade_build *build, int forward);
void lade_head_loss_backward(struct lade_build *build, int forward);
void lade_head_stats_backward(struct lade_build *build, int forward);
void lade_head_join_backward(struct lade_build *build, int forward);
void lade_all_reduce_backward(struct lade_build *build, int forward);
void lade_all_gather_backward(struct lade_build *build, int forward);
void lade_reduce_scatter_backward(struct lade_build *build, int forward);
void lade_send_backward(struct lade_build *build, int forward);
void lade_recv_backward(struct lade_build *build, int forward);

/* Derive the backward half of a graph whose forward half is complete. */
void lade_build_backward(struct lade_build *build);

/* ---- models ---- */

/*
 * The units of a model (block.c); each maps the residual stream to the residual stream. The embedding returns the token
 * table, and the first block's x in *ret_x; the head takes that table, or -1 if it is on another stage.
 */
int lade_build_embedding(struct lade_build *build, int *ret_x);
int lade_build_block(struct lade_build *build, int64_t i_layer, int x);
void lade_build_head(struct lade_build *build, int x, int table);

/* Build the forward half of the pieces of this share (stage.c). */
void lade_build_stage(struct lade_build *build);
/* True if the pieces of this share have a layer. The first and the last stage may have none. */
bool lade_stage_has_layers(const struct lade_model_graph *graph);

/* The names of fields for messages, as the user writes them: a config.json has its own. */
struct lade_model_labels {
  const char *layers, *heads, *n_kv_heads, *width, *hidden, *context, *vocabulary, *norm_eps;
};

/* Check a model as lade_model_check does, with the names of @labels. @where begins messages ("model nano", a path). */
int lade_model_check_as(const struct lade_model *model, const char *where, const struct lade_model_labels *labels,
                        struct lade_error *error);

#endif
