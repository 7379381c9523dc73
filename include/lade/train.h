/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/train.h - a trainer inside a byte budget, for programs with their own loop and, optionally, their own data.
 *
 * Opening plans the run, proves the plan and takes all memory for the training: device, host, store. A step allocates
 * nothing. Its numbers are those of the unconstrained run, bit for bit, at any budget. The caller closes the trainer.
 *
 *     struct lade_run_params run;
 *     struct lade_trainer_params how;
 *     lade_run_params_init(&run, sizeof(run));
 *     lade_trainer_params_init(&how, sizeof(how));
 *     run.budget = (struct lade_budget){.kind = LADE_BUDGET_BYTES, .bytes = 64 << 20};
 *     how.run = &run;
 *     how.data = &path, how.n_data = 1;
 *     lade_trainer_open(&how, &error, &trainer);
 *
 * One thread at a time uses a trainer. Different trainers are independent and may run at once, each with its own
 * threads. Callbacks run on the calling thread, and must not call their trainer. @error may be NULL everywhere.
 */
#ifndef LADE_TRAIN_H
#define LADE_TRAIN_H

#include "lade/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum lade_data_order {
  LADE_ORDER_SEQUENTIAL, /* batch k is tokens k B T to (k+1) B T */
  LADE_ORDER_RANDOM      /* each row begins at an offset that is drawn from (seed, step, row) */
};

/* Rows [first_row, first_row + n_rows) of a batch, for a callback to fill. */
struct lade_batch {
  bool is_valid;              /* true: validation data */
  int64_t number;             /* the step from 0, resumes included; or the validation batch from 0 */
  int64_t first_row, n_rows;  /* rows are sequences of the step, from 0 to batch */
  int64_t seq;                /* T, tokens in a row */
  int32_t *tokens;            /* [n_rows, T], each at least 0 and below the vocabulary */
  int32_t *targets;           /* [n_rows, T], likewise; below 0: the position is not counted */
};

/*
 * Fill tokens and targets of @batch, which is valid until the return. The output must depend on the batch's numbers
 * alone, so that a resumed run continues bit for bit. Called once per microbatch of a step (and per evaluation batch),
 * in ascending order of rows. Return 0, or a negative errno with one line in @error.
 */
typedef int lade_batch_fn(void *user, const struct lade_batch *batch, struct lade_error *error);

/* Receive a notice, such as "io_uring is refused"; training goes on. @line is valid during the call. */
typedef void lade_notice_fn(void *user, const char *line);

struct lade_trainer_params {
  size_t struct_size;                /* see lade/types.h */
  const struct lade_run_params *run; /* NULL: defaults; read while opening, its strings until close */

  /* Data from files: text, read as bytes, or token files of llm.c and nanoGPT. */
  const char *const *data;
  int n_data;
  const char *const *valid;          /* NULL: the last part of data */
  int n_valid;
  double valid_fraction;
  enum lade_data_order order;

  /* Or data of the caller; then no files are read. */
  lade_batch_fn *batch;
  void *batch_user;
  int64_t n_valid_batches;           /* validation batches of the callback; 0: no evaluation */

  int64_t steps;                     /* length of the learning rate's schedule; later steps run at min_lr */
  double lr, min_lr;                 /* half a cosine from lr to min_lr; constant if they are equal */
  int64_t warmup;                    /* steps */
  double beta1, beta2, eps, weight_decay;
  double clip;                       /* limit of the global norm; 0: none */
  uint64_t seed;
  int64_t eval_batches;              /* maximum of batches in an evaluation */

  const char *init;                  /* first weights, safetensors with HuggingFace names; or NULL */
  const char *resume;                /* a checkpoint, or a directory whose newest one is taken; or NULL */

  lade_notice_fn *notice;            /* may be NULL */
  void *notice_user;

  /*
   * The ranks that train together, in the layout of @run: from lade_ranks_open (lade/shard.h), borrowed until close.
   * Every rank opens a trainer with equal parameters, and makes the same calls in the same order; an error of one ends
   * the others' calls. NULL: this process alone; refused if a launcher started several ranks of it.
   */
  struct lade_ranks *ranks;

  bool mask_documents; /* a token sees none of an earlier document in its row */
  int64_t separator;   /* the token that ends a document, with mask_documents; -1: the data files name it */
};

/* Set every field to its default, and struct_size to sizeof *ret_params. Any thread. Never blocks. */
LADE_API void lade_trainer_params_init(struct lade_trainer_params *ret_params, size_t struct_size);

typedef struct lade_trainer lade_trainer;

/*
 * Open a trainer; the caller closes it. Strings and the users of callbacks are borrowed until then, and the rest of
 * @params is copied. Any thread. Blocks: seconds if this machine is measured.
 *   -EOVERFLOW                           the budget is too small; @error names the smallest that fits; nothing is taken
 *   -EINVAL, -ENOENT, -EBADMSG and such  wrong or damaged input; also a rank of a job of several without params->ranks.
 *                                        The first rank returns at once, the others after 2 s: launchers end a job
 *                                        at its first failure, so the message is printed once
 *   -ENOMEM, -ENOSPC, -EIO               the machine refused a resource
 */
LADE_API int lade_trainer_open(const struct lade_trainer_params *params, struct lade_error *error,
                               lade_trainer **ret_trainer);

/* Close a trainer without saving. NULL is allowed. Blocks for work in progress. */
LADE_API void lade_trainer_close(lade_trainer *trainer);

/* A completed step. On a dry device loss and grad_norm are undefined. */
struct lade_trainer_report {
  size_t struct_size;    /* set by the caller */
  int64_t step;          /* its number, from 0 */
  double loss;           /* mean over the microbatches of the batch */
  double grad_norm;      /* before clipping */
  double lr;
  bool is_skipped;       /* FP16: a gradient overflowed at this loss scale, so no parameter was updated */
  double loss_scale;     /* 1 except for FP16 */
  int64_t wall_ns;       /* simulated on a dry device */
  int64_t queue_ns[LADE_QUEUES_MAX];  /* busy time of each queue; lade_queue_name */
  int64_t stall_ns[LADE_QUEUES_MAX];  /* idle time of computing by the queue that caused it; its own: launches */
};

/*
 * Make one training step: all microbatches, clip, update. @ret_report may be NULL. Allocates nothing. Blocks until the
 * step is done.
 *   -EDOM    a gradient is not finite (except under FP16's scaling); @error names step and tensor. Parameters are as
 *            before; with optimizer_in_backward they are lost, and every later call except close fails. Or the loss
 *            alone overflowed, as @error then says: the step was made and counts.
 *   -EINVAL  a token is outside the vocabulary; nothing was done, and the step may be tried again
 *   errors of the batch callback or of the data's files: nothing was done either
 *   -EIO, -EBADMSG (@error names the tensor) and others: state is lost. Every later call except close fails with the
 *            same error; open again from a checkpoint.
 */
LADE_API int lade_trainer_step(lade_trainer *trainer, struct lade_trainer_report *ret_report,
                               struct lade_error *error);

/*
 * Return the mean loss over the first eval_batches batches of validation data, or over all if there are fewer. Changes
 * no parameter and no later step. -ENODATA without validation data or on a dry device, else errors of a step. Blocks.
 */
LADE_API int lade_trainer_eval(lade_trainer *trainer, double *ret_loss, struct lade_error *error);

/*
 * Save a checkpoint as @dir/step-NNNNNNNN, and remove all but the newest @keep (0: keep all). A kill at any moment
 * leaves the earlier checkpoints or the new one, whole. Masters are FP32 safetensors that load in transformers
 * (docs/checkpoints.md). -ENOSPC, -EIO, -EACCES, -EBUSY, -ENOMEM: @dir has no new checkpoint. -ENODATA on a dry device.
 * Blocks until the checkpoint is durable.
 */
LADE_API int lade_trainer_save(lade_trainer *trainer, const char *dir, int keep, struct lade_error *error);

struct lade_trainer_info {
  size_t struct_size;           /* set by the caller */
  int64_t step;                 /* steps made since step 0, resumes included */
  int64_t vocabulary;           /* resolved */
  int n_param_tensors;          /* tensors for lade_trainer_get_param */
  uint64_t budget_bytes;        /* of the device tier, resolved */
  uint64_t planned_peak_bytes;  /* of the device tier */
  uint64_t measured_peak_bytes; /* the device's own high-water of taken memory */
  uint64_t host_bytes, store_bytes; /* taken in these tiers */
  int64_t predicted_step_ns;
  int64_t roofline_step_ns;     /* time of a step's necessary arithmetic at the measured rate; 0: unknown */
  uint64_t loss_digest;         /* over the bits of all losses since step 0 */
  uint64_t numerics_key;        /* runs with equal keys and options have equal digests */
};

/* Return a snapshot. -EINVAL when struct_size is not set. Never blocks. */
LADE_API int lade_trainer_get_info(lade_trainer *trainer, struct lade_trainer_info *ret_info);

/* Return the current plan with its ledger, as lade_plan_find. -EINVAL without struct_size. Never blocks. */
LADE_API int lade_trainer_get_plan(lade_trainer *trainer, struct lade_plan_report *ret_report);

/*
 * Return a digest over the bits of all FP32 masters. Runs that differ in budget and residency only have equal digests.
 * -ENODATA on a dry device; -EIO, -EBADMSG from the store; -ENOMEM. Blocks.
 */
LADE_API int lade_trainer_digest_params(lade_trainer *trainer, uint64_t *ret_digest, struct lade_error *error);

struct lade_param_info {
  size_t struct_size; /* set by the caller */
  char name[64];      /* "h.3.mlp.fc", as in residency files; checkpoints use HuggingFace's names */
  int n_dims;
  int64_t dims[4];    /* outputs first: a matrix is [out, in] */
  int64_t n_elements;
};

/* Describe parameter tensor @i, from 0 to n_param_tensors. -EINVAL: no such tensor or struct_size. Never blocks. */
LADE_API int lade_trainer_get_param(lade_trainer *trainer, int i, struct lade_param_info *ret_info);

/*
 * Copy the FP32 master of parameter tensor @i into @dst [n_elements]. Call it between steps. Blocks.
 *   -EINVAL        no such tensor; or several ranks, which hold parts of tensors: save a checkpoint instead
 *   -ENODATA       the device is dry
 *   -EIO, -EBADMSG from the store
 *   -ENOMEM
 */
LADE_API int lade_trainer_read_param(lade_trainer *trainer, int i, float *dst, struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
