/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks are mpirun's children, so when mpirun itself is killed nobody ends them, and they go on writing into the
 * checkpoints of the job that is started again; and where mpirun ends ranks, what those had started stays. A subreaper
 * inherits all of them: it can kill them without the danger that a number is another process's by now, since a child
 * keeps its number until it is waited for, and it can wait.
 *
 * Whoever is killed leaves its own children to us, so it goes round by round until none is left. Each round ends one
 * generation; one that starts processes faster than it is killed does not exist among ranks.
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

/* The parent of process @name of /proc; 0: it is gone. */
static pid_t parent_of(const char *name)
{
  char path[64], text[512];
  int parent = 0;
  snprintf(path, sizeof(path), "/proc/%.16s/stat", name);
  FILE *file = fopen(path, "re");
  if (!file)
    return 0;
  text[fread(text, 1, sizeof(text) - 1, file)] = 0;
  fclose(file);
  const char *name_end = strrchr(text, ')'); /* a program's name may have anything in it */
  return name_end && sscanf(name_end + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

static void children_kill(DIR *processes)
{
  rewinddir(processes);
  for (const struct dirent *entry = readdir(processes); entry; entry = readdir(processes)) {
    if (isdigit((unsigned char)entry->d_name[0]) && parent_of(entry->d_name) == getpid())
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
