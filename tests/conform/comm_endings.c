/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that end badly, for comm.py to look at: every rank prints how its call ended; comm.c has the endings' names. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "comm_world.h"

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
  while (world.rank < world.size - 1)
    pause();
  if (pthread_create(&thread, NULL, abort_soon, NULL))
    abort();
  return thread;
}

int ending_run(const char *ending)
{
  enum { N_ENDING = 50000 };
  static float memory[2 * N_ENDING];
  float *x = world.device ? bytes_get(world.comm, sizeof(memory), true) : memory, *y = x + N_ENDING;
  struct lade_collective c = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = N_ENDING, .src = x, .dst = y};
  struct lade_error error = {0};
  const bool is_busy = strcmp(ending, "busy") == 0, is_left = strcmp(ending, "leave") == 0;
  int bad = world.size - 1, status = 0;
  for (int i = 0; i < 20 && !status; i++)
    status = lade_comm_run(world.comm, &c, &error);
  int64_t since_ns = lade_now_ns();
  if (world.rank == bad && strcmp(ending, "kill") == 0)
    kill(getpid(), SIGKILL);
  if (world.rank == bad && strcmp(ending, "stop") == 0) {
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
    exit(1);
  }
  if (world.rank == bad && is_busy) { /* twice as long as the others would wait */
    lade_comm_set_busy(world.comm, true);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 600000000}, NULL);
    lade_comm_set_busy(world.comm, false);
  }
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
    if (world.rank != bad && world.rank != 0) {
      nanosleep(&(struct timespec){.tv_sec = 1}, NULL); /* the launcher ends the job with the first of us */
      return 1;
    }
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
