/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A residency is three flat arrays, cheap to copy: the search holds one per candidate.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "recompute/residency.h"

static int residency_alloc(int n_tensors, int n_params, struct lade_residency **ret_residency)
{
  struct lade_residency *residency = calloc(1, sizeof(*residency));
  if (!residency)
    return -ENOMEM;
  residency->n_tensors = n_tensors;
  residency->n_params = n_params;
  residency->choices = calloc((size_t)LADE_MAX(n_tensors, 1), sizeof(*residency->choices));
  residency->homes = calloc((size_t)LADE_MAX(n_params, 1), sizeof(*residency->homes));
  residency->weight_homes = calloc((size_t)LADE_MAX(n_params, 1), sizeof(*residency->weight_homes));
  if (!residency->choices || !residency->homes || !residency->weight_homes) {
    lade_residency_destroy(residency);
    return -ENOMEM;
  }
  *ret_residency = residency;
  return 0;
}

int lade_residency_create(const struct lade_graph *graph, struct lade_residency **ret_residency)
{
  struct lade_residency *residency = NULL;
  int status = residency_alloc(graph->n_tensors, graph->n_params, &residency);
  if (status)
    return status;
  for (int op = 0; op < graph->n_fwd_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_out; i++) {
      int tensor = graph->ops[op].out[i];
      if (tensor >= 0 && lade_tensor_is_repeatable(graph, tensor))
        residency->choices[tensor].saved = LADE_WAIT_RECOMPUTE;
    }
  }
  for (int op = graph->n_fwd_ops; op < graph->n_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++) {
      if (graph->ops[op].in[i] >= 0)
        residency->choices[graph->ops[op].in[i]].saved = LADE_WAIT_KEEP;
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
  memcpy(residency->homes, from->homes, (size_t)from->n_params * sizeof(*from->homes));
  memcpy(residency->weight_homes, from->weight_homes, (size_t)from->n_params * sizeof(*from->weight_homes));
  residency->prefetch_bytes = from->prefetch_bytes;
  residency->is_early = from->is_early;
  *ret_residency = residency;
  return 0;
}

void lade_residency_destroy(struct lade_residency *residency)
{
  if (!residency)
    return;
  free(residency->choices);
  free(residency->homes);
  free(residency->weight_homes);
  free(residency);
}

void lade_residency_set_homes(struct lade_residency *residency, int param, enum lade_home weight, enum lade_home state)
{
  LADE_ASSERT(param >= 0 && param < residency->n_params && weight <= state);
  residency->weight_homes[param] = (uint8_t)weight;
  residency->homes[param] = (uint8_t)state;
}

const char *lade_wait_name(enum lade_wait wait)
{
  static const char *const names[LADE_N_WAITS] = {"keep", "recompute", "host", "store"};
  LADE_ASSERT(wait >= 0 && wait < LADE_N_WAITS);
  return names[wait];
}
