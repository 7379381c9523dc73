/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of host.c (memory), host_queue.c (threads) and the queues of cuda.c. Private to src/device/. */
#ifndef LADE_DEVICE_HOST_H
#define LADE_DEVICE_HOST_H

#include "base/pool.h"
#include "device/counter.h"
#include "device/device_ops.h"

struct host_device {
  lade_device base;
  lade_pool *pool; /* borrowed */
  struct lade_link to_host, to_device;
};

/*
 * A word of memory that another device polls. It follows a queue's event counter. Its bit in @taken, the set of words
 * in use, is cleared once no device can wait for the queue.
 */
struct host_word {
  _Atomic uint64_t *at; /* NULL: no device polls this queue */
  _Atomic uint64_t *taken;
  uint64_t taken_bit;
};
#define HOST_WORD_END ((uint64_t)INT64_MAX) /* above every count: pollers compare by signed difference */

typedef void host_copy_fn(lade_device *device, const struct lade_copy *copy);

struct entry;

struct host_queue {
  lade_queue base;
  const struct lade_link *link; /* NULL: copies are not throttled */
  host_copy_fn *copy;           /* moves the bytes of a copy */
  struct counter submitted;     /* entries put into the ring */
  struct counter taken;         /* entries taken out */
  struct counter done;          /* the event counter */
  struct host_word word;
  _Atomic int64_t busy_ns, now_ns; /* now: time at which the last work ended or the last signal came */
  atomic_int n_refs;    /* the owner, and every wait for this queue in a ring */
  uint64_t final_count; /* set before done is raised to UINT64_MAX */
  pthread_t thread;     /* not used by signal queues */
  struct entry *ring;   /* NULL for signal queues, and if another device runs the work */

  /* used by the producer */
  _Alignas(64) uint64_t n_entries; /* submitted */
  _Atomic uint64_t n_counted;      /* work and copies among the entries; other threads may read it */

  /* used by the consumer */
  _Alignas(64) uint64_t n_done;
  int64_t due_ns;   /* time at which the last link copy was due */
  int64_t ready_ns; /* earliest start of the next work: after the events waited for and the last work */
};

/* Parameters of a queue besides its role. */
struct host_queue_params {
  const struct lade_link *link; /* may be NULL */
  host_copy_fn *copy;
  struct host_word word;        /* may be empty */
};

/* Initialise a queue at the start of zeroed memory from malloc; the last unref frees the memory. */
void lade_host_queue_init(struct host_queue *queue, lade_device *device, enum lade_queue_role role,
                          const struct host_queue_params *params);
/* Start @queue->thread in @main with all signals blocked. -EAGAIN if threads are refused. */
int lade_host_queue_start(struct host_queue *queue, void *(*main)(void *));
int lade_host_queue_create_with(lade_device *device, enum lade_queue_role role, const struct host_queue_params *params,
                                lade_queue **ret_queue);

/* A queue lives until its owner and all waits for its events have dropped it. Any thread. */
void lade_host_queue_ref(struct host_queue *queue);
void lade_host_queue_unref(struct host_queue *queue);
/* Return the count of the next submitted work. For the submitting thread. */
uint64_t lade_host_queue_count(struct host_queue *queue);
/* Count one piece of work that ran from @start_ns to @end_ns. For the thread that runs the queue. */
void lade_host_queue_finish(struct host_queue *queue, int64_t start_ns, int64_t end_ns, struct lade_span *ret_span);
/* Check a wait for (@other, @count) that has ended: -ECANCELED sticks to @device if the event never happened. */
void lade_host_queue_wait_check(lade_device *device, struct host_queue *other, uint64_t count);
/* End every wait for a count above @final_count, which cannot happen any more. */
void lade_host_queue_end(struct host_queue *queue, uint64_t final_count);

/* Operations of the host device's queues (device_ops.h). */
int lade_host_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);
void lade_host_queue_destroy(lade_queue *queue);
uint64_t lade_host_queue_launch(lade_queue *queue, const struct lade_work *work);
uint64_t lade_host_queue_copy(lade_queue *queue, const struct lade_copy *copy);
void lade_host_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count);
void lade_host_queue_signal(lade_queue *queue, uint64_t count, int64_t predicted_ns);
bool lade_host_queue_poll(const lade_queue *queue, uint64_t count);
void lade_host_queue_sync(lade_queue *queue, uint64_t count);
int64_t lade_host_queue_busy_ns(const lade_queue *queue);
int64_t lade_host_queue_now_ns(const lade_queue *queue);

#endif
