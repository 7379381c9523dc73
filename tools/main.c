/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `lade` command: finds the verb that the first argument names and hands it the rest.
 *
 * Each verb is one file beside this one and one line in the table; the table is the help. Results
 * go to stdout, which is flushed and checked here once for all verbs: a full disk or a broken pipe
 * behind `lade plan --json > file` is an error, never a short file with exit code 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/options.h"
#include "tools/verbs.h"

struct verb {
  const char *name, *summary;
  lade_verb_fn *main;
};

static const struct verb verbs[] = {
    {"train", "trains a model inside a memory budget", train_main},
    {"sweep", "trains at several budgets, and compares memory, speed and numbers", sweep_main},
    {"plan", "says where every byte would wait, and what that would cost", plan_main},
    {"sample", "prints text from a checkpoint", sample_main},
    {"replay", "replays a trace of allocations under several policies, without memory", replay_main},
    {"doctor", "says what this machine has, and how to get what it lacks", doctor_main},
    {"run", "runs a CUDA program inside a memory budget, and says what it held", run_main},
    {"launch", "starts many ranks of a command, through mpirun", launch_main},
    {"bench", "measures parts of Lade on this machine, beside what one would use otherwise", bench_main},
    {0}, /* ends the table */
};

static const struct verb *verb_find(const char *name)
{
  for (const struct verb *verb = verbs; verb->name; verb++)
    if (strcmp(verb->name, name) == 0)
      return verb;
  return NULL;
}

static void verb_suggest(const char *name)
{
  const char *near = NULL;
  if (name[0] == '-') {
    fprintf(stderr, "lade: there is no option '%s' before a verb; there are --help and --version\n", name);
    return;
  }
  int least = 3;
  for (const struct verb *verb = verbs; verb->name; verb++) {
    int distance = word_distance(name, verb->name);
    near = distance < least ? verb->name : near;
    least = distance < least ? distance : least;
  }
  if (near)
    fprintf(stderr, "lade: there is no verb '%s'; did you mean '%s'? `lade --help` lists them\n", name, near);
  else
    fprintf(stderr, "lade: there is no verb '%s'; `lade --help` lists them\n", name);
}

static void help_print(FILE *file)
{
  fprintf(file, "Usage: lade VERB [OPTION...]\n"
                "Trains a model inside a memory budget, with the numbers of the unconstrained run.\n\n");
  for (const struct verb *verb = verbs; verb->name; verb++)
    fprintf(file, "  %-8s %s\n", verb->name, verb->summary);
  fprintf(file, "\n  lade VERB --help   the verb's options, with examples\n"
                "  lade --version     the version\n\n"
                "Exit codes: 0 done, 1 failed, 2 usage, 3 does not fit the budget, 4 out of memory while\n"
                "running, 5 I/O failed or data is damaged, 6 numbers differ, 7 something is missing here.\n");
}

/* What stdout still holds must arrive; an earlier failure outranks this one. */
static int output_finish(int status)
{
  if (ferror(stdout))
    fputc('\n', stdout); /* the cause is forgotten by now: the next write has it */
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout))
    return status;
  fprintf(stderr, "lade: standard output: %s; the results are incomplete\n", strerror(errno ? errno : EIO));
  return status ? status : LADE_EXIT_IO;
}

/*
 * Closed standard streams would give their numbers to files, and messages would end up in a log or a checkpoint.
 * The null device takes their places, so opened that what is written to a closed stdout is still an error.
 * A pipe without a reader and a file past the size limit are errors of the call that met them; the signals would end
 * a run that could still save.
 */
static void process_prepare(void)
{
  for (int fd = 0; fd <= 2; fd++) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0)
      break;
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

/* A choice that does not exist would be all of them, and not what was meant. */
static bool choices_are_known(void)
{
  static const struct {
    const char *variable, *choices[6], *words; /* the last choice is none */
  } table[] = {{"LADE_CPU", {"", "plain", "avx2", "avx512", "avx512_bf16"}, "plain, avx2, avx512 or avx512_bf16"},
               {"LADE_MATMUL", {"", "plain", "onednn"}, "plain or onednn"},
               {"LADE_ATTENTION", {"", "plain", "mma", "wgmma"}, "plain, mma or wgmma"},
               {"LADE_CUDA_GRAPHS", {"", "0", "1"}, "0 or 1"},
               {"LADE_CUDA_HOST_CHUNKS", {"", "0", "1"}, "0 or 1"}};
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
    const char *chosen = getenv(table[i].variable);
    bool is_known = !chosen;
    for (int k = 0; table[i].choices[k] && !is_known; k++)
      is_known = strcmp(chosen, table[i].choices[k]) == 0;
    if (!is_known) {
      fprintf(stderr, "lade: %s is '%.64s' in the environment: expected %s\n", table[i].variable, chosen,
              table[i].words);
      return false;
    }
  }
  return true;
}

/* "help VERB" becomes "VERB --help". */
static void help_move(int argc, char **argv)
{
  static char help[] = "--help";
  if (strcmp(argv[1], "help") != 0)
    return;
  memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof(*argv));
  argv[argc - 1] = help;
}

int main(int argc, char **argv)
{
  process_prepare();
  if (!choices_are_known())
    return LADE_EXIT_USAGE;
  if (argc < 2) {
    help_print(stderr);
    return LADE_EXIT_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (argc == 2 && strcmp(argv[1], "help") == 0)) {
    help_print(stdout);
    return output_finish(LADE_EXIT_DONE);
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("lade %s\n", LADE_VERSION);
    return output_finish(LADE_EXIT_DONE);
  }
  help_move(argc, argv);
  const struct verb *verb = verb_find(argv[1]);
  if (!verb) {
    verb_suggest(argv[1]);
    return LADE_EXIT_USAGE;
  }
  return output_finish(verb->main(argc - 1, argv + 1));
}
