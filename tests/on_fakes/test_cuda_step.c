/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller's own step on a CUDA device, over the fake driver: in the caller's context, its ops put on the caller's
 * stream, with storages that move through the host. Drawn graphs give the bits of a plain run, and context and stream
 * are left as they were.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda_driver.h"
#include "tests/support/fakes/fakes.h"
#include "tests/support/graph/random_graph.h"
#include "tests/support/graph/step_ops.h"
#include "tests/support/scratch.h"

#define GRAPHS 16
#define SCALE 1024

static struct fake_driver driver;

/* The caller's context, stream and ops. */
struct step_fixture {
  cuda_context context;
  cuda_stream stream;
  lade_device *device;
  struct step_ops ops;
};

/* An op under way on the stream: the fake's device memory is the process's, so a host function can be its kernel. */
struct kernel {
  struct step_ops *ops;
  struct lade_op_call call;
  void *addresses[192];
};

static void kernel_run(void *args)
{
  struct kernel *kernel = args;
  step_ops_run(kernel->ops, &kernel->call);
  free(kernel);
}

static int op_put(void *user, const struct lade_op_call *call)
{
  struct step_fixture *fixture = user;
  const struct graph_op *op = &fixture->ops.graph->ops.items[call->op];
  struct kernel *kernel = malloc(sizeof(*kernel));
  if (!kernel || call->stream != fixture->stream)
    return -EINVAL;
  kernel->ops = &fixture->ops;
  kernel->call = *call;
  kernel->call.stream = NULL;
  void **next = kernel->addresses;
  kernel->call.reads = memcpy(next, call->reads, (size_t)op->n_reads * sizeof(*next));
  kernel->call.writes = memcpy(next + op->n_reads, call->writes, (size_t)op->n_writes * sizeof(*next));
  kernel->call.updates =
      memcpy(next + op->n_reads + op->n_writes, call->updates, (size_t)op->n_updates * sizeof(*next));
  return driver.host_function(fixture->stream, kernel_run, kernel) ? -EIO : 0;
}

static void fixture_init(struct step_fixture *fixture)
{
  assert_int_equal(driver.set("version=13000,devices=1,memory=256,fail=none,lose=0"), 0);
  assert_int_equal(driver.init(0), 0);
  assert_int_equal(driver.context_create(&fixture->context, 0, 0), 0);
  assert_int_equal(driver.stream_create(&fixture->stream, 0), 0);
  const struct lade_device_params params = {.struct_size = sizeof(params), .context = fixture->context};
  struct lade_error error = {0};
  if (lade_device_open(&params, &error, &fixture->device))
    fail_msg("%s", error.text);
}

static void fixture_finish(struct step_fixture *fixture)
{
  lade_device_close(fixture->device);
  assert_int_equal(driver.live(), 2); /* the caller's context and stream */
  assert_int_equal(driver.stream_destroy(fixture->stream), 0);
  assert_int_equal(driver.context_destroy(fixture->context), 0);
}

static void budget_run(struct step_fixture *fixture, uint64_t budget_bytes, struct lade_step_info *ret_info)
{
  const struct lade_graph_path path = {1e12, 100};
  const struct lade_graph_plan_params search = {
      .struct_size = sizeof(search), .budget_bytes = budget_bytes, .iterations = 2000, .to_host = path,
      .from_host = path, .to_store = path, .from_store = path, .host_budget_bytes = 8 << 20,
      .store_budget_bytes = 8 << 20};
  const struct lade_step_params params = {.struct_size = sizeof(params), .op = op_put, .user = fixture,
                                          .device = fixture->device, .plan = &search, .store = scratch,
                                          .allow_tmpfs = true, .stream = fixture->stream};
  struct lade_error error = {0};
  lade_stepper *stepper = NULL;
  *ret_info = (struct lade_step_info){.struct_size = sizeof(*ret_info)};
  if (lade_step_create(fixture->ops.graph, &params, &error, ret_info, &stepper))
    fail_msg("%s", error.text);
  step_ops_fill(&fixture->ops, stepper);
  for (uint64_t step = 0; step < 2; step++) {
    struct lade_step_measures measures = {.struct_size = sizeof(measures)};
    step_ops_begin(&fixture->ops, step);
    if (lade_step_run(stepper, &measures, &error))
      fail_msg("%s", error.text);
    assert_int_equal(measures.peak_bytes[LADE_DEVICE], ret_info->peak_bytes[LADE_DEVICE]);
    assert_int_equal(measures.moved_bytes, ret_info->moved_bytes);
    assert_int_equal(measures.n_redone, ret_info->n_redone);
    assert_int_equal(atomic_load(&fixture->ops.n_wrong), 0);
    step_ops_reference(&fixture->ops, step);
  }
  step_ops_compare(&fixture->ops, stepper);
  lade_step_destroy(stepper);
}

static void drawn_graphs_give_the_bits_of_a_plain_run(void **state)
{
  int n_moved = 0;
  struct step_fixture fixture = {0};
  fixture_init(&fixture);
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    const struct random_graph_params params = {.seed = seed * 4 + 3, .n_layers = 3 + (int)seed, .has_tiers = true};
    lade_graph *small = random_graph_make(&params), *graph = step_ops_scale(small, SCALE);
    struct lade_step_info info;
    step_ops_init(&fixture.ops, graph);
    for (int i = 0; i < 2; i++) {
      budget_run(&fixture, i ? LADE_GRAPH_BUDGET_MIN : LADE_GRAPH_BUDGET_NONE, &info);
      n_moved += info.moved_bytes > 0;
    }
    step_ops_finish(&fixture.ops);
    lade_graph_destroy(graph);
    lade_graph_destroy(small);
  }
  assert_true(n_moved > GRAPHS / 2);
  fixture_finish(&fixture);
}

/* An event of the queue covers work that the caller itself has put on the adopted stream. */
static void a_callers_stream_is_a_queue(void **state)
{
  struct step_fixture fixture = {0};
  lade_queue *queue = NULL, *other = NULL;
  uint64_t count = 0;
  fixture_init(&fixture);
  assert_int_equal(lade_queue_adopt(fixture.device, LADE_QUEUE_HOST, fixture.stream, &queue), -EINVAL);
  assert_int_equal(lade_queue_adopt(fixture.device, LADE_QUEUE_COMPUTE, NULL, &queue), -EINVAL);
  assert_int_equal(lade_queue_adopt(NULL, LADE_QUEUE_COMPUTE, fixture.stream, &queue), -EINVAL);
  assert_int_equal(lade_queue_adopt(fixture.device, LADE_QUEUE_COMPUTE, fixture.stream, &queue), 0);
  assert_int_equal(lade_queue_record(queue, NULL), -EINVAL);
  assert_int_equal(lade_queue_record(NULL, &count), -EINVAL);
  assert_int_equal(lade_queue_record(queue, &count), 0);
  assert_int_equal(count, 1);
  assert_int_equal(lade_queue_sync(queue, count), 0);
  assert_int_equal(lade_queue_create(fixture.device, LADE_QUEUE_HOST, &other), 0);
  assert_int_equal(lade_queue_record(other, &count), 0);
  assert_int_equal(count, 0); /* nothing was submitted */
  lade_queue_destroy(other);
  lade_queue_destroy(queue);
  fixture_finish(&fixture);
}

static void a_context_is_for_gpus_alone(void **state)
{
  struct lade_device_params params = {.struct_size = sizeof(params), .name = "host", .context = &params};
  struct lade_error error = {0};
  lade_device *device = NULL;
  lade_queue *queue = NULL;
  assert_int_equal(lade_device_open(&params, &error, &device), -EINVAL);
  assert_non_null(strstr(error.text, "works in no CUcontext"));
  params = (struct lade_device_params){.struct_size = sizeof(params), .capacity_bytes = 4 << 20};
  assert_int_equal(lade_device_open(&params, &error, &device), 0);
  assert_int_equal(lade_queue_adopt(device, LADE_QUEUE_COMPUTE, &params, &queue), -EINVAL);
  lade_device_close(device);
}

int main(void)
{
  if (!fake_driver_find(&driver)) {
    printf("SKIP: the fake driver is not on the library path\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(drawn_graphs_give_the_bits_of_a_plain_run),
      cmocka_unit_test(a_callers_stream_is_a_queue),
      cmocka_unit_test(a_context_is_for_gpus_alone),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
