/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small model, planned and bound to memory, for tests of what the runtime promises: one call for each thing
 * that a test does with a run, and the numbers of a run in one struct that is compared whole.
 */
#ifndef LADE_TESTS_RIG_H
#define LADE_TESTS_RIG_H

#include "base/faults.h"
#include "plan/cost.h"
#include "run/executor.h"

#define RIG_MAX_STEPS 8

struct rig_model {
  enum lade_family family; /* Llama has half as many key heads as heads */
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  enum lade_dtype grad_dtype;
  float dropout;
  int n_microbatches;
  int64_t layers, width, vocabulary, batch, time;
  bool is_untied;          /* GPT-2 with a head of its own */
  struct lade_share share; /* of the model, that this rank has */
};

/* Two layers, 32 wide, 96 tokens known, 8 x 16 tokens; bf16, dropout 0.1. */
struct rig_model rig_tiny(enum lade_family family);

struct rig {
  struct rig_model model;
  struct lade_graph *graph;
  struct lade_kernels kernels;
  lade_pool *pool;
  struct lade_prices prices; /* of a machine that never changes */
  uint64_t chunk_bytes;      /* of plans; 4096 to have many budgets, 2 MiB to have the device's */
  bool is_unified;
  bool is_early;             /* plans may update inside the backward half; steps then do not clip */
  bool is_unclipped;         /* nor do they here */
  const struct lade_layout *layout; /* several ranks: this one of them; NULL: one */
  lade_comm *const *comms;   /* then: by axis */
  enum lade_store_engine engine;
  const char *store_dir;
  bool allow_tmpfs;
  bool is_durable;           /* state is kept in store_dir, where rig_open finds it again; plans have it in the store */
  struct lade_faults *faults; /* may be NULL */
  /* while a plan is open */
  lade_device *device;
  lade_store *store;
  lade_durable *durable;
  lade_executor *executor;
};

/* Aborts when the machine refuses: it is not what is tested. Threads: 2. */
void rig_init(struct rig *rig, const struct rig_model *model);
void rig_finish(struct rig *rig);

/* A planner over the rig's graph and prices, all homes in the store if it is durable; aborts on failure. */
lade_planner *rig_planner(const struct rig *rig, uint64_t host_bytes, uint64_t store_bytes, enum lade_recipe recipe);

/*
 * A proved plan from a residency, which becomes the plan's: no search. Aborts, with the line, if the proof finds
 * a fault.
 */
struct lade_plan *rig_plan(const struct rig *rig, struct lade_residency *residency);

/*
 * Device of the plan's size, store if it uses one, executor; parameters as lade_checkpoint_random draws them, or as
 * they were left in a durable rig's directory.
 */
int rig_open(struct rig *rig, const struct lade_plan *plan, struct lade_error *error);
void rig_close(struct rig *rig); /* whatever there is */
/* What a durable rig has left, no longer. */
void rig_forget(const struct rig *rig);

/* Tokens and targets of all microbatches, a function of @batch; data parallel ranks have parts of one global batch. */
void rig_tokens_fill(struct rig *rig, uint32_t batch);
/* The step block of step @i. */
struct lade_step rig_step_block(const struct rig *rig, int i);
/* Step @i of any run; published in a durable rig. */
int rig_step(struct rig *rig, int i, struct lade_step_result *ret_result, struct lade_error *error);
int rig_eval(struct rig *rig, double *ret_loss, struct lade_error *error);

/* Hash of every bit of parameters and optimizer state. */
int rig_digest(struct rig *rig, uint64_t *ret_digest, struct lade_error *error);

/* The numbers of a run; equal runs are equal in every byte. */
struct rig_numbers {
  double loss[RIG_MAX_STEPS], eval[2];
  float norm[RIG_MAX_STEPS], factor[RIG_MAX_STEPS];
  uint64_t digest;
};

/* Evaluate, @n_steps steps, evaluate, digest. */
int rig_run(struct rig *rig, int n_steps, struct rig_numbers *ret_numbers, struct lade_error *error);

/* A directory of our own in the current one, removed at exit; NULL if it cannot be had. */
const char *rig_directory(void);

/* NULL if a store can be opened in the current directory past the page cache, else why not. */
const char *rig_store_refusal(enum lade_store_engine engine);

#endif
