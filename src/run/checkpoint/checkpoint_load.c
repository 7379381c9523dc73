/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a checkpoint.
 *
 * state.json comes first and is trusted once its checksum holds. It lists the tensors and their places, so another
 * model is distinguished from a damaged file. Then the files that this rank needs are opened. Every tensor must be in
 * them, with its stated shape and type, before the first value is set. Each rank reads only the rectangles and runs
 * that it holds.
 *
 * Contents are verified while they are streamed: at the end the tallies of all ranks are added up and compared. Reading
 * twice, to verify before setting, would double the time, and a failed load ends the run in any case.
 *
 * No failure falls back to an older checkpoint automatically: a run that silently loses hours is worse than one that
 * stops and names a way out.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model_json.h"
#include "run/checkpoint/checkpoint_internal.h"

#define GPT2_N_FIELDS 3 /* compared fields of a model without RoPE */

struct load_file {
  char path[PATH_MAX];
  lade_safetensors *file; /* NULL: this rank needs nothing of it */
};

struct load {
  const struct lade_values *values;
  const char *path;
  struct lade_faults *faults;
  struct saved_state state;
  struct checkpoint_table table;
  uint64_t *sums;               /* as state.json states them, of all tensors */
  struct load_file *files;      /* those of the table */
  struct slice_source *sources; /* [CHUNK_N_KINDS][slices_count] */
  struct chunk_buffer chunk;
};

/* Open a file of the checkpoint. If it does not parse it is damaged, because a save wrote it. */
static int file_open(const struct load *load, const char *name, struct load_file *file, struct lade_error *error)
{
  if (file->file)
    return 0;
  int rc = checkpoint_path_join(file->path, load->path, name, error);
  if (rc == 0)
    rc = lade_safetensors_open(file->path, load->faults, error, &file->file);
  return rc < 0 ? saved_file_error(rc, error) : 0;
}

static int source_find(const struct load *load, int i_tensor, struct slice_source *source, struct lade_error *error)
{
  const struct table_tensor *tensor = &load->table.tensors[i_tensor];
  struct load_file *file = &load->files[tensor->file];
  char name[CHECKPOINT_NAME_BYTES];
  int rc = file_open(load, load->table.files.items[tensor->file].name, file, error);
  if (rc < 0)
    return rc;
  const struct lade_safetensor *found =
      lade_safetensors_find(file->file, slice_name(tensor->slice, tensor->kind, name));
  if (!found || found->dtype != LADE_F32 || found->n_dims != tensor->n_dims ||
      memcmp(found->dims, tensor->dims, (size_t)found->n_dims * sizeof(*found->dims)) != 0)
    return lade_error_set(error, -EBADMSG, "%s: tensor %s is not as it was written: the file is damaged", file->path,
                          name);
  *source = (struct slice_source){.file = file->file, .path = file->path, .tensor = found,
                                  .tally = &load->table.tallies[i_tensor], .xxh3 = load->sums[i_tensor],
                                  .has_xxh3 = load->state.has_xxh3};
  return 0;
}

static void sources_weigh(struct load *load, int n_own)
{
  const struct lade_model_graph *graph = load->values->graph;
  for (int kind = 0; kind < CHUNK_N_KINDS; kind++) {
    struct slice_source *source = load->sources + (size_t)kind * (size_t)n_own;
    for (int param = 0; param < graph->n_params; param++)
      for (int i = 0; i < graph->params[param].n_slices; i++)
        source++->tally_weight = slice_tally_weight(graph, param, i);
  }
}

static int sources_find(struct load *load, struct lade_error *error)
{
  int n_own = slices_count(load->values->graph), rc = table_init(&load->table, load->values, load->faults, error);
  if (rc < 0)
    return rc;
  load->sums = lade_fault_calloc(load->faults, CHUNK_N_KINDS * (size_t)load->table.n_slices, sizeof(*load->sums));
  load->sources = lade_fault_calloc(load->faults, CHUNK_N_KINDS * (size_t)n_own, sizeof(*load->sources));
  rc = load->sums && load->sources ? saved_tensors_find(&load->state, load->path, &load->table, load->sums, error)
                                   : lade_error_set(error, -ENOMEM, "%s: out of memory for its table of tensors",
                                                    load->path);
  if (rc < 0)
    return rc;
  load->files = lade_fault_calloc(load->faults, (size_t)load->table.files.n, sizeof(*load->files));
  if (!load->files)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for its list of files", load->path);
  for (int i = 0; i < CHUNK_N_KINDS * n_own && rc == 0; i++)
    rc = source_find(load, table_find(&load->table, (enum chunk_kind)(i / n_own), i % n_own), &load->sources[i], error);
  sources_weigh(load, n_own);
  return rc;
}

/* Compare the numbers that shapes do not show: a model that differs in them would load, and compute other results. */
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
    const char *name;
    double saved, now;
  } fields[] = {{"attention heads", (double)saved.heads, (double)model->heads},
                {"key and value heads", (double)saved.n_kv_heads, (double)model->n_kv_heads},
                {"a norm's epsilon", saved.norm_eps, model->norm_eps},
                {"RoPE's base", saved.rope_base, model->rope_base},
                {"RoPE's scale", saved.rope_scale_factor, model->rope_scale_factor},
                {"RoPE's low frequency factor", saved.rope_low_freq_factor, model->rope_low_freq_factor},
                {"RoPE's high frequency factor", saved.rope_high_freq_factor, model->rope_high_freq_factor},
                {"RoPE's original context", (double)saved.rope_original_context,
                 (double)model->rope_original_context}};
  const size_t n_fields = model->family == LADE_GPT2 ? GPT2_N_FIELDS : LADE_COUNT(fields);
  for (size_t i = 0; i < n_fields; i++) {
    if (fields[i].saved != fields[i].now)
      return lade_error_set(error, -EINVAL, "%s: has %s of %g, the model of %g: this is a checkpoint of another model "
                            "(%s)", load->path, fields[i].name, fields[i].saved, fields[i].now,
                            load->state.state.model);
  }
  const char *difference = lade_model_difference(&saved, model);
  if (difference)
    return lade_error_set(error, -EINVAL,
                          "%s: differs from the model in %s: this is a checkpoint of another model (%s)",
                          load->path, difference, load->state.state.model);
  return 0;
}

/* Check that all ranks read the same checkpoint: one path may be a directory of each node. */
static int place_check(const struct load *load, struct lade_error *error)
{
  uint64_t first = load->state.sum;
  int rc = lade_rank_group_broadcast(load->values->group, 0, &first, sizeof(first), error);
  if (rc == 0 && first != load->state.sum)
    rc = lade_error_set(error, -EINVAL, "%s is another checkpoint at rank %d than at the first rank: all ranks need "
                        "--resume in one file system", load->path, load->values->group->layout.rank);
  return lade_rank_group_vote(load->values->group, rc, error);
}

/* Refuse version 1 for ranks with parts of tensors: its sums are of whole tensors, which no such rank reads. */
static int version_check(const struct load *load, struct lade_error *error)
{
  const struct lade_model_graph *graph = load->values->graph;
  int rc = 0;
  if (load->state.has_xxh3 && (graph->share.tp > 1 || lade_model_graph_has_parts(graph)))
    rc = lade_error_set(error, -EINVAL, "%s is of format version 1, which ranks with parts of its tensors cannot "
                        "verify: resume it once without --tp and below --zero 3, and save", load->path);
  return lade_rank_group_vote(load->values->group, rc, error); /* a stage may have no parts where others have */
}

/* Compare the tallies of all ranks with the stated sums, each tensor times its number of holders. */
static int sums_compare(struct load *load, struct lade_error *error)
{
  char name[CHECKPOINT_NAME_BYTES];
  int rc = table_sum(&load->table, load->values->group, error);
  for (int i = 0; i < CHUNK_N_KINDS * load->table.n_slices && rc == 0; i++) {
    const struct table_tensor *tensor = &load->table.tensors[i];
    const struct tensor_tally *tally = &load->table.tallies[i];
    const uint64_t n_holders = tally->n_elements / (uint64_t)tensor->n_elements;
    if (tally->sum != load->sums[i] * n_holders || tally->n_elements % (uint64_t)tensor->n_elements || !n_holders)
      rc = lade_error_set(error, -EBADMSG, "%s/%s: tensor %s is damaged: its checksum differs", load->path,
                          load->table.files.items[tensor->file].name, slice_name(tensor->slice, tensor->kind, name));
  }
  return rc;
}

static int values_load(struct load *load, struct lade_error *error)
{
  const size_t n_own = (size_t)slices_count(load->values->graph);
  int rc = chunk_init(&load->chunk, load->values, slices_chunk_blocks(load->values->graph), load->faults, error);
  for (int kind = 0; kind < CHUNK_N_KINDS && rc == 0; kind++)
    rc = slices_load(&load->chunk, (enum chunk_kind)kind, load->sources + (size_t)kind * n_own, load->faults, error);
  return rc;
}

/* Find this rank's values in the checkpoint, and check that its model is this one. */
static int contents_find(struct load *load, struct lade_error *error)
{
  int rc = saved_config_verify(&load->state, load->path, error);
  if (rc == 0)
    rc = sources_find(load, error);
  return rc < 0 ? rc : model_compare(load, error);
}

static int load_all(struct load *load, struct lade_error *error)
{
  struct lade_rank_group *group = load->values->group;
  int rc = lade_rank_group_vote(group, saved_state_read(&load->state, load->path, load->faults, error), error);
  if (rc == 0)
    rc = place_check(load, error);
  if (rc == 0)
    rc = version_check(load, error);
  if (rc == 0)
    rc = lade_rank_group_vote(group, contents_find(load, error), error);
  if (rc == 0)
    rc = lade_rank_group_vote(group, values_load(load, error), error);
  return rc < 0 || load->state.has_xxh3 ? rc : sums_compare(load, error);
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
  for (int i = 0; load.files && i < load.table.files.n; i++)
    lade_safetensors_close(load.files[i].file);
  free(load.files);
  free(load.sums);
  table_finish(&load.table);
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
