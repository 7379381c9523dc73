/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of an implementation of the device contract. Private to src/device/.
 *
 * device.c checks arguments, counts bytes against the capacity, keeps every range and chunk, and injects the faults of
 * the calls themselves. An implementation moves memory and runs work, and may rely on valid arguments. An
 * implementation embeds struct lade_device and struct lade_queue as its first member.
 */
#ifndef LADE_DEVICE_OPS_H
#define LADE_DEVICE_OPS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/faults.h"
#include "device/device.h"

struct lade_chunk {
  uint64_t bytes;
  uint64_t address; /* address of the mapping; 0: not mapped */
  uint64_t backing; /* used by the implementation */
  bool is_shared;   /* other processes can import it */
  bool is_imported; /* memory of another process, not counted here */
  int descriptor;   /* of a shared chunk; used by the implementation */
};

/* A reserved range with its mapped chunks, by rising address. */
struct lade_range {
  uint64_t address, bytes;
  LADE_ARRAY(struct lade_chunk *) chunks;
};

/*
 * reserve, release, map and unmap are called with the device's mutex held, the others without. chunk_export and
 * chunk_import may be NULL; then chunk_create is never called for a shared chunk.
 */
struct lade_device_ops {
  int (*reserve)(lade_device *device, uint64_t bytes, uint64_t *ret_address);
  void (*release)(lade_device *device, uint64_t address, uint64_t bytes);
  int (*chunk_create)(lade_device *device, struct lade_chunk *chunk);
  void (*chunk_release)(lade_device *device, struct lade_chunk *chunk);
  int (*chunk_export)(lade_device *device, const struct lade_chunk *chunk, int *ret_descriptor);
  int (*chunk_import)(lade_device *device, struct lade_chunk *chunk, int descriptor);
  int (*map)(lade_device *device, uint64_t address, struct lade_chunk *chunk);
  int (*unmap)(lade_device *device, struct lade_chunk *chunk);
  int (*pin)(lade_device *device, void *at, uint64_t bytes); /* optional, both; NULL: memory needs no pinning */
  void (*unpin)(lade_device *device, void *at, uint64_t bytes);
  /*
   * optional, both: host memory from the driver; chunk->bytes holds the wanted bytes on entry, the actual ones on
   * return
   */
  int (*host_create)(lade_device *device, struct lade_host_chunk *chunk, uint64_t limit_bytes, int numa_node);
  void (*host_release)(lade_device *device, struct lade_host_chunk *chunk);
  void (*close)(lade_device *device);

  int (*queue_create)(lade_device *device, enum lade_queue_role role, lade_queue **ret_queue);
  void (*queue_destroy)(lade_queue *queue);
  uint64_t (*launch)(lade_queue *queue, const struct lade_work *work);
  uint64_t (*copy)(lade_queue *queue, const struct lade_copy *copy);
  void (*wait)(lade_queue *queue, lade_queue *other, uint64_t count);
  void (*signal)(lade_queue *queue, uint64_t count, int64_t predicted_ns);
  bool (*poll)(const lade_queue *queue, uint64_t count);
  void (*sync)(lade_queue *queue, uint64_t count);
  int64_t (*busy_ns)(const lade_queue *queue);
  int64_t (*now_ns)(const lade_queue *queue);
};

struct lade_device {
  const struct lade_device_ops *ops;
  struct lade_faults *faults;
  char name[96];
  char pci[24]; /* as in lade_device_info */
  uint64_t chunk_bytes, capacity_bytes;
  bool is_unified, is_dry;
  _Atomic uint64_t created_bytes, peak_bytes;
  atomic_int status;   /* the first error of work that ran */
  atomic_int n_queues; /* existing queues */
  pthread_mutex_t mutex; /* guards ranges and their mappings */
  LADE_ARRAY(struct lade_range) ranges; /* by rising address */
};

struct lade_queue {
  lade_device *device;
  enum lade_queue_role role;
  const _Atomic uint64_t *submitted; /* count of the newest event, read directly because every free needs it */
};

/* Initialise and finish the common part. The caller fills name, sizes and flags. */
void lade_device_init(lade_device *device, const struct lade_device_ops *ops, struct lade_faults *faults);
void lade_device_finish(lade_device *device);

/* Record @code as the device's status if it is the first error. Any thread. */
void lade_device_fail(lade_device *device, int code);

/* Return the nanoseconds that @bytes take over @link; the latency alone if @link has no rate. */
int64_t lade_link_ns(const struct lade_link *link, uint64_t bytes);

#endif
