/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's values in plain memory, for tests of their readers and writers. Every call is checked against the contract
 * of run/values.h, and one can be made to fail.
 */
#ifndef LADE_TESTS_VALUES_MEMORY_H
#define LADE_TESTS_VALUES_MEMORY_H

#include "run/values.h"

struct values_memory {
  struct lade_values values;
  const struct lade_model_graph *graph;
  void **memory;         /* of each value that lives across steps; NULL for the others */
  uint64_t *set_bytes;   /* how far each has been set, in ascending order */
  uint64_t n_calls, fail_at; /* the call (from 1) that fails with -EIO; 0: none */
};

/* Initialise: all bytes 0xff. Aborts if memory is out. The graph stays the caller's. */
void values_memory_init(struct values_memory *memory, const struct lade_model_graph *graph);
void values_memory_finish(struct values_memory *memory);

/* Set every bit from a generator on @seed, but finite: working copies match random masters, as after an update. */
void values_memory_randomize(struct values_memory *memory, uint64_t seed);

/* True if both hold the same bits. */
bool values_memory_equal(const struct values_memory *a, const struct values_memory *b);

/* True if every value has been set to its end. */
bool values_memory_is_set(const struct values_memory *memory);

#endif
