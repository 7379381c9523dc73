/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of all turns of a schedule, with additions to ranges of turns, and their excess above a limit.
 *
 * Turns are grouped into at most BLOCKS_MAX blocks. An addition to all turns of a block changes one number, so that a
 * range of 100,000 turns costs some hundred additions. The excess of a block is the excess of its fullest turn times
 * the number of its turns: 0 if all turns are within the limit, and exact where a block is one turn.
 */
#ifndef LADE_TURN_BYTES_H
#define LADE_TURN_BYTES_H

#include <stdbool.h>
#include <stdint.h>

struct turn_bytes {
  int n, n_blocks, shift;  /* turns; turn t is in block t >> shift */
  int64_t *bytes;          /* by turn, without what was added to its block */
  int64_t *added, *top;    /* by block: added to all of its turns; the bytes of its fullest turn */
  int64_t limit_bytes;
  int64_t over_blocks;     /* the excess of all blocks, in bytes of their fullest turns */
};

/* Make @n turns of 0 bytes. -ENOMEM. */
int turn_bytes_init(struct turn_bytes *turns, int n);
void turn_bytes_finish(struct turn_bytes *turns);

/* Make @copy, which is not made yet, equal to @turns. -ENOMEM. */
int turn_bytes_copy(struct turn_bytes *copy, const struct turn_bytes *turns);

/* Add @bytes, which may be negative, to turns @from .. @to. */
void turn_bytes_add(struct turn_bytes *turns, int from, int to, int64_t bytes);
void turn_bytes_limit(struct turn_bytes *turns, int64_t limit_bytes);

/* True if a turn of from .. to is above the limit. */
bool turn_bytes_are_over(const struct turn_bytes *turns, int from, int to);

/* Return the last turn of from .. to with more than @bytes; -1: none. */
int turn_bytes_last_above(const struct turn_bytes *turns, int from, int to, int64_t bytes);

/* Find the first turn with the most bytes. */
int turn_bytes_peak(const struct turn_bytes *turns, int64_t *ret_bytes);

/* Return the bytes above the limit, summed over turns. */
static inline double turn_bytes_over(const struct turn_bytes *turns)
{
  return (double)turns->over_blocks * (1 << turns->shift);
}

static inline int64_t turn_bytes_get(const struct turn_bytes *turns, int turn)
{
  return turns->bytes[turn] + turns->added[turn >> turns->shift];
}

#endif
