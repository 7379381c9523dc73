/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of the store's granules, held in memory: bytes read from the drive are compared with them. */
#ifndef LADE_OFFLOAD_CHECKSUMS_H
#define LADE_OFFLOAD_CHECKSUMS_H

#include <stdint.h>

#include "offload/hash.h"
#include "offload/store.h"

struct store_sums {
  uint64_t *sums; /* one per granule of the file; 0: never sealed */
  uint64_t n;
  store_hash_fn *hash;
};

/*
 * Compute and store the checksums of @bytes. @offset is in the file and a multiple of the granule; the last granule may
 * be shorter.
 */
void store_sums_seal(struct store_sums *sums, const struct lade_identity *identity, uint64_t offset,
                     const void *data, uint64_t bytes);

/* Return 0, or -EBADMSG with the file offset of the first granule that does not match. */
int store_sums_verify(const struct store_sums *sums, const struct lade_identity *identity, uint64_t offset,
                      const void *data, uint64_t bytes, uint64_t *ret_offset);

#endif
