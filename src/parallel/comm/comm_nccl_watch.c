/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Monitor NCCL's communicators. NCCL's kernels wait for their peers for ever. Inside one machine NCCL itself does not
 * notice that a process has ended, and a collective that one rank never launches never ends.
 *
 * One thread per job, the watcher, checks each communicator with work in flight every NCCL_LOOK_MS. It reads:
 *
 *   progress   two words of pinned memory that the stream writes around each piece of work: the pieces begun and the
 *              pieces ended. Receives, which may have a separate stream, have their own two words. So a piece's timeout
 *              counts from its begin, not from its submission, without a query of a queue
 *   boards     memory that the members share, in which each writes its launches. A launching rank compares its launch
 *              with earlier ones of other ranks, without waiting. Ranks that launched earlier compare at the next check
 *   control    the communicator of the same members on hosts, which detects ended processes and carries abort reasons
 *   NCCL       its own asynchronous error, of networks
 *
 * If a check finds a failure, root and handle are aborted (comm_nccl.c): the kernels end, the stream continues, and its
 * events happen. Calls on a handle are made one at a time under a lock. A thread that polls for the root while it holds
 * the lock does the checks itself. A thread that blocks in a call on the handle cannot, so it notes the time of entry,
 * and the watcher checks for it. The watcher then aborts the root alone, and the thread aborts the handle once its call
 * has returned.
 *
 * Rejected: a meeting of all ranks before each launch, as on hosts. It would detect a differing rank before any byte
 * moves, but every launch would wait for the slowest rank.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "device/cuda.h"
#include "parallel/comm/comm_nccl_internal.h"

#define PAUSE_FIRST_NS 5000 /* of the first pause; doubled up to PAUSE_MAX_NS */
#define PAUSE_MAX_NS 500000

/* ---- launches ---- */

#define HEAD_PEER_SHIFT 8 /* 24 bits; below it kind and dtype, 4 bits each */
#define HEAD_SEQUENCE_SHIFT 32 /* 32 bits */
#define CUT_HASH_SHIFT 8 /* below it the number of items */

_Static_assert(LADE_COMM_LIST_MAX < 1 << CUT_HASH_SHIFT, "the number of items has its bits");

static uint64_t head_of(const struct lade_collective *c, uint32_t sequence)
{
  uint64_t peer = c->kind == LADE_BROADCAST ? (uint64_t)c->peer : 0;
  return (uint64_t)sequence << HEAD_SEQUENCE_SHIFT | peer << HEAD_PEER_SHIFT | (uint64_t)c->kind << 4
         | (uint64_t)c->dtype;
}

/* Return FNV-1a of the items' sizes, a word at a time, with the number of items in the low bits. */
static uint64_t cut_of(const struct lade_comm_list *list)
{
  uint64_t hash = 0xcbf29ce484222325;
  for (int i = 0; i < list->n; i++)
    hash = (hash ^ list->items[i].n) * 0x100000001b3;
  return hash << CUT_HASH_SHIFT | (uint64_t)list->n;
}

/* Write "all_reduce of 5 f32 with peer 0", "all_reduce of 5 f32 in 2 with peer 0" into @text. */
static const char *intent_describe(uint64_t head, uint64_t n, uint64_t cut, char text[128])
{
  char items[24] = "";
  unsigned n_items = (unsigned)(cut & ((1u << CUT_HASH_SHIFT) - 1));
  if (n_items > 1)
    snprintf(items, sizeof(items), " in %u", n_items);
  snprintf(text, 128, "%s of %llu %s%s with peer %u", lade_collective_name((enum lade_collective_kind)(head >> 4 & 15)),
           (unsigned long long)n, lade_dtype_name((enum lade_dtype)(head & 15)), items,
           (unsigned)(head >> HEAD_PEER_SHIFT & 0xffffff));
  return text;
}

/* Compare one launch with that of another member, if it is on that member's board. */
static int intent_compare(const struct nccl_comm *comm, uint32_t sequence, int member, struct lade_error *error)
{
  const struct nccl_intent *own = &comm->boards[comm->base.rank]->intents[sequence % NCCL_INTENTS];
  const struct nccl_intent *other = &comm->boards[member]->intents[sequence % NCCL_INTENTS];
  uint64_t head = atomic_load(&other->head), n = atomic_load(&other->n), cut = atomic_load(&other->cut);
  uint64_t own_head = atomic_load(&own->head), own_n = atomic_load(&own->n), own_cut = atomic_load(&own->cut);
  if (head >> HEAD_SEQUENCE_SHIFT != sequence || atomic_load(&other->head) != head)
    return 0; /* not launched yet, or already overwritten: a broadcast's root may be far ahead */
  if (own_head >> HEAD_SEQUENCE_SHIFT != sequence || atomic_load(&own->head) != own_head)
    return 0; /* the watcher looks while this rank launches */
  if (head == own_head && n == own_n && cut == own_cut)
    return 0;
  char text[128], own_text[128];
  return lade_error_set(error, -EPROTO, "rank %d runs %s, rank %d runs %s; all ranks of a group must run the same",
                        comm->ranks[member], intent_describe(head, n, cut, text), comm->ranks[comm->base.rank],
                        intent_describe(own_head, own_n, own_cut, own_text));
}

/* Compare the last @n_back launches with those of all others. */
static int intents_compare(const struct nccl_comm *comm, uint32_t n_back, struct lade_error *error)
{
  if (!comm->boards)
    return 0;
  uint32_t last = atomic_load(&comm->boards[comm->base.rank]->n_launched);
  int status = 0;
  for (uint32_t back = 0; back < LADE_MIN(n_back, last) && !status; back++)
    for (int member = 0; member < comm->base.size && !status; member++)
      if (member != comm->base.rank)
        status = intent_compare(comm, last - back, member, error);
  return status;
}

int comm_nccl_intent_publish(struct nccl_comm *comm, const struct lade_comm_list *list, struct lade_error *error)
{
  if (!comm->boards)
    return 0;
  struct nccl_board *own = comm->boards[comm->base.rank];
  uint32_t sequence = atomic_load(&own->n_launched) + 1;
  struct nccl_intent *intent = &own->intents[sequence % NCCL_INTENTS];
  atomic_store(&intent->head, 0); /* so that a concurrent reader sees neither the old intent nor a part of the new
                                     one */
  atomic_store(&intent->n, comm_list_elements(list));
  atomic_store(&intent->cut, cut_of(list));
  atomic_store(&intent->head, head_of(list->items, sequence));
  atomic_store(&own->n_launched, sequence);
  return intents_compare(comm, 1, error);
}

/* ---- checks ---- */

/* Return the member with the fewest launches, if it has fewer than this one; -1: none. */
static int late_find(const struct nccl_comm *comm)
{
  int late = -1;
  if (!comm->boards)
    return -1;
  uint32_t min = atomic_load(&comm->boards[comm->base.rank]->n_launched);
  for (int member = 0; member < comm->base.size; member++) {
    uint32_t n = atomic_load(&comm->boards[member]->n_launched);
    if ((int32_t)(min - n) > 0) {
      min = n;
      late = member;
    }
  }
  return late;
}

/* Return the timeout error. It names the late member, the same at all members, if that is known. */
static int late_report(struct nccl_comm *comm, struct lade_error *error)
{
  int late = late_find(comm);
  if (late >= 0 && comm->control->ops->late) {
    comm->control->ops->late(comm->control, late);
    return comm->control->ops->look(comm->control, error);
  }
  return lade_error_set(error, -ETIMEDOUT, "the other ranks of a collective did not come within %g s",
                        comm->base.params.timeout_ms / 1e3);
}

int comm_nccl_look(struct nccl_comm *comm, struct lade_error *error)
{
  int status = lade_comm_status(&comm->base, error);
  if (!status)
    status = intents_compare(comm, NCCL_INTENTS, error);
  if (!status && comm->control->ops->look)
    status = comm->control->ops->look(comm->control, error);
  if (!status && lade_device_status(comm->job->device)) {
    lade_error_set(error, -EIO, "the device has failed");
    lade_cuda_get_error(comm->job->device, error);
    status = error->code;
  }
  return status;
}

/* Check NCCL's own asynchronous error. */
static int handle_look(struct nccl_comm *comm, struct lade_error *error)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  nccl_result state = NCCL_DONE;
  nccl_result result = nccl->ncclCommGetAsyncError(comm->handle, &state);
  if (result)
    return lade_nccl_error_set(nccl, comm->handle, "ncclCommGetAsyncError", result, error);
  if (state == NCCL_DONE || state == NCCL_IN_PROGRESS)
    return 0;
  return lade_nccl_error_set(nccl, comm->handle, "an asynchronous error of NCCL", state, error);
}

/* True if another member has declared itself busy. */
static bool is_excused(struct nccl_comm *comm)
{
  return comm->control->ops->is_excused && comm->control->ops->is_excused(comm->control);
}

/* True if the piece in flight on @lane has been in flight for longer than timeout_ms. */
static bool piece_is_late(struct nccl_comm *comm, int lane)
{
  uint64_t n_begun = atomic_load(&comm->progress[lane].n_begun);
  int64_t now_ns = lade_now_ns();
  bool is_idle = n_begun == atomic_load(&comm->progress[lane].n_ended);
  if (is_idle || n_begun != comm->seen_begun[lane] || is_excused(comm)) {
    comm->seen_begun[lane] = n_begun;
    comm->since_ns[lane] = now_ns;
  }
  return now_ns - comm->since_ns[lane] > comm->base.params.timeout_ms * INT64_C(1000000);
}

static bool is_under_way(struct nccl_comm *comm)
{
  bool is_idle = true;
  for (int lane = 0; lane < NCCL_LANES; lane++)
    is_idle &= atomic_load(&comm->progress[lane].n_ended) == atomic_load(&comm->n_pieces[lane]);
  return !is_idle;
}

/* ---- failing ---- */

nccl_handle comm_nccl_root_take(struct nccl_comm *comm)
{
  pthread_mutex_lock(&comm->root_lock);
  nccl_handle root = comm->root;
  comm->root = NULL;
  pthread_mutex_unlock(&comm->root_lock);
  return root;
}

/* Abort the root. A second thread waits for the first, so that the handle is aborted after the root. */
static int root_abort(void *arg)
{
  struct nccl_comm *comm = arg;
  pthread_mutex_lock(&comm->root_lock);
  if (comm->root)
    comm->job->nccl.ncclCommAbort(comm->root); /* a failure is ignored, because no caller can receive it */
  comm->root = NULL;
  pthread_mutex_unlock(&comm->root_lock);
  return 0;
}

/* Record the failure, report it to ranks that cannot detect it, and end a call on the handle. Any thread. */
static void call_end(struct nccl_comm *comm, int status, const struct lade_error *error)
{
  lade_comm_keep(&comm->base, status, error, NULL);
  if (!lade_comm_has_failed(status))
    lade_comm_abort(comm->control, error->text);
  if (comm->control->ops->spoil)
    comm->control->ops->spoil(comm->control);
  if (lade_cuda_call(comm->job->device, root_abort, comm))
    root_abort(comm); /* without its context */
}

/* Check one communicator. pre: calls is held. */
static void comm_watch(struct nccl_comm *comm)
{
  struct lade_error error = {0};
  if (!comm->handle || (!is_under_way(comm) && !lade_comm_status(&comm->base, NULL)))
    return;
  int status = comm_nccl_look(comm, &error);
  if (!status)
    status = handle_look(comm, &error);
  for (int lane = 0; lane < NCCL_LANES && !status; lane++)
    status = piece_is_late(comm, lane) ? late_report(comm, &error) : 0;
  if (status)
    comm_nccl_fail(comm, status, &error);
}

/* Check for a thread that blocks in a call on the handle. pre: calls is not held by this thread. */
static void call_watch(struct nccl_comm *comm)
{
  struct lade_error error = {0};
  const int64_t since_ns = atomic_load(&comm->inside_ns), now_ns = lade_now_ns();
  if (!since_ns)
    return;
  int status = comm_nccl_look(comm, &error);
  if (is_excused(comm))
    comm->excused_ns = now_ns;
  if (!status && now_ns - LADE_MAX(since_ns, comm->excused_ns) > comm->base.params.timeout_ms * INT64_C(1000000))
    status = late_report(comm, &error);
  if (status)
    call_end(comm, status, &error);
}

static void *watcher_main(void *arg)
{
  struct nccl_job *job = arg;
  pthread_mutex_lock(&job->mutex);
  while (!job->is_ending) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += NCCL_LOOK_MS * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&job->changed, &job->mutex, &until);
    for (int i = 0; i < job->comms.n; i++) {
      struct nccl_comm *comm = job->comms.items[i];
      if (pthread_mutex_trylock(&comm->calls)) { /* its holder does the checks, unless it blocks */
        call_watch(comm);
        continue;
      }
      comm_watch(comm);
      pthread_mutex_unlock(&comm->calls);
    }
  }
  pthread_mutex_unlock(&job->mutex);
  return NULL;
}

int comm_nccl_watch_start(struct nccl_job *job)
{
  int status = lade_thread_start(&job->watcher, "lade-watch", watcher_main, job);
  job->is_watched = !status;
  return status;
}

void comm_nccl_watch_stop(struct nccl_job *job)
{
  if (!job->is_watched)
    return;
  pthread_mutex_lock(&job->mutex);
  job->is_ending = true;
  pthread_cond_signal(&job->changed);
  pthread_mutex_unlock(&job->mutex);
  pthread_join(job->watcher, NULL);
}

int comm_nccl_watch_add(struct nccl_comm *comm)
{
  struct nccl_job *job = comm->job;
  pthread_mutex_lock(&job->mutex);
  bool is_added = LADE_PUSH(&job->comms, comm);
  pthread_mutex_unlock(&job->mutex);
  return is_added ? 0 : -ENOMEM;
}

void comm_nccl_watch_remove(struct nccl_comm *comm)
{
  struct nccl_job *job = comm->job;
  pthread_mutex_lock(&job->mutex);
  for (int i = 0; i < job->comms.n; i++)
    if (job->comms.items[i] == comm)
      job->comms.items[i--] = job->comms.items[--job->comms.n];
  pthread_mutex_unlock(&job->mutex);
}

/* ---- waiting ---- */

int comm_nccl_settle(struct nccl_comm *comm, nccl_handle handle, const char *call, nccl_result result,
                     struct lade_error *error)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  int64_t begin_ns = lade_now_ns(), look_ns = begin_ns;
  long pause_ns = PAUSE_FIRST_NS;
  while (result == NCCL_IN_PROGRESS) {
    nccl_result failed = nccl->ncclCommGetAsyncError(handle, &result);
    if (failed)
      return lade_nccl_error_set(nccl, handle, "ncclCommGetAsyncError", failed, error);
    if (result != NCCL_IN_PROGRESS)
      break;
    nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    pause_ns = LADE_MIN(2 * pause_ns, PAUSE_MAX_NS);
    int64_t now_ns = lade_now_ns();
    if (now_ns - look_ns < NCCL_LOOK_MS * INT64_C(1000000))
      continue;
    look_ns = now_ns;
    int status = comm_nccl_look(comm, error);
    begin_ns = is_excused(comm) ? now_ns : begin_ns;
    if (!status && now_ns - begin_ns > comm->base.params.timeout_ms * INT64_C(1000000))
      status = late_report(comm, error);
    if (status)
      return status;
  }
  int status = result ? lade_comm_status(&comm->base, error) : 0; /* of the watcher, which ended the call */
  return status || !result ? status : lade_nccl_error_set(nccl, handle, call, result, error);
}

void comm_nccl_enter(struct nccl_comm *comm)
{
  atomic_store(&comm->inside_ns, lade_now_ns());
}

int comm_nccl_leave(struct nccl_comm *comm, const char *call, nccl_result result, struct lade_error *error)
{
  atomic_store(&comm->inside_ns, 0);
  return comm_nccl_settle(comm, comm->handle, call, result, error);
}

static int handle_abort(void *arg)
{
  struct nccl_comm *comm = arg;
  comm->job->nccl.ncclCommAbort(comm->handle); /* a failure is ignored, because no caller can receive it */
  comm->handle = NULL;
  return 0;
}

void comm_nccl_fail(struct nccl_comm *comm, int status, const struct lade_error *error)
{
  call_end(comm, status, error);
  if (comm->handle)
    lade_cuda_call(comm->job->device, handle_abort, comm);
  if (comm->handle) /* abort without its context */
    handle_abort(comm);
}
