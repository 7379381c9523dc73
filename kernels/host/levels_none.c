/* SPDX-License-Identifier: Apache-2.0 */
/* No levels above the plain reference on this architecture. */
#include "kernels/host/host.h"

void lade_kernels_init_levels(struct lade_kernels *kernels, const struct lade_cpu *cpu)
{
}
