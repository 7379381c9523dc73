/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade run`: a command with the driver shim (preload/) in front of the CUDA driver.
 *
 * The shim is preloaded through the environment, which the command's children inherit. The environment also names the
 * real driver, the budget, and a directory for the records of the processes. This process waits for the command and
 * passes signals on to it. After the command's end it reads the records, and ends with the same code or by the same
 * signal.
 *
 * The real driver is the library that the loader finds here under the driver's soname, as it would have for the
 * command. Mistakes are refused before any process starts.
 *
 * The directory is locked while this process lives, so that a later run can recognise and remove the directory of a
 * killed run.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/cli/options.h"
#include "tools/cli/signals.h"
#include "tools/cli/verbs.h"
#include "tools/job/subprocess.h"
#include "tools/verbs/run.h"

#define FOLDER_TRIALS 100 /* to make a directory before another run removes it: never more than a few */

struct command_run {
  struct options options;
  char **command;
  char shim[PATH_MAX], driver[PATH_MAX], directory[PATH_MAX];
  int directory_fd; /* holds its lock; -1: none */
  struct run_outcome outcome;
  struct run_report report;
  struct lade_error error;
};

/* ---- requirements ---- */

/* Find the shim: next to this program in the build's tree, or installed. */
static int shim_find(struct command_run *run)
{
  char self[PATH_MAX], candidate[2 * PATH_MAX];
  static const char *const places[] = {LADE_SHIM_BUILT, LADE_SHIM_INSTALLED};
  ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (!places[0][0])
    return lade_error_set(&run->error, -ENOSYS, "this build has no driver shim: it was built without CUDA, or for "
                          "a processor or C library that the shim does not know");
  if (n < 0)
    return lade_error_set(&run->error, -errno, "/proc/self/exe: %s", strerror(errno));
  self[n] = 0;
  *strrchr(self, '/') = 0;
  for (size_t i = 0; i < LADE_COUNT(places); i++) {
    snprintf(candidate, sizeof(candidate), "%s/%s", self, places[i]);
    if (realpath(candidate, run->shim)) {
      if (run->shim[strcspn(run->shim, " :")])
        return lade_error_set(&run->error, -EINVAL, "the loader preloads nothing from a path with a blank or a colon: "
                              "move %.300s", run->shim);
      return 0;
    }
  }
  return lade_error_set(&run->error, -ENOSYS, "the driver shim is missing: no %.300s/%s; install Lade again", self,
                        places[1]);
}

static int driver_find(struct command_run *run)
{
  struct link_map *map = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library)
    return lade_error_set(&run->error, -ENODEV, "there is no CUDA driver here (%s)", dlerror());
  bool is_found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && realpath(map->l_name, run->driver);
  dlclose(library);
  return is_found ? 0 : lade_error_set(&run->error, -ENODEV, "libcuda.so.1 is loaded, but its path is unknown");
}

static int options_check(struct command_run *run)
{
  const struct options *options = &run->options;
  struct lade_ledger_budget budget;
  if (options->run_budget && lade_ledger_budget_parse(options->run_budget, &budget, &run->error))
    return -EINVAL;
  if (!subprocess_exists(run->command[0]))
    return lade_error_set(&run->error, -ENOENT, "there is no program '%.200s' that this user may execute",
                          run->command[0]);
  if (getenv("LADE_RUN_DRIVER"))
    return lade_error_set(&run->error, -EINVAL, "lade run inside lade run: remove one of them");
  int status = outputs_check(options, &run->error);
  if (!status)
    status = shim_find(run);
  return status ? status : driver_find(run);
}

/* ---- the directory of the records ---- */

/* Lock the directory of a run; the lock ends with the process. */
static bool directory_lock(int fd, bool waits)
{
  int code;
  do {
    code = flock(fd, LOCK_EX | (waits ? 0 : LOCK_NB));
  } while (code && errno == EINTR);
  return code == 0;
}

static void files_remove(DIR *dir)
{
  for (const struct dirent *entry; (entry = readdir(dir));)
    unlinkat(dirfd(dir), entry->d_name, 0);
}

/* Remove the directory @name in @parent if it is this user's and of a killed run. Links are not followed. */
static void leftover_remove(int parent, const char *name)
{
  struct stat st;
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return;
  const bool is_dead = fstat(fd, &st) == 0 && st.st_uid == geteuid() && directory_lock(fd, false);
  DIR *dir = is_dead ? fdopendir(fd) : NULL;
  if (!dir) {
    close(fd);
    return;
  }
  files_remove(dir);
  unlinkat(parent, name, AT_REMOVEDIR);
  closedir(dir);
}

static void leftovers_remove(const char *parent)
{
  DIR *dir = opendir(parent);
  for (const struct dirent *entry; dir && (entry = readdir(dir));) {
    if (fnmatch("lade-run.??????", entry->d_name, 0) == 0)
      leftover_remove(dirfd(dir), entry->d_name);
  }
  if (dir)
    closedir(dir);
}

/* Make a directory and lock it. -EAGAIN: another run removed it as a leftover before it was locked. */
static int directory_create(struct command_run *run, const char *parent)
{
  struct stat here, there;
  snprintf(run->directory, sizeof(run->directory), "%s/lade-run.XXXXXX", parent);
  if (!mkdtemp(run->directory))
    return -errno;
  run->directory_fd = open(run->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (run->directory_fd < 0)
    return errno == ENOENT ? -EAGAIN : -errno;
  directory_lock(run->directory_fd, true); /* without locks, no run removes leftovers */
  if (fstat(run->directory_fd, &here) == 0 && lstat(run->directory, &there) == 0 && here.st_dev == there.st_dev &&
      here.st_ino == there.st_ino)
    return 0;
  close(run->directory_fd);
  run->directory_fd = -1;
  return -EAGAIN;
}

static int directory_make(struct command_run *run)
{
  const char *named = getenv("TMPDIR"), *parent = named && named[0] ? named : "/tmp";
  int status = -EAGAIN;
  leftovers_remove(parent);
  for (int i = 0; i < FOLDER_TRIALS && status == -EAGAIN; i++)
    status = directory_create(run, parent);
  char *whole = status ? NULL : realpath(run->directory, NULL); /* the command may change its working directory */
  if (whole)
    snprintf(run->directory, sizeof(run->directory), "%s", whole);
  free(whole);
  return status ? lade_error_set(&run->error, status, "no directory for the records, %.200s: %s; TMPDIR names another",
                                 run->directory, strerror(-status)) : 0;
}

/* Check that a record can be written there before the command starts. */
static int directory_try(struct command_run *run)
{
  char path[PATH_MAX + 16];
  snprintf(path, sizeof(path), "%s/trial", run->directory);
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int code = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(struct lade_ledger_record));
  if (fd >= 0)
    close(fd);
  unlink(path);
  return code ? lade_error_set(&run->error, -code, "no room for the records of processes in %.200s: %s; TMPDIR names "
                               "another directory", run->directory, strerror(code)) : 0;
}

static void directory_remove(const struct command_run *run)
{
  DIR *dir = opendir(run->directory);
  if (dir) {
    files_remove(dir);
    closedir(dir);
  }
  rmdir(run->directory);
  if (run->directory_fd >= 0)
    close(run->directory_fd);
}

/* ---- the command ---- */

/* Append the shim to LD_PRELOAD, so that the user's own preloads keep their places. */
static int environment_set(void *user)
{
  const struct command_run *run = user;
  const char *before = getenv("LD_PRELOAD"), *budget = run->options.run_budget;
  char *preload = NULL;
  bool has_before = before && before[0];
  if (asprintf(&preload, "%s%s%s", has_before ? before : "", has_before ? ":" : "", run->shim) < 0)
    return -ENOMEM;
  bool is_set = setenv("LD_PRELOAD", preload, 1) == 0 && setenv("LADE_RUN_DRIVER", run->driver, 1) == 0 &&
                setenv("LADE_RUN_DIRECTORY", run->directory, 1) == 0 &&
                setenv("LADE_RUN_BUDGET", budget ? budget : "", 1) == 0;
  free(preload);
  return is_set ? 0 : -ENOMEM;
}

static int command_run(struct command_run *run)
{
  const struct subprocess_params params = {.command = run->command, .end_signal = SIGKILL, .prepare = environment_set,
                                     .user = run};
  int state = 0;
  pid_t child;
  int status = subprocess_start(&params, &run->error, &child);
  if (!status)
    status = subprocess_wait(child, &run->error, &state);
  run->outcome.signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
  run->outcome.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 0;
  return status;
}

/* ---- the end ---- */

static void unrecorded_print(const struct command_run *run)
{
  char text[PATH_MAX + 200];
  snprintf(text, sizeof(text), "%d of %d processes had no room for a record in %s and are not in the report; TMPDIR "
           "names another directory", run->report.n_unrecorded, run->report.n_unrecorded + run->report.records.n,
           run->directory);
  message_print("run", text);
}

static int report_give(struct command_run *run)
{
  int status = run_report_read(run->directory, &run->report);
  if (status)
    return lade_error_set(&run->error, status, "the records in %.200s: %s", run->directory, strerror(-status));
  status = run_report_print(&run->report);
  if (status)
    return lade_error_set(&run->error, status, "no memory for the report");
  if (run->options.report)
    status = run_report_write(&run->report, &run->outcome, run->options.report, &run->error);
  if (status && status != -ENOMEM)
    status = -EIO; /* the report's directory existed when the command began: no usage mistake */
  if (run->report.n_unrecorded)
    unrecorded_print(run);
  else if (!run->report.records.n)
    message_print("run", "nothing was intercepted: the command started no CUDA driver, or it is linked statically or "
                  "has privileges of its own, and the loader preloads nothing there, or it cleared LD_PRELOAD");
  return status;
}

/* End by the command's code or signal. A core dump is left to the command. */
static int outcome_exit(const struct command_run *run)
{
  if (run->outcome.signal) {
    const struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none);
    signals_end(run->outcome.signal);
  }
  if (run->outcome.exit_code == 0 && run->report.n_unrecorded)
    return LADE_EXIT_IO;
  if (run->outcome.exit_code == 0 && !run->report.records.n)
    return LADE_EXIT_MISSING;
  return run->outcome.exit_code;
}

static int run_command(struct command_run *run)
{
  int status = options_check(run);
  if (!status)
    status = directory_make(run);
  if (status)
    return exit_fail("run", status, &run->error);
  run->outcome = (struct run_outcome){.command = run->command, .budget = run->options.run_budget,
                                      .driver = run->driver};
  status = directory_try(run);
  if (!status)
    status = command_run(run);
  if (!status)
    status = report_give(run);
  directory_remove(run);
  if (status) {
    int code = exit_fail("run", status, &run->error);
    if (!run->outcome.exit_code && !run->outcome.signal)
      return code;
  }
  return outcome_exit(run);
}

int run_main(int argc, char **argv)
{
  struct command_run run = {.directory_fd = -1};
  int n_own = 1;
  while (n_own < argc && strcmp(argv[n_own], "--") != 0)
    n_own++;
  int code = options_read(VERB_RUN, n_own, argv, &run.options);
  if (code == OPTIONS_GO && n_own + 1 >= argc) {
    lade_error_set(&run.error, -EINVAL, "the command is missing: lade run [OPTION...] -- COMMAND "
                   "[ARGUMENT...]");
    code = exit_fail("run", -EINVAL, &run.error);
  }
  if (code == OPTIONS_GO) {
    run.command = argv + n_own + 1;
    code = run_command(&run);
  }
  run_report_finish(&run.report);
  options_finish(&run.options);
  return code;
}
