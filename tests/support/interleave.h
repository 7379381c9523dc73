/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run a program on simulated memory, its queues interleaved in a random order. Every eight bytes of memory hold a tag
 * of their value and their place in it. An instruction takes time: at its begin it checks its inputs and overwrites its
 * outputs with garbage; at its end it checks again and writes tags. Between the two, the other queues advance as far as
 * their waits allow. This is a slow and simple check of the proof: a proved program must run right in every order.
 */
#ifndef INTERLEAVE_H
#define INTERLEAVE_H

#include <stdbool.h>

#include "program/program.h"

/*
 * True if every read found the value that it names and the step ended as the next begins. pre: @program's indices are
 * valid.
 */
bool interleave_runs(const struct lade_program *program, uint32_t seed);

#endif
