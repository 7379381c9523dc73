/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durable tensor stores. The files are those of durable.h: a slot holds a catalog, and the shared extent the tensors.
 *
 *   slot (two, in turn)    for each tensor: an entry, its runs, the checksums of its granules, its name
 *   record's memo          sizes and counts: struct catalog_memo
 *
 * A publish writes the catalog of the present tensors to the slot that does not count, and lets durable.c make it
 * count: sync, record, sync. Since the last publish, puts have written only to space that the published catalog does
 * not refer to. So the former state stays whole until the new one counts. Afterwards the runs of the new catalog are
 * held, and runs that only the former one held are free. If the record's write or sync fails, either catalog may count,
 * so the runs of both stay held, and the store refuses further publishes.
 *
 * The slot's table has the checksums of the catalog's own granules, so an entry has the bytes that a publish wrote. Its
 * fields are checked nevertheless, because a wrong run would give bytes of one tensor to another.
 *
 * A slot is 1/256 of the budget: for each granule 8 bytes of checksum, 16 of a run, and 232 of entry and name.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/store_internal.h"
#include "offload/store/tensor_internal.h"

#define MAGIC "lade-tns"
#define VERSION 1 /* of the catalog's layout */
#define ENTRY_BYTES_PER_GRANULE 256 /* a name of up to 192 bytes and the entry's numbers */

struct catalog_memo {
  char magic[8];
  uint32_t version, n_numbers;
  uint64_t budget_bytes, catalog_bytes, n_tensors, n_puts;
};

struct catalog_entry {
  uint32_t number, n_runs;
  uint64_t bytes, generation;
  uint64_t name_bytes; /* with its 0, and padded to 8 */
};

struct catalog_run {
  uint64_t offset, bytes;
};

static uint64_t granules(uint64_t bytes)
{
  return lade_align_up(bytes, LADE_STORE_GRANULE_BYTES) / LADE_STORE_GRANULE_BYTES;
}

static uint64_t slot_bytes(uint64_t budget_bytes)
{
  return lade_align_up((granules(budget_bytes) + 1) * ENTRY_BYTES_PER_GRANULE, LADE_STORE_GRANULE_BYTES);
}

static uint64_t name_bytes(const char *name)
{
  return lade_align_up(strlen(name) + 1, sizeof(uint64_t));
}

static uint64_t entry_bytes(const struct tensor *tensor)
{
  return sizeof(struct catalog_entry) + (uint64_t)tensor->runs.n * sizeof(struct catalog_run) +
         granules(tensor->bytes) * sizeof(uint64_t) + name_bytes(tensor->name);
}

/* Return the checksums of the granules of @run, in the store's table. */
static uint64_t *run_sums(const struct lade_tensor_store *s, const struct store_run *run)
{
  return s->store->sums.sums + (s->extent.offset + run->offset) / LADE_STORE_GRANULE_BYTES;
}

/* Move the catalog of @generation between its slot and @data. */
static int catalog_move(struct lade_tensor_store *s, enum lade_store_op op, uint64_t generation, void *data,
                        uint64_t bytes, struct lade_error *error)
{
  struct lade_transfer transfer = {.op = op, .extent = lade_durable_slot(s->durable, generation), .bytes = bytes,
                                   .data = data,
                                   .identity = {.tensor = UINT32_MAX, .generation = generation}};
  int code = lade_store_submit(s->store, &transfer);
  LADE_ASSERT(!code);
  return lade_store_wait(s->store, &transfer, error);
}

/* ---- publishing; mutex held ---- */

/* Write the entry of @tensor at @at; return its end. */
static char *entry_write(const struct lade_tensor_store *s, const struct tensor *tensor, char *at)
{
  const struct catalog_entry entry = {.number = tensor->number, .n_runs = (uint32_t)tensor->runs.n,
                                      .bytes = tensor->bytes, .generation = tensor->generation,
                                      .name_bytes = name_bytes(tensor->name)};
  memcpy(at, &entry, sizeof(entry));
  at += sizeof(entry);
  for (int i = 0; i < tensor->runs.n; i++) {
    const struct catalog_run place = {tensor->runs.items[i].offset, tensor->runs.items[i].bytes};
    memcpy(at, &place, sizeof(place));
    at += sizeof(place);
  }
  for (int i = 0; i < tensor->runs.n; i++) {
    const uint64_t bytes = tensor->runs.items[i].bytes / LADE_STORE_GRANULE_BYTES * sizeof(uint64_t);
    memcpy(at, run_sums(s, &tensor->runs.items[i]), bytes);
    at += bytes;
  }
  memset(at, 0, entry.name_bytes);
  memcpy(at, tensor->name, strlen(tensor->name));
  return at + entry.name_bytes;
}

/* Write the catalog of all tensors into the slot of @generation. */
static int catalog_write(struct lade_tensor_store *s, uint64_t generation, uint64_t bytes, struct lade_error *error)
{
  char *data = aligned_alloc(LADE_STORE_BLOCK_BYTES, lade_align_up(bytes, LADE_STORE_BLOCK_BYTES));
  if (!data)
    return lade_error_set(error, -ENOMEM, "no memory for a catalog of %llu bytes", (unsigned long long)bytes);
  char *at = data;
  for (const struct tensor *t = s->tensors; t; t = t->next)
    at = entry_write(s, t, at);
  memset(at, 0, (size_t)(data + lade_align_up(bytes, LADE_STORE_BLOCK_BYTES) - at));
  int code = catalog_move(s, LADE_STORE_WRITE, generation, data, bytes, error);
  free(data);
  return code;
}

static void runs_hold(struct lade_tensor_store *s)
{
  for (struct tensor *t = s->tensors; t; t = t->next) {
    for (int i = 0; i < t->runs.n; i++)
      t->runs.items[i].is_held = true;
  }
}

/* Refuse a publish that cannot begin. */
static int publish_check(const struct lade_tensor_store *s, uint64_t bytes, struct lade_error *error)
{
  for (const struct tensor *t = s->tensors; t; t = t->next) {
    if (t->requests)
      return lade_error_set(error, -EBUSY, "'%.*s' is being moved; wait for all requests before a publish",
                            TENSOR_NAME_SHOWN, t->name);
    if (t->unwritten.n)
      return lade_error_set(error, -EBADMSG, "the put of bytes %llu to %llu of '%.*s' failed; put them again or drop "
                            "the tensor before a publish", (unsigned long long)t->unwritten.items[0].from,
                            (unsigned long long)t->unwritten.items[0].end, TENSOR_NAME_SHOWN, t->name);
  }
  if (bytes > slot_bytes(s->budget_bytes))
    return lade_error_set(error, -EOVERFLOW, "the catalog of %llu tensors needs %llu bytes and has %llu: use shorter "
                          "names, or a larger budget", (unsigned long long)s->n_tensors, (unsigned long long)bytes,
                          (unsigned long long)slot_bytes(s->budget_bytes));
  if (s->publish_code)
    return lade_error_set(error, -EIO, "an earlier publish failed, and it may count or not: open the store again");
  return 0;
}

static int publish(struct lade_tensor_store *s, struct lade_error *error)
{
  struct lade_error why = {0};
  size_t memo_bytes = 0;
  const uint64_t generation = lade_durable_memo(s->durable, &memo_bytes) ? lade_durable_generation(s->durable) + 1 : 0;
  struct catalog_memo memo = {.magic = MAGIC, .version = VERSION, .n_numbers = s->n_numbers,
                              .budget_bytes = s->budget_bytes, .n_tensors = s->n_tensors, .n_puts = s->n_puts};
  for (const struct tensor *t = s->tensors; t; t = t->next)
    memo.catalog_bytes += entry_bytes(t);
  int code = publish_check(s, memo.catalog_bytes, error);
  if (!code && memo.catalog_bytes)
    code = catalog_write(s, generation, memo.catalog_bytes, error);
  if (code)
    return code;
  code = lade_durable_publish(s->durable, generation, &memo, sizeof(memo), &why);
  if (!code)
    store_room_release(&s->room);
  runs_hold(s);
  s->publish_code = code;
  return !code ? 0 : lade_error_set(error, code, "%s; this publish may count or not, so the store publishes no more",
                                    why.text);
}

int lade_tensor_store_publish(struct lade_tensor_store *s, struct lade_error *error)
{
  if (!s || !s->durable)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_publish: %s", s ? "the store was not opened as durable"
                                                                             : "store is NULL");
  if (!*s->is_alive)
    return lade_error_set(error, -EPERM, "this process is a fork of the one that opened the store");
  pthread_mutex_lock(&s->mutex);
  int code = publish(s, error);
  pthread_mutex_unlock(&s->mutex);
  return code;
}

/* ---- opening ---- */

/* An entry that cannot be taken: a fault of its bytes, or no memory for it. */
struct entry_fault {
  int code;         /* -EBADMSG or -ENOMEM; 0: none */
  const char *text; /* of -EBADMSG: follows "the entry" */
};

static const struct entry_fault fault_none = {0}, fault_memory = {.code = -ENOMEM};

static struct entry_fault fault_damage(const char *text)
{
  return (struct entry_fault){-EBADMSG, text};
}

/* Report @fault of the entry that begins @offset bytes into the catalog. */
static int fault_report(const struct lade_tensor_store *s, const struct entry_fault *fault, uint64_t offset,
                        struct lade_error *error)
{
  const struct lade_extent slot = lade_durable_slot(s->durable, lade_durable_generation(s->durable));
  if (fault->code == -ENOMEM)
    return lade_error_set(error, -ENOMEM, "no memory for the tensors of the durable store");
  return lade_error_set(error, fault->code, "the catalog of the durable store is damaged: the entry at byte %llu %s",
                        (unsigned long long)(slot.offset + offset), fault->text);
}

/* Take the runs and checksums of an entry, which begin at @at. */
static struct entry_fault runs_read(struct lade_tensor_store *s, struct tensor *tensor,
                                    const struct catalog_entry *entry, const char *at)
{
  const char *sums = at + (uint64_t)entry->n_runs * sizeof(struct catalog_run);
  uint64_t left = granules(entry->bytes) * LADE_STORE_GRANULE_BYTES;
  for (uint32_t i = 0; i < entry->n_runs; i++) {
    struct catalog_run place;
    memcpy(&place, at + i * sizeof(place), sizeof(place));
    const struct store_run run = {.offset = place.offset, .bytes = place.bytes, .is_held = true};
    if (place.offset % LADE_STORE_GRANULE_BYTES || place.bytes % LADE_STORE_GRANULE_BYTES || place.bytes > left)
      return fault_damage("has a run out of range");
    int code = store_room_claim(&s->room, &tensor->runs, run);
    if (code)
      return code == -ENOMEM ? fault_memory : fault_damage("has a run that another tensor has, too");
    const uint64_t bytes = place.bytes / LADE_STORE_GRANULE_BYTES * sizeof(uint64_t);
    memcpy(run_sums(s, &run), sums, bytes);
    sums += bytes;
    left -= place.bytes;
  }
  return left ? fault_damage("has too few runs") : fault_none;
}

/* Read the entry at *@at, in a catalog that ends at @end, and advance *@at past it. */
static struct entry_fault entry_read(struct lade_tensor_store *s, const char **at, const char *end)
{
  struct catalog_entry entry;
  const uint64_t left = (uint64_t)(end - *at);
  if (left < sizeof(entry))
    return fault_damage("is cut");
  memcpy(&entry, *at, sizeof(entry));
  if (!entry.bytes || entry.bytes > s->budget_bytes + LADE_STORE_GRANULE_BYTES ||
      entry.n_runs > granules(entry.bytes) || entry.name_bytes < 8 || entry.name_bytes % 8 || entry.name_bytes > left)
    return fault_damage("has a size out of range");
  const uint64_t before_name = sizeof(entry) + (uint64_t)entry.n_runs * sizeof(struct catalog_run) +
                               granules(entry.bytes) * sizeof(uint64_t);
  if (before_name + entry.name_bytes > left)
    return fault_damage("is cut");
  const char *name = *at + before_name;
  if (name[entry.name_bytes - 1] || !*name || tensor_find(s, name))
    return fault_damage("has no name of its own");
  struct tensor *tensor = tensor_make(s, name);
  if (!tensor)
    return fault_memory;
  tensor->number = entry.number;
  tensor->bytes = entry.bytes;
  tensor->generation = entry.generation;
  const struct entry_fault fault = runs_read(s, tensor, &entry, *at + sizeof(entry));
  *at += before_name + entry.name_bytes;
  return fault;
}

static int catalog_read(struct lade_tensor_store *s, const struct catalog_memo *memo, struct lade_error *error)
{
  const uint64_t bytes = memo->catalog_bytes, room = lade_align_up(bytes, LADE_STORE_BLOCK_BYTES);
  char *data = room ? aligned_alloc(LADE_STORE_BLOCK_BYTES, room) : NULL;
  if (room && !data)
    return lade_error_set(error, -ENOMEM, "no memory for a catalog of %llu bytes", (unsigned long long)bytes);
  const char *at = data, *begin = data;
  struct entry_fault fault = fault_none;
  int code = room ? catalog_move(s, LADE_STORE_READ, lade_durable_generation(s->durable), data, bytes, error) : 0;
  for (uint64_t i = 0; i < memo->n_tensors && !code && !fault.code; i++) {
    begin = at;
    fault = entry_read(s, &at, data + bytes);
  }
  if (!code && !fault.code && at != data + bytes)
    fault = fault_damage("is not the last one");
  if (fault.code)
    code = fault_report(s, &fault, (uint64_t)(begin - data), error);
  free(data);
  s->n_puts = memo->n_puts;
  s->n_numbers = memo->n_numbers;
  return code;
}

/* Check the memo of the publish that counts, and its budget against the caller's; 0: the caller takes the memo's. */
static int memo_read(struct lade_tensor_store *s, const char *dir, struct catalog_memo *ret_memo,
                     struct lade_error *error)
{
  size_t bytes = 0;
  const void *found = lade_durable_memo(s->durable, &bytes);
  if (!found)
    return s->budget_bytes ? 0 : lade_error_set(error, -EINVAL, "%s has no durable store yet: state a budget", dir);
  if (bytes != sizeof(*ret_memo) || memcmp(found, MAGIC, sizeof(ret_memo->magic)) != 0)
    return lade_error_set(error, -EINVAL, "%s: lade-tensors.journal belongs to other state: name another directory",
                          dir);
  memcpy(ret_memo, found, sizeof(*ret_memo));
  if (ret_memo->version != VERSION)
    return lade_error_set(error, -EINVAL, "%s: the durable store is of format version %u, and this build reads version "
                          "%d", dir, ret_memo->version, VERSION);
  if (!ret_memo->budget_bytes || ret_memo->budget_bytes > INT64_MAX / 2 ||
      ret_memo->catalog_bytes > slot_bytes(ret_memo->budget_bytes))
    return lade_error_set(error, -EBADMSG, "%s: the record of the durable store is damaged: its sizes are out of range",
                          dir);
  if (s->budget_bytes && s->budget_bytes != ret_memo->budget_bytes)
    return lade_error_set(error, -EINVAL, "%s: the durable store has a budget of %llu bytes, and %llu were asked for: "
                          "state that, or 0", dir, (unsigned long long)ret_memo->budget_bytes,
                          (unsigned long long)s->budget_bytes);
  s->budget_bytes = ret_memo->budget_bytes;
  return 0;
}

int tensor_catalog_open(struct lade_tensor_store *s, const struct lade_tensor_store_params *params,
                        struct lade_error *error)
{
  const struct lade_durable_params durable_params = {
      .struct_size = sizeof(durable_params), .dir = params->dirs, .stem = "lade-tensors",
      .engine = params->use_threads ? LADE_STORE_POSIX : LADE_STORE_AUTO, .allow_tmpfs = params->allow_tmpfs,
      .allow_buffered = params->allow_buffered};
  struct catalog_memo memo = {0};
  int code = lade_durable_open(&durable_params, error, &s->durable);
  if (!code)
    code = memo_read(s, params->dirs, &memo, error);
  if (code)
    return code;
  const uint64_t bytes = lade_align_up(s->budget_bytes, LADE_STORE_GRANULE_BYTES);
  lade_durable_set_shared(s->durable, bytes);
  code = lade_durable_prepare(s->durable, slot_bytes(s->budget_bytes), bytes, error);
  if (code)
    return code;
  s->store = lade_durable_store(s->durable);
  s->extent = lade_durable_shared(s->durable);
  if (!LADE_PUSH(&s->room.free, ((struct store_run){.bytes = bytes})))
    return lade_error_set(error, -ENOMEM, "no memory for a store");
  return memo.version ? catalog_read(s, &memo, error) : 0;
}
