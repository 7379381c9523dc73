/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command's options: one table (options_table.c) that is parsed by, printed by --help and --print-config,
 * read from configuration files, and turned back into a command line.
 *
 * A value comes from the command line, else from the file that --config names, else from the table. Everything is
 * kept as the text that a person wrote, with its origin, beside the parsed value.
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
  VERB_BENCH_STORE = 128, /* the bench with options of its own */
  VERB_RUN = 256,
};

enum option_type {
  OPTION_SECTION, /* a title in --help */
  OPTION_FLAG,    /* bool */
  OPTION_TEXT,    /* const char * */
  OPTION_FILES,   /* struct option_list; one or more words follow, and it may be repeated */
  OPTION_COUNT,   /* int64_t */
  OPTION_PACE,    /* int64_t; the word auto is PACE_AUTO */
  OPTION_SEED,    /* uint64_t */
  OPTION_REAL,    /* double */
  OPTION_SIZE,    /* uint64_t, bytes */
  OPTION_BUDGET,  /* struct lade_budget */
  OPTION_DEVICE,  /* int: DEVICE_HOST, _DRY, _AUTO, or DEVICE_CUDA and the GPU's number */
  OPTION_CHOICE,  /* int: the value of one of the choices */
};

struct option_choice {
  const char *text;
  int value;
};

struct option {
  enum option_type type;
  const char *name, *metavar;
  unsigned verbs;  /* that show it in their help and take it */
  unsigned silent; /* that take it, because it changes nothing for them: a train command with another verb works */
  size_t offset;   /* in struct options */
  const char *preset; /* its default as text; NULL: unset */
  const char *unset;  /* without one, what unset means, in words */
  const char *help;
  double least, most; /* of numbers; both 0: no bound but the type's */
  const struct option_choice *choices;
};

enum option_origin { ORIGIN_DEFAULT, ORIGIN_CONFIG, ORIGIN_COMMAND };

struct option_list {
  const char **items;
  int n, capacity;
};

struct option_state {
  enum option_origin origin;
  int line;         /* of the configuration file that names it; 0: none does */
  const char *text; /* as written; NULL when unset, and for flags that are not given */
  struct option_list texts; /* of FILES, instead of text */
};

#define OPTIONS_MAX 96

struct options {
  struct lade_session_params session;
  /* What becomes part of the session's parameters once all is known. */
  struct option_list data, valid;
  int device, update, schedule, grad_reduce;
  int64_t n_threads, tp, pp, dp, zero, shard, virtual_stages, rank, n_node_ranks;
  const char *residency;
  /* Of the command itself. */
  const char *config, *log, *save, *timeline, *budgets, *checkpoint, *prompt, *trace, *html, *bench_dir;
  const char *run_budget, *report;
  double mtbf_seconds;
  int64_t eval_every, save_every, keep, n_tokens, top_k, n_rounds;
  double temperature, seconds, comm_timeout_s;
  int max, policy;
  uint64_t replay_budget_bytes, bench_bytes;
  bool is_sequence, has_every_rank;
  bool is_json, is_quiet, has_help, has_print_config;
  enum verb_id verb;
  struct option_state states[OPTIONS_MAX];
  char *config_text; /* the texts of ORIGIN_CONFIG lie in it */
};

enum { DEVICE_HOST, DEVICE_DRY, DEVICE_AUTO, DEVICE_CUDA /* and above: GPUs by number */ };
enum { UPDATE_END, UPDATE_EARLY };
enum { MAX_NONE, MAX_MICRO_BATCH, MAX_SEQ, MAX_LAYERS };

#define POLICY_ALL (-1) /* else one of enum lade_policy */

/* ---- the table ---- */

/* All options; ends with an entry without help. */
extern const struct option option_table[];

/* The words of --residency that are not a file. */
extern const struct option_choice residency_choices[];

/*
 * The option of that name that @verb takes; else one that only other verbs take, for a message. Verbs may have
 * different options of one name. NULL for none.
 */
const struct option *option_find(enum verb_id verb, const char *name, size_t name_bytes);
static inline int option_index(const struct option *option)
{
  return (int)(option - option_table);
}

const char *verb_name(enum verb_id verb);

/* --help of @verb: examples first, then every option with its default. */
void options_help(enum verb_id verb, FILE *file);

/* ---- reading ---- */

#define OPTIONS_GO (-1)
#define OPTIONS_ANSWERED 1

/*
 * Read the command line of @verb and the file that its --config names, check everything, and answer --help and
 * --print-config: then OPTIONS_ANSWERED is returned, else 0, or what is wrong. Finish @options either way.
 */
int options_parse(enum verb_id verb, int argc, char **argv, struct options *options, struct lade_error *error);

/* options_parse, which says what is wrong: the exit code where there is nothing to go on with, else OPTIONS_GO. */
int options_read(enum verb_id verb, int argc, char **argv, struct options *options);
void options_finish(struct options *options);

/*
 * Could the files and the directory that a run will write be written, and are none of them its data? Creates and
 * changes nothing. A negative errno and its line otherwise.
 */
int outputs_check(const struct options *options, struct lade_error *error);

/* Parse @text as @option into @options, remembering where it came from. -EINVAL, -ENOMEM. */
int option_set(struct options *options, const struct option *option, const char *text, enum option_origin origin,
               int line, struct lade_error *error);

bool option_is_set(const struct options *options, const char *name);

/* Edits between two words, at most 32 letters of each counted. */
int word_distance(const char *a, const char *b);

/* "24MiB", "80%", "80%dev", "min", "auto". -EINVAL. */
int budget_parse(const char *text, struct lade_budget *ret_budget, struct lade_error *error);

/* ---- writing (config.c) ---- */

/* Read lines `name = value`. -EINVAL with the line. */
int config_load(struct options *options, const char *path, struct lade_error *error);

/*
 * The effective configuration of @verb as such a file, each line with its origin as a comment. NULL when memory is
 * out; else free it.
 */
char *config_write(const struct options *options, enum verb_id verb);

/* The same as a JSON object: {"batch": {"value": "12", "from": "default"}, ...}. NULL when memory is out. */
struct json_t;
struct json_t *config_json(const struct options *options, enum verb_id verb);

/*
 * Arguments that repeat this run under @verb: everything that is not a default, as "--name=value", but the
 * options named in @without (NULL at its end). Into @ret_list, whose items and array are the caller's. -ENOMEM.
 */
int options_arguments(const struct options *options, enum verb_id verb, const char *const *without,
                      struct option_list *ret_list);
int option_list_push(struct option_list *list, const char *item);
void option_list_free_items(struct option_list *list);

/* Print a blank and @word, quoted for a shell where it must be. */
void word_print(FILE *file, const char *word);

#endif
