/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every value is verified. Bytes that changed in the store, lie in another value's place or are from an older state are
 * found when they are read. The error names the tensor. A store without enough space is refused before the first step;
 * if io_uring is refused the store works without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/executor/executor_internal.h"
#include "tests/support/run_fixture.h"
#include "tests/support/scratch.h"
#include "tests/support/seccomp.h"

static const char *store_refusal;

static void store_needed(void)
{
  if (!store_refusal)
    return;
  printf("SKIP: %s\n", store_refusal);
  skip();
}

/* Make a plan with all state in the store, and with @has_activations every saved activation as well. */
static struct lade_plan *state_layout(struct run_fixture *run_fixture, enum lade_tier weight_tier, bool has_activations)
{
  struct lade_residency *residency = NULL;
  assert_int_equal(lade_residency_create(run_fixture->graph, &residency), 0);
  for (int i = 0; i < run_fixture->graph->n_params; i++)
    lade_residency_set_tiers(residency, i, weight_tier, LADE_TIER_STORE);
  for (int i = 0; i < run_fixture->graph->n_tensors && has_activations; i++) {
    const struct lade_tensor *tensor = &run_fixture->graph->tensors[i];
    if (tensor->kind == LADE_TENSOR_ACTIVATION && residency->choices[i].saved == LADE_RESIDENCY_KEEP)
      residency->choices[i].saved = LADE_RESIDENCY_STORE;
  }
  return run_fixture_plan(run_fixture, residency);
}

/* Open the store's unnamed file again through the process's own descriptors. It shares the page cache. */
static int store_reopen(void)
{
  char path[64], target[4096];
  for (int fd = 3; fd < 256; fd++) {
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    struct stat status;
    if (n <= 0 || fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_nlink)
      continue;
    assert_int_equal(status.st_mode & 07777, 0600); /* not readable by other users */
    int again = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (again >= 0)
      return again;
  }
  fail_msg("the store's file is not among our descriptors");
  return -1;
}

struct damage_fixture {
  struct run_fixture run_fixture;
  struct lade_plan *plan;
  int fd;
};

static void program_fixture_begin(struct damage_fixture *fixture, enum lade_tier weight_tier, bool has_activations)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct lade_step_result result;
  run_fixture_init(&fixture->run_fixture, &model);
  fixture->plan = state_layout(&fixture->run_fixture, weight_tier, has_activations);
  if (run_fixture_open(&fixture->run_fixture, fixture->plan, &error) ||
      run_fixture_step(&fixture->run_fixture, 0, &result, &error))
    fail_msg("%s", error.text);
  fixture->fd = store_reopen();
}

static void program_fixture_end(struct damage_fixture *fixture)
{
  close(fixture->fd);
  run_fixture_close(&fixture->run_fixture);
  lade_plan_destroy(fixture->plan);
  run_fixture_finish(&fixture->run_fixture);
}

/* Return the file offset of a value that lives across steps. */
static uint64_t value_place(const struct damage_fixture *fixture, int tensor)
{
  const lade_executor *ex = fixture->run_fixture.executor;
  assert_int_equal(fixture->plan->train->buffers[ex->resident[tensor]].space, LADE_STORE);
  return ex->extent.offset + executor_place_stored(ex, tensor);
}

/* Read all blocks of a value; its buffer owns them whole. */
static void *value_read(const struct damage_fixture *fixture, int tensor)
{
  uint64_t bytes = lade_align_up(lade_value_bytes(fixture->run_fixture.graph, tensor), LADE_STORE_BLOCK_BYTES);
  void *data = aligned_alloc(LADE_STORE_BLOCK_BYTES, bytes);
  assert_non_null(data);
  assert_int_equal(pread(fixture->fd, data, bytes, (off_t)value_place(fixture, tensor)), bytes);
  return data;
}

static void value_write(const struct damage_fixture *fixture, int tensor, void *data)
{
  uint64_t bytes = lade_align_up(lade_value_bytes(fixture->run_fixture.graph, tensor), LADE_STORE_BLOCK_BYTES);
  assert_int_equal(pwrite(fixture->fd, data, bytes, (off_t)value_place(fixture, tensor)), bytes);
  free(data);
}

/* Check that the next step ends with @code and one line about @tensor, and so does every later call. */
static void failure_is_named(struct damage_fixture *fixture, int code, int tensor)
{
  char name[LADE_NAME_BYTES + 16];
  struct lade_error error = {0};
  struct lade_step_result result;
  double loss;
  lade_value_name(fixture->run_fixture.graph, tensor, name);
  assert_int_equal(run_fixture_step(&fixture->run_fixture, 1, &result, &error), code);
  assert_int_equal(error.code, code);
  if (!strstr(error.text, name) || strchr(error.text, '\n'))
    fail_msg("not one line that names %s: %s", name, error.text);
  assert_int_equal(run_fixture_eval(&fixture->run_fixture, &loss, &error), code);
  assert_non_null(strstr(error.text, name));
}

static void damage_is_found(struct damage_fixture *fixture, int tensor)
{
  failure_is_named(fixture, -EBADMSG, tensor);
}

static void a_flipped_bit_is_found_and_named(void **state)
{
  store_needed();
  for (int i = 0; i < 3; i++) {
    struct damage_fixture fixture;
    program_fixture_begin(&fixture, LADE_TIER_STORE, false);
    const struct lade_model_graph *graph = fixture.run_fixture.graph;
    int param = 1 + 5 * i;
    enum lade_part part = i == 1 ? LADE_PART_M : LADE_PART_V;
    int tensor = i == 0 ? graph->params[param].tensor : lade_value_part(graph, param, part);
    uint64_t bytes = lade_value_bytes(graph, tensor);
    char *data = value_read(&fixture, tensor);
    data[bytes - 1] ^= 0x10; /* the last byte that the value uses */
    value_write(&fixture, tensor, data);
    damage_is_found(&fixture, tensor);
    program_fixture_end(&fixture);
  }
}

/* Their states are one request; the error names the damaged one, not the first. */
static void damage_among_neighbours_is_named(void **state)
{
  store_needed();
  for (int param = 1; param < 12; param += 3) {
    struct damage_fixture fixture;
    program_fixture_begin(&fixture, LADE_TIER_DEVICE, false);
    const int tensor = lade_value_part(fixture.run_fixture.graph, param, LADE_PART_M);
    char *data = value_read(&fixture, tensor);
    data[0] ^= 0x10;
    value_write(&fixture, tensor, data);
    damage_is_found(&fixture, tensor);
    program_fixture_end(&fixture);
  }
}

/* The same for bytes that the drive does not return: the request for all of them fails. */
static void a_loss_among_neighbours_is_named(void **state)
{
  store_needed();
  for (int param = 1; param < 12; param += 3) {
    struct damage_fixture fixture;
    program_fixture_begin(&fixture, LADE_TIER_DEVICE, false);
    const struct lade_model_graph *graph = fixture.run_fixture.graph;
    const uint64_t first = value_place(&fixture, lade_value_part(graph, param, LADE_PART_RESIDUAL));
    assert_int_equal(ftruncate(fixture.fd, (off_t)first), 0);
    failure_is_named(&fixture, -EIO, lade_value_part(graph, param, LADE_PART_M)); /* for all of the state */
    program_fixture_end(&fixture);
  }
}

static void blocks_that_changed_places_are_found(void **state)
{
  store_needed();
  struct damage_fixture fixture;
  program_fixture_begin(&fixture, LADE_TIER_STORE, false);
  const struct lade_model_graph *graph = fixture.run_fixture.graph;
  int a = graph->params[2].tensor, b = -1;
  for (int i = 3; i < graph->n_params && b < 0; i++)
    b = graph->tensors[graph->params[i].tensor].bytes == graph->tensors[a].bytes ? graph->params[i].tensor : -1;
  assert_true(b >= 0);
  void *data_a = value_read(&fixture, a), *data_b = value_read(&fixture, b);
  value_write(&fixture, b, data_a);
  value_write(&fixture, a, data_b);
  damage_is_found(&fixture, a < b ? a : b);
  program_fixture_end(&fixture);
}

static void the_state_of_an_earlier_step_is_found(void **state)
{
  store_needed();
  struct damage_fixture fixture;
  struct lade_error error = {0};
  struct lade_step_result result;
  program_fixture_begin(&fixture, LADE_TIER_STORE, false);
  int tensor = lade_value_part(fixture.run_fixture.graph, 1, LADE_PART_V);
  void *older = value_read(&fixture, tensor);
  assert_int_equal(run_fixture_step(&fixture.run_fixture, 1, &result, &error), 0);
  value_write(&fixture, tensor, older);
  damage_is_found(&fixture, tensor);
  program_fixture_end(&fixture);
}

static void a_value_that_is_saved_is_checked(void **state)
{
  store_needed();
  struct damage_fixture fixture;
  struct lade_error error = {0};
  char name[LADE_NAME_BYTES + 16];
  program_fixture_begin(&fixture, LADE_TIER_STORE, false);
  int tensor = lade_value_part(fixture.run_fixture.graph, 4, LADE_PART_M);
  uint64_t bytes = lade_value_bytes(fixture.run_fixture.graph, tensor);
  char *data = value_read(&fixture, tensor), *got = malloc(bytes);
  data[0] ^= 1;
  value_write(&fixture, tensor, data);
  assert_int_equal(lade_executor_get(fixture.run_fixture.executor, tensor, 0, got, LADE_MIN(bytes, 1 << 20), &error),
                   -EBADMSG);
  if (!strstr(error.text, lade_value_name(fixture.run_fixture.graph, tensor, name)))
    fail_msg("does not name %s: %s", name, error.text);
  free(got);
  program_fixture_end(&fixture);
}

/* ---- an activation, between its forward and its backward ---- */

static struct damage_fixture *hooked;
static lade_kernel_fn *hooked_kernel;
static bool is_hook_armed;
static int n_flipped;

static void writes_await(void)
{
  struct lade_store_info info, before = {0};
  for (int n_quiet = 0; n_quiet < 4;) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    lade_store_get_info(hooked->run_fixture.store, &info);
    n_quiet = info.written_bytes == before.written_bytes ? n_quiet + 1 : 0;
    before = info;
  }
}

/* At the head's backward, when all saved activations wait in the store, flip a bit of the store outside the state. */
static void hook_run(const struct lade_kernel_ctx *ctx, const void *args)
{
  if (is_hook_armed) {
    const struct lade_program *program = hooked->plan->train;
    is_hook_armed = false;
    writes_await();
    for (int i = 0; i < program->n_buffers; i++) {
      const struct lade_buffer *buffer = &program->buffers[i];
      if (buffer->space != LADE_STORE || buffer->is_resident)
        continue;
      static _Alignas(4096) char block[LADE_STORE_BLOCK_BYTES];
      off_t at = (off_t)(hooked->run_fixture.executor->extent.offset + buffer->offset);
      bool is_read = pread(hooked->fd, block, sizeof(block), at) == sizeof(block);
      block[1] ^= 4;
      n_flipped += is_read && pwrite(hooked->fd, block, sizeof(block), at) == sizeof(block);
    }
  }
  hooked_kernel(ctx, args);
}

static void a_damaged_activation_is_found_and_named(void **state)
{
  store_needed();
  struct damage_fixture fixture;
  struct lade_error error = {0};
  struct lade_step_result result;
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  run_fixture_init(&fixture.run_fixture, &model);
  hooked = &fixture;
  hooked_kernel = fixture.run_fixture.kernels.fn[LADE_K_HEAD_LOSS_BWD];
  fixture.run_fixture.kernels.fn[LADE_K_HEAD_LOSS_BWD] = hook_run;
  is_hook_armed = false;
  fixture.plan = state_layout(&fixture.run_fixture, LADE_TIER_STORE, true);
  if (run_fixture_open(&fixture.run_fixture, fixture.plan, &error) ||
      run_fixture_step(&fixture.run_fixture, 0, &result, &error))
    fail_msg("%s", error.text);
  fixture.fd = store_reopen();
  is_hook_armed = true;
  assert_int_equal(run_fixture_step(&fixture.run_fixture, 1, &result, &error), -EBADMSG);
  assert_true(n_flipped > 0);
  assert_non_null(strstr(error.text, "h."));
  program_fixture_end(&fixture);
}

/* ---- a machine that refuses ---- */

static int child_run(int (*run)(void))
{
  pid_t child = fork();
  int status = 0;
  assert_true(child >= 0);
  if (child == 0)
    _exit(run());
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status))
    fail_msg("the child ended with signal %d", WTERMSIG(status));
  return WEXITSTATUS(status);
}

enum { AS_PROMISED = 40, FORBIDDEN, OTHERWISE };

static int ring_refused_run(void)
{
  static const int calls[] = {SYS_io_uring_setup};
  struct run_fixture_model model = run_fixture_tiny(LADE_LLAMA);
  struct run_fixture_numbers with, without;
  struct lade_error error = {0};
  struct run_fixture run_fixture;
  run_fixture_init(&run_fixture, &model);
  struct lade_plan *plan = state_layout(&run_fixture, LADE_TIER_STORE, true);
  if (run_fixture_open(&run_fixture, plan, &error) || run_fixture_run(&run_fixture, 2, &with, &error))
    return OTHERWISE;
  run_fixture_close(&run_fixture);
  if (!seccomp_refuse(calls, 1, EPERM))
    return FORBIDDEN;
  if (run_fixture_open(&run_fixture, plan, &error) || run_fixture_run(&run_fixture, 2, &without, &error))
    return OTHERWISE;
  bool is_said = strstr(lade_store_note(run_fixture.store), "io_uring") != NULL;
  run_fixture_close(&run_fixture);
  return is_said && memcmp(&with, &without, sizeof(with)) == 0 ? AS_PROMISED : OTHERWISE;
}

static void without_io_uring_the_numbers_are_the_same(void **state)
{
  store_needed();
  int code = child_run(ring_refused_run);
  if (code == FORBIDDEN) {
    printf("SKIP: io_uring refused: seccomp is forbidden here\n");
    skip();
  }
  assert_int_equal(code, AS_PROMISED);
}

static int full_disk_run(void)
{
  struct run_fixture_model model = run_fixture_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct run_fixture run_fixture;
  if (!scratch_disk_mount(run_fixture_directory(), "1m"))
    return FORBIDDEN;
  run_fixture_init(&run_fixture, &model);
  run_fixture.store_dir = run_fixture_directory();
  run_fixture.allow_tmpfs = true;
  struct lade_plan *plan = state_layout(&run_fixture, LADE_TIER_STORE, true);
  int status = run_fixture_open(&run_fixture, plan, &error);
  run_fixture_close(&run_fixture);
  if (status != -ENOSPC || !strstr(error.text, run_fixture.store_dir) || !strstr(error.text, "need")) {
    fprintf(stderr, "%d: %s\n", status, error.text);
    return OTHERWISE;
  }
  return AS_PROMISED;
}

static void a_full_disk_is_refused_at_the_start(void **state)
{
  assert_non_null(run_fixture_directory());
  int code = child_run(full_disk_run);
  if (code == FORBIDDEN) {
    printf("SKIP: a full disk: mount namespaces are forbidden here\n");
    skip();
  }
  assert_int_equal(code, AS_PROMISED);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_io_uring_the_numbers_are_the_same),
      cmocka_unit_test(a_full_disk_is_refused_at_the_start),
      cmocka_unit_test(a_flipped_bit_is_found_and_named),
      cmocka_unit_test(damage_among_neighbours_is_named),
      cmocka_unit_test(a_loss_among_neighbours_is_named),
      cmocka_unit_test(blocks_that_changed_places_are_found),
      cmocka_unit_test(the_state_of_an_earlier_step_is_found),
      cmocka_unit_test(a_value_that_is_saved_is_checked),
      cmocka_unit_test(a_damaged_activation_is_found_and_named),
  };
  store_refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
