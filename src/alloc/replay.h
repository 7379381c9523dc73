/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: a trace under a policy of placing memory, without memory. What would be reserved at the peak, how much of
 * that is waste, and where a budget would run out.
 */
#ifndef LADE_REPLAY_H
#define LADE_REPLAY_H

#include "alloc/trace.h"

enum lade_policy {
  LADE_POLICY_CACHING, /* lade/cache.h itself, one call at a time */
  LADE_POLICY_TORCH_NATIVE,     /* a model of PyTorch's allocator (torch_model.h) */
  LADE_POLICY_TORCH_EXPANDABLE, /* the same with expandable segments */
  LADE_POLICY_PACKED, /* lade/pack.h: all lifetimes known ahead */
  LADE_N_POLICIES
};

struct lade_replay_params {
  enum lade_policy policy;
  uint64_t budget_bytes; /* of reserved memory; 0: none */
  int64_t time_limit_ns; /* of the packer's search */
};

struct lade_replay {
  uint64_t reserved_peak_bytes; /* what the policy needs; with a budget that is too small, without it */
  uint64_t lower_bound_bytes;   /* no policy that does not move live blocks reserves less */
  int64_t ns;                   /* that placing took */
  uint64_t *reserved_bytes;     /* after each event of the trace */
  bool is_within;               /* the budget, or there is none */
  /* When it is not: the event that would run out, and what was reserved just before. */
  int out_event;
  uint64_t out_reserved_bytes;
};

/* "caching", "torch-native", "torch-expandable", "packed"; static. */
const char *lade_policy_name(enum lade_policy policy);

/*
 * Replay @trace. The addresses that were handed out are checked by code that shares nothing with the policies: live
 * blocks do not overlap, reserved memory is never less than live memory and, within a budget, never more than it.
 * Finish *ret_replay. A budget that is too small is no error. -ENOMEM, -EPROTO when the check found a fault, which is
 * one of this library. Any thread. Blocks for as long as it takes.
 */
int lade_replay(const struct lade_trace *trace, const struct lade_replay_params *params, struct lade_error *error,
                struct lade_replay *ret_replay);

/* Zeros are allowed. */
void lade_replay_finish(struct lade_replay *replay);

#endif
