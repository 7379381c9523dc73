/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A residency file: choices that the user fixes, one per line; the solver makes the rest.
 *
 *   h.*.attn.*      recompute        # activations whose name matches (as a shell pattern)
 *   h.0             host             # all activations of the unit h.0
 *   ln_1            keep             # in every unit the value that `lade plan` lists by this name
 *   gelu            recompute        # all outputs of an op of that kind
 *   optimizer *wte* store            # tier of the optimizer state of parameters: device, host or store
 *   weights *wte*   host             # tier of their working copies, which are never farther than their state
 *   gradients h.0.* store            # where gradients are between microbatches and until the update
 *   copies h.1?.*   drop             # gathered copies of parameters: keep for the backward half, or drop
 *
 * Parameters, too, go by their own names or by that of their unit: "weights h.0 host". A table that is several
 * parameters (graph/table.c) goes by its own name or by that of a part, its name and a number.
 *
 * Later lines override earlier ones. A line that matches nothing in the model is an error, because it is likely
 * misspelt. A line that matches only other ranks' parts, such as a layer of another stage, has no effect on this rank.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "recompute/plan.h"

#define LINE_BYTES 512           /* of a line; a longer one is refused */
#define MAX_FILE_BYTES (4 << 20) /* enough for ten thousand layers with each value by name */

struct overrides {
  LADE_ARRAY(struct lade_change) items;
};

static int word_find(const char *word, const char *const *words, int n)
{
  for (int i = 0; i < n; i++) {
    if (strcmp(word, words[i]) == 0)
      return i;
  }
  return -1;
}

const char *lade_name_within(const struct lade_model_graph *graph, int tensor)
{
  const char *name = graph->tensors[tensor].name, *unit = graph->units[graph->tensors[tensor].unit].name;
  const size_t n = strlen(unit);
  return strncmp(name, unit, n) == 0 && name[n] == '.' ? name + n + 1 : name;
}

/*
 * True if @pattern matches the parameter's name or its unit's. A table's part also matches by its table's name,
 * "embed.wte.weight" for "embed.wte.weight.3".
 */
static bool is_param_matched(const struct lade_model_graph *graph, int param, const char *pattern)
{
  const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
  const char *name = tensor->name;
  char table[LADE_NAME_BYTES];
  if (fnmatch(pattern, name, 0) == 0 || fnmatch(pattern, graph->units[tensor->unit].name, 0) == 0)
    return true;
  snprintf(table, sizeof(table), "%.*s", (int)(strrchr(name, '.') - name), name);
  return graph->params[param].n_parts > 1 && fnmatch(pattern, table, 0) == 0;
}

static int state_tiers_pin(const struct lade_model_graph *graph, const char *pattern, enum lade_change_kind kind,
                           int tier, struct overrides *overrides)
{
  int n = overrides->items.n;
  for (int param = 0; param < graph->n_params; param++) {
    if (!is_param_matched(graph, param, pattern))
      continue;
    if (!LADE_PUSH(&overrides->items, ((struct lade_change){(uint8_t)kind, (uint8_t)tier, param})))
      return -ENOMEM;
  }
  return overrides->items.n == n ? -ENOENT : 0;
}

/* Fix the saved gap of parameters' own tensors: gathered copies (@of_grads false), or gradients. */
static int saved_pin(const struct lade_model_graph *graph, const char *pattern, bool of_grads,
                     enum lade_residency_policy wait,
                     struct overrides *overrides)
{
  int n = overrides->items.n;
  for (int param = 0; param < graph->n_params; param++) {
    const int tensor = of_grads ? graph->params[param].grad : graph->params[param].tensor;
    if (!is_param_matched(graph, param, pattern))
      continue;
    if (!LADE_PUSH(&overrides->items, ((struct lade_change){LADE_CHANGE_SAVED, (uint8_t)wait, tensor})))
      return -ENOMEM;
  }
  return overrides->items.n == n ? -ENOENT : 0;
}

/* True if @pattern matches a tensor's name, its name within its unit, the unit's, or the kind of op that makes it. */
static bool is_matched(const struct lade_model_graph *graph, int i, const char *pattern)
{
  const struct lade_tensor *tensor = &graph->tensors[i];
  return fnmatch(pattern, tensor->name, 0) == 0 || fnmatch(pattern, lade_name_within(graph, i), 0) == 0 ||
         fnmatch(pattern, graph->units[tensor->unit].name, 0) == 0 ||
         strcmp(pattern, lade_op_kind_name(graph->ops[tensor->producer].kind)) == 0;
}

static int waits_pin(const struct lade_model_graph *graph, const char *pattern, int wait, struct overrides *overrides)
{
  int n = overrides->items.n;
  for (int i = 0; i < graph->n_tensors; i++) {
    const struct lade_tensor *tensor = &graph->tensors[i];
    if (tensor->kind != LADE_TENSOR_ACTIVATION || graph->ops[tensor->producer].is_backward)
      continue;
    if (!is_matched(graph, i, pattern))
      continue;
    if (wait == LADE_RESIDENCY_RECOMPUTE && !lade_tensor_is_repeatable(graph, i))
      continue; /* values from another stage stay on the device */
    if (!LADE_PUSH(&overrides->items, ((struct lade_change){LADE_CHANGE_SAVED, (uint8_t)wait, i})))
      return -ENOMEM;
  }
  return overrides->items.n == n ? -ENOENT : 0;
}

/* A line that begins with a word: "WORD PATTERN CHOICE". */
struct line_kind {
  const char *word;
  enum lade_change_kind kind;
  const char *choices[3]; /* of a tier, in the order of enum lade_tier */
  enum lade_residency_policy waits[3]; /* else: the policies of those words */
  const char *problem;
};

static const struct line_kind kinds[] = {
    {"optimizer", LADE_CHANGE_STATE, {"device", "host", "store"}, {0}, "the tier must be device, host or store"},
    {"weights", LADE_CHANGE_WEIGHT, {"device", "host", "store"}, {0}, "the tier must be device, host or store"},
    {"gradients", LADE_CHANGE_SAVED, {"keep", "host", "store"},
     {LADE_RESIDENCY_KEEP, LADE_RESIDENCY_HOST, LADE_RESIDENCY_STORE},
     "gradients are to keep, or wait in host or store"},
    {"copies", LADE_CHANGE_SAVED, {"keep", "drop"}, {LADE_RESIDENCY_KEEP, LADE_RESIDENCY_HOST},
     "copies are to keep or to drop"}};

static const struct line_kind *kind_find(const char *word)
{
  for (size_t i = 0; i < LADE_COUNT(kinds); i++) {
    if (strcmp(word, kinds[i].word) == 0)
      return &kinds[i];
  }
  return NULL;
}

/* Fix a choice for parameters. -EINVAL with a @ret_problem if the choice is unknown. */
static int params_pin(const struct line_kind *line, const char *pattern, const char *word,
                      const struct lade_model_graph *graph, struct overrides *overrides, const char **ret_problem)
{
  const int n_choices = line->choices[2] ? 3 : 2, choice = word_find(word, line->choices, n_choices);
  if (choice < 0) {
    *ret_problem = line->problem;
    return -EINVAL;
  }
  if (line->kind != LADE_CHANGE_SAVED)
    return state_tiers_pin(graph, pattern, line->kind, choice, overrides);
  return saved_pin(graph, pattern, strcmp(line->word, "gradients") == 0, line->waits[choice], overrides);
}

/* Read one line. -ENOENT: the line is well formed and matches no part of @graph. */
static int line_read(const char *line, const struct lade_model_graph *graph, struct overrides *overrides,
                     const char **ret_problem)
{
  static const char *const waits[] = {"keep", "recompute", "host", "store"};
  char words[4][LINE_BYTES];
  int n = sscanf(line, "%511s %511s %511s %511s", words[0], words[1], words[2], words[3]);
  if (n <= 0)
    return 0;
  const struct line_kind *kind = kind_find(words[0]);
  if (n != (kind ? 3 : 2)) {
    *ret_problem = "a line is PATTERN CHOICE, or one of optimizer, weights, gradients and copies before them";
    return -EINVAL;
  }
  int status = 0;
  *ret_problem = "out of memory";
  if (kind) {
    status = params_pin(kind, words[1], words[2], graph, overrides, ret_problem);
  } else {
    int wait = word_find(words[1], waits, 4);
    if (wait < 0)
      *ret_problem = "the choice must be keep, recompute, host or store";
    status = wait < 0 ? -EINVAL : waits_pin(graph, words[0], wait, overrides);
  }
  if (status == -ENOENT)
    *ret_problem = "the pattern matches nothing in this model";
  return status;
}

/* Test if @line, which matches no part of this rank's graph, matches a part of the whole model. */
static int line_seek(const char *line, const struct lade_model_graph *whole, const char **ret_problem)
{
  struct overrides elsewhere = {0};
  int status = whole ? line_read(line, whole, &elsewhere, ret_problem) : -ENOENT;
  LADE_ARRAY_FREE(&elsewhere.items);
  return status == -ENOENT ? -EINVAL : status;
}

/* Apply one line of the file, of @n bytes. */
static int line_pin(const char *bytes, size_t n, const struct lade_model_graph *graph,
                    const struct lade_model_graph *whole, struct overrides *overrides, const char **ret_problem)
{
  char line[LINE_BYTES];
  const char *comment = memchr(bytes, '#', n);
  n = comment ? (size_t)(comment - bytes) : n;
  *ret_problem = "a line has at most 511 bytes before its comment";
  if (n >= sizeof(line))
    return -EINVAL;
  *ret_problem = "not text: it has a zero byte";
  if (memchr(bytes, 0, n))
    return -EINVAL;
  memcpy(line, bytes, n);
  line[n] = 0;
  int status = line_read(line, graph, overrides, ret_problem);
  return status == -ENOENT ? line_seek(line, whole, ret_problem) : status;
}

int lade_residency_overrides_load(const char *path, const struct lade_model_graph *graph,
                                  const struct lade_model_graph *whole,
                                  struct lade_error *error, struct lade_change **ret_overrides, int *ret_n_overrides)
{
  struct lade_error problem_of_file;
  char *text = NULL;
  size_t n_bytes = 0;
  int status = lade_file_load(path, MAX_FILE_BYTES, &problem_of_file, &text, &n_bytes);
  if (status)
    return lade_error_set(error, status, "--residency %s", problem_of_file.text);
  struct overrides overrides = {0};
  size_t at = lade_text_mark_bytes(text, n_bytes);
  for (int number = 1; !status && at < n_bytes; number++) {
    const char *problem, *end = memchr(text + at, '\n', n_bytes - at);
    size_t n = end ? (size_t)(end - text) - at : n_bytes - at;
    status = line_pin(text + at, n, graph, whole, &overrides, &problem);
    if (status)
      lade_error_set(error, status, "--residency %s, line %d: %s", path, number, problem);
    at += n + 1;
  }
  free(text);
  if (status) {
    LADE_ARRAY_FREE(&overrides.items);
    return status;
  }
  *ret_overrides = overrides.items.items;
  *ret_n_overrides = overrides.items.n;
  return 0;
}
