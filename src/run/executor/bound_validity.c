/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recount: that a bound program is whole, derived from its program and the executor's memory alone.
 *
 * Each instruction waits backwards, on queues that exist, for memory that its spaces have. It is bound to the kernel or
 * the transfer of its kind, and the bound addresses lie in the arena or in the host tier. Streamed updates, their items
 * and their lots tile each other in list order. On a dry device only copies are bound, to addresses that do not exist,
 * so bound addresses are not looked at there.
 *
 * It is asserted at the end of binding with -Dchecks=full. It is linear in operands and items.
 */
#include "run/executor/executor_internal.h"

/* ---- memory ---- */

/* Return the bytes that the executor has of @space. */
static uint64_t space_bytes(const lade_executor *ex, enum lade_space space)
{
  if (ex->is_dry)
    return ex->params.plan->peak_bytes[space];
  switch (space) {
  case LADE_DEVICE: return ex->arena_bytes;
  case LADE_HOST: return ex->host.bytes;
  default: return ex->spill_offset + ex->extent.bytes;
  }
}

/* True if [@offset, @offset + @bytes) ends within @limit_bytes. */
static bool is_within(uint64_t offset, uint64_t bytes, uint64_t limit_bytes)
{
  return offset <= limit_bytes && bytes <= limit_bytes - offset;
}

/* True if @bytes at @data are in the arena or in the host tier. */
static bool is_in_memory(const lade_executor *ex, const void *data, uint64_t bytes)
{
  const uint64_t at = (uintptr_t)data, host = (uintptr_t)ex->host.data;
  return (at >= ex->arena && is_within(at - ex->arena, bytes, ex->arena_bytes)) ||
         (host && at >= host && is_within(at - host, bytes, ex->host.bytes));
}

static bool operands_are_valid(const lade_executor *ex, const struct lade_program *program,
                               const struct lade_instr *instr)
{
  for (int i = 0; i < instr->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[instr->first_operand + i];
    if (operand->buffer < 0 || operand->buffer >= program->n_buffers)
      return false;
    const struct lade_buffer *buffer = &program->buffers[operand->buffer];
    if (!is_within(operand->offset, operand->bytes, buffer->bytes) ||
        !is_within(buffer->offset, buffer->bytes, space_bytes(ex, buffer->space)))
      return false;
  }
  return true;
}

/* ---- instructions ---- */

/* True if instruction @at waits for earlier ones only, of the queues that it names. */
static bool waits_are_backwards(const struct lade_program *program, int at)
{
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const int32_t wait = program->instrs[at].waits[q];
    if (wait < -1 || wait >= at || (wait >= 0 && program->instrs[wait].queue != q))
      return false;
  }
  return true;
}

/* True if @kernel computes an instruction of this kind. pre: the kind has a kernel. */
static bool kernel_is_of(const lade_executor *ex, const struct lade_instr *instr, int kernel)
{
  switch (instr->kind) {
  case LADE_INSTR_COMPUTE: return kernel == (int)ex->graph->ops[instr->op].kernel;
  case LADE_INSTR_GRAD_SUMSQ: return kernel == LADE_K_SUM_SQUARES || kernel == LADE_K_TREE_SUM;
  case LADE_INSTR_CLIP: return kernel == LADE_K_CLIP;
  case LADE_INSTR_UPDATE: return kernel == LADE_K_ADAMW || kernel == CALL_NOTHING;
  case LADE_INSTR_ADD: return kernel == LADE_K_ADD || kernel == CALL_NOTHING;
  case LADE_INSTR_SUM: return kernel == LADE_K_TREE_SUM;
  default: return kernel == LADE_K_CAST;
  }
}

static bool call_is_valid(const lade_executor *ex, const struct lade_instr *instr, const struct kernel_call *call)
{
  if (!kernel_is_of(ex, instr, call->kernel))
    return false;
  return call->kernel == CALL_NOTHING || ex->params.cuda_kernels || ex->params.kernels->fn[call->kernel];
}

static bool copy_is_valid(const lade_executor *ex, const struct lade_copy *copy)
{
  return copy->bytes && is_in_memory(ex, copy->src, copy->bytes) && is_in_memory(ex, copy->dst, copy->bytes);
}

static bool io_is_valid(const lade_executor *ex, const struct bound_program *bound, int at)
{
  const struct lade_instr *instr = &bound->program->instrs[at];
  const struct io_call *io = &bound->ios[at];
  const enum lade_store_op op = instr->kind == LADE_INSTR_READ ? LADE_STORE_READ : LADE_STORE_WRITE;
  return io->executor == ex && io->bound == bound && io->at == at && io->after < at &&
         (io->next < 0 || bound->before[io->next] == at) && !io->is_begun && io->transfer.op == op &&
         io->transfer.bytes &&
         is_within(io->store_offset, io->transfer.bytes, space_bytes(ex, LADE_STORE)) &&
         is_in_memory(ex, io->transfer.data, io->transfer.bytes);
}

/* True if @c is of the instruction's kind, between ranks that exist, and its blocks are in memory. */
static bool collective_is_valid(const lade_executor *ex, const struct lade_instr *instr,
                                const struct lade_collective *c)
{
  const bool is_send = instr->kind == LADE_INSTR_SEND, is_recv = instr->kind == LADE_INSTR_RECV;
  const lade_comm *comm = ex->params.comms ? ex->params.comms[instr->axis] : NULL;
  const int kind = is_send ? LADE_SEND : is_recv ? LADE_RECV : instr->collective;
  if (!comm || (int)c->kind != kind || (int)c->dtype < 0 || c->dtype >= LADE_N_DTYPES)
    return false;
  if ((is_send || is_recv) && (c->peer < 0 || c->peer >= lade_comm_size(comm) || c->peer == lade_comm_rank(comm)))
    return false;
  const uint64_t bytes = c->n * lade_dtype_bytes(c->dtype);
  return (is_recv ? !c->src : is_in_memory(ex, c->src, bytes)) && (is_send ? !c->dst : is_in_memory(ex, c->dst, bytes));
}

static bool stream_is_valid(const lade_executor *ex, const struct stream_call *call)
{
  int n_parts = 0;
  for (int role = 0; role <= LADE_ROLE_V; role++) {
    const int part = call->part_of_role[role];
    if (part < -1 || part >= call->n_parts || (part >= 0 && call->parts[part].role != role))
      return false;
    n_parts += part >= 0;
  }
  for (int i = 0; i < call->n_scales; i++) {
    if (!is_within(call->scales[i].store_offset, call->scales[i].bytes, space_bytes(ex, LADE_STORE)))
      return false;
  }
  for (int i = 0; i < call->n_parts; i++) {
    const struct stream_part *part = &call->parts[i];
    if (!is_within(part->store_offset, (uint64_t)call->n_held * part->element_bytes, space_bytes(ex, LADE_STORE)))
      return false;
  }
  return call->executor == ex && n_parts == call->n_parts && call->n_held > 0 && call->n_window > 0 &&
         call->n_window % LADE_STREAM_GRAIN == 0 && is_in_memory(ex, call->scratch, call->scratch_bytes) &&
         is_within(call->scales_offset, call->scales_bytes, call->scratch_bytes);
}

/* True if instruction @at has the kernel or the transfer of its kind. pre: the device is not dry. */
static bool work_is_valid(const lade_executor *ex, const struct bound_program *bound, int at)
{
  const struct lade_instr *instr = &bound->program->instrs[at];
  const bool is_stream = instr->kind == LADE_INSTR_UPDATE && instr->is_streamed;
  if (bound->calls[at].executor != ex || (bound->streams[at] != NULL) != is_stream)
    return false;
  switch (instr->kind) {
  case LADE_INSTR_COPY: return copy_is_valid(ex, &bound->copies[at]);
  case LADE_INSTR_READ:
  case LADE_INSTR_WRITE: return io_is_valid(ex, bound, at);
  case LADE_INSTR_COLLECTIVE:
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV: return collective_is_valid(ex, instr, &bound->collectives[at]);
  default: return is_stream ? stream_is_valid(ex, bound->streams[at]) : call_is_valid(ex, instr, &bound->calls[at]);
  }
}

static bool instr_is_bound(const lade_executor *ex, const struct bound_program *bound, int at)
{
  const struct lade_program *program = bound->program;
  const struct lade_instr *instr = &program->instrs[at];
  const struct lade_comm_list *list = &bound->comms[at].list;
  if (instr->kind >= LADE_N_INSTR_KINDS || instr->queue >= LADE_N_QUEUES || !ex->queues[instr->queue])
    return false;
  if (!waits_are_backwards(program, at) || !operands_are_valid(ex, program, instr))
    return false;
  if (bound->copies[at].ret_span != &bound->spans[at] || bound->comms[at].ret_span != &bound->spans[at] ||
      list->items != &bound->collectives[at] || list->n != lade_program_group_end(program, at) - at)
    return false;
  return ex->is_dry || work_is_valid(ex, bound, at);
}

/* ---- streamed updates ---- */

/* True if the items of @call continue those before it, hold each of its elements once, and lie in the scratch. */
static bool items_are_valid(const struct stream_run *run, const struct stream_call *call, int first_item)
{
  int64_t n = 0;
  if (call->run != run || call->first_item != first_item || call->end_item <= first_item ||
      call->end_item > run->n_items)
    return false;
  for (int i = first_item; i < call->end_item; i++) {
    const struct stream_item *item = &run->items[i];
    if (item->call != call || item->first != n || item->n <= 0 || item->n > call->n_window ||
        item->offset >= run->scratch_bytes || item->lot < 0 || item->lot >= run->n_lots)
      return false;
    n += item->n;
  }
  return n == call->n_held;
}

/* True if the lots of @run tile its items, have their grains, and wait for earlier lots only. */
static bool lots_are_valid(const struct stream_run *run)
{
  int n_items = 0;
  for (int at = 0; at < run->n_lots; at++) {
    const struct stream_lot *lot = &run->lots[at];
    int n_grains = 0;
    if (lot->first_item != n_items || lot->end_item <= n_items || lot->end_item > run->n_items || lot->after < -1 ||
        lot->after >= at)
      return false;
    for (; n_items < lot->end_item; n_items++) {
      n_grains += (int)lade_div_up(run->items[n_items].n, LADE_STREAM_GRAIN);
      if (run->items[n_items].lot != at)
        return false;
    }
    if (lot->n_grains != n_grains)
      return false;
  }
  return n_items == run->n_items;
}

static bool run_is_valid(const struct bound_program *bound, const struct stream_run *run, int first_call)
{
  int n_items = 0;
  if (run->calls != bound->stream_calls + first_call || run->n_calls < 1 || run->slots != bound->stream_slots ||
      run->reading_max > run->scratch_bytes || run->lot_bytes > run->scratch_bytes)
    return false;
  for (int i = 0; i < run->n_calls; i++) {
    const struct stream_call *call = run->calls[i];
    if (call->scratch != run->scratch || call->scratch_bytes != run->scratch_bytes ||
        !items_are_valid(run, call, n_items))
      return false;
    n_items = call->end_item;
  }
  return n_items == run->n_items && lots_are_valid(run);
}

/* True if the streamed updates are those of the runs, in list order. */
static bool runs_are_valid(const struct bound_program *bound)
{
  int n_streams = 0, n_calls = 0, i_call = 0;
  for (int at = 0; at < bound->program->n_instrs; at++)
    n_streams += bound->streams[at] != NULL;
  for (int i = 0; i < bound->n_runs; i++)
    n_calls += bound->runs[i].n_calls;
  if (n_calls != n_streams)
    return false;
  for (int at = 0; at < bound->program->n_instrs; at++) {
    if (bound->streams[at] && bound->stream_calls[i_call++] != bound->streams[at])
      return false;
  }
  n_calls = 0;
  for (int i = 0; i < bound->n_runs; n_calls += bound->runs[i++].n_calls) {
    if (!run_is_valid(bound, &bound->runs[i], n_calls))
      return false;
  }
  return true;
}

bool bound_program_is_valid(const lade_executor *ex, const struct bound_program *bound)
{
  int32_t last[LADE_N_QUEUES];
  for (int q = 0; q < LADE_N_QUEUES; q++)
    last[q] = -1;
  for (int at = 0; at < bound->program->n_instrs; at++) {
    if (!instr_is_bound(ex, bound, at))
      return false;
    const int queue = bound->program->instrs[at].queue;
    if (bound->before[at] != last[queue])
      return false;
    last[queue] = at;
  }
  return runs_are_valid(bound);
}
