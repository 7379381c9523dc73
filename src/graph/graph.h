/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a caller's own step (lade/graph.h), as planner, program and proof read it.
 *
 * All lists are flat. A closed graph has, beside what the caller gave: the version of each operand, and by storage its
 * uses in the order of ops. Version 0 of a given storage is what it holds before the step; version 0 of a made storage
 * holds nothing. Each write and each update of a storage makes its next version; several ranges of one storage that one
 * op writes make one version together.
 *
 * Names are offsets into one text, so that a graph of 100,000 ops is a few allocations.
 */
#ifndef LADE_GRAPH_H
#define LADE_GRAPH_H

#include "base/base.h"
#include "lade/graph.h"

#define GRAPH_ALIGN_DEFAULT 64 /* where the caller asks for 0 */

struct graph_storage {
  uint32_t name, class_name; /* offsets in names; class_name 0: none. In a closed graph equal classes have one offset */
  uint64_t bytes;
  uint32_t align;
  bool is_given, is_kept;
  uint8_t tier;       /* enum lade_space */
  int32_t first_use;  /* of a closed graph: index in uses of its first use; the next storage's first use ends them */
  int32_t n_versions; /* writes and updates of it; its last version */
};

enum graph_access { GRAPH_READS = 1, GRAPH_WRITES = 2, GRAPH_UPDATES = 3 }; /* an update reads and writes */

/* Operands of an op: reads, then writes, then updates, in the caller's order. */
struct graph_operand {
  int32_t storage;
  uint8_t access;        /* enum graph_access */
  int32_t version;       /* of a closed graph: the version that it reads, or of a write the version that it makes */
  uint64_t offset, bytes;
};

struct graph_op {
  uint32_t name; /* offset in names */
  int32_t first_operand, n_reads, n_writes, n_updates;
  uint64_t scratch_bytes;
  int64_t ns;
  bool is_once, draws;
  uint8_t pass, queue;
};

/* Op @op uses a storage. One entry for all its operands of that storage: the union of their accesses. */
struct graph_use {
  int32_t op;
  uint8_t access;
};

struct lade_graph {
  bool is_closed, has_addresses;
  LADE_ARRAY(char) names; /* texts with their ends; offset 0 is "" */
  LADE_ARRAY(struct graph_storage) storages;
  LADE_ARRAY(struct graph_operand) operands;
  LADE_ARRAY(struct graph_op) ops;
  LADE_ARRAY(int32_t) kept; /* storages in the order of lade_graph_keep */
  uint64_t total_bytes, total_scratch_bytes;
  int64_t total_ns;
  /* of a closed graph */
  struct graph_use *uses; /* storage by storage, in the order of ops */
  int n_uses;
};

static inline int graph_op_n_operands(const struct graph_op *op)
{
  return op->n_reads + op->n_writes + op->n_updates;
}

static inline const char *graph_name(const struct lade_graph *graph, uint32_t name)
{
  return graph->names.items + name;
}

/* Return the end of the uses of @storage. pre: the graph is closed. */
static inline int graph_uses_end(const struct lade_graph *graph, int storage)
{
  return storage + 1 < graph->storages.n ? graph->storages.items[storage + 1].first_use : graph->n_uses;
}

/*
 * Write a closed graph as JSON into memory that the caller frees: one line for each storage and each op, fields with
 * their default left out, the same text for equal graphs. -EFBIG if lade_graph_parse would not read it; -ENOMEM.
 */
#define GRAPH_TEXT_BYTES_MAX INT32_MAX
int lade_graph_write(const lade_graph *graph, struct lade_error *error, char **ret_text, size_t *ret_bytes);

#endif
