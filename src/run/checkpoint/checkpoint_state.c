/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON files of a checkpoint.
 *
 * A directory with a state.json is a checkpoint. The file has the state of a run beside its tensors, the size of every
 * other file, and the shape and checksum of every tensor. Its own checksum, "checksum", is the XXH3 of the object
 * without that key, dumped compact with sorted keys. So the file may be reformatted, but a changed value is found.
 * 64-bit patterns are hexadecimal strings, because many readers turn JSON's numbers into doubles.
 *
 * The version is checked before the checksum, because a later version may compute it differently, and the refusal names
 * the version. After the checksum, a field that is absent or of a wrong type is damage. Version 1 had XXH3 sums of
 * tensors; version 2 has sums that ranks can add up (checkpoint_tally.c).
 *
 * config.json has the model in the terms of HuggingFace's configurations. Numbers that the graph holds as FP32 are
 * written with the fewest digits that read back as the same FP32.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "graph/model_json.h"
#include "run/checkpoint/checkpoint_internal.h"

#define FORMAT "lade-checkpoint"
#define FORMAT_VERSION 2 /* written */
#define FORMAT_VERSION_XXH3 1 /* can be read */
#define MAX_STATE_BYTES (64u << 20) /* also of the index: a thousand layers take a few MiB */
#define MAX_CONFIG_BYTES (1u << 20)
#define MAX_TOKENIZER_BYTES (256u << 20)
#define CANONICAL (JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17))

const char *slice_name(const struct lade_param_slice *slice, enum chunk_kind kind, char name[CHECKPOINT_NAME_BYTES])
{
  static const char *const prefixes[CHUNK_N_KINDS] = {"", "exp_avg.", "exp_avg_sq."};
  snprintf(name, CHECKPOINT_NAME_BYTES, "%s%s", prefixes[kind], slice->name);
  return name;
}

int checkpoint_path_join(char path[PATH_MAX], const char *dir, const char *name, struct lade_error *error)
{
  if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", dir);
  return 0;
}

int saved_file_error(int code, struct lade_error *error)
{
  if (code == -EINVAL || code == -EBADMSG)
    code = -EBADMSG;
  else if (code != -ENOENT && code != -ENOMEM && code != -ENAMETOOLONG)
    code = -EIO;
  if (error)
    error->code = code;
  return code;
}

/* ---- small files ---- */

/* Write @bytes of @data as @dir/@name, durably. */
static int small_file_write(const char *data, size_t bytes, const char *dir, const char *name,
                            struct lade_faults *faults, struct lade_error *error)
{
  char path[PATH_MAX];
  int rc = checkpoint_path_join(path, dir, name, error);
  static const enum lade_fault_point points[] = {LADE_FAULT_FILE_OPEN, LADE_FAULT_FILE_WRITE, LADE_FAULT_FILE_SYNC};
  for (size_t i = 0; i < LADE_COUNT(points) && rc == 0; i++) {
    rc = lade_fault(faults, points[i]);
    if (rc < 0)
      lade_error_set(error, rc, "%s: cannot write: %s", path, strerror(-rc));
  }
  return rc < 0 ? rc : lade_file_replace(path, data, bytes, error);
}

/* Write @root as @dir/@name. @root is consumed and may be NULL (out of memory). */
static int json_write(json_t *root, size_t flags, const char *dir, const char *name, struct lade_faults *faults,
                      struct lade_error *error)
{
  char *text = root ? json_dumps(root, flags) : NULL;
  json_decref(root);
  int rc = text ? small_file_write(text, strlen(text), dir, name, faults, error)
                : lade_error_set(error, -ENOMEM, "%s/%s: out of memory", dir, name);
  free(text);
  return rc;
}

int saved_tokenizer_write(const struct lade_checkpoint_place *place, const char *dir, struct lade_faults *faults,
                          struct lade_error *error)
{
  if (!place->tokenizer)
    return 0;
  return small_file_write(place->tokenizer, place->tokenizer_bytes, dir, CHECKPOINT_TOKENIZER, faults, error);
}

/* ---- config.json ---- */

int saved_config_write(const struct lade_model *model, const char *dir, struct lade_faults *faults,
                       struct lade_error *error)
{
  return json_write(lade_model_json(model), JSON_INDENT(2) | JSON_REAL_PRECISION(9), dir, CHECKPOINT_CONFIG, faults,
                    error);
}

/* ---- the index of a model in several files ---- */

static bool model_is_split(const struct checkpoint_table *table)
{
  return table->tensors[0].file != table->tensors[table->n_slices - 1].file;
}

static json_t *index_json(const struct checkpoint_table *table)
{
  json_t *map = json_object();
  int64_t bytes = 0;
  for (int i = 0; i < table->n_slices && map; i++) {
    const struct table_tensor *tensor = &table->tensors[i];
    bytes += tensor->n_elements * (int64_t)sizeof(float);
    if (json_object_set_new(map, tensor->slice->name, json_string(table->files.items[tensor->file].name)) != 0) {
      json_decref(map);
      map = NULL;
    }
  }
  return map ? json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map) : NULL;
}

int saved_index_write(const struct checkpoint_table *table, const char *dir, struct lade_faults *faults,
                      struct lade_error *error)
{
  if (!model_is_split(table))
    return 0;
  return json_write(index_json(table), JSON_INDENT(2), dir, CHECKPOINT_INDEX, faults, error);
}

/* ---- writing state.json ---- */

/* Compute the XXH3 of the canonical dump. False: out of memory. */
static bool object_sum(const json_t *object, uint64_t *ret_sum)
{
  char *text = json_dumps(object, CANONICAL);
  if (!text)
    return false;
  *ret_sum = XXH3_64bits(text, strlen(text));
  free(text);
  return true;
}

static int file_sum(const char *path, size_t max_bytes, uint64_t *ret_sum, struct lade_error *error)
{
  char *text;
  size_t bytes;
  int rc = lade_file_load(path, max_bytes, error, &text, &bytes);
  if (rc < 0)
    return saved_file_error(rc, error);
  *ret_sum = XXH3_64bits(text, bytes);
  free(text);
  return 0;
}

static json_t *shape_json(const struct table_tensor *tensor)
{
  return tensor->n_dims == 1 ? json_pack("[I]", (json_int_t)tensor->dims[0])
                             : json_pack("[I,I]", (json_int_t)tensor->dims[0], (json_int_t)tensor->dims[1]);
}

static int file_size(const char *dir, const char *name, char path[PATH_MAX], int64_t *ret_bytes,
                     struct lade_error *error)
{
  struct stat st;
  int rc = checkpoint_path_join(path, dir, name, error);
  if (rc == 0 && stat(path, &st) < 0)
    rc = lade_error_set(error, -errno, "%s: %s", path, strerror(errno));
  if (rc == 0)
    *ret_bytes = st.st_size;
  return rc;
}

static bool small_file_exists(const char *dir, const char *name)
{
  char path[PATH_MAX];
  return checkpoint_path_join(path, dir, name, NULL) == 0 && access(path, F_OK) == 0;
}

/* Return state.json's entry of a small file: its size and its sum. NULL: see @error. */
static json_t *small_file_json(const char *dir, const char *name, size_t max_bytes, struct lade_error *error)
{
  char path[PATH_MAX];
  int64_t bytes = 0;
  uint64_t sum = 0;
  int rc = file_size(dir, name, path, &bytes, error);
  if (rc == 0)
    rc = file_sum(path, max_bytes, &sum, error);
  return rc < 0 ? NULL : json_pack("{s:I,s:o}", "bytes", (json_int_t)bytes, "xxh3", hex_json(sum));
}

/* Return state.json's entry of a file of tensors: its size, and each tensor's shape and sum. NULL: see @error. */
static json_t *file_json(const struct checkpoint_table *table, const struct table_file *file, const char *dir,
                         struct lade_error *error)
{
  char path[PATH_MAX], name[CHECKPOINT_NAME_BYTES];
  int64_t bytes = 0;
  if (file_size(dir, file->name, path, &bytes, error) < 0)
    return NULL;
  json_t *tensors = json_object();
  for (int i = file->first; i < file->first + file->n && tensors; i++) {
    const struct table_tensor *tensor = &table->tensors[i];
    json_t *entry = json_pack("{s:o,s:o}", "shape", shape_json(tensor), "sum", hex_json(table->tallies[i].sum));
    if (!entry || json_object_set_new(tensors, slice_name(tensor->slice, tensor->kind, name), entry)) {
      json_decref(tensors);
      tensors = NULL;
    }
  }
  return tensors ? json_pack("{s:I,s:o}", "bytes", (json_int_t)bytes, "tensors", tensors) : NULL;
}

/* Put @value, which is consumed and may be NULL, into @object. False: out of memory, or no value. */
static bool value_put(json_t *object, const char *key, json_t *value)
{
  return value && json_object_set_new(object, key, value) == 0;
}

/* Return the entries of all files except state.json. NULL: see @error. */
static json_t *files_json(const struct checkpoint_table *table, const char *dir, struct lade_error *error)
{
  json_t *files = json_object();
  bool is_made = files && value_put(files, CHECKPOINT_CONFIG,
                                    small_file_json(dir, CHECKPOINT_CONFIG, MAX_CONFIG_BYTES, error));
  if (is_made && model_is_split(table))
    is_made = value_put(files, CHECKPOINT_INDEX, small_file_json(dir, CHECKPOINT_INDEX, MAX_STATE_BYTES, error));
  if (is_made && small_file_exists(dir, CHECKPOINT_TOKENIZER))
    is_made = value_put(files, CHECKPOINT_TOKENIZER,
                        small_file_json(dir, CHECKPOINT_TOKENIZER, MAX_TOKENIZER_BYTES, error));
  for (int i = 0; i < table->files.n && is_made; i++) {
    const struct table_file *file = &table->files.items[i];
    is_made = value_put(files, file->name, file_json(table, file, dir, error));
  }
  if (is_made)
    return files;
  json_decref(files);
  return NULL;
}

static json_t *state_json(const struct lade_checkpoint_state *state, json_t *files)
{
  json_t *root = json_pack("{s:s,s:i,s:s,s:I,s:I,s:I,s:f,s:I,s:o,s:o,s:o}", "format", FORMAT, "format_version",
                           FORMAT_VERSION, "model", state->model, "step", (json_int_t)state->step, "data_position",
                           (json_int_t)state->data_position, "seed", (json_int_t)state->seed, "loss_scale",
                           state->loss_scale, "good_steps", (json_int_t)state->good_steps, "loss_digest",
                           hex_json(state->loss_digest), "numerics_key", hex_json(state->numerics_key), "files",
                           files);
  uint64_t sum;
  if (root && (!state->run.is_known || value_put(root, "run", saved_run_json(&state->run))) &&
      object_sum(root, &sum) && value_put(root, "checksum", hex_json(sum)))
    return root;
  json_decref(root);
  return NULL;
}

int saved_state_write(const struct checkpoint_table *table, const struct lade_checkpoint_state *state, const char *dir,
                      struct lade_faults *faults, struct lade_error *error)
{
  struct lade_error problem;
  lade_error_set(&problem, -ENOMEM, "%s: out of memory for %s", dir, CHECKPOINT_STATE);
  json_t *files = files_json(table, dir, &problem);
  if (!files)
    return lade_error_set(error, problem.code, "%s", problem.text);
  return json_write(state_json(state, files), JSON_INDENT(1) | JSON_REAL_PRECISION(17), dir, CHECKPOINT_STATE, faults,
                    error);
}

/* ---- reading state.json ---- */

static int state_damaged(const char *path, const char *fault, struct lade_error *error)
{
  return lade_error_set(error, -EBADMSG, "%s/%s is damaged: %s", path, CHECKPOINT_STATE, fault);
}

static int version_check(struct saved_state *file, const char *path, struct lade_error *error)
{
  const char *format = json_string_value(json_object_get(file->root, "format"));
  const json_t *version = json_object_get(file->root, "format_version");
  if (!format || !json_is_integer(version))
    return state_damaged(path, "it does not name its format", error);
  if (strcmp(format, FORMAT) != 0)
    return lade_error_set(error, -EINVAL, "%s/%s: format '%.32s' is not a checkpoint's", path, CHECKPOINT_STATE,
                          format);
  file->has_xxh3 = json_integer_value(version) == FORMAT_VERSION_XXH3;
  if (json_integer_value(version) != FORMAT_VERSION && !file->has_xxh3)
    return lade_error_set(error, -EINVAL, "%s/%s: format version %lld is unknown: this build reads versions %d and %d",
                          path, CHECKPOINT_STATE, (long long)json_integer_value(version), FORMAT_VERSION_XXH3,
                          FORMAT_VERSION);
  return 0;
}

static int checksum_check(json_t *root, const char *path, uint64_t *ret_sum, struct lade_error *error)
{
  uint64_t stated, computed;
  if (!hex_get(json_object_get(root, "checksum"), &stated))
    return state_damaged(path, "its checksum is missing", error);
  json_object_del(root, "checksum");
  if (!object_sum(root, &computed))
    return lade_error_set(error, -ENOMEM, "%s/%s: out of memory", path, CHECKPOINT_STATE);
  if (stated != computed)
    return state_damaged(path, "its checksum differs", error);
  *ret_sum = stated;
  return 0;
}

static int fields_read(json_t *root, const char *path, struct lade_checkpoint_state *state, struct lade_error *error)
{
  json_int_t step, position, seed, good_steps;
  double loss_scale;
  const char *model;
  const json_t *run = json_object_get(root, "run");
  json_t *files;
  struct lade_checkpoint_state read = {0};
  if (json_unpack(root, "{s:s,s:I,s:I,s:I,s:F,s:I,s:o}", "model", &model, "step", &step, "data_position", &position,
                  "seed", &seed, "loss_scale", &loss_scale, "good_steps", &good_steps, "files", &files) != 0 ||
      !hex_get(json_object_get(root, "loss_digest"), &read.loss_digest) ||
      !hex_get(json_object_get(root, "numerics_key"), &read.numerics_key) ||
      (run && !saved_run_read(run, &read.run)))
    return state_damaged(path, "a field is missing or of the wrong type", error);
  snprintf(read.model, sizeof(read.model), "%s", model);
  read.step = step;
  read.data_position = position;
  read.seed = (uint64_t)seed;
  read.loss_scale = loss_scale;
  read.good_steps = good_steps;
  const char *fault = saved_state_fault(&read);
  if (fault)
    return lade_error_set(error, -EBADMSG, "%s/%s is damaged: its %s is out of range", path, CHECKPOINT_STATE, fault);
  *state = read;
  return 0;
}

static int size_check(const char *path, const char *name, const json_t *entry, struct lade_error *error)
{
  char file_path[PATH_MAX];
  struct stat st;
  const json_t *bytes = json_object_get(entry, "bytes");
  if (!table_is_file_name(name) && strcmp(name, CHECKPOINT_CONFIG) != 0 && strcmp(name, CHECKPOINT_INDEX) != 0 &&
      strcmp(name, CHECKPOINT_TOKENIZER) != 0)
    return state_damaged(path, "a file has a name that no save writes", error);
  if (!json_is_integer(bytes))
    return state_damaged(path, "a file's size is not a number", error);
  int rc = checkpoint_path_join(file_path, path, name, error);
  if (rc < 0)
    return rc;
  if (stat(file_path, &st) < 0)
    return errno == ENOENT ? lade_error_set(error, -EBADMSG, "%s is missing: the checkpoint is damaged", file_path)
                           : lade_error_set(error, -errno, "%s: %s", file_path, strerror(errno));
  if (st.st_size != json_integer_value(bytes))
    return lade_error_set(error, -EBADMSG, "%s is damaged: %lld bytes, not %lld", file_path,
                          (long long)st.st_size, (long long)json_integer_value(bytes));
  return 0;
}

static int sizes_check(json_t *root, const char *path, struct lade_error *error)
{
  const char *name;
  json_t *entry;
  json_object_foreach(json_object_get(root, "files"), name, entry)
  {
    int rc = size_check(path, name, entry, error);
    if (rc < 0)
      return rc;
  }
  return 0;
}

/* Read the object in state.json; NULL: see @error. */
static json_t *root_load(const char *path, struct lade_faults *faults, struct lade_error *error)
{
  char state_path[PATH_MAX], *text = NULL;
  size_t bytes = 0;
  json_error_t problem;
  int rc = checkpoint_path_join(state_path, path, CHECKPOINT_STATE, error);
  if (rc == 0 && (rc = lade_fault(faults, LADE_FAULT_FILE_OPEN)) < 0)
    lade_error_set(error, rc, "%s: cannot open: %s", state_path, strerror(-rc));
  if (rc == 0 && (rc = lade_fault(faults, LADE_FAULT_FILE_READ)) < 0)
    lade_error_set(error, rc, "%s: cannot read: %s", state_path, strerror(-rc));
  if (rc < 0)
    return NULL;
  rc = lade_file_load(state_path, MAX_STATE_BYTES, error, &text, &bytes);
  if (rc < 0) {
    saved_file_error(rc, error);
    return NULL;
  }
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
  free(text);
  if (!root && json_error_code(&problem) == json_error_out_of_memory)
    lade_error_set(error, -ENOMEM, "%s: out of memory", state_path);
  else if (!root)
    lade_error_set(error, -EBADMSG, "%s is damaged: line %d is not JSON", state_path, problem.line);
  return root;
}

int saved_state_read_alone(struct saved_state *file, const char *path, struct lade_faults *faults,
                           struct lade_error *error)
{
  struct lade_error local = {0};
  error = error ? error : &local;
  *file = (struct saved_state){.root = root_load(path, faults, error)};
  if (!file->root)
    return error->code;
  int rc = version_check(file, path, error);
  if (rc == 0)
    rc = checksum_check(file->root, path, &file->sum, error);
  if (rc == 0)
    rc = fields_read(file->root, path, &file->state, error);
  if (rc < 0)
    saved_state_finish(file);
  return rc;
}

int saved_state_read(struct saved_state *file, const char *path, struct lade_faults *faults, struct lade_error *error)
{
  int rc = saved_state_read_alone(file, path, faults, error);
  if (rc == 0)
    rc = sizes_check(file->root, path, error);
  if (rc < 0)
    saved_state_finish(file);
  return rc;
}

void saved_state_finish(struct saved_state *file)
{
  json_decref(file->root);
  file->root = NULL;
}

/* ---- the file of each tensor ---- */

/* List the files of tensors that the state names. */
static int files_list(const struct saved_state *file, const char *path, struct checkpoint_table *table,
                      int *ret_n_tensors, struct lade_error *error)
{
  const char *name;
  json_t *entry;
  json_object_foreach(json_object_get(file->root, "files"), name, entry)
  {
    const json_t *tensors = json_object_get(entry, "tensors");
    struct table_file listed = {.n = 0};
    if (!tensors)
      continue;
    if (!table_is_file_name(name) || strlen(name) >= sizeof(listed.name))
      return state_damaged(path, "a file has a name that no save writes", error);
    strcpy(listed.name, name);
    *ret_n_tensors += (int)json_object_size(tensors);
    if (!LADE_PUSH(&table->files, listed))
      return lade_error_set(error, -ENOMEM, "%s: out of memory for its list of files", path);
  }
  return 0;
}

/*
 * Return the entry of tensor @name, searched from file *@guess on, and set *@guess to its file. NULL: no file has it.
 */
static const json_t *tensor_find(const struct saved_state *file, const struct checkpoint_table *table, const char *name,
                                 int *guess)
{
  const json_t *files = json_object_get(file->root, "files");
  for (int i = 0; i < table->files.n; i++) {
    const int at = (*guess + i) % table->files.n;
    const json_t *tensors = json_object_get(json_object_get(files, table->files.items[at].name), "tensors");
    const json_t *entry = json_object_get(tensors, name);
    if (entry) {
      *guess = at;
      return entry;
    }
  }
  return NULL;
}

/* Take the file and the sum of tensor @at from its entry, which is most often in the file of the tensor before it. */
static int tensor_take(const struct saved_state *file, const char *path, struct checkpoint_table *table, int at,
                       uint64_t *ret_sum, struct lade_error *error)
{
  struct table_tensor *tensor = &table->tensors[at];
  int guess = at ? table->tensors[at - 1].file : 0;
  char name[CHECKPOINT_NAME_BYTES];
  slice_name(tensor->slice, tensor->kind, name);
  const json_t *entry = tensor_find(file, table, name, &guess);
  if (!entry)
    return lade_error_set(error, -EINVAL, "%s: tensor %s is missing: this is a checkpoint of another model (%s)", path,
                          name, file->state.model);
  json_t *shape = shape_json(tensor);
  bool is_shape = shape && json_equal(json_object_get(entry, "shape"), shape);
  json_decref(shape);
  if (!is_shape)
    return lade_error_set(error, -EINVAL,
                          "%s: tensor %s is of another shape: this is a checkpoint of another model (%s)", path, name,
                          file->state.model);
  if (!hex_get(json_object_get(entry, file->has_xxh3 ? "xxh3" : "sum"), ret_sum))
    return state_damaged(path, "a tensor's checksum is missing", error);
  tensor->file = guess;
  return 0;
}

int saved_tensors_find(const struct saved_state *file, const char *path, struct checkpoint_table *table,
                       uint64_t *ret_sums, struct lade_error *error)
{
  const int n = CHUNK_N_KINDS * table->n_slices;
  int n_saved = 0, rc = files_list(file, path, table, &n_saved, error);
  for (int i = 0; i < n && rc == 0; i++)
    rc = tensor_take(file, path, table, i, &ret_sums[i], error);
  if (rc == 0 && n_saved != n)
    rc = lade_error_set(error, -EINVAL, "%s: has %d tensors, the model %d: this is a checkpoint of another model (%s)",
                        path, n_saved, n, file->state.model);
  return rc;
}

bool saved_sum_find(const struct saved_state *file, const char *name, uint64_t *ret_sum)
{
  const char *file_name;
  json_t *entry;
  json_object_foreach(json_object_get(file->root, "files"), file_name, entry)
  {
    const json_t *tensor = json_object_get(json_object_get(entry, "tensors"), name);
    if (tensor)
      return hex_get(json_object_get(tensor, file->has_xxh3 ? "xxh3" : "sum"), ret_sum);
  }
  return false;
}

/* Compare the small file @name with its sum. */
static int small_file_verify(const struct saved_state *file, const char *path, const char *name, size_t max_bytes,
                             struct lade_error *error)
{
  char file_path[PATH_MAX];
  uint64_t stated, computed = 0;
  const json_t *entry = json_object_get(json_object_get(file->root, "files"), name);
  if (!hex_get(json_object_get(entry, "xxh3"), &stated))
    return state_damaged(path, "a file's checksum is missing", error);
  int rc = checkpoint_path_join(file_path, path, name, error);
  if (rc == 0)
    rc = file_sum(file_path, max_bytes, &computed, error);
  if (rc < 0 || stated == computed)
    return rc;
  return lade_error_set(error, -EBADMSG, "%s is damaged: its checksum differs", file_path);
}

int saved_config_verify(const struct saved_state *file, const char *path, struct lade_error *error)
{
  return small_file_verify(file, path, CHECKPOINT_CONFIG, MAX_CONFIG_BYTES, error);
}

int lade_checkpoint_check_tokenizer(const char *path, struct lade_error *error)
{
  struct saved_state file;
  if (!small_file_exists(path, CHECKPOINT_TOKENIZER) || !small_file_exists(path, CHECKPOINT_STATE))
    return 0;
  int rc = saved_state_read_alone(&file, path, NULL, error);
  if (rc < 0)
    return rc;
  const bool is_stated = json_object_get(json_object_get(file.root, "files"), CHECKPOINT_TOKENIZER);
  rc = is_stated ? small_file_verify(&file, path, CHECKPOINT_TOKENIZER, MAX_TOKENIZER_BYTES, error) : 0;
  saved_state_finish(&file);
  return rc;
}
