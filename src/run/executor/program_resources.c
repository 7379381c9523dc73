/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue roles and pinned memory of a program's run (run/program_resources.h).
 */
#include "run/program_resources.h"

#include "base/base.h"

enum lade_queue_role lade_program_queue_role(enum lade_queue_id q)
{
  static const enum lade_queue_role roles[LADE_N_QUEUES] = {
      [LADE_Q_COMPUTE] = LADE_QUEUE_COMPUTE, [LADE_Q_TO_HOST] = LADE_QUEUE_TO_HOST,
      [LADE_Q_TO_DEVICE] = LADE_QUEUE_TO_DEVICE, [LADE_Q_IO] = LADE_QUEUE_IO, [LADE_Q_HOST] = LADE_QUEUE_HOST,
      [LADE_Q_COMM_TP] = LADE_QUEUE_COMM, [LADE_Q_COMM_DP] = LADE_QUEUE_COMM, [LADE_Q_SEND] = LADE_QUEUE_COMM,
      [LADE_Q_RECV] = LADE_QUEUE_COMM};
  LADE_ASSERT((unsigned)q < LADE_N_QUEUES);
  return roles[q];
}

void lade_transfer_memory_pin(const struct lade_transfer_memory *memory, lade_store *store)
{
  if (store && memory->arena.bytes)
    lade_store_pin(store, memory->arena.at, memory->arena.bytes);
  if (store && memory->host.bytes)
    lade_store_pin(store, memory->host.at, memory->host.bytes);
}

void lade_transfer_memory_unpin(const struct lade_transfer_memory *memory, lade_store *store)
{
  if (store && memory->arena.bytes)
    lade_store_unpin(store, memory->arena.at, memory->arena.bytes);
  if (store && memory->host.bytes)
    lade_store_unpin(store, memory->host.at, memory->host.bytes);
}
