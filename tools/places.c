/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each choice of a plan is worth. Prices are read off the program itself, not off an estimate: the predicted
 * time of every instruction that is there because of a choice is charged to the value that was chosen for (an op
 * that runs again to its first output, a copy to what it copies, an update to its parameter). They are busy times
 * of queues; beside compute they may cost the step nothing.
 */
#include "tools/places.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "plan/build.h"
#include "tools/report.h"

struct survey {
  const struct lade_session_info *info;
  const struct lade_graph *graph;
  double *seconds;  /* by value number */
  bool *is_waiting; /* by tensor: a backward op reads it */
  bool *is_pinned;  /* by lade_change_index */
  enum lade_recipe recipe;
  struct places *places;
};

/* ---- prices ---- */

static int moved_tensor(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_operand *source = &program->operands[instr->first_operand];
  return source->access & LADE_READS ? source->reads.tensor : -1;
}

/* The value that @instr is there for; -1: it would be there with everything kept. */
static int blamed_tensor(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_graph *graph = program->graph;
  switch (instr->kind) {
  case LADE_INSTR_COMPUTE:
    return instr->is_recompute ? graph->ops[instr->op].out[0] : -1;
  case LADE_INSTR_UPDATE:
    return lade_value_part(graph, instr->param, LADE_PART_M); /* which every form of state has */
  case LADE_INSTR_COPY:
  case LADE_INSTR_READ:
  case LADE_INSTR_WRITE:
    return moved_tensor(program, instr);
  default:
    return -1;
  }
}

static void prices_collect(struct survey *survey)
{
  const struct lade_program *program = survey->info->plan->train;
  for (int i = 0; i < program->n_instrs; i++) {
    int tensor = blamed_tensor(program, &program->instrs[i]);
    if (tensor >= 0)
      survey->seconds[tensor] += (double)program->instrs[i].predicted_ns / 1e9;
  }
}

static void waits_collect(struct survey *survey)
{
  const struct lade_graph *graph = survey->graph;
  for (int op = graph->n_fwd_ops; op < graph->n_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++) {
      if (graph->ops[op].in[i] >= 0)
        survey->is_waiting[graph->ops[op].in[i]] = true;
    }
  }
}

static int pins_collect(struct survey *survey, const char *path, struct lade_error *error)
{
  struct lade_change *pins = NULL;
  int n_pins = 0;
  int status = path ? lade_pins_load(path, survey->graph, survey->info->whole, error, &pins, &n_pins) : 0;
  for (int i = 0; i < n_pins && !status; i++)
    survey->is_pinned[lade_change_index(survey->graph, &pins[i])] = true;
  free(pins);
  return status;
}

/* ---- places ---- */

static double transfer_seconds(const struct lade_transfer_price *out, const struct lade_transfer_price *in,
                               uint64_t bytes)
{
  return ((double)(out->latency_ns + in->latency_ns) + (double)bytes * (out->ns_per_byte + in->ns_per_byte)) / 1e9;
}

static void reason_write(const struct survey *survey, int tensor, enum lade_wait wait, char *reason)
{
  static const char *const recipes[LADE_N_RECIPES] = {"auto", "none", "full", "selective"};
  const struct lade_prices *prices = survey->info->prices;
  uint64_t bytes = survey->graph->tensors[tensor].bytes;
  char again[32], copy[32], drive[32];
  seconds_format((double)prices->op_ns[survey->graph->tensors[tensor].producer] / 1e9, again, sizeof(again));
  seconds_format(transfer_seconds(&prices->to_host, &prices->to_device, bytes), copy, sizeof(copy));
  seconds_format(transfer_seconds(&prices->write, &prices->read, bytes), drive, sizeof(drive));
  if (survey->is_pinned[tensor])
    snprintf(reason, PLACE_REASON_BYTES, "fixed by the residency file");
  else if (survey->recipe != LADE_RECIPE_AUTO)
    snprintf(reason, PLACE_REASON_BYTES, "by the recipe `%s`", recipes[survey->recipe]);
  else if (wait == LADE_WAIT_KEEP)
    snprintf(reason, PLACE_REASON_BYTES, "there is room; to make it again takes %s, to copy it %s", again, copy);
  else if (wait == LADE_WAIT_RECOMPUTE)
    snprintf(reason, PLACE_REASON_BYTES, "to make it again takes %s, to copy it out and in %s", again, copy);
  else if (wait == LADE_WAIT_HOST)
    snprintf(reason, PLACE_REASON_BYTES, "to copy it out and in takes %s, to make it again %s and its inputs", copy,
             again);
  else
    snprintf(reason, PLACE_REASON_BYTES, "to write and read it takes %s, to make it again %s and its inputs", drive,
             again);
}

static int activation_add(struct survey *survey, int tensor)
{
  const struct lade_choice *choice = &survey->info->plan->residency->choices[tensor];
  struct place place = {.unit = survey->graph->tensors[tensor].unit, .bytes = survey->graph->tensors[tensor].bytes,
                        .where = lade_wait_name((enum lade_wait)choice->saved), .seconds = survey->seconds[tensor],
                        .is_spilled = choice->spill != LADE_WAIT_KEEP};
  snprintf(place.what, sizeof(place.what), "%s", lade_name_within(survey->graph, tensor));
  reason_write(survey, tensor, (enum lade_wait)choice->saved, place.reason);
  return LADE_PUSH(survey->places, place) ? 0 : -ENOMEM;
}

static int activations_add(struct survey *survey, int unit)
{
  const struct lade_graph *graph = survey->graph;
  int status = 0;
  for (int tensor = 0; tensor < graph->n_tensors && !status; tensor++) {
    const struct lade_tensor *what = &graph->tensors[tensor];
    if (what->kind != LADE_TENSOR_ACTIVATION || what->unit != unit || graph->ops[what->producer].is_backward)
      continue;
    if (survey->is_waiting[tensor] || survey->seconds[tensor] > 0)
      status = activation_add(survey, tensor);
  }
  return status;
}

/* Working copies (WEIGHT) or optimizer state (STATE) at home in some space: what a reader is told of them. */
static const char *const home_reasons[][3] = {
    [LADE_CHANGE_STATE] = {"there is room; updated by the device", "updated there by the CPU",
                           "updated there, streamed through memory"},
    [LADE_CHANGE_WEIGHT] = {"there is room", "fetched before use, the copy there stays",
                            "fetched before use, the copy there stays"}};

/* What this rank has of a value of a parameter, and what it keeps busy. */
static void value_sum(const struct survey *survey, int value, struct place *place)
{
  if (value < 0)
    return; /* this form of state lacks it */
  place->bytes += lade_held_bytes(survey->graph, &survey->info->layout, value);
  place->seconds += survey->seconds[value];
}

/* The working copy of @param: the block of it where ranks have one each, and copies of what they gather. */
static void weight_sum(const struct survey *survey, int param, struct place *place)
{
  const struct lade_build_params how = {.graph = survey->graph, .layout = &survey->info->layout,
                                        .residency = survey->info->plan->residency};
  const int whole = survey->graph->params[param].tensor;
  const bool is_gathered = plan_is_gathered(&how, param);
  value_sum(survey, is_gathered ? lade_value_block(survey->graph, param, LADE_BLOCK_WEIGHT) : whole, place);
  place->seconds += is_gathered ? survey->seconds[whole] : 0;
}

/* One place for what of @unit's parameters @kind speaks of at home in @home, if there is any. */
static int homes_add(struct survey *survey, int unit, enum lade_change_kind kind, enum lade_home home)
{
  static const char *const names[] = {"device", "host", "store"};
  const struct lade_graph *graph = survey->graph;
  const struct lade_residency *residency = survey->info->plan->residency;
  const bool is_state = kind == LADE_CHANGE_STATE;
  const uint8_t *homes = is_state ? residency->homes : residency->weight_homes;
  struct place place = {.unit = unit, .where = names[home]};
  bool is_pinned = false;
  for (int param = 0; param < graph->n_params; param++) {
    const struct lade_change pin = {(uint8_t)kind, (uint8_t)home, param};
    if (graph->tensors[graph->params[param].tensor].unit != unit || homes[param] != home)
      continue;
    is_pinned = is_pinned || survey->is_pinned[lade_change_index(graph, &pin)];
    if (!is_state)
      weight_sum(survey, param, &place);
    for (int part = 0; is_state && part < LADE_N_PARTS; part++)
      value_sum(survey, lade_value_part(graph, param, (enum lade_part)part), &place);
  }
  if (!place.bytes)
    return 0;
  snprintf(place.what, sizeof(place.what), "%s", is_state ? "optimizer state" : "parameters");
  snprintf(place.reason, sizeof(place.reason), "%s%s", home_reasons[kind][home],
           is_pinned ? "; fixed by the residency file" : "");
  return LADE_PUSH(survey->places, place) ? 0 : -ENOMEM;
}

static int units_add(struct survey *survey)
{
  int status = 0;
  for (int unit = 0; unit < survey->graph->n_units && !status; unit++) {
    for (int home = LADE_HOME_DEVICE; home <= LADE_HOME_STORE && !status; home++)
      status = homes_add(survey, unit, LADE_CHANGE_WEIGHT, (enum lade_home)home);
    for (int home = LADE_HOME_DEVICE; home <= LADE_HOME_STORE && !status; home++)
      status = homes_add(survey, unit, LADE_CHANGE_STATE, (enum lade_home)home);
    if (!status)
      status = activations_add(survey, unit);
  }
  return status;
}

int places_make(const struct lade_session_info *info, enum lade_recipe recipe, const char *pins_path,
                struct lade_error *error, struct places *ret_places)
{
  const struct lade_graph *graph = info->graph;
  struct survey survey = {.info = info, .graph = graph, .recipe = recipe, .places = ret_places};
  *ret_places = (struct places){0};
  survey.seconds = calloc((size_t)lade_value_count(graph), sizeof(*survey.seconds));
  survey.is_waiting = calloc((size_t)graph->n_tensors, sizeof(*survey.is_waiting));
  survey.is_pinned = calloc((size_t)lade_change_count(graph), sizeof(*survey.is_pinned));
  int status = survey.seconds && survey.is_waiting && survey.is_pinned ? 0 : -ENOMEM;
  if (!status)
    status = pins_collect(&survey, pins_path, error);
  if (!status) {
    prices_collect(&survey);
    waits_collect(&survey);
    status = units_add(&survey);
  }
  free(survey.seconds);
  free(survey.is_waiting);
  free(survey.is_pinned);
  return status;
}

void places_finish(struct places *places)
{
  LADE_ARRAY_FREE(places);
}

/* ---- telling ---- */

static int unit_count(const struct places *places, int first)
{
  int n = 0;
  while (first + n < places->n && places->items[first + n].unit == places->items[first].unit)
    n++;
  return n;
}

/* Do two units, at places @a and @b, make the same choices about the same values? */
static bool units_are_alike(const struct places *places, int a, int b, int n)
{
  if (b >= places->n || unit_count(places, b) != n)
    return false;
  for (int i = 0; i < n; i++) {
    const struct place *x = &places->items[a + i], *y = &places->items[b + i];
    if (strcmp(x->what, y->what) != 0 || strcmp(x->where, y->where) != 0 || x->is_spilled != y->is_spilled ||
        x->bytes != y->bytes)
      return false;
  }
  return true;
}

/* One line: place @at and its likes in @n_units units of @n places each. */
static void place_print(const struct places *places, int at, int n, int n_units, FILE *file)
{
  const struct place *place = &places->items[at];
  char bytes[32], seconds[32] = "";
  double sum = 0;
  for (int i = 0; i < n_units; i++)
    sum += places->items[at + i * n].seconds;
  if (sum > 0)
    seconds_format(sum, seconds, sizeof(seconds));
  lade_size_format(place->bytes * (uint64_t)n_units, bytes, sizeof(bytes));
  fprintf(file, "    %-9s %-24s %10s %10s  %s%s\n", place->where, place->what, bytes, seconds, place->reason,
          place->is_spilled ? "; leaves between its other uses too" : "");
}

void places_print(const struct places *places, const struct lade_graph *graph, FILE *file)
{
  for (int at = 0, n; at < places->n; at += n) {
    n = unit_count(places, at);
    int n_units = 1;
    while (units_are_alike(places, at, at + n_units * n, n))
      n_units++;
    int last = places->items[at + (n_units - 1) * n].unit;
    if (n_units > 1)
      fprintf(file, "  %s to %s, %d units together\n", graph->units[places->items[at].unit].name,
              graph->units[last].name, n_units);
    else
      fprintf(file, "  %s\n", graph->units[last].name);
    for (int i = 0; i < n; i++)
      place_print(places, at + i, n, n_units, file);
    at += (n_units - 1) * n;
  }
}

json_t *places_json(const struct places *places, const struct lade_graph *graph)
{
  json_t *units = json_array(), *choices = NULL;
  for (int i = 0; i < places->n; i++) {
    const struct place *place = &places->items[i];
    if (i == 0 || place->unit != place[-1].unit) {
      choices = json_array();
      json_array_append_new(units, json_pack("{s:s, s:o}", "unit", graph->units[place->unit].name, "choices",
                                             choices));
    }
    json_array_append_new(choices, json_pack("{s:s, s:s, s:b, s:o, s:o, s:s}", "what", place->what, "where",
                                             place->where, "is_spilled", place->is_spilled, "bytes",
                                             json_bytes(place->bytes), "seconds", json_number(place->seconds),
                                             "reason", place->reason));
  }
  return units;
}
