/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residency: where each value waits between its uses.
 *
 * An activation is made in the forward pass and waits for the backward one: its saved gap. It can be kept in device
 * memory, recomputed, or wait on the host or in the store. Every other gap between two uses is short. It is closed to
 * other values unless the choice says `spill`: then the value leaves device memory in all of them too, as the smallest
 * budgets need.
 *
 * A parameter has two tiers between steps: the state tier, that of its optimizer state, where AdamW runs, and the
 * weight tier, that of its working copy. The weight tier is the state tier or nearer to the device. State is larger and
 * is used once a step, so a tier with room for the state has room for the working copy. A working copy in the device
 * tier is resident there. With ZeRO 1 and 2 its memory is: this rank's block rests in it, and each step gathers the
 * others around it once. From another tier it is fetched before each use. Between uses the fetched copy is dropped by
 * the same choices as an activation; no bytes are written back, because the copy in the weight tier is valid. An update
 * reads and writes the working copy in the weight tier, or a copy on the host if the processor cannot reach that tier.
 *
 * A gradient is made on the device and travels to its update. Its saved gap is the one between two microbatches, and
 * the wait for the update if that streams from the store. If each microbatch's gradient is summed over ranks, it is the
 * gap of this rank's block of the sum.
 *
 * Updates come after all steps, or in the backward half: each as soon as no step adds to the gradient or reads the
 * parameter any more, so that its gradient waits for no other.
 *
 * An optional value (lade_op.optional) that is to be recomputed is never made: its reader computes it piece by piece.
 *
 * All microbatches of a tensor have one choice.
 */
#ifndef LADE_RESIDENCY_H
#define LADE_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/model_graph.h"
#include "lade/plan.h"
#include "machine/cost.h"

enum lade_residency_policy { LADE_RESIDENCY_KEEP, LADE_RESIDENCY_RECOMPUTE, LADE_RESIDENCY_HOST, LADE_RESIDENCY_STORE,
                            LADE_N_RESIDENCY_POLICIES };

struct lade_choice {
  uint8_t saved; /* enum lade_residency_policy: in the saved gap */
  uint8_t spill; /* in every other gap; RECOMPUTE: a value that was made again is dropped after each backward op */
};

struct lade_residency {
  int n_tensors, n_params;
  struct lade_choice *choices; /* by tensor of the graph */
  uint8_t *state_tiers;        /* enum lade_tier of the optimizer state, by parameter */
  uint8_t *weight_tiers;       /* of the working copy; at most the state's tier */
  /*
   * Copies in start early, and memory is held for copies out, while live device bytes stay within this. 0: just in
   * time, with the least memory and exposed copies.
   */
  uint64_t prefetch_bytes;
  bool optimizer_in_backward;
};

/*
 * Create a residency with every value kept and every parameter in the device tier. Activations that no backward op
 * reads are set to recompute, which is free until another value is recomputed from them. -ENOMEM.
 */
int lade_residency_create(const struct lade_model_graph *graph, struct lade_residency **ret_residency);
int lade_residency_copy(const struct lade_residency *from, struct lade_residency **ret_residency);
void lade_residency_destroy(struct lade_residency *residency);
/* True if @op runs in its lean form, because its optional operand is not kept. */
static inline bool lade_residency_is_lean(const struct lade_model_graph *graph,
                                          const struct lade_residency *residency, int op)
{
  return graph->ops[op].lean >= 0 && residency->choices[graph->ops[op].optional].saved == LADE_RESIDENCY_RECOMPUTE;
}

/* Set the weight tier and the state tier of a parameter; @weight is @state or nearer. */
void lade_residency_set_tiers(struct lade_residency *residency, int param, enum lade_tier weight,
                              enum lade_tier state);

/* Set the values that @recipe recomputes; the others stay. AUTO and NONE recompute none. */
void lade_residency_apply_recipe(const struct lade_model_graph *graph, enum lade_recipe recipe,
                                 struct lade_residency *residency);

/* Return "keep", "recompute", "host" or "store"; static. */
const char *lade_residency_policy_name(enum lade_residency_policy wait);

#endif
