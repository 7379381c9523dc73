/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of each choice of a plan. Prices come from the program itself, not from an estimate. The predicted time of
 * every instruction that exists because of a choice is charged to the value chosen. A recomputed op is charged to its
 * first output, a copy to the value copied, an update to its parameter. Prices are busy times of queues; work that
 * overlaps compute may add nothing to the step.
 */
#include "tools/report/placement_report.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/build.h"
#include "tools/report/report.h"

struct placement_survey {
  const struct lade_session_info *info;
  const struct lade_model_graph *graph;
  double *seconds;  /* by value number */
  bool *is_waiting; /* by tensor: a backward op reads it */
  bool *is_pinned;  /* by lade_change_index */
  enum lade_recipe recipe;
  struct placement_report *places;
};

/* ---- prices ---- */

static int moved_tensor(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_operand *source = &program->operands[instr->first_operand];
  return source->access & LADE_READS ? source->reads.tensor : -1;
}

/* Return the value that @instr is charged to; -1: it would exist with everything kept. */
static int charged_tensor(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_model_graph *graph = program->graph;
  switch (instr->kind) {
  case LADE_INSTR_COMPUTE:
    return instr->is_recompute ? graph->ops[instr->op].out[0] : -1;
  case LADE_INSTR_UPDATE:
    return lade_value_part(graph, instr->param, LADE_PART_M); /* a part that every form of state has */
  case LADE_INSTR_COPY:
  case LADE_INSTR_READ:
  case LADE_INSTR_WRITE:
    return moved_tensor(program, instr);
  default:
    return -1;
  }
}

static void prices_collect(struct placement_survey *survey)
{
  const struct lade_program *program = survey->info->plan->train;
  for (int i = 0; i < program->n_instrs; i++) {
    int tensor = charged_tensor(program, &program->instrs[i]);
    if (tensor >= 0)
      survey->seconds[tensor] += (double)program->instrs[i].predicted_ns / 1e9;
  }
}

static void waits_collect(struct placement_survey *survey)
{
  const struct lade_model_graph *graph = survey->graph;
  for (int op = graph->n_fwd_ops; op < graph->n_ops; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++) {
      if (graph->ops[op].in[i] >= 0)
        survey->is_waiting[graph->ops[op].in[i]] = true;
    }
  }
}

static int overrides_collect(struct placement_survey *survey, const char *path, struct lade_error *error)
{
  struct lade_change *overrides = NULL;
  int n_overrides = 0;
  int status = path ? lade_residency_overrides_load(path, survey->graph, survey->info->whole, error, &overrides,
                                                    &n_overrides) : 0;
  for (int i = 0; i < n_overrides && !status; i++)
    survey->is_pinned[lade_change_index(survey->graph, &overrides[i])] = true;
  free(overrides);
  return status;
}

/* ---- places ---- */

static double transfer_seconds(const struct lade_transfer_price *out, const struct lade_transfer_price *in,
                               uint64_t bytes)
{
  return ((double)(out->latency_ns + in->latency_ns) + (double)bytes * (out->ns_per_byte + in->ns_per_byte)) / 1e9;
}

static void reason_write(const struct placement_survey *survey, int tensor, enum lade_residency_policy wait,
                         char *reason)
{
  static const char *const recipes[LADE_N_RECIPES] = {"auto", "none", "full", "selective"};
  const struct lade_prices *prices = survey->info->prices;
  uint64_t bytes = survey->graph->tensors[tensor].bytes;
  char again[32], copy[32], drive[32];
  seconds_format((double)prices->op_ns[survey->graph->tensors[tensor].producer] / 1e9, again, sizeof(again));
  seconds_format(transfer_seconds(&prices->to_host, &prices->to_device, bytes), copy, sizeof(copy));
  seconds_format(transfer_seconds(&prices->write, &prices->read, bytes), drive, sizeof(drive));
  if (survey->is_pinned[tensor])
    snprintf(reason, PLACEMENT_REASON_BYTES, "fixed by the residency file");
  else if (survey->recipe != LADE_RECIPE_AUTO)
    snprintf(reason, PLACEMENT_REASON_BYTES, "by --recompute %s", recipes[survey->recipe]);
  else if (wait == LADE_RESIDENCY_KEEP)
    snprintf(reason, PLACEMENT_REASON_BYTES, "there is room; to make it again takes %s, to copy it %s", again, copy);
  else if (wait == LADE_RESIDENCY_RECOMPUTE)
    snprintf(reason, PLACEMENT_REASON_BYTES, "to make it again takes %s, to copy it out and in %s", again, copy);
  else if (wait == LADE_RESIDENCY_HOST)
    snprintf(reason, PLACEMENT_REASON_BYTES, "to copy it out and in takes %s, to make it again %s and its inputs", copy,
             again);
  else
    snprintf(reason, PLACEMENT_REASON_BYTES, "to write and read it takes %s, to make it again %s and its inputs", drive,
             again);
}

static int activation_add(struct placement_survey *survey, int tensor)
{
  const struct lade_choice *choice = &survey->info->plan->residency->choices[tensor];
  struct placement place = {.unit = survey->graph->tensors[tensor].unit, .bytes = survey->graph->tensors[tensor].bytes,
                        .where = lade_residency_policy_name((enum lade_residency_policy)choice->saved),
                        .seconds = survey->seconds[tensor],
                        .is_spilled = choice->spill != LADE_RESIDENCY_KEEP};
  snprintf(place.name, sizeof(place.name), "%s", lade_name_within(survey->graph, tensor));
  reason_write(survey, tensor, (enum lade_residency_policy)choice->saved, place.reason);
  return LADE_PUSH(survey->places, place) ? 0 : -ENOMEM;
}

static int activations_add(struct placement_survey *survey, int unit)
{
  const struct lade_model_graph *graph = survey->graph;
  int status = 0;
  for (int tensor = 0; tensor < graph->n_tensors && !status; tensor++) {
    const struct lade_tensor *value = &graph->tensors[tensor];
    if (value->kind != LADE_TENSOR_ACTIVATION || value->unit != unit || graph->ops[value->producer].is_backward)
      continue;
    if (survey->is_waiting[tensor] || survey->seconds[tensor] > 0)
      status = activation_add(survey, tensor);
  }
  return status;
}

/* Reason shown for working copies (WEIGHT) or optimizer state (STATE), by state tier. */
static const char *const state_tier_reasons[][3] = {
    [LADE_CHANGE_STATE] = {"there is room; updated by the device", "updated there by the CPU",
                           "updated there, streamed through memory"},
    [LADE_CHANGE_WEIGHT] = {"there is room", "fetched before use, the copy there stays",
                            "fetched before use, the copy there stays"}};

/* Add this rank's bytes and queue times of value @value of a parameter to @place. */
static void value_sum(const struct placement_survey *survey, int value, struct placement *place)
{
  if (value < 0)
    return; /* this form of state lacks it */
  place->bytes += lade_held_bytes(survey->graph, &survey->info->layout, value);
  place->seconds += survey->seconds[value];
}

/* Add the working copy of @param: this rank's block if only that is held, else the whole; and the time of both. */
static void weight_sum(const struct placement_survey *survey, int param, struct placement *place)
{
  const struct lade_build_params build_params = {.graph = survey->graph, .layout = &survey->info->layout,
                                                 .residency = survey->info->plan->residency};
  const int whole = survey->graph->params[param].tensor;
  const int block = lade_value_block(survey->graph, param, LADE_BLOCK_WEIGHT);
  const bool is_block = plan_gathers(&build_params) && !plan_is_gathered_in_place(&build_params, param);
  value_sum(survey, is_block ? block : whole, place);
  place->seconds += is_block ? survey->seconds[whole] : plan_gathers(&build_params) ? survey->seconds[block] : 0;
}

/*
 * Add one place for @unit's parameters whose @kind (working copy or state) has the state tier @tier, if there are any.
 */
static int state_tiers_add(struct placement_survey *survey, int unit, enum lade_change_kind kind, enum lade_tier tier)
{
  static const char *const names[] = {"device", "host", "store"};
  const struct lade_model_graph *graph = survey->graph;
  const struct lade_residency *residency = survey->info->plan->residency;
  const bool is_state = kind == LADE_CHANGE_STATE;
  const uint8_t *state_tiers = is_state ? residency->state_tiers : residency->weight_tiers;
  struct placement place = {.unit = unit, .where = names[tier]};
  bool is_pinned = false;
  for (int param = 0; param < graph->n_params; param++) {
    const struct lade_change pin = {(uint8_t)kind, (uint8_t)tier, param};
    if (graph->tensors[graph->params[param].tensor].unit != unit || state_tiers[param] != tier)
      continue;
    is_pinned = is_pinned || survey->is_pinned[lade_change_index(graph, &pin)];
    if (!is_state)
      weight_sum(survey, param, &place);
    for (int part = 0; is_state && part < LADE_N_PARTS; part++)
      value_sum(survey, lade_value_part(graph, param, (enum lade_part)part), &place);
  }
  if (!place.bytes)
    return 0;
  snprintf(place.name, sizeof(place.name), "%s", is_state ? "optimizer state" : "parameters");
  snprintf(place.reason, sizeof(place.reason), "%s%s", state_tier_reasons[kind][tier],
           is_pinned ? "; fixed by the residency file" : "");
  return LADE_PUSH(survey->places, place) ? 0 : -ENOMEM;
}

static int units_add(struct placement_survey *survey)
{
  int status = 0;
  for (int unit = 0; unit < survey->graph->n_units && !status; unit++) {
    for (int tier = LADE_TIER_DEVICE; tier <= LADE_TIER_STORE && !status; tier++)
      status = state_tiers_add(survey, unit, LADE_CHANGE_WEIGHT, (enum lade_tier)tier);
    for (int tier = LADE_TIER_DEVICE; tier <= LADE_TIER_STORE && !status; tier++)
      status = state_tiers_add(survey, unit, LADE_CHANGE_STATE, (enum lade_tier)tier);
    if (!status)
      status = activations_add(survey, unit);
  }
  return status;
}

int placement_report_make(const struct lade_session_info *info, enum lade_recipe recipe, const char *overrides_path,
                          struct lade_error *error, struct placement_report *ret_places)
{
  const struct lade_model_graph *graph = info->graph;
  struct placement_survey survey = {.info = info, .graph = graph, .recipe = recipe, .places = ret_places};
  *ret_places = (struct placement_report){0};
  survey.seconds = calloc((size_t)lade_value_count(graph), sizeof(*survey.seconds));
  survey.is_waiting = calloc((size_t)graph->n_tensors, sizeof(*survey.is_waiting));
  survey.is_pinned = calloc((size_t)lade_change_count(graph), sizeof(*survey.is_pinned));
  int status = survey.seconds && survey.is_waiting && survey.is_pinned ? 0 : -ENOMEM;
  if (!status)
    status = overrides_collect(&survey, overrides_path, error);
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

void placement_report_finish(struct placement_report *places)
{
  LADE_ARRAY_FREE(places);
}

/* ---- printing ---- */

static int unit_count(const struct placement_report *places, int first)
{
  int n = 0;
  while (first + n < places->n && places->items[first + n].unit == places->items[first].unit)
    n++;
  return n;
}

/* True if the units at places @a and @b, of @n places each, make the same choices about the same values. */
static bool units_are_alike(const struct placement_report *places, int a, int b, int n)
{
  if (b >= places->n || unit_count(places, b) != n)
    return false;
  for (int i = 0; i < n; i++) {
    const struct placement *x = &places->items[a + i], *y = &places->items[b + i];
    if (strcmp(x->name, y->name) != 0 || strcmp(x->where, y->where) != 0 || x->is_spilled != y->is_spilled ||
        x->bytes != y->bytes)
      return false;
  }
  return true;
}

/* Print one line: place @at, merged with the same place of the @n_units units of @n places each. */
static void place_print(const struct placement_report *places, int at, int n, int n_units, FILE *file)
{
  const struct placement *place = &places->items[at];
  char bytes[32], seconds[32] = "";
  double sum = 0;
  for (int i = 0; i < n_units; i++)
    sum += places->items[at + i * n].seconds;
  if (sum > 0)
    seconds_format(sum, seconds, sizeof(seconds));
  lade_size_format(place->bytes * (uint64_t)n_units, bytes, sizeof(bytes));
  fprintf(file, "    %-9s %-24s %10s %10s  %s%s\n", place->where, place->name, bytes, seconds, place->reason,
          place->is_spilled ? "; leaves between its other uses too" : "");
}

void placement_report_print(const struct placement_report *places, const struct lade_model_graph *graph, FILE *file)
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

json_t *placement_report_json(const struct placement_report *places, const struct lade_model_graph *graph)
{
  json_t *units = json_array(), *choices = NULL;
  for (int i = 0; i < places->n; i++) {
    const struct placement *place = &places->items[i];
    if (i == 0 || place->unit != place[-1].unit) {
      choices = json_array();
      json_array_append_new(units, json_pack("{s:s, s:o}", "unit", graph->units[place->unit].name, "choices",
                                             choices));
    }
    json_array_append_new(choices, json_pack("{s:s, s:s, s:b, s:o, s:o, s:s}", "what", place->name, "where",
                                             place->where, "is_spilled", place->is_spilled, "bytes",
                                             json_bytes(place->bytes), "seconds", json_number(place->seconds),
                                             "reason", place->reason));
  }
  return units;
}
