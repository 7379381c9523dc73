/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over turns in blocks (turn_bytes.h). */
#include "recompute/graph/turn_bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define BLOCKS_MAX 1024 /* about the square root of the most turns, so that both parts of an addition are short */

int turn_bytes_init(struct turn_bytes *turns, int n)
{
  *turns = (struct turn_bytes){.n = n};
  while ((n - 1) >> turns->shift >= BLOCKS_MAX)
    turns->shift++;
  turns->n_blocks = ((n - 1) >> turns->shift) + 1;
  turns->bytes = calloc((size_t)n, sizeof(*turns->bytes));
  turns->added = calloc((size_t)turns->n_blocks, sizeof(*turns->added));
  turns->top = calloc((size_t)turns->n_blocks, sizeof(*turns->top));
  if (turns->bytes && turns->added && turns->top)
    return 0;
  turn_bytes_finish(turns);
  return -ENOMEM;
}

void turn_bytes_finish(struct turn_bytes *turns)
{
  free(turns->bytes);
  free(turns->added);
  free(turns->top);
  *turns = (struct turn_bytes){0};
}

int turn_bytes_copy(struct turn_bytes *copy, const struct turn_bytes *turns)
{
  const int status = turn_bytes_init(copy, turns->n);
  if (status)
    return status;
  copy->limit_bytes = turns->limit_bytes;
  copy->over_blocks = turns->over_blocks;
  memcpy(copy->bytes, turns->bytes, (size_t)turns->n * sizeof(*turns->bytes));
  memcpy(copy->added, turns->added, (size_t)turns->n_blocks * sizeof(*turns->added));
  memcpy(copy->top, turns->top, (size_t)turns->n_blocks * sizeof(*turns->top));
  return 0;
}

static int block_end(const struct turn_bytes *turns, int block)
{
  return LADE_MIN((block + 1) << turns->shift, turns->n);
}

static int64_t excess(int64_t bytes, int64_t limit_bytes)
{
  return bytes > limit_bytes ? bytes - limit_bytes : 0;
}

/* Add to some turns of one block, which keeps what was added to all of them. */
static void part_add(struct turn_bytes *turns, int block, int from, int to, int64_t bytes)
{
  const int first = block << turns->shift, end = block_end(turns, block);
  for (int t = LADE_MAX(from, first); t <= to && t < end; t++)
    turns->bytes[t] += bytes;
  int64_t max = turns->bytes[first];
  for (int t = first + 1; t < end; t++)
    max = LADE_MAX(max, turns->bytes[t]);
  const int64_t top = max + turns->added[block], limit = turns->limit_bytes;
  turns->over_blocks += excess(top, limit) - excess(turns->top[block], limit);
  turns->top[block] = top;
}

/* Return @x, or 0 if it is negative, by operations that vectorise. */
static inline int64_t positive_part(int64_t x)
{
  return x & ~(x >> 63);
}

/* Add to all turns of some blocks. The loop vectorises. */
static void blocks_add(struct turn_bytes *turns, int from, int to, int64_t bytes)
{
  int64_t *restrict top = turns->top, *restrict added = turns->added, change = 0;
  const int64_t limit = turns->limit_bytes;
  for (int block = from; block <= to; block++) {
    const int64_t before = top[block] - limit;
    change += positive_part(before + bytes) - positive_part(before);
    top[block] += bytes;
    added[block] += bytes;
  }
  turns->over_blocks += change;
}

void turn_bytes_add(struct turn_bytes *turns, int from, int to, int64_t bytes)
{
  int first = from >> turns->shift, last = to >> turns->shift;
  bool is_whole_first = from == first << turns->shift && to >= block_end(turns, first) - 1;
  if (!is_whole_first)
    part_add(turns, first++, from, to, bytes);
  if (first <= last && to < block_end(turns, last) - 1)
    part_add(turns, last--, from, to, bytes);
  blocks_add(turns, first, last, bytes);
}

void turn_bytes_limit(struct turn_bytes *turns, int64_t limit_bytes)
{
  turns->limit_bytes = limit_bytes;
  turns->over_blocks = 0;
  for (int block = 0; block < turns->n_blocks; block++)
    turns->over_blocks += excess(turns->top[block], limit_bytes);
}

bool turn_bytes_are_over(const struct turn_bytes *turns, int from, int to)
{
  for (int block = from >> turns->shift; block <= to >> turns->shift; block++) {
    if (turns->top[block] <= turns->limit_bytes)
      continue;
    for (int t = LADE_MAX(from, block << turns->shift); t <= to && t < block_end(turns, block); t++) {
      if (turn_bytes_get(turns, t) > turns->limit_bytes)
        return true;
    }
  }
  return false;
}

int turn_bytes_last_above(const struct turn_bytes *turns, int from, int to, int64_t bytes)
{
  for (int block = to >> turns->shift; from <= to && block >= from >> turns->shift; block--) {
    if (turns->top[block] <= bytes)
      continue;
    for (int t = LADE_MIN(to, block_end(turns, block) - 1); t >= LADE_MAX(from, block << turns->shift); t--) {
      if (turn_bytes_get(turns, t) > bytes)
        return t;
    }
  }
  return -1;
}

int turn_bytes_peak(const struct turn_bytes *turns, int64_t *ret_bytes)
{
  int best = 0;
  for (int block = 1; block < turns->n_blocks; block++) {
    if (turns->top[block] > turns->top[best])
      best = block;
  }
  int turn = best << turns->shift;
  while (turn_bytes_get(turns, turn) != turns->top[best])
    turn++;
  *ret_bytes = turn_bytes_get(turns, turn);
  return turn;
}
