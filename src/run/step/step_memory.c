/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a stepper, and its instructions bound to it. The device's arena is mapped to the planned peak. The chunk of
 * addresses after it stays unmapped, so that an access past the plan faults. The host's slab and the store's room are
 * as long as planned. On a dry device there are addresses alone, and nothing runs.
 *
 * Each op that runs has its call ready, with the addresses of its ranges in the graph's order. They come from the
 * instruction's operands, one for each storage, so a map from storage to operand is filled op by op.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/echo.h"
#include "device/cuda.h"
#include "offload/numa.h"
#include "run/program_resources.h"
#include "run/step/step_internal.h"

/* ---- memory ---- */

static int arena_take(lade_stepper *stepper, struct lade_error *error)
{
  struct lade_device_info info;
  struct lade_error why;
  lade_device_get_info(stepper->device, &info);
  stepper->created_bytes = info.created_bytes;
  stepper->arena_bytes = stepper->program->peak_bytes[LADE_DEVICE];
  const uint64_t reserved_bytes = stepper->arena_bytes + info.chunk_bytes;
  int status = lade_device_reserve(stepper->device, reserved_bytes, &stepper->arena);
  if (status)
    return lade_error_set(error, status, "the device refused %llu bytes of addresses (%s)",
                          (unsigned long long)reserved_bytes,
                          lade_device_reason(stepper->device, status, &why));
  stepper->reserved_bytes = reserved_bytes;
  if (!stepper->arena_bytes)
    return 0;
  status = lade_device_chunk_create(stepper->device, stepper->arena_bytes, &stepper->chunk);
  if (!status)
    status = lade_device_map(stepper->device, stepper->arena, stepper->chunk);
  return status ? lade_error_set(error, status, "the device refused %llu bytes of memory (%s), of %llu that it has",
                                 (unsigned long long)stepper->arena_bytes,
                                 lade_device_reason(stepper->device, status, &why),
                                 (unsigned long long)info.capacity_bytes)
                : 0;
}

static int host_take(lade_stepper *stepper, struct lade_error *error)
{
  const uint64_t bytes = stepper->program->peak_bytes[LADE_HOST];
  struct lade_device_info device;
  struct lade_store_info store = {.numa_node = -1};
  if (stepper->is_dry || !bytes)
    return 0;
  lade_device_get_info(stepper->device, &device);
  if (stepper->store)
    lade_store_get_info(stepper->store, &store);
  const struct lade_pinned_params params = {
      .device = stepper->device, .bytes = bytes, .limit_bytes = bytes, .is_for_drives = stepper->store,
      .numa_node = lade_numa_choose(lade_numa_of_pci(device.pci, "/sys"), store.numa_node), .faults = stepper->faults};
  const int status = lade_pinned_init(&stepper->host, &params);
  return status ? lade_error_set(error, status, "the machine refused %llu bytes for storages that wait on the host",
                                 (unsigned long long)bytes)
                : 0;
}

static int store_take(lade_stepper *stepper, struct lade_error *error)
{
  const uint64_t bytes = stepper->program->peak_bytes[LADE_STORE];
  if (stepper->is_dry || !bytes)
    return 0;
  if (!stepper->params.store)
    return lade_error_set(error, -EINVAL, "the plan takes %llu bytes of a store, and no directory of one is named",
                          (unsigned long long)bytes);
  const struct lade_store_params params = {.struct_size = sizeof(params), .dir = stepper->params.store,
                                           .capacity_bytes = bytes, .allow_tmpfs = stepper->params.allow_tmpfs,
                                           .allow_buffered = stepper->params.allow_tmpfs, .faults = stepper->faults};
  stepper->bounce = aligned_alloc(LADE_STORE_BLOCK_BYTES, STEP_WINDOW_BYTES);
  if (!stepper->bounce)
    return lade_error_set(error, -ENOMEM, "no memory for a window of the store");
  int status = lade_store_open(&params, error, &stepper->store);
  if (status)
    return status;
  status = lade_store_reserve(stepper->store, bytes, &stepper->extent);
  if (status)
    return lade_error_set(error, status, "the store has no room for %llu bytes", (unsigned long long)bytes);
  return lade_store_prepare(stepper->store, error);
}

static bool queue_is_used(const lade_stepper *stepper, int q)
{
  for (int at = 0; at < stepper->program->n_instrs; at++) {
    if (stepper->program->instrs[at].queue == q)
      return true;
  }
  return false;
}

/* Create the queues; between runs those for copies to and from a GPU are used too. */
static int queues_take(lade_stepper *stepper, struct lade_error *error)
{
  struct lade_error why;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const bool is_copy = q == LADE_Q_TO_HOST || q == LADE_Q_TO_DEVICE;
    if (!queue_is_used(stepper, q) && !(is_copy && !stepper->is_unified))
      continue;
    const enum lade_queue_role role = lade_program_queue_role((enum lade_queue_id)q);
    int status = q == LADE_Q_COMPUTE && stepper->params.stream
                     ? lade_cuda_queue_adopt(stepper->device, role, stepper->params.stream, &stepper->queues[q])
                     : lade_queue_create(stepper->device, role, &stepper->queues[q]);
    if (status)
      return lade_error_set(error, status, "the device refused a queue (%s)",
                            lade_device_reason(stepper->device, status, &why));
  }
  return 0;
}

/* Return the memory of the store's transfers: the host's slab, and the arena if the host reaches it. */
static struct lade_transfer_memory transfer_memory(const lade_stepper *stepper)
{
  struct lade_transfer_memory memory = {.host = {stepper->host.data, stepper->host.bytes}};
  if (stepper->is_unified) {
    memory.arena.at = (void *)(uintptr_t)stepper->arena;
    memory.arena.bytes = stepper->arena_bytes;
  }
  return memory;
}

int step_memory_take(lade_stepper *stepper, struct lade_error *error)
{
  int status = arena_take(stepper, error);
  if (!status)
    status = store_take(stepper, error);
  if (!status)
    status = host_take(stepper, error);
  if (!status)
    status = queues_take(stepper, error);
  if (status)
    return status;
  const struct lade_transfer_memory memory = transfer_memory(stepper);
  lade_transfer_memory_pin(&memory, stepper->store);
  stepper->is_pinned = true;
  return 0;
}

void step_memory_release(lade_stepper *stepper)
{
  for (int q = LADE_N_QUEUES - 1; q >= 0; q--)
    lade_queue_destroy(stepper->queues[q]);
  const struct lade_transfer_memory memory = transfer_memory(stepper);
  if (stepper->is_pinned) /* not after a failed take, which may have left the memory or the store incomplete */
    lade_transfer_memory_unpin(&memory, stepper->store);
  lade_store_close(stepper->store);
  free(stepper->bounce);
  lade_pinned_finish(&stepper->host);
  if (stepper->chunk)
    lade_device_chunk_release(stepper->device, stepper->chunk);
  if (stepper->reserved_bytes)
    lade_device_release(stepper->device, stepper->arena, stepper->reserved_bytes);
}

/* ---- binding ---- */

void *step_address(const lade_stepper *stepper, int32_t buffer, uint64_t offset)
{
  const struct lade_buffer *b = &stepper->program->buffers[buffer];
  const uintptr_t base = b->space == LADE_HOST ? (uintptr_t)stepper->host.data : (uintptr_t)stepper->arena;
  LADE_ASSERT(b->space != LADE_STORE);
  return (void *)(base + b->offset + offset);
}

static void *operand_address(const lade_stepper *stepper, const struct lade_operand *operand)
{
  return step_address(stepper, operand->buffer, operand->offset);
}

/* Fill the call of op instruction @at, with its addresses at @addresses; @buffers: room by storage. */
static void call_bind(lade_stepper *stepper, int at, int32_t *buffers, void **addresses)
{
  const struct lade_program *program = stepper->program;
  const struct lade_instr *instr = &program->instrs[at];
  const struct graph_op *op = &stepper->graph->ops.items[instr->op];
  struct step_call *bound = &stepper->calls[at];
  *bound = (struct step_call){.stepper = stepper, .at = at};
  bound->call = (struct lade_op_call){.struct_size = sizeof(bound->call), .op = instr->op,
                                      .is_redo = instr->is_recompute, .reads = addresses,
                                      .writes = addresses + op->n_reads,
                                      .updates = addresses + op->n_reads + op->n_writes};
  for (int i = 0; i < instr->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[instr->first_operand + i];
    const struct lade_value value = operand->access & LADE_READS ? operand->reads : operand->makes;
    if (operand->role == LADE_ROLE_SCRATCH)
      bound->call.scratch = operand_address(stepper, operand);
    else
      buffers[value.tensor] = operand->buffer;
  }
  for (int i = 0; i < graph_op_n_operands(op); i++) {
    const struct graph_operand *range = &stepper->graph->operands.items[op->first_operand + i];
    const bool has_bytes = stepper->graph->storages.items[range->storage].bytes > 0;
    addresses[i] = has_bytes ? step_address(stepper, buffers[range->storage], range->offset) : NULL;
  }
}

static void copy_bind(lade_stepper *stepper, int at)
{
  const struct lade_instr *instr = &stepper->program->instrs[at];
  const struct lade_operand *operands = &stepper->program->operands[instr->first_operand];
  stepper->copies[at] = (struct lade_copy){.src = operand_address(stepper, &operands[0]),
                                           .dst = operand_address(stepper, &operands[1]), .bytes = operands[0].bytes};
}

static void transfer_bind(lade_stepper *stepper, int at)
{
  const struct lade_instr *instr = &stepper->program->instrs[at];
  const struct lade_operand *operands = &stepper->program->operands[instr->first_operand];
  const bool is_read = instr->kind == LADE_INSTR_READ;
  const struct lade_operand *stored = &operands[is_read ? 0 : 1], *memory = &operands[is_read ? 1 : 0];
  stepper->transfers[at] = (struct step_transfer){
      .stepper = stepper, .value = operands[0].reads,
      .moved_bytes = stepper->program->buffers[memory->buffer].space == LADE_DEVICE ? memory->bytes : 0,
      .transfer = {.op = is_read ? LADE_STORE_READ : LADE_STORE_WRITE, .check = LADE_CHECK_STORE,
                   .extent = stepper->extent, .offset = stepper->program->buffers[stored->buffer].offset,
                   .bytes = stored->bytes, .data = operand_address(stepper, memory)}};
}

/* Return the operands of all ops that the program runs, as the graph counts them. */
static size_t addresses_count(const lade_stepper *stepper)
{
  size_t n = 0;
  for (int at = 0; at < stepper->program->n_instrs; at++) {
    const struct lade_instr *instr = &stepper->program->instrs[at];
    n += instr->kind == LADE_INSTR_COMPUTE ? (size_t)graph_op_n_operands(&stepper->graph->ops.items[instr->op]) : 0;
  }
  return n;
}

int step_bind(lade_stepper *stepper)
{
  const size_t n = (size_t)stepper->program->n_instrs + 1;
  stepper->counts = calloc(n, sizeof(*stepper->counts));
  if (!stepper->counts)
    return -ENOMEM;
  if (stepper->is_dry)
    return 0;
  int32_t *buffers = calloc((size_t)stepper->graph->storages.n + 1, sizeof(*buffers));
  stepper->calls = calloc(n, sizeof(*stepper->calls));
  stepper->copies = calloc(n, sizeof(*stepper->copies));
  stepper->transfers = calloc(n, sizeof(*stepper->transfers));
  stepper->addresses = calloc(addresses_count(stepper) + 1, sizeof(*stepper->addresses));
  if (!buffers || !stepper->calls || !stepper->copies || !stepper->transfers || !stepper->addresses) {
    free(buffers);
    return -ENOMEM;
  }
  void **next = stepper->addresses;
  for (int at = 0; at < stepper->program->n_instrs; at++) {
    const struct lade_instr *instr = &stepper->program->instrs[at];
    if (instr->kind == LADE_INSTR_COMPUTE) {
      call_bind(stepper, at, buffers, next);
      next += graph_op_n_operands(&stepper->graph->ops.items[instr->op]);
    } else if (instr->kind == LADE_INSTR_COPY) {
      copy_bind(stepper, at);
    } else {
      transfer_bind(stepper, at);
    }
  }
  free(buffers);
  return 0;
}

void step_unbind(lade_stepper *stepper)
{
  free(stepper->addresses);
  free(stepper->transfers);
  free(stepper->copies);
  free(stepper->calls);
  free(stepper->counts);
}
