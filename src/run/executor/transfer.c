/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers between memory and the store: map a value to a range of a file and to the identity of its checksums. A
 * transfer of a whole value is submitted and waited for in its queue's thread; the store keeps several pieces of it in
 * flight. Before the thread waits, it submits the transfers after that one, as far as their waits are met and they
 * touch other bytes (LADE_IO_AHEAD). So a drive is not idle for the latency of each value, and the queue still
 * completes its work in order. Updates that stream are in stream.c.
 *
 * Identities: a parameter's bytes belong to (tensor, number of updates so far). Bytes of any other value belong to
 * (tensor, microbatch, this run of a program, version). A block left from an earlier step, or from another value, fails
 * verification. Where state is durable, the number of updates also selects the slot, so a step never writes the bytes
 * that it reads. The program sees one place for both slots. Its waits order each write after the reads of that place;
 * two slots would need less.
 */
#include "run/executor/executor_internal.h"

#define TRANSIENT_GENERATION (UINT64_C(1) << 63)

static bool is_durable(const lade_executor *ex, uint32_t tensor)
{
  return ex->params.durable && ex->resident[tensor] >= 0;
}

void executor_address_stored(const lade_executor *ex, struct lade_value value, uint64_t offset,
                             struct lade_transfer *transfer)
{
  bool is_resident = ex->resident[value.tensor] >= 0;
  struct lade_identity identity = {.tensor = (uint32_t)value.tensor, .microbatch = (uint32_t)value.microbatch};
  identity.generation = is_resident ? ex->n_steps + (uint64_t)value.version
                                    : TRANSIENT_GENERATION | ex->n_runs << 16 | (uint64_t)(uint16_t)value.version;
  transfer->identity = identity;
  if (is_durable(ex, identity.tensor)) {
    transfer->extent = lade_durable_slot(ex->params.durable, identity.generation);
    transfer->offset = offset;
  } else {
    LADE_ASSERT(offset >= ex->spill_offset);
    transfer->extent = ex->extent;
    transfer->offset = offset - ex->spill_offset;
  }
}

void executor_address_state(const lade_executor *ex, struct lade_value value, uint64_t offset, uint64_t room_offset,
                            struct lade_transfer *transfer)
{
  executor_address_stored(ex, value, offset, transfer);
  transfer->sums_distance = (int64_t)(room_offset - offset);
}

static lade_store *store_of(const lade_executor *ex, const struct lade_transfer *transfer)
{
  return is_durable(ex, transfer->identity.tensor) ? lade_durable_store(ex->params.durable) : ex->params.store;
}

int executor_transfer_begin(const lade_executor *ex, struct lade_transfer *transfer, struct lade_error *error)
{
  int status = lade_store_submit(store_of(ex, transfer), transfer);
  return status ? lade_error_set(error, status, "the store refused a transfer") : 0;
}

/* Set @error to the direction and tensor of the failed transfer, followed by the store's own text. */
static int transfer_fail(const lade_executor *ex, const struct lade_transfer *transfer, int status,
                         const struct lade_error *why, struct lade_error *error)
{
  char name[LADE_NAME_BYTES + 16];
  return lade_error_set(error, status, "%s of tensor %s failed: %s",
                        transfer->op == LADE_STORE_READ ? "reading back" : "writing out",
                        lade_value_name(ex->graph, (int)transfer->identity.tensor, name), why->text);
}

int executor_transfer_wait(const lade_executor *ex, struct lade_transfer *transfer, struct lade_error *error)
{
  struct lade_error why = {0};
  int status = lade_store_wait(store_of(ex, transfer), transfer, &why);
  return status ? transfer_fail(ex, transfer, status, &why, error) : 0;
}

int executor_transfer_verify(const lade_executor *ex, const struct lade_transfer *transfer, struct lade_error *error)
{
  struct lade_error why = {0};
  int status = lade_store_verify(store_of(ex, transfer), transfer, 0, transfer->bytes, &why);
  return status ? transfer_fail(ex, transfer, status, &why, error) : 0;
}

void executor_transfer_seal(const lade_executor *ex, const struct lade_transfer *transfer)
{
  lade_store_seal(store_of(ex, transfer), transfer, 0, transfer->bytes);
}

int io_transfer_wait(lade_executor *ex, struct lade_transfer *transfer)
{
  struct lade_error line = {0};
  int status = executor_transfer_wait(ex, transfer, &line);
  if (status)
    executor_fail(ex, status, &line);
  return status;
}

int io_transfer_begin(lade_executor *ex, struct lade_transfer *transfer)
{
  struct lade_error line = {0};
  int status = executor_transfer_begin(ex, transfer, &line);
  if (status)
    executor_fail(ex, status, &line);
  return status;
}

void io_poll(const lade_executor *ex)
{
  if (ex->params.store)
    lade_store_poll(ex->params.store);
  if (ex->params.durable)
    lade_store_poll(lade_durable_store(ex->params.durable));
}

int io_transfer_verify(lade_executor *ex, const struct lade_transfer *transfer)
{
  struct lade_error line = {0};
  int status = executor_transfer_verify(ex, transfer, &line);
  if (status)
    executor_fail(ex, status, &line);
  return status;
}

/* Begin the transfer of @call. pre: its waits are met, and no transfer in flight conflicts with it. */
static int call_begin(struct io_call *call)
{
  executor_address_stored(call->executor, call->value, call->store_offset, &call->transfer);
  const int status = io_transfer_begin(call->executor, &call->transfer);
  call->is_begun = !status;
  return status;
}

/* True if @call was submitted in this run and the events that it waits for have happened. Never blocks. */
static bool call_is_ready(const struct io_call *call)
{
  const lade_executor *ex = call->executor;
  const struct lade_instr *instr = &call->bound->program->instrs[call->at];
  if (atomic_load(&call->submitted_run) != ex->n_runs)
    return false;
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] >= 0 && !lade_queue_poll(ex->queues[q], call->bound->counts[instr->waits[q]]))
      return false;
  }
  return true;
}

/*
 * Begin transfers after @call, which is in flight. All of them up to the last begun one are in flight, because they
 * begin in order; so a conflict with any of them is one with @call or a later transfer.
 */
static void calls_begin_ahead(const struct io_call *call)
{
  int32_t at = call->next;
  for (int n = 0; n < LADE_IO_AHEAD && at >= 0; n++) {
    struct io_call *next = &call->bound->ios[at];
    if (!next->is_begun && (next->after >= call->at || !call_is_ready(next) || call_begin(next)))
      return;
    at = next->next;
  }
}

void io_call_run(void *arg)
{
  struct io_call *call = arg;
  lade_executor *ex = call->executor;
  const bool is_failed = lade_first_error_code(&ex->failure) != 0;
  if (!call->is_begun && (is_failed || call_begin(call)))
    return;
  if (!is_failed)
    calls_begin_ahead(call);
  io_transfer_wait(ex, &call->transfer);
  call->is_begun = false;
}
