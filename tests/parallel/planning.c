/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs in which one rank plans for a long time, or is lost while it plans. In others its machine refuses it a call
 * before the first step. Further, how the ranks of a machine share its memory, and which run measures their links.
 * ranks.py starts it.
 *
 * Usage: planning slow|sharing|links | abort lost|follower|votes
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
#include "machine/cluster.h"
#include "run/session.h"
#include "tests/parallel/world.h"
#include "tests/support/scratch.h"

#define TIMEOUT_MS 1000
#define CALLS_ONE_BY_ONE 16
#define SLOW_S 3 /* of each search; other ranks wait a third of it for a silent rank */

static int batch_make(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  (void)user;
  (void)batch;
  return lade_error_set(error, -EINVAL, "no step is taken here");
}

/* Make parameters of replicas over @comm. */
static struct lade_session_params params_make(lade_comm *comm)
{
  struct lade_session_params params;
  lade_session_defaults(&params);
  params.layers = 1;
  params.batch = lade_comm_size(comm);
  params.seq_len = 16;
  params.steps = params.eval_iters = 0;
  params.batch_fn = batch_make;
  params.vocabulary = 256;
  params.machine = "laptop-8c";
  params.n_threads = 1;
  params.world = comm;
  params.layout = (struct lade_layout_params){.dp = lade_comm_size(comm), .zero = 1};
  return params;
}

/* Open a session, and close it again. */
static int session_open_with(struct lade_session_params *params, struct lade_faults *faults, struct lade_error *error)
{
  lade_session *session = NULL;
  params->faults = faults;
  int status = lade_session_open(params, error, &session);
  params->faults = NULL;
  lade_session_close(session);
  return status;
}

/* The same for replicas over @comm. */
static int session_try(lade_comm *comm, struct lade_faults *faults, struct lade_error *error)
{
  struct lade_session_params params = params_make(comm);
  return session_open_with(&params, faults, error);
}

/* ---- while one rank plans ---- */

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

/* Ranks that do not see each other's process, as on several nodes, wait for as long as a search takes. */
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

/*
 * Say that this rank is through, let the process @other of this machine go on, and stay until it has ended. The first
 * process that ends after a fault of a communicator makes mpirun end the others.
 */
static void rank_outlive(pid_t other)
{
  printf("DONE\n");
  fflush(stdout);
  kill(other, SIGCONT);
  for (int i = 0; i < 1000 && kill(other, 0) == 0; i++)
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
  _exit(0);
}

/* A rank that has stopped responding is not waited for. */
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
    rank_outlive(all[0]);
  }
}

/* ---- memory ---- */

/* The launcher need not state how many ranks share this machine: each gets its part of the host's budget. */
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

/* A follower builds programs from another rank's decision, and its failure ends all ranks. */
static void a_follower_that_fails_is_reported(void)
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

/* ---- links ---- */

/* Take a directory for measurements, the same at all ranks. */
static void cache_take(const struct world *world, char dir[SCRATCH_BYTES])
{
  struct lade_error error = {0};
  if (world->rank == 0)
    scratch_make(dir, false);
  const struct lade_collective tell = {.kind = LADE_BROADCAST, .dtype = LADE_U8, .n = SCRATCH_BYTES, .src = dir,
                                       .dst = dir};
  char *whole = NULL;
  demand(!lade_comm_run(world->comm, &tell, &error), "%s", error.text);
  whole = realpath(dir, NULL);
  demand(whole && !setenv("XDG_CACHE_HOME", whole, 1), "no place for measurements");
  free(whole);
}

/*
 * Open a session, end it as a run of @run_ns does, and return if links priced it. Their price is of a rank's node, not
 * of the copies to the host.
 */
static bool run_with_links(const struct world *world, int64_t run_ns)
{
  struct lade_session_params params = params_make(world->comm);
  struct lade_session_info info;
  struct lade_error error = {0};
  lade_session *session = NULL;
  params.machine = NULL;
  demand(!lade_session_open(&params, &error, &session), "rank %d: %s", world->rank, error.text);
  lade_session_get_info(session, &info);
  const struct lade_cluster_links *links = info.cost->links;
  const double ns_per_byte = info.prices->comm[LADE_AXIS_DP].ns_per_byte;
  demand(!links || links->gather[LADE_AXIS_DP].ns_per_byte == ns_per_byte, "rank %d has another price", world->rank);
  demand(!lade_session_keep_links(session, run_ns, &error), "rank %d: %s", world->rank, error.text);
  lade_session_close(session);
  return links != NULL;
}

/* A run of a minute measures the links between its ranks after its end, once, and the next run is priced by them. */
static void a_long_run_keeps_its_links(void)
{
  const int64_t minute_ns = INT64_C(60000000000);
  char dir[SCRATCH_BYTES] = "";
  struct world world;
  world_open(&world);
  cache_take(&world, dir);
  demand(!run_with_links(&world, minute_ns - 1), "links that nobody measured");
  demand(!run_with_links(&world, minute_ns), "a short run has measured");
  demand(run_with_links(&world, minute_ns), "a long run has kept no links");
  demand(run_with_links(&world, 0), "kept links are lost");
  if (world.rank == 0) /* which alone reads and writes them */
    scratch_remove(dir);
  world_close(&world);
}

/*
 * Fail call @nth of a session to the machine at rank 1. Check that all ranks end with its error and message, or, if the
 * call is repeated or optional, with success. True if there was such a call.
 */
static bool call_fails(struct world *world, struct lade_session_params *params, uint64_t nth)
{
  struct lade_error error = {0}, why = {0};
  struct lade_faults faults;
  lade_comm *part = NULL;
  lade_faults_init(&faults);
  demand(!lade_comm_split(world->comm, 0, world->rank, &error, &part), "%s", error.text);
  if (world->rank == 1)
    lade_faults_arm(&faults, LADE_FAULT_ANY, nth, false, -ENOMEM);
  params->world = part;
  const int status = session_open_with(params, &faults, &error);
  int32_t word[2] = {status, (int32_t)lade_faults_injected(&faults)}; /* rank 1's, at all ranks */
  const struct lade_collective tell = {.kind = LADE_BROADCAST, .dtype = LADE_I32, .n = 2, .peer = 1, .src = word,
                                       .dst = word};
  demand(!lade_comm_run(world->comm, &tell, &why), "%s", why.text);
  lade_comm_close(part);
  demand(status == word[0] && (!status || strstr(error.text, "rank 1: ") == error.text),
         "rank %d ends with %d by call %d, and rank 1 with %d: %s", world->rank, status, (int)nth, (int)word[0],
         error.text);
  demand(!status || word[1] == 1, "rank 1 fails by itself: %s", error.text);
  return word[1] == 1;
}

/* Fail the first calls one by one, later ones in growing steps. */
static void calls_fail(struct world *world, struct lade_session_params *params, const char *label)
{
  uint64_t nth = 1;
  while (call_fails(world, params, nth))
    nth += nth < CALLS_ONE_BY_ONE ? 1 : nth / 3;
  demand(nth > 10, "rank %d: %d calls of %s", world->rank, (int)nth, label);
  if (world->rank == 0)
    printf("%s: fewer than %d calls\n", label, (int)nth);
  fflush(stdout);
}

/* A new run, one with a store and async saves, and a resumed one. */
static void what_fails_at_one_rank_is_voted_on(void)
{
  struct world world;
  struct lade_error error = {0};
  lade_session *session = NULL;
  world_open(&world);
  struct lade_session_params params = params_make(world.comm);
  params.recipe = LADE_RECIPE_FULL; /* no rank searches */
  calls_fail(&world, &params, "a run");
  params.world = world.comm;
  demand(!lade_session_open(&params, &error, &session), "%s", error.text);
  demand(!lade_session_save(session, "planning-saves", 1, &error), "%s", error.text);
  lade_session_close(session);
  params.resume = "planning-saves";
  calls_fail(&world, &params, "a run that goes on");
  params.resume = NULL;
  params.budget = (struct lade_budget){.kind = LADE_BUDGET_MIN};
  params.has_host_budget = true; /* of zero bytes: the store takes values beyond the budget */
  params.store = ".";
  params.allow_tmpfs = params.async_save = true;
  params.store_budget_bytes = UINT64_C(1) << 28;
  calls_fail(&world, &params, "a run with a store");
}

int main(int argc, char **argv)
{
  const char *scenario = argv[argc - 1];
  if (strcmp(scenario, "slow") == 0)
    a_slow_search_is_waited_for();
  else if (strcmp(scenario, "sharing") == 0)
    ranks_of_a_machine_share_it();
  else if (strcmp(scenario, "links") == 0)
    a_long_run_keeps_its_links();
  else if (strcmp(scenario, "lost") == 0)
    a_lost_planner_is_found_out();
  else if (strcmp(scenario, "follower") == 0)
    a_follower_that_fails_is_reported();
  else if (strcmp(scenario, "votes") == 0)
    what_fails_at_one_rank_is_voted_on();
  printf("DONE\n");
  return 0;
}
