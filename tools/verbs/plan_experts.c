/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixture of experts is planned and not trained: its step becomes a graph, and the planner of graphs answers as for a
 * graph of the user's own. Options of layouts, devices and the run have no meaning for it and are refused by name.
 * Without --machine the rates are those of this machine.
 */
#include "tools/verbs/plan_experts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "machine/experts_step.h"
#include "machine/probe.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"
#include "tools/verbs/plan_graph.h"

#define HEADING_BYTES 512       /* lines before the figures */
#define MOVES_OF_A_LAYER 600000 /* moves of the search, divided by the number of layers */
#define MOVES_MIN 1000          /* moves of the search of any number of layers */
#define SEQ_MAX 1024 /* the default of --seq, as for other models */

struct experts_planning {
  const struct options *options;
  struct lade_experts model;
  struct lade_experts_step_params step;
  struct lade_cost cost;
  bool has_cost;
  char heading[HEADING_BYTES];
  struct lade_error error;
};

/* Options that count; others of `lade plan` that change a plan are refused. */
static const char *const known_options[] = {
    "model", "layers", "batch", "micro-batch", "seq", "seed", "dtype", "moments", "master", "budget", "svg",
    "host-budget", "store-budget", "machine", "json", "quiet", "config", "threads", "print-config", "help", "frontier",
    "expert-capacity", "seconds", "iterations", "instructions"};

static bool is_known(const char *name)
{
  for (size_t i = 0; i < LADE_COUNT(known_options); i++) {
    if (strcmp(known_options[i], name) == 0)
      return true;
  }
  return false;
}

static int options_check(struct experts_planning *planning)
{
  const struct options *options = planning->options;
  for (const struct option *option = option_table; option->help; option++) {
    if (option->name && (option->verbs & VERB_PLAN) && !is_known(option->name) && option_is_given(options, option))
      return lade_error_set(&planning->error, -EINVAL, "--%s: a mixture of experts is planned as a graph, on one rank; "
                            "--batch, --micro-batch, --seq, --dtype, --moments, --budget, --machine and "
                            "--expert-capacity count; --cluster with --ep N prices it by formula", option->name);
  }
  const double max = (double)planning->model.n_experts / (double)planning->model.n_active;
  if (options->expert_capacity > max)
    return lade_error_set(&planning->error, -EINVAL, "--expert-capacity %g: at %g an expert has room for all tokens",
                          options->expert_capacity, max);
  return 0;
}

/* Get the rates of --machine, or measure those of this one. */
static int cost_get(struct experts_planning *planning)
{
  struct lade_machine machine;
  struct lade_kernels kernels;
  const struct lade_cpu cpu = lade_cpu_get();
  lade_pool *pool = NULL;
  const char *named = planning->options->session.machine;
  int status = named ? lade_machine_get(named, &planning->error, &machine) : 0;
  if (named && !status)
    lade_cost_init(&planning->cost, &machine);
  if (!named) {
    lade_kernels_init(&kernels, &cpu);
    status = lade_pool_create((int)planning->options->n_threads, &pool);
    const struct lade_probe_params params = {.struct_size = sizeof(params), .kernels = &kernels, .pool = pool};
    status = status ? lade_error_set(&planning->error, status, "threads were refused: %s", strerror(-status))
                    : lade_probe(&params, &planning->error, &planning->cost);
    lade_pool_destroy(pool);
  }
  planning->has_cost = !status;
  return status;
}

static void step_fill(struct experts_planning *planning)
{
  const struct lade_session_params *session = &planning->options->session;
  const int64_t micro_batch = session->micro_batch ? session->micro_batch : session->batch;
  if (session->layers)
    planning->model.layers = session->layers;
  planning->step = (struct lade_experts_step_params){
      .struct_size = sizeof(planning->step), .model = &planning->model, .cost = &planning->cost,
      .dtype = session->dtype, .moments = session->moments, .master = session->master, .micro_batch = micro_batch,
      .n_microbatches = session->batch / micro_batch,
      .seq_len = session->seq_len ? session->seq_len : LADE_MIN(planning->model.context, SEQ_MAX),
      .capacity = planning->options->expert_capacity};
}

/* ---- results ---- */

static void heading_write(struct experts_planning *planning)
{
  const struct lade_experts_step_params *step = &planning->step;
  const struct lade_experts *model = &planning->model;
  int64_t all_rows = 0;
  const int64_t rows = lade_experts_rows(step, &all_rows);
  snprintf(planning->heading, sizeof(planning->heading),
           "model         %s, %lld parameters, %lld active; planned, not trained\n"
           "step          batch %lld of %lld tokens, in %lld pass%s\n"
           "experts       %lld of %lld for each token, with room for %lld tokens each: capacity %g\n"
           "machine       %s: %s\n", model->name, (long long)lade_experts_n_params(model),
           (long long)lade_experts_n_active_params(model), (long long)(step->micro_batch * step->n_microbatches),
           (long long)step->seq_len, (long long)step->n_microbatches, step->n_microbatches == 1 ? "" : "es",
           (long long)model->n_active, (long long)model->n_experts, (long long)rows, step->capacity,
           planning->cost.machine.name, planning->options->session.machine ? "described, not measured" : "measured");
}

/* Return the fields that a graph's own plan lacks. NULL: out of memory. */
static json_t *fields_make(const struct experts_planning *planning)
{
  const struct lade_experts_step_params *step = &planning->step;
  const struct lade_experts *model = &planning->model;
  int64_t all_rows = 0;
  const int64_t rows = lade_experts_rows(step, &all_rows);
  return json_pack("{s:s, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:b}", "model", model->name, "parameters",
                   (json_int_t)lade_experts_n_params(model), "active_parameters",
                   (json_int_t)lade_experts_n_active_params(model), "trainable", 0, "batch",
                   (json_int_t)(step->micro_batch * step->n_microbatches), "micro_batch",
                   (json_int_t)step->micro_batch, "seq", (json_int_t)step->seq_len, "experts",
                   (json_int_t)model->n_experts, "experts_per_token", (json_int_t)model->n_active, "expert_capacity",
                   step->capacity, "expert_rows", (json_int_t)rows, "is_measured",
                   !planning->options->session.machine);
}

/* Return the moves of a search without a limit of its own: fewer where a move replays more ops. */
static int64_t iterations_get(const struct experts_planning *planning)
{
  const struct options *options = planning->options;
  const int64_t n_layers = planning->step.n_microbatches * planning->model.layers;
  if (options->n_iterations || options->search_seconds > 0)
    return options->n_iterations;
  return LADE_MAX(MOVES_OF_A_LAYER / n_layers, MOVES_MIN);
}

static int experts_run(struct experts_planning *planning)
{
  struct options own = *planning->options; /* with another number of iterations */
  struct graph_request request = {.options = &own, .heading = planning->heading};
  int status = options_check(planning);
  if (!status)
    status = cost_get(planning);
  if (!status) {
    step_fill(planning);
    status = lade_experts_step_graph(&planning->step, &planning->error, &request.graph);
  }
  if (status)
    return exit_fail("plan", status, &planning->error);
  own.n_iterations = iterations_get(planning);
  heading_write(planning);
  request.fields = fields_make(planning);
  const int code = request.fields ? plan_graph_made(&request) : exit_fail("plan", -ENOMEM, NULL);
  json_decref(request.fields);
  lade_graph_destroy(request.graph);
  return code;
}

bool plan_experts(const struct options *options, int *ret_code)
{
  struct experts_planning planning = {.options = options};
  const int status = options->graph ? -ENOENT
                                    : lade_experts_find(options->session.model, &planning.model, &planning.error);
  if (status == -ENOENT)
    return false;
  *ret_code = status ? exit_fail("plan", status, &planning.error) : experts_run(&planning);
  if (planning.has_cost)
    lade_cost_finish(&planning.cost);
  return true;
}
