/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What queues cost: launches, copies between device and host memory, transfers to a drive.
 *
 * A host device of the probe's own, unthrottled, is asked to do what a step asks: a run of empty
 * launches (the time from one to the next), and copies of a few megabytes between mapped chunks and huge
 * pages of host memory, walking through areas so that neither side comes from a near cache. The latency of a
 * copy is the time of a small one.
 *
 * The store is one of the probe's own, too, in the directory of the run, opened as the run will: a sealed and
 * verified transfer costs checksums, and these belong into its rate. Writes, reads and a mix of both go
 * through 2 MiB transfers with several under way, for a tenth of a second each and at least one pass over the extent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "plan/probe_internal.h"

#define N_LAUNCHES 1000
#define COPY_BYTES ((size_t)4 << 20)
#define N_COPIES 12 /* 48 MiB on each side */
#define SMALL_BYTES 4096
#define STORE_PIECE_BYTES ((size_t)2 << 20)
#define N_STORE_PIECES 16
#define STORE_LIMIT_NS 80000000

/* ---- launches and copies ---- */

static void nothing(void *args)
{
}

static double launch_ns(lade_queue *queue)
{
  struct lade_work work = {.fn = nothing};
  uint64_t count = 0;
  int64_t ns[3];
  for (int pass = 0; pass < 3; pass++) {
    int64_t start_ns = lade_now_ns();
    for (int i = 0; i < N_LAUNCHES; i++)
      lade_queue_launch(queue, &work, &count);
    lade_queue_sync(queue, count);
    ns[pass] = lade_now_ns() - start_ns;
  }
  return (double)probe_median(ns, 3) / N_LAUNCHES;
}

/* The median time of one copy of @bytes among many, each from and to a place of its own. */
static int64_t copy_ns(lade_queue *queue, char *to, const char *from, size_t bytes)
{
  int64_t ns[2 * N_COPIES];
  for (int i = -N_COPIES; i < 2 * N_COPIES; i++) {
    size_t at = (size_t)((i + N_COPIES) % N_COPIES) * COPY_BYTES;
    uint64_t count;
    int64_t start_ns = lade_now_ns();
    lade_queue_copy(queue, &(struct lade_copy){.dst = to + at, .src = from + at, .bytes = bytes}, &count);
    lade_queue_sync(queue, count);
    if (i >= 0)
      ns[i] = lade_now_ns() - start_ns;
  }
  return LADE_MAX(probe_median(ns, 2 * N_COPIES), 1);
}

static struct lade_link link_measure(lade_queue *queue, char *to, const char *from)
{
  int64_t whole_ns = copy_ns(queue, to, from, COPY_BYTES), small_ns = copy_ns(queue, to, from, SMALL_BYTES);
  double transfer_ns = (double)LADE_MAX(whole_ns - small_ns, 1);
  return (struct lade_link){.bytes_per_s = (uint64_t)((double)COPY_BYTES / transfer_ns * 1e9),
                            .latency_ns = (uint64_t)small_ns};
}

struct rig {
  lade_device *device;
  lade_chunk *chunk;
  uint64_t address;
  lade_queue *compute, *to_host, *to_device;
  struct probe_area host;
};

static void rig_finish(struct rig *rig)
{
  lade_queue_destroy(rig->compute);
  lade_queue_destroy(rig->to_host);
  lade_queue_destroy(rig->to_device);
  lade_device_chunk_release(rig->device, rig->chunk);
  if (rig->address)
    lade_device_release(rig->device, rig->address, N_COPIES * COPY_BYTES);
  lade_device_close(rig->device);
  probe_area_finish(&rig->host);
}

static int rig_init(struct rig *rig, const struct lade_probe_params *params, struct lade_error *error)
{
  struct lade_host_device_params device = {.struct_size = sizeof(device), .pool = params->pool};
  int rc = lade_device_open_host(&device, error, &rig->device);
  if (rc)
    return rc;
  rc = lade_device_reserve(rig->device, N_COPIES * COPY_BYTES, &rig->address);
  if (!rc)
    rc = lade_device_chunk_create(rig->device, N_COPIES * COPY_BYTES, &rig->chunk);
  if (!rc)
    rc = lade_device_map(rig->device, rig->address, rig->chunk);
  if (!rc)
    rc = probe_area_init(&rig->host, N_COPIES * COPY_BYTES);
  if (!rc)
    rc = lade_queue_create(rig->device, LADE_QUEUE_COMPUTE, &rig->compute);
  if (!rc)
    rc = lade_queue_create(rig->device, LADE_QUEUE_TO_HOST, &rig->to_host);
  if (!rc)
    rc = lade_queue_create(rig->device, LADE_QUEUE_TO_DEVICE, &rig->to_device);
  return rc ? lade_error_set(error, rc, "probe: no host device to measure: %s", strerror(-rc)) : 0;
}

int probe_queues(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine *machine)
{
  struct rig rig = {0};
  int rc = rig_init(&rig, params, error);
  if (!rc) {
    char *device = (char *)(uintptr_t)rig.address;
    memset(device, 1, N_COPIES * COPY_BYTES);
    machine->launch_ns = launch_ns(rig.compute);
    machine->to_host = link_measure(rig.to_host, rig.host.at, device);
    machine->to_device = link_measure(rig.to_device, device, rig.host.at);
    rc = lade_device_status(rig.device);
    if (rc)
      lade_error_set(error, rc, "probe: the host device failed: %s", strerror(-rc));
  }
  rig_finish(&rig);
  return rc;
}

/* ---- the drive ---- */

struct drive {
  lade_store *store;
  struct lade_extent extents[N_STORE_PIECES];
  struct lade_transfer transfers[N_STORE_PIECES];
  struct probe_area area;
};

/* One pass: every piece once, @n_writes of each four as writes. All must have been written before they are read. */
static int drive_pass(struct drive *drive, int n_writes, struct lade_error *error)
{
  int rc = 0, n = 0;
  for (; n < N_STORE_PIECES && !rc; n++) {
    struct lade_transfer *transfer = &drive->transfers[n];
    *transfer = (struct lade_transfer){.op = n % 4 < n_writes ? LADE_STORE_WRITE : LADE_STORE_READ,
                                       .check = LADE_CHECK_STORE, .extent = drive->extents[n],
                                       .bytes = STORE_PIECE_BYTES,
                                       .data = drive->area.at + (size_t)n * STORE_PIECE_BYTES,
                                       .identity = {.tensor = (uint32_t)n}};
    rc = lade_store_submit(drive->store, transfer);
  }
  if (rc)
    n--; /* the last was not begun */
  for (int i = 0; i < n; i++) {
    int result = lade_store_wait(drive->store, &drive->transfers[i], rc ? NULL : error);
    rc = rc ? rc : result;
  }
  return rc;
}

/* Bytes/s over passes for about STORE_LIMIT_NS, at least one. */
static int drive_rate(struct drive *drive, int n_writes, struct lade_error *error, double *ret_rate)
{
  int64_t start_ns = lade_now_ns(), ns = 0;
  double bytes = 0;
  do {
    int rc = drive_pass(drive, n_writes, error);
    if (rc)
      return rc;
    bytes += (double)N_STORE_PIECES * (double)STORE_PIECE_BYTES;
    ns = lade_now_ns() - start_ns;
  } while (ns < STORE_LIMIT_NS);
  *ret_rate = bytes / (double)ns * 1e9;
  return 0;
}

static int drive_latency(struct drive *drive, struct lade_error *error, double *ret_ns)
{
  int64_t ns[N_STORE_PIECES];
  for (int i = 0; i < N_STORE_PIECES; i++) {
    struct lade_transfer transfer = {.op = LADE_STORE_WRITE, .extent = drive->extents[i],
                                     .bytes = LADE_STORE_GRANULE_BYTES, .data = drive->area.at};
    int64_t start_ns = lade_now_ns();
    int rc = lade_store_submit(drive->store, &transfer);
    if (!rc)
      rc = lade_store_wait(drive->store, &transfer, error);
    if (rc)
      return rc;
    ns[i] = lade_now_ns() - start_ns;
  }
  *ret_ns = (double)probe_median(ns, N_STORE_PIECES);
  return 0;
}

static int drive_measure(struct drive *drive, struct lade_error *error, struct lade_machine_store *store)
{
  struct lade_machine_store measured = {.bytes = store->bytes};
  int rc = drive_rate(drive, 4, error, &measured.write_bytes_per_s);
  if (!rc)
    rc = drive_rate(drive, 0, error, &measured.read_bytes_per_s);
  if (!rc)
    rc = drive_rate(drive, 2, error, &measured.total_bytes_per_s);
  if (!rc)
    rc = drive_latency(drive, error, &measured.latency_ns);
  if (!rc) {
    double transfer_ns = LADE_STORE_GRANULE_BYTES / measured.write_bytes_per_s * 1e9;
    measured.latency_ns = LADE_MAX(measured.latency_ns - transfer_ns, 0);
    *store = measured;
  }
  return rc;
}

int probe_store(const struct lade_probe_params *params, struct lade_error *error, struct lade_machine_store *store)
{
  struct lade_store_params own = *params->store;
  own.capacity_bytes = N_STORE_PIECES * STORE_PIECE_BYTES;
  struct drive *drive = calloc(1, sizeof(*drive));
  if (!drive)
    return lade_error_set(error, -ENOMEM, "probe: out of memory");
  int rc = lade_store_open(&own, error, &drive->store);
  if (rc) {
    free(drive);
    return rc;
  }
  for (int i = 0; i < N_STORE_PIECES && !rc; i++)
    rc = lade_store_reserve(drive->store, STORE_PIECE_BYTES, &drive->extents[i]);
  if (!rc && (rc = probe_area_init(&drive->area, N_STORE_PIECES * STORE_PIECE_BYTES)))
    lade_error_set(error, rc, "probe: out of memory");
  if (!rc)
    rc = lade_store_prepare(drive->store, error);
  if (!rc)
    rc = drive_measure(drive, error, store);
  lade_store_close(drive->store);
  probe_area_finish(&drive->area);
  free(drive);
  return rc;
}
