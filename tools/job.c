/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining and leaving a job of several ranks.
 *
 * A failure is told once: on the launcher's board, of which it tells what says most; without one all ranks of a node
 * end with it, and the communicator says which of them speaks. The job's exit code is then that of the first rank that
 * ends with one, as mpirun has it, so ranks that only heard of a failure let the one that had it go first.
 */
#include "tools/job.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/thread.h"
#include "tools/signals.h"
#include "tools/verbs.h"

#define HEARSAY_US 400000 /* twice what closing a failed communicator takes the rank that failed */
#define MPIRUN_US 2000000 /* mpirun ends the other ranks sooner than that when the first one has failed */

extern char **environ;

int job_read(struct job *job, struct lade_error *error)
{
  *job = (struct job){.launch = {.world = 1}};
  int status = lade_launch_read(environ, error, &job->launch);
  if (!status && job->launch.launcher != LADE_LAUNCHER_NONE)
    job->board = board_find(job->launch.rank, job->launch.world);
  if (job->board)
    signals_mark(&job->board->ranks[job->launch.rank].signal_number);
  return status;
}

/* Let what is written to stdout go nowhere, until stdout_restore gets what this returns. -1: it still goes. */
static int stdout_drop(void)
{
  const int before = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (before >= 0 && nowhere >= 0)
    dup2(nowhere, STDOUT_FILENO);
  if (nowhere >= 0)
    close(nowhere);
  return before;
}

static void stdout_restore(int before)
{
  if (before < 0)
    return;
  fflush(stdout);
  dup2(before, STDOUT_FILENO);
  close(before);
}

/*
 * Without a board, of what every rank may have met: the first says it; another one does if it is here still when the
 * first would have ended the job. srun, which ends none, has a first rank for sure. Returns the exit code.
 */
static int failure_say(const struct job *job, const char *verb, int status, const struct lade_error *error)
{
  if (!job_is_first(job))
    usleep(MPIRUN_US);
  if (job_is_first(job) || (job->launch.launcher != LADE_LAUNCHER_SRUN && !signals_get()))
    return exit_fail(verb, status, error);
  return exit_code(status);
}

/*
 * Options are wrong, mostly at all ranks alike: then the first one's words count, for which the others wait. They are
 * for the launcher to say, since mpirun may lose what a rank has written right before it ended. Returns the exit code.
 */
static int options_fail(const struct job *job, enum verb_id verb, int status, const struct lade_error *error)
{
  struct lade_error own = *error;
  if (!job_is_first(job))
    lade_error_set(&own, status, "rank %d has options that cannot be: %s", job->launch.rank, error->text);
  if (!job->board)
    return failure_say(job, verb_name(verb), status, &own);
  if (!job_is_first(job))
    board_await_first(job->board, HEARSAY_US * INT64_C(1000));
  board_leave(job->board, job->launch.rank, status, own.text);
  return exit_code(status);
}

int job_options_read(const struct job *job, enum verb_id verb, int argc, char **argv, struct options *options)
{
  struct lade_error error = {0};
  const int out = job_is_first(job) ? -1 : stdout_drop(); /* help is said once */
  const int status = options_parse(verb, argc, argv, options, &error);
  stdout_restore(out);
  if (status < 0)
    return options_fail(job, verb, status, &error);
  if (status == OPTIONS_ANSWERED && job->board)
    board_leave(job->board, job->launch.rank, 0, NULL);
  return status == OPTIONS_ANSWERED ? LADE_EXIT_DONE : OPTIONS_GO;
}

static void note_print(void *user, const char *line)
{
  (void)user;
  message_print("note", line);
}

/* The plug-in of a build that is not installed lies below the program. */
static void plugin_find(void)
{
  static const char *const places[] = {"liblade-mpi.so", "src/parallel/liblade-mpi.so"};
  char path[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  path[LADE_MAX(n, 0)] = 0;
  char *name = strrchr(path, '/');
  for (size_t i = 0; i < LADE_COUNT(places) && name && !getenv("LADE_MPI_PLUGIN"); i++) {
    const size_t room = sizeof(path) - (size_t)(name + 1 - path);
    if ((size_t)snprintf(name + 1, room, "%s", places[i]) < room && access(path, R_OK) == 0)
      setenv("LADE_MPI_PLUGIN", path, 1);
  }
}

/* A watch over MPI's start, which waits for ever for a rank that ended without it, and which no call leaves. */
struct vigil {
  const struct job *job;
  double timeout_s;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  bool has_ended;
};

static void vigil_fail(const struct vigil *vigil)
{
  const struct job *job = vigil->job;
  struct lade_error error = {0};
  lade_error_set(&error, -ETIMEDOUT, "the ranks of this job have not met within %g s: one of its %d has ended, or "
                 "never began", vigil->timeout_s, job->launch.world);
  if (job->board)
    board_leave(job->board, job->launch.rank, -ETIMEDOUT, error.text);
  else
    failure_say(job, "train", -ETIMEDOUT, &error);
  _exit(LADE_EXIT_FAILED);
}

static void *vigil_keep(void *user)
{
  struct vigil *vigil = user;
  struct timespec until;
  int status = 0;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t)vigil->timeout_s + 1;
  pthread_mutex_lock(&vigil->lock);
  while (!vigil->has_ended && !status)
    status = pthread_cond_timedwait(&vigil->ended, &vigil->lock, &until);
  if (!vigil->has_ended)
    vigil_fail(vigil);
  pthread_mutex_unlock(&vigil->lock);
  return NULL;
}

/* lade_comm_open, whose first part, MPI's start, has no patience of its own. */
static int world_open(struct job *job, const struct lade_comm_params *how, double timeout_s, struct lade_error *error)
{
  /* Twice the time: what waits behind MPI's start says better who is late. */
  struct vigil vigil = {.job = job, .timeout_s = 2 * timeout_s, .lock = PTHREAD_MUTEX_INITIALIZER};
  pthread_condattr_t clock;
  pthread_t thread;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&vigil.ended, &clock);
  pthread_condattr_destroy(&clock);
  int status = lade_thread_start(&thread, "lade-vigil", vigil_keep, &vigil);
  if (!status) {
    status = lade_comm_open(how, error, &job->world);
    pthread_mutex_lock(&vigil.lock);
    vigil.has_ended = true;
    pthread_cond_signal(&vigil.ended);
    pthread_mutex_unlock(&vigil.lock);
    pthread_join(thread, NULL);
  }
  pthread_cond_destroy(&vigil.ended);
  return status;
}

int job_join(struct job *job, double timeout_s, struct lade_error *error)
{
  if (job->launch.world == 1)
    return 0;
  int status = job->board ? board_meet(job->board, timeout_s, error) : 0;
  if (status)
    return status;
  plugin_find();
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&job->kernels, &cpu);
  struct lade_comm_params how = {
      .struct_size = sizeof(how), .launch = &job->launch, .kernels = &job->kernels, .log = note_print,
      .timeout_ms = (int)(timeout_s * 1e3)};
  return world_open(job, &how, timeout_s, error);
}

int job_leave(struct job *job, const char *verb, int status, const struct lade_error *error)
{
  int code = exit_code(status);
  if (status) {
    if (job->world && !lade_comm_status(job->world, NULL))
      lade_comm_abort(job->world, error && *error->text ? error->text : strerror(-status));
    if (status == -ECANCELED && job->world) /* who saw what happened says it better */
      usleep(HEARSAY_US);
    if (!job->board && !job->world)
      code = failure_say(job, verb, status, error);
    else if (!job->board && lade_comm_is_speaker(job->world))
      code = exit_fail(verb, status, error);
    if (job->board)
      board_leave(job->board, job->launch.rank, status, error && *error->text ? error->text : strerror(-status));
    if (status == -EPIPE)
      usleep(HEARSAY_US);
  } else if (job->board) {
    board_leave(job->board, job->launch.rank, 0, NULL);
  }
  if (job->world)
    lade_comm_set_exit_code(job->world, code);
  lade_comm_close(job->world);
  job->world = NULL;
  return code;
}
