/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/plan.h over a session that only plans, and the parts that lade/train.h shares with it.
 *
 * The public structs are separate from the session's. Public structs are compiled into other programs, and grow at
 * their end only; the session's structs change with the runtime. So this file copies field by field and checks each
 * value. The command checks its options before a session sees them, but a linked program does not, and the session
 * asserts.
 *
 * The ledger is a program's at the instant of its peak. Training and evaluation share an arena, whose peak is the
 * larger one. So for each space the ledger of the larger program is the one that sums to the peak.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "run/session/api_internal.h"

#define THREADS_MAX 1024 /* a larger number is an error in the caller's arithmetic */
#define LINK_RATE_MIN 1000 /* as in the description of a machine */
#define LINK_LATENCY_NS_MAX 1000000000000ull /* as in the description of a machine */

void lade_run_params_init(struct lade_run_params *ret_run, size_t struct_size)
{
  if (!ret_run)
    return;
  struct lade_session_params session;
  lade_session_defaults(&session);
  struct lade_run_params own = {.struct_size = sizeof(own), .model = session.model, .batch = session.batch,
                                .dtype = session.dtype, .dropout = session.dropout, .budget = session.budget,
                                .recipe = session.recipe, .device = "host"};
  ret_run->struct_size = struct_size;
  lade_struct_fill("lade_run_params", ret_run, &own, sizeof(own), NULL);
}

static int run_check(const struct lade_run_params *run, struct lade_error *error)
{
  const struct lade_budget *budget = &run->budget;
  const char *device = run->device;
  if (!run->model)
    return lade_error_set(error, -EINVAL, "lade_run_params: model is NULL: name a preset or a config.json");
  if (run->dtype != LADE_F32 && run->dtype != LADE_BF16 && run->dtype != LADE_F16)
    return lade_error_set(error, -EINVAL, "lade_run_params: dtype is %d: LADE_F32, LADE_BF16 or LADE_F16 is trained",
                          (int)run->dtype);
  if ((unsigned)run->moments >= LADE_N_MOMENTS || (unsigned)run->master >= LADE_N_MASTERS)
    return lade_error_set(error, -EINVAL, "lade_run_params: no form of state has moments %d and master %d",
                          (int)run->moments, (int)run->master);
  if (run->grad_dtype != LADE_F32 && run->grad_dtype != LADE_BF16)
    return lade_error_set(error, -EINVAL, "lade_run_params: grad_dtype is %d: LADE_F32 or LADE_BF16 is taken",
                          (int)run->grad_dtype);
  if (!(run->dropout >= 0 && run->dropout < 1))
    return lade_error_set(error, -EINVAL, "lade_run_params: dropout is %g: at least 0, below 1", run->dropout);
  if ((unsigned)budget->kind > LADE_BUDGET_MIN || !isfinite(budget->percent) || budget->percent < 0)
    return lade_error_set(error, -EINVAL, "lade_run_params: no budget has kind %d and %g percent",
                          (int)budget->kind, budget->percent);
  if ((unsigned)run->recipe >= LADE_N_RECIPES)
    return lade_error_set(error, -EINVAL, "lade_run_params: there is no recipe %d", (int)run->recipe);
  if (device && strcmp(device, "host") != 0 && strcmp(device, "dry") != 0 && strcmp(device, "auto") != 0 &&
      lade_cuda_ordinal(device) < 0)
    return lade_error_set(error, -EINVAL, "lade_run_params: no device is called '%.40s'; host, dry, cuda:0 and auto "
                          "are known", device);
  if (run->link_bytes_per_s && run->link_bytes_per_s < LINK_RATE_MIN)
    return lade_error_set(error, -EINVAL, "lade_run_params: link_bytes_per_s is %llu: 0, or at least %d",
                          (unsigned long long)run->link_bytes_per_s, LINK_RATE_MIN);
  if (run->link_latency_ns > LINK_LATENCY_NS_MAX)
    return lade_error_set(error, -EINVAL, "lade_run_params: link_latency_ns is %llu: at most %llu",
                          (unsigned long long)run->link_latency_ns, LINK_LATENCY_NS_MAX);
  if (run->tp < 0 || run->pp < 0 || run->dp < 0 || (unsigned)run->zero > LADE_ZERO_MAX)
    return lade_error_set(error, -EINVAL, "lade_run_params: tp %d, pp %d, dp %d, zero %d is no layout: sizes of at "
                          "least 0, ZeRO stage 0 to %d", run->tp, run->pp, run->dp, run->zero, LADE_ZERO_MAX);
  if (run->layers < 0 || run->vocabulary < 0 || run->micro_batch < 0 || run->seq < 0 || run->n_threads < 0
      || run->n_threads > THREADS_MAX)
    return lade_error_set(error, -EINVAL, "lade_run_params: layers, vocabulary, micro_batch, seq and n_threads are 0 "
                          "for their defaults, or positive (threads at most %d)", THREADS_MAX);
  return 0;
}

/* Read the caller's @run into this library's form and check it; NULL: the defaults. */
static int run_read(const struct lade_run_params *run, struct lade_run_params *ret_own, struct lade_error *error)
{
  if (!run) {
    lade_run_params_init(ret_own, sizeof(*ret_own));
    return 0;
  }
  int status = lade_struct_read("lade_run_params", run, ret_own, sizeof(*ret_own), error);
  return status ? status : run_check(ret_own, error);
}

int lade_run_session_params(const struct lade_run_params *run, struct lade_session_params *ret_params,
                            struct lade_error *error)
{
  struct lade_run_params own;
  int status = run_read(run, &own, error);
  if (status)
    return status;
  struct lade_session_params params;
  lade_session_defaults(&params);
  params.model = own.model;
  params.layers = own.layers;
  params.vocabulary = own.vocabulary;
  params.batch = own.batch;
  params.micro_batch = own.micro_batch;
  params.seq_len = own.seq;
  params.dtype = own.dtype;
  params.moments = own.moments;
  params.master = own.master;
  params.grad_dtype = own.grad_dtype;
  params.dropout = own.dropout;
  params.gelu_fusion = own.gelu_fusion;
  params.budget = own.budget;
  params.has_host_budget = own.has_host_budget;
  params.host_budget_bytes = own.host_budget_bytes;
  params.store = own.store;
  params.store_budget_bytes = own.store_budget_bytes;
  params.is_durable = own.durable;
  params.allow_tmpfs = own.allow_tmpfs;
  params.recipe = own.recipe;
  params.residency_file = own.residency_file;
  params.optimizer_in_backward = own.optimizer_in_backward;
  params.is_dry = own.device && strcmp(own.device, "dry") == 0;
  params.or_host = own.device && strcmp(own.device, "auto") == 0;
  params.is_gpu = params.or_host || (own.device && lade_cuda_ordinal(own.device) >= 0);
  params.gpu = params.is_gpu && !params.or_host ? lade_cuda_ordinal(own.device) : 0;
  params.machine = own.machine;
  params.throttle = (struct lade_link){.bytes_per_s = own.link_bytes_per_s, .latency_ns = own.link_latency_ns};
  params.n_threads = own.n_threads;
  params.layout = (struct lade_layout_params){.tp = own.tp, .pp = own.pp, .dp = own.dp, .zero = own.zero,
                                              .is_sequence = own.sequence_parallel};
  *ret_params = params;
  return 0;
}

static void report_plan(const struct lade_plan *plan, struct lade_plan_report *report)
{
  _Static_assert((int)LADE_N_OWNERS <= LADE_OWNERS_MAX && (int)LADE_N_QUEUES <= LADE_QUEUES_MAX,
                 "reports have room for every owner and queue");
  report->has_plan = true;
  report->step_ns = plan->predicted_ns;
  report->n_instructions = plan->train->n_instrs;
  lade_program_store_traffic(plan->train, &report->store_read_bytes, &report->store_written_bytes);
  memcpy(report->peak_bytes, plan->peak_bytes, sizeof(report->peak_bytes));
  memcpy(report->queue_ns, plan->train->predicted_busy_ns, sizeof(plan->train->predicted_busy_ns));
  for (int space = 0; space < LADE_N_SPACES; space++) {
    bool is_eval = plan->eval->peak_bytes[space] > plan->train->peak_bytes[space];
    const struct lade_program *larger = is_eval ? plan->eval : plan->train;
    memcpy(report->owner_bytes[space], larger->owner_bytes[space], sizeof(larger->owner_bytes[space]));
  }
}

int lade_run_report(const struct lade_session_info *info, struct lade_plan_report *ret_report,
                    struct lade_error *error)
{
  const struct lade_plan_bounds *bounds = &info->bounds;
  struct lade_plan_report report = {
      .n_params = info->n_params, .batch = info->batch, .micro_batch = info->micro_batch, .seq = info->seq_len,
      .budget_bytes = {info->budget_bytes, info->host_budget_bytes, info->store_budget_bytes},
      .unconstrained_bytes = bounds->unconstrained_bytes, .lower_bound_bytes = bounds->lower_bound_bytes,
      .min_budget_bytes = bounds->min_bytes == UINT64_MAX ? 0 : bounds->min_bytes,
      .unconstrained_step_ns = bounds->unconstrained_ns};
  if (info->plan)
    report_plan(info->plan, &report);
  return lade_struct_fill("lade_plan_report", ret_report, &report, sizeof(report), error);
}

int lade_plan_find(const struct lade_run_params *run, struct lade_plan_report *ret_report, struct lade_error *error)
{
  if (!ret_report)
    return lade_error_set(error, -EINVAL, "lade_plan_find: ret_report is NULL");
  struct lade_session_params params;
  struct lade_session_info info;
  lade_session *session = NULL;
  int status = lade_struct_check("lade_plan_report", ret_report, error); /* before seconds of planning */
  if (!status)
    status = lade_run_session_params(run, &params, error);
  if (status)
    return status;
  params.is_plan_only = true;
  params.clip = 0; /* a plan does not use it; a trainer's clip decides whether updates may run in the backward half */
  params.is_dry = false; /* nothing is executed, so both devices give the same plan */
  status = lade_session_open(&params, error, &session);
  if (status)
    return lade_api_error(status, error);
  lade_session_get_info(session, &info);
  if (!info.plan)
    lade_api_error(-EOVERFLOW, error);
  status = lade_run_report(&info, ret_report, error);
  lade_session_close(session);
  return status;
}
