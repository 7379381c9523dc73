/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a checkpoint: one or several of each kind, and those that format version 1 left behind. */
#include <errno.h>
#include <inttypes.h>
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

static int load(const struct lade_graph *graph, const char *name, const struct values_memory *expected,
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
  struct lade_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory, begun;
  struct lade_error error = {0};
  uint64_t digest = 0, found = 1;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 5);
  save(&memory, 1, 6000, 0);
  assert_true(exists("step-00000001/model.safetensors.index.json"));
  assert_false(exists("step-00000001/model.safetensors") || exists("step-00000001/optimizer.safetensors"));
  assert_int_equal(load(graph, "step-00000001", &memory, &error), 0);
  values_memory_init(&begun, graph); /* as HuggingFace's files */
  assert_int_equal(lade_checkpoint_init(&begun.values, in_scratch("step-00000001"), NULL, &error), 0);
  assert_int_equal(lade_checkpoint_digest(&memory.values, &digest, NULL), 0);
  assert_int_equal(lade_checkpoint_digest(&begun.values, &found, NULL), 0);
  assert_int_equal(found, digest);
  save(&memory, 2, 1, 1); /* a file for each tensor; the one before is ours to remove */
  assert_false(exists("step-00000001"));
  assert_int_equal(load(graph, "step-00000002", &memory, &error), 0);
  values_memory_finish(&begun);
  values_memory_finish(&memory);
  lade_graph_destroy(graph);
}

static void a_missing_file_of_several_is_named(void **state)
{
  static const char *const names[] = {"model-00001-of-00003.safetensors", "optimizer-00005-of-00005.safetensors",
                                      "model.safetensors.index.json"};
  struct lade_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
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
  lade_graph_destroy(graph);
}

static void an_index_may_be_longer_than_a_configuration(void **state)
{
  struct lade_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_DEEP);
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
  lade_graph_destroy(graph);
}

/* ---- format version 1 ---- */

static void hex_set(json_t *object, const char *key, uint64_t value)
{
  char text[20];
  snprintf(text, sizeof(text), "%016" PRIx64, value);
  json_object_set_new(object, key, json_string(text));
}

/* XXH3 of a tensor's elements, which lie in the parameter's order where nothing is transposed. */
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

/* Make step 1 what version 1 wrote. */
static void state_downgrade(void)
{
  json_t *root = json_load_file(in_scratch(STATE), 0, NULL), *files = json_object_get(root, "files");
  tensors_downgrade(json_object_get(json_object_get(files, "model.safetensors"), "tensors"),
                    "step-00000001/model.safetensors");
  tensors_downgrade(json_object_get(json_object_get(files, "optimizer.safetensors"), "tensors"),
                    "step-00000001/optimizer.safetensors");
  json_object_set_new(root, "format_version", json_integer(1));
  json_object_del(root, "checksum");
  char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  hex_set(root, "checksum", XXH3_64bits(text, strlen(text)));
  free(text);
  assert_int_equal(json_dump_file(root, in_scratch(STATE), JSON_INDENT(1) | JSON_REAL_PRECISION(17)), 0);
  json_decref(root);
}

static void version_1_loads_and_its_damage_is_named(void **state)
{
  struct lade_graph *graph = checkpoint_graph(LADE_LLAMA, LADE_F32, SIZE_SMALL);
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
  graph->share.tp = 2; /* ranks with parts of layers could not tell */
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
  lade_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_large_model_is_in_several_files, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_missing_file_of_several_is_named, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(an_index_may_be_longer_than_a_configuration, scratch_setup_in_memory,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(version_1_loads_and_its_damage_is_named, scratch_setup_in_memory,
                                      scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
