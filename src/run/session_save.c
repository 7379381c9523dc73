/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves of a session: whole before the next step, or beside the steps that follow.
 *
 * Beside: the run waits until its values are copied to host memory (snapshot.h), and a thread writes the copy while
 * steps go on. It is the same code on both sides of that line, over other values and another communicator, so a save
 * is whole or does not exist as ever. One save is under way at a time: the next one waits for it, and so does the end.
 * What went wrong with it is then told, as what that call failed with. A caller that does not want to hear of it that
 * late asks between steps whether the save has ended, which costs one load, and then finishes it without a wait.
 *
 * Ranks end a save together, with one status, but not in the same instant: whether it has ended they have to agree on
 * before they act on it. What all have voted on needs nobody told, so it leaves the communicators whole, and ranks may
 * try another save after a failed one.
 *
 * The copy is memory of the host tier, taken and touched before step 0 out of what the plan leaves of its budget; where
 * that is too little at one rank, saves hold up steps at all of them, which is told. A step allocates nothing; the
 * thread has from its start to its end what a save takes of its own (checkpoint_save.c): windows, 12 MiB at most, the
 * scales of one parameter's 8-bit moments, the table of tensors.
 *
 * Rejected: copy on write by a forked process, which finds device memory, communicators and threads in no state to be
 * used, and takes an unplanned amount of memory; and writing from the copies that offload has in the host tier, which
 * the next update overwrites.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "run/session_internal.h"
#include "run/snapshot.h"

struct session_saver {
  struct lade_values values; /* what is copied */
  lade_snapshot *snapshot;
  uint64_t bytes;
  struct lade_peers peers; /* the session's, as seen beside it */
  struct lade_faults *faults;
  pthread_t thread;
  bool is_running;       /* it has to be joined */
  atomic_bool has_ended; /* the save: the thread writes nothing more */
  /* Of the save that is under way; the thread's until it is joined. */
  struct lade_checkpoint_state state;
  struct lade_checkpoint_place place;
  char dir[PATH_MAX];
  int status;
  struct lade_error error;
};

/* What takes as long as a drive takes: nobody shall think that we are stuck. */
static void busy_set(struct lade_peers *peers, bool is_busy)
{
  if (peers->world)
    lade_comm_set_busy(peers->world, is_busy);
}

/* ---- the thread ---- */

static void *saver_main(void *user)
{
  struct session_saver *saver = user;
  const struct lade_values values = lade_snapshot_values(saver->snapshot, saver->peers.world ? &saver->peers : NULL);
  busy_set(&saver->peers, true);
  saver->status = lade_checkpoint_save(&values, &saver->state, &saver->place, saver->faults, &saver->error);
  busy_set(&saver->peers, false);
  atomic_store_explicit(&saver->has_ended, true, memory_order_release);
  return NULL;
}

static int thread_start(struct session_saver *saver, struct lade_error *error)
{
  int status = lade_fault(saver->faults, LADE_FAULT_THREAD);
  atomic_store_explicit(&saver->has_ended, false, memory_order_relaxed);
  if (!status)
    status = lade_thread_start(&saver->thread, "lade-save", saver_main, saver);
  saver->is_running = !status;
  return status ? lade_error_set(error, status, "the machine refused a thread for a save (%s)", strerror(-status)) : 0;
}

/* What the save that was under way came to; 0 when there was none. */
static int thread_join(struct session_saver *saver, struct lade_error *error)
{
  if (!saver || !saver->is_running)
    return 0;
  pthread_join(saver->thread, NULL);
  saver->is_running = false;
  return saver->status ? lade_error_set(error, saver->status, "%s", saver->error.text) : 0;
}

/* ---- opening ---- */

/* Is there room for the copy at every rank? */
static int room_agree(lade_session *s, uint64_t bytes, bool *ret_has_room, struct lade_error *error)
{
  const uint64_t used = session_host_bytes(s), left = s->host_bytes > used ? s->host_bytes - used : 0;
  char need[32], have[32];
  int64_t is_lacking;
  int status = lade_peers_max(&s->peers, bytes > left, &is_lacking, error);
  if (status)
    return status;
  *ret_has_room = !is_lacking;
  if (is_lacking)
    session_notice(s, "saves hold up steps: beside them they need %s of host memory for a copy of the state, and "
                   "--host-budget leaves %s%s", lade_size_format(bytes, need, sizeof(need)),
                   lade_size_format(left, have, sizeof(have)), bytes > left ? "" : ", but less at another rank");
  return 0;
}

static int saver_fill(lade_session *s, struct session_saver *saver, struct lade_error *error)
{
  int status = lade_snapshot_create(&saver->values, s->params.faults, error, &saver->snapshot);
  status = lade_peers_vote(&s->peers, status, error);
  if (!status)
    status = lade_peers_open_beside(&s->peers, error);
  saver->peers = lade_peers_beside(&s->peers);
  saver->faults = s->params.faults;
  return status;
}

int session_saver_open(lade_session *s, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  const uint64_t bytes = lade_snapshot_bytes(&values);
  bool has_room = false;
  if (!s->params.saves_beside || s->params.is_dry)
    return 0;
  int status = room_agree(s, bytes, &has_room, error);
  if (status || !has_room)
    return status;
  s->saver = lade_fault_calloc(s->params.faults, 1, sizeof(*s->saver));
  status = s->saver ? 0 : lade_error_set(error, -ENOMEM, "no memory for saves");
  status = lade_peers_vote(&s->peers, status, error);
  if (status)
    return status;
  s->saver->values = values;
  s->saver->bytes = bytes;
  return saver_fill(s, s->saver, error);
}

void session_saver_close(struct session_saver *saver)
{
  if (!saver)
    return;
  thread_join(saver, NULL);
  lade_snapshot_destroy(saver->snapshot);
  free(saver);
}

uint64_t session_saver_bytes(const lade_session *s)
{
  return s->saver ? s->saver->bytes : 0;
}

/* ---- saving ---- */

static int save_begin(lade_session *s, const struct lade_checkpoint_place *place, struct lade_error *error)
{
  struct session_saver *saver = s->saver;
  int status = lade_session_finish_saves(s, error);
  if (!status && strlen(place->dir) >= sizeof(saver->dir))
    status = lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", place->dir);
  if (!status)
    status = lade_snapshot_take(saver->snapshot, error);
  if (status)
    return status;
  strcpy(saver->dir, place->dir);
  saver->state = s->state;
  saver->place = *place;
  saver->place.dir = saver->dir;
  return thread_start(saver, error);
}

int lade_session_check_save_room(lade_session *s, const char *dir, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  const struct lade_checkpoint_place place = {.dir = dir, .file_bytes = s->params.save_file_bytes};
  return lade_checkpoint_check_room(&values, &place, s->params.faults, error);
}

int lade_session_save(lade_session *s, const char *dir, int keep, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  const struct lade_checkpoint_place place = {.dir = dir, .keep = keep, .file_bytes = s->params.save_file_bytes};
  if (s->saver)
    return session_fail(s, save_begin(s, &place, error), error);
  busy_set(&s->peers, true);
  int status = lade_checkpoint_save(&values, &s->state, &place, s->params.faults, error);
  busy_set(&s->peers, false);
  return session_fail(s, session_place(s, "in the save after", status, error), error);
}

bool lade_session_has_saved(const lade_session *s)
{
  return s->saver && s->saver->is_running && atomic_load_explicit(&s->saver->has_ended, memory_order_acquire);
}

int lade_session_finish_saves(lade_session *s, struct lade_error *error)
{
  busy_set(&s->peers, true);
  int status = thread_join(s->saver, error);
  busy_set(&s->peers, false);
  if (!status)
    return 0;
  session_place(s, "in a save before", status, error);
  const bool is_known = !s->peers.beside || !lade_comm_status(s->peers.beside, NULL);
  return is_known ? status : session_fail(s, status, error);
}
