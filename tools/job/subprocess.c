/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding and starting other programs. A failure between fork and exec is reported through a pipe that exec closes. The
 * command gets the signal dispositions that this program was started with, because main changed them for itself only.
 * SIGCHLD is reset here too, because a program that ignores it cannot wait for a child.
 */
#include "tools/job/subprocess.h"

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
#include "tools/cli/signals.h"

/* True if @path is an executable file. Directories are excluded: their execute bit means that they may be searched. */
static bool is_program(const char *path)
{
  struct stat status;
  return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

bool subprocess_exists(const char *program)
{
  char candidate[PATH_MAX];
  if (strchr(program, '/'))
    return is_program(program);
  const char *dir = getenv("PATH");
  while (dir) {
    const char *end = strchrnul(dir, ':');
    bool is_here = end == dir; /* an empty entry is the current directory */
    int n = snprintf(candidate, sizeof(candidate), "%.*s/%s", is_here ? 1 : (int)(end - dir), is_here ? "." : dir,
                     program);
    if (n < (int)sizeof(candidate) && is_program(candidate))
      return true;
    dir = *end ? end + 1 : NULL;
  }
  return false;
}

/* State of this process that the new one needs until it executes its program. */
struct child_start {
  const struct subprocess_params *params;
  sigset_t mask;
  pid_t parent;
  int report_fd; /* takes the errno of a failure */
  void (*child_ended)(int signal_number); /* disposition of SIGCHLD that this program was started with */
};

static void program_become(const struct child_start *start)
{
  signal(SIGPIPE, SIG_DFL); /* main's settings are for this program alone */
  signal(SIGXFSZ, SIG_DFL);
  signal(SIGCHLD, start->child_ended);
  prctl(PR_SET_PDEATHSIG, start->params->end_signal);
  int status = getppid() == start->parent ? 0 : -ESRCH;
  if (!status && start->params->prepare)
    status = start->params->prepare(start->params->user);
  sigprocmask(SIG_SETMASK, &start->mask, NULL);
  if (!status) {
    execvp(start->params->command[0], start->params->command);
    status = -errno;
  }
  ssize_t ignored = write(start->report_fd, &status, sizeof(status));
  _exit(ignored < 0 ? 127 : 126);
}

int subprocess_start(const struct subprocess_params *params, struct lade_error *error, pid_t *ret_child)
{
  int ends[2], failure = 0;
  struct child_start start = {.params = params, .parent = getpid()};
  if (pipe2(ends, O_CLOEXEC))
    return lade_error_set(error, -errno, "%s", strerror(errno));
  start.report_fd = ends[1];
  start.child_ended = signal(SIGCHLD, SIG_DFL);
  signals_hold(&start.mask);
  pid_t child = fork();
  if (child == 0)
    program_become(&start);
  int status = child < 0 ? -errno : 0;
  close(ends[1]);
  signals_pass(child, &start.mask);
  if (child > 0 && read(ends[0], &failure, sizeof(failure)) == (ssize_t)sizeof(failure))
    status = failure;
  close(ends[0]);
  if (status && child > 0)
    waitpid(child, NULL, 0);
  *ret_child = child;
  return status ? lade_error_set(error, status, "'%.200s' cannot be run: %s", params->command[0], strerror(-status))
                : 0;
}

int subprocess_wait(pid_t child, struct lade_error *error, int *ret_state)
{
  siginfo_t end;
  int status;
  do {
    status = waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT);
  } while (status && errno == EINTR);
  signals_forward(0); /* before its number can be reused */
  if (status || waitpid(child, ret_state, 0) < 0)
    return lade_error_set(error, -errno, "the command was lost: %s", strerror(errno));
  return 0;
}
