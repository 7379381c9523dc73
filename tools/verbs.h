/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs of the command share: how it exits, and the entry of each verb.
 *
 * A verb gets its own name as argv[0] and the rest of the line after it, prints results on stdout
 * and everything else on stderr, and returns one of the codes below. It answers --help itself.
 */
#ifndef LADE_VERBS_H
#define LADE_VERBS_H

#include "lade/types.h"

enum lade_exit {
  LADE_EXIT_DONE = 0,
  LADE_EXIT_FAILED = 1,
  LADE_EXIT_USAGE = 2,
  LADE_EXIT_DOES_NOT_FIT = 3,
  LADE_EXIT_OUT_OF_MEMORY = 4, /* while running */
  LADE_EXIT_IO = 5,            /* I/O failed or data is damaged */
  LADE_EXIT_NUMBERS_DIFFER = 6,
  LADE_EXIT_MISSING = 7, /* something that this machine does not have */
};

/* The exit code of a negative errno, the only place that maps them. */
enum lade_exit exit_code(int status);

/* Print "lade PREFIX: text" on stderr as one line, whatever is in @text: control characters become question marks. */
void message_print(const char *prefix, const char *text);

/* Print "lade VERB: text" for @status and return its exit code; an empty text becomes strerror's. */
int exit_fail(const char *verb, int status, const struct lade_error *error);

typedef int lade_verb_fn(int argc, char **argv);

lade_verb_fn train_main, sweep_main, plan_main, sample_main, replay_main, doctor_main, bench_main, launch_main,
    run_main;

/* What `lade bench` measures, one function per subject; argv[0] is the subject. */
lade_verb_fn bench_adam_main, bench_alloc_main, bench_store_main;

#endif
