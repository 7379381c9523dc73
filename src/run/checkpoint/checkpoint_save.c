/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving: every file is written and synced in a temporary directory, which is then renamed.
 *
 * One rank or many, a save has three parts; after each all ranks vote on success:
 *
 *   1. the first rank locks the directory and makes the temporary one, and in it every file of tensors: header and
 *      room, synced. No other rank creates a file.
 *   2. each rank writes the rectangles and runs that it holds at their places in those files, and syncs the files. Of
 *      replicas one rank writes. Tallies of the written elements are added up.
 *   3. the first rank compares the tallies with the tensors, writes the other files and state.json with the sums, and
 *      renames the directory. Then it removes old checkpoints.
 *
 * So a file has the same bytes whatever the layout, and no rank ever holds more of the model than its own part. At
 * whatever moment a rank dies, a checkpoint's name always means a complete checkpoint. A rank that fails takes part in
 * the votes, so that the first rank can clean up. A rank that is gone makes the votes fail, with the same effect.
 *
 * checkpoint_directory.c has the order of renames and the failures that it survives. Each save checks the drive's free
 * space anew, because other programs change it, and files are allocated whole before their first byte of data. So a
 * full drive is reported early, while the old checkpoints still exist. Rotation comes last, when the new checkpoint is
 * durable, so saving needs the room of one checkpoint more than it keeps.
 *
 * Rejected: a file for each rank, with rectangles of tensors and an index of them. It would load nowhere else, and
 * depend on the layout. Its gain is that no two ranks write one page of a file. That matters where a file system's
 * clients do not agree about pages (NFS).
 *
 * Memory is one chunk, two windows and a staging buffer (checkpoint_slices.c), at most 11 MiB. Compact state adds one
 * window, and 8-bit moments the scales of the largest parameter (checkpoint_forms.c). Further: the table of all
 * tensors, and at the first rank the text of the JSON files.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/free_space.h"
#include "run/checkpoint/checkpoint_internal.h"

#define DEFAULT_FILE_BYTES (UINT64_C(4) << 30)

struct save {
  const struct lade_values *values;
  const struct lade_checkpoint_state *state;
  const struct lade_checkpoint_place *place;
  struct lade_faults *faults;
  bool is_first;
  struct saves saves; /* the first rank's */
  struct chunk_buffer chunk;
  struct checkpoint_table table;
  char temporary[PATH_MAX];                /* the same at all ranks */
  struct lade_safetensors_entry *entries;  /* of all tensors */
  char (*names)[CHECKPOINT_NAME_BYTES];
  lade_safetensors_writer **writers; /* by file; NULL if this rank writes nothing of it */
  struct slice_target *targets;      /* [CHUNK_N_KINDS][slices_count] */
};

/* ---- all tensors ---- */

static void entries_fill(struct save *save)
{
  for (int i = 0; i < CHUNK_N_KINDS * save->table.n_slices; i++) {
    const struct table_tensor *tensor = &save->table.tensors[i];
    struct lade_safetensors_entry *entry = &save->entries[i];
    *entry = (struct lade_safetensors_entry){.dtype = LADE_F32, .n_dims = tensor->n_dims};
    entry->name = slice_name(tensor->slice, tensor->kind, save->names[i]);
    memcpy(entry->dims, tensor->dims, sizeof(tensor->dims));
  }
}

/* List all tensors and assign them to files. */
static int files_plan(struct save *save, struct lade_error *error)
{
  const uint64_t file_bytes = save->place->file_bytes ? save->place->file_bytes : DEFAULT_FILE_BYTES;
  int rc = table_init(&save->table, save->values, save->faults, error);
  return rc < 0 ? rc : table_cut(&save->table, file_bytes, error);
}

/* Allocate the memory of the save, and list all tensors. */
static int save_begin(struct save *save, struct lade_error *error)
{
  const struct lade_model_graph *graph = save->values->graph;
  int rc = chunk_init(&save->chunk, save->values, slices_chunk_blocks(graph), save->faults, error);
  if (rc == 0)
    rc = files_plan(save, error);
  if (rc < 0)
    return rc;
  const size_t n = CHUNK_N_KINDS * (size_t)save->table.n_slices, n_own = CHUNK_N_KINDS * (size_t)slices_count(graph);
  save->entries = lade_fault_calloc(save->faults, n, sizeof(*save->entries));
  save->names = lade_fault_calloc(save->faults, n, sizeof(*save->names));
  save->writers = lade_fault_calloc(save->faults, (size_t)save->table.files.n, sizeof(*save->writers));
  save->targets = lade_fault_calloc(save->faults, n_own, sizeof(*save->targets));
  if (!save->entries || !save->names || !save->writers || !save->targets)
    return lade_error_set(error, -ENOMEM, "%s: out of memory for a checkpoint's table", save->place->dir);
  entries_fill(save);
  return 0;
}

/* ---- the files, without data ---- */

/* Create file @i, or join its writers. */
static int file_open(struct save *save, int i, bool is_made, lade_safetensors_writer **ret_writer,
                     struct lade_error *error)
{
  /* Transformers checks the format of a file; "pt" means that tensors are laid out as PyTorch's. */
  static const struct lade_safetensors_pair metadata[] = {{"format", "pt"}};
  const struct table_file *file = &save->table.files.items[i];
  char path[PATH_MAX];
  int rc = checkpoint_path_join(path, save->temporary, file->name, error);
  if (rc < 0)
    return rc;
  const struct lade_safetensors_params params = {
      .struct_size = sizeof(params), .path = path, .entries = save->entries + file->first, .n_entries = file->n,
      .metadata = metadata, .n_metadata = 1, .is_shared = true, .faults = save->faults};
  rc = is_made ? lade_safetensors_create(&params, error, ret_writer)
               : lade_safetensors_join(&params, error, ret_writer);
  if (rc == -ENOENT && !is_made)
    return lade_error_set(error, rc, "%s is not to be seen here: all ranks need --save in one file system", path);
  return rc;
}

/* Return the free bytes of @fd's file system; LADE_FREE_SPACE_UNKNOWN if it does not report them. */
static uint64_t room_get(int fd)
{
  uint64_t bytes = LADE_FREE_SPACE_UNKNOWN;
  lade_free_space_get_fd(fd, &bytes);
  return bytes;
}

/* Return the bytes of all tensors; set @ret_longest to those of the longest file. */
static uint64_t tensors_measure(const struct checkpoint_table *table, uint64_t *ret_longest)
{
  uint64_t all = 0, longest = 0;
  for (int i = 0; i < table->files.n; i++) {
    const struct table_file *file = &table->files.items[i];
    uint64_t bytes = 0;
    for (int k = file->first; k < file->first + file->n; k++)
      bytes += (uint64_t)table->tensors[k].n_elements * sizeof(float);
    all += bytes;
    longest = LADE_MAX(longest, bytes);
  }
  *ret_longest = longest;
  return all;
}

/*
 * Check that there is room for all tensors. Headers and JSON are small and not counted; writing them reports a lack.
 * After a rotation some file systems count the removed bytes as free only once the removal is on the drive. So syncfs
 * comes before a refusal.
 */
static int room_check(const struct save *save, struct lade_error *error)
{
  char need[LADE_SIZE_TEXT], have[LADE_SIZE_TEXT];
  uint64_t longest, bytes = tensors_measure(&save->table, &longest), free_bytes = room_get(save->saves.fd);
  if (longest > lade_file_size_limit())
    return lade_error_set(error, -EFBIG, "%s: a checkpoint has files of %s, and the file size limit is %s; raise it "
                          "(ulimit -f)", save->place->dir, lade_size_exact(longest, need),
                          lade_size_exact(lade_file_size_limit(), have));
  if (bytes > free_bytes && !syncfs(save->saves.fd))
    free_bytes = room_get(save->saves.fd);
  if (bytes <= free_bytes)
    return 0;
  return lade_error_set(error, -ENOSPC, "%s: a checkpoint needs %s beside those that are kept, and %s are free; free "
                        "more, or save elsewhere", save->place->dir, lade_size_exact(bytes, need),
                        lade_size_exact(free_bytes, have));
}

static int files_make(struct save *save, struct lade_error *error)
{
  int rc = saves_open(&save->saves, save->place->dir, save->faults, error);
  if (rc == 0)
    rc = room_check(save, error); /* leftovers are removed by now */
  if (rc == 0)
    rc = saves_make_temporary(&save->saves, save->state->step, save->temporary, error);
  for (int i = 0; i < save->table.files.n && rc == 0; i++) {
    lade_safetensors_writer *writer;
    rc = file_open(save, i, true, &writer, error);
    if (rc == 0)
      rc = lade_safetensors_commit(writer, error);
  }
  return rc;
}

/* ---- the data of this rank ---- */

static int target_fill(struct save *save, enum chunk_kind kind, int slice, bool is_ours, struct slice_target *target,
                       struct lade_error *error)
{
  const int i = table_find(&save->table, kind, slice);
  const struct table_tensor *tensor = &save->table.tensors[i];
  lade_safetensors_writer **writer = &save->writers[tensor->file];
  int rc = is_ours && !*writer ? file_open(save, tensor->file, false, writer, error) : 0;
  *target = (struct slice_target){.writer = *writer, .offset = tensor->offset, .tally = &save->table.tallies[i]};
  return rc;
}

static int targets_fill(struct save *save, struct lade_error *error)
{
  const struct lade_model_graph *graph = save->values->graph;
  struct slice_target *target = save->targets;
  int rc = 0;
  for (int kind = 0; kind < CHUNK_N_KINDS; kind++) {
    int slice = 0;
    for (int param = 0; param < graph->n_params; param++) {
      const struct elements_range range = range_written(save->values, param);
      for (int i = 0; i < graph->params[param].n_slices && rc == 0; i++)
        rc = target_fill(save, (enum chunk_kind)kind, slice++, slice_is_within(graph, param, i, range), target++,
                         error);
    }
  }
  return rc;
}

/* Sync and close the files that this rank has written. */
static int writers_commit(struct save *save, struct lade_error *error)
{
  int rc = 0;
  for (int i = 0; i < save->table.files.n && rc == 0; i++) {
    lade_safetensors_writer *writer = save->writers[i];
    save->writers[i] = NULL;
    if (writer)
      rc = lade_safetensors_commit(writer, error);
  }
  return rc;
}

static int own_write(struct save *save, struct lade_error *error)
{
  const size_t n_own = (size_t)slices_count(save->values->graph);
  int rc = targets_fill(save, error);
  for (int kind = 0; kind < CHUNK_N_KINDS && rc == 0; kind++)
    rc = slices_save(&save->chunk, (enum chunk_kind)kind, save->targets + (size_t)kind * n_own, save->faults, error);
  return rc < 0 ? rc : writers_commit(save, error);
}

/* ---- the end ---- */

/* Check that every element was written once. */
static int tallies_check(const struct save *save, struct lade_error *error)
{
  for (int i = 0; i < CHUNK_N_KINDS * save->table.n_slices; i++) {
    const struct table_tensor *tensor = &save->table.tensors[i];
    if (save->table.tallies[i].n_elements != (uint64_t)tensor->n_elements)
      return lade_error_set(error, -EPROTO, "%s: ranks wrote %" PRIu64 " elements of tensor %s, which has %" PRId64
                            ": their layouts differ", save->place->dir, save->table.tallies[i].n_elements,
                            save->names[i], tensor->n_elements);
  }
  return 0;
}

static int files_publish(struct save *save, struct lade_error *error)
{
  int rc = tallies_check(save, error);
  if (rc == 0)
    rc = saved_config_write(&save->values->graph->model, save->temporary, save->faults, error);
  if (rc == 0)
    rc = saved_index_write(&save->table, save->temporary, save->faults, error);
  if (rc == 0)
    rc = saved_tokenizer_write(save->place, save->temporary, save->faults, error);
  if (rc == 0)
    rc = saved_state_write(&save->table, save->state, save->temporary, save->faults, error);
  return rc < 0 ? rc : saves_publish(&save->saves, save->temporary, save->state->step, error);
}

static int parts_run(struct save *save, bool *ret_is_saved, struct lade_error *error)
{
  struct lade_rank_group *group = save->values->group;
  int rc = save_begin(save, error);
  if (rc == 0 && save->is_first)
    rc = files_make(save, error);
  rc = lade_rank_group_vote(group, rc, error);
  if (rc == 0)
    rc = lade_rank_group_broadcast(group, 0, save->temporary, sizeof(save->temporary), error);
  if (rc < 0)
    return rc;
  rc = lade_rank_group_vote(group, own_write(save, error), error);
  if (rc == 0)
    rc = table_sum(&save->table, group, error);
  if (rc < 0)
    return rc;
  if (save->is_first)
    rc = files_publish(save, error);
  *ret_is_saved = save->is_first && rc == 0;
  return lade_rank_group_vote(group, rc, error);
}

/* Remove the temporary directory and, after a save, old checkpoints. The first rank alone calls it. */
static int saves_finish(struct save *save, bool is_saved, struct lade_error *error)
{
  if (save->temporary[0])
    saves_remove(&save->saves, save->temporary); /* failed, or replaced; if this fails, the next save removes it */
  int rc = is_saved ? saves_keep(&save->saves, save->place->keep, save->state->step, error) : 0;
  saves_close(&save->saves, !is_saved);
  return rc;
}

int lade_checkpoint_save(const struct lade_values *values, const struct lade_checkpoint_state *state,
                         const struct lade_checkpoint_place *place, struct lade_faults *faults,
                         struct lade_error *error)
{
  LADE_ASSERT(state->step >= 0 && place->keep >= 0);
  struct save save = {.values = values, .state = state, .place = place, .faults = faults,
                      .is_first = lade_rank_group_is_first(values->group), .saves = {.fd = -1}};
  struct lade_error ignored;
  bool is_saved = false;
  int rc = parts_run(&save, &is_saved, error);
  for (int i = 0; i < save.table.files.n && save.writers; i++)
    lade_safetensors_abort(save.writers[i]);
  int finished = save.is_first ? saves_finish(&save, is_saved, rc < 0 ? &ignored : error) : 0;
  if (rc == 0)
    rc = lade_rank_group_vote(values->group, finished, error);
  free(save.targets);
  free(save.writers);
  free(save.names);
  free(save.entries);
  table_finish(&save.table);
  chunk_finish(&save.chunk);
  return rc;
}

int lade_checkpoint_check_room(const struct lade_values *values, const struct lade_checkpoint_place *place,
                               struct lade_faults *faults, struct lade_error *error)
{
  struct save save = {.values = values, .place = place, .faults = faults, .saves = {.fd = -1}};
  int rc = files_plan(&save, error);
  if (rc == 0) {
    rc = saves_open(&save.saves, place->dir, faults, error);
    if (rc == 0)
      rc = room_check(&save, error);
    saves_close(&save.saves, true);
  }
  table_finish(&save.table);
  return rc;
}
