/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver's own promises, through driver calls alone. Tests of the library rely on them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda_driver.h"
#include "tests/support/fakes/fakes.h"

#define CHUNK ((uint64_t)2 << 20)

static struct fake_driver fake;

static atomic_bool slow_has_begun, slow_has_ended;

static void slow_kernel(void *args)
{
  slow_has_begun = true;
  usleep(50000);
  slow_has_ended = true;
}

/* Break the current context by a write to @unmapped on @stream. Waits for no work. @event: any of the context. */
static void context_break(cuda_address unmapped, cuda_stream stream, cuda_event event)
{
  cuda_result result = 0;
  assert_int_equal(fake.memory_set(unmapped, 0, 1, stream), 0);
  while (!result || result == CUDA_NOT_READY) {
    usleep(100);
    result = fake.event_query(event);
  }
}

/* Each kind of wait in a broken context ends after the kernel that was running: the caller then unmaps its memory. */
static void a_broken_context_ends_waiting_after_its_kernels(void **state)
{
  assert_int_equal(fake.init(0), 0);
  for (int waits_for_event = 0; waits_for_event < 2; waits_for_event++) {
    cuda_context context;
    cuda_stream slow, other;
    cuda_event event;
    cuda_address unmapped;
    assert_int_equal(fake.context_create(&context, 0, 0) + fake.range_reserve(&unmapped, CHUNK, 0, 0, 0), 0);
    assert_int_equal(fake.stream_create(&slow, 0) + fake.stream_create(&other, 0) + fake.event_create(&event, 0), 0);
    slow_has_begun = slow_has_ended = false;
    fake.put_kernel(slow, slow_kernel, NULL);
    assert_int_equal(fake.event_record(event, slow), 0);
    while (!slow_has_begun)
      usleep(100);
    context_break(unmapped, other, event);
    assert_int_not_equal(waits_for_event ? fake.event_wait(event) : fake.stream_wait(slow), 0);
    assert_true(slow_has_ended);
    fake.event_destroy(event);
    fake.stream_destroy(slow);
    fake.stream_destroy(other);
    fake.range_free(unmapped, CHUNK);
    fake.context_destroy(context);
    assert_int_equal(fake.live(), 0);
  }
}

int main(void)
{
  if (!fake_driver_find(&fake)) {
    printf("SKIP: the fake driver is not on the library path\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_broken_context_ends_waiting_after_its_kernels)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
