/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that suits drives and copies: one slab of exact size, resident from the start. It is on 2 MiB pages if
 * the machine has them, and near a NUMA node if one is given. It is used as the host tier's arena and as the staging
 * memory of transfers.
 */
#ifndef LADE_STAGING_H
#define LADE_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/faults.h"

enum lade_page_kind {
  LADE_PAGES_SMALL,       /* base pages: huge pages are switched off */
  LADE_PAGES_TRANSPARENT, /* huge pages by madvise, as far as the kernel has free ones */
  LADE_PAGES_RESERVED,    /* from the pool of reserved huge pages (vm.nr_hugepages) */
};

struct lade_staging {
  char *data;      /* aligned to 2 MiB */
  uint64_t bytes;  /* the requested size, rounded up to the base page */
  enum lade_page_kind pages; /* of the part that consists of whole huge pages */
  void *map;       /* the argument of munmap */
  size_t map_bytes;
};

/*
 * Map and touch @bytes, zeroed, on NUMA node @numa_node (-1: any; an unavailable node is no error). -ENOMEM, -EINVAL
 * for 0 bytes. The caller owns @ret_staging and ends it with finish. Any thread.
 */
int lade_staging_init(struct lade_staging *ret_staging, uint64_t bytes, int numa_node, struct lade_faults *faults);

/* Unmap the slab. A zeroed struct is allowed. */
void lade_staging_finish(struct lade_staging *staging);

#endif
