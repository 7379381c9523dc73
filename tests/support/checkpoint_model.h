/* SPDX-License-Identifier: Apache-2.0 */
/* Small models of both families, for the tests of checkpoints. */
#ifndef LADE_TESTS_CHECKPOINT_MODEL_H
#define LADE_TESTS_CHECKPOINT_MODEL_H

#include "graph/model_graph.h"

enum checkpoint_size {
  SIZE_SMALL,   /* a few kilobytes */
  SIZE_WINDOWS, /* the largest parameters are several windows, and not a whole number of them */
  SIZE_CHUNKS,  /* and transposed ones are several chunks */
  SIZE_DEEP,    /* as the small one, with 1600 layers */
};

/* Make a graph of two layers. GPT-2 is tied; Llama is not, and has grouped queries. */
struct lade_model_graph *checkpoint_graph(enum lade_family family, enum lade_dtype dtype, enum checkpoint_size size);

#endif
