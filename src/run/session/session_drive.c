/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drive of a session's steps: its lasting rates before the first step, and the rates that the steps had.
 *
 * Before. The probe takes a moment, and a drive may serve its first gigabytes from a cache or a credit. So if the plan
 * predicts a long run whose io queue is busy for half of each step or more, and no long run or probe has told the
 * drive's lasting rates, these are measured before step 0, for a twentieth of the run at most. Then the plan is made
 * again with them. A shorter run begins at once with the first rates, and its summary says so. So does a run whose
 * drive cannot be measured in that time, or fails in it: the first rates are enough to run with. A described machine's
 * drive is another one, and is not measured.
 *
 * After. The io queue's work of each step is an observation of the drive. A run that moved more than the drive's burst
 * keeps the rates that it saw, and the bytes that it moved, for the predictions of later runs. So a wrong measurement
 * lasts for one run, and a measurement of fewer bytes does not replace the rates of that run.
 *
 * Rejected: the rate of the first write of the model's state. It has one window of 1 MiB in flight, after its values
 * are drawn, so a fast drive waits for it.
 */
#include <math.h>
#include <string.h>

#include "run/session/session_internal.h"

#define DRIVE_HALF_BYTES 0x1p32 /* moved bytes after which an observation of the drive has half of its weight */
#define SUSTAINED_SHARE 20      /* one part in this many of a run's time may go into measuring its drive */
#define SUSTAINED_MIN_NS INT64_C(4000000000) /* time of a useful measurement; runs of less than 80 s do without */
#define SUSTAINED_GAIN 4        /* rates told by so many times fewer bytes than now are measured again */

/* ---- before the first step ---- */

/* Return the time that this run may take to measure its drive's lasting rates; 0: the known rates will do. */
static int64_t sustained_limit_ns(const lade_session *s)
{
  const struct lade_machine_store *drive = &s->cost.machine.store;
  const int64_t step_ns = s->plan->predicted_ns, io_ns = s->plan->train->predicted_busy_ns[LADE_Q_IO];
  const double n_steps = (double)LADE_MAX(s->params.steps - s->state.step, 0);
  if (!s->params.store || io_ns < step_ns / 2)
    return 0;
  const int64_t limit_ns = (int64_t)fmin((double)step_ns * n_steps / SUSTAINED_SHARE,
                                         (double)LADE_DRIVE_SUSTAINED_NS);
  const uint64_t told_bytes = drive->known_bytes ? drive->known_bytes : drive->burst_bytes;
  const double known_bytes = (double)(told_bytes ? told_bytes : LADE_DRIVE_BURST_BYTES);
  const double bytes_per_s = lade_drive_bytes_per_s(drive, 0.5) * s->n_sharing_drive;
  const double first_half_bytes = bytes_per_s * (double)limit_ns * 1e-9 / 2;
  const double burst_bytes = fmin(first_half_bytes, (double)LADE_DRIVE_BURST_BYTES); /* as the probe limits it */
  const bool is_known = lade_drive_is_lasting(drive) && burst_bytes < SUSTAINED_GAIN * known_bytes;
  return limit_ns < SUSTAINED_MIN_NS || is_known ? 0 : limit_ns;
}

/* The first rank's measurement, which it sends to all ranks. */
struct sustained {
  struct lade_machine_store store; /* of the whole drive */
  bool is_new;
};

struct sustained_work {
  const lade_session *session;
  int64_t limit_ns;
  struct sustained *ret_sustained;
};

/* Measure, for lade_rank_group_work. A failure leaves the rates as they were, with a note. */
static int sustained_measure(void *user, struct lade_error *error)
{
  const struct sustained_work *work = user;
  const lade_session *s = work->session;
  const struct lade_store_params store = session_store_params(s);
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  struct lade_probe_params params = session_cache_params(s, &gpu);
  struct lade_error own = {0};
  params.store = &store;
  params.skip_cache = s->params.skip_cache;
  params.is_stopping = s->params.is_stopping;
  params.user = s->params.user;
  int status = lade_probe_measure_sustained(&params, work->limit_ns, &own, &work->ret_sustained->store,
                                            &work->ret_sustained->is_new);
  if (status)
    session_notice(s, "the drive's rates in long runs were not measured: %s", own.text);
  return 0;
}

/* Measure the drive at the first rank, and give its rates to all ranks. *ret_is_new: there are any. Collective. */
static int sustained_share(lade_session *s, int64_t limit_ns, bool *ret_is_new, struct lade_error *error)
{
  struct lade_machine_store *drive = &s->cost.machine.store;
  struct sustained sustained;
  memset(&sustained, 0, sizeof(sustained)); /* padding too: it is sent */
  sustained.store = *drive;
  sustained.store.read_bytes_per_s *= s->n_sharing_drive;
  sustained.store.write_bytes_per_s *= s->n_sharing_drive;
  sustained.store.total_bytes_per_s *= s->n_sharing_drive;
  sustained.store.total_mostly_writes_bytes_per_s *= s->n_sharing_drive;
  sustained.store.total_mostly_reads_bytes_per_s *= s->n_sharing_drive;
  sustained.store.lasting_read_bytes_per_s *= s->n_sharing_drive;
  sustained.store.lasting_write_bytes_per_s *= s->n_sharing_drive;
  sustained.store.lasting_bytes_per_s *= s->n_sharing_drive;
  struct sustained_work work = {s, limit_ns, &sustained};
  const bool is_first = !s->group.world || lade_rank_group_is_first(&s->group);
  int status = lade_rank_group_work(&s->group, is_first ? sustained_measure : NULL, &work, error);
  if (!status)
    status = lade_rank_group_broadcast(&s->group, 0, &sustained, sizeof(sustained), error);
  if (status || !sustained.is_new)
    return status;
  drive->lasting_read_bytes_per_s = sustained.store.lasting_read_bytes_per_s / s->n_sharing_drive;
  drive->lasting_write_bytes_per_s = sustained.store.lasting_write_bytes_per_s / s->n_sharing_drive;
  drive->lasting_bytes_per_s = sustained.store.lasting_bytes_per_s / s->n_sharing_drive;
  drive->lasting_latency_ns = sustained.store.lasting_latency_ns;
  drive->burst_bytes = sustained.store.burst_bytes;
  drive->known_bytes = sustained.store.known_bytes;
  *ret_is_new = true;
  return 0;
}

int session_drive_measure_sustained(lade_session *s, struct lade_error *error)
{
  bool is_new = false;
  int64_t limit_ns = 0;
  if (s->params.machine || s->params.is_dry || s->params.is_plan_only || s->params.template_session)
    return 0;
  int status = lade_rank_group_max(&s->group, sustained_limit_ns(s), &limit_ns, error);
  if (!status && limit_ns)
    status = sustained_share(s, limit_ns, &is_new, error);
  if (!status && is_new)
    status = session_prices_make(s, error);
  if (status || !is_new)
    return status;
  lade_plan_destroy(s->plan);
  s->plan = NULL;
  return session_plan(s, error);
}

/* ---- observations ---- */

/* Add transfer @at of one value, which took @y_ns, to the observations of the drive. */
static void drive_point_add(lade_session *s, int at, double y_ns)
{
  const struct lade_instr *instr = &s->plan->train->instrs[at];
  const double latency_ns = lade_drive_latency_ns(&s->cost.machine.store);
  const enum lade_drive_work work = instr->kind == LADE_INSTR_READ ? LADE_DRIVE_READS : LADE_DRIVE_WRITES;
  lade_drive_point_add(&s->drive.points, work, fmax((double)instr->predicted_ns - latency_ns, 0), y_ns,
                       latency_ns > 0 ? 1 - (double)instr->hidden_ns / latency_ns : instr->hidden_ns == 0);
}

void session_drive_count(lade_session *s, int64_t wall_ns)
{
  struct session_drive *drive = &s->drive;
  const uint64_t bytes = s->read_bytes + s->written_bytes;
  const struct lade_span *spans = lade_executor_spans(s->executor);
  double updates_x_ns = 0, updates_y_ns = 0, busy_ns = 0;
  if (s->params.is_dry || !bytes)
    return;
  const double fading = exp2(-(double)bytes / DRIVE_HALF_BYTES);
  lade_drive_points_fade(&drive->points, fading);
  for (int i = 0; i < s->plan->train->n_instrs; i++) {
    const struct lade_instr *instr = &s->plan->train->instrs[i];
    const double y_ns = (double)(spans[i].end_ns - spans[i].start_ns);
    if (instr->queue != LADE_Q_IO)
      continue;
    busy_ns += y_ns;
    if (instr->kind != LADE_INSTR_UPDATE)
      drive_point_add(s, i, y_ns);
    updates_x_ns += instr->kind == LADE_INSTR_UPDATE ? (double)instr->predicted_ns : 0;
    updates_y_ns += instr->kind == LADE_INSTR_UPDATE ? y_ns : 0;
  }
  if (updates_x_ns > 0)
    lade_drive_point_add(&drive->points, LADE_DRIVE_UPDATES, updates_x_ns, updates_y_ns, 0);
  drive->wall_ns = drive->wall_ns * fading + (double)wall_ns;
  drive->busy_ns = drive->busy_ns * fading + busy_ns;
  drive->bytes += bytes;
}

/* Return the rate of transfers that took @ratio times their predicted time, @share of them reads; ratio 0: not seen. */
static double drive_rate_seen(const lade_session *s, double share, double ratio)
{
  return ratio > 0 ? lade_drive_bytes_per_s(&s->cost.machine.store, share) / ratio : 0;
}

void session_drive_keep(const lade_session *s)
{
  const struct session_drive *drive = &s->drive;
  const uint64_t burst_bytes = s->cost.machine.store.burst_bytes;
  const bool is_rested = drive->busy_ns < drive->wall_ns / 2;
  struct lade_drive_lasting lasting = {0};
  double ratios[LADE_DRIVE_N_WORKS];
  if (!drive->bytes || drive->bytes < (burst_bytes ? burst_bytes : LADE_DRIVE_BURST_BYTES) || s->params.machine ||
      s->params.skip_cache || s->group.world || !lade_drive_points_fit(&drive->points, &lasting.latency_ns, ratios))
    return;
  lasting.write_bytes_per_s = drive_rate_seen(s, 0, ratios[LADE_DRIVE_WRITES]);
  lasting.read_bytes_per_s = drive_rate_seen(s, 1, ratios[LADE_DRIVE_READS]);
  lasting.total_bytes_per_s = drive_rate_seen(s, 0.5, ratios[LADE_DRIVE_UPDATES]);
  if (!is_rested) /* a drive that rested tells less than its own bytes would */
    lasting.known_bytes = LADE_MAX(LADE_MIN(drive->bytes, LADE_DRIVE_BURST_BYTES), s->cost.machine.store.known_bytes);
  const struct lade_store_params store = session_store_params(s);
  const struct lade_probe_gpu gpu = {s->device, s->cuda_kernels};
  struct lade_probe_params params = session_cache_params(s, &gpu);
  params.store = &store;
  lade_probe_keep_lasting(&params, &lasting, is_rested);
}
