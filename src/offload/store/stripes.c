/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table from stripes to slots. It costs 32 bytes per stripe, half of them for marks of blocks that stayed behind,
 * and four per slot. Each drive's free slots are a stack, so that a move is two pushes and pops. A slot just left is
 * the next to be taken, while its blocks are warm in the drive. Marks are per block, as transfers are, because values
 * may be adjacent in a granule.
 *
 * At first each stripe goes to the drive with the largest fraction of its slots free. So consecutive stripes are on
 * different drives, and each drive has its share. An eighth of the slots is spare. This bounds how far shares can move
 * to drives that are faster now than in the trial.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offload/store/stripes.h"

#define SPARE_PART 8 /* an eighth more slots than stripes */
#define SPARE_MIN 8 /* per drive */

/* Divide @rest by weight among drives that are not full; return the undivided rest. */
static uint64_t shares_deal(uint64_t rest, int n_drives, const double *weights, const uint64_t *max, uint64_t *shares)
{
  double sum = 0;
  for (int i = 0; i < n_drives; i++)
    sum += shares[i] < max[i] ? weights[i] : 0;
  uint64_t left = rest;
  for (int i = 0; i < n_drives && sum > 0; i++) {
    uint64_t room = max[i] - shares[i];
    uint64_t part = room ? (uint64_t)((double)rest * (weights[i] / sum)) + 1 : 0; /* + 1: each round makes progress */
    part = LADE_MIN(LADE_MIN(part, room), left);
    shares[i] += part;
    left -= part;
  }
  return left;
}

bool store_shares(uint64_t n, int n_drives, const double *weights, const uint64_t *max, uint64_t *ret_shares)
{
  uint64_t wanted = n + n / SPARE_PART + (uint64_t)n_drives * SPARE_MIN, left = wanted;
  memset(ret_shares, 0, (size_t)n_drives * sizeof(*ret_shares));
  for (uint64_t before = left + 1; left && left < before;) {
    before = left;
    left = shares_deal(left, n_drives, weights, max, ret_shares);
  }
  return wanted - left >= n;
}

static int drive_emptiest(const struct store_stripes *stripes)
{
  int best = 0;
  double max = -1;
  for (int i = 0; i < stripes->n_drives; i++) {
    const struct store_slots *slots = &stripes->slots[i];
    double part = slots->n ? (double)slots->n_free / (double)slots->n : 0;
    if (part > max) {
      max = part;
      best = i;
    }
  }
  return best;
}

int store_stripes_init(struct store_stripes *stripes, uint64_t n, uint32_t bytes, int n_drives,
                       const uint64_t *n_slots, struct lade_faults *faults)
{
  LADE_ASSERT(bytes <= STORE_STRIPE_BYTES_MAX && n_drives <= LADE_STORE_DRIVES_MAX);
  *stripes = (struct store_stripes){.n = n, .bytes = bytes, .n_drives = n_drives};
  stripes->spots = lade_fault_calloc(faults, n, sizeof(*stripes->spots));
  bool is_whole = stripes->spots != NULL;
  for (int i = 0; i < n_drives; i++) {
    struct store_slots *slots = &stripes->slots[i];
    slots->free = lade_fault_calloc(faults, n_slots[i] + 1, sizeof(*slots->free));
    is_whole = is_whole && slots->free && n_slots[i] < UINT32_MAX;
    for (uint64_t k = n_slots[i]; k > 0 && is_whole; k--)
      slots->free[slots->n_free++] = (uint32_t)(k - 1);
    slots->n = slots->n_free;
  }
  for (uint64_t i = 0; i < n && is_whole; i++) {
    int drive = drive_emptiest(stripes);
    struct store_slots *slots = &stripes->slots[drive];
    LADE_ASSERT(slots->n_free);
    stripes->spots[i] = (struct store_spot){.drive = (uint8_t)drive, .slot = slots->free[--slots->n_free]};
  }
  if (is_whole)
    return 0;
  store_stripes_finish(stripes);
  return -ENOMEM;
}

void store_stripes_finish(struct store_stripes *stripes)
{
  for (int i = 0; i < stripes->n_drives; i++)
    free(stripes->slots[i].free);
  free(stripes->spots);
  *stripes = (struct store_stripes){0};
}

bool store_stripes_move(struct store_stripes *stripes, uint64_t i, int drive)
{
  LADE_ASSERT(i < stripes->n && drive < stripes->n_drives);
  struct store_spot *spot = &stripes->spots[i];
  struct store_slots *to = &stripes->slots[drive], *from = &stripes->slots[spot->drive];
  if (!to->n_free)
    return false;
  uint32_t slot = to->free[--to->n_free];
  LADE_ASSERT(from->n_free < from->n);
  from->free[from->n_free++] = spot->slot;
  spot->drive = (uint8_t)drive;
  spot->slot = slot;
  return true;
}

bool store_stripes_leave(struct store_stripes *stripes, uint64_t i, int drive)
{
  struct store_spot *spot = &stripes->spots[i];
  const struct store_spot before = *spot;
  bool is_behind = false;
  const uint64_t bytes = store_spot_run(spot, 0, stripes->bytes, &is_behind);
  if (is_behind || bytes < stripes->bytes || !store_stripes_move(stripes, i, drive))
    return false;
  spot->old_slot = before.slot;
  spot->old_drive = before.drive;
  spot->is_lost = false;
  memset(spot->behind, 0xff, sizeof(spot->behind));
  return true;
}

int store_stripes_grow(struct store_stripes *stripes, int drive, uint64_t n)
{
  struct store_slots *slots = &stripes->slots[drive];
  if (n > UINT32_MAX - 1 - slots->n)
    return -ENOMEM;
  uint32_t *grown = realloc(slots->free, (slots->n + n + 1) * sizeof(*grown));
  if (!grown)
    return -ENOMEM;
  slots->free = grown;
  for (uint64_t k = 0; k < n; k++)
    grown[slots->n_free++] = slots->n++;
  return 0;
}

/* Return the bits of word @word of store_spot.behind for the blocks from @first up to @end. */
static uint64_t word_bits(uint64_t word, uint64_t first, uint64_t end)
{
  first = LADE_MAX(first, word * 64) - word * 64;
  end = LADE_MIN(end, word * 64 + 64);
  if (end <= word * 64 + first)
    return 0;
  return UINT64_MAX >> (64 - (end - word * 64 - first)) << first;
}

void store_spot_lose(struct store_spot *spot)
{
  spot->is_lost = true;
  memset(spot->behind, 0xff, sizeof(spot->behind));
}

void store_spot_regain(struct store_spot *spot, uint64_t from, uint64_t bytes)
{
  LADE_ASSERT(from % LADE_STORE_BLOCK_BYTES == 0 && bytes % LADE_STORE_BLOCK_BYTES == 0);
  for (uint64_t i = 0; i < LADE_COUNT(spot->behind); i++)
    spot->behind[i] &= ~word_bits(i, from / LADE_STORE_BLOCK_BYTES, (from + bytes) / LADE_STORE_BLOCK_BYTES);
}

static bool block_is_behind(const struct store_spot *spot, uint64_t block)
{
  return spot->behind[block / 64] >> block % 64 & 1;
}

uint64_t store_spot_run(const struct store_spot *spot, uint64_t from, uint64_t bytes, bool *ret_is_behind)
{
  const uint64_t first = from / LADE_STORE_BLOCK_BYTES, end = (from + bytes) / LADE_STORE_BLOCK_BYTES;
  LADE_ASSERT(from % LADE_STORE_BLOCK_BYTES == 0 && bytes && bytes % LADE_STORE_BLOCK_BYTES == 0);
  *ret_is_behind = block_is_behind(spot, first);
  uint64_t at = first + 1;
  while (at < end && block_is_behind(spot, at) == *ret_is_behind)
    at++;
  return (at - first) * LADE_STORE_BLOCK_BYTES;
}
