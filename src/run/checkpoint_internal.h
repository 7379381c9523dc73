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

/* ---- parameters as tensors of files (checkpoint_slices.c) ---- */

/* All slices of all parameters, in order: what the tensors of a file are numbered by. */
int slices_count(const struct lade_graph *graph);

/* Shape of the file's tensor that a slice is of, transposed where it is. Returns the number of dimensions, 1 or 2. */
int slice_shape(const struct lade_graph *graph, int param, int i_slice, int64_t ret_dims[2]);

/* Blocks that a chunk should have to save or load @graph: more where there is something to transpose. */
int slices_chunk_blocks(const struct lade_graph *graph);

/*
 * Write every parameter's master, or one of its moments, to consecutive tensors of @writer, the first at @offset of
 * its data. @ret_sums gets each slice's sum: XXH3 of its elements in the parameter's own order, rows first.
 */
int slices_save(struct chunk *chunk, enum chunk_kind kind, lade_safetensors_writer *writer, uint64_t offset,
                uint64_t *ret_sums, struct lade_faults *faults, struct lade_error *error);

/* Where a slice comes from. */
struct slice_source {
  const lade_safetensors *file;
  const char *path; /* of it */
  const struct lade_safetensor *tensor;
  uint64_t sum;
  bool has_sum; /* to be verified */
};

/*
 * Set every parameter's master, or one of its moments, from @sources, one per slice, of any float type and the right
 * shape. -EBADMSG naming file and tensor when a sum differs.
 */
int slices_load(struct chunk *chunk, enum chunk_kind kind, const struct slice_source *sources,
                struct lade_faults *faults, struct lade_error *error);

/* ---- what stands in a checkpoint's directory (checkpoint_state.c) ---- */

#define CHECKPOINT_MODEL "model.safetensors"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define CHECKPOINT_CONFIG "config.json"
#define CHECKPOINT_STATE "state.json"

/* Room for "exp_avg_sq." and a slice's name. */
#define CHECKPOINT_NAME_BYTES (96 + 16)

/* A slice's name in its file: NAME, exp_avg.NAME, exp_avg_sq.NAME. Returns @name. */
const char *slice_name(const struct lade_param_slice *slice, enum chunk_kind kind, char name[CHECKPOINT_NAME_BYTES]);
const char *chunk_kind_file(enum chunk_kind kind);

/* @dir and @name joined into @path (PATH_MAX). -ENAMETOOLONG. */
int checkpoint_path_join(char path[PATH_MAX], const char *dir, const char *name, struct lade_error *error);

/* Write config.json, and after all others state.json, into @dir, durably. @sums: [CHUNK_N_KINDS][slices_count]. */
int saved_config_write(const struct lade_model *model, const char *dir, struct lade_faults *faults,
                       struct lade_error *error);
int saved_state_write(const struct lade_graph *graph, const struct lade_checkpoint_state *state, const uint64_t *sums,
                      const char *dir, struct lade_faults *faults, struct lade_error *error);

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
  json_t *root; /* checked: checksum, version, fields */
};

/*
 * Read and check state.json of the checkpoint @path, and that its other files are there with their sizes. -ENOENT,
 * -EBADMSG, -EINVAL (version), -ENOMEM.
 */
int saved_state_read(struct saved_state *file, const char *path, struct lade_faults *faults, struct lade_error *error);
void saved_state_finish(struct saved_state *file);

/* The sum of a slice's tensor. -EINVAL: this checkpoint has none of that name or shape. */
int saved_state_find_sum(const struct saved_state *file, const char *path, const struct lade_graph *graph, int param,
                         int i_slice, enum chunk_kind kind, uint64_t *ret_sum, struct lade_error *error);

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
