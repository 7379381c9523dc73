/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board of a job: memory of `lade launch` that its ranks write on, so that what a rank knew outlives it and one
 * process says it, once. Ranks find it through LADE_LAUNCH_BOARD; those that were started by something else, or by
 * another version, have none.
 */
#ifndef LADE_BOARD_H
#define LADE_BOARD_H

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lade/types.h"
#include "parallel/layout.h"

#define BOARD_WORDS_BYTES 4096

/* Where a job's checkpoints are: of --save, of --resume. */
enum { BOARD_SAVE, BOARD_RESUME, BOARD_N_PLACES };

/* A checkpoint's directory, to tell it from another one of its name; zeros: none. */
struct board_checkpoint {
  uint64_t device, node;
};

struct board_rank {
  _Atomic pid_t pid;                   /* 0: it has not begun */
  volatile sig_atomic_t signal_number; /* that it was sent, SIGINT or SIGTERM; set by its handler */
  atomic_int has_left;                 /* by itself: what follows is there */
  int64_t left_ns;
  struct lade_error error; /* code 0: well; no text: it has spoken itself */
};

struct board {
  uint64_t version;
  int n_ranks;
  /* Of the launcher, before a start. */
  int n_restarts;
  bool is_layout_given;
  struct lade_layout_params layout; /* to take, if it is given; else the first rank says what it took */
  /* Of the first rank. */
  int64_t n_rows, micro_rows; /* of a step's batch, and as --micro-batch has it */
  char places[BOARD_N_PLACES][PATH_MAX]; /* absolute; "": not given */
  char words[BOARD_WORDS_BYTES];         /* behind "train", of the line that goes on (go_on.h); "": not known */
  _Atomic int64_t first_step; /* at which this start began; -1: no step has begun */
  _Atomic int64_t begun_ns;   /* when it did */
  _Atomic int64_t n_steps;    /* done since step 0 */
  _Atomic int64_t saving_step; /* whose save it began last, in any start; -1: none */
  struct board_checkpoint replaced; /* what had that one's name before, perhaps of another run */
  _Atomic int64_t saved_step; /* whose save it saw whole last; -1: none of this job's */
  _Atomic int64_t saved_ns;   /* when that one took its values; 0: there is none */
  struct board_rank ranks[];
};

/* The launcher's, for @n_ranks, and its place in the environment for what is started. -ENOMEM and others. */
int board_create(int n_ranks, struct board **ret_board);
void board_destroy(struct board *board);

/* Before a start: nobody has begun. */
void board_clear(struct board *board, int n_ranks);

/* This rank's view of its job's board, from the environment; NULL: there is none. It stays until the process ends. */
struct board *board_find(int rank, int n_ranks);

/*
 * Wait until all ranks have begun: MPI's own start waits for ever for one that ended before. -ETIMEDOUT, -EPIPE
 * and, where it left by itself, -ECANCELED with the rank. Blocks for @timeout_s.
 */
int board_meet(const struct board *board, double timeout_s, struct lade_error *error);

/* Wait until the first rank has left, at most @most_ns. */
void board_await_first(const struct board *board, int64_t most_ns);

/* Rank @rank leaves by itself with @code, and words if that is an error. */
void board_leave(struct board *board, int rank, int code, const char *text);

/* Send a signal to the ranks that have begun and not left; how many those are. May be called by a handler. */
int board_signal(const struct board *board, int signal_number);

/* The first rank's: a save of @step into --save begins, and is whole, with values that were taken at @taken_ns. */
void board_save_begin(struct board *board, int64_t step);
void board_save_end(struct board *board, int64_t step, int64_t taken_ns);

/* The step of the newest checkpoint in --save that is of this job, of all that --save may hold; -1: it has none. */
int64_t board_find_save(const struct board *board);

/*
 * How a start ended. Of several words the first of somebody who failed by himself count, then of somebody who saw
 * another one go, then of somebody who was told.
 */
struct board_verdict {
  struct lade_error error; /* code 0: nobody said anything */
  bool is_own;             /* a rank failed by itself: it would again */
  int n_well;              /* ranks that left by themselves without an error */
  int n_begun, n_lost;     /* ranks; of them (and of those that never began) gone without a word and not sent away */
  int first_lost;          /* -1: none */
};
void board_judge(const struct board *board, struct board_verdict *ret_verdict);

#endif
