/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading what was saved.
 *
 * state.json comes first and is believed once its checksum holds: it says which tensors there are, so that another
 * model is told from a damaged file. Then both files are opened and every tensor found in them with the
 * shape and type that it was written with, before the first value is set. Contents are verified while they stream
 * by; reading them twice to verify before setting would double the time, and a failed load ends the run anyway.
 *
 * Nothing falls back to an older checkpoint by itself: a run that silently lost hours is worse than one that stops and
 * names the way out.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint_internal.h"

#define GPT2_N_FIELDS 3 /* of those that models are compared by: it has no RoPE */

struct load {
  const struct lade_values *values;
  const char *path;
  struct lade_faults *faults;
  struct saved_state state;
  char paths[CHUNK_N_KINDS][PATH_MAX];
  lade_safetensors *model, *optimizer;
  struct slice_source *sources; /* [CHUNK_N_KINDS][slices_count] */
  struct chunk chunk;
};

/* A file of ours that does not parse is damaged, whatever a stranger's would be. */
static int file_open(struct load *load, enum chunk_kind kind, lade_safetensors **ret_file, struct lade_error *error)
{
  int rc = checkpoint_path_join(load->paths[kind], load->path, chunk_kind_file(kind), error);
  if (rc == 0)
    rc = lade_safetensors_open(load->paths[kind], load->faults, error, ret_file);
  return rc < 0 ? saved_file_error(rc, error) : 0;
}

static int source_find(struct load *load, int param, int i_slice, enum chunk_kind kind, struct slice_source *source,
                       struct lade_error *error)
{
  const struct lade_graph *graph = load->values->graph;
  char name[CHECKPOINT_NAME_BYTES];
  int64_t dims[2];
  int n_dims = slice_shape(graph, param, i_slice, dims);
  slice_name(&graph->params[param].slices[i_slice], kind, name);
  source->file = kind == CHUNK_MASTER ? load->model : load->optimizer;
  source->path = load->paths[kind == CHUNK_MASTER ? CHUNK_MASTER : CHUNK_M];
  source->has_sum = true;
  int rc = saved_state_find_sum(&load->state, load->path, graph, param, i_slice, kind, &source->sum, error);
  if (rc < 0)
    return rc;
  source->tensor = lade_safetensors_find(source->file, name);
  if (!source->tensor || source->tensor->dtype != LADE_F32 || source->tensor->n_dims != n_dims ||
      memcmp(source->tensor->dims, dims, (size_t)n_dims * sizeof(*dims)) != 0)
    return lade_error_set(error, -EBADMSG, "%s: tensor %s is not as it was written: the file is damaged",
                          source->path, name);
  return 0;
}

static int sources_find(struct load *load, struct lade_error *error)
{
  const struct lade_graph *graph = load->values->graph;
  int n_slices = slices_count(graph), rc = 0;
  load->sources = lade_fault_calloc(load->faults, CHUNK_N_KINDS * (size_t)n_slices, sizeof(*load->sources));
  if (!load->sources)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its table of tensors", load->path);
  struct slice_source *source = load->sources;
  for (int kind = 0; kind < CHUNK_N_KINDS; kind++)
    for (int param = 0; param < graph->n_params; param++)
      for (int i = 0; i < graph->params[param].n_slices && rc == 0; i++)
        rc = source_find(load, param, i, (enum chunk_kind)kind, source++, error);
  if (rc == 0 && lade_safetensors_count(load->model) != n_slices)
    rc = lade_error_set(error, -EINVAL, "%s: has %d tensors, the model %d: this is a checkpoint of another model (%s)",
                        load->path, lade_safetensors_count(load->model), n_slices, load->state.state.model);
  return rc;
}

/* What tensors and their shapes do not tell: models that differ in it load, and compute something else. */
static int model_compare(const struct load *load, struct lade_error *error)
{
  char path[PATH_MAX];
  struct lade_model saved;
  const struct lade_model *model = &load->values->graph->model;
  int rc = checkpoint_path_join(path, load->path, CHECKPOINT_CONFIG, error);
  if (rc == 0)
    rc = lade_model_load(path, &saved, error);
  if (rc < 0)
    return rc;
  const struct {
    const char *what;
    double saved, now;
  } fields[] = {{"attention heads", (double)saved.heads, (double)model->heads},
                {"key and value heads", (double)saved.key_heads, (double)model->key_heads},
                {"a norm's epsilon", saved.norm_eps, model->norm_eps},
                {"RoPE's base", saved.rope_base, model->rope_base},
                {"RoPE's scale", saved.rope_scale_factor, model->rope_scale_factor},
                {"RoPE's low frequency factor", saved.rope_low_freq_factor, model->rope_low_freq_factor},
                {"RoPE's high frequency factor", saved.rope_high_freq_factor, model->rope_high_freq_factor},
                {"RoPE's original context", (double)saved.rope_original_context,
                 (double)model->rope_original_context}};
  const size_t n_fields = model->family == LADE_LLAMA ? LADE_COUNT(fields) : GPT2_N_FIELDS;
  for (size_t i = 0; i < n_fields; i++) {
    if (fields[i].saved != fields[i].now)
      return lade_error_set(error, -EINVAL, "%s: has %s of %g, the model of %g: this is a checkpoint of another model "
                            "(%s)", load->path, fields[i].what, fields[i].saved, fields[i].now,
                            load->state.state.model);
  }
  return 0;
}

static int load_all(struct load *load, struct lade_error *error)
{
  int rc = saved_state_read(&load->state, load->path, load->faults, error);
  if (rc == 0)
    rc = saved_config_verify(&load->state, load->path, error);
  if (rc == 0)
    rc = file_open(load, CHUNK_MASTER, &load->model, error);
  if (rc == 0)
    rc = file_open(load, CHUNK_M, &load->optimizer, error);
  if (rc == 0)
    rc = sources_find(load, error);
  if (rc == 0)
    rc = model_compare(load, error);
  if (rc == 0)
    rc = chunk_init(&load->chunk, load->values, slices_chunk_blocks(load->values->graph), load->faults, error);
  size_t n_slices = rc == 0 ? (size_t)slices_count(load->values->graph) : 0;
  for (int kind = 0; kind < CHUNK_N_KINDS && rc == 0; kind++)
    rc = slices_load(&load->chunk, (enum chunk_kind)kind, load->sources + (size_t)kind * n_slices, load->faults,
                     error);
  return rc;
}

int lade_checkpoint_load(const struct lade_values *values, const char *path, struct lade_faults *faults,
                         struct lade_checkpoint_state *ret_state, struct lade_error *error)
{
  struct load load = {.values = values, .path = path, .faults = faults};
  int rc = load_all(&load, error);
  if (rc == 0)
    *ret_state = load.state.state;
  else
    saves_suggest(path, error);
  chunk_finish(&load.chunk);
  free(load.sources);
  lade_safetensors_close(load.optimizer);
  lade_safetensors_close(load.model);
  saved_state_finish(&load.state);
  return rc;
}

int lade_checkpoint_read_state(const char *path, struct lade_checkpoint_state *ret_state, struct lade_error *error)
{
  struct saved_state file;
  int rc = saved_state_read(&file, path, NULL, error);
  if (rc < 0) {
    saves_suggest(path, error);
    return rc;
  }
  *ret_state = file.state;
  saved_state_finish(&file);
  return 0;
}
