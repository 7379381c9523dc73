/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving: every file written and synced in a temporary directory, which then gets its name.
 *
 * The order and what it survives are in checkpoint_directory.c. Files are allocated whole before their first byte
 * of data, so a drive that is full says so early, and with the old checkpoints still there: rotation comes last,
 * when the new one is durable, so that saving needs the room of one checkpoint more than it keeps.
 *
 * Memory is one chunk, two windows and a staging buffer (checkpoint_slices.c), at most 11 MiB, and the table of
 * sums.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint_internal.h"

struct save {
  const struct lade_values *values;
  const struct lade_checkpoint_state *state;
  struct saves saves;
  struct chunk chunk;
  char temporary[PATH_MAX];
  uint64_t *sums; /* [CHUNK_N_KINDS][slices_count] */
  struct lade_safetensors_entry *entries;
  char (*names)[CHECKPOINT_NAME_BYTES];
};

/* The tensors of @kind, from entry @n on. Returns how many there are then. */
static int entries_fill(struct save *save, enum chunk_kind kind, int n)
{
  const struct lade_graph *graph = save->values->graph;
  for (int param = 0; param < graph->n_params; param++)
    for (int i = 0; i < graph->params[param].n_slices; i++, n++) {
      struct lade_safetensors_entry *entry = &save->entries[n];
      *entry = (struct lade_safetensors_entry){.dtype = LADE_F32};
      entry->name = slice_name(&graph->params[param].slices[i], kind, save->names[n]);
      entry->n_dims = slice_shape(graph, param, i, entry->dims);
    }
  return n;
}

static uint64_t masters_bytes(const struct lade_graph *graph)
{
  uint64_t bytes = 0;
  for (int param = 0; param < graph->n_params; param++)
    bytes += (uint64_t)chunk_n_elements(graph, param) * sizeof(float);
  return bytes;
}

/* One file with kinds [first, last]. */
static int file_save(struct save *save, enum chunk_kind first, enum chunk_kind last, struct lade_error *error)
{
  /* Transformers asks who wrote a file; "pt" says that its tensors are laid out as PyTorch's. */
  static const struct lade_safetensors_pair metadata[] = {{"format", "pt"}};
  struct lade_faults *faults = save->saves.faults;
  const struct lade_graph *graph = save->values->graph;
  char path[PATH_MAX];
  int n_entries = 0, rc = checkpoint_path_join(path, save->temporary, chunk_kind_file(first), error);
  if (rc < 0)
    return rc;
  for (int kind = (int)first; kind <= (int)last; kind++)
    n_entries = entries_fill(save, (enum chunk_kind)kind, n_entries);
  struct lade_safetensors_params params = {.struct_size = sizeof(params), .path = path, .entries = save->entries,
                                           .n_entries = n_entries, .metadata = metadata, .n_metadata = 1,
                                           .faults = faults};
  lade_safetensors_writer *writer;
  rc = lade_safetensors_create(&params, error, &writer);
  if (rc < 0)
    return rc;
  for (int kind = (int)first; kind <= (int)last && rc == 0; kind++)
    rc = slices_save(&save->chunk, (enum chunk_kind)kind, writer,
                     (uint64_t)(kind - (int)first) * masters_bytes(graph),
                     save->sums + (size_t)kind * (size_t)slices_count(graph), faults, error);
  if (rc == 0)
    return lade_safetensors_commit(writer, error, NULL);
  lade_safetensors_abort(writer);
  return rc;
}

static int save_begin(struct save *save, struct lade_error *error)
{
  struct lade_faults *faults = save->saves.faults;
  const struct lade_graph *graph = save->values->graph;
  size_t n_slices = (size_t)slices_count(graph);
  int rc = chunk_init(&save->chunk, save->values, slices_chunk_blocks(graph), faults, error);
  if (rc < 0)
    return rc;
  save->sums = lade_fault_calloc(faults, CHUNK_N_KINDS * n_slices, sizeof(*save->sums));
  save->entries = lade_fault_calloc(faults, 2 * n_slices, sizeof(*save->entries));
  save->names = lade_fault_calloc(faults, 2 * n_slices, sizeof(*save->names));
  if (!save->sums || !save->entries || !save->names)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for a checkpoint's table", save->saves.path);
  return saves_make_temporary(&save->saves, save->state->step, save->temporary, error);
}

static int files_save(struct save *save, struct lade_error *error)
{
  struct lade_faults *faults = save->saves.faults;
  int rc = file_save(save, CHUNK_MASTER, CHUNK_MASTER, error);
  if (rc == 0)
    rc = file_save(save, CHUNK_M, CHUNK_V, error);
  if (rc == 0)
    rc = saved_config_write(&save->values->graph->model, save->temporary, faults, error);
  if (rc == 0)
    rc = saved_state_write(save->values->graph, save->state, save->sums, save->temporary, faults, error);
  return rc < 0 ? rc : saves_publish(&save->saves, save->temporary, save->state->step, error);
}

int lade_checkpoint_save(const struct lade_values *values, const struct lade_checkpoint_state *state, const char *dir,
                         int keep, struct lade_faults *faults, struct lade_error *error)
{
  LADE_ASSERT(state->step >= 0 && keep >= 0);
  struct save save = {.values = values, .state = state};
  int rc = saves_open(&save.saves, dir, faults, error);
  if (rc < 0)
    return rc;
  rc = save_begin(&save, error);
  if (rc == 0)
    rc = files_save(&save, error);
  if (save.temporary[0])
    saves_remove(save.temporary); /* given up, or replaced; else the next save does it */
  bool is_saved = rc == 0;
  if (is_saved)
    rc = saves_keep(&save.saves, keep, state->step, error);
  free(save.names);
  free(save.entries);
  free(save.sums);
  chunk_finish(&save.chunk);
  saves_close(&save.saves, !is_saved);
  return rc;
}
