/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of several ranks, without a training step. One rank's checkpoint goes from layout to layout: each loads
 * the previous layout's checkpoint, in every form of state, and the final bits are the first ones. A rank that fails,
 * sees another directory, or reads a damaged file fails the call at all ranks. One line then names the rank and the
 * cause. If some of six ranks cannot verify a checkpoint's version, all refuse it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/base.h"
#include "base/cpu.h"
#include "run/checkpoint.h"
#include "run/checkpoint/snapshot.h"
#include "tests/parallel/world.h"
#include "tests/support/scratch.h"
#include "tests/support/values_memory.h"

#define PATH_BYTES 512
#define VOCABULARY 4203 /* tables are several parameters under ZeRO-3 in 16 bits, also with tensor parallel ranks */

static const struct {
  const char *name;
  enum lade_family family;
  enum lade_dtype dtype;
  enum lade_moments moments;
  enum lade_master master;
} cases[] = {{"gpt2 in fp32", LADE_GPT2, LADE_F32, LADE_MOMENTS_F32, LADE_MASTER_EXACT},
             {"llama in bf16", LADE_LLAMA, LADE_BF16, LADE_MOMENTS_F32, LADE_MASTER_EXACT},
             {"gpt2 with 8-bit moments", LADE_GPT2, LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT},
             {"llama, tied, with bf16 moments", LADE_LLAMA, LADE_BF16, LADE_MOMENTS_BF16, LADE_MASTER_24BIT},
             {"gpt2 in fp16", LADE_GPT2, LADE_F16, LADE_MOMENTS_F32, LADE_MASTER_EXACT},
             {"falcon in bf16", LADE_FALCON, LADE_BF16, LADE_MOMENTS_F32, LADE_MASTER_EXACT},
             {"phi3 in fp32", LADE_PHI3, LADE_F32, LADE_MOMENTS_F32, LADE_MASTER_EXACT}};

/* All layouts of four ranks. There are two KV heads, in Falcon one: with tp 4, or there with 2, ranks share them. */
static const struct lade_layout_params layouts[] = {
    {.tp = 2, .pp = 2},
    {.tp = 4},
    {.dp = 4, .zero = 3},
    {.tp = 2, .dp = 2, .zero = 1},
    {.pp = 2, .dp = 2, .zero = 2},
    {.pp = 4},
    {.dp = 4, .zero = 2, .shard = 2},
    {.tp = 2, .dp = 2, .is_sequence = true},
    {.tp = 2, .dp = 2, .zero = 3},
    {.pp = 2, .dp = 2, .zero = 3},
    {.pp = 2, .dp = 2, .schedule = LADE_SCHEDULE_INTERLEAVED, .virtual_stages = 2}};

/* ---- graphs ---- */

static struct lade_model_graph *graph_make(size_t i, const struct lade_layout *layout)
{
  static struct lade_kernels kernels;
  struct lade_cpu cpu = {0};
  struct lade_error error = {0};
  struct lade_model model = {.name = "test", .family = cases[i].family, .layers = 4, .heads = 4, .n_kv_heads = 2,
                             .width = 32, .hidden = 48, .context = 16, .vocabulary = VOCABULARY, .norm_eps = 1e-5f,
                             .rope_base = 10000, .is_tied = cases[i].family == LADE_GPT2 || i == 3};
  if (model.family == LADE_GPT2)
    model.n_kv_heads = model.heads;
  if (model.family == LADE_FALCON) /* its files have queries, keys and values in one tensor */
    model.n_kv_heads = model.n_parallel_norms = 1;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = cases[i].dtype,
                                     .batch = 1, .seq_len = 8, .kernels = &kernels, .n_threads = 1,
                                     .moments = cases[i].moments, .master = cases[i].master};
  if (layout)
    params.share = (struct lade_share){
        .tp = lade_layout_size(layout, LADE_AXIS_TP), .tp_rank = lade_layout_position(layout, LADE_AXIS_TP),
        .is_sequence = layout->is_sequence, .pp = lade_layout_size(layout, LADE_AXIS_PP),
        .pp_rank = lade_layout_position(layout, LADE_AXIS_PP), .n_chunks = layout->virtual_stages,
        .n_shards = layout->zero == LADE_ZERO_MAX ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1};
  struct lade_model_graph *graph = NULL;
  demand(!lade_model_graph_create(&params, &error, &graph), "%s", error.text);
  return graph;
}

/* ---- one rank's values under a layout ---- */

struct part {
  struct lade_rank_group group;
  struct lade_model_graph *whole, *graph;
  struct values_memory memory;
};

static void part_open(struct part *part, struct world *world, size_t i, const struct lade_layout_params *layout_params)
{
  struct lade_error error = {0};
  struct lade_layout_params params = *layout_params;
  params.struct_size = sizeof(params);
  demand(!lade_rank_group_join(world->comm, &error, &part->group), "%s", error.text);
  demand(!lade_rank_group_open(&params, &error, &part->group), "%s", error.text);
  part->whole = graph_make(i, NULL);
  part->graph = graph_make(i, &part->group.layout);
  values_memory_init(&part->memory, part->graph);
  part->memory.values.whole = part->whole;
  part->memory.values.group = &part->group;
}

static void part_close(struct part *part)
{
  values_memory_finish(&part->memory);
  lade_model_graph_destroy(part->graph);
  lade_model_graph_destroy(part->whole);
  lade_rank_group_close(&part->group);
}

static void barrier(struct world *world)
{
  demand(world_agrees(world, 0), "ranks part");
}

static const char *step_path(int64_t step)
{
  static char path[PATH_BYTES];
  snprintf(path, sizeof(path), "%s/step-%08d", scratch, (int)step);
  return path;
}

static int part_load(struct part *part, int64_t step, struct lade_error *error)
{
  struct lade_checkpoint_state state;
  return lade_checkpoint_load(&part->memory.values, step_path(step), NULL, &state, error);
}

static int part_save(struct part *part, int64_t step, uint64_t file_bytes, struct lade_faults *faults,
                     struct lade_error *error)
{
  const struct lade_checkpoint_state state = {.step = step, .loss_scale = 1, .model = "test"};
  const struct lade_checkpoint_place place = {.dir = scratch, .file_bytes = file_bytes};
  return lade_checkpoint_save(&part->memory.values, &state, &place, faults, error);
}

/* Save from a copy, as an async save does: the copy has the values. */
static int part_save_copy(struct part *part, int64_t step, struct lade_error *error)
{
  const struct lade_checkpoint_state state = {.step = step, .loss_scale = 1, .model = "test"};
  const struct lade_checkpoint_place place = {.dir = scratch, .file_bytes = 5000};
  lade_snapshot *snapshot = NULL;
  int status = lade_snapshot_create(&part->memory.values, NULL, error, &snapshot);
  if (!status)
    status = lade_snapshot_take(snapshot, error);
  demand(!status, "no copy of the values: %s", error->text);
  const struct lade_values values = lade_snapshot_values(snapshot, &part->group);
  status = lade_checkpoint_save(&values, &state, &place, NULL, error);
  lade_snapshot_destroy(snapshot);
  return status;
}

/* ---- one rank ---- */

/* Save random values, in the form of case @i, as step 1. Return their digest. */
static uint64_t alone_save(size_t i, struct values_memory *memory, struct lade_model_graph *graph)
{
  struct lade_error error = {0};
  struct lade_checkpoint_state state = {.step = 1, .loss_scale = 1, .model = "test"};
  const struct lade_checkpoint_place place = {.dir = scratch};
  uint64_t digest = 0;
  struct values_memory exact;
  struct lade_model_graph *plain = graph_make(cases[i].family == LADE_GPT2 ? 0 : 1, NULL);
  plain->model.is_tied = graph->model.is_tied;
  if (graph->moments == LADE_MOMENTS_F32) {
    values_memory_randomize(memory, 7);
  } else if (plain->n_params == graph->n_params) { /* rounded to this form from the exact one */
    values_memory_init(&exact, plain);
    values_memory_randomize(&exact, 7);
    demand(!lade_checkpoint_save(&exact.values, &state, &place, NULL, &error), "%s", error.text);
    demand(!lade_checkpoint_load(&memory->values, step_path(1), NULL, &state, &error), "%s", error.text);
    values_memory_finish(&exact);
  } else {
    demand(!lade_checkpoint_random(&memory->values, 7, &error), "%s", error.text);
  }
  demand(!lade_checkpoint_save(&memory->values, &state, &place, NULL, &error), "%s", error.text);
  demand(!lade_checkpoint_digest(&memory->values, &digest, &error), "%s", error.text);
  lade_model_graph_destroy(plain);
  return digest;
}

static void alone_compare(const struct values_memory *memory, int64_t step, const char *label, int layout)
{
  struct lade_error error = {0};
  struct lade_checkpoint_state state;
  struct values_memory loaded;
  values_memory_init(&loaded, memory->graph);
  demand(!lade_checkpoint_load(&loaded.values, step_path(step), NULL, &state, &error), "%s", error.text);
  demand(state.step == step && values_memory_equal(memory, &loaded), "%s: layout %d saves other bits than it loaded",
         label, layout);
  values_memory_finish(&loaded);
}

/* ---- properties ---- */

/* Load a checkpoint's weights like HuggingFace's: each rank takes its part, and recognises the other parts' names. */
static void weights_begin_a_run(struct part *part, uint64_t digest, const char *label)
{
  struct lade_error error = {0};
  uint64_t found = 0;
  demand(!lade_checkpoint_init(&part->memory.values, step_path(1), NULL, &error), "%s: %s", label, error.text);
  demand(!lade_checkpoint_digest(&part->memory.values, &found, &error), "%s: %s", label, error.text);
  demand(found == digest, "%s: a run begins with other parameters", label);
}

/* Save and load around all layouts, each from the one before. */
static void bits_go_around(struct world *world, size_t i)
{
  struct lade_model_graph *graph = graph_make(i, NULL);
  struct values_memory memory;
  struct lade_error error = {0};
  struct lade_rank_group all = {.world = world->comm, .layout.rank = world->rank};
  uint64_t digest = 0, found = 0;
  values_memory_init(&memory, graph);
  if (world->rank == 0)
    digest = alone_save(i, &memory, graph);
  demand(!lade_rank_group_broadcast(&all, 0, &digest, sizeof(digest), &error), "%s", error.text);
  for (int j = 0; j < (int)LADE_COUNT(layouts); j++) {
    struct part part;
    if (cases[i].moments == LADE_MOMENTS_8BIT && layouts[j].tp > 1)
      continue; /* blocks that share a scale have other limits: rounded once more */
    part_open(&part, world, i, &layouts[j]);
    demand(!part_load(&part, 1, &error), "%s: layout %d: %s", cases[i].name, j, error.text);
    demand(!lade_checkpoint_digest(&part.memory.values, &found, &error), "%s: layout %d: %s", cases[i].name, j,
           error.text);
    demand(found == digest, "%s: layout %d has another digest", cases[i].name, j);
    int status = j % 2 ? part_save_copy(&part, 1, &error) : part_save(&part, 1, 0, NULL, &error);
    demand(!status, "%s: layout %d: %s", cases[i].name, j, error.text);
    if (world->rank == 0)
      alone_compare(&memory, 1, cases[i].name, j);
    barrier(world);
    weights_begin_a_run(&part, digest, cases[i].name);
    part_close(&part);
  }
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
}

/* Each call of one rank fails, in turn: all ranks report it, and the previous checkpoint is still the newest. */
static void a_failing_rank_fails_the_save(struct world *world)
{
  struct part part;
  struct lade_error error = {0};
  char found[PATH_BYTES];
  part_open(&part, world, 0, &layouts[0]);
  demand(!part_load(&part, 1, &error), "%s", error.text);
  for (uint64_t nth = 1;; nth += 1 + nth / 8) {
    struct lade_faults faults;
    lade_faults_init(&faults);
    if (world->rank == 1)
      lade_faults_arm(&faults, LADE_FAULT_ANY, nth, false, -EIO);
    int status = part_save(&part, 2, 0, &faults, &error);
    if (!status)
      break;
    demand(strstr(error.text, "rank 1: ") == error.text, "the save fails with '%s'", error.text);
    demand(status == -EIO || status == -ENOMEM, "the save ends with %d: %s", status, error.text);
    demand(!lade_checkpoint_find(scratch, found, sizeof(found), &error) && strstr(found, "step-00000001"),
           "a failed save leaves %s", found);
    demand(nth < 100000, "a save fails for good: %s", error.text);
    barrier(world);
  }
  demand(!lade_checkpoint_find(scratch, found, sizeof(found), &error) && strstr(found, "step-00000002"),
         "a save leaves %s", found);
  barrier(world);
  part_close(&part);
}

static void a_rank_elsewhere_is_reported(struct world *world)
{
  struct part part;
  struct lade_error error = {0};
  char here[PATH_BYTES], there[PATH_BYTES];
  part_open(&part, world, 0, &layouts[0]);
  demand(!part_load(&part, 1, &error), "%s", error.text);
  snprintf(there, sizeof(there), "%s", scratch);
  demand(getcwd(here, sizeof(here)) && !chdir(world->rank == 3 ? "/" : there), "no directory to go to");
  const struct lade_checkpoint_state state = {.step = 3, .loss_scale = 1, .model = "test"};
  const struct lade_checkpoint_place place = {.dir = "elsewhere"};
  int status = lade_checkpoint_save(&part.memory.values, &state, &place, NULL, &error);
  demand(status == -ENOENT && strstr(error.text, "rank 3: ") && strstr(error.text, "one file system"),
         "the save ends with %d: %s", status, error.text);
  demand(!chdir(here), "no way back");
  barrier(world);
  part_close(&part);
}

/* Directories of one name in file systems of several nodes: a rank finds another checkpoint there. */
static void a_rank_that_sees_another_checkpoint_is_reported(struct world *world)
{
  struct part part;
  struct lade_error error = {0};
  part_open(&part, world, 0, &layouts[0]);
  int status = part_load(&part, world->rank == 3 ? 2 : 1, &error);
  demand(status == -EINVAL && strstr(error.text, "rank 3: ") && strstr(error.text, "one file system"),
         "the load ends with %d: %s", status, error.text);
  part_close(&part);
}

/* Change one bit of @name in step 2 at rank 0, @back bytes from its end; all ranks wait for it. */
static void bit_flip(struct world *world, const char *name, off_t back)
{
  char path[2 * PATH_BYTES];
  unsigned char byte = 0;
  snprintf(path, sizeof(path), "%s/%s", step_path(2), name);
  if (world->rank == 0) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t at = fd < 0 ? -1 : lseek(fd, -back, SEEK_END);
    demand(at >= 0 && pread(fd, &byte, 1, at) == 1, "%s cannot be read", path);
    byte ^= 4;
    demand(pwrite(fd, &byte, 1, at) == 1 && !close(fd), "%s cannot be written", path);
  }
  barrier(world);
}

/* If copies, replicas or parts read a changed bit, all their ranks get the error. */
static void damage_names_the_tensor(struct world *world)
{
  static const struct {
    const char *file, *tensor;
    off_t back;
  } flips[] = {{"model.safetensors", "tensor transformer.ln_f.bias", 1},
               {"model.safetensors", "tensor transformer.h.3.mlp.c_proj.weight", 4 * (32 + 32 + 32 + 5)},
               {"optimizer.safetensors", "tensor exp_avg_sq.transformer.ln_f.weight", 4 * 32 + 1}};
  for (size_t i = 0; i < LADE_COUNT(flips); i++) {
    for (int j = 0; j < (int)LADE_COUNT(layouts); j++) {
      struct part part;
      struct lade_error error = {0};
      part_open(&part, world, 0, &layouts[j]);
      bit_flip(world, flips[i].file, flips[i].back);
      int status = part_load(&part, 2, &error);
      demand(status == -EBADMSG && strstr(error.text, flips[i].tensor) && strstr(error.text, flips[i].file),
             "layout %d loads %s with %d: %s", j, flips[i].tensor, status, error.text);
      barrier(world);
      bit_flip(world, flips[i].file, flips[i].back);
      part_close(&part);
    }
  }
}

/* Make @step one of format version 1, for a reader of its state alone: checksums of tensors have the wrong meaning. */
static void state_downgrade(int64_t step)
{
  char path[PATH_BYTES + 16], sum[20];
  const char *key;
  json_t *file, *entry;
  snprintf(path, sizeof(path), "%s/state.json", step_path(step));
  json_t *root = json_load_file(path, 0, NULL);
  json_object_foreach(json_object_get(root, "files"), key, file)
  {
    json_object_foreach(json_object_get(file, "tensors"), key, entry)
    {
      json_object_set(entry, "xxh3", json_object_get(entry, "sum"));
      json_object_del(entry, "sum");
    }
  }
  json_object_set_new(root, "format_version", json_integer(1));
  json_object_del(root, "checksum");
  char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  snprintf(sum, sizeof(sum), "%016" PRIx64, XXH3_64bits(text, strlen(text)));
  json_object_set_new(root, "checksum", json_string(sum));
  demand(!json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(17)), "%s cannot be written", path);
  free(text);
  json_decref(root);
}

/* Tables are in parts at the first and the last of three stages; the stage between has none. */
static void version_1_is_refused_by_all_stages(struct world *world)
{
  struct part part;
  struct lade_error error = {0};
  part_open(&part, world, 1, &(struct lade_layout_params){.pp = 3, .dp = 2, .zero = 3});
  values_memory_randomize(&part.memory, 7);
  demand(!part_save(&part, 1, 0, NULL, &error), "%s", error.text);
  if (world->rank == 0)
    state_downgrade(1);
  barrier(world);
  demand(world->rank / 2 == 1 || lade_model_graph_has_parts(part.graph), "rank %d has no parts", world->rank);
  demand(world->rank / 2 != 1 || !lade_model_graph_has_parts(part.graph), "rank %d has parts", world->rank);
  int status = part_load(&part, 1, &error);
  demand(status == -EINVAL && strstr(error.text, "rank 0: ") == error.text && strstr(error.text, "format version 1"),
         "rank %d loads version 1 with %d: %s", world->rank, status, error.text);
  barrier(world);
  part_close(&part);
}

/* ---- main ---- */

static void scratch_share(struct world *world)
{
  struct lade_error error = {0};
  struct lade_rank_group all = {.world = world->comm, .layout.rank = world->rank};
  if (world->rank == 0)
    scratch_setup_in_memory(NULL);
  demand(!lade_rank_group_broadcast(&all, 0, scratch, sizeof(scratch), &error), "%s", error.text);
}

static void four_ranks_test(struct world *world)
{
  for (size_t i = LADE_COUNT(cases); i-- > 0;) /* the first case's checkpoint stays for the tests below */
    bits_go_around(world, i);
  a_failing_rank_fails_the_save(world);
  a_rank_elsewhere_is_reported(world);
  a_rank_that_sees_another_checkpoint_is_reported(world);
  damage_names_the_tensor(world);
}

int main(void)
{
  struct world world;
  world_open(&world);
  scratch_share(&world);
  if (world.size == 6)
    version_1_is_refused_by_all_stages(&world);
  else
    four_ranks_test(&world);
  barrier(&world);
  if (world.rank == 0)
    scratch_teardown(NULL);
  printf("DONE\n");
  fflush(stdout);
  world_close(&world);
  return 0;
}
