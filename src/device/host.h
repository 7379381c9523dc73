/* SPDX-License-Identifier: Apache-2.0 */
/* What host.c (memory) and host_queue.c (threads) share. Private to src/device/. */
#ifndef LADE_DEVICE_HOST_H
#define LADE_DEVICE_HOST_H

#include "base/pool.h"
#include "device/device_ops.h"

struct host_device {
  lade_device base;
  lade_pool *pool; /* borrowed */
  struct lade_link to_host, to_device;
};

int lade_host_queue_create(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);
void lade_host_queue_destroy(lade_queue *queue);
uint64_t lade_host_queue_launch(lade_queue *queue, const struct lade_work *work);
uint64_t lade_host_queue_copy(lade_queue *queue, const struct lade_copy *copy);
void lade_host_queue_wait(lade_queue *queue, lade_queue *other, uint64_t count);
void lade_host_queue_signal(lade_queue *queue, uint64_t count, int64_t predicted_ns);
uint64_t lade_host_queue_submitted(const lade_queue *queue);
bool lade_host_queue_poll(const lade_queue *queue, uint64_t count);
void lade_host_queue_sync(lade_queue *queue, uint64_t count);
int64_t lade_host_queue_busy_ns(const lade_queue *queue);
int64_t lade_host_queue_now_ns(const lade_queue *queue);

#endif
