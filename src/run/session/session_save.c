/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves of a session: complete before the next step, or async, while later steps run.
 *
 * Async: the run waits until its values are copied to host memory (snapshot.h); a thread writes the copy while steps go
 * on. Both kinds use the same code over other values and another communicator, so a save is complete or does not exist.
 * One save is in flight at a time: the next save waits for it, and so does the end. That later call then returns its
 * error. A caller that wants the error earlier polls between steps whether the save has ended. A poll costs one load.
 * The caller then finishes the save without a wait.
 *
 * Ranks end a save with one status, but not at the same instant. So they must agree that it has ended before they act
 * on it. After a vote every rank has the status. So no abort is needed, the communicators stay usable, and ranks may
 * try another save after a failed one.
 *
 * The copy is memory of the host tier. It is allocated and touched before step 0, from the part of the host budget that
 * the plan leaves. If that is too small at one rank, saves block steps at all ranks, and a notice reports it. A step
 * allocates nothing. During a save the thread uses the memory of checkpoint_save.c: windows of at most 12 MiB, the
 * scales of one parameter's 8-bit moments, the table of tensors.
 *
 * Rejected: copy on write by a forked process, because device memory, communicators and threads are unusable there, and
 * it takes an unplanned amount of memory. Rejected: writing from the copies that offload has in the host tier, because
 * the next update overwrites them.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "run/checkpoint/snapshot.h"
#include "run/session/session_internal.h"

struct session_saver {
  struct lade_values values; /* the session's, from which the snapshot copies */
  lade_snapshot *snapshot;
  uint64_t bytes;
  struct lade_rank_group group; /* the session's, over the async communicator */
  struct lade_faults *faults;
  pthread_t thread;
  bool is_running;       /* the thread must be joined */
  atomic_bool has_ended; /* the save has ended: the thread writes nothing more */
  /* The save in flight; the thread owns these fields until it is joined. */
  struct lade_checkpoint_state state;
  struct lade_checkpoint_place place;
  char dir[PATH_MAX];
  int status;
  struct lade_error error;
};

/* Suspend or restore timeouts around work that takes as long as the drive does. */
static void busy_set(struct lade_rank_group *group, bool is_busy)
{
  if (group->world)
    lade_comm_set_busy(group->world, is_busy);
}

/* ---- the thread ---- */

static void *saver_main(void *user)
{
  struct session_saver *saver = user;
  const struct lade_values values = lade_snapshot_values(saver->snapshot, saver->group.world ? &saver->group : NULL);
  busy_set(&saver->group, true);
  saver->status = lade_checkpoint_save(&values, &saver->state, &saver->place, saver->faults, &saver->error);
  busy_set(&saver->group, false);
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

/* Wait for the save in flight and return its status; 0 if there is none. */
static int thread_join(struct session_saver *saver, struct lade_error *error)
{
  if (!saver || !saver->is_running)
    return 0;
  pthread_join(saver->thread, NULL);
  saver->is_running = false;
  return saver->status ? lade_error_set(error, saver->status, "%s", saver->error.text) : 0;
}

/* ---- opening ---- */

/* Set @ret_has_room to true if every rank has room for its copy; else report the lack. */
static int save_room_agree(lade_session *s, uint64_t bytes, bool *ret_has_room, struct lade_error *error)
{
  const uint64_t used = session_host_bytes(s), left = s->host_bytes > used ? s->host_bytes - used : 0;
  char need[32], have[32];
  int64_t is_lacking;
  int status = lade_rank_group_max(&s->group, bytes > left, &is_lacking, error);
  if (status)
    return status;
  *ret_has_room = !is_lacking;
  if (is_lacking)
    session_notice(s, "saves block steps: an async save needs %s of host memory for a copy of the state, and "
                   "--host-budget leaves %s%s", lade_size_format(bytes, need, sizeof(need)),
                   lade_size_format(left, have, sizeof(have)), bytes > left ? "" : ", but less at another rank");
  return 0;
}

static int saver_fill(lade_session *s, struct session_saver *saver, struct lade_error *error)
{
  int status = lade_snapshot_create(&saver->values, s->params.faults, error, &saver->snapshot);
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = lade_rank_group_open_async(&s->group, error);
  saver->group = lade_rank_group_async(&s->group);
  saver->faults = s->params.faults;
  return status;
}

int session_saver_open(lade_session *s, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  const uint64_t bytes = lade_snapshot_bytes(&values);
  bool has_room = false;
  if (!s->params.async_save || s->params.is_dry)
    return 0;
  int status = save_room_agree(s, bytes, &has_room, error);
  if (status || !has_room)
    return status;
  s->saver = lade_fault_calloc(s->params.faults, 1, sizeof(*s->saver));
  status = s->saver ? 0 : lade_error_set(error, -ENOMEM, "no memory for saves");
  status = lade_rank_group_vote(&s->group, status, error);
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

/* Load the tokenizer of the data once, on the rank that writes it. After a failure, and a notice, saves have none. */
static void tokenizer_load(lade_session *s)
{
  struct lade_data_info info;
  struct lade_error why = {0};
  if (s->has_sought_tokenizer || !s->data || !lade_rank_group_is_first(&s->group))
    return;
  s->has_sought_tokenizer = true;
  lade_data_get_info(s->data, &info);
  if (info.tokenizer && lade_data_load_tokenizer(s->data, &why, &s->tokenizer, &s->tokenizer_bytes))
    session_notice(s, "checkpoints get no tokenizer: %s", why.text);
}

static struct lade_checkpoint_place place_make(const lade_session *s, const char *dir, int keep)
{
  return (struct lade_checkpoint_place){.dir = dir, .keep = keep, .file_bytes = s->params.save_file_bytes,
                                        .tokenizer = s->tokenizer, .tokenizer_bytes = s->tokenizer_bytes};
}

int lade_session_check_save_room(lade_session *s, const char *dir, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  tokenizer_load(s);
  const struct lade_checkpoint_place place = place_make(s, dir, 0);
  return lade_checkpoint_check_room(&values, &place, s->params.faults, error);
}

int lade_session_save(lade_session *s, const char *dir, int keep, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  tokenizer_load(s);
  const struct lade_checkpoint_place place = place_make(s, dir, keep);
  if (s->saver)
    return session_fail(s, save_begin(s, &place, error), error);
  busy_set(&s->group, true);
  int status = lade_checkpoint_save(&values, &s->state, &place, s->params.faults, error);
  busy_set(&s->group, false);
  return session_fail(s, session_place(s, "in the save after", status, error), error);
}

bool lade_session_has_saved(const lade_session *s)
{
  return s->saver && s->saver->is_running && atomic_load_explicit(&s->saver->has_ended, memory_order_acquire);
}

int lade_session_finish_saves(lade_session *s, struct lade_error *error)
{
  busy_set(&s->group, true);
  int status = thread_join(s->saver, error);
  busy_set(&s->group, false);
  if (!status)
    return 0;
  session_place(s, "in a save before", status, error);
  const bool is_known = !s->group.async_comm || !lade_comm_status(s->group.async_comm, NULL);
  return is_known ? status : session_fail(s, status, error);
}
