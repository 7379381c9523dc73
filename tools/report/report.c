/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the results of a run. Times are medians, because on a shared machine a mean mostly measures the other users'
 * load. Every predicted figure stands next to the measured one.
 */
#include "tools/report/report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"

#define HISTORY_MAX 65536 /* steps of which medians are taken: some MB */
#define RESULT_DIGITS 9 /* of a printed result; logs have all 17 */
#define SCREEN_COLUMNS 100
#define ENTRY_COLUMNS 40 /* width of one axis's bytes and calls, with its name */
#define RATED_BYTES 600e12 /* rated endurance of consumer drives of 1 TB, e.g. Samsung's 980 PRO data sheet */

/* ---- history ---- */

int history_init(struct history *history, int64_t n_steps)
{
  *history = (struct history){.capacity = LADE_MAX(1, LADE_MIN(n_steps, HISTORY_MAX))};
  for (int i = 0; i < HISTORY_COLUMNS; i++) {
    history->ns[i] = calloc((size_t)history->capacity, sizeof(*history->ns[i]));
    if (!history->ns[i])
      return -ENOMEM;
  }
  return 0;
}

void history_finish(struct history *history)
{
  for (int i = 0; i < HISTORY_COLUMNS; i++)
    free(history->ns[i]);
}

void history_add(struct history *history, const struct lade_step_report *report)
{
  int64_t at = history->n++ % history->capacity;
  history->ns[0][at] = report->wall_ns;
  for (int queue = 0; queue < LADE_N_QUEUES; queue++) {
    history->ns[1 + queue][at] = report->busy_ns[queue];
    history->ns[HISTORY_STALLS + queue][at] = report->stall_ns[queue];
  }
}

static int ns_compare(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

void history_medians(const struct history *history, double ret_seconds[HISTORY_COLUMNS])
{
  int64_t n = LADE_MIN(history->n, history->capacity);
  bool has_first = history->n <= history->capacity && n > 1;
  int64_t *sorted = malloc((size_t)LADE_MAX(n, 1) * sizeof(*sorted));
  for (int i = 0; i < HISTORY_COLUMNS; i++) {
    int64_t n_sorted = n - has_first;
    ret_seconds[i] = 0;
    if (!sorted || n_sorted < 1)
      continue;
    memcpy(sorted, history->ns[i] + has_first, (size_t)n_sorted * sizeof(*sorted));
    qsort(sorted, (size_t)n_sorted, sizeof(*sorted), ns_compare);
    ret_seconds[i] = (double)(sorted[(n_sorted - 1) / 2] + sorted[n_sorted / 2]) / 2e9;
  }
  free(sorted);
}

double history_bubble(const double seconds[HISTORY_COLUMNS])
{
  const double waited = seconds[HISTORY_STALLS + LADE_Q_SEND] + seconds[HISTORY_STALLS + LADE_Q_RECV];
  return seconds[0] > waited ? waited / (seconds[0] - waited) : 0;
}

/* ---- JSON ---- */

json_t *json_number(double value)
{
  return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_text(const char *text)
{
  json_t *string = json_string(text);
  if (string)
    return string;
  char *mended = malloc(3 * strlen(text) + 1), *to = mended;
  if (!mended)
    return NULL;
  for (; *text; text++)
    to = (unsigned char)*text < 0x80 ? (*to = *text, to + 1) : stpcpy(to, "\xef\xbf\xbd");
  *to = 0;
  string = json_string(mended);
  free(mended);
  return string;
}

json_t *json_bytes(uint64_t bytes)
{
  return json_integer((json_int_t)LADE_MIN(bytes, (uint64_t)INT64_MAX));
}

json_t *json_digest(uint64_t digest)
{
  return json_sprintf("%016llx", (unsigned long long)digest);
}

json_t *json_queue_seconds(const double seconds[LADE_N_QUEUES], const struct lade_layout *layout)
{
  json_t *object = json_object();
  const int n = layout->mesh.world > 1 ? LADE_N_QUEUES : LADE_Q_COMM_TP;
  for (int queue = 0; queue < n; queue++)
    json_object_set_new(object, lade_queue_name((enum lade_queue_id)queue), json_number(seconds[queue]));
  return object;
}

int json_print(json_t *object)
{
  if (!object)
    return -ENOMEM;
  int status = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(RESULT_DIGITS));
  json_decref(object);
  putchar('\n');
  return status && !ferror(stdout) ? -ENOMEM : 0;
}

static double rate(const struct summary *summary)
{
  double tokens = (double)(summary->info.batch * summary->info.seq_len);
  return summary->seconds[0] > 0 ? tokens / summary->seconds[0] : NAN;
}

static double speed_of_light(const struct summary *summary)
{
  double roofline_ns = summary->info.roofline_step_ns;
  return roofline_ns > 0 && summary->seconds[0] > 0 ? roofline_ns / 1e9 / summary->seconds[0] : NAN;
}

static void shape_set(json_t *object, const struct summary *summary)
{
  const struct lade_session_info *info = &summary->info;
  json_object_set_new(object, "model", json_text(info->model.name));
  json_object_set_new(object, "dtype", json_string(lade_dtype_name(summary->dtype)));
  json_object_set_new(object, "batch", json_integer(info->batch));
  json_object_set_new(object, "micro_batch", json_integer(info->micro_batch));
  json_object_set_new(object, "seq", json_integer(info->seq_len));
  json_object_set_new(object, "parameters", json_integer(info->n_params));
}

static const char *const taker_names[LADE_CUDA_N_TAKERS + 1] = {"context", "kernels", "nccl", "others"};

/*
 * Get the bytes in use on the GPU outside the arena, by taker; the last entry is the bytes that no mark accounts for.
 */
static void takers_get(const struct lade_session_info *info, uint64_t ret_bytes[LADE_CUDA_N_TAKERS + 1])
{
  uint64_t bytes = 0;
  for (int taker = 0; taker < LADE_CUDA_N_TAKERS; taker++)
    bytes += ret_bytes[taker] = info->taken_bytes[taker];
  ret_bytes[LADE_CUDA_N_TAKERS] = info->outside_bytes - LADE_MIN(bytes, info->outside_bytes);
}

void outside_set(json_t *object, const struct lade_session_info *info)
{
  uint64_t bytes[LADE_CUDA_N_TAKERS + 1];
  json_t *takers = json_object();
  takers_get(info, bytes);
  for (int taker = 0; taker <= LADE_CUDA_N_TAKERS; taker++)
    json_object_set_new(takers, taker_names[taker], json_bytes(bytes[taker]));
  json_object_set_new(object, "outside_bytes", json_bytes(info->outside_bytes));
  json_object_set_new(object, "outside", takers);
  json_object_set_new(object, "outside_grown_bytes", json_bytes(info->grown_bytes));
}

static void memory_set(json_t *object, const struct lade_session_info *info)
{
  json_object_set_new(object, "budget_bytes", json_bytes(info->budget_bytes));
  json_object_set_new(object, "planned_peak_bytes", json_bytes(info->plan->peak_bytes[LADE_DEVICE]));
  json_object_set_new(object, "measured_peak_bytes", json_bytes(info->measured_peak_bytes));
  outside_set(object, info);
  json_object_set_new(object, "host_bytes", json_bytes(info->host_bytes));
  json_object_set_new(object, "store_bytes", json_bytes(info->store_bytes));
  json_object_set_new(object, "store_read_bytes_per_step", json_bytes(info->store_read_bytes));
  json_object_set_new(object, "store_written_bytes_per_step", json_bytes(info->store_written_bytes));
  if (info->store_bytes && info->executor) {
    json_object_set_new(object, "measured_store_read_bytes_per_step", json_bytes(info->measured_read_bytes));
    json_object_set_new(object, "measured_store_written_bytes_per_step", json_bytes(info->measured_written_bytes));
  }
  json_object_set_new(object, "unconstrained_bytes", json_bytes(info->bounds.unconstrained_bytes));
  json_object_set_new(object, "min_budget_bytes", json_bytes(info->bounds.min_bytes));
  json_object_set_new(object, "lower_bound_bytes", json_bytes(info->bounds.lower_bound_bytes));
}

static void numbers_set(json_t *object, const struct summary *summary)
{
  const struct lade_session_info *info = &summary->info;
  json_object_set_new(object, "steps", json_integer(info->step));
  json_object_set_new(object, "train_loss", json_number(summary->train_loss));
  json_object_set_new(object, "val_loss", json_number(summary->val_loss));
  json_object_set_new(object, "loss_digest", summary->is_dry ? json_null() : json_digest(info->loss_digest));
  json_object_set_new(object, "params_digest", summary->is_dry ? json_null() : json_digest(summary->params_digest));
  json_object_set_new(object, "numerics_key", json_digest(info->numerics_key));
}

static void times_set(json_t *object, const struct summary *summary)
{
  const struct lade_plan *plan = summary->info.plan;
  const struct lade_layout *layout = &summary->info.layout;
  double predicted[LADE_N_QUEUES];
  for (int queue = 0; queue < LADE_N_QUEUES; queue++)
    predicted[queue] = (double)plan->train->predicted_busy_ns[queue] / 1e9;
  json_object_set_new(object, "tokens_per_second", json_number(rate(summary)));
  json_object_set_new(object, "speed_of_light", json_number(speed_of_light(summary)));
  json_object_set_new(object, "predicted_step_seconds", json_number((double)plan->predicted_ns / 1e9));
  json_object_set_new(object, "measured_step_seconds", json_number(summary->seconds[0]));
  json_object_set_new(object, "predicted_queue_seconds", json_queue_seconds(predicted, layout));
  json_object_set_new(object, "measured_queue_seconds", json_queue_seconds(summary->seconds + 1, layout));
  json_object_set_new(object, "stall_seconds", json_queue_seconds(summary->seconds + HISTORY_STALLS, layout));
}

static json_t *peaks_json(const uint64_t *peaks, int n)
{
  json_t *list = json_array();
  for (int rank = 0; rank < n; rank++)
    json_array_append_new(list, json_bytes(peaks[rank]));
  return list;
}

static uint64_t max_of(const uint64_t *peaks, int n)
{
  uint64_t max = 0;
  for (int rank = 0; rank < n; rank++)
    max = LADE_MAX(max, peaks[rank]);
  return max;
}

void comm_set(json_t *object, const struct lade_session_info *info)
{
  json_t *sent = json_object(), *calls = json_object();
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    const char *name = lade_axis_name((enum lade_axis)axis);
    if (info->comm_bytes[axis])
      json_object_set_new(sent, name, json_bytes(info->comm_bytes[axis]));
    if (info->comm_calls[axis])
      json_object_set_new(calls, name, json_integer(info->comm_calls[axis]));
  }
  json_object_set_new(object, "comm_bytes", sent);
  json_object_set_new(object, "comm_calls", calls);
  json_object_set_new(object, "forward_gather_bytes", json_bytes(info->forward_gather_bytes));
}

void layout_set(json_t *object, const struct lade_session_info *info)
{
  char name[LADE_LAYOUT_NAME_BYTES];
  json_object_set_new(object, "ranks", json_integer(info->layout.mesh.world));
  json_object_set_new(object, "layout", json_string(lade_layout_name(&info->layout, name)));
  if (info->layout.mesh.world == 1)
    return;
  json_object_set_new(object, "rank", json_integer(info->layout.rank));
  comm_set(object, info);
}

/* Add the figures over all ranks: peaks (those above are then the largest), the bubble, how many ranks planned. */
static void ranks_set(json_t *object, const struct summary *summary)
{
  const int n = summary->info.layout.mesh.world;
  if (!summary->planned_peaks)
    return;
  json_object_set_new(object, "bubble", json_number(summary->bubble));
  json_object_set_new(object, "deciding_ranks", json_integer(summary->info.n_plan_leaders));
  json_object_set_new(object, "planned_peak_bytes_by_rank", peaks_json(summary->planned_peaks, n));
  json_object_set_new(object, "measured_peak_bytes_by_rank", peaks_json(summary->measured_peaks, n));
  json_object_set_new(object, "planned_peak_bytes", json_bytes(max_of(summary->planned_peaks, n)));
  json_object_set_new(object, "measured_peak_bytes", json_bytes(max_of(summary->measured_peaks, n)));
}

json_t *summary_json(const struct summary *summary)
{
  json_t *object = json_pack("{s:s, s:i}", "event", "summary", "schema_version", REPORT_SCHEMA_VERSION);
  if (!object)
    return NULL;
  shape_set(object, summary);
  memory_set(object, &summary->info);
  if (summary->resident_peak_bytes)
    json_object_set_new(object, "resident_peak_bytes", json_bytes(summary->resident_peak_bytes));
  if (summary->resident_open_bytes)
    json_object_set_new(object, "resident_open_bytes", json_bytes(summary->resident_open_bytes));
  if (summary->is_described)
    json_object_set_new(object, "machine", json_text(summary->info.cost->machine.name));
  numbers_set(object, summary);
  times_set(object, summary);
  layout_set(object, &summary->info);
  ranks_set(object, summary);
  return object;
}

/* ---- text ---- */

char *seconds_format(double seconds, char *text, size_t text_bytes)
{
  if (seconds < 1e-3)
    snprintf(text, text_bytes, "%.1f us", seconds * 1e6);
  else if (seconds < 1)
    snprintf(text, text_bytes, "%.2f ms", seconds * 1e3);
  else
    snprintf(text, text_bytes, "%.2f s", seconds);
  return text;
}

void layout_print(const struct lade_session_info *info, FILE *file)
{
  char name[LADE_LAYOUT_NAME_BYTES], text[32];
  const char *before = "; a step sends ";
  if (info->layout.mesh.world == 1)
    return;
  int column = fprintf(file, "ranks         %d (%s); this is rank %d", info->layout.mesh.world,
                       lade_layout_name(&info->layout, name), info->layout.rank);
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    if (!info->comm_bytes[axis])
      continue;
    if (column > SCREEN_COLUMNS - ENTRY_COLUMNS) {
      before = strcmp(before, ", ") == 0 ? ",\n              " : ";\n              a step sends ";
      column = 0;
    }
    column += fprintf(file, "%s%s %s in %d call%s", before, lade_axis_name((enum lade_axis)axis),
                      lade_size_format(info->comm_bytes[axis], text, sizeof(text)), info->comm_calls[axis],
                      info->comm_calls[axis] == 1 ? "" : "s");
    before = ", ";
  }
  fputc('\n', file);
  /* ZeRO 1 and 2 send the same bytes; gathers beside the forward pass explain different step times */
  if ((info->layout.zero == 1 || info->layout.zero == 2) && info->comm_bytes[LADE_AXIS_SHARD])
    fprintf(file, "              of shard, weights gathered beside the forward pass: %s\n",
            lade_size_format(info->forward_gather_bytes, text, sizeof(text)));
}

void outside_print(const struct lade_session_info *info, FILE *file)
{
  uint64_t bytes[LADE_CUDA_N_TAKERS + 1];
  char text[32];
  if (!info->outside_bytes)
    return;
  takers_get(info, bytes);
  fprintf(file, "              %s of the GPU are outside of the budget:",
          lade_size_format(info->outside_bytes, text, sizeof(text)));
  for (int taker = 0; taker <= LADE_CUDA_N_TAKERS; taker++)
    fprintf(file, "%s %s %s", taker ? "," : "", taker_names[taker], lade_size_format(bytes[taker], text, sizeof(text)));
  fputc('\n', file);
  if (info->grown_bytes)
    fprintf(file, "              %s more of it came into use during the run: NCCL's, the driver's or another "
            "process's\n", lade_size_format(info->grown_bytes, text, sizeof(text)));
}

/* True if the device of the run is memory of this process. */
static bool is_one_memory(const struct lade_session_info *info)
{
  return info->executor && info->is_unified;
}

static void memory_print(const struct summary *summary, FILE *file)
{
  const struct lade_session_info *info = &summary->info;
  const int n = info->layout.mesh.world;
  const bool has_peaks = summary->planned_peaks;
  char a[32], b[32], c[32];
  fprintf(file, "memory        planned peak %s, measured %s, of %s%s\n",
          lade_size_format(has_peaks ? max_of(summary->planned_peaks, n) : info->plan->peak_bytes[LADE_DEVICE], a,
                           sizeof(a)),
          lade_size_format(has_peaks ? max_of(summary->measured_peaks, n) : info->measured_peak_bytes, b, sizeof(b)),
          lade_size_format(info->budget_bytes, c, sizeof(c)), has_peaks ? "; the most of any rank's" : "");
  outside_print(info, file);
  fprintf(file, "              unconstrained %s, smallest budget %s, lower bound %s\n",
          lade_size_format(info->bounds.unconstrained_bytes, a, sizeof(a)),
          lade_size_format(info->bounds.min_bytes, b, sizeof(b)),
          lade_size_format(info->bounds.lower_bound_bytes, c, sizeof(c)));
  fprintf(file, "              host %s, store %s\n", lade_size_format(info->host_bytes, a, sizeof(a)),
          lade_size_format(info->store_bytes, b, sizeof(b)));
  if (summary->resident_peak_bytes)
    fprintf(file, "              process %s resident at most in training%s%s\n"
            "              process %s resident at most before, while it measured and planned\n",
            lade_size_format(summary->resident_peak_bytes, a, sizeof(a)),
            is_one_memory(info) ? " (tiers included: one memory)" : "", has_peaks ? "; the most of any rank's" : "",
            lade_size_format(summary->resident_open_bytes, b, sizeof(b)));
}

const char *drive_rate_format(const struct lade_session_info *info, char *text, size_t text_bytes)
{
  const struct lade_machine_store *drive = &info->cost->machine.store;
  const double bytes = (double)(info->store_read_bytes + info->store_written_bytes);
  const double share = (double)info->store_read_bytes / fmax(bytes, 1);
  const double apart = 1 / (share / lade_drive_bytes_per_s(drive, 1) +
                            (1 - share) / lade_drive_bytes_per_s(drive, 0)); /* values move one way at a time */
  const double rate = fmax(lade_drive_bytes_per_s(drive, share), apart);
  char size[32];
  snprintf(text, text_bytes, "%s/s that it does %s", lade_size_format((uint64_t)rate, size, sizeof(size)),
           lade_drive_is_lasting(drive) ? "in long runs" : "at first");
  return text;
}

void store_traffic_print(const struct lade_session_info *info, double step_seconds, FILE *file)
{
  char a[32], b[32], c[64];
  if (!info->store_read_bytes && !info->store_written_bytes)
    return;
  fprintf(file, "drive         %s read and %s written by a step",
          lade_size_format(info->store_read_bytes, a, sizeof(a)),
          lade_size_format(info->store_written_bytes, b, sizeof(b)));
  if (info->store_written_bytes && step_seconds > 0) {
    double days = RATED_BYTES / (double)info->store_written_bytes * step_seconds / 86400;
    fprintf(file, "; 600 TB are written in %.3g days", days);
  }
  fputc('\n', file);
  if (step_seconds <= 0)
    return;
  double rate = (double)(info->store_read_bytes + info->store_written_bytes) / step_seconds;
  fprintf(file, "              %s of room, and %s/s of the %s\n",
          lade_size_format(info->store_bytes, a, sizeof(a)), lade_size_format((uint64_t)rate, b, sizeof(b)),
          drive_rate_format(info, c, sizeof(c)));
}

/* Print the bytes that the drive moved in the last step, by its own count, beside those of the plan. */
static void store_measured_print(const struct summary *summary, FILE *file)
{
  const struct lade_session_info *info = &summary->info;
  char a[32], b[32];
  if (summary->is_dry || (!info->measured_read_bytes && !info->measured_written_bytes))
    return;
  fprintf(file, "              measured %s read and %s written by the last step\n",
          lade_size_format(info->measured_read_bytes, a, sizeof(a)),
          lade_size_format(info->measured_written_bytes, b, sizeof(b)));
}

/* Print the stalls of at least a thousandth of the step. */
static void stalls_print(const struct summary *summary, FILE *file)
{
  char text[32];
  const char *before = "  stalls      ";
  for (int queue = 0; queue < LADE_N_QUEUES; queue++) {
    double seconds = summary->seconds[HISTORY_STALLS + queue];
    if (seconds * 1000 < summary->seconds[0] || seconds <= 0)
      continue;
    fprintf(file, "%s%s %s", before, queue == LADE_Q_COMPUTE ? "launches" : lade_queue_name((enum lade_queue_id)queue),
            seconds_format(seconds, text, sizeof(text)));
    before = ", ";
  }
  if (*before == ',')
    fputc('\n', file);
}

/* Print a line if the ranks of this machine have more threads than it has cores. Predictions count a core for each. */
static void crowding_print(const struct summary *summary, FILE *file)
{
  const struct lade_session_info *info = &summary->info;
  const int n_threads = info->cost->machine.n_cores, n_cores = lade_cpu_count();
  if (summary->is_dry || summary->is_described || !info->is_unified || info->n_node_ranks * n_threads <= n_cores)
    return;
  fprintf(file, "machine       %d rank%s of %d thread%s share %d core%s; predicted times assume a core for each\n",
          info->n_node_ranks, info->n_node_ranks == 1 ? "" : "s", n_threads, n_threads == 1 ? "" : "s", n_cores,
          n_cores == 1 ? "" : "s");
}

static void times_print(const struct summary *summary, FILE *file)
{
  const struct lade_plan *plan = summary->info.plan;
  char a[32], b[32];
  const char *origin = summary->is_dry ? "executed dry" : "measured";
  if (summary->is_described && !summary->is_dry) {
    origin = "measured here";
    fprintf(file, "machine       times are predicted for %s and measured on this machine\n",
            summary->info.cost->machine.name);
  }
  crowding_print(summary, file);
  fprintf(file, "step          predicted %s, %s %s\n", seconds_format((double)plan->predicted_ns / 1e9, a, sizeof(a)),
          origin, seconds_format(summary->seconds[0], b, sizeof(b)));
  for (int queue = 0; queue < LADE_N_QUEUES; queue++) {
    double predicted = (double)plan->train->predicted_busy_ns[queue] / 1e9, measured = summary->seconds[1 + queue];
    if (predicted > 0 || measured > 0)
      fprintf(file, "  %-11s predicted %s, %s %s\n", lade_queue_name((enum lade_queue_id)queue),
              seconds_format(predicted, a, sizeof(a)), origin, seconds_format(measured, b, sizeof(b)));
  }
  stalls_print(summary, file);
  if (lade_layout_size(&summary->info.layout, LADE_AXIS_PP) > 1 && isfinite(summary->bubble))
    fprintf(file, "  bubble      %.1f %% of the step, of the stage that waits most\n",
            100 * summary->bubble / (1 + summary->bubble));
}

/* Print the losses; a resumed run with no steps left has no training loss. */
static void losses_print(const struct summary *summary, FILE *file)
{
  bool has_train = isfinite(summary->train_loss), has_valid = isfinite(summary->val_loss);
  if (!has_train && !has_valid)
    return;
  fputs("loss          ", file);
  if (has_train)
    fprintf(file, "training %.4f", summary->train_loss);
  if (has_valid)
    fprintf(file, "%svalidation %.4f", has_train ? ", " : "", summary->val_loss);
  fputc('\n', file);
}

void summary_print(const struct summary *summary, FILE *file)
{
  const struct lade_session_info *info = &summary->info;
  fprintf(file, "model         %s, %lld parameters, %s; batch %lld of %lld tokens\n", info->model.name,
          (long long)info->n_params, lade_dtype_name(summary->dtype), (long long)info->batch, (long long)info->seq_len);
  fprintf(file, "steps         %lld\n", (long long)info->step);
  layout_print(info, file);
  losses_print(summary, file);
  memory_print(summary, file);
  store_traffic_print(info, summary->seconds[0], file);
  store_measured_print(summary, file);
  times_print(summary, file);
  if (isfinite(rate(summary)))
    fprintf(file, "speed         %.0f tokens/s", rate(summary));
  if (isfinite(speed_of_light(summary)))
    fprintf(file, ", %.0f %% of the speed of light", 100 * speed_of_light(summary));
  if (isfinite(rate(summary)))
    fputc('\n', file);
  if (!summary->is_dry)
    fprintf(file, "digests       losses %016llx, parameters %016llx\n", (unsigned long long)info->loss_digest,
            (unsigned long long)summary->params_digest);
}
