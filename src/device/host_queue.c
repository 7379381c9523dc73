/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's queues: a thread each, fed by a ring.
 *
 * A ring has a fixed number of entries and one producer, the thread that submits; the queue's thread
 * is its one consumer. Head, tail and the event counter are three counters (counter.h): the consumer sleeps
 * on the head, a producer with a full ring on the tail, and whoever waits for an event on the event counter.
 * Waits for other queues are entries too, so that they act in their place in the order. Nothing here allocates
 * or makes a system call other than to sleep and to wake a sleeper.
 *
 * A queue outlives its destruction while other queues still have waits for its events: each such wait holds
 * a reference. Destroying first runs everything that was submitted, then raises the counter past
 * every count, so that a wait for something that can no longer come ends, with -ECANCELED as the
 * device's status, instead of hanging a thread for ever.
 *
 * Throttling. A copy over a link is due at start + latency + bytes / rate, and starts when the one before it was due,
 * when it was submitted, or when the last event that it waits for had happened, whichever is latest; not when
 * this thread got round to it. Oversleeping and waiting for a core are so made good, as far as LATE_NS goes, and
 * many small copies keep the rate, yet none is ever done sooner than the link would have done it. The
 * bytes are copied first and the rest of the time is slept, which leaves the core to the kernels.
 *
 * Rejected: copying with several threads of the pool. Two threads copied no faster than one where it was measured
 * (docs/device.md), and the pool is busy with the kernels that the copy should hide behind.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "device/counter.h"
#include "device/host.h"

#define RING_ENTRIES 4096 /* power of two; a step's instructions of one queue, run ahead */

#define LATE_NS 2000000   /* the most that later copies make good: some turns of a shared core */

enum entry_kind { ENTRY_WORK, ENTRY_COPY, ENTRY_WAIT, ENTRY_STOP };

struct host_queue {
  lade_queue base;
  const struct lade_link *link; /* NULL: copies are not throttled */
  struct counter submitted;     /* entries put into the ring */
  struct counter taken;         /* entries taken out */
  struct counter done;          /* the event counter */
  _Atomic int64_t busy_ns, now_ns; /* now: when the last work ended or the last signal came */
  atomic_int n_refs;    /* the owner and every wait for this queue that is in a ring */
  uint64_t final_count; /* set before done is raised past every count */
  pthread_t thread;     /* none for signal queues */
  struct entry *ring;

  /* the producer's */
  _Alignas(64) uint64_t n_entries; /* submitted */
  _Atomic uint64_t n_counted;      /* work and copies among them; other threads may read it */

  /* the consumer's */
  _Alignas(64) uint64_t n_done;
  int64_t due_ns;   /* when the last link copy was due */
  int64_t ready_ns; /* no earlier than the events waited for, and the end of the last work */
};

struct entry {
  enum entry_kind kind;
  union {
    struct lade_work work;
    struct {
      struct lade_copy copy;
      int64_t submit_ns; /* of a link's queue */
    };
    struct {
      struct host_queue *queue;
      uint64_t count;
    } wait;
  };
};

static void queue_unref(struct host_queue *queue)
{
  if (atomic_fetch_sub(&queue->n_refs, 1) > 1)
    return;
  free(queue->ring);
  free(queue);
}

/* Let go of every wait for a count that can no longer come. */
static void queue_end(struct host_queue *queue, uint64_t final_count)
{
  queue->final_count = final_count;
  counter_raise_max(&queue->done, UINT64_MAX);
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
    memcpy(copy->dst, copy->src, copy->bytes);
  if (queue->link)
    link_wait(queue, copy->bytes, submit_ns);
}

/* Count one piece of work. Returns when it ended. */
static int64_t counted_finish(struct host_queue *queue, int64_t start_ns, struct lade_span *ret_span)
{
  int64_t end_ns = lade_now_ns();
  int64_t busy_ns = atomic_load_explicit(&queue->busy_ns, memory_order_relaxed) + end_ns - start_ns;
  atomic_store_explicit(&queue->busy_ns, busy_ns, memory_order_relaxed);
  atomic_store_explicit(&queue->now_ns, end_ns, memory_order_relaxed);
  if (ret_span)
    *ret_span = (struct lade_span){start_ns, end_ns};
  counter_raise(&queue->done, ++queue->n_done);
  return end_ns;
}

static void wait_run(struct host_queue *queue, struct host_queue *other, uint64_t count)
{
  counter_wait(&other->done, count);
  int64_t then_ns = atomic_load_explicit(&other->now_ns, memory_order_relaxed);
  queue->ready_ns = LADE_MAX(queue->ready_ns, then_ns);
  if (counter_get(&other->done) == UINT64_MAX && count > other->final_count)
    lade_device_fail(queue->base.device, -ECANCELED);
  queue_unref(other);
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
  if (queue->link)
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* nanoseconds; the default would add 50 us to every copy */
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
    counter_wait(&queue->taken, i - RING_ENTRIES / 2); /* woken once per half a ring, not once per entry */
  queue->ring[i % RING_ENTRIES] = *entry;
  counter_raise(&queue->submitted, i + 1);
}

/* The count of what is submitted next. One thread at a time submits, so that a load and a store are enough. */
static uint64_t count_next(struct host_queue *queue)
{
  uint64_t count = atomic_load_explicit(&queue->n_counted, memory_order_relaxed) + 1;
  atomic_store_explicit(&queue->n_counted, count, memory_order_release);
  return count;
}

/* Signals are for the threads that the program made itself. */
static int thread_start(struct host_queue *queue)
{
  int error = lade_fault(queue->base.device->faults, LADE_FAULT_THREAD);
  if (error)
    return error;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  error = pthread_create(&queue->thread, NULL, queue_main, queue);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return -error;
}

static const struct lade_link *link_get(const struct host_device *host, enum lade_queue_role role)
{
  const struct lade_link *link = role == LADE_QUEUE_TO_HOST     ? &host->to_host
                                 : role == LADE_QUEUE_TO_DEVICE ? &host->to_device
                                                                : NULL;
  return link && (link->bytes_per_s || link->latency_ns) ? link : NULL;
}

int lade_host_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue)
{
  bool is_fault = lade_fault(device->faults, LADE_FAULT_HEAP) != 0;
  struct host_queue *queue = is_fault ? NULL : aligned_alloc(64, sizeof(*queue));
  if (!queue)
    return -ENOMEM;
  memset(queue, 0, sizeof(*queue));
  queue->base.device = device;
  queue->base.role = role;
  queue->link = link_get((struct host_device *)device, role);
  atomic_store(&queue->n_refs, 1);
  if (role != LADE_QUEUE_SIGNAL) {
    queue->ring = lade_fault_calloc(device->faults, RING_ENTRIES, sizeof(*queue->ring));
    int error = queue->ring ? thread_start(queue) : -ENOMEM;
    if (error) {
      queue_unref(queue);
      return error;
    }
  }
  *ret_queue = &queue->base;
  return 0;
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
  queue_end(queue, final_count);
  queue_unref(queue);
}

uint64_t lade_host_queue_launch(lade_queue *base, const struct lade_work *work)
{
  struct host_queue *queue = (struct host_queue *)base;
  uint64_t count = count_next(queue);
  entry_submit(queue, &(struct entry){.kind = ENTRY_WORK, .work = *work});
  return count;
}

uint64_t lade_host_queue_copy(lade_queue *base, const struct lade_copy *copy)
{
  struct host_queue *queue = (struct host_queue *)base;
  uint64_t count = count_next(queue);
  int64_t submit_ns = queue->link ? lade_now_ns() : 0;
  entry_submit(queue, &(struct entry){.kind = ENTRY_COPY, .copy = *copy, .submit_ns = submit_ns});
  return count;
}

void lade_host_queue_wait(lade_queue *base, lade_queue *other_base, uint64_t count)
{
  struct host_queue *queue = (struct host_queue *)base, *other = (struct host_queue *)other_base;
  if (!queue->ring || counter_get(&other->done) >= count)
    return;
  LADE_ASSERT(other != queue || count <= queue->n_counted); /* it would wait for itself */
  if (other == queue)
    return;
  atomic_fetch_add(&other->n_refs, 1);
  entry_submit(queue, &(struct entry){.kind = ENTRY_WAIT, .wait = {other, count}});
}

void lade_host_queue_signal(lade_queue *base, uint64_t count, int64_t predicted_ns)
{
  struct host_queue *queue = (struct host_queue *)base;
  LADE_ASSERT(count < UINT64_MAX);
  atomic_store_explicit(&queue->now_ns, lade_now_ns(), memory_order_relaxed);
  counter_raise_max(&queue->done, count);
}

uint64_t lade_host_queue_submitted(const lade_queue *base)
{
  const struct host_queue *queue = (const struct host_queue *)base;
  return queue->ring ? atomic_load_explicit(&queue->n_counted, memory_order_acquire) : counter_get(&queue->done);
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
