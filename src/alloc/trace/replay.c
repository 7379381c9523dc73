/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay of a trace under an allocation policy.
 *
 * An allocator has two calls, alloc and free, and its number of reserved bytes; one walk over the events drives all
 * allocators. The caching allocator is the real one on a dry device, which has addresses without memory and queues
 * without work. So a freed block is at once free for every queue. PyTorch's allocator is a model of its rules. The
 * packer sees all lifetimes at once, and reserves its peak from the first call to the last.
 *
 * A walk with a budget may run out of memory. It is then repeated without a budget, because the user needs the bytes
 * that the policy would take. The figures come from the second walk, and the place comes from the first. An allocator's
 * -ENOMEM may also mean that the heap is full; then the walk without a budget fails too and returns the error.
 *
 * One sweep checks the result of every policy: the packer's checker (pack_check.c), with addresses as offsets. It
 * shares no code with the policies.
 */
#include "alloc/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/torch_model.h"
#include "device/device.h"
#include "lade/cache.h"

/* Capacity of a device without a budget: twice the peak of live bytes, and 1 GiB more for traces of a few bytes. */
#define SLACK_BYTES ((uint64_t)1 << 30)

/*
 * Chunks of the dry device. They are as large as the host device's up to 512 GiB, and grow with the trace's peak above
 * that. So a line with a size of terabytes costs no more than others: returning n chunks takes n^2 steps of the device.
 */
#define CHUNK_BYTES ((uint64_t)2 << 20)
#define CHUNKS_MAX ((uint64_t)1 << 18)

struct replay_walk;

struct allocator {
  const char *name;
  int (*open)(struct replay_walk *walk);
  int (*alloc)(struct replay_walk *walk, const struct lade_trace_block *block, uint64_t *ret_address);
  int (*free)(struct replay_walk *walk, uint64_t address);
  uint64_t (*reserved_bytes)(struct replay_walk *walk);
  int (*close)(struct replay_walk *walk); /* recounts, then returns all memory; also after a partial open */
};

struct replay_walk {
  const struct lade_trace *trace;
  const struct allocator *allocator;
  uint64_t limit_bytes; /* 0: none */
  uint64_t *addresses;  /* by block */
  uint64_t *reserved_bytes; /* by event */
  struct lade_error *error;
  /* State of the caching allocator, then of the model of PyTorch's. */
  lade_device *device;
  lade_queue *queues[LADE_TRACE_QUEUES];
  lade_cache *cache;
  struct torch_model *torch;
};

static const struct allocator allocators[LADE_N_POLICIES];

/* ---- the caching allocator ---- */

static int caching_open(struct replay_walk *walk)
{
  struct lade_dry_device_params device = {.struct_size = sizeof(device), .chunk_bytes = CHUNK_BYTES,
                                          .capacity_bytes = walk->trace->peak_live_bytes * 2 + SLACK_BYTES,
                                          .to_host = {.bytes_per_s = 1}, .to_device = {.bytes_per_s = 1}};
  while (device.capacity_bytes / device.chunk_bytes > CHUNKS_MAX)
    device.chunk_bytes *= 2;
  int code = lade_device_open_dry(&device, walk->error, &walk->device);
  for (int i = 0; i < walk->trace->n_queues && !code; i++)
    code = lade_queue_create(walk->device, LADE_QUEUE_COMPUTE, &walk->queues[i]);
  struct lade_cache_params cache = {.struct_size = sizeof(cache), .device = walk->device,
                                    .limit_bytes = LADE_MIN(walk->limit_bytes, device.capacity_bytes)};
  return code ? code : lade_cache_create(&cache, walk->error, &walk->cache);
}

static int caching_alloc(struct replay_walk *walk, const struct lade_trace_block *block, uint64_t *ret_address)
{
  struct lade_cache_request request = {sizeof(request), block->bytes, walk->queues[block->queue], 0, NULL};
  void *address = NULL;
  int code = lade_cache_alloc(walk->cache, &request, walk->error, &address);
  *ret_address = (uint64_t)(uintptr_t)address;
  return code;
}

static int caching_free(struct replay_walk *walk, uint64_t address)
{
  return lade_cache_free(walk->cache, (void *)(uintptr_t)address, NULL, walk->error);
}

static uint64_t caching_reserved_bytes(struct replay_walk *walk)
{
  struct lade_cache_stats stats = {.struct_size = sizeof(stats)};
  lade_cache_get_stats(walk->cache, &stats);
  return stats.reserved_bytes.current;
}

static int caching_close(struct replay_walk *walk)
{
  int code = walk->cache ? lade_cache_check(walk->cache, walk->error) : 0;
  lade_cache_destroy(walk->cache);
  for (int i = 0; i < walk->trace->n_queues; i++)
    lade_queue_destroy(walk->queues[i]);
  lade_device_close(walk->device);
  return code;
}

/* ---- PyTorch's allocator ---- */

static int torch_open(struct replay_walk *walk)
{
  bool is_expandable = walk->allocator == &allocators[LADE_POLICY_TORCH_EXPANDABLE];
  return torch_model_create(is_expandable, walk->limit_bytes, &walk->torch);
}

static int torch_alloc(struct replay_walk *walk, const struct lade_trace_block *block, uint64_t *ret_address)
{
  return torch_model_alloc(walk->torch, block->bytes, block->queue, ret_address);
}

static int torch_free(struct replay_walk *walk, uint64_t address)
{
  return torch_model_free(walk->torch, address);
}

static uint64_t torch_reserved_bytes(struct replay_walk *walk)
{
  return torch_model_reserved_bytes(walk->torch);
}

static int torch_close(struct replay_walk *walk)
{
  torch_model_destroy(walk->torch);
  return 0;
}

static const struct allocator allocators[LADE_N_POLICIES] = {
    [LADE_POLICY_CACHING] = {"caching", caching_open, caching_alloc, caching_free, caching_reserved_bytes,
                             caching_close},
    [LADE_POLICY_TORCH_NATIVE] = {"torch-native", torch_open, torch_alloc, torch_free, torch_reserved_bytes,
                                  torch_close},
    [LADE_POLICY_TORCH_EXPANDABLE] = {"torch-expandable", torch_open, torch_alloc, torch_free, torch_reserved_bytes,
                                      torch_close},
    [LADE_POLICY_PACKED] = {.name = "packed"}, /* no calls: all blocks are placed at once, below */
};

const char *lade_policy_name(enum lade_policy policy)
{
  return allocators[policy].name;
}

/* ---- the walk ---- */

/* Make the calls up to the first that does not fit. *ret_out_event is that event, or -1. */
static int walk_run(struct replay_walk *walk, int *ret_out_event)
{
  const struct lade_trace *trace = walk->trace;
  const struct allocator *allocator = walk->allocator;
  *ret_out_event = -1;
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    uint64_t *address = &walk->addresses[event->block];
    int code = event->is_free ? allocator->free(walk, *address)
                              : allocator->alloc(walk, &trace->blocks.items[event->block], address);
    if (code == -ENOMEM && !event->is_free) {
      *ret_out_event = i;
      return 0;
    }
    if (code)
      return code;
    walk->reserved_bytes[i] = allocator->reserved_bytes(walk);
  }
  return 0;
}

/* Walk once from an empty allocator. *ret_ns is the time of the calls. */
static int walk_once(struct replay_walk *walk, uint64_t limit_bytes, int *ret_out_event, int64_t *ret_ns)
{
  walk->limit_bytes = limit_bytes;
  walk->device = NULL;
  walk->cache = NULL;
  walk->torch = NULL;
  memset(walk->queues, 0, sizeof(walk->queues));
  int code = walk->allocator->open(walk);
  int64_t start_ns = lade_now_ns();
  if (!code)
    code = walk_run(walk, ret_out_event);
  *ret_ns = lade_now_ns() - start_ns;
  int closed = walk->allocator->close(walk);
  return code ? code : closed;
}

/* Report that the allocator has no addresses for the block that begins at @out_event, with any budget. */
static int addresses_out(const struct replay_walk *walk, int out_event)
{
  const struct lade_trace_event *event = &walk->trace->events.items[out_event];
  return lade_error_set(walk->error, -ENOMEM, "%s: %s %d (call %d of %d): there are no addresses for %" PRIu64
                        " bytes more, whatever the budget; the policy packed needs none", walk->allocator->name,
                        walk->trace->place_word, event->place, out_event + 1, walk->trace->events.n,
                        walk->trace->blocks.items[event->block].bytes);
}

static int walk_replay(struct replay_walk *walk, uint64_t budget_bytes, struct lade_replay *replay)
{
  int out_event = -1, code = walk_once(walk, budget_bytes, &out_event, &replay->ns);
  replay->is_within = out_event < 0;
  if (code || out_event < 0)
    return code;
  replay->out_event = out_event;
  replay->out_reserved_bytes = out_event ? walk->reserved_bytes[out_event - 1] : 0;
  if (budget_bytes)
    code = walk_once(walk, 0, &out_event, &replay->ns);
  return !code && out_event >= 0 ? addresses_out(walk, out_event) : code;
}

/* ---- the packer ---- */

/*
 * Find the first event where more than @budget_bytes are live, which no packing can fit; otherwise the first event
 * where a block ends past the budget.
 *
 * pre: such an event exists.
 */
static int past_find(const struct lade_trace *trace, const uint64_t *offsets, uint64_t budget_bytes)
{
  bool is_live_past = trace->peak_live_bytes > budget_bytes;
  uint64_t live_bytes = 0;
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    uint64_t bytes = trace->blocks.items[event->block].bytes;
    live_bytes = event->is_free ? live_bytes - bytes : live_bytes + bytes;
    if ((is_live_past ? live_bytes : offsets[event->block] + bytes) > budget_bytes)
      return i;
  }
  LADE_ASSERT(false);
  return 0;
}

static int packed_replay(struct replay_walk *walk, const struct lade_pack_item *items,
                         const struct lade_replay_params *params, struct lade_replay *replay)
{
  const struct lade_trace *trace = walk->trace;
  struct lade_pack_params pack_params = {.struct_size = sizeof(pack_params), .time_limit_ns = params->time_limit_ns,
                                         .stop_bytes = params->budget_bytes};
  struct lade_pack_result result;
  /* A budget below the peak of live bytes cannot be met: pack down to the lower bound. */
  if (params->budget_bytes < trace->peak_live_bytes)
    pack_params.stop_bytes = 0;
  int64_t start_ns = lade_now_ns();
  int code = lade_pack(items, trace->blocks.n, &pack_params, walk->addresses, &result, walk->error);
  replay->ns = lade_now_ns() - start_ns;
  if (code)
    return code;
  for (int i = 0; i < trace->events.n; i++)
    walk->reserved_bytes[i] = result.peak_bytes;
  replay->lower_bound_bytes = result.lower_bound_bytes;
  replay->is_within = !params->budget_bytes || result.peak_bytes <= params->budget_bytes;
  if (!replay->is_within) {
    replay->out_event = past_find(trace, walk->addresses, params->budget_bytes);
    replay->out_reserved_bytes = params->budget_bytes;
  }
  return 0;
}

/* ---- the check of a replay ---- */

static int fault(struct replay_walk *walk, const char *why)
{
  return lade_error_set(walk->error, -EPROTO, "%s: the replay's own check failed: %s; this is a bug",
                        walk->allocator->name, why);
}

/* Check that blocks which are live together do not overlap. */
static int addresses_check(struct replay_walk *walk, const struct lade_pack_item *items)
{
  int n = walk->trace->blocks.n;
  uint64_t min = UINT64_MAX, end = 0;
  struct lade_error why = {0};
  for (int i = 0; i < n; i++)
    min = LADE_MIN(min, walk->addresses[i]);
  for (int i = 0; i < n; i++) {
    walk->addresses[i] -= min;
    end = LADE_MAX(end, walk->addresses[i] + items[i].bytes);
  }
  int code = lade_pack_check(items, n, walk->addresses, end, &why);
  return code && code != -ENOMEM ? fault(walk, why.text) : code;
}

/*
 * Check that reserved bytes are at least the live bytes after every event, and at most @budget_bytes. Store the peak in
 * @replay.
 */
static int reserved_check(struct replay_walk *walk, uint64_t budget_bytes, struct lade_replay *replay)
{
  const struct lade_trace *trace = walk->trace;
  uint64_t live_bytes = 0;
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    uint64_t bytes = trace->blocks.items[event->block].bytes, reserved_bytes = walk->reserved_bytes[i];
    live_bytes = event->is_free ? live_bytes - bytes : live_bytes + bytes;
    if (reserved_bytes < live_bytes)
      return fault(walk, "less is reserved than is live");
    if (budget_bytes && replay->is_within && reserved_bytes > budget_bytes)
      return fault(walk, "more is reserved than the budget");
    replay->reserved_peak_bytes = LADE_MAX(replay->reserved_peak_bytes, reserved_bytes);
  }
  return 0;
}

static int replay_run(struct replay_walk *walk, const struct lade_replay_params *params, struct lade_pack_item *items,
                      struct lade_replay *replay)
{
  lade_trace_items(walk->trace, items);
  int code = params->policy == LADE_POLICY_PACKED ? packed_replay(walk, items, params, replay)
                                                  : walk_replay(walk, params->budget_bytes, replay);
  if (!code)
    code = addresses_check(walk, items);
  return code ? code : reserved_check(walk, params->budget_bytes, replay);
}

int lade_replay(const struct lade_trace *trace, const struct lade_replay_params *params, struct lade_error *error,
                struct lade_replay *ret_replay)
{
  struct lade_replay replay = {.lower_bound_bytes = trace->peak_live_bytes, .out_event = -1};
  struct replay_walk walk = {.trace = trace, .allocator = &allocators[params->policy], .error = error};
  struct lade_pack_item *items = calloc((size_t)trace->blocks.n + 1, sizeof(*items));
  walk.addresses = calloc((size_t)trace->blocks.n + 1, sizeof(*walk.addresses));
  walk.reserved_bytes = calloc((size_t)trace->events.n + 1, sizeof(*walk.reserved_bytes));
  int code = items && walk.addresses && walk.reserved_bytes
                 ? replay_run(&walk, params, items, &replay)
                 : lade_error_set(error, -ENOMEM, "no memory to replay %d events", trace->events.n);
  free(items);
  free(walk.addresses);
  if (code) {
    free(walk.reserved_bytes);
    return code;
  }
  replay.reserved_bytes = walk.reserved_bytes;
  *ret_replay = replay;
  return 0;
}

void lade_replay_finish(struct lade_replay *replay)
{
  free(replay->reserved_bytes);
  *replay = (struct lade_replay){0};
}
