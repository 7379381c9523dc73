/* SPDX-License-Identifier: Apache-2.0 */
/* Choose the instruction set of the checksums' hash on x86-64. */
#include "offload/hash.h"

store_hash_fn *store_hash_choose(const struct lade_cpu *cpu)
{
  if (cpu->has_avx512)
    return store_hash_avx512;
  return cpu->has_avx2 ? store_hash_avx2 : store_hash_plain;
}
