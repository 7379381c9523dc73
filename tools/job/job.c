/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining and leaving a job of several ranks.
 *
 * A failure is reported once. With a launcher, ranks write their messages on its status table, and the launcher prints
 * the most specific one. Without a table all ranks of a node end with the failure, and the communicator selects the
 * rank that prints. The job's exit code is that of the first rank that exits with an error, as under mpirun. Ranks that
 * were only notified of a failure therefore wait until the failed rank has exited.
 */
#include "tools/job/job.h"

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
#include "device/cuda.h"
#include "tools/cli/signals.h"
#include "tools/cli/verbs.h"

/* Time for the message of the rank that failed: twice the time that it needs to close a failed communicator. */
#define PEER_MESSAGE_US 400000
#define MPIRUN_US 2000000 /* mpirun ends the other ranks sooner than this after the first one has failed */

extern char **environ;

int job_read(struct job *job, enum verb_id verb, struct lade_error *error)
{
  /* The driver reads it at its start. The default of 8 is below the streams of a stage. A value of the user's stays. */
  setenv(LADE_CUDA_CHANNELS_VARIABLE, "32", 0);
  *job = (struct job){.verb = verb, .launch = {.world = 1}};
  int status = lade_launch_read(environ, error, &job->launch);
  if (!status && job->launch.launcher != LADE_LAUNCHER_NONE)
    job->table = job_status_find(job->launch.world);
  if (job->table) { /* in this order, because a rank that has begun and ends without a mark counts as killed */
    signals_init();
    signals_mark(&job->table->ranks[job->launch.rank].signal_number);
    job_status_begin(job->table, job->launch.rank, verb_name(verb));
  }
  return status;
}

/* Redirect stdout to the null device. Return the descriptor for stdout_restore; -1: stdout is unchanged. */
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
 * Report a failure that every rank may have met, without a table. The first rank prints it; another one prints it if it
 * is still alive when the first would have ended the job. The launcher srun ends no ranks, and under it the first rank
 * always exists. Return the exit code.
 */
static int failure_say(const struct job *job, int status, const struct lade_error *error)
{
  if (!job_is_first(job))
    usleep(MPIRUN_US);
  if (job_is_first(job) || (job->launch.launcher != LADE_LAUNCHER_SRUN && !signals_get()))
    return exit_fail(verb_name(job->verb), status, error);
  return exit_code(status);
}

/*
 * Report wrong options. Mostly they are wrong at all ranks alike: the first rank's message is used, and the others wait
 * for it. The launcher prints the message because mpirun may lose output that a rank writes right before it ends.
 * Return the exit code.
 */
static int options_fail(const struct job *job, int status, const struct lade_error *error)
{
  struct lade_error own = *error;
  if (!job_is_first(job))
    lade_error_set(&own, status, "the options of rank %d are refused: %s", job->launch.rank, error->text);
  if (!job->table)
    return failure_say(job, status, &own);
  if (!job_is_first(job))
    job_status_await_first(job->table, PEER_MESSAGE_US * INT64_C(1000));
  job_status_leave(job->table, job->launch.rank, status, own.text);
  return exit_code(status);
}

int job_options_read(const struct job *job, int argc, char **argv, struct options *options)
{
  struct lade_error error = {0};
  const int out = job_is_first(job) ? -1 : stdout_drop(); /* help is printed once */
  const int status = options_parse(job->verb, argc, argv, options, &error);
  stdout_restore(out);
  if (status < 0)
    return options_fail(job, status, &error);
  if (status == OPTIONS_ANSWERED && job->table)
    job_status_leave(job->table, job->launch.rank, 0, NULL);
  return status == OPTIONS_ANSWERED ? LADE_EXIT_DONE : OPTIONS_GO;
}

static void note_print(void *user, const char *line)
{
  (void)user;
  message_print("note", line);
}

/* Find the plug-in of a build that is not installed: it lies below the program's directory. */
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

/* Timeout of MPI's start, which waits without bound for a rank that ended before it, and cannot be cancelled. */
struct start_timeout {
  const struct job *job;
  double timeout_s;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  bool has_ended;
};

static void start_timeout_fail(const struct start_timeout *timeout)
{
  const struct job *job = timeout->job;
  struct lade_error error = {0};
  lade_error_set(&error, -ETIMEDOUT, "the ranks of this job have not met within %g s: one of its %d has ended, or "
                 "never began", timeout->timeout_s, job->launch.world);
  if (job->table)
    job_status_leave(job->table, job->launch.rank, -ETIMEDOUT, error.text);
  else
    failure_say(job, -ETIMEDOUT, &error);
  _exit(LADE_EXIT_FAILED);
}

static void *start_timeout_run(void *user)
{
  struct start_timeout *timeout = user;
  struct timespec until;
  int status = 0;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t)timeout->timeout_s + 1;
  pthread_mutex_lock(&timeout->lock);
  while (!timeout->has_ended && !status)
    status = pthread_cond_timedwait(&timeout->ended, &timeout->lock, &until);
  if (!timeout->has_ended)
    start_timeout_fail(timeout);
  pthread_mutex_unlock(&timeout->lock);
  return NULL;
}

/* Call lade_comm_open with a timeout for its first part, MPI's start, which has none. */
static int world_open(struct job *job, const struct lade_comm_params *params, double timeout_s,
                      struct lade_error *error)
{
  /* Twice the timeout, because the wait after MPI's start names the late rank. */
  struct start_timeout timeout = {.job = job, .timeout_s = 2 * timeout_s, .lock = PTHREAD_MUTEX_INITIALIZER};
  pthread_condattr_t clock;
  pthread_t thread;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&timeout.ended, &clock);
  pthread_condattr_destroy(&clock);
  int status = lade_thread_start(&thread, "lade-mpi-start", start_timeout_run, &timeout);
  if (!status) {
    status = lade_comm_open(params, error, &job->world);
    pthread_mutex_lock(&timeout.lock);
    timeout.has_ended = true;
    pthread_cond_signal(&timeout.ended);
    pthread_mutex_unlock(&timeout.lock);
    pthread_join(thread, NULL);
  }
  pthread_cond_destroy(&timeout.ended);
  return status;
}

int job_join(struct job *job, double timeout_s, struct lade_error *error)
{
  if (job->launch.world == 1)
    return 0;
  int status = job->table ? job_status_meet(job->table, timeout_s, error) : 0;
  if (status)
    return status;
  plugin_find();
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&job->kernels, &cpu);
  struct lade_comm_params params = {
      .struct_size = sizeof(params), .launch = &job->launch, .kernels = &job->kernels, .log = note_print,
      .timeout_ms = (int)(timeout_s * 1e3)};
  return world_open(job, &params, timeout_s, error);
}

int job_leave(struct job *job, int status, const struct lade_error *error)
{
  int code = exit_code(status);
  if (status) {
    if (job->world && !lade_comm_status(job->world, NULL))
      lade_comm_abort(job->world, error && *error->text ? error->text : strerror(-status));
    if (status == -ECANCELED && job->world) /* a rank that saw the failure itself has the more specific message */
      usleep(PEER_MESSAGE_US);
    if (!job->table && !job->world)
      code = failure_say(job, status, error);
    else if (!job->table && lade_comm_is_speaker(job->world))
      code = exit_fail(verb_name(job->verb), status, error);
    if (job->table)
      job_status_leave(job->table, job->launch.rank, status, error && *error->text ? error->text : strerror(-status));
    if (status == -EPIPE)
      usleep(PEER_MESSAGE_US);
  } else if (job->table) {
    job_status_leave(job->table, job->launch.rank, 0, NULL);
  }
  if (job->world)
    lade_comm_set_exit_code(job->world, code);
  lade_comm_close(job->world);
  job->world = NULL;
  return code;
}
