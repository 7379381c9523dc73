/* SPDX-License-Identifier: Apache-2.0 */
/* The only instruction set is the architecture's, which xxHash detects. */
#include "offload/hash.h"

store_hash_fn *store_hash_choose(const struct lade_cpu *cpu)
{
  return store_hash_plain;
}
