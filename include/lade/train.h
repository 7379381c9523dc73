/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/train.h - a trainer inside a byte budget, for programs that bring their own loop and, if they like, their own
 * data.
 *
 * Opening plans the run, proves the plan and takes all memory that training will ever need: device, host, store. A
 * step allocates nothing, and its numbers are those of the unconstrained run, bit for bit, at any budget.
 * Whoever opens a trainer closes it.
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
 * One thread at a time uses a trainer; different trainers are independent and may run at once, each with its
 * own threads. Callbacks run on the thread that called, and may not call their trainer. @error may be NULL everywhere.
 */
#ifndef LADE_TRAIN_H
#define LADE_TRAIN_H

#include "lade/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum lade_data_order {
  LADE_ORDER_SEQUENTIAL, /* batch k is tokens k B T to (k+1) B T */
  LADE_ORDER_RANDOM      /* each row begins at an offset drawn from (seed, step, row) */
};

/* Rows [first_row, first_row + n_rows) of a batch, for a callback to fill. */
struct lade_batch {
  bool is_valid;              /* of validation data */
  int64_t number;             /* the step from 0, resumes included; or the validation batch from 0 */
  int64_t first_row, n_rows;  /* rows are the sequences of a step: 0 to batch */
  int64_t seq;                /* T, tokens of a row */
  int32_t *tokens;            /* [n_rows, T], each at least 0 and below the vocabulary */
  int32_t *targets;           /* [n_rows, T], the same; below 0: this position is not counted */
};

/*
 * Fill tokens and targets of @batch, which is the callee's until it returns. What it writes must depend on the batch's
 * numbers alone if a resumed run is to continue bit for bit. Called once per microbatch and step (and evaluation
 * batch), in ascending order of rows. Returns 0 or a negative errno, with one line in @error if it has one to say.
 */
typedef int lade_batch_fn(void *user, const struct lade_batch *batch, struct lade_error *error);

/* A remark along the way: io_uring refused, other kernels than those of the checkpoint. @line is borrowed. */
typedef void lade_notice_fn(void *user, const char *line);

struct lade_trainer_params {
  size_t struct_size;                /* see lade/types.h */
  const struct lade_run_params *run; /* NULL: its defaults; read when opening, its strings until close */

  /* Data from files: text as bytes, or token files of llm.c and nanoGPT. */
  const char *const *data;
  int n_data;
  const char *const *valid;          /* NULL: the last part of data */
  int n_valid;
  double valid_fraction;
  enum lade_data_order order;

  /* Or data of the caller's; then there are no files. */
  lade_batch_fn *batch;
  void *batch_user;
  int64_t n_valid_batches;           /* that the callback can make; 0: no evaluation */

  int64_t steps;                     /* of the learning rate's schedule; more may be made, at min_lr */
  double lr, min_lr;                 /* half a cosine from lr to min_lr; equal: constant */
  int64_t warmup;                    /* steps */
  double beta1, beta2, eps, weight_decay;
  double clip;                       /* of the global norm; 0: none */
  uint64_t seed;
  int64_t eval_batches;              /* most batches of an evaluation */

  const char *init;                  /* safetensors with HuggingFace names to start from, or NULL */
  const char *resume;                /* a checkpoint, or a directory of them: the newest; or NULL */

  lade_notice_fn *notice;            /* may be NULL */
  void *notice_user;
};

/* Fill in every default and @struct_size, which is sizeof *ret_params. Any thread. Never blocks. */
LADE_API void lade_trainer_params_init(struct lade_trainer_params *ret_params, size_t struct_size);

typedef struct lade_trainer lade_trainer;

/*
 * Open a trainer, which the caller closes. Strings and the callbacks' users are borrowed until then; the rest of
 * @params is copied. -EOVERFLOW: the budget does not suffice; @error names the smallest that does, nothing is taken.
 * -EINVAL, -ENOENT, -EBADMSG and the like for what was named wrongly or is damaged; -ENOMEM, -ENOSPC, -EIO for
 * what the machine refused. Any thread. Blocks: seconds where this machine is measured.
 */
LADE_API int lade_trainer_open(const struct lade_trainer_params *params, struct lade_error *error,
                               lade_trainer **ret_trainer);

/* Give everything back; saves nothing. NULL is allowed. Blocks for what is under way. */
LADE_API void lade_trainer_close(lade_trainer *trainer);

/* A step that was made. On a dry device loss and grad_norm mean nothing. */
struct lade_trainer_report {
  size_t struct_size;    /* set by the caller */
  int64_t step;          /* its number, from 0 */
  double loss;           /* mean over the batch's microbatches */
  double grad_norm;      /* before clipping */
  double lr;
  bool is_skipped;       /* FP16: a gradient overflowed at this loss scale, and nothing was updated */
  double loss_scale;     /* 1 but for FP16 */
  int64_t wall_ns;       /* simulated on a dry device */
  int64_t queue_ns[LADE_QUEUES_MOST]; /* how long each queue was busy; lade_queue_name */
  int64_t stall_ns[LADE_QUEUES_MOST]; /* how long computing stood still because of each queue; its own: launches */
};

/*
 * Make one training step: all microbatches, clip, update. @ret_report may be NULL. -EDOM: a gradient is not finite
 * (FP16's scaling excepted), with step and tensor in @error, and parameters are as before (with updates_early they are
 * lost, and every later call but close fails); or the loss alone overflowed, as @error then says, and the step was made
 * and counts. What the batch callback or the data's files return, and -EINVAL for a token outside of the vocabulary:
 * nothing was done, and the step may be tried again. -EIO, -EBADMSG (naming the tensor) and others: state is lost, and
 * every later call but close fails alike; reopen from a checkpoint. Allocates nothing. Blocks until the step is done.
 */
LADE_API int lade_trainer_step(lade_trainer *trainer, struct lade_trainer_report *ret_report,
                               struct lade_error *error);

/*
 * Mean loss over the first eval_batches batches of validation data, fewer if there are fewer; parameters and
 * later steps are not touched. -ENODATA: there is none, or the device is dry; else errors as of a step. Blocks.
 */
LADE_API int lade_trainer_eval(lade_trainer *trainer, double *ret_loss, struct lade_error *error);

/*
 * Save a checkpoint of the steps made so far as @dir/step-NNNNNNNN, and remove all but the newest @keep (0: keep all).
 * A kill at any moment leaves what was there before. Masters are FP32 safetensors that load in transformers;
 * docs/checkpoint.md. -ENOSPC, -EIO, -EACCES, -EBUSY, -ENOMEM: nothing new is in @dir. -ENODATA on a dry
 * device. Blocks until it is durable.
 */
LADE_API int lade_trainer_save(lade_trainer *trainer, const char *dir, int keep, struct lade_error *error);

struct lade_trainer_info {
  size_t struct_size;           /* set by the caller */
  int64_t step;                 /* steps made since step 0, resumes included */
  int64_t vocabulary;           /* of the model, settled */
  int n_param_tensors;          /* for lade_trainer_get_param */
  uint64_t budget_bytes;        /* of the device, resolved */
  uint64_t planned_peak_bytes;  /* of the device */
  uint64_t measured_peak_bytes; /* the device's own high-water of memory taken so far */
  uint64_t host_bytes, store_bytes; /* taken there */
  int64_t predicted_step_ns;
  int64_t light_step_ns;        /* time of a step's necessary arithmetic at the measured rate; 0: unknown */
  uint64_t loss_digest;         /* over the bits of every step's loss since step 0 */
  uint64_t numerics_key;        /* equal keys and runs have equal digests */
};

/* A snapshot. -EINVAL when struct_size is not set. Never blocks. */
LADE_API int lade_trainer_get_info(lade_trainer *trainer, struct lade_trainer_info *ret_info);

/* The plan that is being run, with its ledger: as lade_plan_find. -EINVAL when struct_size is not set. Never blocks. */
LADE_API int lade_trainer_get_plan(lade_trainer *trainer, struct lade_plan_report *ret_report);

/*
 * Digest over the bits of all parameters' FP32 masters, wherever they live: equal for runs that differ in budget
 * and residency only. -ENODATA on a dry device; -EIO, -EBADMSG from the store; -ENOMEM. Blocks.
 */
LADE_API int lade_trainer_digest_params(lade_trainer *trainer, uint64_t *ret_digest, struct lade_error *error);

struct lade_param_info {
  size_t struct_size; /* set by the caller */
  char name[64];      /* "h.3.mlp.fc", as in residency files; checkpoints have HuggingFace's names */
  int n_dims;
  int64_t dims[4];    /* outputs first: a matrix is [out, in] */
  int64_t n_elements;
};

/* Parameter tensor @i, from 0 to n_param_tensors. -EINVAL: there is none, or struct_size is not set. Never blocks. */
LADE_API int lade_trainer_get_param(lade_trainer *trainer, int i, struct lade_param_info *ret_info);

/*
 * Copy the FP32 master of parameter tensor @i into @dst, which has room for its n_elements floats. -EINVAL: there is
 * none; -ENODATA on a dry device; -EIO, -EBADMSG from the store; -ENOMEM. Between steps. Blocks.
 */
LADE_API int lade_trainer_read_param(lade_trainer *trainer, int i, float *dst, struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
