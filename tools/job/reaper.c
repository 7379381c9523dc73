/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends processes that a killed mpirun leaves behind. Ranks are mpirun's children. If mpirun itself is killed, its ranks
 * go on and write into the checkpoints of the restarted job. If mpirun kills ranks, their own children stay. A
 * subreaper becomes the parent of all of them. A child keeps its number until its parent waits for it, so the subreaper
 * never kills another process that reuses the number.
 *
 * A killed process leaves its own children to this process. reaper_end therefore kills in rounds until no child is
 * left. Each round ends one generation. Ranks do not start processes faster than rounds kill them.
 *
 * Open MPI gives each rank a process group of its own. Helpers of mpirun, or of a script in its place, are in mpirun's
 * group. A zombie keeps its number and does not count as living.
 */
#include "tools/job/reaper.h"

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

void reaper_adopt(void)
{
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* Fields of /proc/PID/stat. */
struct process {
  pid_t parent, group; /* 0: the process is gone */
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
  const char *name_end = strrchr(text, ')'); /* a program's name may contain any characters */
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

void reaper_end(void)
{
  DIR *processes = opendir("/proc");
  if (!processes) /* without /proc no child can be found */
    return;
  do {
    children_kill(processes);
  } while (waitpid(-1, NULL, 0) > 0);
  closedir(processes);
}
