/* SPDX-License-Identifier: Apache-2.0 */
/* A file of its own, linked only into tests that also use --wrap=free. */
#include "tests/support/heap/allocations.h"

void __real_free(void *memory);
void __wrap_free(void *memory);

void __wrap_free(void *memory)
{
  allocations_live -= memory != NULL;
  __real_free(memory);
}
