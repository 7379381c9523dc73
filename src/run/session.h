/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: model, data, plan and executor of one run, as the command line and other callers use them.
 *
 * lade_session_open reads the model and the data, opens the device and the store, takes prices (measured or from
 * a machine description), plans for the budget, or follows the rank that plans for its stage, proves the plan, and
 * binds it. Then steps, evaluations, checkpoints. Nothing is printed; what a person should be told along the way goes
 * to the notice callback.
 */
#ifndef LADE_SESSION_H
#define LADE_SESSION_H

#include "device/cuda.h"
#include "lade/train.h"
#include "machine/machine.h"
#include "plan/cost.h"
#include "run/data.h"
#include "run/executor.h"
#include "run/peers.h"

/* A number that the caller's own loop goes by, as its option is called: ranks that differ in it are told apart too. */
struct lade_session_choice {
  const char *name;
  int64_t value;
};
#define LADE_SESSION_CHOICES_MOST 8

typedef struct lade_session lade_session;

struct lade_session_params {
  size_t struct_size;
  const char *model;                   /* preset or path of a config.json */
  int64_t layers;                      /* 0: the model's own */
  const char *const *data;             /* files */
  int n_data;
  const char *const *valid;
  int n_valid;
  double valid_fraction;
  enum lade_data_order order;
  lade_batch_fn *batch_fn;             /* in place of files: makes every batch; NULL: files */
  void *batch_user;
  int64_t n_valid_batches;             /* that batch_fn can make */
  int64_t vocabulary;                  /* of a model that takes it from the data; 0: the data's, or the preset's */
  int64_t steps, batch, micro_batch, time; /* micro_batch 0: batch; time 0: the smaller of 1024 and the context */
  double lr, min_lr;
  int64_t warmup;
  uint64_t seed;
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  enum lade_dtype grad_dtype;          /* LADE_F32, or LADE_BF16: complete gradients are rounded for the update */
  double dropout, beta1, beta2, eps, weight_decay, clip;
  struct lade_budget budget;
  uint64_t host_budget_bytes;
  bool has_host_budget;                /* else 80 % of what the machine has left */
  const char *store;                   /* directories, as lade_store_params' dir; NULL: no NVMe tier */
  uint64_t store_budget_bytes;         /* 0: what the file system has free */
  bool is_durable;                     /* all state in the store, published after each step; -EINVAL without one */
  bool allow_tmpfs;
  bool is_dry;
  bool is_gpu;                         /* on a GPU, in its own memory; -ENODEV without one */
  int gpu;                             /* its number; of several ranks, the first that they may take */
  bool or_host;                        /* with is_gpu: all ranks on the host, and a notice, where it is not to be had */
  const char *machine;                 /* preset or file: nothing is probed; NULL: this machine */
  struct lade_link throttle;           /* of the host device's copy queues, each way; rate 0: none */
  bool skip_cache;                     /* of the probe's measurements */
  enum lade_recipe recipe;
  const char *residency_file;
  bool updates_early;                  /* inside the backward half; -EINVAL with clip or LADE_F16 */
  int64_t eval_iters;
  const char *init;                    /* safetensors to start from */
  const char *resume;                  /* directory with checkpoints */
  uint64_t save_file_bytes;            /* as lade_checkpoint_place's */
  bool saves_beside;                   /* steps go on while a save is written, if the host budget has room for a copy */
  int n_threads;                       /* 0: all that we may use; of ranks planned for, each its part */
  lade_comm *world;                    /* borrowed: the ranks of this run, which all open it; NULL: one */
  struct lade_layout_params layout;    /* how they share it; world and rank are @world's where there is one */
  int n_node_ranks;                    /* that share this node's memory and drives; 0: all here; 1 if described */
  const struct lade_session_choice *choices; /* of the caller; all ranks give the same names */
  int n_choices;
  bool is_plan_only;                   /* stop before memory is taken and data is needed */
  /*
   * A session that has a plan, of another rank of this one's stage and otherwise with the same parameters, planned only
   * or dry as this one: its prices and budgets hold here, and what was decided there is built for this rank. It
   * outlives this one. NULL: decide.
   */
  const lade_session *alike;
  struct lade_faults *faults;
  void (*notice)(void *user, const char *line);
  void *user;
};

/* Fill in every default. */
void lade_session_defaults(struct lade_session_params *params);

/*
 * Open a session. -EOVERFLOW: does not fit (with is_plan_only: 0, the line in @error and no plan in the info);
 * -EINVAL, -ENOENT and others for what a person named wrongly; -ENOMEM, -ENOSPC and others for what the machine
 * refused: one line in @error. Blocks. All strings of @params are borrowed until close.
 *
 * With several ranks every call below is collective: all make it, in one order, and a rank that fails ends the
 * others' calls too: they return what its communicator says, -ECANCELED with its words.
 */
int lade_session_open(const struct lade_session_params *params, struct lade_error *error, lade_session **ret_session);
void lade_session_close(lade_session *session);

struct lade_session_info {
  struct lade_layout layout;
  struct lade_model model;
  int64_t n_params, batch, micro_batch, time;
  int n_microbatches;                /* of a rank */
  uint64_t budget_bytes;             /* resolved */
  struct lade_plan_bounds bounds;
  const struct lade_plan *plan;      /* NULL if planning was refused */
  int n_deciders;                    /* ranks of the job that searched for theirs; the others followed one of them */
  const struct lade_graph *graph;
  const struct lade_graph *whole;    /* model, of which the graph is a share; NULL: the graph is all of it */
  const struct lade_prices *prices;
  const struct lade_cost *cost;
  lade_executor *executor;           /* NULL when only planned */
  uint64_t measured_peak_bytes;      /* device high-water of mapped chunks so far */
  uint64_t outside_bytes;            /* in use on a GPU beside them when the run began, or of a plan now; and by whom */
  uint64_t taken_bytes[LADE_CUDA_N_TAKERS]; /* lade_cuda_mark_memory; of outside_bytes, all but what came later */
  uint64_t host_bytes, store_bytes;  /* taken; the copy that saves are written from is in host memory */
  bool is_saving_beside;             /* steps go on while a save is written */
  uint64_t host_budget_bytes, store_budget_bytes;
  uint64_t store_read_bytes, store_written_bytes; /* by a training step */
  uint64_t comm_bytes[LADE_N_AXES];  /* sent by this rank in a training step, by axis */
  int comm_calls[LADE_N_AXES];       /* collectives, bundles counting once, and sends */
  uint64_t numerics_key;
  int64_t step;                      /* steps completed since step 0, resumes included */
  uint64_t loss_digest;              /* over the bits of every step's loss since step 0 */
  double speed_of_light_ns;          /* time of a step's necessary flops at the measured matmul rate; 0: unknown */
};
void lade_session_get_info(lade_session *session, struct lade_session_info *ret_info);

struct lade_step_report {
  int64_t step;      /* its number, from 0 */
  double loss, grad_norm, lr;
  bool is_skipped;   /* FP16: the loss scale was too large */
  double loss_scale;
  int64_t wall_ns, busy_ns[LADE_N_QUEUES], stall_ns[LADE_N_QUEUES]; /* as of lade_executor_step */
};

/*
 * One training step. -EDOM when the loss or a gradient is not finite (FP16's scaling excepted), with the step and the
 * first gradient that is not, in the order of parameters, in @error; nothing was updated and the step does not count.
 * If the loss alone overflowed, every gradient being finite, @error says that: the update was made and the step counts.
 * With is_durable a step that returns 0 is one that the next session over this store goes on from.
 */
int lade_session_step(lade_session *session, struct lade_step_report *ret_report, struct lade_error *error);

/* Mean loss over the first eval_iters batches of the validation data (fewer if there are fewer). -ENODATA: none. */
int lade_session_eval(lade_session *session, double *ret_loss, struct lade_error *error);

/* Did any rank pass a @value other than 0? The largest, at all of them: for what they have to do together. */
int lade_session_agree(lade_session *session, int value, int *ret_value, struct lade_error *error);

/* The largest @value of any rank, at all of them; numbers, none of them negative. */
int lade_session_most(lade_session *session, double value, double *ret_most, struct lade_error *error);

/* Device peaks of every rank, in their order, as planned and as measured so far; room for one of each rank. */
int lade_session_gather_peaks(lade_session *session, uint64_t *ret_planned, uint64_t *ret_measured,
                              struct lade_error *error);

/*
 * Save a checkpoint of the current step into @dir and remove all but the newest @keep (0: keep all). Where the info
 * says so it returns when the values are copied, and the writing goes on: an error of it is returned by the next call
 * of these two, which wait for it. Errors of lade_checkpoint_save.
 */
int lade_session_save(lade_session *session, const char *dir, int keep, struct lade_error *error);

/*
 * Could a checkpoint be saved into @dir now? For one rank, the first: alone among these calls it is not collective.
 * Errors of lade_checkpoint_check_room.
 */
int lade_session_check_save_room(lade_session *session, const char *dir, struct lade_error *error);

/*
 * Has the save that was under way ended at this rank, well or not, so that finishing it waits for nobody here? Other
 * ranks are about to say so too. Takes a load; false where nothing is under way.
 */
bool lade_session_has_saved(const lade_session *session);

/*
 * Wait until what was saved is durable; 0 where nothing is under way. All ranks return the same, and may save again
 * after an error that is not a communicator's.
 */
int lade_session_finish_saves(lade_session *session, struct lade_error *error);

/*
 * Digest over the bits of all parameters' FP32 masters, the same whatever the layout. -EBADMSG: ranks that hold the
 * same parameters hold other bits.
 */
int lade_session_params_digest(lade_session *session, uint64_t *ret_digest, struct lade_error *error);

#endif
