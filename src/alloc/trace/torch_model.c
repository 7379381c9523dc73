/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), as far as they decide how many bytes
 * are reserved.
 *
 * Both kinds round a request to 512 bytes and keep two pools: one for requests up to 1 MiB and one for larger requests.
 * A pool's free blocks are ordered by stream, bytes and address; the stream's first block that is large enough serves a
 * request. A freed block joins its free neighbours at once. When the device refuses, all returnable memory is returned
 * and the device is asked again; the free blocks are not searched again.
 *
 *   native      Memory comes in segments: 2 MiB for the small pool, 20 MiB for requests below 10 MiB, and otherwise the
 *               request rounded to 2 MiB. The small pool cuts off a rest of 512 bytes and more, the large one only a
 *               rest of more than 1 MiB. A segment is returnable when it is one free block.
 *   expandable  One range of addresses per pool and stream, an eighth larger than the device, in which pages are
 *               mapped: 2 MiB for the small pool, 20 MiB for the large one. A block that can grow into unmapped
 *               addresses counts with its grown size, so that it is taken late. When none fits, pages are mapped after
 *               the lowest free block that then becomes large enough. Rests of 512 bytes and more are cut off. Whole
 *               pages under free blocks are returnable.
 *
 * Each block stores whether it is mapped. Pages need no other record, because an unmapped block consists of whole
 * pages. The ordered sets are treaps through the blocks themselves, with a hash of a running number as priority. A call
 * takes O(log n), and a free makes no heap call that can fail. If the heap is full, an allocation fails and leaves the
 * model valid for the next call.
 *
 * Left out: blocks that several streams recorded (traces do not contain them), and private pools of graphs. Left out
 * too: settings that are off by default in PyTorch (max_split_size, rounding to parts of powers of two, garbage
 * collection). The driver's choice of addresses is unknown. Here addresses only rise, which decides between free blocks
 * of equal size.
 */
#include "alloc/torch_model.h"

#include <errno.h>
#include <stdlib.h>

#include "base/base.h"

#define MIB ((uint64_t)1 << 20)
#define UNIT_BYTES ((uint64_t)512)
#define SMALL_MAX_BYTES MIB              /* the largest request of the small pool */
#define SMALL_SEGMENT_BYTES (2 * MIB)
#define LARGE_SEGMENT_BYTES (20 * MIB)   /* of requests below LARGE_OWN_BYTES */
#define LARGE_OWN_BYTES (10 * MIB)
#define LARGE_ROUND_BYTES (2 * MIB)
#define LARGE_REST_BYTES MIB             /* the native large pool cuts off only a rest that is larger */
#define UNLIMITED_BYTES ((uint64_t)1 << 44) /* address range of an expandable segment without a limit */
#define MAX_REQUEST_BYTES ((uint64_t)1 << 43)
#define SLAB_BLOCKS 256
#define FIRST_BUCKETS 1024

struct torch_block {
  uint64_t address, bytes;
  int stream;
  bool is_live, is_mapped;
  uint32_t priority;                  /* in the treap of its set */
  struct pool *pool;
  struct torch_block *before, *after; /* neighbours in the segment */
  struct torch_block *child[2];       /* in the treap of its set */
  struct torch_block *next;           /* in its bucket, or in the list of unused blocks */
};

struct block_set {
  struct torch_block *root;
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
  uint64_t end_address; /* end of all addresses that were ever given */
  uint32_t n_priorities;
  struct pool pools[2]; /* large, small */
  struct torch_block **buckets; /* of live blocks by address */
  uint64_t n_buckets, n_live;
  struct torch_block *unused;
  LADE_ARRAY(struct torch_block *) slabs;
};

/* ---- ordered sets ---- */

static bool is_less(const struct block_set *set, const struct torch_block *a, const struct torch_block *b)
{
  if (a->stream != b->stream)
    return a->stream < b->stream;
  if (set->is_by_bytes && a->bytes != b->bytes)
    return a->bytes < b->bytes;
  return a->address < b->address;
}

/*
 * Draw a priority. The finalizer of MurmurHash3 mixes a running number, so the treap is balanced without a random
 * state.
 */
static uint32_t priority_draw(struct torch_model *model)
{
  uint32_t x = ++model->n_priorities;
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

/* Split @tree into the blocks below @key and all others. */
static void tree_split(const struct block_set *set, struct torch_block *tree, const struct torch_block *key,
                       struct torch_block **ret_less, struct torch_block **ret_rest)
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

static void set_add(struct torch_model *model, struct block_set *set, struct torch_block *block)
{
  struct torch_block **place = &set->root;
  block->priority = priority_draw(model);
  while (*place && (*place)->priority >= block->priority)
    place = &(*place)->child[is_less(set, *place, block)];
  tree_split(set, *place, block, &block->child[0], &block->child[1]);
  *place = block;
}

static void set_remove(struct block_set *set, const struct torch_block *block)
{
  struct torch_block **place = &set->root;
  while (*place != block) {
    LADE_ASSERT(*place);
    place = &(*place)->child[is_less(set, *place, block)];
  }
  struct torch_block *less = block->child[0], *rest = block->child[1];
  while (less && rest) {
    struct torch_block **higher = less->priority >= rest->priority ? &less : &rest;
    *place = *higher;
    place = &(*higher)->child[higher == &less];
    *higher = *place;
  }
  *place = less ? less : rest;
}

/* Find the first block that is not below @key, or with @is_after the first above it. NULL if there is none. */
static struct torch_block *set_find(const struct block_set *set, const struct torch_block *key, bool is_after)
{
  struct torch_block *found = NULL;
  for (struct torch_block *tree = set->root; tree;) {
    bool is_below = is_after ? !is_less(set, key, tree) : is_less(set, tree, key);
    found = is_below ? found : tree;
    tree = tree->child[is_below];
  }
  return found;
}

/* ---- blocks ---- */

/* Make a block. NULL if the heap is full. */
static struct torch_block *block_create(struct torch_model *model, struct pool *pool, int stream, uint64_t address,
                                        uint64_t bytes)
{
  if (!model->unused) {
    struct torch_block *slab = calloc(SLAB_BLOCKS, sizeof(*slab));
    if (!slab || !LADE_PUSH(&model->slabs, slab)) {
      free(slab);
      return NULL;
    }
    for (int i = 0; i < SLAB_BLOCKS; i++) {
      slab[i].next = model->unused;
      model->unused = &slab[i];
    }
  }
  struct torch_block *block = model->unused;
  model->unused = block->next;
  *block = (struct torch_block){.address = address, .bytes = bytes, .stream = stream, .is_mapped = true, .pool = pool};
  return block;
}

static void block_drop(struct torch_model *model, struct torch_block *block)
{
  block->next = model->unused;
  model->unused = block;
}

/*
 * Return the set of a block.
 *
 * pre: the block is not live.
 */
static struct block_set *set_of(struct torch_block *block)
{
  return block->is_mapped ? &block->pool->free : &block->pool->unmapped;
}

/*
 * Shorten a block to @bytes and return the rest, which has the same mapped state and is in no set. NULL if the heap is
 * full.
 *
 * pre: the block is in no set.
 */
static struct torch_block *block_cut(struct torch_model *model, struct torch_block *block, uint64_t bytes)
{
  LADE_ASSERT(bytes > 0 && bytes < block->bytes);
  struct torch_block *rest = block_create(model, block->pool, block->stream, block->address + bytes,
                                          block->bytes - bytes);
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

static bool can_join(const struct torch_block *block, const struct torch_block *other)
{
  return other && !other->is_live && other->is_mapped == block->is_mapped;
}

/*
 * Join a block with its free neighbours of the same mapped state, and add it to its set.
 *
 * pre: the block is in no set.
 */
static void block_settle(struct torch_model *model, struct torch_block *block)
{
  struct torch_block *before = block->before, *after = block->after;
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

static struct torch_block **bucket_of(const struct torch_model *model, uint64_t address)
{
  return &model->buckets[(address / UNIT_BYTES * 0x9e3779b97f4a7c15u >> 20) & (model->n_buckets - 1)];
}

/* Grow the buckets for one more live block. False if the heap is full. */
static bool buckets_prepare(struct torch_model *model)
{
  if (model->n_live < model->n_buckets)
    return true;
  uint64_t n_before = model->n_buckets, n = n_before ? 2 * n_before : FIRST_BUCKETS;
  struct torch_block **before = model->buckets, **buckets = calloc(n, sizeof(*buckets));
  if (!buckets)
    return false;
  model->buckets = buckets;
  model->n_buckets = n;
  for (uint64_t i = 0; i < n_before; i++)
    for (struct torch_block *block = before[i], *next; block; block = next) {
      struct torch_block **bucket = bucket_of(model, block->address);
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

/*
 * Make a block of a new range of addresses at a multiple of @align, in no set. NULL if the heap is full or the
 * addresses are used up.
 */
static struct torch_block *segment_create(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes,
                                          uint64_t align)
{
  uint64_t address = (model->end_address + align - 1) / align * align;
  if (address < model->end_address || bytes > UINT64_MAX / 2 - address)
    return NULL;
  struct torch_block *block = block_create(model, pool, stream, address, bytes);
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

static struct torch_block *native_grow(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  uint64_t whole_bytes = segment_bytes(bytes);
  if (!has_room(model, whole_bytes))
    return NULL;
  struct torch_block *block = segment_create(model, pool, stream, whole_bytes, LARGE_ROUND_BYTES);
  if (block)
    reserved_add(model, whole_bytes);
  return block;
}

/* Return @block to the device if it is a whole segment. */
static void native_release(struct torch_model *model, struct torch_block *block)
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

/* True if free and unmapped bytes from @block on, up to the next live block, reach @bytes. */
static bool has_addresses(const struct torch_block *block, uint64_t bytes)
{
  uint64_t found_bytes = 0;
  for (; block && !block->is_live && found_bytes < bytes; block = block->after)
    found_bytes += block->bytes;
  return found_bytes >= bytes;
}

/*
 * Find the stream's lowest range of @bytes that is free or unmapped and contains an unmapped block; return its first
 * block. The range begins at the unmapped block or at the free block before it. Make a new segment if there is none.
 * The block stays in its set.
 */
static struct torch_block *expandable_find(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  struct torch_block key = {.stream = stream};
  struct torch_block *block = set_find(&pool->unmapped, &key, false);
  for (; block && block->stream == stream; block = set_find(&pool->unmapped, block, true)) {
    struct torch_block *from = block->before && !block->before->is_live ? block->before : block;
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
 * Map pages for the first @bytes of an unmapped block, and join them with the free neighbours. Return the joined block;
 * NULL if the device or the heap refuses.
 */
static struct torch_block *block_map(struct torch_model *model, struct torch_block *block, uint64_t bytes)
{
  uint64_t page = page_bytes(block->pool), mapped_bytes = (bytes + page - 1) / page * page;
  LADE_ASSERT(!block->is_mapped && mapped_bytes <= block->bytes);
  if (!has_room(model, mapped_bytes))
    return NULL;
  set_remove(&block->pool->unmapped, block);
  struct torch_block *rest = mapped_bytes < block->bytes ? block_cut(model, block, mapped_bytes) : NULL;
  bool is_cut = rest || mapped_bytes == block->bytes;
  if (rest)
    set_add(model, &block->pool->unmapped, rest);
  block->is_mapped = is_cut;
  if (is_cut)
    reserved_add(model, mapped_bytes);
  block_settle(model, block);
  return is_cut ? block : NULL;
}

static struct torch_block *expandable_grow(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  struct torch_block *block = expandable_find(model, pool, stream, bytes);
  if (block && !block->is_mapped)
    block = block_map(model, block, LADE_MIN(block->bytes, bytes));
  while (block && block->bytes < bytes)
    block = block_map(model, block->after, LADE_MIN(block->after->bytes, bytes - block->bytes));
  if (block)
    set_remove(&pool->free, block);
  return block;
}

/* Unmap the whole pages of a free block. Drop the segment if no mapped page remains. */
static void expandable_release(struct torch_model *model, struct torch_block *block)
{
  uint64_t page = page_bytes(block->pool), end = block->address + block->bytes;
  uint64_t from = (block->address + page - 1) / page * page, to = end / page * page;
  if (from >= to)
    return;
  struct pool *pool = block->pool;
  struct torch_block *before = NULL, *after = NULL;
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

/* ---- public calls ---- */

int torch_model_create(bool is_expandable, uint64_t total_bytes, struct torch_model **ret_model)
{
  struct torch_model *model = calloc(1, sizeof(*model));
  if (!model)
    return -ENOMEM;
  model->is_expandable = is_expandable;
  model->total_bytes = LADE_MIN(total_bytes, UNLIMITED_BYTES);
  model->end_address = LARGE_SEGMENT_BYTES; /* 0 is not a valid address */
  for (int i = 0; i < 2; i++)
    model->pools[i] = (struct pool){.is_small = i == 1, .free.is_by_bytes = true};
  *ret_model = model;
  return 0;
}

/* Return the size that a free block counts with: its own bytes and the unmapped bytes after it. */
static uint64_t grown_bytes(const struct torch_block *block)
{
  return block->bytes + (block->after && !block->after->is_mapped ? block->after->bytes : 0);
}

/* Remove and return the best-fitting free block of the stream. NULL if there is none. */
static struct torch_block *pool_find(struct pool *pool, int stream, uint64_t bytes)
{
  struct torch_block key = {.stream = stream, .bytes = bytes};
  struct torch_block *block = set_find(&pool->free, &key, false);
  if (!block || block->stream != stream)
    return NULL;
  for (struct torch_block *next; (next = set_find(&pool->free, block, true)); block = next)
    if (next->stream != stream || grown_bytes(next) >= grown_bytes(block))
      break;
  set_remove(&pool->free, block);
  return block;
}

/*
 * Return the pool's returnable memory. The list of free blocks is made first, because a release adds the parts that it
 * cuts off to the same set.
 */
static void pool_release(struct torch_model *model, struct pool *pool)
{
  LADE_ARRAY(struct torch_block *) blocks = {0};
  struct torch_block key = {.stream = INT32_MIN};
  for (struct torch_block *block = set_find(&pool->free, &key, false); block;
       block = set_find(&pool->free, block, true))
    if (!LADE_PUSH(&blocks, block))
      break; /* the heap is full: the rest stays cached */
  for (int i = 0; i < blocks.n; i++)
    (model->is_expandable ? expandable_release : native_release)(model, blocks.items[i]);
  LADE_ARRAY_FREE(&blocks);
}

static bool should_cut(const struct torch_model *model, const struct torch_block *block, uint64_t bytes)
{
  uint64_t rest_bytes = block->bytes - bytes;
  if (block->pool->is_small || model->is_expandable)
    return rest_bytes >= UNIT_BYTES;
  return rest_bytes > LARGE_REST_BYTES;
}

static struct torch_block *block_obtain(struct torch_model *model, struct pool *pool, int stream, uint64_t bytes)
{
  struct torch_block *block = pool_find(pool, stream, bytes);
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
  struct torch_block *block = block_obtain(model, pool, stream, bytes);
  if (!block)
    return -ENOMEM;
  if (should_cut(model, block, bytes)) {
    struct torch_block *rest = block_cut(model, block, bytes);
    if (!rest) {
      set_add(model, &pool->free, block);
      return -ENOMEM;
    }
    set_add(model, &pool->free, rest);
  }
  struct torch_block **bucket = bucket_of(model, block->address);
  block->is_live = true;
  block->next = *bucket;
  *bucket = block;
  model->n_live++;
  *ret_address = block->address;
  return 0;
}

int torch_model_free(struct torch_model *model, uint64_t address)
{
  struct torch_block **place = model->n_buckets ? bucket_of(model, address) : NULL;
  while (place && *place && (*place)->address != address)
    place = &(*place)->next;
  if (!place || !*place)
    return -EINVAL;
  struct torch_block *block = *place;
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
