/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of a trace under a placement policy, without memory. The result is the reserved peak, its waste, and the event
 * where a budget runs out.
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
  uint64_t reserved_peak_bytes; /* peak of the policy; if the budget is too small, of the walk without one */
  uint64_t lower_bound_bytes;   /* least bytes that any policy reserves that does not move live blocks */
  int64_t ns;                   /* time of the placement */
  uint64_t *reserved_bytes;     /* after each event of the trace */
  bool is_within;               /* fits the budget; true without one */
  /* If it does not fit: the event that runs out of memory, and the reserved bytes just before it. */
  int out_event;
  uint64_t out_reserved_bytes;
};

/* Return "caching", "torch-native", "torch-expandable" or "packed"; static. */
const char *lade_policy_name(enum lade_policy policy);

/*
 * Replay @trace and finish *ret_replay. Code that shares nothing with the policies checks the addresses: live blocks do
 * not overlap, and reserved memory is at least the live memory and within the budget. A budget that is too small is not
 * an error. -ENOMEM; -EPROTO if the check finds a fault, which is a bug of this library. Any thread. Blocks until done.
 */
int lade_replay(const struct lade_trace *trace, const struct lade_replay_params *params, struct lade_error *error,
                struct lade_replay *ret_replay);

/* Free the result; a zeroed one is allowed. */
void lade_replay_finish(struct lade_replay *replay);

#endif
