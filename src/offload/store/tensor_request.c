/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: admission, room for puts, and the threads that move submitted ones.
 *
 * A request is admitted under the mutex. The store checks its name, its range, its overlap with requests in flight,
 * and for a put its room. So a refused request has changed nothing, except that a put of a whole tensor may drop the
 * tensor if memory is out. Then the calling thread moves the bytes, or a mover does, a thread of the store that takes
 * the oldest request of the queue. A mover runs one request at a time; several movers keep the drive busy with short
 * requests. Rejected: transfers that continue one another in completion callbacks, because bytes are copied and hashed
 * there, in whichever thread waits.
 *
 * A put over published runs takes fresh room, for the runs of its range alone. The old runs are held until the next
 * publish (free_extents.h). Checksums of a tensor's parts share the generation of the tensor's first put; a stale part
 * is still found, because the checksum in memory is that of the newest bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "offload/store/tensor_internal.h"

#define RUNS_RESERVE(runs, n) lade_array_reserve((void **)&(runs)->items, &(runs)->capacity, n, sizeof(*(runs)->items))

/* The parameters of a request, checked as far as possible without the store. */
struct request_params {
  enum lade_tensor_op op;
  const char *name;
  void *data;
  uint64_t offset, bytes; /* range of the tensor */
  uint64_t tensor_bytes;  /* size of the tensor; never 0 */
};

/* ---- room; mutex held ---- */

static int full_error(const struct lade_tensor_store *s, const struct tensor *tensor, uint64_t wanted, uint64_t has,
                      struct lade_error *error)
{
  return lade_error_set(error, -EOVERFLOW, "'%.*s' needs %llu bytes of the store, and %llu of its %llu are free%s; "
                        "drop tensors or open it with a larger budget", TENSOR_NAME_SHOWN, tensor->name,
                        (unsigned long long)wanted, (unsigned long long)has, (unsigned long long)s->budget_bytes,
                        s->room.held.n ? " until the next publish" : "");
}

static int memory_error(const char *name, struct lade_error *error)
{
  return lade_error_set(error, -ENOMEM, "no memory for '%.*s' in the store", TENSOR_NAME_SHOWN, name);
}

static bool has_held(const store_runs *runs, int from, int to)
{
  bool is_held = false;
  for (int i = from; i < to; i++)
    is_held |= runs->items[i].is_held;
  return is_held;
}

/* Give @tensor room for @bytes; keep its present room if that fits and is not published. */
static int room_resize(struct lade_tensor_store *s, struct tensor *tensor, uint64_t bytes, struct lade_error *error)
{
  /* Rounding a size near 2^64 wraps to 0. */
  const uint64_t rounded = LADE_MAX(bytes, lade_align_up(bytes, LADE_STORE_GRANULE_BYTES));
  uint64_t usable = store_runs_bytes(&s->room.free);
  const bool is_held = has_held(&tensor->runs, 0, tensor->runs.n);
  if (!is_held && store_runs_bytes(&tensor->runs) == rounded)
    return 0;
  for (int i = 0; i < tensor->runs.n; i++)
    usable += tensor->runs.items[i].is_held ? 0 : tensor->runs.items[i].bytes;
  if (rounded > usable)
    return full_error(s, tensor, rounded, usable, error);
  store_room_give(&s->room, &tensor->runs);
  int code = store_room_take(&s->room, &tensor->runs, rounded);
  LADE_ASSERT(code != -EOVERFLOW);
  return code ? memory_error(tensor->name, error) : 0;
}

/* Replace runs [from, to) of @tensor by @fresh ones, and give the old ones back. -ENOMEM with nothing changed. */
static int runs_replace(struct lade_tensor_store *s, struct tensor *tensor, int from, int to, const store_runs *fresh)
{
  store_runs *runs = &tensor->runs, old = {0};
  const int n = runs->n - (to - from) + fresh->n;
  if (!RUNS_RESERVE(&old, to - from) || !RUNS_RESERVE(runs, LADE_MAX(n, runs->n))) {
    LADE_ARRAY_FREE(&old);
    return -ENOMEM;
  }
  old.n = to - from;
  memcpy(old.items, runs->items + from, (size_t)old.n * sizeof(*old.items));
  memmove(runs->items + from + fresh->n, runs->items + to, (size_t)(runs->n - to) * sizeof(*runs->items));
  memcpy(runs->items + from, fresh->items, (size_t)fresh->n * sizeof(*runs->items));
  runs->n = n;
  store_room_give(&s->room, &old);
  LADE_ARRAY_FREE(&old);
  return 0;
}

/*
 * Make the runs of a part of @tensor writable: fresh ones take the place of published ones. Reserve @ret_runs, which is
 * empty, for the runs of the part. On failure the tensor's bytes are unchanged.
 */
static int room_unshare(struct lade_tensor_store *s, struct tensor *tensor, uint64_t offset, uint64_t bytes,
                        store_runs *ret_runs, struct lade_error *error)
{
  const uint64_t rounded = lade_align_up(bytes, LADE_STORE_GRANULE_BYTES);
  store_runs fresh = {0};
  const int from = store_room_split(&s->room, &tensor->runs, offset);
  const int to = from < 0 ? from : store_room_split(&s->room, &tensor->runs, offset + rounded);
  if (to < 0)
    return memory_error(tensor->name, error);
  const bool is_held = has_held(&tensor->runs, from, to);
  int code = is_held ? store_room_take(&s->room, &fresh, rounded) : 0;
  if (!code && !RUNS_RESERVE(ret_runs, is_held ? fresh.n : to - from))
    code = -ENOMEM;
  if (!code && is_held)
    code = runs_replace(s, tensor, from, to, &fresh);
  if (code)
    store_room_give(&s->room, &fresh);
  LADE_ARRAY_FREE(&fresh);
  if (code == -EOVERFLOW)
    return full_error(s, tensor, rounded, store_runs_bytes(&s->room.free), error);
  return code ? memory_error(tensor->name, error) : 0;
}

/* ---- admission; mutex held ---- */

static int busy_error(const struct tensor *tensor, struct lade_error *error)
{
  return lade_error_set(error, -EBUSY, "'%.*s' is being moved by another request", TENSOR_NAME_SHOWN, tensor->name);
}

static int size_error(const struct tensor *tensor, const struct request_params *params, struct lade_error *error)
{
  return lade_error_set(error, -EINVAL, "'%.*s' has %llu bytes, and %llu were asked for", TENSOR_NAME_SHOWN,
                        tensor->name, (unsigned long long)tensor->bytes, (unsigned long long)params->tensor_bytes);
}

/*
 * True if a request of @params must not run at the same time as the requests of @tensor. A put of the whole tensor may
 * change its size, so it runs alone.
 */
static bool is_busy(const struct tensor *tensor, const struct request_params *params)
{
  const bool is_whole_put = params->op == LADE_TENSOR_PUT && params->bytes == params->tensor_bytes;
  for (const lade_tensor_ticket *r = tensor->requests; r; r = r->next_of_tensor) {
    const bool overlaps = r->offset < params->offset + params->bytes && params->offset < r->offset + r->bytes;
    if (is_whole_put || (overlaps && (r->op == LADE_TENSOR_PUT || params->op == LADE_TENSOR_PUT)))
      return true;
  }
  return tensor->is_lost;
}

/* Find or create the tensor of a put, with room for it. Of a part, reserve @ret_runs for its runs. */
static int put_admit(struct lade_tensor_store *s, const struct request_params *params, struct tensor **ret_tensor,
                     store_runs *ret_runs, struct lade_error *error)
{
  const bool is_whole = params->bytes == params->tensor_bytes;
  struct tensor *tensor = tensor_find(s, params->name);
  const bool is_new = !tensor;
  if (tensor && is_busy(tensor, params))
    return busy_error(tensor, error);
  if (tensor && !is_whole && tensor->bytes != params->tensor_bytes)
    return size_error(tensor, params, error);
  if (is_new && !(tensor = tensor_make(s, params->name)))
    return memory_error(params->name, error);
  int code = is_new || is_whole ? room_resize(s, tensor, params->tensor_bytes, error)
                                : room_unshare(s, tensor, params->offset, params->bytes, ret_runs, error);
  if (code) {
    if (!tensor->runs.n) /* a new tensor, or one whose old room was given back */
      tensor_remove(s, tensor);
    return code;
  }
  if (is_new || is_whole) {
    tensor->bytes = params->tensor_bytes;
    tensor->generation = ++s->n_puts;
  }
  *ret_tensor = tensor;
  return 0;
}

static int get_admit(struct lade_tensor_store *s, const struct request_params *params, struct tensor **ret_tensor,
                     struct lade_error *error)
{
  struct tensor *tensor = tensor_find(s, params->name);
  if (!tensor || tensor->is_lost)
    return lade_error_set(error, -ENOENT, "there is no '%.*s' in the store", TENSOR_NAME_SHOWN, params->name);
  if (is_busy(tensor, params))
    return busy_error(tensor, error);
  if (tensor->bytes != params->tensor_bytes)
    return size_error(tensor, params, error);
  for (int i = 0; i < tensor->unwritten.n; i++) {
    const struct byte_range *part = &tensor->unwritten.items[i];
    if (part->from < params->offset + params->bytes && params->offset < part->end)
      return lade_error_set(error, -EBADMSG, "the put of bytes %llu to %llu of '%.*s' failed; put them again",
                            (unsigned long long)part->from, (unsigned long long)part->end, TENSOR_NAME_SHOWN,
                            tensor->name);
  }
  *ret_tensor = tensor;
  return 0;
}

/* Copy the runs that hold the range of @request. -ENOMEM. */
static int runs_copy(const struct tensor *tensor, lade_tensor_ticket *request)
{
  uint64_t skip = request->offset, left = lade_align_up(request->bytes, LADE_STORE_GRANULE_BYTES);
  for (int i = 0; i < tensor->runs.n && left; i++) {
    struct store_run run = tensor->runs.items[i];
    const uint64_t skipped = LADE_MIN(skip, run.bytes);
    skip -= skipped;
    run.offset += skipped;
    run.bytes = LADE_MIN(run.bytes - skipped, left);
    if (!run.bytes)
      continue;
    left -= run.bytes;
    if (!LADE_PUSH(&request->runs, run))
      return -ENOMEM;
  }
  LADE_ASSERT(!left);
  return 0;
}

/*
 * Admit a request of @params and fill @request, which is zeroed. On failure nothing has begun. -ENOMEM may also drop
 * the tensor of a put that is new or whole, because its former bytes may have lost their room.
 */
static int request_admit(struct lade_tensor_store *s, const struct request_params *params, lade_tensor_ticket *request,
                         struct lade_error *error)
{
  struct tensor *tensor = NULL;
  store_runs runs = {0};
  int code = params->op == LADE_TENSOR_PUT ? put_admit(s, params, &tensor, &runs, error)
                                           : get_admit(s, params, &tensor, error);
  if (code) {
    LADE_ARRAY_FREE(&runs);
    return code;
  }
  *request = (lade_tensor_ticket){.tensor = tensor, .op = params->op, .data = params->data, .offset = params->offset,
                                  .bytes = params->bytes, .next_of_tensor = tensor->requests, .runs = runs};
  if (runs_copy(tensor, request)) {
    LADE_ARRAY_FREE(&request->runs);
    tensor->is_lost |= params->op == LADE_TENSOR_PUT;
    if (tensor->is_lost && !tensor->requests)
      tensor_remove(s, tensor);
    return memory_error(params->name, error);
  }
  tensor->requests = request;
  return 0;
}

/* Record in the list of unwritten parts whether the put of [@from, @end) succeeded. -ENOMEM with the list unchanged. */
static int unwritten_record(struct tensor *tensor, uint64_t from, uint64_t end, bool is_written)
{
  byte_ranges *old = &tensor->unwritten, now = {0};
  if (!old->n && is_written)
    return 0;
  if (!lade_array_reserve((void **)&now.items, &now.capacity, 2 * old->n + 1, sizeof(*now.items)))
    return -ENOMEM;
  for (int i = 0; i < old->n; i++) {
    const struct byte_range part = old->items[i];
    if (part.from < from)
      now.items[now.n++] = (struct byte_range){part.from, LADE_MIN(part.end, from)};
    if (part.end > end)
      now.items[now.n++] = (struct byte_range){LADE_MAX(part.from, end), part.end};
  }
  if (!is_written)
    now.items[now.n++] = (struct byte_range){from, end};
  LADE_ARRAY_FREE(old);
  *old = now;
  return 0;
}

/* Account for the end of a put: a whole one that failed drops the tensor, one of a part leaves the other parts. */
static void put_finish(struct tensor *tensor, const lade_tensor_ticket *request, bool is_written)
{
  const bool is_whole = request->bytes == tensor->bytes;
  if (is_whole && !is_written)
    tensor->is_lost = true;
  else if (is_whole) /* its former bytes may have been more, so parts past its end are forgotten too */
    LADE_ARRAY_FREE(&tensor->unwritten);
  else if (unwritten_record(tensor, request->offset, request->offset + request->bytes, is_written))
    tensor->is_lost |= !is_written; /* a part that cannot be recorded; one that is kept too long is put again */
}

/* Finish @request with @result. */
static void request_finish(struct lade_tensor_store *s, lade_tensor_ticket *request, int result)
{
  struct tensor *tensor = request->tensor;
  lade_tensor_ticket **at = &tensor->requests;
  while (*at != request)
    at = &(*at)->next_of_tensor;
  *at = request->next_of_tensor;
  LADE_ARRAY_FREE(&request->runs);
  if (request->op == LADE_TENSOR_PUT)
    put_finish(tensor, request, !result);
  if (tensor->is_lost && !tensor->requests)
    tensor_remove(s, tensor);
  request->tensor = NULL;
  request->result = result;
  request->is_done = true;
  if (request->is_async)
    s->in_flight_bytes -= request->bytes;
  pthread_cond_broadcast(&s->changed);
}

/* ---- in the caller's thread ---- */

static int child_error(struct lade_error *error)
{
  return lade_error_set(error, -EPERM, "this process is a fork of the one that opened the store; open one after the "
                        "fork");
}

int tensor_request_run(struct lade_tensor_store *s, enum lade_tensor_op op, const char *name, void *data,
                       uint64_t bytes, struct lade_error *error)
{
  const struct request_params params = {.op = op, .name = name, .data = data, .bytes = bytes, .tensor_bytes = bytes};
  lade_tensor_ticket request = {0};
  if (!*s->is_alive)
    return child_error(error);
  pthread_mutex_lock(&s->mutex);
  int code = request_admit(s, &params, &request, error);
  pthread_mutex_unlock(&s->mutex);
  if (code)
    return code;
  code = tensor_move(s, &request, error);
  pthread_mutex_lock(&s->mutex);
  request_finish(s, &request, code);
  pthread_mutex_unlock(&s->mutex);
  return code;
}

/* ---- in the threads of the store ---- */

/* Take the oldest queued request; wait for one. NULL once the store closes. Mutex held. */
static lade_tensor_ticket *queue_take(struct lade_tensor_store *s)
{
  while (!s->head && !s->is_closing)
    pthread_cond_wait(&s->changed, &s->mutex);
  lade_tensor_ticket *request = s->is_closing ? NULL : s->head;
  if (request && !(s->head = request->next))
    s->tail = NULL;
  return request;
}

static void *mover_main(void *arg)
{
  struct lade_tensor_store *s = arg;
  lade_tensor_ticket *request;
  pthread_mutex_lock(&s->mutex);
  while ((request = queue_take(s))) {
    pthread_mutex_unlock(&s->mutex);
    int code = tensor_move(s, request, &request->why);
    pthread_mutex_lock(&s->mutex);
    request_finish(s, request, code);
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

int tensor_movers_start(struct lade_tensor_store *s, struct lade_error *error)
{
  while (s->n_movers < TENSOR_N_MOVERS) {
    int code = lade_thread_start(&s->movers[s->n_movers], "lade-tensors", mover_main, s);
    if (code)
      return lade_error_set(error, code, "the machine refused a thread for requests of a store (%s)", strerror(-code));
    s->n_movers++;
  }
  return 0;
}

static void ticket_end(struct lade_tensor_store *s, lade_tensor_ticket *ticket)
{
  if (ticket->previous_open)
    ticket->previous_open->next_open = ticket->next_open;
  else
    s->open = ticket->next_open;
  if (ticket->next_open)
    ticket->next_open->previous_open = ticket->previous_open;
  free(ticket);
}

void tensor_movers_stop(struct lade_tensor_store *s)
{
  pthread_mutex_lock(&s->mutex);
  s->is_closing = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  while (s->n_movers)
    pthread_join(s->movers[--s->n_movers], NULL);
  for (lade_tensor_ticket *request = s->head; request; request = request->next)
    request_finish(s, request, -ECANCELED);
  while (s->open)
    ticket_end(s, s->open);
}

/* ---- submit and wait ---- */

/* Read @request and check all that does not depend on the store's contents. */
static int params_read(const struct lade_tensor_request *request, struct request_params *ret_params,
                       struct lade_error *error)
{
  struct lade_tensor_request given;
  int code = lade_struct_read("lade_tensor_request", request, &given, sizeof(given), error);
  if (code)
    return code;
  const uint64_t whole = given.tensor_bytes ? given.tensor_bytes : given.bytes;
  if (given.op != LADE_TENSOR_PUT && given.op != LADE_TENSOR_GET)
    return lade_error_set(error, -EINVAL, "%d is no operation of a tensor request", (int)given.op);
  if (!given.name || !*given.name || !given.data || !given.bytes)
    return lade_error_set(error, -EINVAL, "a tensor request has a name, memory and bytes");
  if (given.offset > whole || given.bytes > whole - given.offset)
    return lade_error_set(error, -EINVAL, "'%.*s': bytes %llu to %llu are not within a tensor of %llu",
                          TENSOR_NAME_SHOWN, given.name, (unsigned long long)given.offset,
                          (unsigned long long)(given.offset + given.bytes), (unsigned long long)whole);
  const bool is_end = given.offset + given.bytes == whole;
  if (given.offset % LADE_STORE_GRANULE_BYTES || (!is_end && given.bytes % LADE_STORE_GRANULE_BYTES))
    return lade_error_set(error, -EINVAL, "'%.*s': a part begins and ends at multiples of %d bytes or at the tensor's "
                          "end, not at %llu to %llu", TENSOR_NAME_SHOWN, given.name, LADE_STORE_GRANULE_BYTES,
                          (unsigned long long)given.offset, (unsigned long long)(given.offset + given.bytes));
  *ret_params = (struct request_params){.op = given.op, .name = given.name, .data = given.data,
                                        .offset = given.offset, .bytes = given.bytes, .tensor_bytes = whole};
  return 0;
}

/* Queue an admitted request after the others. Mutex held. */
static void request_queue(struct lade_tensor_store *s, lade_tensor_ticket *request)
{
  request->is_async = true;
  s->in_flight_bytes += request->bytes;
  s->in_flight_peak_bytes = LADE_MAX(s->in_flight_peak_bytes, s->in_flight_bytes);
  if (s->tail)
    s->tail->next = request;
  else
    s->head = request;
  s->tail = request;
  request->next_open = s->open;
  if (s->open)
    s->open->previous_open = request;
  s->open = request;
  pthread_cond_broadcast(&s->changed);
}

/* Return the bytes that may still be submitted within the bound. Mutex held. */
static uint64_t in_flight_left(const struct lade_tensor_store *s)
{
  return s->in_flight_limit_bytes - LADE_MIN(s->in_flight_bytes, s->in_flight_limit_bytes);
}

int lade_tensor_store_submit(struct lade_tensor_store *s, const struct lade_tensor_request *request,
                             struct lade_error *error, lade_tensor_ticket **ret_ticket)
{
  if (!s || !ret_ticket)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_submit: store or ret_ticket is NULL");
  struct request_params params;
  int code = params_read(request, &params, error);
  if (code)
    return code;
  if (!*s->is_alive)
    return child_error(error);
  lade_tensor_ticket *ticket = calloc(1, sizeof(*ticket));
  if (!ticket)
    return memory_error(params.name, error);
  pthread_mutex_lock(&s->mutex);
  while (s->in_flight_bytes && in_flight_left(s) < params.bytes)
    pthread_cond_wait(&s->changed, &s->mutex);
  code = request_admit(s, &params, ticket, error);
  if (!code)
    request_queue(s, ticket);
  pthread_mutex_unlock(&s->mutex);
  if (code) {
    free(ticket);
    return code;
  }
  *ret_ticket = ticket;
  return 0;
}

int lade_tensor_store_is_done(struct lade_tensor_store *s, const lade_tensor_ticket *ticket)
{
  if (!s || !ticket)
    return -EINVAL;
  if (!*s->is_alive)
    return -EPERM;
  pthread_mutex_lock(&s->mutex);
  const bool is_done = ticket->is_done;
  pthread_mutex_unlock(&s->mutex);
  return is_done;
}

int lade_tensor_store_wait(struct lade_tensor_store *s, lade_tensor_ticket *ticket, struct lade_error *error)
{
  if (!s || !ticket)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_wait: store or ticket is NULL");
  if (!*s->is_alive)
    return child_error(error);
  pthread_mutex_lock(&s->mutex);
  while (!ticket->is_done)
    pthread_cond_wait(&s->changed, &s->mutex);
  const int result = ticket->result;
  if (result && error)
    *error = ticket->why;
  ticket_end(s, ticket);
  pthread_mutex_unlock(&s->mutex);
  return result;
}
