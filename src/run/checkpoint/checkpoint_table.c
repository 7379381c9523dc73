/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a checkpoint: those of the whole model, whatever share of it a rank has, and the files they are in.
 *
 * Every rank makes the same table from the whole model's graph, and finds its own slices in it: a parameter knows its
 * number in the whole model, and a slice its tensor's name. So all ranks compute the same place of every byte, without
 * communication.
 *
 * A file takes tensors in their order until the next one would make it longer than it may be, as HuggingFace's
 * save_pretrained does; a single tensor is never cut. Masters and moments are in separate files.
 *
 * Its checksums are sums that add up over ranks (checkpoint_tally.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint/checkpoint_internal.h"

/* ---- the table ---- */

/* True if slice @i is the first of its tensor; a parameter's slices of one tensor are neighbours. */
static bool is_first_slice(const struct lade_param *param, int i)
{
  return i == 0 || strcmp(param->slices[i].name, param->slices[i - 1].name) != 0;
}

/* Return the number of tensors that a parameter is, or that all parameters before @end are. */
static int param_n_tensors(const struct lade_param *param)
{
  int n = 0;
  for (int i = 0; i < param->n_slices; i++)
    n += is_first_slice(param, i);
  return n;
}

static int tensors_count(const struct lade_model_graph *whole, int end)
{
  int n = 0;
  for (int param = 0; param < end; param++)
    n += param_n_tensors(&whole->params[param]);
  return n;
}

static void tensors_fill(struct checkpoint_table *table, const struct lade_model_graph *whole)
{
  struct table_tensor *tensor = table->tensors;
  for (int kind = 0; kind < CHUNK_N_KINDS; kind++)
    for (int param = 0; param < whole->n_params; param++)
      for (int i = 0; i < whole->params[param].n_slices; i++) {
        if (!is_first_slice(&whole->params[param], i))
          continue;
        *tensor = (struct table_tensor){.slice = &whole->params[param].slices[i], .kind = (enum chunk_kind)kind};
        tensor->n_dims = slice_shape(whole, param, i, tensor->dims);
        tensor->n_elements = tensor->dims[0] * (tensor->n_dims > 1 ? tensor->dims[1] : 1);
        tensor++;
      }
}

/* Return the number of the whole model's tensor that contains @slice, of its parameter @number. */
static int slice_number(const struct lade_model_graph *whole, int number, const struct lade_param_slice *slice)
{
  const struct lade_param *param = &whole->params[number];
  int n, i = 0;
  LADE_ASSERT(number < whole->n_params);
  n = tensors_count(whole, number) - 1;
  for (; i < param->n_slices; i++) {
    n += is_first_slice(param, i);
    if (strcmp(param->slices[i].name, slice->name) == 0)
      break;
  }
  LADE_ASSERT(i < param->n_slices);
  return n;
}

int table_init(struct checkpoint_table *table, const struct lade_values *values, struct lade_faults *faults,
               struct lade_error *error)
{
  const struct lade_model_graph *graph = values->graph, *whole = values->whole ? values->whole : graph;
  const size_t n_slices = (size_t)tensors_count(whole, whole->n_params), n_own = (size_t)slices_count(graph);
  *table = (struct checkpoint_table){.n_slices = (int)n_slices};
  table->tensors = lade_fault_calloc(faults, CHUNK_N_KINDS * n_slices, sizeof(*table->tensors));
  table->tallies = lade_fault_calloc(faults, CHUNK_N_KINDS * n_slices, sizeof(*table->tallies));
  table->of_slice = lade_fault_calloc(faults, n_own, sizeof(*table->of_slice));
  if (!table->tensors || !table->tallies || !table->of_slice)
    return lade_error_set(error, -ENOMEM, "model %s: out of memory for its table of tensors", graph->model.name);
  tensors_fill(table, whole);
  int n = 0;
  for (int param = 0; param < graph->n_params; param++)
    for (int i = 0; i < graph->params[param].n_slices; i++, n++)
      table->of_slice[n] = values->whole ? slice_number(whole, graph->params[param].number,
                                                        &graph->params[param].slices[i])
                                         : slice_number(whole, param, &graph->params[param].slices[i]);
  return 0;
}

void table_finish(struct checkpoint_table *table)
{
  free(table->tensors);
  free(table->tallies);
  free(table->of_slice);
  LADE_ARRAY_FREE(&table->files);
  *table = (struct checkpoint_table){0};
}

int table_find(const struct checkpoint_table *table, enum chunk_kind kind, int slice)
{
  return (int)kind * table->n_slices + table->of_slice[slice];
}

int table_sum(struct checkpoint_table *table, struct lade_rank_group *group, struct lade_error *error)
{
  const size_t n = CHUNK_N_KINDS * (size_t)table->n_slices;
  _Static_assert(sizeof(struct tensor_tally) == 2 * sizeof(uint64_t), "tallies are added up as numbers");
  return lade_rank_group_sum(group, (uint64_t *)table->tallies, 2 * n, error);
}

/* ---- files ---- */

static const char *const group_names[CHUNK_N_KINDS] = {"model", "optimizer", "optimizer"};

/* Begin a file with tensor @i. */
static bool file_begin(struct checkpoint_table *table, int i)
{
  return LADE_PUSH(&table->files, ((struct table_file){.first = i}));
}

static bool is_same_group(const struct checkpoint_table *table, int i, int j)
{
  return group_names[table->tensors[i].kind] == group_names[table->tensors[j].kind];
}

/* Name the files: "model.safetensors", or "model-00002-of-00003.safetensors" if there are several. */
static void files_name(struct checkpoint_table *table)
{
  for (int i = 0; i < table->files.n; i++) {
    int before = 0, n = 0;
    for (int j = 0; j < table->files.n; j++) {
      bool is_member = is_same_group(table, table->files.items[i].first, table->files.items[j].first);
      n += is_member;
      before += is_member && j < i;
    }
    struct table_file *file = &table->files.items[i];
    const char *group = group_names[table->tensors[file->first].kind];
    if (n == 1)
      snprintf(file->name, sizeof(file->name), "%s" CHECKPOINT_SUFFIX, group);
    else
      snprintf(file->name, sizeof(file->name), "%s-%05d-of-%05d" CHECKPOINT_SUFFIX, group, before + 1, n);
  }
}

int table_cut(struct checkpoint_table *table, uint64_t file_bytes, struct lade_error *error)
{
  uint64_t used = 0;
  for (int i = 0; i < CHUNK_N_KINDS * table->n_slices; i++) {
    struct table_tensor *tensor = &table->tensors[i];
    const uint64_t bytes = (uint64_t)tensor->n_elements * sizeof(float);
    if (i == 0 || !is_same_group(table, i - 1, i) || used + bytes > file_bytes) {
      if (!file_begin(table, i))
        return lade_error_set(error, -ENOMEM, "out of memory for a checkpoint's list of files");
      used = 0;
    }
    tensor->file = table->files.n - 1;
    tensor->offset = used;
    table->files.items[tensor->file].n++;
    used += bytes;
  }
  files_name(table);
  return 0;
}

/* Skip digits at @text; true if they are enough for a file's number. */
static bool number_skip(const char **text)
{
  const size_t n = strspn(*text, "0123456789");
  *text += n;
  return n >= 5;
}

bool table_is_file_name(const char *name)
{
  for (int kind = CHUNK_MASTER; kind <= CHUNK_M; kind++) {
    const size_t n = strlen(group_names[kind]);
    const char *at = name + n;
    if (strncmp(name, group_names[kind], n) != 0)
      continue;
    if (strcmp(at, CHECKPOINT_SUFFIX) == 0)
      return true;
    if (*at++ != '-' || !number_skip(&at) || strncmp(at, "-of-", 4) != 0)
      return false;
    at += 4;
    return number_skip(&at) && strcmp(at, CHECKPOINT_SUFFIX) == 0;
  }
  return false;
}
