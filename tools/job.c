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

/* Keep what is written to @stream to ourselves; where it went before, for stream_restore. -1: it stays. */
static int stream_catch(FILE *stream)
{
  const int fd = fileno(stream), before = dup(fd), kept = memfd_create("lade-said", MFD_CLOEXEC);
  if (before >= 0 && kept >= 0)
    dup2(kept, fd);
  if (kept >= 0)
    close(kept);
  return before;
}

/* The first line of what was caught goes to @line. */
static void stream_restore(FILE *stream, int before, char *line, size_t line_bytes)
{
  *line = 0;
  if (before < 0)
    return;
  fflush(stream);
  const ssize_t n = pread(fileno(stream), line, line_bytes - 1, 0);
  line[LADE_MAX(n, 0)] = 0;
  line[strcspn(line, "\n")] = 0;
  dup2(before, fileno(stream));
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

/* Options fail, as @line says, at a rank that is not the first: where the first has not said the same it is told. */
static void options_fail(const struct job *job, const char *line)
{
  struct lade_error error = {0};
  const char *words = strstr(line, ": "); /* behind "lade train" */
  lade_error_set(&error, -EINVAL, "rank %d has options that cannot be: %s", job->launch.rank,
                 words ? words + 2 : line);
  if (job->board)
    board_leave(job->board, job->launch.rank, -EINVAL, error.text);
  else
    failure_say(job, "train", -EINVAL, &error);
}

int job_options_read(const struct job *job, enum verb_id verb, int argc, char **argv, struct options *options)
{
  if (job_is_first(job)) {
    const int code = options_read(verb, argc, argv, options);
    if (code != OPTIONS_GO && job->board)
      board_leave(job->board, job->launch.rank, code == LADE_EXIT_DONE ? 0 : -EINVAL, NULL);
    return code;
  }
  char out_line[8], line[400];
  const int out = stream_catch(stdout), err = stream_catch(stderr);
  const int code = options_read(verb, argc, argv, options);
  stream_restore(stdout, out, out_line, sizeof(out_line));
  stream_restore(stderr, err, line, sizeof(line));
  if (code == LADE_EXIT_DONE && job->board)
    board_leave(job->board, job->launch.rank, 0, NULL);
  else if (code != OPTIONS_GO && code != LADE_EXIT_DONE)
    options_fail(job, line);
  return code;
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
