/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan` of a mixture of experts: its step on one rank, as a graph of opaque ops (machine/experts_step.h).
 */
#ifndef LADE_TOOLS_PLAN_EXPERTS_H
#define LADE_TOOLS_PLAN_EXPERTS_H

#include "tools/cli/options.h"

/*
 * Plan the model of @options if it is a mixture of experts: print, and set *ret_code to the exit code. False: it is
 * none, and nothing is printed.
 */
bool plan_experts(const struct options *options, int *ret_code);

#endif
