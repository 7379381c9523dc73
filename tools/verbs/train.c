/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade train`: a session and the loop around it.
 *
 * Nothing is written before the session is open, because opening it checks the user's input. After each step the loop
 * decides whether to evaluate, to save, or to stop because of a signal. A failure ends the loop with one line; earlier
 * saves stay.
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
#include "base/memory.h"
#include "offload/durable.h"
#include "parallel/comm.h"
#include "run/checkpoint.h"
#include "tools/cli/options.h"
#include "tools/cli/signals.h"
#include "tools/cli/terminal.h"
#include "tools/cli/verbs.h"
#include "tools/job/dir_lock.h"
#include "tools/job/job.h"
#include "tools/job/resume_command.h"
#include "tools/job/save_interval.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/page/run_page.h"
#include "tools/report/timeline.h"

#define LOG_DIGITS 17 /* doubles in logs read back as the same bits */

struct train_run {
  struct options options;
  struct job job;
  lade_session *session;
  struct lade_session_info info;
  struct progress progress;
  struct history history;
  struct save_interval interval;
  FILE *log;
  struct lade_session_choice choices[4];
  char own[PATH_MAX]; /* checkpoint of this job that a restart resumes from */
  int lock_fd; /* lock on the directory of --save; -1: none */
  bool has_valid; /* until an evaluation finds no such data */
  int64_t begun_save_ns; /* when the newest save took its values */
  int64_t evaluated_step, saved_step;
  int64_t kept_step; /* step of this run's newest checkpoint in --save; -1: none */
  int64_t pending_step; /* step of the async save in flight; -1: none */
  int stop_signal; /* signal that a rank received; 0: none */
  bool has_saved;  /* all ranks know that the async save has ended */
  double train_loss, val_loss;
  uint64_t resident_open_bytes; /* resident peak before step 0 */
  struct lade_error error;
};

static void notice_print(void *user, const char *line)
{
  const struct train_run *run = user;
  if (job_is_first(&run->job))
    message_print("train: note", line);
}

static bool is_stopping(void *user)
{
  return signals_get() != 0;
}

/* ---- the log ---- */

static void log_event(struct train_run *run, json_t *event)
{
  if (run->log && event) {
    json_dumpf(event, run->log, JSON_COMPACT | JSON_REAL_PRECISION(LOG_DIGITS));
    fputc('\n', run->log);
  }
  json_decref(event);
}

static void log_step(struct train_run *run, const struct lade_step_report *report)
{
  if (!run->log)
    return;
  double tokens = (double)(run->info.batch * run->info.seq_len), seconds = (double)report->wall_ns / 1e9;
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

/* Open the log; a resumed run appends to its log. */
static int log_open(struct train_run *run)
{
  const char *path = run->options.log;
  bool goes_on = run->options.session.resume || (run->options.session.is_durable && run->info.step > 0);
  if (!path || !job_is_first(&run->job))
    return 0;
  int status = output_open("log", path, goes_on, &run->error, &run->log);
  if (status)
    return status;
  setvbuf(run->log, NULL, _IOLBF, 1 << 16);
  log_event(run, json_pack("{s:s, s:o}", "event", "config", "options",
                           config_json(&run->options, run->options.verb)));
  if (ferror(run->log))
    return lade_error_set(&run->error, -EIO, "--log %s: it cannot be written: %s", path, strerror(errno));
  return 0;
}

static int log_close(struct train_run *run)
{
  if (!run->log)
    return 0;
  FILE *log = run->log;
  run->log = NULL;
  return output_close("log", run->options.log, log, &run->error);
}

/* ---- parts of the loop ---- */

static int evaluate(struct train_run *run)
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

/* Log that the save of @step is durable. */
static void log_save(struct train_run *run, int64_t step)
{
  run->kept_step = step;
  if (run->job.table && job_is_first(&run->job))
    job_status_save_end(run->job.table, step, run->begun_save_ns);
  json_t *event = json_pack("{s:s, s:I, s:o}", "event", "save", "step", (json_int_t)step, "dir",
                            json_text(run->options.save));
  json_object_set_new(event, "seconds", json_number(run->interval.save_seconds));
  if (run->interval.failure_seconds > 0)
    json_object_set_new(event, "interval_seconds", json_number(run->interval.interval_seconds));
  log_event(run, event);
}

/* Print the save interval once it is known. */
static void pace_say(struct train_run *run)
{
  if (run->interval.failure_seconds > 0)
    progress_say(&run->progress, "a save delays steps by %.3g s: with a failure every %g s, a save every %.3g s "
                 "loses the least time", run->interval.save_seconds, run->interval.failure_seconds,
                 run->interval.interval_seconds);
}

/*
 * Return the status of a save that failed with @status. --save was usable before step 0, so a directory that has
 * disappeared or lost its permissions is an I/O failure, not a usage mistake.
 */
static int save_status(struct train_run *run, int status)
{
  if (exit_code(status) != LADE_EXIT_USAGE || status == -EINVAL)
    return status;
  run->error.code = -EIO;
  return -EIO;
}

/* Wait for the save in flight, if any. */
static int save_finish(struct train_run *run)
{
  int status = lade_session_finish_saves(run->session, &run->error);
  if (!status && run->pending_step >= 0)
    log_save(run, run->pending_step);
  run->pending_step = -1;
  return save_status(run, status);
}

/* Save this step; steps have been held up since @begin_ns. */
static int save_begin(struct train_run *run, int64_t begin_ns)
{
  const struct options *options = &run->options;
  const bool is_first = run->saved_step < 0;
  run->begun_save_ns = lade_now_ns();
  if (run->job.table && job_is_first(&run->job))
    job_status_save_begin(run->job.table, run->info.step);
  int status = lade_session_save(run->session, options->save, (int)options->keep, &run->error);
  if (status)
    return save_status(run, status);
  save_interval_measure(&run->interval, begin_ns, lade_now_ns());
  if (is_first)
    pace_say(run);
  run->saved_step = run->info.step;
  if (run->info.is_async_saving)
    run->pending_step = run->info.step;
  else
    log_save(run, run->info.step);
  return 0;
}

/* End the run after the previous save failed with @status: save this step if possible. Return @status. */
static int save_last(struct train_run *run, int status)
{
  const struct lade_error first = run->error;
  char line[64];
  int last = lade_comm_has_failed(status) ? status : save_begin(run, lade_now_ns());
  if (!last)
    last = save_finish(run);
  snprintf(line, sizeof(line), "a save failed; step %lld is saved", (long long)run->info.step);
  if (!last)
    notice_print(run, line);
  run->error = first;
  return status;
}

/* Finish the save in flight after a failure: log it, or report why it failed. */
static void save_settle(struct train_run *run)
{
  const struct lade_error first = run->error;
  const int64_t step = run->pending_step;
  char line[sizeof(first.text) + 64];
  if (step < 0)
    return;
  int status = save_finish(run);
  if (status && !lade_comm_has_failed(status)) {
    snprintf(line, sizeof(line), "step %lld is not saved: %s", (long long)step, run->error.text);
    notice_print(run, line);
  }
  run->error = first;
}

static int save(struct train_run *run)
{
  if (!run->options.save || run->saved_step == run->info.step)
    return 0;
  const int64_t begin_ns = lade_now_ns();
  int status = save_finish(run);
  return status ? save_last(run, status) : save_begin(run, begin_ns);
}

/* Refuse a new run whose --save holds checkpoints, because it would replace them or remove them by --keep. */
static int save_spare(struct train_run *run)
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
  return lade_error_set(&run->error, -EINVAL, "--save %s has a run's checkpoint of step %lld: continue it with "
                        "--resume %s, or name another directory for a new run", dir, (long long)state.step,
                        dir);
}

/*
 * Check --save before the session opens, which may take long and publishes a first state. If durable state exists, only
 * the session knows whether it is resumed.
 */
static int save_spare_early(struct train_run *run)
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
 * Lock the directory of --save for this run, and write this run's configuration there, as --config reads it. A lack of
 * space for a first save is refused now, because the save may come only at the end.
 */
static int save_prepare(struct train_run *run)
{
  if (!run->options.save || !job_is_first(&run->job))
    return 0;
  int spared = save_spare(run);
  if (spared)
    return spared;
  char *text = config_write(&run->options, run->options.verb);
  int status = text ? dir_lock_take(run->options.save, text, &run->lock_fd, &run->error) : -ENOMEM;
  free(text);
  return status ? status : lade_session_check_save_room(run->session, run->options.save, &run->error);
}

/*
 * Agree on the step after which all ranks stop, whichever rank got the signal, and on the step after which an async
 * save has ended. One number carries both. Signals take precedence, because a stopping run finishes its saves in any
 * case.
 */
static int ends_agree(struct train_run *run)
{
  const int own = 2 * signals_get() + lade_session_has_saved(run->session);
  int max = 0;
  int status = lade_session_agree(run->session, own, &max, &run->error);
  run->stop_signal = max / 2;
  const bool is_last = run->stop_signal || run->info.step >= run->options.session.steps;
  run->has_saved = !is_last && max % 2;
  return status;
}

/* Report the step that all ranks have completed. */
static void step_tell(struct train_run *run, const struct lade_step_report *report)
{
  run->train_loss = report->loss;
  history_add(&run->history, report);
  log_step(run, report);
  progress_step(&run->progress, &run->info, report);
}

/*
 * Run one step. It is reported after the ranks have agreed, because a rank that dies in it may leave the others a
 * meaningless loss.
 */
static int step(struct train_run *run)
{
  struct lade_step_report report;
  struct job_status *table = job_is_first(&run->job) ? run->job.table : NULL;
  if (table && atomic_load(&table->first_step) < 0) {
    atomic_store(&table->begun_ns, lade_now_ns());
    atomic_store(&table->first_step, run->info.step);
  }
  int status = lade_session_step(run->session, &report, &run->error);
  if (status)
    return status;
  lade_session_get_info(run->session, &run->info);
  if (table)
    atomic_store(&table->n_steps, run->info.step);
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

/* Save if a save is due by the first rank's clock; all ranks follow it. */
static int save_if_due(struct train_run *run)
{
  int is_due_now = save_interval_is_due(&run->interval, run->info.step, lade_now_ns()), status = 0;
  if (run->interval.every == SAVE_INTERVAL_AUTO)
    status = lade_session_agree(run->session, job_is_first(&run->job) && is_due_now, &is_due_now, &run->error);
  return status || !is_due_now ? status : save(run);
}

static int loop(struct train_run *run)
{
  const struct options *options = &run->options;
  int status = ends_agree(run);
  if (!status && !run->stop_signal)
    status = evaluate(run);
  if (!status && !run->stop_signal)
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

static int summary_make(struct train_run *run, struct summary *summary)
{
  *summary = (struct summary){.info = run->info, .dtype = run->options.session.dtype,
                              .is_dry = run->options.device == DEVICE_DRY, .train_loss = run->train_loss,
                              .val_loss = run->val_loss};
  summary->is_described = run->options.session.machine != NULL;
  summary->resident_peak_bytes = summary->is_dry ? 0 : lade_memory_resident_peak();
  summary->resident_open_bytes = summary->is_dry ? 0 : run->resident_open_bytes;
  history_medians(&run->history, summary->seconds);
  return summary->is_dry ? 0 : lade_session_params_digest(run->session, &summary->params_digest, &run->error);
}

/* Set budgets and bounds of the job: the largest value over its ranks. */
static int budgets_gather(struct train_run *run, struct lade_session_info *info)
{
  uint64_t *budgets[] = {&info->budget_bytes, &info->bounds.min_bytes, &info->bounds.lower_bound_bytes,
                         &info->bounds.unconstrained_bytes};
  int status = 0;
  for (size_t i = 0; i < LADE_COUNT(budgets) && !status; i++) {
    double max = 0; /* holds byte counts exactly up to 2^53 */
    status = lade_session_max(run->session, (double)*budgets[i], &max, &run->error);
    *budgets[i] = (uint64_t)max;
  }
  return status;
}

/* Set the resident peak of the job: the largest of its processes'. */
static int resident_gather(struct train_run *run, struct summary *summary)
{
  double max = 0;
  int status = lade_session_max(run->session, (double)summary->resident_peak_bytes, &max, &run->error);
  summary->resident_peak_bytes = (uint64_t)max;
  return status;
}

/* Print the first rank's summary, after all ranks have gathered their peaks. */
static int summary_tell(struct train_run *run, struct summary *summary)
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

static int summarize(struct train_run *run)
{
  struct summary summary;
  const size_t n = (size_t)run->info.layout.mesh.world;
  uint64_t *peaks = calloc(2 * n, sizeof(*peaks));
  int status = peaks ? summary_make(run, &summary) : -ENOMEM;
  summary.bubble = NAN;
  if (!status && run->job.world)
    status = lade_session_max(run->session, history_bubble(summary.seconds), &summary.bubble, &run->error);
  if (!status && run->job.world)
    status = lade_session_gather_peaks(run->session, peaks, peaks + n, &run->error);
  if (!status && run->job.world)
    status = budgets_gather(run, &summary.info);
  if (!status && run->job.world)
    status = resident_gather(run, &summary);
  if (!status && run->job.world) {
    summary.planned_peaks = peaks;
    summary.measured_peaks = peaks + n;
  }
  if (!status && job_is_first(&run->job))
    status = summary_tell(run, &summary);
  free(peaks);
  return status;
}

/* Print, after a signal, the step reached and the command that resumes. */
static void interrupted_print(struct train_run *run)
{
  log_event(run, json_pack("{s:s, s:I, s:i}", "event", "interrupted", "step", (json_int_t)run->info.step, "signal",
                           run->stop_signal));
  if (run->options.session.is_durable && run->options.device != DEVICE_DRY) {
    char store[PATH_MAX];
    fprintf(stderr, "lade train: stopped after step %lld, which is kept in %s; the same command continues from there\n",
            (long long)run->info.step, text_escape(run->options.session.store, store, sizeof(store)));
    return;
  }
  if (!run->options.save) {
    fprintf(stderr, "lade train: stopped after step %lld; nothing was saved (--save DIR does that)\n",
            (long long)run->info.step);
    return;
  }
  fprintf(stderr, "lade train: stopped after step %lld and saved; continue with:\n  %s",
          (long long)run->info.step, program_invocation_name);
  if (run->job.world)
    fprintf(stderr, " launch -n %d --", run->job.launch.world);
  fputs(" train", stderr);
  resume_command_words_print(&run->options, stderr);
  char resume[PATH_MAX + 16], path[PATH_MAX];
  snprintf(resume, sizeof(resume), "--resume=%s", resume_command_place(run->options.save, run->kept_step, path));
  word_print(stderr, resume);
  fputc('\n', stderr);
}

/* Print, before step 0, the space and bandwidth that the run takes from the drive. */
static void drive_say(struct train_run *run)
{
  const struct lade_session_info *info = &run->info;
  char room[32], moved[32], rate[32], max[64];
  uint64_t bytes = info->store_read_bytes + info->store_written_bytes;
  if (!info->store_bytes || info->plan->predicted_ns <= 0)
    return;
  progress_say(&run->progress, "drive: %s reserved; a step moves %s, %s/s of the %s",
               lade_size_format(info->store_bytes, room, sizeof(room)), lade_size_format(bytes, moved, sizeof(moved)),
               lade_size_format((uint64_t)((double)bytes / (double)info->plan->predicted_ns * 1e9), rate, sizeof(rate)),
               drive_rate_format(info, max, sizeof(max)));
}

/* ---- the verb ---- */

/* Set the options of the loop that all ranks must share, because ranks make collective calls after the same steps. */
static void choices_apply(struct train_run *run)
{
  const struct options *options = &run->options;
  run->choices[0] = (struct lade_session_choice){"--eval-every", options->eval_every};
  run->choices[1] = (struct lade_session_choice){"--save-every", options->save ? options->save_every : 0};
  run->choices[2] = (struct lade_session_choice){"--save given (1) or not (0):", options->save != NULL};
  run->choices[3] = (struct lade_session_choice){"--keep", options->keep};
  run->options.session.choices = run->choices;
  run->options.session.n_choices = LADE_COUNT(run->choices);
}

/* Set the options of one rank of several: it shares its node, and only the first rank prints. */
static void ranks_apply(struct train_run *run)
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
 * Prepare a restart. It resumes from the newest checkpoint of the job, or begins as the first start did if there is
 * none; checkpoints of other runs are ignored. It may have fewer ranks. An unreadable checkpoint ends the start,
 * because a new beginning would in the end remove the readable ones.
 */
static int restart_apply(struct train_run *run)
{
  struct lade_session_params *session = &run->options.session;
  const struct job_status *table = run->job.table;
  if (!table || !table->n_restarts)
    return 0;
  if (table->is_layout_given)
    session->layout = table->layout;
  const int64_t saved = job_status_find_save(table);
  int status = saved < 0 ? 0 : lade_checkpoint_path(table->places[JOB_STATUS_SAVE], saved, run->own, &run->error);
  if (!status && saved >= 0) {
    session->resume = run->own;
    session->init = NULL;
  }
  return status;
}

/* Write the absolute @path into @place; empty if there is none or it is too long. */
static void place_fill(char place[PATH_MAX], const char *path)
{
  char here[PATH_MAX] = "";
  const bool is_relative = path && path[0] != '/';
  if (!path || (is_relative && !getcwd(here, sizeof(here))) || strlen(here) + 1 + strlen(path) >= PATH_MAX)
    return;
  stpcpy(stpcpy(stpcpy(place, here), is_relative ? "/" : ""), path);
}

/* Write the arguments that resume this run into @words; empty if they are too long. */
static void words_fill(char words[JOB_STATUS_WORDS_BYTES], const struct options *options)
{
  char *text = NULL;
  size_t n = 0;
  FILE *file = open_memstream(&text, &n);
  if (!file)
    return;
  resume_command_words_print(options, file);
  if (fclose(file) == 0 && n < JOB_STATUS_WORDS_BYTES)
    memcpy(words, text, n + 1);
  free(text);
}

/* Fill in the facts that the launcher needs for a restart, before ranks meet and any can be lost. */
static void job_status_fill(struct train_run *run)
{
  struct job_status *table = run->job.table;
  const struct lade_session_params *session = &run->options.session;
  if (!table || !job_is_first(&run->job))
    return;
  if (!table->is_layout_given)
    table->layout = session->layout;
  table->layout.struct_size = sizeof(table->layout);
  table->n_rows = session->batch;
  table->micro_rows = session->micro_batch;
  place_fill(table->places[JOB_STATUS_SAVE], run->options.save);
  place_fill(table->places[JOB_STATUS_RESUME], session->resume);
  words_fill(table->words, &run->options);
}

static int step_refuse(struct train_run *run, const char *option, const char *place, int64_t step)
{
  return lade_error_set(&run->error, -EINVAL, "--%s %s is at step %lld, past --steps %lld", option, place,
                        (long long)step, (long long)run->options.session.steps);
}

/*
 * Check that a step is left after the resumed one. This check comes first, because without a step left the session's
 * other errors do not matter.
 */
static int resume_check(struct train_run *run)
{
  const char *place = run->options.session.resume;
  struct lade_checkpoint_state state = {0};
  char path[PATH_MAX];
  if (!place || run->options.device == DEVICE_DRY || lade_checkpoint_find(place, path, sizeof(path), NULL) ||
      lade_checkpoint_read_state(path, &state, NULL)) /* the session reports the error */
    return 0;
  return state.step > run->options.session.steps ? step_refuse(run, "resume", place, state.step) : 0;
}

/* Refuse the dry device for several ranks, because it has no communicators. */
static int dry_check(struct train_run *run)
{
  const int world = run->job.launch.world;
  if (run->options.device != DEVICE_DRY || world == 1)
    return 0;
  return lade_error_set(&run->error, -EINVAL, "--device dry executes one rank in one process, and the launcher started "
                        "%d: start it without a launcher, or use lade plan --device dry for all ranks", world);
}

/* Note before step 0 that --machine describes the machine of the predictions, and not of the measurements. */
static void machine_note(struct train_run *run)
{
  char line[256];
  if (!run->options.session.machine || run->options.device == DEVICE_DRY || run->options.is_quiet)
    return; /* the summary says it in any case */
  snprintf(line, sizeof(line), "--machine %.64s: the plan and the predicted times are of that machine; the run, and "
           "what it measures, is on this one", run->options.session.machine);
  notice_print(run, line);
}

static int begin(struct train_run *run)
{
  struct options *options = &run->options;
  options->session.notice = notice_print;
  options->session.is_stopping = is_stopping;
  options->session.user = run;
  job_status_fill(run);
  int status = dry_check(run);
  if (!status)
    status = job_join(&run->job, options->comm_timeout_s, &run->error);
  if (!status && job_is_first(&run->job))
    status = outputs_check(options, &run->error);
  options->session.async_save = options->save && options->save_every != 0;
  run->interval = (struct save_interval){.every = options->save_every, .failure_seconds = options->mtbf_seconds};
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
  machine_note(run);
  if (run->job.table && job_is_first(&run->job))
    atomic_store(&run->job.table->n_steps, run->info.step);
  if (run->info.step > options->session.steps)
    return step_refuse(run, "store", options->session.store, run->info.step);
  status = history_init(&run->history, options->session.steps - run->info.step);
  if (!status)
    status = save_prepare(run);
  return status ? status : log_open(run);
}

/* Report a signal that ended the opening, at this rank or another: the opening's -EINTR. */
static int opening_stop(struct train_run *run)
{
  run->stop_signal = signals_get() ? signals_get() : SIGTERM;
  if (job_is_first(&run->job))
    fputs("lade train: stopped before its first step; no state has changed, and the same command starts again\n",
          stderr);
  return 0;
}

static int run_all(struct train_run *run)
{
  const int64_t begun_ns = lade_now_ns();
  int status = begin(run);
  if (status)
    return status == -EINTR && (signals_get() || run->job.world) ? opening_stop(run) : status;
  run->resident_open_bytes = lade_memory_resident_peak();
  lade_memory_resident_reset(); /* measuring took memory that the run does not need, as on the device */
  progress_init(&run->progress, run->options.is_quiet, run->info.step, run->options.session.steps);
  drive_say(run);
  status = loop(run);
  progress_finish(&run->progress);
  const bool is_done = !status && !run->stop_signal; /* equal on all ranks; only the first rank's output can fail */
  if (is_done)
    status = summarize(run);
  if (!status && run->stop_signal && job_is_first(&run->job))
    interrupted_print(run);
  if (!status && run->options.timeline && job_is_first(&run->job)) /* last, because its failure costs no result */
    status = timeline_write(run->options.timeline, &run->info, &run->error);
  if (!status && run->options.html && job_is_first(&run->job))
    status = run_page_write(run->options.html, &run->info, &run->error);
  if (!status && is_done && run->job.table && job_is_first(&run->job) && fflush(stdout) == 0)
    atomic_store(&run->job.table->has_results, 1);
  if (is_done && run->job.world) /* a cache's defects are no errors of a run that is done */
    (void)lade_session_keep_links(run->session, lade_now_ns() - begun_ns, NULL);
  return status;
}

/*
 * Append to @error the checkpoint to resume from. If this run was itself resumed, other checkpoints in --save may be of
 * another run.
 */
static void newest_tell(const struct train_run *run, struct lade_error *error)
{
  const char *save = run->options.save, *resume = run->options.session.resume;
  char path[PATH_MAX];
  const char *own = run->kept_step >= 0 ? resume_command_place(save, run->kept_step, path) : resume ? "" : save;
  resume_command_newest((const char *const[]){save ? own : NULL, resume}, 2, error);
}

int train_main(int argc, char **argv)
{
  struct train_run run = {.has_valid = true, .evaluated_step = -1, .saved_step = -1, .kept_step = -1,
                          .pending_step = -1, .lock_fd = -1, .train_loss = NAN, .val_loss = NAN};
  int status = job_read(&run.job, VERB_TRAIN, &run.error);
  int code = status ? exit_fail("train", status, &run.error)
                    : job_options_read(&run.job, argc, argv, &run.options);
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
    if (lade_comm_has_failed(status) && !run.job.table && *error.text) /* this run's saver has ended and removes no more
                                                              checkpoints */
      newest_tell(&run, &error);
    code = job_leave(&run.job, status, &error);
    code = !status && run.stop_signal ? 128 + run.stop_signal : code;
    history_finish(&run.history);
    if (run.lock_fd >= 0)
      close(run.lock_fd);
  }
  options_finish(&run.options);
  return code;
}
