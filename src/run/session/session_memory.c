/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This machine's memory, as a session divides it. One amount (base/memory.h) holds everything in RAM: the arena of a
 * host device, the host tier, a store on a tmpfs, and the process itself. Ranks of a node share it.
 *
 * Before planning, each rank gets its part of that amount, less the expected growth of its process; budgets are made of
 * the rest. Without a program the growth is estimated from the graph. With the plan it is known better, and the process
 * has the heap that planning left. So before any tier is taken the amount is read again, and the plans of all ranks of
 * the node must fit it together. A process that the kernel kills reports nothing; a refusal does.
 *
 * The growth after planning, measured on the host as the high-water mark less tiers, was 1 MiB for nano. It was 5 to 6
 * MiB for baby with host tier, store or saves, and 9 MiB for baby with a program of 6,900 instructions. The bound is
 * the sum of its parts: windows of saves and digests, threads, the bound programs, checksums, and page tables.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/host_id.h"
#include "base/memory.h"
#include "run/session/session_internal.h"

#define WINDOWS_BYTES (UINT64_C(12) << 20)   /* most bytes of a save's windows; a digest takes less (session_save.c) */
#define FIXED_BYTES (UINT64_C(2) << 20)      /* heap, io buffers and code used for the first time */
#define THREAD_BYTES (UINT64_C(128) << 10)   /* used stack, and the kernel's part of a thread */
#define N_QUEUE_THREADS 12                   /* queues of a device and threads of a store */
#define INSTR_BYTES UINT64_C(1024)           /* a bound program's; measured: 800 */
#define PLANNED_INSTR_BYTES UINT64_C(2048)   /* more, in the planned program */
#define INSTRS_PER_OP UINT64_C(6)            /* with copies and streamed updates; measured: 1 to 5.3 */
#define CHECKSUM_BYTES UINT64_C(32)          /* of a granule of the store, with the tables of durable state */
#define TABLE_SHARE 256                      /* page tables: 8 bytes per 4 KiB, twice */
#define COMM_BYTES (3 * LADE_COMM_STAGING_BYTES) /* a rank's part of a communicator's segment */
#define RANK_BYTES (UINT64_C(64) << 20)      /* a planned rank that does not run here: its code, heap and MPI */
#define GPU_BYTES (UINT64_C(256) << 20)      /* host memory that a driver and NCCL take when a run begins */

/* Return the bytes that this process grows by, beside @tier_bytes in memory and @store_bytes, to run @n_instrs. */
static uint64_t growth_bytes(const lade_session *s, uint64_t n_instrs, uint64_t tier_bytes, uint64_t store_bytes)
{
  const uint64_t n_threads = (uint64_t)lade_pool_n_threads(s->pool) + N_QUEUE_THREADS;
  uint64_t bytes = WINDOWS_BYTES + FIXED_BYTES + n_threads * THREAD_BYTES + n_instrs * INSTR_BYTES +
                   tier_bytes / TABLE_SHARE + store_bytes / LADE_STORE_GRANULE_BYTES * CHECKSUM_BYTES;
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    bytes += lade_layout_size(&s->group.layout, (enum lade_axis)axis) > 1 ? COMM_BYTES : 0;
  return bytes + (s->params.is_gpu ? GPU_BYTES : 0);
}

/* Return an upper bound of a plan's bytes in a store: state of eight times a parameter's bytes, and all values. */
static uint64_t stored_max(const lade_session *s)
{
  const uint64_t times = 8 * (uint64_t)s->n_microbatches, max = s->store_bytes / times;
  uint64_t bytes = 0;
  for (int tensor = 0; tensor < s->graph->n_tensors && bytes <= max; tensor++) /* ends before the product overflows */
    bytes += s->graph->tensors[tensor].bytes;
  return bytes <= max ? times * bytes : s->store_bytes;
}

/* Return the growth before there is a plan, with the memory that planning leaves allocated. */
static uint64_t own_bytes(const lade_session *s, uint64_t bytes)
{
  const uint64_t n_instrs = (uint64_t)s->graph->n_ops * (uint64_t)s->n_microbatches * INSTRS_PER_OP;
  const bool is_here = s->group.world || s->params.n_node_ranks == 1;
  return growth_bytes(s, 0, bytes, stored_max(s)) + n_instrs * (INSTR_BYTES + PLANNED_INSTR_BYTES) +
         (is_here ? 0 : RANK_BYTES);
}

int session_memory_share(lade_session *s, struct lade_error *error)
{
  if (session_is_described(s)) {
    s->left_bytes = s->cost.machine.host_bytes; /* of one rank already */
    return session_agree_min(s, &s->left_bytes, error);
  }
  int status = lade_rank_group_vote(&s->group, lade_memory_get("", error, &s->memory), error);
  if (status)
    return status;
  const uint64_t bytes = s->memory.bytes / (uint64_t)s->params.n_node_ranks;
  s->own_bytes = own_bytes(s, bytes);
  s->left_bytes = bytes - LADE_MIN(bytes, s->own_bytes);
  return session_agree_min(s, &s->left_bytes, error);
}

/* Refuse with @words, the current limit, and a limit that would hold @needed_bytes of all ranks here. */
static int refuse(const lade_session *s, const char *words, uint64_t needed_bytes, struct lade_error *error)
{
  const struct lade_memory *memory = &s->memory;
  const uint64_t used_bytes = memory->limit_bytes - memory->bytes;
  char leaves[32], limit[32], enough[32];
  return lade_error_set(error, -EOVERFLOW, "%.250s; %s leaves %s of its %s, and about %s there would do", words,
                        memory->source, lade_size_format(memory->bytes, leaves, sizeof(leaves)),
                        lade_size_format(memory->limit_bytes, limit, sizeof(limit)),
                        lade_size_format(used_bytes + needed_bytes, enough, sizeof(enough)));
}

int session_memory_refuse(const lade_session *s, const char *words, uint64_t needed_bytes, struct lade_error *error)
{
  char whole[250], own[32];
  snprintf(whole, sizeof(whole), "%s beside the %s of the process itself", words,
           lade_size_format(s->own_bytes, own, sizeof(own)));
  const uint64_t rank_bytes = needed_bytes + s->own_bytes + s->store_memory_bytes;
  return refuse(s, whole, rank_bytes * (uint64_t)s->params.n_node_ranks, error);
}

/* Return the bytes of the durable state, which a store in memory must hold. */
static uint64_t durable_bytes(const lade_session *s)
{
  return s->params.is_durable ? session_durable_slot(s) + session_durable_extra(s) : 0;
}

/* Take the store's bytes from the tiers: half of them unless stated, or unless durable state needs more. */
static int store_take(lade_session *s, uint64_t held_bytes, struct lade_error *error)
{
  char words[200], need[32];
  const uint64_t held = LADE_MIN(held_bytes, s->store_bytes);
  const uint64_t min = durable_bytes(s) - LADE_MIN(held, durable_bytes(s));
  uint64_t max = s->params.store_budget_bytes ? s->left_bytes : LADE_MAX(s->left_bytes / 2, min);
  if (min > s->left_bytes) {
    snprintf(words, sizeof(words), "--durable needs %s more of --store %.64s, which is memory, and the tiers beside it "
             "take theirs,", lade_size_format(min, need, sizeof(need)), s->params.store);
    return session_memory_refuse(s, words, min, error);
  }
  max = LADE_MIN(max, s->store_bytes - held);
  s->store_bytes = held + max;
  s->left_bytes -= max;
  s->store_memory_bytes = max;
  s->is_store_memory = true;
  return 0;
}

int session_memory_store(lade_session *s, uint64_t held_bytes, struct lade_error *error)
{
  bool is_memory = false;
  if (!s->params.store || session_is_described(s))
    return 0;
  int status = lade_store_is_memory(s->params.store, &is_memory, error);
  if (!status && is_memory)
    status = store_take(s, held_bytes, error);
  return lade_rank_group_vote(&s->group, status, error);
}

/* ---- with the plan ---- */

struct memory_use {
  uint64_t node, available_bytes, needed_bytes;
};

/* Return the bytes of this machine's memory that running the plan takes from now on. */
static uint64_t plan_bytes(const lade_session *s)
{
  const struct lade_plan *plan = s->plan;
  const uint64_t n_instrs = (uint64_t)plan->train->n_instrs + (uint64_t)plan->eval->n_instrs;
  const uint64_t store_bytes = plan->peak_bytes[LADE_STORE] + session_durable_extra(s), held = session_durable_held(s);
  const uint64_t device_bytes = s->params.is_gpu ? 0 : lade_align_up(plan->peak_bytes[LADE_DEVICE], s->chunk_bytes);
  const uint64_t tier_bytes = device_bytes + plan->peak_bytes[LADE_HOST];
  return tier_bytes + (s->is_store_memory ? store_bytes - LADE_MIN(held, store_bytes) : 0) +
         growth_bytes(s, n_instrs, tier_bytes, store_bytes);
}

/* Return the bytes that the ranks of this node need together, and the least that any of them finds available. */
static struct memory_use node_sum(const lade_session *s, const struct memory_use *own, const struct memory_use *all)
{
  struct memory_use sum = *own;
  if (!all) {
    sum.needed_bytes *= (uint64_t)s->params.n_node_ranks;
    return sum;
  }
  sum.needed_bytes = 0;
  for (int rank = 0; rank < s->group.layout.mesh.world; rank++) {
    if (all[rank].node != own->node)
      continue;
    sum.needed_bytes += all[rank].needed_bytes;
    sum.available_bytes = LADE_MIN(sum.available_bytes, all[rank].available_bytes);
  }
  return sum;
}

static int sum_check(const lade_session *s, const struct memory_use *sum, struct lade_error *error)
{
  char words[200], need[LADE_SIZE_TEXT], tiers[LADE_SIZE_TEXT];
  if (sum->needed_bytes <= sum->available_bytes)
    return 0;
  const uint64_t tier_bytes = s->plan->peak_bytes[LADE_DEVICE] + s->plan->peak_bytes[LADE_HOST];
  snprintf(words, sizeof(words), "the plan takes %s of memory for device and host tier, and with all ranks and their "
           "processes %s", lade_size_format(tier_bytes, tiers, 32), lade_size_format(sum->needed_bytes, need, 32));
  return refuse(s, words, sum->needed_bytes, error);
}

int session_memory_check(lade_session *s, struct lade_error *error)
{
  struct memory_use own = {.node = lade_host_id()}, *all = NULL;
  if (session_is_described(s))
    return 0;
  lade_memory_trim(); /* frees the heap of planning */
  int status = lade_memory_get("", error, &s->memory);
  if (!status)
    own.needed_bytes = plan_bytes(s);
  own.available_bytes = s->memory.bytes;
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status && s->group.world)
    status = lade_rank_group_collect(&s->group, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (status)
    return status;
  const struct memory_use sum = node_sum(s, &own, all);
  free(all);
  return lade_rank_group_vote(&s->group, sum_check(s, &sum, error), error);
}
