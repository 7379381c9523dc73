/* SPDX-License-Identifier: Apache-2.0 */
/* Other programs, as a shell would find them. */
#ifndef LADE_TOOLS_PROGRAM_H
#define LADE_TOOLS_PROGRAM_H

#include <stdbool.h>

/* Whether @program, as a path or on PATH, can be executed. */
bool program_exists(const char *program);

#endif
