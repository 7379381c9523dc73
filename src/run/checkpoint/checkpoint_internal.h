/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of checkpoints: chunks of a parameter's FP32 values, and the files of a checkpoint. */
#ifndef LADE_CHECKPOINT_INTERNAL_H
#define LADE_CHECKPOINT_INTERNAL_H

#include <limits.h>

#include <jansson.h>

#include "base/base.h"
#include "run/checkpoint.h"
#include "run/safetensors.h"

/* ---- FP32 values of parameters (checkpoint_values.c) ---- */

enum chunk_kind { CHUNK_MASTER, CHUNK_M, CHUNK_V, CHUNK_N_KINDS };

/* Elements whose 16-bit halves are one window each; chunks begin at multiples of it. */
#define CHUNK_BLOCK_ELEMENTS (LADE_VALUES_WINDOW_BYTES / 2)

/* One window of a value with one byte per element: read when first used, written when full. */
struct chunk_bytes {
  uint8_t *bytes;   /* one window */
  int tensor;       /* of the window; -1: none */
  uint64_t offset;  /* of the window, in the value */
};

/* Room for one chunk of a parameter at a time. */
struct chunk_buffer {
  const struct lade_values *values;
  float *elements;   /* n_max elements */
  int64_t n_max;     /* a multiple of CHUNK_BLOCK_ELEMENTS */
  uint16_t *weight;  /* one window of working copies */
  int16_t *residual; /* one window of residuals */
  struct chunk_bytes codes; /* of 8-bit moments, or 8-bit residuals */
  uint8_t *scales;   /* of all of one moment of a parameter; NULL if moments have no scales */
  int scales_tensor; /* tensor of the loaded scales; -1: none */
};

/* Elements [first, first + n) of a parameter, in memory at @data. */
struct elements_run {
  int64_t first, n;
  float *data;
};

/* Return the block of @run that begins @at elements after its start; the last block may be shorter. */
static inline struct elements_run elements_block(const struct elements_run *run, int64_t at)
{
  return (struct elements_run){run->first + at, LADE_MIN(run->n - at, CHUNK_BLOCK_ELEMENTS), run->data + at};
}

/* Allocate a chunk of at most @n_blocks blocks. -ENOMEM; -EINVAL for a graph of a dtype without optimizer state. */
int chunk_init(struct chunk_buffer *chunk, const struct lade_values *values, int n_blocks, struct lade_faults *faults,
               struct lade_error *error);
void chunk_finish(struct chunk_buffer *chunk);

/* Return the elements of a parameter in this graph. */
int64_t chunk_n_elements(const struct lade_model_graph *graph, int param);
/* Return the elements of a row; 1 for vectors. */
int64_t chunk_n_cols(const struct lade_model_graph *graph, int param);

/* Read or write elements [first, first + n) of a parameter's master or moment. pre: @first begins a block. */
int chunk_get(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error);
int chunk_set(struct chunk_buffer *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error);

/*
 * Do the same for compact moments, and for the bytes of a 24-bit master (checkpoint_forms.c). Elements are in ascending
 * order; a caller that sets them sets all.
 */
int forms_init(struct chunk_buffer *chunk, struct lade_faults *faults);
void forms_finish(struct chunk_buffer *chunk);
int moments_get(struct chunk_buffer *chunk, int param, enum chunk_kind kind, const struct elements_run *run,
                struct lade_error *error);
int moments_set(struct chunk_buffer *chunk, int param, enum chunk_kind kind, const struct elements_run *run,
                struct lade_error *error);
int master24_get(struct chunk_buffer *chunk, int param, const struct elements_run *run, struct lade_error *error);
int master24_set(struct chunk_buffer *chunk, int param, const struct elements_run *run, struct lade_error *error);

/* Set both moments of @param to zero. */
int chunk_zero_moments(struct chunk_buffer *chunk, int param, struct lade_error *error);

/* ---- the tensors of a checkpoint (checkpoint_table.c) ---- */

#define CHECKPOINT_SUFFIX ".safetensors"
#define CHECKPOINT_FILE_NAME_BYTES 48

/* The bytes of a tensor that were written or read: a sum over elements in any order, and the number of elements. */
struct tensor_tally {
  uint64_t sum, n_elements;
};

/*
 * Add @n elements of a tensor, from index @place in row-first order (rows are outputs), each @weight times.
 */
void tally_add(struct tensor_tally *tally, int64_t place, const float *elements, int64_t n, uint64_t weight);

/* A tensor of the whole model, of one kind. */
struct table_tensor {
  const struct lade_param_slice *slice; /* of the whole model's graph */
  enum chunk_kind kind;
  int n_dims;
  int64_t dims[2]; /* as in the file */
  int64_t n_elements;
  int file;
  uint64_t offset; /* in the file's data; set when a file is written */
};

struct table_file {
  char name[CHECKPOINT_FILE_NAME_BYTES];
  int first, n; /* its tensors; set when a file is written */
};

struct checkpoint_table {
  int n_slices;                 /* tensors of one kind */
  struct table_tensor *tensors; /* [CHUNK_N_KINDS][n_slices] */
  struct tensor_tally *tallies; /* of each */
  int *of_slice; /* [slices_count of this rank's graph]: index of the slice's tensor among those of one kind */
  LADE_ARRAY(struct table_file) files;
};

/*
 * List the whole model's tensors, without files. The values' graphs are borrowed. -ENOMEM. Finish the table in any
 * case.
 */
int table_init(struct checkpoint_table *table, const struct lade_values *values, struct lade_faults *faults,
               struct lade_error *error);
void table_finish(struct checkpoint_table *table);

/* Return the tensor of this rank's @slice, of @kind: an index of tensors and tallies. */
int table_find(const struct checkpoint_table *table, enum chunk_kind kind, int slice);

/* Add up the tallies of all ranks, at all ranks; collective. Errors of lade_rank_group_sum. */
int table_sum(struct checkpoint_table *table, struct lade_rank_group *group, struct lade_error *error);

/* Assign tensors to files of at most @file_bytes; a longer tensor has a file of its own. -ENOMEM. */
int table_cut(struct checkpoint_table *table, uint64_t file_bytes, struct lade_error *error);

/* True if @name is the name of a file of tensors. */
bool table_is_file_name(const char *name);

/* ---- parameters as tensors of files (checkpoint_slices.c) ---- */

/* Return the number of all slices of all parameters. Tensors of a file are numbered in their order. */
int slices_count(const struct lade_model_graph *graph);

/*
 * Set the shape of the file's tensor that contains a slice, as stored (transposed or not). Return its dimensions, 1 or
 * 2.
 */
int slice_shape(const struct lade_model_graph *graph, int param, int i_slice, int64_t ret_dims[2]);

/* Return the blocks of a chunk to save or load @graph: more if a slice is transposed. */
int slices_chunk_blocks(const struct lade_model_graph *graph);

/* Elements [first, end) of a parameter, in its own order. */
struct elements_range {
  int64_t first, end;
};

/*
 * Return ranges of elements. range_held: those with state on this rank. range_written: the part of it that this rank
 * saves; a lower rank saves the elements that it holds too. range_read: the elements of one kind that this rank loads.
 */
struct elements_range range_held(const struct lade_values *values, int param);
struct elements_range range_written(const struct lade_values *values, int param);
struct elements_range range_read(const struct lade_values *values, int param, enum chunk_kind kind);

/*
 * Return the number of times that an element of slice @i_slice counts in tallies of what ranks hold: more than once for
 * rows of queries beside rows of KV heads that several ranks share (checkpoint_tally.c).
 */
uint64_t slice_tally_weight(const struct lade_model_graph *graph, int param, int i_slice);

/* True if slice @i_slice of @param has an element in @range. */
bool slice_is_within(const struct lade_model_graph *graph, int param, int i_slice, struct elements_range range);

/* The place in a file that a slice is written to. */
struct slice_target {
  lade_safetensors_writer *writer;
  uint64_t offset; /* of its tensor, in the file's data */
  struct tensor_tally *tally;
};

/* Write this rank's range of every parameter's master, or of one of its moments, to @targets, one per slice. */
int slices_save(struct chunk_buffer *chunk, enum chunk_kind kind, const struct slice_target *targets,
                struct lade_faults *faults, struct lade_error *error);

/* The place in a file that a slice is read from. */
struct slice_source {
  const lade_safetensors *file;
  const char *path; /* of the file */
  const struct lade_safetensor *tensor;
  struct tensor_tally *tally; /* NULL: elements are not counted */
  uint64_t tally_weight;      /* an element counts this many times */
  uint64_t xxh3; /* of the slice's elements in the parameter's own order, rows first: the sum of format version 1 */
  bool has_xxh3;       /* verify xxh3: the slice is then all of its tensor, and is read whole */
};

/*
 * Set every parameter's master, or one of its moments, from @sources, one per slice, of any float type and the right
 * shape. Elements that this rank does not hold are not read; they are set to zero, which values ignore. -EBADMSG naming
 * file and tensor if an XXH3 differs.
 */
int slices_load(struct chunk_buffer *chunk, enum chunk_kind kind, const struct slice_source *sources,
                struct lade_faults *faults, struct lade_error *error);

/*
 * Tally all masters that this rank holds in @held, one tally per slice, and those that it saves in @written too. Errors
 * of the values.
 */
int slices_tally(struct chunk_buffer *chunk, struct tensor_tally *const *held, struct tensor_tally *const *written,
                 struct lade_error *error);

/* ---- files of a checkpoint's directory (checkpoint_state.c) ---- */

#define CHECKPOINT_MODEL "model" CHECKPOINT_SUFFIX
#define CHECKPOINT_INDEX CHECKPOINT_MODEL ".index.json" /* of a model in several files, in HuggingFace's format */
#define CHECKPOINT_CONFIG "config.json"
#define CHECKPOINT_TOKENIZER "tokenizer.json"
#define CHECKPOINT_STATE "state.json"

/* Room for "exp_avg_sq." and a slice's name. */
#define CHECKPOINT_NAME_BYTES (96 + 16)

/* Write a slice's name in its file: NAME, exp_avg.NAME, exp_avg_sq.NAME. Return @name. */
const char *slice_name(const struct lade_param_slice *slice, enum chunk_kind kind, char name[CHECKPOINT_NAME_BYTES]);

/* Join @dir and @name into @path (PATH_MAX). -ENAMETOOLONG. */
int checkpoint_path_join(char path[PATH_MAX], const char *dir, const char *name, struct lade_error *error);

/*
 * Write config.json, the index of a model in several files, the tokenizer's file, and last state.json, into @dir,
 * durably. pre: the table's tallies are sums over all ranks.
 */
int saved_config_write(const struct lade_model *model, const char *dir, struct lade_faults *faults,
                       struct lade_error *error);
int saved_index_write(const struct checkpoint_table *table, const char *dir, struct lade_faults *faults,
                      struct lade_error *error);
int saved_tokenizer_write(const struct lade_checkpoint_place *place, const char *dir, struct lade_faults *faults,
                          struct lade_error *error);
int saved_state_write(const struct checkpoint_table *table, const struct lade_checkpoint_state *state, const char *dir,
                      struct lade_faults *faults, struct lade_error *error);

/*
 * Return the code for a failure to open or read a file of a checkpoint. An absent file and lack of memory keep their
 * code. A file that is not regular, or too long, is damage. All other codes become -EIO, because the user named the
 * directory and not the file.
 */
int saved_file_error(int code, struct lade_error *error);

/* Convert 64 bits to 16 hexadecimal digits, and back; reading accepts exactly 16 digits. */
json_t *hex_json(uint64_t value);
bool hex_get(const json_t *value, uint64_t *ret_value);

/*
 * Convert a run to its object, and back (checkpoint_run.c). NULL: out of memory; false: a field is missing or of the
 * wrong type.
 */
json_t *saved_run_json(const struct lade_checkpoint_run *run);
bool saved_run_read(const json_t *object, struct lade_checkpoint_run *ret_run);

/*
 * Return the name of the first field of @state that is out of range, static, or NULL. @state may be any bytes. Steps
 * have 32 bits, because AdamW's draws and corrections take 32 bits.
 */
const char *saved_state_fault(const struct lade_checkpoint_state *state);

struct saved_state {
  struct lade_checkpoint_state state;
  uint64_t sum;   /* of all of the object */
  bool has_xxh3;  /* format version 1: sums of tensors are XXH3 */
  json_t *root; /* checked: checksum, version, fields */
};

/*
 * Read and check state.json of the checkpoint @path, and the presence and sizes of its other files. -ENOENT, -EBADMSG,
 * -EINVAL (version), -ENOMEM.
 */
int saved_state_read(struct saved_state *file, const char *path, struct lade_faults *faults, struct lade_error *error);
void saved_state_finish(struct saved_state *file);

/* Read and check state.json as saved_state_read does, but not the checkpoint's other files. */
int saved_state_read_alone(struct saved_state *file, const char *path, struct lade_faults *faults,
                           struct lade_error *error);

/* Return the stated sum of tensor @name in @ret_sum. False: state.json states none. */
bool saved_sum_find(const struct saved_state *file, const char *name, uint64_t *ret_sum);

/*
 * Set the file of each tensor of @table, and its sum in @ret_sums. -EINVAL: the checkpoint's tensors are another
 * model's.
 */
int saved_tensors_find(const struct saved_state *file, const char *path, struct checkpoint_table *table,
                       uint64_t *ret_sums, struct lade_error *error);

/* Compare config.json with its sum. */
int saved_config_verify(const struct saved_state *file, const char *path, struct lade_error *error);

/* ---- a directory of checkpoints (checkpoint_directory.c) ---- */

struct saves {
  const char *path;
  int fd;          /* open, and locked if the file system supports that */
  bool is_made;    /* created by this save; removed again if it stays empty */
  bool is_locked;
  struct lade_faults *faults;
};

/*
 * Open a directory for saving: create it if absent, lock it, remove leftovers. -EBUSY: another save is in progress;
 * -EPERM: an entry with a temporary name is another user's.
 */
int saves_open(struct saves *saves, const char *path, struct lade_faults *faults,
               struct lade_error *error);
/* Close. @is_empty_wanted: remove a directory that was created here, if it is empty. */
void saves_close(struct saves *saves, bool is_empty_wanted);

/* Create an empty temporary directory beside the checkpoints, for one of @step. */
int saves_make_temporary(struct saves *saves, int64_t step, char path[PATH_MAX],
                         struct lade_error *error);
/*
 * Sync @temporary and rename it to the checkpoint of @step, durably. On failure the names are as before. A replaced
 * directory of that name has the temporary name afterwards.
 */
int saves_publish(struct saves *saves, const char *temporary, int64_t step, struct lade_error *error);

/*
 * Remove all but the newest @keep checkpoints. The one of @step stays, and so does one with files that saves do not
 * write. If a checkpoint's name is a link, only the link is removed. -EPERM: one is another user's.
 */
int saves_keep(struct saves *saves, int keep, int64_t step, struct lade_error *error);

/* Remove the temporary directory @path, which saves_make_temporary made, if it exists. */
int saves_remove(struct saves *saves, const char *path);

/* Suggest the next older checkpoint beside @path, if there is one and @error reports a damaged checkpoint. */
void saves_suggest(const char *path, struct lade_error *error);

#endif
