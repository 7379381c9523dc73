/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device's queues. Queues that compute and copy are streams; queues for drives and the processor are host
 * queues.
 *
 * Roles IO, HOST and SIGNAL are the host device's own queues (host_queue.c). Their work runs on the processor, and a
 * separate thread runs it faster than the driver's one thread for host functions.
 *
 * A stream queue puts its work on the stream in the thread that submits, between two events. A ring of slots holds the
 * work in flight. A thread, the witness, waits for the end event of each slot in turn; the driver lets it sleep. It
 * takes the times and raises the queue's counter. So any thread can sleep on the counter, and host queues wait for
 * streams in the same way as for each other. No thread waits for a later event than it needs, unlike with a
 * synchronisation of the whole stream.
 *
 * Streams wait for streams through the end event of the slot. An event is recorded again only when its slot is reused,
 * under the queue's lock. Under the same lock another queue checks that the count has not been reached, and makes its
 * stream wait. For counts that the host raises, and for counts not yet submitted, a stream waits on a 64-bit word of
 * pinned memory. The host's counter writes the word and the GPU polls it, without a host thread in between.
 *
 * Plain work functions run in the driver's callback thread (cuLaunchHostFunc). Tests and small host work use them;
 * kernels come through lade_cuda_queue_enqueue.
 *
 * After an error of the context, every call in it fails at once. Slots whose events cannot be waited for count as done,
 * the counters go on, and the first error is the device's status. If recording an end event fails, it is tried once
 * more, because the work before it may hold its caller's memory. After a second failure the stream runs no more work.
 * Once a driver call has failed, copies and kernels are not submitted any more: the call may have been a wait, and
 * they would run beside the work that they depend on.
 *
 * Rejected: a 64-bit word per stream, written by the stream itself and polled by others. The driver cannot see that
 * order, so streams that share a hardware channel can deadlock; the driver does see the order of events.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_internal.h"

/*
 * A power of two: slots in flight of one queue before its submitting thread waits here. A channel of the driver holds
 * about a thousand launches, events and waits. A thread that submits more waits inside the driver, and blocks the
 * driver calls of all other threads, also those of a witness.
 */
#define N_SLOTS 128
#define WORD_BYTES 64 /* a cache line for each word */

enum slot_kind { SLOT_WORK, SLOT_STREAM, SLOT_WAIT_STREAM, SLOT_WAIT_WORD, SLOT_STOP };

struct cuda_slot {
  cuda_event start, end;
  enum slot_kind kind;
  bool is_started, is_recorded;  /* the events were recorded in this use of the slot */
  struct lade_span *ret_span;
  struct lade_work work;         /* of SLOT_WORK */
  struct lade_span span;         /* of SLOT_WORK, by the host's clock; 0 if it never ran */
  struct host_queue *other;      /* queue that a wait slot waits for, with a reference */
  uint64_t other_count;
};

struct cuda_queue {
  struct host_queue core; /* without a ring: the work is on the stream */
  cuda_stream stream;
  bool is_adopted;        /* the caller owns the stream */
  struct cuda_slot *slots;
  pthread_mutex_t lock;             /* guards the recording of end events, and the field below */
  uint32_t slot_of_count[N_SLOTS];  /* slot of each count in flight */
};

static struct cuda_device *cuda_get(const struct cuda_queue *queue)
{
  return (struct cuda_device *)queue->core.base.device;
}

static bool role_is_stream(enum lade_queue_role role)
{
  return role != LADE_QUEUE_SIGNAL && role != LADE_QUEUE_IO && role != LADE_QUEUE_HOST;
}

/* ---- words ---- */

/* Take a free word and set it to 0; an empty one if all are in use. */
static struct host_word word_take(struct cuda_device *cuda)
{
  uint64_t taken = atomic_load(&cuda->words_taken);
  while (taken != UINT64_MAX) {
    int i = __builtin_ctzll(~taken);
    if (atomic_compare_exchange_weak(&cuda->words_taken, &taken, taken | (UINT64_C(1) << i))) {
      struct host_word word = {(_Atomic uint64_t *)(void *)(cuda->words + i * WORD_BYTES), &cuda->words_taken,
                               UINT64_C(1) << i};
      atomic_store(word.at, 0);
      return word;
    }
  }
  return (struct host_word){0};
}

static void word_give_back(const struct host_word *word)
{
  atomic_fetch_and(word->taken, ~word->taken_bit);
}

/* ---- the witness ---- */

/*
 * Return the time in which the slot's work ran. Host functions recorded the host's time; failed work has an empty span
 * at the present time.
 */
static struct lade_span slot_span(struct cuda_device *cuda, const struct cuda_slot *slot)
{
  struct lade_span span = slot->span;
  if (slot->kind == SLOT_WORK && span.end_ns)
    return span;
  bool is_timed = slot->is_started && slot->is_recorded && lade_device_status(&cuda->base) == 0;
  if (!is_timed || lade_cuda_time(cuda, slot->start, &span.start_ns) || lade_cuda_time(cuda, slot->end, &span.end_ns))
    span.start_ns = span.end_ns = lade_now_ns();
  span.end_ns = LADE_MAX(span.start_ns, span.end_ns);
  return span;
}

/*
 * Retire a wait slot. The GPU can see an event before its queue's witness counts it. So wait for the count here: after
 * this slot, every thread must find the event counted.
 */
static void wait_retire(struct cuda_queue *queue, struct cuda_slot *slot)
{
  counter_wait(&slot->other->done, slot->other_count);
  lade_host_queue_wait_check(queue->core.base.device, slot->other, slot->other_count);
  lade_host_queue_unref(slot->other);
}

static void slot_retire(struct cuda_queue *queue, struct cuda_slot *slot)
{
  struct cuda_device *cuda = cuda_get(queue);
  if (slot->is_recorded)
    lade_cuda_check(cuda, "cuEventSynchronize", cuda->driver.cuEventSynchronize(slot->end));
  if (slot->kind == SLOT_WAIT_STREAM || slot->kind == SLOT_WAIT_WORD) {
    wait_retire(queue, slot);
    return;
  }
  struct lade_span span = slot_span(cuda, slot);
  lade_host_queue_finish(&queue->core, span.start_ns, span.end_ns, slot->ret_span);
}

static void *witness_main(void *arg)
{
  struct cuda_queue *queue = arg;
  struct cuda_device *cuda = cuda_get(queue);
  int mode = CUDA_CAPTURE_RELAXED; /* a global capture of the caller must not refuse the calls of this thread */
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_check(cuda, "cuThreadExchangeStreamCaptureMode", cuda->driver.cuThreadExchangeStreamCaptureMode(&mode));
  for (uint64_t i = 0;; i++) {
    counter_wait(&queue->core.submitted, i + 1);
    struct cuda_slot *slot = &queue->slots[i % N_SLOTS];
    if (slot->kind == SLOT_STOP)
      break;
    if (!is_entered) /* without a context it could not wait, and running work would count as done */
      is_entered = lade_cuda_enter(cuda);
    slot_retire(queue, slot);
    counter_raise(&queue->core.taken, i + 1);
  }
  lade_cuda_leave(cuda, is_entered);
  return NULL;
}

/* ---- the submitter ---- */

/* Wait until the next slot is free, and initialise it. */
static struct cuda_slot *slot_take(struct cuda_queue *queue, enum slot_kind kind)
{
  uint64_t i = queue->core.n_entries;
  if (i - counter_get(&queue->core.taken) == N_SLOTS)
    counter_wait(&queue->core.taken, i - N_SLOTS / 2);
  struct cuda_slot *slot = &queue->slots[i % N_SLOTS];
  *slot = (struct cuda_slot){.start = slot->start, .end = slot->end, .kind = kind};
  return slot;
}

static void slot_submit(struct cuda_queue *queue)
{
  counter_raise(&queue->core.submitted, ++queue->core.n_entries);
}

static void slot_start(struct cuda_queue *queue, struct cuda_slot *slot)
{
  struct cuda_device *cuda = cuda_get(queue);
  slot->is_started =
      !lade_cuda_check(cuda, "cuEventRecord", cuda->driver.cuEventRecord(slot->start, queue->stream));
}

/* Record the end event after all work on the stream. Lock held. */
static void slot_end_locked(struct cuda_queue *queue, struct cuda_slot *slot)
{
  struct cuda_device *cuda = cuda_get(queue);
  for (int i = 0; i < 2 && !slot->is_recorded; i++)
    slot->is_recorded = !lade_cuda_check(cuda, "cuEventRecord", cuda->driver.cuEventRecord(slot->end, queue->stream));
}

static void slot_end(struct cuda_queue *queue, struct cuda_slot *slot)
{
  pthread_mutex_lock(&queue->lock);
  slot_end_locked(queue, slot);
  pthread_mutex_unlock(&queue->lock);
}

/* Record the end event of work, and assign its count. From here on other queues find the slot by the count. */
static uint64_t slot_end_counted(struct cuda_queue *queue, struct cuda_slot *slot)
{
  pthread_mutex_lock(&queue->lock);
  slot_end_locked(queue, slot);
  uint64_t count = lade_host_queue_count(&queue->core);
  queue->slot_of_count[count % N_SLOTS] = (uint32_t)(slot - queue->slots);
  pthread_mutex_unlock(&queue->lock);
  return count;
}

/* Run a plain work function, in the driver's thread. */
static void work_run(void *arg)
{
  struct cuda_slot *slot = arg;
  slot->span.start_ns = lade_now_ns();
  slot->work.fn(slot->work.args);
  slot->span.end_ns = lade_now_ns();
}

static uint64_t stream_launch(struct cuda_queue *queue, const struct lade_work *work)
{
  struct cuda_device *cuda = cuda_get(queue);
  struct cuda_slot *slot = slot_take(queue, SLOT_WORK);
  slot->work = *work;
  slot->ret_span = work->ret_span;
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_check(cuda, "cuLaunchHostFunc", cuda->driver.cuLaunchHostFunc(queue->stream, work_run, slot));
  uint64_t count = slot_end_counted(queue, slot);
  lade_cuda_leave(cuda, is_entered);
  slot_submit(queue);
  return count;
}

/* Put the work of @fn on the stream, between two events. After a failed driver call only the events. */
static uint64_t stream_enqueue(struct cuda_queue *queue, const char *call, lade_cuda_enqueue_fn *fn, void *args,
                               struct lade_span *ret_span)
{
  struct cuda_device *cuda = cuda_get(queue);
  struct cuda_slot *slot = slot_take(queue, SLOT_STREAM);
  slot->ret_span = ret_span;
  bool is_entered = lade_cuda_enter(cuda);
  slot_start(queue, slot);
  if (fn && !atomic_load(&cuda->has_failed_call))
    lade_cuda_check(cuda, call, fn(queue->stream, args));
  uint64_t count = slot_end_counted(queue, slot);
  lade_cuda_leave(cuda, is_entered);
  slot_submit(queue);
  return count;
}

struct copy_args {
  const struct cuda_driver *driver;
  const struct lade_copy *copy;
};

static int copy_put(void *stream, void *arg)
{
  const struct copy_args *args = arg;
  const struct lade_copy *copy = args->copy;
  return copy->bytes ? args->driver->cuMemcpyAsync((cuda_address)(uintptr_t)copy->dst,
                                                   (cuda_address)(uintptr_t)copy->src, copy->bytes, stream)
                     : CUDA_DONE;
}

static uint64_t stream_copy(struct cuda_queue *queue, const struct lade_copy *copy)
{
  struct cuda_device *cuda = cuda_get(queue);
  struct copy_args args = {&cuda->driver, copy};
  int error = lade_fault(cuda->base.faults, LADE_FAULT_COPY);
  if (error)
    lade_device_fail(&cuda->base, error);
  return stream_enqueue(queue, "cuMemcpyAsync", error ? NULL : copy_put, &args, copy->ret_span);
}

/* Make the stream wait for the event of another stream. False if that has not been submitted yet. */
static bool event_wait(struct cuda_queue *queue, struct cuda_queue *other, uint64_t count)
{
  struct cuda_device *cuda = cuda_get(queue);
  bool is_known = true;
  cuda_result result = 0;
  pthread_mutex_lock(&other->lock);
  if (counter_get(&other->core.done) < count) {
    struct cuda_slot *slot = &other->slots[other->slot_of_count[count % N_SLOTS]];
    is_known = count <= atomic_load(&other->core.n_counted);
    if (is_known && slot->is_recorded)
      result = cuda->driver.cuStreamWaitEvent(queue->stream, slot->end, 0);
  }
  pthread_mutex_unlock(&other->lock);
  lade_cuda_check(cuda, "cuStreamWaitEvent", result);
  return is_known;
}

/* Make the stream poll another queue's word. */
static void word_wait(struct cuda_queue *queue, struct host_queue *other, uint64_t count)
{
  struct cuda_device *cuda = cuda_get(queue);
  cuda_address at = (cuda_address)(uintptr_t)other->word.at;
  lade_cuda_check(cuda, "cuStreamWaitValue64",
                  cuda->driver.cuStreamWaitValue64(queue->stream, at, count, CUDA_STREAM_WAIT_GEQ));
}

/*
 * Make the stream wait for (@other, @count). The slot's reference keeps the other queue's counter and word alive until
 * the stream has passed.
 */
static void stream_wait(struct cuda_queue *queue, struct host_queue *other, uint64_t count)
{
  LADE_ASSERT(count < HOST_WORD_END);
  if (counter_get(&other->done) >= count)
    return;
  LADE_ASSERT(other != &queue->core || count <= queue->core.n_counted); /* otherwise the queue waits for its own
                                                                           later work */
  if (other == &queue->core)
    return;
  struct cuda_slot *slot = slot_take(queue, SLOT_WAIT_STREAM);
  lade_host_queue_ref(other);
  slot->other = other;
  slot->other_count = count;
  bool is_entered = lade_cuda_enter(cuda_get(queue));
  if (!role_is_stream(other->base.role) || !event_wait(queue, (struct cuda_queue *)other, count)) {
    slot->kind = SLOT_WAIT_WORD;
    word_wait(queue, other, count);
    slot_end(queue, slot);
  }
  lade_cuda_leave(cuda_get(queue), is_entered);
  slot_submit(queue);
}

/* ---- the operations ---- */

/* Copy for a host queue; the driver detects the side on the device. After a failed driver call do nothing. */
static void host_queue_copy(lade_device *device, const struct lade_copy *copy)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  if (atomic_load(&cuda->has_failed_call))
    return;
  bool is_entered = lade_cuda_enter(cuda);
  lade_cuda_check(cuda, "cuMemcpy", cuda->driver.cuMemcpy((cuda_address)(uintptr_t)copy->dst,
                                                          (cuda_address)(uintptr_t)copy->src, copy->bytes));
  lade_cuda_leave(cuda, is_entered);
}

static void events_destroy(struct cuda_queue *queue)
{
  const struct cuda_driver *driver = &cuda_get(queue)->driver;
  for (int i = 0; i < N_SLOTS; i++) {
    if (queue->slots[i].start)
      driver->cuEventDestroy(queue->slots[i].start);
    if (queue->slots[i].end)
      driver->cuEventDestroy(queue->slots[i].end);
  }
}

/* Create the events of all slots. Threads wait for end events only, so only these interrupt. */
static cuda_result events_create(struct cuda_queue *queue)
{
  const struct cuda_driver *driver = &cuda_get(queue)->driver;
  cuda_result result = 0;
  for (int i = 0; i < N_SLOTS && !result; i++) {
    result = driver->cuEventCreate(&queue->slots[i].start, CUDA_EVENT_DEFAULT);
    if (!result)
      result = driver->cuEventCreate(&queue->slots[i].end, CUDA_EVENT_BLOCKING_SYNC);
  }
  return result;
}

/* Free the stream, events and slots; the core and its word stay. Context current. */
static void queue_finish(struct cuda_queue *queue)
{
  events_destroy(queue);
  if (queue->stream && !queue->is_adopted)
    cuda_get(queue)->driver.cuStreamDestroy(queue->stream);
  pthread_mutex_destroy(&queue->lock);
  free(queue->slots);
}

/*
 * Create stream, events and witness of a queue with an initialised core. On failure only the core is left. Context
 * current.
 */
static int queue_open(struct cuda_queue *queue, void *stream)
{
  struct cuda_device *cuda = cuda_get(queue);
  queue->stream = stream;
  queue->is_adopted = stream != NULL;
  queue->slots = lade_fault_calloc(cuda->base.faults, N_SLOTS, sizeof(*queue->slots));
  if (!queue->slots)
    return -ENOMEM;
  pthread_mutex_init(&queue->lock, NULL);
  cuda_result result = stream ? 0 : lade_cuda_refuse(cuda, "cuStreamCreate", cuda->driver.cuStreamCreate(
                                                         &queue->stream, CUDA_STREAM_NON_BLOCKING));
  if (!result)
    result = lade_cuda_refuse(cuda, "cuEventCreate", events_create(queue));
  int error = result ? lade_cuda_errno(result) : lade_host_queue_start(&queue->core, witness_main);
  if (error)
    queue_finish(queue);
  return error;
}

static int stream_queue_create(struct cuda_device *cuda, enum lade_queue_role role, void *stream,
                               const struct host_queue_params *params, lade_queue **ret_queue)
{
  bool is_fault = lade_fault(cuda->base.faults, LADE_FAULT_HEAP) != 0;
  struct cuda_queue *queue = is_fault ? NULL : aligned_alloc(64, lade_align_up(sizeof(*queue), 64));
  if (!queue)
    return -ENOMEM;
  memset(queue, 0, sizeof(*queue));
  lade_host_queue_init(&queue->core, &cuda->base, role, params);
  bool is_entered = lade_cuda_enter(cuda);
  int error = queue_open(queue, stream);
  lade_cuda_leave(cuda, is_entered);
  if (error) {
    queue->core.word.at = NULL; /* the caller frees the word */
    lade_host_queue_unref(&queue->core);
    return error;
  }
  *ret_queue = &queue->core.base;
  return 0;
}

static int queue_create(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  const struct host_queue_params params = {.copy = host_queue_copy, .word = word_take(cuda)};
  if (!params.word.at)
    return -EAGAIN;
  int error = role_is_stream(role) ? stream_queue_create(cuda, role, stream, &params, ret_queue)
                                   : lade_host_queue_create_with(device, role, &params, ret_queue);
  if (error)
    word_give_back(&params.word);
  return error;
}

int lade_cuda_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue)
{
  return queue_create(device, role, NULL, ret_queue);
}

int lade_cuda_queue_adopt(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue)
{
  if (!stream || role < 0 || role >= LADE_N_QUEUE_ROLES || !role_is_stream(role))
    return -EINVAL;
  int error = queue_create(device, role, stream, ret_queue);
  if (!error)
    atomic_fetch_add(&device->n_queues, 1);
  return error;
}

void lade_cuda_queue_destroy(lade_queue *base)
{
  struct cuda_queue *queue = (struct cuda_queue *)base;
  if (!role_is_stream(base->role)) {
    lade_host_queue_destroy(base);
    return;
  }
  slot_take(queue, SLOT_STOP);
  slot_submit(queue);
  pthread_join(queue->core.thread, NULL);
  uint64_t final_count = queue->core.n_done;
  bool is_entered = lade_cuda_enter(cuda_get(queue));
  lade_host_queue_end(&queue->core, final_count);
  queue_finish(queue);
  lade_cuda_leave(cuda_get(queue), is_entered);
  lade_host_queue_unref(&queue->core);
}

uint64_t lade_cuda_queue_launch(lade_queue *base, const struct lade_work *work)
{
  return role_is_stream(base->role) ? stream_launch((struct cuda_queue *)base, work)
                                    : lade_host_queue_launch(base, work);
}

void lade_cuda_queue_enqueue(lade_queue *base, lade_cuda_enqueue_fn *fn, void *args, struct lade_span *ret_span,
                             uint64_t *ret_count)
{
  LADE_ASSERT(role_is_stream(base->role));
  uint64_t count = stream_enqueue((struct cuda_queue *)base, "work on a stream", fn, args, ret_span);
  if (ret_count)
    *ret_count = count;
}

bool lade_cuda_queue_is_stream(const lade_device *device, const lade_queue *queue)
{
  return lade_cuda_is(device) && queue->device == device && role_is_stream(queue->role);
}

bool lade_cuda_queue_is_capturing(const lade_queue *base)
{
  const struct cuda_queue *queue = (const struct cuda_queue *)base;
  struct cuda_device *cuda = cuda_get(queue);
  int status = 0;
  bool is_entered = lade_cuda_enter(cuda);
  cuda_result result = cuda->driver.cuStreamIsCapturing(queue->stream, &status);
  lade_cuda_leave(cuda, is_entered);
  return result || status;
}

int lade_cuda_stream_write(lade_device *device, void *stream, uint64_t address, uint64_t value)
{
  const struct cuda_driver *driver = &((struct cuda_device *)device)->driver;
  return driver->cuStreamWriteValue64(stream, address, value, 0);
}

uint64_t lade_cuda_queue_copy(lade_queue *base, const struct lade_copy *copy)
{
  return role_is_stream(base->role) ? stream_copy((struct cuda_queue *)base, copy) : lade_host_queue_copy(base, copy);
}

void lade_cuda_queue_wait(lade_queue *base, lade_queue *other, uint64_t count)
{
  if (role_is_stream(base->role))
    stream_wait((struct cuda_queue *)base, (struct host_queue *)other, count);
  else
    lade_host_queue_wait(base, other, count);
}
