/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: a table of holdings by key, and sums.
 *
 * A holding is a node of its own, allocated when it is charged. So settling cannot run out of memory after the driver
 * has succeeded. The table is an array of lists that doubles when it is full; if there is no memory for that, the lists
 * get longer. One lock guards all of it, held for some tens of nanoseconds once or twice per call of the driver, which
 * takes microseconds.
 *
 * Each account has two sums. `charged` includes calls in progress and is compared with the budget. The record shows the
 * settled one. So a refusal by the driver leaves no false peak.
 *
 * Handles and mappings both hold a chunk, and it may lose its last handle first. It stays in the table as long as it
 * has a handle (n_handles), and its bytes are charged as long as it has either (n_uses). A mapping points to its chunk.
 */
#include "preload/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/lock.h"

#define BUCKETS_FIRST 64 /* a power of two; doubled as holdings come */

struct lade_holding {
  struct lade_holding *next; /* in its bucket, or in a caller's list */
  enum lade_ledger_kind kind;
  enum lade_ledger_space space;
  int account;
  uint64_t key, bytes;
  const void *owner;
  struct lade_holding *chunk; /* of a mapping */
  int n_handles, n_uses;      /* both 1 for all but chunks, and imports opened again */
  bool is_settled;
};

struct lade_ledger {
  struct lade_lock lock;
  struct lade_ledger_record *record;
  struct lade_ledger_budget budget;
  uint64_t charged_bytes[LADE_LEDGER_DEVICES + 1]; /* of bounded kinds, including calls in progress */
  struct lade_holding **buckets;
  uint64_t n_buckets, n_holdings;
};

static const char *const kind_names[LADE_LEDGER_N_KINDS] = {
    [LADE_LEDGER_LINEAR] = "linear",     [LADE_LEDGER_PITCHED] = "pitched",
    [LADE_LEDGER_MANAGED] = "managed",   [LADE_LEDGER_POOL] = "pool",
    [LADE_LEDGER_ARRAY] = "array",       [LADE_LEDGER_CHUNK] = "chunk",
    [LADE_LEDGER_GRAPH] = "graph",       [LADE_LEDGER_IMPORTED] = "imported",
    [LADE_LEDGER_PINNED] = "pinned",     [LADE_LEDGER_REGISTERED] = "registered",
};

const char *lade_ledger_kind_name(enum lade_ledger_kind kind)
{
  return kind_names[kind];
}

/* ---- the budget as text ---- */

int lade_ledger_budget_parse(const char *text, struct lade_ledger_budget *ret_budget, struct lade_error *error)
{
  struct lade_ledger_budget budget = {0};
  char *end = NULL;
  double percent = lade_number_read(text, &end);
  bool is_percent = end > text && (strcmp(end, "%") == 0 || strcmp(end, "%dev") == 0);
  if (is_percent && percent > 0 && percent <= 100)
    budget.percent = percent;
  else if (is_percent)
    return lade_error_set(error, -EINVAL, "budget '%.64s': a percentage of the device is above 0 and at most 100",
                          text);
  else if (text[0] && (lade_size_parse(text, &budget.bytes) || budget.bytes == 0))
    return lade_error_set(error, -EINVAL, "budget '%.64s': expected a size (24GiB) or a part of the device (80%%)",
                          text);
  *ret_budget = budget;
  return 0;
}

/* ---- the table ---- */

static struct lade_holding **bucket_of(const lade_ledger *ledger, uint64_t key)
{
  uint64_t mixed = (key ^ key >> 32) * 0x9e3779b97f4a7c15u; /* addresses differ in their middle bits */
  return &ledger->buckets[mixed >> 32 & (ledger->n_buckets - 1)];
}

static void table_grow(lade_ledger *ledger)
{
  lade_ledger larger = {.n_buckets = 2 * ledger->n_buckets};
  larger.buckets = calloc(larger.n_buckets, sizeof(*larger.buckets));
  if (!larger.buckets)
    return;
  for (uint64_t i = 0; i < ledger->n_buckets; i++) {
    for (struct lade_holding *holding = ledger->buckets[i], *next; holding; holding = next) {
      struct lade_holding **bucket = bucket_of(&larger, holding->key);
      next = holding->next;
      holding->next = *bucket;
      *bucket = holding;
    }
  }
  free(ledger->buckets);
  ledger->buckets = larger.buckets;
  ledger->n_buckets = larger.n_buckets;
}

static void table_put(lade_ledger *ledger, struct lade_holding *holding)
{
  if (ledger->n_holdings == ledger->n_buckets)
    table_grow(ledger);
  struct lade_holding **bucket = bucket_of(ledger, holding->key);
  holding->next = *bucket;
  *bucket = holding;
  ledger->n_holdings++;
}

/* Return the pointer to the holding under @key; the pointed value is NULL if there is none. */
static struct lade_holding **table_find(const lade_ledger *ledger, enum lade_ledger_space space, uint64_t key)
{
  struct lade_holding **at = bucket_of(ledger, key);
  while (*at && ((*at)->key != key || (*at)->space != space))
    at = &(*at)->next;
  return at;
}

static struct lade_holding *table_take(lade_ledger *ledger, struct lade_holding **at)
{
  struct lade_holding *holding = *at;
  if (!holding)
    return NULL;
  *at = holding->next;
  holding->next = NULL;
  ledger->n_holdings--;
  return holding;
}

/* ---- sums ---- */

static void sums_take(struct lade_ledger_sums *sums, uint64_t bytes)
{
  sums->bytes += bytes;
  sums->peak_bytes = LADE_MAX(sums->peak_bytes, sums->bytes);
  sums->n_taken++;
}

static void sums_give(struct lade_ledger_sums *sums, uint64_t bytes)
{
  LADE_ASSERT(bytes <= sums->bytes);
  sums->bytes -= bytes;
  sums->n_given++;
}

static bool is_bounded(const struct lade_holding *holding)
{
  return holding->kind < LADE_LEDGER_IMPORTED && holding->account != LADE_LEDGER_HOST;
}

/* Charge @bytes more to a holding. pre: lock held. */
static int bytes_charge(lade_ledger *ledger, struct lade_holding *holding, uint64_t bytes)
{
  struct lade_ledger_account *account = &ledger->record->accounts[holding->account];
  uint64_t *charged = &ledger->charged_bytes[holding->account];
  if (is_bounded(holding) && (*charged > account->budget_bytes || bytes > account->budget_bytes - *charged)) {
    account->n_refused++;
    account->refused_bytes = LADE_MAX(account->refused_bytes, holding->bytes + bytes);
    return -EOVERFLOW;
  }
  *charged += is_bounded(holding) ? bytes : 0;
  holding->bytes += bytes;
  return 0;
}

/* Subtract the holding's bytes. pre: lock held. */
static void bytes_drop(lade_ledger *ledger, struct lade_holding *holding)
{
  struct lade_ledger_account *account = &ledger->record->accounts[holding->account];
  if (is_bounded(holding)) {
    LADE_ASSERT(holding->bytes <= ledger->charged_bytes[holding->account]);
    ledger->charged_bytes[holding->account] -= holding->bytes;
  }
  if (!holding->is_settled || holding->kind == LADE_LEDGER_NOTHING)
    return;
  sums_give(&account->kinds[holding->kind], holding->bytes);
  if (is_bounded(holding))
    sums_give(&account->bounded, holding->bytes);
}

/* Drop a use, and with the last one the holding; of a mapping, the use of its chunk too. pre: lock held. */
static void holding_unuse(lade_ledger *ledger, struct lade_holding *holding)
{
  while (holding && --holding->n_uses == 0) {
    struct lade_holding *chunk = holding->chunk;
    bytes_drop(ledger, holding);
    free(holding);
    holding = chunk;
  }
}

/* Remove the holding at @at with all its handles. pre: lock held. */
static void holding_end(lade_ledger *ledger, struct lade_holding **at)
{
  struct lade_holding *holding = table_take(ledger, at);
  holding->n_uses -= holding->n_handles - 1;
  holding_unuse(ledger, holding);
}

/* ---- the ledger ---- */

int lade_ledger_create(struct lade_ledger_record *record, const struct lade_ledger_budget *budget,
                       lade_ledger **ret_ledger)
{
  lade_ledger *ledger = calloc(1, sizeof(*ledger));
  if (!ledger)
    return -ENOMEM;
  *ledger = (lade_ledger){.record = record, .budget = *budget, .n_buckets = BUCKETS_FIRST};
  ledger->buckets = calloc(BUCKETS_FIRST, sizeof(*ledger->buckets));
  if (!ledger->buckets) {
    free(ledger);
    return -ENOMEM;
  }
  for (int i = 0; i < LADE_LEDGER_DEVICES; i++)
    record->accounts[i].budget_bytes = budget->bytes ? budget->bytes : budget->percent > 0 ? 0 : UINT64_MAX;
  record->accounts[LADE_LEDGER_HOST].budget_bytes = UINT64_MAX;
  *ret_ledger = ledger;
  return 0;
}

void lade_ledger_destroy(lade_ledger *ledger)
{
  if (!ledger)
    return;
  for (uint64_t i = 0; i < ledger->n_buckets; i++)
    while (ledger->buckets[i])
      holding_end(ledger, &ledger->buckets[i]);
  free(ledger->buckets);
  free(ledger);
}

bool lade_ledger_knows(lade_ledger *ledger, int device)
{
  lade_lock_lock(&ledger->lock);
  bool is_known = ledger->record->accounts[device].total_bytes != 0;
  lade_lock_unlock(&ledger->lock);
  return is_known;
}

void lade_ledger_device(lade_ledger *ledger, int device, uint64_t total_bytes)
{
  struct lade_ledger_account *account = &ledger->record->accounts[device];
  const struct lade_ledger_budget *budget = &ledger->budget;
  lade_lock_lock(&ledger->lock);
  if (!account->total_bytes) {
    account->total_bytes = total_bytes;
    if (budget->percent > 0)
      account->budget_bytes = (uint64_t)((double)total_bytes * budget->percent / 100);
  }
  lade_lock_unlock(&ledger->lock);
}

int lade_ledger_charge(lade_ledger *ledger, int account, enum lade_ledger_kind kind, uint64_t bytes, const void *owner,
                       struct lade_holding **ret_holding)
{
  struct lade_holding *holding = calloc(1, sizeof(*holding));
  if (!holding)
    return -ENOMEM;
  *holding = (struct lade_holding){.account = account, .kind = kind, .owner = owner, .n_handles = 1, .n_uses = 1};
  lade_lock_lock(&ledger->lock);
  int status = bytes_charge(ledger, holding, bytes);
  lade_lock_unlock(&ledger->lock);
  if (status)
    free(holding);
  else
    *ret_holding = holding;
  return status;
}

/*
 * Drop a stale holding. The driver has returned a key that is in the table, so the old memory was freed without a hook,
 * for example by a graph. Handles of chunks may be returned twice. pre: lock held.
 */
static void stale_drop(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key)
{
  struct lade_holding **stale = table_find(ledger, space, key);
  if (space != LADE_LEDGER_CHUNKS && *stale)
    holding_end(ledger, stale);
}

/*
 * Merge a reopened import. Another process's memory, opened again in a context, has its former address: that holding
 * gets another handle, and the new one is dropped. pre: lock held.
 */
static bool holding_reopen(lade_ledger *ledger, struct lade_holding *holding, enum lade_ledger_space space,
                           uint64_t key)
{
  struct lade_holding *open = holding->kind == LADE_LEDGER_IMPORTED && space == LADE_LEDGER_ADDRESSES
                                  ? *table_find(ledger, space, key) : NULL;
  if (!open || open->kind != LADE_LEDGER_IMPORTED || open->owner != holding->owner)
    return false;
  open->n_handles++;
  open->n_uses++;
  free(holding);
  return true;
}

int lade_ledger_settle(lade_ledger *ledger, struct lade_holding *holding, enum lade_ledger_space space, uint64_t key,
                       uint64_t bytes)
{
  struct lade_ledger_account *account = &ledger->record->accounts[holding->account];
  int status = 0;
  lade_lock_lock(&ledger->lock);
  if (holding_reopen(ledger, holding, space, key)) {
    lade_lock_unlock(&ledger->lock);
    return 0;
  }
  if (bytes > holding->bytes)
    status = bytes_charge(ledger, holding, bytes - holding->bytes);
  if (!status) {
    LADE_ASSERT(!holding->is_settled && bytes == holding->bytes);
    stale_drop(ledger, space, key);
    holding->space = space;
    holding->key = key;
    holding->is_settled = true;
    if (holding->kind != LADE_LEDGER_NOTHING)
      sums_take(&account->kinds[holding->kind], bytes);
    if (is_bounded(holding))
      sums_take(&account->bounded, bytes);
    table_put(ledger, holding);
  }
  lade_lock_unlock(&ledger->lock);
  return status;
}

struct lade_holding *lade_ledger_take(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key)
{
  lade_lock_lock(&ledger->lock);
  struct lade_holding **at = table_find(ledger, space, key), *holding = *at;
  if (holding && --holding->n_handles == 0)
    table_take(ledger, at);
  lade_lock_unlock(&ledger->lock);
  return holding;
}

void lade_ledger_drop(lade_ledger *ledger, struct lade_holding *holding)
{
  lade_lock_lock(&ledger->lock);
  holding_unuse(ledger, holding);
  lade_lock_unlock(&ledger->lock);
}

void lade_ledger_keep(lade_ledger *ledger, struct lade_holding *holding)
{
  lade_lock_lock(&ledger->lock);
  if (++holding->n_handles == 1)
    table_put(ledger, holding);
  lade_lock_unlock(&ledger->lock);
}

void lade_ledger_drop_owner(lade_ledger *ledger, const void *owner)
{
  lade_lock_lock(&ledger->lock);
  for (uint64_t i = 0; i < ledger->n_buckets; i++) {
    for (struct lade_holding **at = &ledger->buckets[i]; *at;) {
      if ((*at)->owner == owner)
        holding_end(ledger, at);
      else
        at = &(*at)->next;
    }
  }
  lade_lock_unlock(&ledger->lock);
}

int lade_ledger_account_of(lade_ledger *ledger, enum lade_ledger_space space, uint64_t key, int otherwise)
{
  lade_lock_lock(&ledger->lock);
  const struct lade_holding *holding = *table_find(ledger, space, key);
  int account = holding ? holding->account : otherwise;
  lade_lock_unlock(&ledger->lock);
  return account;
}

/* ---- chunks ---- */

/* Widen an imported chunk to its largest mapping. pre: lock held. */
static void chunk_widen(lade_ledger *ledger, struct lade_holding *chunk, uint64_t bytes)
{
  struct lade_ledger_sums *sums = &ledger->record->accounts[chunk->account].kinds[LADE_LEDGER_IMPORTED];
  if (chunk->kind != LADE_LEDGER_IMPORTED || bytes <= chunk->bytes)
    return;
  sums->bytes += bytes - chunk->bytes;
  sums->peak_bytes = LADE_MAX(sums->peak_bytes, sums->bytes);
  chunk->bytes = bytes;
}

int lade_ledger_map(lade_ledger *ledger, uint64_t handle, uint64_t bytes, struct lade_holding **ret_mapping)
{
  struct lade_holding *mapping = calloc(1, sizeof(*mapping));
  if (!mapping)
    return -ENOMEM;
  lade_lock_lock(&ledger->lock);
  struct lade_holding *chunk = *table_find(ledger, LADE_LEDGER_CHUNKS, handle);
  if (chunk) {
    *mapping = (struct lade_holding){.kind = LADE_LEDGER_NOTHING, .account = chunk->account, .bytes = bytes,
                                     .chunk = chunk, .n_handles = 1, .n_uses = 1};
    chunk->n_uses++;
    chunk_widen(ledger, chunk, bytes);
    *ret_mapping = mapping;
  }
  lade_lock_unlock(&ledger->lock);
  if (!chunk)
    free(mapping);
  return chunk ? 0 : -ENOENT;
}

/* Move every mapping of the range from one bucket to the head of @list; return the new list. pre: lock held. */
static struct lade_holding *bucket_unmap(lade_ledger *ledger, struct lade_holding **at, uint64_t address,
                                         uint64_t bytes, struct lade_holding *list)
{
  while (*at) {
    struct lade_holding *holding = *at;
    if (holding->space != LADE_LEDGER_MAPPINGS || holding->key - address >= bytes) {
      at = &holding->next;
      continue;
    }
    table_take(ledger, at);
    holding->next = list;
    list = holding;
  }
  return list;
}

/* Take the mappings of a range. Usually the range is one mapping; otherwise the whole table is searched. */
struct lade_holding *lade_ledger_unmap(lade_ledger *ledger, uint64_t address, uint64_t bytes)
{
  struct lade_holding *list = NULL;
  lade_lock_lock(&ledger->lock);
  struct lade_holding **one = table_find(ledger, LADE_LEDGER_MAPPINGS, address);
  bool is_one = *one && (*one)->bytes == bytes;
  if (is_one)
    list = table_take(ledger, one);
  for (uint64_t i = 0; i < ledger->n_buckets && !is_one; i++)
    list = bucket_unmap(ledger, &ledger->buckets[i], address, bytes, list);
  lade_lock_unlock(&ledger->lock);
  return list;
}

void lade_ledger_drop_list(lade_ledger *ledger, struct lade_holding *list)
{
  lade_lock_lock(&ledger->lock);
  for (struct lade_holding *next; list; list = next) {
    next = list->next;
    holding_unuse(ledger, list);
  }
  lade_lock_unlock(&ledger->lock);
}

void lade_ledger_keep_list(lade_ledger *ledger, struct lade_holding *list)
{
  lade_lock_lock(&ledger->lock);
  for (struct lade_holding *next; list; list = next) {
    next = list->next;
    table_put(ledger, list);
  }
  lade_lock_unlock(&ledger->lock);
}

/* Return the chunk whose mapping contains @address, or NULL. pre: lock held. */
static struct lade_holding *chunk_at(const lade_ledger *ledger, uint64_t address)
{
  const struct lade_holding *mapping = *table_find(ledger, LADE_LEDGER_MAPPINGS, address);
  for (uint64_t i = 0; i < ledger->n_buckets && !mapping; i++) {
    mapping = ledger->buckets[i];
    while (mapping && (mapping->space != LADE_LEDGER_MAPPINGS || address - mapping->key >= mapping->bytes))
      mapping = mapping->next;
  }
  return mapping ? mapping->chunk : NULL;
}

void lade_ledger_retain(lade_ledger *ledger, uint64_t address, uint64_t handle)
{
  lade_lock_lock(&ledger->lock);
  struct lade_holding *chunk = chunk_at(ledger, address);
  if (chunk && (chunk->n_handles == 0 || chunk->key == handle)) {
    chunk->n_uses++;
    if (++chunk->n_handles == 1) { /* only its mappings were left */
      chunk->key = handle;
      table_put(ledger, chunk);
    }
  }
  lade_lock_unlock(&ledger->lock);
}

/* ---- queries ---- */

void lade_ledger_bound(lade_ledger *ledger, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
  lade_lock_lock(&ledger->lock);
  uint64_t budget_bytes = ledger->record->accounts[device].budget_bytes, charged = ledger->charged_bytes[device];
  *total_bytes = LADE_MIN(*total_bytes, budget_bytes);
  *free_bytes = LADE_MIN(*free_bytes, charged < budget_bytes ? budget_bytes - charged : 0);
  lade_lock_unlock(&ledger->lock);
}
