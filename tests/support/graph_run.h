/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simplest possible executor of a graph, for tests: every tensor has memory of its own, ops run in order on the
 * calling thread's pool, nothing is shared, freed or moved. A planned run must give the same numbers.
 */
#ifndef LADE_TESTS_GRAPH_RUN_H
#define LADE_TESTS_GRAPH_RUN_H

#include "graph/model_graph.h"

struct graph_run {
  const struct lade_model_graph *graph;
  const struct lade_kernels *kernels;
  lade_pool *pool; /* may be NULL */
  struct lade_step step;
  void **memory; /* of each tensor; all bytes 0xff (NaN) until written */
  void *workspace;
  bool *is_written; /* of each gradient, in this step */
  int separators; /* of masked documents: tokens that are a multiple of it end one */
  void *boundary; /* the caller's buffer: SEND copies to it, RECV copies from it */
};

/* Allocate memory for all tensors; the graph, kernels and pool stay the caller's. Aborts if memory is out. */
void graph_run_init(struct graph_run *run, const struct lade_model_graph *graph, const struct lade_kernels *kernels,
                    lade_pool *pool);
void graph_run_finish(struct graph_run *run);

/* Return element @i of a float tensor, in any of its types. */
double graph_run_get(const struct graph_run *run, int tensor, int64_t i);
void graph_run_set(struct graph_run *run, int tensor, int64_t i, double value);
int64_t graph_run_elements(const struct graph_run *run, int tensor);

/*
 * Draw every parameter: normal with @std around 0, or 0.1 around 1 for norms' weights, rounded to BF16 so that every
 * type holds the same model. A function of @seed, the parameter and the element.
 */
void graph_run_randomize(struct graph_run *run, uint64_t seed, double std);

/*
 * Copy in tokens and targets of @microbatch of [n_microbatches][B*T], and derive first keys, as far as this stage has
 * them.
 */
void graph_run_feed(struct graph_run *run, const int32_t *tokens, const int32_t *targets, int microbatch);

/* Run one op. */
void graph_run_op(struct graph_run *run, int op, int microbatch, int n_microbatches);

/*
 * Run one step over @n_microbatches: tokens and targets hold all of them, [n_microbatches][B*T]. Forward alone, or
 * forward and backward. Return the mean loss.
 */
double graph_run_step(struct graph_run *run, const int32_t *tokens, const int32_t *targets, int n_microbatches,
                      bool has_backward);

#endif
