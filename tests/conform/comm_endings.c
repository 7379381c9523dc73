/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that fail, judged by comm.py: every rank prints how its call ended; comm.c lists the endings.
 *
 * The tests do not depend on a rank's speed. One rule remains: a busy rank must say so, and then come within the short
 * timeout of the others. Ranks open and warm up with a timeout long enough for a loaded machine; the short one begins
 * with the call that must end by it. A rank that has printed its status waits for the launcher to end it, which happens
 * once another rank has left with an error.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "comm_world.h"
#include "parallel/comm/comm_nccl_internal.h"

/* Set the timeout for members from here on: of the engine, and of NCCL's second communicator. */
static void patience_set(int timeout_ms)
{
  world.comm->params.timeout_ms = timeout_ms;
  if (world.params.engine == LADE_COMM_NCCL)
    ((struct nccl_comm *)world.comm)->control->params.timeout_ms = timeout_ms;
}

/* Wait until the launcher ends this process, ignoring its first signal, SIGTERM. */
static _Noreturn void end_await(void)
{
  for (;;)
    pause();
}

/* Print the error that ended this rank's call, and the time since the failure was caused. */
static void ending_print(int status, const struct lade_error *error, int64_t since_ns)
{
  bool speaks = lade_comm_is_speaker(world.comm);
  printf("END rank %d: %d after %lld ms%s: %s\n", world.rank, status, (long long)((lade_now_ns() - since_ns) / 1000000),
         speaks ? ", speaks" : "", error->text);
  fflush(stdout);
}

static void *abort_soon(void *user)
{
  (void)user;
  nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
  lade_comm_abort(world.comm, "no memory left");
  return NULL;
}

/*
 * Begin a thread in which the last rank gives up, while it waits for ranks that never come. MPI, or the launcher, ends
 * the others.
 */
static pthread_t leaving_begin(void)
{
  pthread_t thread;
  if (world.rank < world.size - 1)
    end_await();
  if (pthread_create(&thread, NULL, abort_soon, NULL))
    abort();
  return thread;
}

/* If @is_bad, join the call only after twice the other ranks' timeout, having reported this rank as busy before. */
static int busy_run(const struct lade_collective *c, bool is_bad, struct lade_error *error)
{
  if (is_bad) {
    lade_comm_set_busy(world.comm, true);
    nanosleep(&(struct timespec){.tv_sec = 2 * ENDING_LATE_MS / 1000}, NULL);
    lade_comm_set_busy(world.comm, false);
  }
  int status = lade_comm_run(world.comm, c, error);
  patience_set(ENDING_PATIENCE_MS);
  return status;
}

/*
 * Rank 1 sends to the last rank, to which NCCL has not connected it: the call blocks until the peer's comes. The last
 * rank ends meanwhile, or never calls.
 */
static void unmet_begin(const char *ending, struct lade_collective *ret_call, float *x, int bad)
{
  if (world.rank == bad && strcmp(ending, "unmet") == 0) {
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* mostly rank 1 is in its call by then */
    kill(getpid(), SIGKILL);
  }
  if (world.rank != 1)
    end_await();
  if (strcmp(ending, "unmet-late") == 0)
    patience_set(ENDING_LATE_MS);
  *ret_call = (struct lade_collective){.kind = LADE_SEND, .dtype = LADE_F32, .n = 10, .peer = bad, .src = x};
}

int ending_run(const char *ending)
{
  enum { N_ENDING = 50000 };
  static float memory[2 * N_ENDING];
  float *x = world.device ? bytes_get(world.comm, sizeof(memory), true) : memory, *y = x + N_ENDING;
  struct lade_collective c = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = N_ENDING, .src = x, .dst = y};
  struct lade_error error = {0};
  const bool is_busy = strcmp(ending, "busy") == 0, is_left = strcmp(ending, "leave") == 0;
  const bool is_stop = strcmp(ending, "stop") == 0;
  int bad = world.size - 1, status = 0;
  for (int i = 0; i < 20 && !status; i++)
    status = lade_comm_run(world.comm, &c, &error);
  if (is_busy || is_stop)
    patience_set(ENDING_LATE_MS);
  int64_t since_ns = lade_now_ns();
  if (world.rank == bad && strcmp(ending, "kill") == 0)
    kill(getpid(), SIGKILL);
  if (world.rank == bad && is_stop)
    end_await();
  if (is_busy)
    status = status ? status : busy_run(&c, world.rank == bad, &error);
  if (world.rank == bad && strcmp(ending, "abort") == 0) {
    lade_comm_abort(world.comm, "no memory left");
    lade_comm_abort(world.comm, "a consequence of that"); /* the others read the first reason, however late */
  }
  if (world.rank == bad && strcmp(ending, "mismatch") == 0)
    c.n = 49999;
  if (world.rank == bad && strcmp(ending, "order") == 0)
    c.kind = LADE_BROADCAST;
  for (int i = 0; i < 20 && !status && strcmp(ending, "split") == 0; i++) {
    lade_comm *part = NULL;
    status = lade_comm_split(world.comm, world.rank / 2, 0, &error, &part);
    lade_comm_close(part);
  }
  if (strcmp(ending, "short") == 0) {
    c = (struct lade_collective){.kind = world.rank == bad ? LADE_SEND : LADE_RECV, .dtype = LADE_F32, .src = x,
                                 .dst = y, .n = world.rank == bad ? 10 : 20, .peer = world.rank == bad ? 0 : bad};
    if (world.rank != bad && world.rank != 0)
      end_await();
  }
  if (strcmp(ending, "unmet") == 0 || strcmp(ending, "unmet-late") == 0)
    unmet_begin(ending, &c, x, bad);
  const pthread_t leaving = is_left ? leaving_begin() : pthread_self();
  for (int i = 0; i < (is_busy ? 20 : 1000000) && !status; i++)
    status = lade_comm_run(world.comm, &c, &error);
  if (world.rank == bad && strcmp(ending, "short") == 0)
    return 1; /* its sends succeed until the receiver is gone */
  if (is_left)
    pthread_join(leaving, NULL);
  ending_print(status, &error, since_ns);
  struct lade_error again = {0};
  c.n = 1;
  if (lade_comm_run(world.comm, &c, &again) != status || strcmp(again.text, error.text))
    printf("END rank %d: a second call said otherwise: %s\n", world.rank, again.text);
  if (world.device)
    lade_comm_free(world.comm, x);
  world_close();
  return 1;
}
