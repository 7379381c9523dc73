/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions as bytes: a head of fixed size, followed by the residency's arrays. For each tensor there is a pair of
 * bytes, for each parameter one byte for its state and one for its working copy. Numbers have the writer's byte order:
 * a reader of another order does not find the magic. The version is raised whenever a number is added or changes its
 * meaning. A job whose nodes run two builds of Lade then ends with that error, not with programs that do not match.
 *
 * A checksum over all bytes shows that the read bytes are the written ones. The reader still checks that choices are in
 * range, and that a working copy is not farther than its state. The program builder relies on both. It does not check
 * that the decision is good: the reader's programs are proved, within its own budgets, or refused.
 *
 * The decision of a model of a thousand layers has some 100 KB.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/base.h"
#include "recompute/decision.h"

#define MAGIC UINT64_C(0x494345444544414c) /* "LADEDECI" */
#define VERSION 1

struct head {
  uint64_t magic;
  uint32_t version, optimizer_in_backward;
  uint32_t n_tensors, n_params;
  uint64_t bytes; /* all bytes, this head included */
  uint64_t prefetch_bytes;
  uint64_t peak_bytes[LADE_N_SPACES];
  uint64_t unconstrained_bytes, min_bytes, lower_bound_bytes, window_bytes;
  int64_t unconstrained_ns;
  int32_t n_states, n_windows;
  uint64_t sum; /* checksum of the other fields and of the arrays */
};

_Static_assert(sizeof(struct head) == (12 + LADE_N_SPACES) * sizeof(uint64_t), "a head has no gaps");

/* ---- the key of equal decisions ---- */

static uint64_t key_mix(uint64_t key, const void *data, size_t bytes)
{
  return XXH3_64bits_withSeed(data, bytes, key);
}

static uint64_t graph_key(const struct lade_model_graph *graph)
{
  const int64_t all[] = {graph->n_tensors, graph->n_params, graph->n_ops, graph->n_fwd_ops, graph->n_units,
                         graph->dtype, graph->grad_dtype, graph->moments, graph->master, graph->batch, graph->seq_len};
  uint64_t key = key_mix(0, all, sizeof(all));
  for (int i = 0; i < graph->n_tensors; i++) {
    const struct lade_tensor *tensor = &graph->tensors[i];
    const int64_t own[] = {tensor->kind, tensor->dtype, (int64_t)tensor->bytes, tensor->unit, tensor->producer,
                           tensor->param};
    key = key_mix(key, own, sizeof(own));
  }
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    const int64_t own[] = {op->kind, op->unit, op->forward, op->n_in, op->n_out, (int64_t)op->workspace_bytes,
                           op->attr.peer, op->attr.axis};
    key = key_mix(key, own, sizeof(own));
    key = key_mix(key, op->in, (size_t)op->n_in * sizeof(*op->in));
    key = key_mix(key, op->out, (size_t)op->n_out * sizeof(*op->out));
  }
  for (int i = 0; i < graph->n_units; i++) {
    const int64_t own[] = {graph->units[i].class_id, graph->units[i].chunk};
    key = key_mix(key, own, sizeof(own));
  }
  return key;
}

static uint64_t prices_key(uint64_t key, const struct lade_prices *prices, const struct lade_model_graph *graph)
{
  const size_t by_param = (size_t)graph->n_params * sizeof(int64_t);
  const struct lade_transfer_price links[] = {prices->to_host, prices->to_device, prices->read, prices->write};
  const double cores[] = {prices->copy_cores, prices->n_cores};
  const int64_t others[] = {prices->clip_ns, (int64_t)prices->streaming.window_bytes, prices->streaming.n_windows,
                            prices->has_half_duplex};
  key = key_mix(key, prices->op_ns, (size_t)(graph->n_ops + graph->n_lean_ops) * sizeof(*prices->op_ns));
  key = key_mix(key, prices->grad_sumsq_ns, by_param);
  for (size_t tier = 0; tier < LADE_COUNT(prices->update_ns); tier++)
    key = key_mix(key, prices->update_ns[tier], by_param);
  key = key_mix(key, prices->update_near_ns, by_param);
  key = key_mix(key, prices->stream_edge_ns, by_param);
  key = key_mix(key, links, sizeof(links));
  key = key_mix(key, prices->comm, sizeof(prices->comm));
  key = key_mix(key, prices->comm_sum, sizeof(prices->comm_sum));
  key = key_mix(key, &prices->boundary, sizeof(prices->boundary));
  key = key_mix(key, prices->comm_shares, sizeof(prices->comm_shares));
  key = key_mix(key, &prices->boundary_shares, sizeof(prices->boundary_shares));
  key = key_mix(key, cores, sizeof(cores));
  return key_mix(key, others, sizeof(others));
}

static uint64_t layout_key(uint64_t key, const struct lade_layout *layout)
{
  if (!layout)
    return key;
  const int64_t properties[] = {lade_layout_position(layout, LADE_AXIS_PP), layout->zero, layout->is_sequence,
                         layout->schedule, layout->virtual_stages, layout->grad_reduce};
  key = key_mix(key, properties, sizeof(properties));
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    const int64_t own[] = {layout->mesh.axes[axis].size, layout->mesh.axes[axis].stride};
    key = key_mix(key, own, sizeof(own));
  }
  return key;
}

uint64_t lade_plan_params_key(const struct lade_plan_params *params)
{
  const int64_t all[] = {params->n_microbatches, params->is_unified, params->optimizer_in_backward,
                         (int64_t)params->chunk_bytes,
                         (int64_t)params->host_bytes, (int64_t)params->store_bytes, params->recipe,
                             params->n_overrides};
  uint64_t key = layout_key(prices_key(graph_key(params->graph), params->prices, params->graph), params->layout);
  for (int i = 0; i < params->n_overrides; i++) {
    const int64_t pin[] = {params->overrides[i].kind, params->overrides[i].to, params->overrides[i].id};
    key = key_mix(key, pin, sizeof(pin));
  }
  return key_mix(key, all, sizeof(all));
}

/* ---- bytes ---- */

static uint64_t arrays_bytes(uint32_t n_tensors, uint32_t n_params)
{
  return (uint64_t)n_tensors * sizeof(struct lade_choice) + 2 * (uint64_t)n_params;
}

static uint64_t sum_of(const struct head *head, const void *arrays)
{
  return XXH3_64bits_withSeed(arrays, head->bytes - sizeof(*head), XXH3_64bits(head, offsetof(struct head, sum)));
}

static struct head head_make(const struct lade_decision *decision)
{
  const struct lade_residency *residency = decision->residency;
  const struct lade_plan_bounds *bounds = &decision->bounds;
  struct head head = {
      .magic = MAGIC, .version = VERSION, .optimizer_in_backward = residency->optimizer_in_backward,
      .n_tensors = (uint32_t)residency->n_tensors, .n_params = (uint32_t)residency->n_params,
      .prefetch_bytes = residency->prefetch_bytes, .unconstrained_bytes = bounds->unconstrained_bytes,
      .min_bytes = bounds->min_bytes, .lower_bound_bytes = bounds->lower_bound_bytes,
      .window_bytes = decision->streaming.window_bytes, .unconstrained_ns = bounds->unconstrained_ns,
      .n_states = bounds->n_states, .n_windows = decision->streaming.n_windows};
  head.bytes = sizeof(head) + arrays_bytes(head.n_tensors, head.n_params);
  memcpy(head.peak_bytes, decision->peak_bytes, sizeof(head.peak_bytes));
  return head;
}

int lade_decision_write(const struct lade_decision *decision, struct lade_error *error, void **ret_data,
                        uint64_t *ret_bytes)
{
  const struct lade_residency *residency = decision->residency;
  struct head head = head_make(decision);
  unsigned char *data = malloc(head.bytes);
  if (!data)
    return lade_error_set(error, -ENOMEM, "no memory to tell the other ranks what was decided");
  unsigned char *at = data + sizeof(head);
  memcpy(at, residency->choices, head.n_tensors * sizeof(*residency->choices));
  at += head.n_tensors * sizeof(*residency->choices);
  memcpy(at, residency->state_tiers, head.n_params);
  memcpy(at + head.n_params, residency->weight_tiers, head.n_params);
  head.sum = sum_of(&head, data + sizeof(head));
  memcpy(data, &head, sizeof(head));
  *ret_data = data;
  *ret_bytes = head.bytes;
  return 0;
}

/* Check that the head and the size are whole, of this version, and of @graph. */
static int head_check(const struct head *head, uint64_t bytes, const struct lade_model_graph *graph,
                      struct lade_error *error)
{
  if (bytes < sizeof(*head))
    return lade_error_set(error, -EBADMSG, "what was decided for the stage has come in part: %llu bytes",
                          (unsigned long long)bytes);
  if (head->magic != MAGIC || head->version != VERSION)
    return lade_error_set(error, -EINVAL, "what was decided for the stage is not of this version of Lade, or of a "
                          "machine with another byte order; all ranks run the same build");
  if (head->n_tensors != (uint32_t)graph->n_tensors || head->n_params != (uint32_t)graph->n_params)
    return lade_error_set(error, -EINVAL, "what was decided is of %u tensors and %u parameters, and this rank has %d "
                          "and %d", head->n_tensors, head->n_params, graph->n_tensors, graph->n_params);
  const uint64_t whole_bytes = sizeof(*head) + arrays_bytes(head->n_tensors, head->n_params);
  if (head->bytes != whole_bytes || bytes != whole_bytes)
    return lade_error_set(error, -EBADMSG, "what was decided for the stage has come in %llu bytes instead of %llu",
                          (unsigned long long)bytes, (unsigned long long)whole_bytes);
  return 0;
}

static bool residency_is_valid(const struct lade_residency *residency)
{
  bool is_valid = true;
  for (int i = 0; i < residency->n_tensors; i++)
    is_valid &= residency->choices[i].saved < LADE_N_RESIDENCY_POLICIES &&
        residency->choices[i].spill < LADE_N_RESIDENCY_POLICIES;
  for (int i = 0; i < residency->n_params; i++)
    is_valid &= residency->state_tiers[i] <= LADE_TIER_STORE && residency->weight_tiers[i] <= residency->state_tiers[i];
  return is_valid;
}

static void residency_fill(const struct head *head, const unsigned char *arrays, struct lade_residency *residency)
{
  const size_t choices_bytes = head->n_tensors * sizeof(*residency->choices);
  memcpy(residency->choices, arrays, choices_bytes);
  memcpy(residency->state_tiers, arrays + choices_bytes, head->n_params);
  memcpy(residency->weight_tiers, arrays + choices_bytes + head->n_params, head->n_params);
  residency->prefetch_bytes = head->prefetch_bytes;
  residency->optimizer_in_backward = head->optimizer_in_backward;
}

int lade_decision_read(const void *data, uint64_t bytes, const struct lade_model_graph *graph, struct lade_error *error,
                       struct lade_decision *ret_decision)
{
  struct head head = {0};
  memcpy(&head, data, LADE_MIN(bytes, sizeof(head)));
  int status = head_check(&head, bytes, graph, error);
  if (status)
    return status;
  const unsigned char *arrays = (const unsigned char *)data + sizeof(head);
  struct lade_residency *residency;
  status = lade_residency_create(graph, &residency);
  if (status)
    return lade_error_set(error, status, "no memory for what was decided for the stage");
  residency_fill(&head, arrays, residency);
  if (sum_of(&head, arrays) != head.sum || !residency_is_valid(residency)) {
    lade_residency_destroy(residency);
    return lade_error_set(error, -EBADMSG, "what was decided for the stage has come damaged");
  }
  *ret_decision = (struct lade_decision){
      .residency = residency,
      .bounds = {.unconstrained_bytes = head.unconstrained_bytes, .unconstrained_ns = head.unconstrained_ns,
                 .min_bytes = head.min_bytes, .lower_bound_bytes = head.lower_bound_bytes, .n_states = head.n_states},
      .streaming = {.window_bytes = head.window_bytes, .n_windows = head.n_windows}};
  memcpy(ret_decision->peak_bytes, head.peak_bytes, sizeof(head.peak_bytes));
  return 0;
}

void lade_decision_finish(struct lade_decision *decision)
{
  lade_residency_destroy(decision->residency);
  *decision = (struct lade_decision){0};
}
