/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor of a caller's own step. A run submits the program's instructions in list order, each after its waits,
 * to the device's queues. Then it waits for all of them, as src/run/executor does for models. It allocates nothing.
 *
 * When an op, a copy or a transfer fails, its error is recorded, and the rest of the list passes without effect. Queues
 * and events stay in order, so every wait ends.
 */
#include "lade/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/echo.h"
#include "device/cuda.h"
#include "run/step/step_internal.h"

/* ---- failures ---- */

/* Record a failure that the device reported while queues ran. */
static void device_fail(lade_stepper *stepper, int status)
{
  struct lade_error why, line;
  lade_error_set(&line, status, "the device reports a failure (%s) while running",
                 lade_device_reason(stepper->device, status, &why));
  lade_first_error_set(&stepper->failure, status, &line);
}

/* ---- instructions ---- */

static void op_run(struct step_call *bound, void *stream)
{
  lade_stepper *stepper = bound->stepper;
  if (lade_first_error_code(&stepper->failure))
    return;
  bound->call.step = stepper->n_steps;
  bound->call.draw = stepper->n_steps * (uint64_t)stepper->graph->ops.n + (uint64_t)bound->call.op;
  bound->call.stream = stream;
  atomic_fetch_add_explicit(&stepper->n_ops, 1, memory_order_relaxed);
  if (bound->call.is_redo)
    atomic_fetch_add_explicit(&stepper->n_redone, 1, memory_order_relaxed);
  int status = stepper->params.op(stepper->params.user, &bound->call);
  if (!status)
    return;
  struct lade_error line;
  status = status < 0 ? status : -EINVAL;
  lade_error_set(&line, status, "op %d \"%s\" failed in step %llu%s: %s", bound->call.op,
                 lade_echo(lade_graph_op_name(stepper->graph, bound->call.op)).text,
                 (unsigned long long)stepper->n_steps, bound->call.is_redo ? ", running again" : "",
                 strerror(-status));
  lade_first_error_set(&stepper->failure, status, &line);
}

static void call_run(void *arg)
{
  op_run(arg, NULL);
}

/* Put an op on a CUDA stream; a lade_cuda_enqueue_fn. */
static int call_enqueue(void *stream, void *arg)
{
  op_run(arg, stream);
  return 0;
}

static void transfer_run(void *arg)
{
  struct step_transfer *bound = arg;
  lade_stepper *stepper = bound->stepper;
  struct lade_error why = {0}, line;
  if (lade_first_error_code(&stepper->failure))
    return;
  step_identity_set(stepper, bound->value, &bound->transfer);
  int status = lade_store_submit(stepper->store, &bound->transfer);
  if (status)
    lade_error_set(&why, status, "the store refused the transfer");
  else
    status = lade_store_wait(stepper->store, &bound->transfer, &why);
  if (!status) {
    atomic_fetch_add_explicit(&stepper->moved_bytes, bound->moved_bytes, memory_order_relaxed);
    return;
  }
  lade_error_set(&line, status, "%s storage %d \"%s\" failed: %s",
                 bound->transfer.op == LADE_STORE_READ ? "getting" : "putting", bound->value.tensor,
                 lade_echo(lade_graph_storage_name(stepper->graph, bound->value.tensor)).text, why.text);
  lade_first_error_set(&stepper->failure, status, &line);
}

static void instr_submit(lade_stepper *stepper, int at)
{
  const struct lade_instr *instr = &stepper->program->instrs[at];
  lade_queue *queue = stepper->queues[instr->queue];
  struct lade_work work = {.predicted_ns = instr->predicted_ns + instr->shared_ns};
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] >= 0)
      lade_queue_wait(queue, stepper->queues[q], stepper->counts[instr->waits[q]]);
  }
  if (!stepper->is_dry && instr->kind == LADE_INSTR_COPY) {
    lade_queue_copy(queue, &stepper->copies[at], &stepper->counts[at]);
    atomic_fetch_add_explicit(&stepper->moved_bytes, stepper->copies[at].bytes, memory_order_relaxed);
    return;
  }
  if (stepper->is_cuda && instr->queue == LADE_Q_COMPUTE) {
    lade_cuda_queue_enqueue(queue, call_enqueue, &stepper->calls[at], NULL, &stepper->counts[at]);
    return;
  }
  const bool is_op = instr->kind == LADE_INSTR_COMPUTE;
  work.fn = is_op ? call_run : transfer_run;
  if (!stepper->is_dry)
    work.args = is_op ? (void *)&stepper->calls[at] : (void *)&stepper->transfers[at];
  lade_queue_launch(queue, &work, &stepper->counts[at]);
}

/* ---- a run ---- */

static int64_t now_ns(const lade_stepper *stepper)
{
  int64_t latest = 0;
  if (!stepper->is_dry)
    return lade_now_ns();
  for (int q = 0; q < LADE_N_QUEUES; q++)
    latest = stepper->queues[q] ? LADE_MAX(latest, lade_queue_now_ns(stepper->queues[q])) : latest;
  return latest;
}

/* Advance every clock of a dry device to the end of the step, as a wait for all queues does. */
static void clocks_join(lade_stepper *stepper, const uint64_t *last)
{
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    for (int other = 0; other < LADE_N_QUEUES && stepper->queues[q]; other++) {
      if (last[other] && other != q)
        lade_queue_wait(stepper->queues[q], stepper->queues[other], last[other]);
    }
  }
}

/* Wait for work that the caller has put on the stream of the ops: copies on other queues may need its results. */
static int stream_drain(lade_stepper *stepper)
{
  uint64_t count = 0;
  if (!stepper->params.stream || !stepper->queues[LADE_Q_COMPUTE])
    return 0;
  int status = lade_queue_record(stepper->queues[LADE_Q_COMPUTE], &count);
  return status ? status : lade_queue_sync(stepper->queues[LADE_Q_COMPUTE], count);
}

/* Submit the list and wait for its end. */
static int program_run(lade_stepper *stepper, struct lade_error *error)
{
  uint64_t last[LADE_N_QUEUES] = {0};
  int status = stream_drain(stepper);
  stepper->n_runs++;
  for (int at = 0; at < stepper->program->n_instrs; at++) {
    instr_submit(stepper, at);
    last[stepper->program->instrs[at].queue] = stepper->counts[at];
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const int one = last[q] ? lade_queue_sync(stepper->queues[q], last[q]) : 0;
    status = status ? status : one;
  }
  if (stepper->is_dry)
    clocks_join(stepper, last);
  if (status)
    device_fail(stepper, status);
  return lade_first_error_get(&stepper->failure, error);
}

static void measures_begin(lade_stepper *stepper, struct lade_step_measures *measures)
{
  atomic_store(&stepper->n_ops, 0);
  atomic_store(&stepper->n_redone, 0);
  atomic_store(&stepper->moved_bytes, 0);
  for (int q = 0; q < LADE_N_QUEUES; q++)
    measures->busy_ns[q] = stepper->queues[q] ? -lade_queue_busy_ns(stepper->queues[q]) : 0;
  measures->wall_ns = -now_ns(stepper);
}

static void measures_end(lade_stepper *stepper, struct lade_step_measures *measures)
{
  struct lade_device_info device;
  measures->wall_ns += now_ns(stepper);
  for (int q = 0; q < LADE_N_QUEUES; q++)
    measures->busy_ns[q] += stepper->queues[q] ? lade_queue_busy_ns(stepper->queues[q]) : 0;
  lade_device_get_info(stepper->device, &device);
  measures->peak_bytes[LADE_DEVICE] = device.peak_bytes - stepper->created_bytes;
  measures->peak_bytes[LADE_HOST] = stepper->host.bytes;
  measures->peak_bytes[LADE_STORE] = stepper->extent.bytes;
  measures->n_ops = atomic_load(&stepper->n_ops);
  measures->n_redone = atomic_load(&stepper->n_redone);
  measures->moved_bytes = atomic_load(&stepper->moved_bytes);
}

int lade_step_run(lade_stepper *stepper, struct lade_step_measures *ret_measures, struct lade_error *error)
{
  struct lade_step_measures measures = {0};
  if (!stepper)
    return lade_error_set(error, -EINVAL, "lade_step_run: stepper is NULL");
  int status = ret_measures ? lade_struct_check("lade_step_measures", ret_measures, error) : 0;
  if (!status)
    status = lade_first_error_get(&stepper->failure, error);
  if (status)
    return status;
  measures_begin(stepper, &measures);
  status = program_run(stepper, error);
  if (status)
    return status;
  measures_end(stepper, &measures);
  stepper->n_steps++;
  return ret_measures ? lade_struct_fill("lade_step_measures", ret_measures, &measures, sizeof(measures), error) : 0;
}

/* ---- planned figures ---- */

int lade_step_get_info(const lade_stepper *stepper, struct lade_step_info *ret_info)
{
  struct lade_step_info info = {0};
  if (!stepper || !ret_info)
    return -EINVAL;
  const struct step_plan *plan = &stepper->plan;
  const struct lade_program *program = stepper->program;
  info.budget_bytes = plan->budget_bytes;
  info.min_budget_bytes = plan->min_budget_bytes;
  info.min_live_bytes = plan->info.min_budget_bytes;
  info.unconstrained_bytes = plan->info.unconstrained_bytes;
  info.moved_bytes = plan->info.moved_bytes;
  info.n_instrs = program->n_instrs;
  info.n_redone = plan->info.n_redone;
  info.base_ns = plan->info.base_ns;
  info.compute_ns = plan->info.compute_ns;
  info.predicted_ns = program->predicted_ns;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space == LADE_DEVICE)
      info.used_bytes = LADE_MAX(info.used_bytes, buffer->offset + buffer->bytes);
  }
  for (int space = 0; space < LADE_N_SPACES; space++) {
    info.peak_bytes[space] = program->peak_bytes[space];
    info.live_bytes[space] = program->live_peak_bytes[space];
    memcpy(info.owner_bytes[space], program->owner_bytes[space], sizeof(program->owner_bytes[space]));
  }
  return lade_struct_fill("lade_step_info", ret_info, &info, sizeof(info), NULL);
}

/* ---- start and end ---- */

/* Read the caller's parameters and those of the search. */
static int params_read(const lade_graph *graph, const struct lade_step_params *params, struct lade_step_params *ret_own,
                       struct lade_graph_plan_params *ret_search, struct lade_error *error)
{
  if (!graph || !graph->is_closed || !graph->ops.n)
    return lade_error_set(error, -EINVAL, "a step needs a closed graph with an op");
  if (!graph->has_addresses)
    return lade_error_set(error, -EINVAL, "the graph asks for live bytes alone (addresses: false), and a step places "
                          "its memory");
  int status = lade_struct_read("lade_step_params", params, ret_own, sizeof(*ret_own), error);
  if (status)
    return status;
  if (!ret_own->op || !ret_own->device || !ret_own->plan)
    return lade_error_set(error, -EINVAL, "a step needs a function for its ops, a device and budgets");
  if (ret_own->stream && !lade_cuda_is(ret_own->device))
    return lade_error_set(error, -EINVAL, "a stream is given, and the device is no CUDA device");
  return lade_struct_read("lade_graph_plan_params", ret_own->plan, ret_search, sizeof(*ret_search), error);
}

/* Take the memory and the queues of a planned stepper. */
static int stepper_take(lade_stepper *stepper, struct lade_error *error)
{
  int status = step_memory_take(stepper, error);
  if (status)
    return status;
  status = step_bind(stepper);
  if (status)
    return lade_error_set(error, status, "no memory to bind %d instructions", stepper->program->n_instrs);
  return stepper->store ? step_store_clear(stepper, error) : 0;
}

static int stepper_init(lade_stepper *stepper, const struct lade_graph_plan_params *search, struct lade_error *error,
                        struct lade_step_info *ret_info)
{
  struct lade_device_info device;
  lade_device_get_info(stepper->device, &device);
  stepper->is_dry = device.is_dry;
  stepper->is_unified = device.is_unified;
  stepper->is_cuda = lade_cuda_is(stepper->device);
  const struct step_plan_params params = {.graph = stepper->graph, .search = *search, .chunk_bytes = device.chunk_bytes,
                                          .is_unified = device.is_unified};
  int status = step_plan_find(&params, error, &stepper->plan);
  if (status == -ENOSPC && ret_info) {
    const struct lade_step_info min = {.min_budget_bytes = stepper->plan.min_budget_bytes};
    lade_struct_fill("lade_step_info", ret_info, &min, sizeof(min), NULL);
  }
  if (status)
    return status;
  stepper->program = stepper->plan.program;
  lade_device_peak_reset(stepper->device);
  return stepper_take(stepper, error);
}

int step_create(const lade_graph *graph, const struct lade_step_params *params, struct lade_faults *faults,
                struct lade_error *error, struct lade_step_info *ret_info, lade_stepper **ret_stepper)
{
  struct lade_step_params own = {0};
  struct lade_graph_plan_params search;
  if (!ret_stepper)
    return lade_error_set(error, -EINVAL, "lade_step_create: ret_stepper is NULL");
  int status = ret_info ? lade_struct_check("lade_step_info", ret_info, error) : 0;
  if (!status)
    status = params_read(graph, params, &own, &search, error);
  if (status)
    return status;
  lade_stepper *stepper = calloc(1, sizeof(*stepper));
  if (!stepper)
    return lade_error_set(error, -ENOMEM, "no memory for a stepper");
  stepper->graph = graph;
  stepper->params = own;
  stepper->params.plan = NULL;
  stepper->device = own.device;
  stepper->faults = faults;
  lade_first_error_init(&stepper->failure);
  status = stepper_init(stepper, &search, error, ret_info);
  if (status) {
    lade_step_destroy(stepper);
    return status;
  }
  *ret_stepper = stepper;
  return ret_info ? lade_step_get_info(stepper, ret_info) : 0;
}

int lade_step_create(const lade_graph *graph, const struct lade_step_params *params, struct lade_error *error,
                     struct lade_step_info *ret_info, lade_stepper **ret_stepper)
{
  return step_create(graph, params, NULL, error, ret_info, ret_stepper);
}

void lade_step_destroy(lade_stepper *stepper)
{
  if (!stepper)
    return;
  step_memory_release(stepper);
  step_unbind(stepper);
  lade_program_destroy(stepper->plan.program);
  lade_first_error_finish(&stepper->failure);
  free(stepper);
}
