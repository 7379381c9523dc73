/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory areas that the probe measures in, their contents, and the median and the lower quartile of a few runs.
 *
 * An area has 64 MiB: more than the last-level cache of common machines is likely to keep between two passes, and few
 * enough pages to map in milliseconds. On a server with a larger cache the probe measures the cache's bandwidth. A step
 * with buffers of this size has the same bandwidth. If less memory is free, areas are smaller.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/memory.h"
#include "base/philox.h"
#include "base/float.h"
#include "machine/probe_internal.h"

#define HUGE_PAGE_BYTES (2u << 20)
#define AREA_BYTES_MIN ((size_t)2 << 20) /* one huge page, however little memory is free */
#define MARGIN_BYTES (UINT64_C(8) << 20) /* for threads, the cache file and the heap, on top of the measured areas */
#define FILL_ELEMENTS 65536

struct fill {
  char *at;
  enum lade_dtype dtype;
  uint64_t n_elements;
  float low, high;
};

uint64_t probe_room_bytes(void)
{
  struct lade_memory memory;
  if (lade_memory_get("", NULL, &memory))
    return 0;
  return memory.bytes - LADE_MIN(memory.bytes, MARGIN_BYTES);
}

size_t probe_area_bytes(void)
{
  const uint64_t quarter_bytes = probe_room_bytes() / 4 >> 20 << 20;
  return LADE_MAX(LADE_MIN(quarter_bytes, PROBE_AREA_BYTES_MAX), AREA_BYTES_MIN);
}

int probe_area_init(struct probe_area *area, size_t bytes)
{
  bytes = lade_align_up(bytes, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES; /* so that a whole huge page begins inside */
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return -ENOMEM;
  madvise(at, bytes, MADV_HUGEPAGE);
  memset(at, 0, bytes);
  *area = (struct probe_area){at, bytes};
  return 0;
}

void probe_area_finish(struct probe_area *area)
{
  if (area->at)
    munmap(area->at, area->bytes);
  *area = (struct probe_area){0};
}

static void fill_task(void *arg, int i_task, int i_thread)
{
  const struct fill *fill = arg;
  uint64_t first = (uint64_t)i_task * FILL_ELEMENTS, end = LADE_MIN(first + FILL_ELEMENTS, fill->n_elements);
  uint64_t state = first * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (uint64_t i = first; i < end; i++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth's LCG: any generator is
                                                                                      good enough */
    float value = fill->low + (fill->high - fill->low) * ((float)(state >> 40) * 0x1p-24f);
    if (fill->dtype == LADE_BF16)
      ((uint16_t *)fill->at)[i] = lade_f32_to_bf16(value);
    else if (fill->dtype == LADE_F16)
      ((uint16_t *)fill->at)[i] = lade_f32_to_f16(value);
    else if (fill->dtype == LADE_F64)
      ((double *)fill->at)[i] = (double)value;
    else
      ((float *)fill->at)[i] = value;
  }
}

void probe_fill(lade_pool *pool, void *at, enum lade_dtype dtype, uint64_t bytes, float low, float high)
{
  if (dtype == LADE_I32 || dtype == LADE_I16 || dtype == LADE_U8) {
    memset(at, 0, bytes);
    return;
  }
  struct fill fill = {at, dtype, bytes / lade_dtype_bytes(dtype), low, high};
  lade_pool_run(pool, fill_task, &fill, (int)lade_div_up((int64_t)fill.n_elements, FILL_ELEMENTS));
}

static int ns_compare(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

void probe_sort(int64_t *values, int n)
{
  qsort(values, (size_t)n, sizeof(*values), ns_compare);
}

int64_t probe_median(int64_t *values, int n)
{
  probe_sort(values, n);
  return values[n / 2];
}

int64_t probe_quartile(int64_t *values, int n)
{
  probe_sort(values, n);
  return values[n / 4];
}
