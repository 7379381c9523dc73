/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of a layout on a cluster: sentences about it, and settings of other projects.
 */
#ifndef LADE_TOOLS_CLUSTER_REPORT_H
#define LADE_TOOLS_CLUSTER_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "recompute/layout_cost.h"
#include "run/dry_stage.h"
#include "tools/cli/options.h"

/* A layout with its proof, for the verb to print, explain and export. */
struct cluster_plan {
  const struct options *options;
  const struct lade_layout_job *job; /* with context parallel ranks the job of one rank's part of each sequence */
  struct lade_layout layout;
  struct lade_layout_params params;
  int64_t micro_batch;
  enum lade_tier state_tier;         /* of optimizer state */
  struct lade_layout_cost cost;
  struct lade_share_cost share;
  int n_context;                     /* context parallel ranks; the layout counts them as replicas */
  int64_t batch, seq_len;            /* of the step over whole sequences */
  uint64_t budget_bytes, peak_bytes; /* the peak of the proved programs; without a proof the estimate */
  uint64_t host_budget_bytes, host_bytes; /* a rank's share of its node's host memory; the bytes that it uses */
  uint64_t store_budget_bytes, store_bytes; /* the same of the node's drives */
  bool fits, is_proved;
  int n_stages_proved;
  struct lade_stage_program stages[LADE_LAYOUT_SIZES_MAX];
  struct lade_dry_stage dry[LADE_LAYOUT_SIZES_MAX];
  int ranks[LADE_LAYOUT_SIZES_MAX];  /* the first rank of each proved stage */
  int fullest;                       /* index of the proved stage with the largest peak */
  int64_t n_instrs_measured;         /* of programs that were built to find their bytes */
  uint64_t measured_bytes;           /* of the device: the most that one of these takes */
};

/* Return @plan as one layout of a search, or as a given layout. The caller owns the object; NULL: no memory. */
json_t *cluster_layout_json(const struct cluster_plan *plan);
json_t *cluster_given_json(const struct cluster_plan *plan);

/* Print @plan's layout and, below it, its figures: both in one line would be wider than a screen. */
void cluster_layout_print(const struct cluster_plan *plan, FILE *file);

/* Print the values of a layer that are recomputed and those that are copied to the host. */
void cluster_residency_print(const struct cluster_plan *plan, FILE *file);

/* Print all lines of a given layout. */
void cluster_given_print(const struct cluster_plan *plan, FILE *file);

/* Print sentences about @plan. */
void cluster_explain(const struct cluster_plan *plan, FILE *file);

/* Print @plan as settings of the project that --export names, with comments on the parts that it cannot express. */
void cluster_export(const struct cluster_plan *plan, FILE *file);

/* Print @plan's model as Megatron-LM's options, with a comment on its parts that have none (cluster_megatron.c). */
void cluster_megatron_model(const struct cluster_plan *plan, FILE *file);

/* Return the parameters of the model, with all experts. */
int64_t cluster_n_params(const struct cluster_plan *plan);

#define CLUSTER_NAMES_BYTES 2048 /* enough for all names of a layer */

/* Write the names of a layer's values with @policy (enum lade_residency_policy): "a, b". "": none. */
void cluster_values_name(const struct cluster_plan *plan, int policy, size_t text_bytes, char *ret_text);

/* Return the name of a tier of optimizer state: "store". */
const char *tier_name(enum lade_tier tier);

/* Return the name that an option gives to the value: static, "?" without one. */
const char *recipe_name(enum lade_recipe recipe);
const char *moments_name(enum lade_moments moments);
const char *master_name(enum lade_master master);
const char *software_name(enum lade_software software);

/* Return the name by which @software is known: "Megatron-LM". */
const char *software_title(enum lade_software software);

#endif
