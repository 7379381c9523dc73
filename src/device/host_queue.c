/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's queues: a thread each, fed by a ring.
 *
 * A ring has a fixed number of entries and one producer, the thread that submits; the queue's thread is its one
 * consumer. Head, tail and the event counter are three counters (counter.h). The consumer sleeps on the head, and a
 * producer with a full ring on the tail. Threads that wait for an event sleep on the event counter. Waits for other
 * queues are entries too, so that they take effect in submission order. No code here allocates, and system calls are
 * made only to sleep and to wake a sleeper.
 *
 * A queue outlives its destruction while other queues still have waits for its events: each such wait holds a
 * reference. Destruction first runs all submitted work, and then raises the counter above every count. So a wait for an
 * event that cannot happen any more ends, with -ECANCELED as the device's status, and no thread hangs.
 *
 * Throttling. A copy over a link is due at start + latency + bytes / rate. It starts at the latest of three times,
 * regardless of this thread's delays: when the copy before it was due, when it was submitted, and when the last event
 * that it waits for happened. So later copies compensate for oversleeping and for waiting for a core, up to LATE_NS.
 * Many small copies keep the rate, and no copy ends sooner than over the real link. The bytes are copied first, and the
 * thread sleeps for the rest of the time, which leaves the core to the kernels.
 *
 * Rejected: copying with several threads of the pool. Two threads copied no faster than one in measurements
 * (docs/memory.md), and the pool is busy with the kernels that run during the copy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/thread.h"
#include "device/host.h"

#define RING_ENTRIES 4096 /* power of two; instructions of one queue that may be submitted ahead */

#define LATE_NS 2000000   /* most delay that later copies compensate: some turns of a shared core */

enum entry_kind { ENTRY_WORK, ENTRY_COPY, ENTRY_WAIT, ENTRY_STOP };

struct entry {
  enum entry_kind kind;
  union {
    struct lade_work work;
    struct {
      struct lade_copy copy;
      int64_t submit_ns; /* used if the queue has a link */
    };
    struct {
      struct host_queue *queue;
      uint64_t count;
    } wait;
  };
};

void lade_host_queue_ref(struct host_queue *queue)
{
  atomic_fetch_add(&queue->n_refs, 1);
}

void lade_host_queue_unref(struct host_queue *queue)
{
  if (atomic_fetch_sub(&queue->n_refs, 1) > 1)
    return;
  if (queue->word.at)
    atomic_fetch_and(queue->word.taken, ~queue->word.taken_bit);
  free(queue->ring);
  free(queue);
}

/* Raise the word that a device polls. Any thread. */
static void word_raise(struct host_queue *queue, uint64_t value)
{
  if (!queue->word.at)
    return;
  uint64_t now = atomic_load(queue->word.at);
  while (now < value && !atomic_compare_exchange_weak(queue->word.at, &now, value))
    ;
}

void lade_host_queue_end(struct host_queue *queue, uint64_t final_count)
{
  queue->final_count = final_count;
  counter_raise_max(&queue->done, UINT64_MAX);
  word_raise(queue, HOST_WORD_END);
}

/* ---- the consumer ---- */

static void sleep_until(int64_t at_ns)
{
  struct timespec at = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
    ;
}

static void link_wait(struct host_queue *queue, uint64_t bytes, int64_t submit_ns)
{
  int64_t from_ns = LADE_MAX(LADE_MAX(queue->due_ns, queue->ready_ns), submit_ns);
  int64_t due_ns = from_ns + lade_link_ns(queue->link, bytes);
  int64_t now_ns = lade_now_ns();
  if (now_ns < due_ns)
    sleep_until(due_ns);
  queue->due_ns = LADE_MAX(due_ns, now_ns - LATE_NS);
}

static void copy_run(struct host_queue *queue, const struct lade_copy *copy, int64_t submit_ns)
{
  int error = lade_fault(queue->base.device->faults, LADE_FAULT_COPY);
  if (error)
    lade_device_fail(queue->base.device, error);
  else if (copy->bytes)
    queue->copy(queue->base.device, copy);
  if (queue->link)
    link_wait(queue, copy->bytes, submit_ns);
}

void lade_host_queue_finish(struct host_queue *queue, int64_t start_ns, int64_t end_ns, struct lade_span *ret_span)
{
  int64_t busy_ns = atomic_load_explicit(&queue->busy_ns, memory_order_relaxed) + end_ns - start_ns;
  atomic_store_explicit(&queue->busy_ns, busy_ns, memory_order_relaxed);
  atomic_store_explicit(&queue->now_ns, end_ns, memory_order_relaxed);
  if (ret_span)
    *ret_span = (struct lade_span){start_ns, end_ns};
  counter_raise(&queue->done, ++queue->n_done);
  word_raise(queue, queue->n_done);
}

/* Count one piece of work that ends now; return the present time. */
static int64_t counted_finish(struct host_queue *queue, int64_t start_ns, struct lade_span *ret_span)
{
  int64_t end_ns = lade_now_ns();
  lade_host_queue_finish(queue, start_ns, end_ns, ret_span);
  return end_ns;
}

void lade_host_queue_wait_check(lade_device *device, struct host_queue *other, uint64_t count)
{
  if (counter_get(&other->done) == UINT64_MAX && count > other->final_count)
    lade_device_fail(device, -ECANCELED);
}

static void wait_run(struct host_queue *queue, struct host_queue *other, uint64_t count)
{
  counter_wait(&other->done, count);
  int64_t then_ns = atomic_load_explicit(&other->now_ns, memory_order_relaxed);
  queue->ready_ns = LADE_MAX(queue->ready_ns, then_ns);
  lade_host_queue_wait_check(queue->base.device, other, count);
  lade_host_queue_unref(other);
}

static void entry_run(struct host_queue *queue, const struct entry *entry)
{
  if (entry->kind == ENTRY_WAIT) {
    wait_run(queue, entry->wait.queue, entry->wait.count);
    return;
  }
  int64_t start_ns = lade_now_ns();
  if (entry->kind == ENTRY_COPY) {
    copy_run(queue, &entry->copy, entry->submit_ns);
    counted_finish(queue, start_ns, entry->copy.ret_span);
  } else {
    entry->work.fn(entry->work.args);
    queue->ready_ns = counted_finish(queue, start_ns, entry->work.ret_span);
  }
}

static void *queue_main(void *arg)
{
  struct host_queue *queue = arg;
  if (queue->base.role != LADE_QUEUE_COMPUTE && queue->base.role != LADE_QUEUE_HOST)
    lade_thread_be_prompt();
  if (queue->link)
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* nanoseconds; the default adds 50 us to every copy */
  for (uint64_t i = 0;; i++) {
    counter_wait(&queue->submitted, i + 1);
    struct entry entry = queue->ring[i % RING_ENTRIES];
    counter_raise(&queue->taken, i + 1);
    if (entry.kind == ENTRY_STOP)
      return NULL;
    entry_run(queue, &entry);
  }
}

/* ---- the producer ---- */

static void entry_submit(struct host_queue *queue, const struct entry *entry)
{
  uint64_t i = queue->n_entries++;
  if (i - counter_get(&queue->taken) == RING_ENTRIES)
    counter_wait(&queue->taken, i - RING_ENTRIES / 2); /* one wake-up per half a ring, not one per entry */
  queue->ring[i % RING_ENTRIES] = *entry;
  counter_raise(&queue->submitted, i + 1);
}

/* Count one piece of work. A load and a store are enough, because one thread at a time submits. */
uint64_t lade_host_queue_count(struct host_queue *queue)
{
  uint64_t count = atomic_load_explicit(&queue->n_counted, memory_order_relaxed) + 1;
  atomic_store_explicit(&queue->n_counted, count, memory_order_release);
  return count;
}

/* Names of the threads that run a queue's entries or wait for its stream. A signal queue has no thread. */
static const char *const thread_names[LADE_N_QUEUE_ROLES] = {
    [LADE_QUEUE_COMPUTE] = "lade-compute", [LADE_QUEUE_TO_HOST] = "lade-to-host",
    [LADE_QUEUE_TO_DEVICE] = "lade-to-device", [LADE_QUEUE_IO] = "lade-io",
    [LADE_QUEUE_HOST] = "lade-host", [LADE_QUEUE_COMM] = "lade-comm",
};

int lade_host_queue_start(struct host_queue *queue, void *(*main)(void *))
{
  int error = lade_fault(queue->base.device->faults, LADE_FAULT_THREAD);
  if (error)
    return error;
  return lade_thread_start(&queue->thread, thread_names[queue->base.role], main, queue);
}

static const struct lade_link *link_get(const struct host_device *host, enum lade_queue_role role)
{
  const struct lade_link *link = role == LADE_QUEUE_TO_HOST     ? &host->to_host
                                 : role == LADE_QUEUE_TO_DEVICE ? &host->to_device
                                                                : NULL;
  return link && (link->bytes_per_s || link->latency_ns) ? link : NULL;
}

void lade_host_queue_init(struct host_queue *queue, lade_device *device, enum lade_queue_role role,
                          const struct host_queue_params *params)
{
  queue->base.device = device;
  queue->base.role = role;
  queue->base.submitted = role == LADE_QUEUE_SIGNAL ? &queue->done.value : &queue->n_counted;
  queue->link = params->link;
  queue->copy = params->copy;
  queue->word = params->word;
  atomic_store(&queue->n_refs, 1);
}

int lade_host_queue_create_with(lade_device *device, enum lade_queue_role role, const struct host_queue_params *params,
                                lade_queue **ret_queue)
{
  bool is_fault = lade_fault(device->faults, LADE_FAULT_HEAP) != 0;
  struct host_queue *queue = is_fault ? NULL : aligned_alloc(64, sizeof(*queue));
  if (!queue)
    return -ENOMEM;
  memset(queue, 0, sizeof(*queue));
  lade_host_queue_init(queue, device, role, params);
  if (role != LADE_QUEUE_SIGNAL) {
    queue->ring = lade_fault_calloc(device->faults, RING_ENTRIES, sizeof(*queue->ring));
    int error = queue->ring ? lade_host_queue_start(queue, queue_main) : -ENOMEM;
    if (error) {
      queue->word.at = NULL; /* the caller keeps the word */
      lade_host_queue_unref(queue);
      return error;
    }
  }
  *ret_queue = &queue->base;
  return 0;
}

static void bytes_copy(lade_device *device, const struct lade_copy *copy)
{
  memcpy(copy->dst, copy->src, copy->bytes);
}

int lade_host_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue)
{
  const struct host_queue_params params = {.link = link_get((struct host_device *)device, role), .copy = bytes_copy};
  return lade_host_queue_create_with(device, role, &params, ret_queue);
}

void lade_host_queue_destroy(lade_queue *base)
{
  struct host_queue *queue = (struct host_queue *)base;
  uint64_t final_count = counter_get(&queue->done);
  if (queue->ring) {
    entry_submit(queue, &(struct entry){.kind = ENTRY_STOP});
    pthread_join(queue->thread, NULL);
    final_count = queue->n_done;
  }
  lade_host_queue_end(queue, final_count);
  lade_host_queue_unref(queue);
}

uint64_t lade_host_queue_launch(lade_queue *base, const struct lade_work *work)
{
  struct host_queue *queue = (struct host_queue *)base;
  uint64_t count = lade_host_queue_count(queue);
  entry_submit(queue, &(struct entry){.kind = ENTRY_WORK, .work = *work});
  return count;
}

uint64_t lade_host_queue_copy(lade_queue *base, const struct lade_copy *copy)
{
  struct host_queue *queue = (struct host_queue *)base;
  uint64_t count = lade_host_queue_count(queue);
  int64_t submit_ns = queue->link ? lade_now_ns() : 0;
  entry_submit(queue, &(struct entry){.kind = ENTRY_COPY, .copy = *copy, .submit_ns = submit_ns});
  return count;
}

void lade_host_queue_wait(lade_queue *base, lade_queue *other_base, uint64_t count)
{
  struct host_queue *queue = (struct host_queue *)base, *other = (struct host_queue *)other_base;
  if (!queue->ring || counter_get(&other->done) >= count)
    return;
  LADE_ASSERT(other != queue || count <= queue->n_counted); /* otherwise the queue waits for its own later work */
  if (other == queue)
    return;
  lade_host_queue_ref(other);
  entry_submit(queue, &(struct entry){.kind = ENTRY_WAIT, .wait = {other, count}});
}

void lade_host_queue_signal(lade_queue *base, uint64_t count, int64_t predicted_ns)
{
  struct host_queue *queue = (struct host_queue *)base;
  LADE_ASSERT(count < UINT64_MAX);
  atomic_store_explicit(&queue->now_ns, lade_now_ns(), memory_order_relaxed);
  counter_raise_max(&queue->done, count);
  word_raise(queue, count);
}

bool lade_host_queue_poll(const lade_queue *base, uint64_t count)
{
  return counter_get(&((const struct host_queue *)base)->done) >= count;
}

void lade_host_queue_sync(lade_queue *base, uint64_t count)
{
  counter_wait(&((struct host_queue *)base)->done, count);
}

int64_t lade_host_queue_busy_ns(const lade_queue *base)
{
  return atomic_load_explicit(&((const struct host_queue *)base)->busy_ns, memory_order_relaxed);
}

int64_t lade_host_queue_now_ns(const lade_queue *base)
{
  return atomic_load_explicit(&((const struct host_queue *)base)->now_ns, memory_order_relaxed);
}
