/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that end badly, for comm.py to look at: every rank prints how its call ended; comm.c has the endings' names.
 *
 * Nothing here relies on how fast a rank is, but that one which is busy says so, and then comes, within the short
 * patience of the others. Ranks open and warm up with patience enough for a machine that does much else, and a short
 * one begins with the call that is to end by it. Who has nothing more to say waits for the launcher to end it, which it
 * does once another rank has left with an error.
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
#include "parallel/comm_nccl_internal.h"

/* For how long members are waited for from here on: by the engine, and by NCCL's other communicator beside it. */
static void patience_set(int timeout_ms)
{
  world.comm->params.timeout_ms = timeout_ms;
  if (world.params.engine == LADE_COMM_NCCL)
    ((struct nccl_comm *)world.comm)->control->params.timeout_ms = timeout_ms;
}

/* Until the launcher ends this process: it passes over its first, polite, signal. */
static _Noreturn void end_await(void)
{
  for (;;)
    pause();
}

/* What ended this rank's call, and how long it took since the deed was done. */
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

/* The last rank waits for others who never come, and gives up meanwhile; MPI, or the launcher, ends them. */
static pthread_t leaving_begin(void)
{
  pthread_t thread;
  if (world.rank < world.size - 1)
    end_await();
  if (pthread_create(&thread, NULL, abort_soon, NULL))
    abort();
  return thread;
}

/* The @bad rank comes to a call twice as late as the others would wait for it, and has said that it is busy. */
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
  if (world.rank == bad && strcmp(ending, "abort") == 0)
    lade_comm_abort(world.comm, "no memory left");
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
  const pthread_t leaving = is_left ? leaving_begin() : pthread_self();
  for (int i = 0; i < (is_busy ? 20 : 1000000) && !status; i++)
    status = lade_comm_run(world.comm, &c, &error);
  if (world.rank == bad && strcmp(ending, "short") == 0)
    return 1; /* its sends go well until the receiver is gone */
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
