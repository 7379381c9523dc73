/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints (design section 10): directories step-NNNNNNNN of safetensors and a state.json, written beside
 * and renamed into place, so that a directory of that name is always whole.
 *
 * They hold logical tensors, exact FP32 masters under HuggingFace names and both moments; never the layout or the
 * residency they were trained with. Values stream through one window of memory.
 */
#ifndef LADE_CHECKPOINT_H
#define LADE_CHECKPOINT_H

#include "run/executor.h"

struct lade_checkpoint_state {
  int64_t step;          /* steps completed */
  uint64_t seed;
  double loss_scale;
  int64_t good_steps;    /* since the loss scale last changed */
  uint64_t loss_digest;  /* running */
  uint64_t numerics_key;
  char model[LADE_NAME_BYTES];
  int64_t data_position; /* tokens consumed */
};

/*
 * Save as @dir/step-NNNNNNNN: files written and synced under a temporary name, then renamed, then the directory
 * synced. Leftovers of interrupted saves are removed first. Afterwards only the newest @keep stay (0: all).
 * -ENOSPC, -EIO, ... with one line in @error; then @dir is as before.
 */
int lade_checkpoint_save(lade_executor *executor, const struct lade_graph *graph,
                         const struct lade_checkpoint_state *state, const char *dir, int keep, struct lade_faults *faults,
                         struct lade_error *error);

/* The newest complete checkpoint in @dir (or @dir itself if it is one) into @path. -ENOENT. */
int lade_checkpoint_find(const char *dir, char *path, size_t path_bytes, struct lade_error *error);

/* Load all parameters and moments, with their checksums. -EBADMSG damaged, -EINVAL of another shape or version. */
int lade_checkpoint_load(lade_executor *executor, const struct lade_graph *graph, const char *path,
                         struct lade_checkpoint_state *ret_state, struct lade_error *error);

/*
 * Load parameters only from HuggingFace-named safetensors (one file, or a directory with an index), F32, F16 or BF16,
 * transposing GPT-2's; names with and without "transformer.". Moments become 0. -EINVAL naming what is missing or of
 * another shape.
 */
int lade_checkpoint_init(lade_executor *executor, const struct lade_graph *graph, const char *path,
                         struct lade_error *error);

/* Fill parameters by their init rule, drawing from Philox on (seed, parameter, element); moments 0. */
int lade_checkpoint_random(lade_executor *executor, const struct lade_graph *graph, uint64_t seed,
                           struct lade_error *error);

/* XXH3 over the FP32 masters in checkpoint order. */
int lade_checkpoint_digest(lade_executor *executor, const struct lade_graph *graph, uint64_t *ret_digest,
                           struct lade_error *error);

/*
 * Stream the FP32 master of a parameter: joins working copy and residual (or reads the separate master), window by
 * window, calling @use with elements [first, first + n). Also used by digest and save.
 */
int lade_checkpoint_master(lade_executor *executor, const struct lade_graph *graph, int param,
                           int (*use)(void *user, int64_t first, const float *values, int64_t n), void *user,
                           struct lade_error *error);

#endif
