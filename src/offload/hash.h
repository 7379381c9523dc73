/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 at the speed of memory: one function per instruction set, all with the same value. The system's libxxhash is
 * built for every processor of the architecture and reads at a third of a core's rate.
 */
#ifndef LADE_OFFLOAD_HASH_H
#define LADE_OFFLOAD_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* The 64-bit XXH3 of @bytes at @data under @seed. Any thread. */
typedef uint64_t store_hash_fn(const void *data, size_t bytes, uint64_t seed);

store_hash_fn store_hash_plain, store_hash_avx2, store_hash_avx512;

/* Return the fastest function that @cpu can run. */
store_hash_fn *store_hash_choose(const struct lade_cpu *cpu);

#endif
