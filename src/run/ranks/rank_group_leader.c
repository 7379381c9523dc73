/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that some ranks do while the other ranks wait for its result, for instance a search for a plan. It may take
 * longer than the timeout after which a silent rank counts as dead.
 *
 * The death of a process of this machine is detected directly. A rank on another machine is judged by its silence
 * alone. So while a rank works, a thread of it meets the other ranks four times per timeout and reports that the work
 * continues. A rank that does not work meets at once, and sleeps until the others arrive. All ranks meet again until no
 * rank works. So a working rank has no timeout while it lives, and a dead rank is found within the usual timeout. Short
 * work costs one meeting.
 *
 * The work stays on the caller's thread, because kernel libraries may keep worker threads for it.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/base.h"
#include "base/thread.h"
#include "run/rank_group.h"

#define MEETINGS_PER_PATIENCE 4 /* so that a late meeting is no timeout */

struct work {
  struct lade_rank_group *group;
  struct timespec period;
  pthread_mutex_t lock; /* guards has_ended */
  pthread_cond_t ended;
  bool has_ended; /* this rank's work has ended */
  int status;     /* of the meetings */
  struct lade_error error;
};

/* Wait until this rank's work has ended, at most for one period. Return true if it has ended. */
static bool end_await(struct work *work)
{
  struct timespec until;
  int status = 0;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += work->period.tv_sec + (until.tv_nsec + work->period.tv_nsec) / 1000000000;
  until.tv_nsec = (until.tv_nsec + work->period.tv_nsec) % 1000000000;
  pthread_mutex_lock(&work->lock);
  while (!work->has_ended && !status)
    status = pthread_cond_timedwait(&work->ended, &work->lock, &until);
  const bool has_ended = work->has_ended;
  pthread_mutex_unlock(&work->lock);
  return has_ended;
}

/* Meet until no rank works, or until a meeting fails because a rank is gone. */
static void *meetings_keep(void *user)
{
  struct work *work = user;
  int64_t n_working = 1;
  while (n_working && !work->status)
    work->status = lade_rank_group_max(work->group, !end_await(work), &n_working, &work->error);
  return NULL;
}

static void work_end(struct work *work)
{
  pthread_mutex_lock(&work->lock);
  work->has_ended = true;
  pthread_cond_signal(&work->ended);
  pthread_mutex_unlock(&work->lock);
}

static void work_init(struct work *work, struct lade_rank_group *group)
{
  struct lade_comm_info info;
  pthread_condattr_t clock;
  lade_comm_get_info(group->world, &info);
  const int period_ms = LADE_MAX(info.timeout_ms / MEETINGS_PER_PATIENCE, 1);
  *work = (struct work){.group = group, .period = {period_ms / 1000, period_ms % 1000 * 1000000l}};
  pthread_mutex_init(&work->lock, NULL);
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&work->ended, &clock);
  pthread_condattr_destroy(&clock);
}

int lade_rank_group_work(struct lade_rank_group *group, lade_rank_group_work_fn *fn, void *user,
                         struct lade_error *error)
{
  struct work work;
  pthread_t thread;
  int status = 0;
  if (!group || !group->world || lade_comm_size(group->world) == 1)
    return fn ? fn(user, error) : 0;
  work_init(&work, group);
  /* If the thread cannot be started, the other ranks wait at most for the usual timeout. */
  const bool has_thread = fn && !lade_thread_start(&thread, "lade-meet", meetings_keep, &work);
  if (fn)
    status = fn(user, error);
  work_end(&work);
  if (has_thread)
    pthread_join(thread, NULL);
  else
    meetings_keep(&work);
  pthread_cond_destroy(&work.ended);
  pthread_mutex_destroy(&work.lock);
  if (!work.status)
    return lade_rank_group_vote(group, status, error);
  return lade_error_set(error, work.status, "%s", work.error.text);
}
