/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint and the command line from which a run that ended early resumes. */
#ifndef LADE_RESUME_COMMAND_H
#define LADE_RESUME_COMMAND_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "tools/cli/options.h"

/* Print the arguments after "train" that repeat the run of @options, without its --resume or --init. */
void resume_command_words_print(const struct options *options, FILE *file);

/*
 * Return the argument of --resume for the checkpoint of @step in @dir: @dir if it is the newest there, else its path in
 * @path.
 */
const char *resume_command_place(const char *dir, int64_t step, char path[PATH_MAX]);

/*
 * Append to @error, the error that ended a run, the newest complete checkpoint in the first of the @n @places that has
 * one. A place of NULL was not given; an empty one has no checkpoint of this run. Otherwise append that there is none,
 * or why it cannot be used. Return the place; NULL: no checkpoint to resume from.
 */
const char *resume_command_newest(const char *const *places, size_t n, struct lade_error *error);

#endif
