/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade launch`: N ranks of a command on this machine, through mpirun with the flags that it takes here.
 *
 * This process becomes mpirun (exec), so its output, exit code and signals are the job's without anything in between.
 * Ranks may share cores (--oversubscribe: mpirun's slots are not the threads that we count). Where they outnumber the
 * threads, waits inside MPI give the processor up, and libraries that ask OMP_NUM_THREADS take one thread per rank,
 * unless the environment already says how many. Root, which containers run as, is let through. Ranks are not bound to
 * cores: Lade's threads find their own.
 *
 * A command `train` that is no program is this very `lade`: `lade launch -n 2 -- train ...`. mpirun keeps its own words
 * about ranks that fail to itself: the rank's error line says more.
 *
 * What could be found wrong before mpirun starts is: its own words about a program that is not there are twenty lines.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cpu.h"
#include "tools/program.h"
#include "tools/verbs.h"

#define RANKS_MOST 4096 /* of one machine */
#define ARGUMENTS_MOST 16

static void help_print(FILE *file)
{
  fputs("Usage: lade launch -n N [--] COMMAND [ARGUMENT...]\n"
        "Starts N ranks of a command on this machine, through Open MPI's mpirun.\n\n"
        "  -n N         how many\n"
        "  -h, --help   this\n\n"
        "Every rank finds its number in OMPI_COMM_WORLD_RANK. Output, signals and exit code pass; when one rank\n"
        "fails, mpirun ends the others and exits with its code. Where ranks outnumber cores they share them,\n"
        "waiting gives the processor up, and OMP_NUM_THREADS is 1 unless it is set.\n\n"
        "  lade launch -n 2 -- train --data input.txt\n"
        "  lade launch -n 8 -- ./my-trainer --steps 10\n", file);
}

static int usage_fail(const char *text)
{
  struct lade_error error = {0};
  lade_error_set(&error, -EINVAL, "%s; lade launch --help says more", text);
  return exit_fail("launch", -EINVAL, &error);
}

/* The text after -n as a number of ranks, or 0. */
static int ranks_parse(const char *text)
{
  char *end;
  errno = 0;
  long n = text ? strtol(text, &end, 10) : 0;
  return !text || end == text || *end || errno || n < 1 || n > RANKS_MOST ? 0 : (int)n;
}

/* This program's path into @path, if @name is one of its verbs that ranks can share. */
static bool verb_find(const char *name, char *path, size_t path_bytes)
{
  if (strcmp(name, "train") != 0)
    return false;
  ssize_t n = readlink("/proc/self/exe", path, path_bytes - 1);
  path[LADE_MAX(n, 0)] = 0;
  return n > 0;
}

/* Become mpirun. Returns only when that fails. */
static int mpirun_become(const char *n_text, bool is_crowded, char **command, int n_command)
{
  static const char *const crowded[] = {"--mca", "mpi_yield_when_idle", "1"};
  const char **arguments = calloc((size_t)(ARGUMENTS_MOST + n_command), sizeof(*arguments));
  int n = 0;
  if (!arguments)
    return exit_fail("launch", -ENOMEM, NULL);
  arguments[n++] = "mpirun";
  arguments[n++] = "-q";
  arguments[n++] = "--oversubscribe"; /* its slots are cores, or a queue's; we count hardware threads */
  for (size_t i = 0; i < LADE_COUNT(crowded) && is_crowded; i++)
    arguments[n++] = crowded[i];
  if (geteuid() == 0)
    arguments[n++] = "--allow-run-as-root";
  arguments[n++] = "--bind-to";
  arguments[n++] = "none";
  arguments[n++] = "-n";
  arguments[n++] = n_text;
  LADE_ASSERT(n < ARGUMENTS_MOST);
  memcpy(arguments + n, command, (size_t)n_command * sizeof(*arguments));
  if (is_crowded)
    setenv("OMP_NUM_THREADS", "1", 0);
  signal(SIGPIPE, SIG_DFL); /* main's settings are this command's own */
  signal(SIGXFSZ, SIG_DFL);
  execvp("mpirun", (char *const *)(uintptr_t)arguments);
  int status = -errno;
  free(arguments);
  return exit_fail("launch", status, NULL);
}

int launch_main(int argc, char **argv)
{
  struct lade_error error = {0};
  if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
    help_print(stdout);
    return LADE_EXIT_DONE;
  }
  if (argc > 1 && argv[1][0] == '-' && strncmp(argv[1], "-n", 2) != 0) {
    lade_error_set(&error, -EINVAL, "there is no option '%.64s'; the only one is -n N", argv[1]);
    return exit_fail("launch", -EINVAL, &error);
  }
  if (argc < 2 || argv[1][0] != '-')
    return usage_fail("how many ranks? lade launch -n N -- COMMAND");
  bool is_apart = argv[1][2] == 0;
  const char *n_text = is_apart ? argv[2] : argv[1] + 2; /* argv ends with NULL */
  int n = ranks_parse(n_text), first = is_apart ? 3 : 2;
  if (!n)
    return usage_fail("-n takes a number of ranks from 1 to 4096");
  if (first < argc && strcmp(argv[first], "--") == 0)
    first++;
  if (first >= argc)
    return usage_fail("which command? lade launch -n N -- COMMAND");
  if (argv[first][0] == '-')
    return usage_fail("the command cannot begin with '-'; the only option is -n");
  char self[PATH_MAX];
  if (!program_exists(argv[first]) && verb_find(argv[first], self, sizeof(self)))
    argv[--first] = self; /* over "--" or the number, which are done with */
  if (!program_exists(argv[first])) {
    int status = lade_error_set(&error, -ENOENT, "there is no program '%.200s' to run", argv[first]);
    return exit_fail("launch", status, &error);
  }
  if (!program_exists("mpirun")) {
    int status = lade_error_set(&error, -ENOSYS, "mpirun is not on PATH; apt-get install openmpi-bin brings it");
    return exit_fail("launch", status, &error);
  }
  return mpirun_become(n_text, n > lade_cpu_count(), argv + first, argc - first);
}
