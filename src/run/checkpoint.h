/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: directories step-NNNNNNNN of safetensors and a state.json. Each is written under a temporary name and
 * renamed into place, so that a directory of that name is always whole.
 *
 *   model.safetensors      exact FP32 masters under HuggingFace names, GPT-2's weights transposed as its Conv1D has
 *                          them; a model longer than file_bytes is in model-00001-of-0000N.safetensors and so on,
 *                          with HuggingFace's model.safetensors.index.json
 *   config.json            the model; with model.safetensors it loads in transformers, and in lade_model_load
 *   optimizer.safetensors  exp_avg.NAME and exp_avg_sq.NAME, FP32, shaped as NAME; in several files likewise
 *   tokenizer.json         the tokenizer's file, if the data names one
 *   state.json             the rest of the state, and a checksum of every file and tensor
 *
 * They hold logical tensors, never the layout, dtype or residency of the training. Values stream through windows, so
 * memory is bounded for any model. All ranks write and read, each its own values, and then calls are collective. All
 * functions block. One thread per set of values; saves into one directory exclude each other across processes (-EBUSY).
 * Errors come with one line that names the file and, where there is one, the tensor.
 */
#ifndef LADE_CHECKPOINT_H
#define LADE_CHECKPOINT_H

#include <limits.h>

#include "base/faults.h"
#include "lade/train.h"
#include "run/values.h"

/* Inputs of a run's numbers besides its state, in the words of the command's options. */
struct lade_checkpoint_run {
  bool is_known;                /* false: the checkpoint does not state it */
  int64_t dtype;                /* enum lade_dtype: F32, BF16 or F16 */
  int64_t order;                /* enum lade_data_order */
  int64_t batch, micro_batch, seq, steps, warmup;
  double lr, min_lr, dropout, beta1, beta2, eps, weight_decay, clip;
  int64_t moments, master;      /* enum lade_moments, enum lade_master */
  int64_t grad_dtype, grad_reduce; /* enum lade_dtype: F32 or BF16 */
  int64_t gelu_fusion;          /* bool; both runs of a resume must have the same */
  uint64_t data_key;            /* of the training tokens; 0: they come from a function */
};

struct lade_checkpoint_state {
  int64_t step;          /* steps completed */
  uint64_t seed;
  double loss_scale;
  int64_t good_steps;    /* since the loss scale last changed */
  uint64_t loss_digest;  /* running */
  uint64_t numerics_key;
  char model[LADE_NAME_BYTES];
  int64_t data_position; /* tokens consumed */
  struct lade_checkpoint_run run;
};

/*
 * Count the differences between a resumed run and the saved one. @text names each with its old and its new value; it is
 * cut if it is too short. If either run is unknown, return 0 and an empty text. A difference in steps counts only if
 * the learning rate is not constant.
 */
int lade_checkpoint_run_compare(const struct lade_checkpoint_run *saved, const struct lade_checkpoint_run *now,
                                char *text, size_t text_bytes);

struct lade_checkpoint_place {
  const char *dir;
  int keep;            /* checkpoints that stay in it, the new one included; 0: all */
  uint64_t file_bytes; /* most bytes of a file of several tensors; 0: 4 GiB */
  const char *tokenizer; /* contents of tokenizer.json, borrowed; read at the first rank; NULL: none */
  size_t tokenizer_bytes;
};

/*
 * Save as step-NNNNNNNN in the place's directory, replacing a checkpoint of the same step. The directory is created if
 * its parent exists. Leftovers of interrupted saves are removed first. Once the new checkpoint is durable, all but the
 * newest @keep are removed; the new one always stays. -ENOSPC, -EFBIG, -EIO, -EACCES, -EBUSY, -ENOMEM: the directory
 * has the same checkpoints as before. If old checkpoints cannot be removed, that is an error too, although the new one
 * is in place; the line says so.
 *
 * Collective over the values' ranks: the first rank makes and names files, each writes its values, and the save counts
 * when all have synced. All ranks return the same, and a line of another rank begins with its number. -ENOENT also
 * where a rank does not see the first one's files; the communicator's error when a rank is gone.
 */
int lade_checkpoint_save(const struct lade_values *values, const struct lade_checkpoint_state *state,
                         const struct lade_checkpoint_place *place, struct lade_faults *faults,
                         struct lade_error *error);

/* Write the path of the checkpoint of @step in @dir, whether or not it exists. -ENAMETOOLONG. */
int lade_checkpoint_path(const char *dir, int64_t step, char path[PATH_MAX], struct lade_error *error);

/* Check that the paths of all files of a checkpoint in @dir are within PATH_MAX. -ENAMETOOLONG. */
int lade_checkpoint_check_dir(const char *dir, struct lade_error *error);

/*
 * Check that the place's directory has room for one more checkpoint now, and that this process may write files of its
 * length. Callers do so before the first step, because a refused save at the end would lose the steps. Leftovers of
 * interrupted saves are removed, as by a save. An absent directory is created and removed again. Not collective: the
 * first rank alone calls it. -ENOSPC, -EFBIG (the file size limit), -EBUSY, -EACCES, -EPERM (a leftover of another
 * user), -ENOMEM, -ENAMETOOLONG.
 */
int lade_checkpoint_check_room(const struct lade_values *values, const struct lade_checkpoint_place *place,
                               struct lade_faults *faults, struct lade_error *error);

/*
 * Find the newest checkpoint in @dir, or @dir itself if it is one, and write its path into @path. Its state.json and
 * the sizes of its files are checked here, and their contents by lade_checkpoint_load. -ENOENT: none. -EBADMSG: the
 * newest is damaged; no older one is taken in its place, but the line names the next older one. -EINVAL: its format
 * version is unknown.
 */
int lade_checkpoint_find(const char *dir, char *path, size_t path_bytes, struct lade_error *error);

/*
 * Check the tokenizer.json of the checkpoint @path against state.json. A directory without one of them is not checked.
 * -EBADMSG: damaged; and as lade_checkpoint_read_state. Blocks.
 */
int lade_checkpoint_check_tokenizer(const char *path, struct lade_error *error);

/* Read the state of the checkpoint @path alone. Errors as find's. */
int lade_checkpoint_read_state(const char *path, struct lade_checkpoint_state *ret_state, struct lade_error *error);

/*
 * Load all parameters and moments, verifying the checksum of each tensor. -EBADMSG: damaged; -EINVAL: of another model
 * or format version; -ENOENT, -EIO, -ENOMEM. After reading has begun, a failure leaves values partly set. Collective:
 * each rank reads its own values, and the sums over all reads are compared. -EINVAL where another rank's @path is
 * another checkpoint, or where ranks with parts of tensors meet format version 1, whose sums are of whole ones.
 */
int lade_checkpoint_load(const struct lade_values *values, const char *path, struct lade_faults *faults,
                         struct lade_checkpoint_state *ret_state, struct lade_error *error);

/*
 * Load parameters only from HuggingFace-named safetensors: one file, or a directory with model.safetensors or
 * model.safetensors.index.json. F32, F16 or BF16. GPT-2's Conv1D weights are transposed. Names may have "transformer."
 * or "model.". An lm_head.weight beside a tied table and the buffers that old versions stored are ignored. Moments
 * become 0. -EINVAL with the tensor that is missing, of another shape or not of this model. -EBADMSG if a file is
 * damaged, or if a state.json states another checksum of a tensor that is read whole.
 */
int lade_checkpoint_init(const struct lade_values *values, const char *path, struct lade_faults *faults,
                         struct lade_error *error);

/*
 * Fill parameters by their init rule, drawing normals from Philox on (@seed, parameter, element) in double precision;
 * moments are 0. The values depend on @seed and the whole model's parameters alone, and not on their place or on this
 * graph's share of them.
 */
int lade_checkpoint_random(const struct lade_values *values, uint64_t seed, struct lade_error *error);

/*
 * Compute a digest of the bits of all the model's FP32 masters: XXH3 over the sums of its tensors (checkpoint_tally.c),
 * the same in every layout. Collective. -EBADMSG, naming a tensor, if two ranks hold different bits of it.
 */
int lade_checkpoint_digest(const struct lade_values *values, uint64_t *ret_digest, struct lade_error *error);

/* Receive elements [first, first + n) of a parameter. Return 0 to continue, another number to end the stream. */
typedef int lade_elements_fn(void *user, int64_t first, const float *elements, int64_t n);

/*
 * Stream the FP32 master of parameter @param: join working copy and residual (or read the separate master), window by
 * window in ascending order, and call @use with each. Return the first result of @use other than 0, a negative errno
 * with one line in @error, or 0. Blocks.
 */
int lade_checkpoint_master(const struct lade_values *values, int param, lade_elements_fn *use, void *user,
                           struct lade_error *error);

#endif
