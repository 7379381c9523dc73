/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preparing several drives: their files, each as long as its share.
 *
 * Shares are by speed: each drive overwrites a trial of bytes, and the stripes are given out by the rates, as far as
 * there is room. A small store is not worth the trial.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/free_space.h"
#include "offload/store/store_internal.h"

#define TRIAL_BYTES (32ull << 20) /* overwritten on each drive, to compare their speeds */
#define TRIAL_STORE_BYTES (256ull << 20) /* in a smaller store the drives are not tried */

/* Measure the bytes per second of overwriting the first TRIAL_BYTES of @drive's file. They are written once before. */
static int drive_try(struct lade_store *store, int drive, const void *data, double *ret_rate, struct lade_error *error)
{
  int64_t ns = 1;
  for (int pass = 0; pass < 2; pass++) {
    struct lade_transfer transfer = {.op = LADE_STORE_WRITE, .check = LADE_CHECK_CALLER, .bytes = TRIAL_BYTES,
                                     .data = (void *)data, .is_fill = true, .on_drive = drive + 1};
    int64_t start_ns = lade_now_ns();
    int code = store_transfer_run(store, &transfer);
    ns = LADE_MAX(lade_now_ns() - start_ns, 1);
    if (code == -ECANCELED)
      return lade_error_set(error, -EINTR, "store in %s: stopped in a trial", store->drives[drive].dir);
    if (code)
      return lade_error_set(error, store_code_of_transfer(code), "store in %s: a trial of %llu bytes failed: %s",
                            store->drives[drive].dir, (unsigned long long)TRIAL_BYTES, strerror(-code));
  }
  *ret_rate = (double)TRIAL_BYTES * 1e9 / (double)ns;
  return 0;
}

/*
 * Find each drive's weight. A drive with space for less than a trial is not tried, because its space limits its share.
 */
static int weights_find(struct lade_store *store, const uint64_t *max, const void *data, double *ret_weights,
                        struct lade_error *error)
{
  int code = 0;
  for (int i = 0; i < store->n_drives && !code; i++) {
    ret_weights[i] = 1;
    if (store->reserved_bytes >= TRIAL_STORE_BYTES && max[i] >= TRIAL_BYTES / store->stripes.bytes)
      code = drive_try(store, i, data, &ret_weights[i], error);
  }
  return code;
}

/* Return the slots for which @drive has space; directories of one file system share it evenly. */
static uint64_t drive_room(const struct lade_store *store, int drive)
{
  uint64_t n_sharing = 0, bytes;
  for (int i = 0; i < store->n_drives; i++)
    n_sharing += i == drive || store_file_shares_device(&store->drives[i].file, &store->drives[drive].file);
  if (lade_free_space_get_fd(store->drives[drive].file.fd, &bytes) || bytes == LADE_FREE_SPACE_UNKNOWN)
    return INT32_MAX;
  return bytes / n_sharing / store->stripes.bytes;
}

static int room_error(const struct lade_store *store, uint64_t room_bytes, struct lade_error *error)
{
  char need[LADE_SIZE_TEXT], have[LADE_SIZE_TEXT];
  return lade_error_set(error, -ENOSPC, "store in %s and %d more needs %s, and %s are free; free more or name others",
                        store->drives[0].dir, store->n_drives - 1, lade_size_exact(store->reserved_bytes, need),
                        lade_size_exact(room_bytes, have));
}

int drives_prepare(struct lade_store *store, const void *data, uint64_t *ret_file_bytes, struct lade_error *error)
{
  double weights[LADE_STORE_DRIVES_MAX];
  uint64_t max[LADE_STORE_DRIVES_MAX], n_slots[LADE_STORE_DRIVES_MAX];
  uint32_t bytes = (uint32_t)LADE_MIN(store->piece_bytes, STORE_STRIPE_BYTES_MAX);
  uint64_t n = (uint64_t)lade_div_up((int64_t)store->reserved_bytes, bytes);
  store->stripes.bytes = bytes;
  uint64_t room = 0;
  for (int i = 0; i < store->n_drives; i++)
    room += max[i] = drive_room(store, i);
  if (room < n)
    return room_error(store, room * bytes, error);
  int code = weights_find(store, max, data, weights, error);
  if (code)
    return code;
  bool has_room = store_shares(n, store->n_drives, weights, max, n_slots);
  LADE_ASSERT(has_room);
  for (int i = 0; i < store->n_drives && !code; i++) {
    ret_file_bytes[i] = n_slots[i] * bytes;
    if (n_slots[i])
      code = store_file_allocate(&store->drives[i].file, store->drives[i].dir, ret_file_bytes[i], store->faults, error);
  }
  if (!code && store_stripes_init(&store->stripes, n, bytes, store->n_drives, n_slots, store->faults))
    code = lade_error_set(error, -ENOMEM, "no memory for the map of the store in %s", store->drives[0].dir);
  return code;
}
