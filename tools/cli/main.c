/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `lade` command: finds the verb that the first argument names and passes it the remaining arguments.
 *
 * Each verb is one file in tools/verbs and one line in the table, which is also the help. Results go to stdout, which
 * is flushed and checked here once for all verbs. A disk that fills up during `lade plan --json > file` is an error,
 * never a short file with exit code 0. A reader that has left ends the command by SIGPIPE.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options.h"
#include "tools/cli/verbs.h"

struct verb {
  const char *name, *summary;
  lade_verb_fn *main;
};

static const struct verb verbs[] = {
    {"train", "trains a model inside a memory budget", train_main},
    {"sweep", "trains at several budgets, and compares memory, speed and numbers", sweep_main},
    {"plan", "plans a run without running it: memory, time, and the place of each value", plan_main},
    {"data", "writes texts as token files, by a tokenizer", data_main},
    {"sample", "prints text from a checkpoint", sample_main},
    {"replay", "replays a trace of allocations under several policies, without memory", replay_main},
    {"doctor", "reports the features of this machine, and how to get missing ones", doctor_main},
    {"run", "runs a CUDA program inside a memory budget, and reports its memory", run_main},
    {"launch", "starts many ranks of a command, through mpirun", launch_main},
    {"bench", "measures parts of Lade on this machine, beside the usual alternatives", bench_main},
    {"completions", "prints the completions of a shell", completions_main},
    {0}, /* ends the table */
};

static const struct verb *verb_find(const char *name)
{
  for (const struct verb *verb = verbs; verb->name; verb++)
    if (strcmp(verb->name, name) == 0)
      return verb;
  return NULL;
}

static void verb_suggest(const char *word)
{
  const char *near = NULL;
  char name[256];
  text_escape(word, name, sizeof(name));
  if (name[0] == '-') {
    fprintf(stderr, "lade: there is no option '%s' before a verb; there are --help and --version\n", name);
    return;
  }
  int min = 3;
  for (const struct verb *verb = verbs; verb->name; verb++) {
    int distance = word_distance(word, verb->name);
    near = distance < min ? verb->name : near;
    min = distance < min ? distance : min;
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
    fprintf(file, "  %-11s %s\n", verb->name, verb->summary);
  fprintf(file, "\n  lade VERB --help   the verb's options, with examples\n"
                "  lade --version     the version\n\n"
                "Exit codes: 0 done, 1 failed, 2 usage, 3 does not fit the budget, 4 out of memory while\n"
                "running, 5 I/O failed or data is damaged, 6 numbers differ, 7 something is missing here.\n");
}

/*
 * Flush stdout and return the exit code: an earlier failure in @status precedes a failed flush. If the reader has
 * closed its pipe, as `head` does, end by SIGPIPE without a line, as other commands do.
 */
static int output_finish(int status)
{
  if (ferror(stdout))
    fputc('\n', stdout); /* errno of the failed write is lost; the next write fails with the same cause */
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout))
    return status;
  if (errno == EPIPE && !status) {
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
  }
  fprintf(stderr, "lade: standard output: %s; the results are incomplete\n", strerror(errno ? errno : EIO));
  return status ? status : LADE_EXIT_IO;
}

/*
 * Prepare standard streams and signals of this process.
 *
 * A closed standard stream would give its number to the next file, and messages would end up in a log or a checkpoint.
 * The null device takes its place, opened so that writing to a closed stdout still fails. A pipe without a reader and a
 * file past the size limit return errors from write: their signals would end a run that could still save.
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

/* Check that the environment's choices exist, because an unknown choice would silently mean all of them. */
static bool choices_are_known(void)
{
  static const struct {
    const char *variable, *choices[6], *words; /* ends with NULL */
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
      char shown[64];
      fprintf(stderr, "lade: %s is '%s' in the environment: expected %s\n", table[i].variable,
              text_escape(chosen, shown, sizeof(shown)), table[i].words);
      return false;
    }
  }
  return true;
}

/* Turn "help VERB" into "VERB --help". */
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
