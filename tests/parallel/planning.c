/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks make of it when one of them plans for long, is lost while it plans, or lacks memory for what the others
 * tell it; and how many of them share a machine's memory. ranks.py starts it.
 *
 * Usage: planning slow|sharing | abort lost|follower|memory
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/faults.h"
#include "run/session.h"
#include "tests/parallel/world.h"

#define TIMEOUT_MS 1000
#define SLOW_S 3 /* of each search; others wait a third of it for a rank that says nothing */

static int batch_make(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  (void)user;
  (void)batch;
  return lade_error_set(error, -EINVAL, "no step is taken here");
}

/* Of replicas over @comm. */
static struct lade_session_params params_make(lade_comm *comm)
{
  struct lade_session_params params;
  lade_session_defaults(&params);
  params.layers = 1;
  params.batch = lade_comm_size(comm);
  params.time = 16;
  params.steps = params.eval_iters = 0;
  params.batch_fn = batch_make;
  params.vocabulary = 256;
  params.machine = "laptop-8c";
  params.n_threads = 1;
  params.world = comm;
  params.layout = (struct lade_layout_params){.dp = lade_comm_size(comm), .zero = 1};
  return params;
}

/* Open a session over @comm, and close it again. */
static int session_try(lade_comm *comm, struct lade_faults *faults, struct lade_error *error)
{
  struct lade_session_params params = params_make(comm);
  lade_session *session = NULL;
  params.faults = faults;
  int status = lade_session_open(&params, error, &session);
  lade_session_close(session);
  return status;
}

/* ---- while one plans ---- */

static void planning_is_slow(void *user, enum lade_fault_point point)
{
  (void)user;
  if (point == LADE_FAULT_PLAN)
    nanosleep(&(struct timespec){.tv_sec = SLOW_S}, NULL);
}

static void planning_stops(void *user, enum lade_fault_point point)
{
  (void)user;
  if (point == LADE_FAULT_PLAN)
    raise(SIGSTOP);
}

/* Ranks that do not see each other, as on several nodes, wait for as long as a search takes. */
static void a_slow_search_is_waited_for(void)
{
  struct world world;
  struct lade_error error = {0};
  struct lade_faults faults;
  lade_faults_init(&faults);
  world_open_as(&world, LADE_COMM_BACKING_NONE, TIMEOUT_MS);
  faults.visit = world.rank == 0 ? planning_is_slow : NULL;
  demand(!session_try(world.comm, &faults, &error), "rank %d: %s", world.rank, error.text);
  world_close(&world);
}

/* But not for one that says nothing any more. */
static void a_lost_planner_is_found_out(void)
{
  struct world world;
  struct lade_error error = {0};
  struct lade_faults faults;
  int32_t own = getpid(), all[2] = {0};
  lade_faults_init(&faults);
  world_open_as(&world, LADE_COMM_BACKING_NONE, TIMEOUT_MS);
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_I32, .n = 1, .src = &own, .dst = all};
  demand(!lade_comm_run(world.comm, &gather, &error), "%s", error.text);
  faults.visit = world.rank == 0 ? planning_stops : NULL;
  int status = session_try(world.comm, &faults, &error);
  if (world.rank == 1) {
    demand(status == -ETIMEDOUT && strstr(error.text, "did not come within 1 s"), "%d: %s", status, error.text);
    kill(all[0], SIGCONT);
  }
}

/* ---- memory ---- */

/* Who starts them need not say how many share this machine: each has its part of the host's budget all the same. */
static void ranks_of_a_machine_share_it(void)
{
  struct world world;
  world_open(&world);
  for (int n_said = 0; n_said < 2; n_said++) {
    struct lade_session_params params = params_make(world.comm);
    struct lade_session_info info;
    struct lade_error error = {0};
    lade_session *session = NULL;
    params.n_node_ranks = n_said;
    params.has_host_budget = true;
    params.host_budget_bytes = UINT64_C(3) << 30;
    demand(!lade_session_open(&params, &error, &session), "rank %d: %s", world.rank, error.text);
    lade_session_get_info(session, &info);
    const uint64_t expected = params.host_budget_bytes / (uint64_t)(n_said ? n_said : world.size);
    demand(info.host_budget_bytes == expected, "rank %d has %llu bytes", world.rank,
           (unsigned long long)info.host_budget_bytes);
    lade_session_close(session);
  }
  world_close(&world);
}

/* Its programs are of another rank's decision, and its failure is everybody's. */
static void a_follower_that_fails_is_told(void)
{
  struct world world;
  struct lade_error error = {0};
  struct lade_faults faults;
  lade_faults_init(&faults);
  world_open(&world);
  if (world.rank == 1)
    lade_faults_arm(&faults, LADE_FAULT_PLAN, 1, false, -ENOMEM);
  int status = session_try(world.comm, &faults, &error);
  demand(status == -ENOMEM && !strcmp(error.text, "rank 1: what rank 0 decided: no memory for its programs"),
         "rank %d gets %d: %s", world.rank, status, error.text);
  demand(world.rank == 0 || lade_faults_injected(&faults) == 1, "nothing failed");
}

/* Call @nth of the heap fails at rank 1: does that end rank 0, too, as lack of memory at rank 1? */
static bool heap_fails(struct world *world, uint64_t nth)
{
  struct lade_error error = {0};
  struct lade_faults faults;
  lade_comm *part = NULL;
  lade_faults_init(&faults);
  demand(!lade_comm_split(world->comm, 0, world->rank, &error, &part), "%s", error.text);
  if (world->rank == 1)
    lade_faults_arm(&faults, LADE_FAULT_HEAP, nth, false, -ENOMEM);
  int32_t status = session_try(part, &faults, &error), first = status;
  const struct lade_collective tell = {.kind = LADE_BROADCAST, .dtype = LADE_I32, .n = 1, .src = &first, .dst = &first};
  struct lade_error why = {0};
  demand(!lade_comm_run(world->comm, &tell, &why), "%s", why.text);
  lade_comm_close(part);
  demand(world->rank == 0 || lade_faults_injected(&faults) == 1, "call %d was not made", (int)nth);
  demand(first == -ECANCELED || (status == -ENOMEM && strstr(error.text, "rank 1: no memory for") == error.text),
         "rank %d ends with %d by call %d: %s", world->rank, status, (int)nth, error.text);
  return first == -ENOMEM;
}

/* For what they agree on; the first call behind, of a device, is one rank's own, of which the others are told. */
static void a_lack_of_memory_is_voted_on(void)
{
  struct world world;
  uint64_t nth = 1;
  world_open(&world);
  while (heap_fails(&world, nth))
    nth++;
  demand(nth > 7, "rank %d: %d votes", world.rank, (int)nth - 1);
}

int main(int argc, char **argv)
{
  const char *what = argv[argc - 1];
  if (strcmp(what, "slow") == 0)
    a_slow_search_is_waited_for();
  else if (strcmp(what, "sharing") == 0)
    ranks_of_a_machine_share_it();
  else if (strcmp(what, "lost") == 0)
    a_lost_planner_is_found_out();
  else if (strcmp(what, "follower") == 0)
    a_follower_that_fails_is_told();
  else
    a_lack_of_memory_is_voted_on();
  printf("DONE\n");
  return 0;
}
