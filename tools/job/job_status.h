/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status table of a job: memory of `lade launch` that its ranks write to. It outlives the ranks, so that the
 * launcher can report a failure once. Ranks find it through LADE_LAUNCH_BOARD. Ranks of another launcher, or of another
 * version, have none.
 */
#ifndef LADE_JOB_STATUS_H
#define LADE_JOB_STATUS_H

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lade/types.h"
#include "parallel/layout.h"

#define JOB_STATUS_WORDS_BYTES 4096 /* of the resuming command; a longer one is not reported */
#define JOB_STATUS_VERB_BYTES 16    /* longer than the name of any verb */

/* Directories of a job's checkpoints: of --save, of --resume. */
enum { JOB_STATUS_SAVE, JOB_STATUS_RESUME, JOB_STATUS_N_PLACES };

/* Identity of a checkpoint's directory, which tells it from another one of its name; zeros: none. */
struct job_status_checkpoint {
  uint64_t device, node;
};

struct job_status_rank {
  char verb[JOB_STATUS_VERB_BYTES];    /* of its command, for messages: "train"; valid once it has begun */
  _Atomic pid_t pid;                   /* 0: it has not begun */
  volatile sig_atomic_t signal_number; /* signal that it received, SIGINT, SIGTERM or SIGHUP; set by its handler */
  atomic_int has_left;                 /* it left by itself: the fields below are valid */
  int64_t left_ns;
  struct lade_error error; /* code 0: success; no text: the rank has printed its message */
  bool is_survivor; /* set by the launcher: it was alive when another rank was lost, or when mpirun had ended */
};

struct job_status {
  uint64_t version;
  int n_ranks;
  /* Written by the launcher before a start. */
  int n_restarts;
  bool is_layout_given;
  struct lade_layout_params layout; /* the layout to use, if given; else the first rank writes the layout that it
                                       used */
  /* Written by the first rank. */
  int64_t n_rows, micro_rows; /* rows of a step's batch, and of --micro-batch */
  char places[JOB_STATUS_N_PLACES][PATH_MAX]; /* absolute; "": not given */
  char words[JOB_STATUS_WORDS_BYTES];  /* arguments after "train" of the command that resumes (resume_command.h);
                                          "": unknown */
  _Atomic int64_t first_step; /* step at which this start began; -1: no step has begun */
  _Atomic int64_t begun_ns;   /* when the first rank began that step */
  _Atomic int64_t n_steps;    /* steps done since step 0 */
  _Atomic int64_t saving_step; /* step of the save begun last, in any start; -1: none */
  struct job_status_checkpoint replaced; /* former checkpoint of that name, perhaps of another run */
  _Atomic int64_t saved_step; /* step of the last save seen complete; -1: none of this job */
  _Atomic int64_t saved_ns;   /* when that save took its values; 0: there is none */
  atomic_int has_results;     /* the summary, --timeline and --html are written, and standard output is flushed */
  struct job_status_rank ranks[];
};

/*
 * Create the launcher's table for @n_ranks ranks, and name it in the environment of child processes. -ENOMEM and
 * others.
 */
int job_status_create(int n_ranks, struct job_status **ret_status);
void job_status_destroy(struct job_status *table);

/* Clear the table before a start: no rank has begun. */
void job_status_clear(struct job_status *table, int n_ranks);

/*
 * Map this process's view of its job's table, found through the environment; NULL: none. It stays mapped until the
 * process ends.
 */
struct job_status *job_status_find(int n_ranks);

/*
 * Record that rank @rank, this process, has begun @verb. pre: SIGTERM is marked (signals_mark), which distinguishes it
 * from a kill.
 */
void job_status_begin(struct job_status *table, int rank, const char *verb);

/*
 * Wait until all ranks have begun, because MPI's own start waits without bound for a rank that ended before it.
 * -ETIMEDOUT, -EPIPE (a rank was killed) or -ECANCELED (it left by itself), with the rank. Blocks for at most
 * @timeout_s.
 */
int job_status_meet(const struct job_status *table, double timeout_s, struct lade_error *error);

/* Wait until the first rank has left, for at most @max_ns. */
void job_status_await_first(const struct job_status *table, int64_t max_ns);

/* Record that rank @rank leaves by itself with @code, and with @text if that is an error. */
void job_status_leave(struct job_status *table, int rank, int code, const char *text);

/* Send a signal to the ranks that have begun and not left. Return their number. Async-signal-safe. */
int job_status_signal(const struct job_status *table, int signal_number);

/*
 * Note, on the first rank, that a save of @step into --save begins, or that it is complete with values taken at
 * @taken_ns.
 */
void job_status_save_begin(struct job_status *table, int64_t step);
void job_status_save_end(struct job_status *table, int64_t step, int64_t taken_ns);

/* Return the step of this job's newest checkpoint in --save, ignoring those of other runs; -1: none. */
int64_t job_status_find_save(const struct job_status *table);

/*
 * The result of a start. The first message of a rank that failed by itself takes precedence, then one of a rank that
 * saw another rank end, then one of a rank that was notified.
 */
struct job_verdict {
  struct lade_error error; /* code 0: no rank left a message */
  const char *verb;        /* verb of the first rank that has begun, owned by the table; NULL: none has */
  bool is_own;             /* a rank failed by itself: a restart would fail too */
  bool has_results;        /* written before any rank was lost */
  int n_succeeded;         /* ranks that left by themselves without an error */
  int n_begun;
  int n_unbegun;           /* mpirun ends unbegun ranks when it loses one, so at most one of them is itself lost */
  int n_lost;              /* of n_begun: ended without a message, not stopped by a signal, and no survivor */
  int first_lost;          /* of n_lost, else of n_unbegun; -1: none */
};
void job_status_judge(const struct job_status *table, struct job_verdict *ret_verdict);

#endif
