/* SPDX-License-Identifier: Apache-2.0 */
/* A session's parts: session_open.c acquires them in order, session.c runs steps over them. */
#ifndef LADE_SESSION_INTERNAL_H
#define LADE_SESSION_INTERNAL_H

#include <limits.h>

#include "base/base.h"
#include "base/cpu.h"
#include "plan/probe.h"
#include "run/checkpoint.h"
#include "run/session.h"

struct session_saver;

struct lade_session {
  struct lade_session_params params;
  struct lade_peers peers;
  int32_t *spare_rows; /* tokens or targets that this stage does not read; NULL until needed */
  struct lade_model model;
  lade_data *data; /* NULL when only planned without data */
  struct lade_kernels kernels;      /* of the device: what the graph's ops are */
  struct lade_kernels host_kernels; /* of this processor: the same but on a GPU */
  lade_cuda_kernels *cuda_kernels;  /* on a GPU */
  lade_pool *pool;
  struct lade_graph *graph;
  struct lade_graph *whole; /* model, of which the graph is a share; NULL: it is none */
  struct lade_cost cost;
  bool has_cost;
  struct lade_prices prices;
  bool has_prices, is_unified;
  int n_microbatches;
  uint64_t capacity_bytes, chunk_bytes; /* of the device */
  uint64_t outside_bytes;   /* session_gpu_outside when the run began */
  uint64_t left_bytes;      /* memory that device and host tier share, or the host's alone */
  uint64_t budget_bytes, host_bytes, store_bytes;
  struct lade_change *pins;
  int n_pins;
  lade_planner *planner; /* of a rank that decides */
  int decider;           /* the rank whose decision the plan is */
  int n_following;       /* ranks after this one that decide as it does: theirs is its decision, if it is the first */
  int n_deciders;        /* of all ranks */
  struct lade_plan_bounds bounds;
  struct lade_plan *plan;
  lade_device *device;
  lade_store *store;
  lade_durable *durable;
  bool is_recovered;        /* state, and values, are those that were found in the store */
  lade_executor *executor;
  struct session_saver *saver; /* NULL: saves hold up steps */
  double matmul_flops_per_s; /* measured in this run; 0: not */
  struct lade_checkpoint_state state;
  char resume_path[PATH_MAX]; /* of the checkpoint that this run goes on from */
};

struct lade_values lade_session_values(lade_session *session);

/* What this run's numbers depend on, for its checkpoints. */
struct lade_checkpoint_run session_run(const lade_session *session);

/* The loss scale of a run that begins. */
double session_first_scale(const lade_session *session);

/*
 * Going on from a checkpoint, in two parts (session_resume.c): find it and take its seed, before the data is opened;
 * then load its values, and tell what differs from the run that saved it. Errors as a checkpoint's.
 */
int session_resume_begin(lade_session *session, struct lade_error *error);
int session_resume(lade_session *session, const struct lade_values *values, struct lade_error *error);

/* The seed is that of the state that the run goes on from, found in @where. */
void session_seed_take(lade_session *session, const char *where);

/* Tell what differs from the run that left the state in @where, and make it this run's. */
void session_go_on(lade_session *session, const char *where);

/*
 * Durable state (session_durable.c); all but beginning do nothing without is_durable, and beginning, preparing and
 * publishing are collective. Before the data is opened: lock the files and take the state that all ranks find. With the
 * graph: pin every parameter's home, say what two slots take beside the one that the plan sees, and whether that fits.
 * With the plan: open the slots. Then publish what values and state are now. Errors as lade_durable's.
 */
int session_durable_begin(lade_session *session, struct lade_error *error);
int session_durable_pin(lade_session *session, struct lade_error *error);
uint64_t session_durable_slot(const lade_session *session); /* bytes of one slot: all state that this rank keeps */
uint64_t session_durable_extra(const lade_session *session);
uint64_t session_durable_held(const lade_session *session); /* bytes that an earlier run's state has there already */
uint64_t session_durable_published(const lade_session *session); /* bytes a step writes beside the state */
int session_durable_check_room(const lade_session *session, struct lade_error *error);
int session_durable_prepare(lade_session *session, struct lade_error *error);
int session_durable_publish(lade_session *session, struct lade_error *error);

/*
 * Of a session on a GPU, before the graph (session_gpu.c): open the device and its kernels, whose table is what the
 * graph's ops are. The device holds nothing yet. -ENODEV without the device or machine code for it, -EINVAL for what it
 * does not do: throttled links. Collective with several ranks.
 *
 * Where the host may do instead (or_host), -ENODEV of any rank is a notice at all, and the session is one on the host.
 */
int session_gpu_open(lade_session *session, struct lade_error *error);

/* Bytes of the GPU that are in use and not the arena's; 0 on other devices, or when it no longer answers. */
uint64_t session_gpu_outside(const lade_session *session);

/*
 * With prices: budgets, and the plan (session_plan.c); collective. -EOVERFLOW: none fits; -EINVAL, -ENOMEM and others
 * with a line, at all ranks where it is the word of the one that decides.
 */
int session_plan(lade_session *session, struct lade_error *error);

/*
 * What several ranks agree on while they open (session_agree.c). First that they have been asked for the same: -EINVAL
 * at a rank that differs from the first, saying how. Then what each would measure differently.
 */
int session_agree_run(lade_session *session, struct lade_error *error);
int session_agree_cost(lade_session *session, struct lade_error *error);
int session_agree_least(lade_session *session, uint64_t *bytes, struct lade_error *error);
int session_agree_stage_least(lade_session *session, uint64_t *bytes, struct lade_error *error);
/*
 * Who plans for whom: of the ranks that give the same @key (lade_plan_params_key) the first decides. Its bounds go to
 * those that follow it, and its decision, @own of @own_bytes (0: nobody follows), which is theirs to free in *ret_data;
 * at ranks that decide *ret_data stays. All are collective. -ENOMEM, and as lade_comm_run.
 */
int session_agree_decider(lade_session *session, uint64_t key, struct lade_error *error);
int session_agree_bounds(lade_session *session, struct lade_error *error);
int session_agree_decision(lade_session *session, void *own, uint64_t own_bytes, void **ret_data, uint64_t *ret_bytes,
                           struct lade_error *error);
static inline bool session_is_decider(const lade_session *s)
{
  return s->decider == s->peers.layout.rank;
}
/* What the first rank measured of its drive while the others waited becomes each rank's part of it. */
int session_share_drive(lade_session *session, struct lade_error *error);
/* Is this a plan for a machine that is described, and not for the one that we are on? */
static inline bool session_is_described(const lade_session *s)
{
  return s->params.machine && (s->params.is_dry || s->params.is_plan_only);
}
/*
 * How many ranks share this machine, unless the caller knows: those that are here, or, of a plan, all that are planned
 * for. A machine that is described is one rank's. Collective.
 */
int session_count_node_ranks(lade_session *session, struct lade_error *error);
/* With the plan: is there room for the stores of all ranks on one drive? -ENOSPC at every one of them if not. */
int session_agree_room(lade_session *session, struct lade_error *error);
/* And that their programs meet: lade_peers_prove. */
int session_agree_programs(lade_session *session, struct lade_error *error);

/*
 * Saves beside steps (session_save.c). With the executor: take the memory of their copy, if that is asked for and every
 * rank has room; collective. -ENOMEM, and as lade_comm_split. A close waits for what is under way. Bytes that it took.
 */
int session_saver_open(lade_session *session, struct lade_error *error);
void session_saver_close(struct session_saver *saver);
uint64_t session_saver_bytes(const lade_session *session);
/* Bytes of the host tier: as planned, or as they were taken. */
uint64_t session_host_bytes(const lade_session *session);

/* Are this rank's parameters other than the whole model's: parts of them, or not all? */
static inline bool session_is_cut(const lade_session *s)
{
  return lade_layout_size(&s->peers.layout, LADE_AXIS_TP) > 1 || lade_layout_size(&s->peers.layout, LADE_AXIS_PP) > 1 ||
         lade_graph_has_parts(s->graph);
}

/*
 * A rank was lost outside of a program: put @where and the step before the communicator's line, which says who. Other
 * failures have their own places. Returns @status.
 */
int session_place(const lade_session *session, const char *where, int status, struct lade_error *error);

/* This rank failed with @status and its line: tell the others. Returns @status. */
int session_fail(lade_session *session, int status, struct lade_error *error);

void session_notice(const lade_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
