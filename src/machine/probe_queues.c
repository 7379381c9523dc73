/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measure queues: launches, and copies between device and host memory.
 *
 * The probe's own host device, unthrottled, does the work of a step. It runs empty launches, for the time from one to
 * the next. It copies a few megabytes between mapped chunks and huge pages of host memory. Copies move through areas so
 * that neither side is in a near cache. The latency of a copy is the time of a small one.
 *
 * Each figure is a lower quartile. A copy or a launch ends with the wake-up of a waiting thread, which other programs
 * delay by whole time slices: with six runnable threads for each core, half of all copies took 1 to 5 ms instead of 5
 * us to 0.4 ms.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "machine/probe_internal.h"

#define N_PASSES 12   /* of N_LAUNCHES, whose lower quartile counts */
#define N_LAUNCHES 250
#define COPY_BYTES ((size_t)4 << 20) /* of a copy whose time is mostly that of its bytes */
#define N_PLACES 12 /* 48 MiB on each side, less if little memory is free */
#define N_COPIES 24      /* whose lower quartile counts */
#define SMALL_BYTES 4096 /* of a copy whose time is the latency */

/* ---- launches and copies ---- */

static void nothing(void *args)
{
}

static double launch_ns(lade_queue *queue)
{
  struct lade_work work = {.fn = nothing};
  uint64_t count = 0;
  int64_t ns[N_PASSES];
  for (int pass = 0; pass < N_PASSES; pass++) {
    int64_t start_ns = lade_now_ns();
    for (int i = 0; i < N_LAUNCHES; i++)
      lade_queue_launch(queue, &work, &count);
    lade_queue_sync(queue, count);
    ns[pass] = lade_now_ns() - start_ns;
  }
  return (double)probe_quartile(ns, N_PASSES) / N_LAUNCHES;
}

/* Return the time of one copy of @bytes among many, each from and to a place of its own. */
static int64_t copy_ns(lade_queue *queue, char *to, const char *from, size_t bytes, int n_places)
{
  int64_t ns[N_COPIES];
  for (int i = -N_PLACES; i < N_COPIES; i++) {
    size_t at = (size_t)((i + N_PLACES) % n_places) * COPY_BYTES;
    uint64_t count;
    int64_t start_ns = lade_now_ns();
    lade_queue_copy(queue, &(struct lade_copy){.dst = to + at, .src = from + at, .bytes = bytes}, &count);
    lade_queue_sync(queue, count);
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return LADE_MAX(probe_quartile(ns, N_COPIES), 1);
}

struct lade_link probe_link_make(uint64_t bytes, int64_t whole_ns, int64_t small_ns)
{
  const int64_t latency_ns = LADE_MIN(small_ns, whole_ns / 2);
  return (struct lade_link){.bytes_per_s = (uint64_t)((double)bytes / (double)(whole_ns - latency_ns) * 1e9),
                            .latency_ns = (uint64_t)latency_ns};
}

static struct lade_link link_measure(lade_queue *queue, char *to, const char *from, int n_places)
{
  const int64_t whole_ns = copy_ns(queue, to, from, COPY_BYTES, n_places);
  return probe_link_make(COPY_BYTES, whole_ns, copy_ns(queue, to, from, SMALL_BYTES, n_places));
}

struct queue_probe {
  lade_device *device;
  lade_chunk *chunk;
  uint64_t address;
  lade_queue *compute, *to_host, *to_device;
  struct probe_area host;
  int n_places; /* of copies, on each side */
};

static void probe_finish(struct queue_probe *probe)
{
  lade_queue_destroy(probe->compute);
  lade_queue_destroy(probe->to_host);
  lade_queue_destroy(probe->to_device);
  lade_device_chunk_release(probe->device, probe->chunk);
  if (probe->address)
    lade_device_release(probe->device, probe->address, (size_t)probe->n_places * COPY_BYTES);
  lade_device_close(probe->device);
  probe_area_finish(&probe->host);
}

static int probe_init(struct queue_probe *probe, const struct lade_probe_params *params, struct lade_error *error)
{
  struct lade_host_device_params device = {.struct_size = sizeof(device), .pool = params->pool};
  int rc = lade_device_open_host(&device, error, &probe->device);
  if (rc)
    return rc;
  probe->n_places = (int)LADE_MAX(LADE_MIN(probe_room_bytes() / (3 * COPY_BYTES), N_PLACES), 1);
  const size_t bytes = (size_t)probe->n_places * COPY_BYTES;
  rc = lade_device_reserve(probe->device, bytes, &probe->address);
  if (!rc)
    rc = lade_device_chunk_create(probe->device, bytes, &probe->chunk);
  if (!rc)
    rc = lade_device_map(probe->device, probe->address, probe->chunk);
  if (!rc)
    rc = probe_area_init(&probe->host, bytes);
  if (!rc)
    rc = lade_queue_create(probe->device, LADE_QUEUE_COMPUTE, &probe->compute);
  if (!rc)
    rc = lade_queue_create(probe->device, LADE_QUEUE_TO_HOST, &probe->to_host);
  if (!rc)
    rc = lade_queue_create(probe->device, LADE_QUEUE_TO_DEVICE, &probe->to_device);
  return rc ? lade_error_set(error, rc, "probe: no host device to measure: %s", strerror(-rc)) : 0;
}

int probe_queues(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine *machine)
{
  struct queue_probe probe = {0};
  int rc = probe_init(&probe, params, error);
  if (!rc) {
    char *device = (char *)(uintptr_t)probe.address;
    memset(device, 1, (size_t)probe.n_places * COPY_BYTES);
    machine->launch_ns = launch_ns(probe.compute);
    machine->to_host = link_measure(probe.to_host, probe.host.at, device, probe.n_places);
    machine->to_device = link_measure(probe.to_device, device, probe.host.at, probe.n_places);
    rc = lade_device_status(probe.device);
    if (rc)
      lade_error_set(error, rc, "probe: the host device failed: %s", strerror(-rc));
  }
  probe_finish(&probe);
  return rc;
}
