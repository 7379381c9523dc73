/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting from weights that another program saved, in HuggingFace's format.
 *
 * A path is one safetensors file, or a directory with model.safetensors, or with an index that maps each tensor to one
 * of several files. Names differ by the class that saved them: GPT2LMHeadModel writes "transformer.h.0...", GPT2Model
 * "h.0..."; LlamaForCausalLM "model.layers.0...", LlamaModel "layers.0...". A name is compared without that prefix.
 *
 * Every tensor of the model must be present, in its shape and in F32, F16 or BF16. Every tensor in the files must be
 * the model's: an extra layer is as wrong as a missing one. Exceptions are tensors that are no weights: GPT-2's causal
 * masks and Llama's rotary frequencies, which old versions stored, and the head of a model whose head is its token
 * table. All of this is checked before the first value is set.
 *
 * A directory with state.json is a checkpoint, whose checksums are verified as the values are set. A rank verifies each
 * tensor that it reads whole. Ranks with parts of a tensor do not verify it, because a start from foreign weights adds
 * nothing up over ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "run/checkpoint/checkpoint_internal.h"

#define INDEX_MAX_BYTES (64u << 20) /* a thousand layers take a few MiB */

struct init_file {
  char *path;
  lade_safetensors *file;
};

struct init {
  const struct lade_values *values;
  struct lade_faults *faults;
  LADE_ARRAY(struct init_file) files;
  struct slice_source *sources; /* one per slice */
  struct saved_state state;     /* of a checkpoint; its root is NULL for other weights */
  struct tensor_tally *tallies; /* one per slice, of a checkpoint */
  const char **names;           /* of all slices of the whole model, without prefix, sorted */
  int n_names;
};

/* Prefixes of names, by the class that saved them; the first two also of the text in models of images and text. */
static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "language_model.",
                                       "transformer.", "model.", ""};

/* Return a name without the prefix that depends on the class that saved it. */
static const char *name_bare(const char *name)
{
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

/* Add a file of the index, once. The index is untrusted, so a name must stay in the index's directory. */
static int indexed_file_add(struct init *init, const char *dir, const char *index, const char *name,
                            struct lade_error *error)
{
  char path[PATH_MAX];
  if (!name || !*name || strchr(name, '/') || name[0] == '.')
    return lade_error_set(error, -EBADMSG, "%s: weight_map holds '%.64s': expected a file's name in the same directory",
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
    rc = lade_error_set(error, -EBADMSG, "%s: line %d: not JSON: %.120s", index, problem.line, problem.text);
  else if (json_object_size(map) == 0)
    rc = lade_error_set(error, -EBADMSG, "%s: weight_map is missing or empty: not an index of safetensors", index);
  json_object_foreach(map, tensor, file)
  {
    if (rc == 0)
      rc = indexed_file_add(init, dir, index, json_string_value(file), error);
  }
  json_decref(root);
  return rc;
}

/*
 * Store the path of @name in directory @dir. Return 1 if the directory has such an entry, 0 if it has none, or another
 * error. A link to nothing is an entry: a model hub's directory whose download was interrupted has such links, and to
 * open one tells which file is missing.
 */
static int entry_find(char path[PATH_MAX], const char *dir, const char *name, struct lade_error *error)
{
  struct stat st;
  const int rc = checkpoint_path_join(path, dir, name, error);
  if (rc < 0 || lstat(path, &st) == 0)
    return rc < 0 ? rc : 1;
  if (errno == ENOENT || errno == ENOTDIR) /* ENOTDIR: @dir is a single file of weights */
    return 0;
  return lade_error_set(error, -errno, "%s: cannot open: %s", path, strerror(errno));
}

static int files_open(struct init *init, const char *path, struct lade_error *error)
{
  struct stat st;
  char inside[PATH_MAX];
  if (stat(path, &st) < 0)
    return lade_error_set(error, -errno, "%s: cannot open: %s", path, strerror(errno));
  if (!S_ISDIR(st.st_mode))
    return file_add(init, path, error);
  int rc = entry_find(inside, path, CHECKPOINT_MODEL, error);
  if (rc != 0)
    return rc < 0 ? rc : file_add(init, inside, error);
  rc = entry_find(inside, path, CHECKPOINT_INDEX, error);
  if (rc == 0)
    rc = lade_error_set(error, -ENOENT, "%s: neither %s nor %s is in it", path, CHECKPOINT_MODEL, CHECKPOINT_INDEX);
  return rc < 0 ? rc : index_read(init, path, inside, error);
}

/* ---- tensors ---- */

static const struct lade_safetensor *tensor_find(const lade_safetensors *file, const char *name)
{
  const char *bare = name_bare(name);
  const struct lade_safetensor *tensor = lade_safetensors_find(file, name);
  for (size_t i = 0; i < LADE_COUNT(prefixes) && !tensor; i++) {
    char other[CHECKPOINT_NAME_BYTES];
    snprintf(other, sizeof(other), "%s%s", prefixes[i], bare);
    tensor = lade_safetensors_find(file, other);
  }
  return tensor;
}

/* Write a shape, "[768, 2304]", into @text. Return @text. */
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
  const struct lade_model_graph *graph = init->values->graph;
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
  const struct lade_model_graph *graph = init->values->graph;
  init->sources = lade_fault_calloc(init->faults, (size_t)slices_count(graph), sizeof(*init->sources));
  if (!init->sources)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its table of tensors", path);
  int n = 0, rc = 0;
  for (int param = 0; param < graph->n_params; param++)
    for (int i = 0; i < graph->params[param].n_slices && rc == 0; i++)
      rc = source_find(init, param, i, &init->sources[n++], path, error);
  return rc;
}

/* ---- checksums ---- */

/* Read state.json of directory @path, if it exists, verify config.json, and count the elements that are read. */
static int sums_open(struct init *init, const char *path, struct lade_error *error)
{
  char state_path[PATH_MAX], config_path[PATH_MAX];
  const struct lade_model_graph *graph = init->values->graph;
  const int n = slices_count(graph);
  int rc = entry_find(state_path, path, CHECKPOINT_STATE, error);
  if (rc <= 0)
    return rc;
  rc = saved_state_read_alone(&init->state, path, init->faults, error);
  if (rc == 0)
    rc = entry_find(config_path, path, CHECKPOINT_CONFIG, error);
  if (rc > 0)
    rc = saved_config_verify(&init->state, path, error);
  if (rc < 0)
    return rc;
  init->tallies = lade_fault_calloc(init->faults, (size_t)n, sizeof(*init->tallies));
  if (!init->tallies)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its table of checksums", path);
  for (int i = 0; i < n; i++) { /* slices of one tensor follow each other, and share its tally */
    const bool is_continued = i > 0 && init->sources[i].tensor == init->sources[i - 1].tensor;
    init->sources[i].tally = is_continued ? init->sources[i - 1].tally : &init->tallies[i];
    init->sources[i].tally_weight = 1;
  }
  return 0;
}

static int sum_fail(const struct slice_source *source, struct lade_error *error)
{
  return lade_error_set(error, -EBADMSG, "%s: tensor %s is damaged: its checksum differs from %s; remove that file to "
                        "start from these values", source->path, source->tensor->name, CHECKPOINT_STATE);
}

/* Set the XXH3 sums of format version 1, which are verified while whole tensors are read. */
static int xxh3_set(struct init *init, struct lade_error *error)
{
  const struct lade_model_graph *graph = init->values->graph;
  if (!init->state.has_xxh3 || graph->share.tp > 1 || lade_model_graph_has_parts(graph))
    return 0;
  for (int i = 0; i < slices_count(graph); i++) {
    struct slice_source *source = &init->sources[i];
    source->has_xxh3 = saved_sum_find(&init->state, source->tensor->name, &source->xxh3);
    if (!source->has_xxh3)
      return sum_fail(source, error);
  }
  return 0;
}

/* Compare the sums of all tensors that were read whole with those in state.json. */
static int sums_compare(const struct init *init, struct lade_error *error)
{
  const int n = init->tallies && !init->state.has_xxh3 ? slices_count(init->values->graph) : 0;
  for (int i = 0; i < n; i++) {
    const struct lade_safetensor *tensor = init->sources[i].tensor;
    uint64_t sum, n_elements = 1;
    for (int dim = 0; dim < tensor->n_dims; dim++)
      n_elements *= (uint64_t)tensor->dims[dim];
    if (init->tallies[i].n_elements == n_elements &&
        (!saved_sum_find(&init->state, tensor->name, &sum) || sum != init->tallies[i].sum))
      return sum_fail(&init->sources[i], error);
  }
  return 0;
}

/*
 * List the names of the whole model, sorted. A rank with a share of the model needs all names to find foreign tensors.
 */
static int names_find(struct init *init, const char *path, struct lade_error *error)
{
  const struct lade_values *values = init->values;
  const struct lade_model_graph *whole = values->whole ? values->whole : values->graph;
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

/* True if a file may hold the tensor although no parameter uses it. */
static bool is_no_weight(const struct lade_model *model, const char *bare)
{
  if (model->is_tied && (strcmp(bare, "lm_head.weight") == 0 || strcmp(bare, "embed_out.weight") == 0))
    return true;
  if (model->family == LADE_GPT2 || model->family == LADE_GPT_BIGCODE)
    return name_ends(bare, ".attn.bias") || name_ends(bare, ".attn.masked_bias");
  if ((model->family == LADE_GPT_NEOX || model->family == LADE_GPT_NEO) &&
      (name_ends(bare, ".attention.bias") || name_ends(bare, ".attention.masked_bias")))
    return true;
  if (strncmp(bare, "vision_tower.", 13) == 0 || strncmp(bare, "multi_modal_projector.", 22) == 0)
    return model->family == LADE_GEMMA3 || model->family == LADE_MISTRAL ||
           model->family == LADE_MINISTRAL3; /* of images: the text does not use them */
  return name_ends(bare, ".rotary_emb.inv_freq");
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
  struct chunk_buffer chunk;
  const struct lade_model_graph *graph = init->values->graph;
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
    rc = sums_open(&init, path, error);
  if (rc == 0)
    rc = xxh3_set(&init, error);
  if (rc == 0)
    rc = values_set(&init, error);
  if (rc == 0)
    rc = sums_compare(&init, error);
  for (int i = 0; i < init.files.n; i++) {
    lade_safetensors_close(init.files.items[i].file);
    free(init.files.items[i].path);
  }
  LADE_ARRAY_FREE(&init.files);
  saved_state_finish(&init.state);
  free(init.tallies);
  free(init.names);
  free(init.sources);
  return rc;
}
