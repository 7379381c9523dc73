/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade launch`: N ranks of a command on this machine, through mpirun with the flags that it takes here.
 *
 * This process stands beside mpirun: its output is the job's, and when this process dies the job is told to end.
 * Signals come here alone, since mpirun takes one as the order to kill: ranks of `lade train` get them from here, stop
 * after their step and save for as long as it takes; other commands get them from mpirun. Whoever asks twice has all
 * ended at once.
 *
 * Ranks of `lade train` leave their words on a board (board.h), so that the end of a job is told once and by whoever
 * saw most, even where mpirun ended the others before they could speak; its code is that of these words. Of other
 * commands the code is mpirun's. What ended a rank mpirun alone has seen: its code says the signal. Where mpirun itself
 * was killed its ranks are ours (orphans.h), and end before anything is said or started again. The newest checkpoint is
 * looked up when all have ended, and told with the line that goes on from it. An mpirun that does not end in GRACE_S
 * after its ranks, or after it was told to, is killed; ranks that all said that they were well make the job a good one.
 * One that has output left which nobody reads is waited for.
 *
 * A job that lost ranks (killed, stopped, gone without a word) can be started again: the ranks themselves then resume
 * from the job's newest checkpoint in their --save. One that a rank itself called wrong is not: it would end so again.
 * With --elastic a start has the ranks that remain, in the largest layout of the same kind (lade_layout_shrink). What
 * is lost is known when a step begins again: the steps after the checkpoint, and the time since it was whole.
 *
 * Ranks may share cores (--oversubscribe: mpirun's slots are not the threads that we count). Where they outnumber the
 * threads, waits inside MPI give the processor up, and libraries that ask OMP_NUM_THREADS take one thread per rank,
 * unless the environment already says how many. Root, which containers run as, is let through. Ranks are not bound to
 * cores: Lade's threads find their own. Bytes between ranks go through shared memory and not by reads of another
 * process's memory, which containers forbid, and which print a line of their own when that process has died. Who is
 * left when a rank has ended gets 2 s to say so before mpirun kills it: twice what it is told, once before it asks and
 * once after, and it takes them also where nobody is left.
 *
 * A command `train` that is no program is this very `lade`: `lade launch -n 2 -- train ...`. mpirun keeps its own words
 * about ranks that fail to itself: the rank's error line says more.
 *
 * What could be found wrong before mpirun starts is: its own words about a program that is not there are twenty lines.
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
#include "tools/board.h"
#include "tools/go_on.h"
#include "tools/orphans.h"
#include "tools/program.h"
#include "tools/signals.h"
#include "tools/verbs.h"

#define RANKS_MOST 4096 /* of one machine */
#define RESTARTS_MOST 1000000
#define ARGUMENTS_MOST 24
#define POLL_MS 20 /* between two looks whether mpirun has ended, or a step has begun again */
#define LOOK_NS 1000000000 /* between two looks at processes, which read all of /proc */
#define GRACE_S 10 /* how long mpirun may take to end; it kills ranks after 2 s */

struct launch {
  int n_ranks, n_restarts_most;
  int n_asked; /* ranks of the first start; --elastic has fewer later */
  bool is_elastic;
  char **command;
  int n_command;
  struct board *board;
  volatile sig_atomic_t is_mpirun_told; /* to end; by a handler */
  bool is_mpirun_stuck; /* it did not end, and was killed */
  struct lade_error error;
};

static void help_print(FILE *file)
{
  fputs("Usage: lade launch -n N [--max-restarts N] [--elastic] [--] COMMAND [ARGUMENT...]\n"
        "Starts N ranks of a command on this machine, through Open MPI's mpirun.\n\n"
        "  -n N               how many\n"
        "  --max-restarts N   start again after ranks were lost, so often; `train` resumes from its --save (0)\n"
        "  --elastic          start again with the ranks that remain, in the largest layout that they can be\n"
        "  -h, --help         this\n\n"
        "Every rank finds its number in OMPI_COMM_WORLD_RANK. Output and exit code pass; when one rank fails,\n"
        "mpirun ends the others and exits with its code. A signal is the ranks' (`train` stops after its step and\n"
        "saves); a second one ends all at once. Where ranks outnumber cores they share them,\n"
        "waiting gives the processor up, and OMP_NUM_THREADS is 1 unless it is set.\n\n"
        "  lade launch -n 2 -- train --data input.txt\n"
        "  lade launch -n 4 --max-restarts 3 --elastic -- train --data input.txt --save run --save-every 50\n"
        "  lade launch -n 8 -- ./my-trainer --steps 10\n", file);
}

static int usage_fail(const char *text)
{
  struct lade_error error = {0};
  lade_error_set(&error, -EINVAL, "%s; lade launch --help says more", text);
  return exit_fail("launch", -EINVAL, &error);
}

/* @text as a whole number from @least to @most, or -1. */
static int number_parse(const char *text, int least, int most)
{
  char *end;
  errno = 0;
  long n = text ? strtol(text, &end, 10) : -1;
  return !text || end == text || *end || errno || n < least || n > most ? -1 : (int)n;
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

/* ---- one start ---- */

/* mpirun's command line into @arguments, with room for ARGUMENTS_MOST beside the command. */
static void arguments_fill(const struct launch *launch, bool is_crowded, const char *n_text, const char **arguments)
{
  static const char *const always[] = {"mpirun", "--oversubscribe", /* slots are cores; we count threads */
                                       "--mca", "orte_execute_quiet", "1", /* as -q, which Open MPI 5 refuses */
                                       "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none",
                                       "--mca", "odls_base_sigkill_timeout", "1"};
  static const char *const crowded[] = {"--mca", "mpi_yield_when_idle", "1"};
  int n = 0;
  for (size_t i = 0; i < LADE_COUNT(always); i++)
    arguments[n++] = always[i];
  for (size_t i = 0; i < LADE_COUNT(crowded) && is_crowded; i++)
    arguments[n++] = crowded[i];
  if (geteuid() == 0)
    arguments[n++] = "--allow-run-as-root";
  arguments[n++] = "-n";
  arguments[n++] = n_text;
  LADE_ASSERT(n < ARGUMENTS_MOST);
  memcpy(arguments + n, launch->command, (size_t)launch->n_command * sizeof(*arguments));
}

/*
 * In the new process, where signals are held: whoever asked for the end since the last start does not get another. The
 * group of its own keeps from it what the terminal, or `timeout`, sends to ours.
 */
static int mpirun_prepare(void *user)
{
  (void)user;
  if (signals_get())
    return -ECANCELED;
  return setpgid(0, 0) ? -errno : 0;
}

/* A handler's. mpirun kills 2 s after it was asked to end: not where ranks on the board end by themselves. */
static void signal_take(void *user, pid_t mpirun, int signal_number, enum signals_wish wish)
{
  struct launch *launch = user;
  const int ending = signal_number == SIGINT ? SIGINT : SIGTERM; /* ranks listen to these */
  const int n_told = wish == SIGNALS_OTHER ? 0 : board_signal(launch->board, ending);
  if (mpirun > 0 && (!n_told || wish == SIGNALS_END_NOW)) {
    kill(mpirun, wish == SIGNALS_OTHER ? signal_number : ending);
    launch->is_mpirun_told |= wish != SIGNALS_OTHER;
  }
}

static int mpirun_start(struct launch *launch, pid_t *ret_child)
{
  const bool is_crowded = launch->n_ranks > lade_cpu_count();
  char n_text[16];
  const char **arguments = calloc((size_t)(ARGUMENTS_MOST + launch->n_command), sizeof(*arguments));
  if (!arguments)
    return -ENOMEM;
  snprintf(n_text, sizeof(n_text), "%d", launch->n_ranks);
  arguments_fill(launch, is_crowded, n_text, arguments);
  if (is_crowded)
    setenv("OMP_NUM_THREADS", "1", 0);
  const struct program_params how = {.command = (char *const *)(uintptr_t)arguments, .end_signal = SIGTERM,
                                     .prepare = mpirun_prepare};
  int status = program_start(&how, &launch->error, ret_child);
  free(arguments);
  return status;
}

/* What a failure cost, from the state before it. */
struct loss {
  bool is_pending;
  int64_t n_steps, since_ns; /* done then; since when work was lost */
};

/* Work goes on at step @first, since @begun_ns. */
static void loss_print(const struct launch *launch, struct loss *loss, int64_t first, int64_t begun_ns)
{
  char text[200];
  snprintf(text, sizeof(text), "restart %d of %d, %d rank%s, goes on after step %lld: %lld steps and %.1f s lost",
           launch->board->n_restarts, launch->n_restarts_most, launch->n_ranks, launch->n_ranks == 1 ? "" : "s",
           (long long)first, (long long)LADE_MAX(loss->n_steps - first, 0), (double)(begun_ns - loss->since_ns) / 1e9);
  message_print("launch", text);
  loss->is_pending = false;
}

static void loss_look(const struct launch *launch, struct loss *loss)
{
  const int64_t first = atomic_load(&launch->board->first_step);
  if (loss->is_pending && first >= 0)
    loss_print(launch, loss, first, atomic_load(&launch->board->begun_ns));
}

/* For how long mpirun should have ended. Time in which we do not run counts little: mpirun may not have run either. */
struct watch {
  bool has_begun; /* there were ranks */
  int64_t before_ns, since_look_ns, overdue_ns;
};

/* A rank that has left says goodbye to mpirun, and waits for ever if that does not answer. */
static bool rank_has_left(const void *board, pid_t pid)
{
  const struct board *of = board;
  for (int rank = 0; rank < of->n_ranks; rank++)
    if (atomic_load(&of->ranks[rank].pid) == pid)
      return atomic_load(&of->ranks[rank].has_left);
  return false;
}

/* Whether mpirun's ranks have all ended, or are to end since one of them failed. */
static bool ranks_are_through(const struct launch *launch, pid_t mpirun, bool *has_begun)
{
  const struct board *board = launch->board;
  bool is_one_alive = false, has_one_failed = false;
  for (int rank = 0; rank < board->n_ranks; rank++) {
    const struct board_rank *other = &board->ranks[rank];
    const pid_t pid = atomic_load(&other->pid);
    const bool has_left = atomic_load(&other->has_left), is_alive = pid && !has_left && process_lives(pid);
    *has_begun |= pid != 0;
    is_one_alive |= is_alive;
    has_one_failed |= has_left ? other->error.code != 0 : pid && !is_alive;
  }
  if (is_one_alive)
    return has_one_failed;
  const bool is_found = children_live(mpirun, rank_has_left, board, has_begun);
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

/* Whether what mpirun passes on is not read: by a pager, a stopped terminal. It cannot end before. */
static bool output_waits(void)
{
  struct pollfd outputs[] = {{.fd = STDOUT_FILENO, .events = POLLOUT}, {.fd = STDERR_FILENO, .events = POLLOUT}};
  return poll(outputs, LADE_COUNT(outputs), 0) < (int)LADE_COUNT(outputs);
}

/* mpirun is to end when its ranks have, and when it was told to. If it does not it is killed with all in its group. */
static void mpirun_look(struct launch *launch, struct watch *watch, pid_t mpirun)
{
  const int64_t now_ns = lade_now_ns(), passed_ns = LADE_MIN(now_ns - watch->before_ns, LOOK_NS);
  watch->since_look_ns += watch->before_ns ? passed_ns : 0;
  watch->before_ns = now_ns;
  if (launch->is_mpirun_stuck || watch->since_look_ns < LOOK_NS)
    return;
  const bool is_through = ranks_are_through(launch, mpirun, &watch->has_begun);
  const bool is_due = launch->is_mpirun_told || (is_through && !output_waits());
  watch->overdue_ns = is_due ? watch->overdue_ns + watch->since_look_ns : 0;
  watch->since_look_ns = 0;
  if (watch->overdue_ns > GRACE_S * INT64_C(1000000000))
    mpirun_kill(launch, mpirun, is_through);
}

/* Wait for mpirun, for as long as it has something to do, and say meanwhile what was lost once that is known. */
static int mpirun_wait(struct launch *launch, pid_t child, struct loss *loss, int *ret_state)
{
  struct watch watch = {0};
  siginfo_t end = {0};
  while (!waitid(P_PID, (id_t)child, &end, WEXITED | WNOHANG | WNOWAIT) && end.si_pid == 0) {
    loss_look(launch, loss);
    mpirun_look(launch, &watch, child);
    nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000l}, NULL);
  }
  int status = program_wait(child, &launch->error, ret_state);
  loss_look(launch, loss);
  if (!status && *ret_state == 0 && loss->is_pending && atomic_load(&launch->board->ranks[0].pid))
    loss_print(launch, loss, atomic_load(&launch->board->n_steps), lade_now_ns()); /* no step was left to do */
  return status;
}

/* ---- ends ---- */

/* How one start ended. */
struct end {
  int signal_number; /* that ended mpirun and was not ours; 0: none */
  int code;          /* that to exit with where no rank says better */
  struct board_verdict verdict;
  bool is_lost; /* through no fault of the command's: it may start again */
};

/* The job was asked to end. Where all ranks did by themselves the first has said so. */
static int signal_tell(const struct launch *launch, const struct board_verdict *verdict)
{
  char text[200];
  const int number = signals_get();
  if (!verdict->n_begun || verdict->n_well < launch->n_ranks) {
    snprintf(text, sizeof(text), "ended by signal %d (%s)%s", number, strsignal(number),
             verdict->n_begun ? " before all ranks had stopped by themselves" : "");
    message_print("launch", text);
  }
  return 128 + number;
}

/* The line that goes on from @place. */
static void command_print(const struct launch *launch, const char *place)
{
  char resume[PATH_MAX + 16];
  fprintf(stderr, "  %s launch -n %d", program_invocation_name, launch->n_asked);
  if (launch->n_restarts_most)
    fprintf(stderr, " --max-restarts %d%s", launch->n_restarts_most, launch->is_elastic ? " --elastic" : "");
  fprintf(stderr, " -- train%s", launch->board->words);
  snprintf(resume, sizeof(resume), "--resume=%s", place);
  word_print(stderr, resume);
  fputc('\n', stderr);
}

/* The job lost ranks as @error says: from where it goes on, and, unless we start it again, by which line. */
static int lost_tell(const struct launch *launch, const char *verb, bool is_again, struct lade_error *error)
{
  const struct board *board = launch->board;
  const char *save = board->places[BOARD_SAVE], *resume = board->places[BOARD_RESUME];
  const int64_t saved = board_find_save(board);
  char path[PATH_MAX];
  const char *own = saved >= 0 ? go_on_place(save, saved, path) : ""; /* others may be of a run before this job */
  const char *const places[] = {*save ? own : NULL, *resume ? resume : NULL};
  const char *place = go_on_newest(places, LADE_COUNT(places), error);
  const struct lade_error why = *error;
  const bool is_shown = place && !is_again && *board->words;
  if (is_shown)
    lade_error_set(error, why.code, "%.490s; go on with:", why.text);
  const int code = exit_fail(verb, why.code, error);
  if (is_shown)
    command_print(launch, place);
  return code;
}

/* "signal 9 (Killed)", where mpirun saw the first rank that ended go that way; else "". */
static const char *signal_name(int code, char *text, size_t text_bytes)
{
  text[0] = 0;
  if (code > 128 && code < 128 + NSIG)
    snprintf(text, text_bytes, "signal %d (%s)", code - 128, strsignal(code - 128));
  return text;
}

/* A rank is gone: in the words of the others, if they saw it go. */
static int rank_lost_tell(struct launch *launch, const struct end *end, bool is_again)
{
  const struct lade_error *words = &end->verdict.error;
  const int rank = end->verdict.first_lost;
  char how[64];
  signal_name(end->code, how, sizeof(how));
  if (words->code) {
    const bool is_told = words->code == -EPIPE && *how;
    lade_error_set(&launch->error, words->code, "%.300s%s%s%s", words->text, is_told ? "; " : "", is_told ? how : "",
                   is_told ? " ended it" : "");
    return lost_tell(launch, "train", is_again, &launch->error);
  }
  lade_error_set(&launch->error, -EPIPE, "rank %d ended %s, without a word%s%s", rank,
                 atomic_load(&launch->board->ranks[rank].pid) ? "before the others could see it" : "before it began",
                 *how ? ", by " : "", how);
  return lost_tell(launch, "launch", is_again, &launch->error);
}

/* How a start ended, in the words of its ranks or in ours; the job's exit code. @is_again: another one follows. */
static int end_tell(struct launch *launch, const struct end *end, bool is_again)
{
  const struct board_verdict *verdict = &end->verdict;
  if (end->code && signals_get() && !verdict->is_own && !is_again) /* else the start that does not come says it, once */
    return signal_tell(launch, verdict);
  if (verdict->is_own)
    return exit_fail("train", verdict->error.code, &verdict->error);
  if (end->signal_number) {
    lade_error_set(&launch->error, -EPIPE, "mpirun was ended by signal %d (%s), and its ranks with it",
                   end->signal_number, strsignal(end->signal_number));
    return lost_tell(launch, "launch", is_again, &launch->error);
  }
  return end->is_lost && verdict->n_begun ? rank_lost_tell(launch, end, is_again) : end->code;
}

/* Did the start end because ranks were lost? Of commands without words: when one was killed. */
static bool is_lost(const struct end *end)
{
  const struct board_verdict *verdict = &end->verdict;
  if (!end->code || signals_get() || verdict->is_own)
    return false;
  return end->signal_number || verdict->error.code ||
         (verdict->n_begun ? verdict->n_lost > 0 : end->code > 128);
}

/* What mpirun's end in @state came to. Unless all was well it may have left ranks, or what those started, to us. */
static struct end end_judge(const struct launch *launch, int state)
{
  struct end end = {.code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state)}; /* 137 where we killed it */
  if (end.code)
    orphans_end();
  board_judge(launch->board, &end.verdict);
  if (launch->is_mpirun_stuck)
    end.code = end.verdict.n_well == launch->n_ranks && !signals_get() ? LADE_EXIT_DONE : LADE_EXIT_FAILED;
  else if (WIFSIGNALED(state))
    end.signal_number = WTERMSIG(state);
  end.is_lost = is_lost(&end);
  return end;
}

/* What the next start is to be. */
struct next {
  int n_ranks;
  bool is_layout_known;
  struct lade_layout_params layout;
};

/* The ranks that remain after @end, and their layout. Without words, all but one: mpirun ended the others itself. */
static int ranks_shrink(const struct launch *launch, const struct end *end, struct next *next, struct lade_error *error)
{
  const struct board *board = launch->board;
  const int n_lost = end->verdict.n_begun ? LADE_MAX(end->verdict.n_lost, 1) : 1;
  const int left = launch->n_ranks - n_lost;
  if (left < 1)
    return lade_error_set(error, -EPIPE, "no ranks remain to go on with");
  next->n_ranks = left;
  if (!board->n_rows) /* nothing was told of a layout: any number will do */
    return 0;
  if (lade_layout_shrink(&board->layout, left, board->n_rows, board->micro_rows, &next->layout))
    return lade_error_set(error, -EPIPE, "%d of %d ranks remain, and no layout of them like the one before can share a "
                          "batch of %lld", left, launch->n_ranks, (long long)board->n_rows);
  next->n_ranks = next->layout.world;
  next->is_layout_known = true;
  return 0;
}

/* Is there to be another start after @end? What keeps a lost one from it is left in @error. */
static bool next_plan(const struct launch *launch, const struct end *end, struct next *next, struct lade_error *error)
{
  *next = (struct next){.n_ranks = launch->n_ranks};
  if (!end->is_lost || launch->board->n_restarts >= launch->n_restarts_most)
    return false;
  return !launch->is_elastic || end->signal_number || !ranks_shrink(launch, end, next, error);
}

static void next_take(struct launch *launch, const struct next *next)
{
  struct board *board = launch->board;
  launch->n_ranks = next->n_ranks;
  if (next->is_layout_known) {
    board->layout = next->layout;
    board->is_layout_given = true;
  }
  board->n_restarts++;
}

static int job_run(struct launch *launch)
{
  struct board *board = launch->board;
  struct loss loss = {.since_ns = lade_now_ns()};
  struct next next;
  signals_give(signal_take, launch);
  orphans_adopt();
  for (;;) {
    int state = 0;
    pid_t child;
    board_clear(board, launch->n_ranks);
    launch->is_mpirun_stuck = false;
    int status = mpirun_start(launch, &child);
    if (!status)
      status = mpirun_wait(launch, child, &loss, &state);
    if (status && signals_get()) /* between two starts */
      return signal_tell(launch, &(struct board_verdict){0});
    if (status)
      return exit_fail("launch", status, &launch->error);
    const struct end end = end_judge(launch, state);
    struct lade_error why = {0};
    const bool is_again = next_plan(launch, &end, &next, &why);
    const int code = end_tell(launch, &end, is_again);
    if (why.code)
      message_print("launch", why.text);
    if (!is_again)
      return code;
    if (atomic_load(&board->first_step) >= 0) /* else it lost nothing more than the one before it */
      loss = (struct loss){.n_steps = atomic_load(&board->n_steps),
                           .since_ns = LADE_MAX(atomic_load(&board->saved_ns), atomic_load(&board->begun_ns))};
    loss.is_pending = true;
    next_take(launch, &next);
  }
}

/* ---- the line ---- */

/* The option at argv[*i], past which *i moves. */
static int option_take(struct launch *launch, char **argv, int *i)
{
  const char *option = argv[*i];
  (*i)++;
  if (strcmp(option, "--elastic") == 0) {
    launch->is_elastic = true;
  } else if (strcmp(option, "--max-restarts") == 0) {
    launch->n_restarts_most = number_parse(argv[*i], 0, RESTARTS_MOST);
    if (launch->n_restarts_most < 0)
      return usage_fail("--max-restarts takes a number from 0 to 1000000");
    (*i)++;
  } else if (strncmp(option, "-n", 2) == 0) {
    launch->n_ranks = number_parse(option[2] ? option + 2 : argv[*i], 1, RANKS_MOST);
    if (launch->n_ranks < 0)
      return usage_fail("-n takes a number of ranks from 1 to 4096");
    *i += !option[2];
  } else {
    lade_error_set(&launch->error, -EINVAL, "there is no option '%.64s'; there are -n N, --max-restarts N and "
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
    return usage_fail("how many ranks? lade launch -n N -- COMMAND");
  if (launch->is_elastic && !launch->n_restarts_most)
    return usage_fail("--elastic means nothing without --max-restarts");
  i += i < argc && strcmp(argv[i], "--") == 0;
  if (i >= argc)
    return usage_fail("which command? lade launch -n N -- COMMAND");
  if (argv[i][0] == '-')
    return usage_fail("the command cannot begin with '-'");
  *ret_first = i;
  return 0;
}

int launch_main(int argc, char **argv)
{
  struct launch launch = {0};
  char self[PATH_MAX];
  int first = 0;
  if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
    help_print(stdout);
    return LADE_EXIT_DONE;
  }
  int code = line_read(&launch, argc, argv, &first);
  if (code)
    return code;
  if (!program_exists(argv[first]) && verb_find(argv[first], self, sizeof(self)))
    argv[--first] = self; /* over "--" or the number, which are done with */
  if (!program_exists(argv[first])) {
    int status = lade_error_set(&launch.error, -ENOENT, "there is no program '%.200s' to run", argv[first]);
    return exit_fail("launch", status, &launch.error);
  }
  if (!program_exists("mpirun")) {
    int status = lade_error_set(&launch.error, -ENOSYS, "mpirun is not on PATH; apt-get install openmpi-bin brings it");
    return exit_fail("launch", status, &launch.error);
  }
  launch.command = argv + first;
  launch.n_command = argc - first;
  launch.n_asked = launch.n_ranks;
  int status = board_create(launch.n_ranks, &launch.board);
  code = status ? exit_fail("launch", status, NULL) : job_run(&launch);
  board_destroy(launch.board);
  return code;
}
