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

#define LADE_PHILOX_ROUNDS 10
#define LADE_PHILOX_FACTOR_0 0xD2511F53u
#define LADE_PHILOX_FACTOR_1 0xCD9E8D57u
#define LADE_PHILOX_KEY_0 0x9E3779B9u /* added to the keys after each round */
#define LADE_PHILOX_KEY_1 0xBB67AE85u

/*
 * Draw four uniform 32-bit words for elements 4*@block to 4*@block+3 of stream @stream at @step. Each op has a stream,
 * and each parameter one at initialisation.
 */
LADE_INLINE struct lade_philox lade_philox_draw(uint64_t seed, uint32_t step, uint32_t stream, uint64_t block)
{
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = stream, c3 = step;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < LADE_PHILOX_ROUNDS; round++) {
    /* Scalars: a counter of four words in an array costs CUDA kernels of attention 24 registers more. */
    const uint64_t p0 = (uint64_t)LADE_PHILOX_FACTOR_0 * c0, p1 = (uint64_t)LADE_PHILOX_FACTOR_1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    k0 += LADE_PHILOX_KEY_0;
    k1 += LADE_PHILOX_KEY_1;
  }
  const struct lade_philox draw = {{c0, c1, c2, c3}};
  return draw;
}

/* Return the word of one element. */
LADE_INLINE uint32_t lade_philox_word(uint64_t seed, uint32_t step, uint32_t stream, uint64_t element)
{
  return lade_philox_draw(seed, step, stream, element >> 2).word[element & 3];
}

#endif
