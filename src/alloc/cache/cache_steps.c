/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that repeat: the number of chunks created for a request that could move idle chunks instead, so that the next
 * step need not move.
 *
 * A move costs calls to the system in each step; a created chunk costs memory for good. Two rules decide.
 *
 * The price, for any program. A request is recognised by its size and the live bytes. Its moves are counted. When the
 * count reaches the price, chunks are created for it, while the limit allows. The price is 1 while less than 1/128 of
 * the most bytes ever live is wasted, and triples with every further 1/128. So low waste is accepted in the second
 * step, and high waste only for requests that move again and again.
 *
 * The allowance, for a step that repeats to the byte. The sum of all bytes ever allocated is a clock that does not
 * depend on the duration of a step. A request belongs to a step that repeats under two conditions. It came again after
 * as many bytes as the time before, or as another request did. And at least twice the peak was allocated since it was
 * first seen, because a loop within a step repeats, too, but soon ends. For these requests the price rises by 1 instead
 * of threefold. Steps are counted since the first of these requests was seen and the peak last rose. In the third step
 * they may waste 1/80 of the peak, in the fourth three times that, in the fifth seven times. Chunks beyond that are
 * moved. Steps whose sizes or frees differ do not come under this rule, because moves are the better choice for them
 * for ever.
 *
 * Kept memory. The requests that lack chunks in each step are mostly for a few large blocks, logits or a gathered
 * layer. They need contiguous free bytes when most memory is taken. If their place is filled with chunks in one step,
 * smaller blocks take it in the next step, and another place is filled. So recurring requests have a zone, in which
 * others are placed only when no other memory is free. Without it the most that queues waste at rest is twice as much
 * (docs/memory.md).
 *
 * Proof that it ends. Let a step of n requests, each of s bytes at most, be repeated for ever with space below the
 * limit. The allowance doubles with each step, so after 2 + log2(80 * limit / peak) of them it is past the limit.
 * Recognised requests then move no more. Other requests move until their counter, one of N_MOVED, is at its price,
 * MAX_PRICE at most. So do requests that were forgotten because more than N_MOVED requests lack chunks. So moves end,
 * and from then on chunks are only created. A request of b bytes makes a window when each mapped run of b bytes has a
 * block of the step in it. So n blocks spoil at most n * (s + 2 b) bytes of such runs. Each chunk that the request
 * creates lies in such a run and stays there. So the requests that create are finitely many; after them no chunk is
 * mapped, unmapped, created or released. The number of steps is not bounded by this, but measured (docs/memory.md).
 *
 * Rejected:
 * - Prices that rise more slowly for all: requests that come again a few times within a trace pay for it (1.89 instead
 * of 1.24 % for an inference).
 * - Creating all missing chunks at once when a step is recognised (4 steps, 7 to 13 % of waste).
 * - Other choices of the idle chunks to move.
 * - An allowance from the first step on, which is spent before the recurring requests have found their places.
 */
#include <string.h>

#include "alloc/cache/cache_internal.h"

#define PRICE_STEPS 128     /* parts of the most bytes ever live: each part wasted raises the price of creating */
#define PRICE_STEP_CHUNKS 4 /* a part is at least this, so that a small program pays for chunks and not for fractions */
#define MAX_PRICE 729
#define MAX_CROWDED ((uint64_t)27) /* most moves of a shard whose thread waits for others at each move */
#define MIN_CLOCK_PEAKS 2  /* peaks allocated since a request was first seen; with less it is a loop within a step */
#define ALLOWANCE_STEPS 80 /* of the peak: the first waste that a step that repeats may cause */
#define FREE_STEPS 2       /* repeated steps before any waste is allowed */
#define MAX_DOUBLINGS 20   /* more exceed any limit */

static uint64_t peak_get(const lade_cache *cache)
{
  return LADE_MAX(cache->high_bytes, cache->stats.allocated_bytes.peak);
}

/* Return the clock: the sum of all bytes ever allocated. */
static uint64_t clock_get(const lade_cache *cache)
{
  uint64_t sum = 0;
  for (int i = 0; i < cache->n_queues; i++)
    sum += cache->shards[i] ? cache->shards[i]->meters[METER_BYTES].allocated : 0;
  return sum;
}

/* Return a hash that identifies a request for @bytes at this point of a step. */
static uint64_t request_hash(const lade_cache *cache, uint64_t bytes)
{
  return (lade_cache_live_bytes(cache) * 0x9e3779b97f4a7c15u ^ bytes) * 0xc2b2ae3d27d4eb4fu;
}

static uint64_t slot_of(uint64_t hash)
{
  return hash >> 32 & (N_MOVED - 1);
}

bool lade_cache_is_kept(const lade_cache *cache, uint64_t bytes)
{
  uint64_t hash = request_hash(cache, bytes);
  const struct recurrence *recurrence = &cache->recurrences[slot_of(hash)];
  return recurrence->hash == hash && recurrence->is_kept;
}

/*
 * Return the bytes since an earlier time of the request, if they fit a step that repeats, or 0. Some requests come
 * several times in a step at the same live bytes, so times before the last are tried as well.
 */
static uint64_t distance_find(const lade_cache *cache, const struct recurrence *recurrence, uint64_t now)
{
  const uint64_t *times = recurrence->times;
  for (int i = 0; i < N_TIMES && times[i]; i++) {
    uint64_t distance = now - times[i];
    bool is_own = i < N_TIMES - 1 && times[i + 1] && distance == times[0] - times[i + 1];
    if (is_own || distance == cache->maybe_bytes || (cache->step_bytes && distance % cache->step_bytes == 0))
      return distance;
  }
  return 0;
}

/*
 * Note a request that lacks chunks. True if it is one of a step that repeats. It may climb the ladder more than once.
 */
static bool recurrence_note(lade_cache *cache, uint64_t hash, uint64_t now)
{
  struct recurrence *recurrence = &cache->recurrences[slot_of(hash)];
  if (recurrence->hash != hash)
    *recurrence = (struct recurrence){.hash = hash, .first = now};
  if (recurrence->times[0] != now) {
    uint64_t distance = distance_find(cache, recurrence, now);
    recurrence->is_repeated = distance && now - recurrence->first >= MIN_CLOCK_PEAKS * peak_get(cache);
    if (!distance)
      cache->maybe_bytes = now - recurrence->times[0];
    else if (!cache->step_bytes || distance % cache->step_bytes)
      cache->step_bytes = distance;
    memmove(&recurrence->times[1], recurrence->times, (N_TIMES - 1) * sizeof(recurrence->times[0]));
    recurrence->times[0] = now;
  }
  return recurrence->is_repeated;
}

/* Return the bytes that may be reserved for a step that repeats. */
static uint64_t allowance_get(lade_cache *cache, uint64_t now)
{
  uint64_t peak_bytes = peak_get(cache);
  if (cache->repeated_peak_bytes != peak_bytes) {
    cache->repeated_peak_bytes = peak_bytes;
    cache->repeated_since = now;
  }
  uint64_t n_steps = (now - cache->repeated_since) / LADE_MAX(cache->step_bytes, peak_bytes);
  uint64_t n = LADE_MIN(n_steps - LADE_MIN(n_steps, FREE_STEPS), MAX_DOUBLINGS);
  return peak_bytes + peak_bytes / ALLOWANCE_STEPS * (((uint64_t)1 << n) - 1);
}

/* Return the number of moves after which @n more chunks are created for a request. */
static uint64_t price_get(const lade_cache *cache, uint64_t n, bool is_repeated)
{
  uint64_t live_bytes = peak_get(cache), price = 1;
  uint64_t reserved_bytes = cache->stats.reserved_bytes.current + n * cache->chunk_bytes;
  uint64_t step_bytes = LADE_MAX(live_bytes / PRICE_STEPS, PRICE_STEP_CHUNKS * cache->chunk_bytes);
  uint64_t waste_bytes = reserved_bytes - LADE_MIN(reserved_bytes, live_bytes);
  for (; waste_bytes >= step_bytes && price < MAX_PRICE; waste_bytes -= step_bytes)
    price = is_repeated ? price + 1 : price * 3;
  return price;
}

uint64_t lade_cache_creates_get(lade_cache *cache, struct shard *shard, uint64_t bytes, uint64_t n)
{
  uint64_t reserved_bytes = cache->stats.reserved_bytes.current, now = clock_get(cache);
  uint64_t hash = request_hash(cache, bytes);
  bool is_repeated = recurrence_note(cache, hash, now);
  uint64_t price = price_get(cache, n, is_repeated);
  uint16_t *moved = &cache->moved[slot_of(hash)];
  if (*moved >= price || (uint64_t)shard->n_crowded >= LADE_MIN(price, MAX_CROWDED)) {
    shard->n_crowded = 0;
    return n;
  }
  *moved += *moved < MAX_PRICE;
  if (!is_repeated)
    return 0;
  cache->recurrences[slot_of(hash)].is_kept = true;
  uint64_t allowance_bytes = allowance_get(cache, now);
  return LADE_MIN(n, (allowance_bytes - LADE_MIN(allowance_bytes, reserved_bytes)) / cache->chunk_bytes);
}
