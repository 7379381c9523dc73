/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session's parts: session_open.c acquires them in order, session.c runs steps over them; session_state.c has what
 * all of them read.
 */
#ifndef LADE_SESSION_INTERNAL_H
#define LADE_SESSION_INTERNAL_H

#include <limits.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "machine/measured_links.h"
#include "machine/probe.h"
#include "run/checkpoint.h"
#include "run/session.h"

struct session_saver;

/* Work of the io queue in this run's steps, the latest with the most weight. It tells the drive's lasting rates. */
struct session_drive {
  uint64_t bytes; /* moved */
  struct lade_drive_points points;
  double wall_ns, busy_ns; /* of those steps: all of their time, and the io queue's */
};

struct lade_session {
  struct lade_session_params params;
  struct lade_rank_group group;
  bool is_scattered;   /* boundary values are sent in the scattered form (session_links.c) */
  struct lade_links_key links_key; /* of all ranks of the layout; n_nodes 0: nodes have different numbers of ranks */
  struct lade_cluster_links links;
  bool has_links;      /* links of these ranks were measured by an earlier job */
  int32_t *spare_tokens, *spare_targets; /* [micro_batch, seq_len], of a stage that does not read them; else NULL */
  struct lade_model model;
  lade_data *data; /* NULL when only planned without data */
  int64_t separator; /* token that ends a document whose successors do not see it; -1: documents are not masked */
  struct lade_kernels kernels;      /* of the device: for the graph's ops */
  struct lade_kernels host_kernels; /* of this processor; differ from kernels on a GPU only */
  lade_cuda_kernels *cuda_kernels;  /* on a GPU */
  lade_pool *pool;
  struct lade_model_graph *graph;
  struct lade_model_graph *whole; /* model, of which the graph is a share; NULL: the graph is all of it */
  struct lade_cost cost;
  bool has_cost;
  struct lade_prices prices;
  bool has_prices, is_unified;
  bool fuses_gelu; /* the form of the graph, by its device (backward.c) */
  int n_microbatches;
  uint64_t capacity_bytes, chunk_bytes; /* of the device */
  uint64_t outside_bytes;   /* result of session_gpu_outside when the run began */
  uint64_t left_bytes;      /* memory that device and host tier share, or the host's alone */
  uint64_t own_bytes;       /* growth of the process, without those */
  struct lade_memory memory; /* of this machine, when last read; unset if the machine is described */
  bool is_store_memory;     /* the store is on a file system in memory */
  uint64_t store_memory_bytes; /* bytes that such a store takes from the tiers */
  uint64_t budget_bytes, host_bytes, store_bytes;
  struct lade_change *overrides;
  int n_overrides;
  lade_planner *planner; /* of a plan leader */
  int leader;            /* rank of this rank's plan leader, which decides the plan */
  int n_followers;       /* ranks after this one that follow its decision, if it is the plan leader */
  int n_plan_leaders;        /* in the job */
  struct lade_plan_bounds bounds;
  struct lade_plan *plan;
  lade_device *device;
  lade_store *store;
  lade_durable *durable;
  bool is_recovered;        /* state and values come from the durable state in the store */
  lade_executor *executor;
  struct session_saver *saver; /* NULL: saves block steps */
  double matmul_flops_per_s; /* the best ever seen on this machine; 0: not measured */
  uint64_t read_bytes, written_bytes; /* of the last step, by the stores' own counts */
  struct session_drive drive; /* observations of its rate */
  double n_sharing_drive;     /* ranks that share the drive, by whose number its measured rates are divided */
  bool is_rate_raised;       /* a step of this run raised the rate above that in the cache of measurements */
  struct lade_checkpoint_state state;
  char resume_path[PATH_MAX]; /* the checkpoint that this run resumes */
  bool has_sought_tokenizer;
  char *tokenizer;            /* contents of the data's tokenizer.json, for saves of the first rank; NULL: none */
  size_t tokenizer_bytes;
};

/* Raise the matmul rate if a step of @wall_ns did its products at a higher one. */
void session_rate_raise(lade_session *session, int64_t wall_ns);
/* Write a raised rate to the cache of measurements, for later runs. */
void session_rate_keep(const lade_session *session);
/* Return the parameters of the store. Before the drive is measured, request size and depth are the store's defaults. */
struct lade_store_params session_store_params(const lade_session *session);
/* Return the parameters by which this run's device is found in the cache of measurements. @gpu is borrowed. */
struct lade_probe_params session_cache_params(const lade_session *session, const struct lade_probe_gpu *gpu);
/* Make the prices from the cost, in place of earlier ones. -ENOMEM at all ranks; collective. */
int session_prices_make(lade_session *session, struct lade_error *error);
/*
 * Measure the drive's lasting rates if it bounds a long run and they are unknown, and then replace the plan by one that
 * is made with them. A drive that cannot be measured keeps its rates, with a note. As session_plan. Collective.
 */
int session_drive_measure_sustained(lade_session *session, struct lade_error *error);
/* Add the io queue's work of the last step, of @wall_ns, to the observations of the drive. */
void session_drive_count(lade_session *session, int64_t wall_ns);
/* Keep the drive's rates and latency for later predictions, if this run moved more than a drive's burst. */
void session_drive_keep(const lade_session *session);

/* Return access to the state of the running session, for checkpoints and digests; valid until it is closed. */
struct lade_values lade_session_values(lade_session *session);

/* Resolve the separator, with the data open (session_documents.c). -EINVAL: none is stated or named. */
int session_documents_open(lade_session *session, struct lade_error *error);
/* Fill the first keys of rows of @tokens. */
void session_documents_fill(const lade_session *session, const struct lade_batch *batch, int32_t *ret_first_keys);
/* Return the key of training data with key @key, which masks of documents change. */
uint64_t session_documents_key(const lade_session *session, uint64_t key);

/* Return the settings that determine this run's numbers, for its checkpoints. */
struct lade_checkpoint_run session_run(const lade_session *session);

/* Return the loss scale at step 0. */
double session_first_scale(const lade_session *session);

/*
 * Resume from a checkpoint, in two parts (session_resume.c): find it and take its seed, before the data is opened; then
 * load its values, and report differences from the run that saved it. Errors as a checkpoint's.
 */
int session_resume_begin(lade_session *session, struct lade_error *error);
int session_resume(lade_session *session, const struct lade_values *values, struct lade_error *error);

/* Refuse the recovered state, found in @where, if its run had another --gelu-fusion than this one. -EINVAL. */
int session_gelu_check(const lade_session *session, const char *where, struct lade_error *error);

/* Take the seed of the recovered state, found in @where, and report if it replaces another seed. */
void session_seed_take(lade_session *session, const char *where);

/* Report differences from the run that left the state in @where, and replace that run's settings by this run's. */
void session_run_replace(lade_session *session, const char *where);

/*
 * Durable state (session_durable.c). Without is_durable all calls but begin do nothing. Errors as lade_durable's.
 *
 *   begin        before the data is opened: lock the files and take the state that all ranks find; collective
 *   fix_tiers    with the graph: make the store the tier of every parameter and its state
 *   check_room   with the bounds: check that both slots fit
 *   prepare      with the plan: open the slots; collective
 *   publish      publish the current values and state; collective
 */
int session_durable_begin(lade_session *session, struct lade_error *error);
int session_durable_fix_tiers(lade_session *session, struct lade_error *error);
uint64_t session_durable_slot(const lade_session *session);  /* bytes of one slot: all state that this rank keeps */
uint64_t session_durable_extra(const lade_session *session); /* bytes of both slots beyond the one in the plan */
uint64_t session_durable_held(const lade_session *session); /* bytes that an earlier run's state has there already */
uint64_t session_durable_published(const lade_session *session); /* bytes a step writes beside the state */
int session_durable_check_room(const lade_session *session, struct lade_error *error);
int session_durable_prepare(lade_session *session, struct lade_error *error);
int session_durable_publish(lade_session *session, struct lade_error *error);

/*
 * Open the device of a session on a GPU and its kernels, before the graph, whose ops use their table (session_gpu.c).
 * The device holds nothing yet. -ENODEV without the device or machine code for it; -EINVAL for throttled links, which
 * are unsupported. Collective with several ranks.
 *
 * If the host may replace the device (or_host), -ENODEV at any rank is a notice at all ranks, and the session runs on
 * the host.
 */
int session_gpu_open(lade_session *session, struct lade_error *error);

/* Limit the session's device to @bytes. -EBUSY with one line if it holds more. */
int session_gpu_limit(lade_session *session, uint64_t bytes, struct lade_error *error);
/*
 * Let NCCL take the memory of the graph's collectives, then measure the capacity again; collective, and nothing on one
 * rank or on hosts. pre: all ranks have made the graph. As lade_rank_group_warm_gpus.
 */
int session_gpu_warm(lade_session *session, struct lade_error *error);
/* Report if the form of a layer's scores takes attention from the GPU's best kernels. pre: the graph is made. */
void session_gpu_note_forms(const lade_session *session);
/* Refuse --gelu-fusion if the GPU's products lack it. -EINVAL. pre: as above. */
int session_gpu_check_gelu(const lade_session *session, struct lade_error *error);

/* Return the bytes of the GPU in use outside the arena; 0 on other devices, or if the GPU no longer answers. */
uint64_t session_gpu_outside(const lade_session *session);

/*
 * Compute, with prices, the budgets and the plan (session_plan.c); collective. -EOVERFLOW: no plan fits. -EINVAL,
 * -ENOMEM and others with a line; at all ranks if the plan leader fails.
 */
int session_plan(lade_session *session, struct lade_error *error);

/*
 * This machine's memory (session_memory.c); all calls but refuse are collective.
 *
 * share, before planning: set left_bytes to the bytes that this rank's tiers may take; -ENODEV if memory is unknown.
 * store: subtract from them the part of a store that is itself in memory; @held_bytes of it are there already.
 * refuse: return -EOVERFLOW with @words and the limit that leaves too little for @needed_bytes.
 * check, with the plan, before tiers are taken: check that the plans of all ranks of the node fit with their processes.
 * -EOVERFLOW at all of them if not.
 */
int session_memory_share(lade_session *session, struct lade_error *error);
int session_memory_store(lade_session *session, uint64_t held_bytes, struct lade_error *error);
int session_memory_refuse(const lade_session *session, const char *words, uint64_t needed_bytes,
                          struct lade_error *error);
int session_memory_check(lade_session *session, struct lade_error *error);

/*
 * Agreements of several ranks while they open (session_agree.c). run: compare parameters; -EINVAL, with the difference,
 * at each rank that differs from the first. cost: all ranks take the first rank's measurements. least: set *bytes to
 * the least of all ranks; stage_min: of the ranks of this stage.
 */
int session_agree_run(lade_session *session, struct lade_error *error);
int session_agree_cost(lade_session *session, struct lade_error *error);
int session_agree_min(lade_session *session, uint64_t *bytes, struct lade_error *error);
int session_agree_stage_min(lade_session *session, uint64_t *bytes, struct lade_error *error);
/*
 * Choose plan leaders: of the ranks with the same @key (lade_plan_params_key) the first decides. bounds: give a
 * leader's bounds to its followers. decision: give its decision, @own of @own_bytes (0: it has no followers), to them
 * in *ret_data, which they free; at leaders *ret_data is unchanged. All are collective. -ENOMEM, and as lade_comm_run.
 */
int session_agree_leader(lade_session *session, uint64_t key, struct lade_error *error);
int session_agree_bounds(lade_session *session, struct lade_error *error);
int session_agree_decision(lade_session *session, void *own, uint64_t own_bytes, void **ret_data, uint64_t *ret_bytes,
                           struct lade_error *error);
static inline bool session_is_plan_leader(const lade_session *s)
{
  return s->leader == s->group.layout.rank;
}
/*
 * Divide the rate of the first rank's drive, measured while the others waited, among the ranks that share the drive
 * (n_sharing_drive).
 */
int session_share_drive(lade_session *session, struct lade_error *error);
/* True if the plan is for a described machine instead of this one. */
static inline bool session_is_described(const lade_session *s)
{
  return s->params.machine && (s->params.is_dry || s->params.is_plan_only);
}
/*
 * Set n_node_ranks, the ranks that share this machine, if the caller has not: those that run here, or for a plan all
 * that are planned for. A described machine is one rank's, unless a budget of its node is stated: then up to eight
 * ranks share that. Set links_key, and is_scattered, by the nodes of all ranks: neighbours share one if the caller has
 * set the number. Collective.
 */
int session_count_node_ranks(lade_session *session, struct lade_error *error);
/*
 * Take the kept links of these ranks, if there are any and the machine is not described, for prices; and decide by them
 * if sends are scattered (session_links.c). pre: the device is open. Collective.
 */
int session_links_take(lade_session *session, struct lade_error *error);
/*
 * Check, with the plan, that one drive has room for the stores of all its ranks. -ENOSPC at all of these ranks if it
 * has not.
 */
int session_agree_room(lade_session *session, struct lade_error *error);
/* Check that the ranks' programs meet: lade_rank_group_prove. */
int session_agree_programs(lade_session *session, struct lade_error *error);

/*
 * Saves concurrent with steps (session_save.c). open, with the executor: allocate their copy, if that is requested and
 * every rank has room; collective. -ENOMEM, and as lade_comm_split. close waits for a save in flight. bytes: return the
 * bytes allocated.
 */
int session_saver_open(lade_session *session, struct lade_error *error);
void session_saver_close(struct session_saver *saver);
uint64_t session_saver_bytes(const lade_session *session);
/* Return the bytes of the host tier: as planned, or as allocated. */
uint64_t session_host_bytes(const lade_session *session);

/* True if this rank's parameters differ from the whole model's: it holds parts of some, or lacks some. */
static inline bool session_is_cut(const lade_session *s)
{
  return lade_layout_size(&s->group.layout, LADE_AXIS_TP) > 1 || lade_layout_size(&s->group.layout, LADE_AXIS_PP) > 1 ||
         lade_model_graph_has_parts(s->graph);
}

/*
 * Put @where and the step before a communicator's line, which names the lost rank but no program. Lines of other
 * failures state their place already. Return @status.
 */
int session_place(const lade_session *session, const char *where, int status, struct lade_error *error);

/*
 * Report this rank's failure @status in a step to the other ranks, and put its number before the line, because several
 * ranks may have one. Lines of a communicator name the lost rank already. Return @status.
 */
int session_own(lade_session *session, int status, struct lade_error *error);

/* Report this rank's failure @status, with its line, to the other ranks. Return @status. */
int session_fail(lade_session *session, int status, struct lade_error *error);

/* Give a line to the caller's notice function, if there is one. */
void session_notice(const lade_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
