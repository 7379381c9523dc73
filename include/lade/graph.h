/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/graph.h - the graph of a training step of your own: storages of bytes, and opaque ops that read and write them.
 *
 * Lade plans such a step inside a byte budget (lade/graph_plan.h) without knowing the ops. It needs the bytes that each
 * op reads and writes, its time, and whether it may run again. A graph describes one whole step: forward, backward and
 * update. The step is a cycle: storages that exist before it exist after it, for the next step.
 *
 * A storage is a range of memory that is allocated and freed as one. A given storage (a parameter, optimizer state, a
 * batch) exists before and after the step. A made storage exists from the first op that writes it to its last use. An
 * operand is a storage or a range of one: views of a tensor are ranges of one storage.
 *
 * Ops are in the order in which an unconstrained step runs them. Each op that writes or updates a storage makes its
 * next version. An update reads the version before. A write need not cover its storage: the other bytes stay as they
 * were. An op reads the versions that earlier ops made. An op that runs again must make the same bytes as the first
 * time, so an op that draws random numbers draws the same ones again (lade_graph_op.draws).
 *
 * A graph is built by calls and then closed, which checks it; or it is read from JSON (docs/graph.md has the fields).
 * A closed graph is immutable, and any thread may read it. One thread at a time uses an open one. No function blocks
 * except those that read and write files. Strings and arrays are copied.
 */
#ifndef LADE_PUBLIC_GRAPH_H
#define LADE_PUBLIC_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of a graph; a graph past one is refused. */
#define LADE_GRAPH_NAME_MAX 255            /* bytes of a name */
#define LADE_GRAPH_NAMES_MAX 2000000000    /* bytes of all names together, each with its end */
#define LADE_GRAPH_STORAGES_MAX 10000000
#define LADE_GRAPH_OPS_MAX 2000000
#define LADE_GRAPH_OPERANDS_MAX 20000000   /* of all ops together */
#define LADE_GRAPH_VERSIONS_MAX 32767      /* writes and updates of one storage */
#define LADE_GRAPH_BYTES_MAX (1ULL << 60)  /* of all storages together, and of all scratch */
#define LADE_GRAPH_NS_MAX (1LL << 50)      /* of all ops together: 13 days; redos may take 2^13 times that */

struct lade_storage {
  size_t struct_size;   /* sizeof(struct lade_storage) */
  const char *name;     /* for messages; UTF-8, not empty */
  uint64_t bytes;       /* may be 0 */
  uint64_t align;       /* of its address: a power of two up to 2 MiB; 0 means 64 */
  bool is_given;        /* exists before and after the step */
  enum lade_space tier; /* of a given storage: the tier where it is between steps; LADE_DEVICE for a made one */
  const char *class_name; /* storages of one class have equal uses in equal layers; NULL: no class */
};

/* An operand: a range of a storage; @bytes 0 means all of the storage from @offset on. */
struct lade_operand_range {
  int storage;
  uint64_t offset, bytes;
};

/* The part of the step that an op belongs to, for reports. */
enum lade_pass { LADE_PASS_FORWARD, LADE_PASS_BACKWARD, LADE_PASS_UPDATE, LADE_N_PASSES };

/*
 * The processor of an op. An op of the device and one of the host may overlap unless one changes bytes that the other
 * uses.
 */
enum lade_op_queue { LADE_OP_ON_DEVICE, LADE_OP_ON_HOST, LADE_N_OP_QUEUES };

struct lade_graph_op {
  size_t struct_size; /* sizeof(struct lade_graph_op) */
  const char *name;   /* for messages; UTF-8, not empty */
  const struct lade_operand_range *reads, *writes, *updates; /* an update reads and writes */
  int n_reads, n_writes, n_updates;
  uint64_t scratch_bytes; /* more memory while it runs */
  int64_t ns;             /* predicted time of one run */
  bool is_once;           /* may not run again */
  bool draws;             /* draws random numbers; a second run draws the same (lade_op_call.draw) */
  enum lade_pass pass;
  enum lade_op_queue queue;
};

/* A graph; the functions below create and destroy it. */
typedef struct lade_graph lade_graph;

/* Create an empty graph; the caller destroys it. -EINVAL for NULL, -ENOMEM. */
LADE_API int lade_graph_create(lade_graph **ret_graph);
/* Free a graph, closed or not. NULL is allowed. pre: no plan of it exists. */
LADE_API void lade_graph_destroy(lade_graph *graph);

/*
 * Add a storage, and return its index: the number of storages before it. @ret_storage and @error may be NULL.
 *   -EINVAL     a field is out of range, which @error names, or the graph is closed
 *   -EOVERFLOW  the graph would pass a limit above
 *   -ENOMEM
 */
LADE_API int lade_graph_add_storage(lade_graph *graph, const struct lade_storage *storage, struct lade_error *error,
                                    int *ret_storage);
/*
 * Add an op after the others, and return its index. @ret_op may be NULL. A list of reads may name a storage several
 * times. Writes and updates may do so too if the ranges do not overlap.
 *   -EINVAL     a storage does not exist, a range passes its end, a byte is written twice, or a field is out of range;
 *               @error names the op. Or the graph is closed
 *   -EOVERFLOW  the graph would pass a limit above
 *   -ENOMEM
 */
LADE_API int lade_graph_add_op(lade_graph *graph, const struct lade_graph_op *op, struct lade_error *error,
                               int *ret_op);
/* Keep @storage after the step, as a result for the caller. Given storages are always kept. -EINVAL, -ENOMEM. */
LADE_API int lade_graph_keep(lade_graph *graph, int storage, struct lade_error *error);
/*
 * Check the whole graph and make it immutable. After an error the graph is still open.
 *   -EINVAL  an op reads a made storage that no earlier op wrote, or no op writes a storage that is kept; @error names
 *            the op or the storage
 *   -ENOMEM
 */
LADE_API int lade_graph_close(lade_graph *graph, struct lade_error *error);

/*
 * Read a graph from JSON, and close it; the caller destroys it. lade_graph_load reads a file ("-": standard input) and
 * blocks. @error names the place in the file, the field and the value that is expected.
 *   -EBADMSG           no JSON object, or an object has a field twice
 *   -EINVAL            an unknown or missing field, a value of another type, or an error of a function above
 *   -ENOENT and others opening or reading the file failed
 *   -ENOMEM
 */
LADE_API int lade_graph_load(const char *path, struct lade_error *error, lade_graph **ret_graph);
LADE_API int lade_graph_parse(const char *text, size_t n_bytes, struct lade_error *error, lade_graph **ret_graph);
/*
 * Write a graph as JSON into a new or existing file, in one step: the file is whole or unchanged. Blocks. Reading it
 * gives an equal graph. -EINVAL for a graph that is not closed; codes of the file system; -ENOMEM.
 */
LADE_API int lade_graph_save(const lade_graph *graph, const char *path, struct lade_error *error);

/* Return the number of storages, and of ops; 0 for NULL. */
LADE_API int lade_graph_n_storages(const lade_graph *graph);
LADE_API int lade_graph_n_ops(const lade_graph *graph);
/* Return a name, "" past the end; it lives as long as the graph. */
LADE_API const char *lade_graph_storage_name(const lade_graph *graph, int storage);
LADE_API const char *lade_graph_op_name(const lade_graph *graph, int op);
/* False if plans of the graph have live bytes alone, without addresses ("addresses": false in JSON). */
LADE_API bool lade_graph_has_addresses(const lade_graph *graph);
/* Let plans have addresses, the default, or live bytes alone, for callers whose framework places memory. -EINVAL. */
LADE_API int lade_graph_set_addresses(lade_graph *graph, bool has_addresses);

#ifdef __cplusplus
}
#endif
#endif
