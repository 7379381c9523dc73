/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a share with its prices, and the walk that costs it under one residency. For the files of this room.
 */
#ifndef LADE_SHARE_INTERNAL_H
#define LADE_SHARE_INTERNAL_H

#include "program/residency.h"
#include "recompute/layout_cost.h"

/*
 * Part of a device's multiprocessors that a collective beside kernels takes: NCCL runs 16 channels, of a multiprocessor
 * each, on large vectors (NCCL 2.18, default of NVLink machines), of 108 to 132.
 */
#define OVERLAP_SHARE 0.13

enum share_unit { SHARE_EMBED, SHARE_LAYER, SHARE_HEAD, N_SHARE_UNITS };

/* One layer between an embedding and a head, on one rank. */
struct share_basis {
  const struct lade_model_graph *graph;
  struct lade_model_graph *own_graph; /* NULL: the key's */
  struct lade_prices prices;
  struct lade_cost cost;
  struct lade_cluster_links links;
  struct lade_mesh mesh;
  int n_overlapping; /* tensor parallel ranks whose collectives run beside products; 0: they do not */
  enum lade_software software;
};

/* Start the prices of @software's kernels on the job's device: eager or not, with attention as it computes it. */
void share_cost_init(const struct lade_layout_job *job, enum lade_software software, struct lade_cost *ret_cost);

/* Make the basis of @key, whatever its recipe. Errors as lade_share_cost_make's; finish in any case. */
int share_basis_init(const struct lade_layout_job *job, const struct lade_share_key *key, struct lade_error *error,
                     struct share_basis *ret_basis);
void share_basis_finish(struct share_basis *basis);

/*
 * Create the residency from which all others start: everything kept, but for optional values, which their readers make
 * again.
 */
int share_residency_create(const struct share_basis *basis, struct lade_residency **ret_residency);

/*
 * Compute the units under @residency. @recipe FULL adds the ops that frameworks run again. @is_saved, by tensor, is
 * filled with those that wait for the backward half in device memory; it may be NULL. -ENOMEM.
 */
int share_walk_cost(const struct share_basis *basis, const struct lade_residency *residency, enum lade_recipe recipe,
                    bool *is_saved, struct lade_share_cost *ret_cost);

/*
 * Call @visit for each forward value of @unit, in the order of its ops, with the value's place among them. Return their
 * number.
 */
typedef void share_visit(void *user, const struct lade_model_graph *graph, int tensor, int place);
int share_values_visit(const struct lade_model_graph *graph, int unit, share_visit *visit, void *user);

#endif
