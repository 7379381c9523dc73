/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: saved values are loaded bit for bit, and damaged files are refused. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "run/checkpoint.h"
#include "run/safetensors.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/names.h"
#include "tests/support/scratch.h"
#include "tests/support/values_memory.h"

#define PATH_BYTES 512

static const struct lade_checkpoint_state a_state = {
    .step = 123, .seed = 0xfedcba9876543210u, .loss_scale = 65536.1, .good_steps = 77,
    .loss_digest = 0x8000000000000001u, .numerics_key = 0x0123456789abcdefu, .model = "nano \"quoted\"",
    .data_position = INT64_C(1) << 62, /* the greatest */
    .run = {.is_known = true, .dtype = LADE_F16, .order = LADE_ORDER_RANDOM, .batch = 12, .micro_batch = 3, .seq = 64,
            .steps = 2000, .warmup = 100, .lr = 0.001, .min_lr = 0.1 / 3, .dropout = 0.2, .beta1 = 0.9, .beta2 = 0.99,
            .eps = 1e-8, .weight_decay = 0.1, .clip = 1, .data_key = 0xfedcba0987654321u}};

/* Save random values of @graph as @step in the scratch directory. */
static void save(const struct lade_model_graph *graph, uint64_t seed, int64_t step, int keep)
{
  struct values_memory memory;
  struct lade_error error = {0};
  struct lade_checkpoint_state the_state = a_state;
  the_state.step = step;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, seed);
  const struct lade_checkpoint_place place = {.dir = scratch, .keep = keep};
  if (lade_checkpoint_save(&memory.values, &the_state, &place, NULL, &error) != 0)
    fail_msg("%s", error.text);
  values_memory_finish(&memory);
}

/* Check that the newest checkpoint is of @step and has the values of save(@seed). */
static void newest_is(const struct lade_model_graph *graph, uint64_t seed, int64_t step)
{
  char found[PATH_BYTES];
  struct values_memory memory, expected;
  struct lade_error error = {0};
  struct lade_checkpoint_state the_state = {0};
  if (lade_checkpoint_find(scratch, found, sizeof(found), &error) != 0)
    fail_msg("%s", error.text);
  values_memory_init(&memory, graph);
  values_memory_init(&expected, graph);
  values_memory_randomize(&expected, seed);
  if (lade_checkpoint_load(&memory.values, found, NULL, &the_state, &error) != 0)
    fail_msg("%s", error.text);
  assert_int_equal(the_state.step, step);
  assert_true(values_memory_is_set(&memory));
  assert_true(values_memory_equal(&memory, &expected));
  values_memory_finish(&memory);
  values_memory_finish(&expected);
}

static void saved_values_load_bit_for_bit(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_F16};
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++)
    for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
      enum checkpoint_size size = i == 1 ? SIZE_CHUNKS : SIZE_SMALL;
      struct lade_model_graph *graph = checkpoint_graph((enum lade_family)family, dtypes[i], size);
      save(graph, 4 + i, 1 + (int64_t)i, 1);
      newest_is(graph, 4 + i, 1 + (int64_t)i);
      lade_model_graph_destroy(graph);
      scratch_teardown(NULL);
      scratch_setup(NULL);
    }
}

static void the_state_comes_back_exactly(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  save(graph, 1, a_state.step, 0);
  struct lade_checkpoint_state read = {0};
  assert_int_equal(lade_checkpoint_read_state(in_scratch("step-00000123"), &read, NULL), 0);
  assert_int_equal(read.step, a_state.step);
  assert_true(read.seed == a_state.seed && read.loss_scale == a_state.loss_scale);
  assert_int_equal(read.good_steps, a_state.good_steps);
  assert_true(read.loss_digest == a_state.loss_digest && read.numerics_key == a_state.numerics_key);
  assert_int_equal(read.data_position, a_state.data_position);
  assert_string_equal(read.model, a_state.model);
  assert_memory_equal(&read.run, &a_state.run, sizeof(read.run));
  lade_model_graph_destroy(graph);
}

static void a_state_without_its_run_loads(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory;
  const struct lade_checkpoint_place place = {.dir = scratch};
  struct lade_checkpoint_state silent = a_state, read = {.run.is_known = true};
  char text[64] = "x";
  silent.run = (struct lade_checkpoint_run){0};
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 1);
  assert_int_equal(lade_checkpoint_save(&memory.values, &silent, &place, NULL, NULL), 0);
  assert_int_equal(lade_checkpoint_read_state(in_scratch("step-00000123"), &read, NULL), 0);
  assert_false(read.run.is_known);
  assert_int_equal(lade_checkpoint_run_compare(&read.run, &a_state.run, text, sizeof(text)), 0);
  assert_string_equal(text, "");
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void a_run_is_compared_in_the_words_of_its_options(void **state)
{
  struct lade_checkpoint_run now = a_state.run, constant = a_state.run, longer;
  char text[200];
  assert_int_equal(lade_checkpoint_run_compare(&a_state.run, &now, text, sizeof(text)), 0);
  now.dtype = LADE_BF16;
  now.batch = 24;
  now.order = LADE_ORDER_SEQUENTIAL;
  now.lr = 3e-4;
  now.data_key++;
  assert_int_equal(lade_checkpoint_run_compare(&a_state.run, &now, text, sizeof(text)), 5);
  assert_string_equal(text, "--dtype was fp16 and is bf16, --batch was 12 and is 24, --order was random and is "
                            "sequential, --lr was 0.001 and is 0.0003, the training data is another, or its documents "
                            "are masked in another way");
  /* cut, and the number of differences complete */
  assert_int_equal(lade_checkpoint_run_compare(&a_state.run, &now, text, 20), 5);
  assert_string_equal(text, "--dtype was fp16 an");
  longer = a_state.run;
  longer.steps = 3000;
  assert_int_equal(lade_checkpoint_run_compare(&a_state.run, &longer, text, sizeof(text)), 1);
  longer.steps = a_state.run.steps;
  longer.micro_batch = a_state.run.micro_batch + 1; /* which the user need not have given */
  assert_int_equal(lade_checkpoint_run_compare(&a_state.run, &longer, text, sizeof(text)), 1);
  assert_names(text, "microbatches", "--micro-batch");
  longer = a_state.run;
  longer.steps = 3000;
  constant.min_lr = longer.min_lr = longer.lr;
  assert_int_equal(lade_checkpoint_run_compare(&constant, &longer, text, sizeof(text)), 0);
}

/* Masters are FP32, whatever a run computes in. */
static void another_dtype_loads_the_same_masters(void **state)
{
  struct lade_model_graph *bf16 = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  save(bf16, 6, 9, 0);
  lade_model_graph_destroy(bf16);
  static const enum lade_dtype dtypes[] = {LADE_BF16, LADE_F32, LADE_F16};
  uint64_t digests[LADE_COUNT(dtypes)];
  for (size_t i = 0; i < LADE_COUNT(dtypes); i++) {
    struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, dtypes[i], SIZE_SMALL);
    struct values_memory memory;
    struct lade_checkpoint_state the_state;
    values_memory_init(&memory, graph);
    assert_int_equal(lade_checkpoint_load(&memory.values, in_scratch("step-00000009"), NULL, &the_state, NULL), 0);
    assert_int_equal(lade_checkpoint_digest(&memory.values, &digests[i], NULL), 0);
    assert_int_equal(digests[i], digests[0]);
    values_memory_finish(&memory);
    lade_model_graph_destroy(graph);
  }
}

static float file_element(const char *name, int64_t n_cols, int64_t row, int64_t col)
{
  lade_safetensors *file = NULL;
  struct lade_error error = {0};
  if (lade_safetensors_open(in_scratch("step-00000001/model.safetensors"), NULL, &error, &file) != 0)
    fail_msg("%s", error.text);
  assert_string_equal(lade_safetensors_metadata(file, "format"), "pt");
  const struct lade_safetensor *tensor = lade_safetensors_find(file, name);
  assert_non_null(tensor);
  assert_int_equal(tensor->dims[tensor->n_dims - 1], n_cols);
  float value;
  assert_int_equal(lade_safetensors_read(file, tensor, (uint64_t)(row * n_cols + col) * 4, 4, &value, NULL), 0);
  lade_safetensors_close(file);
  return value;
}

static int param_find(const struct lade_model_graph *graph, const char *name)
{
  for (int p = 0; p < graph->n_params; p++)
    if (strcmp(graph->tensors[graph->params[p].tensor].name, name) == 0)
      return p;
  fail_msg("no parameter %s", name);
  return -1;
}

static void gpt2_weights_stand_transposed_in_the_file(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_CHUNKS);
  struct values_memory memory;
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 2);
  save(graph, 2, 1, 0);
  const float *fc = memory.memory[graph->params[param_find(graph, "h.1.mlp.c_fc.weight")].tensor]; /* [8100, 264] */
  const float *proj = memory.memory[graph->params[param_find(graph, "h.0.mlp.c_proj.weight")].tensor]; /* [264, 8100] */
  const float *wte = memory.memory[graph->params[param_find(graph, "embed.wte.weight")].tensor];
  for (int i = 0; i < 50; i++) {
    int64_t in = (i * 97) % 264, out = (i * 7919) % 8100;
    assert_true(file_element("transformer.h.1.mlp.c_fc.weight", 8100, in, out) == fc[out * 264 + in]);
    assert_true(file_element("transformer.h.0.mlp.c_proj.weight", 264, out, in) == proj[in * 8100 + out]);
    assert_true(file_element("transformer.wte.weight", 264, i * 50, in) == wte[i * 50 * 264 + in]);
  }
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

static void the_config_reads_back_as_the_model(void **state)
{
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++) {
    struct lade_model_graph *graph = checkpoint_graph((enum lade_family)family, LADE_F32, SIZE_SMALL);
    if (family == LADE_LLAMA) {
      graph->model.rope_scale_factor = 8;
      graph->model.rope_low_freq_factor = 1;
      graph->model.rope_high_freq_factor = 4.1f;
      graph->model.rope_original_context = 8;
    }
    save(graph, 1, 1 + family, 0);
    struct lade_model model = {0};
    struct lade_error error = {0};
    char name[64];
    snprintf(name, sizeof(name), "step-%08d/config.json", 1 + family);
    if (lade_model_load(in_scratch(name), &model, &error) != 0)
      fail_msg("%s", error.text);
    struct lade_model expected = graph->model;
    memcpy(expected.name, model.name, sizeof(expected.name));
    if (family == LADE_GPT2)
      expected.rope_base = model.rope_base;
    assert_int_equal(model.family, expected.family);
    assert_int_equal(model.layers, expected.layers);
    assert_int_equal(model.heads, expected.heads);
    assert_int_equal(model.n_kv_heads, expected.n_kv_heads);
    assert_int_equal(model.width, expected.width);
    assert_int_equal(model.hidden, expected.hidden);
    assert_int_equal(model.context, expected.context);
    assert_int_equal(model.vocabulary, expected.vocabulary);
    assert_int_equal(model.is_tied, expected.is_tied);
    assert_true(model.norm_eps == expected.norm_eps && model.rope_base == expected.rope_base);
    assert_true(model.rope_scale_factor == expected.rope_scale_factor);
    assert_true(model.rope_high_freq_factor == expected.rope_high_freq_factor);
    assert_int_equal(model.rope_original_context, expected.rope_original_context);
    lade_model_graph_destroy(graph);
  }
}

static bool exists(const char *name)
{
  return access(in_scratch(name), F_OK) == 0;
}

static void only_the_newest_are_kept(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  for (int step = 1; step <= 4; step++)
    save(graph, 1, step, 0);
  assert_true(exists("step-00000001"));
  save(graph, 5, 5, 2);
  assert_false(exists("step-00000001") || exists("step-00000002") || exists("step-00000003"));
  assert_true(exists("step-00000004"));
  newest_is(graph, 5, 5);
  save(graph, 3, 3, 2); /* the one just saved stays, though others are newer */
  assert_true(exists("step-00000003") && exists("step-00000005"));
  assert_false(exists("step-00000004"));
  save(graph, 3, 100000000, 1); /* names grow past eight digits, and still sort by number */
  assert_true(exists("step-100000000"));
  newest_is(graph, 3, 100000000);
  lade_model_graph_destroy(graph);
}

static void a_directory_with_files_of_others_is_left_alone(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  save(graph, 1, 1, 0);
  assert_int_equal(lade_file_replace(in_scratch("step-00000001/notes.txt"), "x", 1, NULL), 0);
  save(graph, 2, 2, 1);
  assert_true(exists("step-00000001/notes.txt") && exists("step-00000001/state.json"));
  struct values_memory memory;
  struct lade_error error = {0};
  struct lade_checkpoint_state the_state = {.step = 1};
  const struct lade_checkpoint_place place = {.dir = scratch, .keep = 1};
  values_memory_init(&memory, graph);
  assert_int_equal(lade_checkpoint_save(&memory.values, &the_state, &place, NULL, &error), -EEXIST);
  assert_non_null(strstr(error.text, "step-00000001"));
  values_memory_finish(&memory);
  newest_is(graph, 2, 2);
  lade_model_graph_destroy(graph);
}

static void the_same_step_is_replaced(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  save(graph, 1, 7, 0);
  save(graph, 2, 7, 0);
  newest_is(graph, 2, 7);
  lade_model_graph_destroy(graph);
}

static void leftovers_go_with_the_next_save(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  assert_int_equal(mkdir(in_scratch(".step-00000001.tmp-99-abc"), 0700), 0);
  assert_int_equal(lade_file_replace(in_scratch(".step-00000001.tmp-99-abc/model.safetensors"), "x", 1, NULL), 0);
  assert_int_equal(mkdir(in_scratch(".step-mine"), 0700), 0);
  struct lade_error error = {0};
  char found[PATH_BYTES];
  assert_int_equal(lade_checkpoint_find(scratch, found, sizeof(found), &error), -ENOENT);
  save(graph, 1, 2, 0);
  assert_false(exists(".step-00000001.tmp-99-abc"));
  assert_true(exists(".step-mine"));
  lade_model_graph_destroy(graph);
}

static void two_saves_into_one_directory_exclude_each_other(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct values_memory memory;
  struct lade_error error = {0};
  const struct lade_checkpoint_place place = {.dir = scratch};
  values_memory_init(&memory, graph);
  int fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  assert_int_equal(mkdir(in_scratch(".step-00000001.tmp-99-abc"), 0700), 0);
  assert_int_equal(lade_checkpoint_save(&memory.values, &a_state, &place, NULL, &error), -EBUSY);
  assert_true(exists(".step-00000001.tmp-99-abc")); /* it may be in use */
  close(fd);
  assert_int_equal(lade_checkpoint_save(&memory.values, &a_state, &place, NULL, &error), 0);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* ---- damage ---- */

static int load_newest(const struct lade_model_graph *graph, struct lade_error *error)
{
  char found[PATH_BYTES];
  struct values_memory memory;
  struct lade_checkpoint_state the_state;
  *error = (struct lade_error){0};
  int rc = lade_checkpoint_find(scratch, found, sizeof(found), error);
  if (rc < 0)
    return rc;
  values_memory_init(&memory, graph);
  rc = lade_checkpoint_load(&memory.values, found, NULL, &the_state, error);
  values_memory_finish(&memory);
  return rc;
}

static void byte_flip(const char *name, off_t at)
{
  unsigned char byte;
  int fd = open(in_scratch(name), O_RDWR | O_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(pread(fd, &byte, 1, at), 1);
  byte ^= 1;
  assert_int_equal(pwrite(fd, &byte, 1, at), 1);
  close(fd);
}

static off_t bytes_of(const char *name)
{
  struct stat st;
  assert_int_equal(stat(in_scratch(name), &st), 0);
  return st.st_size;
}

/* True if the byte at @at may change without harm, like a space. */
static bool is_harmless(const char *name, off_t at)
{
  char byte;
  int fd = open(in_scratch(name), O_RDONLY | O_CLOEXEC);
  assert_int_equal(pread(fd, &byte, 1, at), 1);
  close(fd);
  return byte == ' ' || byte == '\n';
}

static void every_flipped_byte_is_noticed(void **state)
{
  static const char *const names[] = {"step-00000002/model.safetensors", "step-00000002/optimizer.safetensors",
                                      "step-00000002/config.json", "step-00000002/state.json"};
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  save(graph, 1, 1, 0);
  save(graph, 2, 2, 0);
  char older[PATH_BYTES];
  snprintf(older, sizeof(older), "%s/step-00000001", scratch);
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    off_t bytes = bytes_of(names[i]), stride = LADE_MAX(bytes / 150, 1);
    for (off_t at = 0; at < bytes; at += stride) {
      if (i == 3 && is_harmless(names[i], at))
        continue;
      struct lade_error error;
      byte_flip(names[i], at);
      int rc = load_newest(graph, &error);
      byte_flip(names[i], at);
      bool is_metadata = i < 2 && at < 40; /* {"__metadata__":{"format":"pt"}} has nothing that loading needs */
      if (rc == 0 && is_metadata)
        continue;
      if (rc != -EBADMSG && !(rc == -EINVAL && strstr(error.text, "format")))
        fail_msg("%s: byte %lld: %d %s", names[i], (long long)at, rc, error.text);
      assert_non_null(strstr(error.text, i == 3 ? "state.json" : names[i] + strlen("step-00000002/")));
      if (rc == -EBADMSG)
        assert_non_null(strstr(error.text, "step-00000001")); /* the older checkpoint to resume from */
    }
  }
  newest_is(graph, 2, 2);
  lade_model_graph_destroy(graph);
}

static void damage_names_the_tensor(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct lade_error error;
  save(graph, 1, 1, 0);
  byte_flip("step-00000001/optimizer.safetensors", bytes_of("step-00000001/optimizer.safetensors") - 1);
  assert_int_equal(load_newest(graph, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "exp_avg_sq.transformer.ln_f.bias"));
  assert_null(strstr(error.text, "resume")); /* there is no other */
  lade_model_graph_destroy(graph);
}

static void cut_and_missing_files_are_noticed(void **state)
{
  static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json", "state.json"};
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct lade_error error;
  char name[64];
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    save(graph, 1, 1, 0);
    snprintf(name, sizeof(name), "step-00000001/%s", names[i]);
    assert_int_equal(truncate(in_scratch(name), bytes_of(name) - 1), 0);
    assert_int_equal(load_newest(graph, &error), -EBADMSG);
    assert_non_null(strstr(error.text, names[i]));
    assert_int_equal(unlink(in_scratch(name)), 0);
    assert_int_equal(load_newest(graph, &error), -EBADMSG);
    assert_non_null(strstr(error.text, names[i]));
  }
  lade_model_graph_destroy(graph);
}

static void an_unknown_version_is_refused(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct lade_error error;
  char *text = NULL;
  size_t bytes;
  save(graph, 1, 1, 0);
  assert_int_equal(lade_file_load(in_scratch("step-00000001/state.json"), 1 << 20, NULL, &text, &bytes), 0);
  char *version = strstr(text, "\"format_version\": 2");
  assert_non_null(version);
  version[strlen("\"format_version\": ")] = '3';
  assert_int_equal(lade_file_replace(in_scratch("step-00000001/state.json"), text, bytes, NULL), 0);
  free(text);
  assert_int_equal(load_newest(graph, &error), -EINVAL);
  assert_non_null(strstr(error.text, "version 3"));
  lade_model_graph_destroy(graph);
}

static void another_model_is_refused(void **state)
{
  struct lade_model_graph *gpt2 = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct lade_model_graph *large = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_CHUNKS);
  struct lade_model_graph *llama = checkpoint_graph(LADE_LLAMA, LADE_F32, SIZE_SMALL);
  struct lade_error error;
  save(gpt2, 1, 1, 0);
  assert_int_equal(load_newest(large, &error), -EINVAL);
  assert_non_null(strstr(error.text, "another model"));
  assert_int_equal(load_newest(llama, &error), -EINVAL);
  assert_non_null(strstr(error.text, "another model"));
  lade_model_graph_destroy(gpt2);
  lade_model_graph_destroy(large);
  lade_model_graph_destroy(llama);
}

/* Same tensors, other arithmetic: the number of heads changes no shape. */
static void another_number_of_heads_is_refused(void **state)
{
  for (int family = LADE_GPT2; family <= LADE_LLAMA; family++) {
    struct lade_model_graph *graph = checkpoint_graph((enum lade_family)family, LADE_F32, SIZE_SMALL);
    struct lade_error error;
    save(graph, 1, 1, 0);
    graph->model.heads *= 2;
    assert_int_equal(load_newest(graph, &error), -EINVAL);
    assert_non_null(strstr(error.text, "attention heads"));
    graph->model.heads /= 2;
    graph->model.norm_eps *= 2;
    assert_int_equal(load_newest(graph, &error), -EINVAL);
    assert_non_null(strstr(error.text, "epsilon"));
    graph->model.norm_eps /= 2;
    assert_int_equal(load_newest(graph, &error), 0);
    lade_model_graph_destroy(graph);
  }
}

static void a_state_that_is_no_file_is_damage(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct lade_error error;
  static const char path[] = "step-00000002/state.json";
  save(graph, 1, 1, 0);
  save(graph, 1, 2, 0);
  assert_int_equal(rename(in_scratch(path), in_scratch("state")), 0);
  assert_int_equal(mkdir(in_scratch(path), 0700), 0);
  assert_int_equal(load_newest(graph, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "state.json"));
  assert_non_null(strstr(error.text, "step-00000001"));
  assert_int_equal(rmdir(in_scratch(path)), 0);
  assert_int_equal(mkfifo(in_scratch(path), 0600), 0);
  assert_int_equal(load_newest(graph, &error), -EBADMSG);
  assert_int_equal(unlink(in_scratch(path)), 0);
  assert_int_equal(symlink("state.json", in_scratch(path)), 0); /* onto itself */
  assert_int_equal(load_newest(graph, &error), -EIO);
  assert_int_equal(unlink(in_scratch(path)), 0);
  assert_int_equal(rename(in_scratch("state"), in_scratch(path)), 0);
  assert_int_equal(load_newest(graph, &error), 0);
  if (geteuid() != 0) { /* permissions do not bind root */
    assert_int_equal(chmod(in_scratch(path), 0), 0);
    assert_int_equal(load_newest(graph, &error), -EIO);
    assert_non_null(strstr(error.text, "Permission denied"));
  }
  lade_model_graph_destroy(graph);
}

static void a_checkpoint_under_the_name_of_another_step_is_refused(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  struct lade_error error;
  char found[PATH_BYTES];
  save(graph, 1, 1, 0);
  save(graph, 1, 2, 0);
  assert_int_equal(rename(in_scratch("step-00000002"), in_scratch("step-00000007")), 0);
  assert_int_equal(load_newest(graph, &error), -EBADMSG);
  assert_non_null(strstr(error.text, "is of step 2"));
  assert_non_null(strstr(error.text, "step-00000001"));
  assert_int_equal(rename(in_scratch("step-00000007"), in_scratch("best")), 0); /* any other name implies no step */
  assert_int_equal(lade_checkpoint_find(in_scratch("best"), found, sizeof(found), &error), 0);
  assert_int_equal(load_newest(graph, &error), 0);
  lade_model_graph_destroy(graph);
}

static void find_takes_a_directory_or_a_checkpoint(void **state)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_F32, SIZE_SMALL);
  char found[PATH_BYTES], wanted[PATH_BYTES];
  struct lade_error error = {0};
  assert_int_equal(lade_checkpoint_find(scratch, found, sizeof(found), &error), -ENOENT);
  assert_non_null(strstr(error.text, scratch));
  assert_int_equal(lade_checkpoint_find(in_scratch("nowhere"), found, sizeof(found), &error), -ENOENT);
  save(graph, 1, 1, 0);
  save(graph, 1, 2, 0);
  snprintf(wanted, sizeof(wanted), "%s/step-00000001", scratch);
  assert_int_equal(lade_checkpoint_find(wanted, found, sizeof(found), &error), 0);
  assert_string_equal(found, wanted);
  assert_int_equal(lade_checkpoint_find(scratch, found, sizeof(found), &error), 0);
  assert_non_null(strstr(found, "step-00000002"));
  assert_int_equal(lade_checkpoint_find(scratch, found, 8, &error), -ENAMETOOLONG);
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(saved_values_load_bit_for_bit, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(the_state_comes_back_exactly, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_state_without_its_run_loads, scratch_setup, scratch_teardown),
      cmocka_unit_test(a_run_is_compared_in_the_words_of_its_options),
      cmocka_unit_test_setup_teardown(another_number_of_heads_is_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_state_that_is_no_file_is_damage, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_checkpoint_under_the_name_of_another_step_is_refused, scratch_setup,
                                      scratch_teardown),
      cmocka_unit_test_setup_teardown(another_dtype_loads_the_same_masters, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(gpt2_weights_stand_transposed_in_the_file, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(the_config_reads_back_as_the_model, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(only_the_newest_are_kept, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_directory_with_files_of_others_is_left_alone, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(the_same_step_is_replaced, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(leftovers_go_with_the_next_save, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(two_saves_into_one_directory_exclude_each_other, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(every_flipped_byte_is_noticed, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(damage_names_the_tensor, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(cut_and_missing_files_are_noticed, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(an_unknown_version_is_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(another_model_is_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(find_takes_a_directory_or_a_checkpoint, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
