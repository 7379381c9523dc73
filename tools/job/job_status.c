/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table is a memfd of the launcher, which its ranks open through /proc. It is on no file system and disappears with
 * the job, however the job ends. A descriptor cannot be inherited because mpirun starts ranks in processes of its own;
 * it passes on only the environment.
 *
 * Each field has one writer. A rank's message is written before has_left; the launcher reads it after all ranks have
 * ended.
 *
 * The table must record which checkpoints in --save are the job's, because others may be there, also newer ones. --keep
 * may also have removed the previous checkpoint right after a save was published, before the job could note the save.
 * The table therefore holds the last save that was begun, and the checkpoint that it replaces: if another directory has
 * the name now, the save is complete.
 */
#include "tools/job/job_status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "run/checkpoint.h"

#define JOB_STATUS_VARIABLE "LADE_LAUNCH_BOARD"
#define MEET_PAUSE_NS 5000000 /* between two looks at the table: ranks take longer to start */

static size_t job_status_bytes(int n_ranks)
{
  return sizeof(struct job_status) + (size_t)n_ranks * sizeof(struct job_status_rank);
}

/* Return the layout version of the table; tables of other versions are ignored. */
static uint64_t job_status_version(void)
{
  const uint64_t shape = (uint64_t)sizeof(struct job_status) << 32 ^ (uint64_t)sizeof(struct job_status_rank) << 16;
  return UINT64_C(0x6c616465626f0001) ^ shape;
}

int job_status_create(int n_ranks, struct job_status **ret_status)
{
  char place[64];
  const size_t bytes = job_status_bytes(n_ranks);
  int fd = memfd_create("lade-job-status", MFD_CLOEXEC), status = 0;
  if (fd < 0)
    return -errno;
  void *memory = MAP_FAILED;
  if (ftruncate(fd, (off_t)bytes) == 0)
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  snprintf(place, sizeof(place), "/proc/%d/fd/%d", (int)getpid(), fd);
  if (memory == MAP_FAILED || setenv(JOB_STATUS_VARIABLE, place, 1))
    status = -ENOMEM;
  if (status) {
    close(fd);
    return status;
  }
  struct job_status *table = memory; /* the descriptor stays open because the table's path refers to it */
  table->version = job_status_version();
  table->n_ranks = n_ranks;
  atomic_store(&table->saving_step, -1);
  atomic_store(&table->saved_step, -1);
  *ret_status = table;
  return 0;
}

void job_status_destroy(struct job_status *table)
{
  if (table)
    munmap(table, job_status_bytes(table->n_ranks));
}

void job_status_clear(struct job_status *table, int n_ranks)
{
  LADE_ASSERT(n_ranks <= table->n_ranks);
  table->n_ranks = n_ranks;
  memset(table->ranks, 0, (size_t)n_ranks * sizeof(*table->ranks));
  atomic_store(&table->first_step, -1);
  atomic_store(&table->has_results, 0);
}

/* Return the identity of the directory that has the name of @step's checkpoint in --save. */
static struct job_status_checkpoint checkpoint_look(const struct job_status *table, int64_t step)
{
  char path[PATH_MAX];
  struct stat at;
  if (!*table->places[JOB_STATUS_SAVE] || lade_checkpoint_path(table->places[JOB_STATUS_SAVE], step, path, NULL) ||
      stat(path, &at))
    return (struct job_status_checkpoint){0};
  return (struct job_status_checkpoint){at.st_dev, at.st_ino};
}

/* True if the last save that was begun is published, also if the job ended before it noted that. */
static bool saving_is_whole(const struct job_status *table)
{
  const int64_t step = atomic_load(&table->saving_step);
  const struct job_status_checkpoint *before = &table->replaced;
  const struct job_status_checkpoint now = step < 0 ? *before : checkpoint_look(table, step);
  return now.node && (now.device != before->device || now.node != before->node);
}

void job_status_save_begin(struct job_status *table, int64_t step)
{
  if (saving_is_whole(table))
    atomic_store(&table->saved_step, atomic_load(&table->saving_step));
  atomic_store(&table->saving_step, -1);
  table->replaced = checkpoint_look(table, step);
  atomic_store(&table->saving_step, step);
}

void job_status_save_end(struct job_status *table, int64_t step, int64_t taken_ns)
{
  atomic_store(&table->saved_ns, taken_ns);
  atomic_store(&table->saved_step, step);
}

int64_t job_status_find_save(const struct job_status *table)
{
  return atomic_load(saving_is_whole(table) ? &table->saving_step : &table->saved_step);
}

struct job_status *job_status_find(int n_ranks)
{
  const char *place = getenv(JOB_STATUS_VARIABLE);
  const size_t bytes = job_status_bytes(n_ranks);
  struct stat file;
  int fd = place ? open(place, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0)
    return NULL;
  bool is_large = fstat(fd, &file) == 0 && (uint64_t)file.st_size >= bytes;
  void *memory = is_large ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED)
    return NULL;
  struct job_status *table = memory;
  if (table->version != job_status_version() || table->n_ranks != n_ranks) {
    munmap(memory, bytes);
    return NULL;
  }
  return table;
}

void job_status_begin(struct job_status *table, int rank, const char *verb)
{
  snprintf(table->ranks[rank].verb, sizeof(table->ranks[rank].verb), "%s", verb);
  atomic_store(&table->ranks[rank].pid, getpid());
}

int job_status_meet(const struct job_status *table, double timeout_s, struct lade_error *error)
{
  const int64_t begin_ns = lade_now_ns();
  for (int rank = 0; rank < table->n_ranks;) {
    const pid_t pid = atomic_load(&table->ranks[rank].pid);
    if (atomic_load(&table->ranks[rank].has_left))
      return lade_error_set(error, -ECANCELED, "rank %d has left before it had met the others", rank);
    if (pid && kill(pid, 0) && errno == ESRCH)
      return lade_error_set(error, -EPIPE, "rank %d (process %d) has ended before it had met the others", rank,
                            (int)pid);
    rank += pid != 0;
    if (pid)
      continue;
    if ((double)(lade_now_ns() - begin_ns) > timeout_s * 1e9)
      return lade_error_set(error, -ETIMEDOUT, "rank %d has not begun within %g s; the other ranks cannot go on "
                            "without it", rank, timeout_s);
    nanosleep(&(struct timespec){.tv_nsec = MEET_PAUSE_NS}, NULL);
  }
  return 0;
}

void job_status_await_first(const struct job_status *table, int64_t max_ns)
{
  const int64_t end_ns = lade_now_ns() + max_ns;
  while (!atomic_load(&table->ranks[0].has_left) && lade_now_ns() < end_ns)
    nanosleep(&(struct timespec){.tv_nsec = MEET_PAUSE_NS}, NULL);
}

void job_status_leave(struct job_status *table, int rank, int code, const char *text)
{
  struct job_status_rank *own = &table->ranks[rank];
  own->left_ns = lade_now_ns();
  own->error.code = code;
  snprintf(own->error.text, sizeof(own->error.text), "%s", text ? text : "");
  atomic_store(&own->has_left, 1);
}

int job_status_signal(const struct job_status *table, int signal_number)
{
  int n = 0;
  for (int rank = 0; rank < table->n_ranks; rank++) {
    const struct job_status_rank *other = &table->ranks[rank];
    const pid_t pid = atomic_load(&other->pid);
    n += pid > 0 && !atomic_load(&other->has_left) && kill(pid, signal_number) == 0;
  }
  return n;
}

/* Return the distance of a message from its cause: 0, the rank itself failed; 1, it saw that; 2, it was notified. */
static int message_distance(const struct lade_error *error)
{
  return error->code == -ECANCELED ? 2 : error->code == -EPIPE || error->code == -ETIMEDOUT ? 1 : 0;
}

void job_status_judge(const struct job_status *table, struct job_verdict *ret_verdict)
{
  struct job_verdict verdict = {.first_lost = -1, .has_results = atomic_load(&table->has_results)};
  const struct job_status_rank *best = NULL;
  int first_unbegun = -1;
  for (int rank = 0; rank < table->n_ranks; rank++) {
    const struct job_status_rank *other = &table->ranks[rank];
    const bool has_begun = atomic_load(&other->pid) != 0;
    verdict.n_begun += has_begun;
    if (!has_begun) {
      verdict.n_unbegun++;
      first_unbegun = first_unbegun < 0 ? rank : first_unbegun;
      continue;
    }
    verdict.verb = verdict.verb ? verdict.verb : other->verb;
    if (!atomic_load(&other->has_left)) {
      const bool is_lost = !other->signal_number && !other->is_survivor;
      verdict.n_lost += is_lost;
      verdict.first_lost = verdict.first_lost < 0 && is_lost ? rank : verdict.first_lost;
      continue;
    }
    verdict.n_succeeded += !other->error.code;
    if (!other->error.code)
      continue;
    const int nearer = best ? message_distance(&best->error) - message_distance(&other->error) : 1;
    if (nearer > 0 || (nearer == 0 && other->left_ns < best->left_ns))
      best = other;
  }
  verdict.first_lost = verdict.first_lost < 0 ? first_unbegun : verdict.first_lost;
  if (best) {
    verdict.error = best->error;
    verdict.is_own = message_distance(&best->error) == 0;
  }
  *ret_verdict = verdict;
}
