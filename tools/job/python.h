/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the Python package lade, run by a Python: the one that LADE_PYTHON names, else the one in the directory
 * of this command (a virtual environment), else python3 on PATH. In a build's tree the package is the one in its
 * source; else the Python has it installed.
 */
#ifndef LADE_PYTHON_H
#define LADE_PYTHON_H

#include <limits.h>

#include "lade/types.h"

#define PYTHON_WORDS 7 /* of a command before the function's arguments */

struct python_command {
  char python[PATH_MAX], package[PATH_MAX]; /* the directory that has the package; "": it is installed */
};

/*
 * Fill @ret_words with the command that calls main() of the package's module @module for the verb @verb, which messages
 * name. The words point into @ret_command and the arguments. -ENOSYS with one line: no Python.
 */
int python_command_make(const char *module, const char *verb, struct lade_error *error,
                        struct python_command *ret_command, const char *ret_words[PYTHON_WORDS]);

#endif
