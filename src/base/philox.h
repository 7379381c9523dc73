/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox 4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3" (SC 2011). A draw is a pure function of (seed, step, stream, element):
 * recomputing an op, moving its operands or sharding it draws the same numbers.
 */
#ifndef LADE_PHILOX_H
#define LADE_PHILOX_H

#include <stdint.h>

#include "base/inline.h"

struct lade_philox {
  uint32_t word[4];
};

/* Run one round, with the round's keys, on a counter. */
LADE_INLINE void lade_philox_round(struct lade_philox *counter, uint32_t k0, uint32_t k1)
{
  uint32_t *c = counter->word;
  const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
  const struct lade_philox next = {
      {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0}};
  *counter = next;
}

#define LADE_PHILOX_ROUNDS 10
#define LADE_PHILOX_KEY_0 0x9E3779B9u /* added to the keys after each round */
#define LADE_PHILOX_KEY_1 0xBB67AE85u

/*
 * Draw four uniform 32-bit words for elements 4*@block to 4*@block+3 of stream @stream at @step. Each op has a stream,
 * and each parameter one at initialisation.
 */
LADE_INLINE struct lade_philox lade_philox_draw(uint64_t seed, uint32_t step, uint32_t stream, uint64_t block)
{
  struct lade_philox draw = {{(uint32_t)block, (uint32_t)(block >> 32), stream, step}};
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < LADE_PHILOX_ROUNDS; round++) {
    lade_philox_round(&draw, k0, k1);
    k0 += LADE_PHILOX_KEY_0;
    k1 += LADE_PHILOX_KEY_1;
  }
  return draw;
}

/* Return the word of one element. */
LADE_INLINE uint32_t lade_philox_word(uint64_t seed, uint32_t step, uint32_t stream, uint64_t element)
{
  return lade_philox_draw(seed, step, stream, element >> 2).word[element & 3];
}

#endif
