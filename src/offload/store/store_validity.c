/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recount: that a store is whole, derived again from its slots, queue and map.
 *
 * A slot is in use if it is not on the stack of free slots. Pieces in these slots and the queue give each transfer's
 * pieces, the transfers that are open, and the bounds of pieces in the engine. In the map, the slots of stripes and the
 * free slots must be each slot of a drive's file once. That is compared by number and by the sum of a hash over slots,
 * so no memory is needed: two different sets have equal sums with a probability of 2^-64.
 *
 * It is asserted with -Dchecks=full when a store is prepared, after each round of the reaper, and before close. It is
 * linear in the map and at most quadratic in the slots. It repairs nothing and calls no engine.
 */
#include "offload/store/store_internal.h"

struct store_recount {
  const struct lade_store *store;
  uint64_t free_slots[STORE_SLOTS_MAX / 64]; /* as bits */
  int n_transfers;                           /* queued, or with a piece in a slot */
  int n_queued; /* with a piece in a slot, and marked as queued, but not yet found in the queue */
};

/* ---- slots and transfers ---- */

static bool slot_is_free(const struct store_recount *count, int slot)
{
  return count->free_slots[slot / 64] >> slot % 64 & 1;
}

/* Mark the free slots. False if one is free twice or does not exist. */
static bool free_slots_are_valid(struct store_recount *count)
{
  const struct lade_store *store = count->store;
  if (store->depth < 1 || store->depth > STORE_SLOTS_MAX || store->n_free < 0 || store->n_free > store->depth)
    return false;
  for (int i = 0; i < store->n_free; i++) {
    const int slot = store->free_slots[i];
    if (slot < 0 || slot >= store->depth || slot_is_free(count, slot))
      return false;
    count->free_slots[slot / 64] |= UINT64_C(1) << slot % 64;
  }
  return true;
}

/* True if @transfer is not done, and queued exactly if it has bytes that no piece has. */
static bool transfer_is_open(const struct lade_transfer *transfer)
{
  const uint64_t rounded = lade_align_up(transfer->bytes, LADE_STORE_BLOCK_BYTES);
  return !lade_transfer_is_done(transfer) && transfer->n_pieces >= 0 && transfer->taken_bytes <= rounded &&
         transfer->is_queued == (!transfer->result && transfer->taken_bytes < rounded);
}

/* True if @piece lies in its drive's file, where its transfer's bytes are mapped. pre: its transfer and drive exist. */
static bool place_is_valid(const struct lade_store *store, const struct store_piece *piece)
{
  const struct lade_transfer *transfer = piece->transfer;
  const struct store_stripes *stripes = &store->stripes;
  const uint64_t offset = transfer->extent.offset + transfer->offset + piece->from;
  if (!stripes->n || transfer->on_drive) /* a trial or the first fill, or a store of one drive */
    return piece->place == offset && piece->drive == LADE_MAX(transfer->on_drive - 1, 0) &&
           (!store->is_prepared ||
            (piece->place <= store->reserved_bytes && piece->bytes <= store->reserved_bytes - piece->place));
  return piece->place % stripes->bytes == offset % stripes->bytes &&
         piece->bytes <= stripes->bytes - offset % stripes->bytes &&
         piece->place / stripes->bytes < stripes->slots[piece->drive].n;
}

static bool piece_is_valid(const struct lade_store *store, const struct store_piece *piece)
{
  const struct lade_transfer *transfer = piece->transfer;
  if (!transfer || piece->drive < 0 || piece->drive >= store->n_drives || !transfer_is_open(transfer))
    return false;
  if (!piece->bytes || piece->bytes > store->piece_bytes || piece->moved_bytes > piece->bytes ||
      piece->bytes % LADE_STORE_BLOCK_BYTES || piece->moved_bytes % LADE_STORE_BLOCK_BYTES)
    return false;
  return piece->from % LADE_STORE_BLOCK_BYTES == 0 && piece->from <= transfer->taken_bytes &&
         piece->bytes <= transfer->taken_bytes - piece->from && place_is_valid(store, piece);
}

/* Return the slots that hold a piece of @transfer; @ret_first is the first of them. */
static int transfer_slots(const struct store_recount *count, const struct lade_transfer *transfer, int *ret_first)
{
  const struct lade_store *store = count->store;
  int n = 0;
  for (int slot = store->depth - 1; slot >= 0; slot--) {
    if (!slot_is_free(count, slot) && store->pieces[slot].transfer == transfer) {
      *ret_first = slot;
      n++;
    }
  }
  return n;
}

/* True if the pieces of @transfer in slots are all that it has; during a round, the reaper holds others. */
static bool pieces_are_all(const struct lade_store *store, const struct lade_transfer *transfer, int n_slots)
{
  return store->is_reaping ? n_slots <= transfer->n_pieces : n_slots == transfer->n_pieces;
}

static bool pieces_are_valid(struct store_recount *count)
{
  const struct lade_store *store = count->store;
  for (int slot = 0; slot < store->depth; slot++) {
    const struct store_piece *piece = &store->pieces[slot];
    int first = slot;
    if (slot_is_free(count, slot))
      continue;
    if (!piece_is_valid(store, piece) ||
        !pieces_are_all(store, piece->transfer, transfer_slots(count, piece->transfer, &first)))
      return false;
    count->n_transfers += first == slot && !piece->transfer->is_queued;
    count->n_queued += first == slot && piece->transfer->is_queued;
  }
  return true;
}

static bool queue_is_valid(struct store_recount *count)
{
  const struct lade_store *store = count->store;
  const struct lade_transfer *last = NULL;
  for (const struct lade_transfer *at = store->head; at; last = at, at = at->next) {
    int first;
    const int n_slots = transfer_slots(count, at, &first);
    if (++count->n_transfers > store->n_open) /* also ends the walk over a cycle */
      return false;
    if (!at->is_queued || !transfer_is_open(at) || !pieces_are_all(store, at, n_slots))
      return false;
    count->n_queued -= n_slots > 0;
  }
  return store->tail == last && !count->n_queued;
}

/* True if the counts of pieces and transfers fit the slots. */
static bool counts_are_valid(const struct store_recount *count)
{
  const struct lade_store *store = count->store;
  const int n_in_use = store->depth - store->n_free;
  int n_pending = 0;
  for (int i = 0; i < store->n_drives; i++) {
    if (store->drives[i].n_pending < 0)
      return false;
    n_pending += store->drives[i].n_pending;
  }
  return n_pending == store->n_in_engine && n_pending <= n_in_use && count->n_transfers <= store->n_open;
}

/* ---- drives and their map ---- */

static bool drives_are_valid(const struct lade_store *store)
{
  int n_active = 0;
  if (store->n_drives < 1 || store->n_drives > LADE_STORE_DRIVES_MAX)
    return false;
  for (int i = 0; i < store->n_drives; i++) {
    if (store->drives[i].file.fd < 0)
      return false;
    n_active += !store->drives[i].is_aside;
  }
  return n_active > 0;
}

/* Return a hash of @slot whose sums differ for different sets (the finaliser of SplitMix64). */
static uint64_t slot_hash(uint64_t slot)
{
  slot += UINT64_C(0x9e3779b97f4a7c15);
  slot = (slot ^ slot >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  slot = (slot ^ slot >> 27) * UINT64_C(0x94d049bb133111eb);
  return slot ^ slot >> 31;
}

/* True if the stripes on @drive and its free slots are each slot of its file once. */
static bool slots_are_tiled(const struct store_stripes *stripes, int drive)
{
  const struct store_slots *slots = &stripes->slots[drive];
  uint64_t n = slots->n_free, sum = 0;
  if (slots->n_free > slots->n)
    return false;
  for (uint64_t i = 0; i < slots->n_free; i++)
    sum += slot_hash(slots->free[i]);
  for (uint64_t i = 0; i < stripes->n; i++) {
    if (stripes->spots[i].drive == drive) {
      sum += slot_hash(stripes->spots[i].slot);
      n++;
    }
  }
  for (uint64_t slot = 0; slot < slots->n; slot++)
    sum -= slot_hash(slot);
  return n == slots->n && !sum;
}

/* True if blocks of @spot that stayed behind are lost, or in the file of a drive that is set aside. */
static bool spot_is_valid(const struct lade_store *store, const struct store_spot *spot)
{
  const struct store_stripes *stripes = &store->stripes;
  bool is_behind;
  const uint64_t bytes = store_spot_run(spot, 0, stripes->bytes, &is_behind);
  if (spot->drive >= stripes->n_drives)
    return false;
  if (spot->is_lost || (!is_behind && bytes == stripes->bytes))
    return true;
  return spot->old_drive < stripes->n_drives && spot->old_slot < stripes->slots[spot->old_drive].n &&
         store->drives[spot->old_drive].is_aside;
}

static bool stripes_are_valid(const struct lade_store *store)
{
  const struct store_stripes *stripes = &store->stripes;
  if (!stripes->n)
    return store->n_drives == 1 || !store->is_prepared || !store->reserved_bytes;
  if (stripes->n_drives != store->n_drives || !stripes->bytes || stripes->bytes > STORE_STRIPE_BYTES_MAX ||
      stripes->bytes % LADE_STORE_BLOCK_BYTES || stripes->bytes > store->piece_bytes ||
      stripes->n != (uint64_t)lade_div_up((int64_t)store->reserved_bytes, stripes->bytes))
    return false;
  for (uint64_t i = 0; i < stripes->n; i++) {
    if (!spot_is_valid(store, &stripes->spots[i]))
      return false;
  }
  for (int drive = 0; drive < stripes->n_drives; drive++) {
    if (!slots_are_tiled(stripes, drive))
      return false;
  }
  return true;
}

/* True if space is reserved in whole granules, and each of them has a checksum once the store is prepared. */
static bool space_is_valid(const struct lade_store *store)
{
  if (store->reserved_bytes % LADE_STORE_GRANULE_BYTES)
    return false;
  return !store->is_prepared ||
         (store->sums.sums && store->sums.n == store->reserved_bytes / LADE_STORE_GRANULE_BYTES);
}

bool store_is_valid(const struct lade_store *store)
{
  struct store_recount count = {.store = store};
  return drives_are_valid(store) && space_is_valid(store) && stripes_are_valid(store) &&
         free_slots_are_valid(&count) && pieces_are_valid(&count) && queue_is_valid(&count) &&
         counts_are_valid(&count);
}
