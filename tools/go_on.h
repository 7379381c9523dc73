/* SPDX-License-Identifier: Apache-2.0 */
/* How a run that ended early goes on: from which checkpoint, and by which line. */
#ifndef LADE_GO_ON_H
#define LADE_GO_ON_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "tools/options.h"

/* Print the words that start @options' `lade train` again, behind "train", without where it began. */
void go_on_words_print(const struct options *options, FILE *file);

/* What --resume is to be given for the checkpoint of @step in @dir: @dir, where that is its newest, else its @path. */
const char *go_on_place(const char *dir, int64_t step, char path[PATH_MAX]);

/*
 * Append to @error, which a run has ended with, the newest complete checkpoint in the first of the @n @places (NULL:
 * not given; empty: it has none of this run) that has one, or that there is none, or why it cannot be taken. The place;
 * NULL: nothing to go on from.
 */
const char *go_on_newest(const char *const *places, size_t n, struct lade_error *error);

#endif
