/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command's options: one table (options_table.c) for parsing, --help, --print-config, configuration files, and the
 * command line that repeats a run.
 *
 * A value comes from the command line, else from the file that --config names, else from the table. The user's text and
 * its origin are kept with the parsed value.
 */
#ifndef LADE_OPTIONS_H
#define LADE_OPTIONS_H

#include <stddef.h>
#include <stdio.h>

#include "run/session.h"

enum verb_id {
  VERB_TRAIN = 1,
  VERB_SWEEP = 2,
  VERB_PLAN = 4,
  VERB_DOCTOR = 8,
  VERB_SAMPLE = 16,
  VERB_BENCH = 32,
  VERB_REPLAY = 64,
  VERB_BENCH_STORE = 128, /* a subject of `lade bench` with options of its own */
  VERB_RUN = 256,
  VERB_DATA = 512,
  VERB_BENCH_LINKS = 1024, /* as VERB_BENCH_STORE */
};

enum option_type {
  OPTION_SECTION, /* a title in --help */
  OPTION_FLAG,    /* bool */
  OPTION_TEXT,    /* const char * */
  OPTION_FILES,   /* struct option_list; one or more words follow, and it may be repeated */
  OPTION_COUNT,   /* int64_t */
  OPTION_INTERVAL, /* int64_t; the word auto is SAVE_INTERVAL_AUTO */
  OPTION_SEED,    /* uint64_t */
  OPTION_REAL,    /* double */
  OPTION_SIZE,    /* uint64_t, bytes */
  OPTION_BUDGET,  /* struct lade_budget */
  OPTION_DEVICE,  /* int: DEVICE_HOST, _DRY, _AUTO, or DEVICE_CUDA and the GPU's number */
  OPTION_CHOICE,  /* int: the value of one of the choices */
};

/* The kinds of `lade plan` in which an option counts: --graph FILE plans a graph, all else a model. */
enum option_subject {
  OF_MODEL, /* refused with --graph */
  OF_GRAPH, /* needs --graph */
  OF_BOTH,
};

struct option_choice {
  const char *text;
  int value;
};

struct option {
  enum option_type type;
  const char *name, *metavar;
  unsigned verbs;  /* verbs that take it and show it in their help */
  unsigned silent; /* verbs that take and ignore it, so that a train command works with another verb */
  size_t offset;   /* of its field in struct options */
  const char *preset; /* its default as text; NULL: unset */
  const char *unset;  /* without a default: the effect of leaving it out, in words */
  const char *help;
  double min, max; /* of numbers; both 0: bounded by the type alone */
  const struct option_choice *choices;
  enum option_subject subject;
};

enum option_origin { ORIGIN_DEFAULT, ORIGIN_CONFIG, ORIGIN_COMMAND };

struct option_list {
  const char **items;
  int n, capacity;
};

struct option_state {
  enum option_origin origin;
  int line;         /* of the configuration file that sets it; 0: none does */
  const char *text; /* as written; NULL if unset, and for flags that are not given */
  struct option_list texts; /* of FILES, instead of text */
};

#define OPTIONS_MAX 152 /* entries of the table, with room for a few more */
#define SWEEP_N_SIZES 4 /* tp, pp, dp, zero */

struct options {
  struct lade_session_params session;
  /* Parts of the session's parameters that need all options. */
  struct option_list data, valid;
  int device, schedule, grad_reduce;
  int64_t n_threads, tp, pp, dp, zero, shard, virtual_stages, rank, n_node_ranks;
  /* Of the command itself. */
  const char *config, *log, *save, *timeline, *budgets, *checkpoint, *prompt, *trace, *html, *bench_dir;
  const char *run_budget, *report;
  struct option_list texts;                            /* of lade data, as are the next seven */
  const char *tokenizer, *output, *field, *separator;
  int text_format, documents;
  bool has_special_tokens;
  double data_valid_fraction;
  int64_t n_processes; /* 0: all CPUs */
  const char *graph, *graph_out, *instructions, *svg;
  const char *cluster, *links_file;
  int64_t n_ranks, n_top, n_context, n_expert_ranks;
  double n_train_tokens, noise_scale_tokens, expert_capacity;
  bool has_search, has_explain, has_fused_attention, has_fused_norms, overlaps_tensor, gathers_late, is_eager;
  bool is_any_precision;
  int software; /* enum lade_software */
  int export_format;
  int64_t n_iterations;
  double search_seconds; /* 0: no limit */
  bool has_frontier, has_detail, has_probe;
  const char *sweep_sizes[SWEEP_N_SIZES]; /* lists of sizes of a layout: tp, pp, dp, zero; NULL: not swept */
  int64_t n_repeats;
  double mtbf_seconds;
  int64_t eval_every, save_every, keep, n_tokens, top_k, n_rounds;
  double temperature, seconds, comm_timeout_s;
  int max, policy;
  uint64_t replay_budget_bytes, bench_bytes;
  bool is_sequence, has_every_rank;
  bool is_json, is_quiet, has_help, has_print_config;
  enum verb_id verb;
  struct option_state states[OPTIONS_MAX];
  char *config_text; /* holds the texts of ORIGIN_CONFIG */
};

enum { DEVICE_HOST, DEVICE_DRY, DEVICE_AUTO, DEVICE_CUDA /* and above: GPUs by number */ };
enum {
  EXPORT_NONE, EXPORT_MEGATRON, EXPORT_DEEPSPEED, EXPORT_TORCHTITAN, EXPORT_TORCHTITAN_PY, EXPORT_FSDP2, EXPORT_LADE
};
enum { MAX_NONE, MAX_MICRO_BATCH, MAX_SEQ, MAX_LAYERS };

#define POLICY_ALL (-1) /* else one of enum lade_policy */

/* ---- the table ---- */

/* All options; the last entry has no help. */
extern const struct option option_table[];

/* The values of --recompute. */
extern const struct option_choice recompute_choices[], moments_choices[], master_choices[],
    software_choices[];

/*
 * Return the option @name of @verb; else one that only other verbs take, for a message; NULL: none. Verbs may have
 * different options of one name.
 */
const struct option *option_find(enum verb_id verb, const char *name, size_t name_bytes);

/* Return the option of @verb that replaced an option of an earlier version, named @name. NULL for none. */
const struct option *option_successor(enum verb_id verb, const char *name, size_t name_bytes);

/*
 * Return the reason why @verb has no option @name, for techniques that users of other trainers look for. NULL: none.
 */
const char *option_absence(enum verb_id verb, const char *name);

static inline int option_index(const struct option *option)
{
  return (int)(option - option_table);
}

const char *verb_name(enum verb_id verb);

/* Print --help of @verb: examples first, then every option with its default. */
void options_help(enum verb_id verb, FILE *file);

/* ---- reading ---- */

#define OPTIONS_GO (-1)    /* of options_read: the verb goes on */
#define OPTIONS_ANSWERED 1 /* of options_parse: the options asked for an answer, which was printed */

/*
 * Read the command line of @verb and the file that its --config names, and check everything. Return OPTIONS_ANSWERED
 * after --help or --print-config, else 0 or an error. Finish @options in every case.
 */
int options_parse(enum verb_id verb, int argc, char **argv, struct options *options, struct lade_error *error);

/* Run options_parse and print its error: return the exit code if the verb cannot go on, else OPTIONS_GO. */
int options_read(enum verb_id verb, int argc, char **argv, struct options *options);
void options_finish(struct options *options);

/*
 * Check that the run's output files and directory can be written, and that none of them is an input or another output.
 * Creates and changes nothing. Return a negative errno and its line otherwise.
 */
int outputs_check(const struct options *options, struct lade_error *error);

/*
 * Open @path, which --@option names, to write or to append. The caller closes *ret_file. A fifo without a reader is
 * refused at once. Return a negative errno and its line otherwise.
 */
int output_open(const char *option, const char *path, bool appends, struct lade_error *error, FILE **ret_file);

/* Close @file, which output_open opened. -EIO and a line with the reason if any write to it has failed. */
int output_close(const char *option, const char *path, FILE *file, struct lade_error *error);

/* Return where the value of @option is in @options. */
void *option_field(struct options *options, const struct option *option);

/* Parse @text as @option into @options and record its origin. -EINVAL, -ENOMEM. */
int option_set(struct options *options, const struct option *option, const char *text, enum option_origin origin,
               int line, struct lade_error *error);

/*
 * True if the user gave the option a value: a flag that is on, a value on the command line, or a value of the
 * configuration file that differs from the default.
 */
bool option_is_given(const struct options *options, const struct option *option);
bool option_is_set(const struct options *options, const char *name);

/* Return the edits between two words; at most 32 letters of each count. */
int word_distance(const char *a, const char *b);

/* Parse "24MiB", "80%", "80%dev", "min" or "auto". -EINVAL. */
int budget_parse(const char *text, struct lade_budget *ret_budget, struct lade_error *error);

/* ---- writing (config.c) ---- */

/* Read lines `name = value`. -EINVAL with the line number. */
int config_load(struct options *options, const char *path, struct lade_error *error);

/*
 * Return the effective configuration of @verb as such a file, each line with its origin as a comment. The caller frees
 * it. NULL: out of memory.
 */
char *config_write(const struct options *options, enum verb_id verb);

/* Return the same as a JSON object: {"batch": {"value": "12", "from": "default"}, ...}. NULL: out of memory. */
struct json_t;
struct json_t *config_json(const struct options *options, enum verb_id verb);

/*
 * Return arguments that repeat this run under @verb: all that differ from the defaults, as "--name=value", without the
 * options in @without (NULL at its end). The caller owns the items and the array of *ret_list. -ENOMEM.
 */
int options_arguments(const struct options *options, enum verb_id verb, const char *const *without,
                      struct option_list *ret_list);
int option_list_push(struct option_list *list, const char *item);
void option_list_free_items(struct option_list *list);

/* Print a blank and @word, quoted for a shell if needed. */
void word_print(FILE *file, const char *word);

#endif
