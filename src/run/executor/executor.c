/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor submits a bound program: for each instruction it passes the waits and the work to the instruction's
 * queue. It runs ahead of the queues by as much as their rings hold. So a copy starts as soon as its waits are met,
 * whatever its place in the list. At the end of the list the executor waits for every queue.
 *
 * When an instruction fails, its error is recorded and the rest of the list passes without effect. Queues and events
 * stay in order, so every wait ends.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/numa.h"
#include "run/executor/executor_internal.h"
#include "run/program_resources.h"

lade_comm *executor_comm(const lade_executor *ex, const struct lade_instr *instr)
{
  return ex->params.comms ? ex->params.comms[instr->axis] : NULL;
}

static bool is_between_ranks(const struct lade_instr *instr)
{
  return instr->kind == LADE_INSTR_COLLECTIVE || instr->kind == LADE_INSTR_SEND || instr->kind == LADE_INSTR_RECV;
}

/* Return the first instruction over @comm that failed, or -1. Instructions after it fail as a consequence. */
static int failed_find(const lade_executor *ex, const struct bound_program *bound, const lade_comm *comm)
{
  for (int at = 0; at < bound->program->n_instrs; at++) {
    const struct lade_instr *instr = &bound->program->instrs[at];
    if (is_between_ranks(instr) && executor_comm(ex, instr) == comm && atomic_load(&bound->comms[at].status))
      return at;
  }
  return -1;
}

/* Put the step and the instruction that failed over the communicator of @axis before the communicator's own text. */
static void place_put(const lade_executor *ex, const struct bound_program *bound, int axis, struct lade_error *line)
{
  const struct lade_program *program = bound->program;
  const struct lade_error why = *line;
  char step[48] = "evaluation", name[LADE_NAME_BYTES + 16] = "";
  if (program->is_training)
    snprintf(step, sizeof(step), "step %lld", (long long)ex->step.step);
  const int at = failed_find(ex, bound, ex->params.comms[axis]);
  if (at < 0) {
    lade_error_set(line, why.code, "%s: %s", step, why.text);
    return;
  }
  const struct lade_instr *instr = &program->instrs[at];
  const struct lade_operand *operand = &program->operands[instr->first_operand];
  if (instr->n_operands)
    lade_value_name(program->graph, (operand->access & LADE_READS ? operand->reads : operand->makes).tensor, name);
  lade_error_set(line, why.code, "%s, instruction %d (%s %s over %s): %s", step, at,
                 lade_collective_name(bound->collectives[at].kind), name, lade_axis_name((enum lade_axis)axis),
                 why.text);
}

/*
 * Make a communicator's failure the step's failure. -ECANCELED: the text of the rank that aborted already has its
 * place.
 */
static void comms_check(lade_executor *ex, const struct bound_program *bound)
{
  for (int axis = 0; ex->params.comms && axis < LADE_N_AXES; axis++) {
    struct lade_error line;
    int status = ex->params.comms[axis] ? lade_comm_status(ex->params.comms[axis], &line) : 0;
    if (status && status != -ECANCELED && !lade_first_error_code(&ex->failure))
      place_put(ex, bound, axis, &line);
    if (status)
      executor_fail(ex, status, &line);
  }
}

static void call_run(void *arg)
{
  struct kernel_call *call = arg;
  const lade_executor *ex = call->executor;
  if (call->kernel != CALL_NOTHING && !lade_first_error_code(&ex->failure))
    ex->params.kernels->fn[call->kernel](&ex->ctx, call->args);
}

/* ---- a step ---- */

/*
 * Submit a collective. Its errors stay with the communicator. If the launch is refused, later waits are for the queue's
 * last submission, because the collective has no event.
 */
static void collective_submit(lade_executor *ex, struct bound_program *bound, int at)
{
  const struct lade_instr *instr = &bound->program->instrs[at];
  lade_queue *queue = ex->queues[instr->queue];
  int status = lade_comm_launch(executor_comm(ex, instr), queue, &bound->comms[at], &bound->counts[at]);
  if (status) {
    struct lade_error line;
    bound->counts[at] = lade_queue_submitted(queue);
    lade_error_set(&line, status, "instruction %d (%s) was refused by its communicator", at,
                   lade_collective_name(bound->collectives[at].kind));
    executor_fail(ex, status, &line);
  }
  comms_check(ex, bound);
}

static void instr_submit(lade_executor *ex, struct bound_program *bound, int at)
{
  const struct lade_instr *instr = &bound->program->instrs[at];
  lade_queue *queue = ex->queues[instr->queue];
  if (instr->is_grouped && !ex->is_dry) { /* already submitted in the list of the group's first member */
    bound->counts[at] = bound->counts[at - 1];
    return;
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] >= 0)
      lade_queue_wait(queue, ex->queues[q], bound->counts[instr->waits[q]]);
  }
  if (instr->kind == LADE_INSTR_COPY) {
    lade_queue_copy(queue, &bound->copies[at], &bound->counts[at]);
    return;
  }
  if (is_between_ranks(instr) && !ex->is_dry) {
    collective_submit(ex, bound, at);
    return;
  }
  if (ex->params.cuda_kernels && instr->queue == LADE_Q_COMPUTE) {
    executor_kernel_submit(ex, bound, at);
    return;
  }
  struct lade_work work = {.fn = call_run, .args = &bound->calls[at],
                           .predicted_ns = instr->predicted_ns + instr->shared_ns - instr->hidden_ns,
                           .ret_span = &bound->spans[at]};
  if (instr->is_streamed) {
    work.fn = stream_call_run;
    work.args = bound->streams[at];
  } else if (instr->kind == LADE_INSTR_READ || instr->kind == LADE_INSTR_WRITE) {
    work.fn = io_call_run;
    work.args = &bound->ios[at];
    atomic_store(&bound->ios[at].submitted_run, ex->n_runs); /* the counts of its waits are known */
  }
  lade_queue_launch(queue, &work, &bound->counts[at]);
}

/*
 * Set the spans of the later members of groups and graphs to empty ones at the end. The first member's span covers all.
 */
static void grouped_spans_fill(const struct bound_program *bound)
{
  for (int at = 1; at < bound->program->n_instrs; at++) {
    const struct lade_instr *instr = &bound->program->instrs[at];
    if (!instr->is_grouped && !(bound->graphs && instr->is_graph_member))
      continue;
    const int64_t end_ns = bound->spans[bound->before[at]].end_ns;
    bound->spans[at] = (struct lade_span){end_ns, end_ns};
  }
}

static int64_t queues_now_ns(const lade_executor *ex)
{
  int64_t latest = 0;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    latest = ex->queues[q] ? LADE_MAX(latest, lade_queue_now_ns(ex->queues[q])) : latest;
  return latest;
}

static int64_t queue_busy_ns(const lade_executor *ex, int q)
{
  return ex->queues[q] ? lade_queue_busy_ns(ex->queues[q]) : 0;
}

/* Record a failure that the device reported while queues ran. */
static void device_fail(lade_executor *ex, int status)
{
  struct lade_error why, line;
  lade_error_set(&line, status, "the device reports a failure (%s) while running",
                 lade_device_reason(ex->device, status, &why));
  executor_fail(ex, status, &line);
}

static int program_run(lade_executor *ex, struct bound_program *bound, struct lade_step_result *ret_result,
                       struct lade_error *error)
{
  int status = executor_failure(ex, error);
  if (status)
    return status;
  uint64_t last[LADE_N_QUEUES] = {0};
  int64_t start_ns = ex->is_dry ? queues_now_ns(ex) : lade_now_ns();
  for (int q = 0; q < LADE_N_QUEUES; q++)
    ret_result->busy_ns[q] = -queue_busy_ns(ex, q);
  ex->n_runs++;
  if (ex->params.cuda_kernels)
    executor_step_block_submit(ex, bound);
  for (int i = 0; i < bound->program->n_instrs; i++) {
    instr_submit(ex, bound, i);
    last[bound->program->instrs[i].queue] = bound->counts[i];
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (!last[q])
      continue;
    int one = lade_queue_sync(ex->queues[q], last[q]);
    status = status ? status : one;
  }
  for (int q = 0; q < LADE_N_QUEUES; q++)
    ret_result->busy_ns[q] += queue_busy_ns(ex, q);
  ret_result->wall_ns = (ex->is_dry ? queues_now_ns(ex) : lade_now_ns()) - start_ns;
  if (!ex->is_dry)
    grouped_spans_fill(bound);
  executor_stalls_count(bound, start_ns, ret_result->stall_ns);
  comms_check(ex, bound);
  if (status)
    device_fail(ex, status);
  return executor_failure(ex, error);
}

static double losses_mean(const lade_executor *ex, const struct bound_program *bound)
{
  double sum = 0;
  int n = bound->program->n_microbatches;
  for (int m = 0; m < n && !ex->is_dry && ex->graph->loss >= 0; m++) {
    const void *loss = executor_address(ex, bound->program, ex->losses[m], 0);
    sum += ex->graph->accumulator == LADE_F64 ? *(const double *)loss : (double)*(const float *)loss;
  }
  return sum / ((double)n * lade_layout_size(bound->program->layout, LADE_AXIS_DP));
}

int lade_executor_step(lade_executor *ex, const struct lade_step *step, struct lade_step_result *ret_result,
                       struct lade_error *error)
{
  struct lade_step_result result = {0};
  const bool optimizer_in_backward = ex->train.program->optimizer_in_backward;
  if (optimizer_in_backward && (step->clip > 0 || step->loss_scale != 1))
    return lade_error_set(error, -EINVAL, "updates inside the backward pass know no clipping and no loss scale");
  ex->step = *step;
  int status = program_run(ex, &ex->train, &result, error);
  if (status)
    return status;
  if (ex->params.durable)
    ex->has_step = true;
  else
    ex->n_steps++;
  result.loss = losses_mean(ex, &ex->train);
  if (!ex->is_dry)
    memcpy(&result.clip_result, executor_address(ex, ex->train.program, ex->clip_result, 0),
           sizeof(result.clip_result));
  *ret_result = result;
  if (!result.clip_result.is_skipped)
    return 0;
  if (optimizer_in_backward) {
    struct lade_error line;
    lade_error_set(&line, -EDOM, "a gradient was not finite after other parameters had been updated");
    executor_fail(ex, -EDOM, &line);
  }
  return lade_error_set(error, -ERANGE, "a gradient is not finite; the update was skipped");
}

int lade_executor_eval(lade_executor *ex, struct lade_step_result *ret_result, struct lade_error *error)
{
  struct lade_step_result result = {0};
  int status = program_run(ex, &ex->eval, &result, error);
  if (status)
    return status;
  result.loss = losses_mean(ex, &ex->eval);
  *ret_result = result;
  return 0;
}

int lade_executor_publish(lade_executor *ex, const void *memo, size_t memo_bytes, struct lade_error *error)
{
  struct lade_error line = {0};
  int status = executor_failure(ex, error);
  if (status || !ex->params.durable)
    return status ? status : lade_error_set(error, -EINVAL, "state is not durable");
  status = lade_durable_publish(ex->params.durable, ex->n_steps + ex->has_step, memo, memo_bytes, &line);
  if (status) {
    executor_fail(ex, status, &line);
    return lade_error_set(error, status, "%s", line.text);
  }
  ex->n_steps += ex->has_step;
  ex->has_step = false;
  return 0;
}

/* ---- between steps ---- */

/* Return the memory of a microbatch's data, whose buffers are in @buffers; NULL: no instruction reads it here. */
static int32_t *data_address(const lade_executor *ex, const int32_t *buffers, int microbatch)
{
  const int32_t buffer = buffers[microbatch];
  return ex->is_dry || buffer < 0 ? NULL : executor_address(ex, ex->train.program, buffer, 0);
}

int32_t *lade_executor_tokens(lade_executor *ex, int microbatch)
{
  return data_address(ex, ex->tokens, microbatch);
}

int32_t *lade_executor_targets(lade_executor *ex, int microbatch)
{
  return data_address(ex, ex->targets, microbatch);
}

int32_t *lade_executor_first_keys(lade_executor *ex, int microbatch)
{
  return data_address(ex, ex->first_keys, microbatch);
}

const char *lade_executor_note(const lade_executor *ex)
{
  return ex->note.text;
}

uint64_t lade_executor_host_bytes(const lade_executor *ex)
{
  return ex->host.bytes;
}

uint64_t lade_executor_n_steps(const lade_executor *ex)
{
  return ex->n_steps;
}

const struct lade_span *lade_executor_spans(const lade_executor *ex)
{
  return ex->train.spans;
}

/* ---- start and end ---- */

/* Allocate a table of @n buffers, all of them absent (-1). NULL: out of memory. */
static int32_t *buffers_make(size_t n)
{
  int32_t *buffers = malloc((n + 1) * sizeof(*buffers));
  if (buffers)
    memset(buffers, -1, (n + 1) * sizeof(*buffers));
  return buffers;
}

/*
 * Fill the table of resident buffers by value, from the operands that name both. A value that no instruction of this
 * stage reads or makes stays absent: a stage without layers has the graph's first keys, but no attention to read them.
 */
static int residents_find(lade_executor *ex)
{
  const struct lade_program *program = ex->params.plan->train;
  const struct lade_model_graph *graph = ex->graph;
  const size_t n = (size_t)program->n_microbatches;
  ex->resident = buffers_make((size_t)lade_value_count(graph));
  ex->resident_at = calloc((size_t)lade_value_count(graph) + 1, sizeof(*ex->resident_at));
  ex->tokens = buffers_make(n);
  ex->targets = buffers_make(n);
  ex->first_keys = buffers_make(n);
  ex->losses = buffers_make(n);
  bool *is_touched = calloc((size_t)program->n_buffers + 1, sizeof(*is_touched));
  if (!is_touched || !ex->resident || !ex->resident_at || !ex->tokens || !ex->targets || !ex->first_keys ||
      !ex->losses) {
    free(is_touched);
    return -ENOMEM;
  }
  for (int i = 0; i < program->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[i];
    if (!program->buffers[operand->buffer].is_resident || is_touched[operand->buffer])
      continue;
    is_touched[operand->buffer] = true; /* the first operand names the value that the buffer holds between steps */
    struct lade_value value = operand->access & LADE_READS ? operand->reads : operand->makes;
    if (value.tensor == graph->tokens)
      ex->tokens[value.microbatch] = operand->buffer;
    else if (value.tensor == graph->targets)
      ex->targets[value.microbatch] = operand->buffer;
    else if (value.tensor == graph->first_keys)
      ex->first_keys[value.microbatch] = operand->buffer;
    else if (value.tensor == graph->loss)
      ex->losses[value.microbatch] = operand->buffer;
    else if (value.tensor == lade_value_scalar(graph, LADE_SCALAR_CLIP_RESULT))
      ex->clip_result = operand->buffer;
    else {
      ex->resident[value.tensor] = operand->buffer;
      ex->resident_at[value.tensor] = operand->offset;
    }
  }
  free(is_touched);
  return 0;
}

/* True if a program of this rank has collectives over @axis, and the axis' ranks can read each other's memory. */
static bool axis_can_register(const lade_executor *ex, int axis)
{
  const struct lade_program *programs[] = {ex->params.plan->train, ex->params.plan->eval};
  struct lade_comm_info info = {0};
  if (ex->params.comms && ex->params.comms[axis])
    lade_comm_get_info(ex->params.comms[axis], &info);
  for (size_t p = 0; p < LADE_COUNT(programs) && info.can_register; p++)
    for (int i = 0; i < programs[p]->n_instrs; i++)
      if (programs[p]->instrs[i].kind == LADE_INSTR_COLLECTIVE && programs[p]->instrs[i].axis == axis)
        return true;
  return false;
}

/*
 * Create the arena's chunk: exportable to other processes if an axis can register it and the machine allows it; else
 * private.
 */
static int arena_create(lade_executor *ex)
{
  bool is_shared = false;
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    is_shared |= axis_can_register(ex, axis);
  ex->is_arena_shared = is_shared && !lade_device_chunk_create_shared(ex->device, ex->arena_bytes, &ex->chunk);
  return ex->is_arena_shared ? 0 : lade_device_chunk_create(ex->device, ex->arena_bytes, &ex->chunk);
}

/*
 * Register the arena on each axis that can. A rank without an exportable arena takes part with descriptor -1, because
 * the others wait for it.
 */
int lade_executor_meet(lade_executor *ex, struct lade_error *error)
{
  struct lade_comm_range range = {.data = (void *)(uintptr_t)ex->arena, .bytes = ex->arena_bytes, .descriptor = -1};
  int status = 0;
  if (ex->is_arena_shared && lade_device_chunk_export(ex->device, ex->chunk, &range.descriptor))
    range.descriptor = -1;
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++)
    if (axis_can_register(ex, axis))
      status = lade_comm_register(ex->params.comms[axis], &range, error, &ex->is_registered[axis]);
  if (range.descriptor >= 0)
    close(range.descriptor);
  if (ex->params.cuda_kernels)
    lade_cuda_mark_memory(ex->device, LADE_CUDA_NCCL);
  return status;
}

static void arena_unregister(lade_executor *ex)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    if (ex->is_registered[axis])
      lade_comm_unregister(ex->params.comms[axis], (void *)(uintptr_t)ex->arena);
}

static int device_take(lade_executor *ex, struct lade_error *error)
{
  struct lade_device_info info;
  struct lade_error why;
  lade_device_get_info(ex->device, &info);
  ex->is_dry = info.is_dry;
  if (!info.is_dry && !info.is_unified && (ex->params.plan->train->is_unified || !ex->params.cuda_kernels))
    return lade_error_set(error, -EINVAL, "the plan or the kernels are for memory that the host reaches");
  ex->arena_bytes = lade_align_up(ex->params.plan->peak_bytes[LADE_DEVICE], info.chunk_bytes);
  ex->reserved_bytes = ex->arena_bytes + info.chunk_bytes; /* accesses past the plan fault */
  int status = lade_device_reserve(ex->device, ex->reserved_bytes, &ex->arena);
  if (status) {
    ex->reserved_bytes = 0;
    return lade_error_set(error, status, "the device refused %llu bytes of addresses (%s)",
                          (unsigned long long)ex->arena_bytes, lade_device_reason(ex->device, status, &why));
  }
  status = arena_create(ex);
  if (!status)
    status = lade_device_map(ex->device, ex->arena, ex->chunk);
  return status ? lade_error_set(error, status, "the device refused %llu bytes of memory (%s), of %llu that it has%s",
                                 (unsigned long long)ex->arena_bytes, lade_device_reason(ex->device, status, &why),
                                 (unsigned long long)info.capacity_bytes,
                                 status == -ENOMEM ? "; others may have taken it" : "")
                : 0;
}

/* Return the NUMA node for the host tier, or -1: any. */
static int numa_node_get(const lade_executor *ex)
{
  struct lade_device_info device;
  struct lade_store_info info = {.numa_node = -1};
  lade_store *store = ex->params.durable ? lade_durable_store(ex->params.durable) : ex->params.store;
  if (store)
    lade_store_get_info(store, &info);
  lade_device_get_info(ex->device, &device);
  return lade_numa_choose(lade_numa_of_pci(device.pci, "/sys"), info.numa_node);
}

static int host_take(lade_executor *ex, struct lade_error *error)
{
  uint64_t bytes = ex->params.plan->peak_bytes[LADE_HOST];
  if (ex->is_dry || !bytes)
    return 0;
  const struct lade_pinned_params params = {
      .device = ex->device, .bytes = bytes, .limit_bytes = ex->params.host_limit_bytes,
      .numa_node = numa_node_get(ex), .is_for_drives = ex->params.plan->peak_bytes[LADE_STORE] > 0,
      .faults = ex->params.faults};
  int status = lade_pinned_init(&ex->host, &params);
  return status ? lade_error_set(error, status, "the machine refused %llu bytes for the host tier; lower --host-budget",
                                 (unsigned long long)bytes)
                : 0;
}

static int store_take(lade_executor *ex, struct lade_error *error)
{
  uint64_t bytes = ex->params.plan->peak_bytes[LADE_STORE];
  if (ex->is_dry || !bytes)
    return 0;
  ex->bounce = aligned_alloc(LADE_STORE_BLOCK_BYTES, LADE_EXECUTOR_WINDOW_BYTES);
  if (!ex->bounce)
    return lade_error_set(error, -ENOMEM, "no memory for a window of the store");
  if (ex->params.durable) {
    ex->n_steps = lade_durable_generation(ex->params.durable);
    ex->spill_offset = lade_durable_slot(ex->params.durable, 0).bytes;
  }
  LADE_ASSERT(bytes >= ex->spill_offset);
  bytes -= ex->spill_offset;
  if (!bytes)
    return 0;
  if (!ex->params.store)
    return lade_error_set(error, -EINVAL, "the plan uses a store, but none was opened");
  int status = lade_store_reserve(ex->params.store, bytes, &ex->extent);
  if (status)
    return lade_error_set(error, status, "the store has no room for %llu bytes", (unsigned long long)bytes);
  return lade_store_prepare(ex->params.store, error);
}

/* True if queue @q is needed. Queues between ranks are needed only if an instruction is on them. */
static bool queue_is_used(const lade_executor *ex, int q)
{
  const struct lade_plan *plan = ex->params.plan;
  bool is_used = q < LADE_Q_COMM_TP;
  for (int i = 0; i < plan->train->n_instrs && !is_used; i++)
    is_used = plan->train->instrs[i].queue == q;
  for (int i = 0; i < plan->eval->n_instrs && !is_used; i++)
    is_used = plan->eval->instrs[i].queue == q;
  return is_used;
}

static int queues_take(lade_executor *ex, struct lade_error *error)
{
  struct lade_error why;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (!queue_is_used(ex, q))
      continue;
    int status = lade_queue_create(ex->device, lade_program_queue_role((enum lade_queue_id)q), &ex->queues[q]);
    if (status)
      return lade_error_set(error, status, "the device refused a queue (%s)",
                            lade_device_reason(ex->device, status, &why));
  }
  return 0;
}

/* Check that every collective has a communicator with the size and this rank's position that the layout states. */
static int comms_match(const lade_executor *ex, const struct lade_program *program, struct lade_error *error)
{
  for (int i = 0; i < program->n_instrs && !ex->is_dry; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    if (!is_between_ranks(instr))
      continue;
    const lade_comm *comm = executor_comm(ex, instr);
    const enum lade_axis axis = (enum lade_axis)instr->axis;
    if (!comm || lade_comm_size(comm) != lade_layout_size(program->layout, axis) ||
        lade_comm_rank(comm) != lade_layout_position(program->layout, axis))
      return lade_error_set(error, -EINVAL, "the plan needs a communicator of %d ranks on axis %s, in which we are %d",
                            lade_layout_size(program->layout, axis), lade_axis_name(axis),
                            lade_layout_position(program->layout, axis));
  }
  return 0;
}

/* True if all parameters, or this rank's blocks of them, and their state are in the store. */
static bool is_all_stored(const lade_executor *ex)
{
  const struct lade_program *program = ex->params.plan->train;
  for (int value = 0; value < lade_value_count(ex->graph); value++) {
    if (ex->resident[value] >= 0 && program->buffers[ex->resident[value]].space != LADE_STORE)
      return false;
  }
  return true;
}

/* Return the memory of the io queue's transfers: the host tier, and the arena if the host reaches it. */
static struct lade_transfer_memory transfer_memory(const lade_executor *ex)
{
  struct lade_transfer_memory memory = {.host = {ex->host.data, ex->host.bytes}};
  if (ex->params.plan->train->is_unified) {
    memory.arena.at = (void *)(uintptr_t)ex->arena;
    memory.arena.bytes = ex->arena_bytes;
  }
  return memory;
}

/* Pin that memory for both stores. pre: arena and host tier are allocated. */
static void memory_pin(lade_executor *ex)
{
  const struct lade_transfer_memory memory = transfer_memory(ex);
  if (ex->is_dry || !ex->params.plan->peak_bytes[LADE_STORE])
    return;
  lade_transfer_memory_pin(&memory, ex->params.store);
  lade_transfer_memory_pin(&memory, ex->params.durable ? lade_durable_store(ex->params.durable) : NULL);
  ex->has_pinned = true;
}

/* Unpin it. Does nothing before memory_pin, because a partly created executor may lack arena and host tier. */
static void memory_unpin(lade_executor *ex)
{
  const struct lade_transfer_memory memory = transfer_memory(ex);
  if (!ex->has_pinned)
    return;
  lade_transfer_memory_unpin(&memory, ex->params.store);
  lade_transfer_memory_unpin(&memory, ex->params.durable ? lade_durable_store(ex->params.durable) : NULL);
  ex->has_pinned = false;
}

static int executor_init(lade_executor *ex, struct lade_error *error)
{
  const struct lade_plan *plan = ex->params.plan;
  if (!plan->train->is_proved || !plan->eval->is_proved)
    return lade_error_set(error, -EINVAL, "the plan is not proved");
  int status = device_take(ex, error);
  if (!status)
    status = host_take(ex, error);
  if (!status)
    status = store_take(ex, error);
  if (!status)
    status = comms_match(ex, plan->train, error);
  if (!status)
    status = comms_match(ex, plan->eval, error);
  if (!status)
    status = queues_take(ex, error);
  if (status)
    return status;
  status = residents_find(ex);
  if (!status)
    status = executor_states_place(ex);
  if (!status && ex->params.durable && !is_all_stored(ex))
    return lade_error_set(error, -EINVAL, "state can be durable only if the store is the tier of all of it");
  if (!status)
    status = bound_init(ex, plan->train, &ex->train);
  if (!status)
    status = bound_init(ex, plan->eval, &ex->eval);
  if (status)
    return lade_error_set(error, status, "no memory to bind the plan");
  executor_graphs_init(ex);
  memory_pin(ex);
  return 0;
}

int lade_executor_create(const struct lade_executor_params *params, struct lade_error *error,
                         lade_executor **ret_executor)
{
  lade_executor *ex = aligned_alloc(64, lade_align_up(sizeof(*ex), 64));
  if (!ex)
    return lade_error_set(error, -ENOMEM, "no memory for an executor");
  memset(ex, 0, sizeof(*ex));
  ex->params = *params;
  ex->device = params->device;
  ex->graph = params->plan->train->graph;
  ex->ctx = (struct lade_kernel_ctx){.pool = params->pool, .step = &ex->step, .kernels = params->kernels};
  lade_first_error_init(&ex->failure);
  int status = executor_init(ex, error);
  if (status) {
    lade_executor_destroy(ex);
    return status;
  }
  *ret_executor = ex;
  return 0;
}

void lade_executor_destroy(lade_executor *ex)
{
  if (!ex)
    return;
  for (int q = LADE_N_QUEUES - 1; q >= 0; q--)
    lade_queue_destroy(ex->queues[q]);
  memory_unpin(ex);
  arena_unregister(ex);
  executor_graphs_finish(&ex->eval);
  executor_graphs_finish(&ex->train);
  bound_finish(&ex->eval);
  bound_finish(&ex->train);
  free(ex->losses);
  free(ex->targets);
  free(ex->first_keys);
  free(ex->tokens);
  free(ex->state_places);
  free(ex->resident_at);
  free(ex->resident);
  free(ex->bounce);
  lade_pinned_finish(&ex->host);
  lade_device_chunk_release(ex->device, ex->chunk); /* mapped or not: unmapping may fail, releasing may not */
  if (ex->reserved_bytes)
    lade_device_release(ex->device, ex->arena, ex->reserved_bytes);
  lade_first_error_finish(&ex->failure);
  free(ex);
}
