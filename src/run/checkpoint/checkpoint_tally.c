/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of a tensor's elements that add up over ranks.
 *
 * Several ranks write a tensor, each a rectangle or a run of it, and the ranks that read it may cut it elsewhere. So
 * its checksum is a sum, modulo 2^64, over all elements, of a hash of (place, bits). The hash is the finalizer of
 * SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators") of bits + place * 2^64/phi.
 * For one place it is a bijection, so one changed element always changes the sum. Several changes, for instance
 * exchanged or shifted elements, leave the sum as it is with a probability of 2^-64. Sums of hashes are a known hash of
 * multisets (Clarke et al. 2003, "Incremental multiset hash functions"). Unlike theirs, this one does not protect
 * against an adversary.
 *
 * Each rank counts the elements that it reads. Each element of a tensor counts c times over all ranks, replicas and
 * copies included. So all counts must add up to c times the tensor's sum. One addition over the ranks thus verifies the
 * elements of every rank. If n tensor parallel ranks share each KV head, they all read its rows, but only one of them
 * reads a row of queries. One tensor may contain both (Falcon), so a row of queries counts n times.
 */
#include <string.h>

#include "run/checkpoint/checkpoint_internal.h"

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t element_hash(uint64_t place, uint32_t bits)
{
  uint64_t z = bits + place * GOLDEN;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

void tally_add(struct tensor_tally *tally, int64_t place, const float *elements, int64_t n, uint64_t weight)
{
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &elements[i], sizeof(bits));
    sum += element_hash((uint64_t)(place + i), bits);
  }
  tally->sum += weight * sum;
  tally->n_elements += weight * (uint64_t)n;
}
