/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade run`: a command with the driver shim (preload/) in front of the CUDA driver.
 *
 * The shim is preloaded through the environment, which the command's children inherit, and told there which driver is
 * the real one, the budget, and a directory for the records of the processes. This process waits beside the
 * command: it passes on the signals that it is sent, and when the command has ended it reads the records, and ends the
 * same way, by the same code or the same signal.
 *
 * The real driver is the one that the loader finds here under the driver's soname, as it would have for the command.
 * What cannot work is refused before anything starts.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/options.h"
#include "tools/program.h"
#include "tools/run.h"
#include "tools/signals.h"
#include "tools/verbs.h"

struct run {
  struct options options;
  char **command;
  char shim[PATH_MAX], driver[PATH_MAX], directory[PATH_MAX];
  struct run_outcome outcome;
  struct run_report report;
  struct lade_error error;
};

/* ---- what is needed ---- */

/* The shim beside this program in the build's tree, or where it is installed. */
static int shim_find(struct run *run)
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

static int driver_find(struct run *run)
{
  struct link_map *map = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library)
    return lade_error_set(&run->error, -ENODEV, "there is no CUDA driver here (%s)", dlerror());
  bool is_found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && realpath(map->l_name, run->driver);
  dlclose(library);
  return is_found ? 0 : lade_error_set(&run->error, -ENODEV, "the CUDA driver does not say where it is");
}

static int options_check(struct run *run)
{
  const struct options *options = &run->options;
  struct lade_ledger_budget budget;
  if (options->run_budget && lade_ledger_budget_parse(options->run_budget, &budget, &run->error))
    return -EINVAL;
  if (!program_exists(run->command[0]))
    return lade_error_set(&run->error, -ENOENT, "there is no program '%.200s' to run", run->command[0]);
  if (getenv("LADE_RUN_DRIVER"))
    return lade_error_set(&run->error, -EINVAL, "this is a run within a run; one of them is enough");
  int status = outputs_check(options, &run->error);
  if (!status)
    status = shim_find(run);
  return status ? status : driver_find(run);
}

/* ---- the directory of the records ---- */

static int directory_make(struct run *run)
{
  const char *parent = getenv("TMPDIR");
  snprintf(run->directory, sizeof(run->directory), "%s/lade-run.XXXXXX", parent && parent[0] ? parent : "/tmp");
  char *made = mkdtemp(run->directory);
  int status = made ? 0 : -errno;
  char *whole = made ? realpath(made, NULL) : NULL; /* the command may change its directory */
  if (whole)
    snprintf(run->directory, sizeof(run->directory), "%s", whole);
  free(whole);
  return status ? lade_error_set(&run->error, status, "no directory for the records, %.200s: %s; TMPDIR names another",
                                 run->directory, strerror(-status)) : 0;
}

/* A record must have room there before anything starts, which would be for nothing otherwise. */
static int directory_try(struct run *run)
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

static void directory_remove(const struct run *run)
{
  DIR *dir = opendir(run->directory);
  for (const struct dirent *entry; dir && (entry = readdir(dir));)
    unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir)
    closedir(dir);
  rmdir(run->directory);
}

/* ---- the command ---- */

/* Ours comes last, so that what the user preloads has the place that it was given. */
static int environment_set(void *user)
{
  const struct run *run = user;
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

static int command_run(struct run *run)
{
  const struct program_params how = {.command = run->command, .end_signal = SIGKILL, .prepare = environment_set,
                                     .user = run};
  int state = 0;
  pid_t child;
  int status = program_start(&how, &run->error, &child);
  if (!status)
    status = program_wait(child, &run->error, &state);
  run->outcome.signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
  run->outcome.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 0;
  return status;
}

/* ---- the end ---- */

static void unrecorded_print(const struct run *run)
{
  char text[PATH_MAX + 200];
  snprintf(text, sizeof(text), "%d of %d processes had no room for a record in %s and are not in the report; TMPDIR "
           "names another directory", run->report.n_unrecorded, run->report.n_unrecorded + run->report.records.n,
           run->directory);
  message_print("run", text);
}

static int report_give(struct run *run)
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
    status = -EIO; /* its folder was there when the command began: no mistake in how we were called */
  if (run->report.n_unrecorded)
    unrecorded_print(run);
  else if (!run->report.records.n)
    message_print("run", "nothing was intercepted: the command started no CUDA driver, or it is linked statically or "
                  "has privileges of its own, and the loader preloads nothing there, or it cleared LD_PRELOAD");
  return status;
}

/* End as the command did. A core is the command's to leave. */
static int outcome_exit(const struct run *run)
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

static int run_command(struct run *run)
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
  struct run run = {0};
  int n_own = 1;
  while (n_own < argc && strcmp(argv[n_own], "--") != 0)
    n_own++;
  int code = options_read(VERB_RUN, n_own, argv, &run.options);
  if (code == OPTIONS_GO && n_own + 1 >= argc) {
    lade_error_set(&run.error, -EINVAL, "which command? It stands behind --: lade run [OPTION...] -- COMMAND "
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
