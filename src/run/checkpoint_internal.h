/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of checkpoints: chunks of a parameter's FP32 values, and what the files of a checkpoint are. */
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

/* Windows of one value whose elements are bytes: got when first asked for, set when full. */
struct chunk_bytes {
  uint8_t *bytes;   /* one window */
  int tensor;       /* of which they are; -1: none */
  uint64_t offset;  /* where the window begins */
};

/* Room for one chunk of some parameter at a time. */
struct chunk {
  const struct lade_values *values;
  float *elements;   /* n_max of them */
  int64_t n_max;     /* a multiple of CHUNK_BLOCK_ELEMENTS */
  uint16_t *weight;  /* one window of working copies */
  int16_t *residual; /* one window of residuals */
  struct chunk_bytes codes; /* of 8-bit moments, or 8-bit residuals */
  uint8_t *scales;          /* all of one parameter's moment; NULL where moments have none */
  int scales_tensor;        /* whose they are; -1: nobody's */
};

/* -ENOMEM; -EINVAL for graphs of a dtype that nothing trains in. @n_blocks is how many blocks a chunk may have. */
int chunk_init(struct chunk *chunk, const struct lade_values *values, int n_blocks, struct lade_faults *faults,
               struct lade_error *error);
void chunk_finish(struct chunk *chunk);

int64_t chunk_n_elements(const struct lade_graph *graph, int param);
/* Elements of a row; 1 for vectors. */
int64_t chunk_n_cols(const struct lade_graph *graph, int param);

/* Read or write elements [first, first + n) of a parameter's master or moment; @first begins a block. */
int chunk_get(struct chunk *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error);
int chunk_set(struct chunk *chunk, int param, enum chunk_kind kind, int64_t first, int64_t n,
              struct lade_error *error);

/*
 * The same for moments in a compact form, and for the bytes of a 24-bit master (checkpoint_forms.c); elements in
 * ascending order, all of them when they are set.
 */
int forms_init(struct chunk *chunk, struct lade_faults *faults);
void forms_finish(struct chunk *chunk);
int moments_get(struct chunk *chunk, int param, enum chunk_kind kind, int64_t first, float *dst, int64_t n,
                struct lade_error *error);
int moments_set(struct chunk *chunk, int param, enum chunk_kind kind, int64_t first, const float *src, int64_t n,
                struct lade_error *error);
int master24_get(struct chunk *chunk, int param, int64_t first, float *dst, int64_t n, struct lade_error *error);
int master24_set(struct chunk *chunk, int param, int64_t first, const float *src, int64_t n,
                 struct lade_error *error);

/* Set both moments of @param to zero. */
int chunk_zero_moments(struct chunk *chunk, int param, struct lade_error *error);

/* ---- the tensors of a checkpoint (checkpoint_table.c) ---- */

#define CHECKPOINT_SUFFIX ".safetensors"
#define CHECKPOINT_FILE_NAME_BYTES 48

/* What was written or read of a tensor: a sum over its elements that adds up in any order, and how many they are. */
struct tally {
  uint64_t sum, n_elements;
};

/* Add @n elements of a tensor from its @place on, rows (outputs) first. */
void tally_add(struct tally *tally, int64_t place, const float *elements, int64_t n);

/* A tensor of the whole model, of one kind. */
struct table_tensor {
  const struct lade_param_slice *slice; /* of the whole model's graph */
  enum chunk_kind kind;
  int n_dims;
  int64_t dims[2]; /* as in the file */
  int64_t n_elements;
  int file;
  uint64_t offset; /* in the file's data; of a file that is being written */
};

struct table_file {
  char name[CHECKPOINT_FILE_NAME_BYTES];
  int first, n; /* tensors of a file that is being written */
};

struct table {
  int n_slices;                 /* tensors of one kind */
  struct table_tensor *tensors; /* [CHUNK_N_KINDS][n_slices] */
  struct tally *tallies;        /* of each */
  int *of_slice;                /* [slices_count of our graph]: its tensor among those of one kind */
  LADE_ARRAY(struct table_file) files;
};

/* The whole model's tensors, in no files yet. The values' graphs are borrowed. -ENOMEM; finish all the same. */
int table_init(struct table *table, const struct lade_values *values, struct lade_faults *faults,
               struct lade_error *error);
void table_finish(struct table *table);

/* Our slice's tensor of @kind, an index of tensors and tallies. */
int table_find(const struct table *table, enum chunk_kind kind, int slice);

/* Make the tallies those of all ranks together; collective. Errors of lade_peers_sum. */
int table_sum(struct table *table, struct lade_peers *peers, struct lade_error *error);

/* Say which tensor goes into which file, none longer than @file_bytes unless a tensor is. -ENOMEM. */
int table_cut(struct table *table, uint64_t file_bytes, struct lade_error *error);

/* Is it the name of a file of tensors? */
bool table_is_file_name(const char *name);

/* ---- parameters as tensors of files (checkpoint_slices.c) ---- */

/* All slices of all parameters, in order: what the tensors of a file are numbered by. */
int slices_count(const struct lade_graph *graph);

/* Shape of the file's tensor that a slice is of, transposed where it is. Returns the number of dimensions, 1 or 2. */
int slice_shape(const struct lade_graph *graph, int param, int i_slice, int64_t ret_dims[2]);

/* Blocks that a chunk should have to save or load @graph: more where there is something to transpose. */
int slices_chunk_blocks(const struct lade_graph *graph);

/* Elements [first, end) of a parameter, in its own order. */
struct elements_range {
  int64_t first, end;
};

/*
 * What this rank holds the state of; of that, what it writes: what no lower rank holds too. What it reads of one kind:
 * all that it has room for.
 */
struct elements_range range_held(const struct lade_values *values, int param);
struct elements_range range_written(const struct lade_values *values, int param);
struct elements_range range_read(const struct lade_values *values, int param, enum chunk_kind kind);

/* Does slice @i_slice of @param have anything in @range? */
bool slice_is_within(const struct lade_graph *graph, int param, int i_slice, struct elements_range range);

/* Where a slice goes to. */
struct slice_target {
  lade_safetensors_writer *writer;
  uint64_t offset; /* of its tensor, in the file's data */
  struct tally *tally;
};

/* Write what this rank writes of every parameter's master, or one of its moments, to @targets, one per slice. */
int slices_save(struct chunk *chunk, enum chunk_kind kind, const struct slice_target *targets,
                struct lade_faults *faults, struct lade_error *error);

/* Where a slice comes from. */
struct slice_source {
  const lade_safetensors *file;
  const char *path; /* of it */
  const struct lade_safetensor *tensor;
  struct tally *tally; /* NULL: nothing is counted */
  uint64_t xxh3;       /* of its elements in the parameter's own order, rows first, as format version 1 has it */
  bool has_xxh3;       /* to be verified: the slice is then all of its tensor, and is read whole */
};

/*
 * Set every parameter's master, or one of its moments, from @sources, one per slice, of any float type and the right
 * shape; what this rank does not hold is not read, and set to zero, which values ignore. -EBADMSG naming file and
 * tensor when an XXH3 differs.
 */
int slices_load(struct chunk *chunk, enum chunk_kind kind, const struct slice_source *sources,
                struct lade_faults *faults, struct lade_error *error);

/*
 * Count all masters that this rank holds in @held, one tally per slice, and those of them that it writes in @written,
 * too. Errors of the values.
 */
int slices_tally(struct chunk *chunk, struct tally *const *held, struct tally *const *written,
                 struct lade_error *error);

/* ---- what stands in a checkpoint's directory (checkpoint_state.c) ---- */

#define CHECKPOINT_MODEL "model" CHECKPOINT_SUFFIX
#define CHECKPOINT_INDEX CHECKPOINT_MODEL ".index.json" /* where the model is in several files, as HuggingFace has it */
#define CHECKPOINT_CONFIG "config.json"
#define CHECKPOINT_STATE "state.json"

/* Room for "exp_avg_sq." and a slice's name. */
#define CHECKPOINT_NAME_BYTES (96 + 16)

/* A slice's name in its file: NAME, exp_avg.NAME, exp_avg_sq.NAME. Returns @name. */
const char *slice_name(const struct lade_param_slice *slice, enum chunk_kind kind, char name[CHECKPOINT_NAME_BYTES]);

/* @dir and @name joined into @path (PATH_MAX). -ENAMETOOLONG. */
int checkpoint_path_join(char path[PATH_MAX], const char *dir, const char *name, struct lade_error *error);

/*
 * Write config.json, the index of a model in several files, and after all others state.json, into @dir, durably. The
 * table's tallies are those of the whole tensors.
 */
int saved_config_write(const struct lade_model *model, const char *dir, struct lade_faults *faults,
                       struct lade_error *error);
int saved_index_write(const struct table *table, const char *dir, struct lade_faults *faults,
                      struct lade_error *error);
int saved_state_write(const struct table *table, const struct lade_checkpoint_state *state, const char *dir,
                      struct lade_faults *faults, struct lade_error *error);

/*
 * What a failure to open or read a file of a checkpoint is: what is not there or finds no memory stays that, what is
 * no regular file or too long is damage, and all else I/O; a person named the directory and not the file.
 */
int saved_file_error(int code, struct lade_error *error);

/* A 64-bit pattern as 16 hexadecimal digits, and back: exactly those. */
json_t *hex_json(uint64_t value);
bool hex_get(const json_t *value, uint64_t *ret_value);

/* The object of a run (checkpoint_run.c). NULL: out of memory; false: a field is missing or of the wrong type. */
json_t *saved_run_json(const struct lade_checkpoint_run *run);
bool saved_run_read(const json_t *object, struct lade_checkpoint_run *ret_run);

struct saved_state {
  struct lade_checkpoint_state state;
  uint64_t sum;   /* of all that it says */
  bool has_xxh3;  /* format version 1: sums of tensors are XXH3 */
  json_t *root; /* checked: checksum, version, fields */
};

/*
 * Read and check state.json of the checkpoint @path, and that its other files are there with their sizes. -ENOENT,
 * -EBADMSG, -EINVAL (version), -ENOMEM.
 */
int saved_state_read(struct saved_state *file, const char *path, struct lade_faults *faults, struct lade_error *error);
void saved_state_finish(struct saved_state *file);

/*
 * Say which tensor of @table is in which file, and its sum into @ret_sums. -EINVAL: this checkpoint has not the
 * tensors of this model.
 */
int saved_tensors_find(const struct saved_state *file, const char *path, struct table *table, uint64_t *ret_sums,
                       struct lade_error *error);

/* Compare config.json with its sum. */
int saved_config_verify(const struct saved_state *file, const char *path, struct lade_error *error);

/* ---- a directory of checkpoints (checkpoint_directory.c) ---- */

struct saves {
  const char *path;
  int fd;          /* open, and locked where the file system can */
  bool is_made;    /* by us: removed again when nothing comes into it */
  bool is_locked;
  struct lade_faults *faults;
};

/* Open for saving: make it if need be, lock it, remove leftovers. -EBUSY: another save is under way. */
int saves_open(struct saves *saves, const char *path, struct lade_faults *faults,
               struct lade_error *error);
/* @is_empty_wanted: a directory that we made goes again if it is empty. */
void saves_close(struct saves *saves, bool is_empty_wanted);

/* A fresh directory beside the checkpoints, for one of @step. */
int saves_make_temporary(struct saves *saves, int64_t step, char path[PATH_MAX],
                         struct lade_error *error);
/*
 * Sync @temporary and give it the name of the checkpoint of @step, durably. On failure all is as before. What had
 * that name has the temporary one afterwards.
 */
int saves_publish(struct saves *saves, const char *temporary, int64_t step, struct lade_error *error);

/* Remove all but the newest @keep checkpoints, never that of @step nor one that holds files of others. */
int saves_keep(struct saves *saves, int keep, int64_t step, struct lade_error *error);

/* Remove a directory that holds only files, or is not there. */
int saves_remove(const char *path);

/* If @error tells of a damaged checkpoint, name the next older one beside @path, if there is one, as the way out. */
void saves_suggest(const char *path, struct lade_error *error);

#endif
