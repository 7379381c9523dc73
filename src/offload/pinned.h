/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host memory beside a device: what its copies read and write while other work runs. The host tier is one.
 */
#ifndef LADE_PINNED_H
#define LADE_PINNED_H

#include "device/device.h"
#include "offload/staging.h"

struct lade_pinned_params {
  lade_device *device; /* borrowed, until finish */
  uint64_t bytes;
  uint64_t limit_bytes; /* more than @bytes, up to this, may be taken where memory comes in chunks */
  int numa_node;        /* -1: anywhere */
  bool is_for_drives;   /* drives read and write it, too */
  struct lade_faults *faults; /* may be NULL */
};

struct lade_pinned {
  char *data; /* aligned to 2 MiB */
  uint64_t bytes;
  lade_device *device;
  struct lade_host_chunk chunk; /* of the driver's, if it has bytes */
  struct lade_staging staging;  /* else */
};

/* Zeroed and resident. -EINVAL for no bytes, -ENOMEM and others of lade_device_pin. Any thread. */
int lade_pinned_init(struct lade_pinned *ret_pinned, const struct lade_pinned_params *params);

/* Gives it back; no work may touch it any more. A zeroed struct is allowed. */
void lade_pinned_finish(struct lade_pinned *pinned);

#endif
