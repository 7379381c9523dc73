/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residency: WHERE each value waits while nobody uses it.
 *
 * An activation is made in the forward pass and waits for the backward one: its saved gap. It can be kept in
 * device memory, recomputed, or wait on the host or in the store. Every other gap between two uses is short,
 * and is closed to other values unless the choice says `spill`: then the value leaves device memory in all of
 * them too, which is how the smallest budgets are reached.
 *
 * A parameter has two homes: the space where its optimizer state lives and where AdamW runs, and the space where its
 * working copy lives, which is that one or one nearer to the device (state is larger, and used once a step: where
 * there is room for it there is room for the working copy). A working copy at home on the device is resident there.
 * At home elsewhere it is fetched before use; between its uses the fetched copy is dropped by the same choices as an
 * activation's (nothing is written back: the copy at home is good). An update reads and writes it at its home, or
 * where the processor cannot reach that, in a copy on the host.
 *
 * A gradient is made on the device and travels to where the update is; its saved gap is the one between two
 * microbatches, and the wait for the update where that streams from the store. Where each microbatch's is summed over
 * ranks, that is the gap of this rank's block of the sum.
 *
 * Updates come after all steps, or early: each as soon as no step adds to the gradient or reads the parameter any
 * more, so that its gradient waits for no other.
 *
 * Choices are the same for all microbatches: they are the same value at different times.
 */
#ifndef LADE_RESIDENCY_H
#define LADE_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/graph.h"

enum lade_wait { LADE_WAIT_KEEP, LADE_WAIT_RECOMPUTE, LADE_WAIT_HOST, LADE_WAIT_STORE, LADE_N_WAITS };

struct lade_choice {
  uint8_t saved; /* enum lade_wait: in the saved gap */
  uint8_t spill; /* in every other gap; RECOMPUTE: a value that was made again is dropped after each backward op */
};

enum lade_home { LADE_HOME_DEVICE, LADE_HOME_HOST, LADE_HOME_STORE };

struct lade_residency {
  int n_tensors, n_params;
  struct lade_choice *choices; /* by tensor of the graph */
  uint8_t *homes;              /* enum lade_home of the optimizer state, by parameter */
  uint8_t *weight_homes;       /* of the working copy; at most homes */
  /*
   * Copies start early, and memory waits for copies out, while live device bytes stay within this; 0 is just in
   * time: least memory, copies exposed.
   */
  uint64_t prefetch_bytes;
  bool is_early;
};

/*
 * Everything kept, every parameter at home on the device; activations that no backward op reads are set to
 * recompute, which costs nothing until somebody recomputes from them. -ENOMEM.
 */
int lade_residency_create(const struct lade_graph *graph, struct lade_residency **ret_residency);
int lade_residency_copy(const struct lade_residency *from, struct lade_residency **ret_residency);
void lade_residency_destroy(struct lade_residency *residency);
/* Both homes of a parameter; @weight is @state or nearer. */
void lade_residency_set_homes(struct lade_residency *residency, int param, enum lade_home weight,
                              enum lade_home state);

/* "keep", "recompute", "host", "store"; static. */
const char *lade_wait_name(enum lade_wait wait);

#endif
