/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device contract's queues, events and copies, over every device. Simulated links are throttled. Work runs and
 * takes real time only if the device is not dry; then only lower bounds are asserted. A simulated clock is asserted
 * exactly.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/philox.h"
#include "device_target.h"

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

/* Read values written on other queues, without atomics: a missing order is a wrong value, and a race for TSan. */
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

/*
 * Check that a node starts after all its dependencies; on a simulated clock exactly then, and for the predicted time.
 */
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

/* Queues close while others still have waits for their last events in their rings. */
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
    if (!target->is_cuda) {
      assert_true(up.end_ns - before_ns >= (int64_t)(sizes[i] + link_to_device.latency_ns)); /* 1 GB/s */
      assert_true(down.end_ns - up.end_ns >= (int64_t)(sizes[i] / 2 + link_to_host.latency_ns));
    }
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

/* Many small copies are never faster than the link, and each copy of a dry device takes exactly its price. */
static void copies_keep_the_rate_of_their_link(void **state)
{
  const struct target *target = *state;
  if (target->is_cuda)
    return;
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

/* More work is submitted than any ring holds, while the first piece waits. */
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

static void nap(void *args)
{
  usleep(50);
}

/* A waiter for the last of many pieces of work sleeps once, not once for each of them. */
static void a_waiter_is_woken_once_for_its_event(void **state)
{
  const struct target *target = *state;
  if (target->is_dry || target->is_cuda)
    return;
  lade_device *device = device_open(state, NULL);
  lade_queue *queue = queue_open(device, LADE_QUEUE_COMPUTE);
  uint64_t count = 0;
  for (int i = 0; i < 1000; i++)
    lade_queue_launch(queue, &(struct lade_work){nap, NULL, 1, NULL}, &count);
  struct rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  getrusage(RUSAGE_THREAD, &after);
  assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, 20);
  lade_queue_destroy(queue);
  lade_device_close(device);
}

static void destroying_a_queue_runs_submitted_work(void **state)
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

static void a_wait_for_an_impossible_event_is_an_error(void **state)
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

static void submitted_work_is_known_to_any_thread(void **state)
{
  lade_device *device = device_open(state, NULL);
  lade_queue *queue = queue_open(device, LADE_QUEUE_COMPUTE), *signal = queue_open(device, LADE_QUEUE_SIGNAL);
  assert_int_equal(lade_queue_submitted(queue), 0);
  uint64_t count = 0;
  for (int i = 0; i < 3; i++) {
    lade_queue_copy(queue, &(struct lade_copy){.bytes = 0}, &count);
    assert_int_equal(lade_queue_submitted(queue), count);
  }
  lade_queue_signal(signal, 7);
  lade_queue_wait(queue, signal, 7); /* not counted as work */
  assert_int_equal(lade_queue_submitted(queue), count);
  assert_int_equal(lade_queue_submitted(signal), 7);
  lade_queue_destroy(queue);
  lade_queue_destroy(signal);
  lade_device_close(device);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(events_order_work_across_queues),
      cmocka_unit_test(queues_may_go_in_any_order),
      cmocka_unit_test(copies_arrive_whole_and_in_order),
      cmocka_unit_test(copies_keep_the_rate_of_their_link),
      cmocka_unit_test(signals_order_work_and_never_fall),
      cmocka_unit_test(a_full_ring_blocks_the_submitter_and_loses_nothing),
      cmocka_unit_test(a_waiter_is_woken_once_for_its_event),
      cmocka_unit_test(destroying_a_queue_runs_submitted_work),
      cmocka_unit_test(a_wait_for_an_impossible_event_is_an_error),
      cmocka_unit_test(the_first_error_sticks_and_counters_advance),
      cmocka_unit_test(a_simulated_clock_knows_deadlocks_and_old_events),
      cmocka_unit_test(submitted_work_is_known_to_any_thread),
  };
  return target_run(argc, argv, tests, LADE_COUNT(tests));
}
