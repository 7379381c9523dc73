/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks are mpirun's children, so when mpirun itself is killed nobody ends them, and they go on writing into the
 * checkpoints of the job that is started again; and where mpirun ends ranks, what those had started stays. A subreaper
 * inherits all of them: it can kill them without the danger that a number is another process's by now, since a child
 * keeps its number until it is waited for, and it can wait.
 *
 * Whoever is killed leaves its own children to us, so it goes round by round until none is left. Each round ends one
 * generation; one that starts processes faster than it is killed does not exist among ranks.
 *
 * Ranks have process groups of their own, which Open MPI gives them; helpers of mpirun, or of a script that stands for
 * it, are in its group. Whoever has ended and was not waited for keeps its number and does not live.
 */
#include "tools/orphans.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

void orphans_adopt(void)
{
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* What /proc says of a process. */
struct process {
  pid_t parent, group; /* 0: it is gone */
  char state;
};

static struct process process_read(const char *name)
{
  struct process process = {0};
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%.16s/stat", name);
  FILE *file = fopen(path, "re");
  if (!file)
    return process;
  text[fread(text, 1, sizeof(text) - 1, file)] = 0;
  fclose(file);
  const char *name_end = strrchr(text, ')'); /* a program's name may have anything in it */
  if (!name_end || sscanf(name_end + 1, " %c %d %d", &process.state, &process.parent, &process.group) != 3)
    return (struct process){0};
  return process;
}

static bool is_alive(const struct process *process)
{
  return process->parent && process->state != 'Z' && process->state != 'X';
}

bool process_lives(pid_t pid)
{
  char name[16];
  snprintf(name, sizeof(name), "%d", (int)pid);
  const struct process process = process_read(name);
  return is_alive(&process);
}

bool children_live(pid_t parent, bool (*is_through)(const void *user, pid_t pid), const void *user, bool *has_any)
{
  DIR *processes = opendir("/proc");
  bool is_found = !processes;
  const struct dirent *entry;
  while (!is_found && (entry = readdir(processes))) {
    if (!isdigit((unsigned char)entry->d_name[0]))
      continue;
    const struct process process = process_read(entry->d_name);
    const bool is_child = (process.parent == parent || process.parent == getpid()) && process.group != parent &&
                          process.group != getpgrp();
    *has_any |= is_child;
    is_found = is_child && is_alive(&process) && !is_through(user, (pid_t)atoi(entry->d_name));
  }
  if (processes)
    closedir(processes);
  return is_found;
}

static void children_kill(DIR *processes)
{
  rewinddir(processes);
  for (const struct dirent *entry = readdir(processes); entry; entry = readdir(processes)) {
    if (isdigit((unsigned char)entry->d_name[0]) && process_read(entry->d_name).parent == getpid())
      kill((pid_t)atoi(entry->d_name), SIGKILL);
  }
}

void orphans_end(void)
{
  DIR *processes = opendir("/proc");
  if (!processes) /* then nobody can be found */
    return;
  do {
    children_kill(processes);
  } while (waitpid(-1, NULL, 0) > 0);
  closedir(processes);
}
