/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting from weights that somebody else saved, as HuggingFace publishes them.
 *
 * A path is one safetensors file, or a directory with model.safetensors, or with an index that says which of several
 * files holds which tensor. Names differ by who saved: GPT2LMHeadModel writes "transformer.h.0...", GPT2Model
 * "h.0..."; LlamaForCausalLM "model.layers.0...", LlamaModel "layers.0...". A name is compared without that prefix.
 *
 * Every tensor of the model must be there, in its shape and in F32, F16 or BF16, and every tensor that is there must be
 * the model's: a layer too many in the file is as wrong as one too few. Exceptions are what is no weight:
 * GPT-2's causal masks and Llama's rotary frequencies, which old versions stored, and the head of a model
 * whose head is its token table. All of this is checked before the first value is set.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "run/checkpoint_internal.h"

#define INDEX_MAX_BYTES (64u << 20)

struct init_file {
  char *path;
  lade_safetensors *file;
};

struct init {
  const struct lade_values *values;
  struct lade_faults *faults;
  LADE_ARRAY(struct init_file) files;
  struct slice_source *sources; /* one per slice */
  const char **names;           /* of all slices of the whole model, bare, sorted */
  int n_names;
};

/* A name without the prefix that depends on who saved it. */
static const char *name_bare(const char *name)
{
  static const char *const prefixes[] = {"transformer.", "model."};
  for (size_t i = 0; i < LADE_COUNT(prefixes); i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
      return name + strlen(prefixes[i]);
  return name;
}

static int name_compare(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* ---- files ---- */

static int file_add(struct init *init, const char *path, struct lade_error *error)
{
  struct init_file file = {.path = lade_fault(init->faults, LADE_FAULT_HEAP) ? NULL : strdup(path)};
  if (!file.path || !LADE_PUSH(&init->files, file)) {
    free(file.path);
    return lade_error_set(error, -ENOMEM, "%s: out of memory", path);
  }
  return lade_safetensors_open(path, init->faults, error, &init->files.items[init->files.n - 1].file);
}

/* A file of the index, once. Its name comes from a stranger: it stays in the index's directory. */
static int indexed_file_add(struct init *init, const char *dir, const char *index, const char *name,
                            struct lade_error *error)
{
  char path[PATH_MAX];
  if (!name || !*name || strchr(name, '/') || name[0] == '.')
    return lade_error_set(error, -EINVAL, "%s: weight_map holds '%.64s': expected a file's name in the same directory",
                          index, name ? name : "no text");
  int rc = checkpoint_path_join(path, dir, name, error);
  if (rc < 0)
    return rc;
  for (int i = 0; i < init->files.n; i++)
    if (strcmp(init->files.items[i].path, path) == 0)
      return 0;
  return file_add(init, path, error);
}

static int index_read(struct init *init, const char *dir, const char *index, struct lade_error *error)
{
  char *text = NULL;
  const char *tensor;
  size_t bytes = 0;
  json_t *file;
  json_error_t problem;
  int rc = lade_fault(init->faults, LADE_FAULT_FILE_OPEN);
  if (rc < 0)
    return lade_error_set(error, rc, "%s: cannot open: %s", index, strerror(-rc));
  rc = lade_file_load(index, INDEX_MAX_BYTES, error, &text, &bytes);
  if (rc < 0)
    return rc;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
  json_t *map = json_object_get(root, "weight_map");
  free(text);
  if (!root)
    rc = lade_error_set(error, -EINVAL, "%s: line %d: not JSON: %.120s", index, problem.line, problem.text);
  else if (json_object_size(map) == 0)
    rc = lade_error_set(error, -EINVAL, "%s: weight_map is missing or empty: not an index of safetensors", index);
  json_object_foreach(map, tensor, file)
  {
    if (rc == 0)
      rc = indexed_file_add(init, dir, index, json_string_value(file), error);
  }
  json_decref(root);
  return rc;
}

static int files_open(struct init *init, const char *path, struct lade_error *error)
{
  struct stat st;
  char inside[PATH_MAX];
  if (stat(path, &st) < 0)
    return lade_error_set(error, -errno, "%s: cannot open: %s", path, strerror(errno));
  if (!S_ISDIR(st.st_mode))
    return file_add(init, path, error);
  int rc = checkpoint_path_join(inside, path, CHECKPOINT_MODEL, error);
  if (rc < 0 || access(inside, F_OK) == 0)
    return rc < 0 ? rc : file_add(init, inside, error);
  rc = checkpoint_path_join(inside, path, CHECKPOINT_INDEX, error);
  if (rc == 0 && access(inside, F_OK) < 0)
    rc = lade_error_set(error, -ENOENT, "%s: neither %s nor %s is in it", path, CHECKPOINT_MODEL, CHECKPOINT_INDEX);
  return rc < 0 ? rc : index_read(init, path, inside, error);
}

/* ---- tensors ---- */

static const struct lade_safetensor *tensor_find(const lade_safetensors *file, const char *name)
{
  static const char *const prefixes[] = {"", "transformer.", "model."};
  const char *bare = name_bare(name);
  const struct lade_safetensor *tensor = lade_safetensors_find(file, name);
  for (size_t i = 0; i < LADE_COUNT(prefixes) && !tensor; i++) {
    char other[CHECKPOINT_NAME_BYTES];
    snprintf(other, sizeof(other), "%s%s", prefixes[i], bare);
    tensor = lade_safetensors_find(file, other);
  }
  return tensor;
}

/* "[768, 2304]" into @text. */
static const char *shape_text(const int64_t *dims, int n_dims, char *text, size_t text_bytes)
{
  size_t used = (size_t)snprintf(text, text_bytes, "[");
  for (int i = 0; i < n_dims && used < text_bytes; i++)
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld", i ? ", " : "", (long long)dims[i]);
  if (used < text_bytes)
    snprintf(text + used, text_bytes - used, "]");
  return text;
}

static int source_check(const struct slice_source *source, const int64_t *dims, int n_dims, struct lade_error *error)
{
  const struct lade_safetensor *tensor = source->tensor;
  char has[192], wanted[64];
  if (tensor->dtype != LADE_F32 && tensor->dtype != LADE_F16 && tensor->dtype != LADE_BF16)
    return lade_error_set(error, -EINVAL, "%s: tensor %s is %s: expected F32, F16 or BF16", source->path, tensor->name,
                          tensor->type);
  if (tensor->n_dims == n_dims && memcmp(tensor->dims, dims, (size_t)n_dims * sizeof(*dims)) == 0)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: tensor %s has shape %s: this model expects %s", source->path,
                        tensor->name, shape_text(tensor->dims, tensor->n_dims, has, sizeof(has)),
                        shape_text(dims, n_dims, wanted, sizeof(wanted)));
}

static int source_find(struct init *init, int param, int i_slice, struct slice_source *source, const char *path,
                       struct lade_error *error)
{
  const struct lade_graph *graph = init->values->graph;
  const char *name = graph->params[param].slices[i_slice].name;
  int64_t dims[2];
  int n_dims = slice_shape(graph, param, i_slice, dims);
  for (int i = 0; i < init->files.n && !source->tensor; i++)
    *source = (struct slice_source){.file = init->files.items[i].file, .path = init->files.items[i].path,
                                    .tensor = tensor_find(init->files.items[i].file, name)};
  if (!source->tensor)
    return lade_error_set(error, -EINVAL, "%s: tensor %s is missing: model %s needs it", path, name,
                          graph->model.name);
  return source_check(source, dims, n_dims, error);
}

static int sources_find(struct init *init, const char *path, struct lade_error *error)
{
  const struct lade_graph *graph = init->values->graph;
  init->sources = lade_fault_calloc(init->faults, (size_t)slices_count(graph), sizeof(*init->sources));
  if (!init->sources)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its table of tensors", path);
  int n = 0, rc = 0;
  for (int param = 0; param < graph->n_params; param++)
    for (int i = 0; i < graph->params[param].n_slices && rc == 0; i++)
      rc = source_find(init, param, i, &init->sources[n++], path, error);
  return rc;
}

/* A rank that needs a part of the model only knows all of its names. */
static int names_find(struct init *init, const char *path, struct lade_error *error)
{
  const struct lade_values *values = init->values;
  const struct lade_graph *whole = values->whole ? values->whole : values->graph;
  init->names = lade_fault_calloc(init->faults, (size_t)slices_count(whole), sizeof(*init->names));
  if (!init->names)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its table of names", path);
  for (int param = 0; param < whole->n_params; param++)
    for (int i = 0; i < whole->params[param].n_slices; i++)
      init->names[init->n_names++] = name_bare(whole->params[param].slices[i].name);
  qsort(init->names, (size_t)init->n_names, sizeof(*init->names), name_compare);
  return 0;
}

static bool name_ends(const char *name, const char *end)
{
  size_t n = strlen(name), n_end = strlen(end);
  return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

/* What may be in a file although no parameter is made of it. */
static bool is_no_weight(const struct lade_model *model, const char *bare)
{
  if (model->is_tied && strcmp(bare, "lm_head.weight") == 0)
    return true;
  return model->family == LADE_GPT2 ? name_ends(bare, ".attn.bias") || name_ends(bare, ".attn.masked_bias")
                                    : name_ends(bare, ".rotary_emb.inv_freq");
}

static int extras_refuse(struct init *init, struct lade_error *error)
{
  const struct lade_model *model = &init->values->graph->model;
  for (int i = 0; i < init->files.n; i++)
    for (int j = 0; j < lade_safetensors_count(init->files.items[i].file); j++) {
      const char *name = lade_safetensors_get(init->files.items[i].file, j)->name, *bare = name_bare(name);
      if (!bsearch(&bare, init->names, (size_t)init->n_names, sizeof(*init->names), name_compare) &&
          !is_no_weight(model, bare))
        return lade_error_set(error, -EINVAL, "%s: tensor %.160s is not one of model %s: these are weights of another",
                              init->files.items[i].path, name, model->name);
    }
  return 0;
}

static int values_set(struct init *init, struct lade_error *error)
{
  struct chunk chunk;
  const struct lade_graph *graph = init->values->graph;
  int rc = chunk_init(&chunk, init->values, slices_chunk_blocks(graph), init->faults, error);
  if (rc < 0)
    return rc;
  rc = slices_load(&chunk, CHUNK_MASTER, init->sources, init->faults, error);
  for (int param = 0; param < graph->n_params && rc == 0; param++)
    rc = chunk_zero_moments(&chunk, param, error);
  chunk_finish(&chunk);
  return rc;
}

int lade_checkpoint_init(const struct lade_values *values, const char *path, struct lade_faults *faults,
                         struct lade_error *error)
{
  struct init init = {.values = values, .faults = faults};
  int rc = files_open(&init, path, error);
  if (rc == 0)
    rc = sources_find(&init, path, error);
  if (rc == 0)
    rc = names_find(&init, path, error);
  if (rc == 0)
    rc = extras_refuse(&init, error);
  if (rc == 0)
    rc = values_set(&init, error);
  for (int i = 0; i < init.files.n; i++) {
    lade_safetensors_close(init.files.items[i].file);
    free(init.files.items[i].path);
  }
  LADE_ARRAY_FREE(&init.files);
  free(init.names);
  free(init.sources);
  return rc;
}
