/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairing of calls that name their blocks by an id or by an address.
 *
 * The calls are sorted by name, and by order within a name. An allocation must be followed by its free or by no call. A
 * free must follow its allocation, or be the name's first call if blocks may be older than the trace. Rejected: a hash
 * table, which takes one pass but degrades on a file whose names collide.
 */
#include <errno.h>
#include <stdlib.h>

#include "alloc/trace/trace_internal.h"

struct key {
  uint64_t id;
  int call;
};

static int key_compare(const void *a, const void *b)
{
  const struct key *x = a, *y = b;
  if (x->id != y->id)
    return x->id < y->id ? -1 : 1;
  return (x->call > y->call) - (x->call < y->call);
}

int lade_trace_calls_pair(struct lade_trace_call *calls, int n_calls, bool may_be_old, int *ret_bad, int *ret_with)
{
  struct key *keys = malloc(((size_t)n_calls + 1) * sizeof(*keys));
  int bad = -1, with = -1;
  if (!keys)
    return -ENOMEM;
  for (int i = 0; i < n_calls; i++)
    keys[i] = (struct key){calls[i].id, i};
  qsort(keys, (size_t)n_calls, sizeof(*keys), key_compare);
  for (int i = 0; i < n_calls; i++) {
    struct lade_trace_call *call = &calls[keys[i].call];
    int before = i && keys[i - 1].id == keys[i].id ? keys[i - 1].call : -1;
    call->partner = -1;
    call->is_old = call->is_free && before < 0 && may_be_old;
    bool is_good = before < 0 ? !call->is_free || may_be_old : calls[before].is_free != call->is_free;
    if (!is_good && (bad < 0 || keys[i].call < bad)) {
      bad = keys[i].call;
      with = before;
    }
    if (is_good && call->is_free && before >= 0) {
      call->partner = before;
      calls[before].partner = keys[i].call;
    }
  }
  free(keys);
  *ret_bad = bad;
  *ret_with = with;
  return 0;
}

int lade_trace_calls_apply(struct lade_trace *trace, struct lade_trace_call *calls, int n_calls)
{
  for (int i = 0; i < n_calls; i++) {
    struct lade_trace_call *call = &calls[i];
    if (!call->is_free)
      call->block = lade_trace_alloc(trace, call->bytes, call->queue, call->time, call->place);
    else if (!call->is_old)
      call->block = calls[call->partner].block;
    if (call->block < 0 || (call->is_free && !lade_trace_free(trace, call->block, call->time, call->place)))
      return -ENOMEM;
  }
  return 0;
}
