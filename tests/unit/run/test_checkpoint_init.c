/* SPDX-License-Identifier: Apache-2.0 */
/* Starting from HuggingFace's weights: of any writer, in any type; files that do not match the model are refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "base/float.h"
#include "run/checkpoint.h"
#include "run/safetensors.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/names.h"
#include "tests/support/scratch.h"
#include "tests/support/values_memory.h"

#define MAX_TENSORS 64

/* A model's tensors as another program would store them, to be changed before they are written. */
struct stranger {
  struct lade_safetensors_entry entries[MAX_TENSORS];
  char names[MAX_TENSORS][128];
  float *data[MAX_TENSORS];
  int n;
};

/* Return element (row, col) of the file's tensor @i: small, exact in every type, and different nearly everywhere. */
static float element(int i, int64_t row, int64_t col)
{
  return (float)((i * 37 + row * 11 + col * 3) % 127 - 63) / 64;
}

static void stranger_add(struct stranger *stranger, const char *name, int64_t n_rows, int64_t n_cols)
{
  int i = stranger->n++;
  assert_true(i < MAX_TENSORS);
  snprintf(stranger->names[i], sizeof(stranger->names[i]), "%s", name);
  stranger->entries[i] = (struct lade_safetensors_entry){
      .name = stranger->names[i], .dtype = LADE_F32, .n_dims = n_cols ? 2 : 1, .dims = {n_rows, n_cols}};
  int64_t width = n_cols ? n_cols : 1;
  stranger->data[i] = malloc((size_t)(n_rows * width) * sizeof(float));
  assert_non_null(stranger->data[i]);
  for (int64_t row = 0; row < n_rows; row++)
    for (int64_t col = 0; col < width; col++)
      stranger->data[i][row * width + col] = element(i, row, col);
}

/* Set up all slices of @graph, their names without @prefix. */
static void stranger_init(struct stranger *stranger, const struct lade_model_graph *graph, const char *prefix)
{
  *stranger = (struct stranger){0};
  for (int p = 0; p < graph->n_params; p++)
    for (int s = 0; s < graph->params[p].n_slices; s++) {
      const struct lade_param_slice *slice = &graph->params[p].slices[s];
      const struct lade_tensor *tensor = &graph->tensors[graph->params[p].tensor];
      int64_t n_cols = tensor->n_dims > 1 ? tensor->dims[1] : 0;
      const char *name = slice->name;
      if (strncmp(name, prefix, strlen(prefix)) == 0)
        name += strlen(prefix);
      if (slice->is_transposed)
        stranger_add(stranger, name, n_cols, slice->n_rows);
      else
        stranger_add(stranger, name, slice->n_rows, n_cols);
    }
}

static void stranger_finish(struct stranger *stranger)
{
  for (int i = 0; i < stranger->n; i++)
    free(stranger->data[i]);
}

/* Write tensors [first, last) as @name. */
static void stranger_write(const struct stranger *stranger, const char *name, int first, int last)
{
  lade_safetensors_writer *writer = NULL;
  struct lade_error error = {0};
  struct lade_safetensors_params params = {.struct_size = sizeof(params), .path = in_scratch(name),
                                           .entries = stranger->entries + first, .n_entries = last - first};
  if (lade_safetensors_create(&params, &error, &writer) != 0)
    fail_msg("%s", error.text);
  uint64_t at = 0;
  for (int i = first; i < last; i++) {
    const struct lade_safetensors_entry *entry = &stranger->entries[i];
    int64_t n = entry->dims[0] * (entry->n_dims > 1 ? entry->dims[1] : 1);
    for (int64_t j = 0; j < n; j++) {
      float value = stranger->data[i][j];
      uint16_t half = entry->dtype == LADE_F16 ? lade_f32_to_f16(value) : lade_f32_to_bf16(value);
      const void *data = entry->dtype == LADE_F32 ? (const void *)&value : &half;
      assert_int_equal(lade_safetensors_write_at(writer, at, data, lade_dtype_bytes(entry->dtype), &error), 0);
      at += lade_dtype_bytes(entry->dtype);
    }
  }
  assert_int_equal(lade_safetensors_commit(writer, &error), 0);
}

static int collect_use(void *user, int64_t first, const float *elements, int64_t n)
{
  memcpy((float *)user + first, elements, (size_t)n * sizeof(float));
  return 0;
}

/* Initialise from @name, and compare every element with stranger_init's. */
static void init_gives_the_elements(const struct lade_model_graph *graph, const char *name)
{
  struct values_memory memory;
  struct lade_error error = {0};
  values_memory_init(&memory, graph);
  if (lade_checkpoint_init(&memory.values, in_scratch(name), NULL, &error) != 0)
    fail_msg("%s", error.text);
  assert_true(values_memory_is_set(&memory));
  int i = 0;
  for (int p = 0; p < graph->n_params; p++) {
    const struct lade_tensor *tensor = &graph->tensors[graph->params[p].tensor];
    int64_t n_cols = tensor->n_dims > 1 ? tensor->dims[1] : 1;
    float *master = malloc((size_t)(tensor->dims[0] * n_cols) * sizeof(float));
    assert_non_null(master);
    assert_int_equal(lade_checkpoint_master(&memory.values, p, collect_use, master, NULL), 0);
    for (int s = 0; s < graph->params[p].n_slices; s++, i++) {
      const struct lade_param_slice *slice = &graph->params[p].slices[s];
      for (int64_t row = 0; row < slice->n_rows; row++)
        for (int64_t col = 0; col < n_cols; col++) {
          float wanted = slice->is_transposed ? element(i, col, row) : element(i, row, col);
          assert_true(master[(slice->first_row + row) * n_cols + col] == wanted);
        }
    }
    const float *m = memory.memory[lade_value_part(graph, p, LADE_PART_M)];
    assert_true(m[0] == 0);
    free(master);
  }
  values_memory_finish(&memory);
}

static void every_type_and_naming_loads(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_F16, LADE_BF16};
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++)
    for (int i = 0; i < 6; i++) {
      struct lade_model_graph *graph = checkpoint_graph((enum lade_family)family, dtypes[i % 3], SIZE_SMALL);
      struct stranger stranger;
      char name[32];
      snprintf(name, sizeof(name), "%d-%d.safetensors", family, i);
      stranger_init(&stranger, graph, i < 3 ? "" : family == LADE_GPT2 ? "transformer." : "model.");
      for (int j = 0; j < stranger.n; j++)
        stranger.entries[j].dtype = dtypes[(i + j) % 3];
      stranger_write(&stranger, name, 0, stranger.n);
      init_gives_the_elements(graph, name);
      stranger_finish(&stranger);
      lade_model_graph_destroy(graph);
    }
}

static void a_large_model_is_transposed_right(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_CHUNKS);
  struct stranger stranger;
  stranger_init(&stranger, graph, "");
  for (int j = 0; j < stranger.n; j++)
    stranger.entries[j].dtype = LADE_BF16;
  lade_safetensors_writer *writer = NULL;
  struct lade_safetensors_params params = {.struct_size = sizeof(params), .path = in_scratch("model.safetensors"),
                                           .entries = stranger.entries, .n_entries = stranger.n};
  assert_int_equal(lade_safetensors_create(&params, NULL, &writer), 0);
  uint64_t at = 0;
  for (int i = 0; i < stranger.n; i++) {
    const struct lade_safetensors_entry *entry = &stranger.entries[i];
    int64_t n = entry->dims[0] * (entry->n_dims > 1 ? entry->dims[1] : 1);
    uint16_t *half = malloc((size_t)n * sizeof(*half));
    assert_non_null(half);
    for (int64_t j = 0; j < n; j++)
      half[j] = lade_f32_to_bf16(stranger.data[i][j]);
    assert_int_equal(lade_safetensors_write_at(writer, at, half, (uint64_t)n * sizeof(*half), NULL), 0);
    at += (uint64_t)n * sizeof(*half);
    free(half);
  }
  assert_int_equal(lade_safetensors_commit(writer, NULL), 0);
  init_gives_the_elements(graph, ""); /* the directory */
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

static void tensors_that_are_no_weights_are_ignored(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct stranger stranger;
  stranger_init(&stranger, graph, "transformer.");
  stranger_add(&stranger, "h.0.attn.bias", 16, 16);
  stranger_add(&stranger, "h.1.attn.masked_bias", 1, 0);
  stranger_add(&stranger, "lm_head.weight", 31, 16);
  stranger_write(&stranger, "a.safetensors", 0, stranger.n);
  init_gives_the_elements(graph, "a.safetensors");
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

static void index_write(const char *text)
{
  assert_int_equal(lade_file_replace(in_scratch("model.safetensors.index.json"), text, strlen(text), NULL), 0);
}

static void files_of_an_index_are_one_model(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_LLAMA, LADE_BF16, SIZE_SMALL);
  struct stranger stranger;
  stranger_init(&stranger, graph, "");
  stranger_write(&stranger, "model-00001-of-00002.safetensors", 0, stranger.n / 2);
  stranger_write(&stranger, "model-00002-of-00002.safetensors", stranger.n / 2, stranger.n);
  index_write("{\"metadata\":{},\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
              "\"b\":\"model-00002-of-00002.safetensors\",\"c\":\"model-00001-of-00002.safetensors\"}}");
  init_gives_the_elements(graph, "");
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

/* Initialising from @name is refused with @code in one line with all @names, which end with NULL; nothing is set. */
static void init_is_refused(const struct lade_model_graph *graph, const char *name, int code,
                            const char *const *names)
{
  struct values_memory memory;
  struct lade_error error = {0};
  values_memory_init(&memory, graph);
  int rc = lade_checkpoint_init(&memory.values, in_scratch(name), NULL, &error);
  assert_int_equal(rc, code);
  names_verify(error.text, names, __FILE__, __LINE__);
  assert_int_equal(memory.n_calls, 0);
  values_memory_finish(&memory);
}

static void tensors_of_other_models_are_refused(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct stranger stranger;
  stranger_init(&stranger, graph, "");
  stranger_write(&stranger, "short.safetensors", 0, stranger.n - 1);
  init_is_refused(graph, "short.safetensors", -EINVAL, NAMES("transformer.ln_f.bias", "missing"));
  stranger_add(&stranger, "transformer.h.2.ln_1.weight", 16, 0);
  stranger_write(&stranger, "long.safetensors", 0, stranger.n);
  init_is_refused(graph, "long.safetensors", -EINVAL, NAMES("transformer.h.2.ln_1.weight"));
  stranger.n--;
  free(stranger.data[stranger.n]);
  for (int i = 0; i < stranger.n; i++)
    if (strstr(stranger.names[i], "h.0.attn.c_attn.weight")) { /* a Linear's layout in place of Conv1D's */
      stranger.entries[i].dims[0] = 48;
      stranger.entries[i].dims[1] = 16;
    }
  stranger_write(&stranger, "turned.safetensors", 0, stranger.n);
  init_is_refused(graph, "turned.safetensors", -EINVAL, NAMES("h.0.attn.c_attn.weight", "[48, 16]", "[16, 48]"));
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

static void another_type_is_refused(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct stranger stranger;
  stranger_init(&stranger, graph, "");
  stranger.entries[3].dtype = LADE_I16;
  stranger_write(&stranger, "a.safetensors", 0, stranger.n);
  init_is_refused(graph, "a.safetensors", -EINVAL, NAMES("I16", "F32", "F16", "BF16"));
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

static void an_untied_head_is_needed(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_LLAMA, LADE_F32, SIZE_SMALL);
  struct stranger stranger;
  stranger_init(&stranger, graph, "");
  assert_string_equal(stranger.names[stranger.n - 1], "lm_head.weight");
  stranger_write(&stranger, "a.safetensors", 0, stranger.n - 1);
  init_is_refused(graph, "a.safetensors", -EINVAL, NAMES("lm_head.weight", "missing"));
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

static void hostile_indexes_are_refused(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  init_is_refused(graph, "", -ENOENT, NAMES("model.safetensors"));
  init_is_refused(graph, "nowhere", -ENOENT, NAMES("nowhere"));
  index_write("{\"weight_map\":{\"a\":\"../a.safetensors\"}}");
  init_is_refused(graph, "", -EBADMSG, NAMES("directory"));
  index_write("{\"weight_map\":{\"a\":7}}");
  init_is_refused(graph, "", -EBADMSG, NAMES("directory"));
  index_write("{\"weight_map\":{}}");
  init_is_refused(graph, "", -EBADMSG, NAMES("weight_map"));
  index_write("[");
  init_is_refused(graph, "", -EBADMSG, NAMES("JSON"));
  index_write("{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
  init_is_refused(graph, "", -ENOENT, NAMES("gone.safetensors"));
  assert_int_equal(symlink("model.safetensors", in_scratch("model.safetensors")), 0); /* of itself */
  init_is_refused(graph, "", -ELOOP, NAMES("model.safetensors", "cannot open"));
  lade_model_graph_destroy(graph);
}

/* An interrupted download leaves links to files that are not there: the missing one is named. */
static void links_to_nothing_are_refused(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct stranger stranger;
  stranger_init(&stranger, graph, "");
  assert_int_equal(symlink("blob", in_scratch("model.safetensors.index.json")), 0);
  init_is_refused(graph, "", -ENOENT, NAMES("model.safetensors.index.json", "cannot open"));
  assert_int_equal(symlink("blob", in_scratch("model.safetensors")), 0);
  init_is_refused(graph, "", -ENOENT, NAMES("model.safetensors", "cannot open"));
  assert_int_equal(unlink(in_scratch("model.safetensors")), 0);
  stranger_write(&stranger, "model.safetensors", 0, stranger.n);
  init_gives_the_elements(graph, "");
  assert_int_equal(symlink("blob", in_scratch("state.json")), 0); /* checksums are wanted, so values need them */
  init_is_refused(graph, "", -ENOENT, NAMES("state.json"));
  stranger_finish(&stranger);
  lade_model_graph_destroy(graph);
}

static void a_checkpoint_is_a_start_too(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory, other;
  struct lade_checkpoint_state the_state = {.step = 3, .loss_scale = 1};
  uint64_t digest, other_digest;
  values_memory_init(&memory, graph);
  values_memory_init(&other, graph);
  values_memory_randomize(&memory, 8);
  const struct lade_checkpoint_place place = {.dir = scratch};
  assert_int_equal(lade_checkpoint_save(&memory.values, &the_state, &place, NULL, NULL), 0);
  assert_int_equal(lade_checkpoint_init(&other.values, in_scratch("step-00000003"), NULL, NULL), 0);
  assert_int_equal(lade_checkpoint_digest(&memory.values, &digest, NULL), 0);
  assert_int_equal(lade_checkpoint_digest(&other.values, &other_digest, NULL), 0);
  assert_int_equal(digest, other_digest);
  values_memory_finish(&memory);
  values_memory_finish(&other);
  lade_model_graph_destroy(graph);
}

/* Change the last bit of file @name in the scratch directory. */
static void last_bit_flip(const char *name)
{
  FILE *file = fopen(in_scratch(name), "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, -1, SEEK_END), 0);
  const int byte = fgetc(file);
  assert_int_equal(fseek(file, -1, SEEK_END), 0);
  assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
  assert_int_equal(fclose(file), 0);
}

static void a_damaged_checkpoint_is_no_start(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory;
  const struct lade_checkpoint_state the_state = {.step = 3, .loss_scale = 1};
  const struct lade_checkpoint_place place = {.dir = scratch};
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 8);
  assert_int_equal(lade_checkpoint_save(&memory.values, &the_state, &place, NULL, NULL), 0);
  last_bit_flip("step-00000003/model.safetensors");
  struct lade_error error = {0};
  assert_int_equal(lade_checkpoint_init(&memory.values, in_scratch("step-00000003"), NULL, &error), -EBADMSG);
  assert_names(error.text, "model.safetensors", "checksum", "state.json");
  last_bit_flip("step-00000003/model.safetensors");
  assert_int_equal(unlink(in_scratch("step-00000003/optimizer.safetensors")), 0); /* weights alone are a start */
  assert_int_equal(lade_checkpoint_init(&memory.values, in_scratch("step-00000003"), NULL, NULL), 0);
  last_bit_flip("step-00000003/config.json");
  init_is_refused(graph, "step-00000003", -EBADMSG, NAMES("config.json", "checksum"));
  assert_int_equal(unlink(in_scratch("step-00000003/config.json")), 0);
  last_bit_flip("step-00000003/state.json");
  init_is_refused(graph, "step-00000003", -EBADMSG, NAMES("state.json"));
  last_bit_flip("step-00000003/model.safetensors");
  assert_int_equal(unlink(in_scratch("step-00000003/state.json")), 0); /* without sums any values are */
  assert_int_equal(lade_checkpoint_init(&memory.values, in_scratch("step-00000003"), NULL, NULL), 0);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(every_type_and_naming_loads, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_large_model_is_transposed_right, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(tensors_that_are_no_weights_are_ignored,
                                      scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(files_of_an_index_are_one_model, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(tensors_of_other_models_are_refused, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(another_type_is_refused, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(an_untied_head_is_needed, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(hostile_indexes_are_refused, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(links_to_nothing_are_refused, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_checkpoint_is_a_start_too, scratch_setup_in_memory, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_damaged_checkpoint_is_no_start, scratch_setup_in_memory, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
