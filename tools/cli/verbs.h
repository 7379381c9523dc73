/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared parts of the command's verbs: exit codes, and the entry of each verb.
 *
 * A verb gets its own name as argv[0] and the remaining arguments after it. It prints results on stdout and all other
 * output on stderr, and returns one of the codes below. It answers --help itself.
 */
#ifndef LADE_VERBS_H
#define LADE_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "lade/types.h"

enum lade_exit {
  LADE_EXIT_DONE = 0,
  LADE_EXIT_FAILED = 1,
  LADE_EXIT_USAGE = 2,
  LADE_EXIT_DOES_NOT_FIT = 3,
  LADE_EXIT_OUT_OF_MEMORY = 4, /* while running */
  LADE_EXIT_IO = 5,            /* I/O failed or data is damaged */
  LADE_EXIT_NUMBERS_DIFFER = 6,
  LADE_EXIT_MISSING = 7, /* something is missing on this machine */
};

/* Return the exit code of a negative errno. No other function maps them. */
enum lade_exit exit_code(int status);

/*
 * text_put prints text from outside (paths, programs, words of a command) as one line that moves no cursor. A line feed
 * becomes \n. Other control characters, also those of UTF-8, become a backslash and three octal digits, as in C and in
 * a shell's $'...'. Inside quotes, @quote and backslashes are escaped too; @quote 0: no quotes.
 */
bool text_has_control(const char *text);
void text_put(FILE *file, const char *text, char quote);

/* Escape @text in the same way into @buffer, cut to @buffer_bytes. Return @buffer. */
const char *text_escape(const char *text, char *buffer, size_t buffer_bytes);

/* Print "lade PREFIX: text" on stderr as one line; @text is escaped as by text_put. */
void message_print(const char *prefix, const char *text);

/* Print "lade VERB: text" for @status and return its exit code. An empty text is replaced by strerror's. */
int exit_fail(const char *verb, int status, const struct lade_error *error);

typedef int lade_verb_fn(int argc, char **argv);

lade_verb_fn train_main, sweep_main, plan_main, sample_main, replay_main, doctor_main, bench_main, launch_main,
    run_main, completions_main, data_main;

/* Subjects of `lade bench`, one function each; argv[0] is the subject. */
lade_verb_fn bench_adam_main, bench_alloc_main, bench_links_main, bench_store_main;

#endif
