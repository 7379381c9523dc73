/* SPDX-License-Identifier: Apache-2.0 */
/* In a file of its own, which only tests that are also linked with --wrap=free pull in. */
#include "tests/support/allocations.h"

void __real_free(void *memory);
void __wrap_free(void *memory);

void __wrap_free(void *memory)
{
  allocations_live -= memory != NULL;
  __real_free(memory);
}
