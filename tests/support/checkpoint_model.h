/* SPDX-License-Identifier: Apache-2.0 */
/* Small models of both families, and scratch directories, for the tests of checkpoints. */
#ifndef LADE_TESTS_CHECKPOINT_MODEL_H
#define LADE_TESTS_CHECKPOINT_MODEL_H

#include "graph/graph.h"

enum checkpoint_size {
  SIZE_SMALL,   /* a few kilobytes */
  SIZE_WINDOWS, /* the largest parameters are several windows, and no whole number of them */
  SIZE_CHUNKS,  /* and transposed ones several chunks */
};

/* Two layers. GPT-2 is tied; Llama is not, and has grouped queries. */
struct lade_graph *checkpoint_graph(enum lade_family family, enum lade_dtype dtype, enum checkpoint_size size);

/*
 * A fresh directory in the working directory, into @path (256 bytes); if @is_memory and there is one, in a file system
 * in memory, for tests of many saves that a drive would take long to sync.
 */
void scratch_make(char *path, bool is_memory);
/* With all that is in it. */
void scratch_remove(const char *path);

#endif
