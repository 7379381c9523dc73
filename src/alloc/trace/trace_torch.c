/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace from a memory snapshot in PyTorch's form, as torch.cuda.memory._dump_snapshot and lade_cache_write_snapshot
 * write it.
 *
 * A snapshot has the history of each device, which is a ring of its last events, and the segments with their blocks at
 * the end. The device with the longest history is read. In the history, `alloc` begins a block and `free_completed`
 * ends it. `free_requested` does not end a block, because its memory is reused only after other streams finish. Sizes
 * are the requested sizes, where the snapshot has them.
 *
 * Blocks older than the history come from two places: an address whose first call is a free, and a block that is live
 * in the segments and absent from the history. They begin before the first event in the order of their addresses,
 * because the history does not contain their order; it is close to that of their addresses.
 *
 * Reserved bytes follow from the segments at the end and, backwards, from the events of segments. Their peak is
 * reported beside the replayed one. Streams become queues in the order in which they appear. The recorded addresses
 * only serve to check the file: segments do not overlap, blocks that are live together do not overlap, and blocks lie
 * in their segment.
 *
 * The file is untrusted. The kind and range of every field are checked. The pickle's count of steps bounds the work
 * that repeated references cause.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pack_check.h"
#include "alloc/pickle.h"
#include "alloc/trace/trace_internal.h"

#define ADDRESS_MAX (((uint64_t)1 << 62) - 1) /* of addresses and of sizes: the sum of any two fits int64_t */

/* A block from before the history. */
struct old {
  uint64_t address, bytes;
  int queue;
  int call; /* the call that frees it, or -1 */
  int value; /* its block in the segments; -1: it was freed before the end */
};

/* The addresses of a segment of the device. */
struct segment_span {
  uint64_t begin, end;
  int number; /* number of the segment in messages */
};

struct torch {
  const char *name;
  lade_pickle *pickle;
  struct lade_error *error;
  struct lade_trace *trace;
  int history; /* the device's list of events */
  lade_trace_call_array calls;
  LADE_ARRAY(struct old) olds;
  LADE_ARRAY(struct segment_span) spans;
  uint64_t streams[LADE_TRACE_QUEUES];
  int n_streams;
  uint64_t total_bytes;
  /* Reserved bytes: of the segments at the end, and the sum of the events so far with its extremes. */
  int64_t end_bytes, added_bytes, max_added_bytes, min_added_bytes;
  /* The current object for messages, and its number; NULL: none. */
  const char *where;
  int number;
};

static int refuse(struct torch *torch, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int refuse(struct torch *torch, const char *format, ...)
{
  char reason[256];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof(reason), format, args);
  va_end(args);
  if (!torch->where)
    return lade_error_set(torch->error, -EBADMSG, "%s: %s", torch->name, reason);
  return lade_error_set(torch->error, -EBADMSG, "%s: %s %d: %s", torch->name, torch->where, torch->number, reason);
}

/* ---- fields ---- */

/* Find the value of @key in the dict @value. -ENOENT, without a message, if it is absent. */
static int field_find(struct torch *torch, int value, const char *key, int *ret_value)
{
  int code = lade_pickle_find(torch->pickle, value, key, ret_value);
  if (code == -ELOOP)
    return refuse(torch, "the file refers to the same data more often than a snapshot does");
  if (code == -EINVAL && lade_pickle_kind(torch->pickle, value) != LADE_PICKLE_DICT)
    return refuse(torch, "expected a dict with the key %s", key);
  return code == -EINVAL ? refuse(torch, "the key %s stands there twice", key) : code;
}

static int field_get(struct torch *torch, int value, const char *key, int *ret_value)
{
  int code = field_find(torch, value, key, ret_value);
  return code == -ENOENT ? refuse(torch, "%s is missing", key) : code;
}

static int number_get(struct torch *torch, int value, const char *key, uint64_t min, uint64_t max,
                      uint64_t *ret_number)
{
  int field = 0, code = field_get(torch, value, key, &field);
  uint64_t number = 0;
  if (code)
    return code;
  if (lade_pickle_get_integer(torch->pickle, field, &number) || number < min || number > max)
    return refuse(torch, "%s: expected a whole number from %" PRIu64 " to %" PRIu64, key, min, max);
  *ret_number = number;
  return 0;
}

/* Read the number under @key as number_get does, or return @otherwise if the dict lacks the key. */
static int number_find(struct torch *torch, int value, const char *key, uint64_t max, uint64_t otherwise,
                       uint64_t *ret_number)
{
  int field = 0, code = field_find(torch, value, key, &field);
  if (code == -ENOENT) {
    *ret_number = otherwise;
    return 0;
  }
  return code ? code : number_get(torch, value, key, 0, max, ret_number);
}

/* Get the next item of @list, which messages name @key. -ENOENT after the last. */
static int item_next(struct torch *torch, int list, const char *key, int *cursor, int *ret_value)
{
  int code = lade_pickle_next(torch->pickle, list, cursor, ret_value);
  if (code == -ELOOP)
    return refuse(torch, "the file refers to the same data more often than a snapshot does");
  return code == -EINVAL ? refuse(torch, "%s: expected a list", key) : code;
}

static int stream_number(struct torch *torch, int value, int *ret_queue)
{
  uint64_t stream = 0;
  int code = number_find(torch, value, "stream", UINT64_MAX, 0, &stream);
  if (code)
    return code;
  int queue = 0;
  while (queue < torch->n_streams && torch->streams[queue] != stream)
    queue++;
  if (queue == LADE_TRACE_QUEUES)
    return refuse(torch, "more than %d streams", LADE_TRACE_QUEUES);
  if (queue == torch->n_streams)
    torch->streams[torch->n_streams++] = stream;
  *ret_queue = queue;
  return 0;
}

/* ---- the history ---- */

static int reserved_add(struct torch *torch, int value, int sign)
{
  uint64_t bytes = 0;
  int code = number_get(torch, value, "size", 0, ADDRESS_MAX, &bytes);
  if (code)
    return code;
  torch->added_bytes += sign * (int64_t)bytes;
  torch->max_added_bytes = LADE_MAX(torch->max_added_bytes, torch->added_bytes);
  torch->min_added_bytes = LADE_MIN(torch->min_added_bytes, torch->added_bytes);
  if (llabs(torch->added_bytes) > (int64_t)LADE_TRACE_BYTES_MAX)
    return refuse(torch, "segments sum past 2^60 bytes");
  return 0;
}

static int call_add(struct torch *torch, int value, bool is_free)
{
  struct lade_trace_call call = {.place = torch->number, .is_free = is_free, .partner = -1, .block = -1,
                                 .value = value};
  uint64_t before = torch->calls.n ? torch->calls.items[torch->calls.n - 1].time : 0;
  int code = number_get(torch, value, "addr", 0, ADDRESS_MAX, &call.id);
  if (!code)
    code = number_get(torch, value, "size", 1, LADE_TRACE_BYTES_MAX, &call.bytes);
  if (!code)
    code = number_find(torch, value, "time_us", LADE_TRACE_TIME_MAX, before, &call.time);
  if (!code)
    code = stream_number(torch, value, &call.queue);
  if (code)
    return code;
  if (!lade_trace_bytes_add(&torch->total_bytes, call.bytes))
    return refuse(torch, "with size %" PRIu64 " all sizes sum past 2^60 bytes", call.bytes);
  return LADE_PUSH(&torch->calls, call) ? 0 : -ENOMEM;
}

static int event_read(struct torch *torch, int value)
{
  static const struct {
    const char *action;
    int reserves;
    bool is_call, is_free;
  } actions[] = {
      {"alloc", 0, true, false}, {"free_completed", 0, true, true},     {"free_requested", 0, false, false},
      {"segment_alloc", 1, false, false}, {"segment_map", 1, false, false}, {"segment_free", -1, false, false},
      {"segment_unmap", -1, false, false}, {"snapshot", 0, false, false},   {"oom", 0, false, false},
      {"user_defined", 0, false, false},
  };
  int action = 0, code = field_get(torch, value, "action", &action);
  if (code)
    return code;
  for (size_t i = 0; i < LADE_COUNT(actions); i++) {
    if (!lade_pickle_is_text(torch->pickle, action, actions[i].action))
      continue;
    if (actions[i].is_call)
      return call_add(torch, value, actions[i].is_free);
    return actions[i].reserves ? reserved_add(torch, value, actions[i].reserves) : 0;
  }
  return refuse(torch, "an action that snapshots of this format do not have");
}

static int history_read(struct torch *torch)
{
  int cursor = LADE_PICKLE_START, value = 0, code = 0;
  torch->where = "entry";
  for (torch->number = 1; !code; torch->number++) {
    code = item_next(torch, torch->history, "device_traces", &cursor, &value);
    if (!code)
      code = event_read(torch, value);
  }
  return code == -ENOENT ? 0 : code;
}

/* Count the items of @list. */
static int items_count(struct torch *torch, int list, int *ret_n)
{
  int cursor = LADE_PICKLE_START, value = 0, code, n = 0;
  while (!(code = item_next(torch, list, "device_traces", &cursor, &value)))
    n++;
  *ret_n = n;
  return code == -ENOENT ? 0 : code;
}

/* Choose the device with the longest history for the replay. */
static int device_choose(struct torch *torch, int root)
{
  int histories = 0, history = 0, cursor = LADE_PICKLE_START, max = 0;
  int code = field_get(torch, root, "device_traces", &histories);
  torch->where = "device";
  for (; !code; torch->number++) {
    int n = 0;
    code = item_next(torch, histories, "device_traces", &cursor, &history);
    if (!code)
      code = items_count(torch, history, &n);
    if (code || !n)
      continue;
    torch->trace->n_devices++;
    if (n > max) {
      max = n;
      torch->history = history;
      torch->trace->device = torch->number;
    }
  }
  if (code != -ENOENT)
    return code;
  return max ? 0 : lade_error_set(torch->error, -EBADMSG, "%s: the snapshot has no history; call "
                                  "torch.cuda.memory._record_memory_history() before what is to be recorded",
                                  torch->name);
}

/* ---- blocks older than the history ---- */

static int id_compare(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The part of the current segment after the blocks read so far. */
struct rest {
  uint64_t at, end;
  int queue;
};

/*
 * Read a block of a segment. It is older than the history if the history lacks its address (@known). Check that blocks
 * come by rising address and lie in their segment.
 */
static int block_read(struct torch *torch, int value, struct rest *rest, const uint64_t *known)
{
  struct old old = {.queue = rest->queue, .call = -1, .value = value};
  uint64_t bytes = 0;
  int state = 0, code = number_get(torch, value, "size", 1, ADDRESS_MAX, &bytes);
  if (!code)
    code = number_find(torch, value, "address", ADDRESS_MAX, rest->at, &old.address);
  if (!code)
    code = field_get(torch, value, "state", &state);
  if (code)
    return code;
  if (old.address < rest->at || old.address + bytes > rest->end)
    return refuse(torch, "the block of %" PRIu64 " bytes at %#" PRIx64 " is not between the block before it and the "
                  "segment's end, %#" PRIx64, bytes, old.address, rest->end);
  rest->at = old.address + bytes;
  if (lade_pickle_is_text(torch->pickle, state, "inactive") ||
      bsearch(&old.address, known, (size_t)torch->calls.n, sizeof(*known), id_compare))
    return 0;
  if (!lade_pickle_is_text(torch->pickle, state, "active_allocated") &&
      !lade_pickle_is_text(torch->pickle, state, "active_awaiting_free") &&
      !lade_pickle_is_text(torch->pickle, state, "active_pending_free"))
    return refuse(torch, "a block in a state that snapshots of this format do not have");
  code = number_find(torch, value, "requested_size", bytes, bytes, &old.bytes);
  if (code)
    return code;
  old.bytes = old.bytes ? old.bytes : bytes;
  if (!lade_trace_bytes_add(&torch->total_bytes, old.bytes))
    return refuse(torch, "all sizes sum past 2^60 bytes");
  return LADE_PUSH(&torch->olds, old) ? 0 : -ENOMEM;
}

static int segment_read(struct torch *torch, int value, const uint64_t *known)
{
  uint64_t device = 0, bytes = 0;
  struct rest rest = {0};
  int blocks = 0, block = 0, cursor = LADE_PICKLE_START;
  int code = number_find(torch, value, "device", INT32_MAX, 0, &device);
  if (code || device != (uint64_t)torch->trace->device)
    return code;
  code = number_get(torch, value, "total_size", 0, ADDRESS_MAX, &bytes);
  if (!code && (torch->end_bytes += (int64_t)bytes) > (int64_t)LADE_TRACE_BYTES_MAX)
    return refuse(torch, "segments sum past 2^60 bytes");
  if (!code)
    code = number_get(torch, value, "address", 0, ADDRESS_MAX, &rest.at);
  if (!code)
    code = stream_number(torch, value, &rest.queue);
  if (!code)
    code = field_get(torch, value, "blocks", &blocks);
  rest.end = rest.at + bytes;
  if (!code && bytes && !LADE_PUSH(&torch->spans, ((struct segment_span){rest.at, rest.end, torch->number})))
    code = -ENOMEM;
  while (!code && !(code = item_next(torch, blocks, "blocks", &cursor, &block)))
    code = block_read(torch, block, &rest, known);
  return code == -ENOENT ? 0 : code;
}

static int span_compare(const void *a, const void *b)
{
  const struct segment_span *x = a, *y = b;
  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  return (x->number > y->number) - (x->number < y->number);
}

/* Refuse segments that overlap, because their shared bytes would count twice as reserved. */
static int spans_check(struct torch *torch)
{
  const struct segment_span *spans = torch->spans.items;
  if (torch->spans.n)
    qsort(torch->spans.items, (size_t)torch->spans.n, sizeof(*torch->spans.items), span_compare);
  for (int i = 1; i < torch->spans.n; i++) {
    torch->number = spans[i].number;
    if (spans[i].begin < spans[i - 1].end)
      return refuse(torch, "it overlaps segment %d at %#" PRIx64, spans[i - 1].number, spans[i].begin);
  }
  return 0;
}

static int segments_read(struct torch *torch, int root)
{
  int segments = 0, segment = 0, cursor = LADE_PICKLE_START;
  uint64_t *known = malloc(((size_t)torch->calls.n + 1) * sizeof(*known));
  if (!known)
    return -ENOMEM;
  for (int i = 0; i < torch->calls.n; i++)
    known[i] = torch->calls.items[i].id;
  qsort(known, (size_t)torch->calls.n, sizeof(*known), id_compare);
  torch->where = NULL;
  int code = field_get(torch, root, "segments", &segments);
  torch->where = "segment";
  torch->number = 0;
  while (!code && !(code = item_next(torch, segments, "segments", &cursor, &segment))) {
    torch->number++;
    code = segment_read(torch, segment, known);
  }
  free(known);
  return code == -ENOENT ? spans_check(torch) : code;
}

static int old_compare(const void *a, const void *b)
{
  const struct old *x = a, *y = b;
  if (x->address != y->address)
    return x->address < y->address ? -1 : 1;
  return (x->call > y->call) - (x->call < y->call);
}

/* Begin all old blocks at the time of the first call. */
static int olds_apply(struct torch *torch)
{
  for (int i = 0; i < torch->calls.n; i++) {
    const struct lade_trace_call *call = &torch->calls.items[i];
    struct old old = {call->id, call->bytes, call->queue, i, -1};
    if (call->is_old && !LADE_PUSH(&torch->olds, old))
      return -ENOMEM;
  }
  if (torch->olds.n)
    qsort(torch->olds.items, (size_t)torch->olds.n, sizeof(*torch->olds.items), old_compare);
  uint64_t time = torch->calls.n ? torch->calls.items[0].time : 0;
  for (int i = 0; i < torch->olds.n; i++) {
    const struct old *old = &torch->olds.items[i];
    int block = lade_trace_alloc(torch->trace, old->bytes, old->queue, time, 0);
    if (block < 0)
      return -ENOMEM;
    if (old->call >= 0)
      torch->calls.items[old->call].block = block;
  }
  return 0;
}

/* ---- the whole snapshot ---- */

static int calls_pair(struct torch *torch)
{
  int bad = -1, with = -1, code = lade_trace_calls_pair(torch->calls.items, torch->calls.n, true, &bad, &with);
  if (code || bad < 0)
    return code;
  const struct lade_trace_call *call = &torch->calls.items[bad];
  torch->where = "entry";
  torch->number = call->place;
  return refuse(torch, call->is_free ? "address %#" PRIx64 " was freed in entry %d already"
                                     : "address %#" PRIx64 " is live since entry %d",
                call->id, torch->calls.items[with].place);
}

/* Name block @i by its place in the file, as in "the block of entry 3 at 0x1000". */
static const char *block_name(const struct torch *torch, int i, uint64_t address, char *text, size_t text_bytes)
{
  int place = torch->trace->blocks.items[i].place;
  if (place)
    snprintf(text, text_bytes, "the block of entry %d at %#" PRIx64, place, address);
  else
    snprintf(text, text_bytes, "the block from before the history at %#" PRIx64, address);
  return text;
}

/* Check that no blocks which are live together overlap at their recorded addresses. */
static int addresses_check(struct torch *torch)
{
  struct lade_trace *trace = torch->trace;
  size_t n = (size_t)trace->blocks.n + 1;
  struct lade_pack_item *items = calloc(n, sizeof(*items));
  uint64_t *addresses = calloc(n, sizeof(*addresses));
  struct lade_pack_overlap overlap = {0};
  int code = items && addresses ? 0 : -ENOMEM;
  if (!code) {
    for (int i = 0; i < torch->olds.n; i++)
      addresses[i] = torch->olds.items[i].address;
    for (int i = 0; i < torch->calls.n; i++)
      addresses[torch->calls.items[i].block] = torch->calls.items[i].id;
    lade_trace_finish(trace);
    lade_trace_items(trace, items);
    code = lade_pack_overlap_find(items, trace->blocks.n, addresses, &overlap);
  }
  if (code > 0) {
    char second[96], first[96];
    code = lade_error_set(torch->error, -EBADMSG, "%s: %s overlaps %s, which is live; no allocator did this",
                          torch->name,
                          block_name(torch, overlap.second, addresses[overlap.second], second, sizeof(second)),
                          block_name(torch, overlap.first, addresses[overlap.first], first, sizeof(first)));
  }
  free(items);
  free(addresses);
  return code;
}

static int sites_read(struct torch *torch)
{
  int *values = malloc(((size_t)torch->trace->blocks.n + 1) * sizeof(*values));
  if (!values)
    return -ENOMEM;
  for (int i = 0; i < torch->olds.n; i++) /* they are the first blocks */
    values[i] = torch->olds.items[i].value;
  for (int i = 0; i < torch->calls.n; i++) {
    const struct lade_trace_call *call = &torch->calls.items[i];
    if (!call->is_free)
      values[call->block] = call->value;
  }
  int code = lade_trace_sites_read(torch->trace, torch->pickle, values);
  free(values);
  return code;
}

/*
 * Set the bytes that were reserved at the most, from the segments that the snapshot lists at its end and the history
 * before it. They are unknown if it lists none, even if the history took some: a script may have dropped the list.
 */
static int reserved_set(struct torch *torch)
{
  int64_t start_bytes = torch->end_bytes - torch->added_bytes;
  if (!torch->end_bytes && start_bytes + torch->min_added_bytes < 0)
    return 0;
  if (start_bytes + torch->min_added_bytes < 0)
    return lade_error_set(torch->error, -EBADMSG, "%s: the history gives back more segments than there were",
                          torch->name);
  torch->trace->has_recorded = start_bytes + torch->max_added_bytes > 0; /* else it lists no segment */
  torch->trace->recorded_reserved_bytes = (uint64_t)(start_bytes + torch->max_added_bytes);
  return 0;
}

static int snapshot_read(struct torch *torch)
{
  int root = lade_pickle_root(torch->pickle);
  if (lade_pickle_kind(torch->pickle, root) != LADE_PICKLE_DICT)
    return lade_error_set(torch->error, -EBADMSG, "%s: a pickle, but no memory snapshot: expected a dict with segments "
                          "and device_traces, as torch.cuda.memory._dump_snapshot() writes", torch->name);
  int code = device_choose(torch, root);
  if (!code)
    code = history_read(torch);
  if (!code)
    code = calls_pair(torch);
  if (!code)
    code = segments_read(torch, root);
  if (!code)
    code = olds_apply(torch);
  if (!code)
    code = lade_trace_calls_apply(torch->trace, torch->calls.items, torch->calls.n);
  if (!code)
    code = addresses_check(torch);
  if (!code)
    code = sites_read(torch);
  return code ? code : reserved_set(torch);
}

int lade_trace_read_torch(const char *name, const char *text, size_t n_bytes, struct lade_error *error,
                          struct lade_trace *trace)
{
  struct torch torch = {.name = name, .error = error, .trace = trace};
  trace->place_word = "entry";
  int code = lade_pickle_read(name, text, n_bytes, error, &torch.pickle);
  if (!code)
    code = snapshot_read(&torch);
  lade_pickle_destroy(torch.pickle);
  LADE_ARRAY_FREE(&torch.calls);
  LADE_ARRAY_FREE(&torch.olds);
  LADE_ARRAY_FREE(&torch.spans);
  return code;
}
