/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packer's account: memory taken from its arena, effort spent, and the best answer so far.
 *
 * Every search of the packer takes its scratch here, tells its steps here and offers its answers here, so none of them
 * knows another. Effort is a number of steps, which is the same on every run; only where there is a deadline is the
 * clock read, and then seldom.
 */
#include <string.h>

#include "alloc/pack/pack_internal.h"

/* Steps between two reads of the clock: well under a millisecond. */
#define WORK_PER_LOOK 300000

void *lade_pack_take(lade_packer *packer, size_t bytes)
{
  void *p = packer->arena + packer->arena_used;
  packer->arena_used += lade_align_up(bytes, 16);
  LADE_ASSERT(packer->arena_used <= packer->arena_bytes);
  return p;
}

bool lade_pack_spend(struct pack_effort *effort, uint64_t work)
{
  effort->work += work;
  if (effort->work >= effort->work_limit)
    effort->is_spent = true;
  if (effort->deadline_ns && effort->work >= effort->work_at_look) {
    effort->work_at_look = effort->work + WORK_PER_LOOK;
    effort->is_spent |= lade_now_ns() >= effort->deadline_ns;
  }
  return effort->is_spent;
}

bool lade_pack_is_late(const struct pack_effort *effort)
{
  return effort->deadline_ns && lade_now_ns() >= effort->deadline_ns;
}

bool lade_pack_offer(lade_packer *packer)
{
  const struct pack_problem *problem = &packer->problem;
  uint64_t peak = 0;
  for (int i = 0; i < problem->n; i++)
    peak = LADE_MAX(peak, packer->offsets[i] + problem->items[i].bytes);
  if (peak < packer->best_bytes) {
    packer->best_bytes = peak;
    memcpy(packer->best, packer->offsets, (size_t)problem->n * sizeof(*packer->best));
  }
  return packer->best_bytes <= packer->target_bytes;
}

void lade_pack_effort_narrow(struct pack_effort *effort, double part, uint64_t work)
{
  uint64_t left = effort->work_limit - effort->work;
  if (effort->work_limit != UINT64_MAX)
    work = LADE_MIN(work, (uint64_t)((double)left * part));
  if (work < left)
    effort->work_limit = effort->work + work;
  if (effort->deadline_ns) {
    int64_t now_ns = lade_now_ns();
    effort->deadline_ns = now_ns + (int64_t)((double)(effort->deadline_ns - now_ns) * part);
  }
}

void lade_pack_effort_widen(struct pack_effort *effort, const struct pack_effort *full)
{
  effort->work_limit = full->work_limit;
  effort->deadline_ns = full->deadline_ns;
  effort->work_at_look = 0;
  effort->is_spent = false;
  lade_pack_spend(effort, 0);
}
