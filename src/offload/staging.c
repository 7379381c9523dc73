/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging slabs. Addresses are reserved first, with space to align to 2 MiB. Then the part of the slab that consists of
 * whole huge pages is mapped over them: from the reserved pool if it has enough, else as ordinary memory with
 * MADV_HUGEPAGE. The tail follows, in base pages. So the slab has the exact size, rounded to a base page, and all huge
 * pages that fit. A drive reads into 2 MiB pages at up to twice the rate: a request is a list of bounded length, of
 * physically contiguous pieces. Pinning too is counted in pages.
 *
 * The slab is touched here (MADV_POPULATE_WRITE, or memset on kernels before 5.14). So missing memory is an error now
 * and not a fault later, and the first step is as fast as the second. The node is requested between mapping and
 * touching, because pages stay on the node of the first touch. Only touching tells if reserved pages are available to
 * this process: the kernel reserves them for the machine, and they may be on other nodes or belong to other control
 * groups. Then ordinary memory replaces them.
 *
 * Rejected: rounding up to powers of two or to whole huge pages, which takes memory that no plan has counted.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "offload/numa.h"
#include "offload/staging.h"

#define HUGE_BYTES (2ull << 20) /* a huge page */
#define MADVISE_POPULATE_WRITE 23 /* Linux 5.14; not in older headers */

/* Map memory at @at, in the reserved addresses. */
static bool range_map(char *at, uint64_t bytes, int flags)
{
  return !bytes || mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | flags, -1, 0) !=
                       MAP_FAILED;
}

/* Map the slab; with @may_reserve from the reserved pool, if it has enough pages. */
static bool staging_map(struct lade_staging *staging, bool may_reserve)
{
  uint64_t huge_bytes = staging->bytes & ~(HUGE_BYTES - 1);
  char *tail = staging->data + huge_bytes;
  staging->pages = LADE_PAGES_RESERVED;
  if (!may_reserve || !huge_bytes || !range_map(staging->data, huge_bytes, MAP_HUGETLB | (21 << MAP_HUGE_SHIFT))) {
    if (!range_map(staging->data, huge_bytes, 0))
      return false;
    bool is_huge = huge_bytes && madvise(staging->data, huge_bytes, MADV_HUGEPAGE) == 0;
    staging->pages = is_huge ? LADE_PAGES_TRANSPARENT : LADE_PAGES_SMALL;
  }
  return range_map(tail, staging->bytes - huge_bytes, 0);
}

static bool staging_touch(struct lade_staging *staging)
{
  int code;
  do {
    code = madvise(staging->data, staging->bytes, MADVISE_POPULATE_WRITE) < 0 ? errno : 0;
  } while (code == EINTR || code == EAGAIN);
  if (code == EINVAL) /* a kernel without MADV_POPULATE_WRITE */
    memset(staging->data, 0, staging->bytes);
  return !code || code == EINVAL;
}

static bool staging_fill(struct lade_staging *staging, int numa_node, bool may_reserve)
{
  if (!staging_map(staging, may_reserve))
    return false;
  if (numa_node >= 0)
    lade_numa_bind(staging->data, staging->bytes, numa_node);
  return staging_touch(staging);
}

int lade_staging_init(struct lade_staging *ret_staging, uint64_t bytes, int numa_node, struct lade_faults *faults)
{
  if (!bytes || bytes > INT64_MAX / 2)
    return bytes ? -ENOMEM : -EINVAL;
  if (lade_fault(faults, LADE_FAULT_RESERVE))
    return -ENOMEM;
  struct lade_staging staging = {.bytes = lade_align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE))};
  staging.map_bytes = staging.bytes + HUGE_BYTES;
  staging.map = mmap(NULL, staging.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (staging.map == MAP_FAILED)
    return -ENOMEM;
  staging.data = (char *)lade_align_up((uint64_t)(uintptr_t)staging.map, HUGE_BYTES);
  bool is_filled = !lade_fault(faults, LADE_FAULT_MAP) && staging_fill(&staging, numa_node, true);
  if (!is_filled && staging.pages == LADE_PAGES_RESERVED)
    is_filled = staging_fill(&staging, numa_node, false);
  if (!is_filled) {
    munmap(staging.map, staging.map_bytes);
    return -ENOMEM;
  }
  *ret_staging = staging;
  return 0;
}

void lade_staging_finish(struct lade_staging *staging)
{
  if (staging->map)
    munmap(staging->map, staging->map_bytes);
  memset(staging, 0, sizeof(*staging));
}
