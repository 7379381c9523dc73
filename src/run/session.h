/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: model, data, plan and executor of one run, as the command line and other callers use them.
 *
 * lade_session_open reads the model and the data, opens the device and the store, and takes prices (measured or from a
 * machine description). It plans for the budget, or follows the rank that plans for its stage, proves the plan, and
 * binds it. Then steps, evaluations, checkpoints. Nothing is printed; messages for the user go to the notice callback.
 */
#ifndef LADE_SESSION_H
#define LADE_SESSION_H

#include "device/cuda.h"
#include "lade/train.h"
#include "machine/cost.h"
#include "machine/machine.h"
#include "run/data.h"
#include "run/executor.h"
#include "run/rank_group.h"

/* A number of the caller's own loop, named as its option. Ranks that differ in it are refused. */
struct lade_session_choice {
  const char *name;
  int64_t value;
};
#define LADE_SESSION_CHOICES_MAX 8

typedef struct lade_session lade_session;

struct lade_session_params {
  size_t struct_size;
  const char *model;                   /* preset, or path of a config.json */
  int64_t layers;                      /* 0: the model's own */
  const char *const *data;             /* files */
  int n_data;
  const char *const *valid;
  int n_valid;
  double valid_fraction;
  enum lade_data_order order;
  bool mask_documents;                 /* no token sees a document before its own */
  int64_t separator;                   /* the token that ends a document; -1: the one that the files name */
  lade_batch_fn *batch_fn;             /* makes every batch in place of files; NULL: files */
  void *batch_user;
  int64_t n_valid_batches;             /* batches that batch_fn can make for validation */
  int64_t vocabulary;                  /* for a model without one of its own; 0: the data's, or the preset's */
  int64_t steps, batch, micro_batch, seq_len; /* micro_batch 0: batch; seq_len 0: min(1024, context) */
  double lr, min_lr;
  int64_t warmup;
  uint64_t seed;
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  enum lade_dtype grad_dtype;          /* LADE_F32, or LADE_BF16: complete gradients are rounded for the update */
  bool gelu_fusion;                    /* GELU of a product's sums before they are rounded; -EINVAL without GELU */
  double dropout, beta1, beta2, eps, weight_decay, clip;
  struct lade_budget budget;
  uint64_t host_budget_bytes;
  bool has_host_budget;                /* else 80 % of the machine's free bytes */
  const char *store;                   /* directories, as lade_store_params' dir; NULL: no NVMe tier */
  uint64_t store_budget_bytes;         /* 0: the free bytes of the file system */
  bool is_durable;                     /* all state in the store, published after each step; -EINVAL without a store */
  bool allow_tmpfs;
  bool is_dry;
  bool is_gpu;                         /* on a GPU, in its own memory; -ENODEV without one */
  int gpu;                             /* its ordinal; of several ranks, the first that they may take */
  bool or_host; /* with is_gpu: if a rank has no GPU, all ranks compute on the host, with a notice */
  const char *machine;                 /* preset or file: nothing is probed; NULL: this machine */
  struct lade_link throttle;           /* of the host device's copy queues, each way; rate 0: none */
  bool skip_cache;                     /* ignore cached measurements of the probe */
  enum lade_recipe recipe;
  const char *residency_file;
  bool optimizer_in_backward;          /* -EINVAL with clip or LADE_F16 */
  int64_t eval_iters;
  const char *init;                    /* safetensors to start from */
  const char *resume;                  /* directory with checkpoints */
  uint64_t save_file_bytes;            /* as lade_checkpoint_place's */
  bool async_save;                     /* steps go on during a save, if the host budget has room for a copy */
  int n_threads;                       /* 0: all available; planned ranks divide them */
  lade_comm *world;                    /* borrowed: the ranks of this run, which all open it; NULL: one */
  struct lade_layout_params layout;    /* world and rank are taken from @world if there is one */
  /* Ranks that share this node's memory and drives; 0: count them. Described: 1, or up to 8 if a budget is stated. */
  int n_node_ranks;
  int64_t links_after_ns;              /* a run of this length keeps its links; 0: a minute */
  const struct lade_session_choice *choices; /* of the caller; all ranks give the same names */
  int n_choices;
  bool is_plan_only;                   /* stop before memory is allocated and data is needed */
  /*
   * A session that has a plan and outlives this one, or NULL: search for a plan. Its parameters are equal to these but
   * for the rank, which is of the same stage; both are planned only, or both are dry. This session takes its prices,
   * its budgets and its decision, and builds the programs of its own rank.
   */
  const lade_session *template_session;
  struct lade_faults *faults;
  void (*notice)(void *user, const char *line);
  /* True: the caller is about to close it. Optional measurements end, and the opening with -EINTR. May be NULL. */
  bool (*is_stopping)(void *user);
  void *user;
};

/* Set every field to its default. */
void lade_session_defaults(struct lade_session_params *params);

/*
 * Open a session. -EOVERFLOW: does not fit (with is_plan_only: 0, the line in @error and no plan in the info); -EINVAL,
 * -ENOENT and others for user mistakes; -ENOMEM, -ENOSPC and others for refusals of the machine: one line in @error.
 * -EINTR: params->is_stopping told a rank to end. Blocks. All strings of @params are borrowed until close.
 *
 * With several ranks every call below is collective: all make it, in one order. A rank that fails ends the others'
 * calls too: they return their communicator's error, -ECANCELED with its words.
 */
int lade_session_open(const struct lade_session_params *params, struct lade_error *error, lade_session **ret_session);
void lade_session_close(lade_session *session);

struct lade_session_info {
  struct lade_layout layout;
  struct lade_model model;
  int64_t n_params, batch, micro_batch, seq_len;
  int n_microbatches;                /* of a rank */
  uint64_t budget_bytes;             /* resolved */
  struct lade_plan_bounds bounds;
  const struct lade_plan *plan;      /* NULL if planning was refused */
  /* Ranks of the job that searched for a plan; the others follow one of them. */
  int n_plan_leaders;
  const struct lade_model_graph *graph;
  const struct lade_model_graph *whole;    /* model, of which the graph is a share; NULL: the graph is all of it */
  const struct lade_prices *prices;
  const struct lade_cost *cost;
  lade_executor *executor;           /* NULL if only planned */
  uint64_t measured_peak_bytes;      /* high-water mark of mapped chunks so far */
  uint64_t outside_bytes;            /* of a GPU, in use outside the arena: at the run's begin, or now for a plan */
  uint64_t grown_bytes;              /* in a run: growth of that since; of NCCL, the driver or other processes */
  uint64_t taken_bytes[LADE_CUDA_N_TAKERS]; /* lade_cuda_mark_memory; of outside_bytes, all but later growth */
  uint64_t host_bytes, store_bytes;  /* taken; host bytes include the copy for async saves */
  bool is_unified;                   /* the device is memory of the host */
  int n_node_ranks;                  /* ranks that share the node's host and store budgets */
  bool is_async_saving;              /* steps go on during a save */
  uint64_t host_budget_bytes, store_budget_bytes;
  uint64_t store_read_bytes, store_written_bytes; /* by a training step, planned */
  uint64_t measured_read_bytes, measured_written_bytes; /* by the last step, as its stores counted, in whole blocks */
  uint64_t comm_bytes[LADE_N_AXES];  /* sent by this rank in a training step, by axis */
  uint64_t forward_gather_bytes;     /* of them, gathers of shards before the first gradient leaves */
  int comm_calls[LADE_N_AXES];       /* collectives, a group counting once, and sends */
  uint64_t numerics_key;
  int64_t step;                      /* steps completed since step 0, resumes included */
  uint64_t loss_digest;              /* over the bits of every step's loss since step 0 */
  double roofline_step_ns;           /* time of a step's necessary flops at the measured matmul rate; 0: unknown */
};
void lade_session_get_info(lade_session *session, struct lade_session_info *ret_info);

/*
 * Measure the links between the ranks after the last step, and keep the rates for predictions of later runs
 * (session_links.c). Does so if @run_ns, the time of the run, is long enough and no rates are kept. Collective. No step
 * may follow. The executor may have been released, so the info of lade_session_get_info has none. As
 * lade_links_measure; a caller may ignore its errors.
 */
int lade_session_keep_links(lade_session *session, int64_t run_ns, struct lade_error *error);

struct lade_step_report {
  int64_t step;      /* its number, from 0 */
  double loss, grad_norm, lr;
  bool is_skipped;   /* FP16: the loss scale was too large */
  double loss_scale;
  int64_t wall_ns, busy_ns[LADE_N_QUEUES], stall_ns[LADE_N_QUEUES]; /* as of lade_executor_step */
};

/*
 * Run one training step. -EDOM when the loss or a gradient is not finite (FP16's scaling excepted). @error then has the
 * step and the first such gradient, in the order of parameters; nothing was updated and the step does not count. If the
 * loss alone overflowed, @error states that: the update was made and the step counts. With is_durable the next session
 * over this store resumes after the last step that returned 0.
 */
int lade_session_step(lade_session *session, struct lade_step_report *ret_report, struct lade_error *error);

/*
 * Return the mean loss over the first eval_iters batches of the validation data, or over all if there are fewer.
 * -ENODATA: there is none.
 */
int lade_session_eval(lade_session *session, double *ret_loss, struct lade_error *error);

/*
 * Return the largest @value of all ranks, at all of them. Callers vote by it: the result is not 0 if any rank passed
 * another value than 0.
 */
int lade_session_agree(lade_session *session, int value, int *ret_value, struct lade_error *error);

/* Return the largest @value of all ranks, at all of them. pre: no value is negative. */
int lade_session_max(lade_session *session, double value, double *ret_max, struct lade_error *error);

/*
 * Return the device peaks of every rank, in order, as planned and as measured so far. Both arrays have room for all
 * ranks.
 */
int lade_session_gather_peaks(lade_session *session, uint64_t *ret_planned, uint64_t *ret_measured,
                              struct lade_error *error);

/*
 * Save a checkpoint of the current step into @dir and remove all but the newest @keep (0: keep all). With
 * is_async_saving in the info it returns when the values are copied, and the save continues. The next call of save or
 * lade_session_finish_saves waits for it and returns its error. Errors of lade_checkpoint_save.
 */
int lade_session_save(lade_session *session, const char *dir, int keep, struct lade_error *error);

/*
 * Check that a checkpoint could be saved into @dir now. Only the first rank calls it: this call is not collective.
 * Errors of lade_checkpoint_check_room.
 */
int lade_session_check_save_room(lade_session *session, const char *dir, struct lade_error *error);

/*
 * True if the save in flight has ended at this rank, with success or not, so that finishing it waits for no work here.
 * Other ranks end soon after. False if none is in flight. Costs one load.
 */
bool lade_session_has_saved(const lade_session *session);

/*
 * Wait until saves are durable; 0 if none is in flight. All ranks return the same status. They may save again unless
 * the error is a communicator's.
 */
int lade_session_finish_saves(lade_session *session, struct lade_error *error);

/*
 * Compute a digest over the bits of all parameters' FP32 masters, the same in every layout. -EBADMSG: ranks that hold
 * the same parameters have different bits.
 */
int lade_session_params_digest(lade_session *session, uint64_t *ret_digest, struct lade_error *error);

#endif
