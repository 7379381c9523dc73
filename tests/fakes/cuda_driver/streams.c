/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's streams: a thread each, which takes pieces of work from a list in order. An event counts its records and
 * its completed records. A waiter waits for the record that was the last one at the time of the call.
 *
 * A wait always completes, also if its call is made to fail: the work fails then, not the wait. A broken context runs
 * nothing more: pieces are dropped, events complete, and every call returns the error. A wait ends when the copies and
 * kernels that were running have ended, so that the memory they use may be unmapped. It does not wait for a host
 * function, which may itself wait for another process.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "stream_internal.h"

#define COLD_TIMES 1000
#define CHANNEL_PIECES 1024
#define POLL_NS 20000 /* between two reads of a word */

EXPORT cuda_result cuMemcpy(cuda_address dst, cuda_address src, size_t bytes);
EXPORT cuda_result cuMemcpyAsync(cuda_address dst, cuda_address src, size_t bytes, cuda_stream stream);
EXPORT cuda_result cuMemsetD8Async(cuda_address at, unsigned char value, size_t n, cuda_stream stream);
EXPORT cuda_result cuStreamCreate(cuda_stream *ret_stream, unsigned flags);
EXPORT cuda_result cuStreamDestroy_v2(cuda_stream stream);
EXPORT cuda_result cuStreamGetCtx(cuda_stream stream, cuda_context *ret_context);
EXPORT cuda_result cuStreamSynchronize(cuda_stream stream);
EXPORT cuda_result cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags);
EXPORT cuda_result cuStreamWaitValue64_v2(cuda_stream stream, cuda_address at, uint64_t value, unsigned flags);
EXPORT cuda_result cuStreamWriteValue64_v2(cuda_stream stream, cuda_address at, uint64_t value, unsigned flags);
EXPORT cuda_result cuLaunchHostFunc(cuda_stream stream, cuda_host_fn *fn, void *args);
EXPORT cuda_result cuEventCreate(cuda_event *ret_event, unsigned flags);
EXPORT cuda_result cuEventDestroy_v2(cuda_event event);
EXPORT cuda_result cuEventRecord(cuda_event event, cuda_stream stream);
EXPORT cuda_result cuEventQuery(cuda_event event);
EXPORT cuda_result cuEventSynchronize(cuda_event event);
EXPORT cuda_result cuEventElapsedTime(float *ret_ms, cuda_event start, cuda_event end);

/* ---- running ---- */

static int64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void event_unref(cuda_event event)
{
  if (--event->n_refs == 0)
    free(event);
}

static bool is_broken(cuda_stream stream)
{
  pthread_mutex_lock(&fake.lock);
  bool broken = stream->context->broken != 0;
  pthread_mutex_unlock(&fake.lock);
  return broken;
}

static void stream_break(cuda_stream stream, cuda_result code)
{
  pthread_mutex_lock(&fake.lock);
  fake_break(stream->context, code);
  pthread_mutex_unlock(&fake.lock);
}

/* Count one more piece of work. False if its context is broken, or if the piece breaks it. Lock held. */
static bool piece_count(cuda_stream stream)
{
  if (fake.lose && ++fake.n_async == fake.lose)
    fake_break(stream->context, (cuda_result)fake.lose_code);
  return stream->context->broken == 0;
}

static bool host_begin(cuda_stream stream)
{
  pthread_mutex_lock(&fake.lock);
  bool is_well = piece_count(stream);
  pthread_mutex_unlock(&fake.lock);
  return is_well;
}

/* Begin a copy, a set, a word or a kernel, which work_end ends. False if it must not run. */
static bool work_begin(cuda_stream stream)
{
  pthread_mutex_lock(&fake.lock);
  bool is_well = piece_count(stream);
  stream->context->n_working += is_well;
  pthread_mutex_unlock(&fake.lock);
  return is_well;
}

static void work_end(cuda_stream stream)
{
  pthread_mutex_lock(&fake.lock);
  stream->context->n_working--;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
}

/* True if @context is broken and its work has ended. Lock held. */
static bool is_over(cuda_context context)
{
  return context->broken && !context->n_working;
}

static void bytes_move(cuda_stream stream, const struct piece *piece)
{
  bool is_copy = piece->kind == PIECE_COPY;
  if (!work_begin(stream))
    return;
  if (fake_place(piece->dst, piece->bytes) == PLACE_BAD ||
      (is_copy && fake_place(piece->src, piece->bytes) == PLACE_BAD))
    stream_break(stream, CUDA_ILLEGAL_ADDRESS);
  else if (is_copy)
    memmove((void *)(uintptr_t)piece->dst, (void *)(uintptr_t)piece->src, piece->bytes);
  else
    memset((void *)(uintptr_t)piece->dst, piece->value, piece->bytes);
  work_end(stream);
}

static void word_wait(cuda_stream stream, const struct piece *piece)
{
  const _Atomic uint64_t *word = (const _Atomic uint64_t *)(uintptr_t)piece->dst;
  const struct timespec pause = {.tv_nsec = POLL_NS};
  while ((int64_t)(atomic_load(word) - piece->count) < 0 && !is_broken(stream))
    nanosleep(&pause, NULL);
}

static void event_wait(cuda_event event, uint64_t count, cuda_context context)
{
  while (event->n_happened < count && !is_over(context))
    pthread_cond_wait(&fake.changed, &fake.lock);
}

static void event_happen(cuda_event event, uint64_t count)
{
  event->n_happened = count;
  event->ns = now_ns() + fake.cold_ns;
  pthread_cond_broadcast(&fake.changed);
}

/* Run a kernel. The first ones of a cold device take COLD_TIMES as long, by the clock of events. */
static void call_run(const struct piece *piece)
{
  const int64_t begin_ns = now_ns();
  piece->fn(piece->args);
  pthread_mutex_lock(&fake.lock);
  if (fake.cold) {
    fake.cold--;
    fake.cold_ns += (COLD_TIMES - 1) * (now_ns() - begin_ns);
  }
  pthread_mutex_unlock(&fake.lock);
}

static void piece_run(cuda_stream stream, struct piece *piece)
{
  if (piece->kind == PIECE_COPY || piece->kind == PIECE_SET)
    bytes_move(stream, piece);
  else if (piece->kind == PIECE_WAIT_WORD)
    word_wait(stream, piece);
  else if (piece->kind == PIECE_WRITE_WORD && work_begin(stream)) {
    atomic_store((_Atomic uint64_t *)(uintptr_t)piece->dst, piece->count);
    work_end(stream);
  } else if (piece->kind == PIECE_HOST && host_begin(stream)) {
    fake_in_host_function(true);
    piece->fn(piece->args);
    fake_in_host_function(false);
  } else if (piece->kind == PIECE_CALL && work_begin(stream)) {
    call_run(piece);
    work_end(stream);
  } else if (piece->kind == PIECE_GRAPH) {
    for (struct piece *node = piece->graph->first; node; node = node->next)
      piece_run(stream, node);
  }
}

/* Free the resources of a piece that has run or will not run. Lock held. */
void fake_piece_free(struct piece *piece)
{
  if (piece->event)
    event_unref(piece->event);
  if (piece->kind == PIECE_CALL)
    free(piece->args);
  if (piece->graph)
    fake_nodes_unref(piece->graph);
  free(piece);
}

static void *stream_main(void *arg)
{
  cuda_stream stream = arg;
  bool is_stopped = false;
  pthread_mutex_lock(&fake.lock);
  while (!is_stopped) {
    while (!stream->first)
      pthread_cond_wait(&fake.changed, &fake.lock);
    struct piece *piece = stream->first;
    stream->first = piece->next;
    stream->last = stream->first ? stream->last : &stream->first;
    is_stopped = piece->kind == PIECE_STOP;
    while (piece->place && piece->place > stream->channel->n_run + 1)
      pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
    piece_run(stream, piece);
    pthread_mutex_lock(&fake.lock);
    if (piece->kind == PIECE_WAIT_EVENT)
      event_wait(piece->event, piece->count, stream->context);
    else if (piece->kind == PIECE_RECORD)
      event_happen(piece->event, piece->count);
    if (piece->place)
      stream->channel->n_run++;
    fake_piece_free(piece);
    stream->n_run++;
    pthread_cond_broadcast(&fake.changed);
  }
  pthread_mutex_unlock(&fake.lock);
  return NULL;
}

/* ---- submitting ---- */

/* Wait until at most @n_max pieces are on @stream, or its context is broken and its work has ended. Lock held. */
static void stream_wait(cuda_stream stream, uint64_t n_max)
{
  while (stream->n_put - stream->n_run > n_max && !is_over(stream->context))
    pthread_cond_wait(&fake.changed, &fake.lock);
}

void fake_drain(void)
{
  pthread_mutex_lock(&fake.lock);
  fake_hold();
  for (cuda_stream stream = fake.streams; stream; stream = stream->next)
    if (stream->context == fake_context())
      stream_wait(stream, 0);
  fake_let_go();
  pthread_mutex_unlock(&fake.lock);
}

/* Put a piece on the stream, or into its graph during a capture. Lock held. */
static void piece_put_locked(cuda_stream stream, const struct piece *piece)
{
  struct piece *own = malloc(sizeof(*own));
  LADE_ASSERT(own);
  *own = *piece;
  own->next = NULL;
  if (stream->capture.nodes) {
    fake_nodes_add(stream->capture.nodes, own);
    return;
  }
  if (stream->n_put - stream->n_run >= CHANNEL_PIECES) { /* full: the submitting thread waits, and blocks all other
                                                            calls */
    fake_hold();
    stream_wait(stream, CHANNEL_PIECES - 1);
    fake_let_go();
  }
  own->place = stream->channel ? ++stream->channel->n_put : 0;
  *stream->last = own;
  stream->last = &own->next;
  stream->n_put++;
  pthread_cond_broadcast(&fake.changed);
}

void fake_piece_put(cuda_stream stream, const struct piece *piece)
{
  pthread_mutex_lock(&fake.lock);
  piece_put_locked(stream, piece);
  pthread_mutex_unlock(&fake.lock);
}

void fake_put_call(cuda_stream stream, cuda_host_fn *fn, void *args)
{
  fake_piece_put(stream, &(struct piece){.kind = PIECE_CALL, .fn = fn, .args = args});
}

/* Wait for all work now on the stream. Return the state of its context. */
static cuda_result stream_drain(cuda_stream stream)
{
  pthread_mutex_lock(&fake.lock);
  uint64_t n = stream->n_put;
  while (stream->n_run < n && !is_over(stream->context))
    pthread_cond_wait(&fake.changed, &fake.lock);
  cuda_result result = stream->context->broken;
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/*
 * Return the channel that a new stream shares: the one with the fewest streams, of as many as
 * CUDA_DEVICE_MAX_CONNECTIONS names, or else the setting. NULL: one of its own. Lock held.
 */
static struct channel *channel_choose(void)
{
  const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const uint64_t wanted = text ? strtoull(text, NULL, 10) : fake.channels, n = LADE_MIN(wanted, MAX_CHANNELS);
  struct channel *best = fake.channels ? fake.channels_used : NULL;
  for (uint64_t i = 1; i < n && best; i++)
    best = fake.channels_used[i].n_streams < best->n_streams ? &fake.channels_used[i] : best;
  return best;
}

/* Create a stream of @context with its thread, in no list. NULL if the thread is refused. */
static cuda_stream stream_create(cuda_context context)
{
  cuda_stream stream = calloc(1, sizeof(*stream));
  LADE_ASSERT(stream);
  stream->context = context;
  stream->last = &stream->first;
  if (!pthread_create(&stream->thread, NULL, stream_main, stream))
    return stream;
  free(stream);
  return NULL;
}

static void stream_enlist(cuda_stream stream)
{
  stream->channel = channel_choose();
  if (stream->channel)
    stream->channel->n_streams++;
  stream->next = fake.streams;
  fake.streams = stream;
}

static void stream_destroy(cuda_stream stream)
{
  fake_piece_put(stream, &(struct piece){.kind = PIECE_STOP});
  pthread_join(stream->thread, NULL);
  pthread_mutex_lock(&fake.lock);
  fake_turn_wait(); /* draining walks the list */
  cuda_stream *at = &fake.streams;
  while (*at != stream)
    at = &(*at)->next;
  *at = stream->next;
  if (stream->channel)
    stream->channel->n_streams--;
  pthread_mutex_unlock(&fake.lock);
  free(stream);
}

cuda_stream fake_stream(cuda_stream stream)
{
  cuda_context context = fake_context();
  if ((uintptr_t)stream > 1 || !context)
    return stream;
  pthread_mutex_lock(&fake.lock);
  if (!context->legacy) {
    context->legacy = stream_create(context);
    LADE_ASSERT(context->legacy);
    stream_enlist(context->legacy);
  }
  stream = context->legacy;
  pthread_mutex_unlock(&fake.lock);
  return stream;
}

void fake_legacy_end(cuda_context context)
{
  if (context->legacy)
    stream_destroy(context->legacy);
  context->legacy = NULL;
}

cuda_result cuMemcpyAsync(cuda_address dst, cuda_address src, size_t bytes, cuda_stream stream)
{
  stream = fake_stream(stream);
  const enum fake_place to = fake_place(dst, bytes), from = fake_place(src, bytes);
  const bool is_pageable = to == PLACE_PAGEABLE || from == PLACE_PAGEABLE;
  cuda_result result = fake_enter("cuMemcpyAsync", true);
  if (!result && (to == PLACE_TORN || from == PLACE_TORN))
    result = CUDA_INVALID_VALUE;
  if (!result)
    result = fake_capture_check(stream, !is_pageable);
  if (result)
    return result;
  fake_piece_put(stream, &(struct piece){.kind = PIECE_COPY, .dst = dst, .src = src, .bytes = bytes});
  return is_pageable ? stream_drain(stream) : 0;
}

cuda_result cuMemcpy(cuda_address dst, cuda_address src, size_t bytes)
{
  cuda_result result = fake_enter("cuMemcpy", true);
  if (result)
    return result;
  if (fake_place(dst, bytes) >= PLACE_BAD || fake_place(src, bytes) >= PLACE_BAD)
    return CUDA_INVALID_VALUE;
  memmove((void *)(uintptr_t)dst, (void *)(uintptr_t)src, bytes);
  return 0;
}

cuda_result cuMemsetD8Async(cuda_address at, unsigned char value, size_t n, cuda_stream stream)
{
  stream = fake_stream(stream);
  cuda_result result = fake_enter("cuMemsetD8Async", true);
  if (!result)
    result = fake_capture_check(stream, true);
  if (!result)
    fake_piece_put(stream, &(struct piece){.kind = PIECE_SET, .dst = at, .bytes = n, .value = value});
  return result;
}

cuda_result cuLaunchHostFunc(cuda_stream stream, cuda_host_fn *fn, void *args)
{
  stream = fake_stream(stream);
  cuda_result result = fake_enter("cuLaunchHostFunc", true);
  if (!result)
    result = fake_capture_check(stream, true);
  if (!result)
    fake_piece_put(stream, &(struct piece){.kind = PIECE_HOST, .fn = fn, .args = args});
  return result;
}

cuda_result cuStreamCreate(cuda_stream *ret_stream, unsigned flags)
{
  cuda_result result = fake_enter("cuStreamCreate", true);
  if (result)
    return result;
  cuda_stream stream = stream_create(fake_context());
  if (!stream)
    return CUDA_OUT_OF_MEMORY;
  fake_alive(1);
  pthread_mutex_lock(&fake.lock);
  stream_enlist(stream);
  pthread_mutex_unlock(&fake.lock);
  *ret_stream = stream;
  return 0;
}

cuda_result cuStreamDestroy_v2(cuda_stream stream)
{
  stream_destroy(stream);
  fake_alive(-1);
  return fake_leave("cuStreamDestroy");
}

cuda_context fake_stream_context(cuda_stream stream)
{
  return (uintptr_t)stream > 1 ? stream->context : fake_context();
}

cuda_result cuStreamGetCtx(cuda_stream stream, cuda_context *ret_context)
{
  *ret_context = fake_stream_context(stream);
  return fake_enter("cuStreamGetCtx", false);
}

cuda_result cuStreamSynchronize(cuda_stream stream)
{
  stream = fake_stream(stream);
  cuda_result result = fake_capture_check(stream, false);
  result = result ? result : stream_drain(stream);
  cuda_result injected = fake_enter("cuStreamSynchronize", true);
  return result ? result : injected;
}

cuda_result cuStreamWaitEvent(cuda_stream stream, cuda_event event, unsigned flags)
{
  stream = fake_stream(stream);
  cuda_result result = fake_enter("cuStreamWaitEvent", true);
  if (!result)
    result = fake_capture_wait(stream, event);
  if (result)
    return result;
  pthread_mutex_lock(&fake.lock);
  event->n_refs++;
  piece_put_locked(stream, &(struct piece){.kind = PIECE_WAIT_EVENT, .event = event, .count = event->n_recorded});
  pthread_mutex_unlock(&fake.lock);
  return 0;
}

cuda_result cuStreamWaitValue64_v2(cuda_stream stream, cuda_address at, uint64_t value, unsigned flags)
{
  stream = fake_stream(stream);
  cuda_result result = fake_enter("cuStreamWaitValue64", true);
  if (!result)
    result = fake_capture_check(stream, false);
  if (result)
    return result;
  if (!fake.words || flags != CUDA_STREAM_WAIT_GEQ || !fake_word(at))
    return CUDA_INVALID_VALUE;
  fake_piece_put(stream, &(struct piece){.kind = PIECE_WAIT_WORD, .dst = fake_word(at), .count = value});
  return 0;
}

cuda_result cuStreamWriteValue64_v2(cuda_stream stream, cuda_address at, uint64_t value, unsigned flags)
{
  cuda_result result = fake_enter("cuStreamWriteValue64", true);
  if (!result)
    result = fake_capture_check(stream, false);
  if (result)
    return result;
  if (!fake.words || flags || !fake_word(at))
    return CUDA_INVALID_VALUE;
  fake_piece_put(stream, &(struct piece){.kind = PIECE_WRITE_WORD, .dst = fake_word(at), .count = value});
  return 0;
}

/* ---- events ---- */

cuda_result cuEventCreate(cuda_event *ret_event, unsigned flags)
{
  cuda_result result = fake_enter("cuEventCreate", true);
  if (result)
    return result;
  cuda_event event = calloc(1, sizeof(*event));
  LADE_ASSERT(event);
  event->n_refs = 1;
  event->is_blocking = flags & CUDA_EVENT_BLOCKING_SYNC;
  event->context = fake_context();
  fake_alive(1);
  *ret_event = event;
  return 0;
}

cuda_result cuEventDestroy_v2(cuda_event event)
{
  pthread_mutex_lock(&fake.lock);
  event_unref(event);
  fake.n_live--;
  pthread_mutex_unlock(&fake.lock);
  return fake_leave("cuEventDestroy");
}

cuda_result cuEventRecord(cuda_event event, cuda_stream stream)
{
  stream = fake_stream(stream);
  cuda_result result = fake_enter("cuEventRecord", true);
  if (!result && event->context != fake_stream_context(stream))
    return CUDA_INVALID_HANDLE;
  if (!result)
    result = fake_capture_check(stream, true);
  event->is_captured = fake_is_capturing(stream); /* and marks a place in the graph, which has no meaning outside it */
  if (result || event->is_captured)
    return result;
  pthread_mutex_lock(&fake.lock);
  event->n_refs++;
  fake.n_interrupts += event->is_blocking;
  piece_put_locked(stream, &(struct piece){.kind = PIECE_RECORD, .event = event, .count = ++event->n_recorded});
  pthread_mutex_unlock(&fake.lock);
  return 0;
}

cuda_result cuEventQuery(cuda_event event)
{
  cuda_result result = fake_enter("cuEventQuery", true);
  if (result || event->is_captured)
    return result ? result : CUDA_CAPTURED_EVENT;
  pthread_mutex_lock(&fake.lock);
  result = event->n_happened < event->n_recorded ? CUDA_NOT_READY : 0;
  pthread_mutex_unlock(&fake.lock);
  return result;
}

cuda_result cuEventSynchronize(cuda_event event)
{
  cuda_context context = fake_context();
  if (event->is_captured)
    return CUDA_CAPTURED_EVENT;
  if (context) {
    pthread_mutex_lock(&fake.lock);
    event_wait(event, event->n_recorded, context);
    pthread_mutex_unlock(&fake.lock);
  }
  return fake_enter("cuEventSynchronize", true);
}

cuda_result cuEventElapsedTime(float *ret_ms, cuda_event start, cuda_event end)
{
  cuda_result result = fake_enter("cuEventElapsedTime", true);
  if (result)
    return result;
  pthread_mutex_lock(&fake.lock);
  if (start->is_captured || end->is_captured || start->context != end->context)
    result = CUDA_INVALID_HANDLE;
  else if (!start->n_recorded || !end->n_recorded)
    result = CUDA_INVALID_HANDLE;
  else if (start->n_happened < start->n_recorded || end->n_happened < end->n_recorded)
    result = CUDA_NOT_READY;
  *ret_ms = (float)((double)(end->ns - start->ns) / 1e6);
  pthread_mutex_unlock(&fake.lock);
  return result;
}
