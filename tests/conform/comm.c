/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comm contract, over every engine and path; comm.py starts it, once per rank.
 *
 * Usage: conform-comm self|memfd|file|apart|nccl [ENDING]. Without an ending all properties of a job that succeeds.
 * With an ending the job fails, and each rank prints the status of its call: kill, stop, abort, leave (an abort while
 * the rank waits), mismatch, order, short, unmet and unmet-late (a call of NCCL's that blocks), split, none. comm.py
 * arranges the failure of the last two. The ending busy looks like stop and succeeds.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "comm_world.h"
#include "parallel/comm/comm_node_internal.h"
#include "parallel/mesh.h"

#define STAGING_BYTES 65536 /* small, so that medium sizes take many chunks */

/* Verify every kind, type and size, apart and in place, with each buffer in shared memory or not. */
static void comm_verify(lade_comm *comm, const uint64_t *sizes, int n_sizes)
{
  struct trial t = {.comm = comm, .rank = lade_comm_rank(comm), .size = lade_comm_size(comm), .seed = 7};
  for (int windows = 0; windows < 4; windows++) {
    t.src = room_get(comm, windows & 1);
    t.dst = room_get(comm, windows & 2);
    for (int i = 0; i < n_sizes; i++) {
      for (int which = 0; which < 2 * 2 * (LADE_BROADCAST + 1); which++, t.seed++) {
        t.n = sizes[i];
        t.dtype = which & 1 ? (i + windows) % 2 ? LADE_F16 : LADE_BF16 : LADE_F32;
        t.is_in_place = which & 2;
        t.kind = (enum lade_collective_kind)(which / 4);
        if (!(t.is_in_place && t.kind == LADE_ALL_TO_ALL))
          trial_run(&t);
      }
    }
    room_free(comm, t.dst, windows & 2);
    room_free(comm, t.src, windows & 1);
  }
}

/* ---- lists ---- */

#define LIST_MAX_ELEMENTS 20011

/* Run @n trials in one call, in adjacent buffers of their own. */
static void list_run(lade_comm *comm, const struct trial *like, const uint64_t *sizes, int n, char *src, char *dst)
{
  static struct trial trials[LADE_COMM_LIST_MAX];
  struct lade_collective items[LADE_COMM_LIST_MAX];
  struct lade_error error = {0};
  uint64_t at = 0;
  for (int i = 0; i < n; i++) {
    trials[i] = *like;
    trials[i].n = sizes[i];
    trials[i].seed = like->seed + (uint32_t)(i * like->size); /* the same root of a broadcast */
    trials[i].src = src + at;
    trials[i].dst = dst + at;
    at += lade_align_up(((uint64_t)like->size * sizes[i] + 1) * sizeof(float), 64);
    trial_fill(&trials[i]);
    items[i] = trials[i].c;
  }
  if (lade_comm_run_list(comm, &(struct lade_comm_list){items, n}, &error))
    fail_msg("rank %d: %s", world.rank, error.text);
  for (int i = 0; i < n; i++)
    trial_expect(&trials[i]);
}

/* Verify every kind and type, apart and in place; the second list is of one chunk, the third is empty. */
static void lists_verify(lade_comm *comm, bool is_src_window, bool is_dst_window)
{
  static const uint64_t sizes[3][9] = {{0, 3, 515, 1, LIST_MAX_ELEMENTS, 64, 4099, 0, 17}, {5, 6, 7, 8}, {0, 0}};
  static const int counts[] = {9, 4, 2};
  struct trial like = {.comm = comm, .rank = lade_comm_rank(comm), .size = lade_comm_size(comm), .seed = 31};
  const uint64_t bytes = ((uint64_t)like.size * 2 * LIST_MAX_ELEMENTS + 512) * sizeof(float);
  char *src = bytes_get(comm, bytes, is_src_window), *dst = bytes_get(comm, bytes, is_dst_window);
  for (int which = 0; which < 3 * 2 * 2 * (LADE_BROADCAST + 1); which++, like.seed++) {
    const int list = which % 3;
    like.dtype = which / 3 & 1 ? which % 2 ? LADE_F16 : LADE_BF16 : LADE_F32;
    like.is_in_place = which / 3 & 2;
    like.kind = (enum lade_collective_kind)(which / 12);
    if (!(like.is_in_place && like.kind == LADE_ALL_TO_ALL))
      list_run(comm, &like, sizes[list], counts[list], src, dst);
  }
  room_free(comm, dst, is_dst_window);
  room_free(comm, src, is_src_window);
}

static void a_list_has_the_bits_of_its_items(void **state)
{
  for (int windows = 0; windows < 4; windows++)
    lists_verify(world.comm, windows & 1, windows & 2);
}

static void a_list_may_be_long(void **state)
{
  struct trial like = {.comm = world.comm, .rank = world.rank, .size = world.size, .seed = 3, .kind = LADE_ALL_REDUCE};
  uint64_t sizes[LADE_COMM_LIST_MAX];
  for (int i = 0; i < LADE_COMM_LIST_MAX; i++)
    sizes[i] = (uint64_t)(i * 7 % 65);
  char *src = room_get(world.comm, false), *dst = room_get(world.comm, false);
  list_run(world.comm, &like, sizes, LADE_COMM_LIST_MAX, src, dst);
  room_free(world.comm, dst, false);
  room_free(world.comm, src, false);
}

/* ---- properties ---- */

static void results_are_the_reference_s_bits(void **state)
{
  static const uint64_t sizes[] = {0, 1, 3, 17, 64, 515, 4099, 20011, N_MAX};
  comm_verify(world.comm, sizes, LADE_COUNT(sizes));
}

static void the_same_every_time_and_everywhere(void **state)
{
  struct trial t = {.comm = world.comm, .rank = world.rank, .size = world.size, .seed = 99, .kind = LADE_ALL_REDUCE,
                    .dtype = LADE_F32, .n = 33333};
  t.src = room_get(world.comm, false);
  t.dst = room_get(world.comm, false);
  char *first = malloc(t.n * sizeof(float));
  assert_non_null(first);
  trial_run(&t);
  memcpy(first, t.dst, t.n * sizeof(float));
  for (int i = 0; i < 9; i++) {
    trial_run(&t);
    assert_memory_equal(t.dst, first, t.n * sizeof(float));
  }
  struct lade_collective tell = {.kind = LADE_BROADCAST, .dtype = LADE_F32, .n = t.n, .src = t.dst, .dst = t.dst};
  assert_int_equal(lade_comm_run(world.comm, &tell, NULL), 0);
  assert_memory_equal(t.dst, first, t.n * sizeof(float));
  free(first);
  room_free(world.comm, t.dst, false);
  room_free(world.comm, t.src, false);
}

/* Messages of several lengths, also empty ones, from rank to rank around the ring. */
static void messages_arrive_in_order(void **state)
{
  static const uint64_t sizes[] = {1, 0, 5000, N_MAX, 3};
  char *data = room_get(world.comm, false);
  for (int sender = 0; sender + 1 < world.size; sender++) {
    for (uint32_t i = 0; i < LADE_COUNT(sizes) && (world.rank == sender || world.rank == sender + 1); i++) {
      bool is_sender = world.rank == sender;
      struct lade_collective c = {.kind = is_sender ? LADE_SEND : LADE_RECV, .dtype = LADE_F32, .n = sizes[i],
                                  .src = data, .dst = data, .peer = is_sender ? sender + 1 : sender};
      for (uint64_t at = 0; at < sizes[i]; at++)
        ((float *)(void *)data)[at] = is_sender ? value_get(sender, at, i) : 0;
      struct lade_error error = {0};
      if (lade_comm_run(world.comm, &c, &error))
        fail_msg("rank %d: %s", world.rank, error.text);
      for (uint64_t at = 0; at < sizes[i]; at++)
        value_expect(LADE_F32, data, at, value_get(sender, at, i));
    }
  }
  room_free(world.comm, data, false);
}

/* Rank after rank around the ring; the send ends after the receive has begun, though it is small enough to buffer. */
static void a_send_is_synchronous(void **state)
{
  int64_t times[2] = {0};
  struct lade_error error = {0};
  if (world.device) /* NCCL's sends need not be synchronous */
    skip();
  for (int sender = 0; sender + 1 < world.size; sender++) {
    struct lade_collective c = {.dtype = LADE_U8, .n = sizeof(times[0])};
    if (world.rank == sender) {
      c.kind = LADE_SEND, c.peer = sender + 1, c.src = &times[0];
      assert_int_equal(lade_comm_run(world.comm, &c, &error), 0);
      int64_t end_ns = lade_now_ns();
      c.kind = LADE_RECV, c.dst = &times[1];
      assert_int_equal(lade_comm_run(world.comm, &c, &error), 0);
      assert_true(end_ns >= times[1]);
    } else if (world.rank == sender + 1) {
      nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
      times[1] = lade_now_ns();
      c.kind = LADE_RECV, c.peer = sender, c.dst = &times[0];
      assert_int_equal(lade_comm_run(world.comm, &c, &error), 0);
      c.kind = LADE_SEND, c.src = &times[1];
      assert_int_equal(lade_comm_run(world.comm, &c, &error), 0);
    }
  }
}

static void every_axis_of_a_mesh_is_a_group(void **state)
{
  static const uint64_t sizes[] = {5, 1111};
  struct lade_mesh_params params = {.struct_size = sizeof(params), .world = world.size};
  struct lade_mesh mesh;
  params.tp = world.size >= 4 ? 2 : 1;
  params.pp = world.size >= 8 ? 2 : 1;
  params.shard = params.ep = world.size / params.tp / params.pp >= 2 ? 2 : 1;
  assert_int_equal(lade_mesh_init(&params, NULL, &mesh), 0);
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    struct lade_error error = {0};
    lade_comm *part = NULL;
    int position = lade_mesh_position(&mesh, axis, world.rank);
    if (lade_comm_split(world.comm, lade_mesh_group(&mesh, axis, world.rank), position, &error, &part))
      fail_msg("%s", error.text);
    assert_int_equal(lade_comm_rank(part), position);
    assert_int_equal(lade_comm_size(part), mesh.axes[axis].size);
    int32_t *members = room_get(part, false), *own = members + position;
    *own = world.rank;
    struct lade_collective c = {.kind = LADE_ALL_GATHER, .dtype = LADE_I32, .n = 1, .src = own, .dst = members};
    assert_int_equal(lade_comm_run(part, &c, &error), 0);
    for (int i = 0; i < mesh.axes[axis].size; i++)
      assert_int_equal(members[i], lade_mesh_member(&mesh, axis, world.rank, i));
    room_free(part, members, false);
    comm_verify(part, sizes, LADE_COUNT(sizes));
    lade_comm_close(part);
  }
}

static void a_negative_colour_takes_no_part(void **state)
{
  lade_comm *part = NULL;
  struct lade_error error = {0};
  bool is_in = world.rank % 2 == 0;
  assert_int_equal(lade_comm_split(world.comm, is_in ? 3 : -1, -world.rank, &error, &part), 0);
  assert_true(is_in == (part != NULL));
  if (part) /* the key reverses the order */
    assert_int_equal(lade_comm_rank(part), lade_comm_size(part) - 1 - world.rank / 2);
  lade_comm_close(part);
}

/*
 * Refuse the last rank its @nth allocation while a communicator is split and memory of the part is allocated. All ranks
 * get the same error, and the communicator stays usable. False: there are fewer allocations.
 */
static bool lack_of_memory_verify(uint64_t nth)
{
  lade_comm *whole = NULL, *part = NULL;
  void *data = NULL;
  struct lade_error error = {0};
  char words[64];
  assert_int_equal(lade_comm_split(world.comm, 0, world.rank, NULL, &whole), 0);
  lade_faults_arm(&world.faults, LADE_FAULT_HEAP, world.rank == world.size - 1 ? nth : 0, false, -ENOMEM);
  int status = lade_comm_split(whole, 0, world.rank, &error, &part);
  if (!status)
    status = lade_comm_alloc(part, 1 << 20, &error, &data);
  lade_faults_arm(&world.faults, LADE_FAULT_HEAP, 0, false, -ENOMEM);
  snprintf(words, sizeof(words), "rank %d has no memory for ", world.size - 1);
  if (status != -ENOMEM ? status : !strstr(error.text, words))
    fail_msg("refusal %llu: %d (%s)", (unsigned long long)nth, status, error.text);
  if (data)
    lade_comm_free(part, data);
  lade_comm_close(part);
  lade_comm_close(whole);
  return status;
}

/* The same for opening the job: another communicator of all ranks, in which the last one lacks memory. */
static void memory_that_one_rank_lacks_to_begin_is_an_error_at_all(void **state)
{
  char words[64];
  if (world.params.engine != LADE_COMM_MPI || world.size == 1)
    skip();
  snprintf(words, sizeof(words), "rank %d has no memory for a job", world.size - 1);
  for (uint64_t nth = 2; nth <= 3; nth++) { /* the first is before ranks can communicate */
    struct lade_error error = {0};
    lade_comm *second = NULL;
    lade_faults_arm(&world.faults, LADE_FAULT_HEAP, world.rank == world.size - 1 ? nth : 0, false, -ENOMEM);
    const int status = lade_comm_open(&world.params, &error, &second);
    lade_faults_arm(&world.faults, LADE_FAULT_HEAP, 0, false, -ENOMEM);
    if (status != -ENOMEM || !strstr(error.text, words))
      fail_msg("refusal %llu: %d (%s)", (unsigned long long)nth, status, error.text);
  }
}

static void memory_that_one_rank_lacks_is_an_error_at_all(void **state)
{
  uint64_t nth = 1;
  if (world.params.engine != LADE_COMM_MPI)
    skip();
  while (lack_of_memory_verify(nth))
    nth++;
  assert_true(nth > 6); /* several were refused */
}

/* Memory of the job's communicator is read in place by its parts as well. */
static void shared_memory_serves_the_parts(void **state)
{
  lade_comm *part = NULL;
  assert_int_equal(lade_comm_split(world.comm, world.rank / 2, 0, NULL, &part), 0);
  struct trial t = {.comm = part, .rank = lade_comm_rank(part), .size = lade_comm_size(part), .dtype = LADE_F32,
                    .n = 5000, .seed = 5};
  t.src = room_get(world.comm, true);
  t.dst = room_get(world.comm, true);
  for (t.kind = LADE_ALL_GATHER; t.kind <= LADE_BROADCAST; t.kind++)
    trial_run(&t);
  lade_comm_free(world.comm, t.src);
  lade_comm_free(world.comm, t.dst);
  lade_comm_close(part);
}

/* ---- registered memory of ranks ---- */

struct arena {
  lade_device *device;
  lade_chunk *chunk;
  struct lade_comm_range range;
};

/* Make a rank's own memory of a kind that other ranks can map; more at higher ranks. On a GPU, its own memory. */
static void arena_create(struct arena *arena)
{
  struct lade_host_device_params params = {.struct_size = sizeof(params)};
  uint64_t address = 0;
  arena->range.bytes = (uint64_t)(world.rank + 2) << 21;
  arena->device = world.device;
  if (!world.device)
    assert_int_equal(lade_device_open_host(&params, NULL, &arena->device), 0);
  assert_int_equal(lade_device_reserve(arena->device, arena->range.bytes, &address), 0);
  assert_int_equal(lade_device_chunk_create_shared(arena->device, arena->range.bytes, &arena->chunk), 0);
  assert_int_equal(lade_device_map(arena->device, address, arena->chunk), 0);
  assert_int_equal(lade_device_chunk_export(arena->device, arena->chunk, &arena->range.descriptor), 0);
  arena->range.data = (void *)(uintptr_t)address;
}

/* Run every kind, in places that differ between all ranks. Return the number of trials without staging. */
static uint64_t arena_trials_run(lade_comm *comm, const struct arena *arena)
{
  struct lade_comm_info before, after;
  struct trial t = {.comm = comm, .rank = lade_comm_rank(comm), .size = lade_comm_size(comm), .n = 5000, .seed = 11};
  t.src = (char *)arena->range.data + (world.rank + 1) * 4096;
  t.dst = (char *)arena->range.data + arena->range.bytes / 2 + world.rank * 64;
  lade_comm_get_info(comm, &before);
  for (t.kind = LADE_ALL_GATHER; t.kind <= LADE_BROADCAST; t.kind++)
    trial_run(&t);
  lade_comm_get_info(comm, &after);
  return after.n_direct - before.n_direct;
}

static void arena_destroy(struct arena *arena)
{
  close(arena->range.descriptor);
  lade_device_chunk_release(arena->device, arena->chunk);
  lade_device_release(arena->device, (uint64_t)(uintptr_t)arena->range.data, arena->range.bytes);
  if (arena->device != world.device)
    lade_device_close(arena->device);
}

/* Memory on hosts is not registered at any rank if the last rank's descriptor is missing. */
static void half_is_not_registered(const struct arena *arena)
{
  struct lade_comm_range range = arena->range;
  bool is_registered = false;
  range.descriptor = world.rank + 1 < world.size ? range.descriptor : -1;
  assert_int_equal(lade_comm_register(world.comm, &range, NULL, &is_registered), 0);
  assert_false(is_registered);
}

/* NCCL does not count collectives, and may refuse to register; its fake ensures that all ranks register or none. */
static void registered_memory_is_read_in_place(void **state)
{
  struct arena arena;
  struct lade_comm_info info;
  lade_comm *part = NULL;
  bool is_registered = false;
  const bool may_refuse = world.device && getenv("LADE_FAKE_NCCL");
  lade_comm_get_info(world.comm, &info);
  arena_create(&arena);
  if (!world.device)
    half_is_not_registered(&arena);
  assert_int_equal(lade_comm_register(world.comm, &arena.range, NULL, &is_registered), 0);
  assert_true(is_registered == (info.can_register && !may_refuse));
  assert_int_equal(arena_trials_run(world.comm, &arena), is_registered && !world.device ? LADE_BROADCAST + 1 : 0);
  assert_int_equal(lade_comm_split(world.comm, world.rank / 2, 0, NULL, &part), 0);
  assert_int_equal(arena_trials_run(part, &arena), 0); /* parts register their own */
  lade_comm_close(part);
  if (is_registered)
    lade_comm_unregister(world.comm, arena.range.data);
  arena_destroy(&arena);
}

/* ---- on queues ---- */

#define IN_FLIGHT 48

struct lane {
  lade_comm *comm;
  lade_queue *queue;
  struct trial trials[IN_FLIGHT];
  struct lade_comm_work works[IN_FLIGHT];
  uint64_t count;
  char *data; /* of all trials */
};

static uint64_t lane_n(int i)
{
  return (uint64_t)(i * 37 % 9001);
}

/* Return the bytes of a buffer of trial i. */
static uint64_t lane_bytes(const struct lane *lane, int i)
{
  return lade_align_up(((uint64_t)lade_comm_size(lane->comm) * lane_n(i) + 1) * 4, 64);
}

static void lane_init(struct lane *lane)
{
  uint64_t bytes = 0;
  for (int i = 0; i < IN_FLIGHT; i++)
    bytes += 2 * lane_bytes(lane, i);
  lane->data = bytes_get(lane->comm, bytes, false);
}

static void lane_submit(struct lane *lane)
{
  char *at = lane->data;
  for (int i = 0; i < IN_FLIGHT; i++) {
    struct trial *t = &lane->trials[i];
    *t = (struct trial){.comm = lane->comm, .rank = lade_comm_rank(lane->comm), .size = lade_comm_size(lane->comm)};
    t->kind = (enum lade_collective_kind)(i % (LADE_BROADCAST + 1));
    t->dtype = i % 2 ? i % 4 == 1 ? LADE_F16 : LADE_BF16 : LADE_F32;
    t->n = lane_n(i);
    t->seed = (uint32_t)i;
    t->src = at;
    t->dst = at + lane_bytes(lane, i);
    at += 2 * lane_bytes(lane, i);
    trial_fill(t);
    lane->works[i] = (struct lade_comm_work){.list = {&t->c, 1}};
    assert_int_equal(lade_comm_launch(lane->comm, lane->queue, &lane->works[i], &lane->count), 0);
  }
}

static void lane_finish(struct lane *lane)
{
  struct lade_error error = {0};
  assert_int_equal(lade_queue_sync(lane->queue, lane->count), 0);
  if (lade_comm_status(lane->comm, &error))
    fail_msg("%s", error.text);
  for (int i = 0; i < IN_FLIGHT; i++)
    trial_expect(&lane->trials[i]);
  room_free(lane->comm, lane->data, false);
  lade_queue_destroy(lane->queue);
  lade_comm_close(lane->comm);
}

static void many_are_in_flight_on_several_queues(void **state)
{
  static struct lane lanes[3];
  lade_device *device = NULL;
  struct lade_host_device_params params = {.struct_size = sizeof(params), .capacity_bytes = 4 << 20};
  if (!world.device)
    assert_int_equal(lade_device_open_host(&params, NULL, &device), 0);
  for (int i = 0; i < 3; i++) {
    /* All ranks, halves, all ranks again in the opposite order. */
    assert_int_equal(lade_comm_split(world.comm, i == 1 ? world.rank / 2 : 0, i == 2 ? -world.rank : 0, NULL,
                                     &lanes[i].comm), 0);
    assert_int_equal(lade_queue_create(device ? device : world.device, LADE_QUEUE_COMM, &lanes[i].queue), 0);
    lane_init(&lanes[i]);
  }
  for (int i = 0; i < 3; i++) /* on hosts in different orders at different ranks: communicators are independent */
    lane_submit(&lanes[(i + (world.device ? 0 : world.rank)) % 3]);
  for (int i = 0; i < 3; i++)
    lane_finish(&lanes[i]);
  lade_device_close(device);
}

/* Around the ring, as stages do: each rank's receive is launched before its send, on a new communicator. */
static void neighbours_may_all_begin_with_a_receive(void **state)
{
  const int next = (world.rank + 1) % world.size, before = (world.rank + world.size - 1) % world.size;
  struct lade_host_device_params params = {.struct_size = sizeof(params), .capacity_bytes = 4 << 20};
  struct lade_error error = {0};
  lade_device *device = NULL;
  lade_queue *queues[2];
  lade_comm *ring = NULL;
  uint64_t counts[2];
  if (world.size == 1)
    skip();
  if (!world.device)
    assert_int_equal(lade_device_open_host(&params, NULL, &device), 0);
  assert_int_equal(lade_comm_split(world.comm, 0, world.rank, NULL, &ring), 0);
  char *data = bytes_get(ring, 128, false);
  data[0] = (char)world.rank;
  const struct lade_collective pair[2] = {
      {.kind = LADE_RECV, .dtype = LADE_U8, .n = 1, .peer = before, .dst = data + 64},
      {.kind = LADE_SEND, .dtype = LADE_U8, .n = 1, .peer = next, .src = data}};
  struct lade_comm_work works[2] = {{.list = {&pair[0], 1}}, {.list = {&pair[1], 1}}};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(lade_queue_create(device ? device : world.device, LADE_QUEUE_COMM, &queues[i]), 0);
    assert_int_equal(lade_comm_launch(ring, queues[i], &works[i], &counts[i]), 0);
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(lade_queue_sync(queues[i], counts[i]), 0);
    lade_queue_destroy(queues[i]);
  }
  if (lade_comm_status(ring, &error))
    fail_msg("%s", error.text);
  assert_int_equal(data[64], before);
  room_free(ring, data, false);
  lade_comm_close(ring);
  lade_device_close(device);
}

static void a_dry_device_only_counts_the_time(void **state)
{
  lade_device *device = NULL;
  lade_queue *queue = NULL;
  struct lade_dry_device_params params = {.struct_size = sizeof(params), .capacity_bytes = 4 << 20,
                                          .to_host = {.bytes_per_s = 1}, .to_device = {.bytes_per_s = 1}};
  assert_int_equal(lade_device_open_dry(&params, NULL, &device), 0);
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_COMM, &queue), 0);
  float x = 3;
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .n = 1, .src = &x, .dst = &x};
  struct lade_comm_work work = {.list = {&sum, 1}, .predicted_ns = 1234};
  uint64_t count = 0;
  assert_int_equal(lade_comm_launch(world.comm, queue, &work, &count), 0);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  assert_int_equal(lade_queue_busy_ns(queue), 1234);
  assert_true(x == 3);
  lade_queue_destroy(queue);
  lade_device_close(device);
}

/* ---- refusals ---- */

static void list_refusal_verify(const struct lade_collective *items, int n, const char *words)
{
  struct lade_error error = {0};
  assert_int_equal(lade_comm_run_list(world.comm, &(struct lade_comm_list){items, n}, &error), -EINVAL);
  if (!strstr(error.text, words))
    fail_msg("'%s' is not in '%s'", words, error.text);
  assert_int_equal(lade_comm_status(world.comm, NULL), 0); /* it stays usable */
}

static void refusal_verify(struct lade_collective c, const char *words)
{
  list_refusal_verify(&c, 1, words);
}

static void lists_that_make_no_sense_are_refused(void **state)
{
  float x[4] = {0};
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .n = 1, .src = x, .dst = x};
  struct lade_collective items[2] = {sum, sum};
  list_refusal_verify(items, 0, "a list of 0 collectives");
  list_refusal_verify(items, LADE_COMM_LIST_MAX + 1, "it has 1 to 64");
  items[1].kind = LADE_BROADCAST;
  list_refusal_verify(items, 2, "a list of all_reduce and broadcast");
  items[1] = sum;
  items[1].dtype = LADE_BF16;
  list_refusal_verify(items, 2, "it is of one kind, dtype and peer");
  items[0].kind = items[1].kind = LADE_BARRIER;
  items[1].dtype = items[0].dtype;
  list_refusal_verify(items, 2, "has no send, recv or barrier");
}

static void arguments_that_make_no_sense_are_refused(void **state)
{
  float x[64] = {0}, y[64];
  refusal_verify((struct lade_collective){.kind = 99}, "no collective 99");
  refusal_verify((struct lade_collective){.kind = LADE_ALL_REDUCE, .n = 4, .src = x}, "a buffer is missing");
  refusal_verify((struct lade_collective){.kind = LADE_ALL_REDUCE, .n = 4, .src = x, .dst = x + 1}, "overlap");
  refusal_verify((struct lade_collective){.kind = LADE_ALL_TO_ALL, .n = 1, .src = x, .dst = x}, "overlap");
  refusal_verify((struct lade_collective){.kind = LADE_ALL_REDUCE, .dtype = LADE_I32, .n = 4, .src = x, .dst = y},
                 "sums are of f32, bf16 and f16, not of i32");
  refusal_verify((struct lade_collective){.kind = LADE_BROADCAST, .n = 1, .src = x, .dst = y, .peer = world.size},
                 "there is no rank");
  refusal_verify((struct lade_collective){.kind = LADE_SEND, .n = 1, .src = x, .peer = world.rank}, "oneself");
  refusal_verify((struct lade_collective){.kind = LADE_ALL_GATHER, .n = UINT64_MAX / 4, .src = x, .dst = y},
                 "more than memory can hold");
}

/* ---- the recounts ---- */

/* One field made wrong, seen by the recount, and put right again. */
#define IS_SEEN(is_valid, field, wrong) \
  do { \
    const __typeof__(field) kept = field; \
    field = (__typeof__(field))(wrong); \
    assert_false(is_valid); \
    field = kept; \
    assert_true(is_valid); \
  } while (0)

static void a_broken_communicator_is_seen_by_the_recount(void **state)
{
  lade_comm *comm = world.comm;
  struct lade_comm_ops ops = *comm->ops;
  const struct lade_comm_ops *own = comm->ops;
  assert_true(comm_is_valid(comm));
  IS_SEEN(comm_is_valid(comm), comm->rank, comm->size);
  IS_SEEN(comm_is_valid(comm), comm->rank, -1);
  IS_SEEN(comm_is_valid(comm), comm->size, 0);
  IS_SEEN(comm_is_valid(comm), comm->ops, NULL);
  IS_SEEN(comm_is_valid(comm), comm->params.launch, &world.launch);
  IS_SEEN(comm_is_valid(comm), comm->params.kernels, NULL);
  IS_SEEN(comm_is_valid(comm), comm->params.timeout_ms, 0);
  IS_SEEN(comm_is_valid(comm), comm->params.staging_bytes, 1);
  IS_SEEN(comm_is_valid(comm), comm->failure.line.code, -EIO);
  comm->ops = &ops;
  IS_SEEN(comm_is_valid(comm), ops.run, NULL);
  IS_SEEN(comm_is_valid(comm), ops.close, NULL);
  IS_SEEN(comm_is_valid(comm), ops.look, ops.look ? NULL : (void *)ops.abort);
  comm->ops = own;
}

/* Ranks 0 and 2 of a job of three, of which the last is on another node. */
static void a_broken_group_is_seen_by_the_recount(void **state)
{
  static struct comm_job job = {.world = 3, .n_here = 2, .n_refs = 1};
  struct comm_process processes[3] = {{.node = 1, .watch = -1}, {.node = 1, .watch = -1}, {.node = 2, .watch = -1}};
  int members[4] = {0, 2};
  struct comm_group group = {.job = &job, .size = 2, .members = members, .outcomes = members + 2,
                             .params = &world.params};
  job.processes = processes;
  assert_true(comm_group_is_valid(&group));
  IS_SEEN(comm_group_is_valid(&group), group.rank, 2);
  IS_SEEN(comm_group_is_valid(&group), group.size, 4);
  IS_SEEN(comm_group_is_valid(&group), group.outcomes, members);
  IS_SEEN(comm_group_is_valid(&group), group.is_one_node, true);
  IS_SEEN(comm_group_is_valid(&group), group.params, NULL);
  IS_SEEN(comm_group_is_valid(&group), members[1], 0);
  IS_SEEN(comm_group_is_valid(&group), members[1], 3);
  IS_SEEN(comm_group_is_valid(&group), job.n_here, 3);
  IS_SEEN(comm_group_is_valid(&group), processes[0].watch, 0);
  IS_SEEN(comm_group_is_valid(&group), processes[1].node, 2);
}

static void a_broken_segment_is_seen_by_the_recount(void **state)
{
  static _Alignas(4096) char data[1 << 20];
  struct comm_group group = {.size = 2};
  const void *terms[2];
  struct comm_node node = {.group = &group, .control = (struct comm_control *)data, .chunk_bytes = 8192,
                           .terms = terms, .segment = {.data = data, .bytes = sizeof(data)}};
  const uint64_t control = sizeof(struct comm_control) + 2 * sizeof(struct comm_member);
  node.slots = data + lade_align_up(control, 4096);
  node.results = node.slots + 4 * node.chunk_bytes;
  assert_true(comm_node_is_valid(&node));
  IS_SEEN(comm_node_is_valid(&node), node.terms, NULL);
  IS_SEEN(comm_node_is_valid(&node), node.control, NULL);
  IS_SEEN(comm_node_is_valid(&node), node.slots, node.slots + 1);
  IS_SEEN(comm_node_is_valid(&node), node.results, node.slots);
  IS_SEEN(comm_node_is_valid(&node), node.chunk_bytes, 4096);
  IS_SEEN(comm_node_is_valid(&node), node.segment.bytes, control);
  IS_SEEN(comm_node_is_valid(&node), group.size, 3);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_are_the_reference_s_bits),
      cmocka_unit_test(the_same_every_time_and_everywhere),
      cmocka_unit_test(a_list_has_the_bits_of_its_items),
      cmocka_unit_test(a_list_may_be_long),
      cmocka_unit_test(messages_arrive_in_order),
      cmocka_unit_test(a_send_is_synchronous),
      cmocka_unit_test(every_axis_of_a_mesh_is_a_group),
      cmocka_unit_test(a_negative_colour_takes_no_part),
      cmocka_unit_test(memory_that_one_rank_lacks_is_an_error_at_all),
      cmocka_unit_test(memory_that_one_rank_lacks_to_begin_is_an_error_at_all),
      cmocka_unit_test(shared_memory_serves_the_parts),
      cmocka_unit_test(registered_memory_is_read_in_place),
      cmocka_unit_test(many_are_in_flight_on_several_queues),
      cmocka_unit_test(neighbours_may_all_begin_with_a_receive),
      cmocka_unit_test(a_dry_device_only_counts_the_time),
      cmocka_unit_test(arguments_that_make_no_sense_are_refused),
      cmocka_unit_test(lists_that_make_no_sense_are_refused),
      cmocka_unit_test(a_broken_communicator_is_seen_by_the_recount),
      cmocka_unit_test(a_broken_group_is_seen_by_the_recount),
      cmocka_unit_test(a_broken_segment_is_seen_by_the_recount),
  };
  struct lade_error error = {0};
  const char *path = argc > 1 ? argv[1] : "self", *ending = argc > 2 ? argv[2] : NULL;
  bool is_noroom = ending && strcmp(ending, "noroom") == 0;
  if (ending)
    signal(SIGTERM, SIG_IGN); /* the launcher ends the job by SIGTERM; the test is about Lade's own error */
  int status = world_open(path, is_noroom ? 16 << 20 : STAGING_BYTES, ending ? ENDING_PATIENCE_MS : 60000, &error);
  if (status) {
    printf("OPEN %d: %s\n", status, error.text);
    return 1;
  }
  struct lade_comm_info info;
  lade_comm_get_info(world.comm, &info);
  world.is_ordered = info.is_ordered;
  if (world.rank == 0)
    printf("PATH %s: %s, %llu bytes\n", info.engine, info.path, (unsigned long long)info.staging_bytes);
  if (ending && !is_noroom)
    return ending_run(ending);
  int n_failed = cmocka_run_group_tests_name(path, tests, NULL, NULL);
  world_close();
  return n_failed;
}
