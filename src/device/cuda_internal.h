/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of cuda_context.c (errors, clock), cuda.c (memory), cuda_host.c, cuda_queue.c (streams), cuda_graph.c
 * and cuda_function.c.
 */
#ifndef LADE_CUDA_INTERNAL_H
#define LADE_CUDA_INTERNAL_H

#include "device/cuda.h"
#include "device/cuda_driver.h"
#include "device/host.h"

struct cuda_device {
  lade_device base;
  struct cuda_driver driver;
  cuda_device_id id;
  int capability; /* ten times the major number plus the minor one */
  cuda_context context;
  cuda_stream stream; /* the device's own: clears fresh chunks, and carries the anchor of the clock */
  uint64_t opened_bytes;
  uint64_t marked_bytes; /* bytes in use outside of chunks at the last mark */
  uint64_t taken_bytes[LADE_CUDA_N_TAKERS];
  bool is_primary; /* the context is the primary one, retained by this device */
  bool has_host_chunks; /* the driver provides memory of the host's nodes */
  struct cuda_memory_properties properties;
  _Atomic bool has_failed_call; /* a driver call failed: no more copies and kernels are submitted */
  _Atomic bool is_private; /* chunks are created without handles, because the machine refused them with handles */

  /* Words that streams poll: a page of pinned memory, one word per cache line. */
  char *words;
  _Atomic uint64_t words_taken;

  pthread_mutex_t lock;       /* guards the following fields */
  cuda_event anchors[2];      /* the clock: anchors[i_anchor] happened at anchor_ns */
  int i_anchor;
  bool has_next_anchor;       /* the other anchor is on the stream */
  int64_t anchor_ns;
  cuda_result first_result;   /* of the first call that failed */
  const char *first_call;
  struct lade_error library_error; /* the first of lade_cuda_fail */
  cuda_result refused_result; /* of the last call that was refused without an effect on the context */
  const char *refused_call;
};

/* The operations of a CUDA device, by which one is recognised (cuda.c). */
extern const struct lade_device_ops lade_cuda_ops;

/*
 * Make the device's context current. Return true if it is; lade_cuda_leave takes this value. If the context cannot be
 * entered, the error sticks to the device, and calls that need a context fail. Any thread.
 */
bool lade_cuda_enter(struct cuda_device *cuda);
void lade_cuda_leave(struct cuda_device *cuda, bool is_entered);

/* If @result is a failure of @call (static), make it stick. Return its errno or 0. */
int lade_cuda_check(struct cuda_device *cuda, const char *call, cuda_result result);

/*
 * Record @result of @call (static), if it is a failure without an effect on the context, for lade_cuda_get_refusal.
 * Return it.
 */
cuda_result lade_cuda_refuse(struct cuda_device *cuda, const char *call, cuda_result result);

/* Get the monotonic nanoseconds at which an event happened, by the device's clock. The context is current. */
int lade_cuda_time(struct cuda_device *cuda, cuda_event event, int64_t *ret_ns);

/*
 * Unmap memory whose release cannot be refused. If the driver is short of memory for a moment, try once more; a second
 * refusal is an error that sticks.
 */
void lade_cuda_unmap(struct cuda_device *cuda, uint64_t address, uint64_t bytes);

/* Operations on host memory from the driver. */
int lade_cuda_host_create(lade_device *device, struct lade_host_chunk *chunk, uint64_t limit_bytes, int numa_node);
void lade_cuda_host_release(lade_device *device, struct lade_host_chunk *chunk);

/* Operations of queues. */
int lade_cuda_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);
void lade_cuda_queue_destroy(lade_queue *queue);
uint64_t lade_cuda_queue_launch(lade_queue *queue, const struct lade_work *work);
uint64_t lade_cuda_queue_copy(lade_queue *queue, const struct lade_copy *copy);
void lade_cuda_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count);

#endif
