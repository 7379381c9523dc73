/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for a device. The device's copies read and write it while other work runs. The host tier is one use. */
#ifndef LADE_PINNED_H
#define LADE_PINNED_H

#include "device/device.h"
#include "offload/staging.h"

struct lade_pinned_params {
  lade_device *device;  /* borrowed, until finish */
  uint64_t bytes;
  uint64_t limit_bytes; /* upper limit if memory comes in chunks and @bytes are rounded up */
  int numa_node;        /* -1: anywhere */
  bool is_for_drives;   /* drives read and write it too */
  struct lade_faults *faults; /* may be NULL */
};

struct lade_pinned {
  char *data; /* aligned to 2 MiB */
  uint64_t bytes;
  lade_device *device;
  struct lade_host_chunk chunk; /* from the driver, used if its bytes are not 0 */
  struct lade_staging staging;  /* used otherwise */
};

/* Allocate zeroed, resident memory. -EINVAL for 0 bytes, -ENOMEM and other errors of lade_device_pin. Any thread. */
int lade_pinned_init(struct lade_pinned *ret_pinned, const struct lade_pinned_params *params);

/* Free the memory. A zeroed struct is allowed. pre: no work accesses it any more. */
void lade_pinned_finish(struct lade_pinned *pinned);

#endif
