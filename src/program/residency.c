/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and copying residencies, and the recipes that choose recomputed values by kind of op.
 *
 * A residency is three flat arrays: choices by tensor, and two tiers by parameter. The search holds one per candidate,
 * so a copy is three memory copies. Everything here is linear in tensors and parameters.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/residency.h"

static int residency_alloc(int n_tensors, int n_params, struct lade_residency **ret_residency)
{
  struct lade_residency *residency = calloc(1, sizeof(*residency));
  if (!residency)
    return -ENOMEM;
  residency->n_tensors = n_tensors;
  residency->n_params = n_params;
  residency->choices = calloc((size_t)LADE_MAX(n_tensors, 1), sizeof(*residency->choices));
  residency->state_tiers = calloc((size_t)LADE_MAX(n_params, 1), sizeof(*residency->state_tiers));
  residency->weight_tiers = calloc((size_t)LADE_MAX(n_params, 1), sizeof(*residency->weight_tiers));
  if (!residency->choices || !residency->state_tiers || !residency->weight_tiers) {
    lade_residency_destroy(residency);
    return -ENOMEM;
  }
  *ret_residency = residency;
  return 0;
}

int lade_residency_create(const struct lade_model_graph *graph, struct lade_residency **ret_residency)
{
  struct lade_residency *residency = NULL;
  int status = residency_alloc(graph->n_tensors, graph->n_params, &residency);
  if (status)
    return status;
  for (int op = 0; op < graph->n_fwd_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_out; i++) {
      int tensor = graph->ops[op].out[i];
      if (tensor >= 0 && lade_tensor_is_repeatable(graph, tensor))
        residency->choices[tensor].saved = LADE_RESIDENCY_RECOMPUTE;
    }
  }
  for (int op = graph->n_fwd_ops; op < graph->n_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++) {
      if (graph->ops[op].in[i] >= 0)
        residency->choices[graph->ops[op].in[i]].saved = LADE_RESIDENCY_KEEP;
    }
  }
  *ret_residency = residency;
  return 0;
}

int lade_residency_copy(const struct lade_residency *from, struct lade_residency **ret_residency)
{
  struct lade_residency *residency = NULL;
  int status = residency_alloc(from->n_tensors, from->n_params, &residency);
  if (status)
    return status;
  memcpy(residency->choices, from->choices, (size_t)from->n_tensors * sizeof(*from->choices));
  memcpy(residency->state_tiers, from->state_tiers, (size_t)from->n_params * sizeof(*from->state_tiers));
  memcpy(residency->weight_tiers, from->weight_tiers, (size_t)from->n_params * sizeof(*from->weight_tiers));
  residency->prefetch_bytes = from->prefetch_bytes;
  residency->optimizer_in_backward = from->optimizer_in_backward;
  *ret_residency = residency;
  return 0;
}

void lade_residency_destroy(struct lade_residency *residency)
{
  if (!residency)
    return;
  free(residency->choices);
  free(residency->state_tiers);
  free(residency->weight_tiers);
  free(residency);
}

void lade_residency_set_tiers(struct lade_residency *residency, int param, enum lade_tier weight, enum lade_tier state)
{
  LADE_ASSERT(param >= 0 && param < residency->n_params && weight <= state);
  residency->weight_tiers[param] = (uint8_t)weight;
  residency->state_tiers[param] = (uint8_t)state;
}

const char *lade_residency_policy_name(enum lade_residency_policy wait)
{
  static const char *const names[LADE_N_RESIDENCY_POLICIES] = {"keep", "recompute", "host", "store"};
  LADE_ASSERT(wait >= 0 && wait < LADE_N_RESIDENCY_POLICIES);
  return names[wait];
}

/* ---- recipes ---- */

static bool is_cheap_op(const struct lade_op *op)
{
  switch (op->kind) {
  case LADE_OP_NORM:
  case LADE_OP_GELU:
  case LADE_OP_SWIGLU:
  case LADE_OP_ACTIVATION:
  case LADE_OP_GATED:
  case LADE_OP_DROPOUT:
  case LADE_OP_ATTENTION: /* recomputed from qkv after rope, which is kept: before rope it would need the product
                             again */
    return true;
  default:
    return false;
  }
}

/* True for the value that enters a unit from the one before; full recompute keeps these. */
static bool is_unit_input(const struct lade_model_graph *graph, int tensor)
{
  int unit = graph->tensors[tensor].unit;
  for (int op = 0; op < graph->n_fwd_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++) {
      if (graph->ops[op].in[i] == tensor && graph->ops[op].unit != unit)
        return true;
    }
  }
  return false;
}

void lade_residency_apply_recipe(const struct lade_model_graph *graph, enum lade_recipe recipe,
                                 struct lade_residency *residency)
{
  for (int tensor = 0; tensor < graph->n_tensors; tensor++) {
    if (!lade_tensor_is_repeatable(graph, tensor))
      continue;
    const bool is_dropped =
        (recipe == LADE_RECIPE_FULL && !is_unit_input(graph, tensor)) ||
        (recipe == LADE_RECIPE_SELECTIVE && is_cheap_op(&graph->ops[graph->tensors[tensor].producer]));
    if (is_dropped)
      residency->choices[tensor].saved = LADE_RESIDENCY_RECOMPUTE;
  }
}
