/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding programs, and starting them beside this one. What fails between fork and exec is told through a pipe that
 * exec closes. The command gets the dispositions of signals that this program got, which main changed for itself; only
 * SIGCHLD is set back here too, since a program that ignores it cannot wait for a child.
 */
#include "tools/program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/signals.h"

/* A directory, which may be searched, is none. */
static bool is_program(const char *path)
{
  struct stat status;
  return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

bool program_exists(const char *program)
{
  char candidate[PATH_MAX];
  if (strchr(program, '/'))
    return is_program(program);
  const char *dir = getenv("PATH");
  while (dir) {
    const char *end = strchrnul(dir, ':');
    bool is_here = end == dir; /* an empty entry is the directory in which we are */
    int n = snprintf(candidate, sizeof(candidate), "%.*s/%s", is_here ? 1 : (int)(end - dir), is_here ? "." : dir,
                     program);
    if (n < (int)sizeof(candidate) && is_program(candidate))
      return true;
    dir = *end ? end + 1 : NULL;
  }
  return false;
}

/* What the new process has of the old one. */
struct birth {
  const struct program_params *params;
  sigset_t mask;
  pid_t parent;
  int report_fd; /* takes the errno of what fails */
  void (*child_ended)(int signal_number); /* SIGCHLD as this program got it */
};

static void program_become(const struct birth *birth)
{
  signal(SIGPIPE, SIG_DFL); /* main's settings are this program's own */
  signal(SIGXFSZ, SIG_DFL);
  signal(SIGCHLD, birth->child_ended);
  prctl(PR_SET_PDEATHSIG, birth->params->end_signal);
  int status = getppid() == birth->parent ? 0 : -ESRCH;
  if (!status && birth->params->prepare)
    status = birth->params->prepare(birth->params->user);
  sigprocmask(SIG_SETMASK, &birth->mask, NULL);
  if (!status) {
    execvp(birth->params->command[0], birth->params->command);
    status = -errno;
  }
  ssize_t ignored = write(birth->report_fd, &status, sizeof(status));
  _exit(ignored < 0 ? 127 : 126);
}

int program_start(const struct program_params *params, struct lade_error *error, pid_t *ret_child)
{
  int ends[2], failure = 0;
  struct birth birth = {.params = params, .parent = getpid()};
  if (pipe2(ends, O_CLOEXEC))
    return lade_error_set(error, -errno, "%s", strerror(errno));
  birth.report_fd = ends[1];
  birth.child_ended = signal(SIGCHLD, SIG_DFL);
  signals_hold(&birth.mask);
  pid_t child = fork();
  if (child == 0)
    program_become(&birth);
  int status = child < 0 ? -errno : 0;
  close(ends[1]);
  signals_pass(child, &birth.mask);
  if (child > 0 && read(ends[0], &failure, sizeof(failure)) == (ssize_t)sizeof(failure))
    status = failure;
  close(ends[0]);
  if (status && child > 0)
    waitpid(child, NULL, 0);
  *ret_child = child;
  return status ? lade_error_set(error, status, "'%.200s' cannot be run: %s", params->command[0], strerror(-status))
                : 0;
}

int program_wait(pid_t child, struct lade_error *error, int *ret_state)
{
  siginfo_t end;
  int status;
  do {
    status = waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT);
  } while (status && errno == EINTR);
  signals_forward(0); /* while its number is still its own */
  if (status || waitpid(child, ret_state, 0) < 0)
    return lade_error_set(error, -errno, "the command was lost: %s", strerror(errno));
  return 0;
}
