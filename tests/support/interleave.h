/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run a program on made-up memory, its queues side by side in a drawn order. Every eight bytes of memory
 * hold a tag of the value and the place in it that they belong to. An instruction takes time: where it begins, it
 * looks at what it reads and scribbles over what it writes; where it ends, it looks again and leaves tags. Between
 * the two, the other queues go on as far as their waits allow. A slow and simple witness for
 * the proof: what is proved must run right in every order.
 */
#ifndef INTERLEAVE_H
#define INTERLEAVE_H

#include <stdbool.h>

#include "plan/program.h"

/* Whether every read found what it names and the step ended as the next begins. @program's indices are sound. */
bool interleave_runs(const struct lade_program *program, uint32_t seed);

#endif
