/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing is believed: bytes that changed in the store, stand in another's place or are an older state's are
 * found when they are read back, and the error names the tensor. A store that has no room is refused before
 * the first step; an io_uring that is refused is done without.
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
#include "run/executor_internal.h"
#include "tests/support/rig.h"
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

/* All state in the store, and every saved activation as well. */
static struct lade_plan *plan_stored(struct rig *rig, enum lade_home weight_home, bool has_activations)
{
  struct lade_residency *residency = NULL;
  assert_int_equal(lade_residency_create(rig->graph, &residency), 0);
  for (int i = 0; i < rig->graph->n_params; i++)
    lade_residency_set_homes(residency, i, weight_home, LADE_HOME_STORE);
  for (int i = 0; i < rig->graph->n_tensors && has_activations; i++) {
    const struct lade_tensor *tensor = &rig->graph->tensors[i];
    if (tensor->kind == LADE_TENSOR_ACTIVATION && residency->choices[i].saved == LADE_WAIT_KEEP)
      residency->choices[i].saved = LADE_WAIT_STORE;
  }
  return rig_plan(rig, residency);
}

/* The store's unnamed file, through the process's own descriptors, with the page cache of its own. */
static int store_reopen(void)
{
  char path[64], target[4096];
  for (int fd = 3; fd < 256; fd++) {
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    struct stat what;
    if (n <= 0 || fstat(fd, &what) || !S_ISREG(what.st_mode) || what.st_nlink)
      continue;
    assert_int_equal(what.st_mode & 07777, 0600); /* nobody else's to read */
    int again = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (again >= 0)
      return again;
  }
  fail_msg("the store's file is not among our descriptors");
  return -1;
}

struct scene {
  struct rig rig;
  struct lade_plan *plan;
  int fd;
};

static void scene_begin(struct scene *scene, enum lade_home weight_home, bool has_activations)
{
  struct rig_model model = rig_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct lade_step_result result;
  rig_init(&scene->rig, &model);
  scene->plan = plan_stored(&scene->rig, weight_home, has_activations);
  if (rig_open(&scene->rig, scene->plan, &error) || rig_step(&scene->rig, 0, &result, &error))
    fail_msg("%s", error.text);
  scene->fd = store_reopen();
}

static void scene_end(struct scene *scene)
{
  close(scene->fd);
  rig_close(&scene->rig);
  lade_plan_destroy(scene->plan);
  rig_finish(&scene->rig);
}

/* Where a value that lives across steps is in the file. */
static uint64_t value_place(const struct scene *scene, int tensor)
{
  const lade_executor *ex = scene->rig.executor;
  assert_int_equal(scene->plan->train->buffers[ex->resident[tensor]].space, LADE_STORE);
  return ex->extent.offset + executor_place_stored(ex, tensor);
}

/* All blocks of a value; its buffer owns them whole. */
static void *value_read(const struct scene *scene, int tensor)
{
  uint64_t bytes = lade_align_up(lade_value_bytes(scene->rig.graph, tensor), LADE_STORE_BLOCK_BYTES);
  void *data = aligned_alloc(LADE_STORE_BLOCK_BYTES, bytes);
  assert_non_null(data);
  assert_int_equal(pread(scene->fd, data, bytes, (off_t)value_place(scene, tensor)), bytes);
  return data;
}

static void value_write(const struct scene *scene, int tensor, void *data)
{
  uint64_t bytes = lade_align_up(lade_value_bytes(scene->rig.graph, tensor), LADE_STORE_BLOCK_BYTES);
  assert_int_equal(pwrite(scene->fd, data, bytes, (off_t)value_place(scene, tensor)), bytes);
  free(data);
}

/* The next step ends with @code and one line about @tensor, and so does every call after it. */
static void failure_is_named(struct scene *scene, int code, int tensor)
{
  char name[LADE_NAME_BYTES + 16];
  struct lade_error error = {0};
  struct lade_step_result result;
  double loss;
  lade_value_name(scene->rig.graph, tensor, name);
  assert_int_equal(rig_step(&scene->rig, 1, &result, &error), code);
  assert_int_equal(error.code, code);
  if (!strstr(error.text, name) || strchr(error.text, '\n'))
    fail_msg("not one line that names %s: %s", name, error.text);
  assert_int_equal(rig_eval(&scene->rig, &loss, &error), code);
  assert_non_null(strstr(error.text, name));
}

static void damage_is_found(struct scene *scene, int tensor)
{
  failure_is_named(scene, -EBADMSG, tensor);
}

static void a_flipped_bit_is_found_and_named(void **state)
{
  store_needed();
  for (int i = 0; i < 3; i++) {
    struct scene scene;
    scene_begin(&scene, LADE_HOME_STORE, false);
    const struct lade_graph *graph = scene.rig.graph;
    int param = 1 + 5 * i;
    enum lade_part part = i == 1 ? LADE_PART_M : LADE_PART_V;
    int tensor = i == 0 ? graph->params[param].tensor : lade_value_part(graph, param, part);
    uint64_t bytes = lade_value_bytes(graph, tensor);
    char *data = value_read(&scene, tensor);
    data[bytes - 1] ^= 0x10; /* the last one that counts */
    value_write(&scene, tensor, data);
    damage_is_found(&scene, tensor);
    scene_end(&scene);
  }
}

/* Their states are one request; the name is of the one that is damaged, not of the first. */
static void damage_among_neighbours_is_named(void **state)
{
  store_needed();
  for (int param = 1; param < 12; param += 3) {
    struct scene scene;
    scene_begin(&scene, LADE_HOME_DEVICE, false);
    const int tensor = lade_value_part(scene.rig.graph, param, LADE_PART_M);
    char *data = value_read(&scene, tensor);
    data[0] ^= 0x10;
    value_write(&scene, tensor, data);
    damage_is_found(&scene, tensor);
    scene_end(&scene);
  }
}

/* The same of bytes that the drive does not give back at all: the request of all of them fails. */
static void a_loss_among_neighbours_is_named(void **state)
{
  store_needed();
  for (int param = 1; param < 12; param += 3) {
    struct scene scene;
    scene_begin(&scene, LADE_HOME_DEVICE, false);
    const struct lade_graph *graph = scene.rig.graph;
    const uint64_t first = value_place(&scene, lade_value_part(graph, param, LADE_PART_RESIDUAL));
    assert_int_equal(ftruncate(scene.fd, (off_t)first), 0);
    failure_is_named(&scene, -EIO, lade_value_part(graph, param, LADE_PART_M)); /* for all of the state */
    scene_end(&scene);
  }
}

static void blocks_that_changed_places_are_found(void **state)
{
  store_needed();
  struct scene scene;
  scene_begin(&scene, LADE_HOME_STORE, false);
  const struct lade_graph *graph = scene.rig.graph;
  int a = graph->params[2].tensor, b = -1;
  for (int i = 3; i < graph->n_params && b < 0; i++)
    b = graph->tensors[graph->params[i].tensor].bytes == graph->tensors[a].bytes ? graph->params[i].tensor : -1;
  assert_true(b >= 0);
  void *data_a = value_read(&scene, a), *data_b = value_read(&scene, b);
  value_write(&scene, b, data_a);
  value_write(&scene, a, data_b);
  damage_is_found(&scene, a < b ? a : b);
  scene_end(&scene);
}

static void the_state_of_an_earlier_step_is_found(void **state)
{
  store_needed();
  struct scene scene;
  struct lade_error error = {0};
  struct lade_step_result result;
  scene_begin(&scene, LADE_HOME_STORE, false);
  int tensor = lade_value_part(scene.rig.graph, 1, LADE_PART_V);
  void *older = value_read(&scene, tensor);
  assert_int_equal(rig_step(&scene.rig, 1, &result, &error), 0);
  value_write(&scene, tensor, older);
  damage_is_found(&scene, tensor);
  scene_end(&scene);
}

static void a_value_that_is_saved_is_checked(void **state)
{
  store_needed();
  struct scene scene;
  struct lade_error error = {0};
  char name[LADE_NAME_BYTES + 16];
  scene_begin(&scene, LADE_HOME_STORE, false);
  int tensor = lade_value_part(scene.rig.graph, 4, LADE_PART_M);
  uint64_t bytes = lade_value_bytes(scene.rig.graph, tensor);
  char *data = value_read(&scene, tensor), *got = malloc(bytes);
  data[0] ^= 1;
  value_write(&scene, tensor, data);
  assert_int_equal(lade_executor_get(scene.rig.executor, tensor, 0, got, LADE_MIN(bytes, 1 << 20), &error), -EBADMSG);
  if (!strstr(error.text, lade_value_name(scene.rig.graph, tensor, name)))
    fail_msg("does not name %s: %s", name, error.text);
  free(got);
  scene_end(&scene);
}

/* ---- an activation, between its forward and its backward ---- */

static struct scene *hooked;
static lade_kernel_fn *hooked_kernel;
static bool is_hook_armed;
static int n_flipped;

static void writes_await(void)
{
  struct lade_store_info info, before = {0};
  for (int n_quiet = 0; n_quiet < 4;) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    lade_store_get_info(hooked->rig.store, &info);
    n_quiet = info.written_bytes == before.written_bytes ? n_quiet + 1 : 0;
    before = info;
  }
}

/* Flip a bit of whatever lies in the store and is no state: at the head's backward all of it waits to be read. */
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
      off_t at = (off_t)(hooked->rig.executor->extent.offset + buffer->offset);
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
  struct scene scene;
  struct lade_error error = {0};
  struct lade_step_result result;
  struct rig_model model = rig_tiny(LADE_GPT2);
  rig_init(&scene.rig, &model);
  hooked = &scene;
  hooked_kernel = scene.rig.kernels.fn[LADE_K_HEAD_LOSS_BWD];
  scene.rig.kernels.fn[LADE_K_HEAD_LOSS_BWD] = hook_run;
  is_hook_armed = false;
  scene.plan = plan_stored(&scene.rig, LADE_HOME_STORE, true);
  if (rig_open(&scene.rig, scene.plan, &error) || rig_step(&scene.rig, 0, &result, &error))
    fail_msg("%s", error.text);
  scene.fd = store_reopen();
  is_hook_armed = true;
  assert_int_equal(rig_step(&scene.rig, 1, &result, &error), -EBADMSG);
  assert_true(n_flipped > 0);
  assert_non_null(strstr(error.text, "h."));
  scene_end(&scene);
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
  struct rig_model model = rig_tiny(LADE_LLAMA);
  struct rig_numbers with, without;
  struct lade_error error = {0};
  struct rig rig;
  rig_init(&rig, &model);
  struct lade_plan *plan = plan_stored(&rig, LADE_HOME_STORE, true);
  if (rig_open(&rig, plan, &error) || rig_run(&rig, 2, &with, &error))
    return OTHERWISE;
  rig_close(&rig);
  if (!seccomp_refuse(calls, 1, EPERM))
    return FORBIDDEN;
  if (rig_open(&rig, plan, &error) || rig_run(&rig, 2, &without, &error))
    return OTHERWISE;
  bool is_said = strstr(lade_store_note(rig.store), "io_uring") != NULL;
  rig_close(&rig);
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
  struct rig_model model = rig_tiny(LADE_GPT2);
  struct lade_error error = {0};
  struct rig rig;
  if (!scratch_disk_mount(rig_directory(), "1m"))
    return FORBIDDEN;
  rig_init(&rig, &model);
  rig.store_dir = rig_directory();
  rig.allow_tmpfs = true;
  struct lade_plan *plan = plan_stored(&rig, LADE_HOME_STORE, true);
  int status = rig_open(&rig, plan, &error);
  rig_close(&rig);
  if (status != -ENOSPC || !strstr(error.text, rig.store_dir) || !strstr(error.text, "need")) {
    fprintf(stderr, "%d: %s\n", status, error.text);
    return OTHERWISE;
  }
  return AS_PROMISED;
}

static void a_full_disk_is_refused_at_the_start(void **state)
{
  assert_non_null(rig_directory());
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
  store_refusal = rig_store_refusal(LADE_STORE_AUTO);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
