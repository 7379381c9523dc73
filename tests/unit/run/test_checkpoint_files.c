/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a checkpoint: one or several of each kind, and those of format version 1. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>
#include <xxhash.h>

#include "base/base.h"
#include "base/file.h"
#include "run/checkpoint.h"
#include "run/safetensors.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/scratch.h"
#include "tests/support/values_memory.h"

#define STATE "step-00000001/state.json"

static void save(const struct values_memory *memory, int64_t step, uint64_t file_bytes, int keep)
{
  struct lade_error error = {0};
  const struct lade_checkpoint_state state = {.step = step, .loss_scale = 1, .model = "test"};
  const struct lade_checkpoint_place place = {.dir = scratch, .keep = keep, .file_bytes = file_bytes};
  if (lade_checkpoint_save(&memory->values, &state, &place, NULL, &error) != 0)
    fail_msg("%s", error.text);
}

static int load(const struct lade_model_graph *graph, const char *name, const struct values_memory *expected,
                struct lade_error *error)
{
  struct values_memory memory;
  struct lade_checkpoint_state state;
  *error = (struct lade_error){0};
  values_memory_init(&memory, graph);
  int rc = lade_checkpoint_load(&memory.values, in_scratch(name), NULL, &state, error);
  if (rc == 0)
    assert_true(values_memory_equal(&memory, expected));
  values_memory_finish(&memory);
  return rc;
}

static bool exists(const char *name)
{
  return access(in_scratch(name), F_OK) == 0;
}

static void a_large_model_is_in_several_files(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory, begun;
  struct lade_error error = {0};
  uint64_t digest = 0, found = 1;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 5);
  save(&memory, 1, 6000, 0);
  assert_true(exists("step-00000001/model.safetensors.index.json"));
  assert_false(exists("step-00000001/model.safetensors") || exists("step-00000001/optimizer.safetensors"));
  assert_int_equal(load(graph, "step-00000001", &memory, &error), 0);
  values_memory_init(&begun, graph); /* as in HuggingFace's files */
  assert_int_equal(lade_checkpoint_init(&begun.values, in_scratch("step-00000001"), NULL, &error), 0);
  assert_int_equal(lade_checkpoint_digest(&memory.values, &digest, NULL), 0);
  assert_int_equal(lade_checkpoint_digest(&begun.values, &found, NULL), 0);
  assert_int_equal(found, digest);
  save(&memory, 2, 1, 1); /* a file for each tensor; the previous checkpoint is this run's to remove */
  assert_false(exists("step-00000001"));
  assert_int_equal(load(graph, "step-00000002", &memory, &error), 0);
  values_memory_finish(&begun);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void a_missing_file_of_several_is_named(void **state)
{
  static const char *const names[] = {"model-00001-of-00003.safetensors", "optimizer-00005-of-00005.safetensors",
                                      "model.safetensors.index.json"};
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct values_memory memory;
  struct lade_error error;
  char path[64];
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 5);
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    save(&memory, 1, 9000, 0);
    snprintf(path, sizeof(path), "step-00000001/%s", names[i]);
    assert_int_equal(unlink(in_scratch(path)), 0);
    assert_int_equal(load(graph, "step-00000001", &memory, &error), -EBADMSG);
    assert_non_null(strstr(error.text, names[i]));
  }
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void an_index_may_be_longer_than_a_configuration(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_DEEP);
  struct values_memory memory;
  struct lade_error error;
  struct stat st;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 5);
  save(&memory, 1, 8 << 20, 0);
  assert_int_equal(stat(in_scratch("step-00000001/model.safetensors.index.json"), &st), 0);
  assert_true(st.st_size > 1 << 20);
  assert_int_equal(load(graph, "step-00000001", &memory, &error), 0);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* ---- links and owners ---- */

/* Make values of the smallest model, to be saved. */
static struct lade_model_graph *values_make(struct values_memory *memory)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  values_memory_init(memory, graph);
  values_memory_randomize(memory, 5);
  return graph;
}

static bool is_link(const char *name)
{
  struct stat st;
  return lstat(in_scratch(name), &st) == 0 && S_ISLNK(st.st_mode);
}

/* A temporary name that is a link: the link is a leftover, its target directory is not. */
static void a_leftover_link_is_not_followed(void **state)
{
  struct values_memory memory;
  struct lade_model_graph *graph = values_make(&memory);
  assert_int_equal(mkdir(in_scratch("victim"), 0777), 0);
  assert_int_equal(lade_file_replace(in_scratch("victim/thesis"), "x", 1, NULL), 0);
  assert_int_equal(symlink("victim", in_scratch(".step-1.tmp-")), 0);
  save(&memory, 1, 0, 0);
  assert_true(exists("victim/thesis"));
  assert_false(is_link(".step-1.tmp-"));
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* Checkpoints that were moved away and linked back: replacing and rotating remove the links alone. */
static void an_archived_checkpoint_outlives_its_link(void **state)
{
  struct values_memory memory;
  struct lade_model_graph *graph = values_make(&memory);
  for (int64_t step = 1; step <= 2; step++)
    save(&memory, step, 0, 0);
  assert_int_equal(rename(in_scratch("step-00000001"), in_scratch("first")), 0);
  assert_int_equal(rename(in_scratch("step-00000002"), in_scratch("second")), 0);
  assert_int_equal(symlink("first", in_scratch("step-00000001")), 0);
  assert_int_equal(symlink("second", in_scratch("step-00000002")), 0);
  save(&memory, 2, 0, 0);
  assert_true(exists("second/state.json") && exists("step-00000002/state.json"));
  assert_false(is_link("step-00000002"));
  save(&memory, 3, 0, 1);
  assert_true(exists("first/state.json") && exists("first/model.safetensors"));
  assert_false(is_link("step-00000001") || exists("step-00000002"));
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* Save into the scratch directory, in which @name is another user's: refused, and the entry stays. */
static void foreign_refuse(const struct values_memory *memory, const char *name, int64_t step, int keep)
{
  struct lade_error error = {0};
  const struct lade_checkpoint_state state = {.step = step, .loss_scale = 1, .model = "test"};
  const struct lade_checkpoint_place place = {.dir = scratch, .keep = keep};
  assert_int_equal(chown(in_scratch(name), 65534, 65534), 0);
  assert_int_equal(lade_checkpoint_save(&memory->values, &state, &place, NULL, &error), -EPERM);
  assert_non_null(strstr(error.text, name));
  assert_true(exists(name));
}

static void entries_of_another_user_are_refused(void **state)
{
  struct values_memory memory;
  if (geteuid() != 0)
    skip();
  struct lade_model_graph *graph = values_make(&memory);
  save(&memory, 1, 0, 0);
  foreign_refuse(&memory, "step-00000001", 1, 0);
  foreign_refuse(&memory, "step-00000001", 2, 1);
  assert_true(exists("step-00000001/state.json"));
  assert_int_equal(mkdir(in_scratch(".step-00000009.tmp-1-1"), 0777), 0);
  foreign_refuse(&memory, ".step-00000009.tmp-1-1", 3, 0);
  assert_false(exists("step-00000003"));
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* Check for free space in the directory "saves", by a path of @n_bytes. */
static int long_path_check(const struct values_memory *memory, int n_bytes)
{
  static const char name[] = "/saves";
  char path[PATH_MAX];
  int n = snprintf(path, sizeof(path), "%s", scratch);
  while (n < n_bytes - (int)sizeof(name))
    n += snprintf(path + n, sizeof(path) - (size_t)n, "/.");
  snprintf(path + n, sizeof(path) - (size_t)n, "%s", name);
  const struct lade_checkpoint_place place = {.dir = path};
  return lade_checkpoint_check_room(&memory->values, &place, NULL, NULL);
}

/* The longest name that a save writes under a path counts. */
static void a_long_path_is_refused_before_anything_is_written(void **state)
{
  struct values_memory memory;
  struct lade_model_graph *graph = values_make(&memory);
  assert_int_equal(long_path_check(&memory, 4050), -ENAMETOOLONG);
  assert_int_equal(long_path_check(&memory, 3900), 0);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* ---- format version 1 ---- */

static void hex_set(json_t *object, const char *key, uint64_t value)
{
  char text[20];
  snprintf(text, sizeof(text), "%016" PRIx64, value);
  json_object_set_new(object, key, json_string(text));
}

/* Set checksums of version 1: XXH3 of a tensor's elements, in the parameter's order if nothing is transposed. */
static void tensors_downgrade(json_t *entries, const char *name)
{
  lade_safetensors *file = NULL;
  const char *key;
  json_t *entry;
  assert_int_equal(lade_safetensors_open(in_scratch(name), NULL, NULL, &file), 0);
  json_object_foreach(entries, key, entry)
  {
    const struct lade_safetensor *tensor = lade_safetensors_find(file, key);
    char *data = malloc(tensor->bytes);
    assert_int_equal(lade_safetensors_read(file, tensor, 0, tensor->bytes, data, NULL), 0);
    json_object_del(entry, "sum");
    hex_set(entry, "xxh3", XXH3_64bits(data, tensor->bytes));
    free(data);
  }
  lade_safetensors_close(file);
}

/* Write @root as the state of step 1, with a checksum that holds, and release it. */
static void state_write(json_t *root)
{
  json_object_del(root, "checksum");
  char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  hex_set(root, "checksum", XXH3_64bits(text, strlen(text)));
  free(text);
  assert_int_equal(json_dump_file(root, in_scratch(STATE), JSON_INDENT(1) | JSON_REAL_PRECISION(17)), 0);
  json_decref(root);
}

/* Turn step 1 into a checkpoint of version 1. */
static void state_downgrade(void)
{
  json_t *root = json_load_file(in_scratch(STATE), 0, NULL), *files = json_object_get(root, "files");
  tensors_downgrade(json_object_get(json_object_get(files, "model.safetensors"), "tensors"),
                    "step-00000001/model.safetensors");
  tensors_downgrade(json_object_get(json_object_get(files, "optimizer.safetensors"), "tensors"),
                    "step-00000001/optimizer.safetensors");
  json_object_set_new(root, "format_version", json_integer(1));
  state_write(root);
}

static void version_1_loads_and_its_damage_is_named(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_LLAMA, LADE_F32, SIZE_SMALL);
  struct values_memory memory;
  struct lade_error error;
  char *bytes = NULL;
  size_t n = 0;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 5);
  save(&memory, 1, 0, 0);
  state_downgrade();
  if (load(graph, "step-00000001", &memory, &error) != 0)
    fail_msg("%s", error.text);
  graph->share.tp = 2; /* ranks with parts of layers cannot verify these checksums */
  assert_int_equal(load(graph, "step-00000001", &memory, &error), -EINVAL);
  assert_non_null(strstr(error.text, "version 1"));
  graph->share.tp = 1;
  assert_int_equal(lade_file_load(in_scratch("step-00000001/model.safetensors"), 1 << 20, NULL, &bytes, &n), 0);
  bytes[n - 1] ^= 1;
  assert_int_equal(lade_file_replace(in_scratch("step-00000001/model.safetensors"), bytes, n, NULL), 0);
  free(bytes);
  assert_int_equal(load(graph, "step-00000001", &memory, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "tensor lm_head.weight"));
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* Names of other directories are refused although their sizes are right and the checksum holds. */
static void a_file_outside_of_the_checkpoint_is_not_of_it(void **state)
{
  static const char *const names[] = {"..", ".", "../step-00000001", "", "other.bin"};
  struct lade_model_graph *graph = checkpoint_graph(LADE_LLAMA, LADE_F32, SIZE_SMALL);
  struct values_memory memory;
  struct lade_error error;
  values_memory_init(&memory, graph);
  save(&memory, 1, 0, 0);
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    char path[128];
    struct stat st = {0};
    json_t *root = json_load_file(in_scratch(STATE), 0, NULL);
    snprintf(path, sizeof(path), "step-00000001/%s", names[i]);
    if (stat(in_scratch(path), &st))
      assert_int_equal(lade_file_replace(in_scratch(path), "", 0, NULL), 0);
    json_object_set_new(json_object_get(root, "files"), names[i], json_pack("{s:I}", "bytes", (json_int_t)st.st_size));
    state_write(root);
    assert_int_equal(load(graph, "step-00000001", &memory, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "name that no save writes"));
    root = json_load_file(in_scratch(STATE), 0, NULL);
    json_object_del(json_object_get(root, "files"), names[i]);
    state_write(root);
    assert_int_equal(load(graph, "step-00000001", &memory, &error), 0);
  }
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_file_outside_of_the_checkpoint_is_not_of_it, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(a_large_model_is_in_several_files, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_missing_file_of_several_is_named, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(an_index_may_be_longer_than_a_configuration, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(version_1_loads_and_its_damage_is_named, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(a_leftover_link_is_not_followed, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(an_archived_checkpoint_outlives_its_link, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(entries_of_another_user_are_refused, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_long_path_is_refused_before_anything_is_written, scratch_setup_in_memory,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
