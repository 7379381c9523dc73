/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store contract, over the engine named on the command line, in the current directory's file system. If that has no
 * O_DIRECT, or the engine is refused, the suite skips.
 */
#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>

#include "offload/store/store_internal.h"
#include "store_fixture.h"

/* Count every allocation and memory call of the library (the linker's --wrap). */
#define WRAP(type, name, parameters, arguments) \
  type __real_##name parameters; \
  type __wrap_##name parameters; \
  type __wrap_##name parameters \
  { \
    atomic_fetch_add(&n_memory_calls, 1); \
    return __real_##name arguments; \
  }

static atomic_int n_memory_calls;

WRAP(void *, malloc, (size_t bytes), (bytes))
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes))
WRAP(void *, realloc, (void *at, size_t bytes), (at, bytes))
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
WRAP(void, free, (void *at), (at))
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset),
     (at, bytes, protection, flags, fd, offset))
WRAP(void *, mmap64, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset),
     (at, bytes, protection, flags, fd, offset))
WRAP(int, munmap, (void *at, size_t bytes), (at, bytes))
WRAP(void *, mremap, (void *at, size_t bytes, size_t to_bytes, int flags, void *to), (at, bytes, to_bytes, flags, to))
WRAP(int, madvise, (void *at, size_t bytes, int advice), (at, bytes, advice))
WRAP(int, mprotect, (void *at, size_t bytes, int protection), (at, bytes, protection))

static void written_bytes_are_read_back(void **state)
{
  const uint64_t sizes[] = {1, 4095, 4096, 65536, 65537, 262144, 262145, 3 * MIB + 12345};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    struct lade_extent extent;
    struct lade_error error = {0};
    lade_store *store = store_make(NULL, sizes[i], &extent);
    char *data = data_make(sizes[i]), *back = data_make(sizes[i]);
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 1);
    data_fill(data, sizes[i], i);
    assert_int_equal(transfer_run(store, &write, &error), 0);
    assert_int_equal(transfer_run(store, &read, &error), 0);
    assert_memory_equal(data, back, sizes[i]);
    lade_store_close(store);
    free(data);
    free(back);
  }
}

#define SLAB_BYTES (2 * MIB)

/* Write all of @slab at @generation and read it into memory that is not pinned, and the other way round. */
static void slab_run(lade_store *store, struct lade_extent extent, char *slab, uint64_t generation)
{
  struct lade_error error = {0};
  char *other = data_make(SLAB_BYTES);
  for (int turn = 0; turn < 2; turn++) {
    char *from = turn ? other : slab, *to = turn ? slab : other;
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, from, generation + (uint64_t)turn);
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, to, generation + (uint64_t)turn);
    data_fill(from, SLAB_BYTES, generation + (uint64_t)turn);
    memset(to, 0, SLAB_BYTES);
    if (transfer_run(store, &write, &error) || transfer_run(store, &read, &error))
      fail_msg("generation %d: %s", (int)generation, error.text);
    assert_memory_equal(from, to, SLAB_BYTES);
  }
  free(other);
}

static void pinned_bytes_verify(lade_store *store, bool is_pinned, uint64_t bytes)
{
  struct lade_store_info info;
  lade_store_get_info(store, &info);
  assert_int_equal(info.pinned_bytes, is_pinned ? bytes : 0);
}

/* Transfers within pinned memory, across its ends and outside; after the unpinning, addresses are of new memory. */
static void memory_may_be_pinned_and_let_go(void **state)
{
  struct lade_extent extent;
  lade_store *store = store_make(NULL, SLAB_BYTES, &extent);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  char *slab = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0), *second = data_make(SLAB_BYTES);
  assert_true(slab != MAP_FAILED);
  bool is_pinned = lade_store_pin(store, slab + PIECE_BYTES / 2, MIB); /* begins within a piece */
  pinned_bytes_verify(store, is_pinned, MIB);
  slab_run(store, extent, slab, 1);
  if (is_pinned) /* earlier pins may have used up the limit */
    lade_store_pin(store, second, SLAB_BYTES);
  slab_run(store, extent, second, 3);
  lade_store_unpin(store, slab + PIECE_BYTES / 2, MIB);
  assert_true(mmap(slab, SLAB_BYTES, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == slab);
  slab_run(store, extent, slab, 5);
  slab_run(store, extent, second, 7);
  lade_store_unpin(store, second, SLAB_BYTES);
  lade_store_unpin(store, second, SLAB_BYTES); /* was not pinned */
  pinned_bytes_verify(store, false, 0);
  slab_run(store, extent, second, 9);
  if (!is_pinned && engine == LADE_STORE_URING)
    print_message("nothing is pinned here: memlock forbids it\n");
  lade_store_close(store);
  munmap(slab, SLAB_BYTES);
  free(second);
}

static void parts_that_start_at_a_granule_stand_alone(void **state)
{
  enum { BYTES = 1 << 20, PART = 3 * LADE_STORE_GRANULE_BYTES };
  struct lade_extent extent;
  lade_store *store = store_make(NULL, BYTES, &extent);
  char *data = data_make(BYTES), *back = data_make(BYTES);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  data_fill(data, BYTES, 1);
  assert_int_equal(transfer_run(store, &write, NULL), 0);
  /* Overwrite one part with a new generation, and read every part with its own generation. */
  struct lade_transfer part = transfer_of(LADE_STORE_WRITE, extent, data + PART, 2);
  part.offset = PART;
  part.bytes = PART;
  data_fill(data + PART, PART, 2);
  assert_int_equal(transfer_run(store, &part, NULL), 0);
  for (uint64_t at = 0; at < BYTES; at += PART) {
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back + at, at == PART ? 2 : 1);
    read.offset = at;
    read.bytes = LADE_MIN(PART, BYTES - at);
    assert_int_equal(transfer_run(store, &read, NULL), 0);
  }
  assert_memory_equal(data, back, BYTES);
  lade_store_close(store);
  free(data);
  free(back);
}

static void many_transfers_under_way_reach_their_own_places(void **state)
{
  enum { N = 200, BYTES = 70000, STRIDE = 128 << 10 };
  struct lade_extent extent;
  lade_store *store = store_make(NULL, (uint64_t)N * STRIDE, &extent);
  struct lade_transfer *transfers = calloc(N, sizeof(*transfers));
  char *data = data_make((uint64_t)N * STRIDE), *back = data_make((uint64_t)N * STRIDE);
  data_fill(data, (uint64_t)N * STRIDE, 3);
  for (int op = LADE_STORE_WRITE; op >= LADE_STORE_READ; op--) {
    for (int i = 0; i < N; i++) {
      transfers[i] = transfer_of(op, extent, (op == LADE_STORE_WRITE ? data : back) + (size_t)i * STRIDE, 1);
      transfers[i].offset = (uint64_t)i * STRIDE;
      transfers[i].bytes = BYTES;
      transfers[i].identity.tensor = (uint32_t)i;
      assert_int_equal(lade_store_submit(store, &transfers[i]), 0);
    }
    for (int i = N; i--;)
      assert_int_equal(lade_store_wait(store, &transfers[i], NULL), 0);
  }
  for (size_t i = 0; i < N; i++)
    assert_memory_equal(data + i * STRIDE, back + i * STRIDE, BYTES);
  lade_store_close(store);
  free(transfers);
  free(data);
  free(back);
}

struct caller {
  lade_store *store;
  struct lade_extent extent;
  uint64_t number;
  int n_wrong;
};

/* Write and read back the thread's own part of the store, repeatedly. cmocka's asserts work in the main thread only. */
static void *caller_main(void *arg)
{
  enum { BYTES = 600000 };
  struct caller *caller = arg;
  char *data, *back;
  if (posix_memalign((void **)&data, LADE_STORE_BLOCK_BYTES, MIB) ||
      posix_memalign((void **)&back, LADE_STORE_BLOCK_BYTES, MIB))
    abort();
  for (uint64_t i = 0; i < 20; i++) {
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, caller->extent, data, i);
    struct lade_transfer read = transfer_of(LADE_STORE_READ, caller->extent, back, i);
    write.offset = read.offset = caller->number * MIB;
    write.bytes = read.bytes = BYTES;
    data_fill(data, BYTES, caller->number * 100 + i);
    caller->n_wrong += transfer_run(caller->store, &write, NULL) != 0;
    if (lade_store_submit(caller->store, &read))
      abort();
    while (!lade_transfer_is_done(&read))
      lade_store_poll(caller->store);
    caller->n_wrong += read.result != 0 || memcmp(data, back, BYTES) != 0;
  }
  free(data);
  free(back);
  return NULL;
}

static void several_threads_share_one_store(void **state)
{
  enum { N = 4 };
  struct lade_extent extent;
  lade_store *store = store_make(NULL, N * MIB, &extent);
  pthread_t threads[N];
  struct caller callers[N];
  for (uint64_t i = 0; i < N; i++) {
    callers[i] = (struct caller){.store = store, .extent = extent, .number = i};
    assert_int_equal(pthread_create(&threads[i], NULL, caller_main, &callers[i]), 0);
  }
  for (int i = 0; i < N; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(callers[i].n_wrong, 0);
  }
  lade_store_close(store);
}

static void transfers_take_no_memory(void **state)
{
  struct lade_extent extent;
  lade_store *store = store_make(NULL, 4 * MIB, &extent);
  char *data = data_make(4 * MIB);
  int before = atomic_load(&n_memory_calls);
  assert_true(before > 0);
  for (uint64_t i = 0; i < 20; i++) {
    struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, i);
    struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, data, i);
    assert_int_equal(transfer_run(store, &write, NULL), 0);
    assert_int_equal(lade_store_submit(store, &read), 0);
    while (!lade_transfer_is_done(&read))
      lade_store_poll(store);
    assert_int_equal(read.result, 0);
  }
  assert_int_equal(atomic_load(&n_memory_calls), before);
  lade_store_close(store);
  free(data);
}

static void count_done(struct lade_transfer *transfer)
{
  ++*(int *)transfer->user;
}

static void completion_is_reported_once_and_only_by_poll_wait_or_close(void **state)
{
  struct lade_extent extent;
  lade_store *store = store_make(NULL, MIB, &extent);
  char *data = data_make(MIB);
  int n_done = 0, n_delivered = 0;
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  write.on_done = count_done;
  write.user = &n_done;
  data_fill(data, MIB, 1);
  assert_int_equal(lade_store_submit(store, &write), 0);
  assert_int_equal(n_done, 0);
  assert_false(lade_transfer_is_done(&write));
  while (!n_delivered)
    n_delivered = lade_store_poll(store);
  assert_int_equal(n_delivered, 1);
  assert_int_equal(n_done, 1);
  assert_true(lade_transfer_is_done(&write));
  assert_int_equal(lade_store_wait(store, &write, NULL), 0);
  assert_int_equal(lade_store_poll(store), 0);
  assert_int_equal(n_done, 1);
  lade_store_close(store);
  free(data);
}

struct chain {
  lade_store *store;
  struct lade_transfer read;
  int submitted;
};

static void chain_next(struct lade_transfer *transfer)
{
  struct chain *chain = transfer->user;
  chain->submitted = lade_store_submit(chain->store, &chain->read);
}

static void a_completion_may_submit_the_next_transfer(void **state)
{
  struct lade_extent extent;
  struct chain chain = {.store = store_make(NULL, MIB, &extent), .submitted = 1};
  char *data = data_make(MIB), *back = data_make(MIB);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  data_fill(data, MIB, 1);
  chain.read = transfer_of(LADE_STORE_READ, extent, back, 1);
  write.on_done = chain_next;
  write.user = &chain;
  assert_int_equal(transfer_run(chain.store, &write, NULL), 0);
  assert_int_equal(chain.submitted, 0);
  assert_int_equal(lade_store_wait(chain.store, &chain.read, NULL), 0);
  assert_memory_equal(data, back, MIB);
  lade_store_close(chain.store);
  free(data);
  free(back);
}

static void closing_ends_every_transfer(void **state)
{
  enum { N = 40 };
  struct lade_extent extent;
  lade_store *store = store_make(NULL, N * MIB, &extent);
  char *data = data_make(MIB);
  struct lade_transfer transfers[N];
  int n_done = 0;
  data_fill(data, MIB, 1);
  for (uint64_t i = 0; i < N; i++) {
    transfers[i] = transfer_of(LADE_STORE_WRITE, extent, data, 1);
    transfers[i].offset = i * MIB;
    transfers[i].bytes = MIB;
    transfers[i].on_done = count_done;
    transfers[i].user = &n_done;
    assert_int_equal(lade_store_submit(store, &transfers[i]), 0);
  }
  lade_store_close(store);
  assert_int_equal(n_done, N);
  for (int i = 0; i < N; i++) {
    assert_true(lade_transfer_is_done(&transfers[i]));
    assert_true(transfers[i].result == 0 || transfers[i].result == -ECANCELED);
  }
  assert_int_equal(transfers[N - 1].result, -ECANCELED);
  free(data);
}

static void checksums_may_be_the_callers_work(void **state)
{
  enum { BYTES = 5 * LADE_STORE_GRANULE_BYTES + 777, PART = 2 * LADE_STORE_GRANULE_BYTES };
  struct lade_extent extent;
  struct lade_error error = {0};
  lade_store *store = store_make(NULL, BYTES, &extent);
  char *data = data_make(BYTES), *back = data_make(BYTES);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 1);
  write.check = read.check = LADE_CHECK_CALLER;
  data_fill(data, BYTES, 1);
  for (uint64_t at = 0; at < BYTES; at += PART)
    lade_store_seal(store, &write, at, LADE_MIN(PART, BYTES - at));
  assert_int_equal(transfer_run(store, &write, &error), 0);
  assert_int_equal(transfer_run(store, &read, &error), 0);
  assert_int_equal(lade_store_verify(store, &read, 0, BYTES, &error), 0);
  back[PART + 5] ^= 1;
  assert_int_equal(lade_store_verify(store, &read, 0, PART, &error), 0);
  assert_int_equal(lade_store_verify(store, &read, PART, PART, &error), -EBADMSG);
  assert_int_equal(error.code, -EBADMSG);
  assert_non_null(strstr(error.text, "tensor 77"));
  assert_non_null(strstr(error.text, "offset 131072"));
  lade_store_close(store);
  free(data);
  free(back);
}

/* Two short values in neighbouring blocks, moved together, each with the checksum of a granule of its own. */
static void values_side_by_side_have_checksums_of_their_own(void **state)
{
  enum { BYTES = 3 * LADE_STORE_GRANULE_BYTES, BLOCK = LADE_STORE_BLOCK_BYTES };
  struct lade_extent extent;
  struct lade_error error = {0};
  lade_store *store = store_make(NULL, BYTES, &extent);
  char *data = data_make(2 * BLOCK), *back = data_make(2 * BLOCK);
  struct lade_transfer both = transfer_of(LADE_STORE_WRITE, extent, data, 1), values[2];
  both.check = LADE_CHECK_CALLER;
  both.bytes = 2 * BLOCK;
  data_fill(data, 2 * BLOCK, 1);
  for (int i = 0; i < 2; i++) {
    values[i] = both;
    values[i].offset = (uint64_t)i * BLOCK;
    values[i].bytes = BLOCK - 100;
    values[i].data = data + i * BLOCK;
    values[i].sums_distance = (int64_t)(i + 1) * LADE_STORE_GRANULE_BYTES - i * BLOCK;
    lade_store_seal(store, &values[i], 0, values[i].bytes);
  }
  assert_int_equal(transfer_run(store, &both, &error), 0);
  for (int i = 0; i < 2; i++) { /* the second by itself, from within a granule */
    values[i].op = LADE_STORE_READ;
    values[i].data = back + i * BLOCK;
    assert_int_equal(transfer_run(store, &values[i], &error), 0);
    assert_int_equal(lade_store_verify(store, &values[i], 0, values[i].bytes, &error), 0);
  }
  assert_memory_equal(data, back, 2 * BLOCK);
  back[BLOCK] ^= 1;
  assert_int_equal(lade_store_verify(store, &values[0], 0, values[0].bytes, &error), 0);
  assert_int_equal(lade_store_verify(store, &values[1], 0, values[1].bytes, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "offset 4096"));
  values[1].check = LADE_CHECK_STORE;
  assert_int_equal(lade_store_submit(store, &values[1]), -EINVAL);
  lade_store_close(store);
  free(data);
  free(back);
}

/* Change a block as the drive may without the store's knowledge: with the caller's check a write leaves no checksum. */
static void raw_write(lade_store *store, struct lade_extent extent, uint64_t offset, void *data, uint64_t bytes)
{
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 0);
  write.check = LADE_CHECK_CALLER;
  write.offset = offset;
  write.bytes = bytes;
  assert_int_equal(transfer_run(store, &write, NULL), 0);
}

/* Check that the whole extent is refused at the granule at @offset, and correct again once that is repaired. */
static void expect_damage(lade_store *store, struct lade_extent extent, void *back, uint64_t offset)
{
  struct lade_error error = {0};
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 2);
  assert_int_equal(transfer_run(store, &read, &error), -EBADMSG);
  assert_int_equal(error.code, -EBADMSG);
  assert_non_null(strstr(error.text, "tensor 77"));
  assert_int_equal(read.failed_offset, offset);
}

static void damage_is_named_within_a_long_read(void **state)
{
  enum { GRANULE = LADE_STORE_GRANULE_BYTES, N = 8, BYTES = N * GRANULE };
  struct lade_extent extent;
  lade_store *store = store_make(NULL, BYTES, &extent);
  char *data = data_make(BYTES), *back = data_make(BYTES);
  data_fill(data, BYTES, 2);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 2);
  assert_int_equal(transfer_run(store, &write, NULL), 0);
  for (uint64_t offset = 0; offset < BYTES; offset += GRANULE) {
    data[offset + GRANULE - 1] ^= 4;
    raw_write(store, extent, offset, data + offset, GRANULE);
    expect_damage(store, extent, back, offset);
    data[offset + GRANULE - 1] ^= 4;
    raw_write(store, extent, offset, data + offset, GRANULE);
  }
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 2);
  assert_int_equal(transfer_run(store, &read, NULL), 0);
  assert_memory_equal(data, back, BYTES);
  lade_store_close(store);
  free(data);
  free(back);
}

/* Kinds of damage to a granule; each round has pairs of neighbours, of every kind equally many. */
enum damage { DAMAGE_FLIPPED, DAMAGE_LOST, DAMAGE_TORN, DAMAGE_SWAPPED, N_DAMAGES };

#define DAMAGES_EACH 10000
#define DAMAGED_GRANULES 32
#define DAMAGED_BYTES (DAMAGED_GRANULES * LADE_STORE_GRANULE_BYTES)
#define DAMAGES_A_ROUND (DAMAGED_GRANULES / N_DAMAGES) /* of a kind */

static enum damage damage_of(int granule)
{
  return (enum damage)(granule / 2 % N_DAMAGES);
}

/* Put into @bad a damaged granule @i as a drive returns it: @data changed, @old, or other parts of @data. */
static void granule_damage(char *bad, const char *data, const char *old, int i, uint64_t *random)
{
  enum { GRANULE = LADE_STORE_GRANULE_BYTES };
  const uint64_t at = (uint64_t)i * GRANULE, blocks = 1 + random_next(random) % (GRANULE / LADE_STORE_BLOCK_BYTES - 1);
  memcpy(bad + at, data + at, GRANULE);
  switch (damage_of(i)) {
  case DAMAGE_FLIPPED: /* one bit */
    bad[at + random_next(random) % GRANULE] ^= (char)(1 << random_next(random) % 8);
    break;
  case DAMAGE_LOST: /* the write was lost */
    memcpy(bad + at, old + at, GRANULE);
    break;
  case DAMAGE_TORN: /* the write ended at a block */
    memcpy(bad + at + blocks * LADE_STORE_BLOCK_BYTES, old + at + blocks * LADE_STORE_BLOCK_BYTES,
           GRANULE - blocks * LADE_STORE_BLOCK_BYTES);
    break;
  default: /* two neighbours' writes were exchanged */
    memcpy(bad + at, data + (at ^ GRANULE), GRANULE);
  }
}

/* Read every granule by itself, all at once. Count the refused ones by the kind of their damage. */
static void damages_count(lade_store *store, struct lade_extent extent, char *back, int *n_found)
{
  struct lade_transfer reads[DAMAGED_GRANULES];
  for (int i = 0; i < DAMAGED_GRANULES; i++) {
    const uint64_t at = (uint64_t)i * LADE_STORE_GRANULE_BYTES;
    reads[i] = transfer_of(LADE_STORE_READ, extent, back + at, 2);
    reads[i].offset = at;
    reads[i].bytes = LADE_STORE_GRANULE_BYTES;
    assert_int_equal(lade_store_submit(store, &reads[i]), 0);
  }
  for (int i = 0; i < DAMAGED_GRANULES; i++) {
    struct lade_error error = {0};
    const bool is_found = lade_store_wait(store, &reads[i], &error) == -EBADMSG;
    n_found[damage_of(i)] += is_found && reads[i].failed_offset == reads[i].offset && strstr(error.text, "tensor 77");
  }
}

static void ten_thousand_damages_of_each_kind_are_found(void **state)
{
  struct lade_extent extent;
  lade_store *store = store_make(NULL, DAMAGED_BYTES, &extent);
  char *old = data_make(DAMAGED_BYTES), *data = data_make(DAMAGED_BYTES), *bad = data_make(DAMAGED_BYTES);
  char *back = data_make(DAMAGED_BYTES);
  uint64_t random = 12345;
  int n_found[N_DAMAGES] = {0};
  data_fill(old, DAMAGED_BYTES, 1);
  data_fill(data, DAMAGED_BYTES, 2);
  struct lade_transfer write_old = transfer_of(LADE_STORE_WRITE, extent, old, 1);
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 2);
  assert_int_equal(transfer_run(store, &write_old, NULL), 0);
  assert_int_equal(transfer_run(store, &write, NULL), 0);
  for (int n = 0; n < DAMAGES_EACH; n += DAMAGES_A_ROUND) {
    for (int i = 0; i < DAMAGED_GRANULES; i++)
      granule_damage(bad, data, old, i, &random);
    raw_write(store, extent, 0, bad, DAMAGED_BYTES);
    damages_count(store, extent, back, n_found);
  }
  for (int kind = 0; kind < N_DAMAGES; kind++)
    assert_int_equal(n_found[kind], DAMAGES_EACH);
  raw_write(store, extent, 0, data, DAMAGED_BYTES);
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, back, 2);
  assert_int_equal(transfer_run(store, &read, NULL), 0);
  assert_memory_equal(data, back, DAMAGED_BYTES);
  lade_store_close(store);
  free(old);
  free(data);
  free(bad);
  free(back);
}

static void only_the_identity_that_was_written_is_read(void **state)
{
  struct lade_extent extent;
  struct lade_error error = {0};
  lade_store *store = store_make(NULL, 100000, &extent);
  char *data = data_make(100000);
  data_fill(data, 100000, 1);
  struct lade_transfer read = transfer_of(LADE_STORE_READ, extent, data, 5);
  assert_int_equal(transfer_run(store, &read, &error), -EBADMSG); /* never written */
  struct lade_transfer write = transfer_of(LADE_STORE_WRITE, extent, data, 5);
  assert_int_equal(transfer_run(store, &write, &error), 0);
  assert_int_equal(transfer_run(store, &read, &error), 0);
  struct lade_transfer wrong = read;
  wrong.identity.generation = 4;
  assert_int_equal(transfer_run(store, &wrong, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "generation 4"));
  wrong = read;
  wrong.identity.tensor++;
  assert_int_equal(transfer_run(store, &wrong, &error), -EBADMSG);
  wrong = read;
  wrong.identity.microbatch++;
  assert_int_equal(transfer_run(store, &wrong, &error), -EBADMSG);
  wrong = read;
  wrong.bytes--; /* another length of the last granule */
  assert_int_equal(transfer_run(store, &wrong, &error), -EBADMSG);
  lade_store_close(store);
  free(data);
}

static void a_wrong_transfer_is_refused_before_it_begins(void **state)
{
  struct lade_extent extent;
  lade_store *store = store_make(NULL, 2 * MIB, &extent);
  char *data = data_make(4 * MIB);
  data_fill(data, 4 * MIB, 1);
  const struct lade_transfer good = transfer_of(LADE_STORE_WRITE, extent, data, 1);
  struct lade_transfer bad[8];
  for (size_t i = 0; i < LADE_COUNT(bad); i++)
    bad[i] = good;
  bad[0].data = data + 512;
  bad[1].data = NULL;
  bad[2].bytes = 0;
  bad[3].bytes = extent.bytes + 1;
  bad[4].offset = LADE_STORE_BLOCK_BYTES;
  bad[4].bytes = MIB;
  bad[5].offset = 2 * extent.bytes;
  bad[6].extent.offset = 64 * MIB;
  bad[7].bytes = UINT64_MAX;
  for (size_t i = 0; i < LADE_COUNT(bad); i++)
    assert_int_equal(lade_store_submit(store, &bad[i]), -EINVAL);
  struct lade_store_info info;
  lade_store_get_info(store, &info);
  assert_int_equal(info.written_bytes, 0);
  lade_store_close(store);
  free(data);
}

static void room_is_promised_within_the_capacity_and_before_prepare(void **state)
{
  struct lade_store_params params = params_of(NULL);
  struct lade_extent a, b;
  struct lade_error error = {0};
  lade_store *store = NULL;
  char *data = data_make(4096);
  params.capacity_bytes = 3 * LADE_STORE_GRANULE_BYTES;
  assert_int_equal(lade_store_open(&params, &error, &store), 0);
  assert_int_equal(lade_store_reserve(store, LADE_STORE_GRANULE_BYTES + 1, &a), 0);
  assert_int_equal(lade_store_reserve(store, LADE_STORE_GRANULE_BYTES + 1, &b), -EOVERFLOW);
  assert_int_equal(lade_store_reserve(store, UINT64_MAX, &b), -EOVERFLOW);
  assert_int_equal(lade_store_reserve(store, 0, &b), -EINVAL);
  assert_int_equal(lade_store_reserve(store, LADE_STORE_GRANULE_BYTES, &b), 0);
  assert_true(b.offset >= a.offset + a.bytes);
  struct lade_transfer early = transfer_of(LADE_STORE_WRITE, b, data, 1);
  early.bytes = 4096;
  assert_int_equal(lade_store_submit(store, &early), -EINVAL);
  assert_int_equal(lade_store_prepare(store, &error), 0);
  assert_int_equal(lade_store_prepare(store, &error), -EINVAL);
  assert_int_equal(lade_store_reserve(store, 1, &a), -EINVAL);
  lade_store_close(store);
  free(data);
}

static bool is_fifth(void *n_asked)
{
  return ++*(int *)n_asked >= 5;
}

static void preparing_ends_when_its_caller_stops(void **state)
{
  int n_asked = 0;
  struct lade_store_params params = params_of(NULL);
  struct lade_extent extent;
  struct lade_error error = {0};
  struct lade_store_info info;
  lade_store *store = NULL;
  params.is_stopping = is_fifth;
  params.user = &n_asked;
  assert_int_equal(lade_store_open(&params, &error, &store), 0);
  assert_int_equal(lade_store_reserve(store, 40 * PIECE_BYTES, &extent), 0);
  assert_int_equal(lade_store_prepare(store, &error), -EINTR);
  assert_non_null(strstr(error.text, "stopped"));
  lade_store_get_info(store, &info);
  assert_in_range(info.written_bytes, 5 * PIECE_BYTES, 20 * PIECE_BYTES); /* those in flight end, on each drive */
  lade_store_close(store);
}

static void an_empty_store_is_a_store(void **state)
{
  struct lade_store_params params = params_of(NULL);
  lade_store *store = NULL;
  assert_int_equal(lade_store_open(&params, NULL, &store), 0);
  assert_int_equal(lade_store_prepare(store, NULL), 0);
  lade_store_close(store);
  lade_store_close(NULL);
}

/* One field of a store made wrong, seen by the recount, and put right again. */
#define IS_SEEN(field, wrong) \
  do { \
    const __typeof__(field) kept = field; \
    field = (__typeof__(field))(wrong); \
    assert_false(store_is_valid(store)); \
    field = kept; \
    assert_true(store_is_valid(store)); \
  } while (0)

static void broken_slots_are_seen(struct lade_store *store, struct lade_transfer *first, struct lade_transfer *second)
{
  struct store_piece *piece = &store->pieces[0];
  IS_SEEN(store->depth, 0);
  IS_SEEN(store->n_free, 1);
  IS_SEEN(store->n_in_engine, store->n_in_engine - 1);
  IS_SEEN(store->n_open, 1);
  IS_SEEN(store->drives[0].n_pending, store->drives[0].n_pending + 1);
  IS_SEEN(store->head, second);
  IS_SEEN(store->tail, first);
  IS_SEEN(piece->transfer, NULL);
  IS_SEEN(piece->transfer, second);
  IS_SEEN(piece->drive, store->n_drives);
  IS_SEEN(piece->bytes, 0);
  IS_SEEN(piece->bytes, PIECE_BYTES + LADE_STORE_BLOCK_BYTES);
  IS_SEEN(piece->moved_bytes, piece->bytes + LADE_STORE_BLOCK_BYTES);
  IS_SEEN(piece->from, first->taken_bytes);
  IS_SEEN(piece->place, piece->place + LADE_STORE_BLOCK_BYTES);
  IS_SEEN(piece->place, piece->place + 64 * MIB);
  IS_SEEN(first->next, NULL);
  IS_SEEN(first->next, first);
  IS_SEEN(first->is_queued, false);
  IS_SEEN(first->result, -EIO);
  IS_SEEN(first->n_pieces, first->n_pieces + 1);
  IS_SEEN(first->taken_bytes, first->bytes);
  IS_SEEN(second->taken_bytes, second->bytes);
  IS_SEEN(second->n_pieces, 1);
}

static void a_broken_map_is_seen(struct lade_store *store)
{
  struct store_stripes *stripes = &store->stripes;
  struct store_spot *spot = &stripes->spots[0];
  struct store_slots *slots = &stripes->slots[spot->drive];
  IS_SEEN(stripes->n, 0);
  IS_SEEN(stripes->n, stripes->n - 1);
  IS_SEEN(stripes->n_drives, 1);
  IS_SEEN(stripes->bytes, 2 * stripes->bytes);
  IS_SEEN(spot->drive, stripes->n_drives);
  IS_SEEN(spot->drive, !spot->drive);
  IS_SEEN(spot->slot, spot->slot + 1);
  IS_SEEN(spot->behind[0], 1); /* on a drive that is not set aside */
  IS_SEEN(slots->n, slots->n + 1);
  IS_SEEN(slots->n_free, slots->n_free - 1);
  IS_SEEN(slots->free[0], slots->free[1]);
  IS_SEEN(slots->free[0], spot->slot);
}

/* Two transfers, of which the first fills the slots: no piece comes back before a wait. */
static void a_broken_store_is_seen_by_the_recount(void **state)
{
  enum { BYTES = 4 * MIB };
  struct lade_extent extent;
  lade_store *store = store_make(NULL, 2 * BYTES, &extent);
  char *data = data_make(2 * BYTES);
  struct lade_transfer first = transfer_of(LADE_STORE_WRITE, extent, data, 1), second = first;
  data_fill(data, 2 * BYTES, 1);
  first.bytes = second.bytes = second.offset = BYTES;
  second.data = data + BYTES;
  assert_true(store_is_valid(store));
  assert_int_equal(lade_store_submit(store, &first), 0);
  assert_int_equal(lade_store_submit(store, &second), 0);
  assert_true(store_is_valid(store) && !store->n_free && first.is_queued);
  IS_SEEN(store->n_drives, 0);
  IS_SEEN(store->drives[0].file.fd, -1);
  IS_SEEN(store->reserved_bytes, store->reserved_bytes + LADE_STORE_GRANULE_BYTES);
  IS_SEEN(store->sums.n, 0);
  if (!has_two_drives)
    IS_SEEN(store->drives[0].is_aside, true);
  broken_slots_are_seen(store, &first, &second);
  if (has_two_drives)
    a_broken_map_is_seen(store);
  assert_int_equal(lade_store_wait(store, &first, NULL), 0);
  assert_int_equal(lade_store_wait(store, &second, NULL), 0);
  assert_true(store_is_valid(store));
  IS_SEEN(store->n_free, store->depth - 1); /* the slot's piece is of a transfer that is done */
  IS_SEEN(store->free_slots[0], store->free_slots[1]);
  IS_SEEN(store->n_in_engine, 1);
  lade_store_close(store);
  free(data);
}

static int n_names_left(void)
{
  DIR *dir = opendir(".");
  int n = 0;
  assert_non_null(dir);
  for (struct dirent *entry; (entry = readdir(dir));)
    n += !strncmp(entry->d_name, ".lade-store-", 12);
  closedir(dir);
  return n;
}

static void the_file_has_no_name(void **state)
{
  struct lade_extent extent;
  lade_store *store = store_make(NULL, 4096, &extent);
  struct lade_store_info info;
  lade_store_get_info(store, &info);
  assert_int_equal(n_names_left(), 0);
  assert_string_equal(info.engine, engine == LADE_STORE_URING ? "io_uring" : "posix");
  assert_true(info.is_direct);
  if (!has_two_drives)
    assert_string_equal(lade_store_note(store), "");
  lade_store_close(store);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(written_bytes_are_read_back),
      cmocka_unit_test(memory_may_be_pinned_and_let_go),
      cmocka_unit_test(parts_that_start_at_a_granule_stand_alone),
      cmocka_unit_test(many_transfers_under_way_reach_their_own_places),
      cmocka_unit_test(several_threads_share_one_store),
      cmocka_unit_test(transfers_take_no_memory),
      cmocka_unit_test(completion_is_reported_once_and_only_by_poll_wait_or_close),
      cmocka_unit_test(a_completion_may_submit_the_next_transfer),
      cmocka_unit_test(closing_ends_every_transfer),
      cmocka_unit_test(checksums_may_be_the_callers_work),
      cmocka_unit_test(values_side_by_side_have_checksums_of_their_own),
      cmocka_unit_test(damage_is_named_within_a_long_read),
      cmocka_unit_test(ten_thousand_damages_of_each_kind_are_found),
      cmocka_unit_test(only_the_identity_that_was_written_is_read),
      cmocka_unit_test(a_wrong_transfer_is_refused_before_it_begins),
      cmocka_unit_test(room_is_promised_within_the_capacity_and_before_prepare),
      cmocka_unit_test(preparing_ends_when_its_caller_stops),
      cmocka_unit_test(an_empty_store_is_a_store),
      cmocka_unit_test(a_broken_store_is_seen_by_the_recount),
      cmocka_unit_test(the_file_has_no_name),
  };
  int skip = suite_begin(argc, argv);
  return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
