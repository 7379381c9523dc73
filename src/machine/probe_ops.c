/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure every distinct op, in the state in which a step finds it.
 *
 * The first op of each key represents all of that key: forward ops of the first layer, backward ops of the last. They
 * run in the order of the graph, each tensor in memory of its own, pass after pass. So, as in a step, an op finds its
 * predecessor's result in cache, and its weights and saved activations in memory. Timing one op in a loop would find
 * all operands in cache and predict too high a rate. An output takes over an input's memory where the graph allows it
 * and the input is not read again, as in the program. Memory is a host device's, because its pages are of the run's
 * kind.
 *
 * The first pass warms up (pages, caches of primitives, frequency). The result is the mean of the others without each
 * op's worst. It is not the median. A step is long enough to meet the machine's other work, and its prediction should
 * include a share of that. Ops of which one pass takes a second are run in four passes too, or as many as three seconds
 * have room for, because one busy moment may double the time of a single pass. If a model's distinct ops together
 * exceed the memory limit, they are measured in groups of consecutive ops. An op that is too large, or predicted to
 * take too long, keeps its roofline, as does every op after the time limit. A plan for such a model on such a machine
 * is hypothetical anyway.
 *
 * Values: no kernel's time depends on them, except that denormal and non-finite numbers can be slow. Activations are of
 * the order of 1, gradients and weights of 0.02, statistics positive, tokens random.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "machine/probe_internal.h"

#define MAX_GROUP_BYTES (UINT64_C(1) << 30)     /* of ops that are measured together on a host */
#define MAX_GPU_GROUP_BYTES (UINT64_C(4) << 30) /* a head that keeps its logits has some GB */
#define OP_LIMIT_NS INT64_C(1000000000)    /* predicted; longer ops are not run */
#define PASS_LIMIT_NS INT64_C(1000000000)  /* passes beyond N_PASSES_MIN begin before it */
#define LONG_LIMIT_NS INT64_C(3000000000)  /* the first N_PASSES_MIN end before it */
#define TOTAL_LIMIT_NS INT64_C(10000000000)
#define N_PASSES 10 /* the first is a warm-up */
#define N_PASSES_MIN 4
#define ALIGN 4096  /* of a tensor: a page */

struct op_probe {
  const struct lade_probe_params *params;
  const struct lade_model_graph *graph;
  lade_device *device;
  lade_chunk *chunk;
  uint64_t address, bytes;
  struct probe_gpu *gpu;    /* NULL: the host's memory, which is filled in place */
  struct probe_area filled; /* on a GPU: host memory in which contents are made */
  /* The ops to measure, in groups of at most @limit_bytes, and two tables by tensor as in struct op_group. */
  const int *ops, *last_op;
  int n_ops;
  uint64_t limit_bytes, *place;
  int64_t start_ns; /* of all groups */
};

/* One group: ops that are measured together. */
struct op_group {
  const int *ops;
  int n_ops;
  uint64_t *place;    /* by tensor: offset + 1; 0: none yet */
  const int *last_op; /* by tensor: the op that reads it last */
  uint64_t bytes, workspace_bytes;
};

/* ---- memory ---- */

static void probe_unmap(struct op_probe *probe)
{
  lade_device_chunk_release(probe->device, probe->chunk);
  if (probe->address)
    lade_device_release(probe->device, probe->address, probe->bytes);
  probe_area_finish(&probe->filled);
  probe->chunk = NULL;
  probe->address = 0;
}

static int probe_map(struct op_probe *probe, uint64_t bytes)
{
  struct lade_device_info info;
  lade_device_get_info(probe->device, &info);
  probe->bytes = lade_align_up(bytes, info.chunk_bytes);
  int rc = probe->gpu ? probe_area_init(&probe->filled, probe->bytes) : 0;
  if (!rc)
    rc = lade_device_reserve(probe->device, probe->bytes, &probe->address);
  if (!rc)
    rc = lade_device_chunk_create(probe->device, probe->bytes, &probe->chunk);
  if (!rc)
    rc = lade_device_map(probe->device, probe->address, probe->chunk);
  return rc;
}

/* ---- places ---- */

static void tensor_place(struct op_group *group, const struct lade_model_graph *graph, int tensor)
{
  if (tensor < 0 || group->place[tensor])
    return;
  group->place[tensor] = group->bytes + 1;
  group->bytes += lade_align_up(graph->tensors[tensor].bytes, ALIGN);
}

static void op_place(struct op_group *group, const struct lade_model_graph *graph, int index)
{
  const struct lade_op *op = &graph->ops[index];
  for (int i = 0; i < op->n_in; i++)
    tensor_place(group, graph, op->in[i]);
  for (int i = 0; i < op->n_out; i++) {
    int from = op->out[i] >= 0 && op->alias[i] >= 0 ? op->in[op->alias[i]] : -1;
    if (from >= 0 && graph->tensors[from].kind == LADE_TENSOR_ACTIVATION && group->last_op[from] == index)
      group->place[op->out[i]] = group->place[from];
    else
      tensor_place(group, graph, op->out[i]);
  }
  group->workspace_bytes = LADE_MAX(group->workspace_bytes, op->workspace_bytes);
}

static void *tensor_at(const struct op_probe *probe, const struct op_group *group, int tensor)
{
  return tensor < 0 ? NULL : (char *)(uintptr_t)probe->address + group->place[tensor] - 1;
}

/* ---- contents ---- */

static void tokens_fill(int32_t *at, uint64_t bytes, int64_t vocabulary)
{
  for (uint64_t i = 0; i < bytes / sizeof(*at); i++)
    at[i] = (int32_t)(lade_philox_word(1, 0, 0, i) % (uint64_t)vocabulary);
}

/* Fill @tensor with values of the magnitude that a step gives it. */
static void tensor_fill(const struct op_probe *probe, const struct op_group *group, int tensor)
{
  const struct lade_tensor *filled = &probe->graph->tensors[tensor];
  void *at = probe->gpu ? probe->filled.at + group->place[tensor] - 1 : tensor_at(probe, group, tensor);
  float low = -0.03f, high = 0.03f;
  if (filled->kind == LADE_TENSOR_FIRST_KEYS) { /* one document: the most work */
    memset(at, 0, filled->bytes);
    return;
  }
  if (lade_tensor_is_data(filled)) {
    tokens_fill(at, filled->bytes, probe->graph->model.vocabulary);
    return;
  }
  if (filled->kind == LADE_TENSOR_ACTIVATION && filled->n_dims != 2) {
    low = 0.5f; /* statistics: reciprocal deviations, logarithms of sums */
    high = 4.0f;
  } else if (filled->kind == LADE_TENSOR_ACTIVATION && filled->producer >= 0 &&
             !probe->graph->ops[filled->producer].is_backward) {
    low = -1.7f;
    high = 1.7f;
  }
  probe_fill(probe->params->pool, at, filled->dtype, filled->bytes, low, high);
}

/* Fill the tensors that no earlier op of the group makes. Returns the device's status. */
static int group_fill(const struct op_probe *probe, const struct op_group *group)
{
  for (int n = 0; n < group->n_ops; n++) {
    const struct lade_op *op = &probe->graph->ops[group->ops[n]];
    for (int i = 0; i < op->n_in; i++) {
      bool is_made = false;
      for (int before = 0; before < n && op->in[i] >= 0 && !is_made; before++)
        is_made = group->ops[before] == probe->graph->tensors[op->in[i]].producer;
      if (op->in[i] >= 0 && !is_made)
        tensor_fill(probe, group, op->in[i]);
    }
  }
  return probe->gpu ? probe_gpu_put(probe->gpu, probe->address, probe->filled.at, group->bytes) : 0;
}

/* ---- time ---- */

static int64_t op_run(const struct op_probe *probe, const struct op_group *group, int index)
{
  _Alignas(64) char args[LADE_OP_ARGS_BYTES];
  const struct lade_step step = {.seed = 1, .lr = 1e-4f, .loss_scale = 1};
  const struct lade_kernel_ctx ctx = {.pool = probe->params->pool, .step = &step, .kernels = probe->params->kernels};
  const struct lade_op *op = &probe->graph->ops[index];
  struct lade_bind bind = {.n_microbatches = 1};
  for (int i = 0; i < op->n_in; i++)
    bind.in[i] = (uintptr_t)tensor_at(probe, group, op->in[i]);
  for (int i = 0; i < op->n_out; i++)
    bind.out[i] = (uintptr_t)tensor_at(probe, group, op->out[i]);
  bind.workspace = (uintptr_t)(probe->address + group->bytes);
  lade_op_bind(probe->graph, index, &bind, args);
  if (probe->gpu)
    return probe_gpu_kernel_ns(probe->gpu, op->kernel, args);
  int64_t start_ns = lade_now_ns();
  probe->params->kernels->fn[op->kernel](&ctx, args);
  return lade_now_ns() - start_ns;
}

/* Return the mean without the largest, if there are more than two. */
static int64_t typical_ns(const int64_t *values, int n)
{
  int64_t sum = 0, largest = 0;
  for (int i = 0; i < n; i++) {
    sum += values[i];
    largest = LADE_MAX(largest, values[i]);
  }
  return n > 2 ? (sum - largest) / (n - 1) : sum / n;
}

/* True if @n passes of a group, which began at @start_ns, are to be followed by another one. */
static bool pass_is_due(const struct op_probe *probe, int n, int64_t start_ns)
{
  const int64_t ns = lade_now_ns() - start_ns;
  if (n == 0)
    return true;
  if (n < N_PASSES_MIN && start_ns - probe->start_ns < TOTAL_LIMIT_NS / 2) /* later groups get their pass too */
    return ns / n * (n + 1) < LONG_LIMIT_NS;
  return n < N_PASSES && ns < PASS_LIMIT_NS;
}

static int group_time(const struct op_probe *probe, const struct op_group *group, struct lade_cost *cost)
{
  int64_t (*ns)[N_PASSES] = calloc((size_t)group->n_ops, sizeof(*ns));
  if (!ns)
    return -ENOMEM;
  int64_t start_ns = lade_now_ns();
  int n_passes = 0, rc = 0;
  while (pass_is_due(probe, n_passes, start_ns)) {
    for (int n = 0; n < group->n_ops; n++)
      ns[n][n_passes] = op_run(probe, group, group->ops[n]);
    n_passes++;
  }
  int first = n_passes > 1;
  for (int n = 0; n < group->n_ops && !rc; n++)
    rc = lade_cost_set(cost, lade_cost_op_key(probe->graph, group->ops[n]),
                       typical_ns(ns[n] + first, n_passes - first));
  free(ns);
  return rc;
}

static int group_measure(struct op_probe *probe, struct op_group *group, struct lade_cost *cost)
{
  int rc = probe_map(probe, group->bytes + group->workspace_bytes + ALIGN);
  if (!rc)
    rc = group_fill(probe, group);
  if (!rc)
    rc = group_time(probe, group, cost);
  probe_unmap(probe);
  return rc;
}

/* ---- distinct ops ---- */

static uint64_t op_bytes(const struct lade_model_graph *graph, const struct lade_op *op)
{
  uint64_t bytes = op->workspace_bytes + 2 * ALIGN;
  for (int i = 0; i < op->n_in; i++)
    bytes += op->in[i] < 0 ? 0 : lade_align_up(graph->tensors[op->in[i]].bytes, ALIGN);
  for (int i = 0; i < op->n_out; i++)
    bytes += op->out[i] < 0 ? 0 : lade_align_up(graph->tensors[op->out[i]].bytes, ALIGN);
  return bytes;
}

int probe_ops_find(const struct lade_model_graph *graph, const struct lade_cost *cost, uint64_t limit_bytes,
                   int *ops)
{
  struct lade_cost seen = {0};
  int n = 0, rc = 0;
  for (int op = 0; op < graph->n_ops + graph->n_lean_ops && !rc; op++) {
    uint64_t key = lade_cost_op_key(graph, op);
    int64_t ns;
    if (lade_op_is_stage_boundary(graph->ops[op].kind))
      continue;
    if (lade_cost_find(cost, key, &ns) || lade_cost_find(&seen, key, &ns))
      continue;
    rc = lade_cost_set(&seen, key, 0);
    if (op_bytes(graph, &graph->ops[op]) <= limit_bytes && lade_cost_op_ns(cost, graph, op) <= OP_LIMIT_NS)
      ops[n++] = op;
  }
  lade_cost_finish(&seen);
  return rc ? rc : n;
}

/* Measure the probe's ops in groups that fit its limit. */
static int groups_measure(struct op_probe *probe, struct lade_cost *cost)
{
  probe->start_ns = lade_now_ns();
  for (int first = 0, end; first < probe->n_ops && lade_now_ns() - probe->start_ns < TOTAL_LIMIT_NS; first = end) {
    struct op_group group = {.ops = probe->ops + first, .place = probe->place, .last_op = probe->last_op};
    memset(probe->place, 0, (size_t)probe->graph->n_tensors * sizeof(*probe->place));
    for (end = first; end < probe->n_ops; end++) {
      uint64_t more_bytes = op_bytes(probe->graph, &probe->graph->ops[probe->ops[end]]);
      if (end > first && group.bytes + group.workspace_bytes + more_bytes > probe->limit_bytes)
        break;
      op_place(&group, probe->graph, probe->ops[end]);
    }
    group.n_ops = end - first;
    int rc = group_measure(probe, &group, cost);
    if (rc)
      return rc;
  }
  return 0;
}

/* Measure all groups, in memory of an own host device or of the GPU. */
static int probe_run(struct op_probe *probe, struct lade_error *error, struct lade_cost *cost)
{
  const struct lade_probe_params *params = probe->params;
  struct lade_host_device_params host = {.struct_size = sizeof(host), .pool = params->pool};
  struct probe_gpu gpu;
  int rc;
  if (params->gpu) {
    probe->device = params->gpu->device;
    probe->gpu = &gpu;
    rc = probe_gpu_init(&gpu, params->gpu);
  } else {
    rc = lade_device_open_host(&host, error, &probe->device);
    if (rc)
      return rc;
  }
  if (!rc)
    rc = groups_measure(probe, cost);
  if (!rc)
    rc = lade_device_status(probe->device);
  if (rc)
    lade_error_set(error, rc, "probe: cannot measure ops: %s", strerror(-rc));
  if (probe->gpu)
    probe_gpu_finish(&gpu);
  else
    lade_device_close(probe->device);
  return rc;
}

uint64_t probe_ops_limit(bool is_gpu, const struct lade_machine *machine)
{
  const uint64_t bytes = LADE_MIN(is_gpu ? MAX_GPU_GROUP_BYTES : MAX_GROUP_BYTES, machine->host_bytes / 4);
  return LADE_MIN(bytes, machine->device_bytes / 4);
}

int probe_ops(const struct lade_probe_params *params, struct lade_error *error, struct lade_cost *cost)
{
  const struct lade_model_graph *graph = params->graph;
  const uint64_t limit_bytes = probe_ops_limit(params->gpu, &cost->machine);
  const int n_forms = graph->n_ops + graph->n_lean_ops;
  int *ops = calloc((size_t)n_forms + (size_t)graph->n_tensors, sizeof(*ops));
  uint64_t *place = calloc((size_t)graph->n_tensors, sizeof(*place));
  int n_ops = ops && place ? probe_ops_find(graph, cost, limit_bytes, ops) : -ENOMEM;
  int rc = n_ops < 0 ? lade_error_set(error, n_ops, "probe: out of memory") : 0;
  if (n_ops > 0) {
    int *last_op = ops + n_forms;
    struct op_probe probe = {.params = params, .graph = graph, .ops = ops, .last_op = last_op, .n_ops = n_ops,
                             .limit_bytes = limit_bytes, .place = place};
    for (int op = 0; op < graph->n_ops; op++) {
      for (int i = 0; i < graph->ops[op].n_in; i++) {
        if (graph->ops[op].in[i] >= 0)
          last_op[graph->ops[op].in[i]] = op;
      }
    }
    rc = probe_run(&probe, error, cost);
  }
  free(place);
  free(ops);
  return rc;
}
