/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of `lade plan --cluster` that a given layout and a search share.
 */
#ifndef LADE_TOOLS_CLUSTER_PLANNING_H
#define LADE_TOOLS_CLUSTER_PLANNING_H

#include "tools/report/cluster_report.h"

struct cluster_planning {
  struct options *options;
  struct lade_cluster cluster;
  struct lade_model model;
  struct lade_experts experts;
  bool has_experts;
  struct lade_kernels kernels;
  struct lade_layout_job job;
  struct lade_layout_job jobs[LADE_N_MOMENTS][LADE_N_MASTERS]; /* the same with each precision of optimizer states */
  uint64_t budget_bytes, store_budget_bytes; /* of a rank: device memory, and its share of the node's --store-budget */
  struct lade_error error;
};

/* Search layouts, print, and return the exit code. @empty: a plan without a layout. */
int cluster_search_plan(struct cluster_planning *planning, const struct cluster_plan *empty);

/* ---- one layout (cluster_layout.c) ---- */

/* Return the host memory that a rank may use: its share of the node's. */
uint64_t cluster_host_budget(const struct lade_cluster *cluster);

/* Make the residencies of the layout's share (lade_share_residencies_make). */
int cluster_residencies_make(const struct cluster_plan *plan, enum lade_recipe recipe, struct lade_error *error,
                             struct lade_share_residencies *ret_residencies);

/* Cost the layout with its share: its times, and its bytes by the estimate. */
int cluster_layout_cost(struct cluster_plan *plan, struct lade_error *error);

/* True if the layout can be built. Otherwise its estimates decide whether it fits. */
bool cluster_is_provable(const struct cluster_plan *plan);

/* Prove the stages of which one needs the most. Any other has the parameters of one of them, and fewer values. */
int cluster_plan_prove(struct cluster_plan *plan, struct lade_error *error);

/* Prove a costed layout if it can be built and its programs take no more than the device budget. Else fits is false. */
int cluster_plan_prove_fitting(struct cluster_plan *plan, struct lade_error *error);

/* Cost the layout, and prove it if it can be built. */
int cluster_layout_plan(struct cluster_plan *plan, struct lade_error *error);

/* Refuse more ranks than the cluster has devices. */
int cluster_ranks_check(struct cluster_planning *planning, int64_t n_ranks);

/*
 * Say that the layout does not fit: its peak, the budget, the tensors that take most, and @advice; or the bytes beside
 * the device's and a rank's share of them. Return the exit code.
 */
int cluster_refusal_tell(struct cluster_planning *planning, const struct cluster_plan *plan, const char *advice);

/* Compare the times of two plans, for qsort. */
int cluster_step_compare(const void *a, const void *b);

#endif
