/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), as far as they decide how many bytes
 * are reserved.
 *
 * Both kinds round a request to 512 bytes and keep two pools, for requests up to 1 MiB and for the rest. A pool's free
 * blocks are ordered by stream, bytes and address; the first of the stream that is large enough serves a request. A
 * freed block joins its free neighbours at once. When the device refuses, everything that can be given back is, and
 * the device is asked again; the free blocks are not searched again.
 *
 *   native      Memory comes in segments: 2 MiB for the small pool, 20 MiB for requests below 10 MiB, and otherwise the
 *               request rounded to 2 MiB. The small pool cuts off a rest of 512 bytes and more, the large one only a
 *               rest of more than 1 MiB. What can be given back is a segment that is one free block.
 *   expandable  One range of addresses per pool and stream, an eighth larger than the device, in which pages are
 *               mapped: 2 MiB for the small pool, 20 MiB for the large one. A block that could grow into unmapped
 *               addresses counts as that large, so that it is taken late. When none fits, pages are mapped behind the
 *               lowest free block that then becomes large enough. Rests of 512 bytes and more are cut off. What can be
 *               given back are whole pages under free blocks.
 *
 * A block knows whether it is mapped; that is all there is to know of pages, since an unmapped block consists of whole
 * ones. The ordered sets are treaps through the blocks themselves, with a hash of a running number as priority: O(log
 * n) for a call, and no heap call that could fail in a free. An allocation that meets a full heap has changed nothing
 * that the next call could stumble over.
 *
 * Left out: blocks that several streams recorded (the traces do not tell), private pools of graphs, and the settings
 * that PyTorch ships switched off (max_split_size, rounding to parts of powers of two, garbage collection). The
 * driver's choice of addresses is unknown; here they only rise, which decides between free blocks of equal size.
 */
#include "alloc/torch_model.h"

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"

#define MIB ((uint64_t)1 << 20)
#define UNIT_BYTES ((uint64_t)512)
#define SMALL_MAX_BYTES MIB              /* the largest request of the small pool */
#define SMALL_SEGMENT_BYTES (2 * MIB)
#define LARGE_SEGMENT_BYTES (20 * MIB)   /* of requests below the next */
#define LARGE_OWN_BYTES (10 * MIB)
#define LARGE_ROUND_BYTES (2 * MIB)
#define LARGE_REST_BYTES MIB             /* the native large pool cuts off what is more than that */
#define UNLIMITED_BYTES ((uint64_t)1 << 44) /* address range of an expandable segment without a limit */
#define MAX_REQUEST_BYTES ((uint64_t)1 << 43)
#define SLAB_BLOCKS 256
#define FIRST_BUCKETS 1024

struct block {
  uint64_t address, bytes;
  int stream;
  bool is_live, is_mapped;
  uint32_t priority;            /* in its set */
  struct pool *pool;
  struct block *before, *after; /* in the segment */
  struct block *child[2];       /* in its set */
  struct block *next;           /* in its bucket, or of the unused */
};

struct block_set {
  struct block *root;
  bool is_by_bytes; /* (stream, bytes, address); otherwise (stream, address) */
};

struct pool {
  bool is_small;
  struct block_set free, unmapped;
};

struct torch_model {
  bool is_expandable;
  uint64_t total_bytes; /* 0: no limit */
  uint64_t reserved_bytes, peak_bytes;
  uint64_t end_address; /* of all that was ever given */
  uint32_t n_priorities;
  struct pool pools[2]; /* large, small */
  struct block **buckets; /* of live blocks by address */
  uint64_t n_buckets, n_live;
  struct block *unused;
  LADE_ARRAY(struct block *) slabs;
};

/* ---- ordered sets ---- */

static bool is_less(const struct block_set *set, const struct block *a, const struct block *b)
{
  if (a->stream != b->stream)
    return a->stream < b->stream;
  if (set->is_by_bytes && a->bytes != b->bytes)
    return a->bytes < b->bytes;
  return a->address < b->address;
}

/* Well mixed (the finalizer of MurmurHash3), so that the treap is balanced without a random state. */
static uint32_t priority_draw(struct torch_model *model)
{
  uint32_t x = ++model->n_priorities;
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

/* Split @tree into what is less than @key and the rest. */
static void tree_split(const struct block_set *set, struct block *tree, const struct block *key,
                       struct block **ret_less, struct block **ret_rest)
{
  while (tree) {
    if (is_less(set, tree, key)) {
      *ret_less = tree;
      ret_less = &tree->child[1];
      tree = tree->child[1];
    } else {
      *ret_rest = tree;
      ret_rest = &tree->child[0];
      tree = tree->child[0];
    }
  }
  *ret_less = *ret_rest = NULL;
}

static void set_add(struct torch_model *model, struct block_set *set, struct block *block)
{
  struct block **place = &set->root;
  block->priority = priority_draw(model);
  while (*place && (*place)->priority >= block->priority)
    place = &(*place)->child[is_less(set, *place, block)];
  tree_split(set, *place, block, &block->child[0], &block->child[1]);
  *place = block;
}

static void set_remove(struct block_set *set, const struct block *block)
{
  struct block **place = &set->root;
  while (*place != block) {
    LADE_ASSERT(*place);
    place = &(*place)->child[is_less(set, *place, block)];
  }
  struct block *less = block->child[0], *rest = block->child[1];
  while (less && rest) {
    struct block **higher = less->priority >= rest->priority ? &less : &rest;
    *place = *higher;
    place = &(*higher)->child[higher == &less];
    *higher = *place;
  }
  *place = less ? less : rest;
}

/* The first that is not less than @key, or with @is_after the first that is greater; NULL for none. */
static struct block *set_find(const struct block_set *set, const struct block *key, bool is_after)
{
  struct block *found = NULL;
  for (struct block *tree = set->root; tree;) {
    bool is_below = is_after ? !is_less(set, key, tree) : is_less(set, tree, key);
    found = is_below ? found : tree;
    tree = tree->child[is_below];
  }
  return found;
}

/* ---- blocks ---- */

/* NULL when the heap is full. */
static struct block *block_create(struct torch_model *model, struct pool *pool, int stream, uint64_t address,
                                  uint64_t bytes)
{
  if (!model->unused) {
    struct block *slab = calloc(SLAB_BLOCKS, sizeof(*slab));
    if (!slab || !LADE_PUSH(&model->slabs, slab)) {
      free(slab);
      return NULL;
    }
    for (int i = 0; i < SLAB_BLOCKS; i++) {
      slab[i].next = model->unused;
      model->unused = &slab[i];
    }
  }
  struct block *block = model->unused;
  model->unused = block->next;
  *block = (struct block){.address = address, .bytes = bytes, .stream = stream, .is_mapped = true, .pool = pool};
  return block;
}

static void block_drop(struct torch_model *model, struct block *block)
{
  block->next = model->unused;
  model->unused = block;
}

/* The set that a block which is not live lies in. */
static struct block_set *set_of(struct block *block)
{
  return block->is_mapped ? &block->pool->free : &block->pool->unmapped;
}

/* Keep @bytes of a block that is in no set; the rest, as free or unmapped as it was, is in none either. */
static struct block *block_cut(struct torch_model *model, struct block *block, uint64_t bytes)
{
  LADE_ASSERT(bytes > 0 && bytes < block->bytes);
  struct block *rest = block_create(model, block->pool, block->stream, block->address + bytes, block->bytes - bytes);
  if (!rest)
    return NULL;
  rest->is_mapped = block->is_mapped;
  rest->before = block;
  rest->after = block->after;
  if (rest->after)
    rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  return rest;
}

static bool can_join(const struct block *block, const struct block *other)
{
  return other && !other->is_live && other->is_mapped == block->is_mapped;
}

/* Join a block that is in no set with its neighbours of the same kind, and put it into its set. */
static void block_settle(struct torch_model *model, struct block *block)
{
  struct block *before = block->before, *after = block->after;
  if (can_join(block, before)) {
    set_remove(set_of(before), before);
    block->address = before->address;
    block->bytes += before->bytes;
    block->before = before->before;
    if (block->before)
      block->before->after = block;
    block_drop(model, before);
  }
  if (can_join(block, after)) {
    LADE_ASSERT(block->address + block->bytes == after->address);
    set_remove(set_of(after), after);
    block->bytes += after->bytes;
    block->after = after->after;
    if (block->after)
      block->after->before = block;
    block_drop(model, after);
  }
  set_add(model, set_of(block), block);
}

/* ---- live blocks by address ---- */

static struct block **bucket_of(const struct torch_model *model, uint64_t address)
{
  return &model->buckets[(address / UNIT_BYTES * 0x9e3779b97f4a7c15u >> 20) & (model->n_buckets - 1)];
}

/* Room for one more. False when the heap is full. */
static bool buckets_prepare(struct torch_model *model)
{
  if (model->n_live < model->n_buckets)
    return true;
  uint64_t n_before = model->n_buckets, n = n_before ? 2 * n_before : FIRST_BUCKETS;
  struct block **before = model->buckets, **buckets = calloc(n, sizeof(*buckets));
  if (!buckets)
    return false;
  model->buckets = buckets;
  model->n_buckets = n;
  for (uint64_t i = 0; i < n_before; i++)
    for (struct block *block = before[i], *next; block; block = next) {
      struct block **bucket = bucket_of(model, block->address);
      next = block->next;
      block->next = *bucket;
      *bucket = block;
    }
  free(before);
  return true;
}

/* ---- memory of the device ---- */

static bool has_room(const struct torch_model *model, uint64_t bytes)
{
  return !model->total_bytes || (bytes <= model->total_bytes && model->reserved_bytes <= model->total_bytes - bytes);
}

static void reserved_add(struct torch_model *model, uint64_t bytes)
{
  model->reserved_bytes += bytes;
  model->peak_bytes = LADE_MAX(model->peak_bytes, model->reserved_bytes);
}

/* A block of a new range of addresses, at a multiple of @align, in no set. NULL when heap or addresses are out. */
static struct block *segment_create(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes,
                                    uint64_t align)
{
  uint64_t address = (model->end_address + align - 1) / align * align;
  if (address < model->end_address || bytes > UINT64_MAX / 2 - address)
    return NULL;
  struct block *block = block_create(model, pool, stream, address, bytes);
  if (block)
    model->end_address = address + bytes;
  return block;
}

/* ---- native segments ---- */

static uint64_t segment_bytes(uint64_t bytes)
{
  if (bytes <= SMALL_MAX_BYTES)
    return SMALL_SEGMENT_BYTES;
  return bytes < LARGE_OWN_BYTES ? LARGE_SEGMENT_BYTES : lade_align_up(bytes, LARGE_ROUND_BYTES);
}

static struct block *native_grow(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  uint64_t whole_bytes = segment_bytes(bytes);
  if (!has_room(model, whole_bytes))
    return NULL;
  struct block *block = segment_create(model, pool, stream, whole_bytes, LARGE_ROUND_BYTES);
  if (block)
    reserved_add(model, whole_bytes);
  return block;
}

/* Give back what is a whole segment. */
static void native_release(struct torch_model *model, struct block *block)
{
  if (block->before || block->after)
    return;
  set_remove(&block->pool->free, block);
  model->reserved_bytes -= block->bytes;
  block_drop(model, block);
}

/* ---- expandable segments ---- */

static uint64_t page_bytes(const struct pool *pool)
{
  return pool->is_small ? SMALL_SEGMENT_BYTES : LARGE_SEGMENT_BYTES;
}

/* Free and unmapped bytes from @block on, up to the next live block or @bytes. */
static bool has_addresses(const struct block *block, uint64_t bytes)
{
  uint64_t found_bytes = 0;
  for (; block && !block->is_live && found_bytes < bytes; block = block->after)
    found_bytes += block->bytes;
  return found_bytes >= bytes;
}

/*
 * The lowest free or unmapped block of the stream with an unmapped one in or right behind it that begins @bytes of
 * addresses; a new segment when there is none. It stays in its set.
 */
static struct block *expandable_find(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  struct block key = {.stream = stream};
  struct block *block = set_find(&pool->unmapped, &key, false);
  for (; block && block->stream == stream; block = set_find(&pool->unmapped, block, true)) {
    struct block *from = block->before && !block->before->is_live ? block->before : block;
    if (has_addresses(from, bytes))
      return from;
  }
  uint64_t page = page_bytes(pool);
  uint64_t range_bytes = model->total_bytes ? model->total_bytes + model->total_bytes / 8 : UNLIMITED_BYTES;
  block = segment_create(model, pool, stream, (range_bytes + page - 1) / page * page, page);
  if (!block)
    return NULL;
  block->is_mapped = false;
  set_add(model, &pool->unmapped, block);
  return block;
}

/*
 * Map pages for the first @bytes of an unmapped block and join them with what is free around. Returns what they are
 * a part of; NULL when the device or the heap refuses.
 */
static struct block *block_map(struct torch_model *model, struct block *block, uint64_t bytes)
{
  uint64_t page = page_bytes(block->pool), mapped_bytes = (bytes + page - 1) / page * page;
  LADE_ASSERT(!block->is_mapped && mapped_bytes <= block->bytes);
  if (!has_room(model, mapped_bytes))
    return NULL;
  set_remove(&block->pool->unmapped, block);
  struct block *rest = mapped_bytes < block->bytes ? block_cut(model, block, mapped_bytes) : NULL;
  bool is_cut = rest || mapped_bytes == block->bytes;
  if (rest)
    set_add(model, &block->pool->unmapped, rest);
  block->is_mapped = is_cut;
  if (is_cut)
    reserved_add(model, mapped_bytes);
  block_settle(model, block);
  return is_cut ? block : NULL;
}

static struct block *expandable_grow(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  struct block *block = expandable_find(model, pool, stream, bytes);
  if (block && !block->is_mapped)
    block = block_map(model, block, LADE_MIN(block->bytes, bytes));
  while (block && block->bytes < bytes)
    block = block_map(model, block->after, LADE_MIN(block->after->bytes, bytes - block->bytes));
  if (block)
    set_remove(&pool->free, block);
  return block;
}

/* Unmap the whole pages of a free block, and let go of a segment without any. */
static void expandable_release(struct torch_model *model, struct block *block)
{
  uint64_t page = page_bytes(block->pool), end = block->address + block->bytes;
  uint64_t from = (block->address + page - 1) / page * page, to = end / page * page;
  if (from >= to)
    return;
  struct pool *pool = block->pool;
  struct block *before = NULL, *after = NULL;
  set_remove(&pool->free, block);
  if (to < end && !(after = block_cut(model, block, to - block->address))) {
    set_add(model, &pool->free, block); /* the heap is full: these pages stay */
    return;
  }
  if (after)
    set_add(model, &pool->free, after);
  if (from > block->address) {
    before = block;
    block = block_cut(model, before, from - before->address);
    if (!block) {
      block_settle(model, before);
      return;
    }
    set_add(model, &pool->free, before);
  }
  block->is_mapped = false;
  model->reserved_bytes -= to - from;
  block_settle(model, block);
  if (block->before || block->after)
    return;
  set_remove(&pool->unmapped, block);
  block_drop(model, block);
}

/* ---- the calls ---- */

int torch_model_create(bool is_expandable, uint64_t total_bytes, struct torch_model **ret_model)
{
  struct torch_model *model = calloc(1, sizeof(*model));
  if (!model)
    return -ENOMEM;
  model->is_expandable = is_expandable;
  model->total_bytes = LADE_MIN(total_bytes, UNLIMITED_BYTES);
  model->end_address = LARGE_SEGMENT_BYTES; /* 0 is no address */
  for (int i = 0; i < 2; i++)
    model->pools[i] = (struct pool){.is_small = i == 1, .free.is_by_bytes = true};
  *ret_model = model;
  return 0;
}

/* What a free block counts as: what it could grow to. */
static uint64_t grown_bytes(const struct block *block)
{
  return block->bytes + (block->after && !block->after->is_mapped ? block->after->bytes : 0);
}

/* The best fit, in no set any more, or NULL. */
static struct block *pool_find(struct pool *pool, int stream, uint64_t bytes)
{
  struct block key = {.stream = stream, .bytes = bytes};
  struct block *block = set_find(&pool->free, &key, false);
  if (!block || block->stream != stream)
    return NULL;
  for (struct block *next; (next = set_find(&pool->free, block, true)); block = next)
    if (next->stream != stream || grown_bytes(next) >= grown_bytes(block))
      break;
  set_remove(&pool->free, block);
  return block;
}

/* The list is made first: a release puts what it cuts off into the set. */
static void pool_release(struct torch_model *model, struct pool *pool)
{
  LADE_ARRAY(struct block *) blocks = {0};
  struct block key = {.stream = INT32_MIN};
  for (struct block *block = set_find(&pool->free, &key, false); block; block = set_find(&pool->free, block, true))
    if (!LADE_PUSH(&blocks, block))
      break; /* the heap is full: the rest stays cached */
  for (int i = 0; i < blocks.n; i++)
    (model->is_expandable ? expandable_release : native_release)(model, blocks.items[i]);
  LADE_ARRAY_FREE(&blocks);
}

static bool should_cut(const struct torch_model *model, const struct block *block, uint64_t bytes)
{
  uint64_t rest_bytes = block->bytes - bytes;
  if (block->pool->is_small || model->is_expandable)
    return rest_bytes >= UNIT_BYTES;
  return rest_bytes > LARGE_REST_BYTES;
}

static struct block *block_obtain(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  struct block *block = pool_find(pool, stream, bytes);
  for (int attempt = 0; !block && attempt < 2; attempt++) {
    for (int i = 0; i < 2 && attempt; i++)
      pool_release(model, &model->pools[i]);
    if (!model->total_bytes || bytes <= model->total_bytes)
      block = (model->is_expandable ? expandable_grow : native_grow)(model, pool, stream, bytes);
  }
  return block;
}

int torch_model_alloc(struct torch_model *model, uint64_t bytes, int stream, uint64_t *ret_address)
{
  if (!bytes)
    return -EINVAL;
  if (bytes > MAX_REQUEST_BYTES || !buckets_prepare(model))
    return -ENOMEM;
  bytes = lade_align_up(bytes, UNIT_BYTES);
  struct pool *pool = &model->pools[bytes <= SMALL_MAX_BYTES];
  struct block *block = block_obtain(model, pool, stream, bytes);
  if (!block)
    return -ENOMEM;
  if (should_cut(model, block, bytes)) {
    struct block *rest = block_cut(model, block, bytes);
    if (!rest) {
      set_add(model, &pool->free, block);
      return -ENOMEM;
    }
    set_add(model, &pool->free, rest);
  }
  struct block **bucket = bucket_of(model, block->address);
  block->is_live = true;
  block->next = *bucket;
  *bucket = block;
  model->n_live++;
  *ret_address = block->address;
  return 0;
}

int torch_model_free(struct torch_model *model, uint64_t address)
{
  struct block **place = model->n_buckets ? bucket_of(model, address) : NULL;
  while (place && *place && (*place)->address != address)
    place = &(*place)->next;
  if (!place || !*place)
    return -EINVAL;
  struct block *block = *place;
  *place = block->next;
  block->is_live = false;
  model->n_live--;
  block_settle(model, block);
  return 0;
}

uint64_t torch_model_reserved_bytes(const struct torch_model *model)
{
  return model->reserved_bytes;
}

uint64_t torch_model_peak_reserved_bytes(const struct torch_model *model)
{
  return model->peak_bytes;
}

void torch_model_destroy(struct torch_model *model)
{
  if (!model)
    return;
  for (int i = 0; i < model->slabs.n; i++)
    free(model->slabs.items[i]);
  LADE_ARRAY_FREE(&model->slabs);
  free(model->buckets);
  free(model);
}
