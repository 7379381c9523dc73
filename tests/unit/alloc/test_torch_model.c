/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of PyTorch's allocator, rule by rule: the bytes that it reserves for calls whose outcome the rules fix.
 * Further the recorded bytes of real snapshots, and invariants of any allocator under random calls, on a full device
 * and a full heap.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "alloc/torch_model.h"
#include "alloc/trace.h"
#include "base/base.h"
#include "base/philox.h"
#include "tests/support/heap/allocations.h"

#define MIB ((uint64_t)1 << 20)

/* ---- rules ---- */

static struct torch_model *model_open(bool is_expandable, uint64_t total_bytes)
{
  struct torch_model *model = NULL;
  assert_int_equal(torch_model_create(is_expandable, total_bytes, &model), 0);
  assert_int_equal(torch_model_reserved_bytes(model), 0);
  return model;
}

static uint64_t must_alloc(struct torch_model *model, uint64_t bytes, int stream)
{
  uint64_t address = 0;
  assert_int_equal(torch_model_alloc(model, bytes, stream, &address), 0);
  assert_int_not_equal(address, 0);
  return address;
}

static void must_free(struct torch_model *model, uint64_t address)
{
  assert_int_equal(torch_model_free(model, address), 0);
}

static void small_requests_share_2_mib_in_units_of_512_bytes(void **state)
{
  struct torch_model *model = model_open(false, 0);
  uint64_t first = must_alloc(model, 1, 0);
  for (uint64_t i = 1; i < 4096; i++)
    assert_int_equal(must_alloc(model, 1 + i % 512, 0), first + i * 512);
  assert_int_equal(torch_model_reserved_bytes(model), 2 * MIB);
  must_alloc(model, 1, 0);
  assert_int_equal(torch_model_reserved_bytes(model), 4 * MIB);
  torch_model_destroy(model);
}

static void a_segment_is_as_large_as_its_first_request_says(void **state)
{
  static const struct {
    uint64_t bytes, reserved_bytes;
  } cases[] = {{1, 2 * MIB}, {MIB, 2 * MIB}, {MIB + 1, 20 * MIB}, {10 * MIB - 512, 20 * MIB},
               {10 * MIB - 511, 10 * MIB}, {10 * MIB, 10 * MIB}, {10 * MIB + 1, 12 * MIB},
               {33 * MIB, 34 * MIB}, {1024 * MIB, 1024 * MIB}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct torch_model *model = model_open(false, 0);
    must_free(model, must_alloc(model, cases[i].bytes, 0));
    /* a free returns no memory to the device */
    assert_int_equal(torch_model_reserved_bytes(model), cases[i].reserved_bytes);
    torch_model_destroy(model);
  }
}

/* The large pool leaves a rest of up to 1 MiB in the block; expandable segments cut it off. */
static void a_large_rest_is_cut_off_past_1_mib(void **state)
{
  static const struct {
    bool is_expandable;
    uint64_t bytes, rest_bytes, reserved_bytes;
  } cases[] = {{false, 19 * MIB, MIB, 40 * MIB}, {false, 19 * MIB - 512, MIB + 512, 20 * MIB},
               {true, 19 * MIB - 512, MIB + 512, 20 * MIB}, {true, 18 * MIB, 2 * MIB, 20 * MIB}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct torch_model *model = model_open(cases[i].is_expandable, 0);
    must_free(model, must_alloc(model, 2 * MIB, 0));
    assert_int_equal(torch_model_reserved_bytes(model), 20 * MIB);
    must_alloc(model, cases[i].bytes, 0);
    must_alloc(model, LADE_MAX(cases[i].rest_bytes, MIB + 512), 0);
    assert_int_equal(torch_model_reserved_bytes(model), cases[i].reserved_bytes);
    torch_model_destroy(model);
  }
}

static void the_smallest_block_that_fits_serves_and_the_lowest_of_equals(void **state)
{
  struct torch_model *model = model_open(false, 0);
  uint64_t large = must_alloc(model, 30 * MIB, 0), low = must_alloc(model, 20 * MIB, 0);
  uint64_t high = must_alloc(model, 20 * MIB, 0);
  assert_true(low < high);
  must_free(model, large);
  must_free(model, high);
  must_free(model, low);
  assert_int_equal(must_alloc(model, 20 * MIB - 512, 0), low);
  assert_int_equal(must_alloc(model, 20 * MIB - 512, 0), high);
  assert_int_equal(must_alloc(model, 20 * MIB - 512, 0), large);
  assert_int_equal(torch_model_reserved_bytes(model), 70 * MIB);
  torch_model_destroy(model);
}

static void freed_neighbours_join_inside_their_segment(void **state)
{
  struct torch_model *model = model_open(false, 0);
  uint64_t blocks[4];
  for (int i = 0; i < 4; i++)
    blocks[i] = must_alloc(model, MIB / 2, 0);
  assert_int_equal(blocks[3], blocks[0] + 3 * MIB / 2);
  for (int i = 0; i < 4; i++) /* from both sides */
    must_free(model, blocks[i == 1 ? 2 : i == 2 ? 1 : i]);
  assert_int_equal(must_alloc(model, MIB, 0), blocks[0]);
  assert_int_equal(must_alloc(model, MIB, 0), blocks[2]);
  must_alloc(model, 512, 0); /* no block spans two segments */
  assert_int_equal(torch_model_reserved_bytes(model), 4 * MIB);
  torch_model_destroy(model);
}

static void a_stream_gets_nothing_that_another_freed(void **state)
{
  for (int is_expandable = 0; is_expandable < 2; is_expandable++) {
    struct torch_model *model = model_open(is_expandable, 0);
    must_free(model, must_alloc(model, 20 * MIB, 7));
    must_alloc(model, 20 * MIB, 3);
    assert_int_equal(torch_model_reserved_bytes(model), 40 * MIB);
    must_alloc(model, 20 * MIB, 7);
    assert_int_equal(torch_model_reserved_bytes(model), 40 * MIB);
    torch_model_destroy(model);
  }
}

static void a_full_device_gets_whole_segments_back_and_is_asked_again(void **state)
{
  struct torch_model *model = model_open(false, 64 * MIB);
  uint64_t other = must_alloc(model, 20 * MIB, 1), cut = must_alloc(model, 4 * MIB, 0), none = 0;
  uint64_t small = must_alloc(model, 512, 0);
  must_free(model, other);
  must_free(model, small);
  assert_int_equal(torch_model_reserved_bytes(model), 42 * MIB);
  must_alloc(model, 44 * MIB, 0); /* the other stream's and the small segment go; the segment of the live block stays */
  assert_int_equal(torch_model_reserved_bytes(model), 64 * MIB);
  assert_int_equal(torch_model_alloc(model, 17 * MIB, 0, &none), -ENOMEM);
  assert_int_equal(none, 0);
  must_alloc(model, 16 * MIB, 0); /* the rest of the segment */
  must_free(model, cut);
  assert_int_equal(torch_model_alloc(model, 65 * MIB, 0, &none), -ENOMEM);
  assert_int_equal(torch_model_peak_reserved_bytes(model), 64 * MIB);
  torch_model_destroy(model);
}

static void expandable_segments_grow_by_pages_after_free_ones(void **state)
{
  struct torch_model *model = model_open(true, 0);
  uint64_t first = must_alloc(model, 21 * MIB, 0);
  assert_int_equal(torch_model_reserved_bytes(model), 40 * MIB);
  uint64_t second = must_alloc(model, 30 * MIB, 0); /* 19 MiB are free, 11 are missing: one page */
  assert_int_equal(second, first + 21 * MIB);
  assert_int_equal(torch_model_reserved_bytes(model), 60 * MIB);
  uint64_t small = must_alloc(model, MIB, 0);
  assert_int_equal(must_alloc(model, MIB, 0), small + MIB);
  assert_int_equal(torch_model_reserved_bytes(model), 62 * MIB);
  must_alloc(model, 512, 0);
  assert_int_equal(torch_model_reserved_bytes(model), 64 * MIB);
  torch_model_destroy(model);
}

/* Of two free blocks that fit, the one that cannot grow is taken, though it is larger. */
static void a_block_that_can_grow_is_taken_late(void **state)
{
  struct torch_model *model = model_open(true, 0);
  uint64_t first = must_alloc(model, 30 * MIB, 0);
  uint64_t second = must_alloc(model, 5 * MIB, 0); /* leaves 5 MiB before the unmapped part */
  assert_int_equal(torch_model_reserved_bytes(model), 40 * MIB);
  must_free(model, first);
  assert_int_equal(must_alloc(model, 4 * MIB, 0), first);
  assert_int_equal(must_alloc(model, 27 * MIB, 0), second + 5 * MIB); /* 5 MiB, and then the mapped part after them */
  torch_model_destroy(model);
}

static void a_full_device_gets_whole_pages_back_and_holes_are_filled_first(void **state)
{
  struct torch_model *model = model_open(true, 100 * MIB);
  uint64_t a = must_alloc(model, 10 * MIB, 0), b = must_alloc(model, 70 * MIB, 0), none = 0;
  must_alloc(model, 20 * MIB, 0);
  assert_int_equal(torch_model_reserved_bytes(model), 100 * MIB);
  must_free(model, b);
  must_alloc(model, 40 * MIB, 1); /* three of b's pages are whole */
  assert_int_equal(torch_model_reserved_bytes(model), 80 * MIB);
  assert_int_equal(must_alloc(model, 10 * MIB, 0), a + 10 * MIB); /* the part of a's page that stayed */
  assert_int_equal(must_alloc(model, 11 * MIB, 0), a + 20 * MIB); /* mapped in the hole, not at the end */
  assert_int_equal(torch_model_reserved_bytes(model), 100 * MIB);
  assert_int_equal(torch_model_alloc(model, 11 * MIB, 0, &none), -ENOMEM);
  assert_int_equal(must_alloc(model, 9 * MIB, 0), a + 31 * MIB);
  assert_int_equal(torch_model_peak_reserved_bytes(model), 100 * MIB);
  torch_model_destroy(model);
}

static void blocks_that_are_not_live_cannot_be_freed(void **state)
{
  struct torch_model *model = model_open(false, 0);
  uint64_t address = 77;
  assert_int_equal(torch_model_free(model, 512), -EINVAL);
  assert_int_equal(torch_model_alloc(model, 0, 0, &address), -EINVAL);
  assert_int_equal(torch_model_alloc(model, UINT64_MAX, 0, &address), -ENOMEM);
  assert_int_equal(address, 77);
  address = must_alloc(model, 1024, 0);
  assert_int_equal(torch_model_free(model, address + 512), -EINVAL);
  must_free(model, address);
  assert_int_equal(torch_model_free(model, address), -EINVAL);
  torch_model_destroy(model);
  torch_model_destroy(NULL);
}

/* ---- random calls ---- */

enum { N_LIVE = 200, N_CALLS = 6000 };

struct live {
  uint64_t address, bytes;
};

static void must_be_disjoint(const struct live *live, uint64_t address, uint64_t bytes)
{
  for (int i = 0; i < N_LIVE; i++)
    assert_true(!live[i].bytes || address >= live[i].address + live[i].bytes || live[i].address >= address + bytes);
}

/* Make random calls; with @is_heap_failing the heap refuses one of four. Return the number of refused allocations. */
static int calls_make(struct torch_model *model, uint64_t total_bytes, uint64_t seed, bool is_heap_failing)
{
  struct live live[N_LIVE] = {0};
  uint64_t live_bytes = 0;
  int n_refused = 0;
  for (uint32_t i = 0; i < N_CALLS; i++) {
    struct lade_philox draw = lade_philox_draw(seed, 0, 0, i);
    struct live *slot = &live[draw.word[0] % N_LIVE];
    uint64_t bytes = ((uint64_t)512 << draw.word[1] % 16) + draw.word[2] % 65536;
    if (slot->bytes) {
      must_free(model, slot->address);
      live_bytes -= slot->bytes;
      slot->bytes = 0;
    } else {
      bool is_full = is_heap_failing && draw.word[3] % 4 == 0;
      allocations_left = is_full ? 1 + (int)(draw.word[2] % 2) : -1;
      int error = torch_model_alloc(model, bytes, (int)(draw.word[3] / 4 % 3), &slot->address);
      allocations_left = -1;
      n_refused += error != 0;
      if (error) {
        assert_int_equal(error, -ENOMEM);
        continue;
      }
      must_be_disjoint(live, slot->address, bytes);
      slot->bytes = bytes;
      live_bytes += bytes;
    }
    assert_true(live_bytes <= torch_model_reserved_bytes(model) && torch_model_reserved_bytes(model) <= total_bytes);
  }
  for (int i = 0; i < N_LIVE; i++)
    if (live[i].bytes)
      must_free(model, live[i].address);
  return n_refused;
}

/* Check that blocks never overlap, the limit holds, and one block of the whole device fits after all are freed. */
static void random_calls_lose_no_byte(void **state)
{
  for (uint64_t seed = 1; seed <= 6; seed++) {
    bool is_expandable = seed % 2;
    uint64_t total_bytes = (seed <= 2 ? 4000 : 200) * MIB;
    struct torch_model *model = model_open(is_expandable, total_bytes);
    int n_refused = calls_make(model, total_bytes, seed, false);
    assert_true(seed <= 2 ? n_refused == 0 : n_refused > 0);
    must_alloc(model, total_bytes, 9);
    assert_int_equal(torch_model_reserved_bytes(model), total_bytes);
    torch_model_destroy(model);
  }
}

static void a_full_heap_loses_no_byte_either(void **state)
{
  for (uint64_t seed = 1; seed <= 4; seed++) {
    struct torch_model *model = model_open(seed % 2, 200 * MIB);
    calls_make(model, 200 * MIB, seed, true);
    must_alloc(model, 200 * MIB, 9);
    torch_model_destroy(model);
  }
  struct torch_model *model = NULL;
  allocations_left = 1;
  assert_int_equal(torch_model_create(false, 0, &model), -ENOMEM);
  assert_null(model);
  allocations_left = -1;
}

/* ---- bytes that PyTorch reserved ---- */

/* Return the model's peak of reserved bytes, with the snapshot's calls made one by one. */
static uint64_t trace_play(const struct lade_trace *trace)
{
  struct torch_model *model = model_open(false, 0);
  uint64_t *addresses = calloc((size_t)trace->blocks.n, sizeof(*addresses));
  assert_non_null(addresses);
  for (int i = 0; i < trace->events.n; i++) {
    const struct lade_trace_event *event = &trace->events.items[i];
    const struct lade_trace_block *block = &trace->blocks.items[event->block];
    if (event->is_free)
      must_free(model, addresses[event->block]);
    else
      addresses[event->block] = must_alloc(model, block->bytes, block->queue);
  }
  uint64_t reserved_bytes = torch_model_peak_reserved_bytes(model);
  free(addresses);
  torch_model_destroy(model);
  return reserved_bytes;
}

/*
 * Blocks live at the begin of the history are allocated by address, because their order is unknown. The remaining
 * difference comes from them.
 */
static void snapshots_reserve_pytorchs_bytes_within_0_6_points(void **state)
{
  static const char *const names[] = {"medium_256_training", "medium_512_inference"};
  const char *root = getenv("LADE_SHARED");
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    char path[512];
    struct lade_trace trace = {0};
    struct lade_error error = {0};
    snprintf(path, sizeof(path), "%s/snapshots/%s.pickle", root ? root : LADE_SOURCE_ROOT "/../shared/data", names[i]);
    if (access(path, R_OK))
      skip();
    assert_int_equal(lade_trace_load(path, &error, &trace), 0);
    assert_true(trace.has_recorded && trace.peak_live_bytes > 0);
    double points = ((double)trace_play(&trace) - (double)trace.recorded_reserved_bytes) * 100;
    points /= (double)trace.peak_live_bytes;
    if (points < -0.6 || points > 0.6)
      fail_msg("%s: %.2f points from what PyTorch reserved", names[i], points);
    lade_trace_destroy(&trace);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_requests_share_2_mib_in_units_of_512_bytes),
      cmocka_unit_test(a_segment_is_as_large_as_its_first_request_says),
      cmocka_unit_test(a_large_rest_is_cut_off_past_1_mib),
      cmocka_unit_test(the_smallest_block_that_fits_serves_and_the_lowest_of_equals),
      cmocka_unit_test(freed_neighbours_join_inside_their_segment),
      cmocka_unit_test(a_stream_gets_nothing_that_another_freed),
      cmocka_unit_test(a_full_device_gets_whole_segments_back_and_is_asked_again),
      cmocka_unit_test(expandable_segments_grow_by_pages_after_free_ones),
      cmocka_unit_test(a_block_that_can_grow_is_taken_late),
      cmocka_unit_test(a_full_device_gets_whole_pages_back_and_holes_are_filled_first),
      cmocka_unit_test(blocks_that_are_not_live_cannot_be_freed),
      cmocka_unit_test(snapshots_reserve_pytorchs_bytes_within_0_6_points),
      cmocka_unit_test(random_calls_lose_no_byte),
      cmocka_unit_test(a_full_heap_loses_no_byte_either),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
