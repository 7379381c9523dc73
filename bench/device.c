/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of the host device: submitting work, and providing memory.
 *
 * Queues: nanoseconds per piece of empty work in a stream, per submission with a wait, and per handover between two
 * queues that wait for each other; and the time of throttled copies over that of their link (never below 1). Memory:
 * the same bytes populated, mapped and unmapped as the device does it, and copied. Next to it a memfd of as many bytes
 * is populated and copied. Rounds are interleaved, and the best of them counts.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/pool.h"
#include "device/device.h"

#define MEMORY_BYTES ((uint64_t)256 << 20)
#define N_ROUNDS 4

static void nothing(void *args)
{
}

static uint64_t nothing_launch(lade_queue *queue)
{
  uint64_t count = 0;
  lade_queue_launch(queue, &(struct lade_work){.fn = nothing}, &count);
  return count;
}

static void queues_measure(lade_queue *one, lade_queue *two)
{
  const int n = 20000;
  uint64_t count = 0;
  int64_t start_ns = lade_now_ns();
  for (int i = 0; i < n; i++)
    count = nothing_launch(one);
  lade_queue_sync(one, count);
  printf("%-36s %8.0f ns\n", "work, in a stream", (double)(lade_now_ns() - start_ns) / n);

  start_ns = lade_now_ns();
  for (int i = 0; i < n; i++)
    lade_queue_sync(one, nothing_launch(one));
  printf("%-36s %8.0f ns\n", "work, waited for", (double)(lade_now_ns() - start_ns) / n);

  start_ns = lade_now_ns();
  for (int i = 0; i < n / 2; i++) {
    lade_queue_wait(two, one, nothing_launch(one));
    count = nothing_launch(two);
    lade_queue_wait(one, two, count);
  }
  lade_queue_sync(two, count);
  printf("%-36s %8.0f ns\n", "handover between queues", (double)(lade_now_ns() - start_ns) / n);
}

static void link_measure(lade_queue *to_host, const struct lade_link *link)
{
  static char from[65536], to[65536];
  const int n = 500;
  uint64_t count = 0;
  int64_t start_ns = lade_now_ns();
  for (int i = 0; i < n; i++)
    lade_queue_copy(to_host, &(struct lade_copy){.dst = to, .src = from, .bytes = sizeof(to)}, &count);
  lade_queue_sync(to_host, count);
  double stated_ns = (double)link->latency_ns + (double)sizeof(to) / (double)link->bytes_per_s * 1e9;
  double ns = (double)(lade_now_ns() - start_ns) / n;
  printf("%-36s %8.4f of stated\n", "copies of 64 KiB over a link", ns / stated_ns);
}

enum { POPULATE, MAP, UNMAP, COPY, MEMFD_POPULATE, MEMFD_COPY, N_MEASURES };

static void best_take(double *best_ms, int64_t start_ns)
{
  double ms = (double)(lade_now_ns() - start_ns) * 1e-6;
  if (*best_ms == 0 || ms < *best_ms)
    *best_ms = ms;
}

static void halves_copy(void *at, double *best_ms)
{
  int64_t start_ns = lade_now_ns();
  memcpy(at, (char *)at + MEMORY_BYTES / 2, MEMORY_BYTES / 2);
  best_take(best_ms, start_ns);
}

static int device_measure(lade_device *device, double *best_ms)
{
  uint64_t at = 0;
  lade_chunk *chunk = NULL;
  int64_t start_ns = lade_now_ns();
  int error = lade_device_chunk_create(device, MEMORY_BYTES, &chunk);
  best_take(&best_ms[POPULATE], start_ns);
  if (!error)
    error = lade_device_reserve(device, MEMORY_BYTES, &at);
  start_ns = lade_now_ns();
  if (!error)
    error = lade_device_map(device, at, chunk);
  best_take(&best_ms[MAP], start_ns);
  if (!error) {
    halves_copy((void *)(uintptr_t)at, &best_ms[COPY]);
    start_ns = lade_now_ns();
    error = lade_device_unmap(device, at, MEMORY_BYTES);
    best_take(&best_ms[UNMAP], start_ns);
  }
  if (at && !error)
    lade_device_release(device, at, MEMORY_BYTES);
  if (!error)
    lade_device_chunk_release(device, chunk);
  return error;
}

static int memfd_measure(double *best_ms)
{
  int fd = memfd_create("bench-device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)MEMORY_BYTES))
    return -1;
  int64_t start_ns = lade_now_ns();
  void *at = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  best_take(&best_ms[MEMFD_POPULATE], start_ns);
  if (at == MAP_FAILED)
    return -1;
  halves_copy(at, &best_ms[MEMFD_COPY]);
  munmap(at, MEMORY_BYTES);
  close(fd);
  return 0;
}

static int memory_measure(lade_device *device)
{
  static const char *const names[N_MEASURES] = {"populate", "map", "unmap", "copy half to half", "memfd: populate",
                                                "memfd: copy"};
  double best_ms[N_MEASURES] = {0};
  for (int i = 0; i < N_ROUNDS; i++) {
    if (device_measure(device, best_ms) || memfd_measure(best_ms))
      return 1;
  }
  for (int i = 0; i < N_MEASURES; i++)
    printf("256 MiB, %-27s %8.3f ms  %8.3f of populating\n", names[i], best_ms[i], best_ms[i] / best_ms[POPULATE]);
  return 0;
}

int main(void)
{
  const struct lade_link link = {.bytes_per_s = 1000000000, .latency_ns = 5000};
  enum lade_queue_role roles[] = {LADE_QUEUE_COMPUTE, LADE_QUEUE_HOST, LADE_QUEUE_TO_HOST};
  struct lade_error error = {0};
  lade_pool *pool = NULL;
  lade_device *device = NULL;
  lade_queue *queues[3] = {0};
  if (lade_pool_create(0, &pool))
    return 1;
  struct lade_host_device_params params = {.struct_size = sizeof(params), .pool = pool, .to_host = link};
  if (lade_device_open_host(&params, &error, &device)) {
    fprintf(stderr, "bench-device: %s\n", error.text);
    return 1;
  }
  for (int i = 0; i < 3; i++) {
    if (lade_queue_create(device, roles[i], &queues[i]))
      return 1;
  }
  queues_measure(queues[0], queues[1]);
  link_measure(queues[2], &link);
  int rc = memory_measure(device);
  for (int i = 0; i < 3; i++)
    lade_queue_destroy(queues[i]);
  if (!rc)
    lade_device_close(device);
  lade_pool_destroy(pool);
  return rc;
}
