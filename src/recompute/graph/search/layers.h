/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repeated layers of a step: ops of equal structure, layer by layer.
 *
 * Ops are of one kind if they, their neighbours and the neighbours of these have operands of equal bytes and class. The
 * n-th layers' ops of all kinds of a stack belong together: an op of the forward pass, and those of the backward pass
 * that read its values. A network may have several stacks, such as an encoder and a decoder.
 */
#ifndef LADE_REMAT_LAYERS_H
#define LADE_REMAT_LAYERS_H

#include "recompute/graph/problem.h"

/* Ops of one kind, in the order of the step. The one of rank r is in layer first_layer + r * direction. */
struct remat_kind {
  int32_t first_op, n_ops; /* in remat_layers.ops */
  int32_t stack;           /* -1: the kind is related to no other one, and has no layers */
  int32_t first_layer;
  int32_t direction; /* 1 or -1: the backward pass has the layers the other way round than the forward pass */
  int32_t n_joined;  /* within layers.c: kinds in the stack that begins with this one */
};

/* Layers are numbered from first to last, which may be negative; some kinds have no op in some layers. */
struct remat_stack {
  int32_t first_layer, last_layer;
};

struct remat_layers {
  const struct remat_problem *problem; /* borrowed */
  LADE_ARRAY(struct remat_kind) kinds;
  LADE_ARRAY(struct remat_stack) stacks;
  int32_t *ops;     /* n_ops, kind by kind */
  int32_t *kind_of; /* by op; -1: the op is of no kind with layers */
  int32_t *rank_of; /* by op, within its kind */
  int n_in_stacks;  /* ops; 0: no layers repeat */
};

/* Find the repeated layers of @problem, which @layers borrows. -ENOMEM. O(edges + n_ops * log(n_ops)). */
int remat_layers_init(struct remat_layers *layers, const struct remat_problem *problem);
void remat_layers_finish(struct remat_layers *layers);

/* Return the stack of @op, -1: none; and its layer in a stack. */
int remat_layers_stack(const struct remat_layers *layers, int op);
int remat_layers_get(const struct remat_layers *layers, int op);

/* Return the op of the kind of @op that is @shift layers further; -1: there is none. */
int remat_layers_sibling(const struct remat_layers *layers, int op, int shift);

/* Return the value that a made one is @shift layers further: that of the maker's sibling; -1: there is none. */
int remat_layers_value(const struct remat_layers *layers, int value, int shift);

#endif
