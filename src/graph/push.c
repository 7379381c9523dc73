/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph under construction: room for its arrays, and units, tensors, parameters and ops pushed one by one.
 *
 * The arrays are sized from the number of units before anything is pushed. Every push asserts the *_PER_UNIT bounds. So
 * building is one pass, linear in the ops, and only the allocation at the start can fail. An op is complete once its
 * outputs are known: then its bytes, flops and scratch follow from its entry in the table of ops.
 */
#include "graph/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

/*
 * The largest block is Gemma 3's with biases and dropout, cut by rows: about 100 tensors, 17 parameters, 50 ops. A head
 * with a table in LADE_TABLE_PARTS_MAX parts has 4 tensors, a parameter and 2 ops for each, and a few of its own.
 */
#define TENSORS_PER_UNIT 120
#define PARAMS_PER_UNIT 20
#define OPS_PER_UNIT 64
#define SOMEWHERE 64 /* a placeholder, aligned like real addresses, for operands without an address yet */

/* Return the most units: the layers, and at each end of a chunk the embedding, the head or a stage boundary. */
static int64_t units_max(const struct lade_model_graph *graph)
{
  return graph->model.layers + 2 * (int64_t)graph->share.n_chunks;
}

static uint64_t tensor_bytes(const struct lade_tensor *tensor)
{
  uint64_t bytes = lade_dtype_bytes(tensor->dtype);
  for (int i = 0; i < tensor->n_dims; i++)
    bytes *= (uint64_t)tensor->dims[i];
  return bytes;
}

void lade_build_unit(struct lade_build *build, int class_id, const char *format, ...)
{
  struct lade_model_graph *graph = build->graph;
  LADE_ASSERT(graph->n_units < units_max(graph));
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
  struct lade_model_graph *graph = build->graph;
  LADE_ASSERT(graph->n_tensors < units_max(graph) * TENSORS_PER_UNIT);
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

/* Join "h.3" and "ln_1.weight" into "h.3.ln_1.weight". */
static void unit_name(const struct lade_build *build, const char *name, const char *suffix, char *ret_name,
                      size_t bytes)
{
  snprintf(ret_name, bytes, "%s.%s%s", build->graph->units[build->unit].name, name, suffix);
}

int lade_build_param(struct lade_build *build, const char *name, int64_t n_rows, int64_t n_cols, enum lade_init init,
                     float init_std)
{
  struct lade_model_graph *graph = build->graph;
  LADE_ASSERT(graph->n_params < units_max(graph) * PARAMS_PER_UNIT);
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

static double op_bytes(const struct lade_model_graph *graph, const struct lade_op *op)
{
  double bytes = 0;
  for (int i = 0; i < op->n_in; i++)
    bytes += op->in[i] >= 0 ? (double)graph->tensors[op->in[i]].bytes : 0;
  for (int i = 0; i < op->n_out; i++)
    bytes += op->out[i] >= 0 ? (double)graph->tensors[op->out[i]].bytes : 0;
  return bytes;
}

/* Derive an op's costs and workspace from its operands and attributes. */
static void costs_complete(struct lade_build *build, int i_op)
{
  struct lade_model_graph *graph = build->graph;
  struct lade_op *op = &graph->ops[i_op];
  const struct lade_op_entry *entry = &lade_op_table[op->kind];
  op->bytes = entry->bytes ? entry->bytes(graph, op) : op_bytes(graph, op);
  if (entry->flops) {
    op->flops = entry->flops(graph, op);
  } else {
    const struct lade_tensor *out = &graph->tensors[op->out[0]];
    op->flops = entry->flops_per_element * (double)(out->bytes / lade_dtype_bytes(out->dtype));
  }
  if (lade_op_is_stage_boundary(op->kind))
    return;
  _Alignas(64) char args[LADE_OP_ARGS_BYTES];
  struct lade_bind bind = {.n_microbatches = 1};
  for (int i = 0; i < LADE_OP_MAX_IN; i++) /* present operands need an address, because the workspace depends on
                                              them: on a bias, for example */
    bind.in[i] = op->in[i] >= 0 ? SOMEWHERE : 0;
  for (int i = 0; i < op->n_out; i++)
    bind.out[i] = op->out[i] >= 0 ? SOMEWHERE : 0;
  lade_op_bind(graph, i_op, &bind, args);
  op->workspace_bytes = lade_kernel_workspace_bytes(build->kernels, op->kernel, args, build->n_threads);
}

/* Derive an op's aliases, costs, workspace and producers from its operands and attributes. */
static void op_complete(struct lade_build *build, int i_op)
{
  struct lade_model_graph *graph = build->graph;
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
  costs_complete(build, i_op);
}

static struct lade_op *op_push(struct lade_build *build, enum lade_op_kind kind, const int *in)
{
  struct lade_model_graph *graph = build->graph;
  LADE_ASSERT(graph->n_ops < units_max(graph) * OPS_PER_UNIT);
  const struct lade_op_entry *entry = &lade_op_table[kind];
  struct lade_op *op = &graph->ops[graph->n_ops++];
  *op = (struct lade_op){
      .kind = kind, .kernel = entry->kernel, .unit = build->unit, .forward = -1, .n_in = entry->n_in,
      .n_out = entry->n_out, .optional = -1, .lean = -1};
  for (int i = 0; i < LADE_OP_MAX_IN; i++)
    op->in[i] = i < op->n_in ? in[i] : -1;
  for (int i = 0; i < LADE_OP_MAX_OUT; i++)
    op->out[i] = -1;
  return op;
}

int lade_build_op(struct lade_build *build, enum lade_op_kind kind, const char *name, const struct lade_op_attr *attr,
                  const int *in)
{
  struct lade_model_graph *graph = build->graph;
  int i_op = graph->n_ops;
  struct lade_op *op = op_push(build, kind, in);
  if (attr)
    op->attr = *attr;
  op->attr.stream = (uint32_t)(i_op + build->n_skipped_ops + build->n_joined_ops - build->n_boundary_ops);
  build->n_boundary_ops += lade_op_is_stage_boundary(kind);
  build->n_joined_ops += kind == LADE_OP_MATMUL_GELU;
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
    graph->tensors[op->out[i]].is_optional = outputs[i].is_optional;
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

void lade_build_bias_grad(struct lade_build *build, int forward, int dy, int d_bias)
{
  struct lade_model_graph *graph = build->graph;
  const int producer = graph->tensors[dy].producer;
  struct lade_op *op = &graph->ops[producer];
  const int bias_out = lade_op_table[op->kind].bias_out;
  if (bias_out && op->out[0] == dy && op->out[bias_out] < 0 && op->unit == graph->ops[forward].unit) {
    op->out[bias_out] = d_bias;
    op_complete(build, producer);
  } else {
    lade_build_backward_op(build, LADE_OP_BIAS_GRAD, forward, &dy, &d_bias);
  }
}

/* Return the tensor that @op may do without, or -1. */
static int optional_find(const struct lade_model_graph *graph, const struct lade_op *op)
{
  for (int i = 0; i < op->n_in + op->n_out; i++) {
    int tensor = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
    if (tensor >= 0 && graph->tensors[tensor].is_optional)
      return tensor;
  }
  return -1;
}

void lade_build_lean_ops(struct lade_build *build)
{
  struct lade_model_graph *graph = build->graph;
  for (int i_op = 0; i_op < graph->n_ops; i_op++) {
    struct lade_op *op = &graph->ops[i_op], *lean = &graph->ops[graph->n_ops + graph->n_lean_ops];
    op->optional = optional_find(graph, op);
    if (op->optional < 0)
      continue;
    LADE_ASSERT(graph->n_ops + graph->n_lean_ops < units_max(graph) * OPS_PER_UNIT);
    op->lean = graph->n_ops + graph->n_lean_ops++;
    *lean = *op;
    lean->optional = lean->lean = -1;
    for (int i = 0; i < op->n_in; i++)
      lean->in[i] = op->in[i] == op->optional ? -1 : op->in[i];
    for (int i = 0; i < op->n_out; i++)
      lean->out[i] = op->out[i] == op->optional ? -1 : op->out[i];
    costs_complete(build, op->lean);
  }
}

int lade_build_out(const struct lade_build *build, int op, int i)
{
  return build->graph->ops[op].out[i];
}

bool lade_build_reserve(struct lade_model_graph *graph, struct lade_build *build)
{
  size_t n_units = (size_t)units_max(graph);
  graph->tensors = calloc(n_units * TENSORS_PER_UNIT, sizeof(*graph->tensors));
  graph->params = calloc(n_units * PARAMS_PER_UNIT, sizeof(*graph->params));
  graph->ops = calloc(n_units * OPS_PER_UNIT, sizeof(*graph->ops));
  graph->units = calloc(n_units, sizeof(*graph->units));
  build->gradient_of = calloc(n_units * TENSORS_PER_UNIT, sizeof(*build->gradient_of));
  return graph->tensors && graph->params && graph->ops && graph->units && build->gradient_of;
}

bool lade_op_is_collective(enum lade_op_kind kind)
{
  return kind == LADE_OP_ALL_REDUCE || kind == LADE_OP_ALL_GATHER || kind == LADE_OP_REDUCE_SCATTER;
}

bool lade_op_is_stage_boundary(enum lade_op_kind kind)
{
  return kind == LADE_OP_SEND || kind == LADE_OP_RECV || lade_op_is_collective(kind);
}

void lade_op_bind(const struct lade_model_graph *graph, int op, const struct lade_bind *bind, void *ret_args)
{
  LADE_ASSERT(op >= 0 && op < graph->n_ops + graph->n_lean_ops);
  LADE_ASSERT(bind->n_microbatches > 0 && bind->microbatch >= 0 && bind->microbatch < bind->n_microbatches);
  const struct lade_op *the_op = &graph->ops[op];
  lade_op_table[the_op->kind].bind(graph, the_op, bind, ret_args);
}
