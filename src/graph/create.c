/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a graph: room for everything first, then the model's forward half, then its derivation.
 *
 * The arrays are sized from the number of units before anything is pushed (the *_PER_UNIT bounds are
 * asserted at every push), so that building is one pass, linear in the ops, and the only thing that can
 * fail is the allocation at the start. A graph of 130 units takes a few megabytes and about a
 * millisecond; what was not used is handed back at the end.
 */
#include "graph/build.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

/*
 * The largest block is GPT-2's with dropout, cut with its rows: 57 tensors, 12 parameters, 33 ops. A head whose table
 * is in LADE_TABLE_PARTS_MOST parts has 4 tensors, a parameter and 2 ops for each, and a few of its own.
 */
#define TENSORS_PER_UNIT 80
#define PARAMS_PER_UNIT 20
#define OPS_PER_UNIT 44
#define SOMEWHERE 64 /* an address, as aligned as real ones, of what has none yet */

/* Rows N = batch * time stay in 31 bits: with the model's limits no product of sizes leaves 63 bits. */
#define MAX_ROWS INT32_MAX

/* Layers, and at each end of a chunk the embedding, the head or a border. */
static int64_t units_most(const struct lade_graph *graph)
{
  return graph->model.layers + 2 * (int64_t)graph->share.n_chunks;
}

/* ---- pushing ---- */

static uint64_t tensor_bytes(const struct lade_tensor *tensor)
{
  uint64_t bytes = lade_dtype_bytes(tensor->dtype);
  for (int i = 0; i < tensor->n_dims; i++)
    bytes *= (uint64_t)tensor->dims[i];
  return bytes;
}

void lade_build_unit(struct lade_build *build, int class_id, const char *format, ...)
{
  struct lade_graph *graph = build->graph;
  LADE_ASSERT(graph->n_units < units_most(graph));
  struct lade_unit *unit = &graph->units[graph->n_units];
  va_list args;
  va_start(args, format);
  vsnprintf(unit->name, sizeof(unit->name), format, args);
  va_end(args);
  unit->class_id = class_id;
  unit->chunk = build->chunk;
  unit->first_fwd = graph->n_ops;
  build->unit = graph->n_units++;
}

int lade_build_tensor(struct lade_build *build, enum lade_tensor_kind kind, enum lade_dtype dtype, int n_dims,
                      const int64_t *dims, const char *name)
{
  struct lade_graph *graph = build->graph;
  LADE_ASSERT(graph->n_tensors < units_most(graph) * TENSORS_PER_UNIT);
  struct lade_tensor *tensor = &graph->tensors[graph->n_tensors];
  *tensor = (struct lade_tensor){
      .kind = kind, .dtype = dtype, .n_dims = n_dims, .unit = build->unit, .producer = -1, .param = -1};
  snprintf(tensor->name, sizeof(tensor->name), "%s", name);
  for (int i = 0; i < n_dims; i++)
    tensor->dims[i] = dims[i];
  tensor->bytes = tensor_bytes(tensor);
  build->gradient_of[graph->n_tensors] = -1;
  return graph->n_tensors++;
}

/* "h.3" and "ln_1.weight" make "h.3.ln_1.weight". */
static void unit_name(const struct lade_build *build, const char *name, const char *suffix, char *ret_name,
                      size_t bytes)
{
  snprintf(ret_name, bytes, "%s.%s%s", build->graph->units[build->unit].name, name, suffix);
}

int lade_build_param(struct lade_build *build, const char *name, int64_t n_rows, int64_t n_cols, enum lade_init init,
                     float init_std)
{
  struct lade_graph *graph = build->graph;
  LADE_ASSERT(graph->n_params < units_most(graph) * PARAMS_PER_UNIT);
  int64_t dims[] = {n_rows, n_cols};
  int n_dims = n_cols > 0 ? 2 : 1;
  char full[LADE_NAME_BYTES], gradient[LADE_NAME_BYTES + 2];
  unit_name(build, name, "", full, sizeof(full));
  snprintf(gradient, sizeof(gradient), "d.%s", full);
  struct lade_param *param = &graph->params[graph->n_params];
  *param = (struct lade_param){
      .number = graph->n_params + build->n_skipped_params, .has_decay = n_dims > 1, .n_owned_rows = n_rows,
      .n_sharers = 1, .n_parts = 1, .init = init, .init_std = init_std};
  param->tensor = lade_build_tensor(build, LADE_TENSOR_PARAM, graph->dtype, n_dims, dims, full);
  param->grad = lade_build_tensor(build, LADE_TENSOR_GRAD, graph->accumulator, n_dims, dims, gradient);
  graph->tensors[param->tensor].param = graph->tensors[param->grad].param = graph->n_params++;
  return param->tensor;
}

static double op_bytes(const struct lade_graph *graph, const struct lade_op *op)
{
  double bytes = 0;
  for (int i = 0; i < op->n_in; i++)
    bytes += op->in[i] >= 0 ? (double)graph->tensors[op->in[i]].bytes : 0;
  for (int i = 0; i < op->n_out; i++)
    bytes += op->out[i] >= 0 ? (double)graph->tensors[op->out[i]].bytes : 0;
  return bytes;
}

/* What follows from operands and attr: costs, workspace, who produced what. */
static void op_complete(struct lade_build *build, int i_op)
{
  struct lade_graph *graph = build->graph;
  struct lade_op *op = &graph->ops[i_op];
  const struct lade_op_entry *entry = &lade_op_table[op->kind];
  for (int i = 0; i < LADE_OP_MAX_OUT; i++)
    op->alias[i] = -1;
  if (entry->alias >= 0 && op->in[entry->alias] >= 0 &&
      graph->tensors[op->in[entry->alias]].bytes == graph->tensors[op->out[0]].bytes)
    op->alias[0] = entry->alias;
  for (int i = 0; i < op->n_out; i++)
    if (op->out[i] >= 0 && graph->tensors[op->out[i]].producer < 0)
      graph->tensors[op->out[i]].producer = i_op;
  op->bytes = entry->bytes ? entry->bytes(graph, op) : op_bytes(graph, op);
  if (entry->flops) {
    op->flops = entry->flops(graph, op);
  } else {
    const struct lade_tensor *out = &graph->tensors[op->out[0]];
    op->flops = entry->flops_per_element * (double)(out->bytes / lade_dtype_bytes(out->dtype));
  }
  if (lade_op_is_border(op->kind))
    return;
  _Alignas(64) char args[LADE_OP_ARGS_BYTES];
  struct lade_bind bind = {.n_microbatches = 1};
  for (int i = 0; i < LADE_OP_MAX_IN; i++) /* what is there has an address: a product with a bias is another one */
    bind.in[i] = op->in[i] >= 0 ? SOMEWHERE : 0;
  for (int i = 0; i < op->n_out; i++)
    bind.out[i] = op->out[i] >= 0 ? SOMEWHERE : 0;
  lade_op_bind(graph, i_op, &bind, args);
  op->workspace_bytes = lade_kernel_workspace_bytes(build->kernels, op->kernel, args, build->n_threads);
}

static struct lade_op *op_push(struct lade_build *build, enum lade_op_kind kind, const int *in)
{
  struct lade_graph *graph = build->graph;
  LADE_ASSERT(graph->n_ops < units_most(graph) * OPS_PER_UNIT);
  const struct lade_op_entry *entry = &lade_op_table[kind];
  struct lade_op *op = &graph->ops[graph->n_ops++];
  *op = (struct lade_op){
      .kind = kind, .kernel = entry->kernel, .unit = build->unit, .forward = -1, .n_in = entry->n_in,
      .n_out = entry->n_out};
  for (int i = 0; i < LADE_OP_MAX_IN; i++)
    op->in[i] = i < op->n_in ? in[i] : -1;
  for (int i = 0; i < LADE_OP_MAX_OUT; i++)
    op->out[i] = -1;
  return op;
}

int lade_build_op(struct lade_build *build, enum lade_op_kind kind, const char *name, const struct lade_op_attr *attr,
                  const int *in)
{
  struct lade_graph *graph = build->graph;
  int i_op = graph->n_ops;
  struct lade_op *op = op_push(build, kind, in);
  if (attr)
    op->attr = *attr;
  op->attr.stream = (uint32_t)(i_op + build->n_skipped_ops - build->n_border_ops);
  build->n_border_ops += lade_op_is_border(kind);
  struct lade_op_output outputs[LADE_OP_MAX_OUT] = {0};
  lade_op_table[kind].outputs(graph, op, outputs);
  for (int i = 0; i < op->n_out; i++) {
    if (outputs[i].n_dims == 0)
      continue;
    char full[LADE_NAME_BYTES];
    unit_name(build, name, outputs[i].suffix, full, sizeof(full));
    op->out[i] = lade_build_tensor(build, outputs[i].kind,
                                   outputs[i].is_accumulator ? graph->accumulator : graph->dtype,
                                   outputs[i].n_dims, outputs[i].dims, full);
  }
  op_complete(build, i_op);
  graph->units[build->unit].n_fwd++;
  return i_op;
}

int lade_build_backward_op(struct lade_build *build, enum lade_op_kind kind, int forward, const int *in,
                           const int *out)
{
  int i_op = build->graph->n_ops;
  struct lade_op *op = op_push(build, kind, in);
  op->is_backward = true;
  op->forward = forward;
  op->attr = build->graph->ops[forward].attr;
  for (int i = 0; i < op->n_out; i++)
    op->out[i] = out[i];
  op_complete(build, i_op);
  return i_op;
}

int lade_build_out(const struct lade_build *build, int op, int i)
{
  return build->graph->ops[op].out[i];
}

/* ---- public ---- */

static int stage_check(const struct lade_graph_params *params, struct lade_error *error)
{
  const struct lade_share *share = &params->share;
  struct lade_layer_span span;
  int pp = LADE_MAX(share->pp, 1), n_chunks = LADE_MAX(share->n_chunks, 1);
  if (share->pp_rank < 0 || share->pp_rank >= pp || (pp == 1 && n_chunks > 1))
    return lade_error_set(error, -EINVAL, "model %s: stage %d of %d with %d chunks of layers: no such stage",
                          params->model->name, share->pp_rank, pp, n_chunks);
  return lade_piece_layers(params->model, params->time, pp * n_chunks, share->pp_rank, error, &span);
}

/* The forms of what AdamW keeps and takes. */
static int forms_check(const struct lade_graph_params *params, struct lade_error *error)
{
  if ((unsigned)params->moments >= LADE_N_MOMENTS || (unsigned)params->master >= LADE_N_MASTERS)
    return lade_error_set(error, -EINVAL, "optimizer state has no form of moments %d, master %d",
                          (int)params->moments, (int)params->master);
  if (params->master == LADE_MASTER_24BIT && params->dtype != LADE_BF16)
    return lade_error_set(error, -EINVAL, "a 24-bit master is 8 bits beside a bf16 weight; with %s use the exact one",
                          lade_dtype_name(params->dtype));
  if (params->grad_dtype != LADE_F32 && (params->grad_dtype != LADE_BF16 || params->dtype == LADE_F64))
    return lade_error_set(error, -EINVAL, "gradients are given to the update in f32 or in bf16, not in %s",
                          lade_dtype_name(params->grad_dtype));
  return 0;
}

/* What attention of the device does not do. */
static int attention_check(const struct lade_graph_params *params, struct lade_error *error)
{
  const struct lade_attention_most *most = &params->kernels->attention_most;
  const struct {
    const char *label;
    int64_t value, most;
  } sizes[] = {{"heads of", lade_model_head_dim(params->model), most->head_dim},
               {"sequence length", params->time, most->time},
               {"micro-batch", params->batch, most->batch}};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    if (sizes[i].most && sizes[i].value > sizes[i].most)
      return lade_error_set(error, -EINVAL, "model %s: %s %lld: this device attends with at most %lld; the host takes "
                            "any", params->model->name, sizes[i].label, (long long)sizes[i].value,
                            (long long)sizes[i].most);
  }
  return 0;
}

static int params_check(const struct lade_graph_params *params, struct lade_error *error)
{
  LADE_ASSERT(params->struct_size == sizeof(*params) && params->model && params->kernels);
  int rc = lade_model_check(params->model, error);
  if (rc < 0)
    return rc;
  const struct lade_model *model = params->model;
  if (params->dtype > LADE_F64)
    return lade_error_set(error, -EINVAL, "model %s: dtype %s: expected f32, bf16 or f16", model->name,
                          lade_dtype_name(params->dtype));
  if (params->time < 1 || params->time > model->context)
    return lade_error_set(error, -EINVAL, "model %s: sequence length %lld: must be from 1 to the context, %lld",
                          model->name, (long long)params->time, (long long)model->context);
  if (params->batch < 1 || params->batch > MAX_ROWS / params->time)
    return lade_error_set(error, -EINVAL,
                          "model %s: micro-batch %lld: must be from 1 to %lld at sequence length %lld", model->name,
                          (long long)params->batch, (long long)(MAX_ROWS / params->time), (long long)params->time);
  if (!(params->dropout >= 0 && params->dropout < 1))
    return lade_error_set(error, -EINVAL, "model %s: dropout %g: must be at least 0 and below 1", model->name,
                          (double)params->dropout);
  rc = attention_check(params, error);
  if (rc < 0)
    return rc;
  rc = forms_check(params, error);
  if (rc < 0)
    return rc;
  rc = lade_share_check(params, error);
  if (rc < 0)
    return rc;
  rc = stage_check(params, error);
  if (rc < 0)
    return rc;
  if (params->n_threads < 1)
    return lade_error_set(error, -EINVAL, "model %s: %d threads: must be at least 1", model->name,
                          params->n_threads);
  return 0;
}

/* Room for all units, zeroed. False: out of memory, and destroying what there is remains the caller's. */
static bool graph_reserve(struct lade_graph *graph, struct lade_build *build)
{
  size_t n_units = (size_t)units_most(graph);
  graph->tensors = calloc(n_units * TENSORS_PER_UNIT, sizeof(*graph->tensors));
  graph->params = calloc(n_units * PARAMS_PER_UNIT, sizeof(*graph->params));
  graph->ops = calloc(n_units * OPS_PER_UNIT, sizeof(*graph->ops));
  graph->units = calloc(n_units, sizeof(*graph->units));
  build->gradient_of = calloc(n_units * TENSORS_PER_UNIT, sizeof(*build->gradient_of));
  return graph->tensors && graph->params && graph->ops && graph->units && build->gradient_of;
}

/* Shrink to what was used; a refusal leaves the larger block, which is as good. */
static void graph_trim(struct lade_graph *graph)
{
  void *tensors = realloc(graph->tensors, (size_t)graph->n_tensors * sizeof(*graph->tensors));
  graph->tensors = tensors ? tensors : graph->tensors;
  void *params = realloc(graph->params, (size_t)graph->n_params * sizeof(*graph->params));
  graph->params = params ? params : graph->params;
  void *ops = realloc(graph->ops, (size_t)graph->n_ops * sizeof(*graph->ops));
  graph->ops = ops ? ops : graph->ops;
}

/* Tokens belong to the first unit, targets to the last. */
static void graph_fill(struct lade_graph *graph, struct lade_build *build)
{
  const int64_t dims[] = {graph->batch, graph->time};
  bool is_first = graph->share.pp_rank == 0, is_last = graph->share.pp_rank == graph->share.pp - 1;
  graph->tokens = graph->targets = graph->loss = -1;
  if (is_first)
    graph->tokens = lade_build_tensor(build, LADE_TENSOR_TOKENS, LADE_I32, 2, dims, "tokens");
  if (is_last)
    graph->targets = lade_build_tensor(build, LADE_TENSOR_TARGETS, LADE_I32, 2, dims, "targets");
  lade_build_stage(build, graph->model.family == LADE_GPT2 ? &lade_gpt2_entry : &lade_llama_entry);
  graph->n_fwd_ops = graph->n_ops;
  if (is_last)
    graph->tensors[graph->targets].unit = graph->n_units - 1;
  lade_build_backward(build);
}

int lade_graph_create(const struct lade_graph_params *params, struct lade_error *error, struct lade_graph **ret_graph)
{
  int rc = params_check(params, error);
  if (rc < 0)
    return rc;
  struct lade_graph *graph = calloc(1, sizeof(*graph));
  struct lade_build build = {
      .graph = graph, .kernels = params->kernels, .n_threads = params->n_threads, .dropout = params->dropout};
  if (!graph)
    return lade_error_set(error, -ENOMEM, "out of memory building the graph of %s", params->model->name);
  graph->model = *params->model;
  graph->share = params->share;
  graph->share.tp = LADE_MAX(params->share.tp, 1);
  graph->share.is_sequence = params->share.is_sequence && graph->share.tp > 1;
  graph->share.pp = LADE_MAX(params->share.pp, 1);
  graph->share.n_chunks = LADE_MAX(params->share.n_chunks, 1);
  graph->share.n_shards = LADE_MAX(params->share.n_shards, 1);
  graph->dtype = params->dtype;
  graph->accumulator = params->dtype == LADE_F64 ? LADE_F64 : LADE_F32;
  graph->moments = params->moments;
  graph->master = params->master;
  graph->grad_dtype = params->grad_dtype == LADE_BF16 ? LADE_BF16 : graph->accumulator;
  graph->batch = params->batch;
  graph->time = params->time;
  if (!graph_reserve(graph, &build)) {
    free(build.gradient_of);
    lade_graph_destroy(graph);
    return lade_error_set(error, -ENOMEM, "out of memory building the graph of %s", params->model->name);
  }
  graph_fill(graph, &build);
  free(build.gradient_of);
  graph_trim(graph);
  *ret_graph = graph;
  return 0;
}

void lade_graph_destroy(struct lade_graph *graph)
{
  if (!graph)
    return;
  free(graph->tensors);
  free(graph->params);
  free(graph->ops);
  free(graph->units);
  free(graph);
}

bool lade_op_is_collective(enum lade_op_kind kind)
{
  return kind == LADE_OP_ALL_REDUCE || kind == LADE_OP_ALL_GATHER || kind == LADE_OP_REDUCE_SCATTER;
}

bool lade_op_is_border(enum lade_op_kind kind)
{
  return kind == LADE_OP_SEND || kind == LADE_OP_RECV || lade_op_is_collective(kind);
}

bool lade_tensor_is_repeatable(const struct lade_graph *graph, int tensor)
{
  const struct lade_tensor *what = &graph->tensors[tensor];
  return what->kind == LADE_TENSOR_ACTIVATION && !graph->ops[what->producer].is_backward &&
         graph->ops[what->producer].kind != LADE_OP_RECV;
}
