/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade launch`: N ranks of a command on this machine, through mpirun with the flags that a single machine needs.
 *
 * Output and signals. The output of mpirun is the job's. If this process dies, the job gets a signal to end. Signals
 * come to this process alone, because mpirun kills the ranks when it gets one. Ranks of `lade train` get signals from
 * here, stop after their step, and may save without a time limit; other commands get them from mpirun. A second signal
 * ends all at once.
 *
 * Messages. Ranks of `lade train` leave their messages on a table (job_status.h). So the end of a job is reported once,
 * by the most specific message, even if mpirun ended the other ranks before they could report. The job's code is that
 * of this message; for other commands it is mpirun's. Only mpirun knows which signal ended a rank; its exit code tells.
 * If mpirun itself was killed, this process adopts its ranks (reaper.h) and ends them before it reports or restarts.
 * When all have ended, the newest checkpoint is looked up and printed with the command that resumes from it.
 *
 * End of mpirun. An mpirun that does not end within GRACE_S after its ranks, or after a request to end, is killed. If
 * all ranks reported success, the job succeeds. An mpirun with unread output is waited for. mpirun ignores failed
 * writes, so its standard output passes through this process (output_relay.h): if bytes are lost a successful job ends
 * with exit code 5.
 *
 * Restarts. A job that lost ranks (killed, stopped, ended without a message) can be started again: its ranks then
 * resume from the job's newest checkpoint in their --save. A job with a failure that a rank itself reported is not
 * restarted, because it would fail again. Nor is a job whose results were written before a rank was lost: a second
 * start would write them twice. With --elastic a start has the remaining ranks, in the largest layout of the same kind
 * (lade_layout_shrink). The loss is known when a step begins again: the steps after the checkpoint, and the time since
 * it was complete.
 *
 * Cores. Ranks may share cores (--oversubscribe), because mpirun's slots are cores and this process counts threads. If
 * ranks outnumber the threads, waits inside MPI yield the processor. Libraries that read OMP_NUM_THREADS then take one
 * thread per rank, unless the environment already sets it. Root is permitted, because containers run as root. Ranks are
 * not bound to cores, because Lade's threads place themselves. Bytes between ranks go through shared memory and not by
 * reads of another process's memory. Containers forbid such reads, and Open MPI prints a line about them after that
 * process has died. When a rank has ended, mpirun kills the others after 2 s: twice the 1 s that it is given, once
 * before it asks and once after. It takes the 2 s even if no rank is left.
 *
 * A command `train` that is not a program is this very `lade`: `lade launch -n 2 -- train ...`. mpirun's own messages
 * about failed ranks are suppressed, because the rank's error line is more specific.
 *
 * Files of Open MPI are in directories of the launcher's own, which are removed after each start (launch_scratch.h).
 *
 * Mistakes that can be found before mpirun starts are found here, because mpirun reports a missing program in twenty
 * lines.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cpu.h"
#include "tools/cli/signals.h"
#include "tools/cli/verbs.h"
#include "tools/job/job_status.h"
#include "tools/job/launch_scratch.h"
#include "tools/job/output_relay.h"
#include "tools/job/reaper.h"
#include "tools/job/resume_command.h"
#include "tools/job/subprocess.h"

#define RANKS_MAX 4096 /* on one machine */
#define RESTARTS_MAX 1000000  /* practically without a bound */
#define ARGUMENTS_MAX 32      /* of mpirun, before the command */
#define POLL_MS 20 /* between two checks if mpirun has ended or a step has begun */
#define LOOK_NS 1000000000 /* between two looks at processes, each of which reads all of /proc */
#define GRACE_S 10 /* time for mpirun to end; it kills ranks after 2 s */

struct launch {
  int n_ranks, n_restarts_max;
  int n_asked; /* ranks of the first start; --elastic may use fewer later */
  int n_left;  /* ranks not lost; a layout may leave some unused that the next layout uses */
  struct lade_layout_params asked; /* layout of the first start, once the ranks have reported it */
  bool is_asked_known;
  bool has_reports; /* ranks report on the table: those of `lade train` and `lade bench links` */
  bool is_elastic;
  char **command;
  int n_command;
  struct job_status *table;
  struct output_relay output;
  struct launch_scratch scratch;
  volatile sig_atomic_t has_mpirun_signal; /* mpirun was asked to end; set by a handler */
  bool is_mpirun_stuck; /* it did not end, and was killed */
  bool has_lost; /* a rank of this start has ended without a message */
  struct lade_error error;
};

static void help_print(FILE *file)
{
  fputs("Usage: lade launch -n N [--max-restarts N] [--elastic] [--] COMMAND [ARGUMENT...]\n"
        "Starts N ranks of a command on this machine, through Open MPI's mpirun.\n\n"
        "  -n N               number of ranks\n"
        "  --max-restarts N   starts again after ranks are lost, at most; `train` resumes from its --save (0)\n"
        "  --elastic          start again with the remaining ranks, in the largest layout that fits them\n"
        "  -h, --help         print this page and stop\n\n"
        "Each rank finds its number in OMPI_COMM_WORLD_RANK. Output and exit code are those of the ranks. If a rank\n"
        "fails, mpirun ends the others and exits with its code. The first signal goes to the ranks (`train` stops\n"
        "after its step and saves), a second one ends them at once. If there are more ranks than cores, waiting\n"
        "ranks yield the processor, and OMP_NUM_THREADS is 1 unless it is set.\n\n"
        "  lade launch -n 2 -- train --data input.txt\n"
        "  lade launch -n 4 --max-restarts 3 --elastic -- train --data input.txt --save run --save-every 50\n"
        "  lade launch -n 8 -- ./my-trainer --steps 10\n", file);
}

static int usage_fail(const char *text)
{
  struct lade_error error = {0};
  lade_error_set(&error, -EINVAL, "%s; see lade launch --help", text);
  return exit_fail("launch", -EINVAL, &error);
}

/* Return @text as a whole number from @min to @max; -1: it is none. */
static int number_parse(const char *text, int min, int max)
{
  char *end;
  errno = 0;
  long n = text ? strtol(text, &end, 10) : -1;
  return !text || end == text || *end || errno || n < min || n > max ? -1 : (int)n;
}

/* Write this program's path into @path if @name is one of its verbs that ranks can share. */
static bool verb_find(const char *name, char *path, size_t path_bytes)
{
  if (strcmp(name, "train") != 0 && strcmp(name, "bench") != 0)
    return false;
  ssize_t n = readlink("/proc/self/exe", path, path_bytes - 1);
  path[LADE_MAX(n, 0)] = 0;
  return n > 0;
}

/* True if ranks of the verb in @words, which end with NULL, report on the table. */
static bool verb_has_reports(char *const *words)
{
  return strcmp(words[0], "train") == 0 || (words[1] && strcmp(words[1], "links") == 0);
}

/* ---- one start ---- */

/* Fill in mpirun's command line; @arguments has ARGUMENTS_MAX entries besides the command's. */
static void arguments_fill(const struct launch *launch, bool is_crowded, const char *n_text, const char **arguments)
{
  static const char *const always[] = {"mpirun", "--oversubscribe", /* slots are cores; this process counts threads */
                                       "--mca", "orte_execute_quiet", "1", /* as -q, which Open MPI 5 refuses */
                                       "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none",
                                       "--mca", "odls_base_sigkill_timeout", "1",
                                       "--mca", "shmem", "mmap"}; /* other mechanisms are probed with a file in
                                                                     /dev/shm */
  static const char *const crowded[] = {"--mca", "mpi_yield_when_idle", "1"};
  int n = 0;
  for (size_t i = 0; i < LADE_COUNT(always); i++)
    arguments[n++] = always[i];
  for (size_t i = 0; i < LADE_COUNT(crowded) && is_crowded; i++)
    arguments[n++] = crowded[i];
  for (int place = 0; place < LAUNCH_SCRATCH_N_PLACES; place++) {
    if (!*launch->scratch.dirs[place].path)
      continue;
    arguments[n++] = "--mca";
    arguments[n++] = launch_scratch_option((enum launch_scratch_place)place);
    arguments[n++] = launch->scratch.dirs[place].path;
  }
  if (geteuid() == 0)
    arguments[n++] = "--allow-run-as-root";
  arguments[n++] = "-n";
  arguments[n++] = n_text;
  LADE_ASSERT(n < ARGUMENTS_MAX);
  memcpy(arguments + n, launch->command, (size_t)launch->n_command * sizeof(*arguments));
}

/*
 * Prepare the new process, with signals blocked. Give up if a signal asked for the end since the last start. A process
 * group of its own keeps away signals that the terminal or `timeout` sends to the launcher's group.
 */
static int mpirun_prepare(void *user)
{
  const struct launch *launch = user;
  if (signals_get())
    return -ECANCELED;
  const int status = setpgid(0, 0) ? -errno : output_relay_take(&launch->output);
  return status ? status : launch_scratch_share(&launch->scratch);
}

/*
 * Handle a signal, in its handler. The program mpirun kills 2 s after a request to end, so it gets none if ranks on the
 * table end by themselves.
 */
static void signal_take(void *user, pid_t mpirun, int signal_number, enum signals_request request)
{
  struct launch *launch = user;
  const int ending = signal_number == SIGINT ? SIGINT : SIGTERM; /* the signals that ranks handle */
  const int n_signalled = request == SIGNALS_OTHER ? 0 : job_status_signal(launch->table, ending);
  if (mpirun > 0 && (!n_signalled || request == SIGNALS_END_NOW)) {
    kill(mpirun, request == SIGNALS_OTHER ? signal_number : ending);
    launch->has_mpirun_signal |= request != SIGNALS_OTHER;
  }
}

static int mpirun_start(struct launch *launch, pid_t *ret_child)
{
  const bool is_crowded = launch->n_ranks > lade_cpu_count();
  char n_text[16];
  const char **arguments = calloc((size_t)(ARGUMENTS_MAX + launch->n_command), sizeof(*arguments));
  if (!arguments)
    return -ENOMEM;
  snprintf(n_text, sizeof(n_text), "%d", launch->n_ranks);
  arguments_fill(launch, is_crowded, n_text, arguments);
  if (is_crowded)
    setenv("OMP_NUM_THREADS", "1", 0);
  const struct subprocess_params params = {.command = (char *const *)(uintptr_t)arguments, .end_signal = SIGTERM,
                                     .prepare = mpirun_prepare, .user = launch};
  int status = subprocess_start(&params, &launch->error, ret_child);
  free(arguments);
  return status;
}

/* The cost of a failure, from the state before it. */
struct loss {
  bool is_pending;
  int64_t n_steps, since_ns; /* steps done before the failure; start of the lost work */
};

/* Print the loss: work resumes at step @first, since @begun_ns. */
static void loss_print(const struct launch *launch, struct loss *loss, int64_t first, int64_t begun_ns)
{
  char text[200];
  snprintf(text, sizeof(text), "restart %d of %d, %d rank%s, continues after step %lld: %lld steps and %.1f s lost",
           launch->table->n_restarts, launch->n_restarts_max, launch->n_ranks, launch->n_ranks == 1 ? "" : "s",
           (long long)first, (long long)LADE_MAX(loss->n_steps - first, 0), (double)(begun_ns - loss->since_ns) / 1e9);
  message_print("launch", text);
  loss->is_pending = false;
}

static void loss_look(const struct launch *launch, struct loss *loss)
{
  const int64_t first = atomic_load(&launch->table->first_step);
  if (loss->is_pending && first >= 0)
    loss_print(launch, loss, first, atomic_load(&launch->table->begun_ns));
}

/* Mark living ranks as survivors: after a lost rank, or after mpirun's end, their own end is a consequence. */
static void survivors_mark(struct job_status *table)
{
  for (int rank = 0; rank < table->n_ranks; rank++) {
    struct job_status_rank *other = &table->ranks[rank];
    const pid_t pid = atomic_load(&other->pid);
    other->is_survivor |= pid && !atomic_load(&other->has_left) && process_lives(pid);
  }
}

/*
 * Mark the survivors of the first lost rank. The program mpirun waits 1 s before it asks them to end, but any end of a
 * rank cuts its waits short. SIGKILL may then follow SIGTERM so closely that a rank cannot record SIGTERM.
 */
static void ranks_look(struct launch *launch)
{
  struct job_status *table = launch->table;
  for (int rank = 0; rank < table->n_ranks && !launch->has_lost; rank++) {
    const pid_t pid = atomic_load(&table->ranks[rank].pid);
    const bool is_gone = pid && kill(pid, 0) && errno == ESRCH;
    /* read after is_gone, because a rank sets has_left before it ends */
    launch->has_lost = is_gone && !atomic_load(&table->ranks[rank].has_left);
    if (launch->has_lost)
      survivors_mark(table);
  }
}

/*
 * Time for which mpirun is overdue. Long gaps between looks count little, because mpirun may not have run in them
 * either.
 */
struct watch {
  bool has_begun; /* ranks have existed */
  int64_t before_ns, since_look_ns, overdue_ns;
};

/* True if the process @pid is a rank that has left: it may wait without bound for mpirun's answer to its exit. */
static bool rank_has_left(const void *table, pid_t pid)
{
  const struct job_status *of = table;
  for (int rank = 0; rank < of->n_ranks; rank++)
    if (atomic_load(&of->ranks[rank].pid) == pid)
      return atomic_load(&of->ranks[rank].has_left);
  return false;
}

/* True if mpirun's ranks have all ended, or are to end because one of them failed. */
static bool ranks_are_through(const struct launch *launch, pid_t mpirun, bool *has_begun)
{
  const struct job_status *table = launch->table;
  bool is_one_alive = false, has_one_failed = false;
  for (int rank = 0; rank < table->n_ranks; rank++) {
    const struct job_status_rank *other = &table->ranks[rank];
    const pid_t pid = atomic_load(&other->pid);
    const bool has_left = atomic_load(&other->has_left), is_alive = pid && !has_left && process_lives(pid);
    *has_begun |= pid != 0;
    is_one_alive |= is_alive;
    has_one_failed |= has_left ? other->error.code != 0 : pid && !is_alive;
  }
  if (is_one_alive)
    return has_one_failed;
  const bool is_found = children_live(mpirun, rank_has_left, table, has_begun);
  return *has_begun && !is_found;
}

static void mpirun_kill(struct launch *launch, pid_t mpirun, bool is_through)
{
  char text[200];
  snprintf(text, sizeof(text), "note: mpirun did not end within %d s of %s, and was killed; output and exit codes that "
           "it had not passed on are lost", GRACE_S, is_through ? "its ranks" : "a signal");
  message_print("launch", text);
  launch->is_mpirun_stuck = true;
  kill(-mpirun, SIGKILL);
}

/* True if standard output or error takes no bytes now (a pager, a stopped terminal): mpirun cannot end before. */
static bool output_waits(void)
{
  struct pollfd outputs[] = {{.fd = STDOUT_FILENO, .events = POLLOUT}, {.fd = STDERR_FILENO, .events = POLLOUT}};
  return poll(outputs, LADE_COUNT(outputs), 0) < (int)LADE_COUNT(outputs);
}

/* Kill mpirun with its process group if it is overdue: its ranks have ended, or it was asked to end. */
static void mpirun_look(struct launch *launch, struct watch *watch, pid_t mpirun)
{
  const int64_t now_ns = lade_now_ns(), passed_ns = LADE_MIN(now_ns - watch->before_ns, LOOK_NS);
  watch->since_look_ns += watch->before_ns ? passed_ns : 0;
  watch->before_ns = now_ns;
  if (launch->is_mpirun_stuck || watch->since_look_ns < LOOK_NS)
    return;
  const bool is_through = ranks_are_through(launch, mpirun, &watch->has_begun);
  const bool is_due = launch->has_mpirun_signal || (is_through && !output_waits());
  watch->overdue_ns = is_due ? watch->overdue_ns + watch->since_look_ns : 0;
  watch->since_look_ns = 0;
  if (watch->overdue_ns > GRACE_S * INT64_C(1000000000))
    mpirun_kill(launch, mpirun, is_through);
}

/* Wait for mpirun while it has work left, and meanwhile print the loss once it is known. */
static int mpirun_wait(struct launch *launch, pid_t child, struct loss *loss, int *ret_state)
{
  struct watch watch = {0};
  siginfo_t end = {0};
  while (!waitid(P_PID, (id_t)child, &end, WEXITED | WNOHANG | WNOWAIT) && end.si_pid == 0) {
    loss_look(launch, loss);
    ranks_look(launch);
    mpirun_look(launch, &watch, child);
    nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000l}, NULL);
  }
  int status = subprocess_wait(child, &launch->error, ret_state);
  loss_look(launch, loss);
  if (!status && *ret_state == 0 && loss->is_pending && atomic_load(&launch->table->ranks[0].pid))
    loss_print(launch, loss, atomic_load(&launch->table->n_steps), lade_now_ns()); /* no step was left to do */
  return status;
}

/* ---- ends ---- */

/* The end of one start. */
struct end {
  int signal_number; /* signal that ended mpirun, not sent by this process; 0: none */
  int code;          /* exit code if no rank has a more specific one */
  struct job_verdict verdict;
  bool is_lost; /* ranks were lost, not failed by themselves: a restart is allowed */
};

/* Report that a signal ended the job. If all ranks stopped by themselves the first rank has reported it. */
static int signal_tell(const struct launch *launch, const struct job_verdict *verdict)
{
  char text[200];
  const int number = signals_get();
  if (!verdict->n_begun || verdict->n_succeeded < launch->n_ranks) {
    snprintf(text, sizeof(text), "ended by signal %d (%s)%s", number, strsignal(number),
             verdict->n_begun ? " before all ranks had stopped by themselves" : "");
    message_print("launch", text);
  }
  return 128 + number;
}

/* Print the command that resumes from @place. */
static void command_print(const struct launch *launch, const char *place)
{
  char resume[PATH_MAX + 16];
  fprintf(stderr, "  %s launch -n %d", program_invocation_name, launch->n_asked);
  if (launch->n_restarts_max)
    fprintf(stderr, " --max-restarts %d%s", launch->n_restarts_max, launch->is_elastic ? " --elastic" : "");
  fprintf(stderr, " -- train%s", launch->table->words);
  snprintf(resume, sizeof(resume), "--resume=%s", place);
  word_print(stderr, resume);
  fputc('\n', stderr);
}

/*
 * Report that the job lost ranks as @error says: the checkpoint to resume from and, unless a restart follows, the
 * command.
 */
static int lost_tell(const struct launch *launch, const char *verb, bool is_again, struct lade_error *error)
{
  const struct job_status *table = launch->table;
  const char *save = table->places[JOB_STATUS_SAVE], *resume = table->places[JOB_STATUS_RESUME];
  const int64_t saved = job_status_find_save(table);
  char path[PATH_MAX];
  /* other checkpoints may be of a run before this job */
  const char *own = saved >= 0 ? resume_command_place(save, saved, path) : "";
  const char *const places[] = {*save ? own : NULL, *resume ? resume : NULL};
  const char *place = resume_command_newest(places, LADE_COUNT(places), error);
  const struct lade_error why = *error;
  const bool is_shown = place && !is_again && *table->words;
  if (is_shown)
    lade_error_set(error, why.code, "%.490s; continue with:", why.text);
  const int code = exit_fail(verb, why.code, error);
  if (is_shown)
    command_print(launch, place);
  return code;
}

/* Write "signal 9 (Killed)" if mpirun's @code says that a signal ended the first rank; else "". Return @text. */
static const char *signal_name(int code, char *text, size_t text_bytes)
{
  text[0] = 0;
  if (code > 128 && code < 128 + NSIG)
    snprintf(text, text_bytes, "signal %d (%s)", code - 128, strsignal(code - 128));
  return text;
}

/* Report a lost rank, by the messages of ranks that saw its end, if any. */
static int rank_lost_tell(struct launch *launch, const struct end *end, bool is_again)
{
  const struct lade_error *words = &end->verdict.error;
  const int rank = end->verdict.first_lost;
  char ended_by[64];
  signal_name(end->code, ended_by, sizeof(ended_by));
  if (words->code) {
    const bool has_cause = words->code == -EPIPE && *ended_by;
    lade_error_set(&launch->error, words->code, "%.300s%s%s%s", words->text, has_cause ? "; " : "",
                   has_cause ? ended_by : "", has_cause ? " ended it" : "");
    return lost_tell(launch, end->verdict.verb, is_again, &launch->error);
  }
  lade_error_set(&launch->error, -EPIPE, "rank %d ended %s, without a word%s%s", rank,
                 atomic_load(&launch->table->ranks[rank].pid) ? "before the others could see it" : "before it began",
                 *ended_by ? ", by " : "", ended_by);
  return lost_tell(launch, "launch", is_again, &launch->error);
}

/*
 * Report a failed start without messages of ranks. mpirun does not print that a signal ended a rank. Other commands
 * print why they end. Ranks that report on the table and end before they begin are reported here.
 */
static int silent_end_tell(const struct launch *launch, const struct end *end)
{
  char text[200], ended_by[64];
  if (*signal_name(end->code, ended_by, sizeof(ended_by)))
    snprintf(text, sizeof(text), "mpirun ended with code %d, the code of a rank that %s ended", end->code, ended_by);
  else if (launch->has_reports)
    snprintf(text, sizeof(text), "no rank has begun: mpirun ended with code %d", end->code);
  else
    return end->code;
  message_print("launch", text);
  return end->code;
}

/*
 * True if ranks were lost, or a signal ended one, only after the job's results were written. mpirun is taken to have
 * passed them on if it ended by itself.
 */
static bool is_lost_after_results(const struct launch *launch, const struct end *end)
{
  const struct job_verdict *verdict = &end->verdict;
  const bool is_lost = verdict->n_lost || end->code > 128;
  return is_lost && verdict->has_results && !verdict->is_own && !end->signal_number && !launch->is_mpirun_stuck;
}

/*
 * Report a rank that was lost after the job's results were written. Return the job's exit code: 0 if it was ended from
 * outside, else mpirun's, because a rank that crashes is a defect.
 */
static int lost_after_results_tell(const struct end *end)
{
  static const int outside[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP};
  char text[160], rank[32] = "a rank", ended_by[64];
  bool is_outside = false;
  for (size_t i = 0; i < LADE_COUNT(outside); i++)
    is_outside |= end->code == 128 + outside[i];
  if (end->verdict.n_lost)
    snprintf(rank, sizeof(rank), "rank %d", end->verdict.first_lost);
  signal_name(end->code, ended_by, sizeof(ended_by));
  snprintf(text, sizeof(text), "%s ended%s%s after the job's results were written", rank, *ended_by ? " by " : "",
           ended_by);
  message_print(is_outside ? "launch: note" : "launch", text);
  return is_outside ? LADE_EXIT_DONE : end->code;
}

/*
 * Report the end of a start, by its ranks' messages or the launcher's. @is_again: another start follows. Return the
 * job's exit code.
 */
static int end_tell(struct launch *launch, const struct end *end, bool is_again)
{
  const struct job_verdict *verdict = &end->verdict;
  if (end->code && signals_get() && !verdict->is_own && !is_again) /* else the restart that is given up reports it,
                                                                      once */
    return signal_tell(launch, verdict);
  if (verdict->is_own)
    return exit_fail(verdict->verb, verdict->error.code, &verdict->error);
  if (end->code && is_lost_after_results(launch, end))
    return lost_after_results_tell(end);
  if (end->signal_number) {
    lade_error_set(&launch->error, -EPIPE, "mpirun was ended by signal %d (%s), and its ranks with it",
                   end->signal_number, strsignal(end->signal_number));
    return lost_tell(launch, "launch", is_again, &launch->error);
  }
  if (end->is_lost && verdict->n_begun)
    return rank_lost_tell(launch, end, is_again);
  return end->code && !verdict->n_begun && !launch->is_mpirun_stuck ? silent_end_tell(launch, end) : end->code;
}

/* True if the start ended because ranks were lost. Of commands without messages: if a rank was killed. */
static bool is_lost(const struct launch *launch, const struct end *end)
{
  const struct job_verdict *verdict = &end->verdict;
  if (!end->code || signals_get() || verdict->is_own || is_lost_after_results(launch, end))
    return false;
  return end->signal_number || verdict->error.code ||
         (verdict->n_begun ? verdict->n_lost + verdict->n_unbegun > 0 : end->code > 128);
}

/*
 * Judge the end of mpirun with @state. After a failure end the ranks, and their children, that it may have left behind.
 */
static struct end end_judge(const struct launch *launch, int state)
{
  /* 137 after the launcher's SIGKILL */
  struct end end = {.code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state)};
  if (end.code) {
    survivors_mark(launch->table);
    reaper_end();
  }
  job_status_judge(launch->table, &end.verdict);
  if (launch->is_mpirun_stuck)
    end.code = end.verdict.n_succeeded == launch->n_ranks && !signals_get() ? LADE_EXIT_DONE : LADE_EXIT_FAILED;
  else if (WIFSIGNALED(state))
    end.signal_number = WTERMSIG(state);
  end.is_lost = is_lost(launch, &end);
  return end;
}

/* Parameters of the next start. */
struct next {
  int n_ranks, n_left;
  bool is_layout_known;
  struct lade_layout_params layout;
};

static const char *layout_name(const struct lade_layout_params *params, char name[LADE_LAYOUT_NAME_BYTES])
{
  struct lade_layout layout;
  return lade_layout_init(params, NULL, &layout) ? "unknown" : lade_layout_name(&layout, name);
}

/*
 * Find the ranks that remain after @end and the largest part of the first start's layout for them. Ranks that one
 * layout leaves unused still count until they are lost. If ranks of `train` ended before the first one reported the
 * layout, all start again, because their options are for that many.
 */
static int ranks_shrink(const struct launch *launch, const struct end *end, struct next *next, struct lade_error *error)
{
  const struct job_status *table = launch->table;
  char name[LADE_LAYOUT_NAME_BYTES];
  const int left = launch->n_left - LADE_MAX(end->verdict.n_lost, 1); /* without messages mpirun ended the others
                                                                         itself */
  if (left < 1)
    return lade_error_set(error, -EPIPE, "no ranks remain to start again with");
  if (!launch->is_asked_known && (launch->has_reports || end->verdict.n_begun))
    return 0;
  next->n_ranks = next->n_left = left;
  if (!launch->is_asked_known) /* no rank reports a layout: any number will do */
    return 0;
  if (lade_layout_shrink(&launch->asked, left, table->n_rows, table->micro_rows, &next->layout))
    return lade_error_set(error, -EPIPE, "%d of %d ranks remain, and no part of the layout \"%s\" fits them: none "
                          "shares a batch of %lld in microbatches of %lld", left, launch->n_asked,
                          layout_name(&launch->asked, name), (long long)table->n_rows,
                          (long long)LADE_MAX(table->micro_rows, 1));
  next->n_ranks = next->layout.world;
  next->is_layout_known = true;
  return 0;
}

/* True if another start follows @end. @error: the reason if ranks were lost and no start is possible. */
static bool next_plan(struct launch *launch, const struct end *end, struct next *next, struct lade_error *error)
{
  const struct job_status *table = launch->table;
  *next = (struct next){.n_ranks = launch->n_ranks, .n_left = launch->n_left};
  if (!launch->is_asked_known && table->n_rows) {
    launch->asked = table->layout;
    launch->asked.world = launch->n_ranks;
    launch->is_asked_known = true;
  }
  if (!end->is_lost || table->n_restarts >= launch->n_restarts_max)
    return false;
  return !launch->is_elastic || end->signal_number || !ranks_shrink(launch, end, next, error);
}

static void next_take(struct launch *launch, const struct next *next)
{
  struct job_status *table = launch->table;
  launch->n_ranks = next->n_ranks;
  launch->n_left = next->n_left;
  if (next->is_layout_known) {
    table->layout = next->layout;
    table->is_layout_given = true;
  }
  table->n_restarts++;
}

/* Report the layout given to the remaining ranks if it lacks memory; their own messages say how much it needs. */
static void layout_tell(const struct launch *launch, const struct end *end)
{
  const struct job_status *table = launch->table;
  char text[200], name[LADE_LAYOUT_NAME_BYTES];
  if (!table->is_layout_given || !end->verdict.is_own || end->verdict.error.code != -EOVERFLOW)
    return;
  snprintf(text, sizeof(text), "%d of %d ranks remain; the largest layout for them, \"%s\", does not fit the budget",
           launch->n_left, launch->n_asked, layout_name(&table->layout, name));
  message_print("launch", text);
}

/* Run one start to its end. Afterwards none of its processes and none of Open MPI's files is left. */
static int start_run(struct launch *launch, struct loss *loss, struct end *ret_end)
{
  int state = 0;
  pid_t child;
  job_status_clear(launch->table, launch->n_ranks);
  launch->is_mpirun_stuck = launch->has_lost = false;
  launch_scratch_open(&launch->scratch);
  int status = mpirun_start(launch, &child);
  if (!status)
    status = mpirun_wait(launch, child, loss, &state);
  if (!status)
    *ret_end = end_judge(launch, state);
  launch_scratch_close(&launch->scratch);
  return status;
}

static int job_run(struct launch *launch)
{
  struct job_status *table = launch->table;
  struct loss loss = {.since_ns = lade_now_ns()};
  struct next next;
  signals_handler_set(signal_take, launch);
  reaper_adopt();
  launch_scratch_sweep();
  for (;;) {
    struct end end;
    const int status = start_run(launch, &loss, &end);
    if (status && signals_get()) /* between two starts */
      return signal_tell(launch, &(struct job_verdict){0});
    if (status)
      return exit_fail("launch", status, &launch->error);
    struct lade_error why = {0};
    const bool is_again = next_plan(launch, &end, &next, &why);
    const int code = end_tell(launch, &end, is_again);
    if (why.code)
      message_print("launch", why.text);
    if (!is_again) {
      layout_tell(launch, &end);
      return code;
    }
    if (atomic_load(&table->first_step) >= 0) /* else this start lost nothing more than the one before it */
      loss = (struct loss){.n_steps = atomic_load(&table->n_steps),
                           .since_ns = LADE_MAX(atomic_load(&table->saved_ns), atomic_load(&table->begun_ns))};
    loss.is_pending = true;
    next_take(launch, &next);
  }
}

/* ---- output ---- */

/*
 * Wait until standard output has taken all of the job's output. False if a signal came and the reader took nothing for
 * GRACE_S: the signal then ends this process too.
 */
static bool output_wait(const struct launch *launch)
{
  const struct output_relay *output = &launch->output;
  uint64_t n_bytes = atomic_load(&output->n_bytes);
  for (int64_t idle_ns = 0; !atomic_load(&output->has_ended); idle_ns += POLL_MS * INT64_C(1000000)) {
    if (atomic_load(&output->n_bytes) != n_bytes || !signals_get())
      idle_ns = 0;
    n_bytes = atomic_load(&output->n_bytes);
    if (idle_ns > GRACE_S * INT64_C(1000000000))
      return false;
    nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000l}, NULL);
  }
  return true;
}

/* Return the exit code of a job that ended with @code: lost output turns success into a failure, as for one rank. */
static int output_finish(struct launch *launch, int code)
{
  output_relay_drain(&launch->output);
  const bool has_ended = output_wait(launch);
  const int status = has_ended ? output_relay_close(&launch->output) : -ETIMEDOUT;
  if (!status)
    return code;
  lade_error_set(&launch->error, status, "standard output: %s; the results are incomplete",
                 has_ended ? strerror(-status) : "its reader took nothing after a signal");
  message_print("launch", launch->error.text);
  return code ? code : LADE_EXIT_IO;
}

/* Run the job with its output relayed. Return its exit code. */
static int job_relay(struct launch *launch)
{
  const int status = output_relay_open(&launch->output);
  return status ? exit_fail("launch", status, NULL) : output_finish(launch, job_run(launch));
}

/* ---- command line ---- */

/* Read the option at argv[*i] and move *i past it. */
static int option_take(struct launch *launch, char **argv, int *i)
{
  const char *option = argv[*i];
  (*i)++;
  if (strcmp(option, "--elastic") == 0) {
    launch->is_elastic = true;
  } else if (strcmp(option, "--max-restarts") == 0) {
    launch->n_restarts_max = number_parse(argv[*i], 0, RESTARTS_MAX);
    if (launch->n_restarts_max < 0)
      return usage_fail("--max-restarts needs a number from 0 to 1000000");
    (*i)++;
  } else if (strncmp(option, "-n", 2) == 0) {
    launch->n_ranks = number_parse(option[2] ? option + 2 : argv[*i], 1, RANKS_MAX);
    if (launch->n_ranks < 0)
      return usage_fail("-n needs a number of ranks from 1 to 4096");
    *i += !option[2];
  } else {
    lade_error_set(&launch->error, -EINVAL, "there is no option '%.64s'; the options are -n N, --max-restarts N and "
                   "--elastic", option);
    return exit_fail("launch", -EINVAL, &launch->error);
  }
  return 0;
}

static int line_read(struct launch *launch, int argc, char **argv, int *ret_first)
{
  int i = 1, code = 0;
  while (!code && i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0)
    code = option_take(launch, argv, &i);
  if (code)
    return code;
  if (!launch->n_ranks)
    return usage_fail("the number of ranks is missing: lade launch -n N -- COMMAND");
  if (launch->is_elastic && !launch->n_restarts_max)
    return usage_fail("--elastic needs --max-restarts");
  i += i < argc && strcmp(argv[i], "--") == 0;
  if (i >= argc)
    return usage_fail("the command is missing: lade launch -n N -- COMMAND");
  if (argv[i][0] == '-')
    return usage_fail("the command cannot begin with '-'");
  *ret_first = i;
  return 0;
}

int launch_main(int argc, char **argv)
{
  static struct launch launch; /* static, because an abandoned relay may still write to it while this process exits */
  char self[PATH_MAX];
  int first = 0;
  if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
    help_print(stdout);
    return LADE_EXIT_DONE;
  }
  int code = line_read(&launch, argc, argv, &first);
  if (code)
    return code;
  if (!subprocess_exists(argv[first]) && verb_find(argv[first], self, sizeof(self))) {
    launch.has_reports = verb_has_reports(argv + first);
    argv[--first] = self; /* overwrites "--" or the number, which are already read */
  }
  if (!subprocess_exists(argv[first])) {
    int status = lade_error_set(&launch.error, -ENOENT, "there is no program '%.200s' that this user may execute",
                                argv[first]);
    return exit_fail("launch", status, &launch.error);
  }
  if (!subprocess_exists("mpirun")) {
    int status = lade_error_set(&launch.error, -ENOSYS, "mpirun is not on PATH; apt-get install openmpi-bin adds it");
    return exit_fail("launch", status, &launch.error);
  }
  launch.command = argv + first;
  launch.n_command = argc - first;
  launch.n_asked = launch.n_left = launch.n_ranks;
  int status = job_status_create(launch.n_ranks, &launch.table);
  code = status ? exit_fail("launch", status, NULL) : job_relay(&launch);
  job_status_destroy(launch.table);
  return code;
}
