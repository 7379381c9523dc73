/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that drives and copies like: one slab of exact size on 2 MiB pages where the machine has them,
 * resident from the start, near a NUMA node when one is named. It is the host tier's arena and the staging
 * memory of transfers.
 */
#ifndef LADE_STAGING_H
#define LADE_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/faults.h"

enum lade_page_kind {
  LADE_PAGES_SMALL,       /* the machine's base pages: huge ones are switched off */
  LADE_PAGES_TRANSPARENT, /* huge ones asked for with madvise; the kernel gives what it has */
  LADE_PAGES_RESERVED,    /* from the pool of reserved huge pages (vm.nr_hugepages) */
};

struct lade_staging {
  char *data;      /* aligned to 2 MiB */
  uint64_t bytes;  /* as asked for, rounded up to the base page */
  enum lade_page_kind pages; /* of the part that consists of whole huge pages */
  void *map;       /* what munmap takes */
  size_t map_bytes;
};

/*
 * Map and touch @bytes, zeroed, on NUMA node @numa_node (-1: anywhere; a node that cannot be had is no error).
 * -ENOMEM, -EINVAL for no bytes. The caller owns @ret_staging and ends it with finish. Any thread.
 */
int lade_staging_init(struct lade_staging *ret_staging, uint64_t bytes, int numa_node, struct lade_faults *faults);

/* Gives it back. A zeroed struct is allowed. */
void lade_staging_finish(struct lade_staging *staging);

#endif
