/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One 64-bit XXH3 per granule, seeded with the hash of its identity: tensor, microbatch, generation, offset and length.
 * The checksum is in memory, not beside the data. So a block that the drive never wrote (stale) or wrote elsewhere
 * (swapped) does not match. A wrong block passes with probability 2^-64.
 *
 * The granule is 64 KiB: long enough for XXH3 to run at the speed of memory. It is short enough to stay in the
 * second-level cache between the optimizer's arithmetic and the checksum. The table costs 1/8192 of the store.
 * Rejected: CRC32C, which is weaker and no faster; checksums inside the block, which break the alignment of data.
 */
#include <errno.h>

#include "base/base.h"
#include "offload/store/checksums.h"

static uint64_t granule_sum(const struct store_sums *sums, const struct lade_identity *identity, uint64_t offset,
                            const void *data, uint64_t bytes)
{
  const uint64_t name[4] = {
      (uint64_t)identity->tensor << 32 | identity->microbatch,
      identity->generation,
      offset,
      bytes,
  };
  uint64_t sum = sums->hash(data, bytes, sums->hash(name, sizeof(name), 0));
  return sum ? sum : 1; /* 0 means never sealed */
}

void store_sums_seal(struct store_sums *sums, const struct lade_identity *identity, uint64_t offset,
                     const void *data, uint64_t bytes)
{
  LADE_ASSERT(offset % LADE_STORE_GRANULE_BYTES == 0);
  for (uint64_t at = 0; at < bytes; at += LADE_STORE_GRANULE_BYTES) {
    uint64_t n = LADE_MIN(bytes - at, LADE_STORE_GRANULE_BYTES), i = (offset + at) / LADE_STORE_GRANULE_BYTES;
    LADE_ASSERT(i < sums->n);
    sums->sums[i] = granule_sum(sums, identity, offset + at, (const char *)data + at, n);
  }
}

int store_sums_verify(const struct store_sums *sums, const struct lade_identity *identity, uint64_t offset,
                      const void *data, uint64_t bytes, uint64_t *ret_offset)
{
  LADE_ASSERT(offset % LADE_STORE_GRANULE_BYTES == 0);
  for (uint64_t at = 0; at < bytes; at += LADE_STORE_GRANULE_BYTES) {
    uint64_t n = LADE_MIN(bytes - at, LADE_STORE_GRANULE_BYTES), i = (offset + at) / LADE_STORE_GRANULE_BYTES;
    LADE_ASSERT(i < sums->n);
    if (sums->sums[i] != granule_sum(sums, identity, offset + at, (const char *)data + at, n)) {
      *ret_offset = offset + at;
      return -EBADMSG;
    }
  }
  return 0;
}
