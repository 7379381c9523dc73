/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that repeat: what is created for a request that could move idle chunks, so that the next step need not.
 *
 * Moving costs calls to the system in each step, creating costs memory for good. Two rules say which.
 *
 * The price, for any program. A request is known again by its size and the bytes that are live. It is counted how often
 * it moved, and what has moved as often as the price says gets created chunks, while the limit allows. The price is 1
 * while less than 1/128 of the most that was ever live is wasted and triples with every further 1/128: cheap waste is
 * bought in the second step, dear waste only by those who come for it again and again.
 *
 * The allowance, for a step that repeats to the byte. All that was ever allocated, in bytes, is a clock that is right
 * however long a step takes. A request that came again after as many bytes as the time before, or as another did, is
 * one of a step that repeats, if at least twice the peak was allocated since it was first seen: a loop within a step
 * repeats, too, but soon ends. For these the price rises by 1 instead of threefold; and from the third step on, counted
 * since the first of them was seen and the peak last rose, they may waste 1/80 of the peak, three times that in the
 * fourth, seven times in the fifth. What is lacking beyond that is moved. Sizes or frees that differ from step to step
 * do not come under this rule: there moving is the better choice for ever.
 *
 * Kept memory. What lacks chunks in each step is mostly a few large blocks, logits or a gathered layer, that want free
 * bytes side by side just when most are taken. Filled for them today, the place is taken by smaller ones in the
 * next step, and another is filled. So those that come again have a zone, in which others are placed only when nothing
 * else is free. Without it the most that queues waste at rest is twice as much (docs/alloc.md).
 *
 * That it ends. Let a step of n requests, each of s bytes at most, be repeated for ever with room below the limit. The
 * allowance doubles with each step, so after 2 + log2(80 * limit / peak) of them it is past the limit, and what is
 * recognised moves no more. What is not, or was forgotten since more than N_MOVED requests lack chunks, moves until its
 * counter, one of N_MOVED, is at its price, MAX_PRICE at most. So moves end, and from then on chunks are only created.
 * A request of b bytes makes a window when each mapped run of b bytes has a block of the step in it; n blocks spoil at
 * most n * (s + 2 b) bytes of such runs; and each chunk that it creates lies in such a run and stays there. So the
 * requests that create are finitely many, and then nothing is mapped, unmapped, created or released again. In how many
 * steps is not bounded by this, but measured (docs/alloc.md).
 *
 * Rejected: prices that rise more slowly for all (what comes again a few times within a trace pays for it: 1.89 instead
 * of 1.24 % for an inference); all that is lacking at once when a step is recognised (4 steps, 7 to 13 % of waste);
 * other choices of which idle chunks to move; an allowance from the first step on, which is spent before the requests
 * that come again have found their places.
 */
#include <string.h>

#include "alloc/cache_internal.h"

#define PRICE_STEPS 128     /* of the most bytes ever live: waste that raises the price of creating */
#define PRICE_STEP_CHUNKS 4 /* at least, so that a small program pays for chunks and not for fractions */
#define MAX_PRICE 729
#define MAX_CROWDED ((uint64_t)27) /* the most that a shard pays whose thread waits for others at each move */
#define MIN_CLOCK_PEAKS 2  /* allocated since a request was first seen: less is a loop within a step */
#define ALLOWANCE_STEPS 80 /* of the peak: what a step that repeats may waste at first */
#define FREE_STEPS 2       /* that repeat before it may */
#define MAX_DOUBLINGS 20   /* past any limit */

static uint64_t peak_get(const lade_cache *cache)
{
  return LADE_MAX(cache->high_bytes, cache->stats.allocated_bytes.peak);
}

/* Everything that was ever allocated: the clock. */
static uint64_t clock_get(const lade_cache *cache)
{
  uint64_t sum = 0;
  for (int i = 0; i < cache->n_queues; i++)
    sum += cache->shards[i] ? cache->shards[i]->meters[METER_BYTES].came : 0;
  return sum;
}

/* Names a request for @bytes at this point of a step. */
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
  const struct comeback *comeback = &cache->comebacks[slot_of(hash)];
  return comeback->hash == hash && comeback->is_kept;
}

/*
 * After how many bytes a request came again if a step does that, too, or 0. Some come several times in a step at the
 * same live bytes, so the times before the last are looked at as well.
 */
static uint64_t distance_find(const lade_cache *cache, const struct comeback *comeback, uint64_t now)
{
  const uint64_t *times = comeback->times;
  for (int i = 0; i < N_TIMES && times[i]; i++) {
    uint64_t distance = now - times[i];
    bool is_own = i < N_TIMES - 1 && times[i + 1] && distance == times[0] - times[i + 1];
    if (is_own || distance == cache->maybe_bytes || (cache->step_bytes && distance % cache->step_bytes == 0))
      return distance;
  }
  return 0;
}

/* A request lacks chunks. Is it one of a step that repeats? It may climb the ladder more than once. */
static bool comeback_note(lade_cache *cache, uint64_t hash, uint64_t now)
{
  struct comeback *comeback = &cache->comebacks[slot_of(hash)];
  if (comeback->hash != hash)
    *comeback = (struct comeback){.hash = hash, .first = now};
  if (comeback->times[0] != now) {
    uint64_t distance = distance_find(cache, comeback, now);
    comeback->is_repeated = distance && now - comeback->first >= MIN_CLOCK_PEAKS * peak_get(cache);
    if (!distance)
      cache->maybe_bytes = now - comeback->times[0];
    else if (!cache->step_bytes || distance % cache->step_bytes)
      cache->step_bytes = distance;
    memmove(&comeback->times[1], comeback->times, (N_TIMES - 1) * sizeof(comeback->times[0]));
    comeback->times[0] = now;
  }
  return comeback->is_repeated;
}

/* How many bytes may be reserved for a step that repeats. */
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

/* How often a request must have moved before @n more chunks are created for it. */
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
  bool is_repeated = comeback_note(cache, hash, now);
  uint64_t price = price_get(cache, n, is_repeated);
  uint16_t *moved = &cache->moved[slot_of(hash)];
  if (*moved >= price || (uint64_t)shard->n_crowded >= LADE_MIN(price, MAX_CROWDED)) {
    shard->n_crowded = 0;
    return n;
  }
  *moved += *moved < MAX_PRICE;
  if (!is_repeated)
    return 0;
  cache->comebacks[slot_of(hash)].is_kept = true;
  uint64_t allowance_bytes = allowance_get(cache, now);
  return LADE_MIN(n, (allowance_bytes - LADE_MIN(allowance_bytes, reserved_bytes)) / cache->chunk_bytes);
}
