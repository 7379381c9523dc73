/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device contract, over the implementation that the argument names: host or dry. A test that touches
 * memory, or asks for real time, does so only where the device is not dry; sizes, counts, orders and errors
 * are the same for all.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "base/philox.h"
#include "base/pool.h"
#include "device/device.h"

#define MIB ((uint64_t)1 << 20)
#define CHUNK (2 * MIB)
#define CAPACITY (64 * MIB)

static const struct lade_link link_to_host = {.bytes_per_s = 2000000000, .latency_ns = 10000};
static const struct lade_link link_to_device = {.bytes_per_s = 1000000000, .latency_ns = 20000};

struct target {
  bool is_dry;
  lade_pool *pool;
};

static lade_device *device_open(void **state, struct lade_faults *faults)
{
  const struct target *target = *state;
  lade_device *device = NULL;
  struct lade_host_device_params host = {
      .struct_size = sizeof(host),
      .capacity_bytes = CAPACITY,
      .pool = target->pool,
      .to_host = link_to_host,
      .to_device = link_to_device,
      .faults = faults,
  };
  struct lade_dry_device_params dry = {
      .struct_size = sizeof(dry),
      .capacity_bytes = CAPACITY,
      .to_host = link_to_host,
      .to_device = link_to_device,
      .faults = faults,
  };
  int error = target->is_dry ? lade_device_open_dry(&dry, NULL, &device) : lade_device_open_host(&host, NULL, &device);
  assert_int_equal(error, 0);
  return device;
}

static struct lade_device_info info_get(const lade_device *device)
{
  struct lade_device_info info;
  lade_device_get_info(device, &info);
  return info;
}

static lade_queue *queue_open(lade_device *device, enum lade_queue_role role)
{
  lade_queue *queue = NULL;
  assert_int_equal(lade_queue_create(device, role, &queue), 0);
  return queue;
}

static lade_chunk *chunk_open(lade_device *device, uint64_t bytes)
{
  lade_chunk *chunk = NULL;
  assert_int_equal(lade_device_chunk_create(device, bytes, &chunk), 0);
  return chunk;
}

static uint64_t *words(uint64_t address)
{
  return (uint64_t *)(uintptr_t)address;
}

static void words_fill(uint64_t address, uint64_t bytes, uint64_t tag)
{
  for (uint64_t i = 0; i < bytes / 8; i += 64)
    words(address)[i] = tag * 0x9e3779b97f4a7c15u + i;
}

static void words_check(uint64_t address, uint64_t bytes, uint64_t tag)
{
  for (uint64_t i = 0; i < bytes / 8; i += 64)
    assert_int_equal(words(address)[i], tag * 0x9e3779b97f4a7c15u + i);
}

static sigjmp_buf segv_back;

static void segv_caught(int signal)
{
  siglongjmp(segv_back, 1);
}

/* Whether reading at @address raises SIGSEGV. */
static bool is_faulting(uint64_t address)
{
  struct sigaction action = {.sa_handler = segv_caught}, before;
  sigaction(SIGSEGV, &action, &before);
  volatile bool is_caught = true;
  if (sigsetjmp(segv_back, 1) == 0) {
    (void)*(volatile char *)(uintptr_t)address;
    is_caught = false;
  }
  sigaction(SIGSEGV, &before, NULL);
  return is_caught;
}

/* ---- memory ---- */

static void ranges_are_aligned_and_apart(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at[8];
  for (uint64_t i = 0; i < 8; i++) {
    assert_int_equal(lade_device_reserve(device, (i + 1) * CHUNK, &at[i]), 0);
    assert_int_equal(at[i] % CHUNK, 0);
    for (uint64_t j = 0; j < i; j++)
      assert_true(at[i] + (i + 1) * CHUNK <= at[j] || at[j] + (j + 1) * CHUNK <= at[i]);
  }
  for (uint64_t i = 0; i < 8; i++)
    lade_device_release(device, at[(i * 3) % 8], ((i * 3) % 8 + 1) * CHUNK);
  lade_device_close(device);
}

static void addresses_cost_nothing(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 1024 * CAPACITY, &at), 0);
  assert_int_equal(info_get(device).created_bytes, 0);
  assert_int_equal(info_get(device).peak_bytes, 0);
  lade_device_release(device, at, 1024 * CAPACITY);
  lade_device_close(device);
}

static void senseless_arguments_are_refused_and_change_nothing(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at = 1, other = 0;
  lade_chunk *chunk = NULL, *second = NULL;
  lade_queue *queue = NULL;
  assert_int_equal(lade_device_reserve(device, 0, &at), -EINVAL);
  assert_int_equal(lade_device_reserve(device, CHUNK + 4096, &at), -EINVAL);
  assert_int_equal(at, 1);
  assert_int_equal(lade_device_chunk_create(device, 0, &chunk), -EINVAL);
  assert_int_equal(lade_device_chunk_create(device, CHUNK / 2, &chunk), -EINVAL);
  assert_null(chunk);
  assert_int_equal(lade_queue_create(device, LADE_N_QUEUE_ROLES, &queue), -EINVAL);

  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &other), 0);
  chunk = chunk_open(device, 2 * CHUNK);
  second = chunk_open(device, CHUNK);
  assert_int_equal(lade_device_map(device, at + 4096, chunk), -EINVAL);
  assert_int_equal(lade_device_map(device, at + 3 * CHUNK, chunk), -EINVAL); /* past the end */
  assert_int_equal(lade_device_map(device, LADE_MIN(at, other) - CHUNK, second), -EINVAL);
  assert_int_equal(lade_device_map(device, at + CHUNK, chunk), 0);
  assert_int_equal(lade_device_map(device, other, chunk), -EBUSY); /* mapped already */
  assert_int_equal(lade_device_map(device, at + CHUNK, second), -EBUSY);
  assert_int_equal(lade_device_map(device, at + 2 * CHUNK, second), -EBUSY); /* its second half */
  assert_int_equal(lade_device_unmap(device, at, 2 * CHUNK), -EINVAL);       /* cuts it */
  assert_int_equal(lade_device_unmap(device, at + 2 * CHUNK, CHUNK), -EINVAL);
  assert_int_equal(lade_device_unmap(device, at + CHUNK, 4 * CHUNK), -EINVAL); /* past the range */
  assert_int_equal(lade_device_unmap(device, at, 4 * CHUNK), 0);
  assert_int_equal(lade_device_map(device, at + 2 * CHUNK, chunk), 0);
  assert_int_equal(lade_device_unmap(device, at + 2 * CHUNK, 2 * CHUNK), 0);

  lade_device_chunk_release(device, chunk);
  lade_device_chunk_release(device, second);
  lade_device_chunk_release(device, NULL);
  lade_device_release(device, at, 4 * CHUNK);
  lade_device_release(device, other, 4 * CHUNK);
  lade_device_close(device);
  lade_device_close(NULL);
  lade_queue_destroy(NULL);
}

static void opening_wants_complete_params(void **state)
{
  const struct target *target = *state;
  struct lade_error error = {0};
  lade_device *device = NULL;
  if (!target->is_dry) {
    struct lade_host_device_params host = {.struct_size = 3};
    assert_int_equal(lade_device_open_host(&host, &error, &device), -EINVAL);
    host = (struct lade_host_device_params){.struct_size = sizeof(host)};
    assert_int_equal(lade_device_open_host(&host, &error, &device), 0);
    assert_true(info_get(device).capacity_bytes >= CHUNK); /* all memory of this process */
    lade_device_close(device);
    return;
  }
  struct lade_dry_device_params dry = {.struct_size = sizeof(dry), .to_host = link_to_host};
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), -EINVAL);
  assert_non_null(strstr(error.text, "capacity_bytes"));
  dry.capacity_bytes = CAPACITY;
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), -EINVAL);
  assert_non_null(strstr(error.text, "links"));
  dry.to_device = link_to_device;
  dry.chunk_bytes = 3000;
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), -EINVAL);
  dry.chunk_bytes = 4096;
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), 0);
  assert_int_equal(info_get(device).chunk_bytes, 4096);
  lade_device_close(device);
}

static void capacity_is_hard_and_exact(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t half = CAPACITY / 2;
  lade_chunk *first = chunk_open(device, half), *chunk = NULL;
  assert_int_equal(lade_device_chunk_create(device, half + CHUNK, &chunk), -ENOMEM);
  assert_int_equal(lade_device_chunk_create(device, UINT64_MAX / CHUNK * CHUNK, &chunk), -ENOMEM);
  assert_null(chunk);
  chunk = chunk_open(device, half);
  lade_chunk *none = NULL;
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &none), -ENOMEM);
  assert_int_equal(info_get(device).created_bytes, CAPACITY);
  lade_device_chunk_release(device, first);
  first = chunk_open(device, half);
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &none), -ENOMEM);
  lade_device_chunk_release(device, first);
  lade_device_chunk_release(device, chunk);
  assert_int_equal(info_get(device).created_bytes, 0);
  lade_device_close(device);
}

static void *creator_main(void *arg)
{
  lade_device *device = arg;
  for (int i = 0; i < 40; i++) {
    lade_chunk *chunk = NULL;
    if (lade_device_chunk_create(device, 6 * CHUNK, &chunk) == 0)
      lade_device_chunk_release(device, chunk);
    struct lade_device_info info = info_get(device);
    if (info.created_bytes > info.capacity_bytes || info.peak_bytes > info.capacity_bytes)
      return device;
  }
  return NULL;
}

static void threads_cannot_overshoot_the_capacity_together(void **state)
{
  lade_device *device = device_open(state, NULL);
  lade_chunk *most = chunk_open(device, CAPACITY - 8 * CHUNK);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, creator_main, device), 0);
  for (int i = 0; i < 4; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  assert_int_equal(info_get(device).created_bytes, CAPACITY - 8 * CHUNK);
  assert_true(info_get(device).peak_bytes <= CAPACITY - 2 * CHUNK);
  lade_device_chunk_release(device, most);
  lade_device_close(device);
}

static void peak_is_the_most_that_existed_at_once(void **state)
{
  lade_device *device = device_open(state, NULL);
  lade_chunk *one = chunk_open(device, CHUNK), *two = chunk_open(device, 2 * CHUNK), *none = NULL;
  lade_device_chunk_release(device, two);
  two = chunk_open(device, CHUNK);
  assert_int_equal(info_get(device).peak_bytes, 3 * CHUNK);
  assert_int_equal(lade_device_chunk_create(device, CAPACITY, &none), -ENOMEM);
  assert_int_equal(info_get(device).peak_bytes, 3 * CHUNK); /* a refusal is no peak */
  lade_device_peak_reset(device);
  assert_int_equal(info_get(device).peak_bytes, 2 * CHUNK);
  lade_device_chunk_release(device, one);
  lade_device_chunk_release(device, two);
  assert_int_equal(info_get(device).peak_bytes, 2 * CHUNK);
  lade_device_close(device);
}

static uint64_t resident_bytes(void)
{
  unsigned long long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%llu %llu", &total, &resident), 2);
  fclose(file);
  return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void chunks_are_real_memory_and_go_back(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  uint64_t before = resident_bytes();
  lade_chunk *chunk = chunk_open(device, CAPACITY);
  uint64_t with = resident_bytes();
  lade_device_chunk_release(device, chunk);
  uint64_t after = resident_bytes();
  if (target->is_dry) {
    assert_true(with < before + CAPACITY / 8);
  } else {
    assert_true(with >= before + CAPACITY / 8 * 7);
    assert_true(after <= before + CAPACITY / 8);
  }
  lade_device_close(device);
}

static void fresh_chunks_are_zero_and_present(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 8 * CHUNK, &at), 0);
  for (int round = 0; round < 3; round++) {
    lade_chunk *chunk = chunk_open(device, 5 * CHUNK);
    assert_int_equal(lade_device_map(device, at + CHUNK, chunk), 0);
    if (!target->is_dry) {
      unsigned char present[5 * CHUNK / 4096];
      size_t n_pages = 5 * CHUNK / (uint64_t)sysconf(_SC_PAGESIZE);
      assert_int_equal(mincore(words(at + CHUNK), 5 * CHUNK, present), 0);
      for (size_t i = 0; i < n_pages; i++)
        assert_true(present[i] & 1);
      for (uint64_t i = 0; i < 5 * CHUNK / 8; i++)
        assert_int_equal(words(at + CHUNK)[i], 0);
      memset(words(at + CHUNK), 0xff, 5 * CHUNK);
    }
    assert_int_equal(lade_device_unmap(device, at, 8 * CHUNK), 0);
    lade_device_chunk_release(device, chunk);
  }
  lade_device_release(device, at, 8 * CHUNK);
  lade_device_close(device);
}

static void contents_survive_unmap_and_remap(void **state)
{
  const struct target *target = *state;
  struct lade_faults faults;
  lade_faults_init(&faults);
  lade_device *device = device_open(state, &faults);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 8 * CHUNK, &at), 0);
  lade_chunk *one = chunk_open(device, 2 * CHUNK), *two = chunk_open(device, CHUNK);
  uint64_t place[] = {0, 5, 1, 3};
  for (int round = 0; round < 4; round++) {
    uint64_t at_one = at + place[round] * CHUNK, at_two = at_one + 2 * CHUNK;
    /* The second half of the rounds as on a kernel that cannot keep the source of a move. */
    lade_faults_arm(&faults, LADE_FAULT_MOVE, round >= 2, true, -EINVAL);
    assert_int_equal(lade_device_map(device, at_one, one), 0);
    assert_int_equal(lade_device_map(device, at_two, two), 0);
    if (!target->is_dry) {
      if (round == 0) {
        words_fill(at_one, 2 * CHUNK, 1);
        words_fill(at_two, CHUNK, 2);
      }
      words_check(at_one, 2 * CHUNK, 1);
      words_check(at_two, CHUNK, 2);
    }
    assert_int_equal(lade_device_unmap(device, at_one, 3 * CHUNK), 0);
    if (!target->is_dry) {
      assert_true(is_faulting(at_one));
      assert_int_equal(lade_faults_injected(&faults), round >= 2 ? 2 : 0);
    }
  }
  lade_device_chunk_release(device, one);
  lade_device_chunk_release(device, two);
  lade_device_release(device, at, 8 * CHUNK);
  lade_device_close(device);
}

static void an_access_past_the_mapping_faults(void **state)
{
  const struct target *target = *state;
  if (target->is_dry)
    return;
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  assert_true(is_faulting(at));
  lade_chunk *chunk = chunk_open(device, 2 * CHUNK);
  assert_int_equal(lade_device_map(device, at + CHUNK, chunk), 0);
  assert_true(is_faulting(at + CHUNK - 1));
  assert_false(is_faulting(at + CHUNK));
  assert_false(is_faulting(at + 3 * CHUNK - 1));
  assert_true(is_faulting(at + 3 * CHUNK));
  assert_int_equal(lade_device_unmap(device, at + CHUNK, 2 * CHUNK), 0);
  assert_true(is_faulting(at + CHUNK));
  assert_true(is_faulting(at + 3 * CHUNK - 1));
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, 4 * CHUNK);
  lade_device_close(device);
}

#define N_PLACES 24
#define N_CHUNKS 8

/* Random creating, mapping, unmapping and releasing, against a table of what must be where. */
static void random_mapping_agrees_with_a_model(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_chunk *chunks[N_CHUNKS] = {0};
  uint64_t n[N_CHUNKS] = {0}, place[N_CHUNKS] = {0}, at = 0, created = 0;
  bool is_mapped[N_CHUNKS] = {0};
  int owner[N_PLACES];
  memset(owner, -1, sizeof(owner));
  assert_int_equal(lade_device_reserve(device, N_PLACES * CHUNK, &at), 0);
  for (uint64_t step = 0; step < 600; step++) {
    struct lade_philox draw = lade_philox_draw(7, 0, 0, step);
    uint32_t i = draw.word[0] % N_CHUNKS, to = draw.word[1] % N_PLACES;
    if (!chunks[i]) {
      n[i] = 1 + draw.word[2] % 4;
      chunks[i] = chunk_open(device, n[i] * CHUNK);
      created += n[i] * CHUNK;
      assert_int_equal(info_get(device).created_bytes, created);
      continue;
    }
    if (is_mapped[i]) {
      if (!target->is_dry)
        words_check(at + place[i] * CHUNK, n[i] * CHUNK, i);
      assert_int_equal(lade_device_unmap(device, at + place[i] * CHUNK, n[i] * CHUNK), 0);
      for (uint64_t k = 0; k < n[i]; k++)
        owner[place[i] + k] = -1;
      is_mapped[i] = false;
      if (draw.word[3] % 3 == 0) {
        lade_device_chunk_release(device, chunks[i]);
        chunks[i] = NULL;
        created -= n[i] * CHUNK;
      }
      continue;
    }
    int expected = to + n[i] > N_PLACES ? -EINVAL : 0;
    for (uint64_t k = 0; !expected && k < n[i]; k++)
      expected = owner[to + k] >= 0 ? -EBUSY : 0;
    assert_int_equal(lade_device_map(device, at + to * CHUNK, chunks[i]), expected);
    if (expected)
      continue;
    is_mapped[i] = true;
    place[i] = to;
    for (uint64_t k = 0; k < n[i]; k++)
      owner[to + k] = (int)i;
    if (!target->is_dry)
      words_fill(at + to * CHUNK, n[i] * CHUNK, i);
  }
  assert_int_equal(lade_device_unmap(device, at, N_PLACES * CHUNK), 0);
  for (int i = 0; i < N_CHUNKS; i++)
    lade_device_chunk_release(device, chunks[i]);
  lade_device_release(device, at, N_PLACES * CHUNK);
  lade_device_close(device);
}

/* ---- queues ---- */

#define N_QUEUES 5
#define N_NODES 1500

struct node {
  const struct node *dependency[3]; /* earlier ones, any queue */
  const struct node *previous;      /* on the same queue */
  int i_queue;
  uint64_t i, count, value;
  int64_t predicted_ns;
  struct lade_span span;
};

static uint64_t node_value(const struct node *node)
{
  uint64_t value = node->i + 1;
  for (int k = 0; k < 3; k++)
    value = value * 0x9e3779b97f4a7c15u + (node->dependency[k] ? node->dependency[k]->value : 0);
  return value * 31 + (node->previous ? node->previous->value : 0);
}

/* Plain reads of what other queues wrote: a missing order is a wrong value, and a race for TSan. */
static void node_run(void *args)
{
  struct node *node = args;
  node->value = node_value(node);
}

static void nodes_draw(struct node *nodes, uint32_t seed)
{
  const struct node *last[N_QUEUES] = {0};
  for (uint64_t i = 0; i < N_NODES; i++) {
    struct lade_philox draw = lade_philox_draw(seed, 1, 0, i), more = lade_philox_draw(seed, 2, 0, i);
    struct node *node = &nodes[i];
    *node = (struct node){.i = i, .i_queue = (int)(draw.word[0] % N_QUEUES), .predicted_ns = more.word[3] % 1000};
    for (uint64_t k = 0; i && k < more.word[2] % 4; k++) {
      uint64_t back = 1 + draw.word[1 + k] % LADE_MIN(i, k ? i : 12); /* near ones and any */
      node->dependency[k] = &nodes[i - back];
    }
    node->previous = last[node->i_queue];
    last[node->i_queue] = node;
  }
}

static void nodes_submit(struct node *nodes, lade_queue **queues)
{
  for (uint64_t i = 0; i < N_NODES; i++) {
    struct node *node = &nodes[i];
    for (int k = 0; k < 3; k++) {
      if (node->dependency[k])
        lade_queue_wait(queues[node->i_queue], queues[node->dependency[k]->i_queue], node->dependency[k]->count);
    }
    struct lade_work work = {node_run, node, node->predicted_ns, &node->span};
    lade_queue_launch(queues[node->i_queue], &work, &node->count);
    assert_int_equal(node->count, node->previous ? node->previous->count + 1 : 1);
  }
}

/* Starts after all that it waits for; exactly then, and for as long as predicted, on a simulated clock. */
static void node_check(const struct node *node, bool is_dry)
{
  int64_t ready_ns = node->previous ? node->previous->span.end_ns : 0;
  for (int k = 0; k < 3; k++) {
    if (node->dependency[k])
      ready_ns = LADE_MAX(ready_ns, node->dependency[k]->span.end_ns);
  }
  assert_true(node->span.start_ns >= ready_ns);
  assert_true(node->span.end_ns >= node->span.start_ns);
  if (!is_dry) {
    assert_int_equal(node->value, node_value(node));
    return;
  }
  assert_int_equal(node->value, 0); /* never called */
  assert_int_equal(node->span.start_ns, ready_ns);
  assert_int_equal(node->span.end_ns, ready_ns + node->predicted_ns);
}

static void events_order_work_across_queues(void **state)
{
  const struct target *target = *state;
  struct node *nodes = malloc(N_NODES * sizeof(*nodes));
  for (uint32_t seed = 0; seed < 12; seed++) {
    lade_device *device = device_open(state, NULL);
    lade_queue *queues[N_QUEUES];
    int64_t busy_ns[N_QUEUES] = {0}, end_ns[N_QUEUES] = {0};
    for (int i = 0; i < N_QUEUES; i++)
      queues[i] = queue_open(device, (enum lade_queue_role)i);
    nodes_draw(nodes, seed);
    nodes_submit(nodes, queues);
    for (uint64_t i = N_NODES; i-- > 0;) {
      assert_int_equal(lade_queue_sync(queues[nodes[i].i_queue], nodes[i].count), 0);
      assert_true(lade_queue_poll(queues[nodes[i].i_queue], nodes[i].count));
    }
    for (uint64_t i = 0; i < N_NODES; i++) {
      node_check(&nodes[i], target->is_dry);
      busy_ns[nodes[i].i_queue] += nodes[i].span.end_ns - nodes[i].span.start_ns;
      end_ns[nodes[i].i_queue] = nodes[i].span.end_ns;
    }
    for (int i = 0; i < N_QUEUES; i++) {
      assert_int_equal(lade_queue_busy_ns(queues[i]), busy_ns[i]);
      assert_int_equal(lade_queue_now_ns(queues[i]), end_ns[i]);
      lade_queue_destroy(queues[i]);
    }
    lade_device_close(device);
  }
  free(nodes);
}

/* Queues go while others still have waits for their last events in their rings. */
static void queues_may_go_in_any_order(void **state)
{
  struct node *nodes = malloc(N_NODES * sizeof(*nodes));
  const struct target *target = *state;
  for (uint32_t seed = 20; seed < 26; seed++) {
    lade_device *device = device_open(state, NULL);
    lade_queue *queues[N_QUEUES];
    for (int i = 0; i < N_QUEUES; i++)
      queues[i] = queue_open(device, LADE_QUEUE_COMPUTE);
    nodes_draw(nodes, seed);
    nodes_submit(nodes, queues);
    for (int i = 0; i < N_QUEUES; i++)
      lade_queue_destroy(queues[(i * 2 + (int)seed) % N_QUEUES]);
    for (uint64_t i = 0; i < N_NODES; i++)
      node_check(&nodes[i], target->is_dry);
    assert_int_equal(lade_device_status(device), 0);
    lade_device_close(device);
  }
  free(nodes);
}

static void copies_arrive_whole_and_in_order(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_queue *to_device = queue_open(device, LADE_QUEUE_TO_DEVICE), *to_host = queue_open(device, LADE_QUEUE_TO_HOST);
  uint64_t at = 0, count = 0;
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  lade_chunk *chunk = chunk_open(device, 4 * CHUNK);
  assert_int_equal(lade_device_map(device, at, chunk), 0);
  uint64_t sizes[] = {0, 1, 63, 4096, MIB + 7, 3 * MIB};
  char *source = malloc(4 * MIB), *result = calloc(1, 4 * MIB);
  for (uint64_t i = 0; i < 4 * MIB; i++)
    source[i] = (char)(i * 131 + (i >> 11));
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    struct lade_span up = {0}, down = {0};
    char *device_at = (char *)(uintptr_t)(at + 5 * i);
    int64_t before_ns = target->is_dry ? lade_queue_now_ns(to_device) : lade_now_ns();
    lade_queue_copy(to_device, &(struct lade_copy){device_at, source + i, sizes[i], 0, &up}, &count);
    assert_int_equal(count, i + 1);
    lade_queue_wait(to_host, to_device, count);
    lade_queue_copy(to_host, &(struct lade_copy){result, device_at, sizes[i], 0, &down}, &count);
    assert_int_equal(lade_queue_sync(to_host, count), 0);
    assert_true(up.end_ns - before_ns >= (int64_t)(sizes[i] + link_to_device.latency_ns)); /* 1 GB/s */
    assert_true(down.end_ns - up.end_ns >= (int64_t)(sizes[i] / 2 + link_to_host.latency_ns));
    assert_true(down.start_ns >= up.end_ns);
    if (!target->is_dry)
      assert_memory_equal(result, source + i, sizes[i]);
  }
  lade_queue_destroy(to_device);
  lade_queue_destroy(to_host);
  assert_int_equal(lade_device_unmap(device, at, 4 * CHUNK), 0);
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, 4 * CHUNK);
  lade_device_close(device);
  free(source);
  free(result);
}

/* Many small copies are never faster than the link, and each of a dry device's costs exactly its price. */
static void copies_keep_the_rate_of_their_link(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_queue *queue = queue_open(device, LADE_QUEUE_TO_HOST), *compute = queue_open(device, LADE_QUEUE_COMPUTE);
  char *source = calloc(1, 64 * 1024), *result = calloc(1, 64 * 1024);
  uint64_t count = 0;
  int64_t price_ns = 64 * 1024 / 2 + 10000, start_ns = lade_now_ns();
  for (int i = 0; i < 200; i++)
    lade_queue_copy(queue, &(struct lade_copy){result, source, 64 * 1024, 77, NULL}, &count);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  int64_t end_ns = target->is_dry ? lade_queue_now_ns(queue) : lade_now_ns() - start_ns;
  assert_true(end_ns >= 200 * price_ns);
  if (target->is_dry) {
    assert_int_equal(end_ns, 200 * price_ns);
    lade_queue_copy(compute, &(struct lade_copy){result, source, 64 * 1024, 77, NULL}, &count);
    assert_int_equal(lade_queue_now_ns(compute), 77); /* no link: the predicted price */
  }
  lade_queue_destroy(compute);
  lade_queue_destroy(queue);
  lade_device_close(device);
  free(source);
  free(result);
}

static void count_up(void *args)
{
  ++*(uint64_t *)args;
}

static void *signaller_main(void *arg)
{
  struct timespec pause = {.tv_nsec = 10000000};
  nanosleep(&pause, NULL);
  lade_queue_signal(arg, 3);
  return NULL;
}

static void signals_order_work_and_never_fall(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_queue *drive = queue_open(device, LADE_QUEUE_SIGNAL), *compute = queue_open(device, LADE_QUEUE_COMPUTE);
  uint64_t n_runs = 0, count = 0;
  pthread_t thread;
  assert_false(lade_queue_poll(drive, 1));
  if (target->is_dry) {
    lade_queue_launch(compute, &(struct lade_work){NULL, NULL, 50, NULL}, &count);
    lade_queue_wait(drive, compute, count);
    lade_queue_signal_after(drive, 3, 1000); /* a transfer that follows the work */
    assert_int_equal(lade_queue_now_ns(drive), 1050);
  } else {
    assert_int_equal(pthread_create(&thread, NULL, signaller_main, drive), 0);
  }
  lade_queue_wait(compute, drive, 2);
  lade_queue_launch(compute, &(struct lade_work){count_up, &n_runs, 7, NULL}, &count);
  assert_int_equal(lade_queue_sync(compute, count), 0);
  assert_true(lade_queue_poll(drive, 3));
  if (target->is_dry)
    assert_int_equal(lade_queue_now_ns(compute), 1057);
  else
    pthread_join(thread, NULL);
  assert_int_equal(n_runs, target->is_dry ? 0 : 1);
  lade_queue_signal(drive, 1);
  assert_true(lade_queue_poll(drive, 3));
  assert_false(lade_queue_poll(drive, 4));
  assert_int_equal(lade_queue_sync(drive, 3), 0);
  lade_queue_destroy(compute);
  lade_queue_destroy(drive);
  lade_device_close(device);
}

/* More is submitted than any ring holds, while the first waits. */
static void a_full_ring_blocks_the_submitter_and_loses_nothing(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_queue *drive = queue_open(device, LADE_QUEUE_SIGNAL), *compute = queue_open(device, LADE_QUEUE_COMPUTE);
  uint64_t n_runs = 0, count = 0;
  pthread_t thread;
  if (target->is_dry)
    lade_queue_signal(drive, 3);
  else
    assert_int_equal(pthread_create(&thread, NULL, signaller_main, drive), 0);
  lade_queue_wait(compute, drive, 3);
  for (uint64_t i = 1; i <= 10000; i++) {
    lade_queue_launch(compute, &(struct lade_work){count_up, &n_runs, 1, NULL}, &count);
    assert_int_equal(count, i);
  }
  assert_int_equal(lade_queue_sync(compute, count), 0);
  assert_int_equal(n_runs, target->is_dry ? 0 : 10000);
  if (!target->is_dry)
    pthread_join(thread, NULL);
  lade_queue_destroy(compute);
  lade_queue_destroy(drive);
  lade_device_close(device);
}

static void destroying_a_queue_runs_what_was_submitted(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  for (int round = 0; round < 50; round++) {
    lade_queue *queue = queue_open(device, LADE_QUEUE_HOST);
    uint64_t n_runs = 0;
    for (int i = 0; i < round; i++)
      lade_queue_launch(queue, &(struct lade_work){count_up, &n_runs, 1, NULL}, NULL);
    lade_queue_destroy(queue);
    assert_int_equal(n_runs, target->is_dry ? 0 : round);
  }
  lade_device_close(device);
}

static void a_wait_for_what_cannot_come_is_an_error(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_queue *drive = queue_open(device, LADE_QUEUE_SIGNAL), *compute = queue_open(device, LADE_QUEUE_COMPUTE);
  uint64_t n_runs = 0, count = 0;
  lade_queue_signal(drive, 4);
  lade_queue_wait(compute, drive, 4);
  lade_queue_launch(compute, &(struct lade_work){count_up, &n_runs, 1, NULL}, &count);
  assert_int_equal(lade_queue_sync(compute, count), 0);
  lade_queue_wait(compute, drive, 5);
  lade_queue_launch(compute, &(struct lade_work){count_up, &n_runs, 1, NULL}, &count);
  lade_queue_destroy(drive);
  assert_int_equal(lade_queue_sync(compute, count), target->is_dry ? -EDEADLK : -ECANCELED);
  assert_int_equal(lade_device_status(device), target->is_dry ? -EDEADLK : -ECANCELED);
  assert_int_equal(n_runs, target->is_dry ? 0 : 2);
  lade_queue_destroy(compute);
  lade_device_close(device);
}

static void the_first_error_sticks_and_counters_advance(void **state)
{
  const struct target *target = *state;
  struct lade_faults faults;
  lade_faults_init(&faults);
  lade_device *device = device_open(state, &faults);
  lade_queue *queue = queue_open(device, LADE_QUEUE_TO_HOST);
  uint64_t source = 7, result[4] = {0}, count = 0;
  lade_faults_arm(&faults, LADE_FAULT_COPY, 2, false, -EIO);
  for (int i = 0; i < 4; i++)
    lade_queue_copy(queue, &(struct lade_copy){&result[i], &source, sizeof(source), 0, NULL}, &count);
  assert_int_equal(count, 4);
  assert_int_equal(lade_queue_sync(queue, 4), -EIO);
  assert_true(lade_queue_poll(queue, 4));
  assert_int_equal(lade_queue_sync(queue, 1), -EIO);
  assert_int_equal(lade_device_status(device), -EIO);
  for (int i = 0; i < 4; i++)
    assert_int_equal(result[i], target->is_dry || i == 1 ? 0 : 7);
  lade_faults_arm(&faults, LADE_FAULT_COPY, 1, false, -ENOSPC);
  lade_queue_copy(queue, &(struct lade_copy){&result[0], &source, sizeof(source), 0, NULL}, &count);
  assert_int_equal(lade_queue_sync(queue, count), -EIO); /* the first one */
  lade_queue_destroy(queue);
  lade_device_close(device);
}

static void a_simulated_clock_knows_deadlocks_and_old_events(void **state)
{
  const struct target *target = *state;
  if (!target->is_dry)
    return;
  lade_device *device = device_open(state, NULL);
  lade_queue *old = queue_open(device, LADE_QUEUE_COMPUTE), *new = queue_open(device, LADE_QUEUE_COMM);
  uint64_t n = (1 << 20) + 1000, count = 0;
  for (uint64_t i = 0; i < n; i++)
    lade_queue_launch(old, &(struct lade_work){NULL, NULL, 2, NULL}, &count);
  struct lade_span span;
  lade_queue_wait(new, old, 2000);
  lade_queue_launch(new, &(struct lade_work){NULL, NULL, 5, &span}, NULL);
  assert_int_equal(span.start_ns, 4000);
  lade_queue_wait(new, old, 0);
  lade_queue_wait(new, old, n);
  lade_queue_launch(new, &(struct lade_work){NULL, NULL, 5, &span}, NULL);
  assert_int_equal(span.start_ns, 2 * (int64_t)n);
  assert_int_equal(lade_device_status(device), 0);
  assert_int_equal(lade_queue_sync(old, n + 1), -EDEADLK);
  lade_queue_destroy(old);
  lade_queue_destroy(new);
  lade_device_close(device);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranges_are_aligned_and_apart),
      cmocka_unit_test(addresses_cost_nothing),
      cmocka_unit_test(senseless_arguments_are_refused_and_change_nothing),
      cmocka_unit_test(opening_wants_complete_params),
      cmocka_unit_test(capacity_is_hard_and_exact),
      cmocka_unit_test(threads_cannot_overshoot_the_capacity_together),
      cmocka_unit_test(peak_is_the_most_that_existed_at_once),
      cmocka_unit_test(chunks_are_real_memory_and_go_back),
      cmocka_unit_test(fresh_chunks_are_zero_and_present),
      cmocka_unit_test(contents_survive_unmap_and_remap),
      cmocka_unit_test(an_access_past_the_mapping_faults),
      cmocka_unit_test(random_mapping_agrees_with_a_model),
      cmocka_unit_test(events_order_work_across_queues),
      cmocka_unit_test(queues_may_go_in_any_order),
      cmocka_unit_test(copies_arrive_whole_and_in_order),
      cmocka_unit_test(copies_keep_the_rate_of_their_link),
      cmocka_unit_test(signals_order_work_and_never_fall),
      cmocka_unit_test(a_full_ring_blocks_the_submitter_and_loses_nothing),
      cmocka_unit_test(destroying_a_queue_runs_what_was_submitted),
      cmocka_unit_test(a_wait_for_what_cannot_come_is_an_error),
      cmocka_unit_test(the_first_error_sticks_and_counters_advance),
      cmocka_unit_test(a_simulated_clock_knows_deadlocks_and_old_events),
  };
  struct target target = {.is_dry = argc > 1 && strcmp(argv[1], "dry") == 0};
  struct CMUnitTest of_target[LADE_COUNT(tests)];
  if (lade_pool_create(2, &target.pool))
    return 1;
  for (size_t i = 0; i < LADE_COUNT(tests); i++) {
    of_target[i] = tests[i];
    of_target[i].initial_state = &target;
  }
  int n_failed = cmocka_run_group_tests(of_target, NULL, NULL);
  lade_pool_destroy(target.pool);
  return n_failed;
}
