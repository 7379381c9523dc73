/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade train`: a session and the loop around it.
 *
 * Nothing is written before the session is open, which is when everything that a person can have got wrong has
 * been checked. The loop asks after each step whether to evaluate, to save, or to stop because of a signal. A
 * failure ends it with one line; what was saved before stays.
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cpu.h"
#include "offload/durable.h"
#include "run/checkpoint.h"
#include "tools/claim.h"
#include "tools/go_on.h"
#include "tools/job.h"
#include "tools/options.h"
#include "tools/pace.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/signals.h"
#include "tools/terminal.h"
#include "tools/timeline.h"
#include "tools/verbs.h"

#define LOG_DIGITS 17 /* doubles in logs read back as the same bits */

struct run {
  struct options options;
  struct job job;
  lade_session *session;
  struct lade_session_info info;
  struct progress progress;
  struct history history;
  struct pace pace;
  FILE *log;
  struct lade_session_choice choices[4];
  char own[PATH_MAX]; /* checkpoint of this job that it goes on from after a failure */
  int claim_fd; /* on the directory of --save; -1 */
  bool has_valid; /* until an evaluation says that there is no such data */
  int64_t begun_save_ns; /* when the newest save took its values */
  int64_t evaluated_step, saved_step;
  int64_t kept_step; /* of this run's newest checkpoint in --save; -1: none */
  int64_t pending_step; /* whose save is being written beside the steps; -1: none */
  int stop_signal; /* that a rank was sent; 0 */
  bool has_saved;  /* all ranks know that the save beside the steps is over */
  double train_loss, val_loss;
  struct lade_error error;
};

static void notice_print(void *user, const char *line)
{
  const struct run *run = user;
  if (job_is_first(&run->job))
    message_print("train: note", line);
}

/* ---- the log ---- */

static void log_event(struct run *run, json_t *event)
{
  if (run->log && event) {
    json_dumpf(event, run->log, JSON_COMPACT | JSON_REAL_PRECISION(LOG_DIGITS));
    fputc('\n', run->log);
  }
  json_decref(event);
}

static void log_step(struct run *run, const struct lade_step_report *report)
{
  if (!run->log)
    return;
  double tokens = (double)(run->info.batch * run->info.time), seconds = (double)report->wall_ns / 1e9;
  json_t *event = json_pack("{s:s, s:I}", "event", "step", "step", (json_int_t)report->step);
  json_object_set_new(event, "loss", json_number(report->loss));
  json_object_set_new(event, "grad_norm", json_number(report->grad_norm));
  json_object_set_new(event, "lr", json_number(report->lr));
  json_object_set_new(event, "tokens_per_second", json_number(seconds > 0 ? tokens / seconds : NAN));
  json_object_set_new(event, "peak_bytes", json_bytes(run->info.measured_peak_bytes));
  if (run->options.session.dtype == LADE_F16) {
    json_object_set_new(event, "loss_scale", json_number(report->loss_scale));
    json_object_set_new(event, "is_skipped", json_boolean(report->is_skipped));
  }
  log_event(run, event);
}

/* A run that goes on goes on in its log. */
static int log_open(struct run *run)
{
  const char *path = run->options.log;
  bool goes_on = run->options.session.resume || (run->options.session.is_durable && run->info.step > 0);
  if (!path || !job_is_first(&run->job))
    return 0;
  run->log = fopen(path, goes_on ? "ae" : "we");
  if (!run->log)
    return lade_error_set(&run->error, -errno, "--log %s: %s", path, strerror(errno));
  setvbuf(run->log, NULL, _IOLBF, 1 << 16);
  log_event(run, json_pack("{s:s, s:o}", "event", "config", "options",
                           config_json(&run->options, run->options.verb)));
  if (ferror(run->log))
    return lade_error_set(&run->error, -EIO, "--log %s: it cannot be written: %s", path, strerror(errno));
  return 0;
}

static int log_close(struct run *run)
{
  if (!run->log)
    return 0;
  bool is_bad = ferror(run->log);
  is_bad = fclose(run->log) || is_bad;
  run->log = NULL;
  return is_bad ? lade_error_set(&run->error, -EIO, "--log %s: it could not be written; it is incomplete",
                                 run->options.log)
                : 0;
}

/* ---- parts of the loop ---- */

static int evaluate(struct run *run)
{
  double loss = 0;
  if (!run->has_valid || run->evaluated_step == run->info.step)
    return 0;
  int status = lade_session_eval(run->session, &loss, &run->error);
  if (status == -ENODATA) {
    run->has_valid = false;
    return 0;
  }
  if (status)
    return status;
  run->val_loss = loss;
  run->evaluated_step = run->info.step;
  json_t *event = json_pack("{s:s, s:I}", "event", "eval", "step", (json_int_t)run->info.step);
  json_object_set_new(event, "val_loss", json_number(loss));
  log_event(run, event);
  progress_say(&run->progress, "step %lld/%lld  validation loss %.4f", (long long)run->info.step,
               (long long)run->options.session.steps, loss);
  return 0;
}

/* The save of @step is durable. */
static void log_save(struct run *run, int64_t step)
{
  run->kept_step = step;
  if (run->job.board && job_is_first(&run->job))
    board_save_end(run->job.board, step, run->begun_save_ns);
  json_t *event = json_pack("{s:s, s:I, s:o}", "event", "save", "step", (json_int_t)step, "dir",
                            json_text(run->options.save));
  json_object_set_new(event, "seconds", json_number(run->pace.save_seconds));
  if (run->pace.failure_seconds > 0)
    json_object_set_new(event, "interval_seconds", json_number(run->pace.interval_seconds));
  log_event(run, event);
}

/* How often to save, once it is known. */
static void pace_say(struct run *run)
{
  if (run->pace.failure_seconds > 0)
    progress_say(&run->progress, "a save holds up steps for %.3g s: with a failure every %g s one every %.3g s loses "
                 "least", run->pace.save_seconds, run->pace.failure_seconds, run->pace.interval_seconds);
}

/* Wait for the save that is being written, if there is one. */
static int save_finish(struct run *run)
{
  int status = lade_session_finish_saves(run->session, &run->error);
  if (!status && run->pending_step >= 0)
    log_save(run, run->pending_step);
  run->pending_step = -1;
  return status;
}

/* Save this step; steps have stood still since @begin_ns. */
static int save_begin(struct run *run, int64_t begin_ns)
{
  const struct options *options = &run->options;
  const bool is_first = run->saved_step < 0;
  run->begun_save_ns = lade_now_ns();
  if (run->job.board && job_is_first(&run->job))
    board_save_begin(run->job.board, run->info.step);
  int status = lade_session_save(run->session, options->save, (int)options->keep, &run->error);
  if (status)
    return status;
  pace_measure(&run->pace, begin_ns, lade_now_ns());
  if (is_first)
    pace_say(run);
  run->saved_step = run->info.step;
  if (run->info.is_saving_beside)
    run->pending_step = run->info.step;
  else
    log_save(run, run->info.step);
  return 0;
}

/* Did @status come of a communicator, whose ranks can do nothing more together? */
static bool is_apart(int status)
{
  return status == -EPIPE || status == -ETIMEDOUT || status == -ECANCELED;
}

/* The save before failed with @status, which ends the run: with this step saved, if that can be. Returns @status. */
static int save_last(struct run *run, int status)
{
  const struct lade_error first = run->error;
  char line[64];
  int last = is_apart(status) ? status : save_begin(run, lade_now_ns());
  if (!last)
    last = save_finish(run);
  snprintf(line, sizeof(line), "a save failed; step %lld is saved", (long long)run->info.step);
  if (!last)
    notice_print(run, line);
  run->error = first;
  return status;
}

/* The run failed: whether the save that was under way is there is in the log, or told beside the failure. */
static void save_settle(struct run *run)
{
  const struct lade_error first = run->error;
  const int64_t step = run->pending_step;
  char line[sizeof(first.text) + 64];
  if (step < 0)
    return;
  int status = save_finish(run);
  if (status && !is_apart(status)) {
    snprintf(line, sizeof(line), "step %lld is not saved: %s", (long long)step, run->error.text);
    notice_print(run, line);
  }
  run->error = first;
}

static int save(struct run *run)
{
  if (!run->options.save || run->saved_step == run->info.step)
    return 0;
  const int64_t begin_ns = lade_now_ns();
  int status = save_finish(run);
  return status ? save_last(run, status) : save_begin(run, begin_ns);
}

/* A run that begins anew would replace, and by --keep remove, what another one took hours for. */
static int save_spare(struct run *run)
{
  const char *dir = run->options.save;
  struct lade_checkpoint_state state = {0};
  struct lade_error why = {0};
  char path[PATH_MAX];
  if (run->options.session.resume || run->info.step > 0)
    return 0;
  int status = lade_checkpoint_find(dir, path, sizeof(path), &why);
  if (!status)
    status = lade_checkpoint_read_state(path, &state, &why);
  if (status == -ENOENT || (!status && state.step == 0))
    return 0;
  if (status)
    return lade_error_set(&run->error, status, "--save %.200s: %s; for a new run name another directory", dir,
                          why.text);
  return lade_error_set(&run->error, -EINVAL, "--save %s has a run's checkpoint of step %lld: --resume %s goes on with "
                        "it; for a new run name another directory, or remove that one", dir, (long long)state.step,
                        dir);
}

/*
 * Before a session is opened, which may take long and publishes a first state. Where there is durable state already,
 * only the session knows whether it goes on.
 */
static int save_spare_early(struct run *run)
{
  const struct lade_session_params *session = &run->options.session;
  char path[PATH_MAX];
  if (!run->options.save || !job_is_first(&run->job))
    return 0;
  if (session->is_durable && session->store) {
    snprintf(path, sizeof(path), "%s/" LADE_DURABLE_DATA, session->store);
    if (access(path, F_OK) == 0)
      return 0;
  }
  return save_spare(run);
}

/*
 * The directory of --save, ours alone, and in it the configuration of this run as --config reads it. Room that a first
 * save would not find is refused now: the save may come at the end only.
 */
static int save_prepare(struct run *run)
{
  if (!run->options.save || !job_is_first(&run->job))
    return 0;
  int spared = save_spare(run);
  if (spared)
    return spared;
  char *text = config_write(&run->options, run->options.verb);
  int status = text ? claim_take(run->options.save, text, &run->claim_fd, &run->error) : -ENOMEM;
  free(text);
  return status ? status : lade_session_check_save_room(run->session, run->options.save, &run->error);
}

/*
 * All ranks stop after the same step, whichever of them was told to; and after the same step they see what a save
 * beside the steps came to. One number says both: a run that stops finishes its saves anyhow, so signals come first.
 */
static int ends_agree(struct run *run)
{
  const int own = 2 * signals_get() + lade_session_has_saved(run->session);
  int most = 0;
  int status = lade_session_agree(run->session, own, &most, &run->error);
  run->stop_signal = most / 2;
  const bool is_last = run->stop_signal || run->info.step >= run->options.session.steps;
  run->has_saved = !is_last && most % 2;
  return status;
}

/* The step of all ranks is over: what it came to. */
static void step_tell(struct run *run, const struct lade_step_report *report)
{
  run->train_loss = report->loss;
  history_add(&run->history, report);
  log_step(run, report);
  progress_step(&run->progress, &run->info, report);
}

/* It is told once all have met after it: a rank that dies in it may leave the others a loss of no meaning. */
static int step(struct run *run)
{
  struct lade_step_report report;
  struct board *board = job_is_first(&run->job) ? run->job.board : NULL;
  if (board && atomic_load(&board->first_step) < 0) {
    atomic_store(&board->begun_ns, lade_now_ns());
    atomic_store(&board->first_step, run->info.step);
  }
  int status = lade_session_step(run->session, &report, &run->error);
  if (status)
    return status;
  lade_session_get_info(run->session, &run->info);
  if (board)
    atomic_store(&board->n_steps, run->info.step);
  if (run->options.device == DEVICE_DRY)
    report.loss = report.grad_norm = NAN;
  status = ends_agree(run);
  if (status)
    return status;
  step_tell(run, &report);
  return run->has_saved ? save_finish(run) : 0;
}

static bool is_due(int64_t step, int64_t every)
{
  return every > 0 && step % every == 0;
}

/* By the first rank's clock, at all of them. */
static int save_if_due(struct run *run)
{
  int is_due_now = pace_is_due(&run->pace, run->info.step, lade_now_ns()), status = 0;
  if (run->pace.every == PACE_AUTO)
    status = lade_session_agree(run->session, job_is_first(&run->job) && is_due_now, &is_due_now, &run->error);
  return status || !is_due_now ? status : save(run);
}

static int loop(struct run *run)
{
  const struct options *options = &run->options;
  int status = evaluate(run);
  if (!status)
    status = ends_agree(run);
  while (!status && run->info.step < options->session.steps && !run->stop_signal) {
    status = step(run);
    if (!status && is_due(run->info.step, options->eval_every))
      status = evaluate(run);
    if (!status)
      status = save_if_due(run);
  }
  if (!status && !run->stop_signal)
    status = evaluate(run);
  if (!status)
    status = save(run);
  return status ? status : save_finish(run);
}

/* ---- the end ---- */

static int summary_make(struct run *run, struct summary *summary)
{
  *summary = (struct summary){.info = run->info, .dtype = run->options.session.dtype,
                              .is_dry = run->options.device == DEVICE_DRY, .train_loss = run->train_loss,
                              .val_loss = run->val_loss};
  history_medians(&run->history, summary->seconds);
  return summary->is_dry ? 0 : lade_session_params_digest(run->session, &summary->params_digest, &run->error);
}

/* What one rank of a job may take and has to is, for the job, the most of any. */
static int budgets_gather(struct run *run, struct lade_session_info *info)
{
  uint64_t *budgets[] = {&info->budget_bytes, &info->bounds.min_bytes, &info->bounds.lower_bound_bytes,
                         &info->bounds.unconstrained_bytes};
  int status = 0;
  for (size_t i = 0; i < LADE_COUNT(budgets) && !status; i++) {
    double most = 0; /* bytes are exact in it up to 2^53 */
    status = lade_session_most(run->session, (double)*budgets[i], &most, &run->error);
    *budgets[i] = (uint64_t)most;
  }
  return status;
}

/* The first rank's, once all have said what they took. */
static int summary_tell(struct run *run, struct summary *summary)
{
  json_t *object = summary_json(summary);
  if (!object)
    return -ENOMEM;
  log_event(run, json_incref(object));
  if (run->options.is_json)
    return json_print(object);
  json_decref(object);
  summary_print(summary, stdout);
  return 0;
}

static int summarize(struct run *run)
{
  struct summary summary;
  const size_t n = (size_t)run->info.layout.mesh.world;
  uint64_t *peaks = calloc(2 * n, sizeof(*peaks));
  int status = peaks ? summary_make(run, &summary) : -ENOMEM;
  summary.bubble = NAN;
  if (!status && run->job.world)
    status = lade_session_most(run->session, history_bubble(summary.seconds), &summary.bubble, &run->error);
  if (!status && run->job.world)
    status = lade_session_gather_peaks(run->session, peaks, peaks + n, &run->error);
  if (!status && run->job.world)
    status = budgets_gather(run, &summary.info);
  if (!status && run->job.world) {
    summary.planned_peaks = peaks;
    summary.measured_peaks = peaks + n;
  }
  if (!status && job_is_first(&run->job))
    status = summary_tell(run, &summary);
  free(peaks);
  return status;
}

/* After a signal: where the run stands and the line that goes on with it. */
static void interrupted_print(struct run *run)
{
  log_event(run, json_pack("{s:s, s:I, s:i}", "event", "interrupted", "step", (json_int_t)run->info.step, "signal",
                           run->stop_signal));
  if (run->options.session.is_durable && run->options.device != DEVICE_DRY) {
    fprintf(stderr, "lade train: stopped after step %lld, which is kept in %s; the same command goes on from there\n",
            (long long)run->info.step, run->options.session.store);
    return;
  }
  if (!run->options.save) {
    fprintf(stderr, "lade train: stopped after step %lld; nothing was saved (--save DIR does that)\n",
            (long long)run->info.step);
    return;
  }
  fprintf(stderr, "lade train: stopped after step %lld and saved; go on with:\n  %s",
          (long long)run->info.step, program_invocation_name);
  if (run->job.world)
    fprintf(stderr, " launch -n %d --", run->job.launch.world);
  fputs(" train", stderr);
  go_on_words_print(&run->options, stderr);
  char resume[PATH_MAX + 16], path[PATH_MAX];
  snprintf(resume, sizeof(resume), "--resume=%s", go_on_place(run->options.save, run->kept_step, path));
  word_print(stderr, resume);
  fputc('\n', stderr);
}

/* Before step 0: what the run takes of the drive, in room and in bandwidth. */
static void drive_say(struct run *run)
{
  const struct lade_session_info *info = &run->info;
  char room[32], moved[32], rate[32], most[32];
  uint64_t bytes = info->store_read_bytes + info->store_written_bytes;
  if (!info->store_bytes || info->plan->predicted_ns <= 0)
    return;
  progress_say(&run->progress, "drive: %s reserved; a step moves %s, %s/s of the %s/s that it does",
               lade_size_format(info->store_bytes, room, sizeof(room)), lade_size_format(bytes, moved, sizeof(moved)),
               lade_size_format((uint64_t)((double)bytes / (double)info->plan->predicted_ns * 1e9), rate, sizeof(rate)),
               lade_size_format((uint64_t)drive_rate(info), most, sizeof(most)));
}

/* ---- together ---- */

/* What the loop below does together with the others, so that all must do it after the same steps. */
static void choices_apply(struct run *run)
{
  const struct options *options = &run->options;
  run->choices[0] = (struct lade_session_choice){"--eval-every", options->eval_every};
  run->choices[1] = (struct lade_session_choice){"--save-every", options->save ? options->save_every : 0};
  run->choices[2] = (struct lade_session_choice){"--save given (1) or not (0):", options->save != NULL};
  run->choices[3] = (struct lade_session_choice){"--keep", options->keep};
  run->options.session.choices = run->choices;
  run->options.session.n_choices = LADE_COUNT(run->choices);
}

/* What a rank of several does differently: it shares its node, and the first speaks for all. */
static void ranks_apply(struct run *run)
{
  struct lade_session_params *session = &run->options.session;
  const struct lade_launch *launch = &run->job.launch;
  session->world = run->job.world;
  session->n_node_ranks = launch->world > 1 ? LADE_MAX(launch->local_world, 0) : 0; /* srun does not say: counted */
  if (!session->n_threads && launch->world > 1) /* srun gives each task processors of its own */
    session->n_threads = LADE_MAX(lade_cpu_count() / LADE_MAX(launch->local_world, 1), 1);
  run->options.is_quiet = run->options.is_quiet || !job_is_first(&run->job);
}

/*
 * A start after a failure goes on from the newest checkpoint of the job, or begins as the first did where there is none
 * (those of another run may be there); perhaps on fewer ranks. One that cannot be read ends the start: to begin anew
 * would in the end remove those that can.
 */
static int restart_apply(struct run *run)
{
  struct lade_session_params *session = &run->options.session;
  const struct board *board = run->job.board;
  if (!board || !board->n_restarts)
    return 0;
  if (board->is_layout_given)
    session->layout = board->layout;
  const int64_t saved = board_find_save(board);
  int status = saved < 0 ? 0 : lade_checkpoint_path(board->places[BOARD_SAVE], saved, run->own, &run->error);
  if (!status && saved >= 0) {
    session->resume = run->own;
    session->init = NULL;
  }
  return status;
}

/* The absolute @path into @place; none and too long ones leave it empty. */
static void place_fill(char place[PATH_MAX], const char *path)
{
  char here[PATH_MAX] = "";
  const bool is_relative = path && path[0] != '/';
  if (!path || (is_relative && !getcwd(here, sizeof(here))) || strlen(here) + 1 + strlen(path) >= PATH_MAX)
    return;
  stpcpy(stpcpy(stpcpy(place, here), is_relative ? "/" : ""), path);
}

/* The words that go on with this run; too many leave them empty. */
static void words_fill(char words[BOARD_WORDS_BYTES], const struct options *options)
{
  char *text = NULL;
  size_t n = 0;
  FILE *file = open_memstream(&text, &n);
  if (!file)
    return;
  go_on_words_print(options, file);
  if (fclose(file) == 0 && n < BOARD_WORDS_BYTES)
    memcpy(words, text, n + 1);
  free(text);
}

/* What the launcher must know to start again; before anything can be lost, which is before ranks meet. */
static void board_fill(struct run *run)
{
  struct board *board = run->job.board;
  const struct lade_session_params *session = &run->options.session;
  if (!board || !job_is_first(&run->job))
    return;
  if (!board->is_layout_given)
    board->layout = session->layout;
  board->layout.struct_size = sizeof(board->layout);
  board->n_rows = session->batch;
  board->micro_rows = session->micro_batch;
  place_fill(board->places[BOARD_SAVE], run->options.save);
  place_fill(board->places[BOARD_RESUME], session->resume);
  words_fill(board->words, &run->options);
}

static int step_refuse(struct run *run, const char *option, const char *place, int64_t step)
{
  return lade_error_set(&run->error, -EINVAL, "--%s %s is at step %lld, past --steps %lld", option, place,
                        (long long)step, (long long)run->options.session.steps);
}

/* Is there a step left to go on with? Asked first, as all else that a session has to say of it would be of no use. */
static int resume_check(struct run *run)
{
  const char *place = run->options.session.resume;
  struct lade_checkpoint_state state = {0};
  char path[PATH_MAX];
  if (!place || run->options.device == DEVICE_DRY || lade_checkpoint_find(place, path, sizeof(path), NULL) ||
      lade_checkpoint_read_state(path, &state, NULL)) /* which the session tells */
    return 0;
  return state.step > run->options.session.steps ? step_refuse(run, "resume", place, state.step) : 0;
}

/* The dry device has no communicators: a rank that walks its program there meets nobody. */
static int dry_check(struct run *run)
{
  const int world = run->job.launch.world;
  if (run->options.device != DEVICE_DRY || world == 1)
    return 0;
  return lade_error_set(&run->error, -EINVAL, "--device dry walks one rank's program in one process, and %d were "
                        "started; without a launcher it is the first rank's, and lade plan --device dry has them all",
                        world);
}

static int begin(struct run *run)
{
  struct options *options = &run->options;
  options->session.notice = notice_print;
  options->session.user = run;
  board_fill(run);
  int status = dry_check(run);
  if (!status)
    status = job_join(&run->job, options->comm_timeout_s, &run->error);
  if (!status && job_is_first(&run->job))
    status = outputs_check(options, &run->error);
  options->session.saves_beside = options->save && options->save_every != 0;
  run->pace = (struct pace){.every = options->save_every, .failure_seconds = options->mtbf_seconds};
  ranks_apply(run);
  choices_apply(run);
  if (!status)
    status = restart_apply(run);
  if (!status)
    status = resume_check(run);
  if (!status)
    status = save_spare_early(run);
  if (!status)
    status = lade_session_open(&options->session, &run->error, &run->session);
  if (status)
    return status;
  lade_session_get_info(run->session, &run->info);
  if (run->job.board && job_is_first(&run->job))
    atomic_store(&run->job.board->n_steps, run->info.step);
  if (run->info.step > options->session.steps)
    return step_refuse(run, "store", options->session.store, run->info.step);
  status = history_init(&run->history, options->session.steps - run->info.step);
  if (!status)
    status = save_prepare(run);
  return status ? status : log_open(run);
}

static int run_all(struct run *run)
{
  int status = begin(run);
  if (status)
    return status;
  progress_init(&run->progress, run->options.is_quiet, run->info.step, run->options.session.steps);
  drive_say(run);
  status = loop(run);
  progress_finish(&run->progress);
  if (!status && !run->stop_signal)
    status = summarize(run);
  if (!status && run->stop_signal && job_is_first(&run->job))
    interrupted_print(run);
  if (!status && run->options.timeline && job_is_first(&run->job)) /* last: its failure costs no result */
    status = timeline_write(run->options.timeline, &run->info, &run->error);
  return status;
}

/* Add to @error from where this run goes on. What --save has besides may be of another one, if ours went on itself. */
static void newest_tell(const struct run *run, struct lade_error *error)
{
  const char *save = run->options.save, *resume = run->options.session.resume;
  char path[PATH_MAX];
  const char *own = run->kept_step >= 0 ? go_on_place(save, run->kept_step, path) : resume ? "" : save;
  go_on_newest((const char *const[]){save ? own : NULL, resume}, 2, error);
}

int train_main(int argc, char **argv)
{
  struct run run = {.has_valid = true, .evaluated_step = -1, .saved_step = -1, .kept_step = -1, .pending_step = -1,
                    .claim_fd = -1, .train_loss = NAN, .val_loss = NAN};
  int status = job_read(&run.job, &run.error);
  int code = status ? exit_fail("train", status, &run.error)
                    : job_options_read(&run.job, VERB_TRAIN, argc, argv, &run.options);
  if (code == OPTIONS_GO) {
    signals_init();
    status = run_all(&run);
    if (status)
      save_settle(&run);
    struct lade_error error = run.error;
    int log_status = log_close(&run);
    if (!status && log_status) {
      status = log_status;
      error = run.error;
    }
    lade_session_close(run.session);
    if (is_apart(status) && !run.job.board && *error.text) /* our saver is through: it removes nothing any more */
      newest_tell(&run, &error);
    code = job_leave(&run.job, "train", status, &error);
    code = !status && run.stop_signal ? 128 + run.stop_signal : code;
    history_finish(&run.history);
    if (run.claim_fd >= 0)
      close(run.claim_fd);
  }
  options_finish(&run.options);
  return code;
}
