/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that some ranks do while the others wait for what comes of it: a search for a plan may take longer than
 * anybody should wait for a rank that is gone.
 *
 * Whether a rank of this machine lives is seen. Of one elsewhere there is its silence alone. So those who work have a
 * thread that meets the others meanwhile, four times as often as their patience ends, and says that it is not over yet;
 * who has no work, or is through with it, meets at once and sleeps until the others come. All meet again until nobody
 * works any more. So a rank that lives is waited for however long it takes, one that has ended is found out in the time
 * that any other collective would take, and what is short costs one meeting.
 *
 * The work stays on the caller's thread, whose own threads libraries of kernels may keep for it.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/base.h"
#include "base/thread.h"
#include "run/peers.h"

#define MEETINGS_PER_PATIENCE 4

struct work {
  struct lade_peers *peers;
  struct timespec period;
  pthread_mutex_t lock; /* guards has_ended */
  pthread_cond_t ended;
  bool has_ended; /* this rank's work */
  int status;     /* of the meetings */
  struct lade_error error;
};

/* Has this rank's work ended? Waits for it, but no longer than for a period. */
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

/* Meet until nobody works any more, or somebody is gone. */
static void *meetings_keep(void *user)
{
  struct work *work = user;
  int64_t n_working = 1;
  while (n_working && !work->status)
    work->status = lade_peers_max(work->peers, !end_await(work), &n_working, &work->error);
  return NULL;
}

static void work_end(struct work *work)
{
  pthread_mutex_lock(&work->lock);
  work->has_ended = true;
  pthread_cond_signal(&work->ended);
  pthread_mutex_unlock(&work->lock);
}

static void work_init(struct work *work, struct lade_peers *peers)
{
  struct lade_comm_info info;
  pthread_condattr_t clock;
  lade_comm_get_info(peers->world, &info);
  const int period_ms = LADE_MAX(info.timeout_ms / MEETINGS_PER_PATIENCE, 1);
  *work = (struct work){.peers = peers, .period = {period_ms / 1000, period_ms % 1000 * 1000000l}};
  pthread_mutex_init(&work->lock, NULL);
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&work->ended, &clock);
  pthread_condattr_destroy(&clock);
}

int lade_peers_work(struct lade_peers *peers, lade_peers_work_fn *fn, void *user, struct lade_error *error)
{
  struct work work;
  pthread_t thread;
  int status = 0;
  if (!peers || !peers->world || lade_comm_size(peers->world) == 1)
    return fn ? fn(user, error) : 0;
  work_init(&work, peers);
  /* Without a thread the others wait for as long as for any rank. */
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
    return lade_peers_vote(peers, status, error);
  return lade_error_set(error, work.status, "%s", work.error.text);
}
