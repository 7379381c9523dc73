/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small model, planned and bound to memory, for tests of the runtime's guarantees: one call for each action of a test
 * on a run, and the numbers of a run in one struct that is compared whole.
 */
#ifndef LADE_TESTS_RIG_H
#define LADE_TESTS_RIG_H

#include "base/faults.h"
#include "machine/cost.h"
#include "run/executor.h"
#include "run/session.h"

#define RUN_FIXTURE_STEPS_MAX 8

struct run_fixture_model {
  enum lade_family family; /* Llama has half as many KV heads as heads */
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
  enum lade_dtype grad_dtype;
  float dropout;
  int n_microbatches;
  int64_t layers, width, vocabulary, batch, seq_len;
  bool is_untied;          /* GPT-2 with a head of its own */
  bool has_score_form;     /* Llama: a window in layer 0, a soft cap, sinks and masked documents */
  struct lade_share share; /* this rank's share of the model */
};

/* Return two layers, 32 wide, 96 tokens known, 8 x 16 tokens; bf16, dropout 0.1. */
struct run_fixture_model run_fixture_tiny(enum lade_family family);

struct run_fixture {
  struct run_fixture_model model;
  struct lade_model_graph *graph;
  struct lade_kernels kernels;
  lade_pool *pool;
  struct lade_prices prices; /* of a fixed machine */
  uint64_t chunk_bytes;      /* of plans; 4096 for many different budgets, 2 MiB for the device's own */
  bool is_unified;
  bool optimizer_in_backward;             /* plans may update inside the backward half; steps then do not clip */
  bool is_unclipped;         /* steps do not clip */
  const struct lade_layout *layout; /* layout of several ranks, this one included; NULL: one rank */
  lade_comm *const *comms;   /* of several ranks, by axis */
  enum lade_store_engine engine;
  const char *store_dir;
  bool allow_tmpfs;
  /* state is kept in store_dir, where run_fixture_open finds it again; plans have it in the store */
  bool is_durable;
  struct lade_faults *faults; /* may be NULL */
  /* while a plan is open */
  lade_device *device;
  lade_store *store;
  lade_durable *durable;
  lade_executor *executor;
};

/* Initialise with 2 threads. Aborts if the machine refuses, because that is not under test. */
void run_fixture_init(struct run_fixture *run_fixture, const struct run_fixture_model *model);
void run_fixture_finish(struct run_fixture *run_fixture);

/*
 * Return a planner over the fixture's graph and prices, with all state in the store if it is durable; aborts on
 * failure.
 */
lade_planner *run_fixture_planner(const struct run_fixture *run_fixture, uint64_t host_bytes, uint64_t store_bytes,
                                  enum lade_recipe recipe);

/*
 * Return a proved plan from a residency, without a search; the plan owns @residency. Aborts, with the line, if the
 * proof finds an error.
 */
struct lade_plan *run_fixture_plan(const struct run_fixture *run_fixture, struct lade_residency *residency);

/*
 * Open a device of the plan's size, a store if the plan uses one, and an executor. Parameters are drawn by
 * lade_checkpoint_random, or loaded from a durable fixture's directory.
 */
int run_fixture_open(struct run_fixture *run_fixture, const struct lade_plan *plan, struct lade_error *error);
/* Plan with all state in the store and the rest of the model in memory, and open that plan. Aborts on failure. */
struct lade_plan *run_fixture_open_stored(struct run_fixture *run_fixture);
void run_fixture_close(struct run_fixture *run_fixture); /* all parts that are open */
/* Remove the state of a durable fixture. */
void run_fixture_forget(const struct run_fixture *run_fixture);

/*
 * Fill in tokens and targets of all microbatches, a function of @batch; data parallel ranks have parts of one global
 * batch.
 */
void run_fixture_tokens_fill(struct run_fixture *run_fixture, uint32_t batch);
/* Return the step block of step @i. */
struct lade_step run_fixture_step_block(const struct run_fixture *run_fixture, int i);
/* Run step @i of any run; publish it in a durable fixture. */
int run_fixture_step(struct run_fixture *run_fixture, int i, struct lade_step_result *ret_result,
                     struct lade_error *error);
int run_fixture_eval(struct run_fixture *run_fixture, double *ret_loss, struct lade_error *error);

/* Return a hash of every bit of parameters and optimizer state. */
int run_fixture_digest(struct run_fixture *run_fixture, uint64_t *ret_digest, struct lade_error *error);

/* The numbers of a run; equal runs are equal in every byte. */
struct run_fixture_numbers {
  double loss[RUN_FIXTURE_STEPS_MAX], eval[2];
  float norm[RUN_FIXTURE_STEPS_MAX], factor[RUN_FIXTURE_STEPS_MAX];
  uint64_t digest;
};

/* Evaluate, run @n_steps steps, evaluate, digest. */
int run_fixture_run(struct run_fixture *run_fixture, int n_steps, struct run_fixture_numbers *ret_numbers,
                    struct lade_error *error);

/* Return a directory of the test's own in the current one, removed at exit; NULL if it cannot be made. */
const char *run_fixture_directory(void);

/* Return NULL if a store with direct I/O can be opened in the current directory, else the reason why not. */
const char *run_fixture_store_refusal(enum lade_store_engine engine);

/*
 * Return the parameters of a session that opens in milliseconds: a model of two layers on a described machine, on one
 * thread. The caller adds data (data or batch_fn), or makes the session dry or planned only.
 */
static inline struct lade_session_params run_fixture_session_params(void)
{
  struct lade_session_params params;
  lade_session_defaults(&params);
  params.layers = 2;
  params.vocabulary = 64;
  params.batch = 4;
  params.micro_batch = 2;
  params.seq_len = 16;
  params.machine = "laptop-8c"; /* described: nothing is measured */
  params.n_threads = 1;
  return params;
}

/* Return an open session, which the caller destroys. An error ends the program with its text. */
lade_session *run_fixture_session_open(const struct lade_session_params *params);

#endif
